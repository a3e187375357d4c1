/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accounting of collectives: cases with the times written down, then random programs against a simulated device whose
 * dependencies are walked one by one. B200_TEST_PROGRAMS: how many random programs (100,000).
 */
#include "policy/comm_overlap.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "unit.h"

enum { MAIN = 1, COMM, SIDE, OTHER, LEGACY, TOLD = 40000 };

static struct b200_overlap *overlap;
static struct b200_overlap_op op[TOLD];
static struct b200_overlap_step step[64];
static unsigned ops, steps, losses;
static uint64_t lost_users; /* sum */

static void note_op(void *context, const struct b200_overlap_op *told) {
  ck_assert_ptr_eq(context, &ops);
  ck_assert_uint_lt(ops, TOLD);
  ck_assert_int_ge(told->blocked_ns, 0);
  ck_assert_int_le(told->blocked_ns, told->t_end_ns - told->t_start_ns);
  ck_assert_int_ge(told->queued_ns, 0);
  op[ops++] = *told;
}

static void note_step(void *context, const struct b200_overlap_step *told) {
  ck_assert_ptr_eq(context, &ops);
  ck_assert_uint_lt(steps, 64);
  int64_t dur_ns = told->t_end_ns - told->t_start_ns;
  ck_assert(told->blocked_ns >= 0 && told->blocked_ns <= told->busy_ns && told->busy_ns <= dur_ns);
  ck_assert(told->gemm_ns >= -1 && told->gemm_ns <= dur_ns);
  ck_assert(told->uncovered_ns >= -1 && told->uncovered_ns <= told->busy_ns);
  ck_assert_int_eq(told->gemm_ns < 0, told->uncovered_ns < 0);
  step[steps++] = *told;
}

static void note_lost(void *context, uint64_t user, bool full) {
  ck_assert_ptr_eq(context, &ops);
  ck_assert(!full || b200_overlap_overflow(overlap) > 0);
  losses++;
  lost_users += user;
}

static void begin(void) {
  const struct b200_overlap_sink sink = {.op = note_op, .step = note_step, .lost = note_lost, .context = &ops};
  if (!overlap) {
    overlap = mmap(NULL, b200_overlap_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(overlap, MAP_FAILED);
    memset(overlap, 0xa5, b200_overlap_bytes());
  }
  b200_overlap_start(overlap, &sink);
  ops = steps = losses = 0;
  lost_users = 0;
}

static struct b200_overlap_id collective(uint64_t stream, uint64_t user) {
  struct b200_overlap_id id = b200_overlap_collective(overlap, stream, user);
  ck_assert_int_ge(id.lane, 0);
  return id;
}

static void record(uint64_t event, uint64_t stream) {
  b200_overlap_record(overlap, event, stream);
}

/* A wait that must add something. */
static struct b200_overlap_wait wait(uint64_t stream, uint64_t event) {
  struct b200_overlap_wait found;
  ck_assert(b200_overlap_wait(overlap, stream, event, &found));
  ck_assert_uint_eq(found.stream, stream);
  return found;
}

static void wait_adds_nothing(uint64_t stream, uint64_t event) {
  struct b200_overlap_wait found;
  ck_assert(!b200_overlap_wait(overlap, stream, event, &found));
}

static uint64_t added(const struct b200_overlap_wait *found) {
  uint64_t sum = 0;
  for (int i = 0; i < B200_OVERLAP_LANES; i++)
    sum += found->upto.upto[i] - found->from.upto[i];
  return sum;
}

static void expect_op(uint64_t user, int64_t blocked_ns, int64_t queued_ns) {
  for (unsigned i = 0; i < ops; i++)
    if (op[i].user == user) {
      ck_assert_int_eq(op[i].blocked_ns, blocked_ns);
      ck_assert_int_eq(op[i].queued_ns, queued_ns);
      return;
    }
  ck_abort_msg("collective %d was not handed out", (int)user);
}

static void finish(unsigned expected_ops) {
  b200_overlap_finish(overlap);
  ck_assert_uint_eq(ops, expected_ops);
}

/* One collective from 100 to 200 that MAIN waits for at t_wait_ns. */
static void one(int64_t t_wait_ns, int64_t blocked_ns, int64_t queued_ns) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  struct b200_overlap_id id = collective(COMM, 7);
  record(1, COMM);
  struct b200_overlap_wait found = wait(MAIN, 1);
  b200_overlap_done(overlap, id, 100, 200);
  ck_assert_int_eq(b200_overlap_waited(overlap, &found, t_wait_ns), t_wait_ns < 200 ? 200 : t_wait_ns);
  finish(1);
  expect_op(7, blocked_ns, queued_ns);
  ck_assert_int_eq(op[0].t_start_ns, 100);
  ck_assert_int_eq(op[0].t_end_ns, 200);
}

