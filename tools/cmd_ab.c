/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/reader.h"
#include "tools/cmd.h"
#include "tools/cmd_compare.h"
#include "tools/launch.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUNS_MOST 1000
#define TAIL_LINES 5 /* of a failed run's output */

static const char doc[] =
    "Run COMMAND in two arms, one after the other, and compare them. The first arm is the baseline.\n"
    "\n"
    "Each run is a job of its own under b200opt run, or with --dryrun under b200opt dryrun, with the arm's settings in its "
    "environment. Runs alternate as A B, B A, A B, ..., so that a machine that warms up or slows down does so for both arms."
    "\v"
    "ARMS\n"
    "  Settings behind --arm NAME: are that arm's; those before the first are of\n"
    "  both. In settings and in COMMAND, {seed} becomes the seed of the pair (0, 1,\n"
    "  ...; both of its runs have the same), and {dir} the folder of the run.\n"
    "  Without {seed} every run has the job's own seed: more runs then show how\n"
    "  much equal runs differ, not how seeds do.\n"
    "\n"
    "FOLDERS\n"
    "  DIR/NAME/run-1, run-2, ... have the logs and job.out, what the job printed;\n"
    "  DIR/compare.html and compare.json the comparison.\n"
    "\n"
    "EXIT STATUS\n"
    "  as of b200opt compare: 0 EQUIVALENT or BETTER, 1 WORSE, 2 INCONCLUSIVE,\n"
    "  3 INVALID, 4 DIVERGED, 64 wrong arguments. A run that fails is told with its\n"
    "  status, the others go on, and the verdict is INVALID; what the runs say that\n"
    "  ended well is shown.\n"
    "\n"
    "EXAMPLES\n"
    "  b200opt ab --arm bf16: B200OPT_PRECISION=native \\\n"
    "    --arm mxfp8: B200OPT_PRECISION=mxfp8 --runs 3 -- \\\n"
    "    torchrun --nproc-per-node 8 train.py --seed {seed}\n"
    "  b200opt ab --dryrun --gpus 2 --arm a: --arm b: B200OPT_PRECISION=fp8 -- \\\n"
    "    torchrun --nproc-per-node 2 train.py";

enum { KEY_ARM = 0x200, KEY_RUNS, KEY_SEED, KEY_DRYRUN };

static const struct argp_option options[] = {
    {"arm", KEY_ARM, "NAME:", 0, "Begins an arm, whose NAME=VALUE settings follow; twice", 0},
    {"runs", KEY_RUNS, "N", 0, "Runs of each arm (default: 1)", 0},
    {"seed", KEY_SEED, "N", 0, "Seed of the first pair (default: 0)", 0},
    {"dryrun", KEY_DRYRUN, NULL, 0, "On the virtual node", 0},
    {"gpus", 'g', "N", 0, "With --dryrun: GPUs of the node, 1 to 8", 0},
    {"out", 'o', "DIR", 0, "Folder of everything (default: b200opt-ab)", 0},
    {0},
};

struct words {
  const char **list;
  size_t count;
};

struct ab {
  struct compare_request request;
  const char *names[2];
  size_t arm_count;
  struct words settings[3]; /* of either arm, and of both */
  char **command;
  const char *out, *gpus;
  long runs, seed;
  bool dryrun;
  struct compare_failure *failures;
  size_t failure_count;
};

/* ---- words */

static void words_add(struct words *words, const char *word) {
  words->list = b200_grow(words->list, words->count, sizeof(*words->list));
  words->list[words->count++] = word;
}

static bool is_setting(const char *word) {
  if (!isalpha((unsigned char)*word) && *word != '_')
    return false;
  while (isalnum((unsigned char)*word) || *word == '_')
    word++;
  return *word == '=';
}

/* It becomes the name of a folder. */
static void add_arm(struct ab *ab, const char *value) {
  size_t length = strlen(value);
  bool colon = length && value[length - 1] == ':';
  length -= colon;
  char *name = b200_format("%.*s", (int)length, value);
  bool fits = length > 0 && length <= 64 && isalnum((unsigned char)*name);
  for (const char *at = name; *at; at++)
    fits &= isalnum((unsigned char)*at) || strchr("._-+", *at) != NULL;
  if (!fits || !colon)
    cmd_fail(COMPARE_EXIT_USAGE,
             "ab: --arm: '%s' is not accepted (accepted: a name of letters, digits, . _ - + and a colon)", value);
  if (ab->arm_count == 2)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: --arm: two arms are compared, '%s' is too much", value);
  if (ab->arm_count == 1 && strcmp(name, ab->names[0]) == 0)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: --arm: both arms are called '%s'", name);
  ab->names[ab->arm_count++] = name;
}

static long number_within(const char *option, const char *value, long least, long most) {
  char *end;
  errno = 0;
  long number = strtol(value, &end, 10);
  if (end == value || *end || errno || number < least || number > most)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: --%s: '%s' is not accepted (accepted: %ld..%ld)", option, value, least, most);
  return number;
}

