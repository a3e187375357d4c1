/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads logs (record.def) for the command: those of libb200opt.so and those in which the virtual node kept its own count.
 *
 * A struct b200_logs holds one struct b200_log per file, with that file's lines added up; nothing is summed over files. What
 * could not be understood is skipped and becomes a note ("FILE:LINE: …", one per file and kind); a log cut off anywhere is
 * right about what it contains, and `partial`.
 *
 * Numbers beyond int64_t, and sums of such, stay at its bounds.
 *
 * Text and objects inside belong to the struct and live until b200_logs_free(). Allocates; ends the process with a message
 * when memory runs out. Not thread-safe, no global state. Not for the shim: it uses jansson.
 */
#ifndef B200_RECORD_READER_H
#define B200_RECORD_READER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/call.h"

#define B200_LOG_FORMAT 1 /* the newest that is known; older ones are read for ever */

/* Device times of one step, as in record.def. */
struct b200_log_time {
  int64_t t_ns, dev_ns;
  int64_t colls, comm_ns, busy_ns, blocked_ns, queued_ns;
  int64_t gemms; /* 0: none were timed in it, and the rest is -1 */
  int64_t gemm_ns, uncovered_ns, host_ns, start_ns, starved;
};

struct b200_log_step {
  int64_t gen, step, period, t_ns, dur_ns;
  int64_t gemm_calls, gemm_flops, coll_calls, coll_bytes, alloc_calls;
  int64_t hbm_used;              /* -1: not asked */
  int64_t hbm[B200_OWNER_COUNT]; /* bytes held */
  bool timed;                    /* `time` holds something */
  bool first, interrupted;       /* no ordinary step: the first; evaluation, checkpoint or the like came before it */
  bool last;                     /* … none follows: it ends with its last operation, earlier than others */
  int64_t optimizer;             /* how often PyTorch's optimizer stepped in it, as far as that is known */
  struct b200_log_time time;
};

struct b200_log_gemm {
  char *api, *role, *ta, *tb, *a, *b, *d, *compute, *epilogue;
  char *plan, *reason, *wanted;               /* "" in logs from before conversion, and in the node's */
  char *would_auto, *would_fp8, *would_mxfp8; /* "FORMAT:REASON" of calls that were only observed, else "" */
  int64_t m, n, k, batch;
  int64_t calls, flops, model_native_ns, model_narrow_ns;
};

/* A shape in a narrow format: audited calls, or a demotion. */
struct b200_log_audit {
  char *role, *ta, *tb, *plan;
  int64_t m, n, k, batch;
  int64_t calls;
  double error; /* the largest; -1: one was not finite */
};
struct b200_log_guard {
  char *role, *ta, *tb, *plan, *what;
  int64_t m, n, k, batch;
  int64_t applied, step, t_ns;
};

/* Device memory for quantised operands, as last written. */
struct b200_log_workspace {
  int64_t bytes, capture_bytes, arenas, limit, refused;
};

/* Texts of the following belong to the log's `texts`; equal ones are the same pointer. */

/* How collectives were timed from a line on. */
struct b200_log_timing {
  const char *mode, *why, *clock;
  int64_t every, clock_ns;
};

struct b200_log_comm {
  const char *id, *parent;
  int64_t nranks, rank; /* rank -1: the log has operations of it, but not its line */
};

/* Collectives of one kind, with the times of those that were timed. */
struct b200_log_kind {
  const char *op, *dtype;
  int64_t nranks;
  int64_t calls, bytes, dur_ns, blocked_ns, queued_ns;
};

/* A timed collective. Its times lie within +-2^61, 0 <= blocked <= dur and 0 <= queued. */
struct b200_log_op {
  int64_t step, seq, t_ns, dur_ns, blocked_ns, queued_ns, bytes, group, stream;
  uint32_t comm, kind; /* places in comms and kinds */
  int64_t gen;
};

struct b200_log_untimed {
  const char *why;
  int64_t calls;
};

struct b200_log_graph {
  int64_t launches, timed, dur_ns;
};

/* What the sources say of the step boundaries, added up; `agree` of `asked` as last written. */
struct b200_log_confidence {
  int64_t lines, agree, asked;
  struct b200_log_source {
    const char *name;
    int64_t steps;
  } * sources;
  size_t source_count;
};

struct b200_log_gpu {
  int64_t t_ns, util_pct, mem_util_pct, mem_used, mem_total, power_mw, sm_mhz, temp_c, throttle;
};

/* What the timing costs, as last measured; steps 0: it was not. */
struct b200_log_overhead {
  int64_t steps, on_ns, off_ns;
  double pct, noise_pct;
};

struct b200_log_coll {
  char *op, *dtype;
  int64_t nranks, calls, bytes;
};

struct b200_log_alloc {
  char *owner;
  int64_t current, peak, allocs, frees, failed;
};

struct b200_log_call {
  char *lib, *name;
  int64_t calls, errors, bytes;
};

