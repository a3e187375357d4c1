/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/exec/arena.h"

#include "interpose/memory.h"
#include "interpose/runtime.h"
#include "policy/plan.h"

enum state { EMPTY, TAKEN, FREE };

enum { ARENAS_MAX = 256 };

static struct {
  struct b200_arena arenas[ARENAS_MAX];
  _Atomic uint64_t limit, bytes, capture_bytes, refused;
} all;

void b200_arena_limit(uint64_t bytes) {
  atomic_store(&all.limit, bytes);
}

static bool belongs(const struct b200_arena *arena, CUcontext context, uint64_t stream, uint64_t capture) {
  return arena->context == context && arena->stream == stream && arena->capture == capture;
}

/* An arena of the stream that nobody uses right now, else a new one. Slots are filled from the front and never emptied, so
   the first empty one ends the search. */
static struct b200_arena *find(CUcontext context, uint64_t stream, uint64_t capture) {
  for (int i = 0; i < ARENAS_MAX; i++) {
    struct b200_arena *arena = &all.arenas[i];
    int state = atomic_load_explicit(&arena->state, memory_order_acquire);
    if (state == FREE && belongs(arena, context, stream, capture) &&
        atomic_compare_exchange_strong(&arena->state, &state, TAKEN))
      return arena;
    if (state == EMPTY && atomic_compare_exchange_strong(&arena->state, &state, TAKEN)) {
      arena->context = context;
      arena->stream = stream;
      arena->capture = capture;
      return arena;
    }
  }
  return NULL;
}

/* Room below the bound, before memory is asked for. */
static bool reserve_room(uint64_t bytes) {
  if (atomic_fetch_add(&all.bytes, bytes) + bytes <= atomic_load(&all.limit))
    return true;
  atomic_fetch_sub(&all.bytes, bytes);
  return false;
}

/* Maps `bytes` more behind what is mapped. The handle is released at once: the mapping keeps the memory. What the job has
   freed and the pool keeps makes room. */
static bool map_more(const struct b200_vendor *vendor, struct b200_arena *arena, const CUmemAllocationProp *properties,
                     uint64_t bytes) {
  CUmemGenericAllocationHandle handle;
  const CUmemAccessDesc access = {.location = properties->location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr end = arena->base + arena->bytes;
  struct b200_memory_attempt attempt = {.owner = B200_OWNER_B200OPT, .bytes = bytes};
  CUresult status;
  do
    status = vendor->cuMemCreate(&handle, bytes, properties, 0);
  while (b200_memory_rescue(&attempt, (int)status));
  if (status != CUDA_SUCCESS) {
    b200_runtime_refused(B200_OWNER_B200OPT, bytes, B200_OOM_CREATE);
    return false;
  }
  bool mapped = vendor->cuMemMap(end, bytes, 0, handle, 0) == CUDA_SUCCESS;
  vendor->cuMemRelease(handle);
  if (mapped && vendor->cuMemSetAccess(end, bytes, &access, 1) == CUDA_SUCCESS) {
    b200_runtime_alloc(B200_OWNER_B200OPT, end, bytes);
    return true;
  }
  if (mapped)
    vendor->cuMemUnmap(end, bytes); /* nothing has used it yet */
  return false;
}

static bool grow(const struct b200_vendor *vendor, struct b200_arena *arena, CUdevice device, uint64_t wanted) {
  const CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
  };
  uint64_t limit = atomic_load(&all.limit);
  size_t granularity = 0;
  if (vendor->cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
          CUDA_SUCCESS ||
      granularity == 0)
    return false;
  if (!arena->base &&
      vendor->cuMemAddressReserve(&arena->base, b200_round_up(limit, granularity), granularity, 0, 0) != CUDA_SUCCESS) {
    arena->base = 0;
    return false;
  }
  /* A quarter more each time, so that a job's first step does not grow it at every GEMM; just what is needed near the bound.
   */
  uint64_t need = b200_round_up(wanted - arena->bytes, granularity);
  uint64_t generous = b200_round_up(wanted + arena->bytes / 4, granularity) - arena->bytes;
  uint64_t bytes = generous;
  if (!reserve_room(bytes)) {
    bytes = need;
    if (!reserve_room(bytes))
      return false;
  }
  if (!map_more(vendor, arena, &properties, bytes)) {
    atomic_fetch_sub(&all.bytes, bytes);
    return false;
  }
  if (arena->part_count < B200_ARENA_PARTS)
    arena->parts[arena->part_count] = bytes;
  arena->part_count++;
  arena->bytes += bytes;
  if (arena->capture)
    atomic_fetch_add(&all.capture_bytes, bytes);
  return true;
}

