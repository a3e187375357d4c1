/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime API: streams, events, host functions, and the answers about graph capture, which is not there yet. */
#include "cudart.h"

static struct vnode_stream *stream_of(cudaStream_t stream) {
  return (struct vnode_stream *)stream;
}

static struct vnode_event *event_of(cudaEvent_t event) {
  return (struct vnode_event *)event;
}

/* ------------------------------------------------------------------------------------------- streams */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
  if (!stream || flags & ~(unsigned)cudaStreamNonBlocking)
    return vnode_cudart_result(cudaErrorInvalidValue);
  cudaError_t error = vnode_cudart_start();
  if (error)
    return vnode_cudart_result(error);
  int within = priority < -5 ? -5 : priority > 0 ? 0 : priority; /* out of range is clamped (runtime API reference) */
  return vnode_cudart_status(vnode_stream_create(flags, within, (struct vnode_stream **)stream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return vnode_cudart_handle_status(vnode_stream_destroy(stream_of(stream)));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return vnode_cudart_handle_status(vnode_stream_synchronize(stream_of(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (vnode_stream_id(stream_of(stream)) < 0)
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  return vnode_stream_idle(stream_of(stream)) ? cudaSuccess : cudaErrorNotReady;
}

static cudaError_t stream_info(cudaStream_t stream, const void *out, unsigned *flags, int *priority, int *device) {
  if (!out)
    return vnode_cudart_result(cudaErrorInvalidValue);
  bool found = vnode_stream_info(stream_of(stream), flags, priority, device);
  return vnode_cudart_result(found ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags) {
  return stream_info(stream, flags, flags, NULL, NULL);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  return stream_info(stream, priority, NULL, priority, NULL);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
  return stream_info(stream, device, NULL, NULL, device);
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
  int found = vnode_stream_id(stream_of(stream));
  if (!id || found < 0)
    return vnode_cudart_result(id ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
  *id = (unsigned long long)found;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (flags & ~(unsigned)cudaEventWaitExternal)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return vnode_cudart_handle_status(vnode_event_wait(stream_of(stream), event_of(event)));
}

struct host_call {
  cudaHostFn_t function;
  cudaStreamCallback_t callback;
  cudaStream_t stream;
  void *data;
};

static void run_host_call(void *args) {
  const struct host_call *call = args;
  if (call->function)
    call->function(call->data);
  else
    call->callback(call->stream, cudaSuccess, call->data);
}

/* The program's function may wait for anything. */
static cudaError_t submit_host_call(cudaStream_t stream, const char *name, const struct host_call *call) {
  const struct vnode_op op = {
      .name = name, .work = run_host_call, .args = call, .args_bytes = sizeof *call, .flags = VNODE_OP_WAITS};
  return vnode_cudart_handle_status(vnode_op_submit(stream_of(stream), &op));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  if (!function)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return submit_host_call(stream, "host function", &(struct host_call){.function = function, .data = data});
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned int flags) {
  if (!callback || flags)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return submit_host_call(stream, "stream callback",
                          &(struct host_call){.callback = callback, .stream = stream, .data = data});
}

/* ------------------------------------------------------------------------------------------- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  static const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (!event || flags & ~known || (flags & (cudaEventInterprocess | cudaEventDisableTiming)) == cudaEventInterprocess)
    return vnode_cudart_result(cudaErrorInvalidValue);
  cudaError_t error = vnode_cudart_start();
  if (error)
    return vnode_cudart_result(error);
  return vnode_cudart_status(vnode_event_create(flags, (struct vnode_event **)event));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return vnode_cudart_handle_status(vnode_event_destroy(event_of(event)));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  if (flags & ~(unsigned)cudaEventRecordExternal)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return vnode_cudart_handle_status(vnode_event_record(event_of(event), stream_of(stream)));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!vnode_event_is(event_of(event)))
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  return vnode_event_done(event_of(event)) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return vnode_cudart_handle_status(vnode_event_synchronize(event_of(event)));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  if (!ms)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return vnode_cudart_handle_status(vnode_event_elapsed(event_of(start), event_of(end), ms));
}

/* ------------------------------------------------------------------------------------------- capture */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  static _Thread_local enum cudaStreamCaptureMode own = cudaStreamCaptureModeGlobal;
  if (!mode || (unsigned)*mode > cudaStreamCaptureModeRelaxed)
    return vnode_cudart_result(cudaErrorInvalidValue);
  enum cudaStreamCaptureMode previous = own;
  own = *mode;
  *mode = previous;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  if (!status)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (vnode_stream_id(stream_of(stream)) < 0)
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

/* Of the outputs only the status is defined for a stream that does not capture; the rest is cleared all the same. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  if (id)
    *id = 0;
  if (graph)
    *graph = NULL;
  if (dependencies)
    *dependencies = NULL;
  if (edges)
    *edges = NULL;
  if (count)
    *count = 0;
  return cudaStreamIsCapturing(stream, status);
}

static cudaError_t refuse_capture(void) {
  vnode_say_once("capture", "CUDA graph capture is not supported by the virtual node; cudaErrorStreamCaptureUnsupported");
  return vnode_cudart_result(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  (void)stream;
  (void)mode;
  return refuse_capture();
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                          const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode) {
  (void)stream;
  (void)graph;
  (void)dependencies;
  (void)edges;
  (void)count;
  (void)mode;
  return refuse_capture();
}

/* No capture can have begun. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  (void)stream;
  if (graph)
    *graph = NULL;
  return vnode_cudart_result(cudaErrorIllegalState);
}
