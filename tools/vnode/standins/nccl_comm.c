/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: made, asked, split, shrunk, grown, ended; user operators, registrations and the small questions. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_internal.h"

struct registration {
  struct registration *next;
  void *base;
  size_t bytes;
};

ncclResult_t comm_check(const struct ncclComm *comm, const char *function) {
  if (!comm)
    return group_error(nccl_fail(ncclInvalidArgument, "%s: the communicator is NULL", function));
  if (comm->magic != COMM_MAGIC)
    return group_error(nccl_fail(ncclInvalidArgument, "%s: not a communicator, or one that was destroyed", function));
  return ncclSuccess;
}

static ncclResult_t check_pointer(const void *pointer, const char *function, const char *argument) {
  return pointer ? ncclSuccess : group_error(nccl_fail(ncclInvalidArgument, "%s: %s is NULL", function, argument));
}

/* NULL is fine: the defaults. Only `blocking` means anything here, and both values behave alike: calls return when done. */
static ncclResult_t check_config(const ncclConfig_t *config, const char *function) {
  if (!config)
    return ncclSuccess;
  if (config->magic != NCCL_API_MAGIC)
    return group_error(
        nccl_fail(ncclInvalidArgument, "%s: the ncclConfig_t was not set by NCCL_CONFIG_INITIALIZER", function));
  if (config->size < offsetof(ncclConfig_t, cgaClusterSize))
    return group_error(nccl_fail(ncclInvalidArgument, "%s: ncclConfig_t.size is %zu", function, config->size));
  if (config->version >= NCCL_VERSION(2, 14, 0) && config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 &&
      config->blocking != 1)
    return group_error(
        nccl_fail(ncclInvalidArgument, "%s: config.blocking is %d; accepted: 0, 1", function, config->blocking));
  if (config->version < NCCL_VERSION(2, 17, 0) || config->size < offsetof(ncclConfig_t, netName))
    return ncclSuccess;
  if (config->cgaClusterSize != NCCL_CONFIG_UNDEF_INT && config->cgaClusterSize < 0)
    return group_error(nccl_fail(ncclInvalidArgument, "%s: config.cgaClusterSize is %d", function, config->cgaClusterSize));
  bool min_set = config->minCTAs != NCCL_CONFIG_UNDEF_INT, max_set = config->maxCTAs != NCCL_CONFIG_UNDEF_INT;
  if ((min_set && config->minCTAs <= 0) || (max_set && config->maxCTAs <= 0) ||
      (min_set && max_set && config->minCTAs > config->maxCTAs))
    return group_error(
        nccl_fail(ncclInvalidArgument, "%s: config.minCTAs/maxCTAs are %d/%d", function, config->minCTAs, config->maxCTAs));
  return ncclSuccess;
}

/* -------------------------------------------------------------------------------------------------------- making */

/* What the node has of it. The rest lives as long as an operation refers to it. */
static void comm_close(struct ncclComm *comm) {
  segment_detach(comm);
  memory_free_all(&comm->blocks);
}

static void comm_free(struct ncclComm *comm) {
  struct vnode_event *events[] = {comm->chain.done, comm->captured.done, comm->joint};
  comm_close(comm);
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    if (events[i])
      vnode_event_destroy(events[i]);
  while (comm->registrations) {
    struct registration *next = comm->registrations->next;
    free(comm->registrations);
    comm->registrations = next;
  }
  free(comm->ops);
  pthread_mutex_destroy(&comm->turn);
  comm->magic = 0;
  free(comm);
}

/* Destroyed ones that a graph held until now. They are closed by the next call into this library: the node drops operations
   wherever it is just working. */
static struct ncclComm *retired;
static pthread_mutex_t retired_lock = PTHREAD_MUTEX_INITIALIZER;

static void retire(struct ncclComm *comm) {
  pthread_mutex_lock(&retired_lock);
  comm->next_retired = retired;
  retired = comm;
  pthread_mutex_unlock(&retired_lock);
}

static void free_retired(void) {
  pthread_mutex_lock(&retired_lock);
  struct ncclComm *comm = retired;
  retired = NULL;
  pthread_mutex_unlock(&retired_lock);
  while (comm) {
    struct ncclComm *next = comm->next_retired;
    comm_free(comm);
    comm = next;
  }
}

