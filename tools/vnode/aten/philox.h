/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox4x32-10 as cuRAND's device API runs it in PyTorch's kernels, and its conversions to uniform and normal numbers.
 *
 * A CUDA thread calls curand_init(seed, subsequence = its global index, offset) and draws groups of four 32-bit words.
 * Key = seed; counter = (offset / 4 + group, subsequence), 64 bits each. PyTorch's offsets are multiples of 4, so a group is
 * one block of the cipher. Reference: Salmon et al., SC'11; curand_philox4x32_x.h, curand_uniform.h, curand_normal.h of
 * CUDA 13.
 */
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace vnode_aten {

using Words = std::array<uint32_t, 4>;

inline Words philox(uint64_t seed, uint64_t subsequence, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  Words c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(subsequence),
             static_cast<uint32_t>(subsequence >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

/* (0, 1]. Exact: the product is by a power of two, so fused and separate rounding agree. */
inline float uniform(uint32_t x) {
  return static_cast<float>(x) * 0x1p-32f + 0x1p-33f;
}

inline double uniform(uint32_t x, uint32_t y) {
  const uint64_t z = x ^ (static_cast<uint64_t>(y) << 21);
  return static_cast<double>(z) * 0x1p-53 + 0x1p-54;
}

/* Two normal numbers of a Box-Muller pair, sine first. The GPU computes the single-precision ones with its fast __sincosf:
   those differ from these in the last bits. */
inline std::array<float, 2> normal(uint32_t x, uint32_t y) {
  constexpr float kTurn = 2.3283064e-10f * 6.2831855f;
  const float radius = std::sqrt(-2.0f * std::log(uniform(x))), angle = std::fma(static_cast<float>(y), kTurn, kTurn / 2);
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

inline std::array<double, 2> normal(const Words &w) {
  const uint64_t z = w[2] ^ (static_cast<uint64_t>(w[3]) << 21);
  const double radius = std::sqrt(-2.0 * std::log(uniform(w[0], w[1])));
  const double angle = (static_cast<double>(z) * 0x1p-52 + 0x1p-53) * 3.14159265358979323846;
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

} // namespace vnode_aten
