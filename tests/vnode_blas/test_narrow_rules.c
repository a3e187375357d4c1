/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which FP8 and FP4 products cublasLtMatmul takes, on a GPU of each compute capability: every combination of types, scale
 * modes, transposes and sizes below, against rules that are written here anew from what is known of cuBLASLt (observed for
 * 8.0, 8.9 and 9.0 with 12.4, documented from there on). A combination is to be taken exactly when it breaks no rule; the
 * printed table says how many combinations each rule rejects, and how many it alone.
 */
#include <check.h>
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/reference.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define E4 CUDA_R_8F_E4M3
#define E5 CUDA_R_8F_E5M2
#define F4 CUDA_R_4F_E2M1
#define BF CUDA_R_16BF
#define HF CUDA_R_16F
#define FP CUDA_R_32F

enum mode { SCALAR, VEC16, VEC32, OUTER, VEC128, BLK128, PER_BATCH, MODES };

struct combination {
  cudaDataType a, b, c, d;
  enum mode mode_a, mode_b;
  char trans_a, trans_b;
  int64_t m, n, k, pad_a, pad_b, pad_d;
  int batch;
  uint32_t epilogue;
  int bias_type; /* -1: not set */
};

static const struct gpu {
  const char *key;
  int capability;
} gpus[] = {{"a100", 80}, {"l40s", 89}, {"h100", 90}, {"b200", 100}, {"b300", 103}, {"rtx_pro_6000", 120}};
static int capability;

/* --------------------------------------------------------------------------------------------------------- the rules */

static bool is_fp8(cudaDataType type) {
  return type == E4 || type == E5;
}

static bool is_fp4(const struct combination *x) {
  return x->a == F4 && x->b == F4;
}

static bool is_128(enum mode mode) {
  return mode == VEC128 || mode == BLK128;
}

static int64_t d_bytes(const struct combination *x) {
  return x->d == FP ? 4 : x->d == BF || x->d == HF ? 2 : 1;
}

/* Elements in 16 bytes of an operand. */
static int64_t operand_16(const struct combination *x) {
  return is_fp4(x) ? 32 : 16;
}

static bool is_tn(const struct combination *x) {
  return x->trans_a == 'T' && x->trans_b == 'N';
}

/* Leading dimensions, as make_layouts() has them. */
static int64_t ld_a(const struct combination *x) {
  return (x->trans_a == 'N' ? x->m : x->k) + x->pad_a;
}

static int64_t ld_b(const struct combination *x) {
  return (x->trans_b == 'N' ? x->k : x->n) + x->pad_b;
}

static bool operands_pair(const struct combination *x) {
  return (is_fp8(x->a) && is_fp8(x->b) && !(x->a == E5 && x->b == E5)) || is_fp4(x);
}

static bool results_pair(const struct combination *x) {
  bool wide = x->c == x->d && (x->d == BF || x->d == HF || x->d == FP);
  return wide || (!is_fp4(x) && is_fp8(x->d) && (x->c == BF || x->c == HF));
}

static bool e5m2_result_has_e5m2_operand(const struct combination *x) {
  return x->d != E5 || x->a == E5 || x->b == E5;
}

static bool fp8_from_89(const struct combination *x) {
  return capability >= 89 || is_fp4(x);
}

static bool mode_for_operand(const struct combination *x) {
  return is_fp4(x) ? x->mode_a == VEC16 && x->mode_b == VEC16 : x->mode_a != VEC16 && x->mode_b != VEC16;
}

static bool modes_equal(const struct combination *x) {
  if (is_128(x->mode_a) && is_128(x->mode_b))
    return x->mode_a != BLK128 || x->mode_b != BLK128;
  return x->mode_a == x->mode_b;
}

static bool block_modes_from_100(const struct combination *x) {
  return capability >= 100 || (x->mode_a != VEC16 && x->mode_a != VEC32);
}

static bool vector_modes_on_90(const struct combination *x) {
  return x->mode_a < OUTER || x->mode_a > BLK128 || capability == 90;
}

static bool vector_modes_since_129(const struct combination *x) {
  return CUBLAS_VERSION >= 120900 || x->mode_a < OUTER || x->mode_a > BLK128;
}

static bool mode_known(const struct combination *x) {
  return x->mode_a <= BLK128;
}

