/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats: every code of each narrow format, and rounding at and beside every midpoint of two neighbours. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/reference.h"
#include "tools/vnode/standins/number.h"

struct narrow {
  cudaDataType type;
  unsigned codes; /* of either sign */
  float largest;
  float overflow; /* least magnitude that rounds beyond `largest` */
  bool saturates;
};

static const struct narrow narrows[] = {
    {CUDA_R_16F, 0x8000, 65504.0f, 65520.0f, false},
    {CUDA_R_16BF, 0x8000, 0x1.fep127f, 0x1.ffp127f, false},
    {CUDA_R_8F_E4M3, 0x80, 448.0f, 464.0f, true},
    {CUDA_R_8F_E5M2, 0x80, 57344.0f, 61440.0f, true},
};

static float widen(cudaDataType type, unsigned code) {
  uint16_t bits = (uint16_t)code;
  float value;
  vnode_number_widen(&value, &bits, type, 1);
  return value;
}

static unsigned rounded(cudaDataType type, float value) {
  uint16_t bits = 0;
  vnode_number_round(&bits, type, &value, 1);
  return bits;
}

START_TEST(every_code_widens) {
  const struct narrow *narrow = &narrows[_i];
  for (unsigned code = 0; code < 2 * narrow->codes; code++) {
    uint16_t bits = (uint16_t)code;
    double want = reference_load(&bits, narrow->type, 0).re;
    float got = widen(narrow->type, code);
    ck_assert_msg(isnan(want) ? isnan(got) : (double)got == want && !signbit(got) == !signbit(want), "code %x: %g, not %g",
                  code, (double)got, want);
  }
}
END_TEST

START_TEST(every_number_rounds_to_itself) {
  const struct narrow *narrow = &narrows[_i];
  for (unsigned code = 0; code < 2 * narrow->codes; code++) {
    float value = widen(narrow->type, code);
    if (isnan(value))
      ck_assert(isnan(widen(narrow->type, rounded(narrow->type, value))));
    else if (!isinf(value) || !narrow->saturates)
      ck_assert_uint_eq(rounded(narrow->type, value), code);
  }
}
END_TEST

START_TEST(midpoints_round_to_even) {
  const struct narrow *narrow = &narrows[_i];
  for (unsigned code = 0; code + 1 < narrow->codes && widen(narrow->type, code + 1) <= narrow->largest; code++) {
    double low = (double)widen(narrow->type, code), high = (double)widen(narrow->type, code + 1);
    float middle = (float)((low + high) / 2);
    if ((double)middle != (low + high) / 2)
      continue; /* between the two least subnormals of BF16 there is no FP32 number */
    unsigned even = code % 2 == 0 ? code : code + 1;
    ck_assert_uint_eq(rounded(narrow->type, middle), even);
    ck_assert_uint_eq(rounded(narrow->type, -middle), even | narrow->codes);
    ck_assert_uint_eq(rounded(narrow->type, nextafterf(middle, 0)), code);
    ck_assert_uint_eq(rounded(narrow->type, nextafterf(middle, INFINITY)), code + 1);
  }
}
END_TEST

START_TEST(overflow_and_specials) {
  const struct narrow *narrow = &narrows[_i];
  float beyond = widen(narrow->type, rounded(narrow->type, narrow->overflow));
  float below = widen(narrow->type, rounded(narrow->type, nextafterf(narrow->overflow, 0)));
  float infinite = widen(narrow->type, rounded(narrow->type, -INFINITY));
  ck_assert(below == narrow->largest);
  ck_assert(narrow->saturates ? beyond == narrow->largest : isinf(beyond));
  ck_assert(narrow->saturates ? infinite == -narrow->largest : (isinf(infinite) && infinite < 0));
  ck_assert(isnan(widen(narrow->type, rounded(narrow->type, NAN))));
  ck_assert(isnan(widen(narrow->type, rounded(narrow->type, -NAN))));
  ck_assert(widen(narrow->type, rounded(narrow->type, 1e-45f)) == 0 || narrow->type == CUDA_R_16BF);
}
END_TEST

