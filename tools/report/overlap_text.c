/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/overlap.h"

#include <inttypes.h>
#include <string.h>

#define STRAGGLERS_SHOWN 5
#define DIFFERING_SHOWN 4

struct cell {
  char text[24];
};

static bool has(const json_t *row, const char *name) {
  const json_t *value = json_object_get(row, name);
  return value && !json_is_null(value);
}

/* A number with so many decimals times `scale`; "-" where it is not known. */
static struct cell cell(const json_t *row, const char *name, double scale, int decimals) {
  struct cell cell = {"-"};
  if (has(row, name))
    snprintf(cell.text, sizeof(cell.text), "%.*f", decimals, report_real(row, name) * scale);
  return cell;
}

/* ---- how it was timed */

static const char *plain_why(const char *why) {
  static const struct {
    const char *why, *text;
  } reasons[] = {
      {"max_connections", "CUDA_DEVICE_MAX_CONNECTIONS=1, with which events beside collectives would undo their overlap"},
      {"overhead", "it cost more than B200OPT_OVERHEAD_MAX_PCT"},
      {"missing", "the driver lacks a function that it needs"},
      {"vendor", "a call of the driver failed"},
      {"told", "as told"},
  };
  for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
    if (strcmp(reasons[i].why, why) == 0)
      return reasons[i].text;
  return strcmp(why, "default") == 0 ? "" : why;
}

static void print_mode(const struct report_text *text, const char *label, const json_t *row, bool many) {
  char what[64], value[320];
  const char *mode = report_string(row, "mode"), *why = plain_why(report_string(row, "why"));
  if (strcmp(mode, "on") == 0)
    snprintf(what, sizeof(what), "every step, its GEMMs in one of %" PRId64, report_number(row, "every"));
  else if (strcmp(mode, "sampled") == 0)
    snprintf(what, sizeof(what), "one step of %" PRId64, report_number(row, "every"));
  else
    snprintf(what, sizeof(what), "%.16s", mode);
  snprintf(value, sizeof(value), "%s%s%.160s", what, *why ? ": " : "", why);
  if (many) {
    size_t used = strlen(value);
    snprintf(value + used, sizeof(value) - used, " (%s%" PRId64 " ranks at the end)",
             report_number(row, "at_the_end") ? "" : "for a while; ", report_number(row, "at_the_end"));
  }
  report_line(text, label, value);
}

static void print_modes(const struct report_text *text, const json_t *communication) {
  const json_t *modes = json_object_get(communication, "modes");
  size_t count = json_array_size(modes);
  for (size_t i = 0; i < count; i++)
    print_mode(text, i ? "" : "timing", json_array_get(modes, i), count > 1);
  if (!count)
    report_line(text, "timing", "unknown: the logs do not say how");
  if (json_is_true(json_object_get(communication, "modelled")))
    report_line(text, "", "on the virtual node the device's times are modelled, not measured");
  for (size_t i = 0; i < count; i++) {
    if (strcmp(report_string(json_array_get(modes, i), "clock"), "device") == 0) {
      report_line(text, "", "the device's clock could not be compared with the host's");
      break;
    }
  }
}

static void print_untimed(const struct report_text *text, const json_t *communication) {
  static const struct {
    const char *why, *text;
  } reasons[] = {
#define B200_UNTIMED(id, name, text) {name, text},
#include "policy/untimed.def"
#undef B200_UNTIMED
  };
  const json_t *rows = json_object_get(communication, "untimed"), *row;
  size_t i;
  char value[160];
  json_array_foreach(rows, i, row) {
    const char *why = report_string(row, "why");
    for (size_t j = 0; j < sizeof(reasons) / sizeof(reasons[0]); j++)
      why = strcmp(reasons[j].why, why) == 0 ? reasons[j].text : why;
    snprintf(value, sizeof(value), "%s %.80s", report_grouped(report_number(row, "calls")).text, why);
    report_line(text, i ? "" : "not timed", value);
  }
  const json_t *graphs = json_object_get(communication, "graphs");
  if (json_is_object(graphs)) {
    snprintf(value, sizeof(value), "%s launches as a whole, %s timed; mean %s ms",
             report_grouped(report_number(graphs, "launches")).text, report_grouped(report_number(graphs, "timed")).text,
             cell(graphs, "mean_s", 1e3, 3).text);
    report_line(text, "graphs", value);
  }
  if (report_number(communication, "invalid_times")) {
    snprintf(value, sizeof(value), "%s times that cannot be true were left out",
             report_grouped(report_number(communication, "invalid_times")).text);
    report_line(text, "invalid", value);
  }
}

