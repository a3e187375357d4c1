/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels seen from the host: names, grids, what a launch touches. No vendor header. */
#include "interpose/exec/quant.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum operation { AMAX, CAST, MX, ERROR };
enum form { ANY, KFAST, KSLOW, TRANSPOSE };

const struct b200_kernel_info b200_kernels[B200_KERNEL_COUNT] = {
#define B200_KERNEL(operation, type, form, id, name, args) [B200_KERNEL_##id] = {#name, sizeof(args), B200_KERNEL_THREADS},
#include "interpose/exec/kernels.def"
#undef B200_KERNEL
};

static const struct row {
  uint8_t operation, type, form;
} rows[B200_KERNEL_COUNT] = {
#define B200_KERNEL(operation, type, form, id, name, args) [B200_KERNEL_##id] = {operation, B200_SOURCE_##type, form},
#include "interpose/exec/kernels.def"
#undef B200_KERNEL
};

static_assert(sizeof(struct b200_guard_counters) == 64, "as the kernels see it");
static_assert(sizeof(struct b200_tensor_scale) == 16, "as the kernels see it");
static_assert(sizeof(struct b200_operand) == 40, "no padding");
static_assert(sizeof(struct b200_amax_args) == 56, "no padding");
static_assert(sizeof(struct b200_cast_args) == 80, "no padding");
static_assert(sizeof(struct b200_mx_args) == 80, "no padding");
static_assert(sizeof(struct b200_error_args) == 64, "no padding");

static const uint8_t element_bytes[B200_SOURCE_COUNT] = {
    [B200_SOURCE_BF16] = 2, [B200_SOURCE_F16] = 2, [B200_SOURCE_F32] = 4};

static enum b200_kernel find(enum operation operation, enum b200_source type, enum form form) {
  for (int i = 0; i < B200_KERNEL_COUNT; i++)
    if (rows[i].operation == operation && rows[i].type == type && rows[i].form == form)
      return (enum b200_kernel)i;
  return B200_KERNEL_COUNT;
}

enum b200_kernel b200_kernel_amax(enum b200_source type) {
  return find(AMAX, type, ANY);
}

enum b200_kernel b200_kernel_cast(enum b200_source type, enum b200_major from, enum b200_major to) {
  if (from == to)
    return find(CAST, type, from == B200_K_FAST ? KFAST : KSLOW);
  return from == B200_K_SLOW ? find(CAST, type, TRANSPOSE) : B200_KERNEL_COUNT;
}

enum b200_kernel b200_kernel_mx(enum b200_source type, enum b200_major major) {
  return find(MX, type, major == B200_K_FAST ? KFAST : KSLOW);
}

enum b200_kernel b200_kernel_error(enum b200_source type) {
  return find(ERROR, type, ANY);
}

enum b200_kernel b200_kernel_find(const char *name) {
  for (int i = 0; i < B200_KERNEL_COUNT; i++)
    if (strcmp(name, b200_kernels[i].name) == 0)
      return (enum b200_kernel)i;
  return B200_KERNEL_COUNT;
}

/* An operand as it lies in memory: `lines` of `width` contiguous elements. */
struct shape {
  int64_t lines, width;
};

static struct shape shape_of(const struct b200_operand *in, bool k_fast) {
  return k_fast ? (struct shape){.lines = in->outer, .width = in->k} : (struct shape){.lines = in->k, .width = in->outer};
}

static struct shape shape_of_launch(enum b200_kernel kernel, const void *args) {
  const struct b200_error_args *error = args;
  const struct b200_operand *in = args; /* the first member of all others */
  switch (rows[kernel].operation) {
  case ERROR:
    return (struct shape){.lines = error->n, .width = error->m};
  case AMAX:
    return shape_of(in, in->major == B200_K_FAST);
  default:
    return shape_of(in, rows[kernel].form == KFAST);
  }
}

static int64_t tiles(int64_t elements) {
  return (elements + B200_TILE - 1) / B200_TILE;
}

uint32_t b200_kernel_blocks(enum b200_kernel kernel, const void *args, int sms) {
  struct shape shape = shape_of_launch(kernel, args);
  int64_t blocks = tiles(shape.lines) * tiles(shape.width);
  /* Reductions end in atomics to one address: as many blocks as are resident at once, each taking several tiles. The others
     loop only where a grid cannot have one block per tile. */
  bool reduces = rows[kernel].operation == AMAX || rows[kernel].operation == ERROR;
  int64_t most = reduces ? 4 * (int64_t)(sms > 0 ? sms : 132) : INT32_MAX;
  return (uint32_t)(blocks < most ? blocks : most);
}

static int64_t padded(int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

static struct b200_range matrix(const void *start, int64_t rows_count, int64_t row_bytes, int64_t pitch, bool write) {
  return (struct b200_range){.start = start, .rows = rows_count, .row_bytes = row_bytes, .pitch = pitch, .write = write};
}

static struct b200_range plain(const void *start, int64_t bytes, bool write) {
  return matrix(start, 1, bytes, bytes, write);
}

int b200_kernel_accesses(enum b200_kernel kernel, const void *args, struct b200_range out[B200_RANGES_MAX]) {
  const struct b200_error_args *error = args;
  const struct b200_amax_args *amax = args;
  const struct b200_cast_args *cast = args;
  const struct b200_mx_args *mx = args;
  struct shape shape = shape_of_launch(kernel, args);
  int64_t size = element_bytes[rows[kernel].type];
  if (rows[kernel].operation == ERROR) {
    out[0] = matrix(error->d, error->n, error->m * size, error->ldd * size, false);
    out[1] = matrix(error->reference, error->n, error->m * size, error->ldr * size, false);
    out[2] = plain(error->sums, 2 * (int64_t)sizeof(double), true);
    return 3;
  }
  out[0] = matrix(amax->in.src, shape.lines, shape.width * size, amax->in.ld * size, false);
  switch (rows[kernel].operation) {
  case AMAX:
    out[1] = plain(amax->scale, (int64_t)sizeof *amax->scale, true);
    return 2;
  case CAST:
    out[1] = rows[kernel].form == TRANSPOSE ? matrix(cast->dst, shape.width, padded(shape.lines), cast->dst_ld, true)
                                            : matrix(cast->dst, shape.lines, padded(shape.width), cast->dst_ld, true);
    out[2] = plain(cast->scale, (int64_t)sizeof *cast->scale, false);
    return 3;
  default:
    out[1] = matrix(mx->dst, shape.lines, padded(shape.width), mx->dst_ld, true);
    out[2] = plain(mx->scales, b200_scale_bytes(mx->in.outer, mx->in.k), true);
    return 3;
  }
}
