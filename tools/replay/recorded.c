/* SPDX-License-Identifier: Apache-2.0 */
/* What happened in the recorded run: every event is the driver call that it was. */
#include "tools/replay/replay.h"

#include <stdlib.h>

#include "interpose/record/reader.h"

struct state {
  struct replay_book *book;
  bool mapping;      /* the event before was a map, */
  uint64_t map_ends; /* up to here: its access is set together with that of the next */
};

static void *create(struct replay_book *book) {
  struct state *state = b200_zeroed(1, sizeof(*state));
  state->book = book;
  book->limit = REPLAY_NO_LIMIT; /* it did fit */
  return state;
}

static bool alloc(void *opaque, const struct replay_request *request) {
  struct state *state = opaque;
  state->book->reserved += request->bytes;
  return true;
}

static void free_request(void *opaque, const struct replay_request *request) {
  struct state *state = opaque;
  state->book->reserved -= request->bytes;
}

/* cuMemSetAccess is not recorded: PyTorch calls it once for pages that it maps one behind the other. */
static void observe(void *opaque, const struct replay_event *event) {
  struct state *state = opaque;
  bool map = event->what == REPLAY_MAP;
  if (event->what == REPLAY_REFUSED)
    state->book->failures++;
  else
    state->book->calls[event->what]++;
  if (map && !(state->mapping && state->map_ends == event->key))
    state->book->calls[REPLAY_ACCESS]++;
  state->mapping = map;
  state->map_ends = event->key + event->bytes;
}

const struct replay_policy replay_recorded = {
    .name = "recorded",
    .help = "the recorded run itself",
    .create = create,
    .alloc = alloc,
    .free = free_request,
    .observe = observe,
    .destroy = free,
};
