/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/steps.h"

#include <string.h>
#include <sys/mman.h>

#include "unit.h"

/* The reader's rule: of all generations, the one that covers the most operations. */
struct found {
  struct {
    uint64_t steps, period;
    uint64_t first_start_ns, last_end_ns, interrupted, interrupted_start_ns;
  } generations[64];
  uint64_t lasts; /* steps that the end of the stream ended */
};

static struct b200_steps *steps;
static struct found found;
static uint64_t clock_ns;

static void note(void *context, const struct b200_step *step) {
  struct found *to = context;
  ck_assert_uint_lt(step->generation, 64);
  ck_assert_uint_eq(step->index, to->generations[step->generation].steps);
  if (to->generations[step->generation].steps++ == 0)
    to->generations[step->generation].first_start_ns = step->start.t_ns;
  to->generations[step->generation].period = step->period;
  to->generations[step->generation].interrupted += step->interrupted;
  if (step->interrupted)
    to->generations[step->generation].interrupted_start_ns = step->start.t_ns;
  to->lasts += step->last;
  to->generations[step->generation].last_end_ns = step->end.t_ns;
}

static void begin(uint32_t told) {
  if (!steps)
    steps = mmap(NULL, sizeof *steps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(steps, 0, sizeof *steps);
  memset(&found, 0, sizeof found);
  clock_ns = 0;
  b200_steps_start(steps, told, note, &found);
}

static void add(uint64_t signature, bool reduces) {
  struct b200_totals totals = {.t_ns = clock_ns++};
  b200_steps_add(steps, signature, reduces, &totals);
}

static int best(void) {
  int index = 0;
  for (int i = 1; i < 64; i++)
    if (found.generations[i].steps * found.generations[i].period >
        found.generations[index].steps * found.generations[index].period)
      index = i;
  return index;
}

static void expect(uint64_t count, uint64_t period) {
  struct b200_totals now = {.t_ns = clock_ns};
  b200_steps_finish(steps, &now);
  ck_assert_uint_eq(found.generations[best()].steps, count);
  ck_assert_uint_eq(found.generations[best()].period, period);
}

enum { ROOT = 1, BLOCK, ROOT_SCATTER, BLOCK_SCATTER, NORM, LOSS, BUCKET, EVALUATION, BROADCAST };

/* What FSDP2 sends in one step of a model of equal blocks: the root and each block gathered in forward; each block gathered
   again and its gradients scattered in backward, the root's at the end; norm and loss reduced. */
static void fsdp2_step(int blocks) {
  add(ROOT, false);
  for (int i = 0; i < blocks; i++)
    add(BLOCK, false);
  for (int i = 0; i < blocks; i++) {
    if (i > 0)
      add(BLOCK, false);
    add(BLOCK_SCATTER, true);
  }
  add(ROOT_SCATTER, true);
  add(NORM, true);
  add(LOSS, true);
}

static uint64_t fsdp2_period(int blocks) {
  return (uint64_t)(1 + blocks + 2 * blocks - 1 + 3);
}

START_TEST(equal_blocks_do_not_hide_the_step) {
  static const int depths[] = {1, 2, 4, 12, 48, 80, 126};
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
    begin(0);
    for (int step = 0; step < 20; step++)
      fsdp2_step(depths[i]);
    expect(20, fsdp2_period(depths[i]));
    ck_assert_uint_eq(found.generations[best()].first_start_ns, 0);
  }
}
END_TEST

START_TEST(three_steps_are_enough) {
  begin(0);
  for (int step = 0; step < 3; step++)
    fsdp2_step(4);
  expect(3, fsdp2_period(4));
}
END_TEST

START_TEST(what_comes_before_the_first_step_is_not_a_step) {
  begin(0);
  for (int i = 0; i < 5; i++)
    add(BROADCAST, false);
  for (int step = 0; step < 30; step++)
    fsdp2_step(3);
  expect(30, fsdp2_period(3));
  ck_assert_uint_eq(found.generations[best()].first_start_ns, 5);
}
END_TEST

/* What begins a job may be a good part of a short one. Layers of its only step are no steps. */
START_TEST(a_short_job_is_judged_at_its_end) {
  begin(0);
  for (int i = 0; i < 40; i++)
    add(BROADCAST, false);
  for (int step = 0; step < 5; step++)
    fsdp2_step(4);
  ck_assert_uint_eq(found.generations[1].steps, 0);
  expect(5, fsdp2_period(4));
  ck_assert_uint_eq(found.generations[best()].first_start_ns, 40);
  begin(0);
  fsdp2_step(80);
  expect(0, 0);
}
END_TEST

START_TEST(evaluation_is_left_out_and_the_steps_go_on) {
  begin(0);
  for (int step = 0; step < 40; step++) {
    fsdp2_step(4);
    if (step % 10 == 9)
      for (int i = 0; i < 57; i++)
        add(i % 5 == 0 ? ROOT : EVALUATION, false);
  }
  struct b200_totals now = {.t_ns = clock_ns};
  b200_steps_finish(steps, &now);
  /* the step that an evaluation follows has no successor, and is lost */
  ck_assert_uint_ge(found.generations[best()].steps, 36);
  ck_assert_uint_le(found.generations[best()].steps, 40);
  ck_assert_uint_eq(found.generations[best()].period, fsdp2_period(4));
  ck_assert_uint_eq(found.generations[best()].interrupted, 3); /* the first one after each evaluation but the last */
}
END_TEST

