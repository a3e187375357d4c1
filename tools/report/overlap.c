/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/overlap.h"

#include "tools/report/clocks.h"
#include "tools/report/match.h"
#include "tools/report/rows.h"

#include <stdlib.h>
#include <string.h>

#define RESIDUAL_MAX_NS 50000 /* clocks that fit worse say nothing about who came late */
#define MISSING_NAMED 16
#define SECONDS 1e-9

#define ADD(array, count)                                                                                                   \
  ((array) = b200_grow((array), (count), sizeof(*(array))), memset(&(array)[(count)], 0, sizeof(*(array))),                 \
   &(array)[(count)++])

bool report_step_is_steady(const struct b200_log_step *step) {
  return step->step > 0 && !step->first && !step->interrupted && !step->last;
}

/* A quotient, or null where there is none. */
static json_t *ratio(double above, double below) {
  return below > 0 ? json_real(above / below) : json_null();
}

static json_t *percent(double part, double whole) {
  return ratio(100 * part, whole);
}

/* ---- kinds of collectives */

/* nccl-tests' doc/PERFORMANCE.md: busbw = algbw times the share of the bytes that each link has to carry. */
static double bus_factor(const char *op, int64_t nranks) {
  static const char *const shared[] = {"AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"};
  if (nranks < 1)
    return 0;
  double others = (double)(nranks - 1) / (double)nranks;
  if (strcmp(op, "AllReduce") == 0)
    return 2 * others;
  for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
    if (strcmp(op, shared[i]) == 0)
      return others;
  return 1;
}

/* What is known of one kind over all ranks. */
struct kind {
  const char *op, *dtype;
  int64_t nranks;
  int64_t counted, calls, bytes, dur_ns, blocked_ns, queued_ns; /* calls that were made; the rest of those timed */
  /* Of matched collectives: how many, their bytes, the least time over ranks; parts, and what they waited for peers. */
  int64_t matched, matched_bytes, transfer_ns, parts, wait_ns;
};

struct kinds {
  struct kind *items;
  size_t count;
  json_t *places;
};

static size_t kind_place(struct kinds *kinds, const char *op, const char *dtype, int64_t nranks) {
  char *text = b200_format("%s\n%s\n%lld", op, dtype, (long long)nranks);
  const json_t *known = json_object_get(kinds->places, text);
  size_t place = known ? (size_t)json_integer_value(known) : kinds->count;
  if (!known) {
    struct kind *kind = ADD(kinds->items, kinds->count);
    kind->op = op;
    kind->dtype = dtype;
    kind->nranks = nranks;
    json_object_set_new(kinds->places, text, json_integer((json_int_t)place));
  }
  free(text);
  return place;
}

static struct kind *find_kind(struct kinds *kinds, const char *op, const char *dtype, int64_t nranks) {
  size_t place = kind_place(kinds, op, dtype, nranks);
  return &kinds->items[place];
}

static void add_kinds(struct kinds *kinds, const struct b200_log *log) {
  for (size_t i = 0; i < log->kind_count; i++) {
    const struct b200_log_kind *from = &log->kinds[i];
    struct kind *to = find_kind(kinds, from->op, from->dtype, from->nranks);
    to->calls = b200_add(to->calls, from->calls);
    to->bytes = b200_add(to->bytes, from->bytes);
    to->dur_ns = b200_add(to->dur_ns, from->dur_ns);
    to->blocked_ns = b200_add(to->blocked_ns, from->blocked_ns);
    to->queued_ns = b200_add(to->queued_ns, from->queued_ns);
  }
  for (size_t i = 0; i < log->coll_count; i++) {
    const struct b200_log_coll *from = &log->colls[i];
    struct kind *to = find_kind(kinds, from->op, from->dtype, from->nranks);
    to->counted = b200_add(to->counted, from->calls);
  }
}

/* GB/s (10^9) of `bytes` in `ns`, times the factor; null when either is not known, or the factor is that of no one kind. */
static json_t *bandwidth(const struct kind *kind, int64_t bytes, int64_t ns, bool bus) {
  if (ns <= 0 || bytes <= 0 || (bus && strcmp(kind->op, "mixed") == 0))
    return json_null();
  return json_real((double)bytes / (double)ns * (bus ? bus_factor(kind->op, kind->nranks) : 1));
}