START_TEST(a_wait_blocks_from_its_time_to_the_end) {
  one(150, 50, 0);
  one(100, 100, 0);
  one(40, 100, 60);
  one(199, 1, 0);
  one(200, 0, 0);
  one(5000, 0, 0);
}
END_TEST

START_TEST(nobody_waits) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  b200_overlap_done(overlap, collective(COMM, 1), 100, 200);
  finish(1);
  expect_op(1, 0, 0);
}
END_TEST

START_TEST(a_collective_on_a_compute_stream_blocks_for_all_of_it) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  struct b200_overlap_id id = collective(MAIN, 1), other = collective(COMM, 2);
  b200_overlap_compute(overlap, COMM); /* after the call, before its times are told */
  b200_overlap_done(overlap, id, 100, 200);
  b200_overlap_done(overlap, other, 100, 130);
  finish(2);
  expect_op(1, 100, 0);
  expect_op(2, 30, 0);
}
END_TEST

START_TEST(it_may_turn_out_later_that_a_stream_computes) {
  for (int computes = 0; computes < 2; computes++) {
    begin();
    struct b200_overlap_id id = collective(COMM, 1);
    record(1, COMM);
    struct b200_overlap_wait found = wait(MAIN, 1);
    if (computes)
      b200_overlap_compute(overlap, MAIN);
    b200_overlap_done(overlap, id, 100, 200);
    ck_assert_int_eq(b200_overlap_waited(overlap, &found, 150), 200);
    finish(1);
    expect_op(1, computes ? 50 : 0, 0);
  }
}
END_TEST

START_TEST(a_wait_reaches_through_a_third_stream) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  struct b200_overlap_id first = collective(COMM, 1);
  record(1, COMM);
  struct b200_overlap_wait side = wait(SIDE, 1);
  struct b200_overlap_id second = collective(OTHER, 2);
  record(2, OTHER);
  struct b200_overlap_wait other = wait(SIDE, 2);
  ck_assert_uint_eq(added(&other), 1);
  record(3, SIDE);
  struct b200_overlap_wait found = wait(MAIN, 3);
  ck_assert_uint_eq(added(&found), 2);
  wait_adds_nothing(MAIN, 1);
  wait_adds_nothing(MAIN, 2);
  b200_overlap_done(overlap, first, 100, 200);
  b200_overlap_waited(overlap, &side, 10); /* SIDE never computes */
  b200_overlap_done(overlap, second, 150, 300);
  b200_overlap_waited(overlap, &other, 200);
  ck_assert_int_eq(b200_overlap_waited(overlap, &found, 120), 300);
  finish(2);
  expect_op(1, 80, 0);
  expect_op(2, 150, 30);
}
END_TEST

START_TEST(a_wait_without_a_time_loses_its_collectives) {
  for (int round = 0; round < 4; round++) {
    bool computes = round & 1, nonsense = round & 2;
    begin();
    struct b200_overlap_id first = collective(COMM, 1), second = collective(COMM, 2);
    record(1, COMM);
    struct b200_overlap_id third = collective(COMM, 3);
    struct b200_overlap_wait found = wait(MAIN, 1);
    if (computes)
      b200_overlap_compute(overlap, MAIN);
    b200_overlap_done(overlap, first, 100, 200);
    if (nonsense)
      b200_overlap_waited(overlap, &found, INT64_MIN);
    else
      b200_overlap_wait_lost(overlap, &found);
    b200_overlap_done(overlap, second, 200, 300);
    b200_overlap_done(overlap, third, 300, 400);
    finish(computes ? 1 : 3);
    expect_op(3, 0, 0);
    ck_assert_uint_eq(b200_overlap_lost_count(overlap), computes ? 2 : 0);
    ck_assert_uint_eq(losses, computes ? 2 : 0);
    ck_assert_uint_eq(lost_users, computes ? 1 + 2 : 0);
  }
}
END_TEST

