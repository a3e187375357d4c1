/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/timing/comms.h"

uint64_t b200_comms_hash(uint64_t seed, const void *bytes, size_t count) {
  uint64_t hash = seed ^ UINT64_C(14695981039346656037); /* FNV-1a */
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
  return hash ? hash : 1;
}

static size_t home_of(const void *handle) {
  return (size_t)(((uintptr_t)handle >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 40) % B200_COMMS_MAX;
}

/* The entry with this handle, or NULL. Few are ever removed, so that a whole round costs little. */
static struct b200_comm *lookup(struct b200_comms *comms, const void *handle) {
  size_t at = home_of(handle);
  for (size_t i = 0; i < B200_COMMS_MAX; i++, at = (at + 1) % B200_COMMS_MAX)
    if (comms->comms[at].handle == handle)
      return &comms->comms[at];
  return NULL;
}

void b200_comms_add(struct b200_comms *comms, const void *handle, uint64_t id, uint64_t parent) {
  struct b200_comm *comm = handle ? lookup(comms, handle) : NULL;
  size_t at = home_of(handle);
  for (size_t i = 0; handle && !comm && i < B200_COMMS_MAX; i++, at = (at + 1) % B200_COMMS_MAX)
    comm = comms->comms[at].handle ? NULL : &comms->comms[at];
  if (comm)
    *comm = (struct b200_comm){.handle = handle, .id = id, .parent = parent};
}

uint64_t b200_comms_split(struct b200_comms *comms, const void *parent, const void *key, size_t key_bytes) {
  struct b200_comm *comm = b200_comms_find(comms, parent);
  if (!comm)
    return 0;
  uint64_t number = comm->splits++;
  return comm->id ? b200_comms_hash(b200_comms_hash(comm->id, &number, sizeof number), key, key_bytes) : 0;
}

void b200_comms_remove(struct b200_comms *comms, const void *handle) {
  struct b200_comm *comm = handle ? lookup(comms, handle) : NULL;
  if (comm)
    *comm = (struct b200_comm){0};
}

struct b200_comm *b200_comms_find(struct b200_comms *comms, const void *handle) {
  struct b200_comm *comm = handle ? lookup(comms, handle) : NULL;
  if (comm || !handle)
    return comm;
  b200_comms_add(comms, handle, 0, 0);
  return lookup(comms, handle);
}
