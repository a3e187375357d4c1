/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comparison as data: what `b200opt compare --json` writes, and what the text and the page are made of. Keys are
 * documented in KEYS.md.
 *
 * Ownership: every function returns a new reference. Ends the process with a message when memory runs out, as the reader
 * does.
 */
#ifndef B200_COMPARE_COMPARE_H
#define B200_COMPARE_COMPARE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "tools/compare/run.h"

struct compare_settings {
  double margin_percent; /* NAN: the default of what was run */
  double floor_percent;  /* NAN: of the A/A arms, or assumed */
  double price_per_hour; /* of the whole job; NAN: no costs */
  const struct compare_arm *aa;
  size_t aa_count; /* arms of runs that are meant to be equal: each run against the arm's first is an A/A pair */
};

/* What was asked of a run and did not come back. */
struct compare_failure {
  const char *side, *run; /* "baseline", "candidate"; name of the run */
  const char *status;     /* "exit status 1", "signal 9 (Killed)" */
};

/* Compares. `names` are what the two arms are called. Runs that failed make the verdict INVALID, whatever the rest says. */
json_t *compare_make(const struct compare_arm *const arms[2], const char *const names[2],
                     const struct compare_settings *settings, const struct compare_failure *failures, size_t failure_count);

/* Exit status of the verdict: design order 0 to 4. */
int compare_exit(const json_t *comparison);

/* At most 100 columns of ASCII. */
void compare_print(FILE *out, const json_t *comparison, bool colour);

/* One self-contained page. */
void compare_write_page(FILE *out, const json_t *comparison);

#endif
