/* SPDX-License-Identifier: Apache-2.0 */
/* What copies, fills and pools promise the host and other streams, in every order; and what they cost. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "model.h"
#include "vnode_test.h"

#define OK(call) ck_assert_int_eq(call, cudaSuccess)

static bool is_late(void) {
  return vnode_config()->order != VNODE_ORDER_EAGER;
}

static cudaStream_t make_stream(void) {
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

static void *device_alloc(size_t bytes) {
  void *pointer = NULL;
  OK(cudaMalloc(&pointer, bytes));
  return pointer;
}

static void *pinned_alloc(size_t bytes, int value) {
  void *pointer = NULL;
  OK(cudaMallocHost(&pointer, bytes));
  memset(pointer, value, bytes);
  return pointer;
}

static void expect_bytes(const void *at, int value, size_t bytes) {
  const unsigned char *got = at;
  size_t i = 0;
  while (i < bytes && got[i] == value)
    i++;
  if (i < bytes)
    ck_abort_msg("byte %zu of %zu is %#x, not %#x", i, bytes, got[i], (unsigned)value);
}

/* A gate holds a stream up until the host opens it. In eager order the host would never come to that: there it is open. */
static void wait_at_gate(void *gate) {
  while (!atomic_load((_Atomic bool *)gate))
    usleep(100);
}

static void close_gate(_Atomic bool *gate, cudaStream_t stream) {
  atomic_store(gate, !is_late());
  OK(cudaLaunchHostFunc(stream, wait_at_gate, gate));
}

/* ------------------------------------------------------------------------------------------------------------ uploads */

/* Below and above what is staged: above, the host waits for the copy itself. */
START_TEST(pageable_sources_are_read_before_the_call_returns) {
  static const size_t sizes[] = {100, 3 * MIB, 65 * MIB};
  for (int async = 0; async < 2; async++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      cudaStream_t stream = async ? make_stream() : NULL;
      unsigned char *host = malloc(sizes[i]), *device = device_alloc(sizes[i]);
      memset(host, 1, sizes[i]);
      if (async)
        OK(cudaMemcpyAsync(device, host, sizes[i], cudaMemcpyHostToDevice, stream));
      else
        OK(cudaMemcpy(device, host, sizes[i], cudaMemcpyDefault));
      memset(host, 2, sizes[i]);
      OK(cudaMemcpyAsync(host, device, sizes[i], cudaMemcpyDeviceToHost, stream));
      expect_bytes(host, 1, sizes[i]);
      free(host);
      OK(cudaFree(device));
    }
}
END_TEST

START_TEST(pageable_sources_are_staged_behind_a_stream_that_is_held_up) {
  enum { ROWS = 5, WIDTH = 7, PITCH = 11 };
  static _Atomic bool gate; /* outlives the function that waits at it */
  cudaStream_t stream = make_stream();
  unsigned char host[ROWS * PITCH], back[ROWS * WIDTH], *device = device_alloc(ROWS * WIDTH);
  memset(host, 9, sizeof host);
  for (int row = 0; row < ROWS; row++)
    memset(host + row * PITCH, 1, WIDTH);
  close_gate(&gate, stream);
  OK(cudaMemcpy2DAsync(device, WIDTH, host, PITCH, WIDTH, ROWS, cudaMemcpyHostToDevice, stream));
  memset(host, 2, sizeof host);
  atomic_store(&gate, true);
  OK(cudaMemcpyAsync(back, device, sizeof back, cudaMemcpyDeviceToHost, stream));
  expect_bytes(back, 1, sizeof back);
}
END_TEST

struct refill {
  void *at;
  int value;
  size_t bytes;
};

static void refill(void *data) {
  const struct refill *what = data;
  memset(what->at, what->value, what->bytes);
}

/* The source as it is when the stream gets there: also memory of the application's own that is registered. */
START_TEST(pinned_sources_are_read_when_the_copy_runs) {
  enum { BYTES = 100000 };
  for (int registered = 0; registered < 2; registered++) {
    cudaStream_t stream = make_stream();
    unsigned char *host = registered ? malloc(BYTES) : pinned_alloc(BYTES, 1), *device = device_alloc(BYTES), back[BYTES];
    struct refill what = {.at = host, .value = 2, .bytes = BYTES};
    memset(host, 1, BYTES);
    if (registered)
      OK(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    OK(cudaLaunchHostFunc(stream, refill, &what));
    OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(back, device, BYTES, cudaMemcpyDeviceToHost, stream));
    expect_bytes(back, 2, BYTES);
    OK(registered ? cudaHostUnregister(host) : cudaFreeHost(host));
  }
}
END_TEST

