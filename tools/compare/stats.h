/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of short, dependent series: means that say how well they are known.
 *
 * Pure: no allocation, no global state, thread-safe. Values are finite; whoever has NaN among them sorts them out before.
 * Where a function has too little to go on it answers NAN, never a number that looks good.
 */
#ifndef B200_COMPARE_STATS_H
#define B200_COMPARE_STATS_H

#include <stddef.h>
#include <stdint.h>

/* Blocks of an interval by block means: few enough that blocks are nearly independent, many enough for a t with 7 degrees.
 */
#define STATS_BLOCKS 8
/* A median absolute deviation times this is the standard deviation, of normal values: 1 / (upper quartile of the normal). */
#define STATS_MAD_SD 1.4826022185056018

/* Student's t. pre of the quantile: 0 < p < 1; of both: freedom > 0, not necessarily whole; else NAN.
   Regularised incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8, 26.7.1); the quantile is its
   inverse by bisection. Relative error below 1e-8 for 1 <= freedom <= 1e6. */
double stats_t_probability(double t, double freedom);
double stats_t_quantile(double p, double freedom);

/* Of nothing: NAN. */
double stats_mean(const double *values, size_t count);
/* Of a sample: divides by count - 1. NAN below two values. */
double stats_sd(const double *values, size_t count);
/* These reorder `values`. Quantiles interpolate between order statistics, 0 <= p <= 1 (Hyndman and Fan's type 7, as NumPy).
 */
double stats_quantile(double *values, size_t count, double p);
double stats_median(double *values, size_t count);
/* Without floor(share * count) values at either end, 0 <= share < 0.5. */
double stats_trimmed_mean(double *values, size_t count, double share);
/* Median of |value - middle|, without a factor. `work` has room for `count`. */
double stats_mad(const double *values, size_t count, double middle, double *work);
/* Pearson's. NAN when one side does not vary. */
double stats_correlation(const double *a, const double *b, size_t count);

/* Autocorrelation at lag one: correlation of the values but the first with those but the last. 0 of a constant. */
double stats_lag1(const double *values, size_t count);
/* The same made free of most of its bias, r + (1 + 3 r) / n (Kendall 1954, Marriott and Pope 1954), and kept in 0 … 0.95:
   what seems anti-correlated is treated as independent. */
double stats_lag1_corrected(const double *values, size_t count);
/* How many independent values say as much about the mean: n (1 - r) / (1 + r) of an AR(1), never below 4. */
double stats_effective_count(size_t count, double lag1);

/* Means of `blocks` runs of neighbours of equal length; the first count % blocks values are in none of them.
   pre: count >= blocks. */
void stats_block_means(const double *values, size_t count, size_t blocks, double *means);

/* Least squares over equally spaced values. */
struct stats_line {
  double slope; /* per value */
  double error; /* standard error of the slope; NAN below three values */
  double level; /* at the middle */
};
struct stats_line stats_line(const double *values, size_t count);

/* What a mean may be off by, both sides together `confidence` (0.9, say). */
struct stats_error {
  double by_blocks;  /* t on the means of STATS_BLOCKS blocks */
  double by_ar1;     /* t on the effective count */
  double half_width; /* the larger; NAN below 2 * STATS_BLOCKS values */
};
struct stats_error stats_mean_error(const double *values, size_t count, double confidence);

/* A number with its standard error, to be used with Student's t of `freedom`. NAN: not known. */
struct stats_estimate {
  double value, error, freedom;
};
/* Of a sample's mean; error and freedom are NAN below two values. */
struct stats_estimate stats_mean_estimate(const double *values, size_t count);
/* b - a, unlike variances (Welch 1947; freedom by Satterthwaite 1946). With errors of 0 on both sides the freedom is
 * infinite. */
struct stats_estimate stats_difference(struct stats_estimate a, struct stats_estimate b);

/* Random numbers for simulations: xoshiro256++ (Blackman and Vigna), seeded by splitmix64. Same seed, same numbers. */
struct stats_random {
  uint64_t state[4];
};
void stats_random_seed(struct stats_random *random, uint64_t seed);
uint64_t stats_random_bits(struct stats_random *random);
/* 0 < u < 1, on a grid of 2^-53. */
double stats_random_uniform(struct stats_random *random);
/* Mean 0, variance 1 (Box and Muller, one of each two). */
double stats_random_normal(struct stats_random *random);

#endif
