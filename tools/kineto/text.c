/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/report.h"

#include "interpose/record/reader.h"
#include "tools/report/print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_SHOWN 64
#define STEPS_SHOWN 20
#define NOTES_SHOWN 16

struct cell {
  char text[32];
};

static struct cell share(int64_t part, int64_t whole) {
  struct cell cell = {"n/a"};
  if (whole)
    snprintf(cell.text, sizeof(cell.text), "%.2f %%", 100 * (double)part / (double)whole);
  return cell;
}

/* Milliseconds, to the microsecond. */
static struct cell ms(int64_t ns) {
  struct cell cell;
  snprintf(cell.text, sizeof(cell.text), "%.3f", (double)ns / 1e6);
  return cell;
}

static struct cell rank_name(const struct kineto_rank *rank) {
  struct cell cell = {"?"};
  if (rank->rank >= 0)
    snprintf(cell.text, sizeof(cell.text), "%" PRId64, rank->rank);
  return cell;
}

static void more(const struct report_text *text, size_t count, size_t shown, const char *what) {
  if (count > shown)
    report_table_line(text, "  %zu more %s: with --json", count - shown, what);
}

static void print_breakdown(const struct report_text *text, const struct kineto_ranks *ranks) {
  report_table_line(text, "  %5s %10s %11s %8s %12s %8s %12s %8s %12s", "rank", "overlap", "idle", "", "compute", "",
                    "non-compute", "", "kernel time");
  for (size_t i = 0; i < ranks->count && i < RANKS_SHOWN; i++) {
    const struct kineto_times *times = &ranks->rows[i].times;
    int64_t compute = times->class_ns[KINETO_COMPUTE], span = times->span_ns;
    report_table_line(text, "  %5s %10s %11s %8s %12s %8s %12s %8s %12s", rank_name(&ranks->rows[i]).text,
                      share(times->overlapped_ns, times->class_ns[KINETO_COMMUNICATION]).text,
                      ms(span - times->busy_ns).text, share(span - times->busy_ns, span).text, ms(compute).text,
                      share(compute, span).text, ms(times->busy_ns - compute).text,
                      share(times->busy_ns - compute, span).text, ms(span).text);
  }
  more(text, ranks->count, RANKS_SHOWN, "ranks");
}

static void print_communication(const struct report_text *text, const struct kineto_ranks *ranks) {
  report_table_line(text, "  %5s %12s %15s %15s %15s %16s", "rank", "operations", "communication", "overlapped", "uncovered",
                    "of kernel time");
  for (size_t i = 0; i < ranks->count && i < RANKS_SHOWN; i++) {
    const struct kineto_times *times = &ranks->rows[i].times;
    report_table_line(text, "  %5s %12" PRIu64 " %15s %15s %15s %16s", rank_name(&ranks->rows[i]).text,
                      times->ops[KINETO_COMMUNICATION], ms(times->class_ns[KINETO_COMMUNICATION]).text,
                      ms(times->overlapped_ns).text, ms(times->uncovered_ns).text,
                      share(times->uncovered_ns, times->span_ns).text);
  }
  more(text, ranks->count, RANKS_SHOWN, "ranks");
}

/* ---- kinds, all ranks together */

struct kind_row {
  const char *name;
  struct kineto_kind sum;
};

static void add_kind(struct kind_row *row, const struct kineto_kind *kind) {
  row->sum.ops += kind->ops;
  row->sum.total_ns = b200_add(row->sum.total_ns, kind->total_ns);
  row->sum.uncovered_ns = b200_add(row->sum.uncovered_ns, kind->uncovered_ns);
  row->sum.bus_bytes = b200_add(row->sum.bus_bytes, kind->bus_bytes);
  row->sum.bus_ns = b200_add(row->sum.bus_ns, kind->bus_ns);
}

static int by_total(const void *a, const void *b) {
  const struct kind_row *left = a, *right = b;
  return (left->sum.total_ns < right->sum.total_ns) - (left->sum.total_ns > right->sum.total_ns);
}

/* How many of the rows are used; kinds beyond the room go into the last. */
static size_t sum_kinds(const struct kineto_ranks *ranks, struct kind_row rows[static KINETO_KINDS_MAX]) {
  size_t count = 0;
  for (size_t i = 0; i < ranks->count; i++)
    for (unsigned j = 0; j < ranks->rows[i].kind_count; j++) {
      const char *name = ranks->rows[i].kind_names[j];
      size_t at = 0;
      while (at < count && strcmp(rows[at].name, name) != 0)
        at++;
      if (at == KINETO_KINDS_MAX)
        at--;
      else if (at == count)
        rows[count++] = (struct kind_row){.name = name};
      add_kind(&rows[at], &ranks->rows[i].kinds[j]);
    }
  qsort(rows, count, sizeof(*rows), by_total);
  return count;
}

