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

#define B200_LOG_FORMAT 1 /* the newest that is known; older ones are read for ever */

/*
 * One line, decoded: a member TYPE_NAME for every B200_FIELD(TYPE, NAME, KIND) of record.def, so that the reader cannot miss
 * one. Fields that the line lacks are 0, "" or NULL; header_rank, _world, _local_rank and step_hbm_used are -1.
 */
#define B200_MEMBER_INT(name) int64_t name;
#define B200_MEMBER_REAL(name) double name;
#define B200_MEMBER_TEXT(name) const char *name;
#define B200_MEMBER_OBJECT(name) json_t *name;
#define B200_RECORD(type, help)
#define B200_FIELD(type, name, kind, help) B200_MEMBER_##kind(type##_##name)
struct b200_log_line {
#include "interpose/record/record.def"
};
#undef B200_FIELD
#undef B200_RECORD
#undef B200_MEMBER_INT
#undef B200_MEMBER_REAL
#undef B200_MEMBER_TEXT
#undef B200_MEMBER_OBJECT

struct b200_log_step {
  int64_t gen, step, period, t_ns, dur_ns;
  int64_t gemm_calls, gemm_flops, coll_calls, coll_bytes, alloc_calls;
  int64_t hbm_used; /* -1: not asked */
  json_t *hbm;      /* owner: bytes; may be NULL */
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
};

struct b200_log_oom {
  char *owner;
  int64_t bytes, t_ns;
};

struct b200_log_stack {
  char *owner, *frames;
  int64_t count, bytes;
};

/* A text and how often: warnings, and line types with the number of lines dropped. */
struct b200_log_text {
  char *text;
  int64_t count;
};

struct b200_log {
  char *path;
  bool node;    /* the virtual node's own count, not the shim's */
  bool partial; /* no `end` line: the process was killed, or still runs */
  char *order;  /* of the node's count, "" without; and its seed, races, modelled time */
  int64_t seed, races, modelled_ns;
  int64_t lines;

  json_t *header;                                /* as written; NULL when the file has none */
  const char *producer, *run, *arm, *host, *gpu; /* of the header; "" without one */
  int64_t pid, rank, world, unix_ns;

  /* Steps of the generation that covers most operations (most steps times period), in file order. */
  struct b200_log_step *steps;
  const char *step_source; /* coll, gemm, told; "" without steps */
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
  struct b200_log_stack *stacks;
  struct b200_log_text *drops, *warnings;
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
void b200_logs_free(struct b200_logs *logs);

/* Decodes one line into `out`, which borrows from `object`. Returns the index of its type in record.def (enum
   b200_record_type), or -1 when the type is unknown. `unknown_field` (may be NULL) gets the name of a field that record.def
   does not have, or NULL. */
int b200_log_line_decode(json_t *object, struct b200_log_line *out, const char **unknown_field);

/* Memory or the end of the process, for the command too: `count` elements of `size` bytes, more than `*array` holds. */
void *b200_grow(void *array, size_t count, size_t size);
char *b200_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* a + b, kept within int64_t: a log may hold any number. */
int64_t b200_add(int64_t a, int64_t b);

#endif
