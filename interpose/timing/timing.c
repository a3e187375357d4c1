/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/timing/timing.h"

#include <cuda.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "interpose/record/json.h"
#include "interpose/runtime.h"
#include "interpose/timing/comms.h"
#include "interpose/timing/kinds.h"
#include "policy/comm_overlap.h"

enum {
  CLOCKS = 8,             /* CUDA contexts */
  QUEUE = 8192,           /* entries that wait for the device; a power of two */
  INFOS = 8192,           /* collectives that are not handed out yet */
  POOL = 16384,           /* free events */
  STREAMS = 256,          /* streams whose flags are known; a power of two */
  EPOCHS = 64,            /* steps that are not written yet */
  FAILURES = 64,          /* refusals by the driver that end the timing */
  AT_ONCE = 8,            /* entries looked at per call of the job */
  FIRST_OPS = 256,        /* `op` lines before the first step is known */
  FIRST_EPOCHS = 3,       /* steps whose operations are all written */
  IDLE_NS = 5000,         /* a GEMM that starts so soon after its issue found the device idle: launch latency on a GPU */
  ANCHOR_NS = 1000000000, /* cudaEventElapsedTime gives a float of milliseconds: 0.06 us at one second */
  WINDOW_FIRST = 16,
  WINDOW_EVERY = 1024,
  WINDOW_STEPS = 32, /* where every second step is left untimed */
};

/* What the driver has to have; none of it is the job's. */
#define FUNCTIONS(X)                                                                                                        \
  X(cuCtxGetCurrent, CUresult, (CUcontext *))                                                                               \
  X(cuEventCreate, CUresult, (CUevent *, unsigned))                                                                         \
  X(cuEventRecord, CUresult, (CUevent, CUstream))                                                                           \
  X(cuEventElapsedTime, CUresult, (float *, CUevent, CUevent))                                                              \
  X(cuStreamGetFlags, CUresult, (CUstream, unsigned *))                                                                     \
  X(cuStreamIsCapturing, CUresult, (CUstream, CUstreamCaptureStatus *))                                                     \
  X(cuStreamCreateWithPriority, CUresult, (CUstream *, unsigned, int))                                                      \
  X(cuCtxGetStreamPriorityRange, CUresult, (int *, int *))                                                                  \
  X(cuThreadExchangeStreamCaptureMode, CUresult, (CUstreamCaptureMode *))

struct driver {
#define MEMBER(name, ret, params) ret(*name) params;
  FUNCTIONS(MEMBER)
#undef MEMBER
};

enum kind { COLLECTIVE, WAIT, GEMM, BOUNDARY, GRAPH };

/* Something that was issued and is not read back yet. */
struct entry {
  enum kind kind;
  uint32_t info;
  CUevent first, second, probe; /* start, end, issue; NULL: none */
  uint64_t stream, epoch, issued_ns;
  struct b200_overlap_id id;
  struct b200_overlap_wait wait;
};

/* What a collective was, until its times are known. */
struct info {
  uint64_t comm, sequence, bytes;
  uint32_t group, next;
  int32_t nranks;
  uint8_t op, dtype;
  uint16_t stream;
};

/* One CUDA context. */
struct b200_clock {
  CUcontext context;
  struct b200_overlap *overlap;
  CUstream probe_stream;
  bool probe_tried;
  uint64_t main_key; /* the stream that has had the last GEMM */
  CUstream main_stream;
  bool has_main;
  CUevent anchor; /* an event whose time is known */
  int64_t anchor_ns;
  int64_t lower_ns, upper_ns; /* host clock minus device clock lies between */
  uint64_t head, tail;
  atomic_bool reading;
  unsigned pooled;
  uint32_t free_info;
  uint64_t stream_keys[STREAMS];
  unsigned stream_count;
  /* along the main stream, of the step whose GEMMs are timed */
  int64_t busy_until_ns; /* it had work to do, or waited for a collective, until then */
  struct entry queue[QUEUE];
  struct info infos[INFOS];
  CUevent pool[POOL];
};

/* A step of the job. */
struct epoch {
  uint64_t number, ordinal;
  uint64_t host_ns;
  bool active, gemms, named, finished, slow;
  uint64_t gen, index;
  struct b200_overlap_step sums;
  int64_t idle_ns, start_ns;
  uint64_t starved;
};

static struct timing {
  pthread_mutex_t lock;
  struct driver driver;
  _Atomic int bound; /* 0 not looked for, 1 there, 2 missing */
  const struct b200_config *config;
  bool single_connection;
  _Atomic int mode; /* enum b200_timing */
  const char *why;
  _Atomic int failures;
  _Atomic(struct b200_clock *) clocks[CLOCKS];
  struct b200_comms comms;
  struct epoch epochs[EPOCHS];
  uint64_t epoch;
  bool from_gemms; /* no collective has been seen yet */
  uint64_t first_ops;
  double usual_ns; /* running mean of a step's device time */
  struct b200_kinds kinds;
  _Atomic uint64_t untimed[B200_UNTIMED_COUNT];
  uint64_t untimed_flushed[B200_UNTIMED_COUNT];
  uint64_t graphs, graphs_timed, graphs_ns, graphs_flushed, graphs_timed_flushed, graphs_ns_flushed;
  uint64_t timed_steps_ns[2][WINDOW_STEPS]; /* host time of steps without and with timing, in the window */
  unsigned timed_steps[2];
  bool said_mode;
  struct b200_timing_last last;
  bool has_last;
} timing = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Atomic unsigned b200_timing_wants;

static uint64_t host_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------- mode */

static struct epoch *epoch_at(uint64_t number) {
  struct epoch *epoch = &timing.epochs[number % EPOCHS];
  return epoch->number == number ? epoch : NULL;
}

static void set_wants(const struct epoch *epoch) {
  unsigned wants = 0;
  if (timing.mode != B200_TIMING_OFF && epoch->active)
    wants |= B200_TIMING_ACTIVE;
  if (timing.mode != B200_TIMING_OFF && epoch->active && epoch->gemms)
    wants |= B200_TIMING_GEMMS;
  if (timing.mode != B200_TIMING_OFF && timing.from_gemms)
    wants |= B200_TIMING_STEPS;
  for (int i = 0; i < CLOCKS && wants; i++) {
    struct b200_clock *clock = atomic_load(&timing.clocks[i]);
    if (clock && b200_overlap_has_blocking(clock->overlap))
      wants |= B200_TIMING_BLOCKING;
  }
  atomic_store_explicit(&b200_timing_wants, wants, memory_order_relaxed);
}

static const char *mode_name(void) {
  static const char *const names[] = {[B200_TIMING_ON] = "on", [B200_TIMING_SAMPLED] = "sampled", [B200_TIMING_OFF] = "off"};
  return names[timing.mode];
}