struct b200_log_loss {
  int64_t step;
  double loss, tokens_per_s;
  int64_t t_ns;
  double grad_norm; /* NaN: not known */
};

struct b200_log_oom {
  char *owner, *why, *advice; /* advice: of a final one; else "" */
  int64_t bytes, t_ns, failures, final;
};

/* Allocations that were refused at first, added up. */
struct b200_log_retries {
  int64_t count, failures, dur_ns;
};

/* The pool of device memory, added up; the last three as last written. lines 0: there is none. */
struct b200_log_pool {
  int64_t lines;
  int64_t hits, misses, passed, waits, driver_calls, driver_ns, synchronisations, observed, retries, rescues, refused,
      failed, double_frees, released, released_bytes, unreturned, dropped, untracked;
  int64_t idle, idle_peak, pinned;
};

struct b200_log_stack {
  char *owner, *frames, *python; /* "" where Python has nothing to say */
  int64_t count, bytes;
};

/* A text and how often: warnings, and line types with the number of lines dropped. */
struct b200_log_text {
  char *text;
  int64_t count;
};

struct b200_log {
  char *path;
  bool node;       /* the virtual node's own count, not the shim's */
  bool is_virtual; /* of a job on the virtual node, whoever wrote it */
  bool partial;    /* no `end` line: the process was killed, or still runs */
  char *order;     /* of the node's count, "" without; and its seed, races, modelled time */
  int64_t seed, races, modelled_ns;
  int64_t lines;

  json_t *header;                                /* as written; NULL when the file has none */
  const char *producer, *run, *arm, *host, *gpu; /* of the header; "" without one */
  int64_t pid, rank, world, t_ns, unix_ns;

  /* Steps of the generation that covers most operations (most steps times period), in file order. */
  struct b200_log_step *steps;
  const char *step_source; /* coll, gemm, told; "" without steps */
  struct b200_log_op *ops; /* timed collectives in file order; step -1: of none of these steps */
  int64_t invalid_times;   /* `op` and `time` lines that cannot be true (an end before its start, …): left out */
  struct b200_log_timing *timings;
  struct b200_log_comm *comms;
  struct b200_log_kind *kinds;
  struct b200_log_untimed *untimed;
  struct b200_log_gpu *gpus; /* in file order */
  struct b200_log_graph graph;
  struct b200_log_confidence confidence;
  struct b200_log_overhead overhead;
  char **texts;
  struct b200_log_gemm *gemms;
  struct b200_log_audit *audits;
  struct b200_log_guard *guards; /* in file order */
  struct b200_log_workspace workspace;
  char *decisions;     /* hash over all decisions, as last written; NULL: none was made */
  int64_t bad_samples; /* sampled calls that the guard found bad */
  struct b200_log_coll *colls;
  struct b200_log_alloc *allocs;
  struct b200_log_call *calls;
  struct b200_log_loss *losses; /* a step printed again (progress bars) replaces its predecessor */
  struct b200_log_oom *ooms;
  struct b200_log_retries retries;
  struct b200_log_pool pool;
  struct b200_log_stack *stacks;
  int64_t blocks; /* lines of the memory trace */
  struct b200_log_text *drops, *warnings;
  size_t op_count, timing_count, comm_count, kind_count, untimed_count, gpu_count, text_count;
  size_t step_count, gemm_count, audit_count, guard_count, coll_count, alloc_count, call_count, loss_count, oom_count,
      stack_count, drop_count, warning_count;
};

/* What a job printed: losses found in a *.out file. */
struct b200_output {
  char *path;
  struct b200_log_loss
      *losses; /* in file order; t_ns is 0; a line without a step gets its number among the losses, from 1 */
  size_t loss_count;
};

struct b200_logs {
  struct b200_log *logs; /* by path */
  size_t log_count;
  struct b200_output *outputs; /* by path */
  size_t output_count;
  char **notes; /* what was wrong, one line each */
  size_t note_count;
};

/* Reads every *.jsonl and *.out below `path` (or the one log that `path` is), each file once; links to folders are not
   followed. Returns 0, or the errno with which `path` could not be opened; `out` is valid, and empty, then too. Files that
   are no logs are left out with a note. */
int b200_logs_read(const char *path, struct b200_logs *out);

/* Reads one more log, whatever the name of its file, to the end of `logs` (zeroed at first); a note when it is none. */
void b200_logs_add(struct b200_logs *logs, const char *path);
void b200_logs_free(struct b200_logs *logs);

/* Memory or the end of the process, for the command too: room for one element of `size` bytes beyond the `count` of `array`;
   `count` zeroed ones. */
void *b200_grow(void *array, size_t count, size_t size);
void *b200_zeroed(size_t count, size_t size);
char *b200_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* a + b, kept within int64_t: a log may hold any number. */
int64_t b200_add(int64_t a, int64_t b);

#endif
