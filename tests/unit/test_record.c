/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/json.h"
#include "interpose/record/tally.h"
#include "interpose/record/writer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "unit.h"

START_TEST(a_line_is_json) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_loss);
  b200_line_int(&line, B200_FIELD_loss_step, -3);
  b200_line_real(&line, B200_FIELD_loss_loss, 0.1);
  b200_line_real(&line, B200_FIELD_loss_tokens_per_s, NAN);
  b200_line_uint(&line, B200_FIELD_loss_t_ns, UINT64_MAX);
  b200_line_end(&line);
  line.text[line.length] = '\0';
  ck_assert_str_eq(line.text, "{\"t\":\"loss\",\"step\":-3,\"loss\":0.10000000000000001,\"tokens_per_s\":\"nan\","
                              "\"t_ns\":18446744073709551615}\n");
}
END_TEST

START_TEST(text_is_escaped_and_ascii) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_warn);
  b200_line_text(&line, B200_FIELD_warn_text, "a\"b\\c\n\x01\xc3\xa9");
  b200_line_end(&line);
  line.text[line.length] = '\0';
  ck_assert_str_eq(line.text, "{\"t\":\"warn\",\"text\":\"a\\\"b\\\\c\\u000a\\u0001\\u00c3\\u00a9\"}\n");
}
END_TEST

START_TEST(objects_nest_once) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_step);
  b200_line_object(&line, B200_FIELD_step_hbm);
  b200_line_member_uint(&line, "nccl", 5);
  b200_line_member_text(&line, "x=y", 1, "z");
  b200_line_object_end(&line);
  b200_line_int(&line, B200_FIELD_step_hbm_used, 9);
  b200_line_object(&line, B200_FIELD_step_hbm);
  b200_line_end(&line); /* closes what is open */
  line.text[line.length] = '\0';
  ck_assert_str_eq(line.text, "{\"t\":\"step\",\"hbm\":{\"nccl\":5,\"x\":\"z\"},\"hbm_used\":9,\"hbm\":{}}\n");
}
END_TEST

START_TEST(a_line_never_outgrows_its_bound) {
  static char long_text[3 * B200_LINE_BYTES];
  memset(long_text, '\n', sizeof long_text - 1); /* six bytes each when escaped */
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_header);
  for (int i = 0; i < 100; i++)
    b200_line_text(&line, B200_FIELD_header_run, long_text);
  b200_line_object(&line, B200_FIELD_header_nccl_env);
  for (int i = 0; i < 100; i++)
    b200_line_member_text(&line, "NCCL_DEBUG", 10, long_text);
  b200_line_end(&line);
  ck_assert_uint_le(line.length, B200_LINE_BYTES);
  ck_assert_int_eq(line.text[line.length - 1], '\n');
  ck_assert_int_eq(line.text[line.length - 2], '}');
}
END_TEST

/* ---------------------------------------------------------------------------------------------------- tally */

