/* SPDX-License-Identifier: Apache-2.0 */
/* The report as text: ASCII (other characters as '?'), at most 100 columns, colour only on a terminal. */
#ifndef B200_REPORT_TEXT_H
#define B200_REPORT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Prints the whole report of `b200opt report` (see KEYS.md). */
void report_print(FILE *out, const json_t *report, bool colour);

#endif
