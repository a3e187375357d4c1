/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scripted programs of two ranks for the timing of collectives: each measures with events of its own, beside those of the
 * library, what the collectives cost, and prints it.
 *
 *   program SCENARIO STEPS     {"comm": hex of its ncclUniqueId, "seq": …, "dur": ns, "blocked": ns} a line and operation
 *
 * Every step begins with work on all streams, so that the host runs ahead and the times are those of the device alone.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  RANKS = 2,
  MARKS = 4096,
  OPS = 512,
  COMMS = 8,
  BYTES_PER_US = 50000,
  COPY_BYTES = 16 << 20,
  COUNT = 1 << 20,
  STREAMS = 8
};

#define CUDA(call) check((int)(call), #call, __LINE__)
#define NCCL(call) check((int)(call), #call, __LINE__)
#define CUBLAS(call) check((int)(call), #call, __LINE__)

static void check(int status, const char *call, int line) {
  if (status == 0)
    return;
  fprintf(stderr, "program: line %d: %s gives %d\n", line, call, status);
  exit(1);
}

struct board {
  _Atomic int published;
  ncclUniqueId ids[COMMS];
};

struct op {
  int comm;
  long seq;
  int start, end; /* marks */
  int wait;       /* mark of the first wait of a compute stream for it; -1: none; WHOLE: blocks for all of its time */
};
enum { WHOLE = -2 };

static struct board *board;
static int rank;
static cudaEvent_t marks[MARKS], base;
static struct op ops[OPS];
static int mark_count, op_count;
static _Atomic long sequence[COMMS];
static ncclComm_t comms[COMMS];
static int comm_count;
static cudaStream_t compute, side, other;
static cublasHandle_t cublas;
static char *host, *device;
static float *data, *matrix;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------------------------------------- building blocks */

static int mark(cudaStream_t stream) {
  pthread_mutex_lock(&lock);
  int at = mark_count++;
  pthread_mutex_unlock(&lock);
  if (at >= MARKS)
    check(1, "too many marks", __LINE__);
  if (!marks[at])
    CUDA(cudaEventCreate(&marks[at]));
  CUDA(cudaEventRecord(marks[at], stream));
  return at;
}

/* Memory of the stream's own, so that nothing but events orders streams. */
static unsigned slot_of(cudaStream_t stream) {
  static cudaStream_t seen[STREAMS];
  static unsigned count;
  unsigned at = 0;
  while (at < count && seen[at] != stream)
    at++;
  if (at == count)
    seen[count++] = stream;
  return at;
}

/* Keeps the stream busy. */
static void work(cudaStream_t stream, size_t us) {
  for (size_t left = us * BYTES_PER_US; left > 0;) {
    size_t bytes = left < COPY_BYTES ? left : COPY_BYTES;
    CUDA(cudaMemcpyAsync(device + slot_of(stream) * (size_t)COPY_BYTES, host, bytes, cudaMemcpyHostToDevice, stream));
    left -= bytes;
  }
}

static int add_op(int comm, int calls, int start, int end) {
  pthread_mutex_lock(&lock);
  int at = op_count++;
  pthread_mutex_unlock(&lock);
  if (at >= OPS)
    check(1, "too many operations", __LINE__);
  ops[at] = (struct op){.comm = comm, .seq = sequence[comm], .start = start, .end = end, .wait = -1};
  sequence[comm] += calls;
  return at;
}

/* About count/2^20 · 20 us on the node. */
static int reduce(int comm, cudaStream_t stream, size_t count) {
  int start = mark(stream);
  NCCL(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comms[comm], stream));
  return add_op(comm, 1, start, mark(stream));
}

static void multiply(cudaStream_t stream) {
  const float one = 1, zero = 0;
  float *own = matrix + slot_of(stream) * 32 * 32;
  CUBLAS(cublasSetStream(cublas, stream));
  CUBLAS(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, 32, 32, 32, &one, own, 32, own, 32, &zero, own, 32));
}

static cudaEvent_t record(cudaStream_t stream) {
  cudaEvent_t event;
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventRecord(event, stream));
  return event;
}

/* `op` < 0: no collective depends on it. */
static void wait_for(cudaStream_t stream, cudaEvent_t event, int op) {
  int at = mark(stream);
  CUDA(cudaStreamWaitEvent(stream, event, 0));
  if (op >= 0 && ops[op].wait == -1)
    ops[op].wait = at;
}

static void new_comm(int index) {
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&board->ids[index]));
    board->published = index + 1;
  }
  while (board->published <= index)
    usleep(100);
  sequence[index] = 0;
  NCCL(ncclCommInitRank(&comms[index], RANKS, board->ids[index], rank));
  comm_count = index + 1;
}

