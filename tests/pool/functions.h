/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA without linking to it: the runtime is loaded by name and its functions are found as the linker would find them, so
 * that one program runs on the virtual node and on a GPU, with and without a library in front.
 */
#ifndef B200_TESTS_POOL_FUNCTIONS_H
#define B200_TESTS_POOL_FUNCTIONS_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTIONS(X)                                                                                                        \
  X(cudaMalloc, cudaError_t, (void **, size_t))                                                                             \
  X(cudaFree, cudaError_t, (void *))                                                                                        \
  X(cudaMallocAsync, cudaError_t, (void **, size_t, cudaStream_t))                                                          \
  X(cudaFreeAsync, cudaError_t, (void *, cudaStream_t))                                                                     \
  X(cudaMallocPitch, cudaError_t, (void **, size_t *, size_t, size_t))                                                      \
  X(cudaMallocManaged, cudaError_t, (void **, size_t, unsigned))                                                            \
  X(cudaHostAlloc, cudaError_t, (void **, size_t, unsigned))                                                                \
  X(cudaFreeHost, cudaError_t, (void *))                                                                                    \
  X(cudaDeviceGetDefaultMemPool, cudaError_t, (cudaMemPool_t *, int))                                                       \
  X(cudaMemPoolSetAttribute, cudaError_t, (cudaMemPool_t, enum cudaMemPoolAttr, void *))                                    \
  X(cudaMemGetInfo, cudaError_t, (size_t *, size_t *))                                                                      \
  X(cudaMemset, cudaError_t, (void *, int, size_t))                                                                         \
  X(cudaMemsetAsync, cudaError_t, (void *, int, size_t, cudaStream_t))                                                      \
  X(cudaMemcpy, cudaError_t, (void *, const void *, size_t, enum cudaMemcpyKind))                                           \
  X(cudaMemcpyAsync, cudaError_t, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t))                        \
  X(cudaMemcpyPeerAsync, cudaError_t, (void *, int, const void *, int, size_t, cudaStream_t))                               \
  X(cudaDeviceSynchronize, cudaError_t, (void))                                                                             \
  X(cudaStreamCreateWithFlags, cudaError_t, (cudaStream_t *, unsigned))                                                     \
  X(cudaStreamSynchronize, cudaError_t, (cudaStream_t))                                                                     \
  X(cudaStreamBeginCapture, cudaError_t, (cudaStream_t, enum cudaStreamCaptureMode))                                        \
  X(cudaStreamEndCapture, cudaError_t, (cudaStream_t, cudaGraph_t *))                                                       \
  X(cudaGraphLaunch, cudaError_t, (cudaGraphExec_t, cudaStream_t))                                                          \
  X(cudaGraphDestroy, cudaError_t, (cudaGraph_t))                                                                           \
  X(cudaGraphExecDestroy, cudaError_t, (cudaGraphExec_t))                                                                   \
  X(cudaGetLastError, cudaError_t, (void))                                                                                  \
  X(cudaPeekAtLastError, cudaError_t, (void))                                                                               \
  X(cudaPointerGetAttributes, cudaError_t, (struct cudaPointerAttributes *, const void *))                                  \
  X(cudaGetDeviceCount, cudaError_t, (int *))                                                                               \
  X(cudaSetDevice, cudaError_t, (int))                                                                                      \
  X(cudaDeviceCanAccessPeer, cudaError_t, (int *, int, int))                                                                \
  X(cudaIpcGetMemHandle, cudaError_t, (cudaIpcMemHandle_t *, void *))                                                       \
  X(cudaIpcOpenMemHandle, cudaError_t, (void **, cudaIpcMemHandle_t, unsigned))                                             \
  X(cudaIpcCloseMemHandle, cudaError_t, (void *))                                                                           \
  X(cuInit, CUresult, (unsigned))                                                                                           \
  X(cuMemAlloc_v2, CUresult, (CUdeviceptr *, size_t))                                                                       \
  X(cuMemFree_v2, CUresult, (CUdeviceptr))                                                                                  \
  X(cuMemGetInfo_v2, CUresult, (size_t *, size_t *))                                                                        \
  X(cuMemGetAddressRange_v2, CUresult, (CUdeviceptr *, size_t *, CUdeviceptr))                                              \
  X(cuPointerGetAttribute, CUresult, (void *, CUpointer_attribute, CUdeviceptr))                                            \
  X(cuPointerGetAttributes, CUresult, (unsigned, CUpointer_attribute *, void **, CUdeviceptr))                              \
  X(cuPointerSetAttribute, CUresult, (const void *, CUpointer_attribute, CUdeviceptr))                                      \
  X(cuStreamBeginCapture_v2, CUresult, (CUstream, CUstreamCaptureMode))                                                     \
  X(cuStreamEndCapture, CUresult, (CUstream, CUgraph *))                                                                    \
  X(cuGetProcAddress_v2, CUresult, (const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *))              \
  X(cuCtxGetCurrent, CUresult, (CUcontext *))                                                                               \
  X(cuCtxSetCurrent, CUresult, (CUcontext))                                                                                 \
  X(cuCtxSynchronize, CUresult, (void))                                                                                     \
  X(cuCtxEnablePeerAccess, CUresult, (CUcontext, unsigned))                                                                 \
  X(cuDevicePrimaryCtxRetain, CUresult, (CUcontext *, CUdevice))                                                            \
  X(cuDevicePrimaryCtxRelease_v2, CUresult, (CUdevice))                                                                     \
  X(cuMemCreate, CUresult, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))       \
  X(cuMemRelease, CUresult, (CUmemGenericAllocationHandle))                                                                 \
  X(cuMemAddressReserve, CUresult, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                        \
  X(cuMemAddressFree, CUresult, (CUdeviceptr, size_t))                                                                      \
  X(cuMemMap, CUresult, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                    \
  X(cuMemUnmap, CUresult, (CUdeviceptr, size_t))                                                                            \
  X(cuMemSetAccess, CUresult, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

/* Not on every node and driver; the last is the tests' own. */
#define OPTIONAL_FUNCTIONS(X)                                                                                               \
  X(pool_test_note, void, (CUdeviceptr))                                                                                    \
  X(cuStreamWaitValue32_v2, CUresult, (CUstream, CUdeviceptr, cuuint32_t, unsigned))                                        \
  X(cudaGraphInstantiate, cudaError_t, (cudaGraphExec_t *, cudaGraph_t, unsigned long long))                                \
  X(cuDevicePrimaryCtxReset_v2, CUresult, (CUdevice))                                                                       \
  X(cuMemRetainAllocationHandle, CUresult, (CUmemGenericAllocationHandle *, void *))                                        \
  X(cuMemGetHandleForAddressRange, CUresult, (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))

#define DECLARE(name, ret, params) static ret(*p_##name) params __attribute__((unused));
FUNCTIONS(DECLARE)
OPTIONAL_FUNCTIONS(DECLARE)
#undef DECLARE

/* cudaFree as PyTorch's caching allocator calls it, and the library can tell. */
extern cudaError_t pool_test_cache_free(cudaError_t (*free_block)(void *), void *block);
static inline cudaError_t free_as_pytorch(void *block) {
  return pool_test_cache_free(p_cudaFree, block);
}

static void load_functions(void) {
  const char *runtime = getenv("POOL_TEST_CUDART");
  if (!dlopen(runtime ? runtime : "libcudart.so.13", RTLD_NOW | RTLD_GLOBAL) ||
      !dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) {
    fprintf(stderr, "no CUDA: %s\n", dlerror());
    exit(77);
  }
#define FIND(name, ret, params)                                                                                             \
  if (!(*(void **)&p_##name = dlsym(RTLD_DEFAULT, #name))) {                                                                \
    fprintf(stderr, "no %s\n", #name);                                                                                      \
    exit(77);                                                                                                               \
  }
#define TRY(name, ret, params) *(void **)&p_##name = dlsym(RTLD_DEFAULT, #name);
  FUNCTIONS(FIND)
  OPTIONAL_FUNCTIONS(TRY)
#undef FIND
#undef TRY
}

#endif