/* ---- tables */

static void print_kinds(const struct report_text *text, const json_t *rows) {
  size_t i;
  const json_t *row;
  report_table_line(text, "  %-13s %-5s %5s %11s %10s %10s %8s %8s %10s %7s", "timed", "type", "ranks", "calls", "bytes",
                    "mean us", "algbw", "busbw", "blocked s", "hidden");
  json_array_foreach(rows, i, row) {
    if (!report_number(row, "calls"))
      continue;
    report_table_line(
        text, "  %-13.13s %-5.5s %5" PRId64 " %11s %10s %10s %8s %8s %10s %6s%%", report_string(row, "op"),
        report_string(row, "dtype"), report_number(row, "nranks"), report_grouped(report_number(row, "calls")).text,
        report_bytes(report_number(row, "bytes")).text, cell(row, "mean_s", 1e6, 1).text, cell(row, "algbw_gb_s", 1, 2).text,
        cell(row, "busbw_gb_s", 1, 2).text, cell(row, "blocked_s", 1, 3).text, cell(row, "hidden_pct", 1, 1).text);
  }
  report_table_line(text, "  algbw, busbw: GB/s as nccl-tests defines them, from times that include waiting for peers");
}

static void print_share(const struct report_text *text, const char *label, const json_t *row, const char *name,
                        const char *what) {
  double device = report_real(row, "device_s"), part = report_real(row, name);
  report_table_line(text, "  %-11s %10.3f ms %6.1f%%  %s", label, part * 1e3, device > 0 ? 100 * part / device : 0, what);
}

static void print_steady(const struct report_text *text, const json_t *steady) {
  char value[200];
  int64_t steps = report_number(steady, "steps"), ranks = (int64_t)json_array_size(json_object_get(steady, "ranks"));
  if (!steps) {
    report_line(text, "steps", "no step was timed that is an ordinary one");
    return;
  }
  snprintf(value, sizeof(value), "means of %s ordinary steps, %s rank%s together; %s timed ones are left out",
           report_grouped(steps).text, report_grouped(ranks).text, ranks == 1 ? "" : "s",
           report_grouped(report_number(steady, "left_out")).text);
  report_line(text, "per step", value);
  const json_t *device = json_object_get(steady, "device");
  snprintf(value, sizeof(value), "median %s, p10 %s, p90 %s ms", cell(device, "median_s", 1e3, 3).text,
           cell(device, "p10_s", 1e3, 3).text, cell(device, "p90_s", 1e3, 3).text);
  print_share(text, "device", steady, "device_s", value);
  print_share(text, "collectives", steady, "comm_s", "sum of their times");
  print_share(text, "blocked", steady, "blocked_s", "a compute stream waited for one that ran");
  print_share(text, "queued", steady, "queued_s", "waited for collectives that had not started");
  if (has(steady, "uncovered_s")) {
    snprintf(value, sizeof(value), "a collective ran and no GEMM did (%s steps)",
             report_grouped(report_number(steady, "gemm_steps")).text);
    print_share(text, "uncovered", steady, "uncovered_s", value);
  }
  report_table_line(text, "  %-11s %10s x           what perfect overlap would give", "ceiling",
                    cell(steady, "ceiling", 1, 3).text);
}

/* The ranks with least and most blocked time. */
static void print_extremes(const struct report_text *text, const json_t *ranks) {
  size_t i;
  char value[200];
  const json_t *row, *least = NULL, *most = NULL;
  json_array_foreach(ranks, i, row) {
    least = !least || report_real(row, "blocked_s") < report_real(least, "blocked_s") ? row : least;
    most = !most || report_real(row, "blocked_s") > report_real(most, "blocked_s") ? row : most;
  }
  if (!least || report_real(least, "blocked_s") >= report_real(most, "blocked_s"))
    return; /* all alike */
  snprintf(value, sizeof(value), "blocked %s ms a step on rank %" PRId64 " (least) to %s ms on rank %" PRId64,
           cell(least, "blocked_s", 1e3, 3).text, report_number(least, "rank"), cell(most, "blocked_s", 1e3, 3).text,
           report_number(most, "rank"));
  report_line(text, "by rank", value);
}

/* ---- all ranks together */

