/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/rules.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX 16384
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- vocabulary */

/* X(id, key, what its values are) */
#define KEYS(X)                                                                                                             \
  X(ROLE, "role", NAME)                                                                                                     \
  X(M, "m", NUMBER)                                                                                                         \
  X(N, "n", NUMBER)                                                                                                         \
  X(K, "k", NUMBER)                                                                                                         \
  X(BATCH, "batch", NUMBER)                                                                                                 \
  X(IN, "in", NUMBER)                                                                                                       \
  X(OUT, "out", NUMBER)                                                                                                     \
  X(TOKENS, "tokens", NUMBER)                                                                                               \
  X(H, "h", NUMBER)                                                                                                         \
  X(DTYPE, "dtype", NAME)                                                                                                   \
  X(BIAS, "bias", NAME) X(STEP, "step", NUMBER) X(RANK, "rank", NUMBER) X(API, "api", NAME) X(INDEX, "index", NUMBER)

enum value_kind { NUMBER, NAME };
#define ENUM_KEY(id, key, kind) KEY_##id,
enum key { KEYS(ENUM_KEY) KEY_COUNT };
#undef ENUM_KEY
#define KEY_ROW(id, key, kind) {key, kind},
static const struct {
  const char *name;
  enum value_kind kind;
} keys[KEY_COUNT] = {KEYS(KEY_ROW)};
#undef KEY_ROW

enum compare { EQUAL, UNEQUAL, LESS, AT_MOST, MORE, AT_LEAST, COMPARE_COUNT };
static const char *const compares[COMPARE_COUNT] = {"=", "!=", "<", "<=", ">", ">="};

/* Longest first, as the parser tries them in this order. */
static const enum compare compare_order[COMPARE_COUNT] = {UNEQUAL, AT_MOST, AT_LEAST, EQUAL, LESS, MORE};

static const struct {
  const char *name;
  enum b200_action action;
} actions[] = {
    {"native", B200_ACTION_NATIVE}, {"fp8", B200_ACTION_FP8},         {"mxfp8", B200_ACTION_MXFP8},
    {"auto", B200_ACTION_AUTO},     {"inherit", B200_ACTION_INHERIT}, {"bf16", B200_ACTION_NATIVE},
};

static const char *const bias_names[] = {"no", "yes"};

struct names {
  const char *const *names;
  size_t count;
};

/* The values of a NAME key. */
static struct names names_of(enum key key) {
  switch (key) {
  case KEY_ROLE:
    return (struct names){b200_role_names, B200_ROLE_COUNT};
  case KEY_DTYPE:
    return (struct names){b200_element_names, B200_ELEMENT_COUNT};
  case KEY_API:
    return (struct names){b200_api_names, B200_API_COUNT};
  default:
    return (struct names){bias_names, COUNT(bias_names)};
  }
}

/* ---- parser */

struct parser {
  const char *at, *line_start;
  int line;
  bool many_lines; /* the text has more than one: complaints name the line, too */
  char *complaint;
  size_t size;
};

/* Always false. What the text may hold does not get through: `format` shows it with shown(). */
__attribute__((format(printf, 3, 4))) static bool wrong(const struct parser *parser, const char *where, const char *format,
                                                        ...) {
  va_list arguments;
  int length = 0;
  if (parser->many_lines)
    length = snprintf(parser->complaint, parser->size, "line %d, ", parser->line);
  if ((size_t)length < parser->size)
    length += snprintf(parser->complaint + length, parser->size - (size_t)length,
                       "column %d: ", (int)(where - parser->line_start) + 1);
  va_start(arguments, format);
  if ((size_t)length < parser->size)
    vsnprintf(parser->complaint + length, parser->size - (size_t)length, format, arguments);
  va_end(arguments);
  return false;
}

static size_t word_length(const char *text) {
  return strcspn(text, " \t\r\n;:,=!<>#");
}

struct shown {
  char text[32];
};

/* The word at `text`, or the character when there is no word, in ASCII and cut. */
static struct shown shown(const char *text) {
  struct shown shown;
  size_t length = word_length(text), i = 0;
  if (length == 0 && *text && !strchr("\r\n", *text))
    length = 1;
  for (; i < length && i < sizeof(shown.text) - 1; i++)
    shown.text[i] = text[i] > ' ' && text[i] <= '~' ? text[i] : '?';
  shown.text[i] = '\0';
  return shown;
}

