/* SPDX-License-Identifier: Apache-2.0 */
/* The line, the Prometheus text, and a meter whose streams and files fail. */
#include "interpose/record/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/unit.h"

static struct b200_metrics none(void) {
  struct b200_metrics metrics;
  for (int i = 0; i < B200_METRIC_COUNT; i++)
    metrics.value[i] = (double)NAN;
  return metrics;
}

static struct b200_metrics extreme(double value) {
  struct b200_metrics metrics;
  for (int i = 0; i < B200_METRIC_COUNT; i++)
    metrics.value[i] = value;
  return metrics;
}

static char text[B200_METRICS_FILE_BYTES];

static void expect_line(const struct b200_metrics *metrics, const char *expected) {
  size_t length = b200_metrics_line(metrics, text, sizeof text);
  text[length] = '\0';
  ck_assert_str_eq(text, expected);
}

START_TEST(what_is_absent_is_left_out) {
  struct b200_metrics metrics = none();
  expect_line(&metrics, "");
  metrics.value[B200_METRIC_steps] = 3; /* not in the line */
  expect_line(&metrics, "");
  metrics.value[B200_METRIC_step] = 120;
  metrics.value[B200_METRIC_step_s] = 0.4123;
  metrics.value[B200_METRIC_blocked_s] = 0.0184;
  metrics.value[B200_METRIC_hidden] = 0.9312;
  metrics.value[B200_METRIC_loss] = 2.314;
  metrics.value[B200_METRIC_hbm_used] = 160e9;
  metrics.value[B200_METRIC_uncovered_s] = (double)INFINITY;
  expect_line(&metrics, "b200opt: step=120; step_ms=412.300; blocked_comm_ms=18.400; hidden_pct=93.1; loss=2.314; "
                        "hbm_used_gb=160.000;\n");
}
END_TEST

START_TEST(a_line_is_always_one_write_of_ascii) {
  static const double values[] = {0, -0.0, 1, 1e15, -1e15, 123456789.123456789, DBL_MAX, -DBL_MAX, DBL_MIN, 4.9e-324};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    struct b200_metrics metrics = extreme(values[i]);
    size_t length = b200_metrics_line(&metrics, text, sizeof text);
    ck_assert_uint_lt(length, PIPE_BUF);
    ck_assert_int_eq(text[length - 1], '\n');
    for (size_t at = 0; at + 1 < length; at++)
      ck_assert(text[at] >= ' ' && text[at] <= '~' && !(text[at] >= 'A' && text[at] <= 'Z'));
  }
}
END_TEST

START_TEST(numbers_have_a_point_in_every_locale) {
  static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
  bool found = false;
  for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++)
    found = setlocale(LC_NUMERIC, names[i]) != NULL;
  struct b200_metrics metrics = none();
  metrics.value[B200_METRIC_loss] = 2.5;
  metrics.value[B200_METRIC_hidden] = 0.125;
  expect_line(&metrics, "b200opt: hidden_pct=12.5; loss=2.5;\n");
  if (!found)
    printf("no locale with a decimal comma is installed\n");
}
END_TEST

START_TEST(labels_are_escaped) {
  struct b200_metrics metrics = none();
  metrics.value[B200_METRIC_loss] = 0.1;
  const struct b200_metrics_labels labels = {.rank = 7, .run = "a\"b\\c\nd", .arm = "\xc3\xa4"};
  size_t length = b200_metrics_prometheus(&metrics, &labels, text, sizeof text);
  text[length] = '\0';
  ck_assert_str_eq(text, "# HELP b200opt_loss Training loss that the job printed last.\n# TYPE b200opt_loss gauge\n"
                         "b200opt_loss{rank=\"7\",run=\"a\\\"b\\\\c?d\",arm=\"??\"} 0.1\n");
}
END_TEST

START_TEST(the_file_holds_everything) {
  struct b200_metrics metrics = extreme(-DBL_MAX);
  struct b200_metrics_labels labels = {.rank = INT_MAX};
  memset(labels.run, 'r', 200);
  memset(labels.arm, 'a', 200);
  size_t length = b200_metrics_prometheus(&metrics, &labels, text, sizeof text);
  text[length] = '\0';
  ck_assert_ptr_nonnull(strstr(text, "b200opt_gpu_power_watts{"));
  memset(labels.run, '"', sizeof labels.run - 1);
  memset(labels.arm, '"', sizeof labels.arm - 1);
  length = b200_metrics_prometheus(&metrics, &labels, text, sizeof text);
  ck_assert_uint_lt(length, sizeof text);
  ck_assert_int_eq(text[length - 1], '\n'); /* whole metrics, though perhaps not all */
}
END_TEST

