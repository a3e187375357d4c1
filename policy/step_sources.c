/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/step_sources.h"

#include <string.h>

enum {
  ODD_SHARE = 10,      /* one step in so many may be odd */
  MISSED_SHARE = 5,    /* and one in so many of a source's may not have been found */
  MISSED_ANYWAY = 3,   /* … besides the first ones of a job */
  LAG_STEPS = 2,       /* a line comes later than its step */
  INTERVALS_MIN = 3,   /* between lines without a number, for them to say anything */
  FORWARD_GATHERS = 3, /* a run of gathers that only a forward pass has; a backward pass gathers ahead by one or two */
};

const char *const b200_step_source_names[B200_STEP_SOURCE_COUNT] = {
    [B200_STEPS_PERIOD] = "period",   [B200_STEPS_TOLD] = "told", [B200_STEPS_OPTIMIZER] = "optimizer",
    [B200_STEPS_PRINTED] = "printed", [B200_STEPS_GAP] = "gap",
};

/* -------------------------------------------------------------------------------------------------- what is seen */

void b200_step_sources_operation(struct b200_step_sources *sources, bool gathers, bool reduces) {
  if (gathers) {
    sources->gathers++;
    return;
  }
  if (!reduces)
    return;
  sources->long_forward = sources->long_forward || sources->gathers >= FORWARD_GATHERS;
  uint32_t enough = sources->long_forward ? FORWARD_GATHERS : FORWARD_GATHERS - 1;
  sources->forward_passes += sources->gathers >= enough;
  sources->gathers = 0;
}

static void add(struct b200_step_histogram *histogram, uint64_t count) {
  histogram->steps[count < B200_STEP_SOURCES_COUNTS ? count : B200_STEP_SOURCES_COUNTS - 1]++;
}

/* Forgets what was said of earlier steps, but for what the lines since `at` have said. */
static void begin(struct b200_step_sources *sources, const struct b200_totals *at) {
  struct b200_step_sources kept = *sources;
  memset(sources, 0, sizeof *sources);
  sources->forward_passes = kept.forward_passes;
  sources->gathers = kept.gathers;
  sources->long_forward = kept.long_forward;
  sources->optimizer_before = at->optimizer_steps;
  sources->passes_before = at->forward_passes;
  sources->numbered_lines = kept.numbered_lines;
  sources->last = kept.last;
  bool within = kept.first.t_ns >= at->t_ns;
  sources->first = within ? kept.first : kept.last;
  sources->lines_from_ns = within ? 0 : kept.last.t_ns;
}

bool b200_step_sources_step(struct b200_step_sources *sources, const struct b200_step *step, bool told) {
  if (step->generation != sources->generation) {
    begin(sources, &step->start);
    sources->generation = step->generation;
  }
  sources->told = told;
  sources->steps++;
  sources->steps_now++;
  sources->steps_before_lines += step->end.t_ns <= sources->lines_from_ns;
  add(&sources->optimizer, step->end.optimizer_steps - step->start.optimizer_steps);
  add(&sources->passes, step->end.forward_passes - step->start.forward_passes);
  return sources->steps >= B200_CONFIDENCE_EVERY;
}

static void numbered_line(struct b200_step_sources *sources, int64_t number, uint64_t t_ns) {
  const struct b200_step_line line = {.number = number, .t_ns = t_ns};
  bool counts_anew = sources->numbered_lines > 0 && number < sources->last.number;
  if (counts_anew)
    sources->numbered_lines = 0;
  if (sources->numbered_lines == 0)
    sources->first = line;
  sources->last = line;
  sources->numbered_lines++;
}

void b200_step_sources_printed(struct b200_step_sources *sources, int64_t number, uint64_t t_ns) {
  if (number >= 0) {
    numbered_line(sources, number, t_ns);
    return;
  }
  uint64_t interval = sources->steps_now - sources->line_before;
  if (sources->lines++ > 0) {
    if (sources->intervals++ == 0)
      sources->interval = interval;
    sources->equal_ones += interval == sources->interval;
  }
  sources->line_before = sources->steps_now;
}

