/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scaled dot-product attention in the variants that PyTorch's CUDA build calls: flash, cuDNN and memory-efficient.
 *
 * Computed in float (double for double), directly from the definition, with the log-sum-exp kept as the kernels keep it:
 *   P = exp(scale·Q·Kᵀ + bias − lse), rows without any key give 0; O = dropout(P)·V
 *   dV = dropout(P)ᵀ·dO;  dS = P ∘ (dropout(dO·Vᵀ) − rowsum(dO ∘ O));  dQ = scale·dS·K;  dK = scale·dSᵀ·Q;  dbias = dS
 * Causal masks with L queries and S keys: flash aligns the diagonal at the bottom right (key j visible to query i when
 * j ≤ i + S − L), cuDNN and memory-efficient at the top left (j ≤ i).
 * Fewer key/value heads than query heads (GQA): query head h uses head h / (Hq / Hkv).
 */
#pragma once

#include <torch/library.h>

namespace vnode_aten {

void register_attention(torch::Library &library);

} // namespace vnode_aten
