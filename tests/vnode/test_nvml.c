/* SPDX-License-Identifier: Apache-2.0 */
#include "vnode_test.h"

/* As in NVIDIA's NVML API Reference. */
struct memory {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct process_v1 {
  unsigned pid;
  unsigned long long used;
};
struct process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE, VERSION_MISMATCH = 25 };

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned length);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle);
int nvmlDeviceGetName(void *handle, char *text, unsigned length);
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length);
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out);
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out);
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_v1 *out);
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *out);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process *out);
int nvmlDeviceGetMaxClockInfo(void *handle, unsigned type, unsigned *mhz);
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending);
int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending);
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active);
int nvmlDeviceGetNvLinkVersion(void *handle, unsigned link, unsigned *version);
int nvmlDeviceGetUtilizationRates(void *handle, void *out);
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts);
const char *nvmlErrorString(int code);

static void *device(unsigned index) {
  void *handle = NULL;
  ck_assert_int_eq(nvmlInit_v2(), SUCCESS);
  ck_assert_int_eq(nvmlDeviceGetHandleByIndex_v2(index, &handle), SUCCESS);
  return handle;
}

START_TEST(nothing_answers_before_init_and_after_shutdown) {
  unsigned count = 0;
  struct memory memory;
  ck_assert_int_eq(nvmlDeviceGetCount_v2(&count), UNINITIALIZED);
  ck_assert_int_eq(nvmlShutdown(), UNINITIALIZED);
  void *handle = device(0);
  ck_assert_int_eq(nvmlInit_v2(), SUCCESS);
  ck_assert_int_eq(nvmlShutdown(), SUCCESS);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, &memory), SUCCESS); /* one init is left */
  ck_assert_int_eq(nvmlShutdown(), SUCCESS);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, &memory), UNINITIALIZED);
  ck_assert_int_eq(nvmlDeviceGetUtilizationRates(handle, &memory), UNINITIALIZED);
  ck_assert_int_eq(nvmlShutdown(), UNINITIALIZED);
}
END_TEST

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
  void *handle = device(1), *base = NULL;
  struct memory memory;
  struct memory_v2 memory_v2 = {.version = 2u << 24 | sizeof memory_v2};
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, &memory), SUCCESS);
  ck_assert_uint_eq(memory.used, 0);
  ck_assert_int_eq(vnode_memory_alloc(1, 8 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base), VNODE_OK);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo(handle, &memory), SUCCESS);
  ck_assert_uint_eq(memory.used, 8 * MIB + vnode_gpu()->context_bytes);
  ck_assert_uint_eq(memory.total, 178 * GIB);
  ck_assert_uint_eq(memory.free, memory.total - memory.used);
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo_v2(handle, &memory_v2), SUCCESS);
  ck_assert_uint_eq(memory_v2.used, memory.used);
  ck_assert_uint_eq(memory_v2.reserved, 0);
  memory_v2.version = 1;
  ck_assert_int_eq(nvmlDeviceGetMemoryInfo_v2(handle, &memory_v2), VERSION_MISMATCH);
}
END_TEST

/* Holds 16 MiB of device 1 until its stdin closes. */
static void hold(int from, int to) {
  void *base = NULL;
  char byte = vnode_memory_alloc(1, 16 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base) ? 'x' : 'k';
  if (write(to, &byte, 1) == 1)
    while (read(from, &byte, 1) > 0)
      ;
}

