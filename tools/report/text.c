/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/text.h"

#include "interpose/record/reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 100
#define SHAPES_SHOWN 8
#define POINTS_SHOWN 10
#define STACKS_SHOWN 5
#define GUARDS_SHOWN 8

struct text {
  FILE *out;
  bool colour;
};

/* ---- values as text, in a caller's buffer */

struct value {
  char text[40];
};

static const char *string(const json_t *row, const char *name) {
  const char *value = json_string_value(json_object_get(row, name));
  return value ? value : "";
}

static int64_t number(const json_t *row, const char *name) {
  return json_integer_value(json_object_get(row, name));
}

static double real(const json_t *row, const char *name) {
  const json_t *value = json_object_get(row, name);
  return json_is_string(value) ? strtod(json_string_value(value), NULL) : json_number_value(value);
}

/* 1234567 as 1,234,567. */
static struct value grouped(int64_t number_) {
  struct value value;
  char digits[24];
  size_t used = 0;
  int length = snprintf(digits, sizeof(digits), "%" PRId64, number_);
  for (int i = 0; i < length; i++) {
    if (i && digits[i - 1] != '-' && (length - i) % 3 == 0)
      value.text[used++] = ',';
    value.text[used++] = digits[i];
  }
  value.text[used] = '\0';
  return value;
}

static struct value scaled(double amount, double base, const char *const *units) {
  struct value value;
  while (fabs(amount) >= base && units[1]) {
    amount /= base;
    units++;
  }
  snprintf(value.text, sizeof(value.text), amount == floor(amount) && amount < 1e4 ? "%.0f %s" : "%.2f %s", amount, *units);
  return value;
}

static struct value bytes(int64_t amount) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};
  return scaled((double)amount, 1024, units);
}

static struct value flops(int64_t amount) {
  static const char *const units[] = {"", "k", "M", "G", "T", "P", "E", NULL};
  return scaled((double)amount, 1000, units);
}

static struct value seconds(double amount) {
  struct value value;
  snprintf(value.text, sizeof(value.text), amount < 1 ? "%.1f ms" : "%.3f s", amount < 1 ? amount * 1e3 : amount);
  return value;
}

/* ---- lines */

static void heading(const struct text *text, const char *title) {
  fprintf(text->out, "\n%s%s%s\n", text->colour ? "\033[1m" : "", title, text->colour ? "\033[0m" : "");
}

/* "label    value", the value wrapped to the width: between words, and within those that are longer. */
static void line(const struct text *text, const char *label, const char *value) {
  int column = fprintf(text->out, "%-10s", label);
  const int start = column;
  while (*value) {
    int word = (int)strcspn(value, " ");
    int piece = word < COLUMNS - start ? word : COLUMNS - start;
    if (column > start && column + 1 + word > COLUMNS) {
      fprintf(text->out, "\n%*s", start, "");
      column = start;
    }
    column += fprintf(text->out, "%s%.*s", column > start ? " " : "", piece, value);
    value += piece;
    value += strspn(value, " ");
  }
  fputc('\n', text->out);
}

/* One line, cut to the width. */
__attribute__((format(printf, 2, 3))) static void table_line(const struct text *text, const char *format, ...) {
  char cut[COLUMNS + 1];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(cut, sizeof(cut), format, arguments);
  va_end(arguments);
  if (length > COLUMNS)
    strcpy(cut + COLUMNS - 3, "...");
  fprintf(text->out, "%s\n", cut);
}

