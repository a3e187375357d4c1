/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnvidia-ml.so.1 of the virtual node: what PyTorch asks NVML, and the facts that monitors read. NVML's header is in none
 * of PyTorch's wheels; the declarations follow NVIDIA's NVML API Reference (types and numbers are its binary interface).
 * What a virtual GPU does not have (utilisation, clocks, power, NVLink counters) answers NVML_ERROR_NOT_SUPPORTED.
 */
#include <stdio.h>
#include <string.h>

#include "common.h"

typedef int nvml_return;
enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
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

static char handles[VNODE_MAX_DEVICES];

static int device_of(const void *handle) {
  uintptr_t at = (uintptr_t)handle, first = (uintptr_t)handles;
  return at >= first && at < first + (uintptr_t)vnode_config()->device_count ? (int)(at - first) : -1;
}

#define NVML(function_name, ...)                                                                                            \
  nvml_return function_name(__VA_ARGS__);                                                                                   \
  nvml_return function_name(__VA_ARGS__)

NVML(nvmlInit_v2, void) {
  return NVML_SUCCESS;
}

NVML(nvmlInitWithFlags, unsigned int flags) {
  (void)flags;
  return NVML_SUCCESS;
}

NVML(nvmlShutdown, void) {
  return NVML_SUCCESS;
}

const char *nvmlErrorString(nvml_return code);
const char *nvmlErrorString(nvml_return code) {
  switch (code) {
  case NVML_SUCCESS:
    return "Success";
  case NVML_ERROR_INVALID_ARGUMENT:
    return "Invalid Argument";
  case NVML_ERROR_NOT_SUPPORTED:
    return "Not Supported";
  case NVML_ERROR_NOT_FOUND:
    return "Not Found";
  case NVML_ERROR_INSUFFICIENT_SIZE:
    return "Insufficient Size";
  default:
    return "Unknown Error";
  }
}

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
  return put(text, length, "virtual");
}

