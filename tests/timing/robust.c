/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of collectives that goes wrong, ends, forks or captures in the ways that jobs do.
 *
 *   robust SCENARIO STEPS COLLECTIVES [RANKS]     without arguments: the scenarios
 *
 * Every rank trains: STEPS steps of a GEMM, COLLECTIVES all-reduces on a second stream and a wait for them. It goes on after
 * calls that fail, says them, and prints at last what it has done: calls, bytes, device time between events of its own
 * around each collective, and the sum of its data. With RANKS (2), ranks are processes of their own and print to out.RANK;
 * with 1 there is but one process, which prints to stdout. The file `progress` holds, per rank, how many collectives were
 * issued.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  MAX_RANKS = 2,
  COUNT = 1024,         /* elements of an all-reduce */
  ROUND = 512,          /* collectives between two synchronisations, at least */
  MAX_COLLECTIVES = 64, /* per step */
  EVENTS = 2 * (ROUND + MAX_COLLECTIVES),
  WORK_BYTES = 4 << 20, /* of one copy that keeps the device busy */
  SIZE = 32             /* of the matrices */
};

struct board {
  _Atomic int published;
  ncclUniqueId id;
  _Atomic uint64_t issued[MAX_RANKS];
};

/* What one thread trains with. */
struct trainer {
  cudaStream_t compute, side;
  cudaEvent_t events[EVENTS], done;
  unsigned used;
  cublasHandle_t cublas;
  ncclComm_t comm;
  float *data, *matrix;
  char *host, *device;
  uint64_t calls, bytes;
  double dur_ns;
};

static struct board *board;
static int rank, ranks = MAX_RANKS, steps, collectives;
static struct trainer main_trainer;

#define TRY(call) try((int)(call), #call)

static int try(int status, const char *call) {
  if (status != 0)
    printf("%s gives %d\n", call, status);
  return status;
}

static void mark_trace(const char *text) {
  void (*mark)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "vnode_trace_mark");
  if (mark)
    mark(text);
}

/* ------------------------------------------------------------------------------------------------ training */

static void prepare(struct trainer *t, const ncclUniqueId *id, int comm_ranks, int comm_rank) {
  float values[COUNT];
  for (int i = 0; i < COUNT; i++)
    values[i] = (float)(i % 7) / 8;
  TRY(cudaStreamCreateWithFlags(&t->compute, cudaStreamNonBlocking));
  TRY(cudaStreamCreateWithFlags(&t->side, cudaStreamNonBlocking));
  for (int i = 0; i < EVENTS; i++)
    TRY(cudaEventCreate(&t->events[i]));
  TRY(cudaEventCreateWithFlags(&t->done, cudaEventDisableTiming));
  TRY(cudaMallocHost((void **)&t->host, WORK_BYTES));
  TRY(cudaMalloc((void **)&t->device, WORK_BYTES));
  TRY(cudaMalloc((void **)&t->data, sizeof values));
  TRY(cudaMemcpy(t->data, values, sizeof values, cudaMemcpyHostToDevice));
  TRY(cudaMalloc((void **)&t->matrix, 3 * SIZE * SIZE * sizeof *t->matrix));
  TRY(cudaMemset(t->matrix, 0, 3 * SIZE * SIZE * sizeof *t->matrix));
  TRY(cudaDeviceSynchronize());
  TRY(cublasCreate(&t->cublas));
  TRY(cublasSetStream(t->cublas, t->compute));
  TRY(ncclCommInitRank(&t->comm, comm_ranks, *id, comm_rank));
}

static void multiply(struct trainer *t) {
  const float one = 1, zero = 0;
  float *m = t->matrix;
  TRY(cublasSgemm(t->cublas, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, &one, m, SIZE, m + SIZE * SIZE, SIZE, &zero,
                  m + 2 * SIZE * SIZE, SIZE));
}

/* The collectives of a step differ, as those of layers do. */
static void reduce(struct trainer *t, int which) {
  cudaEvent_t *events = &t->events[t->used];
  size_t count = COUNT - 8 * (size_t)which;
  TRY(cudaEventRecord(events[0], t->side));
  if (TRY(ncclAllReduce(t->data, t->data, count, ncclFloat, ncclAvg, t->comm, t->side)) == 0) {
    t->calls++;
    t->bytes += count * sizeof(float);
  }
  TRY(cudaEventRecord(events[1], t->side));
  t->used += 2;
  board->issued[rank] = t->calls;
}

