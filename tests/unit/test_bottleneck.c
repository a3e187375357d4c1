/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/bottleneck.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { STEP_NS = 1000000 };

/* Shares in thousandths of ten steps: GEMMs, blocked, idle, of that before the step. What is left is other kernels. */
static struct b200_evidence shares(int gemm, int blocked, int idle, int before) {
  struct b200_evidence evidence;
  b200_evidence_clear(&evidence);
  evidence.steps = 10;
  evidence.dev_ns = 10 * STEP_NS;
  evidence.gemm_ns = gemm * (evidence.dev_ns / 1000);
  evidence.blocked_ns = blocked * (evidence.dev_ns / 1000);
  evidence.host_ns = idle * (evidence.dev_ns / 1000);
  evidence.start_ns = before * (evidence.dev_ns / 1000);
  evidence.gemms = 100;
  evidence.starved = 10;
  return evidence;
}

static struct b200_bottleneck_verdict find(const struct b200_evidence *evidence) {
  struct b200_bottleneck_verdict verdict;
  b200_bottleneck_find(evidence, &verdict);
  return verdict;
}

static const char *name(const struct b200_evidence *evidence) {
  return b200_bottleneck_names[find(evidence).verdict];
}

static const struct b200_bottleneck_evidence_row *row(const struct b200_bottleneck_verdict *verdict,
                                                      enum b200_bottleneck_row id) {
  for (int i = 0; i < verdict->row_count; i++)
    if (verdict->rows[i].row == id)
      return &verdict->rows[i];
  return NULL;
}

enum { SHARE_CASES = 20, CAPACITY_CASES = 14 };

START_TEST(by_shares) {
  static const struct {
    int gemm, blocked, idle, before;
    const char *verdict;
    enum b200_undetermined why;
  } cases[] = {
      {900, 0, 50, 10, "compute", B200_UNDETERMINED_NONE},
      {300, 190, 200, 100, "undetermined", B200_UNDETERMINED_CLOSE}, /* others: 310 */
      {550, 150, 50, 10, "compute", B200_UNDETERMINED_NONE},
      {300, 600, 50, 10, "communication", B200_UNDETERMINED_NONE},
      {300, 100, 500, 50, "host", B200_UNDETERMINED_NONE},
      {300, 100, 500, 450, "data", B200_UNDETERMINED_NONE},
      {200, 50, 50, 0, "memory bandwidth", B200_UNDETERMINED_NONE},
      {400, 300, 0, 0, "compute", B200_UNDETERMINED_NONE}, /* exactly a tenth ahead */
      {399, 300, 0, 0, "undetermined", B200_UNDETERMINED_CLOSE},
      {300, 200, 200, 100, "undetermined", B200_UNDETERMINED_CLOSE},
      {325, 225, 225, 0, "compute", B200_UNDETERMINED_NONE}, /* as small as a verdict can be */
      {250, 250, 250, 250, "undetermined", B200_UNDETERMINED_CLOSE},
      {350, 50, 500, 250, "undetermined", B200_UNDETERMINED_CLOSE}, /* idle: half and half of two kinds */
      {350, 50, 500, 300, "data", B200_UNDETERMINED_NONE},
      {350, 50, 500, 299, "undetermined", B200_UNDETERMINED_CLOSE},
      {350, 50, 450, 400, "data", B200_UNDETERMINED_NONE},
      {350, 50, 449, 400, "undetermined", B200_UNDETERMINED_CLOSE},
      {0, 0, 1000, 1000, "data", B200_UNDETERMINED_NONE},
      {0, 0, 1000, 0, "host", B200_UNDETERMINED_NONE},
      {0, 0, 0, 0, "memory bandwidth", B200_UNDETERMINED_NONE},
  };
  _Static_assert(COUNT(cases) == SHARE_CASES, "all of them");
  struct b200_evidence evidence = shares(cases[_i].gemm, cases[_i].blocked, cases[_i].idle, cases[_i].before);
  struct b200_bottleneck_verdict verdict = find(&evidence);
  double sum = 0;
  ck_assert_str_eq(b200_bottleneck_names[verdict.verdict], cases[_i].verdict);
  ck_assert_int_eq(verdict.why, cases[_i].why);
  ck_assert(verdict.first < B200_BOTTLENECK_COUNT && verdict.second < B200_BOTTLENECK_COUNT);
  ck_assert(verdict.first != verdict.second);
  for (int i = 0; i < B200_BOTTLENECK_SHARES; i++)
    sum += verdict.share[i];
  ck_assert_double_eq_tol(sum, 1, 1e-12);
  ck_assert_int_gt(verdict.next_count, 0);
  ck_assert_int_gt(verdict.row_count, 4);
}
END_TEST
START_TEST(close_ones_are_named) {
  struct b200_evidence evidence = shares(100, 380, 400, 10);
  struct b200_bottleneck_verdict verdict = find(&evidence);
  ck_assert_int_eq(verdict.why, B200_UNDETERMINED_CLOSE);
  ck_assert_str_eq(b200_bottleneck_names[verdict.first], "host");
  ck_assert_str_eq(b200_bottleneck_names[verdict.second], "communication");
}
END_TEST

