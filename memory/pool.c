/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pool.h"

#include <sched.h>
#include <string.h>
#include <time.h>

enum { RELEASE_BATCH = 64, INFO_TRIES = 8 };

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What the driver holds for an allocation, in whole pages. */
static uint64_t held(uint64_t bytes) {
  uint64_t mask = B200_POOL_MIN_BYTES - 1;
  return bytes > UINT64_MAX - mask ? bytes : (bytes + mask) & ~mask;
}

static uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

static void lock(struct b200_pool *pool) {
  pthread_mutex_lock(&pool->lock);
}

static void unlock(struct b200_pool *pool) {
  pthread_mutex_unlock(&pool->lock);
}

static bool is_pooling(const struct b200_pool *pool) {
  return atomic_load_explicit(&pool->mode, memory_order_relaxed) == B200_POOL_POOL;
}

static bool is_off(const struct b200_pool *pool) {
  return atomic_load_explicit(&pool->mode, memory_order_relaxed) == B200_POOL_OFF;
}

static bool is_capturing(const struct b200_pool *pool) {
  return pool->ops.capturing(pool->ops.user);
}

void b200_pool_init(struct b200_pool *pool, const struct b200_pool_ops *ops, const struct b200_pool_config *config) {
  pool->ops = *ops;
  pool->config = *config;
  pool->clock = 1;
  pthread_mutex_init(&pool->lock, NULL);
  atomic_store(&pool->mode, config->mode);
}

static struct b200_pool_context *find_context(struct b200_pool *pool, uint64_t handle) {
  for (int i = 0; handle != 0 && i < B200_POOL_CONTEXTS; i++)
    if (pool->contexts[i].handle == handle)
      return &pool->contexts[i];
  return NULL;
}

static struct b200_pool_context *need_context(struct b200_pool *pool, uint64_t handle) {
  struct b200_pool_context *context = find_context(pool, handle);
  for (int i = 0; handle != 0 && !context && i < B200_POOL_CONTEXTS; i++)
    if (pool->contexts[i].handle == 0) {
      context = &pool->contexts[i];
      *context = (struct b200_pool_context){.handle = handle, .generation = ++pool->generations};
    }
  return context;
}

/* A context as seen before the lock was given up. */
static bool is_same(const struct b200_pool_context *context, uint64_t generation) {
  return context->handle != 0 && context->generation == generation;
}

static struct b200_pool_block *block_at(struct b200_pool *pool, uint32_t number) {
  return &pool->index.blocks[number];
}

/* Blocks of the context with an older stamp have no work pending. */
static uint64_t safe_of(const struct b200_pool *pool, const struct b200_pool_context *context) {
#ifdef B200_POOL_TEST_NO_EPOCH
  (void)pool, (void)context;
  return UINT64_MAX;
#else
  uint64_t safe = context->safe;
  for (uint32_t peers = context->peers; peers != 0; peers &= peers - 1) {
    uint64_t other = pool->contexts[__builtin_ctz(peers)].safe;
    safe = other < safe ? other : safe;
  }
  return safe;
#endif
}

static void make_safe(struct b200_pool_context *context, uint64_t token) {
  if (token > context->safe)
    context->safe = token;
}

static void add_live(struct b200_pool_context *context, uint64_t bytes) {
  context->live_bytes += held(bytes);
  if (context->live_bytes > context->live_peak_bytes)
    context->live_peak_bytes = context->live_bytes;
}

static void shelve(struct b200_pool *pool, struct b200_pool_context *context, uint64_t bytes) {
  struct b200_pool_stats *stats = &pool->stats;
  context->live_bytes -= held(bytes);
  context->idle_bytes += held(bytes);
  stats->idle_bytes += held(bytes);
  stats->idle_blocks++;
  stats->live_blocks--;
  if (stats->idle_bytes > stats->idle_peak_bytes)
    stats->idle_peak_bytes = stats->idle_bytes;
}

/* Out of the shelf, and of the accounts of what is idle; the block is nowhere then. */
static void unshelve(struct b200_pool *pool, struct b200_pool_context *context, uint32_t number) {
  uint64_t bytes = held(block_at(pool, number)->bytes);
  b200_pool_shelf_take(&pool->index, &context->idle, number);
  context->idle_bytes -= bytes;
  pool->stats.idle_bytes -= bytes;
  pool->stats.idle_blocks--;
}

static void forget_block(struct b200_pool *pool, uint32_t number) {
  struct b200_pool_block *block = block_at(pool, number);
  struct b200_pool_context *context = &pool->contexts[block->context];
  if (block->idle) {
    unshelve(pool, context, number);
  } else {
    context->live_bytes -= held(block->bytes);
    pool->stats.live_blocks--;
  }
  pool->stats.pinned -= block->pinned;
  b200_pool_index_remove(&pool->index, number);
}