/* pre: the lock is held, or nothing runs yet. */
static void write_mode(const struct b200_clock *clock) {
  struct b200_line line;
  bool host = clock && clock->anchor && clock->lower_ns <= clock->upper_ns;
  b200_line_begin(&line, B200_RECORD_timing);
  b200_line_text(&line, B200_FIELD_timing_mode, mode_name());
  b200_line_int(&line, B200_FIELD_timing_every, timing.config->timing_every);
  b200_line_text(&line, B200_FIELD_timing_why, timing.why);
  b200_line_text(&line, B200_FIELD_timing_clock, host ? "host" : "device");
  b200_line_int(&line, B200_FIELD_timing_clock_ns, host ? (clock->upper_ns - clock->lower_ns) / 2 : -1);
  b200_runtime_put(&line);
}

static void change_mode(int mode, const char *why) {
  timing.mode = mode;
  timing.why = why;
  write_mode(NULL);
}

/* A step of the window in which every second one is left untimed. */
static bool in_window(uint64_t number) {
  return number >= WINDOW_FIRST && (number - WINDOW_FIRST) % WINDOW_EVERY < WINDOW_STEPS;
}

static void plan_epoch(struct epoch *epoch) {
  uint64_t every = (uint64_t)timing.config->timing_every;
  bool sample = epoch->number % every == every / 2;
  bool window = in_window(epoch->number) && timing.mode == B200_TIMING_ON && timing.config->overhead_max_pct > 0;
  epoch->gemms = sample && !window;
  epoch->active = window ? epoch->number % 2 == 0 : timing.mode == B200_TIMING_ON || sample;
}

void b200_timing_start(const struct b200_config *config, bool single_connection) {
  timing.config = config;
  timing.single_connection = single_connection;
  bool crowded = single_connection && config->timing == B200_TIMING_AUTO;
  timing.why = config->timing == B200_TIMING_AUTO ? "default" : "told";
  timing.mode = config->timing == B200_TIMING_AUTO ? B200_TIMING_ON : (int)config->timing;
  if (crowded) {
    timing.mode = B200_TIMING_SAMPLED;
    timing.why = "max_connections";
  }
  timing.from_gemms = true;
  struct epoch *first = &timing.epochs[0];
  *first = (struct epoch){.active = timing.mode == B200_TIMING_ON, .ordinal = UINT64_MAX};
  set_wants(first);
  write_mode(NULL);
}

/* --------------------------------------------------------------------------------------------- contexts */

