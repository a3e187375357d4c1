/* SPDX-License-Identifier: Apache-2.0 */
/* A run from the logs of its processes. */
#include "tools/compare/sources.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 3 /* besides the caller's */

/* What one process says; small beside its log, which is not kept whole. */
struct process {
  int64_t rank, unix_ns;
  bool node, trains; /* trains: it has steps or losses */
  size_t attempt;    /* how many processes of this rank that train came before */
  struct compare_step *steps;
  size_t step_count;
  struct compare_value *losses;
  size_t loss_count;
  double ended_s; /* since its log began */
};

static double seconds(int64_t ns) {
  return (double)ns / 1e9;
}

static double known_seconds(int64_t ns) {
  return ns < 0 ? (double)NAN : seconds(ns);
}

static struct compare_step step_of(const struct b200_log_step *step) {
  struct compare_step out = {.step = step->step,
                             .host_s = seconds(step->dur_ns),
                             .device_s = (double)NAN,
                             .gemm_s = (double)NAN,
                             .blocked_s = (double)NAN,
                             .comm_s = (double)NAN,
                             .starved_s = (double)NAN,
                             .first = step->first,
                             .interrupted = step->interrupted};
  if (!step->timed)
    return out;
  out.device_s = seconds(step->time.dev_ns);
  out.blocked_s = known_seconds(step->time.blocked_ns);
  out.comm_s = known_seconds(step->time.busy_ns);
  if (step->time.gemms > 0) {
    out.gemm_s = known_seconds(step->time.gemm_ns);
    out.starved_s = known_seconds(step->time.host_ns);
  }
  return out;
}

static void end_at(struct process *process, const struct b200_log *log, int64_t t_ns) {
  double t_s = seconds(t_ns) - seconds(log->t_ns);
  if (t_s > process->ended_s)
    process->ended_s = t_s;
}

static bool is_step(int64_t step) {
  return step >= 0 && step <= COMPARE_STEP_MAX;
}

static int by_ordinal(const void *a, const void *b) {
  const struct compare_step *left = a, *right = b;
  return (left->step > right->step) - (left->step < right->step);
}

static void take_steps(struct process *process, const struct b200_log *log) {
  process->steps = b200_zeroed(log->step_count, sizeof(*process->steps));
  for (size_t i = 0; i < log->step_count; i++) {
    const struct b200_log_step *step = &log->steps[i];
    if (!is_step(step->step) || step->dur_ns < 0)
      continue;
    process->steps[process->step_count++] = step_of(step);
    end_at(process, log, b200_add(step->t_ns, step->dur_ns));
  }
  for (size_t i = 1; i < process->step_count; i++)
    if (process->steps[i - 1].step > process->steps[i].step) {
      qsort(process->steps, process->step_count, sizeof(*process->steps), by_ordinal);
      break;
    }
}

static void take_losses(struct process *process, const struct b200_log *log) {
  process->losses = b200_zeroed(log->loss_count, sizeof(*process->losses));
  for (size_t i = 0; i < log->loss_count; i++) {
    const struct b200_log_loss *loss = &log->losses[i];
    if (!is_step(loss->step))
      continue;
    double t_s = seconds(loss->t_ns) - seconds(log->t_ns);
    process->losses[process->loss_count++] = (struct compare_value){.step = loss->step,
                                                                    .loss = loss->loss,
                                                                    .grad_norm = loss->grad_norm,
                                                                    .tokens_per_s = loss->tokens_per_s,
                                                                    .t_s = t_s >= 0 ? t_s : (double)NAN,
                                                                    .rank = (int)process->rank};
    end_at(process, log, loss->t_ns);
  }
}

/* What a step and an operation need is the most of a log, and is in the process now. */
static void forget_details(struct b200_log *log) {
  free(log->steps);
  free(log->ops);
  free(log->gpus);
  free(log->losses);
  log->steps = NULL;
  log->ops = NULL;
  log->gpus = NULL;
  log->losses = NULL;
  log->step_count = log->op_count = log->gpu_count = log->loss_count = 0;
}

static int64_t usual_flops(const struct b200_log *log) {
  return log->step_count ? log->steps[log->step_count / 2].gemm_flops : 0;
}

static int by_rank_and_time(const void *a, const void *b) {
  const struct compare_log_file *left = a, *right = b;
  if (left->rank != right->rank)
    return left->rank < right->rank ? -1 : 1;
  if (left->unix_ns != right->unix_ns)
    return left->unix_ns < right->unix_ns ? -1 : 1;
  return strverscmp(left->path, right->path);
}

/* ---- ranks together */

/* A step lasts as long as on its slowest rank; device times are of the rank on which they are longest. */
static void merge_step(struct compare_step *into, const struct compare_step *step) {
  double host_s = into->host_s > step->host_s ? into->host_s : step->host_s;
  bool first = into->first || step->first, interrupted = into->interrupted || step->interrupted;
  if (isnan(into->device_s) || step->device_s > into->device_s)
    *into = *step;
  into->host_s = host_s;
  into->first = first;
  into->interrupted = interrupted;
}