/* 400 us of 500 before each step. */
START_TEST(launches_explain_a_gap_before_the_step) {
  struct b200_evidence evidence = shares(200, 0, 500, 400);
  evidence.launches_per_step = 20; /* 100 us */
  struct b200_bottleneck_verdict verdict = find(&evidence);
  ck_assert_str_eq(b200_bottleneck_names[verdict.verdict], "data");
  ck_assert_double_eq_tol(verdict.share[B200_BOTTLENECK_DATA], 0.3, 1e-12);
  ck_assert_double_eq_tol(verdict.share[B200_BOTTLENECK_HOST], 0.2, 1e-12);
  evidence.launches_per_step = 40;
  ck_assert_str_eq(name(&evidence), "host");
  evidence.launches_per_step = 1e9;
  verdict = find(&evidence);
  ck_assert_double_eq(verdict.share[B200_BOTTLENECK_DATA], 0);
  ck_assert_double_eq_tol(verdict.share[B200_BOTTLENECK_HOST], 0.5, 1e-12);
}
END_TEST

START_TEST(memory_capacity) {
  static const struct {
    int gemm, blocked, idle;
    double refused, allocations;
    int64_t used, total;
    const char *verdict;
  } cases[] = {
      {300, 0, 600, 0.05, 0, 50, 100, "memory capacity"},
      {300, 0, 600, 0.049, 0, 50, 100, "host"},
      {300, 0, 600, 0, 1, 90, 100, "memory capacity"},
      {300, 0, 600, 0, 0.99, 90, 100, "host"},
      {300, 0, 600, 0, 20, 89, 100, "host"}, /* plenty is free: the program's own doing */
      {300, 0, 600, 0, 20, -1, 100, "host"},
      {300, 0, 600, 0, 20, 90, -1, "host"},
      {599, 0, 100, 1, 5, 99, 100, "memory capacity"},
      {600, 0, 100, 1, 5, 99, 100, "compute"}, /* it dominates */
      {100, 700, 100, 1, 5, 99, 100, "communication"},
      {100, 0, 880, 1, 5, 99, 100, "memory capacity"}, /* waiting is how the pressure shows */
      {550, 150, 50, 0, 0, 99, 100, "compute"},        /* full and well */
      {350, 300, 50, 0, 0, 95, 100, "memory capacity"},
      {350, 300, 50, 0, 0, 94, 100, "undetermined"},
  };
  _Static_assert(COUNT(cases) == CAPACITY_CASES, "all of them");
  struct b200_evidence evidence = shares(cases[_i].gemm, cases[_i].blocked, cases[_i].idle, 0);
  evidence.refused_per_step = cases[_i].refused;
  evidence.allocations_per_step = cases[_i].allocations;
  evidence.hbm_peak_bytes = cases[_i].used;
  evidence.hbm_total_bytes = cases[_i].total;
  struct b200_bottleneck_verdict verdict = find(&evidence);
  ck_assert_str_eq(b200_bottleneck_names[verdict.verdict], cases[_i].verdict);
  if (verdict.verdict != B200_BOTTLENECK_UNDETERMINED)
    ck_assert_int_eq(verdict.why, B200_UNDETERMINED_NONE);
}
END_TEST

START_TEST(thin_gemms_are_bandwidth) {
  struct b200_evidence evidence = shares(700, 0, 50, 0);
  evidence.gemm_peak_ns = 1000;
  evidence.gemm_memory_ns = 1001;
  ck_assert_str_eq(name(&evidence), "memory bandwidth");
  ck_assert_double_eq_tol(find(&evidence).share[B200_BOTTLENECK_BANDWIDTH], 0.95, 1e-12);
  ck_assert_ptr_nonnull(strstr(find(&evidence).next[0], "thin GEMMs"));
  evidence.gemm_memory_ns = 1000;
  ck_assert_str_eq(name(&evidence), "compute");
  evidence.gemm_peak_ns = -1; /* formats whose peak nobody knows */
  evidence.gemm_memory_ns = 5000;
  ck_assert_str_eq(name(&evidence), "compute");
}
END_TEST

