/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The happens-before checker. Operations are told to it in the order of their submission, each with a vector clock that
 * knows what is ordered before it; it remembers who last wrote and who since read every byte of the node's memory, and
 * reports accesses that nothing orders. Whether two operations race does not depend on when they ran, so one run finds what
 * its submissions contain.
 *
 * Vocabulary
 *   lane     a sequence of operations that are ordered among themselves: a stream, or a branch of a launched graph.
 *   epoch    the number of an operation in its lane, from 1.
 *   clock    per lane the last epoch that happens before a point: operation (lane l, epoch e) is ordered before it if
 *            clock.at[l] >= e.
 *   report   one line on stderr per pair of operation names and kind of race, with both operations, their lanes and the
 *            range; every race is counted.
 *
 * False reports are worse than missed ones: an operand in more separate pieces than is worth describing is left out, and
 * counted.
 *
 * pre, all functions: the engine's lock is held (single-threaded use). May allocate; without memory the access is left out.
 */
#ifndef VNODE_CORE_RACE_H
#define VNODE_CORE_RACE_H

#include "core.h"

#define VNODE_RACE_LANES 256 /* streams beyond share the last lane: races between them are missed */
#define VNODE_RACE_ROWS 1024 /* an operand in more separate rows is left out */

struct vnode_race_clock {
  uint32_t at[VNODE_RACE_LANES];
};

struct vnode_race_op {
  const char *name;
  int lane;
  uint32_t epoch;
  const struct vnode_race_clock *clock; /* what is ordered before the operation, its lane's predecessors included */
  bool frees;                           /* what it writes is no memory afterwards, as after vnode_race_release */
};

void vnode_race_access(const struct vnode_race_op *op, const struct vnode_access *accesses, size_t count);

/* [base, base + bytes) becomes memory that nobody has touched (a new allocation). */
void vnode_race_fresh(const void *base, size_t bytes);

/* [base, base + bytes) goes away while `clock` is what the host knows to be complete: accesses that are not ordered before
   it are reported. `how`: the function that frees it. Afterwards an access to it is reported as a use after free, until
   vnode_race_fresh. */
void vnode_race_release(const struct vnode_race_clock *clock, const void *base, size_t bytes, const char *how);

/* A finding of the engine itself (a host buffer that changed before its copy ran): said and counted like the others. */
void vnode_race_report(const char *kind, const char *op, const void *base, size_t bytes, const char *what);

uint64_t vnode_race_reports(void);
/* Accesses that were not described, for want of memory or because of their rows: races with them are missed. */
uint64_t vnode_race_left_out(void);
/* How much the checker remembers. */
size_t vnode_race_segments(void);

#endif
