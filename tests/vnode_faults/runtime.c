/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime API: devices, memory, copies, pools, streams, events, host functions, launches, graphs. */
#include <cuda_runtime_api.h>

#include "harness.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* cudaGetDriverEntryPoint */

/* What nvcc's code would call. */
void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t bytes, int constant,
                       int global);
void __cudaUnregisterFatBinary(void **handle);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                               cudaStream_t stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);

enum { BYTES = 4096 };

static void kernel(void) {}
static int variable[16];

static void last_error(void) {
  int peeked = (int)cudaPeekAtLastError(), first = (int)cudaGetLastError(), second = (int)cudaGetLastError();
  SHOW("last error %d, %d, then %d", peeked, first, second);
}

static void devices(void) {
  int count = -1, device = -1, value = -1, least = -1, greatest = -1, can = -1, version = -1;
  unsigned flags = 77;
  char bus[32] = "";
  struct cudaDeviceProp prop;
  memset(&prop, 0, sizeof prop);
  CALL(cudaGetDeviceCount(&count));
  SHOW("count %d", count);
  CALL(cudaSetDevice(0));
  CALL(cudaGetDevice(&device));
  SHOW("device %d", device);
  CALL(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
  SHOW("value %d", value);
  CALL(cudaGetDeviceProperties(&prop, 0));
  SHOW("name '%s'", prop.name);
  CALL(cudaDriverGetVersion(&version));
  SHOW("version %d", version);
  CALL(cudaRuntimeGetVersion(&version));
  CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  SHOW("priorities %d %d", least, greatest);
  CALL(cudaDeviceCanAccessPeer(&can, 0, 1));
  SHOW("can %d", can);
  CALL(cudaDeviceEnablePeerAccess(1, 0));
  CALL(cudaDeviceDisablePeerAccess(1));
  CALL(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
  SHOW("bus '%s'", bus);
  CALL(cudaDeviceGetByPCIBusId(&device, bus));
  CALL(cudaGetDeviceFlags(&flags));
  SHOW("flags %u", flags);
  CALL(cudaSetDeviceFlags(0));
  CALL(cudaInitDevice(0, 0, 0));
  SHOW("%s: %s", cudaGetErrorName(cudaErrorInvalidValue), cudaGetErrorString(cudaErrorInvalidValue));
  last_error();
}

static void memory(void) {
  void *a = NULL, *b = NULL, *managed = NULL, *pitched = NULL, *pinned = NULL, *pinned2 = NULL, *on_device = NULL;
  size_t pitch = 0, available = 1, total = 0;
  unsigned flags = 77;
  static char registered[BYTES] __attribute__((aligned(4096)));
  struct cudaPointerAttributes attributes;
  memset(&attributes, 0, sizeof attributes);
  CALL(cudaMalloc(&a, BYTES));
  SHOW_POINTER(a);
  CALL(cudaMalloc(&b, 4 << 20));
  SHOW_POINTER(b);
  CALL(cudaMallocManaged(&managed, BYTES, cudaMemAttachGlobal));
  SHOW_POINTER(managed);
  CALL(cudaMallocPitch(&pitched, &pitch, 100, 10));
  SHOW("pitch %zu", pitch);
  CALL(cudaMallocHost(&pinned, BYTES));
  CALL(cudaHostAlloc(&pinned2, BYTES, cudaHostAllocMapped));
  CALL(cudaHostGetDevicePointer(&on_device, pinned2, 0));
  SHOW_POINTER(on_device);
  CALL(cudaHostGetFlags(&flags, pinned2));
  SHOW("flags %u", flags);
  CALL(cudaHostRegister(registered, BYTES, cudaHostRegisterDefault));
  CALL(cudaHostUnregister(registered));
  CALL(cudaMemGetInfo(&available, &total));
  SHOW("free %zu of %zu", available, total);
  CALL(cudaPointerGetAttributes(&attributes, a));
  SHOW("type %d device %d", (int)attributes.type, attributes.device);
  CALL(cudaMemAdvise(managed, BYTES, cudaMemAdviseSetReadMostly, (struct cudaMemLocation){cudaMemLocationTypeDevice, 0}));
  CALL(cudaMemPrefetchAsync(managed, BYTES, (struct cudaMemLocation){cudaMemLocationTypeDevice, 0}, 0, NULL));
  void *too_much = NULL;
  CALL(cudaMalloc(&too_much, (size_t)1 << 50));
  last_error();
  CALL(cudaFreeHost(pinned));
  CALL(cudaFreeHost(pinned2));
  CALL(cudaFree(pitched));
  CALL(cudaFree(managed));
  CALL(cudaFree(b));
  CALL(cudaFree(a));
  CALL(cudaFree(a)); /* twice */
  last_error();
}

static void copies(cudaStream_t stream) {
  char *a = NULL, *b = NULL, host[BYTES], back[BYTES];
  memset(host, 7, sizeof host);
  memset(back, 1, sizeof back);
  CALL(cudaMalloc((void **)&a, BYTES));
  CALL(cudaMalloc((void **)&b, BYTES));
  CALL(cudaMemset(a, 0, BYTES));
  CALL(cudaMemsetAsync(b, 3, BYTES, stream));
  CALL(cudaMemset2D(a, 64, 5, 32, 8));
  CALL(cudaMemset2DAsync(a, 64, 6, 16, 8, stream));
  CALL(cudaMemcpy(a, host, 64, cudaMemcpyHostToDevice));
  CALL(cudaMemcpyAsync(b, a, 1024, cudaMemcpyDeviceToDevice, stream));
  CALL(cudaMemcpy2D(b, 64, host, 32, 16, 8, cudaMemcpyHostToDevice));
  CALL(cudaMemcpy2DAsync(b, 64, a, 64, 16, 8, cudaMemcpyDeviceToDevice, stream));
  CALL(cudaMemcpyPeer(b, 0, a, 0, 128));
  CALL(cudaMemcpyPeerAsync(b, 0, a, 0, 128, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemcpy(back, b, BYTES, cudaMemcpyDeviceToHost));
  SHOW("%d %d %d %d %d", back[0], back[20], back[70], back[1000], back[4000]);
  CALL(cudaMemcpyAsync(back, a, BYTES, cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  SHOW("%d %d %d %d %d", back[0], back[20], back[70], back[1000], back[4000]);
  CALL(cudaFree(a));
  CALL(cudaFree(b));
  last_error();
}

static void pools(cudaStream_t stream) {
  cudaMemPool_t pool = NULL, standard = NULL;
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                   .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
  void *a = NULL, *b = NULL;
  uint64_t threshold = 1 << 20, value = 0;
  struct cudaMemAccessDesc access = {.location = {.type = cudaMemLocationTypeDevice, .id = 1},
                                     .flags = cudaMemAccessFlagsProtReadWrite};
  enum cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
  CALL(cudaDeviceGetDefaultMemPool(&standard, 0));
  SHOW_POINTER(standard);
  CALL(cudaMemPoolCreate(&pool, &props));
  SHOW_POINTER(pool);
  CALL(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  CALL(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
  SHOW("threshold %llu", (unsigned long long)value);
  CALL(cudaMemPoolSetAccess(pool, &access, 1));
  CALL(cudaMemPoolGetAccess(&flags, pool, &access.location));
  SHOW("access %d", (int)flags);
  CALL(cudaMallocFromPoolAsync(&a, BYTES, pool, stream));
  SHOW_POINTER(a);
  CALL(cudaMallocAsync(&b, BYTES, stream));
  SHOW_POINTER(b);
  CALL(cudaFreeAsync(a, stream));
  CALL(cudaFreeAsync(b, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemPoolTrimTo(pool, 0));
  CALL(cudaDeviceSetMemPool(0, pool));
  CALL(cudaDeviceGetMemPool(&standard, 0));
  SHOW("ours %d", standard == pool);
  CALL(cudaMemPoolDestroy(pool));
  last_error();
}

static void count_up(void *data) {
  ++*(int *)data;
}

static void callback(cudaStream_t stream, cudaError_t status, void *data) {
  (void)stream;
  *(int *)data += 10 + (int)status;
}

static void streams(void) {
  cudaStream_t first = NULL, second = NULL, third = NULL;
  cudaEvent_t begin = NULL, end = NULL, other = NULL;
  unsigned flags = 77;
  int priority = 77, device = 77, count = 0;
  float ms = -1;
  CALL(cudaStreamCreate(&first));
  CALL(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CALL(cudaStreamCreateWithPriority(&third, cudaStreamNonBlocking, -1));
  CALL(cudaStreamGetFlags(second, &flags));
  CALL(cudaStreamGetPriority(third, &priority));
  CALL(cudaStreamGetDevice(third, &device));
  SHOW("flags %u priority %d device %d", flags, priority, device);
  CALL(cudaEventCreate(&begin));
  CALL(cudaEventCreateWithFlags(&other, cudaEventDisableTiming));
  CALL(cudaEventCreate(&end));
  CALL(cudaEventRecord(begin, first));
  CALL(cudaLaunchHostFunc(first, count_up, &count));
  CALL(cudaStreamAddCallback(first, callback, &count, 0));
  CALL(cudaEventRecordWithFlags(other, first, cudaEventRecordDefault));
  CALL(cudaStreamWaitEvent(second, other, 0));
  CALL(cudaEventRecord(end, second));
  CALL(cudaEventSynchronize(end));
  CALL(cudaEventQuery(end));
  CALL(cudaStreamQuery(first));
  CALL(cudaEventElapsedTime(&ms, begin, end));
  SHOW("ran %d, time %s", count, ms < 0 ? "none" : "measured");
  CALL(cudaDeviceSynchronize());
  CALL(cudaEventDestroy(begin));
  CALL(cudaEventDestroy(end));
  CALL(cudaEventDestroy(other));
  CALL(cudaStreamDestroy(first));
  CALL(cudaStreamDestroy(second));
  CALL(cudaStreamDestroy(third));
  CALL(cudaEventQuery(NULL));
  last_error();
}

static void launches(cudaStream_t stream) {
  struct cudaFuncAttributes attributes;
  const char *name = NULL;
  int blocks = -1;
  void *address = NULL;
  size_t bytes = 0, shared = 0;
  int host[16] = {1, 2, 3}, back[16] = {0};
  dim3 grid = {2, 1, 1}, block = {32, 1, 1};
  cudaStream_t popped = NULL;
  cudaLaunchConfig_t config = {.gridDim = grid, .blockDim = block, .stream = stream};
  void **module = __cudaRegisterFatBinary(NULL);
  memset(&attributes, 0, sizeof attributes);
  __cudaRegisterFunction(module, (const char *)(uintptr_t)kernel, NULL, "kernel", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterVar(module, (char *)variable, NULL, "variable", 0, sizeof variable, 0, 0);
  __cudaRegisterFatBinaryEnd(module);
  const void *function = (const void *)(uintptr_t)kernel;
  CALL(cudaLaunchKernel(function, grid, block, NULL, 0, stream));
  cudaKernel_t handle = NULL;
  CALL(__cudaGetKernel(&handle, function));
  CALL(__cudaLaunchKernel(handle, grid, block, NULL, 0, stream));
  CALL(cudaLaunchCooperativeKernel(function, grid, block, NULL, 0, stream));
  CALL(cudaLaunchKernelExC(&config, function, NULL));
  CALL(__cudaPushCallConfiguration(grid, block, 64, stream));
  CALL(__cudaPopCallConfiguration(&grid, &block, &shared, &popped));
  SHOW("shared %zu", shared);
  CALL(cudaFuncGetAttributes(&attributes, function));
  SHOW("threads %d", attributes.maxThreadsPerBlock);
  CALL(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  CALL(cudaFuncSetCacheConfig(function, cudaFuncCachePreferShared));
  CALL(cudaFuncGetName(&name, function));
  SHOW("name %s", name ? name : "null");
  CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  SHOW("blocks %d", blocks);
  CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 256, 0, 0));
  CALL(cudaGetSymbolAddress(&address, variable));
  CALL(cudaGetSymbolSize(&bytes, variable));
  SHOW("bytes %zu", bytes);
  CALL(cudaMemcpyToSymbol(variable, host, sizeof host, 0, cudaMemcpyHostToDevice));
  CALL(cudaMemcpyFromSymbol(back, variable, sizeof back, 0, cudaMemcpyDeviceToHost));
  SHOW("%d %d", back[0], back[2]);
  CALL(cudaMemcpyToSymbolAsync(variable, host, 4, 0, cudaMemcpyHostToDevice, stream));
  CALL(cudaMemcpyFromSymbolAsync(back, variable, 4, 0, cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaLaunchKernel("no kernel", grid, block, NULL, 0, stream));
  last_error();
  __cudaUnregisterFatBinary(module);
}

static void graphs(cudaStream_t stream) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  char *a = NULL, host[64] = {0};
  size_t nodes = 77;
  CALL(cudaMalloc((void **)&a, 64));
  CALL(cudaMemset(a, 1, 64));
  CALL(cudaThreadExchangeStreamCaptureMode(&mode));
  CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CALL(cudaStreamIsCapturing(stream, &status));
  SHOW("capturing %d", (int)status);
  CALL(cudaMemsetAsync(a, 9, 32, stream));
  CALL(cudaMemcpyAsync(a + 32, a, 16, cudaMemcpyDeviceToDevice, stream));
  CALL(cudaStreamEndCapture(stream, &graph));
  SHOW_POINTER(graph);
  CALL(cudaGraphGetNodes(graph, NULL, &nodes));
  SHOW("nodes %zu", nodes);
  CALL(cudaGraphInstantiate(&exec, graph, 0));
  CALL(cudaMemcpy(host, a, 64, cudaMemcpyDeviceToHost));
  SHOW("%d %d", host[0], host[40]);
  CALL(cudaGraphLaunch(exec, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemcpy(host, a, 64, cudaMemcpyDeviceToHost));
  SHOW("%d %d", host[0], host[40]);
  CALL(cudaGraphExecDestroy(exec));
  CALL(cudaGraphDestroy(graph));
  graph = NULL;
  CALL(cudaGraphCreate(&graph, 0));
  CALL(cudaStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, cudaStreamCaptureModeRelaxed));
  CALL(cudaMemsetAsync(a, 9, 32, stream));
  CALL(cudaStreamEndCapture(stream, &graph));
  CALL(cudaGraphDestroy(graph));
  CALL(cudaFree(a));
  last_error();
}

static void sharing(void) {
  void *a = NULL, *function = NULL;
  cudaIpcMemHandle_t memory_handle;
  cudaIpcEventHandle_t event_handle;
  cudaEvent_t event = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  memset(&memory_handle, 0, sizeof memory_handle);
  CALL(cudaMalloc(&a, BYTES));
  CALL(cudaIpcGetMemHandle(&memory_handle, a));
  void *opened = NULL;
  CALL(cudaIpcOpenMemHandle(&opened, memory_handle, cudaIpcMemLazyEnablePeerAccess)); /* in the same process: refused */
  CALL(cudaIpcCloseMemHandle(opened));
  CALL(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
  CALL(cudaIpcGetEventHandle(&event_handle, event));
  CALL(cudaEventDestroy(event));
  CALL(cudaFree(a));
  CALL(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &found));
  SHOW("found %d %s", (int)found, function ? "set" : "null");
  CALL(cudaGetDriverEntryPoint("cuMemFree", &function, cudaEnableDefault, &found));
  SHOW("found %d %s", (int)found, function ? "set" : "null");
  CALL(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000, cudaEnableDefault, &found));
  SHOW("found %d %s", (int)found, function ? "set" : "null");
  last_error();
}

int program_run(void) {
  cudaStream_t stream = NULL;
  devices();
  memory();
  CALL(cudaStreamCreate(&stream));
  copies(stream);
  pools(stream);
  streams();
  launches(stream);
  graphs(stream);
  sharing();
  CALL(cudaStreamDestroy(stream));
  CALL(cudaDeviceSynchronize());
  printf("%d calls failed\n", failures);
  return failures > 99 ? 99 : failures;
}
