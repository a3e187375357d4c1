/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a small CUDA program once per line of stdin, each time in a child of a process that has never used CUDA, with the
 * line as B200OPT_VNODE_FAULT (- for none), and prints for each what the program wrote and how it ended:
 *
 *   == LINE
 *   what it wrote to stdout
 *   -- stderr
 *   what it wrote to stderr
 *   -- exit 0            or: signal 9
 */
#ifndef VNODE_FAULTS_HARNESS_H
#define VNODE_FAULTS_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program. Goes on after an error, as far as it makes sense, and tells every status. Its result is the exit status. */
int program_run(void);

extern int failures; /* statuses other than 0 */

static inline int called(const char *text, long status) {
  printf("%s -> %ld\n", text, status);
  failures += status != 0;
  return (int)status;
}

/* Makes a call and tells its status. */
#define CALL(call) called(#call, (long)(call))
/* Tells what a call gave by its outputs. */
#define SHOW(...) (void)(printf("  " __VA_ARGS__), putchar('\n'))
#define SHOW_POINTER(pointer) SHOW(#pointer " %s", (pointer) ? "set" : "null")

#endif
