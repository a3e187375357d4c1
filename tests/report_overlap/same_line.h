/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner beside jansson, for any text of one line. */
#ifndef B200_TESTS_SAME_LINE_H
#define B200_TESTS_SAME_LINE_H

#include "interpose/record/decode.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum member_kind { MEMBER_INT, MEMBER_REAL, MEMBER_TEXT, MEMBER_OBJECT };

static const struct {
  enum member_kind kind;
  size_t offset;
} members[] = {
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) {MEMBER_##kind, offsetof(struct b200_log_line, type##_##name)},
#include "interpose/record/record.def"
#undef B200_FIELD
#undef B200_RECORD
};

static inline bool same_member(size_t i, const struct b200_log_line *a, const struct b200_log_line *b) {
  const char *left = (const char *)a + members[i].offset, *right = (const char *)b + members[i].offset;
  if (members[i].kind == MEMBER_TEXT)
    return strcmp(*(const char *const *)left, *(const char *const *)right) == 0;
  if (members[i].kind == MEMBER_OBJECT) {
    json_t *one = *(json_t *const *)left, *other = *(json_t *const *)right;
    return one == other || (one && other && json_equal(one, other));
  }
  return memcmp(left, right, members[i].kind == MEMBER_INT ? sizeof(int64_t) : sizeof(double)) == 0;
}

/* False: the scanner took a line that jansson refuses or reads differently, or changed a text that it did not take. `taken`
   says whether it took the line. */
static inline bool scans_like_jansson(const char *text, size_t length, bool *taken) {
  struct b200_log_line scanned, decoded;
  json_t *held;
  const char *unknown;
  bool same;
  char *copy = malloc(length + 1);
  if (!copy)
    abort();
  memcpy(copy, text, length);
  copy[length] = '\0';
  int type = b200_log_line_scan(copy, length, &scanned, &held);
  *taken = type >= 0;
  if (type < 0) {
    same = memcmp(copy, text, length) == 0 && !held;
  } else {
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    same = json_is_object(object) && b200_log_line_decode(object, &decoded, &unknown) == type && !unknown;
    for (size_t i = 0; same && i < sizeof(members) / sizeof(members[0]); i++)
      same = same_member(i, &scanned, &decoded);
    json_decref(object);
  }
  json_decref(held);
  free(copy);
  return same;
}

#endif
