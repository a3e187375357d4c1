/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line of a log (record.def), decoded. Two ways that give the same: jansson's for any line, and a scanner for lines of
 * the form in which json.h writes them, which is some twenty times as fast.
 *
 * No global state; thread-safe as far as jansson is. Not for the shim.
 */
#ifndef B200_RECORD_DECODE_H
#define B200_RECORD_DECODE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A member TYPE_NAME for every B200_FIELD(TYPE, NAME, KIND) of record.def, so that the reader cannot miss one. Fields that
 * the line lacks are 0, "" or NULL; header_rank, _world, _local_rank and step_hbm_used are -1, and
 * loss_grad_norm is NaN.
 */
#define B200_MEMBER_INT(name) int64_t name;
#define B200_MEMBER_REAL(name) double name;
#define B200_MEMBER_TEXT(name) const char *name;
#define B200_MEMBER_OBJECT(name) json_t *name;
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) B200_MEMBER_##kind(type##_##name)
struct b200_log_line {
#include "interpose/record/record.def"
};
#undef B200_FIELD
#undef B200_RECORD
#undef B200_MEMBER_INT
#undef B200_MEMBER_REAL
#undef B200_MEMBER_TEXT
#undef B200_MEMBER_OBJECT

/* Decodes one line into the members of `out` that are of its type; it borrows from `object`. Returns the index of its type
   in record.def (enum b200_record_type), or -1 when the type is unknown. `unknown_field` (may be NULL) gets the name of a
   field that record.def does not have, or NULL. */
int b200_log_line_decode(json_t *object, struct b200_log_line *out, const char **unknown_field);

/* What a scanner of lines keeps from one to the next: objects, as the same one often comes again. Zeroed at first. */
struct b200_log_scan {
  json_t *last, *others; /* the first object of a line, and the others of this line; NULL */
  char *last_text;
  size_t last_length, last_room;
};

/* The same from the text of a line, with or without its newline; out borrows from `text`, in which the ends of strings are
   written over with '\0', and until the next call from `scan`. -1, with text as it was: the line has something that only
   jansson understands (a blank, an escape, a field that is not known or of another kind, …), is a header, which is kept as
   an object anyway, or is none. pre: text[length] may be read. */
int b200_log_line_scan(struct b200_log_scan *scan, char *text, size_t length, struct b200_log_line *out);
void b200_log_scan_free(struct b200_log_scan *scan);

#endif
