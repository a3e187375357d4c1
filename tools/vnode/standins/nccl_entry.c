/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points of the communication functions: check the arguments, count the call, submit it. */
#include "core.h"
#include "nccl_internal.h"

/* Which buffers a rank must pass. */
static bool needs_send(const struct operation *operation, bool root) {
  switch (operation->kind) {
  case OP_BROADCAST:
  case OP_SCATTER:
    return root;
  case OP_RECV:
    return false;
  default:
    return true;
  }
}

static bool needs_recv(const struct operation *operation, bool root) {
  switch (operation->kind) {
  case OP_REDUCE:
  case OP_GATHER:
    return root;
  case OP_SEND:
    return false;
  default:
    return true;
  }
}

static ncclResult_t check_op(struct operation *operation, const char *name) {
  const struct ncclComm *comm = operation->comm;
  int user = (int)operation->op - ncclNumOps;
  if (operation->op < 0 || user >= comm->op_count || (user >= 0 && !comm->ops[user].live))
    return nccl_fail(ncclInvalidArgument, "nccl%s: reduction operation %d is unknown to this communicator", name,
                     (int)operation->op);
  if (user < 0)
    return ncclSuccess;
  operation->user = comm->ops[user];
  if (operation->user.type != operation->type)
    return nccl_fail(ncclInvalidArgument, "nccl%s: the operator was made for %s, the data are %s", name,
                     reduce_type_name(operation->user.type), reduce_type_name(operation->type));
  return ncclSuccess;
}

static ncclResult_t check_operation(struct operation *operation) {
  const struct ncclComm *comm = operation->comm;
  const char *name = operation_name(operation->kind);
  if (operation->root < 0 || operation->root >= comm->nranks)
    return nccl_fail(ncclInvalidArgument, "nccl%s: root or peer %d; accepted: 0 to %d", name, operation->root,
                     comm->nranks - 1);
  if (!reduce_type_bytes(operation->type))
    return nccl_fail(ncclInvalidArgument, "nccl%s: invalid type %d", name, (int)operation->type);
  ncclResult_t code = check_op(operation, name);
  if (code != ncclSuccess)
    return code;
  bool root = comm->rank == operation->root;
  if (operation->count &&
      ((needs_send(operation, root) && !operation->send) || (needs_recv(operation, root) && !operation->recv)))
    return nccl_fail(ncclInvalidArgument, "nccl%s: a buffer is NULL", name);
  return (ncclResult_t)atomic_load(&comm->async); /* sticky: the text of its cause is kept */
}

static ncclResult_t submit(struct operation operation) {
  ncclResult_t code = comm_check(operation.comm, operation_name(operation.kind));
  if (code == ncclSuccess)
    code = check_operation(&operation);
  if (code != ncclSuccess)
    return group_error(code);
  vnode_ledger_collective(operation_name(operation.kind), reduce_type_name(operation.type), operation.comm->nranks,
                          operation_ledger_bytes(&operation));
  return operation.count ? group_submit(&operation) : ncclSuccess;
}

ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream) {
  return submit((struct operation){OP_ALL_REDUCE, comm, send, recv, count, type, op, .stream = stream});
}

ncclResult_t pncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return submit((struct operation){OP_ALL_GATHER, comm, send, recv, count, type, .stream = stream});
}

ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream) {
  return submit((struct operation){OP_REDUCE_SCATTER, comm, send, recv, count, type, op, .stream = stream});
}

ncclResult_t pncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return submit((struct operation){OP_BROADCAST, comm, send, recv, count, type, .root = root, .stream = stream});
}

ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return pncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t pncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return submit((struct operation){OP_REDUCE, comm, send, recv, count, type, op, .root = root, .stream = stream});
}

ncclResult_t pncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit((struct operation){OP_ALL_TO_ALL, comm, send, recv, count, type, .stream = stream});
}

ncclResult_t pncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return submit((struct operation){OP_GATHER, comm, send, recv, count, type, .root = root, .stream = stream});
}

ncclResult_t pncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
  return submit((struct operation){OP_SCATTER, comm, send, recv, count, type, .root = root, .stream = stream});
}

ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return submit((struct operation){OP_SEND, comm, send, NULL, count, type, .root = peer, .stream = stream});
}

ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return submit((struct operation){OP_RECV, comm, NULL, recv, count, type, .root = peer, .stream = stream});
}

NCCL_ENTRY(ncclAllReduce);
NCCL_ENTRY(ncclAllGather);
NCCL_ENTRY(ncclReduceScatter);
NCCL_ENTRY(ncclBroadcast);
NCCL_ENTRY(ncclBcast);
NCCL_ENTRY(ncclReduce);
NCCL_ENTRY(ncclAlltoAll);
NCCL_ENTRY(ncclGather);
NCCL_ENTRY(ncclScatter);
NCCL_ENTRY(ncclSend);
NCCL_ENTRY(ncclRecv);
