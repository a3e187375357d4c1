/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver, a cuBLAS, a cuBLASLt, an NCCL and some of the runtime that do nothing and succeed, so that what is measured is
 * the library's own time. The self-test's sums come out right; everything else is not looked at.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

#undef cuStreamGetCaptureInfo_v2
#undef cuEventElapsedTime
#define EXPORT __attribute__((visibility("default")))

long fake_device_allocations;

/* ---- driver */

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)&fake_device_allocations;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  (void)device;
  snprintf(name, (size_t)size, "NVIDIA B200");
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 10
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 148
                                                                       : 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  (void)image;
  *module = (CUmodule)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module, (void)name;
  *function = (CUfunction)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                               unsigned shared, CUstream stream, void **parameters, void **extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters,
      (void)extra;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = (CUstream)16;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamQuery(CUstream stream) {
  (void)stream;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
  *id = (unsigned long long)(uintptr_t)stream;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, size_t *count);
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, size_t *count) {
  (void)stream, (void)id, (void)graph, (void)dependencies, (void)count;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  (void)mode;
  return CUDA_SUCCESS;
}
/* An event is the time of its record, of a clock that every record moves on. */
static double times_ms[1 << 16], now_ms;
EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
  static size_t made;
  (void)flags;
  *event = (CUevent)(void *)&times_ms[made++ % (sizeof times_ms / sizeof *times_ms)];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  (void)stream;
  *(double *)(void *)event = now_ms += 0.002;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to);
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
  *ms = (float)(*(double *)(void *)to - *(double *)(void *)from);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
  (void)stream;
  *flags = CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  (void)priority;
  return cuStreamCreate(stream, flags);
}
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = *greatest = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventQuery(CUevent event) {
  (void)event;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags option) {
  (void)properties, (void)option;
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr near,
                                    unsigned long long flags) {
  static CUdeviceptr next = 1ull << 40;
  (void)alignment, (void)near, (void)flags;
  *address = next;
  next += size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags) {
  (void)size, (void)properties, (void)flags;
  *handle = (CUmemGenericAllocationHandle)++fake_device_allocations;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  (void)handle;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  (void)address, (void)size, (void)offset, (void)handle, (void)flags;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  (void)address, (void)size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
  (void)address, (void)size, (void)access, (void)count;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  static char memory[8 << 20];
  static size_t used;
  (void)flags;
  *address = memory + used;
  used += (size + 63) / 64 * 64;
  return used <= sizeof memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = *total_bytes = (size_t)178 << 30;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
  (void)address, (void)value, (void)count, (void)stream;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t count, CUstream stream) {
  (void)to, (void)from, (void)count, (void)stream;
  return CUDA_SUCCESS;
}
/* Only sums of errors (0) and squares (1), or counters, are ever copied to the host. */
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t count, CUstream stream) {
  double *sums = to;
  (void)from, (void)stream;
  for (size_t i = 0; i < count / sizeof *sums; i++)
    sums[i] = count < 256 && i % 2 ? 1 : 0;
  return CUDA_SUCCESS;
}

/* ---- cuBLAS */

EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream) {
  (void)handle;
  *stream = (cudaStream_t)32;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
  (void)handle;
  *mode = CUBLAS_POINTER_MODE_HOST;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
  (void)handle;
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int *count) {
  (void)handle;
  *count = 0;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                   const void *alpha, const void *a, cudaDataType at, int lda, const void *b,
                                   cudaDataType bt, int ldb, const void *beta, void *c, cudaDataType ct, int ldc,
                                   cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  (void)handle, (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)at, (void)lda, (void)b, (void)bt,
      (void)ldb, (void)beta, (void)c, (void)ct, (void)ldc, (void)compute, (void)algo;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- cuBLASLt: the objects are words of their attributes */

struct object {
  uint64_t words[64];
};
static struct object pool[4096];
static int pooled;

static void *object(void) {
  return &pool[pooled++ % 4096];
}

EXPORT size_t cublasLtGetVersion(void) {
  return 130401;
}
EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  struct object *made = object();
  memset(made, 0, sizeof *made);
  made->words[CUBLASLT_MATMUL_DESC_COMPUTE_TYPE] = (uint64_t)compute;
  made->words[CUBLASLT_MATMUL_DESC_SCALE_TYPE] = (uint64_t)scale;
  made->words[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
  made->words[CUBLASLT_MATMUL_DESC_FILL_MODE] = CUBLAS_FILL_MODE_FULL;
  *desc = (cublasLtMatmulDesc_t)(void *)made;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  (void)desc;
  return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t set(void *to, int attribute, const void *value, size_t bytes) {
  memcpy(&((struct object *)to)->words[attribute], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t get(void *from, int attribute, void *value, size_t bytes, size_t *written) {
  memcpy(value, &((struct object *)from)->words[attribute], bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                                     const void *value, size_t bytes) {
  return set(desc, (int)attribute, value, bytes);
}
EXPORT cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                                     void *value, size_t bytes, size_t *written) {
  return get(desc, (int)attribute, value, bytes, written);
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                                 uint64_t cols, int64_t ld) {
  struct object *made = object();
  memset(made, 0, sizeof *made);
  made->words[CUBLASLT_MATRIX_LAYOUT_TYPE] = (uint64_t)type;
  made->words[CUBLASLT_MATRIX_LAYOUT_ROWS] = rows;
  made->words[CUBLASLT_MATRIX_LAYOUT_COLS] = cols;
  made->words[CUBLASLT_MATRIX_LAYOUT_LD] = (uint64_t)ld;
  made->words[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT] = 1;
  *layout = (cublasLtMatrixLayout_t)(void *)made;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  (void)layout;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                       size_t bytes) {
  return set(layout, (int)attribute, value, bytes);
}
EXPORT cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute, void *value, size_t bytes,
                                                       size_t *written) {
  return get(layout, (int)attribute, value, bytes, written);
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  *preference = (cublasLtMatmulPreference_t)object();
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  (void)preference;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                           size_t bytes) {
  return set(preference, (int)attribute, value, bytes);
}
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int requested,
                                                     cublasLtMatmulHeuristicResult_t results[], int *count) {
  (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)requested;
  memset(results, 0, sizeof *results);
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                                     cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t cl, void *d, cublasLtMatrixLayout_t dl,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream) {
  (void)handle, (void)desc, (void)alpha, (void)a, (void)al, (void)b, (void)bl, (void)beta, (void)c, (void)cl, (void)d,
      (void)dl, (void)algo, (void)workspace, (void)bytes, (void)stream;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- NCCL: steps are found in collectives, not in GEMMs, as in any job of several ranks */

EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  (void)comm;
  *count = 8;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  (void)comm;
  *rank = 0;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
  (void)from, (void)to, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return ncclSuccess;
}

/* ---- runtime */

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)event, (void)stream;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  return cudaSuccess;
}
