/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay found, as text or JSON (KEYS.md). */
#ifndef B200_REPLAY_REPORT_H
#define B200_REPLAY_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "interpose/record/reader.h"
#include "tools/replay/replay.h"

struct replay_report {
  const char *path;
  const struct b200_log *log; /* NULL: a log of RMM */
  uint64_t limit;             /* as in struct replay_book */
  const struct replay_policy *const *policies;
  size_t policy_count;
  const struct replay *replay;
  char **notes;
  size_t note_count;
};

/* The log's ledger and the replayed events say the same of every owner. */
enum replay_check { REPLAY_EQUAL, REPLAY_DIFFERENT, REPLAY_NOT_COMPARED };
/* REPLAY_NOT_COMPARED: of RMM, or not a whole log. `*owner` gets the first that differs. */
enum replay_check replay_check(const struct replay_report *report, const char **owner);

void replay_report_text(FILE *out, const struct replay_report *report, bool colour);
/* A new reference. */
json_t *replay_report_json(const struct replay_report *report);

#endif
