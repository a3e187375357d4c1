/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/exec/arena.h"
#include "interpose/exec/device.h"
#include "interpose/live.h"
#include "interpose/nvml.h"
#include "interpose/python_hook.h"
#include "interpose/record/tally.h"
#include "interpose/record/writer.h"
#include "interpose/stacks.h"
#include "memory/ledger.h"
#include "policy/config.h"
#include "policy/loss_scan.h"
#include "policy/steps.h"

enum state { COLD, STARTING, LIVE, OFF, DONE };

enum { EARLY_LINES = 4 };

/* Which calls make the steps: the collectives of a job with more than one rank, else its GEMMs. */
enum step_source { STEPS_FROM_GEMMS, STEPS_FROM_COLLECTIVES };

/* What is only needed once something of CUDA has succeeded; mapped then, never unmapped in this process. */
struct observation {
  struct b200_tally gemms, colls;
  struct b200_steps steps;
  struct b200_live live; /* but for its meter under the lock of the steps */
  struct b200_loss_pattern loss_pattern;
  bool has_loss_pattern;
  struct b200_loss last_loss;
  int64_t loss_count;
  struct b200_ledger_owner flushed_owners[B200_OWNER_COUNT];
  uint64_t flushed_calls[B200_SYM_COUNT], flushed_errors[B200_SYM_COUNT], flushed_bytes[B200_SYM_COUNT];
  struct b200_pool_stats flushed_pool;
  uint64_t flushed_overflow, flushed_decisions;
  struct b200_arena_use flushed_arenas;
};

/* Buffers of the start, which may happen on a thread with a small stack. */
struct start_scratch {
  struct b200_line header;
  char log_dir[B200_CONFIG_TEXT_BYTES], folder[B200_CONFIG_TEXT_BYTES + 300], path[B200_CONFIG_TEXT_BYTES + 600];
  char value[B200_CONFIG_TEXT_BYTES], origin[B200_CONFIG_TEXT_BYTES], both[2 * B200_CONFIG_TEXT_BYTES + 8];
};

static struct b200_runtime {
  _Atomic int state;
  struct start_scratch scratch;
  pid_t pid;
  atomic_bool configured;
  struct b200_config config;
  _Atomic(struct b200_thread *) threads;
  _Atomic(struct observation *) seen;
  _Atomic(struct b200_writer *) writer;
  struct b200_line early[EARLY_LINES]; /* lines of the very call whose success opens the log */
  atomic_uint early_count;
  struct b200_ledger ledger;
  pthread_mutex_t steps_lock, flush_lock, config_lock;
  pthread_key_t thread_key;
  bool has_thread_key;
  atomic_int captures;
  _Atomic uint64_t gemm_calls, gemm_flops, coll_calls, coll_bytes;
  _Atomic uint64_t gemm_calls_at_coll; /* when the last collective was issued */
  _Atomic(enum step_source) step_source;
  _Atomic uint64_t bad_samples, demotions, audits;
  _Atomic double worst_audit;
  _Atomic int64_t step; /* b200_runtime_step() */
  _Atomic uint64_t format_calls[B200_FORMAT_COUNT], format_flops[B200_FORMAT_COUNT];
  double model_native_ns, model_narrow_ns; /* of the converted GEMMs in the log; under flush_lock */
  uint64_t ledger_events_asked;            /* events that the last question to the driver has seen */
  int64_t hbm_used_bytes;
  dev_t stderr_device; /* of the start */
  ino_t stderr_inode;
} rt = {
    .steps_lock = PTHREAD_MUTEX_INITIALIZER,
    .flush_lock = PTHREAD_MUTEX_INITIALIZER,
    .config_lock = PTHREAD_MUTEX_INITIALIZER,
    .ledger = {.lock = PTHREAD_MUTEX_INITIALIZER},
    .step = -1,
};

_Thread_local struct b200_thread *b200_thread_block;

/* Serves threads for which no block could be mapped: their counts are lost, the calls are not. */
static struct b200_thread shared_block = {.shared = true};

static uint64_t now_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t b200_runtime_now_ns(void) {
  return now_ns(CLOCK_MONOTONIC);
}

/* ------------------------------------------------------------------------------------------------ messages */

/* To the log; before there is one, the first few lines wait for it. */
static void put(struct b200_line *line) {
  struct b200_writer *writer = atomic_load_explicit(&rt.writer, memory_order_acquire);
  b200_line_end(line);
  if (writer) {
    b200_writer_put(writer, line, false);
    return;
  }
  unsigned index = atomic_fetch_add(&rt.early_count, 1);
  if (index < EARLY_LINES)
    rt.early[index] = *line;
}

/* A line of counts. False: they are kept for a later line. */
static bool put_counts(struct b200_line *line) {
  struct b200_writer *writer = atomic_load_explicit(&rt.writer, memory_order_acquire);
  b200_line_end(line);
  return !writer || b200_writer_put(writer, line, true);
}

void b200_runtime_put(struct b200_line *line) {
  put(line);
}

bool b200_runtime_put_counts(struct b200_line *line) {
  return put_counts(line);
}

/* On stderr; past our own hook of write(). */
static void tell(char *text, size_t size) {
  size_t length = strlen(text);
  text[length < size - 1 ? length++ : length - 1] = '\n';
  (void)!syscall(SYS_write, STDERR_FILENO, text, length);
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
  char text[512] = "b200opt: ";
  size_t prefix = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + prefix, sizeof text - prefix - 1, format, arguments);
  va_end(arguments);
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_warn);
  b200_line_text(&line, B200_FIELD_warn_text, text + prefix);
  put(&line);
  if (rt.config.log_level != B200_LOG_SILENT)
    tell(text, sizeof text);
}

void b200_runtime_say(const char *text) {
  say("%s", text);
}

void b200_runtime_tell(const char *text) {
  if (rt.config.log_level != B200_LOG_SILENT)
    (void)!syscall(SYS_write, STDERR_FILENO, text, strlen(text));
}

/* ------------------------------------------------------------------------------------------------- threads */

static void thread_ended(void *block) {
  atomic_store_explicit(&((struct b200_thread *)block)->taken, false, memory_order_release);
  b200_thread_block = NULL;
}

static struct b200_thread *take_vacant_block(void) {
  for (struct b200_thread *block = atomic_load(&rt.threads); block; block = block->next) {
    bool vacant = false;
    if (atomic_compare_exchange_strong(&block->taken, &vacant, true))
      return block;
  }
  struct b200_thread *block = mmap(NULL, sizeof *block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED)
    return NULL;
  atomic_store(&block->taken, true);
  block->next = atomic_load(&rt.threads);
  while (!atomic_compare_exchange_weak(&rt.threads, &block->next, block))
    ;
  return block;
}

struct b200_thread *b200_thread_create(void) {
  int saved_errno = errno;
  struct b200_thread *block = take_vacant_block();
  if (block && rt.has_thread_key)
    pthread_setspecific(rt.thread_key, block);
  if (!block)
    block = &shared_block;
  block->depth = 0;
  b200_thread_block = block;
  errno = saved_errno;
  return block;
}

/* ----------------------------------------------------------------------------------------------- targets */

static void prepare_fork(void);

static void *real_of(const struct b200_slot *slot) {
  return atomic_load_explicit(&slot->real, memory_order_relaxed);
}

/* Points every slot at the start of its life (`first`) or at its real function. A slot without a real function
   keeps first_<name>, which says so to its caller. */
static void set_all_targets(bool first) {
  for (int library = 0; library < B200_LIBRARY_COUNT; library++)
    for (size_t i = 0; i < *b200_libraries[library].slot_count; i++) {
      struct b200_slot *slot = &b200_libraries[library].slots[i];
      void *target = first || !real_of(slot) ? slot->first : real_of(slot);
      atomic_store_explicit(&slot->target, target, memory_order_relaxed);
    }
}

