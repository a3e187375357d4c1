/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare/loss.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/compare/stats.h"

#define START_STEPS 5
#define START_LAST_STEP 10 /* a log that begins later, or is too coarse, says nothing about the start */
#define EARLY_FROM 20      /* common steps whose noise is compared: before them the curve falls too steeply … */
#define EARLY_TO 220       /* … and after them runs on the same data have drifted apart */
#define NOISE_LEAST 60     /* fewer values have no correlation worth a verdict */
#define SPIKE_SD 4
#define GAP_MOST 1e6   /* percent: what a run that explodes is taken to be, so that sums stay exact and squares finite */
#define SLOPE_T_SEEN 2 /* below, the baseline's loss does not fall: no lag in steps */
#define PAIRS_MOST 1000
#define SHIFT_ALIKE 0.25 /* of the mean square: half the difference */
#define NORMAL_95 1.6448536269514722

const char *const loss_verdict_names[LOSS_VERDICT_COUNT] = {
    [LOSS_EQUIVALENT] = "EQUIVALENT",     [LOSS_BETTER] = "BETTER",   [LOSS_WORSE] = "WORSE",
    [LOSS_INCONCLUSIVE] = "INCONCLUSIVE", [LOSS_INVALID] = "INVALID", [LOSS_DIVERGED] = "DIVERGED",
};

int loss_verdict_exit(enum loss_verdict verdict) {
  static const int statuses[LOSS_VERDICT_COUNT] = {
      [LOSS_WORSE] = 1, [LOSS_INCONCLUSIVE] = 2, [LOSS_INVALID] = 3, [LOSS_DIVERGED] = 4};
  return statuses[verdict];
}

const char *const loss_reason_texts[LOSS_REASON_COUNT] = {
    [LOSS_BY_INTERVAL] = "the interval of the gap against the margin",
    [LOSS_BY_IDENTITY] = "every common step has the same loss",
    [LOSS_BY_NONFINITE] = "the candidate's loss is NaN or infinite where the baseline's is not",
    [LOSS_BY_RISE] = "the candidate is far above the baseline and rises",
    [LOSS_BY_BASELINE] = "the baseline's own loss is NaN or infinite",
    [LOSS_BY_OVERLAP] = "too few steps are in both runs",
    [LOSS_BY_SIGN] = "the baseline's loss is not above 0, so that a gap in percent has no meaning",
    [LOSS_BY_DATA] = "the runs saw other data, or the same data in another order",
    [LOSS_BY_SHIFT] = "the runs number their steps differently by one",
    [LOSS_BY_START] =
        "the first steps differ by more than rounding explains: start or configuration differs, or the recipe is broken",
    [LOSS_BY_GROWTH] = "the gap grows and would leave the margin",
    [LOSS_BY_LENGTH] = "too few steps",
};

/* Where the classes lay that each bound divides: tests/compare/thresholds.c. */
const struct loss_threshold_row loss_thresholds[LOSS_THRESHOLD_COUNT] = {
    [LOSS_T_SAME_DATA] = {"same_data", "", "correlation of the noise: another order of the data | the same data, any recipe",
                          0.3},
    [LOSS_T_SAME_START] = {"same_start", "%",
                           "difference of the first steps: the same start, FP8 | another start, a broken recipe", 0.15},
    [LOSS_T_FAR] = {"far", "%", "gap of the window: recipes that train | recipes that do not", 20},
    [LOSS_T_RISING] = {"rising", "%", "window above the best window: runs that train | runs that diverge", 2},
    [LOSS_T_FLOOR] = {"floor_factor", "", "half-width per floor: what covers 90 % of the offsets of whole runs", 1.75},
    [LOSS_T_GROWTH] = {"growth_t", "", "t of the gap's slope: gaps that stay | gaps that grow", 3.1},
};

static double threshold(enum loss_threshold which) {
  return loss_thresholds[which].value;
}

double loss_default_margin(size_t common, double floor_percent) {
  return common >= 1000 && !isnan(floor_percent) ? 0.25 : 1;
}