static void skip_blanks(struct parser *parser) {
  parser->at += strspn(parser->at, " \t\r");
  if (*parser->at == '#')
    parser->at += strcspn(parser->at, "\n");
}

static bool is_word(const char *text, size_t length, const char *word) {
  return strlen(word) == length && memcmp(text, word, length) == 0;
}

/* "a, b, c" */
static const char *list_names(struct names names, char *out, size_t size) {
  size_t length = 0;
  out[0] = '\0';
  for (size_t i = 0; i < names.count && length < size; i++)
    length += (size_t)snprintf(out + length, size - length, "%s%s", i ? ", " : "", names.names[i]);
  return out;
}

static bool parse_key(struct parser *parser, struct b200_term *term) {
  size_t length = word_length(parser->at);
  for (size_t i = 0; i < KEY_COUNT; i++)
    if (is_word(parser->at, length, keys[i].name)) {
      term->key = (uint8_t)i;
      parser->at += length;
      return true;
    }
  return wrong(parser, parser->at,
               "'%s' is not a term (accepted: role m n k batch in out tokens h dtype bias step rank api index, or * alone)",
               shown(parser->at).text);
}

static bool parse_compare(struct parser *parser, struct b200_term *term) {
  skip_blanks(parser);
  const char *start = parser->at;
  for (size_t i = 0; i < COMPARE_COUNT; i++) {
    enum compare compare = compare_order[i];
    if (strncmp(start, compares[compare], strlen(compares[compare])) != 0)
      continue;
    if (keys[term->key].kind == NAME && compare > UNEQUAL)
      return wrong(parser, start, "'%s' does not fit %s (accepted: = !=)", compares[compare], keys[term->key].name);
    term->compare = (uint8_t)compare;
    parser->at += strlen(compares[compare]);
    return true;
  }
  return wrong(parser, start, "'%s' after %s is not a comparison (accepted: %s)", shown(start).text, keys[term->key].name,
               keys[term->key].kind == NAME ? "= !=" : "= != < <= > >=");
}

static bool parse_number(struct parser *parser, struct b200_term *term) {
  const char *start = parser->at;
  size_t length = word_length(start);
  int64_t value = 0;
  for (size_t i = 0; i < length; i++) {
    int digit = start[i] - '0';
    if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
      length = 0;
  }
  if (length == 0)
    return wrong(parser, start, "'%s' is not a number for %s (accepted: 0..9223372036854775807)", shown(start).text,
                 keys[term->key].name);
  term->value = value;
  parser->at += length;
  return true;
}

static bool parse_name(struct parser *parser, struct b200_term *term) {
  struct names names = names_of((enum key)term->key);
  size_t length = word_length(parser->at);
  char accepted[160];
  for (size_t i = 0; i < names.count; i++)
    if (is_word(parser->at, length, names.names[i])) {
      term->value = (int64_t)i;
      parser->at += length;
      return true;
    }
  return wrong(parser, parser->at, "'%s' is not a value of %s (accepted: %s)", shown(parser->at).text, keys[term->key].name,
               list_names(names, accepted, sizeof(accepted)));
}

static bool parse_term(struct parser *parser, struct b200_term *term) {
  if (!parse_key(parser, term) || !parse_compare(parser, term))
    return false;
  skip_blanks(parser);
  return keys[term->key].kind == NAME ? parse_name(parser, term) : parse_number(parser, term);
}

static bool parse_action(struct parser *parser, struct b200_rule *rule) {
  size_t length = word_length(parser->at);
  for (size_t i = 0; i < COUNT(actions); i++)
    if (is_word(parser->at, length, actions[i].name)) {
      rule->action = (uint8_t)actions[i].action;
      parser->at += length;
      return true;
    }
  return wrong(parser, parser->at, "'%s' is not an action%s (accepted: native, bf16, fp8, mxfp8, auto, inherit)",
               shown(parser->at).text, is_word(parser->at, length, "nvfp4") ? " in this version" : "");
}

static bool parse_conditions(struct parser *parser, struct b200_rule *rule) {
  if (*parser->at == '*') {
    parser->at++;
    skip_blanks(parser);
    return true;
  }
  for (;;) {
    if (rule->term_count == B200_TERMS_MAX)
      return wrong(parser, parser->at, "more than %d terms in one rule", B200_TERMS_MAX);
    if (!parse_term(parser, &rule->terms[rule->term_count]))
      return false;
    rule->term_count++;
    skip_blanks(parser);
    if (*parser->at != ',')
      return true;
    parser->at++;
    skip_blanks(parser);
  }
}

