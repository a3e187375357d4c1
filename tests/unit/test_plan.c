/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/plan.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct b200_device b200 = {100, 148, 130100, "NVIDIA B200"};
static const struct b200_device h200 = {90, 132, 130100, "NVIDIA H200"};

/* A forward GEMM of 4096 features on 16384 tokens that every format takes, and pays. */
static struct b200_facts good_facts(void) {
  struct b200_facts facts;
  memset(&facts, 0, sizeof(facts));
  facts.gemm = (struct b200_gemm){.m = 4096,
                                  .n = 16384,
                                  .k = 4096,
                                  .batch = 1,
                                  .api = B200_API_GEMMEX,
                                  .role = B200_ROLE_FPROP,
                                  .a = B200_ELEMENT_BF16,
                                  .b = B200_ELEMENT_BF16,
                                  .d = B200_ELEMENT_BF16,
                                  .compute = B200_COMPUTE_F32,
                                  .epilogue = B200_EPILOGUE_NONE,
                                  .ta = 'T',
                                  .tb = 'N'};
  facts.lda = facts.ldb = facts.ldc = facts.ldd = 4096;
  facts.c = B200_ELEMENT_BF16;
  facts.align_a = facts.align_b = facts.align_c = facts.align_d = facts.align_bias = 8;
  return facts;
}

static void make_policy(struct b200_policy *policy, const struct b200_device *device, const char *const *settings) {
  struct b200_config config;
  char complaint[256], *environment[8] = {NULL};
  for (int i = 0; settings[i]; i++)
    environment[i] = (char *)settings[i];
  b200_config_load_from(&config, environment);
  ck_assert_int_eq(config.complaint_count, 0);
  b200_policy_make(policy, &config, device, complaint, sizeof(complaint));
  ck_assert_str_eq(complaint, "");
}

/* ---- one row per reason and way to get there */

struct set {
  size_t offset, size;
  int64_t value;
};
#define SET(field, value)                                                                                                   \
  { offsetof(struct b200_facts, field), sizeof(((struct b200_facts *)0)->field), value }

static void apply(struct b200_facts *facts, const struct set *set) {
  int64_t wide = set->value;
  if (set->size) /* little endian: the low bytes come first */
    memcpy((char *)facts + set->offset, &wide, set->size);
}

