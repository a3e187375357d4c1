/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcublas.so.13 of the virtual node: GEMM entry points against FP64, argument checks, handle, workspace, ledger, and the
 * vector routines.
 */
#include <check.h>
#include <cublas_api.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/fake_driver.h"
#include "tests/vnode_blas/reference.h"
#include "tools/vnode/core/model.h"

/* The header declares these to C++ only. */
cublasStatus_t cublasHgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const __half_raw *,
                           const __half_raw *, int, const __half_raw *, int, const __half_raw *, __half_raw *, int);
cublasStatus_t cublasHgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                         const __half_raw *, const __half_raw *, int, long long, const __half_raw *, int,
                                         long long, const __half_raw *, __half_raw *, int, long long, int);
cublasStatus_t cublasHgemmBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const __half_raw *,
                                  const __half_raw *const[], int, const __half_raw *const[], int, const __half_raw *,
                                  __half_raw *const[], int, int);

static cublasHandle_t handle;
static long long workspace[4] __attribute__((aligned(256)));

static void setup(void) {
  ck_assert_int_eq(cublasCreate_v2(&handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasSetWorkspace_v2(handle, workspace, sizeof workspace), CUBLAS_STATUS_SUCCESS);
}

static void teardown(void) {
  ck_assert_int_eq(cublasDestroy_v2(handle), CUBLAS_STATUS_SUCCESS);
}

/* ----------------------------------------------------------------------------------------------------- combinations */

struct types {
  cudaDataType in, out, scale;
  cublasComputeType_t compute;
  double accumulate_unit; /* of the accumulation */
  const char *compute_name;
};

#define UNIT_F32 0x1p-24
#define UNIT_F64 0x1p-53

static const struct types all_types[] = {
    {CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, UNIT_F64, "f64"},
    {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, UNIT_F32, "tf32"},
    {CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F, UNIT_F32, "f16"},
    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_R_16F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_R_8I, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 0, "i32"},
    {CUDA_C_32F, CUDA_C_32F, CUDA_C_32F, CUBLAS_COMPUTE_32F, UNIT_F32, "f32"},
    {CUDA_C_64F, CUDA_C_64F, CUDA_C_64F, CUBLAS_COMPUTE_64F, UNIT_F64, "f64"},
};
enum { TYPES = sizeof all_types / sizeof all_types[0] };

struct factors {
  struct complex_value alpha, beta;
};

static const struct factors all_factors[] = {{{1, 0}, {0, 0}}, {{2, 0}, {0, 0}}, {{-3, 0}, {2, 0}},
                                             {{0, 0}, {0, 0}}, {{0, 0}, {2, 0}}, {{1, 0}, {1, 0}}};
static const struct factors complex_factors = {{0.5, -0.25}, {-1.5, 0.75}};

struct shape {
  int m, n, k;
};

static const struct shape all_shapes[] = {{1, 1, 1},    {3, 5, 7}, {17, 9, 33}, {1, 40, 16},
                                          {40, 1, 129}, {5, 6, 0}, {66, 35, 70}};

enum entry { ENTRY_EX, ENTRY_EX_64, ENTRY_STRIDED, ENTRY_STRIDED_64, ENTRY_BATCHED, ENTRY_BATCHED_64, ENTRY_COUNT };
static const char *const entry_names[] = {"gemmex", "gemmex", "strided", "strided", "batched", "batched"};

union scalar {
  double f64[2];
  float f32[2];
  uint16_t f16;
  int32_t i32;
};

