/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which FP8 and FP4 products cublasLtMatmul takes, on a GPU of each compute capability: every combination of types, scale
 * modes, transposes and sizes below, against the rules of narrow_rules.h. A combination is to be taken exactly when it
 * breaks no rule; the printed table says how many combinations each rule rejects, and how many it alone.
 */
#include <check.h>
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/narrow_rules.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define E4 CUDA_R_8F_E4M3
#define E5 CUDA_R_8F_E5M2
#define F4 CUDA_R_4F_E2M1
#define BF CUDA_R_16BF
#define HF CUDA_R_16F
#define FP CUDA_R_32F

static const struct gpu {
  const char *key;
  int capability;
} gpus[] = {{"a100", 80}, {"l40s", 89}, {"h100", 90}, {"b200", 100}, {"b300", 103}, {"rtx_pro_6000", 120}};
static int capability;

/* How many combinations each rule rejects, and how many it alone. */
static long long rejects[NARROW_RULES], alone[NARROW_RULES];

static bool is(const struct narrow_rule *rule, const char *name) {
  return strcmp(rule->name, name) == 0;
}

/* Rules that no combination can break alone: what they say follows from others on this GPU or in this version. */
static bool may_never_be_alone(const struct narrow_rule *rule) {
  if (is(rule, "fp8_from_89"))
    return capability >= 89;
  if (is(rule, "vector_modes_on_90"))
    return capability < 89 || capability == 90 || CUBLAS_VERSION < 120900;
  if (is(rule, "vector_modes_since_129"))
    return capability != 90 || CUBLAS_VERSION >= 120900;
  if (is(rule, "block_modes_from_100"))
    return capability < 89 || capability >= 100;
  if (is(rule, "quads_with_128"))
    return capability != 90 || CUBLAS_VERSION < 120900;
  if (is(rule, "m_is_16_where_memory_runs_along_it") || is(rule, "n_is_16_where_memory_runs_along_it"))
    return capability != 100 && capability != 103;
  if (is(rule, "batch_with_scalars"))
    return capability < 90 || (capability == 90 && CUBLAS_VERSION < 120900);
  if (is(rule, "narrow_result_with_scalars"))
    return capability < 90 || (capability == 90 && CUBLAS_VERSION < 120900);
  /* PER_BATCH_SCALAR_32F: a mode of everything else. Nothing is taken on 8.0. */
  return capability < 89 && !is(rule, "fp8_from_89");
}

static bool expected(const struct combination *x) {
  int broken = 0, count = 0;
  for (int i = 0; i < NARROW_RULES; i++)
    if (!narrow_rules[i].holds(x)) {
      rejects[i]++;
      broken = i;
      count++;
    }
  if (count == 1)
    alone[broken]++;
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
  struct combination x = {.capability = capability, .batch = 1, .bias_type = -1};
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
  struct combination x = {.capability = capability, .m = 32, .n = 48, .k = 128};
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
  struct combination x = {.capability = capability, .trans_a = 'T', .trans_b = 'N', .batch = 1};
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
          x.c = bias ? (cudaDataType)x.bias_type : x.d == E4 || x.d == E5 ? HF : x.d;
          if ((x.d == FP && bias) || (x.a == F4 && x.k % 32 != 0))
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
  for (int i = 0; i < NARROW_RULES; i++) {
    printf("  %-36s rejects %8lld, alone %6lld\n", narrow_rules[i].name, rejects[i], alone[i]);
    if (!may_never_be_alone(&narrow_rules[i]))
      ck_assert_msg(alone[i] > 0, "capability %d: no combination tells what %s is for", capability, narrow_rules[i].name);
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
