/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/convert.h"

#include <string.h>

#include "interpose/exec/arena.h"
#include "interpose/runtime.h"

/* The front of each arena: the scales of both operands of per-tensor FP8. */
enum { SCALE_A = 0, SCALE_B = 128, HEADER_BYTES = 256 };

size_t b200_convert_workspace_limit(int cc) {
  return cc >= 90 ? (size_t)32 << 20 : (size_t)8 << 20;
}

/* ------------------------------------------------------------------------------------------------- conversions */

/* Takes `bytes` behind what is taken already. */
static uint64_t place(uint64_t *end, uint64_t bytes) {
  uint64_t start = *end;
  *end = b200_round_up(start + bytes, 256);
  return start;
}

static int64_t lines_of(int64_t outer, int64_t k, uint8_t major) {
  return major == B200_K_FAST ? outer : k;
}

/* pre: `outer` is what is quantised at once: the whole operand, or a piece. */
static void lay_out(struct b200_side *side, enum b200_format format, int64_t outer, int64_t k, uint64_t *end) {
  int64_t width = side->dst_major == B200_K_FAST ? k : outer;
  int64_t lines = lines_of(outer, k, side->dst_major);
  side->dst_ld = (int64_t)b200_round_up((uint64_t)width, 16);
  side->dst_stride = side->matrices > 1 ? side->dst_ld * lines : 0;
  side->data = place(end, (uint64_t)(side->dst_ld * lines * side->matrices));
  side->scales = format == B200_FORMAT_MXFP8 ? place(end, (uint64_t)b200_scale_bytes(outer, k)) : 0;
}

static struct b200_side side_of(const struct b200_gemm *gemm, const struct b200_plan *plan, bool is_a, int64_t ld,
                                int64_t stride) {
  bool k_fast = is_a ? gemm->ta != 'N' : gemm->tb == 'N';
  uint8_t narrow = is_a ? plan->a : plan->b;
  enum b200_source source = gemm->a == B200_ELEMENT_F16 ? B200_SOURCE_F16 : B200_SOURCE_BF16;
  enum b200_major major = k_fast ? B200_K_FAST : B200_K_SLOW, dst_major = k_fast || plan->tn ? B200_K_FAST : B200_K_SLOW;
  bool mx = plan->format == B200_FORMAT_MXFP8;
  return (struct b200_side){
      .outer = is_a ? gemm->m : gemm->n,
      .ld = ld,
      .stride = stride,
      .matrices = gemm->batch > 1 && stride != 0 ? gemm->batch : 1,
      .source = (uint8_t)source,
      .narrow = narrow == B200_ELEMENT_E5M2 ? B200_NARROW_E5M2 : B200_NARROW_E4M3,
      .major = (uint8_t)major,
      .dst_major = (uint8_t)dst_major,
      .amax = (uint8_t)b200_kernel_amax(source),
      .quantise = (uint8_t)(mx ? b200_kernel_mx(source, major) : b200_kernel_cast(source, major, dst_major)),
      .cut = plan->cuts > 1 && plan->cut_rows == is_a,
  };
}

static struct b200_product_operand operand_of(const struct b200_side *side, uint8_t element) {
  return (struct b200_product_operand){
      .type = b200_cuda_type(element),
      .k_fast = side->dst_major == B200_K_FAST,
      .ld = side->dst_ld,
      .stride = side->dst_stride,
      .alignment = 256, /* place() */
  };
}

/* Length of the last piece. */
static int64_t last_length(const struct b200_conversion *conversion, int64_t whole) {
  return whole - conversion->piece * (int64_t)(conversion->cuts - 1);
}

