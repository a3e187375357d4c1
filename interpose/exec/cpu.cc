// SPDX-License-Identifier: Apache-2.0
#include "interpose/exec/cpu.h"

#include <fenv.h>

#include "interpose/exec/quant.cu"

typedef void entry(block &here, const void *args);

static entry *const entries[B200_KERNEL_COUNT] = {
#define B200_KERNEL(operation, type, form, id, name, args) name,
#include "interpose/exec/kernels.def"
#undef B200_KERNEL
};

void b200_cpu_run(enum b200_kernel kernel, const void *args, uint32_t blocks, struct b200_cpu_traffic *traffic) {
  struct b200_cpu_traffic unused = {};
  struct block here = {0, blocks, traffic ? traffic : &unused};
  fenv_t callers;
  fegetenv(&callers);
  fesetenv(FE_DFL_ENV);
  for (; here.index < blocks; here.index++)
    entries[kernel](here, args);
  fesetenv(&callers);
}
