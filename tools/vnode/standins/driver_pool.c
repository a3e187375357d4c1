/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver API: stream-ordered memory pools. Allocating and freeing are operations of a stream: both touch the whole block, so
 * that its use before the one or after the other on another stream is a race. A freed block stays with its pool and serves
 * the next request of its size, which waits for the free on the device; what the pool reserves above its release threshold
 * goes back when the host has synchronised behind the free.
 *
 * On a stream that captures, memory is the graph's (graph.h).
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "graph.h"

enum block_state { BLOCK_USED, BLOCK_MOVING /* between the two, out of the lock */, BLOCK_IDLE };

struct block {
  void *base;
  size_t bytes;
  enum block_state state;
  int stream;                /* id of the one that it was freed on */
  struct vnode_event *freed; /* recorded behind the last free; NULL: never freed */
  struct block *next;
};

enum { REUSE_FOLLOW, REUSE_OPPORTUNISTIC, REUSE_INTERNAL, REUSE_KINDS };

struct pool {
  int device;
  bool is_default;
  struct block *blocks;
  int reuse[REUSE_KINDS];
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

/* pre: its free is complete. */
static void give_back(struct pool *pool, struct block **link) {
  struct block *block = *link;
  *link = block->next;
  pool->reserved -= block->bytes;
  vnode_memory_free_idle(block->base);
  vnode_event_destroy(block->freed);
  free(block);
}

/* Of what is idle and known to be complete. `waits`: also of what is not complete yet. */
static bool trim(struct pool *pool, uint64_t keep_bytes, bool waits) {
  bool any = false;
  for (struct block **link = &pool->blocks; *link && pool->reserved > keep_bytes;) {
    bool idle = (*link)->state == BLOCK_IDLE;
    if (idle && waits)
      vnode_event_synchronize((*link)->freed);
    if (idle && vnode_event_passed((*link)->freed)) {
      give_back(pool, link);
      any = true;
    } else {
      link = &(*link)->next;
    }
  }
  return any;
}

static bool trim_device(int device) {
  bool any = trim(default_pool(device), 0, true);
  for (struct pool *pool = created; pool; pool = pool->next)
    if (pool->device == device)
      any |= trim(pool, 0, true);
  return any;
}

bool vnode_pool_trim_all(int device) {
  pthread_mutex_lock(&lock);
  bool any = trim_device(device);
  pthread_mutex_unlock(&lock);
  return any;
}

/* The host has waited for something. */
static void after_synchronization(void) {
  if (pthread_mutex_trylock(&lock))
    return; /* this thread waits on behalf of a pool, or the next wait will do */
  for (int device = 0; device < vnode_config()->device_count; device++)
    if (defaults[device].is_default)
      trim(&defaults[device], defaults[device].threshold, false);
  for (struct pool *pool = created; pool; pool = pool->next)
    trim(pool, pool->threshold, false);
  pthread_mutex_unlock(&lock);
}

static void raise_high(uint64_t *high, uint64_t now) {
  if (now > *high)
    *high = now;
}

/* Best a block that was freed on the same stream. */
static struct block *reuse_block(const struct pool *pool, size_t bytes, int stream) {
  struct block *found = NULL;
  for (struct block *block = pool->blocks; block; block = block->next) {
    if (block->state != BLOCK_IDLE || block->bytes != bytes)
      continue;
    if (block->stream == stream)
      return block;
    if (!found && (pool->reuse[REUSE_INTERNAL] || (pool->reuse[REUSE_OPPORTUNISTIC] && vnode_event_passed(block->freed))))
      found = block;
  }
  return found;
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
  *block = (struct block){.base = base, .bytes = bytes, .state = BLOCK_MOVING, .next = pool->blocks};
  pool->blocks = block;
  pool->reserved += bytes;
  raise_high(&pool->reserved_high, pool->reserved);
  return block;
}

struct range {
  void *base;
  size_t bytes;
};

/* The block comes into use, or goes out of it, at this point of the stream. */
static enum vnode_status submit(struct vnode_stream *stream, const char *name, vnode_work work, enum vnode_op_flags flags,
                                const struct range *range) {
  struct vnode_access whole = {.at = range->base, .row_bytes = range->bytes, .rows = 1, .write = true};
  return vnode_op_submit(stream, &(struct vnode_op){.name = name,
                                                    .work = work,
                                                    .args = range,
                                                    .args_bytes = sizeof *range,
                                                    .accesses = &whole,
                                                    .access_count = 1,
                                                    .flags = flags});
}

static void run_free(void *args) {
  const struct range *range = args;
  vnode_memory_poison(range->base, range->bytes);
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, struct pool *(*find)(const void *), const void *wanted,
                         struct vnode_stream *stream, const void *caller) {
  int stream_id = vnode_stream_id(stream);
  if (!out || !bytes || bytes > SIZE_MAX / 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream_id < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  if (vnode_stream_is_capturing(stream))
    return vnode_cuda_status(vnode_graph_memory_alloc(stream, bytes, vnode_driver_owner(caller), (void **)out));
  size_t rounded = (bytes + VNODE_MEMORY_ALIGN_BYTES - 1) / VNODE_MEMORY_ALIGN_BYTES * VNODE_MEMORY_ALIGN_BYTES;
  enum vnode_status status = VNODE_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct pool *pool = find(wanted);
  struct block *block = pool ? reuse_block(pool, rounded, stream_id) : NULL;
  if (!block && pool)
    block = add_block(pool, rounded, vnode_driver_owner(caller), &status);
  if (block) {
    block->state = BLOCK_MOVING;
    pool->used += rounded;
    raise_high(&pool->used_high, pool->used);
  }
  pthread_mutex_unlock(&lock);
  if (!block)
    return vnode_cuda_status(status);
  status = block->freed ? vnode_event_wait(stream, block->freed) : VNODE_OK;
  if (!status)
    status = submit(stream, "cuMemAllocAsync", NULL, VNODE_OP_ALLOC, &(struct range){block->base, rounded});
  pthread_mutex_lock(&lock);
  block->state = BLOCK_USED;
  pthread_mutex_unlock(&lock);
  if (status) {
    vnode_pool_free(block->base, NULL);
    return vnode_handle_status(status);
  }
  *out = (CUdeviceptr)(uintptr_t)block->base;
  return CUDA_SUCCESS;
}

static struct pool *current_pool(int device) {
  return current[device] ? current[device] : default_pool(device);
}

static struct pool *find_current(const void *unused) {
  (void)unused;
  return current_pool(vnode_device_current());
}

static struct pool *find_pool(const void *handle) {
  return pool_of((CUmemoryPool)(uintptr_t)handle);
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  VNODE_DRIVER_READY();
  return allocate(out, bytes, find_current, NULL, vnode_stream_of(stream), __builtin_return_address(0));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream stream) {
  VNODE_DRIVER_READY();
  return allocate(out, bytes, find_pool, handle, vnode_stream_of(stream), __builtin_return_address(0));
}

static struct block *used_block(const struct pool *pool, const void *base) {
  struct block *block = pool->blocks;
  while (block && (block->base != base || block->state != BLOCK_USED))
    block = block->next;
  return block;
}

static struct block *find_used(const void *base, struct pool **pool) {
  struct block *block = NULL;
  for (int device = 0; device < vnode_config()->device_count && !block; device++)
    if (defaults[device].is_default)
      block = used_block(*pool = &defaults[device], base);
  for (struct pool *each = created; each && !block; each = each->next)
    block = used_block(*pool = each, base);
  return block;
}

enum vnode_status vnode_pool_free(void *base, struct vnode_stream *stream) {
  struct pool *pool = NULL;
  pthread_mutex_lock(&lock);
  struct block *block = find_used(base, &pool);
  if (block)
    block->state = BLOCK_MOVING;
  pthread_mutex_unlock(&lock);
  if (!block)
    return VNODE_NOT_FOUND;
  vnode_after_synchronize(after_synchronization);
  enum vnode_status status = block->freed ? VNODE_OK : vnode_event_create(CU_EVENT_DISABLE_TIMING, &block->freed);
  if (!status)
    status = submit(stream, "cuMemFreeAsync", run_free, VNODE_OP_FREE, &(struct range){base, block->bytes});
  if (!status)
    status = vnode_event_record(block->freed, stream);
  pthread_mutex_lock(&lock);
  block->state = status ? BLOCK_USED : BLOCK_IDLE;
  block->stream = vnode_stream_id(stream);
  pool->used -= status ? 0 : block->bytes;
  pthread_mutex_unlock(&lock);
  return status;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  VNODE_DRIVER_READY();
  struct vnode_stream *stream = vnode_stream_of(handle);
  void *base = vnode_pointer(address);
  if (vnode_stream_id(stream) < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  if (vnode_stream_is_capturing(stream))
    return vnode_cuda_status(vnode_graph_memory_free(stream, base));
  enum vnode_status status = vnode_pool_free(base, stream);
  if (status != VNODE_NOT_FOUND)
    return vnode_handle_status(status);
  status = vnode_stream_synchronize(stream); /* memory that a graph made: only the launches of that graph reuse it */
  return vnode_cuda_status(status ? status : vnode_graph_memory_release(base));
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
    trim(pool, 0, true);
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
    trim(pool, keep_bytes, false);
  pthread_mutex_unlock(&lock);
  return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int *reuse_of(struct pool *pool, CUmemPool_attribute attribute) {
  switch (attribute) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    return &pool->reuse[REUSE_FOLLOW];
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    return &pool->reuse[REUSE_OPPORTUNISTIC];
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    return &pool->reuse[REUSE_INTERNAL];
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