static enum b200_product_result make_products(const struct b200_work *work, struct b200_conversion *conversion) {
  const struct b200_gemm *gemm = &work->call->facts.gemm;
  const struct b200_plan *plan = &work->plan;
  struct b200_product_operand a = operand_of(&conversion->a, plan->a), b = operand_of(&conversion->b, plan->b);
  const struct b200_product_terms terms = {
      .sm_target = work->call->sm_target,
      .fast_accumulate = plan->fast_accumulate && !work->call->forbids_reduced,
  };
  const struct b200_facts *facts = &work->call->facts;
  uint8_t align = facts->beta != B200_BETA_ZERO && facts->align_c < facts->align_d ? facts->align_c : facts->align_d;
  uint32_t alignment = plan->cuts > 1 ? 16 : 1u << align;
  int64_t cut = plan->cut_rows ? gemm->m : gemm->n, piece = conversion->piece, last = last_length(conversion, cut);
  size_t limit = b200_convert_workspace_limit(work->gpu->facts.cc);
  enum b200_format format = (enum b200_format)plan->format;
  enum b200_product_result result = b200_product_make(&conversion->whole, work->vendor, work->call->handle, facts, format,
                                                      plan->cut_rows ? piece : gemm->m, plan->cut_rows ? gemm->n : piece, &a,
                                                      &b, &terms, limit, alignment);
  if (result == B200_PRODUCT_READY && last != piece)
    result = b200_product_make(&conversion->last, work->vendor, work->call->handle, facts, format,
                               plan->cut_rows ? last : gemm->m, plan->cut_rows ? gemm->n : last, &a, &b, &terms, limit,
                               alignment);
  if (result != B200_PRODUCT_READY)
    b200_product_end(&conversion->whole, work->vendor);
  return result;
}

static enum b200_product_result make_conversion(const struct b200_work *work, struct b200_conversion *conversion) {
  const struct b200_facts *facts = &work->call->facts;
  const struct b200_gemm *gemm = &facts->gemm;
  const struct b200_plan *plan = &work->plan;
  enum b200_format format = (enum b200_format)plan->format;
  uint64_t end = HEADER_BYTES;
  memset(conversion, 0, sizeof *conversion);
  conversion->cuts = plan->cuts > 1 ? plan->cuts : 1;
  conversion->cut_rows = plan->cut_rows;
  conversion->piece = b200_cut_length(plan->cut_rows ? gemm->m : gemm->n, conversion->cuts);
  conversion->a = side_of(gemm, plan, true, facts->lda, facts->stride_a);
  conversion->b = side_of(gemm, plan, false, facts->ldb, facts->stride_b);
  lay_out(&conversion->a, format, conversion->a.cut ? conversion->piece : gemm->m, gemm->k, &end);
  lay_out(&conversion->b, format, conversion->b.cut ? conversion->piece : gemm->n, gemm->k, &end);
  enum b200_product_result result = make_products(work, conversion);
  size_t whole = conversion->whole.workspace_bytes, last = conversion->last.workspace_bytes;
  conversion->workspace = place(&end, whole > last ? whole : last);
  conversion->bytes = end;
  if (result == B200_PRODUCT_READY)
    conversion->state = B200_CONVERSION_READY;
  return result;
}

/* -------------------------------------------------------------------------------------------------- quantising */

static const void *at(const void *base, int64_t elements, unsigned element_bytes) {
  return (const char *)base + elements * (int64_t)element_bytes;
}

static struct b200_operand source_of(const struct b200_side *side, const void *src, int64_t k) {
  return (struct b200_operand){
      .src = src, .ld = side->ld, .outer = side->outer, .k = k, .type = side->source, .major = side->major};
}

/* All matrices of a batch as one: they lie one behind the other (mergeable()). */
static struct b200_operand merged(struct b200_operand in, int64_t matrices) {
  if (in.major == B200_K_FAST)
    in.outer *= matrices;
  else
    in.k *= matrices;
  return in;
}

static bool launch(const struct b200_work *work, enum b200_kernel kernel, const void *args) {
  return b200_gpu_launch(work->vendor, work->gpu, kernel, args, (CUstream)work->call->stream) == CUDA_SUCCESS;
}

static bool find_scale(const struct b200_work *work, const struct b200_side *side, const void *src,
                       struct b200_tensor_scale *scale) {
  const struct b200_amax_args args = {
      .in = merged(source_of(side, src, work->call->facts.gemm.k), side->matrices),
      .scale = scale,
      .fp_max = side->narrow == B200_NARROW_E5M2 ? 57344.0f : 448.0f,
  };
  return launch(work, (enum b200_kernel)side->amax, &args);
}

