/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capture and graphs through the runtime and the driver, in all orders (B200OPT_VNODE_ORDER). Status codes are those of the
 * CUDA programming guide and of cuda_runtime_api.h.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "graph.h"
#include "vnode_test.h"

#define OK(call) ck_assert_int_eq(call, cudaSuccess)
#define GIVES(call, code) ck_assert_int_eq(call, code)

enum { N = 1024 }; /* elements of each buffer */

static struct vnode_stream *engine(cudaStream_t stream) {
  return (struct vnode_stream *)stream;
}

/* ------------------------------------------------------------------------------------------- operations */

/* to[i] = from[i] * factor + add */
struct axpb {
  int *to;
  const int *from;
  int factor, add;
};

static void run_axpb(void *args) {
  const struct axpb *own = args;
  for (int i = 0; i < N; i++)
    own->to[i] = own->from[i] * own->factor + own->add;
}

static enum vnode_status submit(cudaStream_t stream, const struct axpb *args, int64_t duration_ns, void (*drop)(void *)) {
  const struct vnode_access accesses[] = {{.at = args->from, .row_bytes = N * sizeof(int), .rows = 1},
                                          {.at = args->to, .row_bytes = N * sizeof(int), .rows = 1, .write = true}};
  const struct vnode_op op = {.name = "axpb",
                              .work = run_axpb,
                              .args = args,
                              .args_bytes = sizeof *args,
                              .drop = drop,
                              .accesses = accesses,
                              .access_count = 2,
                              .duration_ns = duration_ns};
  return vnode_op_submit(engine(stream), &op);
}

static void axpb(cudaStream_t stream, int *to, const int *from, int factor, int add) {
  ck_assert_int_eq(submit(stream, &(struct axpb){to, from, factor, add}, 1000, NULL), VNODE_OK);
}

static int *device_ints(void) {
  int *ints = NULL;
  OK(cudaMalloc((void **)&ints, N * sizeof(int)));
  OK(cudaMemset(ints, 0, N * sizeof(int)));
  OK(cudaDeviceSynchronize());
  return ints;
}

static int first_of(const int *device) {
  int host[N];
  OK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 1; i < N; i++)
    ck_assert_int_eq(host[i], host[0]);
  return host[0];
}

static void set_all(int *device, int value) {
  int host[N];
  for (int i = 0; i < N; i++)
    host[i] = value;
  OK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
  OK(cudaDeviceSynchronize()); /* the call need not have waited for the copy itself */
}

/* What a test leaves is given back at its end, so that what leaks is the node's. */
enum kind { STREAM, EVENT, GRAPH, EXEC };
static struct {
  enum kind kind;
  void *handle;
} kept[8192];
static atomic_size_t kept_count;

static void give_back(void) {
  cudaDeviceSynchronize();
  for (size_t i = kept_count; i--;)
    if (kept[i].kind == STREAM)
      cudaStreamDestroy(kept[i].handle);
    else if (kept[i].kind == EVENT)
      cudaEventDestroy(kept[i].handle);
    else if (kept[i].kind == GRAPH)
      cudaGraphDestroy(kept[i].handle);
    else
      cudaGraphExecDestroy(kept[i].handle);
}

static void *keep(enum kind kind, void *handle) {
  size_t index = atomic_fetch_add(&kept_count, 1);
  ck_assert_uint_lt(index, sizeof kept / sizeof *kept);
  if (!index)
    atexit(give_back);
  kept[index].kind = kind;
  kept[index].handle = handle;
  return handle;
}

static cudaStream_t make_stream(unsigned flags) {
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, flags));
  return keep(STREAM, stream);
}

static cudaEvent_t make_event(void) {
  cudaEvent_t event;
  OK(cudaEventCreate(&event));
  return keep(EVENT, event);
}

static cudaStream_t begin(enum cudaStreamCaptureMode mode) {
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  OK(cudaStreamBeginCapture(stream, mode));
  return stream;
}

static cudaGraph_t end(cudaStream_t stream) {
  cudaGraph_t graph = NULL;
  OK(cudaStreamEndCapture(stream, &graph));
  ck_assert_ptr_nonnull(graph);
  return keep(GRAPH, graph);
}

static cudaGraph_t make_graph(void) {
  cudaGraph_t graph = NULL;
  OK(cudaGraphCreate(&graph, 0));
  return keep(GRAPH, graph);
}

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = NULL;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  return keep(EXEC, exec);
}

static void join(cudaStream_t from, cudaStream_t to) {
  cudaEvent_t event = make_event();
  OK(cudaEventRecord(event, from));
  OK(cudaStreamWaitEvent(to, event, 0));
  OK(cudaEventDestroy(event));
}

static size_t node_count(cudaGraph_t graph) {
  size_t count = 0;
  OK(cudaGraphGetNodes(graph, NULL, &count));
  return count;
}

static enum cudaStreamCaptureStatus state_of(cudaStream_t stream) {
  enum cudaStreamCaptureStatus state;
  OK(cudaStreamIsCapturing(stream, &state));
  return state;
}

/* The capture has been spoilt; it ends with that and the stream works again. */
static void expect_spoilt(cudaStream_t stream) {
  cudaGraph_t graph = (cudaGraph_t)(void *)1;
  ck_assert_int_eq(state_of(stream), cudaStreamCaptureStatusInvalidated);
  GIVES(cudaLaunchHostFunc(stream, (cudaHostFn_t)free, NULL), cudaErrorStreamCaptureInvalidated);
  GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  ck_assert_ptr_null(graph);
  ck_assert_int_eq(state_of(stream), cudaStreamCaptureStatusNone);
}

/* ------------------------------------------------------------------------------------------- capture and replay */

START_TEST(nothing_runs_while_capturing_and_all_at_each_launch) {
  int *a = device_ints(), *b = device_ints(), *c = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  ck_assert_int_eq(state_of(stream), cudaStreamCaptureStatusActive);
  axpb(stream, b, a, 3, 1);
  axpb(stream, c, b, 2, 0);
  cudaGraph_t graph = end(stream);
  ck_assert_uint_eq(node_count(graph), 2);
  ck_assert_int_eq(first_of(c), 0);
  cudaGraphExec_t exec = instantiate(graph);
  ck_assert_int_eq(first_of(c), 0);
  OK(cudaGraphDestroy(graph)); /* the exec holds what it needs */
  for (int i = 0; i < 100; i++) {
    set_all(a, i);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(first_of(c), (i * 3 + 1) * 2);
  }
  OK(cudaGraphExecDestroy(exec));
  GIVES(cudaGraphLaunch(exec, stream), cudaErrorInvalidValue);
  GIVES(cudaGraphExecDestroy(exec), cudaErrorInvalidValue);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(launches_of_an_exec_follow_each_other_on_any_streams) {
  int *a = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), other = make_stream(cudaStreamNonBlocking);
  axpb(stream, a, a, 1, 1);
  cudaGraphExec_t exec = instantiate(end(stream));
  for (int i = 0; i < 20; i++)
    OK(cudaGraphLaunch(exec, i % 3 ? stream : other));
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(first_of(a), 20);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(branches_join_and_keep_their_order) {
  int *a = device_ints(), *b = device_ints(), *c = device_ints(), *d = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), side = make_stream(cudaStreamNonBlocking);
  axpb(stream, a, a, 1, 1);
  join(stream, side);
  ck_assert_int_eq(state_of(side), cudaStreamCaptureStatusActive);
  axpb(side, b, a, 10, 0);
  axpb(side, b, b, 10, 0);
  axpb(stream, c, a, 7, 0);
  join(side, stream);
  ck_assert_int_eq(submit(stream, &(struct axpb){d, b, 1, 0}, 1000, NULL), VNODE_OK);
  axpb(stream, d, c, 1, 5);
  cudaGraph_t graph = end(stream);
  ck_assert_int_eq(state_of(side), cudaStreamCaptureStatusNone);
  size_t edges = 0, roots = 0;
  OK(cudaGraphGetEdges(graph, NULL, NULL, NULL, &edges));
  OK(cudaGraphGetRootNodes(graph, NULL, &roots));
  ck_assert_uint_eq(node_count(graph), 6);
  ck_assert_uint_eq(edges, 6); /* 0>1 1>2 0>3 2>4 3>4 4>5 */
  ck_assert_uint_eq(roots, 1);
  cudaGraphExec_t exec = instantiate(graph);
  for (int i = 1; i <= 10; i++) {
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(first_of(b), 100 * i);
    ck_assert_int_eq(first_of(d), 7 * i + 5);
  }
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

/* The capture has no join where the program forgot it: in the late orders the checker sees the race of the branches. */
START_TEST(branches_without_an_edge_are_a_race) {
  if (vnode_config()->order == VNODE_ORDER_EAGER)
    return;
  int *a = device_ints(), *b = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), side = make_stream(cudaStreamNonBlocking);
  axpb(stream, a, a, 1, 1);
  join(stream, side);
  axpb(side, b, a, 1, 0);
  axpb(stream, a, b, 1, 0); /* reads b while the side writes it, writes a while the side reads it */
  join(side, stream);
  cudaGraphExec_t exec = instantiate(end(stream));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_uint_ge(vnode_race_count(), 1);
}
END_TEST

