/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions in blocks that stay in the first-level cache; every inner loop is plain enough to be vectorised. */
#include "nccl_reduce.h"

#include <string.h>

#define BLOCK 1024 /* elements */

/* --------------------------------------------------------------------------------------- arithmetic of one type */

/* T: the type; W: the type to add and multiply in (unsigned for integers, whose overflow then wraps). */
#define DEFINE_ARITHMETIC(name, T, W)                                                                                       \
  static void name##_sum(void *acc, const void *x, size_t n) {                                                              \
    W *a = acc;                                                                                                             \
    const W *b = x;                                                                                                         \
    for (size_t i = 0; i < n; i++)                                                                                          \
      a[i] = (W)(a[i] + b[i]);                                                                                              \
  }                                                                                                                         \
  static void name##_prod(void *acc, const void *x, size_t n) {                                                             \
    W *a = acc;                                                                                                             \
    const W *b = x;                                                                                                         \
    for (size_t i = 0; i < n; i++)                                                                                          \
      a[i] = (W)(a[i] * b[i]);                                                                                              \
  }                                                                                                                         \
  static void name##_max(void *acc, const void *x, size_t n) {                                                              \
    T *a = acc;                                                                                                             \
    const T *b = x;                                                                                                         \
    for (size_t i = 0; i < n; i++)                                                                                          \
      a[i] = b[i] > a[i] || a[i] != a[i] ? b[i] : a[i];                                                                     \
  }                                                                                                                         \
  static void name##_min(void *acc, const void *x, size_t n) {                                                              \
    T *a = acc;                                                                                                             \
    const T *b = x;                                                                                                         \
    for (size_t i = 0; i < n; i++)                                                                                          \
      a[i] = b[i] < a[i] || a[i] != a[i] ? b[i] : a[i];                                                                     \
  }                                                                                                                         \
  static void name##_scale(void *acc, const void *factor, size_t n) {                                                       \
    W *a = acc, f = *(const W *)factor;                                                                                     \
    for (size_t i = 0; i < n; i++)                                                                                          \
      a[i] = (W)(a[i] * f);                                                                                                 \
  }                                                                                                                         \
  static void name##_divide(void *acc, int divisor, size_t n) {                                                             \
    T *a = acc, d = (T)divisor;                                                                                             \
    for (size_t i = 0; i < n; i++)                                                                                          \
      a[i] = (T)(a[i] / d);                                                                                                 \
  }

/* uint8_t and uint16_t promote to int, whose products of 16 bits could overflow; there are none of 16 bits here. */
DEFINE_ARITHMETIC(i8, int8_t, uint8_t)
DEFINE_ARITHMETIC(u8, uint8_t, uint8_t)
DEFINE_ARITHMETIC(i32, int32_t, uint32_t)
DEFINE_ARITHMETIC(u32, uint32_t, uint32_t)
DEFINE_ARITHMETIC(i64, int64_t, uint64_t)
DEFINE_ARITHMETIC(u64, uint64_t, uint64_t)
DEFINE_ARITHMETIC(f32, float, float)
DEFINE_ARITHMETIC(f64, double, double)

struct arithmetic {
  size_t bytes;
  void (*combine[4])(void *acc, const void *x, size_t n); /* by ncclRedOp_t */
  void (*scale)(void *acc, const void *factor, size_t n);
  void (*divide)(void *acc, int divisor, size_t n);
};

