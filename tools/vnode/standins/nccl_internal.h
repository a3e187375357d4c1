/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the NCCL stand-in share. Life of a call: an entry point checks its arguments and hands a `struct
 * operation` to group_submit; inside a group it waits there, outside it is a group of one; group_run executes
 * (nccl_group.c), collectives through collective_run, point-to-point together through p2p_run.
 *
 * Public names are weak aliases of strong pncclX, as in NCCL, so that a shim can reach the real one.
 */
#ifndef VNODE_NCCL_INTERNAL_H
#define VNODE_NCCL_INTERNAL_H

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

/* nccl_collective.c. Blocks until this rank's part is done. */
ncclResult_t collective_run(const struct operation *operation);
const char *operation_name(enum operation_kind kind); /* "AllReduce" … as in record.def */
uint64_t operation_ledger_bytes(const struct operation *operation);

/* nccl_p2p.c. Progresses all sends and receives together, each pair's messages in order. */
ncclResult_t p2p_run(const struct operation *operations, size_t count);

/* nccl_group.c */
ncclResult_t group_submit(const struct operation *operation);
ncclResult_t group_submit_init(const struct init_job *job);
/* Inside a group an argument error spoils the group; returns `code`. */
ncclResult_t group_error(ncclResult_t code);
bool group_open(void);

/* nccl_comm.c */
ncclResult_t comm_make(const struct init_job *job);
ncclResult_t comm_check(const struct ncclComm *comm, const char *function);

/* nccl_memory.c: device memory from the driver, owner NCCL. */
ncclResult_t memory_alloc(struct nccl_block **list, int device, size_t bytes, void **out);
/* NotFound is InvalidArgument. */
ncclResult_t memory_free(struct nccl_block **list, void *base);
void memory_free_all(struct nccl_block **list);
uint64_t memory_total(const struct nccl_block *list);
/* What a communicator of `nranks` holds. */
ncclResult_t memory_alloc_comm(struct ncclComm *comm);

#endif
