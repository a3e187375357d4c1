/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner: the same tokens whatever pieces the text comes in, what it takes and what it refuses; decimals. */
#include "tools/kineto/classify.h"
#include "tools/kineto/scan.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct source {
  const char *text;
  size_t left, piece;
};

static ptrdiff_t read_piece(void *from, void *to, size_t room) {
  struct source *source = from;
  size_t size = source->left < source->piece ? source->left : source->piece;
  size = size < room ? size : room;
  memcpy(to, source->text, size);
  source->text += size;
  source->left -= size;
  return (ptrdiff_t)size;
}

static struct kineto_scan scan;

/* What is in an object or an array, as "key=", "text", and brackets; with `skip` the values of keys that begin with s are
   passed over. */
static void tell(char *told, size_t room, enum kineto_token container, bool skip) {
  for (;;) {
    size_t used = strlen(told);
    enum kineto_token token = container == KINETO_OBJECT ? kineto_scan_key(&scan) : kineto_scan_value(&scan);
    if (container == KINETO_OBJECT && token == KINETO_STRING) {
      bool pass = skip && scan.text[0] == 's';
      used += (size_t)snprintf(told + used, room - used, "%s=", scan.text);
      if (pass) {
        kineto_scan_skip(&scan);
        continue;
      }
      token = kineto_scan_value(&scan);
    }
    switch (token) {
    case KINETO_STRING:
      snprintf(told + used, room - used, "\"%s\" ", scan.text);
      break;
    case KINETO_SCALAR:
      snprintf(told + used, room - used, "%s ", scan.text);
      break;
    case KINETO_OBJECT:
    case KINETO_ARRAY:
      snprintf(told + used, room - used, token == KINETO_OBJECT ? "{ " : "[ ");
      tell(told, room, token, skip);
      break;
    case KINETO_OBJECT_END:
    case KINETO_ARRAY_END:
      snprintf(told + used, room - used, token == KINETO_OBJECT_END ? "} " : "] ");
      return;
    case KINETO_END:
    case KINETO_BROKEN:
      return;
    }
    if (scan.error)
      return;
  }
}

static const char *told_of(const char *text, size_t piece, bool skip) {
  static char told[20000];
  struct source source = {text, strlen(text), piece};
  kineto_scan_start(&scan, read_piece, &source);
  told[0] = '\0';
  tell(told, sizeof(told), KINETO_ARRAY, skip);
  return scan.error ? scan.error : told;
}

static const struct {
  const char *text, *told, *skipped; /* `skipped` NULL: as `told` */
} texts[] = {
    {"{}", "{ } ", NULL},
    {" [ ] ", "[ ] ", NULL},
    {"{\"a\":1,\"b\":[1,-2.5e3,true,null,NaN,-Infinity,N/A]}", "{ a=1 b=[ 1 -2.5e3 true null NaN -Infinity N/A ] } ", NULL},
    {"{\"s\":{\"x\":[\"]}\",{\"\\\"\":\"\\\\\"}]},\"t\":1}", "{ s={ x=[ \"]}\" { \"=\"\\\" } ] } t=1 } ", "{ s=t=1 } "},
    {"{\"s\":\"a\\\\\",\"s2\":17,\"s3\":[],\"t\":\"\"}", "{ s=\"a\\\" s2=17 s3=[ ] t=\"\" } ", "{ s=s2=s3=t=\"\" } "},
    {"{\"a\"\n :\t\"\\n\\t\\/\\u0041\\u00e9\\u20AC\"}", "{ a=\"\n\t/A\xc3\xa9\xe2\x82\xac\" } ", NULL},
    {"{\"bad \\N \\q \\uZ \\u12\":1}", "{ bad N q ?Z \x12=1 } ", NULL},
    {"[\"\x01\x1f\xff\",\"tab\t\"]", "[ \"\x01\x1f\xff\" \"tab\t\" ] ", NULL},
    {"[1 2,,3,]", "[ 1 2 3 ] ", NULL},
    {"", "it ends early", NULL},
    {"{\"a\":", "it ends early", NULL},
    {"{\"a\"", "it ends early", NULL},
    {"{\"a", "it ends early", NULL},
    {"{\"a\\", "it ends early", NULL},
    {"{\"s\":[[\"", "it ends early", NULL},
    {"{\"s\":\"\\", "it ends early", NULL},
    {"[1", "it ends early", NULL},
    {"[}", "a bracket has no partner", NULL},
    {"{\"s\":[}]}", "a bracket has no partner", NULL},
    {"]", "a bracket has no partner", NULL},
    {"{\"a\" 1}", "a key has no value", NULL},
    {"{1:2}", "an object has something else than a key", NULL},
    {"[:]", "it is not JSON", NULL},
};