static int by_duration(const void *a, const void *b) {
  const struct kind *left = a, *right = b;
  if (left->dur_ns != right->dur_ns)
    return left->dur_ns < right->dur_ns ? 1 : -1;
  int order = strcmp(left->op, right->op);
  order = order ? order : strcmp(left->dtype, right->dtype);
  return order ? order : (left->nranks > right->nranks) - (left->nranks < right->nranks);
}

/* Most device time first. */
static json_t *kind_rows(struct kinds *kinds) {
  json_t *rows = json_array();
  if (kinds->count)
    qsort(kinds->items, kinds->count, sizeof(*kinds->items), by_duration);
  for (size_t i = 0; i < kinds->count; i++) {
    const struct kind *kind = &kinds->items[i];
    double dur = (double)kind->dur_ns;
    json_t *row = json_pack("{ss ss sI sI sI}", "op", kind->op, "dtype", kind->dtype, "nranks", kind->nranks, "counted",
                            kind->counted, "calls", kind->calls);
    if (kind->calls > 0)
      json_object_update_new(row,
                             json_pack("{sI sf so so so sf sf so}", "bytes", kind->bytes, "dur_s", dur * SECONDS, "mean_s",
                                       ratio(dur * SECONDS, (double)kind->calls), "algbw_gb_s",
                                       bandwidth(kind, kind->bytes, kind->dur_ns, false), "busbw_gb_s",
                                       bandwidth(kind, kind->bytes, kind->dur_ns, true), "blocked_s",
                                       (double)kind->blocked_ns * SECONDS, "queued_s", (double)kind->queued_ns * SECONDS,
                                       "hidden_pct", percent(dur - (double)kind->blocked_ns, dur)));
    json_object_set_new(row, "matched",
                        kind->matched
                            ? json_pack("{sI so so so}", "operations", kind->matched, "transfer_mean_s",
                                        ratio((double)kind->transfer_ns * SECONDS, (double)kind->matched), "busbw_gb_s",
                                        bandwidth(kind, kind->matched_bytes, kind->transfer_ns, true), "wait_mean_s",
                                        ratio((double)kind->wait_ns * SECONDS, (double)kind->parts))
                            : json_null());
    json_array_append_new(rows, row);
  }
  return rows;
}

/* ---- steps on the device */

/* Sums over steady steps. */
struct steady {
  int64_t steps, dev_ns, comm_ns, busy_ns, blocked_ns, queued_ns;
  int64_t gemm_steps, gemm_dev_ns, gemm_ns, uncovered_ns; /* of those whose GEMMs were timed */
  int64_t left_out;                                       /* timed, but not steady */
};

static void add_steady(struct steady *to, const struct b200_log_step *step) {
  const struct b200_log_time *time = &step->time;
  if (!step->timed)
    return;
  if (!report_step_is_steady(step)) {
    to->left_out++;
    return;
  }
  to->steps++;
  to->dev_ns = b200_add(to->dev_ns, time->dev_ns);
  to->comm_ns = b200_add(to->comm_ns, time->comm_ns);
  to->busy_ns = b200_add(to->busy_ns, time->busy_ns);
  to->blocked_ns = b200_add(to->blocked_ns, time->blocked_ns);
  to->queued_ns = b200_add(to->queued_ns, time->queued_ns);
  if (time->gemms <= 0)
    return;
  to->gemm_steps++;
  to->gemm_dev_ns = b200_add(to->gemm_dev_ns, time->dev_ns);
  to->gemm_ns = b200_add(to->gemm_ns, time->gemm_ns);
  to->uncovered_ns = b200_add(to->uncovered_ns, time->uncovered_ns);
}