void comm_enter(struct ncclComm *comm) {
  atomic_fetch_add(&comm->references, 1);
}

void comm_leave(struct ncclComm *comm) {
  if (atomic_fetch_sub(&comm->references, 1) == 1)
    comm_free(comm);
}

static void note_stream(struct ncclComm *comm, struct vnode_stream *stream) {
  for (unsigned i = 0; i < comm->stream_count; i++)
    if (i == COMM_STREAMS_MAX || comm->streams[i] == stream)
      return;
  if (comm->stream_count < COMM_STREAMS_MAX)
    comm->streams[comm->stream_count] = stream;
  comm->stream_count++;
}

void comm_hold(struct ncclComm *comm, struct vnode_stream *stream, bool captured) {
  atomic_fetch_add(&comm->references, 1);
  if (captured)
    return;
  atomic_fetch_add(&comm->pending, 1);
  note_stream(comm, stream);
}

void comm_drop(struct ncclComm *comm, bool captured) {
  if (!captured)
    atomic_fetch_sub(&comm->pending, 1);
  if (atomic_fetch_sub(&comm->references, 1) != 1)
    return;
  if (comm->shared)
    retire(comm);
  else
    comm_free(comm);
}

static ncclResult_t make_by_id(const struct init_job *job, const ncclUniqueId *id, int nranks, int rank) {
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (!comm)
    return nccl_fail(ncclSystemError, "out of memory");
  comm->magic = COMM_MAGIC;
  comm->device = job->device;
  comm->references = 1;
  pthread_mutex_init(&comm->turn, NULL);
  ncclResult_t code = vnode_device_touch(job->device) == VNODE_OK
                          ? segment_attach(comm, id, nranks, rank)
                          : nccl_fail(ncclUnhandledCudaError, "device %d cannot be used", job->device);
  if (code == ncclSuccess && (code = memory_alloc_comm(comm)) != ncclSuccess)
    comm_break(comm, BREAK_LEFT, rank);
  if (code != ncclSuccess) {
    comm_free(comm);
    return code;
  }
  *job->out = comm;
  return ncclSuccess;
}

static bool child_is_published(struct ncclComm *parent, const void *context) {
  return atomic_load(&parent->shared->rank[*(const int *)context].child_for) >> parent->rank & 1;
}

static bool is_leader(struct ncclComm *parent, const void *context, int rank) {
  (void)parent;
  return rank == *(const int *)context;
}

/* The leader makes the child's id and the other members read it. Does not need the rest of the parent, nor that it is whole.
 */
static ncclResult_t agree_on_child(struct ncclComm *parent, unsigned members, int leader, const ncclUniqueId *given,
                                   ncclUniqueId *id) {
  struct rank_block *block = &parent->shared->rank[leader];
  uint32_t own = 1u << parent->rank;
  if (parent->rank != leader) {
    ncclResult_t code =
        comm_wait(parent, &(struct wait){.ready = child_is_published, .needs = is_leader, .context = &leader});
    if (code != ncclSuccess)
      return code;
    *id = block->child;
    atomic_fetch_and(&block->child_for, ~own);
    return ncclSuccess;
  }
  ncclResult_t code = ncclSuccess;
  if (given)
    *id = *given;
  else
    code = segment_create(id);
  if (code != ncclSuccess)
    return code;
  block->child = *id;
  atomic_store(&block->child_for, members & ~own);
  gate_post(&parent->shared->turn);
  return ncclSuccess;
}

/* Members of this rank's color, in child order: by key, then by rank in the parent. */
static int split_members(struct ncclComm *parent, unsigned parity, int color, int *members) {
  const struct rank_block *ranks = parent->shared->rank;
  int count = 0;
  for (int r = 0; r < parent->nranks; r++) {
    if (ranks[r].color[parity] != color)
      continue;
    int at = count++;
    for (; at > 0 && ranks[members[at - 1]].key[parity] > ranks[r].key[parity]; at--)
      members[at] = members[at - 1];
    members[at] = r;
  }
  return count;
}

/* Finds this rank among the members and makes the child, led by the first of them. */
static ncclResult_t make_child(const struct init_job *job, const int *members, int count) {
  ncclUniqueId id;
  unsigned mask = 0;
  int rank = 0;
  for (int i = 0; i < count; i++) {
    mask |= 1u << members[i];
    if (members[i] == job->parent->rank)
      rank = i;
  }
  ncclResult_t code = agree_on_child(job->parent, mask, members[0], NULL, &id);
  return code == ncclSuccess ? make_by_id(job, &id, count, rank) : code;
}

