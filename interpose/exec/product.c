/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/product.h"

#include <string.h>

/* Named only since CUDA 12.8; cublasLt.h of that version has the same values. */
enum { DESC_A_SCALE_MODE = 31, DESC_B_SCALE_MODE = 32, SCALE_VEC32_UE8M0 = 2 };

/* Up to here cuBLASLt's cache of heuristics took MXFP8 and per-tensor products for the same; an attribute that plays no part
   keeps them apart (TransformerEngine does the same). */
enum { CACHE_MIXES_SCALE_MODES_UP_TO = 120803 };

cudaDataType_t b200_cuda_type(uint8_t element) {
  switch (element) {
  case B200_ELEMENT_F16:
    return CUDA_R_16F;
  case B200_ELEMENT_F32:
    return CUDA_R_32F;
  case B200_ELEMENT_E4M3:
    return CUDA_R_8F_E4M3;
  case B200_ELEMENT_E5M2:
    return CUDA_R_8F_E5M2;
  default:
    return CUDA_R_16BF;
  }
}

static const cublasLtEpilogue_t epilogues[B200_EPILOGUE_COUNT] = {
    [B200_EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT, [B200_EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
    [B200_EPILOGUE_RELU] = CUBLASLT_EPILOGUE_RELU,    [B200_EPILOGUE_RELU_BIAS] = CUBLASLT_EPILOGUE_RELU_BIAS,
    [B200_EPILOGUE_GELU] = CUBLASLT_EPILOGUE_GELU,    [B200_EPILOGUE_GELU_BIAS] = CUBLASLT_EPILOGUE_GELU_BIAS,
};

static bool set_int(const struct b200_vendor *vendor, cublasLtMatmulDesc_t desc, int attribute, int32_t value) {
  return vendor->cublasLtMatmulDescSetAttribute(desc, (cublasLtMatmulDescAttributes_t)attribute, &value, sizeof value) ==
         CUBLAS_STATUS_SUCCESS;
}

static bool set_pointer(const struct b200_vendor *vendor, cublasLtMatmulDesc_t desc, int attribute, const void *value) {
  return vendor->cublasLtMatmulDescSetAttribute(desc, (cublasLtMatmulDescAttributes_t)attribute, &value, sizeof value) ==
         CUBLAS_STATUS_SUCCESS;
}

static bool set_scales(struct b200_product *out, const struct b200_vendor *vendor, const void *scale_a,
                       const void *scale_b) {
  if (!set_pointer(vendor, out->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_a) ||
      !set_pointer(vendor, out->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_b))
    return false;
  out->scale_a = scale_a;
  out->scale_b = scale_b;
  return true;
}

static bool make_desc(struct b200_product *out, const struct b200_vendor *vendor, const struct b200_facts *facts,
                      enum b200_format format, bool a_k_fast, bool b_k_fast, const struct b200_product_terms *terms) {
  const struct b200_gemm *gemm = &facts->gemm;
  bool device_pointers = facts->flags & B200_CALL_ALPHA_DEVICE;
  int8_t fast = terms->fast_accumulate;
  int64_t batch_stride = 1;
  if (vendor->cublasLtMatmulDescCreate(&out->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS)
    return false;
  cublasLtMatmulDesc_t desc = out->desc;
  bool set = set_int(vendor, desc, CUBLASLT_MATMUL_DESC_TRANSA, a_k_fast ? CUBLAS_OP_T : CUBLAS_OP_N) &&
             set_int(vendor, desc, CUBLASLT_MATMUL_DESC_TRANSB, b_k_fast ? CUBLAS_OP_N : CUBLAS_OP_T) &&
             set_int(vendor, desc, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                     device_pointers ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST) &&
             set_int(vendor, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)epilogues[gemm->epilogue]);
  const void *any =
      (const void *)(uintptr_t)256; /* pointers are set by each run; the heuristic may look whether there are some */
  if (set && b200_epilogue_has_bias(gemm->epilogue))
    set = set_int(vendor, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)b200_cuda_type(facts->bias)) &&
          set_pointer(vendor, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, any);
  if (set && terms->sm_target != 0)
    set = set_int(vendor, desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, terms->sm_target);
  if (set && format != B200_FORMAT_NATIVE)
    set = set_scales(out, vendor, any, any);
  if (set && format == B200_FORMAT_FP8 && fast)
    set = vendor->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast) ==
          CUBLAS_STATUS_SUCCESS;
  if (set && format == B200_FORMAT_MXFP8) {
    set = set_int(vendor, desc, DESC_A_SCALE_MODE, SCALE_VEC32_UE8M0) &&
          set_int(vendor, desc, DESC_B_SCALE_MODE, SCALE_VEC32_UE8M0);
    if (set && vendor->cublasLtGetVersion() <= CACHE_MIXES_SCALE_MODES_UP_TO)
      set = vendor->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, &batch_stride,
                                                   sizeof batch_stride) == CUBLAS_STATUS_SUCCESS;
  }
  return set;
}

static bool make_layout(const struct b200_vendor *vendor, cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t rows,
                        int64_t cols, int64_t ld, int64_t batch, int64_t stride) {
  int32_t count = (int32_t)batch;
  if (vendor->cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)cols, ld) != CUBLAS_STATUS_SUCCESS)
    return false;
  return batch == 1 || (vendor->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                                 sizeof count) == CUBLAS_STATUS_SUCCESS &&
                        vendor->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                                 sizeof stride) == CUBLAS_STATUS_SUCCESS);
}

