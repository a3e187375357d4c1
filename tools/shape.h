/* SPDX-License-Identifier: Apache-2.0 */
/* GEMMs and GPUs as the policy sees them, made of what a log or the command line says. Nothing here allocates. */
#ifndef B200_TOOLS_SHAPE_H
#define B200_TOOLS_SHAPE_H

#include "interpose/record/reader.h"
#include "policy/plan.h"

/* A BF16 GEMM with everything as the policy likes it: FP32 accumulation, beta 0, contiguous, aligned, no bias. */
struct b200_facts shape_facts(enum b200_role role, int64_t m, int64_t n, int64_t k);

/* A logged GEMM. What no log has (alignment, beta, leading dimensions) is as the policy likes it. False when a name is not
   known. */
bool shape_from_log(const struct b200_log_gemm *gemm, struct b200_facts *out);

/* The GPU whose name contains one of shape_gpus, in upper or lower case, blanks as underscores. False when there is none. */
bool shape_device(const char *name, uint32_t cublaslt_version, struct b200_device *out);
extern const char shape_gpus[]; /* "b300, b200, …" */

#endif
