/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/mman.h>

#include "interpose/timing/internal.h"

/* --- contexts */

const struct b200_driver *b200_driver_find(void) {
  int bound = atomic_load_explicit(&b200_timing_state.bound, memory_order_acquire);
  if (bound == 1)
    return &b200_timing_state.driver;
  if (bound == 2)
    return NULL;
  struct b200_driver found;
  bool complete = true;
#define FIND(name, ret, params)                                                                                             \
  found.name = (ret(*) params)b200_library_symbol(B200_LIBRARY_cuda, #name);                                                \
  complete = complete && found.name;
  FUNCTIONS(FIND)
#undef FIND
  pthread_mutex_lock(&b200_timing_state.lock);
  if (!b200_timing_state.bound) {
    b200_timing_state.driver = found;
    if (!complete) {
      b200_timing_change_mode(B200_TIMING_OFF, "missing");
      atomic_store(&b200_timing_wants, 0);
    }
    atomic_store_explicit(&b200_timing_state.bound, complete ? 1 : 2, memory_order_release);
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
  return complete ? &b200_timing_state.driver : NULL;
}

static struct b200_clock *make_clock(CUcontext context) {
  struct b200_clock *clock =
      mmap(NULL, sizeof *clock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void *overlap = clock == MAP_FAILED ? MAP_FAILED
                                      : mmap(NULL, b200_overlap_bytes(), PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (overlap == MAP_FAILED) {
    if (clock != MAP_FAILED)
      munmap(clock, sizeof *clock);
    return NULL;
  }
  const struct b200_overlap_sink sink = {
      .op = b200_timing_sink_op, .step = b200_timing_sink_step, .lost = b200_timing_sink_lost, .context = clock};
  clock->context = context;
  clock->overlap = overlap;
  clock->lower_ns = INT64_MIN;
  clock->upper_ns = INT64_MAX;
  b200_overlap_start(clock->overlap, &sink);
  b200_overlap_stream(clock->overlap, LEGACY_KEY, true, true);
  clock->stream_keys[clock->stream_count++] = LEGACY_KEY;
  b200_overlap_step(clock->overlap, b200_timing_state.epoch);
  return clock;
}

/* The clock of the current context; NULL: there is none, or no room for one. */
struct b200_clock *b200_clock_current(const struct b200_driver *driver) {
  CUcontext context = NULL;
  if (driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
    return NULL;
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_load_explicit(&b200_timing_state.clocks[i], memory_order_acquire);
    if (clock && clock->context == context)
      return clock;
    if (!clock)
      break;
  }
  struct b200_clock *found = NULL;
  pthread_mutex_lock(&b200_timing_state.lock);
  for (int i = 0; i < CLOCKS && !found; i++) {
    struct b200_clock *clock = atomic_load(&b200_timing_state.clocks[i]);
    if (clock && clock->context != context)
      continue;
    found = clock ? clock : make_clock(context);
    atomic_store_explicit(&b200_timing_state.clocks[i], found, memory_order_release);
    break;
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
  return found;
}

/* Streams that mean another one for another thread get a key of their own. */
uint64_t b200_clock_key(const void *stream, bool per_thread) {
  enum { PER_THREAD = 2 };
  uintptr_t handle = (uintptr_t)stream;
  if (handle == PER_THREAD || (handle == 0 && per_thread))
    return (uint64_t)(uintptr_t)b200_thread_self() | PER_THREAD;
  return handle == 0 ? LEGACY_KEY : (uint64_t)handle;
}

bool b200_clock_is_captured(const struct b200_driver *driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!b200_runtime_is_capturing())
    return false;
  return driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Small number of a stream; learns, the first time, whether it is ordered with the legacy stream. */
uint16_t b200_clock_stream_number(struct b200_clock *clock, const struct b200_driver *driver, uint64_t key,
                                  CUstream stream) {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  for (unsigned i = 0; i < clock->stream_count; i++)
    if (clock->stream_keys[i] == key)
      return (uint16_t)i;
  if (clock->stream_count == STREAMS)
    return STREAMS;
  if (driver->cuStreamGetFlags(stream, &flags) != CUDA_SUCCESS)
    flags = CU_STREAM_NON_BLOCKING;
  pthread_mutex_lock(&b200_timing_state.lock);
  unsigned at = clock->stream_count;
  for (unsigned i = 0; i < clock->stream_count; i++)
    if (clock->stream_keys[i] == key)
      at = i;
  if (at == clock->stream_count && at < STREAMS) {
    clock->stream_keys[at] = key;
    clock->stream_count++;
    b200_overlap_stream(clock->overlap, key, !(flags & CU_STREAM_NON_BLOCKING), false);
    if (b200_overlap_has_blocking(clock->overlap))
      atomic_fetch_or(&b200_timing_wants, B200_TIMING_BLOCKING);
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
  return (uint16_t)at;
}

/* --- events */

static CUevent take_event(struct b200_clock *clock, const struct b200_driver *driver) {
  CUevent event = NULL;
  pthread_mutex_lock(&b200_timing_state.lock);
  if (clock->pooled > 0)
    event = clock->pool[--clock->pooled];
  pthread_mutex_unlock(&b200_timing_state.lock);
  if (!event && driver->cuEventCreate(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
    event = NULL;
  return event;
}

/* pre: the lock is held. An event that finds no room is left to the context. */
void b200_clock_give_event(struct b200_clock *clock, CUevent event) {
  if (event && event != clock->anchor && clock->pooled < POOL)
    clock->pool[clock->pooled++] = event;
}

void b200_clock_failed(void) {
  if (atomic_fetch_add(&b200_timing_state.failures, 1) + 1 != FAILURES)
    return;
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_timing_change_mode(B200_TIMING_OFF, "vendor");
  atomic_store(&b200_timing_wants, 0);
  pthread_mutex_unlock(&b200_timing_state.lock);
  b200_runtime_say("timing: the driver refuses events; collectives are not timed any more");
}

/* An event on the stream, now. NULL: the driver refused. */
CUevent b200_clock_stamp(struct b200_clock *clock, const struct b200_driver *driver, CUstream stream) {
  CUevent event = take_event(clock, driver);
  if (event && driver->cuEventRecord(event, stream) == CUDA_SUCCESS)
    return event;
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_clock_give_event(clock, event);
  pthread_mutex_unlock(&b200_timing_state.lock);
  b200_clock_failed();
  return NULL;
}

/* An event on a stream that has nothing else to do: its time is the time of issue. Where all streams share one connection
   it would queue behind the others. */
CUevent b200_clock_stamp_issue(struct b200_clock *clock, const struct b200_driver *driver) {
  if (b200_timing_state.single_connection)
    return NULL;
  if (!clock->probe_tried) {
    int least = 0, greatest = 0;
    clock->probe_tried = true;
    if (driver->cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS ||
        driver->cuStreamCreateWithPriority(&clock->probe_stream, CU_STREAM_NON_BLOCKING, greatest) != CUDA_SUCCESS)
      clock->probe_stream = NULL;
  }
  return clock->probe_stream ? b200_clock_stamp(clock, driver, clock->probe_stream) : NULL;
}

void b200_clock_drop_events(struct b200_clock *clock, const struct b200_entry *entry) {
  b200_clock_give_event(clock, entry->first);
  b200_clock_give_event(clock, entry->second);
  b200_clock_give_event(clock, entry->probe);
}

uint64_t b200_clock_open_info(struct b200_clock *clock, const struct b200_info *info) {
  struct b200_info *place = &clock->infos[clock->next_info % INFOS];
  if (place->open)
    b200_timing_untimed(B200_UNTIMED_VENDOR, place->group);
  *place = *info;
  place->number = clock->next_info++;
  place->open = true;
  return place->number;
}

const struct b200_info *b200_clock_close_info(struct b200_clock *clock, uint64_t number) {
  struct b200_info *place = &clock->infos[number % INFOS];
  if (!place->open || place->number != number)
    return NULL;
  place->open = false;
  return place;
}

/* pre: the lock is held. The collective will not be timed. */
void b200_clock_lose(struct b200_clock *clock, const struct b200_entry *entry, enum b200_untimed why) {
  if (entry->kind == WAIT)
    b200_overlap_wait_lost(clock->overlap, &entry->wait);
  if (entry->kind != COLLECTIVE)
    return;
  const struct b200_info *info = b200_clock_close_info(clock, entry->info);
  if (info)
    b200_timing_untimed(why, info->group);
  b200_overlap_lost(clock->overlap, entry->id);
}

void b200_clock_push(struct b200_clock *clock, const struct b200_entry *entry) {
  pthread_mutex_lock(&b200_timing_state.lock);
  if (clock->tail - clock->head < QUEUE) {
    clock->queue[clock->tail++ % QUEUE] = *entry;
  } else {
    b200_clock_lose(clock, entry, B200_UNTIMED_FULL);
    b200_clock_drop_events(clock, entry);
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
}
