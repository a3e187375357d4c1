/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that allocate, fill, hand to one another and free device memory while work on it is still queued, as CUDA allows:
 * what a block holds must be what its owner has put there last. A free with work pending is what goes wrong first when
 * memory is handed out too early.
 *
 *   corruption THREADS OPERATIONS SEED    prints what was done; exit status 1 when a byte is wrong
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "functions.h"

#define MIB ((size_t)1 << 20)

enum { STREAMS = 8, SLOTS = 4, MAIL = 64, PIECE_BYTES = 32 << 10, THREADS_MAX = 64 };

struct block {
  char *at;
  size_t bytes;
  unsigned char value;
  cudaStream_t stream; /* of the last work on it */
};

static cudaStream_t streams[STREAMS];
static _Atomic(void *) mail[MAIL]; /* blocks that another thread shall free */
static atomic_long wrong, allocated, freed, refused;
static long operations;

static void must(int status, const char *what, int line) {
  if (status == 0)
    return;
  fprintf(stderr, "corruption: line %d: %s gives %d\n", line, what, status);
  exit(2);
}
#define MUST(call) must((int)(call), #call, __LINE__)

static uint32_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

/* Both ends of the block, in the order of a stream. */
static void fill(struct block *block, unsigned char value, cudaStream_t stream) {
  block->value = value;
  block->stream = stream;
  MUST(p_cudaMemsetAsync(block->at, value, PIECE_BYTES, stream));
  MUST(p_cudaMemsetAsync(block->at + block->bytes - PIECE_BYTES, value, PIECE_BYTES, stream));
}

static void check(const struct block *block) {
  unsigned char found[2][PIECE_BYTES / 64];
  MUST(p_cudaStreamSynchronize(block->stream));
  MUST(p_cudaMemcpyAsync(found[0], block->at, sizeof found[0], cudaMemcpyDeviceToHost, block->stream));
  MUST(p_cudaMemcpyAsync(found[1], block->at + block->bytes - sizeof found[1], sizeof found[1], cudaMemcpyDeviceToHost,
                         block->stream));
  MUST(p_cudaStreamSynchronize(block->stream));
  for (size_t i = 0; i < sizeof found[0]; i++)
    if (found[0][i] != block->value || found[1][i] != block->value) {
      if (atomic_fetch_add(&wrong, 1) == 0)
        printf("a block of %zu MiB holds %02x and %02x at %zu, not %02x\n", block->bytes / MIB, found[0][i], found[1][i], i,
               block->value);
      return;
    }
}

/* Most frees are PyTorch's, which do not wait for the work. */
static void release(char *at) {
  if (atomic_fetch_add(&freed, 1) % 8 == 0)
    MUST(p_cudaFree(at));
  else
    MUST(free_as_pytorch(at));
}

/* Work is queued behind it, and then it is freed: here, or by who comes by. */
static void give_up(struct block *block, uint64_t *state) {
  fill(block, 0xEE, streams[draw(state) % STREAMS]);
  void *expected = NULL;
  if (draw(state) % 3 != 0 || !atomic_compare_exchange_strong(&mail[draw(state) % MAIL], &expected, (void *)block->at))
    release(block->at);
  block->at = NULL;
}

static void take(struct block *block, uint64_t *state) {
  void *at = NULL;
  block->bytes = (2 + 2 * (draw(state) % 3)) * MIB;
  cudaError_t status = p_cudaMalloc(&at, block->bytes);
  if (status == cudaErrorMemoryAllocation) {
    p_cudaGetLastError();
    atomic_fetch_add(&refused, 1);
    return;
  }
  must((int)status, "cudaMalloc", __LINE__);
  atomic_fetch_add(&allocated, 1);
  block->at = at;
  fill(block, (unsigned char)(1 + draw(state) % 200), streams[draw(state) % STREAMS]);
}

static void *work(void *argument) {
  uint64_t state = (uint64_t)(uintptr_t)argument;
  struct block blocks[SLOTS] = {{0}};
  for (long i = 0; i < operations; i++) {
    struct block *block = &blocks[draw(&state) % SLOTS];
    void *post = atomic_exchange(&mail[draw(&state) % MAIL], NULL);
    if (post)
      release(post);
    if (!block->at) {
      take(block, &state);
    } else if (draw(&state) % 2 == 0) {
      check(block);
    } else {
      check(block);
      give_up(block, &state);
    }
    if (draw(&state) % 64 == 0)
      MUST(p_cudaDeviceSynchronize());
  }
  for (int i = 0; i < SLOTS; i++)
    if (blocks[i].at) {
      check(&blocks[i]);
      release(blocks[i].at);
    }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS_MAX];
  void *first = NULL;
  if (argc != 4 || atoi(argv[1]) < 1 || atoi(argv[1]) > THREADS_MAX) {
    fprintf(stderr, "usage: corruption THREADS OPERATIONS SEED\n");
    return 2;
  }
  int count = atoi(argv[1]);
  operations = atol(argv[2]) / count;
  load_functions();
  MUST(p_cudaMalloc(&first, MIB));
  MUST(p_cudaFree(first));
  for (int i = 0; i < STREAMS; i++)
    MUST(p_cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  for (int i = 0; i < count; i++)
    MUST(pthread_create(&threads[i], NULL, work,
                        (void *)(uintptr_t)(strtoull(argv[3], NULL, 10) * 1000003 + (unsigned)i + 1)));
  for (int i = 0; i < count; i++)
    MUST(pthread_join(threads[i], NULL));
  for (int i = 0; i < MAIL; i++)
    if (mail[i])
      release(mail[i]);
  MUST(p_cudaDeviceSynchronize());
  printf("%d threads, %ld allocated, %ld freed, %ld refused, %ld wrong\n", count, allocated, freed, refused, wrong);
  return wrong > 0;
}
