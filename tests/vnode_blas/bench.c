/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the cuBLAS stand-ins, printed: GFLOP/s of BF16 1024³, microseconds of a 64×64×64 call, and FP8 and MXFP8 in times
   of BF16 for 512³. With a path to libtorch_cpu.so as argument, with its BLAS. */
#include <cublasLt.h>
#include <cublas_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds of one call, best of `runs`. */
static double gemm_s(cublasHandle_t handle, int size, int runs) {
  size_t bytes = (size_t)size * (size_t)size * 2;
  void *a = calloc(1, bytes), *b = calloc(1, bytes), *c = calloc(1, bytes);
  float one = 1, zero = 0;
  double best = 1e9;
  for (int i = 0; i < runs && a && b && c; i++) {
    double start = now_s();
    if (cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one, a, CUDA_R_16BF, size, b, CUDA_R_16BF, size,
                     &zero, c, CUDA_R_16BF, size, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT_TENSOR_OP) != CUBLAS_STATUS_SUCCESS)
      exit(EXIT_FAILURE);
    double took = now_s() - start;
    best = took < best ? took : best;
  }
  free(a);
  free(b);
  free(c);
  return best;
}

/* Seconds of one cublasLtMatmul, TN, 512³, BF16 result; best of `runs`. */
static double lt_s(cudaDataType type, int32_t mode, int runs) {
  enum { SIZE = 512, SCALES = 512 * 16 };
  static char workspace[1 << 20] __attribute__((aligned(256)));
  void *a = calloc(SIZE * SIZE, 2), *b = calloc(SIZE * SIZE, 2), *c = calloc(SIZE * SIZE, 2),
       *scales = aligned_alloc(256, SCALES);
  cublasLtHandle_t handle;
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t operand, result;
  int32_t transposed = CUBLAS_OP_T;
  float one = 1, zero = 0;
  double best = 1e9;
  if (!a || !b || !c || !scales || cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS)
    exit(EXIT_FAILURE);
  memset(scales, 127, SCALES);
  cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  if (mode) {
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales, sizeof scales);
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales, sizeof scales);
  }
  cublasLtMatrixLayoutInit(&operand, type, SIZE, SIZE, SIZE);
  cublasLtMatrixLayoutInit(&result, CUDA_R_16BF, SIZE, SIZE, SIZE);
  for (int i = 0; i < runs; i++) {
    double start = now_s();
    if (cublasLtMatmul(handle, &desc, &one, a, &operand, b, &operand, &zero, c, &result, c, &result, NULL, workspace,
                       sizeof workspace, NULL) != CUBLAS_STATUS_SUCCESS)
      exit(EXIT_FAILURE);
    double took = now_s() - start;
    best = took < best ? took : best;
  }
  free(a), free(b), free(c), free(scales);
  cublasLtDestroy(handle);
  return best;
}

int main(int argc, char **argv) {
  if (argc > 1 && !dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) {
    fprintf(stderr, "bench_vnode_blas: %s\n", dlerror());
    return EXIT_FAILURE;
  }
  static char workspace[256] __attribute__((aligned(256)));
  cublasHandle_t handle;
  if (cublasCreate_v2(&handle) != CUBLAS_STATUS_SUCCESS ||
      cublasSetWorkspace_v2(handle, workspace, sizeof workspace) != CUBLAS_STATUS_SUCCESS) {
    fprintf(stderr, "bench_vnode_blas: cublasCreate failed\n");
    return EXIT_FAILURE;
  }
  printf("bf16 1024x1024x1024: %.1f GFLOP/s\n", 2.0 * 1024 * 1024 * 1024 / gemm_s(handle, 1024, 10) * 1e-9);
  printf("bf16 64x64x64: %.1f us a call\n", gemm_s(handle, 64, 20000) * 1e6);
  double bf16 = lt_s(CUDA_R_16BF, 0, 20);
  printf("lt 512x512x512: bf16 %.2f ms, fp8 %.2f times that, mxfp8 %.2f times that\n", bf16 * 1e3,
         lt_s(CUDA_R_8F_E4M3, 0, 20) / bf16, lt_s(CUDA_R_8F_E4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, 20) / bf16);
  return cublasDestroy_v2(handle) == CUBLAS_STATUS_SUCCESS ? EXIT_SUCCESS : EXIT_FAILURE;
}
