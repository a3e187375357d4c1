/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/decode.h"
#include "interpose/record/json.h"
#include "interpose/record/reader.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
  const char *type, *name, *kind;
} fields[] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) {#type, #name, #kind},
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
};

static const struct {
  const char *name;
  int type;
} records[] = {
#define B200_RECORD(type, help) {#type, B200_RECORD_##type},
#define B200_FIELD(type, name, kind, help)
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* A value of the field's kind, different for each field. */
static json_t *value_of(size_t field) {
  char text[16];
  snprintf(text, sizeof(text), "text%zu", field);
  if (strcmp(fields[field].kind, "INT") == 0)
    return json_integer((json_int_t)field + 1000);
  if (strcmp(fields[field].kind, "REAL") == 0)
    return json_real((double)field + 0.5);
  return strcmp(fields[field].kind, "TEXT") == 0 ? json_string(text) : json_pack("{si}", "n", (int)field);
}

static void check_member(size_t field, const struct b200_log_line *line) {
  static const struct {
    const char *type, *name;
    size_t offset;
  } members[] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) {#type, #name, offsetof(struct b200_log_line, type##_##name)},
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
  };
  const char *member = (const char *)line + members[field].offset;
  json_t *expected = value_of(field);
  if (json_is_integer(expected))
    ck_assert_int_eq(*(const int64_t *)member, json_integer_value(expected));
  else if (json_is_real(expected))
    ck_assert_double_eq(*(const double *)member, json_real_value(expected));
  else if (json_is_string(expected))
    ck_assert_str_eq(*(const char *const *)member, json_string_value(expected));
  else
    ck_assert(json_equal(*(json_t *const *)member, expected));
  json_decref(expected);
}

/* Every field of every line type of record.def arrives where it belongs, and no known field is called unknown. */
START_TEST(knows_every_field) {
  struct b200_log_line line;
  const char *unknown;
  json_t *object = json_pack("{ss}", "t", records[_i].name);
  for (size_t i = 0; i < COUNT(fields); i++)
    if (strcmp(fields[i].type, records[_i].name) == 0)
      json_object_set_new(object, fields[i].name, value_of(i));
  ck_assert_int_eq(b200_log_line_decode(object, &line, &unknown), records[_i].type);
  ck_assert_ptr_null(unknown);
  for (size_t i = 0; i < COUNT(fields); i++)
    if (strcmp(fields[i].type, records[_i].name) == 0)
      check_member(i, &line);
  json_object_set_new(object, "not_in_the_table", json_true());
  b200_log_line_decode(object, &line, &unknown);
  ck_assert_str_eq(unknown, "not_in_the_table");
  json_decref(object);
}
END_TEST

/* ---- whole files */

static char path[] = "reader-XXXXXX.jsonl";

static void read_text(const char *text, struct b200_logs *logs) {
  strcpy(path, "reader-XXXXXX.jsonl");
  int file = mkstemps(path, 6);
  ck_assert_int_ge(file, 0);
  ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
  close(file);
  ck_assert_int_eq(b200_logs_read(path, logs), 0);
  unlink(path);
}

#define HEADER "{\"t\":\"header\",\"format\":1,\"producer\":\"b200opt 0\",\"run\":\"r\",\"rank\":0}\n"
#define GEMM "{\"t\":\"gemm\",\"role\":\"fprop\",\"m\":2,\"n\":3,\"k\":4,\"batch\":1,\"calls\":5,\"flops\":240}\n"

START_TEST(adds_lines_up) {
  struct b200_logs logs;
  read_text(HEADER GEMM GEMM
            "{\"t\":\"gemm\",\"role\":\"fprop\",\"m\":2,\"n\":3,\"k\":5,\"batch\":1,\"calls\":1,\"flops\":60}\n"
            "{\"t\":\"alloc\",\"owner\":\"nccl\",\"current\":9,\"peak\":9,\"allocs\":2,\"frees\":0,\"failed\":0}\n"
            "{\"t\":\"alloc\",\"owner\":\"nccl\",\"current\":4,\"peak\":9,\"allocs\":1,\"frees\":2,\"failed\":1}\n"
            "{\"t\":\"end\",\"t_ns\":1}\n",
            &logs);
  ck_assert_uint_eq(logs.log_count, 1);
  ck_assert_uint_eq(logs.note_count, 0);
  const struct b200_log *log = &logs.logs[0];
  ck_assert(!log->partial);
  ck_assert_uint_eq(log->gemm_count, 2);
  ck_assert_int_eq(log->gemms[0].calls, 10);
  ck_assert_int_eq(log->gemms[0].flops, 480);
  ck_assert_int_eq(log->allocs[0].current, 4);
  ck_assert_int_eq(log->allocs[0].peak, 9);
  ck_assert_int_eq(log->allocs[0].allocs, 3);
  ck_assert_int_eq(log->allocs[0].frees, 2);
  ck_assert_int_eq(log->allocs[0].failed, 1);
  b200_logs_free(&logs);
}
END_TEST

/* A log cut off at any byte is read without a complaint, partial, and right about its whole lines. */
START_TEST(reads_a_log_cut_anywhere) {
  static const char text[] = HEADER GEMM GEMM "{\"t\":\"end\",\"t_ns\":1}\n";
  for (size_t length = strlen(HEADER); length < strlen(text) - 1; length++) {
    struct b200_logs logs;
    char *cut = b200_format("%.*s", (int)length, text);
    read_text(cut, &logs);
    ck_assert_uint_eq(logs.note_count, 0);
    ck_assert(logs.logs[0].partial);
    /* a line whose brace is there counts, its newline is not needed */
    int whole = (length >= strlen(HEADER GEMM) - 1) + (length >= strlen(HEADER GEMM GEMM) - 1);
    ck_assert_uint_eq(logs.logs[0].gemm_count, (unsigned)(whole > 0));
    if (whole)
      ck_assert_int_eq(logs.logs[0].gemms[0].calls, 5 * whole);
    b200_logs_free(&logs);
    free(cut);
  }
}
END_TEST