/* A fork from an empty capture: two roots, both behind what the launching stream did before. */
START_TEST(all_roots_wait_for_the_launching_stream) {
  int *a = device_ints(), *b = device_ints(), *c = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), side = make_stream(cudaStreamNonBlocking);
  join(stream, side);
  axpb(stream, b, a, 1, 0);
  axpb(side, c, a, 1, 0);
  join(side, stream);
  cudaGraph_t graph = end(stream);
  size_t roots = 0;
  OK(cudaGraphGetRootNodes(graph, NULL, &roots));
  ck_assert_uint_eq(roots, 2);
  cudaGraphExec_t exec = instantiate(graph);
  for (int i = 1; i < 6; i++) {
    axpb(stream, a, a, 1, 1);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(first_of(b), i);
    ck_assert_int_eq(first_of(c), i);
  }
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

static void note_device(void *device) {
  **(int **)device = vnode_device_current();
}

START_TEST(a_node_runs_on_the_device_it_was_captured_on) {
  int device = -1, *at = &device;
  OK(cudaSetDevice(1));
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  const struct vnode_op op = {.name = "note device", .work = note_device, .args = &at, .args_bytes = sizeof at};
  ck_assert_int_eq(vnode_op_submit(engine(stream), &op), VNODE_OK);
  cudaGraphExec_t exec = instantiate(end(stream));
  OK(cudaSetDevice(0));
  cudaStream_t other = make_stream(cudaStreamNonBlocking);
  OK(cudaGraphLaunch(exec, other));
  OK(cudaStreamSynchronize(other));
  ck_assert_int_eq(device, 1);
  ck_assert_int_eq(vnode_device_current(), 0);
}
END_TEST

START_TEST(what_follows_a_launch_waits_for_all_branches) {
  int *a = device_ints(), *b[8], *sum = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), sides[8];
  axpb(stream, a, a, 1, 1);
  for (int i = 0; i < 8; i++) {
    b[i] = NULL;
    sides[i] = make_stream(cudaStreamNonBlocking);
    join(stream, sides[i]);
  }
  OK(cudaThreadExchangeStreamCaptureMode(&(enum cudaStreamCaptureMode){cudaStreamCaptureModeRelaxed}));
  for (int i = 0; i < 8; i++) {
    OK(cudaMalloc((void **)&b[i], N * sizeof(int)));
    axpb(sides[i], b[i], a, i, 0);
  }
  for (int i = 0; i < 8; i++)
    join(sides[i], stream);
  cudaGraphExec_t exec = instantiate(end(stream));
  for (int round = 1; round < 5; round++) {
    OK(cudaGraphLaunch(exec, stream));
    for (int i = 0; i < 8; i++)
      axpb(stream, sum, b[i], 1, 0);
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(first_of(sum), 7 * round);
  }
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(copies_and_fills_read_and_write_at_the_launch) {
  int *device = device_ints(), source = 0, back = 0, *pinned = NULL;
  OK(cudaMallocHost((void **)&pinned, sizeof *pinned));
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  OK(cudaMemsetAsync(device, 0x11, N * sizeof(int), stream));
  OK(cudaMemcpyAsync(device, &source, sizeof source, cudaMemcpyHostToDevice, stream)); /* pageable: read at the launch */
  OK(cudaMemcpyAsync(&back, device, sizeof back, cudaMemcpyDeviceToHost, stream));
  OK(cudaMemcpyAsync(pinned, device + 1, sizeof *pinned, cudaMemcpyDeviceToHost, stream));
  cudaGraph_t graph = end(stream);
  cudaGraphNode_t nodes[4];
  size_t count = 4;
  OK(cudaGraphGetNodes(graph, nodes, &count));
  enum cudaGraphNodeType type;
  OK(cudaGraphNodeGetType(nodes[0], &type));
  ck_assert_int_eq(type, cudaGraphNodeTypeMemset);
  OK(cudaGraphNodeGetType(nodes[1], &type));
  ck_assert_int_eq(type, cudaGraphNodeTypeMemcpy);
  cudaGraphExec_t exec = instantiate(graph);
  for (int i = 1; i < 5; i++) {
    source = i;
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(back, i);
    ck_assert_int_eq(*pinned, 0x11111111);
    *pinned = 0;
  }
}
END_TEST

static void count_up(void *counter) {
  ++*(int *)counter;
}

START_TEST(host_functions_and_child_graphs_run_in_their_place) {
  int *a = device_ints(), calls = 0;
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  axpb(stream, a, a, 2, 0);
  axpb(stream, a, a, 1, 1);
  cudaGraphExec_t inner = instantiate(end(stream)); /* a = 2a + 1 */
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  axpb(stream, a, a, 0, 3);
  OK(cudaGraphLaunch(inner, stream)); /* becomes a child node */
  OK(cudaLaunchHostFunc(stream, count_up, &calls));
  OK(cudaGraphLaunch(inner, stream));
  cudaGraph_t outer = end(stream);
  ck_assert_uint_eq(node_count(outer), 4);
  ck_assert_int_eq(calls, 0);
  OK(cudaGraphExecDestroy(inner));
  cudaGraphExec_t exec = instantiate(outer);
  for (int i = 1; i < 4; i++) {
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(calls, i);
    ck_assert_int_eq(first_of(a), 15);
  }
}
END_TEST

