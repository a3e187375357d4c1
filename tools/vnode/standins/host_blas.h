/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real matrix products on the CPU, column-major, C = alpha·op(A)·op(B) + beta·C, as BLAS defines SGEMM and DGEMM: beta = 0
 * never reads C, alpha = 0 or k = 0 never reads A and B. Also the scratch memory that the stand-ins need around them.
 *
 * The first call looks for the BLAS that the process's PyTorch brings (sgemm_ and dgemm_ exported by libtorch_cpu.so, if
 * that is loaded); without one, and for sizes beyond 32 bits, a blocked kernel of our own is used. How many threads the
 * BLAS uses is its and OpenMP's affair (OMP_NUM_THREADS); the own kernel uses the caller's only.
 * For the same shape, alignment and number of threads either gives the same bits each time.
 *
 * Thread-safety: any thread. Scratch memory is per thread, grows, and is freed when the thread ends. Without memory of the
 * host the process ends with one line on stderr: the result of an accepted GEMM cannot be refused any more.
 */
#ifndef VNODE_HOST_BLAS_H
#define VNODE_HOST_BLAS_H

#include <stddef.h>
#include <stdint.h>

/* pre: trans 'N' or 'T'; m, n, k >= 0; ld >= max(1, rows as stored). */
void vnode_host_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void vnode_host_dgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                      int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);

/* "libtorch_cpu.so" or "own": which of the two is in use. */
const char *vnode_host_blas_name(void);

enum vnode_scratch {
  VNODE_SCRATCH_A,       /* operand A, widened */
  VNODE_SCRATCH_B,       /* operand B, widened */
  VNODE_SCRATCH_RESULT,  /* the product before the epilogue */
  VNODE_SCRATCH_COLUMN,  /* one column of C */
  VNODE_SCRATCH_BIAS,    /* bias, or its gradient */
  VNODE_SCRATCH_FACTORS, /* scales of one operand */
  VNODE_SCRATCH_PANEL_A, /* the own kernel's packed panels */
  VNODE_SCRATCH_PANEL_B,
  VNODE_SCRATCH_COUNT,
};

/* 64-byte aligned, contents undefined; valid until this thread asks for the same slot again. NULL only for 0 bytes. */
void *vnode_scratch_get(enum vnode_scratch slot, size_t bytes);

#endif
