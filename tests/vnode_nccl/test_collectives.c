/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective, data type, operator and a set of awkward counts, in place and out of place, against reference.c, bit for
 * bit. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

static const ncclRedOp_t builtin[] = {
    [REF_SUM] = ncclSum, [REF_PROD] = ncclProd, [REF_MAX] = ncclMax, [REF_MIN] = ncclMin, [REF_AVG] = ncclAvg};

struct run {
  struct rank *rank;
  ncclComm_t comm;
  ncclDataType_t type;
  size_t count;
  unsigned seed;
  unsigned char *in, *out, *want; /* nranks · count elements and a guard each */
};

enum { GUARD_BYTES = 64 };

static size_t whole_bytes(const struct run *run) {
  return run->count * type_bytes(run->type) * (size_t)run->rank->nranks;
}

static void prepare(struct run *run) {
  run->seed++;
  fill(run->type, run->seed, run->rank->rank, run->count * (size_t)run->rank->nranks, run->in);
  memset(run->out, 0xa5, whole_bytes(run) + GUARD_BYTES);
}

static void expect(const struct run *run, const void *got, const void *want, size_t bytes, const char *what) {
  for (size_t i = 0; i < bytes; i++)
    CHECK(run->rank, ((const unsigned char *)got)[i] == ((const unsigned char *)want)[i],
          "%s, type %d, count %zu: byte %zu of %zu is %#x, expected %#x", what, (int)run->type, run->count, i, bytes,
          ((const unsigned char *)got)[i], ((const unsigned char *)want)[i]);
}

static void expect_untouched(const struct run *run, const unsigned char *from, size_t bytes, const char *what) {
  for (size_t i = 0; i < bytes; i++)
    CHECK(run->rank, from[i] == 0xa5, "%s, type %d, count %zu: wrote outside its result", what, (int)run->type, run->count);
}

static void check_reductions(struct run *run, enum reference_op which, ncclRedOp_t op) {
  struct rank *rank = run->rank;
  size_t bytes = run->count * type_bytes(run->type), own = (size_t)rank->rank * bytes;
  int root = rank->nranks - 1;

  prepare(run);
  CHECK_OK(rank, settle(run->comm, ncclAllReduce(run->in, run->out, run->count, run->type, op, run->comm, NULL)));
  reference(run->type, which, run->seed, rank->nranks, 0, run->count, run->want);
  expect(run, run->out, run->want, bytes, "AllReduce");
  expect_untouched(run, run->out + bytes, GUARD_BYTES, "AllReduce");
  CHECK_OK(rank, settle(run->comm, ncclAllReduce(run->in, run->in, run->count, run->type, op, run->comm, NULL)));
  expect(run, run->in, run->want, bytes, "AllReduce in place");

  prepare(run);
  CHECK_OK(rank, settle(run->comm, ncclReduce(run->in, rank->rank == root ? run->out : NULL, run->count, run->type, op, root,
                                              run->comm, NULL)));
  reference(run->type, which, run->seed, rank->nranks, 0, run->count, run->want);
  if (rank->rank == root)
    expect(run, run->out, run->want, bytes, "Reduce");

  prepare(run);
  CHECK_OK(rank, settle(run->comm, ncclReduceScatter(run->in, run->out, run->count, run->type, op, run->comm, NULL)));
  reference(run->type, which, run->seed, rank->nranks, (size_t)rank->rank * run->count, run->count, run->want);
  expect(run, run->out, run->want, bytes, "ReduceScatter");
  expect_untouched(run, run->out + bytes, GUARD_BYTES, "ReduceScatter");
  CHECK_OK(rank, settle(run->comm, ncclReduceScatter(run->in, run->in + own, run->count, run->type, op, run->comm, NULL)));
  expect(run, run->in + own, run->want, bytes, "ReduceScatter in place");
}