/* Means over the steps. */
static json_t *steady_row(const struct steady *steady) {
  double steps = (double)steady->steps, device = (double)steady->dev_ns, blocked = (double)steady->blocked_ns;
  json_t *row =
      json_pack("{sI so so so so so so so so}", "steps", steady->steps, "device_s", ratio(device * SECONDS, steps), "comm_s",
                ratio((double)steady->comm_ns * SECONDS, steps), "busy_s", ratio((double)steady->busy_ns * SECONDS, steps),
                "blocked_s", ratio(blocked * SECONDS, steps), "blocked_pct", percent(blocked, device), "queued_s",
                ratio((double)steady->queued_ns * SECONDS, steps), "hidden_pct",
                percent((double)steady->busy_ns - blocked, (double)steady->busy_ns), "ceiling",
                steady->steps ? ratio(device, device - blocked) : json_null());
  double gemm_steps = (double)steady->gemm_steps;
  json_object_update_new(row, json_pack("{sI so so}", "gemm_steps", steady->gemm_steps, "gemm_s",
                                        ratio((double)steady->gemm_ns * SECONDS, gemm_steps), "uncovered_s",
                                        ratio((double)steady->uncovered_ns * SECONDS, gemm_steps)));
  return row;
}

/* Nearest-rank quantiles of one number of all steady steps of all ranks. */
static json_t *quantiles(const struct b200_log *const *logs, size_t count, size_t offset) {
  int64_t *values = NULL;
  size_t used = 0;
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->step_count; j++)
      if (logs[i]->steps[j].timed && report_step_is_steady(&logs[i]->steps[j]))
        *ADD(values, used) = *(const int64_t *)((const char *)&logs[i]->steps[j].time + offset);
  if (!used)
    return json_null();
  qsort(values, used, sizeof(*values), report_by_number);
  json_t *out = json_pack("{sf sf sf}", "p10_s", (double)values[(used * 10 + 99) / 100 - 1] * SECONDS, "median_s",
                          (double)values[(used * 50 + 99) / 100 - 1] * SECONDS, "p90_s",
                          (double)values[(used * 90 + 99) / 100 - 1] * SECONDS);
  free(values);
  return out;
}

static json_t *steady_section(const struct b200_log *const *logs, size_t count) {
  struct steady all = {0};
  json_t *ranks = json_array();
  for (size_t i = 0; i < count; i++) {
    struct steady own = {0};
    for (size_t j = 0; j < logs[i]->step_count; j++) {
      add_steady(&own, &logs[i]->steps[j]);
      add_steady(&all, &logs[i]->steps[j]);
    }
    if (!own.steps)
      continue;
    json_t *row = steady_row(&own);
    json_object_set_new(row, "rank", json_integer(logs[i]->rank));
    json_array_append_new(ranks, row);
  }
  json_t *out = steady_row(&all);
  json_object_update_new(out, json_pack("{sI so so so}", "left_out", all.left_out, "device",
                                        quantiles(logs, count, offsetof(struct b200_log_time, dev_ns)), "blocked",
                                        quantiles(logs, count, offsetof(struct b200_log_time, blocked_ns)), "ranks", ranks));
  return out;
}

/* ---- all ranks together */

/* What a rank has to do with the others' waiting. */
struct peer {
  int64_t parts, wait_ns; /* of its matched collectives: what it waited for the rest */
  int64_t last, late_ns;  /* it came last so often, so much later than the median of the others in sum */
};

struct together {
  const struct b200_log *const *logs;
  size_t count;
  struct report_match match;
  struct report_clocks clocks;
  size_t **kinds; /* per log: place of each of its kinds in all of them */
  struct peer *peers;
  int64_t operations, partial, unlike, timed_starts; /* collectives; those whose starts were compared */
};

static const struct b200_log_step *find_step(const struct b200_log *log, int64_t ordinal) {
  size_t low = 0, high = log->step_count; /* as the library writes them, in order */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (log->steps[middle].step < ordinal)
      low = middle + 1;
    else
      high = middle;
  }
  return low < log->step_count && log->steps[low].step == ordinal ? &log->steps[low] : NULL;
}

/* True unless the collective belongs to a step that is out of the ordinary. */
static bool is_steady(const struct together *all, const struct report_part *part) {
  const struct b200_log *log = all->logs[part->log];
  const struct b200_log_step *step = find_step(log, part->op->step);
  return !log->step_count || (step && report_step_is_steady(step));
}

