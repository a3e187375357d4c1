/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of whole device allocations under cudaMalloc and cudaFree. It knows no vendor: the driver is reached through
 * struct b200_pool_ops, and what the application does with the device is told to it.
 *
 * Block: one allocation of the driver, of exactly the bytes that were first asked for. One allocation of the application is
 * always one block, from its base; a block is never cut and never merged, so that IPC handles, registrations and
 * cuMemGetAddressRange stay true. A block is live (the application has it) or idle (freed, kept here).
 *
 * Quarantine. A free is lazy: work on the block may still be queued in any stream. There is one clock; a free stamps its
 * block with it, and a full synchronisation of a context moves it on as it begins:
 *
 *   free         block.stamp = clock
 *   begin        token = ++clock
 *   end, good    context.safe = max(context.safe, token)
 *   may be handed out, may be given back to the driver:  block.stamp < context.safe
 *
 * So a synchronisation counts for what was freed before it began, and for nothing else. A fence (an event that stands for
 * all work of the context) is a synchronisation that begins when it is recorded and ends when it is seen complete. Where
 * work of one context may touch the memory of another, both must have synchronised: b200_pool_peer().
 *
 * Waiting. The driver's free waits for the work before it. A free that is to wait does so too, for its context. One that is
 * not records a fence, and who needs the block waits for that: never for work that was submitted after the free, which may
 * itself be waiting for the thread that allocates. Only where the caller has no fences does an allocation wait for all work,
 * and where it has to give idle blocks back to the driver, whose free waits for all work. Work of another context is asked
 * about, but waited for only when memory has run out.
 *
 * Fit: the smallest idle block of the context of at least the bytes asked for and in as many pages, so that the device holds
 * no more than without the pool; of equal ones the one that was freed first. Below B200_POOL_MIN_BYTES nothing is kept: the
 * driver packs small allocations into one page.
 *
 * Never cached, given back to the driver as the application frees them: pinned blocks (b200_pool_pin()), blocks that are
 * registered (b200_pool_register()), blocks that were allocated while a capture was under way, and blocks that are freed
 * while one is. The driver's answer is passed on.
 *
 * Status: every int is the vendor's; 0 is success. Only two are ever invented: `out_of_memory` for the headroom, and
 * `invalid_value` for the free of an idle block (which the driver, that still has it, would grant).
 *
 * Headroom. With `reserve_bytes`, an allocation of an owner outside `reserve_owners` is refused when the device would be
 * left with less than the reserve, idle blocks counted as free; they are given back as far as that takes. A refusal always
 * rests on a fresh answer of the driver. Two threads at the same instant may each be let in. What passes through (small, or
 * in a capture) is not limited.
 *
 * Out of memory. When the driver has none: the library's own idle memory goes first, then as many idle blocks as were asked
 * for, the first freed first, and the driver is asked again; if that fails, all idle blocks of all contexts, and once more.
 * What cannot be waited for, since that fails, is given back unwaited for: the driver's free waits, as it would have done. A
 * block that it refuses stays idle, and is tried again; its context serves nothing any more.
 *
 * Modes. OFF: every call goes to the driver. OBSERVE: likewise, counted. POOL: all of the above. A mode other than POOL
 * keeps and refuses nothing, and makes no driver call of its own.
 *
 * Thread-safety: every function from any thread, but b200_pool_init() and b200_pool_forget(). One mutex, for table work
 * only: never held over an operation, so operations may take any lock; they must not call the pool. Blocking:
 * b200_pool_malloc(), b200_pool_free() and b200_pool_trim() may wait for work, never while a capture is under way.
 * Memory: tables grow by mmap; a block that finds no room is not tracked and thus passes through. State is one struct,
 * zeroed and given by the caller.
 */
#ifndef B200_MEMORY_POOL_H
#define B200_MEMORY_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/pool_index.h"
#include "policy/call.h"

#define B200_POOL_MIN_BYTES ((uint64_t)2 << 20) /* also the page by which the driver takes larger allocations */
#define B200_POOL_CONTEXTS 32                   /* allocations of further contexts pass through */
#define B200_POOL_FENCES 8                      /* of a context, outstanding; then the newest stands for more */

enum b200_pool_mode { B200_POOL_OFF, B200_POOL_OBSERVE, B200_POOL_POOL };

/*
 * What the pool asks of its caller. Called on the thread of the call that needs them, without a lock. Each goes to the real
 * driver, not to the runtime: an error of the runtime would stay behind in cudaGetLastError(). Two are the application's own
 * call passed on, with the context that is current and the capture mode of the thread: `alloc`, and `free` when it is
 * `direct`. The others are the pool's: they make `context` current and run under relaxed capture mode
 * (cuThreadExchangeStreamCaptureMode).
 */
struct b200_pool_ops {
  void *user;
  int out_of_memory, invalid_value; /* as the vendor numbers them */

