/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"
#include "tools/compare/parts.h"
#include "tools/report/print.h"

json_t *compare_real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

/* ---- what must be equal */

static double world_of(const struct compare_run *run) {
  return run->world > 0 ? (double)run->world : NAN;
}

/* FLOPs of weight gradients in a step, all ranks: they grow with the tokens of a step however these are cut into
   micro-batches, and recomputed activations leave them alone. */
static double batch_of(const struct compare_run *run) {
  double all = 0, wgrad = 0;
  if (run->gemm_flops <= 0 || run->world <= 0)
    return NAN;
  for (size_t i = 0; i < run->logs.log_count; i++) {
    const struct b200_log *log = &run->logs.logs[i];
    for (size_t j = 0; !log->node && j < log->gemm_count; j++) {
      all += (double)log->gemms[j].flops;
      wgrad += strcmp(log->gemms[j].role, "wgrad") == 0 ? (double)log->gemms[j].flops : 0;
    }
  }
  return wgrad > 0 ? wgrad / all * (double)run->gemm_flops * (double)run->world : NAN;
}

static const struct check {
  const char *name, *unit, *help;
  double (*of)(const struct compare_run *run);
  double tolerance; /* relative */
} checks[] = {
    {"world size", "ranks", "WORLD_SIZE of the job", world_of, 0},
    {"global batch", "weight-gradient FLOPs of a step, all ranks", "they grow with the tokens of a step", batch_of, 0.02},
};

/* Widens [low, high] by what the runs of an arm say; runs that do not know say nothing. */
static void range_of(const struct compare_arm *arm, const struct check *check, double *low, double *high) {
  for (size_t i = 0; i < arm->run_count; i++) {
    double value = check->of(&arm->runs[i]);
    if (isfinite(value)) {
      *low = fmin(*low, value);
      *high = fmax(*high, value);
    }
  }
}

static json_t *check_row(const struct check *check, const struct compare_arm *const arms[2]) {
  double low[2], high[2];
  for (int side = 0; side < 2; side++) {
    low[side] = INFINITY;
    high[side] = -INFINITY;
    range_of(arms[side], check, &low[side], &high[side]);
  }
  bool known = low[0] <= high[0] && low[1] <= high[1];
  double least = fmin(low[0], low[1]), most = fmax(high[0], high[1]);
  bool same = known && most - least <= check->tolerance * most;
  return json_pack("{ss ss ss so so ss}", "name", check->name, "unit", check->unit, "help", check->help, "baseline",
                   compare_real(low[0]), "candidate", compare_real(low[1] == low[0] ? high[1] : low[1]), "state",
                   !known ? "unknown"
                   : same ? "same"
                          : "differs");
}

json_t *compare_checks(const struct compare_arm *const arms[2]) {
  json_t *rows = json_array();
  for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
    json_array_append_new(rows, check_row(&checks[i], arms));
  return rows;
}

char *compare_checks_failed(const json_t *rows) {
  size_t i;
  const json_t *row;
  json_array_foreach(rows, i, row) {
    if (strcmp(report_string(row, "state"), "differs") == 0)
      return b200_format("%s differs: %.6g against %.6g %s", report_string(row, "name"), report_real(row, "baseline"),
                         report_real(row, "candidate"), report_string(row, "unit"));
  }
  return NULL;
}

/* ---- environment */

/* Where a run's files go and what it is called: different in any two runs. */
static bool is_of_the_run(const char *name) {
  static const char *const names[] = {"B200OPT_LOG_DIR",       "B200OPT_RUN",           "B200OPT_ARM",
                                      "B200OPT_VNODE_SESSION", "B200OPT_VNODE_LOG_DIR", "B200OPT_PROMETHEUS_FILE"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    if (strcmp(name, names[i]) == 0)
      return true;
  return false;
}

static bool same_value(const json_t *a, const json_t *b) {
  return a && b ? json_equal(a, b) : a == b;
}

/* The text of an effective value without what set it: "mxfp8 (environment)" as "mxfp8". */
static json_t *shown(const json_t *value) {
  const char *text = json_string_value(value);
  if (!value)
    return json_null();
  const char *source = text ? strrchr(text, '(') : NULL;
  if (source && source > text && source[-1] == ' ' && text[strlen(text) - 1] == ')')
    return json_stringn(text, (size_t)(source - 1 - text));
  return json_deep_copy(value);
}

static void add_fact(json_t *rows, const char *kind, const char *name, const json_t *a, const json_t *b) {
  json_t *baseline = shown(a), *candidate = shown(b);
  bool differs = !same_value(baseline, candidate);
  json_array_append_new(rows, json_pack("{ss ss so so sb sb}", "kind", kind, "name", name, "baseline", baseline, "candidate",
                                        candidate, "differs", differs, "of_the_run", is_of_the_run(name)));
}

static void add_object(json_t *rows, const char *kind, const json_t *const facts[2], const char *key) {
  const json_t *sides[2] = {json_object_get(facts[0], key), json_object_get(facts[1], key)};
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)sides[0], name, value) add_fact(rows, kind, name, value, json_object_get(sides[1], name));
  json_object_foreach((json_t *)sides[1], name, value) {
    if (!json_object_get(sides[0], name))
      add_fact(rows, kind, name, NULL, value);
  }
}

json_t *compare_environment(const struct compare_arm *const arms[2]) {
  const json_t *facts[2] = {arms[0]->run_count ? arms[0]->runs[0].facts : NULL,
                            arms[1]->run_count ? arms[1]->runs[0].facts : NULL};
  static const char *const single[] = {"gpu", "host", "producer"};
  json_t *rows = json_array();
  for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++) {
    const json_t *a = json_object_get(facts[0], single[i]), *b = json_object_get(facts[1], single[i]);
    if (a || b)
      add_fact(rows, "machine", single[i], a, b);
  }
  add_object(rows, "version", facts, "versions");
  add_object(rows, "setting", facts, "config");
  add_object(rows, "nccl", facts, "nccl_env");
  return rows;
}
