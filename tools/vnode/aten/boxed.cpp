/* SPDX-License-Identifier: Apache-2.0 */
#include "boxed.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/EmptyTensor.h>

#include <cstdlib>

namespace vnode_aten {

using c10::IValue;
using torch::jit::Stack;

/* What one call carries. */
struct HostKernel::Call {
  bool listed =
      false; /* elements of lists that are only read are among the operands too: late, everything is asked of them */
  Operands operands;
  std::unordered_map<const c10::StorageImpl *, size_t> first; /* of the operands, by memory; filled if `listed` */
  std::optional<c10::Device> device;
  bool explicit_device = false; /* an argument names the device: that is where results go */
  bool host_operand = false;    /* a CPU tensor of one or more dimensions is among the arguments */
  bool host_values = false;     /* a CPU tensor is */
  bool host_written = false;    /* a CPU tensor is written */
  bool mask = false;            /* an index is a mask */
  bool trains = true;           /* running statistics are updated */
  uint64_t read_bytes = 0;
  Stack arguments; /* as the CPU kernel takes them */
};

/* The random words that a call has taken. */
struct HostKernel::Random {
  bool drawn = false;
  at::PhiloxCudaState taken;

  PhiloxState read() const {
    return drawn ? read_philox(taken) : PhiloxState{0, 0};
  }
};

namespace {

/* Operators whose CUDA kernels take some arguments from the host, by the start of their name. */
constexpr std::string_view kMixedDevices[] = {
    "aten::_foreach",
    "aten::index",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_masked_index",
    "aten::_ctc_loss",
    "aten::_pack_padded_sequence",
    "aten::segment_reduce",
    "aten::_segment_reduce",
    "aten::convolution",
    "aten::split_with_sizes_copy",
    "aten::_chunk_cat",
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

/* Batch norm writes them although its schema does not say so. */
bool is_statistics(const c10::FunctionSchema &schema, const c10::Argument &argument) {
  return (argument.name() == "running_mean" || argument.name() == "running_var") &&
         schema.name().find("backward") == std::string::npos;
}

bool is_mask(const Tensor &index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

/* The shape of a result, or a result that is no tensor, hangs on values that only the device has. */
bool gives_by_value(const c10::OperatorHandle &op, bool own_function) {
  if (own_function)
    return false;
  const c10::FunctionSchema &schema = op.schema();
  for (const c10::Argument &result : schema.returns()) {
    const std::string type = result.type()->str();
    if (type != "Tensor" && type != "Tensor[]" && type != "Tensor?")
      return true;
  }
  if (schema.name() == "aten::index") /* only by masks */
    return false;
  return op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
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

bool shares_memory(const Tensor &host, const Operands &operands) {
  for (const Operand &operand : operands)
    if (operand.host.storage().unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl())
      return true;
  return false;
}

/* Results and written arguments, after the kernel. */
uint64_t written_bytes(const Operands &operands, Arguments results, const std::vector<int> &returned) {
  uint64_t bytes = 0;
  for (const Operand &operand : operands)
    if (operand.written)
      bytes += memory_bytes(operand.host);
  auto add = [&](const Tensor &t) {
    if (t.defined() && t.has_storage() && !shares_memory(t, operands))
      bytes += memory_bytes(t);
  };
  for (size_t i = 0; i < results.size(); i++) {
    if (returned[i] >= 0)
      continue;
    if (results[i].isTensor())
      add(results[i].toTensor());
    else if (results[i].isTensorList())
      for (const Tensor &t : results[i].toTensorVector())
        add(t);
  }
  return bytes;
}

void replace(Stack &stack, size_t arguments, std::vector<IValue> &&results) {
  torch::jit::drop(stack, arguments);
  for (IValue &value : results)
    stack.push_back(std::move(value));
}

} // namespace

HostKernel::HostKernel(const c10::OperatorHandle &op, HostFunction function, HostTraits traits)
    : name_(op.schema().name()), mixes_devices_(takes_host_tensors(name_)),
      by_value_(gives_by_value(op, function.kernel.isValid())), in_place_(name_.back() == '_'),
      function_(std::move(function)), traits_(traits) {
  const auto &arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); i++) {
    written_.push_back(is_written(arguments[i]));
    statistics_.push_back(is_statistics(op.schema(), arguments[i]));
    if (arguments[i].type()->str() == "Generator?")
      generator_ = static_cast<int>(i);
    if (arguments[i].name() == "training" || arguments[i].name() == "train")
      training_ = static_cast<int>(i);
  }
  for (const c10::Argument &result : op.schema().returns()) {
    int source = -1;
    for (size_t i = 0; is_written(result) && i < arguments.size(); i++)
      if (written_[i] && arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets())
        source = static_cast<int>(i);
    returned_.push_back(source);
  }
}

/* ------------------------------------------------------------------------------------------------------------- arguments */

/* Notes where an argument is; raises for a second CUDA device. */
void HostKernel::take_device(Call &call, const Tensor &t, bool written) const {
  if (!t.is_cuda()) {
    call.host_operand |= t.is_cpu() && t.dim() > 0;
    call.host_values |= t.is_cpu();
    call.host_written |= written;
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
  take_device(call, t, written);
  if (!t.is_cuda())
    return t;
  const auto *memory = t.storage().unsafeGetStorageImpl();
  size_t i = 0;
  if (call.listed) {
    const auto found = call.first.find(memory);
    i = found == call.first.end() ? call.operands.size() : found->second;
  }
  Tensor host;
  for (; i < call.operands.size(); i++) {
    Operand &known = call.operands[i];
    if (known.device.is_same(t)) {
      known.written |= written;
      return known.host;
    }
    /* Overlap checks of CPU kernels compare storages: two views of one storage must share their host storage as well. */
    if (!host.defined() && known.device.storage().unsafeGetStorageImpl() == memory) {
      host = host_view(t);
      host.unsafeGetTensorImpl()->set_storage_keep_dtype(known.host.storage());
    }
  }
  if (!host.defined())
    host = host_view(t);
  if (call.listed)
    call.first.emplace(memory, call.operands.size());
  if (!written)
    call.read_bytes += memory_bytes(host);
  call.operands.push_back({t, host, written});
  return host;
}

IValue HostKernel::take_argument(Call &call, const IValue &value, size_t index) const {
  const bool written = written_[index] || (statistics_[index] && call.trains);
  if (value.isTensor())
    return take_tensor(call, value.toTensor(), written);
  if (value.isTensorList() && !call.listed) {
    c10::List<Tensor> host;
    const auto list = value.toTensorVector();
    host.reserve(list.size());
    for (const Tensor &t : list) {
      if (t.defined())
        take_device(call, t, written);
      Tensor view = host_view(t);
      if (written)
        call.operands.push_back({t, view, written});
      else if (view.defined())
        call.read_bytes += memory_bytes(view);
      host.push_back(std::move(view));
    }
    return host;
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    return map_tensors(value, [&](const Tensor &t) {
      call.mask |= value.isOptionalTensorList() && is_mask(t);
      return take_tensor(call, t, written);
    });
  }
  if (value.isDevice() && value.toDevice().is_cuda()) {
    c10::Device device = value.toDevice();
    call.device = device.has_index() ? device : c10::Device(c10::kCUDA, c10::cuda::current_device());
    call.explicit_device = true;
    return c10::Device(c10::kCPU);
  }
  return value;
}

void HostKernel::take_arguments(Call &call, Arguments arguments) const {
  if (training_ >= 0)
    call.trains = arguments[static_cast<size_t>(training_)].toOptional<bool>().value_or(true);
  call.arguments.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); i++)
    call.arguments.push_back(take_argument(call, arguments[i], i));
  if (!call.device)
    call.device = c10::Device(c10::kCUDA, c10::cuda::current_device());
  TORCH_CHECK(mixes_devices_ || call.explicit_device || !call.host_operand,
              "Expected all tensors to be on the same device, but found at least two devices, ", *call.device,
              " and cpu! (when checking an argument of ", name_, ")");
}

HostKernel::Random HostKernel::take_random(const Call &call, Arguments arguments) const {
  const uint64_t words = traits_.random_words ? traits_.random_words(arguments) : generator_ >= 0 ? kBoxedIncrement : 0;
  if (words == 0)
    return {};
  const auto generator =
      generator_ >= 0 ? arguments[static_cast<size_t>(generator_)].toOptional<at::Generator>() : std::nullopt;
  return {true, take_philox(generator, *call.device, words)};
}

int64_t HostKernel::duration_ns(Arguments arguments, uint64_t bytes) const {
  return traits_.duration_ns ? traits_.duration_ns(arguments, bytes) : kernel_ns(bytes);
}

/* -------------------------------------------------------------------------------------------------------------- at once */

/* Runs the kernel on arguments that are CPU tensors; they become its results. */
void HostKernel::execute(const c10::OperatorHandle &op, Stack &host, const PhiloxState &state) const {
  if (generator_ >= 0) {
    IValue &generator = host[static_cast<size_t>(generator_)];
    generator = traits_.random_words ? IValue() : IValue(host_generator(state));
  }
  if (!function_.kernel.isValid())
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
  PhiloxScope scope(state);
  host.resize(std::max(host.size(), function_.parameters)); /* None */
  function_.kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
}

void HostKernel::give_results(Call &call, Stack *stack) const {
  for (auto &operand : call.operands)
    if (operand.written)
      follow_resize(operand.device, operand.host);

  auto give = [&](const Tensor &host) -> Tensor {
    if (!host.defined() || !host.is_cpu())
      return host;
    TORCH_CHECK(host.has_storage(), "virtual node: ", name_,
                " gives a sparse tensor, which its CPU kernel cannot put on the device");
    for (auto &operand : call.operands) {
      if (operand.host.is_same(host))
        return operand.device;
      if (host.numel() != 0 && operand.host.storage().unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl())
        return operand.device.as_strided(host.sizes(), host.strides(), host.storage_offset());
    }
    return to_device(host, *call.device);
  };

  const size_t arguments = written_.size(), results = returned_.size();
  std::vector<IValue> given;
  given.reserve(results);
  for (size_t i = 0; i < results; i++) {
    const IValue &host = call.arguments[call.arguments.size() - results + i];
    if (returned_[i] >= 0)
      given.push_back((*stack)[stack->size() - arguments + static_cast<size_t>(returned_[i])]);
    else
      given.push_back(map_tensors(host, give));
  }
  replace(*stack, arguments, std::move(given));
}

void HostKernel::run_at_once(const c10::OperatorHandle &op, Call &call, Stack *stack, struct vnode_stream *stream) const {
  const Arguments arguments = torch::jit::last(*stack, written_.size());
  const Random random = take_random(call, arguments);
  Footprint footprint; /* in eager order nobody looks at it */
  if (call.listed)
    for (const Operand &operand : call.operands)
      operand.written ? footprint.writes(operand.host) : footprint.reads(operand.host);
  auto work = [&] {
    execute(op, call.arguments, random.read());
    const uint64_t bytes =
        call.read_bytes + written_bytes(call.operands, torch::jit::last(call.arguments, returned_.size()), returned_);
    vnode_op_set_duration(duration_ns(arguments, bytes));
  };
  on_stream_at_once(stream, name_.c_str(), footprint, 0, work);
  give_results(call, stack);
}

/* ----------------------------------------------------------------------------------------------------------------- late */

/* The kernel of a call, with all it needs. Runs once, or at each launch of a graph. */
struct HostKernel::LateWork {
  const HostKernel *kernel;
  c10::OperatorHandle op;
  Stack arguments;
  std::vector<Tensor> operands, outputs; /* host views */
  std::vector<bool> written;
  std::shared_ptr<const Outcome> outcome;
  Random random;

