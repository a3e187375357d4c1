/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_kernels    the quantisation kernels in the executor, on one core: source bytes per second of CPU time, and
 * what they moved over what they must move. The copy of the same bytes by memcpy stands beside as this machine's measure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interpose/exec/cpu.h"

enum { LINES = 1024, WIDTH = 1024, ELEMENTS = LINES * WIDTH };

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *memory(size_t bytes) {
  void *out = aligned_alloc(64, bytes);
  if (!out) {
    fprintf(stderr, "bench_kernels: no memory\n");
    exit(1);
  }
  memset(out, 0, bytes);
  return out;
}

/* Numbers of magnitude 2^-3 to 1 in any of the source types: the exponent's field is what differs. */
static void fill(void *at, enum b200_source type) {
  uint32_t state = 1;
  for (size_t i = 0; i < ELEMENTS; i++) {
    state = state * 1664525u + 1013904223u;
    uint32_t sign = state >> 31, exponent = state >> 29 & 3, fraction = state >> 6;
    if (type == B200_SOURCE_F32)
      ((uint32_t *)at)[i] = sign << 31 | (124 + exponent) << 23 | (fraction & 0x7fffff);
    else if (type == B200_SOURCE_BF16)
      ((uint16_t *)at)[i] = (uint16_t)(sign << 15 | (124 + exponent) << 7 | (fraction & 0x7f));
    else
      ((uint16_t *)at)[i] = (uint16_t)(sign << 15 | (12 + exponent) << 10 | (fraction & 0x3ff));
  }
}

struct job {
  enum b200_kernel kernel;
  const void *args;
  double source_bytes, compulsory_bytes;
};

static void measure(const struct job *job) {
  struct b200_cpu_traffic traffic = {0};
  uint32_t blocks = b200_kernel_blocks(job->kernel, job->args, 148);
  double start = cpu_seconds(), spent;
  int runs = 0;
  do {
    b200_cpu_run(job->kernel, job->args, blocks, &traffic);
    runs++;
    spent = cpu_seconds() - start;
  } while (spent < 0.2);
  printf("%-26s %6.2f GB/s  moved / compulsory %.4f\n", b200_kernels[job->kernel].name,
         job->source_bytes * runs / spent / 1e9, (double)(traffic.loaded + traffic.stored) / runs / job->compulsory_bytes);
}

int main(void) {
  uint8_t *source = memory(4 * ELEMENTS), *other = memory(4 * ELEMENTS), *dst = memory(ELEMENTS),
          *scales = memory(ELEMENTS / 32);
  struct b200_tensor_scale scale = {0};
  double sums[2] = {0};
  for (int t = 0; t < B200_SOURCE_COUNT; t++) {
    enum b200_source type = (enum b200_source)t;
    double bytes = (type == B200_SOURCE_F32 ? 4.0 : 2.0) * ELEMENTS;
    fill(source, type);
    for (int m = B200_K_FAST; m <= B200_K_SLOW; m++) {
      enum b200_major major = (enum b200_major)m;
      struct b200_operand in = {
          .src = source, .ld = WIDTH, .outer = LINES, .k = WIDTH, .type = (uint8_t)type, .major = (uint8_t)major};
      struct b200_amax_args amax = {.in = in, .scale = &scale, .fp_max = 448};
      struct b200_cast_args cast = {.in = in, .dst = dst, .dst_ld = WIDTH, .scale = &scale};
      struct b200_mx_args mx = {.in = in, .dst = dst, .dst_ld = WIDTH, .scales = scales};
      if (major == B200_K_FAST)
        measure(&(struct job){b200_kernel_amax(type), &amax, bytes, bytes});
      measure(&(struct job){b200_kernel_cast(type, major, major), &cast, bytes, bytes + ELEMENTS});
      if (major == B200_K_SLOW)
        measure(&(struct job){b200_kernel_cast(type, B200_K_SLOW, B200_K_FAST), &cast, bytes, bytes + ELEMENTS});
      measure(&(struct job){b200_kernel_mx(type, major), &mx, bytes, bytes + ELEMENTS + ELEMENTS / 32.0});
    }
    struct b200_error_args error = {.d = source,
                                    .reference = other,
                                    .m = LINES,
                                    .n = WIDTH,
                                    .ldd = LINES,
                                    .ldr = LINES,
                                    .sums = sums,
                                    .type = (uint8_t)type};
    measure(&(struct job){b200_kernel_error(type), &error, 2 * bytes, 2 * bytes});
  }
  double start = cpu_seconds(), spent;
  int runs = 0;
  do {
    memcpy(other, source, 4 * ELEMENTS);
    __asm__ volatile("" : : "r"(other) : "memory");
    runs++;
    spent = cpu_seconds() - start;
  } while (spent < 0.2);
  printf("%-26s %6.2f GB/s\n", "memcpy", 4.0 * ELEMENTS * runs / spent / 1e9);
  return 0;
}
