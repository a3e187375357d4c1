/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions over the data of several ranks.
 *
 * Arithmetic, the same on every rank and in every run: sources are taken in rank order. f32 and the narrower floats (f16,
 * bf16, e4m3, e5m2) are widened to FP32, accumulated in FP32 and rounded to nearest even once at the end; f64 in FP64;
 * integers wrap in their own type. FP8 results saturate at the largest finite value, as NCCL's conversions do; f16 overflows
 * to infinity. The average of floats multiplies each source by 1/n rounded to the data type and sums, as NCCL does
 * (enqueue.cc, hostToDevRedOp: ncclDevPreMulSum); of integers it divides the wrapped sum, truncating towards zero
 * (FuncSumPostDiv). min and max ignore a NaN when the other operand is a number, as fminf does. Real NCCL accumulates narrow
 * floats in the narrow type on most paths and in ring order; sums here are at least as exact.
 *
 * Pure functions; any thread.
 */
#ifndef VNODE_NCCL_REDUCE_H
#define VNODE_NCCL_REDUCE_H

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

#define REDUCE_SOURCES_MAX 8

struct reduction {
  ncclDataType_t type;
  ncclRedOp_t op; /* ncclSum … ncclAvg */
  int sources;    /* 1 … REDUCE_SOURCES_MAX */
  const uint64_t
      *scalars; /* PreMulSum: a factor per source, in the data type, low bytes; op is then ncclSum. NULL otherwise */
};

/* Bytes of an element; 0 for an unknown type. */
size_t reduce_type_bytes(ncclDataType_t type);
/* Name as in record.def. pre: known type. */
const char *reduce_type_name(ncclDataType_t type);
/* dst[i] = op over r of src[r][i]. pre: known type; dst may be one of the sources, but must not overlap them otherwise. */
void reduce_run(const struct reduction *reduction, const void *const *src, size_t count, void *dst);

#endif