static union scalar scalar_of(struct complex_value value, cudaDataType type) {
  union scalar scalar;
  memset(&scalar, 0, sizeof scalar);
  switch ((int)type) {
  case CUDA_R_64F:
  case CUDA_C_64F:
    scalar.f64[0] = value.re;
    scalar.f64[1] = value.im;
    break;
  case CUDA_R_32I:
    scalar.i32 = (int32_t)value.re;
    break;
  case CUDA_R_16F: { /* small whole numbers: shift the FP32 fraction */
    float narrow = (float)value.re;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    scalar.f16 =
        (uint16_t)(value.re == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
    break;
  }
  default:
    scalar.f32[0] = (float)value.re;
    scalar.f32[1] = (float)value.im;
  }
  return scalar;
}

static cublasOperation_t operation(char trans) {
  return trans == 'N' ? CUBLAS_OP_N : trans == 'T' ? CUBLAS_OP_T : CUBLAS_OP_C;
}

struct call {
  const struct types *types;
  char trans_a, trans_b;
  struct shape shape;
  struct factors factors;
  struct reference_matrix a, b, c;
};

static void array_of(const struct reference_matrix *matrix, void *array[]) {
  for (int64_t i = 0; i < matrix->batch; i++)
    array[i] = matrix->data + (size_t)(i * matrix->stride) * reference_bytes(matrix->type);
}

static cublasStatus_t invoke(enum entry entry, const struct call *call) {
  const struct types *t = call->types;
  const struct reference_matrix *a = &call->a, *b = &call->b, *c = &call->c;
  cublasOperation_t ta = operation(call->trans_a), tb = operation(call->trans_b);
  int m = call->shape.m, n = call->shape.n, k = call->shape.k, batch = (int)c->batch;
  int lda = (int)a->ld, ldb = (int)b->ld, ldc = (int)c->ld;
  union scalar alpha = scalar_of(call->factors.alpha, t->scale), beta = scalar_of(call->factors.beta, t->scale);
  void *as[8], *bs[8], *cs[8];
  array_of(a, as);
  array_of(b, bs);
  array_of(c, cs);
  const void *const *ca = (const void *const *)as, *const *cb = (const void *const *)bs;
  const cublasGemmAlgo_t algo = CUBLAS_GEMM_DEFAULT_TENSOR_OP;
  switch (entry) {
  case ENTRY_EX:
    return finish(cublasGemmEx(handle, ta, tb, m, n, k, &alpha, a->data, t->in, lda, b->data, t->in, ldb, &beta, c->data,
                               t->out, ldc, t->compute, algo));
  case ENTRY_EX_64:
    return finish(cublasGemmEx_64(handle, ta, tb, m, n, k, &alpha, a->data, t->in, lda, b->data, t->in, ldb, &beta, c->data,
                                  t->out, ldc, t->compute, algo));
  case ENTRY_STRIDED:
    return finish(cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, &alpha, a->data, t->in, lda, a->stride, b->data, t->in,
                                             ldb, b->stride, &beta, c->data, t->out, ldc, c->stride, batch, t->compute,
                                             algo));
  case ENTRY_STRIDED_64:
    return finish(cublasGemmStridedBatchedEx_64(handle, ta, tb, m, n, k, &alpha, a->data, t->in, lda, a->stride, b->data,
                                                t->in, ldb, b->stride, &beta, c->data, t->out, ldc, c->stride, batch,
                                                t->compute, algo));
  case ENTRY_BATCHED:
    return finish(cublasGemmBatchedEx(handle, ta, tb, m, n, k, &alpha, ca, t->in, lda, cb, t->in, ldb, &beta, cs, t->out,
                                      ldc, batch, t->compute, algo));
  default:
    return finish(cublasGemmBatchedEx_64(handle, ta, tb, m, n, k, &alpha, ca, t->in, lda, cb, t->in, ldb, &beta, cs, t->out,
                                         ldc, batch, t->compute, algo));
  }
}

static void check_result(const struct call *call, const struct reference_matrix *before, const char *what) {
  const struct types *t = call->types;
  for (int64_t i = 0; i < call->c.batch; i++)
    for (int64_t col = 0; col < call->shape.n; col++)
      for (int64_t row = 0; row < call->shape.m; row++) {
        struct reference_element want = reference_gemm(call->trans_a, call->trans_b, call->shape.k, call->factors.alpha,
                                                       &call->a, &call->b, call->factors.beta, before, row, col, i);
        struct complex_value got = reference_at(&call->c, row, col, i);
        double magnitude = fabs(want.value.re) + fabs(want.value.im);
        double bound = (call->shape.k + 8) * t->accumulate_unit * want.magnitude + 1.01 * reference_unit(t->out) * magnitude;
        ck_assert_msg(fabs(got.re - want.value.re) <= bound && fabs(got.im - want.value.im) <= bound,
                      "%s type %d %c%c %dx%dx%d alpha %g beta %g at (%d,%d,%d): %.9g not %.9g (bound %g)", what, (int)t->in,
                      call->trans_a, call->trans_b, call->shape.m, call->shape.n, call->shape.k, call->factors.alpha.re,
                      call->factors.beta.re, (int)row, (int)col, (int)i, got.re, want.value.re, bound);
      }
  ck_assert(reference_guard_intact(&call->c));
}

static bool is_whole(cudaDataType type) {
  return type == CUDA_R_32I || type == CUDA_R_8I;
}

