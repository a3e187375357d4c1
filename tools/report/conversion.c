/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/conversion.h"

#include "policy/plan.h"
#include "tools/report/rows.h"
#include "tools/shape.h"

#include <stdlib.h>
#include <string.h>

static bool is_converted(const struct b200_log_gemm *gemm) {
  return strcmp(gemm->plan, "fp8") == 0 || strcmp(gemm->plan, "mxfp8") == 0;
}

static double share(int64_t part, int64_t whole) {
  return whole > 0 ? (double)part / (double)whole : 0;
}

/* The element of `rows` whose texts `first` and `second` are these, made when there is none. Borrowed. */
static json_t *row_of(json_t *rows, const char *first, const char *a, const char *second, const char *b) {
  size_t i;
  json_t *row;
  json_array_foreach(rows, i, row) {
    if (strcmp(json_string_value(json_object_get(row, first)), a) == 0 &&
        (!second || strcmp(json_string_value(json_object_get(row, second)), b) == 0))
      return row;
  }
  row = json_pack("{ss}", first, a);
  if (second)
    json_object_set_new(row, second, json_string(b));
  json_array_append_new(rows, row);
  return row;
}

/* ---- parts */

struct totals {
  int64_t calls, flops, converted_calls, converted_flops, native_ns, narrow_ns;
};

static void add_gemm(json_t *rows, struct totals *totals, const struct b200_log_gemm *gemm) {
  json_t *row = row_of(rows, "plan", gemm->plan, "reason", gemm->reason);
  report_add(row, "calls", gemm->calls);
  report_add(row, "flops", gemm->flops);
  totals->calls = b200_add(totals->calls, gemm->calls);
  totals->flops = b200_add(totals->flops, gemm->flops);
  if (!is_converted(gemm))
    return;
  totals->converted_calls = b200_add(totals->converted_calls, gemm->calls);
  totals->converted_flops = b200_add(totals->converted_flops, gemm->flops);
  totals->native_ns = b200_add(totals->native_ns, gemm->model_native_ns);
  totals->narrow_ns = b200_add(totals->narrow_ns, gemm->model_narrow_ns);
}

/* One row per value of B200OPT_PRECISION that was not set: "FORMAT:REASON" of each observed call, and what its format would
   gain by the cost model, where the GPU is known. */
static void add_would(json_t *rows, const struct b200_log *log, const struct b200_log_gemm *gemm) {
  const char *const texts[] = {gemm->would_auto, gemm->would_fp8, gemm->would_mxfp8};
  static const char *const precisions[] = {"auto", "fp8", "mxfp8"};
  struct b200_device device;
  struct b200_facts facts;
  bool modelled = shape_device(log->gpu, 0, &device) && shape_from_log(gemm, &facts);
  for (size_t i = 0; i < 3; i++) {
    if (!texts[i][0])
      continue;
    enum b200_format format = strncmp(texts[i], "fp8:", 4) == 0     ? B200_FORMAT_FP8
                              : strncmp(texts[i], "mxfp8:", 6) == 0 ? B200_FORMAT_MXFP8
                                                                    : B200_FORMAT_NATIVE;
    json_t *row = row_of(rows, "precision", precisions[i], NULL, NULL);
    report_add(row, "flops", gemm->flops);
    report_add(row, "converted_flops", format == B200_FORMAT_NATIVE ? 0 : gemm->flops);
    if (!modelled)
      continue;
    double calls = (double)gemm->calls, native = b200_cost_native(&device, &facts.gemm) * calls;
    double done = format == B200_FORMAT_NATIVE ? native : b200_cost_narrow(&device, &facts.gemm, format) * calls;
    json_object_set_new(row, "native_s", json_real(json_number_value(json_object_get(row, "native_s")) + native * 1e-9));
    json_object_set_new(row, "model_s", json_real(json_number_value(json_object_get(row, "model_s")) + done * 1e-9));
  }
}

static json_t *shape_row(const char *role, const char *ta, const char *tb, int64_t m, int64_t n, int64_t k, int64_t batch) {
  return json_pack("{ss ss ss sI sI sI sI}", "role", role, "ta", ta, "tb", tb, "m", (json_int_t)m, "n", (json_int_t)n, "k",
                   (json_int_t)k, "batch", (json_int_t)batch);
}