static bool make_layouts(struct b200_product *out, const struct b200_vendor *vendor, const struct b200_facts *facts,
                         int64_t m, int64_t n, const struct b200_product_operand *a, const struct b200_product_operand *b) {
  int64_t k = facts->gemm.k, batch = facts->gemm.batch;
  cudaDataType_t type = b200_cuda_type(facts->gemm.d);
  return make_layout(vendor, &out->a, a->type, a->k_fast ? k : m, a->k_fast ? m : k, a->ld, batch, a->stride) &&
         make_layout(vendor, &out->b, b->type, b->k_fast ? k : n, b->k_fast ? n : k, b->ld, batch, b->stride) &&
         make_layout(vendor, &out->c, type, m, n, facts->ldc, batch, facts->stride_d) &&
         make_layout(vendor, &out->d, type, m, n, facts->ldd, batch, facts->stride_d);
}

/* What an algorithm may rely on. */
struct terms_of_use {
  uint64_t workspace_bytes;
  uint32_t a, b, d; /* bytes that addresses are multiples of; C as D */
};

static bool prefer(const struct b200_vendor *vendor, cublasLtMatmulPreference_t preference, int attribute, const void *value,
                   size_t bytes) {
  return vendor->cublasLtMatmulPreferenceSetAttribute(preference, (cublasLtMatmulPreferenceAttributes_t)attribute, value,
                                                      bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool make_preference(const struct b200_vendor *vendor, cublasLtMatmulPreference_t *out,
                            const struct terms_of_use *use) {
  return vendor->cublasLtMatmulPreferenceCreate(out) == CUBLAS_STATUS_SUCCESS &&
         prefer(vendor, *out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &use->workspace_bytes,
                sizeof use->workspace_bytes) &&
         prefer(vendor, *out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &use->a, sizeof use->a) &&
         prefer(vendor, *out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &use->b, sizeof use->b) &&
         prefer(vendor, *out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &use->d, sizeof use->d) &&
         prefer(vendor, *out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &use->d, sizeof use->d);
}

static enum b200_product_result find_algorithm(struct b200_product *out, const struct b200_vendor *vendor, void *handle,
                                               const struct terms_of_use *use) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  enum b200_product_result result = B200_PRODUCT_ERROR;
  memset(&found, 0, sizeof found);
  if (make_preference(vendor, &preference, use)) {
    cublasStatus_t status = vendor->cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)handle, out->desc, out->a, out->b,
                                                                   out->c, out->d, preference, 1, &found, &count);
    bool any = status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    result = any                                                                        ? B200_PRODUCT_READY
             : status == CUBLAS_STATUS_SUCCESS || status == CUBLAS_STATUS_NOT_SUPPORTED ? B200_PRODUCT_NO_ALGORITHM
                                                                                        : B200_PRODUCT_ERROR;
    out->algo = found.algo;
    out->workspace_bytes = found.workspaceSize;
  }
  if (preference)
    vendor->cublasLtMatmulPreferenceDestroy(preference);
  return result;
}

enum b200_product_result b200_product_make(struct b200_product *out, const struct b200_vendor *vendor, void *handle,
                                           const struct b200_facts *facts, enum b200_format format, int64_t m, int64_t n,
                                           const struct b200_product_operand *a, const struct b200_product_operand *b,
                                           const struct b200_product_terms *terms, size_t workspace_limit,
                                           uint32_t d_alignment) {
  enum b200_product_result result = B200_PRODUCT_ERROR;
  const struct terms_of_use use = {
      .workspace_bytes = workspace_limit, .a = a->alignment, .b = b->alignment, .d = d_alignment};
  memset(out, 0, sizeof *out);
  if (make_desc(out, vendor, facts, format, a->k_fast, b->k_fast, terms) && make_layouts(out, vendor, facts, m, n, a, b))
    result = find_algorithm(out, vendor, handle, &use);
  if (result != B200_PRODUCT_READY)
    b200_product_end(out, vendor);
  return result;
}

void b200_product_end(struct b200_product *product, const struct b200_vendor *vendor) {
  cublasLtMatrixLayout_t layouts[] = {product->a, product->b, product->c, product->d};
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    if (layouts[i])
      vendor->cublasLtMatrixLayoutDestroy(layouts[i]);
  if (product->desc)
    vendor->cublasLtMatmulDescDestroy(product->desc);
  memset(product, 0, sizeof *product);
}

cublasStatus_t b200_product_run(struct b200_product *product, const struct b200_vendor *vendor, void *handle,
                                const struct b200_product_pointers *p, CUstream stream) {
  if ((p->scale_a != product->scale_a || p->scale_b != product->scale_b) &&
      !set_scales(product, vendor, p->scale_a, p->scale_b))
    return CUBLAS_STATUS_INTERNAL_ERROR;
  if (p->bias != product->bias) {
    if (!set_pointer(vendor, product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias))
      return CUBLAS_STATUS_INTERNAL_ERROR;
    product->bias = p->bias;
  }
  return vendor->cublasLtMatmul((cublasLtHandle_t)handle, product->desc, p->alpha, p->a, product->a, p->b, product->b,
                                p->beta, p->c, product->c, p->d, product->d, &product->algo, p->workspace,
                                p->workspace_bytes, (cudaStream_t)stream);
}
