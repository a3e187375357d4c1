/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What collectives cost the compute streams of one device: pure accounting, in two halves.
 *
 * Order, told in the order in which the host issues work: which collectives each stream depends on. A stream on which
 * collectives are issued is a *lane*; collectives of a lane run in order, so what a stream depends on is, per lane, the
 * newest collective. Recording an event keeps what its stream depends on then; a wait adds it to the waiting stream. Waits
 * that add nothing, and those for collectives that are known to be over, cost nothing and need no timing.
 *
 * Times, told in the same order once the device has passed them: what a wait has cost.
 *   dur      t_end − t_start of a collective. Includes waiting for peers.
 *   blocked  max(0, t_end − max(t_start, t_wait)): t_wait is when the waiting compute stream had nothing else left to do. Of
 *            several compute streams the first that waited. A collective on a compute stream itself blocks for all of its dur.
 *   hidden   dur − blocked.
 *   queued   max(0, t_start − t_wait): the compute stream waited for a collective that had not started yet.
 *   uncovered  time in which a collective ran and no GEMM did, as far as GEMMs were timed (Holistic Trace Analysis's view).
 * Per step: the measure of the union of the blocked intervals of all compute streams, cut to the step.
 * Invariants: 0 ≤ blocked ≤ dur; over the collectives of one stream Σhidden + Σblocked = Σdur; the union ≤ the step.
 *
 * Streams are keys that the caller makes: equal keys are the same stream (the per-thread default stream of two threads is two
 * streams). A compute stream is one that has had a GEMM.
 *
 * Pure: no lock, no clock, no I/O, no allocation. The caller gives the memory (zeroed) and serialises the calls. Full tables
 * make collectives untimed, counted in `overflow`; never wrong.
 */
#ifndef B200_POLICY_COMM_OVERLAP_H
#define B200_POLICY_COMM_OVERLAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  B200_OVERLAP_LANES = 16,
  B200_OVERLAP_STREAMS = 128,
  B200_OVERLAP_EVENTS = 8192,     /* a power of two; the oldest record gives way */
  B200_OVERLAP_PENDING = 4096,    /* collectives per lane that are not finished yet; a power of two */
  B200_OVERLAP_INTERVALS = 16384, /* GEMMs, collectives and blocked intervals of one step */
};

/* Per lane: how many of its collectives are depended on. Counts, from 0, of the lane's timed collectives. */
struct b200_frontier {
  uint64_t upto[B200_OVERLAP_LANES];
};

/* A collective, as b200_overlap_collective() names it. lane < 0: not timed, a table is full. */
struct b200_overlap_id {
  int32_t lane;
  uint64_t number;
};

/* What b200_overlap_wait() found: for each lane the collectives [from, upto) that the stream did not depend on before. */
struct b200_overlap_wait {
  uint64_t stream;
  struct b200_frontier from, upto;
};

/* A finished collective. */
struct b200_overlap_op {
  struct b200_overlap_id id;
  uint64_t user;               /* as given to b200_overlap_collective() */
  int64_t t_start_ns, t_end_ns;
  int64_t blocked_ns;
  int64_t queued_ns; /* the first compute stream to wait had waited this long before the collective started; 0 without one */
  uint64_t step;     /* in which it was issued, as given to b200_overlap_step() */
};

/* A finished step: times of the device. */
struct b200_overlap_step {
  uint64_t step;
  int64_t t_start_ns, t_end_ns;
  uint64_t collectives;             /* timed ones that were issued in it */
  int64_t comm_ns;                  /* sum of their dur */
  int64_t busy_ns;                  /* union of collectives' time inside the step, all lanes */
  int64_t blocked_ns;               /* union, of all compute streams */
  int64_t queued_ns;                /* sum over its collectives */
  int64_t gemm_ns, uncovered_ns;    /* union of GEMMs; uncovered. −1: GEMMs were not timed in this step */
  uint64_t gemms;                   /* timed */
};

