/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in streams, in every order: modelled times, several streams and communicators, graphs, and ends in between. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "graph.h"
#include "model.h"
#include "ranks.h"

static bool is_eager(void) {
  return vnode_config()->order == VNODE_ORDER_EAGER;
}

static uint32_t *device_words(struct rank *rank, size_t count) {
  void *base = NULL;
  CHECK(rank, vnode_memory_alloc(rank->rank, count * sizeof(uint32_t), VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base) == 0,
        "no memory");
  return base;
}

static struct vnode_stream *stream_make(struct rank *rank) {
  struct vnode_stream *stream = NULL;
  CHECK(rank, vnode_stream_create(1, 0, &stream) == VNODE_OK, "no stream"); /* non-blocking */
  return stream;
}

struct words {
  uint32_t *at, value;
  size_t count;
};

static void run_set(void *args) {
  const struct words *words = args;
  for (size_t i = 0; i < words->count; i++)
    words->at[i] = words->value;
}

static void run_add(void *args) {
  const struct words *words = args;
  for (size_t i = 0; i < words->count; i++)
    words->at[i] += words->value;
}

/* Sets, or adds to, words of device memory when the stream gets there; takes `duration_ns` of modelled time. */
static void put(struct vnode_stream *stream, vnode_work work, uint32_t *at, uint32_t value, size_t count,
                int64_t duration_ns) {
  struct words words = {.at = at, .value = value, .count = count};
  struct vnode_access access = {.at = at, .row_bytes = count * sizeof *at, .rows = 1, .write = true};
  vnode_op_submit(stream, &(struct vnode_op){.name = "put",
                                             .work = work,
                                             .args = &words,
                                             .args_bytes = sizeof words,
                                             .accesses = &access,
                                             .access_count = 1,
                                             .duration_ns = duration_ns});
}

static void expect(struct rank *rank, const uint32_t *at, uint32_t value, size_t count, const char *what) {
  for (size_t i = 0; i < count; i++)
    CHECK(rank, at[i] == value, "%s: word %zu is %u, expected %u", what, i, at[i], value);
}

/* All ranks get everybody's value. One that failed is not waited for until the time limit. */
static void exchange(struct rank *rank, int place, int64_t value, int64_t values[RANKS_MAX]) {
  enum { TRIES = 100000 };
  int tries = 0;
  _Atomic int64_t *board = rank->board->value[place];
  atomic_store(&board[rank->rank], value + 1); /* 0: not there yet */
  for (int r = 0; r < rank->nranks; r++) {
    while (!(values[r] = atomic_load(&board[r])) && tries++ < TRIES)
      usleep(200);
    CHECK(rank, values[r], "rank %d does not come to the exchange", r);
    values[r]--;
  }
}

static int64_t latest(const struct rank *rank, const int64_t values[RANKS_MAX]) {
  int64_t most = 0;
  for (int r = 0; r < rank->nranks; r++)
    most = values[r] > most ? values[r] : most;
  return most;
}

/* ---------------------------------------------------------------------------------------------------------- times */

static const int64_t ms = 1000000;

/* When the stream's work ends: the host's clock behind a wait from a time before. */
static int64_t end_of(struct vnode_stream *stream) {
  vnode_stream_synchronize(stream);
  return vnode_host_now_ns();
}

