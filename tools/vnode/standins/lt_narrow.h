/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which products of FP8 and FP4 operands cuBLASLt takes, for the compute capability of the configured GPU and the version of
 * the stand-in. Each rule in lt_narrow.c is tagged with where it is from:
 *
 *   SEEN   cublasLtMatmulAlgoGetHeuristic of 12.4 and 12.5 answers so for capability 8.0, 8.9 and 9.0
 *   DOC    the cuBLAS documentation says so, or its rule for 8.9 and 9.0 is taken to hold on; no run has confirmed it
 *   OURS   cuBLASLt may take it, this stand-in does not carry it out; said once on stderr
 *
 * Thread-safety: pure functions of their arguments and the configured GPU.
 */
#ifndef VNODE_LT_NARROW_H
#define VNODE_LT_NARROW_H

#include <stdbool.h>

#include "tools/vnode/standins/lt_rules.h"

/* There is any way to multiply operands of this narrow kind. */
bool lt_narrow_available(enum vnode_gemm_kind kind);

/* pre: a problem of narrow kind whose sizes agree. Everything but the epilogue. */
bool lt_narrow_supported(const struct lt_problem *problem);

/* Bytes that the addresses of operands have to be a multiple of. */
uint32_t lt_narrow_alignment(void);
uint64_t lt_narrow_workspace(void);

/* Type of bias unless the descriptor says so, and the only one that is taken. SEEN (DOC for FP4). */
cudaDataType lt_narrow_bias_type(const struct lt_problem *problem);

#endif