size_t loss_steps_advised(double margin_percent, double sd_percent, double lag1) {
  if (sd_percent > 0.6 || lag1 > 0.5)
    return 2000;
  return margin_percent >= 0.5 ? 300 : 1000;
}

double loss_floor(const double *gaps_percent, size_t count) {
  double squares = 0;
  for (size_t i = 0; i < count; i++)
    squares += gaps_percent[i] * gaps_percent[i];
  return count >= LOSS_FLOOR_PAIRS ? sqrt(squares / (double)count) : NAN;
}

double loss_floor_between(double floor_a, double floor_b) {
  if (isnan(floor_a) || isnan(floor_b))
    return isnan(floor_a) ? floor_b : floor_a;
  return sqrt((floor_a * floor_a + floor_b * floor_b) / 2);
}

/* ---- series */

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

static size_t most(size_t a, size_t b) {
  return a > b ? a : b;
}

/* Centred means; at the ends of what is there. Each from its own sum, so that a NaN stays where it is. */
static void smooth(const double *values, size_t count, double *out) {
  for (size_t i = 0; i < count; i++) {
    size_t from = i - least(i, LOSS_SMOOTH / 2);
    out[i] = stats_mean(values + from, least(count, i + LOSS_SMOOTH / 2 + 1) - from);
  }
}

/* A NaN stays one. */
static double clipped(double value, double most_of_it) {
  return value > most_of_it ? most_of_it : value < -most_of_it ? -most_of_it : value;
}

/* Room for `count` common steps, in one block that begins at `steps`; `work` gets room for twice as many. */
static void series_make(struct loss_series *series, size_t count, double **work) {
  double **arrays[] = {&series->a,   &series->b,   &series->smooth_a, &series->smooth_b, &series->gap, &series->smooth_gap,
                       &series->t_a, &series->t_b, &series->norm_a,   &series->norm_b,   work};
  size_t number = sizeof(arrays) / sizeof(arrays[0]);
  static_assert(sizeof(int64_t) == sizeof(double), "one block holds both");
  series->count = 0;
  series->steps = b200_zeroed(count * (number + 2), sizeof(double));
  for (size_t i = 0; i < number; i++)
    *arrays[i] = (double *)(void *)(series->steps + count * (i + 1));
}

void loss_series_free(struct loss_series *series) {
  free(series->steps);
  memset(series, 0, sizeof(*series));
}

/* The steps that both have and in which both, or neither, is finite: of the latter nothing can be said, they are left out.
 */
static void series_fill(struct loss_series *series, const struct compare_point *a, size_t count_a,
                        const struct compare_point *b, size_t count_b) {
  for (size_t i = 0, j = 0; i < count_a && j < count_b;) {
    if (a[i].step != b[j].step) {
      *(a[i].step < b[j].step ? &i : &j) += 1;
      continue;
    }
    if (isfinite(a[i].loss) || isfinite(b[j].loss)) {
      size_t at = series->count++;
      series->steps[at] = a[i].step;
      series->a[at] = a[i].loss, series->b[at] = b[j].loss;
      series->t_a[at] = a[i].t_s, series->t_b[at] = b[j].t_s;
      series->norm_a[at] = a[i].grad_norm, series->norm_b[at] = b[j].grad_norm;
    }
    i++, j++;
  }
  smooth(series->a, series->count, series->smooth_a);
  smooth(series->b, series->count, series->smooth_b);
  for (size_t i = 0; i < series->count; i++)
    series->gap[i] = clipped(100 * (series->b[i] - series->a[i]) / series->smooth_a[i], GAP_MOST);
  smooth(series->gap, series->count, series->smooth_gap);
}

/* ---- checks, in the order of the procedure; each true when it decided */

static bool decided(struct loss_pair *pair, enum loss_verdict verdict, enum loss_reason reason) {
  pair->verdict = verdict;
  pair->reason = reason;
  return true;
}

static int64_t first_nonfinite(const struct compare_point *points, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!isfinite(points[i].loss))
      return points[i].step;
  return -1;
}

/* Who was first with a loss that is no number: a baseline that has one, alone or together with the candidate, is no measure
   of anything from there on. */
