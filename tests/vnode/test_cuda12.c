/* SPDX-License-Identifier: Apache-2.0 */
/* What a CUDA 12 program finds that a CUDA 13 program does not: interfaces with fewer arguments, versions, smaller objects.
 */
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "vnode_test.h"

#define OK(call) ck_assert_int_eq(call, cudaSuccess)

/* The plain name, which the header makes a macro for _v2. */
cudaError_t first_capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                               unsigned long long *id) __asm__("cudaStreamGetCaptureInfo");

START_TEST(the_runtime_is_of_cuda_12_over_a_newer_driver) {
  int runtime = 0, driver = 0, asked = 0;
  OK(cudaRuntimeGetVersion(&runtime));
  OK(cudaDriverGetVersion(&driver));
  ck_assert_int_eq(runtime, CUDART_VERSION);
  ck_assert_int_eq(runtime / 1000, 12);
  ck_assert_int_ge(driver, runtime);
  OK(cudaFree(NULL));
  ck_assert_int_eq(cuDriverGetVersion(&asked), CUDA_SUCCESS);
  ck_assert_int_eq(driver, asked);
}
END_TEST

START_TEST(properties_have_the_fields_of_cuda_12) {
  struct cudaDeviceProp prop;
  int clock = 0, memory_clock = 0;
  OK(cudaGetDeviceProperties(&prop, 0));
  OK(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0));
  OK(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0));
  ck_assert_str_eq(prop.name, "NVIDIA B200");
  ck_assert_int_eq(prop.multiProcessorCount, 148);
  ck_assert_int_gt(prop.clockRate, 0);
  ck_assert_int_eq(prop.clockRate, clock);
  ck_assert_int_eq(prop.memoryClockRate, memory_clock);
}
END_TEST

START_TEST(capture_is_told_without_edges) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0, same = 0;
  const cudaGraphNode_t *nodes = NULL;
  cudaGraphNode_t added = NULL;
  cudaStream_t stream;
  cudaGraph_t graph = NULL, captured = NULL;
  void *block = NULL;
  size_t count = 9;
  OK(cudaMalloc(&block, 64));
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(cudaMemsetAsync(block, 1, 64, stream));
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, &count));
  ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
  ck_assert_uint_eq(count, 1);
  ck_assert_ptr_nonnull(graph);
  status = cudaStreamCaptureStatusNone;
  OK(first_capture_info(stream, &status, &same));
  ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
  ck_assert_uint_eq(same, id);
  OK(cudaGraphAddEmptyNode(&added, graph, nodes, 1));
  OK(cudaStreamUpdateCaptureDependencies(stream, &added, 1, cudaStreamSetCaptureDependencies));
  OK(cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &nodes, &count));
  ck_assert_uint_eq(count, 1);
  ck_assert_ptr_eq(nodes[0], added);
  OK(cudaStreamEndCapture(stream, &captured));
  OK(cudaGraphDestroy(captured));
}
END_TEST

START_TEST(graphs_are_made_and_read_without_edges) {
  struct cudaGraphNodeParams empty = {.type = cudaGraphNodeTypeEmpty};
  cudaGraphNode_t a = NULL, b = NULL, c = NULL, from = NULL, to = NULL, found = NULL;
  cudaGraph_t graph;
  size_t count = 0;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddEmptyNode(&a, graph, NULL, 0));
  OK(cudaGraphAddEmptyNode(&b, graph, NULL, 0));
  OK(cudaGraphAddDependencies(graph, &a, &b, 1));
  OK(cudaGraphGetEdges(graph, NULL, NULL, &count));
  ck_assert_uint_eq(count, 1);
  OK(cudaGraphGetEdges(graph, &from, &to, &count));
  ck_assert(from == a && to == b);
  OK(cudaGraphNodeGetDependencies(b, &found, &count));
  ck_assert(found == a && count == 1);
  OK(cudaGraphNodeGetDependentNodes(a, &found, &count));
  ck_assert(found == b && count == 1);
  OK(cudaGraphRemoveDependencies(graph, &a, &b, 1));
  OK(cudaGraphNodeGetDependencies(b, NULL, &count));
  ck_assert_uint_eq(count, 0);
  OK(cudaGraphAddNode(&c, graph, &a, 1, &empty));
  count = 1;
  OK(cudaGraphNodeGetDependencies(c, &found, &count));
  ck_assert(found == a && count == 1);
  OK(cudaGraphDestroy(graph));
}
END_TEST

