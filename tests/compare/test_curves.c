/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verdict on loss curves against curves whose true answer is known: tests/data/curves/README.md. The floor is that of
 * the six A/A pairs among them.
 */
#include <math.h>
#include <string.h>

#include "curves.h"
#include "tools/compare/loss.h"
#include "unit.h"

#define ROWS(table) (sizeof(table) / sizeof((table)[0]))
#define FLOOR 0.042

static const char *const equal_pairs[][2] = {{"bf16_0", "bf16_perm_0"}, {"bf16_1", "bf16_perm_1"}, {"bf16_0", "bf16_thr2_0"},
                                             {"bf16_0", "bf16_in1_0"},  {"bf16_1", "bf16_in1_1"},  {"bf16_0", "bf16_in2_0"}};

/* Compares the first `steps` of two curves, all of them when 0. */
static struct loss_pair compare(const char *a, const char *b, size_t steps, double margin, double floor) {
  struct curve curve_a = curve_read(B200_CURVES, a), curve_b = curve_read(B200_CURVES, b);
  struct loss_settings settings = {.margin_percent = margin, .floor_percent = floor};
  struct loss_pair pair;
  size_t count_a = steps ? steps : curve_a.count, count_b = steps ? steps : curve_b.count;
  ck_assert(count_a <= curve_a.count && count_b <= curve_b.count);
  ck_assert(loss_compare(curve_a.points, count_a, curve_b.points, count_b, &settings, &pair, NULL));
  free(curve_a.points);
  free(curve_b.points);
  return pair;
}

static struct loss_pair full(const char *a, const char *b, double margin) {
  return compare(a, b, 0, margin, FLOOR);
}

static void is(const struct loss_pair *pair, const char *what, enum loss_verdict verdict, enum loss_reason reason) {
  ck_assert_msg(pair->verdict == verdict && pair->reason == reason, "%s: %s, %s; gap %.3f +- %.3f %%", what,
                loss_verdict_names[pair->verdict], loss_reason_texts[pair->reason], pair->gap_percent,
                pair->half_width_percent);
}

/* {baseline, candidate, least and largest gap, verdicts at margins of 0.25 % and 1 %, start is flagged}. */
static const struct {
  const char *a, *b;
  double low, high;
  enum loss_verdict strict, wide;
  bool flagged;
} answers[] = {
    {"bf16_0", "bf16_perm_0", -0.1, 0.1, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_1", "bf16_perm_1", -0.1, 0.1, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_0", "bf16_thr2_0", -0.1, 0.1, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_0", "bf16_in1_0", -0.1, 0.1, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_1", "bf16_in1_1", -0.1, 0.1, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_0", "bf16_in2_0", -0.1, 0.1, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_0", "fp8_0", 0.45, 0.63, LOSS_WORSE, LOSS_EQUIVALENT, false},
    {"bf16_1", "fp8_1", 0.45, 0.63, LOSS_WORSE, LOSS_EQUIVALENT, false},
    {"bf16_0", "fp8_nohead_0", 0, 0.55, LOSS_WORSE, LOSS_EQUIVALENT, false},
    {"bf16_1", "fp8_nohead_1", 0, 0.55, LOSS_EQUIVALENT, LOSS_EQUIVALENT, false},
    {"bf16_0", "mxfp8_0", 0.25, 0.64, LOSS_WORSE, LOSS_EQUIVALENT, false},
    {"bf16_1", "mxfp8_1", 0.25, 0.64, LOSS_INCONCLUSIVE, LOSS_EQUIVALENT, false},
    {"bf16_0", "mxfp8_nohead_0", 0.66, 0.68, LOSS_WORSE, LOSS_EQUIVALENT, false},
    {"bf16_0", "mxfp8_floor_0", 2.55, 2.7, LOSS_WORSE, LOSS_WORSE, false},
    {"bf16_0", "nvfp4_0", 7, 7.2, LOSS_WORSE, LOSS_WORSE, true},
    {"bf16_0", "bf16_lr0.8_0", 0.48, 0.5, LOSS_WORSE, LOSS_INCONCLUSIVE, true},
    {"bf16_0", "neg_stalew_0", 39, 40, LOSS_WORSE, LOSS_WORSE, true},
};

static void check_answer(size_t i) {
  struct loss_pair strict = full(answers[i].a, answers[i].b, 0.25), wide = full(answers[i].a, answers[i].b, 1);
  ck_assert_msg(strict.verdict == answers[i].strict, "%s at 0.25 %%: %s", answers[i].b, loss_verdict_names[strict.verdict]);
  ck_assert_msg(wide.verdict == answers[i].wide, "%s at 1 %%: %s", answers[i].b, loss_verdict_names[wide.verdict]);
  ck_assert_msg(strict.gap_percent >= answers[i].low && strict.gap_percent <= answers[i].high, "%s: gap %.3f", answers[i].b,
                strict.gap_percent);
  ck_assert_msg(strict.start_differs == answers[i].flagged, "%s: start %.4f", answers[i].b, strict.start_percent);
  ck_assert_msg(fmax(strict.correlation_early, strict.correlation_late) > 0.6, "%s", answers[i].b);
  ck_assert(!strict.short_run && !wide.short_run && strict.common == 800 && strict.window == 200 &&
            strict.window_from == 601);
}

