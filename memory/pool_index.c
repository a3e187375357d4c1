/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pool_index.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_BLOCKS = 1024, FIRST_SLOTS = 2048, FIRST_BINS = 256 }; /* slots: a power of two */

/* mremap moves page table entries instead of bytes, and leaves what was there as it is when it fails. */
static void *grow(void *old, size_t old_bytes, size_t new_bytes) {
  void *room = old ? mremap(old, old_bytes, new_bytes, MREMAP_MAYMOVE)
                   : mmap(NULL, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return room == MAP_FAILED ? NULL : room;
}

static uint32_t home_of(const struct b200_pool_index *index, uint64_t address) {
  return (uint32_t)((address * 0x9E3779B97F4A7C15u) >> 32) & (index->slot_capacity - 1); /* Fibonacci hashing */
}

static uint32_t slot_of(const struct b200_pool_index *index, uint64_t address) {
  uint32_t i = home_of(index, address);
  while (index->slots[i].block != 0 && index->slots[i].address != address)
    i = (i + 1) & (index->slot_capacity - 1);
  return i;
}

uint32_t b200_pool_index_find(const struct b200_pool_index *index, uint64_t address) {
  return index->slot_capacity == 0 ? 0 : index->slots[slot_of(index, address)].block;
}

static bool make_slots(struct b200_pool_index *index) {
  if ((index->used + 1) * 2 <= index->slot_capacity)
    return true;
  struct b200_pool_index larger = *index;
  larger.slot_capacity = index->slot_capacity ? index->slot_capacity * 2 : FIRST_SLOTS;
  larger.slots = grow(NULL, 0, larger.slot_capacity * sizeof *larger.slots);
  if (!larger.slots)
    return false;
  for (uint32_t i = 0; i < index->slot_capacity; i++)
    if (index->slots[i].block != 0)
      larger.slots[slot_of(&larger, index->slots[i].address)] = index->slots[i];
  if (index->slots)
    munmap(index->slots, index->slot_capacity * sizeof *index->slots);
  *index = larger;
  return true;
}

static bool make_block(struct b200_pool_index *index) {
  if (index->vacant != 0 || index->block_end < index->block_capacity)
    return true;
  uint32_t capacity = index->block_capacity ? index->block_capacity * 2 : FIRST_BLOCKS;
  struct b200_pool_block *blocks = grow(index->blocks, index->block_capacity * sizeof *blocks, capacity * sizeof *blocks);
  if (!blocks)
    return false;
  index->blocks = blocks;
  index->block_capacity = capacity;
  if (index->block_end == 0)
    index->block_end = 1;
  return true;
}

uint32_t b200_pool_index_add(struct b200_pool_index *index, uint64_t address, uint64_t bytes) {
  if (!make_slots(index) || !make_block(index))
    return 0;
  uint32_t block = index->vacant;
  if (block != 0)
    index->vacant = index->blocks[block].newer;
  else
    block = index->block_end++;
  index->blocks[block] = (struct b200_pool_block){.address = address, .bytes = bytes};
  index->slots[slot_of(index, address)] = (struct b200_pool_slot){.address = address, .block = block};
  index->used++;
  return block;
}

/* Entries behind the gap move up unless that would put them before their home: no mark of a deletion stays behind. */
static void close_gap(struct b200_pool_index *index, uint32_t gap) {
  uint32_t mask = index->slot_capacity - 1;
  for (uint32_t i = (gap + 1) & mask; index->slots[i].block != 0; i = (i + 1) & mask) {
    uint32_t home = home_of(index, index->slots[i].address);
    if (((i - home) & mask) >= ((i - gap) & mask)) {
      index->slots[gap] = index->slots[i];
      gap = i;
    }
  }
  index->slots[gap].block = 0;
}

void b200_pool_index_remove(struct b200_pool_index *index, uint32_t block) {
  close_gap(index, slot_of(index, index->blocks[block].address));
  index->blocks[block] = (struct b200_pool_block){.newer = index->vacant};
  index->vacant = block;
  index->used--;
}

/* The first bin of at least `bytes`. */
static uint32_t lower_bound(const struct b200_pool_shelf *shelf, uint64_t bytes) {
  uint32_t low = 0, high = shelf->bin_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (shelf->bins[middle].bytes < bytes)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static bool make_bin(struct b200_pool_shelf *shelf) {
  if (shelf->bin_count < shelf->bin_capacity)
    return true;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < shelf->bin_count; i++)
    if (shelf->bins[i].first != 0)
      shelf->bins[kept++] = shelf->bins[i];
  shelf->bin_count = kept;
  if (shelf->bin_capacity != 0 && kept * 2 <= shelf->bin_capacity)
    return true;
  uint32_t capacity = shelf->bin_capacity ? shelf->bin_capacity * 2 : FIRST_BINS;
  struct b200_pool_bin *bins = grow(shelf->bins, shelf->bin_capacity * sizeof *bins, capacity * sizeof *bins);
  if (!bins)
    return kept < shelf->bin_capacity;
  shelf->bins = bins;
  shelf->bin_capacity = capacity;
  return true;
}

static struct b200_pool_bin *bin_for(struct b200_pool_shelf *shelf, uint64_t bytes) {
  uint32_t at = lower_bound(shelf, bytes);
  if (at < shelf->bin_count && shelf->bins[at].bytes == bytes)
    return &shelf->bins[at];
  if (!make_bin(shelf))
    return NULL;
  at = lower_bound(shelf, bytes); /* empty bins may be gone */
  memmove(&shelf->bins[at + 1], &shelf->bins[at], (shelf->bin_count - at) * sizeof *shelf->bins);
  shelf->bin_count++;
  shelf->bins[at] = (struct b200_pool_bin){.bytes = bytes};
  return &shelf->bins[at];
}

bool b200_pool_shelf_put(struct b200_pool_index *index, struct b200_pool_shelf *shelf, uint32_t number) {
  struct b200_pool_block *block = &index->blocks[number];
  struct b200_pool_bin *bin = bin_for(shelf, block->bytes);
  if (!bin)
    return false;
  block->before = bin->last;
  block->behind = 0;
  *(bin->last ? &index->blocks[bin->last].behind : &bin->first) = number;
  bin->last = number;
  block->older = shelf->newest;
  block->newer = 0;
  *(shelf->newest ? &index->blocks[shelf->newest].newer : &shelf->oldest) = number;
  shelf->newest = number;
  block->idle = block->binned = true;
  return true;
}

void b200_pool_shelf_unbin(struct b200_pool_index *index, struct b200_pool_shelf *shelf, uint32_t number) {
  struct b200_pool_block *block = &index->blocks[number];
  if (!block->binned)
    return;
  struct b200_pool_bin *bin = &shelf->bins[lower_bound(shelf, block->bytes)];
  *(block->before ? &index->blocks[block->before].behind : &bin->first) = block->behind;
  *(block->behind ? &index->blocks[block->behind].before : &bin->last) = block->before;
  block->binned = false;
}

void b200_pool_shelf_take(struct b200_pool_index *index, struct b200_pool_shelf *shelf, uint32_t number) {
  struct b200_pool_block *block = &index->blocks[number];
  b200_pool_shelf_unbin(index, shelf, number);
  *(block->older ? &index->blocks[block->older].newer : &shelf->oldest) = block->newer;
  *(block->newer ? &index->blocks[block->newer].older : &shelf->newest) = block->older;
  block->idle = false;
}

uint32_t b200_pool_shelf_fit(const struct b200_pool_index *index, const struct b200_pool_shelf *shelf, uint64_t bytes,
                             uint64_t most, uint64_t safe, uint32_t *waiting) {
  uint32_t first = 0;
  for (uint32_t i = lower_bound(shelf, bytes); i < shelf->bin_count && shelf->bins[i].bytes <= most; i++) {
    uint32_t block = shelf->bins[i].first;
    if (block == 0)
      continue;
    if (index->blocks[block].stamp < safe) {
      *waiting = 0;
      return block;
    }
    if (first == 0)
      first = block;
  }
  *waiting = first;
  return 0;
}

void b200_pool_shelf_drop(struct b200_pool_shelf *shelf) {
  if (shelf->bins)
    munmap(shelf->bins, shelf->bin_capacity * sizeof *shelf->bins);
  memset(shelf, 0, sizeof *shelf);
}
