/* SPDX-License-Identifier: Apache-2.0 */
/* Driver API: memory, pointers, copies, fills, IPC. */
#include <string.h>

#include "driver.h"
#include "graph.h"

#define CALLER __builtin_return_address(0)

static CUresult allocate(CUdeviceptr *out, size_t bytes, enum vnode_memory_kind kind, const void *caller) {
  VNODE_DRIVER_READY();
  VNODE_DRIVER_UNSAFE();
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  int device = vnode_device_current();
  void *base = NULL;
  enum vnode_status status = vnode_capture_unsafe();
  if (!status)
    status = vnode_memory_alloc(device, bytes, kind, vnode_driver_owner(caller), &base);
  if (status == VNODE_NO_MEMORY && vnode_pool_trim_all(device))
    status = vnode_memory_alloc(device, bytes, kind, vnode_driver_owner(caller), &base);
  if (!status)
    *out = (CUdeviceptr)(uintptr_t)base;
  return vnode_cuda_status(status);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  return allocate(out, bytes, VNODE_MEMORY_DEVICE, CALLER);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  return allocate(out, bytes, VNODE_MEMORY_MANAGED, CALLER);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width_bytes, size_t height, unsigned int element_bytes) {
  static const size_t pitch_align = 512;
  if (!pitch || !width_bytes || !height || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) ||
      width_bytes > SIZE_MAX / 4 / height)
    return CUDA_ERROR_INVALID_VALUE;
  size_t row = (width_bytes + pitch_align - 1) / pitch_align * pitch_align;
  CUresult result = allocate(out, row * height, VNODE_MEMORY_DEVICE, CALLER);
  if (!result)
    *pitch = row;
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  VNODE_DRIVER_READY();
  struct vnode_memory_info info;
  void *base = vnode_pointer(address);
  if (!base)
    return CUDA_ERROR_INVALID_VALUE;
  VNODE_DRIVER_UNSAFE();
  if (vnode_memory_query(base, &info) && info.base == base)
    vnode_device_wait(info.device); /* work that uses it ends first, as on a GPU */
  enum vnode_status status = vnode_pool_free(base, VNODE_STREAM_NULL);
  if (status == VNODE_NOT_FOUND)
    status = vnode_graph_memory_release(base);
  if (status != VNODE_NOT_FOUND)
    return vnode_cuda_status(status);
  if (!vnode_memory_query(base, &info) || (info.kind != VNODE_MEMORY_DEVICE && info.kind != VNODE_MEMORY_MANAGED))
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_cuda_status(vnode_memory_free(base));
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  VNODE_DRIVER_READY();
  uint64_t free_now = 0, total = 0;
  enum vnode_status status = vnode_memory_get_info(vnode_device_current(), &free_now, &total);
  if (!status && free_bytes)
    *free_bytes = free_now;
  if (!status && total_bytes)
    *total_bytes = total;
  return vnode_cuda_status(status);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  VNODE_DRIVER_READY();
  struct vnode_memory_info info;
  if (!vnode_memory_query(vnode_pointer(address), &info))
    return CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = (CUdeviceptr)(uintptr_t)info.base;
  if (bytes)
    *bytes = info.bytes;
  return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- host memory */

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
  VNODE_DRIVER_READY();
  VNODE_DRIVER_UNSAFE();
  if (!out || !bytes || flags > (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
    return CUDA_ERROR_INVALID_VALUE;
  enum vnode_status status = vnode_capture_unsafe();
  if (!status)
    status = vnode_memory_alloc(vnode_device_current(), bytes, VNODE_MEMORY_HOST, VNODE_OWNER_OTHER, out);
  return vnode_cuda_status(status);
}

CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
  return cuMemHostAlloc(out, bytes, 0);
}

static CUresult release(void *base, enum vnode_memory_kind kind, CUresult not_found) {
  VNODE_DRIVER_READY();
  VNODE_DRIVER_UNSAFE();
  struct vnode_memory_info info;
  if (!vnode_memory_query(base, &info) || info.kind != kind || info.base != base)
    return not_found;
  enum vnode_status status = vnode_capture_unsafe();
  return vnode_cuda_status(status ? status : vnode_memory_free(base));
}

