/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries a plan out: quantises the operands of a GEMM of the job on the call's own stream, and has cuBLASLt multiply them.
 *
 * All that the job can observe but the rounding stays: alpha, beta and where they are read, C and D and their types, bias
 * and activation, stream and order, the status. Whatever fails before D was written makes the caller do the original call
 * with its original arguments, and the shape is remembered. Nothing here waits for the GPU (but once, see selftest.h), takes
 * a lock, or allocates after the first time of a shape.
 *
 * Thread-safety: b200_gemm_convert() from any thread. Measured cost of a shape seen before: tests/bench/gemm.c.
 */
#ifndef B200_EXEC_GEMM_H
#define B200_EXEC_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/config.h"
#include "policy/plan.h"

/* One call as the job made it. Facts without WARM_UP, which is found here. */
struct b200_gemm_call {
  struct b200_facts facts;
  void *handle; /* cublasHandle_t or cublasLtHandle_t, which serve alike */
  void *stream; /* CUstream */
  const void *alpha, *beta, *a, *b, *c, *bias;
  void *d, *workspace; /* workspace: the caller's, NULL when it gave none */
  size_t workspace_bytes;
  int32_t sm_target;
  bool forbids_reduced; /* CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION */
  bool asked;           /* more than shape and types was needed, and asked of the vendor */
  bool known;           /* … who has said all of it; otherwise the call stays as it is */
};

/* What was decided and done; each field an enum value of policy/plan.h. */
struct b200_outcome {
  uint8_t format, wanted, reason;
  uint8_t would[3], would_reason[3]; /* observing: what auto, fp8 and mxfp8 would do */
};

struct b200_thread;

/* Before the first call: what the user set; `config` is const and outlives everything. */
void b200_gemm_start(const struct b200_config *config, int rank, int world);

/* True: carried out, the job's call has succeeded. False: make the original call. */
bool b200_gemm_convert(struct b200_thread *self, const struct b200_gemm_call *call, struct b200_outcome *outcome);

/* A step begins: what the guard has decided since the last one takes effect. */
void b200_gemm_step(void);

/* The outcome of a call through an entry point that is only counted. */
void b200_gemm_leave(struct b200_outcome *outcome);

/* False while GEMMs are only observed: then a call needs no more than its shape and types. */
bool b200_gemm_decides(void);

#endif
