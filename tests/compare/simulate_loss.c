/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: simulate_loss [RUNS_PER_CELL [SEED]]    500 and 1 by default
 *
 * What the verdict on loss curves answers when the truth is known. Each run draws a baseline with the noise of its batches,
 * and a candidate that differs by the cell's gap, an AR(1) in time and an offset of the whole run, and has the library judge
 * the two. Prints a row per cell: how often each answer came, what is required, and whether that was reached: a requirement
 * is missed when the share is beyond it by more than three standard errors of the simulation.
 *
 * The first cells are those that the procedure promises. The others say what happens outside of its assumptions: floors
 * measured from few pairs, heavier tails, more dependence, and a recipe judged by three pairs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/compare/loss.h"
#include "tools/compare/stats.h"

#define LONGEST 4000
#define UNMOVED 10 /* first steps, before rounding has driven the runs apart … */
#define MOVED 100  /* … and when it has */
#define PAIRS_MOST 8

enum tail { NORMAL, STUDENT_4 };

struct cell {
  const char *what;
  size_t steps;
  double gap, sd, dependence, offset; /* percent; dependence: lag-1 correlation */
  double floor; /* percent, as given to the library; 0: measured from `floor_pairs` A/A pairs; NAN: assumed */
  size_t floor_pairs;
  size_t pairs; /* of the recipe; 0: one */
  enum tail tail;
  double growth; /* percent, over the window; it has the gap in its middle */
  struct requirement {
    enum loss_verdict verdict;
    char bound; /* '<' at most, '>' at least, 0: none */
    double share;
  } required[2];
};

#define COMMON .sd = 0.6, .dependence = 0.3, .offset = 0.07
#define PROMISED COMMON, .floor = 0.07
#define AT_MARGIN .required = {{LOSS_EQUIVALENT, '<', 0.05}, {LOSS_WORSE, '<', 0.05}}

static const struct cell cells[] = {
    {"at the margin", 300, 0.25, PROMISED, AT_MARGIN},
    {"at the margin", 1000, 0.25, PROMISED, AT_MARGIN},
    {"at the margin", 2000, 0.25, PROMISED, AT_MARGIN},
    {"at the other margin", 300, -0.25, PROMISED, .required = {{LOSS_EQUIVALENT, '<', 0.05}, {LOSS_BETTER, '<', 0.05}}},
    {"at the other margin", 2000, -0.25, PROMISED, .required = {{LOSS_EQUIVALENT, '<', 0.05}, {LOSS_BETTER, '<', 0.05}}},
    {"no gap", 300, 0, PROMISED, .required = {{LOSS_WORSE, '<', 0}}},
    {"no gap", 1000, 0, PROMISED, .required = {{LOSS_EQUIVALENT, '>', 0.65}, {LOSS_WORSE, '<', 0}}},
    {"no gap", 2000, 0, PROMISED, .required = {{LOSS_EQUIVALENT, '>', 0.80}, {LOSS_WORSE, '<', 0}}},
    {"twice the margin", 1000, 0.5, PROMISED, .required = {{LOSS_WORSE, '>', 0.85}, {LOSS_EQUIVALENT, '<', 0}}},
    {"four times the margin", 300, 1, PROMISED, .required = {{LOSS_WORSE, '>', 1}}},
    {"four times the margin", 1000, 1, PROMISED, .required = {{LOSS_WORSE, '>', 1}}},
    {"four times the margin", 2000, 1, PROMISED, .required = {{LOSS_WORSE, '>', 1}}},
    {"the other way", 1000, -1, PROMISED, .required = {{LOSS_BETTER, '>', 1}}},
    {"no gap, but growing", 2000, 0, PROMISED, .growth = 0.8, .required = {{LOSS_EQUIVALENT, '<', 0.05}}},
    {"at the margin, 3 pairs", 1000, 0.25, .sd = 0.6, .dependence = 0.3, .offset = 0.15, .floor = 0.07, .pairs = 3,
     AT_MARGIN},
    {"at the margin, 5 pairs", 1000, 0.25, .sd = 0.6, .dependence = 0.3, .offset = 0.15, .floor = 0.07, .pairs = 5,
     AT_MARGIN},
    {"no gap, 5 pairs", 1000, 0, COMMON, .pairs = 5, .floor = 0.07,
     .required = {{LOSS_EQUIVALENT, '>', 0.9}, {LOSS_WORSE, '<', 0}}},
    {"at the margin, t4 tails", 1000, 0.25, PROMISED, .tail = STUDENT_4, AT_MARGIN},
    {"at the margin, offsets twice the floor", 1000, 0.25, .sd = 0.6, .dependence = 0.3, .offset = 0.14, .floor = 0.07,
     .pairs = 1},
    {"at the margin, lag-1 0.6", 1000, 0.25, .sd = 0.6, .dependence = 0.6, .offset = 0.07, .floor = 0.07},
    {"at the margin, floor of 2 pairs", 1000, 0.25, COMMON, .floor_pairs = 2},
    {"at the margin, floor of 3 pairs", 1000, 0.25, COMMON, .floor_pairs = 3},
    {"at the margin, floor of 5 pairs", 1000, 0.25, COMMON, .floor_pairs = 5},
    {"at the margin, floor assumed", 1000, 0.25, COMMON, .floor = NAN},
};

