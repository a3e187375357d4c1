/* SPDX-License-Identifier: Apache-2.0 */
/* Throughput on one clock at a time: what the host measured, what the device measured, and what the virtual node modelled
   are never put into one figure. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"
#include "tools/compare/parts.h"
#include "tools/report/print.h"
#include "tools/report/rows.h"

/* ---- where the seconds of a step come from */

enum measure { HOST_STEPS, HOST_PRINTED_TIMES, HOST_PRINTED_RATE, DEVICE_STEPS, MEASURE_COUNT };

static const struct {
  const char *clock, *says;
} measures[MEASURE_COUNT] = {
    [HOST_STEPS] = {"host", "host time of the slowest rank's steps"},
    [HOST_PRINTED_TIMES] = {"host", "time between the losses"},
    [HOST_PRINTED_RATE] = {"host", "seconds per token, from the printed tokens per second"},
    [DEVICE_STEPS] = {"device", "device time of the slowest rank's timed steps"},
};

/* Seconds of each step of one run; `marked` where the source says that it is no ordinary one. */
struct times {
  double *seconds;
  bool *marked;
  size_t count;
};

static void times_add(struct times *times, double seconds, bool marked) {
  times->seconds = b200_grow(times->seconds, times->count, sizeof(*times->seconds));
  times->marked = b200_grow(times->marked, times->count, sizeof(*times->marked));
  times->seconds[times->count] = seconds;
  times->marked[times->count++] = marked;
}

static void times_free(struct times *times) {
  free(times->seconds);
  free(times->marked);
}

static void take_steps(const struct compare_run *run, bool device, struct times *times) {
  for (size_t i = 0; i < run->step_count; i++) {
    double seconds = device ? run->steps[i].device_s : run->steps[i].host_s;
    if (isfinite(seconds) && seconds > 0)
      times_add(times, seconds, run->steps[i].first || run->steps[i].interrupted);
  }
}

static void take_points(const struct compare_run *run, bool rate, struct times *times) {
  for (size_t i = 0; i < run->point_count; i++) {
    const struct compare_point *point = &run->points[i];
    double passed = i ? point->t_s - point[-1].t_s : NAN, steps = i ? (double)(point->step - point[-1].step) : 1;
    double seconds = rate ? (point->tokens_per_s > 0 ? 1 / point->tokens_per_s : NAN) : passed / steps;
    if (isfinite(seconds) && seconds > 0)
      times_add(times, seconds, false);
  }
}

static struct times times_of(const struct compare_run *run, enum measure measure) {
  struct times times = {0};
  if (measure == HOST_STEPS || measure == DEVICE_STEPS)
    take_steps(run, measure == DEVICE_STEPS, &times);
  else
    take_points(run, measure == HOST_PRINTED_RATE, &times);
  return times;
}

/* ---- one clock */

struct side {
  struct speed_run *runs;
  size_t count;
  struct times first; /* of the first run, for the histogram */
  unsigned char *marks;
};

static struct side side_of(const struct compare_arm *arm, enum measure measure) {
  struct side side = {.runs = b200_zeroed(arm->run_count + 1, sizeof(*side.runs)), .count = arm->run_count};
  for (size_t i = 0; i < arm->run_count; i++) {
    struct times times = times_of(&arm->runs[i], measure);
    double *work = b200_zeroed(2 * times.count + 1, sizeof(*work));
    unsigned char *marks = b200_zeroed(times.count + 1, 1);
    speed_run(times.seconds, times.marked, times.count, work, marks, &side.runs[i]);
    free(work);
    if (i == 0) {
      side.first = times;
      side.marks = marks;
    } else {
      times_free(&times);
      free(marks);
    }
  }
  return side;
}

static void side_free(struct side *side) {
  times_free(&side->first);
  free(side->marks);
  free(side->runs);
}

static bool side_is_known(const struct side *side) {
  for (size_t i = 0; i < side->count; i++)
    if (side->runs[i].steady)
      return true;
  return false;
}

