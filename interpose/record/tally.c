/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/tally.h"

#include <stddef.h>
#include <string.h>

enum { EMPTY, WRITING, READY };

static uint64_t hash_of(const void *key) {
  uint64_t hash = 0, word;
  for (size_t i = 0; i < B200_TALLY_KEY_BYTES; i += sizeof word) {
    memcpy(&word, (const char *)key + i, sizeof word);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

/* True when the entry holds `key`, now or by this very call. */
static bool claim(struct b200_tally_entry *entry, const void *key) {
  uint32_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
  if (state == EMPTY && atomic_compare_exchange_strong(&entry->state, &state, WRITING)) {
    memcpy(entry->key, key, B200_TALLY_KEY_BYTES);
    atomic_store_explicit(&entry->state, READY, memory_order_release);
    return true;
  }
  while (state != READY) /* a few stores of another thread */
    state = atomic_load_explicit(&entry->state, memory_order_acquire);
  return memcmp(entry->key, key, B200_TALLY_KEY_BYTES) == 0;
}

void b200_tally_add(struct b200_tally *tally, const void *key, uint64_t amount) {
  uint64_t hash = hash_of(key);
  for (size_t i = 0; i < B200_TALLY_ENTRIES; i++) {
    struct b200_tally_entry *entry = &tally->entries[(hash + i) % B200_TALLY_ENTRIES];
    if (!claim(entry, key))
      continue;
    atomic_fetch_add_explicit(&entry->amount, amount, memory_order_relaxed);
    atomic_fetch_add_explicit(&entry->calls, 1, memory_order_release);
    return;
  }
  atomic_fetch_add_explicit(&tally->overflow, 1, memory_order_relaxed);
}

void b200_tally_flush(struct b200_tally *tally, b200_tally_visit visit, void *context) {
  for (size_t i = 0; i < B200_TALLY_ENTRIES; i++) {
    struct b200_tally_entry *entry = &tally->entries[i];
    if (atomic_load_explicit(&entry->state, memory_order_acquire) != READY)
      continue;
    uint64_t calls = atomic_load_explicit(&entry->calls, memory_order_acquire);
    if (calls == entry->calls_flushed)
      continue;
    uint64_t amount = atomic_load_explicit(&entry->amount, memory_order_relaxed);
    if (!visit(context, entry->key, calls - entry->calls_flushed, amount - entry->amount_flushed))
      continue;
    entry->calls_flushed = calls;
    entry->amount_flushed = amount;
  }
}

void b200_tally_each(struct b200_tally *tally, void (*visit)(void *context, const void *key), void *context) {
  for (size_t i = 0; i < B200_TALLY_ENTRIES; i++)
    if (atomic_load_explicit(&tally->entries[i].state, memory_order_acquire) == READY)
      visit(context, tally->entries[i].key);
}