static bool narrow_result_with_scalars(const struct combination *x) {
  return !is_fp8(x->d) || x->mode_a == SCALAR;
}

static bool layout_fits(const struct combination *x) {
  if (is_tn(x))
    return true;
  if (capability == 100 || capability == 103)
    return !is_fp4(x);
  bool one_row = x->m == 1 && x->trans_a == 'N' && x->trans_b == 'N';
  return one_row && capability <= 90 && x->mode_a == SCALAR && !is_fp4(x);
}

static bool k_fits(const struct combination *x) {
  return x->k % operand_16(x) == 0;
}

static bool leading_dimensions_fit(const struct combination *x) {
  return ld_a(x) % operand_16(x) == 0 && ld_b(x) % operand_16(x) == 0;
}

static bool rows_of_d_fit(const struct combination *x) {
  return x->m == 1 || x->m * d_bytes(x) % 16 == 0;
}

static bool columns_of_d_fit(const struct combination *x) {
  return x->n == 1 || (x->m + x->pad_d) * d_bytes(x) % 16 == 0;
}

static bool m_is_16_where_memory_runs_along_it(const struct combination *x) {
  bool seen = capability <= 90 && x->m == 1;
  return x->trans_a != 'N' || seen || x->m % operand_16(x) == 0;
}

static bool n_is_16_where_memory_runs_along_it(const struct combination *x) {
  return x->trans_b != 'T' || x->n % operand_16(x) == 0;
}

static bool quads_with_128(const struct combination *x) {
  return !is_128(x->mode_a) || (x->m % 4 == 0 && x->n % 4 == 0);
}

static bool batch_with_scalars(const struct combination *x) {
  return x->batch == 1 || x->mode_a == SCALAR;
}

static bool no_gradient_of_operands(const struct combination *x) {
  return x->epilogue != CUBLASLT_EPILOGUE_BGRADA && x->epilogue != CUBLASLT_EPILOGUE_BGRADB;
}

static bool uses_bias(uint32_t epilogue) {
  return (epilogue & CUBLASLT_EPILOGUE_BIAS) || (epilogue & 16);
}

static bool bias_type_fits(const struct combination *x) {
  cudaDataType right = x->d == HF || (is_fp8(x->d) && x->c == HF) ? HF : BF;
  return !uses_bias(x->epilogue) || x->bias_type == -1 || x->bias_type == (int)right;
}

static struct rule {
  const char *name;
  bool (*holds)(const struct combination *);
  long long rejects, alone;
} rules[] = {
#define RULE(name)                                                                                                          \
  { #name, name, 0, 0 }
    RULE(operands_pair),
    RULE(results_pair),
    RULE(e5m2_result_has_e5m2_operand),
    RULE(fp8_from_89),
    RULE(mode_for_operand),
    RULE(modes_equal),
    RULE(mode_known),
    RULE(block_modes_from_100),
    RULE(vector_modes_on_90),
    RULE(vector_modes_since_129),
    RULE(narrow_result_with_scalars),
    RULE(layout_fits),
    RULE(k_fits),
    RULE(leading_dimensions_fit),
    RULE(rows_of_d_fit),
    RULE(columns_of_d_fit),
    RULE(m_is_16_where_memory_runs_along_it),
    RULE(n_is_16_where_memory_runs_along_it),
    RULE(quads_with_128),
    RULE(batch_with_scalars),
    RULE(no_gradient_of_operands),
    RULE(bias_type_fits),
};
/* Rules that no combination can break alone: what they say follows from others on this GPU or in this version. */
static bool may_never_be_alone(const struct rule *rule) {
  if (rule->holds == fp8_from_89)
    return capability >= 89;
  if (rule->holds == vector_modes_on_90)
    return capability < 89 || capability == 90 || CUBLAS_VERSION < 120900;
  if (rule->holds == vector_modes_since_129)
    return capability != 90 || CUBLAS_VERSION >= 120900;
  if (rule->holds == block_modes_from_100)
    return capability < 89 || capability >= 100;
  if (rule->holds == quads_with_128)
    return capability != 90 || CUBLAS_VERSION < 120900;
  if (rule->holds == m_is_16_where_memory_runs_along_it || rule->holds == n_is_16_where_memory_runs_along_it)
    return capability != 100 && capability != 103;
  if (rule->holds == batch_with_scalars)
    return capability < 90 || (capability == 90 && CUBLAS_VERSION < 120900);
  if (rule->holds == narrow_result_with_scalars)
    return capability < 90 || (capability == 90 && CUBLAS_VERSION < 120900);
  /* PER_BATCH_SCALAR_32F: a mode of everything else. Nothing is taken on 8.0. */
  return capability < 89 && rule->holds != fp8_from_89;
}

static bool expected(const struct combination *x) {
  struct rule *broken = NULL;
  int count = 0;
  for (int i = 0; i < COUNT(rules); i++)
    if (!rules[i].holds(x)) {
      rules[i].rejects++;
      broken = &rules[i];
      count++;
    }
  if (count == 1)
    broken->alone++;
  return count == 0;
}

/* ------------------------------------------------------------------------------------------------------- the question */

static cublasLtHandle_t handle;
static cublasLtMatmulPreference_t preference;

static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
  if (cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes) != CUBLAS_STATUS_SUCCESS)
    ck_abort_msg("attribute %d", (int)attribute);
}

