/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups, per thread. What is submitted between the outermost ncclGroupStart and ncclGroupEnd happens at the end: first the
 * communicators are made, then go into the stream collectives, communicator by communicator in the order of their nonces
 * (the same on every rank, so ranks that issue them in different orders cannot block each other), then all point-to-point
 * messages as one operation. With several streams the whole group runs on the first and joins all of them, as NCCL documents
 * it.
 *
 * Operations of one communicator run in the order of their calls, on whatever streams: each waits for the one before.
 *
 * A thread that drives several ranks of one communicator gets a helper thread per rank where each of them has to wait for
 * the others: to make communicators, and in eager order to run operations.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "nccl_internal.h"

#define VNODE_EVENT_DISABLE_TIMING 2u /* cudaEventDisableTiming */

static _Thread_local struct {
  int depth;
  ncclResult_t error;
  struct operation *operations;
  size_t operation_count, operation_room;
  struct init_job *jobs;
  size_t job_count, job_room;
} group;

/* ----------------------------------------------------------------------------------------------- operations and streams */

static bool is_p2p(const struct operation *operation) {
  return operation->kind == OP_SEND || operation->kind == OP_RECV;
}

static struct vnode_stream *stream_of(const struct operation *operation) {
  return (struct vnode_stream *)operation->stream;
}

static ncclResult_t code_of(enum vnode_status status) {
  if (status == VNODE_OK)
    return ncclSuccess;
  if (status == VNODE_NOT_INITIALIZED)
    return nccl_fail(ncclUnhandledCudaError, "CUDA does not work in a forked child of a process that has used it");
  return nccl_fail(ncclUnhandledCudaError, "the stream refused the operation (CUDA error %d)", (int)status);
}

/* What an operation has to come behind, and what comes behind it: the communicator's others on other streams. In a graph,
   those of the same capture. */
static struct order_chain *chain_of(struct ncclComm *comm, struct vnode_stream *stream) {
  struct vnode_capture_info info = {.state = VNODE_CAPTURE_NONE};
  if (!vnode_stream_is_capturing(stream))
    return &comm->chain;
  vnode_capture_query(stream, &info);
  if (comm->captured.capture != info.id) {
    comm->captured.capture = info.id;
    comm->captured.used = false;
    if (comm->captured.done)
      vnode_event_destroy(comm->captured.done);
    comm->captured.done = NULL;
  }
  return &comm->captured;
}

static enum vnode_status come_behind_others(struct order_chain *chain, struct vnode_stream *stream) {
  if (!chain->used || chain->stream == stream)
    return VNODE_OK;
  enum vnode_status status = VNODE_OK;
  if (!chain->done) { /* the first change of streams: behind all that is on the other one */
    status = vnode_event_create(VNODE_EVENT_DISABLE_TIMING, &chain->done);
    if (!status)
      vnode_event_record(chain->done, chain->stream); /* INVALID_VALUE: destroyed since */
  }
  return status ? status : vnode_event_wait(stream, chain->done);
}

static void others_come_behind(struct order_chain *chain, struct vnode_stream *stream) {
  chain->used = true;
  chain->stream = stream;
  if (chain->done)
    vnode_event_record(chain->done, stream);
}

static void count_running(const struct operation *operations, size_t count, int change) {
  for (size_t i = 0; i < count; i++)
    atomic_fetch_add(&operations[i].comm->running, (uint32_t)change);
}

static void collective_work(void *args) {
  const struct operation *operation = args;
  count_running(operation, 1, 1);
  ncclResult_t code = collective_run(operation);
  if (code != ncclSuccess)
    comm_set_async(operation->comm, code);
  count_running(operation, 1, -1);
}

static void collective_drop(void *args) {
  const struct operation *operation = args;
  comm_drop(operation->comm, operation->captured);
}

static ncclResult_t submit_collective(const struct operation *given, struct vnode_stream *stream) {
  struct operation operation = *given;
  struct vnode_access accesses[OPERATION_ACCESSES];
  struct order_chain *chain = chain_of(operation.comm, stream);
  operation.captured = chain == &operation.comm->captured;
  const struct vnode_op op = {.name = operation_name(operation.kind),
                              .work = collective_work,
                              .args = &operation,
                              .args_bytes = sizeof operation,
                              .drop = collective_drop,
                              .accesses = accesses,
                              .access_count = operation_accesses(&operation, accesses),
                              .duration_ns = operation_duration_ns(&operation),
                              .flags = VNODE_OP_WAITS};
  enum vnode_status status = come_behind_others(chain, stream);
  if (status)
    return code_of(status);
  comm_hold(operation.comm, stream, operation.captured);
  status = vnode_op_submit(stream, &op);
  if (!status)
    others_come_behind(chain, stream);
  return status ? code_of(status) : (ncclResult_t)atomic_load(&operation.comm->async);
}

