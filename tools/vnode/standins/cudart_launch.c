/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runtime API: what nvcc's generated code calls to register device code, and launches. Device code cannot run: a launch is
 * an unhandled kernel. Variables are memory of their size; their initial value is in device code that is not read, so it is
 * zero.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"
#include "hook.h"

/* Called by compiled host code; crt/host_runtime.h, which declares them, is for nvcc only. */
void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
char __cudaInitModule(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t bytes, int constant,
                       int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                               cudaStream_t stream);

/* ------------------------------------------------------------------------------------------- registration */

/* Registered symbols by host address: open addressing, grown by doubling. libtorch_cuda registers some 100 000. */
struct symbol {
  const void *host;
  const char *name; /* static text of the module that registered it */
  size_t bytes;     /* variables */
  void *address[VNODE_MAX_DEVICES];
};

struct symbol_table {
  struct symbol **slots;
  size_t count, capacity;
};

static struct symbol_table kernels, variables;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t slot_of(const void *host, size_t capacity) {
  return (size_t)(((uintptr_t)host >> 3) * 0x9e3779b97f4a7c15u >> 16) & (capacity - 1);
}

static struct symbol *find(const struct symbol_table *table, const void *host) {
  if (!table->capacity)
    return NULL;
  size_t slot = slot_of(host, table->capacity);
  while (table->slots[slot] && table->slots[slot]->host != host)
    slot = (slot + 1) & (table->capacity - 1);
  return table->slots[slot];
}

static void place(struct symbol_table *table, struct symbol *symbol) {
  size_t slot = slot_of(symbol->host, table->capacity);
  while (table->slots[slot])
    slot = (slot + 1) & (table->capacity - 1);
  table->slots[slot] = symbol;
}

static bool grow(struct symbol_table *table) {
  struct symbol_table larger = {.count = table->count, .capacity = table->capacity ? 2 * table->capacity : 1024};
  larger.slots = calloc(larger.capacity, sizeof *larger.slots);
  if (!larger.slots)
    return false;
  for (size_t i = 0; i < table->capacity; i++)
    if (table->slots[i])
      place(&larger, table->slots[i]);
  free(table->slots);
  *table = larger;
  return true;
}

/* A symbol that is registered again (a module that was unloaded, its address reused) takes the new name. */
static void add(struct symbol_table *table, const void *host, const char *name, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct symbol *symbol = find(table, host);
  if (symbol) {
    symbol->name = name;
    symbol->bytes = bytes;
  } else if (2 * table->count < table->capacity || grow(table)) {
    symbol = calloc(1, sizeof *symbol);
    if (symbol) {
      *symbol = (struct symbol){.host = host, .name = name, .bytes = bytes};
      place(table, symbol);
      table->count++;
    }
  }
  pthread_mutex_unlock(&lock);
}

void **__cudaRegisterFatBinary(void *image) {
  (void)image;
  static void *handle;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
  (void)handle;
}

void __cudaUnregisterFatBinary(void **handle) {
  (void)handle;
}

char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp) {
  (void)handle, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
  add(&kernels, host, name, 0);
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t bytes, int constant,
                       int global) {
  (void)handle, (void)address, (void)external, (void)constant, (void)global;
  add(&variables, host, name, bytes);
}

/* ------------------------------------------------------------------------------------------- variables */

void *vnode_cudart_symbol(const void *host, size_t *bytes) {
  int device = vnode_device_current();
  void *address = NULL;
  pthread_mutex_lock(&lock);
  struct symbol *symbol = find(&variables, host);
  if (symbol && symbol->bytes) {
    if (!symbol->address[device])
      vnode_memory_alloc(device, symbol->bytes, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &symbol->address[device]);
    address = symbol->address[device];
    *bytes = symbol->bytes;
  }
  pthread_mutex_unlock(&lock);
  return address;
}

cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
  size_t bytes = 0;
  cudaError_t error = out ? vnode_cudart_start() : cudaErrorInvalidValue;
  if (error)
    return vnode_cudart_result(error);
  void *address = vnode_cudart_symbol(symbol, &bytes);
  if (address)
    *out = address;
  return vnode_cudart_result(address ? cudaSuccess : cudaErrorInvalidSymbol);
}

cudaError_t cudaGetSymbolSize(size_t *out, const void *symbol) {
  size_t bytes = 0;
  cudaError_t error = out ? vnode_cudart_start() : cudaErrorInvalidValue;
  if (error)
    return vnode_cudart_result(error);
  bool found = vnode_cudart_symbol(symbol, &bytes);
  if (found)
    *out = bytes;
  return vnode_cudart_result(found ? cudaSuccess : cudaErrorInvalidSymbol);
}

/* ------------------------------------------------------------------------------------------- launches */

static const char *name_of(const void *host) {
  pthread_mutex_lock(&lock);
  const struct symbol *symbol = find(&kernels, host);
  const char *name = symbol ? symbol->name : NULL;
  pthread_mutex_unlock(&lock);
  return name;
}

