/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/text.h"

#include "interpose/record/reader.h"
#include "tools/report/bottleneck.h"
#include "tools/report/memory.h"
#include "tools/report/overlap.h"
#include "tools/report/pool.h"
#include "tools/report/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES_SHOWN 8
#define POINTS_SHOWN 10
#define REFUSED_SHOWN 8
#define STACKS_SHOWN 5
#define GUARDS_SHOWN 8

static const char *counted_by(const json_t *arm) {
  const char *who = report_string(arm, "counted_by");
  if (strcmp(who, "b200opt") == 0)
    return "libb200opt.so";
  return strcmp(who, "node") == 0 ? "the virtual node" : "nobody (only its output is there)";
}

static char *joined(const json_t *object, const char *between) {
  char *list = calloc(1, 1);
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)object, name, value) {
    char *shown =
        json_is_string(value) ? strdup(json_string_value(value)) : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    size_t room = strlen(list) + strlen(name) + strlen(shown ? shown : "") + strlen(between) + 8;
    char *longer = malloc(room);
    if (!longer || !shown)
      abort();
    snprintf(longer, room, "%s%s%s%s%s", list, *list ? ", " : "", name, between, shown);
    free(shown);
    free(list);
    list = longer;
  }
  return list;
}

static void print_joined(const struct report_text *text, const char *label, const json_t *object, const char *between) {
  if (!json_object_size(object))
    return;
  char *list = joined(object, between);
  report_line(text, label, list);
  free(list);
}

static void print_execution(const struct report_text *text, const json_t *execution) {
  char value[256];
  if (!json_is_object(execution))
    return;
  bool is_eager = strcmp(report_string(execution, "order"), "eager") == 0;
  snprintf(value, sizeof(value), "%s order%s; modelled time %.6f s", report_string(execution, "order"),
           is_eager ? " (races are not looked for)" : "", report_real(execution, "modelled_s"));
  report_line(text, "node", value);
  if (is_eager)
    return;
  snprintf(value, sizeof(value), "%" PRId64 " accesses to memory that nothing orders%s", report_number(execution, "races"),
           report_number(execution, "races") ? ": see the job's stderr" : "");
  report_line(text, "races", value);
}

static void print_head(const struct report_text *text, const json_t *arm) {
  char value[512];
  const json_t *logs = json_object_get(arm, "logs");
  snprintf(value, sizeof(value), "%s%s%s%s%" PRId64 " rank%s%s%s, counted by %s", report_string(arm, "run"),
           *report_string(arm, "arm") ? " (arm " : "", report_string(arm, "arm"), *report_string(arm, "arm") ? "), " : "",
           report_number(arm, "ranks"), report_number(arm, "ranks") == 1 ? "" : "s",
           *report_string(arm, "host") ? " on " : "", report_string(arm, "host"), counted_by(arm));
  report_line(text, "run", value);
  snprintf(value, sizeof(value), "%s%s", *report_string(arm, "gpu") ? report_string(arm, "gpu") : "unknown",
           json_is_true(json_object_get(arm, "virtual_node")) ? "; virtual node: times are this machine's" : "");
  report_line(text, "gpu", value);
  print_execution(text, json_object_get(arm, "execution"));
  print_joined(text, "versions", json_object_get(arm, "versions"), " ");
  print_joined(text, "config", json_object_get(arm, "config"), "=");
  print_joined(text, "nccl", json_object_get(arm, "nccl_env"), "=");
  snprintf(value, sizeof(value), "%" PRId64 " of the library, %" PRId64 " of the node%s", report_number(logs, "library"),
           report_number(logs, "node"), report_number(logs, "partial") ? "" : ", all complete");
  report_line(text, "logs", value);
  if (report_number(logs, "partial")) {
    snprintf(value, sizeof(value), "%" PRId64 " of these end without their last line: killed, or still running",
             report_number(logs, "partial"));
    report_line(text, "partial", value);
  }
  if (json_array_size(json_object_get(arm, "runs")) > 1)
    report_line(text, "", "the folder has more runs; --run NAME chooses");
}

