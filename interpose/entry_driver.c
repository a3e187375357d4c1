/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA driver: the place where all device memory is granted. PyTorch's runtime comes here, and so do NCCL and cuBLAS, which
 * carry a CUDA runtime of their own that no symbol of the public runtime sees. They find the driver by dlsym and
 * cuGetProcAddress; both hand out our functions (entry_libc.c and below), and the owner of a call is the module that it came
 * from.
 */
#include <cuda.h>
/* cuda.h maps the old name to the new one; both exist in the driver, with different parameters. */
#undef cuGetProcAddress
extern CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags);
extern __typeof__(cuMemAllocAsync) cuMemAllocAsync_ptsz;
extern __typeof__(cuMemAllocFromPoolAsync) cuMemAllocFromPoolAsync_ptsz;
extern __typeof__(cuMemFreeAsync) cuMemFreeAsync_ptsz;

#include <string.h>

#include "interpose/entry.h"

/* ---------------------------------------------------------------------------------- finding driver functions */

/* By the returned pointer, so that the variant (version, per-thread stream) is the one that the driver chose. */
void b200_driver_substitute(void **function) {
  if (!function || !*function || b200_runtime_is_off())
    return;
  struct b200_slot *any = &b200_slots_cuda[0];
  b200_library_bind(B200_LIBRARY_cuda, any);
  struct b200_slot *slot = b200_driver_slot(*function);
  void *ours = slot ? b200_driver_export(slot) : NULL;
  if (ours)
    *function = ours;
}

static CUresult observe_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  CUresult status = B200_REAL(cuda, cuGetProcAddress)(symbol, pfn, cudaVersion, flags);
  b200_count(b200_thread_self(), B200_SYM_cuGetProcAddress, status != CUDA_SUCCESS, 0);
  if (status == CUDA_SUCCESS)
    b200_driver_substitute(pfn);
  return status;
}

static CUresult observe_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *symbolStatus) {
  CUresult status = B200_REAL(cuda, cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, symbolStatus);
  b200_count(b200_thread_self(), B200_SYM_cuGetProcAddress_v2, status != CUDA_SUCCESS, 0);
  if (status == CUDA_SUCCESS)
    b200_driver_substitute(pfn);
  return status;
}

/* ------------------------------------------------------------------------------------------------- blocks */

/* pre: the driver has answered. `address`: where it wrote the block's. */
static CUresult granted(enum b200_symbol symbol, CUresult status, enum b200_owner owner, const CUdeviceptr *address,
                        size_t bytes) {
  struct b200_thread *self = b200_thread_self();
  b200_count(self, symbol, status != CUDA_SUCCESS, bytes);
  self->driver_events++;
  if (status == CUDA_SUCCESS)
    b200_runtime_alloc(owner, *address, bytes);
  else if (status == CUDA_ERROR_OUT_OF_MEMORY)
    b200_runtime_refused(owner, bytes);
  return status;
}

/* `undo`: what b200_runtime_free has taken out before the driver was asked. */
static CUresult returned(enum b200_symbol symbol, CUresult status, const struct b200_ledger_undo *undo) {
  struct b200_thread *self = b200_thread_self();
  b200_count(self, symbol, status != CUDA_SUCCESS, 0);
  self->driver_events++;
  if (status != CUDA_SUCCESS)
    b200_runtime_put_back(undo);
  return status;
}

static CUresult observe_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
  enum b200_owner owner = B200_CALLER();
  return granted(B200_SYM_cuMemAlloc_v2, B200_REAL(cuda, cuMemAlloc_v2)(dptr, bytesize), owner, dptr, bytesize);
}

static CUresult observe_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                           unsigned int ElementSizeBytes) {
  enum b200_owner owner = B200_CALLER();
  CUresult status = B200_REAL(cuda, cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
  size_t pitch = status == CUDA_SUCCESS ? *pPitch : WidthInBytes;
  return granted(B200_SYM_cuMemAllocPitch_v2, status, owner, dptr, pitch * Height);
}

static CUresult observe_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  enum b200_owner owner = B200_CALLER();
  return granted(B200_SYM_cuMemAllocManaged, B200_REAL(cuda, cuMemAllocManaged)(dptr, bytesize, flags), owner, dptr,
                 bytesize);
}

static CUresult observe_cuMemFree_v2(CUdeviceptr dptr) {
  struct b200_ledger_undo undo;
  b200_runtime_free(dptr, &undo);
  return returned(B200_SYM_cuMemFree_v2, B200_REAL(cuda, cuMemFree_v2)(dptr), &undo);
}

