/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"

/* The drawing's own units. */
#define WIDTH 1000.0
#define HEIGHT 400.0

const char *const page_sides[2] = {"baseline", "candidate"};
const struct page_scale page_scale_empty = {.low = INFINITY, .high = -INFINITY};

/* ---- text */

void page_tags(struct page *page, const char *html) {
  fputs(html, page->out);
}

/* Characters that would be read as something else than text, or turn its direction. */
static bool is_unfit(uint32_t code) {
  return (code < 0x20 && code != '\t' && code != '\n') || (code >= 0x7F && code < 0xA0) ||
         (code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) ||
         code == 0xFEFF || (code >= 0xFFF9 && code <= 0xFFFF) || (code >= 0xD800 && code <= 0xDFFF) ||
         (code >= 0xE0000 && code <= 0xE007F);
}

/* Decodes one character of UTF-8; returns its bytes, 1 with code 0xFFFF for what is none. */
static size_t decode(const unsigned char *at, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t length = *at < 0x80 ? 1 : *at >= 0xF0 && *at < 0xF5 ? 4 : *at >= 0xE0 ? 3 : *at >= 0xC2 ? 2 : 0;
  *code = length == 1 ? *at : length ? *at & (0x7FU >> length) : 0xFFFF;
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xC0) != 0x80) {
      *code = 0xFFFF;
      return 1;
    }
    *code = *code << 6 | (at[i] & 0x3F);
  }
  if (length == 0 || *code < least[length] || *code > 0x10FFFF) {
    *code = 0xFFFF;
    return 1;
  }
  return length;
}

static void escape(struct page *page, const char *text) {
  for (const unsigned char *at = (const unsigned char *)text; *at;) {
    uint32_t code;
    size_t length = decode(at, &code);
    if (is_unfit(code))
      fputs("&#xFFFD;", page->out);
    else if (code == '&' || code == '<' || code == '>' || code == '"' || code == '\'')
      fprintf(page->out, "&#%u;", (unsigned)code);
    else
      fwrite(at, 1, length, page->out);
    at += length;
  }
}

void page_text(struct page *page, const char *format, ...) {
  char *text;
  va_list arguments;
  va_start(arguments, format);
  int length = vasprintf(&text, format, arguments);
  va_end(arguments);
  if (length < 0)
    abort();
  escape(page, text);
  free(text);
}

