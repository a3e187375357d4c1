/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that a job printed. */
#include "tools/compare/sources.h"

#include "policy/loss_scan.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_BYTES 512 /* a label stands before the loss, within so much of a line */
#define RANK_MAX 1000000

/* What stands before the number of a rank in torchrun's, PyTorch's and the frameworks' prefixes. */
static const char *const label_words[] = {"rank", "local_rank", "default", "trainer", "worker"};

static bool read_rank(const char *at, const char *end, const char **after, int *rank) {
  int value = 0;
  const char *from = at;
  while (at < end && isdigit((unsigned char)*at) && value < RANK_MAX)
    value = value * 10 + (*at++ - '0');
  *after = at;
  *rank = value;
  return at != from && (at == end || !isalnum((unsigned char)*at));
}

/* "[rank0]:", "[default1]:", "rank 1", "Rank: 3", "rank=2": the word and a number. */
static bool read_label(const char *word, size_t length, const char *end, int *rank) {
  const char *at = word + length, *after;
  bool known = false;
  for (size_t i = 0; i < sizeof(label_words) / sizeof(label_words[0]); i++)
    known = known || (strlen(label_words[i]) == length && strncasecmp(label_words[i], word, length) == 0);
  if (!known)
    return false;
  while (at < end && strchr(" =:#", *at) && *at)
    at++;
  return read_rank(at, end, &after, rank);
}

/* Rank whose line this is, as a prefix or a word before the loss says; COMPARE_NO_LABEL without. `has_step`: a bare number
   in front is then srun's label ("3: step 7 loss …"), not the step. */
static int label_of(const char *line, size_t length, bool has_step) {
  const char *end = line + (length < LABEL_BYTES ? length : LABEL_BYTES), *at = line, *after;
  int rank;
  while (at < end && *at == ' ')
    at++;
  if (has_step && read_rank(at, end, &after, &rank) && end - after > 1 && after[0] == ':' && after[1] == ' ')
    return rank;
  if (end - at > 3 && strncmp(at, "[1,", 3) == 0 && read_rank(at + 3, end, &after, &rank) && after < end && *after == ']')
    return rank; /* mpirun --tag-output */
  while (at < end) {
    const char *word = at;
    while (at < end && (isalpha((unsigned char)*at) || *at == '_'))
      at++;
    size_t word_length = (size_t)(at - word);
    if (word_length == 4 && strncasecmp(word, "loss", 4) == 0)
      break;
    if (word_length && read_label(word, word_length, end, &rank))
      return rank;
    at += word_length == 0;
  }
  return COMPARE_NO_LABEL;
}

struct printed {
  struct compare_values *out;
  struct compare_value *unnumbered; /* of lines without a step */
  size_t unnumbered_count;
};

static void take_part(struct printed *printed, const char *part, size_t length) {
  struct b200_loss loss;
  if (!b200_loss_scan(part, length, &loss) || loss.step > COMPARE_STEP_MAX)
    return;
  struct compare_value value = {.step = loss.step,
                                .loss = loss.loss,
                                .grad_norm = loss.grad_norm,
                                .tokens_per_s = loss.tokens_per_s,
                                .t_s = (double)NAN,
                                .rank = label_of(part, length, loss.step >= 0),
                                .redrawn = memmem(part, length, "%|", 2) != NULL};
  if (loss.step >= 0) {
    printed->out->list = b200_grow(printed->out->list, printed->out->count, sizeof(value));
    printed->out->list[printed->out->count++] = value;
  } else {
    printed->unnumbered = b200_grow(printed->unnumbered, printed->unnumbered_count, sizeof(value));
    printed->unnumbered[printed->unnumbered_count++] = value;
  }
}

/* Steps for losses without one: 1, 2, … of each rank. */
static void number(struct compare_value *list, size_t count) {
  int64_t *next = NULL;
  size_t ranks = 0;
  int *rank_of = NULL;
  for (size_t i = 0; i < count; i++) {
    size_t place = 0;
    while (place < ranks && rank_of[place] != list[i].rank)
      place++;
    if (place == ranks) {
      next = b200_grow(next, ranks, sizeof(*next));
      rank_of = b200_grow(rank_of, ranks, sizeof(*rank_of));
      next[ranks] = 1;
      rank_of[ranks++] = list[i].rank;
    }
    list[i].step = next[place]++;
  }
  free(next);
  free(rank_of);
}

static bool has_loss(const char *part, size_t length) {
  struct b200_loss loss;
  return b200_loss_scan(part, length, &loss);
}

static const char *end_of_part(const char *part, const char *end) {
  const char *newline = memchr(part, '\n', (size_t)(end - part)), *line_end = newline ? newline : end;
  const char *cut = memchr(part, '\r', (size_t)(line_end - part));
  return cut ? cut : line_end;
}

bool compare_decode_output(const char *data, size_t size, const char *tag, struct compare_values *out, char **error) {
  struct printed printed = {.out = out};
  const char *start = data, *end = data + size;
  *out = (struct compare_values){.unix_s = (double)NAN};
  while (data < end) { /* by lines, and within them by the states that a progress bar writes between carriage returns */
    const char *part_end = end_of_part(data, end);
    if (part_end < end)
      take_part(&printed, data, (size_t)(part_end - data));
    else if (has_loss(data, (size_t)(part_end - data))) /* a number may be cut off */
      compare_note(&out->notes, &out->note_count, "the last line has no end and is left out");
    data = part_end + (part_end < end);
  }
  if (out->count == 0 && printed.unnumbered_count) {
    out->list = printed.unnumbered;
    out->count = printed.unnumbered_count;
    number(out->list, out->count);
    out->counted = true;
    compare_note(&out->notes, &out->note_count, "its losses come without steps: they are numbered 1, 2, ...");
  } else {
    if (printed.unnumbered_count)
      compare_note(&out->notes, &out->note_count, "%zu losses without a step are left out", printed.unnumbered_count);
    free(printed.unnumbered);
  }
  if (out->count)
    return true;
  compare_values_free(out);
  if (compare_is_table(start, size)) /* without a name that is known: it may have the tag, and else its columns are told */
    return compare_decode_csv(start, size, tag, out, error);
  *error = b200_format("no line with a loss");
  return false;
}