/* ------------------------------------------------------------------------------------------------- scenarios */

static void hidden(void) {
  int op = reduce(0, side, 4 * COUNT);
  cudaEvent_t done = record(side);
  work(compute, 1000);
  wait_for(compute, done, op);
}

static void blocked(void) {
  int op = reduce(0, side, 16 * COUNT);
  cudaEvent_t done = record(side);
  work(compute, 50);
  wait_for(compute, done, op);
}

static void nested_group(void) {
  int start = mark(side);
  NCCL(ncclGroupStart());
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(data, data, 4 * COUNT, ncclFloat, ncclSum, comms[0], side));
  NCCL(ncclGroupEnd());
  NCCL(ncclAllReduce(data, data, 4 * COUNT, ncclFloat, ncclSum, comms[0], side));
  NCCL(ncclGroupEnd());
  int op = add_op(0, 2, start, mark(side));
  wait_for(compute, record(side), op);
}

static void on_compute(void) {
  int op = reduce(0, compute, 4 * COUNT);
  ops[op].wait = WHOLE;
}

static void two_waits(void) {
  int op = reduce(0, side, 16 * COUNT);
  cudaEvent_t done = record(side);
  work(compute, 50);
  wait_for(compute, done, op);
  work(compute, 100);
  wait_for(compute, done, op);
}

/* The wait is for the newer record, on a stream without a collective. */
static void recorded_again(void) {
  reduce(0, side, 16 * COUNT);
  cudaEvent_t event = record(side);
  work(other, 30);
  CUDA(cudaEventRecord(event, other));
  wait_for(compute, event, -1);
}

static void recorded_again_late(void) {
  work(other, 30);
  cudaEvent_t event = record(other);
  int op = reduce(0, side, 16 * COUNT);
  CUDA(cudaEventRecord(event, side));
  wait_for(compute, event, op);
}

static void waited_first(void) {
  cudaEvent_t event;
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  wait_for(compute, event, -1);
  reduce(0, side, 16 * COUNT);
  CUDA(cudaEventRecord(event, side));
}

static void transitive(void) {
  int op = reduce(0, side, 16 * COUNT);
  wait_for(other, record(side), -1);
  work(other, 40);
  wait_for(compute, record(other), op);
}

static void bcast(void) {
  int start = mark(side);
  NCCL(ncclBcast(data, 4 * COUNT, ncclFloat, 0, comms[0], side));
  int op = add_op(0, 1, start, mark(side));
  wait_for(compute, record(side), op);
}

static void *second_thread(void *op) {
  CUDA(cudaSetDevice(rank));
  *(int *)op = reduce(1, other, 8 * COUNT);
  return NULL;
}

static void two_threads(void) {
  pthread_t thread;
  int theirs;
  if (comm_count < 2)
    new_comm(1);
  pthread_create(&thread, NULL, second_thread, &theirs);
  int op = reduce(0, side, 16 * COUNT);
  pthread_join(thread, NULL);
  wait_for(compute, record(other), theirs);
  wait_for(compute, record(side), op);
}

static void pointer_reuse(void) {
  static int next = 1;
  new_comm(next);
  int op = reduce(next, side, 4 * COUNT);
  wait_for(compute, record(side), op);
  CUDA(cudaDeviceSynchronize());
  NCCL(ncclCommDestroy(comms[next]));
  next++;
}

/* Of the split comes no ncclUniqueId: its line says "split". */
static void split(void) {
  static ncclComm_t child;
  if (!child)
    NCCL(ncclCommSplit(comms[0], 7, rank, &child, NULL));
  comms[1] = child;
  int op = reduce(1, side, 4 * COUNT);
  wait_for(compute, record(side), op);
  op = reduce(0, side, 4 * COUNT);
  wait_for(compute, record(side), op);
}

