/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/reader.h"

#include "interpose/record/decode.h"
#include "interpose/record/json.h"
#include "policy/loss_scan.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MAX 8 /* folders below the one that was named */

/* ---- memory */

void *b200_grow(void *array, size_t count, size_t size) {
  if ((count & (count - 1)) != 0) /* room up to the next power of two is there already */
    return array;
  void *grown = realloc(array, (count ? count * 2 : 1) * size);
  if (!grown) {
    fprintf(stderr, "b200opt: out of memory\n");
    exit(3);
  }
  return grown;
}

void *b200_zeroed(size_t count, size_t size) {
  void *array = calloc(count ? count : 1, size);
  if (!array) {
    fprintf(stderr, "b200opt: out of memory\n");
    exit(3);
  }
  return array;
}

char *b200_format(const char *format, ...) {
  char *text;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&text, format, arguments) < 0) {
    fprintf(stderr, "b200opt: out of memory\n");
    exit(3);
  }
  va_end(arguments);
  return text;
}

/* A zeroed element at the end of `array`. */
#define ADD(array, count)                                                                                                   \
  ((array) = b200_grow((array), (count), sizeof(*(array))), memset(&(array)[(count)], 0, sizeof(*(array))),                 \
   &(array)[(count)++])

int64_t b200_add(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum))
    return sum;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

static char *copy(const char *text) {
  return b200_format("%s", text);
}

/* ---- adding lines up */

struct generation {
  int64_t gen, operations;
};

/* Lines that say more of a step, until its own line is known. */
struct step_time {
  int64_t gen, step;
  struct b200_log_time time;
};
struct step_mark {
  int64_t gen, step, count;
  enum { MARK_FIRST, MARK_INTERRUPTED, MARK_OPTIMIZER, MARK_LAST } what;
};

struct reading {
  struct b200_logs *logs;
  struct b200_log *log;
  struct generation *generations;
  size_t generation_count;
  struct step_time *times;
  struct step_mark *marks;
  size_t time_count, mark_count;
  json_t *texts, *comms, *kinds, *untimed; /* text to place in the log's array of that name, see place_of() */
  struct b200_log_scan scan;
  json_t *last_hbm;                  /* of the last step */
  json_t *places[B200_RECORD_COUNT]; /* of types whose texts may be many: text to place, see place_of() */
  bool ended;
  bool noted[4]; /* one note per file and kind */
};

enum note { NOTE_CORRUPT, NOTE_TYPE, NOTE_FIELD, NOTE_FORMAT };

__attribute__((format(printf, 2, 3))) static void note(struct b200_logs *logs, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char *text;
  if (vasprintf(&text, format, arguments) < 0)
    exit(3);
  va_end(arguments);
  *ADD(logs->notes, logs->note_count) = text;
}

static bool first_of_kind(struct reading *reading, enum note kind) {
  bool first = !reading->noted[kind];
  reading->noted[kind] = true;
  return first;
}

static void add_header(struct reading *reading, json_t *object, const struct b200_log_line *line) {
  struct b200_log *log = reading->log;
  if (log->header)
    return;
  log->header = json_incref(object);
  log->producer = line->header_producer;
  log->run = line->header_run;
  log->arm = line->header_arm;
  log->host = line->header_host;
  log->gpu = line->header_gpu;
  log->pid = line->header_pid;
  log->rank = line->header_rank;
  log->world = line->header_world;
  log->t_ns = line->header_t_ns;
  log->unix_ns = line->header_unix_ns;
  if (line->header_producer[0])
    log->node = strncmp(line->header_producer, "vnode", 5) == 0;
  log->is_virtual = log->node || line->header_virtual_node == 1;
  if (line->header_format > B200_LOG_FORMAT && first_of_kind(reading, NOTE_FORMAT))
    note(reading->logs, "%s:1: format %lld is newer than %d, the newest that is known", log->path,
         (long long)line->header_format, B200_LOG_FORMAT);
}

/* The scanner hands out the same object for the same text: mostly what the step before held. */
static void add_hbm(struct reading *reading, json_t *hbm, size_t place) {
  struct b200_log_step *steps = reading->log->steps;
  if (hbm && hbm == reading->last_hbm && place > 0) {
    memcpy(steps[place].hbm, steps[place - 1].hbm, sizeof(steps[place].hbm));
    return;
  }
  for (size_t i = 0; hbm && i < B200_OWNER_COUNT; i++)
    steps[place].hbm[i] = json_integer_value(json_object_get(hbm, b200_owner_names[i]));
  json_decref(reading->last_hbm);
  reading->last_hbm = json_incref(hbm);
}

static void add_step(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log *log = reading->log;
  struct generation *generation = NULL;
  *ADD(log->steps, log->step_count) = (struct b200_log_step){
      .gen = line->step_gen,
      .step = line->step_step,
      .period = line->step_period,
      .t_ns = line->step_t_ns,
      .dur_ns = line->step_dur_ns,
      .gemm_calls = line->step_gemm_calls,
      .gemm_flops = line->step_gemm_flops,
      .coll_calls = line->step_coll_calls,
      .coll_bytes = line->step_coll_bytes,
      .alloc_calls = line->step_alloc_calls,
      .hbm_used = line->step_hbm_used,
  };
  add_hbm(reading, line->step_hbm, log->step_count - 1);
  for (size_t i = reading->generation_count; i-- > 0 && !generation;)
    if (reading->generations[i].gen == line->step_gen)
      generation = &reading->generations[i];
  if (!generation) {
    generation = ADD(reading->generations, reading->generation_count);
    generation->gen = line->step_gen;
  }
  generation->operations = b200_add(generation->operations, line->step_period);
  if (strcmp(line->step_source, "gemm") == 0)
    log->step_source = "gemm";
  else
    log->step_source = strcmp(line->step_source, "told") == 0 ? "told" : "coll";
}

