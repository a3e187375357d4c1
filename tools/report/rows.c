/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/rows.h"

#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"

int64_t report_number(const json_t *row, const char *name) {
  return json_integer_value(json_object_get(row, name));
}

void report_add(json_t *row, const char *name, int64_t amount) {
  json_object_set_new(row, name, json_integer(b200_add(report_number(row, name), amount)));
}

int report_by_number(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

static int by_flops(const void *a, const void *b) {
  int64_t left = report_number(*(json_t *const *)a, "flops"), right = report_number(*(json_t *const *)b, "flops");
  return (left < right) - (left > right);
}

json_t *report_sorted_by_flops(json_t *rows) {
  size_t count = json_array_size(rows), i;
  json_t *row, *sorted = json_array();
  const json_t **items = calloc(count + 1, sizeof(*items));
  json_array_foreach(rows, i, row) items[i] = row;
  qsort(items, count, sizeof(*items), by_flops);
  for (i = 0; i < count; i++)
    json_array_append(sorted, (json_t *)items[i]);
  free(items);
  json_decref(rows);
  return sorted;
}

void report_set_shares(json_t *rows, int64_t flops) {
  size_t i;
  json_t *row;
  json_array_foreach(rows, i, row) {
    json_object_set_new(row, "share", json_real(flops ? (double)report_number(row, "flops") / (double)flops : 0));
  }
}

json_t *report_row_with(const json_t *rows, const char *name, const char *text) {
  size_t i;
  json_t *row;
  json_array_foreach(rows, i, row) {
    if (strcmp(json_string_value(json_object_get(row, name)), text) == 0)
      return row;
  }
  return NULL;
}