START_TEST(the_rank_comes_before_the_ending) {
  char out[64];
  static const char *const paths[][2] = {{"/d/job.prom", "/d/job-r3.prom"},
                                         {"job", "job-r3"},
                                         {".prom", ".prom-r3"},
                                         {"a.prom.d/x.prom", "a.prom.d/x-r3.prom"}};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    ck_assert(b200_metrics_path(paths[i][0], 3, out, sizeof out));
    ck_assert_str_eq(out, paths[i][1]);
  }
  ck_assert(!b200_metrics_path("/d/job.prom", 3, out, strlen("/d/job-r3.prom")));
}
END_TEST

/* ---- meters */

static struct b200_meter *meter;
static int said;
static char last_said[5000];

static void say(const char *message) {
  said++;
  snprintf(last_said, sizeof last_said, "%s", message);
}

static void start(int stream, const char *prometheus) {
  const struct b200_meter_config config = {
      .stream = stream, .every = 2, .prometheus = prometheus, .labels = {.run = "run", .arm = "arm"}, .say = say};
  meter = calloc(1, sizeof *meter);
  said = 0;
  b200_meter_start(meter, &config);
}

static bool step(uint64_t number) {
  b200_meter_set(meter, B200_METRIC_step, (double)number);
  return b200_meter_step(meter, number);
}

static size_t read_pipe(int from) {
  ssize_t length = read(from, text, sizeof text - 1);
  text[length > 0 ? length : 0] = '\0';
  return length > 0 ? (size_t)length : 0;
}

START_TEST(a_line_every_so_many_steps) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
  start(ends[1], "");
  for (uint64_t i = 0; i < 6; i++)
    ck_assert_int_eq(step(i), i > 0 && i % 2 == 0);
  b200_meter_work(meter, false);
  read_pipe(ends[0]);
  ck_assert_str_eq(text, "b200opt: step=2;\nb200opt: step=4;\n");
  b200_meter_work(meter, false);
  ck_assert_uint_eq(read_pipe(ends[0]), 0);
  ck_assert_int_eq(said, 0);
}
END_TEST

START_TEST(the_loss_is_the_newest) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
  start(ends[1], "");
  b200_meter_set(meter, B200_METRIC_loss, 3);
  step(2);
  b200_meter_set(meter, B200_METRIC_loss, 2.5);
  b200_meter_set(meter, B200_METRIC_step_s, 1); /* of the next step */
  b200_meter_work(meter, false);
  read_pipe(ends[0]);
  ck_assert_str_eq(text, "b200opt: step=2; loss=2.5;\n");
}
END_TEST

START_TEST(a_full_pipe_is_not_waited_for) {
  int ends[2];
  char full[4096] = {0};
  ck_assert_int_eq(pipe(ends), 0);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  while (write(ends[1], full, sizeof full) > 0)
    ;
  fcntl(ends[1], F_SETFL, 0); /* a write would block from here on */
  start(ends[1], "");
  for (uint64_t i = 2; i <= 40; i += 2) {
    step(i);
    b200_meter_work(meter, false);
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  while (read(ends[0], full, sizeof full) == sizeof full)
    ;
  b200_meter_work(meter, false);
  read_pipe(ends[0]);
  ck_assert_int_eq(strncmp(text, "b200opt: step=26;\n", 18), 0); /* the last eight */
  ck_assert_ptr_nonnull(strstr(text, "step=40;\n"));
  ck_assert_int_eq(said, 0);
}
END_TEST

START_TEST(the_end_of_the_jobs_line_is_waited_for) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
  start(ends[1], "");
  step(2);
  b200_meter_work(meter, true);
  ck_assert_uint_eq(read_pipe(ends[0]), 0);
  b200_meter_work(meter, false);
  read_pipe(ends[0]);
  ck_assert_str_eq(text, "b200opt: step=2;\n");
  step(4);
  b200_meter_work(meter, true);
  ck_assert_uint_eq(read_pipe(ends[0]), 0);
  b200_meter_finish(meter);
  b200_meter_work(meter, true);
  read_pipe(ends[0]);
  ck_assert_str_eq(text, "\nb200opt: step=4;\n");
}
END_TEST

