/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/scales.h"

#include <math.h>
#include <stdbool.h>

#include "tools/vnode/standins/host_blas.h"
#include "tools/vnode/standins/number.h"

enum { TILE_ROWS = 128, TILE_RUNS = 4, BLOCK = 128 };

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t vnode_scale_run(enum vnode_scale_mode mode, int64_t k) {
  switch (mode) {
  case VNODE_SCALE_VEC16_UE4M3:
    return 16;
  case VNODE_SCALE_VEC32_UE8M0:
    return 32;
  case VNODE_SCALE_VEC128_32F:
  case VNODE_SCALE_BLK128x128_32F:
    return BLOCK;
  default:
    return k > 0 ? k : 1;
  }
}

static bool is_tiled(enum vnode_scale_mode mode) {
  return mode == VNODE_SCALE_VEC16_UE4M3 || mode == VNODE_SCALE_VEC32_UE8M0;
}

/* Runs of a row in memory. */
static int64_t stored_runs(enum vnode_scale_mode mode, int64_t k) {
  int64_t runs = ceil_div(k, vnode_scale_run(mode, k));
  return is_tiled(mode) || mode == VNODE_SCALE_BLK128x128_32F ? ceil_div(runs, TILE_RUNS) * TILE_RUNS : runs;
}

uint64_t vnode_scale_bytes(enum vnode_scale_mode mode, int64_t outer, int64_t k) {
  uint64_t runs = (uint64_t)stored_runs(mode, k);
  if (is_tiled(mode))
    return runs * (uint64_t)(ceil_div(outer, TILE_ROWS) * TILE_ROWS);
  return runs * (uint64_t)(mode == VNODE_SCALE_BLK128x128_32F ? ceil_div(outer, BLOCK) : outer) * sizeof(float);
}

uint64_t vnode_scale_alignment(enum vnode_scale_mode mode) {
  return mode == VNODE_SCALE_OUTER_VEC_32F ? sizeof(float) : 16;
}

static int64_t tiled_offset(int64_t row, int64_t run, int64_t runs) {
  return ((row / TILE_ROWS) * (runs / TILE_RUNS) + run / TILE_RUNS) * (TILE_ROWS * TILE_RUNS) + row % 32 * 16 +
         row % TILE_ROWS / 32 * 4 + run % TILE_RUNS;
}

static float factor_of(const struct vnode_scale *scale, int64_t row, int64_t run, int64_t outer, int64_t runs) {
  const float *floats = scale->data;
  const uint8_t *bytes = scale->data;
  switch (scale->mode) {
  case VNODE_SCALE_VEC16_UE4M3:
    return vnode_number_ue4m3(bytes[tiled_offset(row, run, runs)]);
  case VNODE_SCALE_VEC32_UE8M0:
    return vnode_number_ue8m0(bytes[tiled_offset(row, run, runs)]);
  case VNODE_SCALE_BLK128x128_32F:
    return floats[row / BLOCK * runs + run];
  default:
    return floats[run * outer + row];
  }
}

const float *vnode_scale_factors(const struct vnode_scale *scale, int64_t outer, int64_t k) {
  int64_t runs = ceil_div(k, vnode_scale_run(scale->mode, k)), stored = stored_runs(scale->mode, k);
  float *factors = vnode_scratch_get(VNODE_SCRATCH_FACTORS, (size_t)(runs * outer) * sizeof *factors);
  for (int64_t run = 0; run < runs; run++)
    for (int64_t row = 0; row < outer; row++)
      factors[run * outer + row] = factor_of(scale, row, run, outer, stored);
  for (int64_t run = runs; is_tiled(scale->mode) && run < stored; run++)
    for (int64_t row = 0; row < outer; row++)
      if (isnan(factor_of(scale, row, run, outer, stored)))
        factors[row] = NAN;
  return factors;
}