static void load_config(void) {
  if (atomic_load_explicit(&rt.configured, memory_order_acquire))
    return;
  prepare_fork(); /* before the first lock of ours is taken */
  pthread_mutex_lock(&rt.config_lock);
  if (!atomic_load_explicit(&rt.configured, memory_order_relaxed)) {
    b200_config_load(&rt.config);
    int cold = COLD;
    if (rt.config.mode == B200_MODE_OFF)
      atomic_compare_exchange_strong(&rt.state, &cold, OFF);
    atomic_store_explicit(&rt.configured, true, memory_order_release);
  }
  pthread_mutex_unlock(&rt.config_lock);
}

bool b200_runtime_is_off(void) {
  load_config();
  int state = atomic_load_explicit(&rt.state, memory_order_relaxed);
  return state == OFF || state == DONE;
}

void *b200_runtime_first(enum b200_library library, struct b200_slot *slot) {
  int saved_errno = errno;
  bool bound = b200_library_bind(library, slot);
  void *function = NULL;
  if (bound && b200_runtime_is_off()) {
    function = real_of(slot);
    atomic_store_explicit(&slot->target, function, memory_order_relaxed);
  } else if (bound) {
    function = slot->observe;
  }
  errno = saved_errno;
  return function;
}

/* ------------------------------------------------------------------------------------------------- records */

int64_t b200_runtime_step(void) {
  return atomic_load_explicit(&rt.step, memory_order_relaxed);
}

static double converted_share(void) {
  uint64_t native = rt.format_flops[B200_FORMAT_NATIVE], all = 0;
  for (int i = 0; i < B200_FORMAT_COUNT; i++)
    all += rt.format_flops[i];
  return b200_gemm_decides() && all > 0 ? 1 - (double)native / (double)all : (double)NAN;
}

void b200_runtime_metric(enum b200_metric metric, double value) {
  struct observation *seen = atomic_load_explicit(&rt.seen, memory_order_acquire);
  if (seen)
    b200_meter_set(&seen->live.meter, metric, value);
}

static void step_found(void *context, const struct b200_step *step) {
  struct observation *seen = context;
  const struct b200_totals *start = &step->start, *end = &step->end;
  struct b200_line line;
  atomic_store_explicit(&rt.step, (int64_t)step->index + 1, memory_order_relaxed);
  b200_gemm_step();
  b200_timing_step(step);
  b200_line_begin(&line, B200_RECORD_step);
  b200_line_uint(&line, B200_FIELD_step_gen, step->generation);
  b200_line_uint(&line, B200_FIELD_step_step, step->index);
  b200_line_text(&line, B200_FIELD_step_source,
                 rt.config.step_period > 0                  ? "told"
                 : rt.step_source == STEPS_FROM_COLLECTIVES ? "coll"
                                                            : "gemm");
  b200_line_uint(&line, B200_FIELD_step_period, step->period);
  b200_line_uint(&line, B200_FIELD_step_t_ns, start->t_ns);
  b200_line_uint(&line, B200_FIELD_step_dur_ns, end->t_ns - start->t_ns);
  b200_line_uint(&line, B200_FIELD_step_gemm_calls, end->gemm_calls - start->gemm_calls);
  b200_line_uint(&line, B200_FIELD_step_gemm_flops, end->gemm_flops - start->gemm_flops);
  b200_line_uint(&line, B200_FIELD_step_coll_calls, end->coll_calls - start->coll_calls);
  b200_line_uint(&line, B200_FIELD_step_coll_bytes, end->coll_bytes - start->coll_bytes);
  b200_line_uint(&line, B200_FIELD_step_alloc_calls, end->alloc_calls - start->alloc_calls);
  b200_line_object(&line, B200_FIELD_step_hbm);
  for (int owner = 0; owner < B200_OWNER_COUNT; owner++)
    if (start->hbm_bytes[owner] > 0)
      b200_line_member_uint(&line, b200_owner_names[owner], start->hbm_bytes[owner]);
  b200_line_object_end(&line);
  b200_line_int(&line, B200_FIELD_step_hbm_used, start->hbm_used_bytes);
  put(&line);
  b200_meter_set(&seen->live.meter, B200_METRIC_converted, converted_share());
  if (b200_live_step(&seen->live, step))
    b200_runtime_wake();
}

/* Key of the tally of GEMMs: the call, and what was done with it. */
struct gemm_key {
  struct b200_gemm gemm;
  struct b200_outcome outcome;
  uint8_t zero[B200_TALLY_KEY_BYTES - sizeof(struct b200_gemm) - sizeof(struct b200_outcome)];
};
_Static_assert(sizeof(struct gemm_key) == B200_TALLY_KEY_BYTES, "one key size for all tallies");

static void put_shape(struct b200_line *line, const struct b200_gemm *gemm, enum b200_field role) {
  const char ta[2] = {gemm->ta, 0}, tb[2] = {gemm->tb, 0};
  const int64_t sizes[] = {gemm->m, gemm->n, gemm->k, gemm->batch};
  b200_line_text(line, role, b200_role_names[gemm->role]);
  b200_line_text(line, role + 1, ta);
  b200_line_text(line, role + 2, tb);
  for (int i = 0; i < 4; i++)
    b200_line_int(line, role + 3 + (enum b200_field)i, sizes[i]);
}
_Static_assert(B200_FIELD_gemm_batch == B200_FIELD_gemm_role + 6 && B200_FIELD_audit_batch == B200_FIELD_audit_role + 6 &&
                   B200_FIELD_guard_batch == B200_FIELD_guard_role + 6 &&
                   B200_FIELD_sample_batch == B200_FIELD_sample_role + 6,
               "role ta tb m n k batch, in a row");

static void put_would(struct b200_line *line, enum b200_field field, uint8_t format, uint8_t reason) {
  char text[64];
  snprintf(text, sizeof text, "%s:%s", b200_format_names[format], b200_reason_names[reason]);
  b200_line_text(line, field, text);
}

struct modelled {
  double native_ns, narrow_ns; /* 0: the cost model was not asked */
};

/* What the cost model says of these calls: as they were done, or where they are observed as `auto` would do them. */
static struct modelled put_model(struct b200_line *line, const struct gemm_key *key, uint64_t calls) {
  const struct b200_gpu *gpu = b200_gpu_any();
  bool observed = key->outcome.reason == B200_REASON_OBSERVE;
  enum b200_format format = (enum b200_format)(observed ? key->outcome.would[0] : key->outcome.format);
  if (!gpu || format == B200_FORMAT_NATIVE)
    return (struct modelled){0, 0};
  struct modelled all = {.native_ns = b200_cost_native(&gpu->facts, &key->gemm) * (double)calls,
                         .narrow_ns = b200_cost_narrow(&gpu->facts, &key->gemm, format) * (double)calls};
  b200_line_uint(line, B200_FIELD_gemm_model_native_ns, (uint64_t)all.native_ns);
  b200_line_uint(line, B200_FIELD_gemm_model_narrow_ns, (uint64_t)all.narrow_ns);
  return all;
}

