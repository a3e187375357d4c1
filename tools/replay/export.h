/* SPDX-License-Identifier: Apache-2.0 */
/* For the verbs that read a recorded allocation stream. Errors end the process with a message that begins with the verb. */
#ifndef B200_REPLAY_EXPORT_H
#define B200_REPLAY_EXPORT_H

#include <stdio.h>

#include "interpose/record/reader.h"

/* The log of `run` (NULL: the newest) with a trace: of `rank`, or with -1 of the lowest one that has a trace. */
const struct b200_log *replay_choose_log(const char *verb, const char *folder, const char *run, int64_t rank,
                                         const struct b200_logs *logs);

/* The file to write, or NULL for a `path` of NULL. `input`: what is read, which must not be the same file. */
FILE *replay_open_csv(const char *verb, const char *path, const char *input);
void replay_close_csv(const char *verb, FILE *csv, const char *path);

/* The trace of a log in the format of RMM's logging_resource_adaptor. */
void replay_write_csv(const char *verb, const char *path, const struct b200_log *log);

#endif
