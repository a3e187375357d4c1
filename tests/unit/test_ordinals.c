/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "policy/ordinals.h"
#include "unit.h"

static struct b200_ordinals state, *const ordinals = &state;

/* Plays one step: f, d and w are GEMMs of the roles, b is a batched one; '.' between them means nothing. Compares the
   indices with `expected`, separated by blanks; '-' is not known. NULL: compares nothing. */
static void play(const char *step, const char *expected) {
  char found[512] = "";
  for (const char *at = step; *at; at++) {
    enum b200_role role = *at == 'f'   ? B200_ROLE_FPROP
                          : *at == 'd' ? B200_ROLE_DGRAD
                          : *at == 'w' ? B200_ROLE_WGRAD
                                       : B200_ROLE_BATCHED;
    if (*at == '.')
      continue;
    int64_t index = b200_ordinals_next(ordinals, role);
    size_t used = strlen(found);
    snprintf(found + used, sizeof found - used, index < 0 ? "%s-" : "%s%lld", used ? " " : "", (long long)index);
  }
  b200_ordinals_step(ordinals);
  if (expected)
    ck_assert_str_eq(found, expected);
}

static void learn(const char *step) {
  play(step, NULL);
  play(step, NULL);
}

START_TEST(plain_step_counts_each_role) {
  play("fff.wd.wd.w", "- - - - - - - -");
  play("fff.wd.wd.w", "- - - - - - - -");
  play("fff.wd.wd.w", "0 1 2 0 0 1 1 2");
  play("fff.wd.wd.w", "0 1 2 0 0 1 1 2");
}
END_TEST

START_TEST(recomputed_forward_has_the_index_of_the_first_time) {
  const char *step = "ff.ff.f.wd.ff.wdwd.ff.wdw"; /* two blocks of two layers, and a head that is not done again */
  learn(step);
  play(step, "0 1 2 3 4 0 0 2 3 1 1 2 2 0 1 3 3 4");
}
END_TEST

START_TEST(a_step_may_begin_in_the_backward_pass) {
  learn("w.fff.wdwd"); /* as with DDP, at a gradient bucket */
  play("w.fff.wdwd", "2 0 1 2 0 0 1 1");
}
END_TEST

START_TEST(micro_batches_count_from_the_start) {
  learn("ff.wdw.ff.wdw");
  play("ff.wdw.ff.wdw", "0 1 0 0 1 0 1 0 0 1");
}
END_TEST

START_TEST(batched_products_have_no_index_and_disturb_nothing) {
  learn("fbf.wbdw");
  play("fbf.wbdw", "0 - 1 0 - 0 1");
  play("ff.wdw", "0 1 0 0 1");
}
END_TEST

START_TEST(after_another_sequence_nothing_is_known_until_two_steps_were_alike) {
  learn("ff.wdw");
  play("ff.wdw.ff", "0 1 0 0 1 - -"); /* an evaluation behind the step */
  play("ff.wdw", "- - - - -");
  play("ff.wdw", "- - - - -");
  play("ff.wdw", "0 1 0 0 1");
  play("fff", "0 1 -");
  learn("ff.wdw");
  play("ff.wdw", "0 1 0 0 1");
}
END_TEST

START_TEST(steps_that_are_handed_out_at_once_do_no_harm) {
  play("ff.wdw.ff.wdw.ff.wdw", NULL);
  b200_ordinals_step(ordinals);
  b200_ordinals_step(ordinals);
  learn("ff.wdw");
  play("ff.wdw", "0 1 0 0 1");
}
END_TEST

START_TEST(only_forward_or_no_gemms_give_no_index) {
  learn("fff");
  play("fff", "- - -");
  learn("");
  learn("w");
  play("w", "-");
}
END_TEST

START_TEST(more_gemms_than_fit_give_no_index) {
  for (int step = 0; step < 3; step++) {
    for (int i = 0; i < B200_ORDINALS_MAX + 10; i++)
      ck_assert_int_eq(b200_ordinals_next(ordinals, i % 3 == 0 ? B200_ROLE_FPROP : B200_ROLE_WGRAD), -1);
    b200_ordinals_step(ordinals);
  }
  learn("ff.wdw");
  play("ff.wdw", "0 1 0 0 1");
}
END_TEST

/* Any sequence of roles: every index is -1 or below the number of GEMMs, and a step that repeats is followed. */
START_TEST(random_sequences) {
  srand(1);
  for (int round = 0; round < 5000; round++) {
    uint8_t roles[40];
    int64_t first[40];
    int count = rand() % 40;
    for (int i = 0; i < count; i++)
      roles[i] = (uint8_t)(rand() % B200_ROLE_COUNT);
    b200_ordinals_step(ordinals);
    for (int pass = 0; pass < 4; pass++) {
      for (int i = 0; i < count; i++) {
        int64_t index = b200_ordinals_next(ordinals, (enum b200_role)roles[i]);
        ck_assert_int_ge(index, -1);
        ck_assert_int_lt(index, count);
        if (pass == 2)
          first[i] = index;
        if (pass == 3)
          ck_assert_int_eq(index, first[i]);
      }
      b200_ordinals_step(ordinals);
    }
  }
}
END_TEST

#define CASES(X)                                                                                                            \
  X(plain_step_counts_each_role)                                                                                            \
  X(recomputed_forward_has_the_index_of_the_first_time)                                                                     \
  X(a_step_may_begin_in_the_backward_pass)                                                                                  \
  X(micro_batches_count_from_the_start)                                                                                     \
  X(batched_products_have_no_index_and_disturb_nothing)                                                                     \
  X(after_another_sequence_nothing_is_known_until_two_steps_were_alike)                                                     \
  X(steps_that_are_handed_out_at_once_do_no_harm)                                                                           \
  X(only_forward_or_no_gemms_give_no_index)                                                                                 \
  X(more_gemms_than_fit_give_no_index)                                                                                      \
  X(random_sequences)
UNIT_MAIN("ordinals", CASES)