static void make_operands(struct call *call, int pad, int batch) {
  struct shape s = call->shape;
  bool plain_a = call->trans_a == 'N', plain_b = call->trans_b == 'N';
  call->a = reference_random(call->types->in, plain_a ? s.m : s.k, plain_a ? s.k : s.m, pad, batch);
  call->b = reference_random(call->types->in, plain_b ? s.k : s.n, plain_b ? s.n : s.k, pad, batch);
  call->c = reference_random(call->types->out, s.m, s.n, pad, batch);
  bool no_c = call->factors.beta.re == 0 && call->factors.beta.im == 0,
       no_ab = call->factors.alpha.re == 0 && call->factors.alpha.im == 0;
  if (no_c && !is_whole(call->types->out))
    reference_fill_nan(&call->c);
  if (no_ab && !is_whole(call->types->in)) {
    reference_fill_nan(&call->a);
    reference_fill_nan(&call->b);
  }
}

static void free_operands(struct call *call) {
  reference_free(&call->a);
  reference_free(&call->b);
  reference_free(&call->c);
}

/* Pointer arrays are read when the work runs: what they lead to cannot be declared. */
static void check_accesses(enum entry entry, const struct call *call) {
  bool known = entry < ENTRY_BATCHED;
  bool reads_ab = known && call->shape.k > 0 && (call->factors.alpha.re != 0 || call->factors.alpha.im != 0);
  bool reads_c = known && (call->factors.beta.re != 0 || call->factors.beta.im != 0);
  cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;
  cublasGetPointerMode_v2(handle, &mode);
  if (mode == CUBLAS_POINTER_MODE_DEVICE) /* nobody knows yet that a factor is 0 */
    reads_ab = known && call->shape.k > 0, reads_c = known;
  expect_access(&call->a, reads_ab, false);
  expect_access(&call->b, reads_ab, false);
  expect_access(&call->c, reads_c, false);
  expect_access(&call->a, false, true);
  expect_access(&call->b, false, true);
  expect_access(&call->c, known, true);
}

/* By what the tensor cores multiply. */
static void check_duration(const struct call *call, int batch) {
  const struct types *t = call->types;
  bool complex = t->in == CUDA_C_32F || t->in == CUDA_C_64F;
  const char *format = t->in == CUDA_R_16F                          ? "f16"
                       : t->in == CUDA_R_16BF                       ? "bf16"
                       : t->in == CUDA_R_8I                         ? "i8"
                       : t->in == CUDA_R_64F || t->in == CUDA_C_64F ? "f64"
                       : t->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                                    : "f32";
  int64_t want = vnode_model_gemm_ns(call->shape.m, call->shape.n, (complex ? 4 : 1) * call->shape.k, batch, format,
                                     (int)reference_bytes(t->out));
  ck_assert_int_eq(operation_duration_ns, want);
  ck_assert_int_gt(want, 0);
}

static void run_one(enum entry entry, struct call *call, int pad) {
  int batch = entry >= ENTRY_STRIDED ? 3 : 1;
  make_operands(call, pad, batch);
  struct reference_matrix before = reference_copy(&call->c);
  ledger_calls = 0;
  ck_assert_int_eq(invoke(entry, call), CUBLAS_STATUS_SUCCESS);
  check_result(call, &before, entry_names[entry]);
  check_accesses(entry, call);
  check_duration(call, batch);
  ck_assert_int_eq(ledger_calls, 1);
  ck_assert_str_eq(ledger_last.api, entry_names[entry]);
  ck_assert_str_eq(ledger_last.compute, call->types->compute_name);
  ck_assert(ledger_last.trans_a == call->trans_a && ledger_last.trans_b == call->trans_b && ledger_last.batch == batch);
  ck_assert(ledger_last.m == call->shape.m && ledger_last.n == call->shape.n && ledger_last.k == call->shape.k);
  reference_free(&before);
  free_operands(call);
}

/* All transposes, shapes and factors of one combination of types, each entry point in turn, both pointer modes. */
START_TEST(gemm_agrees_with_fp64) {
  const struct types *types = &all_types[_i];
  bool complex = types->in == CUDA_C_32F || types->in == CUDA_C_64F;
  int turn = 0;
  for (size_t s = 0; s < sizeof all_shapes / sizeof all_shapes[0]; s++)
    for (const char *ta = "NTC"; *ta; ta++)
      for (const char *tb = "NTC"; *tb; tb++)
        for (size_t f = 0; f < sizeof all_factors / sizeof all_factors[0]; f++, turn++) {
          if (all_shapes[s].m > 60 && f != 0 && f != 2)
            continue; /* the reference is slow */
          struct call call = {.types = types, .trans_a = *ta, .trans_b = *tb, .shape = all_shapes[s]};
          call.factors = complex && f == 2 ? complex_factors : all_factors[f];
          ck_assert_int_eq(cublasSetPointerMode_v2(handle, turn % 2 ? CUBLAS_POINTER_MODE_DEVICE : CUBLAS_POINTER_MODE_HOST),
                           CUBLAS_STATUS_SUCCESS);
          run_one((enum entry)(turn % ENTRY_COUNT), &call, turn % 4);
        }
}
END_TEST

