/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a run was, and whether another one was faster.
 *
 * Of a run's steps the first ones are warm-up: max(10, 10 %), and on until the median of the next 20 is within 2 % of that
 * of the run's last half. Of the rest, steps above the median by more than 3 standard deviations (of the MAD) and more than
 * 2 %, and those that the source marked, are exceptional: a checkpoint, an evaluation, a compilation. What is left is
 * steady.
 *
 *   steady      median of the steady steps
 *   end to end  mean of all steps after warm-up, exceptional ones with them
 *   ratio       steady of the baseline / steady of the candidate: above 1 the candidate is faster
 *
 * Pure: no allocation, no global state, thread-safe. Times in seconds.
 */
#ifndef B200_COMPARE_SPEED_H
#define B200_COMPARE_SPEED_H

#include <stdbool.h>
#include <stddef.h>

#define SPEED_CONFIDENCE 0.95 /* two-sided */
#define SPEED_POWER 0.80      /* a difference that "could have been seen" would have been, four times in five */
#define SPEED_RUNS 3          /* runs per arm from which the run is the unit */
#define SPEED_STEPS_LEAST 32  /* steady steps from which a run has an interval of its own: STATS_BLOCKS of four */

enum speed_mark { SPEED_STEADY, SPEED_WARM_UP, SPEED_EXCEPTIONAL };

struct speed_run {
  size_t steps, warm_up, steady, exceptional; /* steps = the sum of the others */
  bool settled;                               /* such 20 steps were found; else the warm-up is the least one */
  double steady_s;                            /* NAN without steady steps */
  double trimmed_s;                           /* mean of the steady steps without a tenth at either end */
  double p95_s;                               /* of all after warm-up */
  double end_to_end_s;                        /* NAN when all is warm-up */
  double exceptional_s;                       /* seconds spent above steady_s in exceptional steps */
  double log_error; /* standard error of log(steady_s), dependence included; NAN below SPEED_STEPS_LEAST steady steps */
  double freedom;   /* of its t */
};

/* `marked[i]`: the source says that step i is not an ordinary one; NULL: none. Steps whose time is not finite or not
   positive count as exceptional and are in no figure. `work` has room for 2 * count. Fills `marks` (enum speed_mark). */
void speed_run(const double *seconds, const bool *marked, size_t count, double *work, unsigned char *marks,
               struct speed_run *run);

enum speed_verdict {
  SPEED_FASTER,        /* the whole interval above 1 */
  SPEED_SLOWER,        /* below */
  SPEED_NO_DIFFERENCE, /* it holds 1: "no measurable difference (could have seen x %)" */
  SPEED_UNKNOWN,       /* too few steps for an interval */
  SPEED_VERDICT_COUNT
};
extern const char *const speed_verdict_names[SPEED_VERDICT_COUNT]; /* "FASTER", … */

struct speed_ratio {
  enum speed_verdict verdict;
  bool run_is_unit;               /* Welch's t on the runs; else the steps of few runs, blind to what differs between runs */
  size_t runs_a, runs_b;          /* that have steady steps */
  double steady_a_s, steady_b_s;  /* geometric mean over the runs */
  double ratio, low, high;        /* interval at SPEED_CONFIDENCE; NAN: not known */
  double end_to_end_ratio;        /* of the runs' mean end to end, no interval */
  double could_have_seen_percent; /* smallest difference of the ratio from 1 that would have been seen with SPEED_POWER */
  double freedom;
};

/* Ratio on the logarithm. With SPEED_RUNS runs of each arm Welch's t on their log steady times; else the errors of the runs
   (block medians and AR(1), the larger) added up. */
void speed_compare(const struct speed_run *a, size_t count_a, const struct speed_run *b, size_t count_b,
                   struct speed_ratio *ratio);

/* Mean seconds of a steady step by what they went into. NAN: not known. */
struct speed_parts {
  double total_s, compute_s, blocked_s, host_s;
};
/* Where the difference of the totals went, candidate - baseline; `other` is what the known parts leave. A part that one side
   does not know is NAN and stays in `other`. */
struct speed_split {
  double total_s, compute_s, blocked_s, host_s, other_s;
};
struct speed_split speed_split(const struct speed_parts *a, const struct speed_parts *b);

/* tokens / step_s; NAN unless both are above 0. */
double speed_tokens_per_s(double tokens_per_step, double step_s);
/* price_per_hour: of the whole job, in any currency. NAN unless arguments are above 0. */
double speed_cost(double seconds, double price_per_hour);
double speed_tokens_per_unit(double tokens_per_s, double price_per_hour); /* tokens per dollar */

#endif
