/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators' lives: made, split, shrunk, grown, misused, aborted, bereaved; and what they leave behind. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"
#include "ranks.h"

static int sum_over(struct rank *rank, ncclComm_t comm, int value) {
  int sum = -1;
  CHECK_OK(rank, settle(comm, ncclAllReduce(&value, &sum, 1, ncclInt32, ncclSum, comm, NULL)));
  return sum;
}

static int rank_in(struct rank *rank, ncclComm_t comm) {
  int own = -1;
  CHECK_OK(rank, ncclCommUserRank(comm, &own));
  return own;
}

static int count_in(struct rank *rank, ncclComm_t comm) {
  int count = -1;
  CHECK_OK(rank, ncclCommCount(comm, &count));
  return count;
}

/* -------------------------------------------------------------------------------------------------------- making */

static void configs(struct rank *rank, const void *context) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER, bad;
  ncclComm_t comm = NULL;
  ncclUniqueId id = rank_id(rank, 0), nothing = {{0}};
  ncclResult_t error = ncclInternalError;
  int version = 0;
  (void)context;
  memset(&bad, 0, sizeof bad);
  CHECK_OK(rank, ncclGetVersion(&version));
  CHECK(rank, version == NCCL_VERSION_CODE, "version %d", version);
  CHECK_CODE(rank, ncclCommInitRankConfig(&comm, rank->nranks, id, rank->rank, &bad), ncclInvalidArgument);
  bad = config;
  bad.blocking = 7;
  CHECK_CODE(rank, ncclCommInitRankConfig(&comm, rank->nranks, id, rank->rank, &bad), ncclInvalidArgument);
  bad = config;
  bad.minCTAs = 8;
  bad.maxCTAs = 4;
  CHECK_CODE(rank, ncclCommInitRankConfig(&comm, rank->nranks, id, rank->rank, &bad), ncclInvalidArgument);
  CHECK_CODE(rank, ncclCommInitRank(&comm, rank->nranks, nothing, rank->rank), ncclInvalidArgument);
  CHECK_CODE(rank, ncclCommInitRank(&comm, rank->nranks, id, rank->nranks), ncclInvalidArgument);
  CHECK_CODE(rank, ncclCommInitRank(NULL, rank->nranks, id, rank->rank), ncclInvalidArgument);
  config.blocking = 0;
  CHECK_OK(rank, ncclCommInitRankConfig(&comm, rank->nranks, id, rank->rank, &config));
  CHECK_OK(rank, ncclCommGetAsyncError(comm, &error));
  CHECK_CODE(rank, error, ncclSuccess);
  CHECK(rank, sum_over(rank, comm, 1) == rank->nranks, "sum");
  CHECK_OK(rank, ncclCommFinalize(comm));
  CHECK_OK(rank, ncclCommDestroy(comm));
  id = rank_id(rank, 1);
  CHECK_OK(rank, ncclCommInitRankScalable(&comm, rank->nranks, rank->rank, 1, &id, NULL));
  CHECK(rank, sum_over(rank, comm, 1) == rank->nranks, "sum");
  CHECK_CODE(rank, ncclCommInitRank(&comm, rank->nranks, id, rank->rank), ncclRemoteError); /* used */
  CHECK(rank, strcmp(ncclGetErrorString(ncclRemoteError), "remote process exited or there was a network error") == 0,
        "text");
  CHECK(rank, strcmp(ncclGetErrorString((ncclResult_t)99), "unknown result code") == 0, "text");
}

