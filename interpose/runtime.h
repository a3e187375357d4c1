/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one state of the library in this process, and its life.
 *
 *   COLD      loaded; nothing of CUDA or NCCL has succeeded. Costs nothing, says nothing, has opened nothing.
 *   STARTING  one thread is starting the runtime after a first success
 *   LIVE      observing
 *   OFF       B200OPT=off: every slot points at the real function
 *   DONE      the process is ending: likewise
 *
 * A forked child is COLD again with the parent's counts forgotten; it opens a log of its own only when a CUDA call of its
 * own succeeds (which CUDA refuses after a parent that has used it).
 *
 * Lock ranks, outermost first; a thread takes a lock only while it holds none of a later rank, and never calls a vendor,
 * dlopen or write with one held:
 *   configuration (held while it is read, once) → flush (what is counted goes to the log) → steps (step detector and its
 *   totals) → timing (timing/timing.c) → contexts (memory.c) → pool (memory/pool) → ledger (memory/ledger) → breaker
 * (exec/gemm.c, when one opens) → writer (record/writer) The lock of the start-up (one thread starts, others go on
 * unobserved until it is done) is a compare-and-swap on the state.
 */
#ifndef B200_RUNTIME_H
#define B200_RUNTIME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "interpose/exec/gemm.h"
#include "interpose/memory.h"
#include "interpose/oom.h"
#include "interpose/real.h"
#include "interpose/record/json.h"
#include "interpose/record/metrics.h"
#include "interpose/timing/timing.h"
#include "memory/ledger.h"
#include "policy/call.h"
#include "policy/steps.h"

/* Counts of one thread; only their thread writes, the flush reads. Blocks of ended threads are taken over by new ones. */
struct b200_call_count {
  _Atomic uint64_t calls, errors, bytes;
};

/* A cuMemFreeAsync that is on its way through the pool. */
struct b200_stream_free {
  b200_memory_free_async_function function;
  void *stream;
};

struct b200_thread {
  struct b200_thread *next;
  atomic_bool taken;
  unsigned depth;           /* of intercepted calls on this thread's stack; only depth 0 is the application's */
  const void *first_caller; /* return address of the first_<name> that is on this thread's stack */
  uint64_t driver_events;   /* allocations and frees that the driver hooks of this thread have accounted */
  unsigned in_runtime;      /* calls of CUDA's runtime on this thread's stack that have already been seen as what they are */
  uint64_t driver_allocs;   /* allocations that the pool has asked of the driver */
  uint64_t synchronisations; /* of whole contexts, that the pool was told of */
  const struct b200_stream_free *stream_free;
  bool frees_lazily; /* the free on this thread's stack is PyTorch's cache's, which does not rely on its waiting */
  struct b200_oom_attempt attempt;
  bool shared;                /* serves threads for which no block could be mapped: must not be relied on */
  struct b200_shapes *shapes; /* GEMMs that this thread has seen (exec/shapes.h) */
  struct b200_group group;    /* NCCL group that is open on this thread */
  struct b200_call_count counts[B200_SYM_COUNT];
};

/* initial-exec: the general model may call malloc on first use, inside whatever the application was doing. */
extern _Thread_local struct b200_thread *b200_thread_block __attribute__((tls_model("initial-exec"), visibility("hidden")));
struct b200_thread *b200_thread_create(void);

static inline struct b200_thread *b200_thread_self(void) {
  struct b200_thread *self = b200_thread_block;
  return __builtin_expect(self != NULL, 1) ? self : b200_thread_create();
}

/* A plain load and store is enough: the block has one writer. (A locked add costs 5 ns.) */
static inline void b200_add(_Atomic uint64_t *counter, uint64_t value) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + value, memory_order_relaxed);
}

static inline void b200_count(struct b200_thread *self, enum b200_symbol symbol, bool failed, uint64_t bytes) {
  struct b200_call_count *count = &self->counts[symbol];
  b200_add(&count->calls, 1);
  b200_add(&count->bytes, failed ? 0 : bytes);
  b200_add(&count->errors, failed);
}

/* What first_<name> calls before the real function: binds the library. Returns the function to call: observe_<name>, or the
   real one when the library is off or in a state that does not observe; NULL when there is no real function. */