static const struct row {
  enum b200_reason reason;
  enum b200_format format, wanted;
  int cc;
  uint32_t cublaslt;
  b200_demoted demoted;
  const char *settings[5];
  struct set sets[3];
} rows[] = {
#define FP8 B200_FORMAT_FP8
#define MX B200_FORMAT_MXFP8
#define NO B200_FORMAT_NATIVE
#define GUARDED(format) (B200_OPEN_GUARD << 2 * (format))
#define ALWAYS "B200OPT_STRATEGY=always"
#define AS(format) "B200OPT_PRECISION=" #format, ALWAYS
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_CONVERTED, MX, MX, 100, 130100, 0, {AS(mxfp8)}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 90, 130100, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 89, 120400, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 120, 120800, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_CONVERTED, MX, MX, 103, 120900, 0, {AS(mxfp8)}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 90, 130100, 0, {AS(auto)}, {{0}}},
    {B200_REASON_OBSERVE, NO, NO, 100, 130100, 0, {NULL}, {{0}}},
    {B200_REASON_OBSERVE, NO, NO, 100, 130100, 0, {"B200OPT_WGRAD=fp8"}, {SET(gemm.role, B200_ROLE_WGRAD)}},
    {B200_REASON_WARM_UP, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(flags, B200_CALL_WARM_UP)}},
    {B200_REASON_ALREADY_NARROW, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(flags, B200_CALL_NARROW)}},
    {B200_REASON_ALREADY_NARROW, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.b, B200_ELEMENT_E5M2)}},
    {B200_REASON_ALREADY_NARROW, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.a, B200_ELEMENT_E2M1)}},
    {B200_REASON_API, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.api, B200_API_TYPED)}},
    {B200_REASON_API, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.api, B200_API_BATCHED)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.api, B200_API_LT)}},
    {B200_REASON_KIND, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(flags, B200_CALL_UNSUPPORTED_KIND)}},
    {B200_REASON_FP32, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.a, B200_ELEMENT_F32)}},
    {B200_REASON_FP32, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.b, B200_ELEMENT_F64)}},
    {B200_REASON_DTYPE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.a, B200_ELEMENT_I8)}},
    {B200_REASON_DTYPE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.b, B200_ELEMENT_F16)}},
    {B200_REASON_DTYPE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.d, B200_ELEMENT_F16)}},
    {B200_REASON_DTYPE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.d, B200_ELEMENT_E4M3)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.d, B200_ELEMENT_F32)}},
    {B200_REASON_COMPUTE_TYPE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.compute, B200_COMPUTE_F16)}},
    {B200_REASON_COMPUTE_TYPE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.compute, B200_COMPUTE_TF32)}},
    {B200_REASON_POINTER_MODE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(flags, B200_CALL_ALPHA_DEVICE)}},
    {B200_REASON_POINTER_MODE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(beta, B200_BETA_DEVICE)}},
    {B200_REASON_CONVERTED,
     FP8,
     FP8,
     100,
     130100,
     0,
     {AS(fp8)},
     {SET(beta, B200_BETA_DEVICE), SET(flags, B200_CALL_ALPHA_DEVICE)}},
    {B200_REASON_EPILOGUE, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.epilogue, B200_EPILOGUE_OTHER)}},
    {B200_REASON_BIAS,
     NO,
     FP8,
     100,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.epilogue, B200_EPILOGUE_BIAS), SET(bias, B200_ELEMENT_F32)}},
    {B200_REASON_BIAS,
     NO,
     FP8,
     100,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.epilogue, B200_EPILOGUE_GELU_BIAS), SET(bias, B200_ELEMENT_F16)}},
    {B200_REASON_BIAS,
     NO,
     FP8,
     100,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.epilogue, B200_EPILOGUE_RELU_BIAS), SET(gemm.d, B200_ELEMENT_F32), SET(bias, B200_ELEMENT_F32)}},
    {B200_REASON_CONVERTED,
     FP8,
     FP8,
     100,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.epilogue, B200_EPILOGUE_RELU_BIAS), SET(gemm.d, B200_ELEMENT_F32), SET(bias, B200_ELEMENT_BF16)}},
    {B200_REASON_BETA, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(beta, B200_BETA_ONE), SET(gemm.d, B200_ELEMENT_F32)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {SET(beta, B200_BETA_ONE)}},
    {B200_REASON_ARCH, NO, FP8, 80, 130100, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_ARCH, NO, FP8, 110, 130100, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_ARCH, NO, MX, 90, 130100, 0, {AS(mxfp8)}, {{0}}},
    {B200_REASON_ARCH, NO, MX, 120, 130100, 0, {AS(mxfp8)}, {{0}}},
    {B200_REASON_ARCH, NO, FP8, 80, 130100, 0, {AS(auto)}, {{0}}},
    {B200_REASON_CUBLAS_VERSION, NO, FP8, 90, 120301, 0, {AS(fp8)}, {{0}}},
    {B200_REASON_CUBLAS_VERSION, NO, MX, 100, 120701, 0, {AS(mxfp8)}, {{0}}},
    {B200_REASON_CUBLAS_VERSION, NO, MX, 103, 120803, 0, {AS(mxfp8)}, {{0}}},
    {B200_REASON_BATCH, NO, MX, 100, 130100, 0, {AS(mxfp8)}, {SET(gemm.batch, 2), SET(gemm.role, B200_ROLE_BATCHED)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.batch, 2), SET(gemm.role, B200_ROLE_BATCHED)}},
    {B200_REASON_DIMS, NO, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.k, 4088)}},
    {B200_REASON_DIMS, NO, MX, 100, 130100, 0, {AS(mxfp8)}, {SET(gemm.k, 4080)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.k, 4080)}},
    {B200_REASON_DIMS, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(gemm.m, 4092)}},
    {B200_REASON_CONVERTED, FP8, FP8, 90, 130100, 0, {AS(fp8)}, {SET(gemm.m, 4088)}},
    {B200_REASON_CONVERTED,
     FP8,
     FP8,
     90,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.m, 4092), SET(gemm.d, B200_ELEMENT_F32), SET(c, B200_ELEMENT_F32)}},
    {B200_REASON_CONVERTED, FP8, FP8, 90, 130100, 0, {AS(fp8)}, {SET(gemm.n, 127)}},
    {B200_REASON_DIMS, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(gemm.n, 0)}},
    {B200_REASON_DIMS, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(gemm.k, -16)}},
    {B200_REASON_DIMS, NO, MX, 100, 130100, 0, {AS(mxfp8)}, {SET(gemm.ta, 'N'), SET(gemm.m, 4088)}},
    {B200_REASON_DIMS, NO, MX, 100, 130100, 0, {AS(mxfp8)}, {SET(gemm.tb, 'T'), SET(gemm.n, 16392)}},
    {B200_REASON_CONVERTED, MX, MX, 100, 130100, 0, {AS(mxfp8)}, {SET(gemm.n, 127)}},
    {B200_REASON_LD, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(ldd, 4100)}},
    {B200_REASON_LD, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(ldc, 4100), SET(beta, B200_BETA_OTHER)}},
    {B200_REASON_CONVERTED, FP8, FP8, 90, 130100, 0, {AS(fp8)}, {SET(ldc, 4100)}},
    {B200_REASON_LD,
     NO,
     FP8,
     90,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.batch, 2), SET(stride_d, 67108868), SET(gemm.role, B200_ROLE_BATCHED)}},
    {B200_REASON_CONVERTED, FP8, FP8, 90, 130100, 0, {AS(fp8)}, {SET(lda, 4097), SET(ldb, 5003), SET(align_a, 1)}},
    {B200_REASON_ALIGNMENT, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(align_d, 3)}},
    {B200_REASON_ALIGNMENT, NO, FP8, 90, 130100, 0, {AS(fp8)}, {SET(align_c, 3), SET(beta, B200_BETA_ONE)}},
    {B200_REASON_ALIGNMENT,
     NO,
     FP8,
     90,
     130100,
     0,
     {AS(fp8)},
     {SET(gemm.epilogue, B200_EPILOGUE_BIAS), SET(bias, B200_ELEMENT_BF16), SET(align_bias, 1)}},
    {B200_REASON_BREAKER_GUARD, NO, FP8, 90, 130100, GUARDED(FP8), {AS(fp8)}, {{0}}},
    {B200_REASON_BREAKER_GUARD, NO, FP8, 100, 130100, GUARDED(FP8) | GUARDED(MX), {AS(fp8)}, {{0}}},
    {B200_REASON_BREAKER_GUARD, NO, FP8, 100, 130100, GUARDED(FP8), {AS(fp8)}, {SET(gemm.k, 4080)}},
    {B200_REASON_BREAKER_GUARD, NO, MX, 100, 130100, GUARDED(MX), {AS(mxfp8)}, {{0}}},
    {B200_REASON_DEMOTED, MX, FP8, 100, 130100, GUARDED(FP8), {AS(fp8)}, {{0}}},
    {B200_REASON_CONVERTED, MX, MX, 100, 130100, GUARDED(FP8), {AS(auto)}, {{0}}},
    {B200_REASON_BREAKER_HEURISTIC, NO, FP8, 100, 130100, B200_OPEN_HEURISTIC << 2 * FP8, {AS(fp8)}, {{0}}},
    {B200_REASON_BREAKER_VENDOR, NO, MX, 100, 130100, B200_OPEN_VENDOR << 2 * MX, {AS(mxfp8)}, {{0}}},
    {B200_REASON_UNPLACED, NO, NO, 100, 130100, 0, {AS(fp8), "B200OPT_RULES=index=0:native"}, {{0}}},
    {B200_REASON_RULE, NO, NO, 100, 130100, 0, {AS(fp8), "B200OPT_RULES=out>=4096:bf16"}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8), "B200OPT_RULES=out>4096:bf16"}, {{0}}},
    {B200_REASON_CONVERTED, MX, MX, 100, 130100, 0, {AS(fp8), "B200OPT_RULES=*:mxfp8"}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(native), "B200OPT_RULES=*:fp8"}, {{0}}},
    {B200_REASON_ROLE_SETTING, NO, NO, 100, 130100, 0, {AS(fp8), "B200OPT_FPROP=native"}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8), "B200OPT_WGRAD=native"}, {{0}}},
    {B200_REASON_CONVERTED, MX, MX, 100, 130100, 0, {AS(native), "B200OPT_FPROP=mxfp8"}, {{0}}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8), "B200OPT_FPROP=mxfp8", "B200OPT_RULES=*:fp8"}, {{0}}},
    {B200_REASON_PRECISION_NATIVE, NO, NO, 100, 130100, 0, {AS(native)}, {{0}}},
    {B200_REASON_DTYPE, NO, NO, 100, 130100, 0, {AS(native)}, {SET(gemm.a, B200_ELEMENT_I8)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {"B200OPT_PRECISION=fp8"}, {{0}}},
    {B200_REASON_TOO_SLOW, NO, FP8, 100, 130100, 0, {"B200OPT_PRECISION=fp8"}, {SET(gemm.n, 512)}},
    {B200_REASON_CONVERTED, FP8, FP8, 100, 130100, 0, {AS(fp8)}, {SET(gemm.n, 512)}},
    {B200_REASON_WORKSPACE, NO, FP8, 100, 130100, 0, {AS(fp8), "B200OPT_WORKSPACE_MB=1"}, {SET(gemm.n, 16384)}},
    {B200_REASON_WORKSPACE,
     NO,
     FP8,
     100,
     130100,
     0,
     {AS(fp8), "B200OPT_WORKSPACE_MB=100"},
     {SET(gemm.batch, 2), SET(gemm.role, B200_ROLE_BATCHED)}},
};