/* Drops the steps of all generations but the one that covers most operations, and says of the collectives of others that
   they belong to no step. */
static void choose_generation(struct reading *reading) {
  struct b200_log *log = reading->log;
  const struct generation *best = reading->generations;
  size_t kept = 0;
  for (size_t i = 1; i < reading->generation_count; i++)
    if (reading->generations[i].operations > best->operations)
      best = &reading->generations[i];
  for (size_t i = 0; i < log->step_count; i++)
    if (log->steps[i].gen == best->gen)
      log->steps[kept++] = log->steps[i];
  for (size_t i = 0; i < log->op_count; i++)
    if (log->ops[i].gen != best->gen)
      log->ops[i].step = -1;
  log->step_count = kept;
}

static int by_ordinal(const void *a, const void *b) {
  const struct b200_log_step *left = *(struct b200_log_step *const *)a, *right = *(struct b200_log_step *const *)b;
  return (left->step > right->step) - (left->step < right->step);
}

/* `*hint`: where the last one was found; lines of a log come in the order of its steps. */
static struct b200_log_step *find_step(struct b200_log_step **order, size_t count, int64_t gen, int64_t ordinal,
                                       size_t *hint) {
  const struct b200_log_step wanted = {.step = ordinal}, *key = &wanted;
  struct b200_log_step **found = NULL;
  for (size_t i = *hint; i < count && i < *hint + 2 && !found; i++)
    if (order[i]->step == ordinal)
      found = &order[i];
  if (!found && count)
    found = bsearch(&key, order, count, sizeof(*order), by_ordinal);
  if (!found || (*found)->gen != gen)
    return NULL;
  *hint = (size_t)(found - order);
  return *found;
}

static bool in_order(struct b200_log_step *const *order, size_t count) {
  for (size_t i = 1; i < count; i++)
    if (order[i - 1]->step > order[i]->step)
      return false;
  return true;
}

/* Gives the chosen steps their device times and marks; those of other steps are left out. */
static void join_steps(struct reading *reading) {
  struct b200_log *log = reading->log;
  struct b200_log_step **order = NULL, *step;
  for (size_t i = 0; i < log->step_count; i++) {
    order = b200_grow(order, i, sizeof(struct b200_log_step *));
    order[i] = &log->steps[i];
  }
  if (!in_order(order, log->step_count))
    qsort(order, log->step_count, sizeof(*order), by_ordinal);
  size_t hint = 0;
  for (size_t i = 0; i < reading->time_count; i++) {
    const struct step_time *time = &reading->times[i];
    if ((step = find_step(order, log->step_count, time->gen, time->step, &hint))) {
      step->timed = true;
      step->time = time->time;
    }
  }
  hint = 0;
  for (size_t i = 0; i < reading->mark_count; i++) {
    const struct step_mark *mark = &reading->marks[i];
    if (!(step = find_step(order, log->step_count, mark->gen, mark->step, &hint)))
      continue;
    step->first = step->first || mark->what == MARK_FIRST;
    step->interrupted = step->interrupted || mark->what == MARK_INTERRUPTED;
    step->last = step->last || mark->what == MARK_LAST;
    if (mark->what == MARK_OPTIMIZER)
      step->optimizer = b200_add(step->optimizer, mark->count);
  }
  free(order);
}

static bool same_gemm(const struct b200_log_gemm *gemm, const struct b200_log_line *line) {
  return gemm->m == line->gemm_m && gemm->n == line->gemm_n && gemm->k == line->gemm_k && gemm->batch == line->gemm_batch &&
         strcmp(gemm->role, line->gemm_role) == 0 && strcmp(gemm->api, line->gemm_api) == 0 &&
         strcmp(gemm->ta, line->gemm_ta) == 0 && strcmp(gemm->tb, line->gemm_tb) == 0 &&
         strcmp(gemm->a, line->gemm_a) == 0 && strcmp(gemm->b, line->gemm_b) == 0 && strcmp(gemm->d, line->gemm_d) == 0 &&
         strcmp(gemm->compute, line->gemm_compute) == 0 && strcmp(gemm->epilogue, line->gemm_epilogue) == 0 &&
         strcmp(gemm->plan, line->gemm_plan) == 0 && strcmp(gemm->reason, line->gemm_reason) == 0 &&
         strcmp(gemm->wanted, line->gemm_wanted) == 0 && strcmp(gemm->would_auto, line->gemm_would_auto) == 0 &&
         strcmp(gemm->would_fp8, line->gemm_would_fp8) == 0 && strcmp(gemm->would_mxfp8, line->gemm_would_mxfp8) == 0;
}

