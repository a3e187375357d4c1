/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <ATen/native/Copy.h>
#include <ATen/native/TensorIterator.h>

#include "operation.h"

namespace vnode_aten {

namespace {

at::native::copy_fn torch_copy;

/* PyTorch's test for a copy that is a plain memcpy (Copy.cu, copy_device_to_device). */
bool is_memcpy(at::TensorIterator &iter) {
  const at::Tensor &dst = iter.tensor(0), &src = iter.tensor(1);
  return iter.dtype(0) == iter.dtype(1) && dst.is_conj() == src.is_conj() && dst.is_neg() == src.is_neg() &&
         iter.is_contiguous();
}

void copy(at::TensorIterator &iter, bool non_blocking) {
  const c10::Device dst_device = iter.device(0), src_device = iter.device(1);
  if (iter.numel() == 0)
    return;
  if (!dst_device.is_cuda() || !src_device.is_cuda() || is_memcpy(iter))
    return torch_copy(iter, non_blocking);

  const Tensor dst = iter.tensor(0), src = iter.tensor(1);
  if (dst_device != src_device) {
    /* CUDA would run its kernel over the peer mapping; here: convert on the source's device, move the bytes, lay out. */
    const Tensor converted = src.to(dst.scalar_type()).expand_as(dst).contiguous().resolve_conj().resolve_neg();
    const Tensor moved = at::empty_like(dst, at::MemoryFormat::Contiguous).copy_(converted, non_blocking);
    dst.copy_(moved, non_blocking);
    return;
  }
  HostScope scope(dst_device);
  const Tensor to = host_view(dst), from = host_view(src);
  Footprint footprint;
  footprint.reads(from);
  footprint.writes(to);
  on_stream(dst_device, "copy_", footprint, [to, from] { to.copy_(from); });
}

} // namespace

void install_copy() {
  using Stub = std::remove_reference_t<decltype(at::native::copy_stub)>;
  /* DispatchStub hides the pointer of the CUDA kernel but is nothing else than DispatchStubImpl, whose members are public.
   */
  static_assert(sizeof(Stub) == sizeof(at::native::DispatchStubImpl));
  auto &impl = reinterpret_cast<at::native::DispatchStubImpl &>(at::native::copy_stub);
  torch_copy = reinterpret_cast<at::native::copy_fn>(impl.cuda_dispatch_ptr);
  TORCH_INTERNAL_ASSERT(torch_copy != nullptr, "PyTorch's CUDA copy kernel is not registered");
  at::native::copy_stub.set_cuda_dispatch_ptr(&copy);
}

} // namespace vnode_aten
