/* SPDX-License-Identifier: Apache-2.0 */
/* A policy's account with the driver, and what its calls cost. */
#include "tools/replay/replay.h"

#include <string.h>

#define NAME(id, name, function) name,
#define FUNCTION(id, name, function) function,
const char *const replay_call_names[REPLAY_CALL_COUNT] = {REPLAY_CALLS(NAME)};
static const char *const functions[REPLAY_CALL_COUNT] = {REPLAY_CALLS(FUNCTION)};

uint64_t replay_call_ns(enum replay_call call) {
  static const struct {
    const char *prefix;
    uint64_t ns;
  } hosts[] = {
#define VNODE_HOST(prefix, nanoseconds) {prefix, nanoseconds},
#include "tools/vnode/core/models.def"
  };
  size_t i = 0;
  while (strncmp(functions[call], hosts[i].prefix, strlen(hosts[i].prefix)) != 0) /* the last prefix is empty */
    i++;
  return hosts[i].ns;
}

bool replay_book_take(struct replay_book *book, enum replay_call call, uint64_t bytes) {
  book->calls[call]++;
  if (bytes > book->limit - book->reserved)
    return false;
  book->reserved += bytes;
  return true;
}

void replay_book_give(struct replay_book *book, enum replay_call call, uint64_t bytes) {
  book->calls[call]++;
  book->reserved -= bytes;
}

bool replay_book_direct_alloc(struct replay_book *book, const struct replay_request *request) {
  if (!request->physical)
    return replay_book_take(book, REPLAY_MALLOC, request->bytes);
  if (!replay_book_take(book, REPLAY_CREATE, request->bytes))
    return false;
  book->calls[REPLAY_MAP]++;
  book->calls[REPLAY_ACCESS]++;
  return true;
}

void replay_book_direct_free(struct replay_book *book, const struct replay_request *request) {
  if (request->physical)
    book->calls[REPLAY_UNMAP]++;
  replay_book_give(book, request->physical ? REPLAY_RELEASE : REPLAY_FREE, request->bytes);
}

uint64_t replay_book_stall_ns(const struct replay_book *book) {
  uint64_t ns = 0;
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    ns += book->calls[i] * replay_call_ns((enum replay_call)i);
  return ns;
}

double replay_book_fragmentation(const struct replay_book *book) {
  return book->peak_reserved ? 1 - (double)book->live_at_peak / (double)book->peak_reserved : 0;
}
