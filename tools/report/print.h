/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the report's text are printed with: values of rows, amounts with their units, lines within the width.
   pre: every text is ASCII (report_print() sees to it). */
#ifndef B200_REPORT_PRINT_H
#define B200_REPORT_PRINT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/report/rows.h"

struct report_text {
  FILE *out;
  bool colour;
};

/* A value as text, in a caller's buffer. */
struct report_value {
  char text[40];
};

/* Of a row: "" or 0 when there is no such value. */
const char *report_string(const json_t *row, const char *name);
double report_real(const json_t *row, const char *name);

struct report_value report_grouped(int64_t number); /* 1234567 as 1,234,567 */
struct report_value report_bytes(int64_t amount);   /* B to TiB */
struct report_value report_flops(int64_t amount);   /* thousands as k, M, G, … */
struct report_value report_seconds(double amount);  /* ms below a second */

void report_heading(const struct report_text *text, const char *title);
/* "label    value", the value wrapped to the width: between words, and within those that are longer. */
void report_line(const struct report_text *text, const char *label, const char *value);
/* One line, cut to the width. */
__attribute__((format(printf, 2, 3))) void report_table_line(const struct report_text *text, const char *format, ...);

#endif