static void print_transfers(const struct report_text *text, const json_t *kinds) {
  size_t i;
  const json_t *row;
  bool any = false;
  json_array_foreach(kinds, i, row) {
    const json_t *matched = json_object_get(row, "matched");
    if (!json_is_object(matched))
      continue;
    if (!any)
      report_table_line(text, "  %-13s %-5s %5s %11s %14s %8s %18s", "matched", "type", "ranks", "operations", "transfer us",
                        "busbw", "wait for peers us");
    any = true;
    report_table_line(text, "  %-13.13s %-5.5s %5" PRId64 " %11s %14s %8s %18s", report_string(row, "op"),
                      report_string(row, "dtype"), report_number(row, "nranks"),
                      report_grouped(report_number(matched, "operations")).text,
                      cell(matched, "transfer_mean_s", 1e6, 1).text, cell(matched, "busbw_gb_s", 1, 2).text,
                      cell(matched, "wait_mean_s", 1e6, 1).text);
  }
}

static void print_stragglers(const struct report_text *text, const json_t *together) {
  char value[200];
  const json_t *rows = json_object_get(together, "stragglers");
  size_t count = json_array_size(rows);
  if (!json_is_array(rows)) {
    report_line(text, "late",
                has(together, "residual_p95_s") ? "not said, as the ranks' clocks cannot be aligned to within 50 us"
                                                : "not said, as the ranks' clocks could not be aligned");
    return;
  }
  if (!count)
    report_line(text, "late", "no rank came later than the clocks can tell");
  for (size_t i = 0; i < count && i < STRAGGLERS_SHOWN; i++) {
    const json_t *row = json_array_get(rows, i);
    snprintf(value, sizeof(value), "rank %" PRId64 " came last in %s of %s collectives, by %s us in the mean",
             report_number(row, "rank"), report_grouped(report_number(row, "last")).text,
             report_grouped(report_number(together, "compared")).text, cell(row, "late_mean_s", 1e6, 1).text);
    report_line(text, i ? "" : "late", value);
  }
  if (count > STRAGGLERS_SHOWN)
    report_table_line(text, "          ... %zu more ranks (--json has them all)", count - STRAGGLERS_SHOWN);
}

static void print_together(const struct report_text *text, const json_t *communication) {
  const json_t *together = json_object_get(communication, "together");
  char value[256];
  if (!json_is_object(together))
    return;
  if (!report_number(together, "operations")) {
    report_line(text, "ranks", "no collective of an ordinary step is in the logs of all its ranks: no transfer times");
  } else {
    print_transfers(text, json_object_get(communication, "kinds"));
    report_table_line(text, "  transfer: least time over the ranks%s; each rank's rest is waiting for peers",
                      report_number(json_object_get(communication, "missing"), "count") ? " that have a log, so at most this"
                                                                                        : "");
  }
  if (report_number(together, "partial")) {
    snprintf(value, sizeof(value), "%s more collectives are not in the logs of all their ranks",
             report_grouped(report_number(together, "partial")).text);
    report_line(text, "ranks", value);
  }
  if (report_number(together, "unlike")) {
    snprintf(value, sizeof(value), "%s collectives differ between ranks in kind, type or bytes at equal ordinals",
             report_grouped(report_number(together, "unlike")).text);
    report_line(text, "differ", value);
  }
  if (has(together, "residual_p95_s")) {
    snprintf(value, sizeof(value), "%" PRId64 " ranks aligned by the ends of collectives; residual %s us (p95)",
             report_number(together, "ranks_aligned"), cell(together, "residual_p95_s", 1e6, 1).text);
    report_line(text, "clocks", value);
  }
  print_stragglers(text, together);
}

static void print_differing(const struct report_text *text, const json_t *communication) {
  const json_t *missing = json_object_get(communication, "missing"), *rows = json_object_get(communication, "differing");
  size_t count = json_array_size(rows), i;
  const json_t *rank;
  char value[320];
  if (report_number(missing, "count")) {
    int used = snprintf(value, sizeof(value), "no log of %" PRId64 " of %" PRId64 " ranks:", report_number(missing, "count"),
                        report_number(missing, "world"));
    json_array_foreach(json_object_get(missing, "ranks"), i, rank) {
      used += snprintf(value + used, sizeof(value) - (size_t)used, " %" PRId64, (int64_t)json_integer_value(rank));
    }
    if ((int64_t)i < report_number(missing, "count"))
      snprintf(value + used, sizeof(value) - (size_t)used, " ...");
    report_line(text, "missing", value);
  }
  for (i = 0; i < count && i < DIFFERING_SHOWN; i++) {
    const json_t *row = json_array_get(rows, i), *calls = json_object_get(row, "calls");
    const json_t *ranks = json_object_get(row, "ranks");
    snprintf(value, sizeof(value),
             "%.20s %.8s x%" PRId64 ": %" PRId64 " calls on rank %" PRId64 ", %" PRId64 " on rank %" PRId64,
             report_string(row, "op"), report_string(row, "dtype"), report_number(row, "nranks"),
             (int64_t)json_integer_value(json_array_get(calls, 0)), (int64_t)json_integer_value(json_array_get(ranks, 0)),
             (int64_t)json_integer_value(json_array_get(calls, 1)), (int64_t)json_integer_value(json_array_get(ranks, 1)));
    report_line(text, i ? "" : "unequal", value);
  }
  if (count > DIFFERING_SHOWN)
    report_table_line(text, "          ... %zu more kinds (--json has them all)", count - DIFFERING_SHOWN);
}

