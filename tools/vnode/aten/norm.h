/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normalisations whose CUDA kernels have no CPU kernel (fused RMS norm, the batch-norm family of SyncBatchNorm) or one that
 * keeps narrower intermediates: CUDA's layer and group norm keep mean and rstd in float for half and bfloat16.
 */
#pragma once

#include <torch/library.h>

namespace vnode_aten {

void register_norm(torch::Library &library);

} // namespace vnode_aten
