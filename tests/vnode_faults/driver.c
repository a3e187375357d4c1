/* SPDX-License-Identifier: Apache-2.0 */
/* The driver API, by name and by cuGetProcAddress: contexts, memory of all kinds, virtual memory, pools, streams, events. */
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include "harness.h"

enum { BYTES = 4096 };
#define PAGE ((size_t)2 << 20)

static void devices(void) {
  int count = -1, value = -1, version = -1, can = -1, active = -1;
  unsigned flags = 77;
  CUdevice device = -1;
  CUcontext context = NULL, current = NULL;
  char name[64] = "", bus[32] = "";
  size_t bytes = 0;
  CUuuid uuid;
  const char *text = NULL;
  CALL(cuInit(0));
  CALL(cuDriverGetVersion(&version));
  CALL(cuDeviceGetCount(&count));
  CALL(cuDeviceGet(&device, 0));
  SHOW("count %d device %d", count, device);
  CALL(cuDeviceGetName(name, sizeof name, 0));
  SHOW("name '%s'", name);
  CALL(cuDeviceGetUuid(&uuid, 0));
  CALL(cuDeviceTotalMem(&bytes, 0));
  SHOW("bytes %zu", bytes);
  CALL(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  SHOW("value %d", value);
  CALL(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  CALL(cuDeviceGetByPCIBusId(&device, bus));
  CALL(cuDeviceCanAccessPeer(&can, 0, 1));
  SHOW("bus '%s' can %d", bus, can);
  CALL(cuDevicePrimaryCtxGetState(0, &flags, &active));
  SHOW("active %d", active);
  CALL(cuDevicePrimaryCtxRetain(&context, 0));
  SHOW_POINTER(context);
  CALL(cuDevicePrimaryCtxSetFlags(0, 0));
  CALL(cuCtxSetCurrent(context));
  CALL(cuCtxGetCurrent(&current));
  SHOW("same %d", current == context);
  CALL(cuCtxPushCurrent(context));
  CALL(cuCtxPopCurrent(&current));
  CALL(cuCtxGetDevice(&device));
  CALL(cuCtxGetStreamPriorityRange(&count, &value));
  CALL(cuCtxEnablePeerAccess(context, 0));
  CALL(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  SHOW("%s", text ? text : "null");
  CALL(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CALL(cuDevicePrimaryCtxRelease(0));
}

static void memory(void) {
  CUdeviceptr a = 0, managed = 0, pitched = 0, base = 0;
  void *pinned = NULL, *pinned2 = NULL;
  size_t pitch = 0, bytes = 0, available = 1, total = 0;
  unsigned flags = 77, type = 77;
  static char registered[BYTES] __attribute__((aligned(4096)));
  CUdeviceptr on_device = 0;
  char host[64], back[64] = {0};
  memset(host, 5, sizeof host);
  CALL(cuMemAlloc(&a, BYTES));
  SHOW_POINTER(a);
  CALL(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
  CALL(cuMemAllocPitch(&pitched, &pitch, 100, 10, 4));
  CALL(cuMemGetAddressRange(&base, &bytes, a));
  SHOW("same %d bytes %zu", base == a, bytes);
  CALL(cuMemAllocHost(&pinned, BYTES));
  CALL(cuMemHostAlloc(&pinned2, BYTES, 0));
  CALL(cuMemHostGetDevicePointer(&on_device, pinned2, 0));
  CALL(cuMemHostGetFlags(&flags, pinned2));
  CALL(cuMemHostRegister(registered, BYTES, 0));
  CALL(cuMemHostUnregister(registered));
  CALL(cuMemGetInfo(&available, &total));
  SHOW("free %zu of %zu", available, total);
  CALL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
  SHOW("type %u", type);
  CALL(cuMemcpyHtoD(a, host, 64));
  CALL(cuMemcpyDtoD(a + 64, a, 64));
  CALL(cuMemcpyDtoH(back, a + 64, 64));
  SHOW("%d", back[63]);
  CALL(cuMemsetD8(a, 1, 64));
  CALL(cuMemsetD16(a, 0x0202, 32));
  CALL(cuMemsetD32(a, 0x03030303, 8));
  CALL(cuMemsetD2D8(a, 64, 9, 8, 2));
  CALL(cuMemcpy((CUdeviceptr)(uintptr_t)back, a, 64));
  SHOW("%d %d %d", back[0], back[20], back[40]);
  CUdeviceptr too_much = 0;
  CALL(cuMemAlloc(&too_much, (size_t)1 << 50));
  CALL(cuMemFreeHost(pinned));
  CALL(cuMemFreeHost(pinned2));
  CALL(cuMemFree(pitched));
  CALL(cuMemFree(managed));
  CALL(cuMemFree(a));
  CALL(cuMemFree(a)); /* twice */
}

static void virtual_memory(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle first = 0, second = 0, retained = 0, imported = 0;
  CUdeviceptr range = 0;
  size_t granularity = 0;
  int fd = -1, value = 0;
  CALL(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  SHOW("granularity %zu", granularity);
  CALL(cuMemAddressReserve(&range, 4 * PAGE, 0, 0, 0));
  SHOW_POINTER(range);
  CALL(cuMemCreate(&first, PAGE, &prop, 0));
  SHOW_POINTER(first);
  CALL(cuMemCreate(&second, 2 * PAGE, &prop, 0));
  SHOW_POINTER(second);
  CALL(cuMemMap(range, PAGE, 0, first, 0));
  CALL(cuMemMap(range + PAGE, 2 * PAGE, 0, second, 0));
  CALL(cuMemSetAccess(range, 3 * PAGE, &access, 1));
  CALL(cuMemsetD8(range, 42, 3 * PAGE));
  CALL(cuMemcpyDtoH(&value, range + 2 * PAGE, 4));
  SHOW("value %x", (unsigned)value);
  CALL(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)range));
  SHOW("same %d", retained == first);
  CALL(cuMemRelease(retained));
  CALL(cuMemExportToShareableHandle(&fd, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  SHOW("fd %s", fd < 0 ? "none" : "some");
  CALL(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CALL(cuMemRelease(imported));
  if (fd >= 0)
    close(fd);
  CALL(cuMemGetAllocationPropertiesFromHandle(&prop, first));
  CALL(cuMemUnmap(range + PAGE, 2 * PAGE));
  CALL(cuMemUnmap(range, PAGE));
  CALL(cuMemRelease(first));
  CALL(cuMemRelease(second));
  CALL(cuMemAddressFree(range, 4 * PAGE));
  CALL(cuMemRelease(first)); /* twice */
}

static void pools(CUstream stream) {
  CUmemoryPool pool = NULL, standard = NULL;
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUdeviceptr a = 0, b = 0;
  cuuint64_t threshold = 1 << 20;
  CALL(cuDeviceGetDefaultMemPool(&standard, 0));
  CALL(cuMemPoolCreate(&pool, &props));
  CALL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CALL(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CALL(cuMemAllocFromPoolAsync(&a, BYTES, pool, stream));
  SHOW_POINTER(a);
  CALL(cuMemAllocAsync(&b, BYTES, stream));
  SHOW_POINTER(b);
  CALL(cuMemFreeAsync(a, stream));
  CALL(cuMemFreeAsync(b, stream));
  CALL(cuStreamSynchronize(stream));
  CALL(cuMemPoolTrimTo(pool, 0));
  CALL(cuMemPoolDestroy(pool));
}

static void count_up(void *data) {
  ++*(int *)data;
}

static void streams(CUstream stream) {
  CUstream other = NULL;
  CUevent event = NULL, end = NULL;
  CUdeviceptr a = 0;
  char host[64] = {1};
  int count = 0, priority = 77;
  unsigned flags = 77;
  float ms = -1;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CALL(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -1));
  CALL(cuStreamGetPriority(other, &priority));
  CALL(cuStreamGetFlags(other, &flags));
  SHOW("priority %d flags %u", priority, flags);
  CALL(cuEventCreate(&event, CU_EVENT_DEFAULT));
  CALL(cuEventCreate(&end, CU_EVENT_DEFAULT));
  CALL(cuMemAlloc(&a, BYTES));
  CALL(cuEventRecord(event, stream));
  CALL(cuMemcpyHtoDAsync(a, host, 64, stream));
  CALL(cuMemsetD8Async(a + 64, 2, 64, stream));
  CALL(cuMemsetD32Async(a + 128, 2, 16, stream));
  CALL(cuMemcpyDtoDAsync(a + 256, a, 64, stream));
  CALL(cuMemcpyDtoHAsync(host, a + 64, 64, stream));
  CALL(cuLaunchHostFunc(stream, count_up, &count));
  CALL(cuEventRecord(end, stream));
  CALL(cuStreamWaitEvent(other, end, 0));
  CALL(cuStreamSynchronize(other));
  CALL(cuEventSynchronize(end));
  CALL(cuEventQuery(end));
  CALL(cuStreamQuery(stream));
  CALL(cuEventElapsedTime(&ms, event, end));
  SHOW("ran %d, %d, time %s", count, host[0], ms < 0 ? "none" : "measured");
  CALL(cuStreamIsCapturing(stream, &status));
  CALL(cuCtxSynchronize());
  CALL(cuMemFree(a));
  CALL(cuEventDestroy(event));
  CALL(cuEventDestroy(end));
  CALL(cuStreamDestroy(other));
}

#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags);

/* As NCCL and the CUDA runtimes inside other libraries find the driver. */
static void by_address(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *alloc = NULL, *release = NULL, *get = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  CUdeviceptr a = 0;
  SHOW_POINTER(get);
  CALL(cuGetProcAddress_v2("cuMemAlloc", &alloc, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  SHOW("found %d", (int)found);
  CALL(cuGetProcAddress_v2("cuMemFree", &release, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  if (!alloc || !release)
    return;
  CALL(((CUresult(*)(CUdeviceptr *, size_t))(uintptr_t)alloc)(&a, BYTES));
  SHOW_POINTER(a);
  CALL(((CUresult(*)(CUdeviceptr))(uintptr_t)release)(a));
  CALL(cuGetProcAddress("cuMemAllocAsync", &alloc, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
  CALL(cuGetProcAddress("cuMemFreeAsync", &release, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
  CALL(((CUresult(*)(CUdeviceptr *, size_t, CUstream))(uintptr_t)alloc)(&a, BYTES, NULL));
  SHOW_POINTER(a);
  CALL(((CUresult(*)(CUdeviceptr, CUstream))(uintptr_t)release)(a, NULL));
  CALL(cuGetProcAddress_v2("cuNoSuchFunction", &alloc, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  SHOW("found %d", (int)found);
}

int program_run(void) {
  CUstream stream = NULL;
  devices();
  memory();
  virtual_memory();
  CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  pools(stream);
  streams(stream);
  by_address();
  CALL(cuStreamDestroy(stream));
  printf("%d calls failed\n", failures);
  return failures > 99 ? 99 : failures;
}
