/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/lt_rules.h"

#include <string.h>

#include "tools/vnode/standins/blas_common.h"
#include "tools/vnode/standins/lt_narrow.h"
#include "tools/vnode/standins/number.h"

/* --------------------------------------------------------------------------------------------------------- epilogue */

struct epilogue_row {
  uint32_t value; /* cublasLtEpilogue_t */
  enum vnode_activation activation;
  bool bias, aux;
  enum vnode_bias_grad grad;
  const char *name;
};

static const struct epilogue_row epilogue_rows[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, VNODE_ACTIVATION_NONE, false, false, VNODE_BIAS_GRAD_NONE, "none"},
    {CUBLASLT_EPILOGUE_BIAS, VNODE_ACTIVATION_NONE, true, false, VNODE_BIAS_GRAD_NONE, "bias"},
    {CUBLASLT_EPILOGUE_RELU, VNODE_ACTIVATION_RELU, false, false, VNODE_BIAS_GRAD_NONE, "relu"},
    {CUBLASLT_EPILOGUE_RELU_BIAS, VNODE_ACTIVATION_RELU, true, false, VNODE_BIAS_GRAD_NONE, "relu_bias"},
    {CUBLASLT_EPILOGUE_RELU_AUX, VNODE_ACTIVATION_RELU, false, true, VNODE_BIAS_GRAD_NONE, "other"},
    {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, VNODE_ACTIVATION_RELU, true, true, VNODE_BIAS_GRAD_NONE, "other"},
    {CUBLASLT_EPILOGUE_DRELU, VNODE_ACTIVATION_DRELU, false, true, VNODE_BIAS_GRAD_NONE, "other"},
    {CUBLASLT_EPILOGUE_DRELU_BGRAD, VNODE_ACTIVATION_DRELU, false, true, VNODE_BIAS_GRAD_D, "other"},
    {CUBLASLT_EPILOGUE_GELU, VNODE_ACTIVATION_GELU, false, false, VNODE_BIAS_GRAD_NONE, "gelu"},
    {CUBLASLT_EPILOGUE_GELU_BIAS, VNODE_ACTIVATION_GELU, true, false, VNODE_BIAS_GRAD_NONE, "gelu_bias"},
    {CUBLASLT_EPILOGUE_GELU_AUX, VNODE_ACTIVATION_GELU, false, true, VNODE_BIAS_GRAD_NONE, "other"},
    {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, VNODE_ACTIVATION_GELU, true, true, VNODE_BIAS_GRAD_NONE, "other"},
    {CUBLASLT_EPILOGUE_DGELU, VNODE_ACTIVATION_DGELU, false, true, VNODE_BIAS_GRAD_NONE, "other"},
    {CUBLASLT_EPILOGUE_DGELU_BGRAD, VNODE_ACTIVATION_DGELU, false, true, VNODE_BIAS_GRAD_D, "other"},
    {CUBLASLT_EPILOGUE_BGRADA, VNODE_ACTIVATION_NONE, false, false, VNODE_BIAS_GRAD_A, "other"},
    {CUBLASLT_EPILOGUE_BGRADB, VNODE_ACTIVATION_NONE, false, false, VNODE_BIAS_GRAD_B, "other"},
};

static const struct epilogue_row *epilogue_row_of(uint32_t value) {
  for (size_t i = 0; i < sizeof epilogue_rows / sizeof epilogue_rows[0]; i++)
    if (epilogue_rows[i].value == value)
      return &epilogue_rows[i];
  return NULL;
}

static cudaDataType default_bias_type(const struct lt_problem *problem) {
  return vnode_gemm_is_narrow(problem->kind) ? lt_narrow_bias_type(problem) : (cudaDataType)problem->d.type;
}

