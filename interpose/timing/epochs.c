/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "interpose/timing/internal.h"

_Atomic unsigned b200_timing_wants;

struct b200_epoch *b200_epoch_at(uint64_t number) {
  struct b200_epoch *epoch = &b200_timing_state.epochs[number % EPOCHS];
  return epoch->number == number ? epoch : NULL;
}

void b200_epoch_set_wants(const struct b200_epoch *epoch) {
  unsigned wants = 0;
  if (b200_timing_state.mode != B200_TIMING_OFF) {
    wants |= epoch->active ? B200_TIMING_ACTIVE : 0;
    wants |= epoch->active && epoch->gemms ? B200_TIMING_GEMMS : 0;
    wants |= b200_timing_state.from_gemms ? B200_TIMING_STEPS : 0;
  }
  for (int i = 0; i < CLOCKS && wants; i++) {
    struct b200_clock *clock = atomic_load(&b200_timing_state.clocks[i]);
    if (clock && b200_overlap_has_blocking(clock->overlap))
      wants |= B200_TIMING_BLOCKING;
  }
  atomic_store_explicit(&b200_timing_wants, wants, memory_order_relaxed);
}

void b200_timing_change_mode(int mode, const char *why) {
  b200_timing_state.mode = mode;
  b200_timing_state.why = why;
  b200_timing_write_mode(NULL);
}

/* A step of the window in which every second one is left untimed. */
static bool in_window(uint64_t number) {
  return number >= WINDOW_FIRST && (number - WINDOW_FIRST) % WINDOW_EVERY < WINDOW_STEPS;
}

static void plan_epoch(struct b200_epoch *epoch) {
  uint64_t every = (uint64_t)b200_timing_state.config->timing_every;
  bool sample = epoch->number % every == every / 2;
  bool window =
      in_window(epoch->number) && b200_timing_state.mode == B200_TIMING_ON && b200_timing_state.config->overhead_max_pct > 0;
  epoch->gemms = sample && !window;
  epoch->active = window ? epoch->number % 2 == 0 : b200_timing_state.mode == B200_TIMING_ON || sample;
}

void b200_timing_start(const struct b200_config *config, bool single_connection) {
  b200_timing_state.config = config;
  b200_timing_state.single_connection = single_connection;
  bool crowded = single_connection && config->timing == B200_TIMING_AUTO;
  b200_timing_state.why = config->timing == B200_TIMING_AUTO ? "default" : "told";
  b200_timing_state.mode = config->timing == B200_TIMING_AUTO ? B200_TIMING_ON : (int)config->timing;
  if (crowded) {
    b200_timing_state.mode = B200_TIMING_SAMPLED;
    b200_timing_state.why = "max_connections";
  }
  b200_timing_state.from_gemms = true;
  struct b200_epoch *first = &b200_timing_state.epochs[0];
  *first = (struct b200_epoch){.active = b200_timing_state.mode == B200_TIMING_ON, .ordinal = UINT64_MAX};
  b200_epoch_set_wants(first);
  b200_timing_write_mode(NULL);
}

/* --- what the timing costs */

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Median, and its standard error from the median absolute deviation (normal: 1.2533 · 1.4826 · MAD / √n). */
static double median_of(uint64_t *values, unsigned count, double *error) {
  uint64_t off[WINDOW_STEPS];
  qsort(values, count, sizeof *values, by_value);
  uint64_t median = values[count / 2];
  for (unsigned i = 0; i < count; i++)
    off[i] = values[i] > median ? values[i] - median : median - values[i];
  qsort(off, count, sizeof *off, by_value);
  *error = 1.2533 * 1.4826 * (double)off[count / 2] / sqrt((double)count);
  return (double)median;
}

/* pre: the lock is held. The window is over: what has the timing cost? */
static void judge_overhead(void) {
  enum { LEAST = 8 };
  double off_error, on_error;
  if (b200_timing_state.timed_steps[0] >= LEAST && b200_timing_state.timed_steps[1] >= LEAST) {
    double off = median_of(b200_timing_state.timed_steps_ns[0], b200_timing_state.timed_steps[0], &off_error);
    double on = median_of(b200_timing_state.timed_steps_ns[1], b200_timing_state.timed_steps[1], &on_error);
    double percent = off > 0 ? 100 * (on - off) / off : 0;
    double noise = off > 0 ? 196 * sqrt(off_error * off_error + on_error * on_error) / off : 0;
    struct b200_line line;
    b200_line_begin(&line, B200_RECORD_overhead);
    b200_line_uint(&line, B200_FIELD_overhead_steps, b200_timing_state.timed_steps[0]);
    b200_line_uint(&line, B200_FIELD_overhead_on_ns, (uint64_t)on);
    b200_line_uint(&line, B200_FIELD_overhead_off_ns, (uint64_t)off);
    b200_line_real(&line, B200_FIELD_overhead_pct, percent);
    b200_line_real(&line, B200_FIELD_overhead_noise_pct, noise);
    b200_runtime_put(&line);
    if (percent - noise > (double)b200_timing_state.config->overhead_max_pct) {
      b200_timing_change_mode(B200_TIMING_SAMPLED, "overhead");
      b200_timing_state.too_much = percent;
    }
  }
  b200_timing_state.timed_steps[0] = b200_timing_state.timed_steps[1] = 0;
}