NVML(nvmlDeviceGetCount_v2, unsigned int *count) {
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = (unsigned int)vnode_config()->device_count;
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByIndex_v2, unsigned int index, void **handle) {
  if (!handle || index >= (unsigned)vnode_config()->device_count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *handle = &handles[index];
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, void **handle) {
  if (!handle || !bus_id)
    return NVML_ERROR_INVALID_ARGUMENT;
  int device = vnode_device_of_pci_bus_id(bus_id);
  if (device < 0)
    return NVML_ERROR_NOT_FOUND;
  *handle = &handles[device];
  return NVML_SUCCESS;
}

static void uuid_text(int device, char text[64]) {
  unsigned char id[16];
  vnode_uuid(device, id);
  int used = snprintf(text, 64, "GPU-");
  for (int i = 0; i < 16; i++)
    used += snprintf(text + used, 64 - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
}

NVML(nvmlDeviceGetHandleByUUID, const char *uuid, void **handle) {
  if (!handle || !uuid)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (int device = 0; device < vnode_config()->device_count; device++) {
    char text[64];
    uuid_text(device, text);
    if (!strcmp(text, uuid)) {
      *handle = &handles[device];
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetIndex, void *handle, unsigned int *index) {
  int device = device_of(handle);
  if (device < 0 || !index)
    return NVML_ERROR_INVALID_ARGUMENT;
  *index = (unsigned int)device;
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetName, void *handle, char *text, unsigned int length) {
  return device_of(handle) < 0 ? NVML_ERROR_INVALID_ARGUMENT : put(text, length, vnode_gpu()->name);
}

NVML(nvmlDeviceGetUUID, void *handle, char *text, unsigned int length) {
  int device = device_of(handle);
  char uuid[64];
  if (device < 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  uuid_text(device, uuid);
  return put(text, length, uuid);
}

NVML(nvmlDeviceGetCudaComputeCapability, void *handle, int *major, int *minor) {
  if (device_of(handle) < 0 || !major || !minor)
    return NVML_ERROR_INVALID_ARGUMENT;
  *major = vnode_gpu()->cc_major;
  *minor = vnode_gpu()->cc_minor;
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetPciInfo_v3, void *handle, struct nvml_pci *info) {
  int device = device_of(handle), bus = 0;
  if (device < 0 || !info)
    return NVML_ERROR_INVALID_ARGUMENT;
  memset(info, 0, sizeof *info);
  vnode_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device, &bus);
  info->bus = (unsigned int)bus;
  vnode_pci_bus_id(device, info->bus_id_legacy, sizeof info->bus_id_legacy);
  snprintf(info->bus_id, sizeof info->bus_id, "0000%s", info->bus_id_legacy);
  return NVML_SUCCESS;
}

/* Used: all processes of the session, contexts included. */
static nvml_return memory_of(const void *handle, struct nvml_memory *out) {
  int device = device_of(handle);
  uint64_t total = 0, used = 0;
  if (device < 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (vnode_memory_used(device, &used, &total))
    return NVML_ERROR_UNKNOWN;
  *out = (struct nvml_memory){.total = total, .free = total - used, .used = used};
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo, void *handle, struct nvml_memory *out) {
  return out ? memory_of(handle, out) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML(nvmlDeviceGetMemoryInfo_v2, void *handle, struct nvml_memory_v2 *out) {
  struct nvml_memory memory;
  nvml_return result = out ? memory_of(handle, &memory) : NVML_ERROR_INVALID_ARGUMENT;
  if (!result) {
    out->total = memory.total;
    out->free = memory.free;
    out->used = memory.used;
    out->reserved = 0;
  }
  return result;
}

/* PyTorch's out-of-memory message lists these; the node knows bytes per session, not per foreign process: none are named. */
NVML(nvmlDeviceGetComputeRunningProcesses, void *handle, unsigned int *count, void *infos) {
  (void)infos;
  if (device_of(handle) < 0 || !count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

NVML(nvmlDeviceGetComputeRunningProcesses_v3, void *handle, unsigned int *count, void *infos) {
  return nvmlDeviceGetComputeRunningProcesses(handle, count, infos);
}

/* NVML_P2P_STATUS_OK */
NVML(nvmlDeviceGetP2PStatus, void *one, void *other, int index, int *status) {
  (void)index;
  if (device_of(one) < 0 || device_of(other) < 0 || !status)
    return NVML_ERROR_INVALID_ARGUMENT;
  *status = 0;
  return NVML_SUCCESS;
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
  if (device_of(handle) < 0 || !info || (info->version & 0xffffff) < sizeof *info)
    return NVML_ERROR_INVALID_ARGUMENT;
  memset(info->cluster, 0, sizeof *info - sizeof info->version);
  info->status = NVML_ERROR_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

#define NVML_UNSUPPORTED(function_name)                                                                                     \
  nvml_return function_name(void);                                                                                          \
  nvml_return function_name(void) {                                                                                         \
    return NVML_ERROR_NOT_SUPPORTED;                                                                                        \
  }
/* Arguments do not matter to the answer: on both ABIs of this project a callee may ignore them. */
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkState)
NVML_UNSUPPORTED(nvmlDeviceGetUtilizationRates)
NVML_UNSUPPORTED(nvmlDeviceGetClockInfo)
NVML_UNSUPPORTED(nvmlDeviceGetMaxClockInfo)
NVML_UNSUPPORTED(nvmlDeviceGetPowerUsage)
NVML_UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
NVML_UNSUPPORTED(nvmlDeviceGetTemperature)
NVML_UNSUPPORTED(nvmlDeviceGetCurrentClocksEventReasons)
NVML_UNSUPPORTED(nvmlDeviceGetCurrentClocksThrottleReasons)
NVML_UNSUPPORTED(nvmlDeviceGetFieldValues)
NVML_UNSUPPORTED(nvmlDeviceGetProcessUtilization)
