/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "interpose/record/reader.h"
#include "tools/compare/parts.h"
#include "tools/report/rows.h"

/* ---- columns: least and largest of what falls into one, and the mean of the smooth curve */

struct column {
  double low, high, sum;
  size_t count;
};

static void column_take(struct column *column, double raw, double smooth) {
  if (!isfinite(raw) || !isfinite(smooth))
    return;
  column->low = column->count ? fmin(column->low, raw) : raw;
  column->high = column->count ? fmax(column->high, raw) : raw;
  column->sum += smooth;
  column->count++;
}

static void column_put(json_t *row, const struct column *column) {
  json_array_append_new(row, compare_real(column->count ? column->low : NAN));
  json_array_append_new(row, compare_real(column->count ? column->high : NAN));
  json_array_append_new(row, compare_real(column->count ? column->sum / (double)column->count : NAN));
}

/* Every value counts for the columns of its neighbours within a smoothing width, too, so that the band is that of the steps
   which the smooth curve is a mean of. */
static struct column column_of(const double *raw, const double *smooth, size_t count, size_t from, size_t to) {
  struct column column = {0};
  const size_t half = LOSS_SMOOTH / 2;
  size_t first = from > half ? from - half : 0, last = to + half < count ? to + half : count;
  for (size_t i = from; i < to; i++)
    column_take(&column, raw[i], smooth[i]);
  for (size_t i = first; i < last && column.count; i++)
    if (isfinite(raw[i])) {
      column.low = fmin(column.low, raw[i]);
      column.high = fmax(column.high, raw[i]);
    }
  return column;
}

json_t *compare_columns(const struct loss_series *series) {
  size_t columns = series->count < COMPARE_COLUMNS ? series->count : COMPARE_COLUMNS;
  json_t *rows = json_array();
  for (size_t i = 0; i < columns; i++) {
    size_t from = i * series->count / columns, to = (i + 1) * series->count / columns;
    struct column a = column_of(series->a, series->smooth_a, series->count, from, to),
                  b = column_of(series->b, series->smooth_b, series->count, from, to),
                  gap = column_of(series->gap, series->smooth_gap, series->count, from, to);
    json_t *row = json_pack("[I]", (json_int_t)series->steps[from + (to - from) / 2]);
    column_put(row, &a);
    column_put(row, &b);
    column_put(row, &gap);
    json_array_append_new(rows, row);
  }
  return json_pack("{sI sb s[ssssssssss] so}", "points", (json_int_t)series->count, "thinned", columns < series->count,
                   "columns", "step", "baseline low", "baseline high", "baseline", "candidate low", "candidate high",
                   "candidate", "gap low %", "gap high %", "gap %", "rows", rows);
}

/* ---- histogram */

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* From the least to three times the distance of the 95th percentile from the median above it. */
static void histogram_range(const double *sorted, size_t count, double *low, double *high) {
  double median = sorted[count / 2], p95 = sorted[(size_t)(0.95 * (double)(count - 1))];
  *low = fmin(*low, sorted[0]);
  *high = fmax(*high, fmin(sorted[count - 1], median + 3 * fmax(p95 - median, median * 0.005)));
}

static double *sorted_copy(const double *values, size_t *count) {
  double *copy = b200_zeroed(*count + 1, sizeof(*copy));
  size_t kept = 0;
  for (size_t i = 0; i < *count; i++)
    if (isfinite(values[i]))
      copy[kept++] = values[i];
  qsort(copy, kept, sizeof(*copy), by_value);
  *count = kept;
  return copy;
}

json_t *compare_histogram(const double *const seconds[2], const size_t counts[2]) {
  enum { BINS = 60 };
  double share[2][BINS] = {{0}}, low = INFINITY, high = -INFINITY;
  size_t clipped[2] = {0}, kept[2] = {counts[0], counts[1]};
  double *sorted[2];
  for (int side = 0; side < 2; side++) {
    sorted[side] = sorted_copy(seconds[side], &kept[side]);
    if (kept[side])
      histogram_range(sorted[side], kept[side], &low, &high);
  }
  if (!(low <= high))
    low = high = 0;
  double room = fmax((high - low) * 0.03, high * 0.002), width = (high - low + 2 * room) / BINS;
  low -= room;
  for (int side = 0; side < 2; side++) {
    for (size_t i = 0; i < kept[side]; i++) {
      double bin = width > 0 ? (sorted[side][i] - low) / width : 0;
      if (bin < BINS)
        share[side][(int)bin] += 100.0 / (double)kept[side];
      else
        clipped[side]++;
    }
    free(sorted[side]);
  }
  json_t *rows = json_array();
  for (int i = 0; i < BINS; i++)
    json_array_append_new(
        rows, json_pack("[ffff]", 1e3 * (low + i * width), 1e3 * (low + (i + 1) * width), share[0][i], share[1][i]));
  return json_pack("{s[ssss] so s[II]}", "columns", "from ms", "to ms", "baseline %", "candidate %", "rows", rows, "clipped",
                   (json_int_t)clipped[0], (json_int_t)clipped[1]);
}

/* ---- communication per step */

static bool has_communication(const struct compare_step *step) {
  return isfinite(step->blocked_s) && isfinite(step->comm_s);
}

static json_t *communication_of(const struct compare_run *run) {
  size_t count = 0, done = 0;
  for (size_t i = 0; i < run->step_count; i++)
    count += has_communication(&run->steps[i]);
  size_t columns = count < COMPARE_COLUMNS ? count : COMPARE_COLUMNS;
  json_t *rows = json_array();
  for (size_t i = 0, at = 0; i < columns; i++) {
    struct column blocked = {0}, hidden = {0};
    size_t to = (i + 1) * count / columns;
    int64_t step = 0;
    for (; done < to; at++) {
      const struct compare_step *it = &run->steps[at];
      if (!has_communication(it))
        continue;
      step = it->step;
      column_take(&blocked, 1e3 * it->blocked_s, 1e3 * it->blocked_s);
      column_take(&hidden, 1e3 * fmax(it->comm_s - it->blocked_s, 0), 1e3 * fmax(it->comm_s - it->blocked_s, 0));
      done++;
    }
    json_t *row = json_pack("[I]", (json_int_t)step);
    column_put(row, &blocked);
    column_put(row, &hidden);
    json_array_append_new(rows, row);
  }
  return json_pack("{sI sb s[sssssss] so}", "points", (json_int_t)count, "thinned", columns < count, "columns", "step",
                   "blocked low ms", "blocked high ms", "blocked ms", "hidden low ms", "hidden high ms", "hidden ms", "rows",
                   rows);
}

json_t *compare_communication(const struct compare_arm *const arms[2]) {
  json_t *sides[2];
  size_t points = 0;
  for (int side = 0; side < 2; side++) {
    sides[side] = arms[side]->run_count ? communication_of(&arms[side]->runs[0]) : json_object();
    points += json_array_size(json_object_get(sides[side], "rows"));
  }
  json_t *both = json_pack("{so so}", "baseline", sides[0], "candidate", sides[1]);
  if (points)
    return both;
  json_decref(both);
  return json_null();
}
