/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/memory.h"

#include <cuda.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "interpose/exec/arena.h"
#include "interpose/runtime.h"

enum { PRIMARIES = 64, REGISTRATIONS = 16384 };

/* Names as the driver exports them (cuda.h maps some to newer ones). X(name, parameters) */
#define DRIVER_FUNCTIONS(X)                                                                                                 \
  X(cuCtxGetCurrent, (CUcontext *))                                                                                         \
  X(cuCtxPushCurrent_v2, (CUcontext))                                                                                       \
  X(cuCtxPopCurrent_v2, (CUcontext *))                                                                                      \
  X(cuCtxSynchronize, (void))                                                                                               \
  X(cuCtxGetDevice, (CUdevice *))                                                                                           \
  X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                              \
  X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))                                                              \
  X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                      \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                               \
  X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                                                             \
  X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                                 \
  X(cuMemFree_v2, (CUdeviceptr))                                                                                            \
  X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                                  \
  X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                                                    \
  X(cuStreamSynchronize, (CUstream))                                                                                        \
  X(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))                                                                         \
  X(cuMemPoolGetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))                                                     \
  X(cuMemPoolTrimTo, (CUmemoryPool, size_t))

/* Since CUDA 12.5: a driver that has not all of them goes without fences. */
#define FENCE_FUNCTIONS(X)                                                                                                  \
  X(cuCtxRecordEvent, (CUcontext, CUevent))                                                                                 \
  X(cuEventCreate, (CUevent *, unsigned))                                                                                   \
  X(cuEventDestroy_v2, (CUevent))                                                                                           \
  X(cuEventQuery, (CUevent))                                                                                                \
  X(cuEventSynchronize, (CUevent))