/* Functions named _locked are called with the lock held, give it up around operations, and return with it held. */

/* The oldest fence that stands for the work before a free of this stamp. */
static struct b200_pool_fence *fence_for(struct b200_pool_context *context, uint64_t stamp) {
  struct b200_pool_fence *found = NULL;
  for (int i = 0; i < B200_POOL_FENCES; i++) {
    struct b200_pool_fence *fence = &context->fences[i];
    if (fence->token > stamp && (!found || fence->token < found->token))
      found = fence;
  }
  return found;
}

static void ask_fence_locked(struct b200_pool *pool, struct b200_pool_context *context, struct b200_pool_fence *fence,
                             bool wait) {
  void *event = fence->event;
  uint64_t token = fence->token, handle = context->handle, generation = context->generation, begin = now_ns();
  fence->users++;
  unlock(pool);
  bool done = pool->ops.fence_done(pool->ops.user, handle, event, wait);
  lock(pool);
  pool->stats.driver_ns += wait ? now_ns() - begin : 0;
  if (!is_same(context, generation))
    return;
  fence->users--;
  if (!done)
    return;
  make_safe(context, token);
  for (int i = 0; i < B200_POOL_FENCES; i++)
    if (context->fences[i].token <= token)
      context->fences[i].token = 0;
}

/* Into one that is not outstanding; where all are, the newest, which then stands for more. */
static void record_fence_locked(struct b200_pool *pool, struct b200_pool_context *context) {
  struct b200_pool_fence *fence = NULL;
  for (int i = 0; i < B200_POOL_FENCES && !(fence && fence->token == 0); i++) {
    struct b200_pool_fence *other = &context->fences[i];
    if (other->users == 0 && (!fence || other->token == 0 || other->token > fence->token))
      fence = other;
  }
  if (!fence)
    return;
  uint64_t handle = context->handle, generation = context->generation, token = ++pool->clock, older = fence->token;
  void *again = fence->event;
  fence->token = 0;
  fence->users = 1;
  context->recording++;
  unlock(pool);
  void *event = pool->ops.fence(pool->ops.user, handle, again);
  lock(pool);
  pool->stats.fences += event != NULL;
  if (!is_same(context, generation))
    return;
  context->recording--;
  fence->users = 0;
  fence->token = event ? token : older;
  if (event)
    fence->event = event;
}

static void synchronize_locked(struct b200_pool *pool, struct b200_pool_context *context) {
  uint64_t handle = context->handle, generation = context->generation, token = ++pool->clock, begin = now_ns();
  unlock(pool);
  bool done = is_pooling(pool) && !is_capturing(pool) && pool->ops.synchronize(pool->ops.user, handle) == 0;
  lock(pool);
  pool->stats.synchronisations += done;
  pool->stats.driver_ns += now_ns() - begin;
  if (done && is_same(context, generation))
    make_safe(context, token);
}

/* Tries to bring `safe` of one context above the stamp. */
static void settle_one_locked(struct b200_pool *pool, struct b200_pool_context *context, uint64_t stamp, bool wait) {
  uint64_t generation = context->generation;
  while (wait && context->recording > 0 && is_same(context, generation)) { /* the fence may be just this one */
    unlock(pool);
    sched_yield();
    lock(pool);
  }
  if (!is_same(context, generation) || context->safe > stamp)
    return;
  struct b200_pool_fence *fence = fence_for(context, stamp);
  if (fence)
    ask_fence_locked(pool, context, fence, wait);
  if (wait && is_same(context, generation) && context->safe <= stamp)
    synchronize_locked(pool, context);
}

/* For whose work it is worth to wait. */
enum patience { ASK, WAIT_OWN, WAIT_ALL };

/* True: what the context holds of this stamp has no work pending now. */
static bool settle_locked(struct b200_pool *pool, struct b200_pool_context *context, uint64_t stamp,
                          enum patience patience) {
  uint64_t generation = context->generation;
  settle_one_locked(pool, context, stamp, patience >= WAIT_OWN);
  for (int i = 0; i < B200_POOL_CONTEXTS && is_same(context, generation); i++)
    if (context->peers >> i & 1 && pool->contexts[i].handle != 0)
      settle_one_locked(pool, &pool->contexts[i], stamp, patience == WAIT_ALL);
  return is_same(context, generation) && safe_of(pool, context) > stamp;
}

