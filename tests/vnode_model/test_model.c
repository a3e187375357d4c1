/* SPDX-License-Identifier: Apache-2.0 */
/* The modelled times as functions: worked out by hand from the constants, zero cases, never shorter for more work. */
#include "model.h"
#include "vnode_test.h"

static const char *const gpus[] = {"b200", "b300", "h200", "h100", "a100", "l40s", "rtx_pro_6000"};
static const char *const formats[] = {"bf16", "f16", "tf32", "f32", "f64", "fp8", "mxfp8", "nvfp4", "i8"};
static const char *const operations[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
                                         "AlltoAll",  "Gather",    "Scatter",       "Send",      "Recv"};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static void play(const char *gpu) {
  setenv("B200OPT_VNODE_GPU", gpu, 1);
  ck_assert_str_eq(vnode_config()->gpu, gpu);
}

/* 2 us, then 7670 * 0.875 = 6711.25 GB/s. */
START_TEST(kernels) {
  play("b200");
  ck_assert_int_eq(vnode_model_kernel_ns(0), 2000);
  ck_assert_int_eq(vnode_model_kernel_ns(6711250), 3000);
  ck_assert_int_eq(vnode_model_kernel_ns(6711250000), 1002000);
}
END_TEST

START_TEST(copies) {
  play("b200");
  for (int kind = VNODE_COPY_HOST_TO_DEVICE; kind <= VNODE_COPY_HOST; kind++)
    ck_assert_int_eq(vnode_model_copy_ns((enum vnode_copy_kind)kind, 0, kind % 2), 0);
  ck_assert_int_eq(vnode_model_copy_ns(VNODE_COPY_HOST_TO_DEVICE, 55000000, true), 1005000);
  ck_assert_int_eq(vnode_model_copy_ns(VNODE_COPY_DEVICE_TO_HOST, 55000000, true), 1005000);
  ck_assert_int_eq(vnode_model_copy_ns(VNODE_COPY_HOST_TO_DEVICE, 15000000, false), 1008000);
  ck_assert_int_eq(vnode_model_copy_ns(VNODE_COPY_BETWEEN_DEVICES, 746000, false), 6000);
  /* Read and written at 7670 * 0.76 = 5829.2 GB/s. */
  ck_assert_int_eq(vnode_model_copy_ns(VNODE_COPY_WITHIN_DEVICE, 2914600, false), 3000);
}
END_TEST

/* 5.13 us, then 0.57 of 2250 TFLOPS forward, 0.325 backward, or the memory's time. */
START_TEST(attention) {
  play("b200");
  ck_assert_int_eq(vnode_model_attention_ns(0, 0, false), 5130);
  ck_assert_int_eq(vnode_model_attention_ns(1.2825e12, 6711250, false), 1005130);
  ck_assert_int_eq(vnode_model_attention_ns(7.3125e11, 0, true), 1005130);
  ck_assert_int_eq(vnode_model_attention_ns(1, 6711250, true), 6130);
}
END_TEST

/* m = 148 * 256, n = 512: 296 tiles of 256 x 256 are two waves of 148 SMs. One wave: 2 * 65536 * (4096 + 253) FLOPs at
   2250 / 148 * 0.805 TFLOPS, 46.58 us. c = 93.16 us, 5.13 + c (1 + 0.177 c / (c + 501)). Another row of tiles is a third
   wave. */
START_TEST(gemm_waves) {
  play("b200");
  ck_assert_int_eq(vnode_model_gemm_ns(148 * 256, 512, 4096, 1, "bf16", 2), 100872);
  ck_assert_int_eq(vnode_model_gemm_ns(512, 148 * 256, 4096, 1, "bf16", 2), 100872);
  ck_assert_int_eq(vnode_model_gemm_ns(74 * 256, 512, 4096, 2, "bf16", 2),
                   vnode_model_gemm_ns(148 * 256, 512, 4096, 1, "bf16", 2));
  ck_assert_int_gt(vnode_model_gemm_ns(148 * 256 + 1, 512, 4096, 1, "bf16", 2), 110000);
}
END_TEST

/* 65536 x 65536 x 16: 8.59 GB at 0.86 of 2039 GB/s, and 0.52 us. */
START_TEST(gemm_memory) {
  play("a100");
  ck_assert_int_eq(vnode_model_gemm_ns(65536, 65536, 16, 1, "bf16", 2), 4901537);
}
END_TEST

START_TEST(gemm_edges) {
  play(gpus[_i]);
  ck_assert_int_eq(vnode_model_gemm_ns(0, 128, 128, 1, "bf16", 2), 0);
  ck_assert_int_eq(vnode_model_gemm_ns(128, 0, 128, 1, "bf16", 2), 0);
  ck_assert_int_eq(vnode_model_gemm_ns(128, 128, 128, 0, "bf16", 2), 0);
  ck_assert_int_gt(vnode_model_gemm_ns(128, 128, 0, 1, "bf16", 2), 0); /* beta * C is still written */
  ck_assert_int_eq(vnode_model_gemm_ns(4096, 4096, 4096, 1, "f16", 2), vnode_model_gemm_ns(4096, 4096, 4096, 1, "bf16", 2));
  int64_t fp8 = vnode_model_gemm_ns(8192, 8192, 8192, 1, "fp8", 2),
          bf16 = vnode_model_gemm_ns(8192, 8192, 8192, 1, "bf16", 2);
  if (strcmp(gpus[_i], "a100"))
    ck_assert_int_lt(fp8, bf16);
  ck_assert_int_gt(vnode_model_gemm_ns(8192, 8192, 8192, 1, "f32", 4), bf16 * 3);
}
END_TEST

