/* SPDX-License-Identifier: Apache-2.0 */
/* The race checker by hand-made clocks: what it reports, what it does not, and how it says it. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "tests/vnode_order/race_double.h"

#define A ((uintptr_t)0x10000)
#define NOTHING_SAID ck_assert_str_eq(said(), "")
#define HOST (LANES - 1)

static void expect(const char *kind, const char *newer, const char *older) {
  const char *text = said();
  char start[128], end[128];
  snprintf(start, sizeof start, "race: %s: %s ", kind, newer);
  snprintf(end, sizeof end, "which %s", older);
  ck_assert_msg(strncmp(text, start, strlen(start)) == 0 && strstr(text, end), "expected \"%s … %s\", got \"%s\"", start,
                end, text);
  ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

START_TEST(each_kind_is_told_with_both_operations) {
  lane_touches(1, "fill", writes(A, 100));
  lane_touches(2, "sum", reads(A + 90, 100));
  ck_assert_str_eq(said(), "race: read after unordered write: sum (lane 2, operation 1) reads 10 bytes within "
                           "0x1005a..0x10064, which fill (lane 1, operation 1) writes; nothing orders it after fill: an "
                           "event wait or a synchronisation is missing\n");
  lane_waits(3, 1);
  lane_touches(3, "fill again", writes(A, 100));
  expect("write after unordered read", "fill again (lane 3, operation 1)", "sum (lane 2, operation 1) reads");
  lane_touches(1, "clear", writes(A + 50, 1));
  expect("write after unordered write", "clear (lane 1, operation 2)", "fill again (lane 3, operation 1) writes");
  vnode_race_release(lane_clock(HOST), (void *)A, 50, "cudaFree");
  expect("freed while in use", "cudaFree frees 50 bytes", "fill again (lane 3, operation 1) uses");
  NOTHING_SAID;
}
END_TEST

START_TEST(use_after_free_ends_with_a_new_allocation) {
  lane_touches(1, "fill", writes(A, 100));
  lane_waits(HOST, 1);
  vnode_race_release(lane_clock(HOST), (void *)A, 100, "cudaFree");
  NOTHING_SAID;
  lane_touches(1, "late fill", writes(A + 99, 100));
  ck_assert_str_eq(said(), "race: use after free: late fill (lane 1, operation 2) uses 1 bytes within 0x10063..0x10064, "
                           "which cudaFree has freed\n");
  lane_touches(1, "late sum", reads(A, 1));
  expect("use after free", "late sum", "cudaFree");
  vnode_race_fresh((void *)A, 100);
  lane_touches(2, "fill", writes(A, 100));
  NOTHING_SAID;
  lane_touches(2, "read of the rest", reads(A + 100, 100));
  expect("read after unordered write", "read of the rest", "late fill");
}
END_TEST

START_TEST(waits_order) {
  uint32_t first = lane_touches(1, "fill", writes(A, 100));
  lane_touches(1, "fill more", writes(A + 100, 100));
  lane_waits_for_number(2, 1, first);
  lane_touches(2, "sum", reads(A, 100));
  NOTHING_SAID;
  lane_touches(2, "sum more", reads(A, 101)); /* the wait was for the first record of the event */
  expect("read after unordered write", "sum more", "fill more");
  lane_waits(3, 2); /* over two lanes: 1 before 2 before 3 */
  lane_touches(3, "clear", writes(A, 100));
  NOTHING_SAID;
}
END_TEST

START_TEST(reads_do_not_race_with_reads) {
  for (int lane = 0; lane < LANES; lane++)
    lane_touches(lane, "sum", reads(A, 100));
  NOTHING_SAID;
  for (int lane = 1; lane < LANES - 1; lane++)
    lane_waits(0, lane);
  lane_touches(0, "fill", writes(A, 100)); /* one of eight reads was not waited for */
  expect("write after unordered read", "fill", "sum (lane 7, operation 1)");
}
END_TEST

START_TEST(an_operation_does_not_race_with_itself) {
  lane_runs(1, "in place", (struct vnode_access[]){reads(A, 100), writes(A, 100), reads(A + 10, 10), {.row_bytes = 0}});
  NOTHING_SAID;
}
END_TEST

START_TEST(streams_that_share_the_last_lane_do_not_race) {
  static const struct vnode_race_clock nothing;
  const struct vnode_access fill = writes(A, 100);
  struct vnode_race_op op = {.name = "fill", .lane = VNODE_RACE_LANES - 1, .epoch = 7, .clock = &nothing};
  vnode_race_access(&op, &fill, 1);
  op.epoch = 2; /* of another stream, that counts for itself */
  vnode_race_access(&op, &fill, 1);
  NOTHING_SAID;
}
END_TEST

