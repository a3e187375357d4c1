/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt: handle, versions, heuristics and algorithms, matmul, matrix transform. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/vnode/core/model.h"
#include "tools/vnode/standins/blas_common.h"
#include "tools/vnode/standins/lt_narrow.h"
#include "tools/vnode/standins/lt_objects.h"
#include "tools/vnode/standins/lt_rules.h"
#include "tools/vnode/standins/number.h"

/* ------------------------------------------------------------------------------------------------------------ handle */

struct cublasLtContext {
  struct vnode_blas_handle base;
};

VNODE_API cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  if (!handle)
    return CUBLAS_STATUS_INVALID_VALUE;
  *handle = NULL;
  if (vnode_device_touch(vnode_device_current()) != VNODE_OK)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  struct cublasLtContext *context = calloc(1, sizeof *context);
  if (!context)
    return CUBLAS_STATUS_ALLOC_FAILED;
  context->base.live = VNODE_BLAS_HANDLE_LIVE;
  *handle = context;
  return CUBLAS_STATUS_SUCCESS;
}

/* True for a cublasHandle_t as well. */
static bool is_live(cublasLtHandle_t handle) {
  return handle && handle->base.live == VNODE_BLAS_HANDLE_LIVE;
}

VNODE_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!is_live(handle))
    return CUBLAS_STATUS_INVALID_VALUE;
  handle->base.live = 0;
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API size_t cublasLtGetVersion(void) {
  return CUBLAS_VERSION;
}

VNODE_API size_t cublasLtGetCudartVersion(void) {
  return vnode_blas_cudart_version();
}

VNODE_API cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value) {
  return vnode_blas_property(type, value);
}

VNODE_API const char *cublasLtGetStatusName(cublasStatus_t status) {
  return vnode_blas_status_name(status);
}

VNODE_API const char *cublasLtGetStatusString(cublasStatus_t status) {
  return vnode_blas_status_string(status);
}

/* -------------------------------------------------------------------------------------------- cache and log settings */

static _Atomic size_t heuristics_cache_capacity = 8192; /* nothing is cached: heuristics cost nothing here */

