/* SPDX-License-Identifier: Apache-2.0 */
/* What the decoders share: names of columns and tags, numbers, the form of a file. */
#include "tools/compare/sources.h"

#include <ctype.h>
#include <langinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES 64

const char *const compare_loss_names[] = {"loss",
                                          "train/loss",
                                          "train_loss",
                                          "training_loss",
                                          "training loss",
                                          "train loss",
                                          "training/loss",
                                          "loss/train",
                                          "lm loss",
                                          "lm_loss",
                                          "train/lm_loss",
                                          "loss_metrics/global_avg_loss",
                                          "global_avg_loss",
                                          "train_loss_step",
                                          "train/loss_step",
                                          "loss_step",
                                          "reduced_train_loss",
                                          "train/total_loss",
                                          "total_loss",
                                          "train/train_loss",
                                          "value", /* TensorBoard's own CSV */
                                          NULL};
const char *const compare_step_names[] = {
    "step", "global_step", "train/global_step", "trainer/global_step", "_step",       "iteration", "iter",
    "it",   "steps",       "train_step",        "train/step",          "global step", NULL};
const char *const compare_norm_names[] = {"grad_norm", "train/grad_norm", "grad norm",     "grad-norm",        "gradnorm",
                                          "gnorm",     "gradient_norm",   "gradient norm", "global_grad_norm", NULL};
const char *const compare_rate_names[] = {
    "tokens_per_s",    "tokens_per_sec",          "tokens_per_second",       "tokens/s", "tokens/sec", "tok/s", "tps",
    "throughput(tps)", "train_tokens_per_second", "train/tokens_per_second", NULL};

int compare_name_place(const char *const *names, const char *name) {
  for (int i = 0; names[i]; i++)
    if (strcasecmp(names[i], name) == 0)
      return i;
  return -1;
}

void compare_one_line(char *text) {
  for (; *text; text++)
    if ((*text >= 0 && *text < ' ') || *text == 0x7f)
      *text = '?';
}

void compare_note(char ***notes, size_t *count, const char *format, ...) {
  char *text;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&text, format, arguments) < 0)
    exit(3);
  va_end(arguments);
  compare_one_line(text);
  *notes = b200_grow(*notes, *count, sizeof(**notes));
  (*notes)[(*count)++] = text;
}

void compare_values_free(struct compare_values *values) {
  for (size_t i = 0; i < values->note_count; i++)
    free(values->notes[i]);
  free(values->notes);
  free(values->list);
  free(values->name);
  memset(values, 0, sizeof(*values));
}

/* ---- numbers */

static bool groups_digits(const char *comma) {
  return isdigit((unsigned char)comma[1]) && isdigit((unsigned char)comma[2]) && isdigit((unsigned char)comma[3]) &&
         !isdigit((unsigned char)comma[4]);
}

const char *compare_number(const char *at, bool comma, double *out) {
  char text[NUMBER_BYTES], *end;
  size_t places[NUMBER_BYTES], used = 0; /* where each character of `text` came from */
  for (const char *from = at; used < sizeof(text) - 1 && *from; from++) {
    char c = *from;
    if (comma && (c == ',' || c == '.')) {
      if (c == '.')
        break;
      c = '.';
    } else if (c == ',' && used && groups_digits(from)) {
      continue;
    }
    if (!isalnum((unsigned char)c) && !strchr("+-.", c))
      break;
    places[used] = (size_t)(from - at);
    text[used++] = c == '.' ? *nl_langinfo(RADIXCHAR) : c; /* strtod() wants the locale's */
  }
  text[used] = '\0';
  *out = strtod(text, &end);
  return end == text ? NULL : at + places[end - text - 1] + 1;
}

/* ---- forms */

static bool starts_with(const char *text, size_t length, const char *start) {
  return length >= strlen(start) && memcmp(text, start, strlen(start)) == 0;
}

/* Control characters that no printing program writes, but for a few that a full disk or a killed job leave. */
static bool is_binary(const char *start, size_t length) {
  size_t strange = 0;
  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)start[i];
    strange += c < ' ' && !(c >= '\a' && c <= '\r') && c != '\033';
  }
  return strange > length / 64;
}

static bool is_trainer_state(const char *start, size_t length) {
  size_t at = 0;
  while (at < length && isspace((unsigned char)start[at]))
    at++;
  if (at < length && start[at] == '{')
    return memmem(start, length, "\"log_history\"", strlen("\"log_history\"")) != NULL;
  if (at == length || start[at] != '[') /* the log_history by itself */
    return false;
  for (at++; at < length && isspace((unsigned char)start[at]);)
    at++;
  return at < length && start[at] == '{' && memmem(start, length, "\"step\"", strlen("\"step\""));
}

enum compare_form compare_form_of(const char *start, size_t length) {
  if (length == 0)
    return FORM_EMPTY;
  if (starts_with(start, length, "{\"t\":"))
    return FORM_LOG;
  if (compare_is_tensorboard(start, length))
    return FORM_TENSORBOARD;
  if (is_binary(start, length))
    return FORM_BINARY;
  if (is_trainer_state(start, length))
    return FORM_TRAINER_STATE;
  return compare_is_csv(start, length) ? FORM_CSV : FORM_TEXT;
}
