/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vnode_order/race_double.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/vnode/core/internal.h"

static struct vnode_race_clock clocks[LANES];
static char lines[1 << 20];
static size_t used;

void vnode_say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(lines + used, sizeof lines - used, format, arguments);
  va_end(arguments);
  used += (size_t)length;
  if (used > sizeof lines - 2)
    used = sizeof lines - 2;
  lines[used++] = '\n';
  lines[used] = 0;
}

const char *said(void) {
  if (!used)
    lines[0] = 0;
  used = 0;
  return lines;
}

uint32_t lane_runs(int lane, const char *name, const struct vnode_access *accesses) {
  size_t count = 0;
  while (accesses[count].row_bytes)
    count++;
  uint32_t epoch = ++clocks[lane].at[lane];
  const struct vnode_race_op op = {.name = name, .lane = lane, .epoch = epoch, .clock = &clocks[lane]};
  vnode_race_access(&op, accesses, count);
  return epoch;
}

void lane_waits(int lane, int other) {
  for (int i = 0; i < LANES; i++)
    if (clocks[other].at[i] > clocks[lane].at[i])
      clocks[lane].at[i] = clocks[other].at[i];
}

void lane_waits_for_number(int lane, int other, uint32_t number) {
  if (clocks[lane].at[other] < number)
    clocks[lane].at[other] = number;
}

bool lane_is_ordered(int lane, int other, uint32_t number) {
  return lane == other || clocks[lane].at[other] >= number;
}

const struct vnode_race_clock *lane_clock(int lane) {
  return &clocks[lane];
}
