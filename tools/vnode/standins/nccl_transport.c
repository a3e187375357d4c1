/* SPDX-License-Identifier: Apache-2.0 */
/* Shared segments, gates and liveness; see nccl_transport.h. */
#include "nccl_transport.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define ID_MAGIC 0x316c63636e564e42ull

/* What an ncclUniqueId of this node holds. */
struct id_content {
  uint64_t magic, nonce, start;
  int32_t pid, fd;
};
_Static_assert(sizeof(struct id_content) <= NCCL_UNIQUE_ID_BYTES, "id");

/* ------------------------------------------------------------------------------------------------------ errors */

static pthread_mutex_t last_error_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[1024];

ncclResult_t nccl_fail(ncclResult_t code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&last_error_lock);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  pthread_mutex_unlock(&last_error_lock);
  va_end(arguments);
  return code;
}

const char *nccl_last_error(void) {
  static _Thread_local char copy[sizeof last_error];
  pthread_mutex_lock(&last_error_lock);
  memcpy(copy, last_error, sizeof copy);
  pthread_mutex_unlock(&last_error_lock);
  return copy;
}

/* ------------------------------------------------------------------------------------------------------- gates */

static int64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void cpu_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void gate_post(struct gate *gate) {
  atomic_fetch_add(&gate->value, 1);
  if (atomic_load(&gate->waiters))
    syscall(SYS_futex, &gate->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool gate_changed(struct gate *gate, uint32_t seen) {
  return atomic_load_explicit(&gate->value, memory_order_acquire) != seen;
}

bool gate_wait(struct gate *gate, uint32_t seen, bool spin, unsigned timeout_us) {
  if (spin) {
    int64_t end = now_us() + GATE_SPIN_US;
    do {
      for (int i = 0; i < 32; i++) {
        if (gate_changed(gate, seen))
          return true;
        cpu_pause();
      }
    } while (now_us() < end);
  }
  struct timespec timeout = {.tv_sec = timeout_us / 1000000, .tv_nsec = (long)(timeout_us % 1000000) * 1000};
  atomic_fetch_add(&gate->waiters,
                   1); /* a waiter that is killed here leaves it raised: peers then wake for nothing, no more */
  if (!gate_changed(gate, seen))
    syscall(SYS_futex, &gate->value, FUTEX_WAIT, seen, &timeout, NULL, 0);
  atomic_fetch_sub(&gate->waiters, 1);
  return gate_changed(gate, seen);
}

bool comm_spins(const struct ncclComm *comm) {
  static _Atomic long cores;
  long known = atomic_load_explicit(&cores, memory_order_relaxed);
  if (!known) {
    known = sysconf(_SC_NPROCESSORS_ONLN);
    atomic_store_explicit(&cores, known, memory_order_relaxed);
  }
  return comm->nranks <= known;
}

/* ---------------------------------------------------------------------------------------------------- liveness */

/* Start time in clock ticks after boot (field 22 of /proc/pid/stat); 0 when the process is gone or a zombie. */
static uint64_t process_start(int pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0)
    return 0;
  text[got] = '\0';
  const char *field = strrchr(text, ')'); /* the name before it may hold anything */
  char state;
  unsigned long long start;
  if (!field || sscanf(field + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state,
                       &start) != 2)
    return 0;
  return state == 'Z' || state == 'X' ? 0 : start;
}

ncclResult_t comm_set_async(struct ncclComm *comm, ncclResult_t code) {
  int none = ncclSuccess;
  atomic_compare_exchange_strong(&comm->async, &none, (int)code);
  return code;
}

void comm_break(struct ncclComm *comm, enum break_cause cause, int rank) {
  uint32_t whole = BREAK_NONE;
  atomic_compare_exchange_strong(&comm->shared->broken, &whole, (uint32_t)cause << 8 | (uint32_t)rank);
  gate_post(&comm->shared->turn);
  for (int r = 0; r < comm->nranks; r++)
    gate_post(&comm->shared->rank[r].bell);
}

ncclResult_t comm_interrupted(struct ncclComm *comm) {
  static const char *const causes[] = {[BREAK_DIED] = "died",
                                       [BREAK_LEFT] = "destroyed its communicator",
                                       [BREAK_ABORTED] = "aborted its communicator",
                                       [BREAK_USAGE] = "issued an operation that does not match"};
  if (atomic_load(&comm->abort))
    return nccl_fail(ncclInternalError, "rank %d of %d: the operation was aborted by ncclCommAbort", comm->rank,
                     comm->nranks);
  uint32_t broken = atomic_load(&comm->shared->broken);
  if (!broken)
    return ncclSuccess;
  uint32_t culprit = broken & 0xff;
  return comm_set_async(comm, nccl_fail(ncclRemoteError, "rank %d of %d: rank %u (pid %d) %s", comm->rank, comm->nranks,
                                        culprit, (int)atomic_load(&comm->shared->rank[culprit].pid), causes[broken >> 8]));
}

enum break_cause comm_peer_gone(struct ncclComm *comm, int rank) {
  struct rank_block *peer = &comm->shared->rank[rank];
  uint32_t state = atomic_load(&peer->state);
  if (state == RANK_LEFT || state == RANK_GAVE_UP)
    return BREAK_LEFT;
  if (state == RANK_ATTACHED && process_start(atomic_load(&peer->pid)) != atomic_load(&peer->start))
    return BREAK_DIED;
  return BREAK_NONE;
}

/* A peer that is gone matters only if it is still missing after it was seen gone. */
static ncclResult_t check_missing(struct ncclComm *comm, const struct wait *wait) {
  for (int r = 0; r < comm->nranks; r++) {
    if (r == comm->rank || !wait->needs(comm, wait->context, r))
      continue;
    enum break_cause gone = comm_peer_gone(comm, r);
    if (gone == BREAK_NONE || !wait->needs(comm, wait->context, r))
      continue;
    comm_break(comm, gone, r);
    return comm_interrupted(comm);
  }
  return ncclSuccess;
}

ncclResult_t comm_wait(struct ncclComm *comm, const struct wait *wait) {
  struct gate *turn = &comm->shared->turn;
  int64_t start = now_us(), next_check = start + WAIT_CHECK_US;
  for (;;) {
    uint32_t seen = atomic_load(&turn->value);
    if (wait->ready(comm, wait->context))
      return ncclSuccess;
    ncclResult_t code = wait->whole_only ? comm_interrupted(comm) : ncclSuccess;
    if (code != ncclSuccess)
      return code;
    gate_wait(turn, seen, comm_spins(comm), WAIT_CHECK_US);
    int64_t now = now_us();
    if (now < next_check)
      continue;
    next_check = now + WAIT_CHECK_US;
    if ((code = check_missing(comm, wait)) != ncclSuccess)
      return code;
    if (wait->limit_ms && now > start + (int64_t)wait->limit_ms * 1000)
      return ncclTimeout;
  }
}

static bool all_arrived(struct ncclComm *comm, const void *context) {
  (void)context;
  for (int r = 0; r < comm->nranks; r++)
    if (atomic_load(&comm->shared->rank[r].arrived) < comm->barriers)
      return false;
  return true;
}

static bool not_arrived(struct ncclComm *comm, const void *context, int rank) {
  (void)context;
  return atomic_load(&comm->shared->rank[rank].arrived) < comm->barriers;
}

/* Every rank counts its own arrivals and the last one opens the gate. Should it die between the two, the others find
   everybody arrived at their next look. */
ncclResult_t comm_barrier(struct ncclComm *comm) {
  if (comm->nranks == 1)
    return comm_interrupted(comm);
  comm->barriers++;
  atomic_store(&comm->shared->rank[comm->rank].arrived, comm->barriers);
  if (all_arrived(comm, NULL)) {
    gate_post(&comm->shared->turn);
    return ncclSuccess;
  }
  return comm_wait(comm, &(struct wait){.ready = all_arrived, .needs = not_arrived, .whole_only = true});
}

/* ---------------------------------------------------------------------------------------------------- segments */

static size_t header_bytes(void) {
  return (sizeof(struct segment) + 4095) / 4096 * 4096;
}

static size_t segment_bytes(int nranks) {
  size_t n = (size_t)nranks;
  return header_bytes() + n * 2 * SLOT_BYTES + n * n * MAIL_CHUNKS * MAIL_CHUNK_BYTES;
}

unsigned char *segment_slot(const struct ncclComm *comm, int rank, unsigned parity) {
  return (unsigned char *)comm->shared + header_bytes() + ((size_t)rank * 2 + parity) * SLOT_BYTES;
}

unsigned char *segment_mail(const struct ncclComm *comm, int from, int to, unsigned chunk) {
  size_t box = ((size_t)from * (size_t)comm->nranks + (size_t)to) * MAIL_CHUNKS + chunk;
  return segment_slot(comm, comm->nranks, 0) + box * MAIL_CHUNK_BYTES;
}

ncclResult_t segment_create(ncclUniqueId *id) {
  struct id_content content = {.magic = ID_MAGIC, .pid = getpid(), .start = process_start(getpid())};
  if (getrandom(&content.nonce, sizeof content.nonce, 0) != sizeof content.nonce)
    return nccl_fail(ncclSystemError, "getrandom: %s", strerror(errno));
  content.fd = memfd_create("b200vnode-nccl", MFD_CLOEXEC);
  if (content.fd < 0)
    return nccl_fail(ncclSystemError, "memfd_create: %s", strerror(errno));
  if (pwrite(content.fd, &content.nonce, sizeof content.nonce, offsetof(struct segment, nonce)) != sizeof content.nonce) {
    close(content.fd);
    return nccl_fail(ncclSystemError, "cannot write a shared memory file: %s", strerror(errno));
  }
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &content, sizeof content);
  return ncclSuccess;
}

