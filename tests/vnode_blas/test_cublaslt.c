/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcublasLt.so.13 of the virtual node: descriptors, acceptance rules, and matmul with every epilogue against FP64.
 */
#include <check.h>
#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/reference.h"

#define OK CUBLAS_STATUS_SUCCESS
#define UNSUPPORTED CUBLAS_STATUS_NOT_SUPPORTED
#define INVALID CUBLAS_STATUS_INVALID_VALUE

static cublasLtHandle_t handle;
static char workspace[1 << 20] __attribute__((aligned(256)));

static void setup(void) {
  ck_assert_int_eq(cublasLtCreate(&handle), OK);
}

static void teardown(void) {
  ck_assert_int_eq(cublasLtDestroy(handle), OK);
}

/* -------------------------------------------------------------------------------------------------------- attributes */

struct attribute {
  int id;
  size_t bytes;
  uint64_t initial;
};

/* As the library of cuBLAS 13.4 states them for a descriptor made with CUBLAS_COMPUTE_32F and CUDA_R_32F. */
static const struct attribute matmul_attributes[] = {
    {0, 4, 68}, {1, 4, 0},           {2, 4, 0},  {3, 4, 0},  {4, 4, 0},  {5, 4, 0},           {6, 4, 2},  {7, 4, 1},
    {8, 8, 0},  {10, 8, 0},          {11, 8, 0}, {12, 8, 0}, {13, 8, 0}, {14, 8, 0},          {15, 4, 0}, {16, 4, 0},
    {17, 8, 0}, {18, 8, 0},          {19, 8, 0}, {20, 8, 0}, {21, 8, 0}, {22, 4, 0xffffffff}, {23, 8, 0}, {24, 8, 0},
    {25, 1, 0}, {26, 4, 0xffffffff}, {31, 4, 0}, {32, 4, 0}, {33, 4, 0}, {34, 4, 0},          {35, 4, 0}, {36, 8, 0},
#if CUBLAS_VER_MAJOR >= 13
    {38, 8, 0}, {39, 8, 0},          {40, 8, 0},
#endif
    {37, 4, 0}};
#if CUBLAS_VER_MAJOR >= 13
static const int matmul_unknown[] = {-1, 9, 27, 30, 41};
#else
static const int matmul_unknown[] = {-1, 9, 27, 30, 38, 39, 40};
#endif

START_TEST(matmul_attributes_are_kept) {
  cublasLtMatmulDesc_t desc;
  ck_assert_int_eq(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), OK);
  for (size_t i = 0; i < sizeof matmul_attributes / sizeof matmul_attributes[0]; i++) {
    const struct attribute *known = &matmul_attributes[i];
    cublasLtMatmulDescAttributes_t id = (cublasLtMatmulDescAttributes_t)known->id;
    uint64_t value = 0, pattern = 0x1122334455667788;
    size_t written = 0;
    ck_assert_int_eq(cublasLtMatmulDescGetAttribute(desc, id, NULL, 0, &written), OK);
    ck_assert_uint_eq(written, known->bytes);
    ck_assert_int_eq(cublasLtMatmulDescGetAttribute(desc, id, &value, known->bytes, &written), OK);
    ck_assert_uint_eq(value, known->initial);
    for (size_t bytes = 0; bytes <= 16; bytes++)
      if (bytes != known->bytes)
        ck_assert_int_eq(cublasLtMatmulDescSetAttribute(desc, id, &pattern, bytes), INVALID);
    ck_assert_int_eq(cublasLtMatmulDescSetAttribute(desc, id, &pattern, known->bytes), OK);
  }
  for (size_t i = 0; i < sizeof matmul_attributes / sizeof matmul_attributes[0]; i++) { /* none overlaps another */
    uint64_t value = 0, pattern = 0x1122334455667788;
    size_t bytes = matmul_attributes[i].bytes;
    ck_assert_int_eq(
        cublasLtMatmulDescGetAttribute(desc, (cublasLtMatmulDescAttributes_t)matmul_attributes[i].id, &value, bytes, NULL),
        OK);
    ck_assert(memcmp(&value, &pattern, bytes) == 0);
  }
  for (size_t i = 0; i < sizeof matmul_unknown / sizeof matmul_unknown[0]; i++) {
    size_t written;
    ck_assert_int_eq(
        cublasLtMatmulDescGetAttribute(desc, (cublasLtMatmulDescAttributes_t)matmul_unknown[i], NULL, 0, &written), INVALID);
  }
  ck_assert_int_eq(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 4), INVALID);
  ck_assert_int_eq(cublasLtMatmulDescGetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 0, NULL), INVALID);
  ck_assert_int_eq(cublasLtMatmulDescDestroy(desc), OK);
}
END_TEST

