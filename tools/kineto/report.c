/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/report.h"

#include "tools/cmd.h"

#include <string.h>
#include <unistd.h>

int kineto_report(const struct kineto_question *question, bool json) {
  struct kineto_ranks ranks;
  int error = kineto_ranks_read(question->path, question->without_last_step, &ranks);
  if (error)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: cannot read '%s': %s", question->path, strerror(error));
  if (!ranks.count && ranks.note_count)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: '%s' has no traces: %s", question->path, ranks.notes[0]);
  if (!ranks.count)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: '%s' has no traces (*.json, *.json.gz)", question->path);
  if (json) {
    json_t *report = kineto_json(question, &ranks);
    /* 15 digits: what is a multiple of a nanosecond is printed as such. */
    json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(report);
  } else {
    kineto_print(stdout, question, &ranks, isatty(STDOUT_FILENO));
  }
  kineto_ranks_free(&ranks);
  if (fflush(stdout) != 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "report: cannot write the report");
  return B200_EXIT_OK;
}
