/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the kernels of quant.cu on a CPU, for tests and for the virtual node: library b200_kernels_cpu, plain C to call,
 * needs no C++ runtime. Blocks run one after the other on the calling thread; several threads may run kernels at once, also
 * into the same counters and sums. Allocates nothing, blocks never. Never part of libb200opt.so.
 */
#ifndef B200_EXEC_CPU_H
#define B200_EXEC_CPU_H

#include "interpose/exec/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What blocks moved between "device" memory and themselves, as the kernels' own load and store operations did it. Atomic
   operations on counters and sums are not counted. */
struct b200_cpu_traffic {
  uint64_t loaded, stored;           /* bytes */
  uint64_t wide_loads, narrow_loads; /* 16 bytes each / one element each */
};

/* Runs `kernel` with `args` (b200_kernels[kernel].args_bytes of them) on `blocks` blocks. `traffic` (may be NULL) is added
   to. Rounding is to nearest with subnormals kept, whatever the thread's floating-point environment, which is left as it
   was. pre: as for a launch, and every address is one of this process. */
void b200_cpu_run(enum b200_kernel kernel, const void *args, uint32_t blocks, struct b200_cpu_traffic *traffic);

#ifdef __cplusplus
}
#endif
#endif
