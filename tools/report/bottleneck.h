/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the report that names what limits the job (KEYS.md: `bottleneck`). Ownership as in model.h. */
#ifndef B200_REPORT_BOTTLENECK_H
#define B200_REPORT_BOTTLENECK_H

#include "interpose/record/reader.h"
#include "policy/bottleneck.h"
#include "tools/report/print.h"

/* What the logs of one run, one per process, say of its steady steps. */
void report_evidence(const struct b200_log *const *logs, size_t count, struct b200_evidence *out);

/* The verdict on it. null when there is no log of the library. */
json_t *report_bottleneck(const struct b200_log *const *logs, size_t count);

/* Its lines in the text: the verdict, the numbers it rests on, what to try. */
void report_print_bottleneck(const struct report_text *text, const json_t *bottleneck);

#endif
