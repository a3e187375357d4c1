/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/selftest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "interpose/exec/arena.h"
#include "interpose/exec/convert.h"
#include "interpose/runtime.h"

/* More than one tile of scales in each direction (128 rows by 128 of k), with partial ones at the ends. */
enum { M = B200_SELFTEST_M, N = B200_SELFTEST_N, K = B200_SELFTEST_K };

/* Relative Frobenius errors of a format's product on independent random data are 0.034 (E4M3 · E4M3) and 0.053 (E4M3 ·
   E5M2); a relative error of 0.045 is a cosine of 0.999. */
static const double BOUND_E4M3 = 0.045, BOUND_E5M2 = 0.07;

static const struct trial {
  uint8_t format;
  char ta, tb;
  uint8_t b; /* element type; A is E4M3 */
} trials[] = {
    {B200_FORMAT_FP8, 'T', 'N', B200_ELEMENT_E4M3},   {B200_FORMAT_FP8, 'N', 'N', B200_ELEMENT_E5M2},
    {B200_FORMAT_FP8, 'N', 'T', B200_ELEMENT_E5M2},   {B200_FORMAT_MXFP8, 'T', 'N', B200_ELEMENT_E4M3},
    {B200_FORMAT_MXFP8, 'N', 'N', B200_ELEMENT_E4M3}, {B200_FORMAT_MXFP8, 'N', 'T', B200_ELEMENT_E4M3},
};
enum { TRIALS = sizeof trials / sizeof *trials };

/* What lies where in the test's own memory, on the device and, pinned, on the host. */
struct memory {
  double sums[TRIALS][2];
  float d[M * N], reference[M * N];
  uint16_t a[TRIALS][M * K], b[TRIALS][N * K]; /* BF16 */
};

struct test {
  const struct b200_vendor *vendor;
  struct b200_gpu *gpu;
  void *handle;
  CUstream stream;
  struct memory *host, *device;
  uint8_t mx_rounding;
};

/* ---- data */

static uint32_t next_random(uint32_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

static uint16_t bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x8000u) >> 16);
}

/* Nearly normal, and in every 1×32 block of another magnitude, from 2^-4 to 2^3: a scale in the wrong place is seen. */
static void fill(uint16_t *out, int outer, bool k_fast, uint32_t seed) {
  for (int o = 0; o < outer; o++) {
    float magnitude = 1;
    for (int i = 0; i < K; i++) {
      if (i % 32 == 0)
        magnitude = ldexpf(1, (int)(next_random(&seed) >> 8) % 8 - 4);
      float sum = 0;
      for (int j = 0; j < 4; j++)
        sum += (float)(next_random(&seed) >> 8) * 0x1p-23f - 1;
      out[k_fast ? o * K + i : i * outer + o] = bf16_of(sum * magnitude);
    }
  }
}

/* ---- one trial */

static struct b200_facts facts_of(const struct trial *trial) {
  return (struct b200_facts){
      .gemm = {.m = M,
               .n = N,
               .k = K,
               .batch = 1,
               .a = B200_ELEMENT_BF16,
               .b = B200_ELEMENT_BF16,
               .d = B200_ELEMENT_F32,
               .compute = B200_COMPUTE_F32,
               .epilogue = B200_EPILOGUE_NONE,
               .ta = trial->ta,
               .tb = trial->tb},
      .lda = trial->ta == 'N' ? M : K,
      .ldb = trial->tb == 'N' ? K : N,
      .ldc = M,
      .ldd = M,
      .c = B200_ELEMENT_F32,
      .align_a = 4,
      .align_b = 4,
      .align_c = 4,
      .align_d = 4,
  };
}

static bool run_reference(const struct test *test, const struct b200_facts *facts, const struct b200_gemm_call *call,
                          float *d) {
  const struct b200_product_operand a = {CUDA_R_16BF, facts->gemm.ta != 'N', facts->lda, 0, 16};
  const struct b200_product_operand b = {CUDA_R_16BF, facts->gemm.tb == 'N', facts->ldb, 0, 16};
  const struct b200_product_terms terms = {0};
  const struct b200_product_pointers pointers = {
      .a = call->a, .b = call->b, .c = d, .d = d, .alpha = call->alpha, .beta = call->beta};
  struct b200_product product;
  if (b200_product_make(&product, test->vendor, test->handle, facts, B200_FORMAT_NATIVE, M, N, &a, &b, &terms, 0, 16) !=
      B200_PRODUCT_READY)
    return false;
  cublasStatus_t status = b200_product_run(&product, test->vendor, test->handle, &pointers, test->stream);
  b200_product_end(&product, test->vendor);
  return status == CUBLAS_STATUS_SUCCESS;
}

static bool run_narrow(const struct test *test, const struct trial *trial, const struct b200_gemm_call *call) {
  struct b200_conversion conversion = {0};
  bool k_major = trial->ta != 'N' && trial->tb == 'N';
  bool any_layout = test->gpu->facts.cc >= 100 && test->gpu->facts.cc < 110;
  const struct b200_work work = {
      .vendor = test->vendor,
      .call = call,
      .gpu = test->gpu,
      .conversion = &conversion,
      .plan = {.format = trial->format, .a = B200_ELEMENT_E4M3, .b = trial->b, .tn = !k_major && !any_layout, .cuts = 1},
      .mx_rounding = test->mx_rounding,
  };
  enum b200_reason reason = b200_convert(&work);
  b200_product_end(&conversion.whole, test->vendor);
  return reason == B200_REASON_CONVERTED;
}