uint64_t b200_pool_sync_begin(struct b200_pool *pool, uint64_t handle) {
  if (!is_pooling(pool))
    return 0;
  lock(pool);
  uint64_t token = find_context(pool, handle) ? ++pool->clock : 0;
  unlock(pool);
  return token;
}

void b200_pool_sync_end(struct b200_pool *pool, uint64_t handle, uint64_t token) {
  if (token == 0)
    return;
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  if (context) {
    make_safe(context, token);
    pool->stats.observed++;
  }
  unlock(pool);
}

struct batch {
  struct b200_pool_grant blocks[RELEASE_BATCH];
  uint64_t bytes;
  int count;
};

/* Takes out what is older than `safe`, the oldest first, up to `want` bytes. */
static void gather(struct b200_pool *pool, struct b200_pool_context *context, uint64_t want, uint64_t safe,
                   struct batch *out) {
  out->bytes = 0;
  out->count = 0;
  while (out->count < RELEASE_BATCH && out->bytes < want && context->idle.oldest != 0) {
    const struct b200_pool_block *block = block_at(pool, context->idle.oldest);
    if (block->stamp >= safe)
      break;
    out->blocks[out->count++] = (struct b200_pool_grant){.address = block->address, .bytes = block->bytes};
    out->bytes += held(block->bytes);
    forget_block(pool, context->idle.oldest);
  }
}

static void track(struct b200_pool *pool, uint64_t handle, uint64_t generation, const struct b200_pool_grant *grant) {
  struct b200_pool_context *context = find_context(pool, handle);
  if (!context || context->generation != generation)
    return; /* reset meanwhile */
  uint32_t number = b200_pool_index_add(&pool->index, grant->address, grant->bytes);
  if (number == 0) {
    pool->stats.untracked++;
    return;
  }
  block_at(pool, number)->context = (uint8_t)(context - pool->contexts);
  pool->stats.live_blocks++;
  add_live(context, grant->bytes);
}

/* A block that the driver would not take: still its, and idle. Another may have come to lie there all the same. */
static void put_back(struct b200_pool *pool, struct b200_pool_context *context, const struct b200_pool_grant *grant) {
  if (b200_pool_index_find(&pool->index, grant->address) != 0)
    return;
  track(pool, context->handle, context->generation, grant);
  uint32_t number = b200_pool_index_find(&pool->index, grant->address);
  if (number == 0)
    return;
  block_at(pool, number)->stamp = pool->clock;
  if (b200_pool_shelf_put(&pool->index, &context->idle, number))
    shelve(pool, context, grant->bytes);
  else
    forget_block(pool, number);
}

/* Returns the bytes that the driver took. When it refuses one, something is wrong that the pool does not understand. */
static uint64_t release_batch_locked(struct b200_pool *pool, struct b200_pool_context *context, const struct batch *batch) {
  uint64_t handle = context->handle, generation = context->generation, bytes = 0, count = 0, begin = now_ns();
  bool taken[RELEASE_BATCH];
  pool->releases_begun++;
  unlock(pool);
  for (int i = 0; i < batch->count; i++) {
    taken[i] = pool->ops.free(pool->ops.user, handle, batch->blocks[i].address, false) == 0;
    bytes += taken[i] ? held(batch->blocks[i].bytes) : 0;
    count += taken[i];
  }
  lock(pool);
  pool->releases_ended++;
  pool->stats.driver_calls += (uint64_t)batch->count;
  pool->stats.driver_ns += now_ns() - begin;
  pool->stats.released += count;
  pool->stats.released_bytes += bytes;
  pool->stats.unreturned += (uint64_t)batch->count - count;
  if (!is_same(context, generation))
    return bytes;
  context->known_free += bytes;
  for (int i = 0; i < batch->count; i++)
    if (!taken[i])
      put_back(pool, context, &batch->blocks[i]);
  context->broken |= bytes != batch->bytes;
  return bytes;
}

/*
 * Gives back idle blocks, the oldest first, until `want` bytes have been; waits for those in quarantine. Where memory has
 * run out and what to wait for cannot be found out, the driver's free waits. Returns the bytes; those that the driver has
 * refused twice count, so that it is asked for memory and says itself what is wrong.
 */
static uint64_t release_locked(struct b200_pool *pool, struct b200_pool_context *context, uint64_t want,
                               enum patience patience) {
  uint64_t generation = context->generation, done = 0;
  bool refused = false, settles = true;
  struct batch batch;
  while (done < want && is_same(context, generation) && context->idle.oldest != 0 && is_pooling(pool) &&
         !is_capturing(pool)) {
    gather(pool, context, want - done, settles ? safe_of(pool, context) : UINT64_MAX, &batch);
    if (batch.count > 0) {
      uint64_t bytes = release_batch_locked(pool, context, &batch);
      if (refused && bytes != batch.bytes) {
        pool->refused_bytes += batch.bytes - bytes;
        return done + batch.bytes;
      }
      refused |= bytes != batch.bytes;
      done += bytes;
      continue;
    }
    uint64_t stamp = block_at(pool, context->idle.oldest)->stamp;
    if (settle_locked(pool, context, stamp, ASK) ||
        (is_same(context, generation) && settle_locked(pool, context, stamp, patience)))
      continue;
    if (patience != WAIT_ALL)
      break;
    settles = false;
  }
  return done;
}