/* ---------------------------------------------------------------------------------------------------------- downloads */

START_TEST(pinned_targets_are_written_when_the_copy_runs) {
  enum { BYTES = 32 };
  static _Atomic bool gate; /* outlives the function that waits at it */
  cudaStream_t stream = make_stream();
  unsigned char *host = pinned_alloc(BYTES, 1), *device = device_alloc(BYTES);
  OK(cudaMemset(device, 3, BYTES));
  OK(cudaDeviceSynchronize());
  close_gate(&gate, stream);
  OK(cudaMemcpyAsync(host, device, BYTES, cudaMemcpyDeviceToHost, stream));
  if (is_late()) {
    ck_assert_int_eq(cudaStreamQuery(stream), cudaErrorNotReady);
    expect_bytes(host, 1, BYTES);
  }
  atomic_store(&gate, true);
  OK(cudaStreamSynchronize(stream));
  expect_bytes(host, 3, BYTES);
}
END_TEST

/* Calls without Async wait for what they bring to the host, and for what comes before it in their stream. */
START_TEST(synchronous_calls_wait) {
  enum { BYTES = 5000 };
  unsigned char *pinned = pinned_alloc(BYTES, 1), *one = device_alloc(BYTES), *two = device_alloc(BYTES), back[BYTES];
  unsigned char *managed = NULL;
  OK(cudaMallocManaged((void **)&managed, BYTES, cudaMemAttachGlobal));
  OK(cudaMemset(one, 4, BYTES));
  OK(cudaMemcpy(two, one, BYTES, cudaMemcpyDeviceToDevice));
  OK(cudaMemcpy(pinned, two, BYTES, cudaMemcpyDeviceToHost));
  expect_bytes(pinned, 4, BYTES);
  OK(cudaMemset(pinned, 5, BYTES));
  expect_bytes(pinned, 5, BYTES);
  OK(cudaMemset(managed, 6, BYTES));
  expect_bytes(managed, 6, BYTES);
  OK(cudaMemcpy(back, pinned, BYTES, cudaMemcpyHostToHost));
  expect_bytes(back, 5, BYTES);
  OK(cudaMemcpy(one, pinned, BYTES, cudaMemcpyHostToDevice));
  memset(pinned, 7, BYTES);
  OK(cudaMemcpy(back, one, BYTES, cudaMemcpyDeviceToHost));
  expect_bytes(back, 5, BYTES);
  OK(cudaMemcpyAsync(managed, one, BYTES, cudaMemcpyDefault, NULL));
  OK(cudaMemcpyAsync(back, managed, BYTES, cudaMemcpyDefault, NULL)); /* pageable: complete */
  expect_bytes(back, 5, BYTES);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

/* Freeing waits for the work that still uses the memory. */
START_TEST(freeing_waits_for_the_device) {
  enum { BYTES = 4096 };
  cudaStream_t stream = make_stream();
  unsigned char *pinned = pinned_alloc(BYTES, 1), *device = device_alloc(BYTES), *last = pinned_alloc(BYTES, 1);
  OK(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
  OK(cudaMemsetAsync(last, 8, BYTES, stream));
  OK(cudaFreeHost(pinned));
  expect_bytes(last, 8, BYTES);
  OK(cudaMemsetAsync(last, 9, BYTES, stream));
  OK(cudaFree(device));
  expect_bytes(last, 9, BYTES);
}
END_TEST

/* -------------------------------------------------------------------------------------------------------------- times */

static int64_t elapsed_ns(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  OK(cudaEventSynchronize(to));
  OK(cudaEventElapsedTime(&ms, from, to));
  return (int64_t)((double)ms * 1e6 + 0.5);
}

struct timed {
  bool from_device, to_device, pageable;
  enum vnode_copy_kind kind;
};

START_TEST(copies_take_their_modelled_time) {
  enum { BYTES = 16 << 20 };
  static const struct timed rows[] = {{false, true, false, VNODE_COPY_HOST_TO_DEVICE},
                                      {false, true, true, VNODE_COPY_HOST_TO_DEVICE},
                                      {true, false, false, VNODE_COPY_DEVICE_TO_HOST},
                                      {true, false, true, VNODE_COPY_DEVICE_TO_HOST},
                                      {true, true, false, VNODE_COPY_WITHIN_DEVICE}};
  unsigned char *pinned = pinned_alloc(BYTES, 0), *pageable = malloc(BYTES), *one = device_alloc(BYTES),
                *two = device_alloc(BYTES);
  cudaStream_t stream = make_stream();
  cudaEvent_t from, to;
  OK(cudaEventCreate(&from));
  OK(cudaEventCreate(&to));
  memset(pageable, 0, BYTES);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    unsigned char *host = rows[i].pageable ? pageable : pinned;
    vnode_host_charge(1000000000); /* the stream has nothing to do when the copy comes, and its last work long ended */
    for (int j = 0; j < 8; j++)    /* so that the stream gets to the copy after the host */
      OK(cudaMemsetAsync(two, 0, BYTES, stream));
    OK(cudaEventRecord(from, stream));
    int64_t before_ns = vnode_host_now_ns();
    OK(cudaMemcpyAsync(rows[i].to_device ? one : host, rows[i].from_device ? two : host, BYTES, cudaMemcpyDefault, stream));
    int64_t host_ns = vnode_host_now_ns() - before_ns;
    OK(cudaEventRecord(to, stream));
    int64_t want_ns = vnode_model_copy_ns(rows[i].kind, BYTES, !rows[i].pageable), got_ns = elapsed_ns(from, to);
    /* The host is back only at the end of a pageable download: the second record comes after it. */
    int64_t late_ns = rows[i].pageable && rows[i].from_device ? 5000 : 0, rounding_ns = 1;
    ck_assert_msg(want_ns > 0 && got_ns >= want_ns - rounding_ns && got_ns <= want_ns + late_ns + rounding_ns,
                  "row %zu: %lld ns, not %lld", i, (long long)got_ns, (long long)want_ns);
    ck_assert_msg((host_ns >= want_ns) == rows[i].pageable, "row %zu: the host was busy for %lld of %lld ns", i,
                  (long long)host_ns, (long long)want_ns);
  }
}
END_TEST

/* -------------------------------------------------------------------------------------------------------------- pools */

static cudaMemPool_t keeping_pool(void) {
  cudaMemPool_t pool;
  uint64_t threshold = UINT64_MAX;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return pool;
}

/* A block goes from stream to stream while the first is held up: the second has to wait for it. */
START_TEST(reuse_on_another_stream_waits_for_the_free) {
  enum { BYTES = 1 << 20 };
  static _Atomic bool gate; /* outlives the function that waits at it */
  cudaStream_t first = make_stream(), second = make_stream();
  unsigned char *block = NULL, *again = NULL, *copy = device_alloc(BYTES), back[BYTES];
  keeping_pool();
  OK(cudaMallocAsync((void **)&block, BYTES, first));
  OK(cudaMemsetAsync(block, 1, BYTES, first));
  close_gate(&gate, first);
  OK(cudaMemcpyAsync(copy, block, BYTES, cudaMemcpyDeviceToDevice, first));
  OK(cudaFreeAsync(block, first));
  OK(cudaMallocAsync((void **)&again, BYTES, second));
  ck_assert_ptr_eq(again, block);
  OK(cudaMemsetAsync(again, 2, BYTES, second));
  atomic_store(&gate, true);
  OK(cudaMemcpyAsync(back, again, BYTES, cudaMemcpyDeviceToHost, second));
  expect_bytes(back, 2, BYTES);
  OK(cudaMemcpyAsync(back, copy, BYTES, cudaMemcpyDeviceToHost, first));
  expect_bytes(back, 1, BYTES);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(reuse_is_kept_to_the_stream_when_dependencies_are_not_allowed) {
  int off = 0;
  cudaStream_t first = make_stream(), second = make_stream();
  static _Atomic bool gate; /* outlives the function that waits at it */
  void *block = NULL, *other = NULL, *again = NULL;
  cudaMemPool_t pool = keeping_pool();
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &off));
  OK(cudaMallocAsync(&block, MIB, first));
  close_gate(&gate, first);
  OK(cudaFreeAsync(block, first));
  OK(cudaMallocAsync(&other, MIB, second));
  if (is_late())
    ck_assert_ptr_ne(other, block);
  atomic_store(&gate, true);
  OK(cudaFreeAsync(other, second));
  OK(cudaMallocAsync(&again, MIB, first));
  ck_assert_ptr_eq(again, block);
}
END_TEST