static void add_gemm(struct b200_log *log, const struct b200_log_line *line) {
  struct b200_log_gemm *gemm = NULL;
  for (size_t i = 0; i < log->gemm_count && !gemm; i++)
    if (same_gemm(&log->gemms[i], line))
      gemm = &log->gemms[i];
  if (!gemm) {
    gemm = ADD(log->gemms, log->gemm_count);
    *gemm = (struct b200_log_gemm){.api = copy(line->gemm_api),
                                   .role = copy(line->gemm_role),
                                   .ta = copy(line->gemm_ta),
                                   .tb = copy(line->gemm_tb),
                                   .a = copy(line->gemm_a),
                                   .b = copy(line->gemm_b),
                                   .d = copy(line->gemm_d),
                                   .compute = copy(line->gemm_compute),
                                   .epilogue = copy(line->gemm_epilogue),
                                   .plan = copy(line->gemm_plan),
                                   .reason = copy(line->gemm_reason),
                                   .wanted = copy(line->gemm_wanted),
                                   .would_auto = copy(line->gemm_would_auto),
                                   .would_fp8 = copy(line->gemm_would_fp8),
                                   .would_mxfp8 = copy(line->gemm_would_mxfp8),
                                   .m = line->gemm_m,
                                   .n = line->gemm_n,
                                   .k = line->gemm_k,
                                   .batch = line->gemm_batch};
  }
  gemm->calls = b200_add(gemm->calls, line->gemm_calls);
  gemm->flops = b200_add(gemm->flops, line->gemm_flops);
  gemm->model_native_ns = b200_add(gemm->model_native_ns, line->gemm_model_native_ns);
  gemm->model_narrow_ns = b200_add(gemm->model_narrow_ns, line->gemm_model_narrow_ns);
}

static bool same_audit(const struct b200_log_audit *audit, const struct b200_log_line *line) {
  return audit->m == line->audit_m && audit->n == line->audit_n && audit->k == line->audit_k &&
         audit->batch == line->audit_batch && strcmp(audit->role, line->audit_role) == 0 &&
         strcmp(audit->ta, line->audit_ta) == 0 && strcmp(audit->tb, line->audit_tb) == 0 &&
         strcmp(audit->plan, line->audit_plan) == 0;
}

static void add_audit(struct b200_log *log, const struct b200_log_line *line) {
  struct b200_log_audit *audit = NULL;
  for (size_t i = 0; i < log->audit_count && !audit; i++)
    if (same_audit(&log->audits[i], line))
      audit = &log->audits[i];
  if (!audit) {
    audit = ADD(log->audits, log->audit_count);
    *audit = (struct b200_log_audit){.role = copy(line->audit_role),
                                     .ta = copy(line->audit_ta),
                                     .tb = copy(line->audit_tb),
                                     .plan = copy(line->audit_plan),
                                     .m = line->audit_m,
                                     .n = line->audit_n,
                                     .k = line->audit_k,
                                     .batch = line->audit_batch};
  }
  audit->calls = b200_add(audit->calls, line->audit_calls);
  /* What is not finite is worse than any number, and stays. */
  if (!isfinite(line->audit_error) || line->audit_error < 0)
    audit->error = -1;
  else if (audit->error >= 0 && line->audit_error > audit->error)
    audit->error = line->audit_error;
}

static void add_guard(struct b200_log *log, const struct b200_log_line *line) {
  *ADD(log->guards, log->guard_count) = (struct b200_log_guard){.role = copy(line->guard_role),
                                                                .ta = copy(line->guard_ta),
                                                                .tb = copy(line->guard_tb),
                                                                .plan = copy(line->guard_plan),
                                                                .what = copy(line->guard_what),
                                                                .m = line->guard_m,
                                                                .n = line->guard_n,
                                                                .k = line->guard_k,
                                                                .batch = line->guard_batch,
                                                                .applied = line->guard_applied,
                                                                .step = line->guard_step,
                                                                .t_ns = line->guard_t_ns};
}

static void add_coll(struct b200_log *log, const struct b200_log_line *line) {
  struct b200_log_coll *coll = NULL;
  for (size_t i = 0; i < log->coll_count && !coll; i++)
    if (log->colls[i].nranks == line->coll_nranks && strcmp(log->colls[i].op, line->coll_op) == 0 &&
        strcmp(log->colls[i].dtype, line->coll_dtype) == 0)
      coll = &log->colls[i];
  if (!coll) {
    coll = ADD(log->colls, log->coll_count);
    *coll = (struct b200_log_coll){.op = copy(line->coll_op), .dtype = copy(line->coll_dtype), .nranks = line->coll_nranks};
  }
  coll->calls = b200_add(coll->calls, line->coll_calls);
  coll->bytes = b200_add(coll->bytes, line->coll_bytes);
}

static void add_alloc(struct b200_log *log, const struct b200_log_line *line) {
  struct b200_log_alloc *alloc = NULL;
  for (size_t i = 0; i < log->alloc_count && !alloc; i++)
    if (strcmp(log->allocs[i].owner, line->alloc_owner) == 0)
      alloc = &log->allocs[i];
  if (!alloc) {
    alloc = ADD(log->allocs, log->alloc_count);
    alloc->owner = copy(line->alloc_owner);
  }
  alloc->current = line->alloc_current;
  if (line->alloc_peak > alloc->peak)
    alloc->peak = line->alloc_peak;
  alloc->allocs = b200_add(alloc->allocs, line->alloc_allocs);
  alloc->frees = b200_add(alloc->frees, line->alloc_frees);
  alloc->failed = b200_add(alloc->failed, line->alloc_failed);
}

