/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU behind a CUDA context, as far as conversion needs it: what it is, the policy compiled for it, our kernels loaded
 * into it, and which formats its self-test has passed.
 *
 * Made at the first GEMM of a context, by one thread, and const from then on; never freed. A context that was destroyed and
 * whose address came again has handles of ours that the driver refuses: its GEMMs stay as they are.
 *
 * Thread-safety: from any thread; a thread that comes while another makes the state gets NULL. Loading the kernels may block
 * in the driver as any first use of a kernel does.
 */
#ifndef B200_EXEC_DEVICE_H
#define B200_EXEC_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "interpose/exec/quant.h"
#include "interpose/vendor.h"
#include "policy/config.h"
#include "policy/plan.h"

struct b200_gpu {
  _Atomic int state; /* of device.c */
  CUcontext context;
  CUdevice ordinal;
  struct b200_device facts;
  struct b200_policy policy;
  CUfunction kernels[B200_KERNEL_COUNT];
  bool has_kernels;
  _Atomic int tested; /* the self-test: not begun, under way, over */
  unsigned passed;    /* then: bit (1 << enum b200_format) of each format that has passed */
};

/* The state of a context, which is the current one. NULL: another thread is making it, or it may not be made now
   (`may_make`: no stream is being captured). `wants_kernels`: load them, too. */
struct b200_gpu *b200_gpu_of(CUcontext context, const struct b200_vendor *vendor, const struct b200_config *config,
                             bool may_make, bool wants_kernels);

/* Any state that has been made, for reports; NULL without one. */
const struct b200_gpu *b200_gpu_any(void);

/* Launches on the stream. pre: gpu->has_kernels; args is the kernel's argument struct, copied by the driver. */
CUresult b200_gpu_launch(const struct b200_vendor *vendor, const struct b200_gpu *gpu, enum b200_kernel kernel,
                         const void *args, CUstream stream);

#endif