/* Matrices side by side, as the heads of an attention layer are: one pattern, with what lies between the columns left out.
 */
START_TEST(interleaved_batches_are_declared_exactly) {
  enum { ROWS = 3, BATCH = 40, LD = ROWS * BATCH + 2, COLS = 4 };
  const float one = 1, zero = 0;
  static float a[LD * COLS], b[COLS * COLS], c[LD * COLS];
  ck_assert_int_eq(finish(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, ROWS, COLS, COLS, &one, a, LD, ROWS, b,
                                                    COLS, 0, &zero, c, LD, ROWS, BATCH)),
                   CUBLAS_STATUS_SUCCESS);
  for (int col = 0; col < COLS; col++) {
    expect_access_bytes(a + col * LD, ROWS * BATCH * sizeof *a, true, false);
    expect_access_bytes(c + col * LD, ROWS * BATCH * sizeof *c, true, true);
    expect_access_bytes(c + col * LD + ROWS * BATCH, 2 * sizeof *c, false, true);
  }
  expect_access_bytes(b, sizeof b, true, false);
}
END_TEST

/* Sizes that cross every block of the own kernel, NaN and infinity in the operands arriving where they belong. */
START_TEST(large_gemm_agrees_with_fp64) {
  static const int indices[] = {0, 1, 5};
  struct call call = {.types = &all_types[indices[_i]],
                      .trans_a = 'T',
                      .trans_b = 'N',
                      .shape = {131, 523, 301},
                      .factors = {{1, 0}, {0, 0}}};
  run_one(ENTRY_EX, &call, 1);
}
END_TEST

START_TEST(nan_of_an_operand_stays_in_its_row) {
  struct call call = {
      .types = &all_types[5], .trans_a = 'N', .trans_b = 'N', .shape = {19, 6, 5}, .factors = {{1, 0}, {0, 0}}};
  make_operands(&call, 0, 1);
  uint16_t nan = 0x7fc0;
  memcpy(call.a.data + 2 * (2 * call.a.ld + 18), &nan, sizeof nan); /* row 18, the one in the own kernel's partial tile */
  ck_assert_int_eq(invoke(ENTRY_EX, &call), CUBLAS_STATUS_SUCCESS);
  for (int64_t col = 0; col < 6; col++)
    for (int64_t row = 0; row < 19; row++)
      ck_assert_msg(isnan(reference_at(&call.c, row, col, 0).re) == (row == 18), "(%d,%d)", (int)row, (int)col);
  free_operands(&call);
}
END_TEST

START_TEST(runs_are_bit_identical) {
  struct call call = {
      .types = &all_types[5], .trans_a = 'T', .trans_b = 'N', .shape = {96, 80, 333}, .factors = {{1, 0}, {0, 0}}};
  make_operands(&call, 0, 1);
  struct reference_matrix first = {0};
  for (int run = 0; run < 5; run++) {
    ck_assert_int_eq(invoke(ENTRY_EX, &call), CUBLAS_STATUS_SUCCESS);
    if (run == 0)
      first = reference_copy(&call.c);
    ck_assert(memcmp(first.data, call.c.data, (size_t)(call.c.ld * 80) * 2) == 0);
  }
  reference_free(&first);
  free_operands(&call);
}
END_TEST

/* -------------------------------------------------------------------------------------------------- typed entry points */

/* Each typed entry point on a 3-fold batch (the first of it for single GEMMs) of 7×5×9, alpha 2, beta 1. */
#define TYPED_CASE(prefix, single, element, index)                                                                          \
  static void typed_##prefix(enum entry entry, struct call *call) {                                                         \
    union scalar alpha = scalar_of(call->factors.alpha, call->types->scale),                                                \
                 beta = scalar_of(call->factors.beta, call->types->scale);                                                  \
    const element *al = (const void *)&alpha, *be = (const void *)&beta, *a = (const void *)call->a.data,                   \
                  *b = (const void *)call->b.data;                                                                          \
    element *c = (void *)call->c.data;                                                                                      \
    void *as[8], *bs[8], *cs[8];                                                                                            \
    array_of(&call->a, as), array_of(&call->b, bs), array_of(&call->c, cs);                                                 \
    int lda = (int)call->a.ld, ldb = (int)call->b.ld, ldc = (int)call->c.ld, batch = (int)call->c.batch;                    \
    cublasStatus_t status =                                                                                                 \
        entry == ENTRY_EX ? single(handle, CUBLAS_OP_T, CUBLAS_OP_N, 7, 5, 9, al, a, lda, b, ldb, be, c, ldc)               \
        : entry == ENTRY_STRIDED                                                                                            \
            ? cublas##prefix##gemmStridedBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, 7, 5, 9, al, a, lda, call->a.stride, b,  \
                                                 ldb, call->b.stride, be, c, ldc, call->c.stride, batch)                    \
            : cublas##prefix##gemmBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, 7, 5, 9, al, (const element *const *)as, lda,   \
                                          (const element *const *)bs, ldb, be, (element *const *)cs, ldc, batch);           \
    ck_assert_int_eq(finish(status), CUBLAS_STATUS_SUCCESS);                                                                \
  }

