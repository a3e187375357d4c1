/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory seen as CPU tensors. On the virtual node device memory is host memory, so PyTorch's CPU kernels can compute
 * what its CUDA kernels would: a CPU tensor is made over the same bytes, the CPU kernel runs on it, and what it
 * allocated is copied to memory of PyTorch's CUDA caching allocator.
 *
 * Vocabulary
 *   host view   CPU tensor over a CUDA tensor's memory. Owns nothing: valid while the CUDA tensor lives.
 *   host scope  the thread-local state in which kernels of this layer call ATen: below autograd, version counters and
 *               autocast, on the operands' device.
 *
 * Thread-safety: everything here may be called from any thread; a host scope belongs to the thread that made it.
 */
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core.h"

namespace vnode_aten {

using at::Tensor;

/* CPU tensor over the memory of `t`, with its dtype, sizes, strides, offset and conjugate, negative and wrapped-number
   marks. A tensor that is undefined or not on a CUDA device is returned as it is. */
Tensor host_view(const Tensor &t);
std::optional<Tensor> host_view(const std::optional<Tensor> &t);

/* A CUDA tensor on `device` with the values, sizes and strides of the CPU tensor `t`. Undefined stays undefined.
   Allocates from the caching allocator; throws c10::OutOfMemoryError like any CUDA operator.
   pre: inside a host scope. */
Tensor to_device(const Tensor &t, c10::Device device);

class HostScope {
public:
  explicit HostScope(c10::Device device);

private:
  c10::impl::ExcludeDispatchKeyGuard below_;
  c10::cuda::OptionalCUDAGuard device_;
};

} // namespace vnode_aten
