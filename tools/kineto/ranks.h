/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The traces of a job, summed up one after the other: only one is in memory at a time. Memory belongs to the struct until
 * kineto_ranks_free(). Ends the process when memory runs out. Not thread-safe, no global state.
 */
#ifndef B200_KINETO_RANKS_H
#define B200_KINETO_RANKS_H

#include "tools/kineto/overlap.h"

struct kineto_step_times {
  int64_t number;
  struct kineto_times times;
};

struct kineto_rank {
  char *file;          /* name in the folder, ASCII */
  int64_t rank, world; /* -1: not said */
  bool partial;
  uint64_t events, outside_steps; /* the second: GPU operations that no step asked for */
  struct kineto_times times;
  unsigned kind_count;
  char kind_names[KINETO_KINDS_MAX][sizeof(((struct kineto_trace *)0)->kinds[0])];
  struct kineto_kind kinds[KINETO_KINDS_MAX];
  struct kineto_step_times *steps; /* those with GPU operations, in order */
  size_t step_count;
};

struct kineto_ranks {
  struct kineto_rank *rows; /* by rank, then by file */
  size_t count;
  char **notes; /* ASCII, what a reader should know */
  size_t note_count;
};

/* Reads PATH: a trace, or a folder with *.json and *.json.gz; what in it is no trace becomes a note. `without_last_step` as
   in kineto_without_last_step(). 0 or an errno. */
int kineto_ranks_read(const char *path, bool without_last_step, struct kineto_ranks *ranks);

void kineto_ranks_free(struct kineto_ranks *ranks);

#endif