/* Colors and keys alternate between two places: one is written again only after every rank has entered the next split. */
static ncclResult_t make_split(const struct init_job *job) {
  struct ncclComm *parent = job->parent;
  unsigned parity = (unsigned)(parent->splits++ & 1);
  int members[RANKS_MAX];
  parent->shared->rank[parent->rank].color[parity] = job->color;
  parent->shared->rank[parent->rank].key[parity] = job->key;
  ncclResult_t code = comm_barrier(parent);
  if (code != ncclSuccess)
    return code;
  if (job->color == NCCL_SPLIT_NOCOLOR) {
    *job->out = NULL;
    return ncclSuccess;
  }
  int count = split_members(parent, parity, job->color, members);
  return make_child(job, members, count);
}

static ncclResult_t make_shrink(const struct init_job *job) {
  int members[RANKS_MAX], count = 0;
  for (int r = 0; r < job->parent->nranks; r++)
    if (job->members >> r & 1)
      members[count++] = r;
  return make_child(job, members, count);
}

/* Whoever of the existing ranks has the id hands it to the others; nobody is told in advance which one that is. */
static bool grow_is_published(struct ncclComm *parent, const void *context) {
  int *leader = *(int *const *)context;
  for (int r = 0; r < parent->nranks; r++)
    if (atomic_load(&parent->shared->rank[r].child_for) >> parent->rank & 1) {
      *leader = r;
      return true;
    }
  return false;
}

static bool anyone(struct ncclComm *parent, const void *context, int rank) {
  (void)parent;
  (void)context;
  (void)rank;
  return true;
}

static ncclResult_t make_grow(const struct init_job *job) {
  struct ncclComm *parent = job->parent;
  ncclUniqueId id = job->id;
  ncclResult_t code = ncclSuccess;
  int leader = parent ? parent->rank : 0, *leader_at = &leader;
  if (parent && !job->has_id)
    code = comm_wait(parent,
                     &(struct wait){.ready = grow_is_published, .needs = anyone, .context = &leader_at, .whole_only = true});
  if (parent && code == ncclSuccess)
    code = agree_on_child(parent, (1u << parent->nranks) - 1, leader, &job->id, &id);
  return code == ncclSuccess ? make_by_id(job, &id, job->nranks, parent ? parent->rank : job->rank) : code;
}

ncclResult_t comm_make(const struct init_job *job) {
  free_retired();
  switch (job->kind) {
  case INIT_SPLIT:
    return make_split(job);
  case INIT_SHRINK:
    return make_shrink(job);
  case INIT_GROW:
    return make_grow(job);
  case INIT_BY_ID:
    break;
  }
  return make_by_id(job, &job->id, job->nranks, job->rank);
}

/* --------------------------------------------------------------------------------------------------- entry: life */

ncclResult_t pncclGetVersion(int *version) {
  if (!version)
    return nccl_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t pncclGetUniqueId(ncclUniqueId *id) {
  ncclResult_t code = check_pointer(id, "ncclGetUniqueId", "uniqueId");
  return code == ncclSuccess ? segment_create(id) : code;
}

static ncclResult_t init_rank(ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config,
                              int device, const char *function) {
  ncclResult_t code = check_pointer(comm, function, "comm");
  if (code != ncclSuccess || (code = check_config(config, function)) != ncclSuccess)
    return code;
  if (nranks < 1 || rank < 0 || rank >= nranks)
    return group_error(nccl_fail(ncclInvalidArgument, "%s: rank %d of %d", function, rank, nranks));
  struct init_job job = {.kind = INIT_BY_ID, .out = comm, .id = *id, .nranks = nranks, .rank = rank, .device = device};
  *comm = NULL;
  return group_submit_init(&job);
}

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return init_rank(comm, nranks, &id, rank, config, vnode_device_current(), "ncclCommInitRankConfig");
}

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  return init_rank(comm, nranks, &id, rank, NULL, vnode_device_current(), "ncclCommInitRank");
}