static bool flush_gemm(void *context, const void *bytes, uint64_t calls, uint64_t flops) {
  (void)context;
  struct gemm_key key;
  struct b200_line line;
  memcpy(&key, bytes, sizeof key);
  const struct b200_gemm *gemm = &key.gemm;
  b200_line_begin(&line, B200_RECORD_gemm);
  b200_line_text(&line, B200_FIELD_gemm_api, b200_api_names[gemm->api]);
  put_shape(&line, gemm, B200_FIELD_gemm_role);
  b200_line_text(&line, B200_FIELD_gemm_a, b200_element_names[gemm->a]);
  b200_line_text(&line, B200_FIELD_gemm_b, b200_element_names[gemm->b]);
  b200_line_text(&line, B200_FIELD_gemm_d, b200_element_names[gemm->d]);
  b200_line_text(&line, B200_FIELD_gemm_compute, b200_compute_names[gemm->compute]);
  b200_line_text(&line, B200_FIELD_gemm_epilogue, b200_epilogue_names[gemm->epilogue]);
  b200_line_text(&line, B200_FIELD_gemm_plan, b200_format_names[key.outcome.format]);
  b200_line_text(&line, B200_FIELD_gemm_reason, b200_reason_names[key.outcome.reason]);
  b200_line_text(&line, B200_FIELD_gemm_wanted, b200_format_names[key.outcome.wanted]);
  for (int i = 0; i < 3 && key.outcome.reason == B200_REASON_OBSERVE; i++)
    put_would(&line, B200_FIELD_gemm_would_auto + (enum b200_field)i, key.outcome.would[i], key.outcome.would_reason[i]);
  b200_line_uint(&line, B200_FIELD_gemm_calls, calls);
  b200_line_uint(&line, B200_FIELD_gemm_flops, flops);
  struct modelled model = put_model(&line, &key, calls);
  if (!put_counts(&line))
    return false;
  rt.model_native_ns += model.native_ns;
  rt.model_narrow_ns += model.narrow_ns;
  return true;
}

static void flush_arenas(struct observation *seen) {
  struct b200_arena_use use;
  b200_arena_read(&use);
  if (use.arenas == 0 || memcmp(&use, &seen->flushed_arenas, sizeof use) == 0)
    return;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_workspace);
  b200_line_uint(&line, B200_FIELD_workspace_bytes, use.bytes);
  b200_line_uint(&line, B200_FIELD_workspace_capture_bytes, use.capture_bytes);
  b200_line_uint(&line, B200_FIELD_workspace_arenas, use.arenas);
  b200_line_uint(&line, B200_FIELD_workspace_limit, use.limit);
  b200_line_uint(&line, B200_FIELD_workspace_refused, use.refused);
  if (put_counts(&line))
    seen->flushed_arenas = use;
}

struct decisions {
  uint64_t hash, distinct;
};

static void add_decision(void *context, const void *bytes) {
  struct decisions *all = context;
  struct gemm_key key;
  memcpy(&key, bytes, sizeof key);
  const struct b200_facts facts = {.gemm = key.gemm};
  const struct b200_plan plan = {.format = key.outcome.format, .wanted = key.outcome.wanted, .reason = key.outcome.reason};
  all->hash += b200_decision_hash(UINT64_C(14695981039346656037), &facts, &plan);
  all->distinct++;
}

static void flush_decisions(struct observation *seen) {
  struct decisions all = {0};
  char hash[20];
  if (!b200_gemm_decides())
    return;
  b200_tally_each(&seen->gemms, add_decision, &all);
  if (all.distinct == seen->flushed_decisions)
    return;
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)all.hash);
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_decisions);
  b200_line_text(&line, B200_FIELD_decisions_hash, hash);
  b200_line_uint(&line, B200_FIELD_decisions_distinct, all.distinct);
  if (put_counts(&line))
    seen->flushed_decisions = all.distinct;
}

void b200_runtime_guard(const struct b200_gemm *gemm, enum b200_format format, const char *what, bool applied) {
  struct b200_line line;
  atomic_fetch_add(&rt.demotions, applied);
  b200_line_begin(&line, B200_RECORD_guard);
  put_shape(&line, gemm, B200_FIELD_guard_role);
  b200_line_text(&line, B200_FIELD_guard_plan, b200_format_names[format]);
  b200_line_text(&line, B200_FIELD_guard_what, what);
  b200_line_int(&line, B200_FIELD_guard_applied, applied);
  b200_line_int(&line, B200_FIELD_guard_step, b200_runtime_step());
  b200_line_uint(&line, B200_FIELD_guard_t_ns, b200_runtime_now_ns());
  put(&line);
}

void b200_runtime_bad_sample(const struct b200_gemm *gemm, enum b200_format format, const char *verdict) {
  struct b200_line line;
  atomic_fetch_add(&rt.bad_samples, 1);
  b200_line_begin(&line, B200_RECORD_sample);
  put_shape(&line, gemm, B200_FIELD_sample_role);
  b200_line_text(&line, B200_FIELD_sample_plan, b200_format_names[format]);
  b200_line_text(&line, B200_FIELD_sample_verdict, verdict);
  b200_line_int(&line, B200_FIELD_sample_step, b200_runtime_step());
  put(&line);
}

/* NaN is worse than any number. */
static void remember_worst(double error) {
  double worst = atomic_load(&rt.worst_audit);
  while (!(error <= worst) && worst == worst && !atomic_compare_exchange_weak(&rt.worst_audit, &worst, error))
    ;
}

void b200_runtime_audit(const struct b200_gemm *gemm, enum b200_format format, double error) {
  struct b200_line line;
  bool finite = error - error == 0;
  atomic_fetch_add(&rt.audits, 1);
  remember_worst(error);
  b200_line_begin(&line, B200_RECORD_audit);
  put_shape(&line, gemm, B200_FIELD_audit_role);
  b200_line_text(&line, B200_FIELD_audit_plan, b200_format_names[format]);
  b200_line_uint(&line, B200_FIELD_audit_calls, 1);
  b200_line_real(&line, B200_FIELD_audit_error, finite ? error : -1);
  put(&line);
}

/* Key of the tally of collectives: the call without its count. */
struct coll_key {
  int32_t nranks;
  uint8_t op, dtype;
  uint8_t zero[B200_TALLY_KEY_BYTES - 6];
};
_Static_assert(sizeof(struct coll_key) == B200_TALLY_KEY_BYTES, "one key size for all tallies");

static bool flush_coll(void *context, const void *key, uint64_t calls, uint64_t bytes) {
  (void)context;
  struct coll_key coll;
  struct b200_line line;
  memcpy(&coll, key, sizeof coll);
  b200_line_begin(&line, B200_RECORD_coll);
  b200_line_text(&line, B200_FIELD_coll_op, b200_coll_names[coll.op]);
  b200_line_text(&line, B200_FIELD_coll_dtype, b200_element_names[coll.dtype]);
  b200_line_int(&line, B200_FIELD_coll_nranks, coll.nranks);
  b200_line_uint(&line, B200_FIELD_coll_calls, calls);
  b200_line_uint(&line, B200_FIELD_coll_bytes, bytes);
  return put_counts(&line);
}

static void flush_owners(struct observation *seen) {
  struct b200_ledger_owner owners[B200_OWNER_COUNT];
  b200_ledger_read(&rt.ledger, owners);
  for (int i = 0; i < B200_OWNER_COUNT; i++) {
    struct b200_ledger_owner *before = &seen->flushed_owners[i], *now = &owners[i];
    if (memcmp(before, now, sizeof *now) == 0)
      continue;
    struct b200_line line;
    b200_line_begin(&line, B200_RECORD_alloc);
    b200_line_text(&line, B200_FIELD_alloc_owner, b200_owner_names[i]);
    b200_line_uint(&line, B200_FIELD_alloc_current, now->current_bytes);
    b200_line_uint(&line, B200_FIELD_alloc_peak, now->peak_bytes);
    b200_line_uint(&line, B200_FIELD_alloc_allocs, now->allocs - before->allocs);
    b200_line_uint(&line, B200_FIELD_alloc_frees, now->frees - before->frees);
    b200_line_uint(&line, B200_FIELD_alloc_failed, now->failed - before->failed);
    if (put_counts(&line))
      *before = *now;
  }
}

