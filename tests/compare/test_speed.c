/* SPDX-License-Identifier: Apache-2.0 */
/* Throughput of one run and of two arms, over times that were made for one rule each, with numbers worked out by hand. */
#include "tools/compare/speed.h"

#include <math.h>

#include "tools/compare/stats.h"
#include "unit.h"

#define MOST 1000

static double seconds[MOST], work[2 * MOST];
static bool marked[MOST];
static unsigned char marks[MOST];
static struct speed_run run;

static void near(double got, double wanted, double tolerance) {
  ck_assert_msg(fabs(got - wanted) <= tolerance, "%.12g is not %.12g", got, wanted);
}

/* Steps of 1 s that are alternately 1 ms shorter and longer. */
static void make(size_t count) {
  for (size_t i = 0; i < count; i++)
    seconds[i] = i % 2 ? 1.001 : 0.999, marked[i] = false;
}

static void summarise(size_t count) {
  speed_run(seconds, marked, count, work, marks, &run);
  ck_assert_uint_eq(run.steps, count);
  ck_assert_uint_eq(run.warm_up + run.steady + run.exceptional, count);
}

START_TEST(warm_up_is_ten_steps_or_a_tenth) {
  make(300);
  summarise(60);
  ck_assert(run.warm_up == 10 && run.settled && run.steady == 50 && run.exceptional == 0);
  ck_assert(marks[9] == SPEED_WARM_UP && marks[10] == SPEED_STEADY);
  summarise(300);
  ck_assert(run.warm_up == 30 && run.steady == 270);
  speed_run(seconds, NULL, 300, work, marks, &run);
  ck_assert(run.steady == 270);
}
END_TEST

/* 60 slow steps; the median of 20 is in order when fewer than half of them are slow: from step 51 on. */
START_TEST(warm_up_lasts_until_the_median_settles) {
  make(300);
  for (size_t i = 0; i < 60; i++)
    seconds[i] = 1.5;
  summarise(300);
  ck_assert_msg(run.settled && run.warm_up == 51, "%zu", run.warm_up);
  ck_assert(run.exceptional == 9 && run.steady == 240); /* the last slow ones */
  near(run.steady_s, 1, 0.0011);
}
END_TEST

/* Slow until beyond the middle: no 20 steps of the first half are like the rest, and the least warm-up is taken. */
START_TEST(a_run_that_never_settles) {
  make(300);
  for (size_t i = 0; i < 180; i++)
    seconds[i] = 2;
  summarise(300);
  ck_assert(!run.settled && run.warm_up == 30);
}
END_TEST

/* 1 s but for: one step of 5 s (a checkpoint), one of 1.01 s that the source marked, one without a time. */
START_TEST(exceptional_steps_are_in_the_end_to_end_alone) {
  make(110);
  seconds[50] = 5;
  seconds[60] = 1.01;
  marked[60] = true;
  seconds[70] = NAN;
  summarise(110);
  ck_assert(run.warm_up == 11 && run.exceptional == 3 && run.steady == 96);
  ck_assert(marks[50] == SPEED_EXCEPTIONAL && marks[60] == SPEED_EXCEPTIONAL && marks[70] == SPEED_EXCEPTIONAL);
  double ordinary = 0;
  for (size_t i = 11; i < 110; i++)
    ordinary += marks[i] == SPEED_STEADY ? seconds[i] : 0;
  near(run.end_to_end_s, (ordinary + 5 + 1.01) / 98, 1e-12);
  near(run.exceptional_s, 5 + 1.01 - 2 * run.steady_s, 1e-12);
  near(run.steady_s, 1, 0.0011);
  near(run.trimmed_s, 1, 0.0011);
  ck_assert(run.p95_s >= 1.001 && run.p95_s < 1.01);
}
END_TEST

/* Where steps do not vary at all, only what is more than 2 % off is exceptional. */
START_TEST(modelled_times_that_hardly_vary) {
  for (size_t i = 0; i < 100; i++)
    seconds[i] = 1, marked[i] = false;
  seconds[50] = 1.019;
  seconds[51] = 1.021;
  summarise(100);
  ck_assert(run.exceptional == 1 && marks[51] == SPEED_EXCEPTIONAL && run.steady_s == 1);
}
END_TEST