static uint64_t release(struct b200_pool *pool, uint64_t handle, uint64_t want, enum patience patience) {
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  uint64_t done = context ? release_locked(pool, context, want, patience) : 0;
  unlock(pool);
  return done;
}

/* Idle blocks of every context: another one may be of the same device. */
static void release_all(struct b200_pool *pool, enum patience patience) {
  lock(pool);
  for (int i = 0; i < B200_POOL_CONTEXTS; i++)
    if (pool->contexts[i].handle != 0)
      release_locked(pool, &pool->contexts[i], UINT64_MAX, patience);
  unlock(pool);
}

/* What all threads have given back so far, or tried in vain. */
static uint64_t returned(struct b200_pool *pool) {
  lock(pool);
  uint64_t bytes = pool->stats.released_bytes + pool->refused_bytes;
  unlock(pool);
  return bytes;
}

/* … once those that are at it are done: their blocks are neither idle any more nor the driver's yet. */
static uint64_t await_returns(struct b200_pool *pool) {
  lock(pool);
  while (pool->releases_begun != pool->releases_ended && is_pooling(pool) && !is_capturing(pool)) {
    unlock(pool);
    sched_yield();
    lock(pool);
  }
  unlock(pool);
  return returned(pool);
}

/* `before`: returned() before the driver said that it has none. */
static uint64_t trim(struct b200_pool *pool, uint64_t handle, uint64_t bytes, uint64_t before) {
  if (!is_pooling(pool) || is_capturing(pool))
    return 0;
  uint64_t own = pool->ops.trim_own ? pool->ops.trim_own(pool->ops.user, handle) : 0;
  uint64_t want = less(held(bytes), own), done = release(pool, handle, want, WAIT_ALL);
  return own + (done < want ? await_returns(pool) - before : done);
}

uint64_t b200_pool_trim(struct b200_pool *pool, uint64_t handle, uint64_t bytes) {
  return trim(pool, handle, bytes, returned(pool));
}

void b200_pool_empty(struct b200_pool *pool) {
  if (is_pooling(pool) && !is_capturing(pool))
    release_all(pool, ASK);
}

static bool is_limited(const struct b200_pool *pool, enum b200_owner owner) {
  return pool->config.reserve_bytes != 0 && (pool->config.reserve_owners >> owner & 1) == 0;
}

static bool fits(const struct b200_pool *pool, uint64_t available, uint64_t bytes) {
  return available >= pool->config.reserve_bytes && available - pool->config.reserve_bytes >= held(bytes);
}

static int ask_info(struct b200_pool *pool, uint64_t handle, uint64_t *free_bytes, uint64_t *total_bytes) {
  int status = pool->ops.info(pool->ops.user, handle, free_bytes, total_bytes);
  if (status != 0)
    return status;
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  if (context) {
    context->free_is_known = true;
    context->known_free = *free_bytes;
  }
  unlock(pool);
  return status;
}

/* Whether the owner may have `bytes`. *lacking: what has to be given back first, if the driver is to provide them. */
static bool admit(struct b200_pool *pool, uint64_t handle, enum b200_owner owner, uint64_t bytes, uint64_t *lacking) {
  uint64_t free_bytes, total_bytes, idle;
  *lacking = 0;
  if (!is_limited(pool, owner))
    return true;
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  bool plenty = context && context->free_is_known && fits(pool, context->known_free, bytes);
  unlock(pool);
  if (plenty)
    return true;
  if (ask_info(pool, handle, &free_bytes, &total_bytes) != 0)
    return true; /* nothing is known: the driver shall say */
  lock(pool);
  pool->stats.infos++;
  context = find_context(pool, handle);
  idle = context ? context->idle_bytes : 0;
  bool admitted = fits(pool, free_bytes + idle, bytes);
  pool->stats.refused += !admitted;
  unlock(pool);
  if (admitted && !fits(pool, free_bytes, bytes))
    *lacking = pool->config.reserve_bytes + held(bytes) - free_bytes;
  return admitted;
}