START_TEST(tokens_are_the_same_in_any_pieces) {
  for (size_t piece = 1; piece < 64; piece++) {
    ck_assert_str_eq(told_of(texts[_i].text, piece, false), texts[_i].told);
    ck_assert_str_eq(told_of(texts[_i].text, piece, true), texts[_i].skipped ? texts[_i].skipped : texts[_i].told);
  }
}
END_TEST

START_TEST(texts_longer_than_what_is_kept_are_cut) {
  char text[3 * KINETO_TEXT_MAX + 16] = "[\"";
  memset(text + 2, 'x', 3 * KINETO_TEXT_MAX);
  strcpy(text + 2 + 3 * KINETO_TEXT_MAX, "\",7]");
  for (size_t piece = 1; piece < sizeof(text) + 100; piece += 613) {
    struct source source = {text, strlen(text), piece};
    kineto_scan_start(&scan, read_piece, &source);
    ck_assert_int_eq(kineto_scan_value(&scan), KINETO_ARRAY);
    ck_assert_int_eq(kineto_scan_value(&scan), KINETO_STRING);
    ck_assert_uint_eq(scan.length, KINETO_TEXT_MAX);
    ck_assert_uint_eq(strlen(scan.text), KINETO_TEXT_MAX);
    ck_assert_int_eq(kineto_scan_value(&scan), KINETO_SCALAR);
    ck_assert_str_eq(scan.text, "7");
    ck_assert_int_eq(kineto_scan_value(&scan), KINETO_ARRAY_END);
    ck_assert_int_eq(kineto_scan_value(&scan), KINETO_END);
    ck_assert_uint_eq(kineto_scan_offset(&scan), strlen(text));
  }
}
END_TEST

/* Texts around the end of the scanner's window, at every place. */
START_TEST(the_window_has_no_seam) {
  static char text[2 * KINETO_WINDOW_BYTES + 64];
  static const char tail[] = "{\"key\" : \"value\",\"s\":\"\\\"\",\"n\":12.5}]";
  for (size_t before = KINETO_WINDOW_BYTES - sizeof(tail) - 2; before < KINETO_WINDOW_BYTES + 2; before++) {
    text[0] = '[';
    memset(text + 1, ' ', before);
    strcpy(text + 1 + before, tail);
    ck_assert_str_eq(told_of(text, SIZE_MAX, false), "[ { key=\"value\" s=\"\"\" n=12.5 } ] ");
    ck_assert_str_eq(told_of(text, SIZE_MAX, true), "[ { key=\"value\" s=n=12.5 } ] ");
  }
}
END_TEST

START_TEST(depth_is_bounded) {
  char text[2 * KINETO_DEPTH_MAX + 2] = "";
  memset(text, '[', KINETO_DEPTH_MAX + 1);
  for (int pass = 0; pass < 2; pass++) {
    struct source source = {text, strlen(text), 7};
    kineto_scan_start(&scan, read_piece, &source);
    ck_assert(!kineto_scan_skip(&scan));
    ck_assert_str_eq(scan.error, pass ? "it ends early" : "it is nested too deep");
    ck_assert(!kineto_scan_skip(&scan));
    ck_assert_int_eq(kineto_scan_value(&scan), KINETO_BROKEN);
    text[KINETO_DEPTH_MAX] = '\0';
  }
}
END_TEST