START_TEST(what_is_too_short_says_nothing) {
  make(100);
  summarise(0);
  ck_assert(isnan(run.steady_s) && isnan(run.end_to_end_s) && isnan(run.log_error));
  summarise(10);
  ck_assert(run.warm_up == 10 && isnan(run.steady_s) && isnan(run.end_to_end_s));
  summarise(41); /* 31 steady steps */
  ck_assert(run.steady == 31 && isnan(run.log_error) && run.steady_s > 0);
  summarise(42);
  ck_assert(run.steady == 32 && run.log_error >= 0);
  struct speed_run none = run;
  summarise(41);
  struct speed_ratio ratio;
  speed_compare(&run, 1, &none, 1, &ratio);
  ck_assert(ratio.verdict == SPEED_UNKNOWN && isnan(ratio.low) && isnan(ratio.could_have_seen_percent));
  near(ratio.ratio, 1, 0.0021);
  speed_compare(&run, 0, &none, 1, &ratio);
  ck_assert(ratio.verdict == SPEED_UNKNOWN && isnan(ratio.ratio) && ratio.runs_a == 0);
}
END_TEST

/* 25 steps of 0.999 s and as many of 1.001 s in turn: the medians of blocks are all equal, no dependence is left, and the
   error is that of the median of 50 normal values, sqrt(pi / 2) sd / sqrt(50). */
START_TEST(error_of_the_median_by_hand) {
  make(60);
  summarise(60);
  double half = (log(1.001) - log(0.999)) / 2, sd = half * sqrt(50.0 / 49);
  near(run.log_error, sqrt(acos(-1) / 2) * sd / sqrt(50), 1e-12);
  near(run.freedom, 49, 1e-9);
}
END_TEST

/* ---- two arms */

static struct speed_run made_run(double steady_s, double log_error, double freedom) {
  return (struct speed_run){
      .steady = 100, .steady_s = steady_s, .end_to_end_s = steady_s * 1.1, .log_error = log_error, .freedom = freedom};
}

/* Errors 0.01 and 0.02 with 7 degrees each: together 0.02236 with 7 (5^2 / (1 + 16)) = 10.294 degrees. */
START_TEST(one_run_each_by_hand) {
  struct speed_run a = made_run(1.1, 0.01, 7), b = made_run(1, 0.02, 7);
  struct speed_ratio ratio;
  speed_compare(&a, 1, &b, 1, &ratio);
  double freedom = 7 * 25.0 / 17, error = sqrt(0.0005), t = stats_t_quantile(0.975, freedom);
  near(ratio.freedom, freedom, 1e-9);
  near(ratio.ratio, 1.1, 1e-12);
  near(ratio.low, 1.1 * exp(-t * error), 1e-12);
  near(ratio.high, 1.1 * exp(t * error), 1e-12);
  near(ratio.end_to_end_ratio, 1.1, 1e-12);
  near(ratio.could_have_seen_percent, 100 * (exp((t + stats_t_quantile(0.8, freedom)) * error) - 1), 1e-9);
  ck_assert(ratio.verdict == SPEED_FASTER && !ratio.run_is_unit);
  speed_compare(&b, 1, &a, 1, &ratio);
  ck_assert(ratio.verdict == SPEED_SLOWER);
  near(ratio.ratio, 1 / 1.1, 1e-12);
  speed_compare(&a, 1, &a, 1, &ratio);
  ck_assert(ratio.verdict == SPEED_NO_DIFFERENCE && ratio.ratio == 1);
}
END_TEST

/* Two runs of one arm: their mean has half the error of their sum. */
START_TEST(two_runs_are_averaged) {
  struct speed_run a[] = {made_run(1, 0.02, 7), made_run(1.21, 0.02, 7)}, b = made_run(1, 0, 7);
  struct speed_ratio ratio;
  speed_compare(a, 2, &b, 1, &ratio);
  near(ratio.steady_a_s, 1.1, 1e-12);
  near(ratio.freedom, 14, 1e-9);
  near(ratio.high, 1.1 * exp(stats_t_quantile(0.975, 14) * 0.02 / sqrt(2)), 1e-9);
  ck_assert(!ratio.run_is_unit && ratio.runs_a == 2 && ratio.runs_b == 1);
  speed_compare(a, 2, a, 2, &ratio);
  ck_assert(!ratio.run_is_unit && ratio.freedom > 27.9); /* four runs with 7 degrees each */
}
END_TEST