/* The audited shape with the largest error, and how many calls were audited. null without audits. */
static json_t *audit_part(const struct b200_log *const *logs, size_t count) {
  const struct b200_log_audit *worst = NULL;
  int64_t calls = 0;
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->audit_count; j++) {
      const struct b200_log_audit *audit = &logs[i]->audits[j];
      calls = b200_add(calls, audit->calls);
      if (!worst || (worst->error >= 0 && (audit->error < 0 || audit->error > worst->error)))
        worst = audit;
    }
  if (!worst)
    return json_null();
  json_t *row = shape_row(worst->role, worst->ta, worst->tb, worst->m, worst->n, worst->k, worst->batch);
  json_object_set_new(row, "plan", json_string(worst->plan));
  json_object_set_new(row, "error", worst->error < 0 ? json_string("nan") : json_real(worst->error));
  return json_pack("{sI so}", "calls", (json_int_t)calls, "worst", row);
}

static json_t *guard_part(const struct b200_log *const *logs, size_t count) {
  json_t *rows = json_array();
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->guard_count; j++) {
      const struct b200_log_guard *guard = &logs[i]->guards[j];
      json_t *row = shape_row(guard->role, guard->ta, guard->tb, guard->m, guard->n, guard->k, guard->batch);
      json_object_update_new(row,
                             json_pack("{sI ss ss sb sI}", "rank", (json_int_t)logs[i]->rank, "plan", guard->plan, "what",
                                       guard->what, "applied", guard->applied != 0, "step", (json_int_t)guard->step));
      json_array_append_new(rows, row);
    }
  return rows;
}

/* Bytes of the rank that holds most. null where nothing was held. */
static json_t *workspace_part(const struct b200_log *const *logs, size_t count) {
  int64_t bytes = 0, limit = 0, refused = 0;
  for (size_t i = 0; i < count; i++) {
    const struct b200_log_workspace *workspace = &logs[i]->workspace;
    bytes = workspace->bytes > bytes ? workspace->bytes : bytes;
    limit = workspace->limit > limit ? workspace->limit : limit;
    refused = b200_add(refused, workspace->refused);
  }
  return bytes || limit ? json_pack("{sI sI sI}", "peak_bytes", (json_int_t)bytes, "limit_bytes", (json_int_t)limit,
                                    "refused", (json_int_t)refused)
                        : json_null();
}

/* true, false, or null when fewer than two ranks say. */
static json_t *agreement(const struct b200_log *const *logs, size_t count) {
  const char *first = NULL;
  bool agree = true, compared = false;
  for (size_t i = 0; i < count; i++) {
    if (!logs[i]->decisions)
      continue;
    compared = compared || first;
    agree = agree && (!first || strcmp(first, logs[i]->decisions) == 0);
    first = logs[i]->decisions;
  }
  return compared ? json_boolean(agree) : json_null();
}

static int64_t min_coverage(const struct b200_log *const *logs, size_t count) {
  int64_t most = 0;
  for (size_t i = 0; i < count; i++) {
    const char *text =
        json_string_value(json_object_get(json_object_get(logs[i]->header, "config"), "B200OPT_MIN_COVERAGE"));
    int64_t percent = text ? strtoll(text, NULL, 10) : 0;
    most = percent > most ? percent : most;
  }
  return most;
}