static void flush_pool(struct observation *seen) {
  struct b200_memory_use use;
  b200_memory_read(&use);
  const struct b200_pool_stats *now = &use.stats, *before = &seen->flushed_pool;
  if (memcmp(now, before, sizeof *now) == 0)
    return;
  const struct {
    enum b200_field field;
    uint64_t value;
  } values[] = {
#define COUNTED(name) {B200_FIELD_pool_##name, now->name - before->name}
      COUNTED(hits),
      COUNTED(misses),
      COUNTED(passed),
      COUNTED(waits),
      COUNTED(driver_calls),
      COUNTED(driver_ns),
      COUNTED(synchronisations),
      COUNTED(observed),
      COUNTED(retries),
      COUNTED(rescues),
      COUNTED(refused),
      COUNTED(failed),
      COUNTED(double_frees),
      COUNTED(released),
      COUNTED(released_bytes),
      COUNTED(unreturned),
      COUNTED(dropped),
      COUNTED(untracked),
#undef COUNTED
      {B200_FIELD_pool_idle, now->idle_bytes},
      {B200_FIELD_pool_idle_peak, now->idle_peak_bytes},
      {B200_FIELD_pool_pinned, now->pinned},
  };
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_pool);
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    b200_line_uint(&line, values[i].field, values[i].value);
  if (put_counts(&line))
    seen->flushed_pool = *now;
}

static void flush_call(struct observation *seen, const char *library, const struct b200_slot *slot) {
  uint64_t calls = 0, errors = 0, bytes = 0;
  for (struct b200_thread *block = atomic_load(&rt.threads); block; block = block->next) {
    struct b200_call_count *count = &block->counts[slot->symbol];
    calls += atomic_load_explicit(&count->calls, memory_order_relaxed);
    errors += atomic_load_explicit(&count->errors, memory_order_relaxed);
    bytes += atomic_load_explicit(&count->bytes, memory_order_relaxed);
  }
  if (calls == seen->flushed_calls[slot->symbol])
    return;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_call);
  b200_line_text(&line, B200_FIELD_call_lib, library);
  b200_line_text(&line, B200_FIELD_call_name, slot->name);
  b200_line_uint(&line, B200_FIELD_call_calls, calls - seen->flushed_calls[slot->symbol]);
  b200_line_uint(&line, B200_FIELD_call_errors, errors - seen->flushed_errors[slot->symbol]);
  b200_line_uint(&line, B200_FIELD_call_bytes, bytes - seen->flushed_bytes[slot->symbol]);
  if (!put_counts(&line))
    return;
  seen->flushed_calls[slot->symbol] = calls;
  seen->flushed_errors[slot->symbol] = errors;
  seen->flushed_bytes[slot->symbol] = bytes;
}

static void flush_overflow(struct observation *seen) {
  uint64_t overflow =
      atomic_load(&seen->gemms.overflow) + atomic_load(&seen->colls.overflow) + atomic_load(&rt.ledger.untracked);
  if (overflow == seen->flushed_overflow)
    return;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_drop);
  b200_line_text(&line, B200_FIELD_drop_what, "calls that found no room in a table");
  b200_line_uint(&line, B200_FIELD_drop_count, overflow - seen->flushed_overflow);
  if (put_counts(&line))
    seen->flushed_overflow = overflow;
}

/* Writes what was counted since the last time. Called by the writer's thread now and then, and at the end. */
static void flush(void) {
  struct observation *seen = atomic_load(&rt.seen);
  if (!seen)
    return;
  pthread_mutex_lock(&rt.flush_lock);
  b200_tally_flush(&seen->gemms, flush_gemm, NULL);
  b200_tally_flush(&seen->colls, flush_coll, NULL);
  flush_owners(seen);
  flush_pool(seen);
  flush_arenas(seen);
  flush_decisions(seen);
  flush_overflow(seen);
  b200_timing_flush();
  for (int library = 0; library < B200_LIBRARY_COUNT; library++)
    for (size_t i = 0; i < *b200_libraries[library].slot_count; i++)
      flush_call(seen, b200_libraries[library].name, &b200_libraries[library].slots[i]);
  pthread_mutex_unlock(&rt.flush_lock);
}

/* ------------------------------------------------------------------------------------------------- header */

static void put_nccl_variable(void *context, const char *name, size_t name_length, const char *value) {
  b200_line_member_text(context, name, name_length, value);
}

/* A call of CUDA's runtime that fails leaves its status to the thread's next cudaGetLastError(), where the job would find
 * it.
 */
static void forget_error(enum b200_library library) {
  int (*last_error)(void) = NULL;
  if (library == B200_LIBRARY_cudart)
    last_error = (int (*)(void))b200_library_symbol(library, "cudaGetLastError");
  if (last_error)
    last_error();
}

/* Asks the libraries, past every slot, for what needs no handle and changes no state. */
static void put_versions(struct b200_line *line) {
  int version = 0;
  int (*int_version)(int *);
  size_t (*size_version)(void);
  static const struct {
    enum b200_library library;
    const char *function, *name;
  } askable[] = {
      {B200_LIBRARY_cuda, "cuDriverGetVersion", "driver"},
      {B200_LIBRARY_cudart, "cudaRuntimeGetVersion", "cudart"},
      {B200_LIBRARY_nccl, "ncclGetVersion", "nccl"},
  };
  b200_line_object(line, B200_FIELD_header_versions);
  for (size_t i = 0; i < sizeof askable / sizeof *askable; i++) {
    int_version = (int (*)(int *))b200_library_symbol(askable[i].library, askable[i].function);
    if (!int_version)
      continue;
    if (int_version(&version) == 0)
      b200_line_member_uint(line, askable[i].name, (uint64_t)version);
    else
      forget_error(askable[i].library);
  }
  size_version = (size_t(*)(void))b200_library_symbol(B200_LIBRARY_cublaslt, "cublasLtGetVersion");
  if (size_version)
    b200_line_member_uint(line, "cublaslt", size_version());
  b200_line_object_end(line);
}

/* The virtual node's driver brings its core library along, whose functions no other driver has. */
static bool is_virtual_node(void) {
  return b200_library_symbol(B200_LIBRARY_cuda, "vnode_usable") != NULL;
}

static void put_gpu(struct b200_line *line) {
  char name[128] = "";
  int device = 0;
  int (*current)(int *) = (int (*)(int *))b200_library_symbol(B200_LIBRARY_cuda, "cuCtxGetDevice");
  int (*name_of)(char *, int, int) = (int (*)(char *, int, int))b200_library_symbol(B200_LIBRARY_cuda, "cuDeviceGetName");
  if (!current || current(&device) != 0)
    device = 0; /* no context on this thread; the devices of a node are alike */
  if (name_of && name_of(name, sizeof name, device) == 0)
    b200_line_text(line, B200_FIELD_header_gpu, name);
  if (is_virtual_node())
    b200_line_int(line, B200_FIELD_header_virtual_node, 1);
}

static void put_config(struct b200_line *line) {
  struct start_scratch *scratch = &rt.scratch;
  b200_line_object(line, B200_FIELD_header_config);
  for (int i = 0; i < B200_ENV_JOB_COUNT; i++) {
    enum b200_env_index index = (enum b200_env_index)i;
    if (rt.config.origins[i].by == B200_ORIGIN_DEFAULT)
      continue;
    const char *name = b200_env_job_row(index)->name;
    snprintf(scratch->both, sizeof scratch->both, "%s (%s)",
             b200_config_value(&rt.config, index, scratch->value, sizeof scratch->value),
             b200_config_origin(&rt.config, index, scratch->origin, sizeof scratch->origin));
    b200_line_member_text(line, name, strlen(name), scratch->both);
  }
  b200_line_object_end(line);
}

