/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which matrix products cuBLASLt takes: one answer for the heuristic, the check and the call.
 *
 * Rules of FP8 and FP4 operands, and their sources: lt_narrow.h. Row order, pointer-array and grouped batches and FP4
 * results are not carried out here and are refused: CUBLAS_STATUS_NOT_SUPPORTED.
 *
 * Thread-safety: pure functions of their arguments and the configured GPU.
 */
#ifndef VNODE_LT_RULES_H
#define VNODE_LT_RULES_H

#include <stdbool.h>

#include "tools/vnode/standins/gemm.h"
#include "tools/vnode/standins/lt_objects.h"

/* One product, by value: the objects it was made of may change afterwards. */
struct lt_problem {
  struct lt_matmul op;
  struct lt_layout a, b, c, d;
  int64_t m, n, k; /* set by lt_problem_make */
  enum vnode_gemm_kind kind;
  struct vnode_epilogue epilogue; /* what op says, bias type resolved */
  const char *epilogue_name;      /* as in record.def */
};

/* INVALID_VALUE: something is NULL or sizes contradict each other; NOT_SUPPORTED: cuBLASLt, or this stand-in, does not do
 * it. */
cublasStatus_t lt_problem_make(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, struct lt_problem *out);

/* Bytes that every operand's address must be a multiple of. */
uint32_t lt_problem_alignment(const struct lt_problem *problem);

uint64_t lt_problem_workspace(const struct lt_problem *problem);

/* Scale, amax and auxiliary pointers are such that the call can be made; otherwise INVALID_VALUE. */
bool lt_problem_pointers_valid(const struct lt_problem *problem);

#endif
