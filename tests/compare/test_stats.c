/* SPDX-License-Identifier: Apache-2.0 */
/* stats.c against SciPy's numbers (scipy_values.h), its random numbers against the published ones, and its edges. */
#include <math.h>

#include "scipy_values.h"
#include "tools/compare/stats.h"
#include "unit.h"

#define LONGEST 500
#define ROWS(table) (sizeof(table) / sizeof((table)[0]))

enum kind { INDEPENDENT, DEPENDENT, RISING };

/* The same arithmetic as scipy_values.py does: exact in both. */
static void make_series(enum kind kind, size_t count, double *values) {
  uint64_t state = 12345 + count;
  for (size_t i = 0; i < count; i++) {
    state = (state * 1103515245 + 12345) % (UINT64_C(1) << 31);
    values[i] = (double)state / 0x1p31 - 0.5;
    if (kind == DEPENDENT && i > 0)
      values[i] += 0.75 * values[i - 1];
    if (kind == RISING)
      values[i] += 0.0078125 * (double)i;
  }
}

static void same(double got, double wanted, double tolerance) {
  ck_assert_msg(fabs(got - wanted) <= tolerance * fmax(1, fabs(wanted)), "%.17g is not %.17g", got, wanted);
}

START_TEST(quantiles_of_t_are_scipys) {
  for (size_t i = 0; i < ROWS(scipy_t_quantiles); i++) {
    const double *row = scipy_t_quantiles[i];
    same(stats_t_quantile(row[0], row[1]), row[2], 1e-9);
  }
}
END_TEST

START_TEST(probabilities_of_t_are_scipys) {
  for (size_t i = 0; i < ROWS(scipy_t_probabilities); i++) {
    const double *row = scipy_t_probabilities[i];
    double got = stats_t_probability(row[0], row[1]);
    same(got, row[2], 1e-9);
    if (row[2] > 1e-300) /* tails, too, in proportion */
      same(got / row[2], 1, 1e-8);
  }
}
END_TEST

START_TEST(t_has_no_answer_where_there_is_none) {
  ck_assert(isnan(stats_t_quantile(0, 5)) && isnan(stats_t_quantile(1, 5)) && isnan(stats_t_quantile(NAN, 5)));
  ck_assert(isnan(stats_t_quantile(0.9, 0)) && isnan(stats_t_quantile(0.9, -1)) && isnan(stats_t_quantile(0.9, NAN)));
  ck_assert(isnan(stats_t_probability(NAN, 5)) && isnan(stats_t_probability(1, NAN)));
  same(stats_t_quantile(0.975, INFINITY), 1.959963984540054, 1e-10);
  same(stats_t_probability(INFINITY, 3), 1, 0);
  same(stats_t_probability(-INFINITY, 3), 0, 0);
}
END_TEST

START_TEST(quantiles_of_values_are_numpys) {
  double values[LONGEST];
  for (size_t i = 0; i < ROWS(scipy_quantiles); i++) {
    const double *row = scipy_quantiles[i];
    make_series(INDEPENDENT, (size_t)row[0], values);
    same(stats_quantile(values, (size_t)row[0], row[1]), row[2], 1e-13);
  }
}
END_TEST

static void check_series(enum kind kind, const double (*rows)[12], size_t count) {
  for (size_t i = 0; i < count; i++) {
    const double *row = rows[i];
    double values[LONGEST], work[LONGEST];
    size_t n = (size_t)row[0];
    make_series(kind, n, values);
    same(stats_mean(values, n), row[1], 1e-13);
    same(stats_sd(values, n), row[2], 1e-13);
    same(stats_mad(values, n, row[3], work), row[4], 1e-13);
    same(stats_lag1(values, n), row[6], 1e-12);
    same(stats_lag1_corrected(values, n), row[7], 1e-12);
    same(stats_line(values, n).slope, row[8], 1e-13);
    same(stats_line(values, n).error, row[9], 1e-13);
    struct stats_error error = stats_mean_error(values, n, 0.9);
    same(error.by_blocks, row[10], 1e-10);
    same(error.by_ar1, row[11], 1e-10);
    same(error.half_width, fmax(row[10], row[11]), 1e-10);
    same(stats_trimmed_mean(values, n, 0.1), row[5], 1e-13); /* the last two reorder */
    same(stats_median(values, n), row[3], 1e-13);
  }
}

START_TEST(series_are_scipys) {
  check_series(INDEPENDENT, scipy_independent, ROWS(scipy_independent));
  check_series(DEPENDENT, scipy_dependent, ROWS(scipy_dependent));
  check_series(RISING, scipy_rising, ROWS(scipy_rising));
}
END_TEST

START_TEST(welch_is_scipys) {
  for (size_t i = 0; i < ROWS(scipy_welch); i++) {
    const double *row = scipy_welch[i];
    double a[LONGEST], b[LONGEST];
    make_series(INDEPENDENT, (size_t)row[0], a);
    make_series(DEPENDENT, (size_t)row[1], b);
    for (size_t j = 0; j < (size_t)row[1]; j++)
      b[j] = b[j] * 3 + 1;
    struct stats_estimate of_a = stats_mean_estimate(a, (size_t)row[0]), of_b = stats_mean_estimate(b, (size_t)row[1]);
    struct stats_estimate difference = stats_difference(of_a, of_b);
    same(difference.value, row[2], 1e-13);
    same(difference.error, row[3], 1e-12);
    same(difference.freedom, row[4], 1e-11);
    double wide = stats_t_quantile(0.975, difference.freedom) * difference.error;
    same(difference.value - wide, row[5], 1e-10);
    same(difference.value + wide, row[6], 1e-10);
  }
}
END_TEST