/* Of `count` >= 2 starts: how much later the last came than the median of the others; `last` gets its place. */
static int64_t lateness(const int64_t *starts, size_t count, int64_t *scratch, size_t *last) {
  *last = 0;
  for (size_t i = 1; i < count; i++)
    *last = starts[i] > starts[*last] ? i : *last;
  size_t others = 0;
  for (size_t i = 0; i < count; i++)
    if (i != *last)
      scratch[others++] = starts[i];
  qsort(scratch, others, sizeof(*scratch), report_by_number);
  return b200_add(starts[*last], -scratch[(others - 1) / 2]);
}

static void add_lateness(struct together *all, const struct report_group *group, int64_t *starts, int64_t *scratch) {
  const struct report_part *parts = &all->match.parts[group->first];
  size_t count = group->last - group->first, last;
  if (!report_ends_together(all->logs[parts->log]->kinds[parts->op->kind].op))
    return;
  for (size_t i = 0; i < count; i++) {
    if (!all->clocks.clocks[parts[i].log].aligned)
      return;
    starts[i] = report_clock_time(&all->clocks.clocks[parts[i].log], parts[i].op->t_ns);
  }
  int64_t late_ns = lateness(starts, count, scratch, &last);
  all->timed_starts++;
  if (late_ns <= all->clocks.residual_p95_ns)
    return; /* they came together, as far as can be told */
  struct peer *peer = &all->peers[parts[last].log];
  peer->last++;
  peer->late_ns = b200_add(peer->late_ns, late_ns);
}

static void add_transfer(struct together *all, struct kinds *kinds, const struct report_group *group) {
  const struct report_part *parts = &all->match.parts[group->first];
  struct kind *kind = &kinds->items[all->kinds[parts->log][parts->op->kind]];
  int64_t least = parts[0].op->dur_ns;
  size_t count = group->last - group->first;
  for (size_t i = 1; i < count; i++)
    least = parts[i].op->dur_ns < least ? parts[i].op->dur_ns : least;
  kind->matched++;
  kind->matched_bytes = b200_add(kind->matched_bytes, parts->op->bytes);
  kind->transfer_ns = b200_add(kind->transfer_ns, least);
  for (size_t i = 0; i < count; i++) {
    struct peer *peer = &all->peers[parts[i].log];
    int64_t wait_ns = parts[i].op->dur_ns - least;
    kind->parts++;
    kind->wait_ns = b200_add(kind->wait_ns, wait_ns);
    peer->parts++;
    peer->wait_ns = b200_add(peer->wait_ns, wait_ns);
  }
}

static void compare_ranks(struct together *all, struct kinds *kinds) {
  int64_t *starts = b200_zeroed(all->count, sizeof(*starts)), *scratch = b200_zeroed(all->count, sizeof(*scratch));
  bool late = all->clocks.residual_p95_ns >= 0 && all->clocks.residual_p95_ns <= RESIDUAL_MAX_NS;
  for (size_t i = 0; i < all->match.group_count; i++) {
    const struct report_group *group = &all->match.groups[i];
    if (!is_steady(all, &all->match.parts[group->first]))
      continue;
    all->unlike += !group->alike;
    all->partial += group->alike && !group->whole;
    if (!group->alike || !group->whole)
      continue;
    all->operations++;
    add_transfer(all, kinds, group);
    if (late)
      add_lateness(all, group, starts, scratch);
  }
  free(starts);
  free(scratch);
}

static json_t *peer_rows(const struct together *all) {
  json_t *rows = json_array();
  for (size_t i = 0; i < all->count; i++) {
    const struct peer *peer = &all->peers[i];
    if (peer->parts)
      json_array_append_new(rows, json_pack("{sI sI so sI so}", "rank", all->logs[i]->rank, "operations", peer->parts,
                                            "wait_mean_s", ratio((double)peer->wait_ns * SECONDS, (double)peer->parts),
                                            "last", peer->last, "late_mean_s",
                                            ratio((double)peer->late_ns * SECONDS, (double)peer->last)));
  }
  return rows;
}

