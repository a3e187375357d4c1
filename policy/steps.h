/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds training steps in the stream of a rank's collectives (or GEMMs, for a job without collectives): a step is one period
 * of that stream.
 *
 * The caller adds every operation with a signature (what it is) and the totals at that instant (what the job had done so
 * far). Once the last operations repeat with a smallest exact period, covering at least three periods and four fifths of
 * what is remembered (at the end of a job that has had no steps: half), the steps so far are handed out, and from then on
 * each step as its successor begins.
 *
 * Repetition inside a step (equal layers) can look like steps for a while. So every newly found period starts a new
 * *generation*; a reader keeps the generation that covers the most operations. A period without any reduction is never
 * accepted: forward passes alone are not training. After an interruption (evaluation, checkpoint) the same generation goes
 * on as soon as one whole period has been seen again; when all reductions of a step directly precede it, that step is
 * handed out as well, whatever it has gathered.
 *
 * Pure: no lock, no clock, no allocation, no I/O. The caller gives the memory and serialises the calls.
 */
#ifndef B200_POLICY_STEPS_H
#define B200_POLICY_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/call.h"

#define B200_STEPS_REMEMBERED 16384 /* operations; the longest period that can be found is a third of it */

/* What the job had done so far, at one instant. */
struct b200_totals {
  uint64_t t_ns;
  uint64_t gemm_calls, gemm_flops, coll_calls, coll_bytes, alloc_calls;
  uint64_t hbm_bytes[B200_OWNER_COUNT]; /* held, per owner */
  int64_t hbm_used_bytes;               /* total minus free as the driver states it; -1: not asked */
  uint64_t optimizer_steps;             /* of PyTorch, as far as its hook tells */
  uint64_t forward_passes;              /* as policy/step_sources.h counts them */
  uint64_t ordinal;                     /* of the next operation that the step detector gets */
  bool begins_step;                     /* that operation begins a step */
};

struct b200_step {
  uint32_t generation; /* from 1 */
  uint64_t index;      /* from 0 within the generation */
  uint32_t period;     /* operations */
  bool interrupted;    /* work that is no part of a step came before it */
  bool last;           /* the stream ended: it ends with its last operation, not with its successor's first */
  struct b200_totals start, end;
};

typedef void (*b200_step_sink)(void *context, const struct b200_step *step);

struct b200_steps {
  b200_step_sink sink;
  void *context;
  uint32_t told;   /* period that the user gave; 0: find it */
  uint32_t period; /* 0 until found */
  uint32_t generation;
  bool lost;         /* the stream left the pattern */
  bool interrupted;  /* … and came back: of the next step */
  uint32_t matched;  /* operations of the pattern seen in a row while lost */
  uint64_t left_at;  /* ordinal after the last step before it was lost */
  uint64_t count;    /* operations added */
  uint64_t origin;   /* ordinal of an operation that begins a step */
  uint64_t next_try; /* look for a period when count reaches this */
  uint64_t index;    /* next step's index */
  struct b200_totals begin;
  uint64_t signature[B200_STEPS_REMEMBERED]; /* ring by ordinal */
  uint64_t pattern[B200_STEPS_REMEMBERED / 3];
  uint32_t scratch[B200_STEPS_REMEMBERED];
  struct b200_totals totals[B200_STEPS_REMEMBERED];
};

/* pre: `steps` is zeroed. told: operations per step, 0 to detect. */
void b200_steps_start(struct b200_steps *steps, uint32_t told, b200_step_sink sink, void *context);

/* One operation, whose totals were taken before it. `reduces`: it combines data of several ranks (or is a weight gradient).
 */
void b200_steps_add(struct b200_steps *steps, uint64_t signature, bool reduces, const struct b200_totals *before);

/* The stream has ended: hands out the last step when all its operations were seen. `now`: totals at the end;
   their time is not the step's, as what ends a job (checkpoints, the interpreter's exit) is no part of a step. */
void b200_steps_finish(struct b200_steps *steps, const struct b200_totals *now);

/* True while no step has been found, or the stream has left its pattern. */
bool b200_steps_searching(const struct b200_steps *steps);

/* True when the next operation begins a step. */
bool b200_steps_at_boundary(const struct b200_steps *steps);

#endif
