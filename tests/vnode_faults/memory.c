/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory as a pool of it would serve it: blocks that are freed and asked for again, by the runtime and the driver, by
 * PyTorch's caching allocator and others, beside queued work, on a device that is nearly full; with MEMORY_NOT_FULL never
 * within 64 MiB of its end.
 *
 * stderr goes where stdout goes: what is said of a fault stands before the line of the call that it struck.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include "harness.h"

#define MIB ((size_t)1 << 20)

enum { BLOCKS = 64 };

/* By which the library knows PyTorch's caching allocator. */
extern cudaError_t pool_test_cache_free(cudaError_t (*free_block)(void *), void *block);
#define FREE_AS_PYTORCH(block) pool_test_cache_free(cudaFree, block)

static void last_error(void) {
  int peeked = (int)cudaPeekAtLastError(), first = (int)cudaGetLastError(), second = (int)cudaGetLastError();
  SHOW("last error %d, %d, then %d", peeked, first, second);
}

static size_t info(void) {
  size_t available = 0, total = 0;
  CALL(cudaMemGetInfo(&available, &total));
  SHOW("free %zu of %zu MiB", available / MIB, total / MIB);
  return available;
}

/* What a block holds is what was last written into it. */
static void use(void *block, int value, cudaStream_t stream) {
  unsigned char host[2] = {0, 0};
  if (!block || CALL(cudaMemsetAsync(block, value, MIB, stream)) != 0)
    return;
  CALL(cudaMemcpyAsync(host, (char *)block + MIB - 2, 2, cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  SHOW("holds %d %d", host[0], host[1]);
}

/* Freed in both manners and asked for again, with work queued and without. */
static void reuse(cudaStream_t stream) {
  for (int i = 0; i < 3; i++) {
    void *a = NULL, *b = NULL;
    CALL(cudaMalloc(&a, 8 * MIB));
    CALL(cudaMalloc(&b, 16 * MIB));
    use(a, 1 + i, stream);
    if (b)
      CALL(cudaMemsetAsync(b, 5, MIB, stream));
    CALL(FREE_AS_PYTORCH(b));
    b = NULL;
    CALL(cudaMalloc(&b, 16 * MIB));
    use(b, 7 + i, NULL);
    if (i == 1)
      CALL(cudaDeviceSynchronize());
    CALL(cudaFree(a));
    CALL(FREE_AS_PYTORCH(b));
    if (i == 2)
      CALL(cudaFree(b)); /* twice */
    info();
  }
  last_error();
}

static void by_driver(void) {
  CUdeviceptr a = 0, b = 0;
  size_t available = 0, total = 0, bytes = 0;
  for (int i = 0; i < 2; i++) {
    CALL(cuMemAlloc(&a, 8 * MIB));
    CALL(cuMemAlloc(&b, 32 * MIB));
    SHOW("a %s b %s", a ? "set" : "null", b ? "set" : "null");
    CALL(cuMemsetD8(a, 3, MIB));
    CALL(cuMemGetAddressRange(NULL, &bytes, a));
    SHOW("bytes %zu", bytes);
    CALL(cuMemFree(a));
    CALL(cuCtxSynchronize());
    CALL(cuMemFree(b));
    CALL(cuMemGetInfo(&available, &total));
    SHOW("free %zu of %zu MiB", available / MIB, total / MIB);
    a = b = 0;
  }
  CALL(cuMemFree(b));
}

/* Other allocations, for which the pool has to make room. */
static void others(cudaStream_t stream, size_t bytes) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUmemGenericAllocationHandle handle = 0;
  void *ordered = NULL, *pitched = NULL, *beside = NULL;
  size_t pitch = 0;
  CALL(cuMemCreate(&handle, bytes, &properties, 0));
  SHOW_POINTER(handle);
  CALL(cudaMalloc(&beside, 60 * MIB));
  use(beside, 8, stream);
  CALL(cudaFree(beside));
  if (handle)
    CALL(cuMemRelease(handle));
  CALL(cudaMallocAsync(&ordered, 32 * MIB, stream));
  if (ordered)
    CALL(cudaFreeAsync(ordered, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMallocPitch(&pitched, &pitch, 1 * MIB, 8));
  CALL(cudaFree(pitched));
  last_error();
}

/* All but `left` bytes are taken and freed, and larger blocks asked for: what was kept is in their way. */
static void fill(cudaStream_t stream, size_t left) {
  void *blocks[BLOCKS] = {NULL}, *large = NULL;
  size_t room = info();
  int count = 0;
  while (count < BLOCKS && room >= left + 48 * MIB && CALL(cudaMalloc(&blocks[count], 48 * MIB)) == 0) {
    CALL(cudaMemsetAsync(blocks[count++], 1, MIB, stream));
    room -= 48 * MIB;
  }
  last_error();
  for (int i = 0; i < count; i += 2)
    CALL(FREE_AS_PYTORCH(blocks[i]));
  CALL(cudaMalloc(&large, 96 * MIB));
  if (CALL(cudaFree(large)) == 0) /* lost, it would leave less than the 64 MiB */
    others(stream, 80 * MIB);
  for (int i = 1; i < count; i += 2)
    CALL(i % 4 == 1 ? cudaFree(blocks[i]) : FREE_AS_PYTORCH(blocks[i]));
  large = NULL;
  CALL(cudaMalloc(&large, room + (size_t)(count - 2) * 48 * MIB - left));
  use(large, 9, stream);
  CALL(cudaFree(large));
  last_error();
  info();
}

/* A block of the other GPU, freed and asked for again while this one is current. */
static void far(void) {
  void *block = NULL;
  CALL(cudaSetDevice(1));
  CALL(cudaMalloc(&block, 8 * MIB));
  for (int i = 0; i < 3; i++) {
    CALL(cudaSetDevice(0));
    CALL(i == 0 ? cudaFree(block) : FREE_AS_PYTORCH(block));
    block = NULL;
    CALL(cudaSetDevice(1));
    CALL(cudaMalloc(&block, 8 * MIB));
    use(block, 4 + i, NULL);
  }
  CALL(cudaFree(block));
  info();
  CALL(cudaSetDevice(0));
  last_error();
}

int program_run(void) {
  cudaStream_t stream = NULL;
  dup2(STDOUT_FILENO, STDERR_FILENO);
  setvbuf(stdout, NULL, _IOLBF, 0);
  CALL(cudaFree(NULL));
  CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  reuse(stream);
  by_driver();
  far();
  fill(stream, getenv("MEMORY_NOT_FULL") ? 64 * MIB : 0);
  CALL(cudaStreamDestroy(stream));
  CALL(cudaDeviceSynchronize());
  printf("%d calls failed\n", failures);
  return failures > 99 ? 99 : failures;
}