/* Gives back what lacks; false: that much was not to be had. */
static bool yield_reserve(struct b200_pool *pool, uint64_t handle, uint64_t lacking) {
  if (lacking == 0 || release(pool, handle, lacking, WAIT_ALL) >= lacking)
    return true;
  lock(pool);
  pool->stats.refused++;
  unlock(pool);
  return false;
}

bool b200_pool_admit(struct b200_pool *pool, uint64_t handle, enum b200_owner owner, uint64_t bytes) {
  uint64_t lacking;
  if (!is_pooling(pool))
    return true;
  if (!admit(pool, handle, owner, bytes, &lacking))
    return false;
  return yield_reserve(pool, handle, lacking);
}

void b200_pool_note(struct b200_pool *pool, uint64_t handle, int64_t bytes) {
  if (!is_pooling(pool))
    return;
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  if (context)
    context->known_free =
        bytes < 0 ? context->known_free + (0 - (uint64_t)bytes) : less(context->known_free, (uint64_t)bytes);
  unlock(pool);
}

int b200_pool_info(struct b200_pool *pool, uint64_t handle, uint64_t *free_bytes, uint64_t *total_bytes) {
  uint64_t free_now = 0, total = 0, idle = 0;
  int status = 0;
  bool settled = false;
  for (int i = 0; i < INFO_TRIES && !settled && status == 0; i++) {
    lock(pool);
    const struct b200_pool_context *context = find_context(pool, handle);
    uint64_t begun = pool->releases_begun;
    settled = begun == pool->releases_ended;
    idle = context ? context->idle_bytes : 0;
    unlock(pool);
    status = ask_info(pool, handle, &free_now, &total);
    lock(pool);
    settled = settled && begun == pool->releases_begun;
    unlock(pool);
  }
  if (status != 0)
    return status;
  if (free_bytes)
    *free_bytes = free_now + idle < total ? free_now + idle : total;
  if (total_bytes)
    *total_bytes = total;
  return 0;
}

/* The driver has just handed out an address: a block of ours there was freed behind our back. */
static void drop_stale(struct b200_pool *pool, uint64_t address) {
  uint32_t stale = b200_pool_index_find(&pool->index, address);
  if (stale != 0)
    forget_block(pool, stale);
}

static int ask_driver(struct b200_pool *pool, uint64_t handle, uint64_t bytes, struct b200_pool_grant *out) {
  uint64_t address = 0, begin = now_ns();
  int status = pool->ops.alloc(pool->ops.user, handle, bytes, &address);
  lock(pool);
  pool->stats.driver_calls++;
  pool->stats.driver_ns += now_ns() - begin;
  if (status == 0) {
    drop_stale(pool, address);
    struct b200_pool_context *context = find_context(pool, handle);
    if (context)
      context->known_free = less(context->known_free, held(bytes));
    *out = (struct b200_pool_grant){.address = address, .bytes = bytes};
  }
  unlock(pool);
  return status;
}

static int pass_malloc(struct b200_pool *pool, uint64_t handle, uint64_t bytes, struct b200_pool_grant *out) {
  if (is_off(pool)) {
    uint64_t address = 0;
    int answer = pool->ops.alloc(pool->ops.user, handle, bytes, &address);
    if (answer == 0)
      *out = (struct b200_pool_grant){.address = address, .bytes = bytes};
    return answer;
  }
  int status = ask_driver(pool, handle, bytes, out);
  lock(pool);
  pool->stats.passed++;
  pool->stats.failed += status != 0;
  unlock(pool);
  return status;
}

/* Memory has run out: the library's own idle memory, then as much of the idle blocks as is asked for, then all of them. */
static int retry(struct b200_pool *pool, uint64_t handle, uint64_t bytes, uint64_t before, struct b200_pool_grant *out) {
  int status = pool->ops.out_of_memory;
  uint64_t retries = 0;
  if (trim(pool, handle, bytes, before) > 0) {
    retries++;
    before = returned(pool);
    status = ask_driver(pool, handle, bytes, out);
  }
  if (status == pool->ops.out_of_memory) {
    release_all(pool, WAIT_ALL);
    if (await_returns(pool) != before) {
      retries++;
      status = ask_driver(pool, handle, bytes, out);
    }
  }
  lock(pool);
  pool->stats.retries += retries;
  unlock(pool);
  return status;
}

static int miss(struct b200_pool *pool, uint64_t handle, uint64_t generation, enum b200_owner owner, uint64_t bytes,
                struct b200_pool_grant *out) {
  bool retried = false;
  uint64_t before = returned(pool);
  int status = ask_driver(pool, handle, bytes, out);
  if (status == pool->ops.out_of_memory) {
    retried = true;
    status = retry(pool, handle, bytes, before, out);
  }
  lock(pool);
  pool->stats.misses++;
  pool->stats.failed += status != 0;
  pool->stats.rescues += retried && status == 0 && (pool->config.reserve_owners >> owner & 1) != 0;
  if (status == 0)
    track(pool, handle, generation, out);
  unlock(pool);
  return status;
}

