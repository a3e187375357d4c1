/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLAS's vector routines and rank-1 and matrix-vector products, as loops over elements: what jobs do little of. All
 * sums are FP64. They are no GEMMs and are not counted as such.
 *
 * A result goes to host or device memory as the pointer mode says; for the host the call waits, as in cuBLAS.
 */
#include <math.h>
#include <string.h>

#include "tools/vnode/core/model.h"
#include "tools/vnode/standins/cublas_handle.h"
#include "tools/vnode/standins/number.h"

struct vector {
  void *data; /* read only where the routine only reads */
  int64_t step;
  cudaDataType type;
};

struct vector_call {
  vnode_work work;
  int64_t n;
  const void *scalar; /* alpha, NULL when the routine has none */
  cudaDataType scalar_type;
  struct vector x, y;
  void *result; /* NULL when the routine has none */
  cudaDataType result_type;
  size_t index_bytes; /* of the result of amax and amin, else 0 */
  bool conjugate;
  struct vnode_scalar alpha;
};

struct complex {
  double re, im;
};

/* BLAS walks a vector with a negative step from its far end. */
static int64_t position(const struct vector *vector, int64_t n, int64_t i) {
  return vector->step >= 0 ? i * vector->step : (i - n + 1) * vector->step;
}

static struct complex get(const struct vector *vector, int64_t n, int64_t i) {
  struct complex value = {0, 0};
  vnode_number_load(vector->data, vector->type, position(vector, n, i), &value.re, &value.im);
  return value;
}

static void put(const struct vector *vector, int64_t n, int64_t i, struct complex value) {
  vnode_number_store(vector->data, vector->type, position(vector, n, i), value.re, value.im);
}