static void check_premul(struct run *run) {
  uint64_t scalar = 0;
  for (int residence = 0; residence < 2; residence++) {
    ncclRedOp_t op;
    factor_of(run->type, run->rank->rank, &scalar);
    CHECK_OK(run->rank, ncclRedOpCreatePreMulSum(&op, &scalar, run->type,
                                                 residence ? ncclScalarHostImmediate : ncclScalarDevice, run->comm));
    if (residence)
      scalar = 0; /* read before the call returned */
    check_reductions(run, REF_PREMUL, op);
    CHECK_OK(run->rank, ncclRedOpDestroy(op, run->comm));
    CHECK_CODE(run->rank, ncclRedOpDestroy(op, run->comm), ncclInvalidArgument);
  }
}

/* Concatenates what all ranks have at element `from` of their inputs. */
static void gather_inputs(const struct run *run, unsigned seed, size_t from, void *out) {
  size_t bytes = run->count * type_bytes(run->type);
  unsigned char *whole = malloc(whole_bytes(run) + 1);
  for (int r = 0; r < run->rank->nranks; r++) {
    fill(run->type, seed, r, run->count * (size_t)run->rank->nranks, whole);
    memcpy((unsigned char *)out + (size_t)r * bytes, whole + from * type_bytes(run->type), bytes);
  }
  free(whole);
}

static void check_all_gather(struct run *run) {
  size_t bytes = run->count * type_bytes(run->type), own = (size_t)run->rank->rank * bytes;
  prepare(run);
  gather_inputs(run, run->seed, 0, run->want);
  CHECK_OK(run->rank, settle(run->comm, ncclAllGather(run->in, run->out, run->count, run->type, run->comm, NULL)));
  expect(run, run->out, run->want, whole_bytes(run), "AllGather");
  expect_untouched(run, run->out + whole_bytes(run), GUARD_BYTES, "AllGather");
  memset(run->out, 0xa5, whole_bytes(run));
  memcpy(run->out + own, run->in, bytes);
  CHECK_OK(run->rank, settle(run->comm, ncclAllGather(run->out + own, run->out, run->count, run->type, run->comm, NULL)));
  expect(run, run->out, run->want, whole_bytes(run), "AllGather in place");
}

static void check_rooted(struct run *run) {
  struct rank *rank = run->rank;
  size_t bytes = run->count * type_bytes(run->type), own = (size_t)rank->rank * bytes;
  for (int root = 0; root<rank->nranks; root += rank->nranks> 1 ? rank->nranks - 1 : 1) {
    bool is_root = rank->rank == root;
    prepare(run);
    gather_inputs(run, run->seed, 0, run->want);
    CHECK_OK(rank, settle(run->comm,
                          ncclBroadcast(is_root ? run->in : NULL, run->out, run->count, run->type, root, run->comm, NULL)));
    expect(run, run->out, run->want + (size_t)root * bytes, bytes, "Broadcast");
    CHECK_OK(rank, settle(run->comm, ncclBcast(run->in, run->count, run->type, root, run->comm, NULL)));
    expect(run, run->in, run->want + (size_t)root * bytes, bytes, "Bcast");

    prepare(run);
    gather_inputs(run, run->seed, 0, run->want);
    CHECK_OK(rank, settle(run->comm,
                          ncclGather(run->in, is_root ? run->out : NULL, run->count, run->type, root, run->comm, NULL)));
    if (is_root)
      expect(run, run->out, run->want, whole_bytes(run), "Gather");

    prepare(run);
    fill(run->type, run->seed, root, run->count * (size_t)rank->nranks, run->want);
    CHECK_OK(rank, settle(run->comm,
                          ncclScatter(is_root ? run->in : NULL, run->out, run->count, run->type, root, run->comm, NULL)));
    expect(run, run->out, run->want + own, bytes, "Scatter");
    expect_untouched(run, run->out + bytes, GUARD_BYTES, "Scatter");
  }
}

