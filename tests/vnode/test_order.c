/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events and their modelled times in the order that B200OPT_VNODE_ORDER names: everything here must be true in
 * each. Times are known by hand, in nanoseconds.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "vnode_test.h"

enum { NON_BLOCKING = 1, UNTIMED = 2 };

static bool is_eager(void) {
  return vnode_config()->order == VNODE_ORDER_EAGER;
}

static struct vnode_stream *new_stream(void) {
  struct vnode_stream *stream = NULL;
  ck_assert_int_eq(vnode_stream_create(NON_BLOCKING, 0, &stream), VNODE_OK);
  return stream;
}

static struct vnode_event *new_event(void) {
  struct vnode_event *event = NULL;
  ck_assert_int_eq(vnode_event_create(0, &event), VNODE_OK);
  return event;
}

static enum vnode_status submit(struct vnode_stream *stream, const char *name, vnode_work work, const void *args,
                                size_t args_bytes) {
  return vnode_op_submit(stream, &(struct vnode_op){.name = name, .work = work, .args = args, .args_bytes = args_bytes});
}

/* An operation that only takes its time. */
static void takes(struct vnode_stream *stream, int64_t ns) {
  ck_assert_int_eq(vnode_op_submit(stream, &(struct vnode_op){.name = "takes", .duration_ns = ns}), VNODE_OK);
}

static void records(struct vnode_event *event, struct vnode_stream *stream) {
  ck_assert_int_eq(vnode_event_record(event, stream), VNODE_OK);
}

static void waits(struct vnode_stream *stream, struct vnode_event *event) {
  ck_assert_int_eq(vnode_event_wait(stream, event), VNODE_OK);
}

static int64_t ns_between(struct vnode_event *start, struct vnode_event *end) {
  float ms = -1;
  ck_assert_int_eq(vnode_event_synchronize(end), VNODE_OK);
  ck_assert_int_eq(vnode_event_synchronize(start), VNODE_OK);
  ck_assert_int_eq(vnode_event_elapsed(start, end, &ms), VNODE_OK);
  return (int64_t)((double)ms * 1e6 + (ms < 0 ? -0.5 : 0.5));
}

/* ------------------------------------------------------------------------------------------- handles and order */

static void append(void *args) {
  char ***cursor = args;
  *(**cursor)++ = 'x';
}

START_TEST(work_runs_once_and_before_a_wait_returns) {
  struct vnode_stream *stream = NULL;
  char text[4] = "", *at = text, **cursor = &at;
  ck_assert_int_eq(vnode_stream_create(NON_BLOCKING, -3, &stream), VNODE_OK);
  ck_assert_int_eq(submit(stream, "append", append, &cursor, sizeof cursor), VNODE_OK);
  if (is_eager())
    ck_assert_str_eq(text, "x");
  ck_assert_int_eq(vnode_stream_synchronize(stream), VNODE_OK);
  ck_assert_int_eq(vnode_stream_synchronize(stream), VNODE_OK);
  ck_assert_str_eq(text, "x");
  unsigned flags = 0;
  int priority = 0, device = -1;
  ck_assert(vnode_stream_info(stream, &flags, &priority, &device));
  ck_assert_uint_eq(flags, NON_BLOCKING);
  ck_assert_int_eq(priority, -3);
  ck_assert_int_eq(device, 0);
  ck_assert_int_gt(vnode_stream_id(stream), 0);
  ck_assert_int_eq(vnode_stream_id(NULL), 0);
  ck_assert_int_eq(vnode_stream_destroy(stream), VNODE_OK);
  ck_assert_int_eq(vnode_stream_destroy(stream), VNODE_INVALID_VALUE);
  ck_assert_int_eq(submit(stream, "append", append, &cursor, sizeof cursor), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_stream_id(stream), -1);
}
END_TEST

static int dropped;

static void drop(void *args) {
  (void)args;
  __atomic_add_fetch(&dropped, 1, __ATOMIC_SEQ_CST);
}