TYPED_CASE(H, cublasHgemm, __half_raw, 4)
TYPED_CASE(S, cublasSgemm_v2, float, 1)
TYPED_CASE(D, cublasDgemm_v2, double, 0)
TYPED_CASE(C, cublasCgemm_v2, cuComplex, 10)
TYPED_CASE(Z, cublasZgemm_v2, cuDoubleComplex, 11)

START_TEST(typed_entry_points) {
  static void (*const cases[])(enum entry, struct call *) = {typed_H, typed_S, typed_D, typed_C, typed_Z};
  static const int indices[] = {4, 1, 0, 10, 11};
  static const enum entry entries[] = {ENTRY_EX, ENTRY_STRIDED, ENTRY_BATCHED};
  static const char *const names[] = {"gemm", "strided", "batched"};
  for (int e = 0; e < 3; e++) {
    struct call call = {
        .types = &all_types[indices[_i]], .trans_a = 'T', .trans_b = 'N', .shape = {7, 5, 9}, .factors = {{2, 0}, {1, 0}}};
    make_operands(&call, 2, e == 0 ? 1 : 3);
    struct reference_matrix before = reference_copy(&call.c);
    ledger_calls = 0;
    cases[_i](entries[e], &call);
    check_result(&call, &before, names[e]);
    ck_assert_int_eq(ledger_calls, 1);
    ck_assert_str_eq(ledger_last.api, names[e]);
    reference_free(&before);
    free_operands(&call);
  }
}
END_TEST

START_TEST(sgemmex_takes_narrow_inputs) {
  struct call call = {
      .types = &all_types[5], .trans_a = 'N', .trans_b = 'T', .shape = {6, 4, 8}, .factors = {{2, 0}, {1, 0}}};
  make_operands(&call, 1, 1);
  struct reference_matrix before = reference_copy(&call.c);
  float alpha = 2, beta = 1;
  ledger_calls = 0;
  ck_assert_int_eq(
      finish(cublasSgemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, 6, 4, 8, &alpha, call.a.data, CUDA_R_16BF, (int)call.a.ld,
                           call.b.data, CUDA_R_16BF, (int)call.b.ld, &beta, call.c.data, CUDA_R_16BF, (int)call.c.ld)),
      CUBLAS_STATUS_SUCCESS);
  check_result(&call, &before, "sgemmex");
  ck_assert_str_eq(ledger_last.api, "gemm");
  ck_assert_str_eq(ledger_last.type_a, "bf16");
  reference_free(&before);
  free_operands(&call);
}
END_TEST

/* ---------------------------------------------------------------------------------------------------------- arguments */

struct bad_call {
  const char *what;
  int ta, m, n, k, lda, ldb, ldc;
  cudaDataType a, c;
  cublasComputeType_t compute;
  bool no_alpha, no_c;
  cublasStatus_t want;
};

#define BF16 CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F

static const struct bad_call bad_calls[] = {
    {"good", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, BF16, false, false, CUBLAS_STATUS_SUCCESS},
    {"empty", CUBLAS_OP_N, 0, 3, 2, 1, 2, 1, BF16, false, true, CUBLAS_STATUS_SUCCESS},
    {"m", CUBLAS_OP_N, -1, 3, 2, 4, 2, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"n", CUBLAS_OP_N, 4, -3, 2, 4, 2, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"k", CUBLAS_OP_N, 4, 3, -2, 4, 2, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"lda", CUBLAS_OP_N, 4, 3, 2, 3, 2, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"lda of a transposed A", CUBLAS_OP_T, 4, 3, 2, 1, 2, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"ldb", CUBLAS_OP_N, 4, 3, 2, 4, 1, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"ldc", CUBLAS_OP_N, 4, 3, 2, 4, 2, 3, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"ld 0 of an empty matrix", CUBLAS_OP_N, 0, 3, 2, 0, 2, 1, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"operation", 3, 4, 3, 2, 4, 2, 4, BF16, false, false, CUBLAS_STATUS_INVALID_VALUE},
    {"alpha", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, BF16, true, false, CUBLAS_STATUS_INVALID_VALUE},
    {"C", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, BF16, false, true, CUBLAS_STATUS_INVALID_VALUE},
    {"bf16 to f16", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, CUDA_R_16BF, CUDA_R_16F, CUBLAS_COMPUTE_32F, false, false,
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"bf16 in f16", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_16F, false, false,
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"f32 in i32", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32I, false, false,
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8", CUBLAS_OP_N, 4, 3, 2, 4, 2, 4, CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, false, false,
     CUBLAS_STATUS_NOT_SUPPORTED},
};

