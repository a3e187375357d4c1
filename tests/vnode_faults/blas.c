/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS and cuBLASLt: handles, GEMMs by every way that the shim sees and by some that it does not, vectors, descriptors. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "harness.h"

enum { M = 16, N = 8, K = 4, BATCH = 2, WORKSPACE = 1 << 20 };

static float *a, *b, *c;
static double *da, *db, *dc;
static const float one = 1, zero = 0;
static const double done = 1, dzero = 0;

static void show_result(void) {
  float host[M * N] = {0};
  CALL(cudaMemcpy(host, c, sizeof host, cudaMemcpyDeviceToHost));
  SHOW("%g %g", (double)host[0], (double)host[M * N - 1]);
  CALL(cudaMemset(c, 0, sizeof host));
}

static void gemms(cublasHandle_t handle) {
  CALL(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a, M, b, K, &zero, c, M));
  show_result();
  CALL(cublasSgemm_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a, M, b, K, &zero, c, M));
  CALL(cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &done, da, M, db, K, &dzero, dc, M));
  CALL(cublasDgemm_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &done, da, M, db, K, &dzero, dc, M));
  CALL(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a, M, 0, b, K, 0, &zero, c, M, 0, 1));
  CALL(cublasDgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &done, da, M, 0, db, K, 0, &dzero, dc, M, 0, 1));
  CALL(cublasSgemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, K, b, CUDA_R_32F, K, &zero, c,
                     CUDA_R_32F, M));
  show_result();
  for (int i = 0; i < 3; i++)
    CALL(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, K, b, CUDA_R_32F, K, &zero, c,
                      CUDA_R_32F, M, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  show_result();
  CALL(cublasGemmEx_64(handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, K, b, CUDA_R_32F, K, &zero, c,
                       CUDA_R_32F, M, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  CALL(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, M, M * K, b, CUDA_R_32F, K,
                                  K * N, &zero, c, CUDA_R_32F, M, M * N, BATCH, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  CALL(cublasGemmStridedBatchedEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, M, M * K, b, CUDA_R_32F,
                                     K, K * N, &zero, c, CUDA_R_32F, M, M * N, BATCH, CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT));
  show_result();
  CALL(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, -1, N, K, &one, a, CUDA_R_32F, K, b, CUDA_R_32F, K, &zero, c,
                    CUDA_R_32F, M, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)); /* no such size */
}

static void batched(cublasHandle_t handle) {
  const void *host[3 * BATCH] = {a, a + M * K, b, b + K * N, c, c + M * N};
  const void **pointers = NULL;
  CALL(cudaMalloc((void **)&pointers, sizeof host));
  CALL(cudaMemcpy(pointers, host, sizeof host, cudaMemcpyHostToDevice));
  if (pointers)
    CALL(cublasGemmBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, pointers, CUDA_R_32F, M, pointers + BATCH,
                             CUDA_R_32F, K, &zero, (void *const *)(uintptr_t)(pointers + 2 * BATCH), CUDA_R_32F, M, BATCH,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  show_result();
  CALL(cudaFree(pointers));
}

static void vectors(cublasHandle_t handle) {
  float result = -1;
  int index = -1;
  CALL(cublasSaxpy(handle, M, &one, a, 1, c, 1));
  CALL(cublasSscal(handle, M, &one, c, 1));
  CALL(cublasSdot(handle, M, a, 1, b, 1, &result));
  SHOW("%g", (double)result);
  CALL(cublasSnrm2(handle, M, a, 1, &result));
  CALL(cublasSasum(handle, M, a, 1, &result));
  CALL(cublasIsamax(handle, M, a, 1, &index));
  SHOW("%g %d", (double)result, index);
  CALL(cublasSgemv(handle, CUBLAS_OP_N, M, K, &one, a, M, b, 1, &zero, c, 1));
  CALL(cublasSger(handle, M, N, &one, a, 1, b, 1, c, M));
  CALL(cublasScopy(handle, M, a, 1, c, 1));
  CALL(cublasSswap(handle, M, a, 1, c, 1));
  show_result();
}

static void state(cublasHandle_t handle) {
  void *workspace = NULL;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t mode = CUBLAS_POINTER_MODE_DEVICE;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_ALLOWED;
  cudaStream_t stream = NULL, found = NULL;
  int version = -1, sms = -1;
  CALL(cudaStreamCreate(&stream));
  CALL(cudaMalloc(&workspace, WORKSPACE));
  CALL(cublasGetVersion(handle, &version));
  SHOW("version %d", version);
  CALL(cublasSetStream(handle, stream));
  CALL(cublasGetStream(handle, &found));
  SHOW("same %d", found == stream);
  CALL(cublasSetWorkspace(handle, workspace, WORKSPACE));
  CALL(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH));
  CALL(cublasGetMathMode(handle, &math));
  CALL(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
  CALL(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
  CALL(cublasGetPointerMode(handle, &mode));
  CALL(cublasSetAtomicsMode(handle, CUBLAS_ATOMICS_NOT_ALLOWED));
  CALL(cublasGetAtomicsMode(handle, &atomics));
  CALL(cublasSetSmCountTarget(handle, 0));
  CALL(cublasGetSmCountTarget(handle, &sms));
  SHOW("math %d mode %d atomics %d target %d", (int)math, (int)mode, (int)atomics, sms);
  SHOW("%s", cublasGetStatusString(CUBLAS_STATUS_EXECUTION_FAILED));
  gemms(handle);
  CALL(cudaStreamSynchronize(stream));
  CALL(cublasSetStream(handle, NULL));
  CALL(cudaStreamDestroy(stream));
  CALL(cudaFree(workspace));
}

static void lt(void) {
  cublasLtHandle_t handle = NULL;
  cublasLtMatmulDesc_t op = NULL;
  cublasLtMatrixLayout_t la = NULL, lb = NULL, lc = NULL;
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  size_t workspace = 0, written = 0;
  int32_t transposed = CUBLAS_OP_T, found = -1;
  memset(&result, 0, sizeof result);
  CALL(cublasLtCreate(&handle));
  CALL(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  CALL(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  CALL(cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &found, sizeof found, &written));
  SHOW("found %d", found);
  CALL(cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, K, M, K));
  CALL(cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, K, N, K));
  CALL(cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, M, N, M));
  CALL(cublasLtMatmulPreferenceCreate(&preference));
  CALL(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                            sizeof workspace));
  CALL(cublasLtMatmulAlgoGetHeuristic(handle, op, la, lb, lc, lc, preference, 1, &result, &count));
  SHOW("count %d", count);
  for (int i = 0; i < 2; i++)
    CALL(cublasLtMatmul(handle, op, &one, a, la, b, lb, &zero, c, lc, c, lc, count ? &result.algo : NULL, NULL, 0, NULL));
  show_result();
  CALL(cublasLtMatmul(handle, op, &one, a, lc, b, lb, &zero, c, lc, c, lc, NULL, NULL, 0, NULL)); /* shapes do not fit */
  CALL(cublasLtMatmulPreferenceDestroy(preference));
  CALL(cublasLtMatrixLayoutDestroy(la));
  CALL(cublasLtMatrixLayoutDestroy(lb));
  CALL(cublasLtMatrixLayoutDestroy(lc));
  CALL(cublasLtMatmulDescDestroy(op));
  CALL(cublasLtDestroy(handle));
}

