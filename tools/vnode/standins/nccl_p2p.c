/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point: each ordered pair of ranks has a ring of MAIL_CHUNKS chunks. All messages of a group progress together, so
 * rings and all-to-all exchanges of any size cannot block each other; between two ranks messages keep their order.
 *
 * A message without elements sends nothing and needs no partner. A send whose data fit the ring ends before its receive is
 * posted.
 */
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "nccl_internal.h"

struct transfer {
  const struct operation *operation;
  struct ncclComm *comm;
  unsigned char *at;
  size_t bytes, done;
  size_t behind; /* index + 1 of the earlier message of the same direction and peer; 0: none */
  struct side_time own, peer;
};

int64_t p2p_load_ns(const struct operation *operations, size_t count, enum operation_kind direction) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++)
    if (operations[i].kind == direction)
      bytes += operation_ledger_bytes(&operations[i]);
  return vnode_model_collective_ns("SendRecv", 2, bytes);
}

/* A sender goes on when its message is in the buffers. */
static bool is_buffered(const struct transfer *transfer) {
  return transfer->bytes <= MAIL_CHUNKS * MAIL_CHUNK_BYTES;
}

static bool sends(const struct transfer *transfer) {
  return transfer->operation->kind == OP_SEND;
}

static struct mailbox *box_of(const struct transfer *transfer, int *from, int *to) {
  int rank = transfer->comm->rank, peer = transfer->operation->root;
  *from = sends(transfer) ? rank : peer;
  *to = sends(transfer) ? peer : rank;
  return &transfer->comm->shared->mail[*from][*to];
}

static bool send_chunk(struct transfer *transfer) {
  int from, to;
  struct mailbox *box = box_of(transfer, &from, &to);
  uint32_t sent = atomic_load_explicit(&box->sent, memory_order_relaxed);
  if (sent - atomic_load_explicit(&box->taken, memory_order_acquire) == MAIL_CHUNKS)
    return false;
  unsigned chunk = sent % MAIL_CHUNKS;
  size_t left = transfer->bytes - transfer->done, bytes = left < MAIL_CHUNK_BYTES ? left : MAIL_CHUNK_BYTES;
  memcpy(segment_mail(transfer->comm, from, to, chunk), transfer->at + transfer->done, bytes);
  box->chunk[chunk].message_bytes = transfer->bytes;
  box->chunk[chunk].sender = transfer->own;
  transfer->done += bytes;
  if (transfer->done == transfer->bytes && !is_buffered(transfer))
    transfer->peer = box->receiver; /* it has taken the first chunk by now: else there had been no room for the last one */
  atomic_store_explicit(&box->sent, sent + 1, memory_order_release);
  gate_post(&transfer->comm->shared->rank[to].bell);
  return true;
}

static bool recv_chunk(struct transfer *transfer, ncclResult_t *code) {
  int from, to;
  struct mailbox *box = box_of(transfer, &from, &to);
  uint32_t taken = atomic_load_explicit(&box->taken, memory_order_relaxed);
  if (atomic_load_explicit(&box->sent, memory_order_acquire) == taken)
    return false;
  unsigned chunk = taken % MAIL_CHUNKS;
  if (box->chunk[chunk].message_bytes != transfer->bytes) {
    comm_break(transfer->comm, BREAK_USAGE, from);
    *code = comm_set_async(transfer->comm,
                           nccl_fail(ncclInvalidUsage, "rank %d receives %zu bytes from rank %d, which sends %llu", to,
                                     transfer->bytes, from, (unsigned long long)box->chunk[chunk].message_bytes));
    return false;
  }
  size_t left = transfer->bytes - transfer->done, bytes = left < MAIL_CHUNK_BYTES ? left : MAIL_CHUNK_BYTES;
  memcpy(transfer->at + transfer->done, segment_mail(transfer->comm, from, to, chunk), bytes);
  if (!transfer->done) {
    transfer->peer = box->chunk[chunk].sender;
    box->receiver = transfer->own;
  }
  transfer->done += bytes;
  atomic_store_explicit(&box->taken, taken + 1, memory_order_release);
  gate_post(&transfer->comm->shared->rank[from].bell);
  return true;
}

/* One round over all messages. Sets *left to what is not done. */
static bool progress(struct transfer *transfers, size_t count, size_t *left, ncclResult_t *code) {
  bool moved = false;
  *left = 0;
  for (size_t i = 0; i < count && *code == ncclSuccess; i++) {
    struct transfer *transfer = &transfers[i];
    if (transfer->done < transfer->bytes &&
        (!transfer->behind || transfers[transfer->behind - 1].done == transfers[transfer->behind - 1].bytes))
      moved |= sends(transfer) ? send_chunk(transfer) : recv_chunk(transfer, code);
    *left += transfer->done < transfer->bytes;
  }
  return moved;
}

