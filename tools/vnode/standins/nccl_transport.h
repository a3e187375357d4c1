/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of one communicator share, and how they wait for each other.
 *
 * Segment: one memory file (memfd) per communicator, mapped by every rank: header, a block per rank, two slots per rank for
 * collectives, a mailbox per ordered pair of ranks for point-to-point. It has no name: the ncclUniqueId says in which
 * process and under which descriptor it was made, and peers open it through /proc/<pid>/fd/<n>. Nothing is ever created in
 * /dev/shm or on disk, so nothing can be left behind, whoever is killed when; and the size limit of a container's /dev/shm
 * does not apply. As with NCCL's own bootstrap, the process that called ncclGetUniqueId must live until all ranks have
 * attached. Both processes need the same user and PID namespace.
 *
 * Waiting: a gate is a counter and a futex. A waiter polls for at most GATE_SPIN_US, and only when there is a core for every
 * rank, then sleeps. Every WAIT_CHECK_US it looks whether those it waits for still live; a rank is its pid plus process
 * start time, and a zombie counts as dead. So a death is noticed within WAIT_CHECK_US and some scheduling, whatever killed
 * the peer.
 *
 * Failure: who notices first writes the culprit into `broken`, once, and opens all gates: every rank that waits now or later
 * gets ncclRemoteError. An operation for which everything has already arrived still completes.
 *
 * Thread-safety: as NCCL demands, one thread at a time issues work on a communicator; comm_abort and comm_async_error may
 * come from any thread at any time. Operations run wherever the node runs them, one of a communicator at a time.
 */
#ifndef VNODE_NCCL_TRANSPORT_H
#define VNODE_NCCL_TRANSPORT_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANKS_MAX 8
#define SLOT_BYTES ((size_t)1 << 20)
#define MAIL_CHUNK_BYTES ((size_t)128 << 10)
#define MAIL_CHUNKS 4u /* power of two: the counters wrap */
#define GATE_SPIN_US 40
#define WAIT_CHECK_US 100000
/* How long a rank waits for the others to attach. A rank that dies before it attached is unknown to the others, so this
   bound is all that ends their wait. NCCL itself waits for ever; ranks may be minutes apart when one of them loads a
   checkpoint. */
#ifndef ATTACH_LIMIT_MS
#define ATTACH_LIMIT_MS (300 * 1000)
#endif

struct gate {
  _Alignas(64) _Atomic uint32_t value;
  _Atomic uint32_t waiters;
};

enum rank_state { RANK_ABSENT, RANK_ATTACHED, RANK_LEFT, RANK_GAVE_UP /* while others were still absent */ };

/* What a rank says of the collective it has entered; compared by all, so that a mismatch is an error and not wrong data. */
struct call_facts {
  uint32_t kind, root, type, op; /* type and op: 0 where they do not change what moves */
  uint64_t bytes;
  uint64_t scalar;  /* PreMulSum: this rank's factor, in the data type; not compared */
  int64_t ready_ns; /* modelled time at which this rank can start; not compared */
};

struct rank_block {
  _Alignas(64) _Atomic uint64_t arrived; /* barriers entered */
  _Atomic uint32_t state;
  _Atomic int32_t pid;
  _Atomic uint64_t start; /* of the process, in clock ticks after boot */
  int64_t host_ns;        /* modelled time at which this rank attached */
  struct call_facts call[2];
  int64_t color[2], key[2];   /* split */
  ncclUniqueId child;         /* of a communicator that this rank leads into being */
  _Atomic uint32_t child_for; /* bit per rank that shall still read it, and then clears its bit */
  struct gate bell;           /* point-to-point progress that concerns this rank */
};

/* Modelled time of one side of a message: when it can start, and how long all that it moves in this direction takes. */
struct side_time {
  int64_t ready_ns, load_ns;
};

struct mailbox {
  _Alignas(64) _Atomic uint32_t sent;
  _Alignas(64) _Atomic uint32_t taken;
  struct {
    uint64_t message_bytes;
    struct side_time sender;
  } chunk[MAIL_CHUNKS];
  struct side_time receiver; /* of the message whose first chunk was taken last */
};

struct segment {
  uint64_t nonce; /* the same for all ranks, different between communicators: orders them */
  _Atomic uint32_t nranks;
  _Atomic uint32_t broken; /* enum break_cause << 8 | rank */
  struct gate turn;
  struct rank_block rank[RANKS_MAX];
  struct mailbox mail[RANKS_MAX][RANKS_MAX]; /* [from][to] */
};

