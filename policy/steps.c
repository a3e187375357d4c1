/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/steps.h"

#include <string.h>

enum {
  FIRST_TRY = 3,
  REPEATS = 3,
  COVERED = 8,            /* tenths of what is remembered that a new period has to explain */
  COVERED_AT_END = 5,     /* … at the end of the stream: what begins a job is no step, and no more of them will come */
  MICRO_BATCHES_MAX = 32, /* of one optimizer step; more repeats than that are steps between two evaluations */
};

/* The lowest bit of a remembered signature says whether the operation reduces. */
static uint64_t signature_of(uint64_t signature, bool reduces) {
  return (signature << 1) | (reduces ? 1u : 0u);
}

static uint64_t *at(struct b200_steps *steps, uint64_t ordinal) {
  return &steps->signature[ordinal % B200_STEPS_REMEMBERED];
}

static const struct b200_totals *totals_at(const struct b200_steps *steps, uint64_t ordinal) {
  return &steps->totals[ordinal % B200_STEPS_REMEMBERED];
}

void b200_steps_start(struct b200_steps *steps, uint32_t told, b200_step_sink sink, void *context) {
  steps->sink = sink;
  steps->context = context;
  steps->told = told;
  steps->next_try = FIRST_TRY;
  if (told > 0) {
    steps->period = told;
    steps->generation = 1;
  }
}

bool b200_steps_searching(const struct b200_steps *steps) {
  return steps->period == 0 || steps->lost;
}

bool b200_steps_at_boundary(const struct b200_steps *steps) {
  return !b200_steps_searching(steps) && (steps->count - steps->origin) % steps->period == 0;
}

static void hand_out_as(struct b200_steps *steps, const struct b200_totals *start, const struct b200_totals *end,
                        bool last) {
  struct b200_step step = {.generation = steps->generation,
                           .index = steps->index++,
                           .period = steps->period,
                           .interrupted = steps->interrupted,
                           .last = last,
                           .start = *start,
                           .end = *end};
  steps->interrupted = false;
  steps->sink(steps->context, &step);
}

static void hand_out(struct b200_steps *steps, const struct b200_totals *start, const struct b200_totals *end) {
  hand_out_as(steps, start, end, false);
}

/* Operation of the given age: 0 is the newest. */
static uint64_t by_age(struct b200_steps *steps, uint64_t age) {
  return *at(steps, steps->count - 1 - age);
}

static bool reduces_within(struct b200_steps *steps, uint32_t period) {
  for (uint32_t age = 0; age < period; age++)
    if (by_age(steps, age) & 1)
      return true;
  return false;
}

/*
 * The smallest period p such that the newest operations repeat with it over at least REPEATS·p operations and so many tenths
 * of all that are remembered; 0 without one. `covered`: how many operations do. Gusfield's Z function of the stream read
 * backwards: z[p] operations agree with those p earlier, so p + z[p] are periodic.
 */
static uint32_t find_period(struct b200_steps *steps, uint32_t tenths, uint32_t *covered) {
  uint32_t n = steps->count < B200_STEPS_REMEMBERED ? (uint32_t)steps->count : B200_STEPS_REMEMBERED;
  uint32_t *z = steps->scratch;
  uint32_t left = 0, right = 0;
  for (uint32_t p = 1; p < n; p++) {
    uint32_t length = 0;
    if (p < right) {
      length = z[p - left];
      if (length > right - p)
        length = right - p;
    }
    while (p + length < n && by_age(steps, length) == by_age(steps, p + length))
      length++;
    z[p] = length;
    if (p + length > right) {
      left = p;
      right = p + length;
    }
    uint32_t run = p + length;
    if (p <= B200_STEPS_REMEMBERED / REPEATS && run >= REPEATS * p && (uint64_t)run * 10 >= (uint64_t)n * tenths &&
        reduces_within(steps, p)) {
      *covered = run;
      return p;
    }
  }
  return 0;
}

static bool is_rotation_of_pattern(struct b200_steps *steps, uint64_t first, uint32_t period) {
  for (uint32_t shift = 0; shift < period; shift++) {
    uint32_t i = 0;
    while (i < period && *at(steps, first + i) == steps->pattern[(shift + i) % period])
      i++;
    if (i == period)
      return true;
  }
  return false;
}

/*
 * A new period that is the known step several times over and something else: gradient accumulation, whose optimizer step
 * adds a few reductions (gradient norm, loss), or only steps that an evaluation interrupts at regular intervals? The latter
 * gathers parameters for its forward passes, or comes after very many steps.
 */
static bool is_interrupted_steps(struct b200_steps *steps, uint64_t first, uint32_t period) {
  uint32_t repeats = 0, gathers = 0;
  for (uint32_t i = 0; i < period;) {
    uint32_t same = 0;
    while (same < steps->period && i + same < period && *at(steps, first + i + same) == steps->pattern[same])
      same++;
    if (same == steps->period) {
      repeats++;
      i += same;
    } else {
      gathers += (*at(steps, first + i) & 1) == 0;
      i++;
    }
  }
  return repeats > MICRO_BATCHES_MAX || (repeats > 0 && gathers > 0);
}

