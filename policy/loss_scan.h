/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the loss, the step, the gradient norm and the tokens per second in a line that a training job prints.
 *
 * Built-in forms (names in any case):
 *   Hugging Face   {'loss': 2.31, 'grad_norm': 1.0, 'epoch': 0.1}, also with quoted values; JSON {"loss": 2.31, "step": 3}
 *   torchtitan     step:  1  loss:  8.1234  grad_norm: …  tps: 1,234
 *   Megatron       iteration  10/ 100 | … | lm loss: 6.5E+00 | …
 *   Lightning      Epoch 0:  10%|… | 1/10 [00:01<00:09, v_num=0, train_loss_step=2.31]
 *   litgpt         Epoch 1 | iter 16 step 2 | loss train: 10.5, val: n/a | …
 *   generic        step 3 … loss 2.31, it 3 loss 2.31, loss=2.31, train loss: 2.31
 * Not a training loss: eval_loss, val_loss, test loss, validation loss …, and the summary that ends a Hugging Face run
 * ('train_runtime').
 *
 * ANSI escapes are skipped, "1,234" is 1234, nan and inf are losses. Of a line with carriage returns the last part that
 * has a loss counts.
 *
 * Thread-safety: pure functions of their arguments. b200_loss_scan() neither allocates nor locks. The custom pattern uses
 * the C library's regexec(), which allocates (glibc 2.36).
 */
#ifndef B200_LOSS_SCAN_H
#define B200_LOSS_SCAN_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define B200_LOSS_LINE_BYTES 2048 /* what follows in a longer part of a line is not looked at */

struct b200_loss {
  double loss;         /* as printed; may be NaN or infinite */
  int64_t step;        /* as printed; -1 when the line has none */
  double tokens_per_s; /* as printed; 0 when the line has none */
  double grad_norm;    /* as printed; NaN when the line has none, or no number */
};

/* True when `line` (length bytes, without its newline; any bytes) has a training loss; fills `out`. */
bool b200_loss_scan(const char *line, size_t length, struct b200_loss *out);

/* A pattern of the user (B200OPT_LOSS_REGEX) instead of the built-in forms. */
struct b200_loss_pattern {
  regex_t regex;
};

/* Compiles a POSIX extended regular expression, in which \d \s \w \D \S \W also work; group 1 is the loss. False: `error`
   says in one line what is wrong (no group 1, Perl syntax, …), and `out` holds nothing. Destroy what was compiled. */
bool b200_loss_pattern_compile(struct b200_loss_pattern *out, const char *text, char *error, size_t error_bytes);

/* As b200_loss_scan(); step, gradient norm and tokens per second are still found by their built-in forms. */
bool b200_loss_pattern_scan(const struct b200_loss_pattern *pattern, const char *line, size_t length, struct b200_loss *out);
void b200_loss_pattern_destroy(struct b200_loss_pattern *pattern);

#endif