/* Those that came last, most often first. */
static int by_last(const void *a, const void *b) {
  const json_t *left = *(json_t *const *)a, *right = *(json_t *const *)b;
  int64_t difference = report_number(right, "last") - report_number(left, "last");
  if (difference)
    return difference > 0 ? 1 : -1;
  return report_number(left, "rank") < report_number(right, "rank") ? -1 : 1;
}

static json_t *stragglers(const json_t *peers) {
  size_t count = json_array_size(peers), used = 0;
  const json_t **rows = b200_zeroed(count, sizeof(*rows));
  json_t *out = json_array();
  for (size_t i = 0; i < count; i++)
    if (report_number(json_array_get(peers, i), "last"))
      rows[used++] = json_array_get(peers, i);
  if (used)
    qsort(rows, used, sizeof(*rows), by_last);
  for (size_t i = 0; i < used; i++)
    json_array_append_new(out,
                          json_pack("{sI sI sO}", "rank", report_number(rows[i], "rank"), "last",
                                    report_number(rows[i], "last"), "late_mean_s", json_object_get(rows[i], "late_mean_s")));
  free(rows);
  return out;
}

/* null with fewer than two logs. */
static json_t *together_section(const struct b200_log *const *logs, size_t count, struct kinds *kinds) {
  struct together all = {.logs = logs, .count = count};
  if (count < 2)
    return json_null();
  report_match_make(logs, count, &all.match);
  report_clocks_make(logs, count, &all.match, &all.clocks);
  all.peers = b200_zeroed(count, sizeof(*all.peers));
  all.kinds = b200_zeroed(count, sizeof(*all.kinds));
  for (size_t i = 0; i < count; i++) {
    all.kinds[i] = b200_zeroed(logs[i]->kind_count, sizeof(*all.kinds[i]));
    for (size_t j = 0; j < logs[i]->kind_count; j++) {
      const struct b200_log_kind *kind = &logs[i]->kinds[j];
      all.kinds[i][j] = kind_place(kinds, kind->op, kind->dtype, kind->nranks);
    }
  }
  compare_ranks(&all, kinds);
  json_t *peers = peer_rows(&all);
  int64_t residual = all.clocks.residual_p95_ns;
  json_t *out = json_pack(
      "{sI sI sI sI so sI so so}", "operations", all.operations, "partial", all.partial, "unlike", all.unlike,
      "ranks_aligned", (json_int_t)(all.clocks.measured ? all.clocks.aligned : 0), "residual_p95_s",
      residual < 0 ? json_null() : json_real((double)residual * SECONDS), "compared", all.timed_starts, "stragglers",
      residual < 0 || residual > RESIDUAL_MAX_NS || !all.timed_starts ? json_null() : stragglers(peers), "ranks", peers);
  for (size_t i = 0; i < count; i++)
    free(all.kinds[i]);
  free(all.kinds);
  free(all.peers);
  report_match_free(&all.match);
  report_clocks_free(&all.clocks);
  return out;
}

/* ---- what is missing, and what disagrees */

static json_t *missing_section(const struct b200_log *const *logs, size_t count) {
  int64_t world = 0, missing = 0;
  for (size_t i = 0; i < count; i++) {
    world = logs[i]->world > world ? logs[i]->world : world;
    for (size_t j = 0; j < logs[i]->comm_count; j++)
      world = logs[i]->comms[j].nranks > world ? logs[i]->comms[j].nranks : world;
  }
  if (world > 1 << 20) /* no such job: a log that is wrong */
    world = 1 << 20;
  bool *seen = b200_zeroed((size_t)world, sizeof(*seen));
  json_t *named = json_array();
  bool any = false;
  for (size_t i = 0; i < count; i++) {
    if (logs[i]->rank >= 0 && logs[i]->rank < world)
      seen[logs[i]->rank] = any = true;
  }
  for (int64_t rank = 0; any && rank < world; rank++) {
    if (seen[rank])
      continue;
    if (missing++ < MISSING_NAMED)
      json_array_append_new(named, json_integer(rank));
  }
  free(seen);
  return json_pack("{sI sI so}", "world", world, "count", missing, "ranks", named);
}

