/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA runtime. Device memory is accounted where it is granted, in the driver (entry_driver.c); the handlers here step in
   only when a runtime's driver calls do not come by, so that nothing is counted twice and nothing is missed. */
#include <cuda_runtime_api.h>

#include "interpose/entry.h"

/* cudaGetDriverEntryPoint is deprecated for callers; those that still call it are the ones to be seen. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Declared by the compiler's own headers only. */
extern cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
                                      cudaStream_t stream);

/* Exported by the runtime for programs that are compiled for per-thread default streams; declared nowhere. */
extern __typeof__(cudaEventRecord) cudaEventRecord_ptsz;
extern __typeof__(cudaEventRecordWithFlags) cudaEventRecordWithFlags_ptsz;
extern __typeof__(cudaStreamWaitEvent) cudaStreamWaitEvent_ptsz;
extern __typeof__(cudaStreamSynchronize) cudaStreamSynchronize_ptsz;

static cudaError_t allocated(struct b200_thread *self, enum b200_symbol symbol, cudaError_t status, void *const *pointer,
                             size_t bytes, uint64_t events_before, enum b200_owner owner) {
  b200_count(self, symbol, status != cudaSuccess, bytes);
  b200_memory_status((int)status);
  if (self->driver_events != events_before)
    return status;
  if (status == cudaSuccess && pointer && *pointer)
    b200_runtime_alloc(owner, (uint64_t)(uintptr_t)*pointer, bytes);
  else if (status == cudaErrorMemoryAllocation)
    b200_runtime_refused(owner, bytes, symbol == B200_SYM_cudaMallocAsync ? B200_OOM_STREAM : B200_OOM_ALLOC);
  return status;
}

static cudaError_t observe_cudaMalloc(void **devPtr, size_t size) {
  struct b200_thread *self = b200_thread_self();
  uint64_t events = self->driver_events;
  enum b200_owner owner = B200_CALLER();
  cudaError_t status = B200_REAL(cudart, cudaMalloc)(devPtr, size);
  return allocated(self, B200_SYM_cudaMalloc, status, devPtr, size, events, owner);
}

static cudaError_t observe_cudaMallocAsync(void **devPtr, size_t size, cudaStream_t stream) {
  struct b200_thread *self = b200_thread_self();
  uint64_t events = self->driver_events;
  enum b200_owner owner = B200_CALLER();
  cudaError_t status = B200_REAL(cudart, cudaMallocAsync)(devPtr, size, stream);
  return allocated(self, B200_SYM_cudaMallocAsync, status, devPtr, size, events, owner);
}

static cudaError_t freed(struct b200_thread *self, enum b200_symbol symbol, cudaError_t status, const void *pointer,
                         uint64_t events_before) {
  b200_count(self, symbol, status != cudaSuccess, 0);
  b200_memory_status((int)status);
  struct b200_ledger_undo undo;
  if (self->driver_events == events_before && status == cudaSuccess && pointer)
    b200_runtime_free((uint64_t)(uintptr_t)pointer, &undo);
  return status;
}

static cudaError_t observe_cudaFree(void *devPtr) {
  struct b200_thread *self = b200_thread_self();
  uint64_t events = self->driver_events;
  self->frees_lazily = !self->shared && b200_is_pytorch_cache(__builtin_return_address(0));
  cudaError_t status = B200_REAL(cudart, cudaFree)(devPtr);
  self->frees_lazily = false;
  return freed(self, B200_SYM_cudaFree, status, devPtr, events);
}

static cudaError_t observe_cudaFreeAsync(void *devPtr, cudaStream_t stream) {
  struct b200_thread *self = b200_thread_self();
  uint64_t events = self->driver_events;
  cudaError_t status = B200_REAL(cudart, cudaFreeAsync)(devPtr, stream);
  return freed(self, B200_SYM_cudaFreeAsync, status, devPtr, events);
}

static cudaError_t observe_cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  struct b200_thread *self = b200_thread_self();
  self->in_runtime++;
  b200_runtime_capture(+1);
  cudaError_t status = B200_REAL(cudart, cudaStreamBeginCapture)(stream, mode);
  self->in_runtime--;
  b200_count(b200_thread_self(), B200_SYM_cudaStreamBeginCapture, status != cudaSuccess, 0);
  if (status != cudaSuccess)
    b200_runtime_capture(-1);
  return status;
}

static cudaError_t observe_cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                         const cudaGraphNode_t *dependencies,
                                                         const cudaGraphEdgeData *dependencyData, size_t numDependencies,
                                                         enum cudaStreamCaptureMode mode) {
  struct b200_thread *self = b200_thread_self();
  self->in_runtime++;
  b200_runtime_capture(+1);
  cudaError_t status =
      B200_REAL(cudart, cudaStreamBeginCaptureToGraph)(stream, graph, dependencies, dependencyData, numDependencies, mode);
  self->in_runtime--;
  b200_count(b200_thread_self(), B200_SYM_cudaStreamBeginCaptureToGraph, status != cudaSuccess, 0);
  if (status != cudaSuccess)
    b200_runtime_capture(-1);
  return status;
}

static cudaError_t observe_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph) {
  struct b200_thread *self = b200_thread_self();
  self->in_runtime++;
  cudaError_t status = B200_REAL(cudart, cudaStreamEndCapture)(stream, pGraph);
  self->in_runtime--;
  b200_count(b200_thread_self(), B200_SYM_cudaStreamEndCapture, status != cudaSuccess, 0);
  b200_runtime_capture_ended((int)status);
  return status;
}

