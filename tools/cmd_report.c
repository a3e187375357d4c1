/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"
#include "tools/kineto/report.h"
#include "tools/replay/export.h"
#include "tools/report/model.h"
#include "tools/report/text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char doc[] = "Say what a job did, from the logs in LOGDIR.\n"
                          "\n"
                          "Reads every *.jsonl below LOGDIR (those of libb200opt.so, and the virtual node's own count) and, "
                          "for losses that no log "
                          "has, every *.out (what the job printed). Counts are sums over all ranks. A log of a job that was "
                          "killed or still runs is "
                          "right about what it contains."
                          "\v"
                          "WITH --against\n"
                          "  LOGDIR and DIR are put side by side: counts by GEMM role and shape,\n"
                          "  collectives and device memory, and the printed losses. \"bit-identical\" means\n"
                          "  that every loss printed by both at the same step has the same value.\n"
                          "\n"
                          "WITH --kineto\n"
                          "  PATH is a trace of PyTorch's profiler (*.json, *.json.gz), or a folder\n"
                          "  with one for each rank. Overlap and breakdown are those of Holistic Trace\n"
                          "  Analysis (HTA). All GPU operations count; --without-last-step leaves out\n"
                          "  what HTA does by default.\n"
                          "\n"
                          "WITH --rmm-csv\n"
                          "  Writes the allocations that B200OPT_MEMORY_TRACE=on has recorded, of the\n"
                          "  lowest rank, as RMM's logging_resource_adaptor does, for RMM's own\n"
                          "  REPLAY_BENCHMARK. Another rank: b200opt replay --rank N --rmm-csv FILE.\n"
                          "\n"
                          "OUTPUT\n"
                          "  Text of at most 100 columns in ASCII, or with --json one object; its keys\n"
                          "  are documented in tools/report/KEYS.md (--kineto: tools/kineto/KEYS.md).\n"
                          "\n"
                          "EXIT STATUS\n"
                          "  0  read (logs may be partial); with --against, equal in every count and loss\n"
                          "  1  with --against, something differs; or the node's own count differs; or\n"
                          "     less was converted than B200OPT_MIN_COVERAGE of the job asked for\n"
                          "  2  wrong arguments\n"
                          "  3  there is nothing to read\n"
                          "\n"
                          "EXAMPLES\n"
                          "  b200opt report b200opt-logs\n"
                          "  b200opt report demo/preloaded --against demo/bare\n"
                          "  b200opt report --json logs | python3 -m json.tool\n"
                          "  b200opt report --kineto traces";

static const struct argp_option options[] = {
    {"against", 'a', "DIR", 0, "Compare with the logs in DIR", 0},
    {"json", 'j', NULL, 0, "Print JSON", 0},
    {"kineto", 'k', "PATH", 0, "Report traces of PyTorch's profiler instead", 0},
    {"without-last-step", 'w', NULL, 0, "With --kineto: leave out the last ProfilerStep", 0},
    {"rmm-csv", 'c', "FILE", 0, "Also write the recorded allocations in RMM's format", 0},
    {"run", 'r', "NAME", 0, "The run to report (default: the newest in LOGDIR)", 0},
    {0},
};

