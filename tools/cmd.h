/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs of the command, and what they share. Each verb gets argv from its own name on and returns the exit status.
 * Errors are one line on stderr, "b200opt: …". Single-threaded.
 */
#ifndef B200_TOOLS_CMD_H
#define B200_TOOLS_CMD_H

#include <argp.h>
#include <stdbool.h>

enum b200_exit {
  B200_EXIT_OK = 0,
  B200_EXIT_FINDING = 1,     /* report: a difference; doctor: a problem; lint: a wrong variable or rule */
  B200_EXIT_USAGE = 2,       /* wrong arguments, or wrong variables with B200OPT_STRICT=1 */
  B200_EXIT_UNAVAILABLE = 3, /* what the verb needs is missing: a library, PyTorch, logs, a process */
  B200_EXIT_CANNOT_RUN = 126,
  B200_EXIT_NOT_FOUND = 127,
};

int cmd_run(int argc, char **argv);
int cmd_dryrun(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_ab(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_lint(int argc, char **argv);
int cmd_sagemaker(int argc, char **argv);

/* "b200opt: …\n" on stderr. */
void cmd_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, then exit(status). */
_Noreturn void cmd_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* argp_parse() for a verb, whose argp has cmd_common among its children: help under the name "b200opt VERB"; wrong options
   end the process with one line, status 2. ARGP_IN_ORDER in `flags` for verbs that take a command. */
void cmd_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);
/* The same with another status for wrong options. */
void cmd_parse_or(int status, const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* The argument LOGDIR of a verb. */
struct cmd_folder {
  const char *path;  /* NULL: not given */
  const char *extra; /* an argument too many; NULL: none */
};

/* For argp's ARGP_KEY_ARG. */
void cmd_folder_take(struct cmd_folder *folder, const char *value);
/* An argument too many, or a missing one that is needed, ends the process with one line, status 2. */
void cmd_folder_check(const struct cmd_folder *folder, const char *verb, bool needed);

/* All logs below `folder`, to be freed by b200_logs_free(); what cannot be read ends the process with one line. */
struct b200_logs;
void cmd_logs_read(const char *verb, const char *folder, struct b200_logs *logs);

/* --help, --usage, --version. */
extern const struct argp_child cmd_common[];

#endif
