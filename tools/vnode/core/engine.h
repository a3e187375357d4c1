/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the engine that order work share: stream.c (handles and the public functions), order.c (the late orders:
 * deferred and adversarial), graph.c (capture).
 *
 * In eager order a stream has a lock and a time; an operation runs under that lock on the calling thread. In the late orders
 * an operation becomes a task in its stream's queue; tasks run on the threads that wait for them, those that wait for other
 * processes on threads of their own, and what nobody waits for on a thread of the engine when the program is idle, because a
 * GPU does not stand still.
 *
 * Lock: `vnode_engine_lock` guards streams' queues, tasks, events and the race checker in the late orders. No lock is held
 * while work runs but the stream's own in eager order. Under it the memory table may be locked, not the other way round.
 */
#ifndef VNODE_CORE_ENGINE_H
#define VNODE_CORE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "internal.h"
#include "race.h"

struct vnode_capture; /* graph.c */

struct vnode_stream {
  _Atomic uint32_t state; /* VNODE_STREAM_LIVE, or 0 once destroyed */
  int id, device, priority;
  unsigned flags;
  bool legacy;                               /* the device's default stream */
  bool behind_all;                           /* the device's, for events that stand for all of its work */
  _Atomic(struct vnode_capture *) capture;   /* not NULL: what is submitted goes into a graph */
  struct vnode_stream *next_all, *next_free; /* streams are never given back to the C library */
  _Atomic int64_t host_ns, end_ns;           /* clock of the last submission, end of the last operation that ran */
  pthread_mutex_t order;                     /* eager: held while work runs. Recursive: work may submit to its own stream */

  /* late orders */
  struct vnode_task *head, *tail; /* not complete, in order; the head may be running */
  struct vnode_task *wanted;      /* the last of them that is waited for; so are all before it */
  bool busy;
  uint32_t draw; /* adversarial: urgency of this stream among others */
  int lane;      /* 0: none yet */
  uint32_t epoch;
  uint64_t host_version; /* of the host's clock that `clock` has taken in */
  struct vnode_race_clock *clock;
};

struct vnode_event {
  _Atomic uint32_t state;
  unsigned flags;
  _Atomic int64_t t_ns;                    /* of the record, once it has run; -1: never recorded */
  struct vnode_task *task;                 /* late: the record, until it is known to have run */
  struct vnode_race_clock *clock;          /* late: what is ordered before the record */
  _Atomic(struct vnode_capture *) capture; /* graph.c: recorded in a capture */
  struct vnode_event *next_free;
};

#define VNODE_STREAM_LIVE 0x5354524du
#define VNODE_EVENT_LIVE 0x45564e54u
#define VNODE_STREAM_NON_BLOCKING 1u /* cudaStreamNonBlocking, CU_STREAM_NON_BLOCKING */

/* stream.c. The stream that a handle means, NULL for none. */
struct vnode_stream *vnode_stream_resolve(const struct vnode_stream *handle);
/* A stream that no handle of the program means (a branch of a graph). Non-blocking. NULL without memory. */
struct vnode_stream *vnode_stream_make(int device, unsigned flags, int priority);
void vnode_stream_recycle(struct vnode_stream *stream);
/* All streams that ever were, the default streams included, one after another; NULL: the first, then the end. */
struct vnode_stream *vnode_stream_next(struct vnode_stream *previous);
/* Whether what comes next in `a` waits for `b`: blocking streams and the legacy stream of a device wait for each other (CUDA
   programming guide, "Default Stream"). */
bool vnode_stream_is_ordered_with(const struct vnode_stream *a, const struct vnode_stream *b);
/* Whether there can be any with which it is. */
bool vnode_stream_is_blocking(const struct vnode_stream *stream);

/* Of the calling thread: what its running work says about its time. */
struct vnode_running {
  int64_t ready_ns, start_ns, end_ns;
};
extern _Thread_local struct vnode_running *vnode_running;
extern _Thread_local int64_t vnode_host_ns;
extern _Thread_local uint64_t
    vnode_host_submissions; /* not 0: this thread's polling and sleeping is part of the program's time */
void vnode_host_reach(int64_t ns);
void vnode_host_waited(int64_t ns); /* the same by a wait for the GPU */

/* order.c: the late orders. All take the engine's lock. */
bool vnode_is_late(void);
enum vnode_status vnode_late_submit(struct vnode_stream *stream, const struct vnode_op *op);
void vnode_late_record(struct vnode_event *event, struct vnode_stream *stream);
void vnode_late_wait(struct vnode_stream *stream, struct vnode_event *event);
void vnode_late_synchronize_stream(struct vnode_stream *stream);
void vnode_late_synchronize_device(int device);
void vnode_late_synchronize_event(struct vnode_event *event);
bool vnode_late_stream_done(struct vnode_stream *stream);
bool vnode_late_event_done(struct vnode_event *event);
/* When the record ran; NOT_READY before, INVALID_VALUE when there was none. */
enum vnode_status vnode_late_event_time(struct vnode_event *event, int64_t *t_ns);
void vnode_late_forget_event(struct vnode_event *event);
bool vnode_late_is_drained(struct vnode_stream *stream);

/* Memory comes and goes. fresh: nobody has touched it. release: before it is unmapped; waits for all work of the process,
   and reports accesses that nothing orders before: with `waits`, `how` is a function that itself waits for the device, so
   there are none. Nothing in eager order but, with `waits`, the time of the wait. */
void vnode_engine_fresh(const void *base, size_t bytes);
void vnode_engine_release(const void *base, size_t bytes, const char *how, bool waits);

#endif
