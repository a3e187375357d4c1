/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration: what the B200OPT_* variables of env.def and the launcher's own variables say.
 *
 * This is the only place of interpose/, policy/ and memory/ that looks at the environment; everything else asks here.
 * A struct b200_config is loaded once, before the first decision, and is const from then on: it holds copies, so that a
 * job that changes its environment later changes nothing.
 *
 * Ownership: the caller owns the struct; it holds no pointer to anything else. Nothing here allocates or writes to a
 * stream. Thread-safety: functions only read the environment; the caller makes sure that nobody calls setenv() meanwhile
 * (getenv's own rule). b200_config_load() opens and reads the file that B200OPT_CONFIG names, and may block on it.
 * Errors are never returned: a bad value leaves the default in place and one complaint as text.
 */
#ifndef B200_CONFIG_H
#define B200_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define B200_CONFIG_TEXT_BYTES 1024 /* longest TEXT or PATH value, with its NUL; SageMaker allows 512 */
#define B200_CONFIG_COMPLAINTS_MAX 16
#define B200_CONFIG_COMPLAINT_BYTES 384

/* Values of the CHOICE fields, in the order in which env.def accepts them. */
enum b200_mode { B200_MODE_ON, B200_MODE_OFF };
enum b200_precision {
  B200_PRECISION_OBSERVE,
  B200_PRECISION_NATIVE,
  B200_PRECISION_AUTO,
  B200_PRECISION_FP8,
  B200_PRECISION_MXFP8,
};
enum b200_strategy { B200_STRATEGY_PERFORMANT, B200_STRATEGY_ALWAYS };
/* B200OPT_FPROP, _DGRAD, _WGRAD. */
enum b200_role_precision { B200_ROLE_INHERIT, B200_ROLE_NATIVE, B200_ROLE_AUTO, B200_ROLE_FP8, B200_ROLE_MXFP8 };
enum b200_fp8_recipe { B200_FP8_CURRENT };
enum b200_grad_format { B200_GRAD_E5M2, B200_GRAD_E4M3 };
enum b200_mx_round { B200_MX_ROUND_RCEIL, B200_MX_ROUND_FLOOR, B200_MX_ROUND_EVEN };
enum b200_guard { B200_GUARD_ON, B200_GUARD_OFF, B200_GUARD_STRICT };
enum b200_memory_mode { B200_MEMORY_OBSERVE, B200_MEMORY_POOL, B200_MEMORY_OFF };
enum b200_memory_fill { B200_MEMORY_FILL_OFF, B200_MEMORY_FILL_ZERO, B200_MEMORY_FILL_POISON };
enum b200_stacks { B200_STACKS_OFF, B200_STACKS_ON };
enum b200_memory_trace { B200_MEMORY_TRACE_OFF, B200_MEMORY_TRACE_ON };
enum b200_loss_mode { B200_LOSS_ON, B200_LOSS_OFF };
enum b200_timing { B200_TIMING_AUTO, B200_TIMING_ON, B200_TIMING_SAMPLED, B200_TIMING_OFF };
enum b200_metrics_mode { B200_METRICS_OFF, B200_METRICS_STDOUT, B200_METRICS_STDERR };
enum b200_log_level { B200_LOG_SILENT, B200_LOG_WARN, B200_LOG_INFO };

/* One row of env.def. */
enum b200_env_type { B200_TYPE_CHOICE, B200_TYPE_INT, B200_TYPE_TEXT, B200_TYPE_PATH, B200_TYPE_FLAG };
enum b200_env_scope { B200_SCOPE_JOB, B200_SCOPE_NODE };
struct b200_env_row {
  enum b200_env_scope scope;
  enum b200_env_type type;
  const char *name;          /* "B200OPT_PRECISION" */
  const char *default_value; /* as text; "" means unset */
  const char *accepted;      /* CHOICE, FLAG: "a|b"; INT: "min..max"; else "" */
  const char *unit;          /* "" without one */
  const char *help;
};

/* Index of each JOB row in b200_config.origins, and its count. */
enum b200_env_index {
#define B200_INDEX_JOB(field) B200_ENV_##field,
#define B200_INDEX_NODE(field)
#define B200_ENV(scope, type, field, name, default_value, accepted, unit, help) B200_INDEX_##scope(field)
#include "policy/env.def"
#undef B200_ENV
#undef B200_INDEX_NODE
#undef B200_INDEX_JOB
  B200_ENV_JOB_COUNT
};

enum b200_origin { B200_ORIGIN_DEFAULT, B200_ORIGIN_ENVIRONMENT, B200_ORIGIN_FILE };

/*
 * One member per JOB row, named as its `field`: CHOICE int (of the enum above), INT int64_t, FLAG bool, TEXT and PATH
 * char[B200_CONFIG_TEXT_BYTES].
 */
struct b200_config {
#define B200_MEMBER_CHOICE(field) int field;
#define B200_MEMBER_INT(field) int64_t field;
#define B200_MEMBER_FLAG(field) bool field;
#define B200_MEMBER_TEXT(field) char field[B200_CONFIG_TEXT_BYTES];
#define B200_MEMBER_PATH(field) char field[B200_CONFIG_TEXT_BYTES];
#define B200_MEMBER_JOB(type, field) B200_MEMBER_##type(field)
#define B200_MEMBER_NODE(type, field)
#define B200_ENV(scope, type, field, name, default_value, accepted, unit, help) B200_MEMBER_##scope(type, field)
#include "policy/env.def"
#undef B200_ENV
#undef B200_MEMBER_NODE
#undef B200_MEMBER_JOB
#undef B200_MEMBER_PATH
#undef B200_MEMBER_TEXT
#undef B200_MEMBER_FLAG
#undef B200_MEMBER_INT
#undef B200_MEMBER_CHOICE
  struct {
    enum b200_origin by;
    int line; /* of the file, from 1; 0 otherwise */
  } origins[B200_ENV_JOB_COUNT];

  /* What was wrong, one line of ASCII each, without the "b200opt: " in front. */
  char complaints[B200_CONFIG_COMPLAINTS_MAX][B200_CONFIG_COMPLAINT_BYTES];
  int complaint_count;    /* lines in `complaints` */
  int complaints_dropped; /* further ones that had no room */
};

/* Loads every JOB row: environment, else the file that B200OPT_CONFIG names, else the default. An empty value counts as
   unset. Keeps errno. Never fails. */
void b200_config_load(struct b200_config *out);

/* The same from another environment: NAME=VALUE strings, ended by NULL. */
void b200_config_load_from(struct b200_config *out, char *const *environment);

/* All rows of env.def in its order, JOB and NODE. */
const struct b200_env_row *b200_env_rows(size_t *count);

/* The row of a JOB index. pre: index < B200_ENV_JOB_COUNT. */
const struct b200_env_row *b200_env_job_row(enum b200_env_index index);

/* True when `value` is what the row accepts; any text is, for TEXT and PATH, up to their length. */
bool b200_env_row_accepts(const struct b200_env_row *row, const char *value);

/* Effective value as text ("" for unset TEXT and PATH), written to `out` (cut to its size). Returns `out`. */
const char *b200_config_value(const struct b200_config *config, enum b200_env_index index, char *out, size_t size);

/* What set the value: "default", "environment" or "FILE:LINE". Returns `out`. */
const char *b200_config_origin(const struct b200_config *config, enum b200_env_index index, char *out, size_t size);

/* What the launcher says of this process. RANK, WORLD_SIZE, LOCAL_RANK; -1 when unset or not a number. And whether
   CUDA_DEVICE_MAX_CONNECTIONS=1. */
struct b200_launch {
  int rank;
  int world;
  int local_rank;
  bool single_connection;
};
void b200_launch_load(struct b200_launch *out);

/* Folder of the logs: B200OPT_LOG_DIR, else $SM_OUTPUT_DATA_DIR/b200opt, else ./b200opt-logs. Returns `out`. */
const char *b200_config_log_dir(const struct b200_config *config, char *out, size_t size);

/* Name of the run, fit for a file name ([A-Za-z0-9._-], others become '_'): B200OPT_RUN, else TORCHELASTIC_RUN_ID (not
   "none", torchrun's own default), else "run-<pid>-<start time in clock ticks>" of the parent process when RANK is set (the
   ranks of one launcher share it), of this process otherwise. Returns `out`. */
const char *b200_config_run_name(const struct b200_config *config, char *out, size_t size);

/* Value of LD_PRELOAD, "" when unset. Valid until the environment changes. */
const char *b200_config_preload(void);

/* Calls `visit` for each NCCL_* variable of the environment, in its order; `name` is not NUL-terminated. */
typedef void (*b200_env_visit)(void *context, const char *name, size_t name_length, const char *value);
void b200_config_each_nccl(b200_env_visit visit, void *context);

#endif