START_TEST(capture_info_and_dependencies) {
  int *a = device_ints(), *b = device_ints();
  enum cudaStreamCaptureStatus state;
  unsigned long long id = 0, id_side = 0;
  cudaGraph_t graph = NULL;
  const cudaGraphNode_t *nodes = NULL;
  const cudaGraphEdgeData *edges = NULL;
  size_t count = 9;
  cudaStream_t stream = make_stream(cudaStreamNonBlocking), side = make_stream(cudaStreamNonBlocking);
  OK(cudaStreamGetCaptureInfo(stream, &state, &id, &graph, &nodes, &edges, &count));
  ck_assert_int_eq(state, cudaStreamCaptureStatusNone);
  GIVES(cudaStreamGetCaptureInfo(stream, NULL, &id, NULL, NULL, NULL, NULL), cudaErrorInvalidValue);
  GIVES(cudaStreamUpdateCaptureDependencies(stream, NULL, NULL, 0, 0), cudaErrorIllegalState);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  axpb(stream, a, a, 1, 1);
  join(stream, side);
  OK(cudaStreamGetCaptureInfo(stream, &state, &id, &graph, &nodes, &edges, &count));
  OK(cudaStreamGetCaptureInfo(side, &state, &id_side, NULL, NULL, NULL, NULL));
  ck_assert_int_eq(state, cudaStreamCaptureStatusActive);
  ck_assert_uint_eq(id, id_side);
  ck_assert_uint_ne(id, 0);
  ck_assert_uint_eq(count, 1);
  ck_assert_uint_eq(edges[0].type, 0);
  GIVES(cudaGraphDestroy(graph), cudaErrorInvalidValue); /* while it is captured into */
  GIVES(cudaGraphDestroyNode(nodes[0]), cudaErrorInvalidValue);
  cudaGraphNode_t first = nodes[0], empty = NULL, wrong = NULL;
  OK(cudaGraphAddEmptyNode(&empty, graph, &first, 1));
  GIVES(cudaStreamUpdateCaptureDependencies(stream, &empty, NULL, 1, 7), cudaErrorInvalidValue);
  GIVES(cudaStreamUpdateCaptureDependencies(stream, NULL, NULL, 1, 0), cudaErrorInvalidValue);
  GIVES(cudaStreamUpdateCaptureDependencies(stream, &wrong, NULL, 1, 0), cudaErrorInvalidValue);
  OK(cudaStreamUpdateCaptureDependencies(stream, &empty, NULL, 1, cudaStreamAddCaptureDependencies));
  OK(cudaStreamGetCaptureInfo(stream, &state, NULL, NULL, &nodes, NULL, &count));
  ck_assert_uint_eq(count, 2);
  OK(cudaStreamUpdateCaptureDependencies(stream, &empty, NULL, 1, cudaStreamSetCaptureDependencies));
  OK(cudaStreamGetCaptureInfo(stream, &state, NULL, NULL, &nodes, NULL, &count));
  ck_assert_uint_eq(count, 1);
  axpb(stream, b, a, 1, 0);
  /* a node that was added by hand and that nothing comes after is no fork that was not joined */
  OK(cudaGraphAddEmptyNode(&empty, graph, &first, 1));
  OK(cudaGraphDestroy(end(stream)));
}
END_TEST

START_TEST(capture_into_a_graph_that_is_there) {
  int *a = device_ints();
  cudaGraph_t graph = NULL, ended = NULL, other = NULL;
  cudaGraphNode_t first = NULL, before = NULL;
  size_t count = 1;
  graph = make_graph();
  other = make_graph();
  OK(cudaGraphAddEmptyNode(&first, graph, NULL, 0));
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  GIVES(cudaStreamBeginCaptureToGraph(stream, other, &first, NULL, 1, cudaStreamCaptureModeGlobal), cudaErrorInvalidValue);
  GIVES(cudaStreamBeginCaptureToGraph(stream, NULL, NULL, NULL, 0, cudaStreamCaptureModeGlobal), cudaErrorInvalidValue);
  OK(cudaStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, cudaStreamCaptureModeGlobal));
  axpb(stream, a, a, 1, 4);
  OK(cudaStreamEndCapture(stream, &ended));
  ck_assert_ptr_eq(ended, graph);
  cudaGraphNode_t nodes[2];
  size_t both = 2;
  OK(cudaGraphGetNodes(graph, nodes, &both));
  OK(cudaGraphNodeGetDependencies(nodes[1], &before, NULL, &count));
  ck_assert_ptr_eq(before, first);
  OK(cudaStreamBeginCaptureToGraph(stream, graph, nodes + 1, NULL, 1, cudaStreamCaptureModeGlobal));
  GIVES(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  GIVES(cudaStreamEndCapture(stream, &ended), cudaErrorStreamCaptureInvalidated);
  OK(cudaGraphLaunch(instantiate(graph), stream)); /* it is the program's and stays */
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(first_of(a), 4);
}
END_TEST

/* ------------------------------------------------------------------------------------------- rules */

START_TEST(begin_and_end_say_what_is_wrong) {
  cudaGraph_t graph = NULL;
  cudaStream_t stream = make_stream(0), side = make_stream(cudaStreamNonBlocking);
  GIVES(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  GIVES(cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  GIVES(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)7), cudaErrorInvalidValue);
  GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  GIVES(cudaStreamEndCapture(NULL, &graph), cudaErrorIllegalState);
  GIVES(cudaStreamEndCapture(stream, NULL), cudaErrorInvalidValue);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  GIVES(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  OK(cudaGraphDestroy(end(stream))); /* an empty capture is an empty graph */
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  join(stream, side);
  GIVES(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  GIVES(cudaStreamEndCapture(side, &graph), cudaErrorStreamCaptureUnmatched);
  expect_spoilt(stream);
  OK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeGlobal));
  OK(cudaGraphDestroy(end(cudaStreamPerThread)));
}
END_TEST

static void callback(cudaStream_t stream, cudaError_t status, void *data) {
  (void)stream, (void)status, (void)data;
}