json_t *report_conversion(const struct b200_log *const *logs, size_t count) {
  struct totals totals = {0};
  json_t *rows = json_array(), *would = json_array(), *row;
  size_t i;
  for (i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->gemm_count; j++)
      if (logs[i]->gemms[j].plan[0]) {
        add_gemm(rows, &totals, &logs[i]->gemms[j]);
        add_would(would, logs[i], &logs[i]->gemms[j]);
      }
  if (!json_array_size(rows)) {
    json_decref(rows);
    json_decref(would);
    return json_null();
  }
  rows = report_sorted_by_flops(rows);
  report_set_shares(rows, totals.flops);
  json_array_foreach(would, i, row) json_object_set_new(
      row, "coverage", json_real(share(report_number(row, "converted_flops"), report_number(row, "flops"))));
  double coverage = share(totals.converted_flops, totals.flops);
  int64_t least = min_coverage(logs, count), bad_samples = 0;
  for (i = 0; i < count; i++)
    bad_samples = b200_add(bad_samples, logs[i]->bad_samples);
  return json_pack("{sI sI sI sI sf sI sb so so so so so sI so so}", "calls", (json_int_t)totals.calls, "flops",
                   (json_int_t)totals.flops, "converted_calls", (json_int_t)totals.converted_calls, "converted_flops",
                   (json_int_t)totals.converted_flops, "coverage", coverage, "min_coverage_percent", (json_int_t)least,
                   "coverage_met", 100 * coverage >= (double)least, "rows", rows, "would", would, "model",
                   totals.native_ns ? json_pack("{sf sf}", "native_s", (double)totals.native_ns * 1e-9, "narrow_s",
                                                (double)totals.narrow_ns * 1e-9)
                                    : json_null(),
                   "audit", audit_part(logs, count), "guard", guard_part(logs, count), "bad_samples",
                   (json_int_t)bad_samples, "workspace", workspace_part(logs, count), "ranks_agree", agreement(logs, count));
}

/* ---- beside the node's count */

static bool is_narrow_type(const char *type) {
  return type && (strcmp(type, "e4m3") == 0 || strcmp(type, "e5m2") == 0 || strcmp(type, "e2m1") == 0);
}

static void add_role(json_t *roles, const char *role, int64_t calls, int64_t flops) {
  json_t *row = row_of(roles, "role", role, NULL, NULL);
  report_add(row, "calls", calls);
  report_add(row, "flops", flops);
}

static void add_done(json_t *roles, json_t *shapes, const struct b200_log_gemm *gemm, bool narrow, int64_t calls,
                     int64_t flops) {
  /* A cut product is several calls: only the FLOPs of narrow ones are comparable. */
  add_role(roles, narrow ? "narrow" : gemm->role, narrow ? 0 : calls, flops);
  if (narrow)
    return;
  json_t *shape = shape_row(gemm->role, gemm->ta, gemm->tb, gemm->m, gemm->n, gemm->k, gemm->batch);
  json_object_update_new(shape, json_pack("{ss ss ss sI sI}", "a", gemm->a, "b", gemm->b, "d", gemm->d, "calls",
                                          (json_int_t)calls, "flops", (json_int_t)flops));
  json_array_append_new(shapes, shape);
}

/* Calls of this converted shape that were audited. Rows of one shape differ in types and epilogue, which audits do not say:
   all audits count for the first. */
static int64_t audited_calls(const struct b200_log *log, size_t index) {
  const struct b200_log_gemm *gemm = &log->gemms[index];
  int64_t calls = 0;
  for (size_t i = 0; i < log->audit_count; i++) {
    const struct b200_log_audit *audit = &log->audits[i];
    size_t first = 0;
    while (first < log->gemm_count &&
           !(is_converted(&log->gemms[first]) && log->gemms[first].m == audit->m && log->gemms[first].n == audit->n &&
             log->gemms[first].k == audit->k && log->gemms[first].batch == audit->batch &&
             strcmp(log->gemms[first].role, audit->role) == 0 && strcmp(log->gemms[first].ta, audit->ta) == 0 &&
             strcmp(log->gemms[first].tb, audit->tb) == 0 && strcmp(log->gemms[first].plan, audit->plan) == 0))
      first++;
    if (first == index)
      calls = b200_add(calls, audit->calls);
  }
  return gemm->calls > 0 ? calls : 0;
}

json_t *report_done(const struct b200_log *const *logs, size_t count) {
  json_t *roles = json_array(), *shapes = json_array();
  bool any = false;
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < logs[i]->gemm_count; j++) {
      const struct b200_log_gemm *gemm = &logs[i]->gemms[j];
      bool converted = is_converted(gemm), narrow = converted || is_narrow_type(gemm->a) || is_narrow_type(gemm->b);
      int64_t audited = converted ? audited_calls(logs[i], j) : 0;
      add_done(roles, shapes, gemm, narrow, gemm->calls, gemm->flops);
      if (audited > 0)
        add_done(roles, shapes, gemm, false, audited, gemm->flops / gemm->calls * audited);
      any = any || converted;
    }
  if (any)
    return json_pack("{so so}", "roles", roles, "shapes", shapes);
  json_decref(roles);
  json_decref(shapes);
  return json_null();
}