  void operator()() const {
    Stack stack = arguments;
    std::vector<std::vector<int64_t>> before;
    for (size_t i = 0; i < operands.size(); i++)
      if (written[i])
        before.push_back(operands[i].sizes().vec());
    kernel->execute(op, stack, random.read());
    size_t resized = 0, output = 0;
    for (size_t i = 0; i < operands.size(); i++)
      if (written[i] && operands[i].sizes() != before[resized++])
        differs();
    for (size_t i = 0; i < outcome->returns.size(); i++)
      store(stack[stack.size() - outcome->returns.size() + i], outcome->returns[i], output);
  }

private:
  void store(const IValue &value, const Return &foreseen, size_t &output) const {
    if (foreseen.list) {
      const auto list = value.toTensorVector();
      if (list.size() != foreseen.results.size())
        differs();
      for (size_t i = 0; i < list.size(); i++)
        store(list[i], foreseen.results[i], output);
    } else if (!foreseen.results.empty() && value.isTensor()) {
      store(value.toTensor(), foreseen.results[0], output);
    }
  }

  void store(const Tensor &found, const Result &foreseen, size_t &output) const {
    if (!(describe(found, operands, kernel->name_) == foreseen))
      differs();
    if (foreseen.source == Result::kFresh)
      outputs[output++].copy_(found);
  }