static void check_waits(enum cudaStreamCaptureMode mode, int which) {
  cudaEvent_t event = make_event();
  cudaStream_t stream = begin(mode);
  OK(cudaEventRecord(event, stream));
  CUcontext context;
  float ms;
  switch (which) {
  case 0:
    GIVES(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    break;
  case 1:
    GIVES(cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
    break;
  case 2:
    GIVES(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    break;
  case 3:
    GIVES(cudaEventSynchronize(event), cudaErrorCapturedEvent);
    break;
  case 4:
    GIVES(cudaEventQuery(event), cudaErrorCapturedEvent);
    break;
  case 5:
    GIVES(cudaStreamAddCallback(stream, callback, NULL, 0), cudaErrorStreamCaptureUnsupported);
    break;
  case 6:
    ck_assert_int_eq(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    break;
  case 7:
    ck_assert_int_eq(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    break;
  case 8: /* also by an event that would stand for its work, among others' */
    ck_assert_int_eq(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    ck_assert_int_eq(cuCtxRecordEvent(context, make_event()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    break;
  default:
    GIVES(cudaEventElapsedTime(&ms, event, event), cudaErrorCapturedEvent);
    GIVES(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  }
  expect_spoilt(stream);
}

START_TEST(waiting_for_a_capture_spoils_it_in_every_mode) {
  for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++)
    for (int which = 0; which < 10; which++)
      check_waits((enum cudaStreamCaptureMode)mode, which);
}
END_TEST

/* What is not safe beside a capture; with the status that it gives. */
static cudaError_t call_unsafe(int which) {
  static void *pinned;
  static int host;
  void *memory = NULL;
  cudaError_t result;
  switch (which) {
  case 0:
    result = cudaMalloc(&memory, 64);
    return result ? result : cudaFree(memory);
  case 1:
    return cudaFree((void *)64) == cudaErrorStreamCaptureUnsupported ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
  case 2:
    result = cudaMallocHost(&pinned, 64);
    return result ? result : cudaFreeHost(pinned);
  case 3:
    result = cudaHostRegister(&host, sizeof host, 0);
    return result ? result : cudaHostUnregister(&host);
  case 4:
    return cudaStreamSynchronize(cudaStreamPerThread);
  case 5:
    return cudaStreamQuery(cudaStreamPerThread);
  default: {
    int to = 0;
    return cudaMemcpy(&to, &host, sizeof to, cudaMemcpyHostToHost);
  }
  }
}
enum { UNSAFE_CALLS = 7 };

struct other_thread {
  enum cudaStreamCaptureMode mode;
  int which;
  cudaError_t result;
};

static void *call_in_thread(void *argument) {
  struct other_thread *own = argument;
  OK(cudaThreadExchangeStreamCaptureMode(&own->mode));
  own->result = call_unsafe(own->which);
  return NULL;
}

static cudaError_t in_other_thread(enum cudaStreamCaptureMode mode, int which) {
  struct other_thread own = {.mode = mode, .which = which};
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, call_in_thread, &own), 0);
  pthread_join(thread, NULL);
  return own.result;
}

static cudaError_t in_own_mode(enum cudaStreamCaptureMode mode, int which) {
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  cudaError_t result = call_unsafe(which);
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  return result;
}

/* By the table of cudaThreadExchangeStreamCaptureMode. */
START_TEST(unsafe_calls_follow_the_modes) {
  for (int which = 0; which < UNSAFE_CALLS; which++)
    for (int capture = 0; capture < 3; capture++)
      for (int thread = 0; thread < 3; thread++)
        for (int own = 0; own < 2; own++) {
          cudaStream_t stream = begin((enum cudaStreamCaptureMode)capture);
          bool refused = thread != cudaStreamCaptureModeRelaxed &&
                         (own ? capture != cudaStreamCaptureModeRelaxed
                              : capture == cudaStreamCaptureModeGlobal && thread == cudaStreamCaptureModeGlobal);
          cudaError_t result = own ? in_own_mode((enum cudaStreamCaptureMode)thread, which)
                                   : in_other_thread((enum cudaStreamCaptureMode)thread, which);
          ck_assert_msg(result == (refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess),
                        "call %d, capture %d, thread %d, %s: %d", which, capture, thread, own ? "own" : "other", result);
          if (refused)
            expect_spoilt(stream);
          else
            OK(cudaGraphDestroy(end(stream)));
          OK(cudaStreamDestroy(stream));
        }
}
END_TEST

START_TEST(one_mode_for_both_interfaces) {
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  CUstreamCaptureMode driver_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  ck_assert_int_eq(mode, cudaStreamCaptureModeGlobal);
  ck_assert_int_eq(cuThreadExchangeStreamCaptureMode(&driver_mode), CUDA_SUCCESS);
  ck_assert_int_eq(driver_mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  mode = (enum cudaStreamCaptureMode)3;
  GIVES(cudaThreadExchangeStreamCaptureMode(&mode), cudaErrorInvalidValue);
  GIVES(cudaThreadExchangeStreamCaptureMode(NULL), cudaErrorInvalidValue);
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  void *memory = NULL;
  OK(cudaMalloc(&memory, 64)); /* the driver's exchange counts here */
  OK(cudaGraphDestroy(end(stream)));
}
END_TEST

START_TEST(legacy_stream_beside_a_blocking_capture) {
  int *a = device_ints(), calls = 0;
  enum cudaStreamCaptureStatus state;
  cudaEvent_t event = make_event();
  for (int which = 0; which < 6; which++) {
    cudaStream_t stream = make_stream(0);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    GIVES(cudaStreamIsCapturing(NULL, &state), cudaErrorStreamCaptureImplicit);
    GIVES(cudaStreamGetCaptureInfo(NULL, &state, NULL, NULL, NULL, NULL, NULL), cudaErrorStreamCaptureImplicit);
    ck_assert_int_eq(state_of(stream), cudaStreamCaptureStatusActive); /* asking spoils nothing */
    cudaError_t result = which == 0   ? cudaMemset(a, 0, 4)
                         : which == 1 ? cudaMemcpy(a, a + 4, 4, cudaMemcpyDeviceToDevice)
                         : which == 2 ? cudaLaunchHostFunc(NULL, count_up, &calls)
                         : which == 3 ? cudaEventRecord(event, NULL)
                         : which == 4 ? cudaStreamSynchronize(NULL)
                                      : cudaMemcpyAsync(a, a + 4, 4, cudaMemcpyDeviceToDevice, NULL);
    ck_assert_msg(result == cudaErrorStreamCaptureImplicit, "%d: %d", which, result);
    expect_spoilt(stream);
  }
  ck_assert_int_eq(calls, 0);
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal); /* not blocking */
  OK(cudaLaunchHostFunc(NULL, count_up, &calls));
  OK(cudaStreamIsCapturing(NULL, &state));
  ck_assert_int_eq(state, cudaStreamCaptureStatusNone);
  OK(cudaGraphDestroy(end(stream)));
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(forks_must_be_joined) {
  int *a = device_ints(), *b = device_ints();
  cudaGraph_t graph = NULL;
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), side = make_stream(cudaStreamNonBlocking);
  axpb(stream, a, a, 1, 1);
  join(stream, side);
  axpb(side, b, a, 1, 1);
  GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
  ck_assert_ptr_null(graph);
  ck_assert_int_eq(state_of(side), cudaStreamCaptureStatusNone);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); /* joined, and more work after that */
  axpb(stream, a, a, 1, 1);
  join(stream, side);
  axpb(side, b, a, 1, 1);
  join(side, stream);
  axpb(side, b, b, 1, 1);
  GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); /* a fork without work */
  axpb(stream, a, a, 1, 1);
  join(stream, side);
  OK(cudaGraphDestroy(end(stream)));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); /* a fork whose stream is gone */
  join(stream, side);
  axpb(side, b, a, 1, 1);
  OK(cudaStreamDestroy(side));
  GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
}
END_TEST

START_TEST(captures_do_not_merge_or_look_outside) {
  cudaEvent_t event = make_event(), never = make_event();
  cudaStream_t one = make_stream(cudaStreamNonBlocking), two = make_stream(cudaStreamNonBlocking);
  OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
  OK(cudaStreamBeginCapture(two, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(event, one));
  GIVES(cudaStreamWaitEvent(two, event, 0), cudaErrorStreamCaptureMerge);
  expect_spoilt(one);
  expect_spoilt(two);
  OK(cudaStreamSynchronize(one));
  OK(cudaStreamSynchronize(two));
  OK(cudaEventRecord(event, one)); /* outside */
  OK(cudaStreamBeginCapture(two, cudaStreamCaptureModeGlobal));
  OK(cudaStreamWaitEvent(two, never, 0)); /* never recorded: nothing to wait for */
  GIVES(cudaStreamWaitEvent(two, event, 0), cudaErrorStreamCaptureIsolation);
  expect_spoilt(two);
  OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(event, one));
  GIVES(cudaStreamWaitEvent(NULL, event, 0), cudaErrorStreamCaptureUnsupported); /* the legacy stream cannot join */
  expect_spoilt(one);
  OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(event, one));
  OK(cudaGraphDestroy(end(one)));
  GIVES(cudaEventQuery(event), cudaErrorCapturedEvent);
  GIVES(cudaStreamWaitEvent(two, event, 0), cudaErrorCapturedEvent);
  OK(cudaEventRecord(event, one)); /* an ordinary record makes an ordinary event of it */
  OK(cudaStreamWaitEvent(two, event, 0));
  OK(cudaEventSynchronize(event));
  OK(cudaEventQuery(event));
}
END_TEST

static void *end_elsewhere(void *argument) {
  cudaGraph_t graph = NULL;
  cudaError_t result = cudaStreamEndCapture(*(cudaStream_t *)argument, &graph);
  if (graph)
    cudaGraphDestroy(graph);
  return (void *)(intptr_t)result;
}

START_TEST(ending_on_another_thread_needs_relaxed_mode) {
  for (int mode = 0; mode < 3; mode++) {
    cudaStream_t stream = begin((enum cudaStreamCaptureMode)mode);
    pthread_t thread;
    void *result = NULL;
    ck_assert_int_eq(pthread_create(&thread, NULL, end_elsewhere, &stream), 0);
    pthread_join(thread, &result);
    if (mode == cudaStreamCaptureModeRelaxed) {
      ck_assert_int_eq((int)(intptr_t)result, cudaSuccess);
      ck_assert_int_eq(state_of(stream), cudaStreamCaptureStatusNone);
    } else {
      ck_assert_int_eq((int)(intptr_t)result, cudaErrorStreamCaptureWrongThread);
      expect_spoilt(stream);
    }
  }
}
END_TEST

START_TEST(handles_that_go_during_a_capture) {
  int *a = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), next = make_stream(cudaStreamNonBlocking);
  axpb(stream, a, a, 1, 1);
  cudaEvent_t event = make_event();
  OK(cudaEventRecord(event, stream));
  OK(cudaEventDestroy(event));
  OK(cudaStreamDestroy(stream)); /* the capture is given up with it */
  OK(cudaStreamSynchronize(next));
  void *memory = NULL;
  OK(cudaMalloc(&memory, 64));
  GIVES(cudaStreamIsCapturing(stream, &(enum cudaStreamCaptureStatus){0}), cudaErrorInvalidResourceHandle);
}
END_TEST

/* A library's operation that looks at data cannot be captured: it refuses, and the capture is spoilt. */
START_TEST(an_operation_can_refuse) {
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  ck_assert_int_eq(vnode_capture_refuse(engine(stream)), VNODE_OK);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  ck_assert(vnode_stream_is_late(engine(stream)));
  ck_assert_int_eq(vnode_capture_refuse(engine(stream)), VNODE_CAPTURE_UNSUPPORTED);
  ck_assert_int_eq(vnode_capture_refuse(engine(stream)), VNODE_CAPTURE_INVALIDATED);
  expect_spoilt(stream);
}
END_TEST

/* ------------------------------------------------------------------------------------------- graphs made by hand */

START_TEST(nodes_and_edges) {
  cudaGraph_t graph = NULL, other = NULL;
  cudaGraphNode_t n[4], listed[6], from[6], to[6], foreign;
  size_t count = 6;
  GIVES(cudaGraphCreate(&graph, 1), cudaErrorInvalidValue);
  graph = make_graph();
  other = make_graph();
  OK(cudaGraphAddEmptyNode(&foreign, other, NULL, 0));
  OK(cudaGraphAddEmptyNode(&n[0], graph, NULL, 0));
  OK(cudaGraphAddEmptyNode(&n[1], graph, n, 1));
  OK(cudaGraphAddEmptyNode(&n[2], graph, n, 1));
  OK(cudaGraphAddEmptyNode(&n[3], graph, n + 1, 2));
  GIVES(cudaGraphAddEmptyNode(&listed[0], graph, &foreign, 1), cudaErrorInvalidValue);
  GIVES(cudaGraphAddEmptyNode(&listed[0], graph, (cudaGraphNode_t[]){n[0], n[0]}, 2), cudaErrorInvalidValue);
  OK(cudaGraphGetNodes(graph, listed, &count));
  ck_assert_uint_eq(count, 4);
  ck_assert_ptr_eq(listed[3], n[3]);
  ck_assert_ptr_null(listed[4]);
  count = 6;
  OK(cudaGraphGetRootNodes(graph, listed, &count));
  ck_assert_uint_eq(count, 1);
  count = 1;
  OK(cudaGraphGetNodes(graph, listed, &count)); /* less room than nodes */
  ck_assert_uint_eq(count, 1);
  count = 6;
  OK(cudaGraphGetEdges(graph, from, to, NULL, &count));
  ck_assert_uint_eq(count, 4);
  count = 6;
  cudaGraphEdgeData edges[6];
  memset(edges, 1, sizeof edges);
  OK(cudaGraphNodeGetDependencies(n[3], listed, edges, &count));
  ck_assert_uint_eq(count, 2);
  ck_assert_ptr_eq(listed[1], n[2]);
  ck_assert_uint_eq(edges[1].type, 0);
  count = 6;
  OK(cudaGraphNodeGetDependentNodes(n[0], listed, NULL, &count));
  ck_assert_uint_eq(count, 2);
  GIVES(cudaGraphAddDependencies(graph, &n[0], &n[1], NULL, 1), cudaErrorInvalidValue); /* is there */
  GIVES(cudaGraphAddDependencies(graph, &n[0], &n[0], NULL, 1), cudaErrorInvalidValue);
  GIVES(cudaGraphRemoveDependencies(graph, &n[0], &n[3], NULL, 1), cudaErrorInvalidValue); /* is not */
  OK(cudaGraphAddDependencies(graph, &n[0], &n[3], NULL, 1));
  OK(cudaGraphRemoveDependencies(graph, &n[0], &n[3], NULL, 1));
  cudaGraphEdgeData early = {.type = 1};
  GIVES(cudaGraphAddDependencies(graph, &n[0], &n[3], &early, 1), cudaErrorNotSupported);
  OK(cudaGraphAddDependencies(graph, &n[3], &n[0], NULL, 1)); /* a cycle is seen at instantiation */
  cudaGraphInstantiateParams params = {0};
  cudaGraphExec_t exec = NULL;
  GIVES(cudaGraphInstantiateWithParams(&exec, graph, &params), cudaErrorInvalidValue);
  ck_assert_int_eq(params.result_out, cudaGraphInstantiateInvalidStructure);
  ck_assert(params.errNode_out == n[0] || params.errNode_out == n[1] || params.errNode_out == n[2] ||
            params.errNode_out == n[3]);
  OK(cudaGraphDestroyNode(n[3]));
  GIVES(cudaGraphDestroyNode(n[3]), cudaErrorInvalidValue);
  OK(cudaGraphInstantiateWithParams(&exec, graph, &params));
  ck_assert_int_eq(params.result_out, cudaGraphInstantiateSuccess);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  GIVES(cudaGraphDestroy(graph), cudaErrorInvalidValue);
  GIVES(cudaGraphNodeGetType(n[0], &(enum cudaGraphNodeType){0}), cudaErrorInvalidValue);
  GIVES(cudaGraphInstantiate(&exec, graph, 0), cudaErrorInvalidValue);
}
END_TEST

static cudaGraphNode_t add_copy(cudaGraph_t graph, const cudaGraphNode_t *after, void *to, const void *from, size_t bytes) {
  cudaGraphNode_t node = NULL;
  OK(cudaGraphAddMemcpyNode1D(&node, graph, after, after ? 1 : 0, to, from, bytes, cudaMemcpyDefault));
  return node;
}

START_TEST(explicit_nodes_run_and_can_be_changed) {
  int *a = device_ints(), host = 5, more = 6, back = 0, calls = 0;
  cudaGraph_t graph = make_graph();
  cudaGraphNode_t fill = NULL, function = NULL;
  struct cudaMemsetParams params = {.dst = a, .value = 1, .elementSize = 4, .width = N, .height = 1};
  OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &params));
  cudaGraphNode_t in = add_copy(graph, &fill, a, &host, sizeof host), out = add_copy(graph, &in, &back, a, sizeof back);
  OK(cudaGraphAddHostNode(&function, graph, &out, 1, &(struct cudaHostNodeParams){.fn = count_up, .userData = &calls}));
  GIVES(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &(struct cudaMemsetParams){.dst = a, .elementSize = 3}),
        cudaErrorInvalidValue);
  GIVES(cudaGraphAddHostNode(&function, graph, NULL, 0, &(struct cudaHostNodeParams){.fn = NULL}), cudaErrorInvalidValue);
  ck_assert_uint_eq(node_count(graph), 4); /* what was refused has left nothing */
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  cudaGraphExec_t exec = instantiate(graph);
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(back, 5);
  ck_assert_int_eq(calls, 1);
  struct cudaMemcpy3DParms copy;
  OK(cudaGraphMemcpyNodeGetParams(in, &copy));
  ck_assert_ptr_eq(copy.srcPtr.ptr, &host);
  ck_assert_uint_eq(copy.extent.width, sizeof host);
  struct cudaMemsetParams got;
  OK(cudaGraphMemsetNodeGetParams(fill, &got));
  ck_assert_uint_eq(got.width, N);
  struct cudaHostNodeParams call;
  OK(cudaGraphHostNodeGetParams(function, &call));
  ck_assert_ptr_eq(call.userData, &calls);
  GIVES(cudaGraphHostNodeGetParams(fill, &call), cudaErrorInvalidValue);
  OK(cudaGraphExecMemcpyNodeSetParams1D(exec, in, a, &more, sizeof more, cudaMemcpyDefault)); /* the exec alone */
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(back, 6);
  ck_assert_int_eq(calls, 2);
  OK(cudaGraphNodeSetEnabled(exec, in, 0));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(back, 1);
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(exec, in, &enabled));
  ck_assert_uint_eq(enabled, 0);
  GIVES(cudaGraphNodeSetEnabled(exec, function, 0), cudaErrorNotSupported);
  cudaGraphExec_t second = instantiate(graph); /* the graph itself is as it was */
  OK(cudaGraphLaunch(second, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(back, 5);
  OK(cudaGraphMemcpyNodeSetParams1D(in, a, &more, sizeof more, cudaMemcpyDefault));
  OK(cudaGraphLaunch(second, stream)); /* an exec is a snapshot */
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(back, 5);
  GIVES(cudaGraphKernelNodeGetParams(in, &(struct cudaKernelNodeParams){0}), cudaErrorInvalidValue);
}
END_TEST

START_TEST(copies_in_three_dimensions) {
  unsigned char from[4][3][8], to[2][2][8];
  for (size_t i = 0; i < sizeof from; i++)
    ((unsigned char *)from)[i] = (unsigned char)i;
  cudaGraph_t graph = NULL;
  cudaGraphNode_t node = NULL;
  graph = make_graph();
  struct cudaMemcpy3DParms copy = {.srcPtr = {.ptr = from, .pitch = 8, .xsize = 8, .ysize = 3},
                                   .srcPos = {.x = 2, .y = 1, .z = 1},
                                   .dstPtr = {.ptr = to, .pitch = 8, .xsize = 8, .ysize = 2},
                                   .extent = {.width = 4, .height = 1, .depth = 2},
                                   .kind = cudaMemcpyHostToHost};
  OK(cudaGraphAddMemcpyNode(&node, graph, NULL, 0, &copy));
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  OK(cudaGraphLaunch(instantiate(graph), stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_uint_eq(to[0][0][0], from[1][1][2]);
  ck_assert_uint_eq(to[1][0][3], from[2][1][5]);
  copy.extent.height = 2; /* rows are not evenly spaced in the source */
  GIVES(cudaGraphAddMemcpyNode(&node, graph, NULL, 0, &copy), cudaErrorNotSupported);
  copy.extent.depth = 0;
  GIVES(cudaGraphAddMemcpyNode(&node, graph, NULL, 0, &copy), cudaErrorInvalidValue);
}
END_TEST

START_TEST(clones_are_graphs_of_their_own) {
  int *a = device_ints();
  cudaGraph_t clone = NULL, child_graph = NULL, outer = NULL;
  cudaGraphNode_t nodes[2], found = NULL, child = NULL;
  size_t count = 2;
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  axpb(stream, a, a, 1, 1);
  axpb(stream, a, a, 3, 0);
  cudaGraph_t graph = end(stream);
  OK(cudaGraphGetNodes(graph, nodes, &count));
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphNodeFindInClone(&found, nodes[1], clone));
  ck_assert_ptr_ne(found, nodes[1]);
  GIVES(cudaGraphNodeFindInClone(&found, found, graph), cudaErrorInvalidValue);
  OK(cudaGraphDestroy(graph));
  outer = make_graph();
  OK(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, clone));
  OK(cudaGraphDestroy(clone));
  OK(cudaGraphChildGraphNodeGetGraph(child, &child_graph));
  ck_assert_uint_eq(node_count(child_graph), 2);
  GIVES(cudaGraphDestroy(child_graph), cudaErrorInvalidValue); /* the node's */
  OK(cudaGraphAddEmptyNode(&found, outer, &child, 1));
  OK(cudaGraphLaunch(instantiate(outer), stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(first_of(a), 3);
}
END_TEST

START_TEST(external_events_are_nodes) {
  int *a = device_ints();
  cudaEvent_t first = make_event(), last = make_event(), other = make_event();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), side = make_stream(cudaStreamNonBlocking);
  OK(cudaEventRecordWithFlags(first, stream, cudaEventRecordExternal));
  ck_assert_int_eq(submit(stream, &(struct axpb){a, a, 1, 1}, 5000000, NULL), VNODE_OK);
  OK(cudaEventRecordWithFlags(last, stream, cudaEventRecordExternal));
  cudaGraph_t graph = end(stream);
  ck_assert_uint_eq(node_count(graph), 3);
  GIVES(cudaEventRecordWithFlags(first, stream, cudaEventRecordExternal), cudaErrorInvalidValue);
  cudaGraphExec_t exec = instantiate(graph);
  for (int i = 1; i < 4; i++) {
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaEventSynchronize(last));
    float ms = 0;
    OK(cudaEventElapsedTime(&ms, first, last));
    ck_assert_float_eq_tol(ms, 5, 1e-4F);
    ck_assert_int_eq(first_of(a), i);
  }
  cudaGraphNode_t nodes[3];
  size_t count = 3;
  cudaEvent_t got = NULL;
  OK(cudaGraphGetNodes(graph, nodes, &count));
  OK(cudaGraphEventRecordNodeGetEvent(nodes[2], &got));
  ck_assert_ptr_eq(got, last);
  GIVES(cudaGraphEventWaitNodeGetEvent(nodes[2], &got), cudaErrorInvalidValue);
  OK(cudaGraphExecEventRecordNodeSetEvent(exec, nodes[2], other));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaEventSynchronize(other));
  ck_assert_int_eq(first_of(a), 4);
  /* a wait node: the graph waits for what is recorded at the launch */
  OK(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal));
  OK(cudaStreamWaitEvent(side, other, cudaEventWaitExternal));
  axpb(side, a, a, 10, 0);
  cudaGraphExec_t waits = instantiate(end(side));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaGraphLaunch(waits, side));
  OK(cudaStreamSynchronize(side));
  ck_assert_int_eq(first_of(a), 50);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(update_takes_a_graph_of_the_same_shape) {
  int *a = device_ints();
  cudaGraph_t graphs[3];
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  for (int i = 0; i < 3; i++) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    axpb(stream, a, a, 0, i);
    if (i == 2)
      axpb(stream, a, a, 1, 1);
    else
      OK(cudaMemsetAsync(a + N / 2, 0, 4, stream));
    graphs[i] = end(stream);
  }
  cudaGraphExec_t exec = instantiate(graphs[0]);
  cudaGraphExecUpdateResultInfo info;
  OK(cudaGraphExecUpdate(exec, graphs[1], &info));
  ck_assert_int_eq(info.result, cudaGraphExecUpdateSuccess);
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  int host = 0;
  OK(cudaMemcpy(&host, a, sizeof host, cudaMemcpyDeviceToHost));
  ck_assert_int_eq(host, 1);
  GIVES(cudaGraphExecUpdate(exec, graphs[2], &info), cudaErrorGraphExecUpdateFailure);
  ck_assert_int_eq(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
  cudaGraphNode_t nodes[2];
  size_t count = 2;
  OK(cudaGraphGetNodes(graphs[2], nodes, &count));
  ck_assert_ptr_eq(info.errorNode, nodes[1]);
  OK(cudaGraphRemoveDependencies(graphs[1], NULL, NULL, NULL, 0));
  OK(cudaGraphGetNodes(graphs[1], nodes, &count));
  OK(cudaGraphRemoveDependencies(graphs[1], &nodes[0], &nodes[1], NULL, 1)); /* the same nodes, other edges */
  GIVES(cudaGraphExecUpdate(exec, graphs[1], &info), cudaErrorGraphExecUpdateFailure);
  ck_assert_int_eq(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  ck_assert_ptr_eq(info.errorNode, nodes[1]);
  OK(cudaGraphGetNodes(graphs[2], nodes, &count));
  OK(cudaGraphDestroyNode(nodes[1]));
  GIVES(cudaGraphExecUpdate(exec, graphs[2], &info), cudaErrorGraphExecUpdateFailure);
  ck_assert_int_eq(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  ck_assert_ptr_null(info.errorNode);
}
END_TEST

START_TEST(graphviz_names_nodes_and_edges) {
  int *a = device_ints();
  char text[8192], path[] = "/tmp/vnode-graph-XXXXXX";
  int file = mkstemp(path);
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  axpb(stream, a, a, 1, 1);
  OK(cudaMemsetAsync(a, 0, 4, stream));
  cudaGraph_t graph = end(stream);
  OK(cudaGraphDebugDotPrint(graph, path, cudaGraphDebugDotFlagsVerbose));
  ssize_t length = read(file, text, sizeof text - 1);
  ck_assert_int_gt((int)length, 0);
  text[length] = 0;
  ck_assert_int_eq(strncmp(text, "digraph", 7), 0);
  ck_assert_ptr_nonnull(strstr(text, "axpb"));
  ck_assert_ptr_nonnull(strstr(text, "MEMSET"));
  ck_assert_ptr_nonnull(strstr(text, "_node_0\" -> \"graph_"));
  GIVES(cudaGraphDebugDotPrint(graph, "/no/such/folder/graph.dot", 0), cudaErrorOperatingSystem);
  close(file);
  unlink(path);
}
END_TEST

/* ------------------------------------------------------------------------------------------- life */

static atomic_int drops;

static void count_drop(void *args) {
  (void)args;
  atomic_fetch_add(&drops, 1);
}

START_TEST(arguments_live_as_long_as_graph_and_execs) {
  int *a = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  ck_assert_int_eq(submit(stream, &(struct axpb){a, a, 1, 1}, 0, count_drop), VNODE_OK);
  cudaGraph_t graph = end(stream);
  cudaGraphExec_t exec = instantiate(graph), other = instantiate(graph);
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphExecDestroy(other));
  for (int i = 0; i < 5; i++)
    OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(drops, 0);
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaGraphExecDestroy(exec)); /* while a launch of it may still have to run */
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(drops, 1);
  ck_assert_int_eq(first_of(a), 6);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); /* a capture that fails drops, too */
  ck_assert_int_eq(submit(stream, &(struct axpb){a, a, 1, 1}, 0, count_drop), VNODE_OK);
  GIVES(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  ck_assert_int_eq(submit(stream, &(struct axpb){a, a, 1, 1}, 0, count_drop), VNODE_CAPTURE_INVALIDATED);
  ck_assert_int_eq(drops, 2);
  GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  ck_assert_int_eq(drops, 3);
}
END_TEST

