/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda_runtime_api.h>

#include "vnode_test.h"

/* Refused with this code, which is also the last error; the last error is then clear. */
#define REFUSED(call, code)                                                                                                 \
  do {                                                                                                                      \
    ck_assert_int_eq(call, code);                                                                                           \
    ck_assert_int_eq(cudaPeekAtLastError(), code);                                                                          \
    ck_assert_int_eq(cudaGetLastError(), code);                                                                             \
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);                                                                      \
  } while (0)
#define OK(call) ck_assert_int_eq(call, cudaSuccess)

START_TEST(errors_have_their_names) {
  ck_assert_str_eq(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  ck_assert_str_eq(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  ck_assert_str_eq(cudaGetErrorString(cudaErrorStreamCaptureUnsupported),
                   "operation not permitted when stream is capturing");
  ck_assert_str_eq(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}
END_TEST

START_TEST(devices_are_b200s) {
  int count = 0, value = 0;
  struct cudaDeviceProp prop;
  OK(cudaGetDeviceCount(&count));
  ck_assert_int_eq(count, 8);
  OK(cudaGetDeviceProperties(&prop, 7));
  ck_assert_str_eq(prop.name, "NVIDIA B200");
  ck_assert_int_eq(prop.major, 10);
  ck_assert_int_eq(prop.multiProcessorCount, 148);
  ck_assert_uint_eq(prop.totalGlobalMem, 178 * GIB);
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  ck_assert_int_eq(value, 148);
  REFUSED(cudaGetDeviceProperties(&prop, 8), cudaErrorInvalidDevice);
  REFUSED(cudaSetDevice(-1), cudaErrorInvalidDevice);
  REFUSED(cudaGetDeviceCount(NULL), cudaErrorInvalidValue);
  char text[32];
  int device = -1;
  OK(cudaDeviceGetPCIBusId(text, sizeof text, 5));
  OK(cudaDeviceGetByPCIBusId(&device, text));
  ck_assert_int_eq(device, 5);
}
END_TEST

START_TEST(malloc_and_free_follow_cuda) {
  void *pointer = (void *)1;
  REFUSED(cudaMalloc(NULL, 1), cudaErrorInvalidValue);
  OK(cudaMalloc(&pointer, 0));
  ck_assert_ptr_null(pointer);
  OK(cudaFree(NULL));
  OK(cudaMalloc(&pointer, 1000));
  REFUSED(cudaFree((char *)pointer + 256), cudaErrorInvalidValue);
  OK(cudaFree(pointer));
  REFUSED(cudaFree(pointer), cudaErrorInvalidValue);
  int host;
  REFUSED(cudaFree(&host), cudaErrorInvalidValue);
  pointer = (void *)7;
  REFUSED(cudaMalloc(&pointer, 200 * GIB), cudaErrorMemoryAllocation);
  ck_assert_ptr_eq(pointer, (void *)7);
  size_t free_bytes = 0, total_bytes = 0;
  OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  ck_assert_uint_eq(total_bytes, 178 * GIB);
  OK(cudaMemGetInfo(&free_bytes, NULL));
}
END_TEST

START_TEST(current_device_decides_where_and_the_table_where_from) {
  void *pointer = NULL;
  struct cudaPointerAttributes attributes;
  OK(cudaSetDevice(2));
  OK(cudaMalloc(&pointer, 4096));
  OK(cudaSetDevice(0));
  OK(cudaPointerGetAttributes(&attributes, (char *)pointer + 100));
  ck_assert_int_eq(attributes.type, cudaMemoryTypeDevice);
  ck_assert_int_eq(attributes.device, 2);
  ck_assert_ptr_eq(attributes.devicePointer, (char *)pointer + 100);
  ck_assert_ptr_null(attributes.hostPointer);
  OK(cudaFree(pointer));
  int host;
  OK(cudaPointerGetAttributes(&attributes, &host));
  ck_assert_int_eq(attributes.type, cudaMemoryTypeUnregistered);
  OK(cudaHostRegister(&host, sizeof host, 0));
  REFUSED(cudaHostRegister(&host, sizeof host, 0), cudaErrorHostMemoryAlreadyRegistered);
  OK(cudaPointerGetAttributes(&attributes, &host));
  ck_assert_int_eq(attributes.type, cudaMemoryTypeHost);
  OK(cudaHostUnregister(&host));
  REFUSED(cudaHostUnregister(&host), cudaErrorHostMemoryNotRegistered);
  OK(cudaMallocManaged(&pointer, 4096, cudaMemAttachGlobal));
  OK(cudaPointerGetAttributes(&attributes, pointer));
  ck_assert_int_eq(attributes.type, cudaMemoryTypeManaged);
  OK(cudaFree(pointer));
}
END_TEST

START_TEST(copies_move_bytes_and_check_their_arguments) {
  unsigned char host[256], back[256] = {0}, *device = NULL;
  for (int i = 0; i < 256; i++)
    host[i] = (unsigned char)i;
  OK(cudaMalloc((void **)&device, 256));
  OK(cudaMemcpyAsync(device, host, 256, cudaMemcpyHostToDevice, NULL));
  memset(host, 0, sizeof host); /* pageable: was read before the call returned */
  OK(cudaMemcpy(back, device, 256, cudaMemcpyDeviceToHost));
  ck_assert_uint_eq(back[200], 200);
  OK(cudaMemset(device, 7, 256));
  OK(cudaMemcpy2D(back, 16, device, 32, 8, 4, cudaMemcpyDeviceToHost));
  ck_assert_uint_eq(back[16 * 3 + 7], 7);
  ck_assert_uint_eq(back[16 * 3 + 8], 16 * 3 + 8);
  REFUSED(cudaMemcpy(device, host, 256, (enum cudaMemcpyKind)9), cudaErrorInvalidMemcpyDirection);
  REFUSED(cudaMemcpy(NULL, host, 256, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  REFUSED(cudaMemcpy(host, back, 256, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  REFUSED(cudaMemcpy(device + 2 * MIB - 4, host, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  REFUSED(cudaMemset(back, 0, 4), cudaErrorInvalidValue);
  REFUSED(cudaMemcpy2D(back, 4, device, 32, 8, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
  OK(cudaMemcpy(NULL, NULL, 0, cudaMemcpyDefault));
}
END_TEST

START_TEST(pools_keep_up_to_their_threshold) {
  cudaMemPool_t pool;
  void *pointer = NULL, *again = NULL;
  uint64_t value = 0, threshold = UINT64_MAX;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  OK(cudaMallocAsync(&pointer, 3 * MIB, NULL));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
  ck_assert_uint_eq(value, 4 * MIB);
  OK(cudaFreeAsync(pointer, NULL));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  ck_assert_uint_eq(value, 4 * MIB); /* until the host has waited */
  OK(cudaStreamSynchronize(NULL));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  ck_assert_uint_eq(value, 0);
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  OK(cudaMallocAsync(&pointer, 3 * MIB, NULL));
  OK(cudaFreeAsync(pointer, NULL));
  REFUSED(cudaFreeAsync(pointer, NULL), cudaErrorInvalidValue);
  OK(cudaDeviceSynchronize());
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  ck_assert_uint_eq(value, 4 * MIB);
  OK(cudaMallocAsync(&again, 4 * MIB, NULL));
  ck_assert_ptr_eq(again, pointer);
  OK(cudaFree(again)); /* across the interfaces */
  /* What a pool keeps must not make others fail. */
  size_t free_bytes = 0;
  OK(cudaMemGetInfo(&free_bytes, NULL));
  OK(cudaMalloc(&pointer, free_bytes + 4 * MIB));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  ck_assert_uint_eq(value, 0);
  REFUSED(cudaMallocAsync(&again, GIB, NULL), cudaErrorMemoryAllocation);
}
END_TEST

static void count(void *data) {
  ++*(int *)data;
}

START_TEST(streams_and_events_check_handles) {
  cudaStream_t stream;
  cudaEvent_t event;
  int calls = 0, priority = 0;
  OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -100));
  OK(cudaStreamGetPriority(stream, &priority));
  ck_assert_int_eq(priority, -5);
  OK(cudaLaunchHostFunc(stream, count, &calls));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(calls, 1);
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  OK(cudaEventRecordWithFlags(event, stream, 0));
  OK(cudaStreamWaitEvent(NULL, event, 0));
  OK(cudaEventQuery(event));
  float ms;
  REFUSED(cudaEventElapsedTime(&ms, event, event), cudaErrorInvalidResourceHandle);
  OK(cudaEventDestroy(event));
  REFUSED(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  OK(cudaStreamDestroy(stream));
  REFUSED(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  REFUSED(cudaMemcpyAsync(&calls, &priority, 4, cudaMemcpyDefault, stream), cudaErrorInvalidResourceHandle);
  REFUSED(cudaStreamCreateWithFlags(&stream, 8), cudaErrorInvalidValue);
  REFUSED(cudaEventCreateWithFlags(&event, cudaEventInterprocess), cudaErrorInvalidValue);
}
END_TEST

/* Another process, which shares only what it is sent. */
struct opened {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

static void open_memory(int from, int to) {
  struct opened opened;
  char *pointer = NULL, *same = NULL;
  cudaEvent_t event;
  char ok = 0;
  if (read(from, &opened, sizeof opened) != sizeof opened)
    _exit(1);
  ok = !cudaIpcOpenMemHandle((void **)&pointer, opened.memory, cudaIpcMemLazyEnablePeerAccess) &&
       !cudaIpcOpenMemHandle((void **)&same, opened.memory, cudaIpcMemLazyEnablePeerAccess) && same == pointer &&
       !cudaIpcOpenEventHandle(&event, opened.event) && !cudaStreamWaitEvent(NULL, event, 0) &&
       !cudaStreamSynchronize(NULL) && pointer[3 * MIB] == 'p' && cudaFree(pointer) == cudaErrorInvalidValue;
  if (ok)
    pointer[1] = 'c';
  ok = ok && !cudaIpcCloseMemHandle(pointer) && !cudaIpcCloseMemHandle(pointer) &&
       cudaIpcCloseMemHandle(pointer) == cudaErrorInvalidValue;
  _exit(write(to, &ok, 1) == 1 ? 0 : 1);
}

START_TEST(ipc_shares_memory_with_another_process) {
  int down[2], up[2];
  ck_assert_int_eq(pipe(down), 0);
  ck_assert_int_eq(pipe(up), 0);
  pid_t pid = fork();
  if (!pid)
    open_memory(down[0], up[1]);
  struct opened opened;
  char *pointer = NULL, *before = NULL, ok = 0;
  cudaEvent_t event;
  OK(cudaMalloc((void **)&before, MIB)); /* so that the memory does not start at offset 0 */
  OK(cudaMalloc((void **)&pointer, 4 * MIB));
  OK(cudaMemset(pointer + 3 * MIB, 'p', 1));
  OK(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
  OK(cudaEventRecord(event, NULL));
  OK(cudaIpcGetMemHandle(&opened.memory, pointer));
  OK(cudaIpcGetEventHandle(&opened.event, event));
  void *own = NULL;
  REFUSED(cudaIpcOpenMemHandle(&own, opened.memory, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
  ck_assert_int_eq(write(down[1], &opened, sizeof opened), sizeof opened);
  ck_assert_int_eq(read(up[0], &ok, 1), 1);
  ck_assert_int_eq(ok, 1);
  ck_assert_int_eq(pointer[1], 'c');
  waitpid(pid, NULL, 0);
}
END_TEST

/* What nvcc generates for a kernel and a variable. */
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t bytes, int constant,
                       int global);
static void stub(void) {}
static char variable;

static void launch(void *unused) {
  (void)unused;
  __cudaRegisterFunction(NULL, (const char *)(uintptr_t)stub, NULL, "some_kernel", -1, NULL, NULL, NULL, NULL, NULL);
  cudaLaunchKernel((const void *)(uintptr_t)stub, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, NULL);
}

static void call_trap(void *unused) {
  (void)unused;
  cudaGraphAddExternalSemaphoresWaitNode(NULL, NULL, NULL, 0, NULL);
}

START_TEST(launches_and_traps_end_the_process_with_the_name) {
  char text[2048];
  int status = in_child_with_stderr(launch, NULL, text, sizeof text);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  ck_assert_ptr_nonnull(strstr(text, "some_kernel"));
  status = in_child_with_stderr(call_trap, NULL, text, sizeof text);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  ck_assert_ptr_nonnull(strstr(text, "cudaGraphAddExternalSemaphoresWaitNode"));
  REFUSED(cudaLaunchKernel((const void *)(uintptr_t)stub, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, NULL),
          cudaErrorInvalidDeviceFunction);
}
END_TEST

START_TEST(symbols_are_memory_per_device) {
  int value = 42, back = 0;
  void *zero = NULL, *one = NULL;
  __cudaRegisterVar(NULL, &variable, NULL, "variable", 0, 64, 0, 0);
  OK(cudaGetSymbolAddress(&zero, &variable));
  OK(cudaMemcpyToSymbol(&variable, &value, sizeof value, 60, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(&back, (char *)zero + 60, sizeof back, cudaMemcpyDeviceToHost));
  ck_assert_int_eq(back, 42);
  REFUSED(cudaMemcpyToSymbol(&variable, &value, sizeof value, 61, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  OK(cudaSetDevice(1));
  OK(cudaGetSymbolAddress(&one, &variable));
  ck_assert_ptr_ne(zero, one);
  REFUSED(cudaGetSymbolAddress(&one, &value), cudaErrorInvalidSymbol);
}
END_TEST

static void use_after_fork(void *unused) {
  (void)unused;
  void *pointer = NULL;
  int device_count = -1;
  cudaStream_t stream;
  bool right =
      cudaMalloc(&pointer, 1) == cudaErrorInitializationError && cudaGetLastError() == cudaErrorInitializationError &&
      cudaGetDeviceCount(&device_count) == cudaErrorInitializationError &&
      cudaStreamCreate(&stream) == cudaErrorInitializationError && cudaDeviceSynchronize() == cudaErrorInitializationError;
  exit(right ? 0 : 1);
}

START_TEST(forked_child_is_not_initialised) {
  OK(cudaFree(NULL));
  ck_assert_int_eq(in_child(use_after_fork, NULL), 0);
  OK(cudaDeviceSynchronize());
}
END_TEST

START_TEST(owner_of_runtime_memory_is_pytorch_unless_told) {
  void *pointer = NULL;
  uint64_t current = 0, peak = 0;
  OK(cudaMalloc(&pointer, MIB));
  vnode_ledger_memory(0, VNODE_OWNER_PYTORCH, &current, &peak);
  ck_assert_uint_eq(current, 2 * MIB);
  enum vnode_owner previous = vnode_owner_push(VNODE_OWNER_NCCL);
  OK(cudaMalloc(&pointer, MIB));
  vnode_owner_pop(previous);
  vnode_ledger_memory(0, VNODE_OWNER_NCCL, &current, &peak);
  ck_assert_uint_eq(current, 2 * MIB);
  vnode_ledger_memory(0, VNODE_OWNER_PYTORCH, &current, &peak);
  ck_assert_uint_eq(peak, 2 * MIB);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {errors_have_their_names,
                                devices_are_b200s,
                                malloc_and_free_follow_cuda,
                                current_device_decides_where_and_the_table_where_from,
                                copies_move_bytes_and_check_their_arguments,
                                pools_keep_up_to_their_threshold,
                                streams_and_events_check_handles,
                                ipc_shares_memory_with_another_process,
                                launches_and_traps_end_the_process_with_the_name,
                                symbols_are_memory_per_device,
                                forked_child_is_not_initialised,
                                owner_of_runtime_memory_is_pytorch_unless_told};
  return run_tests("runtime", tests, sizeof tests / sizeof *tests);
}
