/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/number.h"

#include <math.h>
#include <string.h>

#include "tools/vnode/standins/simd.h"

struct format {
  cudaDataType type;
  const char *name;
  size_t bits;
  bool complex;
};

static const struct format formats[] = {
    {CUDA_R_64F, "f64", 64, false},     {CUDA_R_32F, "f32", 32, false},     {CUDA_R_16F, "f16", 16, false},
    {CUDA_R_16BF, "bf16", 16, false},   {CUDA_R_8F_E4M3, "e4m3", 8, false}, {CUDA_R_8F_E5M2, "e5m2", 8, false},
    {CUDA_R_4F_E2M1, "e2m1", 4, false}, {CUDA_R_8I, "i8", 8, false},        {CUDA_R_32I, "i32", 32, false},
    {CUDA_C_32F, "other", 64, true},    {CUDA_C_64F, "other", 128, true},
};

static const struct format *format_of(cudaDataType type) {
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
    if (formats[i].type == type)
      return &formats[i];
  return NULL;
}

const char *vnode_number_name(cudaDataType type) {
  const struct format *format = format_of(type);
  return format ? format->name : "other";
}

size_t vnode_number_bytes(cudaDataType type) {
  const struct format *format = format_of(type);
  return format ? format->bits / 8 : 0;
}

bool vnode_number_is_complex(cudaDataType type) {
  const struct format *format = format_of(type);
  return format && format->complex;
}