static void add_pool(struct b200_log_pool *pool, const struct b200_log_line *line) {
  pool->lines++;
  pool->hits = b200_add(pool->hits, line->pool_hits);
  pool->misses = b200_add(pool->misses, line->pool_misses);
  pool->passed = b200_add(pool->passed, line->pool_passed);
  pool->waits = b200_add(pool->waits, line->pool_waits);
  pool->driver_calls = b200_add(pool->driver_calls, line->pool_driver_calls);
  pool->driver_ns = b200_add(pool->driver_ns, line->pool_driver_ns);
  pool->synchronisations = b200_add(pool->synchronisations, line->pool_synchronisations);
  pool->observed = b200_add(pool->observed, line->pool_observed);
  pool->retries = b200_add(pool->retries, line->pool_retries);
  pool->rescues = b200_add(pool->rescues, line->pool_rescues);
  pool->refused = b200_add(pool->refused, line->pool_refused);
  pool->failed = b200_add(pool->failed, line->pool_failed);
  pool->double_frees = b200_add(pool->double_frees, line->pool_double_frees);
  pool->released = b200_add(pool->released, line->pool_released);
  pool->released_bytes = b200_add(pool->released_bytes, line->pool_released_bytes);
  pool->unreturned = b200_add(pool->unreturned, line->pool_unreturned);
  pool->dropped = b200_add(pool->dropped, line->pool_dropped);
  pool->untracked = b200_add(pool->untracked, line->pool_untracked);
  pool->idle = line->pool_idle;
  pool->idle_peak = line->pool_idle_peak > pool->idle_peak ? line->pool_idle_peak : pool->idle_peak;
  pool->pinned = line->pool_pinned;
}

static void add_retry(struct b200_log_retries *retries, const struct b200_log_line *line) {
  retries->count = b200_add(retries->count, 1);
  retries->failures = b200_add(retries->failures, line->retry_failures);
  retries->dur_ns = b200_add(retries->dur_ns, line->retry_dur_ns);
}

static void add_call(struct b200_log *log, const struct b200_log_line *line) {
  struct b200_log_call *call = NULL;
  for (size_t i = 0; i < log->call_count && !call; i++)
    if (strcmp(log->calls[i].name, line->call_name) == 0 && strcmp(log->calls[i].lib, line->call_lib) == 0)
      call = &log->calls[i];
  if (!call) {
    call = ADD(log->calls, log->call_count);
    *call = (struct b200_log_call){.lib = copy(line->call_lib), .name = copy(line->call_name)};
  }
  call->calls = b200_add(call->calls, line->call_calls);
  call->errors = b200_add(call->errors, line->call_errors);
  call->bytes = b200_add(call->bytes, line->call_bytes);
}

static void add_loss(struct b200_log *log, const struct b200_log_line *line) {
  struct b200_log_loss loss = {line->loss_step, line->loss_loss, line->loss_tokens_per_s, line->loss_t_ns,
                               line->loss_grad_norm};
  if (log->loss_count && loss.step >= 0 && log->losses[log->loss_count - 1].step == loss.step)
    log->losses[log->loss_count - 1] = loss;
  else
    *ADD(log->losses, log->loss_count) = loss;
}

/* The place in its array of the element known by `text`; `count`, the next one, when the text is new. */
static size_t place_of(json_t **places, const char *text, size_t count) {
  *places = *places ? *places : json_object();
  const json_t *place = json_object_get(*places, text);
  if (place)
    return (size_t)json_integer_value(place);
  json_object_set_new(*places, text, json_integer((json_int_t)count));
  return count;
}

static void add_stack(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log *log = reading->log;
  char *text = b200_format("%s\n%s\n%s", line->stack_owner, line->stack_frames, line->stack_python);
  size_t place = place_of(&reading->places[B200_RECORD_stack], text, log->stack_count);
  free(text);
  if (place == log->stack_count)
    *ADD(log->stacks, log->stack_count) = (struct b200_log_stack){
        .owner = copy(line->stack_owner), .frames = copy(line->stack_frames), .python = copy(line->stack_python)};
  log->stacks[place].count++;
  log->stacks[place].bytes = b200_add(log->stacks[place].bytes, line->stack_bytes);
}

static void add_text(json_t **places, struct b200_log_text **texts, size_t *text_count, const char *text, int64_t count) {
  size_t place = place_of(places, text, *text_count);
  if (place == *text_count)
    *ADD(*texts, *text_count) = (struct b200_log_text){.text = copy(text)};
  (*texts)[place].count = b200_add((*texts)[place].count, count);
}

/* ---- device times */

/* The log's own copy of a text, the same for equal texts. */
static const char *intern(struct reading *reading, const char *text) {
  struct b200_log *log = reading->log;
  size_t place = place_of(&reading->texts, text, log->text_count);
  if (place == log->text_count)
    *ADD(log->texts, log->text_count) = copy(text);
  return log->texts[place];
}

static void add_timing(struct reading *reading, const struct b200_log_line *line) {
  *ADD(reading->log->timings, reading->log->timing_count) = (struct b200_log_timing){
      .mode = intern(reading, line->timing_mode),
      .why = intern(reading, line->timing_why),
      .clock = intern(reading, line->timing_clock),
      .every = line->timing_every,
      .clock_ns = line->timing_clock_ns,
  };
}

static struct b200_log_comm *find_comm(struct reading *reading, const char *id) {
  struct b200_log *log = reading->log;
  size_t place = place_of(&reading->comms, id, log->comm_count);
  if (place == log->comm_count)
    *ADD(log->comms, log->comm_count) = (struct b200_log_comm){.id = intern(reading, id), .parent = "", .rank = -1};
  return &log->comms[place];
}