/* Median of the tokens per second that a run printed; NAN without any. */
static double printed_rate(const struct compare_run *run) {
  int64_t *rates = b200_zeroed(run->point_count + 1, sizeof(*rates));
  size_t count = 0;
  for (size_t i = run->point_count / 10; i < run->point_count; i++)
    if (run->points[i].tokens_per_s > 0 && run->points[i].tokens_per_s < 1e15)
      rates[count++] = (int64_t)(run->points[i].tokens_per_s * 1000);
  qsort(rates, count, sizeof(*rates), report_by_number);
  double median = count ? (double)rates[count / 2] / 1000 : NAN;
  free(rates);
  return median;
}

/* Geometric mean over the runs that printed one, as the steady step is; NAN without any. */
static double arm_rate(const struct compare_arm *arm) {
  double logs = 0;
  size_t count = 0;
  for (size_t i = 0; i < arm->run_count; i++) {
    double rate = printed_rate(&arm->runs[i]);
    if (rate > 0) {
      logs += log(rate);
      count++;
    }
  }
  return count ? exp(logs / (double)count) : NAN;
}

/* Mean over the runs that have one. */
static double arm_end_to_end(const struct side *side) {
  double sum = 0;
  size_t count = 0;
  for (size_t i = 0; i < side->count; i++)
    if (!isnan(side->runs[i].end_to_end_s)) {
      sum += side->runs[i].end_to_end_s;
      count++;
    }
  return count ? sum / (double)count : NAN;
}

/* Tokens of a step: what was printed per second, times the host's seconds of a step. NAN: not known. */
static double tokens_per_step(const struct compare_run *run) {
  struct side host;
  struct compare_arm alone = {.runs = (struct compare_run *)run, .run_count = 1};
  host = side_of(&alone, run->step_count ? HOST_STEPS : HOST_PRINTED_TIMES);
  double tokens = printed_rate(run) * host.runs[0].steady_s;
  side_free(&host);
  return tokens;
}

static json_t *side_part(const struct compare_arm *arm, const struct side *side, enum measure measure, double steady_s,
                         double price_per_hour) {
  const struct speed_run *first = &side->runs[0];
  double rate = measure == HOST_PRINTED_RATE ? 1 / steady_s
                : measure == DEVICE_STEPS    ? speed_tokens_per_s(tokens_per_step(&arm->runs[0]), steady_s)
                                             : arm_rate(arm);
  bool per_step = measure != HOST_PRINTED_RATE;
  return json_pack("{so so so so so sI sI sI sb so so so}", "steady_s", compare_real(steady_s), "trimmed_s",
                   compare_real(first->trimmed_s), "p95_s", compare_real(first->p95_s), "end_to_end_s",
                   compare_real(arm_end_to_end(side)), "exceptional_s", compare_real(first->exceptional_s), "steps",
                   (json_int_t)first->steps, "warm_up", (json_int_t)first->warm_up, "exceptional",
                   (json_int_t)first->exceptional, "settled", first->settled, "tokens_per_s", compare_real(rate),
                   "cost_per_1000_steps", compare_real(per_step ? speed_cost(1000 * steady_s, price_per_hour) : NAN),
                   "tokens_per_unit", compare_real(speed_tokens_per_unit(rate, price_per_hour)));
}

/* The steps after the warm-up of both first runs. */
static json_t *histogram_part(const struct side sides[2]) {
  const double *seconds[2];
  size_t counts[2];
  for (int i = 0; i < 2; i++) {
    size_t skipped = 0;
    while (skipped < sides[i].first.count && sides[i].marks[skipped] == SPEED_WARM_UP)
      skipped++;
    seconds[i] = sides[i].first.seconds ? sides[i].first.seconds + skipped : NULL;
    counts[i] = sides[i].first.count - skipped;
  }
  return compare_histogram(seconds, counts);
}

static const char *clock_label(enum measure measure, bool modelled) {
  if (measure == DEVICE_STEPS)
    return modelled ? "modelled by the virtual node" : "measured on the device";
  return modelled ? "measured on the host that played the virtual node: it says nothing about a GPU"
                  : "measured on the host";
}

