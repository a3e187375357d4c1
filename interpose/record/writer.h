/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brings finished lines to the log file without making the job wait for the file system: lines go into a ring in memory, and
 * a thread of our own (all signals blocked) writes them at once. A line that finds the ring full, or the log at its bound,
 * is refused: dropped and counted by type in `drop` lines, unless its content comes again in a later line.
 *
 * The file is ours alone: made with O_EXCL, under a high descriptor, and compared before each write, because a program may
 * close every descriptor and open its own files under the same numbers. A file that is gone or refuses a write gets nothing
 * more, and so has no `end`.
 *
 * One writer per process. Thread-safety: b200_writer_put() from any thread, also with other locks held (it takes the
 * innermost lock rank); it never blocks on I/O. b200_writer_wake() also from a signal handler. The others from one thread.
 */
#ifndef B200_RECORD_WRITER_H
#define B200_RECORD_WRITER_H

#include <stdbool.h>

#include "interpose/record/json.h"

struct b200_writer;

/* Called by the writer's thread, without a lock. */
struct b200_writer_hooks {
  void (*woken)(void); /* after every wake-up, before the ring is written, and once more at the end */
  void (*tick)(void);  /* after a second and then ever more rarely, every minute at last: what is only counted gets into the
                          log of a job that is killed */
  /* After a second, and then each time after so many seconds as it returned; 0: no more. May be NULL. */
  unsigned (*beat)(void);
  void (*lost)(int error); /* once, when the file is closed (EBADF), removed (ENOENT) or refuses. May be NULL. */
};

/* Creates `path` (its folder exists; it does not), starts the thread and waits, for a second at most, until `header` is
   written. NULL with errno when the file or the thread is refused; EEXIST when the file is there. */
struct b200_writer *b200_writer_open(const char *path, uint64_t max_bytes, const struct b200_writer_hooks *hooks,
                                     const struct b200_line *header);

/* False: refused. comes_again: the caller keeps what the line says, for a later one; it is not counted as dropped. */
bool b200_writer_put(struct b200_writer *writer, const struct b200_line *line, bool comes_again);

/* Makes the thread call its hooks and look at the ring. */
void b200_writer_wake(struct b200_writer *writer);

/* The process is ending: opens the reserve below the bound. False when the writer is stuck, as when exit() was called by a
   signal handler in the midst of it. */
bool b200_writer_last_words(struct b200_writer *writer);

/* Writes what is left and stops, within a second: a file system that hangs must not hang the job's exit. Nothing is freed:
   another thread may be in b200_writer_put(). */
void b200_writer_close(struct b200_writer *writer);

/* In a forked child: forgets the parent's lines; the file stays the parent's. */
void b200_writer_abandon(struct b200_writer *writer);

#endif
