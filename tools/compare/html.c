/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison as one page: the verdict, then what it rests on, then the rest. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/compare/compare.h"
#include "tools/compare/page.h"
#include "tools/report/print.h"
#include "tools/report/rows.h"

extern const char compare_page_style[]; /* page_style.S */

/* Nothing is loaded from anywhere, nothing runs, nothing is sent. */
#define POLICY "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

static bool is_known(const json_t *object, const char *name) {
  return json_is_number(json_object_get(object, name));
}

/* With so many digits that tables stay readable; null stays null. */
static json_t *rounded(double value) {
  char text[32];
  if (!isfinite(value))
    return json_null();
  snprintf(text, sizeof(text), "%.4g", value);
  return json_real(strtod(text, NULL));
}

static void section(struct page *page, const char *title, const char *says) {
  page_tags(page, "\n<section><h2>");
  page_text(page, "%s", title);
  page_tags(page, "</h2>\n<p>");
  page_text(page, "%s", says);
  page_tags(page, "</p>\n");
}

static void section_end(struct page *page) {
  page_tags(page, "</section>\n");
}

/* ---- head */

static void write_head(struct page *page, const json_t *comparison) {
  page_tags(page, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"" POLICY "\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                  "<meta name=\"referrer\" content=\"no-referrer\"><link rel=\"icon\" href=\"data:,\">\n<title>");
  page_text(page, "%s: %s against %s", report_string(json_object_get(comparison, "verdict"), "name"),
            report_string(json_object_get(comparison, "candidate"), "name"),
            report_string(json_object_get(comparison, "baseline"), "name"));
  page_tags(page, "</title>\n<style>\n");
  page_tags(page, compare_page_style);
  page_tags(page, "</style></head>\n<body><main>\n");
}

static void write_arms(struct page *page, const json_t *comparison) {
  page_tags(page, "<p class=\"arms\">");
  for (int side = 0; side < 2; side++) {
    const json_t *arm = json_object_get(comparison, page_sides[side]);
    size_t runs = json_array_size(json_object_get(arm, "runs"));
    fprintf(page->out, "<span><i class=\"key %s\"></i>%s <b><bdi>", page_sides[side], side ? "candidate" : "baseline");
    page_value(page, json_object_get(arm, "name"));
    page_tags(page, "</bdi></b>");
    page_text(page, ", %zu run%s", runs, runs == 1 ? "" : "s");
    page_tags(page, "</span>");
  }
  page_tags(page, "</p>\n");
}

/* ---- the verdict and its figures */

/* A line of the verdict, which the text prints in ASCII and without a capital, as a sentence. */
static void write_sentence(struct page *page, const char *line) {
  const char *sign;
  if (*line)
    page_text(page, "%c", toupper((unsigned char)*line));
  for (line += *line != '\0'; (sign = strstr(line, "+-")); line = sign + 2) {
    page_text(page, "%.*s", (int)(sign - line), line);
    page_text(page, "\xC2\xB1");
  }
  page_text(page, "%s.", line);
}

static void figure_begin(struct page *page, const char *name) {
  page_tags(page, "<div><dt>");
  page_text(page, "%s", name);
  page_tags(page, "</dt><dd class=\"big\">");
}

static void figure_small(struct page *page) {
  page_tags(page, "</dd><dd class=\"small\">");
}

static void loss_figure(struct page *page, const json_t *loss) {
  const json_t *first = json_array_get(json_object_get(loss, "pairs"), 0);
  char name[64] = "Loss gap";
  if (report_number(first, "window"))
    snprintf(name, sizeof(name), "Loss gap, last %" PRId64 " steps", report_number(first, "window"));
  figure_begin(page, name);
  if (json_is_true(json_object_get(loss, "identical")))
    page_text(page, "0 %%");
  else if (is_known(loss, "gap_percent"))
    page_text(page, "%+.2f %%", report_real(loss, "gap_percent"));
  else
    page_tags(page, "&#8211;");
  figure_small(page);
  if (json_is_true(json_object_get(loss, "identical")))
    page_tags(page, "every common loss is the same number");
  else if (is_known(loss, "half_width_percent"))
    page_text(page, "\xC2\xB1 %.2f %%, margin %.3g %%", report_real(loss, "half_width_percent"),
              report_real(loss, "margin_percent"));
  else
    page_value(page, json_object_get(loss, "reason"));
  page_tags(page, "</dd></div>\n");
}

static void speed_figure(struct page *page, const json_t *clock) {
  bool interval = is_known(clock, "low") && is_known(clock, "high");
  bool none = strcmp(report_string(clock, "verdict"), "NO DIFFERENCE") == 0;
  figure_begin(page, "Speed");
  if (is_known(clock, "ratio"))
    page_text(page, "%.*f\xC3\x97", none ? 3 : 2, report_real(clock, "ratio"));
  else
    page_tags(page, "&#8211;");
  figure_small(page);
  if (interval)
    page_text(page, "%.3f to %.3f, ", report_real(clock, "low"), report_real(clock, "high"));
  page_value(page, json_object_get(clock, "label"));
  page_tags(page, "</dd></div>\n");
}

