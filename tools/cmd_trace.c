/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the trace-event format ("Trace Event Format", JSON object form) that Perfetto and chrome://tracing read. */
#include "tools/cmd.h"
#include "tools/report/clocks.h"
#include "tools/report/model.h"
#include "tools/report/rows.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAMS_MAX 64 /* of one rank that get a track each; the rest share one */

static const char doc[] = "Write a timeline of a job from the logs in LOGDIR, for ui.perfetto.dev or chrome://tracing.\n"
                          "\n"
                          "One process per rank; in it a track with the steps as the host issued them, one with the steps "
                          "on the device, and one for each stream with its timed collectives; and counters: loss, device "
                          "memory by owner, and what NVML says. The ranks' clocks are aligned by the ends of collectives, "
                          "as in the report."
                          "\v"
                          "OUTPUT\n"
                          "  JSON in the trace-event format; times are microseconds since the first\n"
                          "  event. How well the clocks fit is said on stderr.\n"
                          "\n"
                          "EXIT STATUS\n"
                          "  0  written\n"
                          "  2  wrong arguments\n"
                          "  3  there is nothing to read, or the file cannot be written\n"
                          "\n"
                          "EXAMPLES\n"
                          "  b200opt trace b200opt-logs -o trace.json\n"
                          "  b200opt trace --run demo-1 logs | gzip >trace.json.gz";

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Write to FILE (default: standard output)", 0},
    {"run", 'r', "NAME", 0, "The run to show (default: the newest in LOGDIR)", 0},
    {0},
};

