/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/call.h"

#define NAME(id, name) name,
const char *const b200_api_names[B200_API_COUNT] = {B200_APIS(NAME)};
const char *const b200_role_names[B200_ROLE_COUNT] = {B200_ROLES(NAME)};
const char *const b200_element_names[B200_ELEMENT_COUNT] = {B200_TYPES(NAME)};
const char *const b200_compute_names[B200_COMPUTE_COUNT] = {B200_COMPUTES(NAME)};
const char *const b200_epilogue_names[B200_EPILOGUE_COUNT] = {B200_EPILOGUES(NAME)};
const char *const b200_coll_names[B200_COLL_COUNT] = {B200_COLLECTIVES(NAME)};
const char *const b200_owner_names[B200_OWNER_COUNT] = {B200_OWNERS(NAME)};
#undef NAME

uint64_t b200_gemm_flops(const struct b200_gemm *gemm) {
  if (gemm->m <= 0 || gemm->n <= 0 || gemm->k <= 0 || gemm->batch <= 0)
    return 0;
  return 2 * (uint64_t)gemm->m * (uint64_t)gemm->n * (uint64_t)gemm->k * (uint64_t)gemm->batch;
}

bool b200_epilogue_has_bias(uint8_t epilogue) {
  return epilogue == B200_EPILOGUE_BIAS || epilogue == B200_EPILOGUE_RELU_BIAS || epilogue == B200_EPILOGUE_GELU_BIAS;
}

enum b200_role b200_gemm_role(char ta, char tb, int64_t batch) {
  if (batch != 1)
    return B200_ROLE_BATCHED;
  if (ta != 'N' && tb == 'N')
    return B200_ROLE_FPROP;
  if (ta == 'N' && tb == 'N')
    return B200_ROLE_DGRAD;
  if (ta == 'N')
    return B200_ROLE_WGRAD;
  return B200_ROLE_OTHER;
}

uint64_t b200_coll_bytes(const struct b200_coll *coll) {
  uint64_t bytes = coll->count * b200_element_bytes((enum b200_element)coll->dtype);
  switch ((enum b200_coll_op)coll->op) {
  case B200_COLL_ALLGATHER:
  case B200_COLL_REDUCESCATTER:
  case B200_COLL_ALLTOALL:
  case B200_COLL_GATHER:
  case B200_COLL_SCATTER:
    return bytes * (coll->nranks > 0 ? (uint64_t)coll->nranks : 1);
  default:
    return bytes;
  }
}

unsigned b200_element_bytes(enum b200_element type) {
  static const unsigned char bytes[B200_ELEMENT_COUNT] = {
      [B200_ELEMENT_F64] = 8,  [B200_ELEMENT_F32] = 4,  [B200_ELEMENT_F16] = 2, [B200_ELEMENT_BF16] = 2,
      [B200_ELEMENT_E4M3] = 1, [B200_ELEMENT_E5M2] = 1, [B200_ELEMENT_I8] = 1,  [B200_ELEMENT_U8] = 1,
      [B200_ELEMENT_I32] = 4,  [B200_ELEMENT_U32] = 4,  [B200_ELEMENT_I64] = 8, [B200_ELEMENT_U64] = 8,
  };
  return bytes[type];
}