static void graph(void) {
  static cudaGraphExec_t executable;
  if (!executable) {
    cudaGraph_t captured;
    CUDA(cudaStreamBeginCapture(side, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(data, data, 4 * COUNT, ncclFloat, ncclSum, comms[0], side));
    CUDA(cudaStreamEndCapture(side, &captured));
    CUDA(cudaGraphInstantiate(&executable, captured, 0));
    sequence[0]++;
  }
  int start = mark(side);
  CUDA(cudaGraphLaunch(executable, side));
  int end = mark(side);
  wait_for(compute, record(side), -1);
  int op = reduce(0, side, 4 * COUNT);
  wait_for(compute, record(side), op);
  CUDA(cudaDeviceSynchronize());
  float ms;
  CUDA(cudaEventElapsedTime(&ms, marks[start], marks[end]));
  printf("{\"graph\": %.0f}\n", (double)ms * 1e6);
}

/* Work of the legacy stream waits for the collective on a blocking stream, without an event. */
static cudaStream_t blocking;
static void legacy(void) {
  if (!blocking)
    CUDA(cudaStreamCreate(&blocking));
  work(NULL, 500);
  int op = reduce(0, blocking, 16 * COUNT);
  multiply(NULL);
  ops[op].wait = WHOLE;
}

static void per_thread(void) {
  work(cudaStreamPerThread, 500);
  multiply(cudaStreamPerThread);
  int op = reduce(0, side, 16 * COUNT);
  wait_for(cudaStreamPerThread, record(side), op);
}

static const struct scenario {
  const char *name;
  void (*run)(void);
} scenarios[] = {
    {"hidden", hidden},
    {"blocked", blocked},
    {"nested_group", nested_group},
    {"on_compute", on_compute},
    {"two_waits", two_waits},
    {"recorded_again", recorded_again},
    {"recorded_again_late", recorded_again_late},
    {"waited_first", waited_first},
    {"transitive", transitive},
    {"bcast", bcast},
    {"two_threads", two_threads},
    {"pointer_reuse", pointer_reuse},
    {"split", split},
    {"graph", graph},
    {"legacy", legacy},
    {"per_thread", per_thread},
};

/* ------------------------------------------------------------------------------------------------------ ranks */

static double time_of(int at) {
  float ms;
  CUDA(cudaEventElapsedTime(&ms, base, marks[at]));
  return (double)ms * 1e6;
}

static void print_ops(const char *scenario) {
  for (int i = 0; i < op_count; i++) {
    const struct op *op = &ops[i];
    double start = time_of(op->start), end = time_of(op->end), waited = op->wait >= 0 ? time_of(op->wait) : 0;
    double from = op->wait == WHOLE || waited < start ? start : waited;
    double cost = op->wait == -1 || end < from ? 0 : end - from;
    printf("{\"comm\": \"");
    if (strcmp(scenario, "split") == 0 && op->comm == 1)
      printf("split");
    else
      for (size_t j = 0; j < sizeof board->ids[0]; j++)
        printf("%02x", ((unsigned char *)&board->ids[op->comm])[j]);
    printf("\", \"seq\": %ld, \"dur\": %.0f, \"blocked\": %.0f}\n", op->seq, end - start, cost);
  }
}

static void begin_step(void) {
  op_count = mark_count = 0;
  CUDA(cudaEventRecord(base, compute));
  work(compute, 2000);
  cudaEvent_t begun = record(compute);
  CUDA(cudaStreamWaitEvent(side, begun, 0));
  CUDA(cudaStreamWaitEvent(other, begun, 0));
}

static int run_rank(const struct scenario *scenario, int steps) {
  CUDA(cudaSetDevice(rank));
  CUDA(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&base));
  CUDA(cudaMallocHost((void **)&host, COPY_BYTES));
  CUDA(cudaMalloc((void **)&device, STREAMS * (size_t)COPY_BYTES));
  CUDA(cudaMalloc((void **)&data, 16 * COUNT * sizeof *data));
  CUDA(cudaMalloc((void **)&matrix, STREAMS * 32 * 32 * sizeof *matrix));
  CUBLAS(cublasCreate(&cublas));
  new_comm(0);
  multiply(compute);
  for (int step = 0; step < steps; step++) {
    begin_step();
    scenario->run();
    multiply(compute);
    CUDA(cudaDeviceSynchronize());
    print_ops(scenario->name);
  }
  CUDA(cudaDeviceSynchronize());
  fflush(stdout);
  return 0;
}

int main(int argc, char **argv) {
  const struct scenario *scenario = NULL;
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios && argc == 3; i++)
    if (strcmp(scenarios[i].name, argv[1]) == 0)
      scenario = &scenarios[i];
  if (!scenario) {
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
      printf("%s\n", scenarios[i].name);
    return argc == 1 ? 0 : 1;
  }
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t pids[RANKS];
  for (int i = 0; i < RANKS; i++)
    if ((pids[i] = fork()) == 0) {
      char text[8], path[64];
      rank = i;
      snprintf(text, sizeof text, "%d", i);
      setenv("RANK", text, 1);
      setenv("WORLD_SIZE", "2", 1);
      snprintf(path, sizeof path, "truth.%d", i);
      if (!freopen(path, "w", stdout))
        check(1, "freopen", __LINE__);
      exit(run_rank(scenario, atoi(argv[2])));
    }
  int failures = 0, status;
  for (int i = 0; i < RANKS; i++) {
    waitpid(pids[i], &status, 0);
    failures += status != 0;
  }
  return failures;
}
