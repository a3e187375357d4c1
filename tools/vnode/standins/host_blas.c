/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/host_blas.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/vnode/standins/simd.h"

/* ------------------------------------------------------------------------------------------------------- scratch */

struct scratch {
  void *data[VNODE_SCRATCH_COUNT];
  size_t bytes[VNODE_SCRATCH_COUNT];
};

static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key;

static void scratch_free(void *pointer) {
  struct scratch *scratch = pointer;
  for (int i = 0; i < VNODE_SCRATCH_COUNT; i++)
    free(scratch->data[i]);
  free(scratch);
}

static _Noreturn void out_of_memory(size_t bytes) {
  fprintf(stderr, "b200vnode: no host memory for %zu bytes of GEMM scratch\n", bytes);
  abort();
}

static void scratch_key_make(void) {
  if (pthread_key_create(&scratch_key, scratch_free) != 0)
    out_of_memory(sizeof(struct scratch));
}

void *vnode_scratch_get(enum vnode_scratch slot, size_t bytes) {
  (void)pthread_once(&scratch_once, scratch_key_make);
  struct scratch *scratch = pthread_getspecific(scratch_key);
  if (!scratch) {
    scratch = calloc(1, sizeof *scratch);
    if (!scratch || pthread_setspecific(scratch_key, scratch) != 0)
      out_of_memory(sizeof *scratch);
  }
  if (bytes > scratch->bytes[slot]) {
    size_t rounded = (bytes + 4095) & ~(size_t)4095;
    free(scratch->data[slot]);
    scratch->data[slot] = aligned_alloc(64, rounded);
    if (!scratch->data[slot])
      out_of_memory(rounded);
    scratch->bytes[slot] = rounded;
  }
  return scratch->data[slot];
}

/* ----------------------------------------------------------------------------------------------------- own kernel */

#define TILE_N 4
#define BLOCK_M ((int64_t)64)
#define BLOCK_N ((int64_t)512)
#define BLOCK_K ((int64_t)256)

typedef float vector_float __attribute__((vector_size(32)));
typedef double vector_double __attribute__((vector_size(32)));

#define TYPE float
#define VECTOR vector_float
#define NAME(x) float_##x
#include "tools/vnode/standins/host_gemm.inc"
#undef TYPE
#undef VECTOR
#undef NAME

#define TYPE double
#define VECTOR vector_double
#define NAME(x) double_##x
#include "tools/vnode/standins/host_gemm.inc"
#undef TYPE
#undef VECTOR
#undef NAME

/* ------------------------------------------------------------------------------------------------ PyTorch's BLAS */

typedef void sgemm_function(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                            const int *, const float *, const int *, const float *, float *, const int *);
typedef void dgemm_function(const char *, const char *, const int *, const int *, const int *, const double *,
                            const double *, const int *, const double *, const int *, const double *, double *, const int *);

static struct {
  pthread_once_t once;
  sgemm_function *sgemm;
  dgemm_function *dgemm;
} torch_blas = {.once = PTHREAD_ONCE_INIT};

static void torch_blas_find(void) {
  void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (!library)
    return;
  void *sgemm = dlsym(library, "sgemm_"), *dgemm = dlsym(library, "dgemm_");
  if (sgemm && dgemm) {
    memcpy(&torch_blas.sgemm, &sgemm, sizeof sgemm);
    memcpy(&torch_blas.dgemm, &dgemm, sizeof dgemm);
  }
}

const char *vnode_host_blas_name(void) {
  (void)pthread_once(&torch_blas.once, torch_blas_find);
  return torch_blas.sgemm ? "libtorch_cpu.so" : "own";
}

static bool fits_32_bits(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
  return m <= INT_MAX && n <= INT_MAX && k <= INT_MAX && lda <= INT_MAX && ldb <= INT_MAX && ldc <= INT_MAX;
}

void vnode_host_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  (void)pthread_once(&torch_blas.once, torch_blas_find);
  if (!torch_blas.sgemm || k == 0 || !fits_32_bits(m, n, k, lda, ldb, ldc)) {
    float_own_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  int size[] = {(int)m, (int)n, (int)k}, ld[] = {(int)lda, (int)ldb, (int)ldc};
  torch_blas.sgemm(&trans_a, &trans_b, &size[0], &size[1], &size[2], &alpha, a, &ld[0], b, &ld[1], &beta, c, &ld[2]);
}

void vnode_host_dgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                      int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc) {
  (void)pthread_once(&torch_blas.once, torch_blas_find);
  if (!torch_blas.dgemm || k == 0 || !fits_32_bits(m, n, k, lda, ldb, ldc)) {
    double_own_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  int size[] = {(int)m, (int)n, (int)k}, ld[] = {(int)lda, (int)ldb, (int)ldc};
  torch_blas.dgemm(&trans_a, &trans_b, &size[0], &size[1], &size[2], &alpha, a, &ld[0], b, &ld[1], &beta, c, &ld[2]);
}
