/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes shapes out of a narrow format when the numeric guard says that their numbers suffer, when cuBLASLt has no algorithm
 * for them, or when a vendor call failed. One entry per GEMM and role (struct b200_gemm, whole).
 *
 *   guard      the last four samples of an entry and format are kept; `strikes` bad ones among them open it (strict: one).
 *              FP8 opens to MXFP8, which opens to the original precision: b200_decide() takes what is left
 *   heuristic, vendor   open at once: the narrow call cannot be made, on any rank that asks for it, and its caller has gone
 *              on in the original precision already
 *
 * A demotion by the guard is pending until b200_breaker_step(), so that a step, its recomputations and its micro-batches are
 * decided alike. Ranks whose guards saw different data may differ: what is pending has a hash, and `apply` says whether the
 * ranks agreed (pass true where there is one rank, or where that is not asked); what is not applied is dropped and counted.
 *
 * A fixed table; entries are never removed. A shape that finds it full is never demoted and counted in `full`. Zeroed memory
 * with b200_breaker_make() is an empty breaker. Not thread-safe: the owner locks around all but b200_breaker_look(), which
 * may run beside any other function: an entry is published before it is read.
 */
#ifndef B200_POLICY_BREAKER_H
#define B200_POLICY_BREAKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"

#define B200_BREAKER_ENTRIES 1024 /* a power of two */
#define B200_BREAKER_SAMPLES 4

/* What the kernels counted for one operand of one sampled call (struct b200_guard_counters of quant.h, without its padding).
 */
struct b200_guard_sample {
  uint64_t blocks, starved; /* 1×32 blocks that are not zero, and those whose largest magnitude is too small for the scale */
  uint64_t nonfinite, underflown, saturated, elements;
};

/* What a shadow GEMM on sampled rows said: not finite when its result was not. */
struct b200_guard_shadow {
  double median, p99; /* relative error of a row */
};

enum b200_verdict { B200_VERDICT_GOOD, B200_VERDICT_STARVED, B200_VERDICT_ERROR, B200_VERDICT_NONFINITE };

/*
 * The verdict on one sampled call. `shadow` is NULL when none was run. `role` decides the bounds (Y: 0.08; dX, dW: 0.12).
 * Starved: more than a fifth of the blocks of A or of B, per-tensor FP8 only. Operands with Inf or NaN say nothing about the
 * format: GOOD, since the result shows them in any format; a result that is not finite although the operands are is
 * NONFINITE.
 */
enum b200_verdict b200_guard_verdict(enum b200_format format, enum b200_role role, const struct b200_guard_sample *a,
                                     const struct b200_guard_sample *b, const struct b200_guard_shadow *shadow);

struct b200_breaker_entry {
  _Atomic uint32_t state;  /* empty, ready */
  _Atomic uint32_t opened; /* b200_demoted */
  struct b200_gemm gemm;
  uint8_t bad[B200_FORMAT_COUNT]; /* the last samples, one bit each, newest lowest */
  b200_demoted pending;
  uint8_t zero[4];
};

struct b200_breaker {
  struct b200_breaker_entry entries[B200_BREAKER_ENTRIES];
  int strikes;
  int used;
  int pending;      /* entries with a pending demotion */
  uint64_t full;    /* events that found no room */
  uint64_t opened;  /* demotions in force */
  uint64_t dropped; /* demotions that were not applied as ranks differed */
};

/* An empty breaker. strikes: bad ones among the last four samples that open an entry. pre: 1 <= strikes <= 4. */
void b200_breaker_make(struct b200_breaker *out, int strikes);

/* What is open for this GEMM; 0 for one never heard of. */
b200_demoted b200_breaker_look(const struct b200_breaker *breaker, const struct b200_gemm *gemm);

/* One sampled call of `format`. True when it made a demotion pending. */
bool b200_breaker_sample(struct b200_breaker *breaker, const struct b200_gemm *gemm, enum b200_format format,
                         enum b200_verdict verdict);

/* No algorithm (B200_OPEN_HEURISTIC) or a failed vendor call (B200_OPEN_VENDOR): in force at once. True when it is new. */
bool b200_breaker_fail(struct b200_breaker *breaker, const struct b200_gemm *gemm, enum b200_format format,
                       enum b200_open why);

/* Hash of what is pending, independent of the order in which it became so; 0 when nothing is. */
uint64_t b200_breaker_pending(const struct b200_breaker *breaker);

/* A step begins: pending demotions come into force, or are dropped. `visit` (may be NULL) hears of each. */
typedef void (*b200_breaker_visit)(void *context, const struct b200_gemm *gemm, enum b200_format format, bool applied);
void b200_breaker_step(struct b200_breaker *breaker, bool apply, b200_breaker_visit visit, void *context);

#endif
