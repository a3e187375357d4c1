/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on loss curves over curves that were made for one rule each, with numbers worked out by hand. */
#include "tools/compare/loss.h"

#include <math.h>
#include <string.h>

#include "tools/compare/stats.h"
#include "unit.h"

#define MOST 2000

static struct compare_point a[MOST], b[MOST];
static struct loss_pair pair;

static const struct loss_settings one_percent = {.margin_percent = 1, .floor_percent = 0.05};

/* Both curves fall from 4 to 2 with the same noise of the batches; the candidate is `gap` percent higher but for the first
   ten steps, plus its own noise of `sd` percent. */
static void make(size_t count, double gap, double sd) {
  struct stats_random random;
  stats_random_seed(&random, 42);
  for (size_t i = 0; i < count; i++) {
    double level = 2 + 2 * exp(-(double)i / 100), loss = level * (1 + 0.02 * stats_random_normal(&random));
    double moved = i < 10 ? 0 : gap + sd * stats_random_normal(&random);
    a[i] = (struct compare_point){.step = (int64_t)i + 1, .loss = loss, .grad_norm = 2, .t_s = 10 * (double)(i + 1)};
    b[i] = (struct compare_point){
        .step = (int64_t)i + 1, .loss = loss + level * moved / 100, .grad_norm = 3, .t_s = 8 * (double)(i + 1)};
  }
}

static void compare(size_t count_a, size_t count_b, const struct loss_settings *settings) {
  ck_assert(loss_compare(a, count_a, b, count_b, settings, &pair, NULL));
}

static void is(enum loss_verdict verdict, enum loss_reason reason) {
  ck_assert_msg(pair.verdict == verdict && pair.reason == reason, "%s, %s; gap %.3f +- %.3f %%",
                loss_verdict_names[pair.verdict], loss_reason_texts[pair.reason], pair.gap_percent, pair.half_width_percent);
}

static void near(double got, double wanted, double tolerance) {
  ck_assert_msg(fabs(got - wanted) <= tolerance, "%.12g is not %.12g", got, wanted);
}

START_TEST(exit_statuses_are_the_documented_ones) {
  const int wanted[LOSS_VERDICT_COUNT] = {[LOSS_EQUIVALENT] = 0,   [LOSS_BETTER] = 0,  [LOSS_WORSE] = 1,
                                          [LOSS_INCONCLUSIVE] = 2, [LOSS_INVALID] = 3, [LOSS_DIVERGED] = 4};
  for (int i = 0; i < LOSS_VERDICT_COUNT; i++)
    ck_assert_int_eq(loss_verdict_exit((enum loss_verdict)i), wanted[i]);
  for (int i = 0; i < LOSS_REASON_COUNT; i++)
    ck_assert(loss_reason_texts[i] && *loss_reason_texts[i]);
}
END_TEST

START_TEST(every_threshold_says_what_it_is) {
  for (int i = 0; i < LOSS_THRESHOLD_COUNT; i++)
    ck_assert(loss_thresholds[i].name && loss_thresholds[i].unit && loss_thresholds[i].divides &&
              loss_thresholds[i].value > 0);
}
END_TEST

START_TEST(nothing_to_compare) {
  make(10, 0, 0);
  ck_assert(!loss_compare(a, 0, b, 10, &one_percent, &pair, NULL));
  is(LOSS_INVALID, LOSS_BY_OVERLAP);
  struct loss_series series;
  ck_assert(!loss_compare(a, 10, b, 0, &one_percent, &pair, &series));
  is(LOSS_INVALID, LOSS_BY_OVERLAP);
  ck_assert(series.count == 0);
  loss_series_free(&series);
}
END_TEST

START_TEST(nan_in_the_candidate_is_divergence_at_any_step) {
  const double bad[] = {NAN, INFINITY, -INFINITY};
  for (size_t k = 0; k < 3; k++)
    for (size_t at = 0; at < 400; at += 57) {
      make(400, 0.1, 0.3);
      b[at].loss = bad[k];
      compare(400, 400, &one_percent);
      is(LOSS_DIVERGED, LOSS_BY_NONFINITE);
      ck_assert_int_eq(pair.first_nonfinite_b, (int64_t)at + 1);
      ck_assert_int_eq(pair.first_nonfinite_a, -1);
    }
}
END_TEST