static void print_steps(const struct report_text *text, const json_t *arm) {
  char value[256];
  const json_t *steps = json_object_get(arm, "steps"), *rate = json_object_get(arm, "tokens_per_s");
  if (json_is_object(steps)) {
    snprintf(value, sizeof(value), "%" PRId64 " of %" PRId64 " %s%s; first %s, then median %s, p10 %s, p90 %s",
             report_number(steps, "count"), report_number(steps, "period"),
             strcmp(report_string(steps, "source"), "gemm") == 0 ? "GEMMs" : "collectives",
             strcmp(report_string(steps, "source"), "told") == 0 ? " (as told)" : "",
             report_seconds(report_real(steps, "first_s")).text, report_seconds(report_real(steps, "median_s")).text,
             report_seconds(report_real(steps, "p10_s")).text, report_seconds(report_real(steps, "p90_s")).text);
    report_line(text, "steps", value);
  } else if (report_number(json_object_get(arm, "loss"), "count") > 0) {
    snprintf(value, sizeof(value), "%" PRId64 " that the job printed%s",
             report_number(json_object_get(arm, "loss"), "count"),
             strcmp(report_string(arm, "counted_by"), "b200opt") == 0 ? "; none found in its calls" : "");
    report_line(text, "steps", value);
  } else {
    report_line(text, "steps", "none found");
  }
  if (!json_is_object(rate)) {
    report_line(text, "tokens/s", "unknown: the job prints none, and there are no steps to infer it from");
  } else if (strcmp(report_string(rate, "source"), "printed") == 0) {
    snprintf(value, sizeof(value), "%.1f, median of what the job printed", report_real(rate, "value"));
    report_line(text, "tokens/s", value);
  } else {
    snprintf(value, sizeof(value),
             "%.1f, inferred: %s tokens a step and rank (n of most forward GEMMs; too low with gradient accumulation)",
             report_real(rate, "value"), report_grouped(report_number(rate, "tokens_per_rank_step")).text);
    report_line(text, "tokens/s", value);
  }
}

/* ---- loss */

/* One character per column for the mean of its share of the series; '!' where it is not finite. */
static void print_curve(const struct report_text *text, const json_t *series) {
  static const char levels[] = "_.-=+*#%@";
  size_t count = json_array_size(series), width = count < 80 ? count : 80;
  double least = INFINITY, most = -INFINITY;
  for (size_t i = 0; i < count; i++) {
    double loss = report_real(json_array_get(series, i), "loss");
    least = isfinite(loss) && loss < least ? loss : least;
    most = isfinite(loss) && loss > most ? loss : most;
  }
  fprintf(text->out, "%-10s", "curve");
  for (size_t column = 0; column < width; column++) {
    size_t from = column * count / width, to = (column + 1) * count / width;
    double mean = 0;
    for (size_t i = from; i < to; i++)
      mean += report_real(json_array_get(series, i), "loss") / (double)(to - from);
    /* Halves: the difference of the largest numbers is none. */
    double place = most > least ? (mean / 2 - least / 2) / (most / 2 - least / 2) : 0;
    place = fmin(fmax(place, 0), 1);
    fputc(isfinite(mean) ? levels[(int)(place * (double)(sizeof(levels) - 2) + 0.5)] : '!', text->out);
  }
  fputc('\n', text->out);
}

/* In 8 columns, with as many of `decimals` as fit. */
static struct report_value narrow(double amount, int decimals) {
  struct report_value value;
  int length = snprintf(value.text, sizeof(value.text), "%8.*f", decimals, amount);
  for (int digits = 2; length > 8 && digits >= 0; digits--)
    length = snprintf(value.text, sizeof(value.text), "%8.*e", digits, amount);
  return value;
}

static void print_row_of_points(const struct report_text *text, const json_t *series, const char *field, int decimals) {
  size_t count = json_array_size(series), shown = count < POINTS_SHOWN ? count : POINTS_SHOWN;
  fprintf(text->out, "%-10s", field);
  for (size_t i = 0; i < shown; i++) {
    const json_t *point = json_array_get(series, shown > 1 ? i * (count - 1) / (shown - 1) : 0);
    fprintf(text->out, " %s", narrow(report_real(point, field), decimals).text);
  }
  fputc('\n', text->out);
}

static void print_points(const struct report_text *text, const json_t *series) {
  print_row_of_points(text, series, "step", 0);
  print_row_of_points(text, series, "loss", 4);
}