START_TEST(processes_are_the_sessions) {
  int down[2], up[2];
  char byte = 0, name[4096] = "";
  unsigned count = 0;
  struct process_v1 v1[4];
  struct process v3[4];
  ck_assert_int_eq(pipe(down) | pipe(up), 0);
  pid_t pid = fork();
  if (!pid) {
    close(down[1]);
    hold(down[0], up[1]);
    _exit(0);
  }
  close(down[0]);
  ck_assert_int_eq((int)read(up[0], &byte, 1), 1);
  ck_assert_int_eq(byte, 'k');
  void *handle = device(1), *base = NULL;
  ck_assert_int_eq(nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, NULL), INSUFFICIENT_SIZE);
  ck_assert_uint_eq(count, 1);
  ck_assert_int_eq(vnode_memory_alloc(1, 8 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base), VNODE_OK);
  count = 1; /* room for one of two */
  ck_assert_int_eq(nvmlDeviceGetComputeRunningProcesses(handle, &count, v1), INSUFFICIENT_SIZE);
  ck_assert_uint_eq(count, 2);
  count = 4;
  ck_assert_int_eq(nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, v3), SUCCESS);
  ck_assert_uint_eq(count, 2);
  int child = v3[1].pid == (unsigned)pid;
  ck_assert_uint_eq(v3[child].pid, (unsigned)pid);
  ck_assert_uint_eq(v3[child].used, 16 * MIB + vnode_gpu()->context_bytes);
  ck_assert_uint_eq(v3[!child].pid, (unsigned)getpid());
  ck_assert_uint_eq(v3[!child].used, 8 * MIB + vnode_gpu()->context_bytes);
  ck_assert_uint_eq(v3[child].gpu_instance, ~0u);
  ck_assert_int_eq(nvmlSystemGetProcessName((unsigned)getpid(), name, sizeof name), SUCCESS);
  ck_assert_ptr_nonnull(strstr(name, "test_nvml"));
  ck_assert_int_eq(nvmlSystemGetProcessName((unsigned)getpid(), name, 2), INSUFFICIENT_SIZE);
  count = 4; /* nobody on another device */
  ck_assert_int_eq(nvmlDeviceGetComputeRunningProcesses(device(2), &count, v1), SUCCESS);
  ck_assert_uint_eq(count, 0);
  count = 4;
  ck_assert_int_eq(nvmlDeviceGetGraphicsRunningProcesses_v3(handle, &count, v3), SUCCESS);
  ck_assert_uint_eq(count, 0);
  kill(pid, SIGKILL); /* without a word */
  waitpid(pid, NULL, 0);
  count = 4;
  ck_assert_int_eq(nvmlDeviceGetComputeRunningProcesses(handle, &count, v1), SUCCESS);
  ck_assert_uint_eq(count, 1);
  ck_assert_uint_eq(v1[0].pid, (unsigned)getpid());
  ck_assert_uint_eq(v1[0].used, 8 * MIB + vnode_gpu()->context_bytes);
}
END_TEST

START_TEST(facts_of_the_model_are_known) {
  void *handle = device(7);
  unsigned a = 9, b = 9;
  ck_assert_int_eq(nvmlDeviceGetMaxClockInfo(handle, 1, &a), SUCCESS);
  ck_assert_uint_eq(a, 1965);
  ck_assert_int_eq(nvmlDeviceGetMaxClockInfo(handle, 2, &a), SUCCESS);
  ck_assert_uint_eq(a, 3996);
  ck_assert_int_eq(nvmlDeviceGetMaxClockInfo(handle, 3, &a), NOT_SUPPORTED);
  ck_assert_int_eq(nvmlDeviceGetMaxClockInfo(handle, 4, &a), INVALID_ARGUMENT);
  ck_assert_int_eq(nvmlDeviceGetMigMode(handle, &a, &b), SUCCESS);
  ck_assert_uint_eq(a | b, 0);
  ck_assert_int_eq(nvmlDeviceGetEccMode(handle, &a, &b), SUCCESS);
  ck_assert_uint_eq(a & b, 1);
  ck_assert_int_eq(nvmlDeviceGetNvLinkState(handle, 17, &a), SUCCESS);
  ck_assert_uint_eq(a, 1);
  ck_assert_int_eq(nvmlDeviceGetNvLinkState(handle, 18, &a), INVALID_ARGUMENT);
  ck_assert_int_eq(nvmlDeviceGetNvLinkVersion(handle, 0, &a), SUCCESS);
  ck_assert_uint_eq(a, 5);
}
END_TEST

START_TEST(what_is_not_there_says_so) {
  void *handle = device(0);
  unsigned rates[2];
  ck_assert_int_eq(nvmlDeviceGetUtilizationRates(handle, rates), NOT_SUPPORTED);
  ck_assert_int_eq(nvmlDeviceGetPowerUsage(handle, rates), NOT_SUPPORTED);
  ck_assert_str_eq(nvmlErrorString(3), "Not Supported");
}
END_TEST

int main(void) {
  const TTest *const tests[] = {nothing_answers_before_init_and_after_shutdown,
                                devices_can_be_found_and_named,
                                memory_is_the_sessions_and_asking_takes_none,
                                processes_are_the_sessions,
                                facts_of_the_model_are_known,
                                what_is_not_there_says_so};
  return run_tests("nvml", tests, sizeof tests / sizeof *tests);
}
