/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the report on communication (KEYS.md: `communication`): what collectives cost, as each rank's library timed
 * it, and what only the logs of all ranks together can tell. What the numbers mean is in policy/comm_overlap.h.
 *
 * Ownership as in model.h.
 */
#ifndef B200_REPORT_OVERLAP_H
#define B200_REPORT_OVERLAP_H

#include "interpose/record/reader.h"
#include "tools/report/print.h"

/* An ordinary step: neither the first one nor one before which something else was done. */
bool report_step_is_steady(const struct b200_log_step *step);

/* `modelled`: the device times are the virtual node's. null without logs of the library. */
json_t *report_overlap(const struct b200_log *const *logs, size_t count, bool modelled);

/* Prints it. */
void report_print_overlap(const struct report_text *text, const json_t *communication);

#endif