static void print_loss(const struct report_text *text, const json_t *arm) {
  char value[256];
  const json_t *loss = json_object_get(arm, "loss");
  if (!json_is_object(loss)) {
    report_line(text, "loss", "the job printed none that was recognised");
    return;
  }
  snprintf(value, sizeof(value), "%.6g -> %.6g, lowest %.6g at step %" PRId64 "; %" PRId64 " values from %s",
           report_real(loss, "first"), report_real(loss, "last"), report_real(loss, "min"), report_number(loss, "min_step"),
           report_number(loss, "count"), strcmp(report_string(loss, "source"), "log") == 0 ? "the log" : "the job's output");
  report_line(text, "loss", value);
  print_curve(text, json_object_get(loss, "series"));
  print_points(text, json_object_get(loss, "series"));
}

/* ---- tables */

static void print_gemms(const struct report_text *text, const json_t *gemm) {
  size_t i;
  json_t *row;
  report_heading(text, "GEMMs by role, all ranks");
  report_table_line(text, "  %-10s %14s %14s %8s", "role", "calls", "FLOPs", "share");
  json_array_foreach(json_object_get(gemm, "roles"), i, row) {
    report_table_line(text, "  %-10.10s %14s %14s %7.1f%%", report_string(row, "role"),
                      report_grouped(report_number(row, "calls")).text, report_flops(report_number(row, "flops")).text,
                      100 * report_real(row, "share"));
  }
  report_table_line(text, "  %-10s %14s %14s   %s FLOPs", "all", report_grouped(report_number(gemm, "calls")).text,
                    report_flops(report_number(gemm, "flops")).text, report_grouped(report_number(gemm, "flops")).text);
}

static void print_shapes(const struct report_text *text, const json_t *gemm) {
  const json_t *shapes = json_object_get(gemm, "shapes");
  size_t count = json_array_size(shapes), i;
  if (!count)
    return;
  report_heading(text, "GEMM shapes with most FLOPs (D[m x n] = op(A)[m x k] op(B)[k x n], column-major)");
  report_table_line(text, "  %-7s %-2s %24s %5s %12s %7s  %-14s %-8s %s", "role", "op", "m x n x k", "batch", "calls",
                    "share", "A B D", "compute", "epilogue");
  for (i = 0; i < count && i < SHAPES_SHOWN; i++) {
    const json_t *row = json_array_get(shapes, i);
    char size[64], types[32];
    snprintf(size, sizeof(size), "%" PRId64 " x %" PRId64 " x %" PRId64, report_number(row, "m"), report_number(row, "n"),
             report_number(row, "k"));
    snprintf(types, sizeof(types), "%s %s %s", report_string(row, "a"), report_string(row, "b"), report_string(row, "d"));
    report_table_line(text, "  %-7.7s %.1s%.1s %24s %5" PRId64 " %12s %6.1f%%  %-14.14s %-8.8s %s",
                      report_string(row, "role"), report_string(row, "ta"), report_string(row, "tb"), size,
                      report_number(row, "batch"), report_grouped(report_number(row, "calls")).text,
                      100 * report_real(row, "share"), types, report_string(row, "compute"), report_string(row, "epilogue"));
  }
  if (count > SHAPES_SHOWN)
    report_table_line(text, "  ... %zu more shapes (--json has them all)", count - SHAPES_SHOWN);
}

static void print_would(const struct report_text *text, const json_t *rows) {
  size_t i;
  json_t *row;
  if (!json_array_size(rows))
    return;
  fputc('\n', text->out);
  report_table_line(text, "  %-10s %10s  %s", "instead", "converted", "time of all GEMMs by the cost model");
  json_array_foreach(rows, i, row) {
    char model[160] = "unknown GPU";
    double native = report_real(row, "native_s"), done = report_real(row, "model_s");
    if (native > 0 && done > 0)
      snprintf(model, sizeof(model), "%s, now %s: %.2f times as fast", report_seconds(done).text,
               report_seconds(native).text, native / done);
    report_table_line(text, "  %-10.10s %9.1f%%  %s", report_string(row, "precision"), 100 * report_real(row, "coverage"),
                      model);
  }
}

static void print_shape_event(const struct report_text *text, const char *label, const json_t *row, const char *what) {
  char value[256];
  snprintf(value, sizeof(value), "%s %s%s %" PRId64 " x %" PRId64 " x %" PRId64 " in %s: %s", report_string(row, "role"),
           report_string(row, "ta"), report_string(row, "tb"), report_number(row, "m"), report_number(row, "n"),
           report_number(row, "k"), report_string(row, "plan"), what);
  report_line(text, label, value);
}

