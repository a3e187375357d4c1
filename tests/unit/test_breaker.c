/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/breaker.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define FP8 B200_FORMAT_FP8
#define MX B200_FORMAT_MXFP8
#define BAD B200_VERDICT_ERROR
#define GOOD B200_VERDICT_GOOD

static struct b200_breaker breaker;

static struct b200_gemm shape(int64_t n) {
  struct b200_gemm gemm;
  memset(&gemm, 0, sizeof(gemm));
  gemm.m = 64;
  gemm.n = n;
  gemm.k = 64;
  gemm.batch = 1;
  gemm.ta = 'T';
  gemm.tb = 'N';
  return gemm;
}

static enum b200_open why(const struct b200_gemm *gemm, enum b200_format format) {
  return b200_demoted_why(b200_breaker_look(&breaker, gemm), format);
}

static void step(void) {
  b200_breaker_step(&breaker, true, NULL, NULL);
}

START_TEST(verdicts) {
  static const struct {
    enum b200_format format;
    enum b200_role role;
    struct b200_guard_sample a, b;
    double median, p99; /* -1: no shadow */
    enum b200_verdict verdict;
  } cases[] = {
      {FP8, B200_ROLE_FPROP, {.blocks = 100}, {.blocks = 100}, -1, -1, B200_VERDICT_GOOD},
      {FP8, B200_ROLE_FPROP, {.blocks = 100, .starved = 20}, {.blocks = 100}, -1, -1, B200_VERDICT_GOOD},
      {FP8, B200_ROLE_FPROP, {.blocks = 100, .starved = 21}, {.blocks = 100}, -1, -1, B200_VERDICT_STARVED},
      {FP8, B200_ROLE_WGRAD, {.blocks = 100}, {.blocks = 100, .starved = 21}, -1, -1, B200_VERDICT_STARVED},
      {MX, B200_ROLE_FPROP, {.blocks = 100, .starved = 99}, {.blocks = 100}, -1, -1, B200_VERDICT_GOOD},
      {FP8, B200_ROLE_FPROP, {.blocks = 0}, {.blocks = 0}, -1, -1, B200_VERDICT_GOOD},
      {FP8, B200_ROLE_FPROP, {.blocks = 9, .starved = 9, .nonfinite = 1}, {.blocks = 9}, NAN, NAN, B200_VERDICT_GOOD},
      {FP8, B200_ROLE_FPROP, {.blocks = 9}, {.blocks = 9, .nonfinite = 1}, NAN, NAN, B200_VERDICT_GOOD},
      {MX, B200_ROLE_FPROP, {.blocks = 9}, {.blocks = 9}, 0.08, 0.5, B200_VERDICT_GOOD},
      {MX, B200_ROLE_FPROP, {.blocks = 9}, {.blocks = 9}, 0.081, 0.1, B200_VERDICT_ERROR},
      {MX, B200_ROLE_OTHER, {.blocks = 9}, {.blocks = 9}, 0.081, 0.1, B200_VERDICT_ERROR},
      {MX, B200_ROLE_DGRAD, {.blocks = 9}, {.blocks = 9}, 0.12, 0.1, B200_VERDICT_GOOD},
      {MX, B200_ROLE_DGRAD, {.blocks = 9}, {.blocks = 9}, 0.121, 0.1, B200_VERDICT_ERROR},
      {MX, B200_ROLE_WGRAD, {.blocks = 9}, {.blocks = 9}, 0.01, 0.501, B200_VERDICT_ERROR},
      {MX, B200_ROLE_FPROP, {.blocks = 9}, {.blocks = 9}, NAN, 0.1, B200_VERDICT_NONFINITE},
      {MX, B200_ROLE_FPROP, {.blocks = 9}, {.blocks = 9}, 0.01, INFINITY, B200_VERDICT_NONFINITE},
      {FP8, B200_ROLE_FPROP, {.blocks = 9, .starved = 9}, {.blocks = 9}, 0.01, 0.1, B200_VERDICT_STARVED},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct b200_guard_shadow shadow = {cases[i].median, cases[i].p99};
    enum b200_verdict verdict =
        b200_guard_verdict(cases[i].format, cases[i].role, &cases[i].a, &cases[i].b, cases[i].median == -1 ? NULL : &shadow);
    ck_assert_msg(verdict == cases[i].verdict, "case %zu: %d", i, verdict);
  }
}
END_TEST

