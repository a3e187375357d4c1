/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver API: modules, libraries, kernels, launches.
 *
 * Device code cannot run, but loading it must not fail: a program loads much that it never launches. A function is its name,
 * whichever image it is asked of, and a CUkernel the same object. The kernels of interpose/exec/kernels.def are the
 * exception: their source is compiled for the CPU as well, so a launch of one by its name is an operation as any other. Any
 * other kernel is unhandled.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hook.h"
#include "interpose/exec/cpu.h"
#include "model.h"

struct function {
  char *name;
  enum b200_kernel kernel; /* B200_KERNEL_COUNT: none that can run */
  struct function *next;
};
static struct function *functions; /* for as long as the process lives: handles have no owner */
static pthread_mutex_t functions_lock = PTHREAD_MUTEX_INITIALIZER;
static char some_module, some_library;

static struct function *function_of(CUfunction function) {
  return (struct function *)(void *)function;
}

/* NULL without host memory. */
static struct function *function_named(const char *name) {
  pthread_mutex_lock(&functions_lock);
  struct function *function = functions;
  while (function && strcmp(function->name, name) != 0)
    function = function->next;
  if (!function && (function = malloc(sizeof *function))) {
    *function = (struct function){.name = strdup(name), .kernel = b200_kernel_find(name), .next = functions};
    if (function->name) {
      functions = function;
    } else {
      free(function);
      function = NULL;
    }
  }
  pthread_mutex_unlock(&functions_lock);
  return function;
}

/* ------------------------------------------------------------------------------------------- modules */

