/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/blas_common.h"

#include "tools/vnode/core/model.h"
#include "tools/vnode/standins/number.h"

struct status_text {
  cublasStatus_t status;
  const char *name, *text;
};

#define STATUS(status, text)                                                                                                \
  { CUBLAS_STATUS_##status, "CUBLAS_STATUS_" #status, text }

static const struct status_text status_texts[] = {
    STATUS(SUCCESS, "success"),
    STATUS(NOT_INITIALIZED, "the library was not initialized"),
    STATUS(ALLOC_FAILED, "the resource allocation failed"),
    STATUS(INVALID_VALUE, "an unsupported value or parameter was passed to the function"),
    STATUS(ARCH_MISMATCH, "the function requires an architectural feature absent from the device"),
    STATUS(MAPPING_ERROR, "an access to GPU memory space failed"),
    STATUS(EXECUTION_FAILED, "the function failed to launch on the GPU"),
    STATUS(INTERNAL_ERROR, "an internal operation failed"),
    STATUS(NOT_SUPPORTED, "the requested functionality is not supported"),
    STATUS(LICENSE_ERROR, "the license check failed"),
};

static const struct status_text *status_text_of(cublasStatus_t status) {
  static const struct status_text unknown = {CUBLAS_STATUS_SUCCESS, "unrecognized status", "unrecognized status"};
  for (size_t i = 0; i < sizeof status_texts / sizeof status_texts[0]; i++)
    if (status_texts[i].status == status)
      return &status_texts[i];
  return &unknown;
}

const char *vnode_blas_status_name(cublasStatus_t status) {
  return status_text_of(status)->name;
}

const char *vnode_blas_status_string(cublasStatus_t status) {
  return status_text_of(status)->text;
}

cublasStatus_t vnode_blas_property(libraryPropertyType type, int *value) {
  if (!value || (int)type < 0 || type > PATCH_LEVEL)
    return CUBLAS_STATUS_INVALID_VALUE;
  *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
  return CUBLAS_STATUS_SUCCESS;
}

size_t vnode_blas_cudart_version(void) {
  return CUBLAS_VER_MAJOR * 1000; /* the real libraries name the first minor release of their major version */
}

cublasStatus_t vnode_blas_status(enum vnode_status status) {
  switch (status) {
  case VNODE_OK:
    return CUBLAS_STATUS_SUCCESS;
  case VNODE_NO_MEMORY:
    return CUBLAS_STATUS_ALLOC_FAILED;
  case VNODE_NOT_INITIALIZED:
    return CUBLAS_STATUS_NOT_INITIALIZED;
  default:
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

char vnode_blas_trans(int operation) {
  return operation == CUBLAS_OP_N ? 'N' : operation == CUBLAS_OP_T ? 'T' : operation == CUBLAS_OP_C ? 'C' : 0;
}

/* ------------------------------------------------------------------------------------------------ memory of a GEMM */

static void add(struct vnode_blas_accesses *accesses, const void *at, size_t row_bytes, size_t rows, size_t pitch,
                bool write) {
  if (at && row_bytes && rows && accesses->count < sizeof accesses->item / sizeof *accesses->item)
    accesses->item[accesses->count++] = (struct vnode_access){at, row_bytes, rows, pitch, write};
}

void vnode_blas_access_bytes(struct vnode_blas_accesses *accesses, const void *base, size_t bytes, bool write) {
  add(accesses, base, bytes, 1, bytes, write);
}

void vnode_blas_access_scalar(struct vnode_blas_accesses *accesses, const struct vnode_scalar *scalar) {
  vnode_blas_access_bytes(accesses, scalar->device, vnode_number_bytes(scalar->type), false);
}

void vnode_blas_access_matrix(struct vnode_blas_accesses *accesses, const void *base, size_t element_bytes, int64_t rows,
                              int64_t cols, int64_t ld, int64_t stride, int64_t batch, bool write) {
  static const int64_t matrices_max = 24; /* of an operand that is not one regular pattern */
  if (rows <= 0 || cols <= 0 || batch <= 0)
    return;
  size_t column = (size_t)rows * element_bytes, pitch = (size_t)ld * element_bytes;
  if (batch == 1 || stride == 0)
    add(accesses, base, column, (size_t)cols, pitch, write);
  else if (stride == ld * cols) /* one behind the other */
    add(accesses, base, column, (size_t)(cols * batch), pitch, write);
  else if (stride == rows && rows * batch <= ld) /* side by side, as heads in attention */
    add(accesses, base, column * (size_t)batch, (size_t)cols, pitch, write);
  else
    for (int64_t i = 0; i < batch && batch <= matrices_max; i++)
      add(accesses, (const char *)base + i * stride * (int64_t)element_bytes, column, (size_t)cols, pitch, write);
}

static void access_operand(struct vnode_blas_accesses *accesses, const struct vnode_matrix *matrix, int64_t rows,
                           int64_t cols, int64_t batch, bool write) {
  if (matrix->type == CUDA_R_4F_E2M1) /* two elements a byte; all sizes are even */
    vnode_blas_access_matrix(accesses, matrix->data, 1, rows / 2, cols, matrix->ld / 2, matrix->stride / 2, batch, write);
  else if (matrix->array) /* where the matrices are is known only when the work runs */
    vnode_blas_access_bytes(accesses, matrix->array, (size_t)batch * sizeof *matrix->array, false);
  else
    vnode_blas_access_matrix(accesses, matrix->data, vnode_number_bytes(matrix->type), rows, cols, matrix->ld,
                             matrix->stride, batch, write);
}

static void access_scale(struct vnode_blas_accesses *accesses, const struct vnode_scale *scale, int64_t outer, int64_t k) {
  size_t bytes = scale->mode == VNODE_SCALE_SCALAR_32F ? sizeof(float) : vnode_scale_bytes(scale->mode, outer, k);
  vnode_blas_access_bytes(accesses, scale->data, bytes, false);
}

static void access_aux(struct vnode_blas_accesses *accesses, const struct vnode_gemm *gemm) {
  const struct vnode_epilogue *epilogue = &gemm->epilogue;
  enum { MASK_BITS = 8 };
  bool mask = epilogue->activation == VNODE_ACTIVATION_RELU || epilogue->activation == VNODE_ACTIVATION_DRELU;
  bool write = epilogue->activation == VNODE_ACTIVATION_RELU || epilogue->activation == VNODE_ACTIVATION_GELU;
  if (mask)
    vnode_blas_access_matrix(accesses, epilogue->aux, 1, (gemm->m + MASK_BITS - 1) / MASK_BITS, gemm->n,
                             epilogue->aux_ld / MASK_BITS, epilogue->aux_stride / MASK_BITS, gemm->batch, write);
  else
    vnode_blas_access_matrix(accesses, epilogue->aux, vnode_number_bytes(epilogue->aux_type), gemm->m, gemm->n,
                             epilogue->aux_ld, epilogue->aux_stride, gemm->batch, write);
}

static void access_epilogue(struct vnode_blas_accesses *accesses, const struct vnode_gemm *gemm) {
  const struct vnode_epilogue *epilogue = &gemm->epilogue;
  size_t bias_bytes = epilogue->bias || epilogue->grad_out ? vnode_number_bytes(epilogue->bias_type) : 0;
  const float *const scales[] = {epilogue->scale_c, epilogue->scale_d};
  vnode_blas_access_matrix(accesses, epilogue->bias, bias_bytes, gemm->m, 1, gemm->m, epilogue->bias_stride, gemm->batch,
                           false);
  if (epilogue->aux)
    access_aux(accesses, gemm);
  if (epilogue->grad)
    vnode_blas_access_matrix(accesses, epilogue->grad_out, bias_bytes,
                             epilogue->grad == VNODE_BIAS_GRAD_B ? gemm->n : gemm->m, 1, gemm->m, epilogue->bias_stride,
                             gemm->batch, true);
  for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
    vnode_blas_access_bytes(accesses, scales[i], sizeof *scales[i], false);
  access_scale(accesses, &epilogue->scale_a, gemm->m, gemm->k);
  access_scale(accesses, &epilogue->scale_b, gemm->n, gemm->k);
  vnode_blas_access_bytes(accesses, epilogue->amax_d, sizeof *epilogue->amax_d, true);
}

static void access_gemm(struct vnode_blas_accesses *accesses, const struct vnode_gemm *gemm) {
  bool multiplies = gemm->k > 0 && !vnode_scalar_is_zero(&gemm->alpha);
  bool plain_a = gemm->trans_a == 'N', plain_b = gemm->trans_b == 'N';
  if (multiplies) {
    access_operand(accesses, &gemm->a, plain_a ? gemm->m : gemm->k, plain_a ? gemm->k : gemm->m, gemm->batch, false);
    access_operand(accesses, &gemm->b, plain_b ? gemm->k : gemm->n, plain_b ? gemm->n : gemm->k, gemm->batch, false);
  }
  if (!vnode_scalar_is_zero(&gemm->beta))
    access_operand(accesses, &gemm->c, gemm->m, gemm->n, gemm->batch, false);
  access_operand(accesses, &gemm->d, gemm->m, gemm->n, gemm->batch, true);
  vnode_blas_access_scalar(accesses, &gemm->alpha);
  vnode_blas_access_scalar(accesses, &gemm->beta);
  access_epilogue(accesses, gemm);
}

/* ------------------------------------------------------------------------------------------------------ submission */

/* What the tensor cores multiply, by the names of core/model.h. */
static const char *format_of(const struct vnode_gemm *gemm, bool tf32) {
  switch (gemm->a.type) {
  case CUDA_R_16F:
    return "f16";
  case CUDA_R_16BF:
    return "bf16";
  case CUDA_R_8F_E4M3:
  case CUDA_R_8F_E5M2:
    return gemm->epilogue.scale_a.mode == VNODE_SCALE_VEC32_UE8M0 ? "mxfp8" : "fp8";
  case CUDA_R_4F_E2M1:
    return "nvfp4";
  case CUDA_R_8I:
    return "i8";
  case CUDA_R_64F:
  case CUDA_C_64F:
    return "f64";
  default:
    return tf32 ? "tf32" : "f32";
  }
}

static int64_t duration_of(const struct vnode_gemm *gemm, bool tf32) {
  static const int64_t complex_products = 4;
  int64_t k = vnode_number_is_complex(gemm->a.type) ? complex_products * gemm->k : gemm->k;
  return vnode_model_gemm_ns(gemm->m, gemm->n, k, gemm->batch, format_of(gemm, tf32), (int)vnode_number_bytes(gemm->d.type));
}

static enum vnode_status submit(struct vnode_stream *stream, const struct vnode_gemm *gemm, bool tf32) {
  struct vnode_op op = {.name = "gemm",
                        .work = vnode_gemm_run,
                        .args = gemm,
                        .args_bytes = sizeof *gemm,
                        .duration_ns = duration_of(gemm, tf32)};
  if (!vnode_stream_is_late(stream)) /* nobody would look at the accesses */
    return vnode_op_submit(stream, &op);
  struct vnode_blas_accesses accesses = {.count = 0};
  access_gemm(&accesses, gemm);
  op.accesses = accesses.item;
  op.access_count = accesses.count;
  return vnode_op_submit(stream, &op);
}

cublasStatus_t vnode_blas_submit(cudaStream_t stream, const char *api, const char *compute, const char *epilogue, bool tf32,
                                 const struct vnode_gemm *gemm) {
  const struct vnode_gemm_key key = {
      .api = api,
      .trans_a = gemm->trans_a,
      .trans_b = gemm->trans_b,
      .m = gemm->m,
      .n = gemm->n,
      .k = gemm->k,
      .batch = gemm->batch,
      .type_a = vnode_number_name(gemm->a.type),
      .type_b = vnode_number_name(gemm->b.type),
      .type_d = vnode_number_name(gemm->d.type),
      .compute = compute,
      .epilogue = epilogue,
  };
  enum vnode_status status = submit((struct vnode_stream *)stream, gemm, tf32);
  if (status == VNODE_OK)
    vnode_ledger_gemm(&key);
  return vnode_blas_status(status);
}
