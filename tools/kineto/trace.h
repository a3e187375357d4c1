/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One trace of PyTorch's profiler (Kineto), as much of it as tells what the GPU did: 48 bytes for an operation, 16 for a
 * launch; all else goes by. Times are integer nanoseconds, read without rounding from the microseconds with decimals that
 * stand there.
 *
 * A trace that ends early or is damaged is right about what comes before, and `partial` says so.
 *
 * Memory belongs to the struct until kineto_trace_free(). Ends the process when memory runs out. Not thread-safe, no global
 * state.
 */
#ifndef B200_KINETO_TRACE_H
#define B200_KINETO_TRACE_H

#include "tools/kineto/classify.h"
#include "tools/kineto/scan.h"

#define KINETO_KINDS_MAX 32 /* more kinds of collectives count as the last one */
#define KINETO_NOT_LAUNCHED INT64_MAX

struct kineto_op {
  int64_t start_ns, end_ns;
  int64_t correlation; /* -1: none */
  int64_t launch_ns;   /* when the host asked for it; KINETO_NOT_LAUNCHED: the trace does not say */
  int64_t bus_bytes;   /* of a collective, as bus bandwidth counts them; 0: not said */
  int32_t step;        /* index into `steps`: the one in which the host asked for it; -1: none */
  uint8_t class;       /* enum kineto_class */
  uint8_t kind;        /* of a collective: index into `kinds` */
};

/* A ProfilerStep#N of the host. */
struct kineto_step {
  int64_t number, start_ns, end_ns;
};

struct kineto_launch {
  int64_t correlation, start_ns;
};

struct kineto_trace {
  int64_t rank, world; /* -1: not said */
  struct kineto_op *ops;
  struct kineto_step *steps;
  struct kineto_launch *launches;
  size_t op_count, step_count, launch_count;
  char kinds[KINETO_KINDS_MAX][48]; /* printable ASCII */
  unsigned kind_count;
  uint64_t events;
  bool is_trace; /* it has traceEvents */
  /* What was left out or is told differently elsewhere: */
  uint64_t invalid;     /* GPU operations without a time or duration, or with an impossible one */
  uint64_t hta_differs; /* GPU operations that HTA classes otherwise */
  uint64_t hta_extra;   /* other events with a stream, which HTA counts as GPU operations */
  char hta_extra_category[32];
  const char *partial; /* why it could not be read to its end, else NULL */
  uint64_t partial_at; /* byte, uncompressed */
};

/* Reads a trace from `read` until its end. Afterwards `ops` are sorted by start and `steps` by start. */
void kineto_trace_read(struct kineto_trace *trace, kineto_read read, void *from);

/* The same from a file, gzip or not. 0 or an errno. */
int kineto_trace_open(struct kineto_trace *trace, const char *path);

void kineto_trace_free(struct kineto_trace *trace);

#endif