static void check_all_to_all(struct run *run) {
  prepare(run);
  gather_inputs(run, run->seed, (size_t)run->rank->rank * run->count, run->want);
  CHECK_OK(run->rank, settle(run->comm, ncclAlltoAll(run->in, run->out, run->count, run->type, run->comm, NULL)));
  expect(run, run->out, run->want, whole_bytes(run), "AlltoAll");
  expect_untouched(run, run->out + whole_bytes(run), GUARD_BYTES, "AlltoAll");
}

static void check_type(struct run *run, size_t count) {
  run->count = count;
  for (enum reference_op op = REF_SUM; op <= REF_AVG; op++)
    check_reductions(run, op, builtin[op]);
  check_premul(run);
  check_all_gather(run);
  check_rooted(run);
  check_all_to_all(run);
}

static void every_type(struct rank *rank, const void *context) {
  static const size_t counts[] = {0, 1, 7, 1025};
  size_t room = 1025 * 8 * RANKS_MAX + GUARD_BYTES;
  struct run run = {.rank = rank, .comm = rank_comm(rank, 0), .in = malloc(room), .out = malloc(room), .want = malloc(room)};
  (void)context;
  for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
      run.type = all_types[t];
      check_type(&run, counts[c]);
    }
  CHECK_OK(rank, ncclCommDestroy(run.comm));
}

/* Sizes on both sides of the slots' size, so that chunks, shares and both halves of the slots are used. */
static void big_counts(struct rank *rank, const void *context) {
  static const size_t counts[] = {(1u << 20) / 4 - 1, 300001};
  size_t room = 300001 * 4 * (size_t)rank->nranks + GUARD_BYTES;
  struct run run = {.rank = rank, .comm = rank_comm(rank, 0), .in = malloc(room), .out = malloc(room), .want = malloc(room)};
  (void)context;
  run.type = ncclFloat32;
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    run.count = counts[c];
    if (c == 1)
      check_reductions(&run, REF_SUM, ncclSum);
    check_all_gather(&run);
    check_all_to_all(&run);
  }
  run.count = counts[1];
  check_rooted(&run);
  run.type = ncclBfloat16;
  check_reductions(&run, REF_AVG, ncclAvg);
  CHECK_OK(rank, ncclCommDestroy(run.comm));
}

static const int worlds[] = {1, 2, 3, 4, 8};

START_TEST(test_every_type) {
  ranks_run(worlds[_i], every_type, NULL);
}
END_TEST

START_TEST(test_big_counts) {
  ranks_run(worlds[_i], big_counts, NULL);
}
END_TEST

/* Values where a conversion can go wrong: largest finite, halfway cases, overflow, subnormals, infinities and NaN. */
static void corner_values(struct rank *rank, const void *context) {
  static const uint16_t half[] = {0x7bff, 0x7c00, 0x0001, 0x03ff, 0x0400, 0x8001, 0x7e00, 0x0000};
  static const uint16_t half_sums[] = {0x7c00, 0x7c00, 0x0002, 0x07fe, 0x0800, 0x8002, 0x7fff, 0x0000};
  static const uint16_t brain[] = {0x7f7f, 0x7f80, 0x0001, 0x3f81, 0xff80, 0x7fc0, 0x8000, 0x4049};
  static const uint16_t brain_sums[] = {0x7f80, 0x7f80, 0x0002, 0x4001, 0xff80, 0x7fff, 0x8000, 0x40c9};
  static const uint8_t e4m3[] = {0x7e, 0x7f, 0x01, 0x07, 0x08, 0xfe, 0x80, 0x38};
  static const uint8_t e4m3_sums[] = {0x7e, 0x7f, 0x02, 0x0e, 0x10, 0xfe, 0x80, 0x40};
  static const uint8_t e5m2[] = {0x7b, 0x7c, 0x01, 0x03, 0x04, 0xfb, 0x80, 0x3c};
  static const uint8_t e5m2_sums[] = {0x7b, 0x7b, 0x02, 0x06, 0x08, 0xfb, 0x80, 0x40};
  const struct {
    ncclDataType_t type;
    const void *in, *want;
  } rows[] = {{ncclFloat16, half, half_sums},
              {ncclBfloat16, brain, brain_sums},
              {ncclFloat8e4m3, e4m3, e4m3_sums},
              {ncclFloat8e5m2, e5m2, e5m2_sums}};
  struct run run = {.rank = rank, .comm = rank_comm(rank, 0), .count = 8};
  (void)context;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    uint16_t out[8];
    run.type = rows[i].type;
    CHECK_OK(rank, settle(run.comm, ncclAllReduce(rows[i].in, out, 8, run.type, ncclSum, run.comm, NULL)));
    expect(&run, out, rows[i].want, 8 * type_bytes(run.type), "sum of a corner value with itself");
  }
  const float nan_and_number[] = {rank->rank ? 2.0f : __builtin_nanf(""), rank->rank ? __builtin_nanf("") : 3.0f};
  float least[2];
  CHECK_OK(rank, settle(run.comm, ncclAllReduce(nan_and_number, least, 2, ncclFloat32, ncclMin, run.comm, NULL)));
  CHECK(rank, least[0] == 2.0f && least[1] == 3.0f, "min with NaN gives %g, %g", (double)least[0], (double)least[1]);
  CHECK_OK(rank, ncclCommDestroy(run.comm));
}