/* Kinds of collectives that ranks called differently often. Only with complete logs of one kind of process each: a killed
   rank has fewer calls, and that is no defect of the job. */
static json_t *differing_section(const struct b200_log *const *logs, size_t count) {
  json_t *rows = json_array();
  struct kinds kinds = {.places = json_object()};
  struct range {
    int64_t least, most, least_rank, most_rank;
    size_t logs;
  } *ranges = NULL;
  size_t range_count = 0;
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < logs[i]->coll_count; j++) {
      const struct b200_log_coll *coll = &logs[i]->colls[j];
      size_t place = kind_place(&kinds, coll->op, coll->dtype, coll->nranks);
      if (place == range_count)
        *ADD(ranges, range_count) = (struct range){coll->calls, coll->calls, logs[i]->rank, logs[i]->rank, 0};
      struct range *range = &ranges[place];
      range->logs++;
      if (coll->calls < range->least) {
        range->least = coll->calls;
        range->least_rank = logs[i]->rank;
      }
      if (coll->calls > range->most) {
        range->most = coll->calls;
        range->most_rank = logs[i]->rank;
      }
    }
  }
  for (size_t i = 0; i < range_count; i++) {
    if (ranges[i].least != ranges[i].most)
      json_array_append_new(rows, json_pack("{ss ss sI s[II] s[II]}", "op", kinds.items[i].op, "dtype", kinds.items[i].dtype,
                                            "nranks", kinds.items[i].nranks, "calls", ranges[i].least, ranges[i].most,
                                            "ranks", ranges[i].least_rank, ranges[i].most_rank));
  }
  free(ranges);
  free(kinds.items);
  json_decref(kinds.places);
  return rows;
}

/* ---- how it was timed */

static const struct b200_log_timing *last_timing(const struct b200_log *log) {
  return log->timing_count ? &log->timings[log->timing_count - 1] : NULL;
}

static int64_t timed_calls(const struct b200_log *const *logs, size_t count) {
  int64_t calls = 0;
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->kind_count; j++)
      calls = b200_add(calls, logs[i]->kinds[j].calls);
  return calls;
}

static size_t timed_steps(const struct b200_log *const *logs, size_t count) {
  size_t steps = 0;
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->step_count; j++)
      steps += logs[i]->steps[j].timed;
  return steps;
}

/* Modes that logs ended with, and those that any changed to meanwhile: rows of mode, every, why, clock with ranks. */
static json_t *mode_rows(const struct b200_log *const *logs, size_t count) {
  json_t *rows = json_array(), *seen = json_object();
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < logs[i]->timing_count; j++) {
      const struct b200_log_timing *timing = &logs[i]->timings[j];
      char *key = b200_format("%s\n%s\n%s\n%lld", timing->mode, timing->why, timing->clock, (long long)timing->every);
      json_t *row = json_object_get(seen, key);
      if (!row) {
        row = json_pack("{ss ss ss sI}", "mode", timing->mode, "why", timing->why, "clock", timing->clock, "every",
                        timing->every);
        json_object_set(seen, key, row);
        json_array_append_new(rows, row);
      }
      report_add(row, "times", 1);
      report_add(row, "at_the_end", j + 1 == logs[i]->timing_count);
      free(key);
    }
  }
  json_decref(seen);
  return rows;
}

/* Why nothing was timed, as a clause; NULL when something was. */
static const char *why_not(const struct b200_log *const *logs, size_t count, int64_t calls) {
  static const struct {
    const char *why, *text;
  } reasons[] = {{"told", "B200OPT_TIMING=off"},
                 {"missing", "the driver lacks a function that it needs"},
                 {"vendor", "a call of the driver failed"},
                 {"overhead", "it cost more than B200OPT_OVERHEAD_MAX_PCT"}};
  const struct b200_log_timing *timing = NULL;
  if (calls || timed_steps(logs, count))
    return NULL;
  for (size_t i = 0; i < count && !timing; i++)
    timing = last_timing(logs[i]);
  if (!timing)
    return "the logs say nothing of it (older ones, or the job ended first)";
  for (size_t i = 0; strcmp(timing->mode, "off") == 0 && i < sizeof(reasons) / sizeof(reasons[0]); i++)
    if (strcmp(timing->why, reasons[i].why) == 0)
      return reasons[i].text;
  if (strcmp(timing->mode, "off") == 0)
    return "it was off";
  for (size_t i = 0; i < count; i++)
    if (logs[i]->untimed_count || logs[i]->coll_count)
      return "none of its collectives could be timed";
  return "the job called no collective";
}

