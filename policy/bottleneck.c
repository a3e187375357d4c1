/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/bottleneck.h"

#include <string.h>

#define B200_BOTTLENECK(id, name, because) name,
const char *const b200_bottleneck_names[] = {
#include "policy/bottleneck.def"
};
#undef B200_BOTTLENECK
#define B200_BOTTLENECK(id, name, because) because,
const char *const b200_bottleneck_because[] = {
#include "policy/bottleneck.def"
};
#undef B200_BOTTLENECK
#define B200_UNDETERMINED(id, text) text,
const char *const b200_undetermined_texts[] = {
#include "policy/bottleneck.def"
};
#undef B200_UNDETERMINED
#define B200_ROW(id, name, unit, help) name,
const char *const b200_bottleneck_row_names[] = {
#include "policy/bottleneck.def"
};
#undef B200_ROW
#define B200_ROW(id, name, unit, help) unit,
const char *const b200_bottleneck_row_units[] = {
#include "policy/bottleneck.def"
};
#undef B200_ROW
#define B200_ROW(id, name, unit, help) help,
const char *const b200_bottleneck_row_help[] = {
#include "policy/bottleneck.def"
};
#undef B200_ROW

enum limit {
#define B200_LIMIT(id, value) LIMIT_##id,
#include "policy/bottleneck.def"
#undef B200_LIMIT
};
static const double limits[] = {
#define B200_LIMIT(id, value) value,
#include "policy/bottleneck.def"
#undef B200_LIMIT
};

/* What must hold for a line of advice. */
enum next_when { ALWAYS, SLOW_GEMMS, WIDE, THROTTLED, UNTIMED, TIMED };

static const struct {
  enum b200_bottleneck verdict;
  enum next_when when;
  const char *text;
} advice[] = {
#define B200_NEXT(verdict, when, text) {B200_BOTTLENECK_##verdict, when, text},
#include "policy/bottleneck.def"
#undef B200_NEXT
};

void b200_evidence_clear(struct b200_evidence *out) {
  *out = (struct b200_evidence){.dev_ns = -1,
                                .gemm_ns = -1,
                                .blocked_ns = -1,
                                .host_ns = -1,
                                .start_ns = -1,
                                .gemms = -1,
                                .starved = -1,
                                .launches_per_step = -1,
                                .gemm_peak_ns = -1,
                                .gemm_memory_ns = -1,
                                .hbm_peak_bytes = -1,
                                .hbm_total_bytes = -1,
                                .refused_per_step = -1,
                                .allocations_per_step = -1,
                                .refused = -1,
                                .util = -1,
                                .memory_util = -1,
                                .throttled = -1};
}

/* part / whole within [0, 1]; −1: not known. */
static double ratio(double part, double whole) {
  if (!(part >= 0) || !(whole > 0))
    return -1;
  return part < whole ? part / whole : 1;
}

static double at_least_zero(double value) {
  return value >= 0 ? value : 0;
}

/* ------------------------------------------------------------------------------------------------- shares */

/* GEMMs that HBM limits: thin ones, as a whole. */
static bool is_thin(const struct b200_evidence *evidence) {
  return evidence->gemm_peak_ns >= 0 && evidence->gemm_memory_ns > evidence->gemm_peak_ns;
}

/* Parts are cut so that they never exceed the step, in the order of how well they are known: GEMMs and blocked time are
   measured, gaps are what is left between the former. A job without collectives has no blocked time. */
static bool find_shares(const struct b200_evidence *evidence, double share[B200_BOTTLENECK_SHARES]) {
  double whole = (double)evidence->dev_ns, left = 1;
  for (int i = 0; i < B200_BOTTLENECK_SHARES; i++)
    share[i] = -1;
  if (evidence->steps <= 0 || evidence->dev_ns <= 0 || evidence->gemm_ns < 0 || evidence->host_ns < 0)
    return false;
  double gemm = ratio((double)evidence->gemm_ns, whole);
  double blocked = at_least_zero(ratio((double)evidence->blocked_ns, whole));
  double idle = ratio((double)evidence->host_ns, whole);
  double launching_ns = at_least_zero(evidence->launches_per_step) * (double)evidence->steps * limits[LIMIT_LAUNCH_NS];
  double before = at_least_zero(ratio(at_least_zero((double)evidence->start_ns - launching_ns), whole));
  left -= gemm;
  blocked = blocked < left ? blocked : left;
  left -= blocked;
  idle = idle < left ? idle : left;
  left -= idle;
  before = before < idle ? before : idle;
  bool thin = is_thin(evidence);
  share[B200_BOTTLENECK_COMPUTE] = thin ? 0 : gemm;
  share[B200_BOTTLENECK_COMMUNICATION] = blocked;
  share[B200_BOTTLENECK_BANDWIDTH] = at_least_zero(left) + (thin ? gemm : 0);
  share[B200_BOTTLENECK_HOST] = idle - before;
  share[B200_BOTTLENECK_DATA] = before;
  return true;
}

