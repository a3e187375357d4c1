/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device times of collectives, waits, steps and, in some steps, GEMMs: events of our own around the job's calls, on the
 * job's own streams. What they cost the job is policy/comm_overlap's to say; this is the part that touches the driver.
 *
 * Events are made with timing and never destroyed; the job's events are never changed. What is complete is read back in the
 * order of issue, on the job's own threads, at the next of their calls that comes by here: no thread of ours uses CUDA, and
 * nothing is asked while any stream is captured, nor at exit, nor in a forked child. Nothing here waits for the device.
 *
 * A step (`epoch` here, until the step detector has given it a number) is timed as a whole or not at all:
 *   on       every one; one in B200OPT_TIMING_EVERY also has its GEMMs timed
 *   sampled  only those; where CUDA_DEVICE_MAX_CONNECTIONS=1 a timing event on the stream of a collective would keep GEMMs
 *            from running beside it (pytorch/pytorch#143890)
 * Now and then every second step is left untimed, to measure what the timing costs; above B200OPT_OVERHEAD_MAX_PCT it goes
 * to sampled by itself.
 *
 * GEMMs that found the device idle: an event goes to a stream of ours that has nothing else to do, just before the GEMM's
 * own; when both come to the same time, the GEMM's stream had run out of work.
 *
 * Thread-safety: from any thread. One lock (see runtime.h), not held across vendor calls. Every failure of the driver makes
 * the operation untimed and is counted; many of them end the timing. Cost: tests/bench/timing.c.
 */
#ifndef B200_TIMING_H
#define B200_TIMING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "policy/call.h"
#include "policy/comm_overlap.h"
#include "policy/config.h"
#include "policy/steps.h"

struct b200_thread;
struct b200_clock;

/* What the next calls need, for a quick look: bits. 0: nothing is timed now. */
enum { B200_TIMING_ACTIVE = 1, B200_TIMING_GEMMS = 2, B200_TIMING_BLOCKING = 4, B200_TIMING_STEPS = 8 };
extern _Atomic unsigned b200_timing_wants __attribute__((visibility("hidden")));

static inline unsigned b200_timing_now(void) {
  return atomic_load_explicit(&b200_timing_wants, memory_order_relaxed);
}

/* Of one intercepted call, between its begin and its end; zeroed before. */
struct b200_span {
  struct b200_clock *clock; /* NULL: nothing was begun */
  void *start, *probe;      /* events */
  void *stream;
  uint64_t key, issued_ns, info;
  int32_t lane;
  uint64_t number;
  uint32_t untimed; /* 1 + enum b200_untimed, of a collective that is not timed; 0: it is, or is none of ours */
};

/* Why a collective was not timed. */
enum b200_untimed {
#define B200_UNTIMED(id, name, text) B200_UNTIMED_##id,
#include "policy/untimed.def"
#undef B200_UNTIMED
  B200_UNTIMED_COUNT
};

/* Collectives of one NCCL group of one thread: those on the same stream run as one. */
enum { B200_GROUP_STREAMS = 16 };
struct b200_group {
  unsigned depth;
  unsigned streams;
  struct b200_group_stream {
    void *stream;
    const void *comm; /* of the first */
    uint64_t bytes;
    uint32_t calls;
    int32_t nranks;
    uint8_t op, dtype; /* op: B200_COLL_COUNT when they differ */
  } parts[B200_GROUP_STREAMS];
  uint32_t dropped; /* calls on further streams */
};

/* Once, when the runtime starts. single_connection: CUDA_DEVICE_MAX_CONNECTIONS=1. */
void b200_timing_start(const struct b200_config *config, bool single_connection);
/* In a forked child. */
void b200_timing_forget(void);
/* The process ends: what has been read back is written. No CUDA. pre: the lock is not held by a thread that has stopped. */
void b200_timing_finish(void);
pthread_mutex_t *b200_timing_lock(void);
/* Counts since the last time, as lines. */
void b200_timing_flush(void);

/* A collective, before and after the vendor's call. `before`: what b200_runtime_totals() said just before. In a group only
   the outermost ncclGroupEnd is timed. status: ncclResult_t. */
void b200_timing_coll_begin(struct b200_thread *self, struct b200_span *span, const void *comm, void *stream,
                            const struct b200_coll *coll, const struct b200_totals *before);
void b200_timing_coll_end(struct b200_thread *self, struct b200_span *span, const void *comm, void *stream,
                          const struct b200_coll *coll, int status);
void b200_timing_group_started(struct b200_thread *self);
/* spans: B200_GROUP_STREAMS of them. */
void b200_timing_group_begin(struct b200_thread *self, struct b200_span *spans);
void b200_timing_group_end(struct b200_thread *self, struct b200_span *spans, int status);

void b200_timing_comm_made(const void *comm, uint64_t id, const void *parent);
uint64_t b200_timing_comm_split(const void *parent, const void *key, size_t key_bytes);
/* Before the communicator goes. */
void b200_timing_comm_gone(const void *comm, bool remove);

/* A GEMM. Only while b200_timing_now() is not 0. */
void b200_timing_gemm_begin(struct b200_span *span, void *stream);
void b200_timing_gemm_end(struct b200_span *span, bool failed);

/* The job's events. per_thread: the variant for which stream 0 is the thread's own default stream. */
void b200_timing_record(void *event, void *stream, bool per_thread);
void b200_timing_wait(void *stream, void *event, bool per_thread); /* before the vendor's call */
void b200_timing_event_gone(void *event);

/* Work is launched on a stream, while B200_TIMING_BLOCKING is set. */
void b200_timing_launch(void *stream);

/* A graph is launched. */
void b200_timing_graph_begin(struct b200_span *span, void *stream);
void b200_timing_graph_end(struct b200_span *span, bool failed);

/* The host waits for an event, a stream or the device. */
enum b200_host_wait_kind { B200_HOST_EVENT, B200_HOST_STREAM, B200_HOST_DEVICE };
struct b200_host_wait {
  struct b200_clock *clock;
  struct b200_frontier upto;
  bool drains; /* the main compute stream has run out of work afterwards */
};
void b200_timing_host_begin(struct b200_host_wait *wait, enum b200_host_wait_kind kind, void *what, bool per_thread);
void b200_timing_host_end(const struct b200_host_wait *wait, bool failed);

/* A job without collectives: its GEMMs make the steps. Before the GEMM that begins one. */
void b200_timing_boundary(void *stream, const struct b200_totals *before);

/* The step detector has numbered a step. */
void b200_timing_step(const struct b200_step *step);

#endif