/* FSDP keeps the root unit gathered after an evaluation: the next step does not begin as the others. FSDP2 gathers a unit
   twice in that step, as the evaluation's forward pass tells it what comes next in backward. */
static void evaluation_and_odd_step(bool gathers_twice) {
  for (int i = 0; i < 57; i++)
    add(i % 5 == 0 ? ROOT : EVALUATION, false);
  if (gathers_twice)
    add(ROOT, false);
  for (int i = 0; i < 4; i++)
    add(BLOCK, false);
  for (int i = 0; i < 4; i++) {
    if (i > 0)
      add(BLOCK, false);
    add(BLOCK_SCATTER, true);
  }
  if (gathers_twice)
    add(ROOT, false);
  add(ROOT_SCATTER, true);
  add(NORM, true);
  add(LOSS, true);
}

START_TEST(the_step_after_an_evaluation_may_gather_other_things) {
  for (int twice = 0; twice < 2; twice++) {
    uint64_t odd_start_ns = 0;
    begin(0);
    for (int step = 0; step < 40; step++) {
      odd_start_ns = step % 10 == 9 ? clock_ns + 57 : odd_start_ns;
      if (step % 10 == 9)
        evaluation_and_odd_step(twice == 1);
      else
        fsdp2_step(4);
    }
    fsdp2_step(4);
    expect(41, fsdp2_period(4));
    ck_assert_uint_eq(found.generations[best()].interrupted, 4);
    ck_assert_uint_eq(found.generations[best()].interrupted_start_ns, odd_start_ns);
  }
}
END_TEST

START_TEST(accumulated_micro_batches_are_one_step) {
  begin(0);
  for (int step = 0; step < 20; step++) {
    for (int micro = 0; micro < 8; micro++) {
      add(ROOT, false);
      for (int i = 0; i < 4; i++)
        add(BLOCK, false);
      for (int i = 0; i < 4; i++)
        add(BLOCK_SCATTER, true);
    }
    add(NORM, true);
  }
  expect(20, 8 * 9 + 1);
}
END_TEST

START_TEST(one_bucket_per_step) {
  begin(0);
  for (int step = 0; step < 25; step++)
    add(BUCKET, true);
  expect(25, 1);
}
END_TEST

START_TEST(forward_passes_alone_are_no_training) {
  begin(0);
  for (int step = 0; step < 100; step++) {
    add(ROOT, false);
    for (int i = 0; i < 8; i++)
      add(BLOCK, false);
  }
  expect(0, 0);
}
END_TEST

START_TEST(noise_has_no_steps) {
  uint64_t state = 1;
  begin(0);
  for (int i = 0; i < 5000; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    add(state >> 40, true);
  }
  expect(0, 0);
}
END_TEST

START_TEST(the_user_may_tell_the_period) {
  begin(6);
  for (int i = 0; i < 60; i++)
    add((uint64_t)i * 77, true);
  expect(10, 6);
}
END_TEST

START_TEST(a_long_run_forgets_and_counts_on) {
  begin(0);
  for (int step = 0; step < 4000; step++)
    fsdp2_step(12);
  expect(4000, fsdp2_period(12));
}
END_TEST

START_TEST(the_last_step_ends_with_its_last_operation) {
  begin(0);
  for (int step = 0; step < 10; step++)
    fsdp2_step(2);
  ck_assert_uint_eq(found.lasts, 0);
  uint64_t last_ns = clock_ns - 1;
  clock_ns += 3000000000; /* a checkpoint, the interpreter's exit */
  expect(10, fsdp2_period(2));
  ck_assert_uint_eq(found.generations[best()].last_end_ns, last_ns);
  ck_assert_uint_eq(found.lasts, 1);
}
END_TEST

START_TEST(boundaries_are_known_in_advance) {
  begin(0);
  for (int step = 0; step < 10; step++)
    fsdp2_step(2);
  for (uint64_t i = 0; i < fsdp2_period(2); i++) {
    ck_assert(b200_steps_at_boundary(steps) == (i == 0));
    add(i == 0 ? ROOT : 0, false);
    if (i == 0)
      break;
  }
  ck_assert(!b200_steps_at_boundary(steps));
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(equal_blocks_do_not_hide_the_step) \
  X(three_steps_are_enough) \
  X(what_comes_before_the_first_step_is_not_a_step) \
  X(a_short_job_is_judged_at_its_end) \
  X(evaluation_is_left_out_and_the_steps_go_on) \
  X(the_step_after_an_evaluation_may_gather_other_things) \
  X(accumulated_micro_batches_are_one_step) \
  X(one_bucket_per_step) \
  X(forward_passes_alone_are_no_training) \
  X(noise_has_no_steps) \
  X(the_user_may_tell_the_period) \
  X(a_long_run_forgets_and_counts_on) \
  X(the_last_step_ends_with_its_last_operation) \
  X(boundaries_are_known_in_advance)
/* clang-format on */
UNIT_MAIN("steps", CASES)