/* Messages of one group, of any communicators. */
struct batch {
  struct operation *operations;
  size_t count;
};

static void batch_work(void *args) {
  const struct batch *batch = args;
  count_running(batch->operations, batch->count, 1);
  ncclResult_t code = p2p_run(batch->operations, batch->count);
  for (size_t i = 0; i < batch->count && code != ncclSuccess; i++)
    comm_set_async(batch->operations[i].comm, code);
  count_running(batch->operations, batch->count, -1);
}

static void batch_drop(void *args) {
  const struct batch *batch = args;
  for (size_t i = 0; i < batch->count; i++)
    comm_drop(batch->operations[i].comm, batch->operations[i].captured);
  free(batch->operations);
}

static enum vnode_status put_batch(const struct batch *batch, struct vnode_stream *stream) {
  struct vnode_access *accesses = malloc(batch->count * OPERATION_ACCESSES * sizeof *accesses);
  int64_t send_ns = p2p_load_ns(batch->operations, batch->count, OP_SEND),
          recv_ns = p2p_load_ns(batch->operations, batch->count, OP_RECV);
  size_t access_count = 0;
  for (size_t i = 0; i < batch->count; i++) {
    comm_hold(batch->operations[i].comm, stream, batch->operations[i].captured);
    if (accesses)
      access_count += operation_accesses(&batch->operations[i], accesses + access_count);
  }
  enum vnode_status status = vnode_op_submit(stream, &(struct vnode_op){.name = "SendRecv",
                                                                        .work = batch_work,
                                                                        .args = batch,
                                                                        .args_bytes = sizeof *batch,
                                                                        .drop = batch_drop,
                                                                        .accesses = accesses,
                                                                        .access_count = access_count,
                                                                        .duration_ns = send_ns > recv_ns ? send_ns : recv_ns,
                                                                        .flags = VNODE_OP_WAITS});
  free(accesses);
  return status;
}

static ncclResult_t submit_batch(const struct operation *operations, size_t count, struct vnode_stream *stream) {
  ncclResult_t code = p2p_check(operations, count);
  if (code != ncclSuccess)
    return code;
  struct batch batch = {.operations = malloc(count * sizeof *operations), .count = count};
  if (!batch.operations)
    return nccl_fail(ncclSystemError, "out of memory");
  memcpy(batch.operations, operations, count * sizeof *operations);
  enum vnode_status status = VNODE_OK;
  for (size_t i = 0; i < count && !status; i++) {
    struct order_chain *chain = chain_of(operations[i].comm, stream);
    batch.operations[i].captured = chain == &operations[i].comm->captured;
    status = come_behind_others(chain, stream);
  }
  if (status) {
    free(batch.operations);
    return code_of(status);
  }
  status = put_batch(&batch, stream);
  for (size_t i = 0; i < count; i++) { /* batch.operations may be gone */
    if (!status)
      others_come_behind(chain_of(operations[i].comm, stream), stream);
    ncclResult_t own = status ? code_of(status) : (ncclResult_t)atomic_load(&operations[i].comm->async);
    code = code == ncclSuccess ? own : code;
  }
  return code;
}

/* --------------------------------------------------------------------------------------- one group's operations in order */

static bool same_stream_before(const struct operation *operations, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (operations[i].stream == operations[index].stream)
      return true;
  return false;
}

/* A group is one operation of all its streams: it runs on the first, behind all of them (`begins`), and all go on behind it.
 */
static enum vnode_status join_streams(const struct operation *operations, size_t count, bool begins) {
  struct ncclComm *comm = operations[0].comm;
  struct vnode_stream *first = stream_of(&operations[0]);
  enum vnode_status status = VNODE_OK;
  for (size_t i = 1; i < count && !status; i++) {
    if (same_stream_before(operations, i))
      continue;
    if (!comm->joint)
      status = vnode_event_create(VNODE_EVENT_DISABLE_TIMING, &comm->joint);
    if (!status)
      status = vnode_event_record(comm->joint, begins ? stream_of(&operations[i]) : first);
    if (!status)
      status = vnode_event_wait(begins ? first : stream_of(&operations[i]), comm->joint);
  }
  return status;
}

static size_t select_p2p(const struct operation *from, size_t count, struct operation *to) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++)
    if (is_p2p(&from[i]))
      to[found++] = from[i];
  return found;
}

