/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"
#include "tools/compare/compare.h"
#include "tools/report/print.h"
#include "tools/report/rows.h"

#define GEMMS_SHOWN 8
#define DIFFERENCES_SHOWN 12

static const char *const side_names[2] = {"baseline", "candidate"};

static bool is_known(const json_t *object, const char *name) {
  return json_is_number(json_object_get(object, name));
}

/* Text of a log in a line of ours: ASCII without control characters. */
static char *plain(const char *text) {
  char *copy = b200_format("%s", text);
  char *to = copy;
  for (const char *at = copy; *at; at++) {
    unsigned char byte = (unsigned char)*at;
    if (byte >= 0x80 && byte < 0xC0)
      continue; /* rest of a character */
    *to++ = (char)(byte < 0x20 || byte >= 0x7F ? '?' : byte);
  }
  *to = '\0';
  return copy;
}

__attribute__((format(printf, 3, 4))) static void line(const struct report_text *text, const char *label, const char *format,
                                                       ...) {
  char *value, *ascii;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&value, format, arguments) < 0)
    abort();
  va_end(arguments);
  ascii = plain(value);
  report_line(text, label, ascii);
  free(ascii);
  free(value);
}

/* ---- verdict */

static const char *colour_of(const char *tone) {
  return strcmp(tone, "good") == 0     ? "\033[1;32m"
         : strcmp(tone, "bad") == 0    ? "\033[1;31m"
         : strcmp(tone, "unsure") == 0 ? "\033[1;33m"
                                       : "\033[1m";
}

static void print_verdict(const struct report_text *text, const json_t *comparison) {
  const json_t *verdict = json_object_get(comparison, "verdict"), *also;
  size_t i;
  fprintf(text->out, "%s%s%s\n", text->colour ? colour_of(report_string(verdict, "tone")) : "",
          report_string(verdict, "name"), text->colour ? "\033[0m" : "");
  line(text, "", "%s", report_string(verdict, "says"));
  json_array_foreach(json_object_get(verdict, "also"), i, also) line(text, "", "%s", json_string_value(also));
  for (int side = 0; side < 2; side++) {
    const json_t *arm = json_object_get(comparison, side_names[side]), *runs = json_object_get(arm, "runs");
    const json_t *first = json_array_get(runs, 0);
    bool logs = strcmp(report_string(first, "source"), compare_source_names[COMPARE_LOGS]) == 0,
         several = json_array_size(runs) > 1;
    char steps[64] = "";
    if (logs)
      snprintf(steps, sizeof(steps), ", %" PRId64 " steps in the logs", report_number(first, "steps"));
    line(text, side_names[side], "%s: %zu run%s, %s%" PRId64 " losses (%s)%s", report_string(arm, "name"),
         json_array_size(runs), json_array_size(runs) == 1 ? "" : "s", several ? "the first with " : "",
         report_number(first, "points"), report_string(first, "loss_source"), steps);
  }
}

/* ---- loss */

static void print_pair(const struct report_text *text, const json_t *pair, bool named) {
  char label[64] = "";
  if (named)
    snprintf(label, sizeof(label), "%.30s ", report_string(pair, "baseline"));
  if (!is_known(pair, "gap_percent")) {
    line(text, "", "%s%s: %s", label, report_string(pair, "verdict"), report_string(pair, "reason"));
    return;
  }
  line(text, "", "%s%+.3f %% +- %.3f %%, window: steps %" PRId64 " on (%" PRId64 " of them), loss %.5f against %.5f", label,
       report_real(pair, "gap_percent"), report_real(pair, "half_width_percent"), report_number(pair, "window_from"),
       report_number(pair, "window"), report_real(pair, "loss_candidate"), report_real(pair, "loss_baseline"));
}

static void print_loss(const struct report_text *text, const json_t *comparison) {
  const json_t *loss = json_object_get(comparison, "loss"), *pairs = json_object_get(loss, "pairs"), *pair;
  size_t i;
  if (!json_is_object(loss))
    return;
  report_heading(text, "Loss: gap of the candidate in percent of the baseline, mean of the window");
  json_array_foreach(pairs, i, pair) print_pair(text, pair, json_array_size(pairs) > 1);
  if (json_array_size(pairs) > 1 && is_known(loss, "gap_percent"))
    line(text, "all", "%+.3f %% +- %.3f %%", report_real(loss, "gap_percent"), report_real(loss, "half_width_percent"));
  pair = json_array_get(pairs, (size_t)report_number(loss, "decisive"));
  if (is_known(loss, "margin_percent"))
    line(text, "margin", "%.3g %%; floor of repeated runs %.3g %% (%s)", report_real(loss, "margin_percent"),
         report_real(pair, "floor_percent"), report_string(loss, "floor_source"));
  if (is_known(pair, "correlation_late"))
    line(text, "same data", "noise correlates %.2f early, %.2f late; the first five steps differ by %.4f %%",
         report_real(pair, "correlation_early"), report_real(pair, "correlation_late"), report_real(pair, "start_percent"));
  char lag[48] = "";
  if (is_known(pair, "lag_steps"))
    snprintf(lag, sizeof(lag), "lag %.1f steps; ", report_real(pair, "lag_steps"));
  if (is_known(pair, "largest_gap_percent") && !json_is_true(json_object_get(pair, "identical")))
    line(text, "besides", "%slargest smoothed gap %+.2f %% at step %" PRId64 "; spikes %" PRId64 " and %" PRId64 "%s", lag,
         report_real(pair, "largest_gap_percent"), report_number(pair, "largest_gap_step"),
         report_number(pair, "spikes_baseline"), report_number(pair, "spikes_candidate"),
         json_is_true(json_object_get(pair, "growing")) ? "; the gap grows" : "");
  if (is_known(pair, "norm_ratio"))
    line(text, "gradient", "norm %.4f times the baseline's", report_real(pair, "norm_ratio"));
}