START_TEST(two_waits_on_one_event) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  b200_overlap_compute(overlap, SIDE);
  struct b200_overlap_id id = collective(COMM, 1);
  record(1, COMM);
  struct b200_overlap_wait late = wait(MAIN, 1);
  wait_adds_nothing(MAIN, 1);
  struct b200_overlap_wait early = wait(SIDE, 1);
  wait_adds_nothing(SIDE, 1);
  wait_adds_nothing(COMM, 1);
  b200_overlap_done(overlap, id, 100, 200);
  b200_overlap_waited(overlap, &late, 180);
  b200_overlap_waited(overlap, &early, 130);
  finish(1);
  expect_op(1, 70, 0);
}
END_TEST

START_TEST(a_wait_is_for_the_newest_record) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  struct b200_overlap_id first = collective(COMM, 1);
  record(1, COMM);
  struct b200_overlap_wait before = wait(MAIN, 1);
  struct b200_overlap_id second = collective(COMM, 2);
  record(1, COMM); /* again: the wait above stays with the first */
  struct b200_overlap_wait after = wait(SIDE, 1);
  record(1, OTHER); /* and again, with nothing */
  wait_adds_nothing(MAIN, 1);
  ck_assert_uint_eq(added(&before), 1);
  ck_assert_uint_eq(added(&after), 2);
  b200_overlap_compute(overlap, SIDE);
  b200_overlap_done(overlap, first, 100, 200);
  b200_overlap_waited(overlap, &before, 190);
  b200_overlap_done(overlap, second, 200, 300);
  b200_overlap_waited(overlap, &after, 195);
  finish(2);
  expect_op(1, 10, 0);
  expect_op(2, 100, 5);
}
END_TEST

START_TEST(a_wait_before_the_record_adds_nothing) {
  begin();
  collective(COMM, 1);
  wait_adds_nothing(MAIN, 1);
  record(1, COMM);
  wait(MAIN, 1);
}
END_TEST

START_TEST(a_record_before_the_collective_adds_nothing) {
  begin();
  record(1, COMM);
  collective(COMM, 1);
  wait_adds_nothing(MAIN, 1);
}
END_TEST

START_TEST(a_destroyed_event_and_its_handle) {
  begin();
  collective(COMM, 1);
  record(1, COMM);
  b200_overlap_forget_event(overlap, 1);
  b200_overlap_forget_event(overlap, 2);
  wait_adds_nothing(MAIN, 1);
  record(1, SIDE);
  wait_adds_nothing(MAIN, 1);
  record(1, COMM);
  wait(MAIN, 1);
}
END_TEST

START_TEST(what_is_over_adds_nothing) {
  begin();
  struct b200_overlap_id id[4];
  for (unsigned i = 0; i < 4; i++) {
    id[i] = collective(COMM, i);
    record(i, COMM);
  }
  b200_overlap_done(overlap, id[1], 100, 200); /* and with it the one before on its stream */
  wait_adds_nothing(SIDE, 0);
  wait_adds_nothing(SIDE, 1);
  struct b200_overlap_wait found = wait(SIDE, 2);
  ck_assert_uint_eq(added(&found), 1);
  found = wait(MAIN, 3);
  ck_assert_uint_eq(added(&found), 2);
  b200_overlap_lost(overlap, id[2]); /* says nothing of whether it is over */
  wait(OTHER, 2);
  b200_overlap_host_event(overlap, 2);
  wait_adds_nothing(LEGACY, 2);
  found = wait(LEGACY, 3);
  ck_assert_uint_eq(added(&found), 1);
}
END_TEST

START_TEST(what_the_host_waited_for_is_over) {
  begin();
  collective(COMM, 1);
  collective(SIDE, 2);
  record(1, COMM);
  struct b200_frontier stream = b200_overlap_of_stream(overlap, COMM), event = b200_overlap_of_event(overlap, 1);
  struct b200_frontier device = b200_overlap_of_device(overlap);
  collective(COMM, 3); /* by another thread, while the host waits */
  record(1, COMM);
  record(2, SIDE);
  b200_overlap_over(overlap, &event);
  struct b200_overlap_wait found = wait(MAIN, 1);
  ck_assert_uint_eq(added(&found), 1);
  b200_overlap_over(overlap, &stream);
  found = wait(OTHER, 1);
  ck_assert_uint_eq(added(&found), 1);
  wait(MAIN, 2);
  b200_overlap_over(overlap, &device);
  wait_adds_nothing(OTHER, 2);
  wait(LEGACY, 1);
  b200_overlap_host_stream(overlap, COMM);
  wait_adds_nothing(77, 1);
  collective(COMM, 4);
  record(1, COMM);
  wait(78, 1);
  b200_overlap_host_device(overlap);
  wait_adds_nothing(79, 1);
  b200_overlap_host_event(overlap, 12345);
  b200_overlap_host_stream(overlap, 12345);
}
END_TEST