/* Every sequence of eight samples against the definition: open once `strikes` of the last four are bad. */
START_TEST(strikes_among_the_last_four) {
  for (int strikes = 1; strikes <= 4; strikes++)
    for (unsigned sequence = 0; sequence < 256; sequence++) {
      struct b200_gemm gemm = shape(1);
      bool expected = false;
      b200_breaker_make(&breaker, strikes);
      for (int i = 0; i < 8; i++) {
        int bad = 0;
        for (int j = i; j >= 0 && j > i - 4; j--)
          bad += (int)(sequence >> j & 1);
        bool opens = !expected && bad >= strikes;
        ck_assert(b200_breaker_sample(&breaker, &gemm, FP8, sequence >> i & 1 ? BAD : GOOD) == opens);
        expected = expected || opens;
      }
      ck_assert_int_eq(why(&gemm, FP8), B200_OPEN_NO);
      step();
      ck_assert_int_eq(why(&gemm, FP8), expected ? B200_OPEN_GUARD : B200_OPEN_NO);
      ck_assert_int_eq(why(&gemm, MX), B200_OPEN_NO);
    }
}
END_TEST

START_TEST(formats_and_shapes_are_apart) {
  struct b200_gemm one = shape(1), two = shape(2), role = shape(1);
  role.role = B200_ROLE_WGRAD;
  b200_breaker_make(&breaker, 3);
  for (int i = 0; i < 3; i++) {
    b200_breaker_sample(&breaker, &one, FP8, BAD);
    b200_breaker_sample(&breaker, &two, MX, BAD);
    b200_breaker_sample(&breaker, &role, FP8, i ? BAD : GOOD);
  }
  step();
  ck_assert_int_eq(why(&one, FP8), B200_OPEN_GUARD);
  ck_assert_int_eq(why(&one, MX), B200_OPEN_NO);
  ck_assert_int_eq(why(&two, FP8), B200_OPEN_NO);
  ck_assert_int_eq(why(&two, MX), B200_OPEN_GUARD);
  ck_assert_uint_eq(b200_breaker_look(&breaker, &role), 0);
  ck_assert_uint_eq(breaker.opened, 2);
  /* FP8 went to MXFP8; that can go, too. */
  for (int i = 0; i < 3; i++)
    b200_breaker_sample(&breaker, &one, MX, BAD);
  step();
  ck_assert_int_eq(why(&one, FP8), B200_OPEN_GUARD);
  ck_assert_int_eq(why(&one, MX), B200_OPEN_GUARD);
}
END_TEST

START_TEST(failures_open_at_once) {
  struct b200_gemm one = shape(1), two = shape(2);
  b200_breaker_make(&breaker, 3);
  ck_assert(b200_breaker_fail(&breaker, &one, FP8, B200_OPEN_HEURISTIC));
  ck_assert(b200_breaker_fail(&breaker, &two, MX, B200_OPEN_VENDOR));
  ck_assert(!b200_breaker_fail(&breaker, &one, FP8, B200_OPEN_VENDOR));
  ck_assert_int_eq(why(&one, FP8), B200_OPEN_HEURISTIC);
  ck_assert_int_eq(why(&two, MX), B200_OPEN_VENDOR);
  ck_assert_uint_eq(b200_breaker_pending(&breaker), 0);
}
END_TEST

struct heard {
  int calls, applied;
  int64_t n;
};
static void hear(void *context, const struct b200_gemm *gemm, enum b200_format format, bool applied) {
  struct heard *heard = context;
  heard->calls++;
  heard->applied += applied;
  heard->n = gemm->n;
  ck_assert_int_eq(format, FP8);
}

START_TEST(ranks_that_differ_drop) {
  struct b200_gemm one = shape(5);
  struct heard heard = {0};
  b200_breaker_make(&breaker, 1);
  ck_assert(b200_breaker_sample(&breaker, &one, FP8, BAD));
  ck_assert_uint_ne(b200_breaker_pending(&breaker), 0);
  b200_breaker_step(&breaker, false, hear, &heard);
  ck_assert_int_eq(heard.calls, 1);
  ck_assert_int_eq(heard.applied, 0);
  ck_assert_int_eq(heard.n, 5);
  ck_assert_uint_eq(b200_breaker_look(&breaker, &one), 0);
  ck_assert_uint_eq(breaker.dropped, 1);
  ck_assert_uint_eq(b200_breaker_pending(&breaker), 0);
  ck_assert(b200_breaker_sample(&breaker, &one, FP8, BAD)); /* it may become pending anew */
  b200_breaker_step(&breaker, true, hear, &heard);
  ck_assert_int_eq(heard.applied, 1);
  ck_assert_int_eq(why(&one, FP8), B200_OPEN_GUARD);
}
END_TEST