static void add_comm(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log_comm *comm = find_comm(reading, line->comm_id);
  comm->nranks = line->comm_nranks;
  comm->rank = line->comm_rank;
  comm->parent = intern(reading, line->comm_parent);
}

static struct b200_log_kind *find_kind(struct reading *reading, const char *op, const char *dtype, int64_t nranks) {
  struct b200_log *log = reading->log;
  char *text = b200_format("%s\n%s\n%lld", op, dtype, (long long)nranks);
  size_t place = place_of(&reading->kinds, text, log->kind_count);
  free(text);
  if (place == log->kind_count)
    *ADD(log->kinds, log->kind_count) =
        (struct b200_log_kind){.op = intern(reading, op), .dtype = intern(reading, dtype), .nranks = nranks};
  return &log->kinds[place];
}

static void add_coll_time(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log_kind *kind = find_kind(reading, line->coll_time_op, line->coll_time_dtype, line->coll_time_nranks);
  kind->calls = b200_add(kind->calls, line->coll_time_calls);
  kind->bytes = b200_add(kind->bytes, line->coll_time_bytes);
  kind->dur_ns = b200_add(kind->dur_ns, line->coll_time_dur_ns);
  kind->blocked_ns = b200_add(kind->blocked_ns, line->coll_time_blocked_ns);
  kind->queued_ns = b200_add(kind->queued_ns, line->coll_time_queued_ns);
}

/* Such that no sum or difference of two of them overflows; 73 years of nanoseconds. */
static bool sane_time(int64_t t_ns) {
  return t_ns > -(INT64_C(1) << 61) && t_ns < (INT64_C(1) << 61);
}

static bool sane_span(int64_t t_ns, int64_t dur_ns, int64_t blocked_ns, int64_t queued_ns) {
  return sane_time(t_ns) && sane_time(dur_ns) && dur_ns >= 0 && blocked_ns >= 0 && blocked_ns <= dur_ns &&
         sane_time(queued_ns) && queued_ns >= 0;
}

static void add_op(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log *log = reading->log;
  if (!sane_span(line->op_t_ns, line->op_dur_ns, line->op_blocked_ns, line->op_queued_ns)) {
    log->invalid_times = b200_add(log->invalid_times, 1);
    return;
  }
  struct b200_log_comm *comm = find_comm(reading, line->op_comm);
  comm->nranks = comm->nranks ? comm->nranks : line->op_nranks;
  uint32_t comm_place = (uint32_t)(comm - log->comms);
  uint32_t kind_place = (uint32_t)(find_kind(reading, line->op_op, line->op_dtype, line->op_nranks) - log->kinds);
  *ADD(log->ops, log->op_count) = (struct b200_log_op){
      .gen = line->op_gen,
      .step = line->op_step,
      .seq = line->op_seq,
      .t_ns = line->op_t_ns,
      .dur_ns = line->op_dur_ns,
      .blocked_ns = line->op_blocked_ns,
      .queued_ns = line->op_queued_ns,
      .bytes = line->op_bytes,
      .group = line->op_group,
      .stream = line->op_stream,
      .comm = comm_place,
      .kind = kind_place,
  };
}

static void add_untimed(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log *log = reading->log;
  size_t place = place_of(&reading->untimed, line->untimed_why, log->untimed_count);
  if (place == log->untimed_count)
    ADD(log->untimed, log->untimed_count)->why = intern(reading, line->untimed_why);
  log->untimed[place].calls = b200_add(log->untimed[place].calls, line->untimed_calls);
}

static void add_time(struct reading *reading, const struct b200_log_line *line) {
  if (!sane_span(line->time_t_ns, line->time_dev_ns, line->time_blocked_ns, line->time_queued_ns)) {
    reading->log->invalid_times = b200_add(reading->log->invalid_times, 1);
    return;
  }
  *ADD(reading->times, reading->time_count) = (struct step_time){
      .gen = line->time_gen,
      .step = line->time_step,
      .time = {.t_ns = line->time_t_ns,
               .dev_ns = line->time_dev_ns,
               .colls = line->time_colls,
               .comm_ns = line->time_comm_ns,
               .busy_ns = line->time_busy_ns,
               .blocked_ns = line->time_blocked_ns,
               .queued_ns = line->time_queued_ns,
               .gemms = line->time_gemms,
               .gemm_ns = line->time_gemm_ns,
               .uncovered_ns = line->time_uncovered_ns,
               .host_ns = line->time_host_ns,
               .start_ns = line->time_start_ns,
               .starved = line->time_starved},
  };
}

static void add_mark(struct reading *reading, const struct b200_log_line *line) {
  static const char *const names[] = {
      [MARK_FIRST] = "first", [MARK_INTERRUPTED] = "interrupted", [MARK_OPTIMIZER] = "optimizer", [MARK_LAST] = "last"};
  for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    if (strcmp(line->mark_what, names[i]) == 0)
      *ADD(reading->marks, reading->mark_count) = (struct step_mark){line->mark_gen, line->mark_step, line->mark_count, i};
}

