/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/clocks.h"

#include <stdlib.h>
#include <string.h>

#include "tools/report/rows.h"

#define ADD(array, count) ((array) = b200_grow((array), (count), sizeof(*(array))), &(array)[(count)++])

#define ENDS_MIN 8               /* matched collectives that make an alignment; also those of one stretch */
#define SLOPE_MAX 1e-3           /* no clock drifts so fast */
#define BOUND (INT64_C(1) << 62) /* of common times */

/* The end of a collective on a rank to be aligned, and how much later the common clock has it. */
struct end {
  int64_t t_ns, offset_ns;
};

struct ends {
  struct end *items;
  size_t count;
};

static int64_t bounded(int64_t t_ns) {
  return t_ns > BOUND ? BOUND : t_ns < -BOUND ? -BOUND : t_ns;
}

static int64_t difference(int64_t a, int64_t b) {
  return b200_add(a, b == INT64_MIN ? INT64_MAX : -b);
}

static double slope(const struct report_knot *from, const struct report_knot *to) {
  double value = (double)difference(to->offset_ns, from->offset_ns) / (double)difference(to->t_ns, from->t_ns);
  return value > -SLOPE_MAX && value < SLOPE_MAX ? value : 0;
}

int64_t report_clock_time(const struct report_clock *clock, int64_t t_ns) {
  const struct report_knot *knots = clock->knots, *near = &knots[0], *from = near, *to;
  size_t last = clock->knot_count - 1;
  if (clock->knot_count == 0)
    return bounded(t_ns);
  to = &knots[last]; /* beyond the knots the drift from the first to the last goes on */
  if (last && t_ns >= knots[last].t_ns)
    near = to;
  for (size_t i = 0; i < last; i++) {
    if (t_ns >= knots[i].t_ns && t_ns < knots[i + 1].t_ns) {
      near = from = &knots[i];
      to = &knots[i + 1];
    }
  }
  double drift = last ? slope(from, to) * (double)difference(t_ns, near->t_ns) : 0;
  return bounded(b200_add(t_ns, b200_add(near->offset_ns, (int64_t)(drift + (drift < 0 ? -0.5 : 0.5)))));
}

static int64_t end_of(const struct report_part *part) {
  return part->op->t_ns + part->op->dur_ns; /* the reader keeps both within 2^61 */
}

static int by_time(const void *a, const void *b) {
  const struct end *left = a, *right = b;
  return (left->t_ns > right->t_ns) - (left->t_ns < right->t_ns);
}

static int by_offset(const void *a, const void *b) {
  const struct end *left = a, *right = b;
  return (left->offset_ns > right->offset_ns) - (left->offset_ns < right->offset_ns);
}

/* Knots from the ends: stretches of equally many, each with its median offset and the time of just that end. */
static void fit(struct report_clock *clock, struct ends *ends) {
  size_t stretches = ends->count / ENDS_MIN;
  stretches = stretches < 1 ? 1 : stretches > REPORT_CLOCK_KNOTS ? REPORT_CLOCK_KNOTS : stretches;
  qsort(ends->items, ends->count, sizeof(*ends->items), by_time);
  for (size_t i = 0; i < stretches; i++) {
    size_t first = i * ends->count / stretches, last = (i + 1) * ends->count / stretches;
    qsort(&ends->items[first], last - first, sizeof(*ends->items), by_offset);
    const struct end *median = &ends->items[(first + last - 1) / 2];
    if (clock->knot_count && median->t_ns <= clock->knots[clock->knot_count - 1].t_ns)
      continue;
    clock->knots[clock->knot_count++] = (struct report_knot){median->t_ns, median->offset_ns};
  }
  clock->aligned = true;
}

static bool usable(const struct b200_log *const *logs, const struct report_match *match, const struct report_group *group) {
  const struct report_part *part = &match->parts[group->first];
  return group->alike && report_ends_together(logs[part->log]->kinds[part->op->kind].op);
}

/* The aligned log that has most of the communicator's collectives; `count` when there is none, or none is left to be aligned
   to it. */
static size_t find_parent(const struct report_match *match, const struct report_comm *comm,
                          const struct report_clock *clocks, size_t count) {
  size_t *have = b200_zeroed(count, sizeof(*have)), best = count;
  bool any = false; /* to be aligned */
  for (size_t i = comm->first; i < comm->last; i++)
    for (size_t j = match->groups[i].first; j < match->groups[i].last; j++)
      have[match->parts[j].log]++;
  for (size_t i = 0; i < count; i++) {
    any = any || (have[i] && !clocks[i].aligned);
    if (have[i] && clocks[i].aligned && (best == count || have[i] > have[best]))
      best = i;
  }
  free(have);
  return any ? best : count;
}

