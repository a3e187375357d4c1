/* SPDX-License-Identifier: Apache-2.0 */
/* usage: bench_timing CASE CALLS [MINUS]    prints nanoseconds of CPU time per unit of the case, less those of the case
   MINUS, best of many rounds, with vendor libraries that do nothing */
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef cuEventElapsedTime
extern CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to);

static cudaStream_t const compute = (cudaStream_t)32, side = (cudaStream_t)64, idle = (cudaStream_t)96;
static cudaEvent_t const done = (cudaEvent_t)128, other = (cudaEvent_t)160;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* of this thread: what else the machine does counts little */
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int collective(void) {
  static char *const data = (char *)(1ull << 41);
  return (int)ncclAllReduce(data, data, 1 << 20, ncclBfloat16, ncclAvg, (ncclComm_t)4096, side);
}

static int gemm(void) {
  static char *const data = (char *)(1ull << 41);
  static const float one = 1, zero = 0;
  return (int)cublasGemmEx((cublasHandle_t)1, CUBLAS_OP_T, CUBLAS_OP_N, 4096, 8192, 4096, &one, data, CUDA_R_16BF, 4096,
                           data, CUDA_R_16BF, 4096, &zero, data, CUDA_R_16BF, 4096, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

static int record(void) {
  return (int)cudaEventRecord(done, side);
}

static int wait_adds(void) {
  int status = collective();
  status |= (int)cudaEventRecord(done, side);
  return status | (int)cudaStreamWaitEvent(compute, done, 0);
}

static int collective_recorded(void) {
  int status = collective();
  return status | (int)cudaEventRecord(done, side);
}

static int wait_adds_nothing(void) {
  return (int)cudaStreamWaitEvent(compute, other, 0);
}

/* A step of 64 GEMMs and a collective. */
static int gemms(void) {
  int status = collective();
  for (int i = 0; i < 64; i++)
    status |= gemm();
  return status;
}

/* What the library cannot do without: the events of a collective, and asking for their times. */
static int vendors_events(void) {
  static CUevent start, end, anchor;
  float ms;
  int status = 0;
  if (!start)
    status = (int)cuEventCreate(&start, 0) | (int)cuEventCreate(&end, 0) | (int)cuEventCreate(&anchor, 0);
  status |= (int)cuEventRecord(start, side) | (int)cuEventRecord(end, side);
  return status | (int)cuEventElapsedTime(&ms, anchor, start) | (int)cuEventElapsedTime(&ms, anchor, end) |
         (int)cuEventElapsedTime(&ms, start, end);
}

static const struct work {
  const char *name;
  int (*run)(void);
} works[] = {
    {"collective", collective},
    {"collective_recorded", collective_recorded},
    {"wait_adds", wait_adds},
    {"wait_adds_nothing", wait_adds_nothing},
    {"record", record},
    {"gemms", gemms},
    {"vendors_events", vendors_events},
};

static const struct work *find(const char *name) {
  for (size_t i = 0; i < sizeof works / sizeof *works; i++)
    if (strcmp(works[i].name, name) == 0)
      return &works[i];
  fprintf(stderr, "timing: no case %s\n", name);
  exit(2);
}

static double time_of(const struct work *work, long calls, int *status) {
  double begin = now_ns();
  for (long i = 0; i < calls; i++)
    *status |= work->run();
  return (now_ns() - begin) / (double)calls;
}

int main(int argc, char **argv) {
  enum { ROUNDS = 15 };
  if (argc < 3)
    return 2;
  long calls = atol(argv[2]);
  const struct work *work = find(argv[1]), *minus = argc > 3 ? find(argv[3]) : NULL;
  double best = 1e30, best_minus = minus ? 1e30 : 0;
  int status = (int)cudaEventRecord(other, idle);
  for (int i = 0; i < 512; i++) /* starts the library and its steps */
    status |= gemm() | collective() | record() | (int)cudaStreamWaitEvent(compute, done, 0);
  for (int round = 0; round < ROUNDS; round++) {
    double each = time_of(work, calls, &status), less = minus ? time_of(minus, calls, &status) : 0;
    best = each < best ? each : best;
    best_minus = less < best_minus ? less : best_minus;
  }
  printf("%.1f\n", best - best_minus);
  return status != 0;
}
