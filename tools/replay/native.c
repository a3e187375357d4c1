/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's caching allocator over cudaMalloc, with default settings: segments of 2 MiB for small requests, of 20 MiB below
 * 10 MiB, else of the request's size in multiples of 2 MiB. A full device: what is wholly free is given back, and the
 * request is made once more.
 */
#include "tools/replay/torch.h"

static void *create(struct replay_book *book) {
  return torch_create(book);
}

static uint64_t segment_bytes(uint64_t rounded) {
  if (rounded <= TORCH_SMALL_BYTES)
    return TORCH_SMALL_SEGMENT;
  if (rounded < TORCH_LARGE_BYTES)
    return TORCH_LARGE_SEGMENT;
  return (rounded + TORCH_ROUND_BYTES - 1) / TORCH_ROUND_BYTES * TORCH_ROUND_BYTES;
}

static struct torch_block *find(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t rounded) {
  struct torch_block *block = torch_best_fit(pool, stream, rounded);
  if (block) {
    torch_unshelve(block);
    return block;
  }
  uint64_t bytes = segment_bytes(rounded);
  return replay_book_take(torch->book, REPLAY_MALLOC, bytes) ? torch_segment(torch, pool, stream, bytes) : NULL;
}

static void trim_pool(struct torch *torch, struct torch_pool *pool) {
  struct replay_node *next;
  for (struct replay_node *node = replay_tree_find(&pool->free, 0, 0, 0); node; node = next) {
    struct torch_block *block = REPLAY_ELEMENT(node, struct torch_block, node);
    next = replay_tree_next(&pool->free, node);
    if (block->before || block->behind)
      continue;
    replay_book_give(torch->book, REPLAY_FREE, block->bytes);
    torch_unshelve(block);
    torch_drop(torch, block);
  }
}

static void trim(struct torch *torch) {
  trim_pool(torch, &torch->pools[0]);
  trim_pool(torch, &torch->pools[1]);
}

static bool alloc(void *torch, const struct replay_request *request) {
  return torch_alloc(torch, request, find, trim, TORCH_SMALL_BYTES + 1);
}

const struct replay_policy replay_native = {
    .name = "native",
    .help = "PyTorch's caching allocator over cudaMalloc",
    .tensors_only = true,
    .create = create,
    .alloc = alloc,
    .free = torch_free,
    .destroy = torch_destroy,
};