static void step(struct trainer *t) {
  multiply(t);
  for (int i = 0; i < collectives; i++)
    reduce(t, i);
  TRY(cudaEventRecord(t->done, t->side));
  TRY(cudaStreamWaitEvent(t->compute, t->done, 0));
}

/* Keeps the device behind the host, so that times are those of the device alone. */
static void work(struct trainer *t) {
  for (int i = 0; i < 64; i++)
    TRY(cudaMemcpyAsync(t->device, t->host, WORK_BYTES, cudaMemcpyHostToDevice, t->side));
}

static void settle(struct trainer *t) {
  TRY(cudaStreamSynchronize(t->side));
  TRY(cudaStreamSynchronize(t->compute));
  for (unsigned i = 0; i < t->used; i += 2) {
    float ms = 0;
    TRY(cudaEventElapsedTime(&ms, t->events[i], t->events[i + 1]));
    t->dur_ns += (double)ms * 1e6;
  }
  t->used = 0;
}

static void train(struct trainer *t, int count) {
  for (int i = 0; i < count; i++) {
    if (t->used == 0)
      work(t);
    step(t);
    if (t->used >= 2 * ROUND)
      settle(t);
  }
  settle(t);
}

static void tell(struct trainer *t) {
  float values[COUNT];
  double sum = 0;
  TRY(cudaMemcpy(values, t->data, sizeof values, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++)
    sum += values[i];
  printf("{\"rank\": %d, \"calls\": %llu, \"bytes\": %llu, \"dur_ns\": %.0f, \"sum\": %.9g}\n", rank,
         (unsigned long long)t->calls, (unsigned long long)t->bytes, t->dur_ns, sum);
  fflush(stdout);
}

/* A thread of its own with a communicator of its own. */
static void *train_alone(void *count) {
  struct trainer *t = calloc(1, sizeof *t);
  ncclUniqueId id;
  TRY(cudaSetDevice(rank));
  TRY(ncclGetUniqueId(&id));
  prepare(t, &id, 1, 0);
  train(t, *(int *)count);
  return t;
}

/* ------------------------------------------------------------------------------------------------ scenarios */

static void plain(struct trainer *t) {
  train(t, steps);
}

/* Every step takes its time on the host. */
static void slow_host(struct trainer *t) {
  for (int i = 0; i < steps; i++) {
    step(t);
    settle(t);
    usleep(5000);
  }
}

static void groups(struct trainer *t) {
  for (int i = 0; i < steps; i++) {
    multiply(t);
    TRY(ncclGroupStart());
    for (int j = 0; j < collectives; j++)
      if (TRY(ncclAllReduce(t->data, t->data, COUNT, ncclFloat, ncclAvg, t->comm, t->side)) == 0)
        t->calls++;
    TRY(ncclGroupEnd());
    TRY(cudaStreamSynchronize(t->side));
  }
}

/* The library's log and all else that is not the node's. */
static void close_descriptors(void) {
  DIR *folder = opendir("/proc/self/fd");
  struct dirent *entry;
  while (folder && (entry = readdir(folder))) {
    char path[64], target[512];
    int file = atoi(entry->d_name);
    snprintf(path, sizeof path, "/proc/self/fd/%.40s", entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    if (file > STDERR_FILENO && file != dirfd(folder) && !strstr(target, "b200vnode") && !strstr(target, ".trace"))
      close(file);
  }
  if (folder)
    closedir(folder);
}

static void closed(struct trainer *t) {
  train(t, steps / 2);
  close_descriptors();
  train(t, steps - steps / 2);
}

static void removed(struct trainer *t) {
  train(t, steps / 2);
  TRY(system("rm -rf \"$B200OPT_LOG_DIR\""));
  train(t, steps - steps / 2);
}

static void issue_in_capture(struct trainer *t) {
  TRY(ncclAllReduce(t->data, t->data, COUNT, ncclFloat, ncclAvg, t->comm, t->side));
  TRY(cudaEventRecord(t->done, t->side));
  TRY(cudaStreamWaitEvent(t->compute, t->done, 0));
  multiply(t);
  TRY(cudaEventRecord(t->done, t->compute));
  TRY(cudaStreamWaitEvent(t->side, t->done, 0));
}

static void capture_in(struct trainer *t, enum cudaStreamCaptureMode mode) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  train(t, steps);
  step(t); /* something of which the device is not done */
  TRY(cudaStreamBeginCapture(t->side, mode));
  issue_in_capture(t);
  TRY(cudaStreamEndCapture(t->side, &graph));
  TRY(cudaGraphInstantiate(&executable, graph, 0));
  settle(t);
  for (int i = 0; i < 3; i++)
    TRY(cudaGraphLaunch(executable, t->side));
  TRY(cudaStreamSynchronize(t->side));
  train(t, steps);
}

static void capture_global(struct trainer *t) {
  capture_in(t, cudaStreamCaptureModeGlobal);
}

static void capture_relaxed(struct trainer *t) {
  capture_in(t, cudaStreamCaptureModeRelaxed);
}

/* While this thread captures in global mode, another trains. */
static pthread_barrier_t barrier;
static void *train_beside(void *trainer) {
  struct trainer *t = trainer;
  TRY(cudaSetDevice(rank));
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < steps; i++)
    step(t);
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier); /* the capture is over: this thread may wait for the device again */
  settle(t);
  return NULL;
}