static struct complex times(struct complex x, struct complex y) {
  return (struct complex){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

static struct complex plus(struct complex x, struct complex y) {
  return (struct complex){x.re + y.re, x.im + y.im};
}

static struct complex scalar_value(const struct vnode_scalar *scalar) {
  struct vnode_scalar now = scalar->device ? vnode_scalar_make(scalar->device, scalar->type, false) : *scalar;
  return (struct complex){now.re, now.im};
}

static void put_result(const struct vector_call *call, struct complex value) {
  vnode_number_store(call->result, call->result_type, 0, value.re, value.im);
}

/* --------------------------------------------------------------------------------------------------------- BLAS-1 */

static void axpy_work(void *argument) {
  const struct vector_call *call = argument;
  struct complex alpha = scalar_value(&call->alpha);
  for (int64_t i = 0; i < call->n; i++)
    put(&call->y, call->n, i, plus(times(alpha, get(&call->x, call->n, i)), get(&call->y, call->n, i)));
}

static void copy_work(void *argument) {
  const struct vector_call *call = argument;
  for (int64_t i = 0; i < call->n; i++)
    put(&call->y, call->n, i, get(&call->x, call->n, i));
}

static void swap_work(void *argument) {
  const struct vector_call *call = argument;
  for (int64_t i = 0; i < call->n; i++) {
    struct complex x = get(&call->x, call->n, i);
    put(&call->x, call->n, i, get(&call->y, call->n, i));
    put(&call->y, call->n, i, x);
  }
}

static void scal_work(void *argument) {
  const struct vector_call *call = argument;
  struct complex alpha = scalar_value(&call->alpha);
  for (int64_t i = 0; i < call->n; i++)
    put(&call->x, call->n, i, times(alpha, get(&call->x, call->n, i)));
}

static void dot_work(void *argument) {
  const struct vector_call *call = argument;
  struct complex sum = {0, 0};
  for (int64_t i = 0; i < call->n; i++) {
    struct complex x = get(&call->x, call->n, i);
    x.im = call->conjugate ? -x.im : x.im;
    sum = plus(sum, times(x, get(&call->y, call->n, i)));
  }
  put_result(call, sum);
}

static void nrm2_work(void *argument) {
  const struct vector_call *call = argument;
  double norm = 0;
  for (int64_t i = 0; i < call->n; i++) {
    struct complex x = get(&call->x, call->n, i);
    norm = hypot(norm, hypot(x.re, x.im));
  }
  put_result(call, (struct complex){norm, 0});
}

static void asum_work(void *argument) {
  const struct vector_call *call = argument;
  double sum = 0;
  for (int64_t i = 0; i < call->n; i++) {
    struct complex x = get(&call->x, call->n, i);
    sum += fabs(x.re) + fabs(x.im);
  }
  put_result(call, (struct complex){sum, 0});
}

/* 1-based index of the first element with the largest (direction 1) or smallest (-1) |re| + |im|; 0 for no elements. */
static void put_extreme(const struct vector_call *call, double direction) {
  int64_t best = 0;
  double best_value = 0;
  for (int64_t i = 0; i < call->n; i++) {
    struct complex x = get(&call->x, call->n, i);
    double value = direction * (fabs(x.re) + fabs(x.im));
    if (best == 0 || value > best_value) {
      best = i + 1;
      best_value = value;
    }
  }
  int32_t narrow = (int32_t)best;
  memcpy(call->result, call->index_bytes == sizeof narrow ? (const void *)&narrow : (const void *)&best, call->index_bytes);
}

static void amax_work(void *argument) {
  put_extreme(argument, 1);
}

static void amin_work(void *argument) {
  put_extreme(argument, -1);
}

static uint64_t vector_bytes(const struct vector *vector, int64_t n) {
  return vector->data ? (uint64_t)n * vnode_number_bytes(vector->type) : 0;
}

static void access_vector(struct vnode_blas_accesses *accesses, const struct vector *vector, int64_t n, bool write) {
  int64_t step = vector->step < 0 ? -vector->step : vector->step;
  size_t element_bytes = vector->data ? vnode_number_bytes(vector->type) : 0;
  if (step == 1 || n == 1)
    vnode_blas_access_bytes(accesses, vector->data, (size_t)n * element_bytes, write);
  else
    vnode_blas_access_matrix(accesses, vector->data, element_bytes, 1, step ? n : 1, step, 0, 1, write);
}

static enum vnode_status vector_submit(struct vnode_stream *stream, const struct vector_call *call, bool result_on_device) {
  struct vnode_blas_accesses accesses = {.count = 0};
  bool y_is_read = call->work == axpy_work || call->work == swap_work || call->work == dot_work;
  if (call->n) {
    access_vector(&accesses, &call->x, call->n, call->work == scal_work || call->work == swap_work);
    access_vector(&accesses, &call->y, call->n, call->work != dot_work);
  }
  if (result_on_device)
    vnode_blas_access_bytes(&accesses, call->result,
                            call->index_bytes ? call->index_bytes : vnode_number_bytes(call->result_type), true);
  if (call->scalar)
    vnode_blas_access_scalar(&accesses, &call->alpha);
  uint64_t bytes = vector_bytes(&call->x, call->n) + vector_bytes(&call->y, call->n) * (y_is_read ? 2 : 1);
  return vnode_op_submit(stream, &(struct vnode_op){.name = "vector",
                                                    .work = call->work,
                                                    .args = call,
                                                    .args_bytes = sizeof *call,
                                                    .accesses = accesses.item,
                                                    .access_count = accesses.count,
                                                    .duration_ns = vnode_model_kernel_ns(bytes)});
}

static cublasStatus_t vector_run(cublasHandle_t handle, const struct vector_call *given) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  struct vector_call call = *given;
  struct vnode_stream *stream = (struct vnode_stream *)handle->stream;
  bool on_device = handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  bool wants_scalar = call.work == axpy_work || call.work == scal_work;
  bool moves = wants_scalar || call.work == copy_work || call.work == swap_work, wants_result = !moves;
  bool waits = wants_result && !on_device;
  if ((wants_scalar && !call.scalar) || (wants_result && !call.result))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (call.scalar)
    call.alpha = vnode_scalar_make(call.scalar, call.scalar_type, on_device);
  if (call.n < 0 || (!call.y.data && call.x.step <= 0)) /* BLAS: routines of one vector do nothing then */
    call.n = 0;
  enum vnode_status status = VNODE_OK;
  if (waits && vnode_stream_is_capturing(stream)) /* a result for the host cannot be captured: the wait says so */
    status = vnode_stream_synchronize(stream);
  if (!status)
    status = vector_submit(stream, &call, wants_result && on_device);
  if (!status && waits)
    status = vnode_stream_synchronize(stream);
  return vnode_blas_status(status);
}

/* --------------------------------------------------------------------------------------------------------- BLAS-2 */

struct matrix_call {
  char trans;
  int64_t m, n, lda;
  struct vnode_scalar alpha, beta;
  struct vector a, x, y; /* a.step unused */
  bool conjugate;        /* y of ger */
};

static void gemv_work(void *argument) {
  const struct matrix_call *call = argument;
  struct complex alpha = scalar_value(&call->alpha), beta = scalar_value(&call->beta);
  bool plain = call->trans == 'N', reads = alpha.re != 0 || alpha.im != 0, adds = beta.re != 0 || beta.im != 0;
  int64_t rows = plain ? call->m : call->n, inner = plain ? call->n : call->m;
  for (int64_t i = 0; i < rows; i++) {
    struct complex sum = {0, 0}, element = {0, 0};
    for (int64_t p = 0; reads && p < inner; p++) {
      vnode_number_load(call->a.data, call->a.type, plain ? p * call->lda + i : i * call->lda + p, &element.re, &element.im);
      element.im = call->trans == 'C' ? -element.im : element.im;
      sum = plus(sum, times(element, get(&call->x, inner, p)));
    }
    sum = reads ? times(alpha, sum) : sum;
    put(&call->y, rows, i, adds ? plus(sum, times(beta, get(&call->y, rows, i))) : sum);
  }
}

static void ger_work(void *argument) {
  const struct matrix_call *call = argument;
  struct complex alpha = scalar_value(&call->alpha);
  for (int64_t j = 0; j < call->n; j++) {
    struct complex y = get(&call->y, call->n, j), element = {0, 0};
    y.im = call->conjugate ? -y.im : y.im;
    struct complex factor = times(alpha, y);
    for (int64_t i = 0; i < call->m; i++) {
      vnode_number_load(call->a.data, call->a.type, j * call->lda + i, &element.re, &element.im);
      element = plus(element, times(get(&call->x, call->m, i), factor));
      vnode_number_store(call->a.data, call->a.type, j * call->lda + i, element.re, element.im);
    }
  }
}

struct leading_matrix {
  void *data;
  int64_t ld;
  cudaDataType type;
};

/* y is written by gemv, a by ger. */
static enum vnode_status matrix_submit(cublasHandle_t handle, const char *name, vnode_work work,
                                       const struct matrix_call *call) {
  struct vnode_blas_accesses accesses = {.count = 0};
  bool is_gemv = work == gemv_work, plain = call->trans == 'N';
  size_t element_bytes = vnode_number_bytes(call->a.type);
  vnode_blas_access_matrix(&accesses, call->a.data, element_bytes, call->m, call->n, call->lda, 0, 1, !is_gemv);
  access_vector(&accesses, &call->x, is_gemv && plain ? call->n : call->m, false);
  access_vector(&accesses, &call->y, is_gemv && plain ? call->m : call->n, is_gemv);
  vnode_blas_access_scalar(&accesses, &call->alpha);
  vnode_blas_access_scalar(&accesses, &call->beta);
  uint64_t bytes = (uint64_t)call->m * (uint64_t)call->n * element_bytes * (is_gemv ? 1 : 2);
  return vnode_op_submit((struct vnode_stream *)handle->stream,
                         &(struct vnode_op){.name = name,
                                            .work = work,
                                            .args = call,
                                            .args_bytes = sizeof *call,
                                            .accesses = accesses.item,
                                            .access_count = accesses.count,
                                            .duration_ns = vnode_model_kernel_ns(bytes)});
}

static bool matrix_valid(int64_t m, int64_t n, int64_t ld, int64_t incx, int64_t incy) {
  return m >= 0 && n >= 0 && ld >= (m > 1 ? m : 1) && incx != 0 && incy != 0;
}

static cublasStatus_t gemv_run(cublasHandle_t handle, int trans, int64_t m, int64_t n, const void *alpha, const void *beta,
                               const struct leading_matrix *a, const struct vector *x, const struct vector *y) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!matrix_valid(m, n, a->ld, x->step, y->step) || !vnode_blas_trans(trans) || !alpha || !beta)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0)
    return CUBLAS_STATUS_SUCCESS;
  bool on_device = handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  struct matrix_call call = {
      .trans = vnode_blas_trans(trans), .m = m, .n = n, .lda = a->ld, .a = {a->data, 0, a->type}, .x = *x, .y = *y};
  call.alpha = vnode_scalar_make(alpha, a->type, on_device);
  call.beta = vnode_scalar_make(beta, a->type, on_device);
  return vnode_blas_status(matrix_submit(handle, "gemv", gemv_work, &call));
}

