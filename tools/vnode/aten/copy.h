/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_: PyTorch's own CUDA copy does everything that reaches the runtime (cudaMemcpyAsync, temporaries, peer barriers,
 * CachingHostAllocator's events for pinned memory). Only what it would do by an element-wise kernel (conversion, other
 * layout, conjugate and negative bits) is done here.
 */
#pragma once

namespace vnode_aten {

/* pre: called once, before the first copy. */
void install_copy();

} // namespace vnode_aten
