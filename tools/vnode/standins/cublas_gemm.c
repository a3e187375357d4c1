/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLAS's GEMM entry points. Each fills one struct gemm_call, and gemm_call_run() checks it as the documentation of the
 * function says and hands it to the node: the only place where a GEMM is counted.
 */
#include <cuda_fp16.h>

#include "tools/vnode/standins/cublas_handle.h"
#include "tools/vnode/standins/number.h"

enum layout { LAYOUT_SINGLE, LAYOUT_STRIDED, LAYOUT_ARRAY };

struct operand {
  const void *data; /* or, for LAYOUT_ARRAY, the array of pointers */
  cudaDataType type;
  int64_t ld, stride;
};

struct gemm_call {
  const char *api; /* as in record.def */
  cublasHandle_t handle;
  enum layout layout;
  int trans_a, trans_b; /* cublasOperation_t */
  int64_t m, n, k, batch;
  int compute; /* cublasComputeType_t */
  cudaDataType scale_type;
  const void *alpha, *beta;
  struct operand a, b, c;
};

static bool ld_valid(int64_t ld, int64_t rows) {
  return ld >= (rows > 1 ? rows : 1);
}

static bool sizes_valid(const struct gemm_call *call) {
  return call->m >= 0 && call->n >= 0 && call->k >= 0 && call->batch >= 0 && vnode_blas_trans(call->trans_a) &&
         vnode_blas_trans(call->trans_b) && ld_valid(call->a.ld, call->trans_a == CUBLAS_OP_N ? call->m : call->k) &&
         ld_valid(call->b.ld, call->trans_b == CUBLAS_OP_N ? call->k : call->n) && ld_valid(call->c.ld, call->m);
}

static struct vnode_matrix matrix_of(const struct operand *operand, enum layout layout) {
  struct vnode_matrix matrix = {.type = operand->type, .ld = operand->ld, .stride = operand->stride};
  if (layout == LAYOUT_ARRAY)
    matrix.array = operand->data;
  else
    matrix.data = operand->data;
  return matrix;
}

static cublasStatus_t gemm_call_run(const struct gemm_call *call) {
  if (!vnode_cublas_is_live(call->handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!sizes_valid(call) || !call->alpha || !call->beta)
    return CUBLAS_STATUS_INVALID_VALUE;
  enum vnode_gemm_kind kind = vnode_gemm_kind(call->compute, call->a.type, call->b.type, call->c.type, call->c.type);
  if (kind == VNODE_GEMM_NONE || vnode_gemm_is_narrow(kind))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  bool on_device = call->handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  struct vnode_gemm gemm = {
      .trans_a = vnode_blas_trans(call->trans_a),
      .trans_b = vnode_blas_trans(call->trans_b),
      .m = call->m,
      .n = call->n,
      .k = call->k,
      .batch = call->batch,
      .alpha = vnode_scalar_make(call->alpha, call->scale_type, on_device),
      .beta = vnode_scalar_make(call->beta, call->scale_type, on_device),
      .a = matrix_of(&call->a, call->layout),
      .b = matrix_of(&call->b, call->layout),
      .c = matrix_of(&call->c, call->layout),
      .d = matrix_of(&call->c, call->layout),
  };
  bool has_result = gemm.m > 0 && gemm.n > 0 && gemm.batch > 0;
  bool has_product = has_result && gemm.k > 0 && !vnode_scalar_is_zero(&gemm.alpha);
  if ((has_result && !call->c.data) || (has_product && (!call->a.data || !call->b.data)))
    return CUBLAS_STATUS_INVALID_VALUE;
  cublasStatus_t status = has_result ? vnode_cublas_prepare(call->handle) : CUBLAS_STATUS_SUCCESS;
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  bool tf32 = call->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ||
              (call->compute == CUBLAS_COMPUTE_32F && call->handle->math_mode & CUBLAS_TF32_TENSOR_OP_MATH);
  return vnode_blas_submit(call->handle->stream, call->api, vnode_gemm_compute_name(call->compute), "none", tf32, &gemm);
}

/* ------------------------------------------------------------------------------------------------------ GemmEx */

#define GEMM_EX(name, integer)                                                                                              \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const void *alpha, const void *a, cudaDataType a_type, integer lda,   \
                                const void *b, cudaDataType b_type, integer ldb, const void *beta, void *c,                 \
                                cudaDataType c_type, integer ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo) {     \
    (void)algo;                                                                                                             \
    return gemm_call_run(&(struct gemm_call){"gemmex",                                                                      \
                                             handle,                                                                        \
                                             LAYOUT_SINGLE,                                                                 \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             1,                                                                             \
                                             (int)compute,                                                                  \
                                             vnode_gemm_scale_type((int)compute, a_type),                                   \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, a_type, lda, 0},                                                           \
                                             {b, b_type, ldb, 0},                                                           \
                                             {c, c_type, ldc, 0}});                                                         \
  }

