/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that make FP8 and MXFP8 operands of BF16, FP16 and FP32 matrices, and the arguments that they take. One
 * source, quant.cu, is compiled by nvcc for the GPU and by g++ for the executor of exec/cpu.h (tests, the virtual node).
 *
 * A matrix operand is seen as `outer` × k: `outer` is the GEMM's free dimension (M of A, N of B), k the contracted one. In
 * memory one of the two is contiguous:
 *   B200_K_FAST   element (o, i) at src[o · ld + i]   (A with op T, B with op N)
 *   B200_K_SLOW   element (o, i) at src[i · ld + o]   (A with op N, B with op T)
 * The quantised operand is either K-fast or K-slow, too: where it differs from the source, the kernel transposes.
 *
 * Every kernel takes one struct by value as its only parameter, so that a launch is the same for the driver and for the
 * executor. Any size from 1, any ld, any element-aligned source address; destination addresses are multiples of 16 bytes and
 * the destination's leading dimension is a multiple of 16. A destination line is written up to the next multiple of 16 bytes
 * after its width (zeros there), and not beyond.
 *
 * Rules of the conversion (facts are pinned by tests/exec/vectors.json): round to nearest even, saturating for finite
 * values; Inf and NaN come out as NaN. Per-tensor: scale = 448/amax (E5M2: 57344/amax) in FP32 division, 1 for amax = 0, at
 * most 2^126, NaN for a non-finite amax; q = cast(x · scale). MXFP8: blocks of 32 along k, E8M0 by `rounding`, 0xff for a
 * block with Inf or NaN, 0 for a zero block; q = cast(x · 2^(127 − e)). Subnormals are kept everywhere.
 */
#ifndef B200_EXEC_QUANT_H
#define B200_EXEC_QUANT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum b200_source { B200_SOURCE_BF16, B200_SOURCE_F16, B200_SOURCE_F32, B200_SOURCE_COUNT };
enum b200_narrow { B200_NARROW_E4M3, B200_NARROW_E5M2, B200_NARROW_COUNT };
enum b200_major { B200_K_FAST, B200_K_SLOW };
enum b200_mx_rounding { B200_MX_RCEIL, B200_MX_FLOOR, B200_MX_EVEN };

/* What is watched while quantising, one slot per shape and role, in device memory; kernels add to it atomically, and only
   when `guard` is not NULL (sampled calls). 64 bytes. */
struct b200_guard_counters {
  unsigned long long blocks;     /* non-zero 1×32 blocks along k looked at */
  unsigned long long starved;    /* of those: amax·scale < 2^-4 (E4M3), < 2^-12 (E5M2); per-tensor only */
  unsigned long long nonfinite;  /* elements that are Inf or NaN */
  unsigned long long underflown; /* non-zero elements that became zero */
  unsigned long long saturated;  /* finite elements that rounding alone would have taken beyond the largest */
  unsigned long long elements;   /* looked at */
  unsigned long long zero[2];
};

/* Per-tensor state of one operand, 16 bytes of device memory: written by the kernels, read by cuBLASLt (inverse).
   amax_bits and done are zero before b200_amax, and zero again after it: memory that was zeroed once and is used for nothing
   else needs no further memset; launches that use one slot follow each other in stream order. */
struct b200_tensor_scale {
  uint32_t amax_bits; /* while b200_amax runs: the largest |x| so far, as its bits without the sign, in the source's type */
  uint32_t done;      /* while b200_amax runs: blocks that have finished; the last one computes scale and inverse */
  float scale;        /* q = cast(x · scale) */
  float inverse;      /* 1/scale, RN: what the GEMM gets */
};

struct b200_operand {
  const void *src;
  int64_t ld;    /* elements */
  int64_t outer; /* rows, see above */
  int64_t k;
  uint8_t type, major; /* enum b200_source, enum b200_major of the source */
  uint8_t zero[6];
};

/* Kernel b200_amax: largest magnitude of an operand, then its scale. */
struct b200_amax_args {
  struct b200_operand in;
  struct b200_tensor_scale *scale;
  float fp_max; /* 448 or 57344 */
  uint32_t zero;
};

/* Kernels b200_cast (destination major = source major) and b200_cast_transpose (K-slow source, K-fast destination):
   per-tensor FP8. */
