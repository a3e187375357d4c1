/* SPDX-License-Identifier: Apache-2.0 */
#include "alias.h"

#include <ATen/cuda/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

namespace vnode_aten {

namespace {

c10::DispatchKeySet keys_above_kernels() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

} // namespace

HostScope::HostScope(c10::Device device) : below_(keys_above_kernels()), device_(device) {}

Tensor host_view(const Tensor &t) {
  if (!t.defined() || !t.is_cuda())
    return t;
  const c10::TensorImpl *impl = t.unsafeGetTensorImpl();
  TORCH_CHECK(impl->has_storage(), "virtual node: a CUDA tensor without storage has no host view");
  const c10::Storage &device = impl->storage();
  c10::Storage host(c10::Storage::use_byte_size_t(), device.nbytes(),
                    c10::DataPtr(device.mutable_data(), c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU),
                    /*resizable=*/true);
  Tensor view =
      at::detail::make_tensor<c10::TensorImpl>(std::move(host), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  c10::TensorImpl *view_impl = view.unsafeGetTensorImpl();
  view_impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (impl->is_wrapped_number())
    view_impl->set_wrapped_number(true);
  if (t.is_conj())
    view._set_conj(true);
  if (t.is_neg())
    view._set_neg(true);
  return view;
}

std::optional<Tensor> host_view(const std::optional<Tensor> &t) {
  if (!t || !t->defined())
    return std::nullopt;
  return host_view(*t);
}

Tensor to_device(const Tensor &t, c10::Device device) {
  if (!t.defined())
    return t;
  Tensor out = at::detail::empty_strided_cuda(t.sizes(), t.strides(), t.scalar_type(), device);
  if (t.numel() != 0) {
    if (t.is_non_overlapping_and_dense() && !t.is_conj() && !t.is_neg())
      std::memcpy(out.mutable_data_ptr(), t.const_data_ptr(), t.nbytes());
    else
      host_view(out).copy_(t);
  }
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

} // namespace vnode_aten