/* NULL unless both sides have that measure. */
static json_t *clock_part(const struct compare_arm *const arms[2], enum measure measure, bool modelled,
                          double price_per_hour) {
  struct side sides[2] = {side_of(arms[0], measure), side_of(arms[1], measure)};
  json_t *part = NULL;
  if (side_is_known(&sides[0]) && side_is_known(&sides[1])) {
    struct speed_ratio ratio;
    bool priced = !modelled || measure == DEVICE_STEPS;
    speed_compare(sides[0].runs, sides[0].count, sides[1].runs, sides[1].count, &ratio);
    part =
        json_pack("{ss ss ss ss so so so so so sb sI sI so so so}", "clock",
                  modelled && measure == DEVICE_STEPS ? "modelled" : measures[measure].clock, "label",
                  clock_label(measure, modelled), "measure", measures[measure].says, "verdict",
                  speed_verdict_names[ratio.verdict], "ratio", compare_real(ratio.ratio), "low", compare_real(ratio.low),
                  "high", compare_real(ratio.high), "end_to_end_ratio", compare_real(ratio.end_to_end_ratio),
                  "could_have_seen_percent", compare_real(ratio.could_have_seen_percent), "run_is_unit", ratio.run_is_unit,
                  "runs_baseline", (json_int_t)ratio.runs_a, "runs_candidate", (json_int_t)ratio.runs_b, "baseline",
                  side_part(arms[0], &sides[0], measure, ratio.steady_a_s, priced ? price_per_hour : NAN), "candidate",
                  side_part(arms[1], &sides[1], measure, ratio.steady_b_s, priced ? price_per_hour : NAN), "histogram",
                  measure == HOST_PRINTED_RATE ? json_null() : histogram_part(sides));
  }
  side_free(&sides[0]);
  side_free(&sides[1]);
  return part;
}

/* ---- where the difference went */

static bool is_whole(const struct compare_step *step) {
  return !step->first && !step->interrupted && isfinite(step->device_s) && isfinite(step->gemm_s) &&
         isfinite(step->blocked_s);
}

/* Means over the ordinary steps of the first run whose GEMMs were timed. */
static struct speed_parts parts_of(const struct compare_arm *arm, size_t *steps) {
  struct speed_parts parts = {0};
  size_t count = 0;
  for (size_t i = 0; arm->run_count && i < arm->runs[0].step_count; i++) {
    const struct compare_step *step = &arm->runs[0].steps[i];
    if (!is_whole(step))
      continue;
    parts.total_s += step->device_s;
    parts.compute_s += step->gemm_s;
    parts.blocked_s += step->blocked_s;
    parts.host_s += step->starved_s;
    count++;
  }
  double by = count ? (double)count : NAN;
  *steps = count;
  return (struct speed_parts){parts.total_s / by, parts.compute_s / by, parts.blocked_s / by, parts.host_s / by};
}

static json_t *parts_json(const struct speed_parts *parts) {
  double known = fmax(parts->compute_s, 0) + fmax(parts->blocked_s, 0) + (isfinite(parts->host_s) ? parts->host_s : 0);
  return json_pack("{so so so so so}", "total_s", compare_real(parts->total_s), "gemm_s", compare_real(parts->compute_s),
                   "blocked_s", compare_real(parts->blocked_s), "host_s", compare_real(parts->host_s), "other_s",
                   compare_real(fmax(parts->total_s - known, 0)));
}

static json_t *split_part(const struct compare_arm *const arms[2], bool modelled) {
  size_t steps[2];
  struct speed_parts a = parts_of(arms[0], &steps[0]), b = parts_of(arms[1], &steps[1]);
  if (!steps[0] || !steps[1])
    return json_null();
  struct speed_split split = speed_split(&a, &b);
  return json_pack("{ss s[II] so so s{so so so so so}}", "clock", modelled ? "modelled" : "device", "steps",
                   (json_int_t)steps[0], (json_int_t)steps[1], "baseline", parts_json(&a), "candidate", parts_json(&b),
                   "difference", "total_s", compare_real(split.total_s), "gemm_s", compare_real(split.compute_s),
                   "blocked_s", compare_real(split.blocked_s), "host_s", compare_real(split.host_s), "other_s",
                   compare_real(split.other_s));
}

/* ---- the whole */

