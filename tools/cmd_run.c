/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"
#include "tools/launch.h"

#include <stdlib.h>

static const char doc[] =
    "Run a job with libb200opt.so preloaded.\n"
    "\n"
    "Puts the library that lies beside this command first in LD_PRELOAD (other entries stay, behind it), checks the "
    "B200OPT_* variables and becomes COMMAND, whose output and exit status are its own. Every process that COMMAND starts "
    "inherits the library; in those that do no CUDA it does nothing."
    "\v"
    "ENVIRONMENT\n"
    "  NAME=VALUE words before the command are set for the job. B200OPT_*\n"
    "  variables: see b200opt doctor --env. A wrong one is said on stderr and its\n"
    "  default used; with B200OPT_STRICT=1 the job is not started.\n"
    "  Logs go to B200OPT_LOG_DIR, else $SM_OUTPUT_DATA_DIR/b200opt, else\n"
    "  ./b200opt-logs.\n"
    "\n"
    "EXIT STATUS\n"
    "  that of COMMAND; before it starts:\n"
    "  2    wrong arguments, or a wrong variable with B200OPT_STRICT=1\n"
    "  3    the library is missing or does not load\n"
    "  126  COMMAND cannot be executed\n"
    "  127  COMMAND is not found\n"
    "\n"
    "EXAMPLES\n"
    "  b200opt run -- torchrun --nproc-per-node 8 train.py\n"
    "  b200opt run B200OPT_ARM=bf16 B200OPT_LOG_DIR=logs -- python train.py\n"
    "  b200opt report logs";

static error_t parse(int key, char *value, struct argp_state *state) {
  return key == ARGP_KEY_ARG ? launch_take_word(state->input, state, value) : ARGP_ERR_UNKNOWN;
}

int cmd_run(int argc, char **argv) {
  static const struct argp argp = {
      .parser = parse, .args_doc = "[NAME=VALUE...] -- COMMAND [ARGUMENT...]", .doc = doc, .children = cmd_common};
  struct launch launch = {0};
  cmd_parse(&argp, argc, argv, ARGP_IN_ORDER, &launch);
  launch_need_command(&launch, "run");
  launch_check_environment();
  char *library = launch_find_library();
  launch_preload((const char *[]){library, NULL});
  free(library);
  launch_exec(&launch);
}
