/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before a GPU's first conversion: a small GEMM per format and layout on random data, through the code that the job's GEMMs
 * go through, against the same GEMM in the original precision. A kernel, a library or a GPU that lays scales out otherwise
 * than we think, takes the other axis for the blocks, or has the operands the wrong way round, is far beyond the bounds.
 *
 * It runs on a stream of its own that waits for nothing and that nothing waits for, and the host waits for the result: once
 * per process and GPU, for a millisecond of work and ten seconds at most. This is the one place where it does. Conversions
 * that only began once the answer had come in by itself would begin at a GEMM that depends on the machine's mood: ranks
 * would disagree, and a resumed run, a recomputed forward or a repeated run would not be bit-identical. The job's own
 * streams are neither waited for nor delayed; the GPU's queue is longer by a millisecond.
 */
#ifndef B200_EXEC_SELFTEST_H
#define B200_EXEC_SELFTEST_H

#include "interpose/exec/device.h"

/* Bit (1 << enum b200_format) of each format that has passed; says on stderr which have not and why. handle: of the call
   that asks. pre: gpu->has_kernels; no stream is being captured. */
unsigned b200_selftest(const struct b200_vendor *vendor, struct b200_gpu *gpu, void *handle, uint8_t mx_rounding);

#endif
