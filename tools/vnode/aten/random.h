/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers of the virtual node. Seed and offset live in PyTorch's CUDA generator and advance as its kernels advance
 * them, so manual_seed, get/set_state, fork_rng and checkpoint recomputation mean the same as on a GPU; the values do
 * not depend on threads or their timing, and the CPU's default generator is never touched.
 *
 *   equal to a GPU's, bit for bit   uniform_, rand, random_, randint, bernoulli(_) , native_dropout and _fused_dropout,
 *                                   for as many SMs as the node's model has: the words of Philox4x32-10 that PyTorch's
 *                                   grids draw
 *   equal but for the last bits     normal_, randn, log_normal_, exponential_, cauchy_, geometric_ (the GPU's fast sine and
 * logarithm), and with them normal(), multinomial without replacement, initialisers other values, same semantics attention
 * dropout, randperm, multinomial with replacement, poisson, binomial, gamma, dirichlet, rrelu: drawn from the same seed and
 * offset by another scheme
 */
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include "operation.h"
#include "philox.h"

namespace vnode_aten {

/* Where a kernel's random words start. */
struct PhiloxState {
  uint64_t seed, offset;
};

/* Takes `increment` words a thread from `generator` (undefined: the default one of `device`), which moves past them. Locks
   it. While the stream captures, seed and offset are addresses: a replay of the graph finds other values there. */
at::PhiloxCudaState take_philox(const std::optional<at::Generator> &generator, c10::Device device, uint64_t increment);

/* The values, read when the kernel runs. */
PhiloxState read_philox(const at::PhiloxCudaState &taken);

/* The addresses that read_philox reads. */
void add_philox(Footprint &footprint, const at::PhiloxCudaState &taken);

/* A new CPU generator with a seed drawn from `state`: for CPU kernels that draw random numbers. They take kBoxedIncrement.
 */
at::Generator host_generator(const PhiloxState &state);
constexpr uint64_t kBoxedIncrement = 20; /* what CUDA's poisson takes; of the other boxed operators some take more or less */

/* The state that belongs to the kernel of this layer that runs on this thread. */
class PhiloxScope {
public:
  explicit PhiloxScope(const PhiloxState &state);
  ~PhiloxScope();
  PhiloxScope(const PhiloxScope &) = delete;
  PhiloxScope &operator=(const PhiloxScope &) = delete;
  static const PhiloxState &current();

private:
  const PhiloxState *outer_;
};

/* Puts the kernels behind PyTorch's own random operators. pre: called once. */
void install_random();

/* Over CPU tensors, with the words of PhiloxScope::current(); and how many words a thread they take. */
std::tuple<Tensor, Tensor> native_dropout(const Tensor &input, double p, std::optional<bool> train);
std::tuple<Tensor, Tensor> fused_dropout(const Tensor &input, double keep, std::optional<at::Generator> generator);
Tensor masked_scale(const Tensor &input, const Tensor &mask, double scale);
uint64_t native_dropout_words(c10::ArrayRef<c10::IValue> arguments);
uint64_t fused_dropout_words(c10::ArrayRef<c10::IValue> arguments);

} // namespace vnode_aten
