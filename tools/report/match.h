/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same collective in the logs of several ranks: operations with equal communicator id and ordinal.
 *
 * Left out: point-to-point calls, whose ordinals need not agree, and what only one log has. Logs may differ in which
 * operations they kept (each keeps those of its own slow steps).
 *
 * Ownership: borrows from the logs, which must outlive it.
 */
#ifndef B200_REPORT_MATCH_H
#define B200_REPORT_MATCH_H

#include "interpose/record/reader.h"

/* One rank's part in a collective. */
struct report_part {
  const struct b200_log_op *op;
  int64_t seq;
  uint32_t comm; /* place in report_match.comms */
  uint32_t log;  /* place in the logs that were matched */
};

struct report_comm {
  const char *id;
  int64_t nranks;
  size_t logs;        /* that know this communicator */
  size_t first, last; /* its groups are [first, last) */
};

/* A collective: the parts [first, last), by log, each of another one. */
struct report_group {
  size_t first, last;
  bool whole; /* every log that knows the communicator has a part */
  bool alike; /* same kind, type and bytes in all of them */
};

struct report_match {
  struct report_part *parts;
  struct report_comm *comms;
  struct report_group *groups;
  size_t part_count, comm_count, group_count;
};

void report_match_make(const struct b200_log *const *logs, size_t count, struct report_match *out);
void report_match_free(struct report_match *match);

/* True for collectives that no rank can leave before all have come: their ends are near-simultaneous. */
bool report_ends_together(const char *op);

#endif
