/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What FP8 and FP4 products of the node's cuBLASLt compute: every recipe, layout, output, epilogue, alpha and beta against
 * FP64, on the GPU that takes the recipe, from bytes that this file packs by the documentation's words; and that bytes in
 * the wrong place give other numbers.
 */
#include <check.h>
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/reference.h"
#include "tools/vnode/core/model.h"

#define OK CUBLAS_STATUS_SUCCESS
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define E4 CUDA_R_8F_E4M3
#define E5 CUDA_R_8F_E5M2
#define F4 CUDA_R_4F_E2M1
#define BF CUDA_R_16BF
#define HF CUDA_R_16F
#define FP CUDA_R_32F

enum mode { SCALAR, VEC16, VEC32, OUTER, VEC128, BLK128 };

/* ---------------------------------------------------------------------------------------------------------- operands */

/* outer × k numbers, and what the library gets of them. */
struct operand {
  cudaDataType type;
  enum mode mode;
  int64_t outer, k, runs, ld; /* runs: scales of a row; ld: elements */
  bool k_fast;
  double *values; /* with their scales, row by row */
  uint8_t *codes; /* one an element, row by row */
  double *factors;
  unsigned char *data, *scales;
  size_t scale_bytes;
};

static void *bytes_of(size_t bytes) {
  void *memory = aligned_alloc(256, (bytes + 511) & ~(size_t)255);
  if (!memory)
    abort();
  memset(memory, 0, (bytes + 511) & ~(size_t)255);
  return memory;
}

static double decode(cudaDataType type, uint8_t code) {
  static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (type == F4)
    return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
  return reference_load(&code, type, 0).re;
}

static int64_t run_length(enum mode mode, int64_t k) {
  return mode == VEC16 ? 16 : mode == VEC32 ? 32 : mode == VEC128 || mode == BLK128 ? 128 : k;
}

/* Any number up to 4, so that sums stay within FP16. */
static uint8_t random_code(cudaDataType type) {
  for (;;) {
    uint8_t code = (uint8_t)(reference_random_bits() & (type == F4 ? 15 : 255));
    if (fabs(decode(type, code)) <= 4)
      return code;
  }
}

/* UE8M0 2^-6 … 2; UE4M3 any positive number up to 8; FP32 in [1/2, 1). */
static double random_factor(enum mode mode, uint8_t *byte) {
  uint64_t bits = reference_random_bits();
  if (mode == VEC32) {
    *byte = (uint8_t)(121 + bits % 8);
    return ldexp(1, *byte - 127);
  }
  if (mode == VEC16) {
    *byte = (uint8_t)(1 + bits % 80);
    return decode(E4, *byte);
  }
  return (double)((float)(0.5 + ldexp((double)(bits % 100000), -18)));
}

/* "128x4 tiles, 32 rows of 16 bytes: four groups of 32 rows side by side": written in the order of memory. */
static void pack_tiles(struct operand *x, const uint8_t *bytes) {
  unsigned char *to = x->scales;
  for (int64_t tile = 0; tile < (x->outer + 127) / 128; tile++)
    for (int64_t column = 0; column < (x->runs + 3) / 4; column++)
      for (int64_t line = 0; line < 32; line++)
        for (int64_t group = 0; group < 4; group++)
          for (int64_t run = 4 * column; run < 4 * column + 4; run++, to++) {
            int64_t row = 128 * tile + 32 * group + line;
            *to = row < x->outer && run < x->runs ? bytes[row * x->runs + run] : 0;
          }
  x->scale_bytes = (size_t)(to - x->scales);
}

static void pack_floats(struct operand *x) {
  int64_t padded = (x->runs + 3) / 4 * 4;
  float *to = (float *)(void *)x->scales;
  for (int64_t row = 0; row < x->outer; row++)
    for (int64_t run = 0; run < x->runs; run++)
      to[x->mode == BLK128 ? row / 128 * padded + run : run * x->outer + row] = (float)x->factors[row * x->runs + run];
  x->scale_bytes = sizeof(float) * (size_t)(x->mode == BLK128 ? (x->outer + 127) / 128 * padded : x->outer * x->runs);
}