/* Steps of `a` and `b`, both by ordinal, into `out`; returns how many. */
static size_t merge_steps(const struct compare_step *a, size_t a_count, const struct compare_step *b, size_t b_count,
                          struct compare_step *out) {
  size_t i = 0, j = 0, count = 0;
  while (i < a_count || j < b_count) {
    bool from_a = j == b_count || (i < a_count && a[i].step <= b[j].step);
    const struct compare_step *next = from_a ? &a[i++] : &b[j++];
    if (count && out[count - 1].step == next->step)
      merge_step(&out[count - 1], next);
    else
      out[count++] = *next;
  }
  return count;
}

/* Appends the steps of the processes of one attempt, counted on from what is there. */
static void add_steps(struct compare_run *run, const struct process *processes, size_t count, size_t attempt) {
  struct compare_step *all = NULL;
  size_t all_count = 0;
  for (size_t i = 0; i < count; i++) {
    if (processes[i].attempt != attempt || processes[i].step_count == 0) /* those that do not train have none */
      continue;
    struct compare_step *merged = b200_zeroed(all_count + processes[i].step_count, sizeof(*merged));
    all_count = merge_steps(all, all_count, processes[i].steps, processes[i].step_count, merged);
    free(all);
    all = merged;
  }
  int64_t offset = run->step_count ? run->steps[run->step_count - 1].step + 1 : 0;
  struct compare_step *steps = b200_zeroed(run->step_count + all_count, sizeof(*steps));
  if (run->step_count)
    memcpy(steps, run->steps, run->step_count * sizeof(*steps));
  for (size_t i = 0; i < all_count; i++) {
    steps[run->step_count + i] = all[i];
    steps[run->step_count + i].step += offset;
  }
  free(all);
  free(run->steps);
  run->steps = steps;
  run->step_count += all_count;
}

static void add_losses(struct compare_value **values, size_t *count, const struct process *process, double offset_s) {
  for (size_t i = 0; i < process->loss_count; i++) {
    *values = b200_grow(*values, *count, sizeof(**values));
    (*values)[*count] = process->losses[i];
    (*values)[(*count)++].t_s += offset_s;
  }
}

/* ---- circumstances */

static void add_text(json_t *object, const char *name, const char *text) {
  json_object_set_new(object, name, json_string(text));
}

static void take_facts(struct compare_run *run, const struct b200_log *log) {
  static const char *const objects[] = {"versions", "config", "nccl_env"};
  json_object_clear(run->facts);
  add_text(run->facts, "producer", log->producer);
  add_text(run->facts, "gpu", log->gpu);
  add_text(run->facts, "host", log->host);
  for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
    json_t *object = json_object_get(log->header, objects[i]);
    json_object_set_new(run->facts, objects[i], json_is_object(object) ? json_incref(object) : json_object());
  }
}

/* Processes that train before others, the library's logs before the node's, low ranks before high ones, new before old. */
static bool says_more(const struct process *process, const struct process *other) {
  if (process->trains != other->trains)
    return process->trains;
  if (process->node != other->node)
    return other->node;
  if (process->rank != other->rank)
    return process->rank < other->rank;
  return process->unix_ns > other->unix_ns;
}

static void choose_facts(struct compare_run *run, const struct process *processes) {
  size_t best = SIZE_MAX, other = 0;
  for (size_t i = 0; i < run->logs.log_count; i++)
    if (run->logs.logs[i].header && (best == SIZE_MAX || says_more(&processes[i], &processes[best])))
      best = i;
  if (best == SIZE_MAX)
    return;
  take_facts(run, &run->logs.logs[best]);
  run->world = run->logs.logs[best].world;
  for (size_t i = 0; i < run->logs.log_count; i++) {
    json_t *config = json_object_get(run->logs.logs[i].header, "config");
    other += processes[i].trains && config && !json_equal(config, json_object_get(run->facts, "config"));
  }
  if (other)
    compare_note(&run->notes, &run->note_count, "%zu processes ran with another configuration than rank %lld's newest",
                 other, (long long)processes[best].rank);
}

/* The job is as long as on the rank on which it took longest. */
static double modelled_time(const struct b200_logs *logs) {
  int64_t longest = 0;
  for (size_t i = 0; i < logs->log_count; i++)
    if (logs->logs[i].node && logs->logs[i].modelled_ns > longest)
      longest = logs->logs[i].modelled_ns;
  return longest > 0 ? seconds(longest) : (double)NAN;
}

/* ---- reading */

/* A log read by itself. */
struct job {
  const char *path;
  struct b200_logs logs;
  struct process process;
  int64_t gemm_flops;
};

static void read_job(struct job *job) {
  struct process *process = &job->process;
  b200_logs_add(&job->logs, job->path);
  if (job->logs.log_count == 0)
    return;
  struct b200_log *log = &job->logs.logs[0];
  process->rank = log->rank >= 0 && log->rank < INT32_MAX ? log->rank : 0;
  process->unix_ns = log->unix_ns;
  process->node = log->node;
  if (!log->node) {
    take_steps(process, log);
    take_losses(process, log);
  }
  process->trains = process->step_count || process->loss_count;
  job->gemm_flops = usual_flops(log);
  forget_details(log);
}

