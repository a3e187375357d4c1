/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events: their handles, the public functions, and eager order, in which work runs on the calling thread before
 * its submission returns. Work of one stream never overlaps, whichever threads submit it. The late orders are in order.c.
 *
 * Streams and events are recycled but never given back to the C library, so that a handle used after its destruction is
 * found out by its state instead of being read from freed memory.
 */
#include <stdlib.h>

#include "capture.h"

_Thread_local struct vnode_running *vnode_running;
_Thread_local int64_t vnode_host_ns;
_Thread_local uint64_t vnode_host_submissions;

static struct vnode_stream defaults[VNODE_MAX_DEVICES];
static _Atomic(struct vnode_stream *) all_streams;
static struct vnode_stream *free_streams;
static struct vnode_event *free_events;
static atomic_uint blocking_streams; /* that were ever made, the legacy ones apart */
static int last_id;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic int sticky_error;
static _Atomic int64_t waited_ns; /* the latest end that a thread has waited for */
static pthread_key_t own_streams_key;
static _Thread_local struct vnode_stream **own_streams; /* the thread's default stream of each device, made when used */

/* ------------------------------------------------------------------------------------------- host time */

void vnode_host_reach(int64_t ns) {
  if (ns > vnode_host_ns)
    vnode_host_ns = ns;
}

void vnode_host_waited(int64_t ns) {
  vnode_host_reach(ns);
  int64_t known = atomic_load_explicit(&waited_ns, memory_order_relaxed);
  while (known < ns && !atomic_compare_exchange_weak(&waited_ns, &known, ns))
    ;
}

int64_t vnode_modelled_ns(void) {
  return atomic_load(&waited_ns);
}

void vnode_host_charge(int64_t ns) {
  vnode_host_ns += ns;
}

int64_t vnode_host_now_ns(void) {
  return vnode_host_ns;
}

int64_t vnode_op_ready_ns(void) {
  return vnode_running->ready_ns;
}

void vnode_op_set_span(int64_t start_ns, int64_t end_ns) {
  vnode_running->start_ns = start_ns;
  vnode_running->end_ns = end_ns;
}

void vnode_op_set_duration(int64_t duration_ns) {
  vnode_running->end_ns = vnode_running->start_ns + duration_ns;
}

/* ------------------------------------------------------------------------------------------- errors */

void vnode_op_fail(int cuda_error, const char *message) {
  vnode_say_once(message, "%s", message);
  vnode_set_sticky_error(cuda_error);
}

int vnode_sticky_error(void) {
  return atomic_load_explicit(&sticky_error, memory_order_relaxed);
}

void vnode_set_sticky_error(int cuda_error) {
  int none = 0;
  atomic_compare_exchange_strong(&sticky_error, &none, cuda_error);
}

/* ------------------------------------------------------------------------------------------- streams */

static void init_order(struct vnode_stream *stream) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&stream->order, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

static void list(struct vnode_stream *stream) {
  stream->next_all = atomic_load(&all_streams);
  atomic_store(&all_streams, stream); /* under pool_lock, or alone */
}

static void recycle_own_streams(void *streams) {
  for (int device = 0; device < VNODE_MAX_DEVICES; device++)
    if (((struct vnode_stream **)streams)[device])
      vnode_stream_recycle(((struct vnode_stream **)streams)[device]);
  free(streams);
}

static void init_defaults(void) {
  pthread_key_create(&own_streams_key, recycle_own_streams);
  for (int device = VNODE_MAX_DEVICES - 1; device >= 0; device--) {
    defaults[device].state = VNODE_STREAM_LIVE;
    defaults[device].device = device;
    defaults[device].legacy = true;
    init_order(&defaults[device]);
    list(&defaults[device]);
  }
}

/* pool_lock is held. Device and flags are a stream's for good, since other threads read them as they go through the list.
   One that was destroyed before its work was done waits for its end. */
