/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long operations take on the GPU that the node plays: the modelled durations of the virtual clock. Every constant, with
 * its source, stands in models.def; nothing here is measured on this machine, so equal programs get equal times anywhere.
 * How far they are from published times: tests/vnode_model, whose test_published prints it.
 * Functions of their arguments and B200OPT_VNODE_GPU alone; any thread; no locks once the GPU is chosen. Durations in
 * nanoseconds, never negative, never shorter for more work. Sizes so large that a product of three exceeds 2^62 are not
 * meant.
 */
#ifndef VNODE_CORE_MODEL_H
#define VNODE_CORE_MODEL_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A GEMM as cuBLAS sees it, D[m×n] = A[m×k]·B[k×n], `batch` times; `format` is what the tensor cores multiply:
   "bf16", "f16", "tf32", "f32", "f64", "fp8" (E4M3 or E5M2, per-tensor scales), "mxfp8", "nvfp4", "i8".
   A format that the GPU lacks takes the time of bf16. Nothing to write: 0.
   `d_bytes`: bytes of one element of D. */
VNODE_API int64_t vnode_model_gemm_ns(int64_t m, int64_t n, int64_t k, int64_t batch, const char *format, int d_bytes);

/* Attention kernels, by the FLOPs that the mask leaves and the bytes of their operands. */
VNODE_API int64_t vnode_model_attention_ns(double flops, uint64_t bytes, bool backward);

/* Any other kernel: `bytes` read and written in HBM. A launch takes its time without any, too. */
VNODE_API int64_t vnode_model_kernel_ns(uint64_t bytes);

enum vnode_copy_kind {
  VNODE_COPY_HOST_TO_DEVICE,
  VNODE_COPY_DEVICE_TO_HOST,
  VNODE_COPY_WITHIN_DEVICE,
  VNODE_COPY_BETWEEN_DEVICES,
  VNODE_COPY_HOST,
};
/* `pinned`: the host's side is page-locked; pageable memory goes through a staging buffer. */
VNODE_API int64_t vnode_model_copy_ns(enum vnode_copy_kind kind, uint64_t bytes, bool pinned);

/* A collective from the latest rank's start to its end. `op` as in record.def ("AllReduce" …, "Send"; other names as point
   to point), `bytes` by nccl-tests' convention: 0 takes no time. All ranks on one node; one rank copies. */
VNODE_API int64_t vnode_model_collective_ns(const char *op, int nranks, uint64_t bytes);

/* Host time of one call of a CUDA, cuBLAS or NCCL function, or of one PyTorch operator that launches a kernel ("torch").
   Looks through a table: who calls often keeps the answer. Waiting is not in it. */
VNODE_API int64_t vnode_model_host_ns(const char *function);

#ifdef __cplusplus
}
#endif
#endif
