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
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
extern CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx); /* since CUDA 13 */
extern CUresult CUDAAPI cuCtxDestroy(CUcontext ctx);
extern CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev);
extern CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev);
extern CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode);
extern CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode);
extern __typeof__(cuStreamBeginCaptureToGraph) cuStreamBeginCaptureToGraph_ptsz;
extern __typeof__(cuStreamEndCapture) cuStreamEndCapture_ptsz;
extern __typeof__(cuMemcpyPeer) cuMemcpyPeer_ptds;
extern __typeof__(cuMemcpyPeerAsync) cuMemcpyPeerAsync_ptsz;
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
                        size_t bytes, int way) {
  struct b200_thread *self = b200_thread_self();
  b200_count(self, symbol, status != CUDA_SUCCESS, bytes);
  b200_memory_status((int)status);
  self->driver_events++;
  if (status == CUDA_SUCCESS)
    b200_runtime_alloc(owner, *address, bytes);
  else if (status == CUDA_ERROR_OUT_OF_MEMORY)
    b200_runtime_refused(owner, bytes, way);
  return status;
}

/* `undo`: what b200_runtime_free has taken out before the driver was asked. */
static CUresult returned(enum b200_symbol symbol, CUresult status, const struct b200_ledger_undo *undo) {
  struct b200_thread *self = b200_thread_self();
  b200_count(self, symbol, status != CUDA_SUCCESS, 0);
  b200_memory_status((int)status);
  self->driver_events++;
  if (status != CUDA_SUCCESS)
    b200_runtime_put_back(undo);
  return status;
}

static CUresult observe_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  CUresult status = b200_memory_pools() ? (CUresult)b200_memory_info(free_bytes, total_bytes)
                                        : B200_REAL(cuda, cuMemGetInfo_v2)(free_bytes, total_bytes);
  b200_count(b200_thread_self(), B200_SYM_cuMemGetInfo_v2, status != CUDA_SUCCESS, 0);
  b200_memory_status((int)status);
  return status;
}

static CUresult observe_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
  enum b200_owner owner = B200_CALLER();
  if (!b200_memory_pools() || !dptr || bytesize == 0) {
    CUresult answer = B200_REAL(cuda, cuMemAlloc_v2)(dptr, bytesize);
    b200_memory_passed_early(answer == CUDA_SUCCESS);
    return granted(B200_SYM_cuMemAlloc_v2, answer, owner, dptr, bytesize, B200_OOM_ALLOC);
  }
  bool by_headroom = false;
  uint64_t address = 0, held = bytesize;
  CUresult status = (CUresult)b200_memory_alloc(owner, bytesize, &address, &held, &by_headroom);
  if (status == CUDA_SUCCESS)
    *dptr = address;
  return granted(B200_SYM_cuMemAlloc_v2, status, owner, dptr, held, by_headroom ? B200_OOM_HEADROOM : B200_OOM_ALLOC);
}

/* Allocations that do not come from the pool: `call` is made, and once more when that may help. */
#define OUTSIDE_THE_POOL(attempt, stream_ordered, status, call)                                                             \
  (attempt).admitted = b200_memory_admit(&(attempt), stream_ordered);                                                       \
  do                                                                                                                        \
    (status) = (attempt).admitted ? (call) : CUDA_ERROR_OUT_OF_MEMORY;                                                      \
  while ((attempt).admitted && b200_memory_rescue(&(attempt), (int)(status)))

