/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuBLASLt side of one GEMM: descriptor, layouts and algorithm for a call's facts in one format, made once and used
 * again with other pointers. Narrow for a converted call; in the original types for the reference that an audit compares
 * with.
 *
 * Ownership: a product owns the library's objects until b200_product_end(). Thread-safety: as any plain object. Making one
 * asks cuBLASLt for an algorithm (tens of microseconds) and lets it allocate on the host; running one allocates nothing.
 *
 * Handle: cuBLASLt gets the handle of the call itself. Its documentation allows a cublasHandle_t in place of a
 * cublasLtHandle_t, and PyTorch does the same. So the handle is of the right device by construction, there is none of our
 * own that could fail to be made (or would have to be made while a stream is captured), and none to be destroyed at exit.
 */
#ifndef B200_EXEC_PRODUCT_H
#define B200_EXEC_PRODUCT_H

#include <stdbool.h>

#include "interpose/vendor.h"
#include "policy/plan.h"

/* What of a call is no matter of the decision, but of the product. */
struct b200_product_terms {
  int32_t sm_target;    /* 0: none */
  bool fast_accumulate; /* FP8 */
};

/* How the operands lie that the product reads. */
struct b200_product_operand {
  cudaDataType_t type;
  bool k_fast;
  int64_t ld, stride; /* elements; stride between the matrices of a batch */
  uint32_t alignment; /* bytes that its address is a multiple of */
};

struct b200_product {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c, d;
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes;               /* that the algorithm wants */
  const void *scale_a, *scale_b, *bias; /* as the descriptor has them now */
};

enum b200_product_result { B200_PRODUCT_READY, B200_PRODUCT_NO_ALGORITHM, B200_PRODUCT_ERROR };

/* m × n: the piece of the call's D that is computed at once. workspace_limit: the most that the algorithm may want.
   d_alignment: bytes that D's, and C's, address is a multiple of. */
enum b200_product_result b200_product_make(struct b200_product *out, const struct b200_vendor *vendor, void *handle,
                                           const struct b200_facts *facts, enum b200_format format, int64_t m, int64_t n,
                                           const struct b200_product_operand *a, const struct b200_product_operand *b,
                                           const struct b200_product_terms *terms, size_t workspace_limit,
                                           uint32_t d_alignment);
void b200_product_end(struct b200_product *product, const struct b200_vendor *vendor);

struct b200_product_pointers {
  const void *a, *b, *c, *alpha, *beta, *bias, *scale_a, *scale_b; /* scales: NULL in the original types */
  void *d, *workspace;
  size_t workspace_bytes;
};
cublasStatus_t b200_product_run(struct b200_product *product, const struct b200_vendor *vendor, void *handle,
                                const struct b200_product_pointers *pointers, CUstream stream);

/* CUDA's name of an element type that GEMMs here have. */
cudaDataType_t b200_cuda_type(uint8_t element);

#endif