enum break_cause { BREAK_NONE, BREAK_DIED, BREAK_LEFT, BREAK_ABORTED, BREAK_USAGE };

struct nccl_block;
struct user_op {
  bool live;
  ncclDataType_t type;
  bool in_device_memory;
  uint64_t scalar; /* in the data type, or the address */
};

/* Operations of one communicator run one after another in the order of their calls, whatever streams they are on. */
struct order_chain {
  bool used;
  struct vnode_stream *stream; /* of the last operation; NULL is the default stream */
  struct vnode_event *done;    /* recorded behind it, once there was a second stream; else NULL */
  uint64_t capture;            /* 0: outside of graphs */
};

#define COMM_STREAMS_MAX 8

struct ncclComm {
  uint64_t magic;
  struct segment *shared;
  size_t shared_bytes;
  int rank, nranks, device;
  uint64_t barriers, steps, splits;
  pthread_mutex_t turn; /* one collective at a time: a launched graph is not ordered with calls outside of it */
  _Atomic bool abort;
  _Atomic int async;           /* ncclResult_t, sticky */
  _Atomic uint32_t running;    /* operations whose work runs: comm_abort waits for them before the memory goes */
  _Atomic uint32_t pending;    /* operations outside of graphs that are not done */
  _Atomic uint32_t references; /* the handle, and all operations that a stream or a graph holds */
  struct vnode_stream *streams[COMM_STREAMS_MAX]; /* on which there may be pending ones */
  unsigned stream_count;                          /* above the maximum: any stream */
  struct order_chain chain, captured;
  struct vnode_event *joint; /* joins the streams of a group */
  struct user_op *ops;
  int op_count;
  struct nccl_block *blocks; /* device memory of NCCL's own */
  struct registration *registrations;
  struct ncclComm *next_retired;
};

/* Records the text of ncclGetLastError and returns `code`. */
ncclResult_t nccl_fail(ncclResult_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *nccl_last_error(void);

/* Makes a segment's file; it stays open in this process until its ranks have attached here (or the process ends). */
ncclResult_t segment_create(ncclUniqueId *id);
/* Joins as `rank` and waits for the others. Sets shared, rank, nranks of `comm`. Errors: InvalidArgument (not an id, ranks
   disagree), InvalidUsage (rank taken), RemoteError (creator or a peer gone, or ATTACH_LIMIT_MS over), SystemError. */
ncclResult_t segment_attach(struct ncclComm *comm, const ncclUniqueId *id, int nranks, int rank);
/* Says goodbye and unmaps. */
void segment_detach(struct ncclComm *comm);

/* pre: 0 <= rank < nranks, parity 0 or 1. SLOT_BYTES each. */
unsigned char *segment_slot(const struct ncclComm *comm, int rank, unsigned parity);
unsigned char *segment_mail(const struct ncclComm *comm, int from, int to, unsigned chunk);

void gate_post(struct gate *gate);
/* Returns once `value` differs from `seen`, or after about timeout_us, or spuriously. false: nothing changed. */
bool gate_wait(struct gate *gate, uint32_t seen, bool spin, unsigned timeout_us);

/* One wait of a rank for a condition that peers make true. */
struct wait {
  bool (*ready)(struct ncclComm *comm, const void *context);
  bool (*needs)(struct ncclComm *comm, const void *context, int rank); /* is it this rank that is missing? */
  const void *context;
  bool whole_only;   /* give up when the communicator is broken */
  unsigned limit_ms; /* 0: none */
};
ncclResult_t comm_wait(struct ncclComm *comm, const struct wait *wait);
/* Returns when all ranks have entered; what they wrote before is visible. */
ncclResult_t comm_barrier(struct ncclComm *comm);
/* ncclSuccess, or why nothing more can be expected: own abort or a broken communicator. */
ncclResult_t comm_interrupted(struct ncclComm *comm);
/* BREAK_LEFT or BREAK_DIED when `rank` is gone. What it wrote before is still there: look again before giving up on it. */
enum break_cause comm_peer_gone(struct ncclComm *comm, int rank);
/* Tells all ranks that the communicator is of no more use, and why. The first cause stays. */
void comm_break(struct ncclComm *comm, enum break_cause cause, int rank);
bool comm_spins(const struct ncclComm *comm);
/* Makes `code` the communicator's asynchronous error if it has none; returns `code`. */
ncclResult_t comm_set_async(struct ncclComm *comm, ncclResult_t code);

#endif
