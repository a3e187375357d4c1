/* SPDX-License-Identifier: Apache-2.0 */
/* From the losses as they were found to one curve of the run; the rules stand in run.h. */
#include "tools/compare/sources.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BRANCH_MIN 3     /* ascending steps that make a resume; fewer are a stray line */
#define COMMON_SHARE 0.9 /* of the steps that ranks must have in common */
#define TURN_SHARE 0.05  /* of the values that step back or repeat a step, from which on ranks share a file */
#define REPEAT_SHARE 0.5 /* and of the steps that come again */
#define DECIMALS_MAX 9
#define DECIMALS_LOOKED_AT 1000

struct entry {
  const struct compare_value *value;
  size_t order;
};

struct curve {
  int rank;
  struct compare_point *points;
  size_t count;
  int resumes;
  int64_t resumed_from; /* first step of the last resume */
};

static struct compare_point point_of(const struct compare_value *value) {
  return (struct compare_point){value->step, value->loss, value->grad_norm, value->tokens_per_s, value->t_s};
}

static int by_step(const void *a, const void *b) {
  const struct entry *left = a, *right = b;
  if (left->value->step != right->value->step)
    return left->value->step < right->value->step ? -1 : 1;
  return (left->order > right->order) - (left->order < right->order);
}

static void sort(struct entry *entries, size_t count) {
  for (size_t i = 1; i < count; i++)
    if (entries[i].value->step < entries[i - 1].value->step) {
      qsort(entries, count, sizeof(*entries), by_step);
      return;
    }
}

static int by_label(const void *a, const void *b) {
  const struct entry *left = a, *right = b;
  if (left->value->rank != right->value->rank)
    return left->value->rank < right->value->rank ? -1 : 1;
  return (left->order > right->order) - (left->order < right->order);
}

/* All values, those of each rank together and in order, without states of a progress bar that were drawn over. */
static struct entry *entries_by_rank(const struct compare_value *values, size_t count, size_t *kept) {
  struct entry *entries = b200_zeroed(count, sizeof(*entries));
  *kept = 0;
  for (size_t i = 0; i < count; i++)
    entries[i] = (struct entry){&values[i], i};
  qsort(entries, count, sizeof(*entries), by_label);
  for (size_t i = 0; i < count; i++) {
    const struct compare_value *last = *kept ? entries[*kept - 1].value : NULL, *value = entries[i].value;
    if (last && value->redrawn && last->rank == value->rank && last->step == value->step)
      (*kept)--;
    entries[(*kept)++] = entries[i];
  }
  return entries;
}

/* ---- one rank's curve */

/* Leaves out what a later branch (values with rising steps after a step back) did again: all from its first step on. */
static size_t drop_superseded(struct entry *entries, size_t count, struct curve *curve) {
  int64_t redone = INT64_MAX; /* first step of the branches that come later */
  size_t end = count, kept = count;
  while (end > 0) {
    size_t begin = end - 1, steps = 1;
    while (begin > 0 && entries[begin - 1].value->step <= entries[begin].value->step) {
      steps += entries[begin - 1].value->step < entries[begin].value->step;
      begin--;
    }
    for (size_t i = end; i-- > begin;)
      if (entries[i].value->step < redone)
        entries[--kept] = entries[i]; /* kept >= i: nothing unread is written over */
    if (begin > 0 && steps >= BRANCH_MIN) {
      curve->resumed_from = curve->resumes ? curve->resumed_from : entries[begin].value->step;
      curve->resumes++;
    }
    if (steps >= BRANCH_MIN && entries[begin].value->step < redone)
      redone = entries[begin].value->step;
    end = begin;
  }
  memmove(entries, entries + kept, (count - kept) * sizeof(*entries));
  return count - kept;
}

static void make_curve(struct entry *entries, size_t count, struct curve *out) {
  *out = (struct curve){.rank = entries[0].value->rank};
  count = drop_superseded(entries, count, out);
  sort(entries, count);
  out->points = b200_zeroed(count, sizeof(*out->points));
  for (size_t i = 0; i < count; i++) {
    if (out->count && out->points[out->count - 1].step == entries[i].value->step)
      out->count--; /* the later one counts */
    out->points[out->count++] = point_of(entries[i].value);
  }
}

/* ---- means over ranks */

