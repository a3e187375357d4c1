/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner of log lines equals jansson: on a line of every type, on real logs, and on both mutilated. */
#include "interpose/record/json.h"
#include "tests/report_overlap/same_line.h"

#include <check.h>
#include <stdio.h>

static const struct {
  int type, field;
  enum member_kind kind;
} fields[] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) {B200_RECORD_##type, B200_FIELD_##type##_##name, MEMBER_##kind},
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
};

/* A line of the type as the library writes it; odd: with values at the edge of what the scanner takes. */
static void write_line(struct b200_line *line, int type, bool odd) {
  b200_line_begin(line, (enum b200_record_type)type);
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
    enum b200_field field = (enum b200_field)fields[i].field;
    if (fields[i].type != type)
      continue;
    if (fields[i].kind == MEMBER_INT) {
      b200_line_int(line, field, odd ? -999999999999999999 : (int64_t)i);
    } else if (fields[i].kind == MEMBER_REAL) {
      b200_line_real(line, field, odd ? -0.1 : 2);
    } else if (fields[i].kind == MEMBER_TEXT) {
      b200_line_text(line, field, odd ? "" : "a text; with } , : in it");
    } else {
      b200_line_object(line, field);
      b200_line_member_uint(line, "pytorch", i);
      if (!odd)
        b200_line_member_uint(line, "nccl", 0);
      b200_line_object_end(line);
    }
  }
  b200_line_end(line);
}

/* Headers are jansson's; all else is taken. */
START_TEST(takes_every_type) {
  struct b200_line line;
  bool taken;
  for (int odd = 0; odd < 2; odd++) {
    write_line(&line, _i, odd);
    ck_assert_msg(scans_like_jansson(line.text, line.length, &taken), "%.*s", (int)line.length, line.text);
    ck_assert_int_eq(taken, _i != B200_RECORD_header);
    ck_assert(scans_like_jansson(line.text, line.length - 1, &taken)); /* the last line of a killed process */
    ck_assert_int_eq(taken, _i != B200_RECORD_header);
  }
}
END_TEST

/* Every single byte replaced, left out or doubled; cut at every length. */
START_TEST(agrees_on_mutilated_lines) {
  static const char nasty[] = {'\0', '\n', ' ', '"', '\\', '{', '}', '[',    ',',   ':',
                               '-',  '+',  '.', '0', '9',  'e', 't', '\x7f', '\x80'};
  struct b200_line line;
  char text[B200_LINE_BYTES + 1];
  bool taken;
  write_line(&line, _i, false);
  for (size_t i = 0; i < line.length; i++) {
    ck_assert(scans_like_jansson(line.text, i, &taken));
    for (size_t j = 0; j < sizeof(nasty); j++) {
      memcpy(text, line.text, line.length);
      text[i] = nasty[j];
      ck_assert_msg(scans_like_jansson(text, line.length, &taken), "%.*s", (int)line.length, text);
    }
    memcpy(text, line.text, i);
    memcpy(text + i, line.text + i + 1, line.length - i - 1);
    ck_assert_msg(scans_like_jansson(text, line.length - 1, &taken), "%.*s", (int)line.length - 1, text);
    memcpy(text, line.text, i + 1);
    memcpy(text + i + 1, line.text + i, line.length - i);
    ck_assert_msg(scans_like_jansson(text, line.length + 1, &taken), "%.*s", (int)line.length + 1, text);
  }
}
END_TEST

