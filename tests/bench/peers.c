/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_peers driver|runtime LIVE [region]    nanoseconds of a pair of malloc and free of 4 MiB with so many other
 * blocks live: the median of rounds. `region`: within torch_memory_saver's region.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern int cudaMalloc(void **out, size_t bytes);
extern int cudaFree(void *at);

enum { ROUNDS = 21, PAIRS = 2000 };
#define BYTES ((size_t)4 << 20)

/* Found as a runtime finds them: others stand before the driver nowhere but in dlsym(). */
static int (*cuMemAlloc)(uint64_t *address, size_t bytes);
static int (*cuMemFree)(uint64_t address);

static bool find_driver(void) {
  int (*cuInit)(unsigned);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&cuInit = driver ? dlsym(driver, "cuInit") : NULL;
  *(void **)&cuMemAlloc = driver ? dlsym(driver, "cuMemAlloc_v2") : NULL;
  *(void **)&cuMemFree = driver ? dlsym(driver, "cuMemFree_v2") : NULL;
  return cuInit && cuMemAlloc && cuMemFree && cuInit(0) == 0;
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static int pair(bool driver) {
  uint64_t address;
  void *pointer;
  if (driver)
    return cuMemAlloc(&address, BYTES) || cuMemFree(address);
  return cudaMalloc(&pointer, BYTES) || cudaFree(pointer);
}

int main(int argc, char **argv) {
  double rounds[ROUNDS];
  if (argc < 3 || !find_driver())
    return 2;
  bool driver = strcmp(argv[1], "driver") == 0;
  void (*enter)(bool);
  *(void **)&enter = dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
  if (argc > 3 && !enter)
    return 3;
  if (argc > 3)
    enter(true);
  for (long live = strtol(argv[2], NULL, 10); live > 0; live--) {
    uint64_t address;
    void *pointer;
    if (driver ? cuMemAlloc(&address, BYTES) : cudaMalloc(&pointer, BYTES))
      return 4;
  }
  for (int round = 0; round < ROUNDS; round++) {
    double start = now_ns();
    for (int i = 0; i < PAIRS; i++)
      if (pair(driver))
        return 4;
    rounds[round] = (now_ns() - start) / PAIRS;
  }
  qsort(rounds, ROUNDS, sizeof(rounds[0]), compare);
  Dl_info server;
  bool known = dladdr(*(void **)&cuMemAlloc, &server) != 0;
  printf("%.1f %s\n", rounds[ROUNDS / 2], known ? server.dli_fname : "?");
  fflush(stdout);
  _Exit(0); /* what others do when a process ends is not measured */
}
