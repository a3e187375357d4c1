/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdatomic.h>

#include "interpose/timing/internal.h"

static int64_t rounded(double value) {
  return (int64_t)(value + (value < 0 ? -0.5 : 0.5));
}

/* Time of a completed event, on the host's scale as far as the two clocks go together. */
static bool time_of(struct b200_clock *clock, const struct b200_driver *driver, CUevent event, int64_t *out) {
  float ms = 0;
  if (driver->cuEventElapsedTime(&ms, clock->anchor, event) != CUDA_SUCCESS || !isfinite(ms))
    return false;
  *out = clock->anchor_ns + rounded((double)ms * 1e6);
  return true;
}

struct times {
  bool good;
  int64_t first, second, probe;
};

/* Whether the entry is complete: CUDA_ERROR_NOT_READY when not. Asking for the time says so, too, and spares a query. */
static CUresult is_complete(const struct b200_clock *clock, const struct b200_driver *driver,
                            const struct b200_entry *entry) {
  float ms;
  return driver->cuEventElapsedTime(&ms, clock->anchor ? clock->anchor : entry->first,
                                    entry->second ? entry->second : entry->first);
}

/* pre: the entry is complete, and this thread is the one that reads back. */
static struct times times_of(struct b200_clock *clock, const struct b200_driver *driver, const struct b200_entry *entry) {
  struct times times = {.probe = INT64_MIN};
  if (!clock->anchor) {
    clock->anchor = entry->first;
    clock->anchor_ns = (int64_t)entry->issued_ns;
  }
  times.good = time_of(clock, driver, entry->first, &times.first);
  times.second = times.first;
  if (times.good && entry->second)
    times.good = time_of(clock, driver, entry->second, &times.second) && times.second >= times.first;
  if (times.good && entry->probe && !time_of(clock, driver, entry->probe, &times.probe))
    times.probe = INT64_MIN;
  return times;
}

/* pre: the lock is held. An event does not happen before it is issued, nor after it was seen to be complete. */
static void learn_offset(struct b200_clock *clock, const struct b200_entry *entry, const struct times *times, uint64_t now) {
  int64_t lower = (int64_t)entry->issued_ns - times->first, upper = (int64_t)now - times->second;
  if (lower > clock->lower_ns)
    clock->lower_ns = lower;
  if (upper < clock->upper_ns)
    clock->upper_ns = upper;
}

/* pre: the lock is held. */
static void move_anchor(struct b200_clock *clock, const struct b200_entry *entry, const struct times *times) {
  CUevent last = entry->second ? entry->second : entry->first;
  if (clock->anchor == entry->first && entry->second == NULL)
    return;
  if (times->second - clock->anchor_ns < ANCHOR_NS)
    return;
  CUevent old = clock->anchor;
  clock->anchor = last;
  clock->anchor_ns = times->second;
  if (old != entry->first && old != entry->second && old != entry->probe)
    b200_clock_give_event(clock, old);
}

/* The main stream came to `t_ns`: had it nothing to do until this was issued? Adds the gap to the step. */
static int64_t idle_before(struct b200_clock *clock, const struct times *times) {
  bool idle = times->probe != INT64_MIN && times->first - times->probe < IDLE_NS;
  return idle && times->first > clock->busy_until_ns ? times->first - clock->busy_until_ns : idle ? 0 : -1;
}

static void take_gemm(struct b200_clock *clock, const struct b200_entry *entry, const struct times *times) {
  struct b200_epoch *epoch = b200_epoch_at(entry->epoch);
  b200_overlap_gemm(clock->overlap, times->first, times->second);
  if (entry->stream != clock->main_key || !epoch)
    return;
  int64_t idle = idle_before(clock, times);
  if (idle >= 0) {
    epoch->starved++;
    epoch->idle_ns += idle;
    if (epoch->sums.gemms == 0)
      epoch->start_ns += idle;
  }
  epoch->sums.gemms++;
  clock->busy_until_ns = times->second;
}

static void take_boundary(struct b200_clock *clock, const struct b200_entry *entry, const struct times *times) {
  struct b200_epoch *ended = b200_epoch_at(entry->epoch - 1);
  if (ended && ended->gemms) {
    int64_t idle = idle_before(clock, times);
    if (idle > 0) {
      ended->idle_ns += idle;
      ended->start_ns += idle; /* the next step's first work is late: its data are not there yet */
    }
  }
  clock->busy_until_ns = times->first;
  b200_overlap_boundary(clock->overlap, entry->epoch, times->first, ended && ended->gemms);
}

static void take_entry(struct b200_clock *clock, const struct b200_entry *entry, const struct times *times) {
  switch (entry->kind) {
  case COLLECTIVE:
    if (entry->stream == clock->main_key && times->second > clock->busy_until_ns)
      clock->busy_until_ns = times->second;
    b200_overlap_done(clock->overlap, entry->id, times->first, times->second);
    break;
  case WAIT: {
    int64_t resumed = b200_overlap_waited(clock->overlap, &entry->wait, times->first);
    if (entry->stream == clock->main_key && resumed > clock->busy_until_ns)
      clock->busy_until_ns = resumed;
    break;
  }
  case GEMM:
    take_gemm(clock, entry, times);
    break;
  case BOUNDARY:
    take_boundary(clock, entry, times);
    break;
  case DRAINED: /* whatever ran before is no gap */
    if (times->first > clock->busy_until_ns)
      clock->busy_until_ns = times->first;
    break;
  case GRAPH:
    b200_timing_state.graphs_timed++;
    b200_timing_state.graphs_ns += (uint64_t)(times->second - times->first);
    break;
  }
}

/* Reads back what is complete, `most` entries at most. One thread at a time; another goes on with its own work. */
void b200_clock_read_back(struct b200_clock *clock, const struct b200_driver *driver, unsigned most) {
  if (clock->head == clock->tail || b200_runtime_is_capturing() || atomic_exchange(&clock->reading, true))
    return;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed = driver->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  while (most-- > 0 && relaxed && clock->head != clock->tail) {
    const struct b200_entry *entry = &clock->queue[clock->head % QUEUE];
    CUresult status = is_complete(clock, driver, entry);
    if (status == CUDA_ERROR_NOT_READY)
      break;
    struct times times = {0};
    if (status == CUDA_SUCCESS)
      times = times_of(clock, driver, entry);
    uint64_t now = b200_runtime_now_ns();
    pthread_mutex_lock(&b200_timing_state.lock);
    if (times.good) {
      learn_offset(clock, entry, &times, now);
      take_entry(clock, entry, &times);
      move_anchor(clock, entry, &times);
    } else {
      b200_clock_lose(clock, entry, B200_UNTIMED_VENDOR);
    }
    b200_clock_drop_events(clock, entry);
    if (++clock->head == clock->tail)
      clock->head = clock->tail = 0; /* so that a queue that is mostly empty stays in few pages */
    pthread_mutex_unlock(&b200_timing_state.lock);
    if (status != CUDA_SUCCESS)
      b200_clock_failed();
  }
  if (relaxed)
    driver->cuThreadExchangeStreamCaptureMode(&mode);
  atomic_store(&clock->reading, false);
}
