/* SPDX-License-Identifier: Apache-2.0 */
/* Driver API: start, devices, contexts, errors, entry points. */
#include "driver.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_bool initialized;

CUresult vnode_driver_ready(void) {
  return atomic_load_explicit(&initialized, memory_order_relaxed) && vnode_usable() ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_NOT_INITIALIZED;
}

enum vnode_owner vnode_driver_owner(const void *caller) {
  static const struct {
    const char *module;
    enum vnode_owner owner;
  } modules[] = {{"libtorch", VNODE_OWNER_PYTORCH},    {"libc10", VNODE_OWNER_PYTORCH},
                 {"libb200opt", VNODE_OWNER_PYTORCH},  {"libcudart", VNODE_OWNER_PYTORCH},
                 {"libb200aten", VNODE_OWNER_PYTORCH}, {"libnccl", VNODE_OWNER_NCCL},
                 {"libcublas", VNODE_OWNER_CUBLAS}};
  enum vnode_owner hint = vnode_owner_hint();
  if (hint != VNODE_OWNER_COUNT)
    return hint;
  Dl_info info;
  if (!dladdr(caller, &info) || !info.dli_fname)
    return VNODE_OWNER_OTHER;
  const char *slash = strrchr(info.dli_fname, '/'), *name = slash ? slash + 1 : info.dli_fname;
  for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
    if (!strncmp(name, modules[i].module, strlen(modules[i].module)))
      return modules[i].owner;
  return VNODE_OWNER_OTHER;
}

CUresult cuInit(unsigned int flags) {
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_usable())
    return CUDA_ERROR_NOT_INITIALIZED;
  atomic_store(&initialized, true);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
  if (!version)
    return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
  if (!text)
    return CUDA_ERROR_INVALID_VALUE;
  *text = vnode_error_name((int)error, false);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  if (!text)
    return CUDA_ERROR_INVALID_VALUE;
  *text = vnode_error_text((int)error, false);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Nothing is ever logged: the registration is remembered by nobody, and that is what it promises. */
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void *data, CUlogsCallbackHandle *handle) {
  (void)data;
  static char token;
  if (!callback)
    return CUDA_ERROR_INVALID_VALUE;
  if (handle)
    *handle = (CUlogsCallbackHandle)(void *)&token;
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  (void)handle;
  return CUDA_SUCCESS;
}

