/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with waits, events and streams. */
#include <cuda.h>
#include <pthread.h>

#include "programs.h"

static bool no_wait(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool no_wait_before_overwriting(bool wrong) {
  fill(on.x, 1, on.a);
  copy(on.y, on.x, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  fill(on.x, 2, on.b);
  return holds(on.y, 1);
}

static bool no_wait_between_writes(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  fill(on.x, 2, on.b);
  return holds(on.x, 2);
}

static bool waits_for_the_wrong_stream(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  fill(on.z, 1, on.c);
  record(on.f, on.c);
  wait_for(on.b, wrong ? on.f : on.e);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool records_on_the_wrong_stream(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, wrong ? on.b : on.a);
  wait_for(on.b, on.e);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool records_before_the_work(bool wrong) {
  if (wrong)
    record(on.e, on.a);
  fill(on.x, 1, on.a);
  if (!wrong)
    record(on.e, on.a);
  wait_for(on.b, on.e);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool records_again_before_the_wait(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  fill(on.z, 1, on.c);
  record(wrong ? on.e : on.f, on.c);
  wait_for(on.b, on.e);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool waits_before_the_record(bool wrong) {
  fill(on.x, 1, on.a);
  if (wrong)
    wait_for(on.b, on.e);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool breaks_a_chain(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.c, on.e);
  record(on.f, on.c);
  wait_for(on.b, on.f);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool synchronizes_the_wrong_stream(bool wrong) {
  fill(on.x, 1, on.a);
  fill(on.z, 1, on.c);
  synchronize(wrong ? on.c : on.a);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool synchronizes_an_old_record(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  fill(on.x, 2, on.a);
  if (!wrong)
    record(on.e, on.a);
  MUST(cudaEventSynchronize(on.e));
  copy(on.y, on.x, on.b);
  return holds(on.y, 2);
}

/* One event for all work that the context has: of every stream, and of none that comes later. */
static bool records_the_context_before_the_work(bool wrong) {
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  fill(on.x, 1, on.a);
  if (wrong)
    MUST(cuCtxRecordEvent(context, on.e));
  fill(on.y, 1, on.b);
  if (!wrong)
    MUST(cuCtxRecordEvent(context, on.e));
  wait_for(on.c, on.e);
  copy(on.z, on.y, on.c);
  fill(on.x, 2, on.c);
  return holds(on.z, 1) && holds(on.x, 2);
}

/* Its fill runs on in the late orders, and what is read is not touched by it. */
static bool waits_for_the_context_and_not_for_later_work(bool wrong) {
  (void)wrong;
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  fill(on.x, 1, on.a);
  fill(on.y, 1, on.b);
  MUST(cuCtxRecordEvent(context, on.e));
  fill(on.z, 1, on.c);
  MUST(cudaEventSynchronize(on.e));
  MUST(cudaMemcpyAsync(on.pinned, on.x, PROGRAM_BYTES, cudaMemcpyDeviceToHost, on.b));
  synchronize(on.b);
  return all_bytes_are(on.pinned, 1);
}

static bool ignores_what_the_stream_says(bool wrong) {
  fill(on.x, 1, on.a);
  while (cudaStreamQuery(on.a) == cudaErrorNotReady && !wrong)
    ;
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool ignores_what_the_event_says(bool wrong) {
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  while (cudaEventQuery(on.e) == cudaErrorNotReady && !wrong)
    ;
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool takes_a_non_blocking_stream_for_a_blocking_one(bool wrong) {
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, wrong ? cudaStreamNonBlocking : cudaStreamDefault));
  fill(on.x, 1, NULL);
  copy(on.y, on.x, stream);
  return holds(on.y, 1);
}

static bool takes_the_null_stream_for_a_barrier(bool wrong) {
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, wrong ? cudaStreamNonBlocking : cudaStreamDefault));
  fill(on.x, 1, stream);
  copy(on.y, on.x, NULL);
  return holds(on.y, 1);
}

static void *fill_on(void *stream) {
  fill(on.x, 1, stream);
  return NULL;
}

/* Compiled with --default-stream per-thread, say, and handing over between threads by a join alone. */
static bool takes_the_per_thread_stream_for_one(bool wrong) {
  cudaStream_t stream = wrong ? cudaStreamPerThread : cudaStreamLegacy;
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, fill_on, stream));
  MUST(pthread_join(thread, NULL));
  copy(on.y, on.x, stream);
  return holds(on.y, 1);
}

static bool takes_destroying_a_stream_for_waiting(bool wrong) {
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  fill(on.x, 1, stream);
  if (!wrong)
    synchronize(stream);
  MUST(cudaStreamDestroy(stream));
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

enum { STEPS = 6, SLOTS = 2 };

/* The producer waits for the consumer of two steps ago, so it needs two buffers. */
static bool has_a_buffer_too_few(bool wrong) {
  unsigned char *slots[SLOTS] = {on.x, wrong ? on.x : on.z}, *out = NULL;
  cudaEvent_t full[SLOTS], empty[SLOTS];
  MUST(cudaMalloc((void **)&out, STEPS * PROGRAM_BYTES));
  for (int i = 0; i < SLOTS; i++) {
    MUST(cudaEventCreate(&full[i]));
    MUST(cudaEventCreate(&empty[i]));
  }
  for (int i = 0; i < STEPS; i++) {
    wait_for(on.a, empty[i % SLOTS]); /* nothing at first */
    fill(slots[i % SLOTS], i + 1, on.a);
    record(full[i % SLOTS], on.a);
    wait_for(on.b, full[i % SLOTS]);
    copy(out + (size_t)i * PROGRAM_BYTES, slots[i % SLOTS], on.b);
    record(empty[i % SLOTS], on.b);
  }
  bool right = true;
  for (int i = 0; i < STEPS; i++)
    right &= holds(out + (size_t)i * PROGRAM_BYTES, i + 1);
  return right;
}

/* Two streams fill the halves of a matrix; one half is a column too wide. */
static bool writes_a_column_too_many(bool wrong) {
  enum { WIDTH = 256, HALF = WIDTH / 2, ROWS = 256 };
  static unsigned char host[WIDTH * ROWS];
  MUST(cudaMemset2DAsync(on.x + HALF, WIDTH, 2, HALF, ROWS, on.b));
  MUST(cudaMemset2DAsync(on.x, WIDTH, 1, wrong ? HALF + 1 : HALF, ROWS, on.a));
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemcpy(host, on.x, sizeof host, cudaMemcpyDeviceToHost));
  for (int row = 0; row < ROWS; row++)
    if (host[row * WIDTH + HALF - 1] != 1 || host[row * WIDTH + HALF] != 2)
      return false;
  return true;
}

/* A stream of another device reads before it may. */
static bool does_not_wait_for_the_other_device(bool wrong) {
  void *there = NULL;
  cudaStream_t stream;
  MUST(cudaSetDevice(1));
  MUST(cudaMalloc(&there, PROGRAM_BYTES));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaSetDevice(0));
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(stream, on.e);
  MUST(cudaMemcpyPeerAsync(there, 1, on.x, 0, PROGRAM_BYTES, stream));
  synchronize(stream);
  return holds(there, 1);
}

/* ------------------------------------------------------------------------------------------- right, if strange */

static bool blocking_streams_are_ordered_by_the_null_stream(bool wrong) {
  (void)wrong;
  cudaStream_t first, second;
  MUST(cudaStreamCreate(&first));
  MUST(cudaStreamCreate(&second));
  fill(on.x, 1, first);
  fill(on.z, 3, NULL);
  copy(on.y, on.x, second);
  fill(on.x, 2, NULL);
  return holds(on.y, 1) && holds(on.x, 2);
}

static bool one_event_serves_many_times(bool wrong) {
  (void)wrong;
  for (int i = 1; i <= STEPS; i++) {
    fill(on.x, i, on.a);
    record(on.e, on.a);
    wait_for(on.b, on.e);
    copy(on.y, on.x, on.b);
    record(on.e, on.b);
    wait_for(on.a, on.e);
  }
  return holds(on.y, STEPS);
}

/* The wait is for the record as it was when the wait was submitted. */
static bool a_later_record_changes_no_wait(bool wrong) {
  (void)wrong;
  fill(on.x, 1, on.a);
  record(on.e, on.a);
  wait_for(on.b, on.e);
  fill(on.z, 2, on.c);
  record(on.e, on.c);
  copy(on.y, on.x, on.b);
  return holds(on.y, 1);
}

static bool neighbours_do_not_race(bool wrong) {
  (void)wrong;
  MUST(cudaMemsetAsync(on.x, 1, PROGRAM_BYTES / 2, on.a));
  MUST(cudaMemsetAsync(on.x + PROGRAM_BYTES / 2, 1, PROGRAM_BYTES / 2, on.b));
  return holds(on.x, 1);
}

static bool a_thread_hands_over_by_an_event(bool wrong) {
  (void)wrong;
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, fill_on, cudaStreamPerThread));
  MUST(pthread_join(thread, NULL));
  MUST(cudaDeviceSynchronize());
  copy(on.y, on.x, cudaStreamPerThread);
  return holds(on.y, 1);
}

