/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_pool    prints what the pool costs, best of many short rounds (other load of the machine): a hit and a lazy
 * free with 10 to 100,000 live blocks of 24 sizes, freed in no order; what a miss adds to the driver's call; several
 * threads; and a pair of malloc and free against the same pair of a driver that takes as long as the virtual node's model of
 * it (tools/vnode/core/models.def: 100 us each), in one run. Nothing is asserted.
 */
#include "memory/pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define MODEL_NS 100000 /* VNODE_HOST("cuMemAlloc", …) and ("cuMemFree", …) */
#define MOST 100000
#define BATCH 256
#define CONTEXT 1

static struct b200_pool pool;
static struct b200_pool_grant live[MOST];
static uint64_t driver_ns, next_address, random_state = 1;
static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t draw(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

static void take_time(void) {
  double end = now_ns() + (double)driver_ns;
  while (driver_ns != 0 && now_ns() < end) {
  }
}

static int driver_alloc(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  (void)user, (void)context;
  take_time();
  pthread_mutex_lock(&driver);
  *address = next_address += (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
  pthread_mutex_unlock(&driver);
  return 0;
}

static int driver_free(void *user, uint64_t context, uint64_t address, bool direct) {
  (void)user, (void)context, (void)address, (void)direct;
  take_time();
  return 0;
}

static int driver_info(void *user, uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes) {
  (void)user, (void)context;
  *free_bytes = *total_bytes = (uint64_t)1 << 50;
  return 0;
}

static int driver_synchronize(void *user, uint64_t context) {
  (void)user, (void)context;
  return 0;
}

static bool driver_capturing(void *user) {
  (void)user;
  return false;
}

static void begin(enum b200_pool_mode mode, uint64_t cost_ns) {
  const struct b200_pool_ops ops = {.out_of_memory = 2,
                                    .invalid_value = 1,
                                    .alloc = driver_alloc,
                                    .free = driver_free,
                                    .info = driver_info,
                                    .synchronize = driver_synchronize,
                                    .capturing = driver_capturing};
  const struct b200_pool_config config = {.mode = mode, .max_idle_bytes = UINT64_MAX};
  b200_pool_context_gone(&pool, CONTEXT);
  memset(&pool, 0, sizeof pool);
  b200_pool_init(&pool, &ops, &config);
  driver_ns = cost_ns;
  next_address = (uint64_t)1 << 40;
}

static void get(struct b200_pool_grant *out, uint64_t size) {
  if (b200_pool_malloc(&pool, CONTEXT, B200_OWNER_PYTORCH, size, out) != 0)
    abort();
}

static void put(const struct b200_pool_grant *block) {
  if (b200_pool_free(&pool, CONTEXT, block->address, false) != 0)
    abort();
}

static void synchronize(void) {
  b200_pool_sync_end(&pool, CONTEXT, b200_pool_sync_begin(&pool, CONTEXT));
}

/* PyTorch's: 2 MiB, 20 MiB, and what does not fit these. */
static uint64_t size_of(uint64_t i) {
  return i % 24 == 0 ? 2 * MIB : 20 * MIB + i % 24 * 6 * MIB;
}

static double least(double a, double b) {
  return a < b ? a : b;
}

static void hits(uint64_t count) {
  double best_get = 1e30, best_put = 1e30;
  uint64_t chosen[BATCH], sizes[BATCH], batch = count < BATCH ? count : BATCH;
  begin(B200_POOL_POOL, 0);
  for (uint64_t i = 0; i < count; i++)
    get(&live[i], size_of(i));
  for (int round = 0; round < 200; round++) {
    double get_ns = 0, put_ns = 0;
    uint64_t calls = 0;
    for (; calls < 4000; calls += batch) {
      uint64_t first = draw() % count, step = 0x9E3779B1u % count | 1;
      for (uint64_t i = 0; i < batch; i++) {
        chosen[i] = (first + i * step) % count;
        sizes[i] = live[chosen[i]].bytes;
      }
      double t0 = now_ns();
      for (uint64_t i = 0; i < batch; i++)
        put(&live[chosen[i]]);
      double t1 = now_ns();
      synchronize();
      double t2 = now_ns();
      for (uint64_t i = 0; i < batch; i++)
        get(&live[chosen[i]], sizes[i]);
      put_ns += t1 - t0;
      get_ns += now_ns() - t2;
    }
    best_get = least(best_get, get_ns / (double)calls);
    best_put = least(best_put, put_ns / (double)calls);
  }
  struct b200_pool_stats stats;
  b200_pool_read(&pool, &stats);
  printf("%7llu live blocks: hit %6.1f ns, free %6.1f ns, pair %6.1f ns; %llu misses\n", (unsigned long long)count, best_get,
         best_put, best_get + best_put, (unsigned long long)(stats.misses - count));
}

static double pairs(enum b200_pool_mode mode, uint64_t cost_ns, int count) {
  struct b200_pool_grant block;
  double best = 1e30;
  begin(mode, cost_ns);
  for (int round = 0; round < 100; round++) {
    double t = now_ns();
    for (int i = 0; i < count; i++) {
      get(&block, 20 * MIB);
      put(&block);
      synchronize();
    }
    best = least(best, (now_ns() - t) / count);
  }
  return best;
}

static void misses(void) {
  double best = 1e30, bare = pairs(B200_POOL_OFF, 0, 1000);
  for (int round = 0; round < 7; round++) {
    begin(B200_POOL_POOL, 0);
    double t = now_ns();
    for (int i = 0; i < 10000; i++)
      get(&live[i], size_of((uint64_t)i));
    best = least(best, (now_ns() - t) / 10000);
  }
  printf(
      "a miss adds %.1f ns to the driver's call (growth of the tables to 10000 blocks included); off, a pair adds %.1f ns\n",
      best, bare);
}

static void *work(void *argument) {
  struct b200_pool_grant blocks[16];
  const uint64_t pairs_each = *(const uint64_t *)argument;
  for (uint64_t i = 0; i < 16; i++)
    get(&blocks[i], size_of(i));
  for (uint64_t i = 0; i < pairs_each; i++) {
    uint64_t bytes = blocks[i % 16].bytes;
    put(&blocks[i % 16]);
    if (i % 16 == 0)
      synchronize();
    get(&blocks[i % 16], bytes);
  }
  return NULL;
}

static void threads(int count) {
  pthread_t handles[64];
  uint64_t pairs_each = 1000000 / (uint64_t)count;
  begin(B200_POOL_POOL, 0);
  double t = now_ns();
  for (int i = 0; i < count; i++)
    if (pthread_create(&handles[i], NULL, work, &pairs_each) != 0)
      abort();
  for (int i = 0; i < count; i++)
    pthread_join(handles[i], NULL);
  double each = (now_ns() - t) / (double)(pairs_each * (uint64_t)count);
  struct b200_pool_stats stats;
  b200_pool_read(&pool, &stats);
  printf("%3d threads: a pair every %.1f ns by all of them, %.1f %% hits\n", count, each,
         100.0 * (double)stats.hits / (double)(stats.hits + stats.misses));
}

int main(void) {
  for (uint64_t count = 10; count <= MOST; count *= 10)
    hits(count);
  misses();
  for (int count = 1; count <= 64; count *= 8)
    threads(count);
  double bare = pairs(B200_POOL_OFF, MODEL_NS, 2), pooled = pairs(B200_POOL_POOL, MODEL_NS, 1000);
  printf("pair through the modelled driver %.0f ns, through the pool %.1f ns: %.0f times less\n", bare, pooled,
         bare / pooled);
  return 0;
}
