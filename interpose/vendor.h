/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vendor functions that carrying out a plan needs, past every slot of ours: what we ask of the driver and of cuBLASLt is
 * not the job's, and is counted nowhere. Found by name in the libraries that the process has loaded, all at once; while one
 * is missing, nothing is converted.
 *
 * Thread-safety: b200_vendor_find() from any thread, idempotent; the table is const once it has been handed out. No lock, no
 * allocation; dlsym takes the loader's lock the first time.
 */
#ifndef B200_VENDOR_H
#define B200_VENDOR_H

#include <cublasLt.h>
#include <cuda.h>

/* Names as the libraries export them (cuda.h maps some to newer ones). X(library, name, type of the function) */
#define B200_VENDOR_FUNCTIONS(X)                                                                                            \
  X(cuda, cuCtxGetCurrent, CUresult, (CUcontext *))                                                                         \
  X(cuda, cuCtxGetDevice, CUresult, (CUdevice *))                                                                           \
  X(cuda, cuDeviceGetAttribute, CUresult, (int *, CUdevice_attribute, CUdevice))                                            \
  X(cuda, cuDeviceGetName, CUresult, (char *, int, CUdevice))                                                               \
  X(cuda, cuModuleLoadData, CUresult, (CUmodule *, const void *))                                                           \
  X(cuda, cuModuleGetFunction, CUresult, (CUfunction *, CUmodule, const char *))                                            \
  X(cuda, cuLaunchKernel, CUresult,                                                                                         \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))         \
  X(cuda, cuStreamCreate, CUresult, (CUstream *, unsigned))                                                                 \
  X(cuda, cuStreamQuery, CUresult, (CUstream))                                                                              \
  X(cuda, cuStreamGetId, CUresult, (CUstream, unsigned long long *))                                                        \
  X(cuda, cuStreamGetCaptureInfo_v2, CUresult,                                                                              \
    (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *))                           \
  X(cuda, cuThreadExchangeStreamCaptureMode, CUresult, (CUstreamCaptureMode *))                                             \
  X(cuda, cuEventCreate, CUresult, (CUevent *, unsigned))                                                                   \
  X(cuda, cuEventRecord, CUresult, (CUevent, CUstream))                                                                     \
  X(cuda, cuEventQuery, CUresult, (CUevent))                                                                                \
  X(cuda, cuMemAddressReserve, CUresult, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                  \
  X(cuda, cuMemCreate, CUresult, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
  X(cuda, cuMemRelease, CUresult, (CUmemGenericAllocationHandle))                                                           \
  X(cuda, cuMemMap, CUresult, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))              \
  X(cuda, cuMemUnmap, CUresult, (CUdeviceptr, size_t))                                                                      \
  X(cuda, cuMemSetAccess, CUresult, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                 \
  X(cuda, cuMemGetAllocationGranularity, CUresult,                                                                          \
    (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                                              \
  X(cuda, cuMemHostAlloc, CUresult, (void **, size_t, unsigned))                                                            \
  X(cuda, cuMemsetD8Async, CUresult, (CUdeviceptr, unsigned char, size_t, CUstream))                                        \
  X(cuda, cuMemcpyHtoDAsync_v2, CUresult, (CUdeviceptr, const void *, size_t, CUstream))                                    \
  X(cuda, cuMemcpyDtoHAsync_v2, CUresult, (void *, CUdeviceptr, size_t, CUstream))                                          \
  X(cublaslt, cublasLtGetVersion, size_t, (void))                                                                           \
  X(cublaslt, cublasLtMatmulDescCreate, cublasStatus_t, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t))      \
  X(cublaslt, cublasLtMatmulDescDestroy, cublasStatus_t, (cublasLtMatmulDesc_t))                                            \
  X(cublaslt, cublasLtMatmulDescSetAttribute, cublasStatus_t,                                                               \
    (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))                                           \
  X(cublaslt, cublasLtMatrixLayoutCreate, cublasStatus_t,                                                                   \
    (cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t))                                                  \
  X(cublaslt, cublasLtMatrixLayoutDestroy, cublasStatus_t, (cublasLtMatrixLayout_t))                                        \
  X(cublaslt, cublasLtMatrixLayoutSetAttribute, cublasStatus_t,                                                             \
    (cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t))                                        \
  X(cublaslt, cublasLtMatmulPreferenceCreate, cublasStatus_t, (cublasLtMatmulPreference_t *))                               \
  X(cublaslt, cublasLtMatmulPreferenceDestroy, cublasStatus_t, (cublasLtMatmulPreference_t))                                \
  X(cublaslt, cublasLtMatmulPreferenceSetAttribute, cublasStatus_t,                                                         \
    (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))                               \
  X(cublaslt, cublasLtMatmulAlgoGetHeuristic, cublasStatus_t,                                                               \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,        \
     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *))                    \
  X(cublaslt, cublasLtMatmul, cublasStatus_t,                                                                               \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *,              \
     cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,            \
     const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

struct b200_vendor {
#define B200_VENDOR_MEMBER(library, name, ret, params) ret(*name) params;
  B200_VENDOR_FUNCTIONS(B200_VENDOR_MEMBER)
#undef B200_VENDOR_MEMBER
};

/* The table; NULL while a function is missing (a library that is not loaded yet, or too old). */
const struct b200_vendor *b200_vendor_find(void);

#endif