START_TEST(other_kernels_that_leave_memory_alone) {
  struct b200_evidence evidence = shares(200, 50, 50, 0);
  evidence.memory_util = 0.20;
  ck_assert_str_eq(name(&evidence), "memory bandwidth");
  evidence.memory_util = 0.19;
  ck_assert_str_eq(name(&evidence), "undetermined");
  ck_assert_int_eq(find(&evidence).why, B200_UNDETERMINED_UNSEEN);
  evidence.graphs = true;
  ck_assert_int_eq(find(&evidence).why, B200_UNDETERMINED_GRAPHS);
  evidence = shares(700, 50, 50, 0);
  evidence.graphs = true;
  evidence.memory_util = 0.01;
  ck_assert_str_eq(name(&evidence), "compute");
}
END_TEST

/* Without times there is no share, and memory alone can speak. */
START_TEST(missing) {
  struct b200_evidence evidence;
  b200_evidence_clear(&evidence);
  struct b200_bottleneck_verdict verdict = find(&evidence);
  ck_assert_str_eq(b200_bottleneck_names[verdict.verdict], "undetermined");
  ck_assert_int_eq(verdict.why, B200_UNDETERMINED_UNTIMED);
  ck_assert_int_eq(verdict.first, B200_BOTTLENECK_COUNT);
  ck_assert_int_eq(verdict.row_count, 0);
  ck_assert_int_eq(verdict.next_count, 1);
  ck_assert_ptr_nonnull(strstr(verdict.next[0], "B200OPT_TIMING"));
  evidence.refused = 1;
  ck_assert_str_eq(name(&evidence), "memory capacity");
  evidence = shares(900, 0, 50, 0);
  evidence.refused = 1; /* once, at the start: it went on */
  ck_assert_str_eq(name(&evidence), "compute");
  evidence.gemm_ns = -1;
  ck_assert_int_eq(find(&evidence).why, B200_UNDETERMINED_UNTIMED);
  evidence = shares(900, 0, 50, 0);
  evidence.host_ns = -1; /* then nobody knows whether the rest was work */
  ck_assert_int_eq(find(&evidence).why, B200_UNDETERMINED_UNTIMED);
  evidence = shares(900, 0, 50, 0);
  evidence.blocked_ns = evidence.start_ns = evidence.starved = evidence.gemms = -1; /* one rank */
  verdict = find(&evidence);
  ck_assert_str_eq(b200_bottleneck_names[verdict.verdict], "compute");
  ck_assert_double_eq(verdict.share[B200_BOTTLENECK_COMMUNICATION], 0);
  ck_assert_ptr_null(row(&verdict, B200_ROW_STARVED));
}
END_TEST

START_TEST(rows_and_advice) {
  struct b200_evidence evidence = shares(800, 50, 50, 10);
  evidence.gemm_peak_ns = 0.49 * (double)evidence.gemm_ns;
  evidence.gemm_memory_ns = 1;
  evidence.throttled = 0.5;
  struct b200_bottleneck_verdict verdict = find(&evidence);
  ck_assert_int_eq(verdict.rows[0].row, B200_ROW_COMPUTE); /* the verdict's own first */
  ck_assert(verdict.rows[0].speaks);
  ck_assert_double_eq_tol(verdict.rows[0].threshold, 0.10 + 0.10, 1e-12); /* others: 100 */
  ck_assert_double_eq_tol(row(&verdict, B200_ROW_GEMM_RATE)->value, 0.49, 1e-12);
  ck_assert(row(&verdict, B200_ROW_GEMM_RATE)->speaks); /* below half of the peak */
  ck_assert_double_lt(row(&verdict, B200_ROW_STARVED)->threshold, 0);
  ck_assert(!row(&verdict, B200_ROW_STARVED)->speaks);
  ck_assert(!row(&verdict, B200_ROW_COMMUNICATION)->speaks);
  ck_assert_int_eq(verdict.next_count, 4);
  ck_assert_ptr_nonnull(strstr(verdict.next[0], "clocks"));
  ck_assert_ptr_nonnull(strstr(verdict.next[1], "larger GEMMs"));
  ck_assert_ptr_nonnull(strstr(verdict.next[2], "B200OPT_PRECISION=auto"));
  evidence.converts = true;
  evidence.throttled = 0.19;
  evidence.gemm_peak_ns = 0.5 * (double)evidence.gemm_ns;
  verdict = find(&evidence);
  ck_assert(!row(&verdict, B200_ROW_GEMM_RATE)->speaks);
  ck_assert_int_eq(verdict.next_count, 1);
  ck_assert_ptr_nonnull(strstr(verdict.next[0], "recomputation"));
}
END_TEST