/* From the shelf, if the reserve allows it, as far as is known. *waiting: a block in quarantine that fits, when there is no
   other. */
static bool take(struct b200_pool *pool, struct b200_pool_context *context, enum b200_owner owner, uint64_t bytes,
                 struct b200_pool_grant *out, uint32_t *waiting) {
  uint32_t number = b200_pool_shelf_fit(&pool->index, &context->idle, bytes, held(bytes), safe_of(pool, context), waiting);
  if (number == 0)
    return false;
  const struct b200_pool_block *block = block_at(pool, number);
  if (is_limited(pool, owner) &&
      !(context->free_is_known && fits(pool, context->known_free + context->idle_bytes, block->bytes)))
    return false;
  unshelve(pool, context, number);
  pool->stats.live_blocks++;
  add_live(context, block->bytes);
  *out = (struct b200_pool_grant){.address = block->address, .bytes = block->bytes, .hit = true};
  pool->stats.hits++;
  return true;
}

/* … after waiting, if there is something to wait for. */
static bool take_late(struct b200_pool *pool, uint64_t handle, uint64_t generation, enum b200_owner owner, uint64_t bytes,
                      struct b200_pool_grant *out) {
  uint32_t waiting;
  bool hit = false;
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  if (!context || context->generation != generation)
    goto out;
  hit = take(pool, context, owner, bytes, out, &waiting);
  if (hit || waiting == 0)
    goto out;
  settle_locked(pool, context, block_at(pool, waiting)->stamp, pool->config.wait && !is_capturing(pool) ? WAIT_OWN : ASK);
  hit = is_same(context, generation) && !context->broken && take(pool, context, owner, bytes, out, &waiting);
  pool->stats.waits += hit;
out:
  unlock(pool);
  return hit;
}

static void hand_out(struct b200_pool *pool, uint64_t handle, const struct b200_pool_grant *grant) {
  if (pool->ops.poison)
    pool->ops.poison(pool->ops.user, handle, grant->address, grant->bytes);
}

/* Idle bytes by which the job would exceed its peak once `bytes` more are live. */
static uint64_t surplus(struct b200_pool *pool, uint64_t handle, uint64_t bytes) {
  if (!pool->config.within_peak)
    return 0;
  lock(pool);
  const struct b200_pool_context *context = find_context(pool, handle);
  uint64_t allowed = context ? less(context->live_peak_bytes, context->live_bytes) : 0;
  uint64_t over = context ? less(context->idle_bytes, less(allowed, held(bytes))) : 0;
  unlock(pool);
  return over;
}

static int malloc_slowly(struct b200_pool *pool, uint64_t handle, uint64_t generation, enum b200_owner owner, uint64_t bytes,
                         struct b200_pool_grant *out) {
  uint64_t lacking;
  int status = 0;
  if (!admit(pool, handle, owner, bytes, &lacking))
    return pool->ops.out_of_memory;
  if (!take_late(pool, handle, generation, owner, bytes, out)) {
    if (!yield_reserve(pool, handle, lacking))
      return pool->ops.out_of_memory;
    uint64_t over = surplus(pool, handle, bytes);
    if (over != 0)
      release(pool, handle, over, WAIT_OWN);
    status = miss(pool, handle, generation, owner, bytes, out);
  }
  if (status == 0)
    hand_out(pool, handle, out);
  return status;
}

int b200_pool_malloc(struct b200_pool *pool, uint64_t handle, enum b200_owner owner, uint64_t bytes,
                     struct b200_pool_grant *out) {
  if (bytes < B200_POOL_MIN_BYTES || !is_pooling(pool) || is_capturing(pool))
    return pass_malloc(pool, handle, bytes, out);
  uint32_t waiting;
  bool hit = false;
  lock(pool);
  struct b200_pool_context *context = need_context(pool, handle);
  bool serves = context && !context->broken;
  uint64_t generation = serves ? context->generation : 0;
  if (serves)
    hit = take(pool, context, owner, bytes, out, &waiting);
  unlock(pool);
  if (!serves)
    return pass_malloc(pool, handle, bytes, out);
  if (!hit)
    return malloc_slowly(pool, handle, generation, owner, bytes, out);
  hand_out(pool, handle, out);
  return 0;
}

