/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS: handle, settings, workspace, copies between host and device layouts. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/vnode/standins/cublas_handle.h"

/* ------------------------------------------------------------------------------------------------------ workspace */

typedef CUresult get_proc_address(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

/* As the real library, which links no driver and asks it for its functions. */
static void *driver_function(const char *name, int cuda_version) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *symbol = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL, *function = NULL;
  get_proc_address *get;
  CUdriverProcAddressQueryResult found;
  if (!symbol)
    return NULL;
  memcpy(&get, &symbol, sizeof symbol);
  return get(name, &function, cuda_version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS ? function : NULL;
}

static bool workspace_allocate(unsigned long long *out) {
  void *function = driver_function("cuMemAlloc", 3020);
  CUresult (*allocate)(CUdeviceptr *, size_t);
  CUdeviceptr pointer = 0;
  if (!function)
    return false;
  memcpy(&allocate, &function, sizeof function);
  enum vnode_owner previous = vnode_owner_push(VNODE_OWNER_CUBLAS);
  CUresult result = allocate(&pointer, VNODE_CUBLAS_WORKSPACE_BYTES);
  vnode_owner_pop(previous);
  *out = pointer;
  return result == CUDA_SUCCESS;
}

static void workspace_free(unsigned long long workspace) {
  void *function = driver_function("cuMemFree", 3020);
  CUresult (*release)(CUdeviceptr);
  if (!function)
    return;
  memcpy(&release, &function, sizeof function);
  (void)release(workspace);
}

/* While its stream captures cuBLAS has no use for memory that a graph does not own: it takes some as a node of the graph. */
static bool workspace_capture(cudaStream_t stream) {
  void *functions[] = {driver_function("cuMemAllocAsync", 11020), driver_function("cuMemFreeAsync", 11020)};
  CUresult (*allocate)(CUdeviceptr *, size_t, CUstream);
  CUresult (*release)(CUdeviceptr, CUstream);
  CUdeviceptr pointer = 0;
  if (!functions[0] || !functions[1])
    return false;
  memcpy(&allocate, &functions[0], sizeof allocate);
  memcpy(&release, &functions[1], sizeof release);
  enum vnode_owner previous = vnode_owner_push(VNODE_OWNER_CUBLAS);
  CUresult result = allocate(&pointer, VNODE_CUBLAS_WORKSPACE_BYTES, stream);
  vnode_owner_pop(previous);
  return result == CUDA_SUCCESS && release(pointer, stream) == CUDA_SUCCESS;
}

cublasStatus_t vnode_cublas_prepare(cublasHandle_t handle) {
  if (handle->workspace_set || handle->workspace)
    return CUBLAS_STATUS_SUCCESS;
  bool done = vnode_stream_is_capturing((struct vnode_stream *)handle->stream) ? workspace_capture(handle->stream)
                                                                               : workspace_allocate(&handle->workspace);
  return done ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

VNODE_API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if ((uintptr_t)workspace % VNODE_CUBLAS_WORKSPACE_ALIGN != 0 || (!workspace && bytes > 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace_set = true;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------------- life */

bool vnode_cublas_is_live(cublasHandle_t handle) {
  return handle && handle->base.live == VNODE_BLAS_HANDLE_LIVE;
}

VNODE_API cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  if (!handle)
    return CUBLAS_STATUS_INVALID_VALUE;
  *handle = NULL;
  int device = vnode_device_current();
  if (vnode_device_touch(device) != VNODE_OK)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  struct cublasContext *context = calloc(1, sizeof *context);
  if (!context)
    return CUBLAS_STATUS_ALLOC_FAILED;
  context->base.live = VNODE_BLAS_HANDLE_LIVE;
  context->device = device;
  context->special_values = CUDA_EMULATION_SPECIAL_VALUES_SUPPORT_DEFAULT;
  *handle = context;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  (void)vnode_stream_synchronize((struct vnode_stream *)handle->stream);
  if (handle->workspace)
    workspace_free(handle->workspace);
  handle->base.live = 0;
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
  (void)handle; /* the real one answers without a handle too */
  if (!version)
    return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
  return vnode_blas_property(type, value);
}

VNODE_API size_t cublasGetCudartVersion(void) {
  return vnode_blas_cudart_version();
}

VNODE_API const char *cublasGetStatusName(cublasStatus_t status) {
  return vnode_blas_status_name(status);
}

VNODE_API const char *cublasGetStatusString(cublasStatus_t status) {
  return vnode_blas_status_string(status);
}

/* ------------------------------------------------------------------------------------------------------- settings */

VNODE_API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  handle->workspace_set = false;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream) {
  if (!vnode_cublas_is_live(handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!stream)
    return CUBLAS_STATUS_INVALID_VALUE;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

/* cublasSet<name> and cublasGet<name> of one member; `valid` is an expression over `value`. */
#define SETTING(setter, getter, type, member, valid)                                                                        \
  VNODE_API cublasStatus_t setter(cublasHandle_t handle, type value) {                                                      \
    if (!vnode_cublas_is_live(handle))                                                                                      \
      return CUBLAS_STATUS_NOT_INITIALIZED;                                                                                 \
    if (!(valid))                                                                                                           \
      return CUBLAS_STATUS_INVALID_VALUE;                                                                                   \
    handle->member = value;                                                                                                 \
    return CUBLAS_STATUS_SUCCESS;                                                                                           \
  }                                                                                                                         \
  VNODE_API cublasStatus_t getter(cublasHandle_t handle, type *value) {                                                     \
    if (!vnode_cublas_is_live(handle))                                                                                      \
      return CUBLAS_STATUS_NOT_INITIALIZED;                                                                                 \
    if (!value)                                                                                                             \
      return CUBLAS_STATUS_INVALID_VALUE;                                                                                   \
    *value = handle->member;                                                                                                \
    return CUBLAS_STATUS_SUCCESS;                                                                                           \
  }

static bool math_mode_valid(cublasMath_t mode) {
  switch ((unsigned)mode & ~(unsigned)CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) {
  case CUBLAS_DEFAULT_MATH:
  case CUBLAS_TENSOR_OP_MATH:
  case CUBLAS_PEDANTIC_MATH:
  case CUBLAS_TF32_TENSOR_OP_MATH:
  case CUBLAS_FP32_EMULATED_BF16X9_MATH:
  case CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH:
    return true;
  default:
    return false;
  }
}

SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointer_mode,
        (unsigned)value <= CUBLAS_POINTER_MODE_DEVICE)
SETTING(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math_mode, math_mode_valid(value))
SETTING(cublasSetAtomicsMode, cublasGetAtomicsMode, cublasAtomicsMode_t, atomics_mode,
        (unsigned)value <= CUBLAS_ATOMICS_ALLOWED)
SETTING(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count_target, value >= 0 && value <= vnode_gpu()->sm_count)
SETTING(cublasSetEmulationStrategy, cublasGetEmulationStrategy, cublasEmulationStrategy_t, emulation_strategy,
        (unsigned)value <= CUBLAS_EMULATION_STRATEGY_EAGER)
SETTING(cublasSetEmulationSpecialValuesSupport, cublasGetEmulationSpecialValuesSupport, cudaEmulationSpecialValuesSupport,
        special_values, true)
SETTING(cublasSetFixedPointEmulationMantissaControl, cublasGetFixedPointEmulationMantissaControl,
        cudaEmulationMantissaControl, mantissa_control, true)
SETTING(cublasSetFixedPointEmulationMaxMantissaBitCount, cublasGetFixedPointEmulationMaxMantissaBitCount, int,
        max_mantissa_bits, value >= 0)
SETTING(cublasSetFixedPointEmulationMantissaBitOffset, cublasGetFixedPointEmulationMantissaBitOffset, int, mantissa_offset,
        true)
typedef int *int_pointer;
SETTING(cublasSetFixedPointEmulationMantissaBitCountPointer, cublasGetFixedPointEmulationMantissaBitCountPointer,
        int_pointer, mantissa_count, true)

/* -------------------------------------------------------------------------------------------------------- logging */

/* Nothing is logged; the callback is kept so that it can be asked for. */
static cublasLogCallback logger_callback;

VNODE_API cublasStatus_t cublasLoggerConfigure(int on, int to_stdout, int to_stderr, const char *file) {
  (void)on, (void)to_stdout, (void)to_stderr, (void)file;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasSetLoggerCallback(cublasLogCallback callback) {
  logger_callback = callback;
  return CUBLAS_STATUS_SUCCESS;
}

VNODE_API cublasStatus_t cublasGetLoggerCallback(cublasLogCallback *callback) {
  if (!callback)
    return CUBLAS_STATUS_INVALID_VALUE;
  *callback = logger_callback;
  return CUBLAS_STATUS_SUCCESS;
}
