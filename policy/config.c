/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_BYTES_MAX 64 /* longer names are compared by their first bytes */
#define SHOWN_BYTES 80    /* of a value or a name in a complaint */
#define PREFIX "B200OPT"
#define FILE_BYTES_MAX (1 << 20)

extern char **environ;

/* ---- the table */

enum row_index {
#define B200_ENV(scope, type, field, name, default_value, accepted, unit, help) ROW_##name,
#include "policy/env.def"
#undef B200_ENV
  ROW_COUNT
};

static const struct b200_env_row rows[ROW_COUNT] = {
#define B200_ENV(row_scope, row_type, field, row_name, row_default, row_accepted, row_unit, row_help)                       \
  [ROW_##row_name] = {.scope = B200_SCOPE_##row_scope,                                                                      \
                      .type = B200_TYPE_##row_type,                                                                         \
                      .name = #row_name,                                                                                    \
                      .default_value = row_default,                                                                         \
                      .accepted = row_accepted,                                                                             \
                      .unit = row_unit,                                                                                     \
                      .help = row_help},
#include "policy/env.def"
#undef B200_ENV
};

static const struct {
  enum row_index row;
  size_t offset;
} members[B200_ENV_JOB_COUNT] = {
#define B200_PLACE_JOB(name, field) [B200_ENV_##field] = {ROW_##name, offsetof(struct b200_config, field)},
#define B200_PLACE_NODE(name, field)
#define B200_ENV(scope, type, field, name, default_value, accepted, unit, help) B200_PLACE_##scope(name, field)
#include "policy/env.def"
#undef B200_ENV
#undef B200_PLACE_NODE
#undef B200_PLACE_JOB
};

const struct b200_env_row *b200_env_rows(size_t *count) {
  *count = ROW_COUNT;
  return rows;
}

const struct b200_env_row *b200_env_job_row(enum b200_env_index index) {
  return &rows[members[index].row];
}

/* ---- complaints */

__attribute__((format(printf, 2, 3))) static void complain(struct b200_config *config, const char *format, ...) {
  if (config->complaint_count == B200_CONFIG_COMPLAINTS_MAX) {
    config->complaints_dropped++;
    return;
  }
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(config->complaints[config->complaint_count++], B200_CONFIG_COMPLAINT_BYTES, format, arguments);
  va_end(arguments);
}

struct shown {
  char text[SHOWN_BYTES];
};

/* `text` fit for one line of ASCII: other bytes as '?', the rest of a long text as "...". */
static struct shown show(const char *text, size_t length) {
  struct shown shown;
  size_t kept = length < SHOWN_BYTES ? length : SHOWN_BYTES - 4;
  for (size_t i = 0; i < kept; i++)
    shown.text[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
  strcpy(shown.text + kept, kept < length ? "..." : "");
  return shown;
}

/* Levenshtein distance; names beyond NAME_BYTES_MAX count as cut off. */
static int edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
  int row[NAME_BYTES_MAX + 1];
  a_length = a_length < NAME_BYTES_MAX ? a_length : NAME_BYTES_MAX;
  b_length = b_length < NAME_BYTES_MAX ? b_length : NAME_BYTES_MAX;
  for (size_t j = 0; j <= b_length; j++)
    row[j] = (int)j;
  for (size_t i = 1; i <= a_length; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= b_length; j++) {
      int best = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < best)
        best = row[j] + 1;
      if (row[j - 1] + 1 < best)
        best = row[j - 1] + 1;
      row[j] = best;
    }
  }
  return row[b_length];
}

static const char *nearest_name(const char *name, size_t length) {
  const char *nearest = rows[0].name;
  int least = NAME_BYTES_MAX + 1;
  for (size_t i = 0; i < ROW_COUNT; i++) {
    int distance = edit_distance(name, length, rows[i].name, strlen(rows[i].name));
    if (distance < least) {
      least = distance;
      nearest = rows[i].name;
    }
  }
  return nearest;
}

