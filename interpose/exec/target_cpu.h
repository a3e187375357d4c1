/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of target_gpu.cuh for the executor: a phase is a loop over the block's threads, which the compiler may
 * vectorise, shared memory a variable of the block, and every access of "device" memory is counted.
 */
#ifndef B200_EXEC_TARGET_CPU_H
#define B200_EXEC_TARGET_CPU_H

#include <string.h>

#include "interpose/exec/cpu.h"

/* Everything inlined is what becomes vector code; with a sanitizer's checks in it, compiling would take minutes. */
#ifdef B200_CPU_SANITIZED
#define B200_METHOD inline
#else
#define B200_METHOD inline __attribute__((always_inline))
#endif
#define B200_FUNCTION static B200_METHOD
#define B200_ENTRY(name, arguments, body)                                                                                   \
  static void name(block &here, const void *args) {                                                                         \
    (body)(here, *static_cast<const arguments *>(args));                                                                    \
  }
#define B200_SHARED
#define B200_THREADS(t) for (unsigned t = 0; t < B200_KERNEL_THREADS; t++)
#define B200_SYNC() ((void)0)

template <class T> struct per_thread {
  T value[B200_KERNEL_THREADS];
  B200_METHOD T &operator[](unsigned t) {
    return value[t];
  }
};

struct block {
  uint32_t index, count;
  b200_cpu_traffic *traffic;
};

struct alignas(16) chunk {
  uint32_t word[4];
};

B200_FUNCTION chunk load_chunk(block &block, const void *address) {
  block.traffic->loaded += sizeof(chunk);
  block.traffic->wide_loads++;
  chunk c;
  memcpy(&c, address, sizeof c);
  return c;
}

template <class T> B200_FUNCTION T load_one(block &block, const T *address) {
  block.traffic->loaded += sizeof(T);
  block.traffic->narrow_loads++;
  T value;
  memcpy(&value, address, sizeof value);
  return value;
}

B200_FUNCTION void store_chunk(block &block, void *address, const chunk &c) {
  block.traffic->stored += sizeof c;
  memcpy(address, &c, sizeof c);
}

B200_FUNCTION float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

B200_FUNCTION uint32_t as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

B200_FUNCTION void hide(const void *&) {}

/* Exact for all 65,536: a product with a power of two moves the exponent, also of subnormals; Inf and NaN get theirs. */
B200_FUNCTION float half_as_float(uint32_t bits) {
  uint32_t magnitude = bits & 0x7fff;
  uint32_t special = magnitude >= 0x7c00 ? 0x7f800000u : 0;
  return as_float(as_bits(as_float(magnitude << 13) * 0x1p112f) | special | (bits & 0x8000) << 16);
}

B200_FUNCTION uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

B200_FUNCTION uint32_t larger_halves(uint32_t a, uint32_t b) {
  return larger(a & 0xffff, b & 0xffff) | larger(a & 0xffff0000u, b & 0xffff0000u);
}

/*
 * One value to FP8, without a branch so that loops over it become vector code. The magnitude, clamped to the largest finite
 * value, is added to a power of two so large that the sum's last place is the format's last place at this magnitude (at
 * least that of the smallest normal): the addition rounds to nearest even, and the sum's low bits count units of that place.
 * Proved equal to cuda_fp8.h's conversion for all 2^32 inputs by tests/exec.
 */
template <b200_narrow N> B200_FUNCTION uint32_t narrow1(float value) {
  constexpr int mantissa = N == B200_NARROW_E4M3 ? 3 : 2;
  constexpr uint32_t smallest_normal = (N == B200_NARROW_E4M3 ? 127u - 6 : 127u - 14) << 23;
  constexpr int32_t largest = N == B200_NARROW_E4M3 ? 0x43e00000 : 0x47600000;
  uint32_t bits = as_bits(value);
  int32_t magnitude = (int32_t)(bits & 0x7fffffff); /* signed: what SSE2 can compare */
  int32_t clamped = !B200_BROKEN(SATURATION) && magnitude > largest ? largest : magnitude;
  int32_t exponent = clamped & 0x7f800000;
  exponent = exponent > (int32_t)smallest_normal ? exponent : (int32_t)smallest_normal;
  int32_t unit = exponent + ((23 - mantissa) << 23);
  int32_t rounded = (int32_t)as_bits(as_float((uint32_t)clamped) + as_float((uint32_t)unit));
  int32_t code = rounded - unit + ((exponent - (int32_t)smallest_normal) >> (23 - mantissa));
  code = B200_BROKEN(SATURATION) && code > 0x7e ? 0x7f : code;
  return magnitude > 0x7f800000 ? 0x7f : (uint32_t)code | (bits >> 24 & 0x80);
}

template <b200_narrow N> B200_FUNCTION uint32_t narrow4(float a, float b, float c, float d) {
  return narrow1<N>(a) | narrow1<N>(b) << 8 | narrow1<N>(c) << 16 | narrow1<N>(d) << 24;
}

#define B200_NEIGHBOUR(kept, t) ((kept)[(t) ^ 1])

B200_FUNCTION void shared_larger(uint32_t *target, uint32_t value) {
  *target = larger(*target, value);
}

B200_FUNCTION void shared_add(uint32_t *target, uint32_t value) {
  *target += value;
}

B200_FUNCTION void global_add(unsigned long long *target, unsigned long long value) {
  __atomic_fetch_add(target, value, __ATOMIC_RELAXED);
}

B200_FUNCTION void global_add(double *target, double value) {
  double seen, sum;
  __atomic_load(target, &seen, __ATOMIC_RELAXED);
  do
    sum = seen + value;
  while (!__atomic_compare_exchange(target, &seen, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

B200_FUNCTION bool global_larger_last(uint32_t *peak, uint32_t *done, uint32_t value, uint32_t count, uint32_t *result) {
  *peak = larger(*peak, value); /* a slot belongs to one launch at a time, and its blocks to one thread */
  if (++*done != count)
    return false;
  *result = *peak;
  *peak = *done = 0;
  return true;
}

#endif