static void check_row(const struct row *row) {
  struct b200_device device = {row->cc, 148, row->cublaslt, "NVIDIA"};
  struct b200_facts facts = good_facts();
  struct b200_policy policy;
  make_policy(&policy, &device, row->settings);
  for (size_t i = 0; i < COUNT(row->sets); i++)
    apply(&facts, &row->sets[i]);
  struct b200_plan plan = b200_decide(&policy, &facts, NULL, row->demoted);
  ck_assert_str_eq(b200_reason_names[plan.reason], b200_reason_names[row->reason]);
  ck_assert_str_eq(b200_format_names[plan.format], b200_format_names[row->format]);
  ck_assert_str_eq(b200_format_names[plan.wanted], b200_format_names[row->wanted]);
  ck_assert_uint_ge(plan.cuts, 1);
}

START_TEST(each_reason_has_its_causes) {
  static const enum b200_reason of_the_edge[] = {B200_REASON_OFF,       B200_REASON_RE_ENTRANT, B200_REASON_KERNELS,
                                                 B200_REASON_SELF_TEST, B200_REASON_CAPTURE,    B200_REASON_NO_MEMORY};
  bool seen[B200_REASON_COUNT] = {false};
  for (size_t i = 0; i < COUNT(rows); i++) {
    check_row(&rows[i]);
    seen[rows[i].reason] = true;
  }
  for (size_t i = 0; i < COUNT(of_the_edge); i++)
    seen[of_the_edge[i]] = true;
  for (int i = 0; i < B200_REASON_COUNT; i++)
    ck_assert_msg(seen[i], "no row for %s", b200_reason_names[i]);
}
END_TEST

