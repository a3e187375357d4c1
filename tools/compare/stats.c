/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare/stats.h"

#include <math.h>

#define PI 3.14159265358979323846

/* ---- Student's t */

/* Continued fraction of the incomplete beta function (A&S 26.5.8), evaluated from the front (Lentz). Converges within some
   tens of terms for x < (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x) {
  const double tiny = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (fabs(d) < tiny ? tiny : d);
  double value = d;
  for (int m = 1; m <= 1000; m++) {
    double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (int half = 0; half < 2; half++) {
      double term = half == 0 ? even : odd;
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (fabs(d) < tiny ? tiny : d);
      c = fabs(c) < tiny ? tiny : c;
      change = c * d;
      value *= change;
    }
    if (fabs(change - 1) < 1e-15)
      break;
  }
  return value;
}

/* lgamma() writes a global. */
static double log_gamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

/* Regularised: 0 at x = 0, 1 at x = 1; `y` is 1 - x, which may be known better than it can be had from x. */
static double beta_regular(double a, double b, double x, double y) {
  if (x <= 0 || y <= 0)
    return x <= 0 ? 0 : 1;
  double front = exp(log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * log(x) + b * log(y));
  if (x < (a + 1) / (a + b + 2))
    return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, y) / b;
}

double stats_t_probability(double t, double freedom) {
  if (!(freedom > 0) || isnan(t))
    return NAN;
  if (isinf(freedom))
    return erfc(-t / sqrt(2)) / 2;
  double square = t * t;
  double outside = beta_regular(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square));
  return t > 0 ? 1 - outside / 2 : outside / 2;
}

double stats_t_quantile(double p, double freedom) {
  if (!(p > 0 && p < 1 && freedom > 0))
    return NAN;
  if (p < 0.5)
    return -stats_t_quantile(1 - p, freedom);
  double low = 0, high = 1;
  while (stats_t_probability(high, freedom) < p && high < 1e300)
    high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-12 * high; i++) {
    double middle = low + (high - low) / 2;
    *(stats_t_probability(middle, freedom) < p ? &low : &high) = middle;
  }
  return low + (high - low) / 2;
}

/* ---- moments and order */

double stats_mean(const double *values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++)
    sum += values[i];
  return count ? sum / (double)count : NAN;
}

double stats_sd(const double *values, size_t count) {
  if (count < 2)
    return NAN;
  double mean = stats_mean(values, count), squares = 0;
  for (size_t i = 0; i < count; i++)
    squares += (values[i] - mean) * (values[i] - mean);
  return sqrt(squares / (double)(count - 1));
}

/* Reorders so that values[rank] is the one that sorting would put there, nothing before it is larger and nothing behind it
   is smaller (Hoare's selection). Mean time in proportion to the count. */
static void select_rank(double *values, size_t count, size_t rank) {
  size_t from = 0, to = count - 1;
  while (from < to) {
    double pivot = values[from + (to - from) / 2];
    size_t i = from, j = to;
    for (;;) {
      while (values[i] < pivot)
        i++;
      while (pivot < values[j])
        j--;
      if (i >= j)
        break;
      double swapped = values[i];
      values[i++] = values[j];
      values[j--] = swapped;
    }
    /* [from, j] <= pivot <= [j + 1, to] */
    *(rank <= j ? &to : &from) = rank <= j ? j : j + 1;
  }
}

double stats_quantile(double *values, size_t count, double p) {
  if (!count)
    return NAN;
  double place = p * (double)(count - 1);
  size_t below = (size_t)place;
  select_rank(values, count, below);
  if (below + 1 == count)
    return values[below];
  double above = values[below + 1];
  for (size_t i = below + 2; i < count; i++)
    above = fmin(above, values[i]);
  return values[below] + (place - (double)below) * (above - values[below]);
}

double stats_median(double *values, size_t count) {
  return stats_quantile(values, count, 0.5);
}

double stats_trimmed_mean(double *values, size_t count, double share) {
  size_t cut = (size_t)(share * (double)count), kept = count - 2 * cut;
  if (!kept)
    return NAN;
  select_rank(values, count, cut);
  select_rank(values + cut, count - cut, kept - 1);
  return stats_mean(values + cut, kept);
}

double stats_mad(const double *values, size_t count, double middle, double *work) {
  for (size_t i = 0; i < count; i++)
    work[i] = fabs(values[i] - middle);
  return stats_median(work, count);
}