  int (*alloc)(void *user, uint64_t context, uint64_t bytes, uint64_t *address);
  int (*free)(void *user, uint64_t context, uint64_t address, bool direct);
  int (*info)(void *user, uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes);
  /* Waits for all work of the context, in every stream (cuCtxSynchronize). Anything but 0: nothing is known. */
  int (*synchronize)(void *user, uint64_t context);
  /* Whether a stream is being captured now, in any thread. Reads an atomic; may be called with the pool's lock held. An
     operation of the pool that finds a capture begun since answers as if it had failed (`free` excepted: relaxed mode). */
  bool (*capturing)(void *user);

  /* Optional, together. Records an event that is complete when all work is that the context has now; `again`: one of an
     earlier call, not asked about any more, or NULL. NULL: cannot be done (a capture), `again` is as it was. */
  void *(*fence)(void *user, uint64_t context, void *again);
  /* Whether it is complete; with `wait`, after waiting for that. Fences of a context that is gone go with it. */
  bool (*fence_done)(void *user, uint64_t context, void *fence, bool wait);

  /* Optional. Gives back idle device memory of the library's own (arenas); returns the bytes. Called first when memory has
     run out. */
  uint64_t (*trim_own)(void *user, uint64_t context);
  /* Optional, to find code that relies on what memory holds: fills a block before it is handed out, and returns when that is
     done. No work is pending on it. */
  void (*poison)(void *user, uint64_t context, uint64_t address, uint64_t bytes);
};

struct b200_pool_config {
  enum b200_pool_mode mode;
  uint64_t
      max_idle_bytes; /* of a context; above, blocks are given back, the first freed first. Exceeded in a capture only */
  /* Before the driver is asked for more, idle blocks are given back as far as live and idle ones of a context would exceed
     the most that was ever live: the job never takes more from the device than it would without the pool. It costs no more
     calls than the frees that were put off. */
  bool within_peak;
  uint64_t reserve_bytes;
  uint32_t reserve_owners; /* 1 << enum b200_owner: those that may use the reserve */
  /* A request that only a block in quarantine fits waits for it, instead of taking more memory: the application would have
     waited in cudaFree. */
  bool wait;
};

struct b200_pool_stats {
  uint64_t hits, misses; /* allocations that the pool may serve: from idle blocks, by the driver */
  uint64_t passed;       /* allocations passed through: small, in a capture, unknown or broken context, not in mode POOL */
  uint64_t waits;        /* hits that had to wait for a fence or a synchronisation */
  uint64_t driver_calls; /* allocations and frees that reached the driver */
  uint64_t driver_ns;    /* in these, and in the synchronisations and waits of the pool's own */
  uint64_t synchronisations, fences, infos; /* asked for by the pool */
  uint64_t observed;                        /* synchronisations that the application made */
  uint64_t retries;                         /* of allocations for which memory had run out */
  uint64_t rescues;                         /* … that then succeeded, for owners of the reserve */
  uint64_t refused;                         /* for the headroom */
  uint64_t failed;                          /* allocations that ended in an error of the driver */
  uint64_t double_frees;
  uint64_t released, released_bytes;                 /* idle blocks given back to the driver */
  uint64_t unreturned;                               /* … that it would not take; kept, and tried again */
  uint64_t dropped;                                  /* blocks forgotten with their context */
  uint64_t untracked;                                /* blocks that found no room in the tables */
  uint64_t idle_blocks, idle_bytes, idle_peak_bytes; /* now, in whole pages */
  uint64_t live_blocks, pinned;                      /* now: known to the pool; of these pinned */
};

struct b200_pool_fence {
  void *event;
  uint64_t token; /* 0: stands for nothing that is not known to be complete */
  uint32_t users; /* threads that ask about it, or record it */
};

struct b200_pool_context {
  uint64_t handle; /* 0: vacant */
  uint64_t generation;
  uint64_t safe;
  uint32_t peers; /* contexts, 1 << place, whose work may touch this one's memory */
  bool broken;
  uint32_t recording; /* threads that record a fence */
  struct b200_pool_fence fences[B200_POOL_FENCES];
  uint64_t idle_bytes, live_bytes, live_peak_bytes; /* in whole pages, as all of the pool's accounts */
  bool free_is_known;
  uint64_t known_free; /* of the driver, when last asked, carried on since */
  struct b200_pool_shelf idle;
};

struct b200_pool {
  struct b200_pool_ops ops;
  struct b200_pool_config config;
  _Atomic int mode;
  pthread_mutex_t lock;
  uint64_t clock;
  uint64_t generations;
  uint64_t releases_begun, releases_ended;
  uint64_t refused_bytes; /* of idle blocks that the driver would not take back, twice */
  struct b200_pool_index index;
  struct b200_pool_context contexts[B200_POOL_CONTEXTS];
  struct b200_pool_stats stats;
};

/* pre: `pool` is zeroed; every operation that is not optional is there. */
void b200_pool_init(struct b200_pool *pool, const struct b200_pool_ops *ops, const struct b200_pool_config *config);