START_TEST(leaves_the_unusual_to_jansson) {
  static const char *const lines[] = {
      "{\"t\":\"end\",\"t_ns\":1,\"t_ns\":1}",        /* twice */
      "{\"t\":\"end\",\"t\":\"end\",\"t_ns\":1}",     /* the type twice */
      "{\"t_ns\":1,\"t\":\"end\"}",                   /* the type not first */
      "{\"t\":\"end\",\"t_ns\":1.0}",                 /* a fraction for a count */
      "{\"t\":\"end\",\"t_ns\":1e3}",                 /* an exponent */
      "{\"t\":\"end\",\"t_ns\":01}",                  /* no JSON */
      "{\"t\":\"end\",\"t_ns\":-}",                   /* no JSON */
      "{\"t\":\"end\",\"t_ns\":9223372036854775808}", /* beyond int64_t */
      "{\"t\":\"end\",\"t_ns\":1000000000000000000}", /* 19 digits */
      "{\"t\":\"end\",\"t_ns\":\"1\"}",               /* a text for a count */
      "{\"t\":\"end\",\"t_ns\":null}",                /* null */
      "{\"t\":\"end\",\"new\":1}",                    /* a field that is not known */
      "{\"t\":\"what\"}",                             /* a type that is not known */
      "{\"t\":\"warn\",\"text\":\"a\\nb\"}",          /* an escape */
      "{\"t\":\"warn\",\"text\":\"\xc3\xa4\"}",       /* no ASCII */
      "{\"t\":\"step\",\"hbm\":{\"a\":1,\"a\":2}}",   /* twice in an object */
      "{\"t\":\"step\",\"hbm\":{\"a\":1,}}",          /* no JSON */
      "{\"t\":\"step\",\"hbm\":{\"a\":{}}}",          /* deeper */
      "{\"t\":\"end\",\"t_ns\":1} ",
      "{\"t\":\"end\",\"t_ns\":1}\n\n",
      "{\"t\":\"end\",\"t_ns\":1}}",
      "{\"t\":\"end\",}",
      "{\"t\":\"header\"}",
      "{\"t\":",
      "",
      "\n",
  };
  bool taken;
  for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
    ck_assert_msg(scans_like_jansson(lines[i], strlen(lines[i]), &taken), "%s", lines[i]);
    ck_assert_msg(!taken, "%s", lines[i]);
  }
  ck_assert(scans_like_jansson("{\"t\":\"end\"}", 11, &taken) && taken);
  ck_assert(scans_like_jansson("{\"t\":\"step\",\"hbm\":{}}", 21, &taken) && taken);
  ck_assert(scans_like_jansson("{\"t\":\"end\",\"t_ns\":-0}", 21, &taken) && taken);
}
END_TEST

START_TEST(reads_numbers_as_jansson_does) {
  static const struct {
    const char *text;
    bool taken;
  } numbers[] = {
      {"2.25", true},
      {"-0.0", true},
      {"-0", true},
      {"4.0551867499999998", true},
      {"1e-320", true},
      {"1.5E+05", true},
      {"1e5", true},
      {"1e400", false},
      {"1.", false},
      {".5", false},
      {"01.5", false},
      {"1e", false},
      {"-", false},
      {"+1", false},
      {"0x1p3", false},
      {"nan", false},
      {"\"nan\"", false},
      {"99999999999999999999", false},
      {"99999999999999999999.0", true},
  };
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    char line[128];
    bool taken;
    snprintf(line, sizeof(line), "{\"t\":\"loss\",\"step\":1,\"loss\":%s,\"t_ns\":5}", numbers[i].text);
    ck_assert_msg(scans_like_jansson(line, strlen(line), &taken), "%s", line);
    ck_assert_msg(taken == numbers[i].taken, "%s", line);
  }
}
END_TEST

/* An object that is kept from one line to the next is never taken for another one. */
START_TEST(keeps_objects_apart) {
  static const char *const objects[] = {"{\"a\":1}", "{\"a\":1}", "{\"a\":12}", "{\"a\":1,\"b\":2}", "{\"a\":1}",
                                        "{}",        "{}",        "{\"b\":1}",  "{\"a\":1}"};
  struct b200_log_scan scan = {.last = NULL};
  struct b200_log_line line;
  for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
    char text[128];
    int length = snprintf(text, sizeof(text), "{\"t\":\"step\",\"step\":%zu,\"hbm\":%s}", i, objects[i]);
    ck_assert_int_eq(b200_log_line_scan(&scan, text, (size_t)length, &line), B200_RECORD_step);
    json_t *expected = json_loads(objects[i], 0, NULL);
    ck_assert_msg(json_equal(line.step_hbm, expected), "%s", objects[i]);
    json_decref(expected);
  }
  b200_log_scan_free(&scan);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("scan");
  TCase *tests = tcase_create("scan");
  tcase_set_timeout(tests, 120); /* under the sanitizers */
  tcase_add_loop_test(tests, takes_every_type, 0, B200_RECORD_COUNT);
  tcase_add_loop_test(tests, agrees_on_mutilated_lines, 0, B200_RECORD_COUNT);
  tcase_add_test(tests, leaves_the_unusual_to_jansson);
  tcase_add_test(tests, reads_numbers_as_jansson_does);
  tcase_add_test(tests, keeps_objects_apart);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