static bool check_finite(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b,
                         struct loss_pair *pair) {
  pair->first_nonfinite_a = first_nonfinite(a, count_a);
  pair->first_nonfinite_b = first_nonfinite(b, count_b);
  for (size_t i = 0, j = 0; i < count_a || j < count_b;) {
    bool has_a = i < count_a && (j >= count_b || a[i].step <= b[j].step);
    bool has_b = j < count_b && (i >= count_a || b[j].step <= a[i].step);
    bool broken_a = has_a && !isfinite(a[i].loss), broken_b = has_b && !isfinite(b[j].loss);
    if (broken_a)
      return decided(pair, LOSS_INVALID, LOSS_BY_BASELINE);
    if (broken_b)
      return decided(pair, LOSS_DIVERGED, LOSS_BY_NONFINITE);
    i += has_a, j += has_b;
  }
  return false;
}

/* The candidate may take the baseline's place: exit status 0. */
static bool may_be_taken(enum loss_verdict verdict) {
  return verdict == LOSS_EQUIVALENT || verdict == LOSS_BETTER;
}

static bool check_common(const struct loss_series *series, struct loss_pair *pair) {
  pair->common = series->count;
  pair->overlap = (double)pair->common / (double)most(pair->count_a, pair->count_b);
  if (pair->overlap < LOSS_OVERLAP_LEAST)
    return decided(pair, LOSS_INVALID, LOSS_BY_OVERLAP);
  pair->identical = true;
  for (size_t i = 0; i < series->count; i++) {
    if (!(series->smooth_a[i] > 0)) {
      pair->identical = false; /* not looked at whole */
      return decided(pair, LOSS_INVALID, LOSS_BY_SIGN);
    }
    pair->identical = pair->identical && series->a[i] == series->b[i];
  }
  return false;
}

/* Correlation of what is left of both curves without their centred means, over [from, to). */
static double noise_correlation(const struct loss_series *series, size_t from, size_t to, double *work) {
  if (to < from + NOISE_LEAST)
    return NAN;
  size_t count = to - from;
  for (size_t i = 0; i < count; i++) {
    work[i] = series->a[from + i] - series->smooth_a[from + i];
    work[count + i] = series->b[from + i] - series->smooth_b[from + i];
  }
  return stats_correlation(work, work + count, count);
}

static double start_difference(const struct loss_series *series) {
  if (series->count < START_STEPS || series->steps[START_STEPS - 1] > START_LAST_STEP)
    return NAN;
  double squares = 0;
  for (size_t i = 0; i < START_STEPS; i++)
    squares += pow(100 * (series->b[i] - series->a[i]) / series->a[i], 2);
  return sqrt(squares / START_STEPS);
}

/* How far the mean of the last `window` values is above the lowest mean of as many in a row, in percent of the latter.
   Values count as `most_of_it` at most. */
static double above_best(const double *values, size_t count, size_t window, double most_of_it) {
  double sum = 0, best = INFINITY;
  for (size_t i = 0; i < count; i++) {
    sum += clipped(values[i], most_of_it);
    if (i >= window)
      sum -= clipped(values[i - window], most_of_it);
    if (i + 1 >= window)
      best = fmin(best, sum);
  }
  return 100 * (sum / best - 1);
}

