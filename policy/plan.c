/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision, in the order of reasons.def. What cuBLASLt takes is stated once here, in the functions named *_reason; where
 * documentation and observation leave room, the narrower reading is taken: a call that is not converted is right.
 *
 * Operands are quantised into buffers of our own, with leading dimensions of our own (multiples of 16, addresses of 256).
 * Hence the source's leading dimensions, strides and addresses play no part, and of cuBLASLt's rules there remain:
 *   k            FP8 % 16 (observed), MXFP8 % 32 (whole blocks: by policy)
 *   rows of D    m · sizeof(D) % 16, ldd and ldc likewise, D, C and bias at multiples of 16 bytes (observed)
 *   n            anything when B is K-major (observed: 1, 17, 127)
 *   m, n         % 16 when they are the contiguous dimension of a quantised operand, i.e. when A is not K-major (op N) or B
 * is not (op T), which only 10.x takes. No run confirmed less: FP8 is transposed to TN then, where n is free; MXFP8, whose
 * blocks cannot be transposed afterwards, is declined
 */
#include "policy/plan.h"

#include "policy/cost.h"
#include "policy/rules.h"

#include <string.h>

#define NAME(id, name) name,
const char *const b200_format_names[B200_FORMAT_COUNT] = {B200_FORMATS(NAME)};
#undef NAME
const char *const b200_reason_names[B200_REASON_COUNT] = {
#define B200_REASON(id, name, help) name,
#include "policy/reasons.def"
#undef B200_REASON
};
const char *const b200_reason_help[B200_REASON_COUNT] = {
#define B200_REASON(id, name, help) help,
#include "policy/reasons.def"
#undef B200_REASON
};

/* Nothing stands against it. */
#define NO_REASON B200_REASON_CONVERTED

void b200_policy_make(struct b200_policy *out, const struct b200_config *config, const struct b200_device *device,
                      char *complaint, size_t complaint_size) {
  memset(out, 0, sizeof(*out));
  out->device = *device;
  out->cost_row = b200_cost_row(device);
  b200_rules_load(config, out->rules, B200_RULES_MAX, &out->rule_count, complaint, complaint_size);
  out->positional = b200_rules_positional(out->rules, out->rule_count);
  out->asks_index = b200_rules_ask_index(out->rules, out->rule_count);
  out->precision = config->precision;
  out->strategy = config->strategy;
  out->role_precision[B200_ROLE_FPROP] = config->fprop;
  out->role_precision[B200_ROLE_DGRAD] = config->dgrad;
  out->role_precision[B200_ROLE_WGRAD] = config->wgrad;
  out->grad_format = config->fp8_grad_format;
  out->workspace_bytes = config->workspace_mb << 20;
  out->margin = 1.03;
}

/* ---- what the call is */

static bool is_narrow(uint8_t type) {
  return type == B200_ELEMENT_E4M3 || type == B200_ELEMENT_E5M2 || type == B200_ELEMENT_E2M1;
}

static bool is_wide(uint8_t type) {
  return type == B200_ELEMENT_F32 || type == B200_ELEMENT_F64;
}