VNODE_API cublasStatus_t cublasLtHeuristicsCacheGetCapacity(size_t *capacity) {
  if (!capacity)
    return CUBLAS_STATUS_INVALID_VALUE;
  *capacity = heuristics_cache_capacity;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtHeuristicsCacheSetCapacity(size_t capacity) {
  heuristics_cache_capacity = capacity;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtLoggerSetCallback(cublasLtLoggerCallback_t callback) {
  (void)callback;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtLoggerSetFile(FILE *file) {
  (void)file;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtLoggerOpenFile(const char *path) {
  (void)path;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtLoggerSetLevel(int level) {
  (void)level;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtLoggerSetMask(int mask) {
  (void)mask;
  return CUBLAS_STATUS_SUCCESS;
}

/* The header declares it without a prototype. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
VNODE_API cublasStatus_t cublasLtLoggerForceDisable(void) {
  return CUBLAS_STATUS_SUCCESS;
}
#pragma GCC diagnostic pop

/* -------------------------------------------------------------------------------------------------------- algorithms */

static void algo_make(const struct lt_problem *problem, cublasLtMatmulAlgo_t *out) {
  const struct lt_algo algo = {
      .magic = LT_ALGO_MAGIC,
      .id = LT_ALGO_ID,
      .split_k = 1,
      .workspace_bytes = problem ? lt_problem_workspace(problem) : 0,
  };
  memset(out, 0, sizeof *out);
  memcpy(out, &algo, sizeof algo);
}

static void result_make(const struct lt_problem *problem, cublasLtMatmulHeuristicResult_t *result) {
  memset(result, 0, sizeof *result);
  algo_make(problem, &result->algo);
  result->workspaceSize = lt_problem_workspace(problem);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.0f;
}

static bool preference_allows(const struct lt_preference *preference, const struct lt_problem *problem) {
  uint32_t alignment = lt_problem_alignment(problem);
  return preference->align_a_bytes % alignment == 0 && preference->align_b_bytes % alignment == 0 &&
         preference->align_d_bytes % alignment == 0 && preference->max_workspace_bytes >= lt_problem_workspace(problem);
}

/* An algorithm may rely on what the preference says of addresses, as far as 128-bit accesses make use of it. DOC: "a smaller
   value will exclude algorithms that can not work with" such a matrix; no run has shown what becomes of one that lies worse.
 */
static uint8_t relied_on(uint32_t preferred_bytes) {
  return preferred_bytes < 16 ? (uint8_t)preferred_bytes : 16;
}

static void rely_on_addresses(const struct lt_preference *preference, cublasLtMatmulAlgo_t *out) {
  struct lt_algo algo;
  memcpy(&algo, out, sizeof algo);
  algo.align_a = relied_on(preference->align_a_bytes);
  algo.align_b = relied_on(preference->align_b_bytes);
  algo.align_c = relied_on(preference->align_c_bytes);
  algo.align_d = relied_on(preference->align_d_bytes);
  memcpy(out, &algo, sizeof algo);
}

VNODE_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                        cublasLtMatmulPreference_t preference, int requested,
                                                        cublasLtMatmulHeuristicResult_t results[], int *count) {
  if (!is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!preference || requested <= 0 || !results || !count)
    return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  struct lt_problem problem;
  struct lt_preference wanted;
  memcpy(&wanted, preference, sizeof wanted);
  cublasStatus_t status = lt_problem_make(op, a, b, c, d, &problem);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (!preference_allows(&wanted, &problem))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  result_make(&problem, &results[0]);
  rely_on_addresses(&wanted, &results[0].algo);
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

static bool algo_valid(const cublasLtMatmulAlgo_t *algo) {
  struct lt_algo known;
  memcpy(&known, algo, sizeof known);
  return known.magic == LT_ALGO_MAGIC && known.id == LT_ALGO_ID;
}

VNODE_API cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                                 cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulHeuristicResult_t *result) {
  if (!is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algo || !result || !algo_valid(algo))
    return CUBLAS_STATUS_INVALID_VALUE;
  struct lt_problem problem;
  cublasStatus_t status = lt_problem_make(op, a, b, c, d, &problem);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  cublasLtMatmulAlgo_t given = *algo; /* may be part of *result */
  result_make(&problem, result);
  result->algo = given;
  return CUBLAS_STATUS_SUCCESS;
}

static bool types_supported(cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                            cudaDataType_t c, cudaDataType_t d) {
  enum vnode_gemm_kind kind = vnode_gemm_kind((int)compute, a, b, c, d);
  return kind != VNODE_GEMM_NONE && scale == vnode_gemm_scale_type((int)compute, a) &&
         (!vnode_gemm_is_narrow(kind) || lt_narrow_available(kind));
}

VNODE_API cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                                                  cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
                                                  int requested, int ids[], int *count) {
  if (!is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested <= 0 || !ids || !count)
    return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  if (!types_supported(compute, scale, a, b, c, d))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  ids[0] = LT_ALGO_ID;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                                                cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
                                                int id, cublasLtMatmulAlgo_t *algo) {
  if (!is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algo || id != LT_ALGO_ID)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_supported(compute, scale, a, b, c, d))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  algo_make(NULL, algo);
  return CUBLAS_STATUS_SUCCESS;
}

struct capability {
  int id;
  size_t bytes;
  uint64_t value;
};

/* The list-valued ones (tiles, stages) are the one entry "undefined". */
static const struct capability capabilities[] = {
    {CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, 4, 0},
    {CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK, 4, CUBLASLT_REDUCTION_SCHEME_NONE},
    {CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT, 4, 0},
    {CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT, 4, 1},
    {CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT, 4, 1},
    {CUBLASLT_ALGO_CAP_UPLO_SUPPORT, 4, 0},
    {CUBLASLT_ALGO_CAP_TILE_IDS, 4, CUBLASLT_MATMUL_TILE_UNDEFINED},
    {CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, 4, 0},
    {CUBLASLT_ALGO_CAP_CUSTOM_MEMORY_ORDER, 4, 0},
    {CUBLASLT_ALGO_CAP_POINTER_MODE_MASK, 4, CUBLASLT_POINTER_MODE_MASK_HOST | CUBLASLT_POINTER_MODE_MASK_DEVICE},
    {CUBLASLT_ALGO_CAP_EPILOGUE_MASK, 4, 0x3ff},
    {CUBLASLT_ALGO_CAP_STAGES_IDS, 4, CUBLASLT_MATMUL_STAGES_UNDEFINED},
    {CUBLASLT_ALGO_CAP_LD_NEGATIVE, 4, 0},
    {CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, 8,
     CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F},
    {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, 4, 16},
    {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, 4, 16},
    {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, 4, 16},
    {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, 4, 16},
    {CUBLASLT_ALGO_CAP_POINTER_ARRAY_BATCH_SUPPORT, 4, 0},
    {CUBLASLT_ALGO_CAP_FLOATING_POINT_EMULATION_SUPPORT, 4, 0},
    {CUBLASLT_ALGO_CAP_POINTER_ARRAY_GROUPED_SUPPORT, 4, 0},
};

VNODE_API cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                           cublasLtMatmulAlgoCapAttributes_t attribute, void *value,
                                                           size_t bytes, size_t *written) {
  if (!algo || !algo_valid(algo) || (bytes == 0 && !written) || (bytes > 0 && !value))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0]; i++) {
    const struct capability *known = &capabilities[i];
    if (known->id != (int)attribute)
      continue;
    if (bytes > 0 && bytes < known->bytes)
      return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes > 0)
      memcpy(value, &known->value, known->bytes); /* little-endian, as are all CUDA hosts */
    if (written)
      *written = known->bytes;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------------------------------ matmul */

static struct vnode_matrix matrix_of(const void *data, const struct lt_layout *layout) {
  return (struct vnode_matrix){.data = data, .type = (cudaDataType)layout->type, .ld = layout->ld, .stride = layout->stride};
}

static bool aligned(const struct lt_problem *problem, const struct vnode_gemm *gemm) {
  uintptr_t all = (uintptr_t)gemm->a.data | (uintptr_t)gemm->b.data | (uintptr_t)gemm->d.data;
  if (!vnode_scalar_is_zero(&gemm->beta))
    all |= (uintptr_t)gemm->c.data;
  return all % lt_problem_alignment(problem) == 0;
}

static bool lies_at(const void *address, uint8_t bytes) {
  return bytes == 0 || (uintptr_t)address % bytes == 0;
}

/* pre: the algorithm is valid, or NULL. */
static bool aligned_for(const cublasLtMatmulAlgo_t *given, const struct vnode_gemm *gemm) {
  struct lt_algo algo;
  if (!given)
    return true;
  memcpy(&algo, given, sizeof algo);
  return lies_at(gemm->a.data, algo.align_a) && lies_at(gemm->b.data, algo.align_b) && lies_at(gemm->d.data, algo.align_d) &&
         (vnode_scalar_is_zero(&gemm->beta) || lies_at(gemm->c.data, algo.align_c));
}

/* Too small a workspace: INVALID_VALUE with an algorithm given, else no algorithm fits. */
static cublasStatus_t workspace_check(const struct lt_problem *problem, const cublasLtMatmulAlgo_t *algo,
                                      const void *workspace, size_t bytes) {
  if (algo && !algo_valid(algo))
    return CUBLAS_STATUS_INVALID_VALUE;
  size_t usable = workspace ? bytes : 0;
  if (usable >= lt_problem_workspace(problem))
    return CUBLAS_STATUS_SUCCESS;
  return algo ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED;
}

VNODE_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                                        cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                                        const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                        size_t workspace_bytes, cudaStream_t stream) {
  if (!is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  struct lt_problem problem;
  cublasStatus_t status = lt_problem_make(op, a_layout, b_layout, c_layout, d_layout, &problem);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (!alpha || !beta || !a || !b || !d || !lt_problem_pointers_valid(&problem))
    return CUBLAS_STATUS_INVALID_VALUE;
  bool on_device = problem.op.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  const struct vnode_gemm gemm = {
      .trans_a = vnode_blas_trans(problem.op.trans_a),
      .trans_b = vnode_blas_trans(problem.op.trans_b),
      .m = problem.m,
      .n = problem.n,
      .k = problem.k,
      .batch = problem.d.batch,
      .alpha = vnode_scalar_make(alpha, (cudaDataType)problem.op.scale_type, on_device),
      .beta = vnode_scalar_make(beta, (cudaDataType)problem.op.scale_type, on_device),
      .a = matrix_of(a, &problem.a),
      .b = matrix_of(b, &problem.b),
      .c = matrix_of(c, &problem.c),
      .d = matrix_of(d, &problem.d),
      .epilogue = problem.epilogue,
  };
  if (!c && !vnode_scalar_is_zero(&gemm.beta))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!aligned(&problem, &gemm))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  status = workspace_check(&problem, algo, workspace, workspace_bytes);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (!aligned_for(algo, &gemm))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return vnode_blas_submit(stream, "lt", vnode_gemm_compute_name(problem.op.compute), problem.epilogue_name,
                           problem.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32, &gemm);
}