/* The source's K-slow matrices of a batch are transposed one by one; all else is one launch. */
static bool cast(const struct b200_work *work, const struct b200_side *side, const struct b200_operand *in, CUdeviceptr base,
                 const struct b200_tensor_scale *scale, struct b200_guard_counters *guard) {
  enum b200_kernel kernel = (enum b200_kernel)side->quantise;
  struct b200_cast_args args = {
      .in = *in,
      .dst = (void *)(base + side->data),
      .dst_ld = side->dst_ld,
      .scale = scale,
      .guard = guard,
      .narrow = side->narrow,
  };
  if (side->major == side->dst_major) {
    args.in = merged(args.in, side->matrices);
    return launch(work, kernel, &args);
  }
  for (int64_t i = 0; i < side->matrices; i++) {
    args.in.src = at(in->src, i * side->stride, 2);
    args.dst = (char *)(base + side->data) + i * side->dst_stride;
    if (!launch(work, kernel, &args))
      return false;
  }
  return true;
}

/* Rows `from` … `from + count` of the operand. */
static bool quantise(const struct b200_work *work, const struct b200_side *side, const void *src, int64_t from,
                     int64_t count, CUdeviceptr base, const struct b200_tensor_scale *scale,
                     struct b200_guard_counters *guard) {
  const void *start = at(src, side->major == B200_K_FAST ? from * side->ld : from, 2);
  struct b200_operand in = source_of(side, start, work->call->facts.gemm.k);
  in.outer = count;
  if (work->plan.format == B200_FORMAT_FP8)
    return cast(work, side, &in, base, scale, guard);
  const struct b200_mx_args args = {
      .in = in,
      .dst = (void *)(base + side->data),
      .dst_ld = side->dst_ld,
      .scales = (uint8_t *)(base + side->scales),
      .guard = guard,
      .narrow = side->narrow,
      .rounding = work->mx_rounding,
  };
  return launch(work, (enum b200_kernel)side->quantise, &args);
}

/* ----------------------------------------------------------------------------------------------------- carrying out */

static bool multiply(const struct b200_work *work, struct b200_conversion *conversion, CUdeviceptr base, int64_t from,
                     bool last) {
  const struct b200_gemm_call *call = work->call;
  const struct b200_facts *facts = &call->facts;
  struct b200_product *product = last && conversion->last.desc ? &conversion->last : &conversion->whole;
  bool fp8 = work->plan.format == B200_FORMAT_FP8;
  unsigned bytes = b200_element_bytes((enum b200_element)facts->gemm.d);
  unsigned bias_bytes = b200_element_bytes((enum b200_element)facts->bias);
  int64_t into_d = conversion->cut_rows ? from : from * facts->ldd, into_c = conversion->cut_rows ? from : from * facts->ldc;
  const struct b200_tensor_scale *scale_a = (const struct b200_tensor_scale *)(base + SCALE_A);
  const struct b200_tensor_scale *scale_b = (const struct b200_tensor_scale *)(base + SCALE_B);
  bool theirs =
      call->workspace && call->workspace_bytes >= product->workspace_bytes && (uintptr_t)call->workspace % 256 == 0;
  const struct b200_product_pointers pointers = {
      .a = (const void *)(base + conversion->a.data),
      .b = (const void *)(base + conversion->b.data),
      .c = call->c ? at(call->c, into_c, bytes) : NULL,
      .d = (char *)call->d + into_d * (int64_t)bytes,
      .alpha = call->alpha,
      .beta = call->beta,
      .bias = call->bias && conversion->cut_rows ? at(call->bias, from, bias_bytes) : call->bias,
      .scale_a = fp8 ? (const void *)&scale_a->inverse : (const void *)(base + conversion->a.scales),
      .scale_b = fp8 ? (const void *)&scale_b->inverse : (const void *)(base + conversion->b.scales),
      .workspace = theirs ? call->workspace : (void *)(base + conversion->workspace),
      .workspace_bytes = product->workspace_bytes,
  };
  return b200_product_run(product, work->vendor, call->handle, &pointers, (CUstream)call->stream) == CUBLAS_STATUS_SUCCESS;
}

