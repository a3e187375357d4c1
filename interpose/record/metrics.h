/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures that are said while the job runs: a line for a log that is read for metrics, as SageMaker does, and a file for
 * node-exporter's textfile collector. Names, units and help are in metrics.def alone.
 *
 * A *meter* holds the newest value of each metric. Any thread sets values at any time and never waits; the end of a step
 * asks for a line when one is due. The lines and the file are written by b200_meter_work() on the thread of the log's
 * writer, so a pipe or a file system that hangs never hangs the job.
 *
 * The line: ASCII, one write(2) of less than PIPE_BUF bytes, which a pipe that many processes share does not tear. Each
 * value ends with `;`, so that a line cut by its reader yields no half number. Absent values are left out. b200opt:
 * step=120; step_ms=412.300; blocked_comm_ms=18.400; hidden_pct=93.1; loss=2.314; Only rank 0 prints it. It goes past our
 * own hook of write(), and only into the file that was the stream at the start: a program may close it and get the same
 * number for a file of its own.
 *
 * The Prometheus file: one per rank, written beside its place and renamed. A file or stream that refuses is said once.
 */
#ifndef B200_RECORD_METRICS_H
#define B200_RECORD_METRICS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum b200_metric {
#define B200_METRIC(id, line, scale, places, prometheus, type, help) B200_METRIC_##id,
#include "interpose/record/metrics.def"
#undef B200_METRIC
  B200_METRIC_COUNT
};

enum { B200_METRICS_LINE_BYTES = 4096, B200_METRICS_FILE_BYTES = 16384 };

/* Values at one instant, in base units; what is not finite is absent. */
struct b200_metrics {
  double value[B200_METRIC_COUNT];
};

/* Labels of the Prometheus file; any text. */
struct b200_metrics_labels {
  int rank;
  char run[256], arm[256];
};

/* The line with its newline; its length, 0 when nothing is present. size ≥ B200_METRICS_LINE_BYTES. Pure. */
size_t b200_metrics_line(const struct b200_metrics *metrics, char *out, size_t size);

/* The file's text; its length. size ≥ B200_METRICS_FILE_BYTES. Pure. */
size_t b200_metrics_prometheus(const struct b200_metrics *metrics, const struct b200_metrics_labels *labels, char *out,
                               size_t size);

/* "-rRANK" put in front of the .prom at the end of `path`, or behind all of it. False: no room. Pure. */
bool b200_metrics_path(const char *path, int rank, char *out, size_t size);

enum { B200_METER_DUE = 8, B200_METER_PATH_BYTES = 4096 };

struct b200_meter {
  _Atomic uint64_t value[B200_METRIC_COUNT]; /* bits of doubles */
  int stream;                                /* descriptor of the lines; -1: none */
  dev_t stream_device;                       /* what it was at the start */
  ino_t stream_inode;
  int64_t every;
  struct b200_metrics_labels labels;
  char path[B200_METER_PATH_BYTES], temporary[B200_METER_PATH_BYTES + 32]; /* of the Prometheus file; "": none */
  void (*say)(const char *text);
  atomic_bool changed, ending; /* since the file was written; the process ends */
  time_t file_written_s;       /* CLOCK_MONOTONIC */
  bool stream_failed, file_said, waits;
  time_t waits_since_s;  /* for the end of a line of the job */
  pthread_mutex_t lock;  /* of what follows */
  atomic_uint due_count; /* lines that wait for the writer; also read without the lock */
  uint64_t due_first;    /* the oldest of them, in a ring */
  struct b200_metrics due[B200_METER_DUE];
};

struct b200_meter_config {
  int stream;             /* 1, 2; -1: no lines */
  int64_t every;          /* steps between two lines */
  const char *prometheus; /* path as configured, "" for none; the rank is put in */
  struct b200_metrics_labels labels;
  void (*say)(const char *text); /* a message to the user, from the writer's thread */
};

/* pre: `meter` is zeroed memory. Before it is started, and after it was started with nothing to write, the rest does
 * nothing. */
void b200_meter_start(struct b200_meter *meter, const struct b200_meter_config *config);

/* From any thread; not finite: absent from now on. */
void b200_meter_set(struct b200_meter *meter, enum b200_metric metric, double value);

/* A step has ended and its values are set. True: there is something to write, wake the thread that calls b200_meter_work().
   Takes the meter's own lock, a leaf, for the copy of a line that is due. */
bool b200_meter_step(struct b200_meter *meter, uint64_t step);

/* Writes the lines that are due; the file when values have changed, but at most once a second. On one thread.
   line_is_open: the job has begun a line on the stream, which Python does for each with PYTHONUNBUFFERED=1, and its end is
   waited for, for a second; then ours begins with a newline. */
void b200_meter_work(struct b200_meter *meter, bool line_is_open);

/* The process ends: the next b200_meter_work() writes the file once more. From any thread. */
void b200_meter_finish(struct b200_meter *meter);

#endif
