/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/overlap.h"

#include "interpose/record/reader.h"

#include <stdlib.h>
#include <string.h>

struct span {
  int64_t start, end;
};

/* Disjoint, ascending, none empty. */
struct spans {
  struct span *rows;
  size_t count;
  int64_t total;
};

/* ALL or a class: which operations a union is of; with `kind` >= 0 the collectives of that kind only. */
#define ALL KINETO_CLASSES

static struct spans unite(const struct kineto_op *ops, size_t count, unsigned class, int kind) {
  struct spans spans = {.rows = b200_zeroed(count + 1, sizeof(*spans.rows))};
  for (size_t i = 0; i < count; i++) {
    const struct kineto_op *op = &ops[i];
    if ((class != ALL && op->class != class) || (kind >= 0 && op->kind != kind) || op->start_ns == op->end_ns)
      continue;
    struct span *last = spans.count ? &spans.rows[spans.count - 1] : NULL;
    if (last && op->start_ns <= last->end)
      last->end = op->end_ns > last->end ? op->end_ns : last->end;
    else
      spans.rows[spans.count++] = (struct span){op->start_ns, op->end_ns};
  }
  for (size_t i = 0; i < spans.count; i++)
    spans.total += spans.rows[i].end - spans.rows[i].start;
  return spans;
}

static int64_t intersect(const struct spans *a, const struct spans *b) {
  int64_t total = 0;
  for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
    const struct span *left = &a->rows[i], *right = &b->rows[j];
    int64_t start = left->start > right->start ? left->start : right->start;
    int64_t end = left->end < right->end ? left->end : right->end;
    total += end > start ? end - start : 0;
    if (left->end < right->end)
      i++;
    else
      j++;
  }
  return total;
}

static void add_to_kinds(const struct kineto_op *ops, size_t count, struct kineto_kind *kinds) {
  for (size_t i = 0; i < count; i++) {
    if (ops[i].class != KINETO_COMMUNICATION)
      continue;
    struct kineto_kind *kind = &kinds[ops[i].kind];
    int64_t duration = ops[i].end_ns - ops[i].start_ns;
    kind->ops++;
    kind->total_ns = b200_add(kind->total_ns, duration);
    if (ops[i].bus_bytes) {
      kind->bus_bytes = b200_add(kind->bus_bytes, ops[i].bus_bytes);
      kind->bus_ns = b200_add(kind->bus_ns, duration);
    }
  }
}

void kineto_times(const struct kineto_op *ops, size_t count, struct kineto_times *times, struct kineto_kind *kinds) {
  *times = (struct kineto_times){0};
  int64_t last_end = INT64_MIN;
  for (size_t i = 0; i < count; i++) {
    times->ops[ops[i].class]++;
    last_end = ops[i].end_ns > last_end ? ops[i].end_ns : last_end;
  }
  times->span_ns = count ? last_end - ops[0].start_ns : 0;
  struct spans all = unite(ops, count, ALL, -1);
  times->busy_ns = all.total;
  free(all.rows);
  struct spans memory = unite(ops, count, KINETO_MEMORY, -1);
  times->class_ns[KINETO_MEMORY] = memory.total;
  free(memory.rows);
  struct spans compute = unite(ops, count, KINETO_COMPUTE, -1);
  struct spans communication = unite(ops, count, KINETO_COMMUNICATION, -1);
  times->class_ns[KINETO_COMPUTE] = compute.total;
  times->class_ns[KINETO_COMMUNICATION] = communication.total;
  times->overlapped_ns = intersect(&communication, &compute);
  times->uncovered_ns = communication.total - times->overlapped_ns;
  free(communication.rows);
  if (kinds) {
    memset(kinds, 0, KINETO_KINDS_MAX * sizeof(*kinds));
    add_to_kinds(ops, count, kinds);
    for (int i = 0; i < KINETO_KINDS_MAX; i++) {
      if (!kinds[i].ops)
        continue;
      struct spans kind = unite(ops, count, KINETO_COMMUNICATION, i);
      kinds[i].uncovered_ns = kind.total - intersect(&kind, &compute);
      free(kind.rows);
    }
  }
  free(compute.rows);
}

size_t kineto_without_last_step(const struct kineto_trace *trace, struct kineto_op *ops, size_t count) {
  if (trace->step_count < 2)
    return count;
  int64_t last_start = trace->steps[trace->step_count - 1].start_ns;
  size_t kept = 0;
  for (size_t i = 0; i < count; i++)
    if (ops[i].launch_ns < last_start)
      ops[kept++] = ops[i];
  return kept;
}

static int by_step(const void *a, const void *b) {
  const struct kineto_op *left = a, *right = b;
  if (left->step != right->step)
    return left->step < right->step ? -1 : 1;
  return (left->start_ns > right->start_ns) - (left->start_ns < right->start_ns);
}

void kineto_sort_by_step(struct kineto_op *ops, size_t count) {
  if (count)
    qsort(ops, count, sizeof(*ops), by_step);
}
