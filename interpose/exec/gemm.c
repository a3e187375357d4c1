/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/gemm.h"

#include <pthread.h>
#include <string.h>

#include "interpose/exec/arena.h"
#include "interpose/exec/device.h"
#include "interpose/exec/shapes.h"
#include "interpose/runtime.h"
#include "policy/breaker.h"

/* The front of each arena: the scales of both operands of per-tensor FP8. */
enum { SCALE_A = 0, SCALE_B = 128, HEADER_BYTES = 256 };

/* What cuBLASLt's algorithms may want: what PyTorch gives on these GPUs, and NVIDIA recommends. */
static size_t workspace_limit(int cc) {
  return cc >= 90 ? (size_t)32 << 20 : (size_t)8 << 20;
}

/* The breaker's lock is a leaf: nothing else is taken, and no vendor called, while it is held. Looking takes none. */
static struct {
  const struct b200_config *config;
  int rank, world;
  pthread_mutex_t breaker_lock;
  struct b200_breaker breaker;
  _Atomic uint64_t epoch; /* changes when the breaker's answers may */
} exec = {.breaker_lock = PTHREAD_MUTEX_INITIALIZER};

/* One call under way. */
struct work {
  const struct b200_vendor *vendor;
  const struct b200_gemm_call *call;
  struct b200_gpu *gpu;
  struct b200_shape *shape;
  struct b200_plan plan;
  uint64_t capture; /* id, 0: none */
};

void b200_gemm_start(const struct b200_config *config, int rank, int world) {
  exec.config = config;
  exec.rank = rank;
  exec.world = world;
  b200_breaker_make(&exec.breaker, config->guard == B200_GUARD_STRICT ? 1 : (int)config->guard_strikes);
  b200_arena_limit(((uint64_t)config->workspace_mb << 20) + workspace_limit(90) + (2 << 20));
}

bool b200_gemm_decides(void) {
  return exec.config && exec.config->precision != B200_PRECISION_OBSERVE;
}

/* False when no setting asks for a narrow format: then nothing is loaded into the GPU. */
static bool may_convert(const struct b200_config *config) {
  return config->precision != B200_PRECISION_NATIVE || config->fprop > B200_ROLE_NATIVE ||
         config->dgrad > B200_ROLE_NATIVE || config->wgrad > B200_ROLE_NATIVE || config->rules[0] || config->rules_file[0];
}

void b200_gemm_leave(struct b200_outcome *outcome) {
  memset(outcome, 0, sizeof *outcome);
  outcome->reason = b200_gemm_decides() ? B200_REASON_API : B200_REASON_OBSERVE;
  memset(outcome->would_reason, B200_REASON_API, sizeof outcome->would_reason);
}

/* ------------------------------------------------------------------------------------------------- conversions */

static uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/* Takes `bytes` behind what is taken already. */
static uint64_t place(uint64_t *end, uint64_t bytes) {
  uint64_t start = *end;
  *end = round_up(start + bytes, 256);
  return start;
}

static int64_t lines_of(int64_t outer, int64_t k, uint8_t major) {
  return major == B200_K_FAST ? outer : k;
}

/* pre: `outer` is what is quantised at once: the whole operand, or a piece. */
static void lay_out(struct b200_side *side, enum b200_format format, int64_t outer, int64_t k, uint64_t *end) {
  int64_t width = side->dst_major == B200_K_FAST ? k : outer;
  int64_t lines = lines_of(outer, k, side->dst_major);
  side->dst_ld = (int64_t)round_up((uint64_t)width, 16);
  side->dst_stride = side->matrices > 1 ? side->dst_ld * lines : 0;
  side->data = place(end, (uint64_t)(side->dst_ld * lines * side->matrices));
  side->scales = format == B200_FORMAT_MXFP8 ? place(end, (uint64_t)b200_scale_bytes(outer, k)) : 0;
}

