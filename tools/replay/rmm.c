/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/rmm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/replay/replay.h"

static const char *const actions[RMM_ACTION_COUNT] = {"allocate", "free", "allocate failure"};

struct scan {
  const char *at, *end;
};

static bool skip(struct scan *scan, const char *text) {
  size_t length = strlen(text);
  if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, text, length) != 0)
    return false;
  scan->at += length;
  return true;
}

static int digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

/* Digits as printf writes them: no leading zero, no capitals. */
static bool number(struct scan *scan, uint64_t base, uint64_t *value) {
  const char *first = scan->at;
  *value = 0;
  for (; scan->at < scan->end && (uint64_t)digit(*scan->at) < base; scan->at++)
    if (__builtin_mul_overflow(*value, base, value) || __builtin_add_overflow(*value, (uint64_t)digit(*scan->at), value))
      return false;
  return scan->at > first && (*first != '0' || scan->at - first == 1);
}

/* Exactly `digits` digits, with zeros in front. */
static bool padded(struct scan *scan, int digits, unsigned bound, unsigned *value) {
  *value = 0;
  for (int i = 0; i < digits; i++) {
    if (scan->at == scan->end || digit(*scan->at) > 9)
      return false;
    *value = *value * 10 + (unsigned)digit(*scan->at++);
  }
  return *value < bound;
}

static bool time_of_day(struct scan *scan, struct rmm_row *row) {
  if (!padded(scan, 2, 24, &row->hours) || !skip(scan, ":") || !padded(scan, 2, 60, &row->minutes) || !skip(scan, ":") ||
      !padded(scan, 2, 61, &row->seconds) || scan->at == scan->end)
    return false;
  row->point = *scan->at++;
  return (row->point == '.' || row->point == ':') && padded(scan, 6, 1000000, &row->microseconds);
}

static bool action(struct scan *scan, struct rmm_row *row) {
  for (int i = RMM_ACTION_COUNT - 1; i >= 0; i--) { /* the longer of two that begin alike first */
    if (!skip(scan, actions[i]))
      continue;
    row->action = (enum rmm_action)i;
    return true;
  }
  return false;
}

static bool pointer(struct scan *scan, struct rmm_row *row) {
  row->pointer = 0;
  row->nil = skip(scan, "(nil)");
  return row->nil || (skip(scan, "0x") && number(scan, 16, &row->pointer));
}

static bool stream(struct scan *scan, struct rmm_row *row) {
  row->hex = skip(scan, "0x");
  return number(scan, row->hex ? 16 : 10, &row->stream);
}

const char *rmm_row_parse(const char *line, size_t length, struct rmm_row *out) {
  struct scan scan = {line, line + length};
  memset(out, 0, sizeof(*out));
  if (!number(&scan, 10, &out->thread) || !skip(&scan, ","))
    return "Thread is not a number (accepted: " RMM_HEADER ")";
  if (!time_of_day(&scan, out) || !skip(&scan, ","))
    return "Time is not a time of day (accepted: HH:MM:SS.microseconds)";
  if (!action(&scan, out) || !skip(&scan, ","))
    return "Action is not known (accepted: allocate, free, allocate failure)";
  if (!pointer(&scan, out) || !skip(&scan, ","))
    return "Pointer is not an address (accepted: 0x with lower-case digits, or (nil))";
  if (!number(&scan, 10, &out->size) || out->size > REPLAY_BYTES_MAX || !skip(&scan, ","))
    return "Size is not a number of bytes (accepted: 0 to 17592186044416)";
  if (!stream(&scan, out) || scan.at != scan.end)
    return "Stream is not a stream (accepted: a number, or 0x with lower-case digits)";
  return NULL;
}

void rmm_row_print(const struct rmm_row *row, char *out) {
  char address[24] = "(nil)";
  if (!row->nil)
    snprintf(address, sizeof(address), "0x%" PRIx64, row->pointer);
  int length = snprintf(out, RMM_LINE_MAX, "%" PRIu64 ",%02u:%02u:%02u%c%06u,%s,%s,%" PRIu64 ",", row->thread, row->hours,
                        row->minutes, row->seconds, row->point, row->microseconds, actions[row->action], address, row->size);
  snprintf(out + length, (size_t)(RMM_LINE_MAX - length), row->hex ? "0x%" PRIx64 "\n" : "%" PRIu64 "\n", row->stream);
}