/* Waiting for the host is compared with the rest as a whole, and split afterwards. */
enum { IDLE = B200_BOTTLENECK_HOST, KINDS };

static bool is_ahead(double share, double of) {
  return share - of >= limits[LIMIT_MARGIN] - 1e-9;
}

/* The largest one but `skip`; of equal ones the first. */
static int largest(const double kind[KINDS], int skip) {
  int best = -1;
  for (int i = 0; i < KINDS; i++)
    if (i != skip && (best < 0 || kind[i] > kind[best]))
      best = i;
  return best;
}

/* ------------------------------------------------------------------------------------------------- memory */

static double hbm_share(const struct b200_evidence *evidence) {
  return ratio((double)evidence->hbm_peak_bytes, (double)evidence->hbm_total_bytes);
}

static bool is_under_pressure(const struct b200_evidence *evidence) {
  return evidence->refused_per_step >= limits[LIMIT_REFUSED_PER_STEP] ||
         (evidence->allocations_per_step >= limits[LIMIT_CHURN_PER_STEP] && hbm_share(evidence) >= limits[LIMIT_CHURN_HBM]);
}

/* ------------------------------------------------------------------------------------------------- verdict */

/* By the shares alone. */
static enum b200_bottleneck by_shares(const struct b200_evidence *evidence, struct b200_bottleneck_verdict *out) {
  double kind[KINDS], host = out->share[B200_BOTTLENECK_HOST], data = out->share[B200_BOTTLENECK_DATA];
  enum b200_bottleneck idle = data > host ? B200_BOTTLENECK_DATA : B200_BOTTLENECK_HOST;
  enum b200_bottleneck other = data > host ? B200_BOTTLENECK_HOST : B200_BOTTLENECK_DATA;
  memcpy(kind, out->share, sizeof kind);
  kind[IDLE] = host + data;
  int first = largest(kind, -1), second = largest(kind, first);
  out->first = first == IDLE ? idle : (enum b200_bottleneck)first;
  out->second = second == IDLE ? idle : (enum b200_bottleneck)second;
  if (!is_ahead(kind[first], kind[second]))
    out->why = B200_UNDETERMINED_CLOSE;
  else if (first == IDLE && !is_ahead(out->share[idle], out->share[other])) {
    out->why = B200_UNDETERMINED_CLOSE;
    out->second = other;
  } else if (first == B200_BOTTLENECK_BANDWIDTH && !is_thin(evidence)) {
    bool idle_memory = evidence->memory_util >= 0 && evidence->memory_util < limits[LIMIT_MEMORY_BUSY];
    out->why = evidence->graphs ? B200_UNDETERMINED_GRAPHS : idle_memory ? B200_UNDETERMINED_UNSEEN : B200_UNDETERMINED_NONE;
  }
  return out->why ? B200_BOTTLENECK_UNDETERMINED : out->first;
}

static bool is_devices_own(enum b200_bottleneck share) {
  return share == B200_BOTTLENECK_COMPUTE || share == B200_BOTTLENECK_COMMUNICATION || share == B200_BOTTLENECK_BANDWIDTH;
}

static enum b200_bottleneck judge(const struct b200_evidence *evidence, struct b200_bottleneck_verdict *out) {
  bool timed = find_shares(evidence, out->share);
  bool pressure = is_under_pressure(evidence);
  if (!timed) {
    /* A job that was refused memory before it got going, or that never did. */
    if (pressure || (evidence->steps <= 0 && evidence->refused > 0))
      return B200_BOTTLENECK_CAPACITY;
    out->why = B200_UNDETERMINED_UNTIMED;
    return B200_BOTTLENECK_UNDETERMINED;
  }
  enum b200_bottleneck verdict = by_shares(evidence, out);
  bool dominant =
      (int)verdict < B200_BOTTLENECK_SHARES && is_devices_own(verdict) && out->share[verdict] >= limits[LIMIT_DOMINANT];
  bool full = hbm_share(evidence) >= limits[LIMIT_FULL_HBM];
  if ((pressure && !dominant) || (full && verdict == B200_BOTTLENECK_UNDETERMINED)) {
    out->why = B200_UNDETERMINED_NONE;
    return B200_BOTTLENECK_CAPACITY;
  }
  return verdict;
}

/* ------------------------------------------------------------------------------------------------- evidence */

struct candidate {
  enum b200_bottleneck_row row;
  double value; /* negative: not known */
  double limit; /* negative: compared with nothing */
  unsigned own; /* verdicts that rest on it, one bit each: their rows come first */
  bool below;   /* it speaks below its limit, not above */
};

#define FOR(verdict) (1u << B200_BOTTLENECK_##verdict)

/* What a kind must reach to be the verdict: the largest other one, and the margin. −1: no shares are known. */
static double needed(const double kind[KINDS], int of) {
  return kind[of] < 0 ? -1 : kind[largest(kind, of)] + limits[LIMIT_MARGIN];
}