/* Distinct communicators in ascending order of their nonces; true when two are ranks of the same one. */
static bool list_comms(const struct operation *operations, size_t count, struct ncclComm **comms, size_t *found) {
  bool siblings = false;
  *found = 0;
  for (size_t i = 0; i < count; i++) {
    struct ncclComm *comm = operations[i].comm;
    size_t at = 0;
    while (at < *found && comms[at] != comm)
      at++;
    if (at < *found)
      continue;
    while (at > 0 && comms[at - 1]->shared->nonce > comm->shared->nonce) {
      comms[at] = comms[at - 1];
      at--;
    }
    comms[at] = comm;
    ++*found;
  }
  for (size_t i = 1; i < *found; i++)
    siblings |= comms[i]->shared->nonce == comms[i - 1]->shared->nonce;
  return siblings;
}

/* Collectives, communicator by communicator, then all messages. pre: no two of the communicators are ranks of the same one.
 */
static ncclResult_t submit_all(const struct operation *operations, size_t count, struct ncclComm *const *comms,
                               size_t comm_count) {
  struct vnode_stream *stream = stream_of(&operations[0]);
  struct operation *p2p = malloc(count * sizeof *p2p);
  if (!p2p)
    return nccl_fail(ncclSystemError, "out of memory");
  for (size_t c = 0; c < comm_count; c++)
    comm_enter(comms[c]);
  ncclResult_t code = code_of(join_streams(operations, count, true));
  for (size_t c = 0; c < comm_count; c++)
    for (size_t i = 0; i < count && code == ncclSuccess; i++)
      if (operations[i].comm == comms[c] && !is_p2p(&operations[i]))
        code = submit_collective(&operations[i], stream);
  size_t p2p_count = select_p2p(operations, count, p2p);
  if (code == ncclSuccess && p2p_count)
    code = submit_batch(p2p, p2p_count, stream);
  free(p2p);
  ncclResult_t joined = code_of(join_streams(operations, count, false));
  for (size_t c = 0; c < comm_count; c++)
    comm_leave(comms[c]);
  return code == ncclSuccess ? joined : code;
}

/* ------------------------------------------------------------------------------------------------- helper threads */

struct helper {
  pthread_t thread;
  bool started;
  ncclResult_t code;
  int device;
  int64_t host_ns;
  const struct operation *operations; /* of which those of `comm` are meant */
  size_t operation_count;
  struct ncclComm *comm;
  const struct init_job *jobs; /* of which those that share jobs[first]'s parent are meant */
  size_t job_count, first;
};

static ncclResult_t helper_operations(struct helper *helper) {
  struct operation *own = malloc(helper->operation_count * sizeof *own);
  size_t count = 0;
  if (!own)
    return nccl_fail(ncclSystemError, "out of memory");
  for (size_t i = 0; i < helper->operation_count; i++)
    if (helper->operations[i].comm == helper->comm)
      own[count++] = helper->operations[i];
  ncclResult_t code = submit_all(own, count, &helper->comm, 1);
  free(own);
  return code;
}

/* A helper acts for the calling thread: their clocks are one. */
static void reach(int64_t host_ns) {
  if (host_ns > vnode_host_now_ns())
    vnode_host_charge(host_ns - vnode_host_now_ns());
}

static ncclResult_t helper_jobs(struct helper *helper) {
  const struct init_job *first = &helper->jobs[helper->first];
  ncclResult_t code = comm_make(first);
  for (size_t i = helper->first + 1; first->parent && i < helper->job_count && code == ncclSuccess; i++)
    if (helper->jobs[i].parent == first->parent)
      code = comm_make(&helper->jobs[i]);
  return code;
}

static void *helper_main(void *argument) {
  struct helper *helper = argument;
  vnode_device_set(helper->device);
  reach(helper->host_ns);
  helper->code = helper->comm ? helper_operations(helper) : helper_jobs(helper);
  helper->host_ns = vnode_host_now_ns();
  return NULL;
}

/* One after another on the calling thread, or each on its own when they wait for each other. */
static ncclResult_t run_helpers(struct helper *helpers, size_t count, bool in_threads) {
  ncclResult_t code = ncclSuccess;
  int device = vnode_device_current();
  for (size_t i = 0; i < count; i++) {
    helpers[i].host_ns = vnode_host_now_ns();
    if (in_threads)
      helpers[i].started = pthread_create(&helpers[i].thread, NULL, helper_main, &helpers[i]) == 0;
    else
      helper_main(&helpers[i]);
    if (in_threads && !helpers[i].started)
      helpers[i].code = nccl_fail(ncclSystemError, "cannot start a thread");
  }
  for (size_t i = 0; i < count; i++) {
    if (helpers[i].started)
      pthread_join(helpers[i].thread, NULL);
    reach(helpers[i].host_ns);
    code = code == ncclSuccess ? helpers[i].code : code;
  }
  vnode_device_set(device);
  return code;
}

