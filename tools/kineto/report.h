/* SPDX-License-Identifier: Apache-2.0 */
/* `b200opt report --kineto`: traces of PyTorch's profiler. Keys of the JSON are documented in tools/kineto/KEYS.md. */
#ifndef B200_KINETO_REPORT_H
#define B200_KINETO_REPORT_H

#include "tools/kineto/ranks.h"

#include <jansson.h>
#include <stdio.h>

/* What is asked for: the PATH of kineto_ranks_read(), and how it was read. */
struct kineto_question {
  const char *path;
  bool without_last_step;
};

/* A new reference. */
json_t *kineto_json(const struct kineto_question *question, const struct kineto_ranks *ranks);

/* ASCII, at most 100 columns; colour only on a terminal. */
void kineto_print(FILE *out, const struct kineto_question *question, const struct kineto_ranks *ranks, bool colour);

/* Reads, prints, and returns the exit status of the command. */
int kineto_report(const struct kineto_question *question, bool json);

#endif
