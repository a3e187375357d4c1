/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <dlfcn.h>
#include <sys/socket.h>

#include "vnode_test.h"

#define OK(call) ck_assert_int_eq(call, CUDA_SUCCESS)
#define UNIT VNODE_MEMORY_ALIGN_BYTES

static const CUmemAllocationProp on_device_0 = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static char *map(CUmemGenericAllocationHandle handle, size_t bytes) {
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  OK(cuMemMap(at, bytes, 0, handle, 0));
  OK(cuMemSetAccess(at, bytes, &read_write, 1));
  return (char *)(uintptr_t)at;
}

START_TEST(nothing_works_before_init) {
  CUdeviceptr pointer = 0;
  int count = 0;
  ck_assert_int_eq(cuMemAlloc(&pointer, 1), CUDA_ERROR_NOT_INITIALIZED);
  ck_assert_int_eq(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  OK(cuInit(0));
  OK(cuDeviceGetCount(&count));
  ck_assert_int_eq(count, 8);
  ck_assert_int_eq(cuInit(1), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(allocation_rules_of_the_driver) {
  CUdeviceptr pointer = 0, base = 0;
  size_t bytes = 0;
  unsigned long long id = 0, other_id = 0;
  OK(cuInit(0));
  ck_assert_int_eq(cuMemAlloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
  ck_assert_int_eq(cuMemFree(0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAlloc(&pointer, 3 * MIB));
  OK(cuMemGetAddressRange(&base, &bytes, pointer + MIB));
  ck_assert_uint_eq(base, pointer);
  ck_assert_uint_eq(bytes, 4 * MIB);
  OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer));
  OK(cuMemFree(pointer));
  ck_assert_int_eq(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE);
  ck_assert_int_eq(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAlloc(&pointer, 3 * MIB));
  OK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer));
  ck_assert_uint_ne(id, other_id);
  ck_assert_int_eq(cuMemAlloc(&base, 178 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemsetD32Async(pointer, 0, 12, NULL));
  OK(cuMemsetD32Async(pointer, 0x01020304, 10, NULL));
  OK(cuStreamSynchronize(NULL));
  ck_assert_uint_eq(((unsigned *)(uintptr_t)pointer)[9], 0x01020304);
  ck_assert_uint_eq(((unsigned *)(uintptr_t)pointer)[10], 0);
}
END_TEST

START_TEST(virtual_memory_rules) {
  CUmemGenericAllocationHandle handle = 0, same = 0;
  size_t granularity = 0, before = 0, now = 0;
  OK(cuInit(0));
  OK(cuMemGetAllocationGranularity(&granularity, &on_device_0, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ck_assert_uint_eq(granularity, UNIT);
  OK(cuMemGetInfo(&before, NULL));
  ck_assert_int_eq(cuMemCreate(&handle, UNIT + 1, &on_device_0, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemCreate(&handle, 10 * UNIT, &on_device_0, 0));
  char *at = map(handle, 10 * UNIT);
  ck_assert_int_eq(cuMemMap((CUdeviceptr)(uintptr_t)at, UNIT, UNIT, handle, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRetainAllocationHandle(&same, at));
  ck_assert_uint_eq(same, handle);
  CUmemAllocationProp prop;
  OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  ck_assert_int_eq(prop.location.id, 0);
  OK(cuMemRelease(handle));
  OK(cuMemRelease(handle));
  memset(at, 3, 10 * UNIT);
  OK(cuMemGetInfo(&now, NULL));
  ck_assert_uint_eq(before - now, 10 * UNIT);
  ck_assert_int_eq(cuMemFree((CUdeviceptr)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
  ck_assert_int_eq(cuMemUnmap((CUdeviceptr)(uintptr_t)at, UNIT), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemUnmap((CUdeviceptr)(uintptr_t)at, 10 * UNIT));
  OK(cuMemGetInfo(&now, NULL));
  ck_assert_uint_eq(before, now);
  OK(cuMemAddressFree((CUdeviceptr)(uintptr_t)at, 10 * UNIT));
}
END_TEST

static int receive_fd(int socket_fd) {
  char byte, control[CMSG_SPACE(sizeof(int))];
  struct iovec io = {.iov_base = &byte, .iov_len = 1};
  struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(socket_fd, &message, 0) != 1)
    _exit(2);
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

static void send_fd(int socket_fd, int fd) {
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec io = {.iov_base = &byte, .iov_len = 1};
  struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  ck_assert_int_eq(sendmsg(socket_fd, &message, 0), 1);
}

static void import_and_write(int socket_fd) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  char byte = 'k';
  bool right = !cuInit(0) &&
               !cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)receive_fd(socket_fd),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
               !cuMemAddressReserve(&at, 2 * UNIT, 0, 0, 0) && !cuMemMap(at, 2 * UNIT, 0, handle, 0) &&
               !cuMemSetAccess(at, 2 * UNIT, &read_write, 1) && ((char *)(uintptr_t)at)[UNIT] == 'p';
  if (right)
    ((char *)(uintptr_t)at)[UNIT + 1] = 'c';
  /* The exporter has let go by now; the memory lives on here. */
  if (write(socket_fd, &byte, 1) != 1 || read(socket_fd, &byte, 1) != 1)
    _exit(3);
  _exit(right && ((char *)(uintptr_t)at)[UNIT] == 'p' ? 0 : 1);
}

START_TEST(exported_memory_is_shared_and_outlives_its_handle) {
  int ends[2], fd = -1, status = -1;
  char byte;
  CUmemGenericAllocationHandle first = 0, handle = 0;
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  pid_t pid = fork();
  if (!pid)
    import_and_write(ends[1]);
  OK(cuInit(0));
  OK(cuMemCreate(&first, UNIT, &on_device_0, 0));
  OK(cuMemCreate(&handle, 2 * UNIT, &on_device_0, 0));
  char *at = map(handle, 2 * UNIT);
  at[UNIT] = 'p';
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_fd(ends[0], fd);
  close(fd);
  ck_assert_int_eq(read(ends[0], &byte, 1), 1);
  ck_assert_int_eq(at[UNIT + 1], 'c');
  OK(cuMemUnmap((CUdeviceptr)(uintptr_t)at, 2 * UNIT));
  OK(cuMemRelease(handle));
  ck_assert_int_eq(write(ends[0], &byte, 1), 1);
  waitpid(pid, &status, 0);
  ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(entry_points_follow_version_and_flags) {
  void *found = NULL, *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CUdriverProcAddressQueryResult query;
  OK(cuInit(0));
  OK(cuGetProcAddress("cuMemAlloc", &found, 13000, 0, &query));
  ck_assert_ptr_eq(found, dlsym(self, "cuMemAlloc_v2"));
  OK(cuGetProcAddress("cuCtxGetDevice", &found, 12000, 0, &query));
  ck_assert_ptr_eq(found, dlsym(self, "cuCtxGetDevice"));
  OK(cuGetProcAddress("cuCtxGetDevice", &found, 13000, 0, &query));
  ck_assert_ptr_eq(found, dlsym(self, "cuCtxGetDevice_v2"));
  OK(cuGetProcAddress("cuMemAllocAsync", &found, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &query));
  ck_assert_ptr_eq(found, dlsym(self, "cuMemAllocAsync_ptsz"));
  OK(cuGetProcAddress("cuMemCreate", &found, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &query));
  ck_assert_ptr_eq(found, dlsym(self, "cuMemCreate"));
  ck_assert_int_eq(cuGetProcAddress("cuNoSuchThing", &found, 12000, 0, &query), CUDA_ERROR_NOT_FOUND);
  ck_assert_ptr_null(found);
  ck_assert_int_eq(query, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  ck_assert_int_eq(cuGetProcAddress("malloc", &found, 12000, 0, &query), CUDA_ERROR_NOT_FOUND);
}
END_TEST

START_TEST(errors_have_their_names) {
  const char *text = NULL;
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  ck_assert_str_eq(text, "CUDA_ERROR_OUT_OF_MEMORY");
  OK(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
  ck_assert_str_eq(text, "invalid argument");
  ck_assert_int_eq(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
  ck_assert_ptr_null(text);
}
END_TEST

START_TEST(contexts_stack_and_follow_the_device) {
  CUcontext context = (CUcontext)(void *)1, one;
  CUdevice device = -1;
  OK(cuInit(0));
  OK(cuCtxGetCurrent(&context));
  ck_assert_ptr_null(context);
  OK(cuDevicePrimaryCtxRetain(&one, 1));
  OK(cuCtxPushCurrent(one));
  OK(cuCtxGetDevice(&device));
  ck_assert_int_eq(device, 1);
  OK(cuCtxPopCurrent(&context));
  ck_assert_ptr_eq(context, one);
  ck_assert_int_eq(cuCtxPopCurrent(&context), CUDA_ERROR_INVALID_CONTEXT);
  ck_assert_int_eq(cuCtxSetCurrent((CUcontext)(void *)&device), CUDA_ERROR_INVALID_CONTEXT);
}
END_TEST

START_TEST(stream_values_are_written_and_waited_for) {
  CUdeviceptr pointer = 0;
  CUstream waiting, writing;
  bool late = vnode_config()->order != VNODE_ORDER_EAGER;
  OK(cuInit(0));
  OK(cuMemAlloc(&pointer, 4096));
  OK(cuMemsetD32(pointer, 0, 8));
  OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&writing, CU_STREAM_NON_BLOCKING));
  OK(cuStreamSynchronize(NULL));
  OK(cuStreamWriteValue32(writing, pointer + 8, 77, 0));
  OK(cuStreamWaitValue32(writing, pointer + 8, 77, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamSynchronize(writing));
  /* What a later call writes can be waited for where the call returns before the wait. */
  ck_assert_int_eq(cuStreamWaitValue32(waiting, pointer + 8, 78, CU_STREAM_WAIT_VALUE_GEQ),
                   late ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
  OK(cuMemsetD32Async(pointer + 12, 5, 1, waiting));
  ck_assert_int_eq(cuStreamQuery(waiting), late ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
  OK(cuStreamWriteValue32(writing, pointer + 8, 78, 0));
  OK(cuStreamSynchronize(waiting));
  ck_assert_uint_eq(((unsigned *)(uintptr_t)pointer)[3], 5);
  ck_assert_int_eq(cuStreamWriteValue32(NULL, pointer + 2, 77, 0), CUDA_ERROR_INVALID_VALUE);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {nothing_works_before_init,
                                allocation_rules_of_the_driver,
                                virtual_memory_rules,
                                exported_memory_is_shared_and_outlives_its_handle,
                                entry_points_follow_version_and_flags,
                                errors_have_their_names,
                                contexts_stack_and_follow_the_device,
                                stream_values_are_written_and_waited_for};
  return run_tests("driver", tests, sizeof tests / sizeof *tests);
}