static void print_guards(const struct report_text *text, const json_t *rows) {
  size_t count = json_array_size(rows);
  for (size_t i = 0; i < count && i < GUARDS_SHOWN; i++) {
    const json_t *row = json_array_get(rows, i);
    char what[128];
    snprintf(what, sizeof(what), "rank %" PRId64 ", %s, %s %" PRId64, report_number(row, "rank"), report_string(row, "what"),
             json_is_true(json_object_get(row, "applied")) ? "taken out from step"
                                                           : "not applied, as ranks differed, at step",
             report_number(row, "step"));
    print_shape_event(text, i ? "" : "guard", row, what);
  }
  if (count > GUARDS_SHOWN)
    report_table_line(text, "          ... %zu more (--json has them all)", count - GUARDS_SHOWN);
}

static void print_narrow_details(const struct report_text *text, const json_t *conversion) {
  char value[256];
  const json_t *model = json_object_get(conversion, "model"), *audit = json_object_get(conversion, "audit");
  const json_t *workspace = json_object_get(conversion, "workspace"), *worst = json_object_get(audit, "worst");
  if (json_is_object(model)) {
    double native = report_real(model, "native_s"), narrow = report_real(model, "narrow_s");
    snprintf(value, sizeof(value),
             "%s for the converted GEMMs of all ranks instead of %s, by the cost model: %.2f times as fast",
             report_seconds(narrow).text, report_seconds(native).text, narrow > 0 ? native / narrow : 0);
    report_line(text, "gain", value);
    if (narrow > native)
      report_line(
          text, "",
          "slower, as quantising small operands takes longer than it saves: B200OPT_STRATEGY=performant leaves them");
  }
  if (json_is_object(workspace)) {
    snprintf(value, sizeof(value), "%s of at most %s on the rank with most; %" PRId64 " calls found no room",
             report_bytes(report_number(workspace, "peak_bytes")).text,
             report_bytes(report_number(workspace, "limit_bytes")).text, report_number(workspace, "refused"));
    report_line(text, "workspace", value);
  }
  if (json_is_object(worst)) {
    snprintf(value, sizeof(value), "relative error %.4g, the largest of %" PRId64 " audited calls",
             report_real(worst, "error"), report_number(audit, "calls"));
    print_shape_event(text, "audit", worst, value);
  }
  if (report_number(conversion, "bad_samples")) {
    snprintf(value, sizeof(value), "%" PRId64 " sampled calls were found bad by the guard",
             report_number(conversion, "bad_samples"));
    report_line(text, "samples", value);
  }
  print_guards(text, json_object_get(conversion, "guard"));
  if (json_is_false(json_object_get(conversion, "ranks_agree")))
    report_line(text, "ranks", "they did not decide alike: their hashes of decisions differ");
}

static void print_conversion(const struct report_text *text, const json_t *conversion) {
  size_t i;
  json_t *row;
  char value[256];
  if (!json_is_object(conversion))
    return;
  report_heading(text, "What was done with the GEMMs, and why");
  report_table_line(text, "  %-8s %-18s %14s %14s %8s", "plan", "reason", "calls", "FLOPs", "share");
  json_array_foreach(json_object_get(conversion, "rows"), i, row) {
    report_table_line(text, "  %-8.8s %-18.18s %14s %14s %7.1f%%", report_string(row, "plan"), report_string(row, "reason"),
                      report_grouped(report_number(row, "calls")).text, report_flops(report_number(row, "flops")).text,
                      100 * report_real(row, "share"));
  }
  snprintf(value, sizeof(value), "%.1f %% of the FLOPs were converted", 100 * report_real(conversion, "coverage"));
  report_line(text, "coverage", value);
  if (!json_is_true(json_object_get(conversion, "coverage_met"))) {
    snprintf(value, sizeof(value), "less than the %" PRId64 " %% that B200OPT_MIN_COVERAGE asks for",
             report_number(conversion, "min_coverage_percent"));
    report_line(text, "", value);
  }
  print_narrow_details(text, conversion);
  print_would(text, json_object_get(conversion, "would"));
}