static json_t *untimed_rows(const struct b200_log *const *logs, size_t count) {
  json_t *sums = json_object(), *rows = json_array(), *calls;
  const char *why;
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->untimed_count; j++)
      report_add(sums, logs[i]->untimed[j].why, logs[i]->untimed[j].calls);
  json_object_foreach(sums, why, calls) json_array_append_new(rows, json_pack("{ss sO}", "why", why, "calls", calls));
  json_decref(sums);
  return rows;
}

static json_t *graph_section(const struct b200_log *const *logs, size_t count) {
  struct b200_log_graph sum = {0};
  for (size_t i = 0; i < count; i++) {
    sum.launches = b200_add(sum.launches, logs[i]->graph.launches);
    sum.timed = b200_add(sum.timed, logs[i]->graph.timed);
    sum.dur_ns = b200_add(sum.dur_ns, logs[i]->graph.dur_ns);
  }
  if (!sum.launches)
    return json_null();
  return json_pack("{sI sI so}", "launches", sum.launches, "timed", sum.timed, "mean_s",
                   ratio((double)sum.dur_ns * SECONDS, (double)sum.timed));
}

/* Of the rank whose sources agree least; the first where several do. */
static json_t *confidence_section(const struct b200_log *const *logs, size_t count) {
  const struct b200_log *worst = NULL;
  double least = 0;
  for (size_t i = 0; i < count; i++) {
    const struct b200_log_confidence *own = &logs[i]->confidence;
    double share = own->asked > 0 ? (double)own->agree / (double)own->asked : 0;
    if (own->lines && (!worst || share < least)) {
      worst = logs[i];
      least = share;
    }
  }
  if (!worst)
    return json_null();
  json_t *sources = json_object();
  for (size_t i = 0; i < worst->confidence.source_count; i++)
    json_object_set_new(sources, worst->confidence.sources[i].name, json_integer(worst->confidence.sources[i].steps));
  return json_pack("{sI sI sI so}", "rank", worst->rank, "agree", worst->confidence.agree, "asked", worst->confidence.asked,
                   "sources", sources);
}

/* The largest of all ranks. */
static json_t *overhead_section(const struct b200_log *const *logs, size_t count) {
  const struct b200_log *worst = NULL;
  int64_t ranks = 0;
  for (size_t i = 0; i < count; i++) {
    if (logs[i]->overhead.steps <= 0)
      continue;
    ranks++;
    if (!worst || logs[i]->overhead.pct > worst->overhead.pct)
      worst = logs[i];
  }
  if (!worst)
    return json_null();
  return json_pack("{sI sI sI sf sf sf sf}", "ranks", ranks, "rank", worst->rank, "steps", worst->overhead.steps, "pct",
                   worst->overhead.pct, "noise_pct", worst->overhead.noise_pct, "on_s",
                   (double)worst->overhead.on_ns * SECONDS, "off_s", (double)worst->overhead.off_ns * SECONDS);
}

/* ---- NVML */

static const struct {
  int64_t bit;
  const char *name;
} throttles[] = {{0x4, "software power cap"},
                 {0x8, "hardware slowdown"},
                 {0x20, "software thermal slowdown"},
                 {0x40, "hardware thermal slowdown"},
                 {0x80, "power brake"}};

/* A number of many samples; -1 among them: not known. */
struct samples {
  int64_t count, least, most;
  double sum;
};