static void measure(const struct loss_series *series, double *work, struct loss_pair *pair) {
  size_t count = series->count, from = count - pair->window;
  const double *gaps = series->gap + from;
  pair->loss_a = stats_mean(series->a + from, pair->window);
  pair->loss_b = stats_mean(series->b + from, pair->window);
  pair->gap_percent = stats_mean(gaps, pair->window);
  struct stats_error error = stats_mean_error(gaps, pair->window, LOSS_CONFIDENCE);
  pair->error_percent = error.half_width;
  pair->by_blocks_percent = error.by_blocks;
  pair->by_ar1_percent = error.by_ar1;
  pair->half_width_percent = hypot(error.half_width, threshold(LOSS_T_FLOOR) * pair->floor_percent);
  pair->sd_percent = stats_sd(gaps, pair->window);
  pair->lag1 = stats_lag1_corrected(gaps, pair->window);
  pair->steps_advised = loss_steps_advised(pair->margin_percent, pair->sd_percent, pair->lag1);
  pair->below_advised = count < pair->steps_advised;

  pair->above_best_percent = above_best(series->b, count, pair->window, pair->loss_a * GAP_MOST / 100);
  pair->correlation_early = noise_correlation(series, EARLY_FROM, least(count, EARLY_TO), work);
  pair->correlation_late = noise_correlation(series, most(from, EARLY_FROM), count, work);
  pair->start_percent = start_difference(series);
  pair->start_differs = pair->start_percent > threshold(LOSS_T_SAME_START);

  double means[STATS_BLOCKS];
  stats_block_means(gaps, pair->window, STATS_BLOCKS, means);
  struct stats_line line = stats_line(means, STATS_BLOCKS);
  pair->slope_percent = line.slope * STATS_BLOCKS;
  pair->slope_t = line.slope == 0 ? 0 : line.slope / line.error;
  pair->growing =
      fabs(pair->slope_t) > threshold(LOSS_T_GROWTH) && fabs(pair->gap_percent + pair->slope_percent) > pair->margin_percent;
}

/* Noise that is not related in either place. Where there is too little of it to say, it is not held against the pair. */
static bool is_other_data(const struct loss_pair *pair) {
  double related = fmax(pair->correlation_early, pair->correlation_late); /* the one that is known, of a NAN */
  return related < threshold(LOSS_T_SAME_DATA);
}

static enum loss_verdict by_interval(double gap, double half_width, double margin) {
  if (gap - half_width > margin)
    return LOSS_WORSE;
  if (gap + half_width < -margin)
    return LOSS_BETTER;
  return fabs(gap) + half_width < margin ? LOSS_EQUIVALENT : LOSS_INCONCLUSIVE;
}

/* Pairs in all with which Student's t on their gaps would decide, when these have this standard deviation. */
static size_t pairs_that_decide(double sd, double distance) {
  double normal = pow(NORMAL_95 * sd / distance, 2); /* t asks for a few more than the normal does */
  if (!(normal < PAIRS_MOST))
    return 0;
  size_t n = most(LOSS_RECIPE_PAIRS, (size_t)normal);
  while (stats_t_quantile((1 + LOSS_CONFIDENCE) / 2, (double)n - 1) * sd >= distance * sqrt((double)n))
    n++;
  return n;
}

/* The error of the mean shrinks with the root of the window; the floor does not shrink at all. */
static void say_what_would_decide(struct loss_pair *pair) {
  double distance = fabs(fabs(pair->gap_percent) - pair->margin_percent);
  double floor = threshold(LOSS_T_FLOOR) * pair->floor_percent;
  double room = distance * distance - floor * floor;
  double window = room > 0 ? (double)pair->window * pair->error_percent * pair->error_percent / room : INFINITY;
  size_t steps = window < 1e9 ? (size_t)ceil(window) : 0;
  if (steps) /* a window is a quarter of the steps, or all of the least window */
    pair->steps_needed = most(steps <= LOSS_WINDOW_LEAST ? LOSS_WINDOW_LEAST : 4 * steps, pair->common + 1);
  else
    pair->pairs_needed = pairs_that_decide(pair->half_width_percent / NORMAL_95, distance);
}