static cublasStatus_t ger_run(cublasHandle_t handle, int64_t m, int64_t n, const void *alpha, const struct vector *x,
                              const struct vector *y, bool conjugate, const struct leading_matrix *a) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!matrix_valid(m, n, a->ld, x->step, y->step) || !alpha)
    return CUBLAS_STATUS_INVALID_VALUE;
  bool on_device = handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  struct matrix_call call = {
      .m = m, .n = n, .lda = a->ld, .a = {a->data, 0, a->type}, .x = *x, .y = *y, .conjugate = conjugate};
  call.alpha = vnode_scalar_make(alpha, a->type, on_device);
  return vnode_blas_status(matrix_submit(handle, "ger", ger_work, &call));
}

/* --------------------------------------------------------------------------------------------------- entry points */

/* cuBLAS takes inputs as const pointers; one struct serves inputs and outputs. */
static void *unconst(const void *pointer) {
  void *result;
  memcpy(&result, &pointer, sizeof result);
  return result;
}

#define VECTOR(pointer, increment, type) ((struct vector){pointer, increment, type})
#define INPUT(pointer, increment, type) ((struct vector){unconst(pointer), increment, type})
#define MATRIX(pointer, ld, type) ((struct leading_matrix){unconst(pointer), ld, type})

#define S_NAME(x) cublasS##x##_v2
#define S_INDEX(x) cublasIs##x##_v2
#define D_NAME(x) cublasD##x##_v2
#define D_INDEX(x) cublasId##x##_v2
#define C_NAME(x) cublasC##x##_v2
#define C_REAL(x) cublasSc##x##_v2
#define C_INDEX(x) cublasIc##x##_v2
#define Z_NAME(x) cublasZ##x##_v2
#define Z_REAL(x) cublasDz##x##_v2
#define Z_INDEX(x) cublasIz##x##_v2
#define INTEGER int
#include "tools/vnode/standins/cublas_vector_types.inc"
#undef INTEGER
#undef S_NAME
#undef S_INDEX
#undef D_NAME
#undef D_INDEX
#undef C_NAME
#undef C_REAL
#undef C_INDEX
#undef Z_NAME
#undef Z_REAL
#undef Z_INDEX

