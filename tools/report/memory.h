/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory over the steps, from the step lines' `hbm`: who held how much at the start of each step, on the rank that
 * held most. Keys are documented in tools/report/KEYS.md. Ownership as in model.h.
 */
#ifndef B200_REPORT_MEMORY_H
#define B200_REPORT_MEMORY_H

#include "interpose/record/reader.h"
#include "tools/report/print.h"

/* null when no log has steps with memory in them. */
json_t *report_memory(const struct b200_log *const *logs, size_t count);

void report_print_memory_timeline(const struct report_text *text, const json_t *memory);

#endif
