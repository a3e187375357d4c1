/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt: making, destroying, reading and writing its descriptors. */
#include "tools/vnode/standins/lt_objects.h"

#include <stdlib.h>
#include <string.h>

#include "tools/vnode/core/core.h"

struct attribute {
  int id;
  size_t offset, bytes;
};

#define FIELD(id, type, member)                                                                                             \
  { id, offsetof(struct type, member), sizeof(((struct type *)0)->member) }

static const struct attribute matmul_attributes[] = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, lt_matmul, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, lt_matmul, scale_type),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, lt_matmul, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, lt_matmul, trans_a),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, lt_matmul, trans_b),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSC, lt_matmul, trans_c),
    FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, lt_matmul, fill_mode),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, lt_matmul, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, lt_matmul, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, lt_matmul, bias_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, lt_matmul, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, lt_matmul, aux_ld),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, lt_matmul, aux_stride),
    FIELD(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, lt_matmul, alpha_vector_stride),
    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, lt_matmul, sm_count_target),
    FIELD(16, lt_matmul, reserved_16),
    FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, lt_matmul, a_scale),
    FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, lt_matmul, b_scale),
    FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, lt_matmul, c_scale),
    FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, lt_matmul, d_scale),
    FIELD(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, lt_matmul, amax_d),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, lt_matmul, aux_type),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, lt_matmul, aux_scale),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, lt_matmul, aux_amax),
    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, lt_matmul, fast_accumulation),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_matmul, bias_type),
    FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, lt_matmul, a_scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, lt_matmul, b_scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_MODE, lt_matmul, c_scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_MODE, lt_matmul, d_scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, lt_matmul, aux_scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, lt_matmul, d_out_scale),
    FIELD(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, lt_matmul, d_out_scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR, lt_matmul, emulation),
    FIELD(CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE, lt_matmul, alpha_stride),
    FIELD(CUBLASLT_MATMUL_DESC_BETA_BATCH_STRIDE, lt_matmul, beta_stride),
};

static const struct attribute layout_attributes[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, lt_layout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, lt_layout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, lt_layout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, lt_layout, cols),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, lt_layout, ld),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, lt_layout, batch),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, lt_layout, stride),
    FIELD(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, lt_layout, plane_offset),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, lt_layout, batch_mode),
#if LT_HAS_GROUPS
    FIELD(CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_ARRAY, lt_layout, rows_array),
    FIELD(CUBLASLT_GROUPED_MATRIX_LAYOUT_COLS_ARRAY, lt_layout, cols_array),
    FIELD(CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY, lt_layout, ld_array),
    FIELD(CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_COLS_ARRAY_INTEGER_WIDTH, lt_layout, rows_cols_width),
    FIELD(CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH, lt_layout, ld_width),
#endif
};

static const struct attribute preference_attributes[] = {
    FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, lt_preference, search_mode),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, lt_preference, max_workspace_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, lt_preference, reduction_mask),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, lt_preference, align_a_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, lt_preference, align_b_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, lt_preference, align_c_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, lt_preference, align_d_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, lt_preference, max_waves),
    FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, lt_preference, impl_mask),
#if LT_HAS_GROUPS
    FIELD(CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM, lt_preference, grouped_reduction),
    FIELD(CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS, lt_preference, grouped_rows),
    FIELD(CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS, lt_preference, grouped_cols),
#endif
};

static const struct attribute transform_attributes[] = {
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, lt_transform, scale_type),
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE, lt_transform, pointer_mode),
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, lt_transform, trans_a),
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB, lt_transform, trans_b),
};

#if LT_HAS_GROUPS
static const struct attribute emulation_attributes[] = {
    FIELD(CUBLASLT_EMULATION_DESC_STRATEGY, lt_emulation, strategy),
    FIELD(CUBLASLT_EMULATION_DESC_SPECIAL_VALUES_SUPPORT, lt_emulation, special_values),
    FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_CONTROL, lt_emulation, mantissa_control),
    FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MAX_MANTISSA_BIT_COUNT, lt_emulation, max_mantissa_bits),
    FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_OFFSET, lt_emulation, mantissa_offset),
    FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER, lt_emulation, mantissa_count),
};
#endif

static const struct attribute algo_attributes[] = {
    FIELD(CUBLASLT_ALGO_CONFIG_ID, lt_algo, id),
    FIELD(CUBLASLT_ALGO_CONFIG_TILE_ID, lt_algo, tile),
    FIELD(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, lt_algo, split_k),
    FIELD(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, lt_algo, reduction),
    FIELD(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, lt_algo, swizzle),
    FIELD(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, lt_algo, custom),
    FIELD(CUBLASLT_ALGO_CONFIG_STAGES_ID, lt_algo, stages),
    FIELD(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, lt_algo, inner_shape),
    FIELD(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, lt_algo, cluster_shape),
};