/* --------------------------------------------------------------------------------------------------- the group's end */

static ncclResult_t run_jobs(const struct init_job *jobs, size_t count) {
  struct helper *helpers = calloc(count, sizeof *helpers);
  size_t used = 0;
  if (!helpers)
    return nccl_fail(ncclSystemError, "out of memory");
  for (size_t i = 0; i < count; i++) {
    bool known = false;
    for (size_t j = 0; j < used && jobs[i].parent; j++)
      known |= jobs[helpers[j].first].parent == jobs[i].parent;
    if (!known)
      helpers[used++] = (struct helper){.device = jobs[i].device, .jobs = jobs, .job_count = count, .first = i};
  }
  ncclResult_t code = run_helpers(helpers, used, used > 1);
  free(helpers);
  return code;
}

/* Ranks of one communicator in one process. Where operations only go into streams, nothing waits. */
static ncclResult_t run_siblings(const struct operation *operations, size_t count, struct ncclComm **comms,
                                 size_t comm_count) {
  struct helper *helpers = calloc(comm_count, sizeof *helpers);
  if (!helpers)
    return nccl_fail(ncclSystemError, "out of memory");
  for (size_t i = 0; i < comm_count; i++)
    helpers[i] =
        (struct helper){.device = comms[i]->device, .operations = operations, .operation_count = count, .comm = comms[i]};
  ncclResult_t code = run_helpers(helpers, comm_count, !vnode_stream_is_late(stream_of(&operations[0])));
  free(helpers);
  return code;
}

static ncclResult_t run_operations(const struct operation *operations, size_t count) {
  struct ncclComm **comms = malloc(count * sizeof *comms);
  size_t comm_count;
  if (!comms)
    return nccl_fail(ncclSystemError, "out of memory");
  ncclResult_t code = list_comms(operations, count, comms, &comm_count) ? run_siblings(operations, count, comms, comm_count)
                                                                        : submit_all(operations, count, comms, comm_count);
  free(comms);
  return code;
}

/* -------------------------------------------------------------------------------------------------------- submitting */

static bool grow(void **items, size_t count, size_t *room, size_t item_bytes) {
  if (count < *room)
    return true;
  size_t wanted = *room ? *room * 2 : 16;
  void *bigger = realloc(*items, wanted * item_bytes);
  if (!bigger)
    return false;
  *items = bigger;
  *room = wanted;
  return true;
}

bool group_open(void) {
  return group.depth > 0;
}

ncclResult_t group_error(ncclResult_t code) {
  if (group.depth > 0 && code != ncclSuccess && group.error == ncclSuccess)
    group.error = code;
  return code;
}

static ncclResult_t submit_one(const struct operation *operation) {
  struct ncclComm *comm = operation->comm;
  comm_enter(comm);
  ncclResult_t code = is_p2p(operation) ? submit_batch(operation, 1, stream_of(operation))
                                        : submit_collective(operation, stream_of(operation));
  comm_leave(comm);
  return code;
}

ncclResult_t group_submit(const struct operation *operation) {
  if (!group_open())
    return submit_one(operation);
  if (!grow((void **)&group.operations, group.operation_count, &group.operation_room, sizeof *operation))
    return group_error(nccl_fail(ncclSystemError, "out of memory"));
  group.operations[group.operation_count++] = *operation;
  return ncclSuccess;
}

ncclResult_t group_submit_init(const struct init_job *job) {
  if (!group_open())
    return comm_make(job);
  if (!grow((void **)&group.jobs, group.job_count, &group.job_room, sizeof *job))
    return group_error(nccl_fail(ncclSystemError, "out of memory"));
  group.jobs[group.job_count++] = *job;
  return ncclSuccess;
}

ncclResult_t pncclGroupStart(void) {
  group.depth++;
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd(void) {
  if (group.depth == 0)
    return nccl_fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  if (--group.depth > 0)
    return ncclSuccess;
  ncclResult_t code = group.error;
  size_t job_count = group.job_count, operation_count = group.operation_count;
  group.error = ncclSuccess;
  group.job_count = group.operation_count = 0;
  if (code == ncclSuccess && job_count)
    code = run_jobs(group.jobs, job_count);
  if (code == ncclSuccess && operation_count)
    code = run_operations(group.operations, operation_count);
  free(group.jobs);
  free(group.operations);
  group.jobs = NULL;
  group.operations = NULL;
  group.job_room = group.operation_room = 0;
  return code;
}

NCCL_ENTRY(ncclGroupStart);
NCCL_ENTRY(ncclGroupEnd);
