/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a trace: the same is read from it in any pieces, and the times that it gives fit each other. */
#include "tests/fuzz/fuzz.h"
#include "tools/kineto/overlap.h"

#include <stdlib.h>
#include <string.h>

struct source {
  const uint8_t *data;
  size_t left, piece;
};

static ptrdiff_t read_piece(void *from, void *to, size_t room) {
  struct source *source = from;
  size_t size = source->left < source->piece ? source->left : source->piece;
  size = size < room ? size : room;
  if (size)
    memcpy(to, source->data, size);
  source->data += size;
  source->left -= size;
  return (ptrdiff_t)size;
}

static void must(bool true_) {
  if (!true_)
    abort();
}

static void check_times(const struct kineto_times *times) {
  int64_t sum = 0;
  for (int i = 0; i < KINETO_CLASSES; i++) {
    must(times->class_ns[i] >= 0 && times->class_ns[i] <= times->busy_ns);
    sum = sum > INT64_MAX - times->class_ns[i] ? INT64_MAX : sum + times->class_ns[i];
  }
  must(times->busy_ns <= times->span_ns && times->busy_ns <= sum);
  must(times->overlapped_ns >= 0 && times->uncovered_ns >= 0);
  must(times->overlapped_ns <= times->class_ns[KINETO_COMPUTE]);
  must(times->overlapped_ns + times->uncovered_ns == times->class_ns[KINETO_COMMUNICATION]);
}

static void check_same(const struct kineto_trace *a, const struct kineto_trace *b) {
  must(a->op_count == b->op_count && a->step_count == b->step_count && a->events == b->events && a->rank == b->rank);
  must(a->is_trace == b->is_trace && a->partial_at == b->partial_at && a->kind_count == b->kind_count);
  must((a->partial == NULL) == (b->partial == NULL) && (!a->partial || strcmp(a->partial, b->partial) == 0));
  must(memcmp(a->kinds, b->kinds, sizeof(a->kinds)) == 0);
  for (size_t i = 0; i < a->op_count; i++)
    must(a->ops[i].start_ns == b->ops[i].start_ns && a->ops[i].end_ns == b->ops[i].end_ns &&
         a->ops[i].step == b->ops[i].step && a->ops[i].kind == b->ops[i].kind && a->ops[i].class == b->ops[i].class);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct kineto_trace whole, pieces;
  struct kineto_times times;
  struct kineto_kind kinds[KINETO_KINDS_MAX];
  kineto_trace_read(&whole, read_piece, &(struct source){data, size, SIZE_MAX});
  kineto_trace_read(&pieces, read_piece, &(struct source){data, size, 3});
  check_same(&whole, &pieces);
  kineto_times(whole.ops, whole.op_count, &times, kinds);
  check_times(&times);
  for (unsigned i = 0; i < KINETO_KINDS_MAX; i++)
    must(kinds[i].uncovered_ns >= 0 && kinds[i].uncovered_ns <= times.uncovered_ns &&
         kinds[i].total_ns >= kinds[i].uncovered_ns);
  size_t kept = kineto_without_last_step(&whole, whole.ops, whole.op_count);
  must(kept <= whole.op_count);
  kineto_times(whole.ops, kept, &times, NULL);
  check_times(&times);
  kineto_sort_by_step(whole.ops, kept);
  kineto_trace_free(&whole);
  kineto_trace_free(&pieces);
  return 0;
}