/* Aligns the logs of a communicator that are not yet. True: there were some. */
static bool align_comm(const struct b200_log *const *logs, size_t count, const struct report_match *match,
                       const struct report_comm *comm, struct report_clock *clocks) {
  size_t parent = find_parent(match, comm, clocks, count);
  bool any = false;
  if (parent == count)
    return false;
  struct ends *ends = b200_zeroed(count, sizeof(*ends));
  for (size_t i = comm->first; i < comm->last; i++) {
    const struct report_group *group = &match->groups[i];
    const struct report_part *reference = NULL;
    for (size_t j = group->first; j < group->last; j++)
      reference = match->parts[j].log == parent ? &match->parts[j] : reference;
    if (!reference || !usable(logs, match, group))
      continue;
    int64_t common_ns = report_clock_time(&clocks[parent], end_of(reference));
    for (size_t j = group->first; j < group->last; j++) {
      const struct report_part *part = &match->parts[j];
      struct ends *of = &ends[part->log];
      if (!clocks[part->log].aligned)
        *ADD(of->items, of->count) = (struct end){end_of(part), difference(common_ns, end_of(part))};
    }
  }
  for (size_t i = 0; i < count; i++) {
    if (ends[i].count >= ENDS_MIN) {
      fit(&clocks[i], &ends[i]);
      any = true;
    }
    free(ends[i].items);
  }
  free(ends);
  return any;
}

static void measure(const struct b200_log *const *logs, const struct report_match *match, struct report_clocks *out) {
  int64_t *residuals = NULL, *ends = b200_zeroed(out->count, sizeof(*ends));
  for (size_t i = 0; i < match->group_count; i++) {
    const struct report_group *group = &match->groups[i];
    size_t count = 0;
    for (size_t j = group->first; j < group->last; j++)
      if (out->clocks[match->parts[j].log].aligned)
        ends[count++] = report_clock_time(&out->clocks[match->parts[j].log], end_of(&match->parts[j]));
    if (count < 2 || !usable(logs, match, group))
      continue;
    qsort(ends, count, sizeof(*ends), report_by_number);
    size_t median = (count - 1) / 2;
    for (size_t j = 0; j < count; j++) {
      int64_t off = difference(ends[j], ends[median]);
      if (j != median)
        *ADD(residuals, out->measured) = off < 0 ? -off : off;
    }
  }
  free(ends);
  if (out->measured) {
    qsort(residuals, out->measured, sizeof(*residuals), report_by_number);
    out->residual_p95_ns = residuals[(out->measured * 95 + 99) / 100 - 1];
  }
  free(residuals);
}

/* Large communicators first, so that few ranks are aligned by way of others. */
static int by_size(const void *a, const void *b) {
  const struct report_comm *left = *(const struct report_comm *const *)a, *right = *(const struct report_comm *const *)b;
  if (left->logs != right->logs)
    return left->logs < right->logs ? 1 : -1;
  return (left->first > right->first) - (left->first < right->first);
}

void report_clocks_make(const struct b200_log *const *logs, size_t count, const struct report_match *match,
                        struct report_clocks *out) {
  *out = (struct report_clocks){.count = count, .residual_p95_ns = -1};
  out->clocks = b200_zeroed(count, sizeof(*out->clocks));
  if (!count)
    return;
  /* The first rank shows its host's time of day. */
  out->clocks[0].aligned = true;
  out->clocks[0].knot_count = 1;
  out->clocks[0].knots[0].offset_ns = bounded(difference(logs[0]->unix_ns, logs[0]->t_ns));
  const struct report_comm **order = b200_zeroed(match->comm_count, sizeof(*order));
  for (size_t i = 0; i < match->comm_count; i++)
    order[i] = &match->comms[i];
  qsort(order, match->comm_count, sizeof(*order), by_size);
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < match->comm_count; i++)
      again = (order[i]->last && align_comm(logs, count, match, order[i], out->clocks)) || again;
  }
  free(order);
  for (size_t i = 0; i < count; i++) {
    out->aligned += out->clocks[i].aligned;
    if (out->clocks[i].aligned)
      continue;
    out->clocks[i].knot_count = 1;
    out->clocks[i].knots[0].offset_ns = bounded(difference(logs[i]->unix_ns, logs[i]->t_ns));
  }
  measure(logs, match, out);
}

void report_clocks_free(struct report_clocks *clocks) {
  free(clocks->clocks);
  memset(clocks, 0, sizeof(*clocks));
}
