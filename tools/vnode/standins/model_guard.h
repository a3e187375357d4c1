/* SPDX-License-Identifier: Apache-2.0 */
/* The duration model is optional while it is being written: without it every duration is 0. */
#ifndef VNODE_STANDINS_MODEL_GUARD_H
#define VNODE_STANDINS_MODEL_GUARD_H

#include "tools/vnode/core/model.h"

#pragma weak vnode_model_gemm_ns
#pragma weak vnode_model_kernel_ns
#pragma weak vnode_model_copy_ns
#pragma weak vnode_model_collective_ns
#define VNODE_MODEL(function, ...) ((function) ? (function)(__VA_ARGS__) : 0)

#define vnode_model_gemm_ns(...) VNODE_MODEL(vnode_model_gemm_ns, __VA_ARGS__)
#define vnode_model_kernel_ns(...) VNODE_MODEL(vnode_model_kernel_ns, __VA_ARGS__)
#define vnode_model_copy_ns(...) VNODE_MODEL(vnode_model_copy_ns, __VA_ARGS__)
#define vnode_model_collective_ns(...) VNODE_MODEL(vnode_model_collective_ns, __VA_ARGS__)

#endif