START_TEST(the_legacy_stream_is_ordered_with_blocking_ones) {
  begin();
  struct b200_overlap_wait found;
  b200_overlap_stream(overlap, LEGACY, true, true);
  ck_assert(!b200_overlap_has_blocking(overlap));
  ck_assert(!b200_overlap_implicit(overlap, LEGACY, &found));
  b200_overlap_stream(overlap, COMM, true, false);
  b200_overlap_stream(overlap, MAIN, true, false);
  b200_overlap_stream(overlap, SIDE, false, false);
  ck_assert(b200_overlap_has_blocking(overlap));
  struct b200_overlap_id id = collective(COMM, 1), free = collective(SIDE, 2);
  ck_assert(!b200_overlap_implicit(overlap, MAIN, &found)); /* nothing on the legacy stream yet */
  ck_assert(b200_overlap_implicit(overlap, LEGACY, &found));
  ck_assert_uint_eq(found.stream, LEGACY);
  ck_assert_uint_eq(added(&found), 1);
  ck_assert(!b200_overlap_implicit(overlap, LEGACY, &found));
  ck_assert(!b200_overlap_implicit(overlap, SIDE, &found));
  ck_assert(!b200_overlap_implicit(overlap, OTHER, &found));
  b200_overlap_compute(overlap, MAIN);
  ck_assert(b200_overlap_implicit(overlap, MAIN, &found)); /* through the legacy stream */
  b200_overlap_done(overlap, id, 100, 200);
  b200_overlap_done(overlap, free, 100, 200);
  b200_overlap_waited(overlap, &found, 120);
  finish(2);
  expect_op(1, 80, 0);
  expect_op(2, 0, 0);
}
END_TEST

/* A blocking stream depends on a non-blocking one by an event; the legacy stream inherits it. */
START_TEST(the_legacy_stream_inherits) {
  begin();
  struct b200_overlap_wait found;
  b200_overlap_stream(overlap, LEGACY, true, true);
  b200_overlap_stream(overlap, SIDE, true, false);
  collective(COMM, 1);
  record(1, COMM);
  wait(SIDE, 1);
  ck_assert(b200_overlap_implicit(overlap, LEGACY, &found));
  ck_assert_uint_eq(added(&found), 1);
  collective(LEGACY, 2);
  ck_assert(b200_overlap_implicit(overlap, SIDE, &found));
  ck_assert_uint_eq(added(&found), 1);
}
END_TEST

/* A step's boundary: the host passes it, and later the device. */
static void boundary(uint64_t to, int64_t t_ns) {
  b200_overlap_boundary(overlap, to, t_ns, true);
}

START_TEST(intervals_are_cut_to_steps_and_carried_over) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  b200_overlap_step(overlap, 5);
  boundary(5, 1000);
  struct b200_overlap_id first = collective(COMM, 1), second = collective(SIDE, 2);
  record(1, COMM);
  record(2, SIDE);
  struct b200_overlap_wait a = wait(MAIN, 1), b = wait(MAIN, 2);
  b200_overlap_step(overlap, 6);
  b200_overlap_done(overlap, first, 900, 1500);
  b200_overlap_done(overlap, second, 1400, 2600); /* beyond step 6 */
  b200_overlap_waited(overlap, &a, 1100);
  b200_overlap_waited(overlap, &b, 1300);
  boundary(6, 2000);
  ck_assert_uint_eq(ops + steps, 0);
  struct b200_overlap_id third = collective(COMM, 3);
  b200_overlap_step(overlap, 7);
  b200_overlap_done(overlap, third, 1990, 2100); /* of step 6, but it starts in 5 */
  boundary(7, 2500);
  ck_assert_uint_eq(ops, 2); /* of step 5; 6 can still change */
  ck_assert_uint_eq(steps, 1);
  ck_assert_uint_eq(step[0].step, 5);
  ck_assert_int_eq(step[0].t_start_ns, 1000);
  ck_assert_int_eq(step[0].t_end_ns, 2000);
  ck_assert_uint_eq(step[0].collectives, 2);
  ck_assert_int_eq(step[0].comm_ns, 600 + 1200);
  ck_assert_int_eq(step[0].busy_ns, 1000);
  ck_assert_int_eq(step[0].blocked_ns, 900);
  ck_assert_int_eq(step[0].queued_ns, 100);
  b200_overlap_step(overlap, 8);
  boundary(8, 3000);
  ck_assert_uint_eq(ops, 3);
  ck_assert_uint_eq(steps, 2);
  ck_assert_uint_eq(step[1].step, 6);
  ck_assert_uint_eq(step[1].collectives, 1);
  ck_assert_int_eq(step[1].comm_ns, 110);
  ck_assert_int_eq(step[1].busy_ns, 500);
  ck_assert_int_eq(step[1].blocked_ns, 500);
  finish(3);
  ck_assert_uint_eq(steps, 3);
  ck_assert_uint_eq(step[2].step, 7);
  ck_assert_uint_eq(step[2].collectives, 0);
  ck_assert_int_eq(step[2].busy_ns, 100);
  ck_assert_int_eq(step[2].blocked_ns, 100);
  expect_op(1, 400, 0);
  expect_op(2, 1200, 100);
  expect_op(3, 0, 0);
}
END_TEST

