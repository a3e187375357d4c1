/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What PyTorch's two allocators of segments have in common (c10/cuda/CUDACachingAllocator.cpp, as of torch 2.9, with default
 * settings): sizes, a pool for requests of up to 1 MiB and one for larger ones, best fit per stream, splitting, merging.
 *
 * A segment is a chain of blocks, first to last; a block is allocated, free, or (expandable segments) not mapped. A cached
 * block is in its pool's tree.
 */
#ifndef B200_REPLAY_TORCH_H
#define B200_REPLAY_TORCH_H

#include "tools/replay/replay.h"
#include "tools/replay/tree.h"

#define TORCH_MIN_BYTES UINT64_C(512)         /* requests are rounded up to multiples of this */
#define TORCH_SMALL_BYTES (UINT64_C(1) << 20) /* largest request of the small pool */
#define TORCH_SMALL_SEGMENT (UINT64_C(2) << 20)
#define TORCH_LARGE_SEGMENT (UINT64_C(20) << 20)
#define TORCH_LARGE_BYTES (UINT64_C(10) << 20) /* from here on a segment is made for the request, */
#define TORCH_ROUND_BYTES (UINT64_C(2) << 20)  /* in multiples of this */

struct torch_pool {
  bool small;
  struct replay_tree free;     /* by stream, size, place */
  struct replay_tree unmapped; /* by stream, place */
};

struct torch_block {
  struct replay_node node;
  struct torch_block *before, *behind; /* neighbours in the segment */
  struct torch_block *older, *newer;   /* of all blocks */
  struct torch_pool *pool;
  uint64_t segment, offset, bytes, stream;
  bool allocated, mapped;
};

struct torch {
  struct replay_book *book;
  struct torch_pool pools[2]; /* large, small */
  uint64_t segment_count;
  struct torch_block *newest;
  struct torch_block **blocks; /* by slot; NULL: served by the driver alone */
  size_t block_count;
};

struct torch *torch_create(struct replay_book *book);
void torch_destroy(void *torch);

uint64_t torch_round(uint64_t bytes);
struct torch_pool *torch_pool(struct torch *torch, uint64_t rounded);
/* A mapped block that is a segment by itself, in no tree. */
struct torch_block *torch_segment(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t bytes);
/* The smallest free block of the stream with at least `bytes`, still in its tree; NULL: none. */
struct torch_block *torch_best_fit(const struct torch_pool *pool, uint64_t stream, uint64_t bytes);
/* The next larger one of the same stream. */
struct torch_block *torch_next_fit(const struct torch_block *block);

/* Into the tree that its state asks for; out of it. */
void torch_shelve(struct torch_block *block);
void torch_unshelve(struct torch_block *block);
/* Cuts `block` down to `bytes`; returns what is left over, in the same state and in no tree. pre: it is in none. */
struct torch_block *torch_split(struct torch *torch, struct torch_block *block, uint64_t bytes);
/* Swallows neighbours that are not allocated and mapped alike. pre: block is in no tree. */
void torch_merge(struct torch *torch, struct torch_block *block);
/* Ends a block that is a whole segment and in no tree. */
void torch_drop(struct torch *torch, struct torch_block *block);

/* The parts of a policy. `find` says what block serves a request of PyTorch, in no tree, NULL when the device is full;
   `trim` gives back what is free. A request of anyone else is the driver's. */
typedef struct torch_block *torch_find(struct torch *torch, struct torch_pool *pool, uint64_t stream, uint64_t rounded);
typedef void torch_trim(struct torch *torch);
bool torch_alloc(struct torch *torch, const struct replay_request *request, torch_find *find, torch_trim *trim,
                 uint64_t least_left);
void torch_free(void *torch, const struct replay_request *request);

#endif
