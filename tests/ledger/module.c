/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with a CUDA runtime of its own, as NCCL and cuBLAS have: no symbol of it is bound to libcuda; it finds the
 * driver by dlopen and dlsym of one function, and everything else by cuGetProcAddress. Built once for each owner, under a
 * file name of that owner; the node is told who asks (OWNER), the library has to find out.
 */
#include "module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/vnode/core/core.h"

#define FUNCTIONS(F)                                                                                                        \
  F(cuMemAlloc, 3020, 0)                                                                                                    \
  F(cuMemFree, 3020, 0)                                                                                                     \
  F(cuMemAllocPitch, 3020, 0)                                                                                               \
  F(cuMemAllocManaged, 6000, 0)                                                                                             \
  F(cuMemAllocAsync, 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)                                                  \
  F(cuMemFreeAsync, 11020, CU_GET_PROC_ADDRESS_LEGACY_STREAM)                                                               \
  F(cuMemCreate, 10020, 0)                                                                                                  \
  F(cuMemRelease, 10020, 0)                                                                                                 \
  F(cuMemRetainAllocationHandle, 11000, 0)                                                                                  \
  F(cuMemAddressReserve, 10020, 0)                                                                                          \
  F(cuMemAddressFree, 10020, 0)                                                                                             \
  F(cuMemMap, 10020, 0)                                                                                                     \
  F(cuMemUnmap, 10020, 0)

static struct {
#define F(name, version, flags) __typeof__(name) *name;
  FUNCTIONS(F)
#undef F
} driver;
static bool found;
#define CALL(name, ...) expect(#name, driver.name(__VA_ARGS__))

static void expect(const char *what, CUresult status) {
  if (status == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %d\n", what, (int)status);
  exit(2);
}

static void find_driver(void) {
  CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&get = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
  if (!get)
    expect("dlsym(cuGetProcAddress_v2)", CUDA_ERROR_NOT_FOUND);
#define F(name, version, flags) expect("cuGetProcAddress " #name, get(#name, (void **)&driver.name, version, flags, NULL));
  FUNCTIONS(F)
#undef F
  found = true;
}

/* One granted block: of the virtual memory API it has a handle as well. */
static void grant(enum block_kind kind, size_t bytes, struct block *block) {
  const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  size_t whole = (bytes + VNODE_MEMORY_ALIGN_BYTES - 1) / VNODE_MEMORY_ALIGN_BYTES * VNODE_MEMORY_ALIGN_BYTES, pitch;
  CUmemGenericAllocationHandle again;
  *block = (struct block){.kind = kind, .bytes = whole};
  switch (kind) {
  case BLOCK_PLAIN:
    CALL(cuMemAlloc, &block->address, bytes);
    break;
  case BLOCK_PITCHED:
    CALL(cuMemAllocPitch, &block->address, &pitch, bytes / 64 + 1, 64, 4);
    break;
  case BLOCK_MANAGED:
    CALL(cuMemAllocManaged, &block->address, bytes, CU_MEM_ATTACH_GLOBAL);
    break;
  case BLOCK_ORDERED:
    CALL(cuMemAllocAsync, &block->address, bytes, NULL);
    break;
  case BLOCK_MAPPED: /* as PyTorch keeps it: with the handle; as NCCL does: without */
  case BLOCK_MAPPED_ONLY:
  case BLOCK_RETAINED:
    CALL(cuMemCreate, &block->handle, whole, &on_device, 0);
    CALL(cuMemAddressReserve, &block->address, whole, 0, 0, 0);
    CALL(cuMemMap, block->address, whole, 0, block->handle, 0);
    if (kind == BLOCK_MAPPED_ONLY)
      CALL(cuMemRelease, block->handle);
    if (kind == BLOCK_RETAINED)
      CALL(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)block->address);
    break;
  default:
    break;
  }
}

static void give_back(struct block *block) {
  switch (block->kind) {
  case BLOCK_ORDERED:
    CALL(cuMemFreeAsync, block->address, NULL);
    break;
  case BLOCK_MAPPED:
  case BLOCK_MAPPED_ONLY:
  case BLOCK_RETAINED:
    if (block->kind == BLOCK_RETAINED)
      CALL(cuMemRelease, block->handle);
    if (block->kind == BLOCK_RETAINED && block->bytes % 3 == 0) /* the handle first, or the mapping */
      CALL(cuMemRelease, block->handle);
    CALL(cuMemUnmap, block->address, block->bytes);
    if (block->kind == BLOCK_MAPPED || (block->kind == BLOCK_RETAINED && block->bytes % 3 != 0))
      CALL(cuMemRelease, block->handle);
    CALL(cuMemAddressFree, block->address, block->bytes);
    break;
  default:
    CALL(cuMemFree, block->address);
  }
  *block = (struct block){0};
}

void module_alloc(enum block_kind kind, size_t bytes, struct block *out) {
  if (!found)
    find_driver();
  enum vnode_owner before = vnode_owner_push(OWNER);
  grant(kind, bytes, out);
  vnode_owner_pop(before);
}

void module_free(struct block *block) {
  if (!found)
    find_driver();
  give_back(block);
}
