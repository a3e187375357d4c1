/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random CUDA programs that are right by construction: streams of all sorts, events, copies, fills, kernels, memory pools,
 * host functions, pinned memory that the host touches itself, and several host threads. The generator keeps its own account
 * of what is ordered before what, from the CUDA programming guide alone, and puts a wait of some sort wherever an access
 * needs one.
 *
 * Vocabulary
 *   lane   a stream, or a host thread: what happens there is ordered.
 *   step   one call of a host thread.
 *   race   two accesses to the same bytes, one of them a write, that nothing orders.
 */
#ifndef RANDOM_PROGRAM_H
#define RANDOM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  STREAMS = 6, /* 0: the legacy stream; then two that block on it; then non-blocking ones */
  FIRST_NON_BLOCKING = 3,
  MAX_THREADS = 3,
  LANES = STREAMS + MAX_THREADS,
  EVENTS = 4,
  DEVICE_BUFFERS = 3,
  PINNED_BUFFERS = 2,
  POOL_BUFFERS = 3, /* that live at a time */
  BUFFERS = DEVICE_BUFFERS + PINNED_BUFFERS + POOL_BUFFERS,
  BUFFER_BYTES = 1024,
  MAX_STEPS = 600,
  MAX_RACES = 4096,
  NAME_BYTES = 8,
};

enum step_kind {
  /* operations of a stream */
  STEP_FILL,  /* to = value */
  STEP_COPY,  /* to = from */
  STEP_MIX,   /* a kernel: to = 31 to + from + value */
  STEP_CALL,  /* a host function: to = 31 to + value; pinned */
  STEP_ALLOC, /* a pool's block comes into use */
  STEP_FREE,
  /* what orders */
  STEP_RECORD,
  STEP_WAIT,
  STEP_SYNC_STREAM,
  STEP_SYNC_EVENT,
  STEP_POLL_EVENT,
  STEP_SYNC_DEVICE,
  STEP_HAND_OVER, /* of another thread: until it has done step `other` */
  /* the host's own */
  STEP_TOUCH, /* to = 31 to + value; pinned */
};

struct step {
  enum step_kind kind;
  int thread, stream, event, other;
  int to, from; /* buffers */
  size_t to_at, from_at, bytes;
  unsigned char value;
  char name[NAME_BYTES]; /* of a kernel, unique */
};

struct program {
  struct step steps[MAX_STEPS];
  int count, threads;
};

/* `kind` and names are as the race checker says them; `newer_step` is the later submission. Not seen: an access of the host.
 */
struct race {
  const char *kind, *newer, *older;
  int newer_step, older_step;
  bool seen;
};

void program_generate(struct program *program, uint64_t seed, int operations, int threads);
/* The races of the program without step `removed` (-1: the whole program); their number. */
int program_races(const struct program *program, int removed, struct race races[MAX_RACES]);
/* What every buffer holds at the end, and for each thread a hash of all that it saw on its way. */
void program_compute(const struct program *program, unsigned char memory[BUFFERS][BUFFER_BYTES], uint64_t seen[MAX_THREADS]);
void program_print(const struct program *program);
bool step_orders(const struct step *step);
uint32_t program_random(uint64_t *state, uint32_t limit);

/* What a kernel, a host function and the host do to memory; `from` may be NULL. */
void step_mix(unsigned char *to, const unsigned char *from, size_t bytes, unsigned char value);
void step_see(uint64_t *seen, const unsigned char *bytes, size_t count);

#endif
