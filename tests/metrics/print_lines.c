/* SPDX-License-Identifier: Apache-2.0 */
/* usage: print_lines WRITER LINES: lines of metrics on stdout, by a meter as in a job, whose values all tell the writer and
   the line: step LINE, loss WRITER.LINE. */
#include "interpose/record/metrics.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void say(const char *text) {
  fprintf(stderr, "%s\n", text);
}

int main(int argc, char **argv) {
  static struct b200_meter meter;
  const struct b200_meter_config config = {.stream = STDOUT_FILENO, .every = 1, .prometheus = "", .say = say};
  if (argc != 3)
    return 2;
  int writer = atoi(argv[1]), lines = atoi(argv[2]);
  b200_meter_start(&meter, &config);
  for (int line = 1; line <= lines; line++) {
    for (int i = 0; i < B200_METRIC_COUNT; i++)
      b200_meter_set(&meter, (enum b200_metric)i, line);
    b200_meter_set(&meter, B200_METRIC_loss, writer + line * 1e-5);
    b200_meter_step(&meter, (uint64_t)line);
    while (b200_meter_work(&meter, false), atomic_load(&meter.due_count) > 0)
      sched_yield(); /* the reader is behind */
  }
  return 0;
}
