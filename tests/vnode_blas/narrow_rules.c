/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vnode_blas/narrow_rules.h"

#define E4 CUDA_R_8F_E4M3
#define E5 CUDA_R_8F_E5M2
#define F4 CUDA_R_4F_E2M1
#define BF CUDA_R_16BF
#define HF CUDA_R_16F
#define FP CUDA_R_32F

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
  return x->capability >= 89 || is_fp4(x);
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
  return x->capability >= 100 || (x->mode_a != VEC16 && x->mode_a != VEC32);
}

static bool vector_modes_on_90(const struct combination *x) {
  return x->mode_a < OUTER || x->mode_a > BLK128 || x->capability == 90;
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
  if (x->capability == 100 || x->capability == 103)
    return !is_fp4(x);
  bool one_row = x->m == 1 && x->trans_a == 'N' && x->trans_b == 'N';
  return one_row && x->capability <= 90 && x->mode_a == SCALAR && !is_fp4(x);
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
  bool seen = x->capability <= 90 && x->m == 1;
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

const struct narrow_rule narrow_rules[NARROW_RULES] = {
#define RULE(name)                                                                                                          \
  { #name, name }
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