/* The earlier of two causes gives the reason: pairs of neighbours in the order of decision. */
START_TEST(the_first_cause_gives_the_reason) {
  static const struct {
    enum b200_reason reason;
    struct set sets[3];
  } pairs[] = {
      {B200_REASON_WARM_UP, {SET(flags, B200_CALL_WARM_UP | B200_CALL_NARROW)}},
      {B200_REASON_ALREADY_NARROW, {SET(flags, B200_CALL_NARROW | B200_CALL_UNSUPPORTED_KIND)}},
      {B200_REASON_API, {SET(gemm.api, B200_API_TYPED), SET(gemm.a, B200_ELEMENT_F32)}},
      {B200_REASON_KIND, {SET(flags, B200_CALL_UNSUPPORTED_KIND), SET(gemm.a, B200_ELEMENT_F32)}},
      {B200_REASON_FP32, {SET(gemm.a, B200_ELEMENT_F32), SET(gemm.d, B200_ELEMENT_F16)}},
      {B200_REASON_DTYPE, {SET(gemm.a, B200_ELEMENT_I8), SET(gemm.compute, B200_COMPUTE_I32)}},
      {B200_REASON_COMPUTE_TYPE, {SET(gemm.compute, B200_COMPUTE_F16), SET(beta, B200_BETA_DEVICE)}},
      {B200_REASON_POINTER_MODE, {SET(beta, B200_BETA_DEVICE), SET(gemm.epilogue, B200_EPILOGUE_OTHER)}},
      {B200_REASON_EPILOGUE, {SET(gemm.epilogue, B200_EPILOGUE_OTHER), SET(gemm.k, 7)}},
      {B200_REASON_DIMS, {SET(gemm.k, 7), SET(ldd, 4097), SET(align_d, 1)}},
      {B200_REASON_LD, {SET(ldd, 4097), SET(align_d, 1)}},
      {B200_REASON_ALIGNMENT, {SET(align_d, 1)}},
  };
  struct b200_policy policy;
  make_policy(&policy, &h200, (const char *[]){AS(fp8), NULL});
  for (size_t i = 0; i < COUNT(pairs); i++) {
    struct b200_facts facts = good_facts();
    for (size_t j = 0; j < COUNT(pairs[i].sets); j++)
      apply(&facts, &pairs[i].sets[j]);
    struct b200_plan plan = b200_decide(&policy, &facts, NULL, B200_OPEN_GUARD << 2 * FP8);
    ck_assert_str_eq(b200_reason_names[plan.reason], b200_reason_names[pairs[i].reason]);
  }
}
END_TEST

START_TEST(formats_follow_the_role) {
  static const struct {
    const char *settings[5];
    enum b200_role role;
    uint8_t a, b, fast;
  } cases[] = {
      {{AS(fp8)}, B200_ROLE_FPROP, B200_ELEMENT_E4M3, B200_ELEMENT_E4M3, 1},
      {{AS(fp8)}, B200_ROLE_DGRAD, B200_ELEMENT_E4M3, B200_ELEMENT_E5M2, 0},
      {{AS(fp8)}, B200_ROLE_WGRAD, B200_ELEMENT_E4M3, B200_ELEMENT_E5M2, 0},
      {{AS(fp8)}, B200_ROLE_OTHER, B200_ELEMENT_E4M3, B200_ELEMENT_E4M3, 0},
      {{AS(fp8), "B200OPT_FP8_GRAD_FORMAT=e4m3"}, B200_ROLE_WGRAD, B200_ELEMENT_E4M3, B200_ELEMENT_E4M3, 0},
      {{AS(mxfp8)}, B200_ROLE_WGRAD, B200_ELEMENT_E4M3, B200_ELEMENT_E4M3, 0},
      {{AS(mxfp8)}, B200_ROLE_FPROP, B200_ELEMENT_E4M3, B200_ELEMENT_E4M3, 0},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct b200_policy policy;
    struct b200_facts facts = good_facts();
    make_policy(&policy, &b200, cases[i].settings);
    facts.gemm.role = (uint8_t)cases[i].role;
    struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
    ck_assert_uint_eq(plan.a, cases[i].a);
    ck_assert_uint_eq(plan.b, cases[i].b);
    ck_assert_uint_eq(plan.fast_accumulate, cases[i].fast);
  }
}
END_TEST

START_TEST(tn_where_hardware_or_dimensions_ask_for_it) {
  struct b200_facts facts = good_facts();
  struct b200_policy policy;
  static const struct {
    int64_t m, n;
    int cc;
    char ta, tb;
    uint8_t tn;
  } cases[] = {
      {64, 64, 90, 'T', 'N', 1},  {64, 64, 89, 'N', 'T', 1},  {64, 64, 120, 'N', 'N', 1}, {64, 64, 100, 'T', 'N', 0},
      {64, 64, 100, 'N', 'T', 0}, {72, 64, 100, 'N', 'N', 1}, {64, 72, 100, 'N', 'T', 1}, {72, 17, 100, 'T', 'N', 0},
      {64, 17, 103, 'N', 'N', 0}, {64, 65, 103, 'T', 'T', 1},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct b200_device device = {cases[i].cc, 0, 130100, ""};
    make_policy(&policy, &device, (const char *[]){AS(fp8), NULL});
    facts.gemm.ta = cases[i].ta;
    facts.gemm.tb = cases[i].tb;
    facts.gemm.m = cases[i].m;
    facts.gemm.n = cases[i].n;
    struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
    ck_assert_int_eq(plan.format, FP8);
    ck_assert_msg(plan.tn == cases[i].tn, "case %zu", i);
  }
}
END_TEST

/* Positions decide only through rules. While the index is not known, a call that a rule may ask about stays as it is. */
START_TEST(rules_see_the_position) {
  struct b200_facts facts = good_facts();
  struct b200_policy policy;
  struct b200_position position = {.step = 9, .index = 3, .rank = 1, .world = 8};
  make_policy(&policy, &b200, (const char *[]){AS(fp8), "B200OPT_RULES=step<10,index=3:native", NULL});
  ck_assert(policy.positional);
  ck_assert_int_eq(b200_decide(&policy, &facts, &position, 0).reason, B200_REASON_RULE);
  ck_assert_int_eq(b200_decide(&policy, &facts, NULL, 0).reason, B200_REASON_UNPLACED);
  position.index = -1;
  ck_assert_int_eq(b200_decide(&policy, &facts, &position, 0).reason, B200_REASON_UNPLACED);
  facts.gemm.role = B200_ROLE_OTHER; /* has no index: rules that ask for it do not hold */
  ck_assert_int_eq(b200_decide(&policy, &facts, &position, 0).reason, B200_REASON_CONVERTED);
  facts.gemm.role = B200_ROLE_FPROP;
  position.index = 3;
  position.step = 10;
  ck_assert_int_eq(b200_decide(&policy, &facts, &position, 0).reason, B200_REASON_CONVERTED);
  position.step = -1;
  ck_assert_int_eq(b200_decide(&policy, &facts, &position, 0).reason, B200_REASON_RULE);
  make_policy(&policy, &b200, (const char *[]){AS(fp8), "B200OPT_RULES=k<10:native", NULL});
  ck_assert(!policy.positional);
}
END_TEST

