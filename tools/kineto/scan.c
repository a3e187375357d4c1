/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/scan.h"

#include <stdlib.h>
#include <string.h>

/* What ends a run of bytes that need no look; the NUL after the window is among them. */
enum { ENDS_STRING = 1, ENDS_SKIP = 2, ENDS_SCALAR = 4 };
static const unsigned char ends[256] = {
    ['\0'] = ENDS_STRING | ENDS_SKIP | ENDS_SCALAR,
    ['"'] = ENDS_STRING | ENDS_SKIP | ENDS_SCALAR,
    ['\\'] = ENDS_STRING,
    ['{'] = ENDS_SKIP | ENDS_SCALAR,
    ['}'] = ENDS_SKIP | ENDS_SCALAR,
    ['['] = ENDS_SKIP | ENDS_SCALAR,
    [']'] = ENDS_SKIP | ENDS_SCALAR,
    [','] = ENDS_SCALAR,
    [':'] = ENDS_SCALAR,
    [' '] = ENDS_SCALAR,
    ['\t'] = ENDS_SCALAR,
    ['\n'] = ENDS_SCALAR,
    ['\r'] = ENDS_SCALAR,
};

void kineto_scan_start(struct kineto_scan *scan, kineto_read read, void *from) {
  scan->text = "";
  scan->length = 0;
  scan->error = NULL;
  scan->read = read;
  scan->from = from;
  scan->at = scan->end = scan->window;
  scan->passed = 0;
  scan->depth = 0;
  scan->window[0] = '\0';
}

uint64_t kineto_scan_offset(const struct kineto_scan *scan) {
  return scan->passed + (uint64_t)(scan->at - scan->window);
}

static enum kineto_token broken(struct kineto_scan *scan, const char *error) {
  if (!scan->error)
    scan->error = error;
  return KINETO_BROKEN;
}

/* Brings bytes into the used-up window. */
static bool refill(struct kineto_scan *scan) {
  if (scan->error)
    return false;
  scan->passed += (uint64_t)(scan->end - scan->window);
  ptrdiff_t size = scan->read(scan->from, scan->window, KINETO_WINDOW_BYTES);
  scan->at = scan->window;
  scan->end = scan->window + (size > 0 ? size : 0);
  scan->window[scan->end - scan->window] = '\0';
  if (size < 0)
    broken(scan, "it cannot be read any further");
  return size > 0;
}

/* The byte at hand, -1 at the end. */
static int peek(struct kineto_scan *scan) {
  return scan->at < scan->end || refill(scan) ? *scan->at : -1;
}

static int peek_token(struct kineto_scan *scan) {
  int byte;
  while ((byte = peek(scan)) <= ',' && (byte == ' ' || byte == '\n' || byte == ',' || byte == '\r' || byte == '\t'))
    scan->at++;
  return byte;
}

static enum kineto_token cut_off(struct kineto_scan *scan) {
  return broken(scan, "it ends early");
}

/* ---- strings and scalars */

static void keep(struct kineto_scan *scan, int byte) {
  if (scan->length < KINETO_TEXT_MAX)
    scan->kept[scan->length++] = (char)byte;
}

static void keep_code_point(struct kineto_scan *scan, unsigned code) {
  if (code < 0x80) {
    keep(scan, (int)code);
  } else if (code < 0x800) {
    keep(scan, (int)(0xc0 | code >> 6));
    keep(scan, (int)(0x80 | (code & 0x3f)));
  } else { /* halves of pairs are kept one by one: names only have to be told apart */
    keep(scan, (int)(0xe0 | code >> 12));
    keep(scan, (int)(0x80 | (code >> 6 & 0x3f)));
    keep(scan, (int)(0x80 | (code & 0x3f)));
  }
}

