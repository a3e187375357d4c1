/* SPDX-License-Identifier: Apache-2.0 */
/* What agrees with the steps: made-up jobs, of which it is known what each source should say. */
#include "policy/step_sources.h"

#include <string.h>

#include "tests/unit/unit.h"

enum { SECOND = 1000000000 };

static struct b200_step_sources sources;
static struct b200_totals now;
static struct b200_confidence answer;
static uint64_t answers;

static void begin(void) {
  memset(&sources, 0, sizeof sources);
  memset(&now, 0, sizeof now);
  memset(&answer, 0, sizeof answer);
  answers = 0;
}

/* One step as the detector hands it out: so many optimizer steps and forward passes lie in it. */
static void step(uint32_t generation, uint64_t optimizer_steps, uint64_t passes) {
  struct b200_step found = {.generation = generation, .start = now};
  now.optimizer_steps += optimizer_steps;
  now.forward_passes += passes;
  now.t_ns += SECOND;
  found.end = now;
  if (b200_step_sources_step(&sources, &found, false)) {
    b200_step_sources_take(&sources, &now, &answer);
    answers++;
  }
}

static void ask(void) {
  b200_step_sources_take(&sources, &now, &answer);
}

static void expect(enum b200_step_source source, bool asked, bool agrees, uint64_t count) {
  ck_assert_msg(answer.asked[source] == asked, "%s: asked %d", b200_step_source_names[source], answer.asked[source]);
  ck_assert_msg(answer.agrees[source] == agrees, "%s: agrees %d", b200_step_source_names[source], answer.agrees[source]);
  if (asked)
    ck_assert_uint_eq(answer.steps[source], count);
}

START_TEST(one_optimizer_step_in_each) {
  begin();
  for (int i = 0; i < 50; i++)
    step(1, 1, 0);
  ask();
  expect(B200_STEPS_PERIOD, true, true, 50);
  expect(B200_STEPS_OPTIMIZER, true, true, 50);
  expect(B200_STEPS_GAP, false, false, 0);
  expect(B200_STEPS_PRINTED, false, false, 0);
  ck_assert_uint_eq(answer.agree_count, 2);
  ck_assert_uint_eq(answer.asked_count, 2);
}
END_TEST

START_TEST(two_real_steps_in_one_are_found_out) {
  begin();
  for (int i = 0; i < 50; i++) {
    step(1, 2, 2);
    b200_step_sources_printed(&sources, 2 * i, now.t_ns);
    b200_step_sources_printed(&sources, 2 * i + 1, now.t_ns);
  }
  ask();
  expect(B200_STEPS_OPTIMIZER, true, false, 100);
  expect(B200_STEPS_PRINTED, true, false, 99);
  expect(B200_STEPS_GAP, true, true, 50); /* as with two micro-batches */
}
END_TEST

START_TEST(half_steps_are_found_out) {
  begin();
  for (int i = 0; i < 100; i++) {
    step(1, (uint64_t)(i % 2), (uint64_t)(i % 2));
    if (i % 2)
      b200_step_sources_printed(&sources, i / 2, now.t_ns);
  }
  ask();
  expect(B200_STEPS_OPTIMIZER, true, false, 50);
  expect(B200_STEPS_PRINTED, true, false, 49);
  expect(B200_STEPS_GAP, true, false, 50);
}
END_TEST

START_TEST(most_of_the_job_was_missed) {
  begin();
  now.optimizer_steps = 1;
  for (int i = 0; i < 5; i++)
    step(1, 1, 1);
  now.optimizer_steps += 200; /* the stream left the pattern for good */
  now.forward_passes += 200;
  ask();
  expect(B200_STEPS_OPTIMIZER, true, false, 205);
  expect(B200_STEPS_GAP, true, false, 205);
}
END_TEST