struct mean {
  double sum, first;
  size_t count;
  bool equal;
};

static void add(struct mean *mean, double value) {
  if (mean->count == 0) {
    mean->first = value;
    mean->equal = true;
  }
  mean->equal = mean->equal && memcmp(&value, &mean->first, sizeof(value)) == 0;
  mean->sum += value;
  mean->count++;
}

/* Of equal values that value, to the bit. */
static double value_of(const struct mean *mean) {
  return mean->equal ? mean->first : mean->sum / (double)mean->count;
}

struct point_mean {
  int64_t step;
  struct mean loss, norm, rate;
  double t_s;
};

static void add_point(struct point_mean *mean, const struct compare_point *point) {
  mean->t_s = mean->loss.count == 0 || point->t_s > mean->t_s ? point->t_s : mean->t_s;
  mean->step = point->step;
  add(&mean->loss, point->loss);
  add(&mean->norm, point->grad_norm);
  add(&mean->rate, point->tokens_per_s);
}

static struct compare_point mean_point(const struct point_mean *mean) {
  return (struct compare_point){mean->step, value_of(&mean->loss), value_of(&mean->norm), value_of(&mean->rate), mean->t_s};
}

/* ---- ranks that share a file without labels */

static bool is_shared(const struct entry *entries, size_t count) {
  size_t turns = 0, distinct = 0;
  struct entry *sorted = b200_zeroed(count, sizeof(*sorted));
  memcpy(sorted, entries, count * sizeof(*sorted));
  sort(sorted, count);
  for (size_t i = 0; i < count; i++) {
    distinct += i == 0 || sorted[i].value->step != sorted[i - 1].value->step;
    turns += i > 0 && entries[i].value->step <= entries[i - 1].value->step;
  }
  free(sorted);
  return turns >= 2 && (double)turns >= TURN_SHARE * (double)count &&
         (double)(count - distinct) >= REPEAT_SHARE * (double)distinct;
}

/* How many values most steps have. */
static size_t usual_size(const struct entry *entries, size_t count) {
  size_t *often = b200_zeroed(count + 1, sizeof(*often)), best = 1;
  for (size_t i = 0, size = 0; i < count; i++) {
    size++;
    if (i + 1 == count || entries[i + 1].value->step != entries[i].value->step) {
      often[size]++;
      best = often[size] > often[best] ? size : best;
      size = 0;
    }
  }
  free(often);
  return best;
}

/* The mean of the last `size` values of each step; of steps with fewer, if `all`. */
static size_t mean_of_steps(const struct entry *entries, size_t count, size_t size, bool all, struct compare_point *out) {
  size_t points = 0;
  for (size_t begin = 0, end; begin < count; begin = end) {
    struct point_mean mean = {.step = 0};
    for (end = begin + 1; end < count && entries[end].value->step == entries[begin].value->step;)
      end++;
    if (end - begin < size && !all)
      continue;
    for (size_t i = end - begin > size ? end - size : begin; i < end; i++) {
      struct compare_point point = point_of(entries[i].value);
      add_point(&mean, &point);
    }
    out[points++] = mean_point(&mean);
  }
  return points;
}

static void share_out(struct entry *entries, size_t count, struct compare_run *run) {
  sort(entries, count);
  size_t size = usual_size(entries, count);
  struct compare_point *points = b200_zeroed(count, sizeof(*points));
  size_t all = mean_of_steps(entries, count, size, true, points);
  size_t full = mean_of_steps(entries, count, size, false, points);
  if ((double)full < COMMON_SHARE * (double)all)
    full = mean_of_steps(entries, count, size, true, points);
  run->points = points;
  run->point_count = full;
  run->loss_ranks = (int)size;
  compare_note(&run->notes, &run->note_count, "%zu ranks print losses without saying which: the mean of a step counts",
               size);
}

/* ---- ranks with labels */

static int by_rank(const void *a, const void *b) {
  const struct curve *left = a, *right = b;
  return (left->rank > right->rank) - (left->rank < right->rank);
}