CUresult cuMemFreeHost(void *base) {
  return release(base, VNODE_MEMORY_HOST, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostRegister_v2(void *base, size_t bytes, unsigned int flags) {
  VNODE_DRIVER_READY();
  VNODE_DRIVER_UNSAFE();
  (void)flags;
  if (!base || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  enum vnode_status status = vnode_memory_register(base, bytes);
  return status == VNODE_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : vnode_cuda_status(status);
}

CUresult cuMemHostUnregister(void *base) {
  return release(base, VNODE_MEMORY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *host, unsigned int flags) {
  VNODE_DRIVER_READY();
  if (!out || flags || !vnode_memory_query(host, NULL))
    return CUDA_ERROR_INVALID_VALUE;
  *out = (CUdeviceptr)(uintptr_t)host;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *host) {
  VNODE_DRIVER_READY();
  struct vnode_memory_info info;
  if (!flags || !vnode_memory_query(host, &info) || info.kind != VNODE_MEMORY_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- pointers */

static bool is_host_kind(enum vnode_memory_kind kind) {
  return kind == VNODE_MEMORY_HOST || kind == VNODE_MEMORY_REGISTERED;
}

static CUresult pointer_attribute(void *out, CUpointer_attribute attribute, const void *address,
                                  const struct vnode_memory_info *info) {
  CUcontext context;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    if (cuDevicePrimaryCtxRetain(&context, info->device))
      return CUDA_ERROR_INVALID_VALUE;
    *(CUcontext *)out = context;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned int *)out = is_host_kind(info->kind) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && !is_host_kind(info->kind) && info->kind != VNODE_MEMORY_MANAGED)
      return CUDA_ERROR_INVALID_VALUE;
    *(const void **)out = address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    *(unsigned int *)out = 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)out = info->id;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned int *)out = info->kind == VNODE_MEMORY_MANAGED;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)out = info->device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned int *)out = info->kind == VNODE_MEMORY_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(void **)out = info->base;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)out = info->bytes;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned int *)out = 1;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(unsigned long long *)out = info->kind == VNODE_MEMORY_MAPPED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(void **)out = NULL;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
  VNODE_DRIVER_READY();
  struct vnode_memory_info info;
  if (!out || !vnode_memory_query(vnode_pointer(address), &info))
    return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(out, attribute, vnode_pointer(address), &info);
}