static CUresult observe_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                           unsigned int ElementSizeBytes) {
  struct b200_memory_attempt attempt = {.owner = B200_CALLER(), .bytes = WidthInBytes * Height};
  CUresult status;
  OUTSIDE_THE_POOL(attempt, false, status,
                   B200_REAL(cuda, cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
  size_t pitch = status == CUDA_SUCCESS ? *pPitch : WidthInBytes;
  return granted(B200_SYM_cuMemAllocPitch_v2, status, attempt.owner, dptr, pitch * Height,
                 attempt.admitted ? B200_OOM_ALLOC : B200_OOM_HEADROOM);
}

/* Not limited: its pages need not be on the device. */
static CUresult observe_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  enum b200_owner owner = B200_CALLER();
  return granted(B200_SYM_cuMemAllocManaged, B200_REAL(cuda, cuMemAllocManaged)(dptr, bytesize, flags), owner, dptr,
                 bytesize, B200_OOM_ALLOC);
}

static CUresult observe_cuMemFree_v2(CUdeviceptr dptr) {
  struct b200_ledger_undo undo;
  b200_runtime_free(dptr, &undo);
  CUresult status = b200_memory_pools() ? (CUresult)b200_memory_free(dptr) : B200_REAL(cuda, cuMemFree_v2)(dptr);
  return returned(B200_SYM_cuMemFree_v2, status, &undo);
}

#define STREAM_ORDERED(suffix)                                                                                              \
  static CUresult observe_cuMemAllocAsync##suffix(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {                   \
    struct b200_memory_attempt attempt = {.owner = B200_CALLER(), .bytes = bytesize};                                       \
    CUresult status;                                                                                                        \
    OUTSIDE_THE_POOL(attempt, true, status, B200_REAL(cuda, cuMemAllocAsync##suffix)(dptr, bytesize, hStream));             \
    return granted(B200_SYM_cuMemAllocAsync##suffix, status, attempt.owner, dptr, bytesize,                                 \
                   attempt.admitted ? B200_OOM_STREAM : B200_OOM_STREAM | B200_OOM_HEADROOM);                               \
  }                                                                                                                         \
  static CUresult observe_cuMemAllocFromPoolAsync##suffix(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,            \
                                                          CUstream hStream) {                                               \
    struct b200_memory_attempt attempt = {.owner = B200_CALLER(), .bytes = bytesize, .pool = pool};                         \
    CUresult status;                                                                                                        \
    OUTSIDE_THE_POOL(attempt, true, status,                                                                                 \
                     B200_REAL(cuda, cuMemAllocFromPoolAsync##suffix)(dptr, bytesize, pool, hStream));                      \
    return granted(B200_SYM_cuMemAllocFromPoolAsync##suffix, status, attempt.owner, dptr, bytesize,                         \
                   attempt.admitted ? B200_OOM_STREAM : B200_OOM_STREAM | B200_OOM_HEADROOM);                               \
  }                                                                                                                         \
  static int real_cuMemFreeAsync##suffix(uint64_t address, void *stream) {                                                  \
    return (int)B200_REAL(cuda, cuMemFreeAsync##suffix)(address, stream);                                                   \
  }                                                                                                                         \
  static CUresult observe_cuMemFreeAsync##suffix(CUdeviceptr dptr, CUstream hStream) {                                      \
    struct b200_ledger_undo undo;                                                                                           \
    b200_runtime_free(dptr, &undo);                                                                                         \
    CUresult status = (CUresult)b200_memory_free_async(dptr, hStream, real_cuMemFreeAsync##suffix);                         \
    return returned(B200_SYM_cuMemFreeAsync##suffix, status, &undo);                                                        \
  }
STREAM_ORDERED()
STREAM_ORDERED(_ptsz)
#undef STREAM_ORDERED

/* ----------------------------------------------------------------------------------------- virtual memory */

/* Only memory of the device is charged: NCCL also makes host memory this way. */
static CUresult observe_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                                    unsigned long long flags) {
  struct b200_memory_attempt attempt = {.owner = B200_CALLER(), .bytes = size};
  struct b200_thread *self = b200_thread_self();
  bool on_device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  CUresult status;
  if (!on_device) {
    status = B200_REAL(cuda, cuMemCreate)(handle, size, prop, flags);
    b200_count(self, B200_SYM_cuMemCreate, status != CUDA_SUCCESS, size);
    self->driver_events++;
    return status;
  }
  OUTSIDE_THE_POOL(attempt, false, status, B200_REAL(cuda, cuMemCreate)(handle, size, prop, flags));
  b200_count(self, B200_SYM_cuMemCreate, status != CUDA_SUCCESS, size);
  b200_memory_status((int)status);
  self->driver_events++;
  if (status == CUDA_SUCCESS)
    b200_runtime_handle_add(attempt.owner, *handle, size);
  else if (status == CUDA_ERROR_OUT_OF_MEMORY)
    b200_runtime_refused(attempt.owner, size, attempt.admitted ? B200_OOM_CREATE : B200_OOM_CREATE | B200_OOM_HEADROOM);
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
  if (status == CUDA_SUCCESS) /* NCCL asks of every buffer that is registered; memory of cudaMalloc has none */
    b200_memory_pin((uint64_t)(uintptr_t)addr, 1);
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

/* --------------------------------------------------------------------------------- what the pool has to know */

static CUresult counted(enum b200_symbol symbol, CUresult status) {
  b200_count(b200_thread_self(), symbol, status != CUDA_SUCCESS, 0);
  b200_memory_status((int)status);
  return status;
}

static uint64_t number_of(CUcontext context) {
  return (uint64_t)(uintptr_t)context;
}

static CUresult observe_cuCtxSynchronize(void) {
  struct b200_memory_sync sync;
  b200_memory_sync_begin(&sync, 0);
  CUresult status = counted(B200_SYM_cuCtxSynchronize, B200_REAL(cuda, cuCtxSynchronize)());
  b200_memory_sync_end(&sync, (int)status);
  return status;
}

static CUresult observe_cuCtxSynchronize_v2(CUcontext ctx) {
  struct b200_memory_sync sync;
  b200_memory_sync_begin(&sync, number_of(ctx));
  CUresult status = counted(B200_SYM_cuCtxSynchronize_v2, B200_REAL(cuda, cuCtxSynchronize_v2)(ctx));
  b200_memory_sync_end(&sync, (int)status);
  return status;
}

/* Contexts that go take their memory with them. Either version of a function does the same. */
#define CONTEXT_GOES(name, parameter, what)                                                                                 \
  static CUresult observe_##name(parameter) {                                                                               \
    what;                                                                                                                   \
    return counted(B200_SYM_##name, B200_REAL(cuda, name)(which));                                                          \
  }
CONTEXT_GOES(cuCtxDestroy, CUcontext which, b200_memory_context_gone(number_of(which)))
CONTEXT_GOES(cuCtxDestroy_v2, CUcontext which, b200_memory_context_gone(number_of(which)))
CONTEXT_GOES(cuDevicePrimaryCtxRelease, CUdevice which, b200_memory_primary_release(which))
CONTEXT_GOES(cuDevicePrimaryCtxRelease_v2, CUdevice which, b200_memory_primary_release(which))
CONTEXT_GOES(cuDevicePrimaryCtxReset, CUdevice which, b200_memory_primary_reset(which))
CONTEXT_GOES(cuDevicePrimaryCtxReset_v2, CUdevice which, b200_memory_primary_reset(which))
#undef CONTEXT_GOES

static CUresult observe_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  CUresult status = counted(B200_SYM_cuDevicePrimaryCtxRetain, B200_REAL(cuda, cuDevicePrimaryCtxRetain)(pctx, dev));
  if (status == CUDA_SUCCESS)
    b200_memory_primary_retained(dev, number_of(*pctx));
  return status;
}

static CUresult observe_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  b200_memory_peer(number_of(peerContext), 0);
  return counted(B200_SYM_cuCtxEnablePeerAccess, B200_REAL(cuda, cuCtxEnablePeerAccess)(peerContext, Flags));
}

#define COPIES(sync, async)                                                                                                 \
  static CUresult observe_cuMemcpyPeer##sync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,            \
                                             CUcontext srcContext, size_t ByteCount) {                                      \
    b200_memory_peer(number_of(dstContext), number_of(srcContext));                                                         \
    return counted(B200_SYM_cuMemcpyPeer##sync,                                                                             \
                   B200_REAL(cuda, cuMemcpyPeer##sync)(dstDevice, dstContext, srcDevice, srcContext, ByteCount));           \
  }                                                                                                                         \
  static CUresult observe_cuMemcpyPeerAsync##async(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,      \
                                                   CUcontext srcContext, size_t ByteCount, CUstream hStream) {              \
    b200_memory_peer(number_of(dstContext), number_of(srcContext));                                                         \
    b200_memory_peer(number_of(dstContext), 0);                                                                             \
    return counted(                                                                                                         \
        B200_SYM_cuMemcpyPeerAsync##async,                                                                                  \
        B200_REAL(cuda, cuMemcpyPeerAsync##async)(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream));       \
  }
COPIES(, )
COPIES(_ptds, _ptsz)
#undef COPIES

static CUresult observe_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
  b200_memory_pin(dptr, 1);
  return counted(B200_SYM_cuIpcGetMemHandle, B200_REAL(cuda, cuIpcGetMemHandle)(pHandle, dptr));
}

static CUresult observe_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  b200_memory_pin(ptr, 1);
  return counted(B200_SYM_cuPointerSetAttribute, B200_REAL(cuda, cuPointerSetAttribute)(value, attribute, ptr));
}

/* Asked of every buffer by MPI and UCX: other attributes are passed on, and none is counted. */
static CUresult observe_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
    b200_memory_pin(ptr, 1);
  return B200_REAL(cuda, cuPointerGetAttribute)(data, attribute, ptr);
}

static CUresult observe_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                               CUdeviceptr ptr) {
  for (unsigned int i = 0; attributes && i < numAttributes; i++)
    if (attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
      b200_memory_pin(ptr, 1);
  return B200_REAL(cuda, cuPointerGetAttributes)(numAttributes, attributes, data, ptr);
}

static CUresult observe_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                                      CUmemRangeHandleType handleType, unsigned long long flags) {
  b200_memory_pin(dptr, size);
  return counted(B200_SYM_cuMemGetHandleForAddressRange,
                 B200_REAL(cuda, cuMemGetHandleForAddressRange)(handle, dptr, size, handleType, flags));
}

