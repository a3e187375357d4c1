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

#include "alias.h"
#include "philox.h"

namespace vnode_aten {

/* Where a kernel's random words start, and the generator moved past them. */
struct PhiloxState {
  uint64_t seed, offset;
};

/* Takes `increment` words a thread from `generator` (undefined: the default one of `device`). Locks it. */
PhiloxState take_philox(const std::optional<at::Generator> &generator, c10::Device device, uint64_t increment);

/* A new CPU generator whose seed is drawn from the CUDA generator: for CPU kernels that draw random numbers. */
at::Generator host_generator(const std::optional<at::Generator> &generator, c10::Device device);

/* Puts the kernels behind PyTorch's own random operators. pre: called once. */
void install_random();

std::tuple<Tensor, Tensor> native_dropout(const Tensor &input, double p, std::optional<bool> train);
std::tuple<Tensor, Tensor> fused_dropout(const Tensor &input, double keep, std::optional<at::Generator> generator);
Tensor masked_scale(const Tensor &input, const Tensor &mask, double scale);

} // namespace vnode_aten
