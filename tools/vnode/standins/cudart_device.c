/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime API: start, errors, devices, entry points of the driver. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"
#include "hook.h"

/* ------------------------------------------------------------------------------------------- errors */

static _Thread_local cudaError_t last_error;

cudaError_t vnode_cudart_result(cudaError_t result) {
  if (result != cudaSuccess && result != cudaErrorNotReady)
    last_error = result;
  return result;
}

int vnode_standin_failed(int status) {
  return (int)vnode_cudart_result((cudaError_t)status);
}

/* An error that has ended the context is not reset. */
cudaError_t cudaGetLastError(void) {
  cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) {
  int sticky = vnode_sticky_error();
  return sticky ? (cudaError_t)sticky : last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
  const char *name = vnode_error_name((int)error, true);
  return name ? name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
  const char *text = vnode_error_text((int)error, true);
  return text ? text : "unrecognized error code";
}

/* ------------------------------------------------------------------------------------------- the driver */

static struct vnode_driver_api driver;
static bool driver_found;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static bool fetch(const char *name, int version, void **slot) {
  bool found = !driver.get_proc_address(name, slot, version, 0, NULL) && *slot;
  if (!found)
    vnode_say_once(name, "libcuda.so.1 has no %s", name);
  return found;
}

static void find_driver(void) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&driver.get_proc_address = handle ? dlsym(handle, "cuGetProcAddress_v2") : NULL;
  if (!driver.get_proc_address) {
    vnode_say_once("libcuda.so.1", "no usable libcuda.so.1: %s", handle ? "cuGetProcAddress_v2 is missing" : dlerror());
    return;
  }
  driver_found = true;
/* #name is the plain name: cuda.h's macros would turn cuMemAlloc into cuMemAlloc_v2. */
#define VNODE_ENTRY(name, version) driver_found &= fetch(#name, version, (void **)&driver.name##_entry);
#include "cudart_entries.def"
#undef VNODE_ENTRY
  driver_found = driver_found && !driver.cuInit_entry(0);
}

const struct vnode_driver_api *vnode_cudart_driver_api(void) {
  pthread_once(&driver_once, find_driver);
  return driver_found ? &driver : NULL;
}

cudaError_t vnode_cudart_start(void) {
  if (!vnode_usable())
    return cudaErrorInitializationError;
  if (!vnode_cudart_driver_api())
    return cudaErrorInsufficientDriver;
  return (cudaError_t)vnode_cuda_status(vnode_device_touch(vnode_device_current()));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  if (!symbol || !function)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!vnode_cudart_driver_api())
    return vnode_cudart_result(cudaErrorInsufficientDriver);
  CUdriverProcAddressQueryResult query = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  CUresult result = driver.get_proc_address(symbol, function, (int)version, flags, &query);
  if (status)
    *status = (enum cudaDriverEntryPointQueryResult)query;
  /* A name that is not there is told by `status` alone, when the caller asked for it (runtime API reference). */
  if (result == CUDA_ERROR_NOT_FOUND && status)
    return cudaSuccess;
  return vnode_cudart_driver(result);
}

/* Declared for CUDA 12 only, still exported by the CUDA 13 runtime. */
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status);
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

/* ------------------------------------------------------------------------------------------- versions and devices */

/* 0 where there is no driver (runtime API reference). */
cudaError_t cudaDriverGetVersion(int *version) {
  if (!version)
    return vnode_cudart_result(cudaErrorInvalidValue);
  const struct vnode_driver_api *api = vnode_cudart_driver_api();
  *version = 0;
  return api ? vnode_cudart_driver(api->cuDriverGetVersion_entry(version)) : cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  if (!version)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  vnode_cudart_load_aten();
  if (!count)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *count = 0;
  if (!vnode_usable())
    return vnode_cudart_result(cudaErrorInitializationError);
  if (!vnode_cudart_driver_api()) /* this call is what starts the driver: PyTorch calls it directly from then on */
    return vnode_cudart_result(cudaErrorInsufficientDriver);
  *count = vnode_config()->device_count;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  vnode_cudart_load_aten();
  if (!device)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *device = vnode_device_current();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  vnode_cudart_load_aten();
  if (!vnode_is_device(device))
    return vnode_cudart_result(cudaErrorInvalidDevice);
  if (!vnode_usable())
    return vnode_cudart_result(cudaErrorInitializationError);
  vnode_device_set(device);
  return vnode_cudart_result(vnode_cudart_start()); /* since CUDA 12 this makes the context */
}

cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
  (void)device_flags;
  if (flags)
    return vnode_cudart_result(cudaErrorInvalidValue);
  return vnode_is_device(device) ? vnode_cudart_status(vnode_device_touch(device))
                                 : vnode_cudart_result(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t error = vnode_cudart_start();
  return error ? vnode_cudart_result(error) : vnode_cudart_status(vnode_device_synchronize(vnode_device_current()));
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  vnode_cudart_load_aten();
  if (!value)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!vnode_is_device(device))
    return vnode_cudart_result(cudaErrorInvalidDevice);
  return vnode_cudart_result(vnode_attribute((int)attribute, device, value) ? cudaSuccess : cudaErrorInvalidValue);
}

/* Fields of cudaDeviceProp that are attributes of the same meaning. */
static const struct {
  size_t offset, bytes;
  CUdevice_attribute attribute;
} property_fields[] = {
#define VNODE_FIELD(field, attribute_name)                                                                                  \
  {.offset = offsetof(struct cudaDeviceProp, field),                                                                        \
   .bytes = sizeof((struct cudaDeviceProp *)0)->field,                                                                      \
   .attribute = CU_DEVICE_ATTRIBUTE_##attribute_name},
#include "device_fields.def"
#undef VNODE_FIELD
};

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  vnode_cudart_load_aten();
  if (!prop)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!vnode_is_device(device))
    return vnode_cudart_result(cudaErrorInvalidDevice);
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "%s", vnode_gpu()->name);
  vnode_uuid(device, (unsigned char *)prop->uuid.bytes);
  prop->totalGlobalMem = vnode_gpu()->memory_bytes;
  for (size_t i = 0; i < sizeof property_fields / sizeof *property_fields; i++) {
    int value = 0;
    vnode_attribute((int)property_fields[i].attribute, device, &value);
    memcpy((char *)prop + property_fields[i].offset, &value, sizeof value); /* little endian: also right for size_t fields */
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (!can)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!vnode_is_device(device) || !vnode_is_device(peer))
    return vnode_cudart_result(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

static _Atomic unsigned char peers[VNODE_MAX_DEVICES][VNODE_MAX_DEVICES];

static cudaError_t set_peer(int peer, bool on) {
  if (!vnode_is_device(peer) || peer == vnode_device_current())
    return cudaErrorInvalidDevice;
  unsigned char before = __atomic_exchange_n((unsigned char *)&peers[vnode_device_current()][peer], on, __ATOMIC_SEQ_CST);
  if (before == on)
    return on ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessNotEnabled;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return vnode_cudart_result(flags ? cudaErrorInvalidValue : set_peer(peer, true));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return vnode_cudart_result(set_peer(peer, false));
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  if (!text || length < 13)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!vnode_is_device(device))
    return vnode_cudart_result(cudaErrorInvalidDevice);
  vnode_pci_bus_id(device, text, (size_t)length);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
  int found = text ? vnode_device_of_pci_bus_id(text) : -1;
  if (!device || found < 0)
    return vnode_cudart_result(device && text ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
  *device = found;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags) {
  if (!flags)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *flags = cudaDeviceScheduleAuto;
  return cudaSuccess;
}

/* How the host waits: it never does. */
cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  return vnode_cudart_result(flags & ~(unsigned)cudaDeviceMask ? cudaErrorInvalidValue : cudaSuccess);
}

/* Declared in cuda_profiler_api.h, which the wheels do not have. */
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

cudaError_t cudaProfilerStart(void) {
  return cudaSuccess;
}

cudaError_t cudaProfilerStop(void) {
  return cudaSuccess;
}
