/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: corruption SEEDS OPERATIONS THREADS
 *
 * Threads allocate from one pool, write and check numbers in streams that they draw, hand blocks to each other, free what
 * they or others got with work still queued, and synchronise, while the device runs its streams in a drawn order or not at
 * all. After every seed: nothing that must never happen has happened (fake_device.h), every block is accounted for, and the
 * cache was used. Half of the seeds have fences, half wait on demand, half stay within the peak, a third has a device that
 * runs full. Exit status 1 and a line for the first seed that fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_device.h"

#define MIB ((uint64_t)1 << 20)
#define BOXES 256
#define HELD 8

/* A block on its way between threads: its address and what it holds. */
struct parcel {
  uint64_t address, value;
  int context;
};

static struct fake_device device;
static struct b200_pool pool;
static struct {
  pthread_mutex_t lock;
  struct parcel parcels[BOXES];
} boxes = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_uint_fast64_t values = 1;
static long operations_each;

struct worker {
  pthread_t thread;
  uint64_t random;
  struct parcel held[HELD];
};

static struct parcel exchange(struct parcel parcel, uint64_t draw) {
  pthread_mutex_lock(&boxes.lock);
  struct parcel *box = &boxes.parcels[draw % BOXES];
  struct parcel other = *box;
  *box = parcel;
  pthread_mutex_unlock(&boxes.lock);
  return other;
}

static int draw_stream(struct worker *worker) {
  return (int)(fake_random(&worker->random) % FAKE_STREAMS);
}

/* One stream writes and checks; others, not ordered with it, only read. */
static void fill(struct worker *worker, struct parcel *parcel) {
  int stream = draw_stream(worker);
  parcel->value = atomic_fetch_add(&values, 1);
  fake_launch(&device, parcel->context, stream, parcel->address, true, parcel->value);
  fake_launch(&device, parcel->context, stream, parcel->address, false, parcel->value);
  for (uint64_t readers = fake_random(&worker->random) % 3; readers > 0; readers--)
    fake_launch(&device, parcel->context, draw_stream(worker), parcel->address, false, 0);
}

static void allocate(struct worker *worker, struct parcel *parcel) {
  static const uint64_t sizes[] = {2 * MIB, 2 * MIB, 20 * MIB, 22 * MIB, 64 * MIB, 66 * MIB, 128 * MIB};
  uint64_t draw = fake_random(&worker->random);
  struct b200_pool_grant grant;
  parcel->context = (int)(draw % 2);
  if (b200_pool_malloc(&pool, FAKE_CONTEXT(parcel->context), B200_OWNER_PYTORCH, sizes[draw / 2 % 7], &grant) != 0)
    return;
  fake_handed_out(&device, grant.address);
  parcel->address = grant.address;
  fill(worker, parcel);
}

static void release(struct parcel *parcel, bool waits) {
  if (b200_pool_free(&pool, 0, parcel->address, waits) != 0) {
    fprintf(stderr, "a free was refused\n");
    abort();
  }
  parcel->address = 0;
}

static void synchronize(struct worker *worker) {
  int context = (int)(fake_random(&worker->random) % 2);
  uint64_t token = b200_pool_sync_begin(&pool, FAKE_CONTEXT(context));
  fake_run_all(&device, context);
  b200_pool_sync_end(&pool, FAKE_CONTEXT(context), token);
}

static void *work(void *argument) {
  struct worker *worker = argument;
  for (long i = 0; i < operations_each; i++) {
    uint64_t draw = fake_random(&worker->random);
    struct parcel *parcel = &worker->held[draw % HELD];
    unsigned kind = (unsigned)(draw / HELD % 64);
    if (kind == 0)
      synchronize(worker);
    else if (kind < 8)
      fake_run(&device, (int)(draw >> 32) & 15);
    else if (kind < 16)
      *parcel = exchange(*parcel, draw >> 16);
    else if (parcel->address == 0)
      allocate(worker, parcel);
    else
      release(parcel, (draw >> 40) % 8 == 0);
  }
  for (int i = 0; i < HELD; i++)
    if (worker->held[i].address != 0)
      release(&worker->held[i], true);
  return NULL;
}