static const struct b200_env_row *find_row(const char *name, size_t length) {
  for (size_t i = 0; i < ROW_COUNT; i++)
    if (strlen(rows[i].name) == length && memcmp(rows[i].name, name, length) == 0)
      return &rows[i];
  return NULL;
}

/* ---- one value */

/* Index of `value` in "a|b|c", or -1. */
static int choice_index(const char *accepted, const char *value) {
  size_t length = strlen(value);
  int index = 0;
  for (const char *at = accepted; *at; index++) {
    size_t word = strcspn(at, "|");
    if (word == length && memcmp(at, value, word) == 0)
      return index;
    at += word + (at[word] == '|');
  }
  return -1;
}

/* The kill switch takes every common spelling: who needs it is in a hurry. */
static int mode_index(const char *value) {
  static const struct {
    const char *word;
    enum b200_mode mode;
  } words[] = {
      {"on", B200_MODE_ON},   {"1", B200_MODE_ON},  {"true", B200_MODE_ON},   {"yes", B200_MODE_ON},
      {"off", B200_MODE_OFF}, {"0", B200_MODE_OFF}, {"false", B200_MODE_OFF}, {"no", B200_MODE_OFF},
  };
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
    if (strcasecmp(value, words[i].word) == 0)
      return (int)words[i].mode;
  return -1;
}

/* Other words for a choice: the original precision by the name of its usual type, and cuBLAS's name of its own strategy. */
static const struct { const char *word, *meaning; } aliases[] = {{"bf16", "native"}, {"eager", "always"}};

/* Index of `value` among what a CHOICE or FLAG row accepts, or -1. */
static int row_choice(const struct b200_env_row *row, const char *value) {
  if (row == &rows[ROW_B200OPT])
    return mode_index(value);
  int index = choice_index(row->accepted, value);
  for (size_t i = 0; index < 0 && i < sizeof(aliases) / sizeof(aliases[0]); i++)
    if (strcmp(value, aliases[i].word) == 0)
      index = choice_index(row->accepted, aliases[i].meaning);
  return index;
}

static bool parse_int(const char *accepted, const char *value, int64_t *out) {
  char *end;
  long long least = strtoll(accepted, &end, 10);
  long long most = strtoll(end + strlen(".."), NULL, 10);
  errno = 0;
  long long number = strtoll(value, &end, 10);
  if (end == value || *end || errno || number < least || number > most)
    return false;
  *out = number;
  return true;
}

bool b200_env_row_accepts(const struct b200_env_row *row, const char *value) {
  int64_t number;
  switch (row->type) {
  case B200_TYPE_CHOICE:
  case B200_TYPE_FLAG:
    return row_choice(row, value) >= 0;
  case B200_TYPE_INT:
    return parse_int(row->accepted, value, &number);
  case B200_TYPE_TEXT:
  case B200_TYPE_PATH:
    return strlen(value) < B200_CONFIG_TEXT_BYTES;
  }
  return false;
}

/* Puts `value` into the member of `index`. False when it is not accepted; then nothing changes. */
static bool set_member(struct b200_config *config, enum b200_env_index index, const char *value) {
  const struct b200_env_row *row = b200_env_job_row(index);
  void *member = (char *)config + members[index].offset;
  if (!b200_env_row_accepts(row, value))
    return false;
  switch (row->type) {
  case B200_TYPE_CHOICE:
    *(int *)member = row_choice(row, value);
    break;
  case B200_TYPE_FLAG:
    *(bool *)member = row_choice(row, value) == 1;
    break;
  case B200_TYPE_INT:
    parse_int(row->accepted, value, member);
    break;
  case B200_TYPE_TEXT:
  case B200_TYPE_PATH:
    strcpy(member, value);
    break;
  }
  return true;
}

struct place {
  const char *file; /* NULL: the environment */
  int line;
};

