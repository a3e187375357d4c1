/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of device memory, added up over the ranks. Keys are documented in tools/report/KEYS.md. Ownership as in model.h.
 */
#ifndef B200_REPORT_POOL_H
#define B200_REPORT_POOL_H

#include "interpose/record/reader.h"
#include "tools/report/print.h"

/* Sets `pool` of the arm, where a log has one. */
void report_pool(json_t *arm, const struct b200_log *const *logs, size_t count);

/* NULL: prints nothing. */
void report_print_pool(const struct report_text *text, const json_t *pool);

#endif
