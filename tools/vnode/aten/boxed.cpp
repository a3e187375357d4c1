/* SPDX-License-Identifier: Apache-2.0 */
#include "boxed.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "random.h"

namespace vnode_aten {

using c10::IValue;
using torch::jit::Stack;

/* What one call carries. `stack` keeps the CUDA arguments alive until the results are given. */
struct HostKernel::Call {
  struct Operand {
    Tensor device, host;
    bool written;
  };
  c10::SmallVector<Operand, 8> operands; /* not the elements of lists that are only read: nothing is asked of them later */
  std::optional<c10::Device> device;
  bool explicit_device = false; /* an argument names the device: that is where results go */
  bool host_operand = false;    /* a CPU tensor of one or more dimensions is among the arguments */
  Stack host_stack;
};

namespace {

/* Operators whose CUDA kernels take some arguments from the host, by the start of their name. */
constexpr std::string_view kMixedDevices[] = {
    "aten::_foreach", "aten::index", "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_unsafe_masked_index",
    "aten::_ctc_loss", "aten::_pack_padded_sequence", "aten::segment_reduce", "aten::_segment_reduce",
    "aten::convolution", "aten::split_with_sizes_copy", "aten::_chunk_cat",
};

bool takes_host_tensors(const std::string &name) {
  for (std::string_view prefix : kMixedDevices)
    if (name.compare(0, prefix.size(), prefix) == 0)
      return true;
  return false;
}

bool is_written(const c10::Argument &argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/* The CPU kernel changed the shape or memory of a host view: the CUDA tensor follows. */
void follow_resize(const Tensor &device, const Tensor &host) {
  c10::TensorImpl *impl = device.unsafeGetTensorImpl();
  if (host.storage().data() == device.storage().data() && host.storage().nbytes() <= device.storage().nbytes()) {
    if (host.sizes() != device.sizes() || host.strides() != device.strides())
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    return;
  }
  device.resize_(host.sizes());
  if (host.is_non_overlapping_and_dense())
    impl->set_sizes_and_strides(host.sizes(), host.strides());
  host_view(device).copy_(host);
}

} // namespace

HostKernel::HostKernel(const c10::FunctionSchema &schema) : name_(schema.name()), mixes_devices_(takes_host_tensors(name_)) {
  const auto &arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); i++) {
    written_.push_back(is_written(arguments[i]));
    if (arguments[i].type()->str() == "Generator?")
      generator_ = static_cast<int>(i);
  }
  for (const c10::Argument &result : schema.returns()) {
    int source = -1;
    for (size_t i = 0; is_written(result) && i < arguments.size(); i++)
      if (written_[i] && arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets())
        source = static_cast<int>(i);
    returned_.push_back(source);
  }
}

/* Notes the device of the call; raises for a second CUDA device. */
void HostKernel::take_device(Call &call, const Tensor &t) const {
  if (!t.is_cuda()) {
    call.host_operand |= t.is_cpu() && t.dim() > 0;
    return;
  }
  if (!call.device)
    call.device = t.device();
  else
    TORCH_CHECK(mixes_devices_ || call.explicit_device || t.device() == *call.device || t.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, ", *call.device, " and ",
                t.device(), "! (when checking an argument of ", name_, ")");
}

Tensor HostKernel::take_tensor(Call &call, const Tensor &t, bool written) const {
  if (!t.defined())
    return t;
  take_device(call, t);
  if (!t.is_cuda())
    return t;
  for (auto &known : call.operands) {
    if (known.device.is_same(t)) {
      known.written |= written;
      return known.host;
    }
  }
  Tensor host = host_view(t);
  /* Overlap checks of CPU kernels compare storages: two views of one storage must share their host storage as well. */
  for (auto &known : call.operands)
    if (known.device.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
      host.unsafeGetTensorImpl()->set_storage_keep_dtype(known.host.storage());
  call.operands.push_back({t, host, written});
  return host;
}

IValue HostKernel::take_argument(Call &call, const IValue &value, size_t index) const {
  const bool written = written_[index];
  if (value.isTensor())
    return take_tensor(call, value.toTensor(), written);
  if (value.isTensorList()) {
    c10::List<Tensor> host;
    const auto list = value.toTensorVector();
    host.reserve(list.size());
    for (const Tensor &t : list) {
      if (t.defined())
        take_device(call, t);
      Tensor view = host_view(t);
      if (written)
        call.operands.push_back({t, view, written});
      host.push_back(std::move(view));
    }
    return host;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> host;
    for (const std::optional<Tensor> t : value.toOptionalTensorList())
      host.push_back(t && t->defined() ? std::optional<Tensor>(take_tensor(call, *t, written)) : std::nullopt);
    return host;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) {
    c10::Device device = value.toDevice();
    call.device = device.has_index() ? device : c10::Device(c10::kCUDA, c10::cuda::current_device());
    call.explicit_device = true;
    return c10::Device(c10::kCPU);
  }
  return value;
}

void HostKernel::take_arguments(Call &call, Stack *stack) const {
  const size_t count = written_.size();
  call.host_stack.reserve(count);
  for (size_t i = 0; i < count; i++)
    call.host_stack.push_back(take_argument(call, (*stack)[stack->size() - count + i], i));
  if (!call.device)
    call.device = c10::Device(c10::kCUDA, c10::cuda::current_device());
  TORCH_CHECK(mixes_devices_ || call.explicit_device || !call.host_operand,
              "Expected all tensors to be on the same device, but found at least two devices, ", *call.device,
              " and cpu! (when checking an argument of ", name_, ")");
}

void HostKernel::give_results(Call &call, Stack *stack) const {
  for (auto &operand : call.operands)
    if (operand.written)
      follow_resize(operand.device, operand.host);

  auto give = [&](const Tensor &host) -> Tensor {
    if (!host.defined() || !host.is_cpu())
      return host;
    TORCH_CHECK(host.has_storage(), "virtual node: ", name_, " gives a sparse tensor, which its CPU kernel cannot put on the device");
    for (auto &operand : call.operands) {
      if (operand.host.is_same(host))
        return operand.device;
      if (host.numel() != 0 && operand.device.is_cuda() &&
          operand.host.storage().unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl())
        return operand.device.as_strided(host.sizes(), host.strides(), host.storage_offset());
    }
    return to_device(host, *call.device);
  };

  const size_t arguments = written_.size(), results = returned_.size();
  Stack given;
  given.reserve(results);
  for (size_t i = 0; i < results; i++) {
    const IValue &host = call.host_stack[call.host_stack.size() - results + i];
    if (returned_[i] >= 0) {
      given.push_back((*stack)[stack->size() - arguments + static_cast<size_t>(returned_[i])]);
    } else if (host.isTensor()) {
      given.emplace_back(give(host.toTensor()));
    } else if (host.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &t : host.toTensorVector())
        list.push_back(give(t));
      given.emplace_back(std::move(list));
    } else {
      given.push_back(host);
    }
  }
  torch::jit::drop(*stack, arguments);
  for (IValue &value : given)
    stack->push_back(std::move(value));
}

void HostKernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  Call call;
  take_arguments(call, stack);
  HostScope scope(*call.device);
  if (generator_ >= 0) {
    IValue &generator = call.host_stack[static_cast<size_t>(generator_)];
    generator = host_generator(generator.toOptional<at::Generator>(), *call.device);
  }
  on_stream(*call.device, name_.c_str(), [&] { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call.host_stack); });
  give_results(call, stack);
}

} // namespace vnode_aten