static ptrdiff_t read_error(void *from, void *to, size_t room) {
  (void)from, (void)to, (void)room;
  return -1;
}

START_TEST(read_errors_are_errors) {
  kineto_scan_start(&scan, read_error, NULL);
  ck_assert_int_eq(kineto_scan_value(&scan), KINETO_BROKEN);
  ck_assert_str_eq(scan.error, "it cannot be read any further");
}
END_TEST

static const struct {
  const char *text;
  int shift;
  bool is_number;
  int64_t value;
} decimals[] = {
    {"0", 3, true, 0},
    {"-0", 0, true, 0},
    {"1.234", 3, true, 1234},
    {"1700000000000000.001", 3, true, INT64_C(1700000000000000001)},
    {"1.0004999999999999999999999999", 3, true, 1000},
    {"1.0005", 3, true, 1001},
    {"-1.0005", 3, true, -1001},
    {"1.5e3", 3, true, 1500000},
    {"1234.5E-3", 3, true, 1235}, /* half away from zero: 1234.5 */
    {"15e-1", 0, true, 2},
    {"0.00049", 3, true, 0},
    {"4e-4", 3, true, 0},
    {"5e-4", 3, true, 1},
    {"5e-5", 3, true, 0},
    {"4000000000000000", 3, true, KINETO_VALUE_MAX},
    {"4000000000000000.001", 3, false, 0},
    {"4000000000000000001", 0, false, 0},
    {"9223372036854775808", 0, false, 0},
    {"99999999999999999999999999", 0, false, 0},
    {"1e18", 0, true, INT64_C(1000000000000000000)},
    {"1e400", 0, false, 0},
    {"0e400", 0, true, 0},
    {"0e401", 0, false, 0},
    {"1e-400", 0, true, 0},
    {"", 0, false, 0},
    {"-", 0, false, 0},
    {".", 0, false, 0},
    {"e5", 0, false, 0},
    {"1e", 0, false, 0},
    {"1.2.3", 0, false, 0},
    {"NaN", 0, false, 0},
    {"1x", 0, false, 0},
};

START_TEST(decimals_are_rounded_once) {
  int64_t value = 77;
  ck_assert_int_eq(kineto_decimal(decimals[_i].text, decimals[_i].shift, &value), decimals[_i].is_number);
  ck_assert_int_eq(value, decimals[_i].is_number ? decimals[_i].value : 77);
}
END_TEST

/* Every whole nanosecond that is written with three decimals comes back. */
START_TEST(nanoseconds_come_back) {
  uint64_t state = 1;
  for (int i = 0; i < 100000; i++) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    int64_t wanted = (int64_t)(state % KINETO_VALUE_MAX) >> (i % 60), value = -1;
    char text[40];
    snprintf(text, sizeof(text), "%" PRId64 ".%03d", wanted / 1000, (int)(wanted % 1000));
    if (!kineto_decimal(text, 3, &value) || value != wanted) /* Check is slow at a success */
      ck_abort_msg("%s is read as %" PRId64, text, value);
  }
}
END_TEST

