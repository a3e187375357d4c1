/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is remembered of a GEMM that was seen before: its decision and, per format, all that carrying it out needs but the
 * pointers. One table per thread, so that no lock is needed; it is given back to no one, and the next thread that takes over
 * the thread's block goes on with it.
 *
 * A table that is full forgets everything and starts again (a job with ever new shapes pays for each, as it does in cuBLAS).
 */
#ifndef B200_EXEC_SHAPES_H
#define B200_EXEC_SHAPES_H

#include "interpose/exec/product.h"
#include "interpose/exec/quant.h"

/* Every byte is set: compared and hashed bytewise. */
struct b200_shape_key {
  struct b200_facts facts;
  CUcontext context;
  int32_t sm_target;
  uint32_t forbids_reduced; /* CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION */
};
_Static_assert(sizeof(struct b200_shape_key) == 136, "no padding: compared bytewise");

/* One operand of a conversion: how it lies where it comes from, and where its quantised form lies in the arena. */
struct b200_side {
  int64_t outer, ld, stride; /* of the source, elements */
  int64_t matrices;          /* that are quantised: the batch, or 1 for one that all share */
  int64_t dst_ld, dst_stride;
  uint64_t data, scales; /* offsets in the arena */
  uint8_t source;        /* enum b200_source */
  uint8_t narrow;        /* enum b200_narrow */
  uint8_t major, dst_major;
  uint8_t amax, quantise; /* enum b200_kernel; amax: FP8 only */
  bool cut;               /* it is quantised piece by piece */
};

_Static_assert(B200_KERNEL_COUNT <= UINT8_MAX, "kept in a byte");

enum b200_conversion_state { B200_CONVERSION_UNMADE, B200_CONVERSION_READY };

struct b200_conversion {
  int state;
  struct b200_side a, b;
  int64_t piece; /* length of each piece but the last */
  uint32_t cuts;
  bool cut_rows;
  uint64_t workspace, bytes;       /* offset of the GEMM's workspace in the arena; bytes of the arena in all */
  struct b200_product whole, last; /* last: the last piece of a cut GEMM, where its size differs */
};

struct b200_shape {
  struct b200_shape_key key;
  uint64_t hash;  /* 0: empty */
  uint64_t epoch; /* of the breaker when the plan was made; plans of an older one are made again */
  struct b200_plan plan;
  bool planned;
  uint8_t would[3], would_reason[3];                         /* observing: what auto, fp8 and mxfp8 would do */
  uint32_t calls;                                            /* converted */
  struct b200_conversion conversions[B200_FORMAT_COUNT - 1]; /* by format − 1 */
  struct b200_product guard_reference, audit_reference;      /* the original precision, for samples (watch.h) */
};

struct b200_shapes;

/* The entry of `key`, made empty when there is none. NULL: no memory. `table`: the thread's, NULL at first. */
struct b200_shape *b200_shapes_get(struct b200_shapes **table, const struct b200_vendor *vendor,
                                   const struct b200_shape_key *key);

#endif