/* ---- the rest */

static void print_overhead(const struct report_text *text, const json_t *communication) {
  char value[256];
  const json_t *overhead = json_object_get(communication, "overhead");
  const json_t *confidence = json_object_get(communication, "confidence");
  if (json_is_object(overhead)) {
    snprintf(value, sizeof(value),
             "%+.2f %% +- %.2f of a step, from %" PRId64 " steps with the timing and as many without (rank %" PRId64
             ", the most of %" PRId64 ")",
             report_real(overhead, "pct"), report_real(overhead, "noise_pct"), report_number(overhead, "steps"),
             report_number(overhead, "rank"), report_number(overhead, "ranks"));
    report_line(text, "overhead", value);
  } else {
    report_line(text, "overhead", "not measured: too few steps with the timing and without it");
  }
  if (json_is_object(confidence)) {
    const char *name;
    json_t *steps;
    int used = snprintf(value, sizeof(value),
                        "%" PRId64 " of %" PRId64 " sources agree on the steps:", report_number(confidence, "agree"),
                        report_number(confidence, "asked"));
    json_object_foreach(json_object_get(confidence, "sources"), name, steps) {
      if (used < 200)
        used += snprintf(value + used, sizeof(value) - (size_t)used, " %.16s %" PRId64, name,
                         (int64_t)json_integer_value(steps));
    }
    report_line(text, "steps", value);
  }
}

static void print_gpu(const struct report_text *text, const json_t *gpu) {
  static const struct {
    const char *name, *what, *before, *after;
    double scale;
  } shown[] = {{"util_pct", "mean", "", " % busy", 1},
               {"mem_util_pct", "mean", "memory ", " % busy", 1},
               {"power_mw", "mean", "", " W", 1e-3},
               {"sm_mhz", "mean", "SM ", " MHz", 1},
               {"temp_c", "most", "at most ", " C", 1}};
  char value[512];
  size_t i;
  const json_t *row;
  if (!json_is_object(gpu))
    return;
  int length = snprintf(value, sizeof(value), "%s samples", report_grouped(report_number(gpu, "samples")).text);
  for (i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
    if (has(gpu, shown[i].name))
      length += snprintf(value + length, sizeof(value) - (size_t)length, ", %s%s%s", shown[i].before,
                         cell(json_object_get(gpu, shown[i].name), shown[i].what, shown[i].scale, 0).text, shown[i].after);
  report_line(text, "nvml", value);
  const json_t *used = json_object_get(gpu, "mem_used_bytes"), *total = json_object_get(gpu, "mem_total_bytes");
  if (json_is_object(used) && json_is_object(total)) {
    snprintf(value, sizeof(value), "memory: at most %s of %s", report_bytes(report_number(used, "most")).text,
             report_bytes(report_number(total, "most")).text);
    report_line(text, "", value);
  }
  json_array_foreach(json_object_get(gpu, "throttled"), i, row) {
    snprintf(value, sizeof(value), "clocks held down by %s in %" PRId64 " of %" PRId64 " samples",
             report_string(row, "reason"), report_number(row, "samples"), report_number(gpu, "samples"));
    report_line(text, "", value);
  }
}

void report_print_overlap(const struct report_text *text, const json_t *communication) {
  char value[160];
  if (!json_is_object(communication))
    return;
  report_heading(text, "Time of collectives and steps on the device");
  if (!json_is_true(json_object_get(communication, "timed"))) {
    snprintf(value, sizeof(value), "not timed: %.120s", report_string(communication, "why_not"));
    report_line(text, "timing", value);
    print_untimed(text, communication);
  } else {
    print_modes(text, communication);
    print_untimed(text, communication);
    print_kinds(text, json_object_get(communication, "kinds"));
    print_steady(text, json_object_get(communication, "steady"));
    print_extremes(text, json_object_get(json_object_get(communication, "steady"), "ranks"));
    print_together(text, communication);
    print_overhead(text, communication);
  }
  print_differing(text, communication);
  print_gpu(text, json_object_get(communication, "gpu"));
}