START_TEST(user_objects_go_with_their_last_reference) {
  int gone = 0;
  cudaUserObject_t object = NULL;
  cudaGraph_t graph = NULL, clone = NULL;
  GIVES(cudaUserObjectCreate(&object, &gone, count_up, 1, 0), cudaErrorInvalidValue);
  GIVES(cudaUserObjectCreate(&object, &gone, NULL, 1, cudaUserObjectNoDestructorSync), cudaErrorInvalidValue);
  OK(cudaUserObjectCreate(&object, &gone, count_up, 2, cudaUserObjectNoDestructorSync));
  OK(cudaUserObjectRetain(object, 1));
  OK(cudaUserObjectRelease(object, 2));
  graph = make_graph();
  OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove)); /* the caller's last is the graph's now */
  OK(cudaGraphRetainUserObject(graph, object, 2, 0));
  OK(cudaGraphReleaseUserObject(graph, object, 1));
  GIVES(cudaGraphReleaseUserObject(graph, object, 3), cudaErrorInvalidValue);
  cudaGraphExec_t exec = instantiate(graph);
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphDestroy(graph));
  ck_assert_int_eq(gone, 0);
  OK(cudaGraphDestroy(clone));
  ck_assert_int_eq(gone, 0);
  OK(cudaGraphExecDestroy(exec));
  ck_assert_int_eq(gone, 1);
  GIVES(cudaUserObjectRelease(object, 1), cudaErrorInvalidValue);
}
END_TEST

