/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a function as several ranks, each in its own process, forked before any of them has touched the node. Each rank uses
 * device `rank`. A rank fails by rank_fail (or a CHECK), by a crash, or by the time limit of RANKS_LIMIT_S, whose signal
 * kills it.
 */
#ifndef TESTS_VNODE_NCCL_RANKS_H
#define TESTS_VNODE_NCCL_RANKS_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RANKS_MAX 8
#define RANKS_LIMIT_S 120

/* Memory that parent and ranks share. */
struct board {
  _Atomic int ids; /* published so far */
  ncclUniqueId id[16];
  _Atomic int ready[RANKS_MAX];
  _Atomic int word[16]; /* free for tests, as the next */
  _Atomic int64_t value[16][RANKS_MAX];
};

struct rank {
  int rank, nranks;
  struct board *board;
};

typedef void (*rank_main)(struct rank *rank, const void *context);

/* Forks; pids of all ranks go to `pids`. */
struct board *ranks_start(int nranks, rank_main main, const void *context, pid_t *pids);
/* Waits for all; fails the Check test when a rank other than those in the mask `may_die` does not end with 0. */
void ranks_wait(int nranks, const pid_t *pids, unsigned may_die);
/* Both. */
void ranks_run(int nranks, rank_main main, const void *context);

_Noreturn void rank_fail(const struct rank *rank, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define CHECK(rank, condition, ...)                                                                                         \
  do {                                                                                                                      \
    if (!(condition))                                                                                                       \
      rank_fail(rank, __FILE__, __LINE__, __VA_ARGS__);                                                                     \
  } while (0)
#define CHECK_CODE(rank, call, expected)                                                                                    \
  do {                                                                                                                      \
    ncclResult_t code_ = (call);                                                                                            \
    CHECK(rank, code_ == (expected), "%s gives %d (%s), expected %d", #call, (int)code_, ncclGetLastError(NULL),            \
          (int)(expected));                                                                                                 \
  } while (0)
#define CHECK_OK(rank, call) CHECK_CODE(rank, call, ncclSuccess)

/* The `index`-th id of this run, made by rank 0. */
ncclUniqueId rank_id(struct rank *rank, int index);
/* A communicator of all ranks. */
ncclComm_t rank_comm(struct rank *rank, int index);

/* What a program knows of a call's success when it has waited for the default stream: `code`, or the communicator's error.
 */
ncclResult_t settle(ncclComm_t comm, ncclResult_t code);

double seconds_now(void);
/* Number of entries in /dev/shm that are not the node's own session. */
int shm_entries(void);

#endif