/* Several ids only speed NCCL's bootstrap up; the first one is as good. */
ncclResult_t pncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int id_count, ncclUniqueId *ids,
                                       ncclConfig_t *config) {
  ncclResult_t code = check_pointer(ids, "ncclCommInitRankScalable", "commIds");
  if (code != ncclSuccess)
    return code;
  if (id_count < 1 || id_count > nranks)
    return group_error(nccl_fail(ncclInvalidArgument, "ncclCommInitRankScalable: %d ids for %d ranks; accepted: 1 to ranks",
                                 id_count, nranks));
  return init_rank(comm, nranks, &ids[0], rank, config, vnode_device_current(), "ncclCommInitRankScalable");
}

ncclResult_t pncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
  ncclUniqueId id;
  ncclResult_t code = check_pointer(comms, "ncclCommInitAll", "comm");
  if (code != ncclSuccess)
    return code;
  if (count < 1 || count > vnode_config()->device_count)
    return nccl_fail(ncclInvalidArgument, "ncclCommInitAll: %d devices; the node has %d", count,
                     vnode_config()->device_count);
  for (int i = 0; devices && i < count; i++)
    for (int j = 0; j <= i; j++)
      if (devices[i] < 0 || devices[i] >= vnode_config()->device_count || (j < i && devices[i] == devices[j]))
        return nccl_fail(ncclInvalidArgument, "ncclCommInitAll: device %d does not exist or is named twice", devices[i]);
  if ((code = segment_create(&id)) != ncclSuccess)
    return code;
  pncclGroupStart();
  for (int i = 0; i < count; i++)
    init_rank(&comms[i], count, &id, i, NULL, devices ? devices[i] : i, "ncclCommInitAll");
  return pncclGroupEnd();
}

ncclResult_t pncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
  ncclResult_t code = comm_check(parent, "ncclCommSplit");
  if (code != ncclSuccess || (code = check_pointer(out, "ncclCommSplit", "newcomm")) != ncclSuccess ||
      (code = check_config(config, "ncclCommSplit")) != ncclSuccess)
    return code;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
    return group_error(nccl_fail(ncclInvalidArgument, "ncclCommSplit: color %d; accepted: >= 0, NCCL_SPLIT_NOCOLOR", color));
  struct init_job job = {
      .kind = INIT_SPLIT, .out = out, .parent = parent, .color = color, .key = key, .device = parent->device};
  *out = NULL;
  return group_submit_init(&job);
}

ncclResult_t pncclCommShrink(ncclComm_t parent, int *excluded, int excluded_count, ncclComm_t *out, ncclConfig_t *config,
                             int flags) {
  ncclResult_t code = comm_check(parent, "ncclCommShrink");
  if (code != ncclSuccess || (code = check_pointer(out, "ncclCommShrink", "newcomm")) != ncclSuccess ||
      (code = check_pointer(excluded, "ncclCommShrink", "excludeRanksList")) != ncclSuccess ||
      (code = check_config(config, "ncclCommShrink")) != ncclSuccess)
    return code;
  struct init_job job = {.kind = INIT_SHRINK, .out = out, .parent = parent, .device = parent->device};
  job.members = (1u << parent->nranks) - 1;
  if (excluded_count < 1 || excluded_count >= parent->nranks)
    return group_error(
        nccl_fail(ncclInvalidArgument, "ncclCommShrink: %d of %d ranks excluded", excluded_count, parent->nranks));
  for (int i = 0; i < excluded_count; i++) {
    if (excluded[i] < 0 || excluded[i] >= parent->nranks || excluded[i] == parent->rank)
      return group_error(nccl_fail(ncclInvalidArgument, "ncclCommShrink: rank %d cannot be excluded by rank %d of %d",
                                   excluded[i], parent->rank, parent->nranks));
    job.members &= ~(1u << excluded[i]);
  }
  if (flags & NCCL_SHRINK_ABORT)
    comm_break(parent, BREAK_ABORTED, parent->rank);
  *out = NULL;
  return group_submit_init(&job);
}

ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id) {
  ncclResult_t code = comm_check(comm, "ncclCommGetUniqueId");
  return code == ncclSuccess ? pncclGetUniqueId(id) : code;
}

