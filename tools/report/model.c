/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/model.h"

#include "tools/report/bottleneck.h"
#include "tools/report/conversion.h"
#include "tools/report/memory.h"
#include "tools/report/overlap.h"
#include "tools/report/pool.h"
#include "tools/report/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- logs of one run */

struct chosen {
  const struct b200_log **logs;
  size_t count;
};

static void choose(struct chosen *chosen, const struct b200_log *log) {
  chosen->logs = b200_grow(chosen->logs, chosen->count, sizeof(chosen->logs[0]));
  chosen->logs[chosen->count++] = log;
}

static const char *newest_run(const struct b200_logs *logs) {
  const struct b200_log *newest = NULL;
  for (size_t i = 0; i < logs->log_count; i++)
    if (!logs->logs[i].node && logs->logs[i].header && (!newest || logs->logs[i].unix_ns > newest->unix_ns))
      newest = &logs->logs[i];
  return newest ? newest->run : NULL;
}

static bool has_process(const struct chosen *chosen, const struct b200_log *log) {
  for (size_t i = 0; i < chosen->count; i++)
    if (chosen->logs[i]->pid == log->pid && strcmp(chosen->logs[i]->host, log->host) == 0)
      return true;
  return false;
}

/* The node knows no run: its logs belong to the run whose processes they count; without the library's logs, all do. */
static void choose_logs(const struct b200_logs *logs, const char *run, struct chosen *shim, struct chosen *node) {
  for (size_t i = 0; run && i < logs->log_count; i++)
    if (!logs->logs[i].node && strcmp(logs->logs[i].run, run) == 0)
      choose(shim, &logs->logs[i]);
  for (size_t i = 0; i < logs->log_count; i++)
    if (logs->logs[i].node && (shim->count == 0 || has_process(shim, &logs->logs[i])))
      choose(node, &logs->logs[i]);
}

const struct b200_log **report_logs_of_run(const struct b200_logs *logs, const char *run, size_t *count) {
  struct chosen shim = {0}, node = {0};
  choose_logs(logs, run ? run : newest_run(logs), &shim, &node);
  free(node.logs);
  *count = shim.count;
  return shim.logs;
}

/* ---- rows: while they are collected, an object that holds each under the text of its identity */

/* The row that began as `identity` (a reference is taken over), made when there is none. Borrowed. */
static json_t *find_row(json_t *rows, json_t *identity) {
  char *key = json_dumps(identity, JSON_COMPACT);
  json_t *row = json_object_get(rows, key);
  if (row)
    json_decref(identity);
  else if (key && json_object_set_new(rows, key, identity) == 0)
    row = identity;
  free(key);
  return row;
}

/* The rows as an array, in the order in which they were made. Takes over `rows`. */
static json_t *listed(json_t *rows) {
  const char *key;
  json_t *row, *list = json_array();
  json_object_foreach(rows, key, row) json_array_append(list, row);
  json_decref(rows);
  return list;
}

static void raise_to(json_t *row, const char *name, int64_t value) {
  if (!json_object_get(row, name) || report_number(row, name) < value)
    json_object_set_new(row, name, json_integer(value));
}

/* ---- sections */

static json_t *gemm_section(const struct chosen *chosen) {
  json_t *roles = json_object(), *shapes = json_object();
  int64_t calls = 0, flops = 0;
  for (size_t i = 0; i < chosen->count; i++) {
    for (size_t j = 0; j < chosen->logs[i]->gemm_count; j++) {
      const struct b200_log_gemm *gemm = &chosen->logs[i]->gemms[j];
      json_t *role = find_row(roles, json_pack("{ss}", "role", gemm->role));
      json_t *shape = find_row(shapes, json_pack("{ss ss ss ss sI sI sI sI ss ss ss ss ss}", "role", gemm->role, "api",
                                                 gemm->api, "ta", gemm->ta, "tb", gemm->tb, "m", gemm->m, "n", gemm->n, "k",
                                                 gemm->k, "batch", gemm->batch, "a", gemm->a, "b", gemm->b, "d", gemm->d,
                                                 "compute", gemm->compute, "epilogue", gemm->epilogue));
      report_add(role, "calls", gemm->calls);
      report_add(role, "flops", gemm->flops);
      report_add(shape, "calls", gemm->calls);
      report_add(shape, "flops", gemm->flops);
      calls = b200_add(calls, gemm->calls);
      flops = b200_add(flops, gemm->flops);
    }
  }
  roles = listed(roles);
  shapes = listed(shapes);
  report_set_shares(roles, flops);
  report_set_shares(shapes, flops);
  return json_pack("{sI sI so so}", "calls", calls, "flops", flops, "roles", report_sorted_by_flops(roles), "shapes",
                   report_sorted_by_flops(shapes));
}