/* What was dropped begins anew: its old samples do not make it pending again. */
START_TEST(dropped_samples_are_forgotten) {
  struct b200_gemm one = shape(5);
  b200_breaker_make(&breaker, 3);
  for (int i = 0; i < 3; i++)
    ck_assert(b200_breaker_sample(&breaker, &one, FP8, BAD) == (i == 2));
  b200_breaker_step(&breaker, false, NULL, NULL);
  for (int i = 0; i < 3; i++)
    ck_assert(b200_breaker_sample(&breaker, &one, FP8, BAD) == (i == 2));
}
END_TEST

/* The same demotions in another order: the same hash; others: another. */
START_TEST(pending_has_a_hash_without_order) {
  struct b200_gemm one = shape(1), two = shape(2), three = shape(3);
  b200_breaker_make(&breaker, 1);
  b200_breaker_sample(&breaker, &one, FP8, BAD);
  b200_breaker_sample(&breaker, &two, FP8, BAD);
  uint64_t hash = b200_breaker_pending(&breaker);
  b200_breaker_make(&breaker, 1);
  b200_breaker_sample(&breaker, &two, FP8, BAD);
  b200_breaker_sample(&breaker, &one, FP8, BAD);
  ck_assert_uint_eq(hash, b200_breaker_pending(&breaker));
  b200_breaker_make(&breaker, 1);
  b200_breaker_sample(&breaker, &two, FP8, BAD);
  b200_breaker_sample(&breaker, &three, FP8, BAD);
  ck_assert_uint_ne(hash, b200_breaker_pending(&breaker));
  b200_breaker_make(&breaker, 1);
  b200_breaker_sample(&breaker, &two, FP8, BAD);
  b200_breaker_sample(&breaker, &one, MX, BAD);
  ck_assert_uint_ne(hash, b200_breaker_pending(&breaker));
}
END_TEST

/* What does not fit stays in its format and is counted; what is there keeps working. */
START_TEST(a_full_table_counts) {
  int opened = 0, most = B200_BREAKER_ENTRIES + 100;
  b200_breaker_make(&breaker, 1);
  for (int i = 0; i < most; i++) {
    struct b200_gemm gemm = shape(i);
    b200_breaker_fail(&breaker, &gemm, FP8, B200_OPEN_VENDOR);
  }
  for (int i = 0; i < most; i++) {
    struct b200_gemm gemm = shape(i);
    opened += why(&gemm, FP8) == B200_OPEN_VENDOR;
  }
  ck_assert_int_ge(opened, B200_BREAKER_ENTRIES / 2);
  ck_assert_int_lt(opened, B200_BREAKER_ENTRIES * 7 / 8); /* or looking up what is not there would go through all */
  ck_assert_int_eq((int)breaker.full, most - opened);
  struct b200_gemm last = shape(most - 1), first = shape(0);
  ck_assert(!b200_breaker_sample(&breaker, &last, FP8, BAD));
  ck_assert_int_eq((int)breaker.full, most - opened + 1);
  ck_assert(b200_breaker_sample(&breaker, &first, MX, BAD));
}
END_TEST

/* Healthy samples need no room. */
START_TEST(good_samples_leave_no_entry) {
  b200_breaker_make(&breaker, 3);
  for (int i = 0; i < 5000; i++) {
    struct b200_gemm gemm = shape(i);
    ck_assert(!b200_breaker_sample(&breaker, &gemm, FP8, GOOD));
  }
  ck_assert_int_eq(breaker.used, 0);
  ck_assert_uint_eq(breaker.full, 0);
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(verdicts) \
  X(strikes_among_the_last_four) \
  X(formats_and_shapes_are_apart) \
  X(failures_open_at_once) \
  X(ranks_that_differ_drop) \
  X(dropped_samples_are_forgotten) \
  X(pending_has_a_hash_without_order) \
  X(a_full_table_counts) \
  X(good_samples_leave_no_entry)
/* clang-format on */
UNIT_MAIN("breaker", CASES)