START_TEST(too_few_values_have_no_number) {
  double one[] = {3}, work[1];
  ck_assert(isnan(stats_mean(one, 0)) && isnan(stats_median(one, 0)) && isnan(stats_mad(one, 0, 0, work)));
  ck_assert(isnan(stats_sd(one, 1)) && isnan(stats_mean_estimate(one, 1).error));
  ck_assert(isnan(stats_difference(stats_mean_estimate(one, 1), stats_mean_estimate(one, 1)).error));
  ck_assert(isnan(stats_line(one, 1).slope) && isnan(stats_line((double[]){1, 2}, 2).error));
  ck_assert(isnan(stats_mean_error((double[15]){1}, 15, 0.9).half_width));
  ck_assert(isnan(stats_trimmed_mean(one, 0, 0.1)));
  same(stats_trimmed_mean(one, 1, 0.1), 3, 0);
}
END_TEST

START_TEST(a_constant_is_known_exactly) {
  double values[40], other[40];
  for (size_t i = 0; i < 40; i++)
    values[i] = 2, other[i] = (double)i;
  same(stats_mean_error(values, 40, 0.9).half_width, 0, 0);
  same(stats_lag1(values, 40), 0, 0);
  ck_assert(isnan(stats_correlation(values, other, 40)));
  struct stats_estimate none = stats_difference(stats_mean_estimate(values, 40), stats_mean_estimate(values, 40));
  ck_assert(none.value == 0 && none.error == 0 && isinf(none.freedom));
}
END_TEST

/* Every rank of drawn values with many ties, against counting. */
START_TEST(a_quantile_is_the_value_of_its_rank) {
  struct stats_random random;
  stats_random_seed(&random, 7);
  for (size_t count = 1; count <= 60; count++)
    for (size_t rank = 0; rank < count; rank++) {
      double values[60];
      for (size_t i = 0; i < count; i++)
        values[i] = (double)(stats_random_bits(&random) % (count / 3 + 1));
      double got = stats_quantile(values, count, count == 1 ? 0 : (double)rank / (double)(count - 1));
      size_t below = 0, upto = 0;
      for (size_t i = 0; i < count; i++)
        below += values[i] < got - 1e-9, upto += values[i] <= got + 1e-9;
      ck_assert_msg(below <= rank && rank < upto, "rank %zu of %zu", rank, count);
    }
}
END_TEST

/* What is left over is at the beginning. */
START_TEST(blocks_end_where_the_values_end) {
  double values[] = {100, 1, 3, 5, 7}, means[2];
  stats_block_means(values, 5, 2, means);
  same(means[0], 2, 0);
  same(means[1], 6, 0);
}
END_TEST

START_TEST(random_numbers_are_the_published_ones) {
  struct stats_random random = {{1, 2, 3, 4}}; /* the vector of the authors' code in Rust's rand_xoshiro */
  const uint64_t wanted[] = {41943041, 58720359, 3588806011781223, 3591011842654386};
  for (size_t i = 0; i < ROWS(wanted); i++)
    ck_assert_uint_eq(stats_random_bits(&random), wanted[i]);
  stats_random_seed(&random, 0);
  ck_assert_uint_eq(random.state[0], UINT64_C(0xe220a8397b1dcdaf)); /* splitmix64 from 0 */
  ck_assert_uint_eq(random.state[1], UINT64_C(0x6e789e6aa1b965f4));
}
END_TEST

START_TEST(random_numbers_are_normal) {
  struct stats_random random;
  stats_random_seed(&random, 1);
  enum { COUNT = 200000 };
  double sum = 0, squares = 0, fourth = 0, lag = 0, before = 0;
  size_t beyond = 0;
  for (size_t i = 0; i < COUNT; i++) {
    double value = stats_random_normal(&random);
    sum += value, squares += value * value, fourth += value * value * value * value, lag += value * before;
    beyond += value > 1.959963984540054;
    before = value;
  }
  /* five standard errors */
  same(sum / COUNT, 0, 5 / sqrt(COUNT));
  same(squares / COUNT, 1, 5 * sqrt(2.0 / COUNT));
  same(fourth / COUNT, 3, 5 * sqrt(96.0 / COUNT) / 3);
  same(lag / COUNT, 0, 5 / sqrt(COUNT));
  same((double)beyond / COUNT, 0.025, 5 * sqrt(0.025 * 0.975 / COUNT));
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(quantiles_of_t_are_scipys) \
  X(probabilities_of_t_are_scipys) \
  X(t_has_no_answer_where_there_is_none) \
  X(quantiles_of_values_are_numpys) \
  X(series_are_scipys) \
  X(welch_is_scipys) \
  X(too_few_values_have_no_number) \
  X(a_constant_is_known_exactly) \
  X(a_quantile_is_the_value_of_its_rank) \
  X(blocks_end_where_the_values_end) \
  X(random_numbers_are_the_published_ones) \
  X(random_numbers_are_normal)
/* clang-format on */
UNIT_MAIN("compare_stats", CASES)