static json_t *collective_section(const struct chosen *chosen) {
  json_t *rows = json_object();
  for (size_t i = 0; i < chosen->count; i++) {
    for (size_t j = 0; j < chosen->logs[i]->coll_count; j++) {
      const struct b200_log_coll *coll = &chosen->logs[i]->colls[j];
      json_t *row = find_row(rows, json_pack("{ss ss sI}", "op", coll->op, "dtype", coll->dtype, "nranks", coll->nranks));
      report_add(row, "calls", coll->calls);
      report_add(row, "bytes", coll->bytes);
    }
  }
  return listed(rows);
}

/* Bytes are those of the rank that holds most; calls are summed. */
static json_t *hbm_section(const struct chosen *chosen) {
  json_t *rows = json_object();
  for (size_t i = 0; i < chosen->count; i++) {
    for (size_t j = 0; j < chosen->logs[i]->alloc_count; j++) {
      const struct b200_log_alloc *alloc = &chosen->logs[i]->allocs[j];
      json_t *row = find_row(rows, json_pack("{ss}", "owner", alloc->owner));
      raise_to(row, "current_bytes", alloc->current);
      raise_to(row, "peak_bytes", alloc->peak);
      report_add(row, "allocs", alloc->allocs);
      report_add(row, "frees", alloc->frees);
      report_add(row, "failed", alloc->failed);
    }
  }
  return listed(rows);
}

static json_t *count_section(const struct chosen *chosen) {
  return json_pack("{so so so}", "gemm", gemm_section(chosen), "collectives", collective_section(chosen), "hbm",
                   hbm_section(chosen));
}

static json_t *call_section(const struct chosen *chosen) {
  json_t *rows = json_object();
  for (size_t i = 0; i < chosen->count; i++) {
    for (size_t j = 0; j < chosen->logs[i]->call_count; j++) {
      const struct b200_log_call *call = &chosen->logs[i]->calls[j];
      json_t *row = find_row(rows, json_pack("{ss ss}", "lib", call->lib, "name", call->name));
      report_add(row, "calls", call->calls);
      report_add(row, "errors", call->errors);
      report_add(row, "bytes", call->bytes);
    }
  }
  return listed(rows);
}

static json_t *text_section(const struct chosen *chosen, bool drops) {
  json_t *rows = json_object();
  for (size_t i = 0; i < chosen->count; i++) {
    const struct b200_log *log = chosen->logs[i];
    const struct b200_log_text *texts = drops ? log->drops : log->warnings;
    size_t count = drops ? log->drop_count : log->warning_count;
    for (size_t j = 0; j < count; j++)
      report_add(find_row(rows, json_pack("{ss}", drops ? "what" : "text", texts[j].text)), "count", texts[j].count);
  }
  return listed(rows);
}

static json_t *oom_section(const struct chosen *chosen) {
  json_t *rows = json_array();
  for (size_t i = 0; i < chosen->count; i++) {
    for (size_t j = 0; j < chosen->logs[i]->oom_count; j++) {
      const struct b200_log_oom *oom = &chosen->logs[i]->ooms[j];
      json_array_append_new(rows,
                            json_pack("{sI ss sI ss sb ss}", "rank", chosen->logs[i]->rank, "owner", oom->owner, "bytes",
                                      oom->bytes, "why", oom->why, "final", oom->final != 0, "advice", oom->advice));
    }
  }
  return rows;
}