/* The vectorised loops and their tails agree with one element at a time. */
START_TEST(arrays_equal_elements) {
  const struct narrow *narrow = &narrows[_i];
  enum { COUNT = 77 };
  float values[COUNT], back[COUNT];
  unsigned char packed[2 * COUNT];
  for (int i = 0; i < COUNT; i++)
    values[i] = ldexpf((float)(int32_t)(uint32_t)reference_random_bits(), (int)(reference_random_bits() % 60) - 60);
  vnode_number_round(packed, narrow->type, values, COUNT);
  vnode_number_widen(back, packed, narrow->type, COUNT);
  for (int i = 0; i < COUNT; i++) {
    float alone = widen(narrow->type, rounded(narrow->type, values[i]));
    ck_assert_msg(alone == back[i], "element %d: %g, not %g", i, (double)back[i], (double)alone);
  }
}
END_TEST

START_TEST(names_are_those_of_the_log) {
  ck_assert_str_eq(vnode_number_name(CUDA_R_16BF), "bf16");
  ck_assert_str_eq(vnode_number_name(CUDA_R_8F_E5M2), "e5m2");
  ck_assert_str_eq(vnode_number_name(CUDA_R_4F_E2M1), "e2m1");
  ck_assert_str_eq(vnode_number_name(CUDA_C_32F), "other");
  ck_assert_uint_eq(vnode_number_bytes(CUDA_C_64F), 16);
  ck_assert_uint_eq(vnode_number_bytes(CUDA_R_4F_E2M1), 0);
}
END_TEST

/* The low half of a byte first: both operands of a product have it so, and the product cannot tell. */
START_TEST(halves_of_bytes) {
  static const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (unsigned byte = 0; byte < 256; byte++) {
    uint8_t bytes[2] = {0x21, (uint8_t)byte};
    float got[4];
    double element;
    vnode_number_widen(got, bytes, CUDA_R_4F_E2M1, 4);
    ck_assert(got[0] == 0.5f && got[1] == 1.0f);
    for (unsigned half = 0; half < 2; half++) {
      unsigned code = half ? byte >> 4 : byte & 15;
      ck_assert_double_eq(fabs((double)got[2 + half]), magnitudes[code & 7]);
      ck_assert_int_eq(!signbit(got[2 + half]), !(code & 8));
      vnode_number_load(bytes, CUDA_R_4F_E2M1, 2 + half, &element, NULL);
      ck_assert_double_eq(element, (double)got[2 + half]);
    }
  }
}
END_TEST

START_TEST(scales_of_blocks) {
  for (unsigned byte = 0; byte < 256; byte++) {
    float power = vnode_number_ue8m0((uint8_t)byte), number = vnode_number_ue4m3((uint8_t)byte);
    ck_assert(byte == 255 ? isnan(power) : (double)power == ldexp(1, (int)byte - 127));
    uint8_t positive = byte & 127;
    double want = reference_load(&positive, CUDA_R_8F_E4M3, 0).re;
    ck_assert(positive == 127 ? isnan(number) : (double)number == want);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_number");
  TCase *tcase = tcase_create("formats");
  int count = (int)(sizeof narrows / sizeof narrows[0]);
  tcase_add_loop_test(tcase, every_code_widens, 0, count);
  tcase_add_loop_test(tcase, every_number_rounds_to_itself, 0, count);
  tcase_add_loop_test(tcase, midpoints_round_to_even, 0, count);
  tcase_add_loop_test(tcase, overflow_and_specials, 0, count);
  tcase_add_loop_test(tcase, arrays_equal_elements, 0, count);
  tcase_add_test(tcase, names_are_those_of_the_log);
  tcase_add_test(tcase, halves_of_bytes);
  tcase_add_test(tcase, scales_of_blocks);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
