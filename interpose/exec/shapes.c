/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/shapes.h"

#include <string.h>
#include <sys/mman.h>

enum { ENTRIES = 2048, ENTRIES_USED_MAX = ENTRIES / 2 }; /* a power of two */

struct b200_shapes {
  uint32_t used;
  struct b200_shape entries[ENTRIES];
};

/* Of what differs between the GEMMs of a job: sizes, types, alignments and flags; the comparison sees all. */
static uint64_t hash_of(const struct b200_shape_key *key) {
  enum { TAIL = offsetof(struct b200_facts, c) };
  uint64_t hash = 1, words[sizeof key->facts.gemm / 8 + (sizeof key->facts - TAIL) / 8];
  memcpy(words, &key->facts.gemm, sizeof key->facts.gemm);
  memcpy((char *)words + sizeof key->facts.gemm, (const char *)&key->facts + TAIL, sizeof key->facts - TAIL);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    hash = (hash ^ words[i]) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash | 1;
}

static void end(struct b200_shape *shape, const struct b200_vendor *vendor) {
  b200_product_end(&shape->guard_reference, vendor);
  b200_product_end(&shape->audit_reference, vendor);
  for (int format = 0; format < B200_FORMAT_COUNT - 1; format++) {
    b200_product_end(&shape->conversions[format].whole, vendor);
    b200_product_end(&shape->conversions[format].last, vendor);
  }
}

static void forget(struct b200_shapes *table, const struct b200_vendor *vendor) {
  for (int i = 0; i < ENTRIES; i++)
    if (table->entries[i].hash)
      end(&table->entries[i], vendor);
  memset(table, 0, sizeof *table);
}

struct b200_shape *b200_shapes_get(struct b200_shapes **table, const struct b200_vendor *vendor,
                                   const struct b200_shape_key *key) {
  uint64_t hash = hash_of(key);
  if (!*table) {
    void *memory = mmap(NULL, sizeof **table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return NULL;
    *table = memory;
  }
  if ((*table)->used > ENTRIES_USED_MAX)
    forget(*table, vendor);
  for (size_t i = hash >> 32;; i++) {
    struct b200_shape *entry = &(*table)->entries[i % ENTRIES];
    if (entry->hash == hash && memcmp(&entry->key, key, sizeof *key) == 0)
      return entry;
    if (entry->hash)
      continue;
    entry->hash = hash;
    entry->key = *key;
    (*table)->used++;
    return entry;
  }
}