/* Why no format can have this call. */
static enum b200_reason kind_reason(const struct b200_facts *facts) {
  const struct b200_gemm *gemm = &facts->gemm;
  uint8_t bias = gemm->d == B200_ELEMENT_F16 ? B200_ELEMENT_F16 : B200_ELEMENT_BF16;
  if (facts->flags & B200_CALL_WARM_UP)
    return B200_REASON_WARM_UP;
  if (facts->flags & B200_CALL_NARROW || is_narrow(gemm->a) || is_narrow(gemm->b))
    return B200_REASON_ALREADY_NARROW;
  if (gemm->api == B200_API_TYPED || gemm->api == B200_API_BATCHED)
    return B200_REASON_API;
  if (facts->flags & B200_CALL_UNSUPPORTED_KIND)
    return B200_REASON_KIND;
  if (is_wide(gemm->a) || is_wide(gemm->b))
    return B200_REASON_FP32;
  if ((gemm->a != B200_ELEMENT_BF16 && gemm->a != B200_ELEMENT_F16) || gemm->b != gemm->a ||
      (gemm->d != gemm->a && gemm->d != B200_ELEMENT_F32))
    return B200_REASON_DTYPE;
  if (gemm->compute != B200_COMPUTE_F32)
    return B200_REASON_COMPUTE_TYPE;
  if (!(facts->flags & B200_CALL_ALPHA_DEVICE) != (facts->beta != B200_BETA_DEVICE))
    return B200_REASON_POINTER_MODE;
  if (gemm->epilogue == B200_EPILOGUE_OTHER)
    return B200_REASON_EPILOGUE;
  if (b200_epilogue_has_bias(gemm->epilogue) && facts->bias != bias)
    return B200_REASON_BIAS;
  if (facts->beta != B200_BETA_ZERO && facts->c != gemm->d)
    return B200_REASON_BETA;
  return NO_REASON;
}

/* ---- what the GPU and cuBLASLt take */

static bool is_datacenter_blackwell(int cc) {
  return cc >= 100 && cc < 110;
}

/* Oldest cuBLASLt for a format. FP8 on 8.9 and 9.0: as observed with 12.4; what is older was not asked. Blackwell, and block
   scales: 12.8 [doc]; 10.3: 12.9, the first CUDA that knows it. */
static uint32_t oldest_cublaslt(int cc) {
  return cc < 100 ? 120400 : cc == 103 ? 120900 : 120800;
}

static enum b200_reason arch_reason(const struct b200_device *device, enum b200_format format) {
  /* 8.9, 9.0, 10.x and 12.x; 11.0 has not been looked at. MXFP8 on 12.x is TN only, and is declined. */
  int cc = device->cc;
  bool fp8 = cc == 89 || cc == 90 || is_datacenter_blackwell(cc) || (cc >= 120 && cc < 130);
  if (!(format == B200_FORMAT_MXFP8 ? is_datacenter_blackwell(cc) : fp8))
    return B200_REASON_ARCH;
  return device->cublaslt_version < oldest_cublaslt(cc) ? B200_REASON_CUBLAS_VERSION : NO_REASON;
}

/* Whether FP8 operands have to be made K-major: by hardware, or by a contiguous dimension that is not a multiple of 16. */
static bool needs_tn(const struct b200_device *device, const struct b200_gemm *gemm) {
  return !is_datacenter_blackwell(device->cc) || (gemm->ta == 'N' && gemm->m % 16) || (gemm->tb != 'N' && gemm->n % 16);
}

static enum b200_reason shape_reason(const struct b200_facts *facts, enum b200_format format) {
  const struct b200_gemm *gemm = &facts->gemm;
  int64_t d_bytes = (int64_t)b200_element_bytes((enum b200_element)gemm->d), block = format == B200_FORMAT_MXFP8 ? 32 : 16;
  bool reads_c = facts->beta != B200_BETA_ZERO;
  if (format == B200_FORMAT_MXFP8 && gemm->batch != 1)
    return B200_REASON_BATCH;
  if (gemm->m <= 0 || gemm->n <= 0 || gemm->k <= 0 || gemm->batch <= 0 || gemm->k % block || gemm->m % 16 * d_bytes % 16)
    return B200_REASON_DIMS;
  if (format == B200_FORMAT_MXFP8 && ((gemm->ta == 'N' && gemm->m % 16) || (gemm->tb != 'N' && gemm->n % 16)))
    return B200_REASON_DIMS;
  if (facts->ldd % 16 * d_bytes % 16 || (reads_c && facts->ldc % 16 * d_bytes % 16) ||
      (gemm->batch != 1 && facts->stride_d % 16 * d_bytes % 16))
    return B200_REASON_LD;
  if (facts->align_d < 4 || (reads_c && facts->align_c < 4) ||
      (b200_epilogue_has_bias(gemm->epilogue) && facts->align_bias < 4))
    return B200_REASON_ALIGNMENT;
  return NO_REASON;
}