static const char read_race[] = "read after unordered write", write_race[] = "write after unordered write",
                  overwrite_race[] = "write after unordered read";

const struct program stream_programs[] = {
    {"no wait", no_wait, read_race, "copy", "fill", .shows = true},
    {"no wait before overwriting", no_wait_before_overwriting, overwrite_race, "fill", "copy", .shows = true},
    {"no wait between writes", no_wait_between_writes, write_race, "fill", "fill", .shows = true},
    {"waits for the wrong stream", waits_for_the_wrong_stream, read_race, "copy", "fill", .shows = true},
    {"records on the wrong stream", records_on_the_wrong_stream, read_race, "copy", "fill", .shows = true},
    {"records before the work", records_before_the_work, read_race, "copy", "fill", .shows = true},
    {"records again before the wait", records_again_before_the_wait, read_race, "copy", "fill", .shows = true},
    {"waits before the record", waits_before_the_record, read_race, "copy", "fill", .shows = true},
    {"breaks a chain of waits", breaks_a_chain, read_race, "copy", "fill", .shows = true},
    {"synchronizes the wrong stream", synchronizes_the_wrong_stream, read_race, "copy", "fill", .shows = true},
    {"synchronizes an old record", synchronizes_an_old_record, read_race, "copy", "fill", .shows = true},
    {"records the context before the work", records_the_context_before_the_work, read_race, "copy", "fill", .shows = true},
    {"ignores what the stream says", ignores_what_the_stream_says, read_race, "copy", "fill", .shows = true},
    {"ignores what the event says", ignores_what_the_event_says, read_race, "copy", "fill", .shows = true},
    {"takes a non-blocking stream for a blocking one", takes_a_non_blocking_stream_for_a_blocking_one, read_race, "copy",
     "fill", .shows = true},
    {"takes the null stream for a barrier", takes_the_null_stream_for_a_barrier, read_race, "copy", "fill", .shows = true},
    {"takes the per-thread stream for one", takes_the_per_thread_stream_for_one, read_race, "copy", "fill", .shows = true},
    {"takes destroying a stream for waiting", takes_destroying_a_stream_for_waiting, read_race, "copy", "fill",
     .shows = true},
    {"has a buffer too few", has_a_buffer_too_few, overwrite_race, "fill", "copy", .shows = true},
    {"writes a column too many", writes_a_column_too_many, write_race, "fill", "fill", .shows = true},
    {"does not wait for the other device", does_not_wait_for_the_other_device, read_race, "copy", "fill", .shows = true},
    {"blocking streams are ordered by the null stream", blocking_streams_are_ordered_by_the_null_stream, .right_only = true},
    {"one event serves many times", one_event_serves_many_times, .right_only = true},
    {"waits for the context and not for later work", waits_for_the_context_and_not_for_later_work, .right_only = true},
    {"a later record changes no wait", a_later_record_changes_no_wait, .right_only = true},
    {"neighbours do not race", neighbours_do_not_race, .right_only = true},
    {"a thread hands over by synchronising", a_thread_hands_over_by_an_event, .right_only = true},
    {.name = NULL}};