/* Something has stood still: is anyone we wait for gone? */
static ncclResult_t check_peers(struct transfer *transfers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct transfer *transfer = &transfers[i];
    size_t left;
    ncclResult_t code = ncclSuccess;
    if (transfer->done == transfer->bytes)
      continue;
    enum break_cause gone = comm_peer_gone(transfer->comm, transfer->operation->root);
    if (gone == BREAK_NONE)
      continue;
    if (progress(transfers, count, &left, &code) || code != ncclSuccess)
      return code; /* what it wrote before its end was still there */
    comm_break(transfer->comm, gone, transfer->operation->root);
    return comm_interrupted(transfer->comm);
  }
  return ncclSuccess;
}

static ncclResult_t check_interrupted(const struct transfer *transfers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ncclResult_t code = transfers[i].done < transfers[i].bytes ? comm_interrupted(transfers[i].comm) : ncclSuccess;
    if (code != ncclSuccess)
      return code;
  }
  return ncclSuccess;
}

/* With several communicators only the first one's bell is slept on: the others are looked at every SEVERAL_US. */
static ncclResult_t progress_all(struct transfer *transfers, size_t count, bool several) {
  enum { SEVERAL_US = 500 };
  struct ncclComm *first = transfers[0].comm;
  struct gate *bell = &first->shared->rank[first->rank].bell;
  unsigned slept_us = 0;
  for (;;) {
    uint32_t seen = atomic_load(&bell->value);
    size_t left;
    ncclResult_t code = ncclSuccess;
    bool moved = progress(transfers, count, &left, &code);
    if (code != ncclSuccess || !left)
      return code;
    if (moved) {
      slept_us = 0;
      continue;
    }
    if ((code = check_interrupted(transfers, count)) != ncclSuccess)
      return code;
    unsigned sleep_us = several ? SEVERAL_US : WAIT_CHECK_US;
    if (!gate_wait(bell, seen, comm_spins(first), sleep_us))
      slept_us += sleep_us;
    if (slept_us < WAIT_CHECK_US)
      continue;
    slept_us = 0;
    if ((code = check_peers(transfers, count)) != ncclSuccess)
      return code;
  }
}

ncclResult_t p2p_check(const struct operation *operations, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct ncclComm *comm = operations[i].comm;
    size_t sent = 0, received = 0;
    if (operations[i].root != comm->rank)
      continue;
    for (size_t j = 0; j < count; j++)
      if (operations[j].comm == comm && operations[j].root == comm->rank)
        *(operations[j].kind == OP_SEND ? &sent : &received) += 1;
    if (sent != received)
      return nccl_fail(ncclInvalidUsage, "rank %d: %zu sends to itself and %zu receives from itself in one group",
                       comm->rank, sent, received);
  }
  return ncclSuccess;
}

/* Says when all of it began and ended. */
static void set_span(const struct transfer *transfers, size_t count) {
  int64_t first_ns = INT64_MAX, last_ns = 0;
  for (size_t i = 0; i < count; i++) {
    const struct side_time *own = &transfers[i].own, *peer = &transfers[i].peer;
    int64_t start_ns = own->ready_ns > peer->ready_ns ? own->ready_ns : peer->ready_ns;
    int64_t end_ns = start_ns + (own->load_ns > peer->load_ns ? own->load_ns : peer->load_ns);
    first_ns = start_ns < first_ns ? start_ns : first_ns;
    last_ns = end_ns > last_ns ? end_ns : last_ns;
  }
  vnode_op_set_span(first_ns, last_ns);
}

/* Transfers of everything that has bytes. Returns their number. */
static size_t make_transfers(const struct operation *operations, size_t count, struct transfer *transfers) {
  int64_t ready_ns = vnode_op_ready_ns(), send_ns = p2p_load_ns(operations, count, OP_SEND),
          recv_ns = p2p_load_ns(operations, count, OP_RECV);
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    const struct operation *operation = &operations[i];
    struct transfer *transfer = &transfers[used];
    size_t bytes = operation->count * reduce_type_bytes(operation->type);
    if (!bytes)
      continue;
    *transfer = (struct transfer){.operation = operation, .comm = operation->comm, .bytes = bytes};
    transfer->at = sends(transfer) ? (unsigned char *)(uintptr_t)operation->send : operation->recv;
    transfer->own = (struct side_time){ready_ns, sends(transfer) ? send_ns : recv_ns};
    for (size_t j = used; j-- > 0 && !transfer->behind;)
      if (transfers[j].comm == operation->comm && transfers[j].operation->root == operation->root &&
          transfers[j].operation->kind == operation->kind)
        transfer->behind = j + 1;
    used++;
  }
  return used;
}

ncclResult_t p2p_run(const struct operation *operations, size_t count) {
  struct transfer *transfers = calloc(count ? count : 1, sizeof *transfers);
  bool several = false;
  if (!transfers)
    return nccl_fail(ncclSystemError, "out of memory");
  size_t used = make_transfers(operations, count, transfers);
  for (size_t i = 1; i < used; i++)
    several |= transfers[i].comm != transfers[0].comm;
  ncclResult_t code = check_interrupted(transfers, used);
  if (code == ncclSuccess && used)
    code = progress_all(transfers, used, several);
  if (code == ncclSuccess && used)
    set_span(transfers, used);
  free(transfers);
  return code;
}
