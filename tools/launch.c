/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch.h"

#include "interpose/record/reader.h"
#include "policy/config.h"
#include "policy/loss_scan.h"
#include "policy/rules.h"
#include "tools/cmd.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- words of the command line */

static bool is_setting(const char *word) {
  if (!isalpha((unsigned char)*word) && *word != '_')
    return false;
  while (isalnum((unsigned char)*word) || *word == '_')
    word++;
  return *word == '=';
}

error_t launch_take_word(struct launch *launch, struct argp_state *state, const char *word) {
  bool behind_dashes = state->quoted && state->next > state->quoted;
  if (!behind_dashes && is_setting(word)) {
    char *name = b200_format("%.*s", (int)strcspn(word, "="), word);
    setenv(name, strchr(word, '=') + 1, 1);
    free(name);
    return 0;
  }
  launch->command = state->argv + state->next - 1;
  state->next = state->argc;
  return 0;
}

void launch_need_command(const struct launch *launch, const char *verb) {
  if (!launch->command)
    cmd_fail(B200_EXIT_USAGE, "%s: a command is missing; see b200opt %s --help", verb, verb);
}

/* ---- files */

static char *command_folder(void) {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length < 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "cannot read /proc/self/exe: %s", strerror(errno));
  path[length] = '\0';
  *strrchr(path, '/') = '\0';
  return b200_format("%s", path);
}

char *launch_find_beside(const char *in_build_tree, const char *installed) {
  const char *places[] = {in_build_tree, installed};
  char *folder = command_folder();
  char *found = NULL;
  for (size_t i = 0; i < 2 && !found; i++) {
    char resolved[PATH_MAX];
    char *path = b200_format("%s/%s", folder, places[i]);
    if (realpath(path, resolved))
      found = b200_format("%s", resolved);
    free(path);
  }
  free(folder);
  return found;
}

static void check_preloadable(const char *path) {
  if (strpbrk(path, ": "))
    cmd_fail(B200_EXIT_UNAVAILABLE, "'%s' cannot be preloaded: LD_PRELOAD has no way to write a blank or a colon in a path",
             path);
}

char *launch_find_library(void) {
  char *path = launch_find_beside("libb200opt.so", "../lib/libb200opt.so");
  if (!path) {
    char *folder = command_folder();
    cmd_fail(B200_EXIT_UNAVAILABLE, "libb200opt.so is neither in %s nor in %s/../lib", folder, folder);
  }
  check_preloadable(path);
  if (!dlopen(path, RTLD_LAZY | RTLD_LOCAL))
    cmd_fail(B200_EXIT_UNAVAILABLE, "libb200opt.so does not load: %s", dlerror());
  return path;
}

char *launch_which(const char *name) {
  const char *folders = getenv("PATH");
  if (strchr(name, '/'))
    return access(name, X_OK) == 0 ? b200_format("%s", name) : NULL;
  for (const char *at = folders ? folders : "/usr/bin:/bin"; at;) {
    size_t length = strcspn(at, ":");
    char *path = b200_format("%.*s/%s", length ? (int)length : 1, length ? at : ".", name);
    struct stat status;
    if (access(path, X_OK) == 0 && stat(path, &status) == 0 && S_ISREG(status.st_mode))
      return path;
    free(path);
    at = at[length] ? at + length + 1 : NULL;
  }
  return NULL;
}

/* ---- environment */

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* True when an entry of LD_PRELOAD is one of `libraries`, wherever it lies. */
static bool is_one_of(const char *const *libraries, const char *entry, size_t length) {
  char *path = b200_format("%.*s", (int)length, entry);
  bool found = false;
  for (; *libraries && !found; libraries++)
    found = strcmp(file_name(path), file_name(*libraries)) == 0;
  free(path);
  return found;
}

void launch_preload(const char *const *libraries) {
  const char *before = b200_config_preload();
  char *list = b200_format("%s", "");
  for (const char *const *library = libraries; *library; library++) {
    check_preloadable(*library);
    char *longer = b200_format("%s%s%s", list, *list ? ":" : "", *library);
    free(list);
    list = longer;
  }
  while (*(before += strspn(before, ": "))) {
    size_t length = strcspn(before, ": ");
    if (!is_one_of(libraries, before, length)) {
      char *longer = b200_format("%s:%.*s", list, (int)length, before);
      free(list);
      list = longer;
    }
    before += length;
  }
  setenv("LD_PRELOAD", list, 1);
  free(list);
}

bool launch_default(const char *name, const char *value) {
  bool was_unset = !getenv(name);
  setenv(name, value, 0);
  return was_unset;
}

/* Variables that only the virtual node reads. Returns the number of complaints. */
static int check_node_variables(void) {
  size_t count;
  int complaints = 0;
  const struct b200_env_row *rows = b200_env_rows(&count);
  for (size_t i = 0; i < count; i++) {
    const char *value = rows[i].scope == B200_SCOPE_NODE ? getenv(rows[i].name) : NULL;
    if (!value || !*value || b200_env_row_accepts(&rows[i], value))
      continue;
    cmd_say("%s: '%s' is not accepted (accepted: %s)", rows[i].name, value, rows[i].accepted);
    complaints++;
  }
  return complaints;
}

static int check_pattern(const struct b200_config *config) {
  struct b200_loss_pattern pattern;
  char error[128];
  if (!config->loss_regex[0])
    return 0;
  if (!b200_loss_pattern_compile(&pattern, config->loss_regex, error, sizeof(error))) {
    cmd_say("B200OPT_LOSS_REGEX: '%s' is not usable: %s; using the built-in forms", config->loss_regex, error);
    return 1;
  }
  b200_loss_pattern_destroy(&pattern);
  return 0;
}

static int check_rules(const struct b200_config *config) {
  static struct b200_rule rules[B200_RULES_MAX];
  char complaint[2048];
  int count;
  if (b200_rules_load(config, rules, B200_RULES_MAX, &count, complaint, sizeof(complaint)))
    return 0;
  cmd_say("%s", complaint);
  return 1;
}

static int say_complaints(struct b200_config *config) {
  b200_config_load(config);
  for (int i = 0; i < config->complaint_count; i++)
    cmd_say("%s", config->complaints[i]);
  if (config->complaints_dropped)
    cmd_say("%d more of this kind", config->complaints_dropped);
  return config->complaint_count + check_node_variables() + check_pattern(config) + check_rules(config);
}

int launch_say_complaints(void) {
  static struct b200_config config;
  return say_complaints(&config);
}

void launch_check_environment(void) {
  static struct b200_config config;
  if (say_complaints(&config) && config.strict)
    cmd_fail(B200_EXIT_USAGE, "the job is not started: a variable is wrong and B200OPT_STRICT is 1");
}

void launch_exec(const struct launch *launch) {
  execvp(launch->command[0], launch->command);
  int error = errno;
  cmd_fail(error == ENOENT ? B200_EXIT_NOT_FOUND : B200_EXIT_CANNOT_RUN, "cannot run '%s': %s", launch->command[0],
           strerror(error));
}