#define GEMM_STRIDED_EX(name, integer)                                                                                      \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const void *alpha, const void *a, cudaDataType a_type, integer lda,   \
                                long long a_stride, const void *b, cudaDataType b_type, integer ldb, long long b_stride,    \
                                const void *beta, void *c, cudaDataType c_type, integer ldc, long long c_stride,            \
                                integer batch, cublasComputeType_t compute, cublasGemmAlgo_t algo) {                        \
    (void)algo;                                                                                                             \
    return gemm_call_run(&(struct gemm_call){"strided",                                                                     \
                                             handle,                                                                        \
                                             LAYOUT_STRIDED,                                                                \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             batch,                                                                         \
                                             (int)compute,                                                                  \
                                             vnode_gemm_scale_type((int)compute, a_type),                                   \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, a_type, lda, a_stride},                                                    \
                                             {b, b_type, ldb, b_stride},                                                    \
                                             {c, c_type, ldc, c_stride}});                                                  \
  }

#define GEMM_BATCHED_EX(name, integer)                                                                                      \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const void *alpha, const void *const a[], cudaDataType a_type,        \
                                integer lda, const void *const b[], cudaDataType b_type, integer ldb, const void *beta,     \
                                void *const c[], cudaDataType c_type, integer ldc, integer batch,                           \
                                cublasComputeType_t compute, cublasGemmAlgo_t algo) {                                       \
    (void)algo;                                                                                                             \
    return gemm_call_run(&(struct gemm_call){"batched",                                                                     \
                                             handle,                                                                        \
                                             LAYOUT_ARRAY,                                                                  \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             batch,                                                                         \
                                             (int)compute,                                                                  \
                                             vnode_gemm_scale_type((int)compute, a_type),                                   \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, a_type, lda, 0},                                                           \
                                             {b, b_type, ldb, 0},                                                           \
                                             {c, c_type, ldc, 0}});                                                         \
  }

GEMM_EX(cublasGemmEx, int)
GEMM_EX(cublasGemmEx_64, int64_t)
GEMM_STRIDED_EX(cublasGemmStridedBatchedEx, int)
GEMM_STRIDED_EX(cublasGemmStridedBatchedEx_64, int64_t)
GEMM_BATCHED_EX(cublasGemmBatchedEx, int)
GEMM_BATCHED_EX(cublasGemmBatchedEx_64, int64_t)

/* --------------------------------------------------------------------------------------------- SgemmEx, CgemmEx */

#define NARROW_GEMM_EX(name, integer, scalar, scalar_type)                                                                  \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const scalar *alpha, const void *a, cudaDataType a_type, integer lda, \
                                const void *b, cudaDataType b_type, integer ldb, const scalar *beta, void *c,               \
                                cudaDataType c_type, integer ldc) {                                                         \
    return gemm_call_run(&(struct gemm_call){"gemm",                                                                        \
                                             handle,                                                                        \
                                             LAYOUT_SINGLE,                                                                 \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             1,                                                                             \
                                             CUBLAS_COMPUTE_32F,                                                            \
                                             scalar_type,                                                                   \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, a_type, lda, 0},                                                           \
                                             {b, b_type, ldb, 0},                                                           \
                                             {c, c_type, ldc, 0}});                                                         \
  }

