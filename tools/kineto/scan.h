/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pull scanner for JSON texts of any length, in constant memory. Values that nobody asks for are passed over at a few
 * instructions a byte: most of a trace is such. Kineto has written much that is no JSON, and a strict parser (yajl, the
 * streaming one that distributions package) loses the rest of the trace there: bare inf and N/A (pytorch/kineto#105, #133),
 * escapes that do not exist (kineto#336), control characters and broken UTF-8 in strings (pytorch#130622, #136180).
 *
 * Not looked at, therefore: commas, the form of scalars, which escapes there are, what strings consist of. Brackets that do
 * not match and colons that are missing are errors.
 *
 * Text of a token belongs to the scanner until its next call. After KINETO_BROKEN every further call returns that. Allocates
 * nothing; not thread-safe, no global state.
 */
#ifndef B200_KINETO_SCAN_H
#define B200_KINETO_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KINETO_TEXT_MAX 2047 /* longer texts of tokens are cut there */
#define KINETO_DEPTH_MAX 256
#define KINETO_WINDOW_BYTES ((size_t)256 << 10)

/* Up to `room` bytes to `to`; how many, 0 at the end, -1 when they cannot be read. */
typedef ptrdiff_t (*kineto_read)(void *from, void *to, size_t room);

enum kineto_token {
  KINETO_BROKEN, /* `error` says why */
  KINETO_END,    /* of the whole text */
  KINETO_OBJECT,
  KINETO_OBJECT_END,
  KINETO_ARRAY,
  KINETO_ARRAY_END,
  KINETO_STRING, /* decoded */
  KINETO_SCALAR, /* number, true, false, null: as it is written */
};

struct kineto_scan {
  const char *text; /* of the last key, string or scalar; ends with a NUL */
  size_t length;
  const char *error;
  /* private */
  kineto_read read;
  void *from;
  const unsigned char *at, *end;
  uint64_t passed; /* bytes before the window */
  unsigned depth;
  unsigned char open[KINETO_DEPTH_MAX];
  char kept[KINETO_TEXT_MAX + 1];
  unsigned char window[KINETO_WINDOW_BYTES + 1];
};

void kineto_scan_start(struct kineto_scan *scan, kineto_read read, void *from);

/* The next value or end of a container; KINETO_END once the outermost value is over. */
enum kineto_token kineto_scan_value(struct kineto_scan *scan);
/* In an object: KINETO_STRING for a key, whose value is next, or KINETO_OBJECT_END. */
enum kineto_token kineto_scan_key(struct kineto_scan *scan);
/* Passes over the next value, with everything in it. */
bool kineto_scan_skip(struct kineto_scan *scan);
/* Passes over the rest of the innermost open container. */
bool kineto_scan_leave(struct kineto_scan *scan);
/* How many bytes have been scanned. */
uint64_t kineto_scan_offset(const struct kineto_scan *scan);

#define KINETO_VALUE_MAX INT64_C(4000000000000000000) /* nanoseconds since 1970 until 2096 */

/* A decimal number times 10^shift as an integer, rounded once, half away from zero. False for what is no number, or is then
   beyond KINETO_VALUE_MAX on either side. */
bool kineto_decimal(const char *text, int shift, int64_t *value);

#endif