START_TEST(descriptors_of_the_caller) {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t layout;
  cublasLtMatmulPreferenceOpaque_t preference;
  uint64_t rows = 0, workspace_bytes = 7;
  uint32_t alignment = 0;
  int32_t batch = 0;
  ck_assert_int_eq(cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), OK);
  ck_assert_int_eq(cublasLtMatmulDescInit_internal(&desc, 8, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_ALLOC_FAILED);
  ck_assert_int_eq(cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, 4, 5, 6), OK);
  ck_assert_int_eq(cublasLtMatrixLayoutGetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows, NULL), OK);
  ck_assert_uint_eq(rows, 4);
  ck_assert_int_eq(cublasLtMatrixLayoutGetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch, NULL),
                   OK);
  ck_assert_int_eq(batch, 1);
  ck_assert_int_eq(cublasLtMatmulPreferenceInit(&preference), OK);
  ck_assert_int_eq(
      cublasLtMatmulPreferenceGetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, 4, NULL),
      OK);
  ck_assert_uint_eq(alignment, 256);
  ck_assert_int_eq(
      cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 4),
      INVALID);
  ck_assert_int_eq(
      cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 8), OK);
}
END_TEST

/* ---------------------------------------------------------------------------------------------------------- a matmul */

struct matmul {
  char trans_a, trans_b;
  int64_t m, n, k;
  int64_t batch, pad;
  cudaDataType in_a, in_b, out_c, out_d, scale;
  cublasComputeType_t compute;
  uint32_t epilogue;
  struct reference_matrix a, b, c, d;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t layout_a, layout_b, layout_c, layout_d;
};

static cublasLtMatrixLayout_t layout_of(const struct reference_matrix *matrix) {
  cublasLtMatrixLayout_t layout;
  int32_t batch = (int32_t)matrix->batch;
  ck_assert_int_eq(
      cublasLtMatrixLayoutCreate(&layout, matrix->type, (uint64_t)matrix->rows, (uint64_t)matrix->cols, matrix->ld), OK);
  ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch), OK);
  ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix->stride, 8),
                   OK);
  return layout;
}

static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
  ck_assert_int_eq(cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes), OK);
}

static void matmul_make(struct matmul *matmul) {
  bool plain_a = matmul->trans_a == 'N', plain_b = matmul->trans_b == 'N';
  int64_t m = matmul->m, n = matmul->n, k = matmul->k, batch = matmul->batch ? matmul->batch : 1, pad = matmul->pad;
  matmul->a = reference_random(matmul->in_a, plain_a ? m : k, plain_a ? k : m, pad, batch);
  matmul->b = reference_random(matmul->in_b, plain_b ? k : n, plain_b ? n : k, pad, batch);
  matmul->c = reference_random(matmul->out_c, m, n, pad, batch);
  matmul->d = reference_random(matmul->out_d, m, n, pad, batch);
  int32_t ta = plain_a ? CUBLAS_OP_N : CUBLAS_OP_T, tb = plain_b ? CUBLAS_OP_N : CUBLAS_OP_T;
  ck_assert_int_eq(cublasLtMatmulDescCreate(&matmul->desc, matmul->compute, matmul->scale), OK);
  set(matmul->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
  set(matmul->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
  if (matmul->epilogue)
    set(matmul->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &matmul->epilogue, sizeof matmul->epilogue);
  matmul->layout_a = layout_of(&matmul->a);
  matmul->layout_b = layout_of(&matmul->b);
  matmul->layout_c = layout_of(&matmul->c);
  matmul->layout_d = layout_of(&matmul->d);
}

static void matmul_free(struct matmul *matmul) {
  reference_free(&matmul->a);
  reference_free(&matmul->b);
  reference_free(&matmul->c);
  reference_free(&matmul->d);
  cublasLtMatrixLayoutDestroy(matmul->layout_a);
  cublasLtMatrixLayoutDestroy(matmul->layout_b);
  cublasLtMatrixLayoutDestroy(matmul->layout_c);
  cublasLtMatrixLayoutDestroy(matmul->layout_d);
  cublasLtMatmulDescDestroy(matmul->desc);
}

static cublasStatus_t heuristic(const struct matmul *matmul, uint64_t max_workspace, uint32_t alignment,
                                cublasLtMatmulHeuristicResult_t *result, int *count) {
  cublasLtMatmulPreference_t preference;
  ck_assert_int_eq(cublasLtMatmulPreferenceCreate(&preference), OK);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &max_workspace,
                                       sizeof max_workspace);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment);
  *count = -1;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, matmul->desc, matmul->layout_a, matmul->layout_b,
                                                         matmul->layout_c, matmul->layout_d, preference, 1, result, count);
  ck_assert_int_eq(cublasLtMatmulPreferenceDestroy(preference), OK);
  return status;
}

static cublasStatus_t matmul_run(const struct matmul *matmul, const void *alpha, const void *beta,
                                 const cublasLtMatmulAlgo_t *algo) {
  return finish(cublasLtMatmul(handle, matmul->desc, alpha, matmul->a.data, matmul->layout_a, matmul->b.data,
                               matmul->layout_b, beta, matmul->c.data, matmul->layout_c, matmul->d.data, matmul->layout_d,
                               algo, workspace, sizeof workspace, NULL));
}

/* --------------------------------------------------------------------------------------------------------- acceptance */

#define E4 CUDA_R_8F_E4M3
#define E5 CUDA_R_8F_E5M2
#define BF CUDA_R_16BF
#define HF CUDA_R_16F
#define FP CUDA_R_32F
#define F32 CUDA_R_32F, CUBLAS_COMPUTE_32F