static void print_collectives(const struct report_text *text, const json_t *rows) {
  size_t i;
  json_t *row;
  report_heading(text, "Collectives, all ranks (bytes as nccl-tests counts them)");
  if (!json_array_size(rows))
    report_table_line(text, "  none");
  json_array_foreach(rows, i, row) {
    if (i == 0)
      report_table_line(text, "  %-14s %-6s %6s %14s %14s", "kind", "type", "ranks", "calls", "bytes");
    report_table_line(text, "  %-14.14s %-6.6s %6" PRId64 " %14s %14s", report_string(row, "op"),
                      report_string(row, "dtype"), report_number(row, "nranks"),
                      report_grouped(report_number(row, "calls")).text, report_bytes(report_number(row, "bytes")).text);
  }
}

static void print_memory(const struct report_text *text, const json_t *rows) {
  size_t i;
  json_t *row;
  report_heading(text, "Device memory by owner (bytes: the rank with most; calls: all ranks)");
  report_table_line(text, "  %-10s %14s %14s %12s %12s %8s", "owner", "at the end", "peak", "allocations", "frees",
                    "refused");
  json_array_foreach(rows, i, row) {
    report_table_line(text, "  %-10.10s %14s %14s %12s %12s %8s", report_string(row, "owner"),
                      report_bytes(report_number(row, "current_bytes")).text,
                      report_bytes(report_number(row, "peak_bytes")).text, report_grouped(report_number(row, "allocs")).text,
                      report_grouped(report_number(row, "frees")).text, report_grouped(report_number(row, "failed")).text);
  }
}

/* What the job did not get in the end, with advice; of the rest the first few. */
static void print_refused(const struct report_text *text, const json_t *rows) {
  size_t i, left_out = 0, shown = 0;
  json_t *row;
  char value[512];
  json_array_foreach(rows, i, row) {
    bool final = json_is_true(json_object_get(row, "final"));
    if (!final && shown == REFUSED_SHOWN) {
      left_out++;
      continue;
    }
    shown += !final;
    snprintf(value, sizeof(value), "rank %" PRId64 ", %s asked for %s%s%s", report_number(row, "rank"),
             report_string(row, "owner"), report_bytes(report_number(row, "bytes")).text,
             strcmp(report_string(row, "why"), "headroom") == 0 ? ", kept for others by B200OPT_MEMORY_RESERVE_MB" : "",
             final ? ", and did not get it" : "");
    report_line(text, "  refused", value);
    if (final && *report_string(row, "advice"))
      report_line(text, "  try", report_string(row, "advice"));
  }
  if (left_out) {
    snprintf(value, sizeof(value), "%zu more", left_out);
    report_line(text, "  refused", value);
  }
}

static void print_retries(const struct report_text *text, const json_t *retries) {
  char value[160];
  if (report_number(retries, "count") == 0)
    return;
  snprintf(value, sizeof(value), "%s allocations were refused at first and then granted, which took %s",
           report_grouped(report_number(retries, "count")).text, report_seconds(report_real(retries, "seconds")).text);
  report_line(text, "retries", value);
}

static void print_troubles(const struct report_text *text, const json_t *arm) {
  size_t i;
  json_t *row;
  char value[512];
  bool any = json_array_size(json_object_get(arm, "warnings")) || json_array_size(json_object_get(arm, "drops")) ||
             json_array_size(json_object_get(arm, "oom"));
  if (any)
    report_heading(text, "Warnings");
  json_array_foreach(json_object_get(arm, "warnings"), i, row) {
    snprintf(value, sizeof(value), "%s (%" PRId64 " times)", report_string(row, "text"), report_number(row, "count"));
    report_line(text, "  warning", value);
  }
  json_array_foreach(json_object_get(arm, "drops"), i, row) {
    snprintf(value, sizeof(value), "%" PRId64 " lines of type %s were not written: sums that contain them are too low",
             report_number(row, "count"), report_string(row, "what"));
    report_line(text, "  dropped", value);
  }
  print_refused(text, json_object_get(arm, "oom"));
  json_array_foreach(json_object_get(arm, "calls"), i, row) {
    if (report_number(row, "errors") == 0)
      continue;
    snprintf(value, sizeof(value), "%s: %" PRId64 " of %" PRId64 " calls returned an error status",
             report_string(row, "name"), report_number(row, "errors"), report_number(row, "calls"));
    report_line(text, "  failed", value);
  }
}

