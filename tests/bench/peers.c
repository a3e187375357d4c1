/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_peers driver|runtime LIVE [region]    nanoseconds of an allocation of 4 MiB, and of a pair of it and its
 * free, with so many other blocks live: the medians of rounds. `region`: within torch_memory_saver's region.
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
extern int pool_test_cache_free(int (*free_block)(void *), void *block); /* from where PyTorch's cache would free */

enum { ROUNDS = 21, BATCH = 8, BATCHES = 250 };
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

static int get(bool driver, uint64_t *address) {
  void *pointer = NULL;
  if (driver)
    return cuMemAlloc(address, BYTES);
  int status = cudaMalloc(&pointer, BYTES);
  *address = (uint64_t)(uintptr_t)pointer;
  return status;
}

static int put(bool driver, uint64_t address) {
  return driver ? cuMemFree(address) : pool_test_cache_free(cudaFree, (void *)(uintptr_t)address);
}

/* Nanoseconds of an allocation and of a pair. */
static int measure(bool driver, double *alloc_ns, double *pair_ns) {
  uint64_t blocks[BATCH];
  int wrong = 0;
  double alloc = 0, all = 0;
  for (int i = 0; i < BATCHES; i++) {
    double start = now_ns();
    for (int j = 0; j < BATCH; j++)
      wrong |= get(driver, &blocks[j]);
    alloc += now_ns() - start;
    for (int j = 0; j < BATCH; j++)
      wrong |= put(driver, blocks[j]);
    all += now_ns() - start;
  }
  *alloc_ns = alloc / BATCH / BATCHES;
  *pair_ns = all / BATCH / BATCHES;
  return wrong;
}

int main(int argc, char **argv) {
  double allocs[ROUNDS], pairs[ROUNDS];
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
    if (get(driver, &address))
      return 4;
  }
  for (int round = 0; round < ROUNDS; round++)
    if (measure(driver, &allocs[round], &pairs[round]))
      return 4;
  qsort(allocs, ROUNDS, sizeof allocs[0], compare);
  qsort(pairs, ROUNDS, sizeof pairs[0], compare);
  Dl_info server;
  bool known = dladdr(*(void **)&cuMemAlloc, &server) != 0;
  printf("%.1f %.1f %s\n", allocs[ROUNDS / 2], pairs[ROUNDS / 2], known ? server.dli_fname : "?");
  fflush(stdout);
  _Exit(0); /* what others do when a process ends is not measured */
}
