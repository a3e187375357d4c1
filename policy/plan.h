/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done with a GEMM, and why: the decision of b200opt, a pure function of the call's facts, the configuration, the
 * GPU and the breaker's state. Same inputs, same answer, on every rank.
 *
 * GEMM terms are cuBLAS's, column-major: D[m×n] = alpha · op(A)[m×k] · op(B)[k×n] + beta · C (+ bias, activation).
 * Nothing here allocates on the decision path, locks, reads a clock or a vendor's header.
 */
#ifndef B200_POLICY_PLAN_H
#define B200_POLICY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/call.h"
#include "policy/config.h"

/* X(enum suffix, name in rules, log and reports) */
#define B200_FORMATS(X) X(NATIVE, "native") X(FP8, "fp8") X(MXFP8, "mxfp8")
#define B200_ENUM_FORMAT(id, name) B200_FORMAT_##id,
enum b200_format { B200_FORMATS(B200_ENUM_FORMAT) B200_FORMAT_COUNT };
extern const char *const b200_format_names[B200_FORMAT_COUNT];

/* GEMMs that the library makes for itself, in the original precision, and that are in no log: references of sampled calls
   have at most so many columns, those of the self-test this shape. */
enum { B200_REFERENCE_COLUMNS = 64, B200_SELFTEST_M = 272, B200_SELFTEST_N = 144, B200_SELFTEST_K = 288 };

/* Why a call is as it is: one row each in reasons.def, in the order of decision; exactly one applies to every call. */
enum b200_reason {
#define B200_REASON(id, name, help) B200_REASON_##id,
#include "policy/reasons.def"
#undef B200_REASON
  B200_REASON_COUNT
};
extern const char *const b200_reason_names[B200_REASON_COUNT];
extern const char *const b200_reason_help[B200_REASON_COUNT];

/* What beta is, as far as the host knows it. */
enum b200_beta { B200_BETA_ZERO, B200_BETA_ONE, B200_BETA_OTHER, B200_BETA_DEVICE };

enum b200_call_flags {
  B200_CALL_NARROW = 1,           /* an operand is FP8 or FP4 already */
  B200_CALL_UNSUPPORTED_KIND = 2, /* row order, pointer-array batch, planar, an attribute that we do not carry over */
  B200_CALL_ALPHA_DEVICE = 4,     /* pointer mode device */
  B200_CALL_WARM_UP = 8,          /* the step is below B200OPT_WARMUP_STEPS */
};

/* One GEMM call as the decision sees it. Every byte is set: compared and hashed bytewise. */
struct b200_facts {
  struct b200_gemm gemm;
  int64_t lda, ldb, ldc, ldd;           /* elements */
  int64_t stride_a, stride_b, stride_d; /* elements between the batch's matrices; 0 for batch 1 */
  uint8_t c, bias;                      /* element types; B200_ELEMENT_OTHER: none */
  uint8_t beta;                         /* enum b200_beta */
  uint8_t align_a, align_b, align_c, align_d,
      align_bias; /* log2 of the largest power of two ≤ 256 that divides the address */
  uint16_t flags; /* enum b200_call_flags */
  uint8_t zero[6];
};
_Static_assert(sizeof(struct b200_facts) == 120, "no padding: compared bytewise");

/* Where in the job a call stands; only rules that ask for it look here. */
struct b200_position {
  int64_t step;  /* 0-based; -1: no step has been found yet */
  int64_t index; /* ordinal of the GEMM of its role within the step; the same when a forward is recomputed */
  int32_t rank, world;
};

/* The GPU and the libraries that carry the plan out. */
struct b200_device {
  int cc;                    /* compute capability · 10: 80, 89, 90, 100, 103, 120 */
  int sms;                   /* multiprocessors */
  uint32_t cublaslt_version; /* as cublasLtGetVersion: 120803, 130401 */
  char name[64];             /* "NVIDIA B200": picks the row of gpus in the cost model */
};

/* The decision. For NATIVE, `wanted` says which format was asked for before something stood against it. */
struct b200_plan {
  uint8_t format, wanted;     /* enum b200_format */
  uint8_t reason;             /* enum b200_reason */
  uint8_t a, b;               /* element types to quantise to: E4M3 or E5M2 */
  uint8_t tn;                 /* 1: both operands have to be made K-major (TN) */
  uint8_t fast_accumulate;    /* 1: FAST_ACCUM may be set */
  uint8_t cut_rows;           /* 1: cut along m (rows of D, A in pieces); 0: along n (columns of D, B in pieces) */
  uint32_t cuts;              /* pieces, b200_cut_length() of the cut dimension each but the last; 1: whole */
  float native_ns, narrow_ns; /* the cost model's times for the whole call; 0: not asked */
};