static void make_desc(const struct combination *x, cublasLtMatmulDesc_t desc) {
  int32_t ta = x->trans_a == 'T', tb = x->trans_b == 'T', mode_a = (int32_t)x->mode_a, mode_b = (int32_t)x->mode_b;
  int64_t aux_ld = (x->m + 127) / 128 * 128;
  if (cublasLtMatmulDescInit(desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS)
    ck_abort_msg("no descriptor");
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
  set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode_a, sizeof mode_a);
  set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode_b, sizeof mode_b);
  set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
  if (x->epilogue)
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &x->epilogue, sizeof x->epilogue);
  if (x->bias_type != -1)
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &x->bias_type, sizeof x->bias_type);
}

static void make_layout(cublasLtMatrixLayout_t layout, cudaDataType type, bool transposed, int64_t rows, int64_t cols,
                        int64_t pad, int batch) {
  int64_t stored = transposed ? cols : rows, lines = transposed ? rows : cols, stride = (stored + pad) * lines;
  cublasLtMatrixLayoutInit(layout, type, (uint64_t)stored, (uint64_t)lines, stored + pad);
  if (batch == 1)
    return;
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static bool taken(const struct combination *x) {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  cublasLtMatmulHeuristicResult_t result;
  int count = -1;
  make_desc(x, &desc);
  make_layout(&a, x->a, x->trans_a == 'T', x->m, x->k, x->pad_a, x->batch);
  make_layout(&b, x->b, x->trans_b == 'T', x->k, x->n, x->pad_b, x->batch);
  make_layout(&c, x->c, false, x->m, x->n, x->pad_d, x->batch);
  make_layout(&d, x->d, false, x->m, x->n, x->pad_d, x->batch);
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &desc, &a, &b, &c, &d, preference, 1, &result, &count);
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
    ck_abort_msg("status %d", (int)status);
  if (count != (status == CUBLAS_STATUS_SUCCESS))
    ck_abort_msg("status %d with %d results", (int)status, count);
  return count == 1;
}

struct tally {
  long long taken, refused;
};

static void ask(const struct combination *x, struct tally *tally) {
  bool want = expected(x), got = taken(x);
  if (got != want)
    ck_abort_msg("capability %d: %s A=%s B=%s C=%d D=%d modes %d %d %c%c m=%d n=%d k=%d pad %d %d %d batch %d epilogue %u "
                 "bias type %d",
                 capability, got ? "taken, is to be refused:" : "refused, is to be taken:", x->a == F4 ? "e2m1" : "8f",
                 x->b == F4 ? "e2m1" : "8f", (int)x->c, (int)x->d, (int)x->mode_a, (int)x->mode_b, x->trans_a, x->trans_b,
                 (int)x->m, (int)x->n, (int)x->k, (int)x->pad_a, (int)x->pad_b, (int)x->pad_d, x->batch, x->epilogue,
                 x->bias_type);
  tally->taken += got;
  tally->refused += !got;
}

/* -------------------------------------------------------------------------------------------------- the combinations */