static void print_kinds(const struct report_text *text, const struct kineto_ranks *ranks) {
  struct kind_row rows[KINETO_KINDS_MAX] = {0};
  size_t count = sum_kinds(ranks, rows);
  if (!count)
    return;
  report_heading(text, "Collectives by kind, all ranks; uncovered: in ms, no compute runs");
  report_table_line(text, "  %-24s %12s %15s %12s %15s %11s", "kind", "operations", "total ms", "mean us", "uncovered",
                    "bus GB/s");
  for (size_t i = 0; i < count; i++) {
    const struct kineto_kind *kind = &rows[i].sum;
    char bus[32] = "n/a";
    if (kind->bus_ns)
      snprintf(bus, sizeof(bus), "%.2f", (double)kind->bus_bytes / (double)kind->bus_ns);
    report_table_line(text, "  %-24.24s %12" PRIu64 " %15s %12.1f %15s %11s", rows[i].name, kind->ops,
                      ms(kind->total_ns).text, kind->ops ? (double)kind->total_ns / 1e3 / (double)kind->ops : 0,
                      ms(kind->uncovered_ns).text, bus);
  }
}

/* ---- steps, all ranks side by side */

struct step_row {
  int64_t number;
  const struct kineto_rank *rank;
  const struct kineto_times *times;
};

static int by_number(const void *a, const void *b) {
  const struct step_row *left = a, *right = b;
  return (left->number > right->number) - (left->number < right->number);
}

static void print_step(const struct report_text *text, const struct step_row *rows, size_t count) {
  const struct step_row *slowest = rows, *worst = rows;
  double overlapped = 0, communication = 0, uncovered = 0;
  for (size_t i = 0; i < count; i++) {
    const struct kineto_times *times = rows[i].times;
    overlapped += (double)times->overlapped_ns;
    communication += (double)times->class_ns[KINETO_COMMUNICATION];
    uncovered += (double)times->uncovered_ns;
    slowest = times->span_ns > slowest->times->span_ns ? &rows[i] : slowest;
    worst = times->uncovered_ns > worst->times->uncovered_ns ? &rows[i] : worst;
  }
  char overlap[32] = "n/a";
  if (communication > 0)
    snprintf(overlap, sizeof(overlap), "%.2f %%", 100 * overlapped / communication);
  report_table_line(text, "  %8" PRId64 " %14s %6s %12s %14.3f %14s %6s", rows->number, ms(slowest->times->span_ns).text,
                    rank_name(slowest->rank).text, overlap, uncovered / (double)count / 1e6,
                    ms(worst->times->uncovered_ns).text, rank_name(worst->rank).text);
}

static void print_steps(const struct report_text *text, const struct kineto_ranks *ranks) {
  size_t count = 0, at = 0, steps = 0;
  for (size_t i = 0; i < ranks->count; i++)
    count += ranks->rows[i].step_count;
  if (!count)
    return;
  struct step_row *rows = b200_zeroed(count, sizeof(*rows));
  for (size_t i = 0; i < ranks->count; i++)
    for (size_t j = 0; j < ranks->rows[i].step_count; j++)
      rows[at++] = (struct step_row){ranks->rows[i].steps[j].number, &ranks->rows[i], &ranks->rows[i].steps[j].times};
  qsort(rows, count, sizeof(*rows), by_number);
  report_heading(text, "Steps, all ranks; times in ms");
  report_table_line(text, "  %8s %14s %6s %12s %14s %14s %6s", "step", "longest", "rank", "overlap", "mean uncovered",
                    "most uncovered", "rank");
  for (size_t start = 0, end; start < count; start = end, steps++) {
    for (end = start + 1; end < count && rows[end].number == rows[start].number;)
      end++;
    if (steps < STEPS_SHOWN)
      print_step(text, rows + start, end - start);
  }
  more(text, steps, STEPS_SHOWN, "steps");
  free(rows);
}

/* ---- the whole */

void kineto_print(FILE *out, const struct kineto_question *question, const struct kineto_ranks *ranks, bool colour) {
  const struct report_text *text = &(struct report_text){out, colour};
  char head[160];
  uint64_t events = 0;
  for (size_t i = 0; i < ranks->count; i++)
    events += ranks->rows[i].events;
  snprintf(head, sizeof(head), "%zu trace%s of PyTorch's profiler, %" PRIu64 " events; %s", ranks->count,
           ranks->count == 1 ? "" : "s", events,
           question->without_last_step ? "without each trace's last step, as HTA by default" : "all GPU operations");
  report_line(text, "kineto", head);
  report_heading(text, "Overlap and breakdown as HTA defines them; times in ms");
  print_breakdown(text, ranks);
  report_heading(text, "Communication; times in ms; uncovered (exposed): no compute runs");
  print_communication(text, ranks);
  print_kinds(text, ranks);
  print_steps(text, ranks);
  if (ranks->note_count)
    report_heading(text, "Notes");
  for (size_t i = 0; i < ranks->note_count && i < NOTES_SHOWN; i++)
    report_line(text, "", ranks->notes[i]);
  more(text, ranks->note_count, NOTES_SHOWN, "notes");
}