START_TEST(collectives_are_handed_out_in_order) {
  begin();
  boundary(1, 0);
  b200_overlap_step(overlap, 1);
  struct b200_overlap_id id[20];
  for (unsigned i = 0; i < 20; i++)
    id[i] = collective(i % 2 ? COMM : SIDE, i);
  for (unsigned i = 20; i-- > 0;) /* told backwards all the same */
    b200_overlap_done(overlap, id[i], 10 * i, 10 * i + 5);
  boundary(2, 1000);
  ck_assert_uint_eq(ops, 0);
  boundary(3, 2000);
  ck_assert_uint_eq(ops, 20);
  for (unsigned i = 0; i < 20; i++)
    ck_assert_uint_eq(op[i].user, i < 10 ? 2 * i : 2 * (i - 10) + 1);
  ck_assert_int_eq(step[0].busy_ns, 100);
  finish(20);
}
END_TEST

START_TEST(lost_times_hold_up_nothing) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  boundary(1, 0);
  b200_overlap_step(overlap, 1);
  struct b200_overlap_id id[6];
  for (unsigned i = 0; i < 6; i++)
    id[i] = collective(COMM, i);
  record(1, COMM);
  struct b200_overlap_wait found = wait(MAIN, 1);
  b200_overlap_lost(overlap, id[0]);
  b200_overlap_done(overlap, id[0], 0, 1000); /* too late */
  b200_overlap_done(overlap, id[1], 200, 100);
  b200_overlap_done(overlap, id[2], INT64_MIN, INT64_MAX);
  b200_overlap_done(overlap, id[4], 300, 400); /* 3 is never told */
  b200_overlap_done(overlap, id[4], 300, 900); /* told already */
  b200_overlap_lost(overlap, id[4]);
  b200_overlap_done(overlap, id[5], 0, INT64_C(1) << 50);
  b200_overlap_waited(overlap, &found, 350);
  ck_assert_uint_eq(b200_overlap_lost_count(overlap), 4);
  b200_overlap_step(overlap, 2);
  boundary(2, 1000);
  boundary(3, 2000);
  ck_assert_uint_eq(steps, 1);
  ck_assert_uint_eq(step[0].collectives, 1);
  ck_assert_uint_eq(step[0].lost, 5);
  ck_assert_int_eq(step[0].comm_ns, 100);
  ck_assert_int_eq(step[0].blocked_ns, 50);
  ck_assert_uint_eq(b200_overlap_lost_count(overlap), 5);
  b200_overlap_done(overlap, id[3], 100, 200); /* too late */
  wait_adds_nothing(OTHER, 1);                 /* the last one may still run, but cannot be timed any more */
  b200_overlap_done(overlap, (struct b200_overlap_id){.lane = 99}, 1, 2);
  b200_overlap_done(overlap, (struct b200_overlap_id){.lane = id[0].lane, .number = 6}, 1, 2);
  b200_overlap_lost(overlap, (struct b200_overlap_id){.lane = -1});
  finish(1);
  expect_op(4, 50, 0);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 0);
}
END_TEST

/* An end far in the future is a lie as soon as the next on its stream has ended. */
START_TEST(nonsense_does_not_stay) {
  begin();
  boundary(1, 0);
  b200_overlap_step(overlap, 1);
  b200_overlap_done(overlap, collective(COMM, 1), 10, INT64_C(1) << 40);
  b200_overlap_gemm(overlap, 500, INT64_C(1) << 40);
  b200_overlap_gemm(overlap, 500, 400);
  for (int i = 2; i < 8; i++) {
    b200_overlap_step(overlap, (uint64_t)i);
    boundary((uint64_t)i, 1000 * (i - 1));
    b200_overlap_done(overlap, collective(COMM, (uint64_t)i), 1000 * (i - 1), 1000 * (i - 1) + 100);
  }
  finish(7);
  ck_assert_uint_eq(steps, 6);
  ck_assert_int_eq(step[0].busy_ns, 990);
  ck_assert_int_eq(step[0].gemm_ns, 500);
  ck_assert_int_eq(step[5].busy_ns, 100);
  ck_assert_int_eq(step[5].gemm_ns, 0);
  ck_assert_int_eq(step[5].uncovered_ns, 100);
}
END_TEST