START_TEST(a_wrong_rule_leaves_none_in_place) {
  struct b200_config config;
  struct b200_policy policy;
  char complaint[256];
  b200_config_load_from(&config, (char *[]){"B200OPT_RULES=*:fp8; k<:native", NULL});
  b200_policy_make(&policy, &config, &b200, complaint, sizeof(complaint));
  ck_assert_int_eq(policy.rule_count, 0);
  ck_assert_str_eq(complaint, "B200OPT_RULES: column 10: ':' is not a number for k (accepted: "
                              "0..9223372036854775807); no rule is in place");
}
END_TEST

START_TEST(observe_says_what_others_would_do) {
  struct b200_facts facts = good_facts();
  struct b200_policy policy;
  make_policy(&policy, &b200, (const char *[]){NULL});
  ck_assert_int_eq(b200_decide(&policy, &facts, NULL, 0).reason, B200_REASON_OBSERVE);
  struct b200_plan plan = b200_decide_as(&policy, B200_PRECISION_MXFP8, &facts, NULL, 0);
  ck_assert_int_eq(plan.format, MX);
  ck_assert(plan.native_ns > plan.narrow_ns && plan.narrow_ns > 0);
  ck_assert_int_eq(b200_decide_as(&policy, B200_PRECISION_FP8, &facts, NULL, 0).format, FP8);
  ck_assert_int_eq(b200_decide_as(&policy, B200_PRECISION_NATIVE, &facts, NULL, 0).reason, B200_REASON_PRECISION_NATIVE);
}
END_TEST

/* `auto` takes the format of the smaller time. */
START_TEST(auto_takes_the_fastest) {
  struct b200_facts facts = good_facts();
  struct b200_policy policy;
  make_policy(&policy, &b200, (const char *[]){AS(auto), NULL});
  int taken[B200_FORMAT_COUNT] = {0};
  for (int64_t n = 256; n <= 1 << 20; n *= 2) {
    facts.gemm.n = n;
    struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
    double fp8 = b200_cost_narrow(&b200, &facts.gemm, FP8), mxfp8 = b200_cost_narrow(&b200, &facts.gemm, MX);
    ck_assert_int_eq(plan.format, fp8 < mxfp8 ? FP8 : MX);
    taken[plan.format]++;
  }
  ck_assert_int_gt(taken[MX], 0);
}
END_TEST

/* ---- the workspace */

/* Every piece's operand and the whole of the other fit, pieces cover the dimension, and none is empty. */
static void check_cuts(const struct b200_plan *plan, const struct b200_gemm *gemm, uint64_t bound) {
  int64_t length = plan->cut_rows ? gemm->m : gemm->n, other = plan->cut_rows ? gemm->n : gemm->m;
  int64_t piece = b200_cut_length(length, plan->cuts);
  enum b200_format format = (enum b200_format)plan->format;
  ck_assert_uint_le(b200_quantised_bytes(format, piece, gemm->k) + b200_quantised_bytes(format, other, gemm->k), bound);
  ck_assert_int_ge(piece * plan->cuts, length);
  ck_assert_int_lt(piece * (plan->cuts - 1), length);
  ck_assert_uint_le(plan->cuts, B200_CUTS_MAX);
  if (plan->cuts > 1)
    ck_assert_int_eq(piece % 128, 0);
}

START_TEST(cuts_keep_the_bound) {
  static const char *const settings[][5] = {{AS(fp8), "B200OPT_WORKSPACE_MB=40", NULL},
                                            {AS(mxfp8), "B200OPT_WORKSPACE_MB=40", NULL}};
  int cut = 0, refused = 0, whole = 0;
  for (size_t i = 0; i < COUNT(settings); i++) {
    struct b200_policy policy;
    make_policy(&policy, &b200, settings[i]);
    for (int64_t m = 64; m <= 60000; m = m * 3 / 16 * 16 + 16)
      for (int64_t n = 64; n <= 60000; n = n * 5 / 2 / 16 * 16 + 16)
        for (int64_t k = 32; k <= 20000; k = k * 4 + 32) {
          struct b200_facts facts = good_facts();
          facts.gemm.m = facts.ldd = m;
          facts.gemm.n = n;
          facts.gemm.k = k;
          struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
          if (plan.format == NO) {
            ck_assert_int_eq(plan.reason, B200_REASON_WORKSPACE);
            refused++;
            continue;
          }
          check_cuts(&plan, &facts.gemm, 40u << 20);
          plan.cuts > 1 ? cut++ : whole++;
        }
  }
  ck_assert(cut > 10 && refused > 10 && whole > 10);
}
END_TEST

START_TEST(cuts_are_few) {
  struct b200_policy policy;
  struct b200_facts facts = good_facts();
  make_policy(&policy, &b200, (const char *[]){AS(fp8), "B200OPT_WORKSPACE_MB=2", NULL});
  facts.gemm.m = facts.ldd = 128;
  facts.gemm.k = 8176; /* nearly 1 MiB for A, and for 128 columns of B */
  facts.gemm.n = 64 * 112;
  struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
  ck_assert_int_eq(plan.format, FP8);
  check_cuts(&plan, &facts.gemm, 2u << 20);
  facts.gemm.n = 1 << 20;
  ck_assert_int_eq(b200_decide(&policy, &facts, NULL, 0).reason, B200_REASON_WORKSPACE);
}
END_TEST

