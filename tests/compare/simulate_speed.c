/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: simulate_speed [RUNS_PER_CELL [SEED]]    500 and 1 by default
 *
 * How often the interval around the ratio of two throughputs holds the true one, and how often a difference that "could have
 * been seen" is seen. Step times are an AR(1) around a level that each run has of its own, with slow first steps and
 * exceptional ones (a checkpoint each hundred steps, and one step in fifty that takes up to twice as long). Prints a row per
 * cell: the share of intervals that hold the truth, required to be 90 to 98 percent, and their mean width; and the share of
 * pairs with a difference of the size that was said, meant to be 80 percent and required to be 70 to 95. A requirement is
 * missed when the share is beyond it by more than three standard errors of the simulation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/compare/speed.h"
#include "tools/compare/stats.h"

#define LONGEST 5000
#define RUNS_MOST 5
#define TRUE_RATIO 1.03

static const struct cell {
  size_t steps, runs;
  double dependence;
  double sd;        /* of the logarithm of a step's time */
  double run_sd;    /* of the logarithm of a run's level; with few runs no interval can know it */
  double low, high; /* coverage that is required; 0: none */
} cells[] = {
    {100, 1, 0, 0.03, 0, 0.90, 0.98},      {100, 1, 0.3, 0.03, 0, 0.90, 0.98},    {300, 1, 0, 0.03, 0, 0.90, 0.98},
    {300, 1, 0.5, 0.03, 0, 0.90, 0.98},    {300, 1, 0.8, 0.03, 0, 0.90, 0.98},    {1000, 1, 0.5, 0.03, 0, 0.90, 0.98},
    {1000, 1, 0.9, 0.03, 0, 0.90, 0.98},   {5000, 1, 0.9, 0.1, 0, 0.90, 0.98},    {1000, 2, 0.5, 0.03, 0, 0.90, 0.98},
    {300, 3, 0.5, 0.03, 0.01, 0.90, 0.98}, {300, 5, 0.5, 0.03, 0.01, 0.90, 0.98}, {300, 3, 0.5, 0.03, 0, 0.90, 0.98},
    {300, 1, 0.5, 0.03, 0.01, 0, 0},       {100, 1, 0.8, 0.03, 0, 0, 0},
};

static double seconds[LONGEST], work[2 * LONGEST];
static unsigned char marks[LONGEST];

static void make_run(struct stats_random *random, const struct cell *cell, double level, struct speed_run *run) {
  double series = stats_random_normal(random), innovation = sqrt(1 - cell->dependence * cell->dependence);
  level *= exp(cell->run_sd * stats_random_normal(random));
  for (size_t i = 0; i < cell->steps; i++) {
    series = cell->dependence * series + innovation * stats_random_normal(random);
    seconds[i] = level * exp(cell->sd * series) * (1 + 3 * exp(-(double)i / 3));
    if (i % 100 == 99)
      seconds[i] += 10 * level;
    else if (stats_random_uniform(random) < 0.02)
      seconds[i] *= 1 + stats_random_uniform(random);
  }
  speed_run(seconds, NULL, cell->steps, work, marks, run);
}

static struct speed_ratio compare(struct stats_random *random, const struct cell *cell, double true_ratio) {
  struct speed_run a[RUNS_MOST], b[RUNS_MOST];
  for (size_t i = 0; i < cell->runs; i++) { /* in turn, as they would be run */
    make_run(random, cell, true_ratio, &a[i]);
    make_run(random, cell, 1, &b[i]);
  }
  struct speed_ratio ratio;
  speed_compare(a, cell->runs, b, cell->runs, &ratio);
  return ratio;
}

static bool is_within(double share, double low, double high, size_t runs) {
  return share >= low - 3 * sqrt(low * (1 - low) / (double)runs) &&
         share <= high + 3 * sqrt(high * (1 - high) / (double)runs);
}

static bool run_cell(const struct cell *cell, size_t runs, uint64_t seed) {
  struct stats_random random;
  stats_random_seed(&random, seed);
  size_t held = 0, seen = 0;
  double width = 0, visible = 0;
  for (size_t i = 0; i < runs; i++) {
    struct speed_ratio ratio = compare(&random, cell, TRUE_RATIO);
    held += ratio.low <= TRUE_RATIO && TRUE_RATIO <= ratio.high;
    width += 50 * (ratio.high - ratio.low) / (double)runs;
    visible += ratio.could_have_seen_percent / (double)runs;
  }
  for (size_t i = 0; i < runs; i++)
    seen += compare(&random, cell, 1 + visible / 100).verdict == SPEED_FASTER;
  double coverage = (double)held / (double)runs, power = (double)seen / (double)runs;
  bool required = cell->high > 0;
  bool met = !required || (is_within(coverage, cell->low, cell->high, runs) && is_within(power, 0.70, 0.95, runs));
  printf("%5zu %4zu %6.1f %6.3f %6.3f  %7.1f %8.2f %8.2f %7.1f  %s\n", cell->steps, cell->runs, cell->dependence, cell->sd,
         cell->run_sd, 100 * coverage, width, visible, 100 * power,
         !required ? ""
         : met     ? "ok"
                   : "MISSED");
  return met;
}

int main(int argc, char **argv) {
  long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 500, seed = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
  if (runs < 1) {
    fprintf(stderr, "simulate_speed: %s: not a number of runs\n", argv[1]);
    return 2;
  }
  size_t count = sizeof(cells) / sizeof(cells[0]), failed = 0;
  printf("%ld pairs per cell, true ratio %.2f\n", runs, TRUE_RATIO);
  printf("steps runs  lag-1     sd run sd  covered  +- %%  visible %% seen %%\n");
  for (size_t i = 0; i < count; i++)
    failed += !run_cell(&cells[i], (size_t)runs, (uint64_t)seed * 1000 + i);
  printf("%zu passed, %zu failed\n", count - failed, failed);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
