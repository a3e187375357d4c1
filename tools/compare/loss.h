/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the loss of a candidate is that of its baseline.
 *
 * Two runs on the same data see the same noise of the batches at each step. Their gap, step by step and in percent of the
 * baseline, has 300 to 400 times less variance than either curve, even after rounding has driven the two runs apart. Its
 * mean over the last quarter has two errors: that of a mean of dependent values, which the run itself shows, and an offset
 * of the run as a whole that only repeated runs show (the floor).
 *
 *   pair        a run of the baseline and a run of the candidate with the same seed
 *   gap         100 (candidate - baseline) / centred mean of the baseline, per common step; positive is worse; at most a
 *               million
 *
 *   window      the last quarter of the common steps, at least LOSS_WINDOW_LEAST of them
 *
 *   half-width  of the 90 % interval around the mean gap, both sides; within-run error and floor added as squares
 *
 *   floor       root mean square of the window's gap over pairs of runs that are meant to be equal (A/A)
 *
 *   margin      the gap that is still nothing to worry about, in percent
 *
 * Every number that was fitted on curves stands in loss_thresholds.
 *
 * All is pure but loss_compare(), which allocates the series once; ends the process with a message when memory runs out.
 * Thread-safe, no global state.
 */
#ifndef B200_COMPARE_LOSS_H
#define B200_COMPARE_LOSS_H

#include "tools/compare/run.h"

#define LOSS_WINDOW_LEAST 100
#define LOSS_SMOOTH 9        /* steps in a centred mean */
#define LOSS_CONFIDENCE 0.90 /* two-sided: 5 % at either end of the margin */
#define LOSS_OVERLAP_LEAST 0.9
#define LOSS_SURE_STEPS 600     /* below these EQUIVALENT means "equivalent at N steps" */
#define LOSS_ASSUMED_FLOOR 0.05 /* percent, where no A/A pairs were run */
#define LOSS_FLOOR_PAIRS 2      /* fewer A/A pairs measure no floor */
#define LOSS_RECIPE_PAIRS 3     /* from here on it is the recipe that is spoken of */
#define LOSS_LEVELS 5           /* common loss levels whose wall times are compared */

/* Exit statuses of the command are in design order: see loss_verdict_exit(). */
enum loss_verdict {
  LOSS_EQUIVALENT,
  LOSS_BETTER,
  LOSS_WORSE,
  LOSS_INCONCLUSIVE,
  LOSS_INVALID,
  LOSS_DIVERGED,
  LOSS_VERDICT_COUNT
};
extern const char *const loss_verdict_names[LOSS_VERDICT_COUNT]; /* "EQUIVALENT", … */
int loss_verdict_exit(enum loss_verdict verdict);                /* 0, 0, 1, 2, 3, 4 */

/* What decided. */
enum loss_reason {
  LOSS_BY_INTERVAL,  /* where the interval lies; INCONCLUSIVE: it crosses the margin */
  LOSS_BY_IDENTITY,  /* every common step has the same loss */
  LOSS_BY_NONFINITE, /* DIVERGED: NaN or infinity in the candidate where the baseline has none */
  LOSS_BY_RISE,      /* DIVERGED: far above the baseline, and rising */
  LOSS_BY_BASELINE,  /* INVALID: NaN or infinity in the baseline, no later than in the candidate */
  LOSS_BY_OVERLAP,   /* INVALID: too few common steps */
  LOSS_BY_SIGN,      /* INVALID: the baseline's loss is not above 0, a gap in percent has no meaning */
  LOSS_BY_DATA,      /* INVALID: the noise of the curves is not related: other data or another order of it */
  LOSS_BY_SHIFT,     /* INVALID, would be for overlap or data: the steps are numbered differently by one */
  LOSS_BY_START,     /* INCONCLUSIVE, would be EQUIVALENT: the first steps differ by more than rounding makes them */
  LOSS_BY_GROWTH,    /* INCONCLUSIVE, would be EQUIVALENT: the gap grows and would leave the margin */
  LOSS_BY_LENGTH,    /* INCONCLUSIVE: too short for a window, and not clearly WORSE */
  LOSS_REASON_COUNT
};
extern const char *const loss_reason_texts[LOSS_REASON_COUNT]; /* one clause each, for people */

/* The numbers that were fitted on curves: each is a bound between two classes of pairs (tests/compare/thresholds.c prints
   how far these lie apart on any folder of curves). */
enum loss_threshold {
  LOSS_T_SAME_DATA,  /* correlation of the noise, at least */
  LOSS_T_SAME_START, /* percent, rms over the first five steps, at most */
  LOSS_T_FAR,        /* percent: a larger gap of the window and … */
  LOSS_T_RISING,     /* … percent above the candidate's own best window: diverged */
  LOSS_T_FLOOR,      /* factor of the floor in the half-width */
  LOSS_T_GROWTH,     /* t of the slope over STATS_BLOCKS block means */
  LOSS_THRESHOLD_COUNT
};
struct loss_threshold_row {
  const char *name, *unit, *divides;
  double value;
};
extern const struct loss_threshold_row loss_thresholds[LOSS_THRESHOLD_COUNT];

struct loss_settings {
  double margin_percent; /* > 0; NAN: loss_default_margin() of what was run */
  double floor_percent;  /* >= 0; NAN: not measured, LOSS_ASSUMED_FLOOR is taken */
  bool may_shift;        /* some steps are counted and not the job's own: numbers that differ by one are put right */
};

/* 0.25 % from 1,000 common steps on with a measured floor, else 1 %. */
double loss_default_margin(size_t common, double floor_percent);
/* Common steps that are advised for a margin: 300 from 0.5 % on, else 1,000; 2,000 when the gaps' standard deviation exceeds
   0.6 % or their lag-1 correlation 0.5. NAN for what is not known yet. */