/* ---- speed */

static void print_clock(const struct report_text *text, const json_t *clock) {
  const json_t *a = json_object_get(clock, "baseline"), *b = json_object_get(clock, "candidate");
  line(text, report_string(clock, "clock"), "%s; %s", report_string(clock, "label"), report_string(clock, "measure"));
  if (is_known(clock, "low"))
    line(text, "", "ratio %.3f [%.3f, %.3f], %s", report_real(clock, "ratio"), report_real(clock, "low"),
         report_real(clock, "high"),
         json_is_true(json_object_get(clock, "run_is_unit")) ? "over runs" : "over steps, without what runs differ by");
  else if (is_known(clock, "ratio"))
    line(text, "", "ratio %.3f, no interval", report_real(clock, "ratio"));
  if (is_known(a, "steady_s") && is_known(b, "steady_s") && !strstr(report_string(clock, "measure"), "per token"))
    line(text, "", "steady step %.3f ms against %.3f ms (median); end to end %.3f against %.3f (mean)",
         1e3 * report_real(b, "steady_s"), 1e3 * report_real(a, "steady_s"), 1e3 * report_real(b, "end_to_end_s"),
         1e3 * report_real(a, "end_to_end_s"));
  if (is_known(a, "tokens_per_s") && is_known(b, "tokens_per_s"))
    line(text, "", "tokens/s %.1f against %.1f%s", report_real(b, "tokens_per_s"), report_real(a, "tokens_per_s"),
         strcmp(report_string(clock, "clock"), "host") == 0 ? ", as the job printed them" : "");
  if (is_known(a, "cost_per_1000_steps") && is_known(b, "cost_per_1000_steps"))
    line(text, "", "cost of 1,000 steps %.4g against %.4g", report_real(b, "cost_per_1000_steps"),
         report_real(a, "cost_per_1000_steps"));
  if (is_known(a, "tokens_per_unit") && is_known(b, "tokens_per_unit"))
    line(text, "", "tokens per unit of money %.4g against %.4g", report_real(b, "tokens_per_unit"),
         report_real(a, "tokens_per_unit"));
}

static void print_split(const struct report_text *text, const json_t *split) {
  static const char *const parts[][2] = {{"gemm_s", "GEMMs"},
                                         {"blocked_s", "blocked communication"},
                                         {"host_s", "waiting for the host"},
                                         {"other_s", "other"},
                                         {"total_s", "step"}};
  const json_t *a = json_object_get(split, "baseline"), *b = json_object_get(split, "candidate"),
               *d = json_object_get(split, "difference");
  const json_t *steps = json_object_get(split, "steps");
  line(text, "split",
       "mean of the first runs' steps whose GEMMs were timed: %" PRId64 " of the baseline, %" PRId64 " of the candidate",
       (int64_t)json_integer_value(json_array_get(steps, 0)), (int64_t)json_integer_value(json_array_get(steps, 1)));
  report_table_line(text, "  %-24s %12s %12s %12s",
                    strcmp(report_string(split, "clock"), "modelled") == 0 ? "modelled ms" : "device ms", "baseline",
                    "candidate", "difference");
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
    if (!is_known(a, parts[i][0]) || !is_known(b, parts[i][0]))
      continue;
    report_table_line(text, "  %-24s %12.3f %12.3f %+12.3f", parts[i][1], 1e3 * report_real(a, parts[i][0]),
                      1e3 * report_real(b, parts[i][0]), 1e3 * report_real(d, parts[i][0]));
  }
}

static void print_speed(const struct report_text *text, const json_t *comparison) {
  const json_t *throughput = json_object_get(comparison, "throughput"), *clocks = json_object_get(throughput, "clocks"),
               *clock;
  const json_t *time = json_object_get(comparison, "time_to_loss"), *level;
  size_t i;
  report_heading(text, "Speed");
  if (!json_array_size(clocks))
    line(text, "", "%s", report_string(throughput, "why_not"));
  json_array_foreach(clocks, i, clock) print_clock(text, clock);
  if (json_is_object(json_object_get(throughput, "split")))
    print_split(text, json_object_get(throughput, "split"));
  if (!json_is_object(time))
    return;
  report_table_line(text, "  %-24s %12s %12s %12s", "seconds to loss", "baseline", "candidate", "times as fast");
  json_array_foreach(json_object_get(time, "levels"), i, level)
      report_table_line(text, "  %-24.5f %12.3f %12.3f %12.3f", report_real(level, "level"),
                        report_real(level, "baseline_s"), report_real(level, "candidate_s"), report_real(level, "speedup"));
  line(text, "", "%s", report_string(time, "says"));
}

