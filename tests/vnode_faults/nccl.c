/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL in RANKS processes. A rank ends at its first error, as jobs do, and its peer learns of it from NCCL; a rank whose
   peer did not come to the start of the communicator is killed, as launchers do. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

enum { COUNT = 64, NOT_STARTED = 3, STARTED = 4 };

static struct shared {
  ncclUniqueId id, second;
  volatile int ids;
} * shared;
static int rank, stage = NOT_STARTED;

/* Tells and, on an error, ends the rank. */
static void must(const char *text, long status) {
  if (!called(text, status))
    return;
  SHOW("last error '%s'", ncclGetLastError(NULL));
  exit(stage);
}
#define MUST(call) must(#call, (long)(call))

/* NCCL's errors after the start of an operation are the communicator's. */
static void settle(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  MUST(cudaStreamSynchronize(NULL));
  MUST(ncclCommGetAsyncError(comm, &state));
  must("asynchronous error", state);
}

static void show(const char *what, const float *data) {
  float host[RANKS * COUNT] = {0};
  MUST(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
  SHOW("%s %g %g", what, (double)host[0], (double)host[RANKS * COUNT - 1]);
}

static void collectives(ncclComm_t comm, float *send, float *recv) {
  MUST(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, NULL));
  settle(comm);
  show("all-reduce", recv);
  MUST(pncclAllReduce(send, recv, COUNT, ncclFloat, ncclMax, comm, NULL));
  MUST(ncclAllGather(send, recv, COUNT, ncclFloat, comm, NULL));
  settle(comm);
  show("all-gather", recv);
  MUST(ncclReduceScatter(send, recv, COUNT, ncclFloat, ncclAvg, comm, NULL));
  MUST(ncclBroadcast(send, recv, COUNT, ncclFloat, RANKS - 1, comm, NULL));
  settle(comm);
  show("broadcast", recv);
  MUST(ncclBcast(recv, COUNT, ncclFloat, 0, comm, NULL));
  MUST(ncclReduce(send, recv, COUNT, ncclFloat, ncclSum, 0, comm, NULL));
  MUST(ncclAlltoAll(send, recv, COUNT, ncclFloat, comm, NULL));
  settle(comm);
  show("all-to-all", recv);
  MUST(ncclGather(send, recv, COUNT, ncclFloat, 0, comm, NULL));
  MUST(ncclScatter(send, recv, COUNT, ncclFloat, 0, comm, NULL));
  settle(comm);
  MUST(ncclGroupStart());
  MUST(ncclSend(send, COUNT, ncclFloat, (rank + 1) % RANKS, comm, NULL));
  MUST(ncclRecv(recv, COUNT, ncclFloat, (rank + RANKS - 1) % RANKS, comm, NULL));
  MUST(ncclGroupEnd());
  settle(comm);
  show("ring", recv);
}

static void extras(ncclComm_t comm, float *send, float *recv) {
  ncclRedOp_t op;
  ncclComm_t half = NULL;
  void *block = NULL, *registration = NULL;
  float factor = 0.5f;
  MUST(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
  MUST(ncclAllReduce(send, recv, COUNT, ncclFloat, op, comm, NULL));
  settle(comm);
  show("pre-multiplied", recv);
  MUST(ncclRedOpDestroy(op, comm));
  MUST(ncclMemAlloc(&block, 1 << 20));
  MUST(ncclCommRegister(comm, block, 1 << 20, &registration));
  MUST(ncclCommDeregister(comm, registration));
  MUST(ncclMemFree(block));
  MUST(ncclCommSplit(comm, rank, 0, &half, NULL));
  MUST(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, half, NULL));
  settle(half);
  MUST(ncclCommAbort(half));
}

