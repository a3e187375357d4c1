/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/loss_scan.h"

#include <langinfo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES 64 /* longer ones are not numbers that a job prints */
#define PATTERN_BYTES 4096

/* ---- names */

/* Parts of a name like train_loss_step that leave it a training loss of one step. Other names need the user's pattern. */
static const char *const loss_parts[] = {"loss",    "train", "training", "lm",  "step", "global", "avg",   "mean",
                                         "average", "total", "batch",    "run", "ce",   "nll",    "cross", "entropy"};
static const char *const step_names[] = {"step",        "steps",      "iteration",         "iter",       "it",
                                         "global_step", "train_step", "train/global_step", "train/step", "global-step"};
static const char *const rate_names[] = {"tps",
                                         "tok/s",
                                         "token/s",
                                         "tokens/s",
                                         "tok/sec",
                                         "tokens/sec",
                                         "tokens/second",
                                         "tokens_per_s",
                                         "tokens_per_sec",
                                         "tokens_per_second",
                                         "train_tokens_per_second",
                                         "toks/s"};
static const char *const norm_names[] = {"grad_norm",        "grad-norm",       "gradnorm",      "gnorm",
                                         "global_grad_norm", "train/grad_norm", "gradient_norm", "total_norm"};
/* Anywhere before the loss, these words make it an evaluation's. */
static const char *const evaluation_words[] = {"eval",     "evaluation", "evaluate", "evaluating",
                                               "validate", "validation", "val",      "valid"};
