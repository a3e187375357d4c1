/* SPDX-License-Identifier: Apache-2.0 */
/* Tables with a header row: RFC 4180's quotes, separated by comma, semicolon or tab. */
#include "tools/compare/sources.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD_BYTES 256 /* longer ones are neither names nor numbers */
#define COLUMN_MAX 4096

static const char *const time_names[] = {"wall time", "wall_time", "walltime", "_timestamp", "timestamp", "elapsed",
                                         "elapsed_s", "time_s",    "_runtime", "time",       NULL};
static const char *const rank_names[] = {"rank", NULL};

struct table {
  const char *at, *end;
  char separator;
};

/* The next field without its quotes and the blanks around it. Returns what ended it: the separator, '\n', or '\0' at the end
   of the data. */
static char next_field(struct table *table, char text[FIELD_BYTES]) {
  size_t used = 0;
  bool quoted = false;
  char ended = '\0';
  while (table->at < table->end) {
    char c = *table->at++;
    if (c == '"') {
      if (quoted && table->at < table->end && *table->at == '"')
        table->at++;
      else {
        quoted = !quoted;
        continue;
      }
    } else if (c == '\n' || (c == table->separator && !quoted)) { /* no name or number goes over a line */
      ended = c;
      break;
    }
    if (used < FIELD_BYTES - 1 && (used || !isspace((unsigned char)c)))
      text[used++] = c >= ' ' && c <= '~' ? c : ' ';
  }
  while (used && text[used - 1] == ' ')
    used--;
  text[used] = '\0';
  return ended;
}

static void skip_line(struct table *table) {
  const char *newline = memchr(table->at, '\n', (size_t)(table->end - table->at));
  table->at = newline ? newline + 1 : table->end;
}

/* Goes to the header: over a byte order mark, comments and empty lines. */
static void find_header(struct table *table) {
  if (table->end - table->at >= 3 && memcmp(table->at, "\xef\xbb\xbf", 3) == 0)
    table->at += 3;
  while (table->at < table->end && strchr("#\r\n", *table->at))
    skip_line(table);
}

static size_t count_of(const char *text, size_t length, char c) {
  size_t count = 0;
  bool quoted = false;
  for (size_t i = 0; i < length; i++) {
    quoted ^= text[i] == '"';
    count += text[i] == c && !quoted;
  }
  return count;
}

static char separator_of(const struct table *table) {
  const char *newline = memchr(table->at, '\n', (size_t)(table->end - table->at));
  size_t length = (size_t)((newline ? newline : table->end) - table->at);
  char best = ',';
  for (const char *c = ";\t"; *c; c++)
    if (count_of(table->at, length, *c) > count_of(table->at, length, best))
      best = *c;
  return best;
}

/* Weights & Biases writes "run name - train/loss". */
static const char *plain_name(const char *field) {
  const char *name = field;
  for (const char *dash; (dash = strstr(name, " - "));)
    name = dash + 3;
  return name;
}

static bool is_number(const char *field) {
  double value;
  const char *end = compare_number(field, false, &value);
  return end && *end == '\0';
}

bool compare_is_csv(const char *start, size_t length) {
  struct table table = {.at = start, .end = start + length};
  char field[FIELD_BYTES], ended;
  size_t columns = 0, cells = 0;
  bool known = false, numbers = false;
  find_header(&table);
  table.separator = separator_of(&table);
  do {
    ended = next_field(&table, field);
    if (field[0] && is_number(field))
      return false;
    known = known || compare_name_place(compare_loss_names, plain_name(field)) >= 0 ||
            compare_name_place(compare_step_names, field) >= 0;
    columns++;
  } while (ended == table.separator);
  if (!known || (columns == 1 && compare_name_place(compare_loss_names, field) < 0))
    return false;
  if (table.at == table.end)
    return true; /* nothing but a header */
  do {
    ended = next_field(&table, field);
    numbers = numbers || is_number(field);
    cells++;
  } while (ended == table.separator);
  return numbers && cells == columns;
}