/* Opens the file of `id`; the nonce inside proves that the descriptor is still the one meant. */
static ncclResult_t segment_open(const struct id_content *content, int *out) {
  char path[64];
  uint64_t nonce = 0;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", content->pid, content->fd);
  int fd = process_start(content->pid) == content->start ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd >= 0 &&
      (pread(fd, &nonce, sizeof nonce, offsetof(struct segment, nonce)) != sizeof nonce || nonce != content->nonce)) {
    close(fd);
    fd = -1;
  }
  if (fd < 0)
    return nccl_fail(ncclRemoteError, "the process that made the ncclUniqueId (pid %d) is gone, or the id was used before",
                     content->pid);
  *out = fd;
  return ncclSuccess;
}

static ncclResult_t segment_map(struct ncclComm *comm, int fd) {
  comm->shared_bytes = segment_bytes(comm->nranks);
  if (ftruncate(fd, (off_t)comm->shared_bytes) != 0)
    return nccl_fail(ncclSystemError, "cannot size shared memory (%zu bytes): %s", comm->shared_bytes, strerror(errno));
  void *base = mmap(NULL, comm->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED)
    return nccl_fail(ncclSystemError, "cannot map shared memory (%zu bytes): %s", comm->shared_bytes, strerror(errno));
  madvise(base, comm->shared_bytes, MADV_DONTFORK);
  comm->shared = base;
  return ncclSuccess;
}