size_t loss_steps_advised(double margin_percent, double sd_percent, double lag1);

/* The common steps, for tables and plots. Gaps are in percent; smoothed: centred means of LOSS_SMOOTH. */
struct loss_series {
  size_t count;
  int64_t *steps;
  double *a, *b, *smooth_a, *smooth_b, *gap, *smooth_gap;
  double *t_a, *t_b;       /* seconds, NAN where not known */
  double *norm_a, *norm_b; /* of the gradient, NAN where not known */
};

/* One pair. NAN: not known, or not reached because an earlier check decided. */
struct loss_pair {
  enum loss_verdict verdict;
  enum loss_reason reason;
  bool short_run;     /* EQUIVALENT below LOSS_SURE_STEPS: say "equivalent at N steps", and that this is a warning */
  bool start_differs; /* flagged whatever the verdict: start or configuration differs, or the recipe is broken */
  bool floor_assumed;
  bool below_advised; /* fewer common steps than steps_advised */
  bool identical;

  int shift; /* what was added to the candidate's steps, or with LOSS_BY_SHIFT would have to be; 0: nothing */
  size_t count_a, count_b, common;
  double overlap;                               /* common / the larger of both counts */
  int64_t first_nonfinite_a, first_nonfinite_b; /* step; -1: none */
  double correlation_early, correlation_late;   /* of the noise */
  double start_percent;                         /* rms of the relative difference over the first five steps */

  double margin_percent, floor_percent;
  size_t window;         /* common steps in it */
  int64_t window_from;   /* its first step */
  double loss_a, loss_b; /* means in the window */
  double gap_percent, half_width_percent;
  double error_percent; /* of it what the run itself shows: the larger of the next two */
  double by_blocks_percent, by_ar1_percent;
  double sd_percent, lag1;   /* of the gaps in the window; lag1 corrected */
  double above_best_percent; /* candidate's window over its best window */
  double slope_percent;      /* of the gap, per window length */
  double slope_t;
  bool growing;

  size_t steps_advised;
  size_t steps_needed; /* common steps in all that would decide, of INCONCLUSIVE; 0: more steps alone would not */
  size_t pairs_needed; /* pairs in all that would decide, where steps would not; 0: not an answer */

  /* Advisory: no verdict depends on these. */
  double lag_steps; /* the candidate is this many training steps behind: gap / slope of the baseline's loss; NAN: also when
                       that is more than the run has */
  double largest_gap_percent; /* smoothed, of largest size, with its sign, after the first LOSS_SMOOTH steps */
  int64_t largest_gap_step;
  size_t longest_sign_run;                  /* common steps in a row in which the gap kept its sign */
  size_t spikes_a, spikes_b, spikes_only_b; /* loss above its centred mean by more than 4 standard deviations (of the MAD) */
  double norm_ratio;                        /* median over the window of the candidate's gradient norm over the baseline's */
};

/* Compares. pre: points sorted by step, each once. False: nothing to compare (a count is 0); `pair` is then INVALID by
   overlap. `series` may be NULL; else loss_series_free() takes back what it holds, in either case. */
bool loss_compare(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b,
                  const struct loss_settings *settings, struct loss_pair *pair, struct loss_series *series);
void loss_series_free(struct loss_series *series);

/* The floor from the gaps of A/A pairs: their root mean square; NAN below LOSS_FLOOR_PAIRS. */
double loss_floor(const double *gaps_percent, size_t count);
/* The floor between two arms that differ in precision, each with its own floor: narrow formats drift further apart. A gap of
   an A/A pair has the offsets of two runs of one arm, that of a pair one of each: root mean square. One NAN: the other. */
double loss_floor_between(double floor_a, double floor_b);

/* All pairs together. From LOSS_RECIPE_PAIRS on: Student's t on the pairs' gaps, whatever made them differ, and `recipe` is
   set. Below: the mean of the gaps; half-widths added as squares; a statement on these runs. A pair that is INVALID or
   DIVERGED makes the whole so (DIVERGED first); one that starts differently blocks EQUIVALENT and BETTER, one that
   grows EQUIVALENT. */
struct loss_summary {
  enum loss_verdict verdict;
  enum loss_reason reason;
  size_t pairs;
  size_t decisive; /* index of the pair that made it INVALID, DIVERGED or blocked it; else 0 */
  bool recipe;
  bool short_run, start_differs, floor_assumed, identical;
  double margin_percent;
  double gap_percent, half_width_percent;
  double spread_percent;             /* standard deviation of the pairs' gaps; NAN of one */
  size_t steps_needed, pairs_needed; /* as above, of INCONCLUSIVE */
};
/* pre: count >= 1. */
void loss_summarise(const struct loss_pair *pairs, size_t count, struct loss_summary *summary);

/* When a curve first reached a level, in its centred mean of max(LOSS_SMOOTH, 2 % of its points) with time between points
   taken as straight. NAN: never, or times are not known. */
double loss_time_to(const struct compare_point *points, size_t count, double level);

/* Wall time to equal loss. Levels lie evenly between the higher of both curves' smoothed loss at a quarter of their points
   and the lowest that both reach; the last is that lowest one. */
struct loss_time {
  double level, a_s, b_s;
  double speedup; /* a_s / b_s: above 1 the candidate was there earlier */
};
/* Writes up to LOSS_LEVELS rows and returns how many; 0: times are not known or there is no common ground. */
size_t loss_time_to_equal(const struct compare_point *a, size_t count_a, const struct compare_point *b, size_t count_b,
                          struct loss_time times[LOSS_LEVELS]);

#endif