static void splits(struct rank *rank, const void *context) {
  ncclComm_t world = rank_comm(rank, 0), half = NULL, reversed = NULL, some = NULL, both[2] = {NULL, NULL};
  int n = rank->nranks, r = rank->rank;
  (void)context;
  for (int round = 0; round < 3; round++) {
    CHECK_OK(rank, ncclCommSplit(world, r % 2, r, &half, NULL));
    CHECK(rank, count_in(rank, half) == (n + 1 - r % 2) / 2 && rank_in(rank, half) == r / 2, "half: %d of %d",
          rank_in(rank, half), count_in(rank, half));
    int want = 0;
    for (int i = r % 2; i < n; i += 2)
      want += i;
    CHECK(rank, sum_over(rank, half, r) == want, "half: sum");
    CHECK_OK(rank, ncclCommDestroy(half));
  }
  CHECK_OK(rank, ncclCommSplit(world, 0, -r, &reversed, NULL));
  CHECK(rank, rank_in(rank, reversed) == n - 1 - r, "reversed: %d", rank_in(rank, reversed));
  CHECK_OK(rank, ncclCommSplit(world, 5, 1, &half, NULL)); /* equal keys: by rank */
  CHECK(rank, rank_in(rank, half) == r, "equal keys: %d", rank_in(rank, half));
  some = world;
  CHECK_OK(rank, ncclCommSplit(world, r ? 3 : NCCL_SPLIT_NOCOLOR, 0, &some, NULL));
  CHECK(rank, r ? count_in(rank, some) == n - 1 : some == NULL, "no color");
  CHECK_CODE(rank, ncclCommSplit(world, -5, 0, &both[0], NULL), ncclInvalidArgument);
  CHECK_OK(rank, ncclGroupStart());
  CHECK_OK(rank, ncclCommSplit(world, r % 2, 0, &both[0], NULL));
  CHECK_OK(rank, ncclCommSplit(world, r / 2, 0, &both[1], NULL));
  CHECK_OK(rank, ncclGroupEnd());
  CHECK(rank, count_in(rank, both[1]) == (r / 2 * 2 + 1 < n ? 2 : 1), "grouped split");
  CHECK(rank, sum_over(rank, both[0], 1) == count_in(rank, both[0]) && sum_over(rank, both[1], 1) == count_in(rank, both[1]),
        "grouped split: sums");
  CHECK(rank, sum_over(rank, world, 1) == n && sum_over(rank, reversed, 1) == n, "the parent still works");
  CHECK_OK(rank, ncclCommDestroy(both[0]));
  CHECK_OK(rank, ncclCommDestroy(both[1]));
  CHECK_OK(rank, ncclCommDestroy(some));
  CHECK_OK(rank, ncclCommDestroy(half));
  CHECK_OK(rank, ncclCommDestroy(reversed));
  CHECK_OK(rank, ncclCommDestroy(world));
}

/* Rank 1 leaves; the others go on without it; then one more rank joins them. */
static void shrink_and_grow(struct rank *rank, const void *context) {
  ncclComm_t world = rank_comm(rank, 0), fewer = NULL, more = NULL;
  int gone[] = {1}, n = rank->nranks;
  ncclUniqueId id;
  (void)context;
  if (rank->rank == 1) {
    id = rank_id(rank, 1);
    CHECK_OK(rank, ncclCommGrow(NULL, n, &id, n - 1, &more, NULL));
  } else {
    CHECK_OK(rank, ncclCommShrink(world, gone, 1, &fewer, NULL, NCCL_SHRINK_DEFAULT));
    CHECK(rank, count_in(rank, fewer) == n - 1 && sum_over(rank, fewer, 1) == n - 1, "shrunk");
    if (rank->rank == 0) {
      CHECK_OK(rank, ncclCommGetUniqueId(fewer, &id));
      rank->board->id[1] = id;
      atomic_store(&rank->board->ids, 2);
    }
    CHECK_OK(rank, ncclCommGrow(fewer, n, rank->rank == 0 ? &id : NULL, -1, &more, NULL));
    CHECK_OK(rank, ncclCommDestroy(fewer));
  }
  CHECK(rank, count_in(rank, more) == n && sum_over(rank, more, 1) == n, "grown");
  CHECK_OK(rank, ncclCommDestroy(more));
  CHECK_OK(rank, ncclCommDestroy(world));
}

static uint64_t nccl_bytes(int device) {
  uint64_t current = 0, peak = 0;
  vnode_ledger_memory(device, VNODE_OWNER_NCCL, &current, &peak);
  return current;
}

