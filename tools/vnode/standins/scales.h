/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scales of narrow operands, as cuBLASLt lays them out in device memory.
 *
 * An operand is `outer` × k: `outer` is M for A and N for B, k what is contracted; where its elements lie does not matter to
 * its scales. One scale counts for a run of `vnode_scale_run` elements along k:
 *
 *   SCALAR_32F      one FP32 for all; NULL is 1
 *   VEC16_UE4M3     16 elements of a row; bytes in tiles
 *   VEC32_UE8M0     32 elements of a row; bytes in tiles
 *   OUTER_VEC_32F   a whole row: FP32 [outer]
 *   VEC128_32F      128 elements of a row: FP32, row o, run i at i·outer + o
 *   BLK128x128_32F  128 elements of 128 rows: FP32, rows of 128 o, run i at o·L + i, L = runs rounded up to 4
 *
 * Tiles: 128 rows × 4 runs in 512 bytes, row o, run i at
 *   ((o/128)·(R/4) + i/4)·512 + (o % 32)·16 + (o % 128)/32·4 + i % 4,  R = runs rounded up to 4,
 * whole tiles in memory (cuBLAS documentation, "1D Block Scaling Factors Layout"; the same bytes as torchao's to_blocked).
 * The tensor cores multiply runs that are padding by data that is zero: what such a scale is makes no difference, but for
 * NaN, which makes its row NaN. Padding rows end nowhere.
 *
 * Thread-safety: pure functions; vnode_scale_factors uses the thread's scratch memory.
 */
#ifndef VNODE_SCALES_H
#define VNODE_SCALES_H

#include <stdint.h>

/* The numbers of cublasLtMatmulMatrixScale_t, which older headers have only the first of. */
enum vnode_scale_mode {
  VNODE_SCALE_SCALAR_32F,
  VNODE_SCALE_VEC16_UE4M3,
  VNODE_SCALE_VEC32_UE8M0,
  VNODE_SCALE_OUTER_VEC_32F,
  VNODE_SCALE_VEC128_32F,
  VNODE_SCALE_BLK128x128_32F,
  VNODE_SCALE_MODES
};

struct vnode_scale {
  const void *data;
  enum vnode_scale_mode mode;
};

/* Elements along k that share a scale; at least k for a whole row. pre: mode is not SCALAR_32F, here and below. */
int64_t vnode_scale_run(enum vnode_scale_mode mode, int64_t k);
/* Bytes that the scales take, padding included. */
uint64_t vnode_scale_bytes(enum vnode_scale_mode mode, int64_t outer, int64_t k);
/* Alignment that hardware needs, in bytes. */
uint64_t vnode_scale_alignment(enum vnode_scale_mode mode);

/* The scales as FP32, row o, run i at i·outer + o; NaN padding is in run 0. Valid until the thread asks again. */
const float *vnode_scale_factors(const struct vnode_scale *scale, int64_t outer, int64_t k);

#endif