/* From three runs a side it is the runs that vary; what their steps say of themselves does not matter. SciPy:
   ttest_ind(log([1.00, 1.02, 1.05]), log([0.90, 0.91, 0.95, 0.93]), equal_var=False).confidence_interval(0.95) is
   (0.053975, 0.153521) with 4.3888 degrees. */
START_TEST(three_runs_each_are_welchs_t) {
  struct speed_run a[] = {made_run(1, 5, 7), made_run(1.02, NAN, NAN), made_run(1.05, 0, 7)};
  struct speed_run b[] = {made_run(0.9, 5, 7), made_run(0.91, 5, 7), made_run(0.95, 5, 7), made_run(0.93, 5, 7)};
  struct speed_ratio ratio;
  speed_compare(a, 3, b, 4, &ratio);
  ck_assert(ratio.run_is_unit && ratio.verdict == SPEED_FASTER);
  near(ratio.freedom, 4.3888269259546835, 1e-9);
  near(log(ratio.low), 0.05397467657453272, 1e-9);
  near(log(ratio.high), 0.15352144224493522, 1e-9);
  near(ratio.steady_a_s, cbrt(1 * 1.02 * 1.05), 1e-12);
}
END_TEST

START_TEST(modelled_runs_without_any_error) {
  struct speed_run a[] = {made_run(2, 0, 7), made_run(2, 0, 7), made_run(2, 0, 7)}, b = made_run(1, 0, 7);
  struct speed_ratio ratio;
  speed_compare(a, 3, a, 3, &ratio);
  ck_assert(ratio.verdict == SPEED_NO_DIFFERENCE && ratio.low == 1 && ratio.high == 1 && ratio.could_have_seen_percent == 0);
  speed_compare(a, 1, &b, 1, &ratio);
  ck_assert(ratio.verdict == SPEED_FASTER && fabs(ratio.low - 2) < 1e-12 && ratio.low == ratio.high);
}
END_TEST

/* ---- where it went, and what it costs */

START_TEST(split_of_the_difference) {
  struct speed_parts a = {.total_s = 1, .compute_s = 0.6, .blocked_s = 0.2, .host_s = 0.1};
  struct speed_parts b = {.total_s = 0.8, .compute_s = 0.35, .blocked_s = 0.25, .host_s = 0.1};
  struct speed_split split = speed_split(&a, &b);
  near(split.total_s, -0.2, 1e-12);
  near(split.compute_s, -0.25, 1e-12);
  near(split.blocked_s, 0.05, 1e-12);
  near(split.host_s, 0, 1e-12);
  near(split.other_s, 0, 1e-12);
  b.host_s = NAN;
  b.total_s = 0.9;
  split = speed_split(&a, &b);
  ck_assert(isnan(split.host_s));
  near(split.other_s, 0.1, 1e-12);
}
END_TEST

/* 8,192 tokens in 0.5 s at 98.32 an hour: 16,384 tokens/s, 58,982,400 an hour, 599,902.4 for one. */
START_TEST(cost_by_hand) {
  near(speed_tokens_per_s(8192, 0.5), 16384, 1e-9);
  near(speed_tokens_per_unit(16384, 98.32), 58982400 / 98.32, 1e-6);
  near(speed_cost(1800, 98.32), 49.16, 1e-12);
  ck_assert(isnan(speed_tokens_per_s(0, 1)) && isnan(speed_tokens_per_s(1, 0)) && isnan(speed_tokens_per_s(NAN, 1)));
  ck_assert(isnan(speed_cost(0, 1)) && isnan(speed_cost(1, 0)) && isnan(speed_cost(NAN, 1)));
  ck_assert(isnan(speed_tokens_per_unit(0, 1)) && isnan(speed_tokens_per_unit(1, -1)));
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(warm_up_is_ten_steps_or_a_tenth) \
  X(warm_up_lasts_until_the_median_settles) \
  X(a_run_that_never_settles) \
  X(exceptional_steps_are_in_the_end_to_end_alone) \
  X(modelled_times_that_hardly_vary) \
  X(what_is_too_short_says_nothing) \
  X(error_of_the_median_by_hand) \
  X(one_run_each_by_hand) \
  X(two_runs_are_averaged) \
  X(three_runs_each_are_welchs_t) \
  X(modelled_runs_without_any_error) \
  X(split_of_the_difference) \
  X(cost_by_hand)
/* clang-format on */
UNIT_MAIN("compare_speed", CASES)