static const struct {
  int64_t m, n, k, pad_a, pad_b, pad_d;
} sizes[] = {
    {32, 48, 64, 0, 0, 0},   {16, 17, 64, 0, 0, 0}, {16, 1, 128, 0, 0, 0}, {1, 32, 64, 0, 0, 0},    {8, 16, 64, 0, 0, 0},
    {24, 32, 96, 8, 0, 0},   {32, 24, 96, 0, 8, 0}, {12, 16, 64, 0, 0, 0}, {12, 16, 64, 0, 0, 4},   {32, 24, 64, 8, 8, 0},
    {32, 32, 48, 0, 0, 0},   {32, 32, 40, 0, 0, 0}, {32, 32, 40, 8, 8, 0}, {32, 32, 40, 24, 24, 0}, {32, 32, 64, 16, 16, 0},
    {32, 32, 64, 32, 32, 0}, {32, 32, 64, 8, 0, 0}, {32, 32, 64, 0, 8, 0}, {16, 16, 32, 0, 0, 4},   {6, 16, 64, 0, 0, 2},
    {6, 16, 64, 10, 0, 2},   {3, 5, 7, 0, 0, 0},    {16, 18, 64, 0, 0, 0}, {16, 32, 64, 0, 0, 8},
};
static const cudaDataType operands[] = {E4, E5, F4, BF};
static const struct {
  cudaDataType c, d;
} results[] = {{BF, BF}, {HF, HF}, {FP, FP}, {BF, E4}, {HF, E4}, {FP, E4}, {BF, E5}, {HF, E5}, {FP, BF}, {BF, HF}, {HF, FP}};
static const char layouts[][2] = {{'T', 'N'}, {'N', 'N'}, {'N', 'T'}, {'T', 'T'}};

static void ask_types_modes_layouts_sizes(struct tally *tally) {
  struct combination x = {.batch = 1, .bias_type = -1};
  for (int size = 0; size < COUNT(sizes); size++)
    for (int result = 0; result < COUNT(results); result++)
      for (int pair = 0; pair < COUNT(operands) * COUNT(operands); pair++)
        for (int layout = 0; layout < COUNT(layouts); layout++)
          for (int modes = 0; modes < MODES * MODES; modes++) {
            x.m = sizes[size].m, x.n = sizes[size].n, x.k = sizes[size].k;
            x.pad_a = sizes[size].pad_a, x.pad_b = sizes[size].pad_b, x.pad_d = sizes[size].pad_d;
            x.c = results[result].c, x.d = results[result].d;
            x.a = operands[pair / COUNT(operands)], x.b = operands[pair % COUNT(operands)];
            x.trans_a = layouts[layout][0], x.trans_b = layouts[layout][1];
            x.mode_a = (enum mode)(modes / MODES), x.mode_b = (enum mode)(modes % MODES);
            bool wide = x.a == BF && x.b == BF;
            if (wide && modes == 0)
              continue; /* an ordinary product: other tests */
            ask(&x, tally);
          }
}

static const uint32_t epilogues[] = {
    CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_RELU,     CUBLASLT_EPILOGUE_RELU_BIAS,
    CUBLASLT_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,    CUBLASLT_EPILOGUE_DRELU_BGRAD,
    CUBLASLT_EPILOGUE_GELU,     CUBLASLT_EPILOGUE_GELU_BIAS,     CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_DGELU_BGRAD,   CUBLASLT_EPILOGUE_BGRADA,   CUBLASLT_EPILOGUE_BGRADB,
};
static const int bias_types[] = {-1, BF, HF, FP};
static const struct {
  cudaDataType a, b;
  enum mode mode_a, mode_b;
} recipes[] = {
    {E4, E4, SCALAR, SCALAR}, {E4, E5, SCALAR, SCALAR}, {E5, E4, SCALAR, SCALAR}, {E4, E4, VEC32, VEC32},
    {E4, E5, VEC32, VEC32},   {E5, E4, VEC32, VEC32},   {F4, F4, VEC16, VEC16},   {E4, E4, OUTER, OUTER},
    {E4, E4, VEC128, VEC128}, {E4, E4, VEC128, BLK128}, {E4, E4, BLK128, VEC128},
};