void page_value(struct page *page, const json_t *value) {
  if (!value || json_is_null(value))
    page_tags(page, "&#8211;");
  else if (json_is_string(value))
    escape(page, json_string_value(value));
  else if (json_is_real(value))
    page_text(page, "%.6g", json_real_value(value));
  else if (json_is_integer(value))
    page_text(page, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
  else if (json_is_boolean(value))
    page_tags(page, json_is_true(value) ? "yes" : "no");
  else {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    escape(page, text ? text : "");
    free(text);
  }
}

/* ---- tables */

/* Numbers, and nothing but dashes besides. */
static bool is_numeric(const json_t *rows, size_t column) {
  size_t i;
  const json_t *row;
  bool some = false;
  json_array_foreach(rows, i, row) {
    const json_t *value = json_array_get(row, column);
    if (value && !json_is_null(value) && !json_is_number(value))
      return false;
    some |= json_is_number(value);
  }
  return some;
}

static void write_table(struct page *page, const char *label, const json_t *table) {
  const json_t *columns = json_object_get(table, "columns"), *rows = json_object_get(table, "rows"), *row, *cell;
  size_t i, j, count = json_array_size(columns);
  bool *numeric = b200_zeroed(count + 1, sizeof(*numeric));
  for (j = 0; j < count; j++)
    numeric[j] = is_numeric(rows, j);
  page_tags(page, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
  page_text(page, "%s", label);
  page_tags(page, "\"><table><thead><tr>");
  json_array_foreach(columns, j, cell) {
    page_tags(page, numeric[j] ? "<th scope=\"col\" class=\"n\">" : "<th scope=\"col\">");
    page_value(page, cell);
    page_tags(page, "</th>");
  }
  page_tags(page, "</tr></thead><tbody>\n");
  json_array_foreach(rows, i, row) {
    page_tags(page, "<tr>");
    for (j = 0; j < count; j++) {
      page_tags(page, numeric[j] ? "<td class=\"n\">" : "<td>");
      page_value(page, json_array_get(row, j));
      page_tags(page, "</td>");
    }
    page_tags(page, "</tr>\n");
  }
  page_tags(page, "</tbody></table></div>\n");
  free(numeric);
}

void page_table(struct page *page, const char *label, const json_t *table) {
  write_table(page, label, table);
}

void page_data(struct page *page, const char *label, const json_t *table) {
  page_tags(page, "<details><summary>Data: ");
  page_text(page, "%s", label);
  page_tags(page, "</summary>");
  write_table(page, label, table);
  page_tags(page, "</details>\n");
}

/* ---- scales */

void page_scale_take(struct page_scale *scale, double value) {
  if (!isfinite(value) || fabs(value) > 1e300)
    return;
  scale->low = fmin(scale->low, value);
  scale->high = fmax(scale->high, value);
}

/* 1, 2 or 5 times a power of ten, so that about `count` of them make up `range`. */
static double tick_step(double range, int count) {
  double raw = range / count, power = pow(10, floor(log10(raw))), digit = raw / power;
  return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static void scale_fit(struct page_scale *scale) {
  if (scale->zero) {
    scale->low = fmin(scale->low, 0);
    scale->high = fmax(scale->high, 0);
  }
  if (!(scale->low <= scale->high)) {
    scale->low = 0;
    scale->high = 1;
  }
  double least = fmax(fabs(scale->low), fabs(scale->high)) * 1e-6;
  if (scale->high - scale->low <= least) {
    double room = least > 0 ? least * 1e3 : 1;
    scale->low -= scale->zero && scale->low >= 0 ? 0 : room;
    scale->high += room;
  } else if (!scale->tight) {
    double room = (scale->high - scale->low) * 0.04;
    scale->low -= scale->zero && scale->low >= 0 ? 0 : room;
    scale->high += room;
  }
}

static double along(const struct page_scale *scale, double value) {
  return fmin(fmax((value - scale->low) / (scale->high - scale->low), -1), 2);
}

static double x_of(const struct page_plot *plot, double value) {
  return WIDTH * along(&plot->x, value);
}

static double y_of(const struct page_plot *plot, double value) {
  return HEIGHT * (1 - along(&plot->y, value));
}

/* Calls `each` for every tick. */
static void ticks(struct page_plot *plot, const struct page_scale *scale, int count,
                  void (*each)(struct page_plot *plot, const struct page_scale *scale, double value, double step)) {
  double step = tick_step(scale->high - scale->low, count);
  for (double i = ceil(scale->low / step - 1e-6); i * step <= scale->high + step * 1e-6; i++)
    each(plot, scale, i == 0 ? 0 : i * step, step);
}

/* With as many digits as the step has, thousands as k. */
static void tick_text(struct page_plot *plot, double value, double step) {
  bool thousands = step >= 1000;
  double shown = thousands ? value / 1000 : value, unit = thousands ? step / 1000 : step;
  int digits = unit >= 1 ? 0 : (int)ceil(-log10(unit) - 1e-9);
  if (digits > 5)
    page_text(plot->page, "%g", value);
  else
    page_text(plot->page, "%.*f%s", digits, shown, thousands && value != 0 ? "k" : "");
}

/* ---- frame */

static void grid_line(struct page_plot *plot, const struct page_scale *scale, double value, double step) {
  (void)scale, (void)step;
  fprintf(plot->page->out, "M0 %.1fH%g", y_of(plot, value), WIDTH);
}

static void y_label(struct page_plot *plot, const struct page_scale *scale, double value, double step) {
  fprintf(plot->page->out, "<span style=\"top:%.2f%%\">", 100 * (1 - along(scale, value)));
  tick_text(plot, value, step);
  page_tags(plot->page, "</span>");
}

/* Takes the room that the labels need, which stand outside the flow. */
static void y_room(struct page_plot *plot, const struct page_scale *scale, double value, double step) {
  (void)scale;
  page_tags(plot->page, "<span class=\"room\" aria-hidden=\"true\">");
  tick_text(plot, value, step);
  page_tags(plot->page, "</span>");
}

static void x_label(struct page_plot *plot, const struct page_scale *scale, double value, double step) {
  double at = 100 * along(scale, value);
  fprintf(plot->page->out, "<span%s style=\"left:%.2f%%\">",
          at > 97  ? " class=\"last\""
          : at < 2 ? " class=\"first\""
                   : "",
          at);
  tick_text(plot, value, step);
  page_tags(plot->page, "</span>");
}

void page_plot_begin(struct page_plot *plot, void (*legend)(struct page *page, const void *data), const void *data) {
  struct page *page = plot->page;
  int id = ++page->ids;
  scale_fit(&plot->x);
  scale_fit(&plot->y);
  page_tags(page, "<figure><figcaption><h3>");
  page_text(page, "%s", plot->title);
  page_tags(page, "</h3><span class=\"legend\">");
  legend(page, data);
  page_tags(page, "</span></figcaption>\n<div class=\"frame\"><div class=\"ys\" aria-hidden=\"true\">");
  ticks(plot, &plot->y, plot->low ? 3 : 5, y_room);
  ticks(plot, &plot->y, plot->low ? 3 : 5, y_label);
  fprintf(page->out,
          "</div>\n<svg%s viewBox=\"0 0 %g %g\" preserveAspectRatio=\"none\" role=\"img\" aria-labelledby=\"t%d s%d\">",
          plot->low ? " class=\"low\"" : "", WIDTH, HEIGHT, id, id);
  fprintf(page->out, "<title id=\"t%d\">", id);
  page_text(page, "%s", plot->title);
  fprintf(page->out, "</title><desc id=\"s%d\">", id);
  page_text(page, "%s", plot->says);
  page_tags(page, "</desc>\n<path class=\"grid\" d=\"");
  ticks(plot, &plot->y, plot->low ? 3 : 5, grid_line);
  page_tags(page, "\"/>\n");
}

void page_plot_end(struct page_plot *plot) {
  page_tags(plot->page, "</svg>\n<div class=\"xs\" aria-hidden=\"true\">");
  ticks(plot, &plot->x, 5, x_label);
  page_tags(plot->page, "</div><div class=\"axis\">");
  page_text(plot->page, "%s", plot->x.name);
  page_tags(plot->page, "</div></div>\n");
}

void page_figure_end(struct page *page) {
  page_tags(page, "</figure>\n");
}

/* ---- curves */

/* NAN when it is no number. */
static double cell(const json_t *row, size_t column) {
  const json_t *value = json_array_get(row, column);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static void path_begin(struct page_plot *plot, const char *classes) {
  fprintf(plot->page->out, "<path class=\"%s\" d=\"", classes);
}

static void path_end(struct page_plot *plot) {
  page_tags(plot->page, "\"/>\n");
}

void page_plot_line(struct page_plot *plot, const char *classes, const json_t *rows, size_t x, size_t y) {
  bool down = false; /* the pen */
  int drawn = 0;
  size_t i;
  const json_t *row;
  path_begin(plot, classes);
  json_array_foreach(rows, i, row) {
    double at = x_of(plot, cell(row, x)), up = y_of(plot, cell(row, y));
    bool known = isfinite(cell(row, x)) && isfinite(cell(row, y));
    if (!known && down && drawn == 1)
      page_tags(plot->page, "h0");
    if (known)
      fprintf(plot->page->out, "%c%.1f %.1f", down ? 'L' : 'M', at, up);
    drawn = known ? (down ? drawn + 1 : 1) : 0;
    down = known;
  }
  if (down && drawn == 1)
    page_tags(plot->page, "h0");
  path_end(plot);
}

/* One stretch of rows without gaps: forth along `high`, back along `low`. */
static void write_stretch(struct page_plot *plot, const json_t *rows, size_t from, size_t to, size_t x, size_t low,
                          size_t high) {
  for (size_t i = from; i < to; i++) {
    const json_t *row = json_array_get(rows, i);
    fprintf(plot->page->out, "%c%.1f %.1f", i == from ? 'M' : 'L', x_of(plot, cell(row, x)), y_of(plot, cell(row, high)));
  }
  for (size_t i = to; i-- > from;) {
    const json_t *row = json_array_get(rows, i);
    fprintf(plot->page->out, "L%.1f %.1f", x_of(plot, cell(row, x)), y_of(plot, cell(row, low)));
  }
  page_tags(plot->page, "Z");
}

void page_plot_band(struct page_plot *plot, const char *classes, const json_t *rows, size_t x, size_t low, size_t high) {
  size_t from = 0, count = json_array_size(rows);
  path_begin(plot, classes);
  for (size_t i = 0; i <= count; i++) {
    const json_t *row = json_array_get(rows, i);
    if (i < count && isfinite(cell(row, x)) && isfinite(cell(row, low)) && isfinite(cell(row, high)))
      continue;
    if (i > from)
      write_stretch(plot, rows, from, i, x, low, high);
    from = i + 1;
  }
  path_end(plot);
}

void page_plot_level(struct page_plot *plot, const char *classes, double from, double to, double y) {
  path_begin(plot, classes);
  fprintf(plot->page->out, "M%.1f %.1fH%.1f", x_of(plot, from), y_of(plot, y), x_of(plot, to));
  path_end(plot);
}

void page_plot_upright(struct page_plot *plot, const char *classes, double x) {
  path_begin(plot, classes);
  fprintf(plot->page->out, "M%.1f 0V%g", x_of(plot, x), HEIGHT);
  path_end(plot);
}

void page_plot_box(struct page_plot *plot, const char *classes, double from, double to, double low, double high) {
  path_begin(plot, classes);
  double top = fmax(y_of(plot, high), 0), bottom = fmin(y_of(plot, low), HEIGHT);
  if (bottom > top)
    fprintf(plot->page->out, "M%.1f %.1fH%.1fV%.1fH%.1fZ", x_of(plot, from), top, x_of(plot, to), bottom, x_of(plot, from));
  path_end(plot);
}

void page_plot_steps(struct page_plot *plot, const char *side, const json_t *rows, size_t from, size_t to, size_t share) {
  static const char *const looks[] = {"fill", "line"};
  for (int look = 0; look < 2; look++) {
    size_t i;
    const json_t *row;
    double first = NAN;
    fprintf(plot->page->out, "<path class=\"%s %s\" d=\"", side, looks[look]);
    json_array_foreach(rows, i, row) {
      double left = x_of(plot, cell(row, from)), right = x_of(plot, cell(row, to)), up = y_of(plot, cell(row, share));
      if (i == 0)
        fprintf(plot->page->out, "M%.1f %.1f", first = left, y_of(plot, 0));
      fprintf(plot->page->out, "L%.1f %.1fH%.1f", left, up, right);
    }
    if (isfinite(first))
      fprintf(plot->page->out, "V%.1f%s", y_of(plot, 0), look == 0 ? "Z" : "");
    path_end(plot);
  }
}
