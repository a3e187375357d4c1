/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcudart.so.13 of the virtual node. Like the real runtime it reaches memory through the driver: it asks libcuda.so.1 for
 * cuGetProcAddress_v2 by dlsym and fetches its entry points there, so that whoever hooks that path sees what it would see on
 * a GPU.
 *
 * Errors: every function but the queries of the last error passes its result through vnode_cudart_result(), which keeps it
 * per thread. cudaErrorNotReady is not kept, as in CUDA.
 */
#ifndef VNODE_STANDINS_CUDART_H
#define VNODE_STANDINS_CUDART_H

#include <cuda_runtime_api.h>

#include "common.h"

cudaError_t vnode_cudart_result(cudaError_t result);

static inline cudaError_t vnode_cudart_driver(CUresult result) {
  return vnode_cudart_result((cudaError_t)result); /* the codes agree */
}

static inline cudaError_t vnode_cudart_status(enum vnode_status status) {
  return vnode_cudart_driver(vnode_cuda_status(status));
}

/* For calls that take a stream or event, where the engine's INVALID_VALUE means a bad handle. */
static inline cudaError_t vnode_cudart_handle_status(enum vnode_status status) {
  return status == VNODE_INVALID_VALUE ? vnode_cudart_result(cudaErrorInvalidResourceHandle) : vnode_cudart_status(status);
}

static inline bool vnode_is_device(int device) {
  return device >= 0 && device < vnode_config()->device_count;
}

/* The driver's entry points that the runtime uses. NULL when there is no libcuda.so.1: said once. */
struct vnode_driver_api {
#define VNODE_ENTRY(name, version) __typeof__(&name) name##_entry;
#include "cudart_entries.def"
#undef VNODE_ENTRY
  CUresult (*get_proc_address)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
};
const struct vnode_driver_api *vnode_cudart_driver_api(void);

/* What CUDA calls implicit initialisation: the driver is up and the current device has its context. */
cudaError_t vnode_cudart_start(void);

/* Loads the layer that runs PyTorch's kernels on the CPU, once libtorch_cuda.so is there. Ends the process when it is
   missing: without it, every result would be wrong. */
void vnode_cudart_load_aten(void);

/* Address of a __device__ variable on the current device, or NULL. */
void *vnode_cudart_symbol(const void *symbol, size_t *bytes);

#endif
