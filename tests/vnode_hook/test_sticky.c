/* SPDX-License-Identifier: Apache-2.0 */
/* After an error that ends the context every call says so, but for those that need none. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tests/vnode/vnode_test.h"

START_TEST(the_runtime) {
  void *block, *second = NULL;
  int value = 0;
  ck_assert_int_eq(cudaMalloc(&block, 1 << 20), cudaSuccess);
  vnode_set_sticky_error(cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaPeekAtLastError(), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaMalloc(&second, 1 << 20), cudaErrorIllegalAddress);
  ck_assert_ptr_null(second);
  ck_assert_int_eq(cudaMemset(block, 0, 16), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaStreamSynchronize(NULL), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaFree(block), cudaErrorIllegalAddress);
  for (int i = 0; i < 3; i++) /* is not reset */
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
  ck_assert_str_eq(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
  ck_assert_str_eq(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered");
  ck_assert_int_eq(cudaRuntimeGetVersion(&value), cudaSuccess);
  ck_assert_int_eq(value, CUDART_VERSION);
}
END_TEST

START_TEST(the_first_error_stays) {
  vnode_set_sticky_error(cudaErrorAssert);
  vnode_set_sticky_error(cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorAssert);
}
END_TEST

START_TEST(the_driver) {
  CUdeviceptr block;
  const char *text;
  int version;
  ck_assert_int_eq(cuInit(0), CUDA_SUCCESS);
  ck_assert_int_eq(cuMemAlloc(&block, 1 << 20), CUDA_SUCCESS);
  vnode_set_sticky_error(CUDA_ERROR_LAUNCH_FAILED);
  ck_assert_int_eq(cuMemAlloc(&block, 1 << 20), CUDA_ERROR_LAUNCH_FAILED);
  ck_assert_int_eq(cuMemFree(block), CUDA_ERROR_LAUNCH_FAILED);
  ck_assert_int_eq(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  ck_assert_int_eq(cuGetErrorName(CUDA_ERROR_LAUNCH_FAILED, &text), CUDA_SUCCESS);
  ck_assert_str_eq(text, "CUDA_ERROR_LAUNCH_FAILED");
  ck_assert_int_eq(cuDriverGetVersion(&version), CUDA_SUCCESS);
}
END_TEST

START_TEST(the_other_libraries) {
  cublasHandle_t blas, second = NULL;
  cublasLtHandle_t lt = NULL;
  cublasLtMatmulDesc_t op;
  ncclUniqueId id;
  ncclComm_t comm, other = NULL;
  float one = 1, zero = 0, *data;
  int count = 0;
  ck_assert_int_eq(cudaMalloc((void **)&data, 1 << 20), cudaSuccess);
  ck_assert_int_eq(cublasCreate(&blas), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  vnode_set_sticky_error(cudaErrorIllegalAddress);
  ck_assert_int_eq(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, data, CUDA_R_32F, 8, data, CUDA_R_32F, 8,
                                &zero, data + 64, CUDA_R_32F, 8, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                   CUBLAS_STATUS_EXECUTION_FAILED);
  ck_assert_int_eq(cublasSetStream(blas, NULL), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasCreate(&second), CUBLAS_STATUS_NOT_INITIALIZED);
  ck_assert_int_eq(cublasLtCreate(&lt), CUBLAS_STATUS_NOT_INITIALIZED);
  ck_assert_int_eq(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(ncclAllReduce(data, data, 16, ncclFloat, ncclSum, comm, NULL), ncclUnhandledCudaError);
  ck_assert_int_eq(ncclCommInitRank(&other, 1, id, 0), ncclUnhandledCudaError);
  ck_assert_int_eq(ncclCommCount(comm, &count), ncclSuccess);
  ck_assert_int_eq(count, 1);
  ck_assert_int_eq(ncclCommAbort(comm), ncclSuccess);
}
END_TEST

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);

START_TEST(nvml_needs_no_context) {
  unsigned count = 0;
  vnode_set_sticky_error(cudaErrorIllegalAddress);
  ck_assert_int_eq(nvmlInit_v2(), 0);
  ck_assert_int_eq(nvmlDeviceGetCount_v2(&count), 0);
  ck_assert_int_gt((int)count, 0);
}
END_TEST

/* By a fault: the call itself is the first to say so. */
START_TEST(by_a_fault) {
  setenv("B200OPT_VNODE_FAULT", "cudaMemset:2:sticky=719", 1);
  void *block;
  ck_assert_int_eq(cudaMalloc(&block, 1 << 20), cudaSuccess);
  ck_assert_int_eq(cudaMemset(block, 0, 16), cudaSuccess);
  ck_assert_int_eq(cudaMemset(block, 0, 16), cudaErrorLaunchFailure);
  ck_assert_int_eq(cudaFree(block), cudaErrorLaunchFailure);
  ck_assert_int_eq(vnode_sticky_error(), cudaErrorLaunchFailure);
}
END_TEST

START_TEST(by_a_fault_of_another_library) {
  setenv("B200OPT_VNODE_FAULT", "cublasCreate_v2:1:sticky=700", 1);
  cublasHandle_t handle = NULL;
  ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
  ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {
      the_runtime, the_first_error_stays,        the_driver, the_other_libraries, nvml_needs_no_context,
      by_a_fault,  by_a_fault_of_another_library};
  return run_tests("sticky", tests, sizeof tests / sizeof *tests);
}