/* One a line: a path that is broken cannot be opened by a click. */
static void print_frames(const struct report_text *text, const char *frames) {
  while (*frames) {
    char frame[512];
    int length = (int)strcspn(frames, " ");
    snprintf(frame, sizeof(frame), "%.*s", length, frames);
    report_line(text, "", frame);
    frames += length + (frames[length] == ' ');
  }
}

static void print_stacks(const struct report_text *text, const json_t *stacks) {
  size_t count = json_array_size(stacks);
  if (!count)
    return;
  report_heading(text, "Stacks of device allocations (all ranks; innermost first; native frames of Python's: --json)");
  for (size_t i = 0; i < count && i < STACKS_SHOWN; i++) {
    char label[64];
    const json_t *row = json_array_get(stacks, i);
    snprintf(label, sizeof(label), "  %.10s, %" PRId64 " times, %s", report_string(row, "owner"),
             report_number(row, "count"), report_bytes(report_number(row, "bytes")).text);
    report_table_line(text, "%s", label);
    print_frames(text, report_string(row, *report_string(row, "python") ? "python" : "frames"));
  }
}

/* ---- comparison */

static void print_pair(const struct report_text *text, const char *what, const json_t *row, const char *field,
                       bool as_bytes) {
  const json_t *values = json_object_get(row, field);
  int64_t left = json_integer_value(json_array_get(values, 0)), right = json_integer_value(json_array_get(values, 1));
  char difference[64] = "equal";
  if (left != right)
    snprintf(difference, sizeof(difference), "differs by %s%s", right > left ? "+" : "",
             report_grouped(b200_add(right, left > INT64_MIN ? -left : INT64_MAX)).text);
  report_table_line(text, "  %-30.30s %18s %18s   %s", what, as_bytes ? report_bytes(left).text : report_grouped(left).text,
                    as_bytes ? report_bytes(right).text : report_grouped(right).text, difference);
}

static void print_counts(const struct report_text *text, const json_t *comparison, const char *left, const char *right) {
  size_t i;
  json_t *row;
  char what[96];
  report_table_line(text, "  %-30s %18s %18s", "", left, right);
  json_array_foreach(json_object_get(comparison, "roles"), i, row) {
    snprintf(what, sizeof(what), "GEMM %.16s, calls", report_string(row, "role"));
    print_pair(text, what, row, "calls", false);
    snprintf(what, sizeof(what), "GEMM %.16s, FLOPs", report_string(row, "role"));
    print_pair(text, what, row, "flops", false);
  }
  report_table_line(text, "  %-30s %18s %18" PRId64 "   %" PRId64 " equal", "GEMM shapes", "",
                    report_number(comparison, "shapes"), report_number(comparison, "shapes_equal"));
  json_array_foreach(json_object_get(comparison, "collectives"), i, row) {
    snprintf(what, sizeof(what), "%.14s %.4s x%" PRId64 ", calls", report_string(row, "op"), report_string(row, "dtype"),
             report_number(row, "nranks"));
    print_pair(text, what, row, "calls", false);
    snprintf(what, sizeof(what), "%.14s %.4s x%" PRId64 ", bytes", report_string(row, "op"), report_string(row, "dtype"),
             report_number(row, "nranks"));
    print_pair(text, what, row, "bytes", false);
  }
  json_array_foreach(json_object_get(comparison, "hbm"), i, row) {
    snprintf(what, sizeof(what), "memory of %.7s, peak", report_string(row, "owner"));
    print_pair(text, what, row, "peak_bytes", true);
    snprintf(what, sizeof(what), "memory of %.7s, allocations", report_string(row, "owner"));
    print_pair(text, what, row, "allocs", false);
  }
}

static void print_loss_verdict(const struct report_text *text, const json_t *loss) {
  char value[256];
  const char *verdict = report_string(loss, "verdict");
  if (strcmp(verdict, "bit-identical") == 0)
    snprintf(value, sizeof(value), "bit-identical: all %" PRId64 " printed values are equal", report_number(loss, "common"));
  else if (strcmp(verdict, "different") == 0)
    snprintf(value, sizeof(value),
             "different: %" PRId64 " of %" PRId64
             " printed values are equal, largest difference %.3g, first at step %" PRId64,
             report_number(loss, "equal"), report_number(loss, "common"), report_real(loss, "max_difference"),
             report_number(loss, "first_step"));
  else
    snprintf(value, sizeof(value),
             strcmp(verdict, "none") == 0 ? "no losses on either side" : "not comparable: no step is printed by both");
  report_line(text, "losses", value);
  if (report_number(loss, "unpaired")) {
    snprintf(value, sizeof(value), "%" PRId64 " values have no partner in the other arm", report_number(loss, "unpaired"));
    report_line(text, "", value);
  }
}

