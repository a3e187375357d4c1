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
 *   dur        t_end − t_start of a collective. Includes waiting for peers.
 *   blocked    max(0, t_end − max(t_start, t_wait)): t_wait is when the waiting compute stream had nothing else left to do,
 *              of several the first that waited. A collective on a compute stream itself blocks for all of its dur.
 *   hidden     dur − blocked.
 *   queued     max(0, t_start − t_wait): the compute stream waited for a collective that had not started yet.
 *   uncovered  time in which a collective ran and no GEMM did, as far as GEMMs were timed (Holistic Trace Analysis's view).
 * Per step: the measure of the union of the blocked intervals of all compute streams, cut to the step.
 * Invariants: 0 ≤ blocked ≤ dur; over the collectives of one stream Σhidden + Σblocked = Σdur; the union ≤ the step.
 *
 * What counts in which step. A collective belongs to the step in which it was issued, whenever it ran; waits for it count
 * that are told before it is handed out, which is when the step after its own is over. A step is handed out at the same
 * moment: its unions are cut to it and take in all collectives that are known by then, of whichever step they are.
 *
 * Streams and events are keys that the caller makes: equal keys are the same stream (the per-thread default stream of two
 * threads is two streams). A compute stream is one that has had a GEMM, told by the moment at which the times are told. So a
 * wait on a stream that never computes costs nothing, but counts for those that wait for that stream in turn.
 *
 * Pure: no lock, no clock, no I/O, no allocation. The caller gives the memory and serialises the calls. Each takes constant
 * time on average, a boundary apart, which sorts the intervals of about three steps.
 *
 * Full tables make collectives untimed, counted in `overflow`; never wrong: where a dependency can no longer be followed (an
 * event or a stream gives way), the unfinished collectives it is about become untimed. A stream gives way when all that it
 * depends on has been handed out (and has to compute again to be a compute stream), a lane when all of its collectives have.
 */
#ifndef B200_POLICY_COMM_OVERLAP_H
#define B200_POLICY_COMM_OVERLAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  B200_OVERLAP_LANES = 16,      /* streams with collectives that are not handed out yet */
  B200_OVERLAP_STREAMS = 128,   /* at most 255 */
  B200_OVERLAP_EVENTS = 8192,   /* recorded with something unfinished; the one that was recorded longest ago gives way */
  B200_OVERLAP_PENDING = 16384, /* collectives per lane that are not handed out yet, or still run in a step that is not */
  B200_OVERLAP_GEMMS = 32768,   /* timed ones of three steps. When some did not fit, as if none of that step was timed */
};

/* Per lane: how many of its collectives are depended on. Counts, from 0, of the lane's timed collectives. */
struct b200_frontier {
  uint64_t upto[B200_OVERLAP_LANES];
};

/* A collective, as b200_overlap_collective() names it. lane < 0: not timed, a table is full; to time it is in vain. */
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
  uint64_t user; /* as given to b200_overlap_collective() */
  int64_t t_start_ns, t_end_ns;
  int64_t blocked_ns;
  int64_t queued_ns; /* the first compute stream to wait had waited this long before the collective started; 0 without one */
  uint64_t step;     /* in which it was issued, as given to b200_overlap_step() */
};

/* A finished step: times of the device. */
struct b200_overlap_step {
  uint64_t step;
  int64_t t_start_ns, t_end_ns;
  uint64_t collectives; /* timed ones that were issued in it */
  uint64_t lost;        /* issued in it, but their times could not be had; in none of the sums */
  int64_t comm_ns;      /* sum of the timed ones' dur, wherever they ran */
  int64_t busy_ns;      /* union of collectives' time inside the step, all lanes */
  int64_t blocked_ns;   /* union inside the step, of all compute streams */
  int64_t queued_ns;    /* sum over its collectives */
  int64_t gemm_ns;      /* union of timed GEMMs inside the step, those that were told in the steps next to it included */
  int64_t uncovered_ns; /* of busy_ns, without a timed GEMM. Both −1: GEMMs were not timed in this step */
  uint64_t gemms;       /* timed ones that were told in it; 0 with −1 */
};

struct b200_overlap_sink {
  void (*op)(void *context, const struct b200_overlap_op *op);
  void (*step)(void *context, const struct b200_overlap_step *step);
  /* Instead of op, for one whose times or waits were lost, or (full) that a full table left untimed. May be NULL. */
  void (*lost)(void *context, uint64_t user, bool full);
  void *context;
};

/* In the source; b200_overlap_bytes() of memory, aligned as malloc aligns, need not be zeroed. It is some 20 MB of address
   space of which a usual job touches a tenth: pages, not a heap block that is cleared. */
struct b200_overlap;
size_t b200_overlap_bytes(void);
/* Makes it empty, also when it was in use. The sink is copied; its functions may not call back. */
void b200_overlap_start(struct b200_overlap *overlap, const struct b200_overlap_sink *sink);

/* --- order: as the host issues */