static bool parse_rule(struct parser *parser, struct b200_rule *rule) {
  memset(rule, 0, sizeof(*rule));
  if (!parse_conditions(parser, rule))
    return false;
  if (*parser->at != ':')
    return wrong(parser, parser->at, "'%s' where : and an action are due", shown(parser->at).text);
  parser->at++;
  skip_blanks(parser);
  if (!parse_action(parser, rule))
    return false;
  skip_blanks(parser);
  if (*parser->at && *parser->at != ';' && *parser->at != '\n')
    return wrong(parser, parser->at, "'%s' after a rule (accepted: ; or a new line)", shown(parser->at).text);
  return true;
}

bool b200_rules_parse(const char *text, struct b200_rule *rules, int capacity, int *count, char *complaint, size_t size) {
  struct parser parser = {text, text, 1, strchr(text, '\n') != NULL, complaint, size};
  struct b200_rule rule;
  *count = 0;
  if (size)
    complaint[0] = '\0';
  for (;;) {
    skip_blanks(&parser);
    if (*parser.at == '\n') {
      parser.line++;
      parser.line_start = parser.at + 1;
    }
    if (*parser.at == '\n' || *parser.at == ';') {
      parser.at++;
      continue;
    }
    if (*parser.at == '\0')
      return true;
    const char *start = parser.at;
    if (!parse_rule(&parser, &rule)) {
      *count = 0;
      return false;
    }
    if (*count == capacity) {
      *count = 0;
      return wrong(&parser, start, "more than %d rules", capacity);
    }
    rules[(*count)++] = rule;
  }
}

/* ---- the two variables */

/* The file as text. NULL, or why it cannot be had. */
static const char *read_file(const char *path, char *text, size_t size) {
  struct stat status;
  const char *why = NULL;
  size_t length = 0;
  ssize_t got = 0;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return "it cannot be opened";
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
    why = "it is not a regular file";
  while (!why && length < size && (got = read(file, text + length, size - length)) > 0)
    length += (size_t)got;
  close(file);
  if (why)
    return why;
  if (got < 0)
    return "it cannot be read";
  if (length >= size)
    return "it is longer than 16383 bytes";
  text[length] = '\0';
  return strlen(text) == length ? NULL : "it has a zero byte";
}

bool b200_rules_load(const struct b200_config *config, struct b200_rule *rules, int capacity, int *count, char *complaint,
                     size_t size) {
  char why[256], text[FILE_BYTES_MAX];
  int from_file = 0, saved_errno = errno;
  const char *trouble = NULL;
  if (size)
    complaint[0] = '\0';
  if (!b200_rules_parse(config->rules, rules, capacity, count, why, sizeof(why))) {
    snprintf(complaint, size, "B200OPT_RULES: %s; no rule is in place", why);
    return false;
  }
  if (config->rules_file[0]) {
    trouble = read_file(config->rules_file, text, sizeof(text));
    if (!trouble && !b200_rules_parse(text, rules + *count, capacity - *count, &from_file, why, sizeof(why)))
      trouble = why;
    if (trouble)
      snprintf(complaint, size, "B200OPT_RULES_FILE: '%s': %s; no rule is in place", config->rules_file, trouble);
  }
  *count = trouble ? 0 : *count + from_file;
  errno = saved_errno;
  return !trouble;
}

const char *b200_rule_text(const struct b200_rule *rule, char *out, size_t size) {
  size_t length = 0;
  out[0] = '\0';
  if (rule->term_count == 0)
    length = (size_t)snprintf(out, size, "*");
  for (int i = 0; i < rule->term_count && length < size; i++) {
    const struct b200_term *term = &rule->terms[i];
    length +=
        (size_t)snprintf(out + length, size - length, "%s%s%s", i ? "," : "", keys[term->key].name, compares[term->compare]);
    if (length >= size)
      break;
    if (keys[term->key].kind == NAME)
      length += (size_t)snprintf(out + length, size - length, "%s", names_of((enum key)term->key).names[term->value]);
    else
      length += (size_t)snprintf(out + length, size - length, "%lld", (long long)term->value);
  }
  for (size_t i = 0; i < COUNT(actions) && length < size; i++)
    if (actions[i].action == (enum b200_action)rule->action) {
      snprintf(out + length, size - length, ":%s", actions[i].name);
      break;
    }
  return out;
}

