/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/ranks.h"

#include "interpose/record/reader.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *ascii(char *text) {
  for (char *at = text; *at; at++)
    if (*at < ' ' || *at > '~')
      *at = '?';
  return text;
}

__attribute__((format(printf, 2, 3))) static void note(struct kineto_ranks *ranks, const char *format, ...) {
  char *text = NULL;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&text, format, arguments) < 0)
    text = NULL;
  va_end(arguments);
  if (!text)
    return;
  ranks->notes = b200_grow(ranks->notes, ranks->note_count, sizeof(*ranks->notes));
  ranks->notes[ranks->note_count++] = ascii(text);
}

static void add_notes(struct kineto_ranks *ranks, const char *file, const struct kineto_trace *trace) {
  uint64_t unknown = 0;
  for (size_t i = 0; i < trace->op_count; i++)
    unknown += trace->ops[i].launch_ns == KINETO_NOT_LAUNCHED;
  if (trace->partial)
    note(ranks, "%s: %s, at byte %" PRIu64 "; right about what comes before", file, trace->partial, trace->partial_at);
  if (trace->rank < 0)
    note(ranks, "%s: says no rank (distributedInfo)", file);
  if (!trace->op_count)
    note(ranks, "%s: has no GPU operations", file);
  if (trace->invalid)
    note(ranks, "%s: %" PRIu64 " GPU operations without a valid time and duration are left out", file, trace->invalid);
  if (trace->hta_differs)
    note(ranks, "%s: %" PRIu64 " GPU operations are classed otherwise than by HTA, which goes by names alone", file,
         trace->hta_differs);
  if (trace->hta_extra)
    note(ranks, "%s: %" PRIu64 " events with a stream are no work of the GPU (the first is a '%s'); HTA counts them", file,
         trace->hta_extra, trace->hta_extra_category);
  if (!trace->step_count && trace->op_count)
    note(ranks, "%s: no ProfilerStep is marked", file);
  else if (unknown && trace->step_count > 1)
    note(ranks, "%s: %" PRIu64 " GPU operations whose launch is not in the trace; HTA leaves them out", file, unknown);
}

static void sum_steps(struct kineto_rank *row, const struct kineto_trace *trace, struct kineto_op *ops, size_t count) {
  kineto_sort_by_step(ops, count);
  for (size_t start = 0, end; start < count; start = end) {
    for (end = start + 1; end < count && ops[end].step == ops[start].step;)
      end++;
    if (ops[start].step < 0) {
      row->outside_steps = end - start;
      continue;
    }
    row->steps = b200_grow(row->steps, row->step_count, sizeof(*row->steps));
    struct kineto_step_times *step = &row->steps[row->step_count++];
    step->number = trace->steps[ops[start].step].number;
    kineto_times(ops + start, end - start, &step->times, NULL);
  }
}

static void add_rank(struct kineto_ranks *ranks, const char *file, struct kineto_trace *trace, bool without_last_step) {
  ranks->rows = b200_grow(ranks->rows, ranks->count, sizeof(*ranks->rows));
  struct kineto_rank *row = &ranks->rows[ranks->count++];
  *row = (struct kineto_rank){.file = b200_format("%s", file),
                              .rank = trace->rank,
                              .world = trace->world,
                              .partial = trace->partial != NULL,
                              .events = trace->events,
                              .kind_count = trace->kind_count};
  memcpy(row->kind_names, trace->kinds, sizeof(row->kind_names));
  size_t count = without_last_step ? kineto_without_last_step(trace, trace->ops, trace->op_count) : trace->op_count;
  kineto_times(trace->ops, count, &row->times, row->kinds);
  sum_steps(row, trace, trace->ops, count);
}

static int read_one(struct kineto_ranks *ranks, const char *path, const char *name, bool without_last_step) {
  struct kineto_trace trace;
  int error = kineto_trace_open(&trace, path);
  if (error)
    return error;
  char *file = ascii(b200_format("%s", name));
  if (trace.is_trace) {
    add_notes(ranks, file, &trace);
    add_rank(ranks, file, &trace, without_last_step);
  } else {
    note(ranks, "%s: is no trace of PyTorch's profiler (it has no traceEvents)", file);
  }
  free(file);
  kineto_trace_free(&trace);
  return 0;
}

static bool ends_with(const char *name, const char *end) {
  size_t length = strlen(name), end_length = strlen(end);
  return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

static int is_trace_name(const struct dirent *entry) {
  return ends_with(entry->d_name, ".json") || ends_with(entry->d_name, ".json.gz");
}

static int read_folder(struct kineto_ranks *ranks, const char *folder, bool without_last_step) {
  struct dirent **entries;
  int count = scandir(folder, &entries, is_trace_name, alphasort);
  if (count < 0)
    return errno;
  for (int i = 0; i < count; i++) {
    char *path = b200_format("%s/%s", folder, entries[i]->d_name);
    struct stat stat_;
    int error = stat(path, &stat_) ? errno : !S_ISREG(stat_.st_mode) ? EINVAL : 0;
    error = error ? error : read_one(ranks, path, entries[i]->d_name, without_last_step);
    if (error)
      note(ranks, "%s: %s", entries[i]->d_name, error == EINVAL ? "is no file" : strerror(error));
    free(path);
    free(entries[i]);
  }
  free(entries);
  return 0;
}

static int by_rank(const void *a, const void *b) {
  const struct kineto_rank *left = a, *right = b;
  if (left->rank != right->rank)
    return left->rank < right->rank ? -1 : 1;
  return strcmp(left->file, right->file);
}

static void note_doubles(struct kineto_ranks *ranks) {
  for (size_t i = 1; i < ranks->count; i++)
    if (ranks->rows[i].rank >= 0 && ranks->rows[i].rank == ranks->rows[i - 1].rank)
      note(ranks, "%s and %s are both of rank %" PRId64 "; HTA takes one of them", ranks->rows[i - 1].file,
           ranks->rows[i].file, ranks->rows[i].rank);
}

int kineto_ranks_read(const char *path, bool without_last_step, struct kineto_ranks *ranks) {
  struct stat stat_;
  *ranks = (struct kineto_ranks){0};
  if (stat(path, &stat_) != 0)
    return errno;
  const char *slash = strrchr(path, '/');
  int error = S_ISDIR(stat_.st_mode) ? read_folder(ranks, path, without_last_step)
                                     : read_one(ranks, path, slash ? slash + 1 : path, without_last_step);
  if (ranks->count)
    qsort(ranks->rows, ranks->count, sizeof(*ranks->rows), by_rank);
  note_doubles(ranks);
  return error;
}

void kineto_ranks_free(struct kineto_ranks *ranks) {
  for (size_t i = 0; i < ranks->count; i++) {
    free(ranks->rows[i].file);
    free(ranks->rows[i].steps);
  }
  for (size_t i = 0; i < ranks->note_count; i++)
    free(ranks->notes[i]);
  free(ranks->rows);
  free(ranks->notes);
}
