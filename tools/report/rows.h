/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the report's tables: JSON objects in an array. Ownership as in model.h. */
#ifndef B200_REPORT_ROWS_H
#define B200_REPORT_ROWS_H

#include <jansson.h>
#include <stdint.h>

/* 0 when there is no such number. */
int64_t report_number(const json_t *row, const char *name);
/* Adds without overflow; a number that is not there counts as 0. */
void report_add(json_t *row, const char *name, int64_t amount);
/* Most FLOPs first. Takes over `rows`. */
json_t *report_sorted_by_flops(json_t *rows);
/* `share` of each row: its FLOPs of all `flops`; 0 of none. */
void report_set_shares(json_t *rows, int64_t flops);
/* For qsort() and bsearch(): arrays of int64_t, smallest first. */
int report_by_number(const void *a, const void *b);
/* The first row whose `name` is this text, or NULL. Borrowed. pre: all rows have that text. */
json_t *report_row_with(const json_t *rows, const char *name, const char *text);

#endif