struct queue {
  struct job *jobs;
  size_t count;
  atomic_size_t next;
};

static void *work(void *argument) {
  struct queue *queue = argument;
  for (size_t i; (i = atomic_fetch_add(&queue->next, 1)) < queue->count;)
    read_job(&queue->jobs[i]);
  return NULL;
}

/* Each log is a struct of its own until all are read, so that threads share nothing. Few of them: each holds a whole log. */
static void read_jobs(struct job *jobs, size_t count) {
  struct queue queue = {.jobs = jobs, .count = count};
  pthread_t threads[THREADS_MAX];
  size_t started = 0;
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  while (started + 1 < count && started + 1 < (size_t)(processors > 0 ? processors : 1) && started < THREADS_MAX &&
         pthread_create(&threads[started], NULL, work, &queue) == 0)
    started++;
  work(&queue);
  for (size_t i = 0; i < started; i++)
    pthread_join(threads[i], NULL);
}

static void take_job(struct compare_run *run, struct job *job) {
  for (size_t i = 0; i < job->logs.note_count; i++)
    compare_note(&run->notes, &run->note_count, "%s", job->logs.notes[i]);
  if (job->logs.log_count) {
    const struct b200_log *log = &job->logs.logs[0];
    run->modelled = run->modelled || log->node || log->is_virtual;
    run->partial = run->partial || (!log->node && log->partial);
    run->gemm_flops = run->gemm_flops ? run->gemm_flops : job->gemm_flops;
    run->logs.logs = b200_grow(run->logs.logs, run->logs.log_count, sizeof(*log));
    run->logs.logs[run->logs.log_count++] = *log;
    job->logs.log_count = 0; /* its log has moved */
  }
  b200_logs_free(&job->logs);
}

/* Reads the files, by rank and time; returns how many are logs, processes[i] beside run->logs.logs[i]. */
static size_t read_processes(const struct compare_log_file *files, size_t count, struct compare_run *run,
                             struct process *processes) {
  struct job *jobs = b200_zeroed(count, sizeof(*jobs));
  size_t read = 0, attempts = 0;
  int64_t last_rank = -1;
  for (size_t i = 0; i < count; i++)
    jobs[i].path = files[i].path;
  read_jobs(jobs, count);
  for (size_t i = 0; i < count; i++) {
    bool is_log = jobs[i].logs.log_count > 0;
    struct process *process = &processes[read];
    take_job(run, &jobs[i]);
    if (!is_log)
      continue;
    *process = jobs[i].process;
    read++;
    if (!process->trains)
      continue;
    attempts = process->rank == last_rank ? attempts + 1 : 0;
    run->ranks += process->rank != last_rank;
    last_rank = process->rank;
    process->attempt = attempts;
  }
  free(jobs);
  return read;
}

/* A log does not say whether the job printed a step or the library counted from 0: numbers without a gap from 0 may be
   either. */
static bool may_be_counted(const struct compare_run *run) {
  return run->point_count && run->points[0].step == 0 &&
         run->points[run->point_count - 1].step == (int64_t)run->point_count - 1;
}

void compare_read_logs(const struct compare_log_file *files, size_t count, struct compare_run *run) {
  struct compare_log_file *sorted = b200_zeroed(count, sizeof(*sorted));
  struct process *processes = b200_zeroed(count, sizeof(*processes));
  struct compare_value *values = NULL;
  size_t value_count = 0;
  double offset_s = 0;
  bool more = true;
  memcpy(sorted, files, count * sizeof(*sorted));
  qsort(sorted, count, sizeof(*sorted), by_rank_and_time);
  size_t read = read_processes(sorted, count, run, processes);
  for (size_t attempt = 0; more; attempt++) {
    double longest_s = 0;
    more = false;
    add_steps(run, processes, read, attempt);
    for (size_t i = 0; i < read; i++) {
      more = more || (processes[i].trains && processes[i].attempt > attempt);
      if (!processes[i].trains || processes[i].attempt != attempt)
        continue;
      add_losses(&values, &value_count, &processes[i], offset_s);
      longest_s = processes[i].ended_s > longest_s ? processes[i].ended_s : longest_s;
    }
    offset_s += longest_s;
    run->resumes += more;
  }
  int resumes = run->resumes;
  choose_facts(run, processes);
  run->modelled_s = modelled_time(&run->logs);
  compare_curve(values, value_count, run);
  run->counted = may_be_counted(run);
  run->resumes = run->resumes > resumes ? run->resumes : resumes;
  run->ended_s = offset_s > 0 ? offset_s : (double)NAN;
  for (size_t i = 0; i < read; i++) {
    free(processes[i].steps);
    free(processes[i].losses);
  }
  free(values);
  free(processes);
  free(sorted);
}
