/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/ledger.h"

#include <string.h>
#include <sys/mman.h>

enum entry_kind { EMPTY, DELETED, BLOCK, HANDLE, MAPPING };

struct b200_ledger_entry {
  uint64_t key;                  /* address or handle */
  uint64_t bytes;                /* charged (BLOCK, HANDLE) or mapped (MAPPING) */
  uint64_t handle;               /* of a MAPPING */
  uint32_t references, mappings; /* of a HANDLE */
  uint8_t kind, owner;
};

enum { FIRST_CAPACITY = 1024 }; /* entries; a power of two, as every later capacity */

void b200_ledger_init(struct b200_ledger *ledger) {
  memset(ledger, 0, sizeof *ledger);
  pthread_mutex_init(&ledger->lock, NULL);
}

static size_t slot_of(uint64_t key, uint8_t kind, size_t capacity) {
  uint64_t hash = (key ^ ((uint64_t)kind << 56)) * 0x9E3779B97F4A7C15u; /* Fibonacci hashing; addresses are 2 MiB apart */
  return (size_t)(hash >> 32) & (capacity - 1);
}

static struct b200_ledger_entry *find(struct b200_ledger *ledger, uint64_t key, uint8_t kind) {
  if (ledger->capacity == 0)
    return NULL;
  for (size_t i = slot_of(key, kind, ledger->capacity);; i = (i + 1) & (ledger->capacity - 1)) {
    struct b200_ledger_entry *entry = &ledger->entries[i];
    if (entry->kind == EMPTY)
      return NULL;
    if (entry->kind == kind && entry->key == key)
      return entry;
  }
}

static struct b200_ledger_entry *vacant(struct b200_ledger_entry *entries, size_t capacity, uint64_t key, uint8_t kind) {
  size_t i = slot_of(key, kind, capacity);
  while (entries[i].kind > DELETED)
    i = (i + 1) & (capacity - 1);
  return &entries[i];
}