int program_run(void) {
  cublasHandle_t handle = NULL;
  float host[256];
  for (int i = 0; i < 256; i++)
    host[i] = (float)(i % 7) - 3;
  CALL(cudaMalloc((void **)&a, sizeof host));
  CALL(cudaMalloc((void **)&b, sizeof host));
  CALL(cudaMalloc((void **)&c, BATCH * M * N * sizeof *c));
  CALL(cudaMalloc((void **)&da, 256 * sizeof *da));
  CALL(cudaMalloc((void **)&db, 256 * sizeof *db));
  CALL(cudaMalloc((void **)&dc, 256 * sizeof *dc));
  CALL(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice));
  CALL(cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice));
  CALL(cublasCreate(&handle));
  SHOW_POINTER(handle);
  state(handle);
  batched(handle);
  vectors(handle);
  CALL(cublasDestroy(handle));
  CALL(cublasDestroy(handle)); /* twice */
  lt();
  CALL(cudaDeviceSynchronize());
  CALL(cudaFree(a));
  CALL(cudaFree(b));
  CALL(cudaFree(c));
  CALL(cudaFree(da));
  CALL(cudaFree(db));
  CALL(cudaFree(dc));
  printf("%d calls failed\n", failures);
  return failures > 99 ? 99 : failures;
}
