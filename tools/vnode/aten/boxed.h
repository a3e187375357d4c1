/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boxed kernel: one implementation for every ATen operator that has a CUDA kernel and a CPU kernel.
 *
 * A call's CUDA arguments are replaced by host views, CUDA devices by the CPU, the CPU kernel runs, and the results are
 * given back as CUDA tensors: an argument that was written is returned itself (and resized if the CPU kernel resized
 * it), a view of an argument becomes the same view of the CUDA tensor, anything else is copied to new device memory.
 * Errors that CUDA raises for operands on different devices are raised here too.
 *
 * In eager order all that happens within the call. Otherwise, and into a graph, the call gives its results by what is known
 * of them before (outcome.h) and leaves its kernel to the stream; operators whose results depend on values that only the
 * device has wait for the stream, as CUDA's do, and cannot be captured.
 *
 * Where the CPU's kernel differs from CUDA's, a function of this layer over CPU tensors takes its place.
 */
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <mutex>

#include "operation.h"
#include "outcome.h"
#include "random.h"

namespace vnode_aten {

using Arguments = c10::ArrayRef<c10::IValue>; /* of a call, in the schema's order */

struct HostTraits {
  uint64_t (*random_words)(Arguments) = nullptr;               /* words a thread that it draws of its generator */
  int64_t (*duration_ns)(Arguments, uint64_t bytes) = nullptr; /* on the modelled GPU; else that of the bytes moved */
};

/* A function over CPU tensors. PyTorch adds parameters to its operators, always at the end: those that the operator of this
   version does not have yet are None. */
struct HostFunction {
  c10::KernelFunction kernel;
  size_t parameters = 0;
};

class HostKernel final : public c10::OperatorKernel {
public:
  /* Reads what the calls need from the schema, once per operator. `function`: without a kernel for the CPU's own. */
  explicit HostKernel(const c10::OperatorHandle &op, HostFunction function = {}, HostTraits traits = {});
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack);

private:
  struct Call;
  struct Random;
  struct LateWork;

  void take_arguments(Call &call, Arguments arguments) const;
  c10::IValue take_argument(Call &call, const c10::IValue &value, size_t index) const;
  void take_device(Call &call, const Tensor &t, bool written) const;
  Tensor take_tensor(Call &call, const Tensor &t, bool written) const;
  Random take_random(const Call &call, Arguments arguments) const;

  void execute(const c10::OperatorHandle &op, torch::jit::Stack &host, const PhiloxState &state) const;
  void run_at_once(const c10::OperatorHandle &op, Call &call, torch::jit::Stack *stack, struct vnode_stream *stream) const;
  void give_results(Call &call, torch::jit::Stack *stack) const;

  void run_late(const c10::OperatorHandle &op, torch::jit::Stack *stack, struct vnode_stream *stream);
  bool needs_values(const Call &call) const;
  std::shared_ptr<const Outcome> outcome_of(const c10::OperatorHandle &op, const Call &call, std::string &why);
  std::vector<c10::IValue> foresee(const Call &call, const Outcome &outcome, Arguments arguments,
                                   std::vector<Tensor> &outputs) const;

  int64_t duration_ns(Arguments arguments, uint64_t bytes) const;

  std::string name_;
  std::vector<bool> written_;    /* per argument: it is written, by the schema */
  std::vector<bool> statistics_; /* per argument: it is written when the operator trains */
  std::vector<int> returned_;    /* per result: the written argument that it is, or -1 */
  int generator_ = -1;           /* the argument that is a generator, or -1 */
  int training_ = -1;            /* the argument that says whether the operator trains, or -1 */
  bool mixes_devices_;           /* CUDA's kernel takes host tensors or several devices too */
  bool by_value_;                /* what it gives depends on values in device memory */
  bool in_place_;
  HostFunction function_;
  HostTraits traits_;

  std::mutex lock_;
  std::unordered_map<std::string, std::shared_ptr<const Outcome>> outcomes_;
  size_t outcomes_bytes_ = 0; /* of its keys */
};

/* Puts `function`, over CPU tensors with the results that CUDA's kernel gives, in the place of an operator of aten, if this
   PyTorch has it. */
void register_host(torch::Library &library, const char *name, HostFunction function, HostTraits traits);

template <auto function> void register_host(torch::Library &library, const char *name, HostTraits traits = {}) {
  using Type = std::remove_pointer_t<decltype(function)>;
  using Pointer = c10::CompileTimeFunctionPointer<Type, function>;
  register_host(library, name,
                {c10::KernelFunction::makeFromUnboxedFunction(Pointer()),
                 c10::guts::infer_function_traits_t<Type>::number_of_parameters},
                traits);
}

} // namespace vnode_aten