static bool run_pieces(const struct b200_work *work, struct b200_conversion *conversion, CUdeviceptr base) {
  const struct b200_gemm_call *call = work->call;
  const struct b200_gemm *gemm = &call->facts.gemm;
  struct b200_side *a = &conversion->a, *b = &conversion->b;
  struct b200_tensor_scale *scale_a = (struct b200_tensor_scale *)(base + SCALE_A);
  struct b200_tensor_scale *scale_b = (struct b200_tensor_scale *)(base + SCALE_B);
  struct b200_guard_counters *guard_a = work->sample ? &work->sample->device->a : NULL;
  struct b200_guard_counters *guard_b = work->sample ? &work->sample->device->b : NULL;
  if (work->plan.format == B200_FORMAT_FP8 &&
      (!find_scale(work, a, call->a, scale_a) || !find_scale(work, b, call->b, scale_b)))
    return false;
  if (!a->cut && !quantise(work, a, call->a, 0, gemm->m, base, scale_a, guard_a))
    return false;
  if (!b->cut && !quantise(work, b, call->b, 0, gemm->n, base, scale_b, guard_b))
    return false;
  for (uint32_t i = 0; i < conversion->cuts; i++) {
    bool last = i + 1 == conversion->cuts;
    int64_t from = (int64_t)i * conversion->piece;
    int64_t count = last ? last_length(conversion, conversion->cut_rows ? gemm->m : gemm->n) : conversion->piece;
    if (a->cut && !quantise(work, a, call->a, from, count, base, scale_a, guard_a))
      return false;
    if (b->cut && !quantise(work, b, call->b, from, count, base, scale_b, guard_b))
      return false;
    if (!multiply(work, conversion, base, from, last))
      return false;
  }
  return true;
}

/* Until the first multiply() nothing of the job's was written; after it, the pieces that were are written again by the
   original call, which does not read them (accumulating GEMMs are left uncut). */
static bool run(const struct b200_work *work, const struct b200_arena *arena) {
  struct b200_sample *sample = work->sample;
  uint64_t left = arena->bytes - work->conversion->bytes;
  bool fits = sample && left >= b200_watch_bytes(sample, work->call);
  void *reference = fits ? (void *)(arena->base + work->conversion->bytes) : NULL;
  if (sample)
    b200_watch_before(sample, work->vendor, work->call, reference);
  bool done = run_pieces(work, work->conversion, arena->base);
  if (sample && done)
    b200_watch_after(sample, work->vendor, work->gpu, work->call, (enum b200_format)work->plan.format, reference);
  return done;
}

static enum b200_reason convert(const struct b200_work *work) {
  struct b200_conversion *conversion = work->conversion;
  CUstream queue = (CUstream)work->call->stream;
  unsigned long long stream = 0;
  if (conversion->state == B200_CONVERSION_UNMADE) {
    enum b200_product_result made = make_conversion(work, conversion);
    if (made != B200_PRODUCT_READY)
      return made == B200_PRODUCT_NO_ALGORITHM ? B200_REASON_BREAKER_HEURISTIC : B200_REASON_BREAKER_VENDOR;
  }
  if (work->vendor->cuStreamGetId(queue, &stream) != CUDA_SUCCESS)
    return B200_REASON_BREAKER_VENDOR;
  uint64_t more = work->sample ? b200_watch_bytes(work->sample, work->call) : 0;
  struct b200_arena *arena = b200_arena_take(work->vendor, work->gpu->context, work->gpu->ordinal, stream, work->capture,
                                             conversion->bytes, conversion->bytes + more);
  if (!arena)
    return B200_REASON_NO_MEMORY;
  if (!arena->prepared)
    arena->prepared = work->vendor->cuMemsetD8Async(arena->base, 0, HEADER_BYTES, queue) == CUDA_SUCCESS;
  bool done = arena->prepared && run(work, arena);
  b200_arena_give_back(arena);
  return done ? B200_REASON_CONVERTED : B200_REASON_BREAKER_VENDOR;
}

enum b200_reason b200_convert(const struct b200_work *work) {
  enum b200_reason reason = convert(work);
  if (work->sample)
    b200_watch_end(work->sample);
  return reason;
}
