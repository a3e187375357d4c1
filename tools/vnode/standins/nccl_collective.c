/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives through the shared slots. A collective is cut into steps; in each step every rank fills its slot, all meet at
 * a barrier, and every rank takes what it needs. Slots alternate between two halves: a half is filled again two steps later,
 * and between lies a barrier that a rank enters only after it has drained the half. So one barrier a step is enough.
 *
 * Large all-reduces (and reduces) have two barriers a step: each rank first reduces its share of the chunk into its own
 * slot, then all copy the shares, so that the work is 1/n per rank. Either way a sum is taken in rank order, once per
 * element or equally by all: results are bit-identical on all ranks and in every run.
 */
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "nccl_internal.h"

/* Up to here every rank reduces everything itself: a second barrier costs more. */
#define SMALL_REDUCE_BYTES ((size_t)32 << 10)

struct step {
  const struct operation *operation;
  struct ncclComm *comm;
  size_t total;    /* bytes per rank (or per part) of the whole operation */
  size_t offset;   /* of this step in it */
  size_t bytes;    /* in this step */
  size_t part_max; /* stride of parts within a slot */
  unsigned parity;
  bool shared_work; /* reduce in shares */
  uint64_t scalars[RANKS_MAX];
  int64_t ready_ns;  /* of the last rank */
  ncclResult_t code; /* of a drain that waits */
};

struct kind_row {
  const char *name;
  bool parts; /* a slot holds one part per rank */
  bool reduces;
  bool times_ranks; /* ledger: count·size·nranks */
  void (*fill)(const struct step *step);
  void (*drain)(struct step *step);
};

static unsigned char *slot_of(const struct step *step, int rank) {
  return segment_slot(step->comm, rank, step->parity);
}

static const unsigned char *send_at(const struct step *step, int part) {
  return (const unsigned char *)step->operation->send + (size_t)part * step->total + step->offset;
}

static unsigned char *recv_at(const struct step *step, int part) {
  return (unsigned char *)step->operation->recv + (size_t)part * step->total + step->offset;
}

static void copy(void *to, const void *from, size_t bytes) {
  if (to != from && bytes)
    memmove(to, from, bytes);
}

/* Share `rank` of this step's elements: [*from, *from + *count). */
static void share_of(const struct step *step, int rank, size_t *from, size_t *count) {
  size_t elems = step->bytes / reduce_type_bytes(step->operation->type), n = (size_t)step->comm->nranks, r = (size_t)rank;
  *from = elems * r / n;
  *count = elems * (r + 1) / n - *from;
}

/* dst = reduction of every rank's data at byte `at` of its slot; this rank's own is read at `own`. */
static void reduce_slots(const struct step *step, size_t at, const void *own, size_t count, void *dst) {
  const struct operation *operation = step->operation;
  const void *src[RANKS_MAX];
  for (int r = 0; r < step->comm->nranks; r++)
    src[r] = r == step->comm->rank ? own : slot_of(step, r) + at;
  struct reduction reduction = {.type = operation->type,
                                .op = operation->user.live ? ncclSum : operation->op,
                                .sources = step->comm->nranks,
                                .scalars = operation->user.live ? step->scalars : NULL};
  reduce_run(&reduction, src, count, dst);
}

/* ------------------------------------------------------------------------------------------------ fill and drain */

static void fill_own(const struct step *step) {
  copy(slot_of(step, step->comm->rank), send_at(step, 0), step->bytes);
}

static void fill_if_root(const struct step *step) {
  if (step->comm->rank == step->operation->root)
    fill_own(step);
}

static void fill_if_not_root(const struct step *step) {
  if (step->comm->rank != step->operation->root)
    fill_own(step);
}

static void fill_parts(const struct step *step) {
  for (int r = 0; r < step->comm->nranks; r++)
    if (r != step->comm->rank)
      copy(slot_of(step, step->comm->rank) + (size_t)r * step->part_max, send_at(step, r), step->bytes);
}

static void fill_parts_if_root(const struct step *step) {
  if (step->comm->rank == step->operation->root)
    fill_parts(step);
}

static void drain_all_gather(struct step *step) {
  for (int r = 0; r < step->comm->nranks; r++)
    copy(recv_at(step, r), r == step->comm->rank ? send_at(step, 0) : slot_of(step, r), step->bytes);
}

static void drain_gather(struct step *step) {
  if (step->comm->rank == step->operation->root)
    drain_all_gather(step);
}

static void drain_broadcast(struct step *step) {
  int root = step->operation->root;
  copy(recv_at(step, 0), step->comm->rank == root ? send_at(step, 0) : slot_of(step, root), step->bytes);
}