static void pack_data(struct operand *x) {
  for (int64_t row = 0; row < x->outer; row++)
    for (int64_t i = 0; i < x->k; i++) {
      int64_t at = x->k_fast ? row * x->ld + i : i * x->ld + row;
      uint8_t code = x->codes[row * x->k + i];
      if (x->type == F4)
        x->data[at / 2] = (unsigned char)(at % 2 ? (x->data[at / 2] & 15) | code << 4 : (x->data[at / 2] & 0xf0) | code);
      else
        x->data[at] = code;
    }
}

static void set_values(struct operand *x) {
  for (int64_t row = 0; row < x->outer; row++)
    for (int64_t i = 0; i < x->k; i++)
      x->values[row * x->k + i] =
          decode(x->type, x->codes[row * x->k + i]) * x->factors[row * x->runs + i / run_length(x->mode, x->k)];
}

static struct operand operand_make(cudaDataType type, enum mode mode, int64_t outer, int64_t k, bool k_fast, int64_t pad) {
  struct operand x = {.type = type, .mode = mode, .outer = outer, .k = k, .k_fast = k_fast};
  x.runs = (k + run_length(mode, k) - 1) / run_length(mode, k);
  x.ld = (k_fast ? k : outer) + pad;
  size_t count = (size_t)(outer * k), scales = (size_t)((outer + 127) / 128 * 128 * ((x.runs + 3) / 4 * 4));
  x.values = bytes_of(count * sizeof *x.values);
  x.codes = bytes_of(count);
  x.factors = bytes_of((size_t)(outer * x.runs) * sizeof *x.factors);
  x.data = bytes_of((size_t)(x.ld * (k_fast ? outer : k)));
  x.scales = bytes_of(scales * sizeof(float));
  uint8_t *bytes = bytes_of((size_t)(outer * x.runs));
  for (size_t i = 0; i < count; i++)
    x.codes[i] = random_code(type);
  for (int64_t row = 0; row < outer; row++)
    for (int64_t run = 0; run < x.runs; run++) {
      int64_t at = row * x.runs + run;
      bool follows = mode == SCALAR ? at > 0 : mode == BLK128 && row % 128 != 0;
      x.factors[at] = follows ? x.factors[mode == SCALAR ? 0 : at - x.runs] : random_factor(mode, &bytes[at]);
    }
  if (mode == VEC16 || mode == VEC32) {
    pack_tiles(&x, bytes);
  } else if (mode == SCALAR) {
    float scale = (float)x.factors[0];
    memcpy(x.scales, &scale, sizeof scale);
    x.scale_bytes = sizeof scale;
  } else {
    pack_floats(&x);
  }
  pack_data(&x);
  set_values(&x);
  free(bytes);
  return x;
}

static void operand_free(struct operand *x) {
  free(x->values);
  free(x->codes);
  free(x->factors);
  free(x->data);
  free(x->scales);
}

/* --------------------------------------------------------------------------------------------------------- a product */

struct recipe {
  const char *name, *gpu;
  cudaDataType a, b;
  enum mode mode_a, mode_b;
  const char *format; /* of the model */
};