static enum b200_reason breaker_reason(b200_demoted demoted, enum b200_format format) {
  switch (b200_demoted_why(demoted, format)) {
  case B200_OPEN_NO:
    break;
  case B200_OPEN_GUARD:
    return B200_REASON_BREAKER_GUARD;
  case B200_OPEN_HEURISTIC:
    return B200_REASON_BREAKER_HEURISTIC;
  case B200_OPEN_VENDOR:
    return B200_REASON_BREAKER_VENDOR;
  }
  return NO_REASON;
}

/* Why this format cannot have the call. */
static enum b200_reason format_reason(const struct b200_policy *policy, const struct b200_facts *facts,
                                      enum b200_format format, b200_demoted demoted) {
  enum b200_reason reason = arch_reason(&policy->device, format);
  if (reason == NO_REASON)
    reason = shape_reason(facts, format);
  return reason == NO_REASON ? breaker_reason(demoted, format) : reason;
}

/* ---- what is wanted */

struct wish {
  enum b200_action action; /* not INHERIT */
  enum b200_reason native; /* the reason when it is NATIVE */
};

/* B200_PRECISION_* and B200_ROLE_* as actions; OBSERVE and INHERIT do not get here. */
static enum b200_action precision_action(int precision) {
  static const enum b200_action actions[] = {
      [B200_PRECISION_NATIVE] = B200_ACTION_NATIVE,
      [B200_PRECISION_AUTO] = B200_ACTION_AUTO,
      [B200_PRECISION_FP8] = B200_ACTION_FP8,
      [B200_PRECISION_MXFP8] = B200_ACTION_MXFP8,
  };
  return actions[precision];
}
_Static_assert(B200_ROLE_NATIVE == (int)B200_PRECISION_NATIVE && B200_ROLE_AUTO == (int)B200_PRECISION_AUTO &&
                   B200_ROLE_FP8 == (int)B200_PRECISION_FP8 && B200_ROLE_MXFP8 == (int)B200_PRECISION_MXFP8,
               "one table for both");

static struct wish wish_for(const struct b200_policy *policy, int precision, const struct b200_facts *facts,
                            const struct b200_position *position) {
  uint8_t role = facts->gemm.role;
  if (policy->asks_index && role <= B200_ROLE_WGRAD && (!position || position->index < 0))
    return (struct wish){B200_ACTION_NATIVE, B200_REASON_UNPLACED};
  const struct b200_rule *rule = b200_rules_match(policy->rules, policy->rule_count, facts, position);
  if (rule && rule->action != B200_ACTION_INHERIT)
    return (struct wish){(enum b200_action)rule->action, B200_REASON_RULE};
  if (role <= B200_ROLE_WGRAD && policy->role_precision[role] != B200_ROLE_INHERIT)
    return (struct wish){precision_action(policy->role_precision[role]), B200_REASON_ROLE_SETTING};
  return (struct wish){precision_action(precision), B200_REASON_PRECISION_NATIVE};
}

/* ---- the plan */

/* Products of dimensions that no memory could hold stay at the largest number. */
static uint64_t saturating_multiply(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 4 : product < UINT64_MAX / 4 ? product : UINT64_MAX / 4;
}

uint64_t b200_quantised_bytes(enum b200_format format, int64_t outer, int64_t k) {
  if (format == B200_FORMAT_NATIVE || outer <= 0 || k <= 0)
    return 0;
  /* The fast dimension is rounded up to 16; which one that is, is not asked: both are. */
  uint64_t data = saturating_multiply(b200_round_up((uint64_t)outer, 16), b200_round_up((uint64_t)k, 16)), scales = 256;
  if (format == B200_FORMAT_MXFP8)
    scales = saturating_multiply(b200_round_up((uint64_t)outer, 128), b200_round_up(b200_round_up((uint64_t)k, 32) / 32, 4));
  return b200_round_up(data, 256) + b200_round_up(scales, 256);
}

/* Cuts the longer of m and n until one piece of its operand and the whole of the other fit; the shorter one's operand is the
   smaller, as k is common. False when that takes too many pieces, or there is more than one matrix. */
