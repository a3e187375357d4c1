/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events in `eager` order: work runs on the calling thread before submit returns. Work of one stream never
 * overlaps, whichever threads submit it; each stream has a lock for that.
 *
 * Streams and events are recycled but never given back to the C library, so that a handle used after its destruction is
 * found out by its state instead of being read from freed memory.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "internal.h"

static const uint32_t stream_live = 0x5354524d, event_live = 0x45564e54;

struct vnode_stream {
  _Atomic uint32_t state; /* stream_live, or 0 once destroyed */
  int id, device, priority;
  unsigned flags;
  int64_t host_ns, end_ns; /* clock of the last submission and end of the last operation; under `order` */
  pthread_mutex_t order;   /* recursive: work may submit to its own stream */
  struct vnode_stream *next_all, *next_free;
};

struct vnode_event {
  _Atomic uint32_t state;
  unsigned flags;
  _Atomic int64_t t_ns; /* -1: never recorded */
  struct vnode_event *next_free;
};

static struct vnode_stream *all_streams, *free_streams;
static struct vnode_event *free_events;
static struct vnode_stream defaults[VNODE_MAX_DEVICES];
static struct vnode_stream per_thread; /* its work is of one thread by definition: no lock is taken */
static int last_id;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_order(pthread_mutex_t *mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

static void init_defaults(void) {
  for (int device = 0; device < VNODE_MAX_DEVICES; device++) {
    defaults[device].state = stream_live;
    defaults[device].device = device;
    init_order(&defaults[device].order);
  }
  per_thread.state = stream_live;
}

static struct vnode_stream *resolve(const struct vnode_stream *stream) {
  pthread_once(&once, init_defaults);
  if (stream == VNODE_STREAM_NULL || stream == VNODE_STREAM_LEGACY)
    return &defaults[vnode_device_current()];
  if (stream == VNODE_STREAM_PER_THREAD)
    return &per_thread;
  return atomic_load(&stream->state) == stream_live ? (struct vnode_stream *)(uintptr_t)stream : NULL;
}

static void enter(struct vnode_stream *stream) {
  if (stream != &per_thread)
    pthread_mutex_lock(&stream->order);
}

static void leave(struct vnode_stream *stream) {
  if (stream != &per_thread)
    pthread_mutex_unlock(&stream->order);
}

enum vnode_status vnode_stream_create(unsigned flags, int priority, struct vnode_stream **out) {
  if (!out)
    return VNODE_INVALID_VALUE;
  enum vnode_status status = vnode_device_touch(vnode_device_current());
  if (status)
    return status;
  pthread_mutex_lock(&pool_lock);
  struct vnode_stream *stream = free_streams;
  if (stream) {
    free_streams = stream->next_free;
  } else if ((stream = calloc(1, sizeof *stream))) {
    init_order(&stream->order);
    stream->next_all = all_streams;
    all_streams = stream;
  }
  if (stream) {
    stream->id = ++last_id;
    stream->device = vnode_device_current();
    stream->priority = priority;
    stream->flags = flags;
    atomic_store(&stream->state, stream_live);
  }
  pthread_mutex_unlock(&pool_lock);
  *out = stream;
  return stream ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_stream_destroy(struct vnode_stream *stream) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_stream *real = resolve(stream);
  if (!real || real != stream)
    return VNODE_INVALID_VALUE;
  enter(real); /* its work ends first */
  leave(real);
  pthread_mutex_lock(&pool_lock);
  uint32_t expected = stream_live;
  bool was_live = atomic_compare_exchange_strong(&real->state, &expected, 0);
  if (was_live) {
    real->next_free = free_streams;
    free_streams = real;
  }
  pthread_mutex_unlock(&pool_lock);
  return was_live ? VNODE_OK : VNODE_INVALID_VALUE;
}

int vnode_stream_id(const struct vnode_stream *stream) {
  const struct vnode_stream *real = resolve(stream);
  return real ? real->id : -1;
}

bool vnode_stream_info(const struct vnode_stream *stream, unsigned *flags, int *priority, int *device) {
  const struct vnode_stream *real = resolve(stream);
  if (!real)
    return false;
  if (flags)
    *flags = real->flags;
  if (priority)
    *priority = real->priority;
  if (device)
    *device = real == &per_thread ? vnode_device_current() : real->device;
  return true;
}

/* ------------------------------------------------------------------------------------------- operations */

/* What the thread's running work says about its time. */
static _Thread_local struct running { int64_t ready_ns, start_ns, end_ns; } * running;
static _Thread_local int64_t host_ns;
static _Atomic int sticky_error;

void vnode_host_charge(int64_t ns) {
  host_ns += ns;
}

int64_t vnode_host_now_ns(void) {
  return host_ns;
}

int64_t vnode_op_ready_ns(void) {
  return running->ready_ns;
}

void vnode_op_set_span(int64_t start_ns, int64_t end_ns) {
  running->start_ns = start_ns;
  running->end_ns = end_ns;
}

void vnode_op_set_duration(int64_t duration_ns) {
  running->end_ns = running->start_ns + duration_ns;
}

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

uint64_t vnode_race_count(void) {
  return 0;
}

bool vnode_stream_is_late(struct vnode_stream *stream) {
  (void)stream;
  return false;
}

bool vnode_stream_is_capturing(struct vnode_stream *stream) {
  (void)stream;
  return false;
}

static void run_now(struct vnode_stream *stream, const struct vnode_op *op) {
  enter(stream);
  if (stream->host_ns > host_ns)
    host_ns = stream->host_ns;
  stream->host_ns = host_ns;
  int64_t ready_ns = stream->end_ns > host_ns ? stream->end_ns : host_ns;
  struct running own = {.ready_ns = ready_ns, .start_ns = ready_ns, .end_ns = ready_ns + op->duration_ns};
  struct running *outer = running;
  running = &own;
  if (op->work)
    op->work((void *)(uintptr_t)op->args); /* the caller's arguments outlive the call, no copy is needed */
  running = outer;
  stream->end_ns = own.end_ns;
  leave(stream);
}

enum vnode_status vnode_op_submit(struct vnode_stream *stream, const struct vnode_op *op) {
  struct vnode_stream *real = vnode_forked() ? NULL : resolve(stream);
  if (real)
    run_now(real, op);
  if (op->drop)
    op->drop((void *)(uintptr_t)op->args);
  return real ? VNODE_OK : vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_stream_submit(struct vnode_stream *stream, const char *name, vnode_work work, const void *args,
                                      size_t args_bytes) {
  return vnode_op_submit(stream, &(struct vnode_op){.name = name, .work = work, .args = args, .args_bytes = args_bytes});
}

enum vnode_status vnode_stream_synchronize(struct vnode_stream *stream) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_stream *real = resolve(stream);
  if (!real)
    return VNODE_INVALID_VALUE;
  enter(real); /* another thread's work may be running */
  if (real->end_ns > host_ns)
    host_ns = real->end_ns;
  leave(real);
  return VNODE_OK;
}

bool vnode_stream_idle(struct vnode_stream *stream) {
  struct vnode_stream *real = vnode_forked() ? NULL : resolve(stream);
  if (!real || real == &per_thread)
    return true;
  if (pthread_mutex_trylock(&real->order))
    return false;
  pthread_mutex_unlock(&real->order);
  return true;
}

enum vnode_status vnode_device_synchronize(int device) {
  enum vnode_status status = vnode_device_touch(device);
  if (status)
    return status;
  pthread_once(&once, init_defaults);
  enter(&defaults[device]);
  leave(&defaults[device]);
  pthread_mutex_lock(&pool_lock);
  struct vnode_stream *stream = all_streams; /* the list only grows at its head */
  pthread_mutex_unlock(&pool_lock);
  for (; stream; stream = stream->next_all)
    if (stream->device == device) {
      enter(stream);
      leave(stream);
    }
  return VNODE_OK;
}

/* ------------------------------------------------------------------------------------------- events */

enum { DISABLE_TIMING = 2 }; /* cudaEventDisableTiming, CU_EVENT_DISABLE_TIMING */

static bool is_live(const struct vnode_event *event) {
  return event && atomic_load(&event->state) == event_live;
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
    atomic_store(&event->state, event_live);
  }
  pthread_mutex_unlock(&pool_lock);
  *out = event;
  return event ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_event_destroy(struct vnode_event *event) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  uint32_t expected = event_live;
  if (!event || !atomic_compare_exchange_strong(&event->state, &expected, 0))
    return VNODE_INVALID_VALUE;
  pthread_mutex_lock(&pool_lock);
  event->next_free = free_events;
  free_events = event;
  pthread_mutex_unlock(&pool_lock);
  return VNODE_OK;
}