static void time_figure(struct page *page, const json_t *time, bool priced) {
  const json_t *levels = json_object_get(time, "levels"), *last = json_array_get(levels, json_array_size(levels) - 1);
  figure_begin(page, priced ? "Cost to equal loss" : "Time to equal loss");
  if (priced)
    page_text(page, "%.4g", report_real(last, "candidate_cost"));
  else
    page_text(page, "%.2f\xC3\x97", report_real(last, "speedup"));
  figure_small(page);
  if (priced)
    page_text(page, "baseline %.4g, to loss %.4g, %s", report_real(last, "baseline_cost"), report_real(last, "level"),
              report_string(time, "clock"));
  else
    page_text(page, "%s, baseline %s, to loss %.4g, %s", report_seconds(report_real(last, "candidate_s")).text,
              report_seconds(report_real(last, "baseline_s")).text, report_real(last, "level"),
              report_string(time, "clock"));
  page_tags(page, "</dd></div>\n");
}

static void converted_figure(struct page *page, const json_t *gemms) {
  figure_begin(page, "GEMM FLOPs converted");
  page_text(page, "%.0f %%", 100 * report_real(json_object_get(gemms, "candidate"), "converted"));
  figure_small(page);
  page_text(page, "baseline %.0f %%", 100 * report_real(json_object_get(gemms, "baseline"), "converted"));
  page_tags(page, "</dd></div>\n");
}

static void write_verdict(struct page *page, const json_t *comparison) {
  const json_t *verdict = json_object_get(comparison, "verdict"), *line;
  const json_t *clock = json_array_get(json_object_get(json_object_get(comparison, "throughput"), "clocks"), 0);
  const json_t *time = json_object_get(comparison, "time_to_loss"), *gemms = json_object_get(comparison, "gemms");
  size_t i;
  page_tags(page, "<header class=\"verdict ");
  page_value(page, json_object_get(verdict, "tone"));
  page_tags(page, "\"><h1>");
  page_value(page, json_object_get(verdict, "name"));
  page_tags(page, "</h1>\n<p class=\"says wrap\">");
  write_sentence(page, report_string(verdict, "says"));
  page_tags(page, "</p>\n");
  json_array_foreach(json_object_get(verdict, "also"), i, line) {
    page_tags(page, "<p class=\"also wrap\">");
    write_sentence(page, json_string_value(line));
    page_tags(page, "</p>\n");
  }
  page_tags(page, "</header>\n<dl class=\"figures\">\n");
  if (json_is_object(json_object_get(comparison, "loss")))
    loss_figure(page, json_object_get(comparison, "loss"));
  if (clock)
    speed_figure(page, clock);
  if (json_is_object(time)) {
    time_figure(page, time, false);
    if (is_known(comparison, "price_per_hour"))
      time_figure(page, time, true);
  }
  if (json_is_object(gemms))
    converted_figure(page, gemms);
  page_tags(page, "</dl>\n");
}

/* ---- plots of the loss */

static void two_sides(struct page *page, const void *data) {
  (void)data;
  page_tags(page,
            "<span><i class=\"key baseline\"></i>baseline</span><span><i class=\"key candidate\"></i>candidate</span>");
}

static void gap_legend(struct page *page, const void *data) {
  const json_t *loss = data;
  page_tags(page, "<span><i class=\"key candidate\"></i>candidate above baseline</span>");
  if (is_known(loss, "half_width_percent") || json_is_true(json_object_get(loss, "identical")))
    page_tags(page, "<span><i class=\"swatch\"></i>90 % interval of the mean</span>");
  if (is_known(loss, "margin_percent"))
    page_tags(page, "<span><i class=\"swatch margin\"></i>margin</span>");
}

/* Columns of a curve, as compare_columns() writes them. */
enum { STEP, A_LOW, A_HIGH, A, B_LOW, B_HIGH, B, GAP_LOW, GAP_HIGH, GAP };

static const json_t *curve_rows(const json_t *pair) {
  return json_object_get(json_object_get(pair, "curve"), "rows");
}

