/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How sure the step boundaries are: everything else that knows something of a job's steps, held against the steps that were
 * found.
 *
 *   period, told  the steps themselves, as found in the stream of operations or from B200OPT_STEP_PERIOD
 *   optimizer     steps of PyTorch's optimizer; agrees when there is one in each step
 *   printed       step numbers of the job's loss lines; agrees when as many steps were found as the numbers have grown, but
 *                 for one interval of the lines and for lines that a pipe keeps back. Lines without a number agree when they
 *                 come every k steps, and are not asked otherwise
 *   gap           forward passes of a sharded model: a run of gathers, ended by a reduction, so that one begins after the
 * gap between the last reduction of a step and the first gather of the next. Agrees when each step has the same number of
 * them (more than one with gradient accumulation)
 *
 * A source that has said nothing is not asked. One step in ten may be odd: a loss scaler skips an optimizer's step, an
 * evaluation comes between.
 *
 * Pure: no lock, no clock, no allocation, no I/O. Zeroed memory is a start. The caller serialises the calls.
 */
#ifndef B200_POLICY_STEP_SOURCES_H
#define B200_POLICY_STEP_SOURCES_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/steps.h"

enum b200_step_source {
  B200_STEPS_PERIOD,
  B200_STEPS_TOLD,
  B200_STEPS_OPTIMIZER,
  B200_STEPS_PRINTED,
  B200_STEPS_GAP,
  B200_STEP_SOURCE_COUNT
};

extern const char *const b200_step_source_names[B200_STEP_SOURCE_COUNT];

enum {
  B200_CONFIDENCE_EVERY = 1000, /* steps between two answers */
  B200_STEP_SOURCES_COUNTS = 9, /* counts per step that are told apart; the last: that many or more */
};

/* How many steps had so many of something. */
struct b200_step_histogram {
  uint64_t steps[B200_STEP_SOURCES_COUNTS];
};

/* A loss line with a step number, and when it came. */
struct b200_step_line {
  int64_t number;
  uint64_t t_ns;
};

struct b200_step_sources {
  /* the gap, since the start */
  uint64_t forward_passes;
  uint32_t gathers;  /* in a row */
  bool long_forward; /* a run of three or more was seen: shorter ones belong to backward passes */
  /* since the last answer */
  uint32_t generation;
  bool told;
  uint64_t steps, optimizer_before, passes_before;
  struct b200_step_histogram optimizer, passes;
  uint64_t steps_now; /* all of the generation */
  uint64_t numbered_lines, lines;
  struct b200_step_line first, last;          /* the numbered ones */
  uint64_t lines_from_ns, steps_before_lines; /* steps that ended before `first`, where that is a later one */
  uint64_t line_before;                       /* steps at the last line without one */
  uint64_t interval, intervals, equal_ones;   /* steps between two such lines */
};

/* An operation of the stream in which steps are found: all-gather; anything that reduces. */
void b200_step_sources_operation(struct b200_step_sources *sources, bool gathers, bool reduces);

/* A step as it was handed out. A new generation makes everything before it forgotten. True: it is time for an answer. */
bool b200_step_sources_step(struct b200_step_sources *sources, const struct b200_step *step, bool told);

/* A loss line, with its step number, -1 when it has none; t_ns: now. */
void b200_step_sources_printed(struct b200_step_sources *sources, int64_t number, uint64_t t_ns);

struct b200_confidence {
  bool asked[B200_STEP_SOURCE_COUNT], agrees[B200_STEP_SOURCE_COUNT];
  uint64_t steps[B200_STEP_SOURCE_COUNT]; /* counted by each of those asked */
  uint64_t agree_count, asked_count;      /* sources */
};

/* What the sources say since the last call. `now`: the totals at this instant. */
void b200_step_sources_take(struct b200_step_sources *sources, const struct b200_totals *now, struct b200_confidence *out);

#endif