#define TABLE(attributes) attributes, sizeof(attributes) / sizeof(attributes)[0]

static const struct attribute *attribute_find(const struct attribute *table, size_t count, int id) {
  for (size_t i = 0; i < count; i++)
    if (table[i].id == id)
      return &table[i];
  return NULL;
}

static cublasStatus_t attribute_set(const struct attribute *table, size_t count, void *object, int id, const void *value,
                                    size_t bytes) {
  const struct attribute *attribute = attribute_find(table, count, id);
  if (!object || !attribute || !value || bytes != attribute->bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  memcpy((char *)object + attribute->offset, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/* bytes = 0 asks for the size only. */
static cublasStatus_t attribute_get(const struct attribute *table, size_t count, const void *object, int id, void *value,
                                    size_t bytes, size_t *written) {
  const struct attribute *attribute = attribute_find(table, count, id);
  if (!object || !attribute || (bytes == 0 ? !written : !value || bytes != attribute->bytes))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes > 0)
    memcpy(value, (const char *)object + attribute->offset, bytes);
  if (written)
    *written = attribute->bytes;
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t object_create(void **object, size_t bytes) {
  if (!object)
    return CUBLAS_STATUS_INVALID_VALUE;
  *object = calloc(1, bytes);
  return *object ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t object_destroy(void *object) {
  free(object);
  return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------ matmul desc */

VNODE_API cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t bytes,
                                                         cublasComputeType_t compute, cudaDataType_t scale_type) {
  if (!desc)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof *desc)
    return CUBLAS_STATUS_ALLOC_FAILED;
  const struct lt_matmul initial = {
      .compute = (int32_t)compute,
      .scale_type = (int32_t)scale_type,
      .fill_mode = CUBLAS_FILL_MODE_FULL,
      .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
      .aux_type = -1,
      .bias_type = -1,
  };
  memset(desc, 0, sizeof *desc);
  memcpy(desc, &initial, sizeof initial);
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                                  cudaDataType_t scale_type) {
  cublasStatus_t status = object_create((void **)desc, sizeof **desc);
  return status ? status : cublasLtMatmulDescInit_internal(*desc, sizeof **desc, compute, scale_type);
}

VNODE_API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return object_destroy(desc);
}

VNODE_API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                                        const void *value, size_t bytes) {
  return attribute_set(TABLE(matmul_attributes), desc, (int)attribute, value, bytes);
}

VNODE_API cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                                        void *value, size_t bytes, size_t *written) {
  return attribute_get(TABLE(matmul_attributes), desc, (int)attribute, value, bytes, written);
}

/* ----------------------------------------------------------------------------------------------------- matrix layout */

VNODE_API cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes, cudaDataType type,
                                                           uint64_t rows, uint64_t cols, int64_t ld) {
  if (!layout)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof *layout)
    return CUBLAS_STATUS_ALLOC_FAILED;
  const struct lt_layout initial = {.type = (int32_t)type, .rows = rows, .cols = cols, .ld = ld, .batch = 1};
  memset(layout, 0, sizeof *layout);
  memcpy(layout, &initial, sizeof initial);
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                                    uint64_t cols, int64_t ld) {
  cublasStatus_t status = object_create((void **)layout, sizeof **layout);
  return status ? status : cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, cols, ld);
}

#if LT_HAS_GROUPS
VNODE_API cublasStatus_t cublasLtGroupedMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes,
                                                                  cudaDataType type, int groups, const void *rows,
                                                                  const void *cols, const void *ld) {
  cublasStatus_t status = cublasLtMatrixLayoutInit_internal(layout, bytes, type, 0, 0, 0);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  struct lt_layout *grouped = (struct lt_layout *)layout;
  grouped->batch = groups;
  grouped->batch_mode = CUBLASLT_BATCH_MODE_GROUPED;
  grouped->rows_array = rows;
  grouped->cols_array = cols;
  grouped->ld_array = ld;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtGroupedMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, int groups,
                                                           const void *rows, const void *cols, const void *ld) {
  cublasStatus_t status = object_create((void **)layout, sizeof **layout);
  return status ? status : cublasLtGroupedMatrixLayoutInit_internal(*layout, sizeof **layout, type, groups, rows, cols, ld);
}
#endif

VNODE_API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return object_destroy(layout);
}

VNODE_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                          cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                          size_t bytes) {
  return attribute_set(TABLE(layout_attributes), layout, (int)attribute, value, bytes);
}

VNODE_API cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                          cublasLtMatrixLayoutAttribute_t attribute, void *value,
                                                          size_t bytes, size_t *written) {
  return attribute_get(TABLE(layout_attributes), layout, (int)attribute, value, bytes, written);
}

/* -------------------------------------------------------------------------------------------------------- preference */