START_TEST(user_objects_outlive_a_launch_that_runs) {
  int *a = device_ints(), gone = 0;
  cudaUserObject_t object = NULL;
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  axpb(stream, a, a, 1, 1);
  cudaGraph_t graph = end(stream);
  OK(cudaUserObjectCreate(&object, &gone, count_up, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  cudaGraphExec_t exec = instantiate(graph);
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaGraphExecDestroy(exec));
  if (vnode_config()->order == VNODE_ORDER_DEFERRED)
    ck_assert_int_eq(gone, 0);
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(gone, 1);
  ck_assert_int_eq(first_of(a), 1);
}
END_TEST

START_TEST(many_graphs_leave_nothing_behind) {
  int *a = device_ints();
  cudaStream_t stream = make_stream(cudaStreamNonBlocking), side = make_stream(cudaStreamNonBlocking);
  for (int i = 0; i < 200; i++) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    axpb(stream, a, a, 1, 1);
    join(stream, side);
    axpb(side, a, a, 1, 1);
    join(side, stream);
    cudaGraph_t graph = end(stream);
    cudaGraphExec_t exec = instantiate(graph);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamSynchronize(stream));
  }
  ck_assert_int_eq(first_of(a), 800);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

/* ------------------------------------------------------------------------------------------- memory */