static void epilogue_make(struct lt_problem *problem, const struct epilogue_row *row) {
  const struct lt_matmul *op = &problem->op;
  struct vnode_epilogue epilogue = {
      .activation = row->activation,
      .bias = row->bias ? op->bias : NULL,
      .bias_type = op->bias_type < 0 ? default_bias_type(problem) : (cudaDataType)op->bias_type,
      .bias_stride = op->bias_stride,
      .aux = row->aux ? op->aux : NULL,
      .aux_type = (cudaDataType)(op->aux_type < 0 ? problem->d.type : op->aux_type),
      .aux_ld = op->aux_ld,
      .aux_stride = op->aux_stride,
      .grad = row->grad,
      .scale_a = {op->a_scale, (enum vnode_scale_mode)op->a_scale_mode},
      .scale_b = {op->b_scale, (enum vnode_scale_mode)op->b_scale_mode},
      .scale_c = op->c_scale,
      .scale_d = op->d_scale,
      .amax_d = op->amax_d,
  };
  if (row->grad)
    memcpy(&epilogue.grad_out, &op->bias, sizeof op->bias); /* an output then; the attribute serves both */
  problem->epilogue = epilogue;
  problem->epilogue_name = row->name;
}

/* What FP32 and FP64 products take as epilogue; bias type and auxiliary layout as the header of cuBLASLt says. */
static bool epilogue_supported(const struct lt_problem *problem, const struct epilogue_row *row) {
  const struct vnode_epilogue *epilogue = &problem->epilogue;
  bool mask = row->activation == VNODE_ACTIVATION_RELU || row->activation == VNODE_ACTIVATION_DRELU;
  struct vnode_epilogue shape = *epilogue; /* pointers may still be missing when the heuristic is asked */
  shape.bias = row->bias ? problem : NULL;
  if (row->aux)
    shape.aux = (void *)&shape;
  if (!vnode_gemm_epilogue_supported(problem->kind, &shape))
    return false;
  if ((row->bias || row->grad) && epilogue->bias_type != default_bias_type(problem))
    return false;
  if (row->aux && !mask && (vnode_number_bytes(epilogue->aux_type) == 0 || vnode_number_is_complex(epilogue->aux_type)))
    return false;
  return !row->aux || (epilogue->aux_ld >= problem->m && epilogue->aux_ld % (mask ? 128 : 8) == 0);
}

/* ------------------------------------------------------------------------------------------------------------ shapes */

static bool operation_valid(int32_t operation) {
  return vnode_blas_trans(operation) != 0;
}

static bool layout_valid(const struct lt_layout *layout) {
  const uint64_t limit = (uint64_t)1 << 40; /* elements of one dimension: keeps every product below in 64 bits */
  return layout->rows > 0 && layout->cols > 0 && layout->rows < limit && layout->cols < limit && layout->batch > 0 &&
         (layout->order != CUBLASLT_ORDER_COL || layout->ld >= (int64_t)layout->rows);
}

static bool shapes_agree(struct lt_problem *problem) {
  bool a_plain = problem->op.trans_a == CUBLAS_OP_N, b_plain = problem->op.trans_b == CUBLAS_OP_N;
  problem->m = (int64_t)problem->d.rows;
  problem->n = (int64_t)problem->d.cols;
  problem->k = (int64_t)(a_plain ? problem->a.cols : problem->a.rows);
  return (int64_t)(a_plain ? problem->a.rows : problem->a.cols) == problem->m &&
         (int64_t)(b_plain ? problem->b.rows : problem->b.cols) == problem->k &&
         (int64_t)(b_plain ? problem->b.cols : problem->b.rows) == problem->n && problem->c.rows == problem->d.rows &&
         problem->c.cols == problem->d.cols && problem->a.batch == problem->d.batch &&
         problem->b.batch == problem->d.batch && problem->c.batch == problem->d.batch;
}

static bool layout_plain(const struct lt_layout *layout) {
  return layout->order == CUBLASLT_ORDER_COL && layout->batch_mode == CUBLASLT_BATCH_MODE_STRIDED &&
         layout->plane_offset == 0;
}

static bool modes_plain(const struct lt_matmul *op) {
  return op->pointer_mode >= CUBLASLT_POINTER_MODE_HOST && op->pointer_mode <= CUBLASLT_POINTER_MODE_DEVICE &&
         op->trans_c == CUBLAS_OP_N && op->fill_mode == CUBLAS_FILL_MODE_FULL && !op->alpha_stride && !op->beta_stride;
}

