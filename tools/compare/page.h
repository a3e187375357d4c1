/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the HTML page is made of: text that is escaped, tables, plots as inline SVG.
 *
 * Escaping: everything that comes from a log goes through page_text() or page_value(); page_tags() takes only what is
 * written in this folder's sources. Characters that change the reading order or are no text become U+FFFD.
 *
 * Plots have no fixed width: the drawing is stretched to the page (strokes are not), and all words and numbers are HTML
 * around it, so that they keep their size on a telephone. Nothing here needs a script.
 *
 * Not thread-safe; does not allocate but in page_value(). Errors of writing stay in the FILE, for the caller's ferror().
 */
#ifndef B200_COMPARE_PAGE_H
#define B200_COMPARE_PAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct page {
  FILE *out;
  int ids; /* handed out so far */
};

/* HTML as it stands here. */
void page_tags(struct page *page, const char *html);
/* Escaped text; the format is ours, its arguments are anybody's. */
__attribute__((format(printf, 2, 3))) void page_text(struct page *page, const char *format, ...);
/* Any JSON value as escaped text: strings as they are, numbers with 6 digits, null as a dash. */
void page_value(struct page *page, const json_t *value);

/* ---- tables: {"columns": [NAME, …], "rows": [[VALUE, …], …]}; a column with a number in its first row is set to the right
 */
void page_table(struct page *page, const char *label, const json_t *table);
/* The same, folded away behind "Data". */
void page_data(struct page *page, const char *label, const json_t *table);

/* ---- plots */

struct page_scale {
  double low, high; /* of the data; page_plot_begin() widens them to something that can be drawn */
  bool zero;        /* 0 is to be in it */
  bool tight;       /* begins and ends with the data */
  const char *name; /* with the unit */
};

struct page_plot {
  struct page *page;
  struct page_scale x, y;
  const char *title; /* of the figure */
  const char *says;  /* one sentence for those who cannot see the drawing */
  bool low;          /* less high */
};

/* Which side a curve belongs to. */
enum page_side { PAGE_BASELINE, PAGE_CANDIDATE };
extern const char *const page_sides[2]; /* as class in page.css */

/* Widens a scale by these values; those that are not finite are left out. */
void page_scale_take(struct page_scale *scale, double value);
/* pre: low > high until something was taken. */
extern const struct page_scale page_scale_empty;

/* <figure>, caption, frame, <svg>. `legend` is called within the caption. */
void page_plot_begin(struct page_plot *plot, void (*legend)(struct page *page, const void *data), const void *data);
/* Closes <svg>, writes the numbers along the axes, closes the frame. The <figure> stays open for page_data(). */
void page_plot_end(struct page_plot *plot);
void page_figure_end(struct page *page);

/* A line through the columns `x` and `y` of table rows; a value that is not there breaks it. A point with breaks around it
   becomes a dot. Classes are of page.css. */
void page_plot_line(struct page_plot *plot, const char *classes, const json_t *rows, size_t x, size_t y);
/* The area between columns `low` and `high`. */
void page_plot_band(struct page_plot *plot, const char *classes, const json_t *rows, size_t x, size_t low, size_t high);
/* Level line and filled box, in data units. */
void page_plot_level(struct page_plot *plot, const char *classes, double from, double to, double y);
void page_plot_upright(struct page_plot *plot, const char *classes, double x);
void page_plot_box(struct page_plot *plot, const char *classes, double from, double to, double low, double high);
/* A histogram: rows of [from, to, share]; as filled steps. */
void page_plot_steps(struct page_plot *plot, const char *side, const json_t *rows, size_t from, size_t to, size_t share);

#endif