/* What a block held is gone when the stream has freed it; new memory never held anything. */
START_TEST(freed_and_fresh_memory_is_poisoned_in_late_orders) {
  enum { BYTES = 1 << 20 };
  cudaStream_t stream = make_stream();
  unsigned char *block = NULL, *again = NULL, *fresh = device_alloc(BYTES), back[BYTES];
  keeping_pool();
  OK(cudaMallocAsync((void **)&block, BYTES, stream));
  OK(cudaMemsetAsync(block, 1, BYTES, stream));
  OK(cudaFreeAsync(block, stream));
  OK(cudaMallocAsync((void **)&again, BYTES, stream));
  ck_assert_ptr_eq(again, block);
  OK(cudaMemcpyAsync(back, again, BYTES, cudaMemcpyDeviceToHost, stream));
  expect_bytes(back, is_late() ? VNODE_POISON : 1, BYTES);
  expect_bytes(fresh, is_late() ? VNODE_POISON : 0, BYTES);
}
END_TEST

/* Memory above the threshold goes back when the host has waited behind its free, not before. */
START_TEST(pools_give_back_behind_the_free) {
  static _Atomic bool gate; /* outlives the function that waits at it */
  cudaStream_t stream = make_stream(), other = make_stream();
  cudaMemPool_t pool;
  void *block = NULL;
  uint64_t reserved = 0;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  OK(cudaMallocAsync(&block, 2 * MIB, stream));
  close_gate(&gate, stream);
  OK(cudaFreeAsync(block, stream));
  if (is_late()) {
    OK(cudaStreamSynchronize(other));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    ck_assert_uint_eq(reserved, 2 * MIB);
  }
  atomic_store(&gate, true);
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  ck_assert_uint_eq(reserved, 0);
}
END_TEST

