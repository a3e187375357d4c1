/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/memory.h"

#include "policy/call.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 12            /* of the timeline */
#define WARM_UP_STEPS 2        /* optimizer state and caches appear in these */
#define PARTS 4                /* into which the other steps are divided to look for growth */
#define STEPS_FOR_GROWTH 12    /* fewer say nothing */
#define PAGE_BYTES (2LL << 20) /* growth of less than this from part to part is none */

static int64_t held(const struct b200_log_step *step) {
  int64_t sum = 0;
  for (int owner = 0; owner < B200_OWNER_COUNT; owner++)
    sum = b200_add(sum, step->hbm[owner]);
  return sum;
}

static int64_t peak_of(const struct b200_log *log) {
  int64_t peak = 0;
  for (size_t i = 0; i < log->step_count; i++)
    if (held(&log->steps[i]) > peak)
      peak = held(&log->steps[i]);
  return peak;
}

/* The log of the rank that held most; NULL: none holds anything. */
static const struct b200_log *largest(const struct b200_log *const *logs, size_t count) {
  const struct b200_log *found = NULL;
  int64_t most = 0;
  for (size_t i = 0; i < count; i++) {
    int64_t peak = peak_of(logs[i]);
    if (peak > most) {
      found = logs[i];
      most = peak;
    }
  }
  return found;
}

enum { USED = B200_OWNER_COUNT }; /* the column after those of the owners: all that is in use on the device */

/* Negative: not known. */
static int64_t value_of(const struct b200_log_step *step, int column) {
  return column == USED ? step->hbm_used : step->hbm[column];
}

/*
 * Growth that never comes back: the steps after the warm-up in four parts, of each the least value. When each part's least
 * is above that of the part before by a page or more, nothing that was freed in between has brought it down again. A cache
 * that fills up stops growing after some parts, and is not meant. Bytes a step, or 0.
 */
static int64_t growth_per_step(const struct b200_log *log, int column) {
  size_t steady = log->step_count - WARM_UP_STEPS, each = steady / PARTS;
  int64_t least[PARTS];
  if (log->step_count < WARM_UP_STEPS + STEPS_FOR_GROWTH)
    return 0;
  for (size_t part = 0; part < PARTS; part++) {
    least[part] = INT64_MAX;
    for (size_t i = 0; i < each; i++) {
      int64_t value = value_of(&log->steps[WARM_UP_STEPS + part * each + i], column);
      if (value < least[part])
        least[part] = value;
    }
    if (least[part] < 0 || (part && least[part] - least[part - 1] < PAGE_BYTES))
      return 0;
  }
  return (least[PARTS - 1] - least[0]) / (int64_t)(each * (PARTS - 1));
}

/* NULL: it never held anything. */
static json_t *column_row(const struct b200_log *log, int column) {
  const struct b200_log_step *first = &log->steps[0], *last = &log->steps[log->step_count - 1], *most = first;
  for (size_t i = 1; i < log->step_count; i++)
    if (value_of(&log->steps[i], column) > value_of(most, column))
      most = &log->steps[i];
  if (value_of(most, column) <= 0)
    return NULL;
  return json_pack("{ss sI sI sI sI sI}", "owner", column == USED ? "used" : b200_owner_names[column], "first_bytes",
                   value_of(first, column), "last_bytes", value_of(last, column), "peak_bytes", value_of(most, column),
                   "peak_step", most->step, "growth_bytes_per_step", growth_per_step(log, column));
}

static json_t *step_row(const struct b200_log_step *step) {
  json_t *row = json_pack("{sI}", "step", step->step), *owners = json_object();
  for (int owner = 0; owner < B200_OWNER_COUNT; owner++)
    if (step->hbm[owner])
      json_object_set_new(owners, b200_owner_names[owner], json_integer(step->hbm[owner]));
  json_object_set_new(row, "held", owners);
  json_object_set_new(row, "used_bytes", step->hbm_used < 0 ? json_null() : json_integer(step->hbm_used));
  return row;
}

