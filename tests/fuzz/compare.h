/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for the decoders of tools/compare on any bytes. */
#ifndef B200_FUZZ_COMPARE_H
#define B200_FUZZ_COMPARE_H

#include "tools/compare/sources.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static inline void check_line(const char *text) {
  if (!text || !text[0])
    abort();
  for (; *text; text++)
    if (*text < ' ' || *text > '~')
      abort();
}

/* One point per step, in order, within the steps that there can be. */
static inline void check_curve(const struct compare_values *values) {
  struct compare_run run = {.ended_s = (double)NAN};
  compare_curve(values->list, values->count, &run);
  if (run.point_count == 0 || run.point_count > values->count || run.loss_ranks < 1)
    abort();
  for (size_t i = 0; i < run.point_count; i++)
    if (run.points[i].step < 0 || run.points[i].step > COMPARE_STEP_MAX || !(run.points[i].tokens_per_s >= 0) ||
        (i && run.points[i].step <= run.points[i - 1].step))
      abort();
  for (size_t i = 0; i < run.note_count; i++) {
    check_line(run.notes[i]);
    free(run.notes[i]);
  }
  free(run.notes);
  free(run.points);
}

/* Values that make a curve, or one line that says what is wrong. */
static inline void check_decoder(compare_decode *decode, const char *data, size_t size, const char *tag) {
  struct compare_values values;
  char *error = NULL;
  bool good = decode(data, size, tag, &values, &error);
  if (good != (values.count > 0) || good != !error)
    abort();
  for (size_t i = 0; i < values.note_count; i++)
    check_line(values.notes[i]);
  if (good)
    check_curve(&values);
  else
    check_line(error);
  free(error);
  compare_values_free(&values);
}

#endif
