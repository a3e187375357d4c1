/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: hammer [ITERATIONS]
 * 64 threads on two devices make, use and destroy streams, events and memory at random (seeded), hand events to each other,
 * copy and fill, call host functions, poll and synchronise. Checked: every status, the data that comes back, that every host
 * function ran once, that no race is reported and that no memory is left. Run under the sanitizers it also looks for races
 * in the node itself.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { THREADS = 64, DEVICES = 2, BYTES = 4096, SLOTS = 16 };

static _Atomic(cudaEvent_t) slots[SLOTS]; /* recorded events, free to take */
static atomic_long called, launched;
static int iterations = 40;

#define CHECK(condition)                                                                                                    \
  do {                                                                                                                      \
    if (!(condition)) {                                                                                                     \
      fprintf(stderr, "hammer: line %d: %s\n", __LINE__, #condition);                                                       \
      abort();                                                                                                              \
    }                                                                                                                       \
  } while (0)
#define OK(call) CHECK((call) == cudaSuccess)

static void count_call(void *unused) {
  (void)unused;
  atomic_fetch_add(&called, 1);
}

struct thread {
  pthread_t id;
  unsigned seed;
  cudaStream_t stream;
  unsigned char *device, *pinned;
};

static unsigned pick(struct thread *thread, unsigned below) {
  thread->seed = thread->seed * 1664525u + 1013904223u;
  return (thread->seed >> 16) % below;
}

static void hand_over_event(struct thread *thread) {
  cudaEvent_t event;
  OK(cudaEventCreateWithFlags(&event, pick(thread, 2) ? cudaEventDisableTiming : cudaEventDefault));
  OK(cudaEventRecord(event, thread->stream));
  event = atomic_exchange(&slots[pick(thread, SLOTS)], event);
  if (!event)
    return;
  OK(cudaStreamWaitEvent(thread->stream, event, 0));
  if (pick(thread, 4) == 0)
    OK(cudaEventSynchronize(event));
  OK(cudaEventDestroy(event));
}

static void use_memory(struct thread *thread) {
  void *memory;
  size_t bytes = (1 + pick(thread, 3)) << 20;
  bool ordered = pick(thread, 2);
  OK(ordered ? cudaMallocAsync(&memory, bytes, thread->stream) : cudaMalloc(&memory, bytes));
  OK(cudaMemsetAsync(memory, 0x5a, BYTES, thread->stream));
  OK(cudaMemcpyAsync(thread->device, memory, BYTES, cudaMemcpyDeviceToDevice, thread->stream));
  OK(ordered ? cudaFreeAsync(memory, thread->stream) : cudaFree(memory));
}

static void renew_stream(struct thread *thread) {
  OK(cudaStreamSynchronize(thread->stream));
  OK(cudaStreamDestroy(thread->stream));
  OK(cudaStreamCreateWithFlags(&thread->stream, pick(thread, 4) ? cudaStreamNonBlocking : cudaStreamDefault));
}

static void round_trip(struct thread *thread) {
  unsigned char value = (unsigned char)pick(thread, 256), pageable[BYTES];
  memset(thread->pinned, value, BYTES);
  OK(cudaMemcpyAsync(thread->device, thread->pinned, BYTES, cudaMemcpyHostToDevice, thread->stream));
  if (pick(thread, 2)) {
    OK(cudaMemcpyAsync(pageable, thread->device, BYTES, cudaMemcpyDeviceToHost, thread->stream));
  } else {
    OK(cudaMemcpyAsync(thread->pinned, thread->device, BYTES, cudaMemcpyDeviceToHost, thread->stream));
    OK(cudaStreamSynchronize(thread->stream));
    memcpy(pageable, thread->pinned, BYTES);
  }
  OK(cudaStreamSynchronize(thread->stream));
  for (size_t i = 0; i < BYTES; i++)
    CHECK(pageable[i] == value);
}

static void ask(struct thread *thread) {
  size_t free_bytes, total;
  OK(cudaMemGetInfo(&free_bytes, &total));
  CHECK(free_bytes < total);
  cudaError_t status;
  while ((status = cudaStreamQuery(thread->stream)) == cudaErrorNotReady)
    ;
  OK(status);
}

static void call_host(struct thread *thread) {
  atomic_fetch_add(&launched, 1);
  OK(cudaLaunchHostFunc(thread->stream, count_call, NULL));
}

static void *work(void *argument) {
  static void (*const actions[])(struct thread *) = {hand_over_event, use_memory, renew_stream, round_trip, ask, call_host};
  struct thread *thread = argument;
  OK(cudaSetDevice((int)(thread->seed % DEVICES)));
  OK(cudaStreamCreateWithFlags(&thread->stream, cudaStreamNonBlocking));
  OK(cudaMalloc((void **)&thread->device, BYTES));
  OK(cudaMallocHost((void **)&thread->pinned, BYTES));
  for (int i = 0; i < iterations; i++)
    actions[pick(thread, sizeof actions / sizeof actions[0])](thread);
  OK(cudaStreamSynchronize(thread->stream));
  OK(cudaFreeHost(thread->pinned));
  OK(cudaFree(thread->device));
  OK(cudaStreamDestroy(thread->stream));
  return NULL;
}

int main(int count, char **arguments) {
  static struct thread threads[THREADS];
  size_t before[DEVICES], after, total;
  if (count > 1)
    iterations = atoi(arguments[1]);
  for (int device = 0; device < DEVICES; device++) {
    OK(cudaSetDevice(device));
    OK(cudaMemGetInfo(&before[device], &total));
  }
  for (unsigned i = 0; i < THREADS; i++) {
    threads[i].seed = i;
    CHECK(!pthread_create(&threads[i].id, NULL, work, &threads[i]));
  }
  for (unsigned i = 0; i < THREADS; i++)
    CHECK(!pthread_join(threads[i].id, NULL));
  for (unsigned i = 0; i < SLOTS; i++)
    if (slots[i])
      OK(cudaEventDestroy(slots[i]));
  for (int device = 0; device < DEVICES; device++) {
    OK(cudaSetDevice(device));
    OK(cudaDeviceSynchronize());
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, device));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == before[device]);
  }
  CHECK(called == launched && launched > 0);
  CHECK(vnode_race_count() == 0);
  printf("hammer: %d threads, %d actions each, %ld host functions: all right\n", THREADS, iterations, launched);
  return 0;
}
