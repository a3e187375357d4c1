/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"
#include "tools/compare/parts.h"
#include "tools/report/print.h"
#include "tools/report/rows.h"

#define GEMMS_SHOWN 40

static const char *const side_names[2] = {"baseline", "candidate"};

/* ---- memory */

static void add_owner(json_t *rows, int side, const struct b200_log_alloc *alloc) {
  json_t *row = report_row_with(rows, "owner", alloc->owner);
  if (!row) {
    row = json_pack("{ss sn sn}", "owner", alloc->owner, side_names[0], side_names[1]);
    json_array_append_new(rows, row);
  }
  const json_t *before = json_object_get(row, side_names[side]);
  if (!json_is_integer(before) || json_integer_value(before) < alloc->peak)
    json_object_set_new(row, side_names[side], json_integer(alloc->peak));
}

static bool has_library_log(const struct compare_arm *arm) {
  for (size_t i = 0; arm->run_count && i < arm->runs[0].logs.log_count; i++)
    if (!arm->runs[0].logs.logs[i].node)
      return true;
  return false;
}

json_t *compare_memory(const struct compare_arm *const arms[2]) {
  json_t *rows = json_array();
  for (int side = 0; side < 2; side++) {
    bool library = has_library_log(arms[side]);
    for (size_t i = 0; arms[side]->run_count && i < arms[side]->runs[0].logs.log_count; i++) {
      const struct b200_log *log = &arms[side]->runs[0].logs.logs[i];
      for (size_t j = 0; log->node != library && j < log->alloc_count; j++)
        add_owner(rows, side, &log->allocs[j]);
    }
  }
  if (json_array_size(rows))
    return rows;
  json_decref(rows);
  return json_null();
}

/* ---- GEMMs */

/* What one side did with a shape, most FLOPs first is told. */
struct done {
  const char *plan, *reason; /* of the most FLOPs */
  int64_t most, flops, calls, converted;
  int64_t model_native_ns, model_narrow_ns; /* of converted calls */
  size_t kinds;                             /* different plans and reasons */
  double error;                             /* the largest audited; NAN: none, -1: not finite */
};

struct shape {
  const char *role, *ta, *tb;
  int64_t m, n, k, batch;
  struct done done[2];
};

struct shapes {
  struct shape *list;
  size_t count;
  int64_t flops[2];
};

static struct shape *shape_find(struct shapes *shapes, const struct shape *wanted) {
  for (size_t i = 0; i < shapes->count; i++) {
    struct shape *it = &shapes->list[i];
    if (it->m == wanted->m && it->n == wanted->n && it->k == wanted->k && it->batch == wanted->batch &&
        strcmp(it->role, wanted->role) == 0 && strcmp(it->ta, wanted->ta) == 0 && strcmp(it->tb, wanted->tb) == 0)
      return it;
  }
  shapes->list = b200_grow(shapes->list, shapes->count, sizeof(*shapes->list));
  shapes->list[shapes->count] = *wanted;
  for (int side = 0; side < 2; side++)
    shapes->list[shapes->count].done[side] = (struct done){.plan = "", .reason = "", .error = NAN};
  return &shapes->list[shapes->count++];
}

/* Rows of one log are by types and epilogue, too: the kinds of a shape are counted on the first log alone. */
static void add_gemm(struct shapes *shapes, int side, const struct b200_log_gemm *gemm, bool first_log) {
  struct shape *shape = shape_find(shapes, &(struct shape){.role = gemm->role,
                                                           .ta = gemm->ta,
                                                           .tb = gemm->tb,
                                                           .m = gemm->m,
                                                           .n = gemm->n,
                                                           .k = gemm->k,
                                                           .batch = gemm->batch});
  struct done *done = &shape->done[side];
  const char *plan = *gemm->plan ? gemm->plan : "native";
  bool other = done->kinds == 0 || strcmp(plan, done->plan) != 0 || strcmp(gemm->reason, done->reason) != 0;
  done->kinds += other && first_log;
  if (done->most < gemm->flops || done->kinds == 0) {
    done->plan = plan;
    done->reason = gemm->reason;
    done->most = gemm->flops;
  }
  done->calls = b200_add(done->calls, gemm->calls);
  done->flops = b200_add(done->flops, gemm->flops);
  if (strcmp(plan, "native") != 0) {
    done->converted = b200_add(done->converted, gemm->flops);
    done->model_native_ns = b200_add(done->model_native_ns, gemm->model_native_ns);
    done->model_narrow_ns = b200_add(done->model_narrow_ns, gemm->model_narrow_ns);
  }
  shapes->flops[side] = b200_add(shapes->flops[side], gemm->flops);
}

