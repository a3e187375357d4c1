/* SPDX-License-Identifier: Apache-2.0 */
/* usage: bench_call CALLS    prints nanoseconds per call of cudaEventRecord, best of seven rounds */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
  long calls = argc > 1 ? atol(argv[1]) : 1000000;
  double best = 1e30;
  for (int round = 0; round < 7; round++) {
    double begin = now_ns();
    for (long i = 0; i < calls; i++)
      if (cudaEventRecord(NULL, NULL) != cudaSuccess)
        return 1;
    double each = (now_ns() - begin) / (double)calls;
    if (each < best)
      best = each;
  }
  printf("%.3f\n", best);
  return 0;
}
