/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare/speed.h"

#include <math.h>

#include "tools/compare/stats.h"

#define WARM_UP_LEAST 10
#define WARM_UP_SHARE 10 /* one step in so many */
#define ROLLING 20
#define SETTLED 0.02
#define EXCEPTIONAL_SD 3
#define EXCEPTIONAL_LEAST 0.02 /* of the median: where steps hardly vary, what does not matter is not exceptional */
#define TRIMMED 0.1            /* at either end */
/* Standard error of a median over that of a mean, of normal values: sqrt(pi / 2). */
#define MEDIAN_OVER_MEAN 1.2533141373155003

const char *const speed_verdict_names[SPEED_VERDICT_COUNT] = {
    [SPEED_FASTER] = "FASTER",
    [SPEED_SLOWER] = "SLOWER",
    [SPEED_NO_DIFFERENCE] = "NO DIFFERENCE",
    [SPEED_UNKNOWN] = "UNKNOWN",
};

static bool is_time(double seconds) {
  return isfinite(seconds) && seconds > 0;
}

/* Copies the times of [from, to) that are times; with marks, only of steady steps. Returns how many. */
static size_t gather(const double *seconds, size_t from, size_t to, const unsigned char *marks, double *out) {
  size_t count = 0;
  for (size_t i = from; i < to; i++)
    if (is_time(seconds[i]) && (!marks || marks[i] == SPEED_STEADY))
      out[count++] = seconds[i];
  return count;
}

static double median_of(const double *seconds, size_t from, size_t to, double *work) {
  return stats_median(work, gather(seconds, from, to, NULL, work));
}

static size_t warm_up(const double *seconds, size_t count, double *work, bool *settled) {
  size_t least = count / WARM_UP_SHARE > WARM_UP_LEAST ? count / WARM_UP_SHARE : WARM_UP_LEAST;
  double final = median_of(seconds, count / 2, count, work);
  for (size_t from = least; from <= count / 2 && from + ROLLING <= count; from++)
    if (fabs(median_of(seconds, from, from + ROLLING, work) - final) <= SETTLED * final) {
      *settled = true;
      return from;
    }
  *settled = false;
  return least < count ? least : count;
}

static void mark(const double *seconds, const bool *marked, size_t count, double *work, unsigned char *marks,
                 struct speed_run *run) {
  run->warm_up = warm_up(seconds, count, work, &run->settled);
  size_t known = gather(seconds, run->warm_up, count, NULL, work);
  double median = stats_median(work, known);
  double bound = median + fmax(EXCEPTIONAL_SD * STATS_MAD_SD * stats_mad(work, known, median, work + count),
                               EXCEPTIONAL_LEAST * median);
  for (size_t i = 0; i < count; i++) {
    if (i < run->warm_up)
      marks[i] = SPEED_WARM_UP;
    else if (!is_time(seconds[i]) || seconds[i] > bound || (marked && marked[i]))
      marks[i] = SPEED_EXCEPTIONAL;
    else
      marks[i] = SPEED_STEADY;
    run->steady += marks[i] == SPEED_STEADY;
    run->exceptional += marks[i] == SPEED_EXCEPTIONAL;
  }
}

/* Standard error of the logarithm of the median of dependent values: by the medians of blocks, or by the effective count of
   an AR(1), whichever makes the wider interval. Overwrites `values`. */
static void median_error(double *values, size_t count, double *work, struct speed_run *run) {
  double p = (1 + SPEED_CONFIDENCE) / 2, medians[STATS_BLOCKS];
  for (size_t i = 0; i < count; i++)
    values[i] = log(values[i]);
  double effective = stats_effective_count(count, stats_lag1_corrected(values, count));
  double by_ar1 = MEDIAN_OVER_MEAN * stats_sd(values, count) / sqrt(effective);
  size_t size = count / STATS_BLOCKS, skipped = count % STATS_BLOCKS;
  for (size_t block = 0; block < STATS_BLOCKS; block++) {
    for (size_t i = 0; i < size; i++)
      work[i] = values[skipped + block * size + i];
    medians[block] = stats_median(work, size);
  }
  double by_blocks = stats_sd(medians, STATS_BLOCKS) / sqrt(STATS_BLOCKS);
  bool blocks_wider = stats_t_quantile(p, STATS_BLOCKS - 1) * by_blocks > stats_t_quantile(p, effective - 1) * by_ar1;
  run->log_error = blocks_wider ? by_blocks : by_ar1;
  run->freedom = blocks_wider ? STATS_BLOCKS - 1 : effective - 1;
}

void speed_run(const double *seconds, const bool *marked, size_t count, double *work, unsigned char *marks,
               struct speed_run *run) {
  *run = (struct speed_run){.steps = count, .log_error = NAN, .freedom = NAN};
  mark(seconds, marked, count, work, marks, run);
  size_t known = gather(seconds, run->warm_up, count, NULL, work);
  run->end_to_end_s = stats_mean(work, known);
  run->p95_s = stats_quantile(work, known, 0.95);
  size_t steady = gather(seconds, run->warm_up, count, marks, work);
  if (steady >= SPEED_STEPS_LEAST)
    median_error(work, steady, work + count, run);
  steady = gather(seconds, run->warm_up, count, marks, work);
  run->steady_s = stats_median(work, steady);
  run->trimmed_s = stats_trimmed_mean(work, steady, TRIMMED);
  for (size_t i = run->warm_up; i < count; i++)
    if (marks[i] == SPEED_EXCEPTIONAL && is_time(seconds[i]) && steady)
      run->exceptional_s += seconds[i] - run->steady_s;
}

