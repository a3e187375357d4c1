/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL. ncclBcast calls ncclBroadcast, AlltoAll may call Send and Recv: a call is counted once, at the outermost. */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "interpose/entry.h"

static uint8_t dtype_of(ncclDataType_t type) {
  static const uint8_t elements[] = {
      B200_ELEMENT_I8,  B200_ELEMENT_U8,  B200_ELEMENT_I32, B200_ELEMENT_U32,  B200_ELEMENT_I64,  B200_ELEMENT_U64,
      B200_ELEMENT_F16, B200_ELEMENT_F32, B200_ELEMENT_F64, B200_ELEMENT_BF16, B200_ELEMENT_E4M3, B200_ELEMENT_E5M2,
  };
  return (unsigned)type < sizeof elements ? elements[type] : B200_ELEMENT_OTHER;
}

struct b200_coll b200_coll(enum b200_coll_op op, size_t count, ncclDataType_t type, ncclComm_t comm) {
  int nranks = 0;
  /* NCCL complains of a NULL communicator in its log; the call itself will */
  if (!comm || !B200_REAL(nccl, ncclCommCount) || B200_REAL(nccl, ncclCommCount)(comm, &nranks) != ncclSuccess)
    nranks = 0;
  return (struct b200_coll){.count = count, .nranks = nranks, .op = (uint8_t)op, .dtype = dtype_of(type)};
}

#define B200_NCCL(...) B200_ENTRY(nccl, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_nccl[] = {
#define B200_NCCL(...) B200_SLOT_ROW(nccl, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_nccl = sizeof b200_slots_nccl / sizeof *b200_slots_nccl;
