/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner beside jansson, for any text of one line. */
#ifndef B200_TESTS_SAME_LINE_H
#define B200_TESTS_SAME_LINE_H

#include "interpose/record/decode.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define B200_LINE_CHANGED (-2)

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
    return *(const char *const *)left == *(const char *const *)right || /* of another type: NULL */
           strcmp(*(const char *const *)left, *(const char *const *)right) == 0;
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
  struct b200_log_scan scan = {.last = NULL};
  const char *unknown;
  bool same;
  char *copy = malloc(length + 1);
  if (!copy)
    abort();
  memcpy(copy, text, length);
  copy[length] = '\0';
  memset(&scanned, 0, sizeof(scanned)); /* members of other types are left as they are */
  memset(&decoded, 0, sizeof(decoded));
  int type = b200_log_line_scan(&scan, copy, length, &scanned);
  for (int again = 0; again < 2 && type >= 0; again++) { /* with what it kept of the line before */
    memcpy(copy, text, length);
    if (b200_log_line_scan(&scan, copy, length, &scanned) != type)
      type = B200_LINE_CHANGED;
  }
  *taken = type >= 0;
  if (type == B200_LINE_CHANGED) {
    same = false;
  } else if (type < 0) {
    same = memcmp(copy, text, length) == 0;
  } else {
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    same = json_is_object(object) && b200_log_line_decode(object, &decoded, &unknown) == type && !unknown;
    for (size_t i = 0; same && i < sizeof(members) / sizeof(members[0]); i++)
      same = same_member(i, &scanned, &decoded);
    json_decref(object);
  }
  b200_log_scan_free(&scan);
  free(copy);
  return same;
}

#endif
