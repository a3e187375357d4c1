/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASLt. What a call does stands in opaque descriptors; they are read through the library's own getters, because cuBLAS
 * passes descriptors that it made on its stack, which no side table of ours would know.
 */
#include <cublasLt.h>
#include <cublas_v2.h>

#include "interpose/entry.h"

typedef cublasStatus_t (*get_layout)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, void *, size_t, size_t *);
typedef cublasStatus_t (*get_desc)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, void *, size_t, size_t *);

/* The values of one call. `failed`: a getter did not answer, so that they say nothing; they are 0 then. An attribute that an
   older library does not know is at its default, 0. */
struct reading {
  bool failed;
};

static uint64_t answer(struct reading *reading, cublasStatus_t status, uint64_t value) {
  if (status == CUBLAS_STATUS_SUCCESS)
    return value;
  reading->failed |= status != CUBLAS_STATUS_INVALID_VALUE;
  return 0;
}

static uint64_t layout_value(struct reading *reading, cublasLtMatrixLayout_t layout, int attribute, size_t bytes) {
  static _Atomic(void *) cache;
  get_layout get = (get_layout)b200_library_cached(&cache, B200_LIBRARY_cublaslt, "cublasLtMatrixLayoutGetAttribute");
  uint64_t value = 0;
  size_t written;
  reading->failed |= !layout || !get;
  if (!layout || !get)
    return 0;
  cublasStatus_t status = get(layout, (cublasLtMatrixLayoutAttribute_t)attribute, &value, bytes, &written);
  return answer(reading, status, value);
}

static uint64_t desc_value(struct reading *reading, cublasLtMatmulDesc_t desc, int attribute, size_t bytes) {
  static _Atomic(void *) cache;
  get_desc get = (get_desc)b200_library_cached(&cache, B200_LIBRARY_cublaslt, "cublasLtMatmulDescGetAttribute");
  uint64_t value = 0;
  size_t written;
  reading->failed |= !desc || !get;
  if (!desc || !get)
    return 0;
  cublasStatus_t status = get(desc, (cublasLtMatmulDescAttributes_t)attribute, &value, bytes, &written);
  return answer(reading, status, value);
}

static uint8_t epilogue_of(int32_t epilogue) {
  switch (epilogue) {
  case CUBLASLT_EPILOGUE_DEFAULT:
    return B200_EPILOGUE_NONE;
  case CUBLASLT_EPILOGUE_BIAS:
    return B200_EPILOGUE_BIAS;
  case CUBLASLT_EPILOGUE_RELU:
    return B200_EPILOGUE_RELU;
  case CUBLASLT_EPILOGUE_RELU_BIAS:
    return B200_EPILOGUE_RELU_BIAS;
  case CUBLASLT_EPILOGUE_GELU:
    return B200_EPILOGUE_GELU;
  case CUBLASLT_EPILOGUE_GELU_BIAS:
    return B200_EPILOGUE_GELU_BIAS;
  default:
    return B200_EPILOGUE_OTHER;
  }
}

static struct b200_gemm gemm_of(struct reading *reading, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t d) {
  cublasOperation_t ta = (cublasOperation_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_TRANSA, 4);
  cublasOperation_t tb = (cublasOperation_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_TRANSB, 4);
  int contracted = ta == CUBLAS_OP_N ? CUBLASLT_MATRIX_LAYOUT_COLS : CUBLASLT_MATRIX_LAYOUT_ROWS;
  struct b200_gemm gemm = b200_gemm_ex(
      B200_API_LT, ta, tb, (int64_t)layout_value(reading, d, CUBLASLT_MATRIX_LAYOUT_ROWS, 8),
      (int64_t)layout_value(reading, d, CUBLASLT_MATRIX_LAYOUT_COLS, 8), (int64_t)layout_value(reading, a, contracted, 8),
      (int64_t)layout_value(reading, d, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4),
      (cudaDataType)layout_value(reading, a, CUBLASLT_MATRIX_LAYOUT_TYPE, 4),
      (cudaDataType)layout_value(reading, b, CUBLASLT_MATRIX_LAYOUT_TYPE, 4),
      (cudaDataType)layout_value(reading, d, CUBLASLT_MATRIX_LAYOUT_TYPE, 4),
      (cublasComputeType_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 4));
  gemm.epilogue = epilogue_of((int32_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, 4));
  return gemm;
}

/* Attributes that a plain product has at 0. Those of narrow operands and results (scales of A, B and D, amax) need no look:
   cuBLASLt refuses them for the types that are asked about. */
static const struct {
  int attribute;
  size_t bytes;
} plain[] = {
    {CUBLASLT_MATMUL_DESC_TRANSC, 4},
    {CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 8},
};