/* The stream computes (a GEMM is being issued on it). */
void b200_overlap_compute(struct b200_overlap *overlap, uint64_t stream);

/* `blocking`: the stream is ordered with the legacy default stream (made without cudaStreamNonBlocking), or is that stream
   (`legacy`). Told once per stream before its first use; streams are non-blocking unless told. */
void b200_overlap_stream(struct b200_overlap *overlap, uint64_t stream, bool blocking, bool legacy);

/* A collective (or a group of them that runs as one) is being issued on the stream; `user` comes back with it. */
struct b200_overlap_id b200_overlap_collective(struct b200_overlap *overlap, uint64_t stream, uint64_t user);

/* An event is being recorded on the stream: from now on a wait for it is a wait for this. */
void b200_overlap_record(struct b200_overlap *overlap, uint64_t event, uint64_t stream);
/* It is being destroyed: a wait for it adds nothing until it is recorded again. */
void b200_overlap_forget_event(struct b200_overlap *overlap, uint64_t event);

/* The stream is being made to wait for the event. True: there are collectives in `out` that it did not depend on and that
   are not known to be over; the caller times the moment at which the stream comes to this wait and hands `out` to
   b200_overlap_waited(). A wait for an event that was never recorded adds nothing. */
bool b200_overlap_wait(struct b200_overlap *overlap, uint64_t stream, uint64_t event, struct b200_overlap_wait *out);

/* Work is being issued on the stream that is ordered after others without an event: the legacy stream after the blocking
   ones, and the other way round. To be called before whatever is issued on such a stream: a collective, a GEMM, a record, a
   wait. As b200_overlap_wait(). Never true while b200_overlap_has_blocking() is false. */
bool b200_overlap_implicit(struct b200_overlap *overlap, uint64_t stream, struct b200_overlap_wait *out);
bool b200_overlap_has_blocking(const struct b200_overlap *overlap);

/* The host has waited for an event, a stream or the whole device, or was told that it is through. That is over, then, so it
   adds no cost, only knowledge. When other threads may issue during the wait: keep what it waits for before it, and tell
   b200_overlap_over() after it. */
struct b200_frontier b200_overlap_of_event(const struct b200_overlap *overlap, uint64_t event);
struct b200_frontier b200_overlap_of_stream(const struct b200_overlap *overlap, uint64_t stream);
struct b200_frontier b200_overlap_of_device(const struct b200_overlap *overlap);
void b200_overlap_over(struct b200_overlap *overlap, const struct b200_frontier *upto);
/* The same in one call, when nothing was issued or recorded meanwhile. */
void b200_overlap_host_event(struct b200_overlap *overlap, uint64_t event);
void b200_overlap_host_stream(struct b200_overlap *overlap, uint64_t stream);
void b200_overlap_host_device(struct b200_overlap *overlap);

/* From now on work belongs to `step`. Ordinals grow by one; the first may be any. Before the first call: 0. */
void b200_overlap_step(struct b200_overlap *overlap, uint64_t step);

/* --- times: nanoseconds of one clock, in the order in which things were issued. Times that cannot be (an end before its
   start, beyond ±2^61, longer than 2^44 ns) are taken as lost. */

void b200_overlap_done(struct b200_overlap *overlap, struct b200_overlap_id id, int64_t t_start_ns, int64_t t_end_ns);
/* Its times could not be had. One that has been told neither way when its step is handed out is lost as well. */
void b200_overlap_lost(struct b200_overlap *overlap, struct b200_overlap_id id);
/* Returns when the stream, computing or not, could go on: t_wait_ns, or the end of the last of these collectives when that
   is later. */
int64_t b200_overlap_waited(struct b200_overlap *overlap, const struct b200_overlap_wait *wait, int64_t t_wait_ns);
/* Its time could not be had. When the stream computes, what it was blocked is unknown, and its collectives are lost. */
void b200_overlap_wait_lost(struct b200_overlap *overlap, const struct b200_overlap_wait *wait);
void b200_overlap_gemm(struct b200_overlap *overlap, int64_t t_start_ns, int64_t t_end_ns);

/* The main compute stream has come to the end of a step and the start of `step`. Hands out the collectives and the step that
   can change no more: those of the step before the one that ends now. `gemms_timed`: of the step that ends. When `step` is
   not the one after the step that is open, boundaries in between are unknown (or lie before the open one, or nothing was
   timed): then the open step is not handed out, only its collectives. A caller that has found no steps yet makes up some, as
   nothing is handed out without. Ignored when `step` is not after the open one. */
void b200_overlap_boundary(struct b200_overlap *overlap, uint64_t step, int64_t t_ns, bool gemms_timed);

/* The end: hands out every collective that is over, and the last step that has an end; others are lost. */
void b200_overlap_finish(struct b200_overlap *overlap);

/* Collectives that were not timed because a table was full, and those that were lost. */
uint64_t b200_overlap_overflow(const struct b200_overlap *overlap);
uint64_t b200_overlap_lost_count(const struct b200_overlap *overlap);

#endif