static void make_header(struct b200_line *out, const char *run, const char *host, const struct b200_launch *launch) {
  b200_line_begin(out, B200_RECORD_header);
  b200_line_int(out, B200_FIELD_header_format, 1);
  b200_line_text(out, B200_FIELD_header_producer, "b200opt " B200_VERSION);
  b200_line_text(out, B200_FIELD_header_run, run);
  b200_line_text(out, B200_FIELD_header_arm, rt.config.arm);
  b200_line_text(out, B200_FIELD_header_host, host);
  b200_line_int(out, B200_FIELD_header_pid, rt.pid);
  b200_line_int(out, B200_FIELD_header_rank, launch->rank);
  b200_line_int(out, B200_FIELD_header_world, launch->world);
  b200_line_int(out, B200_FIELD_header_local_rank, launch->local_rank);
  b200_line_uint(out, B200_FIELD_header_t_ns, b200_runtime_now_ns());
  b200_line_uint(out, B200_FIELD_header_unix_ns, now_ns(CLOCK_REALTIME));
  put_versions(out);
  put_gpu(out);
  put_config(out);
  b200_line_object(out, B200_FIELD_header_nccl_env);
  b200_config_each_nccl(put_nccl_variable, out);
  b200_line_object_end(out);
  b200_line_end(out);
}

/* -------------------------------------------------------------------------------------------- start and end */

static bool make_folders(char *path) {
  for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
    if (slash)
      *slash = '\0';
    bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
    if (slash)
      *slash = '/';
    if (!made || !slash)
      return made;
  }
}

static void woken(void) {
  struct observation *seen = atomic_load(&rt.seen);
  pthread_mutex_lock(&rt.flush_lock);
  b200_libc_look(false);
  bool line_is_open = seen && b200_libc_line_is_open(seen->live.meter.stream);
  pthread_mutex_unlock(&rt.flush_lock);
  if (seen)
    b200_meter_work(&seen->live.meter, line_is_open);
}

/* Whoever closes our file may have closed stderr as well, and opened a file of its own in its place. */
static void log_lost(int error) {
  struct stat now;
  char text[160];
  if (rt.config.log_level == B200_LOG_SILENT || fstat(STDERR_FILENO, &now) != 0 || now.st_dev != rt.stderr_device ||
      now.st_ino != rt.stderr_inode)
    return;
  snprintf(text, sizeof text, "b200opt: the log cannot be written any more, errno %d; the job is not affected", error);
  tell(text, sizeof text);
}

/* Returns the seconds until the next look: one while the device is not known yet. */
static unsigned look_at_gpu(void) {
  struct b200_nvml_sample sample;
  struct b200_line line;
  char complaint[160];
  if (rt.config.gpu_sample_s <= 0 || atomic_load(&rt.state) == DONE)
    return 0;
  enum b200_nvml_answer answer = b200_nvml_look(&sample, complaint, sizeof complaint);
  if (complaint[0])
    say("%s", complaint);
  if (answer != B200_NVML_TAKEN)
    return answer == B200_NVML_LATER ? 1 : 0;
  b200_line_begin(&line, B200_RECORD_gpu);
  b200_line_int(&line, B200_FIELD_gpu_t_ns, sample.t_ns);
  b200_line_int(&line, B200_FIELD_gpu_util_pct, sample.util_pct);
  b200_line_int(&line, B200_FIELD_gpu_mem_util_pct, sample.mem_util_pct);
  b200_line_int(&line, B200_FIELD_gpu_mem_used, sample.mem_used);
  b200_line_int(&line, B200_FIELD_gpu_mem_total, sample.mem_total);
  b200_line_int(&line, B200_FIELD_gpu_power_mw, sample.power_mw);
  b200_line_int(&line, B200_FIELD_gpu_sm_mhz, sample.sm_mhz);
  b200_line_int(&line, B200_FIELD_gpu_temp_c, sample.temp_c);
  b200_line_int(&line, B200_FIELD_gpu_throttle, sample.throttle);
  put(&line);
  return (unsigned)rt.config.gpu_sample_s;
}

/* The file of this process; a number follows when it exists: exec() keeps the pid, and pids come again. */
static struct b200_writer *open_file(struct start_scratch *scratch, const char *host, int rank) {
  static const struct b200_writer_hooks hooks = {.woken = woken, .tick = flush, .beat = look_at_gpu, .lost = log_lost};
  for (int attempt = 1; attempt < 100; attempt++) {
    char suffix[8] = "";
    if (attempt > 1)
      snprintf(suffix, sizeof suffix, "-%d", attempt);
    snprintf(scratch->path, sizeof scratch->path, "%s/%s-r%d-%d%s.jsonl", scratch->folder, host, rank < 0 ? 0 : rank,
             (int)rt.pid, suffix);
    struct b200_writer *writer =
        b200_writer_open(scratch->path, (uint64_t)rt.config.log_max_mb << 20, &hooks, &scratch->header);
    if (writer || errno != EEXIST)
      return writer;
  }
  return NULL;
}

static void open_log(void) {
  struct start_scratch *scratch = &rt.scratch;
  char run[256], host[128] = "host";
  struct b200_launch launch;
  b200_launch_load(&launch);
  b200_config_run_name(&rt.config, run, sizeof run);
  gethostname(host, sizeof host - 1);
  b200_config_log_dir(&rt.config, scratch->log_dir, sizeof scratch->log_dir);
  snprintf(scratch->folder, sizeof scratch->folder, "%s/%s", scratch->log_dir, run);
  make_header(&scratch->header, run, host, &launch);
  struct stat now;
  if (fstat(STDERR_FILENO, &now) == 0) {
    rt.stderr_device = now.st_dev;
    rt.stderr_inode = now.st_ino;
  }
  struct b200_writer *writer = make_folders(scratch->folder) ? open_file(scratch, host, launch.rank) : NULL;
  if (!writer) {
    say("no log: %s cannot be written, errno %d; the job is not affected", scratch->folder, errno);
    return;
  }
  for (unsigned i = 0; i < EARLY_LINES && i < atomic_load(&rt.early_count); i++)
    b200_writer_put(writer, &rt.early[i], false);
  atomic_store_explicit(&rt.writer, writer, memory_order_release);
  if (rt.config.log_level == B200_LOG_INFO) {
    snprintf(scratch->both, sizeof scratch->both, "b200opt: log %s", scratch->path);
    tell(scratch->both, sizeof scratch->both);
  }
}

static void prepare_loss(struct observation *seen) {
  char problem[200];
  if (rt.config.loss_regex[0] == '\0')
    return;
  seen->has_loss_pattern = b200_loss_pattern_compile(&seen->loss_pattern, rt.config.loss_regex, problem, sizeof problem);
  if (!seen->has_loss_pattern)
    say("B200OPT_LOSS_REGEX: %s; the built-in forms are used", problem);
}

static void start(void) {
  struct observation *seen =
      mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (seen == MAP_FAILED) {
    say("no memory for the observation; calls pass through");
    atomic_store(&rt.state, OFF);
    set_all_targets(false);
    return;
  }
  rt.pid = getpid();
  rt.has_thread_key = rt.has_thread_key || pthread_key_create(&rt.thread_key, thread_ended) == 0;
  if (rt.has_thread_key && b200_thread_block && b200_thread_block != &shared_block)
    pthread_setspecific(rt.thread_key, b200_thread_block);
  for (int i = 0; i < rt.config.complaint_count; i++)
    say("%s", rt.config.complaints[i]);
  if (rt.config.complaints_dropped > 0)
    say("%d more complaints of the same kind; see b200opt doctor --env", rt.config.complaints_dropped);
  prepare_loss(seen);
  b200_steps_start(&seen->steps, (uint32_t)rt.config.step_period, step_found, seen);
  b200_live_start(&seen->live, &rt.config);
  rt.step_source = STEPS_FROM_GEMMS;
  atomic_store_explicit(&rt.seen, seen, memory_order_release);
  open_log();
  struct b200_launch launch;
  b200_launch_load(&launch);
  b200_gemm_start(&rt.config, launch.rank, launch.world);
  b200_timing_start(&rt.config, launch.single_connection);
  b200_oom_start(launch.rank);
  b200_memory_start(&rt.config);
  atomic_store(&rt.state, LIVE);
  b200_libc_observe(rt.config.loss == B200_LOSS_ON);
}