#define S_NAME(x) cublasS##x##_v2_64
#define S_INDEX(x) cublasIs##x##_v2_64
#define D_NAME(x) cublasD##x##_v2_64
#define D_INDEX(x) cublasId##x##_v2_64
#define C_NAME(x) cublasC##x##_v2_64
#define C_REAL(x) cublasSc##x##_v2_64
#define C_INDEX(x) cublasIc##x##_v2_64
#define Z_NAME(x) cublasZ##x##_v2_64
#define Z_REAL(x) cublasDz##x##_v2_64
#define Z_INDEX(x) cublasIz##x##_v2_64
#define INTEGER int64_t
#include "tools/vnode/standins/cublas_vector_types.inc"
#undef INTEGER

#define DOT(name, integer, element, type, conj)                                                                             \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, integer n, const element *x, integer incx, const element *y,         \
                                integer incy, element *result) {                                                            \
    return vector_run(handle, &(struct vector_call){.work = dot_work,                                                       \
                                                    .n = n,                                                                 \
                                                    .x = INPUT(x, incx, type),                                              \
                                                    .y = INPUT(y, incy, type),                                              \
                                                    .result = result,                                                       \
                                                    .result_type = type,                                                    \
                                                    .conjugate = conj});                                                    \
  }

#define GER(name, integer, element, type, conj)                                                                             \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, integer m, integer n, const element *alpha, const element *x,        \
                                integer incx, const element *y, integer incy, element *a, integer lda) {                    \
    return ger_run(handle, m, n, alpha, &INPUT(x, incx, type), &INPUT(y, incy, type), conj, &MATRIX(a, lda, type));         \
  }

