/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a stream of device allocations through policies, without a GPU.
 *
 * Vocabulary. An event is what was recorded: a call to the driver, or to an allocator above it. A request is a piece of
 * device memory from its beginning to its end: an allocation, or a physical handle (cuMemCreate), which lives until its last
 * reference and its last mapping are gone. The engine (replay.c) makes requests of events and hands them to every policy;
 * a policy (one file each) decides what driver calls they take, and keeps its account in a struct replay_book.
 *
 * live: bytes of requests that have memory. reserved: bytes that the policy holds of the driver.
 *
 * Memory is proportional to what is live, not to the length of the stream. Allocates; ends the process with a message when
 * memory runs out. Not thread-safe, no global state.
 */
#ifndef B200_REPLAY_REPLAY_H
#define B200_REPLAY_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/call.h"

/* No limit on the device; sums stay below 2^63. */
#define REPLAY_NO_LIMIT (UINT64_C(1) << 62)
/* Largest request that is believed (16 TiB), and the most that may be live at once: sums do not overflow. */
#define REPLAY_BYTES_MAX (UINT64_C(1) << 44)
#define REPLAY_LIVE_MAX (UINT64_C(1) << 60)

/* What a policy asks of the driver; `access` is cuMemSetAccess. */
#define REPLAY_CALLS(X)                                                                                                     \
  X(MALLOC, "malloc", "cuMemAlloc")                                                                                         \
  X(FREE, "free", "cuMemFree")                                                                                              \
  X(CREATE, "create", "cuMemCreate")                                                                                        \
  X(RELEASE, "release", "cuMemRelease")                                                                                     \
  X(MAP, "map", "cuMemMap") X(UNMAP, "unmap", "cuMemUnmap") X(ACCESS, "access", "cuMemSetAccess")
#define REPLAY_ENUM(id, name, function) REPLAY_##id,
enum replay_call { REPLAY_CALLS(REPLAY_ENUM) REPLAY_CALL_COUNT };
#undef REPLAY_ENUM
extern const char *const replay_call_names[REPLAY_CALL_COUNT];

/* Modelled host time of each call (tools/vnode/core/models.def); waiting for the device is not in it. */
uint64_t replay_call_ns(enum replay_call call);

/* The kinds of a recorded event: those of REPLAY_CALLS but access, and a request that was refused. */
enum { REPLAY_REFUSED = REPLAY_ACCESS };

struct replay_event {
  unsigned what;   /* enum replay_call, or REPLAY_REFUSED */
  unsigned owner;  /* enum b200_owner */
  uint64_t key;    /* address; of create and release the handle */
  uint64_t handle; /* of map */
  uint64_t bytes;
  uint64_t stream;
};

struct replay_request {
  size_t slot; /* small number, unique among live requests */
  uint64_t bytes;
  uint64_t stream;
  uint64_t address; /* of a plain allocation */
  unsigned owner;
  bool physical; /* a handle, else a plain allocation */
};

struct replay_book {
  uint64_t limit; /* bytes of the device, or REPLAY_NO_LIMIT */
  uint64_t reserved, live;
  uint64_t peak_reserved, peak_live;
  uint64_t live_at_peak; /* when reserved first reached its peak */
  uint64_t calls[REPLAY_CALL_COUNT];
  uint64_t requests, hits; /* hits: without a driver call; 0 where calls are observed */
  uint64_t failures;       /* requests that got no memory */
  uint64_t retries;        /* the device was full, what was idle was given back, and the request was made anew */
};

/* One driver call that takes `bytes`. False: they do not fit, the call failed. */
bool replay_book_take(struct replay_book *book, enum replay_call call, uint64_t bytes);
void replay_book_give(struct replay_book *book, enum replay_call call, uint64_t bytes);
/* A request as the driver serves it alone: by malloc, or by create, map, access. */
bool replay_book_direct_alloc(struct replay_book *book, const struct replay_request *request);
void replay_book_direct_free(struct replay_book *book, const struct replay_request *request);
uint64_t replay_book_stall_ns(const struct replay_book *book);
/* 1 - live/reserved at the peak. */
double replay_book_fragmentation(const struct replay_book *book);

/* A policy. `state` is what create() made; alloc() says whether the request got memory, and free() is called for those
   alone. `observe` (may be NULL) sees every recorded event, before the requests that come of it. */
struct replay_policy {
  const char *name, *help;
  bool tensors_only; /* says something of streams from above the caching allocator only */
  void *(*create)(struct replay_book *book);
  bool (*alloc)(void *state, const struct replay_request *request);
  void (*free)(void *state, const struct replay_request *request);
  void (*observe)(void *state, const struct replay_event *event);
  void (*destroy)(void *state);
};

#define REPLAY_POLICIES(X) X(recorded) X(cudamalloc) X(cache) X(expandable) X(native)
#define REPLAY_DECLARE(name) extern const struct replay_policy replay_##name;
REPLAY_POLICIES(REPLAY_DECLARE)
#undef REPLAY_DECLARE
#define REPLAY_ONE(name) +1
enum { REPLAY_POLICY_COUNT = REPLAY_POLICIES(REPLAY_ONE) };
#undef REPLAY_ONE
extern const struct replay_policy *const replay_policies[REPLAY_POLICY_COUNT];

/* What was recorded itself, by owner, as the library's ledger counts it. */
struct replay_owner {
  uint64_t current, peak, allocs, frees, failed;
};

struct replay_stream {
  uint64_t events;
  uint64_t unknown;  /* ends of what never began: from before the recording */
  uint64_t replaced; /* beginnings of what had not ended: its end was not recorded */
  uint64_t live_requests, peak_live_requests;
  struct replay_owner owners[B200_OWNER_COUNT];
};

/* Who also wants to know of requests, with or without memory. */
struct replay_listener {
  void (*begins)(void *context, const struct replay_request *request);
  void (*ends)(void *context, const struct replay_request *request);
  void *context;
};

struct replay;

/* Policies run side by side over one stream; `limit` as in struct replay_book; `listener` is copied and may be NULL. */
struct replay *replay_create(const struct replay_policy *const *policies, size_t count, uint64_t limit,
                             const struct replay_listener *listener);
void replay_destroy(struct replay *replay);
/* False: not taken, as more than REPLAY_LIVE_MAX would be live. pre: event->bytes <= REPLAY_BYTES_MAX. */
bool replay_feed(struct replay *replay, const struct replay_event *event);
const struct replay_stream *replay_stream(const struct replay *replay);
const struct replay_book *replay_book(const struct replay *replay, size_t policy);

#endif
