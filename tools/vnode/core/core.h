/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of the virtual node: one process-wide library, libb200vnode.so, to which every stand-in
 * (cudart, driver, cuBLAS, cuBLASLt, NCCL, NVML) and the ATen layer link. It owns what the stand-ins share:
 * configuration, the node's devices and their memory, streams and events, the ledger, and the ways to stop.
 *
 * Vocabulary
 *   node      the machine that is simulated: N devices of one GPU model.
 *   session   all processes that share one node (one `b200opt dryrun`). Device memory is accounted per device over
 *             all live processes of the session, in POSIX shared memory.
 *   device    ordinal 0 … N-1. The current device is per host thread, as in CUDA.
 *   operation what a stream executes: a function (its work) and a copy of its arguments, the memory that it touches and
 *             the time that it takes on the modelled GPU.
 *   order     when operations run. eager: before vnode_op_submit() returns, on the calling thread. deferred: as late as CUDA
 *             allows, when a host thread waits for them. adversarial: by a seeded scheduler, early or late, in any order
 * that the dependencies allow. A correct program cannot tell them apart. clock     modelled time in nanoseconds since the
 * process's first use of the node; see vnode_host_charge(). owner     who asked for device memory: see enum vnode_owner.
 *
 * Thread-safety: every function may be called from any thread. None calls into CUDA, PyTorch or the shim.
 * After fork(), a child of a process that has used the node gets VNODE_NOT_INITIALIZED from everything that
 * allocates or submits, as CUDA does (cudaErrorInitializationError).
 * Sizes are in bytes unless a name says otherwise.
 */
#ifndef VNODE_CORE_H
#define VNODE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VNODE_API __attribute__((visibility("default")))
#define VNODE_MAX_DEVICES 8
#define VNODE_MEMORY_ALIGN_BYTES ((size_t)2 << 20) /* driver page: cudaMalloc blocks and cuMem* granularity */
#define VNODE_POISON 0xff                          /* NaN in every floating-point format, -1 as an integer */
#define VNODE_POISON_MAX_BYTES ((size_t)64 << 20)

enum vnode_status {
  VNODE_OK = 0,
  VNODE_INVALID_VALUE,
  VNODE_NO_MEMORY,
  VNODE_NOT_FOUND,
  VNODE_NOT_INITIALIZED,     /* forked child of a process that has used the node */
  VNODE_SYSTEM,              /* the host refused (mmap, shm_open …); errno says why */
  VNODE_ILLEGAL_STATE = 401, /* from here on the numbers are CUDA's */
  VNODE_NOT_READY = 600,
  VNODE_NOT_SUPPORTED = 801,
  VNODE_CAPTURE_UNSUPPORTED = 900, /* not permitted while the stream captures; the capture is spoilt */
  VNODE_CAPTURE_INVALIDATED,       /* the capture was spoilt before */
  VNODE_CAPTURE_MERGE,             /* two captures would become one */
  VNODE_CAPTURE_UNMATCHED,         /* the stream did not begin the capture */
  VNODE_CAPTURE_UNJOINED,          /* a stream that joined the capture was not joined back */
  VNODE_CAPTURE_ISOLATION,         /* a dependency would cross the capture's edge */
  VNODE_CAPTURE_IMPLICIT,          /* the legacy stream would depend on a capture */
  VNODE_CAPTURED_EVENT,            /* the event was recorded in a capture */
  VNODE_CAPTURE_WRONG_THREAD,
  VNODE_GRAPH_UPDATE_FAILED = 910,
};

/* ---------------------------------------------------------------------------------------------- configuration */

enum vnode_order { VNODE_ORDER_EAGER, VNODE_ORDER_DEFERRED, VNODE_ORDER_ADVERSARIAL };