static uint64_t graph_memory(enum cudaGraphMemAttributeType attribute) {
  uint64_t value = 0;
  OK(cudaDeviceGetGraphMemAttribute(0, attribute, &value));
  return value;
}

START_TEST(memory_made_and_freed_in_a_graph) {
  int *a = device_ints(), *temporary = NULL;
  size_t free_before = 0, free_now = 0;
  OK(cudaMemGetInfo(&free_before, NULL));
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  OK(cudaMallocAsync((void **)&temporary, N * sizeof(int), stream));
  axpb(stream, temporary, a, 1, 1);
  axpb(stream, a, temporary, 2, 0);
  OK(cudaFreeAsync(temporary, stream));
  cudaGraph_t graph = end(stream), clone = NULL;
  ck_assert_uint_eq(node_count(graph), 4);
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemCurrent), 0);
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrReservedMemCurrent), 2 * MIB);
  GIVES(cudaGraphClone(&clone, graph), cudaErrorNotSupported);
  cudaGraphExec_t exec = instantiate(graph), second = NULL;
  GIVES(cudaGraphInstantiate(&second, graph, 0), cudaErrorInvalidValue); /* one at a time */
  for (int i = 0; i < 3; i++)
    OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(first_of(a), 14);
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemHigh), 2 * MIB);
  uint64_t zero = 0;
  OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &zero));
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemHigh), 0);
  GIVES(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &zero), cudaErrorInvalidValue);
  GIVES(cudaFree(temporary), cudaErrorInvalidValue); /* no launch has left it */
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphInstantiate(&second, graph, 0));
  OK(cudaGraphExecDestroy(second));
  OK(cudaGraphDestroy(graph));
  OK(cudaDeviceGraphMemTrim(0));
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrReservedMemCurrent), 0);
  OK(cudaMemGetInfo(&free_now, NULL));
  ck_assert_uint_eq(free_now, free_before);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

START_TEST(memory_that_outlives_the_graph) {
  int *a = device_ints(), *made = NULL;
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  OK(cudaMallocAsync((void **)&made, N * sizeof(int), stream));
  axpb(stream, made, a, 1, 7);
  cudaGraph_t graph = end(stream);
  cudaGraphExec_t exec = instantiate(graph);
  OK(cudaGraphLaunch(exec, stream));
  GIVES(cudaGraphLaunch(exec, stream), cudaErrorInvalidValue); /* not freed yet */
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(first_of(made), 7);
  OK(cudaFreeAsync(made, stream));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(first_of(made), 7); /* still there */
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemCurrent), 2 * MIB);
  OK(cudaFree(made));
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemCurrent), 0);
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrReservedMemCurrent), 0);
  GIVES(cudaFree(made), cudaErrorInvalidValue);
}
END_TEST