START_TEST(a_step_with_an_unknown_end_is_not_handed_out) {
  begin();
  for (uint64_t i = 1; i <= 8; i++) {
    b200_overlap_step(overlap, i);
    b200_overlap_done(overlap, collective(COMM, i), (int64_t)(100 * i), (int64_t)(100 * i) + 10);
    if (i != 4)                                             /* its boundary was lost: 3 has no end, 4 no start */
      boundary(i, i == 6 ? 50 : (int64_t)(100 * i));        /* the clock went back: 5 has no end, 6 no start */
    boundary(i == 4 ? 3 : i, 1);                            /* told already */
    ck_assert_uint_eq(ops, i < 3 ? 0 : i == 4 ? 1 : i - 2); /* 5 makes up for 4 */
  }
  finish(8);
  ck_assert_uint_eq(steps, 3);
  const uint64_t expected[] = {1, 2, 7};
  for (unsigned i = 0; i < 3; i++) {
    ck_assert_uint_eq(step[i].step, expected[i]);
    ck_assert_uint_eq(step[i].collectives, 1);
    ck_assert_int_eq(step[i].busy_ns, 10);
  }
}
END_TEST

START_TEST(uncovered_is_without_gemms) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  b200_overlap_gemm(overlap, 950, 1010);
  boundary(1, 1000);
  b200_overlap_step(overlap, 1);
  struct b200_overlap_id id = collective(COMM, 1), other = collective(SIDE, 2);
  b200_overlap_gemm(overlap, 1500, 1600); /* two streams: not by time */
  b200_overlap_gemm(overlap, 1100, 1300);
  b200_overlap_gemm(overlap, 1200, 1350);
  b200_overlap_done(overlap, id, 1250, 1550);
  b200_overlap_done(overlap, other, 1540, 1700);
  boundary(2, 2000);
  b200_overlap_gemm(overlap, 1690, 2100); /* issued in 2, on a stream that is ahead */
  b200_overlap_boundary(overlap, 3, 3000, false);
  boundary(4, 4000);
  finish(2);
  ck_assert_uint_eq(steps, 3);
  ck_assert_uint_eq(step[0].gemms, 3);
  ck_assert_int_eq(step[0].gemm_ns, 10 + 250 + 100 + 310);
  ck_assert_int_eq(step[0].busy_ns, 450);
  ck_assert_int_eq(step[0].uncovered_ns, 150 + 90);
  ck_assert_uint_eq(step[1].gemms, 0);
  ck_assert_int_eq(step[1].gemm_ns, -1);
  ck_assert_int_eq(step[1].uncovered_ns, -1);
  ck_assert_int_eq(step[2].gemm_ns, 0);
  ck_assert_int_eq(step[2].uncovered_ns, 0);
}
END_TEST

START_TEST(too_many_gemms_are_as_if_none_was_timed) {
  begin();
  boundary(1, 0);
  for (int i = 0; i < B200_OVERLAP_GEMMS + 1; i++)
    b200_overlap_gemm(overlap, 10 * i, 10 * i + 5);
  int64_t end = 10 * B200_OVERLAP_GEMMS + 5;
  b200_overlap_gemm(overlap, end - 10, end + 101); /* reaches into the next step but one */
  boundary(2, end);
  boundary(3, end + 100);
  b200_overlap_gemm(overlap, end + 105, end + 120);
  boundary(4, end + 200);
  b200_overlap_gemm(overlap, end + 200, end + 220);
  boundary(5, end + 300);
  finish(0);
  ck_assert_uint_eq(steps, 4);
  const int64_t expected[] = {-1, -1, 15, 20}; /* two steps on it counts no more, as any GEMM */
  for (unsigned i = 0; i < 4; i++)
    ck_assert_int_eq(step[i].gemm_ns, expected[i]);
}
END_TEST