/* The compiled configuration. Owned by the caller, const after b200_policy_make(); holds no pointer to elsewhere. */
#define B200_RULES_MAX 64
#define B200_TERMS_MAX 8
struct b200_term {
  uint8_t key, compare; /* of rules.c */
  uint8_t zero[6];
  int64_t value;
};
struct b200_rule {
  struct b200_term terms[B200_TERMS_MAX];
  uint8_t term_count;
  uint8_t action; /* enum b200_action */
};
enum b200_action { B200_ACTION_NATIVE, B200_ACTION_FP8, B200_ACTION_MXFP8, B200_ACTION_AUTO, B200_ACTION_INHERIT };
struct b200_policy {
  struct b200_device device;
  struct b200_rule rules[B200_RULES_MAX];
  int rule_count;
  bool positional; /* some rule asks for step, index or rank: a decision may not be remembered by shape alone */
  bool asks_index; /* … for the index */
  int precision, strategy, role_precision[3], grad_format;
  int cost_row; /* of the device, in cost.def */
  int64_t workspace_bytes;
  double margin; /* `performant` converts from this predicted ratio on: 1.03 */
};

/* Compiles what `config` says. A rule text that is wrong leaves no rule in place and one line in `complaint` (with the
   column, and what was accepted there); otherwise complaint[0] is 0. */
void b200_policy_make(struct b200_policy *out, const struct b200_config *config, const struct b200_device *device,
                      char *complaint, size_t complaint_size);

/* Rules from text ("out>=32000:bf16; role=wgrad,k<4096:native; *:inherit"). Total: rules, or false and one line. */
bool b200_rules_parse(const char *text, struct b200_rule *rules, int capacity, int *count, char *complaint, size_t size);

/* Which formats a shape must not take, and why: two bits for each enum b200_format, of enum b200_open. 0: all allowed. */
typedef uint8_t b200_demoted;
enum b200_open { B200_OPEN_NO, B200_OPEN_GUARD, B200_OPEN_HEURISTIC, B200_OPEN_VENDOR };
static inline enum b200_open b200_demoted_why(b200_demoted demoted, enum b200_format format) {
  return (enum b200_open)(demoted >> (2 * format) & 3);
}
static inline b200_demoted b200_demote(b200_demoted demoted, enum b200_format format, enum b200_open why) {
  return (b200_demoted)((demoted & ~(3u << (2 * format))) | (unsigned)why << (2 * format));
}

/* The decision. `position` may be NULL when the policy is not positional. */
struct b200_plan b200_decide(const struct b200_policy *policy, const struct b200_facts *facts,
                             const struct b200_position *position, b200_demoted demoted);

/* The same as if B200OPT_PRECISION were `precision` (one of config.h's): what `observe` and `lint` report. */
struct b200_plan b200_decide_as(const struct b200_policy *policy, int precision, const struct b200_facts *facts,
                                const struct b200_position *position, b200_demoted demoted);

/* No plan has more pieces than this; FP8's scale is that of the whole operand in any case. */
#define B200_CUTS_MAX 64

/* Length of every piece but the last of a dimension cut into `cuts`: a multiple of 128 (tiles of scales, rows of D). */
static inline int64_t b200_cut_length(int64_t length, uint32_t cuts) {
  return cuts <= 1 ? length : ((length + cuts - 1) / cuts + 127) & ~INT64_C(127);
}

/* The next multiple of `unit` > 0. */
static inline uint64_t b200_round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/* Bytes of a quantised operand of `outer` rows and k columns: data, then (MXFP8) its scales in tiles; each part starts at a
   multiple of 256 bytes. FP8: the scale and its inverse, 256 bytes. */
uint64_t b200_quantised_bytes(enum b200_format format, int64_t outer, int64_t k);

/* Cost model: nanoseconds on the device of the policy. Sources and errors: cost.def. */
double b200_cost_native(const struct b200_device *device, const struct b200_gemm *gemm);
double b200_cost_narrow(const struct b200_device *device, const struct b200_gemm *gemm, enum b200_format format);
/* Of which the quantisation of both operands. */
double b200_cost_quantise(const struct b200_device *device, const struct b200_gemm *gemm, enum b200_format format);

/* FNV-1a, from `hash` on, over the GEMM and its plan; ranks that decide alike get equal values, whatever their addresses. */
uint64_t b200_decision_hash(uint64_t hash, const struct b200_facts *facts, const struct b200_plan *plan);

#endif
