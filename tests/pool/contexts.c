/* SPDX-License-Identifier: Apache-2.0 */
/* What the virtual node does not have, preloaded behind the library: the end of a context, which frees every block that the
   program has ever had, as the driver would; handles of ranges, which not every driver gives; and a handle of a block of
   cudaMalloc, which one that makes them of physical memory gives. */
#include <cuda.h>
#include <dlfcn.h>
#include <stddef.h>

enum { BLOCKS = 64 };
static CUdeviceptr blocks[BLOCKS];
static int count;

void pool_test_note(CUdeviceptr block);
__attribute__((visibility("default"))) void pool_test_note(CUdeviceptr block) {
  if (count < BLOCKS)
    blocks[count++] = block;
}

__attribute__((visibility("default"))) CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUresult (*release)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(RTLD_NEXT, "cuMemFree_v2");
  (void)device;
  if (!release)
    return CUDA_ERROR_NOT_SUPPORTED;
  for (int i = 0; i < count; i++)
    release(blocks[i]);
  count = 0;
  return CUDA_SUCCESS;
}

__attribute__((visibility("default"))) CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address,
                                                                              size_t bytes, CUmemRangeHandleType type,
                                                                              unsigned long long flags) {
  (void)handle, (void)address, (void)bytes, (void)type, (void)flags;
  return CUDA_ERROR_NOT_SUPPORTED;
}

__attribute__((visibility("default"))) CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                                            void *address) {
  (void)address;
  *handle = 4711;
  return CUDA_SUCCESS;
}