/* ---- what was done, and where */

/* B200OPT_AUDIT_EVERY was set. */
static bool any_audited(const json_t *rows) {
  const json_t *row;
  size_t i;
  json_array_foreach(rows, i, row) {
    if (is_known(json_object_get(row, "candidate"), "audited_error"))
      return true;
  }
  return false;
}

static void print_gemms(const struct report_text *text, const json_t *comparison) {
  const json_t *gemms = json_object_get(comparison, "gemms"), *row;
  size_t i;
  if (!json_is_object(gemms))
    return;
  report_heading(text, "GEMMs, all ranks");
  line(text, "converted", "%.1f %% of the candidate's FLOPs, %.1f %% of the baseline's",
       100 * report_real(json_object_get(gemms, "candidate"), "converted"),
       100 * report_real(json_object_get(gemms, "baseline"), "converted"));
  report_table_line(text, "  %-8s %-18s %6s  %-24s %-24s %s", "role", "m, n, k", "share", "baseline", "candidate",
                    any_audited(json_object_get(gemms, "rows")) ? "error" : "");
  json_array_foreach(json_object_get(gemms, "rows"), i, row) {
    const json_t *a = json_object_get(row, "baseline"), *b = json_object_get(row, "candidate"),
                 *error = json_object_get(b, "audited_error");
    char shape[80], plans[2][64], shown[24] = "";
    if (i == GEMMS_SHOWN)
      break;
    snprintf(shape, sizeof(shape), "%" PRId64 ", %" PRId64 ", %" PRId64, report_number(row, "m"), report_number(row, "n"),
             report_number(row, "k"));
    snprintf(plans[0], sizeof(plans[0]), "%.20s %.40s", report_string(a, "plan"), report_string(a, "reason"));
    snprintf(plans[1], sizeof(plans[1]), "%.20s %.40s", report_string(b, "plan"), report_string(b, "reason"));
    if (json_is_number(error))
      snprintf(shown, sizeof(shown), "%.4f", json_number_value(error));
    char *ascii[2] = {plain(plans[0]), plain(plans[1])}, *role = plain(report_string(row, "role"));
    report_table_line(text, "  %-8.8s %-18s %5.1f%%  %-24.24s %-24.24s %s", role, shape,
                      100 * report_real(json_is_object(b) ? b : a, "share"), ascii[0], ascii[1], shown);
    free(role);
    free(ascii[0]);
    free(ascii[1]);
  }
}

static char *value_text(const json_t *value) {
  if (!value || json_is_null(value))
    return b200_format("-");
  if (json_is_string(value))
    return b200_format("%s", json_string_value(value));
  char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT), *copy = b200_format("%s", dumped ? dumped : "");
  free(dumped);
  return copy;
}

static void print_environment(const struct report_text *text, const json_t *comparison) {
  const json_t *row;
  size_t i, shown = 0, differing = 0;
  report_heading(text, "Environment: what differs");
  json_array_foreach(json_object_get(comparison, "checks"), i, row)
      line(text, "", "%s: %s", report_string(row, "name"),
           strcmp(report_string(row, "state"), "unknown") == 0 ? "not known" : report_string(row, "state"));
  json_array_foreach(json_object_get(comparison, "environment"), i, row) {
    if (!json_is_true(json_object_get(row, "differs")) || json_is_true(json_object_get(row, "of_the_run")))
      continue;
    if (++differing > DIFFERENCES_SHOWN)
      continue;
    char *a = value_text(json_object_get(row, "baseline")), *b = value_text(json_object_get(row, "candidate"));
    line(text, "", "%s: %s against %s", report_string(row, "name"), b, a);
    free(a);
    free(b);
    shown++;
  }
  if (differing > shown)
    line(text, "", "and %zu more (--json, --html)", differing - shown);
}

static void print_notes(const struct report_text *text, const json_t *comparison) {
  const json_t *notes = json_object_get(comparison, "notes"), *failed = json_object_get(comparison, "failed"), *note;
  size_t i;
  if (!json_array_size(notes) && !json_array_size(failed))
    return;
  report_heading(text, "Notes");
  json_array_foreach(failed, i, note) line(text, "", "%s of the %s ended with %s", report_string(note, "run"),
                                           report_string(note, "side"), report_string(note, "status"));
  json_array_foreach(notes, i, note) line(text, "", "%s", json_string_value(note));
}

void compare_print(FILE *out, const json_t *comparison, bool colour) {
  struct report_text text = {.out = out, .colour = colour};
  print_verdict(&text, comparison);
  print_loss(&text, comparison);
  print_speed(&text, comparison);
  print_gemms(&text, comparison);
  print_environment(&text, comparison);
  print_notes(&text, comparison);
}