static const struct {
  enum kineto_category category;
  const char *name, *collective;
  enum kineto_class class, hta;
} classes[] = {
    {KINETO_CATEGORY_KERNEL, "ncclDevKernel_AllGather_RING_LL(x)", "", KINETO_COMMUNICATION, KINETO_COMMUNICATION},
    {KINETO_CATEGORY_KERNEL, "ncclKernel_AllReduce_RING_LL_Sum_float(x)", "", KINETO_COMMUNICATION, KINETO_COMMUNICATION},
    {KINETO_CATEGORY_KERNEL, "void multimem_all_reduce_kernel<4>()", "", KINETO_COMMUNICATION, KINETO_COMPUTE},
    {KINETO_CATEGORY_KERNEL, "some kernel of a backend", "allreduce", KINETO_COMMUNICATION, KINETO_COMPUTE},
    {KINETO_CATEGORY_KERNEL, "void at::native::batch_norm_SyncKernel()", "", KINETO_COMPUTE, KINETO_OTHER},
    {KINETO_CATEGORY_KERNEL, "copyMemcpyLike", "", KINETO_COMPUTE, KINETO_OTHER},
    {KINETO_CATEGORY_KERNEL, "ncclInit", "", KINETO_COMPUTE, KINETO_COMPUTE},
    {KINETO_CATEGORY_KERNEL, "dma_kernel", "", KINETO_COMPUTE, KINETO_MEMORY},
    {KINETO_CATEGORY_MEMORY, "Memcpy DtoD (Device -> Device)", "", KINETO_MEMORY, KINETO_MEMORY},
    {KINETO_CATEGORY_MEMORY, "Memset (Device)", "", KINETO_MEMORY, KINETO_MEMORY},
};

START_TEST(classes_of_operations) {
  ck_assert_int_eq(kineto_class(classes[_i].category, classes[_i].name, classes[_i].collective), classes[_i].class);
  ck_assert_int_eq(kineto_hta_class(classes[_i].name), classes[_i].hta);
}
END_TEST

START_TEST(kinds_and_their_bandwidth) {
  bool out;
  ck_assert_str_eq(kineto_kind("_allgather_base", "ncclDevKernel_SendRecv"), "AllGather");
  ck_assert_str_eq(kineto_kind("", "ncclDevKernel_ReduceScatter_Sum_bf16"), "ReduceScatter");
  ck_assert_str_eq(kineto_kind("", "ncclDevKernel_Generic_1"), "other");
  ck_assert_str_eq(kineto_kind("my_own", "ncclDevKernel_AllReduce"), "my_own");
  ck_assert_str_eq(kineto_kind("___", ""), "other");
  ck_assert(kineto_bus_factor("AllReduce", 8, &out) == 1.75 && !out);
  ck_assert(kineto_bus_factor("AllGather", 8, &out) == 0.875 && out);
  ck_assert(kineto_bus_factor("AllGather", 0, &out) == 0);
  ck_assert(kineto_bus_factor("Barrier", 8, &out) == 0);
  ck_assert_int_eq(kineto_element_bytes("BFloat16"), 2);
  ck_assert_int_eq(kineto_element_bytes("Float8_e4m3fn"), 1);
  ck_assert_int_eq(kineto_element_bytes("Float"), 4);
  ck_assert_int_eq(kineto_element_bytes("?"), 0);
}
END_TEST

#define ROWS(table) (int)(sizeof(table) / sizeof(*(table)))

int main(void) {
  Suite *suite = suite_create("kineto_scan");
  TCase *scanner = tcase_create("scanner"), *numbers = tcase_create("numbers"), *names = tcase_create("names");
  tcase_add_loop_test(scanner, tokens_are_the_same_in_any_pieces, 0, ROWS(texts));
  tcase_add_test(scanner, texts_longer_than_what_is_kept_are_cut);
  tcase_add_test(scanner, the_window_has_no_seam);
  tcase_add_test(scanner, depth_is_bounded);
  tcase_add_test(scanner, read_errors_are_errors);
  tcase_add_loop_test(numbers, decimals_are_rounded_once, 0, ROWS(decimals));
  tcase_add_test(numbers, nanoseconds_come_back);
  tcase_add_loop_test(names, classes_of_operations, 0, ROWS(classes));
  tcase_add_test(names, kinds_and_their_bandwidth);
  suite_add_tcase(suite, scanner);
  suite_add_tcase(suite, numbers);
  suite_add_tcase(suite, names);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
