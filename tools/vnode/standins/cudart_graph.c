/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime API: graphs and capture. */
#include <string.h>

#include "cudart.h"
#include "graph_common.h"

#define API(name) cuda##name
#define API_RESULT cudaError_t
#define API_DONE(status) vnode_cudart_status(status)
#define API_HANDLE_DONE(status) vnode_cudart_handle_status(status)
#define API_READY()                                                                                                         \
  do {                                                                                                                      \
    cudaError_t ready_ = vnode_cudart_start();                                                                              \
    if (ready_)                                                                                                             \
      return vnode_cudart_result(ready_);                                                                                   \
  } while (0)
#define API_ADDRESS void *
#define API_U64 unsigned long long
#define API_EDGE cudaGraphEdgeData
#define API_NODE_TYPE enum cudaGraphNodeType
#define API_NODE_PARAMS struct cudaGraphNodeParams
#define API_KERNEL struct cudaKernelNodeParams
#define API_HOST struct cudaHostNodeParams
#define API_HOST_FUNCTION cudaHostFn_t
#define API_FILL struct cudaMemsetParams
#define API_COPY struct cudaMemcpy3DParms
#define API_ALLOC struct cudaMemAllocNodeParams
#define API_INSTANTIATE cudaGraphInstantiateParams
#define INSTANTIATE_STREAM uploadStream
#define INSTANTIATE_NODE errNode_out
#define API_UPDATE cudaGraphExecUpdateResultInfo
#define API_CAPTURE_MODE enum cudaStreamCaptureMode
#define API_CAPTURE_STATUS enum cudaStreamCaptureStatus
#define API_MEMORY_ATTRIBUTE enum cudaGraphMemAttributeType

static enum vnode_status copy_from_params(const struct cudaMemcpy3DParms *params, struct vnode_copy *copy) {
  if (params->srcArray || params->dstArray)
    return VNODE_NOT_SUPPORTED;
  struct vnode_box_side to = {.base = params->dstPtr.ptr,
                              .pitch = params->dstPtr.pitch,
                              .rows_per_slice = params->dstPtr.ysize,
                              .x_bytes = params->dstPos.x,
                              .y = params->dstPos.y,
                              .z = params->dstPos.z};
  struct vnode_box_side from = {.base = params->srcPtr.ptr,
                                .pitch = params->srcPtr.pitch,
                                .rows_per_slice = params->srcPtr.ysize,
                                .x_bytes = params->srcPos.x,
                                .y = params->srcPos.y,
                                .z = params->srcPos.z};
  return (unsigned)params->kind > cudaMemcpyDefault
             ? VNODE_INVALID_VALUE
             : vnode_copy_of_box(&to, &from, params->extent.width, params->extent.height, params->extent.depth, copy);
}

static void copy_to_params(const struct vnode_copy *copy, struct cudaMemcpy3DParms *params) {
  *params = (struct cudaMemcpy3DParms){
      .srcPtr = {.ptr = (void *)(uintptr_t)copy->from,
                 .pitch = copy->from_pitch,
                 .xsize = copy->row_bytes,
                 .ysize = copy->rows},
      .dstPtr = {.ptr = copy->to, .pitch = copy->to_pitch, .xsize = copy->row_bytes, .ysize = copy->rows},
      .extent = {.width = copy->row_bytes, .height = copy->rows, .depth = 1},
      .kind = cudaMemcpyDefault};
}

static enum vnode_status alloc_device(const struct cudaMemAllocNodeParams *params, int *device) {
  *device = params->poolProps.location.id;
  if (params->poolProps.handleTypes != cudaMemHandleTypeNone)
    return VNODE_NOT_SUPPORTED;
  bool valid = params->poolProps.allocType == cudaMemAllocationTypePinned &&
               params->poolProps.location.type == cudaMemLocationTypeDevice &&
               (!params->accessDescCount || params->accessDescs);
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

static void alloc_to_params(void *base, size_t bytes, int device, struct cudaMemAllocNodeParams *params) {
  *params = (struct cudaMemAllocNodeParams){
      .poolProps = {.allocType = cudaMemAllocationTypePinned, .location = {.type = cudaMemLocationTypeDevice, .id = device}},
      .bytesize = bytes,
      .dptr = base};
}

#include "graph_api.inc"

/* ------------------------------------------------------------------------------------------- the runtime's own */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const struct cudaMemsetParams *params) {
  API_READY();
  return API_DONE(add_fill(node, graph, dependencies, count, params));
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const struct cudaMemcpy3DParms *params) {
  API_READY();
  return API_DONE(add_copy(node, graph, dependencies, count, params));
}

cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const struct cudaMemcpy3DParms *params) {
  API_READY();
  return API_DONE(exec ? set_copy(exec, node, params) : VNODE_INVALID_VALUE);
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const struct cudaMemsetParams *params) {
  API_READY();
  return API_DONE(exec ? set_fill(exec, node, params) : VNODE_INVALID_VALUE);
}

static struct vnode_copy row(void *to, const void *from, size_t bytes) {
  return (struct vnode_copy){.to = to, .from = from, .to_pitch = bytes, .from_pitch = bytes, .row_bytes = bytes, .rows = 1};
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                     size_t count, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  API_READY();
  if (!bytes || (unsigned)kind > cudaMemcpyDefault)
    return API_DONE(VNODE_INVALID_VALUE);
  struct vnode_copy copy = row(to, from, bytes);
  return API_DONE(
      vnode_node_add(graph_of(graph), const_nodes_of(dependencies), count, vnode_submit_copy_node, &copy, nodes_of(node)));
}

static enum vnode_status set_row(cudaGraphExec_t exec, cudaGraphNode_t node, void *to, const void *from, size_t bytes) {
  if (!bytes)
    return VNODE_INVALID_VALUE;
  struct vnode_copy copy = row(to, from, bytes);
  return vnode_node_set(exec_of(exec), node_of(node), vnode_submit_copy_node, &copy);
}

cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void *to, const void *from, size_t bytes,
                                           enum cudaMemcpyKind kind) {
  API_READY();
  return API_DONE((unsigned)kind > cudaMemcpyDefault ? VNODE_INVALID_VALUE : set_row(NULL, node, to, from, bytes));
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void *to, const void *from,
                                               size_t bytes, enum cudaMemcpyKind kind) {
  API_READY();
  return API_DONE(!exec || (unsigned)kind > cudaMemcpyDefault ? VNODE_INVALID_VALUE : set_row(exec, node, to, from, bytes));
}

cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void *address) {
  API_READY();
  size_t bytes;
  int device;
  bool valid = address && vnode_node_is(node_of(node)) && vnode_node_type(node_of(node)) == VNODE_NODE_FREE;
  return API_DONE(valid && vnode_node_memory(node_of(node), address, &bytes, &device) ? VNODE_OK : VNODE_INVALID_VALUE);
}

/* Conditional nodes hold kernels that decide; without kernels nothing could decide. */
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph, unsigned int value,
                                             unsigned int flags) {
  API_READY();
  (void)value, (void)flags;
  return API_DONE(handle && vnode_graph_is(graph_of(graph)) ? VNODE_NOT_SUPPORTED : VNODE_INVALID_VALUE);
}