static const struct driver *driver(void) {
  int bound = atomic_load_explicit(&timing.bound, memory_order_acquire);
  if (bound == 1)
    return &timing.driver;
  if (bound == 2)
    return NULL;
  struct driver found;
  bool complete = true;
#define FIND(name, ret, params)                                                                                             \
  found.name = (ret(*) params)b200_library_symbol(B200_LIBRARY_cuda, #name);                                                \
  complete = complete && found.name;
  FUNCTIONS(FIND)
#undef FIND
  pthread_mutex_lock(&timing.lock);
  if (!timing.bound) {
    timing.driver = found;
    if (!complete) {
      change_mode(B200_TIMING_OFF, "missing");
      atomic_store(&b200_timing_wants, 0);
    }
    atomic_store_explicit(&timing.bound, complete ? 1 : 2, memory_order_release);
  }
  pthread_mutex_unlock(&timing.lock);
  return complete ? &timing.driver : NULL;
}

static void sink_op(void *context, const struct b200_overlap_op *op);
static void sink_step(void *context, const struct b200_overlap_step *step);

enum { LEGACY_KEY = 1 }; /* of the legacy default stream */

static struct b200_clock *make_clock(CUcontext context) {
  struct b200_clock *clock =
      mmap(NULL, sizeof *clock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void *overlap = clock == MAP_FAILED ? MAP_FAILED
                                      : mmap(NULL, b200_overlap_bytes(), PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (overlap == MAP_FAILED) {
    if (clock != MAP_FAILED)
      munmap(clock, sizeof *clock);
    return NULL;
  }
  const struct b200_overlap_sink sink = {.op = sink_op, .step = sink_step, .context = clock};
  clock->context = context;
  clock->overlap = overlap;
  clock->lower_ns = INT64_MIN;
  clock->upper_ns = INT64_MAX;
  for (uint32_t i = 0; i < INFOS; i++)
    clock->infos[i].next = i + 1;
  b200_overlap_start(clock->overlap, &sink);
  b200_overlap_stream(clock->overlap, LEGACY_KEY, true, true);
  clock->stream_keys[clock->stream_count++] = LEGACY_KEY;
  b200_overlap_step(clock->overlap, timing.epoch);
  return clock;
}

/* The clock of the current context; NULL: there is none, or no room for one. */
static struct b200_clock *current_clock(const struct driver *driver) {
  CUcontext context = NULL;
  if (driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
    return NULL;
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_load_explicit(&timing.clocks[i], memory_order_acquire);
    if (clock && clock->context == context)
      return clock;
    if (!clock)
      break;
  }
  struct b200_clock *found = NULL;
  pthread_mutex_lock(&timing.lock);
  for (int i = 0; i < CLOCKS && !found; i++) {
    struct b200_clock *clock = atomic_load(&timing.clocks[i]);
    if (clock && clock->context != context)
      continue;
    found = clock ? clock : make_clock(context);
    atomic_store_explicit(&timing.clocks[i], found, memory_order_release);
    break;
  }
  pthread_mutex_unlock(&timing.lock);
  return found;
}

/* Streams that mean another one for another thread get a key of their own. */
static uint64_t key_of(const void *stream, bool per_thread) {
  enum { PER_THREAD = 2 };
  uintptr_t handle = (uintptr_t)stream;
  if (handle == PER_THREAD || (handle == 0 && per_thread))
    return (uint64_t)(uintptr_t)b200_thread_self() | PER_THREAD;
  return handle == 0 ? LEGACY_KEY : (uint64_t)handle;
}

static bool is_captured(const struct driver *driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!b200_runtime_is_capturing())
    return false;
  return driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Small number of a stream; learns, the first time, whether it is ordered with the legacy stream. */
static uint16_t number_of(struct b200_clock *clock, const struct driver *driver, uint64_t key, CUstream stream) {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  for (unsigned i = 0; i < clock->stream_count; i++)
    if (clock->stream_keys[i] == key)
      return (uint16_t)i;
  if (clock->stream_count == STREAMS)
    return STREAMS;
  if (driver->cuStreamGetFlags(stream, &flags) != CUDA_SUCCESS)
    flags = CU_STREAM_NON_BLOCKING;
  pthread_mutex_lock(&timing.lock);
  unsigned at = clock->stream_count;
  for (unsigned i = 0; i < clock->stream_count; i++)
    if (clock->stream_keys[i] == key)
      at = i;
  if (at == clock->stream_count && at < STREAMS) {
    clock->stream_keys[at] = key;
    clock->stream_count++;
    b200_overlap_stream(clock->overlap, key, !(flags & CU_STREAM_NON_BLOCKING), false);
    if (b200_overlap_has_blocking(clock->overlap))
      atomic_fetch_or(&b200_timing_wants, B200_TIMING_BLOCKING);
  }
  pthread_mutex_unlock(&timing.lock);
  return (uint16_t)at;
}

/* ------------------------------------------------------------------------------------------------ events */

static CUevent take_event(struct b200_clock *clock, const struct driver *driver) {
  CUevent event = NULL;
  pthread_mutex_lock(&timing.lock);
  if (clock->pooled > 0)
    event = clock->pool[--clock->pooled];
  pthread_mutex_unlock(&timing.lock);
  if (!event && driver->cuEventCreate(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
    event = NULL;
  return event;
}

/* pre: the lock is held. An event that finds no room is left to the context. */
static void give_event(struct b200_clock *clock, CUevent event) {
  if (event && event != clock->anchor && clock->pooled < POOL)
    clock->pool[clock->pooled++] = event;
}

static void failed(void) {
  if (atomic_fetch_add(&timing.failures, 1) + 1 != FAILURES)
    return;
  pthread_mutex_lock(&timing.lock);
  change_mode(B200_TIMING_OFF, "vendor");
  atomic_store(&b200_timing_wants, 0);
  pthread_mutex_unlock(&timing.lock);
  b200_runtime_say("timing: the driver refuses events; collectives are not timed any more");
}

/* An event on the stream, now. NULL: the driver refused. */
static CUevent stamp(struct b200_clock *clock, const struct driver *driver, CUstream stream) {
  CUevent event = take_event(clock, driver);
  if (event && driver->cuEventRecord(event, stream) == CUDA_SUCCESS)
    return event;
  pthread_mutex_lock(&timing.lock);
  give_event(clock, event);
  pthread_mutex_unlock(&timing.lock);
  failed();
  return NULL;
}

/* An event on a stream that has nothing else to do: its time is the time of issue. Where all streams share one connection
   it would queue behind the others. */
static CUevent stamp_issue(struct b200_clock *clock, const struct driver *driver) {
  if (timing.single_connection)
    return NULL;
  if (!clock->probe_tried) {
    int least = 0, greatest = 0;
    clock->probe_tried = true;
    if (driver->cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS ||
        driver->cuStreamCreateWithPriority(&clock->probe_stream, CU_STREAM_NON_BLOCKING, greatest) != CUDA_SUCCESS)
      clock->probe_stream = NULL;
  }
  return clock->probe_stream ? stamp(clock, driver, clock->probe_stream) : NULL;
}

static void drop_events(struct b200_clock *clock, const struct entry *entry) {
  give_event(clock, entry->first);
  give_event(clock, entry->second);
  give_event(clock, entry->probe);
}

static void count_untimed(enum b200_untimed why, uint64_t calls) {
  atomic_fetch_add_explicit(&timing.untimed[why], calls, memory_order_relaxed);
}

/* pre: the lock is held. */
static uint32_t take_info(struct b200_clock *clock) {
  uint32_t at = clock->free_info;
  if (at < INFOS)
    clock->free_info = clock->infos[at].next;
  return at;
}

static void give_info(struct b200_clock *clock, uint32_t at) {
  clock->infos[at].next = clock->free_info;
  clock->free_info = at;
}

/* pre: the lock is held. The collective will not be timed. */
static void lose(struct b200_clock *clock, const struct entry *entry, enum b200_untimed why) {
  if (entry->kind != COLLECTIVE)
    return;
  count_untimed(why, clock->infos[entry->info].group);
  b200_overlap_lost(clock->overlap, entry->id);
  give_info(clock, entry->info);
}

static void push(struct b200_clock *clock, const struct entry *entry) {
  pthread_mutex_lock(&timing.lock);
  if (clock->tail - clock->head < QUEUE) {
    clock->queue[clock->tail++ % QUEUE] = *entry;
  } else {
    lose(clock, entry, B200_UNTIMED_FULL);
    drop_events(clock, entry);
  }
  pthread_mutex_unlock(&timing.lock);
}

/* --------------------------------------------------------------------------------------------- reading back */

static int64_t rounded(double value) {
  return (int64_t)(value + (value < 0 ? -0.5 : 0.5));
}

/* Time of a completed event, on the host's scale as far as the two clocks go together. */
static bool time_of(struct b200_clock *clock, const struct driver *driver, CUevent event, int64_t *out) {
  float ms = 0;
  if (driver->cuEventElapsedTime(&ms, clock->anchor, event) != CUDA_SUCCESS || !isfinite(ms))
    return false;
  *out = clock->anchor_ns + rounded((double)ms * 1e6);
  return true;
}

struct times {
  bool good;
  int64_t first, second, probe;
};

/* Whether the entry is complete: CUDA_ERROR_NOT_READY when not. Asking for the time says so, too, and spares a query. */
static CUresult is_complete(const struct b200_clock *clock, const struct driver *driver, const struct entry *entry) {
  float ms;
  return driver->cuEventElapsedTime(&ms, clock->anchor ? clock->anchor : entry->first,
                                    entry->second ? entry->second : entry->first);
}

/* pre: the entry is complete, and this thread is the one that reads back. */
static struct times times_of(struct b200_clock *clock, const struct driver *driver, const struct entry *entry) {
  struct times times = {.probe = INT64_MIN};
  if (!clock->anchor) {
    clock->anchor = entry->first;
    clock->anchor_ns = (int64_t)entry->issued_ns;
  }
  times.good = time_of(clock, driver, entry->first, &times.first);
  times.second = times.first;
  if (times.good && entry->second)
    times.good = time_of(clock, driver, entry->second, &times.second) && times.second >= times.first;
  if (times.good && entry->probe && !time_of(clock, driver, entry->probe, &times.probe))
    times.probe = INT64_MIN;
  return times;
}

/* pre: the lock is held. An event does not happen before it is issued, nor after it was seen to be complete. */
static void learn_offset(struct b200_clock *clock, const struct entry *entry, const struct times *times, uint64_t now) {
  int64_t lower = (int64_t)entry->issued_ns - times->first, upper = (int64_t)now - times->second;
  if (lower > clock->lower_ns)
    clock->lower_ns = lower;
  if (upper < clock->upper_ns)
    clock->upper_ns = upper;
}

/* pre: the lock is held. */
static void move_anchor(struct b200_clock *clock, const struct entry *entry, const struct times *times) {
  CUevent last = entry->second ? entry->second : entry->first;
  if (clock->anchor == entry->first && entry->second == NULL)
    return;
  if (times->second - clock->anchor_ns < ANCHOR_NS)
    return;
  CUevent old = clock->anchor;
  clock->anchor = last;
  clock->anchor_ns = times->second;
  if (old != entry->first && old != entry->second && old != entry->probe)
    give_event(clock, old);
}

/* The main stream came to `t_ns`: had it nothing to do until this was issued? Adds the gap to the step. */
static int64_t idle_before(struct b200_clock *clock, const struct times *times) {
  bool idle = times->probe != INT64_MIN && times->first - times->probe < IDLE_NS;
  return idle && times->first > clock->busy_until_ns ? times->first - clock->busy_until_ns : idle ? 0 : -1;
}

static void take_gemm(struct b200_clock *clock, const struct entry *entry, const struct times *times) {
  struct epoch *epoch = epoch_at(entry->epoch);
  b200_overlap_gemm(clock->overlap, times->first, times->second);
  if (entry->stream != clock->main_key || !epoch)
    return;
  int64_t idle = idle_before(clock, times);
  if (idle >= 0) {
    epoch->starved++;
    epoch->idle_ns += idle;
    if (epoch->sums.gemms == 0)
      epoch->start_ns += idle;
  }
  epoch->sums.gemms++;
  clock->busy_until_ns = times->second;
}

static void take_boundary(struct b200_clock *clock, const struct entry *entry, const struct times *times) {
  struct epoch *ended = epoch_at(entry->epoch - 1);
  if (ended && ended->gemms) {
    int64_t idle = idle_before(clock, times);
    if (idle > 0) {
      ended->idle_ns += idle;
      ended->start_ns += idle; /* the next step's first work is late: its data are not there yet */
    }
  }
  clock->busy_until_ns = times->first;
  b200_overlap_boundary(clock->overlap, entry->epoch, times->first, ended && ended->gemms);
}

static void take_entry(struct b200_clock *clock, const struct entry *entry, const struct times *times) {
  switch (entry->kind) {
  case COLLECTIVE:
    if (entry->stream == clock->main_key && times->second > clock->busy_until_ns)
      clock->busy_until_ns = times->second;
    b200_overlap_done(clock->overlap, entry->id, times->first, times->second);
    break;
  case WAIT: {
    int64_t resumed = b200_overlap_waited(clock->overlap, &entry->wait, times->first);
    if (entry->stream == clock->main_key && resumed > clock->busy_until_ns)
      clock->busy_until_ns = resumed;
    break;
  }
  case GEMM:
    take_gemm(clock, entry, times);
    break;
  case BOUNDARY:
    take_boundary(clock, entry, times);
    break;
  case GRAPH:
    timing.graphs_timed++;
    timing.graphs_ns += (uint64_t)(times->second - times->first);
    break;
  }
}

/* Reads back what is complete, `most` entries at most. One thread at a time; another goes on with its own work. */
static void read_back(struct b200_clock *clock, const struct driver *driver, unsigned most) {
  if (clock->head == clock->tail || b200_runtime_is_capturing() || atomic_exchange(&clock->reading, true))
    return;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed = driver->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  while (most-- > 0 && relaxed && clock->head != clock->tail) {
    const struct entry *entry = &clock->queue[clock->head % QUEUE];
    CUresult status = is_complete(clock, driver, entry);
    if (status == CUDA_ERROR_NOT_READY)
      break;
    struct times times = {0};
    if (status == CUDA_SUCCESS)
      times = times_of(clock, driver, entry);
    uint64_t now = host_now();
    pthread_mutex_lock(&timing.lock);
    if (times.good) {
      learn_offset(clock, entry, &times, now);
      take_entry(clock, entry, &times);
      move_anchor(clock, entry, &times);
    } else {
      lose(clock, entry, B200_UNTIMED_VENDOR);
    }
    drop_events(clock, entry);
    clock->head++;
    pthread_mutex_unlock(&timing.lock);
    if (status != CUDA_SUCCESS)
      failed();
  }
  if (relaxed)
    driver->cuThreadExchangeStreamCaptureMode(&mode);
  atomic_store(&clock->reading, false);
}

/* ----------------------------------------------------------------------------------------------- lines */

static bool is_written(const struct epoch *epoch) {
  return epoch->gemms || epoch->slow || epoch->number <= FIRST_EPOCHS;
}

static void write_op(const struct b200_overlap_op *op, const struct info *info, const struct epoch *epoch) {
  char id[20];
  struct b200_line line;
  snprintf(id, sizeof id, "%016llx", (unsigned long long)info->comm);
  b200_line_begin(&line, B200_RECORD_op);
  b200_line_uint(&line, B200_FIELD_op_gen, epoch && epoch->named ? epoch->gen : 0);
  b200_line_int(&line, B200_FIELD_op_step, epoch && epoch->named ? (int64_t)epoch->index : -1);
  b200_line_text(&line, B200_FIELD_op_comm, info->comm ? id : "?");
  b200_line_uint(&line, B200_FIELD_op_seq, info->sequence);
  b200_line_uint(&line, B200_FIELD_op_group, info->group);
  b200_line_text(&line, B200_FIELD_op_op, info->op < B200_COLL_COUNT ? b200_coll_names[info->op] : "mixed");
  b200_line_text(&line, B200_FIELD_op_dtype, b200_element_names[info->dtype]);
  b200_line_int(&line, B200_FIELD_op_nranks, info->nranks);
  b200_line_uint(&line, B200_FIELD_op_bytes, info->bytes);
  b200_line_uint(&line, B200_FIELD_op_stream, info->stream);
  b200_line_int(&line, B200_FIELD_op_t_ns, op->t_start_ns);
  b200_line_int(&line, B200_FIELD_op_dur_ns, op->t_end_ns - op->t_start_ns);
  b200_line_int(&line, B200_FIELD_op_blocked_ns, op->blocked_ns);
  b200_line_int(&line, B200_FIELD_op_queued_ns, op->queued_ns);
  b200_runtime_put(&line);
}

static void sink_op(void *context, const struct b200_overlap_op *op) {
  struct b200_clock *clock = context;
  uint32_t at = (uint32_t)op->user;
  const struct info *info = &clock->infos[at];
  const struct epoch *epoch = epoch_at(op->step);
  b200_kinds_add(&timing.kinds, &(struct b200_kind){.op = info->op,
                                                    .dtype = info->dtype,
                                                    .nranks = info->nranks,
                                                    .calls = info->group,
                                                    .bytes = info->bytes,
                                                    .dur_ns = (uint64_t)(op->t_end_ns - op->t_start_ns),
                                                    .blocked_ns = (uint64_t)op->blocked_ns,
                                                    .queued_ns = (uint64_t)op->queued_ns});
  bool early = op->step == 0 && timing.first_ops < FIRST_OPS;
  if (early)
    timing.first_ops++;
  if (early || (op->step > 0 && epoch && is_written(epoch)))
    write_op(op, info, epoch);
  give_info(clock, at);
}

static void write_time(const struct epoch *epoch) {
  const struct b200_overlap_step *sums = &epoch->sums;
  bool gemms = epoch->gemms && sums->gemms > 0;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_time);
  b200_line_uint(&line, B200_FIELD_time_gen, epoch->gen);
  b200_line_uint(&line, B200_FIELD_time_step, epoch->index);
  b200_line_int(&line, B200_FIELD_time_t_ns, sums->t_start_ns);
  b200_line_int(&line, B200_FIELD_time_dev_ns, sums->t_end_ns - sums->t_start_ns);
  b200_line_uint(&line, B200_FIELD_time_colls, sums->collectives);
  b200_line_int(&line, B200_FIELD_time_comm_ns, sums->comm_ns);
  b200_line_int(&line, B200_FIELD_time_busy_ns, sums->busy_ns);
  b200_line_int(&line, B200_FIELD_time_blocked_ns, sums->blocked_ns);
  b200_line_int(&line, B200_FIELD_time_queued_ns, sums->queued_ns);
  b200_line_uint(&line, B200_FIELD_time_gemms, gemms ? sums->gemms : 0);
  b200_line_int(&line, B200_FIELD_time_gemm_ns, gemms ? sums->gemm_ns : -1);
  b200_line_int(&line, B200_FIELD_time_uncovered_ns, gemms ? sums->uncovered_ns : -1);
  b200_line_int(&line, B200_FIELD_time_host_ns, gemms && !timing.single_connection ? epoch->idle_ns : -1);
  b200_line_int(&line, B200_FIELD_time_start_ns, gemms && !timing.single_connection ? epoch->start_ns : -1);
  b200_line_int(&line, B200_FIELD_time_starved, gemms && !timing.single_connection ? (int64_t)epoch->starved : -1);
  b200_runtime_put(&line);
}

/* pre: the lock is held. A step is written once it has both its number and its times. */
static void write_when_complete(struct epoch *epoch) {
  if (!epoch->named || !epoch->finished)
    return;
  write_time(epoch);
  timing.has_last = true;
  timing.last = (struct b200_timing_last){.gen = epoch->gen,
                                          .index = epoch->index,
                                          .dev_ns = epoch->sums.t_end_ns - epoch->sums.t_start_ns,
                                          .comm_ns = epoch->sums.comm_ns,
                                          .blocked_ns = epoch->sums.blocked_ns};
  epoch->finished = false;
}

/* Clock and mode are known well enough to be said once the first step is over. */
static void say_mode(const struct b200_clock *clock) {
  if (!timing.said_mode)
    write_mode(clock);
  timing.said_mode = true;
}

static void sink_step(void *context, const struct b200_overlap_step *step) {
  struct epoch *epoch = epoch_at(step->step);
  if (!epoch || !epoch->active || step->step == 0)
    return;
  double dev_ns = (double)(step->t_end_ns - step->t_start_ns);
  epoch->slow = timing.usual_ns > 0 && dev_ns > 1.5 * timing.usual_ns;
  timing.usual_ns = timing.usual_ns > 0 ? 0.9 * timing.usual_ns + 0.1 * dev_ns : dev_ns;
  epoch->sums = *step;
  epoch->finished = true;
  say_mode(context);
  write_when_complete(epoch);
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Median, and its standard error from the median absolute deviation (normal: 1.2533 · 1.4826 · MAD / √n). */
static double median_of(uint64_t *values, unsigned count, double *error) {
  uint64_t off[WINDOW_STEPS];
  qsort(values, count, sizeof *values, by_value);
  uint64_t median = values[count / 2];
  for (unsigned i = 0; i < count; i++)
    off[i] = values[i] > median ? values[i] - median : median - values[i];
  qsort(off, count, sizeof *off, by_value);
  *error = 1.2533 * 1.4826 * (double)off[count / 2] / sqrt((double)count);
  return (double)median;
}

/* pre: the lock is held. The window is over: what has the timing cost? */
static void judge_overhead(void) {
  enum { LEAST = 8 };
  double off_error, on_error;
  if (timing.timed_steps[0] >= LEAST && timing.timed_steps[1] >= LEAST) {
    double off = median_of(timing.timed_steps_ns[0], timing.timed_steps[0], &off_error);
    double on = median_of(timing.timed_steps_ns[1], timing.timed_steps[1], &on_error);
    double percent = off > 0 ? 100 * (on - off) / off : 0;
    double noise = off > 0 ? 196 * sqrt(off_error * off_error + on_error * on_error) / off : 0;
    struct b200_line line;
    b200_line_begin(&line, B200_RECORD_overhead);
    b200_line_uint(&line, B200_FIELD_overhead_steps, timing.timed_steps[0]);
    b200_line_uint(&line, B200_FIELD_overhead_on_ns, (uint64_t)on);
    b200_line_uint(&line, B200_FIELD_overhead_off_ns, (uint64_t)off);
    b200_line_real(&line, B200_FIELD_overhead_pct, percent);
    b200_line_real(&line, B200_FIELD_overhead_noise_pct, noise);
    b200_runtime_put(&line);
    if (percent - noise > (double)timing.config->overhead_max_pct)
      change_mode(B200_TIMING_SAMPLED, "overhead");
  }
  timing.timed_steps[0] = timing.timed_steps[1] = 0;
}

/* pre: the lock is held. */
static void measure_overhead(const struct epoch *ended, uint64_t now) {
  if (in_window(ended->number) && timing.mode == B200_TIMING_ON && timing.config->overhead_max_pct > 0 &&
      ended->host_ns > 0) {
    bool on = ended->active;
    if (timing.timed_steps[on] < WINDOW_STEPS)
      timing.timed_steps_ns[on][timing.timed_steps[on]++] = now - ended->host_ns;
  } else if (timing.timed_steps[0] + timing.timed_steps[1] > 0) {
    judge_overhead();
  }
}

/* ------------------------------------------------------------------------------------------------ steps */

/* A step begins with the next operation; `stream` serves when no GEMM has named a main stream. */
void b200_timing_boundary(void *stream, const struct b200_totals *before) {
  const struct driver *d = driver();
  struct b200_clock *clock = d ? current_clock(d) : NULL;
  if (!clock)
    return;
  pthread_mutex_lock(&timing.lock);
  struct epoch *ended = epoch_at(timing.epoch);
  bool same = ended && ended->ordinal == before->ordinal;
  bool was_active = ended && ended->active && ended->number > 0, had_gemms = ended && ended->gemms;
  if (same) {
    pthread_mutex_unlock(&timing.lock);
    return;
  }
  if (ended)
    measure_overhead(ended, before->t_ns);
  struct epoch *epoch = &timing.epochs[++timing.epoch % EPOCHS];
  *epoch = (struct epoch){.number = timing.epoch, .ordinal = before->ordinal, .host_ns = before->t_ns};
  plan_epoch(epoch);
  bool needed = was_active || epoch->active;
  struct entry entry = {.kind = BOUNDARY, .epoch = epoch->number, .issued_ns = host_now(), .stream = clock->main_key};
  CUstream on = clock->has_main ? clock->main_stream : (CUstream)stream;
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *any = atomic_load(&timing.clocks[i]);
    if (any)
      b200_overlap_step(any->overlap, epoch->number);
  }
  set_wants(epoch);
  pthread_mutex_unlock(&timing.lock);
  if (!needed || timing.mode == B200_TIMING_OFF || is_captured(d, on))
    return;
  entry.probe = had_gemms ? stamp_issue(clock, d) : NULL;
  entry.first = stamp(clock, d, on);
  if (entry.first)
    push(clock, &entry);
  read_back(clock, d, AT_ONCE);
}

void b200_timing_step(const struct b200_step *step) {
  pthread_mutex_lock(&timing.lock);
  for (int i = 0; i < EPOCHS; i++) {
    struct epoch *epoch = &timing.epochs[i];
    if (epoch->number == 0 || epoch->named || epoch->ordinal != step->start.ordinal)
      continue;
    epoch->named = true;
    epoch->gen = step->generation;
    epoch->index = step->index;
    write_when_complete(epoch);
  }
  pthread_mutex_unlock(&timing.lock);
}

bool b200_timing_last(struct b200_timing_last *out) {
  pthread_mutex_lock(&timing.lock);
  *out = timing.last;
  bool has = timing.has_last;
  pthread_mutex_unlock(&timing.lock);
  return has;
}

/* ------------------------------------------------------------------------------------------ dependencies */

/* What a stream is ordered after without an event. Where it waits the stream cannot be asked: an event on it would wait as
   well, so the time of issue stands for it. */
static void wait_implicitly(struct b200_clock *clock, const struct driver *d, uint64_t key) {
  struct entry entry = {.kind = WAIT, .stream = key, .issued_ns = host_now()};
  pthread_mutex_lock(&timing.lock);
  bool waits = b200_overlap_has_blocking(clock->overlap) && b200_overlap_implicit(clock->overlap, key, &entry.wait);
  pthread_mutex_unlock(&timing.lock);
  entry.first = waits ? stamp_issue(clock, d) : NULL;
  if (entry.first)
    push(clock, &entry);
}

void b200_timing_launch(void *stream) {
  const struct driver *d = driver();
  struct b200_clock *clock = d && !is_captured(d, stream) ? current_clock(d) : NULL;
  if (!clock)
    return;
  uint64_t key = key_of(stream, false);
  number_of(clock, d, key, stream);
  wait_implicitly(clock, d, key);
}

void b200_timing_record(void *event, void *stream, bool per_thread) {
  const struct driver *d = b200_timing_now() & B200_TIMING_ACTIVE ? driver() : NULL;
  struct b200_clock *clock = d && !is_captured(d, stream) ? current_clock(d) : NULL;
  if (!clock)
    return;
  uint64_t key = key_of(stream, per_thread);
  number_of(clock, d, key, stream);
  pthread_mutex_lock(&timing.lock);
  b200_overlap_record(clock->overlap, (uint64_t)(uintptr_t)event, key);
  pthread_mutex_unlock(&timing.lock);
}

void b200_timing_event_gone(void *event) {
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_load_explicit(&timing.clocks[i], memory_order_acquire);
    if (!clock)
      return;
    pthread_mutex_lock(&timing.lock);
    b200_overlap_forget_event(clock->overlap, (uint64_t)(uintptr_t)event);
    pthread_mutex_unlock(&timing.lock);
  }
}

void b200_timing_wait(void *stream, void *event, bool per_thread) {
  const struct driver *d = b200_timing_now() & B200_TIMING_ACTIVE ? driver() : NULL;
  struct b200_clock *clock = d && !is_captured(d, stream) ? current_clock(d) : NULL;
  if (!clock)
    return;
  uint64_t key = key_of(stream, per_thread);
  struct entry entry = {.kind = WAIT, .stream = key, .issued_ns = host_now()};
  number_of(clock, d, key, stream);
  pthread_mutex_lock(&timing.lock);
  bool waits = b200_overlap_wait(clock->overlap, key, (uint64_t)(uintptr_t)event, &entry.wait);
  pthread_mutex_unlock(&timing.lock);
  entry.first = waits ? stamp(clock, d, per_thread && !stream ? CU_STREAM_PER_THREAD : (CUstream)stream) : NULL;
  if (entry.first)
    push(clock, &entry);
}

/* What the host is about to wait for: later work of other threads is no part of it. */
static struct b200_clock *clock_of_host_wait(void) {
  const struct driver *d = b200_timing_now() || timing.epoch > 0 ? driver() : NULL;
  return d ? current_clock(d) : NULL;
}

void b200_timing_host_begin(struct b200_host_wait *wait, enum b200_host_wait_kind kind, void *what, bool per_thread) {
  wait->clock = clock_of_host_wait();
  if (!wait->clock)
    return;
  const struct b200_overlap *overlap = wait->clock->overlap;
  pthread_mutex_lock(&timing.lock);
  if (kind == B200_HOST_EVENT)
    wait->upto = b200_overlap_of_event(overlap, (uint64_t)(uintptr_t)what);
  else if (kind == B200_HOST_STREAM)
    wait->upto = b200_overlap_of_stream(overlap, key_of(what, per_thread));
  else
    wait->upto = b200_overlap_of_device(overlap);
  pthread_mutex_unlock(&timing.lock);
}

void b200_timing_host_end(const struct b200_host_wait *wait, bool failed_call) {
  if (!wait->clock || failed_call)
    return;
  pthread_mutex_lock(&timing.lock);
  b200_overlap_over(wait->clock->overlap, &wait->upto);
  pthread_mutex_unlock(&timing.lock);
  read_back(wait->clock, &timing.driver, QUEUE);
}

/* ------------------------------------------------------------------------------------------- collectives */

struct operation {
  const void *comm;
  void *stream;
  uint64_t bytes;
  uint32_t calls;
  int32_t nranks;
  uint8_t op, dtype;
};

static void write_comm(struct b200_comm *comm, int32_t nranks, int rank) {
  char id[20], parent[20] = "";
  struct b200_line line;
  comm->written = true;
  snprintf(id, sizeof id, "%016llx", (unsigned long long)comm->id);
  if (comm->parent)
    snprintf(parent, sizeof parent, "%016llx", (unsigned long long)comm->parent);
  b200_line_begin(&line, B200_RECORD_comm);
  b200_line_text(&line, B200_FIELD_comm_id, comm->id ? id : "?");
  b200_line_int(&line, B200_FIELD_comm_nranks, nranks);
  b200_line_int(&line, B200_FIELD_comm_rank, rank);
  b200_line_text(&line, B200_FIELD_comm_parent, parent);
  b200_runtime_put(&line);
}

/* Rank of this process in a communicator that works already; -1 when it cannot be asked. */
static int rank_in(const void *comm) {
  static _Atomic(void *) cache;
  int rank = -1;
  int (*ask)(const void *, int *) =
      (int (*)(const void *, int *))b200_library_cached(&cache, B200_LIBRARY_nccl, "ncclCommUserRank");
  return ask && comm && ask(comm, &rank) == 0 ? rank : -1;
}

/* Every operation takes its number, timed or not, so that all ranks count alike. Returns the communicator's id. */
static uint64_t number_operation(const struct operation *operation, uint64_t *sequence) {
  uint64_t id = 0;
  *sequence = 0;
  pthread_mutex_lock(&timing.lock);
  struct b200_comm *comm = b200_comms_find(&timing.comms, operation->comm);
  bool fresh = comm && !comm->written;
  if (comm) {
    id = comm->id;
    *sequence = comm->operations;
    comm->operations += operation->calls;
    comm->written = true;
  }
  pthread_mutex_unlock(&timing.lock);
  if (!fresh)
    return id;
  int rank = rank_in(operation->comm);
  pthread_mutex_lock(&timing.lock);
  comm = b200_comms_find(&timing.comms, operation->comm);
  if (comm)
    write_comm(comm, operation->nranks, rank);
  pthread_mutex_unlock(&timing.lock);
  return id;
}

static void refuse(struct b200_span *span, enum b200_untimed why) {
  span->clock = NULL;
  span->untimed = 1 + (uint32_t)why;
}

/* Before the vendor's call that starts the operation on the device. */
static void begin_operation(struct b200_span *span, const struct operation *operation) {
  uint64_t sequence, id = number_operation(operation, &sequence);
  const struct driver *d = timing.mode == B200_TIMING_OFF ? NULL : driver();
  if (!d)
    return;
  if (is_captured(d, operation->stream)) {
    refuse(span, B200_UNTIMED_IN_GRAPH);
    return;
  }
  if (!(b200_timing_now() & B200_TIMING_ACTIVE)) {
    refuse(span, B200_UNTIMED_SAMPLED);
    return;
  }
  struct b200_clock *clock = current_clock(d);
  if (!clock) {
    refuse(span, B200_UNTIMED_EARLY);
    return;
  }
  span->clock = clock;
  span->stream = operation->stream;
  span->key = key_of(operation->stream, false);
  span->issued_ns = host_now();
  uint16_t stream = number_of(clock, d, span->key, operation->stream);
  wait_implicitly(clock, d, span->key);
  pthread_mutex_lock(&timing.lock);
  span->info = take_info(clock);
  struct b200_overlap_id name = {.lane = -1};
  if (span->info < INFOS) {
    clock->infos[span->info] = (struct info){.comm = id,
                                             .sequence = sequence,
                                             .bytes = operation->bytes,
                                             .group = operation->calls,
                                             .nranks = operation->nranks,
                                             .op = operation->op,
                                             .dtype = operation->dtype,
                                             .stream = stream};
    name = b200_overlap_collective(clock->overlap, span->key, span->info);
    if (name.lane < 0)
      give_info(clock, span->info);
  }
  pthread_mutex_unlock(&timing.lock);
  span->lane = name.lane;
  span->number = name.number;
  if (name.lane < 0) {
    refuse(span, B200_UNTIMED_FULL);
    return;
  }
  span->start = stamp(clock, d, operation->stream);
}

/* After it. status: ncclResult_t. */
static void end_operation(struct b200_span *span, uint32_t calls, int status) {
  enum { IN_PROGRESS = 7 };
  if (span->untimed && (status == 0 || status == IN_PROGRESS))
    count_untimed((enum b200_untimed)(span->untimed - 1), calls);
  if (!span->clock)
    return;
  struct b200_clock *clock = span->clock;
  const struct driver *d = &timing.driver;
  struct entry entry = {.kind = COLLECTIVE,
                        .info = span->info,
                        .first = span->start,
                        .stream = span->key,
                        .issued_ns = span->issued_ns,
                        .id = {.lane = span->lane, .number = span->number}};
  if (status == 0 && entry.first)
    entry.second = stamp(clock, d, span->stream);
  if (entry.second) {
    push(clock, &entry);
  } else {
    pthread_mutex_lock(&timing.lock);
    if (status != 0 && status != IN_PROGRESS)
      clock->infos[entry.info].group = 0; /* there was no operation */
    lose(clock, &entry, status == IN_PROGRESS ? B200_UNTIMED_IN_PROGRESS : B200_UNTIMED_VENDOR);
    give_event(clock, entry.first);
    pthread_mutex_unlock(&timing.lock);
  }
  read_back(clock, d, AT_ONCE);
}

/* pre: within a group. Adds the call to the part of its stream. */
static void join_group(struct b200_group *group, const void *comm, void *stream, const struct b200_coll *coll) {
  unsigned at = 0;
  while (at < group->streams && group->parts[at].stream != stream)
    at++;
  if (at == B200_GROUP_STREAMS) {
    group->dropped++;
    return;
  }
  struct b200_group_stream *part = &group->parts[at];
  if (at == group->streams) {
    group->streams++;
    *part = (struct b200_group_stream){
        .stream = stream, .comm = comm, .nranks = coll->nranks, .op = coll->op, .dtype = coll->dtype};
  }
  if (part->op != coll->op)
    part->op = B200_COLL_COUNT;
  part->bytes += b200_coll_bytes(coll);
  part->calls++;
}

void b200_timing_coll_begin(struct b200_thread *self, struct b200_span *span, const void *comm, void *stream,
                            const struct b200_coll *coll, const struct b200_totals *before) {
  if (timing.mode == B200_TIMING_OFF)
    return;
  if (timing.from_gemms && coll->nranks > 1) {
    pthread_mutex_lock(&timing.lock);
    timing.from_gemms = false;
    pthread_mutex_unlock(&timing.lock);
    atomic_fetch_and(&b200_timing_wants, ~(unsigned)B200_TIMING_STEPS);
  }
  if (before->begins_step && coll->nranks > 1)
    b200_timing_boundary(stream, before);
  if (self->group.depth > 0)
    return;
  begin_operation(span, &(struct operation){.comm = comm,
                                            .stream = stream,
                                            .bytes = b200_coll_bytes(coll),
                                            .calls = 1,
                                            .nranks = coll->nranks,
                                            .op = coll->op,
                                            .dtype = coll->dtype});
}

void b200_timing_coll_end(struct b200_thread *self, struct b200_span *span, const void *comm, void *stream,
                          const struct b200_coll *coll, int status) {
  if (self->group.depth > 0 && status == 0)
    join_group(&self->group, comm, stream, coll);
  else
    end_operation(span, 1, status);
}

void b200_timing_group_started(struct b200_thread *self) {
  if (self->group.depth++ == 0)
    self->group.streams = self->group.dropped = 0;
}

void b200_timing_group_begin(struct b200_thread *self, struct b200_span *spans) {
  struct b200_group *group = &self->group;
  if (group->depth != 1 || timing.mode == B200_TIMING_OFF)
    return;
  for (unsigned i = 0; i < group->streams; i++) {
    const struct b200_group_stream *part = &group->parts[i];
    begin_operation(&spans[i], &(struct operation){.comm = part->comm,
                                                   .stream = part->stream,
                                                   .bytes = part->bytes,
                                                   .calls = part->calls,
                                                   .nranks = part->nranks,
                                                   .op = part->op,
                                                   .dtype = part->dtype});
  }
}

void b200_timing_group_end(struct b200_thread *self, struct b200_span *spans, int status) {
  struct b200_group *group = &self->group;
  if (group->depth == 0)
    return;
  if (--group->depth > 0)
    return;
  for (unsigned i = 0; i < group->streams; i++)
    end_operation(&spans[i], group->parts[i].calls, status);
  if (group->dropped > 0)
    count_untimed(B200_UNTIMED_FULL, group->dropped);
  group->streams = group->dropped = 0;
}

void b200_timing_comm_made(const void *comm, uint64_t id, const void *parent) {
  pthread_mutex_lock(&timing.lock);
  const struct b200_comm *from = parent ? b200_comms_find(&timing.comms, parent) : NULL;
  b200_comms_add(&timing.comms, comm, id, from ? from->id : 0);
  pthread_mutex_unlock(&timing.lock);
}

uint64_t b200_timing_comm_split(const void *parent, const void *key, size_t key_bytes) {
  pthread_mutex_lock(&timing.lock);
  uint64_t id = b200_comms_split(&timing.comms, parent, key, key_bytes);
  pthread_mutex_unlock(&timing.lock);
  return id;
}

void b200_timing_comm_gone(const void *comm, bool remove) {
  const struct driver *d = timing.mode == B200_TIMING_OFF ? NULL : driver();
  struct b200_clock *clock = d ? current_clock(d) : NULL;
  if (clock)
    read_back(clock, d, QUEUE);
  pthread_mutex_lock(&timing.lock);
  if (remove)
    b200_comms_remove(&timing.comms, comm);
  pthread_mutex_unlock(&timing.lock);
}

/* ------------------------------------------------------------------------------------------ GEMMs and graphs */

void b200_timing_gemm_begin(struct b200_span *span, void *stream) {
  unsigned wants = b200_timing_now();
  const struct driver *d = wants ? driver() : NULL;
  struct b200_clock *clock = d && !is_captured(d, stream) ? current_clock(d) : NULL;
  if (!clock)
    return;
  uint64_t key = key_of(stream, false);
  if (!clock->has_main || clock->main_key != key) {
    number_of(clock, d, key, stream);
    pthread_mutex_lock(&timing.lock);
    clock->has_main = true;
    clock->main_key = key;
    clock->main_stream = stream;
    b200_overlap_compute(clock->overlap, key);
    pthread_mutex_unlock(&timing.lock);
  }
  if (wants & B200_TIMING_BLOCKING)
    wait_implicitly(clock, d, key);
  if (!(wants & B200_TIMING_GEMMS))
    return;
  span->clock = clock;
  span->stream = stream;
  span->key = key;
  span->issued_ns = host_now();
  span->number = timing.epoch;
  span->probe = stamp_issue(clock, d);
  span->start = stamp(clock, d, stream);
}

static void end_span(struct b200_span *span, enum kind kind, bool failed_call) {
  if (!span->clock)
    return;
  struct b200_clock *clock = span->clock;
  const struct driver *d = &timing.driver;
  struct entry entry = {.kind = kind,
                        .first = span->start,
                        .probe = span->probe,
                        .stream = span->key,
                        .epoch = span->number,
                        .issued_ns = span->issued_ns};
  if (entry.first && !failed_call)
    entry.second = stamp(clock, d, span->stream);
  if (entry.second) {
    push(clock, &entry);
    return;
  }
  pthread_mutex_lock(&timing.lock);
  drop_events(clock, &entry);
  pthread_mutex_unlock(&timing.lock);
}

void b200_timing_gemm_end(struct b200_span *span, bool failed_call) {
  end_span(span, GEMM, failed_call);
}

void b200_timing_graph_begin(struct b200_span *span, void *stream) {
  const struct driver *d = b200_timing_now() & B200_TIMING_ACTIVE ? driver() : NULL;
  struct b200_clock *clock = d && !is_captured(d, stream) ? current_clock(d) : NULL;
  pthread_mutex_lock(&timing.lock);
  timing.graphs++;
  pthread_mutex_unlock(&timing.lock);
  if (!clock)
    return;
  span->clock = clock;
  span->stream = stream;
  span->key = key_of(stream, false);
  span->issued_ns = host_now();
  span->start = stamp(clock, d, stream);
}

void b200_timing_graph_end(struct b200_span *span, bool failed_call) {
  end_span(span, GRAPH, failed_call);
  if (span->clock)
    read_back(span->clock, &timing.driver, AT_ONCE);
}

/* ------------------------------------------------------------------------------------------------ counts */

static bool write_kind(void *context, const struct b200_kind *kind) {
  (void)context;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_coll_time);
  b200_line_text(&line, B200_FIELD_coll_time_op, kind->op < B200_COLL_COUNT ? b200_coll_names[kind->op] : "mixed");
  b200_line_text(&line, B200_FIELD_coll_time_dtype, b200_element_names[kind->dtype]);
  b200_line_int(&line, B200_FIELD_coll_time_nranks, kind->nranks);
  b200_line_uint(&line, B200_FIELD_coll_time_calls, kind->calls);
  b200_line_uint(&line, B200_FIELD_coll_time_bytes, kind->bytes);
  b200_line_uint(&line, B200_FIELD_coll_time_dur_ns, kind->dur_ns);
  b200_line_uint(&line, B200_FIELD_coll_time_blocked_ns, kind->blocked_ns);
  b200_line_uint(&line, B200_FIELD_coll_time_queued_ns, kind->queued_ns);
  return b200_runtime_put_counts(&line);
}

static void flush_untimed(void) {
  static const char *const names[] = {
#define NAME(id, name) name,
      B200_UNTIMED(NAME)
#undef NAME
  };
  for (int i = 0; i < B200_UNTIMED_COUNT; i++) {
    uint64_t now = atomic_load(&timing.untimed[i]);
    struct b200_line line;
    if (now == timing.untimed_flushed[i])
      continue;
    b200_line_begin(&line, B200_RECORD_untimed);
    b200_line_text(&line, B200_FIELD_untimed_why, names[i]);
    b200_line_uint(&line, B200_FIELD_untimed_calls, now - timing.untimed_flushed[i]);
    if (b200_runtime_put_counts(&line))
      timing.untimed_flushed[i] = now;
  }
}

static void flush_graphs(void) {
  struct b200_line line;
  if (timing.graphs == timing.graphs_flushed && timing.graphs_timed == timing.graphs_timed_flushed)
    return;
  b200_line_begin(&line, B200_RECORD_graph);
  b200_line_uint(&line, B200_FIELD_graph_launches, timing.graphs - timing.graphs_flushed);
  b200_line_uint(&line, B200_FIELD_graph_timed, timing.graphs_timed - timing.graphs_timed_flushed);
  b200_line_uint(&line, B200_FIELD_graph_dur_ns, timing.graphs_ns - timing.graphs_ns_flushed);
  if (!b200_runtime_put_counts(&line))
    return;
  timing.graphs_flushed = timing.graphs;
  timing.graphs_timed_flushed = timing.graphs_timed;
  timing.graphs_ns_flushed = timing.graphs_ns;
}

void b200_timing_flush(void) {
  pthread_mutex_lock(&timing.lock);
  b200_kinds_flush(&timing.kinds, write_kind, NULL);
  flush_untimed();
  flush_graphs();
  pthread_mutex_unlock(&timing.lock);
}

void b200_timing_finish(void) {
  pthread_mutex_lock(&timing.lock);
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_load(&timing.clocks[i]);
    if (clock)
      b200_overlap_finish(clock->overlap);
  }
  pthread_mutex_unlock(&timing.lock);
}

/* The parent's events and contexts are no business of a child. */
void b200_timing_forget(void) {
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_exchange(&timing.clocks[i], NULL);
    if (!clock)
      continue;
    munmap(clock->overlap, b200_overlap_bytes());
    munmap(clock, sizeof *clock);
  }
  atomic_store(&b200_timing_wants, 0);
  memset(&timing, 0, sizeof timing);
  pthread_mutex_init(&timing.lock, NULL);
}