#define STEP(gen, step, period)                                                                                             \
  "{\"t\":\"step\",\"gen\":" #gen ",\"step\":" #step ",\"source\":\"coll\",\"period\":" #period ",\"dur_ns\":1}\n"

START_TEST(keeps_the_generation_that_covers_most) {
  struct b200_logs logs;
  read_text(HEADER STEP(0, 0, 3) STEP(0, 1, 3) STEP(0, 2, 3) STEP(1, 0, 9) STEP(1, 1, 9), &logs);
  ck_assert_uint_eq(logs.logs[0].step_count, 2);
  ck_assert_int_eq(logs.logs[0].steps[0].gen, 1);
  ck_assert_int_eq(logs.logs[0].steps[1].step, 1);
  b200_logs_free(&logs);
}
END_TEST

START_TEST(notes_once_per_kind) {
  struct b200_logs logs;
  read_text(HEADER "x\ny\n[1]\n{\"t\":\"new\"}\n{\"t\":\"newer\"}\n{\"t\":\"warn\",\"text\":\"w\",\"more\":1}\n", &logs);
  ck_assert_uint_eq(logs.note_count, 3);
  char *expected = b200_format("%s:2: not a JSON object; the line is skipped", path);
  ck_assert_str_eq(logs.notes[0], expected);
  ck_assert_uint_eq(logs.logs[0].warning_count, 1);
  free(expected);
  b200_logs_free(&logs);
}
END_TEST

START_TEST(keeps_losses_that_are_no_numbers) {
  struct b200_logs logs;
  read_text(HEADER "{\"t\":\"loss\",\"step\":1,\"loss\":\"nan\"}\n{\"t\":\"loss\",\"step\":2,\"loss\":\"-inf\"}\n"
                   "{\"t\":\"loss\",\"step\":3,\"loss\":2}\n{\"t\":\"loss\",\"step\":3,\"loss\":2.5}\n",
            &logs);
  ck_assert_uint_eq(logs.logs[0].loss_count, 3);
  ck_assert(isnan(logs.logs[0].losses[0].loss));
  ck_assert(isinf(logs.logs[0].losses[1].loss));
  ck_assert_double_eq(logs.logs[0].losses[2].loss, 2.5);
  b200_logs_free(&logs);
}
END_TEST

/* Numbers and sums beyond int64_t stay at its bounds. */
START_TEST(bounds_numbers) {
  struct b200_logs logs;
  read_text(HEADER "{\"t\":\"call\",\"name\":\"f\",\"calls\":9223372036854775807,\"errors\":1e300,\"bytes\":-1e300}\n"
                   "{\"t\":\"call\",\"name\":\"f\",\"calls\":9,\"errors\":-1,\"bytes\":-1}\n",
            &logs);
  ck_assert_int_eq(logs.logs[0].calls[0].calls, INT64_MAX);
  ck_assert_int_eq(logs.logs[0].calls[0].errors, INT64_MAX - 1);
  ck_assert_int_eq(logs.logs[0].calls[0].bytes, INT64_MIN);
  b200_logs_free(&logs);
}
END_TEST

START_TEST(adds_equal_stacks_up) {
  struct b200_logs logs;
  read_text(
      HEADER
      "{\"t\":\"stack\",\"owner\":\"a\",\"frames\":\"x y\",\"bytes\":1}\n"
      "{\"t\":\"stack\",\"owner\":\"b\",\"frames\":\"x y\",\"bytes\":2}\n"
      "{\"t\":\"stack\",\"owner\":\"a\",\"frames\":\"x y\",\"bytes\":4}\n"
      "{\"t\":\"warn\",\"text\":\"w\"}\n{\"t\":\"drop\",\"what\":\"w\",\"count\":3}\n{\"t\":\"warn\",\"text\":\"w\"}\n",
      &logs);
  ck_assert_uint_eq(logs.logs[0].stack_count, 2);
  ck_assert_int_eq(logs.logs[0].stacks[0].count, 2);
  ck_assert_int_eq(logs.logs[0].stacks[0].bytes, 5);
  ck_assert_str_eq(logs.logs[0].stacks[1].owner, "b");
  ck_assert_uint_eq(logs.logs[0].warning_count, 1);
  ck_assert_int_eq(logs.logs[0].warnings[0].count, 2);
  ck_assert_int_eq(logs.logs[0].drops[0].count, 3);
  b200_logs_free(&logs);
}
END_TEST

START_TEST(says_when_a_folder_is_missing) {
  struct b200_logs logs;
  ck_assert_int_ne(b200_logs_read("no/such/folder", &logs), 0);
  ck_assert_uint_eq(logs.log_count, 0);
  b200_logs_free(&logs);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("reader");
  TCase *tests = tcase_create("all");
  tcase_add_loop_test(tests, knows_every_field, 0, (int)COUNT(records));
  tcase_add_test(tests, adds_lines_up);
  tcase_add_test(tests, reads_a_log_cut_anywhere);
  tcase_add_test(tests, keeps_the_generation_that_covers_most);
  tcase_add_test(tests, notes_once_per_kind);
  tcase_add_test(tests, keeps_losses_that_are_no_numbers);
  tcase_add_test(tests, bounds_numbers);
  tcase_add_test(tests, adds_equal_stacks_up);
  tcase_add_test(tests, says_when_a_folder_is_missing);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