static void take_word(struct ab *ab, struct argp_state *state, const char *word) {
  bool behind_dashes = state->quoted && state->next > state->quoted;
  if (!behind_dashes && is_setting(word)) {
    words_add(&ab->settings[ab->arm_count ? ab->arm_count - 1 : 2], word);
    return;
  }
  ab->command = state->argv + state->next - 1;
  state->next = state->argc;
}

static error_t parse(int key, char *value, struct argp_state *state) {
  struct ab *ab = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    state->child_inputs[0] = &ab->request;
    return 0;
  case KEY_ARM:
    add_arm(ab, value);
    return 0;
  case KEY_RUNS:
    ab->runs = number_within("runs", value, 1, RUNS_MOST);
    return 0;
  case KEY_SEED:
    ab->seed = number_within("seed", value, 0, INT_MAX);
    return 0;
  case KEY_DRYRUN:
    ab->dryrun = true;
    return 0;
  case 'g':
    number_within("gpus", value, 1, 8);
    ab->gpus = value;
    return 0;
  case 'o':
    ab->out = value;
    return 0;
  case ARGP_KEY_ARG:
    take_word(ab, state, value);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static void check(const struct ab *ab) {
  if (ab->arm_count < 2)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: %s is missing (--arm NAME: twice); see b200opt ab --help",
             ab->arm_count ? "an arm" : "what to compare");
  if (!ab->command)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: a command is missing; see b200opt ab --help");
  if (ab->gpus && !ab->dryrun)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: --gpus goes with --dryrun; see b200opt ab --help");
}

/* ---- folders */

static void make_one(const char *path, bool may_exist) {
  if (mkdir(path, 0777) == 0 || (errno == EEXIST && may_exist))
    return;
  if (errno == EEXIST)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: '%s' has runs already; choose another folder with --out, or remove it", path);
  cmd_fail(COMPARE_EXIT_INVALID, "ab: cannot make the folder '%s': %s", path, strerror(errno));
}

/* The folder of everything, absolute, since a job may change its own. */
static char *make_root(const struct ab *ab) {
  char resolved[PATH_MAX], *partial = b200_format("%s", ab->out);
  for (char *at = partial + 1; *at; at++)
    if (*at == '/') {
      *at = '\0';
      make_one(partial, true);
      *at = '/';
    }
  make_one(partial, true);
  if (!realpath(partial, resolved))
    cmd_fail(COMPARE_EXIT_INVALID, "ab: cannot use the folder '%s': %s", partial, strerror(errno));
  free(partial);
  return b200_format("%s", resolved);
}

/* A folder for each arm, which must be new. */
static void make_arms(const struct ab *ab, const char *root) {
  for (int arm = 0; arm < 2; arm++) {
    char *folder = b200_format("%s/%s", root, ab->names[arm]);
    make_one(folder, false);
    free(folder);
  }
}

/* ---- one run */

/* The text with {seed} and {dir} filled in; the caller frees it. */
static char *filled(const char *text, long seed, const char *folder) {
  char *out = NULL, number[24];
  size_t size;
  FILE *stream = open_memstream(&out, &size);
  if (!stream)
    abort();
  snprintf(number, sizeof(number), "%ld", seed);
  while (*text) {
    const char *value = strncmp(text, "{seed}", 6) == 0 ? number : strncmp(text, "{dir}", 5) == 0 ? folder : NULL;
    if (value) {
      fputs(value, stream);
      text += value == number ? 6 : 5;
    } else {
      fputc(*text++, stream);
    }
  }
  fclose(stream);
  return out;
}

/* `b200opt run|dryrun NAME=VALUE… -- COMMAND`, ended by NULL. */
static struct words job_words(const struct ab *ab, int arm, long seed, const char *folder) {
  struct words words = {0};
  words_add(&words, "b200opt");
  words_add(&words, ab->dryrun ? "dryrun" : "run");
  if (ab->dryrun) {
    words_add(&words, "--log");
    words_add(&words, folder);
  }
  if (ab->gpus) {
    words_add(&words, "--gpus");
    words_add(&words, ab->gpus);
  }
  words_add(&words, b200_format("B200OPT_LOG_DIR=%s", folder));
  words_add(&words, b200_format("B200OPT_ARM=%s", ab->names[arm]));
  const struct words *settings[] = {&ab->settings[2], &ab->settings[arm]};
  for (int i = 0; i < 2; i++)
    for (size_t j = 0; j < settings[i]->count; j++)
      words_add(&words, filled(settings[i]->list[j], seed, folder));
  words_add(&words, "--");
  for (char **word = ab->command; *word; word++)
    words_add(&words, filled(*word, seed, folder));
  words_add(&words, NULL);
  return words;
}

_Noreturn static void become_job(const struct words *words, const char *output) {
  int file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0)
    _exit(B200_EXIT_CANNOT_RUN);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  execv("/proc/self/exe", (char *const *)words->list);
  _exit(B200_EXIT_CANNOT_RUN);
}

/* In a process of its own, since the settings are put into the environment. A wrong one is ignored by a job, and the arm
   would not be what it is called. */