START_TEST(advice_and_prefetches_name_devices_by_ordinal) {
  void *managed = NULL;
  OK(cudaMallocManaged(&managed, MIB, cudaMemAttachGlobal));
  OK(cudaMemAdvise(managed, MIB, cudaMemAdviseSetPreferredLocation, 1));
  OK(cudaMemAdvise(managed, MIB, cudaMemAdviseSetAccessedBy, cudaCpuDeviceId));
  OK(cudaMemPrefetchAsync(managed, MIB, 1, NULL));
  OK(cudaMemPrefetchAsync(managed, MIB, cudaCpuDeviceId, NULL));
  ck_assert_int_eq(cudaMemPrefetchAsync(managed, MIB, 99, NULL), cudaErrorInvalidDevice);
  OK(cudaFree(managed));
}
END_TEST

START_TEST(both_elapsed_times_agree) {
  cudaEvent_t start, end;
  float first = -1, second = -2;
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventRecord(start, NULL));
  OK(cudaEventRecord(end, NULL));
  OK(cudaEventSynchronize(end));
  OK(cudaEventElapsedTime(&first, start, end));
  OK(cudaEventElapsedTime_v2(&second, start, end));
  ck_assert(first >= 0 && first == second);
}
END_TEST

/* cuBLASLt 13 has larger objects and more attributes. */
START_TEST(cublaslt_keeps_to_its_objects_and_attributes) {
  enum { ALPHA_BATCH_STRIDE = 39, BATCH_MODE = 8 }; /* of CUDA 13 */
  struct {
    cublasLtMatrixLayoutOpaque_t layout;
    cublasLtMatmulPreferenceOpaque_t preference;
    unsigned char guard[64];
  } objects;
  unsigned char untouched[sizeof objects.guard];
  int64_t value = 0;
  int32_t batch = 0;
  memset(&objects, 0x5a, sizeof objects);
  memset(untouched, 0x5a, sizeof untouched);
  ck_assert_int_eq(cublasLtMatmulPreferenceInit(&objects.preference), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasLtMatrixLayoutInit(&objects.layout, CUDA_R_16BF, 16, 8, 16), CUBLAS_STATUS_SUCCESS);
  ck_assert_mem_eq(objects.guard, untouched, sizeof untouched);
  ck_assert_int_eq(
      cublasLtMatrixLayoutGetAttribute(&objects.layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch, NULL),
      CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(batch, 1);
  ck_assert_int_eq(
      cublasLtMatrixLayoutSetAttribute(&objects.layout, (cublasLtMatrixLayoutAttribute_t)BATCH_MODE, &batch, sizeof batch),
      CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulDesc_t desc;
  ck_assert_int_eq(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(
      cublasLtMatmulDescSetAttribute(desc, (cublasLtMatmulDescAttributes_t)ALPHA_BATCH_STRIDE, &value, sizeof value),
      CUBLAS_STATUS_INVALID_VALUE);
  ck_assert_int_eq(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
}
END_TEST

int main(void) {
  const TTest *tests[] = {the_runtime_is_of_cuda_12_over_a_newer_driver,
                          properties_have_the_fields_of_cuda_12,
                          capture_is_told_without_edges,
                          graphs_are_made_and_read_without_edges,
                          advice_and_prefetches_name_devices_by_ordinal,
                          both_elapsed_times_agree,
                          cublaslt_keeps_to_its_objects_and_attributes};
  return run_tests("cuda12", tests, sizeof tests / sizeof *tests);
}