static void add_confidence(struct reading *reading, const struct b200_log_line *line) {
  struct b200_log_confidence *confidence = &reading->log->confidence;
  const char *name;
  json_t *steps;
  confidence->lines = b200_add(confidence->lines, 1);
  confidence->agree = line->confidence_agree;
  confidence->asked = line->confidence_asked;
  json_object_foreach(line->confidence_sources, name, steps) {
    const char *own = intern(reading, name);
    size_t i = 0;
    while (i < confidence->source_count && confidence->sources[i].name != own)
      i++;
    if (i == confidence->source_count)
      ADD(confidence->sources, confidence->source_count)->name = own;
    confidence->sources[i].steps = b200_add(confidence->sources[i].steps, json_integer_value(steps));
  }
}

static void add_gpu(struct reading *reading, const struct b200_log_line *line) {
  *ADD(reading->log->gpus, reading->log->gpu_count) = (struct b200_log_gpu){
      .t_ns = line->gpu_t_ns,
      .util_pct = line->gpu_util_pct,
      .mem_util_pct = line->gpu_mem_util_pct,
      .mem_used = line->gpu_mem_used,
      .mem_total = line->gpu_mem_total,
      .power_mw = line->gpu_power_mw,
      .sm_mhz = line->gpu_sm_mhz,
      .temp_c = line->gpu_temp_c,
      .throttle = line->gpu_throttle,
  };
}

static void add_graph(struct b200_log *log, const struct b200_log_line *line) {
  log->graph.launches = b200_add(log->graph.launches, line->graph_launches);
  log->graph.timed = b200_add(log->graph.timed, line->graph_timed);
  log->graph.dur_ns = b200_add(log->graph.dur_ns, line->graph_dur_ns);
}

/* ---- lines */

static void add_line(struct reading *reading, json_t *object, enum b200_record_type type, const struct b200_log_line *line) {
  struct b200_log *log = reading->log;
  switch (type) {
  case B200_RECORD_header:
    add_header(reading, object, line);
    break;
  case B200_RECORD_step:
    add_step(reading, line);
    break;
  case B200_RECORD_gemm:
    add_gemm(log, line);
    break;
  case B200_RECORD_audit:
    add_audit(log, line);
    break;
  case B200_RECORD_guard:
    add_guard(log, line);
    break;
  case B200_RECORD_sample:
    log->bad_samples = b200_add(log->bad_samples, 1);
    break;
  case B200_RECORD_workspace:
    log->workspace = (struct b200_log_workspace){line->workspace_bytes, line->workspace_capture_bytes,
                                                 line->workspace_arenas, line->workspace_limit, line->workspace_refused};
    break;
  case B200_RECORD_decisions:
    free(log->decisions);
    log->decisions = copy(line->decisions_hash);
    break;
  case B200_RECORD_coll:
    add_coll(log, line);
    break;
  case B200_RECORD_alloc:
    add_alloc(log, line);
    break;
  case B200_RECORD_call:
    add_call(log, line);
    break;
  case B200_RECORD_loss:
    add_loss(log, line);
    break;
  case B200_RECORD_node:
    free(log->order);
    log->order = copy(line->node_order);
    log->seed = line->node_seed;
    log->races = line->node_races;
    log->modelled_ns = line->node_modelled_ns;
    break;
  case B200_RECORD_oom:
    *ADD(log->ooms, log->oom_count) = (struct b200_log_oom){.owner = copy(line->oom_owner),
                                                            .why = copy(line->oom_why),
                                                            .advice = copy(line->oom_advice),
                                                            .bytes = line->oom_bytes,
                                                            .t_ns = line->oom_t_ns,
                                                            .failures = line->oom_failures,
                                                            .final = line->oom_final};
    break;
  case B200_RECORD_retry:
    add_retry(&log->retries, line);
    break;
  case B200_RECORD_pool:
    add_pool(&log->pool, line);
    break;
  case B200_RECORD_block: /* b200opt replay reads them by itself: they may be millions */
    log->blocks = b200_add(log->blocks, 1);
    break;
  case B200_RECORD_stack:
    add_stack(reading, line);
    break;
  case B200_RECORD_warn:
    add_text(&reading->places[type], &log->warnings, &log->warning_count, line->warn_text, 1);
    break;
  case B200_RECORD_drop:
    add_text(&reading->places[type], &log->drops, &log->drop_count, line->drop_what, line->drop_count);
    break;
  case B200_RECORD_timing:
    add_timing(reading, line);
    break;
  case B200_RECORD_comm:
    add_comm(reading, line);
    break;
  case B200_RECORD_op:
    add_op(reading, line);
    break;
  case B200_RECORD_coll_time:
    add_coll_time(reading, line);
    break;
  case B200_RECORD_untimed:
    add_untimed(reading, line);
    break;
  case B200_RECORD_graph:
    add_graph(log, line);
    break;
  case B200_RECORD_time:
    add_time(reading, line);
    break;
  case B200_RECORD_mark:
    add_mark(reading, line);
    break;
  case B200_RECORD_confidence:
    add_confidence(reading, line);
    break;
  case B200_RECORD_gpu:
    add_gpu(reading, line);
    break;
  case B200_RECORD_overhead:
    log->overhead = (struct b200_log_overhead){line->overhead_steps, line->overhead_on_ns, line->overhead_off_ns,
                                               line->overhead_pct, line->overhead_noise_pct};
    break;
  case B200_RECORD_end:
    reading->ended = true;
    break;
  case B200_RECORD_COUNT:
    break;
  }
}

/* ---- files */

