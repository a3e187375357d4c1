/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of whole blocks under cudaMalloc and cudaFree: one request is one driver allocation, which is kept when it is
 * freed and handed out again to a request of nearly its size, whatever its stream and owner: the rules of memory/pool.h.
 * Small requests and physical handles (cuMemCreate) pass by. A free block may be used again at once, as if the device had
 * been waited for in between.
 *
 * Before the driver is asked for more, idle blocks are given back, the first freed first, as far as live and idle ones would
 * exceed the most that was ever live.
 *
 * When the device is full, all that is idle is given back and the request is made once more, for every owner.
 */
#include "tools/replay/replay.h"

#include <stdlib.h>

#include "interpose/record/reader.h"
#include "tools/replay/tree.h"

#define PAGE_BYTES (UINT64_C(2) << 20)
#define LEAST_BYTES PAGE_BYTES /* smaller ones are not kept: the driver packs them into one page */

struct block {
  struct replay_node node;   /* when idle: by size, then by age */
  struct replay_node by_age; /* when idle */
  uint64_t bytes;
};

struct state {
  struct replay_book *book;
  struct replay_tree idle, ages;
  uint64_t idle_bytes, live_bytes, live_peak_bytes; /* in whole pages, of what is kept when it is freed */
  uint64_t clock;
  struct block **blocks; /* by slot; NULL: passed by */
  size_t block_count;
};

static void *create(struct replay_book *book) {
  struct state *state = b200_zeroed(1, sizeof(*state));
  state->book = book;
  return state;
}

static bool is_kept(const struct replay_request *request) {
  return !request->physical && request->bytes >= LEAST_BYTES;
}

static uint64_t pages(uint64_t bytes) {
  return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static void take_out(struct state *state, struct block *block) {
  replay_tree_remove(&state->idle, &block->node);
  replay_tree_remove(&state->ages, &block->by_age);
  state->idle_bytes -= pages(block->bytes);
}

static void make_live(struct state *state, const struct block *block) {
  state->live_bytes += pages(block->bytes);
  if (state->live_bytes > state->live_peak_bytes)
    state->live_peak_bytes = state->live_bytes;
}

/* The smallest idle block of at least `bytes` and in as many pages; of equal ones that which was freed first. */
static struct block *take_idle(struct state *state, uint64_t bytes) {
  struct block *block = REPLAY_ELEMENT(replay_tree_find(&state->idle, bytes, 0, 0), struct block, node);
  if (!block || block->bytes > pages(bytes))
    return NULL;
  take_out(state, block);
  make_live(state, block);
  return block;
}

/* Gives back idle blocks, the first freed first, until `want` bytes of pages have been. */
static void release(struct state *state, uint64_t want) {
  for (uint64_t done = 0; done < want && state->ages.root;) {
    struct block *block = REPLAY_ELEMENT(replay_tree_find(&state->ages, 0, 0, 0), struct block, by_age);
    done += pages(block->bytes);
    take_out(state, block);
    replay_book_give(state->book, REPLAY_FREE, block->bytes);
    free(block);
  }
}

/* Idle bytes by which the job would exceed its peak once `bytes` more are live. */
static uint64_t surplus(const struct state *state, uint64_t bytes) {
  uint64_t room = state->live_peak_bytes - state->live_bytes, held = pages(bytes);
  uint64_t allowed = room > held ? room - held : 0;
  return state->idle_bytes > allowed ? state->idle_bytes - allowed : 0;
}

static bool pass_by(struct state *state, const struct replay_request *request) {
  if (is_kept(request))
    release(state, surplus(state, request->bytes));
  if (replay_book_direct_alloc(state->book, request))
    return true;
  if (!state->idle.root)
    return false;
  release(state, UINT64_MAX);
  state->book->retries++;
  return replay_book_direct_alloc(state->book, request);
}

static bool alloc(void *opaque, const struct replay_request *request) {
  struct state *state = opaque;
  for (; state->block_count <= request->slot; state->block_count++)
    state->blocks = b200_grow(state->blocks, state->block_count, sizeof(struct block *));
  struct block *block = is_kept(request) ? take_idle(state, request->bytes) : NULL;
  state->blocks[request->slot] = block;
  if (block)
    return true;
  if (!pass_by(state, request))
    return false;
  if (is_kept(request)) {
    block = b200_zeroed(1, sizeof(*block));
    block->bytes = request->bytes;
    make_live(state, block);
    state->blocks[request->slot] = block;
  }
  return true;
}

static void free_request(void *opaque, const struct replay_request *request) {
  struct state *state = opaque;
  struct block *block = state->blocks[request->slot];
  if (!block) {
    replay_book_direct_free(state->book, request);
    return;
  }
  block->node.key[0] = block->bytes;
  block->node.key[1] = state->clock++;
  block->by_age.key[0] = block->node.key[1];
  replay_tree_insert(&state->idle, &block->node);
  replay_tree_insert(&state->ages, &block->by_age);
  state->idle_bytes += pages(block->bytes);
  state->live_bytes -= pages(block->bytes);
  state->blocks[request->slot] = NULL;
}

static void destroy(void *opaque) {
  struct state *state = opaque;
  release(state, UINT64_MAX);
  for (size_t i = 0; i < state->block_count; i++)
    free(state->blocks[i]);
  free(state->blocks);
  free(state);
}

const struct replay_policy replay_cache = {
    .name = "cache",
    .help = "a cache of whole blocks under cudaMalloc",
    .create = create,
    .alloc = alloc,
    .free = free_request,
    .destroy = destroy,
};
