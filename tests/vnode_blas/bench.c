/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the cuBLAS stand-in, printed: GFLOP/s of BF16 1024³ and microseconds of a 64×64×64 call. With a path to
   libtorch_cpu.so as argument, with its BLAS. */
#include <cublas_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
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
  return cublasDestroy_v2(handle) == CUBLAS_STATUS_SUCCESS ? EXIT_SUCCESS : EXIT_FAILURE;
}