/* --------------------------------------------------------------------------------------------------------- transform */

struct transform_work {
  struct lt_transform op;
  struct lt_layout a, b, c;
  const void *a_data, *b_data;
  void *c_data;
  struct vnode_scalar alpha, beta;
};

static int64_t element_index(const struct lt_layout *layout, bool transposed, int64_t row, int64_t col, int64_t batch) {
  int64_t r = transposed ? col : row, c = transposed ? row : col;
  return batch * layout->stride + (layout->order == CUBLASLT_ORDER_ROW ? r * layout->ld + c : c * layout->ld + r);
}

static double transform_term(const struct lt_layout *layout, const void *data, int32_t operation,
                             const struct vnode_scalar *scalar, int64_t row, int64_t col, int64_t batch) {
  double factor = scalar->re, value = 0;
  if (scalar->device)
    vnode_number_load(scalar->device, scalar->type, 0, &factor, NULL);
  if (factor == 0)
    return 0;
  vnode_number_load(data, (cudaDataType)layout->type, element_index(layout, operation != CUBLAS_OP_N, row, col, batch),
                    &value, NULL);
  return factor * value;
}

static void transform_run(void *argument) {
  const struct transform_work *work = argument;
  for (int64_t batch = 0; batch < work->c.batch; batch++)
    for (int64_t col = 0; col < (int64_t)work->c.cols; col++)
      for (int64_t row = 0; row < (int64_t)work->c.rows; row++) {
        double sum = transform_term(&work->a, work->a_data, work->op.trans_a, &work->alpha, row, col, batch) +
                     transform_term(&work->b, work->b_data, work->op.trans_b, &work->beta, row, col, batch);
        vnode_number_store(work->c_data, (cudaDataType)work->c.type, element_index(&work->c, false, row, col, batch), sum,
                           0);
      }
}

