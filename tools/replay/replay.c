/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: makes requests of events and hands them to the policies. */
#include "tools/replay/replay.h"

#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"
#include "tools/replay/tree.h"

#define POLICY(name) &replay_##name,
const struct replay_policy *const replay_policies[REPLAY_POLICY_COUNT] = {REPLAY_POLICIES(POLICY)};

/* A live request; in the tree of its kind by address or handle. */
struct live {
  struct replay_node node;
  struct replay_request request;
  uint64_t references, mappings; /* of a handle */
};

/* In its tree by address. `handle` may be of memory that is not charged here, such as the host's. */
struct mapping {
  struct replay_node node;
  uint64_t bytes, handle;
};

struct runner {
  const struct replay_policy *policy;
  void *state;
  struct replay_book book;
  bool *placed; /* by slot: the request got memory */
};

struct replay {
  struct replay_stream stream;
  struct replay_tree blocks, handles, mappings;
  size_t *free_slots, free_count, slot_count;
  uint64_t live;
  struct replay_listener listener;
  size_t runner_count;
  struct runner runners[];
};

struct replay *replay_create(const struct replay_policy *const *policies, size_t count, uint64_t limit,
                             const struct replay_listener *listener) {
  struct replay *replay = b200_zeroed(1, sizeof(*replay) + count * sizeof(replay->runners[0]));
  replay->runner_count = count;
  if (listener)
    replay->listener = *listener;
  for (size_t i = 0; i < count; i++) {
    struct runner *runner = &replay->runners[i];
    runner->policy = policies[i];
    runner->book.limit = limit;
    runner->state = policies[i]->create(&runner->book);
  }
  return replay;
}

static void free_all(struct replay_node *node) {
  if (!node)
    return;
  free_all(node->left);
  free_all(node->right);
  free(node); /* the first member of its element */
}

void replay_destroy(struct replay *replay) {
  if (!replay)
    return;
  for (size_t i = 0; i < replay->runner_count; i++) {
    replay->runners[i].policy->destroy(replay->runners[i].state);
    free(replay->runners[i].placed);
  }
  free_all(replay->blocks.root);
  free_all(replay->handles.root);
  free_all(replay->mappings.root);
  free(replay->free_slots);
  free(replay);
}

const struct replay_stream *replay_stream(const struct replay *replay) {
  return &replay->stream;
}

const struct replay_book *replay_book(const struct replay *replay, size_t policy) {
  return &replay->runners[policy].book;
}

/* ---- policies */

static void note_peaks(struct replay_book *book) {
  if (book->live > book->peak_live)
    book->peak_live = book->live;
  if (book->reserved > book->peak_reserved) {
    book->peak_reserved = book->reserved;
    book->live_at_peak = book->live;
  }
}

static uint64_t call_count(const struct replay_book *book) {
  uint64_t count = 0;
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    count += book->calls[i];
  return count;
}

static void run_alloc(struct runner *runner, const struct replay_request *request) {
  struct replay_book *book = &runner->book;
  uint64_t calls = call_count(book);
  bool placed = runner->policy->alloc(runner->state, request);
  runner->placed[request->slot] = placed;
  book->requests++;
  book->hits += placed && !runner->policy->observe && call_count(book) == calls;
  book->failures += !placed;
  if (placed)
    book->live += request->bytes;
  note_peaks(book);
}

static void run_free(struct runner *runner, const struct replay_request *request) {
  if (!runner->placed[request->slot])
    return;
  runner->policy->free(runner->state, request);
  runner->book.live -= request->bytes;
}

/* ---- requests */

/* A number that no live request has; the policies' arrays have a place for it. */
static size_t take_slot(struct replay *replay) {
  if (replay->free_count)
    return replay->free_slots[--replay->free_count];
  size_t slot = replay->slot_count++;
  for (size_t i = 0; i < replay->runner_count; i++)
    replay->runners[i].placed = b200_grow(replay->runners[i].placed, slot, sizeof(bool));
  replay->free_slots = b200_grow(replay->free_slots, slot, sizeof(*replay->free_slots));
  return slot;
}

static struct live *find_live(const struct replay *replay, uint64_t key, bool physical) {
  const struct replay_tree *tree = physical ? &replay->handles : &replay->blocks;
  struct replay_node *node = replay_tree_find(tree, key, 0, 0);
  return node && node->key[0] == key ? REPLAY_ELEMENT(node, struct live, node) : NULL;
}

