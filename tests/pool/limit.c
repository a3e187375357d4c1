/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs near the limit of the device's memory, with an allocator that behaves as PyTorch's: what is freed is kept, and when
 * the driver has no more it is given back and the same allocation tried once more.
 *
 *   limit nccl       the cache has filled the devices when NCCL wants its buffers
 *   limit rescue     likewise, but all of it was freed before
 *   limit retries N  N allocations that succeed at the second try
 *   limit large MIB  one allocation of that size beside half a GiB
 *   limit lone MIB   likewise, beside nothing
 *   limit ordered    stream-ordered memory, near what a headroom of 400 MiB leaves of two GiB
 *
 * exit status 3: out of memory.
 */
#include <nccl.h>
#include <stdint.h>
#include <string.h>

#include "functions.h"

#define MIB ((size_t)1 << 20)

enum { DEVICES = 2, CACHED_MAX = 256, OUT_OF_MEMORY = 3 };

static struct {
  void *blocks[CACHED_MAX];
  int count;
} cache;

static void must(int status, const char *what, int line) {
  if (status == 0)
    return;
  printf("line %d: %s gives %d\n", line, what, status);
  exit(1);
}
#define MUST(call) must((int)(call), #call, __LINE__)

static void empty_cache(void) {
  for (int i = 0; i < cache.count; i++)
    MUST(free_as_pytorch(cache.blocks[i]));
  cache.count = 0;
}

static void *want(size_t bytes) {
  void *block = NULL;
  cudaError_t status = p_cudaMalloc(&block, bytes);
  if (status == cudaErrorMemoryAllocation) {
    p_cudaGetLastError();
    empty_cache();
    status = p_cudaMalloc(&block, bytes);
  }
  if (status == cudaErrorMemoryAllocation) {
    printf("out of memory\n");
    fflush(stdout);
    exit(OUT_OF_MEMORY);
  }
  must((int)status, "cudaMalloc", __LINE__);
  return block;
}

static void done_with(void *block) {
  if (cache.count == CACHED_MAX)
    empty_cache();
  cache.blocks[cache.count++] = block;
}

/* Until the driver has no more: the cache has it all then. */
static void fill_device(void) {
  void *block;
  for (size_t i = 0; i < 20; i++)
    done_with(want((40 + 2 * i) * MIB));
  while (p_cudaMalloc(&block, 16 * MIB) == cudaSuccess)
    done_with(block);
  p_cudaGetLastError();
}

/* Cached memory leaves NCCL no room, is freed in time, or is not there at all. */
enum before { KEEP, FREE, ALONE };

static int communicate(enum before before) {
  ncclResult_t (*init)(ncclComm_t *, int, const int *) = NULL;
  ncclResult_t (*destroy)(ncclComm_t) = NULL;
  ncclComm_t comms[DEVICES] = {NULL};
  if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL))
    return 77;
  *(void **)&init = dlsym(RTLD_DEFAULT, "ncclCommInitAll");
  *(void **)&destroy = dlsym(RTLD_DEFAULT, "ncclCommDestroy");
  for (int device = 0; device < DEVICES && before != ALONE; device++) {
    MUST(p_cudaSetDevice(device));
    void *kept = want(256 * MIB);
    fill_device();
    if (before == FREE) {
      empty_cache();
      MUST(p_cudaFree(kept));
    }
    cache.count = 0; /* each device has its own */
  }
  ncclResult_t status = init(comms, DEVICES, NULL);
  printf("ncclCommInitAll %d\n", status);
  for (int device = 0; device < DEVICES && status == ncclSuccess; device++)
    MUST(destroy(comms[device]));
  return status == ncclSuccess ? 0 : OUT_OF_MEMORY;
}

static int retries(int count) {
  size_t total;
  MUST(p_cudaMemGetInfo(NULL, &total));
  for (int i = 0; i < count; i++) {
    size_t part = total / 10 / (2 * MIB) * (2 * MIB) + (size_t)(i % 2) * 64 * MIB;
    for (int j = 0; j < 3; j++)
      done_with(want(part * 2));
    done_with(want(part * 5));
  }
  printf("done\n");
  return 0;
}

/* The driver's pool keeps what is freed into it, as PyTorch has it. The node's context leaves 1446 MiB of two GiB. */
static int ordered(void) {
  cudaStream_t stream;
  cudaMemPool_t pool;
  uint64_t keep = UINT64_MAX;
  void *block = NULL, *beside = NULL, *other;
  MUST(p_cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(p_cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(p_cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  MUST(p_cudaMallocAsync(&block, 800 * MIB, stream));
  printf("beside it %d\n", p_cudaMallocAsync(&beside, 400 * MIB, stream));
  printf("last error %d\n", p_cudaGetLastError());
  if (beside)
    MUST(p_cudaFreeAsync(beside, stream));
  MUST(p_cudaFreeAsync(block, stream));
  MUST(p_cudaStreamSynchronize(stream));
  MUST(p_cudaMallocManaged(&other, 300 * MIB,
                           cudaMemAttachGlobal)); /* not limited: were the rest given back, it would not do */
  printf("from what is idle %d\n", p_cudaMallocAsync(&block, 800 * MIB, stream));
  MUST(p_cudaFree(other));
  MUST(p_cudaMemsetAsync(block, 1, 16 * MIB, stream));
  MUST(p_cudaFreeAsync(block, stream)); /* not waited for */
  printf("in its place %d\n", p_cudaMallocAsync(&block, 1000 * MIB, stream));
  MUST(p_cudaFreeAsync(block, stream));
  printf("most of it %d\n", p_cudaMallocAsync(&block, 1300 * MIB, stream));
  return 0;
}

int main(int argc, char **argv) {
  load_functions();
  void *first;
  if (argc == 2 && !strcmp(argv[1], "first")) { /* this very call makes the library start */
    MUST(p_cudaMalloc(&first, 8 * MIB));
    return 0;
  }
  MUST(p_cudaFree(NULL));
  if (argc == 3 && !strcmp(argv[1], "lone")) {
    want((size_t)atol(argv[2]) * MIB);
    return 0;
  }
  MUST(p_cudaMalloc(&first, MIB));
  if (argc == 2 && !strcmp(argv[1], "ordered"))
    return ordered();
  if (argc == 2 && !strcmp(argv[1], "nccl"))
    return communicate(KEEP);
  if (argc == 2 && !strcmp(argv[1], "alone"))
    return communicate(ALONE);
  if (argc == 2 && !strcmp(argv[1], "rescue"))
    return communicate(FREE);
  if (argc == 3 && !strcmp(argv[1], "retries"))
    return retries(atoi(argv[2]));
  if (argc == 3 && !strcmp(argv[1], "large")) {
    want(512 * MIB);
    want((size_t)atol(argv[2]) * MIB);
    printf("fits\n");
    return 0;
  }
  fprintf(stderr, "usage: limit first|nccl|alone|rescue|ordered|retries N|large MIB|lone MIB\n");
  return 2;
}