static void drain_scatter(struct step *step) {
  int rank = step->comm->rank, root = step->operation->root;
  copy(recv_at(step, 0), rank == root ? send_at(step, rank) : slot_of(step, root) + (size_t)rank * step->part_max,
       step->bytes);
}

static void drain_all_to_all(struct step *step) {
  int rank = step->comm->rank;
  for (int r = 0; r < step->comm->nranks; r++)
    copy(recv_at(step, r), r == rank ? send_at(step, r) : slot_of(step, r) + (size_t)rank * step->part_max, step->bytes);
}

static void drain_reduce_scatter(struct step *step) {
  int rank = step->comm->rank;
  size_t count = step->bytes / reduce_type_bytes(step->operation->type);
  reduce_slots(step, (size_t)rank * step->part_max, send_at(step, rank), count, recv_at(step, 0));
}

/* Every rank leaves its share's result in its own slot, where only it reads that share. */
static void drain_shares(struct step *step, bool wanted) {
  size_t size = reduce_type_bytes(step->operation->type), from, count;
  share_of(step, step->comm->rank, &from, &count);
  unsigned char *own = slot_of(step, step->comm->rank) + from * size;
  reduce_slots(step, from * size, own, count, own);
  step->code = comm_barrier(step->comm);
  if (step->code != ncclSuccess || !wanted)
    return;
  for (int r = 0; r < step->comm->nranks; r++) {
    share_of(step, r, &from, &count);
    copy(recv_at(step, 0) + from * size, slot_of(step, r) + from * size, count * size);
  }
}

static void drain_reduced(struct step *step, bool wanted) {
  if (step->shared_work)
    drain_shares(step, wanted);
  else if (wanted)
    reduce_slots(step, 0, send_at(step, 0), step->bytes / reduce_type_bytes(step->operation->type), recv_at(step, 0));
}

static void drain_all_reduce(struct step *step) {
  drain_reduced(step, true);
}

static void drain_reduce(struct step *step) {
  drain_reduced(step, step->comm->rank == step->operation->root);
}

static const struct kind_row kinds[OP_KINDS] = {
    [OP_ALL_REDUCE] = {"AllReduce", false, true, false, fill_own, drain_all_reduce},
    [OP_ALL_GATHER] = {"AllGather", false, false, true, fill_own, drain_all_gather},
    [OP_REDUCE_SCATTER] = {"ReduceScatter", true, true, true, fill_parts, drain_reduce_scatter},
    [OP_BROADCAST] = {"Broadcast", false, false, false, fill_if_root, drain_broadcast},
    [OP_REDUCE] = {"Reduce", false, true, false, fill_own, drain_reduce},
    [OP_ALL_TO_ALL] = {"AlltoAll", true, false, true, fill_parts, drain_all_to_all},
    [OP_GATHER] = {"Gather", false, false, true, fill_if_not_root, drain_gather},
    [OP_SCATTER] = {"Scatter", true, false, true, fill_parts_if_root, drain_scatter},
    [OP_SEND] = {.name = "Send"},
    [OP_RECV] = {.name = "Recv"},
};

const char *operation_name(enum operation_kind kind) {
  return kinds[kind].name;
}

uint64_t operation_ledger_bytes(const struct operation *operation) {
  uint64_t bytes = (uint64_t)operation->count * reduce_type_bytes(operation->type);
  return kinds[operation->kind].times_ranks ? bytes * (uint64_t)operation->comm->nranks : bytes;
}

int64_t operation_duration_ns(const struct operation *operation) {
  return vnode_model_collective_ns(operation_name(operation->kind), operation->comm->nranks,
                                   operation_ledger_bytes(operation));
}

/* Which buffers hold something on this rank, and how many times `count` elements. */
struct buffers {
  size_t send, recv;
};

static struct buffers buffers_of(const struct operation *operation) {
  size_t n = (size_t)operation->comm->nranks, root = operation->comm->rank == operation->root;
  switch (operation->kind) {
  case OP_ALL_REDUCE:
    return (struct buffers){1, 1};
  case OP_ALL_GATHER:
    return (struct buffers){1, n};
  case OP_REDUCE_SCATTER:
    return (struct buffers){n, 1};
  case OP_BROADCAST:
    return (struct buffers){root, root && operation->send == operation->recv ? 0 : 1};
  case OP_REDUCE:
    return (struct buffers){1, root};
  case OP_ALL_TO_ALL:
    return (struct buffers){n, n};
  case OP_GATHER:
    return (struct buffers){1, root * n};
  case OP_SCATTER:
    return (struct buffers){root * n, 1};
  case OP_SEND:
    return (struct buffers){1, 0};
  default:
    return (struct buffers){0, 1};
  }
}