START_TEST(quantised_bytes_are_those_of_the_layouts) {
  ck_assert_uint_eq(b200_quantised_bytes(FP8, 128, 128), 128 * 128 + 256);
  ck_assert_uint_eq(b200_quantised_bytes(FP8, 1, 16), 256 + 256);
  ck_assert_uint_eq(b200_quantised_bytes(MX, 128, 128), 128 * 128 + 512);
  ck_assert_uint_eq(b200_quantised_bytes(MX, 129, 160), (144 * 160 + 255) / 256 * 256 + 256 * 8);
  ck_assert_uint_eq(b200_quantised_bytes(NO, 128, 128), 0);
  ck_assert_uint_gt(b200_quantised_bytes(MX, INT64_MAX, INT64_MAX), UINT64_C(1) << 60);
}
END_TEST

/* ---- any facts */

static uint64_t random_state;
static uint64_t random_bits(void) {
  random_state += UINT64_C(0x9e3779b97f4a7c15);
  uint64_t z = random_state;
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}
static int64_t pick(const int64_t *from, size_t count) {
  return from[random_bits() % count];
}
#define PICK(...) pick((const int64_t[]){__VA_ARGS__}, COUNT(((const int64_t[]){__VA_ARGS__})))

static struct b200_facts random_facts(void) {
  struct b200_facts facts = good_facts();
  struct b200_gemm *gemm = &facts.gemm;
  gemm->m = PICK(1, 4, 8, 12, 16, 17, 24, 64, 128, 1000, 4096, 28672, 131072);
  gemm->n = PICK(1, 7, 8, 16, 17, 32, 127, 128, 4096, 8192, 131072);
  gemm->k = PICK(1, 8, 16, 32, 48, 64, 128, 4096, 14336);
  gemm->batch = PICK(1, 1, 1, 1, 2, 12);
  gemm->api = (uint8_t)PICK(B200_API_GEMMEX, B200_API_GEMMEX, B200_API_LT, B200_API_STRIDED, B200_API_TYPED);
  gemm->a = (uint8_t)PICK(B200_ELEMENT_BF16, B200_ELEMENT_BF16, B200_ELEMENT_F16, B200_ELEMENT_F32, B200_ELEMENT_E4M3);
  gemm->b = random_bits() % 16 ? gemm->a : (uint8_t)(random_bits() % B200_ELEMENT_COUNT);
  gemm->d = random_bits() % 8 ? gemm->a : (uint8_t)(random_bits() % B200_ELEMENT_COUNT);
  gemm->compute = random_bits() % 16 ? B200_COMPUTE_F32 : (uint8_t)(random_bits() % B200_COMPUTE_COUNT);
  gemm->epilogue = random_bits() % 4 ? B200_EPILOGUE_NONE : (uint8_t)(random_bits() % B200_EPILOGUE_COUNT);
  gemm->ta = (char)PICK('N', 'T', 'C');
  gemm->tb = (char)PICK('N', 'T');
  gemm->role = (uint8_t)b200_gemm_role(gemm->ta, gemm->tb, gemm->batch);
  facts.ldd = gemm->m + PICK(0, 0, 0, 0, 0, 1, 4, 8);
  facts.ldc = random_bits() % 4 ? facts.ldd : facts.ldd + 1;
  facts.stride_d = facts.ldd * gemm->n + PICK(0, 0, 1, 8);
  facts.c = random_bits() % 4 ? gemm->d : (uint8_t)(random_bits() % B200_ELEMENT_COUNT);
  facts.bias = (uint8_t)PICK(B200_ELEMENT_BF16, B200_ELEMENT_F16, B200_ELEMENT_F32, B200_ELEMENT_OTHER);
  facts.beta = (uint8_t)PICK(B200_BETA_ZERO, B200_BETA_ZERO, B200_BETA_ONE, B200_BETA_OTHER, B200_BETA_DEVICE);
  facts.flags =
      (uint16_t)(random_bits() % 8 ? (facts.beta == B200_BETA_DEVICE ? B200_CALL_ALPHA_DEVICE : 0) : random_bits() % 128);
  facts.align_d = (uint8_t)PICK(8, 8, 8, 8, 8, 4, 4, 3, 1);
  facts.align_c = random_bits() % 4 ? facts.align_d : (uint8_t)PICK(8, 3);
  facts.align_bias = (uint8_t)PICK(8, 8, 4, 1);
  return facts;
}

static struct b200_device random_device(void) {
  return (struct b200_device){(int)PICK(70, 80, 86, 89, 89, 90, 90, 100, 100, 100, 103, 110, 120, 121),
                              (int)PICK(0, 58, 132, 148),
                              (uint32_t)PICK(110801, 120301, 120400, 120803, 120900, 130100, 130401), "NVIDIA"};
}

/* What cuBLASLt takes, as facts/cublaslt_rules.md and the documentation state it; written apart from plan.c, row by row.
   Says what a submitted plan violates, or NULL. */
