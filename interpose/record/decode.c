/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/decode.h"

#include "interpose/record/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX 64 /* of one type: bits of a mask */
#define DIGITS_MAX 18 /* no number of so many overflows */

enum kind { KIND_INT, KIND_REAL, KIND_TEXT, KIND_OBJECT };

static const struct field {
  enum b200_record_type type;
  enum kind kind;
  const char *name;
  size_t length, offset;
} fields[] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help)                                                                                  \
  {B200_RECORD_##type, KIND_##kind, #name, sizeof(#name) - 1, offsetof(struct b200_log_line, type##_##name)},
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
};

/* Where the fields of each type begin; a record's enumerator takes no place of its own. */
enum place {
#define B200_RECORD(type, help) FIRST_##type, BEFORE_##type = FIRST_##type - 1,
#define B200_FIELD(type, name, kind, help) PLACE_##type##_##name,
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
  FIELD_COUNT
};
static const size_t first_field[B200_RECORD_COUNT + 1] = {
#define B200_RECORD(type, help) FIRST_##type,
#define B200_FIELD(type, name, kind, help)
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
    FIELD_COUNT};

#define NOTHING_INT(member)
#define NOTHING_REAL(member)
#define NOTHING_TEXT(member) .member = "",
#define NOTHING_OBJECT(member)
static const struct b200_log_line nothing = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) NOTHING_##kind(type##_##name)
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
    .header_rank = -1, .header_world = -1, .header_local_rank = -1, .step_hbm_used = -1, .loss_grad_norm = (double)NAN};

static const struct field *find_field(int type, const char *name, size_t length, size_t guess) {
  if (guess < first_field[type + 1] && fields[guess].length == length && memcmp(fields[guess].name, name, length) == 0)
    return &fields[guess];
  for (size_t i = first_field[type]; i < first_field[type + 1]; i++)
    if (fields[i].length == length && memcmp(fields[i].name, name, length) == 0)
      return &fields[i];
  return NULL;
}

static int find_type(const char *name, size_t length) {
  for (int i = 0; i < B200_RECORD_COUNT; i++)
    if (strncmp(b200_record_names[i], name, length) == 0 && b200_record_names[i][length] == '\0')
      return i;
  return -1;
}

/* ---- any line */

