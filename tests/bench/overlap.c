/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_overlap    prints nanoseconds per call of the accounting of collectives, best of seven rounds, in a job like
 * FSDP: gathers on one stream, scatters on another, each recorded and waited for by a third. Warm. Nothing is asserted.
 */
#include "policy/comm_overlap.h"

#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

enum { MAIN = 0x1000, GATHER = 0x2000, SCATTER = 0x3000, STEPS = 40, MOST = 4096, EVENTS = 64 };

enum { ISSUED, RECORDED, KNOWN, TOLD, BOUNDARY, CALLS };
static const char *const call_name[CALLS] = {
    [ISSUED] = "collective, record, wait that adds it",
    [RECORDED] = "record",
    [KNOWN] = "wait that adds nothing",
    [TOLD] = "times of a collective and of its wait",
    [BOUNDARY] = "boundary, GEMMs timed, per collective",
};

static struct b200_overlap *overlap;
static double spent[CALLS];
static struct b200_overlap_id id[MOST];
static struct b200_overlap_wait found[MOST];
static struct b200_overlap_wait nothing;
static uint64_t blocked, known;

static void note_op(void *context, const struct b200_overlap_op *op) {
  (void)context;
  blocked += (uint64_t)op->blocked_ns;
}

static void note_step(void *context, const struct b200_overlap_step *step) {
  (void)context;
  blocked += (uint64_t)step->blocked_ns;
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Each kind of call in a loop of its own: to read the clock costs more than a call. */
#define MEASURE(what, body)                                                                                                 \
  do {                                                                                                                      \
    double begin = now_ns();                                                                                                \
    for (unsigned i = 0; i < count; i++) {                                                                                  \
      body;                                                                                                                 \
    }                                                                                                                       \
    spent[what] += now_ns() - begin;                                                                                        \
  } while (0)

static uint64_t lane_of(unsigned i) {
  return i % 2 ? SCATTER : GATHER;
}

static void issue(unsigned i) {
  id[i] = b200_overlap_collective(overlap, lane_of(i), i);
  b200_overlap_record(overlap, i % EVENTS, lane_of(i));
  b200_overlap_wait(overlap, MAIN, i % EVENTS, &found[i]);
}

/* Both lanes at once, the compute stream at each 10 ns too early. */
static void tell(unsigned i, int64_t start_ns) {
  int64_t t_ns = start_ns + 100 * (i / 2);
  b200_overlap_done(overlap, id[i], t_ns, t_ns + 90);
  b200_overlap_waited(overlap, &found[i], t_ns + 80);
}

static void do_step(uint64_t number, unsigned count) {
  int64_t start_ns = (int64_t)number * 1000000;
  MEASURE(ISSUED, issue(i));
  MEASURE(RECORDED, b200_overlap_record(overlap, i % EVENTS, lane_of(i)));
  MEASURE(KNOWN, known += b200_overlap_wait(overlap, MAIN, i % EVENTS, &nothing));
  MEASURE(TOLD, tell(i, start_ns));
  for (unsigned i = 0; i < count; i++)
    b200_overlap_gemm(overlap, start_ns + 100 * i, start_ns + 100 * i + 50);
  b200_overlap_step(overlap, number + 1);
  double begin = now_ns();
  b200_overlap_boundary(overlap, number + 1, start_ns + 1000000, true);
  spent[BOUNDARY] += now_ns() - begin;
}

static void measure(unsigned count) {
  const struct b200_overlap_sink sink = {.op = note_op, .step = note_step};
  double best[CALLS];
  for (int round = 0; round < 7; round++) {
    b200_overlap_start(overlap, &sink);
    b200_overlap_compute(overlap, MAIN);
    for (int i = 0; i < CALLS; i++)
      spent[i] = 0;
    for (uint64_t number = 1; number <= STEPS; number++)
      do_step(number, count);
    for (int i = 0; i < CALLS; i++)
      if (round == 0 || spent[i] < best[i])
        best[i] = spent[i];
  }
  printf("%u collectives a step\n", count);
  for (int i = 0; i < CALLS; i++)
    printf("  %-40s %7.1f ns\n", call_name[i], best[i] / (STEPS * count));
}

int main(void) {
  overlap = mmap(NULL, b200_overlap_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (overlap == MAP_FAILED)
    return 1;
  measure(64);
  measure(512);
  measure(MOST);
  if (blocked == 0 || known != 0 || b200_overlap_overflow(overlap) != 0)
    return 1; /* not what it says it measures */
  return 0;
}