static void print_comparison(const struct report_text *text, const json_t *report) {
  const json_t *against = json_object_get(report, "against"), *arm = json_object_get(report, "report");
  const json_t *comparison = json_object_get(report, "comparison");
  char value[512];
  report_heading(text, "Compared with --against");
  snprintf(value, sizeof(value), "%s, counted by %s", report_string(against, "folder"), counted_by(against));
  report_line(text, "against", value);
  print_steps(text, against);
  print_loss(text, against);
  print_loss_verdict(text, json_object_get(comparison, "loss"));
  fputc('\n', text->out);
  print_counts(text, comparison, strcmp(report_string(against, "counted_by"), "node") == 0 ? "against (node)" : "against",
               strcmp(report_string(arm, "counted_by"), "node") == 0 ? "this (node)" : "this (b200opt)");
  report_line(text, "verdict",
              json_is_true(json_object_get(comparison, "equal")) ? "equal in every count and every loss" : "not equal");
}

static void print_node_check(const struct report_text *text, const json_t *check) {
  if (!json_is_object(check))
    return;
  if (json_is_true(json_object_get(check, "equal"))) {
    fputc('\n', text->out);
    report_line(text, "checked", "the virtual node counted the same GEMMs, collectives and allocations by itself");
    return;
  }
  report_heading(text, "The virtual node's own count of this job differs");
  print_counts(text, check, "node", "b200opt");
}

static char *ascii(const char *text) {
  char *copy = b200_format("%s", text);
  for (char *at = copy; *at; at++)
    if (*at < ' ' || *at > '~')
      *at = '?';
  return copy;
}

/* A copy with every text in ASCII: logs may hold anything, also what a terminal obeys. */
static json_t *in_ascii(const json_t *value) {
  const char *name;
  size_t i;
  json_t *part, *copy;
  if (json_is_string(value)) {
    char *text = ascii(json_string_value(value));
    copy = json_string(text);
    free(text);
  } else if (json_is_array(value)) {
    copy = json_array();
    json_array_foreach(value, i, part) json_array_append_new(copy, in_ascii(part));
  } else if (json_is_object(value)) {
    copy = json_object();
    json_object_foreach((json_t *)value, name, part) {
      char *key = ascii(name);
      json_object_set_new(copy, key, in_ascii(part));
      free(key);
    }
  } else {
    copy = json_copy((json_t *)value);
  }
  return copy;
}

void report_print(FILE *out, const json_t *original, bool colour) {
  struct report_text text = {out, colour};
  json_t *report = in_ascii(original);
  const json_t *arm = json_object_get(report, "report");
  size_t i;
  json_t *note;
  print_head(&text, arm);
  print_steps(&text, arm);
  report_print_bottleneck(&text, json_object_get(arm, "bottleneck"));
  print_loss(&text, arm);
  print_gemms(&text, json_object_get(arm, "gemm"));
  print_shapes(&text, json_object_get(arm, "gemm"));
  print_conversion(&text, json_object_get(arm, "conversion"));
  print_collectives(&text, json_object_get(arm, "collectives"));
  report_print_overlap(&text, json_object_get(arm, "communication"));
  print_memory(&text, json_object_get(arm, "hbm"));
  report_print_memory_timeline(&text, json_object_get(arm, "memory"));
  print_retries(&text, json_object_get(arm, "retries"));
  report_print_pool(&text, json_object_get(arm, "pool"));
  print_stacks(&text, json_object_get(arm, "stacks"));
  print_node_check(&text, json_object_get(report, "node_check"));
  print_troubles(&text, arm);
  if (json_is_object(json_object_get(report, "against")))
    print_comparison(&text, report);
  if (json_array_size(json_object_get(report, "notes")))
    report_heading(&text, "Notes");
  json_array_foreach(json_object_get(report, "notes"), i, note) report_line(&text, "", json_string_value(note));
  json_decref(report);
}
