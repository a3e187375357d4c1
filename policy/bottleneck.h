/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What limits a job: one verdict, the numbers that say so, and what to try next (bottleneck.def has names, thresholds with
 * their reasons, and texts).
 *
 * The device's time of the steady steps whose GEMMs were timed is cut into five shares: GEMMs, waiting for collectives,
 * waiting for the host within the step, waiting for it before the step (data), and the rest, which is other kernels. GEMMs
 * whose operands take longer through HBM than their FLOPs through the tensor cores count as the rest. The largest share is
 * the verdict if it is large enough and ahead of the next by a margin; else there is none, and both are named. Memory under
 * pressure (refused allocations, driver allocations in steady steps near the limit) goes before waiting for the host, which
 * is how it shows.
 *
 * Pure: no allocation, no I/O. Texts are static.
 */
#ifndef B200_POLICY_BOTTLENECK_H
#define B200_POLICY_BOTTLENECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define B200_BOTTLENECK(id, name, because) B200_BOTTLENECK_##id,
enum b200_bottleneck {
#include "policy/bottleneck.def"
  B200_BOTTLENECK_COUNT
};
#undef B200_BOTTLENECK
#define B200_BOTTLENECK_SHARES ((int)B200_BOTTLENECK_CAPACITY) /* those before it hold a share of the time */

#define B200_UNDETERMINED(id, text) B200_UNDETERMINED_##id,
enum b200_undetermined {
#include "policy/bottleneck.def"
  B200_UNDETERMINED_COUNT
};
#undef B200_UNDETERMINED

#define B200_ROW(id, name, unit, help) B200_ROW_##id,
enum b200_bottleneck_row {
#include "policy/bottleneck.def"
  B200_ROW_COUNT
};
#undef B200_ROW

extern const char *const b200_bottleneck_names[B200_BOTTLENECK_COUNT];   /* "compute" … */
extern const char *const b200_bottleneck_because[B200_BOTTLENECK_COUNT]; /* one clause */
extern const char *const b200_undetermined_texts[B200_UNDETERMINED_COUNT];
extern const char *const b200_bottleneck_row_names[B200_ROW_COUNT], *const b200_bottleneck_row_units[B200_ROW_COUNT],
                                                                        *const b200_bottleneck_row_help[B200_ROW_COUNT];

/* What is known. Negative: not known. */
struct b200_evidence {
  /* Sums over the steady steps whose GEMMs were timed, as in `time` lines. */
  int64_t steps;
  int64_t dev_ns, gemm_ns, blocked_ns, host_ns, start_ns, gemms, starved;
  double launches_per_step; /* kernels that the program launched, of one rank */
  /* How long their GEMMs would take at the GPU's peak in their formats, and their operands at the peak of HBM. */
  double gemm_peak_ns, gemm_memory_ns;
  int64_t hbm_peak_bytes, hbm_total_bytes;       /* of the rank that is fullest */
  double refused_per_step, allocations_per_step; /* at driver level, steady steps, of the rank with most */
  int64_t refused;                               /* of the whole job, all ranks */
  double util, memory_util;                      /* NVML's, 0 … 1, mean over the steady steps */
  double throttled;                              /* share of NVML's samples */
  bool converts;                                 /* GEMMs are converted to a narrow format already */
  bool graphs;                                   /* captured graphs were replayed: the rest of the step may hold GEMMs */
};

/* Everything unknown. */
void b200_evidence_clear(struct b200_evidence *out);

struct b200_bottleneck_evidence_row {
  enum b200_bottleneck_row row;
  double value;
  double threshold; /* what it was compared with; negative: with nothing, it only tells more */
  bool speaks;      /* it is on the far side of its threshold */
};

enum { B200_NEXT_MAX = 4 };

struct b200_bottleneck_verdict {
  enum b200_bottleneck verdict;
  enum b200_bottleneck second;          /* the next largest kind; where CLOSE, `first` and this are the two. COUNT: none */
  enum b200_bottleneck first;           /* the largest kind; COUNT: no shares are known */
  enum b200_undetermined why;           /* NONE unless the verdict is UNDETERMINED */
  double share[B200_BOTTLENECK_SHARES]; /* of the device's time; negative: not known */
  struct b200_bottleneck_evidence_row rows[B200_ROW_COUNT]; /* those that are known, the verdict's own first */
  int row_count;
  const char *next[B200_NEXT_MAX];
  int next_count;
};

/* Total: any evidence, also nonsense, gives a verdict. */
void b200_bottleneck_find(const struct b200_evidence *evidence, struct b200_bottleneck_verdict *out);

#endif