/* Directly before the loss, these make it another loss. */
static const char *const other_words[] = {"test", "dev", "aux", "auxiliary", "balancing", "balance", "z", "mtp", "best"};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static bool in_table(const char *const *table, size_t count, const char *word, size_t length) {
  for (size_t i = 0; i < count; i++)
    if (strlen(table[i]) == length && memcmp(table[i], word, length) == 0)
      return true;
  return false;
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

static bool is_name(char c) {
  return is_letter(c) || is_digit(c) || (c && strchr("_/.-", c));
}

/* ---- text of one part of a line */

/* Length of the terminal escape at `at`: ESC [ parameters letter, or ESC and one more byte. */
static size_t escape_length(const char *at, size_t length) {
  size_t used = 1;
  if (used < length && at[used] == '[') {
    used++;
    while (used < length && !(at[used] >= '@' && at[used] <= '~'))
      used++;
  }
  return used < length ? used + 1 : length;
}

/* Copies without escapes; bytes that are not printable ASCII become blanks. */
static void clean(const char *bytes, size_t length, bool lower, char out[B200_LOSS_LINE_BYTES]) {
  size_t used = 0;
  for (size_t i = 0; i < length && used < B200_LOSS_LINE_BYTES - 1;) {
    char c = bytes[i];
    if (c == '\033') {
      i += escape_length(bytes + i, length - i);
      continue;
    }
    if (lower && c >= 'A' && c <= 'Z')
      c = (char)(c - 'A' + 'a');
    out[used++] = c >= ' ' && c <= '~' ? c : ' ';
    i++;
  }
  out[used] = '\0';
}

/* ---- numbers */

/* A comma between groups of three digits, as in 1,234,567. */
static bool groups_digits(const char *comma) {
  return is_digit(comma[1]) && is_digit(comma[2]) && is_digit(comma[3]) && !is_digit(comma[4]);
}

/* Reads the number at `at` (lower or upper case; nan, inf, hexadecimal too). Returns its end, or NULL when there is none.
   strtod() wants the decimal point of the job's locale. */
static const char *read_number(const char *at, double *out) {
  char text[NUMBER_BYTES];
  size_t used = 0;
  const char *from = at;
  while (used < sizeof(text) - 1 && *from &&
         (is_letter(*from) || is_digit(*from) || strchr("+-.", *from) || (*from == ',' && used && groups_digits(from)))) {
    if (*from == ',') {
      from++;
      continue;
    }
    text[used++] = *from == '.' ? *nl_langinfo(RADIXCHAR) : *from;
    from++;
  }
  text[used] = '\0';
  char *end;
  *out = strtod(text, &end);
  if (end == text)
    return NULL;
  for (ptrdiff_t left = end - text; left; at++) /* walks over the commas that were left out */
    left -= *at != ',';
  return at;
}

static bool ends_number(const char *end) {
  return !is_letter(*end) && !is_digit(*end) && *end != '_' && !(*end == '.' && is_digit(end[1]));
}

static bool read_whole(const char *at, int64_t *out) {
  int64_t value = 0;
  const char *end = at;
  while (is_digit(*end) || (*end == ',' && end != at && groups_digits(end))) {
    if (*end != ',') {
      if (value > (INT64_MAX - 9) / 10)
        return false;
      value = value * 10 + (*end - '0');
    }
    end++;
  }
  *out = value;
  return end != at && ends_number(end);
}

/* Where the value of the name that ends at `end` starts: after a closing quote or bracket, blanks, ':' or '=', blanks, and
   an opening one. NULL when name and value touch. `*marked`: there was a ':' or '='. */
static const char *value_start(const char *end, bool *marked) {
  const char *at = end + (*end && strchr("'\")]", *end) != NULL);
  while (is_blank(*at))
    at++;
  *marked = *at == ':' || *at == '=';
  at += *marked;
  while (is_blank(*at))
    at++;
  if (*at && strchr("'\"[#", *at))
    at++;
  else if (strncmp(at, "tensor(", strlen("tensor(")) == 0)
    at += strlen("tensor(");
  return at == end ? NULL : at;
}

/* ---- one part of a line */

struct scan {
  const char *text;
  struct b200_loss *out;
  bool found_loss;
  bool found_step;
  bool is_stale; /* a bar at the start of an epoch still shows the loss of the one before */
};

static bool is_loss_name(const char *name, size_t length) {
  bool has_loss = false;
  for (size_t i = 0; i < length;) {
    size_t part = 0;
    while (i + part < length && !strchr("_/.-", name[i + part]))
      part++;
    if (part == 0 && i == 0)
      return false; /* an option, a path */
    if (!in_table(loss_parts, COUNT(loss_parts), name + i, part))
      return false;
    has_loss = has_loss || (part == 4 && memcmp(name + i, "loss", 4) == 0);
    i += part + 1;
  }
  return has_loss;
}

static bool is_training(const char *text, const char *name) {
  const char *word = NULL;
  size_t length = 0;
  for (const char *at = text; at < name;) {
    if (!is_letter(*at)) {
      at++;
      continue;
    }
    word = at;
    while (is_name(*at))
      at++;
    length = (size_t)(at - word);
    if (in_table(evaluation_words, COUNT(evaluation_words), word, length))
      return false;
  }
  if (!word)
    return true;
  const char *after = word + length;
  while (is_blank(*after))
    after++;
  size_t stem = strspn(word, "abcdefghijklmnopqrstuvwxyz"); /* mtp_1 */
  return after != name || !in_table(other_words, COUNT(other_words), word, stem < length ? stem : length);
}

static void take_loss(struct scan *scan, const char *name, size_t length) {
  bool marked;
  double value;
  if (strncmp(name + length, " train:", strlen(" train:")) == 0) /* litgpt: "loss train: 10.5, val: n/a" */
    length += strlen(" train");
  const char *start = value_start(name + length, &marked);
  const char *end = start ? read_number(start, &value) : NULL;
  if (scan->found_loss || !end || !ends_number(end) || !is_training(scan->text, name))
    return;
  scan->found_loss = true;
  scan->out->loss = value;
}

static void take_step(struct scan *scan, const char *name, size_t length) {
  bool marked;
  int64_t value;
  const char *start = value_start(name + length, &marked);
  if (scan->found_step || !start || !read_whole(start, &value))
    return;
  scan->found_step = true;
  scan->out->step = value;
}

/* A rate at `start`, with k or m for thousands and millions; 0 when there is none. */
static double read_rate(const char *start) {
  double value;
  const char *end = start ? read_number(start, &value) : NULL;
  if (!end || !(value > 0 && value < 1e15))
    return 0;
  if (*end == 'k' || *end == 'm') {
    value *= *end == 'k' ? 1e3 : 1e6;
    end++;
  }
  return ends_number(end) || *end == '_' ? value : 0;
}

/* Start of the number that ends, but for blanks, at `end`; `end` itself without one. */
static const char *number_before(const char *text, const char *end) {
  const char *last = end;
  while (last > text && is_blank(last[-1]))
    last--;
  const char *start = last;
  while (start > text && (is_digit(start[-1]) || strchr(".,km", start[-1])))
    start--;
  return start == last ? end : start;
}

/* "grad_norm: 1.5"; Megatron's "grad norm: 1.5" is in two words, of which `name` is the second. */
static bool is_norm_name(const char *text, const char *name, size_t length) {
  static const char *const words[] = {"grad", "gradient"};
  const char *before = name;
  if (in_table(norm_names, COUNT(norm_names), name, length))
    return true;
  if (length != 4 || memcmp(name, "norm", 4) != 0 || name == text || !is_blank(name[-1]))
    return false;
  while (before > text && is_blank(before[-1]))
    before--;
  const char *end = before;
  while (before > text && is_name(before[-1]))
    before--;
  return in_table(words, COUNT(words), before, (size_t)(end - before));
}

static void take_norm(struct scan *scan, const char *name, size_t length) {
  bool marked;
  double value;
  const char *start = value_start(name + length, &marked);
  const char *end = start ? read_number(start, &value) : NULL;
  if (end && ends_number(end) && isnan(scan->out->grad_norm))
    scan->out->grad_norm = value;
}

/* True when a name stands before the number at `start`, as in "grad_norm 1.5" or "lr: 1". */
static bool follows_name(const char *text, const char *start) {
  while (start > text && (is_blank(start[-1]) || start[-1] == ':' || start[-1] == '='))
    start--;
  return start > text && is_letter(start[-1]);
}

/* "tok/s: 1,234", "1,234 tok/s" or "tok/s 1234". A number before the unit counts less when it follows another name. */
static void take_rate(struct scan *scan, const char *name, size_t length) {
  bool marked;
  const char *after = value_start(name + length, &marked);
  const char *before = number_before(scan->text, name);
  double rate = 0;
  if (!marked && before != name && !follows_name(scan->text, before))
    rate = read_rate(before);
  if (rate == 0)
    rate = read_rate(after);
  if (rate == 0 && before != name)
    rate = read_rate(before);
  if (scan->out->tokens_per_s == 0)
    scan->out->tokens_per_s = rate;
}

/* tqdm's "| 12/100 [": the step within the bar; under Lightning's "Epoch 2:" counted over the epochs. */
static void take_bar(struct scan *scan) {
  const char *bar = strrchr(scan->text, '|');
  int64_t done, all, epoch;
  if (!bar || scan->found_step)
    return;
  const char *at = bar + 1;
  while (is_blank(*at))
    at++;
  const char *slash = at + strspn(at, "0123456789");
  if (*slash != '/' || !read_whole(at, &done) || !read_whole(slash + 1, &all))
    return;
  if (strncmp(scan->text, "epoch ", 6) == 0 && read_whole(scan->text + 6, &epoch) && epoch < 1000000 && all < 1000000000)
    done += epoch * all;
  scan->is_stale = at[0] == '0' && slash == at + 1;
  scan->out->step = done;
}

/* Summaries of a run that look like a step: Hugging Face's last line and table, nanoGPT's estimate. */
static bool is_summary(const char *text) {
  const char *start = text + strspn(text, " ");
  if (strncmp(start, "train_loss  ", strlen("train_loss  ")) == 0)
    return true;
  return strstr(text, "train_runtime") || (strstr(text, "train loss") && strstr(text, "val loss"));
}

static void scan_names(struct scan *scan) {
  for (const char *at = scan->text; *at;) {
    if (!is_name(*at)) {
      at++;
      continue;
    }
    const char *name = at;
    while (is_name(*at))
      at++;
    size_t length = (size_t)(at - name);
    if (is_loss_name(name, length))
      take_loss(scan, name, length);
    else if (in_table(step_names, COUNT(step_names), name, length))
      take_step(scan, name, length);
    else if (in_table(rate_names, COUNT(rate_names), name, length))
      take_rate(scan, name, length);
    else if (is_norm_name(scan->text, name, length))
      take_norm(scan, name, length);
  }
  take_bar(scan);
}

/* `value`: the loss when a pattern of the user has found it, else NULL. */
static bool scan_part(const char *bytes, size_t length, const double *value, struct b200_loss *out) {
  char text[B200_LOSS_LINE_BYTES] = "";
  struct scan scan = {.text = text, .out = out};
  *out = (struct b200_loss){.loss = value ? *value : 0, .step = -1, .grad_norm = (double)NAN};
  clean(bytes, length, true, text);
  if (!value && (!strstr(text, "loss") || is_summary(text)))
    return false;
  scan_names(&scan);
  if (scan.is_stale)
    return false;
  if (value)
    out->loss = *value;
  return value || scan.found_loss;
}

static bool match_part(const struct b200_loss_pattern *pattern, const char *bytes, size_t length, struct b200_loss *out) {
  char text[B200_LOSS_LINE_BYTES];
  regmatch_t groups[2];
  double value;
  clean(bytes, length, false, text);
  if (regexec(&pattern->regex, text, 2, groups, 0) != 0 || groups[1].rm_so < 0)
    return false;
  text[groups[1].rm_eo] = '\0';
  if (!read_number(text + groups[1].rm_so, &value))
    return false;
  return scan_part(bytes, length, &value, out);
}

/* ---- lines */

static bool scan_line(const struct b200_loss_pattern *pattern, const char *line, size_t length, struct b200_loss *out) {
  while (length) {
    const char *cut = memrchr(line, '\r', length);
    const char *part = cut ? cut + 1 : line;
    size_t part_length = length - (size_t)(part - line);
    if (pattern ? match_part(pattern, part, part_length, out) : scan_part(part, part_length, NULL, out))
      return true;
    length = cut ? (size_t)(cut - line) : 0;
  }
  *out = (struct b200_loss){.step = -1, .grad_norm = (double)NAN};
  return false;
}

bool b200_loss_scan(const char *line, size_t length, struct b200_loss *out) {
  return scan_line(NULL, line, length, out);
}

bool b200_loss_pattern_scan(const struct b200_loss_pattern *pattern, const char *line, size_t length,
                            struct b200_loss *out) {
  return scan_line(pattern, line, length, out);
}

/* ---- patterns */

/* What \d, \s, \w mean in POSIX, outside and inside brackets. */
static const struct {
  char letter;
  const char *outside;
  const char *inside; /* NULL: cannot be said */
} classes[] = {
    {'d', "[0-9]", "0-9"},
    {'D', "[^0-9]", NULL},
    {'s', "[[:space:]]", "[:space:]"},
    {'S', "[^[:space:]]", NULL},
    {'w', "[[:alnum:]_]", "[:alnum:]_"},
    {'W', "[^[:alnum:]_]", NULL},
    {'t', "\t", "\t"},
};

struct translation {
  char out[PATTERN_BYTES];
  size_t used;
  bool repeated;     /* the last character was a repetition; glibc takes exponential memory for stacked ones */
  bool bracket;      /* inside [...] */
  size_t bracket_at; /* `used` after the '[' or "[^" that opened it: a ']' there is literal */
};

static bool append(struct translation *to, const char *text, size_t length) {
  if (to->used + length >= sizeof(to->out))
    return false;
  memcpy(to->out + to->used, text, length);
  to->used += length;
  return true;
}

/* The escape \c. NULL on success, else what is wrong. */
static const char *translate_escape(struct translation *to, char c) {
  for (size_t i = 0; i < COUNT(classes); i++) {
    if (classes[i].letter != c)
      continue;
    const char *text = to->bracket ? classes[i].inside : classes[i].outside;
    if (!text)
      return "\\D, \\S and \\W cannot stand inside [...]";
    return append(to, text, strlen(text)) ? NULL : "it is too long";
  }
  if (!c)
    return "it ends with a backslash";
  if (!to->bracket)
    return append(to, (const char[]){'\\', c}, 2) ? NULL : "it is too long";
  if (strchr("]^-", c))
    return "inside [...] put ] first, - last and ^ elsewhere instead of escaping them";
  return append(to, &c, 1) ? NULL : "it is too long";
}

static const char *translate(struct translation *to, const char *text) {
  for (const char *at = text; *at; at++) {
    if (*at == '\\') {
      const char *wrong = translate_escape(to, *++at);
      to->repeated = false;
      if (wrong)
        return wrong;
      continue;
    }
    if (!to->bracket && at[0] == '(' && at[1] == '?')
      return "groups of the form (?...) are not POSIX; use (...)";
    if (!to->bracket && to->repeated && strchr("*+?{", *at))
      return "a repetition cannot follow another (lazy *? and possessive ++ are not POSIX)";
    to->repeated = !to->bracket && strchr("*+?}", *at);
    if (!append(to, at, 1))
      return "it is too long";
    if (!to->bracket && *at == '[') {
      to->bracket = true;
      if (at[1] == '^' && !append(to, ++at, 1))
        return "it is too long";
      to->bracket_at = to->used;
    } else if (to->bracket && *at == ']' && to->used - 1 != to->bracket_at) {
      to->bracket = false;
    } else if (to->bracket && at[0] == '[' && at[1] && strchr(":.=", at[1])) {
      const char *end = strstr(at + 2, (const char[]){at[1], ']', '\0'});
      if (!end)
        return "a [: in brackets has no :]";
      if (!append(to, at + 1, (size_t)(end + 1 - at)))
        return "it is too long";
      at = end + 1;
    }
  }
  return to->used ? NULL : "it is empty";
}

bool b200_loss_pattern_compile(struct b200_loss_pattern *out, const char *text, char *error, size_t error_bytes) {
  struct translation to = {.used = 0};
  char reason[128];
  const char *wrong = translate(&to, text);
  to.out[to.used] = '\0';
  if (wrong) {
    snprintf(error, error_bytes, "%s", wrong);
    return false;
  }
  int status = regcomp(&out->regex, to.out, REG_EXTENDED);
  if (status != 0) {
    regerror(status, &out->regex, reason, sizeof(reason));
    snprintf(error, error_bytes, "%s", reason);
    return false;
  }
  if (out->regex.re_nsub < 1) {
    regfree(&out->regex);
    snprintf(error, error_bytes, "it has no group (...) for the loss");
    return false;
  }
  return true;
}

void b200_loss_pattern_destroy(struct b200_loss_pattern *pattern) {
  regfree(&pattern->regex);
}