START_TEST(a_stream_that_refuses_is_said_once) {
  int full = open("/dev/full", O_WRONLY);
  ck_assert_int_ge(full, 0);
  start(full, "");
  for (uint64_t i = 2; i < 40; i += 2) {
    step(i);
    b200_meter_work(meter, false);
  }
  ck_assert_int_eq(said, 1);
  ck_assert_ptr_nonnull(strstr(last_said, "errno 28"));
}
END_TEST

START_TEST(another_file_under_the_same_number_is_left_alone) {
  char path[] = "/tmp/b200opt-metrics-XXXXXX";
  struct stat now;
  int ends[2], own = mkstemp(path);
  ck_assert_int_eq(pipe(ends), 0);
  start(ends[1], "");
  ck_assert_int_eq(dup2(own, ends[1]), ends[1]);
  for (uint64_t i = 2; i < 40; i += 2) {
    step(i);
    b200_meter_work(meter, false);
  }
  ck_assert_int_eq(fstat(own, &now), 0);
  unlink(path);
  ck_assert_int_eq(now.st_size, 0);
  ck_assert_int_eq(said, 1);
}
END_TEST

START_TEST(a_closed_stream_is_said_once) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  start(ends[1], "");
  close(ends[1]);
  for (uint64_t i = 2; i < 40; i += 2) {
    step(i);
    b200_meter_work(meter, false);
  }
  ck_assert_int_eq(said, 1);
  ck_assert_ptr_nonnull(strstr(last_said, "errno 9"));
}
END_TEST

START_TEST(the_file_is_whole_or_old) {
  char folder[] = "/tmp/b200opt-metrics-XXXXXX", path[64];
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/job.prom", folder);
  start(-1, path);
  ck_assert(step(1));
  b200_meter_work(meter, false);
  snprintf(path, sizeof path, "%s/job-r0.prom", folder);
  struct stat first, second;
  ck_assert_int_eq(stat(path, &first), 0);
  ck_assert_uint_eq(first.st_mode & 0777, 0644); /* another user's exporter reads it */
  step(2);
  b200_meter_finish(meter);
  b200_meter_work(meter, false);
  ck_assert_int_eq(stat(path, &second), 0);
  ck_assert(first.st_ino != second.st_ino); /* renamed, not rewritten */
  unlink(path);
  ck_assert_int_eq(rmdir(folder), 0); /* nothing else is left there */
}
END_TEST

START_TEST(a_folder_that_refuses_is_said_once) {
  start(-1, "/proc/no/such.prom");
  for (uint64_t i = 2; i < 40; i += 2) {
    step(i);
    b200_meter_finish(meter);
    b200_meter_work(meter, false);
  }
  ck_assert_int_eq(said, 1);
  ck_assert_ptr_nonnull(strstr(last_said, "/proc/no/such-r0.prom"));
}
END_TEST

START_TEST(nothing_is_asked_for) {
  start(-1, "");
  ck_assert(!step(2));
  b200_meter_work(meter, false);
  struct b200_meter *never = calloc(1, sizeof *never);
  ck_assert(!b200_meter_step(never, 2));
  b200_meter_work(never, false);
  free(never);
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(what_is_absent_is_left_out) \
  X(a_line_is_always_one_write_of_ascii) \
  X(numbers_have_a_point_in_every_locale) \
  X(labels_are_escaped) \
  X(the_file_holds_everything) \
  X(the_rank_comes_before_the_ending) \
  X(a_line_every_so_many_steps) \
  X(the_loss_is_the_newest) \
  X(a_full_pipe_is_not_waited_for) \
  X(the_end_of_the_jobs_line_is_waited_for) \
  X(a_stream_that_refuses_is_said_once) \
  X(another_file_under_the_same_number_is_left_alone) \
  X(a_closed_stream_is_said_once) \
  X(the_file_is_whole_or_old) \
  X(a_folder_that_refuses_is_said_once) \
  X(nothing_is_asked_for)
/* clang-format on */
UNIT_MAIN("metrics", CASES)