#define PROBLEM(...) PROBLEM_FIELDS(__VA_ARGS__)
#define PROBLEM_FIELDS(ta, tb, rows, cols, depth, count, padding, type_a, type_b, type_c, type_d, scale_type, compute_type, \
                       what)                                                                                                \
  {                                                                                                                         \
    .trans_a = ta, .trans_b = tb, .m = rows, .n = cols, .k = depth, .batch = count, .pad = padding, .in_a = type_a,         \
    .in_b = type_b, .out_c = type_c, .out_d = type_d, .scale = scale_type, .compute = compute_type, .epilogue = what        \
  }

struct rule {
  struct matmul matmul;
  cublasStatus_t want;
};

/* Rows of the acceptance table for the B200 (compute capability 10.0): any transposes; the rest as on 9.0. */
static const struct rule rules[] = {
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E5, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E5, E4, HF, HF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E5, E5, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E4, FP, FP, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E4, FP, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E4, BF, E4, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E4, BF, E5, F32, 0), UNSUPPORTED},
    {PROBLEM('T', 'N', 32, 17, 64, 1, 0, E4, E5, BF, E5, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 1, 16, 1, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 127, 48, 1, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 16, 40, 1, 0, E4, E4, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('N', 'T', 32, 16, 40, 1, 0, E4, E4, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('T', 'N', 12, 16, 64, 1, 0, E4, E4, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('T', 'N', 12, 16, 64, 1, 0, E4, E4, FP, FP, F32, 0), OK},
    {PROBLEM('T', 'N', 1, 1, 64, 1, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 16, 64, 1, 8, E4, E4, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('T', 'N', 32, 16, 64, 1, 16, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('N', 'N', 32, 16, 64, 1, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('N', 'T', 32, 16, 64, 1, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 16, 64, 3, 0, E4, E4, BF, BF, F32, 0), OK},
    {PROBLEM('T', 'N', 32, 16, 64, 1, 0, E4, E4, BF, BF, F32, CUBLASLT_EPILOGUE_GELU_BIAS), OK},
    {PROBLEM('T', 'N', 32, 16, 64, 1, 0, E4, E4, BF, BF, F32, CUBLASLT_EPILOGUE_BGRADB), UNSUPPORTED},
    {PROBLEM('T', 'N', 32, 16, 64, 1, 0, E4, BF, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, BF, BF, BF, BF, F32, CUBLASLT_EPILOGUE_BIAS), OK},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, BF, BF, BF, BF, F32, 5), INVALID},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, BF, BF, FP, FP, F32, CUBLASLT_EPILOGUE_BGRADB), OK},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, BF, HF, BF, BF, F32, 0), UNSUPPORTED},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, FP, FP, FP, FP, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 0), OK},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, BF, BF, BF, BF, CUDA_R_64F, CUBLAS_COMPUTE_32F, 0), UNSUPPORTED},
    {PROBLEM('N', 'N', 3, 5, 7, 1, 1, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F,
             CUBLASLT_EPILOGUE_BIAS),
     OK},
    {PROBLEM('T', 'N', 20, 18, 32, 1, 0, CUDA_R_8I, CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 0),
     OK},
    {PROBLEM('T', 'N', 20, 18, 30, 1, 0, CUDA_R_8I, CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 0),
     UNSUPPORTED},
};

START_TEST(acceptance) {
  struct matmul matmul = rules[_i].matmul;
  cublasLtMatmulHeuristicResult_t result, checked;
  int count;
  matmul_make(&matmul);
  cublasStatus_t got = heuristic(&matmul, 32 << 20, 256, &result, &count);
  ck_assert_msg(got == rules[_i].want, "row %d: %d, not %d", _i, (int)got, (int)rules[_i].want);
  ck_assert_int_eq(count, got == OK);
  if (got == OK) {
    ck_assert_int_eq(result.state, OK);
    ck_assert_uint_le(result.workspaceSize, 32 << 20);
    ck_assert_int_eq(cublasLtMatmulAlgoCheck(handle, matmul.desc, matmul.layout_a, matmul.layout_b, matmul.layout_c,
                                             matmul.layout_d, &result.algo, &checked),
                     OK);
    ck_assert_uint_eq(checked.workspaceSize, result.workspaceSize);
  }
  const float one = 1, zero = 0;
  ledger_calls = 0;
  if (!matmul.epilogue && matmul.scale == CUDA_R_32F) /* the call gives the same answer */
    ck_assert_int_eq(matmul_run(&matmul, &one, &zero, NULL), rules[_i].want);
  ck_assert(got == OK || ledger_calls == 0);
  matmul_free(&matmul);
}
END_TEST