bool vnode_number_is_fp8(cudaDataType type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint16_t round_bf16(float value) {
  uint32_t bits = bits_of(value);
  uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

/* No FP32 subnormal is an operand of the arithmetic here, so a job that flushes them gets the same halves. */
static inline float widen_f16(uint16_t half) {
  const uint32_t exponent_mask = 0x7c00u << 13;
  uint32_t bits = (uint32_t)(half & 0x7fffu) << 13;
  uint32_t exponent = bits & exponent_mask;
  uint32_t normal = bits + ((127u - 15u) << 23);
  uint32_t special = normal + ((128u - 16u) << 23);
  uint32_t subnormal = bits_of(float_of(normal + (1u << 23)) - float_of(113u << 23));
  uint32_t magnitude = exponent == exponent_mask ? special : exponent == 0 ? subnormal : normal;
  return float_of(magnitude | (uint32_t)(half & 0x8000u) << 16);
}

static inline uint16_t round_f16(float value) {
  const uint32_t magic = ((127u - 15u) + (23u - 10u) + 1u) << 23; /* adding it leaves a subnormal half in the low bits */
  uint32_t sign = (bits_of(value) >> 16) & 0x8000u;
  uint32_t bits = bits_of(value) & 0x7fffffffu;
  uint32_t special = bits > 0x7f800000u ? 0x7e00u | ((bits >> 13) & 0x3ffu) : 0x7c00u;
  uint32_t small = bits < 113u << 23 ? bits : 0;
  uint32_t subnormal = bits_of(float_of(small) + float_of(magic)) - magic;
  uint32_t normal = (bits - ((127u - 15u) << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  uint32_t magnitude = bits >= (127u + 16u) << 23 ? special : bits < 113u << 23 ? subnormal : normal;
  return (uint16_t)(sign | magnitude);
}

/* 2^exponent as a constant expression, for |exponent| < 31. */
#define POWER(exponent)                                                                                                     \
  ((exponent) >= 0 ? (float)(1u << ((exponent) >= 0 ? (exponent) : 0))                                                      \
                   : 1.0f / (float)(1u << ((exponent) < 0 ? -(exponent) : 0)))
#define E4M3_EXPONENT(b) (((b) >> 3) & 15)
#define E4M3_FRACTION(b) ((float)((b)&7) / 8.0f)
#define E4M3_MAGNITUDE(b)                                                                                                   \
  (((b)&127) == 127   ? NAN                                                                                                 \
   : E4M3_EXPONENT(b) ? (1.0f + E4M3_FRACTION(b)) * POWER(E4M3_EXPONENT(b) - 7)                                             \
                      : E4M3_FRACTION(b) * POWER(-6))
#define E4M3_1(b) ((b)&128 ? -E4M3_MAGNITUDE(b) : E4M3_MAGNITUDE(b))
#define E4M3_4(b) E4M3_1(b), E4M3_1((b) + 1), E4M3_1((b) + 2), E4M3_1((b) + 3)
#define E4M3_16(b) E4M3_4(b), E4M3_4((b) + 4), E4M3_4((b) + 8), E4M3_4((b) + 12)
#define E4M3_64(b) E4M3_16(b), E4M3_16((b) + 16), E4M3_16((b) + 32), E4M3_16((b) + 48)
static const float e4m3_values[256] = {E4M3_64(0), E4M3_64(64), E4M3_64(128), E4M3_64(192)};

/* An E5M2 byte is the upper half of an FP16 number. */
static inline float widen_e5m2(uint8_t byte) {
  return widen_f16((uint16_t)(byte << 8));
}

static const float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

float vnode_number_ue8m0(uint8_t byte) {
  return byte == 0xff ? NAN : float_of(byte ? (uint32_t)byte << 23 : 0x400000);
}

float vnode_number_ue4m3(uint8_t byte) {
  return e4m3_values[byte & 0x7f];
}

/* To the grid of a format with `fraction_bits` and least normal exponent `min_exponent`, saturating at `largest`. */
static float round_to_grid(float value, int fraction_bits, int min_exponent, float largest) {
  int exponent;
  (void)frexpf(value, &exponent);
  exponent = exponent - 1 < min_exponent ? min_exponent : exponent - 1;
  float rounded = ldexpf(nearbyintf(ldexpf(value, fraction_bits - exponent)), exponent - fraction_bits);
  return rounded > largest ? largest : rounded < -largest ? -largest : rounded;
}

static uint8_t round_fp8(float value, int fraction_bits, int bias, float largest) {
  uint8_t sign = (uint8_t)(signbit(value) ? 0x80 : 0);
  if (isnan(value))
    return (uint8_t)(sign | 0x7f);
  float magnitude = fabsf(round_to_grid(isinf(value) ? copysignf(largest, value) : value, fraction_bits, 1 - bias, largest));
  int exponent;
  float fraction = frexpf(magnitude, &exponent); /* magnitude = fraction · 2^exponent, fraction in [1/2, 1) */
  int scale = 1 << fraction_bits;
  if (magnitude == 0 || exponent - 1 < 1 - bias)
    return (uint8_t)(sign | (int)ldexpf(magnitude, fraction_bits + bias - 1));
  return (uint8_t)(sign | (exponent - 1 + bias) << fraction_bits | ((int)(fraction * 2.0f * (float)scale) - scale));
}

VNODE_SIMD static void widen_bf16_array(float *restrict to, const uint16_t *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    to[i] = float_of((uint32_t)from[i] << 16);
}

VNODE_SIMD static void widen_f16_array(float *restrict to, const uint16_t *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    to[i] = widen_f16(from[i]);
}

VNODE_SIMD static void widen_i8_array(float *restrict to, const int8_t *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    to[i] = from[i];
}

VNODE_SIMD static void round_bf16_array(uint16_t *restrict to, const float *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    to[i] = round_bf16(from[i]);
}

VNODE_SIMD static void round_f16_array(uint16_t *restrict to, const float *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    to[i] = round_f16(from[i]);
}

void vnode_number_widen(float *to, const void *from, cudaDataType type, int64_t count) {
  switch ((int)type) {
  case CUDA_R_32F:
    memcpy(to, from, (size_t)count * sizeof *to);
    break;
  case CUDA_R_16BF:
    widen_bf16_array(to, from, count);
    break;
  case CUDA_R_16F:
    widen_f16_array(to, from, count);
    break;
  case CUDA_R_8I:
    widen_i8_array(to, from, count);
    break;
  case CUDA_R_8F_E4M3:
    for (int64_t i = 0; i < count; i++)
      to[i] = e4m3_values[((const uint8_t *)from)[i]];
    break;
  case CUDA_R_4F_E2M1:
    for (int64_t i = 0; i < count; i++)
      to[i] = e2m1_values[((const uint8_t *)from)[i / 2] >> (i % 2 * 4) & 15];
    break;
  case CUDA_R_8F_E5M2:
    for (int64_t i = 0; i < count; i++)
      to[i] = widen_e5m2(((const uint8_t *)from)[i]);
    break;
  default:
    for (int64_t i = 0; i < count; i++) {
      double value;
      vnode_number_load(from, type, i, &value, NULL);
      to[i] = (float)value;
    }
  }
}

void vnode_number_round(void *to, cudaDataType type, const float *from, int64_t count) {
  switch ((int)type) {
  case CUDA_R_32F:
    memcpy(to, from, (size_t)count * sizeof *from);
    break;
  case CUDA_R_16BF:
    round_bf16_array(to, from, count);
    break;
  case CUDA_R_16F:
    round_f16_array(to, from, count);
    break;
  default:
    for (int64_t i = 0; i < count; i++)
      vnode_number_store(to, type, i, (double)from[i], 0);
  }
}

void vnode_number_load(const void *from, cudaDataType type, int64_t index, double *re, double *im) {
  float narrow;
  switch ((int)type) {
  case CUDA_R_64F:
    *re = ((const double *)from)[index];
    return;
  case CUDA_R_32I:
    *re = ((const int32_t *)from)[index];
    return;
  case CUDA_R_4F_E2M1:
    *re = (double)e2m1_values[((const uint8_t *)from)[index / 2] >> (index % 2 * 4) & 15];
    return;
  case CUDA_C_32F:
    *re = (double)((const float *)from)[2 * index];
    *im = (double)((const float *)from)[2 * index + 1];
    return;
  case CUDA_C_64F:
    *re = ((const double *)from)[2 * index];
    *im = ((const double *)from)[2 * index + 1];
    return;
  default:
    vnode_number_widen(&narrow, (const char *)from + (size_t)index * vnode_number_bytes(type), type, 1);
    *re = (double)narrow;
  }
}

void vnode_number_store(void *to, cudaDataType type, int64_t index, double re, double im) {
  switch ((int)type) {
  case CUDA_R_64F:
    ((double *)to)[index] = re;
    return;
  case CUDA_R_32F:
    ((float *)to)[index] = (float)re;
    return;
  case CUDA_R_16BF:
    ((uint16_t *)to)[index] = round_bf16((float)re);
    return;
  case CUDA_R_16F:
    ((uint16_t *)to)[index] = round_f16((float)re);
    return;
  case CUDA_R_8F_E4M3:
    ((uint8_t *)to)[index] = round_fp8((float)re, 3, 7, 448.0f);
    return;
  case CUDA_R_8F_E5M2:
    ((uint8_t *)to)[index] = round_fp8((float)re, 2, 15, 57344.0f);
    return;
  case CUDA_R_32I:
    ((int32_t *)to)[index] = (int32_t)re;
    return;
  case CUDA_R_8I:
    ((int8_t *)to)[index] = (int8_t)(re > 127 ? 127 : re < -128 ? -128 : nearbyint(re));
    return;
  case CUDA_C_32F:
    ((float *)to)[2 * index] = (float)re;
    ((float *)to)[2 * index + 1] = (float)im;
    return;
  case CUDA_C_64F:
    ((double *)to)[2 * index] = re;
    ((double *)to)[2 * index + 1] = im;
    return;
  default:
    return;
  }
}
