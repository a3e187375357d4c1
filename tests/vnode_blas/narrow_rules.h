/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of the FP8 and FP4 products that cublasLtMatmul takes, as a table of rules: observed for compute capability
 * 8.0, 8.9 and 9.0 with 12.4, documented from there on. A combination is taken exactly when it breaks no rule. Shares
 * nothing with the stand-in. Pure functions; the version is that of the cuBLAS headers this is compiled with.
 */
#ifndef VNODE_BLAS_NARROW_RULES_H
#define VNODE_BLAS_NARROW_RULES_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

/* Values of cublasLtMatmulMatrixScale_t. */
enum mode { SCALAR, VEC16, VEC32, OUTER, VEC128, BLK128, PER_BATCH, MODES };

struct combination {
  int capability; /* of the GPU: 80, 89, … */
  cudaDataType a, b, c, d;
  enum mode mode_a, mode_b;
  char trans_a, trans_b;
  int64_t m, n, k, pad_a, pad_b, pad_d; /* pads: of leading dimensions beyond what is needed */
  int batch;
  uint32_t epilogue;
  int bias_type; /* -1: not set */
};

struct narrow_rule {
  const char *name;
  bool (*holds)(const struct combination *x);
};
enum { NARROW_RULES = 22 };
extern const struct narrow_rule narrow_rules[NARROW_RULES];

#endif
