/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/live.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "interpose/runtime.h"

/* Standard streams that this program was started without: their numbers go to the first files that it opens. */
static bool closed[STDERR_FILENO + 1];

__attribute__((constructor)) static void look_at_streams(void) {
  int saved_errno = errno;
  for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
    closed[fd] = fcntl(fd, F_GETFD) < 0;
  errno = saved_errno;
}

/* Where the lines go; -1: nowhere. */
static int stream_of(const struct b200_config *config, int rank) {
  if (config->metrics == B200_METRICS_OFF || rank > 0)
    return -1;
  int stream = config->metrics == B200_METRICS_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
  if (!closed[stream])
    return stream;
  b200_runtime_say("metrics: the stream of B200OPT_METRICS is closed, no lines of metrics; the job is not affected");
  return -1;
}

void b200_live_start(struct b200_live *live, const struct b200_config *config) {
  struct b200_launch launch;
  b200_launch_load(&launch);
  struct b200_meter_config meter = {.stream = stream_of(config, launch.rank),
                                    .every = config->metrics_every,
                                    .prometheus = config->prometheus_file,
                                    .labels = {.rank = launch.rank < 0 ? 0 : launch.rank},
                                    .say = b200_runtime_say};
  b200_config_run_name(config, meter.labels.run, sizeof meter.labels.run);
  snprintf(meter.labels.arm, sizeof meter.labels.arm, "%.255s", config->arm);
  live->told = config->step_period > 0;
  b200_meter_start(&live->meter, &meter);
}

/* ------------------------------------------------------------------------------------------------------- the log */

static void mark(const struct b200_step *step, const char *what, uint64_t count) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_mark);
  b200_line_uint(&line, B200_FIELD_mark_gen, step->generation);
  b200_line_uint(&line, B200_FIELD_mark_step, step->index);
  b200_line_text(&line, B200_FIELD_mark_what, what);
  b200_line_uint(&line, B200_FIELD_mark_count, count);
  b200_runtime_put(&line);
}

static void say_confidence(struct b200_live *live, const struct b200_totals *now) {
  struct b200_confidence confidence;
  struct b200_line line;
  b200_step_sources_take(&live->sources, now, &confidence);
  if (confidence.asked_count == 0)
    return;
  b200_line_begin(&line, B200_RECORD_confidence);
  b200_line_object(&line, B200_FIELD_confidence_sources);
  for (int i = 0; i < B200_STEP_SOURCE_COUNT; i++)
    if (confidence.asked[i])
      b200_line_member_uint(&line, b200_step_source_names[i], confidence.steps[i]);
  b200_line_object_end(&line);
  b200_line_uint(&line, B200_FIELD_confidence_agree, confidence.agree_count);
  b200_line_uint(&line, B200_FIELD_confidence_asked, confidence.asked_count);
  b200_runtime_put(&line);
}

/* ------------------------------------------------------------------------------------------------------ metrics */

static void set_step(struct b200_meter *meter, const struct b200_step *step) {
  const struct b200_totals *start = &step->start, *end = &step->end;
  double seconds = (double)(end->t_ns - start->t_ns) * 1e-9;
  double flops = (double)(end->gemm_flops - start->gemm_flops);
  b200_meter_set(meter, B200_METRIC_step, (double)step->index);
  b200_meter_set(meter, B200_METRIC_steps, (double)(step->index + 1));
  if (!step->last) { /* whose time is not like the others' */
    b200_meter_set(meter, B200_METRIC_step_s, seconds);
    b200_meter_set(meter, B200_METRIC_gemm_flops_per_s, flops / seconds);
  }
  b200_meter_set(meter, B200_METRIC_gemm_flops, (double)end->gemm_flops);
  b200_meter_set(meter, B200_METRIC_coll_calls, (double)end->coll_calls);
  b200_meter_set(meter, B200_METRIC_coll_bytes, (double)end->coll_bytes);
  if (start->hbm_used_bytes > 0)
    b200_meter_set(meter, B200_METRIC_hbm_used, (double)start->hbm_used_bytes);
}

bool b200_live_step(struct b200_live *live, const struct b200_step *step) {
  uint64_t optimizer_steps = step->end.optimizer_steps - step->start.optimizer_steps;
  if (step->index == 0)
    mark(step, "first", 1);
  if (step->interrupted)
    mark(step, "interrupted", 1);
  if (step->last)
    mark(step, "last", 1);
  if (optimizer_steps > 0)
    mark(step, "optimizer", optimizer_steps);
  if (b200_step_sources_step(&live->sources, step, live->told))
    say_confidence(live, &step->end);
  set_step(&live->meter, step);
  return b200_meter_step(&live->meter, step->index);
}

void b200_live_loss(struct b200_live *live, const struct b200_loss *loss, uint64_t t_ns) {
  b200_step_sources_printed(&live->sources, loss->step, t_ns);
  b200_meter_set(&live->meter, B200_METRIC_loss, loss->loss);
  if (loss->tokens_per_s > 0)
    b200_meter_set(&live->meter, B200_METRIC_tokens_per_s, loss->tokens_per_s);
}

void b200_live_finish(struct b200_live *live, const struct b200_totals *now) {
  say_confidence(live, now);
  b200_meter_finish(&live->meter);
}