START_TEST(arguments_are_dropped_once_in_every_case) {
  struct vnode_stream *stream = new_stream();
  struct vnode_op op = {.name = "drop", .drop = drop};
  ck_assert_int_eq(vnode_op_submit(stream, &op), VNODE_OK);
  ck_assert_int_eq(vnode_stream_synchronize(stream), VNODE_OK);
  ck_assert_int_eq(dropped, 1);
  ck_assert_int_eq(vnode_stream_destroy(stream), VNODE_OK);
  ck_assert_int_eq(vnode_op_submit(stream, &op), VNODE_INVALID_VALUE);
  ck_assert_int_eq(dropped, 2);
}
END_TEST

START_TEST(work_that_nobody_waits_for_runs_in_the_end) {
  struct vnode_stream *stream = new_stream();
  ck_assert_int_eq(vnode_op_submit(stream, &(struct vnode_op){.name = "drop", .drop = drop}), VNODE_OK);
  while (!__atomic_load_n(&dropped, __ATOMIC_SEQ_CST)) /* the test's time limit ends this */
    usleep(1000);
}
END_TEST

struct overlap {
  int inside, most, runs;
};

static void enter_and_leave(void *args) {
  struct overlap *overlap = *(struct overlap **)args;
  int now = __atomic_add_fetch(&overlap->inside, 1, __ATOMIC_SEQ_CST);
  if (now > overlap->most)
    overlap->most = now;
  usleep(100);
  overlap->runs++;
  __atomic_sub_fetch(&overlap->inside, 1, __ATOMIC_SEQ_CST);
}

struct submitter {
  struct vnode_stream *stream;
  struct overlap *overlap;
};

static void *submit_many(void *args) {
  const struct submitter *submitter = args;
  for (int i = 0; i < 50; i++) {
    submit(submitter->stream, "overlap", enter_and_leave, &submitter->overlap, sizeof submitter->overlap);
    if (i % 10 == 9)
      vnode_stream_synchronize(submitter->stream);
  }
  return NULL;
}

START_TEST(work_of_one_stream_never_overlaps) {
  struct overlap overlap = {0};
  struct submitter submitter = {.overlap = &overlap, .stream = new_stream()};
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, submit_many, &submitter);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  ck_assert_int_eq(overlap.most, 1);
  ck_assert_int_eq(overlap.runs, 200);
}
END_TEST

/* Each piece of work adds its letter; the text shows the order in which they ran. */
struct letter {
  char *text, letter;
};

static void add_letter(void *args) {
  const struct letter *letter = args;
  letter->text[strlen(letter->text)] = letter->letter;
}

static void writes(struct vnode_stream *stream, char *text, char letter) {
  struct letter args = {.text = text, .letter = letter};
  ck_assert_int_eq(submit(stream, "letter", add_letter, &args, sizeof args), VNODE_OK);
}

START_TEST(an_event_orders_two_streams) {
  struct vnode_stream *one = new_stream(), *two = new_stream();
  struct vnode_event *event = new_event();
  for (int round = 0; round < 50; round++) {
    char text[8] = "";
    writes(one, text, 'a');
    records(event, one);
    waits(two, event);
    writes(two, text, 'b');
    records(event, two); /* recorded again: the first wait keeps what it saw */
    waits(one, event);
    writes(one, text, 'c');
    ck_assert_int_eq(vnode_stream_synchronize(one), VNODE_OK);
    ck_assert_str_eq(text, "abc");
  }
}
END_TEST

START_TEST(the_legacy_stream_and_blocking_streams_order_each_other) {
  struct vnode_stream *blocking = NULL;
  ck_assert_int_eq(vnode_stream_create(0, 0, &blocking), VNODE_OK);
  for (int round = 0; round < 50; round++) {
    char text[8] = "";
    writes(blocking, text, 'a');
    writes(NULL, text, 'b');
    writes(blocking, text, 'c');
    writes(VNODE_STREAM_PER_THREAD, text, 'd'); /* not ordered behind c, but behind b */
    ck_assert_int_eq(vnode_stream_synchronize(VNODE_STREAM_LEGACY), VNODE_OK);
    ck_assert_uint_eq(strlen(text), 4);
    ck_assert_int_eq(strncmp(text, "ab", 2), 0);
  }
}
END_TEST

