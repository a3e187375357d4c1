/* SPDX-License-Identifier: Apache-2.0 */
/* Point-to-point and groups: rings and exchanges of any size, order within a pair, messages to oneself, several
 * communicators. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "ranks.h"

static uint32_t word_of(int from, int to, unsigned message, size_t i) {
  return (uint32_t)(i * 2654435761u) ^ (uint32_t)(from * 131 + to * 17) ^ (message << 20);
}

static void put(uint32_t *buffer, int from, int to, unsigned message, size_t count) {
  for (size_t i = 0; i < count; i++)
    buffer[i] = word_of(from, to, message, i);
}

static void expect(struct rank *rank, const uint32_t *buffer, int from, int to, unsigned message, size_t count) {
  for (size_t i = 0; i < count; i++)
    CHECK(rank, buffer[i] == word_of(from, to, message, i), "message %u from %d to %d: word %zu of %zu is wrong", message,
          from, to, i, count);
}

/* Everyone sends to the next and receives from the one before; 16 MiB exceed any buffer between them. */
static void ring(struct rank *rank, const void *context) {
  static const size_t counts[] = {0, 1, 3, 32768, 32769, 4u << 20};
  ncclComm_t comm = rank_comm(rank, 0);
  int next = (rank->rank + 1) % rank->nranks, before = (rank->rank + rank->nranks - 1) % rank->nranks;
  uint32_t *out = malloc(16u << 20), *in = malloc(16u << 20);
  (void)context;
  for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
    put(out, rank->rank, next, c, counts[c]);
    memset(in, 0, counts[c] * 4);
    CHECK_OK(rank, ncclGroupStart());
    CHECK_OK(rank, ncclSend(out, counts[c], ncclUint32, next, comm, NULL));
    CHECK_OK(rank, ncclRecv(in, counts[c], ncclUint32, before, comm, NULL));
    CHECK_OK(rank, settle(comm, ncclGroupEnd()));
    expect(rank, in, before, rank->rank, c, counts[c]);
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* Everyone with everyone (oneself too), three messages of different sizes a pair, receives posted in an unhelpful order. */
static void exchange(struct rank *rank, const void *context) {
  static const size_t counts[] = {5, 300001, 1000};
  enum { MESSAGES = 3, ROOM = 300001 };
  ncclComm_t comm = rank_comm(rank, 0);
  size_t boxes = (size_t)rank->nranks * MESSAGES;
  uint32_t *out = malloc(boxes * ROOM * 4), *in = calloc(boxes, ROOM * 4);
  (void)context;
  CHECK_OK(rank, ncclGroupStart());
  for (int peer = rank->nranks - 1; peer >= 0; peer--) {
    CHECK_OK(rank, ncclGroupStart()); /* groups nest */
    for (unsigned m = 0; m < MESSAGES; m++) {
      size_t at = ((size_t)peer * MESSAGES + m) * ROOM;
      put(out + at, rank->rank, peer, m, counts[m]);
      CHECK_OK(rank, ncclRecv(in + at, counts[m], ncclUint32, peer, comm, NULL));
      CHECK_OK(rank, ncclSend(out + at, counts[m], ncclUint32, peer, comm, NULL));
    }
    CHECK_OK(rank, ncclGroupEnd());
  }
  CHECK_OK(rank, settle(comm, ncclGroupEnd()));
  for (int peer = 0; peer < rank->nranks; peer++)
    for (unsigned m = 0; m < MESSAGES; m++)
      expect(rank, in + ((size_t)peer * MESSAGES + m) * ROOM, peer, rank->rank, m, counts[m]);
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* Messages outside groups: a pipeline of stages, each waits for the one before. */
static void pipeline(struct rank *rank, const void *context) {
  enum { COUNT = 400000, BATCHES = 5 };
  ncclComm_t comm = rank_comm(rank, 0);
  uint32_t *buffer = malloc(COUNT * 4);
  (void)context;
  for (unsigned b = 0; b < BATCHES; b++) {
    if (rank->rank == 0)
      put(buffer, 0, 0, b, COUNT);
    else
      CHECK_OK(rank, settle(comm, ncclRecv(buffer, COUNT, ncclUint32, rank->rank - 1, comm, NULL)));
    expect(rank, buffer, 0, 0, b, COUNT);
    if (rank->rank + 1 < rank->nranks)
      CHECK_OK(rank, settle(comm, ncclSend(buffer, COUNT, ncclUint32, rank->rank + 1, comm, NULL)));
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* One group over two communicators, issued in a different order by each rank: collectives and messages, all complete. */
static void mixed_group(struct rank *rank, const void *context) {
  enum { COUNT = 200000 };
  ncclComm_t comms[2] = {rank_comm(rank, 0), rank_comm(rank, 1)};
  int peer = (rank->rank + 1) % rank->nranks, before = (rank->rank + rank->nranks - 1) % rank->nranks;
  uint32_t *sums[2] = {malloc(COUNT * 4), malloc(COUNT * 4)}, *out[2] = {malloc(COUNT * 4), malloc(COUNT * 4)},
           *in[2] = {malloc(COUNT * 4), malloc(COUNT * 4)};
  (void)context;
  for (int c = 0; c < 2; c++) {
    put(out[c], rank->rank, peer, (unsigned)c, COUNT);
    for (size_t i = 0; i < COUNT; i++)
      sums[c][i] = (uint32_t)(rank->rank + c);
  }
  CHECK_OK(rank, ncclGroupStart());
  for (int i = 0; i < 2; i++) {
    int c = (i + rank->rank) % 2;
    CHECK_OK(rank, ncclSend(out[c], COUNT, ncclUint32, peer, comms[c], NULL));
    CHECK_OK(rank, ncclAllReduce(sums[c], sums[c], COUNT, ncclUint32, ncclSum, comms[c], NULL));
    CHECK_OK(rank, ncclRecv(in[c], COUNT, ncclUint32, before, comms[c], NULL));
    CHECK(rank, sums[c][0] == (uint32_t)(rank->rank + c), "ran before the group's end");
  }
  CHECK_OK(rank, settle(comms[0], ncclGroupEnd()));
  for (int c = 0; c < 2; c++) {
    uint32_t want = (uint32_t)(rank->nranks * (rank->nranks - 1) / 2 + c * rank->nranks);
    expect(rank, in[c], before, rank->rank, (unsigned)c, COUNT);
    CHECK(rank, sums[c][0] == want && sums[c][COUNT - 1] == want, "sum %u, expected %u", sums[c][0], want);
    CHECK_OK(rank, ncclCommDestroy(comms[c]));
  }
}

static void bad_messages(struct rank *rank, const void *context) {
  uint32_t x[8] = {0};
  ncclComm_t comm = rank_comm(rank, 0), other = rank_comm(rank, 1);
  (void)context;
  CHECK_CODE(rank, ncclSend(x, 8, ncclUint32, rank->rank, comm, NULL), ncclInvalidUsage);
  CHECK(rank, strstr(ncclGetLastError(comm), "itself"), "text: %s", ncclGetLastError(comm));
  if (rank->rank == 0) {
    CHECK_OK(rank, settle(other, ncclSend(x, 8, ncclUint32, 1, other, NULL)));
  } else {
    CHECK_CODE(rank, settle(other, ncclRecv(x, 7, ncclUint32, 0, other, NULL)), ncclInvalidUsage);
    CHECK(rank, strstr(ncclGetLastError(other), "28 bytes"), "text: %s", ncclGetLastError(other));
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
  CHECK_OK(rank, ncclCommDestroy(other));
}

static void wait_for_devices(int count) {
  for (int device = 0; device < count; device++)
    vnode_device_synchronize(device);
}

/* All ranks of a communicator in one process and one thread, as ncclCommInitAll makes them. */
static void one_process(struct rank *rank, const void *context) {
  enum { RANKS = 4, COUNT = 100000 };
  ncclComm_t comms[RANKS];
  uint32_t *sums[RANKS], *in[RANKS];
  (void)context;
  CHECK_OK(rank, ncclCommInitAll(comms, RANKS, NULL));
  CHECK_OK(rank, ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    int device;
    CHECK_OK(rank, ncclCommCuDevice(comms[r], &device));
    CHECK(rank, device == r, "rank %d is on device %d", r, device);
    sums[r] = malloc(COUNT * 4);
    in[r] = malloc(COUNT * 4);
    for (size_t i = 0; i < COUNT; i++)
      sums[r][i] = (uint32_t)(i + (size_t)r);
    CHECK_OK(rank, ncclAllReduce(sums[r], sums[r], COUNT, ncclUint32, ncclSum, comms[r], NULL));
  }
  CHECK_OK(rank, ncclGroupEnd());
  wait_for_devices(RANKS);
  CHECK_OK(rank, ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    CHECK(rank, sums[r][COUNT - 1] == RANKS * (COUNT - 1) + 6, "rank %d: sum %u", r, sums[r][COUNT - 1]);
    CHECK_OK(rank, ncclSend(sums[r], COUNT, ncclUint32, (r + 1) % RANKS, comms[r], NULL));
    CHECK_OK(rank, ncclRecv(in[r], COUNT, ncclUint32, (r + RANKS - 1) % RANKS, comms[r], NULL));
  }
  CHECK_OK(rank, ncclGroupEnd());
  wait_for_devices(RANKS);
  for (int r = 0; r < RANKS; r++) {
    CHECK(rank, memcmp(in[r], sums[r], COUNT * 4) == 0, "rank %d received something else", r);
    CHECK_OK(rank, ncclCommDestroy(comms[r]));
  }
}

static const int worlds[] = {2, 3, 4, 8};
static const rank_main everywhere[] = {ring, exchange, pipeline, mixed_group};
enum { WORLDS = sizeof worlds / sizeof *worlds, MAINS = sizeof everywhere / sizeof *everywhere };

START_TEST(test_everywhere) {
  ranks_run(worlds[_i % WORLDS], everywhere[_i / WORLDS], NULL);
}
END_TEST

START_TEST(test_bad_messages) {
  ranks_run(2, bad_messages, NULL);
}
END_TEST

START_TEST(test_one_process) {
  ranks_run(1, one_process, NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl point-to-point");
  TCase *tests = tcase_create("p2p");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_loop_test(tests, test_everywhere, 0, WORLDS * MAINS);
  tcase_add_test(tests, test_bad_messages);
  tcase_add_test(tests, test_one_process);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
