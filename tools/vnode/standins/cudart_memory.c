/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime API: memory. Allocation goes down to the driver with PyTorch as the owner, unless another stand-in said otherwise.
 */
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

/* A call of driver function `name`, from a started runtime, as owner PYTORCH. Its result is the value of the expression. */
#define DRIVER(name, ...)                                                                                                   \
  __extension__({                                                                                                           \
    cudaError_t driver_result_ = vnode_cudart_start();                                                                      \
    if (!driver_result_) {                                                                                                  \
      enum vnode_owner driver_previous_ = vnode_owner_push(VNODE_OWNER_PYTORCH);                                            \
      driver_result_ = (cudaError_t)vnode_cudart_driver_api()->name##_entry(__VA_ARGS__);                                   \
      vnode_owner_pop(driver_previous_);                                                                                    \
    }                                                                                                                       \
    vnode_cudart_result(driver_result_);                                                                                    \
  })

static CUdeviceptr address_of(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

/* ------------------------------------------------------------------------------------------- device memory */

/* Nothing of size 0 is success with no memory. */
static cudaError_t nothing(void **out) {
  *out = NULL;
  return vnode_cudart_result(vnode_cudart_start());
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
  if (!out)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return bytes ? DRIVER(cuMemAlloc, (CUdeviceptr *)out, bytes) : nothing(out);
}

cudaError_t cudaFree(void *pointer) {
  return pointer ? DRIVER(cuMemFree, address_of(pointer)) : vnode_cudart_result(vnode_cudart_start());
}

cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned int flags) {
  if (!out || !bytes)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return DRIVER(cuMemAllocManaged, (CUdeviceptr *)out, bytes, flags);
}

cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
  static const unsigned element_bytes = 4;
  if (!out || !pitch)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *pitch = 0;
  return width && height ? DRIVER(cuMemAllocPitch, (CUdeviceptr *)out, pitch, width, height, element_bytes) : nothing(out);
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
  if (!out)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return bytes ? DRIVER(cuMemAllocAsync, (CUdeviceptr *)out, bytes, stream) : nothing(out);
}

cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  if (!out)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return bytes ? DRIVER(cuMemAllocFromPoolAsync, (CUdeviceptr *)out, bytes, pool, stream) : nothing(out);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
  return pointer ? DRIVER(cuMemFreeAsync, address_of(pointer), stream) : vnode_cudart_result(vnode_cudart_start());
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  return DRIVER(cuMemGetInfo, free_bytes, total_bytes);
}

/* ------------------------------------------------------------------------------------------- pools */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  return DRIVER(cuDeviceGetDefaultMemPool, pool, device);
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
  return DRIVER(cuDeviceGetMemPool, pool, device);
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return DRIVER(cuDeviceSetMemPool, device, pool);
}

/* The structures and enums of pools are the driver's under other names. */
_Static_assert(sizeof(struct cudaMemPoolProps) == sizeof(CUmemPoolProps), "pool properties");
_Static_assert(sizeof(struct cudaMemAccessDesc) == sizeof(CUmemAccessDesc), "access descriptors");
_Static_assert(sizeof(struct cudaMemLocation) == sizeof(CUmemLocation), "locations");

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props) {
  return DRIVER(cuMemPoolCreate, pool, (const CUmemPoolProps *)props);
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return DRIVER(cuMemPoolDestroy, pool);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
  return DRIVER(cuMemPoolTrimTo, pool, keep_bytes);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  return DRIVER(cuMemPoolGetAttribute, pool, (CUmemPool_attribute)attribute, value);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  return DRIVER(cuMemPoolSetAttribute, pool, (CUmemPool_attribute)attribute, value);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count) {
  return DRIVER(cuMemPoolSetAccess, pool, (const CUmemAccessDesc *)access, count);
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t pool, struct cudaMemLocation *location) {
  return DRIVER(cuMemPoolGetAccess, (CUmemAccess_flags *)flags, pool, (CUmemLocation *)location);
}