/* Leaves the sums of squares on the host once the stream has run. */
static bool run_trial(const struct test *test, int index) {
  static const float one = 1, zero = 0;
  const struct trial *trial = &trials[index];
  struct memory *device = test->device;
  const struct b200_gemm_call call = {
      .facts = facts_of(trial),
      .handle = test->handle,
      .stream = test->stream,
      .alpha = &one,
      .beta = &zero,
      .a = device->a[index],
      .b = device->b[index],
      .c = device->d,
      .d = device->d,
      .asked = true,
      .known = true,
  };
  const struct b200_error_args error = {.d = device->d,
                                        .reference = device->reference,
                                        .m = M,
                                        .n = N,
                                        .ldd = M,
                                        .ldr = M,
                                        .sums = device->sums[index],
                                        .type = B200_SOURCE_F32};
  return run_reference(test, &call.facts, &call, device->reference) && run_narrow(test, trial, &call) &&
         b200_gpu_launch(test->vendor, test->gpu, b200_kernel_error(B200_SOURCE_F32), &error, test->stream) == CUDA_SUCCESS;
}

/* ---- all */

static bool wait(const struct test *test) {
  const struct timespec pause = {.tv_nsec = 50000};
  for (int i = 0; i < 200000; i++) {
    CUresult state = test->vendor->cuStreamQuery(test->stream);
    if (state != CUDA_ERROR_NOT_READY)
      return state == CUDA_SUCCESS;
    nanosleep(&pause, NULL);
  }
  return false;
}

static const char *judge(const struct test *test, int index, double *error) {
  const double *sums = test->host->sums[index];
  *error = sqrt(sums[0] / sums[1]);
  return sums[1] > 0 && *error < (trials[index].b == B200_ELEMENT_E5M2 ? BOUND_E5M2 : BOUND_E4M3) ? NULL : "is wrong";
}

static bool is_possible(const struct b200_device *device, uint8_t format) {
  return format == B200_FORMAT_FP8 ? device->cc >= 89 : device->cc >= 100 && device->cc < 110;
}

static bool prepare(struct test *test, struct b200_arena **arena) {
  const struct b200_vendor *vendor = test->vendor;
  unsigned long long id;
  void *host;
  if (vendor->cuStreamCreate(&test->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      vendor->cuStreamGetId(test->stream, &id) != CUDA_SUCCESS ||
      vendor->cuMemHostAlloc(&host, sizeof *test->host, 0) != CUDA_SUCCESS)
    return false;
  *arena = b200_arena_take(vendor, test->gpu->context, test->gpu->ordinal, id, 0, sizeof *test->device, 0);
  if (!*arena)
    return false;
  test->host = host;
  test->device = (struct memory *)(*arena)->base;
  memset(test->host->sums, 0, sizeof test->host->sums);
  for (int i = 0; i < TRIALS; i++) {
    fill(test->host->a[i], M, trials[i].ta != 'N', 1u + 2 * (uint32_t)i);
    fill(test->host->b[i], N, trials[i].tb == 'N', 2u + 2 * (uint32_t)i);
  }
  return vendor->cuMemcpyHtoDAsync_v2((*arena)->base, test->host, sizeof *test->host, test->stream) == CUDA_SUCCESS;
}

static void say_failed(int index, const char *what, double error) {
  const struct trial *trial = &trials[index];
  char text[200];
  snprintf(text, sizeof text, "self-test: %s, operands %c%c, %s (relative error %.3g); this format is not used",
           b200_format_names[trial->format], trial->ta, trial->tb, what, error);
  b200_runtime_say(text);
}

unsigned b200_selftest(const struct b200_vendor *vendor, struct b200_gpu *gpu, void *handle, uint8_t mx_rounding) {
  struct test test = {.vendor = vendor, .gpu = gpu, .handle = handle, .mx_rounding = mx_rounding};
  struct b200_arena *arena = NULL;
  unsigned passed = 0, failed = 0;
  bool issued[TRIALS] = {false};
  bool finished = prepare(&test, &arena);
  for (int i = 0; i < TRIALS && finished; i++)
    issued[i] = is_possible(&gpu->facts, trials[i].format) && run_trial(&test, i);
  if (finished)
    finished = vendor->cuMemcpyDtoHAsync_v2(test.host->sums, (CUdeviceptr)test.device->sums, sizeof test.host->sums,
                                            test.stream) == CUDA_SUCCESS &&
               wait(&test);
  for (int i = 0; i < TRIALS; i++) {
    double error = 0;
    const char *wrong = !finished ? "has not finished" : issued[i] ? judge(&test, i, &error) : "could not be run";
    if (!is_possible(&gpu->facts, trials[i].format))
      continue;
    passed |= 1u << trials[i].format;
    if (wrong && !(failed & 1u << trials[i].format))
      say_failed(i, wrong, error);
    if (wrong)
      failed |= 1u << trials[i].format;
  }
  if (arena && finished)
    b200_arena_give_back(arena);
  return passed & ~failed;
}