static bool fit_workspace(struct b200_plan *plan, const struct b200_gemm *gemm, uint64_t room) {
  enum b200_format format = (enum b200_format)plan->format;
  plan->cut_rows = gemm->m > gemm->n;
  plan->cuts = 1;
  int64_t length = plan->cut_rows ? gemm->m : gemm->n;
  uint64_t kept = b200_quantised_bytes(format, plan->cut_rows ? gemm->n : gemm->m, gemm->k);
  uint64_t both = kept + b200_quantised_bytes(format, length, gemm->k);
  if (both <= room && (gemm->batch == 1 || both <= room / (uint64_t)gemm->batch))
    return true;
  uint64_t tile = b200_quantised_bytes(format, 128, gemm->k), next = b200_quantised_bytes(format, 256, gemm->k) - tile;
  if (gemm->batch != 1 || kept > room || tile > room - kept)
    return false;
  uint64_t piece = 128 * (1 + (room - kept - tile) / next), cuts = ((uint64_t)length + piece - 1) / piece;
  if (cuts > B200_CUTS_MAX)
    return false;
  /* Pieces of whole tiles, all alike: there may be fewer than that. */
  piece = (uint64_t)b200_cut_length(length, (uint32_t)cuts);
  plan->cuts = (uint32_t)(((uint64_t)length + piece - 1) / piece);
  return true;
}

static struct b200_plan native(enum b200_format wanted, enum b200_reason reason) {
  return (struct b200_plan){.format = B200_FORMAT_NATIVE, .wanted = (uint8_t)wanted, .reason = (uint8_t)reason, .cuts = 1};
}

static void estimate(const struct b200_policy *policy, const struct b200_gemm *gemm, double waves, struct b200_plan *plan) {
  enum b200_format format = (enum b200_format)plan->format;
  plan->tn = format == B200_FORMAT_FP8 && needs_tn(&policy->device, gemm);
  plan->narrow_ns = (float)b200_cost_narrow_ns(policy->cost_row, policy->device.sms, gemm, format, plan->tn, waves);
}

/* Steps 8 and 9, and what the format means for the operands. */
static struct b200_plan convert(const struct b200_policy *policy, const struct b200_gemm *gemm, double waves,
                                struct b200_plan plan) {
  plan.native_ns = (float)b200_cost_native_ns(policy->cost_row, policy->device.sms, gemm, waves);
  bool gradient = gemm->role == B200_ROLE_DGRAD || gemm->role == B200_ROLE_WGRAD; /* B is dY */
  struct b200_plan left = native((enum b200_format)plan.wanted, B200_REASON_TOO_SLOW);
  left.native_ns = plan.native_ns;
  left.narrow_ns = plan.narrow_ns;
  if (policy->strategy == B200_STRATEGY_PERFORMANT &&
      !(plan.narrow_ns > 0 && (double)plan.native_ns >= policy->margin * (double)plan.narrow_ns))
    return left;
  left.reason = B200_REASON_WORKSPACE;
  if (!fit_workspace(&plan, gemm, (uint64_t)policy->workspace_bytes))
    return left;
  plan.a = B200_ELEMENT_E4M3;
  plan.b = plan.format == B200_FORMAT_FP8 && gradient && policy->grad_format == B200_GRAD_E5M2 ? B200_ELEMENT_E5M2
                                                                                               : B200_ELEMENT_E4M3;
  plan.fast_accumulate = plan.format == B200_FORMAT_FP8 && gemm->role == B200_ROLE_FPROP;
  return plan;
}

