/* SPDX-License-Identifier: Apache-2.0 */
/* B200OPT_VNODE_FAULT: its grammar, its effects, and that it reaches every stand-in by every way in. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include "hook.h"
#include "probe.h"
#include "tests/vnode/vnode_test.h"

static void faults(const char *value) {
  setenv("B200OPT_VNODE_FAULT", value, 1);
}

/* ------------------------------------------------------------------------------------------- grammar */

struct grammar_row {
  const char *value;
  const char *said;   /* on stderr, NULL: nothing but the fault that is met */
  const char *result; /* what the first four calls of probeStatus(0) gave */
};

#define SYNTAX "use FUNCTION[@RANK]:CALLS:EFFECT"
#define CALLS "use a number from 1, a number and + for that call and all later ones, or * for all"
#define EFFECT "use a status from 1 to 9999, sticky=ERROR, die, hang, or slow=TIME"
#define TIME "use a number from 1 and ns, us, ms or s, of at most an hour"

static const struct grammar_row grammar[] = {
    {"probeStatus:1:2", NULL, "2000"},
    {"probeStatus:3:9999", NULL, "0099990"},
    {"probeStatus:2+:7", NULL, "0777"},
    {"probeStatus:*:7", NULL, "7777"},
    {"probeStatus:1:2,probeStatus:3:4", NULL, "2040"},
    {" probeStatus:1:2 ; probeStatus:3:4;", "probeStatus:1:2  is not accepted; " EFFECT, "0040"},
    {"probeStatus:2+:5,probeStatus:3:6", NULL, "0555"}, /* the first that meets the call */
    {"probeStatus@0:1:2", NULL, "2000"},
    {"probeStatus@1:1:2", NULL, "0000"},
    {"probeStatus:1:slow=1ns,probeStatus:1:3", NULL, "3000"},
    {"probeStatus:2:sticky=700", NULL, "0000"}, /* this library has no answer to a lost context */
    {"probeStatus", "probeStatus is not accepted; " SYNTAX, "0000"},
    {"probeStatus:1", SYNTAX, "0000"},
    {":1:2", SYNTAX, "0000"},
    {"probeStatus@:1:2", SYNTAX, "0000"},
    {"probeStatus@x:1:2", SYNTAX, "0000"},
    {"probeStatus:0:2", CALLS, "0000"},
    {"probeStatus::2", CALLS, "0000"},
    {"probeStatus:-1:2", CALLS, "0000"},
    {"probeStatus:1++:2", CALLS, "0000"},
    {"probeStatus:1-2:2", CALLS, "0000"},
    {"probeStatus:99999999999999999999:2", CALLS, "0000"},
    {"probeStatus:1:0", EFFECT, "0000"},
    {"probeStatus:1:-2", EFFECT, "0000"},
    {"probeStatus:1:10000", EFFECT, "0000"},
    {"probeStatus:1:", EFFECT, "0000"},
    {"probeStatus:1:oom", EFFECT, "0000"},
    {"probeStatus:1:dies", EFFECT, "0000"},
    {"probeStatus:1:sticky=", EFFECT, "0000"},
    {"probeStatus:1:slow=5", TIME, "0000"},
    {"probeStatus:1:slow=0s", TIME, "0000"},
    {"probeStatus:1:slow=2h", TIME, "0000"},
    {"probeStatus:1:slow=3601s", TIME, "0000"},
    {"probeStats:1:2", "the virtual node has no function probeStats; use an exported name of its libraries", "0000"},
    {"probeMissing:1:2", "the virtual node has no function probeMissing", "0000"},
    {"cuMemAlloc:1:2", "the virtual node has no function cuMemAlloc; use an exported name such as cuMemAlloc_v2", "0000"},
    {"cudaMallocs:1:2", "the virtual node has no function cudaMallocs", "0000"},
    {"cudaGetErrorString:1:2", "cudaGetErrorString returns no status and cannot fail; use die, hang or slow=TIME", "0000"},
    {"ncclGetLastError:1:sticky=700", "ncclGetLastError returns no status and cannot fail", "0000"},
    {"__cudaRegisterVar:1:die", "__cudaRegisterVar is called while libraries are loaded", "0000"},
    {"nonsense:1:2,probeStatus:2:5", "no function nonsense", "0500"},
};

static void run_row(void *argument) {
  const struct grammar_row *row = argument;
  char result[64] = "";
  faults(row->value);
  setenv("RANK", "0", 1);
  for (int i = 0; i < 4; i++)
    snprintf(result + strlen(result), sizeof result - strlen(result), "%d", probeStatus(0));
  exit(strcmp(result, row->result) ? 1 : 0);
}

static size_t complaints_in(const char *text) {
  size_t count = 0;
  for (const char *at = text; (at = strstr(at, "B200OPT_VNODE_FAULT:")); at++)
    count++;
  return count;
}