static void capture_beside(struct trainer *t) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  pthread_t thread;
  train(t, steps);
  TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  pthread_barrier_init(&barrier, NULL, 2);
  pthread_create(&thread, NULL, train_beside, t);
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  TRY(cudaMemsetAsync(t->device, 1, WORK_BYTES, stream));
  TRY(cudaStreamEndCapture(stream, &graph));
  pthread_barrier_wait(&barrier);
  TRY(cudaGraphInstantiate(&executable, graph, 0));
  TRY(cudaGraphLaunch(executable, stream));
  TRY(cudaStreamSynchronize(stream));
  pthread_join(thread, NULL);
  train(t, steps);
}

/* A capture that the program itself spoils. */
static void capture_failed(struct trainer *t) {
  cudaGraph_t graph = NULL;
  train(t, steps);
  TRY(cudaStreamBeginCapture(t->side, cudaStreamCaptureModeGlobal));
  TRY(ncclAllReduce(t->data, t->data, COUNT, ncclFloat, ncclAvg, t->comm, t->side));
  TRY(cudaStreamSynchronize(t->side));
  TRY(cudaStreamEndCapture(t->side, &graph));
  cudaGetLastError();
  train(t, steps);
}

static void child_uses_cuda(struct trainer *t) {
  cudaEvent_t event = t->events[0];
  int failures = 0;
  failures += cudaEventRecord(event, t->side) != cudaSuccess;
  failures += cudaStreamWaitEvent(t->compute, event, 0) != cudaSuccess;
  failures += cudaStreamSynchronize(t->side) != cudaSuccess;
  failures += cudaEventSynchronize(event) != cudaSuccess;
  failures += cudaDeviceSynchronize() != cudaSuccess;
  cudaEventDestroy(event);
  exit(failures == 5 ? 5 : 6);
}

static void forks(struct trainer *t) {
  train(t, steps);
  for (int i = 0; i < 4; i++) {
    int status = -1;
    step(t); /* not waited for */
    fflush(stdout);
    pid_t child = fork();
    if (child == 0 && i % 2)
      child_uses_cuda(t);
    if (child == 0)
      exit(7);
    waitpid(child, &status, 0);
    printf("child %d: %d\n", i, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    settle(t);
  }
  train(t, steps);
}

/* Children of a process whose threads are in the midst of timing. */
static void fork_storm(struct trainer *t) {
  pthread_t threads[2];
  void *result;
  int good = 0;
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, train_alone, &steps);
  train(t, 1);
  fflush(stdout);
  for (int i = 0; i < 40; i++) {
    int status = -1;
    pid_t child = fork();
    if (child == 0 && i % 2)
      child_uses_cuda(t);
    if (child == 0)
      exit(7);
    waitpid(child, &status, 0);
    good += WIFEXITED(status) && WEXITSTATUS(status) == (i % 2 ? 5 : 7);
  }
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], &result);
  printf("%d good children\n", good);
}

/* ---- ends, with work that the device has not come to */

static void leave_pending(struct trainer *t) {
  train(t, steps);
  work(t);
  step(t);
  printf("leaves\n");
  fflush(stdout);
  mark_trace("ends");
}