/* ------------------------------------------------------------------------------------------- times */

START_TEST(a_stream_takes_the_sum_of_its_operations) {
  struct vnode_event *start = new_event(), *end = new_event();
  records(start, NULL);
  takes(NULL, 1000000);
  takes(NULL, 500000);
  records(end, NULL);
  ck_assert_int_eq(ns_between(start, end), 1500000);
  ck_assert_int_eq(vnode_host_now_ns(), 1500000); /* the wait took the host along */
}
END_TEST

START_TEST(streams_overlap_and_a_join_takes_the_later) {
  struct vnode_stream *side = new_stream();
  struct vnode_event *start = new_event(), *fork = new_event(), *join = new_event(), *end = new_event();
  records(start, NULL);
  takes(NULL, 1000000);
  records(fork, NULL);
  waits(side, fork);
  takes(side, 3000000); /* 1 … 4 ms */
  records(join, side);
  takes(NULL, 2000000); /* 1 … 3 ms */
  waits(NULL, join);
  takes(NULL, 500000); /* 4 … 4.5 ms */
  records(end, NULL);
  ck_assert_int_eq(ns_between(start, end), 4500000);
  ck_assert_int_eq(ns_between(start, join), 4000000);
  ck_assert_int_eq(ns_between(end, start), -4500000);
}
END_TEST

START_TEST(an_operation_starts_no_earlier_than_its_submission) {
  struct vnode_event *a = new_event(), *b = new_event(), *c = new_event();
  vnode_host_charge(1000);
  records(a, NULL); /* 1 µs */
  takes(NULL, 10000);
  records(b, NULL); /* 11 µs */
  vnode_host_charge(100000);
  takes(NULL, 5000); /* 101 … 106 µs: the GPU was idle */
  records(c, NULL);
  ck_assert_int_eq(ns_between(a, b), 10000);
  ck_assert_int_eq(ns_between(b, c), 95000);
}
END_TEST

START_TEST(the_host_waits_for_what_it_synchronises_with) {
  struct vnode_stream *side = new_stream();
  takes(side, 70000);
  takes(NULL, 20000);
  ck_assert_int_eq(vnode_stream_synchronize(NULL), VNODE_OK);
  ck_assert_int_eq(vnode_host_now_ns(), 20000);
  ck_assert_int_eq(vnode_device_synchronize(0), VNODE_OK);
  ck_assert_int_eq(vnode_host_now_ns(), 70000);
  ck_assert_int_eq(vnode_stream_synchronize(side), VNODE_OK);
  ck_assert_int_eq(vnode_host_now_ns(), 70000);
}
END_TEST

static void *sleep_without_work(void *unused) {
  (void)unused;
  usleep(2000);
  ck_assert_int_eq(vnode_host_now_ns(), 0);
  return NULL;
}

START_TEST(a_host_that_sleeps_passes_time) {
  struct timespec deadline;
  struct vnode_event *a = new_event(), *b = new_event(), *c = new_event(), *d = new_event();
  usleep(2000); /* nothing is submitted yet: the program is not at its GPU's work */
  ck_assert_int_eq(vnode_host_now_ns(), 0);
  takes(NULL, 1000);
  records(a, NULL);
  ck_assert_int_eq(nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL), 0);
  records(b, NULL);
  clock_gettime(CLOCK_MONOTONIC, &deadline); /* as Python's time.sleep(0.05) */
  deadline.tv_nsec += 50000000;
  deadline.tv_sec += deadline.tv_nsec / 1000000000;
  deadline.tv_nsec %= 1000000000;
  ck_assert_int_eq(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL), 0);
  records(c, NULL);
  ck_assert_int_eq(nanosleep(&(struct timespec){.tv_nsec = -1}, NULL), -1); /* refused: it did not sleep */
  vnode_pause(2000000);
  usleep(100);
  records(d, NULL);
  ck_assert_int_eq(ns_between(a, b), 3000000 - 1000); /* the GPU was done 1 µs after the host had begun to sleep */
  ck_assert_int_gt(ns_between(b, c), 0);              /* less than 50 ms by what this machine lost between the two calls */
  ck_assert_int_le(ns_between(b, c), 50000000);
  ck_assert_int_eq(ns_between(b, c) % 1000, 0);
  ck_assert_int_eq(ns_between(c, d), 100000);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, sleep_without_work, NULL), 0);
  pthread_join(thread, NULL);
}
END_TEST