static double real_value(const json_t *value) {
  if (json_is_string(value))
    return strtod(json_string_value(value), NULL); /* nan, inf, -inf: JSON has no such numbers */
  return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static int64_t int_value(const json_t *value) {
  if (json_is_integer(value))
    return json_integer_value(value);
  double real = json_number_value(value); /* never NaN: JSON has no such number */
  if (real >= 0x1p63)
    return INT64_MAX;
  return real < -0x1p63 ? INT64_MIN : (int64_t)real;
}

static void decode_field(const struct field *field, json_t *value, struct b200_log_line *out) {
  char *member = (char *)out + field->offset;
  switch (field->kind) {
  case KIND_INT:
    if (json_is_number(value))
      *(int64_t *)member = int_value(value);
    break;
  case KIND_REAL:
    *(double *)member = real_value(value);
    break;
  case KIND_TEXT:
    *(const char **)member = json_is_string(value) ? json_string_value(value) : "";
    break;
  case KIND_OBJECT:
    *(json_t **)member = json_is_object(value) ? value : NULL;
    break;
  }
}

int b200_log_line_decode(json_t *object, struct b200_log_line *out, const char **unknown_field) {
  const char *name, *type_name = json_string_value(json_object_get(object, "t"));
  json_t *value;
  int type = type_name ? find_type(type_name, strlen(type_name)) : -1;
  *out = nothing;
  if (unknown_field)
    *unknown_field = NULL;
  if (type < 0)
    return -1;
  size_t guess = first_field[type];
  json_object_foreach(object, name, value) {
    const struct field *field = find_field(type, name, strlen(name), guess);
    if (field) {
      decode_field(field, value, out);
      guess = (size_t)(field - fields) + 1;
    } else if (strcmp(name, "t") != 0 && unknown_field) {
      *unknown_field = name;
    }
  }
  return type;
}

/* ---- lines of the usual form */

struct scan {
  char *at; /* of a text that ends with '\0', which no part of a line may contain */
  struct b200_log_line *out;
  json_t *held;
  char *ends[FIELDS_MAX]; /* closing quotes of the texts that out points to */
  size_t end_count;
};

static bool skip(struct scan *scan, char expected) {
  if (*scan->at != expected)
    return false;
  scan->at++;
  return true;
}

/* "text" without escapes or anything but printable ASCII. */
static bool scan_text(struct scan *scan, char **text, size_t *length) {
  if (!skip(scan, '"'))
    return false;
  *text = scan->at;
  while (*scan->at >= ' ' && *scan->at <= '~' && *scan->at != '"' && *scan->at != '\\')
    scan->at++;
  *length = (size_t)(scan->at - *text);
  return skip(scan, '"');
}

static bool scan_int(struct scan *scan, int64_t *value) {
  bool negative = skip(scan, '-');
  const char *digits = scan->at;
  int64_t number = 0;
  while (*scan->at >= '0' && *scan->at <= '9' && scan->at - digits < DIGITS_MAX)
    number = number * 10 + (*scan->at++ - '0');
  *value = negative ? -number : number;
  ptrdiff_t count = scan->at - digits;
  return count > 0 && (count == 1 || *digits != '0') && (*scan->at == ',' || *scan->at == '}');
}

/* {"name":1,…} with new names only. */
static bool scan_object(struct scan *scan, const struct field *field) {
  json_t *object = json_object();
  char *name;
  size_t length;
  int64_t value;
  bool good = skip(scan, '{');
  scan->held = scan->held ? scan->held : json_object();
  json_object_setn_new(scan->held, field->name, field->length, object);
  *(json_t **)((char *)scan->out + field->offset) = object;
  if (good && skip(scan, '}'))
    return true;
  while (good) {
    good = scan_text(scan, &name, &length) && !json_object_getn(object, name, length) && skip(scan, ':') &&
           scan_int(scan, &value) && json_object_setn_new(object, name, length, json_integer(value)) == 0;
    if (good && skip(scan, '}'))
      return true;
    good = good && skip(scan, ',');
  }
  return false;
}

static bool scan_value(struct scan *scan, const struct field *field) {
  char *member = (char *)scan->out + field->offset, *text;
  size_t length;
  int64_t number;
  switch (field->kind) {
  case KIND_INT:
    return scan_int(scan, (int64_t *)member);
  case KIND_REAL: /* fractions are jansson's */
    if (!scan_int(scan, &number))
      return false;
    *(double *)member = (double)number;
    return true;
  case KIND_TEXT:
    if (!scan_text(scan, &text, &length))
      return false;
    *(const char **)member = text;
    scan->ends[scan->end_count++] = text + length;
    return true;
  case KIND_OBJECT:
    return scan_object(scan, field);
  }
  return false;
}

static bool scan_fields(struct scan *scan, int type) {
  uint64_t seen = 0;
  size_t guess = first_field[type], length;
  char *name;
  if (first_field[type + 1] - first_field[type] > FIELDS_MAX)
    return false;
  while (skip(scan, ',')) {
    if (!scan_text(scan, &name, &length) || !skip(scan, ':'))
      return false;
    const struct field *field = find_field(type, name, length, guess);
    if (!field)
      return false;
    uint64_t bit = UINT64_C(1) << ((size_t)(field - fields) - first_field[type]);
    if (seen & bit || !scan_value(scan, field))
      return false;
    seen |= bit;
    guess = (size_t)(field - fields) + 1;
  }
  return skip(scan, '}');
}

int b200_log_line_scan(char *text, size_t length, struct b200_log_line *out, json_t **held) {
  struct scan scan = {.at = text, .out = out};
  char *name, *end = text + length - (length && text[length - 1] == '\n');
  const char after = *end;
  int type = -1;
  *held = NULL;
  *out = nothing;
  *end = '\0';
  if (length > 4 && memcmp(text, "{\"t\":", 5) == 0) {
    scan.at += 5;
    if (scan_text(&scan, &name, &length))
      type = find_type(name, length);
    if (type == B200_RECORD_header || (type >= 0 && !(scan_fields(&scan, type) && scan.at == end)))
      type = -1;
  }
  *end = after;
  if (type < 0) {
    json_decref(scan.held);
    return -1;
  }
  for (size_t i = 0; i < scan.end_count; i++)
    *scan.ends[i] = '\0';
  *held = scan.held;
  return type;
}