static struct vnode_stream *take_free(int device, unsigned flags) {
  for (struct vnode_stream **link = &free_streams; *link; link = &(*link)->next_free) {
    struct vnode_stream *stream = *link;
    if (stream->device != device || stream->flags != flags || (vnode_is_late() && !vnode_late_is_drained(stream)))
      continue;
    *link = stream->next_free;
    return stream;
  }
  struct vnode_stream *stream = calloc(1, sizeof *stream);
  if (stream) {
    stream->device = device;
    stream->flags = flags;
    init_order(stream);
    list(stream);
  }
  return stream;
}

struct vnode_stream *vnode_stream_make(int device, unsigned flags, int priority) {
  pthread_once(&once, init_defaults);
  pthread_mutex_lock(&pool_lock);
  struct vnode_stream *stream = take_free(device, flags);
  if (stream) {
    stream->id = ++last_id;
    stream->priority = priority;
    stream->host_ns = stream->end_ns = 0;
    if (!(flags & VNODE_STREAM_NON_BLOCKING))
      atomic_fetch_add(&blocking_streams, 1);
    atomic_store(&stream->state, VNODE_STREAM_LIVE);
  }
  pthread_mutex_unlock(&pool_lock);
  return stream;
}

void vnode_stream_recycle(struct vnode_stream *stream) {
  pthread_mutex_lock(&pool_lock);
  atomic_store(&stream->state, 0);
  stream->next_free = free_streams;
  free_streams = stream;
  pthread_mutex_unlock(&pool_lock);
}

/* cudaStreamPerThread: an ordinary blocking stream of each thread and device. */
static struct vnode_stream *own_stream(int device) {
  if (!own_streams) {
    own_streams = calloc(VNODE_MAX_DEVICES, sizeof *own_streams);
    if (!own_streams)
      return NULL;
    pthread_setspecific(own_streams_key, own_streams);
  }
  if (!own_streams[device])
    own_streams[device] = vnode_stream_make(device, 0, 0);
  return own_streams[device];
}

struct vnode_stream *vnode_stream_resolve(const struct vnode_stream *stream) {
  pthread_once(&once, init_defaults);
  if (stream == VNODE_STREAM_NULL || stream == VNODE_STREAM_LEGACY)
    return &defaults[vnode_device_current()];
  if (stream == VNODE_STREAM_PER_THREAD)
    return own_stream(vnode_device_current());
  return atomic_load(&stream->state) == VNODE_STREAM_LIVE ? (struct vnode_stream *)(uintptr_t)stream : NULL;
}

struct vnode_stream *vnode_stream_next(struct vnode_stream *previous) {
  return previous ? previous->next_all : atomic_load(&all_streams);
}

bool vnode_stream_is_ordered_with(const struct vnode_stream *a, const struct vnode_stream *b) {
  if (a->behind_all)
    return a != b && a->device == b->device;
  return a != b && a->device == b->device && a->legacy != b->legacy && !((a->flags | b->flags) & VNODE_STREAM_NON_BLOCKING);
}

bool vnode_stream_is_blocking(const struct vnode_stream *stream) {
  if (stream->behind_all)
    return true;
  return !(stream->flags & VNODE_STREAM_NON_BLOCKING) && atomic_load_explicit(&blocking_streams, memory_order_relaxed);
}

enum vnode_status vnode_stream_create(unsigned flags, int priority, struct vnode_stream **out) {
  if (!out)
    return VNODE_INVALID_VALUE;
  enum vnode_status status = vnode_device_touch(vnode_device_current());
  if (status)
    return status;
  *out = vnode_stream_make(vnode_device_current(), flags, priority);
  return *out ? VNODE_OK : VNODE_SYSTEM;
}

static void enter(struct vnode_stream *stream) {
  pthread_mutex_lock(&stream->order);
}

static void leave(struct vnode_stream *stream) {
  pthread_mutex_unlock(&stream->order);
}

/* Does not wait for the stream's work, as in CUDA; in eager order another thread's may be running. */
enum vnode_status vnode_stream_destroy(struct vnode_stream *stream) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_stream *real = vnode_stream_resolve(stream);
  if (!real || real != stream)
    return VNODE_INVALID_VALUE;
  enter(real);
  leave(real);
  uint32_t expected = VNODE_STREAM_LIVE;
  if (!atomic_compare_exchange_strong(&real->state, &expected, 0))
    return VNODE_INVALID_VALUE;
  vnode_capture_forget_stream(real);
  vnode_stream_recycle(real);
  return VNODE_OK;
}