enum { LAYOUT_BATCH_MODE = 8 }; /* CUBLASLT_MATRIX_LAYOUT_BATCH_MODE: named since CUDA 12.9 */

static bool is_plain_layout(struct reading *reading, cublasLtMatrixLayout_t layout) {
  return layout_value(reading, layout, CUBLASLT_MATRIX_LAYOUT_ORDER, 4) == CUBLASLT_ORDER_COL &&
         layout_value(reading, layout, LAYOUT_BATCH_MODE, 4) == 0;
}

/* Whether all that the descriptors say is carried over. */
static bool is_plain(struct reading *reading, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (desc_value(reading, desc, plain[i].attribute, plain[i].bytes) != 0)
      return false;
  return desc_value(reading, desc, CUBLASLT_MATMUL_DESC_SCALE_TYPE, 4) == CUDA_R_32F &&
         desc_value(reading, desc, CUBLASLT_MATMUL_DESC_FILL_MODE, 4) == CUBLAS_FILL_MODE_FULL &&
         desc_value(reading, desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, 4) <= CUBLASLT_POINTER_MODE_DEVICE &&
         is_plain_layout(reading, a) && is_plain_layout(reading, b) && is_plain_layout(reading, d) &&
         (c == d || is_plain_layout(reading, c));
}

static int64_t batch_stride(struct reading *reading, cublasLtMatrixLayout_t layout) {
  return (int64_t)layout_value(reading, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8);
}

static int64_t leading(struct reading *reading, cublasLtMatrixLayout_t layout) {
  return (int64_t)layout_value(reading, layout, CUBLASLT_MATRIX_LAYOUT_LD, 8);
}

static void read_layouts(struct reading *reading, struct b200_facts *facts, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  facts->lda = leading(reading, a);
  facts->ldb = leading(reading, b);
  facts->ldd = leading(reading, d);
  facts->ldc = c == d ? facts->ldd : leading(reading, c);
  facts->c =
      c == d ? facts->gemm.d : b200_element_of((cudaDataType)layout_value(reading, c, CUBLASLT_MATRIX_LAYOUT_TYPE, 4));
  if (facts->gemm.batch == 1)
    return;
  facts->stride_a = batch_stride(reading, a);
  facts->stride_b = batch_stride(reading, b);
  facts->stride_d = batch_stride(reading, d);
  if (c != d && batch_stride(reading, c) != facts->stride_d)
    facts->flags |= B200_CALL_UNSUPPORTED_KIND;
}

/* The bias has D's type unless the descriptor says otherwise. */
static const void *read_bias(struct reading *reading, struct b200_facts *facts, cublasLtMatmulDesc_t desc) {
  if (!b200_epilogue_has_bias(facts->gemm.epilogue))
    return NULL;
  int32_t type = (int32_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4);
  facts->bias = type < 0 ? facts->gemm.d : b200_element_of((cudaDataType)type);
  return (const void *)(uintptr_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8);
}

/* Half a microsecond of getters, but only for what may be converted. */
static void b200_call_lt(struct b200_gemm_call *out, cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                         const void *a, cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                         const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                         cublasLtMatrixLayout_t d_layout, void *workspace, size_t workspace_bytes, cudaStream_t stream) {
  struct b200_facts *facts = &out->facts;
  struct reading all = {0}, *reading = &all;
  facts->gemm = gemm_of(reading, desc, a_layout, b_layout, d_layout);
  bool half = facts->gemm.a == B200_ELEMENT_BF16 || facts->gemm.a == B200_ELEMENT_F16;
  if (!half || facts->gemm.compute != B200_COMPUTE_F32)
    return; /* left alone: no more is needed to say so */
  read_layouts(reading, facts, a_layout, b_layout, c_layout, d_layout);
  if (!is_plain(reading, desc, a_layout, b_layout, c_layout, d_layout))
    facts->flags |= B200_CALL_UNSUPPORTED_KIND;
  b200_call_pointers(out, a, b, c, d, read_bias(reading, facts, desc));
  out->asked = true;
  out->handle = handle;
  out->stream = stream;
  out->workspace = workspace;
  out->workspace_bytes = workspace_bytes;
  out->sm_target = (int32_t)desc_value(reading, desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 4);
  uint64_t pointer_mode = desc_value(reading, desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, 4);
  out->known = !reading->failed;
  b200_call_scalars(out, alpha, beta, pointer_mode == CUBLASLT_POINTER_MODE_DEVICE);
}

#define B200_STREAM_cublaslt stream
#define B200_CUBLASLT(...) B200_ENTRY(cublaslt, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_cublaslt[] = {
#define B200_CUBLASLT(...) B200_SLOT_ROW(cublaslt, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_cublaslt = sizeof b200_slots_cublaslt / sizeof *b200_slots_cublaslt;