static void *submit_from_a_new_thread(void *event) {
  vnode_host_charge(500); /* its clock began at 0: it takes over the stream's */
  takes(NULL, 1000);
  records(event, NULL);
  return NULL;
}

START_TEST(threads_that_share_a_stream_hand_their_time_over) {
  struct vnode_event *start = new_event(), *end = new_event();
  vnode_host_charge(40000);
  records(start, NULL);
  pthread_t thread;
  pthread_create(&thread, NULL, submit_from_a_new_thread, end);
  pthread_join(thread, NULL);
  ck_assert_int_eq(ns_between(start, end), 1000);
  struct vnode_event *later = new_event();
  records(later, NULL);
  ck_assert_int_eq(ns_between(start, later), 1000);
}
END_TEST

static void corrects(void *args) {
  (void)args;
  vnode_op_set_duration(7000);
}

static void spans(void *args) {
  (void)args;
  vnode_op_set_span(vnode_op_ready_ns() + 2000, vnode_op_ready_ns() + 5000);
}

START_TEST(work_may_say_how_long_it_took) {
  struct vnode_event *start = new_event(), *middle = new_event(), *end = new_event();
  records(start, NULL);
  ck_assert_int_eq(vnode_op_submit(NULL, &(struct vnode_op){.name = "corrects", .work = corrects, .duration_ns = 1}),
                   VNODE_OK);
  records(middle, NULL);
  ck_assert_int_eq(vnode_op_submit(NULL, &(struct vnode_op){.name = "spans", .work = spans}), VNODE_OK);
  records(end, NULL);
  ck_assert_int_eq(ns_between(start, middle), 7000);
  ck_assert_int_eq(ns_between(middle, end), 5000);
}
END_TEST

START_TEST(blocking_streams_share_the_legacy_streams_time) {
  struct vnode_stream *blocking = NULL;
  struct vnode_event *start = new_event(), *end = new_event();
  ck_assert_int_eq(vnode_stream_create(0, 0, &blocking), VNODE_OK);
  records(start, NULL);
  takes(blocking, 3000);
  takes(NULL, 1000);     /* 3 … 4 µs */
  takes(blocking, 2000); /* 4 … 6 µs */
  records(end, blocking);
  ck_assert_int_eq(ns_between(start, end), 6000);
}
END_TEST

/* 0 + 1 + 2 + 4 … µs: after the eleventh question the clock stands at the end of 1 ms. In eager order what has run is
 * complete. */
START_TEST(polling_ends) {
  struct vnode_event *event = new_event();
  ck_assert(vnode_event_done(event)); /* never recorded */
  takes(NULL, 1000000);
  records(event, NULL);
  int asked = 0;
  while (!vnode_event_done(event))
    asked++;
  ck_assert_int_eq(asked, is_eager() ? 0 : 11);
  ck_assert_int_eq(vnode_host_now_ns(), is_eager() ? 0 : 1000000);
  ck_assert(vnode_stream_idle(NULL));
}
END_TEST

START_TEST(events_are_checked) {
  struct vnode_event *one = new_event(), *two = new_event(), *untimed = NULL;
  float ms = -1;
  ck_assert_int_eq(vnode_event_create(UNTIMED, &untimed), VNODE_OK);
  records(one, NULL);
  ck_assert_int_eq(vnode_event_elapsed(one, two, &ms), VNODE_INVALID_VALUE);
  records(two, NULL);
  records(untimed, NULL);
  ck_assert_int_eq(vnode_event_elapsed(one, untimed, &ms), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_event_destroy(one), VNODE_OK);
  ck_assert_int_eq(vnode_event_destroy(one), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_event_record(one, NULL), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_event_wait(NULL, one), VNODE_INVALID_VALUE);
}
END_TEST

