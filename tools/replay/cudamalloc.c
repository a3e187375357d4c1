/* SPDX-License-Identifier: Apache-2.0 */
/* The driver alone: one cudaMalloc for each request, one cudaFree at its end. */
#include "tools/replay/replay.h"

static void *create(struct replay_book *book) {
  return book;
}

static bool alloc(void *book, const struct replay_request *request) {
  return replay_book_take(book, REPLAY_MALLOC, request->bytes);
}

static void free_request(void *book, const struct replay_request *request) {
  replay_book_give(book, REPLAY_FREE, request->bytes);
}

static void destroy(void *book) {
  (void)book;
}

const struct replay_policy replay_cudamalloc = {
    .name = "cudamalloc",
    .help = "no cache: a cudaMalloc for each request",
    .create = create,
    .alloc = alloc,
    .free = free_request,
    .destroy = destroy,
};