static const struct recipe recipes[] = {
    {"fp8", "b200", E4, E4, SCALAR, SCALAR, "fp8"},
    {"fp8 e5m2", "b200", E4, E5, SCALAR, SCALAR, "fp8"},
    {"fp8 9.0", "h100", E5, E4, SCALAR, SCALAR, "fp8"},
    {"fp8 8.9", "l40s", E4, E4, SCALAR, SCALAR, "fp8"},
    {"mxfp8", "b200", E4, E4, VEC32, VEC32, "mxfp8"},
    {"mxfp8 e5m2", "b300", E4, E5, VEC32, VEC32, "mxfp8"},
    {"mxfp8 12.0", "rtx_pro_6000", E5, E4, VEC32, VEC32, "mxfp8"},
    {"nvfp4", "b200", F4, F4, VEC16, VEC16, "nvfp4"},
#if CUBLAS_VERSION >= 120900
    {"outer vectors", "h100", E4, E4, OUTER, OUTER, "fp8"},
    {"1x128", "h100", E4, E4, VEC128, VEC128, "fp8"},
    {"128x128, 1x128", "h100", E4, E4, BLK128, VEC128, "fp8"},
    {"1x128, 128x128", "h100", E4, E4, VEC128, BLK128, "fp8"},
#endif
};

struct product {
  const struct recipe *recipe;
  char trans_a, trans_b;
  int64_t m, n, k;
  cudaDataType c_type, d_type;
  uint32_t epilogue;
  double alpha, beta;
  bool on_device, in_place, fast;
  struct operand a, b;
  struct reference_matrix bias, c, d;
};

static cublasLtHandle_t handle;
static char workspace[1 << 20] __attribute__((aligned(256)));

static void product_make(struct product *x) {
  int64_t pad = x->recipe->a == F4 ? 32 : 16;
  x->a = operand_make(x->recipe->a, x->recipe->mode_a, x->m, x->k, x->trans_a == 'T', pad);
  x->b = operand_make(x->recipe->b, x->recipe->mode_b, x->n, x->k, x->trans_b == 'N', pad);
  x->c = reference_random(x->c_type, x->m, x->n, 16, 1);
  x->d = reference_random(x->d_type, x->m, x->n, 16, 1);
  x->bias = reference_random(x->d_type == HF || (x->c_type == HF && x->d_type != BF) ? HF : BF, x->m, 1, 0, 1);
}

static void product_free(struct product *x) {
  operand_free(&x->a);
  operand_free(&x->b);
  reference_free(&x->c);
  reference_free(&x->d);
  reference_free(&x->bias);
}

static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
  ck_assert_int_eq(cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes), OK);
}

