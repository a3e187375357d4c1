/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime API: streams, events, host functions. */
#include "cudart.h"
#include "graph_common.h"

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
  enum vnode_status status = vnode_capture_check_stream(stream_of(stream));
  if (status)
    return vnode_cudart_status(status);
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
  bool is_node = flags && vnode_stream_id(stream_of(stream)) >= 0 && vnode_stream_is_capturing(stream_of(stream));
  return vnode_cudart_handle_status(is_node ? vnode_capture_event(stream_of(stream), event_of(event), false)
                                            : vnode_event_wait(stream_of(stream), event_of(event)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  if (!function)
    return vnode_cudart_result(cudaErrorInvalidValue);
  const struct vnode_host_call call = {.function = function, .data = data};
  return vnode_cudart_handle_status(vnode_host_call_submit(stream_of(stream), &call));
}

struct callback {
  cudaStreamCallback_t function;
  cudaStream_t stream;
  void *data;
};

static void run_callback(void *args) {
  const struct callback *callback = args;
  callback->function(callback->stream, cudaSuccess, callback->data);
}

/* Not for graphs (runtime API reference). The program's function may wait for anything. */
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned int flags) {
  if (!function || flags)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (vnode_stream_id(stream_of(stream)) < 0)
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  enum vnode_status status = vnode_capture_refuse(stream_of(stream));
  const struct callback callback = {.function = function, .stream = stream, .data = data};
  const struct vnode_op op = {.name = "stream callback",
                              .work = run_callback,
                              .args = &callback,
                              .args_bytes = sizeof callback,
                              .flags = VNODE_OP_WAITS};
  return vnode_cudart_status(status ? status : vnode_op_submit(stream_of(stream), &op));
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
  if (flags) /* a node; INVALID_VALUE outside of captures */
    return vnode_cudart_status(vnode_capture_event(stream_of(stream), event_of(event), true));
  return vnode_cudart_handle_status(vnode_event_record(event_of(event), stream_of(stream)));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!vnode_event_is(event_of(event)))
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  enum vnode_status status = vnode_capture_check_event(event_of(event));
  if (status)
    return vnode_cudart_status(status);
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