START_TEST(a_full_lane_leaves_collectives_untimed) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  boundary(1, 0);
  b200_overlap_step(overlap, 1);
  struct b200_overlap_id first = collective(COMM, 1);
  for (unsigned i = 1; i < B200_OVERLAP_PENDING; i++)
    collective(COMM, 2);
  struct b200_overlap_id none = b200_overlap_collective(overlap, COMM, 3);
  ck_assert_int_lt(none.lane, 0);
  b200_overlap_done(overlap, none, 0, 1000);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 1);
  struct b200_overlap_id other = collective(SIDE, 4);
  for (unsigned i = 0; i < B200_OVERLAP_PENDING; i++)
    b200_overlap_done(overlap, (struct b200_overlap_id){first.lane, i}, 2 * i, 2 * i + 1);
  b200_overlap_done(overlap, other, 0, 7);
  b200_overlap_step(overlap, 2);
  boundary(2, 2 * B200_OVERLAP_PENDING);
  ck_assert_int_lt(b200_overlap_collective(overlap, COMM, 5).lane, 0);
  boundary(3, 2 * B200_OVERLAP_PENDING + 10);
  struct b200_overlap_id next = collective(COMM, 6);
  ck_assert_uint_eq(next.number, B200_OVERLAP_PENDING);
  b200_overlap_done(overlap, next, 2 * B200_OVERLAP_PENDING, 2 * B200_OVERLAP_PENDING + 1);
  finish(B200_OVERLAP_PENDING + 2);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 2);
  ck_assert_int_eq(step[0].busy_ns, B200_OVERLAP_PENDING + 3);
  ck_assert_uint_eq(step[0].collectives, B200_OVERLAP_PENDING + 1);
}
END_TEST

START_TEST(an_idle_lane_changes_hands) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  boundary(1, 0);
  b200_overlap_step(overlap, 1);
  for (unsigned i = 0; i < B200_OVERLAP_LANES; i++) {
    b200_overlap_done(overlap, collective(100 + i, i), 10, 20);
    record(i, 100 + i);
  }
  ck_assert_int_lt(b200_overlap_collective(overlap, 200, 99).lane, 0);
  b200_overlap_step(overlap, 2);
  boundary(2, 1000);
  boundary(3, 2000);
  boundary(4, 3000);
  struct b200_overlap_id id = collective(200, 50);
  ck_assert_uint_eq(id.number, 1);
  record(77, 200);
  struct b200_overlap_wait found = wait(MAIN, 77);
  ck_assert_uint_eq(added(&found), 1);
  for (unsigned i = 0; i < B200_OVERLAP_LANES; i++)
    wait_adds_nothing(MAIN, i);
  b200_overlap_done(overlap, id, 3000, 3100);
  b200_overlap_waited(overlap, &found, 3010);
  ck_assert_int_ne(collective(100, 51).lane, id.lane); /* the stream whose lane it was gets another */
  finish(B200_OVERLAP_LANES + 1);
  expect_op(50, 90, 0);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 1);
}
END_TEST

START_TEST(streams_give_way_when_nothing_of_theirs_is_left) {
  begin();
  boundary(1, 0);
  b200_overlap_step(overlap, 1);
  struct b200_overlap_id id = collective(COMM, 1), other = collective(SIDE, 2);
  record(1, COMM);
  for (unsigned i = 0; i < B200_OVERLAP_STREAMS - 2; i++)
    wait(100 + i, 1);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 0);
  wait_adds_nothing(MAIN, 1); /* cannot be followed: 1 is untimed, 2 is not */
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 1);
  ck_assert_int_lt(b200_overlap_collective(overlap, MAIN, 3).lane, 0);
  b200_overlap_done(overlap, id, 100, 200);
  b200_overlap_done(overlap, other, 100, 200);
  b200_overlap_step(overlap, 2);
  boundary(2, 300);
  boundary(3, 400);
  ck_assert_uint_eq(ops, 1);
  ck_assert_uint_eq(op[0].user, 2);
  for (unsigned round = 0; round < 4; round++) /* twice as many as fit, now that each is idle at once */
    for (unsigned i = 0; i < B200_OVERLAP_STREAMS / 2; i++)
      b200_overlap_compute(overlap, 1000 + 100 * round + i);
  id = collective(COMM, 4);
  record(1, COMM);
  struct b200_overlap_wait found = wait(1300, 1);
  b200_overlap_done(overlap, id, 500, 600);
  b200_overlap_waited(overlap, &found, 540);
  finish(2);
  expect_op(4, 60, 0);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 2);
}
END_TEST