void b200_runtime_start(struct b200_slot *slot) {
  int saved_errno = errno;
  int state = COLD;
  if (atomic_compare_exchange_strong(&rt.state, &state, STARTING)) {
    start();
    state = atomic_load(&rt.state);
  }
  if (state == LIVE)
    atomic_store_explicit(&slot->target, slot->observe, memory_order_relaxed);
  errno = saved_errno;
}

static void child_after_fork(void) {
  b200_stacks_forget();
  struct b200_writer *writer = atomic_exchange(&rt.writer, NULL);
  if (writer)
    b200_writer_abandon(writer);
  if (atomic_load(&rt.state) == OFF)
    return;
  pthread_mutex_init(&rt.steps_lock, NULL);
  pthread_mutex_init(&rt.flush_lock, NULL);
  pthread_mutex_init(&rt.config_lock, NULL);
  b200_ledger_init(&rt.ledger);
  b200_nvml_forget();
  b200_timing_forget();
  b200_memory_forget();
  b200_oom_forget();
  struct observation *seen = atomic_exchange(&rt.seen, NULL);
  if (seen)
    munmap(seen, sizeof *seen);
  for (struct b200_thread *block = atomic_load(&rt.threads); block; block = block->next) {
    memset(block->counts, 0, sizeof block->counts);
    block->attempt.failures = 0;
    block->stream_free = NULL;
    block->frees_lazily = false;
    if (block != b200_thread_block)
      atomic_store(&block->taken, false);
  }
  atomic_store(&rt.gemm_calls, 0);
  atomic_store(&rt.gemm_flops, 0);
  atomic_store(&rt.coll_calls, 0);
  atomic_store(&rt.coll_bytes, 0);
  atomic_store(&rt.gemm_calls_at_coll, 0);
  atomic_store(&rt.captures, 0);
  atomic_store(&rt.step, -1);
  atomic_store(&rt.bad_samples, 0);
  atomic_store(&rt.demotions, 0);
  atomic_store(&rt.audits, 0);
  atomic_store(&rt.worst_audit, 0);
  rt.model_native_ns = rt.model_narrow_ns = 0;
  for (int i = 0; i < B200_FORMAT_COUNT; i++) {
    atomic_store(&rt.format_calls[i], 0);
    atomic_store(&rt.format_flops[i], 0);
  }
  rt.ledger_events_asked = 0;
  atomic_store(&rt.early_count, 0);
  b200_libc_forget();
  set_all_targets(true);
  if (atomic_load(&rt.state) == COLD) /* the parent has used nothing: what the child sets before it does counts */
    atomic_store(&rt.configured, false);
  atomic_store(&rt.state, COLD);
}

static void prepare_fork(void) {
  static atomic_bool prepared; /* inherited by children, as the handler is */
  if (!atomic_exchange(&prepared, true))
    pthread_atfork(NULL, NULL, child_after_fork);
}

__attribute__((constructor)) static void loaded(void) {
  rt.pid = getpid();
}

/* exit() may have been called by a signal handler, in the midst of our own code: then a lock stays taken for ever. */
static bool is_free(pthread_mutex_t *lock) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 1;
  if (pthread_mutex_timedlock(lock, &limit) != 0)
    return false;
  pthread_mutex_unlock(lock);
  return true;
}

/* More about a run that converted: what it gained by the cost model, what the guard and the audit found. */
static void say_details(void) {
  if (rt.model_narrow_ns > 0)
    say("cost model: converted GEMMs take %.3g s instead of %.3g s, %.2f times as fast", rt.model_narrow_ns * 1e-9,
        rt.model_native_ns * 1e-9, rt.model_native_ns / rt.model_narrow_ns);
  if (rt.config.guard != B200_GUARD_OFF || rt.demotions > 0)
    say("guard: %llu bad samples, %llu times a shape was taken out of a format", (unsigned long long)rt.bad_samples,
        (unsigned long long)rt.demotions);
  if (rt.audits > 0)
    say("%llu calls audited, largest relative error %.3g", (unsigned long long)rt.audits, rt.worst_audit);
}

/* What a user who asked for conversion wants to know of every run. */
static void say_conversion(void) {
  uint64_t calls = 0, flops = 0, converted_calls = 0, converted_flops = 0;
  struct b200_arena_use use;
  for (int i = 0; i < B200_FORMAT_COUNT; i++) {
    calls += rt.format_calls[i];
    flops += rt.format_flops[i];
    converted_calls += i == B200_FORMAT_NATIVE ? 0 : rt.format_calls[i];
    converted_flops += i == B200_FORMAT_NATIVE ? 0 : rt.format_flops[i];
  }
  if (!b200_gemm_decides() || calls == 0)
    return;
  double share = flops ? 100.0 * (double)converted_flops / (double)flops : 0;
  b200_arena_read(&use);
  if (rt.config.log_level == B200_LOG_INFO || share < (double)rt.config.min_coverage)
    say("%.1f %% of GEMM FLOPs converted (%llu of %llu calls: %llu fp8, %llu mxfp8), workspace %llu MiB", share,
        (unsigned long long)converted_calls, (unsigned long long)calls, (unsigned long long)rt.format_calls[B200_FORMAT_FP8],
        (unsigned long long)rt.format_calls[B200_FORMAT_MXFP8], (unsigned long long)(use.bytes >> 20));
  if (rt.config.log_level == B200_LOG_INFO)
    say_details();
  if (share < (double)rt.config.min_coverage)
    say("WARNING: B200OPT_MIN_COVERAGE=%lld was not reached; `b200opt report` says why", (long long)rt.config.min_coverage);
}

/* Of the pool, when there is one; what retries have cost, in any mode. */
static void say_memory(void) {
  struct b200_memory_use use;
  struct b200_oom_counts counts;
  b200_memory_read(&use);
  b200_oom_read(&counts);
  if (rt.config.memory == B200_MEMORY_POOL && rt.config.log_level == B200_LOG_INFO)
    say("pool: %llu hits, %llu misses, %llu waits, %llu retries in %.1f ms, %llu rescues, %llu refused; %llu MiB kept at "
        "most",
        (unsigned long long)use.stats.hits, (unsigned long long)use.stats.misses, (unsigned long long)use.stats.waits,
        (unsigned long long)counts.retries, (double)counts.retry_ns * 1e-6, (unsigned long long)use.stats.rescues,
        (unsigned long long)use.stats.refused, (unsigned long long)(use.stats.idle_peak_bytes >> 20));
  else if (counts.retries > 0 && rt.config.log_level == B200_LOG_INFO)
    say("memory: %llu allocations were refused at first; the retries took %.1f ms", (unsigned long long)counts.retries,
        (double)counts.retry_ns * 1e-6);
}

/* The last things a process does may still call into CUDA: it must find the real functions. No CUDA call of our own here. */
__attribute__((destructor)) static void ending(void) {
  int state = atomic_exchange(&rt.state, DONE);
  b200_memory_stop();
  b200_libc_observe(false);
  if (state != LIVE || getpid() != rt.pid)
    return;
  set_all_targets(false);
  b200_stacks_end();
  struct observation *seen = atomic_load(&rt.seen);
  struct b200_writer *writer = atomic_load(&rt.writer);
  if (!writer || !is_free(&rt.steps_lock) || !is_free(&rt.flush_lock) || !is_free(b200_timing_lock()) ||
      !is_free(&rt.ledger.lock) || !is_free(b200_memory_lock()) || !b200_writer_last_words(writer))
    return;
  struct b200_totals now;
  b200_runtime_totals(&now);
  pthread_mutex_lock(&rt.steps_lock);
  b200_steps_finish(&seen->steps, &now);
  pthread_mutex_unlock(&rt.steps_lock);
  pthread_mutex_lock(&rt.flush_lock);
  b200_libc_look(true);
  pthread_mutex_unlock(&rt.flush_lock);
  pthread_mutex_lock(&rt.steps_lock);
  b200_live_finish(&seen->live, &now);
  pthread_mutex_unlock(&rt.steps_lock);
  b200_timing_finish();
  flush();
  say_conversion();
  say_memory();
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_end);
  b200_line_uint(&line, B200_FIELD_end_t_ns, b200_runtime_now_ns());
  put(&line);
  b200_writer_close(writer);
}

