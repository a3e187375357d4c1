/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of device memory (memory/pool.h) in this process: its operations over the real driver, and what the application
 * does with the device told to it. Only with B200OPT_MEMORY=pool; otherwise every function here passes on or does nothing,
 * and no call to the driver is made.
 *
 * All contexts of a process count as peers: a block is safe once each of them has been synchronised. One process has one GPU
 * in most jobs; where it has more, copies between them need not be watched.
 *
 * While a stream is being captured or an NCCL group is open, in any thread, nothing is kept, handed out or waited for:
 * within a group a kernel of one device may wait for one that its own thread is still to launch.
 *
 * Errors: the driver's own status, but those that memory/pool.h invents. An error that stays with the context ends the cache
 * of all contexts. Thread-safety: every function from any thread, but start and forget. Locks: the pool's, never held over a
 * call of the driver; one for the list of contexts.
 */
#ifndef B200_INTERPOSE_MEMORY_H
#define B200_INTERPOSE_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/pool.h"
#include "policy/config.h"

/* pre: `config` outlives everything. Says what it cannot do. */
void b200_memory_start(const struct b200_config *config);
/* An allocation that the driver answered without a pool. The library starts behind the call that shows CUDA to work, which
   may be one: the pool counts those before it as passed through. */
void b200_memory_passed_early(bool granted);
/* The process is ending: everything passes through, and the driver is not called any more. */
void b200_memory_stop(void);
/* In a forked child. */
void b200_memory_forget(void);

extern atomic_bool b200_memory_is_pooling __attribute__((visibility("hidden")));
static inline bool b200_memory_pools(void) {
  return atomic_load_explicit(&b200_memory_is_pooling, memory_order_relaxed);
}

/* cuMemAlloc: *held: what the driver holds for it, and the ledger shall charge. Both are written on success only; and
 *by_headroom, true, when it was the headroom that refused. pre: b200_memory_pools(). */
int b200_memory_alloc(enum b200_owner owner, uint64_t bytes, uint64_t *address, uint64_t *held, bool *by_headroom);
/* cuMemFree of any address. Waits for the context's work, as the driver's does, unless b200_thread::frees_lazily. pre:
   b200_memory_pools(). */
int b200_memory_free(uint64_t address);

/* cuMemFreeAsync of any address, by the driver's function (of either kind of default stream): a block of ours is given to
   the driver, whose answer is passed on, and is not ours any more when it takes it. */
typedef int (*b200_memory_free_async_function)(uint64_t address, void *stream);
int b200_memory_free_async(uint64_t address, void *stream, b200_memory_free_async_function function);

/* cuMemGetInfo with what the pool would give back. Either place may be NULL. pre: b200_memory_pools(). */
int b200_memory_info(size_t *free_bytes, size_t *total_bytes);

/*
 * Around allocations that do not come from the pool, as in
 *     if (!(attempt.admitted = b200_memory_admit(…))) → out of memory
 *     do status = the driver's; while (b200_memory_rescue(&attempt, status));
 * admit: whether the headroom lets the owner have `bytes`; stream_ordered: memory may come from a pool of the driver's,
 * which is asked for what it has idle before anything is refused. rescue: true when the driver had no memory, some was given
 * back, and it is worth to ask again, once.
 */
struct b200_memory_attempt {
  enum b200_owner owner;
  uint64_t bytes;
  void *pool; /* the driver's pool that was named; NULL: that of the device */
  bool admitted, tried;
};
bool b200_memory_admit(struct b200_memory_attempt *attempt, bool stream_ordered);
bool b200_memory_rescue(struct b200_memory_attempt *attempt, int status);

/* Around a full synchronisation of the application's. `context`: 0 for the current one. */
struct b200_memory_sync {
  uint64_t context, token, inner;
};
void b200_memory_sync_begin(struct b200_memory_sync *sync, uint64_t context);
void b200_memory_sync_end(const struct b200_memory_sync *sync, int status);

/* Blocks that overlap the range are not handed out again. Before the call that makes it so. */
void b200_memory_pin(uint64_t address, uint64_t bytes);
/* Around a registration with a communicator of NCCL's: begins before NCCL is asked; ends with the handle that it gave, or
   NULL when it has none. gone: NCCL has given the handle up. */
void b200_memory_register_begin(uint64_t address, uint64_t bytes);
void b200_memory_register_end(uint64_t address, uint64_t bytes, const void *handle);
void b200_memory_register_gone(const void *handle);
/* Work of `accessor` (0: the current context) may touch memory of `context`. Before the call. */
void b200_memory_peer(uint64_t context, uint64_t accessor);
/* The context is about to be destroyed. */
void b200_memory_context_gone(uint64_t context);
/* Primary contexts, which are counted: retained (after), about to be released or reset. */
void b200_memory_primary_retained(int device, uint64_t context);
void b200_memory_primary_release(int device);
void b200_memory_primary_reset(int device);
/* Before a capture begins. comes: before it counts as begun: what the pool keeps is given back, as the application may have
   freed it for this. begins: once it does: returns when the pool does nothing that would spoil it. */
void b200_memory_capture_comes(void);
void b200_memory_capture_begins(void);
/* An NCCL group of the application's: opened +1, ended -1. */
void b200_memory_group(int change);

/* A status that a call of the runtime or the driver gave: one that stays with the context ends the cache. */
void b200_memory_failed(int status);
static inline void b200_memory_status(int status) {
  if (__builtin_expect(status != 0, 0) && b200_memory_pools())
    b200_memory_failed(status);
}

/* Counts, the headroom, and the largest idle block; `lock`: to see whether it is free. */
struct b200_memory_use {
  struct b200_pool_stats stats;
  uint64_t reserve_bytes, largest_idle_bytes;
};
void b200_memory_read(struct b200_memory_use *out);
pthread_mutex_t *b200_memory_lock(void);

#endif