static void memory(struct rank *rank, const void *context) {
  ncclComm_t comm = rank_comm(rank, 0), child = NULL;
  uint64_t total = 0, free_before = 0, free_after = 0, all = 0;
  void *user = NULL, *handle = NULL;
  (void)context;
  CHECK_OK(rank, ncclCommMemStats(comm, ncclStatGpuMemTotal, &total));
  CHECK(rank, total == nccl_bytes(rank->rank), "ncclCommMemStats %llu, ledger %llu", (unsigned long long)total,
        (unsigned long long)nccl_bytes(rank->rank));
  CHECK(rank, rank->nranks == 1 ? total <= 4u << 20 : total >= 400u << 20, "%llu bytes", (unsigned long long)total);
  CHECK_OK(rank, ncclCommSplit(comm, 0, 0, &child, NULL));
  CHECK(rank, nccl_bytes(rank->rank) == 2 * total, "two communicators hold %llu",
        (unsigned long long)nccl_bytes(rank->rank));
  CHECK_OK(rank, ncclCommDestroy(child));
  vnode_memory_get_info(rank->rank, &free_before, &all);
  CHECK_OK(rank, ncclMemAlloc(&user, 3));
  memset(user, 1, 3);
  vnode_memory_get_info(rank->rank, &free_after, &all);
  CHECK(rank, free_before - free_after == VNODE_MEMORY_ALIGN_BYTES, "ncclMemAlloc took %llu",
        (unsigned long long)(free_before - free_after));
  CHECK_OK(rank, ncclCommRegister(comm, user, 3, &handle));
  CHECK_OK(rank, ncclCommDeregister(comm, handle));
  CHECK_CODE(rank, ncclCommDeregister(comm, handle), ncclInvalidArgument);
  CHECK_OK(rank, ncclMemFree(user));
  CHECK_CODE(rank, ncclMemFree(user), ncclInvalidArgument);
  CHECK_OK(rank, ncclCommDestroy(comm));
  CHECK(rank, nccl_bytes(rank->rank) == 0, "%llu bytes are left", (unsigned long long)nccl_bytes(rank->rank));
  CHECK_OK(rank, ncclCommDestroy(NULL));
}

/* --------------------------------------------------------------------------------------------------------- ending */

enum { VICTIM = 1, BIG = 1 << 20 };

/* Every kind of wait in which a peer may be missed. */
enum wait_kind {
  IN_ALL_REDUCE,
  IN_BIG_ALL_REDUCE,
  IN_ALL_GATHER,
  IN_REDUCE_SCATTER,
  IN_BROADCAST,
  IN_REDUCE,
  IN_ALL_TO_ALL,
  IN_RECV,
  IN_SEND,
  IN_GROUP,
  IN_SPLIT,
  WAIT_KINDS
};

static _Atomic bool aborted_here; /* the communicator is gone */

static ncclResult_t waited(ncclComm_t comm, ncclResult_t code) {
  if (code == ncclSuccess)
    vnode_stream_synchronize(VNODE_STREAM_NULL);
  return code == ncclSuccess && atomic_load(&aborted_here) ? ncclInternalError : settle(comm, code);
}

static ncclResult_t wait_in(enum wait_kind kind, const struct rank *rank, ncclComm_t comm) {
  static float in[BIG * 2], out[BIG * 2];
  static ncclComm_t child;
  (void)rank;
  switch (kind) {
  case IN_ALL_REDUCE:
    return waited(comm, ncclAllReduce(in, out, 5, ncclFloat32, ncclSum, comm, NULL));
  case IN_BIG_ALL_REDUCE:
    return waited(comm, ncclAllReduce(in, out, BIG, ncclFloat32, ncclSum, comm, NULL));
  case IN_ALL_GATHER:
    return waited(comm, ncclAllGather(in, out, 5, ncclFloat32, comm, NULL));
  case IN_REDUCE_SCATTER:
    return waited(comm, ncclReduceScatter(in, out, 5, ncclFloat32, ncclSum, comm, NULL));
  case IN_BROADCAST:
    return waited(comm, ncclBroadcast(in, out, 5, ncclFloat32, VICTIM, comm, NULL));
  case IN_REDUCE:
    return waited(comm, ncclReduce(in, out, 5, ncclFloat32, ncclSum, 0, comm, NULL));
  case IN_ALL_TO_ALL:
    return waited(comm, ncclAlltoAll(in, out, 5, ncclFloat32, comm, NULL));
  case IN_RECV:
    return waited(comm, ncclRecv(out, 5, ncclFloat32, VICTIM, comm, NULL));
  case IN_SEND:
    return waited(comm, ncclSend(in, BIG, ncclFloat32, VICTIM, comm, NULL));
  case IN_GROUP:
    ncclGroupStart();
    ncclSend(in, BIG, ncclFloat32, VICTIM, comm, NULL);
    ncclRecv(out, BIG, ncclFloat32, VICTIM, comm, NULL);
    return waited(comm, ncclGroupEnd());
  case IN_SPLIT:
    return ncclCommSplit(comm, 0, 0, &child, NULL);
  case WAIT_KINDS:
    break;
  }
  return ncclInternalError;
}

