/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brings finished lines to the log file without making the job wait for the file system: lines go into a ring in memory, and
 * a thread of our own (all signals blocked) writes them at once. A line that finds the ring full, or the log at its bound,
 * is dropped and counted by type; the counts are written as `drop` lines.
 *
 * One writer per process. Thread-safety: b200_writer_put() from any thread, also with other locks held (it takes the
 * innermost lock rank); it never blocks on I/O. b200_writer_close() from one thread.
 */
#ifndef B200_RECORD_WRITER_H
#define B200_RECORD_WRITER_H

#include <stdbool.h>

#include "interpose/record/json.h"

struct b200_writer;

/* Creates `path` (its folder exists), writes `header` to it at once, and starts the thread. NULL with errno when the file or
   the thread is refused. The thread calls `tick`,
   without a lock, after a second and then ever more rarely, every minute at last, so that what is only counted gets into the
   log of a job that is killed. */
struct b200_writer *b200_writer_open(const char *path, uint64_t max_bytes, void (*tick)(void),
                                     const struct b200_line *header);

void b200_writer_put(struct b200_writer *writer, const struct b200_line *line);

/* Writes what is left and stops, within a second: a file system that hangs must not hang the job's exit. Nothing is freed:
   another thread may be in b200_writer_put(). */
void b200_writer_close(struct b200_writer *writer);

/* In a forked child: forgets the parent's lines; the file stays the parent's. */
void b200_writer_abandon(struct b200_writer *writer);

#endif