/* -1: no run has logs; else whether the runs are of a virtual node. `mixed` when an arm, or both together, have both. */
static int is_modelled(const struct compare_arm *const arms[2], bool *mixed) {
  int found = -1;
  *mixed = false;
  for (int side = 0; side < 2; side++)
    for (size_t i = 0; i < arms[side]->run_count; i++) {
      const struct compare_run *run = &arms[side]->runs[i];
      if (run->source != COMPARE_LOGS || !run->ranks)
        continue;
      *mixed |= found >= 0 && found != (int)run->modelled;
      found = run->modelled;
    }
  return found;
}

json_t *compare_throughput(const struct compare_arm *const arms[2], double price_per_hour) {
  bool mixed;
  int modelled = is_modelled(arms, &mixed);
  json_t *clocks = json_array();
  if (!mixed) {
    json_t *device = clock_part(arms, DEVICE_STEPS, modelled == 1, price_per_hour);
    json_t *host = NULL;
    for (enum measure measure = HOST_STEPS; !host && measure <= HOST_PRINTED_RATE; measure++)
      host = clock_part(arms, measure, modelled == 1, price_per_hour);
    /* On a virtual node only the model speaks of a GPU; elsewhere the host saw every step, and all of it. */
    json_t *order[2] = {modelled == 1 ? device : host, modelled == 1 ? host : device};
    for (int i = 0; i < 2; i++)
      if (order[i])
        json_array_append_new(clocks, order[i]);
  }
  const char *why = mixed ? "one run is of the virtual node and another is not: modelled and measured times are not compared"
                    : json_array_size(clocks) ? NULL
                                              : "there are no times of steps on both sides";
  return json_pack("{sb sb so so so}", "modelled", modelled == 1, "mixed", mixed, "why_not",
                   why ? json_string(why) : json_null(), "clocks", clocks, "split",
                   mixed ? json_null() : split_part(arms, modelled == 1));
}

/* ---- time to equal loss */

/* The curve with times of the modelled clock: every step takes the steady time. */
static struct compare_point *on_model(const struct compare_run *run, double step_s) {
  struct compare_point *points = b200_zeroed(run->point_count + 1, sizeof(*points));
  for (size_t i = 0; i < run->point_count; i++) {
    points[i] = run->points[i];
    points[i].t_s = (double)(run->points[i].step - run->points[0].step + 1) * step_s;
  }
  return points;
}

json_t *compare_time_to_loss(const struct compare_run *a, const struct compare_run *b, const json_t *throughput,
                             double price_per_hour) {
  const json_t *clock = json_array_get(json_object_get(throughput, "clocks"), 0);
  bool modelled = json_is_true(json_object_get(throughput, "modelled"));
  struct loss_time times[LOSS_LEVELS];
  struct compare_point *points[2] = {a->points, b->points};
  if (json_is_true(json_object_get(throughput, "mixed")) ||
      (modelled && strcmp(report_string(clock, "clock"), "modelled") != 0))
    return json_null();
  if (modelled) {
    points[0] = on_model(a, report_real(json_object_get(clock, "baseline"), "steady_s"));
    points[1] = on_model(b, report_real(json_object_get(clock, "candidate"), "steady_s"));
  }
  size_t count = loss_time_to_equal(points[0], a->point_count, points[1], b->point_count, times);
  if (modelled) {
    free(points[0]);
    free(points[1]);
  }
  if (!count)
    return json_null();
  json_t *rows = json_array();
  for (size_t i = 0; i < count; i++)
    json_array_append_new(rows,
                          json_pack("{sf so so so so so}", "level", times[i].level, "baseline_s", compare_real(times[i].a_s),
                                    "candidate_s", compare_real(times[i].b_s), "speedup", compare_real(times[i].speedup),
                                    "baseline_cost", compare_real(speed_cost(times[i].a_s, price_per_hour)),
                                    "candidate_cost", compare_real(speed_cost(times[i].b_s, price_per_hour))));
  return json_pack("{ss ss so}", "clock", modelled ? "modelled" : "host", "says",
                   modelled ? "modelled time of the steps" : "time since the run began, as the host measured it", "levels",
                   rows);
}