START_TEST(block_scales_and_orders_are_refused) {
  struct matmul matmul = rules[0].matmul;
  cublasLtMatmulHeuristicResult_t result;
  int count;
  matmul_make(&matmul);
  int32_t block = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, scalar = 0, row_order = CUBLASLT_ORDER_ROW;
  set(matmul.desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &block, sizeof block);
  ck_assert_int_eq(heuristic(&matmul, 32 << 20, 256, &result, &count), UNSUPPORTED);
  ck_assert_int_eq(count, 0);
  set(matmul.desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &scalar, sizeof scalar);
  ck_assert_int_eq(heuristic(&matmul, 32 << 20, 256, &result, &count), OK);
  ck_assert_int_eq(heuristic(&matmul, 32 << 20, 8, &result, &count), UNSUPPORTED);
  ck_assert_int_eq(heuristic(&matmul, 0, 256, &result, &count), UNSUPPORTED);
  ck_assert_int_eq(heuristic(&matmul, 64 << 10, 256, &result, &count), OK);
  ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(matmul.layout_a, CUBLASLT_MATRIX_LAYOUT_ORDER, &row_order, 4), OK);
  ck_assert_int_eq(heuristic(&matmul, 32 << 20, 256, &result, &count), UNSUPPORTED);
  matmul_free(&matmul);
}
END_TEST

START_TEST(workspace_and_pointers_of_the_call) {
  struct matmul matmul = rules[0].matmul;
  cublasLtMatmulHeuristicResult_t result;
  const float one = 1, zero = 0;
  int count;
  matmul_make(&matmul);
  ck_assert_int_eq(heuristic(&matmul, 32 << 20, 256, &result, &count), OK);
  struct matmul *x = &matmul;
#define CALL(h, a_data, c_data, beta, algo, bytes)                                                                          \
  finish(cublasLtMatmul(h, x->desc, &one, a_data, x->layout_a, x->b.data, x->layout_b, beta, c_data, x->layout_c,           \
                        x->d.data, x->layout_d, algo, workspace, bytes, NULL))
  ck_assert_int_eq(CALL(handle, x->a.data, x->c.data, &zero, &result.algo, sizeof workspace), OK);
  ck_assert_int_eq(CALL(handle, x->a.data, NULL, &zero, &result.algo, sizeof workspace), OK);
  ck_assert_int_eq(CALL(handle, x->a.data, NULL, &one, &result.algo, sizeof workspace), INVALID);
  ck_assert_int_eq(CALL(handle, NULL, x->c.data, &zero, &result.algo, sizeof workspace), INVALID);
  ck_assert_int_eq(CALL(handle, x->a.data + 8, x->c.data, &zero, &result.algo, sizeof workspace), UNSUPPORTED);
  ck_assert_int_eq(CALL(handle, x->a.data, x->c.data, &zero, &result.algo, 16), INVALID);
  ck_assert_int_eq(CALL(handle, x->a.data, x->c.data, &zero, NULL, 16), UNSUPPORTED);
  ck_assert_int_eq(CALL(handle, x->a.data, x->c.data, NULL, NULL, sizeof workspace), INVALID);
  ck_assert_int_eq(CALL(NULL, x->a.data, x->c.data, &zero, NULL, sizeof workspace), CUBLAS_STATUS_NOT_INITIALIZED);
  memset(&result.algo, 0, sizeof result.algo);
  ck_assert_int_eq(CALL(handle, x->a.data, x->c.data, &zero, &result.algo, sizeof workspace), INVALID);
  const void *scale = &one;
  set(x->desc, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &scale, sizeof scale); /* D is not narrow */
  ck_assert_int_eq(CALL(handle, x->a.data, x->c.data, &zero, NULL, sizeof workspace), INVALID);
  matmul_free(&matmul);
}
END_TEST

/* ------------------------------------------------------------------------------------------------------------ results */

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
  const double h = 1e-5;
  return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

struct epilogue_case {
  uint32_t epilogue;
  const char *name;
  bool bias, aux, grad;
};

static const struct epilogue_case epilogue_cases[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, "none", false, false, false},
    {CUBLASLT_EPILOGUE_BIAS, "bias", true, false, false},
    {CUBLASLT_EPILOGUE_RELU, "relu", false, false, false},
    {CUBLASLT_EPILOGUE_RELU_BIAS, "relu_bias", true, false, false},
    {CUBLASLT_EPILOGUE_GELU, "gelu", false, false, false},
    {CUBLASLT_EPILOGUE_GELU_BIAS, "gelu_bias", true, false, false},
    {CUBLASLT_EPILOGUE_RELU_AUX, "other", false, true, false},
    {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, "other", true, true, false},
    {CUBLASLT_EPILOGUE_GELU_AUX, "other", false, true, false},
    {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, "other", true, true, false},
    {CUBLASLT_EPILOGUE_DRELU, "other", false, true, false},
    {CUBLASLT_EPILOGUE_DRELU_BGRAD, "other", false, true, true},
    {CUBLASLT_EPILOGUE_DGELU, "other", false, true, false},
    {CUBLASLT_EPILOGUE_DGELU_BGRAD, "other", false, true, true},
    {CUBLASLT_EPILOGUE_BGRADA, "other", false, false, true},
    {CUBLASLT_EPILOGUE_BGRADB, "other", false, false, true},
};
enum { EPILOGUES = sizeof epilogue_cases / sizeof epilogue_cases[0], AUX_ROWS = 128 };

struct side { /* what goes beside the matrices, per batch item */
  struct reference_matrix bias, aux;
  unsigned char mask[2 * AUX_ROWS * 16 / 8];
};

