/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with memory: freed or reused too early, used too early, and what the host may touch when. */
#include <cuda.h>
#include <string.h>

#include "programs.h"

#define DRIVER_PAGE_BYTES ((size_t)2 << 20)

static unsigned char *alloc_on(cudaStream_t stream) {
  void *out = NULL;
  MUST(cudaMallocAsync(&out, PROGRAM_BYTES, stream));
  return out;
}

static bool frees_while_another_stream_reads(bool wrong) {
  unsigned char *block = alloc_on(on.a);
  fill(block, 1, on.a);
  record(on.e, on.a);
  wait_for(on.b, on.e);
  copy(on.y, block, on.b);
  record(on.f, on.b);
  if (!wrong)
    wait_for(on.a, on.f);
  MUST(cudaFreeAsync(block, on.a));
  fill(alloc_on(on.a), 2, on.a); /* most likely the same block */
  return holds(on.y, 1);
}

static bool uses_before_the_allocation(bool wrong) {
  unsigned char *block = alloc_on(on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  fill(block, 1, on.b);
  return holds(block, 1);
}

/* The block served another stream before, so that it comes into use only when that one has freed it. */
static bool uses_before_the_reuse(bool wrong) {
  unsigned char *first = alloc_on(on.a);
  fill(first, 1, on.a);
  copy(on.y, first, on.a);
  MUST(cudaFreeAsync(first, on.a));
  unsigned char *second = alloc_on(on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  fill(second, 2, on.b);
  return holds(second, 2) && holds(on.y, 1);
}

static bool uses_after_the_free(bool wrong) {
  unsigned char *block = alloc_on(on.a);
  fill(block, 1, on.a);
  if (wrong)
    MUST(cudaFreeAsync(block, on.a));
  copy(on.y, block, on.a);
  if (!wrong)
    MUST(cudaFreeAsync(block, on.a));
  return holds(on.y, 1);
}

static bool unmaps_while_in_use(bool wrong) {
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  const CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  MUST(cuMemCreate(&handle, DRIVER_PAGE_BYTES, &prop, 0));
  MUST(cuMemAddressReserve(&at, DRIVER_PAGE_BYTES, 0, 0, 0));
  MUST(cuMemMap(at, DRIVER_PAGE_BYTES, 0, handle, 0));
  MUST(cuMemSetAccess(at, DRIVER_PAGE_BYTES, &access, 1));
  fill((void *)at, 1, on.a);
  copy(on.y, (void *)at, on.a);
  if (!wrong)
    synchronize(on.a);
  MUST(cuMemUnmap(at, DRIVER_PAGE_BYTES));
  MUST(cuMemRelease(handle));
  return holds(on.y, 1);
}

/* ------------------------------------------------------------------------------------------- host memory */

static bool reuses_a_pinned_source(bool wrong) {
  memset(on.pinned, 1, PROGRAM_BYTES);
  copy(on.x, on.pinned, on.a);
  if (!wrong)
    synchronize(on.a);
  memset(on.pinned, 2, PROGRAM_BYTES);
  return holds(on.x, 1);
}

/* A loader with two pinned buffers; the wrong one waits for the upload of three steps ago. */
static bool reuses_a_pinned_ring(bool wrong) {
  enum { STEPS = 6 };
  unsigned char *ring = NULL, *out = NULL;
  cudaEvent_t uploaded[STEPS];
  MUST(cudaMallocHost((void **)&ring, 2 * PROGRAM_BYTES));
  MUST(cudaMalloc((void **)&out, STEPS * PROGRAM_BYTES));
  for (int i = 0; i < STEPS; i++)
    MUST(cudaEventCreate(&uploaded[i]));
  bool right = true;
  for (size_t i = 0; i < STEPS; i++) {
    size_t back = wrong ? 3 : 2;
    if (i >= back)
      MUST(cudaEventSynchronize(uploaded[i - back]));
    memset(ring + i % 2 * PROGRAM_BYTES, (int)i + 1, PROGRAM_BYTES);
    copy(out + i * PROGRAM_BYTES, ring + i % 2 * PROGRAM_BYTES, on.a);
    record(uploaded[i], on.a);
  }
  for (size_t i = 0; i < STEPS; i++)
    right &= holds(out + i * PROGRAM_BYTES, (int)i + 1);
  return right;
}

static bool reads_a_download_too_soon(bool wrong) {
  fill(on.x, 1, on.a);
  copy(on.pinned, on.x, on.a);
  if (!wrong)
    synchronize(on.a);
  return all_bytes_are(on.pinned, 1);
}

static bool overwrites_a_download(bool wrong) {
  fill(on.x, 1, on.a);
  copy(on.pinned, on.x, on.a);
  fill(on.z, 2, on.b);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  copy(on.pinned, on.z, on.b);
  MUST(cudaDeviceSynchronize());
  return all_bytes_are(on.pinned, 2);
}

/* ------------------------------------------------------------------------------------------- right, if strange */

static void CUDART_CB count_up(void *bytes) {
  for (size_t i = 0; i < PROGRAM_BYTES; i++)
    ((unsigned char *)bytes)[i]++;
}

/* The source of the second copy is made by a host function in the stream, after the copy was submitted. */
static bool a_host_function_makes_the_source(bool wrong) {
  (void)wrong;
  fill(on.x, 1, on.a);
  copy(on.pinned, on.x, on.a);
  MUST(cudaLaunchHostFunc(on.a, count_up, on.pinned));
  copy(on.y, on.pinned, on.a);
  MUST(cudaLaunchHostFunc(on.a, count_up, on.pinned));
  copy(on.z, on.pinned, on.a);
  return holds(on.y, 2) && holds(on.z, 3);
}

static bool pageable_memory_is_read_at_once(bool wrong) {
  (void)wrong;
  static unsigned char host[PROGRAM_BYTES];
  memset(host, 1, sizeof host);
  copy(on.x, host, on.a);
  memset(host, 2, sizeof host);
  copy(on.y, host, on.a);
  memset(host, 3, sizeof host);
  return holds(on.x, 1) && holds(on.y, 2);
}

static bool pageable_memory_is_written_at_once(bool wrong) {
  (void)wrong;
  static unsigned char host[PROGRAM_BYTES];
  fill(on.x, 1, on.a);
  copy(host, on.x, on.a);
  return all_bytes_are(host, 1);
}

static bool a_copy_without_async_is_complete(bool wrong) {
  (void)wrong;
  MUST(cudaMemset(on.x, 1, PROGRAM_BYTES));
  MUST(cudaMemcpy(on.pinned, on.x, PROGRAM_BYTES, cudaMemcpyDeviceToHost));
  bool right = all_bytes_are(on.pinned, 1);
  memset(on.pinned, 2, PROGRAM_BYTES);
  MUST(cudaMemcpy(on.y, on.pinned, PROGRAM_BYTES, cudaMemcpyHostToDevice));
  memset(on.pinned, 3, PROGRAM_BYTES);
  return right && holds(on.y, 2);
}

static bool freeing_waits(bool wrong) {
  (void)wrong;
  void *block = NULL;
  MUST(cudaMalloc(&block, PROGRAM_BYTES));
  fill(block, 1, on.a);
  copy(on.y, block, on.a);
  MUST(cudaFree(block));
  MUST(cudaMalloc(&block, PROGRAM_BYTES));
  fill(block, 2, on.b);
  return holds(on.y, 1) && holds(block, 2);
}

static bool a_block_goes_from_stream_to_stream(bool wrong) {
  (void)wrong;
  for (int i = 1; i <= 6; i++) {
    cudaStream_t from = i % 2 ? on.a : on.b, to = i % 2 ? on.b : on.a;
    unsigned char *block = alloc_on(from);
    fill(block, i, from);
    record(on.e, from);
    wait_for(to, on.e);
    copy(on.y, block, to);
    MUST(cudaFreeAsync(block, to));
    record(on.f, to);
    wait_for(from, on.f);
  }
  return holds(on.y, 6);
}

static bool a_pool_orders_its_reuse(bool wrong) {
  (void)wrong;
  unsigned char *first = alloc_on(on.a);
  fill(first, 1, on.a);
  copy(on.y, first, on.a);
  MUST(cudaFreeAsync(first, on.a));
  unsigned char *second = alloc_on(on.b); /* waits for the free if it is the same block */
  fill(second, 2, on.b);
  return holds(on.y, 1) && holds(second, 2);
}

static bool a_polled_upload_is_complete(bool wrong) {
  (void)wrong;
  memset(on.pinned, 1, PROGRAM_BYTES);
  copy(on.x, on.pinned, on.a);
  record(on.e, on.a);
  while (cudaEventQuery(on.e) == cudaErrorNotReady)
    ;
  memset(on.pinned, 2, PROGRAM_BYTES);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

const struct program memory_programs[] = {
    {"frees while another stream reads", frees_while_another_stream_reads, "freed while in use", "cuMemFreeAsync", "copy",
     .shows = true},
    {"uses before the allocation", uses_before_the_allocation, "write after unordered write", "fill", "cuMemAllocAsync",
     .shows = false},
    {"uses before the reuse", uses_before_the_reuse, "write after unordered write", "fill", "cuMemAllocAsync",
     .shows = true},
    {"uses after the free", uses_after_the_free, "use after free", "copy", "cuMemFreeAsync", .shows = true},
    {"unmaps while in use", unmaps_while_in_use, "freed while in use", "cuMemUnmap", "copy", .shows = false},
    {"reuses a pinned source", reuses_a_pinned_source, "host memory changed", "copy", "", .shows = true},
    {"reuses a pinned ring", reuses_a_pinned_ring, "host memory changed", "copy", "", .shows = true},
    {"reads a download too soon", reads_a_download_too_soon, .shows = true},
    {"overwrites a download", overwrites_a_download, "write after unordered write", "copy", "copy", .shows = true},
    {"a host function makes the source", a_host_function_makes_the_source, .right_only = true},
    {"pageable memory is read at once", pageable_memory_is_read_at_once, .right_only = true},
    {"pageable memory is written at once", pageable_memory_is_written_at_once, .right_only = true},
    {"a copy without async is complete", a_copy_without_async_is_complete, .right_only = true},
    {"freeing waits", freeing_waits, .right_only = true},
    {"a block goes from stream to stream", a_block_goes_from_stream_to_stream, .right_only = true},
    {"a pool orders its reuse", a_pool_orders_its_reuse, .right_only = true},
    {"a polled upload is complete", a_polled_upload_is_complete, .right_only = true},
    {.name = NULL}};