static void judge(struct loss_pair *pair) {
  if (pair->gap_percent > threshold(LOSS_T_FAR) && pair->above_best_percent > threshold(LOSS_T_RISING)) {
    decided(pair, LOSS_DIVERGED, LOSS_BY_RISE);
    return;
  }
  if (is_other_data(pair)) {
    decided(pair, LOSS_INVALID, LOSS_BY_DATA);
    return;
  }
  decided(pair, by_interval(pair->gap_percent, pair->half_width_percent, pair->margin_percent), LOSS_BY_INTERVAL);
  if (pair->verdict == LOSS_INCONCLUSIVE)
    say_what_would_decide(pair);
  if (pair->identical) {
    decided(pair, LOSS_EQUIVALENT, LOSS_BY_IDENTITY);
    pair->steps_needed = pair->pairs_needed = 0;
  } else if (pair->common < LOSS_WINDOW_LEAST && pair->verdict != LOSS_WORSE) {
    decided(pair, LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
    pair->steps_needed = most(pair->steps_needed, LOSS_WINDOW_LEAST);
    pair->pairs_needed = 0;
  } else if (may_be_taken(pair->verdict) && pair->start_differs) {
    decided(pair, LOSS_INCONCLUSIVE, LOSS_BY_START);
  } else if (pair->verdict == LOSS_EQUIVALENT && pair->growing) {
    decided(pair, LOSS_INCONCLUSIVE, LOSS_BY_GROWTH);
    pair->steps_needed = pair->common + pair->window;
  }
  pair->short_run = pair->verdict == LOSS_EQUIVALENT && pair->common < LOSS_SURE_STEPS;
}

/* ---- advice */

/* Of a falling baseline, over the last half of the common steps: in the window alone the noise hides the slope. */
static double lag_in_steps(const struct loss_series *series, const struct loss_pair *pair) {
  size_t from = series->count / 2, count = series->count - from;
  struct stats_line line = stats_line(series->a + from, count);
  if (count < 2 || !(line.slope < -SLOPE_T_SEEN * line.error))
    return NAN;
  double steps_per_point = (double)(series->steps[series->count - 1] - series->steps[from]) / (double)(count - 1);
  double lag = (pair->loss_b - pair->loss_a) / -line.slope * steps_per_point;
  double steps = (double)(series->steps[series->count - 1] - series->steps[0]);
  return fabs(lag) <= steps ? lag : NAN;
}

static double spike_bound(const double *values, const double *smoothed, size_t count, double *work) {
  for (size_t i = 0; i < count; i++)
    work[i] = values[i] - smoothed[i];
  return SPIKE_SD * STATS_MAD_SD * stats_mad(work, count, 0, work + count);
}

static void count_spikes(const struct loss_series *series, double *work, struct loss_pair *pair) {
  double bound_a = spike_bound(series->a, series->smooth_a, series->count, work);
  double bound_b = spike_bound(series->b, series->smooth_b, series->count, work);
  for (size_t i = 0; i < series->count; i++) {
    bool a = series->a[i] - series->smooth_a[i] > bound_a, b = series->b[i] - series->smooth_b[i] > bound_b;
    pair->spikes_a += a;
    pair->spikes_b += b;
    pair->spikes_only_b += b && !a;
  }
}

static double norm_ratio(const struct loss_series *series, size_t from, double *work) {
  size_t known = 0;
  for (size_t i = from; i < series->count; i++) {
    double ratio = series->norm_b[i] / series->norm_a[i];
    if (isfinite(ratio) && ratio > 0)
      work[known++] = ratio;
  }
  return stats_median(work, known);
}

static void advise(const struct loss_series *series, double *work, struct loss_pair *pair) {
  size_t sign_run = 0;
  pair->largest_gap_percent = 0;
  for (size_t i = 0; i < series->count; i++) {
    if (i >= LOSS_SMOOTH && fabs(series->smooth_gap[i]) > fabs(pair->largest_gap_percent)) {
      pair->largest_gap_percent = series->smooth_gap[i];
      pair->largest_gap_step = series->steps[i];
    }
    bool kept = i > 0 && series->gap[i] * series->gap[i - 1] > 0;
    sign_run = series->gap[i] == 0 ? 0 : kept ? sign_run + 1 : 1;
    pair->longest_sign_run = most(pair->longest_sign_run, sign_run);
  }
  pair->lag_steps = lag_in_steps(series, pair);
  count_spikes(series, work, pair);
  pair->norm_ratio = norm_ratio(series, series->count - pair->window, work);
}

/* ---- a pair */

static struct loss_pair unknown_pair(size_t count_a, size_t count_b) {
  return (struct loss_pair){
      .count_a = count_a,
      .count_b = count_b,
      .overlap = NAN,
      .first_nonfinite_a = -1,
      .first_nonfinite_b = -1,
      .correlation_early = NAN,
      .correlation_late = NAN,
      .start_percent = NAN,
      .loss_a = NAN,
      .loss_b = NAN,
      .gap_percent = NAN,
      .half_width_percent = NAN,
      .error_percent = NAN,
      .by_blocks_percent = NAN,
      .by_ar1_percent = NAN,
      .sd_percent = NAN,
      .lag1 = NAN,
      .above_best_percent = NAN,
      .slope_percent = NAN,
      .slope_t = NAN,
      .lag_steps = NAN,
      .largest_gap_percent = NAN,
      .largest_gap_step = -1,
      .norm_ratio = NAN,
  };
}

static void compare(const struct loss_series *series, double *work, struct loss_pair *pair) {
  if (check_common(series, pair))
    return;
  if (series->count < 2 * STATS_BLOCKS) {
    decided(pair, LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
    pair->steps_advised = loss_steps_advised(pair->margin_percent, NAN, NAN);
    pair->steps_needed = LOSS_WINDOW_LEAST;
    return;
  }
  pair->window = least(series->count, most(series->count / 4, LOSS_WINDOW_LEAST));
  pair->window_from = series->steps[series->count - pair->window];
  measure(series, work, pair);
  judge(pair);
  advise(series, work, pair);
}

/* How alike two curves are when `shift` is added to the candidate's steps. */
struct likeness {
  size_t common;
  double difference; /* mean square, relative; NAN without common steps */
};

static struct likeness likeness_at(const struct compare_point *a, size_t count_a, const struct compare_point *b,
                                   size_t count_b, int shift) {
  struct likeness found = {0, 0};
  for (size_t i = 0, j = 0; i < count_a && j < count_b;) {
    int64_t step = b[j].step + shift;
    if (a[i].step == step && isfinite(a[i].loss) && isfinite(b[j].loss)) {
      found.difference += pow(b[j].loss / a[i].loss - 1, 2);
      found.common++;
    }
    bool next_a = a[i].step <= step, next_b = step <= a[i].step;
    i += next_a, j += next_b;
  }
  found.difference /= (double)found.common;
  return found;
}

/* 1 or -1 when the curves belong together only with that added to the candidate's steps; else 0. Pairs on the same data
   differ by far less than neighbouring steps do, and on other data as much at one shift as at another. */
static int shift_between(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b) {
  double needed = LOSS_OVERLAP_LEAST * (double)most(count_a, count_b);
  struct likeness plain = likeness_at(a, count_a, b, count_b, 0);
  for (int shift = 1; shift >= -1; shift -= 2) {
    struct likeness shifted = likeness_at(a, count_a, b, count_b, shift);
    if ((double)shifted.common >= needed &&
        (2 * plain.common < shifted.common || shifted.difference < SHIFT_ALIKE * plain.difference))
      return shift;
  }
  return 0;
}

static struct compare_point *shifted_points(const struct compare_point *points, size_t count, int shift) {
  struct compare_point *out = b200_zeroed(count, sizeof(*out));
  for (size_t i = 0; i < count; i++) {
    out[i] = points[i];
    out[i].step += shift;
  }
  return out;
}

static void compare_points(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b,
                           const struct loss_settings *settings, struct loss_pair *pair, struct loss_series *series) {
  double *work;
  series_make(series, least(count_a, count_b), &work);
  series_fill(series, a, count_a, b, count_b);
  if (isnan(pair->margin_percent))
    pair->margin_percent = loss_default_margin(series->count, settings->floor_percent);
  pair->common = series->count;
  if (!check_finite(a, count_a, b, count_b, pair))
    compare(series, work, pair);
}

bool loss_compare(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b,
                  const struct loss_settings *settings, struct loss_pair *pair, struct loss_series *series) {
  struct loss_series own = {0};
  if (!series)
    series = &own;
  memset(series, 0, sizeof(*series));
  *pair = unknown_pair(count_a, count_b);
  pair->floor_assumed = isnan(settings->floor_percent);
  pair->floor_percent = pair->floor_assumed ? LOSS_ASSUMED_FLOOR : settings->floor_percent;
  pair->margin_percent = settings->margin_percent;
  if (!count_a || !count_b) {
    decided(pair, LOSS_INVALID, LOSS_BY_OVERLAP);
    return false;
  }
  int shift = shift_between(a, count_a, b, count_b);
  bool moved = shift && settings->may_shift;
  struct compare_point *shifted = moved ? shifted_points(b, count_b, shift) : NULL;
  compare_points(a, count_a, moved ? shifted : b, count_b, settings, pair, series);
  bool other = pair->verdict == LOSS_INVALID && (pair->reason == LOSS_BY_DATA || pair->reason == LOSS_BY_OVERLAP);
  if (shift && !moved && other)
    decided(pair, LOSS_INVALID, LOSS_BY_SHIFT);
  pair->shift = moved || pair->reason == LOSS_BY_SHIFT ? shift : 0;
  free(shifted);
  loss_series_free(&own);
  return true;
}

/* ---- all pairs */

/* Of the pairs that are so, the first; `count` when none is. */
static size_t first_with(const struct loss_pair *pairs, size_t count, enum loss_verdict verdict) {
  size_t i = 0;
  while (i < count && pairs[i].verdict != verdict)
    i++;
  return i;
}

static void add_up(const struct loss_pair *pairs, size_t count, struct loss_summary *summary) {
  double *gaps = b200_zeroed(count, sizeof(*gaps)), squares = 0;
  summary->identical = true;
  for (size_t i = 0; i < count; i++) {
    gaps[i] = pairs[i].gap_percent;
    squares += pairs[i].half_width_percent * pairs[i].half_width_percent;
    summary->margin_percent = fmax(summary->margin_percent, pairs[i].margin_percent);
    summary->short_run = summary->short_run || pairs[i].common < LOSS_SURE_STEPS;
    summary->start_differs = summary->start_differs || pairs[i].start_differs;
    summary->floor_assumed = summary->floor_assumed || pairs[i].floor_assumed;
    summary->identical = summary->identical && pairs[i].identical;
  }
  summary->gap_percent = stats_mean(gaps, count);
  summary->spread_percent = stats_sd(gaps, count);
  summary->half_width_percent = sqrt(squares) / (double)count;
  if (summary->recipe)
    summary->half_width_percent =
        stats_t_quantile((1 + LOSS_CONFIDENCE) / 2, (double)count - 1) * summary->spread_percent / sqrt((double)count);
  free(gaps);
}

/* What speaks against EQUIVALENT of a pair though its gap is small; too few steps or another start also against BETTER. */
static enum loss_reason objection(const struct loss_pair *pair, enum loss_verdict verdict) {
  if (pair->common < LOSS_WINDOW_LEAST && !pair->identical)
    return LOSS_BY_LENGTH;
  if (may_be_taken(verdict) && pair->start_differs)
    return LOSS_BY_START;
  return verdict == LOSS_EQUIVALENT && pair->growing ? LOSS_BY_GROWTH : LOSS_BY_INTERVAL;
}

static void summary_decided(struct loss_summary *summary, const struct loss_pair *pairs, size_t decisive,
                            enum loss_verdict verdict, enum loss_reason reason) {
  summary->verdict = verdict;
  summary->reason = reason;
  summary->decisive = decisive;
  summary->steps_needed = verdict == LOSS_INCONCLUSIVE ? pairs[decisive].steps_needed : 0;
}

static void summary_judge(struct loss_summary *summary, const struct loss_pair *pairs, size_t count) {
  double gap = summary->gap_percent, half_width = summary->half_width_percent;
  summary->verdict = by_interval(gap, half_width, summary->margin_percent);
  if (summary->verdict == LOSS_INCONCLUSIVE) {
    double sd = summary->recipe ? summary->spread_percent : half_width * sqrt((double)count) / NORMAL_95;
    summary->pairs_needed = pairs_that_decide(sd, fabs(fabs(gap) - summary->margin_percent));
  }
  if (!may_be_taken(summary->verdict))
    return;
  for (size_t i = 0; i < count; i++) {
    enum loss_reason reason = objection(&pairs[i], summary->verdict);
    if (reason != LOSS_BY_INTERVAL) {
      summary_decided(summary, pairs, i, LOSS_INCONCLUSIVE, reason);
      return;
    }
  }
}

void loss_summarise(const struct loss_pair *pairs, size_t count, struct loss_summary *summary) {
  *summary = (struct loss_summary){.pairs = count, .recipe = count >= LOSS_RECIPE_PAIRS, .reason = LOSS_BY_INTERVAL};
  add_up(pairs, count, summary);
  size_t diverged = first_with(pairs, count, LOSS_DIVERGED), invalid = first_with(pairs, count, LOSS_INVALID);
  size_t whole = diverged < count ? diverged : invalid;
  if (whole < count) {
    summary_decided(summary, pairs, whole, pairs[whole].verdict, pairs[whole].reason);
  } else if (count == 1) {
    summary_decided(summary, pairs, 0, pairs[0].verdict, pairs[0].reason);
    summary->pairs_needed = pairs[0].pairs_needed;
  } else if (summary->identical) {
    summary_decided(summary, pairs, 0, pairs[0].verdict, pairs[0].reason);
  } else if (isnan(summary->gap_percent)) { /* one is too short for a gap */
    summary_decided(summary, pairs, first_with(pairs, count, LOSS_INCONCLUSIVE), LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
  } else {
    summary_judge(summary, pairs, count);
  }
  summary->short_run = summary->short_run && summary->verdict == LOSS_EQUIVALENT;
}

/* ---- time to equal loss */

/* Centred means of points, one after the other, until one is not finite. */
struct slide {
  const struct compare_point *points;
  size_t count, half, next; /* next: whose mean comes */
  size_t from, to;          /* points in `sum` */
  double sum;
};

static struct slide slide_begin(const struct compare_point *points, size_t count) {
  size_t finite = 0;
  while (finite < count && isfinite(points[finite].loss))
    finite++;
  return (struct slide){.points = points, .count = finite, .half = most(LOSS_SMOOTH, count / 50) / 2};
}

static bool slide_next(struct slide *slide, double *mean) {
  if (slide->next == slide->count)
    return false;
  while (slide->to < least(slide->count, slide->next + slide->half + 1))
    slide->sum += slide->points[slide->to++].loss;
  while (slide->from + slide->half < slide->next)
    slide->sum -= slide->points[slide->from++].loss;
  *mean = slide->sum / (double)(slide->to - slide->from);
  slide->next++;
  return true;
}

double loss_time_to(const struct compare_point *points, size_t count, double level) {
  struct slide slide = slide_begin(points, count);
  double mean, before = NAN;
  for (size_t i = 0; slide_next(&slide, &mean); i++) {
    if (mean <= level) {
      double back = i ? (level - mean) / (before - mean) : 0;
      return i ? points[i].t_s - back * (points[i].t_s - points[i - 1].t_s) : points[i].t_s;
    }
    before = mean;
  }
  return NAN;
}

/* Smoothed loss at a quarter of the points, and the lowest. */
static void reach_of(const struct compare_point *points, size_t count, double *quarter, double *lowest) {
  struct slide slide = slide_begin(points, count);
  double mean;
  *quarter = *lowest = INFINITY;
  for (size_t i = 0; slide_next(&slide, &mean); i++) {
    if (i == count / 4)
      *quarter = mean;
    *lowest = fmin(*lowest, mean);
  }
}

size_t loss_time_to_equal(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b,
                          struct loss_time times[LOSS_LEVELS]) {
  double quarter_a, quarter_b, lowest_a, lowest_b;
  reach_of(a, count_a, &quarter_a, &lowest_a);
  reach_of(b, count_b, &quarter_b, &lowest_b);
  double high = fmax(quarter_a, quarter_b), low = fmax(lowest_a, lowest_b);
  size_t levels = high > low && isfinite(high) ? LOSS_LEVELS : 1, written = 0;
  for (size_t i = 0; i < levels && isfinite(low); i++) {
    double level = i + 1 == levels ? low : high - (high - low) * (double)i / (LOSS_LEVELS - 1);
    struct loss_time time = {.level = level, .a_s = loss_time_to(a, count_a, level), .b_s = loss_time_to(b, count_b, level)};
    time.speedup = time.a_s / time.b_s;
    if (time.a_s > 0 && time.b_s > 0)
      times[written++] = time;
  }
  return written;
}