int vnode_stream_id(const struct vnode_stream *stream) {
  const struct vnode_stream *real = vnode_stream_resolve(stream);
  return real ? real->id : -1;
}

bool vnode_stream_info(const struct vnode_stream *stream, unsigned *flags, int *priority, int *device) {
  const struct vnode_stream *real = vnode_stream_resolve(stream);
  if (!real)
    return false;
  if (flags)
    *flags = real->flags;
  if (priority)
    *priority = real->priority;
  if (device)
    *device = real->device;
  return true;
}

bool vnode_stream_is_late(struct vnode_stream *stream) {
  return vnode_is_late() || vnode_stream_is_capturing(stream);
}

bool vnode_stream_is_capturing(struct vnode_stream *stream) {
  struct vnode_stream *real = vnode_stream_resolve(stream);
  return real && atomic_load_explicit(&real->capture, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------- operations */

/* Earliest start of what is submitted to the stream now. */
static int64_t eager_ready_ns(const struct vnode_stream *stream) {
  int64_t ready_ns = stream->end_ns > vnode_host_ns ? stream->end_ns : vnode_host_ns;
  if (vnode_stream_is_blocking(stream))
    for (struct vnode_stream *each = vnode_stream_next(NULL); each; each = vnode_stream_next(each))
      if (vnode_stream_is_ordered_with(stream, each) && each->end_ns > ready_ns)
        ready_ns = each->end_ns;
  return ready_ns;
}

/* The caller's arguments outlive the call, no copy is needed. */
static void work_now(const struct vnode_op *op, struct vnode_running *own) {
  struct vnode_running *outer = vnode_running;
  vnode_running = own;
  if (op->work && !vnode_sticky_error())
    op->work((void *)(uintptr_t)op->args);
  vnode_running = outer;
}

static void run_now(struct vnode_stream *stream, const struct vnode_op *op) {
  vnode_host_submissions++;
  enter(stream);
  vnode_host_reach(stream->host_ns);
  stream->host_ns = vnode_host_ns;
  int64_t ready_ns = eager_ready_ns(stream);
  struct vnode_running own = {.ready_ns = ready_ns, .start_ns = ready_ns, .end_ns = ready_ns + op->duration_ns};
  work_now(op, &own);
  stream->end_ns = own.end_ns;
  leave(stream);
}

static enum vnode_status drop(const struct vnode_op *op, enum vnode_status status) {
  if (op->drop)
    op->drop((void *)(uintptr_t)op->args);
  return status;
}

enum vnode_status vnode_op_submit(struct vnode_stream *stream, const struct vnode_op *op) {
  struct vnode_stream *real = vnode_forked() ? NULL : vnode_stream_resolve(stream);
  enum vnode_status status;
  if (!real)
    return drop(op, vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE);
  if (vnode_capture_concerns(real) && vnode_capture_submit(real, op, &status))
    return status ? drop(op, status) : VNODE_OK;
  if (vnode_is_late() && !vnode_running)
    return vnode_late_submit(real, op);
  run_now(real, op);
  return drop(op, VNODE_OK);
}

/* ------------------------------------------------------------------------------------------- waiting */

static _Atomic(void (*)(void)) after_synchronize;

void vnode_after_synchronize(void (*function)(void)) {
  atomic_store(&after_synchronize, function);
}

static enum vnode_status synchronized(void) {
  void (*function)(void) = atomic_load_explicit(&after_synchronize, memory_order_relaxed);
  if (function && !vnode_running)
    function();
  return VNODE_OK;
}

static void synchronize_now(struct vnode_stream *stream) {
  enter(stream); /* another thread's work may be running */
  vnode_host_waited(eager_ready_ns(stream));
  leave(stream);
}

enum vnode_status vnode_stream_synchronize(struct vnode_stream *stream) {
  struct vnode_stream *real = vnode_forked() ? NULL : vnode_stream_resolve(stream);
  if (!real)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  enum vnode_status status = vnode_capture_synchronize_stream(real);
  if (status)
    return status;
  if (vnode_is_late())
    vnode_late_synchronize_stream(real);
  else
    synchronize_now(real);
  return synchronized();
}

bool vnode_stream_idle(struct vnode_stream *stream) {
  struct vnode_stream *real = vnode_forked() ? NULL : vnode_stream_resolve(stream);
  if (!real)
    return true;
  if (vnode_is_late())
    return vnode_late_stream_done(real);
  if (pthread_mutex_trylock(&real->order))
    return false;
  leave(real);
  return true;
}

void vnode_device_wait(int device) {
  pthread_once(&once, init_defaults);
  if (vnode_is_late()) {
    vnode_late_synchronize_device(device);
    return;
  }
  for (struct vnode_stream *stream = vnode_stream_next(NULL); stream; stream = vnode_stream_next(stream))
    if (stream->device == device)
      synchronize_now(stream);
}

enum vnode_status vnode_device_synchronize(int device) {
  enum vnode_status status = vnode_device_touch(device);
  if (!status)
    status = vnode_capture_synchronize_device(device);
  if (status)
    return status;
  vnode_device_wait(device);
  return synchronized();
}

/* ------------------------------------------------------------------------------------------- events */

enum { DISABLE_TIMING = 2, INTERPROCESS = 4 }; /* of cudaEventCreateWithFlags and cuEventCreate */

bool vnode_event_is(const struct vnode_event *event) {
  return event && atomic_load(&event->state) == VNODE_EVENT_LIVE;
}

enum vnode_status vnode_event_create(unsigned flags, struct vnode_event **out) {
  if (!out)
    return VNODE_INVALID_VALUE;
  enum vnode_status status = vnode_device_touch(vnode_device_current());
  if (status)
    return status;
  pthread_mutex_lock(&pool_lock);
  struct vnode_event *event = free_events;
  if (event)
    free_events = event->next_free;
  else
    event = calloc(1, sizeof *event);
  if (event) {
    event->flags = flags;
    atomic_store(&event->t_ns, -1);
    atomic_store(&event->state, VNODE_EVENT_LIVE);
  }
  pthread_mutex_unlock(&pool_lock);
  *out = event;
  return event ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_event_destroy(struct vnode_event *event) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  uint32_t expected = VNODE_EVENT_LIVE;
  if (!event || !atomic_compare_exchange_strong(&event->state, &expected, 0))
    return VNODE_INVALID_VALUE;
  vnode_capture_forget_event(event);
  if (vnode_is_late())
    vnode_late_forget_event(event);
  pthread_mutex_lock(&pool_lock);
  event->next_free = free_events;
  free_events = event;
  pthread_mutex_unlock(&pool_lock);
  return VNODE_OK;
}

/* Both handles are good. */
static enum vnode_status resolve_pair(const struct vnode_event *event, const struct vnode_stream *stream,
                                      struct vnode_stream **real) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  *real = vnode_stream_resolve(stream);
  return vnode_event_is(event) && *real ? VNODE_OK : VNODE_INVALID_VALUE;
}

/* Is it the business of a capture? */
static bool is_captures(const struct vnode_event *event, const struct vnode_stream *real) {
  return vnode_capture_concerns(real) || atomic_load_explicit(&event->capture, memory_order_acquire);
}

static void record_now(void *event) {
  atomic_store(&(*(struct vnode_event **)event)->t_ns, vnode_op_ready_ns());
}

enum vnode_status vnode_event_record(struct vnode_event *event, struct vnode_stream *stream) {
  struct vnode_stream *real;
  enum vnode_status status = resolve_pair(event, stream, &real);
  if (status || (is_captures(event, real) && vnode_capture_record(event, real, &status)))
    return status;
  if (vnode_is_late()) {
    vnode_late_record(event, real);
    /* Another process that knows the event sees memory, not our queues. */
    return event->flags & INTERPROCESS ? vnode_event_synchronize(event) : VNODE_OK;
  }
  run_now(real, &(struct vnode_op){.name = "event record", .work = record_now, .args = &event});
  return VNODE_OK;
}

/* Made when it is first needed. NULL without memory. */
static struct vnode_stream *stream_behind_all(int device) {
  static struct vnode_stream *streams[VNODE_MAX_DEVICES];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  struct vnode_stream *stream = streams[device];
  if (!stream && (stream = vnode_stream_make(device, VNODE_STREAM_NON_BLOCKING, 0))) {
    stream->behind_all = true;
    streams[device] = stream;
  }
  pthread_mutex_unlock(&lock);
  return stream;
}

/* In eager order an event is complete when it is recorded: there is none for work that another thread is running. */
static bool is_device_idle_now(int device) {
  for (struct vnode_stream *stream = vnode_stream_next(NULL); stream; stream = vnode_stream_next(stream))
    if (stream->device == device && !vnode_stream_idle(stream))
      return false;
  return true;
}

enum vnode_status vnode_event_record_device(struct vnode_event *event, int device) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  if (!vnode_event_is(event))
    return VNODE_INVALID_VALUE;
  pthread_once(&once, init_defaults);
  enum vnode_status status = vnode_capture_synchronize_device(device);
  if (status)
    return status;
  if (!vnode_is_late() && !is_device_idle_now(device))
    return VNODE_NOT_SUPPORTED;
  struct vnode_stream *stream = stream_behind_all(device);
  return stream ? vnode_event_record(event, stream) : VNODE_SYSTEM;
}