/* Column and row order, real types. */
static bool transform_layout_supported(const struct lt_layout *layout) {
  cudaDataType type = (cudaDataType)layout->type;
  return (layout->order == CUBLASLT_ORDER_COL || layout->order == CUBLASLT_ORDER_ROW) && vnode_number_bytes(type) > 0 &&
         !vnode_number_is_complex(type) && layout->batch_mode == CUBLASLT_BATCH_MODE_STRIDED;
}

static bool transform_shape_valid(const struct lt_layout *in, int32_t operation, const struct lt_layout *out) {
  bool plain = operation == CUBLAS_OP_N;
  return (plain ? in->rows : in->cols) == out->rows && (plain ? in->cols : in->rows) == out->cols && in->batch == out->batch;
}

static uint64_t layout_bytes(const struct lt_layout *layout) {
  return layout->rows * layout->cols * (uint64_t)layout->batch * vnode_number_bytes((cudaDataType)layout->type);
}

static void access_layout(struct vnode_blas_accesses *accesses, const void *data, const struct lt_layout *layout,
                          bool write) {
  bool by_row = layout->order == CUBLASLT_ORDER_ROW;
  vnode_blas_access_matrix(accesses, data, vnode_number_bytes((cudaDataType)layout->type),
                           (int64_t)(by_row ? layout->cols : layout->rows), (int64_t)(by_row ? layout->rows : layout->cols),
                           layout->ld, layout->stride, layout->batch, write);
}

static enum vnode_status transform_submit(struct vnode_stream *stream, const struct transform_work *work) {
  struct vnode_blas_accesses accesses = {.count = 0};
  access_layout(&accesses, work->a_data, &work->a, false);
  access_layout(&accesses, work->b_data, &work->b, false);
  access_layout(&accesses, work->c_data, &work->c, true);
  vnode_blas_access_scalar(&accesses, &work->alpha);
  vnode_blas_access_scalar(&accesses, &work->beta);
  uint64_t bytes = layout_bytes(&work->a) + layout_bytes(&work->c) + (work->b_data ? layout_bytes(&work->b) : 0);
  return vnode_op_submit(stream, &(struct vnode_op){.name = "matrix transform",
                                                    .work = transform_run,
                                                    .args = work,
                                                    .args_bytes = sizeof *work,
                                                    .accesses = accesses.item,
                                                    .access_count = accesses.count,
                                                    .duration_ns = vnode_model_kernel_ns(bytes)});
}

VNODE_API cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t handle, cublasLtMatrixTransformDesc_t desc,
                                                 const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                                                 const void *beta, const void *b, cublasLtMatrixLayout_t b_layout, void *c,
                                                 cublasLtMatrixLayout_t c_layout, cudaStream_t stream) {
  if (!is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !alpha || !a || !a_layout || !c || !c_layout || (b && (!b_layout || !beta)))
    return CUBLAS_STATUS_INVALID_VALUE;
  struct transform_work work = {.a_data = a, .b_data = b, .c_data = c};
  memcpy(&work.op, desc, sizeof work.op);
  memcpy(&work.a, a_layout, sizeof work.a);
  memcpy(&work.b, b ? b_layout : a_layout, sizeof work.b);
  memcpy(&work.c, c_layout, sizeof work.c);
  if (work.op.pointer_mode > CUBLASLT_POINTER_MODE_DEVICE || !transform_layout_supported(&work.a) ||
      !transform_layout_supported(&work.b) || !transform_layout_supported(&work.c))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!transform_shape_valid(&work.a, work.op.trans_a, &work.c) ||
      (b && !transform_shape_valid(&work.b, work.op.trans_b, &work.c)))
    return CUBLAS_STATUS_INVALID_VALUE;
  cudaDataType scale_type = (cudaDataType)work.op.scale_type;
  bool on_device = work.op.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  work.alpha = vnode_scalar_make(alpha, scale_type, on_device);
  if (b)
    work.beta = vnode_scalar_make(beta, scale_type, on_device);
  return vnode_blas_status(transform_submit((struct vnode_stream *)stream, &work));
}