bool compare_is_table(const char *start, size_t length) {
  struct table table = {.at = start, .end = start + length};
  char field[FIELD_BYTES], ended;
  size_t counts[2] = {0, 0};
  bool numbers = false;
  find_header(&table);
  table.separator = separator_of(&table);
  for (int row = 0; row < 2; row++)
    do {
      ended = next_field(&table, field);
      numbers = numbers || (row == 1 && is_number(field));
      counts[row]++;
    } while (ended == table.separator);
  return counts[0] > 1 && counts[0] == counts[1] && numbers;
}

/* ---- columns */

struct columns {
  char **names;
  size_t count;
  size_t loss, step, norm, rate, time, rank; /* SIZE_MAX: there is none */
};

static void free_columns(struct columns *columns) {
  for (size_t i = 0; i < columns->count; i++)
    free(columns->names[i]);
  free(columns->names);
}

/* The column with the best of the names. */
static size_t find_column(const struct columns *columns, const char *const *names) {
  size_t best = SIZE_MAX;
  int best_place = 0;
  for (size_t i = 0; i < columns->count; i++) {
    int place = compare_name_place(names, plain_name(columns->names[i]));
    if (place >= 0 && (best == SIZE_MAX || place < best_place)) {
      best = i;
      best_place = place;
    }
  }
  return best;
}

static char *name_list(const struct columns *columns) {
  char *text = b200_format("%s", "");
  for (size_t i = 0; i < columns->count; i++) {
    char *longer = i < 12 ? b200_format("%s%s%s", text, i ? ", " : "", columns->names[i]) : b200_format("%s, ...", text);
    free(text);
    text = longer;
    if (i == 12)
      break;
  }
  return text;
}

static bool read_header(struct table *table, const char *tag, struct columns *columns, char **error) {
  char field[FIELD_BYTES], ended;
  find_header(table);
  table->separator = separator_of(table);
  do {
    ended = next_field(table, field);
    columns->names = b200_grow(columns->names, columns->count, sizeof(*columns->names));
    columns->names[columns->count++] = b200_format("%s", field);
  } while (ended == table->separator && columns->count < COLUMN_MAX);
  columns->step = find_column(columns, compare_step_names);
  columns->norm = find_column(columns, compare_norm_names);
  columns->rate = find_column(columns, compare_rate_names);
  columns->time = find_column(columns, time_names);
  columns->rank = find_column(columns, rank_names);
  columns->loss = tag ? SIZE_MAX : find_column(columns, compare_loss_names);
  for (size_t i = 0; tag && i < columns->count; i++)
    if (strcmp(columns->names[i], tag) == 0 || strcmp(plain_name(columns->names[i]), tag) == 0)
      columns->loss = i;
  if (columns->loss != SIZE_MAX)
    return true;
  bool named = false;
  for (size_t i = 0; i < columns->count; i++)
    named = named || (columns->names[i][0] && !is_number(columns->names[i]));
  if (!named) {
    *error = b200_format("its first row has numbers; names of columns are needed there, such as step,loss");
    return false;
  }
  char *names = name_list(columns);
  *error = tag ? b200_format("no column '%s' (there are: %s)", tag, names)
               : b200_format("no column is known as a loss (there are: %s); name one with --tag", names);
  free(names);
  return false;
}

/* ---- rows */

struct row {
  double loss, step, norm, rate, time, rank; /* NAN: empty or not there */
  bool has_loss, bad;
};

static double cell(const struct table *table, const char *field, bool *given, bool *bad) {
  double value;
  bool comma = table->separator == ';' && !strchr(field, '.');
  *given = field[0] != '\0' && strcmp(field, "-") != 0 && strcasecmp(field, "NA") != 0 && strcasecmp(field, "null") != 0 &&
           strcasecmp(field, "None") != 0;
  if (!*given)
    return (double)NAN;
  const char *end = compare_number(field, comma, &value);
  *bad = *bad || !end || *end != '\0';
  return end ? value : (double)NAN;
}

