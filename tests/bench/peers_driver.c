/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver and a runtime that do nothing, so that what is measured is what stands before them. Every function succeeds;
 * addresses are new each time and never used. Enough of both for libb200opt.so, for torch_memory_saver's preload and, as far
 * as it gets, HAMi-core.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE ((uint64_t)2 << 20)
#define TOTAL ((size_t)1 << 50)

static uint64_t next_address = (uint64_t)1 << 40, next_handle = 1;

static uint64_t take_address(size_t bytes) {
  uint64_t address = next_address;
  next_address += (bytes + PAGE - 1) / PAGE * PAGE;
  return address;
}

/* ---- driver */

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  *address = take_address(bytes);
  return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = *total_bytes = TOTAL;
  return 0;
}

EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const void *properties, unsigned long long flags);
int cuMemCreate(uint64_t *handle, size_t bytes, const void *properties, unsigned long long flags) {
  (void)bytes, (void)properties, (void)flags;
  *handle = next_handle++;
  return 0;
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t where, unsigned long long flags);
int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t where, unsigned long long flags) {
  (void)alignment, (void)where, (void)flags;
  *address = take_address(bytes);
  return 0;
}

EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option);
int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
  (void)properties, (void)option;
  *granularity = PAGE;
  return 0;
}

/* The one device, its one context. */
#define ONE(name, type, value)                                                                                              \
  EXPORT int name(type *out);                                                                                               \
  int name(type *out) {                                                                                                     \
    *out = value;                                                                                                           \
    return 0;                                                                                                               \
  }
ONE(cuCtxGetDevice, int, 0)
ONE(cuDeviceGetCount, int, 1)
ONE(cuDriverGetVersion, int, 13000)
ONE(cuCtxGetCurrent, void *, (void *)0x10)
ONE(cuCtxPopCurrent_v2, void *, (void *)0x10)

EXPORT int cuEventCreate(void **event, unsigned flags);
int cuEventCreate(void **event, unsigned flags) {
  (void)flags;
  *event = (void *)0x30;
  return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  return cuCtxGetCurrent(context);
}

EXPORT int cuDeviceGetMemPool(void **pool, int device);
int cuDeviceGetMemPool(void **pool, int device) {
  (void)device;
  *pool = (void *)0x20;
  return 0;
}

EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, uint64_t *value);
int cuMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
  (void)pool, (void)attribute;
  *value = 0;
  return 0;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = TOTAL;
  return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 1;
  return 0;
}

EXPORT int cuDeviceGetName(char *name, int size, int device);
int cuDeviceGetName(char *name, int size, int device) {
  (void)device;
  strncpy(name, "nothing", (size_t)size);
  return 0;
}

EXPORT int cuStreamIsCapturing(void *stream, int *status);
int cuStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = 0;
  return 0;
}

EXPORT int cuCtxGetId(void *context, unsigned long long *id);
int cuCtxGetId(void *context, unsigned long long *id) {
  (void)context;
  *id = 1;
  return 0;
}

#define NOTHING(name)                                                                                                       \
  EXPORT int name(void);                                                                                                    \
  int name(void) {                                                                                                          \
    return 0;                                                                                                               \
  }
NOTHING(cuInit)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuCtxRecordEvent)
NOTHING(cuEventDestroy_v2)
NOTHING(cuEventQuery)
NOTHING(cuEventSynchronize)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuMemPoolTrimTo)
NOTHING(cuMemsetD8_v2)
NOTHING(cuThreadExchangeStreamCaptureMode)
NOTHING(cuMemFree_v2)
NOTHING(cuMemRelease)
NOTHING(cuMemMap)
NOTHING(cuMemUnmap)
NOTHING(cuMemSetAccess)
NOTHING(cuMemAddressFree)
NOTHING(cuCtxSynchronize)
NOTHING(cuStreamSynchronize)
NOTHING(cuGetErrorString)

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, void *result);
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, void *result) {
  (void)version, (void)flags, (void)result;
  *function = dlsym(RTLD_DEFAULT, name);
  return *function ? 0 : 500;
}

/* ---- runtime: as the real one, it calls the driver by pointers that it has looked up */

static int (*driver_alloc)(uint64_t *, size_t);
static int (*driver_free)(uint64_t);

EXPORT int cudaMalloc(void **out, size_t bytes);
int cudaMalloc(void **out, size_t bytes) {
  uint64_t address;
  if (!driver_alloc) {
    *(void **)&driver_alloc = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    *(void **)&driver_free = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
  }
  int status = driver_alloc(&address, bytes);
  *out = (void *)(uintptr_t)address;
  return status;
}

EXPORT int cudaFree(void *at);
int cudaFree(void *at) {
  return at ? driver_free((uint64_t)(uintptr_t)at) : 0;
}

ONE(cudaGetDevice, int, 0)
NOTHING(cudaDeviceSynchronize)
NOTHING(cudaGetLastError)

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  return cuMemGetInfo_v2(free_bytes, total_bytes);
}

EXPORT const char *cudaGetErrorString(int error);
const char *cudaGetErrorString(int error) {
  (void)error;
  return "error";
}