/* ---- matching */

/* The view of the linear layer, by role: which of m, n, k is in, out and tokens. False without a known role. */
static bool linear_value(const struct b200_gemm *gemm, enum key key, int64_t *out) {
  const int64_t fprop[] = {gemm->k, gemm->m, gemm->n}, dgrad[] = {gemm->m, gemm->k, gemm->n},
                wgrad[] = {gemm->m, gemm->n, gemm->k};
  const int64_t *view = gemm->role == B200_ROLE_FPROP   ? fprop
                        : gemm->role == B200_ROLE_DGRAD ? dgrad
                        : gemm->role == B200_ROLE_WGRAD ? wgrad
                                                        : NULL;
  if (view)
    *out = view[key - KEY_IN];
  return view != NULL;
}

/* What a call has for `key`; false when that means nothing for it. */
static bool value_of(const struct b200_facts *facts, const struct b200_position *position, enum key key, int64_t *out) {
  const struct b200_gemm *gemm = &facts->gemm;
  switch (key) {
  case KEY_ROLE:
    *out = gemm->role;
    return true;
  case KEY_M:
    *out = gemm->m;
    return true;
  case KEY_N:
    *out = gemm->n;
    return true;
  case KEY_K:
    *out = gemm->k;
    return true;
  case KEY_BATCH:
    *out = gemm->batch;
    return true;
  case KEY_IN:
  case KEY_OUT:
  case KEY_TOKENS:
    return linear_value(gemm, key, out);
  case KEY_DTYPE:
    *out = gemm->a;
    return true;
  case KEY_BIAS:
    *out = b200_epilogue_has_bias(gemm->epilogue);
    return true;
  case KEY_API:
    *out = gemm->api;
    return true;
  case KEY_STEP:
    *out = position ? position->step : 0;
    return position != NULL;
  case KEY_INDEX:
    *out = position ? position->index : 0;
    return position != NULL;
  case KEY_RANK:
    *out = position ? position->rank : 0;
    return position != NULL;
  case KEY_H:
  case KEY_COUNT:
    break;
  }
  return false;
}

static bool holds(enum compare compare, double difference) {
  switch (compare) {
  case EQUAL:
    return difference == 0;
  case UNEQUAL:
    return difference != 0;
  case LESS:
    return difference < 0;
  case AT_MOST:
    return difference <= 0;
  case MORE:
    return difference > 0;
  case AT_LEAST:
    return difference >= 0;
  case COMPARE_COUNT:
    break;
  }
  return false;
}

static bool term_holds(const struct b200_term *term, const struct b200_facts *facts, const struct b200_position *position) {
  int64_t value;
  if (term->key == KEY_H) { /* m·n/(m+n) against v, without the division: a ratio is seldom whole */
    double m = (double)facts->gemm.m, n = (double)facts->gemm.n;
    return m > 0 && n > 0 && holds((enum compare)term->compare, m * n - (double)term->value * (m + n));
  }
  if (!value_of(facts, position, (enum key)term->key, &value))
    return false;
  return holds((enum compare)term->compare, value < term->value ? -1 : value > term->value);
}

const struct b200_rule *b200_rules_match(const struct b200_rule *rules, int count, const struct b200_facts *facts,
                                         const struct b200_position *position) {
  for (int i = 0; i < count; i++) {
    int held = 0;
    while (held < rules[i].term_count && term_holds(&rules[i].terms[held], facts, position))
      held++;
    if (held == rules[i].term_count)
      return &rules[i];
  }
  return NULL;
}

static bool asks(const struct b200_rule *rules, int count, uint8_t key) {
  for (int i = 0; i < count; i++)
    for (int j = 0; j < rules[i].term_count; j++)
      if (rules[i].terms[j].key == key)
        return true;
  return false;
}

bool b200_rules_ask_index(const struct b200_rule *rules, int count) {
  return asks(rules, count, KEY_INDEX);
}

bool b200_rules_positional(const struct b200_rule *rules, int count) {
  return asks(rules, count, KEY_STEP) || asks(rules, count, KEY_INDEX) || asks(rules, count, KEY_RANK);
}