/* What B200OPT_VNODE_* and the launcher's variables say; read once, on the first call. */
struct vnode_config {
  const char *gpu;        /* B200OPT_VNODE_GPU */
  int device_count;       /* B200OPT_VNODE_GPUS, 1 … VNODE_MAX_DEVICES */
  uint64_t memory_bytes;  /* B200OPT_VNODE_MEMORY_GB, per device; 0: the GPU model's own */
  bool unhandled_fatal;   /* B200OPT_VNODE_UNHANDLED=fatal */
  const char *session;    /* B200OPT_VNODE_SESSION, or one made of the launcher's pid and start time */
  const char *log_dir;    /* B200OPT_VNODE_LOG_DIR, NULL: no ledger is written */
  const char *aten_dir;   /* B200OPT_VNODE_ATEN_DIR: folder of the ATen layers; NULL: beside the core library */
  enum vnode_order order; /* B200OPT_VNODE_ORDER */
  uint64_t seed;          /* B200OPT_VNODE_SEED, of the adversarial order */
  bool kernels_skipped;   /* B200OPT_VNODE_KERNELS=skip: nothing is computed by kernels, the ATen layer is not loaded */
  const char *fault;      /* B200OPT_VNODE_FAULT, see fault.c; NULL: none */
  const char *trace;      /* B200OPT_VNODE_TRACE, see trace.c; NULL: none */
  int rank;               /* RANK, or -1 */
  int world;              /* WORLD_SIZE, or -1 */
  bool gemms_skipped;     /* B200OPT_VNODE_KERNELS=none: nor by cuBLAS */
};

VNODE_API const struct vnode_config *vnode_config(void);

/* --------------------------------------------------------------------------------------------- ways to stop */

/* A function of a CUDA library that the virtual node does not implement was called. Fatal: prints one line with the
   name and what to do, and aborts. Generated traps call it. */
VNODE_API __attribute__((noreturn)) void vnode_trap(const char *function);

/* A kernel without a CPU implementation was launched. Fatal by default (the result would be wrong numbers); with
   B200OPT_VNODE_UNHANDLED=warn said once per kernel, counted, and the launch does nothing. */
VNODE_API void vnode_unhandled_kernel(const char *kernel);
VNODE_API uint64_t vnode_unhandled_count(void);

/* The same for a launch with B200OPT_VNODE_KERNELS=skip, which does nothing: counted, and said once for all of them. */
VNODE_API void vnode_skipped_kernel(void);