/* Unlike the single form, an unknown pointer is no error: every answer is zero (cuda.h). */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **out, CUdeviceptr address) {
  VNODE_DRIVER_READY();
  struct vnode_memory_info info;
  if (!attributes || !out)
    return CUDA_ERROR_INVALID_VALUE;
  bool known = vnode_memory_query(vnode_pointer(address), &info);
  for (unsigned int i = 0; i < count; i++)
    if (!known || pointer_attribute(out[i], attributes[i], vnode_pointer(address), &info))
      *(int *)out[i] = attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? CU_DEVICE_INVALID : 0;
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  VNODE_DRIVER_READY();
  bool valid = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && vnode_memory_query(vnode_pointer(address), NULL);
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------------- copies and fills */

static CUresult copy(void *to, bool to_device, const void *from, bool from_device, size_t bytes, CUstream stream,
                     bool async) {
  VNODE_DRIVER_READY();
  if (!bytes)
    return CUDA_SUCCESS;
  if (!to || !from || (to_device ? !vnode_is_known(to, bytes) : !vnode_is_within(to, bytes)) ||
      (from_device ? !vnode_is_known(from, bytes) : !vnode_is_within(from, bytes)))
    return CUDA_ERROR_INVALID_VALUE;
  struct vnode_copy job = {.to = to, .from = from, .row_bytes = bytes, .rows = 1};
  return vnode_handle_status(vnode_copy_submit(vnode_stream_of(stream), &job, async));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  return copy(vnode_pointer(to), true, from, false, bytes, stream, true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  return copy(vnode_pointer(to), true, from, false, bytes, NULL, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, false, vnode_pointer(from), true, bytes, stream, true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  return copy(to, false, vnode_pointer(from), true, bytes, NULL, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(vnode_pointer(to), true, vnode_pointer(from), true, bytes, stream, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(vnode_pointer(to), true, vnode_pointer(from), true, bytes, NULL, false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(vnode_pointer(to), false, vnode_pointer(from), false, bytes, stream, true);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(vnode_pointer(to), false, vnode_pointer(from), false, bytes, NULL, false);
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element_bytes, size_t width, size_t height,
                     CUstream stream, bool async) {
  VNODE_DRIVER_READY();
  if (!width || !height)
    return CUDA_SUCCESS;
  if (to % element_bytes || width > SIZE_MAX / 4 / element_bytes || (height > 1 && pitch < width * element_bytes) ||
      (height > 1 && pitch > SIZE_MAX / 4 / height))
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_known(vnode_pointer(to), (height - 1) * pitch + width * element_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  struct vnode_fill job = {.to = vnode_pointer(to),
                           .pitch = pitch,
                           .row_elements = width,
                           .rows = height,
                           .value = value,
                           .element_bytes = element_bytes};
  return vnode_handle_status(vnode_fill_submit(vnode_stream_of(stream), &job, async));
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return fill(to, 0, value, 1, count, 1, NULL, false);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill(to, 0, value, 1, count, 1, stream, true);
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return fill(to, 0, value, 2, count, 1, NULL, false);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill(to, 0, value, 2, count, 1, stream, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  return fill(to, 0, value, 4, count, 1, NULL, false);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return fill(to, 0, value, 4, count, 1, stream, true);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill(to, pitch, value, 1, width, height, NULL, false);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return fill(to, pitch, value, 1, width, height, stream, true);
}

/* ------------------------------------------------------------------------------------------- IPC */

_Static_assert(sizeof(CUipcMemHandle) == 64 && sizeof(CUipcEventHandle) == 64, "tokens of the engine fit CUDA's handles");

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  VNODE_DRIVER_READY();
  if (!handle)
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_cuda_status(vnode_ipc_export(vnode_pointer(address), (unsigned char *)handle->reserved));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
  VNODE_DRIVER_READY();
  if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  void *base = NULL;
  enum vnode_status status = vnode_ipc_open((const unsigned char *)handle.reserved, &base);
  if (!status)
    *out = (CUdeviceptr)(uintptr_t)base;
  return status == VNODE_SYSTEM ? CUDA_ERROR_MAP_FAILED : vnode_cuda_status(status);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  VNODE_DRIVER_READY();
  return vnode_cuda_status(vnode_ipc_close(vnode_pointer(address)));
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
  VNODE_DRIVER_READY();
  if (!handle)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_event_is(vnode_event_of(event)))
    return CUDA_ERROR_INVALID_HANDLE;
  vnode_ipc_event_export((unsigned char *)handle->reserved);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
  VNODE_DRIVER_READY();
  if (!event || !vnode_ipc_event_is((const unsigned char *)handle.reserved))
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_cuda_status(vnode_event_create(CU_EVENT_DISABLE_TIMING, (struct vnode_event **)event));
}

static bool location_exists(CUmemLocation location) {
  return location.type != CU_MEM_LOCATION_TYPE_DEVICE || vnode_is_device(location.id);
}

/* Unlike cuMemAlloc'ed memory, managed memory may be advised and moved; it is where every device sees it already. */
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  VNODE_DRIVER_READY();
  (void)advice;
  if (!location_exists(location))
    return CUDA_ERROR_INVALID_DEVICE;
  return vnode_is_known(vnode_pointer(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
  VNODE_DRIVER_READY();
  if (!location_exists(location))
    return CUDA_ERROR_INVALID_DEVICE;
  if (flags || !vnode_is_known(vnode_pointer(address), bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_stream_id(vnode_stream_of(stream)) < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