/* Takes up a found period: remembers its pattern and hands out the steps that already lie in the past. */
static void adopt(struct b200_steps *steps, uint32_t period, uint32_t covered) {
  uint64_t first = steps->count - covered;
  if (steps->period == period && is_rotation_of_pattern(steps, first, period))
    return; /* the same steps, interrupted: regained by their own pattern, in their own phase */
  if (steps->period > 0 && period > steps->period && is_interrupted_steps(steps, first, period))
    return;
  steps->generation++;
  steps->period = period;
  steps->origin = first;
  steps->index = 0;
  steps->lost = false;
  steps->interrupted = false;
  for (uint32_t i = 0; i < period; i++)
    steps->pattern[i] = *at(steps, first + i);
  uint64_t begin = first;
  for (; begin + period < steps->count; begin += period)
    hand_out(steps, totals_at(steps, begin), totals_at(steps, begin + period));
  steps->begin = *totals_at(steps, begin);
}

/*
 * The first operation of a step that ends before `end` and is not quite like the others; `end` without one. It has all
 * reductions of the pattern, in order. After an evaluation FSDP lacks a gather at the beginning, as parameters are still
 * there, or does one twice, as it takes the order of the forward passes for that of the backward pass.
 */
static uint64_t odd_step_before(struct b200_steps *steps, uint64_t end) {
  uint64_t oldest = steps->left_at, first = end;
  uint32_t place = steps->period;                       /* in the pattern */
  uint64_t longest = steps->period + steps->period / 2; /* with one period after it still remembered */
  if (end > longest && oldest < end - longest)
    oldest = end - longest;
  for (;;) {
    uint32_t reduction = place;
    while (reduction > 0 && !(steps->pattern[reduction - 1] & 1))
      reduction--;
    if (reduction == 0)
      break;
    while (first > oldest && !(*at(steps, first - 1) & 1))
      first--;
    if (first == oldest || *at(steps, first - 1) != steps->pattern[reduction - 1])
      return end;
    first--;
    place = reduction - 1;
  }
  for (; place > 0 && first > oldest && *at(steps, first - 1) == steps->pattern[place - 1]; place--)
    first--;
  return first;
}

/* A whole period has been seen again. */
static void regain(struct b200_steps *steps) {
  uint64_t origin = steps->count - steps->period, odd = odd_step_before(steps, origin);
  steps->lost = false;
  steps->interrupted = true;
  if (odd < origin)
    hand_out(steps, totals_at(steps, odd), totals_at(steps, origin));
  steps->origin = origin;
  steps->begin = *totals_at(steps, origin);
}

/* The stream left the pattern: wait for one whole period in its phase. */
static void follow_while_lost(struct b200_steps *steps, uint64_t signature) {
  if (signature == steps->pattern[steps->matched])
    steps->matched++;
  else
    steps->matched = signature == steps->pattern[0] ? 1 : 0;
  if (steps->matched == steps->period)
    regain(steps);
}

static void follow(struct b200_steps *steps, uint64_t ordinal, uint64_t signature) {
  uint64_t position = (ordinal - steps->origin) % steps->period;
  if (position == 0) {
    if (ordinal > steps->origin)
      hand_out(steps, &steps->begin, totals_at(steps, ordinal));
    steps->begin = *totals_at(steps, ordinal);
  }
  if (steps->told > 0 || signature == steps->pattern[position])
    return;
  steps->lost = true;
  steps->left_at = ordinal - position;
  steps->matched = signature == steps->pattern[0] ? 1 : 0;
  steps->next_try = steps->count + FIRST_TRY;
}

void b200_steps_add(struct b200_steps *steps, uint64_t signature, bool reduces, const struct b200_totals *before) {
  uint64_t ordinal = steps->count++;
  uint64_t marked = signature_of(signature, reduces);
  *at(steps, ordinal) = marked;
  steps->totals[ordinal % B200_STEPS_REMEMBERED] = *before;

  if (steps->period > 0 && !steps->lost)
    follow(steps, ordinal, marked);
  else if (steps->lost)
    follow_while_lost(steps, marked);

  if (steps->told > 0 || !b200_steps_searching(steps) || steps->count < steps->next_try)
    return;
  uint32_t covered = 0;
  uint32_t period = find_period(steps, COVERED, &covered);
  if (period > 0)
    adopt(steps, period, covered);
  steps->next_try = steps->count + steps->count / 8 + 1;
  if (steps->next_try > steps->count + B200_STEPS_REMEMBERED / 8)
    steps->next_try = steps->count + B200_STEPS_REMEMBERED / 8;
}

void b200_steps_finish(struct b200_steps *steps, const struct b200_totals *now) {
  if (b200_steps_searching(steps) && steps->told == 0) {
    uint32_t covered = 0;
    uint32_t period = find_period(steps, steps->period == 0 ? COVERED_AT_END : COVERED, &covered);
    if (period > 0)
      adopt(steps, period, covered);
  }
  if (b200_steps_searching(steps) || steps->count <= steps->origin)
    return;
  uint64_t done = (steps->count - steps->origin) % steps->period;
  struct b200_totals end = *now;
  end.t_ns = totals_at(steps, steps->count - 1)->t_ns;
  if (done == 0)
    hand_out_as(steps, &steps->begin, &end, true);
}