#define STREAM_ORDERED(suffix)                                                                                              \
  static CUresult observe_cuMemAllocAsync##suffix(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {                   \
    enum b200_owner owner = B200_CALLER();                                                                                  \
    CUresult status = B200_REAL(cuda, cuMemAllocAsync##suffix)(dptr, bytesize, hStream);                                    \
    return granted(B200_SYM_cuMemAllocAsync##suffix, status, owner, dptr, bytesize);                                        \
  }                                                                                                                         \
  static CUresult observe_cuMemAllocFromPoolAsync##suffix(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,            \
                                                          CUstream hStream) {                                               \
    enum b200_owner owner = B200_CALLER();                                                                                  \
    CUresult status = B200_REAL(cuda, cuMemAllocFromPoolAsync##suffix)(dptr, bytesize, pool, hStream);                      \
    return granted(B200_SYM_cuMemAllocFromPoolAsync##suffix, status, owner, dptr, bytesize);                                \
  }                                                                                                                         \
  static CUresult observe_cuMemFreeAsync##suffix(CUdeviceptr dptr, CUstream hStream) {                                      \
    struct b200_ledger_undo undo;                                                                                           \
    b200_runtime_free(dptr, &undo);                                                                                         \
    return returned(B200_SYM_cuMemFreeAsync##suffix, B200_REAL(cuda, cuMemFreeAsync##suffix)(dptr, hStream), &undo);        \
  }
STREAM_ORDERED()
STREAM_ORDERED(_ptsz)
#undef STREAM_ORDERED

/* ----------------------------------------------------------------------------------------- virtual memory */

/* Only memory of the device is charged: NCCL also makes host memory this way. */
static CUresult observe_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                                    unsigned long long flags) {
  enum b200_owner owner = B200_CALLER();
  struct b200_thread *self = b200_thread_self();
  CUresult status = B200_REAL(cuda, cuMemCreate)(handle, size, prop, flags);
  bool on_device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  b200_count(self, B200_SYM_cuMemCreate, status != CUDA_SUCCESS, size);
  self->driver_events++;
  if (status == CUDA_SUCCESS && on_device)
    b200_runtime_handle_add(owner, *handle, size);
  else if (status == CUDA_ERROR_OUT_OF_MEMORY && on_device)
    b200_runtime_refused(owner, size);
  return status;
}

static CUresult referenced(enum b200_symbol symbol, CUresult status, enum b200_owner owner,
                           const CUmemGenericAllocationHandle *handle) {
  b200_count(b200_thread_self(), symbol, status != CUDA_SUCCESS, 0);
  if (status == CUDA_SUCCESS)
    b200_runtime_handle_add(owner, *handle, 0);
  return status;
}

static CUresult observe_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  enum b200_owner owner = B200_CALLER();
  CUresult status = B200_REAL(cuda, cuMemRetainAllocationHandle)(handle, addr);
  return referenced(B200_SYM_cuMemRetainAllocationHandle, status, owner, handle);
}

static CUresult observe_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                                       CUmemAllocationHandleType shHandleType) {
  enum b200_owner owner = B200_CALLER();
  CUresult status = B200_REAL(cuda, cuMemImportFromShareableHandle)(handle, osHandle, shHandleType);
  return referenced(B200_SYM_cuMemImportFromShareableHandle, status, owner, handle);
}

static CUresult observe_cuMemRelease(CUmemGenericAllocationHandle handle) {
  struct b200_ledger_undo undo;
  b200_runtime_handle_release(handle, &undo);
  CUresult status = B200_REAL(cuda, cuMemRelease)(handle);
  b200_count(b200_thread_self(), B200_SYM_cuMemRelease, status != CUDA_SUCCESS, 0);
  if (status != CUDA_SUCCESS)
    b200_runtime_put_back(&undo);
  return status;
}

static CUresult observe_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                                 unsigned long long flags) {
  CUresult status = B200_REAL(cuda, cuMemMap)(ptr, size, offset, handle, flags);
  b200_count(b200_thread_self(), B200_SYM_cuMemMap, status != CUDA_SUCCESS, size);
  if (status == CUDA_SUCCESS)
    b200_runtime_map(ptr, size, handle);
  return status;
}

static CUresult observe_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult status = B200_REAL(cuda, cuMemUnmap)(ptr, size);
  b200_count(b200_thread_self(), B200_SYM_cuMemUnmap, status != CUDA_SUCCESS, size);
  if (status == CUDA_SUCCESS)
    b200_runtime_unmap(ptr, size);
  return status;
}

#define B200_CUDA(...) B200_ENTRY(cuda, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_cuda[] = {
#define B200_CUDA(...) B200_SLOT_ROW(cuda, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_cuda = sizeof b200_slots_cuda / sizeof *b200_slots_cuda;

/* Our exported function of a driver slot. */
void *b200_driver_export(const struct b200_slot *slot) {
  static void *const exported[] = {
#define B200_CUDA(ret, name, ...) [B200_INDEX(cuda, name)] = (void *)name,
#include "interpose/symbols.def"
  };
  return exported[slot - b200_slots_cuda];
}