START_TEST(rows_are_exact) {
  const struct vnode_access columns = {.at = (void *)A, .row_bytes = 4, .rows = VNODE_RACE_ROWS, .pitch = 16, .write = true};
  struct vnode_access others = columns;
  others.at = (void *)(A + 4);
  lane_touches(1, "left", columns);
  lane_touches(2, "right", others);
  NOTHING_SAID;
  others.at = (void *)(A + 2);
  lane_touches(3, "middle", others);
  const char *text = said();
  ck_assert_ptr_nonnull(strstr(text, "middle (lane 3, operation 1) writes 2048 bytes"));
  ck_assert_ptr_nonnull(strstr(text, "which left"));
  ck_assert_ptr_nonnull(strstr(text, "which right"));
  ck_assert_uint_eq(vnode_race_reports(), 2);
}
END_TEST

START_TEST(too_many_rows_are_left_out_and_counted) {
  struct vnode_access rows = {.at = (void *)A, .row_bytes = 4, .rows = VNODE_RACE_ROWS + 1, .pitch = 16, .write = true};
  lane_touches(1, "fill", rows);
  ck_assert_uint_eq(vnode_race_left_out(), 1);
  ck_assert_uint_eq(vnode_race_segments(), 0);
  rows.pitch = 4; /* rows that touch are one range */
  lane_touches(1, "fill", rows);
  ck_assert_uint_eq(vnode_race_left_out(), 1);
  ck_assert_uint_eq(vnode_race_segments(), 1);
  lane_touches(2, "sum", reads(A + 4 * VNODE_RACE_ROWS, 4));
  expect("read after unordered write", "sum", "fill");
}
END_TEST

START_TEST(a_pair_is_said_once_and_counted_always) {
  lane_touches(1, "fill", writes(A, 100));
  for (int i = 0; i < 10; i++)
    lane_touches(2, "sum", reads(A, 100));
  expect("read after unordered write", "sum", "fill");
  ck_assert_uint_eq(vnode_race_reports(), 10);
  vnode_race_report("host memory changed", "copy", (void *)A, 8, "too early");
  vnode_race_report("host memory changed", "copy", (void *)A, 8, "too early");
  ck_assert_str_eq(said(), "race: host memory changed: copy, 8 bytes at 0x10000; too early\n");
  ck_assert_uint_eq(vnode_race_reports(), 12);
}
END_TEST

START_TEST(a_flood_of_pairs_ends) {
  enum { PAIRS = 10000 };
  static char names[PAIRS][16];
  for (int i = 0; i < PAIRS; i++) {
    snprintf(names[i], sizeof names[i], "fill%d", i);
    lane_touches(i % 2, names[i], writes(A, 4));
  }
  const char *last = strstr(said(), "more pairs of operations race than are said");
  ck_assert_ptr_nonnull(last);
  ck_assert_ptr_eq(strchr(last, '\n'), last + strlen(last) - 1);
  ck_assert_uint_eq(vnode_race_reports(), PAIRS - 1);
}
END_TEST

START_TEST(equal_neighbours_are_one) {
  for (uintptr_t i = 0; i < 100; i++)
    lane_touches(1, "fill", writes(A + 10 * i, 10));
  ck_assert_uint_eq(vnode_race_segments(), 100);
  lane_touches(1, "sum", reads(A, 1000));
  ck_assert_uint_eq(vnode_race_segments(), 100);
  lane_touches(1, "fill", writes(A, 1000));
  ck_assert_uint_eq(vnode_race_segments(), 1);
  lane_touches(1, "sum", reads(A + 100, 100));
  ck_assert_uint_eq(vnode_race_segments(), 3);
  lane_touches(1, "sum", reads(A, 1000));
  ck_assert_uint_eq(vnode_race_segments(), 1);
  vnode_race_release(lane_clock(1), (void *)A, 500, "cudaFree");
  vnode_race_release(lane_clock(1), (void *)(A + 500), 500, "cudaFree");
  ck_assert_uint_eq(vnode_race_segments(), 1);
  vnode_race_fresh((void *)(A + 100), 100);
  ck_assert_uint_eq(vnode_race_segments(), 2);
  vnode_race_fresh((void *)A, 1000);
  ck_assert_uint_eq(vnode_race_segments(), 0);
}
END_TEST

#define CASES(X)                                                                                                            \
  X(each_kind_is_told_with_both_operations)                                                                                 \
  X(use_after_free_ends_with_a_new_allocation)                                                                              \
  X(waits_order)                                                                                                            \
  X(reads_do_not_race_with_reads)                                                                                           \
  X(an_operation_does_not_race_with_itself)                                                                                 \
  X(streams_that_share_the_last_lane_do_not_race)                                                                           \
  X(rows_are_exact)                                                                                                         \
  X(too_many_rows_are_left_out_and_counted)                                                                                 \
  X(a_pair_is_said_once_and_counted_always) X(a_flood_of_pairs_ends) X(equal_neighbours_are_one)
UNIT_MAIN("race", CASES)
