/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of NCCL's own: through the driver's virtual memory functions, found by cuGetProcAddress, as NCCL does with
 * NCCL_CUMEM_ENABLE, its default on B200. Reserved and charged, never touched.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "core.h"
#include "nccl_internal.h"

#define PAGE_BYTES VNODE_MEMORY_ALIGN_BYTES

/*
 * What a communicator holds. Per channel and connection NCCL has one buffer for each protocol (v2.30 device.h, comm.h):
 *   Simple 4 MiB (NCCL_BUFFSIZE's default), LL128 640·120·8·8 B, LL 512·8·8·16 B: together 9.19 MiB, 10 MiB in 2 MiB pages.
 * 24 channels; connections: the ring's one, and the neighbours in the tree, which within a node is a chain: one with 2
 * ranks, two with more. That makes 480 MiB with 2 ranks and 720 MiB with more. Published on A100: 544 and 688 MB
 * (NVIDIA/nccl issues 864 and 964). Each communicator also has its work queue and device structures: a page. A single rank
 * has no connection.
 */
#define CONNECTION_BYTES ((size_t)24 * 10 << 20)

struct nccl_block {
  struct nccl_block *next;
  CUdeviceptr base;
  size_t bytes;
  CUmemGenericAllocationHandle handle;
};

static struct {
  CUresult (*init)(unsigned);
  CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*address_free)(CUdeviceptr, size_t);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
  bool ready;
} driver;

static void load_driver(void) {
  typedef CUresult (*get_address)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  const struct {
    const char *name;
    void *slot;
  } wanted[] = {
      {"cuInit", &driver.init},
      {"cuMemCreate", &driver.create},
      {"cuMemRelease", &driver.release},
      {"cuMemAddressReserve", &driver.reserve},
      {"cuMemAddressFree", &driver.address_free},
      {"cuMemMap", &driver.map},
      {"cuMemUnmap", &driver.unmap},
      {"cuMemSetAccess", &driver.set_access},
  };
  void *library = dlopen("libcuda.so.1", RTLD_LAZY);
  get_address find = NULL;
  if (library)
    *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
  if (!find)
    return;
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    if (find(wanted[i].name, wanted[i].slot, 12000, 0, NULL) != CUDA_SUCCESS || !*(void **)wanted[i].slot)
      return;
  driver.ready = driver.init(0) == CUDA_SUCCESS;
}

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static ncclResult_t map_block(struct nccl_block *block, int device) {
  CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = location,
                                    .allocFlags = {.gpuDirectRDMACapable = 1}};
  CUmemAccessDesc access = {.location = location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult code = driver.create(&block->handle, block->bytes, &properties, 0);
  if (code != CUDA_SUCCESS)
    return nccl_fail(ncclUnhandledCudaError, "cuMemCreate of %zu bytes on device %d: CUDA error %d", block->bytes, device,
                     (int)code);
  if ((code = driver.reserve(&block->base, block->bytes, PAGE_BYTES, 0, 0)) != CUDA_SUCCESS)
    goto release;
  if ((code = driver.map(block->base, block->bytes, 0, block->handle, 0)) != CUDA_SUCCESS)
    goto address;
  if ((code = driver.set_access(block->base, block->bytes, &access, 1)) == CUDA_SUCCESS)
    return ncclSuccess;
  driver.unmap(block->base, block->bytes);
address:
  driver.address_free(block->base, block->bytes);
release:
  driver.release(block->handle);
  return nccl_fail(ncclUnhandledCudaError, "mapping %zu bytes of device %d: CUDA error %d", block->bytes, device, (int)code);
}

static void unmap_block(const struct nccl_block *block) {
  enum vnode_owner before = vnode_owner_push(VNODE_OWNER_NCCL);
  driver.unmap(block->base, block->bytes);
  driver.release(block->handle);
  driver.address_free(block->base, block->bytes);
  vnode_owner_pop(before);
}

ncclResult_t memory_alloc(struct nccl_block **list, int device, size_t bytes, void **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load_driver);
  if (!driver.ready)
    return nccl_fail(ncclUnhandledCudaError, "libcuda.so.1 is missing, or lacks the cuMem functions");
  struct nccl_block *block = calloc(1, sizeof *block);
  if (!block)
    return nccl_fail(ncclSystemError, "out of memory");
  block->bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  enum vnode_owner before = vnode_owner_push(VNODE_OWNER_NCCL);
  ncclResult_t code = map_block(block, device);
  vnode_owner_pop(before);
  if (code != ncclSuccess) {
    free(block);
    return code;
  }
  pthread_mutex_lock(&list_lock);
  block->next = *list;
  *list = block;
  pthread_mutex_unlock(&list_lock);
  if (out)
    *out = (void *)(uintptr_t)block->base;
  return ncclSuccess;
}

ncclResult_t memory_free(struct nccl_block **list, void *base) {
  struct nccl_block *found = NULL;
  pthread_mutex_lock(&list_lock);
  for (struct nccl_block **at = list; *at; at = &(*at)->next)
    if ((*at)->base == (CUdeviceptr)(uintptr_t)base) {
      found = *at;
      *at = found->next;
      break;
    }
  pthread_mutex_unlock(&list_lock);
  if (!found)
    return nccl_fail(ncclInvalidArgument, "ncclMemFree: %p is not from ncclMemAlloc", base);
  unmap_block(found);
  free(found);
  return ncclSuccess;
}

void memory_free_all(struct nccl_block **list) {
  while (*list) {
    struct nccl_block *block = *list;
    *list = block->next;
    unmap_block(block);
    free(block);
  }
}

uint64_t memory_total(const struct nccl_block *list) {
  uint64_t total = 0;
  for (; list; list = list->next)
    total += list->bytes;
  return total;
}

ncclResult_t memory_alloc_comm(struct ncclComm *comm) {
  int connections = comm->nranks == 1 ? 0 : comm->nranks == 2 ? 2 : 3;
  ncclResult_t code = memory_alloc(&comm->blocks, comm->device, PAGE_BYTES, NULL);
  for (int i = 0; i < connections && code == ncclSuccess; i++)
    code = memory_alloc(&comm->blocks, comm->device, CONNECTION_BYTES, NULL);
  return code;
}
