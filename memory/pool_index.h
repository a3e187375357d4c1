/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the pool: blocks by address (a hash table), and idle blocks by size and by age (a shelf for each context).
 *
 * Blocks are named by a number > 0 that stays the same until the block is removed; pointers to them do not survive
 * b200_pool_index_add(). On a shelf, blocks of one size are a bin, first in first out; bins lie in an array that is sorted
 * by size. Bins stay when they are empty (sizes come again) until the array is full.
 *
 * Not thread-safe: the pool locks. Memory by mmap; that of a shelf is given back when it is dropped, blocks and slots stay
 * for the life of the process.
 */
#ifndef B200_MEMORY_POOL_INDEX_H
#define B200_MEMORY_POOL_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct b200_pool_block {
  uint64_t address, bytes;
  uint64_t stamp;          /* of an idle block */
  uint32_t older, newer;   /* on the shelf by age; `newer` chains vacant blocks */
  uint32_t before, behind; /* in its bin */
  uint32_t registrations;
  uint8_t context;
  bool idle, binned, pinned;
};

struct b200_pool_slot {
  uint64_t address;
  uint32_t block; /* 0: empty */
};

struct b200_pool_index {
  struct b200_pool_block *blocks; /* [0] is nobody */
  struct b200_pool_slot *slots;   /* at most half full */
  uint32_t block_capacity, block_end, vacant;
  uint32_t slot_capacity, used;
};

struct b200_pool_bin {
  uint64_t bytes;
  uint32_t first, last;
};

struct b200_pool_shelf {
  struct b200_pool_bin *bins;
  uint32_t bin_capacity, bin_count;
  uint32_t oldest, newest;
};

/* The block that begins at the address; 0: none. */
uint32_t b200_pool_index_find(const struct b200_pool_index *index, uint64_t address);
/* A new block, zeroed but for its address and bytes; 0: no memory. pre: no block begins there. */
uint32_t b200_pool_index_add(struct b200_pool_index *index, uint64_t address, uint64_t bytes);
/* pre: on no shelf */
void b200_pool_index_remove(struct b200_pool_index *index, uint32_t block);

/* Puts a block on the shelf as its newest. False: no memory, nothing is changed. */
bool b200_pool_shelf_put(struct b200_pool_index *index, struct b200_pool_shelf *shelf, uint32_t block);
/* Takes it out of its bin: it will not be found by size any more. */
void b200_pool_shelf_unbin(struct b200_pool_index *index, struct b200_pool_shelf *shelf, uint32_t block);
void b200_pool_shelf_take(struct b200_pool_index *index, struct b200_pool_shelf *shelf, uint32_t block);
/* The first of the smallest bin between `bytes` and `most` whose stamp is below `safe`; 0: none. *waiting: the first of the
   smallest bin in these bounds, when there is any block but none is safe; else 0. */
uint32_t b200_pool_shelf_fit(const struct b200_pool_index *index, const struct b200_pool_shelf *shelf, uint64_t bytes,
                             uint64_t most, uint64_t safe, uint32_t *waiting);
void b200_pool_shelf_drop(struct b200_pool_shelf *shelf);

#endif