static bool has_scale_modes(const struct lt_matmul *op) {
  return op->a_scale_mode || op->b_scale_mode || op->c_scale_mode || op->d_scale_mode || op->aux_scale_mode ||
         op->d_out_scale_mode || op->d_out_scale;
}

/* ------------------------------------------------------------------------------------------------------------- kinds */

/* Documented for INT8 in plain column order. */
static bool i32_supported(const struct lt_problem *problem) {
  return problem->m % 4 == 0 && problem->k % 4 == 0 && problem->a.ld % 4 == 0 && problem->b.ld % 4 == 0 &&
         problem->d.ld % 4 == 0;
}

cublasStatus_t lt_problem_make(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, struct lt_problem *out) {
  if (!op || !a || !b || !c || !d)
    return CUBLAS_STATUS_INVALID_VALUE;
  struct lt_problem problem = {0};
  memcpy(&problem.op, op, sizeof problem.op);
  memcpy(&problem.a, a, sizeof problem.a);
  memcpy(&problem.b, b, sizeof problem.b);
  memcpy(&problem.c, c, sizeof problem.c);
  memcpy(&problem.d, d, sizeof problem.d);
  if (!operation_valid(problem.op.trans_a) || !operation_valid(problem.op.trans_b) || !layout_valid(&problem.a) ||
      !layout_valid(&problem.b) || !layout_valid(&problem.c) || !layout_valid(&problem.d) || !shapes_agree(&problem))
    return CUBLAS_STATUS_INVALID_VALUE;
  const struct epilogue_row *row = epilogue_row_of(problem.op.epilogue);
  if (!row)
    return CUBLAS_STATUS_INVALID_VALUE;
  problem.kind = vnode_gemm_kind(problem.op.compute, (cudaDataType)problem.a.type, (cudaDataType)problem.b.type,
                                 (cudaDataType)problem.c.type, (cudaDataType)problem.d.type);
  bool scale_type_known =
      (cudaDataType)problem.op.scale_type == vnode_gemm_scale_type(problem.op.compute, (cudaDataType)problem.a.type);
  if (problem.kind == VNODE_GEMM_NONE || !scale_type_known || !modes_plain(&problem.op) || !layout_plain(&problem.a) ||
      !layout_plain(&problem.b) || !layout_plain(&problem.c) || !layout_plain(&problem.d))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (vnode_gemm_is_narrow(problem.kind) ? !lt_narrow_supported(&problem) : has_scale_modes(&problem.op))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  epilogue_make(&problem, row);
  if (!epilogue_supported(&problem, row) || (problem.kind == VNODE_GEMM_I32 && !i32_supported(&problem)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *out = problem;
  return CUBLAS_STATUS_SUCCESS;
}

uint32_t lt_problem_alignment(const struct lt_problem *problem) {
  return vnode_gemm_is_narrow(problem->kind) ? lt_narrow_alignment() : 1;
}

uint64_t lt_problem_workspace(const struct lt_problem *problem) {
  return vnode_gemm_is_narrow(problem->kind) ? lt_narrow_workspace() : 0;
}

bool lt_problem_pointers_valid(const struct lt_problem *problem) {
  const struct lt_matmul *op = &problem->op;
  const struct epilogue_row *row = epilogue_row_of(op->epilogue);
  bool narrow = vnode_gemm_is_narrow(problem->kind), narrow_d = vnode_number_is_fp8((cudaDataType)problem->d.type);
  if (!narrow && (op->a_scale || op->b_scale || op->c_scale || op->d_scale || op->amax_d))
    return false;
  if (op->c_scale && op->a_scale_mode != VNODE_SCALE_SCALAR_32F)
    return false;
  if (!narrow_d && (op->d_scale || op->amax_d))
    return false;
  if (op->aux_scale || op->aux_amax) /* auxiliary output in FP8 with a scale of its own is not carried out */
    return false;
  return (!row->bias && !row->grad) || op->bias ? !row->aux || op->aux : false;
}
