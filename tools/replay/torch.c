/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/torch.h"

#include <stdlib.h>

#include "interpose/record/reader.h"

struct torch *torch_create(struct replay_book *book) {
  struct torch *torch = b200_zeroed(1, sizeof(*torch));
  torch->book = book;
  torch->pools[1].small = true;
  return torch;
}

void torch_destroy(void *opaque) {
  struct torch *torch = opaque;
  while (torch->newest) {
    struct torch_block *block = torch->newest;
    torch->newest = block->older;
    free(block);
  }
  free(torch->blocks);
  free(torch);
}

uint64_t torch_round(uint64_t bytes) {
  return bytes < TORCH_MIN_BYTES ? TORCH_MIN_BYTES : (bytes + TORCH_MIN_BYTES - 1) / TORCH_MIN_BYTES * TORCH_MIN_BYTES;
}

struct torch_pool *torch_pool(struct torch *torch, uint64_t rounded) {
  return &torch->pools[rounded <= TORCH_SMALL_BYTES];
}

/* ---- blocks */

static struct torch_block *new_block(struct torch *torch, const struct torch_block *form) {
  struct torch_block *block = b200_zeroed(1, sizeof(*block));
  *block = *form;
  block->newer = NULL;
  block->older = torch->newest;
  if (torch->newest)
    torch->newest->newer = block;
  torch->newest = block;
  return block;
}

static void free_block(struct torch *torch, struct torch_block *block) {
  if (block->older)
    block->older->newer = block->newer;
  if (block->newer)
    block->newer->older = block->older;
  else
    torch->newest = block->older;
  free(block);
}

struct torch_block *torch_segment(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t bytes) {
  return new_block(torch,
                   &(struct torch_block){
                       .pool = pool, .segment = torch->segment_count++, .bytes = bytes, .stream = stream, .mapped = true});
}

void torch_drop(struct torch *torch, struct torch_block *block) {
  free_block(torch, block);
}

struct torch_block *torch_best_fit(const struct torch_pool *pool, uint64_t stream, uint64_t bytes) {
  struct torch_block *block = REPLAY_ELEMENT(replay_tree_find(&pool->free, stream, bytes, 0), struct torch_block, node);
  return block && block->stream == stream ? block : NULL;
}

struct torch_block *torch_next_fit(const struct torch_block *block) {
  struct torch_block *next = REPLAY_ELEMENT(replay_tree_next(&block->pool->free, &block->node), struct torch_block, node);
  return next && next->stream == block->stream ? next : NULL;
}

static struct replay_tree *shelf(struct torch_block *block) {
  return block->mapped ? &block->pool->free : &block->pool->unmapped;
}

void torch_shelve(struct torch_block *block) {
  uint64_t *key = block->node.key;
  key[0] = block->stream;
  key[1] = block->mapped ? block->bytes : block->segment;
  key[2] = block->mapped ? block->segment << 48 | block->offset : block->offset;
  replay_tree_insert(shelf(block), &block->node);
}

void torch_unshelve(struct torch_block *block) {
  replay_tree_remove(shelf(block), &block->node);
}

struct torch_block *torch_split(struct torch *torch, struct torch_block *block, uint64_t bytes) {
  struct torch_block *rest = new_block(torch, block);
  rest->offset += bytes;
  rest->bytes -= bytes;
  rest->before = block;
  if (rest->behind)
    rest->behind->before = rest;
  block->behind = rest;
  block->bytes = bytes;
  return rest;
}

static bool swallows(const struct torch_block *block, const struct torch_block *other) {
  return other && !other->allocated && other->mapped == block->mapped;
}

void torch_merge(struct torch *torch, struct torch_block *block) {
  struct torch_block *before = block->before, *behind = block->behind;
  if (swallows(block, before)) {
    torch_unshelve(before);
    block->offset = before->offset;
    block->bytes += before->bytes;
    block->before = before->before;
    if (block->before)
      block->before->behind = block;
    free_block(torch, before);
  }
  if (swallows(block, behind)) {
    torch_unshelve(behind);
    block->bytes += behind->bytes;
    block->behind = behind->behind;
    if (block->behind)
      block->behind->before = block;
    free_block(torch, behind);
  }
}

/* ---- requests */

bool torch_alloc(struct torch *torch, const struct replay_request *request, torch_find *find, torch_trim *trim,
                 uint64_t least_left) {
  for (; torch->block_count <= request->slot; torch->block_count++)
    torch->blocks = b200_grow(torch->blocks, torch->block_count, sizeof(struct torch_block *));
  torch->blocks[request->slot] = NULL;
  if (request->owner != B200_OWNER_PYTORCH || request->bytes == 0)
    return replay_book_direct_alloc(torch->book, request);
  uint64_t rounded = torch_round(request->bytes);
  struct torch_pool *pool = torch_pool(torch, rounded);
  struct torch_block *block = find(torch, pool, request->stream, rounded);
  if (!block) {
    trim(torch);
    torch->book->retries++;
    block = find(torch, pool, request->stream, rounded);
  }
  if (!block)
    return false;
  if (block->bytes - rounded >= (pool->small ? TORCH_MIN_BYTES : least_left))
    torch_shelve(torch_split(torch, block, rounded));
  block->allocated = true;
  torch->blocks[request->slot] = block;
  return true;
}

void torch_free(void *opaque, const struct replay_request *request) {
  struct torch *torch = opaque;
  struct torch_block *block = torch->blocks[request->slot];
  if (!block) {
    replay_book_direct_free(torch->book, request);
    return;
  }
  block->allocated = false;
  torch_merge(torch, block);
  torch_shelve(block);
}