/* clang-format off */
START_TEST(true_answers) { check_answer((size_t)_i); } END_TEST
/* clang-format on */

START_TEST(another_order_of_the_data_is_not_comparable) {
  struct loss_pair pair = full("bf16_0", "bf16_data1_0", 1);
  is(&pair, "bf16_data1_0", LOSS_INVALID, LOSS_BY_DATA);
  pair = full("bf16_0", "bf16_1", 1); /* nor another seed */
  is(&pair, "bf16_1", LOSS_INVALID, LOSS_BY_DATA);
  pair = full("bf16_1", "bf16_init1_1", 1); /* its data is that of seed 0 */
  is(&pair, "bf16_init1_1", LOSS_INVALID, LOSS_BY_DATA);
}
END_TEST

START_TEST(another_start_is_not_equivalent) {
  struct loss_pair pair = full("bf16_0", "bf16_init1_1", 1);
  is(&pair, "bf16_init1_1", LOSS_INCONCLUSIVE, LOSS_BY_START);
  ck_assert(pair.start_differs && fabs(pair.gap_percent) + pair.half_width_percent < 1);
}
END_TEST

START_TEST(another_configuration_is_not_equivalent) {
  struct loss_pair pair = full("bf16_0", "bf16_lr0.8_0", 1);
  is(&pair, "bf16_lr0.8_0", LOSS_INCONCLUSIVE, LOSS_BY_START);
}
END_TEST

START_TEST(nan_comes_before_the_short_overlap) {
  struct loss_pair pair = full("bf16_0", "neg_nosat_0", 1);
  is(&pair, "neg_nosat_0", LOSS_DIVERGED, LOSS_BY_NONFINITE);
  ck_assert_int_eq(pair.first_nonfinite_b, 2);
  pair = full("neg_nosat_0", "bf16_0", 1);
  is(&pair, "neg_nosat_0 as the baseline", LOSS_INVALID, LOSS_BY_BASELINE);
}
END_TEST

START_TEST(far_and_rising_is_diverged) {
  struct loss_pair pair = full("bf16_0", "neg_scale1_0", 1);
  is(&pair, "neg_scale1_0", LOSS_DIVERGED, LOSS_BY_RISE);
  pair = full("bf16_0", "neg_stalew_0", 1); /* far, too, but it learns */
  is(&pair, "neg_stalew_0", LOSS_WORSE, LOSS_BY_INTERVAL);
}
END_TEST

START_TEST(the_better_one_is_better) {
  struct loss_pair pair = full("mxfp8_floor_0", "bf16_0", 1);
  is(&pair, "bf16_0 against mxfp8_floor_0", LOSS_BETTER, LOSS_BY_INTERVAL);
}
END_TEST

START_TEST(a_curve_against_itself_is_identical) {
  struct loss_pair pair = full("bf16_0", "bf16_0", 0.25);
  is(&pair, "bf16_0", LOSS_EQUIVALENT, LOSS_BY_IDENTITY);
  ck_assert(pair.identical && pair.gap_percent == 0 && pair.error_percent == 0 && pair.lag_steps == 0);
  ck_assert(pair.longest_sign_run == 0 && pair.largest_gap_percent == 0 && pair.spikes_only_b == 0 && pair.norm_ratio == 1);
}
END_TEST

/* mxfp8_floor looks equal after 300 steps and is 2.6 % worse after 800: what is said of few steps is said as such. */
START_TEST(a_prefix_is_equivalent_at_its_steps) {
  struct loss_pair pair = compare("bf16_0", "mxfp8_floor_0", 300, 1, FLOOR);
  is(&pair, "300 steps of mxfp8_floor_0", LOSS_EQUIVALENT, LOSS_BY_INTERVAL);
  ck_assert(pair.short_run);
  pair = compare("bf16_0", "mxfp8_floor_0", 600, 1, FLOOR);
  is(&pair, "600 steps of mxfp8_floor_0", LOSS_WORSE, LOSS_BY_INTERVAL);
  pair = compare("bf16_0", "bf16_perm_0", 599, 1, FLOOR);
  ck_assert(pair.verdict == LOSS_EQUIVALENT && pair.short_run);
  pair = compare("bf16_0", "bf16_perm_0", 600, 1, FLOOR);
  ck_assert(pair.verdict == LOSS_EQUIVALENT && !pair.short_run);
}
END_TEST

