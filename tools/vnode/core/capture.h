/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stream.c asks capture.c (the rules of graph capture) before it does anything with a stream or event. All are no more
 * than a load or two while nothing captures. pre: streams are resolved, handles are live.
 */
#ifndef VNODE_CORE_CAPTURE_H
#define VNODE_CORE_CAPTURE_H

#include "engine.h"

extern _Atomic int vnode_capture_count; /* sequences that have begun and not ended */

static inline bool vnode_capture_any(void) {
  return atomic_load_explicit(&vnode_capture_count, memory_order_relaxed) != 0;
}

/* True when a use of the stream is the capture's business: it captures, or it is a legacy stream while something does. */
static inline bool vnode_capture_concerns(const struct vnode_stream *stream) {
  return atomic_load_explicit(&stream->capture, memory_order_acquire) || (stream->legacy && vnode_capture_any());
}

/* Each returns true when it has dealt with the call: *status is the answer. False: go on as usual. */

/* The operation becomes a node. With an error its args are not dropped: that is the caller's. */
bool vnode_capture_submit(struct vnode_stream *stream, const struct vnode_op *op, enum vnode_status *status);
bool vnode_capture_record(struct vnode_event *event, struct vnode_stream *stream, enum vnode_status *status);
bool vnode_capture_wait(struct vnode_stream *stream, struct vnode_event *event, enum vnode_status *status);

/* OK, or why the host may not wait for it or ask. */
enum vnode_status vnode_capture_synchronize_stream(struct vnode_stream *stream);
enum vnode_status vnode_capture_synchronize_event(struct vnode_event *event);
enum vnode_status vnode_capture_synchronize_device(int device);

/* The handle is about to be destroyed. A capture that began on the stream is given up. */
void vnode_capture_forget_stream(struct vnode_stream *stream);
void vnode_capture_forget_event(struct vnode_event *event);

#endif
