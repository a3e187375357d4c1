/* SPDX-License-Identifier: Apache-2.0 */
#include "vnode_test.h"

/* As in NVIDIA's NVML API Reference. */
struct memory {
  unsigned long long total, free, used;
};
int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle);
int nvmlDeviceGetName(void *handle, char *text, unsigned length);
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length);
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out);
int nvmlDeviceGetUtilizationRates(void *handle, void *out);
const char *nvmlErrorString(int code);

START_TEST(devices_can_be_found_and_named) {
  unsigned count = 0;
  void *handle = NULL, *again = NULL;
  char text[96];
  ck_assert_int_eq(nvmlInit_v2(), 0);
  ck_assert_int_eq(nvmlDeviceGetCount_v2(&count), 0);
  ck_assert_uint_eq(count, 8);
  ck_assert_int_eq(nvmlDeviceGetHandleByIndex_v2(3, &handle), 0);
  ck_assert_int_eq(nvmlDeviceGetHandleByPciBusId_v2("00000000:13:00.0", &again), 0);
  ck_assert_ptr_eq(handle, again);
  ck_assert_int_eq(nvmlDeviceGetUUID(handle, text, sizeof text), 0);
  ck_assert_uint_eq(strlen(text), 40);
  again = NULL;
  ck_assert_int_eq(nvmlDeviceGetHandleByUUID(text, &again), 0);
  ck_assert_ptr_eq(handle, again);
  ck_assert_int_eq(nvmlDeviceGetName(handle, text, sizeof text), 0);
  ck_assert_str_eq(text, "NVIDIA B200");
  ck_assert_int_eq(nvmlDeviceGetName(handle, text, 4), 7);
  ck_assert_int_eq(nvmlDeviceGetHandleByIndex_v2(8, &handle), 2);
}
END_TEST

START_TEST(memory_is_the_sessions_and_asking_takes_none) {
  void *handle = NULL, *base = NULL;
  struct memory memory;
  ck_assert_int_eq(nvmlDeviceGetHandleByIndex_v2(1, &handle), 0);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, &memory), 0);
  ck_assert_uint_eq(memory.used, 0);
  ck_assert_int_eq(vnode_memory_alloc(1, 8 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base), VNODE_OK);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, &memory), 0);
  ck_assert_uint_eq(memory.used, 8 * MIB + vnode_gpu()->context_bytes);
  ck_assert_uint_eq(memory.total, 178 * GIB);
}
END_TEST

START_TEST(what_is_not_there_says_so) {
  void *handle = NULL;
  unsigned rates[2];
  ck_assert_int_eq(nvmlDeviceGetHandleByIndex_v2(0, &handle), 0);
  ck_assert_int_eq(nvmlDeviceGetUtilizationRates(handle, rates), 3);
  ck_assert_str_eq(nvmlErrorString(3), "Not Supported");
}
END_TEST

int main(void) {
  const TTest *const tests[] = {devices_can_be_found_and_named, memory_is_the_sessions_and_asking_takes_none,
                                what_is_not_there_says_so};
  return run_tests("nvml", tests, sizeof tests / sizeof *tests);
}