static bool begin_request(struct replay *replay, const struct replay_event *event, bool physical) {
  if (event->bytes > REPLAY_LIVE_MAX - replay->live)
    return false;
  struct replay_owner *owner = &replay->stream.owners[event->owner];
  struct live *live = b200_zeroed(1, sizeof(*live));
  live->node.key[0] = event->key;
  live->references = physical;
  live->request = (struct replay_request){.slot = take_slot(replay),
                                          .bytes = event->bytes,
                                          .stream = event->stream,
                                          .address = physical ? 0 : event->key,
                                          .owner = event->owner,
                                          .physical = physical};
  replay_tree_insert(physical ? &replay->handles : &replay->blocks, &live->node);
  replay->live += event->bytes;
  owner->allocs++;
  owner->current += event->bytes;
  if (owner->current > owner->peak)
    owner->peak = owner->current;
  if (++replay->stream.live_requests > replay->stream.peak_live_requests)
    replay->stream.peak_live_requests = replay->stream.live_requests;
  for (size_t i = 0; i < replay->runner_count; i++)
    run_alloc(&replay->runners[i], &live->request);
  if (replay->listener.begins)
    replay->listener.begins(replay->listener.context, &live->request);
  return true;
}

static void end_request(struct replay *replay, struct live *live) {
  const struct replay_request *request = &live->request;
  for (size_t i = 0; i < replay->runner_count; i++)
    run_free(&replay->runners[i], request);
  if (replay->listener.ends)
    replay->listener.ends(replay->listener.context, request);
  replay->live -= request->bytes;
  replay->stream.owners[request->owner].frees++;
  replay->stream.owners[request->owner].current -= request->bytes;
  replay->stream.live_requests--;
  replay->free_slots[replay->free_count++] = request->slot;
  replay_tree_remove(request->physical ? &replay->handles : &replay->blocks, &live->node);
  free(live);
}

static bool take_alloc(struct replay *replay, const struct replay_event *event) {
  struct live *before = find_live(replay, event->key, false);
  if (before) { /* the driver would not hand out a live address: its free was not recorded */
    replay->stream.replaced++;
    end_request(replay, before);
  }
  return begin_request(replay, event, false);
}

static void take_free(struct replay *replay, const struct replay_event *event) {
  struct live *live = find_live(replay, event->key, false);
  if (live)
    end_request(replay, live);
  else
    replay->stream.unknown++;
}

/* ---- the virtual memory API */

static void end_if_gone(struct replay *replay, struct live *live) {
  if (live->references == 0 && live->mappings == 0)
    end_request(replay, live);
}

/* A handle that is known has been retained or imported again. */
static bool take_create(struct replay *replay, const struct replay_event *event) {
  struct live *live = find_live(replay, event->key, true);
  if (!live)
    return begin_request(replay, event, true);
  live->references++;
  return true;
}

static void take_release(struct replay *replay, const struct replay_event *event) {
  struct live *live = find_live(replay, event->key, true);
  if (!live || live->references == 0) {
    replay->stream.unknown++;
    return;
  }
  live->references--;
  end_if_gone(replay, live);
}

static struct mapping *find_mapping(const struct replay *replay, uint64_t address) {
  struct replay_node *node = replay_tree_find(&replay->mappings, address, 0, 0);
  return node && node->key[0] == address ? REPLAY_ELEMENT(node, struct mapping, node) : NULL;
}

static void end_mapping(struct replay *replay, struct mapping *mapping) {
  struct live *live = find_live(replay, mapping->handle, true);
  replay_tree_remove(&replay->mappings, &mapping->node);
  free(mapping);
  if (live && live->mappings > 0) {
    live->mappings--;
    end_if_gone(replay, live);
  }
}

static void take_map(struct replay *replay, const struct replay_event *event) {
  struct mapping *mapping = find_mapping(replay, event->key);
  if (mapping) {
    replay->stream.replaced++;
    end_mapping(replay, mapping);
  }
  struct live *live = find_live(replay, event->handle, true);
  mapping = b200_zeroed(1, sizeof(*mapping));
  mapping->node.key[0] = event->key;
  mapping->bytes = event->bytes;
  mapping->handle = event->handle;
  replay_tree_insert(&replay->mappings, &mapping->node);
  if (live)
    live->mappings++;
}

/* Ends every mapping of the range, from its first on. */
static void take_unmap(struct replay *replay, const struct replay_event *event) {
  uint64_t address = event->key, end = address + event->bytes;
  struct mapping *mapping = find_mapping(replay, address);
  replay->stream.unknown += mapping == NULL;
  while (mapping && mapping->bytes && address < end) {
    address += mapping->bytes;
    end_mapping(replay, mapping);
    mapping = find_mapping(replay, address);
  }
}

bool replay_feed(struct replay *replay, const struct replay_event *event) {
  replay->stream.events++;
  for (size_t i = 0; i < replay->runner_count; i++)
    if (replay->runners[i].policy->observe)
      replay->runners[i].policy->observe(replay->runners[i].state, event);
  switch (event->what) {
  case REPLAY_MALLOC:
    return take_alloc(replay, event);
  case REPLAY_FREE:
    take_free(replay, event);
    return true;
  case REPLAY_CREATE:
    return take_create(replay, event);
  case REPLAY_RELEASE:
    take_release(replay, event);
    return true;
  case REPLAY_MAP:
    take_map(replay, event);
    return true;
  case REPLAY_UNMAP:
    take_unmap(replay, event);
    return true;
  default:
    replay->stream.owners[event->owner].failed++;
    return true;
  }
}