static struct b200_tally *new_tally(void) {
  return mmap(NULL, sizeof(struct b200_tally), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

struct sum {
  uint64_t keys, calls, amount;
};

static bool add_up(void *context, const void *key, uint64_t calls, uint64_t amount) {
  struct sum *sum = context;
  (void)key;
  sum->keys++;
  sum->calls += calls;
  sum->amount += amount;
  return true;
}

static void *tally_many(void *argument) {
  for (uint64_t i = 0; i < 100000; i++) {
    uint64_t key[B200_TALLY_KEY_BYTES / 8] = {i % 300};
    b200_tally_add(argument, key, i % 300);
  }
  return NULL;
}

START_TEST(tallies_of_threads_add_up) {
  struct b200_tally *tally = new_tally();
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, tally_many, tally);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  struct sum sum = {0}, again = {0};
  b200_tally_flush(tally, add_up, &sum);
  ck_assert_uint_eq(sum.keys, 300);
  ck_assert_uint_eq(sum.calls, 400000);
  ck_assert_uint_eq(sum.amount, 4 * (333 * (299 * 300 / 2) + 99 * 100 / 2));
  b200_tally_flush(tally, add_up, &again);
  ck_assert_uint_eq(again.keys, 0);
}
END_TEST

START_TEST(a_full_tally_counts_what_it_refuses) {
  struct b200_tally *tally = new_tally();
  for (uint64_t i = 0; i < B200_TALLY_ENTRIES + 10; i++) {
    uint64_t key[B200_TALLY_KEY_BYTES / 8] = {i};
    b200_tally_add(tally, key, 1);
  }
  struct sum sum = {0};
  b200_tally_flush(tally, add_up, &sum);
  ck_assert_uint_eq(sum.keys, B200_TALLY_ENTRIES);
  ck_assert_uint_eq(tally->overflow, 10);
}
END_TEST

/* --------------------------------------------------------------------------------------------------- writer */

static char path[64];

static void no_tick(void) {}

static struct b200_writer *open_writer(const char *at) {
  struct b200_line header;
  b200_line_begin(&header, B200_RECORD_header);
  b200_line_end(&header);
  static const struct b200_writer_hooks hooks = {.woken = no_tick, .tick = no_tick};
  return b200_writer_open(at, 1 << 20, &hooks, &header);
}

static void *write_lines(void *writer) {
  for (int i = 0; i < 2000; i++) {
    struct b200_line line;
    b200_line_begin(&line, B200_RECORD_warn);
    b200_line_text(&line, B200_FIELD_warn_text, "0123456789012345678901234567890123456789");
    b200_line_end(&line);
    b200_writer_put(writer, &line, false);
  }
  return NULL;
}

static void count_lines(uint64_t *lines, uint64_t *dropped) {
  FILE *file = fopen(path, "r");
  char text[B200_LINE_BYTES];
  unsigned long long count;
  ck_assert_ptr_nonnull(file);
  *lines = *dropped = 0;
  while (fgets(text, sizeof text, file)) {
    if (sscanf(text, "{\"t\":\"drop\",\"what\":\"warn\",\"count\":%llu}", &count) == 1)
      *dropped += count;
    else if (strncmp(text, "{\"t\":\"warn\"", 11) == 0)
      ++*lines;
  }
  fclose(file);
}

static void put_end(struct b200_writer *writer) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_end);
  b200_line_end(&line);
  b200_writer_put(writer, &line, false);
}

START_TEST(every_line_is_written_or_counted) {
  snprintf(path, sizeof path, "/tmp/b200-writer-%d.jsonl", (int)getpid());
  struct b200_writer *writer = open_writer(path);
  ck_assert_ptr_nonnull(writer);
  pthread_t threads[8];
  uint64_t lines, dropped;
  for (int i = 0; i < 8; i++)
    pthread_create(&threads[i], NULL, write_lines, writer);
  for (int i = 0; i < 8; i++)
    pthread_join(threads[i], NULL);
  ck_assert(b200_writer_last_words(writer));
  put_end(writer);
  b200_writer_close(writer);
  count_lines(&lines, &dropped);
  ck_assert_uint_eq(lines + dropped, 8 * 2000);
  ck_assert_uint_gt(dropped, 0); /* 16,000 lines are more than the bound of 1 MiB */
  unlink(path);
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_refused) {
  ck_assert_ptr_null(open_writer("/nonexistent/folder/log.jsonl"));
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(a_line_is_json) \
  X(text_is_escaped_and_ascii) \
  X(objects_nest_once) \
  X(a_line_never_outgrows_its_bound) \
  X(tallies_of_threads_add_up) \
  X(a_full_tally_counts_what_it_refuses) \
  X(every_line_is_written_or_counted) \
  X(a_folder_that_is_not_there_is_refused)
/* clang-format on */
UNIT_MAIN("record", CASES)