/* Calls of a stream that go without after its memory was refused: asking costs the driver's time each time. */
enum { PAUSE_CALLS = 1000 };

static bool has_room(const struct b200_vendor *vendor, struct b200_arena *arena, CUdevice device, uint64_t bytes,
                     uint64_t wish) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (arena->bytes >= bytes && arena->bytes >= wish)
    return true;
  if (arena->pause > 0) {
    arena->pause--;
    return arena->bytes >= bytes;
  }
  bool grown = false;
  if (vendor->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS) {
    grown = grow(vendor, arena, device, wish > bytes ? wish : bytes);
    if (!grown && arena->bytes < bytes)
      grow(vendor, arena, device, bytes);
    vendor->cuThreadExchangeStreamCaptureMode(&mode);
  }
  arena->pause = grown ? 0 : PAUSE_CALLS;
  return arena->bytes >= bytes;
}

struct b200_arena *b200_arena_take(const struct b200_vendor *vendor, CUcontext context, CUdevice device, uint64_t stream,
                                   uint64_t capture, uint64_t bytes, uint64_t wish) {
  struct b200_arena *arena = find(context, stream, capture);
  if (arena && has_room(vendor, arena, device, bytes, wish))
    return arena;
  if (arena)
    b200_arena_give_back(arena);
  atomic_fetch_add(&all.refused, 1);
  return NULL;
}

void b200_arena_give_back(struct b200_arena *arena) {
  atomic_store_explicit(&arena->state, FREE, memory_order_release);
}

/* pre: no work uses it, and it is ours. */
static uint64_t unmap(const struct b200_vendor *vendor, struct b200_arena *arena) {
  uint64_t bytes = arena->bytes, at = arena->base;
  if (vendor->cuMemUnmap(arena->base, bytes) != CUDA_SUCCESS)
    return 0;
  for (uint32_t i = 0; i < arena->part_count; i++) {
    struct b200_ledger_undo undo;
    b200_runtime_free(at, &undo);
    at += arena->parts[i];
  }
  arena->bytes = 0;
  arena->part_count = 0;
  arena->prepared = false;
  arena->pause = 0;
  atomic_fetch_sub(&all.bytes, bytes);
  return bytes;
}

/* All are taken before the wait: nothing comes to use one between. */
uint64_t b200_arena_trim(CUcontext context) {
  const struct b200_vendor *vendor = b200_vendor_find();
  CUresult (*synchronize)(void) = (CUresult(*)(void))b200_library_symbol(B200_LIBRARY_cuda, "cuCtxSynchronize");
  bool taken[ARENAS_MAX] = {false}, any = false;
  uint64_t bytes = 0;
  for (int i = 0; vendor && synchronize && i < ARENAS_MAX; i++) {
    struct b200_arena *arena = &all.arenas[i];
    int state = FREE;
    if (atomic_load_explicit(&arena->state, memory_order_acquire) != FREE || arena->context != context || arena->capture ||
        !atomic_compare_exchange_strong(&arena->state, &state, TAKEN))
      continue;
    taken[i] = arena->bytes > 0 && arena->part_count <= B200_ARENA_PARTS;
    any = any || taken[i];
    if (!taken[i])
      b200_arena_give_back(arena);
  }
  bool idle = any && synchronize() == CUDA_SUCCESS;
  for (int i = 0; any && i < ARENAS_MAX; i++) {
    if (!taken[i])
      continue;
    bytes += idle ? unmap(vendor, &all.arenas[i]) : 0;
    b200_arena_give_back(&all.arenas[i]);
  }
  return bytes;
}

void b200_arena_read(struct b200_arena_use *out) {
  *out = (struct b200_arena_use){
      .bytes = atomic_load(&all.bytes),
      .capture_bytes = atomic_load(&all.capture_bytes),
      .refused = atomic_load(&all.refused),
      .limit = atomic_load(&all.limit),
  };
  for (int i = 0; i < ARENAS_MAX; i++)
    out->arenas += atomic_load_explicit(&all.arenas[i].state, memory_order_relaxed) != EMPTY;
}
