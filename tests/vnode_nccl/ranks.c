/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

struct board *ranks_start(int nranks, rank_main run, const void *context, pid_t *pids) {
  struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(board, MAP_FAILED);
  fflush(NULL);
  for (int r = 0; r < nranks; r++) {
    pids[r] = fork();
    ck_assert_int_ge(pids[r], 0);
    if (pids[r] == 0) {
      struct rank rank = {.rank = r, .nranks = nranks, .board = board};
      signal(SIGALRM, SIG_DFL);
      alarm(RANKS_LIMIT_S);
      vnode_device_set(r);
      run(&rank, context);
      fflush(NULL);
      _exit(0);
    }
  }
  return board;
}

void ranks_wait(int nranks, const pid_t *pids, unsigned may_die) {
  unsigned failed = 0;
  for (int r = 0; r < nranks; r++) {
    int status = 0;
    waitpid(pids[r], &status, 0);
    if (!(may_die >> r & 1) && status != 0) {
      fprintf(stderr, "rank %d ended with status %#x\n", r, (unsigned)status);
      failed |= 1u << r;
    }
  }
  ck_assert_msg(!failed, "ranks %#x failed", failed);
}

void ranks_run(int nranks, rank_main run, const void *context) {
  pid_t pids[RANKS_MAX];
  struct board *board = ranks_start(nranks, run, context, pids);
  ranks_wait(nranks, pids, 0);
  munmap(board, sizeof *board);
}

void rank_fail(const struct rank *rank, const char *file, int line, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s:%d: rank %d of %d: %s\n", file, line, rank->rank, rank->nranks, text);
  fflush(NULL);
  _exit(1);
}

ncclUniqueId rank_id(struct rank *rank, int index) {
  struct timespec pause = {.tv_nsec = 200000};
  struct board *board = rank->board;
  if (rank->rank == 0) {
    CHECK_OK(rank, ncclGetUniqueId(&board->id[index]));
    atomic_store(&board->ids, index + 1);
  }
  while (atomic_load(&board->ids) <= index)
    nanosleep(&pause, NULL);
  return board->id[index];
}

ncclComm_t rank_comm(struct rank *rank, int index) {
  ncclComm_t comm = NULL;
  CHECK_OK(rank, ncclCommInitRank(&comm, rank->nranks, rank_id(rank, index), rank->rank));
  return comm;
}

ncclResult_t settle(ncclComm_t comm, ncclResult_t code) {
  ncclResult_t error = code;
  if (code == ncclSuccess && vnode_stream_synchronize(VNODE_STREAM_NULL) == VNODE_OK)
    code = ncclCommGetAsyncError(comm, &error);
  return code == ncclSuccess ? error : code;
}

double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int shm_entries(void) {
  int count = 0;
  DIR *folder = opendir("/dev/shm");
  for (struct dirent *entry; folder && (entry = readdir(folder));)
    count += strstr(entry->d_name, "nccl") != NULL;
  if (folder)
    closedir(folder);
  return count;
}