/* `complete`: the line ends with a newline. The last line of a killed process may not, and is no defect. */
static void take_line(struct reading *reading, char *text, size_t length, bool complete) {
  struct b200_log *log = reading->log;
  struct b200_log_line line;
  json_error_t error;
  const char *unknown;
  json_t *object;
  log->lines++;
  int scanned = b200_log_line_scan(&reading->scan, text, length, &line);
  if (scanned >= 0) {
    add_line(reading, NULL, (enum b200_record_type)scanned, &line); /* never a header, of which the object is kept */
    return;
  }
  object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  if (!json_is_object(object)) {
    if (complete && first_of_kind(reading, NOTE_CORRUPT))
      note(reading->logs, "%s:%lld: not a JSON object; the line is skipped", log->path, (long long)log->lines);
    json_decref(object);
    return;
  }
  int type = b200_log_line_decode(object, &line, &unknown);
  if (type < 0 && first_of_kind(reading, NOTE_TYPE))
    note(reading->logs, "%s:%lld: unknown line type; such lines are skipped", log->path, (long long)log->lines);
  if (unknown && first_of_kind(reading, NOTE_FIELD))
    note(reading->logs, "%s:%lld: unknown field '%s' is skipped", log->path, (long long)log->lines, unknown);
  if (type >= 0)
    add_line(reading, object, (enum b200_record_type)type, &line);
  json_decref(object);
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* True when the first line could be a log's: other programs write *.jsonl too. An empty file is a log that did not get far.
 */
static bool looks_like_log(FILE *file) {
  char start[64];
  size_t length = fread(start, 1, sizeof(start) - 1, file);
  start[length] = '\0';
  rewind(file);
  return length == 0 || strncmp(start, "{\"t\":", 5) == 0 || strncmp(start, "{\"t\": ", 6) == 0;
}

/* `array` without the room that b200_grow() keeps; nothing may be added any more. */
static void *shrunk(void *array, size_t count, size_t size) {
  void *smaller = count ? realloc(array, count * size) : NULL;
  return smaller ? smaller : array;
}

static void free_reading(struct reading *reading) {
  json_t *places[] = {reading->texts, reading->comms, reading->kinds, reading->untimed};
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
    json_decref(places[i]);
  for (size_t i = 0; i < B200_RECORD_COUNT; i++)
    json_decref(reading->places[i]);
  b200_log_scan_free(&reading->scan);
  json_decref(reading->last_hbm);
  free(reading->generations);
  free(reading->times);
  free(reading->marks);
}

static void read_log(struct b200_logs *logs, const char *path) {
  char *text = NULL;
  size_t room = 0;
  ssize_t length;
  FILE *file = fopen(path, "re");
  if (!file || !looks_like_log(file)) {
    note(logs, "%s: %s", path, file ? "not a log of b200opt" : strerror(errno));
    if (file)
      fclose(file);
    return;
  }
  struct b200_log *log = ADD(logs->logs, logs->log_count);
  struct reading reading = {.logs = logs, .log = log};
  log->path = copy(path);
  log->node = ends_with(path, ".node.jsonl");
  log->producer = log->run = log->arm = log->host = log->gpu = log->step_source = "";
  log->rank = log->world = -1;
  while ((length = getline(&text, &room, file)) > 0) {
    bool complete = text[length - 1] == '\n';
    take_line(&reading, text, (size_t)length, complete);
  }
  log->partial = !reading.ended;
  if (!log->header)
    note(logs, "%s: no header: its process ended before it wrote one", path);
  if (reading.generation_count)
    choose_generation(&reading);
  join_steps(&reading);
  free_reading(&reading);
  /* A thousand ranks' logs are held at once. */
  log->ops = shrunk(log->ops, log->op_count, sizeof(*log->ops));
  log->steps = shrunk(log->steps, log->step_count, sizeof(*log->steps));
  free(text);
  fclose(file);
}

/* Ranks may print into one file in any order, and progress bars repeat themselves: equal values of a step count once. */
static void add_printed(struct b200_output *output, struct b200_log_loss loss) {
  size_t look_back = output->loss_count < 16 ? output->loss_count : 16;
  for (size_t i = output->loss_count - look_back; i < output->loss_count; i++)
    if (output->losses[i].step == loss.step && memcmp(&output->losses[i].loss, &loss.loss, sizeof(loss.loss)) == 0)
      return;
  *ADD(output->losses, output->loss_count) = loss;
}

static void read_output(struct b200_logs *logs, const char *path) {
  char *text = NULL;
  size_t room = 0;
  ssize_t length;
  struct b200_loss loss;
  FILE *file = fopen(path, "re");
  if (!file) {
    note(logs, "%s: %s", path, strerror(errno));
    return;
  }
  struct b200_output *output = ADD(logs->outputs, logs->output_count);
  output->path = copy(path);
  while ((length = getline(&text, &room, file)) > 0) {
    size_t bytes = (size_t)length - (text[length - 1] == '\n');
    if (!b200_loss_scan(text, bytes, &loss))
      continue;
    int64_t step = loss.step >= 0 ? loss.step : (int64_t)output->loss_count + 1;
    add_printed(output, (struct b200_log_loss){step, loss.loss, loss.tokens_per_s, 0, loss.grad_norm});
  }
  free(text);
  fclose(file);
}

static void read_file(struct b200_logs *logs, const char *path) {
  if (ends_with(path, ".jsonl"))
    read_log(logs, path);
  else if (ends_with(path, ".out"))
    read_output(logs, path);
}

struct file_id {
  dev_t device;
  ino_t inode;
};

struct walk {
  struct b200_logs *logs;
  struct file_id *seen; /* files that were read, whatever their names */
  size_t seen_count;
};

static bool is_new(struct walk *walk, const struct stat *status) {
  for (size_t i = 0; i < walk->seen_count; i++)
    if (walk->seen[i].device == status->st_dev && walk->seen[i].inode == status->st_ino)
      return false;
  *ADD(walk->seen, walk->seen_count) = (struct file_id){status->st_dev, status->st_ino};
  return true;
}

static int read_folder(struct walk *walk, const char *path, int depth);

/* Links to files are followed and count once; links to folders are not: `latest -> run-7` would count a run twice. */
static void read_entry(struct walk *walk, const char *path, int depth) {
  struct stat status;
  if (lstat(path, &status) != 0)
    return;
  if (S_ISDIR(status.st_mode) && depth < DEPTH_MAX)
    read_folder(walk, path, depth + 1);
  else if (stat(path, &status) == 0 && S_ISREG(status.st_mode) && is_new(walk, &status))
    read_file(walk->logs, path);
}

static int read_folder(struct walk *walk, const char *path, int depth) {
  struct dirent **entries;
  int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0)
    return errno;
  for (int i = 0; i < count; i++) {
    char *child = b200_format("%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.')
      read_entry(walk, child, depth);
    free(child);
    free(entries[i]);
  }
  free(entries);
  return 0;
}

int b200_logs_read(const char *path, struct b200_logs *out) {
  struct walk walk = {.logs = out};
  struct stat status;
  int error = 0;
  memset(out, 0, sizeof(*out));
  if (stat(path, &status) != 0)
    return errno;
  if (S_ISDIR(status.st_mode))
    error = read_folder(&walk, path, 0);
  else
    read_file(out, path);
  free(walk.seen);
  return error;
}

void b200_logs_add(struct b200_logs *logs, const char *path) {
  read_log(logs, path);
}

/* ---- freeing */

static void free_gemm(struct b200_log_gemm *gemm) {
  char *texts[] = {gemm->api,    gemm->role,   gemm->ta,         gemm->tb,        gemm->a,
                   gemm->b,      gemm->d,      gemm->compute,    gemm->epilogue,  gemm->plan,
                   gemm->reason, gemm->wanted, gemm->would_auto, gemm->would_fp8, gemm->would_mxfp8};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
    free(texts[i]);
}

static void free_narrow(struct b200_log *log) {
  for (size_t i = 0; i < log->audit_count; i++) {
    struct b200_log_audit *audit = &log->audits[i];
    char *texts[] = {audit->role, audit->ta, audit->tb, audit->plan};
    for (size_t j = 0; j < sizeof(texts) / sizeof(texts[0]); j++)
      free(texts[j]);
  }
  for (size_t i = 0; i < log->guard_count; i++) {
    struct b200_log_guard *guard = &log->guards[i];
    char *texts[] = {guard->role, guard->ta, guard->tb, guard->plan, guard->what};
    for (size_t j = 0; j < sizeof(texts) / sizeof(texts[0]); j++)
      free(texts[j]);
  }
  free(log->audits);
  free(log->guards);
  free(log->decisions);
}

static void free_texts(struct b200_log_text *texts, size_t count) {
  for (size_t i = 0; i < count; i++)
    free(texts[i].text);
  free(texts);
}

static void free_log(struct b200_log *log) {
  for (size_t i = 0; i < log->gemm_count; i++)
    free_gemm(&log->gemms[i]);
  free_narrow(log);
  for (size_t i = 0; i < log->coll_count; i++) {
    free(log->colls[i].op);
    free(log->colls[i].dtype);
  }
  for (size_t i = 0; i < log->alloc_count; i++)
    free(log->allocs[i].owner);
  for (size_t i = 0; i < log->call_count; i++) {
    free(log->calls[i].lib);
    free(log->calls[i].name);
  }
  for (size_t i = 0; i < log->oom_count; i++) {
    free(log->ooms[i].owner);
    free(log->ooms[i].why);
    free(log->ooms[i].advice);
  }
  for (size_t i = 0; i < log->stack_count; i++) {
    free(log->stacks[i].owner);
    free(log->stacks[i].frames);
    free(log->stacks[i].python);
  }
  free_texts(log->drops, log->drop_count);
  free_texts(log->warnings, log->warning_count);
  free(log->order);
  for (size_t i = 0; i < log->text_count; i++)
    free(log->texts[i]);
  void *arrays[] = {log->steps,
                    log->gemms,
                    log->colls,
                    log->allocs,
                    log->calls,
                    log->losses,
                    log->ooms,
                    log->stacks,
                    log->path,
                    log->ops,
                    log->timings,
                    log->comms,
                    log->kinds,
                    log->untimed,
                    log->gpus,
                    log->texts,
                    log->confidence.sources};
  for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
    free(arrays[i]);
  json_decref(log->header);
}

void b200_logs_free(struct b200_logs *logs) {
  for (size_t i = 0; i < logs->log_count; i++)
    free_log(&logs->logs[i]);
  for (size_t i = 0; i < logs->output_count; i++) {
    free(logs->outputs[i].path);
    free(logs->outputs[i].losses);
  }
  for (size_t i = 0; i < logs->note_count; i++)
    free(logs->notes[i]);
  free(logs->logs);
  free(logs->outputs);
  free(logs->notes);
  memset(logs, 0, sizeof(*logs));
}