ncclResult_t pncclCommGrow(ncclComm_t parent, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *out,
                           ncclConfig_t *config) {
  ncclResult_t code =
      parent ? comm_check(parent, "ncclCommGrow") : check_pointer(id, "ncclCommGrow", "uniqueId of a new rank");
  if (code != ncclSuccess || (code = check_pointer(out, "ncclCommGrow", "newcomm")) != ncclSuccess ||
      (code = check_config(config, "ncclCommGrow")) != ncclSuccess)
    return code;
  if (nranks > RANKS_MAX || (parent ? rank != -1 || nranks <= parent->nranks : rank < 0 || rank >= nranks))
    return group_error(nccl_fail(ncclInvalidArgument, "ncclCommGrow: rank %d of %d; existing ranks pass -1, new ones theirs",
                                 rank, nranks));
  struct init_job job = {
      .kind = INIT_GROW, .out = out, .parent = parent, .nranks = nranks, .rank = rank, .has_id = id != NULL};
  job.device = parent ? parent->device : vnode_device_current();
  if (id)
    job.id = *id;
  *out = NULL;
  return group_submit_init(&job);
}

static void pause_briefly(void) {
  vnode_pause(200000);
}

/* Waits for all operations outside of graphs. */
static void flush(struct ncclComm *comm) {
  int device = vnode_device_current();
  vnode_device_set(comm->device); /* where the default stream is meant */
  if (comm->stream_count > COMM_STREAMS_MAX)
    vnode_device_synchronize(comm->device);
  for (unsigned i = 0; i < comm->stream_count && i < COMM_STREAMS_MAX; i++)
    if (!vnode_stream_is_capturing(comm->streams[i]))
      vnode_stream_synchronize(comm->streams[i]);
  comm->stream_count = 0;
  while (atomic_load(&comm->pending)) /* on a stream that was destroyed */
    pause_briefly();
  vnode_device_set(device);
}

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  ncclResult_t code = comm_check(comm, "ncclCommFinalize");
  if (code != ncclSuccess)
    return code;
  comm_enter(comm); /* another thread may abort it meanwhile */
  flush(comm);
  comm_leave(comm);
  return ncclSuccess;
}

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  free_retired();
  if (!comm)
    return ncclSuccess;
  ncclResult_t code = comm_check(comm, "ncclCommDestroy");
  if (code != ncclSuccess)
    return code;
  flush(comm);
  comm->magic = 0;
  comm_leave(comm);
  return ncclSuccess;
}

/* Stops this rank's waits, tells the others, and returns when no operation runs any more. Those that are still to run then
   do nothing. */
static void interrupt_users(struct ncclComm *comm) {
  atomic_store(&comm->abort, true);
  comm_break(comm, BREAK_ABORTED, comm->rank);
  while (atomic_load(&comm->running))
    pause_briefly();
}

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  if (!comm)
    return ncclSuccess;
  ncclResult_t code = comm_check(comm, "ncclCommAbort");
  if (code != ncclSuccess)
    return code;
  interrupt_users(comm);
  comm->magic = 0;
  comm_close(comm);
  comm_leave(comm);
  return ncclSuccess;
}

/* As abort, but the handle stays good for ncclCommShrink, Split's refusal and Destroy. */
ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags) {
  ncclResult_t code = comm_check(comm, "ncclCommRevoke");
  if (code != ncclSuccess)
    return code;
  if (flags != NCCL_REVOKE_DEFAULT)
    return nccl_fail(ncclInvalidArgument, "ncclCommRevoke: flags %d; accepted: 0", flags);
  interrupt_users(comm);
  return ncclSuccess;
}

/* -------------------------------------------------------------------------------------------------- entry: questions */