START_TEST(arguments_are_checked) {
  const struct bad_call *bad = &bad_calls[_i];
  _Alignas(16) char a[256] = {0}, b[256] = {0}, c[256] = {0};
  float alpha = 1, beta = 0;
  ledger_calls = 0;
  cublasStatus_t got = finish(cublasGemmEx(handle, (cublasOperation_t)bad->ta, CUBLAS_OP_N, bad->m, bad->n, bad->k,
                                           bad->no_alpha ? NULL : &alpha, a, bad->a, bad->lda, b, bad->a, bad->ldb, &beta,
                                           bad->no_c ? NULL : c, bad->c, bad->ldc, bad->compute, CUBLAS_GEMM_DEFAULT));
  ck_assert_msg(got == bad->want, "%s: %d, not %d", bad->what, (int)got, (int)bad->want);
  ck_assert_int_eq(ledger_calls, bad->want == CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(finish(cublasGemmEx(NULL, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, a, CUDA_R_32F, 1, b, CUDA_R_32F, 1,
                                       &beta, c, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)),
                   CUBLAS_STATUS_NOT_INITIALIZED);
}
END_TEST

START_TEST(negative_batch_is_refused) {
  float alpha = 1, beta = 0, matrix[4] = {0};
  ck_assert_int_eq(finish(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, matrix, 1, 1, matrix,
                                                    1, 1, &beta, matrix, 1, 1, -1)),
                   CUBLAS_STATUS_INVALID_VALUE);
}
END_TEST

/* ------------------------------------------------------------------------------------------------------------- handle */