/* The format asked for, or MXFP8 where the guard took FP8 away. */
static struct b200_plan decide_format(const struct b200_policy *policy, const struct b200_facts *facts,
                                      enum b200_format format, b200_demoted demoted) {
  struct b200_plan plan = {.format = (uint8_t)format, .wanted = (uint8_t)format, .reason = B200_REASON_CONVERTED};
  enum b200_reason reason = format_reason(policy, facts, format, demoted);
  if (reason == B200_REASON_BREAKER_GUARD && format == B200_FORMAT_FP8 &&
      format_reason(policy, facts, B200_FORMAT_MXFP8, demoted) == NO_REASON) {
    plan.format = B200_FORMAT_MXFP8;
    plan.reason = B200_REASON_DEMOTED;
  } else if (reason != NO_REASON) {
    return native(format, reason);
  }
  double waves = b200_cost_waves(policy->cost_row, policy->device.sms, &facts->gemm);
  estimate(policy, &facts->gemm, waves, &plan);
  return convert(policy, &facts->gemm, waves, plan);
}

/* The fastest of the formats that are left; without one, the reason of the format that got furthest. */
static struct b200_plan decide_auto(const struct b200_policy *policy, const struct b200_facts *facts, b200_demoted demoted) {
  struct b200_plan best = native(B200_FORMAT_NATIVE, B200_REASON_OFF);
  double waves = b200_cost_waves(policy->cost_row, policy->device.sms, &facts->gemm);
  for (enum b200_format format = B200_FORMAT_FP8; format < B200_FORMAT_COUNT; format++) {
    struct b200_plan plan = {.format = (uint8_t)format, .wanted = (uint8_t)format, .reason = B200_REASON_CONVERTED};
    enum b200_reason reason = format_reason(policy, facts, format, demoted);
    if (reason != NO_REASON)
      plan = native(format, reason);
    else
      estimate(policy, &facts->gemm, waves, &plan);
    if (plan.reason > best.reason || (plan.reason == B200_REASON_CONVERTED && plan.narrow_ns < best.narrow_ns))
      best = plan;
  }
  return best.reason == B200_REASON_CONVERTED ? convert(policy, &facts->gemm, waves, best) : best;
}

struct b200_plan b200_decide_as(const struct b200_policy *policy, int precision, const struct b200_facts *facts,
                                const struct b200_position *position, b200_demoted demoted) {
  if (precision == B200_PRECISION_OBSERVE)
    return native(B200_FORMAT_NATIVE, B200_REASON_OBSERVE);
  enum b200_reason reason = kind_reason(facts);
  struct wish wish = wish_for(policy, precision, facts, position);
  switch (wish.action) {
  case B200_ACTION_FP8:
    return reason == NO_REASON ? decide_format(policy, facts, B200_FORMAT_FP8, demoted) : native(B200_FORMAT_FP8, reason);
  case B200_ACTION_MXFP8:
    return reason == NO_REASON ? decide_format(policy, facts, B200_FORMAT_MXFP8, demoted)
                               : native(B200_FORMAT_MXFP8, reason);
  case B200_ACTION_AUTO:
    return reason == NO_REASON ? decide_auto(policy, facts, demoted) : native(B200_FORMAT_NATIVE, reason);
  case B200_ACTION_NATIVE:
  case B200_ACTION_INHERIT:
    break;
  }
  return native(B200_FORMAT_NATIVE, reason == NO_REASON ? wish.native : reason);
}

struct b200_plan b200_decide(const struct b200_policy *policy, const struct b200_facts *facts,
                             const struct b200_position *position, b200_demoted demoted) {
  return b200_decide_as(policy, policy->precision, facts, position, demoted);
}

/* ---- equal on all ranks */

static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  for (size_t i = 0; i < size; i++)
    hash = (hash ^ at[i]) * UINT64_C(1099511628211);
  return hash;
}

uint64_t b200_decision_hash(uint64_t hash, const struct b200_facts *facts, const struct b200_plan *plan) {
  /* Addresses, and with them alignments, may differ between ranks as long as the answer does not. */
  const uint8_t answer[] = {plan->format, plan->wanted, plan->reason,          plan->a,
                            plan->b,      plan->tn,     plan->fast_accumulate, plan->cut_rows};
  hash = fnv1a(hash, &facts->gemm, sizeof(facts->gemm));
  hash = fnv1a(hash, answer, sizeof(answer));
  return fnv1a(hash, &plan->cuts, sizeof(plan->cuts));
}
