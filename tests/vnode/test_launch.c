/* SPDX-License-Identifier: Apache-2.0 */
/* Driver API: modules, and launches of the kernels that the node can run, by a stream, late, in a graph, and wrongly. */
#include <cuda.h>
#include <stdint.h>

#include "interpose/exec/quant.h"
#include "vnode_test.h"

#define OK(call) ck_assert_int_eq(call, CUDA_SUCCESS)

static const char image[64] = "any image will do: a function is its name";

static CUfunction function_named(const char *name) {
  CUmodule module;
  CUfunction function;
  OK(cuInit(0));
  OK(cuModuleLoadData(&module, image));
  OK(cuModuleGetFunction(&function, module, name));
  return function;
}

static void *device(size_t bytes) {
  CUdeviceptr at = 0;
  OK(cuMemAlloc(&at, bytes));
  return (void *)(uintptr_t)at;
}

static CUdeviceptr address(const void *at) {
  return (CUdeviceptr)(uintptr_t)at;
}

/* 3 rows of 40 along k, made by MXFP8's kernel: row 0 holds 1, row 1 holds 1344, row 2 holds zeros. */
enum { OUTER = 3, K = 40, LD = 48 };

struct quantisation {
  struct b200_mx_args args;
  float *source;
  uint8_t *data, *scales;
};

static struct quantisation quantisation_make(CUstream stream) {
  struct quantisation q = {.source = device(OUTER * K * sizeof(float)), .data = device(OUTER * LD), .scales = device(512)};
  static float values[OUTER * K]; /* pageable: taken at the call */
  for (int i = 0; i < K; i++) {
    values[i] = 1;
    values[K + i] = 1344;
  }
  OK(cuMemsetD8Async(address(q.data), 0xaa, OUTER * LD, stream));
  OK(cuMemsetD8Async(address(q.scales), 0xaa, 512, stream));
  OK(cuMemcpyHtoDAsync(address(q.source), values, sizeof values, stream));
  q.args = (struct b200_mx_args){
      .in = {.src = q.source, .ld = K, .outer = OUTER, .k = K, .type = B200_SOURCE_F32, .major = B200_K_FAST},
      .dst = q.data,
      .dst_ld = LD,
      .scales = q.scales,
      .narrow = B200_NARROW_E4M3,
      .rounding = B200_MX_RCEIL};
  return q;
}

static CUresult launch(CUfunction function, const struct b200_mx_args *args, CUstream stream) {
  struct b200_mx_args copy = *args; /* gone when the kernel runs late */
  void *parameters[] = {&copy};
  uint32_t blocks = b200_kernel_blocks(B200_KERNEL_MX_F32_KFAST, args, 148);
  CUresult result = cuLaunchKernel(function, blocks, 1, 1, b200_kernels[B200_KERNEL_MX_F32_KFAST].threads, 1, 1, 0, stream,
                                   parameters, NULL);
  memset(&copy, 0xff, sizeof copy);
  return result;
}

/* Two blocks a row. 1 is scaled by 2^8 to E4M3's 256, 1344 by 1/4 to 336, a tie that goes to 320. */
static void check(const struct quantisation *q) {
  static const uint8_t codes[OUTER] = {0x78, 0x7a, 0}, scales[OUTER] = {127 - 8, 127 + 2, 0};
  for (int row = 0; row < OUTER; row++) {
    for (int i = 0; i < LD; i++)
      ck_assert_msg(q->data[row * LD + i] == (i < K ? codes[row] : 0), "row %d, %d: %02x", row, i, q->data[row * LD + i]);
    for (int block = 0; block < 4; block++)
      ck_assert_int_eq(q->scales[b200_scale_offset(row, block, 4)], block < 2 ? scales[row] : 0);
  }
  ck_assert_int_eq(q->scales[b200_scale_offset(127, 0, 4)], 0); /* padding */
}