/* Points at steps that all curves have. */
static size_t common_points(const struct curve *curves, size_t count, struct compare_point *out) {
  size_t *at = b200_zeroed(count, sizeof(*at)), points = 0;
  for (size_t i = 0; i < curves[0].count; i++) {
    struct point_mean mean = {.step = 0};
    bool common = true;
    for (size_t j = 0; j < count && common; j++) {
      while (at[j] < curves[j].count && curves[j].points[at[j]].step < curves[0].points[i].step)
        at[j]++;
      common = at[j] < curves[j].count && curves[j].points[at[j]].step == curves[0].points[i].step;
      if (common)
        add_point(&mean, &curves[j].points[at[j]]);
    }
    if (common)
      out[points++] = mean_point(&mean);
  }
  free(at);
  return points;
}

/* Sorts the curves by rank and leaves out (frees) those that have few of the steps: a stray line, another program. */
static size_t long_enough(struct curve *curves, size_t count) {
  size_t most = 0, kept = 0;
  for (size_t i = 0; i < count; i++)
    most = curves[i].count > most ? curves[i].count : most;
  qsort(curves, count, sizeof(*curves), by_rank);
  for (size_t i = 0; i < count; i++) {
    if ((double)curves[i].count >= COMMON_SHARE * (double)most)
      curves[kept++] = curves[i];
    else
      free(curves[i].points);
  }
  return kept;
}

static void combine(struct curve *curves, size_t count, struct compare_run *run) {
  size_t given = count, kept = long_enough(curves, count);
  count = kept;
  struct compare_point *points = b200_zeroed(curves[0].count, sizeof(*points));
  size_t common = common_points(curves, count, points);
  run->resumes = curves[0].resumes;
  if (run->resumes)
    compare_note(&run->notes, &run->note_count, "continued %d times, last from step %lld", run->resumes,
                 (long long)curves[0].resumed_from);
  if (count > 1 && (double)common < COMMON_SHARE * (double)curves[0].count) {
    compare_note(&run->notes, &run->note_count, "%zu ranks print losses of different steps: rank %d's count", count,
                 curves[0].rank);
    memcpy(points, curves[0].points, curves[0].count * sizeof(*points));
    common = curves[0].count;
    count = 1;
  } else if (given > count) {
    compare_note(&run->notes, &run->note_count,
                 "losses of %zu ranks that have less than nine tenths of the steps are left out", given - count);
  }
  run->points = points;
  run->point_count = common;
  run->loss_ranks = (int)count;
  for (size_t i = 0; i < kept; i++)
    free(curves[i].points);
}

/* ---- what was printed */

static int decimals_of(double value) {
  double scaled = fabs(value);
  for (int digits = 0; digits <= DECIMALS_MAX; digits++, scaled *= 10)
    if (fabs(scaled - nearbyint(scaled)) <= 8 * 0x1p-52 * scaled)
      return digits;
  return DECIMALS_MAX + 1;
}

static int most_decimals(const struct compare_value *values, size_t count) {
  int most = 0;
  bool any = false;
  for (size_t i = 0; i < count && i < DECIMALS_LOOKED_AT && most <= DECIMALS_MAX; i++) {
    if (!isfinite(values[i].loss))
      continue;
    int digits = decimals_of(values[i].loss);
    most = digits > most ? digits : most;
    any = true;
  }
  return any && most <= DECIMALS_MAX ? most : -1;
}

void compare_curve(const struct compare_value *values, size_t count, struct compare_run *run) {
  struct curve *curves = NULL;
  size_t curve_count = 0, kept;
  run->decimals = most_decimals(values, count);
  if (count == 0)
    return;
  struct entry *entries = entries_by_rank(values, count, &kept);
  bool labelled = entries[kept - 1].value->rank != COMPARE_NO_LABEL;
  if (!labelled && is_shared(entries, kept)) {
    share_out(entries, kept, run);
  } else {
    for (size_t begin = 0, end; begin < kept; begin = end) {
      for (end = begin + 1; end < kept && entries[end].value->rank == entries[begin].value->rank;)
        end++;
      curves = b200_grow(curves, curve_count, sizeof(*curves));
      make_curve(&entries[begin], end - begin, &curves[curve_count++]);
    }
    combine(curves, curve_count, run);
  }
  for (size_t i = 0; i < run->point_count; i++)
    if (run->points[i].t_s > run->ended_s || isnan(run->ended_s))
      run->ended_s = run->points[i].t_s;
  free(curves);
  free(entries);
}