enum vnode_status vnode_event_record(struct vnode_event *event, struct vnode_stream *stream) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_stream *real = resolve(stream);
  if (!is_live(event) || !real)
    return VNODE_INVALID_VALUE;
  enter(real);
  atomic_store(&event->t_ns, real->end_ns > host_ns ? real->end_ns : host_ns);
  leave(real);
  return VNODE_OK;
}

enum vnode_status vnode_event_wait(struct vnode_stream *stream, struct vnode_event *event) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_stream *real = resolve(stream);
  if (!is_live(event) || !real)
    return VNODE_INVALID_VALUE;
  enter(real); /* recorded work has already run: only its time counts */
  if (atomic_load(&event->t_ns) > real->end_ns)
    real->end_ns = atomic_load(&event->t_ns);
  leave(real);
  return VNODE_OK;
}

enum vnode_status vnode_event_synchronize(struct vnode_event *event) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  return is_live(event) ? VNODE_OK : VNODE_INVALID_VALUE;
}

bool vnode_event_is(const struct vnode_event *event) {
  return is_live(event);
}

bool vnode_event_done(struct vnode_event *event) {
  return is_live(event);
}

enum vnode_status vnode_event_elapsed(const struct vnode_event *start, const struct vnode_event *end, float *ms) {
  if (!is_live(start) || !is_live(end) || !ms || (start->flags | end->flags) & DISABLE_TIMING)
    return VNODE_INVALID_VALUE;
  int64_t from = atomic_load(&start->t_ns), to = atomic_load(&end->t_ns);
  if (from < 0 || to < 0)
    return VNODE_INVALID_VALUE;
  *ms = (float)((double)(to - from) * 1e-6);
  return VNODE_OK;
}