static double cell(const json_t *row, size_t column) {
  const json_t *value = json_array_get(row, column);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static void take_column(struct page_scale *scale, const json_t *rows, size_t column) {
  size_t i;
  const json_t *row;
  json_array_foreach(rows, i, row) page_scale_take(scale, cell(row, column));
}

static struct page_scale step_scale(const json_t *pairs, const char *name) {
  struct page_scale scale = page_scale_empty;
  size_t i;
  const json_t *pair;
  scale.tight = true;
  scale.name = name;
  json_array_foreach(pairs, i, pair) take_column(&scale, curve_rows(pair), STEP);
  return scale;
}

/* A diverged curve would leave nothing to see of the other: at most four times the baseline's range counts. */
static void bound_scale(struct page_scale *scale, const json_t *pairs) {
  struct page_scale baseline = page_scale_empty;
  size_t i;
  const json_t *pair;
  json_array_foreach(pairs, i, pair) {
    take_column(&baseline, curve_rows(pair), A_LOW);
    take_column(&baseline, curve_rows(pair), A_HIGH);
  }
  double range = baseline.high - baseline.low;
  if (range > 0) {
    scale->high = fmin(scale->high, baseline.high + range);
    scale->low = fmax(scale->low, baseline.low - range);
  }
}

static void write_curves(struct page *page, const json_t *pairs) {
  struct page_plot plot = {.page = page,
                           .title = "Loss",
                           .y = page_scale_empty,
                           .x = step_scale(pairs, "training step"),
                           .says = "Loss of baseline and candidate by training step; the table below has the values."};
  size_t i;
  const json_t *pair;
  json_array_foreach(pairs, i, pair) for (size_t column = A_LOW; column <= B; column++)
      take_column(&plot.y, curve_rows(pair), column);
  bound_scale(&plot.y, pairs);
  page_plot_begin(&plot, two_sides, NULL);
  page_plot_band(&plot, "baseline band", curve_rows(json_array_get(pairs, 0)), STEP, A_LOW, A_HIGH);
  page_plot_band(&plot, "candidate band", curve_rows(json_array_get(pairs, 0)), STEP, B_LOW, B_HIGH);
  json_array_foreach(pairs, i, pair) {
    page_plot_line(&plot, i ? "baseline run" : "baseline under", curve_rows(pair), STEP, A);
    page_plot_line(&plot, i ? "candidate run over" : "candidate line", curve_rows(pair), STEP, B);
  }
  page_plot_end(&plot);
}

static void write_gap(struct page *page, const json_t *loss, const json_t *pairs, const char *tone) {
  const json_t *first = json_array_get(pairs, 0), *pair;
  double margin = report_real(loss, "margin_percent"), gap = report_real(loss, "gap_percent"),
         half = report_real(loss, "half_width_percent");
  bool decided = is_known(loss, "gap_percent") && is_known(loss, "half_width_percent");
  bool limits = is_known(loss, "margin_percent");
  struct page_plot plot = {.page = page,
                           .title = "Gap, in percent of the baseline",
                           .y = page_scale_empty,
                           .x = step_scale(pairs, "training step"),
                           .says = "Gap of the candidate's loss to the baseline's by training step, with the margin and the "
                                   "interval of the mean gap in the window at the end."};
  size_t i;
  plot.y.zero = true;
  json_array_foreach(pairs, i, pair) take_column(&plot.y, curve_rows(pair), GAP);
  if (limits) {
    page_scale_take(&plot.y, -1.3 * margin);
    page_scale_take(&plot.y, 1.3 * margin);
  }
  if (decided) {
    page_scale_take(&plot.y, gap - half);
    page_scale_take(&plot.y, gap + half);
  }
  page_tags(page, "<div class=\"");
  page_text(page, "%s", tone);
  page_tags(page, "\">");
  page_plot_begin(&plot, gap_legend, loss);
  if (limits) {
    page_plot_box(&plot, "margin", plot.x.low, plot.x.high, -margin, margin);
    page_plot_level(&plot, "limit", plot.x.low, plot.x.high, margin);
    page_plot_level(&plot, "limit", plot.x.low, plot.x.high, -margin);
  }
  page_plot_level(&plot, "zero", plot.x.low, plot.x.high, 0);
  if (json_array_size(pairs) == 1)
    page_plot_band(&plot, "candidate band", curve_rows(first), STEP, GAP_LOW, GAP_HIGH);
  json_array_foreach(pairs, i, pair)
      page_plot_line(&plot, json_array_size(pairs) > 1 ? "candidate run" : "candidate line", curve_rows(pair), STEP, GAP);
  if (decided) {
    page_plot_box(&plot, "interval", report_real(first, "window_from"), plot.x.high, gap - half, gap + half);
    page_plot_level(&plot, "mean", report_real(first, "window_from"), plot.x.high, gap);
  }
  page_plot_end(&plot);
}

static const json_t *row_of(json_t *rows, const char *what, json_t *value, const char *says) {
  json_array_append_new(rows, json_pack("[sos]", what, value, says));
  return rows;
}

/* What the procedure found in a pair, check by check. */
static void write_checks(struct page *page, const json_t *pair, size_t number) {
  static const struct {
    const char *key, *name, *says;
  } rows[] = {
      {"common", "common steps", "compared step by step; at least 90 % of the longer run"},
      {"correlation_early", "same data, steps 20 to 220",
       "correlation of the short-term noise; below 0.3 in both places the data differ"},
      {"correlation_late", "same data, last quarter", "the same where the interval is taken"},
      {"start_percent", "same start, %", "difference over steps 1 to 5; above 0.15 % start or configuration differs"},
      {"window", "window, steps", "the last quarter, at least 100 steps"},
      {"gap_percent", "mean gap there, %", "positive: the candidate's loss is higher"},
      {"half_width_percent", "half-width, %", "of the 90 % interval, run-level floor included"},
      {"floor_percent", "run-level floor, %", "how much runs that are meant to be equal differ"},
      {"slope_percent", "growth over a window, %", "a significant growth that would leave the margin blocks EQUIVALENT"},
      {"lag_steps", "lag, steps", "the candidate is this many training steps behind"},
      {"largest_gap_percent", "largest smoothed gap, %", "advisory"},
      {"largest_gap_step", "at step", "advisory"},
      {"spikes_baseline", "spikes of the baseline", "loss above its centred mean by more than 4 standard deviations"},
      {"spikes_candidate", "spikes of the candidate", "the same"},
      {"norm_ratio", "gradient norm, ratio", "median over the window, candidate to baseline"},
      {"first_nonfinite_candidate", "first NaN or infinity of the candidate", "step; -1: none"},
  };
  json_t *list = json_array(), *table;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    row_of(list, rows[i].name, json_deep_copy(json_object_get(pair, rows[i].key)), rows[i].says);
  table = json_pack("{s[sss] so}", "columns", "check", "value", "what it is", "rows", list);
  char label[64] = "how this was decided, check by check";
  if (number)
    snprintf(label, sizeof(label), "how pair %zu was decided, check by check", number);
  page_data(page, label, table);
  json_decref(table);
}

static void write_loss(struct page *page, const json_t *comparison) {
  const json_t *loss = json_object_get(comparison, "loss"), *pairs = json_object_get(loss, "pairs"), *pair;
  const json_t *curve = json_object_get(json_array_get(pairs, 0), "curve");
  size_t i;
  if (!json_array_size(pairs) || !json_array_size(json_object_get(curve, "rows")))
    return;
  section(page, "Loss",
          "Both runs see the same data, so their losses are compared step by step. Lines are centred means of nine "
          "steps, bands the range of the steps in them.");
  write_curves(page, pairs);
  page_tags(page, "<p class=\"soft\">");
  if (json_is_true(json_object_get(curve, "thinned")))
    page_text(page, "%" PRId64 " common steps, thinned for drawing to %zu columns with least, largest and mean of each. ",
              report_number(curve, "points"), json_array_size(json_object_get(curve, "rows")));
  if (json_array_size(pairs) > 1)
    page_text(page, "%zu pairs; the band is that of the first.", json_array_size(pairs));
  page_tags(page, "</p>");
  json_array_foreach(pairs, i, pair) {
    char label[64];
    snprintf(label, sizeof(label), "losses%s", json_array_size(pairs) > 1 ? " of pair" : " and gap");
    if (json_array_size(pairs) > 1)
      snprintf(label, sizeof(label), "losses and gap of pair %zu", i + 1);
    page_data(page, label, json_object_get(pair, "curve"));
  }
  page_figure_end(page);
  write_gap(page, loss, pairs, report_string(json_object_get(comparison, "verdict"), "tone"));
  json_array_foreach(pairs, i, pair) write_checks(page, pair, json_array_size(pairs) > 1 ? i + 1 : 0);
  page_figure_end(page);
  page_tags(page, "</div>");
  section_end(page);
}

/* ---- speed */

static json_t *milliseconds(const json_t *object, const char *name) {
  return is_known(object, name) ? rounded(1e3 * report_real(object, name)) : json_null();
}

static void clock_row(json_t *rows, const char *name, const json_t *sides[2], const char *key, bool seconds) {
  json_t *values[2];
  for (int side = 0; side < 2; side++)
    values[side] = seconds ? milliseconds(sides[side], key) : json_deep_copy(json_object_get(sides[side], key));
  if (json_is_null(values[0]) && json_is_null(values[1])) {
    json_decref(values[0]);
    json_decref(values[1]);
    return;
  }
  json_array_append_new(rows, json_pack("[soo]", name, values[0], values[1]));
}

static void write_clock_table(struct page *page, const json_t *clock) {
  const json_t *sides[2] = {json_object_get(clock, "baseline"), json_object_get(clock, "candidate")};
  bool tokens = strstr(report_string(clock, "measure"), "per token") != NULL;
  json_t *rows = json_array(), *table;
  clock_row(rows, tokens ? "steady, us per token" : "steady step, ms", sides, "steady_s", true);
  clock_row(rows, "95th percentile, ms (first run)", sides, "p95_s", true);
  clock_row(rows, "end to end, ms a step", sides, "end_to_end_s", true);
  clock_row(rows, "steps (first run)", sides, "steps", false);
  clock_row(rows, "warm-up left out (first run)", sides, "warm_up", false);
  clock_row(rows, "exceptional steps (first run)", sides, "exceptional", false);
  clock_row(rows, "tokens per second", sides, "tokens_per_s", false);
  clock_row(rows, "cost of 1,000 steps", sides, "cost_per_1000_steps", false);
  clock_row(rows, "tokens per unit of money", sides, "tokens_per_unit", false);
  table = json_pack("{s[sss] so}", "columns", report_string(clock, "label"), "baseline", "candidate", "rows", rows);
  page_data(page, report_string(clock, "measure"), table);
  json_decref(table);
}

static void write_histogram(struct page *page, const json_t *clock) {
  char title[160], note[160];
  const json_t *histogram = json_object_get(clock, "histogram"), *rows = json_object_get(histogram, "rows");
  const json_t *clipped = json_object_get(histogram, "clipped");
  struct page_plot plot = {.page = page,
                           .title = title,
                           .low = true,
                           .x = page_scale_empty,
                           .y = page_scale_empty,
                           .says = "How often steps took how long, in percent of each side's steps."};
  snprintf(title, sizeof(title), "Step time, %s", report_string(clock, "label"));
  plot.x.tight = true;
  plot.x.name = "milliseconds; upright: percent of the steps";
  plot.y.zero = true;
  take_column(&plot.x, rows, 0);
  take_column(&plot.x, rows, 1);
  take_column(&plot.y, rows, 2);
  take_column(&plot.y, rows, 3);
  page_plot_begin(&plot, two_sides, NULL);
  for (int side = 0; side < 2; side++) {
    page_plot_steps(&plot, page_sides[side], rows, 0, 1, 2 + (size_t)side);
    char classes[32];
    snprintf(classes, sizeof(classes), "%s middle", page_sides[side]);
    page_plot_upright(&plot, classes, 1e3 * report_real(json_object_get(clock, page_sides[side]), "steady_s"));
  }
  page_plot_end(&plot);
  snprintf(note, sizeof(note), "%lld and %lld slower steps are beyond the right edge.",
           (long long)json_integer_value(json_array_get(clipped, 0)),
           (long long)json_integer_value(json_array_get(clipped, 1)));
  page_tags(page, "<p class=\"soft\">");
  page_text(page, "Dashed: the steady step, %.4g ms of the candidate and %.4g ms of the baseline.",
            1e3 * report_real(json_object_get(clock, "candidate"), "steady_s"),
            1e3 * report_real(json_object_get(clock, "baseline"), "steady_s"));
  if (json_integer_value(json_array_get(clipped, 0)) + json_integer_value(json_array_get(clipped, 1)))
    page_text(page, " %s", note);
  page_tags(page, "</p>");
  write_clock_table(page, clock);
  page_data(page, "step times", histogram);
  page_figure_end(page);
}

static const struct {
  const char *key, *name;
} parts[] = {
    {"gemm_s", "GEMMs"}, {"blocked_s", "blocked communication"}, {"host_s", "waiting for the host"}, {"other_s", "other"}};
#define PART_COUNT (sizeof(parts) / sizeof(parts[0]))

static void write_split(struct page *page, const json_t *split) {
  const json_t *difference = json_object_get(split, "difference");
  double longest = fmax(report_real(json_object_get(split, "baseline"), "total_s"),
                        report_real(json_object_get(split, "candidate"), "total_s"));
  page_tags(page, "<figure><figcaption><h3>Where a step's time goes, ");
  page_text(page, "%s",
            strcmp(report_string(split, "clock"), "modelled") == 0 ? "modelled by the virtual node"
                                                                   : "measured on the device");
  page_tags(page, "</h3><span class=\"legend\">");
  for (size_t i = 0; i < PART_COUNT; i++)
    fprintf(page->out, "<span><i class=\"part p%zu\"></i>%s</span>", i, parts[i].name);
  page_tags(page, "</span></figcaption>\n<div class=\"bars\">");
  for (int side = 0; side < 2; side++) {
    const json_t *arm = json_object_get(split, page_sides[side]);
    fprintf(page->out, "<span>%s</span><span class=\"track\" aria-hidden=\"true\">", page_sides[side]);
    for (size_t i = 0; i < PART_COUNT; i++)
      fprintf(page->out, "<i class=\"p%zu\" style=\"width:%.2f%%\"></i>", i,
              longest > 0 ? 100 * fmax(report_real(arm, parts[i].key), 0) / longest : 0);
    page_tags(page, "</span><span class=\"value\">");
    page_text(page, "%.3f ms", 1e3 * report_real(arm, "total_s"));
    page_tags(page, "</span>\n");
  }
  page_tags(page, "</div>\n");
  json_t *rows = json_array(), *table;
  for (size_t i = 0; i < PART_COUNT; i++)
    json_array_append_new(rows,
                          json_pack("[sooo]", parts[i].name, milliseconds(json_object_get(split, "baseline"), parts[i].key),
                                    milliseconds(json_object_get(split, "candidate"), parts[i].key),
                                    milliseconds(difference, parts[i].key)));
  json_array_append_new(rows, json_pack("[sooo]", "step", milliseconds(json_object_get(split, "baseline"), "total_s"),
                                        milliseconds(json_object_get(split, "candidate"), "total_s"),
                                        milliseconds(difference, "total_s")));
  table = json_pack("{s[ssss] so}", "columns", "part", "baseline ms", "candidate ms", "difference ms", "rows", rows);
  page_data(page, "parts of a step", table);
  json_decref(table);
  page_figure_end(page);
}

static void write_levels(struct page *page, const json_t *time) {
  json_t *rows = json_array(), *table;
  size_t i;
  const json_t *level;
  bool priced = is_known(json_array_get(json_object_get(time, "levels"), 0), "baseline_cost");
  json_array_foreach(json_object_get(time, "levels"), i, level) {
    json_t *row = json_pack("[fooo]", report_real(level, "level"), rounded(report_real(level, "baseline_s")),
                            rounded(report_real(level, "candidate_s")), rounded(report_real(level, "speedup")));
    if (priced) {
      json_array_append_new(row, rounded(report_real(level, "baseline_cost")));
      json_array_append_new(row, rounded(report_real(level, "candidate_cost")));
    }
    json_array_append_new(rows, row);
  }
  table = json_pack("{s[ssss] so}", "columns", "to loss", "baseline s", "candidate s", "times as fast", "rows", rows);
  if (priced) {
    json_array_append_new(json_object_get(table, "columns"), json_string("baseline cost"));
    json_array_append_new(json_object_get(table, "columns"), json_string("candidate cost"));
  }
  page_tags(page, "<h3>Time to equal loss</h3><p class=\"soft\">");
  write_sentence(page, report_string(time, "says"));
  page_tags(page, "</p>");
  page_table(page, "time to equal loss", table);
  json_decref(table);
}

static void write_speed(struct page *page, const json_t *comparison) {
  const json_t *throughput = json_object_get(comparison, "throughput"), *clocks = json_object_get(throughput, "clocks"),
               *clock;
  size_t i;
  section(page, "Speed",
          "Steps after the warm-up, on the slowest rank. Modelled and measured times are never put into one figure.");
  if (!json_array_size(clocks)) {
    page_tags(page, "<p>");
    write_sentence(page, report_string(throughput, "why_not"));
    page_tags(page, "</p>");
  }
  if (json_is_object(json_object_get(throughput, "split")))
    write_split(page, json_object_get(throughput, "split"));
  json_array_foreach(clocks, i, clock) {
    if (json_is_object(json_object_get(clock, "histogram")))
      write_histogram(page, clock);
    else
      write_clock_table(page, clock);
  }
  if (json_is_object(json_object_get(comparison, "time_to_loss")))
    write_levels(page, json_object_get(comparison, "time_to_loss"));
  section_end(page);
}

/* ---- communication */

static void write_communication_plot(struct page *page, const json_t *communication, const char *title, const char *says,
                                     size_t low) {
  struct page_plot plot = {
      .page = page, .title = title, .says = says, .low = true, .x = page_scale_empty, .y = page_scale_empty};
  plot.x.tight = true;
  plot.x.name = "step; upright: milliseconds on the slowest rank";
  plot.y.zero = true;
  for (int side = 0; side < 2; side++) {
    const json_t *rows = json_object_get(json_object_get(communication, page_sides[side]), "rows");
    take_column(&plot.x, rows, 0);
    take_column(&plot.y, rows, low + 1);
  }
  page_plot_begin(&plot, two_sides, NULL);
  for (int side = 0; side < 2; side++) {
    const json_t *rows = json_object_get(json_object_get(communication, page_sides[side]), "rows");
    char classes[32];
    snprintf(classes, sizeof(classes), "%s band", page_sides[side]);
    page_plot_band(&plot, classes, rows, 0, low, low + 1);
    snprintf(classes, sizeof(classes), "%s %s", page_sides[side], side ? "line" : "under");
    page_plot_line(&plot, classes, rows, 0, low + 2);
  }
  page_plot_end(&plot);
}

/* The step and three columns from `low` on. */
static json_t *part_of_table(const json_t *table, size_t low) {
  json_t *columns = json_array(), *rows = json_array();
  size_t i;
  const json_t *names = json_object_get(table, "columns"), *row;
  json_array_append(columns, json_array_get(names, 0));
  for (size_t j = low; j < low + 3; j++)
    json_array_append(columns, json_array_get(names, j));
  json_array_foreach(json_object_get(table, "rows"), i, row)
      json_array_append_new(rows, json_pack("[OOOO]", json_array_get(row, 0), json_array_get(row, low),
                                            json_array_get(row, low + 1), json_array_get(row, low + 2)));
  return json_pack("{so so}", "columns", columns, "rows", rows);
}

static void write_communication_data(struct page *page, const json_t *communication, size_t low) {
  for (int side = 0; side < 2; side++) {
    json_t *table = part_of_table(json_object_get(communication, page_sides[side]), low);
    page_data(page, page_sides[side], table);
    json_decref(table);
  }
  page_figure_end(page);
}

static void write_communication(struct page *page, const json_t *comparison) {
  const json_t *communication = json_object_get(comparison, "communication");
  if (!json_is_object(communication))
    return;
  section(page, "Communication",
          "Blocked: compute streams waited for a collective that ran. Hidden: a collective ran and nothing waited for it.");
  write_communication_plot(page, communication, "Blocked, per step",
                           "Milliseconds per step in which collectives kept compute waiting.", 1);
  write_communication_data(page, communication, 1);
  write_communication_plot(page, communication, "Hidden, per step",
                           "Milliseconds per step in which collectives ran beside compute.", 4);
  write_communication_data(page, communication, 4);
  section_end(page);
}

/* ---- memory */

static void write_memory(struct page *page, const json_t *comparison) {
  const json_t *memory = json_object_get(comparison, "memory"), *row;
  size_t i;
  double most = 0;
  if (!json_is_array(memory))
    return;
  section(page, "Device memory", "Peak by owner, on the rank with most of it.");
  json_t *rows = json_array(), *table;
  json_array_foreach(memory, i, row) {
    most = fmax(most, fmax(report_real(row, "baseline"), report_real(row, "candidate")));
    json_array_append_new(rows, json_pack("[sOO]", report_string(row, "owner"), json_object_get(row, "baseline"),
                                          json_object_get(row, "candidate")));
  }
  page_tags(page, "<figure><figcaption><h3>Peak by owner</h3><span class=\"legend\">");
  two_sides(page, NULL);
  page_tags(page, "</span></figcaption><div class=\"bars\">");
  json_array_foreach(memory, i, row) for (int side = 0; side < 2; side++) {
    page_tags(page, "<span class=\"name\">");
    page_text(page, "%s", side ? "" : report_string(row, "owner"));
    fprintf(page->out,
            "</span><span class=\"track\" aria-hidden=\"true\"><i class=\"%s\" style=\"width:%.2f%%\"></i></span><span "
            "class=\"value\">",
            page_sides[side], most > 0 ? 100 * report_real(row, page_sides[side]) / most : 0);
    if (is_known(row, page_sides[side]))
      page_text(page, "%s", report_bytes(report_number(row, page_sides[side])).text);
    else
      page_tags(page, "&#8211;");
    page_tags(page, "</span>\n");
  }
  page_tags(page, "</div>\n");
  table = json_pack("{s[sss] so}", "columns", "owner", "baseline, bytes", "candidate, bytes", "rows", rows);
  page_data(page, "peaks", table);
  json_decref(table);
  page_figure_end(page);
  section_end(page);
}

/* ---- GEMMs */

static void write_done(struct page *page, const json_t *done) {
  page_tags(page, "<td>");
  if (json_is_object(done)) {
    page_tags(page, "<code>");
    page_value(page, json_object_get(done, "plan"));
    page_tags(page, "</code> <span class=\"soft\">");
    page_value(page, json_object_get(done, "reason"));
    if (report_number(done, "kinds") > 1)
      page_text(page, " and %" PRId64 " more", report_number(done, "kinds") - 1);
    page_tags(page, "</span>");
  } else {
    page_tags(page, "&#8211;");
  }
  page_tags(page, "</td>");
}

static void write_error(struct page *page, const json_t *done) {
  const json_t *error = json_object_get(done, "audited_error");
  page_tags(page, "<td class=\"n\">");
  if (json_is_number(error))
    page_text(page, "%.4f", json_number_value(error));
  else
    page_value(page, error);
  page_tags(page, "</td>");
}

static void write_gemms(struct page *page, const json_t *comparison) {
  const json_t *gemms = json_object_get(comparison, "gemms"), *row;
  size_t i;
  if (!json_is_object(gemms))
    return;
  section(page, "GEMMs",
          "All ranks, most FLOPs first: what was done with each shape and why. The error is the largest of the audited "
          "calls (B200OPT_AUDIT_EVERY).");
  page_tags(page, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"GEMMs\"><table><thead><tr>"
                  "<th scope=\"col\">role</th><th scope=\"col\">m, n, k</th><th scope=\"col\" class=\"n\">share</th>"
                  "<th scope=\"col\">baseline</th><th scope=\"col\">candidate</th><th scope=\"col\" "
                  "class=\"n\">error</th></tr></thead><tbody>\n");
  json_array_foreach(json_object_get(gemms, "rows"), i, row) {
    const json_t *a = json_object_get(row, "baseline"), *b = json_object_get(row, "candidate");
    page_tags(page, "<tr><td>");
    page_text(page, "%s", report_string(row, "role"));
    page_tags(page, "</td><td class=\"mono whole\">");
    page_text(page, "%" PRId64 ", %" PRId64 ", %" PRId64, report_number(row, "m"), report_number(row, "n"),
              report_number(row, "k"));
    if (report_number(row, "batch") > 1)
      page_text(page, " \xC3\x97 %" PRId64, report_number(row, "batch"));
    page_tags(page, " <span class=\"soft\">");
    page_text(page, "%s%s", report_string(row, "ta"), report_string(row, "tb"));
    page_tags(page, "</span></td><td class=\"n\">");
    page_text(page, "%.1f %%", 100 * report_real(json_is_object(b) ? b : a, "share"));
    page_tags(page, "</td>");
    write_done(page, a);
    write_done(page, b);
    write_error(
        page,
        json_is_number(json_object_get(b, "audited_error")) || json_is_string(json_object_get(b, "audited_error")) ? b : a);
    page_tags(page, "</tr>\n");
  }
  page_tags(page, "</tbody></table></div>\n");
  if (report_number(gemms, "left_out")) {
    page_tags(page, "<p class=\"soft\">");
    page_text(page, "%" PRId64 " shapes with fewer FLOPs are left out.", report_number(gemms, "left_out"));
    page_tags(page, "</p>");
  }
  section_end(page);
}

/* ---- environment and the rest */

static void write_environment_rows(struct page *page, const json_t *rows, bool differing) {
  size_t i;
  const json_t *row;
  json_array_foreach(rows, i, row) {
    bool differs = json_is_true(json_object_get(row, "differs")) && !json_is_true(json_object_get(row, "of_the_run"));
    if (differs != differing)
      continue;
    page_tags(page, differs ? "<tr class=\"differs\"><td>" : "<tr><td>");
    page_value(page, json_object_get(row, "kind"));
    page_tags(page, "</td><td class=\"mono long\">");
    page_value(page, json_object_get(row, "name"));
    page_tags(page, "</td><td class=\"long\">");
    page_value(page, json_object_get(row, "baseline"));
    page_tags(page, "</td><td class=\"long\">");
    page_value(page, json_object_get(row, "candidate"));
    page_tags(page, differs ? "</td><td>differs</td></tr>\n" : "</td><td></td></tr>\n");
  }
}

static void write_check_rows(struct page *page, const json_t *checks) {
  size_t i;
  const json_t *row;
  json_array_foreach(checks, i, row) {
    bool differs = strcmp(report_string(row, "state"), "differs") == 0;
    page_tags(page, differs ? "<tr class=\"differs\"><td>must be equal</td><td>" : "<tr><td>must be equal</td><td>");
    page_text(page, "%s", report_string(row, "name"));
    page_tags(page, "</td><td class=\"long\">");
    page_value(page, json_object_get(row, "baseline"));
    page_tags(page, "</td><td class=\"long\">");
    page_value(page, json_object_get(row, "candidate"));
    page_tags(page, "</td><td>");
    page_text(page, "%s", strcmp(report_string(row, "state"), "unknown") == 0 ? "not known" : report_string(row, "state"));
    page_tags(page, "</td></tr>\n");
  }
}

static void write_environment(struct page *page, const json_t *comparison) {
  const json_t *rows = json_object_get(comparison, "environment");
  section(page, "Environment", "As it was in effect, from the logs of the first run of each side; differences first.");
  page_tags(page,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Environment\"><table><thead><tr><th "
            "scope=\"col\">kind</th><th scope=\"col\">name</th>"
            "<th scope=\"col\">baseline</th><th scope=\"col\">candidate</th><th scope=\"col\"></th></tr></thead><tbody>\n");
  write_check_rows(page, json_object_get(comparison, "checks"));
  write_environment_rows(page, rows, true);
  write_environment_rows(page, rows, false);
  page_tags(page, "</tbody></table></div>\n");
  section_end(page);
}

static void write_runs(struct page *page, const json_t *comparison) {
  json_t *rows = json_array(), *table;
  for (int side = 0; side < 2; side++) {
    size_t i;
    const json_t *run;
    json_array_foreach(json_object_get(json_object_get(comparison, page_sides[side]), "runs"), i, run) json_array_append_new(
        rows, json_pack("[sOOOOOO]", page_sides[side], json_object_get(run, "name"), json_object_get(run, "source"),
                        json_object_get(run, "points"), json_object_get(run, "first_step"),
                        json_object_get(run, "last_step"), json_object_get(run, "steps")));
  }
  table = json_pack("{s[sssssss] so}", "columns", "side", "run", "read as", "losses", "first step", "last step",
                    "timed steps", "rows", rows);
  section(page, "Runs", "What was read.");
  page_table(page, "runs", table);
  json_decref(table);
}

static void write_notes(struct page *page, const json_t *comparison) {
  const json_t *notes = json_object_get(comparison, "notes"), *failed = json_object_get(comparison, "failed"), *note;
  size_t i;
  write_runs(page, comparison);
  page_tags(page, "<ul class=\"plain\">");
  json_array_foreach(failed, i, note) {
    page_tags(page, "<li>");
    page_text(page, "%s of the %s ended with %s", report_string(note, "run"), report_string(note, "side"),
              report_string(note, "status"));
    page_tags(page, "</li>\n");
  }
  json_array_foreach(notes, i, note) {
    page_tags(page, "<li>");
    page_value(page, note);
    page_tags(page, "</li>\n");
  }
  page_tags(page, "</ul>\n");
  section_end(page);
}

void compare_write_page(FILE *out, const json_t *comparison) {
  struct page page = {.out = out};
  write_head(&page, comparison);
  write_arms(&page, comparison);
  write_verdict(&page, comparison);
  write_loss(&page, comparison);
  write_speed(&page, comparison);
  write_communication(&page, comparison);
  write_memory(&page, comparison);
  write_gemms(&page, comparison);
  write_environment(&page, comparison);
  write_notes(&page, comparison);
  page_tags(&page, "<footer>");
  page_text(&page, "b200opt %s", report_string(comparison, "b200opt"));
  page_tags(&page, "</footer>\n</main></body></html>\n");
}