static json_t *retry_section(const struct chosen *chosen) {
  json_t *row = json_object();
  int64_t dur_ns = 0;
  for (size_t i = 0; i < chosen->count; i++) {
    report_add(row, "count", chosen->logs[i]->retries.count);
    report_add(row, "failures", chosen->logs[i]->retries.failures);
    dur_ns = b200_add(dur_ns, chosen->logs[i]->retries.dur_ns);
  }
  json_object_set_new(row, "seconds", json_real((double)dur_ns * 1e-9));
  return row;
}

static json_t *stack_section(const struct chosen *chosen) {
  json_t *rows = json_object();
  for (size_t i = 0; i < chosen->count; i++) {
    for (size_t j = 0; j < chosen->logs[i]->stack_count; j++) {
      const struct b200_log_stack *stack = &chosen->logs[i]->stacks[j];
      json_t *row =
          find_row(rows, json_pack("{ss ss ss}", "owner", stack->owner, "frames", stack->frames, "python", stack->python));
      report_add(row, "count", stack->count);
      report_add(row, "bytes", stack->bytes);
    }
  }
  return listed(rows);
}

/* ---- steps */

static int by_value(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Nearest-rank quantile. pre: sorted, count > 0. */
static double quantile(const double *values, size_t count, double q) {
  size_t index = (size_t)ceil(q * (double)count);
  return values[index ? index - 1 : 0];
}

/* One log per rank: after a restart, the one with most steps. */
static bool is_best_of_rank(const struct chosen *chosen, size_t index) {
  const struct b200_log *log = chosen->logs[index];
  for (size_t i = 0; i < chosen->count; i++) {
    const struct b200_log *other = chosen->logs[i];
    if (i != index && other->rank == log->rank &&
        (other->step_count > log->step_count || (other->step_count == log->step_count && i < index)))
      return false;
  }
  return log->step_count > 0;
}

/* A step lasts as long as on its slowest rank. */
static json_t *step_section(const struct chosen *chosen) {
  double *slowest = NULL;
  size_t count = 0;
  const struct b200_log *first = NULL;
  for (size_t i = 0; i < chosen->count; i++) {
    const struct b200_log *log = chosen->logs[i];
    if (!is_best_of_rank(chosen, i))
      continue;
    first = first ? first : log;
    for (size_t j = 0; j < log->step_count; j++) {
      double seconds = (double)log->steps[j].dur_ns * 1e-9;
      if (j == count) {
        slowest = b200_grow(slowest, count, sizeof(*slowest));
        slowest[count++] = seconds;
      } else if (seconds > slowest[j]) {
        slowest[j] = seconds;
      }
    }
  }
  if (!count)
    return json_null();
  json_t *steps = json_pack("{sI ss sI sf}", "count", (json_int_t)count, "source", first->step_source, "period",
                            first->steps[0].period, "first_s", slowest[0]);
  /* The first step warms up; the last one lasts until the job's last operation, which may belong to its end. */
  size_t rest = count > 2 ? count - 2 : 1;
  double *from = slowest + (count > 1);
  qsort(from, rest, sizeof(*from), by_value);
  json_object_set_new(steps, "median_s", json_real(quantile(from, rest, 0.5)));
  json_object_set_new(steps, "p10_s", json_real(quantile(from, rest, 0.1)));
  json_object_set_new(steps, "p90_s", json_real(quantile(from, rest, 0.9)));
  free(slowest);
  return steps;
}

/* ---- losses */

struct series {
  const char *source; /* "log" or "output" */
  const struct b200_log_loss *losses;
  size_t count;
};

static struct series series_of_log(const struct chosen *shim) {
  struct series series = {.source = "log"};
  int64_t rank = INT64_MAX;
  for (size_t i = 0; i < shim->count; i++) {
    const struct b200_log *log = shim->logs[i];
    if (log->loss_count && (log->rank < rank || (log->rank == rank && log->loss_count > series.count))) {
      rank = log->rank;
      series.losses = log->losses;
      series.count = log->loss_count;
    }
  }
  return series;
}

static struct series series_of_output(const struct b200_logs *logs) {
  struct series series = {.source = "output"};
  for (size_t i = 0; i < logs->output_count; i++) {
    if (logs->outputs[i].loss_count > series.count) {
      series.losses = logs->outputs[i].losses;
      series.count = logs->outputs[i].loss_count;
    }
  }
  return series;
}

bool report_has_output(const struct b200_logs *logs) {
  return series_of_output(logs).count > 0;
}

/* JSON has no NaN or infinity: those are the texts nan, inf, -inf, as in the logs. */
static json_t *real(double value) {
  if (isnan(value))
    return json_string("nan");
  return isinf(value) ? json_string(value > 0 ? "inf" : "-inf") : json_real(value);
}

static double real_of(const json_t *value) {
  return json_is_string(value) ? strtod(json_string_value(value), NULL) : json_number_value(value);
}

static json_t *loss_section(const struct series *series) {
  json_t *points = json_array();
  if (!series->count) {
    json_decref(points);
    return json_null();
  }
  const struct b200_log_loss *least = &series->losses[0];
  for (size_t i = 0; i < series->count; i++) {
    const struct b200_log_loss *loss = &series->losses[i];
    json_array_append_new(points, json_pack("{sI so}", "step", loss->step, "loss", real(loss->loss)));
    if (loss->loss < least->loss || isnan(least->loss))
      least = loss;
  }
  const struct b200_log_loss *last = &series->losses[series->count - 1];
  return json_pack("{ss sI so so so sI so}", "source", series->source, "count", (json_int_t)series->count, "first",
                   real(series->losses[0].loss), "last", real(last->loss), "min", real(least->loss), "min_step", least->step,
                   "series", points);
}

/* ---- tokens per second */

static double median_rate(const struct series *series) {
  double *rates = NULL;
  size_t count = 0;
  for (size_t i = series->count > 1; i < series->count; i++) { /* the first step warms up */
    if (series->losses[i].tokens_per_s > 0) {
      rates = b200_grow(rates, count, sizeof(*rates));
      rates[count++] = series->losses[i].tokens_per_s;
    }
  }
  if (count)
    qsort(rates, count, sizeof(*rates), by_value);
  double median = count ? quantile(rates, count, 0.5) : 0;
  free(rates);
  return median;
}

/* Tokens of a forward pass of one rank: n of most forward GEMM calls; 0 when there are none. */
static int64_t tokens_of_gemms(const json_t *gemm) {
  size_t i;
  json_t *shape, *rows = json_object();
  int64_t tokens = 0, most = 0;
  json_array_foreach(json_object_get(gemm, "shapes"), i, shape) {
    if (strcmp(json_string_value(json_object_get(shape, "role")), "fprop") == 0) {
      json_t *row = find_row(rows, json_pack("{sI}", "n", report_number(shape, "n")));
      report_add(row, "calls", report_number(shape, "calls"));
      if (report_number(row, "calls") > most) {
        most = report_number(row, "calls");
        tokens = report_number(row, "n");
      }
    }
  }
  json_decref(rows);
  return tokens;
}

static json_t *rate_section(const struct series *series, const json_t *gemm, const json_t *steps, int64_t ranks) {
  double rate = median_rate(series);
  if (rate > 0)
    return json_pack("{sf ss}", "value", rate, "source", "printed");
  int64_t tokens = tokens_of_gemms(gemm);
  double seconds = json_number_value(json_object_get(steps, "median_s"));
  if (!tokens || !(seconds > 0))
    return json_null();
  return json_pack("{sf ss sI}", "value", (double)tokens * (double)ranks / seconds, "source", "inferred",
                   "tokens_per_rank_step", tokens);
}

/* ---- an arm */

static int64_t count_ranks(const struct chosen *chosen) {
  int64_t ranks = 0;
  for (size_t i = 0; i < chosen->count; i++) {
    bool seen = false;
    for (size_t j = 0; j < i; j++)
      seen = seen || chosen->logs[j]->rank == chosen->logs[i]->rank;
    ranks += !seen;
  }
  return ranks;
}

static json_t *part_of_header(const struct b200_log *log, const char *name) {
  json_t *part = json_object_get(log->header, name);
  return json_is_object(part) ? json_incref(part) : json_object();
}

static int64_t count_partial(const struct chosen *chosen) {
  int64_t partial = 0;
  for (size_t i = 0; i < chosen->count; i++)
    partial += chosen->logs[i]->partial;
  return partial;
}

static json_t *run_names(const struct b200_logs *logs) {
  json_t *names = json_object();
  for (size_t i = 0; i < logs->log_count; i++)
    if (!logs->logs[i].node && logs->logs[i].header)
      find_row(names, json_pack("{ss}", "run", logs->logs[i].run));
  return listed(names);
}

static bool is_virtual(const struct chosen *node, const struct b200_log *log) {
  return node->count > 0 || log->is_virtual || strstr(log->gpu, "virtual") != NULL;
}

/* How the node ran the job; the job is as long as its slowest rank. */
static json_t *execution_section(const struct chosen *node) {
  int64_t races = 0, modelled_ns = 0;
  const struct b200_log *lead = NULL;
  for (size_t i = 0; i < node->count; i++) {
    const struct b200_log *log = node->logs[i];
    if (!log->order)
      continue;
    lead = lead ? lead : log;
    races = b200_add(races, log->races);
    modelled_ns = log->modelled_ns > modelled_ns ? log->modelled_ns : modelled_ns;
  }
  return lead ? json_pack("{ss sI sI sf}", "order", lead->order, "seed", (json_int_t)lead->seed, "races", (json_int_t)races,
                          "modelled_s", (double)modelled_ns * 1e-9)
              : json_null();
}

json_t *report_arm(const struct b200_logs *logs, const char *run, enum loss_source losses) {
  static const struct b200_log nothing = {.producer = "", .run = "", .arm = "", .host = "", .gpu = "", .world = -1};
  struct chosen shim = {0}, node = {0};
  choose_logs(logs, run ? run : newest_run(logs), &shim, &node);
  const struct chosen *counted = shim.count ? &shim : &node;
  struct series log_series = series_of_log(&shim), output_series = series_of_output(logs);
  bool prefer_output = losses == LOSS_FROM_OUTPUT_FIRST ? output_series.count > 0 : log_series.count == 0;
  struct series series = prefer_output ? output_series : log_series;
  if ((run && !shim.count) || (!counted->count && !series.count)) {
    free(shim.logs);
    free(node.logs);
    return NULL;
  }
  const struct b200_log *lead = counted->count ? counted->logs[0] : &nothing;
  int64_t ranks = count_ranks(counted);

  json_t *arm = count_section(counted);
  json_t *steps = step_section(&shim);
  json_object_update_new(arm, json_pack("{ss ss ss ss ss sI sI sb ss so so so}", "run", lead->run, "arm", lead->arm, "host",
                                        lead->host, "gpu", *lead->gpu || !node.count ? lead->gpu : node.logs[0]->gpu,
                                        "producer", lead->producer, "ranks", ranks, "world", lead->world, "virtual_node",
                                        is_virtual(&node, lead), "counted_by",
                                        shim.count   ? "b200opt"
                                        : node.count ? "node"
                                                     : "nobody",
                                        "versions", part_of_header(lead, "versions"), "config",
                                        part_of_header(lead, "config"), "nccl_env", part_of_header(lead, "nccl_env")));
  json_object_set_new(arm, "runs", run_names(logs));
  json_object_set_new(arm, "logs",
                      json_pack("{sI sI sI}", "library", (json_int_t)shim.count, "node", (json_int_t)node.count, "partial",
                                count_partial(&shim) + count_partial(&node)));
  json_object_set_new(arm, "tokens_per_s", rate_section(&series, json_object_get(arm, "gemm"), steps, ranks));
  json_object_set_new(arm, "steps", steps);
  json_object_set_new(arm, "loss", loss_section(&series));
  json_object_set_new(arm, "calls", call_section(counted));
  json_object_set_new(arm, "warnings", text_section(counted, false));
  json_object_set_new(arm, "drops", text_section(counted, true));
  json_object_set_new(arm, "oom", oom_section(counted));
  report_pool(arm, shim.logs, shim.count);
  json_object_set_new(arm, "retries", retry_section(&shim));
  json_object_set_new(arm, "stacks", stack_section(counted));
  json_object_set_new(arm, "memory", report_memory(shim.logs, shim.count));
  json_object_set_new(arm, "execution", execution_section(&node));
  json_object_set_new(arm, "communication", report_overlap(shim.logs, shim.count, is_virtual(&node, lead)));
  json_object_set_new(arm, "conversion", report_conversion(shim.logs, shim.count));
  json_object_set_new(arm, "bottleneck", report_bottleneck(shim.logs, shim.count));
  json_object_set_new(arm, "node", shim.count && node.count ? count_section(&node) : json_null());
  json_object_set_new(arm, "done", shim.count && node.count ? report_done(shim.logs, shim.count) : json_null());
  free(shim.logs);
  free(node.logs);
  return arm;
}

/* ---- comparison */

/* Both sides' `fields` of every row of either, added up per identity, with whether they are equal. */
static json_t *compare_rows(const json_t *against, const json_t *rows, const char *const *identity,
                            const char *const *fields, bool *equal) {
  json_t *out = json_object();
  const json_t *sides[] = {against, rows};
  for (int side = 0; side < 2; side++) {
    size_t i;
    json_t *row;
    json_array_foreach(sides[side], i, row) {
      json_t *key = json_object();
      for (const char *const *name = identity; *name; name++)
        json_object_set(key, *name, json_object_get(row, *name));
      json_t *pair = find_row(out, key);
      for (const char *const *name = fields; *name; name++) {
        json_t *values = json_object_get(pair, *name);
        if (!values) {
          values = json_pack("[ii]", 0, 0);
          json_object_set_new(pair, *name, values);
        }
        int64_t sum = b200_add(json_integer_value(json_array_get(values, (size_t)side)), report_number(row, *name));
        json_array_set_new(values, (size_t)side, json_integer(sum));
      }
    }
  }
  out = listed(out);
  size_t i;
  json_t *pair;
  json_array_foreach(out, i, pair) {
    bool same = true;
    for (const char *const *name = fields; *name; name++) {
      const json_t *values = json_object_get(pair, *name);
      same = same && json_equal(json_array_get(values, 0), json_array_get(values, 1));
    }
    json_object_set_new(pair, "equal", json_boolean(same));
    *equal = *equal && same;
  }
  return out;
}

/* Rows without any activity on both sides say nothing. */
static json_t *without_zeros(json_t *rows, const char *field) {
  for (size_t i = json_array_size(rows); i-- > 0;) {
    const json_t *values = json_object_get(json_array_get(rows, i), field);
    if (!json_integer_value(json_array_get(values, 0)) && !json_integer_value(json_array_get(values, 1)))
      json_array_remove(rows, i);
  }
  return rows;
}

json_t *report_compare_counts(const json_t *against, const json_t *count) {
  static const char *const calls_flops[] = {"calls", "flops", NULL};
  static const char *const calls_bytes[] = {"calls", "bytes", NULL};
  static const char *const memory[] = {"peak_bytes", "allocs", NULL};
  static const char *const role[] = {"role", NULL};
  static const char *const shape[] = {"role", "ta", "tb", "m", "n", "k", "batch", "a", "b", "d", NULL};
  static const char *const coll[] = {"op", "dtype", "nranks", NULL};
  static const char *const owner[] = {"owner", NULL};
  const json_t *left = json_object_get(against, "gemm"), *right = json_object_get(count, "gemm");
  bool equal = true;
  json_t *roles = compare_rows(json_object_get(left, "roles"), json_object_get(right, "roles"), role, calls_flops, &equal);
  json_t *shapes =
      compare_rows(json_object_get(left, "shapes"), json_object_get(right, "shapes"), shape, calls_flops, &equal);
  json_t *colls = compare_rows(json_object_get(against, "collectives"), json_object_get(count, "collectives"), coll,
                               calls_bytes, &equal);
  json_t *hbm = compare_rows(json_object_get(against, "hbm"), json_object_get(count, "hbm"), owner, memory, &equal);
  size_t i;
  json_int_t shapes_equal = 0;
  json_t *row;
  json_array_foreach(shapes, i, row) shapes_equal += json_is_true(json_object_get(row, "equal"));
  json_t *out =
      json_pack("{so sI sI so so sb}", "roles", roles, "shapes", (json_int_t)json_array_size(shapes), "shapes_equal",
                shapes_equal, "collectives", colls, "hbm", without_zeros(hbm, "allocs"), "equal", equal);
  json_decref(shapes);
  return out;
}

json_t *report_check_node(const json_t *arm) {
  const json_t *node = json_object_get(arm, "node"), *done = json_object_get(arm, "done");
  if (!json_is_object(node))
    return json_null();
  if (!json_is_object(done))
    return report_compare_counts(node, arm);
  json_t *left = json_copy((json_t *)node), *right = json_copy((json_t *)arm);
  json_object_set_new(left, "gemm", report_done_by_node(json_object_get(node, "gemm"), done));
  json_object_set(right, "gemm", (json_t *)done);
  json_object_set_new(right, "hbm", report_memory_by_node(json_object_get(arm, "hbm"), json_object_get(node, "hbm")));
  json_t *check = report_compare_counts(left, right);
  json_decref(left);
  json_decref(right);
  return check;
}

struct point {
  int64_t step;
  double loss;
};

static int by_step(const void *a, const void *b) {
  const struct point *left = a, *right = b;
  if (left->step != right->step)
    return left->step < right->step ? -1 : 1;
  return (left->loss > right->loss) - (left->loss < right->loss);
}

/* Sorted by step, and by value where several ranks print. The caller frees it. */
static struct point *points_of(const json_t *loss, size_t *count) {
  const json_t *series = json_object_get(loss, "series");
  size_t i;
  json_t *entry;
  *count = json_array_size(series);
  struct point *points = calloc(*count + 1, sizeof(*points));
  json_array_foreach(series, i, entry) {
    points[i] = (struct point){report_number(entry, "step"), real_of(json_object_get(entry, "loss"))};
  }
  qsort(points, *count, sizeof(*points), by_step);
  return points;
}

static bool same_bits(double a, double b) {
  return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

static json_t *compare_losses(const json_t *against, const json_t *loss) {
  size_t left_count, right_count, i = 0, j = 0;
  struct point *left = points_of(against, &left_count), *right = points_of(loss, &right_count);
  int64_t common = 0, equal = 0, first_step = -1;
  double largest = 0;
  while (i < left_count && j < right_count) {
    if (left[i].step != right[j].step) {
      left[i].step < right[j].step ? i++ : j++;
      continue;
    }
    bool same = same_bits(left[i].loss, right[j].loss);
    double difference = fabs(left[i].loss - right[j].loss);
    if (!same && first_step < 0)
      first_step = left[i].step;
    if (!same && !(difference <= largest)) /* NaN counts as the largest */
      largest = difference;
    common++;
    equal += same;
    i++;
    j++;
  }
  free(left);
  free(right);
  const char *verdict = left_count + right_count == 0 ? "none"
                        : common == 0                 ? "not comparable"
                        : equal == common             ? "bit-identical"
                                                      : "different";
  json_t *out = json_pack("{ss sI sI sI}", "verdict", verdict, "common", common, "equal", equal, "unpaired",
                          (json_int_t)(left_count + right_count) - 2 * common);
  if (equal != common)
    json_object_update_new(out, json_pack("{so sI}", "max_difference", real(largest), "first_step", first_step));
  return out;
}

json_t *report_compare(const json_t *against, const json_t *arm) {
  json_t *out = report_compare_counts(against, arm);
  json_t *loss = compare_losses(json_object_get(against, "loss"), json_object_get(arm, "loss"));
  /* No value without a partner, and no pair that differs: also when neither side has any. */
  bool same = json_is_true(json_object_get(out, "equal")) && report_number(loss, "unpaired") == 0 &&
              report_number(loss, "equal") == report_number(loss, "common");
  json_object_set_new(out, "loss", loss);
  json_object_set_new(out, "equal", json_boolean(same));
  return out;
}