struct arguments {
  struct cmd_folder folder;
  const char *against, *run, *csv;
  bool json;
  struct kineto_question kineto;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  switch (key) {
  case 'a':
    arguments->against = value;
    return 0;
  case 'c':
    arguments->csv = value;
    return 0;
  case 'j':
    arguments->json = true;
    return 0;
  case 'k':
    arguments->kineto.path = value;
    return 0;
  case 'r':
    arguments->run = value;
    return 0;
  case 'w':
    arguments->kineto.without_last_step = true;
    return 0;
  case ARGP_KEY_ARG:
    cmd_folder_take(&arguments->folder, value);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static json_t *make_arm(const char *folder, const struct b200_logs *logs, const char *run, enum loss_source losses) {
  json_t *arm = report_arm(logs, run, losses);
  if (!arm && run)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: '%s' has no run named '%s'", folder, run);
  if (!arm)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: '%s' has no logs of b200opt (*.jsonl) and no output with losses (*.out)",
             folder);
  json_object_set_new(arm, "folder", json_string(folder));
  return arm;
}

static void add_notes(json_t *notes, const struct b200_logs *logs) {
  for (size_t i = 0; i < logs->note_count; i++)
    json_array_append_new(notes, json_string(logs->notes[i]));
}

static json_t *make_report(const struct arguments *arguments) {
  struct b200_logs logs, against_logs = {0};
  cmd_logs_read("report", arguments->folder.path, &logs);
  if (arguments->against)
    cmd_logs_read("report", arguments->against, &against_logs);
  /* Losses are compared from the same kind of source on both sides where that is possible. */
  bool output = arguments->against && report_has_output(&logs) && report_has_output(&against_logs);
  enum loss_source losses = output ? LOSS_FROM_OUTPUT_FIRST : LOSS_FROM_LOG_FIRST;
  json_t *arm = make_arm(arguments->folder.path, &logs, arguments->run, losses);
  json_t *report = json_pack("{si ss sO so}", "format", 1, "b200opt", B200_VERSION, "report", arm, "notes", json_array());
  json_object_set_new(report, "node_check", report_check_node(arm));
  json_object_set_new(report, "against", json_null());
  json_object_set_new(report, "comparison", json_null());
  add_notes(json_object_get(report, "notes"), &logs);
  if (arguments->against) {
    json_t *against = make_arm(arguments->against, &against_logs, NULL, losses);
    json_object_set_new(report, "comparison", report_compare(against, arm));
    json_object_set_new(report, "against", against);
    add_notes(json_object_get(report, "notes"), &against_logs);
  }
  if (arguments->csv)
    replay_write_csv("report", arguments->csv,
                     replay_choose_log("report", arguments->folder.path, arguments->run, -1, &logs));
  json_decref(arm);
  b200_logs_free(&logs);
  b200_logs_free(&against_logs);
  return report;
}

/* True when a part that compares is there and found a difference. */
static bool differs(const json_t *report, const char *part) {
  const json_t *comparison = json_object_get(report, part);
  return json_is_object(comparison) && !json_is_true(json_object_get(comparison, "equal"));
}

/* The traces are asked for with options that go with them, and nothing else. */
static int report_kineto(const struct arguments *arguments) {
  const char *other = arguments->folder.path ? arguments->folder.path
                      : arguments->against   ? "--against"
                      : arguments->run       ? "--run"
                      : arguments->csv       ? "--rmm-csv"
                                             : NULL;
  if (!arguments->kineto.path)
    cmd_fail(B200_EXIT_USAGE, "report: --without-last-step goes with --kineto; see b200opt report --help");
  if (other)
    cmd_fail(B200_EXIT_USAGE, "report: '%s' does not go with --kineto; see b200opt report --help", other);
  return kineto_report(&arguments->kineto, arguments->json);
}

int cmd_report(int argc, char **argv) {
  static const struct argp argp = {
      .options = options, .parser = parse, .args_doc = "LOGDIR", .doc = doc, .children = cmd_common};
  struct arguments arguments = {0};
  cmd_parse(&argp, argc, argv, 0, &arguments);
  if (arguments.kineto.path || arguments.kineto.without_last_step)
    return report_kineto(&arguments);
  cmd_folder_check(&arguments.folder, "report", true);
  json_t *report = make_report(&arguments);
  if (arguments.json) {
    json_dumpf(report, stdout, JSON_INDENT(1));
    putchar('\n');
  } else {
    report_print(stdout, report, isatty(STDOUT_FILENO));
  }
  const json_t *conversion = json_object_get(json_object_get(report, "report"), "conversion");
  bool short_of = json_is_false(json_object_get(conversion, "coverage_met"));
  bool found = differs(report, "comparison") || differs(report, "node_check") || short_of;
  int status = found ? B200_EXIT_FINDING : B200_EXIT_OK;
  json_decref(report);
  if (fflush(stdout) != 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: cannot write the report");
  return status;
}
