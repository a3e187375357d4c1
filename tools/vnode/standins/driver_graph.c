/* SPDX-License-Identifier: Apache-2.0 */
/* Driver API: graphs and capture. */
#include <string.h>

#include "driver.h"
#include "graph_common.h"

#define API(name) cu##name
#define API_RESULT CUresult
#define API_DONE(status) vnode_cuda_status(status)
#define API_HANDLE_DONE(status) vnode_handle_status(status)
#define API_READY() VNODE_DRIVER_READY()
#define API_ADDRESS CUdeviceptr
#define API_U64 cuuint64_t
#define API_EDGE CUgraphEdgeData
#define API_NODE_TYPE CUgraphNodeType
#define API_NODE_PARAMS CUgraphNodeParams
#define API_KERNEL CUDA_KERNEL_NODE_PARAMS
#define API_HOST CUDA_HOST_NODE_PARAMS
#define API_HOST_FUNCTION CUhostFn
#define API_FILL CUDA_MEMSET_NODE_PARAMS
#define API_COPY CUDA_MEMCPY3D
#define API_ALLOC CUDA_MEM_ALLOC_NODE_PARAMS
#define API_INSTANTIATE CUDA_GRAPH_INSTANTIATE_PARAMS
#define INSTANTIATE_STREAM hUploadStream
#define INSTANTIATE_NODE hErrNode_out
#define API_UPDATE CUgraphExecUpdateResultInfo
#define API_CAPTURE_MODE CUstreamCaptureMode
#define API_CAPTURE_STATUS CUstreamCaptureStatus
#define API_MEMORY_ATTRIBUTE CUgraphMem_attribute

static void *host_or_device(CUmemorytype type, const void *host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? (void *)(uintptr_t)host : vnode_pointer(device);
}

static enum vnode_status copy_from_params(const CUDA_MEMCPY3D *params, struct vnode_copy *copy) {
  if (params->srcMemoryType == CU_MEMORYTYPE_ARRAY || params->dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return VNODE_NOT_SUPPORTED;
  struct vnode_box_side to = {.base = host_or_device(params->dstMemoryType, params->dstHost, params->dstDevice),
                              .pitch = params->dstPitch,
                              .rows_per_slice = params->dstHeight,
                              .x_bytes = params->dstXInBytes,
                              .y = params->dstY,
                              .z = params->dstZ};
  struct vnode_box_side from = {.base = host_or_device(params->srcMemoryType, params->srcHost, params->srcDevice),
                                .pitch = params->srcPitch,
                                .rows_per_slice = params->srcHeight,
                                .x_bytes = params->srcXInBytes,
                                .y = params->srcY,
                                .z = params->srcZ};
  return vnode_copy_of_box(&to, &from, params->WidthInBytes, params->Height, params->Depth, copy);
}

static void copy_to_params(const struct vnode_copy *copy, CUDA_MEMCPY3D *params) {
  *params = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                            .srcDevice = (CUdeviceptr)(uintptr_t)copy->from,
                            .srcPitch = copy->from_pitch,
                            .srcHeight = copy->rows,
                            .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                            .dstDevice = (CUdeviceptr)(uintptr_t)copy->to,
                            .dstPitch = copy->to_pitch,
                            .dstHeight = copy->rows,
                            .WidthInBytes = copy->row_bytes,
                            .Height = copy->rows,
                            .Depth = 1};
}

static enum vnode_status alloc_device(const CUDA_MEM_ALLOC_NODE_PARAMS *params, int *device) {
  *device = params->poolProps.location.id;
  if (params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return VNODE_NOT_SUPPORTED;
  bool valid = params->poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
               params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
               (!params->accessDescCount || params->accessDescs);
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

static void alloc_to_params(void *base, size_t bytes, int device, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
  *params = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
                                         .bytesize = bytes,
                                         .dptr = (CUdeviceptr)(uintptr_t)base};
}

#include "graph_api.inc"

/* ------------------------------------------------------------------------------------------- the driver's own */

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
  VNODE_DRIVER_READY();
  (void)context;
  return API_DONE(add_fill(node, graph, dependencies, count, params));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMCPY3D *params, CUcontext context) {
  VNODE_DRIVER_READY();
  (void)context;
  return API_DONE(add_copy(node, graph, dependencies, count, params));
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context) {
  VNODE_DRIVER_READY();
  (void)context;
  return API_DONE(exec ? set_copy(exec, node, params) : VNODE_INVALID_VALUE);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext context) {
  VNODE_DRIVER_READY();
  (void)context;
  return API_DONE(exec ? set_fill(exec, node, params) : VNODE_INVALID_VALUE);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
  VNODE_DRIVER_READY();
  void *base;
  size_t bytes;
  int device;
  if (!address || !vnode_node_is(node_of(node)) || vnode_node_type(node_of(node)) != VNODE_NODE_FREE)
    return CUDA_ERROR_INVALID_VALUE;
  vnode_node_memory(node_of(node), &base, &bytes, &device);
  *address = (CUdeviceptr)(uintptr_t)base;
  return CUDA_SUCCESS;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                        unsigned int value, unsigned int flags) {
  VNODE_DRIVER_READY();
  (void)context, (void)value, (void)flags;
  return handle && vnode_graph_is(graph_of(graph)) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------------- older interfaces */

/* The plain names, which cuda.h gives to the newest interfaces. */
#undef cuGraphInstantiate
#undef cuGraphGetEdges
#undef cuGraphNodeGetDependencies
#undef cuGraphNodeGetDependentNodes
#undef cuGraphAddDependencies
#undef cuGraphRemoveDependencies
#undef cuGraphAddNode
#undef cuGraphExecUpdate
#undef cuStreamBeginCapture
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t log_bytes);
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t log_bytes) {
  VNODE_DRIVER_READY();
  struct vnode_graph_node *where = NULL;
  enum vnode_status status = vnode_graph_instantiate(graph_of(graph), 0, execs_of(exec), &where);
  if (bad)
    *bad = (CUgraphNode)(void *)where;
  if (log && log_bytes)
    *log = 0;
  return vnode_cuda_status(status);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t log_bytes);
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t log_bytes) {
  return cuGraphInstantiate(exec, graph, bad, log, log_bytes);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count);
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
  return cuGraphNodeGetDependencies_v2(node, dependencies, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *dependents, size_t *count);
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *dependents, size_t *count) {
  return cuGraphNodeGetDependentNodes_v2(node, dependents, NULL, count);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
  return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params) {
  return cuGraphAddNode_v2(node, graph, dependencies, NULL, count, params);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *bad, CUgraphExecUpdateResult *result);
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *bad, CUgraphExecUpdateResult *result) {
  CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  CUresult done = cuGraphExecUpdate_v2(exec, graph, &info);
  if (bad)
    *bad = info.errorNode;
  if (result)
    *result = info.result;
  return done;
}

CUresult cuStreamBeginCapture(CUstream stream);
CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id);
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count, unsigned int flags);
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count, unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(stream, dependencies, NULL, count, flags);
}