/* One line on stderr, "b200vnode: …"; at most once per distinct `key`. */
VNODE_API void vnode_say_once(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --------------------------------------------------------------------------------------------------- devices */

/* What a program can ask of a device of the configured model; source of each figure in core/gpus.def. */
struct vnode_gpu {
  const char *name; /* "NVIDIA B200" */
  int cc_major, cc_minor, sm_count;
  uint64_t memory_bytes;  /* as cudaMemGetInfo's total */
  uint64_t context_bytes; /* what a context takes of it, per process and device */
  int l2_bytes, shared_per_block_bytes, shared_per_sm_bytes, shared_optin_bytes;
  int threads_per_sm, blocks_per_sm;
  int clock_khz, memory_clock_khz, memory_bus_bits;
  int nvlink_version, nvlink_count;
};

VNODE_API const struct vnode_gpu *vnode_gpu(void);
VNODE_API int vnode_device_current(void);
VNODE_API enum vnode_status vnode_device_set(int device);
/* Marks the context of `device` as created by this process (charges context_bytes). Idempotent. */
VNODE_API enum vnode_status vnode_device_touch(int device);
VNODE_API bool vnode_device_touched(int device);
/* False in a child made by fork() of a process that had used the node. */
VNODE_API bool vnode_usable(void);

/* ---------------------------------------------------------------------------------------------------- memory */

enum vnode_memory_kind {
  VNODE_MEMORY_DEVICE,     /* cudaMalloc and its kin: charged */
  VNODE_MEMORY_HOST,       /* pinned host memory */
  VNODE_MEMORY_REGISTERED, /* the application's own, cudaHostRegister */
  VNODE_MEMORY_MANAGED,    /* charged to the device it was made on */
  VNODE_MEMORY_MAPPED,     /* a cuMemMap'ed range (charged by its physical handle) */
  VNODE_MEMORY_IMPORTED,   /* opened from another process; charged there */
};

enum vnode_owner { VNODE_OWNER_PYTORCH, VNODE_OWNER_NCCL, VNODE_OWNER_CUBLAS, VNODE_OWNER_OTHER, VNODE_OWNER_COUNT };

/* Who the calling thread allocates for, for stand-ins that allocate through another one (cudart, NCCL and cuBLAS through the
   driver). The outermost push wins; pop with what push returned. VNODE_OWNER_COUNT: nobody has said. */
VNODE_API enum vnode_owner vnode_owner_push(enum vnode_owner owner);
VNODE_API void vnode_owner_pop(enum vnode_owner previous);
VNODE_API enum vnode_owner vnode_owner_hint(void);

struct vnode_memory_info {
  void *base;
  size_t bytes; /* as charged: the request rounded up to VNODE_MEMORY_ALIGN_BYTES for device memory */
  int device;
  enum vnode_memory_kind kind;
  uint64_t id; /* never reused in this process */
};

/* Allocates `bytes` > 0 on `device`. Memory is reserved, not touched; fresh pages read as zero.
   Errors: NO_MEMORY when the device has less than `bytes` (rounded up) left over all processes of the session. */
VNODE_API enum vnode_status vnode_memory_alloc(int device, size_t bytes, enum vnode_memory_kind kind, enum vnode_owner owner,
                                               void **out);
/* pre: `base` came from vnode_memory_alloc or _register. NOT_FOUND for anything else (interior pointers too). */
VNODE_API enum vnode_status vnode_memory_free(void *base);
/* The same for memory of which the caller knows that nothing uses it any more: waits for nothing. */
VNODE_API enum vnode_status vnode_memory_free_idle(void *base);
/* In the late orders fills memory whose contents mean nothing with VNODE_POISON, as far as that is worth its time: what is
   larger than VNODE_POISON_MAX_BYTES is left as it is. */
VNODE_API void vnode_memory_poison(void *at, size_t bytes);
VNODE_API enum vnode_status vnode_memory_register(void *base, size_t bytes);
VNODE_API bool vnode_memory_query(const void *address, struct vnode_memory_info *out);
VNODE_API enum vnode_status vnode_memory_get_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);
/* The same from outside, as NVML sees it: makes no context. */
VNODE_API enum vnode_status vnode_memory_used(int device, uint64_t *used_bytes, uint64_t *total_bytes);
/* The processes of the session that hold memory of `device`, this one too: the first `capacity` of them; `count`: all. */
struct vnode_process {
  int64_t pid;
  uint64_t used_bytes;
};
VNODE_API enum vnode_status vnode_memory_processes(int device, struct vnode_process *out, size_t capacity, size_t *count);

/* Virtual memory (cuMem*): physical handles with reference counts, charged while they live. */
VNODE_API enum vnode_status vnode_physical_create(int device, size_t bytes, enum vnode_owner owner, uint64_t *handle);
VNODE_API enum vnode_status vnode_physical_retain(const void *address, uint64_t *handle);
VNODE_API enum vnode_status vnode_physical_release(uint64_t handle);
VNODE_API enum vnode_status vnode_physical_info(uint64_t handle, int *device, size_t *bytes);
VNODE_API enum vnode_status vnode_physical_export(uint64_t handle, int *fd);
VNODE_API enum vnode_status vnode_physical_import(int fd, uint64_t *handle);
VNODE_API enum vnode_status vnode_range_reserve(size_t bytes, size_t align_bytes, void **out);
VNODE_API enum vnode_status vnode_range_free(void *base, size_t bytes);
VNODE_API enum vnode_status vnode_range_map(void *at, size_t bytes, uint64_t handle);
VNODE_API enum vnode_status vnode_range_unmap(void *at, size_t bytes);
VNODE_API enum vnode_status vnode_range_set_access(void *at, size_t bytes, bool readable);

/* Legacy IPC: a 64-byte token names an allocation of another process of the session. */
VNODE_API enum vnode_status vnode_ipc_export(const void *base, unsigned char token[64]);
VNODE_API enum vnode_status vnode_ipc_open(const unsigned char token[64], void **out);
VNODE_API enum vnode_status vnode_ipc_close(void *base);

/* --------------------------------------------------------------------------------------------------- streams */