START_TEST(memory_nodes_by_hand_and_auto_free) {
  int *a = device_ints();
  cudaGraph_t graph = NULL, frees = NULL;
  cudaGraphNode_t alloc = NULL, copy = NULL, node = NULL;
  graph = make_graph();
  struct cudaMemAllocNodeParams params = {
      .poolProps = {.allocType = cudaMemAllocationTypePinned, .location = {.type = cudaMemLocationTypeDevice, .id = 0}},
      .bytesize = 3 * MIB};
  OK(cudaGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
  ck_assert_ptr_nonnull(params.dptr);
  copy = add_copy(graph, &alloc, params.dptr, a, N * sizeof(int));
  GIVES(cudaGraphDestroyNode(copy), cudaErrorInvalidValue); /* not with nodes for memory */
  GIVES(cudaGraphAddMemFreeNode(&node, graph, &copy, 1, a), cudaErrorInvalidValue);
  struct cudaMemAllocNodeParams got;
  OK(cudaGraphMemAllocNodeGetParams(alloc, &got));
  ck_assert_ptr_eq(got.dptr, params.dptr);
  cudaGraphExec_t exec = NULL, freeing = NULL;
  OK(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  keep(EXEC, exec);
  unsigned long long flags = 0;
  OK(cudaGraphExecGetFlags(exec, &flags));
  ck_assert_uint_eq(flags, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  for (int i = 0; i < 3; i++)
    OK(cudaGraphLaunch(exec, stream));
  frees = make_graph(); /* another graph frees it */
  OK(cudaGraphAddMemFreeNode(&node, frees, NULL, 0, params.dptr));
  GIVES(cudaGraphAddMemFreeNode(&node, frees, NULL, 0, params.dptr), cudaErrorInvalidValue);
  GIVES(cudaGraphAddMemFreeNode(&node, graph, NULL, 0, params.dptr), cudaErrorInvalidValue);
  freeing = instantiate(frees);
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemCurrent), 4 * MIB);
  OK(cudaGraphLaunch(freeing, stream));
  ck_assert_uint_eq(graph_memory(cudaGraphMemAttrUsedMemCurrent), 0);
  OK(cudaStreamSynchronize(stream));
  GIVES(cudaGraphInstantiateWithFlags(&freeing, graph, cudaGraphInstantiateFlagDeviceLaunch), cudaErrorInvalidValue);
  GIVES(cudaGraphInstantiateWithFlags(&freeing, frees, 64), cudaErrorInvalidValue);
  ck_assert_uint_eq(vnode_race_count(), 0);
}
END_TEST

/* ------------------------------------------------------------------------------------------- time, driver */

/* Root of 2 ms, then branches of 3 ms and 7 ms, then 1 ms: 10 ms on the GPU. */
START_TEST(a_graph_takes_as_long_as_its_longest_path) {
  int *a = device_ints(), *b = device_ints(), *c = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal), side = make_stream(cudaStreamNonBlocking);
  submit(stream, &(struct axpb){a, a, 1, 0}, 2000000, NULL);
  join(stream, side);
  submit(stream, &(struct axpb){b, a, 1, 0}, 3000000, NULL);
  submit(side, &(struct axpb){c, a, 1, 0}, 7000000, NULL);
  join(side, stream);
  submit(stream, &(struct axpb){a, b, 1, 0}, 1000000, NULL);
  cudaGraphExec_t exec = instantiate(end(stream));
  cudaEvent_t first = make_event(), last = make_event();
  OK(cudaGraphLaunch(exec, stream)); /* so that the host is not what is waited for */
  OK(cudaEventRecord(first, stream));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaEventRecord(last, stream));
  OK(cudaStreamSynchronize(stream));
  float ms = 0;
  OK(cudaEventElapsedTime(&ms, first, last));
  ck_assert_float_eq_tol(ms, 20, 1e-3F);
}
END_TEST

START_TEST(the_driver_has_the_same_graphs) {
  int *a = device_ints();
  CUstream stream;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUstreamCaptureStatus state;
  cuuint64_t id = 0;
  ck_assert_int_eq(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ck_assert_int_eq(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ck_assert_int_eq(cuMemsetD32Async((CUdeviceptr)(uintptr_t)a, 9, N, stream), CUDA_SUCCESS);
  ck_assert_int_eq(cuStreamGetCaptureInfo(stream, &state, &id, &graph, NULL, NULL, NULL), CUDA_SUCCESS);
  ck_assert_int_eq(state, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUdeviceptr memory;
  ck_assert_int_eq(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ck_assert_int_eq(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  ck_assert_int_eq(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  ck_assert_int_eq(cuStreamSynchronize(stream), CUDA_SUCCESS);
  ck_assert_int_eq(first_of(a), 9);
  OK(cudaGraphLaunch(exec, stream)); /* handles of both are the same */
  ck_assert_int_eq(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ck_assert_int_eq(cuGraphDestroy(graph), CUDA_SUCCESS);
  ck_assert_int_eq(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  ck_assert_int_eq(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ck_assert_int_eq(cuMemAlloc(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ck_assert_int_eq(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
END_TEST

/* Many threads, each with captures of its own and execs that all share. */
struct hammer {
  cudaGraphExec_t shared;
  int rounds;
};

static void *hammer(void *argument) {
  const struct hammer *own = argument;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  cudaStream_t stream = make_stream(cudaStreamNonBlocking), side = make_stream(cudaStreamNonBlocking);
  int *a = NULL, calls = 0;
  OK(cudaMalloc((void **)&a, N * sizeof(int)));
  OK(cudaMemsetAsync(a, 0, N * sizeof(int), stream));
  for (int i = 0; i < own->rounds; i++) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    axpb(stream, a, a, 1, 1);
    join(stream, side);
    OK(cudaLaunchHostFunc(side, count_up, &calls));
    join(side, stream);
    cudaGraphExec_t exec = instantiate(end(stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphLaunch(own->shared, stream));
    OK(cudaGraphExecDestroy(exec));
  }
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(calls, own->rounds);
  int host = 0;
  OK(cudaMemcpyAsync(&host, a, sizeof host, cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(stream));
  ck_assert_int_eq(host, own->rounds);
  return NULL;
}

START_TEST(threads_capture_and_launch_side_by_side) {
  enum { THREADS = 8 };
  int *a = device_ints();
  cudaStream_t stream = begin(cudaStreamCaptureModeGlobal);
  axpb(stream, a, a, 1, 1);
  struct hammer own = {.shared = instantiate(end(stream)), .rounds = 20};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, &own), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(first_of(a), THREADS * own.rounds);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {nothing_runs_while_capturing_and_all_at_each_launch,
                                launches_of_an_exec_follow_each_other_on_any_streams,
                                branches_join_and_keep_their_order,
                                branches_without_an_edge_are_a_race,
                                all_roots_wait_for_the_launching_stream,
                                a_node_runs_on_the_device_it_was_captured_on,
                                what_follows_a_launch_waits_for_all_branches,
                                copies_and_fills_read_and_write_at_the_launch,
                                host_functions_and_child_graphs_run_in_their_place,
                                capture_info_and_dependencies,
                                capture_into_a_graph_that_is_there,
                                begin_and_end_say_what_is_wrong,
                                waiting_for_a_capture_spoils_it_in_every_mode,
                                unsafe_calls_follow_the_modes,
                                one_mode_for_both_interfaces,
                                legacy_stream_beside_a_blocking_capture,
                                forks_must_be_joined,
                                captures_do_not_merge_or_look_outside,
                                ending_on_another_thread_needs_relaxed_mode,
                                handles_that_go_during_a_capture,
                                an_operation_can_refuse,
                                nodes_and_edges,
                                explicit_nodes_run_and_can_be_changed,
                                copies_in_three_dimensions,
                                clones_are_graphs_of_their_own,
                                external_events_are_nodes,
                                update_takes_a_graph_of_the_same_shape,
                                graphviz_names_nodes_and_edges,
                                arguments_live_as_long_as_graph_and_execs,
                                user_objects_go_with_their_last_reference,
                                user_objects_outlive_a_launch_that_runs,
                                many_graphs_leave_nothing_behind,
                                memory_made_and_freed_in_a_graph,
                                memory_that_outlives_the_graph,
                                memory_nodes_by_hand_and_auto_free,
                                a_graph_takes_as_long_as_its_longest_path,
                                the_driver_has_the_same_graphs,
                                threads_capture_and_launch_side_by_side};
  return run_tests("graph", tests, sizeof tests / sizeof *tests);
}