static int hex_digit(int byte) {
  if (byte >= '0' && byte <= '9')
    return byte - '0';
  byte |= 0x20;
  return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* What follows a backslash. */
static bool keep_escape(struct kineto_scan *scan) {
  static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
  int byte = peek(scan);
  if (byte < 0)
    return false;
  scan->at++;
  if (byte != 'u') {
    const char *name = byte ? strchr(names, byte) : NULL;
    keep(scan, name ? values[name - names] : byte);
    return true;
  }
  unsigned code = 0;
  for (int i = 0; i < 4; i++) {
    int digit = hex_digit(peek(scan));
    if (digit < 0)
      break;
    code = code << 4 | (unsigned)digit;
    scan->at++;
  }
  keep_code_point(scan, code ? code : '?'); /* no NUL within a text */
  return true;
}

/* A string whose opening quote has been passed: in the window where it is whole there and plain, else decoded into `kept`.
 */
static enum kineto_token string(struct kineto_scan *scan) {
  const unsigned char *start = scan->at, *at = start;
  while (!(ends[*at] & ENDS_STRING))
    at++;
  if (*at == '"' && at - start <= KINETO_TEXT_MAX) {
    scan->window[at - scan->window] = '\0';
    scan->text = (const char *)start;
    scan->length = (size_t)(at - start);
    scan->at = at + 1;
    return KINETO_STRING;
  }
  scan->length = 0;
  for (int byte; (byte = peek(scan)) != '"';) {
    if (byte < 0)
      return cut_off(scan);
    scan->at++;
    if (byte != '\\')
      keep(scan, byte);
    else if (!keep_escape(scan))
      return cut_off(scan);
  }
  scan->at++;
  scan->kept[scan->length] = '\0';
  scan->text = scan->kept;
  return KINETO_STRING;
}

static enum kineto_token scalar(struct kineto_scan *scan) {
  scan->length = 0;
  while (peek(scan) >= 0) {
    const unsigned char *start = scan->at;
    while (!(ends[*scan->at] & ENDS_SCALAR))
      scan->at++;
    size_t length = (size_t)(scan->at - start), room = KINETO_TEXT_MAX - scan->length;
    memcpy(scan->kept + scan->length, start, length < room ? length : room);
    scan->length += length < room ? length : room;
    if (scan->at < scan->end)
      break;
  }
  if (!scan->length)
    return broken(scan, "it is not JSON");
  scan->kept[scan->length] = '\0';
  scan->text = scan->kept;
  return KINETO_SCALAR;
}

/* ---- containers */

static enum kineto_token enter(struct kineto_scan *scan, int byte) {
  if (scan->depth == KINETO_DEPTH_MAX)
    return broken(scan, "it is nested too deep");
  scan->open[scan->depth++] = (unsigned char)byte;
  scan->at++;
  return byte == '{' ? KINETO_OBJECT : KINETO_ARRAY;
}

static enum kineto_token leave(struct kineto_scan *scan, int byte) {
  if (!scan->depth || scan->open[scan->depth - 1] != (byte == '}' ? '{' : '['))
    return broken(scan, "a bracket has no partner");
  scan->depth--;
  scan->at++;
  return byte == '}' ? KINETO_OBJECT_END : KINETO_ARRAY_END;
}

enum kineto_token kineto_scan_value(struct kineto_scan *scan) {
  if (scan->error)
    return KINETO_BROKEN;
  int byte = peek_token(scan);
  switch (byte) {
  case '{':
  case '[':
    return enter(scan, byte);
  case '}':
  case ']':
    return leave(scan, byte);
  case '"':
    scan->at++;
    return string(scan);
  case -1:
    return scan->depth || scan->error || !kineto_scan_offset(scan) ? cut_off(scan) : KINETO_END;
  default:
    return scalar(scan);
  }
}

enum kineto_token kineto_scan_key(struct kineto_scan *scan) {
  enum kineto_token token = kineto_scan_value(scan);
  if (token == KINETO_OBJECT_END || token == KINETO_BROKEN)
    return token;
  if (token != KINETO_STRING)
    return broken(scan, "an object has something else than a key");
  if (*scan->at != ':') { /* looking further may fill the window again */
    memmove(scan->kept, scan->text, scan->length + 1);
    scan->text = scan->kept;
    int byte = peek_token(scan);
    if (byte != ':')
      return byte < 0 ? cut_off(scan) : broken(scan, "a key has no value");
  }
  scan->at++;
  return KINETO_STRING;
}

static bool skip_string(struct kineto_scan *scan) {
  while (peek(scan) >= 0) {
    while (!(ends[*scan->at] & ENDS_STRING))
      scan->at++;
    if (scan->at == scan->end)
      continue;
    int byte = *scan->at++;
    if (byte == '"')
      return true;
    if (byte == '\\' && peek(scan) >= 0)
      scan->at++;
  }
  return cut_off(scan);
}

/* Passes over everything until `depth` containers are open. */
static bool skip_to(struct kineto_scan *scan, unsigned depth) {
  while (scan->depth > depth) {
    if (peek(scan) < 0)
      return cut_off(scan);
    while (!(ends[*scan->at] & ENDS_SKIP))
      scan->at++;
    if (scan->at == scan->end)
      continue;
    int byte = *scan->at;
    bool passed = true;
    if (byte == '{' || byte == '[') {
      passed = enter(scan, byte) != KINETO_BROKEN;
    } else if (byte == '}' || byte == ']') {
      passed = leave(scan, byte) != KINETO_BROKEN;
    } else {
      scan->at++;
      passed = byte != '"' || skip_string(scan);
    }
    if (!passed)
      return false;
  }
  return true;
}

bool kineto_scan_skip(struct kineto_scan *scan) {
  if (scan->error)
    return false;
  unsigned depth = scan->depth;
  int byte = peek_token(scan);
  if (byte == '"') {
    scan->at++;
    return skip_string(scan);
  }
  enum kineto_token token = kineto_scan_value(scan);
  if (token == KINETO_OBJECT || token == KINETO_ARRAY)
    return skip_to(scan, depth);
  if (token == KINETO_SCALAR)
    return true;
  return broken(scan, "a key has no value");
}

bool kineto_scan_leave(struct kineto_scan *scan) {
  return !scan->error && scan->depth && skip_to(scan, scan->depth - 1);
}

/* ---- numbers */

#define EXPONENT_MAX 400

static size_t digits(const char *text) {
  size_t count = 0;
  while (text[count] >= '0' && text[count] <= '9')
    count++;
  return count;
}

bool kineto_decimal(const char *text, int shift, int64_t *value) {
  bool negative = *text == '-';
  const char *whole = text + negative;
  size_t whole_digits = digits(whole);
  const char *fraction = whole + whole_digits + (whole[whole_digits] == '.');
  size_t fraction_digits = fraction == whole + whole_digits ? 0 : digits(fraction);
  const char *end = fraction + fraction_digits;
  long exponent = 0;
  if (*end == 'e' || *end == 'E') {
    char *after;
    exponent = strtol(end + 1, &after, 10);
    end = after > end + 1 ? after : end;
  }
  if (*end || !(whole_digits + fraction_digits) || exponent < -EXPONENT_MAX || exponent > EXPONENT_MAX)
    return false;
  /* The integer has as many digits as stand before the point once that has moved; the next one rounds. */
  long kept = (long)whole_digits + exponent + shift;
  int64_t sum = 0;
  for (long i = 0; i <= kept; i++) {
    size_t at = (size_t)i;
    int digit = at < whole_digits                     ? whole[at] - '0'
                : at - whole_digits < fraction_digits ? fraction[at - whole_digits] - '0'
                                                      : 0;
    if (sum > KINETO_VALUE_MAX / 10 && i < kept)
      return false;
    sum = i < kept ? sum * 10 + digit : sum + (digit >= 5);
    if (sum > KINETO_VALUE_MAX)
      return false;
  }
  *value = negative ? -sum : sum;
  return true;
}
