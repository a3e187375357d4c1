/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"
#include "tools/replay/export.h"
#include "tools/replay/replay.h"
#include "tools/replay/report.h"
#include "tools/replay/rmm.h"
#include "tools/replay/source.h"
#include "tools/report/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIB 1073741824.0
#define GPU_MEMORY_MAX_GIB 65536.0

static const char doc[] = "Run a recorded stream of device allocations through allocation policies, without a GPU.\n"
                          "\n"
                          "FILE is a log of a job that ran with B200OPT_MEMORY_TRACE=on (*.jsonl), or one of RMM's "
                          "logging_resource_adaptor; LOGDIR is a folder of logs, of which one rank is replayed."
                          "\v"
                          "POLICIES\n"
                          "  recorded     the recorded run itself\n"
                          "  cudamalloc   no cache: a cudaMalloc for each request\n"
                          "  cache        a cache of whole blocks under cudaMalloc\n"
                          "  expandable   PyTorch's expandable segments\n"
                          "  native       PyTorch's caching allocator over cudaMalloc: for logs of RMM,\n"
                          "               as a job's own log is from below that allocator\n"
                          "  all          each that goes with the file (default)\n"
                          "\n"
                          "OUTPUT\n"
                          "  Text of at most 100 columns, or with --json one object; its keys are\n"
                          "  documented in tools/replay/KEYS.md. Fragmentation is 1 - live / reserved\n"
                          "  when reserved memory first reached its peak. A retry is PyTorch's on a full\n"
                          "  device: what is free in the cache is given back, and it is tried again.\n"
                          "\n"
                          "EXIT STATUS\n"
                          "  0  replayed\n"
                          "  1  the trace and the ledger of the log do not say the same\n"
                          "  2  wrong arguments\n"
                          "  3  there is nothing to replay, or a line that cannot be\n"
                          "\n"
                          "EXAMPLES\n"
                          "  b200opt replay b200opt-logs --rank 3 --gpu-memory 80\n"
                          "  b200opt replay rmm.csv --policy cache --json\n"
                          "  b200opt replay b200opt-logs --rmm-csv job.csv";

static const struct argp_option options[] = {
    {"policy", 'p', "NAME", 0, "recorded, cudamalloc, cache, expandable, native or all", 0},
    {"rank", 'k', "N", 0, "The rank to replay (default: the lowest that was recorded)", 0},
    {"run", 'r', "NAME", 0, "The run to replay (default: the newest in LOGDIR)", 0},
    {"gpu-memory", 'g', "GIB", 0, "Memory of the device (default: without a limit)", 0},
    {"rmm-csv", 'c', "OUT", 0, "Also write the stream as a log of RMM, for RAPIDS' REPLAY_BENCHMARK", 0},
    {"json", 'j', NULL, 0, "Print JSON", 0},
    {0},
};

struct arguments {
  struct cmd_folder input;
  const struct replay_policy *policy; /* NULL: all */
  const char *run, *csv;
  int64_t rank; /* -1: not given */
  uint64_t limit;
  bool json;
};

static const struct replay_policy *policy_named(const char *name) {
  char names[128] = "all";
  for (size_t i = 0; i < REPLAY_POLICY_COUNT; i++) {
    if (strcmp(replay_policies[i]->name, name) == 0)
      return replay_policies[i];
    snprintf(names + strlen(names), sizeof(names) - strlen(names), ", %s", replay_policies[i]->name);
  }
  if (strcmp(name, "all") != 0)
    cmd_fail(B200_EXIT_USAGE, "replay: --policy: '%s' is not known (accepted: %s)", name, names);
  return NULL;
}

static int64_t rank_named(const char *text) {
  char *end;
  errno = 0;
  long long rank = strtoll(text, &end, 10);
  if (errno || end == text || *end || rank < 0 || rank > INT32_MAX)
    cmd_fail(B200_EXIT_USAGE, "replay: --rank: '%s' is not a rank (accepted: 0 and up)", text);
  return rank;
}