/* ------------------------------------------------------------------------------------------- host memory */

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags) {
  if (!out)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return bytes ? DRIVER(cuMemHostAlloc, out, bytes, flags) : nothing(out);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
  return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *pointer) {
  return pointer ? DRIVER(cuMemFreeHost, pointer) : vnode_cudart_result(vnode_cudart_start());
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  return DRIVER(cuMemHostRegister, pointer, bytes, flags);
}

cudaError_t cudaHostUnregister(void *pointer) {
  return DRIVER(cuMemHostUnregister, pointer);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned int flags) {
  if (!out || flags || !vnode_memory_query(host, NULL))
    return vnode_cudart_result(cudaErrorInvalidValue);
  *out = host; /* unified addressing */
  return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned int *flags, void *host) {
  struct vnode_memory_info info;
  if (!flags || !vnode_memory_query(host, &info) || info.kind != VNODE_MEMORY_HOST)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *flags = cudaHostAllocMapped;
  return cudaSuccess;
}

/* ------------------------------------------------------------------------------------------- pointers */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
  if (!out)
    return vnode_cudart_result(cudaErrorInvalidValue);
  cudaError_t error = vnode_cudart_start();
  if (error)
    return vnode_cudart_result(error);
  struct vnode_memory_info info;
  memset(out, 0, sizeof *out);
  if (!vnode_memory_query(pointer, &info)) { /* since CUDA 11 no error */
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    out->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
  }
  bool host = info.kind == VNODE_MEMORY_HOST || info.kind == VNODE_MEMORY_REGISTERED;
  bool managed = info.kind == VNODE_MEMORY_MANAGED;
  out->type = host ? cudaMemoryTypeHost : managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
  out->device = info.device;
  out->devicePointer = (void *)(uintptr_t)pointer;
  out->hostPointer = host || managed ? (void *)(uintptr_t)pointer : NULL;
  return cudaSuccess;
}

/* ------------------------------------------------------------------------------------------- copies */

/* A side that `kind` puts on a device must be memory that CUDA knows; the other may be any, but must not run over the end of
   known memory. */
static bool sides_are_valid(const void *to, size_t to_bytes, const void *from, size_t from_bytes, enum cudaMemcpyKind kind) {
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to && from && (to_device ? vnode_is_known(to, to_bytes) : vnode_is_within(to, to_bytes)) &&
         (from_device ? vnode_is_known(from, from_bytes) : vnode_is_within(from, from_bytes));
}

static cudaError_t copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                           enum cudaMemcpyKind kind, cudaStream_t stream, bool async) {
  if ((unsigned)kind > cudaMemcpyDefault)
    return vnode_cudart_result(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = vnode_cudart_start();
  if (error)
    return vnode_cudart_result(error);
  if (vnode_stream_id((struct vnode_stream *)stream) < 0)
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  if (!width || !height)
    return cudaSuccess;
  if (height > 1 && (to_pitch < width || from_pitch < width))
    return vnode_cudart_result(cudaErrorInvalidPitchValue);
  if (height > 1 && (to_pitch > SIZE_MAX / 2 / height || from_pitch > SIZE_MAX / 2 / height))
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!sides_are_valid(to, (height - 1) * to_pitch + width, from, (height - 1) * from_pitch + width, kind))
    return vnode_cudart_result(cudaErrorInvalidValue);
  struct vnode_copy copy = {
      .to = to, .from = from, .to_pitch = to_pitch, .from_pitch = from_pitch, .row_bytes = width, .rows = height};
  return vnode_cudart_handle_status(vnode_copy_submit((struct vnode_stream *)stream, &copy, async));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_2d(to, bytes, from, bytes, bytes, 1, kind, stream, true);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  return copy_2d(to, bytes, from, bytes, bytes, 1, kind, NULL, false);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_2d(to, to_pitch, from, from_pitch, width, height, kind, stream, true);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
  return copy_2d(to, to_pitch, from, from_pitch, width, height, kind, NULL, false);
}

