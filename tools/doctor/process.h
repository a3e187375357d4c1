/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A running process as /proc shows it: command line, environment at its start, mapped files.
 * Ownership: process_free() frees everything inside. Nothing is sent to the process.
 */
#ifndef B200_DOCTOR_PROCESS_H
#define B200_DOCTOR_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process_file {
  char *path;
  uint64_t start, end, offset; /* of the first mapping; end of the last */
};

struct process {
  pid_t pid;
  pid_t thread;          /* one that still runs: the first may have ended before the others */
  int64_t start_unix_ns; /* on CLOCK_REALTIME; 0 when unknown */
  char *command;         /* words separated by blanks */
  char **environment;    /* ended by NULL */
  char *environment_text;
  struct process_file *files; /* by address */
  size_t file_count;
};

/* Returns 0 or an errno (ESRCH without such a process, EACCES for another user's). `out` is empty after an error. */
int process_read(pid_t pid, struct process *out);

/* True when the thread has ended, even if its id is still taken. */
bool process_thread_ended(pid_t pid, pid_t thread);
void process_free(struct process *process);

/* Value in the process's environment; NULL when unset. */
const char *process_getenv(const struct process *process, const char *name);

/* The first mapped file behind `after` (NULL: of all) whose name starts with `name` and goes on with ".so", a version, or
   nothing; NULL when there is none. */
const struct process_file *process_find_file(const struct process *process, const char *name,
                                             const struct process_file *after);

/* The mapped file that holds `address`, or NULL. */
const struct process_file *process_file_at(const struct process *process, uint64_t address);

#endif