START_TEST(the_oldest_record_gives_way) {
  begin();
  b200_overlap_compute(overlap, MAIN);
  struct b200_overlap_id first = collective(COMM, 1);
  record(0, COMM);
  struct b200_overlap_id second = collective(COMM, 2);
  for (unsigned i = 1; i < B200_OVERLAP_EVENTS; i++)
    record(i, COMM);
  record(1, COMM); /* newer than 2 now */
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 0);
  record(B200_OVERLAP_EVENTS, COMM); /* 0 gives way: the first is untimed */
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 1);
  wait_adds_nothing(MAIN, 0);
  b200_overlap_forget_event(overlap, 5);
  record(B200_OVERLAP_EVENTS + 1, COMM); /* takes the place of 5 */
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 1);
  struct b200_overlap_wait found = wait(MAIN, 1);
  b200_overlap_done(overlap, first, 100, 200);
  b200_overlap_done(overlap, second, 200, 300);
  b200_overlap_waited(overlap, &found, 150);
  record(B200_OVERLAP_EVENTS + 2, COMM); /* nothing unfinished: needs no place */
  finish(1);
  expect_op(2, 100, 50);
}
END_TEST

START_TEST(a_record_again_is_the_newest) {
  begin();
  struct b200_overlap_id first = collective(COMM, 1);
  record(0, COMM);
  record(1, COMM);
  struct b200_overlap_id second = collective(COMM, 2);
  record(0, COMM);
  for (unsigned i = 2; i < B200_OVERLAP_EVENTS + 1; i++) /* 1 gives way */
    record(i, COMM);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 1);
  struct b200_overlap_wait found = wait(MAIN, 0);
  ck_assert_uint_eq(added(&found), 2);
  b200_overlap_done(overlap, first, 100, 200);
  b200_overlap_done(overlap, second, 200, 300);
  finish(1);
  ck_assert_uint_eq(op[0].user, 2);
}
END_TEST

START_TEST(records_of_finished_work_need_no_room) {
  begin();
  struct b200_overlap_id id = collective(COMM, 1);
  b200_overlap_done(overlap, id, 1, 2);
  struct b200_overlap_id open = collective(SIDE, 2);
  record(1, SIDE);
  for (unsigned i = 2; i < 3 * B200_OVERLAP_EVENTS; i++)
    record(i, COMM);
  wait(MAIN, 1);
  b200_overlap_done(overlap, open, 1, 2);
  finish(2);
  ck_assert_uint_eq(b200_overlap_overflow(overlap), 0);
}
END_TEST

#define CASES(X)                                                                                                            \
  X(a_wait_blocks_from_its_time_to_the_end)                                                                                 \
  X(nobody_waits)                                                                                                           \
  X(a_collective_on_a_compute_stream_blocks_for_all_of_it)                                                                  \
  X(it_may_turn_out_later_that_a_stream_computes)                                                                           \
  X(a_wait_reaches_through_a_third_stream)                                                                                  \
  X(a_wait_without_a_time_loses_its_collectives)                                                                            \
  X(two_waits_on_one_event)                                                                                                 \
  X(a_wait_is_for_the_newest_record)                                                                                        \
  X(a_wait_before_the_record_adds_nothing)                                                                                  \
  X(a_record_before_the_collective_adds_nothing)                                                                            \
  X(a_destroyed_event_and_its_handle)                                                                                       \
  X(what_is_over_adds_nothing)                                                                                              \
  X(what_the_host_waited_for_is_over)                                                                                       \
  X(the_legacy_stream_is_ordered_with_blocking_ones)                                                                        \
  X(the_legacy_stream_inherits)                                                                                             \
  X(intervals_are_cut_to_steps_and_carried_over)                                                                            \
  X(collectives_are_handed_out_in_order)                                                                                    \
  X(lost_times_hold_up_nothing)                                                                                             \
  X(nonsense_does_not_stay)                                                                                                 \
  X(a_step_with_an_unknown_end_is_not_handed_out)                                                                           \
  X(uncovered_is_without_gemms)                                                                                             \
  X(too_many_gemms_are_as_if_none_was_timed)                                                                                \
  X(a_full_lane_leaves_collectives_untimed)                                                                                 \
  X(an_idle_lane_changes_hands)                                                                                             \
  X(streams_give_way_when_nothing_of_theirs_is_left)                                                                        \
  X(the_oldest_record_gives_way)                                                                                            \
  X(a_record_again_is_the_newest)                                                                                           \
  X(records_of_finished_work_need_no_room)

UNIT_MAIN("comm_overlap", CASES)
