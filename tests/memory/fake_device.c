/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"

#include <sched.h>
#include <string.h>

#define BASE 0x100000000000u
#define SHIFT 30 /* room of one block in the address space: interior addresses are known by division */

uint64_t fake_random(uint64_t *state) { /* SplitMix64 */
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void fake_make(struct fake_device *device, uint64_t seed, uint64_t capacity) {
  memset(device, 0, sizeof *device);
  pthread_mutex_init(&device->lock, NULL);
  device->random = seed;
  device->capacity = capacity;
  device->vacant_count = FAKE_BLOCKS;
  for (uint32_t i = 0; i < FAKE_BLOCKS; i++)
    device->vacant[i] = FAKE_BLOCKS - 1 - i;
}

static uint32_t block_of(uint64_t address) {
  return (uint32_t)((address - BASE) >> SHIFT);
}

static uint64_t address_of(uint32_t block) {
  return BASE + ((uint64_t)block << SHIFT);
}

static void run_one(struct fake_device *device, struct fake_stream *stream) {
  const struct fake_work *work = &stream->queue[stream->done++ % FAKE_QUEUE];
  struct fake_block *block = &device->blocks[work->block];
  if (!block->allocated)
    device->faults++;
  else if (work->writes)
    block->content = work->value;
  else
    device->mismatches += work->value != 0 && block->content != work->value;
  block->pending--;
}

static void run_until(struct fake_device *device, int context, const uint64_t until[FAKE_STREAMS]) {
  for (int i = 0; i < FAKE_STREAMS; i++)
    while (device->streams[context][i].done < until[i])
      run_one(device, &device->streams[context][i]);
}

static void run_context(struct fake_device *device, int context) {
  uint64_t until[FAKE_STREAMS];
  for (int i = 0; i < FAKE_STREAMS; i++)
    until[i] = device->streams[context][i].begun;
  run_until(device, context, until);
}

void fake_run(struct fake_device *device, int count) {
  pthread_mutex_lock(&device->lock);
  for (int i = 0; i < count; i++) {
    uint64_t draw = fake_random(&device->random);
    struct fake_stream *stream = &device->streams[draw % FAKE_CONTEXTS][draw / FAKE_CONTEXTS % FAKE_STREAMS];
    if (stream->done < stream->begun)
      run_one(device, stream);
  }
  pthread_mutex_unlock(&device->lock);
}

void fake_run_all(struct fake_device *device, int context) {
  pthread_mutex_lock(&device->lock);
  run_context(device, context);
  pthread_mutex_unlock(&device->lock);
}

void fake_launch(struct fake_device *device, int context, int stream, uint64_t address, bool writes, uint64_t value) {
  pthread_mutex_lock(&device->lock);
  struct fake_stream *queue = &device->streams[context][stream];
  if (queue->begun - queue->done == FAKE_QUEUE)
    run_one(device, queue);
  uint32_t block = block_of(address);
  queue->queue[queue->begun++ % FAKE_QUEUE] = (struct fake_work){.block = block, .writes = writes, .value = value};
  device->blocks[block].pending++;
  pthread_mutex_unlock(&device->lock);
}

void fake_handed_out(struct fake_device *device, uint64_t address) {
  pthread_mutex_lock(&device->lock);
  device->overlaps += device->blocks[block_of(address)].pending != 0;
  pthread_mutex_unlock(&device->lock);
}

uint64_t fake_wrongs(const struct fake_device *device) {
  return device->overlaps + device->early_frees + device->mismatches + device->faults + device->illegal;
}

static int fake_alloc(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  struct fake_device *device = user;
  int status = 0;
  pthread_mutex_lock(&device->lock);
  device->allocs++;
  if (bytes == 0)
    status = FAKE_INVALID;
  else if (device->fail_alloc)
    status = device->fail_alloc;
  else if (bytes > device->capacity - device->used || device->vacant_count == 0)
    status = FAKE_OUT_OF_MEMORY;
  if (status == 0) {
    uint32_t block = device->vacant[--device->vacant_count];
    uint64_t draw = fake_random(&device->random); /* any vacant address may come again */
    uint32_t other = (uint32_t)(draw % (device->vacant_count + 1));
    uint32_t chosen = other < device->vacant_count ? device->vacant[other] : block;
    if (other < device->vacant_count)
      device->vacant[other] = block;
    device->blocks[chosen].allocated = true;
    device->blocks[chosen].context = (uint32_t)context;
    device->blocks[chosen].bytes = bytes;
    device->used += bytes;
    *address = address_of(chosen);
  }
  pthread_mutex_unlock(&device->lock);
  return status;
}

/* The real cudaFree waits for the context: so does this one, and tells when the pool relies on it. */
static int fake_free(void *user, uint64_t context, uint64_t address, bool direct) {
  struct fake_device *device = user;
  (void)context;
  if (address == 0)
    return 0;
  pthread_mutex_lock(&device->lock);
  device->frees++;
  device->direct_frees += direct;
  uint32_t number = block_of(address);
  struct fake_block *block = address < BASE || number >= FAKE_BLOCKS ? NULL : &device->blocks[number];
  int status = device->fail_free;
  if (!block || !block->allocated || address != address_of(number))
    status = FAKE_INVALID;
  if (status == 0) {
    device->early_frees += block->pending != 0 && !direct;
    device->illegal += !direct && atomic_load(&device->capturing);
    run_context(device, (int)block->context - 1);
    block->allocated = false;
    device->used -= block->bytes;
    device->vacant[device->vacant_count++] = number;
  }
  pthread_mutex_unlock(&device->lock);
  return status;
}

static int fake_info(void *user, uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes) {
  struct fake_device *device = user;
  (void)context;
  pthread_mutex_lock(&device->lock);
  device->infos++;
  *free_bytes = device->capacity - device->used;
  *total_bytes = device->capacity;
  pthread_mutex_unlock(&device->lock);
  return 0;
}

static int fake_synchronize(void *user, uint64_t context) {
  struct fake_device *device = user;
  if (device->on_synchronize)
    device->on_synchronize(device->on_synchronize_user);
  pthread_mutex_lock(&device->lock);
  device->synchronisations++;
  device->illegal += atomic_load(&device->capturing);
  int status = device->fail_synchronize;
  if (status == 0)
    run_context(device, (int)context - 1);
  pthread_mutex_unlock(&device->lock);
  return status;
}

static bool fake_capturing(void *user) {
  struct fake_device *device = user;
  return atomic_load(&device->capturing);
}

static void *fake_record_fence(void *user, uint64_t context, void *again) {
  struct fake_device *device = user;
  struct fake_fence *fence = again;
  pthread_mutex_lock(&device->lock);
  device->illegal += atomic_load(&device->capturing) || (fence && fence->asking);
  for (int i = 0; i < FAKE_FENCES && !fence; i++)
    if (!device->fence[i].made)
      fence = &device->fence[i];
  for (int i = 0; i < FAKE_STREAMS && fence; i++)
    fence->until[i] = device->streams[context - 1][i].begun;
  if (fence) {
    fence->made = true;
    device->fences++;
  }
  pthread_mutex_unlock(&device->lock);
  return fence;
}

static bool fake_fence_done(void *user, uint64_t context, void *asked, bool wait) {
  struct fake_device *device = user;
  struct fake_fence *fence = asked;
  bool done = true;
  pthread_mutex_lock(&device->lock);
  device->fence_waits += wait;
  device->illegal += atomic_load(&device->capturing);
  fence->asking++;
  if (wait) {
    pthread_mutex_unlock(&device->lock);
    sched_yield();
    pthread_mutex_lock(&device->lock);
    run_until(device, (int)context - 1, fence->until);
  }
  for (int i = 0; i < FAKE_STREAMS; i++)
    done = done && device->streams[context - 1][i].done >= fence->until[i];
  fence->asking--;
  pthread_mutex_unlock(&device->lock);
  return done;
}

static uint64_t fake_trim_own(void *user, uint64_t context) {
  struct fake_device *device = user;
  (void)context;
  pthread_mutex_lock(&device->lock);
  uint64_t bytes = device->own_idle;
  device->trims++;
  device->own_idle = 0;
  device->used -= bytes;
  pthread_mutex_unlock(&device->lock);
  return bytes;
}

static void fake_poison(void *user, uint64_t context, uint64_t address, uint64_t bytes) {
  struct fake_device *device = user;
  (void)context;
  pthread_mutex_lock(&device->lock);
  struct fake_block *block = &device->blocks[block_of(address)];
  device->poisons++;
  device->faults += !block->allocated || block->bytes != bytes;
  device->overlaps += block->pending != 0;
  block->content = 0xCBCBCBCBCBCBCBCBu;
  pthread_mutex_unlock(&device->lock);
}

void fake_ops(struct fake_device *device, struct b200_pool_ops *out) {
  *out = (struct b200_pool_ops){.user = device,
                                .out_of_memory = FAKE_OUT_OF_MEMORY,
                                .invalid_value = FAKE_INVALID,
                                .alloc = fake_alloc,
                                .free = fake_free,
                                .info = fake_info,
                                .synchronize = fake_synchronize,
                                .capturing = fake_capturing,
                                .fence = device->has_fences ? fake_record_fence : NULL,
                                .fence_done = device->has_fences ? fake_fence_done : NULL,
                                .trim_own = fake_trim_own,
                                .poison = fake_poison};
}