static struct b200_side side_of(const struct b200_gemm *gemm, const struct b200_plan *plan, bool is_a, int64_t ld,
                                int64_t stride) {
  bool k_fast = is_a ? gemm->ta != 'N' : gemm->tb == 'N';
  uint8_t narrow = is_a ? plan->a : plan->b;
  return (struct b200_side){
      .outer = is_a ? gemm->m : gemm->n,
      .ld = ld,
      .stride = stride,
      .matrices = gemm->batch > 1 && stride != 0 ? gemm->batch : 1,
      .source = gemm->a == B200_ELEMENT_F16 ? B200_SOURCE_F16 : B200_SOURCE_BF16,
      .narrow = narrow == B200_ELEMENT_E5M2 ? B200_NARROW_E5M2 : B200_NARROW_E4M3,
      .major = k_fast ? B200_K_FAST : B200_K_SLOW,
      .dst_major = k_fast || plan->tn ? B200_K_FAST : B200_K_SLOW,
      .cut = plan->cuts > 1 && plan->cut_rows == is_a,
  };
}

static struct b200_product_operand operand_of(const struct b200_side *side, uint8_t element) {
  return (struct b200_product_operand){
      .type = b200_cuda_type(element),
      .k_fast = side->dst_major == B200_K_FAST,
      .ld = side->dst_ld,
      .stride = side->dst_stride,
  };
}

/* Length of the last piece. */
static int64_t last_length(const struct b200_conversion *conversion, int64_t whole) {
  return whole - conversion->piece * (int64_t)(conversion->cuts - 1);
}