NARROW_GEMM_EX(cublasSgemmEx, int, float, CUDA_R_32F)
NARROW_GEMM_EX(cublasSgemmEx_64, int64_t, float, CUDA_R_32F)
NARROW_GEMM_EX(cublasCgemmEx, int, cuComplex, CUDA_C_32F)
NARROW_GEMM_EX(cublasCgemmEx_64, int64_t, cuComplex, CUDA_C_32F)

/* ------------------------------------------------------------------------------------------------- typed GEMMs */

#define TYPED_GEMM(name, integer, element, type, compute)                                                                   \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const element *alpha, const element *a, integer lda,                  \
                                const element *b, integer ldb, const element *beta, element *c, integer ldc) {              \
    return gemm_call_run(&(struct gemm_call){"gemm",                                                                        \
                                             handle,                                                                        \
                                             LAYOUT_SINGLE,                                                                 \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             1,                                                                             \
                                             compute,                                                                       \
                                             type,                                                                          \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, type, lda, 0},                                                             \
                                             {b, type, ldb, 0},                                                             \
                                             {c, type, ldc, 0}});                                                           \
  }

#define TYPED_GEMM_STRIDED(name, integer, element, type, compute)                                                           \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const element *alpha, const element *a, integer lda,                  \
                                long long a_stride, const element *b, integer ldb, long long b_stride, const element *beta, \
                                element *c, integer ldc, long long c_stride, integer batch) {                               \
    return gemm_call_run(&(struct gemm_call){"strided",                                                                     \
                                             handle,                                                                        \
                                             LAYOUT_STRIDED,                                                                \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             batch,                                                                         \
                                             compute,                                                                       \
                                             type,                                                                          \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, type, lda, a_stride},                                                      \
                                             {b, type, ldb, b_stride},                                                      \
                                             {c, type, ldc, c_stride}});                                                    \
  }

#define TYPED_GEMM_BATCHED(name, integer, element, type, compute)                                                           \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, integer m,     \
                                integer n, integer k, const element *alpha, const element *const a[], integer lda,          \
                                const element *const b[], integer ldb, const element *beta, element *const c[],             \
                                integer ldc, integer batch) {                                                               \
    return gemm_call_run(&(struct gemm_call){"batched",                                                                     \
                                             handle,                                                                        \
                                             LAYOUT_ARRAY,                                                                  \
                                             (int)trans_a,                                                                  \
                                             (int)trans_b,                                                                  \
                                             m,                                                                             \
                                             n,                                                                             \
                                             k,                                                                             \
                                             batch,                                                                         \
                                             compute,                                                                       \
                                             type,                                                                          \
                                             alpha,                                                                         \
                                             beta,                                                                          \
                                             {a, type, lda, 0},                                                             \
                                             {b, type, ldb, 0},                                                             \
                                             {c, type, ldc, 0}});                                                           \
  }

#define TYPED(single, prefix, element, type, compute)                                                                       \
  TYPED_GEMM(single, int, element, type, compute)                                                                           \
  TYPED_GEMM(single##_64, int64_t, element, type, compute)                                                                  \
  TYPED_GEMM_STRIDED(prefix##StridedBatched, int, element, type, compute)                                                   \
  TYPED_GEMM_STRIDED(prefix##StridedBatched_64, int64_t, element, type, compute)                                            \
  TYPED_GEMM_BATCHED(prefix##Batched, int, element, type, compute)                                                          \
  TYPED_GEMM_BATCHED(prefix##Batched_64, int64_t, element, type, compute)

/* The header declares those of FP16 to C++ only. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
TYPED(cublasHgemm, cublasHgemm, __half_raw, CUDA_R_16F, CUBLAS_COMPUTE_16F)
#pragma GCC diagnostic pop
TYPED(cublasSgemm_v2, cublasSgemm, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
TYPED(cublasDgemm_v2, cublasDgemm, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
TYPED(cublasCgemm_v2, cublasCgemm, cuComplex, CUDA_C_32F, CUBLAS_COMPUTE_32F)
TYPED(cublasZgemm_v2, cublasZgemm, cuDoubleComplex, CUDA_C_64F, CUBLAS_COMPUTE_64F)