/* What makes the victim vanish, and how its text names it. */
enum vanish_kind { BY_KILL, BY_EXIT, BY_ABORT, BY_DESTROY, VANISH_KINDS };
static const char *const vanish_text[] = {"died", "died", "aborted", "destroyed"};
struct case_of {
  enum wait_kind wait;
  enum vanish_kind vanish;
};

static void vanish(struct rank *rank, enum vanish_kind kind, ncclComm_t comm) {
  switch (kind) {
  case BY_KILL:
    raise(SIGKILL);
    break;
  case BY_EXIT:
    _exit(0);
  case BY_ABORT:
    CHECK_OK(rank, ncclCommAbort(comm));
    break;
  case BY_DESTROY:
    CHECK_OK(rank, ncclCommDestroy(comm));
    break;
  case VANISH_KINDS:
    break;
  }
}

static void bereaved(struct rank *rank, const void *context) {
  const struct case_of *what = context;
  ncclComm_t comm = rank_comm(rank, 0);
  ncclResult_t error = ncclSuccess;
  char culprit[32];
  sum_over(rank, comm, 1);
  if (rank->rank == VICTIM) {
    usleep(30000); /* so that the others are inside their waits */
    vanish(rank, what->vanish, comm);
    /* Alive: who waits must learn from what was said, not from a death. */
    for (int i = 0; i < 10000 && atomic_load(&rank->board->word[0]) < rank->nranks - 1; i++)
      usleep(1000);
    return;
  }
  CHECK_CODE(rank, wait_in(what->wait, rank, comm), ncclRemoteError);
  snprintf(culprit, sizeof culprit, "rank %d (pid ", VICTIM);
  const char *text = ncclGetLastError(comm);
  CHECK(rank, strstr(text, culprit) && strstr(text, vanish_text[what->vanish]), "text: %s", text);
  CHECK_OK(rank, ncclCommGetAsyncError(comm, &error));
  CHECK_CODE(rank, error, ncclRemoteError);
  CHECK_CODE(rank, wait_in(IN_ALL_REDUCE, rank, comm), ncclRemoteError);
  atomic_fetch_add(&rank->board->word[0], 1);
  CHECK_OK(rank, ncclCommAbort(comm));
  CHECK(rank, nccl_bytes(rank->rank) == 0, "%llu bytes are left", (unsigned long long)nccl_bytes(rank->rank));
}

/* The bound on noticing is WAIT_CHECK_US = 0.1 s; here a machine under load gets until the victim, if alive, gives up
 * waiting. */
START_TEST(test_bereaved) {
  struct case_of what = {.wait = (enum wait_kind)(_i % WAIT_KINDS), .vanish = (enum vanish_kind)(_i / WAIT_KINDS)};
  enum { RANKS = 3 };
  pid_t pids[RANKS_MAX];
  struct board *board = ranks_start(RANKS, bereaved, &what, pids);
  ranks_wait(RANKS, pids, 1u << VICTIM);
  ck_assert_int_eq(atomic_load(&board->word[0]), RANKS - 1);
  munmap(board, sizeof *board);
  ck_assert_int_eq(shm_entries(), 0);
}
END_TEST

