/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runtime API of CUDA 12: the binary interfaces that CUDA 13 took away. Each is the newer function with the arguments that
 * the older one lacks at their defaults (runtime API reference of CUDA 12.8).
 */
#include "cudart.h"

/* The plain names, which cuda12_runtime.h gives to the newer interfaces. */
#undef cudaStreamGetCaptureInfo
#undef cudaStreamUpdateCaptureDependencies
#undef cudaGraphAddDependencies
#undef cudaGraphRemoveDependencies
#undef cudaGraphAddNode
#undef cudaGraphGetEdges
#undef cudaGraphNodeGetDependencies
#undef cudaGraphNodeGetDependentNodes
#undef cudaMemAdvise
#undef cudaMemPrefetchAsync

/* ------------------------------------------------------------------------------------------- capture and graphs */

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}

/* The first interface: declared for the runtime's own sources only. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *dependencies, size_t count,
                                                unsigned int flags) {
  return cudaStreamUpdateCaptureDependencies_v2(stream, dependencies, NULL, count, flags);
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     size_t count) {
  return cudaGraphAddDependencies_v2(graph, from, to, NULL, count);
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                        size_t count) {
  return cudaGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count,
                             struct cudaGraphNodeParams *parameters) {
  return cudaGraphAddNode_v2(node, graph, dependencies, NULL, count, parameters);
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count) {
  return cudaGraphGetEdges_v2(graph, from, to, NULL, count);
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, size_t *count) {
  return cudaGraphNodeGetDependencies_v2(node, dependencies, NULL, count);
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *dependents, size_t *count) {
  return cudaGraphNodeGetDependentNodes_v2(node, dependents, NULL, count);
}

/* ------------------------------------------------------------------------------------------- managed memory, events */

/* Devices are named by ordinal, the host by cudaCpuDeviceId. */
static struct cudaMemLocation location_of(int device) {
  bool host = device == cudaCpuDeviceId;
  return (struct cudaMemLocation){.type = host ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice,
                                  .id = host ? 0 : device};
}

cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise_v2(pointer, bytes, advice, location_of(device));
}

cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, int device, cudaStream_t stream) {
  return cudaMemPrefetchAsync_v2(pointer, bytes, location_of(device), 0, stream);
}

cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return cudaEventElapsedTime(ms, start, end);
}