/* pre: the lock is held. */
static void measure_overhead(const struct b200_epoch *ended, uint64_t now) {
  if (in_window(ended->number) && b200_timing_state.mode == B200_TIMING_ON &&
      b200_timing_state.config->overhead_max_pct > 0 && ended->host_ns > 0) {
    bool on = ended->active;
    if (b200_timing_state.timed_steps[on] < WINDOW_STEPS)
      b200_timing_state.timed_steps_ns[on][b200_timing_state.timed_steps[on]++] = now - ended->host_ns;
  } else if (b200_timing_state.timed_steps[0] + b200_timing_state.timed_steps[1] > 0) {
    judge_overhead();
  }
}

/* --- steps */

static void offer_metrics(const struct b200_overlap_step *sums) {
  const double second = 1e-9;
  b200_runtime_metric(B200_METRIC_device_s, second * (double)(sums->t_end_ns - sums->t_start_ns));
  b200_runtime_metric(B200_METRIC_comm_s, second * (double)sums->comm_ns);
  b200_runtime_metric(B200_METRIC_blocked_s, second * (double)sums->blocked_ns);
  if (sums->busy_ns > 0)
    b200_runtime_metric(B200_METRIC_hidden, 1 - (double)sums->blocked_ns / (double)sums->busy_ns);
  if (sums->uncovered_ns >= 0)
    b200_runtime_metric(B200_METRIC_uncovered_s, second * (double)sums->uncovered_ns);
}

/* pre: the lock is held. A step is written once it has both its number and its times. */
static void write_when_complete(struct b200_epoch *epoch) {
  if (!epoch->named || !epoch->finished)
    return;
  b200_timing_write_time(epoch);
  offer_metrics(&epoch->sums);
  epoch->finished = false;
}

/* Clock and mode are known well enough to be said once the first step is over. */
static void say_mode(const struct b200_clock *clock) {
  if (!b200_timing_state.said_mode)
    b200_timing_write_mode(clock);
  b200_timing_state.said_mode = true;
}

void b200_timing_sink_step(void *context, const struct b200_overlap_step *step) {
  struct b200_epoch *epoch = b200_epoch_at(step->step);
  if (!epoch || !epoch->active || step->step == 0)
    return;
  double dev_ns = (double)(step->t_end_ns - step->t_start_ns);
  epoch->slow = b200_timing_state.usual_ns > 0 && dev_ns > 1.5 * b200_timing_state.usual_ns;
  b200_timing_state.usual_ns = b200_timing_state.usual_ns > 0 ? 0.9 * b200_timing_state.usual_ns + 0.1 * dev_ns : dev_ns;
  epoch->sums = *step;
  epoch->finished = true;
  say_mode(context);
  write_when_complete(epoch);
}

static void say_too_much(double percent) {
  char text[160];
  snprintf(text, sizeof text,
           "timing makes steps %.3g %% longer, more than B200OPT_OVERHEAD_MAX_PCT=%d: one step in %d is timed from now on",
           percent, (int)b200_timing_state.config->overhead_max_pct, (int)b200_timing_state.config->timing_every);
  b200_runtime_say(text);
}

/* A step begins with the next operation; `stream` serves when no GEMM has named a main stream. */
void b200_timing_boundary(void *stream, const struct b200_totals *before) {
  const struct b200_driver *d = b200_driver_find();
  struct b200_clock *clock = d ? b200_clock_current(d) : NULL;
  if (!clock)
    return;
  pthread_mutex_lock(&b200_timing_state.lock);
  struct b200_epoch *ended = b200_epoch_at(b200_timing_state.epoch);
  bool same = ended && ended->ordinal == before->ordinal;
  bool was_active = ended && ended->active && ended->number > 0, had_gemms = ended && ended->gemms;
  if (same) {
    pthread_mutex_unlock(&b200_timing_state.lock);
    return;
  }
  if (ended)
    measure_overhead(ended, before->t_ns);
  struct b200_epoch *epoch = &b200_timing_state.epochs[++b200_timing_state.epoch % EPOCHS];
  *epoch = (struct b200_epoch){.number = b200_timing_state.epoch, .ordinal = before->ordinal, .host_ns = before->t_ns};
  plan_epoch(epoch);
  bool needed = was_active || epoch->active;
  struct b200_entry entry = {
      .kind = BOUNDARY, .epoch = epoch->number, .issued_ns = b200_runtime_now_ns(), .stream = clock->main_key};
  CUstream on = clock->has_main ? clock->main_stream : (CUstream)stream;
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *any = atomic_load(&b200_timing_state.clocks[i]);
    if (any)
      b200_overlap_step(any->overlap, epoch->number);
  }
  b200_epoch_set_wants(epoch);
  double too_much = b200_timing_state.too_much;
  b200_timing_state.too_much = 0;
  pthread_mutex_unlock(&b200_timing_state.lock);
  if (too_much > 0)
    say_too_much(too_much);
  if (!needed || b200_timing_state.mode == B200_TIMING_OFF || b200_clock_is_captured(d, on))
    return;
  entry.probe = had_gemms ? b200_clock_stamp_issue(clock, d) : NULL;
  entry.first = b200_clock_stamp(clock, d, on);
  if (entry.first)
    b200_clock_push(clock, &entry);
  b200_clock_read_back(clock, d, AT_ONCE);
}

void b200_timing_step(const struct b200_step *step) {
  pthread_mutex_lock(&b200_timing_state.lock);
  for (int i = 0; i < EPOCHS; i++) {
    struct b200_epoch *epoch = &b200_timing_state.epochs[i];
    if (epoch->number == 0 || epoch->named || epoch->ordinal != step->start.ordinal)
      continue;
    epoch->named = true;
    epoch->gen = step->generation;
    epoch->index = step->index;
    write_when_complete(epoch);
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
}
