/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups, per thread. What is submitted between the outermost ncclGroupStart and ncclGroupEnd runs at the end: first the
 * communicators to be made, then collectives, communicator by communicator in the order of their nonces (the same on every
 * rank, so ranks that issue them in different orders cannot block each other), then all point-to-point messages together.
 *
 * A thread that drives several ranks of one communicator in a group gets a helper thread per rank: each of them has to wait
 * for the others.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "nccl_internal.h"

static _Thread_local struct {
  int depth;
  ncclResult_t error;
  struct operation *operations;
  size_t operation_count, operation_room;
  struct init_job *jobs;
  size_t job_count, job_room;
} group;

/* --------------------------------------------------------------------------------------------------------- running */

static ncclResult_t submit_code(enum vnode_status status, struct ncclComm *comm) {
  if (status == VNODE_OK)
    return (ncclResult_t)atomic_load(&comm->async);
  return nccl_fail(ncclUnhandledCudaError, status == VNODE_NOT_INITIALIZED
                                               ? "CUDA does not work in a forked child of a process that has used it"
                                               : "the stream refused the operation");
}

static void collective_work(void *args) {
  const struct operation *operation = args;
  ncclResult_t code = collective_run(operation);
  if (code != ncclSuccess)
    comm_set_async(operation->comm, code);
}

struct batch {
  struct operation *operations; /* owned by the work */
  size_t count;
};

static void p2p_work(void *args) {
  const struct batch *batch = args;
  ncclResult_t code = p2p_run(batch->operations, batch->count);
  for (size_t i = 0; i < batch->count && code != ncclSuccess; i++)
    comm_set_async(batch->operations[i].comm, code);
  free(batch->operations);
}

static bool is_p2p(const struct operation *operation) {
  return operation->kind == OP_SEND || operation->kind == OP_RECV;
}

static ncclResult_t run_collective(const struct operation *operation) {
  struct ncclComm *comm = operation->comm;
  atomic_fetch_add(&comm->users, 1);
  ncclResult_t code = submit_code(vnode_stream_submit((struct vnode_stream *)operation->stream, "nccl collective",
                                                      collective_work, operation, sizeof *operation),
                                  comm);
  atomic_fetch_sub(&comm->users, 1);
  return code;
}

/* Messages on several streams run as one piece of work on the first one's stream: in eager order there is no difference. */
static ncclResult_t run_p2p(const struct operation *operations, size_t count) {
  struct batch batch = {.operations = malloc(count * sizeof *operations), .count = count};
  ncclResult_t code = ncclSuccess;
  if (!batch.operations)
    return nccl_fail(ncclSystemError, "out of memory");
  memcpy(batch.operations, operations, count * sizeof *operations);
  for (size_t i = 0; i < count; i++)
    atomic_fetch_add(&operations[i].comm->users, 1);
  enum vnode_status status = vnode_stream_submit((struct vnode_stream *)operations[0].stream, "nccl point-to-point",
                                                 p2p_work, &batch, sizeof batch);
  if (status != VNODE_OK)
    free(batch.operations);
  for (size_t i = 0; i < count; i++) {
    ncclResult_t own = submit_code(status, operations[i].comm);
    code = code == ncclSuccess ? own : code;
    atomic_fetch_sub(&operations[i].comm->users, 1);
  }
  return code;
}

/* Everything of one communicator (NULL: all) that is or is not point-to-point. */
static size_t select_operations(const struct operation *from, size_t count, const struct ncclComm *comm, bool p2p,
                                struct operation *to) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++)
    if ((!comm || from[i].comm == comm) && is_p2p(&from[i]) == p2p)
      to[found++] = from[i];
  return found;
}

static ncclResult_t run_comm_collectives(const struct operation *operations, size_t count, const struct ncclComm *comm) {
  ncclResult_t code = ncclSuccess;
  for (size_t i = 0; i < count && code == ncclSuccess; i++)
    if (operations[i].comm == comm && !is_p2p(&operations[i]))
      code = run_collective(&operations[i]);
  return code;
}

/* ------------------------------------------------------------------------------------------------- helper threads */

struct helper {
  pthread_t thread;
  bool started;
  ncclResult_t code;
  int device;
  const struct operation *operations; /* of which those of `comm` are meant */
  size_t operation_count;
  struct ncclComm *comm;
  const struct init_job *jobs; /* of which those that share jobs[first]'s parent are meant */
  size_t job_count, first;
};

static ncclResult_t helper_operations(struct helper *helper) {
  ncclResult_t code = run_comm_collectives(helper->operations, helper->operation_count, helper->comm);
  struct operation *p2p = malloc(helper->operation_count * sizeof *p2p);
  if (!p2p)
    return nccl_fail(ncclSystemError, "out of memory");
  size_t count = select_operations(helper->operations, helper->operation_count, helper->comm, true, p2p);
  if (code == ncclSuccess && count)
    code = run_p2p(p2p, count);
  free(p2p);
  return code;
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
  helper->code = helper->comm ? helper_operations(helper) : helper_jobs(helper);
  return NULL;
}

static ncclResult_t run_helpers(struct helper *helpers, size_t count) {
  ncclResult_t code = ncclSuccess;
  if (count == 1) {
    int device = vnode_device_current();
    helper_main(&helpers[0]);
    vnode_device_set(device);
    return helpers[0].code;
  }
  for (size_t i = 0; i < count; i++)
    helpers[i].started = pthread_create(&helpers[i].thread, NULL, helper_main, &helpers[i]) == 0;
  for (size_t i = 0; i < count; i++) {
    if (helpers[i].started)
      pthread_join(helpers[i].thread, NULL);
    else
      helpers[i].code = nccl_fail(ncclSystemError, "cannot start a thread");
    code = code == ncclSuccess ? helpers[i].code : code;
  }
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
  ncclResult_t code = run_helpers(helpers, used);
  free(helpers);
  return code;
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

static ncclResult_t run_siblings(const struct operation *operations, size_t count, struct ncclComm **comms,
                                 size_t comm_count) {
  struct helper *helpers = calloc(comm_count, sizeof *helpers);
  if (!helpers)
    return nccl_fail(ncclSystemError, "out of memory");
  for (size_t i = 0; i < comm_count; i++)
    helpers[i] =
        (struct helper){.device = comms[i]->device, .operations = operations, .operation_count = count, .comm = comms[i]};
  ncclResult_t code = run_helpers(helpers, comm_count);
  free(helpers);
  return code;
}

static ncclResult_t run_operations(const struct operation *operations, size_t count) {
  ncclResult_t code = ncclSuccess;
  size_t comm_count;
  struct ncclComm **comms = malloc(count * sizeof *comms);
  struct operation *p2p = malloc(count * sizeof *p2p);
  if (!comms || !p2p) {
    code = nccl_fail(ncclSystemError, "out of memory");
    goto out;
  }
  if (list_comms(operations, count, comms, &comm_count)) {
    code = run_siblings(operations, count, comms, comm_count);
    goto out;
  }
  for (size_t i = 0; i < comm_count && code == ncclSuccess; i++)
    code = run_comm_collectives(operations, count, comms[i]);
  size_t p2p_count = select_operations(operations, count, NULL, true, p2p);
  if (code == ncclSuccess && p2p_count)
    code = run_p2p(p2p, p2p_count);
out:
  free(comms);
  free(p2p);
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

ncclResult_t group_submit(const struct operation *operation) {
  if (!group_open())
    return is_p2p(operation) ? run_p2p(operation, 1) : run_collective(operation);
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
