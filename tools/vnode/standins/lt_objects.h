/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The opaque objects of cuBLASLt as the stand-in lays them out. They live in the caller's cublasLt…Opaque_t or in memory
 * from cublasLt…Create; they own nothing they point to. Attributes are stored as given and checked where they are used.
 * Sizes and defaults of attributes are those that the library of cuBLAS 13.4 states through its Get functions.
 * Thread-safety: as any plain object.
 */
#ifndef VNODE_LT_OBJECTS_H
#define VNODE_LT_OBJECTS_H

#include <cublasLt.h>
#include <stddef.h>
#include <stdint.h>

#define LT_HAS_GROUPS                                                                                                       \
  (CUBLAS_VER_MAJOR >= 13) /* grouped and emulated products; the objects of CUDA 12 have no room for them */

struct lt_matmul {
  int32_t compute, scale_type, pointer_mode, trans_a, trans_b, trans_c, fill_mode;
  uint32_t epilogue;
  const void *bias;
  int64_t bias_stride;
  void *aux;
  int64_t aux_ld, aux_stride, alpha_vector_stride;
  int32_t sm_count_target, reserved_16; /* attribute 16 exists without a name */
  const void *a_scale, *b_scale, *c_scale, *d_scale;
  void *amax_d;
  const void *aux_scale;
  void *aux_amax;
  int32_t aux_type, bias_type; /* -1: not set */
  int32_t a_scale_mode, b_scale_mode, c_scale_mode, d_scale_mode, aux_scale_mode, d_out_scale_mode;
  void *d_out_scale;
  cublasLtEmulationDesc_t emulation;
  int64_t alpha_stride, beta_stride;
  int8_t fast_accumulation;
};

struct lt_layout {
  int32_t type, order;
  uint64_t rows, cols;
  int64_t ld;
  int32_t batch;
  uint32_t batch_mode;
  int64_t stride, plane_offset;
#if LT_HAS_GROUPS
  const void *rows_array, *cols_array, *ld_array;
  int32_t rows_cols_width, ld_width;
#endif
};

struct lt_preference {
  uint64_t max_workspace_bytes, impl_mask;
#if LT_HAS_GROUPS
  uint64_t grouped_reduction, grouped_rows, grouped_cols; /* 8 bytes each in the library, 4 in its header's text */
#endif
  uint32_t search_mode, reduction_mask;
  uint32_t align_a_bytes, align_b_bytes, align_c_bytes, align_d_bytes;
  float max_waves;
};

struct lt_transform {
  int32_t scale_type, pointer_mode, trans_a, trans_b;
};

#if LT_HAS_GROUPS
struct lt_emulation {
  int32_t strategy;
  uint32_t special_values;
  int32_t mantissa_control, max_mantissa_bits, mantissa_offset;
  const void *mantissa_count;
};
_Static_assert(sizeof(struct lt_emulation) <= sizeof(cublasLtEmulationDescOpaque_t), "lt_emulation");
#endif

#define LT_ALGO_MAGIC 0xb2001au
#define LT_ALGO_ID 66 /* the one algorithm there is */

struct lt_algo {
  uint32_t magic;
  uint32_t id, tile, split_k, reduction, swizzle, custom, stages;
  uint16_t inner_shape, cluster_shape;
  uint8_t align_a, align_b, align_c, align_d; /* bytes of addresses that it relies on; 0: nothing */
  uint64_t workspace_bytes;                   /* what it was found to need */
};

_Static_assert(sizeof(struct lt_matmul) <= sizeof(cublasLtMatmulDescOpaque_t), "lt_matmul");
_Static_assert(sizeof(struct lt_layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "lt_layout");
_Static_assert(sizeof(struct lt_preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "lt_preference");
_Static_assert(sizeof(struct lt_transform) <= sizeof(cublasLtMatrixTransformDescOpaque_t), "lt_transform");
_Static_assert(sizeof(struct lt_algo) <= sizeof(cublasLtMatmulAlgo_t), "lt_algo");

#endif
