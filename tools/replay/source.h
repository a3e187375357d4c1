/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where streams come from: a log of the library with `block` lines, or one of RMM. Each is read once, line by line, into a
 * replay, and copied in RMM's format to `csv` where that is not NULL.
 *
 * Lines of RMM that are copied are copied as they are. Of a log, each request becomes an allocation and a free in the one
 * thread `pid`, with times of UTC and stream 0, as REPLAY_BENCHMARK accepts the default stream only; a physical handle gets
 * an address of its own, beyond those that devices have.
 *
 * Allocates; ends the process with a message when memory runs out.
 */
#ifndef B200_REPLAY_SOURCE_H
#define B200_REPLAY_SOURCE_H

#include <stdio.h>

#include "interpose/record/reader.h"
#include "tools/replay/replay.h"

struct replay_reading {
  char *error; /* one line that names file, line and what is accepted; NULL: all was read. The caller's to free() */
  char *note;  /* what was left out; NULL: nothing. The caller's to free() */
};

/* Makes the replay that read() feeds: with what it needs to write `csv`. */
struct replay_source;
struct replay_source *replay_source_rmm(const char *path, FILE *csv);
struct replay_source *replay_source_log(const struct b200_log *log, FILE *csv);
/* The listener that replay_create() wants; NULL: none. */
const struct replay_listener *replay_source_listener(const struct replay_source *source);
struct replay_reading replay_source_read(struct replay_source *source, struct replay *replay);
void replay_source_destroy(struct replay_source *source);

#endif