struct b200_overlap_sink {
  void (*op)(void *context, const struct b200_overlap_op *op);
  void (*step)(void *context, const struct b200_overlap_step *step);
  void *context;
};

struct b200_overlap; /* in the source; b200_overlap_bytes() of zeroed memory, aligned as malloc aligns */
size_t b200_overlap_bytes(void);
void b200_overlap_start(struct b200_overlap *overlap, const struct b200_overlap_sink *sink);

/* --- order: as the host issues */

/* The stream computes (a GEMM is being issued on it). */
void b200_overlap_compute(struct b200_overlap *overlap, uint64_t stream);

/* `blocking`: the stream is ordered with the legacy default stream (made without cudaStreamNonBlocking), or is that stream
   (`legacy`). Told once per stream before its first use; streams are non-blocking unless told. */
void b200_overlap_stream(struct b200_overlap *overlap, uint64_t stream, bool blocking, bool legacy);

/* A collective (or a group of them that runs as one) is being issued on the stream; `user` comes back with it. */
struct b200_overlap_id b200_overlap_collective(struct b200_overlap *overlap, uint64_t stream, uint64_t user);

/* An event is being recorded on the stream; it will never be waited for again. */
void b200_overlap_record(struct b200_overlap *overlap, uint64_t event, uint64_t stream);
void b200_overlap_forget_event(struct b200_overlap *overlap, uint64_t event);

/* The stream is being made to wait for the event. True: there are collectives in `out` that it did not depend on and that are
   not known to be over; the caller times the moment at which the stream comes to this wait and hands `out` to
   b200_overlap_waited(). A wait for an event that was never recorded adds nothing. */
bool b200_overlap_wait(struct b200_overlap *overlap, uint64_t stream, uint64_t event, struct b200_overlap_wait *out);

/* Work is being issued on the stream that is ordered after others without an event: the legacy stream after the blocking ones,
   and the other way round. As b200_overlap_wait(). Cheap when there is nothing: `b200_overlap_has_blocking` false. */
bool b200_overlap_implicit(struct b200_overlap *overlap, uint64_t stream, struct b200_overlap_wait *out);
bool b200_overlap_has_blocking(const struct b200_overlap *overlap);

/* The host has waited for an event, a stream (any_stream false) or the whole device: all that is issued from now on by this
   thread comes after it. What the host waited for is over, so this adds no cost, only knowledge. */
void b200_overlap_host_event(struct b200_overlap *overlap, uint64_t event);
void b200_overlap_host_stream(struct b200_overlap *overlap, uint64_t stream);
void b200_overlap_host_device(struct b200_overlap *overlap);

/* From now on work belongs to `step` (ordinals grow). */
void b200_overlap_step(struct b200_overlap *overlap, uint64_t step);

/* --- times: nanoseconds of one clock, in the order in which things were issued */

void b200_overlap_done(struct b200_overlap *overlap, struct b200_overlap_id id, int64_t t_start_ns, int64_t t_end_ns);
/* Its times could not be had. */
void b200_overlap_lost(struct b200_overlap *overlap, struct b200_overlap_id id);
/* Returns when the stream could go on: t_wait_ns, or the end of the last of these collectives when that is later. */
int64_t b200_overlap_waited(struct b200_overlap *overlap, const struct b200_overlap_wait *wait, int64_t t_wait_ns);
void b200_overlap_gemm(struct b200_overlap *overlap, int64_t t_start_ns, int64_t t_end_ns);

/* The main compute stream has come to the end of a step and the start of `step`. Hands out the collectives and the sums of
   steps that can change no more: a collective is handed out once the step after its own is over. `gemms_timed`: of the step that ends. */
void b200_overlap_boundary(struct b200_overlap *overlap, uint64_t step, int64_t t_ns, bool gemms_timed);

/* Hands out every collective that is over, and the step that was last. */
void b200_overlap_finish(struct b200_overlap *overlap);

/* Collectives that were not timed because a table was full. */
uint64_t b200_overlap_overflow(const struct b200_overlap *overlap);

#endif
