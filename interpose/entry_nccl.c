/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL. ncclBcast calls ncclBroadcast, AlltoAll may call Send and Recv: a call is counted once, at the outermost. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

/* nccl.h declares them without a prototype. */
extern ncclResult_t ncclGroupStart(void);
extern ncclResult_t ncclGroupEnd(void);

#include "interpose/entry.h"
#include "interpose/timing/comms.h"

static uint8_t dtype_of(ncclDataType_t type) {
  static const uint8_t elements[] = {
      B200_ELEMENT_I8,  B200_ELEMENT_U8,  B200_ELEMENT_I32, B200_ELEMENT_U32,  B200_ELEMENT_I64,  B200_ELEMENT_U64,
      B200_ELEMENT_F16, B200_ELEMENT_F32, B200_ELEMENT_F64, B200_ELEMENT_BF16, B200_ELEMENT_E4M3, B200_ELEMENT_E5M2,
  };
  return (unsigned)type < sizeof elements ? elements[type] : B200_ELEMENT_OTHER;
}

struct b200_coll b200_coll(enum b200_coll_op op, size_t count, ncclDataType_t type, ncclComm_t comm) {
  int nranks = 0;
  /* NCCL complains of a NULL communicator in its log; the call itself will */
  if (!comm || !B200_REAL(nccl, ncclCommCount) || B200_REAL(nccl, ncclCommCount)(comm, &nranks) != ncclSuccess)
    nranks = 0;
  return (struct b200_coll){.count = count, .nranks = nranks, .op = (uint8_t)op, .dtype = dtype_of(type)};
}

/* A non-blocking communicator goes on with the call by itself. */
#define B200_FAILED_nccl(status) ((status) != ncclSuccess && (status) != ncclInProgress)

static ncclResult_t counted(enum b200_symbol symbol, ncclResult_t status) {
  b200_count(b200_thread_self(), symbol, B200_FAILED_nccl(status), 0);
  return status;
}

static ncclResult_t observe_ncclGroupStart(void) {
  ncclResult_t status = counted(B200_SYM_ncclGroupStart, B200_REAL(nccl, ncclGroupStart)());
  struct b200_thread *self = b200_thread_self();
  if (status == ncclSuccess && self->depth == 0) {
    b200_timing_group_started(self);
    b200_memory_group(+1);
  }
  return status;
}

static ncclResult_t observe_ncclGroupEnd(void) {
  struct b200_thread *self = b200_thread_self();
  struct b200_span spans[B200_GROUP_STREAMS] = {0};
  if (self->depth > 0) /* NCCL's own, within a call of the job */
    return counted(B200_SYM_ncclGroupEnd, B200_REAL(nccl, ncclGroupEnd)());
  b200_timing_group_begin(self, spans);
  ncclResult_t status = counted(B200_SYM_ncclGroupEnd, B200_REAL(nccl, ncclGroupEnd)());
  b200_timing_group_end(self, spans, (int)status);
  b200_memory_group(-1);
  return status;
}

/* ------------------------------------------------------------------------------------------- communicators */

static void made(ncclResult_t status, const ncclComm_t *comm, uint64_t id, ncclComm_t parent) {
  if (!B200_FAILED_nccl(status) && comm && *comm)
    b200_timing_comm_made(*comm, id, parent);
}

static ncclResult_t observe_ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
  ncclResult_t status = counted(B200_SYM_ncclCommInitRank, B200_REAL(nccl, ncclCommInitRank)(comm, nranks, commId, rank));
  made(status, comm, b200_comms_hash(0, &commId, sizeof commId), NULL);
  return status;
}

static ncclResult_t observe_ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                                   ncclConfig_t *config) {
  ncclResult_t status =
      counted(B200_SYM_ncclCommInitRankConfig, B200_REAL(nccl, ncclCommInitRankConfig)(comm, nranks, commId, rank, config));
  made(status, comm, b200_comms_hash(0, &commId, sizeof commId), NULL);
  return status;
}

