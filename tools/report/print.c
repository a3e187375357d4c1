/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 100

const char *report_string(const json_t *row, const char *name) {
  const char *value = json_string_value(json_object_get(row, name));
  return value ? value : "";
}

double report_real(const json_t *row, const char *name) {
  const json_t *value = json_object_get(row, name);
  return json_is_string(value) ? strtod(json_string_value(value), NULL) : json_number_value(value);
}

struct report_value report_grouped(int64_t number_) {
  struct report_value value;
  char digits[24];
  size_t used = 0;
  int length = snprintf(digits, sizeof(digits), "%" PRId64, number_);
  for (int i = 0; i < length; i++) {
    if (i && digits[i - 1] != '-' && (length - i) % 3 == 0)
      value.text[used++] = ',';
    value.text[used++] = digits[i];
  }
  value.text[used] = '\0';
  return value;
}

static struct report_value scaled(double amount, double base, const char *const *units) {
  struct report_value value;
  while (fabs(amount) >= base && units[1]) {
    amount /= base;
    units++;
  }
  snprintf(value.text, sizeof(value.text), amount == floor(amount) && amount < 1e4 ? "%.0f %s" : "%.2f %s", amount, *units);
  return value;
}

struct report_value report_bytes(int64_t amount) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};
  return scaled((double)amount, 1024, units);
}

struct report_value report_flops(int64_t amount) {
  static const char *const units[] = {"", "k", "M", "G", "T", "P", "E", NULL};
  return scaled((double)amount, 1000, units);
}

struct report_value report_seconds(double amount) {
  struct report_value value;
  snprintf(value.text, sizeof(value.text), amount < 1 ? "%.1f ms" : "%.3f s", amount < 1 ? amount * 1e3 : amount);
  return value;
}

void report_heading(const struct report_text *text, const char *title) {
  fprintf(text->out, "\n%s%s%s\n", text->colour ? "\033[1m" : "", title, text->colour ? "\033[0m" : "");
}

void report_line(const struct report_text *text, const char *label, const char *value) {
  int column = fprintf(text->out, "%-9s ", label);
  const int start = column;
  while (*value) {
    int word = (int)strcspn(value, " ");
    int piece = word < COLUMNS - start ? word : COLUMNS - start;
    if (column > start && column + 1 + word > COLUMNS) {
      fprintf(text->out, "\n%*s", start, "");
      column = start;
    }
    column += fprintf(text->out, "%s%.*s", column > start ? " " : "", piece, value);
    value += piece;
    value += strspn(value, " ");
  }
  fputc('\n', text->out);
}

void report_table_line(const struct report_text *text, const char *format, ...) {
  char cut[COLUMNS + 1];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(cut, sizeof(cut), format, arguments);
  va_end(arguments);
  if (length > COLUMNS)
    strcpy(cut + COLUMNS - 3, "...");
  fprintf(text->out, "%s\n", cut);
}
