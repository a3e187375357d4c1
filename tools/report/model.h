/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report as data: what `b200opt report --json` prints, and what the text is made of. Keys are documented in
 * tools/report/KEYS.md.
 *
 * Ownership: every function returns a new reference. Out of memory gives a report with parts missing (jansson's rule).
 */
#ifndef B200_REPORT_MODEL_H
#define B200_REPORT_MODEL_H

#include "interpose/record/reader.h"

/* Which printed losses to use: those that the library logged, else captured output; or the other way round. */
enum loss_source { LOSS_FROM_LOG_FIRST, LOSS_FROM_OUTPUT_FIRST };

/* The library's logs of one run: `run`, or the newest when NULL. The array is the caller's to free(), the logs are not. */
const struct b200_log **report_logs_of_run(const struct b200_logs *logs, const char *run, size_t *count);

/* What one folder of logs says of one run: `run`, or the newest when NULL. NULL when there is nothing of it. */
json_t *report_arm(const struct b200_logs *logs, const char *run, enum loss_source losses);

/* True when a *.out file of the folder has a loss. */
bool report_has_output(const struct b200_logs *logs);

/* Two arms, or two counts of one arm (`count`: objects with gemm, collectives, hbm), side by side. */
json_t *report_compare(const json_t *against, const json_t *arm);
json_t *report_compare_counts(const json_t *against, const json_t *count);

/* The node's own count beside what the library says was asked of cuBLAS and the rest. null when only one of them counted. */
json_t *report_check_node(const json_t *arm);

#endif