static size_t add_access(struct vnode_access *to, const void *at, size_t bytes, bool write) {
  if (!bytes || !vnode_memory_query(at, NULL))
    return 0;
  *to = (struct vnode_access){.at = at, .row_bytes = bytes, .rows = 1, .write = write};
  return 1;
}

size_t operation_accesses(const struct operation *operation, struct vnode_access accesses[OPERATION_ACCESSES]) {
  struct buffers buffers = buffers_of(operation);
  size_t bytes = operation->count * reduce_type_bytes(operation->type);
  size_t count = add_access(accesses, operation->send, buffers.send * bytes, false);
  count += add_access(accesses + count, operation->recv, buffers.recv * bytes, true);
  if (operation->user.live && operation->user.in_device_memory)
    count += add_access(accesses + count, (const void *)(uintptr_t)operation->user.scalar,
                        reduce_type_bytes(operation->user.type), false);
  return count;
}

/* ---------------------------------------------------------------------------------------------------- agreement */

static void state_facts(struct step *step) {
  const struct operation *operation = step->operation;
  bool reduces = kinds[operation->kind].reduces;
  struct call_facts facts = {.kind = operation->kind,
                             .root = (uint32_t)operation->root,
                             .bytes = step->total,
                             .type = reduces ? operation->type : 0,
                             .op = reduces ? (operation->user.live ? ncclNumOps : operation->op) : 0,
                             .ready_ns = vnode_op_ready_ns()};
  if (operation->user.in_device_memory)
    memcpy(&facts.scalar, (const void *)(uintptr_t)operation->user.scalar, reduce_type_bytes(operation->user.type));
  else
    facts.scalar = operation->user.scalar;
  step->comm->shared->rank[step->comm->rank].call[step->parity] = facts;
}

static bool same_facts(const struct call_facts *a, const struct call_facts *b) {
  return a->kind == b->kind && a->root == b->root && a->bytes == b->bytes && a->type == b->type && a->op == b->op;
}

static ncclResult_t compare_facts(struct step *step) {
  struct ncclComm *comm = step->comm;
  const struct call_facts *own = &comm->shared->rank[comm->rank].call[step->parity];
  for (int r = 0; r < comm->nranks; r++) {
    const struct call_facts *other = &comm->shared->rank[r].call[step->parity];
    step->scalars[r] = other->scalar;
    if (other->ready_ns > step->ready_ns)
      step->ready_ns = other->ready_ns;
    if (same_facts(own, other))
      continue;
    return comm_set_async(
        comm, nccl_fail(ncclInvalidUsage,
                        "ranks disagree: rank %d calls %s (%llu bytes, type %u, op %u, root %u), rank %d calls %s (%llu "
                        "bytes, type %u, op %u, root %u)",
                        comm->rank, kinds[own->kind].name, (unsigned long long)own->bytes, own->type, own->op, own->root, r,
                        kinds[other->kind].name, (unsigned long long)other->bytes, other->type, other->op, other->root));
  }
  return ncclSuccess;
}

/* -------------------------------------------------------------------------------------------------------- steps */

static ncclResult_t run_step(struct step *step, const struct kind_row *row) {
  bool first = step->offset == 0;
  step->parity = (unsigned)(step->comm->steps++ & 1);
  if (first)
    state_facts(step);
  if (step->comm->nranks > 1)
    row->fill(step);
  ncclResult_t code = comm_barrier(step->comm);
  if (code == ncclSuccess && first)
    code = compare_facts(step);
  if (code != ncclSuccess)
    return code;
  row->drain(step);
  return step->code;
}

ncclResult_t collective_run(const struct operation *operation) {
  const struct kind_row *row = &kinds[operation->kind];
  struct ncclComm *comm = operation->comm;
  struct step step = {.operation = operation,
                      .comm = comm,
                      .ready_ns = vnode_op_ready_ns(),
                      .total = operation->count * reduce_type_bytes(operation->type)};
  size_t limit = row->parts ? SLOT_BYTES / (size_t)comm->nranks / 64 * 64 : SLOT_BYTES;
  if (operation->kind == OP_ALL_REDUCE || operation->kind == OP_REDUCE)
    step.shared_work = comm->nranks > 1 && step.total > SMALL_REDUCE_BYTES;
  step.part_max = limit;
  pthread_mutex_lock(&comm->turn);
  ncclResult_t code = comm_interrupted(comm); /* before this rank counts as arrived */
  for (step.offset = 0; step.offset < step.total && code == ncclSuccess; step.offset += limit) {
    step.bytes = step.total - step.offset < limit ? step.total - step.offset : limit;
    code = run_step(&step, row);
  }
  pthread_mutex_unlock(&comm->turn);
  if (code == ncclSuccess)
    vnode_op_set_span(step.ready_ns, step.ready_ns + operation_duration_ns(operation));
  return code;
}
