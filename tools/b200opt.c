/* SPDX-License-Identifier: Apache-2.0 */
/* The command: finds the verb. */
#include "tools/cmd.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"

static const char version[] = "b200opt " B200_VERSION;

static const struct verb {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} verbs[] = {
    {"run", cmd_run, "run a job with libb200opt.so preloaded"},
    {"dryrun", cmd_dryrun, "the same on a virtual node: no GPU is needed"},
    {"report", cmd_report, "say what a job did, from its logs"},
    {"trace", cmd_trace, "write a timeline of all ranks that ui.perfetto.dev opens, from a job's logs"},
    {"replay", cmd_replay, "run recorded device allocations through allocation policies, without a GPU"},
    {"compare", cmd_compare, "say whether one run was faster than another and whether its loss suffered"},
    {"ab", cmd_ab, "run a job in two arms, alternating, and compare them"},
    {"doctor", cmd_doctor, "say whether the library works here, or in a running process"},
    {"lint", cmd_lint, "check variables and rules, and show what they do with GEMMs"},
    {"sagemaker", cmd_sagemaker, "write what Amazon SageMaker wants to be told"},
};

#define VERB_COUNT (sizeof(verbs) / sizeof(verbs[0]))

static void say(const char *format, va_list arguments) {
  char text[4096];
  vsnprintf(text, sizeof(text), format, arguments);
  fprintf(stderr, "b200opt: %s\n", text);
}

void cmd_say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
}

void cmd_fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  exit(status);
}

void cmd_folder_take(struct cmd_folder *folder, const char *value) {
  if (folder->path)
    folder->extra = value;
  else
    folder->path = value;
}

void cmd_folder_check(const struct cmd_folder *folder, const char *verb, bool needed) {
  if (needed && !folder->path)
    cmd_fail(B200_EXIT_USAGE, "%s: a log folder is missing; see b200opt %s --help", verb, verb);
  if (folder->extra)
    cmd_fail(B200_EXIT_USAGE, "%s: one log folder is enough, '%s' is too much; see b200opt %s --help", verb, folder->extra,
             verb);
}

void cmd_logs_read(const char *verb, const char *folder, struct b200_logs *logs) {
  int error = b200_logs_read(folder, logs);
  if (error)
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: cannot read '%s': %s", verb, folder, strerror(error));
}

static error_t parse_common(int key, char *value, struct argp_state *state) {
  static char name[64];
  (void)value;
  switch (key) {
  case ARGP_KEY_INIT: /* getopt says what is wrong in one line; argp would add a second */
    state->err_stream = fopen("/dev/null", "we");
    return state->err_stream ? 0 : errno;
  case '?':
  case 'U':
    snprintf(name, sizeof(name), "b200opt %s", state->argv[0] + strlen("b200opt: "));
    state->name = name;
    argp_state_help(state, stdout, key == 'U' ? ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK : ARGP_HELP_STD_HELP);
    return 0;
  case 'V':
    printf("%s\n", version);
    exit(B200_EXIT_OK);
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_option common_options[] = {
    {"help", '?', NULL, 0, "Give this help", -1},
    {"usage", 'U', NULL, OPTION_HIDDEN, NULL, -1},
    {"version", 'V', NULL, 0, "Print the version", -1},
    {0},
};
static const struct argp common = {.options = common_options, .parser = parse_common};
const struct argp_child cmd_common[] = {{&common, 0, NULL, 0}, {0}};

void cmd_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input) {
  cmd_parse_or(B200_EXIT_USAGE, argp, argc, argv, flags, input);
}

void cmd_parse_or(int status, const struct argp *argp, int argc, char **argv, unsigned flags, void *input) {
  char name[64]; /* what getopt's messages begin with */
  char *verb = argv[0];
  snprintf(name, sizeof(name), "b200opt: %s", verb);
  argv[0] = name;
  argp_err_exit_status = status;
  if (argp_parse(argp, argc, argv, flags | ARGP_NO_HELP, NULL, input) != 0)
    exit(status);
  argv[0] = verb;
}

static void print_help(void) {
  printf("Usage: b200opt VERB [OPTION...] [ARGUMENT...]\n"
         "Counts what an unmodified PyTorch FSDP job asks of CUDA, cuBLAS and NCCL, on a GPU or on a virtual node.\n\n"
         "Verbs:\n");
  for (size_t i = 0; i < VERB_COUNT; i++)
    printf("  %-9s %s\n", verbs[i].name, verbs[i].help);
  printf("\nb200opt VERB --help describes a verb, its options, exit status and examples; b200opt doctor --env lists the\n"
         "variables B200OPT_*. Options here: --help, --version.\n");
}

/* "run, dryrun, …" */
static const char *verb_list(void) {
  static char list[256];
  size_t used = 0;
  for (size_t i = 0; i < VERB_COUNT; i++)
    used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", verbs[i].name);
  return list;
}

int main(int argc, char **argv) {
  const char *word = argc > 1 ? argv[1] : "";
  for (size_t i = 0; i < VERB_COUNT; i++)
    if (strcmp(word, verbs[i].name) == 0)
      return verbs[i].run(argc - 1, argv + 1);
  if (strcmp(word, "--help") == 0 || strcmp(word, "help") == 0) {
    print_help();
    return B200_EXIT_OK;
  }
  if (strcmp(word, "--version") == 0) {
    printf("%s\n", version);
    return B200_EXIT_OK;
  }
  if (*word)
    cmd_say("unknown verb '%s' (%s); see b200opt --help", word, verb_list());
  else
    cmd_say("a verb is missing (%s); see b200opt --help", verb_list());
  return B200_EXIT_USAGE;
}