/* The C++ library of the program knows how; without one the name stays as it is. */
static char *demangle(const char *name) {
  typedef char *(*demangler)(const char *, char *, size_t *, int *);
  demangler function = NULL;
  int status = -1;
  *(void **)&function = dlsym(RTLD_DEFAULT, "__cxa_demangle");
  return function ? function(name, NULL, NULL, &status) : NULL;
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, cudaStream_t stream) {
  cudaError_t error = vnode_cudart_start();
  if (error)
    return vnode_cudart_result(error);
  const char *name = name_of(host);
  if (!name)
    return vnode_cudart_result(cudaErrorInvalidDeviceFunction);
  if (vnode_stream_id((struct vnode_stream *)stream) < 0)
    return vnode_cudart_result(cudaErrorInvalidResourceHandle);
  size_t threads = (size_t)block.x * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024)
    return vnode_cudart_result(cudaErrorInvalidConfiguration);
  if (vnode_config()->kernels_skipped) {
    vnode_skipped_kernel();
    return cudaSuccess;
  }
  char *readable = demangle(name);
  vnode_unhandled_kernel(readable ? readable : name);
  free(readable);
  return cudaSuccess;
}

/* For the trace: the mangled name, which alone tells kernels apart; and what a launch by configuration has in there. */
void vnode_standin_describe(const char *function, const struct vnode_call *call, char *text, size_t text_bytes) {
  bool configured = !strcmp(function, "cudaLaunchKernelExC");
  const cudaLaunchConfig_t *config = configured ? vnode_call_pointer(call, 0) : NULL;
  const char *name = name_of(vnode_call_pointer(call, configured));
  size_t used = 0;
  if (config)
    used = (size_t)snprintf(text, text_bytes, "s=%d grid=%u,%u,%u block=%u,%u,%u smem=%zu ",
                            vnode_stream_id((struct vnode_stream *)config->stream), config->gridDim.x, config->gridDim.y,
                            config->gridDim.z, config->blockDim.x, config->blockDim.y, config->blockDim.z,
                            config->dynamicSmemBytes);
  snprintf(text + used, text_bytes - used, "%s", name ? name : "unknown");
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  if (!kernel)
    return vnode_cudart_result(cudaErrorInvalidValue);
  *kernel = (cudaKernel_t)(uintptr_t)host; /* a kernel is named by its host function throughout */
  return vnode_cudart_result(name_of(host) ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                               cudaStream_t stream) {
  (void)args, (void)shared_bytes;
  return launch((const void *)kernel, grid, block, stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                             cudaStream_t stream) {
  (void)args, (void)shared_bytes;
  return launch(host, grid, block, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                                        cudaStream_t stream) {
  (void)args, (void)shared_bytes;
  return launch(host, grid, block, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args) {
  (void)args;
  return config ? launch(host, config->gridDim, config->blockDim, config->stream)
                : vnode_cudart_result(cudaErrorInvalidValue);
}

/* Configurations of <<<>>> launches: pushed before the arguments are evaluated, popped by the launch. */
struct configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
enum { MAX_CONFIGURATIONS = 32 };
static _Thread_local struct configuration configurations[MAX_CONFIGURATIONS];
static _Thread_local unsigned configuration_count;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream) {
  if (configuration_count == MAX_CONFIGURATIONS)
    return 1; /* the compiled code skips the launch */
  configurations[configuration_count++] =
      (struct configuration){.grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  if (!configuration_count)
    return vnode_cudart_result(cudaErrorMissingConfiguration);
  const struct configuration *top = &configurations[--configuration_count];
  *grid = top->grid;
  *block = top->block;
  *shared_bytes = top->shared_bytes;
  *(cudaStream_t *)stream = top->stream;
  return cudaSuccess;
}

/* ------------------------------------------------------------------------------------------- functions */

/* Registers and shared memory of a kernel are in device code that is not read; these are the limits of the device. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
  if (!attributes)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!name_of(host))
    return vnode_cudart_result(cudaErrorInvalidDeviceFunction);
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 10 * vnode_gpu()->cc_major + vnode_gpu()->cc_minor;
  attributes->maxDynamicSharedSizeBytes = vnode_gpu()->shared_per_block_bytes;
  return cudaSuccess;
}

static cudaError_t set_attribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  if (!name_of(host))
    return cudaErrorInvalidDeviceFunction;
  bool too_much = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > vnode_gpu()->shared_optin_bytes;
  return too_much || (unsigned)attribute >= cudaFuncAttributeMax ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  return vnode_cudart_result(set_attribute(host, attribute, value));
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device) {
  return vnode_cudart_result(vnode_is_device(device) ? set_attribute((const void *)kernel, attribute, value)
                                                     : cudaErrorInvalidDevice);
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config) {
  (void)config;
  return vnode_cudart_result(name_of(host) ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncGetName(const char **name, const void *host) {
  const char *found = name_of(host);
  if (!name || !found)
    return vnode_cudart_result(name ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
  *name = found;
  return cudaSuccess;
}

/* By threads and shared memory alone: registers are not known. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int block_threads,
                                                                   size_t shared_bytes, unsigned int flags) {
  if (!blocks || block_threads <= 0 || flags & ~(unsigned)cudaOccupancyDisableCachingOverride)
    return vnode_cudart_result(cudaErrorInvalidValue);
  if (!name_of(host))
    return vnode_cudart_result(cudaErrorInvalidDeviceFunction);
  enum { WARP = 32, SHARED_RESERVED = 1024 };
  int rounded = (block_threads + WARP - 1) / WARP * WARP;
  int by_threads = vnode_gpu()->threads_per_sm / rounded;
  size_t by_shared = (size_t)vnode_gpu()->shared_per_sm_bytes / (shared_bytes + SHARED_RESERVED);
  int limit = by_threads < vnode_gpu()->blocks_per_sm ? by_threads : vnode_gpu()->blocks_per_sm;
  *blocks = block_threads > 1024 ? 0 : (size_t)limit < by_shared ? limit : (int)by_shared;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int block_threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, block_threads, shared_bytes, 0);
}