const char *pncclGetErrorString(ncclResult_t code) {
  static const char *const texts[] = {
      [ncclSuccess] = "no error",
      [ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      [ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      [ncclInternalError] = "internal error - please report this issue to the NCCL developers",
      [ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
      [ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
      [ncclRemoteError] = "remote process exited or there was a network error",
      [ncclInProgress] = "NCCL operation in progress",
      [ncclTimeout] = "timeout",
  };
  return (unsigned)code < ncclNumResults ? texts[code] : "unknown result code";
}

const char *pncclGetLastError(ncclComm_t comm) {
  (void)comm; /* as in NCCL: the last error of the process */
  return nccl_last_error();
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  ncclResult_t code = comm_check(comm, "ncclCommGetAsyncError");
  if (code != ncclSuccess || (code = check_pointer(error, "ncclCommGetAsyncError", "asyncError")) != ncclSuccess)
    return code;
  *error = (ncclResult_t)atomic_load(&comm->async);
  return ncclSuccess;
}

static ncclResult_t answer(const struct ncclComm *comm, int value, int *out, const char *function) {
  ncclResult_t code = check_pointer(out, function, "result");
  (void)comm;
  if (code == ncclSuccess)
    *out = value;
  return code;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count) {
  ncclResult_t code = comm_check(comm, "ncclCommCount");
  return code == ncclSuccess ? answer(comm, comm->nranks, count, "ncclCommCount") : code;
}

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device) {
  ncclResult_t code = comm_check(comm, "ncclCommCuDevice");
  return code == ncclSuccess ? answer(comm, comm->device, device, "ncclCommCuDevice") : code;
}

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank) {
  ncclResult_t code = comm_check(comm, "ncclCommUserRank");
  return code == ncclSuccess ? answer(comm, comm->rank, rank, "ncclCommUserRank") : code;
}

ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value) {
  ncclResult_t code = comm_check(comm, "ncclCommMemStats");
  if (code != ncclSuccess || (code = check_pointer(value, "ncclCommMemStats", "value")) != ncclSuccess)
    return code;
  switch (stat) {
  case ncclStatGpuMemTotal:
  case ncclStatGpuMemPersist: /* suspending is not offered: all of it persists */
    *value = memory_total(comm->blocks);
    return ncclSuccess;
  case ncclStatGpuMemSuspend:
  case ncclStatGpuMemSuspended:
    *value = 0;
    return ncclSuccess;
  }
  return nccl_fail(ncclInvalidArgument, "ncclCommMemStats: statistic %d", (int)stat);
}

/* ------------------------------------------------------------------------------- entry: memory and registration */

static struct nccl_block *user_blocks;

ncclResult_t pncclMemAlloc(void **out, size_t bytes) {
  ncclResult_t code = check_pointer(out, "ncclMemAlloc", "ptr");
  if (code != ncclSuccess)
    return code;
  *out = NULL;
  if (!bytes)
    return nccl_fail(ncclInvalidArgument, "ncclMemAlloc: size is 0");
  return memory_alloc(&user_blocks, vnode_device_current(), bytes, out);
}

ncclResult_t pncclMemFree(void *base) {
  struct vnode_memory_info info;
  if (!base)
    return ncclSuccess;
  if (vnode_memory_query(base, &info))
    vnode_device_synchronize(info.device);
  return memory_free(&user_blocks, base);
}

/* Registration changes how NCCL moves data, not what arrives: kept as bookkeeping, so that wrong handles are errors. */
static ncclResult_t registration_add(struct ncclComm *comm, void *base, size_t bytes, void **handle, const char *function) {
  ncclResult_t code = comm_check(comm, function);
  if (code != ncclSuccess || (code = check_pointer(base, function, "buffer")) != ncclSuccess ||
      (code = check_pointer(handle, function, "handle")) != ncclSuccess)
    return code;
  struct registration *registration = calloc(1, sizeof *registration);
  if (!registration)
    return nccl_fail(ncclSystemError, "out of memory");
  *registration = (struct registration){.next = comm->registrations, .base = base, .bytes = bytes};
  comm->registrations = registration;
  *handle = registration;
  return ncclSuccess;
}

static struct registration **registration_find(struct ncclComm *comm, const void *handle) {
  struct registration **at = &comm->registrations;
  while (*at && *at != handle)
    at = &(*at)->next;
  return at;
}

static ncclResult_t registration_remove(struct ncclComm *comm, void *handle, const char *function) {
  ncclResult_t code = comm_check(comm, function);
  if (code != ncclSuccess || !handle)
    return code;
  struct registration **at = registration_find(comm, handle), *found = *at;
  if (!found)
    return nccl_fail(ncclInvalidArgument, "%s: %p is not registered with this communicator", function, handle);
  *at = found->next;
  free(found);
  return ncclSuccess;
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *base, size_t bytes, void **handle) {
  return registration_add(comm, base, bytes, handle, "ncclCommRegister");
}

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle) {
  return registration_remove(comm, handle, "ncclCommDeregister");
}

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *base, size_t bytes, ncclWindow_t *window, int flags) {
  (void)flags;
  return registration_add(comm, base, bytes, (void **)window, "ncclCommWindowRegister");
}

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return registration_remove(comm, window, "ncclCommWindowDeregister");
}

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **out) {
  ncclResult_t code = comm_check(comm, "ncclWinGetUserPtr");
  if (code != ncclSuccess || (code = check_pointer(out, "ncclWinGetUserPtr", "outUserPtr")) != ncclSuccess)
    return code;
  const struct registration *found = *registration_find(comm, window);
  if (!found)
    return nccl_fail(ncclInvalidArgument, "ncclWinGetUserPtr: %p is not a window of this communicator", (void *)window);
  *out = found->base;
  return ncclSuccess;
}