static void end_exit(struct trainer *t) {
  leave_pending(t);
  exit(3);
}

static void end_now(struct trainer *t) {
  leave_pending(t);
  _exit(4);
}

static void end_abort(struct trainer *t) {
  leave_pending(t);
  abort();
}

static void end_term(struct trainer *t) {
  leave_pending(t);
  raise(SIGTERM);
}

static void end_return(struct trainer *t) {
  leave_pending(t);
}

static void *end_in_thread(void *trainer) {
  usleep(20000);
  leave_pending(trainer);
  return NULL;
}

static void end_main_thread(struct trainer *t) {
  pthread_t thread;
  fflush(stdout);
  pthread_create(&thread, NULL, end_in_thread, t);
  pthread_detach(thread);
  pthread_exit(NULL);
}

static void leave(int number) {
  (void)number;
  exit(5);
}

/* exit() in a handler, at any moment of the library's own code. */
static void end_handler(struct trainer *t) {
  struct itimerval timer = {.it_value = {.tv_usec = 1000 + (getpid() * 7919) % 60000}};
  train(t, 1);
  signal(SIGALRM, leave);
  setitimer(ITIMER_REAL, &timer, NULL);
  for (;;)
    train(t, steps);
}

static const struct scenario {
  const char *name;
  void (*run)(struct trainer *t);
} scenarios[] = {
    {"plain", plain},
    {"slow_host", slow_host},
    {"groups", groups},
    {"closed", closed},
    {"removed", removed},
    {"capture_global", capture_global},
    {"capture_relaxed", capture_relaxed},
    {"capture_beside", capture_beside},
    {"capture_failed", capture_failed},
    {"forks", forks},
    {"fork_storm", fork_storm},
    {"end_exit", end_exit},
    {"end_now", end_now},
    {"end_abort", end_abort},
    {"end_term", end_term},
    {"end_return", end_return},
    {"end_main_thread", end_main_thread},
    {"end_handler", end_handler},
};

/* --------------------------------------------------------------------------------------------------- ranks */

static int run_rank(const struct scenario *scenario) {
  TRY(cudaSetDevice(rank));
  if (rank == 0) {
    TRY(ncclGetUniqueId(&board->id));
    board->published = 1;
  }
  while (!board->published)
    usleep(100);
  prepare(&main_trainer, &board->id, ranks, rank);
  scenario->run(&main_trainer);
  if (scenario->run != end_return)
    tell(&main_trainer);
  return 0;
}

static pid_t start_rank(const struct scenario *scenario, int which) {
  char text[16];
  pid_t child = fork();
  if (child != 0)
    return child;
  rank = which;
  snprintf(text, sizeof text, "%d", which);
  setenv("RANK", text, 1);
  snprintf(text, sizeof text, "%d", ranks);
  setenv("WORLD_SIZE", text, 1);
  snprintf(text, sizeof text, "out.%d", which);
  if (!freopen(text, "w", stdout))
    exit(90);
  exit(run_rank(scenario));
}

static struct board *map_board(void) {
  int file = open("progress", O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || ftruncate(file, sizeof *board) != 0)
    exit(91);
  void *at = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return at;
}

int main(int argc, char **argv) {
  const struct scenario *scenario = NULL;
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (argc < 4)
      printf("%s\n", scenarios[i].name);
    else if (strcmp(scenarios[i].name, argv[1]) == 0)
      scenario = &scenarios[i];
  }
  if (!scenario)
    return argc == 1 ? 0 : 92;
  steps = atoi(argv[2]);
  collectives = atoi(argv[3]) < MAX_COLLECTIVES ? atoi(argv[3]) : MAX_COLLECTIVES;
  ranks = argc > 4 && atoi(argv[4]) == 1 ? 1 : MAX_RANKS;
  board = map_board();
  if (ranks == 1)
    return run_rank(scenario);
  pid_t pids[MAX_RANKS];
  int status;
  for (int i = 0; i < ranks; i++)
    pids[i] = start_rank(scenario, i);
  for (int i = 0; i < ranks; i++) {
    waitpid(pids[i], &status, 0);
    if (WIFEXITED(status))
      printf("rank %d exits with %d\n", i, WEXITSTATUS(status));
    else
      printf("rank %d is ended by signal %d\n", i, WTERMSIG(status));
  }
  return 0;
}
