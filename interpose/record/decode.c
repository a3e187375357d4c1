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
  const char *start; /* "name": */
  size_t length, offset;
} fields[] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help)                                                                                  \
  {B200_RECORD_##type, KIND_##kind, "\"" #name "\":", sizeof(#name) - 1, offsetof(struct b200_log_line, type##_##name)},
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
};

static const struct {
  const char *name;
  size_t length;
} types[] = {
#define B200_RECORD(type, help) {#type, sizeof(#type) - 1},
#define B200_FIELD(type, name, kind, help)
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

/* Members of a type stand together in the struct, as its fields do in record.def. */
static void clear(struct b200_log_line *out, int type) {
  size_t first = first_field[type], end = first_field[type + 1];
  if (first == end)
    return;
  size_t begin = fields[first].offset, length = fields[end - 1].offset + sizeof(int64_t) - begin;
  memcpy((char *)out + begin, (const char *)&nothing + begin, length);
}

static const struct field *find_field(int type, const char *name, size_t length, size_t guess) {
  if (guess < first_field[type + 1] && fields[guess].length == length && memcmp(fields[guess].start + 1, name, length) == 0)
    return &fields[guess];
  for (size_t i = first_field[type]; i < first_field[type + 1]; i++)
    if (fields[i].length == length && memcmp(fields[i].start + 1, name, length) == 0)
      return &fields[i];
  return NULL;
}

static int find_type(const char *name, size_t length) {
  for (int i = 0; i < B200_RECORD_COUNT; i++)
    if (types[i].length == length && memcmp(types[i].name, name, length) == 0)
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
  if (unknown_field)
    *unknown_field = NULL;
  if (type < 0)
    return -1;
  clear(out, type);
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
  struct b200_log_scan *kept;
  bool has_object;        /* kept->last is of this line */
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

static bool scan_digits(struct scan *scan) {
  const char *digits = scan->at;
  while (*scan->at >= '0' && *scan->at <= '9')
    scan->at++;
  return scan->at > digits;
}

/* JSON's grammar of numbers, then strtod() as jansson does; what overflows, or has another decimal point here, is jansson's.
 */
static bool scan_real(struct scan *scan, double *value) {
  char *start = scan->at, *end;
  int64_t whole;
  skip(scan, '-');
  if (scan->at[0] == '0' && scan->at[1] >= '0' && scan->at[1] <= '9')
    return false;
  if (!scan_digits(scan))
    return false;
  if (*scan->at == ',' || *scan->at == '}') {
    scan->at = start;
    bool good = scan_int(scan, &whole);
    *value = (double)whole;
    return good;
  }
  if (skip(scan, '.') && !scan_digits(scan))
    return false;
  if (*scan->at == 'e' || *scan->at == 'E') {
    scan->at++;
    scan->at += *scan->at == '+' || *scan->at == '-';
    if (!scan_digits(scan))
      return false;
  }
  if (*scan->at != ',' && *scan->at != '}')
    return false;
  *value = strtod(start, &end);
  return end == scan->at && isfinite(*value);
}

/* {"name":1,…} with new names only. */
static bool scan_members(struct scan *scan, json_t *object) {
  char *name;
  size_t length;
  int64_t value;
  bool good = skip(scan, '{');
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

/* Keeps the first object of a line beside its text. */
static void keep(struct b200_log_scan *kept, json_t *object, const char *text, size_t length) {
  if (length > kept->last_room) {
    char *room = realloc(kept->last_text, length);
    if (!room) /* then every line is read anew */
      length = 0;
    kept->last_text = room ? room : kept->last_text;
    kept->last_room = room ? length : kept->last_room;
  }
  if (length)
    memcpy(kept->last_text, text, length);
  kept->last_length = length;
  json_decref(kept->last);
  kept->last = object;
}

static bool scan_object(struct scan *scan, const struct field *field) {
  struct b200_log_scan *kept = scan->kept;
  json_t **member = (json_t **)((char *)scan->out + field->offset);
  const char *start = scan->at;
  /* No part of a whole object's text but its end closes it, so that an equal start is the same object. */
  if (!scan->has_object && kept->last_length && strncmp(start, kept->last_text, kept->last_length) == 0) {
    scan->at += kept->last_length;
    scan->has_object = true;
    *member = kept->last;
    return true;
  }
  json_t *object = json_object();
  if (!scan_members(scan, object)) {
    json_decref(object);
    return false;
  }
  if (scan->has_object) {
    kept->others = kept->others ? kept->others : json_array();
    json_array_append_new(kept->others, object);
  } else {
    keep(kept, object, start, (size_t)(scan->at - start));
    scan->has_object = true;
  }
  *member = object;
  return true;
}

static bool scan_value(struct scan *scan, const struct field *field) {
  char *member = (char *)scan->out + field->offset, *text;
  size_t length;
  switch (field->kind) {
  case KIND_INT:
    return scan_int(scan, (int64_t *)member);
  case KIND_REAL:
    return scan_real(scan, (double *)member);
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

/* The field whose name and colon stand here: mostly the one after the last. */
static const struct field *scan_name(struct scan *scan, int type, size_t guess) {
  char *name;
  size_t length;
  if (guess < first_field[type + 1] && strncmp(scan->at, fields[guess].start, fields[guess].length + 3) == 0) {
    scan->at += fields[guess].length + 3;
    return &fields[guess];
  }
  return scan_text(scan, &name, &length) && skip(scan, ':') ? find_field(type, name, length, guess) : NULL;
}

static bool scan_fields(struct scan *scan, int type) {
  uint64_t seen = 0;
  size_t guess = first_field[type];
  if (first_field[type + 1] - first_field[type] > FIELDS_MAX)
    return false;
  while (skip(scan, ',')) {
    const struct field *field = scan_name(scan, type, guess);
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

int b200_log_line_scan(struct b200_log_scan *kept, char *text, size_t length, struct b200_log_line *out) {
  struct scan scan; /* its ends[] is large, and this is done for every line */
  char *name, *end = text + length - (length && text[length - 1] == '\n');
  const char after = *end;
  int type = -1;
  scan.at = text;
  scan.out = out;
  scan.kept = kept;
  scan.has_object = false;
  scan.end_count = 0;
  json_decref(kept->others);
  kept->others = NULL;
  *end = '\0';
  if (length > 4 && memcmp(text, "{\"t\":", 5) == 0) {
    scan.at += 5;
    if (scan_text(&scan, &name, &length))
      type = find_type(name, length);
    if (type >= 0)
      clear(out, type);
    if (type == B200_RECORD_header || (type >= 0 && !(scan_fields(&scan, type) && scan.at == end)))
      type = -1;
  }
  *end = after;
  for (size_t i = 0; type >= 0 && i < scan.end_count; i++)
    *scan.ends[i] = '\0';
  return type;
}

void b200_log_scan_free(struct b200_log_scan *scan) {
  json_decref(scan->last);
  json_decref(scan->others);
  free(scan->last_text);
  memset(scan, 0, sizeof(*scan));
}
