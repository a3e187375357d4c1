/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/breaker.h"

#include <string.h>

enum { EMPTY, READY };

/* Measured on training tensors: healthy ones starve below 5 % (activations) and 10 % (gradients) of their blocks and have
   medians up to 0.06; outlier channels of 10^4 and more go far beyond. Underflow alone and whole-tensor errors do not tell.
 */
#define STARVED_SHARE 0.20
#define MEDIAN_OUTPUT 0.08
#define MEDIAN_GRADIENT 0.12
#define P99 0.5

/* ---- one sample */

static bool starved(const struct b200_guard_sample *sample) {
  return (double)sample->starved > STARVED_SHARE * (double)sample->blocks;
}

static bool is_number(double value) {
  return value - value == 0; /* neither NaN nor Inf */
}

enum b200_verdict b200_guard_verdict(enum b200_format format, enum b200_role role, const struct b200_guard_sample *a,
                                     const struct b200_guard_sample *b, const struct b200_guard_shadow *shadow) {
  double bound = role == B200_ROLE_DGRAD || role == B200_ROLE_WGRAD ? MEDIAN_GRADIENT : MEDIAN_OUTPUT;
  if (a->nonfinite || b->nonfinite)
    return B200_VERDICT_GOOD;
  if (format == B200_FORMAT_FP8 && (starved(a) || starved(b)))
    return B200_VERDICT_STARVED;
  if (!shadow)
    return B200_VERDICT_GOOD;
  if (!is_number(shadow->median) || !is_number(shadow->p99))
    return B200_VERDICT_NONFINITE;
  return shadow->median > bound || shadow->p99 > P99 ? B200_VERDICT_ERROR : B200_VERDICT_GOOD;
}

/* ---- the table */

void b200_breaker_make(struct b200_breaker *out, int strikes) {
  memset(out, 0, sizeof(*out));
  out->strikes = strikes;
}

static uint64_t hash_of(const struct b200_gemm *gemm) {
  uint64_t words[sizeof(*gemm) / sizeof(uint64_t)], hash = 0;
  memcpy(words, gemm, sizeof(words));
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 32;
  }
  return hash;
}

/* Index of the GEMM's entry, or of the empty one where it would be; -1 when there is neither. */
static int find(const struct b200_breaker *breaker, const struct b200_gemm *gemm) {
  uint64_t hash = hash_of(gemm);
  for (unsigned i = 0; i < B200_BREAKER_ENTRIES; i++) {
    int index = (int)((hash + i) % B200_BREAKER_ENTRIES);
    const struct b200_breaker_entry *entry = &breaker->entries[index];
    if (atomic_load_explicit(&entry->state, memory_order_acquire) != READY || memcmp(&entry->gemm, gemm, sizeof(*gemm)) == 0)
      return index;
  }
  return -1;
}

/* The entry, made when there is room for it. */
static struct b200_breaker_entry *entry_for(struct b200_breaker *breaker, const struct b200_gemm *gemm) {
  int index = find(breaker, gemm);
  struct b200_breaker_entry *entry = &breaker->entries[index < 0 ? 0 : index];
  bool known = index >= 0 && atomic_load_explicit(&entry->state, memory_order_relaxed) == READY;
  /* A quarter stays empty, so that looking up what is not there stays short. */
  if (index < 0 || (!known && breaker->used >= B200_BREAKER_ENTRIES / 4 * 3)) {
    breaker->full++;
    return NULL;
  }
  if (!known) {
    entry->gemm = *gemm;
    breaker->used++;
    atomic_store_explicit(&entry->state, READY, memory_order_release);
  }
  return entry;
}

b200_demoted b200_breaker_look(const struct b200_breaker *breaker, const struct b200_gemm *gemm) {
  int index = find(breaker, gemm);
  if (index < 0 || atomic_load_explicit(&breaker->entries[index].state, memory_order_acquire) != READY)
    return 0;
  return (b200_demoted)atomic_load_explicit(&breaker->entries[index].opened, memory_order_relaxed);
}

/* ---- events */

static b200_demoted opened(const struct b200_breaker_entry *entry) {
  return (b200_demoted)atomic_load_explicit(&entry->opened, memory_order_relaxed);
}

static void open_now(struct b200_breaker *breaker, struct b200_breaker_entry *entry, enum b200_format format,
                     enum b200_open why) {
  atomic_store_explicit(&entry->opened, b200_demote(opened(entry), format, why), memory_order_relaxed);
  breaker->opened++;
}

bool b200_breaker_sample(struct b200_breaker *breaker, const struct b200_gemm *gemm, enum b200_format format,
                         enum b200_verdict verdict) {
  int index = find(breaker, gemm);
  bool known = index >= 0 && atomic_load_explicit(&breaker->entries[index].state, memory_order_relaxed) == READY;
  if (!known && verdict == B200_VERDICT_GOOD) /* most shapes are healthy and need no entry */
    return false;
  struct b200_breaker_entry *entry = entry_for(breaker, gemm);
  if (!entry)
    return false;
  unsigned window = (1u << B200_BREAKER_SAMPLES) - 1;
  entry->bad[format] = (uint8_t)(((unsigned)entry->bad[format] << 1 | (verdict != B200_VERDICT_GOOD)) & window);
  if (__builtin_popcount(entry->bad[format]) < breaker->strikes || b200_demoted_why(opened(entry), format) ||
      b200_demoted_why(entry->pending, format))
    return false;
  breaker->pending += !entry->pending;
  entry->pending = b200_demote(entry->pending, format, B200_OPEN_GUARD);
  return true;
}

bool b200_breaker_fail(struct b200_breaker *breaker, const struct b200_gemm *gemm, enum b200_format format,
                       enum b200_open why) {
  struct b200_breaker_entry *entry = entry_for(breaker, gemm);
  if (!entry || b200_demoted_why(opened(entry), format))
    return false;
  open_now(breaker, entry, format, why);
  return true;
}

/* ---- step boundaries */

uint64_t b200_breaker_pending(const struct b200_breaker *breaker) {
  uint64_t sum = 0;
  for (int i = 0; breaker->pending && i < B200_BREAKER_ENTRIES; i++)
    if (breaker->entries[i].pending)
      sum += (hash_of(&breaker->entries[i].gemm) ^ breaker->entries[i].pending) * UINT64_C(1099511628211);
  return sum ? sum : (uint64_t)(breaker->pending > 0);
}

static void settle(struct b200_breaker *breaker, struct b200_breaker_entry *entry, bool apply, b200_breaker_visit visit,
                   void *context) {
  for (enum b200_format format = B200_FORMAT_NATIVE; format < B200_FORMAT_COUNT; format++) {
    if (!b200_demoted_why(entry->pending, format) || b200_demoted_why(opened(entry), format))
      continue;
    if (apply)
      open_now(breaker, entry, format, B200_OPEN_GUARD);
    else
      breaker->dropped++;
    entry->bad[format] = 0;
    if (visit)
      visit(context, &entry->gemm, format, apply);
  }
  entry->pending = 0;
}

void b200_breaker_step(struct b200_breaker *breaker, bool apply, b200_breaker_visit visit, void *context) {
  for (int i = 0; breaker->pending && i < B200_BREAKER_ENTRIES; i++) {
    if (!breaker->entries[i].pending)
      continue;
    settle(breaker, &breaker->entries[i], apply, visit, context);
    breaker->pending--;
  }
}
