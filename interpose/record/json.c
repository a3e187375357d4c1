/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const b200_record_names[B200_RECORD_COUNT] = {
#define B200_RECORD(type, help) #type,
#define B200_FIELD(type, name, kind, help)
#include "interpose/record/record.def"
#undef B200_RECORD
#undef B200_FIELD
};

const char *const b200_field_names[B200_FIELD_COUNT] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) #name,
#include "interpose/record/record.def"
#undef B200_RECORD
#undef B200_FIELD
};

enum { TAIL_BYTES = 8 }; /* room that is kept for `"`, `}`, `}` and the newline */

static size_t room(const struct b200_line *line) {
  return B200_LINE_BYTES - TAIL_BYTES - line->length;
}

static void put(struct b200_line *line, const char *text, size_t length) {
  memcpy(line->text + line->length, text, length);
  line->length += length;
}

/* Quoted, with what JSON and ASCII demand escaped; cut where the room ends. */
static void put_quoted(struct b200_line *line, const char *text, size_t length) {
  line->text[line->length++] = '"';
  for (size_t i = 0; i < length && room(line) > 7; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\') {
      line->text[line->length++] = '\\';
      line->text[line->length++] = (char)c;
    } else if (c >= 0x20 && c < 0x7f) {
      line->text[line->length++] = (char)c;
    } else {
      line->length += (size_t)snprintf(line->text + line->length, 7, "\\u%04x", c);
    }
  }
  line->text[line->length++] = '"';
}

/* Writes `,"name":`; false when a value of `value_bytes` would no longer fit. */
static bool put_name(struct b200_line *line, const char *name, size_t name_length, size_t value_bytes) {
  if (room(line) < name_length + value_bytes + 4)
    return false;
  if (!line->empty)
    line->text[line->length++] = ',';
  line->empty = false;
  put_quoted(line, name, name_length);
  line->text[line->length++] = ':';
  return true;
}

static bool put_field(struct b200_line *line, enum b200_field field, size_t value_bytes) {
  const char *name = b200_field_names[field];
  return put_name(line, name, strlen(name), value_bytes);
}

void b200_line_begin(struct b200_line *line, enum b200_record_type type) {
  line->length = 0;
  line->type = type;
  line->open = 0;
  line->empty = true;
  line->text[line->length++] = '{';
  put_name(line, "t", 1, 32);
  put_quoted(line, b200_record_names[type], strlen(b200_record_names[type]));
}

void b200_line_int(struct b200_line *line, enum b200_field field, int64_t value) {
  char text[24];
  size_t length = (size_t)snprintf(text, sizeof text, "%lld", (long long)value);
  if (put_field(line, field, length))
    put(line, text, length);
}

void b200_line_uint(struct b200_line *line, enum b200_field field, uint64_t value) {
  char text[24];
  size_t length = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  if (put_field(line, field, length))
    put(line, text, length);
}

void b200_line_real(struct b200_line *line, enum b200_field field, double value) {
  char text[40];
  if (!isfinite(value)) {
    b200_line_text(line, field, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return;
  }
  size_t length = (size_t)snprintf(text, sizeof text, "%.17g", value);
  if (put_field(line, field, length))
    put(line, text, length);
}

void b200_line_text(struct b200_line *line, enum b200_field field, const char *value) {
  if (put_field(line, field, 16))
    put_quoted(line, value, strlen(value));
}

void b200_line_object(struct b200_line *line, enum b200_field field) {
  if (!put_field(line, field, 16))
    return;
  line->text[line->length++] = '{';
  line->open++;
  line->empty = true;
}

void b200_line_member_text(struct b200_line *line, const char *name, size_t name_length, const char *value) {
  if (line->open > 0 && put_name(line, name, name_length, 16))
    put_quoted(line, value, strlen(value));
}

void b200_line_member_uint(struct b200_line *line, const char *name, uint64_t value) {
  char text[24];
  size_t length = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  if (line->open > 0 && put_name(line, name, strlen(name), length))
    put(line, text, length);
}

void b200_line_object_end(struct b200_line *line) {
  if (line->open == 0)
    return;
  line->text[line->length++] = '}';
  line->open--;
  line->empty = false;
}

void b200_line_end(struct b200_line *line) {
  b200_line_object_end(line);
  line->text[line->length++] = '}';
  line->text[line->length++] = '\n';
}