static void pin_block(struct b200_pool *pool, uint32_t number) {
  struct b200_pool_block *block = block_at(pool, number);
  if (block->pinned)
    return;
  block->pinned = true;
  pool->stats.pinned++;
  b200_pool_shelf_unbin(&pool->index, &pool->contexts[block->context].idle, number);
}

/* The application's own free. `number`: of the block, or 0; taken out before the driver is asked, since another thread may
   be handed the address as soon as that has returned; put back when the driver refuses. */
static int pass_free_locked(struct b200_pool *pool, uint64_t handle, uint64_t address, uint32_t number) {
  struct b200_pool_block block = {.address = address};
  uint64_t owner_handle = 0, generation = 0, begin = now_ns();
  if (number != 0) {
    block = *block_at(pool, number);
    owner_handle = pool->contexts[block.context].handle;
    generation = pool->contexts[block.context].generation;
    forget_block(pool, number);
  }
  unlock(pool);
  int status = pool->ops.free(pool->ops.user, handle, address, true);
  lock(pool);
  pool->stats.driver_calls++;
  pool->stats.driver_ns += now_ns() - begin;
  struct b200_pool_context *context = number != 0 ? &pool->contexts[block.context] : NULL;
  if (!context || !is_same(context, generation))
    return status;
  if (status == 0) {
    context->known_free += held(block.bytes);
    return status;
  }
  struct b200_pool_grant again = {.address = address, .bytes = block.bytes};
  track(pool, owner_handle, generation, &again);
  uint32_t back = b200_pool_index_find(&pool->index, address);
  if (back == 0)
    return status;
  block_at(pool, back)->registrations = block.registrations;
  if (block.pinned)
    pin_block(pool, back);
  return status;
}

static bool may_keep(const struct b200_pool *pool, uint32_t number) {
  const struct b200_pool_block *block = &pool->index.blocks[number];
  return number != 0 && !block->idle && !block->pinned && block->registrations == 0 &&
         !pool->contexts[block->context].broken;
}

/* A live block goes into quarantine. False: it has to go to the driver. */
static bool keep_locked(struct b200_pool *pool, uint32_t number, uint64_t stamp) {
  struct b200_pool_block *block = block_at(pool, number);
  struct b200_pool_context *context = &pool->contexts[block->context];
  if (!may_keep(pool, number))
    return false;
  block->stamp = stamp;
  if (!b200_pool_shelf_put(&pool->index, &context->idle, number))
    return false;
  shelve(pool, context, block->bytes);
  return true;
}

/* A fence of the context, as far as it has to be waited for, and of those whose work may touch its memory. */
static void record_fences_locked(struct b200_pool *pool, struct b200_pool_context *context, uint64_t stamp) {
  uint64_t generation = context->generation;
  if (!pool->ops.fence)
    return;
  if (context->safe <= stamp)
    record_fence_locked(pool, context);
  for (int i = 0; i < B200_POOL_CONTEXTS && is_same(context, generation); i++)
    if (context->peers >> i & 1 && pool->contexts[i].handle != 0)
      record_fence_locked(pool, &pool->contexts[i]);
}

/* The last one is for a free that does not wait: who waits can do so for the context. */
static bool has_spare_fence(const struct b200_pool_context *context) {
  int unused = 0;
  for (int i = 0; i < B200_POOL_FENCES; i++)
    unused += context->fences[i].users == 0;
  return unused > 1;
}

/* Waits as the driver's free would: for the context, not for its peers. */
static bool wait_locked(struct b200_pool *pool, struct b200_pool_context *context, uint64_t stamp) {
  uint64_t generation = context->generation;
  if (pool->ops.fence && has_spare_fence(context))
    record_fence_locked(pool, context);
  if (is_same(context, generation))
    settle_one_locked(pool, context, stamp, true);
  return is_same(context, generation) && context->safe > stamp;
}

int b200_pool_free(struct b200_pool *pool, uint64_t handle, uint64_t address, bool waits) {
  int status = 0;
  if (is_off(pool))
    return pool->ops.free(pool->ops.user, handle, address, true);
  bool keeps = is_pooling(pool) && !is_capturing(pool);
  lock(pool);
  uint32_t number = b200_pool_index_find(&pool->index, address);
  uint64_t stamp = pool->clock;
  if (keeps && waits && may_keep(pool, number)) {
    keeps = wait_locked(pool, &pool->contexts[block_at(pool, number)->context], stamp);
    number = b200_pool_index_find(&pool->index, address);
  }
  if (number != 0 && block_at(pool, number)->idle) {
    pool->stats.double_frees++;
    status = pool->ops.invalid_value;
  } else if (number != 0 && keeps && keep_locked(pool, number, stamp)) {
    struct b200_pool_context *context = &pool->contexts[block_at(pool, number)->context];
    uint64_t generation = context->generation;
    record_fences_locked(pool, context, stamp);
    if (is_same(context, generation) && context->idle_bytes > pool->config.max_idle_bytes)
      release_locked(pool, context, context->idle_bytes - pool->config.max_idle_bytes, WAIT_OWN);
  } else {
    status = pass_free_locked(pool, handle, address, number);
  }
  unlock(pool);
  return status;
}