  /* The caller already has a result of another shape: to go on would be to compute with wrong numbers. */
  [[noreturn]] void differs() const {
    vnode_say_once(
        kernel->name_.c_str(),
        "%s: the shape of its result depends on values in device memory, which the virtual node does not expect of "
        "this operator; B200OPT_VNODE_ORDER=eager computes it",
        kernel->name_.c_str());
    std::abort();
  }
};

bool HostKernel::needs_values(const Call &call) const {
  return by_value_ || call.host_written || call.mask;
}

/* Null: the kernel refuses stand-ins too. Their values may be the reason, or the arguments themselves: `why` tells. */
std::shared_ptr<const Outcome> HostKernel::outcome_of(const c10::OperatorHandle &op, const Call &call, std::string &why) {
  constexpr size_t kMostBytes = 4 << 20; /* of keys of one operator; shapes that never repeat must not fill the memory */
  const std::string key = outcome_key(call.operands, call.arguments, !in_place_);
  if (!key.empty()) {
    std::lock_guard<std::mutex> guard(lock_);
    if (const auto known = outcomes_.find(key); known != outcomes_.end())
      return known->second;
  }
  auto kernel = [&](Stack &stack) { execute(op, stack, {0, 0}); };
  std::shared_ptr<const Outcome> outcome;
  try {
    outcome = std::make_shared<const Outcome>(learn(call.operands, call.arguments, returned_, name_, kernel));
  } catch (const c10::Error &error) {
    why = error.what_without_backtrace();
    return nullptr;
  } catch (const std::exception &error) {
    why = error.what();
    return nullptr;
  }
  if (!key.empty()) {
    std::lock_guard<std::mutex> guard(lock_);
    if (outcomes_bytes_ + key.size() > kMostBytes) {
      outcomes_.clear();
      outcomes_bytes_ = 0;
    }
    outcomes_bytes_ += key.size();
    outcomes_.emplace(key, outcome);
  }
  return outcome;
}

/* The results that the caller gets now; `outputs` are the host views of those in new memory, in order. */
std::vector<IValue> HostKernel::foresee(const Call &call, const Outcome &outcome, Arguments arguments,
                                        std::vector<Tensor> &outputs) const {
  auto make = [&](const Result &result) -> Tensor {
    const Geometry &geometry = result.geometry;
    if (result.source == Result::kUndefined)
      return Tensor();
    if (result.source == Result::kArgument)
      return call.operands[result.operand].device;
    if (result.source == Result::kView) {
      const Tensor &base = call.operands[result.operand].device;
      return base.as_strided(geometry.sizes, geometry.strides, base.storage_offset() + result.offset);
    }
    const Tensor fresh = at::detail::empty_strided_cuda(geometry.sizes, geometry.strides, geometry.type, call.device);
    outputs.push_back(host_view(fresh));
    if (geometry.wrapped)
      fresh.unsafeGetTensorImpl()->set_wrapped_number(true);
    return fresh;
  };
  std::vector<IValue> given;
  for (size_t i = 0; i < outcome.returns.size(); i++) {
    const Return &returned = outcome.returns[i];
    if (returned_[i] >= 0) {
      given.push_back(arguments[static_cast<size_t>(returned_[i])]);
    } else if (returned.list) {
      c10::List<Tensor> list;
      for (const Result &result : returned.results)
        list.push_back(make(result));
      given.emplace_back(std::move(list));
    } else if (returned.results[0].source == Result::kValue) {
      given.push_back(returned.results[0].value);
    } else {
      given.emplace_back(make(returned.results[0]));
    }
  }
  return given;
}

void HostKernel::run_late(const c10::OperatorHandle &op, Stack *stack, struct vnode_stream *stream) {
  const Arguments arguments = torch::jit::last(*stack, written_.size());
  Call call;
  call.listed = true;
  take_arguments(call, arguments);
  HostScope scope(*call.device);
  std::string why;
  const auto outcome = needs_values(call) ? nullptr : outcome_of(op, call, why);
  TORCH_CHECK(
      outcome || why.empty() || !vnode_stream_is_capturing(stream), name_,
      " cannot be captured in a graph by the virtual node, whose kernel refuses zeros and ones in place of its operands: ",
      why);
  if (!outcome) {
    check_submitted(vnode_stream_synchronize(stream)); /* refused by a stream that captures, as CUDA's own wait would be */
    return run_at_once(op, call, stack, stream);
  }
  for (const Resize &resize : outcome->resized) {
    const Tensor &device = call.operands[resize.operand].device;
    if (resize.moved)
      device.resize_(resize.geometry.sizes);
    device.unsafeGetTensorImpl()->set_sizes_and_strides(resize.geometry.sizes, resize.geometry.strides,
                                                        device.storage_offset());
  }
  if (!outcome->resized.empty()) {
    call = Call();
    call.listed = true;
    take_arguments(call, arguments);
  }

  LateWork work{this, op, std::move(call.arguments), {}, {}, {}, outcome, take_random(call, arguments)};
  std::vector<IValue> given = foresee(call, *outcome, arguments, work.outputs);
  Footprint footprint;
  for (const Operand &operand : call.operands) {
    work.operands.push_back(operand.host);
    work.written.push_back(operand.written);
    operand.written ? footprint.writes(operand.host) : footprint.reads(operand.host);
  }
  for (const Tensor &output : work.outputs)
    footprint.writes(output);
  if (work.random.drawn)
    add_philox(footprint, work.random.taken);
  if (call.host_values) {
    /* The program may change its own tensors when the call has returned. */
    std::unordered_map<const c10::TensorImpl *, bool> views;
    for (const Tensor &view : work.operands)
      views.emplace(view.unsafeGetTensorImpl(), true);
    for (IValue &argument : work.arguments)
      argument = map_tensors(argument, [&](const Tensor &t) {
        return views.count(t.unsafeGetTensorImpl()) || t.unsafeGetTensorImpl()->is_wrapped_number() ? t : t.clone();
      });
  }
  const int64_t duration = duration_ns(arguments, footprint.bytes());
  on_stream(stream, name_.c_str(), footprint, duration, std::move(work));
  replace(*stack, written_.size(), std::move(given));
}

void HostKernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  Call call;
  take_arguments(call, torch::jit::last(*stack, written_.size()));
  struct vnode_stream *stream = current_stream(*call.device);
  if (vnode_stream_is_late(stream))
    return run_late(op, stack, stream);
  HostScope scope(*call.device);
  run_at_once(op, call, stack, stream);
}

void register_host(torch::Library &library, const char *name, HostFunction function, HostTraits traits) {
  const std::string qualified(name);
  const size_t dot = qualified.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {"aten::" + qualified.substr(0, dot), dot == std::string::npos ? "" : qualified.substr(dot + 1)});
  if (!op)
    return;
  const size_t parameters = op->schema().arguments().size();
  TORCH_CHECK(parameters <= function.parameters, "virtual node: ", name,
              " of this PyTorch has parameters that the layer does not know");
  library.impl(name,
               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(*op, std::move(function), traits)));
}

} // namespace vnode_aten
