/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver API: stream-ordered memory pools. A freed block stays with its pool while what the pool reserves is within its
 * release threshold, and serves the next request of its size; otherwise it goes back at once. In eager order the stream
 * argument orders nothing: whatever was submitted before has run.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct block {
  void *base;
  size_t bytes;
  bool used;
  struct block *next;
};

struct pool {
  int device;
  bool is_default;
  struct block *blocks;
  int reuse[3]; /* by CUmemPool_attribute, REUSE_* */
  uint64_t threshold, reserved, reserved_high, used, used_high;
  struct pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool defaults[VNODE_MAX_DEVICES];
static struct pool *current[VNODE_MAX_DEVICES]; /* NULL: the default */
static struct pool *created;

static struct pool *default_pool(int device) {
  struct pool *pool = &defaults[device];
  if (!pool->is_default)
    *pool = (struct pool){.device = device, .is_default = true, .reuse = {1, 1, 1}};
  return pool;
}

static struct pool *pool_of(CUmemoryPool handle) {
  struct pool *pool = (struct pool *)handle;
  if (pool >= defaults && pool < defaults + VNODE_MAX_DEVICES)
    return pool->is_default ? pool : NULL;
  for (struct pool *each = created; each; each = each->next)
    if (each == pool)
      return pool;
  return NULL;
}

static void give_back(struct pool *pool, struct block **link) {
  struct block *block = *link;
  *link = block->next;
  pool->reserved -= block->bytes;
  vnode_memory_free(block->base);
  free(block);
}

static bool trim(struct pool *pool, uint64_t keep_bytes) {
  bool any = false;
  for (struct block **link = &pool->blocks; *link && pool->reserved > keep_bytes;)
    if ((*link)->used) {
      link = &(*link)->next;
    } else {
      give_back(pool, link);
      any = true;
    }
  return any;
}

static bool trim_device(int device) {
  bool any = trim(default_pool(device), 0);
  for (struct pool *pool = created; pool; pool = pool->next)
    if (pool->device == device)
      any |= trim(pool, 0);
  return any;
}

bool vnode_pool_trim_all(int device) {
  pthread_mutex_lock(&lock);
  bool any = trim_device(device);
  pthread_mutex_unlock(&lock);
  return any;
}

static void raise_high(uint64_t *high, uint64_t now) {
  if (now > *high)
    *high = now;
}

static struct block *reuse_block(const struct pool *pool, size_t bytes) {
  struct block *block = pool->blocks;
  while (block && (block->used || block->bytes != bytes))
    block = block->next;
  return block;
}

static struct block *add_block(struct pool *pool, size_t bytes, enum vnode_owner owner, enum vnode_status *status) {
  struct block *block = malloc(sizeof *block);
  if (!block) {
    *status = VNODE_SYSTEM;
    return NULL;
  }
  void *base = NULL;
  *status = vnode_memory_alloc(pool->device, bytes, VNODE_MEMORY_DEVICE, owner, &base);
  if (*status == VNODE_NO_MEMORY && trim_device(pool->device))
    *status = vnode_memory_alloc(pool->device, bytes, VNODE_MEMORY_DEVICE, owner, &base);
  if (*status) {
    free(block);
    return NULL;
  }
  *block = (struct block){.base = base, .bytes = bytes, .next = pool->blocks};
  pool->blocks = block;
  pool->reserved += bytes;
  raise_high(&pool->reserved_high, pool->reserved);
  return block;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, struct pool *pool, CUstream stream, const void *caller) {
  if (!out || !bytes || bytes > SIZE_MAX / 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (vnode_stream_id(vnode_stream_of(stream)) < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  size_t rounded = (bytes + VNODE_MEMORY_ALIGN_BYTES - 1) / VNODE_MEMORY_ALIGN_BYTES * VNODE_MEMORY_ALIGN_BYTES;
  enum vnode_status status = VNODE_OK;
  struct block *block = reuse_block(pool, rounded);
  if (!block)
    block = add_block(pool, rounded, vnode_driver_owner(caller), &status);
  if (block) {
    block->used = true;
    pool->used += rounded;
    raise_high(&pool->used_high, pool->used);
    *out = (CUdeviceptr)(uintptr_t)block->base;
  }
  return vnode_cuda_status(status);
}

static struct pool *current_pool(int device) {
  return current[device] ? current[device] : default_pool(device);
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  VNODE_DRIVER_READY();
  pthread_mutex_lock(&lock);
  CUresult result = allocate(out, bytes, current_pool(vnode_device_current()), stream, __builtin_return_address(0));
  pthread_mutex_unlock(&lock);
  return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream stream) {
  VNODE_DRIVER_READY();
  pthread_mutex_lock(&lock);
  struct pool *pool = pool_of(handle);
  CUresult result = pool ? allocate(out, bytes, pool, stream, __builtin_return_address(0)) : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&lock);
  return result;
}

static bool free_in(struct pool *pool, const void *base) {
  for (struct block **link = &pool->blocks; *link; link = &(*link)->next) {
    if ((*link)->base != base || !(*link)->used)
      continue;
    pool->used -= (*link)->bytes;
    (*link)->used = false;
    if (pool->reserved > pool->threshold)
      give_back(pool, link);
    return true;
  }
  return false;
}

enum vnode_status vnode_pool_free(void *base) {
  pthread_mutex_lock(&lock);
  bool found = false;
  for (int device = 0; device < vnode_config()->device_count && !found; device++)
    found = defaults[device].is_default && free_in(&defaults[device], base);
  for (struct pool *pool = created; pool && !found; pool = pool->next)
    found = free_in(pool, base);
  pthread_mutex_unlock(&lock);
  return found ? VNODE_OK : VNODE_NOT_FOUND;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  VNODE_DRIVER_READY();
  enum vnode_status status = vnode_stream_synchronize(vnode_stream_of(stream));
  if (status)
    return vnode_handle_status(status);
  return vnode_cuda_status(vnode_pool_free(vnode_pointer(address)));
}

/* ------------------------------------------------------------------------------------------- pools */

static CUresult answer_pool(CUmemoryPool *out, CUdevice device, struct pool *(*of_device)(int)) {
  VNODE_DRIVER_READY();
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  *out = (CUmemoryPool)of_device(device);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  return answer_pool(out, device, default_pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  return answer_pool(out, device, current_pool);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  VNODE_DRIVER_READY();
  if (!vnode_is_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  struct pool *pool = pool_of(handle);
  bool valid = pool && pool->device == device;
  if (valid)
    current[device] = pool;
  pthread_mutex_unlock(&lock);
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  VNODE_DRIVER_READY();
  if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (!vnode_is_device(props->location.id))
    return CUDA_ERROR_INVALID_DEVICE;
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_NOT_SUPPORTED;
  struct pool *pool = calloc(1, sizeof *pool);
  if (!pool)
    return CUDA_ERROR_OPERATING_SYSTEM;
  *pool = (struct pool){.device = props->location.id, .reuse = {1, 1, 1}};
  pthread_mutex_lock(&lock);
  pool->next = created;
  created = pool;
  pthread_mutex_unlock(&lock);
  *out = (CUmemoryPool)pool;
  return CUDA_SUCCESS;
}

/* Blocks that are still used outlive their pool on a GPU; here destroying such a pool is refused. */
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  VNODE_DRIVER_READY();
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct pool *pool = pool_of(handle);
  if (pool && !pool->is_default && !pool->used) {
    trim(pool, 0);
    struct pool **link = &created;
    while (*link != pool)
      link = &(*link)->next;
    *link = pool->next;
    if (current[pool->device] == pool)
      current[pool->device] = NULL;
    free(pool);
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes) {
  VNODE_DRIVER_READY();
  pthread_mutex_lock(&lock);
  struct pool *pool = pool_of(handle);
  if (pool)
    trim(pool, keep_bytes);
  pthread_mutex_unlock(&lock);
  return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int *reuse_of(struct pool *pool, CUmemPool_attribute attribute) {
  switch (attribute) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    return &pool->reuse[0];
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    return &pool->reuse[1];
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    return &pool->reuse[2];
  default:
    return NULL;
  }
}

static uint64_t *counter_of(struct pool *pool, CUmemPool_attribute attribute) {
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    return &pool->threshold;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    return &pool->reserved;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    return &pool->reserved_high;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    return &pool->used;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    return &pool->used_high;
  default:
    return NULL;
  }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  VNODE_DRIVER_READY();
  pthread_mutex_lock(&lock);
  struct pool *pool = pool_of(handle);
  const int *reuse = pool ? reuse_of(pool, attribute) : NULL;
  const uint64_t *counter = pool ? counter_of(pool, attribute) : NULL;
  bool valid = value && (reuse || counter);
  if (valid && reuse)
    *(int *)value = *reuse;
  else if (valid)
    *(uint64_t *)value = *counter;
  pthread_mutex_unlock(&lock);
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The high marks may only be reset, to 0 (cuda.h). */
CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  VNODE_DRIVER_READY();
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct pool *pool = value ? pool_of(handle) : NULL;
  if (pool && reuse_of(pool, attribute)) {
    *reuse_of(pool, attribute) = *(int *)value;
    result = CUDA_SUCCESS;
  } else if (pool && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->threshold = *(uint64_t *)value;
    result = CUDA_SUCCESS;
  } else if (pool && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && !*(uint64_t *)value) {
    pool->reserved_high = pool->reserved;
    result = CUDA_SUCCESS;
  } else if (pool && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && !*(uint64_t *)value) {
    pool->used_high = pool->used;
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* All devices reach all memory of the node: any access that is asked for is there. */
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count) {
  VNODE_DRIVER_READY();
  pthread_mutex_lock(&lock);
  bool valid = pool_of(handle) && (access || !count);
  for (size_t i = 0; valid && i < count; i++)
    valid = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && vnode_is_device(access[i].location.id);
  pthread_mutex_unlock(&lock);
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location) {
  VNODE_DRIVER_READY();
  pthread_mutex_lock(&lock);
  bool valid = flags && location && pool_of(handle);
  pthread_mutex_unlock(&lock);
  if (valid)
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