START_TEST(a_loss_scaler_and_an_evaluation_are_odd_steps) {
  begin();
  for (int i = 0; i < 100; i++)
    step(1, i % 20 != 0, i % 25 == 0 ? 2 : 1);
  ask();
  expect(B200_STEPS_OPTIMIZER, true, true, 95);
  expect(B200_STEPS_GAP, true, true, 104);
  begin();
  for (int i = 0; i < 100; i++)
    step(1, i % 4 != 0, 1);
  ask();
  expect(B200_STEPS_OPTIMIZER, true, false, 75);
}
END_TEST

START_TEST(lines_at_any_interval) {
  static const int intervals[] = {1, 2, 10, 50};
  for (size_t k = 0; k < sizeof intervals / sizeof *intervals; k++) {
    begin();
    for (int i = 0; i < 500; i++) {
      step(1, 0, 0);
      if (i % intervals[k] == 0)
        b200_step_sources_printed(&sources, i + 1, now.t_ns);
    }
    ask();
    expect(B200_STEPS_PRINTED, true, true, (uint64_t)(499 / intervals[k] * intervals[k]));
  }
}
END_TEST

START_TEST(lines_that_all_come_at_the_end) {
  begin();
  for (int i = 0; i < 60; i++)
    step(1, 0, 0);
  for (int i = 0; i < 60; i++)
    b200_step_sources_printed(&sources, i, now.t_ns);
  ask();
  expect(B200_STEPS_PRINTED, true, true, 59);
}
END_TEST

START_TEST(lines_before_the_steps_were_found) {
  begin();
  struct b200_totals at_start = now;
  for (int i = 0; i < 8; i++)
    b200_step_sources_printed(&sources, i, (uint64_t)(i + 1) * SECOND);
  now = at_start; /* handed out later, from the first on */
  for (int i = 0; i < 30; i++)
    step(3, 1, 0);
  for (int i = 8; i < 30; i++)
    b200_step_sources_printed(&sources, i, (uint64_t)(i + 1) * SECOND);
  ask();
  expect(B200_STEPS_PRINTED, true, true, 29);
  /* Of lines before the steps of a later generation the last one is where it begins. */
  for (int i = 0; i < 30; i++)
    step(4, 1, 0);
  b200_step_sources_printed(&sources, 59, now.t_ns);
  ask();
  expect(B200_STEPS_PRINTED, true, true, 30);
}
END_TEST

/* The first step is no part of the pattern, and its line comes before those that are handed out with the 20th. */
START_TEST(a_line_before_the_first_step_that_was_found) {
  begin();
  for (int i = 0; i < 20; i++)
    b200_step_sources_printed(&sources, i, (uint64_t)(i + 1) * SECOND);
  now.t_ns = SECOND + SECOND / 2;
  for (int i = 1; i < 20; i++)
    step(1, 1, 0);
  for (int i = 20; i < 28; i++) {
    b200_step_sources_printed(&sources, i, (uint64_t)(i + 1) * SECOND);
    step(1, 1, 0);
  }
  ask();
  expect(B200_STEPS_PRINTED, true, true, 8);
}
END_TEST

START_TEST(lines_without_a_number) {
  begin();
  for (int i = 0; i < 60; i++) {
    step(1, 0, 0);
    if (i % 5 == 0)
      b200_step_sources_printed(&sources, -1, now.t_ns);
  }
  ask();
  expect(B200_STEPS_PRINTED, true, true, 55);
  begin();
  for (int i = 0; i < 60; i++) {
    step(1, 0, 0);
    if (i % 7 == 0 || i % 5 == 0) /* nothing is known of such lines */
      b200_step_sources_printed(&sources, -1, now.t_ns);
  }
  ask();
  expect(B200_STEPS_PRINTED, false, false, 0);
}
END_TEST

START_TEST(a_second_count_from_zero) {
  begin();
  for (int i = 0; i < 40; i++) {
    step(1, 0, 0);
    b200_step_sources_printed(&sources, i % 20, now.t_ns);
  }
  ask();
  ck_assert(answer.asked[B200_STEPS_PRINTED]);
  ck_assert_uint_eq(answer.steps[B200_STEPS_PRINTED], 19);
}
END_TEST