enum vnode_status vnode_event_wait(struct vnode_stream *stream, struct vnode_event *event) {
  struct vnode_stream *real;
  enum vnode_status status = resolve_pair(event, stream, &real);
  if (status || (is_captures(event, real) && vnode_capture_wait(real, event, &status)))
    return status;
  if (vnode_is_late()) {
    vnode_late_wait(real, event);
    return VNODE_OK;
  }
  enter(real); /* recorded work has already run: only its time counts */
  if (event->t_ns > real->end_ns)
    real->end_ns = event->t_ns;
  leave(real);
  return VNODE_OK;
}

enum vnode_status vnode_event_synchronize(struct vnode_event *event) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  if (!vnode_event_is(event))
    return VNODE_INVALID_VALUE;
  enum vnode_status status = vnode_capture_synchronize_event(event);
  if (status)
    return status;
  if (vnode_is_late())
    vnode_late_synchronize_event(event);
  else
    vnode_host_waited(event->t_ns);
  return synchronized();
}

bool vnode_host_drives(void) {
  return vnode_host_submissions != 0;
}

bool vnode_event_passed(struct vnode_event *event) {
  if (!vnode_event_is(event) || vnode_forked())
    return false;
  int64_t t_ns = event->t_ns;
  if (vnode_is_late() && vnode_late_event_time(event, &t_ns))
    return false;
  return t_ns >= 0 && t_ns <= vnode_host_ns;
}