/* Calls of this shape that were asked for. */
static int64_t calls_asked(const json_t *done, const json_t *shape) {
  static const char *const identity[] = {"role", "ta", "tb", "m", "n", "k", "batch", "a", "b", "d"};
  size_t i, same;
  json_t *row;
  int64_t calls = 0;
  json_array_foreach(json_object_get(done, "shapes"), i, row) {
    for (same = 0; same < sizeof(identity) / sizeof(identity[0]); same++)
      if (!json_equal(json_object_get(row, identity[same]), json_object_get(shape, identity[same])))
        break;
    calls += same == sizeof(identity) / sizeof(identity[0]) ? report_number(row, "calls") : 0;
  }
  return calls;
}

/* May be a GEMM that the library has made for itself. */
static bool may_be_own(const json_t *shape) {
  int64_t n = report_number(shape, "n");
  return n <= B200_REFERENCE_COLUMNS || (report_number(shape, "m") == B200_SELFTEST_M && n == B200_SELFTEST_N &&
                                         report_number(shape, "k") == B200_SELFTEST_K);
}

/* A wide row of the node without the references of samples and of the self-test, which no log has. */
static json_t *without_references(const json_t *shape, const json_t *done) {
  int64_t calls = report_number(shape, "calls"), asked = may_be_own(shape) ? calls_asked(done, shape) : calls;
  json_t *copy = json_copy((json_t *)shape);
  if (calls > asked && calls > 0) {
    json_object_set_new(copy, "flops", json_integer(report_number(shape, "flops") / calls * asked));
    json_object_set_new(copy, "calls", json_integer(asked));
  }
  return copy;
}

json_t *report_done_by_node(const json_t *gemm, const json_t *done) {
  json_t *roles = json_array(), *shapes = json_array(), *row;
  int64_t narrow = 0, asked = 0;
  size_t i;
  json_array_foreach(json_object_get(gemm, "shapes"), i, row) {
    if (is_narrow_type(json_string_value(json_object_get(row, "a"))) ||
        is_narrow_type(json_string_value(json_object_get(row, "b")))) {
      narrow = b200_add(narrow, report_number(row, "flops"));
      continue;
    }
    json_t *asked_for = without_references(row, done);
    if (report_number(asked_for, "calls") || report_number(row, "calls") == 0) {
      add_role(roles, json_string_value(json_object_get(row, "role")), report_number(asked_for, "calls"),
               report_number(asked_for, "flops"));
      json_array_append(shapes, asked_for);
    }
    json_decref(asked_for);
  }
  asked = report_number(report_row_with(json_object_get(done, "roles"), "role", "narrow"), "flops");
  if (narrow)
    add_role(roles, "narrow", 0, narrow > asked ? asked : narrow);
  return json_pack("{so so}", "roles", roles, "shapes", shapes);
}

json_t *report_memory_by_node(const json_t *hbm, const json_t *node) {
  const json_t *own = report_row_with(hbm, "owner", "b200opt"), *theirs = report_row_with(node, "owner", "pytorch");
  json_t *rows = json_array(), *row;
  size_t i;
  json_array_foreach(hbm, i, row) {
    if (row == own)
      continue;
    json_t *copy = json_copy(row);
    if (own && strcmp(json_string_value(json_object_get(row, "owner")), "pytorch") == 0) {
      int64_t peak = report_number(row, "peak_bytes"), more = report_number(own, "peak_bytes"),
              seen = theirs ? report_number(theirs, "peak_bytes") : 0;
      bool possible = seen >= (peak > more ? peak : more) && seen <= peak + more;
      json_object_set_new(copy, "peak_bytes", json_integer(possible ? seen : peak + more));
      json_object_set_new(copy, "allocs", json_integer(report_number(row, "allocs") + report_number(own, "allocs")));
    }
    json_array_append_new(rows, copy);
  }
  return rows;
}
