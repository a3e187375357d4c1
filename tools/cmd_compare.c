/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd_compare.h"

#include "interpose/record/reader.h"
#include "policy/config.h"
#include "tools/cmd.h"
#include "tools/compare/compare.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char doc[] =
    "Say whether CANDIDATE was faster than BASELINE and whether its loss suffered.\n"
    "\n"
    "Both are logs of b200opt or what else a job left behind: a folder or a file of its output (Hugging Face, torchtitan, "
    "Megatron, Lightning, ...), a CSV file, a trainer_state.json, event files of TensorBoard. The form is found from the "
    "content. "
    "Folders run-1, run-2, ... in it are several runs."
    "\v"
    "EXIT STATUS\n"
    "  0   EQUIVALENT    the gap of the losses is surely within the margin\n"
    "      BETTER        it is surely below it\n"
    "  1   WORSE         it is surely above it\n"
    "  2   INCONCLUSIVE  none of these is sure; how many steps would do is said\n"
    "  3   INVALID       not comparable (other data, world size, batch; less than\n"
    "                    90 % of the steps in both; a baseline with NaN), a run\n"
    "                    failed, or there is nothing to read\n"
    "  4   DIVERGED      the candidate's loss is no number, or far off and rising\n"
    "  64  wrong arguments (other verbs: 2, which has a meaning here)\n"
    "\n"
    "HOW\n"
    "  Losses are compared step by step, since equal data make equal noise; the\n"
    "  mean gap of the last quarter (at least 100 steps) has a 90 % interval, in\n"
    "  which the difference of repeated runs counts: measured with --aa, told\n"
    "  with --floor, or assumed as 0.05 %. --aa takes a folder of runs that are\n"
    "  equal to each other, or one run that repeats the baseline; two pairs\n"
    "  measure. Times of the virtual node's model and of the host are never put\n"
    "  into one figure. Throughput does not decide the exit status.\n"
    "\n"
    "OUTPUT\n"
    "  Text of at most 100 columns in ASCII. --json: its keys are documented in\n"
    "  tools/compare/KEYS.md. --html: one page that loads nothing.\n"
    "\n"
    "EXAMPLES\n"
    "  b200opt compare bf16 mxfp8 --html ab.html\n"
    "  b200opt compare bf16.csv fp8.csv --margin 0.5 --floor 0.04\n"
    "  b200opt compare bf16 fp8 --aa bf16-2 --aa bf16-3 --price-per-hour 98.32\n"
    "  b200opt compare old/events new/events --tag train/loss --json -";

enum { KEY_FLOOR = 0x100, KEY_AA, KEY_PRICE, KEY_JSON, KEY_HTML, KEY_TAG };

static const struct argp_option shared[] = {
    {"margin", 'm', "PCT", 0, "Gap that is still nothing to worry about (default: 0.25; 1 for short runs)", 0},
    {"floor", KEY_FLOOR, "PCT", 0, "How much repeated runs differ, rms of the last quarter's gap", 0},
    {"aa", KEY_AA, "DIR", 0, "Equal runs, or one that repeats the baseline, to measure that; may be given again", 0},
    {"price-per-hour", KEY_PRICE, "P", 0, "Price of the whole job per hour, in any currency", 0},
    {"json", KEY_JSON, "FILE", 0, "Write the comparison as JSON (-: instead of the text)", 0},
    {"html", KEY_HTML, "FILE", 0, "Write the comparison as a page", 0},
    {"tag", KEY_TAG, "NAME", 0, "Tag or column that holds the loss; given twice: the baseline's, the candidate's", 0},
    {0},
};

static double number_from(const struct compare_request *request, const char *name, const char *value, bool zero) {
  char *end;
  double number = strtod(value, &end);
  if (end == value || *end || !isfinite(number) || number < 0 || (number == 0 && !zero))
    cmd_fail(COMPARE_EXIT_USAGE, "%s: %s: '%s' is not accepted (accepted: a number %s 0)", request->verb, name, value,
             zero ? "from" : "above");
  return number;
}