static cudaError_t copy_peer(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream,
                             bool async) {
  if (!vnode_is_device(to_device) || !vnode_is_device(from_device))
    return vnode_cudart_result(cudaErrorInvalidDevice);
  return copy_2d(to, bytes, from, bytes, bytes, 1, cudaMemcpyDeviceToDevice, stream, async);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return copy_peer(to, to_device, from, from_device, bytes, stream, true);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  return copy_peer(to, to_device, from, from_device, bytes, NULL, false);
}

static cudaError_t copy_symbol(const void *symbol, void *other, size_t bytes, size_t offset, bool to_symbol,
                               enum cudaMemcpyKind kind, cudaStream_t stream, bool async) {
  size_t symbol_bytes = 0;
  cudaError_t error = vnode_cudart_start();
  char *address = error ? NULL : vnode_cudart_symbol(symbol, &symbol_bytes);
  if (!address)
    return vnode_cudart_result(error ? error : cudaErrorInvalidSymbol);
  if (offset > symbol_bytes || bytes > symbol_bytes - offset)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return to_symbol ? copy_2d(address + offset, bytes, other, bytes, bytes, 1, kind, stream, async)
                   : copy_2d(other, bytes, address + offset, bytes, bytes, 1, kind, stream, async);
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  return copy_symbol(symbol, (void *)(uintptr_t)from, bytes, offset, true, kind, NULL, false);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_symbol(symbol, (void *)(uintptr_t)from, bytes, offset, true, kind, stream, true);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  return copy_symbol(symbol, to, bytes, offset, false, kind, NULL, false);
}

cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return copy_symbol(symbol, to, bytes, offset, false, kind, stream, true);
}

/* ------------------------------------------------------------------------------------------- fills */

static cudaError_t fill_2d(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream, bool async) {
  cudaError_t error = vnode_cudart_start();
  if (error)
    return vnode_cudart_result(error);
  if (vnode_stream_id((struct vnode_stream *)stream) < 0)
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  if (!width || !height)
    return cudaSuccess;
  if (height > 1 && (pitch < width || pitch > SIZE_MAX / 2 / height))
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!vnode_is_known(to, (height - 1) * pitch + width))
    return vnode_cudart_result(cudaErrorInvalidValue);
  struct vnode_fill fill = {
      .to = to, .pitch = pitch, .row_elements = width, .rows = height, .value = (unsigned)value, .element_bytes = 1};
  return vnode_cudart_handle_status(vnode_fill_submit((struct vnode_stream *)stream, &fill, async));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  return fill_2d(to, bytes, value, bytes, 1, NULL, false);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return fill_2d(to, bytes, value, bytes, 1, stream, true);
}

cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
  return fill_2d(to, pitch, value, width, height, NULL, false);
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return fill_2d(to, pitch, value, width, height, stream, true);
}

/* ------------------------------------------------------------------------------------------- managed, IPC */

cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice, struct cudaMemLocation location) {
  CUmemLocation where;
  memcpy(&where, &location, sizeof where);
  return DRIVER(cuMemAdvise, address_of(pointer), bytes, (CUmem_advise)advice, where);
}

cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation location, unsigned int flags,
                                 cudaStream_t stream) {
  CUmemLocation where;
  memcpy(&where, &location, sizeof where);
  return DRIVER(cuMemPrefetchAsync, address_of(pointer), bytes, where, flags, stream);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  return DRIVER(cuIpcGetMemHandle, (CUipcMemHandle *)handle, address_of(pointer));
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned int flags) {
  CUipcMemHandle token;
  memcpy(&token, &handle, sizeof token);
  return DRIVER(cuIpcOpenMemHandle, (CUdeviceptr *)out, token, flags);
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
  return DRIVER(cuIpcCloseMemHandle, address_of(pointer));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  return DRIVER(cuIpcGetEventHandle, (CUipcEventHandle *)handle, event);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle token;
  memcpy(&token, &handle, sizeof token);
  return DRIVER(cuIpcOpenEventHandle, event, token);
}
