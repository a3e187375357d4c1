/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/export.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cmd.h"
#include "tools/replay/replay.h"
#include "tools/replay/rmm.h"
#include "tools/replay/source.h"
#include "tools/report/model.h"

/* The ranks with a trace, for a message. */
static const char *ranks_text(const struct b200_log **logs, size_t count) {
  static char text[256];
  size_t used = 0;
  for (size_t i = 0; i < count && used < sizeof(text) - 32; i++)
    if (logs[i]->blocks)
      used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%lld", used ? ", " : "", (long long)logs[i]->rank);
  return text;
}

const struct b200_log *replay_choose_log(const char *verb, const char *folder, const char *run, int64_t rank,
                                         const struct b200_logs *logs) {
  size_t count;
  const struct b200_log *chosen = NULL, **of_run = report_logs_of_run(logs, run, &count);
  bool any = false;
  if (!count && run)
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: '%s' has no run named '%s'", verb, folder, run);
  for (size_t i = 0; i < count; i++) {
    const struct b200_log *log = of_run[i];
    any = any || log->blocks;
    if (log->blocks && (rank < 0 || log->rank == rank) && (!chosen || log->rank < chosen->rank))
      chosen = log;
  }
  if (!any)
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: '%s' has no recorded allocations (run the job with B200OPT_MEMORY_TRACE=on)", verb,
             folder);
  if (!chosen)
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: '%s' has no recorded allocations of rank %lld (accepted: %s)", verb, folder,
             (long long)rank, ranks_text(of_run, count));
  free(of_run);
  return chosen;
}

static bool same_file(const char *a, const char *b) {
  struct stat one, other;
  return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

FILE *replay_open_csv(const char *verb, const char *path, const char *input) {
  if (path && same_file(path, input))
    cmd_fail(B200_EXIT_USAGE, "%s: --rmm-csv: '%s' is what is replayed; name another file", verb, path);
  FILE *csv = path ? fopen(path, "we") : NULL;
  if (path && !csv)
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: cannot write '%s': %s", verb, path, strerror(errno));
  return csv;
}

void replay_close_csv(const char *verb, FILE *csv, const char *path) {
  bool failed = csv && ferror(csv);
  if (csv && (fclose(csv) != 0 || failed))
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: cannot write '%s': %s", verb, path, strerror(errno));
}

void replay_write_csv(const char *verb, const char *path, const struct b200_log *log) {
  FILE *csv = replay_open_csv(verb, path, log->path);
  fprintf(csv, "%s\n", RMM_HEADER);
  struct replay_source *source = replay_source_log(log, csv);
  struct replay *replay = replay_create(NULL, 0, REPLAY_NO_LIMIT, replay_source_listener(source));
  struct replay_reading reading = replay_source_read(source, replay);
  if (reading.error)
    cmd_fail(B200_EXIT_UNAVAILABLE, "%s: %s", verb, reading.error);
  free(reading.note);
  replay_close_csv(verb, csv, path);
  replay_destroy(replay);
  replay_source_destroy(source);
}
