/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

const ncclDataType_t all_types[ncclNumTypes] = {ncclInt8,    ncclUint8,    ncclInt32,      ncclUint32,
                                                ncclInt64,   ncclUint64,   ncclFloat16,    ncclFloat32,
                                                ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};

struct format {
  size_t bytes;
  int exponent, mantissa; /* floats narrower than FP32 */
  double largest;         /* finite value */
  bool saturates;
  bool is_signed, is_integer;
};

#define INTEGER(width, sign)                                                                                                \
  { .bytes = width, .is_integer = true, .is_signed = sign }
#define NARROW(width, e, m, top, saturating)                                                                                \
  { .bytes = width, .exponent = e, .mantissa = m, .largest = top, .saturates = saturating }
static const struct format formats[ncclNumTypes] = {
    [ncclInt8] = INTEGER(1, true),
    [ncclUint8] = INTEGER(1, false),
    [ncclInt32] = INTEGER(4, true),
    [ncclUint32] = INTEGER(4, false),
    [ncclInt64] = INTEGER(8, true),
    [ncclUint64] = INTEGER(8, false),
    [ncclFloat16] = NARROW(2, 5, 10, 65504.0, false),
    [ncclFloat32] = {.bytes = 4},
    [ncclFloat64] = {.bytes = 8},
    [ncclBfloat16] = NARROW(2, 8, 7, 0x1.fep127, false),
    [ncclFloat8e4m3] = NARROW(1, 4, 3, 448.0, true),
    [ncclFloat8e5m2] = NARROW(1, 5, 2, 57344.0, true),
};

size_t type_bytes(ncclDataType_t type) {
  return formats[type].bytes;
}

/* Code of `value` in a narrow float, rounded to nearest even. */
static uint64_t encode(const struct format *format, double value) {
  int bias = (1 << (format->exponent - 1)) - 1, mantissa = format->mantissa;
  uint64_t sign = signbit(value) ? 1ull << (format->exponent + mantissa) : 0;
  double absolute = fabs(value);
  if (isnan(value))
    return sign | ((1ull << (format->exponent + mantissa)) - 1);
  int power;
  frexp(absolute, &power); /* absolute = f · 2^power, 0.5 ≤ f < 1 */
  int step = power - 1 < 1 - bias ? 1 - bias - mantissa : power - 1 - mantissa;
  double rounded = absolute == 0 ? 0 : ldexp(nearbyint(ldexp(absolute, -step)), step);
  if (rounded > format->largest) {
    if (!format->saturates)
      return sign | ((1ull << format->exponent) - 1) << mantissa;
    rounded = format->largest;
  }
  if (rounded == 0)
    return sign;
  frexp(rounded, &power);
  if (power - 1 < 1 - bias)
    return sign | (uint64_t)ldexp(rounded, bias - 1 + mantissa);
  return sign | (((uint64_t)(power - 1 + bias) << mantissa) +
                 ((uint64_t)ldexp(rounded, mantissa - power + 1) - (1ull << mantissa)));
}

static double decode(const struct format *format, uint64_t code) {
  int bias = (1 << (format->exponent - 1)) - 1, mantissa = format->mantissa;
  uint64_t exponent = code >> mantissa & ((1ull << format->exponent) - 1), digits = code & ((1ull << mantissa) - 1);
  double sign = code >> (format->exponent + mantissa) & 1 ? -1 : 1;
  if (exponent == 0)
    return sign * ldexp((double)digits, 1 - bias - mantissa);
  return sign * ldexp((double)(digits + (1ull << mantissa)), (int)exponent - bias - mantissa);
}

static double load(ncclDataType_t type, const void *from) {
  uint64_t code = 0;
  float single;
  double result;
  memcpy(&code, from, formats[type].bytes);
  if (type == ncclFloat32) {
    memcpy(&single, from, sizeof single);
    return single;
  }
  if (type == ncclFloat64) {
    memcpy(&result, from, sizeof result);
    return result;
  }
  return decode(&formats[type], code);
}

static void store(ncclDataType_t type, double value, void *to) {
  float single = (float)value;
  uint64_t code;
  if (type == ncclFloat32)
    memcpy(to, &single, sizeof single);
  else if (type == ncclFloat64)
    memcpy(to, &value, sizeof value);
  else {
    code = encode(&formats[type], value);
    memcpy(to, &code, formats[type].bytes);
  }
}