/* Any numbers give shares within [0, 1] that add up, a verdict and advice. */
START_TEST(nonsense) {
  static const int64_t odd[] = {INT64_MIN, -5, -1, 0, 1, 7, 1000000, INT64_MAX};
  static const double odd_reals[] = {-INFINITY, -1, 0, 0.5, 1e300, INFINITY, NAN};
  uint64_t seed = 88172645463325252u;
  for (int round = 0; round < 200000; round++) {
    struct b200_evidence evidence;
    int64_t *wholes[] = {&evidence.steps,   &evidence.dev_ns,         &evidence.gemm_ns,        &evidence.blocked_ns,
                         &evidence.host_ns, &evidence.start_ns,       &evidence.gemms,          &evidence.starved,
                         &evidence.refused, &evidence.hbm_peak_bytes, &evidence.hbm_total_bytes};
    double *reals[] = {
        &evidence.gemm_peak_ns, &evidence.gemm_memory_ns, &evidence.refused_per_step, &evidence.allocations_per_step,
        &evidence.util,         &evidence.memory_util,    &evidence.throttled};
    b200_evidence_clear(&evidence);
    for (size_t i = 0; i < COUNT(wholes) + COUNT(reals); i++) {
      seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
      if (i < COUNT(wholes))
        *wholes[i] = odd[(seed >> 20) % COUNT(odd)];
      else
        *reals[i - COUNT(wholes)] = odd_reals[(seed >> 20) % COUNT(odd_reals)];
    }
    struct b200_bottleneck_verdict verdict = find(&evidence);
    double sum = 0;
    for (int i = 0; i < B200_BOTTLENECK_SHARES; i++) {
      ck_assert(verdict.share[i] == -1 || (verdict.share[i] >= 0 && verdict.share[i] <= 1));
      sum += verdict.share[i];
    }
    ck_assert(verdict.first == B200_BOTTLENECK_COUNT ? sum == -5 : fabs(sum - 1) < 1e-9);
    ck_assert((verdict.verdict == B200_BOTTLENECK_UNDETERMINED) == (verdict.why != B200_UNDETERMINED_NONE));
    ck_assert(verdict.next_count > 0 && verdict.next_count <= B200_NEXT_MAX);
    ck_assert(verdict.row_count <= B200_ROW_COUNT);
    for (int i = 0; i < verdict.row_count; i++)
      ck_assert(verdict.rows[i].value >= 0);
  }
}
END_TEST

/* SageMaker's launcher takes these words for failures, and logs have to be ASCII. */
START_TEST(texts) {
  static const char *const words[] = {"ORTE", "Error", "Exception"};
  for (int verdict = 0; verdict < B200_BOTTLENECK_COUNT; verdict++)
    for (const char *text = b200_bottleneck_because[verdict]; *text; text++)
      ck_assert(*text >= ' ' && *text <= '~');
  for (int gemm = 0; gemm <= 1000; gemm += 100)
    for (int idle = 0; gemm + idle <= 1000; idle += 100) {
      struct b200_evidence evidence = shares(gemm, 0, idle, idle / 3);
      struct b200_bottleneck_verdict verdict = find(&evidence);
      for (int i = 0; i < verdict.next_count; i++) {
        for (const char *text = verdict.next[i]; *text; text++)
          ck_assert(*text >= ' ' && *text <= '~');
        for (size_t word = 0; word < COUNT(words); word++)
          ck_assert_ptr_null(strstr(verdict.next[i], words[word]));
      }
    }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("bottleneck");
  TCase *tcase = tcase_create("all");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, by_shares, 0, SHARE_CASES);
  tcase_add_loop_test(tcase, memory_capacity, 0, CAPACITY_CASES);
  tcase_add_test(tcase, close_ones_are_named);
  tcase_add_test(tcase, launches_explain_a_gap_before_the_step);
  tcase_add_test(tcase, thin_gemms_are_bandwidth);
  tcase_add_test(tcase, other_kernels_that_leave_memory_alone);
  tcase_add_test(tcase, missing);
  tcase_add_test(tcase, rows_and_advice);
  tcase_add_test(tcase, nonsense);
  tcase_add_test(tcase, texts);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
