/* SPDX-License-Identifier: Apache-2.0 */
/* Prints latency and bandwidth of the virtual node's NCCL on this machine, by nccl-tests' definition of algbw. Asserts
 * nothing. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ranks.h"

enum bench_kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SENDRECV, BENCH_KINDS };
static const char *const names[] = {"AllReduce", "AllGather", "ReduceScatter", "SendRecv"};

static void once(struct rank *rank, enum bench_kind kind, size_t bytes, ncclDataType_t type, float *in, float *out,
                 ncclComm_t comm) {
  size_t count = bytes / (type == ncclFloat32 ? 4 : 2), n = (size_t)rank->nranks;
  int next = (rank->rank + 1) % rank->nranks, before = (rank->rank + rank->nranks - 1) % rank->nranks;
  switch (kind) {
  case ALL_REDUCE:
    CHECK_OK(rank, ncclAllReduce(in, out, count, type, ncclSum, comm, NULL));
    break;
  case ALL_GATHER:
    CHECK_OK(rank, ncclAllGather(in, out, count / n, type, comm, NULL));
    break;
  case REDUCE_SCATTER:
    CHECK_OK(rank, ncclReduceScatter(in, out, count / n, type, ncclSum, comm, NULL));
    break;
  case SENDRECV:
    CHECK_OK(rank, ncclGroupStart());
    CHECK_OK(rank, ncclSend(in, count, type, next, comm, NULL));
    CHECK_OK(rank, ncclRecv(out, count, type, before, comm, NULL));
    CHECK_OK(rank, ncclGroupEnd());
    break;
  case BENCH_KINDS:
    break;
  }
}

/* Of this rank: says what an operation costs also when the machine is busy with other things. */
static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void bench(struct rank *rank, const void *context) {
  static const size_t sizes[] = {1024, 65536, 1u << 20, 64u << 20};
  float *in = malloc(64u << 20), *out = malloc(64u << 20);
  ncclComm_t comm = rank_comm(rank, 0);
  (void)context;
  memset(in, 0, 64u << 20);
  memset(out, 0, 64u << 20);
  for (int t = 0; t < 2; t++)
    for (int kind = 0; kind < BENCH_KINDS; kind++)
      for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        ncclDataType_t type = t ? ncclBfloat16 : ncclFloat32;
        int repeats = sizes[s] > 1u << 20 ? 5 : sizes[s] > 4096 ? 200 : 2000;
        for (int i = 0; i < 3; i++)
          once(rank, (enum bench_kind)kind, sizes[s], type, in, out, comm);
        double start = seconds_now(), start_cpu = cpu_seconds();
        for (int i = 0; i < repeats; i++)
          once(rank, (enum bench_kind)kind, sizes[s], type, in, out, comm);
        double each = (seconds_now() - start) / repeats, each_cpu = (cpu_seconds() - start_cpu) / repeats;
        if (rank->rank == 0)
          printf("%d ranks %-13s %-4s %9zu B %10.1f us (%8.1f us CPU) %6.2f GB/s\n", rank->nranks, names[kind],
                 t ? "bf16" : "f32", sizes[s], each * 1e6, each_cpu * 1e6, (double)sizes[s] / each * 1e-9);
      }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

START_TEST(test_bench) {
  static const int worlds[] = {2, 4, 8};
  ranks_run(worlds[_i], bench, NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl bench");
  TCase *tests = tcase_create("bench");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_loop_test(tests, test_bench, 0, 3);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