struct b200_cast_args {
  struct b200_operand in;
  void *dst;
  int64_t dst_ld; /* bytes; ≥ the destination's fast dimension rounded up to 16 */
  const struct b200_tensor_scale *scale;
  struct b200_guard_counters *guard;
  uint8_t narrow; /* enum b200_narrow */
  uint8_t zero[7];
};

/* Kernel b200_mx: MXFP8 in one pass; the destination has the major of the source. */
struct b200_mx_args {
  struct b200_operand in;
  void *dst;
  int64_t dst_ld;
  uint8_t *scales; /* 128×4 tiles of 512 bytes, see b200_scale_offset; padding is written as zero on every call */
  struct b200_guard_counters *guard;
  uint8_t narrow, rounding;
  uint8_t zero[6];
};

/* Kernel b200_error: Σ(D − R)² and ΣR² of two m×n column-major matrices of one type, into two doubles that were zeroed. */
struct b200_error_args {
  const void *d, *reference;
  int64_t m, n, ldd, ldr;
  double *sums; /* [0] Σ(D−R)², [1] ΣR²; atomically added */
  uint8_t type;
  uint8_t zero[7];
};

/* Offset of the scale of row `outer`, block `block` (k/32) in the tiled layout that cuBLASLt reads (VEC32_UE8M0). */
static inline int64_t b200_scale_offset(int64_t outer, int64_t block, int64_t k_blocks_padded) {
  return ((outer / 128) * (k_blocks_padded / 4) + block / 4) * 512 + (outer % 32) * 16 + ((outer % 128) / 32) * 4 +
         block % 4;
}
static inline int64_t b200_scale_blocks(int64_t k) {
  return ((k + 31) / 32 + 3) / 4 * 4;
}
static inline int64_t b200_scale_bytes(int64_t outer, int64_t k) {
  return (outer + 127) / 128 * 128 * b200_scale_blocks(k);
}

/*
 * Every kernel entry, from kernels.def: its name in the fatbin, the bytes of its argument struct, threads of a block.
 * No dynamic shared memory.
 */
#define B200_KERNEL_THREADS 256
#define B200_TILE 128 /* a block works on tiles of 128 × 128 elements */
enum b200_kernel {
#define B200_KERNEL(operation, type, form, id, name, args) B200_KERNEL_##id,
#include "interpose/exec/kernels.def"
#undef B200_KERNEL
  B200_KERNEL_COUNT
};
struct b200_kernel_info {
  const char *name;
  uint32_t args_bytes, threads;
};
extern const struct b200_kernel_info b200_kernels[B200_KERNEL_COUNT];

/* Blocks for a launch of `kernel` with `args` on a GPU of `sms` multiprocessors. */
uint32_t b200_kernel_blocks(enum b200_kernel kernel, const void *args, int sms);

/* The entry for an operation; B200_KERNEL_COUNT where there is none (a K-fast source is never transposed). */
enum b200_kernel b200_kernel_amax(enum b200_source type);
enum b200_kernel b200_kernel_cast(enum b200_source type, enum b200_major from, enum b200_major to);
enum b200_kernel b200_kernel_mx(enum b200_source type, enum b200_major major);
enum b200_kernel b200_kernel_error(enum b200_source type);

/* Device memory that a launch touches: `rows` runs of `row_bytes`, `pitch` bytes apart. Guard counters are left out: they
   are added to atomically and read by nobody but the host. */
struct b200_range {
  const void *start;
  int64_t rows, row_bytes, pitch;
  uint32_t write; /* 1: written (and perhaps read), 0: read only */
  uint32_t zero;
};
#define B200_RANGES_MAX 4
/* Fills out[0 … result − 1]; result ≤ B200_RANGES_MAX. */
int b200_kernel_accesses(enum b200_kernel kernel, const void *args, struct b200_range out[B200_RANGES_MAX]);

/* The entry of that name; B200_KERNEL_COUNT if there is none. */
enum b200_kernel b200_kernel_find(const char *name);

/* The image for the driver (cuModuleLoadData); made by the build, absent (size 0) without nvcc. */
extern const unsigned char b200_fatbin[];
extern const size_t b200_fatbin_bytes;

#ifdef __cplusplus
}
#endif
#endif