static const char *violation(const struct b200_device *device, const struct b200_facts *facts,
                             const struct b200_plan *plan) {
  const struct b200_gemm *gemm = &facts->gemm;
  bool mx = plan->format == MX;
  int major = device->cc / 10;
  bool a_k_major = plan->tn || gemm->ta != 'N', b_k_major = plan->tn || gemm->tb == 'N';
  int d_size = gemm->d == B200_ELEMENT_F32 ? 4 : 2;
  bool bias = strstr(b200_epilogue_names[gemm->epilogue], "bias") != NULL;
  const struct {
    bool bad;
    const char *what;
  } rules[] = {
      {device->cc < 89, "no FP8 before 8.9"},
      {mx && major != 10, "MXFP8 on 10.x only"},
      {device->cublaslt_version < (major >= 10 ? 120800u : 120400u), "cuBLASLt"},
      {major != 10 && !(a_k_major && b_k_major), "TN only"},
      {plan->a == B200_ELEMENT_E5M2 && plan->b == B200_ELEMENT_E5M2, "e5m2 x e5m2"},
      {plan->a != B200_ELEMENT_E4M3 && plan->a != B200_ELEMENT_E5M2, "type of A"},
      {plan->b != B200_ELEMENT_E4M3 && plan->b != B200_ELEMENT_E5M2, "type of B"},
      {mx && (plan->a != B200_ELEMENT_E4M3 || plan->b != B200_ELEMENT_E4M3), "MXFP8 is E4M3"},
      {gemm->d != B200_ELEMENT_BF16 && gemm->d != B200_ELEMENT_F16 && gemm->d != B200_ELEMENT_F32, "type of D"},
      {gemm->k % 16 != 0, "k"},
      {mx && gemm->k % 32 != 0, "whole blocks"},
      {gemm->m * d_size % 16 != 0, "m"},
      {!a_k_major && gemm->m % 16 != 0, "contiguous m"},
      {!b_k_major && gemm->n % 16 != 0, "contiguous n"},
      {facts->ldd * d_size % 16 != 0, "ldd"},
      {facts->beta != B200_BETA_ZERO && facts->ldc * d_size % 16 != 0, "ldc"},
      {gemm->batch > 1 && facts->stride_d * d_size % 16 != 0, "stride of D"},
      {mx && gemm->batch > 1, "batch of block scales"},
      {facts->align_d < 4, "D is not at 16 bytes"},
      {facts->beta != B200_BETA_ZERO && facts->align_c < 4, "C is not at 16 bytes"},
      {facts->beta != B200_BETA_ZERO && facts->c != gemm->d, "C is not D's type"},
      {bias && facts->bias != (gemm->d == B200_ELEMENT_F16 ? B200_ELEMENT_F16 : B200_ELEMENT_BF16), "type of the bias"},
      {bias && facts->align_bias < 4, "bias is not at 16 bytes"},
      {gemm->compute != B200_COMPUTE_F32, "compute type"},
      {gemm->epilogue == B200_EPILOGUE_OTHER, "epilogue"},
      {gemm->m < 1 || gemm->n < 1 || gemm->k < 1, "no work"},
      {plan->fast_accumulate && gemm->role != B200_ROLE_FPROP, "fast accumulation beyond the forward"},
      {gemm->a == B200_ELEMENT_F32 || gemm->b == B200_ELEMENT_F32, "FP32 is left alone"},
      {(facts->flags & (B200_CALL_NARROW | B200_CALL_UNSUPPORTED_KIND | B200_CALL_WARM_UP)) != 0, "flags"},
  };
  for (size_t i = 0; i < COUNT(rules); i++)
    if (rules[i].bad)
      return rules[i].what;
  return NULL;
}

START_TEST(nothing_forbidden_is_planned) {
  static const char *const settings[][5] = {{AS(fp8)},
                                            {AS(mxfp8)},
                                            {AS(auto)},
                                            {"B200OPT_PRECISION=auto"},
                                            {AS(native), "B200OPT_RULES=m>16:fp8;role=fprop:mxfp8;*:inherit"},
                                            {AS(fp8), "B200OPT_WORKSPACE_MB=8", "B200OPT_DGRAD=auto"}};
  int64_t planned = 0;
  random_state = 1;
  for (int round = 0; round < 400; round++) {
    struct b200_device device = random_device();
    struct b200_policy policy;
    make_policy(&policy, &device, settings[(size_t)round % COUNT(settings)]);
    for (int i = 0; i < 500; i++) {
      struct b200_facts facts = random_facts();
      b200_demoted demoted = (b200_demoted)(random_bits() % 4 ? 0 : random_bits() & 0x3c);
      struct b200_plan plan = b200_decide(&policy, &facts, NULL, demoted);
      bool converts = plan.reason == B200_REASON_CONVERTED || plan.reason == B200_REASON_DEMOTED;
      ck_assert_int_lt(plan.reason, B200_REASON_COUNT);
      ck_assert(converts == (plan.format != NO));
      if (!converts)
        continue;
      const char *what = violation(&device, &facts, &plan);
      ck_assert_msg(!what, "%s: cc %d %c%c %lld x %lld x %lld", what, device.cc, facts.gemm.ta, facts.gemm.tb,
                    (long long)facts.gemm.m, (long long)facts.gemm.n, (long long)facts.gemm.k);
      ck_assert_int_eq(b200_demoted_why(demoted, (enum b200_format)plan.format), B200_OPEN_NO);
      if (facts.gemm.batch == 1)
        check_cuts(&plan, &facts.gemm, (uint64_t)policy.workspace_bytes);
      planned++;
    }
  }
  ck_assert_int_gt(planned, 1000);
}
END_TEST