static enum b200_product_result make_products(const struct work *work, struct b200_conversion *conversion) {
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
  size_t limit = workspace_limit(work->gpu->facts.cc);
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

static enum b200_product_result make_conversion(const struct work *work, struct b200_conversion *conversion) {
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

static bool launch(const struct work *work, enum b200_kernel kernel, const void *args) {
  return b200_gpu_launch(work->vendor, work->gpu, kernel, args, (CUstream)work->call->stream) == CUDA_SUCCESS;
}

static bool find_scale(const struct work *work, const struct b200_side *side, const void *src,
                       struct b200_tensor_scale *scale) {
  const struct b200_amax_args args = {
      .in = merged(source_of(side, src, work->call->facts.gemm.k), side->matrices),
      .scale = scale,
      .fp_max = side->narrow == B200_NARROW_E5M2 ? 57344.0f : 448.0f,
  };
  return launch(work, b200_kernel_amax((enum b200_source)side->source, (enum b200_major)side->major), &args);
}

/* The source's K-slow matrices of a batch are transposed one by one; all else is one launch. */
static bool cast(const struct work *work, const struct b200_side *side, const struct b200_operand *in, CUdeviceptr base,
                 const struct b200_tensor_scale *scale, struct b200_guard_counters *guard) {
  enum b200_kernel kernel =
      b200_kernel_cast((enum b200_source)side->source, (enum b200_major)side->major, (enum b200_major)side->dst_major);
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
static bool quantise(const struct work *work, const struct b200_side *side, const void *src, int64_t from, int64_t count,
                     CUdeviceptr base, const struct b200_tensor_scale *scale, struct b200_guard_counters *guard) {
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
      .rounding = (uint8_t)exec.config->mx_round,
  };
  return launch(work, b200_kernel_mx((enum b200_source)side->source, (enum b200_major)side->major), &args);
}
_Static_assert(B200_MX_RCEIL == (int)B200_MX_ROUND_RCEIL && B200_MX_FLOOR == (int)B200_MX_ROUND_FLOOR &&
                   B200_MX_EVEN == (int)B200_MX_ROUND_EVEN,
               "one list");

/* ----------------------------------------------------------------------------------------------------- carrying out */

static bool multiply(const struct work *work, struct b200_conversion *conversion, CUdeviceptr base, int64_t from,
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

static bool run_pieces(const struct work *work, struct b200_conversion *conversion, CUdeviceptr base) {
  const struct b200_gemm_call *call = work->call;
  const struct b200_gemm *gemm = &call->facts.gemm;
  struct b200_side *a = &conversion->a, *b = &conversion->b;
  struct b200_tensor_scale *scale_a = (struct b200_tensor_scale *)(base + SCALE_A);
  struct b200_tensor_scale *scale_b = (struct b200_tensor_scale *)(base + SCALE_B);
  if (work->plan.format == B200_FORMAT_FP8 &&
      (!find_scale(work, a, call->a, scale_a) || !find_scale(work, b, call->b, scale_b)))
    return false;
  if (!a->cut && !quantise(work, a, call->a, 0, gemm->m, base, scale_a, NULL))
    return false;
  if (!b->cut && !quantise(work, b, call->b, 0, gemm->n, base, scale_b, NULL))
    return false;
  for (uint32_t i = 0; i < conversion->cuts; i++) {
    bool last = i + 1 == conversion->cuts;
    int64_t from = (int64_t)i * conversion->piece;
    int64_t count = last ? last_length(conversion, conversion->cut_rows ? gemm->m : gemm->n) : conversion->piece;
    if (a->cut && !quantise(work, a, call->a, from, count, base, scale_a, NULL))
      return false;
    if (b->cut && !quantise(work, b, call->b, from, count, base, scale_b, NULL))
      return false;
    if (!multiply(work, conversion, base, from, last))
      return false;
  }
  return true;
}

/* CONVERTED, or why not. Until the first multiply() nothing of the job's was written; after it, the pieces that were are
   written again by the original call, which does not read them (decide() leaves accumulating GEMMs uncut). */
static enum b200_reason carry_out(const struct work *work) {
  struct b200_conversion *conversion = &work->shape->conversions[work->plan.format - 1];
  unsigned long long stream = 0;
  if (conversion->state == B200_CONVERSION_UNMADE) {
    enum b200_product_result made = make_conversion(work, conversion);
    if (made != B200_PRODUCT_READY)
      return made == B200_PRODUCT_NO_ALGORITHM ? B200_REASON_BREAKER_HEURISTIC : B200_REASON_BREAKER_VENDOR;
  }
  if (work->vendor->cuStreamGetId((CUstream)work->call->stream, &stream) != CUDA_SUCCESS)
    return B200_REASON_BREAKER_VENDOR;
  struct b200_arena *arena =
      b200_arena_take(work->vendor, work->gpu->context, work->gpu->ordinal, stream, work->capture, conversion->bytes);
  if (!arena)
    return B200_REASON_NO_MEMORY;
  if (!arena->prepared)
    arena->prepared =
        work->vendor->cuMemsetD8Async(arena->base, 0, HEADER_BYTES, (CUstream)work->call->stream) == CUDA_SUCCESS;
  bool done = arena->prepared && run_pieces(work, conversion, arena->base);
  b200_arena_give_back(arena);
  return done ? B200_REASON_CONVERTED : B200_REASON_BREAKER_VENDOR;
}

/* ------------------------------------------------------------------------------------------------------------ deciding */

/* True when several matrices of an operand can be looked at as one, lying one behind the other, or are one and the same. */
static bool mergeable(const struct b200_gemm *gemm, int64_t outer, bool k_fast, int64_t ld, int64_t stride) {
  return gemm->batch == 1 || stride == 0 || stride == ld * (k_fast ? outer : gemm->k);
}

/* What only shows now: is the stream captured, has the warm-up passed. False: the driver does not say. */
static bool complete_facts(struct work *work, struct b200_facts *facts) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUresult asked = work->vendor->cuStreamGetCaptureInfo_v2((CUstream)work->call->stream, &status, &id, NULL, NULL, NULL);
  if (asked != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return false;
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    work->capture = id;
    facts->flags |= B200_CALL_CAPTURED;
  }
  if (exec.config->warmup_steps > 0 && b200_runtime_step() < exec.config->warmup_steps)
    facts->flags |= B200_CALL_WARM_UP;
  return true;
}

/* The plan of a shape: remembered, unless a rule asks where in the job the call stands, or the breaker has changed. */
static void plan_shape(const struct work *work, struct b200_shape *shape, const struct b200_facts *facts) {
  const struct b200_policy *policy = &work->gpu->policy;
  uint64_t epoch = atomic_load_explicit(&exec.epoch, memory_order_acquire);
  if (shape->planned && shape->epoch == epoch && !policy->positional)
    return;
  struct b200_position position = {.step = b200_runtime_step(), .index = -1, .rank = exec.rank, .world = exec.world};
  b200_demoted demoted = b200_breaker_look(&exec.breaker, &facts->gemm);
  shape->plan = b200_decide(policy, facts, &position, demoted);
  if (shape->plan.cuts > 1 && facts->beta != B200_BETA_ZERO)
    shape->plan = (struct b200_plan){.wanted = shape->plan.wanted, .reason = B200_REASON_WORKSPACE};
  shape->epoch = epoch;
  shape->planned = true;
}

/* A format whose call could not be made is not tried again for this shape and role. */
static void remember_failure(const struct work *work, enum b200_reason reason) {
  enum b200_open why = reason == B200_REASON_BREAKER_HEURISTIC ? B200_OPEN_HEURISTIC : B200_OPEN_VENDOR;
  if (reason != B200_REASON_BREAKER_HEURISTIC && reason != B200_REASON_BREAKER_VENDOR)
    return;
  pthread_mutex_lock(&exec.breaker_lock);
  bool is_new = b200_breaker_fail(&exec.breaker, &work->call->facts.gemm, (enum b200_format)work->plan.format, why);
  pthread_mutex_unlock(&exec.breaker_lock);
  atomic_fetch_add_explicit(&exec.epoch, 1, memory_order_release);
  if (is_new)
    b200_runtime_guard(&work->call->facts.gemm, (enum b200_format)work->plan.format, b200_reason_names[reason], true);
}

static void observe(const struct work *work, const struct b200_facts *facts, struct b200_outcome *outcome) {
  static const int precisions[] = {B200_PRECISION_AUTO, B200_PRECISION_FP8, B200_PRECISION_MXFP8};
  struct b200_shape *shape = work->shape;
  for (int i = 0; i < 3 && !shape->planned; i++) {
    struct b200_position position = {.step = b200_runtime_step(), .index = -1, .rank = exec.rank, .world = exec.world};
    struct b200_plan plan = b200_decide_as(&work->gpu->policy, precisions[i], facts, &position, 0);
    shape->would[i] = plan.format;
    shape->would_reason[i] = plan.reason;
  }
  shape->planned = true;
  memcpy(outcome->would, shape->would, sizeof outcome->would);
  memcpy(outcome->would_reason, shape->would_reason, sizeof outcome->would_reason);
}

/* Finds what the call needs: vendor, GPU, shape. Otherwise the reason why it stays as it is. */
static enum b200_reason prepare(struct b200_thread *self, struct work *work, const struct b200_gemm_call *call,
                                struct b200_shape_key *key) {
  bool decides = b200_gemm_decides();
  const struct b200_gemm *gemm = &call->facts.gemm;
  work->vendor = b200_vendor_find();
  if (!work->vendor || self->shared)
    return B200_REASON_KERNELS;
  if (!mergeable(gemm, gemm->m, gemm->ta != 'N', call->facts.lda, call->facts.stride_a) ||
      !mergeable(gemm, gemm->n, gemm->tb == 'N', call->facts.ldb, call->facts.stride_b))
    key->facts.flags |= B200_CALL_UNSUPPORTED_KIND;
  if (decides && call->asked && (!call->known || !complete_facts(work, &key->facts)))
    return B200_REASON_BREAKER_VENDOR;
  work->gpu = b200_gpu_current(work->vendor, exec.config, !b200_runtime_is_capturing(), decides && may_convert(exec.config));
  if (!work->gpu)
    return work->capture ? B200_REASON_CAPTURE : B200_REASON_KERNELS;
  key->context = work->gpu->context;
  work->shape = b200_shapes_get(&self->shapes, work->vendor, key);
  return work->shape ? B200_REASON_CONVERTED : B200_REASON_NO_MEMORY;
}

bool b200_gemm_convert(struct b200_thread *self, const struct b200_gemm_call *call, struct b200_outcome *outcome) {
  struct work work = {.call = call};
  struct b200_shape_key key = {.facts = call->facts, .sm_target = call->sm_target, .forbids_reduced = call->forbids_reduced};
  memset(outcome, 0, sizeof *outcome);
  if (!exec.config)
    return false;
  enum b200_reason reason = prepare(self, &work, call, &key);
  outcome->reason = (uint8_t)reason;
  if (reason != B200_REASON_CONVERTED)
    return false;
  if (!b200_gemm_decides()) {
    observe(&work, &key.facts, outcome);
    outcome->reason = B200_REASON_OBSERVE;
    return false;
  }
  plan_shape(&work, work.shape, &key.facts);
  work.plan = work.shape->plan;
  outcome->wanted = work.plan.wanted;
  outcome->reason = work.plan.reason;
  if (work.plan.format == B200_FORMAT_NATIVE)
    return false;
  reason = !call->asked ? B200_REASON_KIND : !work.gpu->has_kernels ? B200_REASON_KERNELS : carry_out(&work);
  if (reason != B200_REASON_CONVERTED) {
    outcome->reason = (uint8_t)reason;
    remember_failure(&work, reason);
    return false;
  }
  outcome->format = work.plan.format;
  return true;
}
