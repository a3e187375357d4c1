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

static void *getter(_Atomic(void *) *cache, const char *name) {
  void *function = atomic_load_explicit(cache, memory_order_relaxed);
  if (!function) {
    function = b200_library_symbol(B200_LIBRARY_cublaslt, name);
    atomic_store_explicit(cache, function, memory_order_relaxed);
  }
  return function;
}

static uint64_t layout_value(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, size_t bytes) {
  static _Atomic(void *) cache;
  get_layout get = (get_layout)getter(&cache, "cublasLtMatrixLayoutGetAttribute");
  uint64_t value = 0;
  size_t written;
  if (!layout || !get || get(layout, attribute, &value, bytes, &written) != CUBLAS_STATUS_SUCCESS)
    return 0;
  return value;
}

static int32_t desc_value(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute) {
  static _Atomic(void *) cache;
  get_desc get = (get_desc)getter(&cache, "cublasLtMatmulDescGetAttribute");
  int32_t value = 0;
  size_t written;
  if (!desc || !get || get(desc, attribute, &value, sizeof value, &written) != CUBLAS_STATUS_SUCCESS)
    return 0;
  return value;
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

static struct b200_gemm b200_gemm_lt(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                     cublasLtMatrixLayout_t d) {
  cublasOperation_t ta = (cublasOperation_t)desc_value(desc, CUBLASLT_MATMUL_DESC_TRANSA);
  cublasOperation_t tb = (cublasOperation_t)desc_value(desc, CUBLASLT_MATMUL_DESC_TRANSB);
  cublasLtMatrixLayoutAttribute_t contracted = ta == CUBLAS_OP_N ? CUBLASLT_MATRIX_LAYOUT_COLS : CUBLASLT_MATRIX_LAYOUT_ROWS;
  struct b200_gemm gemm =
      b200_gemm_ex(B200_API_LT, ta, tb, (int64_t)layout_value(d, CUBLASLT_MATRIX_LAYOUT_ROWS, 8),
                   (int64_t)layout_value(d, CUBLASLT_MATRIX_LAYOUT_COLS, 8), (int64_t)layout_value(a, contracted, 8),
                   (int64_t)layout_value(d, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4),
                   (cudaDataType)layout_value(a, CUBLASLT_MATRIX_LAYOUT_TYPE, 4),
                   (cudaDataType)layout_value(b, CUBLASLT_MATRIX_LAYOUT_TYPE, 4),
                   (cudaDataType)layout_value(d, CUBLASLT_MATRIX_LAYOUT_TYPE, 4),
                   (cublasComputeType_t)desc_value(desc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE));
  gemm.epilogue = epilogue_of(desc_value(desc, CUBLASLT_MATMUL_DESC_EPILOGUE));
  return gemm;
}

#define B200_CUBLASLT(...) B200_ENTRY(cublaslt, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_cublaslt[] = {
#define B200_CUBLASLT(...) B200_SLOT_ROW(cublaslt, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_cublaslt = sizeof b200_slots_cublaslt / sizeof *b200_slots_cublaslt;
