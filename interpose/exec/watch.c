/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/exec/arena.h"
#include "policy/breaker.h"

enum { SLOTS = 32 };

/* The reference's first column is a multiple of this: B begins at a multiple of 16 bytes there, if it does so at all. */
enum { FIRST_COLUMNS = 8 };

/* A slot's life: FREE → TAKEN (its call is being issued) → SENT (its event is recorded) → FREE. */
enum slot_state { FREE, TAKEN, SENT };

static struct {
  _Atomic int made;           /* not, under way, done, failed */
  const struct b200_gpu *gpu; /* that the slots are of: one per process samples */
  struct b200_watch_slot *device, *host;
  atomic_int sent; /* slots in that state */
  atomic_bool polling;
  struct {
    _Atomic int state;
    CUevent event;
    struct b200_gemm gemm;
    uint8_t format;
    bool audit, compares;
    int64_t columns;
  } slots[SLOTS];
} watch;

enum { UNMADE, MAKING, MADE, FAILED };

/* Once: memory for the slots, and their events. */
static bool make(const struct b200_vendor *vendor, const struct b200_gpu *gpu) {
  void *host;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  struct b200_arena *arena =
      b200_arena_take(vendor, gpu->context, gpu->ordinal, UINT64_MAX, 0, SLOTS * sizeof *watch.device, 0);
  if (!arena || vendor->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
    return false;
  bool made = vendor->cuMemHostAlloc(&host, SLOTS * sizeof *watch.host, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS;
  for (int i = 0; i < SLOTS && made; i++)
    made = vendor->cuEventCreate(&watch.slots[i].event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
  vendor->cuThreadExchangeStreamCaptureMode(&mode);
  watch.gpu = gpu;
  watch.device = (struct b200_watch_slot *)arena->base; /* the arena stays taken */
  watch.host = made ? host : NULL;
  return made;
}

static bool is_ready(const struct b200_vendor *vendor, const struct b200_gpu *gpu) {
  int state = atomic_load_explicit(&watch.made, memory_order_acquire);
  if (state == UNMADE && atomic_compare_exchange_strong(&watch.made, &state, MAKING)) {
    state = make(vendor, gpu) ? MADE : FAILED;
    atomic_store_explicit(&watch.made, state, memory_order_release);
  }
  return state == MADE && watch.gpu == gpu;
}

bool b200_watch_begin(struct b200_sample *out, const struct b200_vendor *vendor, const struct b200_gpu *gpu,
                      const struct b200_gemm_call *call, uint32_t calls, bool audit, struct b200_product *reference) {
  const struct b200_gemm *gemm = &call->facts.gemm;
  if (!is_ready(vendor, gpu))
    return false;
  for (int i = 0; i < SLOTS; i++) {
    int state = FREE;
    if (!atomic_compare_exchange_strong(&watch.slots[i].state, &state, TAKEN))
      continue;
    int64_t columns = audit || gemm->n < B200_REFERENCE_COLUMNS ? gemm->n : B200_REFERENCE_COLUMNS;
    *out = (struct b200_sample){
        .index = i,
        .device = &watch.device[i],
        .audit = audit,
        .columns = columns,
        .reference = reference,
        .from = (int64_t)(calls * 2654435761u) % (gemm->n - columns + 1) / FIRST_COLUMNS * FIRST_COLUMNS,
    };
    return true;
  }
  return false;
}

/* Columns of the reference lie this far apart: 16 bytes whatever the type. */
static int64_t reference_ld(const struct b200_gemm *gemm) {
  return (gemm->m + 15) / 16 * 16;
}

uint64_t b200_watch_bytes(const struct b200_sample *sample, const struct b200_gemm_call *call) {
  const struct b200_gemm *gemm = &call->facts.gemm;
  return (uint64_t)(reference_ld(gemm) * sample->columns) * b200_element_bytes((enum b200_element)gemm->d);
}

/* What the address of an operand's sampled columns is a multiple of. */
static uint32_t alignment_of(uint8_t log2) {
  return log2 < 4 ? 1u << log2 : 16;
}

static const void *columns_from(const void *matrix, int64_t column, int64_t ld, uint8_t element) {
  return (const char *)matrix + column * ld * (int64_t)b200_element_bytes((enum b200_element)element);
}

void b200_watch_before(struct b200_sample *sample, const struct b200_vendor *vendor, const struct b200_gemm_call *call,
                       void *reference) {
  struct b200_facts facts = call->facts;
  const struct b200_gemm *gemm = &facts.gemm;
  bool b_k_fast = gemm->tb == 'N';
  const struct b200_product_operand a = {b200_cuda_type(gemm->a), gemm->ta != 'N', facts.lda, 0,
                                         alignment_of(facts.align_a)};
  const struct b200_product_operand b = {b200_cuda_type(gemm->b), b_k_fast, facts.ldb, 0, alignment_of(facts.align_b)};
  const struct b200_product_terms terms = {.sm_target = call->sm_target};
  struct b200_product *product = sample->reference;
  sample->zeroed = vendor->cuMemsetD8Async((CUdeviceptr)sample->device, 0, sizeof *sample->device, (CUstream)call->stream) ==
                   CUDA_SUCCESS;
  if (!sample->zeroed || gemm->batch != 1 || !reference)
    return;
  facts.ldd = reference_ld(gemm);
  if (facts.beta == B200_BETA_ZERO)
    facts.ldc = facts.ldd;
  if (!product->desc && b200_product_make(product, vendor, call->handle, &facts, B200_FORMAT_NATIVE, gemm->m,
                                          sample->columns, &a, &b, &terms, 0, 16) != B200_PRODUCT_READY)
    return;
  const struct b200_product_pointers pointers = {
      .a = call->a,
      .b = columns_from(call->b, sample->from, b_k_fast ? facts.ldb : 1, gemm->b),
      .c = facts.beta == B200_BETA_ZERO ? reference : columns_from(call->c, sample->from, facts.ldc, facts.c),
      .d = reference,
      .alpha = call->alpha,
      .beta = call->beta,
      .bias = call->bias,
  };
  sample->compares =
      b200_product_run(product, vendor, call->handle, &pointers, (CUstream)call->stream) == CUBLAS_STATUS_SUCCESS;
}

static uint8_t source_of(uint8_t element) {
  return element == B200_ELEMENT_F32 ? B200_SOURCE_F32 : element == B200_ELEMENT_F16 ? B200_SOURCE_F16 : B200_SOURCE_BF16;
}

/* One sum for an audit; one for each column for the guard, whose median a few bad columns must not move. */
static bool sum_up(const struct b200_sample *sample, const struct b200_vendor *vendor, const struct b200_gpu *gpu,
                   const struct b200_gemm_call *call, const void *reference) {
  const struct b200_facts *facts = &call->facts;
  int64_t launches = sample->audit ? 1 : sample->columns, ldr = reference_ld(&facts->gemm);
  struct b200_error_args args = {
      .m = facts->gemm.m,
      .n = sample->audit ? sample->columns : 1,
      .ldd = facts->ldd,
      .ldr = ldr,
      .type = source_of(facts->gemm.d),
  };
  enum b200_kernel kernel = b200_kernel_error((enum b200_source)args.type);
  for (int64_t i = 0; i < launches; i++) {
    args.d = columns_from(call->d, sample->from + i, facts->ldd, facts->gemm.d);
    args.reference = columns_from(reference, i, ldr, facts->gemm.d);
    args.sums = sample->device->sums[i];
    if (b200_gpu_launch(vendor, gpu, kernel, &args, (CUstream)call->stream) != CUDA_SUCCESS)
      return false;
  }
  return true;
}

void b200_watch_after(struct b200_sample *sample, const struct b200_vendor *vendor, const struct b200_gpu *gpu,
                      const struct b200_gemm_call *call, enum b200_format format, const void *reference) {
  int i = sample->index;
  CUstream stream = (CUstream)call->stream;
  if (!sample->zeroed || (sample->audit && !sample->compares) ||
      (sample->compares && !sum_up(sample, vendor, gpu, call, reference)) ||
      vendor->cuMemcpyDtoHAsync_v2(&watch.host[i], (CUdeviceptr)sample->device, sizeof *sample->device, stream) !=
          CUDA_SUCCESS ||
      vendor->cuEventRecord(watch.slots[i].event, stream) != CUDA_SUCCESS)
    return;
  watch.slots[i].gemm = call->facts.gemm;
  watch.slots[i].format = (uint8_t)format;
  watch.slots[i].audit = sample->audit;
  watch.slots[i].compares = sample->compares;
  watch.slots[i].columns = sample->columns;
  sample->sent = true;
  atomic_fetch_add_explicit(&watch.sent, 1, memory_order_relaxed);
  atomic_store_explicit(&watch.slots[i].state, SENT, memory_order_release);
}

void b200_watch_end(const struct b200_sample *sample) {
  if (!sample->sent)
    atomic_store_explicit(&watch.slots[sample->index].state, FREE, memory_order_release);
}

/* ---- what has arrived */

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

/*
 * Relative errors of the columns; a column without values says nothing unless its error is not 0.
 *
 * Of weight gradients, small columns are measured by the column of median norm: each is a sum over tokens, and one whose
 * terms cancel has an error of the size that all columns have, relative to which it is small. In healthy training of a small
 * model such errors reach 1.1 of the column's own norm, and 0.27 of the median one (0.6 and 0.17 for MXFP8).
 */
static struct b200_guard_shadow shadow_of(const struct b200_watch_slot *slot, int64_t columns, uint8_t role) {
  double errors[B200_REFERENCE_COLUMNS], norms[B200_REFERENCE_COLUMNS], sorted[B200_REFERENCE_COLUMNS];
  size_t count = 0;
  for (int64_t i = 0; i < columns; i++) {
    double error = slot->sums[i][0], norm = slot->sums[i][1];
    if (!isfinite(error) || !isfinite(norm))
      return (struct b200_guard_shadow){.median = NAN, .p99 = NAN};
    if (norm <= 0)
      continue;
    errors[count] = sqrt(error);
    norms[count] = sorted[count] = sqrt(norm);
    count++;
  }
  if (count == 0)
    return (struct b200_guard_shadow){0};
  qsort(sorted, count, sizeof *sorted, compare);
  double least = role == B200_ROLE_WGRAD ? sorted[count / 2] : 0;
  for (size_t i = 0; i < count; i++)
    errors[i] /= norms[i] > least ? norms[i] : least;
  qsort(errors, count, sizeof *errors, compare);
  return (struct b200_guard_shadow){.median = errors[count / 2], .p99 = errors[count * 99 / 100]};
}

static struct b200_guard_sample sample_of(const struct b200_guard_counters *counters) {
  return (struct b200_guard_sample){
      .blocks = counters->blocks,
      .starved = counters->starved,
      .nonfinite = counters->nonfinite,
      .underflown = counters->underflown,
      .saturated = counters->saturated,
      .elements = counters->elements,
  };
}

static void take_in(int i, const struct b200_watch_sink *sink) {
  const struct b200_watch_slot *slot = &watch.host[i];
  enum b200_format format = (enum b200_format)watch.slots[i].format;
  if (watch.slots[i].audit) {
    sink->audit(&watch.slots[i].gemm, format,
                slot->sums[0][1] > 0 ? sqrt(slot->sums[0][0] / slot->sums[0][1]) : slot->sums[0][0]);
    return;
  }
  struct b200_guard_sample a = sample_of(&slot->a), b = sample_of(&slot->b);
  struct b200_guard_shadow shadow = shadow_of(slot, watch.slots[i].columns, watch.slots[i].gemm.role);
  sink->guard(&watch.slots[i].gemm, format, &a, &b, watch.slots[i].compares ? &shadow : NULL);
}

void b200_watch_poll(const struct b200_vendor *vendor, const struct b200_watch_sink *sink) {
  if (atomic_load_explicit(&watch.sent, memory_order_relaxed) == 0 || atomic_exchange(&watch.polling, true))
    return;
  for (int i = 0; i < SLOTS; i++) {
    if (atomic_load_explicit(&watch.slots[i].state, memory_order_acquire) != SENT)
      continue;
    CUresult state = vendor->cuEventQuery(watch.slots[i].event);
    if (state == CUDA_ERROR_NOT_READY)
      continue;
    if (state == CUDA_SUCCESS)
      take_in(i, sink);
    atomic_fetch_sub_explicit(&watch.sent, 1, memory_order_relaxed);
    atomic_store_explicit(&watch.slots[i].state, FREE, memory_order_release);
  }
  atomic_store_explicit(&watch.polling, false, memory_order_release);
}
