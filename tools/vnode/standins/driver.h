/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1 of the virtual node. Handles: CUstream and CUevent are the engine's; a CUcontext names a device's primary
 * context, the only kind there is.
 */
#ifndef VNODE_STANDINS_DRIVER_H
#define VNODE_STANDINS_DRIVER_H

#include "common.h"
#include "graph.h"

/* CUDA_SUCCESS, or why nothing works: cuInit was not called, or this is a forked child. */
CUresult vnode_driver_ready(void);
#define VNODE_DRIVER_READY()                                                                                                \
  do {                                                                                                                      \
    CUresult ready_ = vnode_driver_ready();                                                                                 \
    if (ready_)                                                                                                             \
      return ready_;                                                                                                        \
  } while (0)

/* For functions that may block or act at once, whatever streams do: not beside a capture that forbids them. */
#define VNODE_DRIVER_UNSAFE()                                                                                               \
  do {                                                                                                                      \
    enum vnode_status unsafe_ = vnode_capture_unsafe();                                                                     \
    if (unsafe_)                                                                                                            \
      return vnode_cuda_status(unsafe_);                                                                                    \
  } while (0)

/* Who an allocation of the calling thread is for: what a stand-in said (vnode_owner_push), else judged by the module of
   `caller`, a return address: PyTorch's libraries, and libb200opt.so, which passes their calls on, are PYTORCH. */
enum vnode_owner vnode_driver_owner(const void *caller);

static inline bool vnode_is_device(int device) {
  return device >= 0 && device < vnode_config()->device_count;
}

static inline void *vnode_pointer(CUdeviceptr address) {
  return (void *)(uintptr_t)address;
}

static inline struct vnode_stream *vnode_stream_of(CUstream stream) {
  return (struct vnode_stream *)stream;
}

static inline struct vnode_event *vnode_event_of(CUevent event) {
  return (struct vnode_event *)event;
}

/* Streams and events: the engine's INVALID_VALUE means a bad handle. */
static inline CUresult vnode_handle_status(enum vnode_status status) {
  return status == VNODE_INVALID_VALUE ? CUDA_ERROR_INVALID_HANDLE : vnode_cuda_status(status);
}

/* Frees a block of a pool in the order of the stream. NOT_FOUND: it is none. */
enum vnode_status vnode_pool_free(void *base, struct vnode_stream *stream);
/* Waits until the idle memory of all pools of a device is free, and gives it back; true when there was some. */
bool vnode_pool_trim_all(int device);

#endif