static void add_audit(struct shapes *shapes, int side, const struct b200_log_audit *audit) {
  struct shape *shape = shape_find(shapes, &(struct shape){.role = audit->role,
                                                           .ta = audit->ta,
                                                           .tb = audit->tb,
                                                           .m = audit->m,
                                                           .n = audit->n,
                                                           .k = audit->k,
                                                           .batch = audit->batch});
  double *error = &shape->done[side].error;
  if (isnan(*error) || audit->error < 0 || (*error >= 0 && audit->error > *error))
    *error = audit->error;
}

static void take_logs(struct shapes *shapes, const struct compare_arm *arm, int side) {
  bool library = has_library_log(arm), first = true;
  for (size_t i = 0; arm->run_count && i < arm->runs[0].logs.log_count; i++) {
    const struct b200_log *log = &arm->runs[0].logs.logs[i];
    if (log->node == library)
      continue;
    for (size_t j = 0; j < log->gemm_count; j++)
      add_gemm(shapes, side, &log->gemms[j], first);
    for (size_t j = 0; j < log->audit_count; j++)
      add_audit(shapes, side, &log->audits[j]);
    first = false;
  }
}

static int64_t flops_of(const struct shape *shape) {
  return shape->done[0].flops > shape->done[1].flops ? shape->done[0].flops : shape->done[1].flops;
}

static int most_flops_first(const void *a, const void *b) {
  int64_t x = flops_of(a), y = flops_of(b);
  return (x < y) - (x > y);
}

static json_t *done_row(const struct done *done, int64_t all) {
  if (!done->calls)
    return json_null();
  return json_pack("{ss ss sI sI sI sf sf so}", "plan", done->plan, "reason", done->reason, "kinds", (json_int_t)done->kinds,
                   "calls", (json_int_t)done->calls, "flops", (json_int_t)done->flops, "share",
                   all ? (double)done->flops / (double)all : 0, "converted",
                   done->flops ? (double)done->converted / (double)done->flops : 0, "audited_error",
                   isnan(done->error)  ? json_null()
                   : (done->error < 0) ? json_string("not finite")
                                       : json_real(done->error));
}

static json_t *totals(const struct shapes *shapes, int side) {
  int64_t converted = 0, calls = 0, native_ns = 0, narrow_ns = 0;
  for (size_t i = 0; i < shapes->count; i++) {
    converted = b200_add(converted, shapes->list[i].done[side].converted);
    calls = b200_add(calls, shapes->list[i].done[side].calls);
    native_ns = b200_add(native_ns, shapes->list[i].done[side].model_native_ns);
    narrow_ns = b200_add(narrow_ns, shapes->list[i].done[side].model_narrow_ns);
  }
  return json_pack("{sf sf sI sI sf}", "model_native_s", 1e-9 * (double)native_ns, "model_narrow_s",
                   1e-9 * (double)narrow_ns, "calls", (json_int_t)calls, "flops", (json_int_t)shapes->flops[side],
                   "converted", shapes->flops[side] ? (double)converted / (double)shapes->flops[side] : 0);
}

json_t *compare_gemms(const struct compare_arm *const arms[2]) {
  struct shapes shapes = {0};
  for (int side = 0; side < 2; side++)
    take_logs(&shapes, arms[side], side);
  if (!shapes.count)
    return json_null();
  qsort(shapes.list, shapes.count, sizeof(*shapes.list), most_flops_first);
  json_t *rows = json_array();
  for (size_t i = 0; i < shapes.count && i < GEMMS_SHOWN; i++) {
    const struct shape *it = &shapes.list[i];
    json_t *row = json_pack("{ss ss ss sI sI sI sI}", "role", it->role, "ta", it->ta, "tb", it->tb, "m", (json_int_t)it->m,
                            "n", (json_int_t)it->n, "k", (json_int_t)it->k, "batch", (json_int_t)it->batch);
    for (int side = 0; side < 2; side++)
      json_object_set_new(row, side_names[side], done_row(&it->done[side], shapes.flops[side]));
    json_array_append_new(rows, row);
  }
  json_t *part = json_pack("{so so so sI}", "baseline", totals(&shapes, 0), "candidate", totals(&shapes, 1), "rows", rows,
                           "left_out", (json_int_t)(shapes.count > GEMMS_SHOWN ? shapes.count - GEMMS_SHOWN : 0));
  free(shapes.list);
  return part;
}