struct vnode_stream; /* a cudaStream_t points to one, but for the special handles below */
struct vnode_event;

#define VNODE_STREAM_NULL ((struct vnode_stream *)0)
#define VNODE_STREAM_LEGACY ((struct vnode_stream *)1)
#define VNODE_STREAM_PER_THREAD ((struct vnode_stream *)2)

VNODE_API enum vnode_status vnode_stream_create(unsigned flags, int priority, struct vnode_stream **out);
VNODE_API enum vnode_status vnode_stream_destroy(struct vnode_stream *stream);
/* Small number that is stable within a process; 0 for the default stream. INVALID_VALUE: -1. */
VNODE_API int vnode_stream_id(const struct vnode_stream *stream);
VNODE_API bool vnode_stream_info(const struct vnode_stream *stream, unsigned *flags, int *priority, int *device);

typedef void (*vnode_work)(void *args);

/* Memory that an operation reads or writes: `rows` rows of `row_bytes`, `pitch` bytes apart (ignored for one row). Device,
   pinned or managed memory; an operation does not declare the program's pageable memory. */
struct vnode_access {
  const void *at;
  size_t row_bytes, rows, pitch;
  bool write;
};

enum vnode_op_flags {
  VNODE_OP_WAITS = 1, /* its work waits for other processes or other operations: it must hold up nothing but its stream */
  VNODE_OP_COPY = 2,  /* what its node in a graph is; none of them: a kernel */
  VNODE_OP_FILL = 4,
  VNODE_OP_HOST = 8,
  VNODE_OP_ALLOC = 16, /* what it writes is new memory from here on */
  VNODE_OP_FREE = 32,  /* what it writes is no memory any more: using it behind this point is a mistake */
};

struct vnode_op {
  const char *name; /* for messages and traces; must live as long as the process (a literal, a registered operator's name) */
  vnode_work work;  /* NULL: nothing to compute. In a graph it runs at every launch */
  const void *args; /* copied; what they point to is read when the work runs, as CUDA does with device memory */
  size_t args_bytes;
  void (*drop)(
      void *args); /* called once, with the copy or the caller's args, when the node is done with them: after the work
                      has run, when the graph that captured it is destroyed, or when the submission failed. May be NULL */
  const struct vnode_access *accesses; /* copied */
  size_t access_count;
  int64_t duration_ns; /* on the modelled GPU (core/model.h); the work may correct it */
  unsigned flags;
};

/* Puts an operation into the stream's order; while the stream captures, into its graph instead.
   Errors: INVALID_VALUE for a stream that is none, NOT_INITIALIZED after fork. */
VNODE_API enum vnode_status vnode_op_submit(struct vnode_stream *stream, const struct vnode_op *op);

/* True when work submitted to `stream` now may run after the submission returned: the order is not eager, or the stream
   captures. Then everything that the work needs has to be in its args. */
VNODE_API bool vnode_stream_is_late(struct vnode_stream *stream);
/* True when what is submitted goes into a graph: nothing may be waited for, results cannot be looked at. */
VNODE_API bool vnode_stream_is_capturing(struct vnode_stream *stream);

/* For the work that runs on this thread: its earliest start, and what it found about its time. A work that says nothing
   takes duration_ns from its earliest start. pre: called from a work. */
VNODE_API int64_t vnode_op_ready_ns(void);
VNODE_API void vnode_op_set_span(int64_t start_ns, int64_t end_ns);
VNODE_API void vnode_op_set_duration(int64_t duration_ns);
/* The work found an error that on a GPU ends the context (an assertion, an illegal address): from now on every call of the
   runtime and the driver gives `cuda_error`. The message is said once. */
VNODE_API void vnode_op_fail(int cuda_error, const char *message);
/* 0, or the error that ended the context of this process. */
VNODE_API int vnode_sticky_error(void);
VNODE_API void vnode_set_sticky_error(int cuda_error);

/* Host time. Each thread has a clock; a submission takes over the time of the stream's last submission (threads that share a
   stream hand over by it) and starts no earlier than the clock, a wait moves the clock to the end of what was waited for.
   Adds `ns` to the calling thread's clock. */
