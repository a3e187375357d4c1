/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face's trainer_state.json, or its log_history by itself. */
#include "tools/compare/sources.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Python writes NaN, Infinity and -Infinity, which JSON has not. Outside strings they become strings of the same length,
 * which real_value() reads.
 */
static void quote_words(char *text, size_t size) {
  static const struct {
    const char *word, *instead;
  } words[] = {{"NaN", "\"n\""}, {"-Infinity", "\"-inf   \""}, {"Infinity", "\"inf   \""}};
  bool inside = false;
  for (size_t i = 0; i < size; i++) {
    if (text[i] == '"')
      inside = !inside;
    else if (inside && text[i] == '\\')
      i++;
    else if (!inside && (text[i] == 'N' || text[i] == 'I' || text[i] == '-'))
      for (size_t j = 0; j < sizeof(words) / sizeof(words[0]); j++) {
        size_t length = strlen(words[j].word);
        if (size - i < length || memcmp(text + i, words[j].word, length) != 0)
          continue;
        memcpy(text + i, words[j].instead, length);
        i += length - 1;
        break;
      }
  }
}

static bool real_value(const json_t *value, double *out) {
  if (json_is_number(value)) {
    *out = json_number_value(value);
    return true;
  }
  const char *text = json_string_value(value);
  if (text && text[0] == 'n') {
    *out = (double)NAN;
    return true;
  }
  return text && compare_number(text, false, out);
}

/* Text of jansson's, which may quote the file, as printable ASCII. */
static char *clean(const char *text) {
  char *copy = b200_format("%s", text);
  for (char *c = copy; *c; c++)
    *c = *c >= ' ' && *c <= '~' ? *c : '?';
  return copy;
}

/* Names in the entries, for a message. */
static char *name_list(const json_t *history) {
  json_t *names = json_object(), *entry, *value;
  const char *name;
  size_t i;
  char *text = b200_format("%s", "");
  json_array_foreach(history, i, entry)
      json_object_foreach(entry, name, value) if (json_object_size(names) < 16 && json_is_number(value))
          json_object_set_new(names, name, json_true());
  json_object_foreach(names, name, value) {
    char *own = clean(name), *longer = b200_format("%s%s%s", text, text[0] ? ", " : "", own);
    free(own);
    free(text);
    text = longer;
  }
  json_decref(names);
  return text;
}

static void take_entry(const json_t *entry, const char *tag, struct compare_values *out, size_t *bad) {
  double loss, step, norm = (double)NAN;
  const json_t *value = json_object_get(entry, tag);
  if (!value)
    return;
  if (!real_value(value, &loss) || !real_value(json_object_get(entry, "step"), &step) ||
      !(step >= 0 && step <= (double)COMPARE_STEP_MAX)) {
    (*bad)++;
    return;
  }
  if (!real_value(json_object_get(entry, "grad_norm"), &norm))
    norm = (double)NAN;
  out->list = b200_grow(out->list, out->count, sizeof(*out->list));
  out->list[out->count++] = (struct compare_value){
      .step = (int64_t)step, .loss = loss, .grad_norm = norm, .t_s = (double)NAN, .rank = COMPARE_NO_LABEL};
}

bool compare_decode_trainer_state(const char *data, size_t size, const char *tag, struct compare_values *out, char **error) {
  json_error_t wrong;
  json_t *entry;
  size_t i, bad = 0;
  *out = (struct compare_values){.unix_s = (double)NAN};
  char *text = b200_zeroed(size, 1);
  memcpy(text, data, size);
  quote_words(text, size);
  json_t *state = json_loadb(text, size, 0, &wrong);
  free(text);
  const json_t *history = json_is_array(state) ? state : json_object_get(state, "log_history");
  if (!json_is_array(history)) {
    char *why = clean(wrong.text);
    *error = state ? b200_format("its log_history is no list") : b200_format("not whole JSON: line %d: %s", wrong.line, why);
    free(why);
    json_decref(state);
    return false;
  }
  json_array_foreach(history, i, entry) take_entry(entry, tag ? tag : "loss", out, &bad);
  if (out->count == 0) {
    char *names = name_list(history);
    *error = names[0] ? b200_format("its log_history has no '%s' (there are: %s)%s", tag ? tag : "loss", names,
                                    tag ? "" : "; name one with --tag")
                      : b200_format("its log_history is empty");
    free(names);
    json_decref(state);
    return false;
  }
  json_decref(state);
  if (bad)
    compare_note(&out->notes, &out->note_count, "%zu entries have no number where one should be and are left out", bad);
  out->name = b200_format("%s", tag ? tag : "loss");
  return true;
}