bool vnode_event_done(struct vnode_event *event) {
  return vnode_event_is(event) && (!vnode_is_late() || vnode_late_event_done(event));
}

static bool is_captured(const struct vnode_event *event) {
  return vnode_event_is(event) && atomic_load_explicit(&event->capture, memory_order_relaxed);
}

static enum vnode_status time_of(struct vnode_event *event, int64_t *t_ns) {
  if (!vnode_event_is(event) || event->flags & DISABLE_TIMING)
    return VNODE_INVALID_VALUE;
  if (vnode_is_late())
    return vnode_late_event_time(event, t_ns);
  *t_ns = event->t_ns;
  return *t_ns < 0 ? VNODE_INVALID_VALUE : VNODE_OK;
}

enum vnode_status vnode_event_elapsed(struct vnode_event *start, struct vnode_event *end, float *ms) {
  int64_t from_ns, to_ns;
  if (!ms || vnode_forked())
    return ms ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  if (is_captured(start) || is_captured(end))
    return VNODE_CAPTURED_EVENT;
  enum vnode_status first = time_of(start, &from_ns), second = time_of(end, &to_ns);
  if (first == VNODE_INVALID_VALUE || second == VNODE_INVALID_VALUE)
    return VNODE_INVALID_VALUE;
  if (first || second)
    return VNODE_NOT_READY;
  *ms = (float)((double)(to_ns - from_ns) * 1e-6);
  return VNODE_OK;
}
