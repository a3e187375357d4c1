/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnvidia-ml.so.1 of the virtual node: what PyTorch asks NVML, and the facts that monitors read. NVML's header is in none
 * of PyTorch's wheels; the declarations follow NVIDIA's NVML API Reference (types and numbers are its binary interface).
 * Answers come from the node's state: devices, memory, the session's processes, the GPU model's published figures. What the
 * node has no state for (utilisation, current clocks, power, temperature, error and link counters) answers
 * NVML_ERROR_NOT_SUPPORTED, which monitors show as "N/A"; nothing is made up.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

typedef int nvml_return;
enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999,
};

struct nvml_memory {
  unsigned long long total, free, used;
};

struct nvml_memory_v2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};

struct nvml_pci {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct nvml_process_v1 {
  unsigned int pid;
  unsigned long long used;
};

/* Versions 2 and 3 of the functions. */
struct nvml_process {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
};

static char handles[VNODE_MAX_DEVICES];
static atomic_int initialised; /* nvmlInit less nvmlShutdown */

static bool ready(void) {
  return atomic_load_explicit(&initialised, memory_order_relaxed) > 0;
}

static int device_of(const void *handle) {
  uintptr_t at = (uintptr_t)handle, first = (uintptr_t)handles;
  return at >= first && at < first + (uintptr_t)vnode_config()->device_count ? (int)(at - first) : -1;
}

/* What every function that takes a device checks first: `good` is about its other arguments. */
static nvml_return check(const void *handle, bool good) {
  return !ready() ? NVML_ERROR_UNINITIALIZED : device_of(handle) >= 0 && good ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

#define NVML(function_name, ...)                                                                                            \
  nvml_return function_name(__VA_ARGS__);                                                                                   \
  nvml_return function_name(__VA_ARGS__)

NVML(nvmlInitWithFlags, unsigned int flags) {
  (void)flags;
  atomic_fetch_add(&initialised, 1);
  return NVML_SUCCESS;
}

NVML(nvmlInit_v2, void) {
  return nvmlInitWithFlags(0);
}

NVML(nvmlInit, void) {
  return nvmlInitWithFlags(0);
}

NVML(nvmlShutdown, void) {
  int before = atomic_load(&initialised);
  while (before > 0)
    if (atomic_compare_exchange_weak(&initialised, &before, before - 1))
      return NVML_SUCCESS;
  return NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvml_return code);
const char *nvmlErrorString(nvml_return code) {
  static const struct {
    nvml_return code;
    const char *text;
  } texts[] = {{NVML_SUCCESS, "Success"},
               {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
               {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
               {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
               {NVML_ERROR_NOT_FOUND, "Not Found"},
               {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
               {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].code == code)
      return texts[i].text;
  return "Unknown Error";
}

/* ----------------------------------------------------------------------------------------------------------- system */

/* These two answer before nvmlInit too, as NVIDIA's do. */
NVML(nvmlSystemGetCudaDriverVersion_v2, int *version) {
  if (!version)
    return NVML_ERROR_INVALID_ARGUMENT;
  *version = CUDA_VERSION;
  return NVML_SUCCESS;
}

NVML(nvmlSystemGetCudaDriverVersion, int *version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

static nvml_return put(char *text, unsigned int length, const char *value) {
  if (!text)
    return NVML_ERROR_INVALID_ARGUMENT;
  int needed = snprintf(text, length, "%s", value);
  return needed < 0 || (unsigned)needed >= length ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML(nvmlSystemGetDriverVersion, char *text, unsigned int length) {
  return ready() ? put(text, length, "virtual") : NVML_ERROR_UNINITIALIZED;
}

NVML(nvmlSystemGetNVMLVersion, char *text, unsigned int length) {
  return put(text, length, "virtual");
}

/* The command's first word. */
NVML(nvmlSystemGetProcessName, unsigned int pid, char *text, unsigned int length) {
  char path[64], command[4096];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t bytes = fd < 0 ? -1 : read(fd, command, sizeof command - 1);
  if (fd >= 0)
    close(fd);
  if (!ready())
    return NVML_ERROR_UNINITIALIZED;
  if (bytes <= 0)
    return NVML_ERROR_NOT_FOUND;
  command[bytes] = 0;
  return put(text, length, command);
}

/* ---------------------------------------------------------------------------------------------------------- devices */

NVML(nvmlDeviceGetCount_v2, unsigned int *count) {
  if (!ready() || !count)
    return ready() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
  *count = (unsigned int)vnode_config()->device_count;
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCount, unsigned int *count) {
  return nvmlDeviceGetCount_v2(count);
}

/* `device` as found, or negative with the status to give. */
static nvml_return hand_out(int device, nvml_return otherwise, void **handle) {
  if (!ready())
    return NVML_ERROR_UNINITIALIZED;
  if (!handle || device < 0)
    return handle ? otherwise : NVML_ERROR_INVALID_ARGUMENT;
  *handle = &handles[device];
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByIndex_v2, unsigned int index, void **handle) {
  return hand_out(index < (unsigned)vnode_config()->device_count ? (int)index : -1, NVML_ERROR_INVALID_ARGUMENT, handle);
}

NVML(nvmlDeviceGetHandleByIndex, unsigned int index, void **handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, void **handle) {
  return bus_id ? hand_out(vnode_device_of_pci_bus_id(bus_id), NVML_ERROR_NOT_FOUND, handle) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML(nvmlDeviceGetHandleByPciBusId, const char *bus_id, void **handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

static void uuid_text(int device, char text[64]) {
  unsigned char id[16];
  vnode_uuid(device, id);
  int used = snprintf(text, 64, "GPU-");
  for (int i = 0; i < 16; i++)
    used += snprintf(text + used, 64 - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
}

NVML(nvmlDeviceGetHandleByUUID, const char *uuid, void **handle) {
  if (!uuid)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (int device = 0; device < vnode_config()->device_count; device++) {
    char text[64];
    uuid_text(device, text);
    if (!strcmp(text, uuid))
      return hand_out(device, NVML_SUCCESS, handle);
  }
  return hand_out(-1, NVML_ERROR_NOT_FOUND, handle);
}

/* One number of a device: `value` may use `device` and `gpu`. */
#define NVML_NUMBER(function_name, value)                                                                                   \
  NVML(function_name, void *handle, unsigned int *out) {                                                                    \
    nvml_return result = check(handle, out);                                                                                \
    const int device = device_of(handle);                                                                                   \
    const struct vnode_gpu *gpu = vnode_gpu();                                                                              \
    (void)gpu, (void)device;                                                                                                \
    if (!result)                                                                                                            \
      *out = (unsigned int)(value);                                                                                         \
    return result;                                                                                                          \
  }

/* Ampere 7, Ada 8, Hopper 9, Blackwell 10, whichever its compute capability. */
static unsigned int architecture_of(const struct vnode_gpu *gpu) {
  if (gpu->cc_major == 8)
    return gpu->cc_minor == 9 ? 8 : 7;
  return gpu->cc_major == 9 ? 9 : 10;
}

NVML_NUMBER(nvmlDeviceGetIndex, device)
NVML_NUMBER(nvmlDeviceGetMinorNumber, device)
NVML_NUMBER(nvmlDeviceGetMemoryBusWidth, gpu->memory_bus_bits)
/* FP32 lanes: 64 of an SM of GA100, 128 of any other here. */
NVML_NUMBER(nvmlDeviceGetNumGpuCores, gpu->sm_count *(gpu->cc_major == 8 && gpu->cc_minor == 0 ? 64 : 128))
NVML_NUMBER(nvmlDeviceGetArchitecture, architecture_of(gpu))
NVML_NUMBER(nvmlDeviceGetComputeMode, 0) /* default: shared by processes */
NVML_NUMBER(nvmlDeviceGetMaxMigDeviceCount, 0)
NVML_NUMBER(nvmlDeviceIsMigDeviceHandle, 0)

NVML(nvmlDeviceGetName, void *handle, char *text, unsigned int length) {
  nvml_return result = check(handle, text);
  return result ? result : put(text, length, vnode_gpu()->name);
}

NVML(nvmlDeviceGetUUID, void *handle, char *text, unsigned int length) {
  nvml_return result = check(handle, text);
  char uuid[64];
  if (result)
    return result;
  uuid_text(device_of(handle), uuid);
  return put(text, length, uuid);
}

NVML(nvmlDeviceGetCudaComputeCapability, void *handle, int *major, int *minor) {
  nvml_return result = check(handle, major && minor);
  if (!result) {
    *major = vnode_gpu()->cc_major;
    *minor = vnode_gpu()->cc_minor;
  }
  return result;
}

NVML(nvmlDeviceGetPciInfo_v3, void *handle, struct nvml_pci *info) {
  nvml_return result = check(handle, info);
  int device = device_of(handle), bus = 0;
  if (result)
    return result;
  memset(info, 0, sizeof *info);
  vnode_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device, &bus);
  info->bus = (unsigned int)bus;
  vnode_pci_bus_id(device, info->bus_id_legacy, sizeof info->bus_id_legacy);
  snprintf(info->bus_id, sizeof info->bus_id, "0000%s", info->bus_id_legacy);
  return NVML_SUCCESS;
}

/* Graphics, SM, memory. The current clocks are not known. */
NVML(nvmlDeviceGetMaxClockInfo, void *handle, unsigned int type, unsigned int *mhz) {
  nvml_return result = check(handle, mhz && type < 4);
  if (result || type == 3)
    return result ? result : NVML_ERROR_NOT_SUPPORTED;
  *mhz = (unsigned int)(type == 2 ? vnode_gpu()->memory_clock_khz : vnode_gpu()->clock_khz) / 1000;
  return NVML_SUCCESS;
}

static nvml_return put_mode(const void *handle, unsigned int mode, unsigned int *current, unsigned int *pending) {
  nvml_return result = check(handle, current && pending);
  if (!result)
    *current = *pending = mode;
  return result;
}

NVML(nvmlDeviceGetMigMode, void *handle, unsigned int *current, unsigned int *pending) {
  return put_mode(handle, 0, current, pending);
}

NVML(nvmlDeviceGetEccMode, void *handle, unsigned int *current, unsigned int *pending) {
  int enabled = 0;
  vnode_attribute(CU_DEVICE_ATTRIBUTE_ECC_ENABLED, device_of(handle) < 0 ? 0 : device_of(handle), &enabled);
  return put_mode(handle, (unsigned int)enabled, current, pending);
}

/* ------------------------------------------------------------------------------------------- memory and processes */

/* Used: all processes of the session, contexts included. */
static nvml_return memory_of(const void *handle, struct nvml_memory *out) {
  nvml_return result = check(handle, out);
  uint64_t total = 0, used = 0;
  if (result)
    return result;
  if (vnode_memory_used(device_of(handle), &used, &total))
    return NVML_ERROR_UNKNOWN;
  *out = (struct nvml_memory){.total = total, .free = total - used, .used = used};
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo, void *handle, struct nvml_memory *out) {
  return memory_of(handle, out);
}

NVML(nvmlDeviceGetMemoryInfo_v2, void *handle, struct nvml_memory_v2 *out) {
  struct nvml_memory memory;
  if (out && out->version != (2u << 24 | sizeof *out))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvml_return result = out ? memory_of(handle, &memory) : NVML_ERROR_INVALID_ARGUMENT;
  if (!result) {
    out->total = memory.total;
    out->free = memory.free;
    out->used = memory.used;
    out->reserved = 0;
  }
  return result;
}

enum { MOST_PROCESSES = 256 }; /* as many as a session has */

/* Puts the session's processes on the device into `v1` or `v2`, whichever is not NULL. `count`: the room there, then how
   many there are. */
static nvml_return processes_of(const void *handle, unsigned int *count, struct nvml_process_v1 *v1,
                                struct nvml_process *v2) {
  struct vnode_process found[MOST_PROCESSES];
  size_t total = 0;
  nvml_return result = check(handle, count);
  if (result)
    return result;
  if (vnode_memory_processes(device_of(handle), found, MOST_PROCESSES, &total))
    return NVML_ERROR_UNKNOWN;
  unsigned int room = v1 || v2 ? *count : 0;
  *count = (unsigned int)total;
  for (size_t i = 0; i < total && i < room; i++)
    if (v1)
      v1[i] = (struct nvml_process_v1){(unsigned int)found[i].pid, found[i].used_bytes};
    else
      v2[i] = (struct nvml_process){(unsigned int)found[i].pid, found[i].used_bytes, ~0u, ~0u};
  return total > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* PyTorch's out-of-memory message lists these. */
NVML(nvmlDeviceGetComputeRunningProcesses, void *handle, unsigned int *count, struct nvml_process_v1 *infos) {
  return processes_of(handle, count, infos, NULL);
}

NVML(nvmlDeviceGetComputeRunningProcesses_v2, void *handle, unsigned int *count, struct nvml_process *infos) {
  return processes_of(handle, count, NULL, infos);
}

NVML(nvmlDeviceGetComputeRunningProcesses_v3, void *handle, unsigned int *count, struct nvml_process *infos) {
  return processes_of(handle, count, NULL, infos);
}

/* No display and no MPS: nobody. */
#define NVML_NO_PROCESSES(function_name)                                                                                    \
  NVML(function_name, void *handle, unsigned int *count, void *infos) {                                                     \
    nvml_return result = check(handle, count);                                                                              \
    (void)infos;                                                                                                            \
    if (!result)                                                                                                            \
      *count = 0;                                                                                                           \
    return result;                                                                                                          \
  }
NVML_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NVML_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NVML_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NVML_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NVML_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NVML_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* ----------------------------------------------------------------------------------------------------- interconnect */

/* NVML_P2P_STATUS_OK */
NVML(nvmlDeviceGetP2PStatus, void *one, void *other, int index, int *status) {
  nvml_return result = check(one, status && device_of(other) >= 0);
  (void)index;
  if (!result)
    *status = 0;
  return result;
}

/* All links of all devices go to the node's switches and are up. */
static nvml_return link_fact(const void *handle, unsigned int link, unsigned int fact, unsigned int *out) {
  nvml_return result = check(handle, out && link < (unsigned)vnode_gpu()->nvlink_count);
  if (!result)
    *out = fact;
  return result;
}

NVML(nvmlDeviceGetNvLinkState, void *handle, unsigned int link, unsigned int *active) {
  return link_fact(handle, link, 1, active);
}

NVML(nvmlDeviceGetNvLinkVersion, void *handle, unsigned int link, unsigned int *version) {
  return link_fact(handle, link, (unsigned int)vnode_gpu()->nvlink_version, version);
}

/* NVML_NVLINK_DEVICE_TYPE_SWITCH */
NVML(nvmlDeviceGetNvLinkRemoteDeviceType, void *handle, unsigned int link, unsigned int *type) {
  return link_fact(handle, link, 2, type);
}

/* Versions 2 and 3 begin like this; the low 24 bits of `version` are the size of the caller's structure. */
struct nvml_fabric_info {
  unsigned int version;
  unsigned char cluster[16];
  nvml_return status;
  unsigned int clique;
  unsigned char state; /* 0: not supported */
  unsigned int health;
};

/* A success that says "no fabric" keeps PyTorch quiet; an error makes it warn at every start with expandable segments. */
NVML(nvmlDeviceGetGpuFabricInfoV, void *handle, struct nvml_fabric_info *info) {
  nvml_return result = check(handle, info && (info->version & 0xffffff) >= sizeof *info);
  if (result)
    return result;
  memset(info->cluster, 0, sizeof *info - sizeof info->version);
  info->status = NVML_ERROR_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

/* --------------------------------------------------------------------------------------------- what the node has not */

#define NVML_UNSUPPORTED(function_name)                                                                                     \
  nvml_return function_name(void);                                                                                          \
  nvml_return function_name(void) {                                                                                         \
    return ready() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;                                                   \
  }
/* Arguments do not matter to the answer: on both ABIs of this project a callee may ignore them. */
NVML_UNSUPPORTED(nvmlDeviceGetAccountingMode)
NVML_UNSUPPORTED(nvmlDeviceGetApplicationsClock)
NVML_UNSUPPORTED(nvmlDeviceGetAttributes_v2)
NVML_UNSUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
NVML_UNSUPPORTED(nvmlDeviceGetBrand)
NVML_UNSUPPORTED(nvmlDeviceGetClock)
NVML_UNSUPPORTED(nvmlDeviceGetClockInfo)
NVML_UNSUPPORTED(nvmlDeviceGetCpuAffinity)
NVML_UNSUPPORTED(nvmlDeviceGetCpuAffinityWithinScope)
NVML_UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration)
NVML_UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth)
NVML_UNSUPPORTED(nvmlDeviceGetCurrentClocksEventReasons)
NVML_UNSUPPORTED(nvmlDeviceGetCurrentClocksThrottleReasons)
NVML_UNSUPPORTED(nvmlDeviceGetDecoderUtilization)
NVML_UNSUPPORTED(nvmlDeviceGetDisplayActive)
NVML_UNSUPPORTED(nvmlDeviceGetDisplayMode)
NVML_UNSUPPORTED(nvmlDeviceGetEncoderUtilization)
NVML_UNSUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
NVML_UNSUPPORTED(nvmlDeviceGetFanSpeed)
NVML_UNSUPPORTED(nvmlDeviceGetFieldValues)
NVML_UNSUPPORTED(nvmlDeviceGetGpuInstanceId)
NVML_UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
NVML_UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth)
NVML_UNSUPPORTED(nvmlDeviceGetMemoryAffinity)
NVML_UNSUPPORTED(nvmlDeviceGetMemoryErrorCounter)
NVML_UNSUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NVML_UNSUPPORTED(nvmlDeviceGetNumaNodeId)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkCapability)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkErrorCounter)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NVML_UNSUPPORTED(nvmlDeviceGetPcieThroughput)
NVML_UNSUPPORTED(nvmlDeviceGetPerformanceState)
NVML_UNSUPPORTED(nvmlDeviceGetPersistenceMode)
NVML_UNSUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit)
NVML_UNSUPPORTED(nvmlDeviceGetPowerManagementLimit)
NVML_UNSUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
NVML_UNSUPPORTED(nvmlDeviceGetPowerState)
NVML_UNSUPPORTED(nvmlDeviceGetPowerUsage)
NVML_UNSUPPORTED(nvmlDeviceGetProcessUtilization)
NVML_UNSUPPORTED(nvmlDeviceGetRemappedRows)
NVML_UNSUPPORTED(nvmlDeviceGetRetiredPages)
NVML_UNSUPPORTED(nvmlDeviceGetSamples)
NVML_UNSUPPORTED(nvmlDeviceGetSerial)
NVML_UNSUPPORTED(nvmlDeviceGetSupportedClocksEventReasons)
NVML_UNSUPPORTED(nvmlDeviceGetTemperature)
NVML_UNSUPPORTED(nvmlDeviceGetTemperatureThreshold)
NVML_UNSUPPORTED(nvmlDeviceGetTemperatureV)
NVML_UNSUPPORTED(nvmlDeviceGetTopologyCommonAncestor)
NVML_UNSUPPORTED(nvmlDeviceGetTopologyNearestGpus)
NVML_UNSUPPORTED(nvmlDeviceGetTotalEccErrors)
NVML_UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
NVML_UNSUPPORTED(nvmlDeviceGetUtilizationRates)
NVML_UNSUPPORTED(nvmlDeviceGetVbiosVersion)
NVML_UNSUPPORTED(nvmlDeviceGetViolationStatus)
NVML_UNSUPPORTED(nvmlEventSetCreate)
NVML_UNSUPPORTED(nvmlSystemGetTopologyGpuSet)