static struct compare_point a[LONGEST], b[LONGEST];

/* Mean 0, variance 1. */
static double draw(struct stats_random *random, enum tail tail) {
  double normal = stats_random_normal(random);
  if (tail == NORMAL)
    return normal;
  double squares = 0;
  for (int i = 0; i < 4; i++)
    squares += pow(stats_random_normal(random), 2);
  return normal / sqrt(squares / 4) / sqrt(2);
}

/* A falling loss whose batches differ by 5 %, and the same with the gap in percent of the curve without that noise. */
static void make_pair(struct stats_random *random, const struct cell *cell, double gap) {
  double series = draw(random, cell->tail), offset = cell->offset * stats_random_normal(random);
  double innovation = sqrt(1 - cell->dependence * cell->dependence), window = (double)cell->steps / 4;
  for (size_t i = 0; i < cell->steps; i++) {
    double level = 2 + 3.5 * exp(-(double)i / 60), moved = fmin(fmax(((double)i - UNMOVED) / (MOVED - UNMOVED), 0), 1);
    double grown = cell->growth * fmax(((double)i - (double)cell->steps + window / 2) / window, -0.5);
    double loss = level * (1 + 0.05 * stats_random_normal(random));
    series = cell->dependence * series + innovation * draw(random, cell->tail);
    double now = moved * (gap + grown + offset + cell->sd * series);
    a[i] = (struct compare_point){.step = (int64_t)i + 1, .loss = loss, .grad_norm = NAN, .t_s = NAN};
    b[i] = (struct compare_point){.step = (int64_t)i + 1, .loss = loss + level * now / 100, .grad_norm = NAN, .t_s = NAN};
  }
}

static double measured_floor(struct stats_random *random, const struct cell *cell) {
  double gaps[PAIRS_MOST];
  struct loss_settings settings = {.margin_percent = 0.25, .floor_percent = 0};
  struct loss_pair pair;
  for (size_t i = 0; i < cell->floor_pairs; i++) {
    make_pair(random, cell, 0);
    loss_compare(a, cell->steps, b, cell->steps, &settings, &pair, NULL);
    gaps[i] = pair.gap_percent;
  }
  return loss_floor(gaps, cell->floor_pairs);
}

static enum loss_verdict run(struct stats_random *random, const struct cell *cell) {
  struct loss_settings settings = {.margin_percent = 0.25, .floor_percent = cell->floor};
  if (cell->floor_pairs)
    settings.floor_percent = measured_floor(random, cell);
  struct loss_pair pairs[PAIRS_MOST];
  size_t count = cell->pairs ? cell->pairs : 1;
  for (size_t i = 0; i < count; i++) {
    make_pair(random, cell, cell->gap);
    loss_compare(a, cell->steps, b, cell->steps, &settings, &pairs[i], NULL);
  }
  struct loss_summary summary;
  loss_summarise(pairs, count, &summary);
  return summary.verdict;
}

/* Three standard errors at the required share itself; a share of 0 or 1 has none and must be met. */
static bool is_met(const struct requirement *required, double share, size_t runs) {
  double slack = 3 * sqrt(required->share * (1 - required->share) / (double)runs);
  return required->bound == '<' ? share <= required->share + slack : share >= required->share - slack;
}

static bool run_cell(const struct cell *cell, size_t runs, uint64_t seed) {
  struct stats_random random;
  stats_random_seed(&random, seed);
  size_t counts[LOSS_VERDICT_COUNT] = {0};
  for (size_t i = 0; i < runs; i++)
    counts[run(&random, cell)]++;
  printf("%-40s %5zu %+6.2f ", cell->what, cell->steps, cell->gap);
  for (int i = 0; i < LOSS_VERDICT_COUNT; i++)
    printf(" %6.1f", 100 * (double)counts[i] / (double)runs);
  bool met = true;
  for (size_t i = 0; i < sizeof(cell->required) / sizeof(cell->required[0]) && cell->required[i].bound; i++) {
    const struct requirement *required = &cell->required[i];
    bool this_met = is_met(required, (double)counts[required->verdict] / (double)runs, runs);
    printf("  %s %c= %.0f %s", loss_verdict_names[required->verdict], required->bound, 100 * required->share,
           this_met ? "ok" : "MISSED");
    met = met && this_met;
  }
  printf("\n");
  return met;
}

int main(int argc, char **argv) {
  long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 500, seed = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
  if (runs < 1) {
    fprintf(stderr, "simulate_loss: %s: not a number of runs\n", argv[1]);
    return 2;
  }
  size_t count = sizeof(cells) / sizeof(cells[0]), failed = 0;
  printf("%ld runs per cell, margin 0.25 %%; shares in percent\n%-40s %5s %6s ", runs, "truth", "steps", "gap");
  for (int i = 0; i < LOSS_VERDICT_COUNT; i++)
    printf(" %6.6s", loss_verdict_names[i]);
  printf("  required\n");
  for (size_t i = 0; i < count; i++)
    failed += !run_cell(&cells[i], (size_t)runs, (uint64_t)seed * 1000 + i);
  printf("%zu passed, %zu failed\n", count - failed, failed);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
