/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/lt_narrow.h"

#include "tools/vnode/core/core.h"
#include "tools/vnode/standins/number.h"

enum {
  ANY_LATER = 9999,
  ALIGNMENT_BYTES = 16, /* SEEN; DOC for 10.0 and above */
  WORKSPACE_BYTES = 64 << 10,
};

static int capability(void) {
  return vnode_gpu()->cc_major * 10 + vnode_gpu()->cc_minor;
}

/* ------------------------------------------------------------------------------------------------------------ scales */

static const struct scale_rule {
  enum vnode_scale_mode mode;
  enum vnode_gemm_kind kind;
  int from_version, from_capability, to_capability;
} scale_rules[] = {
    {VNODE_SCALE_SCALAR_32F, VNODE_GEMM_FP8, 110800, 89, ANY_LATER},   /* SEEN; DOC for 10.0 and above */
    {VNODE_SCALE_VEC32_UE8M0, VNODE_GEMM_FP8, 120800, 100, ANY_LATER}, /* DOC */
    {VNODE_SCALE_VEC16_UE4M3, VNODE_GEMM_FP4, 120800, 100, ANY_LATER}, /* DOC */
    {VNODE_SCALE_OUTER_VEC_32F, VNODE_GEMM_FP8, 120900, 90, 90},       /* DOC, as are the next two */
    {VNODE_SCALE_VEC128_32F, VNODE_GEMM_FP8, 120900, 90, 90},
    {VNODE_SCALE_BLK128x128_32F, VNODE_GEMM_FP8, 120900, 90, 90},
};

static bool mode_supported(int32_t mode, enum vnode_gemm_kind kind) {
  for (size_t i = 0; i < sizeof scale_rules / sizeof *scale_rules; i++) {
    const struct scale_rule *rule = &scale_rules[i];
    if ((int32_t)rule->mode == mode && rule->kind == kind)
      return CUBLAS_VERSION >= rule->from_version && capability() >= rule->from_capability &&
             capability() <= rule->to_capability;
  }
  return false;
}

bool lt_narrow_available(enum vnode_gemm_kind kind) {
  bool available = false;
  for (int32_t mode = 0; mode < VNODE_SCALE_MODES; mode++)
    available |= mode_supported(mode, kind);
  return available;
}

static bool is_128(int32_t mode) {
  return mode == VNODE_SCALE_VEC128_32F || mode == VNODE_SCALE_BLK128x128_32F;
}

/* DOC: A and B alike, but that one of two operands with scales for 128 elements may have blocks, not both. */
static bool modes_agree(int32_t a, int32_t b) {
  if (is_128(a) && is_128(b))
    return a == VNODE_SCALE_VEC128_32F || b == VNODE_SCALE_VEC128_32F;
  return a == b;
}

static bool refuse(const char *what) {
  vnode_say_once(what, "cublasLtMatmul: %s: not carried out here; answered with CUBLAS_STATUS_NOT_SUPPORTED", what);
  return false;
}

static bool scales_supported(const struct lt_problem *problem) {
  const struct lt_matmul *op = &problem->op;
  if (!mode_supported(op->a_scale_mode, problem->kind) || !mode_supported(op->b_scale_mode, problem->kind) ||
      !modes_agree(op->a_scale_mode, op->b_scale_mode))
    return false;
  bool blocks = op->a_scale_mode == VNODE_SCALE_VEC32_UE8M0 || op->a_scale_mode == VNODE_SCALE_VEC16_UE4M3;
  bool scalar = op->a_scale_mode == VNODE_SCALE_SCALAR_32F;
  if (op->d_out_scale || op->d_out_scale_mode || (blocks && vnode_number_is_fp8((cudaDataType)problem->d.type)))
    return blocks && refuse("block scales of D"); /* OURS with block scales, DOC without */
  if (op->c_scale_mode || op->d_scale_mode || op->aux_scale_mode)
    return false;
  if (!scalar && problem->d.batch > 1)
    return refuse("scales that are not scalars in a batch"); /* OURS: how they lie in memory is documented nowhere */
  return scalar || !vnode_number_is_fp8((cudaDataType)problem->d.type); /* DOC */
}

/* ------------------------------------------------------------------------------------------------- layouts and sizes */

static bool layout_supported(const struct lt_problem *problem) {
  bool a_plain = problem->op.trans_a == CUBLAS_OP_N, b_plain = problem->op.trans_b == CUBLAS_OP_N;
  if (!a_plain && b_plain)
    return true; /* SEEN; DOC for 10.0 and above */
  if (problem->kind == VNODE_GEMM_FP4)
    return false; /* DOC */
  int major = vnode_gpu()->cc_major;
  if (major == 10 || major == 11)
    return true; /* DOC. TN only again on 12.0 */
  /* SEEN on 8.9 and 9.0: NN passes for one row. */
  return major <= 9 && a_plain && b_plain && problem->m == 1 && problem->op.a_scale_mode == VNODE_SCALE_SCALAR_32F;
}

static bool multiple(int64_t value, int64_t of) {
  return value % of == 0;
}

/* Rows of 16 bytes. SEEN for TN: k, lda, ldb; m and ldd by the size of D's elements, one row or column passes; n is free.
   DOC for the rest ("pointers and dimensions of 16 bytes", which are A's, B's and D's in the direction of memory). */
static bool sizes_supported(const struct lt_problem *problem) {
  bool fp4 = problem->kind == VNODE_GEMM_FP4;
  int64_t elements = fp4 ? 2 * ALIGNMENT_BYTES : ALIGNMENT_BYTES;
  int64_t d_bytes = (int64_t)vnode_number_bytes((cudaDataType)problem->d.type);
  if (!multiple(problem->k, elements) || !multiple(problem->a.ld, elements) || !multiple(problem->b.ld, elements))
    return false;
  if (problem->m != 1 && !multiple(problem->m * d_bytes, ALIGNMENT_BYTES))
    return false;
  if (problem->n != 1 && !multiple(problem->d.ld * d_bytes, ALIGNMENT_BYTES))
    return false;
  if (is_128(problem->op.a_scale_mode))
    return multiple(problem->m, 4) && multiple(problem->n, 4);  /* DOC */
  bool one_row = problem->m == 1 && vnode_gpu()->cc_major <= 9; /* the one case that is not TN there */
  bool m_fits = problem->op.trans_a != CUBLAS_OP_N || one_row || multiple(problem->m, elements);
  bool n_fits = problem->op.trans_b == CUBLAS_OP_N || multiple(problem->n, elements);
  return m_fits && n_fits; /* DOC */
}

bool lt_narrow_supported(const struct lt_problem *problem) {
  return scales_supported(problem) && layout_supported(problem) && sizes_supported(problem);
}

uint32_t lt_narrow_alignment(void) {
  return ALIGNMENT_BYTES;
}

/* SEEN: suffices for all shapes that were tried on 9.0, where without any most large ones are refused; 8.9 needs none.
   DOC for 10.0 and above: taken to be as 9.0. */
uint64_t lt_narrow_workspace(void) {
  return vnode_gpu()->cc_major >= 9 ? WORKSPACE_BYTES : 0;
}

cudaDataType lt_narrow_bias_type(const struct lt_problem *problem) {
  cudaDataType d = (cudaDataType)problem->d.type;
  return vnode_number_is_fp8(d) ? (cudaDataType)problem->c.type : d == CUDA_R_32F ? CUDA_R_16BF : d;
}