/* ---- two arms */

struct arm {
  struct stats_estimate log_time; /* of the mean over runs */
  double squares;                 /* of deviations between runs */
  size_t runs;                    /* with steady steps */
  double end_to_end_s;
};

static struct arm arm_of(const struct speed_run *runs, size_t count) {
  struct arm arm = {.log_time = {0, 0, NAN}};
  double variance = 0, freedom_parts = 0;
  for (size_t i = 0; i < count; i++) {
    if (isnan(runs[i].steady_s))
      continue;
    arm.runs++;
    arm.log_time.value += log(runs[i].steady_s);
    arm.end_to_end_s += runs[i].end_to_end_s;
    double part = runs[i].log_error * runs[i].log_error;
    variance += part;
    freedom_parts += part * part / runs[i].freedom;
  }
  double number = (double)arm.runs;
  arm.log_time.value /= number; /* NAN without runs */
  arm.end_to_end_s /= number;
  arm.log_time.error = sqrt(variance) / number;
  arm.log_time.freedom = variance == 0 ? INFINITY : variance * variance / freedom_parts;
  for (size_t i = 0; i < count; i++)
    if (!isnan(runs[i].steady_s))
      arm.squares += pow(log(runs[i].steady_s) - arm.log_time.value, 2);
  return arm;
}

/* The run as the unit: what steps within a run say about its error does not count. */
static void by_runs(struct arm *arm) {
  double number = (double)arm->runs;
  arm->log_time.error = sqrt(arm->squares / (number - 1) / number);
  arm->log_time.freedom = number - 1;
}

static enum speed_verdict verdict_of(const struct speed_ratio *ratio) {
  if (isnan(ratio->low) || isnan(ratio->high))
    return SPEED_UNKNOWN;
  if (ratio->low > 1)
    return SPEED_FASTER;
  return ratio->high < 1 ? SPEED_SLOWER : SPEED_NO_DIFFERENCE;
}

void speed_compare(const struct speed_run *a, size_t count_a, const struct speed_run *b, size_t count_b,
                   struct speed_ratio *ratio) {
  struct arm arm_a = arm_of(a, count_a), arm_b = arm_of(b, count_b);
  *ratio = (struct speed_ratio){
      .runs_a = arm_a.runs,
      .runs_b = arm_b.runs,
      .run_is_unit = arm_a.runs >= SPEED_RUNS && arm_b.runs >= SPEED_RUNS,
      .steady_a_s = exp(arm_a.log_time.value),
      .steady_b_s = exp(arm_b.log_time.value),
      .end_to_end_ratio = arm_a.end_to_end_s / arm_b.end_to_end_s,
  };
  if (ratio->run_is_unit) {
    by_runs(&arm_a);
    by_runs(&arm_b);
  }
  struct stats_estimate gain = stats_difference(arm_b.log_time, arm_a.log_time);
  double wide = stats_t_quantile((1 + SPEED_CONFIDENCE) / 2, gain.freedom);
  double power = stats_t_quantile(SPEED_POWER, gain.freedom);
  ratio->freedom = gain.freedom;
  ratio->ratio = exp(gain.value);
  ratio->low = exp(gain.value - wide * gain.error);
  ratio->high = exp(gain.value + wide * gain.error);
  ratio->could_have_seen_percent = 100 * expm1((wide + power) * gain.error);
  ratio->verdict = verdict_of(ratio);
}

/* ---- where it went, and what it costs */

struct speed_split speed_split(const struct speed_parts *a, const struct speed_parts *b) {
  struct speed_split split = {
      .total_s = b->total_s - a->total_s,
      .compute_s = b->compute_s - a->compute_s,
      .blocked_s = b->blocked_s - a->blocked_s,
      .host_s = b->host_s - a->host_s,
  };
  const double known[] = {split.compute_s, split.blocked_s, split.host_s};
  split.other_s = split.total_s;
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
    split.other_s -= isnan(known[i]) ? 0 : known[i];
  return split;
}

static double ratio_of(double dividend, double divisor) {
  return dividend > 0 && divisor > 0 ? dividend / divisor : NAN;
}

double speed_tokens_per_s(double tokens_per_step, double step_s) {
  return ratio_of(tokens_per_step, step_s);
}

double speed_cost(double seconds, double price_per_hour) {
  return seconds > 0 && price_per_hour > 0 ? seconds / 3600 * price_per_hour : NAN;
}

double speed_tokens_per_unit(double tokens_per_s, double price_per_hour) {
  return ratio_of(tokens_per_s * 3600, price_per_hour);
}
