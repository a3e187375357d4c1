/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the timing share; nobody else includes this.
 *
 *   clock.c       one CUDA context: its streams by key, events, the queue of what the device has not come to yet
 *   read_back.c   takes from the queue what is complete, and tells policy/comm_overlap the times
 *   epochs.c      steps: which are timed and how, their boundaries, what the timing costs
 *   lines.c       the log
 *   timing.c      what the hooks call
 *
 * One lock for all, not held across calls of the driver.
 */
#ifndef B200_TIMING_INTERNAL_H
#define B200_TIMING_INTERNAL_H

#include <cuda.h>
#include <pthread.h>

#include "interpose/record/json.h"
#include "interpose/runtime.h"
#include "interpose/timing/comms.h"
#include "interpose/timing/kinds.h"
#include "interpose/timing/timing.h"
#include "policy/comm_overlap.h"

enum {
  CLOCKS = 8,             /* CUDA contexts */
  QUEUE = 8192,           /* entries that wait for the device; a power of two */
  INFOS = 8192,           /* collectives that are not handed out yet */
  POOL = 16384,           /* free events */
  STREAMS = 256,          /* streams whose flags are known */
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

enum { LEGACY_KEY = 1 }; /* of the legacy default stream */

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

struct b200_driver {
#define MEMBER(name, ret, params) ret(*name) params;
  FUNCTIONS(MEMBER)
#undef MEMBER
};

enum kind { COLLECTIVE, WAIT, GEMM, BOUNDARY, GRAPH, DRAINED };

/* Something that was issued and is not read back yet. */
struct b200_entry {
  enum kind kind;
  uint64_t info;                /* of a collective */
  CUevent first, second, probe; /* start, end, issue; NULL: none */
  uint64_t stream, epoch, issued_ns;
  struct b200_overlap_id id;
  struct b200_overlap_wait wait;
};

/* What a collective was, until its times are known. */
struct b200_info {
  uint64_t number;
  bool open; /* neither handed out nor counted as untimed yet */
  uint64_t comm, sequence, bytes;
  uint32_t group;
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
  uint64_t main_key, main_epoch; /* the stream that has had the last GEMM, and in which step it was said to compute */
  CUstream main_stream;
  bool has_main;
  CUevent anchor; /* an event whose time is known */
  int64_t anchor_ns;
  int64_t lower_ns, upper_ns; /* host clock minus device clock lies between */
  _Atomic uint64_t head, tail;
  atomic_bool reading;
  unsigned pooled;
  uint64_t next_info;
  uint64_t stream_keys[STREAMS];
  unsigned stream_count;
  /* along the main stream, of the step whose GEMMs are timed */
  int64_t busy_until_ns; /* it had work to do, or waited for a collective, until then */
  struct b200_entry queue[QUEUE];
  struct b200_info infos[INFOS]; /* by number; what is not handed out when its place comes again has got lost */
  CUevent pool[POOL];
};

/* A step of the job. */
struct b200_epoch {
  uint64_t number, ordinal;
  uint64_t host_ns;
  bool active, gemms, named, finished, slow;
  uint64_t gen, index;
  struct b200_overlap_step sums;
  int64_t idle_ns, start_ns;
  uint64_t starved;
};

struct b200_timing_state {
  pthread_mutex_t lock;
  struct b200_driver driver;
  _Atomic int bound; /* 0 not looked for, 1 there, 2 missing */
  const struct b200_config *config;
  bool single_connection;
  _Atomic int mode; /* enum b200_timing */
  const char *why;
  _Atomic int failures;
  _Atomic(struct b200_clock *) clocks[CLOCKS];
  struct b200_comms comms;
  struct b200_epoch epochs[EPOCHS];
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
  double too_much; /* percent; 0: nothing to be said of it */
  bool said_mode;
};
extern struct b200_timing_state b200_timing_state;

/* --- clock.c */

/* The driver's functions; NULL while one is missing. */
const struct b200_driver *b200_driver_find(void);
/* Of the current context; NULL: there is none, or no room for one. */
struct b200_clock *b200_clock_current(const struct b200_driver *driver);
/* Streams that mean another one for another thread get a key of their own. */
uint64_t b200_clock_key(const void *stream, bool per_thread);
bool b200_clock_is_captured(const struct b200_driver *driver, CUstream stream);
/* Small number of a stream; learns, the first time, whether it is ordered with the legacy stream. */
uint16_t b200_clock_stream_number(struct b200_clock *clock, const struct b200_driver *driver, uint64_t key, CUstream stream);

/* An event on the stream, now. NULL: the driver refused. */
CUevent b200_clock_stamp(struct b200_clock *clock, const struct b200_driver *driver, CUstream stream);
/* An event at the time of issue; NULL where it cannot be had. */
CUevent b200_clock_stamp_issue(struct b200_clock *clock, const struct b200_driver *driver);
/* The driver has refused something; too often ends the timing. */
void b200_clock_failed(void);

/* pre: the lock is held. */
void b200_clock_give_event(struct b200_clock *clock, CUevent event);
void b200_clock_drop_events(struct b200_clock *clock, const struct b200_entry *entry);
/* Remembers what a collective is; returns its number. And ends that: NULL when that has been done. */
uint64_t b200_clock_open_info(struct b200_clock *clock, const struct b200_info *info);
const struct b200_info *b200_clock_close_info(struct b200_clock *clock, uint64_t number);
void b200_clock_lose(struct b200_clock *clock, const struct b200_entry *entry, enum b200_untimed why);

/* Waits in the queue for the device. */
void b200_clock_push(struct b200_clock *clock, const struct b200_entry *entry);

/* --- read_back.c: takes what is complete, `most` entries at most. One thread at a time; another goes on with its own work.
 */
void b200_clock_read_back(struct b200_clock *clock, const struct b200_driver *driver, unsigned most);

/* --- epochs.c. pre: the lock is held. */
struct b200_epoch *b200_epoch_at(uint64_t number);
void b200_epoch_set_wants(const struct b200_epoch *epoch);
void b200_timing_change_mode(int mode, const char *why);
void b200_timing_sink_step(void *context, const struct b200_overlap_step *step);

/* --- lines.c. pre: the lock is held, but for the first. */
void b200_timing_untimed(enum b200_untimed why, uint64_t calls);
void b200_timing_sink_op(void *context, const struct b200_overlap_op *op);
void b200_timing_sink_lost(void *context, uint64_t user, bool full);
void b200_timing_write_mode(const struct b200_clock *clock);
void b200_timing_write_time(const struct b200_epoch *epoch);
void b200_timing_write_comm(const struct b200_comm *comm, int32_t nranks, int rank);

#endif
