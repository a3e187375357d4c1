/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/gemm.h"

#include <pthread.h>
#include <string.h>

#include "interpose/exec/arena.h"
#include "interpose/exec/convert.h"
#include "interpose/exec/selftest.h"
#include "interpose/runtime.h"
#include "policy/breaker.h"
#include "policy/ordinals.h"

/* The breaker's lock has its rank in runtime.h: the writer's may be taken while it is held, as one opens. Looking at the
 * breaker takes none. */
static struct {
  const struct b200_config *config;
  int rank, world;
  pthread_mutex_t breaker_lock;
  struct b200_breaker breaker;
  _Atomic uint64_t converted;
  struct b200_ordinals ordinals; /* only followed for rules that ask; under breaker_lock */
  _Atomic uint64_t epoch;        /* changes when the breaker's answers may */
} exec = {.breaker_lock = PTHREAD_MUTEX_INITIALIZER};

void b200_gemm_start(const struct b200_config *config, int rank, int world) {
  exec.config = config;
  exec.rank = rank;
  exec.world = world;
  b200_breaker_make(&exec.breaker, config->guard == B200_GUARD_STRICT ? 1 : (int)config->guard_strikes);
  b200_arena_limit(((uint64_t)config->workspace_mb << 20) + b200_convert_workspace_limit(90) + (2 << 20));
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

/* ------------------------------------------------------------------------------------------------------------ deciding */

/* True when several matrices of an operand can be looked at as one, lying one behind the other, or are one and the same. */
static bool mergeable(const struct b200_gemm *gemm, int64_t outer, bool k_fast, int64_t ld, int64_t stride) {
  return gemm->batch == 1 || stride == 0 || stride == ld * (k_fast ? outer : gemm->k);
}

/* What only shows now: is the stream captured, has the warm-up passed. False: the driver does not say. */
static bool complete_facts(struct b200_work *work, struct b200_facts *facts) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUresult asked = work->vendor->cuStreamGetCaptureInfo_v2((CUstream)work->call->stream, &status, &id, NULL, NULL, NULL);
  if (asked != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return false;
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
    work->capture = id;
  if (exec.config->warmup_steps > 0 && b200_runtime_step() < exec.config->warmup_steps)
    facts->flags |= B200_CALL_WARM_UP;
  return true;
}

static struct b200_position position_at(int64_t index) {
  return (struct b200_position){.step = b200_runtime_step(), .index = index, .rank = exec.rank, .world = exec.world};
}

/* Where in the job the call stands. */
static struct b200_position position_of(const struct b200_policy *policy, const struct b200_gemm *gemm) {
  int64_t index = -1;
  if (policy->asks_index) {
    pthread_mutex_lock(&exec.breaker_lock);
    index = b200_ordinals_next(&exec.ordinals, (enum b200_role)gemm->role);
    pthread_mutex_unlock(&exec.breaker_lock);
  }
  return position_at(index);
}

/* The plan of a shape: remembered, unless a rule asks where in the job the call stands, or the breaker has changed. */
static void plan_shape(const struct b200_work *work, struct b200_shape *shape, const struct b200_facts *facts) {
  const struct b200_policy *policy = &work->gpu->policy;
  uint64_t epoch = atomic_load_explicit(&exec.epoch, memory_order_acquire);
  if (shape->planned && shape->epoch == epoch && !policy->positional)
    return;
  struct b200_position position = position_of(policy, &facts->gemm);
  b200_demoted demoted = b200_breaker_look(&exec.breaker, &facts->gemm);
  shape->plan = b200_decide(policy, facts, &position, demoted);
  if (shape->plan.cuts > 1 && facts->beta != B200_BETA_ZERO)
    shape->plan = (struct b200_plan){.wanted = shape->plan.wanted, .reason = B200_REASON_WORKSPACE};
  shape->epoch = epoch;
  shape->planned = true;
}

/* A format whose call could not be made is not tried again for this shape and role; nor is any, after what belongs to all.
 */
static void remember_failure(const struct b200_gemm *gemm, enum b200_format format, enum b200_reason reason) {
  bool heuristic = reason == B200_REASON_BREAKER_HEURISTIC;
  bool is_new = false;
  if (!heuristic && reason != B200_REASON_BREAKER_VENDOR)
    return;
  pthread_mutex_lock(&exec.breaker_lock);
  for (enum b200_format each = B200_FORMAT_FP8; each < B200_FORMAT_COUNT; each++)
    if (format == B200_FORMAT_NATIVE || format == each)
      is_new |= b200_breaker_fail(&exec.breaker, gemm, each, heuristic ? B200_OPEN_HEURISTIC : B200_OPEN_VENDOR);
  pthread_mutex_unlock(&exec.breaker_lock);
  atomic_fetch_add_explicit(&exec.epoch, 1, memory_order_release);
  if (is_new && format != B200_FORMAT_NATIVE)
    b200_runtime_guard(gemm, format, heuristic ? "heuristic" : "vendor", true);
}

/* ------------------------------------------------------------------------------------------------------------ watching */

/* Of the converted calls of a shape, the first and then each of so many is looked at: every other step of a model of 32
   layers. */
enum { GUARD_EVERY = 64 };

static const char *const verdicts[] = {
    [B200_VERDICT_STARVED] = "starved", [B200_VERDICT_ERROR] = "error", [B200_VERDICT_NONFINITE] = "nonfinite"};

static void take_guard(const struct b200_gemm *gemm, enum b200_format format, const struct b200_guard_sample *a,
                       const struct b200_guard_sample *b, const struct b200_guard_shadow *shadow) {
  enum b200_verdict verdict = b200_guard_verdict(format, (enum b200_role)gemm->role, a, b, shadow);
  pthread_mutex_lock(&exec.breaker_lock);
  b200_breaker_sample(&exec.breaker, gemm, format, verdict);
  pthread_mutex_unlock(&exec.breaker_lock);
  if (verdict != B200_VERDICT_GOOD)
    b200_runtime_bad_sample(gemm, format, verdicts[verdict]);
}

static const struct b200_watch_sink sink = {.guard = take_guard, .audit = b200_runtime_audit};

static void told(void *context, const struct b200_gemm *gemm, enum b200_format format, bool applied) {
  (void)context;
  b200_runtime_guard(gemm, format, "guard", applied);
}

void b200_gemm_step(void) {
  if (!exec.config)
    return;
  pthread_mutex_lock(&exec.breaker_lock);
  b200_ordinals_step(&exec.ordinals);
  bool any = exec.breaker.pending > 0;
  if (any)
    b200_breaker_step(&exec.breaker, exec.world <= 1, told, NULL);
  pthread_mutex_unlock(&exec.breaker_lock);
  if (any)
    atomic_fetch_add_explicit(&exec.epoch, 1, memory_order_release);
}

/* Whether this call is looked at; `out` is filled then. */
static bool pick_sample(const struct b200_work *work, struct b200_shape *shape, struct b200_sample *out) {
  const struct b200_config *config = exec.config;
  uint32_t calls = shape->calls++;
  if (work->capture || (config->guard == B200_GUARD_OFF && config->audit_every == 0))
    return false;
  bool audit = config->audit_every > 0 &&
               atomic_fetch_add_explicit(&exec.converted, 1, memory_order_relaxed) % (uint64_t)config->audit_every == 0;
  bool guard = config->guard != B200_GUARD_OFF && calls % GUARD_EVERY == 0;
  return (audit || guard) && b200_watch_begin(out, work->vendor, work->gpu, work->call, calls, audit,
                                              audit ? &shape->audit_reference : &shape->guard_reference);
}

static void observe(const struct b200_work *work, struct b200_shape *shape, const struct b200_facts *facts,
                    struct b200_outcome *outcome) {
  static const int precisions[] = {B200_PRECISION_AUTO, B200_PRECISION_FP8, B200_PRECISION_MXFP8};
  for (int i = 0; i < 3 && !shape->planned; i++) {
    struct b200_position position = position_at(-1); /* it is asked once a shape: not followed */
    struct b200_plan plan = b200_decide_as(&work->gpu->policy, precisions[i], facts, &position, 0);
    shape->would[i] = plan.format;
    shape->would_reason[i] = plan.reason;
  }
  shape->planned = true;
  memcpy(outcome->would, shape->would, sizeof outcome->would);
  memcpy(outcome->would_reason, shape->would_reason, sizeof outcome->would_reason);
}

/* The self-test of this GPU, by the first thread that comes; it takes a moment (selftest.h). */
static bool is_tested(const struct b200_work *work) {
  enum { UNTESTED, TESTING, TESTED };
  int state = atomic_load_explicit(&work->gpu->tested, memory_order_acquire);
  if (state == TESTED)
    return true;
  if (state == TESTING || b200_runtime_is_capturing() ||
      !atomic_compare_exchange_strong(&work->gpu->tested, &state, TESTING))
    return false;
  if (work->gpu->has_kernels)
    work->gpu->passed = b200_selftest(work->vendor, work->gpu, work->call->handle, (uint8_t)exec.config->mx_round);
  atomic_store_explicit(&work->gpu->tested, TESTED, memory_order_release);
  return true;
}

/* Finds what the call needs: vendor, GPU, shape. Otherwise the reason why it stays as it is. */
static enum b200_reason prepare(struct b200_thread *self, struct b200_work *work, struct b200_shape_key *key,
                                struct b200_shape **shape) {
  const struct b200_gemm_call *call = work->call;
  const struct b200_gemm *gemm = &call->facts.gemm;
  bool decides = b200_gemm_decides();
  work->vendor = b200_vendor_find();
  if (!work->vendor || self->shared)
    return B200_REASON_KERNELS;
  if (!mergeable(gemm, gemm->m, gemm->ta != 'N', call->facts.lda, call->facts.stride_a) ||
      !mergeable(gemm, gemm->n, gemm->tb == 'N', call->facts.ldb, call->facts.stride_b))
    key->facts.flags |= B200_CALL_UNSUPPORTED_KIND;
  if (work->vendor->cuCtxGetCurrent(&key->context) != CUDA_SUCCESS)
    return B200_REASON_BREAKER_VENDOR;
  if (decides && call->asked && (!call->known || !complete_facts(work, &key->facts)))
    return B200_REASON_BREAKER_VENDOR;
  work->gpu = b200_gpu_of(key->context, work->vendor, exec.config, !b200_runtime_is_capturing(),
                          decides && may_convert(exec.config));
  if (!work->gpu)
    return work->capture ? B200_REASON_CAPTURE : B200_REASON_KERNELS;
  *shape = b200_shapes_get(&self->shapes, work->vendor, key);
  return *shape ? B200_REASON_CONVERTED : B200_REASON_NO_MEMORY;
}

/* Why the plan cannot be tried at all. */
static enum b200_reason obstacle(const struct b200_work *work) {
  if (!work->call->asked)
    return B200_REASON_KIND;
  if (!work->gpu->has_kernels)
    return B200_REASON_KERNELS;
  if (!is_tested(work))
    return work->capture ? B200_REASON_CAPTURE : B200_REASON_SELF_TEST;
  return work->gpu->passed & 1u << work->plan.format ? B200_REASON_CONVERTED : B200_REASON_SELF_TEST;
}

bool b200_gemm_convert(struct b200_thread *self, const struct b200_gemm_call *call, struct b200_outcome *outcome) {
  struct b200_work work = {.call = call};
  struct b200_shape_key key = {.facts = call->facts, .sm_target = call->sm_target, .forbids_reduced = call->forbids_reduced};
  struct b200_shape *shape = NULL;
  memset(outcome, 0, sizeof *outcome);
  if (!exec.config)
    return false;
  enum b200_reason reason = prepare(self, &work, &key, &shape);
  outcome->reason = b200_gemm_decides() ? (uint8_t)reason : B200_REASON_OBSERVE;
  if (reason != B200_REASON_CONVERTED && b200_gemm_decides())
    remember_failure(&call->facts.gemm, B200_FORMAT_NATIVE, reason);
  if (reason != B200_REASON_CONVERTED)
    return false;
  if (!b200_gemm_decides()) {
    observe(&work, shape, &key.facts, outcome);
    return false;
  }
  if (!b200_runtime_is_capturing())
    b200_watch_poll(work.vendor, &sink);
  plan_shape(&work, shape, &key.facts);
  work.plan = shape->plan;
  outcome->wanted = work.plan.wanted;
  outcome->reason = work.plan.reason;
  if (work.plan.format == B200_FORMAT_NATIVE)
    return false;
  work.conversion = &shape->conversions[work.plan.format - 1];
  work.mx_rounding = (uint8_t)exec.config->mx_round;
  struct b200_sample sample;
  reason = obstacle(&work);
  if (reason == B200_REASON_CONVERTED && pick_sample(&work, shape, &sample))
    work.sample = &sample;
  if (reason == B200_REASON_CONVERTED)
    reason = b200_convert(&work);
  if (reason != B200_REASON_CONVERTED) {
    outcome->reason = (uint8_t)reason;
    remember_failure(&call->facts.gemm, (enum b200_format)work.plan.format, reason);
    return false;
  }
  outcome->format = work.plan.format;
  return true;
}
_Static_assert(B200_MX_RCEIL == (int)B200_MX_ROUND_RCEIL && B200_MX_FLOOR == (int)B200_MX_ROUND_FLOOR &&
                   B200_MX_EVEN == (int)B200_MX_ROUND_EVEN,
               "one list");
