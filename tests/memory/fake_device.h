/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that the test owns: contexts, their streams with queued work, memory of which each block holds one number. Work
 * runs when fake_run() or a wait lets it, in the order of its stream, the streams in an order drawn from the seed. Gives the
 * operations of a pool. Thread-safe; one mutex.
 *
 * What must never happen is counted: `overlaps` (a block was handed out while work on it is pending), `early_frees` (the
 * pool gave back a block with pending work), `mismatches` (a block did not hold what was written), `faults` (work touched
 * memory that is not allocated), `illegal` (waiting, or an event, while a capture is under way; a fence recorded again while
 * a thread asks about it).
 */
#ifndef B200_TESTS_FAKE_DEVICE_H
#define B200_TESTS_FAKE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/pool.h"

#define FAKE_CONTEXTS 4
#define FAKE_STREAMS 8
#define FAKE_QUEUE 64 /* work of one stream; a launch beyond it runs what is first */
#define FAKE_FENCES 64
#define FAKE_BLOCKS 16384
#define FAKE_OUT_OF_MEMORY 2
#define FAKE_INVALID 1
#define FAKE_CONTEXT(i) ((uint64_t)(i) + 1)

struct fake_work {
  uint32_t block;
  bool writes; /* else: expects, or with value 0 only reads */
  uint64_t value;
};

struct fake_stream {
  struct fake_work queue[FAKE_QUEUE];
  uint64_t begun, done; /* launched and run, since ever */
};

struct fake_block {
  bool allocated;
  uint32_t context, pending;
  uint64_t bytes, content;
};

struct fake_fence {
  bool made;
  unsigned asking; /* threads that are asking about it */
  uint64_t until[FAKE_STREAMS];
};

struct fake_device {
  pthread_mutex_t lock;
  uint64_t random;
  uint64_t capacity, used;
  struct fake_stream streams[FAKE_CONTEXTS][FAKE_STREAMS];
  struct fake_fence fence[FAKE_FENCES];
  struct fake_block blocks[FAKE_BLOCKS];
  uint32_t vacant[FAKE_BLOCKS], vacant_count;
  atomic_bool capturing;
  bool has_fences;
  int fail_free, fail_synchronize, fail_alloc; /* status to answer with; 0: do it */
  uint64_t own_idle;                           /* what trim_own() can give back */
  uint64_t allocs, frees, direct_frees, synchronisations, fences, fence_waits, infos, trims, poisons;
  uint64_t overlaps, early_frees, mismatches, faults, illegal;
  void (*on_synchronize)(void *), *on_synchronize_user; /* called in the midst of it, without the lock */
};

void fake_make(struct fake_device *device, uint64_t seed, uint64_t capacity);
void fake_ops(struct fake_device *device, struct b200_pool_ops *out);
/* Queues work on the block at an address: see struct fake_work. */
void fake_launch(struct fake_device *device, int context, int stream, uint64_t address, bool writes, uint64_t value);
/* Runs up to `count` pieces of work. */
void fake_run(struct fake_device *device, int count);
void fake_run_all(struct fake_device *device, int context);
/* The application has been handed the block: counts an overlap if work on it is pending. */
void fake_handed_out(struct fake_device *device, uint64_t address);
uint64_t fake_random(uint64_t *state);
/* Sum of what must never have happened. */
uint64_t fake_wrongs(const struct fake_device *device);

#endif