/* At most half full, deleted entries included, so that a search always ends. */
static bool make_room(struct b200_ledger *ledger) {
  if (ledger->used * 2 < ledger->capacity)
    return true;
  size_t live = 0;
  for (size_t i = 0; i < ledger->capacity; i++)
    live += ledger->entries[i].kind > DELETED;
  size_t capacity = ledger->capacity == 0         ? FIRST_CAPACITY
                    : live * 4 > ledger->capacity ? ledger->capacity * 2
                                                  : ledger->capacity;
  struct b200_ledger_entry *entries =
      mmap(NULL, capacity * sizeof *entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (entries == MAP_FAILED)
    return false;
  for (size_t i = 0; i < ledger->capacity; i++) {
    const struct b200_ledger_entry *old = &ledger->entries[i];
    if (old->kind > DELETED)
      *vacant(entries, capacity, old->key, old->kind) = *old;
  }
  if (ledger->entries)
    munmap(ledger->entries, ledger->capacity * sizeof *entries);
  ledger->entries = entries;
  ledger->capacity = capacity;
  ledger->used = live;
  return true;
}

static struct b200_ledger_entry *insert(struct b200_ledger *ledger, uint64_t key, uint8_t kind) {
  if (!make_room(ledger)) {
    ledger->untracked++;
    return NULL;
  }
  struct b200_ledger_entry *entry = vacant(ledger->entries, ledger->capacity, key, kind);
  ledger->used += entry->kind == EMPTY;
  *entry = (struct b200_ledger_entry){.key = key, .kind = kind};
  return entry;
}

static void charge(struct b200_ledger *ledger, uint8_t owner, uint64_t bytes) {
  struct b200_ledger_owner *account = &ledger->owners[owner];
  account->allocs++;
  account->current_bytes += bytes;
  if (account->current_bytes > account->peak_bytes)
    account->peak_bytes = account->current_bytes;
}

static void discharge(struct b200_ledger *ledger, struct b200_ledger_entry *entry) {
  struct b200_ledger_owner *account = &ledger->owners[entry->owner];
  account->frees++;
  account->current_bytes -= entry->bytes;
  entry->kind = DELETED;
}

void b200_ledger_alloc(struct b200_ledger *ledger, enum b200_owner owner, uint64_t address, uint64_t bytes) {
  pthread_mutex_lock(&ledger->lock);
  struct b200_ledger_entry *entry = find(ledger, address, BLOCK);
  if (entry)
    discharge(ledger, entry); /* its free was not seen: the driver would not hand out a live address */
  entry = insert(ledger, address, BLOCK);
  if (entry) {
    entry->bytes = bytes;
    entry->owner = (uint8_t)owner;
    charge(ledger, entry->owner, bytes);
  }
  pthread_mutex_unlock(&ledger->lock);
}

static void remember(struct b200_ledger_undo *undo, const struct b200_ledger_entry *entry) {
  *undo = (struct b200_ledger_undo){.found = entry != NULL};
  if (!entry)
    return;
  undo->key = entry->key;
  undo->bytes = entry->bytes;
  undo->references = entry->references;
  undo->mappings = entry->mappings;
  undo->kind = entry->kind;
  undo->owner = entry->owner;
}

void b200_ledger_put_back(struct b200_ledger *ledger, const struct b200_ledger_undo *undo) {
  pthread_mutex_lock(&ledger->lock);
  struct b200_ledger_entry *entry = undo->found ? find(ledger, undo->key, undo->kind) : NULL;
  if (entry) {
    entry->references++; /* a handle that others still hold */
  } else if (undo->found && (entry = insert(ledger, undo->key, undo->kind)) != NULL) {
    entry->bytes = undo->bytes;
    entry->references = undo->references;
    entry->mappings = undo->mappings;
    entry->owner = undo->owner;
    ledger->owners[undo->owner].current_bytes += undo->bytes;
    ledger->owners[undo->owner].frees--;
  }
  pthread_mutex_unlock(&ledger->lock);
}

void b200_ledger_free(struct b200_ledger *ledger, uint64_t address, struct b200_ledger_undo *undo) {
  pthread_mutex_lock(&ledger->lock);
  struct b200_ledger_entry *entry = find(ledger, address, BLOCK);
  remember(undo, entry);
  if (entry)
    discharge(ledger, entry);
  else
    ledger->unknown_frees++;
  pthread_mutex_unlock(&ledger->lock);
}

void b200_ledger_refused(struct b200_ledger *ledger, enum b200_owner owner) {
  pthread_mutex_lock(&ledger->lock);
  ledger->owners[owner].failed++;
  pthread_mutex_unlock(&ledger->lock);
}

void b200_ledger_handle_add(struct b200_ledger *ledger, enum b200_owner owner, uint64_t handle, uint64_t bytes) {
  pthread_mutex_lock(&ledger->lock);
  struct b200_ledger_entry *entry = find(ledger, handle, HANDLE);
  if (!entry) {
    entry = insert(ledger, handle, HANDLE);
    if (entry) {
      entry->bytes = bytes;
      entry->owner = (uint8_t)owner;
      charge(ledger, entry->owner, bytes);
    }
  }
  if (entry)
    entry->references++;
  pthread_mutex_unlock(&ledger->lock);
}

static void drop_handle_if_gone(struct b200_ledger *ledger, struct b200_ledger_entry *entry) {
  if (entry->references == 0 && entry->mappings == 0)
    discharge(ledger, entry);
}

void b200_ledger_handle_release(struct b200_ledger *ledger, uint64_t handle, struct b200_ledger_undo *undo) {
  pthread_mutex_lock(&ledger->lock);
  struct b200_ledger_entry *entry = find(ledger, handle, HANDLE);
  remember(undo, entry);
  if (entry && entry->references > 0) {
    entry->references--;
    drop_handle_if_gone(ledger, entry);
  } else {
    ledger->unknown_frees++;
  }
  pthread_mutex_unlock(&ledger->lock);
}

void b200_ledger_map(struct b200_ledger *ledger, uint64_t address, uint64_t bytes, uint64_t handle) {
  pthread_mutex_lock(&ledger->lock);
  /* also of a handle that is not charged here (host memory): one unmap may cover both */
  struct b200_ledger_entry *mapping = insert(ledger, address, MAPPING);
  if (mapping) {
    mapping->bytes = bytes;
    mapping->handle = handle;
  }
  struct b200_ledger_entry *entry = mapping ? find(ledger, handle, HANDLE) : NULL;
  if (entry)
    entry->mappings++;
  pthread_mutex_unlock(&ledger->lock);
}

void b200_ledger_unmap(struct b200_ledger *ledger, uint64_t address, uint64_t bytes) {
  pthread_mutex_lock(&ledger->lock);
  for (uint64_t end = address + bytes; address < end;) {
    struct b200_ledger_entry *mapping = find(ledger, address, MAPPING);
    if (!mapping || mapping->bytes == 0)
      break;
    address += mapping->bytes;
    struct b200_ledger_entry *entry = find(ledger, mapping->handle, HANDLE);
    mapping->kind = DELETED;
    if (entry && entry->mappings > 0) {
      entry->mappings--;
      drop_handle_if_gone(ledger, entry);
    }
  }
  pthread_mutex_unlock(&ledger->lock);
}

void b200_ledger_read(struct b200_ledger *ledger, struct b200_ledger_owner out[B200_OWNER_COUNT]) {
  pthread_mutex_lock(&ledger->lock);
  memcpy(out, ledger->owners, sizeof ledger->owners);
  pthread_mutex_unlock(&ledger->lock);
}