static error_t parse_shared(int key, char *value, struct argp_state *state) {
  struct compare_request *request = state->input;
  switch (key) {
  case 'm':
    request->settings.margin_percent = number_from(request, "--margin", value, false);
    return 0;
  case KEY_FLOOR:
    request->settings.floor_percent = number_from(request, "--floor", value, true);
    return 0;
  case KEY_AA:
    request->aa = b200_grow(request->aa, request->aa_count, sizeof(*request->aa));
    request->aa[request->aa_count++] = value;
    return 0;
  case KEY_PRICE:
    request->settings.price_per_hour = number_from(request, "--price-per-hour", value, false);
    return 0;
  case KEY_JSON:
    request->json = value;
    return 0;
  case KEY_HTML:
    request->html = value;
    return 0;
  case KEY_TAG:
    if (request->tags[1])
      cmd_fail(COMPARE_EXIT_USAGE,
               "%s: --tag: '%s' is too much (accepted: one for both, or the baseline's and the candidate's)", request->verb,
               value);
    request->tags[request->tags[0] != NULL] = value;
    return 0;
  case ARGP_KEY_INIT:
    state->child_inputs[0] = NULL;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp shared_argp = {.options = shared, .parser = parse_shared, .children = cmd_common};
const struct argp_child compare_options[] = {{&shared_argp, 0, NULL, 0}, {0}};

struct compare_request compare_request_new(const char *verb) {
  static struct b200_config config;
  struct compare_request request = {.verb = verb,
                                    .settings = {.margin_percent = NAN, .floor_percent = NAN, .price_per_hour = NAN}};
  b200_config_load(&config);
  if (config.margin[0])
    request.settings.margin_percent = number_from(&request, "B200OPT_MARGIN", config.margin, false);
  if (config.price_per_hour[0])
    request.settings.price_per_hour = number_from(&request, "B200OPT_PRICE_PER_HOUR", config.price_per_hour, false);
  return request;
}

/* ---- carrying it out */

static struct compare_arm read_arm(const struct compare_request *request, const char *path, int side) {
  struct compare_arm arm;
  char *error = NULL;
  const char *tag = request->tags[side] ? request->tags[side] : request->tags[0];
  if (compare_arm_read(path, tag, &arm, &error))
    return arm;
  if (!request->lenient)
    cmd_fail(COMPARE_EXIT_INVALID, "%s: %s", request->verb, error);
  arm.notes = b200_grow(arm.notes, arm.note_count, sizeof(*arm.notes));
  arm.notes[arm.note_count++] = error;
  return arm;
}

/* A file that was not there before is not left behind. */
static void check_output(const struct compare_request *request, const char *path) {
  bool made = false;
  int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) {
    file = open(path, O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    made = file >= 0;
  }
  if (file < 0)
    cmd_fail(COMPARE_EXIT_INVALID, "%s: cannot write '%s': %s", request->verb, path, strerror(errno));
  close(file);
  if (made)
    unlink(path);
}

void compare_request_check(const struct compare_request *request) {
  struct compare_request strict = *request;
  strict.lenient = false;
  for (size_t i = 0; i < request->aa_count; i++) {
    struct compare_arm arm = read_arm(&strict, request->aa[i], 0);
    compare_arm_free(&arm);
  }
  if (request->html)
    check_output(request, request->html);
  if (request->json && strcmp(request->json, "-") != 0)
    check_output(request, request->json);
}

static FILE *open_output(const struct compare_request *request, const char *path) {
  FILE *out = fopen(path, "we");
  if (!out)
    cmd_fail(COMPARE_EXIT_INVALID, "%s: cannot write '%s': %s", request->verb, path, strerror(errno));
  return out;
}

static void close_output(const struct compare_request *request, FILE *out, const char *path) {
  bool failed = ferror(out) != 0;
  if (fclose(out) != 0 || failed)
    cmd_fail(COMPARE_EXIT_INVALID, "%s: cannot write '%s'", request->verb, path);
}

static void write_json(FILE *out, const json_t *comparison) {
  json_dumpf(comparison, out, JSON_INDENT(1) | JSON_REAL_PRECISION(10));
  fputc('\n', out);
}

/* The verdict first: it has cost more than a file that cannot be written. */
static void write_outputs(const struct compare_request *request, const json_t *comparison) {
  bool json_instead = request->json && strcmp(request->json, "-") == 0;
  if (json_instead)
    write_json(stdout, comparison);
  else
    compare_print(stdout, comparison, isatty(STDOUT_FILENO));
  if (fflush(stdout) != 0)
    cmd_fail(COMPARE_EXIT_INVALID, "%s: standard output cannot be written", request->verb);
  if (request->json && !json_instead) {
    FILE *out = open_output(request, request->json);
    write_json(out, comparison);
    close_output(request, out, request->json);
  }
  if (request->html) {
    FILE *out = open_output(request, request->html);
    compare_write_page(out, comparison);
    close_output(request, out, request->html);
  }
}

int compare_carry_out(const struct compare_request *request, const char *const paths[2], const char *const names[2],
                      const struct compare_failure *failures, size_t failure_count) {
  struct compare_arm arms[2], *aa = b200_zeroed(request->aa_count + 1, sizeof(*aa));
  struct compare_settings settings = request->settings;
  for (int side = 0; side < 2; side++)
    arms[side] = read_arm(request, paths[side], side);
  for (size_t i = 0; i < request->aa_count; i++)
    aa[i] = read_arm(request, request->aa[i], 0);
  settings.aa = aa;
  settings.aa_count = request->aa_count;
  json_t *comparison =
      compare_make((const struct compare_arm *const[]){&arms[0], &arms[1]}, names, &settings, failures, failure_count);
  write_outputs(request, comparison);
  int status = compare_exit(comparison);
  json_decref(comparison);
  for (size_t i = 0; i < request->aa_count; i++)
    compare_arm_free(&aa[i]);
  free(aa);
  compare_arm_free(&arms[0]);
  compare_arm_free(&arms[1]);
  return status;
}

/* ---- the verb */

struct arguments {
  struct compare_request request;
  const char *paths[2], *extra;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    state->child_inputs[0] = &arguments->request;
    return 0;
  case ARGP_KEY_ARG:
    if (!arguments->paths[0])
      arguments->paths[0] = value;
    else if (!arguments->paths[1])
      arguments->paths[1] = value;
    else
      arguments->extra = value;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

int cmd_compare(int argc, char **argv) {
  static const struct argp argp = {
      .parser = parse, .args_doc = "BASELINE CANDIDATE", .doc = doc, .children = compare_options};
  struct arguments arguments = {.request = compare_request_new("compare")};
  cmd_parse_or(COMPARE_EXIT_USAGE, &argp, argc, argv, 0, &arguments);
  if (!arguments.paths[1])
    cmd_fail(COMPARE_EXIT_USAGE, "compare: %s is missing; see b200opt compare --help",
             arguments.paths[0] ? "the candidate" : "the baseline");
  if (arguments.extra)
    cmd_fail(COMPARE_EXIT_USAGE,
             "compare: a baseline and a candidate are enough, '%s' is too much; see b200opt compare --help",
             arguments.extra);
  int status = compare_carry_out(&arguments.request, arguments.paths, arguments.paths, NULL, 0);
  free(arguments.request.aa);
  return status;
}
