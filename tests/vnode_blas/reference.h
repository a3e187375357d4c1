/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of random numbers and their products in FP64, by the definition and by decoders of their own: what the stand-ins
 * are compared with. Nothing here shares code with them. Not thread-safe; aborts without memory.
 */
#ifndef VNODE_BLAS_REFERENCE_H
#define VNODE_BLAS_REFERENCE_H

#include <cublasLt.h>
#include <cublas_api.h>
#include <stdbool.h>
#include <stdint.h>

struct complex_value {
  double re, im;
};

size_t reference_bytes(cudaDataType type);
struct complex_value reference_load(const void *data, cudaDataType type, int64_t index);
/* Largest relative error of one rounding to the format. */
double reference_unit(cudaDataType type);

/* `batch` column-major matrices, `stride` elements apart; rows between rows and ld hold a guard pattern. */
struct reference_matrix {
  unsigned char *data;
  cudaDataType type;
  int64_t rows, cols, ld, stride, batch;
};

struct reference_matrix reference_random(cudaDataType type, int64_t rows, int64_t cols, int64_t pad, int64_t batch);
struct reference_matrix reference_copy(const struct reference_matrix *matrix);
void reference_free(struct reference_matrix *matrix);
/* Every element NaN (floating types only). */
void reference_fill_nan(struct reference_matrix *matrix);
/* The guard pattern is untouched. */
bool reference_guard_intact(const struct reference_matrix *matrix);
struct complex_value reference_at(const struct reference_matrix *matrix, int64_t row, int64_t col, int64_t batch);

/* alpha·op(A)·op(B) + beta·C at one place, and the sum of the magnitudes of its terms. a, b, c not read for zero factors. */
struct reference_element {
  struct complex_value value;
  double magnitude;
};
struct reference_element reference_gemm(char trans_a, char trans_b, int64_t k, struct complex_value alpha,
                                        const struct reference_matrix *a, const struct reference_matrix *b,
                                        struct complex_value beta, const struct reference_matrix *c, int64_t row,
                                        int64_t col, int64_t batch);

uint64_t reference_random_bits(void);

/* Waits until what the call submitted has run, as a program does before it looks at results. Returns `status`. */
cublasStatus_t finish(cublasStatus_t status);

/* The ledger, as the tests see it: calls since the last reset, and the last key. */
#include "tools/vnode/core/core.h"
extern int ledger_calls;
extern struct vnode_gemm_key ledger_last;

/* The last operation that the stand-ins gave to the node: its modelled duration, and the memory that it declares. Of
   `matrix` that must be exactly its elements (`touched`), or nothing. Not looked at in eager order, where nothing is
   declared. */
extern int64_t operation_duration_ns;
void expect_access(const struct reference_matrix *matrix, bool touched, bool write);
void expect_access_bytes(const void *at, size_t bytes, bool touched, bool write);

/* With B200_TEST_BLAS naming a library, loads it (libtorch_cpu.so), so that the stand-ins compute with its BLAS. */
void reference_load_blas(void);

#endif
