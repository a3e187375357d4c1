/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boxed kernel: one implementation for every ATen operator that has a CUDA kernel and a CPU kernel.
 *
 * A call's CUDA arguments are replaced by host views, CUDA devices by the CPU, the CPU kernel runs, and the results are
 * given back as CUDA tensors: an argument that was written is returned itself (and resized if the CPU kernel resized
 * it), a view of an argument becomes the same view of the CUDA tensor, anything else is copied to new device memory.
 * Errors that CUDA raises for operands on different devices are raised here too.
 */
#pragma once

#include <ATen/core/boxing/BoxedKernel.h>

#include "alias.h"

namespace vnode_aten {

class HostKernel final : public c10::OperatorKernel {
public:
  /* Reads what the calls need from the schema, once per operator. */
  explicit HostKernel(const c10::FunctionSchema &schema);
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack);

private:
  struct Call;
  void take_arguments(Call &call, torch::jit::Stack *stack) const;
  c10::IValue take_argument(Call &call, const c10::IValue &value, size_t index) const;
  void take_device(Call &call, const Tensor &t) const;
  Tensor take_tensor(Call &call, const Tensor &t, bool written) const;
  void give_results(Call &call, torch::jit::Stack *stack) const;

  std::string name_;
  std::vector<bool> written_; /* per argument: the schema says that it is written */
  std::vector<int> returned_; /* per result: the written argument that it is, or -1 */
  int generator_ = -1;        /* the argument that is a generator, or -1 */
  bool mixes_devices_;        /* CUDA's kernel takes host tensors or several devices too */
};

} // namespace vnode_aten