void *b200_runtime_first(enum b200_library library, struct b200_slot *slot);
/* … and after it has succeeded. */
void b200_runtime_start(struct b200_slot *slot);

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t b200_runtime_now_ns(void);

/* Before a GEMM on the stream, while b200_timing_now() is not 0. */
void b200_runtime_gemm_begin(struct b200_span *span, void *stream);

/* A finished line, to the log; and a line of counts, of which false says that they are kept for a later one. */
void b200_runtime_put(struct b200_line *line);
bool b200_runtime_put_counts(struct b200_line *line);

/* Facts of successful calls, from the handlers. */
void b200_runtime_gemm(const struct b200_gemm *gemm, const struct b200_outcome *outcome);
void b200_runtime_coll(const struct b200_coll *coll, const struct b200_totals *before);
/* What the job has done up to now. Asks the driver for the memory in use when a step begins here, or may begin here. */
void b200_runtime_totals(struct b200_totals *out);

/* The newest value of a metric, in its base unit; not finite: absent. From any thread, does not wait. */
void b200_runtime_metric(enum b200_metric metric, double value);

/* The ledger's events; `owner` from b200_owner_of(). No-ops with B200OPT_MEMORY=off. */
void b200_runtime_alloc(enum b200_owner owner, uint64_t address, uint64_t bytes);
void b200_runtime_free(uint64_t address, struct b200_ledger_undo *undo);
void b200_runtime_put_back(const struct b200_ledger_undo *undo);
void b200_runtime_refused(enum b200_owner owner, uint64_t bytes, int way); /* of oom.h */
/* What the ledger holds now. */
void b200_runtime_owners(struct b200_ledger_owner out[B200_OWNER_COUNT]);
void b200_runtime_handle_add(enum b200_owner owner, uint64_t handle, uint64_t bytes);
void b200_runtime_handle_release(uint64_t handle, struct b200_ledger_undo *undo);
void b200_runtime_map(uint64_t address, uint64_t bytes, uint64_t handle);
void b200_runtime_unmap(uint64_t address, uint64_t bytes);

/* Streams that are being captured right now: while there are any, nothing is asked of the driver. */
void b200_runtime_capture(int begun);
/* With this status, of the driver's or the runtime's call. One that was invalidated ends with an error, and ends all the
   same; a call from a wrong thread or for a wrong stream invalidates it, and does not end it. */
void b200_runtime_capture_ended(int status);
bool b200_runtime_is_capturing(void);

/* Free and total memory of the current device as the driver states them; false: it cannot or must not be asked. */
bool b200_runtime_ask_memory(uint64_t *free_bytes, uint64_t *total_bytes);

/* The step under way, 0-based within the step detector's present generation; -1 before the first has been found. */
int64_t b200_runtime_step(void);

/* From interpose/exec: a message, once; a shape taken out of a format (`what`: as in record.def), or that would have been.
 */
void b200_runtime_say(const char *text);
/* Lines on stderr, each with its newline, at one go: not to the log. Not with B200OPT_LOG_LEVEL=silent. */
void b200_runtime_tell(const char *text);
void b200_runtime_guard(const struct b200_gemm *gemm, enum b200_format format, const char *what, bool applied);
/* … one bad sample of the guard, and the error of an audited call. */
void b200_runtime_bad_sample(const struct b200_gemm *gemm, enum b200_format format, const char *verdict);
void b200_runtime_audit(const struct b200_gemm *gemm, enum b200_format format, double error);

/* True when nothing is to be observed, now or later: B200OPT=off, or the process is ending. Reads the configuration once. */
bool b200_runtime_is_off(void);

/* entry_libc.c: whether the job's output is kept; in a forked child, forget it; look at what was kept (`last`: also at a
   line without an end), one thread at a time. */
void b200_libc_observe(bool on);
void b200_libc_forget(void);
void b200_libc_look(bool last);
/* After a look, on the same thread: has the job begun a line there and not ended it, as far as is known? */
bool b200_libc_line_is_open(int fd);

/* Makes the writer's thread look at the job's output soon. From any thread, also from a signal handler. */
void b200_runtime_wake(void);

/* One line that the job printed, without its newline; by b200_libc_look(). */
void b200_runtime_output(const char *line, size_t length);

#endif