static void segment_unmap(struct ncclComm *comm) {
  munmap(comm->shared, comm->shared_bytes);
  comm->shared = NULL;
}

static ncclResult_t claim_rank(struct ncclComm *comm) {
  struct rank_block *own = &comm->shared->rank[comm->rank];
  uint32_t unset = 0;
  if (!atomic_compare_exchange_strong(&comm->shared->nranks, &unset, (uint32_t)comm->nranks) &&
      unset != (uint32_t)comm->nranks)
    return nccl_fail(ncclInvalidArgument, "this rank says %d ranks, another said %u for the same ncclUniqueId", comm->nranks,
                     unset);
  int32_t nobody = 0;
  if (!atomic_compare_exchange_strong(&own->pid, &nobody, getpid()))
    return nccl_fail(ncclInvalidUsage, "rank %d is taken by pid %d: an ncclUniqueId serves one communicator", comm->rank,
                     nobody);
  own->host_ns = vnode_host_now_ns();
  atomic_store(&own->start, process_start(getpid()));
  atomic_store(&own->state, RANK_ATTACHED);
  gate_post(&comm->shared->turn);
  return ncclSuccess;
}

static bool all_attached(struct ncclComm *comm, const void *context) {
  (void)context;
  for (int r = 0; r < comm->nranks; r++) {
    uint32_t state = atomic_load(&comm->shared->rank[r].state);
    if (state == RANK_ABSENT || state == RANK_GAVE_UP)
      return false;
  }
  return true;
}