double stats_correlation(const double *a, const double *b, size_t count) {
  double mean_a = stats_mean(a, count), mean_b = stats_mean(b, count), aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < count; i++) {
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
    ab += (a[i] - mean_a) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

/* ---- dependence */

double stats_lag1(const double *values, size_t count) {
  double lag1 = count > 2 ? stats_correlation(values + 1, values, count - 1) : NAN;
  return isnan(lag1) ? 0 : lag1;
}

double stats_lag1_corrected(const double *values, size_t count) {
  double lag1 = stats_lag1(values, count);
  lag1 += (1 + 3 * lag1) / (double)(count ? count : 1);
  return fmin(fmax(lag1, 0), 0.95);
}

double stats_effective_count(size_t count, double lag1) {
  return fmax((double)count * (1 - lag1) / (1 + lag1), 4);
}

void stats_block_means(const double *values, size_t count, size_t blocks, double *means) {
  size_t size = count / blocks, skipped = count % blocks;
  for (size_t i = 0; i < blocks; i++)
    means[i] = stats_mean(values + skipped + i * size, size);
}

struct stats_line stats_line(const double *values, size_t count) {
  double middle = (double)count / 2 - 0.5, level = stats_mean(values, count), xx = 0, xy = 0, rest = 0;
  for (size_t i = 0; i < count; i++) {
    double x = (double)i - middle;
    xx += x * x;
    xy += x * (values[i] - level);
  }
  struct stats_line line = {.slope = count > 1 ? xy / xx : NAN, .error = NAN, .level = level};
  for (size_t i = 0; i < count; i++) {
    double error = values[i] - level - line.slope * ((double)i - middle);
    rest += error * error;
  }
  if (count > 2)
    line.error = sqrt(rest / (double)(count - 2) / xx);
  return line;
}

struct stats_error stats_mean_error(const double *values, size_t count, double confidence) {
  struct stats_error error = {NAN, NAN, NAN};
  if (count < 2 * STATS_BLOCKS)
    return error;
  double p = (1 + confidence) / 2, means[STATS_BLOCKS];
  stats_block_means(values, count, STATS_BLOCKS, means);
  error.by_blocks = stats_t_quantile(p, STATS_BLOCKS - 1) * stats_sd(means, STATS_BLOCKS) / sqrt(STATS_BLOCKS);
  double effective = stats_effective_count(count, stats_lag1_corrected(values, count));
  error.by_ar1 = stats_t_quantile(p, effective - 1) * stats_sd(values, count) / sqrt(effective);
  error.half_width = fmax(error.by_blocks, error.by_ar1);
  return error;
}

struct stats_estimate stats_mean_estimate(const double *values, size_t count) {
  return (struct stats_estimate){.value = stats_mean(values, count),
                                 .error = stats_sd(values, count) / sqrt((double)count),
                                 .freedom = count < 2 ? NAN : (double)(count - 1)};
}

struct stats_estimate stats_difference(struct stats_estimate a, struct stats_estimate b) {
  double part_a = a.error * a.error, part_b = b.error * b.error, both = part_a + part_b;
  double squares = part_a * part_a / a.freedom + part_b * part_b / b.freedom;
  return (struct stats_estimate){
      .value = b.value - a.value, .error = sqrt(both), .freedom = both == 0 ? INFINITY : both * both / squares};
}

/* ---- random numbers */

void stats_random_seed(struct stats_random *random, uint64_t seed) {
  for (int i = 0; i < 4; i++) {
    uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    random->state[i] = z ^ (z >> 31);
  }
}

static uint64_t rotated(uint64_t x, int by) {
  return (x << by) | (x >> (64 - by));
}

uint64_t stats_random_bits(struct stats_random *random) {
  uint64_t *s = random->state;
  uint64_t result = rotated(s[0] + s[3], 23) + s[0], shifted = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= shifted;
  s[3] = rotated(s[3], 45);
  return result;
}

double stats_random_uniform(struct stats_random *random) {
  return ((double)(stats_random_bits(random) >> 11) + 0.5) * 0x1p-53;
}

double stats_random_normal(struct stats_random *random) {
  double radius = sqrt(-2 * log(stats_random_uniform(random)));
  return radius * cos(2 * PI * stats_random_uniform(random));
}