/* Captures that the public runtime begins and ends are counted there. */
static bool begins_capture(void) {
  bool counts = b200_thread_self()->in_runtime == 0;
  if (counts)
    b200_runtime_capture(+1);
  return counts;
}

static void began_capture(bool counted_so, CUresult status) {
  if (counted_so && status != CUDA_SUCCESS)
    b200_runtime_capture(-1);
}

static void ended_capture(CUresult status) {
  if (b200_thread_self()->in_runtime == 0)
    b200_runtime_capture_ended((int)status);
}

#define CAPTURES(suffix)                                                                                                    \
  static CUresult observe_cuStreamBeginCapture_v2##suffix(CUstream hStream, CUstreamCaptureMode mode) {                     \
    bool begins = begins_capture();                                                                                         \
    CUresult status =                                                                                                       \
        counted(B200_SYM_cuStreamBeginCapture_v2##suffix, B200_REAL(cuda, cuStreamBeginCapture_v2##suffix)(hStream, mode)); \
    began_capture(begins, status);                                                                                          \
    return status;                                                                                                          \
  }                                                                                                                         \
  static CUresult observe_cuStreamBeginCaptureToGraph##suffix(                                                              \
      CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,             \
      size_t numDependencies, CUstreamCaptureMode mode) {                                                                   \
    bool begins = begins_capture();                                                                                         \
    CUresult status = counted(B200_SYM_cuStreamBeginCaptureToGraph##suffix,                                                 \
                              B200_REAL(cuda, cuStreamBeginCaptureToGraph##suffix)(hStream, hGraph, dependencies,           \
                                                                                   dependencyData, numDependencies, mode)); \
    began_capture(begins, status);                                                                                          \
    return status;                                                                                                          \
  }                                                                                                                         \
  static CUresult observe_cuStreamEndCapture##suffix(CUstream hStream, CUgraph *phGraph) {                                  \
    CUresult status =                                                                                                       \
        counted(B200_SYM_cuStreamEndCapture##suffix, B200_REAL(cuda, cuStreamEndCapture##suffix)(hStream, phGraph));        \
    ended_capture(status);                                                                                                  \
    return status;                                                                                                          \
  }
CAPTURES()
CAPTURES(_ptsz)
#undef CAPTURES

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