/* Every prefix of equal runs: never called worse, better or not comparable. */
START_TEST(prefixes_of_equal_runs) {
  for (size_t i = 0; i < ROWS(equal_pairs); i++)
    for (size_t steps = 100; steps <= 800; steps += 50) {
      struct loss_pair pair = compare(equal_pairs[i][0], equal_pairs[i][1], steps, 1, FLOOR);
      ck_assert_msg(pair.verdict == LOSS_EQUIVALENT, "%zu steps of %s: %s", steps, equal_pairs[i][1],
                    loss_verdict_names[pair.verdict]);
    }
}
END_TEST

/* Every prefix of every recipe, broken ones with them: never not comparable, and never better at 1 %. */
START_TEST(prefixes_of_recipes_are_never_invalid) {
  for (size_t i = 0; i < ROWS(answers); i++)
    for (size_t steps = 50; steps <= 800; steps += 50) {
      struct loss_pair pair = compare(answers[i].a, answers[i].b, steps, 1, FLOOR);
      ck_assert_msg(pair.verdict != LOSS_INVALID && pair.verdict != LOSS_BETTER, "%zu steps of %s: %s", steps, answers[i].b,
                    loss_verdict_names[pair.verdict]);
    }
}
END_TEST

START_TEST(the_floor_of_the_equal_pairs) {
  double gaps[ROWS(equal_pairs)];
  for (size_t i = 0; i < ROWS(equal_pairs); i++)
    gaps[i] = full(equal_pairs[i][0], equal_pairs[i][1], 1).gap_percent;
  ck_assert_double_eq_tol(loss_floor(gaps, ROWS(equal_pairs)), FLOOR, 0.001);
  ck_assert(isnan(loss_floor(gaps, 1)));
}
END_TEST

/* Printing with four decimals changes nothing, one decimal takes the power away. */
START_TEST(printed_decimals) {
  struct curve a = curve_read(B200_CURVES, "bf16_0"), b = curve_read(B200_CURVES, "mxfp8_0");
  struct loss_settings settings = {.margin_percent = 0.25, .floor_percent = FLOOR};
  struct loss_pair exact, four, one;
  loss_compare(a.points, a.count, b.points, b.count, &settings, &exact, NULL);
  for (int decimals = 4; decimals >= 1; decimals -= 3) {
    double scale = pow(10, decimals);
    for (size_t i = 0; i < a.count; i++)
      a.points[i].loss = round(a.points[i].loss * scale) / scale, b.points[i].loss = round(b.points[i].loss * scale) / scale;
    loss_compare(a.points, a.count, b.points, b.count, &settings, decimals == 4 ? &four : &one, NULL);
  }
  ck_assert_double_eq_tol(four.gap_percent, exact.gap_percent, 0.001);
  ck_assert_double_eq_tol(four.half_width_percent, exact.half_width_percent, 0.001);
  ck_assert(four.verdict == LOSS_WORSE && one.error_percent > 2 * exact.error_percent);
  free(a.points);
  free(b.points);
}
END_TEST

/* Means over ten steps, as many trainers print them, keep the data's noise and the answer. */
START_TEST(means_over_ten_steps) {
  struct curve curves[2] = {curve_read(B200_CURVES, "bf16_0"), curve_read(B200_CURVES, "nvfp4_0")};
  for (size_t k = 0; k < 2; k++) {
    for (size_t i = 0; i < 80; i++) {
      double sum = 0;
      for (size_t j = 0; j < 10; j++)
        sum += curves[k].points[i * 10 + j].loss;
      curves[k].points[i] =
          (struct compare_point){.step = (int64_t)(i + 1) * 10, .loss = sum / 10, .grad_norm = NAN, .t_s = NAN};
    }
  }
  struct loss_settings settings = {.margin_percent = 1, .floor_percent = FLOOR};
  struct loss_pair pair;
  loss_compare(curves[0].points, 80, curves[1].points, 80, &settings, &pair, NULL);
  is(&pair, "means of nvfp4_0", LOSS_WORSE, LOSS_BY_INTERVAL);
  ck_assert(isnan(pair.start_percent) && !pair.start_differs && pair.correlation_early > 0.9);
  free(curves[0].points);
  free(curves[1].points);
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(another_order_of_the_data_is_not_comparable) \
  X(another_start_is_not_equivalent) \
  X(another_configuration_is_not_equivalent) \
  X(nan_comes_before_the_short_overlap) \
  X(far_and_rising_is_diverged) \
  X(the_better_one_is_better) \
  X(a_curve_against_itself_is_identical) \
  X(a_prefix_is_equivalent_at_its_steps) \
  X(prefixes_of_equal_runs) \
  X(prefixes_of_recipes_are_never_invalid) \
  X(the_floor_of_the_equal_pairs) \
  X(printed_decimals) \
  X(means_over_ten_steps)
/* clang-format on */

int main(void) {
  Suite *suite = suite_create("compare_curves");
  TCase *tcase = tcase_create("all");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, true_answers, 0, (int)ROWS(answers));
  CASES(UNIT_ADD)
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
