/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the reading of an arm (run.h): what one file says, before it becomes part of a run.
 *
 * The decoders take the bytes of a file and know no names, so that they can be fuzzed. Any bytes give values or one line
 * that says what is wrong; damage in the middle is skipped and noted. Thread-safe; memory as in run.h.
 */
#ifndef B200_COMPARE_SOURCES_H
#define B200_COMPARE_SOURCES_H

#include "tools/compare/run.h"

#define COMPARE_NO_LABEL (-1)               /* rank of a value in a file that does not say whose it is */
#define COMPARE_STEP_MAX (INT64_C(1) << 53) /* larger ones are not steps */

/* A loss as it stands in a file, in the order of the file. */
struct compare_value {
  int64_t step;
  double loss, grad_norm, tokens_per_s; /* as in compare_point */
  double t_s;                           /* since the file's first; NAN */
  int rank;
  bool redrawn; /* of a progress bar: replaces what it showed for the same step */
};

struct compare_values {
  struct compare_value *list;
  size_t count;
  bool counted;  /* the file has no steps: they are ordinals from 1 */
  char *name;    /* of the column or tag; NULL for printed losses */
  double unix_s; /* when it began; NAN: not known */
  char **notes;
  size_t note_count;
};

void compare_values_free(struct compare_values *values);

/* Control characters, which names of files and runs may have, become '?'. */
void compare_one_line(char *text);
__attribute__((format(printf, 3, 4))) void compare_note(char ***notes, size_t *count, const char *format, ...);

/* Names under which a loss, a step, … are known, best first; lower case, ends with NULL. */
extern const char *const compare_loss_names[];
extern const char *const compare_step_names[];
extern const char *const compare_norm_names[];
extern const char *const compare_rate_names[];
/* Place of `name` (any case) in such a table, or -1. */
int compare_name_place(const char *const *names, const char *name);

/* The forms of a file, by its first bytes (at least B = 64 KiB of it, or all). */
enum compare_form {
  FORM_EMPTY,
  FORM_LOG,
  FORM_TENSORBOARD,
  FORM_TRAINER_STATE,
  FORM_CSV,
  FORM_TEXT,
  FORM_BINARY /* none of these */
};
#define COMPARE_FORM_BYTES 65536
enum compare_form compare_form_of(const char *start, size_t length);

/* True: `out` has at least one value. False: `*error` is one line for the caller to free(), and `out` is empty. `tag` may
   be NULL. */
typedef bool compare_decode(const char *data, size_t size, const char *tag, struct compare_values *out, char **error);
compare_decode compare_decode_tensorboard, compare_decode_trainer_state, compare_decode_csv, compare_decode_output;

/* The form's own test of its start, for compare_form_of(). */
bool compare_is_tensorboard(const char *start, size_t length);
bool compare_is_csv(const char *start, size_t length);
/* Two rows of as many columns, the second with a number: a table, though no name in it is known. */
bool compare_is_table(const char *start, size_t length);

/* Number at `at` of a text that ends with '\0': 1,234.5 · 1.5e-3 · nan · inf. Returns its end, or NULL. With `comma`, a
   comma is the decimal point. */
const char *compare_number(const char *at, bool comma, double *out);

/* Curve of a run (rules in run.h) from values in the order in which they came to be, several files' one after the other.
   Fills points, point_count, decimals, loss_ranks, resumes and ended_s, and adds notes. */
void compare_curve(const struct compare_value *values, size_t count, struct compare_run *run);

/* One process's share of a run, read from its log. */
struct compare_log_file {
  char *path;
  int64_t rank, unix_ns;
};

/* Reads the logs of one run (in any order) and what it printed into `out`: all but name and notes on names. */
void compare_read_logs(const struct compare_log_file *files, size_t count, struct compare_run *out);

#endif
