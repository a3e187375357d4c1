/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of whole blocks under cudaMalloc and cudaFree: one request is one driver allocation, which is kept when it is
 * freed and handed out again to a request of nearly its size, whatever its stream and owner: the rules of memory/pool.h.
 * Small requests and physical handles (cuMemCreate) pass by. A free block may be used again at once, as if the device had
 * been waited for in between, and nothing bounds what is idle but the device.
 *
 * When the device is full, all that is idle is given back and the request is made once more, for every owner.
 */
#include "tools/replay/replay.h"

#include <stdlib.h>

#include "interpose/record/reader.h"
#include "tools/replay/tree.h"

#define LEAST_BYTES (UINT64_C(2) << 20) /* smaller ones are not kept: the driver packs them into one page */

struct block {
  struct replay_node node; /* when idle: by size, then by age */
  uint64_t bytes;
};

struct state {
  struct replay_book *book;
  struct replay_tree idle;
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

/* The smallest idle block of at least `bytes` and at most an eighth more; of equal ones that which was freed first. */
static struct block *take_idle(struct state *state, uint64_t bytes) {
  struct block *block = REPLAY_ELEMENT(replay_tree_find(&state->idle, bytes, 0, 0), struct block, node);
  if (!block || block->bytes > bytes + bytes / 8)
    return NULL;
  replay_tree_remove(&state->idle, &block->node);
  return block;
}

static void trim(struct state *state) {
  while (state->idle.root) {
    struct block *block = REPLAY_ELEMENT(state->idle.root, struct block, node);
    replay_tree_remove(&state->idle, &block->node);
    replay_book_give(state->book, REPLAY_FREE, block->bytes);
    free(block);
  }
}

static bool pass_by(struct state *state, const struct replay_request *request) {
  if (replay_book_direct_alloc(state->book, request))
    return true;
  if (!state->idle.root)
    return false;
  trim(state);
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
  replay_tree_insert(&state->idle, &block->node);
  state->blocks[request->slot] = NULL;
}

static void destroy(void *opaque) {
  struct state *state = opaque;
  trim(state);
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
