/* SPDX-License-Identifier: Apache-2.0 */
/* The command: finds the verb. */
#include "tools/cmd.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *argp_program_version = "b200opt " B200_VERSION;

static const struct verb {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} verbs[] = {
    {"run", cmd_run, "run a job with libb200opt.so preloaded"},
    {"dryrun", cmd_dryrun, "the same on a virtual node: no GPU is needed"},
    {"report", cmd_report, "say what a job did, from its logs"},
    {"doctor", cmd_doctor, "say whether the library works here, or in a running process"},
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

/* True when `word` names an option of `argp` that takes a value. */
static bool wants_value(const struct argp *argp, const char *word) {
  for (const struct argp_option *option = argp->options; option && (option->name || option->doc); option++)
    if (option->name && option->arg && strncmp(word, "--", 2) == 0 && strcmp(word + 2, option->name) == 0)
      return true;
  return false;
}

int cmd_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input) {
  char program[64];
  char *verb = argv[0];
  int index = 0;
  snprintf(program, sizeof(program), "b200opt %s", verb);
  argv[0] = program;
  error_t error = argp_parse(argp, argc, argv, flags | ARGP_NO_ERRS, &index, input);
  argv[0] = verb;
  if (error == 0)
    return B200_EXIT_OK;
  if (error == EINVAL) { /* getopt has stepped over what it does not know */
    const char *word = index > 0 && index <= argc && argv[index - 1] ? argv[index - 1] : "";
    cmd_say("%s: %s '%s'; see b200opt %s --help", verb,
            wants_value(argp, word) ? "a value is missing behind" : "unknown option", word, verb);
  }
  return B200_EXIT_USAGE;
}

static void print_help(void) {
  printf("Usage: b200opt VERB [OPTION...] [ARGUMENT...]\n"
         "Counts what an unmodified PyTorch FSDP job asks of CUDA, cuBLAS and NCCL, on a GPU or on a virtual node.\n\n"
         "Verbs:\n");
  for (size_t i = 0; i < VERB_COUNT; i++)
    printf("  %-8s %s\n", verbs[i].name, verbs[i].help);
  printf("\nb200opt VERB --help describes a verb, its options, exit status and examples; b200opt doctor --env lists the\n"
         "variables B200OPT_*. Options here: --help, --version.\n");
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
    printf("%s\n", argp_program_version);
    return B200_EXIT_OK;
  }
  if (*word)
    cmd_say("unknown verb '%s' (run, dryrun, report, doctor); see b200opt --help", word);
  else
    cmd_say("a verb is missing (run, dryrun, report, doctor); see b200opt --help");
  return B200_EXIT_USAGE;
}