static void check_settings(const struct ab *ab, int arm, const char *root) {
  int status = 0;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    const struct words *settings[] = {&ab->settings[2], &ab->settings[arm]};
    for (int i = 0; i < 2; i++)
      for (size_t j = 0; j < settings[i]->count; j++)
        putenv(filled(settings[i]->list[j], ab->seed, root));
    _exit(launch_say_complaints() ? COMPARE_EXIT_USAGE : 0);
  }
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    continue;
  if (child < 0)
    cmd_fail(COMPARE_EXIT_INVALID, "ab: cannot start a process: %s", strerror(errno));
  if (status != 0)
    cmd_fail(COMPARE_EXIT_USAGE, "ab: arm %s has a variable that is wrong: nothing is run", ab->names[arm]);
}

/* The end of what a failed run printed, on stderr, so that nobody has to look for it. */
static void show_tail(const char *output) {
  char lines[TAIL_LINES][256];
  size_t count = 0;
  FILE *in = fopen(output, "re");
  if (!in)
    return;
  while (fgets(lines[count % TAIL_LINES], sizeof(lines[0]), in))
    count++;
  fclose(in);
  cmd_say("ab: %s", count ? "its output ends with" : "it printed nothing");
  for (size_t i = count > TAIL_LINES ? count - TAIL_LINES : 0; i < count; i++) {
    char *line = lines[i % TAIL_LINES];
    line[strcspn(line, "\n")] = '\0';
    fprintf(stderr, "  | %s\n", line);
  }
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void note_failure(struct ab *ab, int arm, const char *run, int status) {
  char *text = WIFSIGNALED(status) ? b200_format("signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                   : b200_format("exit status %d", WEXITSTATUS(status));
  ab->failures = b200_grow(ab->failures, ab->failure_count, sizeof(*ab->failures));
  ab->failures[ab->failure_count++] =
      (struct compare_failure){.side = arm ? "candidate" : "baseline", .run = b200_format("%s", run), .status = text};
  cmd_say("ab: %s %s ended with %s", ab->names[arm], run, text);
}

static void run_one(struct ab *ab, const char *root, int arm, long index) {
  char *run = b200_format("run-%ld", index + 1), *folder = b200_format("%s/%s/%s", root, ab->names[arm], run);
  char *output = b200_format("%s/job.out", folder);
  int status = 0;
  make_one(folder, false);
  struct words words = job_words(ab, arm, ab->seed + index, folder);
  double started = now_s();
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    become_job(&words, output);
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    continue;
  if (child < 0)
    cmd_fail(COMPARE_EXIT_INVALID, "ab: cannot start a process: %s", strerror(errno));
  if (status != 0) {
    note_failure(ab, arm, run, status);
    show_tail(output);
  } else {
    cmd_say("ab: %s %s: done in %.1f s", ab->names[arm], run, now_s() - started);
  }
  free(words.list);
  free(output);
  free(folder);
  free(run);
}

/* ---- the verb */

/* True when some word would differ between seeds. */
static bool uses_seed(const struct ab *ab) {
  for (char **word = ab->command; *word; word++)
    if (strstr(*word, "{seed}"))
      return true;
  for (int i = 0; i < 3; i++)
    for (size_t j = 0; j < ab->settings[i].count; j++)
      if (strstr(ab->settings[i].list[j], "{seed}"))
        return true;
  return false;
}

static int compare_arms(struct ab *ab, const char *root) {
  char *paths[2];
  for (int arm = 0; arm < 2; arm++)
    paths[arm] = b200_format("%s/%s", root, ab->names[arm]);
  if (!ab->request.html)
    ab->request.html = b200_format("%s/compare.html", root);
  if (!ab->request.json)
    ab->request.json = b200_format("%s/compare.json", root);
  int status =
      compare_carry_out(&ab->request, (const char *const[]){paths[0], paths[1]}, ab->names, ab->failures, ab->failure_count);
  cmd_say("ab: the page is %s", ab->request.html);
  free(paths[0]);
  free(paths[1]);
  return status;
}

int cmd_ab(int argc, char **argv) {
  static const struct argp argp = {.options = options,
                                   .parser = parse,
                                   .args_doc =
                                       "--arm NAME: [NAME=VALUE...] --arm NAME: [NAME=VALUE...] -- COMMAND [ARGUMENT...]",
                                   .doc = doc,
                                   .children = compare_options};
  struct ab ab = {.request = compare_request_new("ab"), .runs = 1, .out = "b200opt-ab"};
  cmd_parse_or(COMPARE_EXIT_USAGE, &argp, argc, argv, ARGP_IN_ORDER, &ab);
  ab.request.lenient = true;
  check(&ab);
  if (ab.runs > 1 && !uses_seed(&ab))
    cmd_say("ab: the command has no {seed}: all runs have its own seed, and say nothing about others");
  char *root = make_root(&ab);
  for (int arm = 0; arm < 2; arm++)
    check_settings(&ab, arm, root);
  compare_request_check(&ab.request);
  make_arms(&ab, root);
  for (long i = 0; i < ab.runs; i++) {
    run_one(&ab, root, i % 2 == 0 ? 0 : 1, i);
    run_one(&ab, root, i % 2 == 0 ? 1 : 0, i);
  }
  int status = compare_arms(&ab, root);
  free(root);
  return status;
}
