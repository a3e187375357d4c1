/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the GPU did over a set of operations of one trace: unions of intervals, over all streams.
 *
 *   span        first start to last end                     HTA: kernel_time
 *   busy        something runs                              HTA: kernel_time - idle_time
 *   compute     a compute kernel runs, also when            HTA: compute_time
 *               something communicates meanwhile
 *   communication, memory   one of these runs
 *   overlapped  communication and compute run               HTA: comp_comm_overlap_ratio * communication
 *   uncovered   communication runs and no compute           exposed communication
 *
 * HTA's non_compute_time is busy - compute. idle = span - busy. uncovered = communication - overlapped.
 *
 * Integer nanoseconds throughout; sums that do not fit stay at INT64_MAX.
 */
#ifndef B200_KINETO_OVERLAP_H
#define B200_KINETO_OVERLAP_H

#include "tools/kineto/trace.h"

struct kineto_times {
  uint64_t ops[KINETO_CLASSES];
  int64_t span_ns, busy_ns, class_ns[KINETO_CLASSES], overlapped_ns, uncovered_ns;
};

/* Collectives of one kind. */
struct kineto_kind {
  uint64_t ops;
  int64_t total_ns;          /* sum of the durations */
  int64_t uncovered_ns;      /* of their union, what no compute covers */
  int64_t bus_bytes, bus_ns; /* of those whose bytes are said */
};

/* Operations sorted by start. `kinds`: one for each of the trace's, or NULL. */
void kineto_times(const struct kineto_op *ops, size_t count, struct kineto_times *times, struct kineto_kind *kinds);

/* Keeps of sorted operations those that HTA analyses by default: with two steps or more, those that the host asked for
   before the last of them began. Returns how many are left. */
size_t kineto_without_last_step(const struct kineto_trace *trace, struct kineto_op *ops, size_t count);

/* Sorts by step, and by start within a step. */
void kineto_sort_by_step(struct kineto_op *ops, size_t count);

#endif