static ncclResult_t observe_ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                                     ncclUniqueId *commIds, ncclConfig_t *config) {
  ncclResult_t status = counted(B200_SYM_ncclCommInitRankScalable,
                                B200_REAL(nccl, ncclCommInitRankScalable)(newcomm, nranks, myrank, nId, commIds, config));
  if (!B200_FAILED_nccl(status))
    made(status, newcomm, b200_comms_hash(0, commIds, (size_t)nId * sizeof *commIds), NULL);
  return status;
}

/* Within one process: any name that no other communicator of it has. */
static ncclResult_t observe_ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
  static _Atomic uint64_t count;
  ncclResult_t status = counted(B200_SYM_ncclCommInitAll, B200_REAL(nccl, ncclCommInitAll)(comm, ndev, devlist));
  const uint64_t number[] = {(uint64_t)getpid(), atomic_fetch_add(&count, 1)};
  for (int i = 0; status == ncclSuccess && i < ndev; i++)
    made(status, &comm[i], b200_comms_hash(0, number, sizeof number), NULL);
  return status;
}

static ncclResult_t observe_ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  ncclResult_t status = counted(B200_SYM_ncclCommSplit, B200_REAL(nccl, ncclCommSplit)(comm, color, key, newcomm, config));
  if (!B200_FAILED_nccl(status))
    made(status, newcomm, b200_timing_comm_split(comm, &color, sizeof color), comm);
  return status;
}

static ncclResult_t observe_ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                                           ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags) {
  ncclResult_t status =
      counted(B200_SYM_ncclCommShrink,
              B200_REAL(nccl, ncclCommShrink)(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags));
  if (!B200_FAILED_nccl(status))
    made(status, newcomm,
         b200_timing_comm_split(comm, excludeRanksList, (size_t)excludeRanksCount * sizeof *excludeRanksList), comm);
  return status;
}

/* `remove`: the handle is not valid afterwards. What is complete is read back first, while the communicator's streams are
   sure to live. */
#define GOES(name, remove)                                                                                                  \
  static ncclResult_t observe_##name(ncclComm_t comm) {                                                                     \
    b200_timing_comm_gone(comm, remove);                                                                                    \
    return counted(B200_SYM_##name, B200_REAL(nccl, name)(comm));                                                           \
  }
GOES(ncclCommFinalize, false)
GOES(ncclCommDestroy, true)
GOES(ncclCommAbort, true)
#undef GOES

/* ------------------------------------------------------------------------------------------- registration */

static ncclResult_t observe_ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle) {
  uint64_t address = (uint64_t)(uintptr_t)buff;
  b200_memory_register_begin(address, size);
  ncclResult_t status = B200_REAL(nccl, ncclCommRegister)(comm, buff, size, handle);
  b200_memory_register_end(address, size, status == ncclSuccess && handle ? *handle : NULL);
  return counted(B200_SYM_ncclCommRegister, status);
}

/* A communicator that gives a buffer up has closed what its peers had of it. PyTorch does so before it frees. */
static ncclResult_t observe_ncclCommDeregister(const ncclComm_t comm, void *handle) {
  ncclResult_t status = B200_REAL(nccl, ncclCommDeregister)(comm, handle);
  if (status == ncclSuccess)
    b200_memory_register_gone(handle);
  return counted(B200_SYM_ncclCommDeregister, status);
}

static ncclResult_t observe_ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                                   int winFlags) {
  b200_memory_pin((uint64_t)(uintptr_t)buff, size);
  return counted(B200_SYM_ncclCommWindowRegister, B200_REAL(nccl, ncclCommWindowRegister)(comm, buff, size, win, winFlags));
}

#define B200_NCCL(...) B200_ENTRY(nccl, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_nccl[] = {
#define B200_NCCL(...) B200_SLOT_ROW(nccl, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_nccl = sizeof b200_slots_nccl / sizeof *b200_slots_nccl;
