/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds one line of the log. Names come from record.def alone. A line is ASCII, at most B200_LINE_BYTES with its newline,
 * so that one write(2) stores it whole; text beyond that is cut inside its value, never the structure.
 *
 * No allocation, no lock, no I/O. A struct b200_line lives on the caller's stack.
 */
#ifndef B200_RECORD_JSON_H
#define B200_RECORD_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define B200_LINE_BYTES 4096

enum b200_record_type {
#define B200_RECORD(type, help) B200_RECORD_##type,
#define B200_FIELD(type, name, kind, help)
#include "interpose/record/record.def"
#undef B200_RECORD
#undef B200_FIELD
  B200_RECORD_COUNT
};

enum b200_field {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) B200_FIELD_##type##_##name,
#include "interpose/record/record.def"
#undef B200_RECORD
#undef B200_FIELD
  B200_FIELD_COUNT
};

extern const char *const b200_record_names[B200_RECORD_COUNT];
extern const char *const b200_field_names[B200_FIELD_COUNT];

struct b200_line {
  char text[B200_LINE_BYTES];
  size_t length;
  unsigned open; /* objects that are open; room for their braces is kept */
  bool empty;    /* nothing stands in the innermost object yet */
  enum b200_record_type type;
};

void b200_line_begin(struct b200_line *line, enum b200_record_type type);
void b200_line_int(struct b200_line *line, enum b200_field field, int64_t value);
void b200_line_uint(struct b200_line *line, enum b200_field field, uint64_t value);
/* JSON has no NaN and no infinity: those become the strings "nan", "inf", "-inf". */
void b200_line_real(struct b200_line *line, enum b200_field field, double value);
void b200_line_text(struct b200_line *line, enum b200_field field, const char *value);

/* An object whose members have free names; nothing else may be added until it is closed. */
void b200_line_object(struct b200_line *line, enum b200_field field);
void b200_line_member_text(struct b200_line *line, const char *name, size_t name_length, const char *value);
void b200_line_member_uint(struct b200_line *line, const char *name, uint64_t value);
void b200_line_object_end(struct b200_line *line);

/* Closes the line with "}\n". */
void b200_line_end(struct b200_line *line);

#endif