static bool verdict(uint64_t seed) {
  struct b200_pool_stats stats;
  b200_pool_read(&pool, &stats);
  if (device.overlaps)
    printf("seed %llu: %llu blocks were handed out while work on it is pending\n", (unsigned long long)seed,
           (unsigned long long)device.overlaps);
  if (fake_wrongs(&device) != 0)
    printf("seed %llu: overlaps %llu, early frees %llu, mismatches %llu, faults %llu, illegal %llu\n",
           (unsigned long long)seed, (unsigned long long)device.overlaps, (unsigned long long)device.early_frees,
           (unsigned long long)device.mismatches, (unsigned long long)device.faults, (unsigned long long)device.illegal);
  uint64_t lost = device.used - stats.idle_bytes + stats.live_blocks;
  if (lost != 0)
    printf("seed %llu: %llu bytes or blocks are not accounted for\n", (unsigned long long)seed, (unsigned long long)lost);
  if (stats.hits == 0)
    printf("seed %llu: the cache was never used\n", (unsigned long long)seed);
  return fake_wrongs(&device) == 0 && lost == 0 && stats.hits != 0;
}

static bool try(uint64_t seed, int threads, struct b200_pool_stats *sum) {
  struct worker *workers = calloc((size_t)threads, sizeof *workers);
  struct b200_pool_ops ops;
  struct b200_pool_config config = {
      .mode = B200_POOL_POOL, .max_idle_bytes = 4096 * MIB, .wait = seed / 2 % 2 == 0, .within_peak = seed / 4 % 2 == 0};
  fake_make(&device, seed, seed % 3 == 2 ? 2048 * MIB : 1024 * 1024 * MIB);
  device.has_fences = seed % 2 == 0;
  fake_ops(&device, &ops);
  memset(&pool, 0, sizeof pool);
  memset(boxes.parcels, 0, sizeof boxes.parcels);
  b200_pool_init(&pool, &ops, &config);
  for (int i = 0; i < threads; i++) {
    workers[i].random = seed * 1000 + (uint64_t)i;
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
      abort();
  }
  for (int i = 0; i < threads; i++)
    pthread_join(workers[i].thread, NULL);
  free(workers);
  for (int i = 0; i < BOXES; i++)
    if (boxes.parcels[i].address != 0)
      release(&boxes.parcels[i], true);
  for (int i = 0; i < FAKE_CONTEXTS; i++)
    fake_run_all(&device, i);
  struct b200_pool_stats stats;
  b200_pool_read(&pool, &stats);
  sum->hits += stats.hits, sum->misses += stats.misses, sum->waits += stats.waits, sum->retries += stats.retries;
  sum->released += stats.released, sum->failed += stats.failed;
  bool good = verdict(seed);
  for (int i = 0; i < 2; i++) /* also returns memory of the tables */
    b200_pool_context_gone(&pool, FAKE_CONTEXT(i));
  return good;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: corruption SEEDS OPERATIONS THREADS\n");
    return 2;
  }
  struct b200_pool_stats sum = {0};
  int threads = atoi(argv[3]);
  operations_each = (atol(argv[2]) + threads - 1) / threads;
  for (uint64_t seed = 0; seed < (uint64_t)atol(argv[1]); seed++)
    if (!try(seed, threads, &sum))
      return 1;
  printf("hits %llu (%llu after waiting), misses %llu, retries %llu, given back %llu, out of memory %llu\n",
         (unsigned long long)sum.hits, (unsigned long long)sum.waits, (unsigned long long)sum.misses,
         (unsigned long long)sum.retries, (unsigned long long)sum.released, (unsigned long long)sum.failed);
  return 0;
}