static void ask_epilogues_and_batches(struct tally *tally) {
  struct combination x = {.m = 32, .n = 48, .k = 128};
  for (int recipe = 0; recipe < COUNT(recipes); recipe++)
    for (int layout = 0; layout < COUNT(layouts); layout++)
      for (int result = 0; result < COUNT(results); result++)
        for (int epilogue = 0; epilogue < COUNT(epilogues); epilogue++)
          for (int bias = 0; bias < COUNT(bias_types); bias++)
            for (x.batch = 1; x.batch <= 3; x.batch += 2) {
              x.a = recipes[recipe].a, x.b = recipes[recipe].b;
              x.mode_a = recipes[recipe].mode_a, x.mode_b = recipes[recipe].mode_b;
              x.trans_a = layouts[layout][0], x.trans_b = layouts[layout][1];
              x.c = results[result].c, x.d = results[result].d;
              x.epilogue = epilogues[epilogue], x.bias_type = bias_types[bias];
              ask(&x, tally);
            }
}

/* What _scaled_mm hands over (at::cuda::blas::scaled_gemm): TN, dense; k and m multiples of 16 (NVFP4: k of 32), any n; C
   has the type of bias, else of D, and FP16 beside FP8. Block scales give no FP8. */
static void ask_what_pytorch_can_ask(struct tally *tally) {
  static const int64_t ms[] = {16, 48, 128}, ns[] = {1, 16, 17, 130}, ks[] = {16, 32, 48, 128, 160};
  static const cudaDataType outs[] = {BF, HF, FP, E4, E5};
  struct combination x = {.trans_a = 'T', .trans_b = 'N', .batch = 1};
  for (int recipe = 0; recipe < COUNT(recipes); recipe++)
    for (int out = 0; out < COUNT(outs); out++)
      for (int bias = 0; bias < 3; bias++)
        for (int size = 0; size < COUNT(ms) * COUNT(ns) * COUNT(ks); size++) {
          x.m = ms[size % COUNT(ms)], x.n = ns[size / COUNT(ms) % COUNT(ns)], x.k = ks[size / COUNT(ms) / COUNT(ns)];
          x.a = recipes[recipe].a, x.b = recipes[recipe].b;
          x.mode_a = recipes[recipe].mode_a, x.mode_b = recipes[recipe].mode_b;
          x.d = outs[out];
          x.epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
          x.bias_type = bias == 0 ? -1 : bias == 1 ? (int)BF : (int)HF;
          x.c = bias ? (cudaDataType)x.bias_type : is_fp8(x.d) ? HF : x.d;
          if ((x.d == FP && bias) || (is_fp4(&x) && x.k % 32 != 0))
            continue; /* PyTorch refuses these itself */
          ask(&x, tally);
        }
}

static int algorithms_for(cudaDataType operand) {
  int ids[4], count = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetIds(handle, CUBLAS_COMPUTE_32F, FP, operand, operand, BF, BF, COUNT(ids), ids, &count);
  ck_assert_int_eq(status, count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED);
  return count;
}

START_TEST(rules_hold) {
  capability = gpus[_i].capability;
  setenv("B200OPT_VNODE_GPU", gpus[_i].key, 1);
  uint64_t workspace = 32 << 20;
  ck_assert_int_eq(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  struct tally all = {0}, beside = {0}, pytorch = {0};
  ask_types_modes_layouts_sizes(&all);
  ask_epilogues_and_batches(&beside);
  ask_what_pytorch_can_ask(&pytorch);
  printf("capability %d, cuBLAS %d: types, modes, layouts, sizes: %lld taken, %lld refused; epilogues, bias types, batches: "
         "%lld taken, %lld refused; of PyTorch's: %lld taken, %lld refused\n",
         capability, CUBLAS_VERSION, all.taken, all.refused, beside.taken, beside.refused, pytorch.taken, pytorch.refused);
  ck_assert_int_eq(all.taken > 0, capability >= 89);
  ck_assert_int_eq(algorithms_for(E4), capability >= 89);
  ck_assert_int_eq(algorithms_for(F4), capability >= 100);
  ck_assert_int_eq(pytorch.taken > 0, capability >= 89);
  for (int i = 0; i < COUNT(rules); i++) {
    printf("  %-36s rejects %8lld, alone %6lld\n", rules[i].name, rules[i].rejects, rules[i].alone);
    if (!may_never_be_alone(&rules[i]))
      ck_assert_msg(rules[i].alone > 0, "capability %d: no combination tells what %s is for", capability, rules[i].name);
  }
  fflush(stdout);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_narrow_rules");
  TCase *cases = tcase_create("rules");
  tcase_set_timeout(cases, 300);
  tcase_add_loop_test(cases, rules_hold, 0, COUNT(gpus));
  suite_add_tcase(suite, cases);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
