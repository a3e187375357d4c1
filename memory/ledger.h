/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds how much device memory: every allocation that the driver granted to this process, by owner.
 *
 * What is charged: plain, pitched, managed and stream-ordered allocations from the grant to the free, by the bytes that were
 * asked for; a physical handle of the virtual memory API (cuMemCreate) from its creation until its last reference and its
 * last mapping are gone. Memory imported from another process is charged there, not here.
 *
 * Ownership: the ledger keeps keys (addresses, handles), never memory. Thread-safety: every function may be called from any
 * thread; one mutex, held for the table work only. Nothing calls a vendor; the table grows by mmap, and when that fails
 * the allocation is counted in `untracked` instead. State is one struct, given by the caller and zeroed at first.
 */
#ifndef B200_MEMORY_LEDGER_H
#define B200_MEMORY_LEDGER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/call.h"

struct b200_ledger_owner {
  uint64_t current_bytes, peak_bytes;
  uint64_t allocs, frees, failed;
};

struct b200_ledger_entry;

struct b200_ledger {
  pthread_mutex_t lock;
  struct b200_ledger_owner owners[B200_OWNER_COUNT];
  _Atomic uint64_t untracked; /* allocations that found no room in the table */
  uint64_t unknown_frees;     /* frees of what was never seen: allocated before the library was live */
  struct b200_ledger_entry *entries;
  size_t capacity, used;
};

void b200_ledger_init(struct b200_ledger *ledger);

/* What a free or a release has taken out, to put it back when the driver refuses. Bookkeeping comes before the driver's
   call: once that has returned, another thread may own the same address or handle. */
struct b200_ledger_undo {
  uint64_t key, bytes;
  uint32_t references, mappings;
  uint8_t kind, owner;
  bool found;
};

void b200_ledger_alloc(struct b200_ledger *ledger, enum b200_owner owner, uint64_t address, uint64_t bytes);
void b200_ledger_free(struct b200_ledger *ledger, uint64_t address, struct b200_ledger_undo *undo);
void b200_ledger_put_back(struct b200_ledger *ledger, const struct b200_ledger_undo *undo);
/* The driver refused `owner` an allocation. */
void b200_ledger_refused(struct b200_ledger *ledger, enum b200_owner owner);

/* cuMemCreate (bytes > 0), import (bytes 0), retain (handle seen before: one more reference). */
void b200_ledger_handle_add(struct b200_ledger *ledger, enum b200_owner owner, uint64_t handle, uint64_t bytes);
void b200_ledger_handle_release(struct b200_ledger *ledger, uint64_t handle, struct b200_ledger_undo *undo);
void b200_ledger_map(struct b200_ledger *ledger, uint64_t address, uint64_t bytes, uint64_t handle);
/* Unmaps every mapping that lies in the range. */
void b200_ledger_unmap(struct b200_ledger *ledger, uint64_t address, uint64_t bytes);

/* A consistent copy of all owners. */
void b200_ledger_read(struct b200_ledger *ledger, struct b200_ledger_owner out[B200_OWNER_COUNT]);

#endif