static void put_rows(const struct b200_evidence *evidence, struct b200_bottleneck_verdict *out) {
  double kind[KINDS], host = out->share[B200_BOTTLENECK_HOST], data = out->share[B200_BOTTLENECK_DATA];
  double margin = limits[LIMIT_MARGIN];
  memcpy(kind, out->share, sizeof kind);
  kind[IDLE] = host < 0 ? -1 : host + data;
  const struct candidate candidates[] = {
      {B200_ROW_COMPUTE, kind[B200_BOTTLENECK_COMPUTE], needed(kind, B200_BOTTLENECK_COMPUTE), FOR(COMPUTE), false},
      {B200_ROW_COMMUNICATION, kind[B200_BOTTLENECK_COMMUNICATION], needed(kind, B200_BOTTLENECK_COMMUNICATION),
       FOR(COMMUNICATION), false},
      {B200_ROW_BANDWIDTH, kind[B200_BOTTLENECK_BANDWIDTH], needed(kind, B200_BOTTLENECK_BANDWIDTH), FOR(BANDWIDTH), false},
      {B200_ROW_IDLE, kind[IDLE], needed(kind, IDLE), FOR(HOST) | FOR(DATA), false},
      {B200_ROW_HOST, host, at_least_zero(data) + margin, FOR(HOST), false},
      {B200_ROW_DATA, data, at_least_zero(host) + margin, FOR(DATA), false},
      {B200_ROW_REFUSED, evidence->refused_per_step, limits[LIMIT_REFUSED_PER_STEP], FOR(CAPACITY), false},
      {B200_ROW_CHURN, evidence->allocations_per_step, limits[LIMIT_CHURN_PER_STEP], FOR(CAPACITY), false},
      {B200_ROW_HBM, hbm_share(evidence), limits[LIMIT_FULL_HBM], FOR(CAPACITY), false},
      {B200_ROW_OOM, (double)evidence->refused, -1, FOR(CAPACITY), false},
      {B200_ROW_GEMM_RATE, ratio(evidence->gemm_peak_ns, (double)evidence->gemm_ns), limits[LIMIT_GOOD_GEMM], FOR(COMPUTE),
       true},
      {B200_ROW_LAUNCHES, evidence->launches_per_step, -1, FOR(HOST), false},
      {B200_ROW_STARVED, ratio((double)evidence->starved, (double)evidence->gemms), -1, FOR(HOST), false},
      {B200_ROW_UTIL, evidence->util, -1, 0, false},
      {B200_ROW_MEMORY_UTIL, evidence->memory_util, limits[LIMIT_MEMORY_BUSY], FOR(BANDWIDTH), false},
      {B200_ROW_THROTTLED, evidence->throttled, limits[LIMIT_THROTTLED], FOR(COMPUTE), false},
  };
  for (unsigned own = 2; own-- > 0;)
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
      const struct candidate *each = &candidates[i];
      if (!(each->value >= 0) || (each->own >> out->verdict & 1) != own)
        continue;
      bool over = each->below ? each->value < each->limit : each->value >= each->limit - 1e-9;
      out->rows[out->row_count++] =
          (struct b200_bottleneck_evidence_row){each->row, each->value, each->limit, each->limit >= 0 && over};
    }
}

static bool holds(enum next_when when, const struct b200_evidence *evidence, const struct b200_bottleneck_verdict *out) {
  double rate = ratio(evidence->gemm_peak_ns, (double)evidence->gemm_ns);
  switch (when) {
  case SLOW_GEMMS:
    return is_thin(evidence) || (out->verdict == B200_BOTTLENECK_COMPUTE && rate >= 0 && rate < limits[LIMIT_GOOD_GEMM]);
  case WIDE:
    return !evidence->converts;
  case THROTTLED:
    return evidence->throttled >= limits[LIMIT_THROTTLED];
  case UNTIMED:
    return out->why == B200_UNDETERMINED_UNTIMED;
  case TIMED:
    return out->why != B200_UNDETERMINED_UNTIMED;
  case ALWAYS:
  default:
    return true;
  }
}

static void put_next(const struct b200_evidence *evidence, struct b200_bottleneck_verdict *out) {
  for (size_t i = 0; i < sizeof advice / sizeof *advice && out->next_count < B200_NEXT_MAX; i++)
    if (advice[i].verdict == out->verdict && holds(advice[i].when, evidence, out))
      out->next[out->next_count++] = advice[i].text;
}

void b200_bottleneck_find(const struct b200_evidence *evidence, struct b200_bottleneck_verdict *out) {
  memset(out, 0, sizeof *out);
  out->first = out->second = B200_BOTTLENECK_COUNT;
  out->why = B200_UNDETERMINED_NONE;
  out->verdict = judge(evidence, out);
  put_rows(evidence, out);
  put_next(evidence, out);
}