static struct {
  struct b200_pool pool;
  struct {
#define MEMBER(name, params) CUresult(*name) params;
    DRIVER_FUNCTIONS(MEMBER)
    FENCE_FUNCTIONS(MEMBER)
#undef MEMBER
  } driver;
  unsigned char fill;
  atomic_int groups;
  atomic_int recording;                          /* threads that record a fence */
  _Atomic uint64_t rescues, early;               /* early: allocations before there was a pool */
  pthread_mutex_t lock;                          /* of what follows */
  _Atomic uint64_t contexts[B200_POOL_CONTEXTS]; /* seen; read without the lock */
  struct {
    uint64_t context;
    int64_t retains;
  } primaries[PRIMARIES];
  struct registration {
    const void *handle;
    uint64_t address, bytes;
  } registrations[REGISTRATIONS]; /* in the order in which they were made */
  size_t registration_count;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

atomic_bool b200_memory_is_pooling;

static CUcontext handle_of(uint64_t context) {
  return (CUcontext)(uintptr_t)context;
}

/* Asked twice: the first answer may be an earlier error. */
static uint64_t current(void) {
  CUcontext context = NULL;
  bool known =
      memory.driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS || memory.driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS;
  return known ? (uint64_t)(uintptr_t)context : 0;
}

/* ---------------------------------------------------------------------------------------------- operations */

/* A call of the pool's own: in the context, and allowed beside a capture that another thread may begin. */
struct scope {
  CUstreamCaptureMode mode;
  uint64_t context;
  bool pushed;
};

static bool enter(struct scope *scope, uint64_t context) {
  *scope = (struct scope){.mode = CU_STREAM_CAPTURE_MODE_RELAXED, .context = context};
  if (memory.driver.cuThreadExchangeStreamCaptureMode(&scope->mode) != CUDA_SUCCESS)
    return false;
  if (context == current())
    return true;
  scope->pushed = memory.driver.cuCtxPushCurrent_v2(handle_of(context)) == CUDA_SUCCESS;
  if (!scope->pushed)
    memory.driver.cuThreadExchangeStreamCaptureMode(&scope->mode);
  return scope->pushed;
}

static void leave(struct scope *scope) {
  CUcontext ignored;
  if (scope->pushed && memory.driver.cuCtxPopCurrent_v2(&ignored) != CUDA_SUCCESS && current() == scope->context)
    memory.driver.cuCtxPopCurrent_v2(&ignored); /* it may have told of an earlier error and done nothing */
  memory.driver.cuThreadExchangeStreamCaptureMode(&scope->mode);
}

static int op_alloc(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  (void)user, (void)context;
  CUdeviceptr out = 0;
  b200_thread_self()->driver_allocs++;
  CUresult status = memory.driver.cuMemAlloc_v2(&out, bytes);
  *address = out;
  b200_memory_status((int)status);
  return (int)status;
}

static int op_free(void *user, uint64_t context, uint64_t address, bool direct) {
  (void)user;
  struct scope scope;
  CUresult status;
  const struct b200_stream_free *stream_free = b200_thread_self()->stream_free;
  if (direct && stream_free)
    return stream_free->function(address, stream_free->stream);
  if (direct)
    return (int)memory.driver.cuMemFree_v2(address);
  if (!enter(&scope, context))
    return CUDA_ERROR_INVALID_CONTEXT;
  status = memory.driver.cuMemFree_v2(address);
  leave(&scope);
  b200_memory_status((int)status);
  return (int)status;
}

static int op_info(void *user, uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes) {
  (void)user;
  struct scope scope;
  size_t free_now = 0, total = 0;
  bool entered = enter(&scope, context);
  if (!entered && context != current())
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult status = memory.driver.cuMemGetInfo_v2(&free_now, &total);
  if (entered)
    leave(&scope);
  *free_bytes = free_now;
  *total_bytes = total;
  return (int)status;
}

static int op_synchronize(void *user, uint64_t context) {
  (void)user;
  struct scope scope;
  if (!enter(&scope, context))
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult status = memory.driver.cuCtxSynchronize();
  leave(&scope);
  b200_memory_status((int)status);
  return (int)status;
}

static bool op_capturing(void *user) {
  (void)user;
  return b200_runtime_is_capturing() || atomic_load_explicit(&memory.groups, memory_order_relaxed) > 0;
}

/* A fence spoils every capture of its context: none may begin meanwhile, see b200_memory_capture_begins(). */
static CUresult record_fence(CUcontext context, CUevent *event) {
  CUevent made = NULL;
  CUresult status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  atomic_fetch_add(&memory.recording, 1);
  if (!op_capturing(NULL)) {
    status = *event ? CUDA_SUCCESS : memory.driver.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
    if (status == CUDA_SUCCESS)
      status = memory.driver.cuCtxRecordEvent(context, *event ? *event : made);
  }
  atomic_fetch_sub(&memory.recording, 1);
  if (status == CUDA_SUCCESS && made)
    *event = made;
  else if (made)
    memory.driver.cuEventDestroy_v2(made);
  return status;
}

static void *op_fence(void *user, uint64_t context, void *again) {
  (void)user;
  struct scope scope;
  CUevent event = again;
  if (!enter(&scope, context))
    return NULL;
  CUresult status = record_fence(handle_of(context), &event);
  leave(&scope);
  b200_memory_status((int)status);
  return status == CUDA_SUCCESS ? event : NULL;
}

static bool op_fence_done(void *user, uint64_t context, void *fence, bool wait) {
  (void)user;
  struct scope scope;
  if (!enter(&scope, context))
    return false;
  CUresult status = wait ? memory.driver.cuEventSynchronize(fence) : memory.driver.cuEventQuery(fence);
  leave(&scope);
  b200_memory_status((int)status);
  return status == CUDA_SUCCESS;
}

void b200_memory_capture_comes(void) {
  if (b200_memory_pools())
    b200_pool_empty(&memory.pool);
}

void b200_memory_capture_begins(void) {
  while (atomic_load(&memory.recording) > 0)
    sched_yield();
}

static uint64_t op_trim_own(void *user, uint64_t context) {
  (void)user;
  struct scope scope;
  if (!enter(&scope, context))
    return 0;
  uint64_t bytes = b200_arena_trim(handle_of(context));
  leave(&scope);
  return bytes;
}

static void op_poison(void *user, uint64_t context, uint64_t address, uint64_t bytes) {
  (void)user;
  struct scope scope;
  if (!enter(&scope, context))
    return;
  if (memory.driver.cuMemsetD8_v2(address, memory.fill, bytes) == CUDA_SUCCESS)
    memory.driver.cuStreamSynchronize(NULL);
  leave(&scope);
}

/* ------------------------------------------------------------------------------------------------ its life */

static const char *find_driver(void) {
#define FIND(name, params)                                                                                                  \
  if (!(memory.driver.name = (CUresult(*) params)b200_library_symbol(B200_LIBRARY_cuda, #name)))                            \
    return #name;
  DRIVER_FUNCTIONS(FIND)
#undef FIND
  return NULL;
}

static bool find_fences(void) {
  bool all = true;
#define FIND(name, params)                                                                                                  \
  all = (memory.driver.name = (CUresult(*) params)b200_library_symbol(B200_LIBRARY_cuda, #name)) && all;
  FENCE_FUNCTIONS(FIND)
#undef FIND
  return all;
}

/* Of the current device, or the first while there is no context: a node's are alike. */
static uint64_t reserve_of(const struct b200_config *config) {
  char text[160];
  CUdevice device = 0;
  size_t total = 0;
  uint64_t reserve = (uint64_t)config->memory_reserve_mb << 20;
  if (reserve == 0)
    return 0;
  if (memory.driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
    device = 0;
  if (memory.driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS || reserve < total)
    return reserve;
  snprintf(
      text, sizeof text,
      "B200OPT_MEMORY_RESERVE_MB=%lld is ignored: PyTorch would get nothing; accepted is less than the device's %zu MiB",
      (long long)config->memory_reserve_mb, total >> 20);
  b200_runtime_say(text);
  return 0;
}

void b200_memory_start(const struct b200_config *config) {
  char text[160];
  struct b200_pool_ops ops = {
      .out_of_memory = CUDA_ERROR_OUT_OF_MEMORY,
      .invalid_value = CUDA_ERROR_INVALID_VALUE,
      .alloc = op_alloc,
      .free = op_free,
      .info = op_info,
      .synchronize = op_synchronize,
      .capturing = op_capturing,
      .trim_own = op_trim_own,
      .poison = config->memory_fill == B200_MEMORY_FILL_OFF ? NULL : op_poison,
  };
  struct b200_pool_config pool = {
      .mode = B200_POOL_POOL,
      .max_idle_bytes = (uint64_t)config->memory_max_idle_mb << 20,
      .within_peak = true,
      .reserve_owners = ~(1u << B200_OWNER_PYTORCH),
      .wait = true,
  };
  if (config->memory != B200_MEMORY_POOL) {
    if (config->memory_reserve_mb > 0 || config->memory_fill != B200_MEMORY_FILL_OFF)
      b200_runtime_say("B200OPT_MEMORY_RESERVE_MB and B200OPT_MEMORY_FILL do nothing without B200OPT_MEMORY=pool");
    return;
  }
  const char *missing = find_driver();
  if (missing) {
    snprintf(text, sizeof text, "B200OPT_MEMORY=pool: the driver has no %s; device memory is only observed", missing);
    b200_runtime_say(text);
    return;
  }
  if (find_fences()) {
    ops.fence = op_fence;
    ops.fence_done = op_fence_done;
  }
  pool.reserve_bytes = reserve_of(config);
  memory.fill = config->memory_fill == B200_MEMORY_FILL_POISON ? 0xff : 0;
  b200_pool_init(&memory.pool, &ops, &pool);
  memory.pool.stats.passed = memory.pool.stats.driver_calls = atomic_load(&memory.early);
  atomic_store(&b200_memory_is_pooling, true);
}

void b200_memory_passed_early(bool granted) {
  if (granted && !b200_memory_pools())
    atomic_fetch_add_explicit(&memory.early, 1, memory_order_relaxed);
}

void b200_memory_stop(void) {
  atomic_store(&b200_memory_is_pooling, false);
  b200_pool_stop(&memory.pool);
}

void b200_memory_forget(void) {
  atomic_store(&b200_memory_is_pooling, false);
  b200_pool_forget(&memory.pool);
  pthread_mutex_init(&memory.lock, NULL);
  atomic_store(&memory.groups, 0);
  atomic_store(&memory.recording, 0);
  atomic_store(&memory.rescues, 0);
  atomic_store(&memory.early, 0);
  for (int i = 0; i < B200_POOL_CONTEXTS; i++)
    atomic_store(&memory.contexts[i], 0);
  memset(memory.primaries, 0, sizeof memory.primaries);
  memory.registration_count = 0;
}

/* ------------------------------------------------------------------------------------------------ contexts */

/* A context that was not seen before: from now on it and all others wait for one another. */
static void add_context(uint64_t context) {
  pthread_mutex_lock(&memory.lock);
  int vacant = -1;
  bool known = false;
  for (int i = B200_POOL_CONTEXTS - 1; i >= 0; i--) {
    uint64_t other = atomic_load(&memory.contexts[i]);
    known = known || other == context;
    vacant = other == 0 ? i : vacant;
  }
  for (int i = 0; i < B200_POOL_CONTEXTS && !known; i++) {
    uint64_t other = atomic_load(&memory.contexts[i]);
    if (other == 0)
      continue;
    b200_pool_peer(&memory.pool, context, other);
    b200_pool_peer(&memory.pool, other, context);
  }
  if (!known && vacant >= 0)
    atomic_store(&memory.contexts[vacant], context);
  pthread_mutex_unlock(&memory.lock);
}

static uint64_t current_known(void) {
  uint64_t context = current();
  for (int i = 0; i < B200_POOL_CONTEXTS && context != 0; i++) {
    uint64_t other = atomic_load_explicit(&memory.contexts[i], memory_order_relaxed);
    if (other == context)
      return context;
    if (other == 0)
      break;
  }
  if (context != 0)
    add_context(context);
  return context;
}

void b200_memory_peer(uint64_t context, uint64_t accessor) {
  if (!b200_memory_pools())
    return;
  if (accessor == 0)
    accessor = current();
  if (context == 0 || accessor == 0)
    return;
  add_context(context);
  add_context(accessor);
}

void b200_memory_context_gone(uint64_t context) {
  if (!b200_memory_pools() || context == 0)
    return;
  pthread_mutex_lock(&memory.lock);
  for (int i = 0; i < B200_POOL_CONTEXTS; i++)
    if (atomic_load(&memory.contexts[i]) == context)
      atomic_store(&memory.contexts[i], 0);
  pthread_mutex_unlock(&memory.lock);
  b200_pool_context_gone(&memory.pool, context);
}

/* Primary contexts are counted also before there is a pool: the runtime retains its own while it starts. */
void b200_memory_primary_retained(int device, uint64_t context) {
  if (device < 0 || device >= PRIMARIES)
    return;
  pthread_mutex_lock(&memory.lock);
  memory.primaries[device].context = context;
  memory.primaries[device].retains++;
  pthread_mutex_unlock(&memory.lock);
}

/* Of a device whose context was retained before we could see it; 0: it has none. */
static uint64_t ask_primary(int device) {
  unsigned flags;
  int active = 0;
  CUcontext context;
  if (memory.driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
      memory.driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
    return 0;
  memory.driver.cuDevicePrimaryCtxRelease_v2(device);
  return (uint64_t)(uintptr_t)context;
}

static uint64_t primary_of(int device) {
  uint64_t context = 0;
  if (device >= 0 && device < PRIMARIES) {
    pthread_mutex_lock(&memory.lock);
    context = memory.primaries[device].context;
    pthread_mutex_unlock(&memory.lock);
  }
  return context ? context : ask_primary(device);
}

/* Others may hold references that were taken unseen: what is idle goes back to the driver first, so that nothing is lost if
   the context stays. */
void b200_memory_primary_release(int device) {
  bool last = true;
  if (device >= 0 && device < PRIMARIES) {
    pthread_mutex_lock(&memory.lock);
    last = memory.primaries[device].retains <= 1;
    if (memory.primaries[device].retains > 0)
      memory.primaries[device].retains--;
    pthread_mutex_unlock(&memory.lock);
  }
  if (!last || !b200_memory_pools())
    return;
  uint64_t context = primary_of(device);
  if (context == 0)
    return;
  b200_pool_trim(&memory.pool, context, UINT64_MAX);
  b200_memory_context_gone(context);
}

void b200_memory_primary_reset(int device) {
  if (b200_memory_pools())
    b200_memory_context_gone(primary_of(device));
}

void b200_memory_group(int change) {
  int groups = atomic_load(&memory.groups);
  while (groups + change >= 0 && !atomic_compare_exchange_weak(&memory.groups, &groups, groups + change))
    ;
}

void b200_memory_failed(int status) {
  switch (status) {
  case CUDA_ERROR_DEINITIALIZED:
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case 226: /* CUDA_ERROR_CONTAINED, of later headers */
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
  case 721: /* CUDA_ERROR_TENSOR_MEMORY_LEAK */
    break;
  default:
    return;
  }
  for (int i = 0; i < B200_POOL_CONTEXTS; i++)
    b200_pool_context_broken(&memory.pool, atomic_load(&memory.contexts[i]));
}

/* ------------------------------------------------------------------------------------------------- the calls */

int b200_memory_alloc(enum b200_owner owner, uint64_t bytes, uint64_t *address, uint64_t *held, bool *by_headroom) {
  struct b200_pool_grant grant;
  struct b200_memory_attempt attempt = {.owner = owner, .bytes = bytes};
  struct b200_thread *self = b200_thread_self();
  uint64_t context = current_known(), asked = self->driver_allocs;
  int status;
  do { /* what passes through the pool is not asked for again by it */
    status = b200_pool_malloc(&memory.pool, context, owner, bytes, &grant);
    *by_headroom = status == CUDA_ERROR_OUT_OF_MEMORY && self->driver_allocs == asked;
  } while (status == CUDA_ERROR_OUT_OF_MEMORY && !*by_headroom && b200_memory_rescue(&attempt, status));
  if (status != 0)
    return status;
  if (attempt.tried)
    b200_memory_rescue(&attempt, status);
  *address = grant.address;
  *held = grant.bytes;
  return status;
}

int b200_memory_free(uint64_t address) {
  return b200_pool_free(&memory.pool, 0, address, !b200_thread_self()->frees_lazily);
}

int b200_memory_free_async(uint64_t address, void *stream, b200_memory_free_async_function function) {
  struct b200_thread *self = b200_thread_self();
  enum b200_pool_state state =
      b200_memory_pools() && !self->shared ? b200_pool_look(&memory.pool, address) : B200_POOL_UNKNOWN;
  if (state == B200_POOL_UNKNOWN)
    return function(address, stream);
  const struct b200_stream_free stream_free = {.function = function, .stream = stream};
  if (state == B200_POOL_LIVE)
    b200_pool_pin(&memory.pool, address, 1); /* not kept: the driver decides what such a free means */
  self->stream_free = &stream_free;
  int status = b200_pool_free(&memory.pool, 0, address, false);
  self->stream_free = NULL;
  return status;
}

int b200_memory_info(size_t *free_bytes, size_t *total_bytes) {
  uint64_t context = current(), free_now = 0, total = 0;
  int status = context ? b200_pool_info(&memory.pool, context, &free_now, &total) : CUDA_ERROR_INVALID_CONTEXT;
  if (status == CUDA_ERROR_INVALID_CONTEXT) /* perhaps only ours */
    return (int)memory.driver.cuMemGetInfo_v2(free_bytes, total_bytes);
  if (status == 0 && free_bytes)
    *free_bytes = free_now;
  if (status == 0 && total_bytes)
    *total_bytes = total;
  return status;
}

/* The pool of the driver's from which stream-ordered memory comes here. */
static CUmemoryPool stream_pool(void) {
  CUdevice device;
  CUmemoryPool pool = NULL;
  if (memory.driver.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      memory.driver.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
    return NULL;
  return pool;
}

static bool has_idle(CUmemoryPool pool, uint64_t bytes) {
  cuuint64_t reserved = 0, used = 0;
  return memory.driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS &&
         memory.driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS &&
         reserved - used >= bytes && reserved >= used;
}

bool b200_memory_admit(struct b200_memory_attempt *attempt, bool stream_ordered) {
  if (!b200_memory_pools() || memory.pool.config.reserve_bytes == 0 || op_capturing(NULL))
    return true;
  uint64_t context = current_known();
  CUmemoryPool pool;
  if (b200_pool_admit(&memory.pool, context, attempt->owner, attempt->bytes))
    return true;
  if (!stream_ordered || !(pool = attempt->pool ? attempt->pool : stream_pool()))
    return false;
  if (has_idle(pool, attempt->bytes))
    return true;
  return op_synchronize(NULL, context) == 0 && memory.driver.cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS &&
         b200_pool_admit(&memory.pool, context, attempt->owner, attempt->bytes);
}

bool b200_memory_rescue(struct b200_memory_attempt *attempt, int status) {
  if (!b200_memory_pools())
    return false;
  if (attempt->tried) {
    if (status == 0 && attempt->owner != B200_OWNER_PYTORCH)
      atomic_fetch_add(&memory.rescues, 1);
    return false;
  }
  attempt->tried = status == CUDA_ERROR_OUT_OF_MEMORY;
  if (!attempt->tried)
    return false;
  uint64_t context = current_known();
  return context == 0 || b200_pool_trim(&memory.pool, context, attempt->bytes) > 0; /* without one the driver says why */
}

void b200_memory_sync_begin(struct b200_memory_sync *sync, uint64_t context) {
  *sync = (struct b200_memory_sync){0};
  if (!b200_memory_pools())
    return;
  sync->context = context ? context : current();
  sync->token = b200_pool_sync_begin(&memory.pool, sync->context);
  sync->inner = b200_thread_self()->synchronisations;
}

/* The runtime's function ends after the driver's that it has called: then that one has said it. */
void b200_memory_sync_end(const struct b200_memory_sync *sync, int status) {
  struct b200_thread *self = b200_thread_self();
  b200_memory_status(status);
  if (sync->token == 0 || status != 0 || (self->synchronisations != sync->inner && !self->shared))
    return;
  self->synchronisations++;
  b200_pool_sync_end(&memory.pool, sync->context, sync->token);
}

void b200_memory_pin(uint64_t address, uint64_t bytes) {
  if (b200_memory_pools())
    b200_pool_pin(&memory.pool, address, bytes);
}

void b200_memory_register_begin(uint64_t address, uint64_t bytes) {
  if (b200_memory_pools())
    b200_pool_register(&memory.pool, address, bytes, +1);
}

/* One that finds no room stays registered. */
void b200_memory_register_end(uint64_t address, uint64_t bytes, const void *handle) {
  if (!b200_memory_pools())
    return;
  if (!handle) {
    b200_pool_register(&memory.pool, address, bytes, -1);
    return;
  }
  pthread_mutex_lock(&memory.lock);
  if (memory.registration_count < REGISTRATIONS)
    memory.registrations[memory.registration_count++] =
        (struct registration){.handle = handle, .address = address, .bytes = bytes};
  pthread_mutex_unlock(&memory.lock);
}

/* NCCL gives one handle for registrations within one range; the newest is taken, since those of communicators that ended
   with theirs stay in the table, and a handle of that value may have come again. */
void b200_memory_register_gone(const void *handle) {
  struct registration found = {0};
  if (!b200_memory_pools() || !handle)
    return;
  pthread_mutex_lock(&memory.lock);
  for (size_t i = memory.registration_count; i > 0 && !found.handle; i--) {
    struct registration *entry = &memory.registrations[i - 1];
    if (entry->handle != handle)
      continue;
    found = *entry;
    memmove(entry, entry + 1, (memory.registration_count - i) * sizeof *entry);
    memory.registration_count--;
  }
  pthread_mutex_unlock(&memory.lock);
  if (found.handle)
    b200_pool_register(&memory.pool, found.address, found.bytes, -1);
}

void b200_memory_read(struct b200_memory_use *out) {
  *out = (struct b200_memory_use){0};
  if (!memory.pool.ops.alloc)
    return;
  b200_pool_read(&memory.pool, &out->stats);
  out->stats.rescues += atomic_load(&memory.rescues);
  out->reserve_bytes = memory.pool.config.reserve_bytes;
  out->largest_idle_bytes = b200_pool_largest_idle(&memory.pool);
}

pthread_mutex_t *b200_memory_lock(void) {
  return &memory.pool.lock;
}