/* Reads a row; false at the end of the data. `whole`: its line has an end. */
static bool read_row(struct table *table, const struct columns *columns, struct row *row, bool *whole) {
  char field[FIELD_BYTES], ended;
  bool given, ignored = false;
  *row = (struct row){(double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, false, false};
  if (table->at == table->end)
    return false;
  size_t i = 0;
  do {
    ended = next_field(table, field);
    if (i == columns->loss)
      row->loss = cell(table, field, &row->has_loss, &row->bad);
    else if (i == columns->step)
      row->step = cell(table, field, &given, &row->bad);
    else if (i == columns->norm)
      row->norm = cell(table, field, &given, &ignored);
    else if (i == columns->rate)
      row->rate = cell(table, field, &given, &ignored);
    else if (i == columns->time)
      row->time = cell(table, field, &given, &ignored);
    else if (i == columns->rank)
      row->rank = cell(table, field, &given, &ignored);
    i++;
  } while (ended == table->separator);
  *whole = ended == '\n';
  return true;
}

/* Times since the first, where the column rises as a clock does; else it is a duration, or text. */
static void keep_times(struct compare_values *out) {
  double first = out->count ? out->list[0].t_s : (double)NAN, last = first;
  bool rising = isfinite(first);
  for (size_t i = 0; i < out->count && rising; i++) {
    rising = out->list[i].t_s >= last;
    last = out->list[i].t_s;
  }
  rising = rising && isfinite(last) && last > first;
  bool date = first > 1e8; /* since 1970, and not seconds of running */
  double unit = first > 1e11 ? 1e-3 : 1;
  for (size_t i = 0; i < out->count; i++)
    out->list[i].t_s = rising ? (out->list[i].t_s - (date ? first : 0)) * unit : (double)NAN;
  if (rising && date)
    out->unix_s = first * unit;
}

bool compare_decode_csv(const char *data, size_t size, const char *tag, struct compare_values *out, char **error) {
  struct table table = {.at = data, .end = data + size};
  struct columns columns = {.count = 0};
  struct row row;
  size_t bad = 0;
  bool whole = true;
  *out = (struct compare_values){.unix_s = (double)NAN};
  if (!read_header(&table, tag, &columns, error)) {
    free_columns(&columns);
    return false;
  }
  while (read_row(&table, &columns, &row, &whole)) {
    bool has_step = columns.step != SIZE_MAX;
    if (!row.has_loss)
      continue;
    if (!whole) { /* a number may be cut off */
      compare_note(&out->notes, &out->note_count, "the last line has no end and is left out");
      continue;
    }
    if (row.bad || (has_step && !(row.step >= 0 && row.step <= (double)COMPARE_STEP_MAX))) {
      bad++;
      continue;
    }
    out->list = b200_grow(out->list, out->count, sizeof(*out->list));
    out->list[out->count] =
        (struct compare_value){.step = has_step ? (int64_t)row.step : (int64_t)out->count + 1,
                               .loss = row.loss,
                               .grad_norm = row.norm,
                               .tokens_per_s = row.rate > 0 ? row.rate : 0,
                               .t_s = row.time,
                               .rank = row.rank >= 0 && row.rank < 1e6 ? (int)row.rank : COMPARE_NO_LABEL};
    out->count++;
  }
  if (bad)
    compare_note(&out->notes, &out->note_count, "%zu rows have no number where one should be and are left out", bad);
  if (columns.step == SIZE_MAX && out->count)
    compare_note(&out->notes, &out->note_count, "it has no column of steps: rows are numbered 1, 2, ...");
  out->counted = columns.step == SIZE_MAX;
  keep_times(out);
  out->name = b200_format("%s", columns.names[columns.loss]);
  free_columns(&columns);
  if (out->count)
    return true;
  compare_values_free(out);
  *error = b200_format("no row with a loss");
  return false;
}