VNODE_API cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t bytes) {
  if (!preference)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof *preference)
    return CUBLAS_STATUS_ALLOC_FAILED;
  const struct lt_preference initial = {
      .reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK,
      .align_a_bytes = 256,
      .align_b_bytes = 256,
      .align_c_bytes = 256,
      .align_d_bytes = 256,
      .impl_mask = UINT64_MAX,
  };
  memset(preference, 0, sizeof *preference);
  memcpy(preference, &initial, sizeof initial);
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  cublasStatus_t status = object_create((void **)preference, sizeof **preference);
  return status ? status : cublasLtMatmulPreferenceInit_internal(*preference, sizeof **preference);
}

VNODE_API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return object_destroy(preference);
}

VNODE_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                              cublasLtMatmulPreferenceAttributes_t attribute,
                                                              const void *value, size_t bytes) {
  return attribute_set(TABLE(preference_attributes), preference, (int)attribute, value, bytes);
}

VNODE_API cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                              cublasLtMatmulPreferenceAttributes_t attribute, void *value,
                                                              size_t bytes, size_t *written) {
  return attribute_get(TABLE(preference_attributes), preference, (int)attribute, value, bytes, written);
}

/* --------------------------------------------------------------------------------------------------------- transform */

VNODE_API cublasStatus_t cublasLtMatrixTransformDescInit_internal(cublasLtMatrixTransformDesc_t desc, size_t bytes,
                                                                  cudaDataType scale_type) {
  if (!desc)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof *desc)
    return CUBLAS_STATUS_ALLOC_FAILED;
  memset(desc, 0, sizeof *desc);
  ((struct lt_transform *)desc)->scale_type = (int32_t)scale_type;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t *desc, cudaDataType scale_type) {
  cublasStatus_t status = object_create((void **)desc, sizeof **desc);
  return status ? status : cublasLtMatrixTransformDescInit_internal(*desc, sizeof **desc, scale_type);
}

VNODE_API cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t desc) {
  return object_destroy(desc);
}

VNODE_API cublasStatus_t cublasLtMatrixTransformDescSetAttribute(cublasLtMatrixTransformDesc_t desc,
                                                                 cublasLtMatrixTransformDescAttributes_t attribute,
                                                                 const void *value, size_t bytes) {
  return attribute_set(TABLE(transform_attributes), desc, (int)attribute, value, bytes);
}

VNODE_API cublasStatus_t cublasLtMatrixTransformDescGetAttribute(cublasLtMatrixTransformDesc_t desc,
                                                                 cublasLtMatrixTransformDescAttributes_t attribute,
                                                                 void *value, size_t bytes, size_t *written) {
  return attribute_get(TABLE(transform_attributes), desc, (int)attribute, value, bytes, written);
}

/* --------------------------------------------------------------------------------------------------------- emulation */

#if LT_HAS_GROUPS
VNODE_API cublasStatus_t cublasLtEmulationDescInit_internal(cublasLtEmulationDesc_t desc, size_t bytes) {
  if (!desc)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof *desc)
    return CUBLAS_STATUS_ALLOC_FAILED;
  memset(desc, 0, sizeof *desc);
  ((struct lt_emulation *)desc)->special_values = 0xffff;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasLtEmulationDescCreate(cublasLtEmulationDesc_t *desc) {
  cublasStatus_t status = object_create((void **)desc, sizeof **desc);
  return status ? status : cublasLtEmulationDescInit_internal(*desc, sizeof **desc);
}

VNODE_API cublasStatus_t cublasLtEmulationDescDestroy(cublasLtEmulationDesc_t desc) {
  return object_destroy(desc);
}

VNODE_API cublasStatus_t cublasLtEmulationDescSetAttribute(cublasLtEmulationDesc_t desc,
                                                           cublasLtEmulationDescAttributes_t attribute, const void *value,
                                                           size_t bytes) {
  return attribute_set(TABLE(emulation_attributes), desc, (int)attribute, value, bytes);
}

VNODE_API cublasStatus_t cublasLtEmulationDescGetAttribute(cublasLtEmulationDesc_t desc,
                                                           cublasLtEmulationDescAttributes_t attribute, void *value,
                                                           size_t bytes, size_t *written) {
  return attribute_get(TABLE(emulation_attributes), desc, (int)attribute, value, bytes, written);
}
#endif

/* -------------------------------------------------------------------------------------------------- algorithm config */

VNODE_API cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                              cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                              const void *value, size_t bytes) {
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) /* read only */
    return CUBLAS_STATUS_INVALID_VALUE;
  return attribute_set(TABLE(algo_attributes), algo, (int)attribute, value, bytes);
}

VNODE_API cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                              cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                              size_t bytes, size_t *written) {
  return attribute_get(TABLE(algo_attributes), algo, (int)attribute, value, bytes, written);
}
