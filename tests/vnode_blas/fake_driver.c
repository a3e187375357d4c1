/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1 for the tests: two functions, found as cuBLAS finds them, that count. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vnode_blas/fake_driver.h"

struct fake_driver fake_driver_state;

static CUresult allocate(CUdeviceptr *out, size_t bytes) {
  if (fake_driver_state.refuse)
    return CUDA_ERROR_OUT_OF_MEMORY;
  fake_driver_state.allocations++;
  fake_driver_state.bytes += bytes;
  fake_driver_state.owner = vnode_owner_hint();
  *out = (CUdeviceptr)(uintptr_t)aligned_alloc(256, 256);
  return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr pointer) {
  fake_driver_state.frees++;
  free((void *)(uintptr_t)pointer);
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  (void)version, (void)flags;
  CUresult (*memory)(CUdeviceptr *, size_t) = allocate;
  CUresult (*unmemory)(CUdeviceptr) = release;
  *status = CU_GET_PROC_ADDRESS_SUCCESS;
  if (!strcmp(name, "cuMemAlloc"))
    memcpy(function, &memory, sizeof memory);
  else if (!strcmp(name, "cuMemFree"))
    memcpy(function, &unmemory, sizeof unmemory);
  else
    return CUDA_ERROR_NOT_FOUND;
  return CUDA_SUCCESS;
}