START_TEST(nan_counts_before_overlap_and_beyond_the_baseline) {
  make(400, 0.1, 0.3);
  b[20].loss = NAN;
  compare(400, 21, &one_percent); /* the candidate died there */
  is(LOSS_DIVERGED, LOSS_BY_NONFINITE);
  make(400, 0.1, 0.3);
  b[399].loss = NAN;
  compare(380, 400, &one_percent); /* the baseline was not run so far */
  is(LOSS_DIVERGED, LOSS_BY_NONFINITE);
}
END_TEST

START_TEST(who_was_first_with_nan) {
  make(400, 0.1, 0.3);
  a[100].loss = NAN;
  compare(400, 400, &one_percent);
  is(LOSS_INVALID, LOSS_BY_BASELINE);
  for (size_t i = 50; i < 400; i++)
    b[i].loss = NAN;
  for (size_t i = 100; i < 400; i++)
    a[i].loss = NAN;
  compare(400, 400, &one_percent); /* both broke, the candidate 50 steps earlier */
  is(LOSS_DIVERGED, LOSS_BY_NONFINITE);
  ck_assert(pair.first_nonfinite_a == 101 && pair.first_nonfinite_b == 51);
}
END_TEST

START_TEST(a_baseline_with_nan_is_no_measure) {
  make(400, 0.1, 0.3);
  a[100].loss = b[100].loss = NAN;
  compare(400, 400, &one_percent);
  is(LOSS_INVALID, LOSS_BY_BASELINE);
  b[200].loss = NAN; /* later than both */
  compare(400, 400, &one_percent);
  is(LOSS_INVALID, LOSS_BY_BASELINE);
}
END_TEST

static void number_from(size_t count, struct compare_point *points, int64_t first) {
  for (size_t i = 0; i < count; i++)
    points[i].step = first + (int64_t)i;
}

START_TEST(numbers_that_differ_by_one_are_not_other_data) {
  const struct loss_settings may = {.margin_percent = 1, .floor_percent = 0.05, .may_shift = true};
  for (int shift = -1; shift <= 1; shift += 2) {
    make(400, 0.1, 0.3);
    compare(400, 400, &one_percent);
    double gap = pair.gap_percent;
    number_from(400, b, 1 - shift);
    compare(400, 400, &one_percent);
    is(LOSS_INVALID, LOSS_BY_SHIFT);
    ck_assert_int_eq(pair.shift, shift);
    compare(400, 400, &may);
    is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
    ck_assert(pair.shift == shift && pair.common == 400 && pair.gap_percent == gap);
  }
  make(40, 0.1, 0.3); /* too few for a correlation */
  number_from(40, b, 0);
  compare(40, 40, &may);
  ck_assert(pair.shift == 1 && pair.common == 40 && fabs(pair.gap_percent) < 0.5);
  number_from(40, b, 1);
  compare(40, 40, &may); /* right as they are */
  ck_assert(pair.shift == 0 && pair.common == 40);
  for (size_t i = 0; i < 40; i++) { /* every tenth step, none in common */
    a[i].step = 10 * (int64_t)i;
    b[i].step = 10 * (int64_t)i + 1;
  }
  compare(40, 40, &one_percent);
  is(LOSS_INVALID, LOSS_BY_SHIFT);
  ck_assert_int_eq(pair.shift, -1);
}
END_TEST