static cublasStatus_t product_run(const struct product *x) {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  int32_t ta = x->trans_a == 'T', tb = x->trans_b == 'T', mode_a = (int32_t)x->a.mode, mode_b = (int32_t)x->b.mode;
  int32_t pointers = x->on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  int8_t fast = x->fast;
  float alpha = (float)x->alpha, beta = (float)x->beta;
  void *bias = x->bias.data;
  cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  set(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
  set(&desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
  set(&desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers, sizeof pointers);
  set(&desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
  set(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &x->a.scales, sizeof x->a.scales);
  set(&desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x->b.scales, sizeof x->b.scales);
  set(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode_a, sizeof mode_a);
  set(&desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode_b, sizeof mode_b);
  if (x->epilogue)
    set(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &x->epilogue, sizeof x->epilogue);
  if (x->epilogue & CUBLASLT_EPILOGUE_BIAS)
    set(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
  bool a_t = x->trans_a == 'T', b_t = x->trans_b == 'T';
  cublasLtMatrixLayoutInit(&a, x->a.type, (uint64_t)(a_t ? x->k : x->m), (uint64_t)(a_t ? x->m : x->k), x->a.ld);
  cublasLtMatrixLayoutInit(&b, x->b.type, (uint64_t)(b_t ? x->n : x->k), (uint64_t)(b_t ? x->k : x->n), x->b.ld);
  cublasLtMatrixLayoutInit(&c, x->c_type, (uint64_t)x->m, (uint64_t)x->n, x->c.ld);
  cublasLtMatrixLayoutInit(&d, x->d_type, (uint64_t)x->m, (uint64_t)x->n, x->d.ld);
  return finish(cublasLtMatmul(handle, &desc, &alpha, x->a.data, &a, x->b.data, &b, &beta,
                               x->in_place ? x->d.data : x->c.data, &c, x->d.data, &d, NULL, workspace, sizeof workspace,
                               NULL));
}

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double activated(uint32_t epilogue, double x) {
  uint32_t activation = epilogue & ~(uint32_t)CUBLASLT_EPILOGUE_BIAS;
  return activation == CUBLASLT_EPILOGUE_RELU ? fmax(x, 0) : activation == CUBLASLT_EPILOGUE_GELU ? gelu(x) : x;
}

/* What D is to be at a place, and how far off it may be: FP32 accumulation in any order (one rounding a step, and one for
   each operand whose scale is FP32), epilogue, one rounding of the result. */
struct bound {
  double want, slack;
};

static struct bound expect(const struct product *x, const struct reference_matrix *c, int64_t row, int64_t col) {
  double sum = 0, magnitude = 0;
  for (int64_t i = 0; i < x->k; i++) {
    double term = x->a.values[row * x->k + i] * x->b.values[col * x->k + i];
    sum += term;
    magnitude += fabs(term);
  }
  double value = x->alpha * sum;
  magnitude *= fabs(x->alpha);
  if (x->beta != 0) {
    value += x->beta * reference_at(c, row, col, 0).re;
    magnitude += fabs(x->beta * reference_at(c, row, col, 0).re);
  }
  if (x->epilogue & CUBLASLT_EPILOGUE_BIAS) {
    value += reference_at(&x->bias, row, 0, 0).re;
    magnitude += fabs(reference_at(&x->bias, row, 0, 0).re);
  }
  double slack = (double)(x->k + 8) * 0x1p-24 * magnitude;
  double want = activated(x->epilogue, value);
  double largest = x->d_type == E4   ? 448
                   : x->d_type == E5 ? 57344
                                     : HUGE_VAL,
         least = x->d_type == E4   ? 0x1p-10
                 : x->d_type == HF ? 0x1p-25
                                   : 0;
  if (x->epilogue & (CUBLASLT_EPILOGUE_GELU))
    slack = 1.2 * slack + 1e-6 * (1 + fabs(value));
  want = fmax(fmin(want, largest), -largest);
  return (struct bound){want, slack + 1.01 * reference_unit(x->d_type) * (fabs(want) + slack) + least};
}

static void product_check(const struct product *x, const struct reference_matrix *before) {
  for (int64_t col = 0; col < x->n; col++)
    for (int64_t row = 0; row < x->m; row++) {
      struct bound bound = expect(x, x->in_place ? before : &x->c, row, col);
      double got = reference_at(&x->d, row, col, 0).re;
      if (!(fabs(got - bound.want) <= bound.slack))
        ck_abort_msg("%s %c%c %dx%dx%d D %d epilogue %u alpha %g beta %g (%d,%d): %.9g, not %.9g within %.3g",
                     x->recipe->name, x->trans_a, x->trans_b, (int)x->m, (int)x->n, (int)x->k, (int)x->d_type, x->epilogue,
                     x->alpha, x->beta, (int)row, (int)col, got, bound.want, bound.slack);
    }
  ck_assert(reference_guard_intact(&x->d));
}

static void declared(const struct operand *x) {
  int64_t width = x->k_fast ? x->k : x->outer, lines = x->k_fast ? x->outer : x->k, half = x->type == F4 ? 2 : 1;
  for (int64_t line = 0; line < lines; line++) {
    expect_access_bytes(x->data + line * x->ld / half, (size_t)(width / half), true, false);
    expect_access_bytes(x->data + (line * x->ld + width) / half, (size_t)((x->ld - width) / half), false, false);
  }
  expect_access_bytes(x->scales, x->scale_bytes, true, false);
  expect_access_bytes(x->scales + x->scale_bytes, 16, false, false);
}

static void product_try(struct product *x) {
  product_make(x);
  struct reference_matrix before = reference_copy(&x->d);
  if (x->beta == 0)
    reference_fill_nan(&x->c);
  ck_assert_int_eq(product_run(x), OK);
  product_check(x, &before);
  declared(&x->a);
  declared(&x->b);
  expect_access(&x->d, true, true);
  ck_assert_int_eq(operation_duration_ns,
                   vnode_model_gemm_ns(x->m, x->n, x->k, 1, x->recipe->format, (int)reference_bytes(x->d_type)));
  reference_free(&before);
  product_free(x);
}

/* In the process of the test: to fork one that maps PyTorch is slow. */
static void use_gpu(const char *gpu) {
  reference_load_blas();
  setenv("B200OPT_VNODE_GPU", gpu, 1);
  ck_assert_int_eq(cublasLtCreate(&handle), OK);
}

static bool takes_any_layout(const struct recipe *recipe) {
  return !strncmp(recipe->gpu, "b", 1) && recipe->a != F4;
}

/* k: whole blocks, a part of one, a part of a tile. */
static const struct { int64_t m, n, k; } sizes[] = {{32, 17, 64}, {16, 1, 32}, {144, 131, 160}, {64, 48, 96}, {16, 33, 512}};

START_TEST(products_agree_with_fp64) {
  static const struct { cudaDataType c, d; } outputs[] = {{BF, BF}, {HF, HF}, {FP, FP}, {BF, E4}, {HF, E4}};
  static const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU,
                                       CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS};
  static const double factors[][2] = {{1, 0}, {0.375, 0}, {1, 1}, {-1.5, 0.75}};
  static const char layouts[][2] = {{'T', 'N'}, {'N', 'N'}, {'N', 'T'}, {'T', 'T'}};
  const struct recipe *recipe = &recipes[_i];
  int tried = 0;
  use_gpu(recipe->gpu);
  for (int layout = 0; layout < (takes_any_layout(recipe) ? COUNT(layouts) : 1); layout++)
    for (int size = 0; size < COUNT(sizes); size++)
      for (int output = 0; output < COUNT(outputs); output++)
        for (int epilogue = 0; epilogue < COUNT(epilogues); epilogue++)
          for (int factor = 0; factor < COUNT(factors); factor++) {
            struct product x = {.recipe = recipe,
                                .trans_a = layouts[layout][0],
                                .trans_b = layouts[layout][1],
                                .m = sizes[size].m,
                                .n = sizes[size].n,
                                .k = sizes[size].k,
                                .c_type = outputs[output].c,
                                .d_type = outputs[output].d,
                                .epilogue = epilogues[epilogue],
                                .alpha = factors[factor][0],
                                .beta = factors[factor][1]};
            bool narrow = x.d_type == E4;
            bool large = size >= 2, corner = epilogue % 5 == 0 && factor % 3 == 0;
            if ((narrow && recipe->mode_a != SCALAR) || (large && !corner))
              continue;
            if (x.trans_b == 'T' || recipe->mode_a >= VEC128)
              x.n = (x.n + 15) / 16 * 16; /* what the rules ask for */
            x.on_device = tried % 2;
            x.fast = tried % 3 == 0;
            x.in_place = x.beta != 0 && !narrow && tried % 4 != 0;
            product_try(&x);
            tried++;
          }
  printf("%-15s on %-12s %4d products agree with FP64\n", recipe->name, recipe->gpu, tried);
  fflush(stdout);
}
END_TEST

/* --------------------------------------------------------------------------------------------------------- controls */

/* Columns and rows of D that are not what they would be. */
static int64_t differing(const struct product *x, const struct reference_matrix *old) {
  int64_t count = 0;
  for (int64_t col = 0; col < x->n; col++)
    for (int64_t row = 0; row < x->m; row++) {
      double now = reference_at(&x->d, row, col, 0).re, before = reference_at(old, row, col, 0).re;
      count += isnan(now) != isnan(before) || (!isnan(now) && fabs(now - before) > 0);
    }
  return count;
}

static struct product tiled(const struct recipe *recipe, int64_t m, int64_t n, int64_t k) {
  struct product x = {
      .recipe = recipe, .trans_a = 'T', .trans_b = 'N', .m = m, .n = n, .k = k, .c_type = FP, .d_type = FP, .alpha = 1};
  product_make(&x);
  ck_assert_int_eq(product_run(&x), OK);
  product_check(&x, &x.d);
  return x;
}

static const struct recipe *recipe_named(const char *name) {
  const struct recipe *recipe = recipes;
  while (strcmp(recipe->name, name))
    recipe++;
  return recipe;
}

static const char *const tiled_recipes[] = {"mxfp8", "nvfp4"};

START_TEST(scales_in_the_wrong_place_give_other_numbers) {
  const struct recipe *recipe = recipe_named(tiled_recipes[_i]);
  use_gpu(recipe->gpu);
  struct product x = tiled(recipe, 144, 144, 288);
  struct reference_matrix right = reference_copy(&x.d);
  int64_t all = x.m * x.n;

  unsigned char *scales = x.a.scales; /* the two operands' swapped */
  x.a.scales = x.b.scales, x.b.scales = scales;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_gt(differing(&x, &right), all / 2);
  x.b.scales = x.a.scales, x.a.scales = scales;

  unsigned char *copy = bytes_of(x.a.scale_bytes); /* row by row, as if there were no tiles */
  memcpy(copy, x.a.scales, x.a.scale_bytes);
  int64_t padded = (x.a.runs + 3) / 4 * 4;
  for (int64_t row = 0; row < x.m; row++)
    for (int64_t run = 0; run < padded; run++)
      x.a.scales[row * padded + run] =
          copy[((row / 128) * (padded / 4) + run / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + run % 4];
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_gt(differing(&x, &right), all / 2);

  memcpy(x.a.scales, copy, x.a.scale_bytes); /* one scale, one bit */
  x.a.scales[5 * 16] ^= 1;                   /* row 5, run 0 */
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_gt(differing(&x, &right), x.n * 3 / 4); /* some sums round to what they were */
  ck_assert_int_le(differing(&x, &right), x.n);
  x.a.scales[5 * 16] ^= 1;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_eq(differing(&x, &right), 0);
  free(copy);
  reference_free(&right);
  product_free(&x);
}
END_TEST

/* The tensor cores multiply padding along k by zeros: NaN there makes the row NaN, other numbers do nothing. Padding rows
   belong to results that nobody keeps. */
START_TEST(padding_of_scales) {
  const struct recipe *recipe = recipe_named(tiled_recipes[_i]);
  const uint8_t nan_byte = recipe->mode_a == VEC32 ? 0xff : 0x7f;
  use_gpu(recipe->gpu);
  struct product x = tiled(recipe, 48, 40, 96);
  struct reference_matrix right = reference_copy(&x.d);
  int64_t run = x.a.runs % 4 ? x.a.runs : -1; /* the first run that is padding: 3 of MXFP8's 4, 6 of NVFP4's 8 */
  ck_assert_int_ge(run, 3);
  int64_t at = run / 4 * 512 + 7 * 16 + run % 4; /* row 7 */

  x.a.scales[at] = 0x71;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_eq(differing(&x, &right), 0);
  x.a.scales[at] = nan_byte;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_eq(differing(&x, &right), x.n);
  ck_assert(isnan(reference_at(&x.d, 7, 3, 0).re) && !isnan(reference_at(&x.d, 8, 3, 0).re));
  x.a.scales[at] = 0;

  at = run / 4 * 512 + 7 * 16 + 4 + run % 4; /* column 39 of B */
  x.b.scales[at] = nan_byte;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_eq(differing(&x, &right), x.m);
  ck_assert(isnan(reference_at(&x.d, 0, 39, 0).re));
  x.b.scales[at] = 0;

  memset(x.a.scales + 20 * 16 + 4, nan_byte, 4); /* row 52, which A has not */
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_eq(differing(&x, &right), 0);
  reference_free(&right);
  product_free(&x);
}
END_TEST

/* E8M0's ends: 0 is 2^-127, 255 NaN. UE4M3's sign is not looked at. */
START_TEST(ends_of_scale_formats) {
  use_gpu("b200");
  struct product x = tiled(recipe_named("mxfp8"), 16, 16, 32);
  for (int i = 0; i < 32; i++)
    x.a.codes[i] = 0x7e, x.b.codes[i] = 0x7e; /* 448 in row 0 and column 0 */
  pack_data(&x.a), pack_data(&x.b);
  x.a.scales[0] = 0, x.b.scales[0] = 127 + 118;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_double_eq(reference_at(&x.d, 0, 0, 0).re, 32.0 * 448 * 448 * 0x1p-9);
  x.b.scales[0] = 127;
  x.alpha = 0x1p100;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_double_eq(reference_at(&x.d, 0, 0, 0).re, 32.0 * 448 * 448 * 0x1p-27);
  x.b.scales[0] = 255;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert(isnan(reference_at(&x.d, 0, 0, 0).re) && isnan(reference_at(&x.d, 15, 0, 0).re));
  ck_assert(!isnan(reference_at(&x.d, 0, 1, 0).re));
  product_free(&x);

  x = tiled(recipe_named("nvfp4"), 16, 16, 32);
  struct reference_matrix right = reference_copy(&x.d);
  x.a.scales[0] |= 0x80;
  ck_assert_int_eq(product_run(&x), OK);
  ck_assert_int_eq(differing(&x, &right), 0);
  reference_free(&right);
  product_free(&x);
}
END_TEST

/* NULL is 1 for a scalar; block scales that hardware could not read end the context. */
START_TEST(scales_that_cannot_be_read) {
  static const struct {
    const char *recipe;
    intptr_t offset;
    int error;
  } cases[] = {{"fp8", -1, 0}, {"mxfp8", -1, 700}, {"mxfp8", 8, 716}, {"nvfp4", 4, 716}, {"mxfp8", 0, 0}};
  use_gpu("b200");
  struct product x = tiled(recipe_named(cases[_i].recipe), 16, 16, 64);
  unsigned char *scales = x.a.scales;
  x.a.scales = cases[_i].offset < 0 ? NULL : scales + cases[_i].offset;
  cublasStatus_t status = product_run(&x);
  ck_assert(status == OK || status == CUBLAS_STATUS_EXECUTION_FAILED);
  ck_assert_int_eq(vnode_sticky_error(), cases[_i].error);
  if (!x.a.scales && !cases[_i].error) {
    float scale;
    memcpy(&scale, scales, sizeof scale);
    for (int64_t i = 0; i < x.m * x.k; i++)
      x.a.values[i] /= (double)scale;
    product_check(&x, &x.d);
  }
}
END_TEST

/* E5M2, which E4M3 × E4M3 cannot give. Scale and amax of D: test_cublaslt.c. */
START_TEST(e5m2_results) {
  use_gpu("b200");
  struct product x = {.recipe = recipe_named("fp8 e5m2"),
                      .trans_a = 'T',
                      .trans_b = 'N',
                      .m = 32,
                      .n = 19,
                      .k = 64,
                      .c_type = BF,
                      .d_type = E5,
                      .alpha = 1};
  product_try(&x);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_narrow");
  TCase *cases = tcase_create("narrow");
  tcase_set_timeout(cases, 300);
  tcase_add_loop_test(cases, products_agree_with_fp64, 0, COUNT(recipes));
  tcase_add_loop_test(cases, scales_in_the_wrong_place_give_other_numbers, 0, COUNT(tiled_recipes));
  tcase_add_loop_test(cases, padding_of_scales, 0, COUNT(tiled_recipes));
  tcase_add_test(cases, ends_of_scale_formats);
  tcase_add_loop_test(cases, scales_that_cannot_be_read, 0, 5);
  tcase_add_test(cases, e5m2_results);
  suite_add_tcase(suite, cases);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