struct arguments {
  struct cmd_folder folder;
  const char *output, *run;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  switch (key) {
  case 'o':
    arguments->output = value;
    return 0;
  case 'r':
    arguments->run = value;
    return 0;
  case ARGP_KEY_ARG:
    cmd_folder_take(&arguments->folder, value);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* ---- one rank */

enum { TRACK_HOST_STEPS = 1, TRACK_DEVICE_STEPS, TRACK_STREAMS };

struct rank {
  const struct b200_log *log;
  const struct report_clock *clock;
  int64_t host_to_device_ns; /* added to the host's times they are on the clock of the device */
  int64_t pid;
  int64_t streams[STREAMS_MAX], ends_ns[STREAMS_MAX + 1]; /* of the last slice on each of their tracks */
  size_t stream_count;
  char **kinds, **comms; /* texts as JSON */
};

struct trace {
  FILE *out;
  struct rank *ranks;
  size_t rank_count;
  int64_t begin_ns, events;
};

static int64_t device_time(const struct rank *rank, int64_t t_ns) {
  return report_clock_time(rank->clock, t_ns);
}

static int64_t host_time(const struct rank *rank, int64_t t_ns) {
  return report_clock_time(rank->clock, b200_add(t_ns, rank->host_to_device_ns));
}

/* Where the two clocks are not comparable, device steps are put where the host began them, in the median. */
static int64_t host_to_device(const struct b200_log *log) {
  int64_t *differences = NULL, median = 0;
  size_t count = 0;
  if (!log->timing_count || strcmp(log->timings[log->timing_count - 1].clock, "device") != 0)
    return 0;
  for (size_t i = 0; i < log->step_count; i++) {
    if (!log->steps[i].timed)
      continue;
    differences = b200_grow(differences, count, sizeof(*differences));
    differences[count++] = b200_add(log->steps[i].time.t_ns, log->steps[i].t_ns == INT64_MIN ? 0 : -log->steps[i].t_ns);
  }
  if (count) {
    qsort(differences, count, sizeof(*differences), report_by_number);
    median = differences[(count - 1) / 2];
  }
  free(differences);
  return median;
}

static char *quoted(const char *text) {
  json_t *value = json_string(text);
  char *json = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
  json_decref(value);
  return json ? json : b200_format("\"?\"");
}

/* The track of a stream. */
static int64_t track_of(struct rank *rank, int64_t stream) {
  size_t i = 0;
  while (i < rank->stream_count && rank->streams[i] != stream)
    i++;
  if (i == rank->stream_count && i < STREAMS_MAX)
    rank->streams[rank->stream_count++] = stream;
  return TRACK_STREAMS + (int64_t)i;
}

/* Ranks are processes by their number; a rank's second log, and one without a rank, get numbers of their own. */
static int64_t pid_of(const struct trace *trace, size_t index) {
  const struct b200_log *log = trace->ranks[index].log;
  for (size_t i = 0; i < index; i++)
    if (trace->ranks[i].log->rank == log->rank)
      return 1000000 + (int64_t)index;
  return log->rank >= 0 && log->rank < 1000000 ? log->rank : 1000000 + (int64_t)index;
}

static void start_rank(struct trace *trace, size_t index, const struct b200_log *log, const struct report_clock *clock) {
  struct rank *rank = &trace->ranks[index];
  *rank = (struct rank){.log = log, .clock = clock, .host_to_device_ns = host_to_device(log)};
  for (size_t i = 0; i <= STREAMS_MAX; i++)
    rank->ends_ns[i] = INT64_MIN;
  rank->pid = pid_of(trace, index);
  rank->kinds = b200_zeroed(log->kind_count, sizeof(*rank->kinds));
  rank->comms = b200_zeroed(log->comm_count, sizeof(*rank->comms));
  for (size_t i = 0; i < log->kind_count; i++)
    rank->kinds[i] = quoted(log->kinds[i].op);
  for (size_t i = 0; i < log->comm_count; i++)
    rank->comms[i] = quoted(log->comms[i].id);
}

static void end_rank(struct rank *rank) {
  for (size_t i = 0; i < rank->log->kind_count; i++)
    free(rank->kinds[i]);
  for (size_t i = 0; i < rank->log->comm_count; i++)
    free(rank->comms[i]);
  free(rank->kinds);
  free(rank->comms);
}

/* ---- events */

struct microseconds {
  char text[32];
};

static struct microseconds microseconds(int64_t ns) {
  struct microseconds value;
  int64_t positive = ns < 0 ? 0 : ns;
  snprintf(value.text, sizeof(value.text), "%" PRId64 ".%03" PRId64, positive / 1000, positive % 1000);
  return value;
}

static void begin_event(struct trace *trace, const char *phase, const struct rank *rank, int64_t track) {
  fprintf(trace->out, "%s{\"ph\":\"%s\",\"pid\":%" PRId64 ",\"tid\":%" PRId64, trace->events++ ? ",\n" : "\n", phase,
          rank->pid, track);
}

static void set_name(struct trace *trace, const struct rank *rank, int64_t track, const char *what, const char *name) {
  char *json = quoted(name);
  begin_event(trace, "M", rank, track);
  fprintf(trace->out, ",\"name\":\"%s\",\"args\":{\"name\":%s}}", what, json);
  free(json);
}

/* Times of the common clock; names are JSON, as is what follows in args. */
static void begin_slice(struct trace *trace, const struct rank *rank, int64_t track, int64_t from_ns, int64_t to_ns) {
  begin_event(trace, "X", rank, track);
  fprintf(trace->out, ",\"ts\":%s,\"dur\":%s", microseconds(b200_add(from_ns, -trace->begin_ns)).text,
          microseconds(b200_add(to_ns, -from_ns)).text);
}

/* "name":value; only what is finite and, for NVML, known. */
static void counter(struct trace *trace, const struct rank *rank, int64_t t_ns, const char *name, double value) {
  if (!isfinite(value))
    return;
  begin_event(trace, "C", rank, 0);
  fprintf(trace->out, ",\"name\":\"%s\",\"ts\":%s,\"args\":{\"value\":%.9g}}", name,
          microseconds(b200_add(host_time(rank, t_ns), -trace->begin_ns)).text, value);
}

static void write_ops(struct trace *trace, struct rank *rank) {
  const struct b200_log *log = rank->log;
  for (size_t i = 0; i < log->op_count; i++) {
    const struct b200_log_op *op = &log->ops[i];
    int64_t track = track_of(rank, op->stream), *last_ns = &rank->ends_ns[track - TRACK_STREAMS];
    int64_t from_ns = device_time(rank, op->t_ns), to_ns = device_time(rank, op->t_ns + op->dur_ns);
    /* Slices that overlap in part are dropped by viewers, and events are exact to half a microsecond. */
    from_ns = from_ns < *last_ns ? *last_ns : from_ns;
    to_ns = to_ns < from_ns ? from_ns : to_ns;
    *last_ns = to_ns;
    begin_slice(trace, rank, track, from_ns, to_ns);
    fprintf(trace->out,
            ",\"cat\":\"collective\",\"name\":%s,\"args\":{\"comm\":%s,\"seq\":%" PRId64 ",\"nranks\":%" PRId64
            ",\"bytes\":%" PRId64 ",\"group\":%" PRId64 ",\"step\":%" PRId64 ",\"blocked_us\":%s,\"queued_us\":%s}}",
            rank->kinds[op->kind], rank->comms[op->comm], op->seq, log->kinds[op->kind].nranks, op->bytes, op->group,
            op->step, microseconds(op->blocked_ns).text, microseconds(op->queued_ns).text);
  }
}

static void write_memory(struct trace *trace, const struct rank *rank, const struct b200_log_step *step) {
  begin_event(trace, "C", rank, 0);
  fprintf(trace->out, ",\"name\":\"device memory\",\"ts\":%s,\"args\":{",
          microseconds(b200_add(host_time(rank, step->t_ns), -trace->begin_ns)).text);
  for (size_t i = 0; i < B200_OWNER_COUNT; i++)
    fprintf(trace->out, "%s\"%s\":%" PRId64, i ? "," : "", b200_owner_names[i], step->hbm[i]);
  fprintf(trace->out, "}}");
}

/* A step ends where the next begins, also in logs that say otherwise. */
static int64_t step_end(int64_t from_ns, int64_t to_ns, int64_t next_ns) {
  to_ns = next_ns >= from_ns && next_ns < to_ns ? next_ns : to_ns;
  return to_ns < from_ns ? from_ns : to_ns;
}

static void write_host_step(struct trace *trace, const struct rank *rank, size_t index) {
  const struct b200_log_step *step = &rank->log->steps[index];
  int64_t from_ns = host_time(rank, step->t_ns), to_ns = host_time(rank, b200_add(step->t_ns, step->dur_ns));
  if (index + 1 < rank->log->step_count)
    to_ns = step_end(from_ns, to_ns, host_time(rank, step[1].t_ns));
  begin_slice(trace, rank, TRACK_HOST_STEPS, from_ns, to_ns);
  fprintf(trace->out,
          ",\"cat\":\"step\",\"name\":\"step %" PRId64 "\",\"args\":{\"gemm_calls\":%" PRId64 ",\"gemm_flops\":%" PRId64
          ",\"coll_calls\":%" PRId64 ",\"coll_bytes\":%" PRId64 ",\"first\":%d,\"interrupted\":%d}}",
          step->step, step->gemm_calls, step->gemm_flops, step->coll_calls, step->coll_bytes, step->first,
          step->interrupted);
}

static void write_device_step(struct trace *trace, const struct rank *rank, size_t index) {
  const struct b200_log_step *step = &rank->log->steps[index];
  const struct b200_log_time *time = &step->time;
  int64_t from_ns = device_time(rank, time->t_ns), to_ns = device_time(rank, time->t_ns + time->dev_ns);
  if (index + 1 < rank->log->step_count && step[1].timed)
    to_ns = step_end(from_ns, to_ns, device_time(rank, step[1].time.t_ns));
  begin_slice(trace, rank, TRACK_DEVICE_STEPS, from_ns, to_ns);
  fprintf(trace->out,
          ",\"cat\":\"step\",\"name\":\"step %" PRId64 "\",\"args\":{\"collectives\":%" PRId64 ",\"comm_us\":%s,"
          "\"blocked_us\":%s,\"queued_us\":%s",
          step->step, time->colls, microseconds(time->comm_ns).text, microseconds(time->blocked_ns).text,
          microseconds(time->queued_ns).text);
  if (time->gemms > 0)
    fprintf(trace->out, ",\"gemm_us\":%s,\"uncovered_us\":%s,\"host_us\":%s", microseconds(time->gemm_ns).text,
            microseconds(time->uncovered_ns).text, microseconds(time->host_ns).text);
  fprintf(trace->out, "}}");
}

static void write_steps(struct trace *trace, const struct rank *rank) {
  for (size_t i = 0; i < rank->log->step_count; i++) {
    write_host_step(trace, rank, i);
    write_memory(trace, rank, &rank->log->steps[i]);
    if (rank->log->steps[i].timed)
      write_device_step(trace, rank, i);
  }
}

static void write_counters(struct trace *trace, const struct rank *rank) {
  const struct b200_log *log = rank->log;
  for (size_t i = 0; i < log->loss_count; i++)
    counter(trace, rank, log->losses[i].t_ns, "loss", log->losses[i].loss);
  for (size_t i = 0; i < log->gpu_count; i++) {
    const struct b200_log_gpu *gpu = &log->gpus[i];
    const struct {
      const char *name;
      int64_t value;
      double scale;
    } rows[] = {{"GPU busy %", gpu->util_pct, 1},      {"GPU memory busy %", gpu->mem_util_pct, 1},
                {"GPU memory used", gpu->mem_used, 1}, {"GPU power W", gpu->power_mw, 1e-3},
                {"GPU SM clock MHz", gpu->sm_mhz, 1},  {"GPU temperature C", gpu->temp_c, 1}};
    for (size_t j = 0; j < sizeof(rows) / sizeof(rows[0]); j++)
      counter(trace, rank, gpu->t_ns, rows[j].name, rows[j].value < 0 ? (double)NAN : (double)rows[j].value * rows[j].scale);
  }
}

static void write_rank(struct trace *trace, struct rank *rank) {
  const struct b200_log *log = rank->log;
  char *name = log->rank >= 0 ? b200_format("rank %" PRId64 " on %s", log->rank, log->host)
                              : b200_format("process %" PRId64 " on %s", log->pid, log->host);
  set_name(trace, rank, 0, "process_name", name);
  free(name);
  begin_event(trace, "M", rank, 0);
  fprintf(trace->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%" PRId64 "}}", rank->pid);
  write_ops(trace, rank);
  write_steps(trace, rank);
  write_counters(trace, rank);
  set_name(trace, rank, TRACK_HOST_STEPS, "thread_name", log->is_virtual ? "steps, host (plays the node)" : "steps, host");
  set_name(trace, rank, TRACK_DEVICE_STEPS, "thread_name", log->is_virtual ? "steps, device (modelled)" : "steps, device");
  for (size_t i = 0; i < rank->stream_count; i++) {
    name = b200_format("stream %" PRId64 ", collectives%s", rank->streams[i], log->is_virtual ? " (modelled)" : "");
    set_name(trace, rank, TRACK_STREAMS + (int64_t)i, "thread_name", name);
    free(name);
  }
  if (rank->stream_count == STREAMS_MAX)
    set_name(trace, rank, TRACK_STREAMS + STREAMS_MAX, "thread_name", "other streams, collectives");
}

/* ---- the whole */

static void keep_least(int64_t *least, int64_t value) {
  *least = value < *least ? value : *least;
}

static int64_t first_event(const struct trace *trace) {
  int64_t least = INT64_MAX;
  for (size_t i = 0; i < trace->rank_count; i++) {
    const struct rank *rank = &trace->ranks[i];
    const struct b200_log *log = rank->log;
    for (size_t j = 0; j < log->op_count; j++)
      keep_least(&least, device_time(rank, log->ops[j].t_ns));
    for (size_t j = 0; j < log->step_count; j++) {
      keep_least(&least, host_time(rank, log->steps[j].t_ns));
      if (log->steps[j].timed)
        keep_least(&least, device_time(rank, log->steps[j].time.t_ns));
    }
    for (size_t j = 0; j < log->loss_count; j++)
      keep_least(&least, host_time(rank, log->losses[j].t_ns));
    for (size_t j = 0; j < log->gpu_count; j++)
      keep_least(&least, host_time(rank, log->gpus[j].t_ns));
  }
  return least == INT64_MAX ? 0 : least;
}

static void write_trace(struct trace *trace, const char *run) {
  char *name = quoted(run);
  trace->begin_ns = first_event(trace);
  fprintf(trace->out,
          "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"producer\":\"b200opt %s\",\"run\":%s},\n\"traceEvents\":[",
          B200_VERSION, name);
  free(name);
  for (size_t i = 0; i < trace->rank_count; i++)
    write_rank(trace, &trace->ranks[i]);
  fprintf(trace->out, "\n]}\n");
}

static void say_clocks(const struct report_clocks *clocks, int64_t events) {
  if (clocks->count < 2)
    cmd_say("trace: %" PRId64 " events of one rank", events);
  else if (clocks->residual_p95_ns < 0)
    cmd_say("trace: %" PRId64
            " events of %zu ranks, placed by their hosts' time of day: there are too few collectives to align "
            "the clocks by",
            events, clocks->count);
  else
    cmd_say("trace: %" PRId64 " events of %zu ranks, %zu of them aligned by collectives to within %.1f us (p95)", events,
            clocks->count, clocks->aligned, (double)clocks->residual_p95_ns * 1e-3);
}

static void make_trace(const struct arguments *arguments, const struct b200_logs *logs, FILE *out) {
  struct trace trace = {.out = out};
  struct report_match match;
  struct report_clocks clocks;
  size_t count;
  const struct b200_log **chosen = report_logs_of_run(logs, arguments->run, &count);
  if (!count && arguments->run)
    cmd_fail(B200_EXIT_UNAVAILABLE, "trace: '%s' has no run named '%s'", arguments->folder.path, arguments->run);
  if (!count)
    cmd_fail(B200_EXIT_UNAVAILABLE, "trace: '%s' has no logs of the library (*.jsonl)", arguments->folder.path);
  if (!out && !(trace.out = fopen(arguments->output, "we")))
    cmd_fail(B200_EXIT_UNAVAILABLE, "trace: cannot write '%s': %s", arguments->output, strerror(errno));
  report_match_make(chosen, count, &match);
  report_clocks_make(chosen, count, &match, &clocks);
  trace.ranks = b200_zeroed(count, sizeof(*trace.ranks));
  trace.rank_count = count;
  for (size_t i = 0; i < count; i++)
    start_rank(&trace, i, chosen[i], &clocks.clocks[i]);
  write_trace(&trace, chosen[0]->run);
  bool failed = ferror(trace.out) != 0;
  if (fclose(trace.out) != 0 || failed)
    cmd_fail(B200_EXIT_UNAVAILABLE, "trace: cannot write '%s': %s",
             arguments->output ? arguments->output : "standard output", strerror(errno));
  say_clocks(&clocks, trace.events);
  if (chosen[0]->is_virtual)
    cmd_say("trace: of the virtual node: the device's times are modelled, the host's are of the machine that played it; "
            "their lengths cannot be compared");
  for (size_t i = 0; i < count; i++)
    end_rank(&trace.ranks[i]);
  free(trace.ranks);
  free(chosen);
  report_match_free(&match);
  report_clocks_free(&clocks);
}

int cmd_trace(int argc, char **argv) {
  static const struct argp argp = {
      .options = options, .parser = parse, .args_doc = "LOGDIR", .doc = doc, .children = cmd_common};
  struct arguments arguments = {0};
  struct b200_logs logs;
  cmd_parse(&argp, argc, argv, 0, &arguments);
  cmd_folder_check(&arguments.folder, "trace", true);
  if (!arguments.output && isatty(STDOUT_FILENO))
    cmd_fail(B200_EXIT_USAGE, "trace: a timeline is nothing for a terminal: name a file with -o FILE");
  cmd_logs_read("trace", arguments.folder.path, &logs);
  for (size_t i = 0; i < logs.note_count; i++)
    cmd_say("trace: %s", logs.notes[i]);
  make_trace(&arguments, &logs, arguments.output ? NULL : stdout);
  b200_logs_free(&logs);
  return B200_EXIT_OK;
}