/* A window of 83 steps would decide, and is there from 100 steps on: it is no quarter of 332. */
START_TEST(a_short_run_needs_a_window_and_not_four) {
  struct loss_settings settings = {.margin_percent = 1, .floor_percent = 0};
  make(60, 0.1, 0.3);
  compare(60, 60, &settings);
  settings.margin_percent = fabs(pair.gap_percent) + 0.85 * pair.error_percent;
  compare(60, 60, &settings);
  is(LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
  ck_assert_uint_eq(pair.steps_needed, LOSS_WINDOW_LEAST);
}
END_TEST

START_TEST(a_lag_longer_than_the_run_is_none) {
  make(400, 0, 0);
  for (size_t i = 0; i < 400; i++) {
    a[i].loss = 3 - 1e-6 * (double)i;
    b[i].loss = 3.1 - 1e-6 * (double)i;
  }
  compare(400, 400, &one_percent);
  ck_assert(isnan(pair.lag_steps) && pair.gap_percent > 3);
}
END_TEST

START_TEST(overlap_is_of_the_longer_run) {
  make(400, 0.1, 0.3);
  compare(400, 360, &one_percent);
  near(pair.overlap, 0.9, 1e-12);
  is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
  compare(400, 359, &one_percent);
  is(LOSS_INVALID, LOSS_BY_OVERLAP);
  compare(359, 400, &one_percent);
  is(LOSS_INVALID, LOSS_BY_OVERLAP);
  for (size_t i = 0; i < 400; i++)
    b[i].step += 40; /* logs that begin at another step */
  compare(400, 400, &one_percent);
  ck_assert(pair.common == 360 && pair.verdict == LOSS_INVALID && pair.reason == LOSS_BY_DATA); /* aligned by step: others */
  for (size_t i = 0; i < 400; i++)
    b[i].step += 1;
  compare(400, 400, &one_percent);
  is(LOSS_INVALID, LOSS_BY_OVERLAP);
}
END_TEST

START_TEST(steps_are_matched_by_their_number) {
  make(400, 0.5, 0.2);
  compare(400, 400, &one_percent);
  double gap = pair.gap_percent;
  size_t kept = 0;
  for (size_t i = 0; i < 400; i++)
    if (i % 20 != 7)
      b[kept++] = b[i];
  struct loss_series series;
  ck_assert(loss_compare(a, 400, b, kept, &one_percent, &pair, &series));
  is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
  ck_assert(series.count == 380 && pair.common == 380 && series.steps[7] == 9 && series.a[7] == a[8].loss);
  ck_assert(series.b[7] == b[7].loss && series.t_a[7] == 90 && series.t_b[7] == 72 && series.norm_b[7] == 3);
  near(pair.gap_percent, gap, 0.05);
  loss_series_free(&series);
  ck_assert(series.count == 0 && !series.steps);
}
END_TEST

/* 200 steps, so that the window is the last 100: all numbers by hand. */
START_TEST(gap_of_the_window_by_hand) {
  for (size_t i = 0; i < 200; i++) {
    a[i] = (struct compare_point){.step = (int64_t)i + 1, .loss = 2, .grad_norm = 1, .t_s = NAN};
    b[i] = a[i];
    b[i].loss = i < 100 ? 2.5 : 2.01; /* what is before the window does not count */
    b[i].grad_norm = 1.5;
  }
  compare(200, 200, &one_percent);
  near(pair.gap_percent, 0.5, 1e-9);
  near(pair.error_percent, 0, 1e-9);
  near(pair.half_width_percent, 1.75 * 0.05, 1e-9);
  near(pair.loss_b, 2.01, 1e-12);
  near(pair.norm_ratio, 1.5, 1e-12);
  ck_assert(pair.window == 100 && pair.window_from == 101);
  near(pair.start_percent, 25, 1e-9);
  near(pair.largest_gap_percent, 25, 1e-9);
  ck_assert_int_eq((int)pair.longest_sign_run, 200);
  ck_assert(isnan(pair.correlation_early)); /* the baseline has no noise */
  ck_assert(isnan(pair.lag_steps));         /* nor does it fall */
  is(LOSS_INCONCLUSIVE, LOSS_BY_START);
}
END_TEST

START_TEST(window_is_a_quarter_and_at_least_a_hundred) {
  make(1000, 0.1, 0.3);
  compare(1000, 1000, &one_percent);
  ck_assert(pair.window == 250 && pair.window_from == 751);
  compare(300, 300, &one_percent);
  ck_assert(pair.window == 100 && pair.window_from == 201);
  compare(90, 90, &one_percent);
  ck_assert(pair.window == 90);
}
END_TEST

START_TEST(assumed_floor_is_said) {
  make(1000, 0.1, 0.3);
  struct loss_settings settings = {.margin_percent = NAN, .floor_percent = NAN};
  compare(1000, 1000, &settings);
  ck_assert(pair.floor_assumed && pair.floor_percent == 0.05 && pair.margin_percent == 1);
  settings.floor_percent = 0.07;
  compare(1000, 1000, &settings);
  ck_assert(!pair.floor_assumed && pair.margin_percent == 0.25);
  near(pair.half_width_percent, hypot(pair.error_percent, 1.75 * 0.07), 1e-12);
  near(pair.error_percent, fmax(pair.by_blocks_percent, pair.by_ar1_percent), 0);
  compare(999, 999, &settings);
  ck_assert(pair.margin_percent == 1);
}
END_TEST

START_TEST(verdict_by_interval) {
  make(1000, 0.5, 0.3);
  compare(1000, 1000, &one_percent);
  is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
  make(1000, 2, 0.3);
  compare(1000, 1000, &one_percent);
  is(LOSS_WORSE, LOSS_BY_INTERVAL);
  make(1000, -2, 0.3);
  compare(1000, 1000, &one_percent);
  is(LOSS_BETTER, LOSS_BY_INTERVAL);
  make(1000, 1, 0.3);
  compare(1000, 1000, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_INTERVAL);
}
END_TEST

/* distance d of the gap from the margin, error h, floor's part f: window * h^2 / (d^2 - f^2), times four. */
START_TEST(steps_that_would_decide) {
  make(1000, 0.3, 4);
  compare(1000, 1000, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_INTERVAL);
  double d = fabs(fabs(pair.gap_percent) - 1), h = pair.error_percent, f = 1.75 * 0.05;
  ck_assert(d > f);
  near((double)pair.steps_needed, 4 * ceil(250 * h * h / (d * d - f * f)), 0);
  ck_assert(pair.steps_needed > 1000 && pair.pairs_needed == 0);
  make(1000, 0.95, 0.5); /* nearer to the margin than the floor: steps do not help */
  compare(1000, 1000, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_INTERVAL);
  ck_assert(pair.steps_needed == 0 && pair.pairs_needed >= 3);
  double sd = pair.half_width_percent / 1.6448536269514722, n = (double)pair.pairs_needed;
  d = fabs(fabs(pair.gap_percent) - 1);
  ck_assert(stats_t_quantile(0.95, n - 1) * sd / sqrt(n) < d);
  ck_assert(n == 3 || stats_t_quantile(0.95, n - 2) * sd / sqrt(n - 1) >= d);
}
END_TEST

START_TEST(a_growing_gap_is_not_equivalent) {
  make(1000, 0, 0.3);
  for (size_t i = 500; i < 1000; i++)
    b[i].loss += 2 * 0.01 * ((double)i - 750) / 250 * (i >= 750 ? 1 : 0); /* in the window from 0 to 1 % */
  compare(1000, 1000, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_GROWTH);
  ck_assert(pair.growing && pair.slope_t > 3.1 && pair.steps_needed == 1250);
  near(pair.slope_percent, 1, 0.2);
  near(pair.gap_percent, 0.5, 0.1);
  make(1000, 0.5, 0.3);
  for (size_t i = 750; i < 1000; i++)
    b[i].loss -= 2 * 0.005 * ((double)i - 875) / 250; /* falls from 0.75 to 0.25: nothing to fear */
  compare(1000, 1000, &one_percent);
  ck_assert(pair.slope_t < -3.1 && !pair.growing);
  is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
}
END_TEST

START_TEST(another_start_blocks_equivalent_and_hides_nothing) {
  make(1000, 0.2, 0.3);
  for (size_t i = 0; i < 5; i++)
    b[i].loss = a[i].loss * 1.0016;
  compare(1000, 1000, &one_percent);
  near(pair.start_percent, 0.16, 1e-9);
  is(LOSS_INCONCLUSIVE, LOSS_BY_START);
  ck_assert(pair.start_differs);
  for (size_t i = 0; i < 5; i++)
    b[i].loss = a[i].loss * 1.0014;
  compare(1000, 1000, &one_percent);
  ck_assert(!pair.start_differs);
  is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
  make(1000, 3, 0.3);
  b[0].loss *= 1.1;
  compare(1000, 1000, &one_percent);
  ck_assert(pair.start_differs);
  is(LOSS_WORSE, LOSS_BY_INTERVAL);
}
END_TEST

/* A log that begins later says nothing about the start. */
START_TEST(start_is_judged_from_the_first_steps_only) {
  make(1000, 0.2, 0.5);
  compare(1000, 1000, &one_percent);
  ck_assert(pair.start_percent == 0);
  for (size_t i = 0; i < 1000; i++)
    a[i].step = b[i].step = (int64_t)i + 6; /* the fifth is step 10 */
  compare(1000, 1000, &one_percent);
  ck_assert(pair.start_percent == 0);
  for (size_t i = 0; i < 1000; i++)
    a[i].step++, b[i].step++;
  compare(1000, 1000, &one_percent);
  ck_assert(isnan(pair.start_percent) && !pair.start_differs);
}
END_TEST

START_TEST(far_above_and_rising_is_diverged) {
  make(1000, 0, 0.3);
  for (size_t i = 0; i < 1000; i++)
    b[i].loss = a[i].loss * (1 + 0.4 * (double)i / 1000); /* never below what it was */
  compare(1000, 1000, &one_percent);
  is(LOSS_DIVERGED, LOSS_BY_RISE);
  for (size_t i = 0; i < 1000; i++)
    b[i].loss = a[i].loss * 1.35; /* as far, and it learns */
  compare(1000, 1000, &one_percent);
  is(LOSS_WORSE, LOSS_BY_INTERVAL);
  for (size_t i = 0; i < 1000; i++)
    b[i].loss = a[i].loss * (1 + 0.15 * (double)i / 1000); /* rises, but is not far */
  compare(1000, 1000, &one_percent);
  ck_assert(pair.above_best_percent > 2);
  is(LOSS_WORSE, LOSS_BY_INTERVAL);
}
END_TEST

/* Losses that are finite and absurd: squares and sums of them must not hide what happened. */
START_TEST(losses_that_explode) {
  const double absurd[] = {1e9, 1e100, 1e300};
  for (size_t k = 0; k < 3; k++) {
    make(1000, 0, 0.3);
    for (size_t i = 500; i < 1000; i++)
      b[i].loss = absurd[k] * (1 + 0.1 * (double)(i % 7));
    compare(1000, 1000, &one_percent);
    is(LOSS_DIVERGED, LOSS_BY_RISE);
    for (size_t i = 0; i < 1000; i++)
      b[i].loss = absurd[k] * (1 + 0.1 * (double)(i % 7));
    compare(1000, 1000, &one_percent); /* from the first step on */
    ck_assert(pair.verdict == LOSS_WORSE || pair.verdict == LOSS_DIVERGED || pair.verdict == LOSS_INVALID);
    make(1000, 0.1, 0.3);
    b[400].loss = absurd[k]; /* one spike */
    compare(1000, 1000, &one_percent);
    is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
    ck_assert(pair.spikes_only_b >= 1 && pair.above_best_percent < 2 && pair.largest_gap_percent > 1e4);
  }
}
END_TEST

/* Same level, own noise: what another order of the data looks like. */
START_TEST(noise_that_is_not_related_is_other_data) {
  make(1000, 0, 0);
  struct stats_random random;
  stats_random_seed(&random, 43);
  for (size_t i = 0; i < 1000; i++) {
    double level = 2 + 2 * exp(-(double)i / 100);
    b[i].loss = level * (1 + 0.02 * stats_random_normal(&random));
  }
  compare(1000, 1000, &one_percent);
  is(LOSS_INVALID, LOSS_BY_DATA);
  ck_assert(fabs(pair.correlation_early) < 0.3 && fabs(pair.correlation_late) < 0.3);
  for (size_t i = 0; i < 250; i++)
    b[i].loss = a[i].loss; /* related early: it is the same data */
  compare(1000, 1000, &one_percent);
  ck_assert(pair.verdict != LOSS_INVALID && pair.correlation_early > 0.99 && fabs(pair.correlation_late) < 0.3);
  for (size_t i = 0; i < 1000; i++) /* related late */
    b[i].loss = i < 250 ? b[i].loss + stats_random_normal(&random) : a[i].loss;
  compare(1000, 1000, &one_percent);
  ck_assert(pair.verdict != LOSS_INVALID && pair.correlation_early < 0.3 && pair.correlation_late > 0.99);
}
END_TEST

START_TEST(short_runs_say_so) {
  make(400, 0.1, 0.3);
  compare(599 - 200, 399, &one_percent);
  ck_assert(pair.verdict == LOSS_EQUIVALENT && pair.short_run);
  compare(99, 99, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
  ck_assert(pair.steps_needed == LOSS_WINDOW_LEAST && pair.steps_advised >= 300 && !pair.short_run);
  compare(15, 15, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
  ck_assert(isnan(pair.gap_percent));
  make(400, 5, 0.3);
  compare(99, 99, &one_percent); /* clear even so */
  is(LOSS_WORSE, LOSS_BY_INTERVAL);
  make(400, -5, 0.3);
  compare(99, 99, &one_percent);
  is(LOSS_INCONCLUSIVE, LOSS_BY_LENGTH);
}
END_TEST

START_TEST(identical_runs_are_equivalent_at_any_length_with_a_window) {
  make(400, 0, 0);
  for (size_t steps = 16; steps <= 400; steps += 64) {
    compare(steps, steps, &(struct loss_settings){.margin_percent = 0.01, .floor_percent = 0.05});
    is(LOSS_EQUIVALENT, LOSS_BY_IDENTITY);
    ck_assert(pair.identical && pair.short_run && pair.gap_percent == 0 && pair.steps_needed == 0);
  }
  b[5].loss = nextafter(b[5].loss, 0); /* one last bit */
  compare(400, 400, &one_percent);
  ck_assert(!pair.identical);
  is(LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
}
END_TEST

START_TEST(percent_of_what_is_not_positive_has_no_meaning) {
  make(400, 0.1, 0.3);
  for (size_t i = 0; i < 400; i++)
    a[i].loss -= 2.2, b[i].loss -= 2.2;
  compare(400, 400, &one_percent);
  is(LOSS_INVALID, LOSS_BY_SIGN);
}
END_TEST

START_TEST(steps_advised) {
  ck_assert_uint_eq(loss_steps_advised(1, 0.3, 0.1), 300);
  ck_assert_uint_eq(loss_steps_advised(0.5, 0.6, 0.5), 300);
  ck_assert_uint_eq(loss_steps_advised(0.49, 0.3, 0.1), 1000);
  ck_assert_uint_eq(loss_steps_advised(1, 0.61, 0.1), 2000);
  ck_assert_uint_eq(loss_steps_advised(1, 0.3, 0.51), 2000);
  ck_assert_uint_eq(loss_steps_advised(0.25, NAN, NAN), 1000);
  make(400, 0, 0.3);
  compare(400, 400, &(struct loss_settings){.margin_percent = 0.25, .floor_percent = 0.05});
  ck_assert(pair.below_advised && pair.steps_advised == 1000);
}
END_TEST

/* The baseline falls by 0.001 a step and the candidate is 0.01 above it: ten points behind, at five steps each. */
START_TEST(lag_in_training_steps_by_hand) {
  for (size_t i = 0; i < 400; i++) {
    a[i] = (struct compare_point){.step = (int64_t)i * 5, .loss = 3 - 0.001 * (double)i, .grad_norm = NAN, .t_s = NAN};
    b[i] = a[i];
    b[i].loss += 0.01;
  }
  compare(400, 400, &one_percent);
  near(pair.lag_steps, 50, 1e-6);
  ck_assert(isnan(pair.norm_ratio));
}
END_TEST

START_TEST(spikes_of_either_and_of_the_candidate_alone) {
  make(400, 0, 0.1);
  compare(400, 400, &one_percent);
  size_t before_a = pair.spikes_a, before_b = pair.spikes_b;
  a[100].loss += 0.5, b[100].loss += 0.5, b[200].loss += 0.5, b[300].loss -= 0.5; /* a dip is none */
  compare(400, 400, &one_percent);
  ck_assert_uint_eq(pair.spikes_a, before_a + 1);
  ck_assert_uint_eq(pair.spikes_b, before_b + 2);
  ck_assert_uint_eq(pair.spikes_only_b, 1);
}
END_TEST

START_TEST(largest_smoothed_gap_and_where) {
  make(400, 0, 0);
  for (size_t i = 200; i < 209; i++)
    b[i].loss *= 0.97;
  compare(400, 400, &one_percent);
  ck_assert_int_eq(pair.largest_gap_step, 205);
  near(pair.largest_gap_percent, -3, 0.1);
  ck_assert_uint_eq(pair.longest_sign_run, 9);
}
END_TEST

START_TEST(floor_is_the_root_mean_square) {
  near(loss_floor((double[]){0.03, -0.04}, 2), sqrt((0.0009 + 0.0016) / 2), 1e-15);
  ck_assert(isnan(loss_floor((double[]){0.03}, 1)));
  near(loss_floor_between(0.1, 0.7), 0.5, 1e-12);
  ck_assert(loss_floor_between(NAN, 0.7) == 0.7 && loss_floor_between(0.1, NAN) == 0.1 &&
            isnan(loss_floor_between(NAN, NAN)));
}
END_TEST

/* ---- several pairs */

static struct loss_pair made_pair(double gap, double half_width) {
  return (struct loss_pair){.verdict = LOSS_EQUIVALENT,
                            .reason = LOSS_BY_INTERVAL,
                            .common = 1000,
                            .margin_percent = 0.25,
                            .gap_percent = gap,
                            .half_width_percent = half_width};
}

/* Gaps 0.1, 0.2 and 0.3: mean 0.2, sd 0.1, t with 2 degrees 2.91999. */
START_TEST(three_pairs_speak_of_the_recipe) {
  struct loss_pair pairs[] = {made_pair(0.1, 0.05), made_pair(0.2, 0.05), made_pair(0.3, 0.05)};
  struct loss_summary summary;
  loss_summarise(pairs, 3, &summary);
  ck_assert(summary.recipe && summary.pairs == 3 && summary.verdict == LOSS_INCONCLUSIVE);
  near(summary.gap_percent, 0.2, 1e-12);
  near(summary.spread_percent, 0.1, 1e-12);
  near(summary.half_width_percent, 2.919985580355516 * 0.1 / sqrt(3), 1e-9);
  ck_assert_uint_eq(summary.pairs_needed, 13); /* t(12) 0.1 / sqrt(13) = 0.0494; of 12 pairs 0.0518 */
  for (size_t i = 0; i < 3; i++)
    pairs[i].margin_percent = 0.4;
  loss_summarise(pairs, 3, &summary);
  ck_assert(summary.verdict == LOSS_EQUIVALENT && summary.reason == LOSS_BY_INTERVAL && !summary.short_run);
  for (size_t i = 0; i < 3; i++)
    pairs[i].gap_percent += 1;
  loss_summarise(pairs, 3, &summary);
  ck_assert(summary.verdict == LOSS_WORSE);
}
END_TEST

START_TEST(two_pairs_speak_of_these_runs) {
  struct loss_pair pairs[] = {made_pair(0.1, 0.06), made_pair(0.2, 0.08)};
  struct loss_summary summary;
  loss_summarise(pairs, 2, &summary);
  ck_assert(!summary.recipe && summary.verdict == LOSS_EQUIVALENT);
  near(summary.gap_percent, 0.15, 1e-12);
  near(summary.half_width_percent, 0.05, 1e-12);
}
END_TEST

START_TEST(one_pair_is_its_own_summary) {
  make(1000, 1, 0.3);
  compare(1000, 1000, &one_percent);
  struct loss_summary summary;
  loss_summarise(&pair, 1, &summary);
  ck_assert(summary.verdict == pair.verdict && summary.reason == pair.reason && summary.gap_percent == pair.gap_percent);
  ck_assert(summary.half_width_percent == pair.half_width_percent && isnan(summary.spread_percent) && !summary.recipe);
  ck_assert(summary.steps_needed == pair.steps_needed && summary.pairs_needed == pair.pairs_needed);
}
END_TEST

START_TEST(one_bad_pair_decides) {
  struct loss_pair pairs[] = {made_pair(0, 0.01), made_pair(0.01, 0.01), made_pair(-0.01, 0.01), made_pair(0, 0.01)};
  struct loss_summary summary;
  loss_summarise(pairs, 4, &summary);
  ck_assert(summary.verdict == LOSS_EQUIVALENT && summary.recipe);
  pairs[2].growing = true;
  loss_summarise(pairs, 4, &summary);
  ck_assert(summary.verdict == LOSS_INCONCLUSIVE && summary.reason == LOSS_BY_GROWTH && summary.decisive == 2);
  pairs[1].start_differs = true;
  loss_summarise(pairs, 4, &summary);
  ck_assert(summary.verdict == LOSS_INCONCLUSIVE && summary.reason == LOSS_BY_START && summary.decisive == 1);
  pairs[0].common = 99;
  loss_summarise(pairs, 4, &summary);
  ck_assert(summary.verdict == LOSS_INCONCLUSIVE && summary.reason == LOSS_BY_LENGTH && summary.decisive == 0);
  pairs[1].verdict = LOSS_INVALID, pairs[1].reason = LOSS_BY_OVERLAP, pairs[1].gap_percent = NAN;
  loss_summarise(pairs, 4, &summary);
  ck_assert(summary.verdict == LOSS_INVALID && summary.reason == LOSS_BY_OVERLAP && summary.decisive == 1);
  pairs[3].verdict = LOSS_DIVERGED, pairs[3].reason = LOSS_BY_NONFINITE;
  loss_summarise(pairs, 4, &summary);
  ck_assert(summary.verdict == LOSS_DIVERGED && summary.reason == LOSS_BY_NONFINITE && summary.decisive == 3);
}
END_TEST

START_TEST(identical_pairs_are_equivalent) {
  make(400, 0, 0);
  compare(400, 400, &one_percent);
  struct loss_pair pairs[] = {pair, pair, pair};
  struct loss_summary summary;
  loss_summarise(pairs, 3, &summary);
  ck_assert(summary.verdict == LOSS_EQUIVALENT && summary.reason == LOSS_BY_IDENTITY && summary.identical);
  ck_assert(summary.half_width_percent == 0 && summary.short_run);
}
END_TEST

/* ---- time to equal loss */

/* Straight lines, on which a centred mean is the value itself but at the ends. The baseline falls by 0.01 per step of 10 s,
   the candidate by 0.01 per step of 8 s but 20 steps late: level 4 takes 100 steps, 1000 s, against 120 steps, 960 s. */
START_TEST(time_to_a_level_by_hand) {
  for (size_t i = 0; i < 400; i++) {
    a[i] = (struct compare_point){.step = (int64_t)i, .loss = 5 - 0.01 * (double)i, .grad_norm = NAN, .t_s = 10 * (double)i};
    b[i] =
        (struct compare_point){.step = (int64_t)i, .loss = 5.2 - 0.01 * (double)i, .grad_norm = NAN, .t_s = 8 * (double)i};
  }
  near(loss_time_to(a, 400, 4), 1000, 1e-6);
  near(loss_time_to(b, 400, 4), 960, 1e-6);
  near(loss_time_to(a, 400, 3.996), 1004, 1e-6); /* between two steps */
  ck_assert(isnan(loss_time_to(a, 400, 0.5)));
  near(loss_time_to(a, 400, 6), 0, 0);
  struct loss_time times[LOSS_LEVELS];
  ck_assert_uint_eq(loss_time_to_equal(a, 400, b, 400, times), LOSS_LEVELS);
  /* From the candidate's 4.2 at its 100th step to its lowest mean, 1.23: the last five values, half a window of the 9. */
  near(times[0].level, 4.2, 1e-9);
  near(times[LOSS_LEVELS - 1].level, 1.23, 1e-9);
  near(times[0].a_s, 800, 1e-6);
  near(times[0].b_s, 800, 1e-6);
  near(times[0].speedup, 1, 1e-9);
  near(times[2].level, (4.2 + 1.23) / 2, 1e-9);
  near(times[2].a_s, 2285, 1e-6);
  near(times[2].b_s, 1988, 1e-6);
  near(times[2].speedup, 2285.0 / 1988, 1e-9);
}
END_TEST

START_TEST(time_to_equal_loss_without_times) {
  make(400, 0.1, 0.3);
  struct loss_time times[LOSS_LEVELS];
  ck_assert_uint_eq(loss_time_to_equal(a, 400, b, 400, times), LOSS_LEVELS);
  for (size_t i = 0; i < 400; i++)
    a[i].t_s = NAN;
  ck_assert_uint_eq(loss_time_to_equal(a, 400, b, 400, times), 0);
  ck_assert_uint_eq(loss_time_to_equal(a, 0, b, 400, times), 0);
}
END_TEST

/* After NaN nothing is reached any more, and what was reached before stands. */
START_TEST(time_to_equal_loss_until_nan) {
  make(400, 0, 0);
  double level = 2.5, whole = loss_time_to(a, 400, level);
  a[300].loss = NAN;
  near(loss_time_to(a, 400, level), whole, 1e-9);
  a[20].loss = NAN;
  ck_assert(isnan(loss_time_to(a, 400, level)));
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(exit_statuses_are_the_documented_ones) \
  X(every_threshold_says_what_it_is) \
  X(nothing_to_compare) \
  X(nan_in_the_candidate_is_divergence_at_any_step) \
  X(nan_counts_before_overlap_and_beyond_the_baseline) \
  X(who_was_first_with_nan) \
  X(a_baseline_with_nan_is_no_measure) \
  X(numbers_that_differ_by_one_are_not_other_data) \
  X(a_short_run_needs_a_window_and_not_four) \
  X(a_lag_longer_than_the_run_is_none) \
  X(overlap_is_of_the_longer_run) \
  X(steps_are_matched_by_their_number) \
  X(gap_of_the_window_by_hand) \
  X(window_is_a_quarter_and_at_least_a_hundred) \
  X(assumed_floor_is_said) \
  X(verdict_by_interval) \
  X(steps_that_would_decide) \
  X(a_growing_gap_is_not_equivalent) \
  X(another_start_blocks_equivalent_and_hides_nothing) \
  X(start_is_judged_from_the_first_steps_only) \
  X(far_above_and_rising_is_diverged) \
  X(losses_that_explode) \
  X(noise_that_is_not_related_is_other_data) \
  X(short_runs_say_so) \
  X(identical_runs_are_equivalent_at_any_length_with_a_window) \
  X(percent_of_what_is_not_positive_has_no_meaning) \
  X(steps_advised) \
  X(lag_in_training_steps_by_hand) \
  X(spikes_of_either_and_of_the_candidate_alone) \
  X(largest_smoothed_gap_and_where) \
  X(floor_is_the_root_mean_square) \
  X(three_pairs_speak_of_the_recipe) \
  X(two_pairs_speak_of_these_runs) \
  X(one_pair_is_its_own_summary) \
  X(one_bad_pair_decides) \
  X(identical_pairs_are_equivalent) \
  X(time_to_a_level_by_hand) \
  X(time_to_equal_loss_without_times) \
  X(time_to_equal_loss_until_nan)
/* clang-format on */
UNIT_MAIN("compare_loss", CASES)