START_TEST(an_answer_every_thousand_steps_is_of_those) {
  begin();
  for (int i = 0; i < 2 * B200_CONFIDENCE_EVERY; i++) {
    step(1, i < B200_CONFIDENCE_EVERY ? 1 : 3, 1);
    b200_step_sources_printed(&sources, i, now.t_ns);
    if (i == B200_CONFIDENCE_EVERY)
      expect(B200_STEPS_OPTIMIZER, true, true, B200_CONFIDENCE_EVERY);
  }
  ck_assert_uint_eq(answers, 2);
  expect(B200_STEPS_OPTIMIZER, true, false, 3 * B200_CONFIDENCE_EVERY);
  expect(B200_STEPS_PRINTED, true, true, B200_CONFIDENCE_EVERY);
  ask();
  ck_assert_uint_eq(answer.agree_count, 0); /* nothing since */
}
END_TEST

START_TEST(a_new_generation_begins_anew) {
  begin();
  for (int i = 0; i < 7; i++)
    step(1, 3, 2);
  for (int i = 0; i < 40; i++)
    step(2, 1, 1);
  ask();
  expect(B200_STEPS_PERIOD, true, true, 40);
  expect(B200_STEPS_OPTIMIZER, true, true, 40);
  expect(B200_STEPS_GAP, true, true, 40);
}
END_TEST

START_TEST(no_step_was_found) {
  begin();
  now.optimizer_steps = 30;
  for (int i = 0; i < 30; i++)
    b200_step_sources_printed(&sources, i, now.t_ns);
  ask();
  expect(B200_STEPS_PERIOD, false, false, 0);
  expect(B200_STEPS_OPTIMIZER, true, false, 30);
  expect(B200_STEPS_PRINTED, true, false, 29);
  ck_assert_uint_eq(answer.agree_count, 0);
}
END_TEST

static void gather(int count) {
  for (int i = 0; i < count; i++)
    b200_step_sources_operation(&sources, true, false);
}

static void reduce(void) {
  b200_step_sources_operation(&sources, false, true);
}

/* FSDP: the root and each block in forward; in backward each block gathered again, one ahead, and its gradients reduced. */
static void fsdp(int blocks, bool again) {
  gather(1 + blocks);
  for (int i = 0; i < blocks; i++) {
    if (i > 0 && again)
      gather(1);
    reduce();
  }
  reduce();
  b200_step_sources_operation(&sources, false, false); /* a broadcast ends nothing */
}

START_TEST(forward_passes_of_a_sharded_model) {
  static const int depths[] = {1, 2, 4, 80};
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
    for (int again = 0; again < 2; again++) {
      begin();
      for (int n = 0; n < 20; n++)
        fsdp(depths[i], again);
      ck_assert_uint_eq(sources.forward_passes, 20);
    }
  begin();
  for (int n = 0; n < 20; n++) {
    if (n % 5 == 4)
      gather(9); /* an evaluation */
    fsdp(4, true);
  }
  ck_assert_uint_eq(sources.forward_passes, 20);
  begin();
  for (int n = 0; n < 100; n++)
    reduce(); /* DDP */
  ck_assert_uint_eq(sources.forward_passes, 0);
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(one_optimizer_step_in_each) \
  X(two_real_steps_in_one_are_found_out) \
  X(half_steps_are_found_out) \
  X(most_of_the_job_was_missed) \
  X(a_loss_scaler_and_an_evaluation_are_odd_steps) \
  X(lines_at_any_interval) \
  X(lines_that_all_come_at_the_end) \
  X(lines_before_the_steps_were_found) \
  X(a_line_before_the_first_step_that_was_found) \
  X(lines_without_a_number) \
  X(a_second_count_from_zero) \
  X(an_answer_every_thousand_steps_is_of_those) \
  X(a_new_generation_begins_anew) \
  X(no_step_was_found) \
  X(forward_passes_of_a_sharded_model)
/* clang-format on */
UNIT_MAIN("step_sources", CASES)