/* First, last, and evenly between them. */
static json_t *timeline(const struct b200_log *log) {
  json_t *rows = json_array();
  size_t shown = log->step_count < ROWS_MAX ? log->step_count : ROWS_MAX;
  for (size_t i = 0; i < shown; i++) {
    size_t at = shown == 1 ? 0 : i * (log->step_count - 1) / (shown - 1);
    json_array_append_new(rows, step_row(&log->steps[at]));
  }
  return rows;
}

json_t *report_memory(const struct b200_log *const *logs, size_t count) {
  const struct b200_log *log = largest(logs, count);
  if (!log)
    return json_null();
  json_t *rows = json_array();
  for (int column = 0; column <= USED; column++) {
    json_t *row = column_row(log, column);
    if (row)
      json_array_append_new(rows, row);
  }
  return json_pack("{sI sI so so}", "rank", log->rank, "steps", (json_int_t)log->step_count, "owners", rows, "timeline",
                   timeline(log));
}

/* ---- text */

#define COLUMNS_MAX 6 /* owners side by side */

/* Owners that are in the summary, but for `used`, which is the last column. */
static size_t columns_of(const json_t *rows, const char **names) {
  size_t i, count = 0;
  json_t *row;
  json_array_foreach(rows, i, row) {
    if (strcmp(report_string(row, "owner"), "used") != 0 && count < COLUMNS_MAX)
      names[count++] = report_string(row, "owner");
  }
  return count;
}

static void add_cell(char *line, size_t size, const char *cell) {
  size_t length = strlen(line);
  snprintf(line + length, size - length, " %12s", cell);
}

/* Of rows that say the same one is enough, and the last. */
static bool says_the_same(const json_t *rows, size_t i) {
  const json_t *row = json_array_get(rows, i), *before = i ? json_array_get(rows, i - 1) : NULL;
  return before && i + 1 < json_array_size(rows) &&
         json_equal(json_object_get(row, "held"), json_object_get(before, "held")) &&
         json_equal(json_object_get(row, "used_bytes"), json_object_get(before, "used_bytes"));
}

static void print_timeline(const struct report_text *text, const json_t *memory) {
  const char *names[COLUMNS_MAX];
  char line[128];
  size_t i, count = columns_of(json_object_get(memory, "owners"), names);
  json_t *row;
  snprintf(line, sizeof(line), "  %8s", "step");
  for (size_t column = 0; column < count; column++)
    add_cell(line, sizeof(line), names[column]);
  add_cell(line, sizeof(line), "used");
  report_table_line(text, "%s", line);
  json_array_foreach(json_object_get(memory, "timeline"), i, row) {
    if (says_the_same(json_object_get(memory, "timeline"), i))
      continue;
    snprintf(line, sizeof(line), "  %8lld", (long long)report_number(row, "step"));
    for (size_t column = 0; column < count; column++)
      add_cell(line, sizeof(line), report_bytes(report_number(json_object_get(row, "held"), names[column])).text);
    add_cell(line, sizeof(line),
             json_is_null(json_object_get(row, "used_bytes")) ? "-" : report_bytes(report_number(row, "used_bytes")).text);
    report_table_line(text, "%s", line);
  }
}

static void print_peaks(const struct report_text *text, const json_t *rows) {
  char value[256];
  size_t i;
  json_t *row;
  json_array_foreach(rows, i, row) {
    snprintf(value, sizeof(value), "most %s, at step %lld", report_bytes(report_number(row, "peak_bytes")).text,
             (long long)report_number(row, "peak_step"));
    report_line(text, report_string(row, "owner"), value);
    if (report_number(row, "growth_bytes_per_step") == 0)
      continue;
    snprintf(value, sizeof(value),
             "it grew by %s a step through the whole run and never came back: a leak, or a cache without a bound",
             report_bytes(report_number(row, "growth_bytes_per_step")).text);
    report_line(text, "", value);
  }
}

void report_print_memory_timeline(const struct report_text *text, const json_t *memory) {
  char title[128];
  if (!json_is_object(memory))
    return;
  snprintf(title, sizeof(title), "Device memory over %s steps (rank %lld, at the start of each)",
           report_grouped(report_number(memory, "steps")).text, (long long)report_number(memory, "rank"));
  report_heading(text, title);
  print_timeline(text, memory);
  print_peaks(text, json_object_get(memory, "owners"));
}