START_TEST(a_kernel_runs_in_the_order_of_its_stream) {
  CUfunction function = function_named("b200_mx_f32_kfast");
  CUstream stream;
  CUevent start, end;
  float ms = 0;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
  struct quantisation q = quantisation_make(stream);
  OK(cuEventRecord(start, stream));
  OK(launch(function, &q.args, stream));
  OK(cuEventRecord(end, stream));
  OK(cuMemsetD8Async(address(q.source), 0xff, OUTER * K * sizeof(float), stream)); /* NaN */
  OK(cuStreamSynchronize(stream));
  check(&q);
  OK(cuEventElapsedTime(&ms, start, end));
  ck_assert_double_ge(ms, 0.002); /* models.def: no kernel is shorter */
  ck_assert_double_lt(ms, 0.05);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(libraries_and_packed_parameters) {
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  CUmodule module;
  const char *name = NULL;
  size_t offset = 1, bytes = 0;
  OK(cuInit(0));
  OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "b200_mx_f32_kfast"));
  OK(cuKernelGetFunction(&function, kernel));
  OK(cuLibraryGetModule(&module, library));
  OK(cuModuleUnload(module));
  OK(cuFuncGetName(&name, function));
  ck_assert_str_eq(name, "b200_mx_f32_kfast");
  OK(cuFuncGetParamInfo(function, 0, &offset, &bytes));
  ck_assert_uint_eq(offset, 0);
  ck_assert_uint_eq(bytes, sizeof(struct b200_mx_args));
  ck_assert_int_eq(cuFuncGetParamInfo(function, 1, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  ck_assert_int_eq(cuLibraryGetKernel(&kernel, (CUlibrary)(void *)&bytes, "x"), CUDA_ERROR_INVALID_HANDLE);
  struct quantisation q = quantisation_make(NULL);
  bytes = sizeof q.args;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &q.args, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  const CUlaunchConfig config = {
      .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = B200_KERNEL_THREADS, .blockDimY = 1, .blockDimZ = 1};
  void *parameters[] = {&q.args};
  ck_assert_int_eq(cuLaunchKernelEx(&config, function, parameters, extra), CUDA_ERROR_INVALID_VALUE); /* one of the two */
  OK(cuLaunchKernelEx(&config, function, NULL, extra));
  OK(cuCtxSynchronize());
  check(&q);
  int value = 0;
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  ck_assert_int_eq(value, 1024);
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_BINARY_VERSION, function));
  ck_assert_int_eq(value, 100);
  OK(cuLibraryUnload(library));
}
END_TEST

START_TEST(a_graph_replays_a_kernel) {
  CUfunction function = function_named("b200_mx_f32_kfast");
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[2];
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  size_t count = 2;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  struct quantisation q = quantisation_make(stream);
  OK(cuStreamSynchronize(stream));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(launch(function, &q.args, stream));
  OK(cuStreamEndCapture(stream, &graph));
  ck_assert_int_eq(q.data[0], 0xaa); /* nothing ran */
  OK(cuGraphGetNodes(graph, nodes, &count));
  ck_assert_uint_eq(count, 1);
  OK(cuGraphNodeGetType(nodes[0], &type));
  ck_assert_int_eq(type, CU_GRAPH_NODE_TYPE_KERNEL);
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; i++) {
    OK(cuMemsetD8Async(address(q.data), 0xaa, OUTER * LD, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    check(&q);
  }
}
END_TEST

/* A kernel on one stream reads what another writes, without a wait between them. */
START_TEST(the_race_checker_sees_what_a_kernel_touches) {
  CUfunction function = function_named("b200_mx_f32_kfast");
  CUstream one, other;
  OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  struct quantisation q = quantisation_make(one);
  OK(cuStreamSynchronize(one));
  OK(cuMemsetD8Async(address(q.source), 0, sizeof(float), one));
  OK(launch(function, &q.args, other));
  OK(cuCtxSynchronize());
  ck_assert_int_eq(vnode_race_count() > 0, vnode_config()->order != VNODE_ORDER_EAGER);
}
END_TEST

struct wrong {
  unsigned grid_z, threads, shared_bytes;
  size_t packed_bytes;
  const char *text;
};

static void launch_wrongly(void *argument) {
  const struct wrong *wrong = argument;
  CUfunction function = function_named("b200_mx_f32_kfast");
  struct quantisation q = quantisation_make(NULL);
  size_t bytes = wrong->packed_bytes;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &q.args, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  cuLaunchKernel(function, 1, 1, wrong->grid_z, wrong->threads, 1, 1, wrong->shared_bytes, NULL, NULL, extra);
}

START_TEST(launches_that_a_kernel_is_not_made_for_end_the_process) {
  static const struct wrong wrongs[] = {
      {1, 128, 0, sizeof(struct b200_mx_args), "with threads 128, made for 256"},
      {2, 256, 0, sizeof(struct b200_mx_args), "with depth of its grid 2, made for 1"},
      {1, 256, 64, sizeof(struct b200_mx_args), "with bytes of shared memory 64, made for 0"},
      {1, 256, 0, sizeof(struct b200_mx_args) - 8, "with bytes of parameters 72, made for 80"},
  };
  for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
    char text[512];
    struct wrong wrong = wrongs[i];
    int status = in_child_with_stderr(launch_wrongly, &wrong, text, sizeof text);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ck_assert_msg(strstr(text, "kernel b200_mx_f32_kfast launched") && strstr(text, wrong.text), "%s", text);
  }
}
END_TEST

static void launch_unknown(void *argument) {
  (void)argument;
  void *parameters[1] = {NULL};
  cuLaunchKernel(function_named("b200_mx_f32"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

START_TEST(other_kernels_stay_unhandled) {
  char text[512];
  int status = in_child_with_stderr(launch_unknown, NULL, text, sizeof text);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  ck_assert_msg(strstr(text, "b200_mx_f32") != NULL, "%s", text);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {a_kernel_runs_in_the_order_of_its_stream,
                                libraries_and_packed_parameters,
                                a_graph_replays_a_kernel,
                                the_race_checker_sees_what_a_kernel_touches,
                                launches_that_a_kernel_is_not_made_for_end_the_process,
                                other_kernels_stay_unhandled};
  return run_tests("launch", tests, sizeof tests / sizeof *tests);
}