static void collective_times(struct rank *rank, const void *context) {
  enum { COUNT = 1 << 18 };
  int64_t values[RANKS_MAX];
  vnode_host_charge(rank->rank * 7 * ms); /* hosts that have come to different points */
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *stream = stream_make(rank);
  uint32_t *words = device_words(rank, COUNT);
  (void)context;
  exchange(rank, 0, vnode_host_now_ns(), values);
  CHECK(rank, latest(rank, values) >= (rank->nranks - 1) * 7 * ms && latest(rank, values) - values[rank->rank] < ms,
        "nobody leaves ncclCommInitRank before the last one has come");
  for (int round = 1; round <= 2; round++) {
    int64_t busy_ns = (rank->nranks - rank->rank) * 3 * ms; /* now rank 0 is last */
    put(stream, run_set, words, 1, COUNT, busy_ns);
    int64_t ready_ns = vnode_host_now_ns() + busy_ns;
    CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
    int64_t end_ns = end_of(stream), want_ns = vnode_model_collective_ns("AllReduce", rank->nranks, COUNT * 4);
    exchange(rank, 2 * round, ready_ns, values);
    CHECK(rank, want_ns > 0 && end_ns == latest(rank, values) + want_ns,
          "round %d: ended at %lld, ready at %lld, takes %lld", round, (long long)end_ns, (long long)latest(rank, values),
          (long long)want_ns);
    exchange(rank, 2 * round + 1, end_ns, values);
    CHECK(rank, values[0] == values[rank->nranks - 1], "ranks end at different times");
    expect(rank, words, (uint32_t)rank->nranks, COUNT, "sum");
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* Rank 0 sends to rank 1, which is 5 ms behind. */
static void message_times(struct rank *rank, const void *context) {
  static const size_t counts[] = {1 << 20, 256}; /* more than the buffers between them, and less */
  int64_t values[RANKS_MAX];
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *stream = stream_make(rank);
  uint32_t *words = device_words(rank, 1 << 20);
  (void)context;
  for (int i = 0; i < 2; i++) {
    int64_t busy_ns = rank->rank ? 5 * ms : ms;
    put(stream, run_set, words, (uint32_t)(rank->rank + i + 1), counts[i], busy_ns);
    int64_t ready_ns = vnode_host_now_ns() + busy_ns;
    if (rank->rank == 0)
      CHECK_OK(rank, ncclSend(words, counts[i], ncclUint32, 1, comm, (cudaStream_t)stream));
    else
      CHECK_OK(rank, ncclRecv(words, counts[i], ncclUint32, 0, comm, (cudaStream_t)stream));
    int64_t end_ns = end_of(stream), takes_ns = vnode_model_collective_ns("SendRecv", 2, counts[i] * 4);
    exchange(rank, i, ready_ns, values);
    bool waits = rank->rank || counts[i] > 256;
    int64_t start_ns = waits ? latest(rank, values) : ready_ns;
    CHECK(rank, takes_ns > 0 && end_ns == start_ns + takes_ns, "message %d ended at %lld, not at %lld + %lld", i,
          (long long)end_ns, (long long)start_ns, (long long)takes_ns);
    expect(rank, words, (uint32_t)(i + 1), counts[i], "message");
    exchange(rank, 2 + i, end_ns, values); /* hosts level again */
    vnode_host_charge(latest(rank, values) - vnode_host_now_ns());
  }
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* -------------------------------------------------------------------------------------------------------- streams */

/* One communicator on two streams: the second call's operation comes behind the first's, whoever waits for what. */
static void one_comm_two_streams(struct rank *rank, const void *context) {
  enum { COUNT = 1000, ROUNDS = 20 };
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *streams[2] = {stream_make(rank), stream_make(rank)};
  uint32_t *words = device_words(rank, COUNT);
  uint32_t want = 1;
  (void)context;
  put(streams[0], run_set, words, 1, COUNT, 0);
  for (int i = 0; i < ROUNDS; i++) { /* no event of the program orders these */
    CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)streams[i % 2]));
    want *= (uint32_t)rank->nranks;
  }
  for (int i = 0; i < 2; i++)
    vnode_stream_synchronize(streams[(i + rank->rank) % 2]);
  expect(rank, words, want, COUNT, "product");
  CHECK(rank, vnode_race_count() == 0, "%llu races", (unsigned long long)vnode_race_count());
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* Two communicators on two streams, and ranks that wait for them in opposite order, one of them on the host as well. */
static void two_comms_two_streams(struct rank *rank, const void *context) {
  enum { COUNT = 70000 };
  ncclComm_t comms[2] = {rank_comm(rank, 0), rank_comm(rank, 1)};
  struct vnode_stream *streams[2] = {stream_make(rank), stream_make(rank)};
  uint32_t *words[2] = {device_words(rank, COUNT), device_words(rank, COUNT)};
  int64_t values[RANKS_MAX];
  (void)context;
  for (int c = 0; c < 2; c++) {
    put(streams[c], run_set, words[c], (uint32_t)c + 1, COUNT, 0);
    CHECK_OK(rank, ncclAllReduce(words[c], words[c], COUNT, ncclUint32, ncclSum, comms[c], (cudaStream_t)streams[c]));
  }
  if (rank->rank == 0) {
    vnode_stream_synchronize(streams[1]); /* nobody else waits for anything yet */
    exchange(rank, 0, 0, values);
    vnode_stream_synchronize(streams[0]);
  } else {
    exchange(rank, 0, 0, values);
    vnode_stream_synchronize(streams[0]);
    vnode_stream_synchronize(streams[1]);
  }
  for (int c = 0; c < 2; c++) {
    expect(rank, words[c], (uint32_t)((c + 1) * rank->nranks), COUNT, "sum");
    CHECK_OK(rank, ncclCommDestroy(comms[c]));
  }
}

/* A group with messages on two streams waits for both, and both wait for it. */
static void group_on_two_streams(struct rank *rank, const void *context) {
  enum { COUNT = 300000 };
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *first = stream_make(rank), *second = stream_make(rank);
  uint32_t *out = device_words(rank, COUNT), *in = device_words(rank, COUNT);
  int next = (rank->rank + 1) % rank->nranks, before = (rank->rank + rank->nranks - 1) % rank->nranks;
  (void)context;
  put(second, run_set, out, (uint32_t)rank->rank + 1, COUNT, 4 * ms); /* what `first` sends */
  CHECK_OK(rank, ncclGroupStart());
  CHECK_OK(rank, ncclSend(out, COUNT, ncclUint32, next, comm, (cudaStream_t)first));
  CHECK_OK(rank, ncclRecv(in, COUNT, ncclUint32, before, comm, (cudaStream_t)second));
  CHECK_OK(rank, ncclGroupEnd());
  put(first, run_add, in, 1000, COUNT, 0); /* what `second` received */
  put(second, run_set, out, 0, COUNT, 0);  /* what `first` has sent */
  int64_t end_ns = end_of(first);
  CHECK(rank, end_ns >= 4 * ms + vnode_model_collective_ns("SendRecv", 2, COUNT * 4), "the first stream ended at %lld",
        (long long)end_ns);
  vnode_stream_synchronize(second);
  expect(rank, in, (uint32_t)before + 1001, COUNT, "message");
  CHECK(rank, vnode_race_count() == 0, "%llu races", (unsigned long long)vnode_race_count());
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* A collective whose input another stream still writes is found, and only that. */
static void unordered_input(struct rank *rank, const void *context) {
  enum { COUNT = 100 };
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *writer = stream_make(rank), *stream = stream_make(rank);
  uint32_t *words = device_words(rank, COUNT), *sums = device_words(rank, COUNT);
  (void)context;
  put(writer, run_set, words, 1, COUNT, 0);
  CHECK_OK(rank, ncclAllReduce(words, sums, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
  vnode_device_synchronize(rank->rank);
  CHECK(rank, vnode_race_count() == (is_eager() ? 0 : 1), "%llu races", (unsigned long long)vnode_race_count());
  CHECK_OK(rank, ncclCommDestroy(comm));
}

/* --------------------------------------------------------------------------------------------------------- graphs */

static uint64_t nccl_bytes(int device) {
  uint64_t current = 0, peak = 0;
  vnode_ledger_memory(device, VNODE_OWNER_NCCL, &current, &peak);
  return current;
}

static struct vnode_graph_exec *capture(struct rank *rank, struct vnode_stream *stream, ncclComm_t comm, uint32_t *words,
                                        uint32_t *in, size_t count) {
  struct vnode_graph *graph = NULL;
  struct vnode_graph_exec *exec = NULL;
  int next = (rank->rank + 1) % rank->nranks, before = (rank->rank + rank->nranks - 1) % rank->nranks;
  CHECK(rank, vnode_capture_begin(stream, NULL, NULL, 0, VNODE_CAPTURE_GLOBAL) == VNODE_OK, "begin");
  put(stream, run_add, words, (uint32_t)rank->rank, count, 0);
  CHECK_OK(rank, ncclAllReduce(words, words, count, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
  CHECK_OK(rank, ncclGroupStart());
  CHECK_OK(rank, ncclSend(words, count, ncclUint32, next, comm, (cudaStream_t)stream));
  CHECK_OK(rank, ncclRecv(in, count, ncclUint32, before, comm, (cudaStream_t)stream));
  CHECK_OK(rank, ncclGroupEnd());
  CHECK(rank, vnode_capture_end(stream, &graph) == VNODE_OK, "end");
  CHECK(rank, vnode_graph_instantiate(graph, 0, &exec, NULL) == VNODE_OK, "instantiate");
  CHECK(rank, vnode_graph_destroy(graph) == VNODE_OK, "destroy");
  return exec;
}

/* Launches between calls, all in one sequence; the graph keeps the communicator after its handle is gone. */
static void graphs(struct rank *rank, const void *context) {
  enum { COUNT = 200000, LAUNCHES = 4 };
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *stream = stream_make(rank);
  uint32_t *words = device_words(rank, COUNT), *in = device_words(rank, COUNT);
  uint32_t n = (uint32_t)rank->nranks, ranks_sum = n * (n - 1) / 2, want = 1;
  (void)context;
  put(stream, run_set, words, 1, COUNT, 0);
  struct vnode_graph_exec *exec = capture(rank, stream, comm, words, in, COUNT);
  for (int i = 0; i < LAUNCHES; i++) {
    CHECK(rank, vnode_graph_launch(exec, stream) == VNODE_OK, "launch");
    want = want * n + ranks_sum;
    if (i < LAUNCHES / 2) {
      CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclMax, comm, (cudaStream_t)stream));
    } else if (comm) {
      CHECK_OK(rank, ncclCommDestroy(comm));
      comm = NULL;
      CHECK(rank, nccl_bytes(rank->rank) > 0, "the graph lost its communicator");
    }
  }
  vnode_stream_synchronize(stream);
  expect(rank, words, want, COUNT, "after the launches");
  expect(rank, in, want, COUNT, "message of the last launch");
  CHECK(rank, vnode_race_count() == 0, "%llu races", (unsigned long long)vnode_race_count());
  CHECK(rank, vnode_exec_destroy(exec) == VNODE_OK, "destroy");
  CHECK_OK(rank, ncclCommDestroy(NULL)); /* any call */
  CHECK(rank, nccl_bytes(rank->rank) == 0, "%llu bytes are left", (unsigned long long)nccl_bytes(rank->rank));
}

/* ----------------------------------------------------------------------------------------------------------- ends */

/* What was submitted is complete when the communicator is destroyed, though nobody waited. */
static void destroy_flushes(struct rank *rank, const void *context) {
  enum { COUNT = 50000 };
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *stream = stream_make(rank);
  uint32_t *words = device_words(rank, COUNT);
  (void)context;
  put(stream, run_set, words, 3, COUNT, 0);
  CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
  CHECK_OK(rank, ncclCommFinalize(comm));
  expect(rank, words, 3 * (uint32_t)rank->nranks, COUNT, "sum after finalize");
  CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
  CHECK_OK(rank, ncclCommDestroy(comm));
  expect(rank, words, 3 * (uint32_t)(rank->nranks * rank->nranks), COUNT, "sum after destroy");
  CHECK(rank, nccl_bytes(rank->rank) == 0, "%llu bytes are left", (unsigned long long)nccl_bytes(rank->rank));
}

/* Rank 1 never comes. Rank 0 has one collective that runs, one behind it, and one of another communicator that is as stuck:
   aborting the first communicator ends its operations, without waiting for the other. */
static void abort_late(struct rank *rank, const void *context) {
  enum { COUNT = 100 };
  ncclComm_t comm = rank_comm(rank, 0), other = rank_comm(rank, 1);
  int64_t values[RANKS_MAX];
  (void)context;
  if (is_eager())
    return; /* the first call would wait: test_life has that case */
  if (rank->rank == 0) {
    struct vnode_stream *stream = stream_make(rank), *stuck = stream_make(rank);
    uint32_t *words = device_words(rank, COUNT), *more = device_words(rank, COUNT);
    ncclResult_t error = ncclSuccess;
    CHECK_OK(rank, ncclAllReduce(more, more, COUNT, ncclUint32, ncclSum, other, (cudaStream_t)stuck));
    for (int i = 0; i < 2; i++)
      CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
    put(stream, run_set, words, 5, COUNT, 0);
    usleep(100000); /* until the node has started what it can */
    CHECK(rank, !vnode_stream_idle(stream), "a collective ended without its partner");
    CHECK_OK(rank, ncclCommGetAsyncError(comm, &error));
    CHECK_CODE(rank, error, ncclSuccess);
    CHECK_OK(rank, ncclCommAbort(comm));
    vnode_stream_synchronize(stream);
    expect(rank, words, 5, COUNT, "the stream goes on");
    CHECK(rank, !vnode_stream_idle(stuck), "the other communicator went on, too");
    CHECK_OK(rank, ncclCommAbort(other));
    vnode_stream_synchronize(stuck);
    CHECK(rank, nccl_bytes(0) == 0, "%llu bytes are left", (unsigned long long)nccl_bytes(0));
  }
  exchange(rank, 0, 0, values);
}

/* The process ends while a thread of the node waits in a collective, and the others learn of it. */
static void exit_pending(struct rank *rank, const void *context) {
  enum { COUNT = 100 };
  ncclComm_t comm = rank_comm(rank, 0);
  struct vnode_stream *stream = stream_make(rank);
  uint32_t *words = device_words(rank, COUNT);
  ncclResult_t error = ncclSuccess;
  (void)context;
  if (is_eager())
    return;
  if (rank->rank == 1) { /* never comes, but waits for a message from the one that goes */
    CHECK_OK(rank, ncclRecv(words, COUNT, ncclUint32, 0, comm, (cudaStream_t)stream));
    vnode_stream_synchronize(stream);
    CHECK_OK(rank, ncclCommGetAsyncError(comm, &error));
    CHECK_CODE(rank, error, ncclRemoteError);
    return;
  }
  CHECK_OK(rank, ncclAllReduce(words, words, COUNT, ncclUint32, ncclSum, comm, (cudaStream_t)stream));
  usleep(100000);
  exit(0);
}

/* --------------------------------------------------------------------------------------------------------- running */

static const struct {
  const char *name;
  rank_main run;
  int nranks;
} cases[] = {
    {"collective times", collective_times, 3},
    {"message times", message_times, 2},
    {"one communicator on two streams", one_comm_two_streams, 3},
    {"two communicators on two streams", two_comms_two_streams, 2},
    {"group on two streams", group_on_two_streams, 3},
    {"unordered input", unordered_input, 2},
    {"graphs", graphs, 3},
    {"destroy flushes", destroy_flushes, 2},
    {"abort of late operations", abort_late, 2},
    {"exit with a pending collective", exit_pending, 2},
};

START_TEST(test_case) {
  printf("%s\n", cases[_i].name);
  ranks_run(cases[_i].nranks, cases[_i].run, NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl streams");
  TCase *tests = tcase_create("streams");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_loop_test(tests, test_case, 0, sizeof cases / sizeof *cases);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
