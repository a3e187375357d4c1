/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts calls and an amount (FLOPs, bytes) per key, for the aggregated lines of the log.
 *
 * A fixed table without locks: b200_tally_add() may be called from any thread at any time; b200_tally_flush() from one
 * thread at a time. A key that finds the table full is counted in `overflow`. Nothing is ever removed. Zeroed memory is an
 * empty tally.
 */
#ifndef B200_RECORD_TALLY_H
#define B200_RECORD_TALLY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define B200_TALLY_KEY_BYTES 64
#define B200_TALLY_ENTRIES 1024 /* a power of two */

struct b200_tally_entry {
  _Atomic uint32_t state; /* empty, being written, ready */
  unsigned char key[B200_TALLY_KEY_BYTES];
  _Atomic uint64_t calls, amount;
  uint64_t calls_flushed, amount_flushed;
};

struct b200_tally {
  struct b200_tally_entry entries[B200_TALLY_ENTRIES];
  _Atomic uint64_t overflow;
};

/* key: B200_TALLY_KEY_BYTES, every byte set. */
void b200_tally_add(struct b200_tally *tally, const void *key, uint64_t amount);

/* Calls `visit` for each key that was added to since it was last taken, with what was added. Taken when `visit` says true.
 */
typedef bool (*b200_tally_visit)(void *context, const void *key, uint64_t calls, uint64_t amount);
void b200_tally_flush(struct b200_tally *tally, b200_tally_visit visit, void *context);

/* Calls `visit` for each key. From any thread. */
void b200_tally_each(struct b200_tally *tally, void (*visit)(void *context, const void *key), void *context);

#endif