/* Private tables by which NVIDIA's libraries know their own driver. There are none here, and we do not pose as that driver.
 */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  if (table)
    *table = NULL;
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* ------------------------------------------------------------------------------------------- devices */

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  VNODE_DRIVER_READY();
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  VNODE_DRIVER_READY();
  if (!count)
    return CUDA_ERROR_INVALID_VALUE;
  *count = vnode_config()->device_count;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  VNODE_DRIVER_READY();
  if (!name || length <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)length, "%s", vnode_gpu()->name);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  VNODE_DRIVER_READY();
  if (!uuid)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  vnode_uuid(device, (unsigned char *)uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  VNODE_DRIVER_READY();
  if (!bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = vnode_gpu()->memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  VNODE_DRIVER_READY();
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  return vnode_attribute((int)attribute, device, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
  VNODE_DRIVER_READY();
  if (!text || length < 13)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  vnode_pci_bus_id(device, text, (size_t)length);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
  VNODE_DRIVER_READY();
  if (!device || !text)
    return CUDA_ERROR_INVALID_VALUE;
  int found = vnode_device_of_pci_bus_id(text);
  if (found < 0)
    return CUDA_ERROR_INVALID_DEVICE;
  *device = found;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  VNODE_DRIVER_READY();
  if (!can)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device) || !vnode_is_device(peer))
    return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- contexts */

static char contexts[VNODE_MAX_DEVICES]; /* the address of element d is the primary context of device d */

static CUcontext context_of(int device) {
  return (CUcontext)(void *)&contexts[device];
}

static int device_of(CUcontext context) {
  uintptr_t at = (uintptr_t)context, first = (uintptr_t)contexts;
  return at >= first && at < first + sizeof contexts ? (int)(at - first) : -1;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  VNODE_DRIVER_READY();
  if (!context)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = vnode_cuda_status(vnode_device_touch(device));
  if (!result)
    *context = context_of(device);
  return result;
}

/* The context lives until the process ends, as PyTorch's does: releasing it would free memory under its users. */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  VNODE_DRIVER_READY();
  return vnode_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  (void)flags;
  VNODE_DRIVER_READY();
  return vnode_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  VNODE_DRIVER_READY();
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (flags)
    *flags = 0;
  if (active)
    *active = vnode_device_touched(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  VNODE_DRIVER_READY();
  if (!context)
    return CUDA_ERROR_INVALID_VALUE;
  int device = vnode_device_current();
  *context = vnode_device_touched(device) ? context_of(device) : NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  VNODE_DRIVER_READY();
  if (!context) /* "no context" has no meaning apart from the runtime's current device: leave it */
    return CUDA_SUCCESS;
  int device = device_of(context);
  return device < 0 ? CUDA_ERROR_INVALID_CONTEXT : vnode_cuda_status(vnode_device_set(device));
}

/* Devices below the current one, per thread. */
enum { MAX_CONTEXT_DEPTH = 64 };
static _Thread_local int pushed[MAX_CONTEXT_DEPTH], pushed_count;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  VNODE_DRIVER_READY();
  int device = device_of(context);
  if (device < 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (pushed_count == MAX_CONTEXT_DEPTH)
    return CUDA_ERROR_INVALID_VALUE;
  pushed[pushed_count++] = vnode_device_current();
  return vnode_cuda_status(vnode_device_set(device));
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  VNODE_DRIVER_READY();
  if (!pushed_count)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (context)
    *context = context_of(vnode_device_current());
  return vnode_cuda_status(vnode_device_set(pushed[--pushed_count]));
}

CUresult cuCtxGetDevice(CUdevice *device) {
  VNODE_DRIVER_READY();
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_device_touched(vnode_device_current()))
    return CUDA_ERROR_INVALID_CONTEXT;
  *device = vnode_device_current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
  if (!context)
    return cuCtxGetDevice(device);
  VNODE_DRIVER_READY();
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  if (device_of(context) < 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  *device = device_of(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  VNODE_DRIVER_READY();
  return vnode_cuda_status(vnode_device_synchronize(vnode_device_current()));
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  VNODE_DRIVER_READY();
  if (device_of(context) < 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  return vnode_handle_status(vnode_event_record_device((struct vnode_event *)event, device_of(context)));
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  VNODE_DRIVER_READY();
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  VNODE_DRIVER_READY();
  return flags ? CUDA_ERROR_INVALID_VALUE : device_of(peer) < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- entry points */

struct variant {
  const char *name;
  const char *symbol;
  int since; /* CUDA version that brought this binary interface */
};

/* Functions of which we have another binary interface than the newest for callers of some version. All other names go to
   NAME_v2 when there is one, else to NAME: the _v2 of the original driver API are older than any caller. */
static const struct variant variants[] = {
    {"cuCtxGetDevice", "cuCtxGetDevice", 2000},
    {"cuCtxGetDevice", "cuCtxGetDevice_v2", 13000},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamBeginCapture", "cuStreamBeginCapture", 10000},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies", 11030},
    {"cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_v2", 12030},
    {"cuGraphInstantiate", "cuGraphInstantiate", 10000},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000},
    {"cuGraphGetEdges", "cuGraphGetEdges", 10000},
    {"cuGraphGetEdges", "cuGraphGetEdges_v2", 12030},
    {"cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies", 10000},
    {"cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes", "cuGraphNodeGetDependentNodes", 10000},
    {"cuGraphNodeGetDependentNodes", "cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphAddDependencies", "cuGraphAddDependencies", 10000},
    {"cuGraphAddDependencies", "cuGraphAddDependencies_v2", 12030},
    {"cuGraphRemoveDependencies", "cuGraphRemoveDependencies", 10000},
    {"cuGraphRemoveDependencies", "cuGraphRemoveDependencies_v2", 12030},
    {"cuGraphAddNode", "cuGraphAddNode", 12020},
    {"cuGraphAddNode", "cuGraphAddNode_v2", 12030},
    {"cuGraphExecUpdate", "cuGraphExecUpdate", 10020},
    {"cuGraphExecUpdate", "cuGraphExecUpdate_v2", 12000},
    {"cuGetProcAddress", "cuGetProcAddress", 11030},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
    {"cuEventElapsedTime", "cuEventElapsedTime", 2000},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2", 12080},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12020},
    {"cuMemAdvise", "cuMemAdvise_v2", 12020},
    {"cuStreamWaitValue32", "cuStreamWaitValue32", 8000},
    {"cuStreamWaitValue32", "cuStreamWaitValue32_v2", 11070},
    {"cuStreamWriteValue32", "cuStreamWriteValue32", 8000},
    {"cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070},
    {"cuLaunchHostFunc", "cuLaunchHostFunc", 10000},
};

static void *own_symbol(const char *name, const char *suffix) {
  static void *self;
  char symbol[160];
  if (!self) {
    Dl_info info;
    if (dladdr((void *)(uintptr_t)cuInit, &info))
      self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }
  int length = snprintf(symbol, sizeof symbol, "%s%s", name, suffix);
  if (!self || length < 0 || (size_t)length >= sizeof symbol)
    return NULL;
  void *found = dlsym(self, symbol);
  /* dlsym also looks through what we depend on. */
  return found && !strncmp(symbol, "cu", 2) ? found : NULL;
}

static const char *symbol_for(const char *name, int version) {
  const char *best = NULL;
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
    if (!strcmp(variants[i].name, name) && version >= variants[i].since)
      best = variants[i].symbol; /* rows of a name are in order of version */
  return best;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *query) {
  if (!name || !function)
    return CUDA_ERROR_INVALID_VALUE;
  const char *chosen = symbol_for(name, version);
  bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  char symbol[160];
  snprintf(symbol, sizeof symbol, "%s", chosen ? chosen : name);
  if (!chosen && own_symbol(name, "_v2"))
    snprintf(symbol, sizeof symbol, "%s_v2", name);
  void *found = per_thread ? own_symbol(symbol, "_ptsz") : NULL;
  if (per_thread && !found)
    found = own_symbol(symbol, "_ptds");
  if (!found)
    found = own_symbol(symbol, "");
  *function = found;
  if (query)
    *query = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags);
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