#define ARITHMETIC(name, T)                                                                                                 \
  static const struct arithmetic name = {                                                                                   \
      sizeof(T),                                                                                                            \
      {[ncclSum] = name##_sum, [ncclProd] = name##_prod, [ncclMax] = name##_max, [ncclMin] = name##_min},                   \
      name##_scale,                                                                                                         \
      name##_divide}
ARITHMETIC(i8, int8_t);
ARITHMETIC(u8, uint8_t);
ARITHMETIC(i32, int32_t);
ARITHMETIC(u32, uint32_t);
ARITHMETIC(i64, int64_t);
ARITHMETIC(u64, uint64_t);
ARITHMETIC(f32, float);
ARITHMETIC(f64, double);

/* ------------------------------------------------------------------------------------------------ narrow floats */

static inline float as_float(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint32_t as_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* Decodes a float of 1 sign, E exponent and M mantissa bits. `ieee`: the top exponent means infinity and NaN; otherwise only
   the all-ones code is NaN (e4m3). Branch-free and without subnormal FP32 operands, so the host's flush-to-zero modes change
   nothing. */
static inline float decode(uint32_t code, int E, int M, int ieee) {
  const uint32_t bias = (1u << (E - 1)) - 1, magnitude = (1u << (E + M)) - 1, exponent = magnitude & ~((1u << M) - 1);
  uint32_t m = code & magnitude, sign = (code >> (E + M)) << 31;
  uint32_t normal = (m << (23 - M)) + ((127 - bias) << 23);
  uint32_t small = as_bits((float)(int32_t)m * as_float((127 + 1 - bias - (uint32_t)M) << 23));
  uint32_t special = ieee ? 0x7f800000u | (m << (23 - M)) : 0x7fc00000u;
  uint32_t bits = m < (1u << M) ? small : normal;
  bits = (ieee ? m >= exponent : m == magnitude) ? special : bits;
  return as_float(bits | sign);
}

/* Rounds to nearest even. `top`: code of the largest finite value; `saturate`: what lies above becomes it, else infinity. */
static inline uint32_t encode(float value, int E, int M, uint32_t top, int saturate) {
  const uint32_t bias = (1u << (E - 1)) - 1;
  uint32_t bits = as_bits(value), absolute = bits & 0x7fffffffu, sign = (bits >> 31) << (E + M);
  uint32_t rebased = absolute - ((127 - bias) << 23);
  uint32_t normal = (rebased + (1u << (22 - M)) - 1 + ((rebased >> (23 - M)) & 1)) >> (23 - M);
  /* Adding a number whose last bit is worth one subnormal step lets the FPU round: exact, one rounding. */
  const uint32_t step = (127 + 23 + 1 - bias - (uint32_t)M) << 23;
  uint32_t small = as_bits(as_float(absolute) + as_float(step)) - step;
  uint32_t code = absolute < ((127 + 1 - bias) << 23) ? small : normal;
  uint32_t infinity = ((1u << E) - 1) << M;
  code = code > top || absolute >= 0x7f800000u ? (saturate ? top : infinity) : code;
  code = absolute > 0x7f800000u ? (1u << (E + M)) - 1 : code;
  return code | sign;
}

#define DEFINE_NARROW(name, T, DECODE, ENCODE)                                                                              \
  static void name##_widen(const void *from, float *to, size_t n) {                                                         \
    const T *x = from;                                                                                                      \
    for (size_t i = 0; i < n; i++)                                                                                          \
      to[i] = DECODE(x[i]);                                                                                                 \
  }                                                                                                                         \
  static void name##_narrow(const float *from, void *to, size_t n) {                                                        \
    T *x = to;                                                                                                              \
    for (size_t i = 0; i < n; i++)                                                                                          \
      x[i] = (T)ENCODE(from[i]);                                                                                            \
  }

static inline uint32_t bf16_encode(float value) {
  uint32_t bits = as_bits(value);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded;
}

#define F16_DECODE(x) decode(x, 5, 10, 1)
#define F16_ENCODE(x) encode(x, 5, 10, 0x7bff, 0)
#define BF16_DECODE(x) as_float((uint32_t)(x) << 16)
#define E4M3_DECODE(x) decode(x, 4, 3, 0)
#define E4M3_ENCODE(x) encode(x, 4, 3, 0x7e, 1)
#define E5M2_DECODE(x) decode(x, 5, 2, 1)
#define E5M2_ENCODE(x) encode(x, 5, 2, 0x7b, 1)
DEFINE_NARROW(f16, uint16_t, F16_DECODE, F16_ENCODE)
DEFINE_NARROW(bf16, uint16_t, BF16_DECODE, bf16_encode)
DEFINE_NARROW(e4m3, uint8_t, E4M3_DECODE, E4M3_ENCODE)
DEFINE_NARROW(e5m2, uint8_t, E5M2_DECODE, E5M2_ENCODE)

/* --------------------------------------------------------------------------------------------------- the types */

struct type_row {
  const char *name;
  size_t bytes;
  const struct arithmetic *arithmetic; /* of what is accumulated in */
  void (*widen)(const void *from, float *to, size_t n);
  void (*narrow)(const float *from, void *to, size_t n);
};

static const struct type_row types[ncclNumTypes] = {
    [ncclInt8] = {"i8", 1, &i8, NULL, NULL},
    [ncclUint8] = {"u8", 1, &u8, NULL, NULL},
    [ncclInt32] = {"i32", 4, &i32, NULL, NULL},
    [ncclUint32] = {"u32", 4, &u32, NULL, NULL},
    [ncclInt64] = {"i64", 8, &i64, NULL, NULL},
    [ncclUint64] = {"u64", 8, &u64, NULL, NULL},
    [ncclFloat16] = {"f16", 2, &f32, f16_widen, f16_narrow},
    [ncclFloat32] = {"f32", 4, &f32, NULL, NULL},
    [ncclFloat64] = {"f64", 8, &f64, NULL, NULL},
    [ncclBfloat16] = {"bf16", 2, &f32, bf16_widen, bf16_narrow},
    [ncclFloat8e4m3] = {"e4m3", 1, &f32, e4m3_widen, e4m3_narrow},
    [ncclFloat8e5m2] = {"e5m2", 1, &f32, e5m2_widen, e5m2_narrow},
};

size_t reduce_type_bytes(ncclDataType_t type) {
  return (unsigned)type < ncclNumTypes ? types[type].bytes : 0;
}

const char *reduce_type_name(ncclDataType_t type) {
  return types[type].name;
}

static int is_float(const struct type_row *row) {
  return row->arithmetic == &f32 || row->arithmetic == &f64;
}

/* A factor in the data type → in the type that is accumulated in. */
static void load_factor(const struct type_row *row, const void *scalar, void *factor) {
  if (row->widen)
    row->widen(scalar, factor, 1);
  else
    memcpy(factor, scalar, row->bytes);
}

/* 1/n rounded to the data type, as accumulated in. pre: a float type. */
static void average_factor(const struct type_row *row, int n, void *factor) {
  if (row->arithmetic == &f64) {
    *(double *)factor = 1.0 / n;
    return;
  }
  float f = (float)(1.0 / n);
  uint32_t narrow = 0;
  if (row->narrow) {
    row->narrow(&f, &narrow, 1);
    row->widen(&narrow, &f, 1);
  }
  *(float *)factor = f;
}

/* One block: acc = op over the sources. `acc` and `term` hold BLOCK elements of the accumulated type. */
static void reduce_block(const struct reduction *reduction, const void *const *src, size_t offset, size_t n, void *acc,
                         void *term) {
  const struct type_row *row = &types[reduction->type];
  const struct arithmetic *arithmetic = row->arithmetic;
  int average = reduction->op == ncclAvg && is_float(row);
  ncclRedOp_t op = reduction->op == ncclAvg ? ncclSum : reduction->op;
  for (int r = 0; r < reduction->sources; r++) {
    const void *x = (const unsigned char *)src[r] + offset * row->bytes;
    void *to = r ? term : acc;
    double factor; /* room and alignment for any type */
    int scaled = average || reduction->scalars;
    if (row->widen)
      row->widen(x, to, n);
    else if (r == 0 || scaled)
      memcpy(to, x, n * row->bytes);
    else
      to = (void *)(uintptr_t)x; /* read only below */
    if (average)
      average_factor(row, reduction->sources, &factor);
    else if (reduction->scalars)
      load_factor(row, &reduction->scalars[r], &factor);
    if (scaled)
      arithmetic->scale(to, &factor, n);
    if (r)
      arithmetic->combine[op](acc, to, n);
  }
  if (reduction->op == ncclAvg && !average)
    arithmetic->divide(acc, reduction->sources, n);
}

void reduce_run(const struct reduction *reduction, const void *const *src, size_t count, void *dst) {
  const struct type_row *row = &types[reduction->type];
  _Alignas(64) uint64_t acc[BLOCK], term[BLOCK];
  for (size_t offset = 0; offset < count; offset += BLOCK) {
    size_t n = count - offset < BLOCK ? count - offset : BLOCK;
    unsigned char *to = (unsigned char *)dst + offset * row->bytes;
    reduce_block(reduction, src, offset, n, acc, term);
    if (row->narrow)
      row->narrow((const float *)(const void *)acc, to, n);
    else
      memcpy(to, acc, n * row->bytes);
  }
}