/* The other side: what the same table allows is planned where everything is asked for. */
START_TEST(what_is_allowed_is_planned) {
  int64_t planned = 0, left = 0;
  random_state = 2;
  for (int round = 0; round < 200; round++) {
    struct b200_device device = random_device();
    struct b200_policy policy;
    make_policy(&policy, &device, (const char *[]){AS(fp8), "B200OPT_WORKSPACE_MB=65536", NULL});
    bool device_takes = device.cc >= 89 && device.cc / 10 != 11 &&
                        device.cublaslt_version >= (device.cc == 103   ? 120900u
                                                    : device.cc >= 100 ? 120800u
                                                                       : 120400u);
    for (int i = 0; i < 500; i++) {
      struct b200_facts facts = random_facts();
      struct b200_plan ideal = {.format = FP8, .a = B200_ELEMENT_E4M3, .b = B200_ELEMENT_E4M3, .tn = 1};
      bool device_mode = (facts.flags & B200_CALL_ALPHA_DEVICE) != 0;
      bool counted = facts.gemm.api == B200_API_TYPED || facts.gemm.b != facts.gemm.a ||
                     (facts.gemm.d != facts.gemm.a && facts.gemm.d != B200_ELEMENT_F32) ||
                     facts.gemm.a == B200_ELEMENT_E4M3 || device_mode != (facts.beta == B200_BETA_DEVICE);
      bool expected = device_takes && !counted && !violation(&device, &facts, &ideal);
      struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
      ck_assert_msg((plan.format == FP8) == expected, "%s: cc %d %c%c %lld x %lld x %lld", b200_reason_names[plan.reason],
                    device.cc, facts.gemm.ta, facts.gemm.tb, (long long)facts.gemm.m, (long long)facts.gemm.n,
                    (long long)facts.gemm.k);
      expected ? planned++ : left++;
    }
  }
  ck_assert_int_gt(planned, 1000);
  ck_assert_int_gt(left, 1000);
}
END_TEST

/* Every call has one reason: counts and FLOPs by reason, and by plan, are those of all calls. */
START_TEST(reasons_add_up) {
  uint64_t calls[B200_REASON_COUNT] = {0}, flops[B200_REASON_COUNT] = {0}, all_flops = 0, sum = 0, sum_calls = 0;
  struct b200_policy policy;
  random_state = 3;
  make_policy(&policy, &b200, (const char *[]){"B200OPT_PRECISION=auto", "B200OPT_RULES=role=wgrad,k<64:native", NULL});
  for (int i = 0; i < 20000; i++) {
    struct b200_facts facts = random_facts();
    struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
    calls[plan.reason]++;
    flops[plan.reason] += b200_gemm_flops(&facts.gemm);
    all_flops += b200_gemm_flops(&facts.gemm);
  }
  for (int i = 0; i < B200_REASON_COUNT; i++) {
    sum += flops[i];
    sum_calls += calls[i];
  }
  ck_assert_uint_eq(sum, all_flops);
  ck_assert_uint_eq(sum_calls, 20000);
  ck_assert_uint_gt(calls[B200_REASON_CONVERTED], 0);
}
END_TEST

/* Facts of any bytes: no crash, no overflow (the sanitizers look on), and an answer. */
START_TEST(any_bytes_are_decided) {
  struct b200_policy policy;
  random_state = 4;
  make_policy(&policy, &b200, (const char *[]){AS(auto), "B200OPT_RULES=h>3,in>4:fp8", NULL});
  for (int i = 0; i < 20000; i++) {
    struct b200_facts facts = good_facts();
    int64_t *numbers[] = {&facts.gemm.m, &facts.gemm.n, &facts.gemm.k, &facts.gemm.batch,
                          &facts.ldc,    &facts.ldd,    &facts.ldb,    &facts.stride_d};
    for (size_t j = 0; j < COUNT(numbers); j++)
      if (random_bits() % 2)
        *numbers[j] = (int64_t)(random_bits() >> random_bits() % 64) & (random_bits() % 2 ? -1 : ~INT64_C(127));
    struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0);
    ck_assert_int_lt(plan.reason, B200_REASON_COUNT);
  }
}
END_TEST

START_TEST(hashes_tell_decisions_apart) {
  struct b200_facts facts = good_facts(), moved = good_facts(), other = good_facts();
  struct b200_policy policy;
  make_policy(&policy, &b200, (const char *[]){AS(fp8), NULL});
  struct b200_plan plan = b200_decide(&policy, &facts, NULL, 0), left = plan;
  moved.align_a = moved.align_d = 5;
  other.gemm.n++;
  left.reason = B200_REASON_BREAKER_GUARD;
  uint64_t hash = b200_decision_hash(1, &facts, &plan);
  ck_assert_uint_eq(hash, b200_decision_hash(1, &moved, &plan));
  ck_assert_uint_ne(hash, b200_decision_hash(1, &other, &plan));
  ck_assert_uint_ne(hash, b200_decision_hash(1, &facts, &left));
  ck_assert_uint_ne(hash, b200_decision_hash(2, &facts, &plan));
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(each_reason_has_its_causes) \
  X(the_first_cause_gives_the_reason) \
  X(formats_follow_the_role) \
  X(tn_where_hardware_or_dimensions_ask_for_it) \
  X(rules_see_the_position) \
  X(a_wrong_rule_leaves_none_in_place) \
  X(observe_says_what_others_would_do) \
  X(auto_takes_the_fastest) \
  X(cuts_keep_the_bound) \
  X(cuts_are_few) \
  X(quantised_bytes_are_those_of_the_layouts) \
  X(nothing_forbidden_is_planned) \
  X(what_is_allowed_is_planned) \
  X(reasons_add_up) \
  X(any_bytes_are_decided) \
  X(hashes_tell_decisions_apart)
/* clang-format on */
UNIT_MAIN("plan", CASES)