/* ----------------------------------------------------------------------------------------- entry: user's operators */

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                                       ncclComm_t comm) {
  ncclResult_t code = comm_check(comm, "ncclRedOpCreatePreMulSum");
  if (code != ncclSuccess || (code = check_pointer(op, "ncclRedOpCreatePreMulSum", "op")) != ncclSuccess ||
      (code = check_pointer(scalar, "ncclRedOpCreatePreMulSum", "scalar")) != ncclSuccess)
    return code;
  size_t bytes = reduce_type_bytes(type);
  if (!bytes)
    return group_error(nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: invalid type %d", (int)type));
  int at = 0;
  while (at < comm->op_count && comm->ops[at].live)
    at++;
  if (at == comm->op_count) {
    struct user_op *bigger = realloc(comm->ops, (size_t)(at + 1) * sizeof *bigger);
    if (!bigger)
      return nccl_fail(ncclSystemError, "out of memory");
    comm->ops = bigger;
    comm->op_count++;
  }
  struct user_op *user = &comm->ops[at];
  *user = (struct user_op){.live = true, .type = type, .in_device_memory = residence == ncclScalarDevice};
  if (user->in_device_memory)
    user->scalar = (uint64_t)(uintptr_t)scalar;
  else
    memcpy(&user->scalar, scalar, bytes);
  *op = (ncclRedOp_t)(ncclNumOps + at);
  return ncclSuccess;
}

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  ncclResult_t code = comm_check(comm, "ncclRedOpDestroy");
  if (code != ncclSuccess)
    return code;
  int at = (int)op - ncclNumOps;
  if (at < 0 || at >= comm->op_count || !comm->ops[at].live)
    return nccl_fail(ncclInvalidArgument, "ncclRedOpDestroy: operator %d is unknown to this communicator", (int)op);
  comm->ops[at].live = false;
  return ncclSuccess;
}

NCCL_ENTRY(ncclGetVersion);
NCCL_ENTRY(ncclGetUniqueId);
NCCL_ENTRY(ncclCommInitRank);
NCCL_ENTRY(ncclCommInitRankConfig);
NCCL_ENTRY(ncclCommInitRankScalable);
NCCL_ENTRY(ncclCommInitAll);
NCCL_ENTRY(ncclCommSplit);
NCCL_ENTRY(ncclCommShrink);
NCCL_ENTRY(ncclCommGetUniqueId);
NCCL_ENTRY(ncclCommGrow);
NCCL_ENTRY(ncclCommFinalize);
NCCL_ENTRY(ncclCommDestroy);
NCCL_ENTRY(ncclCommAbort);
NCCL_ENTRY(ncclCommRevoke);
NCCL_ENTRY(ncclGetErrorString);
NCCL_ENTRY(ncclGetLastError);
NCCL_ENTRY(ncclCommGetAsyncError);
NCCL_ENTRY(ncclCommCount);
NCCL_ENTRY(ncclCommCuDevice);
NCCL_ENTRY(ncclCommUserRank);
NCCL_ENTRY(ncclCommMemStats);
NCCL_ENTRY(ncclMemAlloc);
NCCL_ENTRY(ncclMemFree);
NCCL_ENTRY(ncclCommRegister);
NCCL_ENTRY(ncclCommDeregister);
NCCL_ENTRY(ncclCommWindowRegister);
NCCL_ENTRY(ncclCommWindowDeregister);
NCCL_ENTRY(ncclWinGetUserPtr);
NCCL_ENTRY(ncclRedOpCreatePreMulSum);
NCCL_ENTRY(ncclRedOpDestroy);
