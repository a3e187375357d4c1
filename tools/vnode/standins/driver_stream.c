/* SPDX-License-Identifier: Apache-2.0 */
/* Driver API: streams, events, host functions, memory operations. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "graph_common.h"

/* ------------------------------------------------------------------------------------------- streams */

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
  VNODE_DRIVER_READY();
  if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_cuda_status(vnode_stream_create(flags, priority, (struct vnode_stream **)stream));
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  VNODE_DRIVER_READY();
  return vnode_handle_status(vnode_stream_destroy(vnode_stream_of(stream)));
}

CUresult cuStreamSynchronize(CUstream stream) {
  VNODE_DRIVER_READY();
  return vnode_handle_status(vnode_stream_synchronize(vnode_stream_of(stream)));
}

CUresult cuStreamQuery(CUstream stream) {
  VNODE_DRIVER_READY();
  if (vnode_stream_id(vnode_stream_of(stream)) < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  enum vnode_status status = vnode_capture_check_stream(vnode_stream_of(stream));
  if (status)
    return vnode_cuda_status(status);
  return vnode_stream_idle(vnode_stream_of(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags) {
  VNODE_DRIVER_READY();
  if (!flags)
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_stream_info(vnode_stream_of(stream), flags, NULL, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority) {
  VNODE_DRIVER_READY();
  if (!priority)
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_stream_info(vnode_stream_of(stream), NULL, priority, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
  VNODE_DRIVER_READY();
  int found = vnode_stream_id(vnode_stream_of(stream));
  if (!id)
    return CUDA_ERROR_INVALID_VALUE;
  if (found < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  *id = (unsigned long long)found;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  VNODE_DRIVER_READY();
  int device = 0;
  if (!context)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_stream_info(vnode_stream_of(stream), NULL, NULL, &device))
    return CUDA_ERROR_INVALID_HANDLE;
  return cuDevicePrimaryCtxRetain(context, device);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  VNODE_DRIVER_READY();
  if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  struct vnode_stream *on = vnode_stream_of(stream);
  bool is_node = flags && vnode_stream_id(on) >= 0 && vnode_stream_is_capturing(on);
  return vnode_handle_status(is_node ? vnode_capture_event(on, vnode_event_of(event), false)
                                     : vnode_event_wait(on, vnode_event_of(event)));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  VNODE_DRIVER_READY();
  if (!function)
    return CUDA_ERROR_INVALID_VALUE;
  const struct vnode_host_call call = {.function = function, .data = data};
  return vnode_handle_status(vnode_host_call_submit(vnode_stream_of(stream), &call));
}

/* Values are written and waited for atomically and order what lies around them: they are no accesses that could race. */
struct value {
  uint32_t *at;
  uint32_t value;
  unsigned comparison; /* of a wait: CU_STREAM_WAIT_VALUE_* */
};

static void run_value_write(void *args) {
  const struct value *value = args;
  __atomic_store_n(value->at, value->value, __ATOMIC_SEQ_CST);
}

static bool value_is_there(const struct value *value) {
  uint32_t now = __atomic_load_n(value->at, __ATOMIC_SEQ_CST);
  switch (value->comparison) {
  case CU_STREAM_WAIT_VALUE_GEQ:
    return (int32_t)(now - value->value) >= 0;
  case CU_STREAM_WAIT_VALUE_EQ:
    return now == value->value;
  case CU_STREAM_WAIT_VALUE_AND:
    return now & value->value;
  default:
    return ~(now | value->value);
  }
}

static void run_value_wait(void *args) {
  while (!value_is_there(args))
    vnode_pause(20000);
}

static CUresult submit_value(CUstream stream, const char *name, vnode_work work, const struct value *value, unsigned flags) {
  const struct vnode_op op = {.name = name, .work = work, .args = value, .args_bytes = sizeof *value, .flags = flags};
  return vnode_handle_status(vnode_op_submit(vnode_stream_of(stream), &op));
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
  VNODE_DRIVER_READY();
  if (at % sizeof value || flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ||
      !vnode_is_known(vnode_pointer(at), sizeof value))
    return CUDA_ERROR_INVALID_VALUE;
  struct value write = {.at = vnode_pointer(at), .value = value};
  return submit_value(stream, "write value", run_value_write, &write, 0);
}

/* In eager order the stream cannot wait for a later call of this thread, so a value that is not there yet is refused:
   waiting would hang a correct program. */
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
  VNODE_DRIVER_READY();
  if (at % sizeof value || !vnode_is_known(vnode_pointer(at), sizeof value))
    return CUDA_ERROR_INVALID_VALUE;
  if (vnode_stream_id(vnode_stream_of(stream)) < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  struct value wait = {.at = vnode_pointer(at), .value = value, .comparison = flags & 3u};
  if (vnode_config()->order != VNODE_ORDER_EAGER ||
      (value_is_there(&wait) && !vnode_stream_is_capturing(vnode_stream_of(stream))))
    return submit_value(stream, "wait value", run_value_wait, &wait, VNODE_OP_WAITS);
  vnode_say_once("cuStreamWaitValue32",
                 "cuStreamWaitValue32 on a value that is not written yet is not supported in eager order");
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* ------------------------------------------------------------------------------------------- events */

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  VNODE_DRIVER_READY();
  static const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (!event || flags & ~known || (flags & (CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)) == CU_EVENT_INTERPROCESS)
    return CUDA_ERROR_INVALID_VALUE;
  return vnode_cuda_status(vnode_event_create(flags, (struct vnode_event **)event));
}

CUresult cuEventDestroy_v2(CUevent event) {
  VNODE_DRIVER_READY();
  return vnode_handle_status(vnode_event_destroy(vnode_event_of(event)));
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  VNODE_DRIVER_READY();
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags) /* a node; INVALID_VALUE outside of captures */
    return vnode_cuda_status(vnode_capture_event(vnode_stream_of(stream), vnode_event_of(event), true));
  return vnode_handle_status(vnode_event_record(vnode_event_of(event), vnode_stream_of(stream)));
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}

CUresult cuEventQuery(CUevent event) {
  VNODE_DRIVER_READY();
  if (!vnode_event_is(vnode_event_of(event)))
    return CUDA_ERROR_INVALID_HANDLE;
  enum vnode_status status = vnode_capture_check_event(vnode_event_of(event));
  if (status)
    return vnode_cuda_status(status);
  return vnode_event_done(vnode_event_of(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  VNODE_DRIVER_READY();
  return vnode_handle_status(vnode_event_synchronize(vnode_event_of(event)));
}

/* Also in eager order not before the device's modelled time has come. This question is what a monitor asks that must not
   disturb: it neither makes work run nor moves the clock, as polling does. */
CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
  VNODE_DRIVER_READY();
  if (!ms)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult status = vnode_handle_status(vnode_event_elapsed(vnode_event_of(start), vnode_event_of(end), ms));
  bool passed =
      !vnode_host_drives() || (vnode_event_passed(vnode_event_of(start)) && vnode_event_passed(vnode_event_of(end)));
  return status == CUDA_SUCCESS && !passed ? CUDA_ERROR_NOT_READY : status;
}

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end);
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(ms, start, end);
}