static void complain_value(struct b200_config *config, enum b200_env_index index, const char *value, struct place place) {
  const struct b200_env_row *row = b200_env_job_row(index);
  char where[SHOWN_BYTES + 32] = "";
  char accepted[SHOWN_BYTES + 32];
  if (place.file)
    snprintf(where, sizeof(where), "%s:%d: ", show(place.file, strlen(place.file)).text, place.line);
  if (row->accepted[0])
    snprintf(accepted, sizeof(accepted), "%s", row->accepted);
  else
    snprintf(accepted, sizeof(accepted), "at most %d bytes", B200_CONFIG_TEXT_BYTES - 1);
  bool later = strcmp(value, "nvfp4") == 0 && choice_index(row->accepted, "mxfp8") >= 0;
  complain(config, "%s%s: '%s' is not %s (accepted: %s); using the default%s%s%s", where, row->name,
           show(value, strlen(value)).text, later ? "in this version" : "accepted", accepted,
           row->default_value[0] ? " '" : "", row->default_value, row->default_value[0] ? "'" : "");
}

static void take_value(struct b200_config *config, enum b200_env_index index, const char *value, struct place place) {
  if (!set_member(config, index, value)) {
    complain_value(config, index, value, place);
    return;
  }
  config->origins[index].by = place.file ? B200_ORIGIN_FILE : B200_ORIGIN_ENVIRONMENT;
  config->origins[index].line = place.line;
}

/* ---- environment */

/* Value of `name`, or NULL when it is unset or empty. */
static const char *lookup(char *const *environment, const char *name) {
  size_t length = strlen(name);
  for (char *const *entry = environment; *entry; entry++)
    if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
      return (*entry)[length + 1] ? *entry + length + 1 : NULL;
  return NULL;
}

static void check_names(struct b200_config *config, char *const *environment) {
  for (char *const *entry = environment; *entry; entry++) {
    size_t length = strcspn(*entry, "=");
    if (strncmp(*entry, PREFIX "_", strlen(PREFIX "_")) == 0 && !find_row(*entry, length))
      complain(config, "unknown variable %s is ignored; the nearest known one is %s", show(*entry, length).text,
               nearest_name(*entry, length));
  }
}

/* ---- file */

struct file_reader {
  struct b200_config *config;
  char *const *environment;
  const char *path;
  int line;
  size_t length; /* of `text`; beyond its size when the line is too long */
  char text[B200_CONFIG_TEXT_BYTES + NAME_BYTES_MAX];
};

static enum b200_env_index job_index(const struct b200_env_row *row) {
  int index = 0;
  while (b200_env_job_row((enum b200_env_index)index) != row)
    index++;
  return (enum b200_env_index)index;
}

static void take_setting(struct file_reader *reader, const char *name, size_t name_length, const char *value) {
  const struct b200_env_row *row = find_row(name, name_length);
  struct shown path = show(reader->path, strlen(reader->path));
  if (!row)
    complain(reader->config, "%s:%d: unknown variable %s is ignored; the nearest known one is %s", path.text, reader->line,
             show(name, name_length).text, nearest_name(name, name_length));
  else if (row->scope != B200_SCOPE_JOB || row == &rows[ROW_B200OPT_CONFIG])
    complain(reader->config, "%s:%d: %s is read from the environment only", path.text, reader->line, row->name);
  else if (*value && !lookup(reader->environment, row->name))
    take_value(reader->config, job_index(row), value, (struct place){reader->path, reader->line});
}