static void add_sample(struct samples *samples, int64_t value) {
  if (value < 0)
    return;
  samples->least = samples->count == 0 || value < samples->least ? value : samples->least;
  samples->most = value > samples->most ? value : samples->most;
  samples->sum += (double)value;
  samples->count++;
}

static void set_samples(json_t *section, const char *name, const struct samples *samples) {
  json_object_set_new(section, name,
                      samples->count ? json_pack("{sf sI sI}", "mean", samples->sum / (double)samples->count, "least",
                                                 samples->least, "most", samples->most)
                                     : json_null());
}

static json_t *gpu_section(const struct b200_log *const *logs, size_t count) {
  static const struct {
    const char *name;
    size_t offset;
  } fields[] = {{"util_pct", offsetof(struct b200_log_gpu, util_pct)},
                {"mem_util_pct", offsetof(struct b200_log_gpu, mem_util_pct)},
                {"mem_used_bytes", offsetof(struct b200_log_gpu, mem_used)},
                {"mem_total_bytes", offsetof(struct b200_log_gpu, mem_total)},
                {"power_mw", offsetof(struct b200_log_gpu, power_mw)},
                {"sm_mhz", offsetof(struct b200_log_gpu, sm_mhz)},
                {"temp_c", offsetof(struct b200_log_gpu, temp_c)}};
  struct samples sums[sizeof(fields) / sizeof(fields[0])] = {0};
  int64_t total = 0, throttled[sizeof(throttles) / sizeof(throttles[0])] = {0};
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < logs[i]->gpu_count; j++) {
      const struct b200_log_gpu *gpu = &logs[i]->gpus[j];
      total++;
      for (size_t k = 0; k < sizeof(fields) / sizeof(fields[0]); k++)
        add_sample(&sums[k], *(const int64_t *)((const char *)gpu + fields[k].offset));
      for (size_t k = 0; k < sizeof(throttles) / sizeof(throttles[0]); k++)
        throttled[k] += gpu->throttle >= 0 && (gpu->throttle & throttles[k].bit);
    }
  }
  if (!total)
    return json_null();
  json_t *section = json_pack("{sI}", "samples", total), *reasons = json_array();
  for (size_t k = 0; k < sizeof(fields) / sizeof(fields[0]); k++)
    set_samples(section, fields[k].name, &sums[k]);
  for (size_t k = 0; k < sizeof(throttles) / sizeof(throttles[0]); k++)
    if (throttled[k])
      json_array_append_new(reasons, json_pack("{ss sI}", "reason", throttles[k].name, "samples", throttled[k]));
  json_object_set_new(section, "throttled", reasons);
  return section;
}

/* ---- the section */

json_t *report_overlap(const struct b200_log *const *logs, size_t count, bool modelled) {
  struct kinds kinds = {0};
  int64_t calls = timed_calls(logs, count), invalid = 0;
  if (!count)
    return json_null();
  const char *why = why_not(logs, count, calls);
  kinds.places = json_object();
  for (size_t i = 0; i < count; i++) {
    add_kinds(&kinds, logs[i]);
    invalid = b200_add(invalid, logs[i]->invalid_times);
  }
  json_t *together = why ? json_null() : together_section(logs, count, &kinds);
  json_t *out = json_pack("{sb so sb so so so so}", "timed", why == NULL, "why_not", why ? json_string(why) : json_null(),
                          "modelled", modelled, "modes", mode_rows(logs, count), "untimed", untimed_rows(logs, count),
                          "graphs", graph_section(logs, count), "invalid_times", json_integer(invalid));
  json_object_set_new(out, "kinds", why ? json_null() : kind_rows(&kinds));
  json_object_set_new(out, "steady", why ? json_null() : steady_section(logs, count));
  json_object_set_new(out, "together", together);
  json_object_set_new(out, "missing", missing_section(logs, count));
  json_object_set_new(out, "differing", differing_section(logs, count));
  json_object_set_new(out, "confidence", confidence_section(logs, count));
  json_object_set_new(out, "overhead", overhead_section(logs, count));
  json_object_set_new(out, "gpu", gpu_section(logs, count));
  free(kinds.items);
  json_decref(kinds.places);
  return out;
}
