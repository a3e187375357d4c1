/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the race checker's tests and its benchmark share: a node of lanes with vector clocks, as the engine keeps them, and
 * what the checker says instead of stderr. Compiled with core/race.c; nothing else of the node is there.
 */
#ifndef RACE_DOUBLE_H
#define RACE_DOUBLE_H

#include <stdint.h>

#include "tools/vnode/core/race.h"

enum { LANES = 8 }; /* of the double; the last is the host: what it has waited for */

/* An operation of `lane`, and its number there. Accesses follow, up to one whose row_bytes is 0. */
uint32_t lane_runs(int lane, const char *name, const struct vnode_access *accesses);
/* What `lane` submits from now on is ordered after all that `other` has submitted (an event). */
void lane_waits(int lane, int other);
void lane_waits_for_number(int lane, int other, uint32_t number); /* and for nothing more */
bool lane_is_ordered(int lane, int other, uint32_t number);
const struct vnode_race_clock *lane_clock(int lane);

/* Lines that were said since the last call, "" when none. */
const char *said(void);

static inline struct vnode_access reads(uintptr_t at, size_t bytes) {
  return (struct vnode_access){.at = (const void *)at, .row_bytes = bytes, .rows = 1};
}

static inline struct vnode_access writes(uintptr_t at, size_t bytes) {
  return (struct vnode_access){.at = (const void *)at, .row_bytes = bytes, .rows = 1, .write = true};
}

/* One operation with one access. */
static inline uint32_t lane_touches(int lane, const char *name, struct vnode_access access) {
  return lane_runs(lane, name, (struct vnode_access[]){access, {.row_bytes = 0}});
}

#endif
