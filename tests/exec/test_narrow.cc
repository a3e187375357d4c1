// SPDX-License-Identifier: Apache-2.0
// usage: test_narrow STRIDE    the executor's FP8 conversion against cuda_fp8.h's, for every STRIDE-th of all 2^32 FP32
// numbers and for the products of all BF16 and FP16 numbers with some scales.
#include <stdio.h>
#include <stdlib.h>

#include <cuda_fp8.h>

#include "interpose/exec/cpu.cc"

static uint64_t wrong;

template <b200_narrow N> static void check(float x) {
  constexpr __nv_fp8_interpretation_t kind = N == B200_NARROW_E4M3 ? __NV_E4M3 : __NV_E5M2;
  uint32_t ours = narrow1<N>(x), theirs = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
  if (ours != theirs && wrong++ < 10)
    fprintf(stderr, "test_narrow: %a (%08x), %s: %02x, not %02x\n", (double)x, as_bits(x),
            N == B200_NARROW_E4M3 ? "e4m3" : "e5m2", ours, theirs);
}

static void check_both(float x) {
  check<B200_NARROW_E4M3>(x);
  check<B200_NARROW_E5M2>(x);
}

int main(int argc, char **argv) {
  uint64_t stride = argc == 2 ? strtoull(argv[1], nullptr, 10) : 0, count = 0;
  if (stride == 0) {
    fprintf(stderr, "usage: test_narrow STRIDE\n");
    return 2;
  }
  for (uint64_t bits = 0; bits <= UINT32_MAX; bits += stride, count++)
    check_both(as_float((uint32_t)bits));
  static const float scales[] = {1, 448, 0.0031415926f, 1.7e5f, 0x1p100f, 0x1p-100f, 0x1p126f};
  for (uint32_t bits = 0; bits < 65536; bits++)
    for (float scale : scales) {
      check_both(bf16::to_float(bits) * scale);
      check_both(f16::to_float(bits) * scale);
      count += 2;
    }
  // The executor's own FP16 to FP32, against the header's.
  for (uint32_t bits = 0; bits < 65536; bits++) {
    float ours = half_as_float(bits), theirs = __half2float(__ushort_as_half((unsigned short)bits));
    if (as_bits(ours) != as_bits(theirs) && !(ours != ours && theirs != theirs) && wrong++ < 10)
      fprintf(stderr, "test_narrow: half %04x: %a, not %a\n", bits, (double)ours, (double)theirs);
  }
  printf("%llu numbers, %llu wrong\n", (unsigned long long)count, (unsigned long long)wrong);
  return wrong != 0;
}