static int64_t integer_at(ncclDataType_t type, const void *from) {
  uint64_t value = 0;
  size_t bytes = formats[type].bytes;
  memcpy(&value, from, bytes);
  if (formats[type].is_signed && bytes < 8 && value >> (8 * bytes - 1))
    value |= ~0ull << (8 * bytes);
  return (int64_t)value;
}

static uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

static void fill_one(ncclDataType_t type, unsigned seed, int rank, size_t index, void *to) {
  const struct format *format = &formats[type];
  uint32_t random = mix((uint32_t)index * 31u + (uint32_t)rank * 977u + seed * 7919u);
  int64_t integer = (int64_t)(random % 37) - (format->is_integer && !format->is_signed ? 0 : 18);
  if (format->is_integer)
    memcpy(to, &integer, format->bytes);
  else
    store(type, (double)integer * (random >> 8 & 1 ? 0.3 : 1.0) + (double)(random >> 20) * 1e-4, to);
}

void fill(ncclDataType_t type, unsigned seed, int rank, size_t count, void *out) {
  for (size_t i = 0; i < count; i++)
    fill_one(type, seed, rank, i, (unsigned char *)out + i * formats[type].bytes);
}

void factor_of(ncclDataType_t type, int rank, void *out) {
  int64_t integer = rank + 2;
  if (formats[type].is_integer)
    memcpy(out, &integer, formats[type].bytes);
  else
    store(type, 0.3 + 0.25 * rank, out);
}

static uint64_t reduce_integers(ncclDataType_t type, enum reference_op op, const unsigned char (*x)[8], int nranks) {
  uint64_t acc = 0, factor = 0;
  for (int r = 0; r < nranks; r++) {
    int64_t value = integer_at(type, x[r]);
    if (op == REF_PREMUL) {
      factor_of(type, r, &factor);
      value = (int64_t)((uint64_t)value * (uint64_t)integer_at(type, &factor));
    }
    int64_t held = integer_at(type, &acc);
    bool bigger = formats[type].is_signed ? value > held : (uint64_t)value > (uint64_t)held;
    if (r == 0)
      acc = (uint64_t)value;
    else if (op == REF_PROD)
      acc *= (uint64_t)value;
    else if (op == REF_MAX)
      acc = bigger ? (uint64_t)value : acc;
    else if (op == REF_MIN)
      acc = bigger ? acc : (uint64_t)value;
    else
      acc += (uint64_t)value;
  }
  if (op != REF_AVG)
    return acc;
  int64_t sum = integer_at(type, &acc);
  return formats[type].is_signed ? (uint64_t)(sum / nranks) : (uint64_t)sum / (uint64_t)nranks;
}

/* FP64 in doubles; everything else in FP32, each step rounded. */
static double step_of(ncclDataType_t type, double value) {
  return type == ncclFloat64 ? value : (double)(float)value;
}

static double reduce_floats(ncclDataType_t type, enum reference_op op, const unsigned char (*x)[8], int nranks) {
  double acc = 0;
  uint64_t scalar = 0;
  for (int r = 0; r < nranks; r++) {
    double value = load(type, x[r]);
    if (op == REF_AVG)
      store(type, type == ncclFloat64 ? 1.0 / nranks : (double)(float)(1.0 / nranks), &scalar);
    if (op == REF_PREMUL)
      factor_of(type, r, &scalar);
    if (op == REF_AVG || op == REF_PREMUL)
      value = step_of(type, value * load(type, &scalar));
    if (r == 0)
      acc = value;
    else if (op == REF_PROD)
      acc = step_of(type, acc * value);
    else if (op == REF_MAX)
      acc = value > acc ? value : acc;
    else if (op == REF_MIN)
      acc = value < acc ? value : acc;
    else
      acc = step_of(type, acc + value);
  }
  return acc;
}

void reference(ncclDataType_t type, enum reference_op op, unsigned seed, int nranks, size_t from, size_t count, void *out) {
  size_t bytes = formats[type].bytes;
  for (size_t i = 0; i < count; i++) {
    unsigned char x[8][8] = {{0}}, *to = (unsigned char *)out + i * bytes;
    for (int r = 0; r < nranks; r++)
      fill_one(type, seed, r, from + i, x[r]);
    if (formats[type].is_integer) {
      uint64_t value = reduce_integers(type, op, (const unsigned char(*)[8])x, nranks);
      memcpy(to, &value, bytes);
    } else {
      store(type, reduce_floats(type, op, (const unsigned char(*)[8])x, nranks), to);
    }
  }
}
