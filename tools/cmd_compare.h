/* SPDX-License-Identifier: Apache-2.0 */
/* What `compare` and `ab` share: the options of a comparison, and carrying it out. Functions that find something wrong end
   the process with a message. */
#ifndef B200_TOOLS_CMD_COMPARE_H
#define B200_TOOLS_CMD_COMPARE_H

#include "tools/compare/compare.h"

#include <argp.h>

/* Wrong arguments. B200_EXIT_USAGE, which other verbs have, is a verdict here: INCONCLUSIVE. */
#define COMPARE_EXIT_USAGE 64
#define COMPARE_EXIT_INVALID 3 /* as the verdict: nothing can be said */

/* What is asked for; input of compare_options. */
struct compare_request {
  const char *verb; /* for messages */
  struct compare_settings settings;
  const char *json, *html;
  const char *tags[2]; /* of the baseline and the candidate; one alone is of both */
  const char **aa;
  size_t aa_count;
  bool lenient; /* an arm that cannot be read makes the verdict INVALID, and does not end the process without one */
};

/* NANs where nothing is told. */
struct compare_request compare_request_new(const char *verb);

/* --margin, --floor, --aa, --price-per-hour, --json, --html, --tag, and those of cmd_common. For argp's `children`; their
   input is a struct compare_request. */
extern const struct argp_child compare_options[];

/* Ends the process unless the A/A arms can be read and the outputs written: for those who run for hours before. */
void compare_request_check(const struct compare_request *request);

/* Reads both arms, compares, writes what was asked for and the text on stdout. Returns the exit status. */
int compare_carry_out(const struct compare_request *request, const char *const paths[2], const char *const names[2],
                      const struct compare_failure *failures, size_t failure_count);

#endif
