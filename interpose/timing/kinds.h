/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of collectives' device times per kind (operation, type, ranks), for `coll_time` lines. The caller gives zeroed memory
 * and serialises the calls; no allocation. Kinds beyond the table are added to the last entry, as other.
 */
#ifndef B200_TIMING_KINDS_H
#define B200_TIMING_KINDS_H

#include <stdbool.h>
#include <stdint.h>

enum { B200_KINDS_MAX = 128 };

struct b200_kind {
  uint8_t op, dtype;
  int32_t nranks;
  uint64_t calls, bytes, dur_ns, blocked_ns, queued_ns;
};

struct b200_kinds {
  struct b200_kind kinds[B200_KINDS_MAX];
  unsigned count;
};

void b200_kinds_add(struct b200_kinds *kinds, const struct b200_kind *more);

/* Calls `visit` for each kind that was added to; what it takes (true) begins again from 0. */
void b200_kinds_flush(struct b200_kinds *kinds, bool (*visit)(void *context, const struct b200_kind *kind), void *context);

#endif