/* Scaling of a complex vector by a real number. */
#define REAL_SCAL(name, integer, element, type, real, real_type)                                                            \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, integer n, const real *alpha, element *x, integer incx) {            \
    return vector_run(                                                                                                      \
        handle, &(struct vector_call){                                                                                      \
                    .work = scal_work, .n = n, .scalar = alpha, .scalar_type = real_type, .x = VECTOR(x, incx, type)});     \
  }

#define BOTH_WIDTHS(macro, name, ...) macro(name, int, __VA_ARGS__) macro(name##_64, int64_t, __VA_ARGS__)

BOTH_WIDTHS(DOT, cublasSdot_v2, float, CUDA_R_32F, false)
BOTH_WIDTHS(DOT, cublasDdot_v2, double, CUDA_R_64F, false)
BOTH_WIDTHS(DOT, cublasCdotu_v2, cuComplex, CUDA_C_32F, false)
BOTH_WIDTHS(DOT, cublasCdotc_v2, cuComplex, CUDA_C_32F, true)
BOTH_WIDTHS(DOT, cublasZdotu_v2, cuDoubleComplex, CUDA_C_64F, false)
BOTH_WIDTHS(DOT, cublasZdotc_v2, cuDoubleComplex, CUDA_C_64F, true)
BOTH_WIDTHS(GER, cublasSger_v2, float, CUDA_R_32F, false)
BOTH_WIDTHS(GER, cublasDger_v2, double, CUDA_R_64F, false)
BOTH_WIDTHS(GER, cublasCgeru_v2, cuComplex, CUDA_C_32F, false)
BOTH_WIDTHS(GER, cublasCgerc_v2, cuComplex, CUDA_C_32F, true)
BOTH_WIDTHS(GER, cublasZgeru_v2, cuDoubleComplex, CUDA_C_64F, false)
BOTH_WIDTHS(GER, cublasZgerc_v2, cuDoubleComplex, CUDA_C_64F, true)
BOTH_WIDTHS(REAL_SCAL, cublasCsscal_v2, cuComplex, CUDA_C_32F, float, CUDA_R_32F)
BOTH_WIDTHS(REAL_SCAL, cublasZdscal_v2, cuDoubleComplex, CUDA_C_64F, double, CUDA_R_64F)

/* Types of cublasDotEx: x, y and result alike, computed in FP32 or, for FP64, in FP64. */
static bool dot_types_valid(cudaDataType x, cudaDataType y, cudaDataType result, cudaDataType execution) {
  cudaDataType wanted = x == CUDA_R_16F || x == CUDA_R_16BF ? CUDA_R_32F : x;
  bool known = x == CUDA_R_16F || x == CUDA_R_16BF || x == CUDA_R_32F || x == CUDA_R_64F || vnode_number_is_complex(x);
  return known && x == y && x == result && execution == wanted;
}

#define DOT_EX(name, integer, conj)                                                                                         \
  VNODE_API cublasStatus_t name(cublasHandle_t handle, integer n, const void *x, cudaDataType x_type, integer incx,         \
                                const void *y, cudaDataType y_type, integer incy, void *result, cudaDataType result_type,   \
                                cudaDataType execution) {                                                                   \
    if (vnode_cublas_is_live(handle) && !dot_types_valid(x_type, y_type, result_type, execution))                           \
      return CUBLAS_STATUS_NOT_SUPPORTED;                                                                                   \
    return vector_run(handle, &(struct vector_call){.work = dot_work,                                                       \
                                                    .n = n,                                                                 \
                                                    .x = INPUT(x, incx, x_type),                                            \
                                                    .y = INPUT(y, incy, y_type),                                            \
                                                    .result = result,                                                       \
                                                    .result_type = result_type,                                             \
                                                    .conjugate = conj});                                                    \
  }

DOT_EX(cublasDotEx, int, false)
DOT_EX(cublasDotEx_64, int64_t, false)
DOT_EX(cublasDotcEx, int, true)
DOT_EX(cublasDotcEx_64, int64_t, true)
