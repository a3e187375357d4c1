/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What quant.cu needs of the machine that it runs on, as CUDA has it; target_cpu.h has the same names for the executor.
 *
 * A kernel is a sequence of phases: B200_THREADS(t) { … } is done by every thread of the block, B200_SYNC() lies between
 * phases that hand something over through B200_SHARED memory. What a thread keeps from one phase to the next is a
 * per_thread<T>, indexed by t.
 */
#ifndef B200_EXEC_TARGET_GPU_CUH
#define B200_EXEC_TARGET_GPU_CUH

#include <cuda_fp8.h>

#define B200_FUNCTION static __device__ __forceinline__
#define B200_METHOD __device__ __forceinline__
#define B200_ENTRY(name, arguments, body)                                                                                   \
  extern "C" __global__ void __launch_bounds__(B200_KERNEL_THREADS) name(const __grid_constant__ arguments args) {          \
    block here;                                                                                                             \
    (body)(here, args);                                                                                                     \
  }
#define B200_SHARED __shared__
#define B200_THREADS(t) for (unsigned t = threadIdx.x, once_ = 1; once_; once_ = 0)
#define B200_SYNC() __syncthreads()

template <class T> struct per_thread {
  T value;
  B200_METHOD T &operator[](unsigned) {
    return value;
  }
};

struct block {
  uint32_t index, count;
  B200_METHOD block() : index(blockIdx.x), count(gridDim.x) {}
};

struct alignas(16) chunk {
  uint32_t word[4];
};

B200_FUNCTION chunk load_chunk(block &, const void *address) {
  uint4 v = __ldg(static_cast<const uint4 *>(address));
  return {{v.x, v.y, v.z, v.w}};
}

template <class T> B200_FUNCTION T load_one(block &, const T *address) {
  return __ldg(address);
}

B200_FUNCTION void store_chunk(block &, void *address, const chunk &c) {
  *static_cast<uint4 *>(address) = make_uint4(c.word[0], c.word[1], c.word[2], c.word[3]);
}

B200_FUNCTION float as_float(uint32_t bits) {
  return __uint_as_float(bits);
}

B200_FUNCTION uint32_t as_bits(float value) {
  return __float_as_uint(value);
}

/* Lets the compiler forget what it knows of a pointer, and of what it loaded from there. */
B200_FUNCTION void hide(const void *&pointer) {
  asm volatile("" : "+l"(pointer));
}

B200_FUNCTION float half_as_float(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

B200_FUNCTION uint32_t larger(uint32_t a, uint32_t b) {
  return max(a, b);
}

/* Both halves of a word on their own. */
B200_FUNCTION uint32_t larger_halves(uint32_t a, uint32_t b) {
  return __vmaxu2(a, b);
}

/* Four bytes, the first in the lowest place: nearest even, saturating, NaN as 0x7f. */
template <b200_narrow N> B200_FUNCTION uint32_t narrow4(float a, float b, float c, float d) {
  constexpr __nv_fp8_interpretation_t kind = N == B200_NARROW_E4M3 ? __NV_E4M3 : __NV_E5M2;
  uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kind);
  uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kind);
  return low | high << 16;
}

/* What thread t ^ 1 keeps; every thread of the block asks. */
#define B200_NEIGHBOUR(kept, t) __shfl_xor_sync(~0u, (kept)[t], 1)

/* Into shared memory, by every thread of the block. */
B200_FUNCTION void shared_larger(uint32_t *target, uint32_t value) {
  value = __reduce_max_sync(~0u, value);
  if (threadIdx.x % 32 == 0)
    atomicMax(target, value);
}

B200_FUNCTION void shared_add(uint32_t *target, uint32_t value) {
  value = __reduce_add_sync(~0u, value);
  if (threadIdx.x % 32 == 0)
    atomicAdd(target, value);
}

/* Into global memory, by one thread. */
B200_FUNCTION void global_add(unsigned long long *target, unsigned long long value) {
  atomicAdd(target, value);
}

B200_FUNCTION void global_add(double *target, double value) {
  atomicAdd(target, value);
}

/* Adds a block's share to *peak and says whether it was the last of `count` blocks; then *result is the peak of all, and
   both words are zero again. */
B200_FUNCTION bool global_larger_last(uint32_t *peak, uint32_t *done, uint32_t value, uint32_t count, uint32_t *result) {
  atomicMax(peak, value);
  __threadfence();
  if (atomicAdd(done, 1u) != count - 1)
    return false;
  __threadfence();
  *result = atomicExch(peak, 0u);
  atomicExch(done, 0u);
  return true;
}

#endif
