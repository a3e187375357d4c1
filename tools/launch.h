/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `run` and `dryrun` share: NAME=VALUE settings and the command behind them, the library, LD_PRELOAD, the check of the
 * variables, exec. Everything here changes the environment of this process, which the job inherits. Functions that find
 * something wrong end the process with a message (cmd_fail).
 */
#ifndef B200_TOOLS_LAUNCH_H
#define B200_TOOLS_LAUNCH_H

#include <argp.h>
#include <stdbool.h>

struct launch {
  char **command; /* NULL until the first word that is no setting */
};

/* For ARGP_KEY_ARG: takes NAME=VALUE into the environment, or the rest of the words as the command. */
error_t launch_take_word(struct launch *launch, struct argp_state *state, const char *word);

/* Ends the process when there is no command. */
void launch_need_command(const struct launch *launch, const char *verb);

/* Path of libb200opt.so beside this command; checks that it loads. The caller frees it. */
char *launch_find_library(void);

/* Full path of `name` in the first folder that has it: beside this command, or in `installed` from there ("../lib"). NULL
   when there is none. The caller frees it. */
char *launch_find_beside(const char *in_build_tree, const char *installed);

/* Puts `libraries` (ended by NULL) first in LD_PRELOAD, in this order. Other entries stay behind them; earlier entries with
   the file name of one of them go away. */
void launch_preload(const char *const *libraries);

/* setenv() unless the variable is set; true when it was not. */
bool launch_default(const char *name, const char *value);

/* Says what is wrong with B200OPT_* variables; with B200OPT_STRICT=1 that ends the process. */
void launch_check_environment(void);
/* Says the same and returns how much is wrong. */
int launch_say_complaints(void);

/* Becomes the command; comes back never. */
_Noreturn void launch_exec(const struct launch *launch);

/* Full path of `name` as exec would find it; NULL when it does not. The caller frees it. */
char *launch_which(const char *name);

#endif