static void side_attach(struct matmul *matmul, const struct epilogue_case *which, struct side *side) {
  int64_t aux_ld = AUX_ROWS, aux_stride;
  bool mask = (which->epilogue & (CUBLASLT_EPILOGUE_RELU | 8)) != 0;
  side->bias = reference_random(matmul->out_d, matmul->m > matmul->n ? matmul->m : matmul->n, 1, 0, matmul->batch);
  side->aux = reference_random(matmul->out_d, AUX_ROWS, matmul->n, 0, matmul->batch);
  for (size_t i = 0; i < sizeof side->mask; i++)
    side->mask[i] = (unsigned char)reference_random_bits();
  aux_stride = mask ? AUX_ROWS * 16 : side->aux.stride;
  void *aux = mask ? side->mask : side->aux.data, *bias = side->bias.data;
  if (which->bias || which->grad) {
    set(matmul->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    set(matmul->desc, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &side->bias.stride, 8);
  }
  if (which->aux) {
    set(matmul->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
    set(matmul->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
    set(matmul->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &aux_stride, sizeof aux_stride);
  }
}

static bool mask_bit(const struct side *side, int64_t row, int64_t col, int64_t batch) {
  int64_t bit = batch * AUX_ROWS * 16 + col * AUX_ROWS + row;
  return side->mask[bit / 8] >> (bit % 8) & 1;
}

static void near(double got, double want, double bound, const char *what, int64_t row, int64_t col) {
  ck_assert_msg(fabs(got - want) <= bound, "%s (%d,%d): %.9g, not %.9g (bound %g)", what, (int)row, (int)col, got, want,
                bound);
}

/* One element of D, and what it writes beside it. `x` is alpha·AB + beta·C + bias, `slack` the error allowed in it. */
static double expect(const struct epilogue_case *which, const struct side *before, const struct side *after, double x,
                     double slack, double unit, int64_t row, int64_t col, int64_t batch) {
  double aux = reference_at(&before->aux, row, col, batch).re;
  switch (which->epilogue & ~(uint32_t)(CUBLASLT_EPILOGUE_BIAS | 16)) {
  case CUBLASLT_EPILOGUE_RELU_AUX:
    if (fabs(x) > slack)
      ck_assert_int_eq(mask_bit(after, row, col, batch), x > 0);
    return fmax(x, 0);
  case CUBLASLT_EPILOGUE_RELU:
    return fmax(x, 0);
  case CUBLASLT_EPILOGUE_GELU_AUX:
    near(reference_at(&after->aux, row, col, batch).re, x, slack + 1.01 * unit * fabs(x), "aux", row, col);
    return gelu(x);
  case CUBLASLT_EPILOGUE_GELU:
    return gelu(x);
  case CUBLASLT_EPILOGUE_DRELU:
    return mask_bit(before, row, col, batch) ? x : 0;
  case CUBLASLT_EPILOGUE_DGELU:
    return x * gelu_slope(aux);
  default:
    return x;
  }
}

/* Bias gradients: row sums of the result or of op(A), column sums of op(B). */
static void check_gradient(const struct matmul *matmul, const struct epilogue_case *which, const struct side *after,
                           const double *results, int64_t batch) {
  double unit = reference_unit(matmul->out_d);
  int64_t count = which->epilogue == CUBLASLT_EPILOGUE_BGRADB ? matmul->n : matmul->m;
  for (int64_t i = 0; i < count; i++) {
    double sum = 0, magnitude = 0;
    int64_t terms = which->epilogue & 16 ? matmul->n : matmul->k;
    for (int64_t p = 0; p < terms; p++) {
      double term =
          which->epilogue & 16 ? results[p * matmul->m + i]
          : which->epilogue == CUBLASLT_EPILOGUE_BGRADA
              ? (matmul->trans_a == 'N' ? reference_at(&matmul->a, i, p, batch) : reference_at(&matmul->a, p, i, batch)).re
              : (matmul->trans_b == 'N' ? reference_at(&matmul->b, p, i, batch) : reference_at(&matmul->b, i, p, batch)).re;
      sum += term;
      magnitude += fabs(term);
    }
    near(reference_at(&after->bias, i, 0, batch).re, sum, 1e-5 * (1 + magnitude) + 1.01 * unit * fabs(sum), "gradient", i,
         0);
  }
}

static void check_item(const struct matmul *matmul, const struct epilogue_case *which, const struct side *before,
                       const struct side *after, struct complex_value alpha, struct complex_value beta, int64_t batch) {
  double *results = calloc((size_t)(matmul->m * matmul->n), sizeof *results), unit = reference_unit(matmul->out_d);
  ck_assert_ptr_nonnull(results);
  for (int64_t col = 0; col < matmul->n; col++)
    for (int64_t row = 0; row < matmul->m; row++) {
      struct reference_element base = reference_gemm(matmul->trans_a, matmul->trans_b, matmul->k, alpha, &matmul->a,
                                                     &matmul->b, beta, &matmul->c, row, col, batch);
      double bias = which->bias ? reference_at(&before->bias, row, 0, batch).re : 0;
      double accumulation = matmul->compute == CUBLAS_COMPUTE_64F ? 0x1p-53 : 0x1p-24;
      double slack = (double)(matmul->k + 8) * accumulation * (base.magnitude + fabs(bias));
      double want = expect(which, before, after, base.value.re + bias, slack, unit, row, col, batch);
      double transcendental = which->epilogue & (32 | 64)
                                  ? (matmul->compute == CUBLAS_COMPUTE_64F ? 1e-15 : 1e-6) * (1 + fabs(base.value.re + bias))
                                  : 0;
      near(reference_at(&matmul->d, row, col, batch).re, want, 1.2 * slack + transcendental + 1.01 * unit * fabs(want),
           which->name, row, col);
      results[col * matmul->m + row] = want;
    }
  if (which->grad)
    check_gradient(matmul, which, after, results, batch);
  free(results);
}

static void check_accesses(const struct matmul *matmul, const struct epilogue_case *which, const struct side *side,
                           bool reads_c) {
  bool mask = (which->epilogue & (CUBLASLT_EPILOGUE_RELU | 8)) != 0, backward = (which->epilogue & (8 | 64)) != 0;
  struct reference_matrix bias = side->bias, aux = side->aux;
  bias.rows = which->epilogue == CUBLASLT_EPILOGUE_BGRADB ? matmul->n : matmul->m;
  aux.rows = matmul->m;
  expect_access(&matmul->a, true, false);
  expect_access(&matmul->b, true, false);
  expect_access(&matmul->c, reads_c, false);
  expect_access(&matmul->d, true, true);
  expect_access(&bias, which->bias, false);
  expect_access(&bias, which->grad, true);
  for (int write = 0; write < 2; write++) {
    bool touched = which->aux && write == !backward;
    expect_access(&aux, touched && !mask, write);
    for (int64_t i = 0; i < matmul->batch; i++)
      for (int64_t col = 0; col < matmul->n; col++)
        expect_access_bytes(side->mask + (i * AUX_ROWS * 16 + col * AUX_ROWS) / 8, (size_t)(matmul->m + 7) / 8,
                            touched && mask, write);
  }
}

static const struct matmul epilogue_types[] = {
    {.in_a = BF, .in_b = BF, .out_c = BF, .out_d = BF, .scale = FP, .compute = CUBLAS_COMPUTE_32F},
    {.in_a = HF, .in_b = HF, .out_c = FP, .out_d = FP, .scale = FP, .compute = CUBLAS_COMPUTE_32F},
    {.in_a = FP, .in_b = FP, .out_c = FP, .out_d = FP, .scale = FP, .compute = CUBLAS_COMPUTE_32F},
    {.in_a = CUDA_R_64F,
     .in_b = CUDA_R_64F,
     .out_c = CUDA_R_64F,
     .out_d = CUDA_R_64F,
     .scale = CUDA_R_64F,
     .compute = CUBLAS_COMPUTE_64F},
};

static void run_epilogue(const struct matmul *types, const struct epilogue_case *which, char ta, char tb, double beta_value,
                         bool on_device) {
  struct matmul matmul = *types;
  matmul.trans_a = ta;
  matmul.trans_b = tb;
  matmul.m = 37, matmul.n = 11, matmul.k = 19, matmul.batch = 2, matmul.pad = 3;
  matmul.epilogue = which->epilogue;
  struct side side, before;
  struct complex_value alpha = {1.5, 0}, beta = {beta_value, 0};
  matmul_make(&matmul);
  side_attach(&matmul, which, &side);
  before = side;
  before.bias = reference_copy(&side.bias);
  before.aux = reference_copy(&side.aux);
  if (beta_value == 0)
    reference_fill_nan(&matmul.c);
  int32_t mode = on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  set(matmul.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode);
  float alpha_narrow = 1.5f, beta_narrow = (float)beta_value;
  bool wide = matmul.scale == CUDA_R_64F;
  ledger_calls = 0;
  ck_assert_int_eq(matmul_run(&matmul, wide ? (const void *)&alpha.re : &alpha_narrow,
                              wide ? (const void *)&beta.re : &beta_narrow, NULL),
                   OK);
  ck_assert_int_eq(ledger_calls, 1);
  ck_assert_str_eq(ledger_last.api, "lt");
  ck_assert_str_eq(ledger_last.epilogue, which->name);
  check_accesses(&matmul, which, &side, beta_value != 0 || on_device);
  expect_access_bytes(wide ? (const void *)&alpha.re : &alpha_narrow, wide ? sizeof alpha.re : sizeof alpha_narrow,
                      on_device, false);
  for (int64_t i = 0; i < matmul.batch; i++)
    check_item(&matmul, which, &before, &side, alpha, beta, i);
  ck_assert(reference_guard_intact(&matmul.d));
  reference_free(&before.bias), reference_free(&before.aux);
  reference_free(&side.bias), reference_free(&side.aux);
  matmul_free(&matmul);
}

START_TEST(epilogues_agree_with_fp64) {
  const struct epilogue_case *which = &epilogue_cases[_i];
  for (size_t t = 0; t < sizeof epilogue_types / sizeof epilogue_types[0]; t++) {
    if (epilogue_types[t].compute == CUBLAS_COMPUTE_64F && (which->aux || which->grad))
      continue; /* refused, as the next test shows */
    run_epilogue(&epilogue_types[t], which, 'T', 'N', 0, false);
    run_epilogue(&epilogue_types[t], which, 'N', 'N', 0.75, true);
    run_epilogue(&epilogue_types[t], which, 'N', 'T', -1, false);
    run_epilogue(&epilogue_types[t], which, 'T', 'T', 0, true);
  }
}
END_TEST

START_TEST(epilogues_that_are_refused) {
  struct matmul matmul = epilogue_types[3];
  const double one = 1, zero = 0;
  matmul.trans_a = matmul.trans_b = 'N';
  matmul.m = matmul.n = matmul.k = 8;
  matmul.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
  matmul_make(&matmul);
  ck_assert_int_eq(matmul_run(&matmul, &one, &zero, NULL), UNSUPPORTED);
  matmul_free(&matmul);

  matmul = epilogue_types[0];
  matmul.trans_a = matmul.trans_b = 'N';
  matmul.m = matmul.n = matmul.k = 8;
  matmul.epilogue = CUBLASLT_EPILOGUE_BIAS; /* without a bias pointer, then with a bias type that is not D's */
  matmul_make(&matmul);
  const float one_narrow = 1, zero_narrow = 0;
  int32_t half = CUDA_R_16F;
  ck_assert_int_eq(matmul_run(&matmul, &one_narrow, &zero_narrow, NULL), INVALID);
  set(matmul.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &half, sizeof half);
  ck_assert_int_eq(matmul_run(&matmul, &one_narrow, &zero_narrow, NULL), UNSUPPORTED);
  matmul_free(&matmul);
}
END_TEST

/* FP8 with scales: D = alpha·sA·sB·AB (+ bias in BF16, also for FP32 D); FP8 output scaled by sD with its amax. */
START_TEST(fp8_scales) {
  static const cudaDataType outputs[] = {BF, HF, FP, E4};
  struct matmul matmul = PROBLEM('T', 'N', 32, 17, 48, 1, 0, _i == 1 ? E5 : E4, E4, outputs[_i] == E4 ? BF : outputs[_i],
                                 outputs[_i], F32, CUBLASLT_EPILOGUE_BIAS);
  const float scale_a = 0.5f, scale_b = 0.25f, scale_d = 2, one = 1, zero = 0;
  float amax = -1;
  bool narrow = outputs[_i] == E4;
  matmul_make(&matmul);
  struct reference_matrix bias = reference_random(_i == 1 ? HF : BF, 32, 1, 0, 1);
  const void *sa = &scale_a, *sb = &scale_b, *sd = &scale_d, *bias_data = bias.data;
  void *amax_pointer = &amax;
  set(matmul.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &sa, sizeof sa);
  set(matmul.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &sb, sizeof sb);
  set(matmul.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_data, sizeof bias_data);
  if (narrow) {
    set(matmul.desc, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &sd, sizeof sd);
    set(matmul.desc, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, &amax_pointer, sizeof amax_pointer);
  }
  ck_assert_int_eq(matmul_run(&matmul, &one, &zero, NULL), OK);
  ck_assert_str_eq(ledger_last.type_a, _i == 1 ? "e5m2" : "e4m3");
  double largest = 0;
  for (int64_t col = 0; col < 17; col++)
    for (int64_t row = 0; row < 32; row++) {
      struct complex_value alpha = {0.125, 0}, none = {0, 0};
      struct reference_element base =
          reference_gemm('T', 'N', 48, alpha, &matmul.a, &matmul.b, none, &matmul.c, row, col, 0);
      double want = base.value.re + reference_at(&bias, row, 0, 0).re;
      largest = fmax(largest, fabs(want));
      want *= narrow ? 2 : 1;
      near(reference_at(&matmul.d, row, col, 0).re, want,
           56 * 0x1p-24 * base.magnitude + 1.01 * reference_unit(outputs[_i]) * fabs(want) + (narrow ? 0x1p-10 : 0), "fp8",
           row, col);
    }
  if (narrow)
    near((double)amax, largest, 1e-5 * largest, "amax", 0, 0);
  reference_free(&bias);
  matmul_free(&matmul);
}
END_TEST

START_TEST(int8_without_workspace) {
  struct matmul matmul =
      PROBLEM('T', 'N', 20, 18, 32, 1, 0, CUDA_R_8I, CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 0);
  const int32_t one = 1, zero = 0;
  matmul_make(&matmul);
  ck_assert_int_eq(
      finish(cublasLtMatmul(handle, matmul.desc, &one, matmul.a.data, matmul.layout_a, matmul.b.data, matmul.layout_b, &zero,
                            matmul.d.data, matmul.layout_d, matmul.d.data, matmul.layout_d, NULL, NULL, 0, NULL)),
      OK);
  for (int64_t col = 0; col < 18; col++)
    for (int64_t row = 0; row < 20; row++) {
      struct complex_value alpha = {1, 0}, none = {0, 0};
      near(reference_at(&matmul.d, row, col, 0).re,
           reference_gemm('T', 'N', 32, alpha, &matmul.a, &matmul.b, none, &matmul.c, row, col, 0).value.re, 0, "int8", row,
           col);
    }
  matmul_free(&matmul);
}
END_TEST

/* PyTorch hands over a cublasHandle_t. */
START_TEST(cublas_handle_serves) {
  cublasHandle_t blas;
  cublasLtHandle_t own = handle;
  ck_assert_int_eq(cublasCreate_v2(&blas), OK);
  handle = (cublasLtHandle_t)blas;
  struct matmul matmul = rules[24].matmul;
  matmul.epilogue = 0;
  matmul_make(&matmul);
  const float one = 1, zero = 0;
  ck_assert_int_eq(matmul_run(&matmul, &one, &zero, NULL), OK);
  matmul_free(&matmul);
  handle = own;
  ck_assert_int_eq(cublasDestroy_v2(blas), OK);
}
END_TEST

START_TEST(transform_transposes_and_adds) {
  const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {10, 20, 30, 40, 50, 60}, alpha = 2, beta = 1; /* A 2×3, B and C 3×2 */
  float c[6] = {0};
  cublasLtMatrixTransformDesc_t desc;
  cublasLtMatrixLayout_t in, out;
  int32_t transpose = CUBLAS_OP_T;
  ck_assert_int_eq(cublasLtMatrixTransformDescCreate(&desc, CUDA_R_32F), OK);
  ck_assert_int_eq(cublasLtMatrixTransformDescSetAttribute(desc, CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, &transpose, 4), OK);
  ck_assert_int_eq(cublasLtMatrixLayoutCreate(&in, CUDA_R_32F, 2, 3, 2), OK);
  ck_assert_int_eq(cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, 3, 2, 3), OK);
  ck_assert_int_eq(finish(cublasLtMatrixTransform(handle, desc, &alpha, a, in, &beta, b, out, c, out, NULL)), OK);
  ck_assert(c[0] == 12.0f && c[1] == 26.0f && c[2] == 40.0f && c[3] == 44.0f && c[5] == 72.0f);
  ck_assert_int_eq(finish(cublasLtMatrixTransform(handle, desc, &alpha, a, out, &beta, b, out, c, out, NULL)), INVALID);
  cublasLtMatrixLayoutDestroy(in);
  cublasLtMatrixLayoutDestroy(out);
  cublasLtMatrixTransformDescDestroy(desc);
}
END_TEST

START_TEST(algorithms_and_versions) {
  cublasLtMatmulAlgo_t algo;
  int ids[4], count = 0, part;
  uint32_t tile = 20;
  int32_t id = 0;
  size_t capacity = 0;
  ck_assert_int_eq(cublasLtMatmulAlgoGetIds(handle, CUBLAS_COMPUTE_32F, FP, BF, BF, BF, BF, 4, ids, &count), OK);
  ck_assert_int_eq(count, 1);
  ck_assert_int_eq(cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, FP, BF, BF, BF, BF, ids[0], &algo), OK);
  ck_assert_int_eq(cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, FP, BF, BF, BF, BF, ids[0] + 1, &algo), INVALID);
  ck_assert_int_eq(cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, FP, BF, HF, BF, BF, ids[0], &algo), UNSUPPORTED);
  ck_assert_int_eq(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile), OK);
  tile = 0;
  ck_assert_int_eq(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, NULL), OK);
  ck_assert_uint_eq(tile, 20);
  ck_assert_int_eq(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, NULL), OK);
  ck_assert_int_eq(id, ids[0]);
  ck_assert_int_eq(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id), INVALID);
  ck_assert_int_eq(
      cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT, &id, sizeof id, NULL), OK);
  ck_assert_int_eq(id, 1);
  ck_assert_uint_eq(cublasLtGetVersion(), CUBLAS_VERSION);
  ck_assert(cublasLtGetProperty(MAJOR_VERSION, &part) == OK && part == CUBLAS_VER_MAJOR);
  ck_assert_int_eq(cublasLtHeuristicsCacheSetCapacity(64), OK);
  ck_assert(cublasLtHeuristicsCacheGetCapacity(&capacity) == OK && capacity == 64);
  ck_assert_int_eq(cublasLtLoggerSetLevel(0), OK);
  ck_assert_str_eq(cublasLtGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE");
}
END_TEST

int main(void) {
  reference_load_blas();
  Suite *suite = suite_create("vnode_cublaslt");
  TCase *tcase = tcase_create("cublaslt");
  tcase_add_checked_fixture(tcase, setup, teardown);
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, matmul_attributes_are_kept);
  tcase_add_test(tcase, descriptors_of_the_caller);
  tcase_add_loop_test(tcase, acceptance, 0, (int)(sizeof rules / sizeof rules[0]));
  tcase_add_test(tcase, block_scales_and_orders_are_refused);
  tcase_add_test(tcase, workspace_and_pointers_of_the_call);
  tcase_add_loop_test(tcase, epilogues_agree_with_fp64, 0, EPILOGUES);
  tcase_add_test(tcase, epilogues_that_are_refused);
  tcase_add_loop_test(tcase, fp8_scales, 0, 4);
  tcase_add_test(tcase, int8_without_workspace);
  tcase_add_test(tcase, cublas_handle_serves);
  tcase_add_test(tcase, transform_transposes_and_adds);
  tcase_add_test(tcase, algorithms_and_versions);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
