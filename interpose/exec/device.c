/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/device.h"

#include <string.h>

#include "interpose/runtime.h"

enum state { EMPTY, MAKING, READY };

enum { GPUS_MAX = 32 };

static struct b200_gpu gpus[GPUS_MAX];

static int attribute(const struct b200_vendor *vendor, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return vendor->cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

static bool ask_facts(const struct b200_vendor *vendor, struct b200_gpu *gpu) {
  struct b200_device *facts = &gpu->facts;
  if (vendor->cuCtxGetDevice(&gpu->ordinal) != CUDA_SUCCESS ||
      vendor->cuDeviceGetName(facts->name, sizeof facts->name, gpu->ordinal) != CUDA_SUCCESS)
    return false;
  facts->cc = attribute(vendor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->ordinal) * 10 +
              attribute(vendor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu->ordinal);
  facts->sms = attribute(vendor, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->ordinal);
  facts->cublaslt_version = (uint32_t)vendor->cublasLtGetVersion();
  return facts->cc > 0 && facts->sms > 0;
}

/* In relaxed capture mode: another thread may be capturing, and loading may allocate. */
static bool load_kernels(const struct b200_vendor *vendor, struct b200_gpu *gpu) {
  CUmodule module;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (b200_fatbin_bytes == 0 || !attribute(vendor, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu->ordinal) ||
      vendor->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
    return false;
  bool loaded = vendor->cuModuleLoadData(&module, b200_fatbin) == CUDA_SUCCESS;
  for (int i = 0; i < B200_KERNEL_COUNT && loaded; i++)
    loaded = vendor->cuModuleGetFunction(&gpu->kernels[i], module, b200_kernels[i].name) == CUDA_SUCCESS;
  vendor->cuThreadExchangeStreamCaptureMode(&mode);
  return loaded;
}

static void make(const struct b200_vendor *vendor, struct b200_gpu *gpu, const struct b200_config *config,
                 bool wants_kernels) {
  char complaint[B200_CONFIG_COMPLAINT_BYTES];
  ask_facts(vendor, gpu); /* what could not be asked is 0, for which nothing is converted */
  b200_policy_make(&gpu->policy, config, &gpu->facts, complaint, sizeof complaint);
  if (complaint[0])
    b200_runtime_say(complaint);
  gpu->has_kernels = wants_kernels && gpu->facts.cc > 0 && load_kernels(vendor, gpu);
}

struct b200_gpu *b200_gpu_of(CUcontext context, const struct b200_vendor *vendor, const struct b200_config *config,
                             bool may_make, bool wants_kernels) {
  for (int i = 0; i < GPUS_MAX; i++) {
    struct b200_gpu *gpu = &gpus[i];
    int state = atomic_load_explicit(&gpu->state, memory_order_acquire);
    if (state == READY && gpu->context == context)
      return gpu;
    if (state == READY)
      continue;
    if (state == MAKING || !may_make || !atomic_compare_exchange_strong(&gpu->state, &state, MAKING))
      return NULL;
    gpu->context = context;
    make(vendor, gpu, config, wants_kernels);
    atomic_store_explicit(&gpu->state, READY, memory_order_release);
    return gpu;
  }
  return NULL;
}

const struct b200_gpu *b200_gpu_any(void) {
  return atomic_load_explicit(&gpus[0].state, memory_order_acquire) == READY ? &gpus[0] : NULL;
}

CUresult b200_gpu_launch(const struct b200_vendor *vendor, const struct b200_gpu *gpu, enum b200_kernel kernel,
                         const void *args, CUstream stream) {
  const struct b200_kernel_info *info = &b200_kernels[kernel];
  uint32_t blocks = b200_kernel_blocks(kernel, args, gpu->facts.sms);
  unsigned char copy[128]; /* the driver's parameter list is not const */
  void *parameters[] = {copy};
  if (info->args_bytes > sizeof copy)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(copy, args, info->args_bytes);
  return vendor->cuLaunchKernel(gpu->kernels[kernel], blocks, 1, 1, info->threads, 1, 1, 0, stream, parameters, NULL);
}