/* ------------------------------------------------------------------------------- what orders streams (timing) */

static cudaError_t counted(enum b200_symbol symbol, cudaError_t status) {
  b200_memory_status((int)status);
  b200_count(b200_thread_self(), symbol, status != cudaSuccess, 0);
  return status;
}

/* A record that fails leaves the event as it was; what is remembered of it then depends on more than it should, never on
   less. */
#define ORDERS(suffix, per_thread)                                                                                          \
  static cudaError_t observe_cudaEventRecord##suffix(cudaEvent_t event, cudaStream_t stream) {                              \
    b200_timing_record(event, stream, per_thread);                                                                          \
    return counted(B200_SYM_cudaEventRecord##suffix, B200_REAL(cudart, cudaEventRecord##suffix)(event, stream));            \
  }                                                                                                                         \
  static cudaError_t observe_cudaEventRecordWithFlags##suffix(cudaEvent_t event, cudaStream_t stream, unsigned int flags) { \
    b200_timing_record(event, stream, per_thread);                                                                          \
    return counted(B200_SYM_cudaEventRecordWithFlags##suffix,                                                               \
                   B200_REAL(cudart, cudaEventRecordWithFlags##suffix)(event, stream, flags));                              \
  }                                                                                                                         \
  static cudaError_t observe_cudaStreamWaitEvent##suffix(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {      \
    b200_timing_wait(stream, event, per_thread);                                                                            \
    return counted(B200_SYM_cudaStreamWaitEvent##suffix,                                                                    \
                   B200_REAL(cudart, cudaStreamWaitEvent##suffix)(stream, event, flags));                                   \
  }                                                                                                                         \
  static cudaError_t observe_cudaStreamSynchronize##suffix(cudaStream_t stream) {                                           \
    struct b200_host_wait wait;                                                                                             \
    b200_timing_host_begin(&wait, B200_HOST_STREAM, stream, per_thread);                                                    \
    cudaError_t status =                                                                                                    \
        counted(B200_SYM_cudaStreamSynchronize##suffix, B200_REAL(cudart, cudaStreamSynchronize##suffix)(stream));          \
    b200_timing_host_end(&wait, status != cudaSuccess);                                                                     \
    return status;                                                                                                          \
  }
ORDERS(, false)
ORDERS(_ptsz, true)
#undef ORDERS

static cudaError_t observe_cudaEventDestroy(cudaEvent_t event) {
  b200_timing_event_gone(event);
  return counted(B200_SYM_cudaEventDestroy, B200_REAL(cudart, cudaEventDestroy)(event));
}

static cudaError_t observe_cudaEventSynchronize(cudaEvent_t event) {
  struct b200_host_wait wait;
  b200_timing_host_begin(&wait, B200_HOST_EVENT, event, false);
  cudaError_t status = counted(B200_SYM_cudaEventSynchronize, B200_REAL(cudart, cudaEventSynchronize)(event));
  b200_timing_host_end(&wait, status != cudaSuccess);
  return status;
}

static cudaError_t observe_cudaDeviceSynchronize(void) {
  struct b200_host_wait wait;
  struct b200_memory_sync sync;
  b200_timing_host_begin(&wait, B200_HOST_DEVICE, NULL, false);
  b200_memory_sync_begin(&sync, 0);
  cudaError_t status = counted(B200_SYM_cudaDeviceSynchronize, B200_REAL(cudart, cudaDeviceSynchronize)());
  b200_memory_sync_end(&sync, (int)status);
  b200_timing_host_end(&wait, status != cudaSuccess);
  return status;
}

static cudaError_t observe_cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  struct b200_span span = {0};
  b200_timing_graph_begin(&span, stream);
  cudaError_t status = counted(B200_SYM_cudaGraphLaunch, B200_REAL(cudart, cudaGraphLaunch)(graphExec, stream));
  b200_timing_graph_end(&span, status != cudaSuccess);
  return status;
}

static cudaError_t observe_cudaGetDriverEntryPoint(const char *symbol, void **funcPtr, unsigned long long flags,
                                                   enum cudaDriverEntryPointQueryResult *driverStatus) {
  cudaError_t status = B200_REAL(cudart, cudaGetDriverEntryPoint)(symbol, funcPtr, flags, driverStatus);
  b200_count(b200_thread_self(), B200_SYM_cudaGetDriverEntryPoint, status != cudaSuccess, 0);
  if (status == cudaSuccess)
    b200_driver_substitute(funcPtr);
  return status;
}

static cudaError_t observe_cudaGetDriverEntryPointByVersion(const char *symbol, void **funcPtr, unsigned int cudaVersion,
                                                            unsigned long long flags,
                                                            enum cudaDriverEntryPointQueryResult *driverStatus) {
  cudaError_t status =
      B200_REAL(cudart, cudaGetDriverEntryPointByVersion)(symbol, funcPtr, cudaVersion, flags, driverStatus);
  b200_count(b200_thread_self(), B200_SYM_cudaGetDriverEntryPointByVersion, status != cudaSuccess, 0);
  if (status == cudaSuccess)
    b200_driver_substitute(funcPtr);
  return status;
}

#define B200_CUDART(...) B200_ENTRY(cudart, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_cudart[] = {
#define B200_CUDART(...) B200_SLOT_ROW(cudart, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_cudart = sizeof b200_slots_cudart / sizeof *b200_slots_cudart;
