/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the NCCL stand-in share. Life of a call: an entry point checks its arguments and hands a `struct
 * operation` to group_submit; inside a group it waits there, outside it is a group of one. At the group's end operations are
 * put into streams (nccl_group.c); when a stream gets there, collectives run in collective_run, point-to-point messages
 * together in p2p_run. A communicator lives until its handle is destroyed and no stream or graph holds an operation of it.
 *
 * Modelled time: a collective starts when the last rank is ready and ends at the same time for all. A message starts when
 * both sides are ready; a sender does not wait for the receiver of a message that fits the buffers between them.
 *
 * Public names are weak aliases of strong pncclX, as in NCCL, so that a shim can reach the real one.
 */
#ifndef VNODE_NCCL_INTERNAL_H
#define VNODE_NCCL_INTERNAL_H

#include "core.h"
#include "nccl_reduce.h"
#include "nccl_transport.h"

#define NCCL_ENTRY(name) extern __typeof__(name) name __attribute__((weak, alias("p" #name)))

/* nccl.h declares these two without a prototype. */
ncclResult_t pncclGroupStart(void);
ncclResult_t pncclGroupEnd(void);

#define COMM_MAGIC 0x6d6d6f634c43434eull

enum operation_kind {
  OP_ALL_REDUCE,
  OP_ALL_GATHER,
  OP_REDUCE_SCATTER,
  OP_BROADCAST,
  OP_REDUCE,
  OP_ALL_TO_ALL,
  OP_GATHER,
  OP_SCATTER,
  OP_SEND,
  OP_RECV,
  OP_KINDS,
};

struct operation {
  enum operation_kind kind;
  struct ncclComm *comm;
  const void *send;
  void *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  struct user_op user; /* live: PreMulSum, a copy: the program may destroy its operator before the group ends */
  int root;            /* or the peer */
  cudaStream_t stream;
  bool captured; /* part of a graph: runs at every launch */
};

/* A communicator to be made. */
enum init_kind { INIT_BY_ID, INIT_SPLIT, INIT_SHRINK, INIT_GROW };
struct init_job {
  enum init_kind kind;
  ncclComm_t *out;
  struct ncclComm *parent; /* NULL by id, and for the new ranks of a grow */
  ncclUniqueId id;
  bool has_id;
  int nranks, rank, device;
  int color, key;
  unsigned members; /* shrink: bit per rank of the parent that stays */
};

/* nccl_collective.c. Blocks until this rank's part is done. pre: called from a work. */
ncclResult_t collective_run(const struct operation *operation);
const char *operation_name(enum operation_kind kind); /* "AllReduce" … as in record.def */
uint64_t operation_ledger_bytes(const struct operation *operation);
/* Modelled, from the last rank's start. */
int64_t operation_duration_ns(const struct operation *operation);
/* The memory that it touches on this rank, as far as the node knows it. Returns the count. */
enum { OPERATION_ACCESSES = 3 };
size_t operation_accesses(const struct operation *operation, struct vnode_access accesses[OPERATION_ACCESSES]);

/* nccl_p2p.c. Progresses all sends and receives together, each pair's messages in order. pre: called from a work. */
ncclResult_t p2p_run(const struct operation *operations, size_t count);
/* A message to oneself needs its other half among them, else it would wait for ever. */
ncclResult_t p2p_check(const struct operation *operations, size_t count);
/* Modelled time of what this rank sends, or receives, in these operations. */
int64_t p2p_load_ns(const struct operation *operations, size_t count, enum operation_kind direction);

/* nccl_group.c */
ncclResult_t group_submit(const struct operation *operation);
ncclResult_t group_submit_init(const struct init_job *job);
/* Inside a group an argument error spoils the group; returns `code`. */
ncclResult_t group_error(ncclResult_t code);
bool group_open(void);

/* nccl_comm.c */
ncclResult_t comm_make(const struct init_job *job);
ncclResult_t comm_check(const struct ncclComm *comm, const char *function);
/* A call that may see its communicator aborted beside it. */
void comm_enter(struct ncclComm *comm);
void comm_leave(struct ncclComm *comm);
/* An operation that is handed to a stream holds its communicator, until its drop. */
void comm_hold(struct ncclComm *comm, struct vnode_stream *stream, bool captured);
void comm_drop(struct ncclComm *comm, bool captured);

/* nccl_memory.c: device memory from the driver, owner NCCL. */
ncclResult_t memory_alloc(struct nccl_block **list, int device, size_t bytes, void **out);
/* NotFound is InvalidArgument. */
ncclResult_t memory_free(struct nccl_block **list, void *base);
void memory_free_all(struct nccl_block **list);
uint64_t memory_total(const struct nccl_block *list);
/* What a communicator of `nranks` holds. */
ncclResult_t memory_alloc_comm(struct ncclComm *comm);

#endif