static const char *counted_by(const json_t *arm) {
  const char *who = string(arm, "counted_by");
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

static void print_joined(const struct text *text, const char *label, const json_t *object, const char *between) {
  if (!json_object_size(object))
    return;
  char *list = joined(object, between);
  line(text, label, list);
  free(list);
}

static void print_execution(const struct text *text, const json_t *execution) {
  char value[256];
  if (!json_is_object(execution))
    return;
  bool is_eager = strcmp(string(execution, "order"), "eager") == 0;
  snprintf(value, sizeof(value), "%s order%s; modelled time %.6f s", string(execution, "order"),
           is_eager ? " (races are not looked for)" : "", real(execution, "modelled_s"));
  line(text, "node", value);
  if (is_eager)
    return;
  snprintf(value, sizeof(value), "%" PRId64 " accesses to memory that nothing orders%s", number(execution, "races"),
           number(execution, "races") ? ": see the job's stderr" : "");
  line(text, "races", value);
}

static void print_head(const struct text *text, const json_t *arm) {
  char value[512];
  const json_t *logs = json_object_get(arm, "logs");
  snprintf(value, sizeof(value), "%s%s%s%s%" PRId64 " rank%s%s%s, counted by %s", string(arm, "run"),
           *string(arm, "arm") ? " (arm " : "", string(arm, "arm"), *string(arm, "arm") ? "), " : "", number(arm, "ranks"),
           number(arm, "ranks") == 1 ? "" : "s", *string(arm, "host") ? " on " : "", string(arm, "host"), counted_by(arm));
  line(text, "run", value);
  snprintf(value, sizeof(value), "%s%s", *string(arm, "gpu") ? string(arm, "gpu") : "unknown",
           json_is_true(json_object_get(arm, "virtual_node")) ? "; virtual node: times are this machine's" : "");
  line(text, "gpu", value);
  print_execution(text, json_object_get(arm, "execution"));
  print_joined(text, "versions", json_object_get(arm, "versions"), " ");
  print_joined(text, "config", json_object_get(arm, "config"), "=");
  print_joined(text, "nccl", json_object_get(arm, "nccl_env"), "=");
  snprintf(value, sizeof(value), "%" PRId64 " of the library, %" PRId64 " of the node%s", number(logs, "library"),
           number(logs, "node"), number(logs, "partial") ? "" : ", all complete");
  line(text, "logs", value);
  if (number(logs, "partial")) {
    snprintf(value, sizeof(value), "%" PRId64 " of these end without their last line: killed, or still running",
             number(logs, "partial"));
    line(text, "partial", value);
  }
  if (json_array_size(json_object_get(arm, "runs")) > 1)
    line(text, "", "the folder has more runs; --run NAME chooses");
}

static void print_steps(const struct text *text, const json_t *arm) {
  char value[256];
  const json_t *steps = json_object_get(arm, "steps"), *rate = json_object_get(arm, "tokens_per_s");
  if (json_is_object(steps)) {
    snprintf(value, sizeof(value), "%" PRId64 " of %" PRId64 " %s%s; first %s, then median %s, p10 %s, p90 %s",
             number(steps, "count"), number(steps, "period"),
             strcmp(string(steps, "source"), "gemm") == 0 ? "GEMMs" : "collectives",
             strcmp(string(steps, "source"), "told") == 0 ? " (as told)" : "", seconds(real(steps, "first_s")).text,
             seconds(real(steps, "median_s")).text, seconds(real(steps, "p10_s")).text, seconds(real(steps, "p90_s")).text);
    line(text, "steps", value);
  } else if (number(json_object_get(arm, "loss"), "count") > 0) {
    snprintf(value, sizeof(value), "%" PRId64 " that the job printed%s", number(json_object_get(arm, "loss"), "count"),
             strcmp(string(arm, "counted_by"), "b200opt") == 0 ? "; none found in its calls" : "");
    line(text, "steps", value);
  } else {
    line(text, "steps", "none found");
  }
  if (!json_is_object(rate)) {
    line(text, "tokens/s", "unknown: the job prints none, and there are no steps to infer it from");
  } else if (strcmp(string(rate, "source"), "printed") == 0) {
    snprintf(value, sizeof(value), "%.1f, median of what the job printed", real(rate, "value"));
    line(text, "tokens/s", value);
  } else {
    snprintf(value, sizeof(value),
             "%.1f, inferred: %s tokens a step and rank (n of most forward GEMMs; too low with gradient accumulation)",
             real(rate, "value"), grouped(number(rate, "tokens_per_rank_step")).text);
    line(text, "tokens/s", value);
  }
}

/* ---- loss */

/* One character per column for the mean of its share of the series; '!' where it is not finite. */
static void print_curve(const struct text *text, const json_t *series) {
  static const char levels[] = "_.-=+*#%@";
  size_t count = json_array_size(series), width = count < 80 ? count : 80;
  double least = INFINITY, most = -INFINITY;
  for (size_t i = 0; i < count; i++) {
    double loss = real(json_array_get(series, i), "loss");
    least = isfinite(loss) && loss < least ? loss : least;
    most = isfinite(loss) && loss > most ? loss : most;
  }
  fprintf(text->out, "%-10s", "curve");
  for (size_t column = 0; column < width; column++) {
    size_t from = column * count / width, to = (column + 1) * count / width;
    double mean = 0;
    for (size_t i = from; i < to; i++)
      mean += real(json_array_get(series, i), "loss") / (double)(to - from);
    /* Halves: the difference of the largest numbers is none. */
    double place = most > least ? (mean / 2 - least / 2) / (most / 2 - least / 2) : 0;
    place = fmin(fmax(place, 0), 1);
    fputc(isfinite(mean) ? levels[(int)(place * (double)(sizeof(levels) - 2) + 0.5)] : '!', text->out);
  }
  fputc('\n', text->out);
}

/* In 8 columns, with as many of `decimals` as fit. */
static struct value narrow(double amount, int decimals) {
  struct value value;
  int length = snprintf(value.text, sizeof(value.text), "%8.*f", decimals, amount);
  for (int digits = 2; length > 8 && digits >= 0; digits--)
    length = snprintf(value.text, sizeof(value.text), "%8.*e", digits, amount);
  return value;
}

static void print_row_of_points(const struct text *text, const json_t *series, const char *field, int decimals) {
  size_t count = json_array_size(series), shown = count < POINTS_SHOWN ? count : POINTS_SHOWN;
  fprintf(text->out, "%-10s", field);
  for (size_t i = 0; i < shown; i++) {
    const json_t *point = json_array_get(series, shown > 1 ? i * (count - 1) / (shown - 1) : 0);
    fprintf(text->out, " %s", narrow(real(point, field), decimals).text);
  }
  fputc('\n', text->out);
}

static void print_points(const struct text *text, const json_t *series) {
  print_row_of_points(text, series, "step", 0);
  print_row_of_points(text, series, "loss", 4);
}

static void print_loss(const struct text *text, const json_t *arm) {
  char value[256];
  const json_t *loss = json_object_get(arm, "loss");
  if (!json_is_object(loss)) {
    line(text, "loss", "the job printed none that was recognised");
    return;
  }
  snprintf(value, sizeof(value), "%.6g -> %.6g, lowest %.6g at step %" PRId64 "; %" PRId64 " values from %s",
           real(loss, "first"), real(loss, "last"), real(loss, "min"), number(loss, "min_step"), number(loss, "count"),
           strcmp(string(loss, "source"), "log") == 0 ? "the log" : "the job's output");
  line(text, "loss", value);
  print_curve(text, json_object_get(loss, "series"));
  print_points(text, json_object_get(loss, "series"));
}

/* ---- tables */

static void print_gemms(const struct text *text, const json_t *gemm) {
  size_t i;
  json_t *row;
  heading(text, "GEMMs by role, all ranks");
  table_line(text, "  %-10s %14s %14s %8s", "role", "calls", "FLOPs", "share");
  json_array_foreach(json_object_get(gemm, "roles"), i, row) {
    table_line(text, "  %-10.10s %14s %14s %7.1f%%", string(row, "role"), grouped(number(row, "calls")).text,
               flops(number(row, "flops")).text, 100 * real(row, "share"));
  }
  table_line(text, "  %-10s %14s %14s   %s FLOPs", "all", grouped(number(gemm, "calls")).text,
             flops(number(gemm, "flops")).text, grouped(number(gemm, "flops")).text);
}

static void print_shapes(const struct text *text, const json_t *gemm) {
  const json_t *shapes = json_object_get(gemm, "shapes");
  size_t count = json_array_size(shapes), i;
  if (!count)
    return;
  heading(text, "GEMM shapes with most FLOPs (D[m x n] = op(A)[m x k] op(B)[k x n], column-major)");
  table_line(text, "  %-7s %-2s %24s %5s %12s %7s  %-14s %-8s %s", "role", "op", "m x n x k", "batch", "calls", "share",
             "A B D", "compute", "epilogue");
  for (i = 0; i < count && i < SHAPES_SHOWN; i++) {
    const json_t *row = json_array_get(shapes, i);
    char size[64], types[32];
    snprintf(size, sizeof(size), "%" PRId64 " x %" PRId64 " x %" PRId64, number(row, "m"), number(row, "n"),
             number(row, "k"));
    snprintf(types, sizeof(types), "%s %s %s", string(row, "a"), string(row, "b"), string(row, "d"));
    table_line(text, "  %-7.7s %.1s%.1s %24s %5" PRId64 " %12s %6.1f%%  %-14.14s %-8.8s %s", string(row, "role"),
               string(row, "ta"), string(row, "tb"), size, number(row, "batch"), grouped(number(row, "calls")).text,
               100 * real(row, "share"), types, string(row, "compute"), string(row, "epilogue"));
  }
  if (count > SHAPES_SHOWN)
    table_line(text, "  ... %zu more shapes (--json has them all)", count - SHAPES_SHOWN);
}

static void print_would(const struct text *text, const json_t *rows) {
  size_t i;
  json_t *row;
  if (!json_array_size(rows))
    return;
  fputc('\n', text->out);
  table_line(text, "  %-10s %10s  %s", "instead", "converted", "time of all GEMMs by the cost model");
  json_array_foreach(rows, i, row) {
    char model[160] = "unknown GPU";
    double native = real(row, "native_s"), done = real(row, "model_s");
    if (native > 0 && done > 0)
      snprintf(model, sizeof(model), "%s, now %s: %.2f times as fast", seconds(done).text, seconds(native).text,
               native / done);
    table_line(text, "  %-10.10s %9.1f%%  %s", string(row, "precision"), 100 * real(row, "coverage"), model);
  }
}

static void print_shape_event(const struct text *text, const char *label, const json_t *row, const char *what) {
  char value[256];
  snprintf(value, sizeof(value), "%s %s%s %" PRId64 " x %" PRId64 " x %" PRId64 " in %s: %s", string(row, "role"),
           string(row, "ta"), string(row, "tb"), number(row, "m"), number(row, "n"), number(row, "k"), string(row, "plan"),
           what);
  line(text, label, value);
}

static void print_guards(const struct text *text, const json_t *rows) {
  size_t count = json_array_size(rows);
  for (size_t i = 0; i < count && i < GUARDS_SHOWN; i++) {
    const json_t *row = json_array_get(rows, i);
    char what[128];
    snprintf(what, sizeof(what), "rank %" PRId64 ", %s, %s %" PRId64, number(row, "rank"), string(row, "what"),
             json_is_true(json_object_get(row, "applied")) ? "taken out from step"
                                                           : "not applied, as ranks differed, at step",
             number(row, "step"));
    print_shape_event(text, i ? "" : "guard", row, what);
  }
  if (count > GUARDS_SHOWN)
    table_line(text, "          ... %zu more (--json has them all)", count - GUARDS_SHOWN);
}

static void print_narrow_details(const struct text *text, const json_t *conversion) {
  char value[256];
  const json_t *model = json_object_get(conversion, "model"), *audit = json_object_get(conversion, "audit");
  const json_t *workspace = json_object_get(conversion, "workspace"), *worst = json_object_get(audit, "worst");
  if (json_is_object(model)) {
    double native = real(model, "native_s"), narrow = real(model, "narrow_s");
    snprintf(value, sizeof(value),
             "%s for the converted GEMMs of all ranks instead of %s, by the cost model: %.2f times as fast",
             seconds(narrow).text, seconds(native).text, narrow > 0 ? native / narrow : 0);
    line(text, "gain", value);
    if (narrow > native)
      line(text, "",
           "slower, as quantising small operands takes longer than it saves: B200OPT_STRATEGY=performant leaves them");
  }
  if (json_is_object(workspace)) {
    snprintf(value, sizeof(value), "%s of at most %s on the rank with most; %" PRId64 " calls found no room",
             bytes(number(workspace, "peak_bytes")).text, bytes(number(workspace, "limit_bytes")).text,
             number(workspace, "refused"));
    line(text, "workspace", value);
  }
  if (json_is_object(worst)) {
    snprintf(value, sizeof(value), "relative error %.4g, the largest of %" PRId64 " audited calls", real(worst, "error"),
             number(audit, "calls"));
    print_shape_event(text, "audit", worst, value);
  }
  if (number(conversion, "bad_samples")) {
    snprintf(value, sizeof(value), "%" PRId64 " sampled calls were found bad by the guard",
             number(conversion, "bad_samples"));
    line(text, "samples", value);
  }
  print_guards(text, json_object_get(conversion, "guard"));
  if (json_is_false(json_object_get(conversion, "ranks_agree")))
    line(text, "ranks", "they did not decide alike: their hashes of decisions differ");
}

static void print_conversion(const struct text *text, const json_t *conversion) {
  size_t i;
  json_t *row;
  char value[256];
  if (!json_is_object(conversion))
    return;
  heading(text, "What was done with the GEMMs, and why");
  table_line(text, "  %-8s %-18s %14s %14s %8s", "plan", "reason", "calls", "FLOPs", "share");
  json_array_foreach(json_object_get(conversion, "rows"), i, row) {
    table_line(text, "  %-8.8s %-18.18s %14s %14s %7.1f%%", string(row, "plan"), string(row, "reason"),
               grouped(number(row, "calls")).text, flops(number(row, "flops")).text, 100 * real(row, "share"));
  }
  snprintf(value, sizeof(value), "%.1f %% of the FLOPs were converted", 100 * real(conversion, "coverage"));
  line(text, "coverage", value);
  if (!json_is_true(json_object_get(conversion, "coverage_met"))) {
    snprintf(value, sizeof(value), "less than the %" PRId64 " %% that B200OPT_MIN_COVERAGE asks for",
             number(conversion, "min_coverage_percent"));
    line(text, "", value);
  }
  print_narrow_details(text, conversion);
  print_would(text, json_object_get(conversion, "would"));
}

static void print_collectives(const struct text *text, const json_t *rows) {
  size_t i;
  json_t *row;
  heading(text, "Collectives, all ranks (bytes as nccl-tests counts them)");
  if (!json_array_size(rows))
    table_line(text, "  none");
  json_array_foreach(rows, i, row) {
    if (i == 0)
      table_line(text, "  %-14s %-6s %6s %14s %14s", "kind", "type", "ranks", "calls", "bytes");
    table_line(text, "  %-14.14s %-6.6s %6" PRId64 " %14s %14s", string(row, "op"), string(row, "dtype"),
               number(row, "nranks"), grouped(number(row, "calls")).text, bytes(number(row, "bytes")).text);
  }
}

static void print_memory(const struct text *text, const json_t *rows) {
  size_t i;
  json_t *row;
  heading(text, "Device memory by owner (bytes: the rank with most; calls: all ranks)");
  table_line(text, "  %-10s %14s %14s %12s %12s %8s", "owner", "at the end", "peak", "allocations", "frees", "refused");
  json_array_foreach(rows, i, row) {
    table_line(text, "  %-10.10s %14s %14s %12s %12s %8s", string(row, "owner"), bytes(number(row, "current_bytes")).text,
               bytes(number(row, "peak_bytes")).text, grouped(number(row, "allocs")).text,
               grouped(number(row, "frees")).text, grouped(number(row, "failed")).text);
  }
}

static void print_troubles(const struct text *text, const json_t *arm) {
  size_t i;
  json_t *row;
  char value[512];
  bool any = json_array_size(json_object_get(arm, "warnings")) || json_array_size(json_object_get(arm, "drops")) ||
             json_array_size(json_object_get(arm, "oom"));
  if (any)
    heading(text, "Warnings");
  json_array_foreach(json_object_get(arm, "warnings"), i, row) {
    snprintf(value, sizeof(value), "%s (%" PRId64 " times)", string(row, "text"), number(row, "count"));
    line(text, "  warning", value);
  }
  json_array_foreach(json_object_get(arm, "drops"), i, row) {
    snprintf(value, sizeof(value), "%" PRId64 " lines of type %s were not written: sums that contain them are too low",
             number(row, "count"), string(row, "what"));
    line(text, "  dropped", value);
  }
  json_array_foreach(json_object_get(arm, "oom"), i, row) {
    snprintf(value, sizeof(value), "rank %" PRId64 ", %s asked for %s", number(row, "rank"), string(row, "owner"),
             bytes(number(row, "bytes")).text);
    line(text, "  refused", value);
  }
  json_array_foreach(json_object_get(arm, "calls"), i, row) {
    if (number(row, "errors") == 0)
      continue;
    snprintf(value, sizeof(value), "%s: %" PRId64 " of %" PRId64 " calls returned an error status", string(row, "name"),
             number(row, "errors"), number(row, "calls"));
    line(text, "  failed", value);
  }
}

static void print_stacks(const struct text *text, const json_t *stacks) {
  size_t count = json_array_size(stacks);
  if (!count)
    return;
  heading(text, "Native stacks of device allocations");
  for (size_t i = 0; i < count && i < STACKS_SHOWN; i++) {
    char label[64];
    const json_t *row = json_array_get(stacks, i);
    snprintf(label, sizeof(label), "  %.10s, %" PRId64 " times, %s", string(row, "owner"), number(row, "count"),
             bytes(number(row, "bytes")).text);
    table_line(text, "%s", label);
    line(text, "", string(row, "frames"));
  }
}

/* ---- comparison */

static void print_pair(const struct text *text, const char *what, const json_t *row, const char *field, bool as_bytes) {
  const json_t *values = json_object_get(row, field);
  int64_t left = json_integer_value(json_array_get(values, 0)), right = json_integer_value(json_array_get(values, 1));
  char difference[64] = "equal";
  if (left != right)
    snprintf(difference, sizeof(difference), "differs by %s%s", right > left ? "+" : "",
             grouped(b200_add(right, left > INT64_MIN ? -left : INT64_MAX)).text);
  table_line(text, "  %-30.30s %18s %18s   %s", what, as_bytes ? bytes(left).text : grouped(left).text,
             as_bytes ? bytes(right).text : grouped(right).text, difference);
}

static void print_counts(const struct text *text, const json_t *comparison, const char *left, const char *right) {
  size_t i;
  json_t *row;
  char what[96];
  table_line(text, "  %-30s %18s %18s", "", left, right);
  json_array_foreach(json_object_get(comparison, "roles"), i, row) {
    snprintf(what, sizeof(what), "GEMM %.16s, calls", string(row, "role"));
    print_pair(text, what, row, "calls", false);
    snprintf(what, sizeof(what), "GEMM %.16s, FLOPs", string(row, "role"));
    print_pair(text, what, row, "flops", false);
  }
  table_line(text, "  %-30s %18s %18" PRId64 "   %" PRId64 " equal", "GEMM shapes", "", number(comparison, "shapes"),
             number(comparison, "shapes_equal"));
  json_array_foreach(json_object_get(comparison, "collectives"), i, row) {
    snprintf(what, sizeof(what), "%.14s %.4s x%" PRId64 ", calls", string(row, "op"), string(row, "dtype"),
             number(row, "nranks"));
    print_pair(text, what, row, "calls", false);
    snprintf(what, sizeof(what), "%.14s %.4s x%" PRId64 ", bytes", string(row, "op"), string(row, "dtype"),
             number(row, "nranks"));
    print_pair(text, what, row, "bytes", false);
  }
  json_array_foreach(json_object_get(comparison, "hbm"), i, row) {
    snprintf(what, sizeof(what), "memory of %.7s, peak", string(row, "owner"));
    print_pair(text, what, row, "peak_bytes", true);
    snprintf(what, sizeof(what), "memory of %.7s, allocations", string(row, "owner"));
    print_pair(text, what, row, "allocs", false);
  }
}

static void print_loss_verdict(const struct text *text, const json_t *loss) {
  char value[256];
  const char *verdict = string(loss, "verdict");
  if (strcmp(verdict, "bit-identical") == 0)
    snprintf(value, sizeof(value), "bit-identical: all %" PRId64 " printed values are equal", number(loss, "common"));
  else if (strcmp(verdict, "different") == 0)
    snprintf(value, sizeof(value),
             "different: %" PRId64 " of %" PRId64
             " printed values are equal, largest difference %.3g, first at step %" PRId64,
             number(loss, "equal"), number(loss, "common"), real(loss, "max_difference"), number(loss, "first_step"));
  else
    snprintf(value, sizeof(value),
             strcmp(verdict, "none") == 0 ? "no losses on either side" : "not comparable: no step is printed by both");
  line(text, "losses", value);
  if (number(loss, "unpaired")) {
    snprintf(value, sizeof(value), "%" PRId64 " values have no partner in the other arm", number(loss, "unpaired"));
    line(text, "", value);
  }
}

static void print_comparison(const struct text *text, const json_t *report) {
  const json_t *against = json_object_get(report, "against"), *arm = json_object_get(report, "report");
  const json_t *comparison = json_object_get(report, "comparison");
  char value[512];
  heading(text, "Compared with --against");
  snprintf(value, sizeof(value), "%s, counted by %s", string(against, "folder"), counted_by(against));
  line(text, "against", value);
  print_steps(text, against);
  print_loss(text, against);
  print_loss_verdict(text, json_object_get(comparison, "loss"));
  fputc('\n', text->out);
  print_counts(text, comparison, strcmp(string(against, "counted_by"), "node") == 0 ? "against (node)" : "against",
               strcmp(string(arm, "counted_by"), "node") == 0 ? "this (node)" : "this (b200opt)");
  line(text, "verdict",
       json_is_true(json_object_get(comparison, "equal")) ? "equal in every count and every loss" : "not equal");
}

static void print_node_check(const struct text *text, const json_t *check) {
  if (!json_is_object(check))
    return;
  if (json_is_true(json_object_get(check, "equal"))) {
    fputc('\n', text->out);
    line(text, "checked", "the virtual node counted the same GEMMs, collectives and allocations by itself");
    return;
  }
  heading(text, "The virtual node's own count of this job differs");
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
  struct text text = {out, colour};
  json_t *report = in_ascii(original);
  const json_t *arm = json_object_get(report, "report");
  size_t i;
  json_t *note;
  print_head(&text, arm);
  print_steps(&text, arm);
  print_loss(&text, arm);
  print_gemms(&text, json_object_get(arm, "gemm"));
  print_shapes(&text, json_object_get(arm, "gemm"));
  print_conversion(&text, json_object_get(arm, "conversion"));
  print_collectives(&text, json_object_get(arm, "collectives"));
  print_memory(&text, json_object_get(arm, "hbm"));
  print_stacks(&text, json_object_get(arm, "stacks"));
  print_node_check(&text, json_object_get(report, "node_check"));
  print_troubles(&text, arm);
  if (json_is_object(json_object_get(report, "against")))
    print_comparison(&text, report);
  if (json_array_size(json_object_get(report, "notes")))
    heading(&text, "Notes");
  json_array_foreach(json_object_get(report, "notes"), i, note) line(&text, "", json_string_value(note));
  json_decref(report);
}