START_TEST(the_grammar) {
  for (size_t i = 0; i < sizeof grammar / sizeof *grammar; i++) {
    char text[2048];
    int status = in_child_with_stderr(run_row, (void *)(uintptr_t)&grammar[i], text, sizeof text);
    ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "%s: calls gave something else than %s\n%s", grammar[i].value,
                  grammar[i].result, text);
    ck_assert_msg(complaints_in(text) == (grammar[i].said != NULL), "%s: %s", grammar[i].value, text);
    ck_assert_msg(!grammar[i].said || strstr(text, grammar[i].said), "%s: %s", grammar[i].value, text);
  }
}
END_TEST

static void strike(void *unused) {
  (void)unused;
  faults("probeStatus:2+:5");
  for (int i = 0; i < 4; i++)
    probeStatus(0);
}

START_TEST(a_strike_is_said_once) {
  char text[512];
  in_child_with_stderr(strike, NULL, text, sizeof text);
  ck_assert_str_eq(text, "b200vnode: injected fault: call 2 of probeStatus returns 5\n");
}
END_TEST

/* ------------------------------------------------------------------------------------------- effects */

static void die(void *unused) {
  (void)unused;
  faults("probeStatus:2:die");
  probeStatus(0);
  probeStatus(0);
}

START_TEST(dying_is_as_by_kill) {
  int status = in_child(die, NULL);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
END_TEST

static void hang(void *unused) {
  (void)unused;
  faults("probeStatus:1:hang");
  signal(SIGALRM, SIG_DFL);
  alarm(1); /* its default action ends the process; a call that returned would end it before, with 0 */
  probeStatus(0);
}

START_TEST(hanging_lasts) {
  int status = in_child(hang, NULL);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
}
END_TEST

START_TEST(slowness_is_charged) {
  faults("probeStatus:2:slow=25ms");
  probeStatus(0);
  int64_t before = vnode_host_now_ns();
  probeStatus(0);
  int64_t slow = vnode_host_now_ns();
  probeStatus(0);
  ck_assert_int_eq(slow - before - (vnode_host_now_ns() - slow), 25000000);
}
END_TEST

START_TEST(a_call_of_each_function_is_charged_as_modelled) {
  int device;
  cudaGetDevice(&device);
  int64_t before = vnode_host_now_ns();
  cudaGetDevice(&device);
  int64_t one = vnode_host_now_ns() - before;
  ck_assert_int_gt(one, 0);
  cudaGetDevice(&device);
  ck_assert_int_eq(vnode_host_now_ns() - before, 2 * one);
}
END_TEST

void **__cudaRegisterFatBinary(void *image);

/* PyTorch's libraries register their kernels when they are loaded; a program sets what it wants of the node after its
 * imports. */
START_TEST(the_environment_is_not_read_while_libraries_are_loaded) {
  __cudaRegisterFatBinary(NULL);
  setenv("RANK", "5", 1);
  faults("probeStatus@5:1:33");
  ck_assert_int_eq(probeStatus(0), 33);
}
END_TEST

/* ------------------------------------------------------------------------------------------- every stand-in, every way */

START_TEST(the_runtime_keeps_the_error) {
  void *block = NULL;
  faults("cudaMalloc:1:2,cudaStreamSynchronize:1:719,cudaEventQuery:1:600,cudaFree:1:1");
  ck_assert_int_eq(cudaMalloc(&block, 1 << 20), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(block);
  ck_assert_int_eq(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
  ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
  ck_assert_int_eq(cudaMalloc(&block, 1 << 20), cudaSuccess);
  ck_assert_int_eq(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
  ck_assert_int_eq(cudaFree(block), cudaErrorInvalidValue);
  struct vnode_memory_info info;
  ck_assert(vnode_memory_query(block, &info)); /* not freed */
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidValue);
  cudaEvent_t event;
  ck_assert_int_eq(cudaEventCreate(&event), cudaSuccess);
  ck_assert_int_eq(cudaEventQuery(event), cudaErrorNotReady);
  ck_assert_int_eq(cudaGetLastError(), cudaSuccess); /* "not ready" is not kept */
  ck_assert_int_eq(cudaFree(block), cudaSuccess);
}
END_TEST

START_TEST(the_runtime_passes_the_drivers_error_on) {
  void *block = NULL;
  faults("cuMemAlloc_v2:2:2");
  ck_assert_int_eq(cudaMalloc(&block, 1 << 20), cudaSuccess);
  ck_assert_int_eq(cudaMalloc(&block, 1 << 20), cudaErrorMemoryAllocation);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
}
END_TEST

typedef CUresult (*proc_address)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

START_TEST(the_driver_by_every_way) {
  faults("cuMemAlloc_v2:1+:2,cuDeviceGet:2:101");
  CUdeviceptr block = 0;
  CUdevice device;
  void *found = NULL, *handle = dlopen("libcuda.so.1", RTLD_NOW);
  ck_assert_int_eq(cuInit(0), CUDA_SUCCESS);
  ck_assert_int_eq(cuMemAlloc(&block, 1 << 20), CUDA_ERROR_OUT_OF_MEMORY); /* linked */
  CUresult (*alloc)(CUdeviceptr *, size_t) = NULL;
  *(void **)&alloc = dlsym(handle, "cuMemAlloc_v2");
  ck_assert_int_eq(alloc(&block, 1 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  proc_address get = NULL;
  *(void **)&get = dlsym(handle, "cuGetProcAddress_v2");
  ck_assert_int_eq(get("cuMemAlloc", &found, 12000, 0, NULL), CUDA_SUCCESS);
  ck_assert_ptr_eq(found, (void *)(uintptr_t)alloc);
  ck_assert_int_eq(cudaGetDriverEntryPointByVersion("cuMemAlloc", &found, 12000, cudaEnableDefault, NULL), cudaSuccess);
  ck_assert_ptr_eq(found, (void *)(uintptr_t)alloc);
  ck_assert_int_eq(get("cuDeviceGet", &found, 12000, 0, NULL), CUDA_SUCCESS);
  ck_assert_int_eq(((CUresult(*)(CUdevice *, int))(uintptr_t)found)(&device, 0), CUDA_SUCCESS);
  ck_assert_int_eq(cuDeviceGet(&device, 0), CUDA_ERROR_INVALID_DEVICE);
  ck_assert_int_eq(get("cuNoSuchFunction", &found, 12000, 0, NULL), CUDA_ERROR_NOT_FOUND);
}
END_TEST

START_TEST(a_fault_of_cu_get_proc_address) {
  void *found = &found;
  faults("cuGetProcAddress_v2:1:500");
  CUdriverProcAddressQueryResult query = 7;
  ck_assert_int_eq(cuGetProcAddress("cuMemAlloc", &found, 12000, 0, &query), CUDA_ERROR_NOT_FOUND);
  ck_assert_ptr_eq(found, &found);
  ck_assert_int_eq((int)query, 7);
}
END_TEST

START_TEST(cublas) {
  faults("cublasCreate_v2:1:1,cublasGemmEx:1:13,cublasSetStream_v2:1:1");
  cublasHandle_t handle = NULL;
  ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
  ck_assert_ptr_null(handle);
  ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasSetStream(handle, NULL), CUBLAS_STATUS_NOT_INITIALIZED);
  float one = 1, zero = 0, *a;
  ck_assert_int_eq(cudaMalloc((void **)&a, 1 << 20), cudaSuccess);
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, a, CUDA_R_32F, 8, a, CUDA_R_32F, 8, &zero,
                                  a + 64, CUDA_R_32F, 8, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     i ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED);
  ck_assert_int_eq(cudaGetLastError(), cudaSuccess); /* another library's error is not the runtime's */
}
END_TEST

START_TEST(cublaslt) {
  faults("cublasLtMatmulDescCreate:1:3,cublasLtMatmulAlgoGetHeuristic:1:15");
  cublasLtMatmulDesc_t op = NULL;
  ck_assert_int_eq(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_ALLOC_FAILED);
  ck_assert_ptr_null(op);
  ck_assert_int_eq(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  cublasLtHandle_t handle;
  cublasLtMatrixLayout_t layout;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t result;
  int count = 7;
  ck_assert_int_eq(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 16, 16, 16), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(
      cublasLtMatmulAlgoGetHeuristic(handle, op, layout, layout, layout, layout, preference, 1, &result, &count),
      CUBLAS_STATUS_NOT_SUPPORTED);
  ck_assert_int_eq(count, 7);
}
END_TEST

START_TEST(nccl) {
  faults("ncclAllReduce:2:5,ncclCommDestroy:1:1");
  ncclUniqueId id;
  ncclComm_t comm;
  float *data;
  ck_assert_int_eq(cudaMalloc((void **)&data, 1 << 20), cudaSuccess);
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(data, data, 16, ncclFloat, ncclSum, comm, NULL), ncclSuccess);
  ck_assert_int_eq(pncclAllReduce(data, data, 16, ncclFloat, ncclSum, comm, NULL), ncclInvalidUsage);
  ck_assert_int_eq(ncclAllReduce(data, data, 16, ncclFloat, ncclSum, comm, NULL), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclUnhandledCudaError);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
}
END_TEST

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);

START_TEST(nvml) {
  faults("nvmlInit_v2:1:9,nvmlDeviceGetCount_v2:1:15");
  unsigned count = 77;
  ck_assert_int_eq(nvmlInit_v2(), 9);
  ck_assert_int_eq(nvmlInit_v2(), 0);
  ck_assert_int_eq(nvmlDeviceGetCount_v2(&count), 15);
  ck_assert_int_eq(count, 77);
  ck_assert_int_eq(nvmlDeviceGetCount_v2(&count), 0);
  ck_assert_int_ne(count, 77);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {the_grammar,
                                a_strike_is_said_once,
                                dying_is_as_by_kill,
                                hanging_lasts,
                                slowness_is_charged,
                                a_call_of_each_function_is_charged_as_modelled,
                                the_environment_is_not_read_while_libraries_are_loaded,
                                the_runtime_keeps_the_error,
                                the_runtime_passes_the_drivers_error_on,
                                the_driver_by_every_way,
                                a_fault_of_cu_get_proc_address,
                                cublas,
                                cublaslt,
                                nccl,
                                nvml};
  return run_tests("fault", tests, sizeof tests / sizeof *tests);
}
