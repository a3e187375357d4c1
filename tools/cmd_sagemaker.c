/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char doc[] = "Write what Amazon SageMaker wants to be told.\n"
                          "\n"
                          "metrics: the metric_definitions of an estimator, as JSON. They match the lines that a job prints "
                          "with B200OPT_METRICS=stdout (names b200opt:...), and the loss lines of common training programs "
                          "(names loss:...). The regular expressions of the latter are also accepted by "
                          "B200OPT_LOSS_REGEX."
                          "\v"
                          "EXIT STATUS\n"
                          "  0  written\n"
                          "  2  wrong arguments\n"
                          "  3  standard output cannot be written\n"
                          "\n"
                          "EXAMPLES\n"
                          "  b200opt sagemaker metrics >metrics.json\n"
                          "  PyTorch(..., metric_definitions=json.load(open('metrics.json')),\n"
                          "          environment={'B200OPT_METRICS': 'stdout'})";

/* ---- metrics */

enum { DEFINITIONS_MAX = 40, NAME_MAX_BYTES = 255, REGEX_MAX_BYTES = 500 }; /* of CreateTrainingJob */

/* Group 1 is the value. No anchors: a launcher may put a rank in front. Nothing that POSIX regular expressions lack. */
#define NUMBER "([-+]?[0-9]+[.]?[0-9]*([eE][-+]?[0-9]+)?)"

static const struct definition {
  const char *name, *regex;
} definitions[] = {
/* The `;` says that the number is whole: the toolkit reads pieces of 64 KiB, which may end anywhere. */
#define B200_METRIC(id, line, scale, places, prometheus, type, help)                                                        \
  {(line)[0] ? "b200opt:" line : NULL, "b200opt:.* " line "=" NUMBER ";"},
#include "interpose/record/metrics.def"
#undef B200_METRIC
    /* {'loss': 2.31, 'grad_norm': 1.0}; {"loss": 2.31, "step": 3} */
    {"loss:huggingface", "['\"]loss['\"]: *['\"]?" NUMBER},
    /* step:  1  loss:  8.1234  grad_norm: …, perhaps with colours; "validate step:  1  loss: …" has no norm */
    {"loss:torchtitan", "step: *[0-9,]+ .*[ m]loss: *" NUMBER "[^:]*grad_norm"},
    /* iteration  10/ 100 | … | lm loss: 6.5E+00 | … */
    {"loss:megatron", "[|] *lm loss: *" NUMBER},
    /* Epoch 0:  10%|… | 1/10 [00:01<00:09, v_num=0, train_loss_step=2.31] */
    {"loss:lightning", "train_loss[_step]*=" NUMBER},
    /* Epoch 1 | iter 16 step 2 | loss train: 10.5, val: n/a */
    {"loss:litgpt", "loss train: *" NUMBER},
    /* step 3 loss 2.31; iter 3: loss 2.31; step 3, loss=2.31 */
    {"loss:generic", "[0-9][],:)]? ?loss *[=: ] *" NUMBER},
};
_Static_assert(COUNT(definitions) <= DEFINITIONS_MAX, "SageMaker's bound of definitions");
#define B200_METRIC(id, line, scale, places, prometheus, type, help)                                                        \
  _Static_assert(sizeof("b200opt:" line) <= NAME_MAX_BYTES, "SageMaker's bound of a name");                                 \
  _Static_assert(sizeof("b200opt:.* " line "=" NUMBER ";") <= REGEX_MAX_BYTES, "SageMaker's bound of a regex");
#include "interpose/record/metrics.def"
#undef B200_METRIC

static int print_metrics(void) {
  json_t *all = json_array();
  for (size_t i = 0; i < COUNT(definitions); i++)
    if (definitions[i].name)
      json_array_append_new(all, json_pack("{ssss}", "Name", definitions[i].name, "Regex", definitions[i].regex));
  int failed = json_dumpf(all, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
  json_decref(all);
  putchar('\n');
  if (failed != 0 || fflush(stdout) != 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "sagemaker: standard output cannot be written");
  return B200_EXIT_OK;
}

/* ---- the verb */

static const struct {
  const char *name;
  int (*run)(void);
} actions[] = {
    {"metrics", print_metrics},
};

struct arguments {
  const char *action, *extra;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  if (key != ARGP_KEY_ARG)
    return ARGP_ERR_UNKNOWN;
  if (arguments->action)
    arguments->extra = value;
  else
    arguments->action = value;
  return 0;
}

int cmd_sagemaker(int argc, char **argv) {
  static const struct argp argp = {.parser = parse, .args_doc = "metrics", .doc = doc, .children = cmd_common};
  struct arguments arguments = {0};
  cmd_parse(&argp, argc, argv, 0, &arguments);
  if (!arguments.action)
    cmd_fail(B200_EXIT_USAGE, "sagemaker: what to write is missing (metrics); see b200opt sagemaker --help");
  if (arguments.extra)
    cmd_fail(B200_EXIT_USAGE, "sagemaker: '%s' is too much; see b200opt sagemaker --help", arguments.extra);
  for (size_t i = 0; i < COUNT(actions); i++)
    if (strcmp(arguments.action, actions[i].name) == 0)
      return actions[i].run();
  cmd_fail(B200_EXIT_USAGE, "sagemaker: '%s' is not accepted (accepted: metrics)", arguments.action);
}
