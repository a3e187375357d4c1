/* SPDX-License-Identifier: Apache-2.0 */
/* Driver API: virtual memory management, the base of PyTorch's expandable segments. */
#include <string.h>

#include "driver.h"

static bool is_supported(const CUmemAllocationProp *prop) {
  unsigned handle_types = (unsigned)prop->requestedHandleTypes;
  return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         (handle_types & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  VNODE_DRIVER_READY();
  if (!bytes || !prop || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_supported(prop))
    return CUDA_ERROR_NOT_SUPPORTED;
  *bytes = VNODE_MEMORY_ALIGN_BYTES;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  VNODE_DRIVER_READY();
  if (!handle || !prop || flags || !bytes || bytes % VNODE_MEMORY_ALIGN_BYTES)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_supported(prop))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!vnode_is_device(prop->location.id))
    return CUDA_ERROR_INVALID_DEVICE;
  uint64_t made = 0;
  int device = prop->location.id;
  enum vnode_owner owner = vnode_driver_owner(__builtin_return_address(0));
  enum vnode_status status = vnode_physical_create(device, bytes, owner, &made);
  if (status == VNODE_NO_MEMORY && vnode_pool_trim_all(device))
    status = vnode_physical_create(device, bytes, owner, &made);
  if (!status)
    *handle = made;
  return vnode_cuda_status(status);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  VNODE_DRIVER_READY();
  return vnode_cuda_status(vnode_physical_release(handle));
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  VNODE_DRIVER_READY();
  (void)hint;
  void *base = NULL;
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  enum vnode_status status = vnode_range_reserve(bytes, alignment, &base);
  if (!status)
    *out = (CUdeviceptr)(uintptr_t)base;
  return vnode_cuda_status(status);
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  VNODE_DRIVER_READY();
  return vnode_cuda_status(vnode_range_free(vnode_pointer(base), bytes));
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  VNODE_DRIVER_READY();
  if (offset || flags) /* "currently must be zero" (cuda.h) */
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_cuda_status(vnode_range_map(vnode_pointer(at), bytes, handle));
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  VNODE_DRIVER_READY();
  return vnode_cuda_status(vnode_range_unmap(vnode_pointer(at), bytes));
}

/* Access is one thing for all devices and the host here; NONE takes it away. */
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  VNODE_DRIVER_READY();
  if (!access || !count)
    return CUDA_ERROR_INVALID_VALUE;
  bool readable = false;
  for (size_t i = 0; i < count; i++) {
    if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !vnode_is_device(access[i].location.id))
      return CUDA_ERROR_INVALID_DEVICE;
    readable |= access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  return vnode_cuda_status(vnode_range_set_access(vnode_pointer(at), bytes, readable));
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  VNODE_DRIVER_READY();
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  return vnode_cuda_status(vnode_physical_export(handle, out));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
  VNODE_DRIVER_READY();
  if (!handle)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t made = 0;
  enum vnode_status status = vnode_physical_import((int)(intptr_t)os_handle, &made);
  if (!status)
    *handle = made;
  return vnode_cuda_status(status);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  VNODE_DRIVER_READY();
  uint64_t found = 0;
  if (!handle)
    return CUDA_ERROR_INVALID_VALUE;
  enum vnode_status status = vnode_physical_retain(address, &found);
  if (!status)
    *handle = found;
  return vnode_cuda_status(status);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
  VNODE_DRIVER_READY();
  int device = 0;
  size_t bytes = 0;
  if (!prop)
    return CUDA_ERROR_INVALID_VALUE;
  enum vnode_status status = vnode_physical_info(handle, &device, &bytes);
  if (status)
    return vnode_cuda_status(status);
  memset(prop, 0, sizeof *prop);
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = device;
  return CUDA_SUCCESS;
}