VNODE_API void vnode_host_charge(int64_t ns);
VNODE_API int64_t vnode_host_now_ns(void);
/* The calling thread has submitted work: its clock is the program's. */
VNODE_API bool vnode_host_drives(void);
/* Sleeps on this machine, and passes no modelled time: the C library's functions do, on a thread that has submitted work
 * (sleep.c). */
VNODE_API void vnode_pause(int64_t ns);

/* Races that the happens-before checker reported; 0 in eager order, where it does not run. */
VNODE_API uint64_t vnode_race_count(void);

VNODE_API enum vnode_status vnode_stream_synchronize(struct vnode_stream *stream);
/* True when all work of the stream is complete, as cudaStreamQuery and cudaEventQuery see it: it has run and, outside of
   eager order, its modelled end lies before the calling thread's clock. Asking again moves the clock on, so that polling
   ends. */
VNODE_API bool vnode_stream_idle(struct vnode_stream *stream);
VNODE_API enum vnode_status vnode_device_synchronize(int device);
/* The same for functions that wait on their own account and have asked vnode_capture_unsafe() whether they may. */
VNODE_API void vnode_device_wait(int device);

VNODE_API enum vnode_status vnode_event_create(unsigned flags, struct vnode_event **out);
VNODE_API enum vnode_status vnode_event_destroy(struct vnode_event *event);
VNODE_API enum vnode_status vnode_event_record(struct vnode_event *event, struct vnode_stream *stream);
/* The event stands for all work that the device has now. A capture of one of its streams is spoilt by that. NOT_SUPPORTED in
   eager order while another thread runs work of the device. */
VNODE_API enum vnode_status vnode_event_record_device(struct vnode_event *event, int device);
VNODE_API enum vnode_status vnode_event_wait(struct vnode_stream *stream, struct vnode_event *event);
VNODE_API enum vnode_status vnode_event_synchronize(struct vnode_event *event);
VNODE_API bool vnode_event_is(const struct vnode_event *event);
/* It has run and ended before the calling thread's clock, which stays as it is; false when it was never recorded. */
VNODE_API bool vnode_event_passed(struct vnode_event *event);
/* `function` is called after every wait of the host for a stream, an event or a device, on the thread that waited, with no
   lock held. One function; the last one given counts. */
VNODE_API void vnode_after_synchronize(void (*function)(void));
VNODE_API bool vnode_event_done(struct vnode_event *event); /* see vnode_stream_idle; true when it was never recorded */
/* Modelled time between the two records, in milliseconds. INVALID_VALUE when either was never recorded or was made without
   timing, NOT_READY when either is not complete. */
VNODE_API enum vnode_status vnode_event_elapsed(struct vnode_event *start, struct vnode_event *end, float *ms);

/* ---------------------------------------------------------------------------------------------------- ledger */

/* The node's own count of what it was asked to do, independent of the shim; written as records of
   interpose/record/record.def to <log_dir>/<host>-r<rank>-<pid>.node.jsonl when the process ends. */

/* One GEMM: column-major terms of cuBLAS, D[m×n] = op(A)[m×k]·op(B)[k×n], `batch` times. 2·m·n·k·batch FLOPs.
   Types are names as in record.def ("bf16", "f32" …). */
struct vnode_gemm_key {
  const char *api;       /* "gemmex", "lt", "strided", "gemm" */
  char trans_a, trans_b; /* 'N', 'T', 'C' */
  int64_t m, n, k, batch;
  const char *type_a, *type_b, *type_d, *compute, *epilogue;
};
VNODE_API void vnode_ledger_gemm(const struct vnode_gemm_key *key);

/* One collective as seen by this rank. `bytes` by nccl-tests' convention. */
VNODE_API void vnode_ledger_collective(const char *op, const char *dtype, int nranks, uint64_t bytes);

/* Bytes that `owner` holds on `device` in this process, and the most it held. */
VNODE_API void vnode_ledger_memory(int device, enum vnode_owner owner, uint64_t *current, uint64_t *peak);

#ifdef __cplusplus
}
#endif
#endif