/* --------------------------------------------------------------------------------------------------- facts */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 31;
}

bool b200_runtime_ask_memory(uint64_t *free_bytes, uint64_t *total_bytes) {
  static _Atomic(void *) function;
  size_t free_now = 0, total = 0;
  if (atomic_load(&rt.captures) > 0 || atomic_load(&rt.state) != LIVE)
    return false;
  int (*get_info)(size_t *, size_t *) =
      (int (*)(size_t *, size_t *))b200_library_cached(&function, B200_LIBRARY_cuda, "cuMemGetInfo_v2");
  if (!get_info || get_info(&free_now, &total) != 0)
    return false;
  *free_bytes = free_now;
  *total_bytes = total;
  return true;
}

/* total − free of the current device, −1 when it cannot or must not be asked. */
static int64_t ask_hbm_used(void) {
  uint64_t free_bytes, total_bytes;
  bool may_ask = atomic_load(&rt.captures) == 0 && atomic_load(&rt.state) == LIVE;
  if (may_ask && rt.config.gpu_sample_s > 0)
    b200_nvml_learn();
  return b200_runtime_ask_memory(&free_bytes, &total_bytes) ? (int64_t)(total_bytes - free_bytes) : -1;
}

void b200_runtime_totals(struct b200_totals *out) {
  struct b200_ledger_owner owners[B200_OWNER_COUNT];
  struct observation *seen = atomic_load_explicit(&rt.seen, memory_order_acquire);
  uint64_t events = 0;
  out->t_ns = b200_runtime_now_ns();
  out->gemm_calls = atomic_load_explicit(&rt.gemm_calls, memory_order_relaxed);
  out->gemm_flops = atomic_load_explicit(&rt.gemm_flops, memory_order_relaxed);
  out->coll_calls = atomic_load_explicit(&rt.coll_calls, memory_order_relaxed);
  out->coll_bytes = atomic_load_explicit(&rt.coll_bytes, memory_order_relaxed);
  out->alloc_calls = 0;
  b200_ledger_read(&rt.ledger, owners);
  for (int i = 0; i < B200_OWNER_COUNT; i++) {
    out->hbm_bytes[i] = owners[i].current_bytes;
    out->alloc_calls += owners[i].allocs;
    events += owners[i].allocs + owners[i].frees;
  }
  out->hbm_used_bytes = -1;
  out->optimizer_steps = b200_python_hook_steps();
  out->forward_passes = 0;
  out->begins_step = false;
  out->ordinal = 0;
  if (!seen)
    return;
  pthread_mutex_lock(&rt.steps_lock);
  out->forward_passes = seen->live.sources.forward_passes;
  bool boundary = b200_steps_at_boundary(&seen->steps);
  out->begins_step = boundary;
  out->ordinal = seen->steps.count;
  bool ask =
      boundary || (b200_steps_searching(&seen->steps) && (events != rt.ledger_events_asked || rt.hbm_used_bytes <= 0));
  int64_t known = rt.hbm_used_bytes;
  pthread_mutex_unlock(&rt.steps_lock);
  if (ask) {
    known = ask_hbm_used();
    pthread_mutex_lock(&rt.steps_lock);
    rt.ledger_events_asked = events;
    rt.hbm_used_bytes = known;
    pthread_mutex_unlock(&rt.steps_lock);
  }
  out->hbm_used_bytes = known;
}

static void ask_optimizer(void) {
  if (rt.config.optimizer_hook)
    b200_python_hook_try(b200_runtime_say);
}

static void add_operation(struct observation *seen, enum step_source source, uint64_t signature, bool gathers, bool reduces,
                          const struct b200_totals *before) {
  pthread_mutex_lock(&rt.steps_lock);
  if (source == STEPS_FROM_COLLECTIVES && rt.step_source == STEPS_FROM_GEMMS) {
    uint32_t generation = seen->steps.generation;
    memset(&seen->steps, 0, sizeof seen->steps);
    b200_steps_start(&seen->steps, (uint32_t)rt.config.step_period, step_found, seen);
    seen->steps.generation += generation;
    rt.step_source = STEPS_FROM_COLLECTIVES;
  }
  if (source == STEPS_FROM_COLLECTIVES)
    b200_step_sources_operation(&seen->live.sources, gathers, reduces);
  if (source == rt.step_source)
    b200_steps_add(&seen->steps, signature, reduces, before);
  pthread_mutex_unlock(&rt.steps_lock);
}

void b200_runtime_gemm_begin(struct b200_span *span, void *stream) {
  struct observation *seen = atomic_load_explicit(&rt.seen, memory_order_acquire);
  if (seen && (b200_timing_now() & B200_TIMING_STEPS) && rt.step_source == STEPS_FROM_GEMMS) {
    struct b200_totals now;
    b200_runtime_totals(&now);
    if (now.begins_step)
      b200_timing_boundary(stream, &now);
  }
  b200_timing_gemm_begin(span, stream);
}

void b200_runtime_gemm(const struct b200_gemm *gemm, const struct b200_outcome *outcome) {
  struct observation *seen = atomic_load_explicit(&rt.seen, memory_order_acquire);
  uint64_t flops = b200_gemm_flops(gemm);
  if (seen && rt.step_source == STEPS_FROM_GEMMS) {
    struct b200_totals before;
    uint64_t signature =
        mix(mix(mix((uint64_t)gemm->m, (uint64_t)gemm->n), (uint64_t)gemm->k), (uint64_t)gemm->batch << 8 | gemm->role);
    b200_runtime_totals(&before);
    add_operation(seen, STEPS_FROM_GEMMS, signature, false, gemm->role == B200_ROLE_WGRAD, &before);
  }
  atomic_fetch_add_explicit(&rt.gemm_calls, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&rt.gemm_flops, flops, memory_order_relaxed);
  atomic_fetch_add_explicit(&rt.format_calls[outcome->format], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&rt.format_flops[outcome->format], flops, memory_order_relaxed);
  if (!seen)
    return;
  ask_optimizer();
  const struct gemm_key key = {.gemm = *gemm, .outcome = *outcome};
  b200_tally_add(&seen->gemms, &key, flops);
}

/* Tells the first gradient bucket of a step, which follows a whole forward pass, from equal ones after it. Coarse (powers of
   four), because the exact number may vary from step to step, with the routing of experts for one. */
static unsigned magnitude_of(uint64_t gemm_calls) {
  return gemm_calls == 0 ? 0 : (unsigned)(63 - __builtin_clzll(gemm_calls)) / 2 + 1;
}