/* Used on another stream that knows nothing of the allocation. */
START_TEST(use_before_the_allocation_is_a_race) {
  cudaStream_t stream = make_stream(), other = make_stream();
  void *block = NULL;
  OK(cudaMallocAsync(&block, MIB, stream));
  OK(cudaMemsetAsync(block, 0, MIB, other));
  OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(vnode_race_count(), is_late() ? 1 : 0);
}
END_TEST

/* ------------------------------------------------------------------------------------------------------------- graphs */

/* In a graph nothing is staged: memory is read and written at every launch, and blocks come and go with it. */
START_TEST(graphs_copy_when_they_run) {
  enum { BYTES = 4096 };
  cudaStream_t stream = make_stream();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  unsigned char *device = device_alloc(BYTES), *block = NULL, host[BYTES], back[BYTES];
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMallocAsync((void **)&block, BYTES, stream));
  OK(cudaMemcpyAsync(block, host, BYTES, cudaMemcpyHostToDevice, stream));
  OK(cudaMemcpyAsync(device, block, BYTES, cudaMemcpyDeviceToDevice, stream));
  OK(cudaMemcpyAsync(back, device, BYTES, cudaMemcpyDeviceToHost, stream));
  OK(cudaFreeAsync(block, stream));
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 1; launch <= 3; launch++) {
    memset(host, launch, BYTES);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    expect_bytes(back, launch, BYTES);
  }
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
}
END_TEST

START_TEST(what_waits_is_refused_beside_a_capture) {
  unsigned char host[16], *device = device_alloc(16);
  void *more = NULL;
  for (int i = 0; i < 4; i++) {
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    OK(cudaStreamCreate(&stream)); /* blocking: the default stream would wait for it */
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaError_t error = i == 0   ? cudaMemcpy(host, device, 16, cudaMemcpyDeviceToHost)
                        : i == 1 ? cudaMemset(device, 0, 16)
                        : i == 2 ? cudaMalloc(&more, 16)
                                 : cudaFree(device);
    ck_assert_int_eq(error, i < 2 ? cudaErrorStreamCaptureImplicit : cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    cudaGetLastError();
  }
  OK(cudaFree(device));
}
END_TEST

int main(void) {
  const TTest *const tests[] = {pageable_sources_are_read_before_the_call_returns,
                                pageable_sources_are_staged_behind_a_stream_that_is_held_up,
                                pinned_sources_are_read_when_the_copy_runs,
                                pinned_targets_are_written_when_the_copy_runs,
                                synchronous_calls_wait,
                                freeing_waits_for_the_device,
                                copies_take_their_modelled_time,
                                reuse_on_another_stream_waits_for_the_free,
                                reuse_is_kept_to_the_stream_when_dependencies_are_not_allowed,
                                freed_and_fresh_memory_is_poisoned_in_late_orders,
                                pools_give_back_behind_the_free,
                                use_before_the_allocation_is_a_race,
                                graphs_copy_when_they_run,
                                what_waits_is_refused_beside_a_capture};
  return run_tests("copies", tests, sizeof tests / sizeof *tests);
}
