/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of RMM's logging_resource_adaptor (RAPIDS): a header line, then one line for each allocation, free and failure of
 * the memory resource, as RAPIDS' REPLAY_BENCHMARK reads it. Every line that is accepted is printed again as it was.
 *
 * Thread-safe, no state, allocates nothing.
 */
#ifndef B200_REPLAY_RMM_H
#define B200_REPLAY_RMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream"
#define RMM_LINE_MAX 160 /* longest printed line, with its newline and NUL */

enum rmm_action { RMM_ALLOCATE, RMM_FREE, RMM_FAILURE, RMM_ACTION_COUNT };

struct rmm_row {
  uint64_t thread;
  unsigned hours, minutes, seconds, microseconds; /* of the day, local time */
  char point;                                     /* before the microseconds: '.', in RMM before 22.04 ':' */
  enum rmm_action action;
  uint64_t pointer;
  bool nil; /* a null pointer that is written (nil), as glibc does */
  uint64_t size;
  uint64_t stream;
  bool hex; /* the stream is written with 0x */
};

/* Reads a line without its newline. NULL: it is one; else what is wrong with it and what is accepted, in words. */
const char *rmm_row_parse(const char *line, size_t length, struct rmm_row *out);
/* Prints the line, with its newline, into out[RMM_LINE_MAX]. */
void rmm_row_print(const struct rmm_row *row, char *out);

#endif