struct b200_pool_grant {
  uint64_t address;
  uint64_t bytes; /* of the block; less than a page more than asked for. What the driver holds, and a ledger should charge */
  bool hit;
};

/* An allocation in the context that is current, or is to be made current by this call (0: unknown, passes through). Writes
   *out on success only. Size 0 passes through. A hook that was given no place for the address must not come here but
   pass on. */
int b200_pool_malloc(struct b200_pool *pool, uint64_t context, enum b200_owner owner, uint64_t bytes,
                     struct b200_pool_grant *out);

/*
 * A free, by the address alone: from any thread, whatever context is current (`context` is only handed to the operation when
 * the free passes through). Addresses that are not the base of a tracked block pass through: NULL, interior, managed,
 * stream-ordered, unknown. Free of an idle block: `invalid_value`. `waits`: returns when the work of the block's context is
 * done, as the driver's does; where that fails, the driver is asked to free and its answer passed on.
 */
int b200_pool_free(struct b200_pool *pool, uint64_t context, uint64_t address, bool waits);

enum b200_pool_state { B200_POOL_UNKNOWN, B200_POOL_LIVE, B200_POOL_IDLE };
/* Of the block that begins at `address`; may be out of date when it returns. */
enum b200_pool_state b200_pool_look(struct b200_pool *pool, uint64_t address);

/*
 * cudaMemGetInfo(): the driver's free memory and what the pool would give back for it, never above the total. Either place
 * may be NULL. Consistent with blocks that are being given back meanwhile: does not count them twice, and does not dip
 * unless they keep coming.
 */
int b200_pool_info(struct b200_pool *pool, uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes);

/* Around a full synchronisation that the application makes: begin before the driver is called, end once it has succeeded.
   Not for synchronisations of a stream or an event. A token from before a reset does no harm. 0: nothing to end. */
uint64_t b200_pool_sync_begin(struct b200_pool *pool, uint64_t context);
void b200_pool_sync_end(struct b200_pool *pool, uint64_t context, uint64_t token);

/* Work of `accessor` may touch memory of `context` from now on: peer access, or a copy between them. Call it before. */
void b200_pool_peer(struct b200_pool *pool, uint64_t context, uint64_t accessor);

/*
 * Blocks that overlap the range are never handed out again: exported by IPC, registered with NCCL or a network, retained
 * handle, SYNC_MEMOPS or P2P tokens set. Call it before the driver is asked, so that no block slips out between. Interior
 * addresses do. O(blocks).
 */
void b200_pool_pin(struct b200_pool *pool, uint64_t address, uint64_t bytes);

/* Live blocks that overlap the range are registered with a library (+1), which keeps their addresses until it has given them
   up (-1), as often. Idle ones are pinned. Before the library is asked, and after it has answered. O(blocks). */
void b200_pool_register(struct b200_pool *pool, uint64_t address, uint64_t bytes, int change);

/* The context is about to be destroyed or reset, or was lost: its blocks are forgotten, live and idle; nothing is freed.
   Call it before the driver is asked, since a context that comes to stand at the same handle is another one, and only where
   the call will destroy (the last release of a primary context). */
void b200_pool_context_gone(struct b200_pool *pool, uint64_t context);

/* An error was seen that stays with the context: nothing is served from the cache any more, the driver answers everything.
 */
void b200_pool_context_broken(struct b200_pool *pool, uint64_t context);

/* For allocations that do not come here (cuMemCreate, stream-ordered pools): whether the headroom lets the owner have
   `bytes`. May give back idle blocks. False: answer out of memory. */
bool b200_pool_admit(struct b200_pool *pool, uint64_t context, enum b200_owner owner, uint64_t bytes);

/* … and what the driver then granted (> 0) or took back (< 0) outside the pool, so that it need not be asked so often. */
void b200_pool_note(struct b200_pool *pool, uint64_t context, int64_t bytes);

/* … and when the driver had no memory for them: idle memory, the library's own first, is given back until `bytes` have been
   or none is left. Returns the bytes, those that the driver refuses included; 0: a retry is pointless. Nothing happens in a
   capture. */
uint64_t b200_pool_trim(struct b200_pool *pool, uint64_t context, uint64_t bytes);

/* A capture is about to begin, in which nothing can be given back: what is idle goes now, but for what is in quarantine. */
void b200_pool_empty(struct b200_pool *pool);

/* Bytes of the largest idle block of any context that is not pinned. O(blocks). */
uint64_t b200_pool_largest_idle(struct b200_pool *pool);

/* A consistent copy. */
void b200_pool_read(struct b200_pool *pool, struct b200_pool_stats *out);

/* The process is ending: mode OFF from here on, without a call to the driver. */
void b200_pool_stop(struct b200_pool *pool);

/* In a forked child, before any other thread: everything is forgotten, mode OFF; nothing is freed (it is the parent's). */
void b200_pool_forget(struct b200_pool *pool);

#endif