START_TEST(settings_are_kept) {
  cublasMath_t math;
  cublasPointerMode_t mode;
  cublasAtomicsMode_t atomics;
  cudaStream_t stream = NULL;
  int sms, version, part;
  ck_assert_int_eq(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                   CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasGetMathMode(handle, &math), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(math, CUBLAS_TF32_TENSOR_OP_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  ck_assert_int_eq(cublasSetMathMode(handle, (cublasMath_t)5), CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_DEVICE), CUBLAS_STATUS_SUCCESS);
  ck_assert(cublasGetPointerMode_v2(handle, &mode) == CUBLAS_STATUS_SUCCESS && mode == CUBLAS_POINTER_MODE_DEVICE);
  ck_assert_int_eq(cublasSetPointerMode_v2(handle, (cublasPointerMode_t)2), CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(cublasSetAtomicsMode(handle, CUBLAS_ATOMICS_ALLOWED), CUBLAS_STATUS_SUCCESS);
  ck_assert(cublasGetAtomicsMode(handle, &atomics) == CUBLAS_STATUS_SUCCESS && atomics == CUBLAS_ATOMICS_ALLOWED);
  ck_assert_int_eq(cublasSetSmCountTarget(handle, 100), CUBLAS_STATUS_SUCCESS);
  ck_assert(cublasGetSmCountTarget(handle, &sms) == CUBLAS_STATUS_SUCCESS && sms == 100);
  ck_assert_int_eq(cublasSetSmCountTarget(handle, 1000000), CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(cublasGetStream_v2(handle, &stream), CUBLAS_STATUS_SUCCESS);
  ck_assert_ptr_null(stream);
  ck_assert(cublasGetVersion_v2(NULL, &version) == CUBLAS_STATUS_SUCCESS && version == CUBLAS_VERSION);
  ck_assert(cublasGetProperty(MINOR_VERSION, &part) == CUBLAS_STATUS_SUCCESS && part == CUBLAS_VER_MINOR);
  ck_assert_int_eq(cublasGetMathMode(NULL, &math), CUBLAS_STATUS_NOT_INITIALIZED);
  ck_assert_int_eq(cublasCreate_v2(NULL), CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(cublasDestroy_v2(NULL), CUBLAS_STATUS_NOT_INITIALIZED);
  ck_assert_str_eq(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  ck_assert_str_eq(cublasGetStatusName((cublasStatus_t)99), "unrecognized status");
  ck_assert_str_eq(cublasGetStatusString(CUBLAS_STATUS_ALLOC_FAILED), "the resource allocation failed");
}
END_TEST

static cublasStatus_t small_gemm(cublasHandle_t with) {
  float one = 1, zero = 0, a = 3, b = 5, c = 0;
  cublasStatus_t status = finish(cublasSgemm_v2(with, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, &a, 1, &b, 1, &zero, &c, 1));
  ck_assert(status != CUBLAS_STATUS_SUCCESS || c == 15.0f);
  return status;
}

START_TEST(own_workspace_is_lazy_and_freed) {
  cublasHandle_t own;
  memset(&fake_driver_state, 0, sizeof fake_driver_state);
  ck_assert_int_eq(cublasCreate_v2(&own), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(fake_driver_state.allocations, 0);
  ck_assert_int_eq(small_gemm(own), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(small_gemm(own), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(fake_driver_state.allocations, 1);
  ck_assert_uint_eq(fake_driver_state.bytes, 32u << 20);
  ck_assert_int_eq(fake_driver_state.owner, VNODE_OWNER_CUBLAS);
  ck_assert_int_eq(cublasDestroy_v2(own), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(fake_driver_state.frees, 1);
}
END_TEST

START_TEST(own_workspace_is_not_made_beside_the_applications) {
  memset(&fake_driver_state, 0, sizeof fake_driver_state);
  ck_assert_int_eq(small_gemm(handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(fake_driver_state.allocations, 0);
  ck_assert_int_eq(cublasSetWorkspace_v2(handle, (char *)workspace + 1, 8), CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(cublasSetStream_v2(handle, NULL), CUBLAS_STATUS_SUCCESS); /* back to the library's own */
  ck_assert_int_eq(small_gemm(handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(fake_driver_state.allocations, 1);
}
END_TEST

START_TEST(refused_workspace_is_reported) {
  cublasHandle_t own;
  fake_driver_state.refuse = true;
  ck_assert_int_eq(cublasCreate_v2(&own), CUBLAS_STATUS_SUCCESS);
  ledger_calls = 0;
  ck_assert_int_eq(small_gemm(own), CUBLAS_STATUS_ALLOC_FAILED);
  ck_assert_int_eq(ledger_calls, 0);
  fake_driver_state.refuse = false;
  ck_assert_int_eq(cublasDestroy_v2(own), CUBLAS_STATUS_SUCCESS);
}
END_TEST

/* ------------------------------------------------------------------------------------------------------------ vectors */

static void near(double got, double want) {
  ck_assert_msg(fabs(got - want) <= 1e-6 * (1 + fabs(want)), "%.9g, not %.9g", got, want);
}

START_TEST(vectors) {
  float x[] = {1, -2, 3, -4}, y[] = {5, 6, 7, 8}, result = 0, alpha = 2;
  int index = -1;
  ck_assert_int_eq(cublasSdot_v2(handle, 2, x, 2, y, 1, &result), CUBLAS_STATUS_SUCCESS);
  near((double)result, 1 * 5 + 3 * 6);
  ck_assert_int_eq(cublasSdot_v2(handle, 4, x, -1, y, 1, &result), CUBLAS_STATUS_SUCCESS);
  near((double)result, -4 * 5 + 3 * 6 - 2 * 7 + 1 * 8);
  ck_assert_int_eq(cublasSnrm2_v2(handle, 4, x, 1, &result), CUBLAS_STATUS_SUCCESS);
  near((double)result, sqrt(30));
  ck_assert_int_eq(cublasSasum_v2(handle, 4, x, 1, &result), CUBLAS_STATUS_SUCCESS);
  near((double)result, 10);
  ck_assert_int_eq(cublasIsamax_v2(handle, 4, x, 1, &index), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(index, 4);
  ck_assert_int_eq(cublasIsamin_v2(handle, 4, x, 1, &index), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(index, 1);
  ck_assert_int_eq(finish(cublasSaxpy_v2(handle, 4, &alpha, x, 1, y, 1)), CUBLAS_STATUS_SUCCESS);
  near((double)y[1], 2);
  ck_assert_int_eq(finish(cublasSscal_v2(handle, 2, &alpha, y, 2)), CUBLAS_STATUS_SUCCESS);
  near((double)y[0], 14);
  near((double)y[1], 2);
  near((double)y[2], 26);
  ck_assert_int_eq(finish(cublasSswap_v2(handle, 4, x, 1, y, 1)), CUBLAS_STATUS_SUCCESS);
  near((double)x[0], 14);
  near((double)y[3], -4);
  ck_assert_int_eq(finish(cublasScopy_v2(handle, 4, x, 1, y, 1)), CUBLAS_STATUS_SUCCESS);
  ck_assert(memcmp(x, y, sizeof x) == 0);
}
END_TEST

START_TEST(dots_of_other_types) {
  const uint16_t bf16[] = {0x3f80, 0x4000, 0x4040}; /* 1 2 3 */
  const cuComplex c[] = {{1, 2}, {3, -1}}, d[] = {{0, 1}, {2, 2}};
  uint16_t narrow = 0;
  cuComplex complex = {0, 0};
  ck_assert_int_eq(cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_DEVICE), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(
      finish(cublasDotEx(handle, 3, bf16, CUDA_R_16BF, 1, bf16, CUDA_R_16BF, 1, &narrow, CUDA_R_16BF, CUDA_R_32F)),
      CUBLAS_STATUS_SUCCESS);
  ck_assert_uint_eq(narrow, 0x4160); /* 14 */
  ck_assert_int_eq(
      finish(cublasDotEx(handle, 3, bf16, CUDA_R_16BF, 1, bf16, CUDA_R_16F, 1, &narrow, CUDA_R_16BF, CUDA_R_32F)),
      CUBLAS_STATUS_NOT_SUPPORTED);
  ck_assert_int_eq(finish(cublasCdotu_v2(handle, 2, c, 1, d, 1, &complex)), CUBLAS_STATUS_SUCCESS);
  ck_assert(complex.x == -2.0f + 8.0f && complex.y == 1.0f + 4.0f);
  ck_assert_int_eq(finish(cublasCdotc_v2(handle, 2, c, 1, d, 1, &complex)), CUBLAS_STATUS_SUCCESS);
  ck_assert(complex.x == 2.0f + 4.0f && complex.y == 1.0f + 8.0f);
}
END_TEST

START_TEST(matrix_and_vector) {
  const double a[] = {1, 2, 3, 4, 5, 6, NAN}; /* 2×3 */
  double x[] = {1, 10, 100}, y[] = {NAN, NAN, NAN}, one = 1, zero = 0, two = 2, r[] = {0, 0, 0, 0};
  ck_assert_int_eq(finish(cublasDgemv_v2(handle, CUBLAS_OP_N, 2, 3, &one, a, 2, x, 1, &zero, y, 1)), CUBLAS_STATUS_SUCCESS);
  ck_assert(y[0] == 531.0 && y[1] == 642.0 && isnan(y[2]));
  y[2] = 1;
  ck_assert_int_eq(finish(cublasDgemv_v2(handle, CUBLAS_OP_T, 2, 3, &two, a, 2, x, 1, &one, y, 1)), CUBLAS_STATUS_SUCCESS);
  ck_assert(y[0] == 531.0 + 42.0 && y[2] == 1.0 + 130.0);
  ck_assert_int_eq(finish(cublasDgemv_v2(handle, CUBLAS_OP_N, 2, 3, &one, a, 1, x, 1, &zero, y, 1)),
                   CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(finish(cublasDger_v2(handle, 2, 2, &two, x, 1, x, 1, r, 2)), CUBLAS_STATUS_SUCCESS);
  ck_assert(r[0] == 2.0 && r[1] == 20.0 && r[3] == 200.0);
  ck_assert_int_eq(ledger_calls, 0); /* none of these is a GEMM */
}
END_TEST

int main(void) {
  reference_load_blas();
  Suite *suite = suite_create("vnode_cublas");
  TCase *tcase = tcase_create("cublas");
  tcase_add_checked_fixture(tcase, setup, teardown);
  tcase_set_timeout(tcase, 120);
  tcase_add_loop_test(tcase, gemm_agrees_with_fp64, 0, TYPES);
  tcase_add_test(tcase, interleaved_batches_are_declared_exactly);
  tcase_add_loop_test(tcase, large_gemm_agrees_with_fp64, 0, 3);
  tcase_add_test(tcase, nan_of_an_operand_stays_in_its_row);
  tcase_add_test(tcase, runs_are_bit_identical);
  tcase_add_loop_test(tcase, typed_entry_points, 0, 5);
  tcase_add_test(tcase, sgemmex_takes_narrow_inputs);
  tcase_add_loop_test(tcase, arguments_are_checked, 0, (int)(sizeof bad_calls / sizeof bad_calls[0]));
  tcase_add_test(tcase, negative_batch_is_refused);
  tcase_add_test(tcase, settings_are_kept);
  tcase_add_test(tcase, own_workspace_is_lazy_and_freed);
  tcase_add_test(tcase, own_workspace_is_not_made_beside_the_applications);
  tcase_add_test(tcase, refused_workspace_is_reported);
  tcase_add_test(tcase, vectors);
  tcase_add_test(tcase, dots_of_other_types);
  tcase_add_test(tcase, matrix_and_vector);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
