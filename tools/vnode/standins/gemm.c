/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/gemm.h"

#include <cublas_api.h>
#include <math.h>
#include <string.h>

#include "tools/vnode/core/core.h"
#include "tools/vnode/standins/host_blas.h"
#include "tools/vnode/standins/number.h"
#include "tools/vnode/standins/simd.h"

/* ---------------------------------------------------------------------------------------------------------- types */

struct combination {
  int compute;
  cudaDataType a, b, c, d;
  enum vnode_gemm_kind kind;
};

#define SAME(compute, type, kind)                                                                                           \
  { compute, type, type, type, type, kind }
#define PLAIN(compute, in, out, kind)                                                                                       \
  { compute, in, in, out, out, kind }
#define FP8(a, b, c, d)                                                                                                     \
  { CUBLAS_COMPUTE_32F, CUDA_R_8F_##a, CUDA_R_8F_##b, CUDA_R_##c, CUDA_R_##d, VNODE_GEMM_FP8 }
#define FP8_WIDE(a, b)                                                                                                      \
  FP8(a, b, 16BF, 16BF), FP8(a, b, 16F, 16F), FP8(a, b, 32F, 32F), FP8(a, b, 16BF, 8F_E4M3), FP8(a, b, 16F, 8F_E4M3)

#define FP4(out)                                                                                                            \
  { CUBLAS_COMPUTE_32F, CUDA_R_4F_E2M1, CUDA_R_4F_E2M1, CUDA_R_##out, CUDA_R_##out, VNODE_GEMM_FP4 }

/* PEDANTIC and emulated compute types are looked up as the plain ones; E5M2 output needs an E5M2 input. */
static const struct combination combinations[] = {
    SAME(CUBLAS_COMPUTE_16F, CUDA_R_16F, VNODE_GEMM_F32),
    SAME(CUBLAS_COMPUTE_32F, CUDA_R_32F, VNODE_GEMM_F32),
    SAME(CUBLAS_COMPUTE_32F, CUDA_R_16F, VNODE_GEMM_F32),
    SAME(CUBLAS_COMPUTE_32F, CUDA_R_16BF, VNODE_GEMM_F32),
    PLAIN(CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_32F, VNODE_GEMM_F32),
    PLAIN(CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F, VNODE_GEMM_F32),
    PLAIN(CUBLAS_COMPUTE_32F, CUDA_R_8I, CUDA_R_32F, VNODE_GEMM_F32),
    SAME(CUBLAS_COMPUTE_32F, CUDA_C_32F, VNODE_GEMM_COMPLEX),
    SAME(CUBLAS_COMPUTE_32F_FAST_16F, CUDA_R_32F, VNODE_GEMM_F32),
    SAME(CUBLAS_COMPUTE_32F_FAST_16F, CUDA_C_32F, VNODE_GEMM_COMPLEX),
    SAME(CUBLAS_COMPUTE_64F, CUDA_R_64F, VNODE_GEMM_F64),
    SAME(CUBLAS_COMPUTE_64F, CUDA_C_64F, VNODE_GEMM_COMPLEX),
    PLAIN(CUBLAS_COMPUTE_32I, CUDA_R_8I, CUDA_R_32I, VNODE_GEMM_I32),
    FP8_WIDE(E4M3, E4M3),
    FP8_WIDE(E4M3, E5M2),
    FP8_WIDE(E5M2, E4M3),
    FP8(E4M3, E5M2, 16BF, 8F_E5M2),
    FP8(E4M3, E5M2, 16F, 8F_E5M2),
    FP8(E5M2, E4M3, 16BF, 8F_E5M2),
    FP8(E5M2, E4M3, 16F, 8F_E5M2),
    FP4(16BF),
    FP4(16F),
    FP4(32F),
};

static int plain_compute(int compute) {
  switch (compute) {
  case CUBLAS_COMPUTE_16F_PEDANTIC:
    return CUBLAS_COMPUTE_16F;
  case CUBLAS_COMPUTE_32F_PEDANTIC:
    return CUBLAS_COMPUTE_32F;
  case CUBLAS_COMPUTE_32F_FAST_16BF:
  case CUBLAS_COMPUTE_32F_FAST_TF32:
  case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
    return CUBLAS_COMPUTE_32F_FAST_16F;
  case CUBLAS_COMPUTE_64F_PEDANTIC:
  case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
    return CUBLAS_COMPUTE_64F;
  case CUBLAS_COMPUTE_32I_PEDANTIC:
    return CUBLAS_COMPUTE_32I;
  default:
    return compute;
  }
}

enum vnode_gemm_kind vnode_gemm_kind(int compute, cudaDataType a, cudaDataType b, cudaDataType c, cudaDataType d) {
  for (size_t i = 0; i < sizeof combinations / sizeof combinations[0]; i++) {
    const struct combination *known = &combinations[i];
    if (known->compute == plain_compute(compute) && known->a == a && known->b == b && known->c == c && known->d == d)
      return known->kind;
  }
  return VNODE_GEMM_NONE;
}

bool vnode_gemm_is_narrow(enum vnode_gemm_kind kind) {
  return kind == VNODE_GEMM_FP8 || kind == VNODE_GEMM_FP4;
}

cudaDataType vnode_gemm_scale_type(int compute, cudaDataType a) {
  switch (plain_compute(compute)) {
  case CUBLAS_COMPUTE_16F:
    return CUDA_R_16F;
  case CUBLAS_COMPUTE_32I:
    return CUDA_R_32I;
  case CUBLAS_COMPUTE_64F:
    return vnode_number_is_complex(a) ? CUDA_C_64F : CUDA_R_64F;
  default:
    return vnode_number_is_complex(a) ? CUDA_C_32F : CUDA_R_32F;
  }
}

const char *vnode_gemm_compute_name(int compute) {
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
    return "tf32";
  if (compute == CUBLAS_COMPUTE_32F_EMULATED_16BFX9 || compute == CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT)
    return "other";
  switch (plain_compute(compute)) {
  case CUBLAS_COMPUTE_16F:
    return "f16";
  case CUBLAS_COMPUTE_32F:
    return "f32";
  case CUBLAS_COMPUTE_64F:
    return "f64";
  case CUBLAS_COMPUTE_32I:
    return "i32";
  default:
    return "other";
  }
}

bool vnode_gemm_epilogue_supported(enum vnode_gemm_kind kind, const struct vnode_epilogue *epilogue) {
  bool plain = epilogue->activation == VNODE_ACTIVATION_NONE && !epilogue->bias && !epilogue->aux && !epilogue->grad;
  bool forward = epilogue->activation <= VNODE_ACTIVATION_GELU && !epilogue->aux && !epilogue->grad;
  switch (kind) {
  case VNODE_GEMM_F32:
    return true;
  case VNODE_GEMM_FP8:
  case VNODE_GEMM_FP4:
    return epilogue->grad != VNODE_BIAS_GRAD_A && epilogue->grad != VNODE_BIAS_GRAD_B;
  case VNODE_GEMM_F64:
    return forward;
  default:
    return plain;
  }
}

/* -------------------------------------------------------------------------------------------------------- scalars */

struct vnode_scalar vnode_scalar_make(const void *pointer, cudaDataType type, bool on_device) {
  struct vnode_scalar scalar = {.device = on_device ? pointer : NULL, .type = type};
  if (!on_device)
    vnode_number_load(pointer, type, 0, &scalar.re, &scalar.im);
  return scalar;
}

bool vnode_scalar_is_zero(const struct vnode_scalar *scalar) {
  return !scalar->device && scalar->re == 0 && scalar->im == 0;
}

static struct vnode_scalar scalar_now(const struct vnode_scalar *scalar) {
  return scalar->device ? vnode_scalar_make(scalar->device, scalar->type, false) : *scalar;
}

static float device_float(const float *pointer) {
  return pointer ? *pointer : 1.0f;
}

static float tensor_scale(const struct vnode_scale *scale) {
  return scale->mode == VNODE_SCALE_SCALAR_32F ? device_float(scale->data) : 1.0f;
}

/* cuBLASLt does not look at the pointer; the GPU's loads do. */
static bool scale_readable(const struct vnode_scale *scale) {
  enum { ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716 };
  if (scale->mode == VNODE_SCALE_SCALAR_32F)
    return true;
  bool misaligned = (uintptr_t)scale->data % vnode_scale_alignment(scale->mode) != 0;
  if (!scale->data)
    vnode_op_fail(ILLEGAL_ADDRESS, "a matrix product reads its block scales at address 0");
  else if (misaligned)
    vnode_op_fail(MISALIGNED_ADDRESS, "a matrix product reads its block scales at an address that is no multiple of 16");
  return scale->data && !misaligned;
}

/* ------------------------------------------------------------------------------------------------------- operands */

/* One GEMM of the batch, with the scalars known. */
struct item {
  const struct vnode_gemm *gemm;
  const void *a, *b, *c;
  void *d;
  int64_t index;
  struct vnode_scalar alpha, beta;
};

/* pre: an even index for E2M1. */
static const char *element(const void *base, cudaDataType type, int64_t index) {
  int64_t bytes = (int64_t)vnode_number_bytes(type);
  return (const char *)base + (bytes ? index * bytes : index / 2);
}

static const char *matrix_item(const struct vnode_matrix *matrix, int64_t index) {
  if (matrix->array)
    return matrix->array[index];
  return matrix->data ? element(matrix->data, matrix->type, index * matrix->stride) : NULL;
}

static int64_t at_least_1(int64_t value) {
  return value > 0 ? value : 1;
}

/* rows×cols of FP32 with leading dimension *ld: the matrix itself, or a widened copy. */
static const float *widened(enum vnode_scratch slot, const void *data, const struct vnode_matrix *matrix, int64_t rows,
                            int64_t cols, int64_t *ld) {
  *ld = matrix->ld;
  if (matrix->type == CUDA_R_32F)
    return data;
  float *copy = vnode_scratch_get(slot, (size_t)(rows * cols) * sizeof *copy);
  *ld = at_least_1(rows);
  if (matrix->ld == rows) {
    vnode_number_widen(copy, data, matrix->type, rows * cols);
    return copy;
  }
  for (int64_t j = 0; j < cols; j++)
    vnode_number_widen(copy + j * rows, element(data, matrix->type, j * matrix->ld), matrix->type, rows);
  return copy;
}

VNODE_SIMD static void scale_each(float *restrict x, const float *restrict factor, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    x[i] *= factor[i];
}

VNODE_SIMD static void scale_all(float *restrict x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    x[i] *= factor;
}

/* Multiplies the scales into a widened operand, packed: k_fast: k×outer, else outer×k. */
static void dequantise(float *x, const struct vnode_scale *scale, int64_t outer, int64_t k, bool k_fast) {
  const float *factors = vnode_scale_factors(scale, outer, k);
  int64_t run = vnode_scale_run(scale->mode, k);
  if (!k_fast) {
    for (int64_t p = 0; p < k; p++)
      scale_each(x + p * outer, factors + p / run * outer, outer);
    return;
  }
  for (int64_t row = 0; row < outer; row++)
    for (int64_t p = 0; p < k; p += run)
      scale_all(x + row * k + p, factors[p / run * outer + row], k - p < run ? k - p : run);
}

/* op(A) or op(B) as FP32, its scales multiplied in but for a scalar one. */
static const float *operand_f32(enum vnode_scratch slot, const void *data, const struct vnode_matrix *matrix, bool k_fast,
                                int64_t outer, int64_t k, const struct vnode_scale *scale, int64_t *ld) {
  const float *wide = widened(slot, data, matrix, k_fast ? k : outer, k_fast ? outer : k, ld);
  if (scale->mode != VNODE_SCALE_SCALAR_32F) /* only narrow types have one, so `wide` is a copy */
    dequantise(vnode_scratch_get(slot, 0), scale, outer, k, k_fast);
  return wide;
}

static char plain_trans(char trans) {
  return trans == 'N' ? 'N' : 'T';
}

/* ------------------------------------------------------------------------------------------ FP32: columns of result */

/* x = alpha·x + beta·c + bias; c and bias may be NULL. */
VNODE_SIMD static void combine(float *restrict x, int64_t m, float alpha, float beta, const float *restrict c,
                               const float *restrict bias) {
  if (alpha != 1)
    for (int64_t i = 0; i < m; i++)
      x[i] *= alpha;
  if (c)
    for (int64_t i = 0; i < m; i++)
      x[i] += beta * c[i];
  if (bias)
    for (int64_t i = 0; i < m; i++)
      x[i] += bias[i];
}

#define GELU_SCALE 0.79788456f /* sqrt(2/pi) */
#define GELU_CUBE 0.044715f

static float gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

static float gelu_slope(float x) {
  float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
}

static void mask_write(uint8_t *mask, int64_t bit, bool value) {
  uint8_t one = (uint8_t)(1u << (bit & 7));
  mask[bit >> 3] = (uint8_t)(value ? mask[bit >> 3] | one : mask[bit >> 3] & ~one);
}

static bool mask_read(const uint8_t *mask, int64_t bit) {
  return (mask[bit >> 3] >> (bit & 7)) & 1;
}

/* NaN passes through RELU, as in cuBLASLt and PyTorch. */
static void relu(const struct vnode_epilogue *epilogue, float *x, int64_t m, int64_t first) {
  for (int64_t i = 0; i < m; i++) {
    if (epilogue->aux)
      mask_write(epilogue->aux, first + i, x[i] > 0);
    x[i] = x[i] < 0 ? 0 : x[i];
  }
}

static void activate(const struct vnode_epilogue *epilogue, float *x, int64_t m, int64_t column, int64_t batch) {
  int64_t first = batch * epilogue->aux_stride + column * epilogue->aux_ld;
  double input = 0;
  switch (epilogue->activation) {
  case VNODE_ACTIVATION_NONE:
    break;
  case VNODE_ACTIVATION_RELU:
    relu(epilogue, x, m, first);
    break;
  case VNODE_ACTIVATION_GELU:
    if (epilogue->aux)
      vnode_number_round((char *)epilogue->aux + first * (int64_t)vnode_number_bytes(epilogue->aux_type), epilogue->aux_type,
                         x, m);
    for (int64_t i = 0; i < m; i++)
      x[i] = gelu(x[i]);
    break;
  case VNODE_ACTIVATION_DRELU:
    for (int64_t i = 0; i < m; i++)
      x[i] = mask_read(epilogue->aux, first + i) ? x[i] : 0;
    break;
  case VNODE_ACTIVATION_DGELU:
    for (int64_t i = 0; i < m; i++) {
      vnode_number_load(epilogue->aux, epilogue->aux_type, first + i, &input, NULL);
      x[i] *= gelu_slope((float)input);
    }
    break;
  }
}

/* Turns the product `x` (m×n, packed) into D, column by column. */
static void finish_f32(const struct item *item, float *x, float alpha, float beta) {
  const struct vnode_gemm *gemm = item->gemm;
  const struct vnode_epilogue *epilogue = &gemm->epilogue;
  int64_t m = gemm->m;
  float *bias = vnode_scratch_get(VNODE_SCRATCH_BIAS, (size_t)m * sizeof *bias), *c = NULL, amax = 0;
  if (epilogue->bias)
    vnode_number_widen(bias, element(epilogue->bias, epilogue->bias_type, item->index * epilogue->bias_stride),
                       epilogue->bias_type, m);
  else if (epilogue->grad == VNODE_BIAS_GRAD_D)
    memset(bias, 0, (size_t)m * sizeof *bias);
  if (beta != 0)
    c = vnode_scratch_get(VNODE_SCRATCH_COLUMN, (size_t)m * sizeof *c);
  for (int64_t j = 0; j < gemm->n; j++, x += m) {
    if (c)
      vnode_number_widen(c, element(item->c, gemm->c.type, j * gemm->c.ld), gemm->c.type, m);
    combine(x, m, alpha, beta, c, epilogue->bias ? bias : NULL);
    activate(epilogue, x, m, j, item->index);
    for (int64_t i = 0; epilogue->grad == VNODE_BIAS_GRAD_D && i < m; i++)
      bias[i] += x[i];
    for (int64_t i = 0; epilogue->amax_d && i < m; i++)
      amax = fabsf(x[i]) > amax || isnan(x[i]) ? fabsf(x[i]) : amax;
    for (int64_t i = 0; epilogue->scale_d && i < m; i++)
      x[i] *= *epilogue->scale_d;
    vnode_number_round((char *)item->d + j * gemm->d.ld * (int64_t)vnode_number_bytes(gemm->d.type), gemm->d.type, x, m);
  }
  if (epilogue->grad == VNODE_BIAS_GRAD_D)
    vnode_number_round((char *)epilogue->grad_out +
                           item->index * epilogue->bias_stride * (int64_t)vnode_number_bytes(epilogue->bias_type),
                       epilogue->bias_type, bias, m);
  if (epilogue->amax_d)
    *epilogue->amax_d = item->index == 0 || amax > *epilogue->amax_d || isnan(amax) ? amax : *epilogue->amax_d;
}

/* Sums of op(A) over k for each row, or of op(B) for each column: `outer` vectors of k elements. */
static void operand_gradient(const struct item *item, const struct vnode_matrix *matrix, const void *data, int64_t outer,
                             int64_t outer_step, int64_t inner_step) {
  const struct vnode_gemm *gemm = item->gemm;
  for (int64_t i = 0; i < outer; i++) {
    double sum = 0;
    for (int64_t p = 0; p < gemm->k; p++) {
      double value;
      vnode_number_load(data, matrix->type, i * outer_step + p * inner_step, &value, NULL);
      sum += value;
    }
    vnode_number_store(gemm->epilogue.grad_out, gemm->epilogue.bias_type, item->index * gemm->epilogue.bias_stride + i, sum,
                       0);
  }
}

static void operand_gradients(const struct item *item) {
  const struct vnode_gemm *gemm = item->gemm;
  if (gemm->epilogue.grad == VNODE_BIAS_GRAD_A)
    operand_gradient(item, &gemm->a, item->a, gemm->m, gemm->trans_a == 'N' ? 1 : gemm->a.ld,
                     gemm->trans_a == 'N' ? gemm->a.ld : 1);
  if (gemm->epilogue.grad == VNODE_BIAS_GRAD_B)
    operand_gradient(item, &gemm->b, item->b, gemm->n, gemm->trans_b == 'N' ? gemm->b.ld : 1,
                     gemm->trans_b == 'N' ? 1 : gemm->b.ld);
}

static bool has_epilogue(const struct vnode_epilogue *epilogue) {
  return epilogue->activation || epilogue->bias || epilogue->grad == VNODE_BIAS_GRAD_D || epilogue->amax_d ||
         epilogue->scale_d;
}

/* BLAS can write D itself: no epilogue, and what it would read as C is C. */
static bool in_place(const struct item *item, cudaDataType type) {
  const struct vnode_gemm *gemm = item->gemm;
  bool c_is_d = item->c == item->d && gemm->c.ld == gemm->d.ld && gemm->c.type == gemm->d.type;
  return gemm->d.type == type && !has_epilogue(&gemm->epilogue) && (item->beta.re == 0 || c_is_d);
}

static void run_f32(const struct item *item) {
  const struct vnode_gemm *gemm = item->gemm;
  const struct vnode_epilogue *epilogue = &gemm->epilogue;
  int64_t m = gemm->m, n = gemm->n, k = gemm->k, lda = 1, ldb = 1;
  float alpha = (float)item->alpha.re * tensor_scale(&epilogue->scale_a) * tensor_scale(&epilogue->scale_b);
  float beta = item->beta.re != 0 ? (float)item->beta.re * device_float(epilogue->scale_c) : 0;
  bool product = k > 0 && alpha != 0;
  bool direct = in_place(item, CUDA_R_32F);
  const float *a = NULL, *b = NULL;
  if (product) {
    if (!scale_readable(&epilogue->scale_a) || !scale_readable(&epilogue->scale_b))
      return;
    a = operand_f32(VNODE_SCRATCH_A, item->a, &gemm->a, gemm->trans_a != 'N', m, k, &epilogue->scale_a, &lda);
    b = operand_f32(VNODE_SCRATCH_B, item->b, &gemm->b, gemm->trans_b == 'N', n, k, &epilogue->scale_b, &ldb);
  }
  float *result = direct ? item->d : vnode_scratch_get(VNODE_SCRATCH_RESULT, (size_t)(m * n) * sizeof *result);
  vnode_host_sgemm(plain_trans(gemm->trans_a), plain_trans(gemm->trans_b), m, n, product ? k : 0, direct ? alpha : 1, a, lda,
                   b, ldb, direct ? beta : 0, result, direct ? gemm->d.ld : m);
  if (!direct)
    finish_f32(item, result, product ? alpha : 1, beta);
  if (epilogue->grad)
    operand_gradients(item);
}

/* ----------------------------------------------------------------------------------------------------------- FP64 */

static double activated(enum vnode_activation activation, double x) {
  if (activation == VNODE_ACTIVATION_RELU)
    return x < 0 ? 0 : x;
  if (activation == VNODE_ACTIVATION_GELU)
    return 0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
  return x;
}

static void finish_f64(const struct item *item, const double *x, double alpha) {
  const struct vnode_gemm *gemm = item->gemm;
  const struct vnode_epilogue *epilogue = &gemm->epilogue;
  const double *c = item->c, *bias = epilogue->bias;
  double beta = item->beta.re, *d = item->d;
  if (bias)
    bias += item->index * epilogue->bias_stride;
  for (int64_t j = 0; j < gemm->n; j++)
    for (int64_t i = 0; i < gemm->m; i++) {
      double value = alpha * x[j * gemm->m + i];
      if (beta != 0)
        value += beta * c[j * gemm->c.ld + i];
      if (bias)
        value += bias[i];
      d[j * gemm->d.ld + i] = activated(epilogue->activation, value);
    }
}

static void run_f64(const struct item *item) {
  const struct vnode_gemm *gemm = item->gemm;
  int64_t m = gemm->m, n = gemm->n;
  double alpha = item->alpha.re;
  bool product = gemm->k > 0 && alpha != 0, direct = in_place(item, CUDA_R_64F);
  double *result = direct ? item->d : vnode_scratch_get(VNODE_SCRATCH_RESULT, (size_t)(m * n) * sizeof *result);
  vnode_host_dgemm(plain_trans(gemm->trans_a), plain_trans(gemm->trans_b), m, n, product ? gemm->k : 0, direct ? alpha : 1,
                   item->a, gemm->a.ld, item->b, gemm->b.ld, direct ? item->beta.re : 0, result, direct ? gemm->d.ld : m);
  if (!direct)
    finish_f64(item, result, product ? alpha : 1);
}

/* ----------------------------------------------------------------------------------------------- complex and INT32 */

struct complex {
  double re, im;
};

static struct complex product_of(struct complex x, struct complex y) {
  return (struct complex){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

static struct complex complex_element(const void *data, cudaDataType type, int64_t index, bool conjugate) {
  struct complex value;
  vnode_number_load(data, type, index, &value.re, &value.im);
  value.im = conjugate ? -value.im : value.im;
  return value;
}

/* `outer` vectors of k elements each, contiguous. */
static struct complex *complex_packed(enum vnode_scratch slot, const void *data, const struct vnode_matrix *matrix,
                                      char trans, int64_t outer, int64_t outer_step, int64_t k, int64_t inner_step) {
  struct complex *packed = vnode_scratch_get(slot, (size_t)(outer * k) * sizeof *packed);
  for (int64_t i = 0; i < outer; i++)
    for (int64_t p = 0; p < k; p++)
      packed[i * k + p] = complex_element(data, matrix->type, i * outer_step + p * inner_step, trans == 'C');
  return packed;
}

static void run_complex(const struct item *item) {
  const struct vnode_gemm *gemm = item->gemm;
  const struct complex alpha = {item->alpha.re, item->alpha.im}, beta = {item->beta.re, item->beta.im};
  bool a_plain = gemm->trans_a == 'N', b_plain = gemm->trans_b == 'N', add = beta.re != 0 || beta.im != 0;
  int64_t k = alpha.re != 0 || alpha.im != 0 ? gemm->k : 0;
  const struct complex *a = complex_packed(VNODE_SCRATCH_A, item->a, &gemm->a, gemm->trans_a, gemm->m,
                                           a_plain ? 1 : gemm->a.ld, k, a_plain ? gemm->a.ld : 1);
  const struct complex *b = complex_packed(VNODE_SCRATCH_B, item->b, &gemm->b, gemm->trans_b, gemm->n,
                                           b_plain ? gemm->b.ld : 1, k, b_plain ? 1 : gemm->b.ld);
  for (int64_t j = 0; j < gemm->n; j++)
    for (int64_t i = 0; i < gemm->m; i++) {
      struct complex sum = {0, 0};
      for (int64_t p = 0; p < k; p++) {
        struct complex term = product_of(a[i * k + p], b[j * k + p]);
        sum.re += term.re;
        sum.im += term.im;
      }
      sum = k > 0 ? product_of(alpha, sum) : sum;
      if (add) {
        struct complex old = product_of(beta, complex_element(item->c, gemm->c.type, j * gemm->c.ld + i, false));
        sum.re += old.re;
        sum.im += old.im;
      }
      vnode_number_store(item->d, gemm->d.type, j * gemm->d.ld + i, sum.re, sum.im);
    }
}

static int8_t *i8_packed(enum vnode_scratch slot, const int8_t *data, int64_t outer, int64_t outer_step, int64_t k,
                         int64_t inner_step) {
  int8_t *packed = vnode_scratch_get(slot, (size_t)(outer * k));
  for (int64_t i = 0; i < outer; i++)
    for (int64_t p = 0; p < k; p++)
      packed[i * k + p] = data[i * outer_step + p * inner_step];
  return packed;
}

VNODE_SIMD static uint32_t i8_dot(const int8_t *restrict x, const int8_t *restrict y, int64_t count) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < count; i++)
    sum += (uint32_t)(x[i] * y[i]);
  return sum;
}

static void run_i32(const struct item *item) {
  const struct vnode_gemm *gemm = item->gemm;
  uint32_t alpha = (uint32_t)(int32_t)item->alpha.re, beta = (uint32_t)(int32_t)item->beta.re;
  bool a_plain = gemm->trans_a == 'N', b_plain = gemm->trans_b == 'N';
  int64_t k = alpha != 0 ? gemm->k : 0;
  const int8_t *a = i8_packed(VNODE_SCRATCH_A, item->a, gemm->m, a_plain ? 1 : gemm->a.ld, k, a_plain ? gemm->a.ld : 1);
  const int8_t *b = i8_packed(VNODE_SCRATCH_B, item->b, gemm->n, b_plain ? gemm->b.ld : 1, k, b_plain ? 1 : gemm->b.ld);
  const int32_t *c = item->c;
  int32_t *d = item->d;
  for (int64_t j = 0; j < gemm->n; j++)
    for (int64_t i = 0; i < gemm->m; i++) {
      uint32_t value = alpha * i8_dot(a + i * k, b + j * k, k);
      if (beta != 0)
        value += beta * (uint32_t)c[j * gemm->c.ld + i];
      d[j * gemm->d.ld + i] = (int32_t)value;
    }
}

/* ------------------------------------------------------------------------------------------------------------- run */

void vnode_gemm_run(void *argument) {
  const struct vnode_gemm *gemm = argument;
  struct item item = {.gemm = gemm, .alpha = scalar_now(&gemm->alpha), .beta = scalar_now(&gemm->beta)};
  if (gemm->m == 0 || gemm->n == 0 || vnode_config()->gemms_skipped)
    return;
  for (; item.index < gemm->batch; item.index++) {
    item.a = matrix_item(&gemm->a, item.index);
    item.b = matrix_item(&gemm->b, item.index);
    item.c = matrix_item(&gemm->c, item.index);
    const void *d = matrix_item(&gemm->d, item.index);
    memcpy(&item.d, &d, sizeof d); /* the one matrix that is written */
    if (vnode_number_is_complex(gemm->d.type))
      run_complex(&item);
    else if (gemm->d.type == CUDA_R_64F)
      run_f64(&item);
    else if (gemm->d.type == CUDA_R_32I)
      run_i32(&item);
    else
      run_f32(&item);
  }
}