static uint64_t bytes_of_gib(const char *text) {
  char *end;
  double gib = strtod(text, &end);
  if (end == text || *end || !(gib * GIB >= 1) || gib > GPU_MEMORY_MAX_GIB)
    cmd_fail(B200_EXIT_USAGE, "replay: --gpu-memory: '%s' is not accepted (accepted: GiB above 0, up to %g)", text,
             GPU_MEMORY_MAX_GIB);
  return (uint64_t)(gib * GIB);
}

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  switch (key) {
  case 'p':
    arguments->policy = policy_named(value);
    return 0;
  case 'k':
    arguments->rank = rank_named(value);
    return 0;
  case 'r':
    arguments->run = value;
    return 0;
  case 'g':
    arguments->limit = bytes_of_gib(value);
    return 0;
  case 'c':
    arguments->csv = value;
    return 0;
  case 'j':
    arguments->json = true;
    return 0;
  case ARGP_KEY_ARG:
    cmd_folder_take(&arguments->input, value);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* ---- what to replay */

/* The file begins as a log of RMM does. Whatever else is no log of b200opt ends the process with one line. */
static bool is_rmm(const char *path) {
  char start[sizeof(RMM_HEADER)] = "";
  struct stat status;
  size_t length = strlen(path);
  if (stat(path, &status) != 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "replay: cannot read '%s': %s", path, strerror(errno));
  if (S_ISDIR(status.st_mode) || (length > 6 && strcmp(path + length - 6, ".jsonl") == 0))
    return false;
  FILE *file = fopen(path, "re");
  if (!file)
    cmd_fail(B200_EXIT_UNAVAILABLE, "replay: cannot read '%s': %s", path, strerror(errno));
  bool same = fgets(start, sizeof(start), file) && strcmp(start, RMM_HEADER) == 0;
  fclose(file);
  if (!same)
    cmd_fail(B200_EXIT_UNAVAILABLE,
             "replay: '%s' is no log (accepted: *.jsonl of b200opt, or a file whose first line is '%s')", path, RMM_HEADER);
  return true;
}

/* ---- replaying */

#define NOTES_MAX 5
struct notes {
  char *texts[NOTES_MAX];
  size_t count;
};

static void add_note(struct notes *notes, char *text) {
  if (text)
    notes->texts[notes->count++] = text;
}

static void add_notes(struct notes *notes, const struct replay_report *report) {
  const struct replay_stream *stream = replay_stream(report->replay);
  if (stream->unknown)
    add_note(notes, b200_format("%llu frees of memory from before the recording are left out",
                                (unsigned long long)stream->unknown));
  if (stream->replaced)
    add_note(notes, b200_format("%llu blocks were replaced by others at their address: their frees are missing",
                                (unsigned long long)stream->replaced));
  for (size_t i = 0; report->log && i < report->log->drop_count; i++)
    if (strcmp(report->log->drops[i].text, "block") == 0)
      add_note(notes, b200_format("%lld events were not recorded, as the log was full (B200OPT_LOG_MAX_MB)",
                                  (long long)report->log->drops[i].count));
  for (size_t i = 0; i < report->policy_count; i++)
    if (report->policies[i]->observe && replay_book(report->replay, i)->peak_reserved > report->limit)
      add_note(notes, b200_format("the recorded run would not fit: it held more than the device has"));
}

static size_t choose_policies(const struct arguments *arguments, bool tensors, const struct replay_policy **out) {
  size_t count = 0;
  if (arguments->policy && arguments->policy->tensors_only && !tensors)
    cmd_fail(B200_EXIT_USAGE,
             "replay: --policy %s is for tensors, as a log of RMM has them; a log of b200opt is from below the allocator",
             arguments->policy->name);
  for (size_t i = 0; i < REPLAY_POLICY_COUNT; i++) {
    bool wanted = arguments->policy ? arguments->policy == replay_policies[i] : tensors || !replay_policies[i]->tensors_only;
    if (wanted)
      out[count++] = replay_policies[i];
  }
  return count;
}

static void print(const struct arguments *arguments, const struct replay_report *report) {
  if (arguments->json) {
    json_t *json = replay_report_json(report);
    json_dumpf(json, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(json);
  } else {
    replay_report_text(stdout, report, isatty(STDOUT_FILENO));
  }
  if (fflush(stdout) != 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "replay: standard output cannot be written");
}

/* `log` NULL: the file is RMM's. */
static int replay(const struct arguments *arguments, const struct b200_log *log) {
  const struct replay_policy *policies[REPLAY_POLICY_COUNT];
  size_t count = choose_policies(arguments, !log, policies);
  struct notes notes = {0};
  FILE *csv = replay_open_csv("replay", arguments->csv, log ? log->path : arguments->input.path);
  if (csv && log)
    fprintf(csv, "%s\n", RMM_HEADER);
  struct replay_source *source = log ? replay_source_log(log, csv) : replay_source_rmm(arguments->input.path, csv);
  struct replay *replay = replay_create(policies, count, arguments->limit, replay_source_listener(source));
  struct replay_reading reading = replay_source_read(source, replay);
  if (reading.error)
    cmd_fail(B200_EXIT_UNAVAILABLE, "replay: %s", reading.error);
  replay_close_csv("replay", csv, arguments->csv);
  struct replay_report report = {.path = log ? log->path : arguments->input.path,
                                 .log = log,
                                 .limit = arguments->limit,
                                 .policies = policies,
                                 .policy_count = count,
                                 .replay = replay};
  add_note(&notes, reading.note);
  add_notes(&notes, &report);
  report.notes = notes.texts;
  report.note_count = notes.count;
  print(arguments, &report);
  const char *owner;
  int status = replay_check(&report, &owner) == REPLAY_DIFFERENT ? B200_EXIT_FINDING : B200_EXIT_OK;
  for (size_t i = 0; i < notes.count; i++)
    free(notes.texts[i]);
  replay_destroy(replay);
  replay_source_destroy(source);
  return status;
}

static int replay_logs(const struct arguments *arguments) {
  struct b200_logs logs;
  cmd_logs_read("replay", arguments->input.path, &logs);
  for (size_t i = 0; i < logs.note_count; i++)
    cmd_say("replay: %s", logs.notes[i]);
  int status = replay(arguments, replay_choose_log("replay", arguments->input.path, arguments->run, arguments->rank, &logs));
  b200_logs_free(&logs);
  return status;
}

int cmd_replay(int argc, char **argv) {
  static const struct argp argp = {
      .options = options, .parser = parse, .args_doc = "FILE|LOGDIR", .doc = doc, .children = cmd_common};
  struct arguments arguments = {.rank = -1, .limit = REPLAY_NO_LIMIT};
  cmd_parse(&argp, argc, argv, 0, &arguments);
  if (!arguments.input.path)
    cmd_fail(B200_EXIT_USAGE, "replay: a file or a log folder is missing; see b200opt replay --help");
  if (arguments.input.extra)
    cmd_fail(B200_EXIT_USAGE, "replay: one file or log folder is enough, '%s' is too much; see b200opt replay --help",
             arguments.input.extra);
  if (!is_rmm(arguments.input.path))
    return replay_logs(&arguments);
  if (arguments.rank >= 0 || arguments.run)
    cmd_fail(B200_EXIT_USAGE, "replay: --rank and --run go with logs of b200opt; '%s' is one of RMM", arguments.input.path);
  return replay(&arguments, NULL);
}