/* -------------------------------------------------------------------------------------------------- what it says */

static bool nearly_all(uint64_t count, uint64_t of) {
  return count * ODD_SHARE >= of * (ODD_SHARE - 1);
}

/* `counted` of something, `per_step` in each step: are the steps all of them? */
static bool found_most(uint64_t steps, uint64_t counted, uint64_t per_step) {
  uint64_t missed = counted > steps * per_step ? counted - steps * per_step : 0;
  return missed <= MISSED_ANYWAY * per_step + counted / MISSED_SHARE;
}

static uint64_t most_common(const struct b200_step_histogram *histogram) {
  uint64_t best = 0;
  for (uint64_t i = 1; i < B200_STEP_SOURCES_COUNTS; i++)
    if (histogram->steps[i] > histogram->steps[best])
      best = i;
  return best;
}

static void ask(struct b200_confidence *out, enum b200_step_source source, uint64_t steps, bool agrees) {
  out->asked[source] = true;
  out->agrees[source] = agrees;
  out->steps[source] = steps;
  out->asked_count++;
  out->agree_count += agrees;
}

static void ask_optimizer(const struct b200_step_sources *sources, uint64_t counted, struct b200_confidence *out) {
  if (counted > 0)
    ask(out, B200_STEPS_OPTIMIZER, counted,
        sources->steps > 0 && nearly_all(sources->optimizer.steps[1], sources->steps) &&
            found_most(sources->steps, counted, 1));
}

static void ask_gap(const struct b200_step_sources *sources, uint64_t counted, struct b200_confidence *out) {
  uint64_t each = most_common(&sources->passes);
  bool constant = sources->steps > 0 && each > 0 && each < B200_STEP_SOURCES_COUNTS - 1 &&
                  nearly_all(sources->passes.steps[each], sources->steps);
  if (counted > 0)
    ask(out, B200_STEPS_GAP, constant ? counted / each : counted, constant && found_most(sources->steps, counted, each));
}

static void ask_printed(const struct b200_step_sources *sources, struct b200_confidence *out) {
  if (sources->numbered_lines > 0) {
    uint64_t said = (uint64_t)(sources->last.number - sources->first.number);
    uint64_t found = sources->steps - sources->steps_before_lines;
    uint64_t apart = said > found ? said - found : found - said;
    uint64_t interval = said / sources->numbered_lines + 1;
    if (said > 0)
      ask(out, B200_STEPS_PRINTED, said, found > 0 && apart <= LAG_STEPS + interval + found / ODD_SHARE);
    return;
  }
  if (sources->intervals >= INTERVALS_MIN && sources->interval > 0 && nearly_all(sources->equal_ones, sources->intervals))
    ask(out, B200_STEPS_PRINTED, sources->intervals * sources->interval, true);
}

/* The next answer is about what comes; lines go on from the last one. */
static void go_on(struct b200_step_sources *sources, const struct b200_totals *now) {
  struct b200_step_sources before = *sources;
  begin(sources, now);
  sources->generation = before.generation;
  sources->told = before.told;
  sources->steps_now = before.steps_now;
  sources->numbered_lines = before.numbered_lines > 0;
  sources->lines = before.lines > 0;
  sources->line_before = before.line_before;
}

void b200_step_sources_take(struct b200_step_sources *sources, const struct b200_totals *now, struct b200_confidence *out) {
  memset(out, 0, sizeof *out);
  if (sources->steps > 0)
    ask(out, sources->told ? B200_STEPS_TOLD : B200_STEPS_PERIOD, sources->steps, true);
  ask_optimizer(sources, now->optimizer_steps - sources->optimizer_before, out);
  ask_printed(sources, out);
  ask_gap(sources, now->forward_passes - sources->passes_before, out);
  go_on(sources, now);
}