START_TEST(test_corner_values) {
  ranks_run(2, corner_values, NULL);
}
END_TEST

static void bad_arguments(struct rank *rank, const void *context) {
  float x[4] = {0};
  ncclRedOp_t op;
  float scalar = 1;
  ncclComm_t comm = rank_comm(rank, 0), other = rank_comm(rank, 1);
  (void)context;
  CHECK_CODE(rank, ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, NULL, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclAllReduce(x, x, 4, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclAllReduce(x, x, 4, ncclFloat32, (ncclRedOp_t)77, comm, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclAllReduce(NULL, x, 4, ncclFloat32, ncclSum, comm, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclBroadcast(x, x, 4, ncclFloat32, rank->nranks, comm, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclSend(x, 4, ncclFloat32, -1, comm, NULL), ncclInvalidArgument);
  CHECK_OK(rank, ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comm));
  CHECK_CODE(rank, ncclAllReduce(x, x, 4, ncclFloat16, op, comm, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclAllReduce(x, x, 4, ncclFloat32, op, other, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
  CHECK_OK(rank, ncclGroupStart());
  CHECK_CODE(rank, ncclBroadcast(x, x, 4, ncclFloat32, 9, comm, NULL), ncclInvalidArgument);
  CHECK_CODE(rank, ncclGroupEnd(), ncclInvalidArgument);
  CHECK_CODE(rank, ncclGroupEnd(), ncclInvalidUsage);
  CHECK_OK(rank, settle(comm, ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, NULL))); /* none of this has harmed it */
  /* Ranks that disagree are told so; the communicator is of no more use. */
  CHECK_CODE(rank, settle(comm, ncclAllReduce(x, x, rank->rank ? 3 : 4, ncclFloat32, ncclSum, comm, NULL)),
             ncclInvalidUsage);
  CHECK(rank, strstr(ncclGetLastError(comm), "disagree"), "text: %s", ncclGetLastError(comm));
  CHECK_CODE(rank, ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, NULL), ncclInvalidUsage);
  CHECK_OK(rank, ncclCommDestroy(comm));
  CHECK_OK(rank, ncclCommDestroy(other));
}

START_TEST(test_bad_arguments) {
  ranks_run(2, bad_arguments, NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl collectives");
  TCase *tests = tcase_create("collectives");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_loop_test(tests, test_every_type, 0, sizeof worlds / sizeof *worlds);
  tcase_add_loop_test(tests, test_big_counts, 0, sizeof worlds / sizeof *worlds);
  tcase_add_test(tests, test_corner_values);
  tcase_add_test(tests, test_bad_arguments);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