START_TEST(an_event_that_has_not_run_has_no_time) {
  struct vnode_event *one = new_event(), *two = new_event();
  float ms = -1;
  records(one, NULL);
  records(two, NULL);
  enum vnode_status status = vnode_event_elapsed(one, two, &ms);
  ck_assert(status == VNODE_OK || (!is_eager() && status == VNODE_NOT_READY));
  if (vnode_config()->order == VNODE_ORDER_DEFERRED)
    ck_assert_int_eq(status, VNODE_NOT_READY);
}
END_TEST

/* ------------------------------------------------------------------------------------------- work that waits */

static void meets(void *args) {
  int *here = *(int **)args;
  __atomic_add_fetch(here, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(here, __ATOMIC_SEQ_CST) < 2) /* the test's time limit ends this */
    usleep(100);
}

/* As two ranks' collectives on two streams of one process: each waits for the other. In eager order they would need two
 * threads. */
START_TEST(work_that_waits_holds_up_only_its_stream) {
  if (is_eager())
    return;
  enum { ROUNDS = 20 };
  struct vnode_stream *one = new_stream(), *two = new_stream();
  int here[ROUNDS] = {0};
  for (int round = 0; round < ROUNDS; round++) {
    int *at = &here[round];
    struct vnode_op op = {
        .name = "meets", .work = meets, .args = &at, .args_bytes = sizeof at, .flags = VNODE_OP_WAITS, .duration_ns = 100};
    ck_assert_int_eq(vnode_op_submit(one, &op), VNODE_OK);
    ck_assert_int_eq(vnode_op_submit(two, &op), VNODE_OK);
    ck_assert_int_eq(vnode_stream_synchronize(round % 2 ? one : two), VNODE_OK);
  }
  ck_assert_int_eq(vnode_device_synchronize(0), VNODE_OK);
  for (int round = 0; round < ROUNDS; round++)
    ck_assert_int_eq(here[round], 2);
}
END_TEST

/* ------------------------------------------------------------------------------------------- errors */

static void fails(void *args) {
  (void)args;
  vnode_op_fail(710, "an assertion failed on the device");
}

START_TEST(an_error_on_the_device_ends_its_work) {
  char text[4] = "";
  ck_assert_int_eq(vnode_sticky_error(), 0);
  ck_assert_int_eq(submit(NULL, "fails", fails, NULL, 0), VNODE_OK);
  writes(NULL, text, 'a');
  ck_assert_int_eq(vnode_stream_synchronize(NULL), VNODE_OK);
  ck_assert_int_eq(vnode_sticky_error(), 710);
  ck_assert_str_eq(text, "");
  vnode_set_sticky_error(700);
  ck_assert_int_eq(vnode_sticky_error(), 710);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {
      work_runs_once_and_before_a_wait_returns,
      arguments_are_dropped_once_in_every_case,
      work_that_nobody_waits_for_runs_in_the_end,
      work_of_one_stream_never_overlaps,
      an_event_orders_two_streams,
      the_legacy_stream_and_blocking_streams_order_each_other,
      a_stream_takes_the_sum_of_its_operations,
      streams_overlap_and_a_join_takes_the_later,
      an_operation_starts_no_earlier_than_its_submission,
      the_host_waits_for_what_it_synchronises_with,
      a_host_that_sleeps_passes_time,
      threads_that_share_a_stream_hand_their_time_over,
      work_may_say_how_long_it_took,
      blocking_streams_share_the_legacy_streams_time,
      polling_ends,
      events_are_checked,
      an_event_that_has_not_run_has_no_time,
      work_that_waits_holds_up_only_its_stream,
      an_error_on_the_device_ends_its_work,
  };
  return run_tests("order", tests, sizeof tests / sizeof tests[0]);
}
