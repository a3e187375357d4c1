/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of this process, by names that are the same on all their ranks: a hash of the ncclUniqueId, for a split of
 * the parent's id, the number of its split and the colour. Never the pointer alone, which comes again after a destroy.
 *
 * No lock, no allocation, no vendor call: the caller gives zeroed memory and serialises the calls.
 */
#ifndef B200_TIMING_COMMS_H
#define B200_TIMING_COMMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { B200_COMMS_MAX = 512 };

struct b200_comm {
  const void *handle; /* ncclComm_t; NULL: free */
  uint64_t id;        /* 0: could not be made out */
  uint64_t parent;
  uint64_t operations; /* ordinal of its next operation */
  uint64_t splits;     /* splits and shrinks that it was parent of */
  bool written;
};

struct b200_comms {
  struct b200_comm comms[B200_COMMS_MAX];
};

/* Never 0. */
uint64_t b200_comms_hash(uint64_t seed, const void *bytes, size_t count);

/* A new communicator; takes the place of one with the same handle. Without room it is not known. */
void b200_comms_add(struct b200_comms *comms, const void *handle, uint64_t id, uint64_t parent);

/* ncclCommSplit and ncclCommShrink were called on `parent`: the id of what comes of it for `key`, the bytes that tell its
   results apart (colour; ranks left out). 0 for an unknown parent. */
uint64_t b200_comms_split(struct b200_comms *comms, const void *parent, const void *key, size_t key_bytes);

void b200_comms_remove(struct b200_comms *comms, const void *handle);

/* NULL: not known, and there is no room to remember it. One whose making was not seen is added with id 0. */
struct b200_comm *b200_comms_find(struct b200_comms *comms, const void *handle);

#endif
