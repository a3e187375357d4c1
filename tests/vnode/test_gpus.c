/* SPDX-License-Identifier: Apache-2.0 */
/* Every GPU model through the doors by which programs see it: runtime, driver, NVML. */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "vnode_test.h"

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
int nvmlDeviceGetName(void *handle, char *text, unsigned length);
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long total_free_used[3]);
int nvmlDeviceGetNumGpuCores(void *handle, unsigned *cores);
int nvmlDeviceGetArchitecture(void *handle, unsigned *architecture);

/* What torch.cuda.get_device_properties shows of the real ones. */
static const struct {
  const char *key, *name;
  int major, minor, sms;
  double gib;
  int l2_mib, optin;
  unsigned cores, architecture;
} gpus[] = {
    {"b200", "NVIDIA B200", 10, 0, 148, 178.00, 126, 232448, 18944, 10},
    {"b300", "NVIDIA B300 SXM6 AC", 10, 3, 148, 267.69, 126, 232448, 18944, 10},
    {"h200", "NVIDIA H200", 9, 0, 132, 139.80, 50, 232448, 16896, 9},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 79.19, 50, 232448, 16896, 9},
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 79.15, 40, 166912, 6912, 7},
    {"l40s", "NVIDIA L40S", 8, 9, 142, 44.42, 96, 101376, 18176, 8},
    {"rtx_pro_6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, 94.97, 128, 101376, 24064, 10},
};

START_TEST(programs_see_the_model) {
  struct cudaDeviceProp prop;
  size_t free_bytes = 0, total_bytes = 0, driver_total = 0;
  unsigned long long memory[3];
  unsigned cores = 0, architecture = 0;
  void *handle = NULL;
  char name[96];
  setenv("B200OPT_VNODE_GPU", gpus[_i].key, 1);
  ck_assert_int_eq(cudaGetDeviceProperties(&prop, 3), cudaSuccess);
  ck_assert_str_eq(prop.name, gpus[_i].name);
  ck_assert_int_eq(prop.major, gpus[_i].major);
  ck_assert_int_eq(prop.minor, gpus[_i].minor);
  ck_assert_int_eq(prop.multiProcessorCount, gpus[_i].sms);
  ck_assert_int_eq(prop.l2CacheSize >> 20, gpus[_i].l2_mib);
  ck_assert_uint_eq(prop.sharedMemPerBlockOptin, (size_t)gpus[_i].optin);
  ck_assert_double_eq_tol((double)prop.totalGlobalMem / (double)GIB, gpus[_i].gib, 0.005);
  ck_assert_int_eq(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  ck_assert_uint_eq(total_bytes, prop.totalGlobalMem);
  ck_assert_int_eq(cuDeviceTotalMem(&driver_total, 3), CUDA_SUCCESS);
  ck_assert_uint_eq(driver_total, prop.totalGlobalMem);
  ck_assert_int_eq(nvmlInit_v2(), 0);
  ck_assert_int_eq(nvmlDeviceGetHandleByIndex_v2(3, &handle), 0);
  ck_assert_int_eq(nvmlDeviceGetName(handle, name, sizeof name), 0);
  ck_assert_str_eq(name, gpus[_i].name);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, memory), 0);
  ck_assert_uint_eq(memory[0], prop.totalGlobalMem);
  ck_assert_int_eq(nvmlDeviceGetNumGpuCores(handle, &cores), 0);
  ck_assert_uint_eq(cores, gpus[_i].cores);
  ck_assert_int_eq(nvmlDeviceGetArchitecture(handle, &architecture), 0);
  ck_assert_uint_eq(architecture, gpus[_i].architecture);
}
END_TEST

START_TEST(memory_can_be_set) {
  struct cudaDeviceProp prop;
  setenv("B200OPT_VNODE_GPU", gpus[_i].key, 1);
  setenv("B200OPT_VNODE_MEMORY_GB", "24", 1);
  ck_assert_int_eq(cudaGetDeviceProperties(&prop, 0), cudaSuccess);
  ck_assert_uint_eq(prop.totalGlobalMem, 24 * GIB);
}
END_TEST

/* The whole of it can be taken, and not a page more. */
START_TEST(memory_is_all_there) {
  size_t free_bytes = 0, total_bytes = 0;
  void *base = NULL, *more = NULL;
  setenv("B200OPT_VNODE_GPU", gpus[_i].key, 1);
  ck_assert_int_eq(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  ck_assert_int_eq(cudaMalloc(&base, free_bytes), cudaSuccess);
  ck_assert_int_eq(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpus");
  TCase *cases = tcase_create("gpus");
  tcase_add_checked_fixture(cases, own_session, NULL);
  for (size_t i = 0; i < 3; i++) {
    const TTest *const tests[] = {programs_see_the_model, memory_can_be_set, memory_is_all_there};
    tcase_add_loop_test(cases, tests[i], 0, sizeof gpus / sizeof *gpus);
  }
  suite_add_tcase(suite, cases);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