/* The other ways to a communicator: for a rank by itself, and for the first of several. */
static void alone(ncclComm_t comm, float *send, float *recv) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t all[4] = {NULL};
  ncclUniqueId ids[2];
  int count = 0, excluded = 1;
  for (int i = 0; RANKS == 1 && i < 2; i++)
    MUST(ncclGetUniqueId(&ids[i]));
  if (RANKS == 1) {
    MUST(ncclCommInitRankConfig(&all[count++], 1, ids[0], 0, &config));
    MUST(ncclCommInitRankScalable(&all[count++], 1, 0, 1, &ids[1], &config));
    MUST(ncclCommInitAll(&all[count++], 1, &rank));
  } else if (rank == 0) {
    MUST(ncclCommShrink(comm, &excluded, 1, &all[count++], NULL, NCCL_SHRINK_DEFAULT));
  }
  for (int i = 0; i < count; i++) {
    MUST(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, all[i], NULL));
    settle(all[i]);
    show("alone", recv);
    MUST(ncclCommDestroy(all[i]));
  }
}

static void run_rank(void) {
  ncclComm_t comm = NULL;
  float *send = NULL, *recv = NULL, host[RANKS * COUNT];
  int value = -1, version = -1;
  for (int i = 0; i < RANKS * COUNT; i++)
    host[i] = (float)(i + 100 * rank);
  MUST(cudaSetDevice(rank));
  MUST(cudaMalloc((void **)&send, sizeof host));
  MUST(cudaMalloc((void **)&recv, sizeof host));
  MUST(cudaMemset(recv, 0, sizeof host));
  MUST(cudaMemcpy(send, host, sizeof host, cudaMemcpyHostToDevice));
  MUST(ncclGetVersion(&version));
  if (rank == 0) {
    MUST(ncclGetUniqueId(&shared->id));
    shared->ids = 1;
  }
  while (!shared->ids)
    usleep(1000);
  MUST(ncclCommInitRank(&comm, RANKS, shared->id, rank));
  stage = STARTED;
  MUST(ncclCommCount(comm, &value));
  MUST(ncclCommUserRank(comm, &value));
  MUST(ncclCommCuDevice(comm, &value));
  SHOW("device %d", value);
  collectives(comm, send, recv);
  extras(comm, send, recv);
  alone(comm, send, recv);
  MUST(ncclCommFinalize(comm));
  MUST(ncclCommDestroy(comm));
  MUST(cudaDeviceSynchronize());
  MUST(cudaFree(send));
  MUST(cudaFree(recv));
}

static pid_t start_rank(int which, FILE *out) {
  char number[16];
  fflush(NULL);
  pid_t child = fork();
  if (child)
    return child;
  snprintf(number, sizeof number, "%d", which);
  setenv("RANK", number, 1);
  rank = which;
  dup2(fileno(out), STDOUT_FILENO);
  run_rank();
  exit(0);
}

static void tell_end(int which, int status, FILE *out) {
  char text[4096];
  size_t length;
  printf("rank %d\n", which);
  rewind(out);
  while ((length = fread(text, 1, sizeof text, out)))
    fwrite(text, 1, length, stdout);
  if (WIFEXITED(status))
    printf("rank %d exits with %d\n", which, WEXITSTATUS(status));
  else
    printf("rank %d is ended by signal %d\n", which, WTERMSIG(status));
}

/* The rank that the fault names, -1 without one. */
static int rank_of_fault(void) {
  const char *fault = getenv("B200OPT_VNODE_FAULT"), *at = fault ? strchr(fault, '@') : NULL;
  return at ? atoi(at + 1) : -1;
}

/* Ranks write to a file each, so that what they say stands in order. Of a rank whose peer did not start, nothing is told:
   how far it comes is a matter of time. */
int program_run(void) {
  pid_t pids[RANKS];
  FILE *outs[RANKS];
  int ends[RANKS] = {0}, status, faulty = rank_of_fault();
  bool started = true;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < RANKS; i++) {
    outs[i] = tmpfile();
    pids[i] = start_rank(i, outs[i]);
  }
  for (int left = RANKS; left; left--) {
    pid_t ended = wait(&status);
    bool early = WIFEXITED(status) && WEXITSTATUS(status) == NOT_STARTED;
    started = started && !early;
    for (int i = 0; i < RANKS; i++)
      if (pids[i] == ended) {
        ends[i] = status;
        pids[i] = 0;
      }
    for (int i = 0; i < RANKS; i++)
      if (early && pids[i])
        kill(pids[i], SIGKILL);
  }
  for (int i = 0; i < RANKS; i++)
    if (started || faulty < 0 || i == faulty)
      tell_end(i, ends[i], outs[i]);
  return 0;
}
