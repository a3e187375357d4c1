/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's expandable segments: for each stream and pool a range of addresses, to whose end pages are mapped as they are
 * needed (2 MiB each in the small pool, 20 MiB in the large). A full device: whole pages in free blocks are unmapped, and
 * the request is made once more.
 */
#include "tools/replay/torch.h"

/* Addresses of one segment: PyTorch reserves an eighth more than the device has; without a limit, what no stream fills. */
#define SEGMENT_BYTES_MAX (UINT64_C(1) << 47)

static void *create(struct replay_book *book) {
  return torch_create(book);
}

static uint64_t page_bytes(const struct torch_pool *pool) {
  return pool->small ? TORCH_SMALL_SEGMENT : TORCH_LARGE_SEGMENT;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/* Pages are created one by one, then mapped; on failure those that were created are released. */
static bool take_pages(struct replay_book *book, uint64_t count, uint64_t page) {
  uint64_t room = (book->limit - book->reserved) / page;
  book->calls[REPLAY_CREATE] += count <= room ? count : room + 1;
  if (count > room) {
    book->calls[REPLAY_RELEASE] += room;
    return false;
  }
  book->calls[REPLAY_MAP] += count;
  book->calls[REPLAY_ACCESS]++;
  book->reserved += count * page;
  return true;
}

/* Maps the first `bytes` of an unmapped block, which then has its free neighbours in it; it stays in its tree. */
static bool map_block(struct torch *torch, struct torch_block *block, uint64_t bytes) {
  uint64_t page = page_bytes(block->pool), mapped = round_up(bytes, page);
  if (!take_pages(torch->book, mapped / page, page))
    return false;
  torch_unshelve(block);
  if (mapped < block->bytes)
    torch_shelve(torch_split(torch, block, mapped));
  block->mapped = true;
  torch_merge(torch, block);
  torch_shelve(block);
  return true;
}

/* From `block` on there are addresses for the request, free or not mapped. */
static bool has_addresses(const struct torch_block *block, uint64_t bytes) {
  uint64_t found = 0;
  for (; found < bytes && block && !block->allocated; block = block->behind)
    found += block->bytes;
  return found >= bytes;
}

static struct torch_block *new_segment(struct torch *torch, struct torch_pool *pool, uint64_t stream) {
  uint64_t limit = torch->book->limit;
  uint64_t bytes = limit < SEGMENT_BYTES_MAX / 2 ? limit + limit / 8 : SEGMENT_BYTES_MAX;
  struct torch_block *block = torch_segment(torch, pool, stream, round_up(bytes, page_bytes(pool)));
  block->mapped = false;
  torch_shelve(block);
  return block;
}

/* The lowest place of the stream where a block can grow to `bytes`; of a new segment if need be. */
static struct torch_block *find_place(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t bytes) {
  struct replay_node *node = replay_tree_find(&pool->unmapped, stream, 0, 0);
  for (; node && node->key[0] == stream; node = replay_tree_next(&pool->unmapped, node)) {
    struct torch_block *block = REPLAY_ELEMENT(node, struct torch_block, node);
    if (block->before && !block->before->allocated)
      block = block->before;
    if (has_addresses(block, bytes))
      return block;
  }
  return new_segment(torch, pool, stream);
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static struct torch_block *grow(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t bytes) {
  struct torch_block *block = bytes <= torch->book->limit ? find_place(torch, pool, stream, bytes) : NULL;
  if (!block || (!block->mapped && !map_block(torch, block, least(block->bytes, bytes))))
    return NULL;
  while (block->bytes < bytes) { /* what is behind it is not mapped: free neighbours are one block */
    struct torch_block *behind = block->behind;
    if (!map_block(torch, behind, least(behind->bytes, bytes - block->bytes)))
      return NULL;
    block = behind;
  }
  torch_unshelve(block);
  return block;
}

/* What the block can grow to. */
static uint64_t reach(const struct torch_block *block) {
  return block->bytes + (block->behind && !block->behind->mapped ? block->behind->bytes : 0);
}

static struct torch_block *find(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t rounded) {
  struct torch_block *block = torch_best_fit(pool, stream, rounded);
  if (!block)
    return grow(torch, pool, stream, rounded);
  for (struct torch_block *next; (next = torch_next_fit(block)) && reach(next) < reach(block);)
    block = next;
  torch_unshelve(block);
  return block;
}

/* Gives back the whole pages in a free block, which is cut where they begin and end. */
static void unmap_block(struct torch *torch, struct torch_block *block) {
  uint64_t page = page_bytes(block->pool);
  uint64_t begin = round_up(block->offset, page), end = (block->offset + block->bytes) / page * page;
  if (begin >= end)
    return;
  torch_unshelve(block);
  if (block->offset < begin) {
    struct torch_block *rest = torch_split(torch, block, begin - block->offset);
    torch_shelve(block);
    block = rest;
  }
  if (block->offset + block->bytes > end)
    torch_shelve(torch_split(torch, block, end - block->offset));
  block->mapped = false;
  torch_merge(torch, block);
  torch_shelve(block);
  torch->book->calls[REPLAY_UNMAP] += (end - begin) / page;
  torch->book->calls[REPLAY_RELEASE] += (end - begin) / page;
  torch->book->reserved -= end - begin;
}

static void trim_pool(struct torch *torch, struct torch_pool *pool) {
  struct replay_node *next;
  for (struct replay_node *node = replay_tree_find(&pool->free, 0, 0, 0); node; node = next) {
    next = replay_tree_next(&pool->free, node);
    unmap_block(torch, REPLAY_ELEMENT(node, struct torch_block, node));
  }
}

static void trim(struct torch *torch) {
  trim_pool(torch, &torch->pools[0]);
  trim_pool(torch, &torch->pools[1]);
}

static bool alloc(void *torch, const struct replay_request *request) {
  return torch_alloc(torch, request, find, trim, TORCH_MIN_BYTES);
}

const struct replay_policy replay_expandable = {
    .name = "expandable",
    .help = "PyTorch's expandable segments",
    .create = create,
    .alloc = alloc,
    .free = torch_free,
    .destroy = torch_destroy,
};