static uint64_t random_state = 1;

static int64_t random_below(int64_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)(random_state >> 33) % limit;
}

START_TEST(gemm_monotone) {
  play(gpus[_i]);
  for (int i = 0; i < 20000; i++) {
    const char *format = formats[random_below(COUNT(formats))];
    int64_t shape[4], more[4];
    for (int j = 0; j < 4; j++)
      more[j] = shape[j] = 1 + random_below((int64_t)1 << random_below(j < 3 ? 15 : 6));
    int grown = (int)random_below(4);
    more[grown] += 1 + random_below(shape[grown]);
    int64_t less_ns = vnode_model_gemm_ns(shape[0], shape[1], shape[2], shape[3], format, 2);
    int64_t more_ns = vnode_model_gemm_ns(more[0], more[1], more[2], more[3], format, 2);
    ck_assert_msg(less_ns > 0 && less_ns <= more_ns,
                  "%s %lld %lld %lld x %lld: %lld ns, dimension %d grown to %lld: %lld ns", format, (long long)shape[0],
                  (long long)shape[1], (long long)shape[2], (long long)shape[3], (long long)less_ns, grown,
                  (long long)more[grown], (long long)more_ns);
  }
}
END_TEST

START_TEST(collectives) {
  play("b200");
  /* 57 us + 64 MiB * 1.75 / 487 GB/s; 76 us + 8 MiB * 1.75 / 367 GB/s, which the first byte beyond does not undercut */
  ck_assert_int_eq(vnode_model_collective_ns("AllReduce", 8, 64 << 20), 298151);
  ck_assert_int_eq(vnode_model_collective_ns("AllReduce", 8, 8 << 20), 116000);
  ck_assert_int_eq(vnode_model_collective_ns("AllReduce", 8, (8 << 20) + 1), 116000);
  /* A ring of four: 81 us * 10 / 14, 1.5 GiB at 620 GB/s * 15 / 16 * 64 / 63 */
  ck_assert_int_eq(vnode_model_collective_ns("AllReduce", 4, 1 << 30), 2785508);
  /* 44 us + 7 / 8 GiB at 610 GB/s */
  ck_assert_int_eq(vnode_model_collective_ns("AllGather", 8, 1 << 30), 1584203);
  ck_assert_int_eq(vnode_model_collective_ns("ReduceScatter", 8, 1 << 30), 1584203);
  /* 75 us + half a GiB at 610 GB/s * 3 / 4 * 64 / 63 */
  ck_assert_int_eq(vnode_model_collective_ns("AlltoAll", 2, 1 << 30), 1230153);
}
END_TEST

START_TEST(collectives_monotone) {
  play(gpus[_i]);
  for (int op = 0; op < COUNT(operations); op++) {
    ck_assert_int_eq(vnode_model_collective_ns(operations[op], 8, 0), 0);
    ck_assert_int_eq(vnode_model_collective_ns(operations[op], 1, 1 << 20),
                     vnode_model_copy_ns(VNODE_COPY_WITHIN_DEVICE, 1 << 20, false));
    for (int ranks = 2; ranks <= VNODE_MAX_DEVICES; ranks++) {
      int64_t before = 1;
      for (uint64_t bytes = 1; bytes < (uint64_t)1 << 36; bytes += 1 + bytes / 16) {
        int64_t ns = vnode_model_collective_ns(operations[op], ranks, bytes);
        ck_assert_msg(ns >= before, "%s of %d ranks: %lld ns at %llu bytes, %lld before", operations[op], ranks,
                      (long long)ns, (unsigned long long)bytes, (long long)before);
        before = ns;
      }
    }
  }
}
END_TEST

START_TEST(host_times) {
  play("b200");
  ck_assert_int_eq(vnode_model_host_ns("torch"), 4000);
  ck_assert_int_eq(vnode_model_host_ns("cudaMalloc"), 100000);
  ck_assert_int_eq(vnode_model_host_ns("cudaMallocAsync"), 1500);
  ck_assert_int_eq(vnode_model_host_ns("cudaMallocHost"), 200000);
  ck_assert_int_eq(vnode_model_host_ns("cublasLtMatmulDescSetAttribute"), 100);
  ck_assert_int_eq(vnode_model_host_ns("cublasLtMatmul"), 5000);
  ck_assert_int_eq(vnode_model_host_ns("ncclAllReduce"), 10000);
  ck_assert_int_eq(vnode_model_host_ns("somethingElse"), 300);
}
END_TEST

/* No row is hidden by a shorter prefix above it. */
START_TEST(host_rows) {
  static const struct {
    const char *prefix;
    int64_t ns;
  } rows[] = {
#define VNODE_HOST(prefix, nanoseconds) {prefix, nanoseconds},
#include "models.def"
  };
  for (int i = 0; i < COUNT(rows); i++)
    ck_assert_msg(vnode_model_host_ns(rows[i].prefix) == rows[i].ns, "an earlier row hides \"%s\"", rows[i].prefix);
}
END_TEST

int main(void) {
  const TTest *const once[] = {kernels, copies, attention, gemm_waves, gemm_memory, collectives, host_times, host_rows};
  const TTest *const each[] = {gemm_edges, gemm_monotone, collectives_monotone};
  Suite *suite = suite_create("model");
  TCase *cases = tcase_create("model");
  tcase_add_checked_fixture(cases, own_session, NULL);
  tcase_set_timeout(cases, 60);
  for (int i = 0; i < COUNT(once); i++)
    tcase_add_test(cases, once[i]);
  for (int i = 0; i < COUNT(each); i++)
    tcase_add_loop_test(cases, each[i], 0, COUNT(gpus));
  suite_add_tcase(suite, cases);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