/* Survivors of a death can still make a communicator among themselves. */
static void shrink_after_death(struct rank *rank, const void *context) {
  ncclComm_t comm = rank_comm(rank, 0), fewer = NULL;
  int gone[] = {VICTIM};
  (void)context;
  sum_over(rank, comm, 1);
  if (rank->rank == VICTIM)
    raise(SIGKILL);
  CHECK_CODE(rank, wait_in(IN_ALL_REDUCE, rank, comm), ncclRemoteError);
  CHECK_OK(rank, ncclCommShrink(comm, gone, 1, &fewer, NULL, NCCL_SHRINK_ABORT));
  CHECK(rank, sum_over(rank, fewer, 1) == rank->nranks - 1, "sum among survivors");
}

START_TEST(test_shrink_after_death) {
  pid_t pids[RANKS_MAX];
  struct board *board = ranks_start(4, shrink_after_death, NULL, pids);
  ranks_wait(4, pids, 1u << VICTIM);
  munmap(board, sizeof *board);
}
END_TEST

/* A rank that ended after its part was done does not spoil the operation for the others. */
static void last_words(struct rank *rank, const void *context) {
  enum { COUNT = 1000 };
  ncclComm_t comm = rank_comm(rank, 0);
  int sum = sum_over(rank, comm, 1), data[COUNT] = {0};
  (void)context;
  CHECK(rank, sum == rank->nranks, "sum");
  if (rank->rank == VICTIM) {
    data[COUNT - 1] = 77;
    CHECK_OK(rank, settle(comm, ncclSend(data, COUNT, ncclInt32, 0, comm, NULL)));
    _exit(0);
  }
  if (rank->rank == 0) {
    usleep(400000);
    CHECK_OK(rank, settle(comm, ncclRecv(data, COUNT, ncclInt32, VICTIM, comm, NULL)));
    CHECK(rank, data[COUNT - 1] == 77, "the message");
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

START_TEST(test_last_words) {
  ranks_run(3, last_words, NULL);
}
END_TEST

static void *abort_later(void *comm) {
  usleep(50000);
  atomic_store(&aborted_here, true);
  return ncclCommAbort(comm) == ncclSuccess ? comm : NULL;
}

/* A thread of rank 0 aborts while another waits inside: as PyTorch's watchdog does after a time-out. */
static void abort_own(struct rank *rank, const void *context) {
  ncclComm_t comm = rank_comm(rank, 0);
  pthread_t thread;
  void *result = NULL;
  if (rank->rank == VICTIM) {
    while (!atomic_load(&rank->board->word[0]))
      usleep(1000);
    CHECK_CODE(rank, wait_in(IN_ALL_REDUCE, rank, comm), ncclRemoteError);
    return;
  }
  if (rank->rank != 0) {
    CHECK_CODE(rank, wait_in(IN_ALL_REDUCE, rank, comm), ncclRemoteError);
    return;
  }
  pthread_create(&thread, NULL, abort_later, comm);
  CHECK_CODE(rank, wait_in(*(const enum wait_kind *)context, rank, comm), ncclInternalError);
  pthread_join(thread, &result);
  CHECK(rank, result == comm, "abort failed");
  CHECK(rank, nccl_bytes(rank->rank) == 0, "memory is left");
  atomic_store(&rank->board->word[0], 1);
}

START_TEST(test_abort_own) {
  enum wait_kind kind = (enum wait_kind)_i;
  ranks_run(3, abort_own, &kind);
}
END_TEST

static void revoked(struct rank *rank, const void *context) {
  ncclComm_t comm = rank_comm(rank, 0);
  (void)context;
  if (rank->rank == 0) {
    CHECK_CODE(rank, ncclCommRevoke(comm, 1), ncclInvalidArgument);
    CHECK_OK(rank, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    CHECK_CODE(rank, wait_in(IN_ALL_REDUCE, rank, comm), ncclInternalError);
  } else {
    CHECK_CODE(rank, wait_in(IN_ALL_REDUCE, rank, comm), ncclRemoteError);
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

START_TEST(test_revoke) {
  ranks_run(3, revoked, NULL);
}
END_TEST

/* A rank dies while the others still wait for one that has not come yet. */
static void death_before_birth(struct rank *rank, const void *context) {
  ncclUniqueId id = rank_id(rank, 0);
  ncclComm_t comm = NULL;
  (void)context;
  if (rank->rank == 2) { /* never attaches */
    while (atomic_load(&rank->board->word[0]) < 1)
      usleep(1000);
    return;
  }
  if (rank->rank == VICTIM)
    alarm(1); /* dies inside ncclCommInitRank */
  ncclResult_t code = ncclCommInitRank(&comm, rank->nranks, id, rank->rank);
  atomic_fetch_add(&rank->board->word[0], 1);
  CHECK_CODE(rank, code, ncclRemoteError);
  CHECK(rank, comm == NULL && nccl_bytes(rank->rank) == 0, "something is left");
}

START_TEST(test_death_before_birth) {
  pid_t pids[RANKS_MAX];
  struct board *board = ranks_start(3, death_before_birth, NULL, pids);
  ranks_wait(3, pids, 1u << VICTIM);
  munmap(board, sizeof *board);
}
END_TEST

/* All ranks are killed in the middle of work: nothing may remain. */
static void work_for_ever(struct rank *rank, const void *context) {
  ncclComm_t comm = rank_comm(rank, 0);
  (void)context;
  for (;;) {
    wait_in(IN_BIG_ALL_REDUCE, rank, comm);
    atomic_store(&rank->board->ready[rank->rank], 1);
  }
}

START_TEST(test_all_killed) {
  pid_t pids[RANKS_MAX];
  struct board *board = ranks_start(4, work_for_ever, NULL, pids);
  for (int r = 0; r < 4; r++)
    while (!atomic_load(&board->ready[r]))
      usleep(1000);
  for (int r = 0; r < 4; r++)
    kill(pids[r], SIGKILL);
  ranks_wait(4, pids, 0xf);
  ck_assert_int_eq(shm_entries(), 0);
  munmap(board, sizeof *board);
}
END_TEST

/* A child of a process that has used the node is told that nothing works, and does its parent no harm. */
static void forked(struct rank *rank, const void *context) {
  ncclComm_t comm = rank_comm(rank, 0);
  (void)context;
  CHECK(rank, sum_over(rank, comm, 1) == rank->nranks, "sum");
  int status = 0;
  pid_t child = fork();
  if (child == 0) {
    ncclComm_t own;
    _exit(ncclCommInitRank(&own, 1, rank->board->id[0], 0) == ncclSuccess);
  }
  waitpid(child, &status, 0);
  CHECK(rank, status == 0, "the child ended with %#x", (unsigned)status);
  CHECK(rank, sum_over(rank, comm, 1) == rank->nranks, "sum after the fork");
  CHECK_OK(rank, ncclCommDestroy(comm));
}

START_TEST(test_forked) {
  ranks_run(2, forked, NULL);
}
END_TEST

static const int worlds[] = {2, 3, 4, 8};
enum { WORLDS = sizeof worlds / sizeof *worlds };

START_TEST(test_configs) {
  ranks_run(3, configs, NULL);
}
END_TEST

START_TEST(test_splits) {
  ranks_run(worlds[_i], splits, NULL);
}
END_TEST

START_TEST(test_shrink_and_grow) {
  ranks_run(worlds[_i + 1], shrink_and_grow, NULL);
}
END_TEST

START_TEST(test_memory) {
  ranks_run(_i ? worlds[_i - 1] : 1, memory, NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl communicators");
  TCase *tests = tcase_create("life");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_test(tests, test_configs);
  tcase_add_loop_test(tests, test_splits, 0, WORLDS);
  tcase_add_loop_test(tests, test_shrink_and_grow, 0, WORLDS - 1);
  tcase_add_loop_test(tests, test_memory, 0, WORLDS + 1);
  tcase_add_loop_test(tests, test_bereaved, 0, WAIT_KINDS * VANISH_KINDS);
  tcase_add_test(tests, test_shrink_after_death);
  tcase_add_test(tests, test_last_words);
  tcase_add_loop_test(tests, test_abort_own, 0, IN_SPLIT);
  tcase_add_test(tests, test_revoke);
  tcase_add_test(tests, test_death_before_birth);
  tcase_add_test(tests, test_all_killed);
  tcase_add_test(tests, test_forked);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
