/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax and embedding where CUDA's kernels do what the CPU's refuse or do in less precision: half and bfloat16 input with
 * float results (half_to_float), its backward, and gradients of embeddings summed in float.
 */
#pragma once

#include <torch/library.h>

namespace vnode_aten {

void register_softmax(torch::Library &library);

} // namespace vnode_aten