static void take_line(struct file_reader *reader) {
  reader->line++;
  struct shown path = show(reader->path, strlen(reader->path));
  if (reader->length >= sizeof(reader->text)) {
    complain(reader->config, "%s:%d: line is longer than %zu bytes and ignored", path.text, reader->line,
             sizeof(reader->text) - 1);
    return;
  }
  while (reader->length && strchr(" \t\r", reader->text[reader->length - 1]))
    reader->length--;
  reader->text[reader->length] = '\0';
  const char *name = reader->text + strspn(reader->text, " \t");
  if (*name == '\0' || *name == '#')
    return;
  size_t name_length = strcspn(name, "= \t");
  const char *equals = name + name_length + strspn(name + name_length, " \t");
  if (*equals != '=' || name_length == 0) {
    complain(reader->config, "%s:%d: '%s' is not NAME=VALUE and ignored", path.text, reader->line,
             show(name, strlen(name)).text);
    return;
  }
  take_setting(reader, name, name_length, equals + 1 + strspn(equals + 1, " \t"));
}

static void take_bytes(struct file_reader *reader, const char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (bytes[i] == '\n') {
      take_line(reader);
      reader->length = 0;
    } else if (reader->length < sizeof(reader->text)) {
      reader->text[reader->length++] = bytes[i];
    }
  }
}

static void complain_file(struct b200_config *config, const char *why) {
  complain(config, "B200OPT_CONFIG: cannot read '%s': %s; its variables are not set",
           show(config->config_file, strlen(config->config_file)).text, why);
}

/* A number: the words of strerror() may look like those of an error of the job, which its surroundings search for. */
static void complain_errno(struct b200_config *config, int error) {
  char why[32];
  snprintf(why, sizeof(why), "errno %d", error);
  complain_file(config, why);
}

/* Whole lines up to FILE_BYTES_MAX. */
static void take_file(struct file_reader *reader, int file) {
  char bytes[4096];
  ssize_t count = 0;
  size_t total = 0;
  while (total < FILE_BYTES_MAX && (count = read(file, bytes, sizeof(bytes))) > 0) {
    take_bytes(reader, bytes, (size_t)count);
    total += (size_t)count;
  }
  if (total >= FILE_BYTES_MAX)
    complain(reader->config, "B200OPT_CONFIG: '%s' is longer than %d bytes; the rest is ignored",
             show(reader->path, strlen(reader->path)).text, FILE_BYTES_MAX - 1);
  else if (count < 0)
    complain_errno(reader->config, errno);
  else if (reader->length)
    take_line(reader);
}

static void load_file(struct b200_config *config, char *const *environment) {
  struct file_reader reader = {.config = config, .environment = environment, .path = config->config_file};
  struct stat status;
  int file = open(reader.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    complain_errno(config, errno);
    return;
  }
  if (fstat(file, &status) == 0 && !S_ISREG(status.st_mode)) {
    complain_file(config, "not a regular file");
    close(file);
    return;
  }
  take_file(&reader, file);
  close(file);
}

/* ---- the whole */

void b200_config_load_from(struct b200_config *out, char *const *environment) {
  int saved_errno = errno;
  memset(out, 0, sizeof(*out));
  for (int i = 0; i < B200_ENV_JOB_COUNT; i++) {
    enum b200_env_index index = (enum b200_env_index)i;
    const struct b200_env_row *row = b200_env_job_row(index);
    const char *value = lookup(environment, row->name);
    set_member(out, index, row->default_value);
    if (value)
      take_value(out, index, value, (struct place){NULL, 0});
  }
  if (out->config_file[0])
    load_file(out, environment);
  check_names(out, environment);
  errno = saved_errno;
}

void b200_config_load(struct b200_config *out) {
  static char *const none[] = {NULL};
  b200_config_load_from(out, environ ? environ : none);
}