/* While others are missing, those already here must live too: the communicator can no longer come about without them. */
static bool any_rank(struct ncclComm *comm, const void *context, int rank) {
  (void)context;
  return atomic_load(&comm->shared->rank[rank].state) == RANK_ATTACHED;
}

static ncclResult_t attach_timeout(struct ncclComm *comm) {
  for (int r = 0; r < comm->nranks; r++)
    if (atomic_load(&comm->shared->rank[r].state) == RANK_ABSENT)
      return nccl_fail(ncclRemoteError, "rank %d of %d has not joined within %d s", r, comm->nranks, ATTACH_LIMIT_MS / 1000);
  return ncclSuccess;
}

/* Nobody leaves before the last one has come. */
static void reach_latest(const struct ncclComm *comm) {
  int64_t latest_ns = vnode_host_now_ns();
  for (int r = 0; r < comm->nranks; r++)
    if (comm->shared->rank[r].host_ns > latest_ns)
      latest_ns = comm->shared->rank[r].host_ns;
  vnode_host_charge(latest_ns - vnode_host_now_ns());
}

/* The creator's own descriptor is closed by the rank that lives there: nobody needs it once all have attached. With several
   ranks in one process the first one closes it. */
static void close_creators_file(const struct id_content *content) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  uint64_t nonce = 0;
  if (content->pid != getpid())
    return;
  pthread_mutex_lock(&lock);
  if (pread(content->fd, &nonce, sizeof nonce, offsetof(struct segment, nonce)) == sizeof nonce && nonce == content->nonce)
    close(content->fd);
  pthread_mutex_unlock(&lock);
}

ncclResult_t segment_attach(struct ncclComm *comm, const ncclUniqueId *id, int nranks, int rank) {
  struct id_content content;
  int fd = -1;
  memcpy(&content, id->internal, sizeof content);
  if (content.magic != ID_MAGIC)
    return nccl_fail(ncclInvalidArgument, "not an ncclUniqueId of this node: call ncclGetUniqueId");
  if (nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks)
    return nccl_fail(ncclInvalidArgument, "rank %d of %d: accepted are 1 to %d ranks and a rank below that", rank, nranks,
                     RANKS_MAX);
  comm->rank = rank;
  comm->nranks = nranks;
  ncclResult_t code = segment_open(&content, &fd);
  if (code != ncclSuccess)
    return code;
  code = segment_map(comm, fd);
  close(fd);
  if (code != ncclSuccess)
    return code;
  if ((code = claim_rank(comm)) != ncclSuccess) {
    segment_unmap(comm);
    return code;
  }
  code = comm_wait(
      comm, &(struct wait){.ready = all_attached, .needs = any_rank, .whole_only = true, .limit_ms = ATTACH_LIMIT_MS});
  if (code == ncclTimeout)
    code = attach_timeout(comm);
  if (code == ncclSuccess) {
    reach_latest(comm);
    close_creators_file(&content);
    return ncclSuccess;
  }
  atomic_store(&comm->shared->rank[rank].state, RANK_GAVE_UP);
  comm_break(comm, BREAK_LEFT, rank);
  segment_unmap(comm);
  return code;
}

void segment_detach(struct ncclComm *comm) {
  if (!comm->shared)
    return;
  atomic_store(&comm->shared->rank[comm->rank].state, RANK_LEFT);
  segment_unmap(comm);
}
