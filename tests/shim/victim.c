/* SPDX-License-Identifier: Apache-2.0 */
/* A program without CUDA of its own. usage: shim_victim SCENARIO [PLUGIN] */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *chain_name(void);
extern const char *chain_next(void);

static void *need(void *pointer, const char *what) {
  if (!pointer) {
    printf("no %s: %s\n", what, dlerror());
    exit(2);
  }
  return pointer;
}

static void run_plugin(const char *path, int flags) {
  void *plugin = need(dlopen(path, RTLD_NOW | flags), path);
  int (*run)(void) = (int (*)(void))need(dlsym(plugin, "plugin_run"), "plugin_run");
  run();
}

typedef CUresult (*alloc_function)(CUdeviceptr *, size_t);
typedef CUresult (*free_function)(CUdeviceptr);

static void use_driver(alloc_function alloc, free_function release) {
  CUdeviceptr block = 0;
  int status = (int)alloc(&block, 10 << 20);
  status += (int)release(block);
  printf("driver %d\n", status);
}

static void init_driver(void *driver) {
  CUresult (*init)(unsigned) = (CUresult(*)(unsigned))need(dlsym(driver, "cuInit"), "cuInit");
  printf("init %d\n", (int)init(0));
}

/* As NCCL and the static CUDA runtime inside cuBLAS find the driver. */
static void by_dlsym(void *driver) {
  init_driver(driver);
  use_driver((alloc_function)need(dlsym(driver, "cuMemAlloc_v2"), "cuMemAlloc_v2"),
             (free_function)need(dlsym(driver, "cuMemFree_v2"), "cuMemFree_v2"));
  printf("unknown name: %s\n", dlsym(driver, "cuNoSuchFunction") ? "found" : "not found");
  printf("cublas is not the driver: %s\n", dlsym(driver, "cublasCreate_v2") ? "found" : "not found");
}

typedef CUresult (*proc_address)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void by_proc_address(void *driver) {
  proc_address get = (proc_address)need(dlsym(driver, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
  void *alloc = NULL, *release = NULL, *self = NULL, *nothing = &nothing;
  CUdriverProcAddressQueryResult result = 99;
  int status = (int)get("cuMemAlloc", &alloc, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &result);
  init_driver(driver);
  printf("alloc %d %d\n", status, (int)result);
  status = (int)get("cuMemFree", &release, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
  use_driver((alloc_function)alloc, (free_function)release);
  status += (int)get("cuGetProcAddress", &self, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
  printf("itself: %d %s\n", status, self == (void *)get ? "same" : "other");
  status = (int)get("cuNoSuchFunction", &nothing, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &result);
  printf("unknown: %d %d %s\n", status, (int)result, nothing ? "pointer" : "null");
}

static void lookup(void *driver) {
  proc_address get = (proc_address)need(dlsym(driver, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
  void *alloc = NULL;
  printf("found %d\n", (int)get("cuMemAlloc", &alloc, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
}

static void by_entry_point(void *runtime) {
  typedef cudaError_t (*entry_point)(const char *, void **, unsigned, unsigned long long,
                                     enum cudaDriverEntryPointQueryResult *);
  entry_point get =
      (entry_point)need(dlsym(RTLD_DEFAULT, "cudaGetDriverEntryPointByVersion"), "cudaGetDriverEntryPointByVersion");
  void *alloc = NULL, *release = NULL;
  enum cudaDriverEntryPointQueryResult result;
  (void)runtime;
  int status = (int)get("cuMemAlloc", &alloc, 12000, cudaEnableDefault, &result);
  status += (int)get("cuMemFree", &release, 12000, cudaEnableDefault, &result);
  printf("entry points %d %d\n", status, (int)result);
  use_driver((alloc_function)alloc, (free_function)release);
}

/* Twelve all-reduces, the first half of them inside a capture. */
static void capture(void) {
  typedef cudaError_t (*begin_function)(cudaStream_t, enum cudaStreamCaptureMode);
  typedef cudaError_t (*end_function)(cudaStream_t, cudaGraph_t *);
  typedef cudaError_t (*malloc_function)(void **, size_t);
  begin_function begin = (begin_function)need(dlsym(RTLD_DEFAULT, "cudaStreamBeginCapture"), "cudaStreamBeginCapture");
  end_function end = (end_function)need(dlsym(RTLD_DEFAULT, "cudaStreamEndCapture"), "cudaStreamEndCapture");
  malloc_function allocate = (malloc_function)need(dlsym(RTLD_DEFAULT, "cudaMalloc"), "cudaMalloc");
  __typeof__(&ncclAllReduce) reduce =
      (__typeof__(&ncclAllReduce))need(dlsym(RTLD_DEFAULT, "ncclAllReduce"), "ncclAllReduce");
  __typeof__(&ncclCommInitRank) init =
      (__typeof__(&ncclCommInitRank))need(dlsym(RTLD_DEFAULT, "ncclCommInitRank"), "ncclCommInitRank");
  __typeof__(&ncclGetUniqueId) unique =
      (__typeof__(&ncclGetUniqueId))need(dlsym(RTLD_DEFAULT, "ncclGetUniqueId"), "ncclGetUniqueId");
  cudaGraph_t graph;
  ncclUniqueId id;
  ncclComm_t comm;
  void *block = NULL;
  int status = (int)allocate(&block, 1 << 20) + (int)unique(&id) + (int)init(&comm, 1, id, 0);
  status += (int)begin(NULL, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 6; i++)
    status += (int)reduce(block, block, 256, ncclFloat, ncclSum, comm, NULL);
  status += (int)end(NULL, &graph);
  for (int i = 0; i < 6; i++)
    status += (int)reduce(block, block, 256, ncclFloat, ncclSum, comm, NULL);
  printf("captured %d\n", status);
}

int main(int argc, char **argv) {
  const char *scenario = argc > 1 ? argv[1] : "";
  if (strcmp(scenario, "local") == 0)
    run_plugin(argv[2], RTLD_LOCAL);
  else if (strcmp(scenario, "deepbind") == 0)
    run_plugin(argv[2], RTLD_LOCAL | RTLD_DEEPBIND);
  else if (strcmp(scenario, "dlsym") == 0)
    by_dlsym(need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1"));
  else if (strcmp(scenario, "procaddress") == 0)
    by_proc_address(need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1"));
  else if (strcmp(scenario, "lookup") == 0)
    lookup(need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1"));
  else if (strcmp(scenario, "entrypoint") == 0)
    by_entry_point(NULL);
  else if (strcmp(scenario, "chain") == 0)
    printf("%s then %s\n", chain_name(), chain_next());
  else if (strcmp(scenario, "capture") == 0)
    capture();
  else if (strcmp(scenario, "missing") == 0) {
    /* nothing of CUDA is loaded: a weak reference that the shim satisfies must fail in CUDA's own way */
    cudaError_t (*allocate)(void **, size_t) = (cudaError_t(*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
    void *block;
    printf("cudaMalloc %d\n", allocate ? (int)allocate(&block, 1) : 302);
  } else
    return 2;
  return 0;
}