static CUresult load_module(CUmodule *module, const void *image) {
  VNODE_DRIVER_READY();
  if (!module || !image)
    return CUDA_ERROR_INVALID_VALUE;
  *module = (CUmodule)(void *)&some_module;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
  return load_module(module, path);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return load_module(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  return load_module(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values) {
  (void)count;
  (void)options;
  (void)values;
  return load_module(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  VNODE_DRIVER_READY();
  return module == (CUmodule)(void *)&some_module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult find_function(void **out, bool of_something, const char *name) {
  VNODE_DRIVER_READY();
  if (!out || !name)
    return CUDA_ERROR_INVALID_VALUE;
  if (!of_something)
    return CUDA_ERROR_INVALID_HANDLE;
  *out = function_named(name);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  return find_function((void **)out, module == (CUmodule)(void *)&some_module, name);
}

/* ------------------------------------------------------------------------------------------- libraries */

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
  VNODE_DRIVER_READY();
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  if (!library || !code)
    return CUDA_ERROR_INVALID_VALUE;
  *library = (CUlibrary)(void *)&some_library;
  return CUDA_SUCCESS;
}

static bool is_library(CUlibrary library) {
  return library == (CUlibrary)(void *)&some_library;
}

CUresult cuLibraryUnload(CUlibrary library) {
  VNODE_DRIVER_READY();
  return is_library(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
  return is_library(library) ? load_module(module, library) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  return find_function((void **)out, is_library(library), name);
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  VNODE_DRIVER_READY();
  if (!out || !kernel)
    return CUDA_ERROR_INVALID_VALUE;
  *out = (CUfunction)(void *)kernel;
  return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- functions */

/* Registers are in device code that is not read. */
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  VNODE_DRIVER_READY();
  if (!value || !function || attribute >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = 1024;
    break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = 32;
    break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *value = 10 * vnode_gpu()->cc_major + vnode_gpu()->cc_minor;
    break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = vnode_gpu()->shared_per_block_bytes;
    break;
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  VNODE_DRIVER_READY();
  bool too_much = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > vnode_gpu()->shared_optin_bytes;
  return !function ? CUDA_ERROR_INVALID_HANDLE : too_much ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  VNODE_DRIVER_READY();
  (void)config;
  return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
  VNODE_DRIVER_READY();
  if (!name || !function)
    return CUDA_ERROR_INVALID_VALUE;
  *name = function_of(function)->name;
  return CUDA_SUCCESS;
}

/* Of the kernels that can run, which take one struct. */
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  VNODE_DRIVER_READY();
  if (!function || !offset)
    return CUDA_ERROR_INVALID_VALUE;
  enum b200_kernel kernel = function_of(function)->kernel;
  if (kernel == B200_KERNEL_COUNT)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (index > 0)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  if (bytes)
    *bytes = b200_kernels[kernel].args_bytes;
  return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- launches */

enum { MAX_ARGS_BYTES = 128 };

/* The operation's arguments. */
struct run {
  enum b200_kernel kernel;
  uint32_t blocks;
  _Alignas(16) unsigned char args[MAX_ARGS_BYTES];
};

#define B200_KERNEL(operation, type, form, id, name, args_type) _Static_assert(sizeof(args_type) <= MAX_ARGS_BYTES, #name);
#include "interpose/exec/kernels.def"
#undef B200_KERNEL

/* The executor that is linked in; in tests one with a fault in its kernels, which is preloaded. Const after the start. */
static __typeof__(&b200_cpu_run) run_on_cpu = b200_cpu_run;

__attribute__((constructor)) static void take_preloaded_executor(void) {
  void *preloaded = dlsym(RTLD_DEFAULT, "b200_cpu_run");
  if (preloaded)
    memcpy(&run_on_cpu, &preloaded, sizeof run_on_cpu);
}

static void run_kernel(void *args) {
  const struct run *run = args;
  run_on_cpu(run->kernel, run->args, run->blocks, NULL);
}

/* One launch as the entry points take it. */
struct launch {
  unsigned grid[3], block[3], shared_bytes;
  struct vnode_stream *stream;
  void **parameters, **extra;
};

/* A launch that the kernel is not made for is a mistake of the library that owns both: numbers could not be right. */
static _Noreturn void wrong_launch(enum b200_kernel kernel, const char *what, size_t given, size_t right) {
  vnode_say_once("launch", "kernel %s launched with %s %zu, made for %zu", b200_kernels[kernel].name, what, given, right);
  abort();
}

/* The buffer that `extra` describes; its size must be the kernel's. */
static const void *packed_args(enum b200_kernel kernel, void **extra) {
  const void *buffer = NULL;
  size_t bytes = 0;
  for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
      memcpy(&bytes, extra[1], sizeof bytes);
  }
  if (bytes != b200_kernels[kernel].args_bytes)
    wrong_launch(kernel, "bytes of parameters", bytes, b200_kernels[kernel].args_bytes);
  return buffer;
}

static CUresult launch_known(enum b200_kernel kernel, const struct launch *launch) {
  const struct b200_kernel_info *info = &b200_kernels[kernel];
  struct run run = {.kernel = kernel, .blocks = launch->grid[0]};
  size_t threads = (size_t)launch->block[0] * launch->block[1] * launch->block[2];
  if (threads != info->threads || launch->block[0] != threads)
    wrong_launch(kernel, "threads", threads, info->threads);
  if (launch->grid[1] != 1 || launch->grid[2] != 1)
    wrong_launch(kernel, "depth of its grid", (size_t)launch->grid[1] * launch->grid[2], 1);
  if (launch->shared_bytes)
    wrong_launch(kernel, "bytes of shared memory", launch->shared_bytes, 0);
  const void *args = launch->parameters ? launch->parameters[0] : packed_args(kernel, launch->extra);
  if (!args)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(run.args, args, info->args_bytes);

  struct b200_range ranges[B200_RANGES_MAX];
  struct vnode_access accesses[B200_RANGES_MAX];
  int count = b200_kernel_accesses(kernel, run.args, ranges);
  uint64_t bytes = 0;
  for (int i = 0; i < count; i++) {
    accesses[i] = (struct vnode_access){ranges[i].start, (size_t)ranges[i].row_bytes, (size_t)ranges[i].rows,
                                        (size_t)ranges[i].pitch, ranges[i].write};
    bytes += (uint64_t)(ranges[i].rows * ranges[i].row_bytes);
  }
  const struct vnode_op op = {.name = info->name,
                              .work = run_kernel,
                              .args = &run,
                              .args_bytes = sizeof run,
                              .accesses = accesses,
                              .access_count = (size_t)count,
                              .duration_ns = vnode_model_kernel_ns(bytes)};
  return vnode_handle_status(vnode_op_submit(launch->stream, &op));
}

static CUresult launch_function(CUfunction function, const struct launch *launch) {
  VNODE_DRIVER_READY();
  if (!function || vnode_stream_id(launch->stream) < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  for (int i = 0; i < 3; i++)
    if (!launch->grid[i] || !launch->block[i])
      return CUDA_ERROR_INVALID_VALUE;
  if (launch->parameters && launch->extra)
    return CUDA_ERROR_INVALID_VALUE;
  if (function_of(function)->kernel != B200_KERNEL_COUNT)
    return launch_known(function_of(function)->kernel, launch);
  vnode_unhandled_kernel(function_of(function)->name);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **parameters, void **extra) {
  return launch_function(function, &(struct launch){.grid = {grid_x, grid_y, grid_z},
                                                    .block = {block_x, block_y, block_z},
                                                    .shared_bytes = shared_bytes,
                                                    .stream = vnode_stream_of(stream),
                                                    .parameters = parameters,
                                                    .extra = extra});
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  if (!config)
    return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                        config->blockDimZ, config->sharedMemBytes, config->hStream, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **parameters) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, NULL);
}

/* For the trace. */
void vnode_standin_describe(const char *name, const struct vnode_call *call, char *text, size_t text_bytes) {
  const struct function *function = vnode_call_pointer(call, 0);
  if (!strcmp(name, "cuLaunchKernel") && function)
    snprintf(text, text_bytes, "%s", function->name);
}