const char *b200_config_value(const struct b200_config *config, enum b200_env_index index, char *out, size_t size) {
  const struct b200_env_row *row = b200_env_job_row(index);
  const void *member = (const char *)config + members[index].offset;
  int choice = 0;
  switch (row->type) {
  case B200_TYPE_INT:
    snprintf(out, size, "%lld", (long long)*(const int64_t *)member);
    return out;
  case B200_TYPE_TEXT:
  case B200_TYPE_PATH:
    snprintf(out, size, "%s", (const char *)member);
    return out;
  case B200_TYPE_FLAG:
    choice = *(const bool *)member;
    break;
  case B200_TYPE_CHOICE:
    choice = *(const int *)member;
    break;
  }
  const char *word = row->accepted;
  for (; choice > 0; choice--)
    word += strcspn(word, "|") + 1;
  snprintf(out, size, "%.*s", (int)strcspn(word, "|"), word);
  return out;
}

const char *b200_config_origin(const struct b200_config *config, enum b200_env_index index, char *out, size_t size) {
  switch (config->origins[index].by) {
  case B200_ORIGIN_DEFAULT:
    snprintf(out, size, "default");
    break;
  case B200_ORIGIN_ENVIRONMENT:
    snprintf(out, size, "environment");
    break;
  case B200_ORIGIN_FILE:
    snprintf(out, size, "%s:%d", config->config_file, config->origins[index].line);
    break;
  }
  return out;
}

/* ---- what the launcher says */

static int env_number(const char *name) {
  int64_t number;
  const char *value = getenv(name);
  return value && parse_int("0..2147483647", value, &number) ? (int)number : -1;
}

void b200_launch_load(struct b200_launch *out) {
  int saved_errno = errno;
  out->rank = env_number("RANK");
  out->world = env_number("WORLD_SIZE");
  out->local_rank = env_number("LOCAL_RANK");
  out->single_connection = env_number("CUDA_DEVICE_MAX_CONNECTIONS") == 1;
  errno = saved_errno;
}

const char *b200_config_log_dir(const struct b200_config *config, char *out, size_t size) {
  const char *output = getenv("SM_OUTPUT_DATA_DIR");
  if (config->log_dir[0])
    snprintf(out, size, "%s", config->log_dir);
  else if (output && *output)
    snprintf(out, size, "%s/b200opt", output);
  else
    snprintf(out, size, "./b200opt-logs");
  return out;
}

/* Field 22 of /proc/<pid>/stat: start of the process in clock ticks since boot; 0 when it cannot be read. */
static unsigned long long process_start(pid_t pid) {
  char path[64];
  char text[1024];
  unsigned long long start = 0;
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return 0;
  ssize_t count = read(file, text, sizeof(text) - 1);
  close(file);
  text[count > 0 ? count : 0] = '\0';
  const char *at = strrchr(text, ')'); /* ends field 2, the only one with blanks */
  for (int field = 2; at && field < 22; field++) {
    at = strchr(at + 1, ' ');
  }
  if (at)
    start = strtoull(at, NULL, 10);
  return start;
}

const char *b200_config_run_name(const struct b200_config *config, char *out, size_t size) {
  int saved_errno = errno;
  const char *elastic = getenv("TORCHELASTIC_RUN_ID");
  if (config->run[0]) {
    snprintf(out, size, "%s", config->run);
  } else if (elastic && *elastic && strcmp(elastic, "none") != 0) {
    snprintf(out, size, "%s", elastic);
  } else {
    pid_t pid = getenv("RANK") ? getppid() : getpid();
    snprintf(out, size, "run-%d-%llu", (int)pid, process_start(pid));
  }
  for (char *at = out; *at; at++)
    if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') || *at == '-' ||
          *at == '_' || (*at == '.' && at != out)))
      *at = '_';
  errno = saved_errno;
  return out;
}

const char *b200_config_preload(void) {
  const char *value = getenv("LD_PRELOAD");
  return value ? value : "";
}

void b200_config_each_nccl(b200_env_visit visit, void *context) {
  for (char **entry = environ; entry && *entry; entry++) {
    size_t length = strcspn(*entry, "=");
    if (strncmp(*entry, "NCCL_", strlen("NCCL_")) == 0 && (*entry)[length] == '=')
      visit(context, *entry, length, *entry + length + 1);
  }
}
