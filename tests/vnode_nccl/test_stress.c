/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs: every rank runs the same seeded sequence of collectives, messages and groups over several communicators
 * (the world and splits of it) and checks each result. The sequence depends on the seed alone, which is printed with a
 * failure.
 */
#include <check.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

enum { STEPS = 300, COMMS = 4, ROOM = 200000 };

struct world {
  struct rank *rank;
  ncclComm_t comm[COMMS];
  int own[COMMS], size[COMMS];
  unsigned seed;
  uint64_t state;
  unsigned char *in, *out, *want;
};

/* The same on all ranks. */
static unsigned draw(struct world *world, unsigned below) {
  world->state = world->state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(world->state >> 33) % below;
}

static void expect(const struct world *world, unsigned step, const char *what, size_t bytes) {
  CHECK(world->rank, memcmp(world->out, world->want, bytes) == 0, "seed %u, step %u: %s is wrong", world->seed, step, what);
}

static void all_reduce(struct world *world, int c, unsigned step, size_t count, ncclDataType_t type) {
  fill(type, step, world->own[c], count, world->in);
  CHECK_OK(world->rank,
           settle(world->comm[c], ncclAllReduce(world->in, world->out, count, type, ncclSum, world->comm[c], NULL)));
  reference(type, REF_SUM, step, world->size[c], 0, count, world->want);
  expect(world, step, "AllReduce", count * type_bytes(type));
}

static void reduce_scatter(struct world *world, int c, unsigned step, size_t count, ncclDataType_t type) {
  count = count / (size_t)world->size[c] + 1;
  fill(type, step, world->own[c], count * (size_t)world->size[c], world->in);
  CHECK_OK(world->rank,
           settle(world->comm[c], ncclReduceScatter(world->in, world->out, count, type, ncclAvg, world->comm[c], NULL)));
  reference(type, REF_AVG, step, world->size[c], (size_t)world->own[c] * count, count, world->want);
  expect(world, step, "ReduceScatter", count * type_bytes(type));
}

static void all_gather(struct world *world, int c, unsigned step, size_t count, ncclDataType_t type) {
  size_t bytes;
  count = count / (size_t)world->size[c] + 1;
  bytes = count * type_bytes(type);
  fill(type, step, world->own[c], count, world->in);
  CHECK_OK(world->rank, settle(world->comm[c], ncclAllGather(world->in, world->out, count, type, world->comm[c], NULL)));
  for (int r = 0; r < world->size[c]; r++)
    fill(type, step, r, count, world->want + (size_t)r * bytes);
  expect(world, step, "AllGather", bytes * (size_t)world->size[c]);
}

static void broadcast(struct world *world, int c, unsigned step, size_t count, ncclDataType_t type) {
  int root = (int)(step % (unsigned)world->size[c]);
  fill(type, step, root, count, world->want);
  fill(type, step, world->own[c], count, world->out);
  CHECK_OK(world->rank, settle(world->comm[c], ncclBcast(world->out, count, type, root, world->comm[c], NULL)));
  expect(world, step, "Bcast", count * type_bytes(type));
}

static void shift(struct world *world, int c, unsigned step, size_t count, ncclDataType_t type) {
  int n = world->size[c], by = 1 + (int)(step % (unsigned)n), own = world->own[c];
  fill(type, step, own, count, world->in);
  CHECK_OK(world->rank, ncclGroupStart());
  CHECK_OK(world->rank, ncclSend(world->in, count, type, (own + by) % n, world->comm[c], NULL));
  CHECK_OK(world->rank, ncclRecv(world->out, count, type, (own - by % n + n) % n, world->comm[c], NULL));
  CHECK_OK(world->rank, settle(world->comm[c], ncclGroupEnd()));
  fill(type, step, (own - by % n + n) % n, count, world->want);
  expect(world, step, "shift", count * type_bytes(type));
}

static void replace_split(struct world *world, unsigned step, size_t count, ncclDataType_t type) {
  int colors = 1 + (int)(step % 3), own = world->rank->rank;
  (void)count;
  (void)type;
  CHECK_OK(world->rank, ncclCommDestroy(world->comm[COMMS - 1]));
  CHECK_OK(world->rank, ncclCommSplit(world->comm[0], own % colors, -own, &world->comm[COMMS - 1], NULL));
  CHECK_OK(world->rank, ncclCommUserRank(world->comm[COMMS - 1], &world->own[COMMS - 1]));
  CHECK_OK(world->rank, ncclCommCount(world->comm[COMMS - 1], &world->size[COMMS - 1]));
}

static void stress(struct rank *rank, const void *context) {
  static void (*const steps[])(struct world *, int, unsigned, size_t, ncclDataType_t) = {all_reduce, reduce_scatter,
                                                                                         all_gather, broadcast, shift};
  unsigned seed = *(const unsigned *)context;
  struct world world = {.rank = rank, .seed = seed, .state = seed, .comm = {rank_comm(rank, 0), rank_comm(rank, 1)}};
  world.in = malloc(ROOM * 8);
  world.out = malloc(ROOM * 8);
  world.want = malloc(ROOM * 8);
  CHECK_OK(rank, ncclCommSplit(world.comm[0], rank->rank % 2, rank->rank, &world.comm[2], NULL));
  CHECK_OK(rank, ncclCommSplit(world.comm[0], 0, 0, &world.comm[3], NULL));
  for (int c = 0; c < COMMS; c++) {
    CHECK_OK(rank, ncclCommUserRank(world.comm[c], &world.own[c]));
    CHECK_OK(rank, ncclCommCount(world.comm[c], &world.size[c]));
  }
  for (unsigned step = 0; step < STEPS; step++) {
    unsigned what = draw(&world, 20), c = draw(&world, COMMS), exponent = draw(&world, 16);
    size_t count = draw(&world, 1u << exponent) + (exponent == 15 ? draw(&world, 60000) : 0);
    ncclDataType_t type = all_types[draw(&world, ncclNumTypes)];
    if (what == 0)
      replace_split(&world, step, count, type);
    else
      steps[what % 5](&world, (int)c, step, count, type);
    if (rank->rank == (int)(step % 7)) /* ranks drift apart */
      sched_yield();
  }
  for (int c = 0; c < COMMS; c++)
    CHECK_OK(rank, ncclCommDestroy(world.comm[c]));
}

static const struct {
  int nranks;
  unsigned seed;
} runs[] = {{2, 1}, {3, 2}, {4, 3}, {5, 4}, {8, 5}, {2, 6}};

START_TEST(test_stress) {
  ranks_run(runs[_i].nranks, stress, &runs[_i].seed);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl stress");
  TCase *tests = tcase_create("stress");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_loop_test(tests, test_stress, 0, sizeof runs / sizeof *runs);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