void b200_runtime_coll(const struct b200_coll *coll, const struct b200_totals *before) {
  struct observation *seen = atomic_load_explicit(&rt.seen, memory_order_acquire);
  uint64_t bytes = b200_coll_bytes(coll);
  bool reduces = coll->op == B200_COLL_REDUCESCATTER || coll->op == B200_COLL_ALLREDUCE || coll->op == B200_COLL_REDUCE;
  atomic_fetch_add_explicit(&rt.coll_calls, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&rt.coll_bytes, bytes, memory_order_relaxed);
  if (!seen)
    return;
  ask_optimizer();
  struct coll_key key = {.nranks = coll->nranks, .op = coll->op, .dtype = coll->dtype};
  b200_tally_add(&seen->colls, &key, bytes);
  if (coll->nranks > 1) {
    uint64_t gemms = before->gemm_calls - atomic_exchange(&rt.gemm_calls_at_coll, before->gemm_calls);
    uint64_t kind = (uint64_t)magnitude_of(gemms) << 16 | (uint64_t)coll->op << 8 | coll->dtype;
    uint64_t signature = mix(mix(kind, coll->count), (uint64_t)coll->nranks);
    add_operation(seen, STEPS_FROM_COLLECTIVES, signature, coll->op == B200_COLL_ALLGATHER, reduces, before);
  }
}

/* ------------------------------------------------------------------------------------------------- memory */

static bool keeps_ledger(void) {
  return rt.config.memory != B200_MEMORY_OFF;
}

static void put_stack(enum b200_owner owner, uint64_t bytes) {
  enum { SMALLEST_BYTES = 2 << 20 };
  if (rt.config.memory_stacks == B200_STACKS_ON && bytes >= SMALLEST_BYTES)
    b200_stacks_put(owner, bytes);
}

/* For `b200opt replay`: `owner` of B200_OWNER_COUNT and zeros are left out. Of one address or handle the lines come in the
   order of the ledger: a free is written before the driver gets it, an allocation after. */
static void put_block(const char *what, enum b200_owner owner, uint64_t address, uint64_t handle, uint64_t bytes) {
  struct b200_line line;
  if (rt.config.memory_trace != B200_MEMORY_TRACE_ON)
    return;
  b200_line_begin(&line, B200_RECORD_block);
  if (owner < B200_OWNER_COUNT)
    b200_line_text(&line, B200_FIELD_block_owner, b200_owner_names[owner]);
  b200_line_text(&line, B200_FIELD_block_what, what);
  if (address != 0)
    b200_line_uint(&line, B200_FIELD_block_address, address);
  if (handle != 0)
    b200_line_uint(&line, B200_FIELD_block_handle, handle);
  b200_line_uint(&line, B200_FIELD_block_bytes, bytes);
  b200_line_int(&line, B200_FIELD_block_stream, -1);
  b200_line_uint(&line, B200_FIELD_block_t_ns, b200_runtime_now_ns());
  b200_line_int(&line, B200_FIELD_block_step, b200_runtime_step());
  put(&line);
}

void b200_runtime_alloc(enum b200_owner owner, uint64_t address, uint64_t bytes) {
  if (!keeps_ledger())
    return;
  b200_ledger_alloc(&rt.ledger, owner, address, bytes);
  b200_oom_granted(&b200_thread_self()->attempt, owner, bytes, B200_OOM_ALLOC);
  put_block("alloc", owner, address, 0, bytes);
  put_stack(owner, bytes);
}

void b200_runtime_free(uint64_t address, struct b200_ledger_undo *undo) {
  undo->found = false;
  if (!keeps_ledger() || address == 0)
    return;
  b200_ledger_free(&rt.ledger, address, undo);
  if (!undo->found)
    return;
  b200_oom_freed((enum b200_owner)undo->owner, undo->bytes);
  put_block("free", (enum b200_owner)undo->owner, address, 0, 0);
}

void b200_runtime_put_back(const struct b200_ledger_undo *undo) {
  if (undo->found)
    b200_ledger_put_back(&rt.ledger, undo);
}

void b200_runtime_owners(struct b200_ledger_owner out[B200_OWNER_COUNT]) {
  b200_ledger_read(&rt.ledger, out);
}

void b200_runtime_refused(enum b200_owner owner, uint64_t bytes, int way) {
  if (!keeps_ledger())
    return;
  b200_ledger_refused(&rt.ledger, owner);
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_oom);
  b200_line_text(&line, B200_FIELD_oom_owner, b200_owner_names[owner]);
  b200_line_uint(&line, B200_FIELD_oom_bytes, bytes);
  b200_line_uint(&line, B200_FIELD_oom_t_ns, b200_runtime_now_ns());
  b200_oom_refused(&b200_thread_self()->attempt, owner, bytes, way, &line);
  put(&line);
}

void b200_runtime_handle_add(enum b200_owner owner, uint64_t handle, uint64_t bytes) {
  if (!keeps_ledger())
    return;
  b200_ledger_handle_add(&rt.ledger, owner, handle, bytes);
  if (bytes > 0)
    b200_oom_granted(&b200_thread_self()->attempt, owner, bytes, B200_OOM_CREATE);
  put_block("create", owner, 0, handle, bytes);
  put_stack(owner, bytes);
}

void b200_runtime_handle_release(uint64_t handle, struct b200_ledger_undo *undo) {
  undo->found = false;
  if (!keeps_ledger())
    return;
  b200_ledger_handle_release(&rt.ledger, handle, undo);
  if (undo->found)
    put_block("release", (enum b200_owner)undo->owner, 0, handle, 0);
}

void b200_runtime_map(uint64_t address, uint64_t bytes, uint64_t handle) {
  if (!keeps_ledger())
    return;
  b200_ledger_map(&rt.ledger, address, bytes, handle);
  b200_oom_mapped(&b200_thread_self()->attempt);
  put_block("map", B200_OWNER_COUNT, address, handle, bytes);
}

void b200_runtime_unmap(uint64_t address, uint64_t bytes) {
  if (!keeps_ledger())
    return;
  put_block("unmap", B200_OWNER_COUNT, address, 0, bytes);
  b200_ledger_unmap(&rt.ledger, address, bytes);
}

void b200_runtime_capture(int begun) {
  if (begun > 0)
    b200_memory_capture_comes();
  atomic_fetch_add(&rt.captures, begun);
  if (begun > 0)
    b200_memory_capture_begins();
}

void b200_runtime_capture_ended(int status) {
  if (status == cudaSuccess || status == cudaErrorStreamCaptureInvalidated || status == cudaErrorStreamCaptureUnjoined)
    b200_runtime_capture(-1);
}

/* Not relaxed: who records a fence says so first, then asks; who begins a capture the other way round. */
bool b200_runtime_is_capturing(void) {
  return atomic_load(&rt.captures) > 0;
}

/* ------------------------------------------------------------------------------------------------- output */

void b200_runtime_wake(void) {
  struct b200_writer *writer = atomic_load_explicit(&rt.writer, memory_order_acquire);
  if (writer)
    b200_writer_wake(writer);
}

void b200_runtime_output(const char *text, size_t length) {
  struct observation *seen = atomic_load_explicit(&rt.seen, memory_order_acquire);
  struct b200_loss loss;
  if (!seen)
    return;
  bool found = seen->has_loss_pattern ? b200_loss_pattern_scan(&seen->loss_pattern, text, length, &loss)
                                      : b200_loss_scan(text, length, &loss);
  if (!found || (loss.step >= 0 && loss.step == seen->last_loss.step && loss.loss == seen->last_loss.loss))
    return; /* a progress bar prints a value again and again */
  seen->last_loss = loss;
  int64_t ordinal = seen->loss_count++;
  pthread_mutex_lock(&rt.steps_lock);
  b200_live_loss(&seen->live, &loss, b200_runtime_now_ns());
  pthread_mutex_unlock(&rt.steps_lock);
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_loss);
  b200_line_int(&line, B200_FIELD_loss_step, loss.step >= 0 ? loss.step : ordinal);
  b200_line_real(&line, B200_FIELD_loss_loss, loss.loss);
  b200_line_real(&line, B200_FIELD_loss_tokens_per_s, loss.tokens_per_s);
  b200_line_uint(&line, B200_FIELD_loss_t_ns, b200_runtime_now_ns());
  if (!isnan(loss.grad_norm))
    b200_line_real(&line, B200_FIELD_loss_grad_norm, loss.grad_norm);
  put(&line);
}