enum b200_pool_state b200_pool_look(struct b200_pool *pool, uint64_t address) {
  lock(pool);
  uint32_t number = b200_pool_index_find(&pool->index, address);
  enum b200_pool_state state = number == 0                    ? B200_POOL_UNKNOWN
                               : block_at(pool, number)->idle ? B200_POOL_IDLE
                                                              : B200_POOL_LIVE;
  unlock(pool);
  return state;
}

void b200_pool_peer(struct b200_pool *pool, uint64_t handle, uint64_t accessor) {
  if (!is_pooling(pool) || handle == accessor)
    return;
  lock(pool);
  struct b200_pool_context *context = need_context(pool, handle), *peer = need_context(pool, accessor);
  if (context && peer)
    context->peers |= 1u << (peer - pool->contexts);
  else if (context)
    context->broken = true; /* cannot know when its blocks are safe */
  unlock(pool);
}

static void register_block(struct b200_pool *pool, uint32_t number, int change) {
  struct b200_pool_block *block = block_at(pool, number);
  if (block->idle || block->registrations == UINT32_MAX)
    pin_block(pool, number);
  else if (change > 0 || block->registrations > 0)
    block->registrations += (uint32_t)change;
}

/* `change` 0: pins. */
static void mark_range(struct b200_pool *pool, uint64_t address, uint64_t bytes, int change) {
  uint64_t end = address + (bytes ? bytes : 1);
  lock(pool);
  for (uint32_t i = 1; i < pool->index.block_end; i++) {
    const struct b200_pool_block *block = block_at(pool, i);
    if (block->bytes == 0 || block->address >= end || block->address + block->bytes <= address)
      continue;
    if (change == 0)
      pin_block(pool, i);
    else
      register_block(pool, i, change);
  }
  unlock(pool);
}

void b200_pool_pin(struct b200_pool *pool, uint64_t address, uint64_t bytes) {
  mark_range(pool, address, bytes, 0);
}

void b200_pool_register(struct b200_pool *pool, uint64_t address, uint64_t bytes, int change) {
  mark_range(pool, address, bytes, change);
}

void b200_pool_context_gone(struct b200_pool *pool, uint64_t handle) {
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  if (context) {
    uint32_t place = (uint32_t)(context - pool->contexts);
    for (uint32_t i = 1; i < pool->index.block_end; i++)
      if (block_at(pool, i)->bytes != 0 && block_at(pool, i)->context == place) {
        forget_block(pool, i);
        pool->stats.dropped++;
      }
    b200_pool_shelf_drop(&context->idle);
    for (int i = 0; i < B200_POOL_CONTEXTS; i++)
      pool->contexts[i].peers &= ~(1u << place);
    *context = (struct b200_pool_context){0};
  }
  unlock(pool);
}

void b200_pool_context_broken(struct b200_pool *pool, uint64_t handle) {
  lock(pool);
  struct b200_pool_context *context = find_context(pool, handle);
  if (context)
    context->broken = true;
  unlock(pool);
}

uint64_t b200_pool_largest_idle(struct b200_pool *pool) {
  uint64_t largest = 0;
  lock(pool);
  for (uint32_t i = 1; i < pool->index.block_end; i++) {
    const struct b200_pool_block *block = block_at(pool, i);
    if (block->bytes > largest && block->idle && !block->pinned)
      largest = block->bytes;
  }
  unlock(pool);
  return largest;
}

void b200_pool_read(struct b200_pool *pool, struct b200_pool_stats *out) {
  lock(pool);
  *out = pool->stats;
  unlock(pool);
}

void b200_pool_stop(struct b200_pool *pool) {
  atomic_store(&pool->mode, B200_POOL_OFF);
}

void b200_pool_forget(struct b200_pool *pool) {
  atomic_store(&pool->mode, B200_POOL_OFF);
  pthread_mutex_init(&pool->lock, NULL);       /* its holder may be a thread of the parent */
  memset(&pool->index, 0, sizeof pool->index); /* … who was changing the tables: not unmapped */
  memset(pool->contexts, 0, sizeof pool->contexts);
  memset(&pool->stats, 0, sizeof pool->stats);
  pool->releases_begun = pool->releases_ended = 0;
}
