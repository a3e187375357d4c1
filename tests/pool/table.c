/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job may observe of device memory, a row of rules at a time: prints one fact a line, the same ones on a GPU, on the
 * virtual node, and with the library in front of either.
 *
 *   table ROW     exit status 0; 77 when the machine cannot show it
 *
 * Sizes are of 2 MiB and more: only those come from the pool.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functions.h"

#define MIB ((size_t)1 << 20)

enum { SKIPPED = 77 };

static void say(const char *what, long long value) {
  printf("%s %lld\n", what, value);
}

static void must(int status, const char *what, int line) {
  if (status == 0)
    return;
  printf("line %d: %s gives %d\n", line, what, status);
  exit(1);
}
#define MUST(call) must((int)(call), #call, __LINE__)

/* With POOL_TEST_AS_PYTORCH every cudaFree is one of PyTorch's caching allocator. */
static cudaError_t drop(void *block) {
  static int as_pytorch = -1;
  if (as_pytorch < 0)
    as_pytorch = getenv("POOL_TEST_AS_PYTORCH") != NULL;
  return as_pytorch ? free_as_pytorch(block) : p_cudaFree(block);
}

static void *get(size_t bytes) {
  void *block = NULL;
  MUST(p_cudaMalloc(&block, bytes));
  if (p_pool_test_note)
    p_pool_test_note((CUdeviceptr)(uintptr_t)block);
  return block;
}

static CUdeviceptr address_of(const void *block) {
  return (CUdeviceptr)(uintptr_t)block;
}

static size_t free_now(void) {
  size_t free_bytes;
  MUST(p_cudaMemGetInfo(&free_bytes, NULL));
  return free_bytes;
}

static unsigned long long id_of(const void *block) {
  unsigned long long id = 0;
  MUST(p_cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address_of(block)));
  return id;
}

/* Every page holds the byte. */
static bool holds(const void *block, size_t bytes, int value) {
  unsigned char *host = malloc(bytes);
  bool all = true;
  MUST(p_cudaMemcpy(host, block, bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < bytes; i += 509)
    all = all && host[i] == value;
  free(host);
  return all;
}

static cudaStream_t new_stream(void) {
  cudaStream_t stream;
  MUST(p_cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

/* ---------------------------------------------------------------------------------------------------- rows */

static int alignment(void) {
  for (size_t mib = 2; mib <= 32; mib *= 4) {
    void *block = get(mib * MIB);
    say("of 512", address_of(block) % 512 == 0);
    say("of 2 MiB", address_of(block) % (2 * MIB) == 0);
    MUST(drop(block));
  }
  void *small = get(100);
  say("small of 256", address_of(small) % 256 == 0);
  say("free", drop(small));
  return 0;
}

static int size_zero(void) {
  void *block = &block;
  CUdeviceptr address = 4711;
  say("cudaMalloc", p_cudaMalloc(&block, 0));
  say("is NULL", block == NULL);
  say("cuMemAlloc", p_cuMemAlloc_v2(&address, 0));
  say("no place for the address", p_cuMemAlloc_v2(NULL, 4 * MIB));
  say("cudaMalloc without a place", p_cudaMalloc(NULL, 4 * MIB));
  say("last error", p_cudaGetLastError());
  return 0;
}

static int failure(void) {
  size_t total;
  MUST(drop(get(8 * MIB)));
  MUST(p_cudaMemGetInfo(NULL, &total));
  CUdeviceptr address = 4711;
  void *block;
  say("cuMemAlloc", p_cuMemAlloc_v2(&address, 2 * total));
  say("address untouched", address == 4711);
  say("no last error of the driver's", p_cudaGetLastError());
  say("cudaMalloc", p_cudaMalloc(&block, 2 * total));
  say("peek", p_cudaPeekAtLastError());
  say("last error", p_cudaGetLastError());
  say("cleared", p_cudaGetLastError());
  say("next", p_cudaMalloc(&block, 8 * MIB));
  say("last error after it", p_cudaGetLastError());
  say("free", drop(block));
  return 0;
}

/* The node is told to break at the cudaMemsetAsync after two. */
static int sticky(void) {
  void *first = get(8 * MIB), *second = get(8 * MIB), *third = NULL;
  say("free", drop(first));
  say("synchronize", p_cudaDeviceSynchronize());
  say("memset", p_cudaMemsetAsync(second, 1, 8 * MIB, NULL));
  say("memset", p_cudaMemsetAsync(second, 1, 8 * MIB, NULL));
  say("memset", p_cudaMemsetAsync(second, 1, 8 * MIB, NULL));
  say("malloc", p_cudaMalloc(&third, 8 * MIB));
  say("free", drop(second));
  say("again", drop(second) != cudaSuccess);
  say("info", p_cudaMemGetInfo(NULL, NULL));
  say("synchronize", p_cudaDeviceSynchronize());
  say("last error", p_cudaGetLastError());
  return 0;
}

/* One of the calls after the first free is told to give an error that stays with a context. This one goes on all the same:
   what is asked for then comes from the driver. */
static int after_error(void) {
  void *first = get(8 * MIB), *second = get(8 * MIB), *other = get(4 * MIB);
  unsigned long long before = id_of(first);
  MUST(free_as_pytorch(first));
  MUST(p_cudaDeviceSynchronize());
  p_cudaMemsetAsync(second, 1, MIB, NULL);
  p_cudaStreamSynchronize(NULL);
  p_cudaFree(other);
  p_cudaGetLastError();
  first = get(8 * MIB);
  say("new id", id_of(first) != before);
  say("free", drop(first));
  say("free", drop(second));
  return 0;
}

static int first_call(void) {
  void *block = NULL;
  say("free of NULL", drop(NULL));
  say("malloc", p_cudaMalloc(&block, 4 * MIB));
  say("free", drop(block));
  return 0;
}

static int free_null(void) {
  MUST(drop(get(4 * MIB)));
  say("runtime", drop(NULL));
  say("runtime in a stream", p_cudaFreeAsync(NULL, NULL));
  say("last error", p_cudaGetLastError());
  return 0;
}

static int wrong_frees(void) {
  char *block = get(8 * MIB);
  int local;
  say("interior", drop(block + 4 * MIB));
  say("last error", p_cudaGetLastError());
  say("interior of the driver", p_cuMemFree_v2(address_of(block) + 512));
  say("unknown", drop(&local));
  say("last error", p_cudaGetLastError());
  say("free", drop(block));
  say("double", drop(block));
  say("last error", p_cudaGetLastError());
  say("double of the driver", p_cuMemFree_v2(address_of(block)));
  say("double in a stream", p_cudaFreeAsync(block, NULL));
  say("last error", p_cudaGetLastError());
  block = get(8 * MIB);
  say("usable", p_cudaMemset(block, 1, 8 * MIB));
  say("free", drop(block));
  return 0;
}

/* Work that is queued when a block is freed must not touch what comes to lie there. */
static int free_waits(void) {
  enum { ROUNDS = 6 };
  cudaStream_t busy = new_stream(), other = new_stream();
  for (int i = 0; i < ROUNDS; i++) {
    void *before = get(16 * MIB);
    for (int j = 0; j < 4; j++)
      MUST(p_cudaMemsetAsync(before, 0x11, 16 * MIB, busy));
    MUST(drop(before));
    void *after = get(16 * MIB);
    MUST(p_cudaMemsetAsync(after, 0x22, 16 * MIB, other));
    MUST(p_cudaStreamSynchronize(other));
    MUST(p_cudaStreamSynchronize(busy));
    say("intact", holds(after, 16 * MIB, 0x22));
    MUST(drop(after));
  }
  return 0;
}

/* What the host was to get from work before the free is there when the free returns. */
static int free_is_a_wait(void) {
  cudaStream_t busy = new_stream();
  unsigned char *host = NULL;
  MUST(p_cudaHostAlloc((void **)&host, 8 * MIB, 0));
  for (int i = 0; i < 3; i++) {
    unsigned char *block = get(8 * MIB);
    MUST(p_cudaMemsetAsync(block, 0x30 + i, 8 * MIB, busy));
    MUST(p_cudaMemcpyAsync(host, block, 8 * MIB, cudaMemcpyDeviceToHost, busy));
    MUST(drop(block));
    say("the host has it", host[0] == 0x30 + i && host[8 * MIB - 1] == 0x30 + i);
    MUST(p_cudaStreamSynchronize(busy));
  }
  return 0;
}

/* Work that is queued after a free may wait for the thread that allocates next: an allocation of the same size does not wait
   for it, on a device that is full, whatever was queued before the free. */
static int awaited(void) {
  enum { BLOCKS = 40 };
  cudaStream_t busy = new_stream(), waiting = new_stream();
  volatile uint32_t *flag = NULL;
  void *blocks[BLOCKS];
  int count = 0;
  if (!p_cuStreamWaitValue32_v2)
    return SKIPPED;
  alarm(60); /* the bare program takes no second */
  MUST(p_cudaHostAlloc((void **)&flag, 4096, 0));
  *flag = 0;
  while (count < BLOCKS && p_cudaMalloc(&blocks[count], 32 * MIB) == cudaSuccess)
    MUST(p_cudaMemsetAsync(blocks[count++], 1, 32 * MIB, busy));
  p_cudaGetLastError();
  for (int i = 0; i < count; i++)
    MUST(drop(blocks[i]));
  CUresult status = p_cuStreamWaitValue32_v2(waiting, address_of((void *)(uintptr_t)flag), 1, CU_STREAM_WAIT_VALUE_GEQ);
  say("cuStreamWaitValue32", status); /* in eager order the node cannot */
  for (int i = 0; i < count; i++)
    say("cudaMalloc", p_cudaMalloc(&blocks[i], 32 * MIB));
  *flag = 1;
  MUST(p_cudaDeviceSynchronize());
  for (int i = 0; i < count; i++)
    MUST(drop(blocks[i]));
  return 0;
}

static int cross_api(void) {
  cudaStream_t stream = new_stream();
  void *block = get(4 * MIB), *ordered = NULL;
  CUdeviceptr address = 0;
  say("cuMemFree of cudaMalloc", p_cuMemFree_v2(address_of(block)));
  MUST(p_cuMemAlloc_v2(&address, 4 * MIB));
  say("cudaFree of cuMemAlloc", drop((void *)(uintptr_t)address));
  MUST(p_cudaMallocAsync(&ordered, 4 * MIB, stream));
  MUST(p_cudaStreamSynchronize(stream));
  say("cudaFree of cudaMallocAsync", drop(ordered));
  block = get(4 * MIB);
  cudaError_t status = p_cudaFreeAsync(block, stream);
  say("cudaFreeAsync of cudaMalloc", status);
  say("last error", p_cudaGetLastError());
  say("synchronize", p_cudaStreamSynchronize(stream));
  say("cudaFree after it", drop(block));
  say("last error", p_cudaGetLastError());
  return 0;
}

static void *free_in_a_thread(void *block) {
  return (void *)(uintptr_t)drop(block);
}

static int other_threads(void) {
  void *block = get(4 * MIB), *result;
  pthread_t thread;
  size_t before = free_now();
  MUST(pthread_create(&thread, NULL, free_in_a_thread, block));
  MUST(pthread_join(thread, &result));
  say("free", (long long)(uintptr_t)result);
  say("came back", (long long)((free_now() - before) / MIB));
  return 0;
}

static int other_devices(void) {
  int count = 0;
  struct cudaPointerAttributes attributes;
  MUST(p_cudaGetDeviceCount(&count));
  if (count < 2)
    return SKIPPED;
  MUST(p_cudaSetDevice(1));
  void *there = get(8 * MIB);
  size_t before_there = free_now();
  MUST(p_cudaSetDevice(0));
  void *here = get(8 * MIB);
  size_t before_here = free_now();
  say("free", drop(there));
  say("not of this device", (long long)((free_now() - before_here) / MIB));
  MUST(p_cudaSetDevice(1));
  say("of that device", (long long)((free_now() - before_there) / MIB));
  there = get(8 * MIB);
  MUST(p_cudaPointerGetAttributes(&attributes, there));
  say("device", attributes.device);
  MUST(p_cudaPointerGetAttributes(&attributes, here));
  say("device", attributes.device);
  say("free", drop(here));
  say("free", drop(there));
  return 0;
}

/* A copy in a stream of one device writes memory of the other, which is freed and asked for again meanwhile. */
static int peers(void) {
  int count = 0, can = 0;
  CUcontext first, second;
  MUST(p_cudaGetDeviceCount(&count));
  if (count < 2)
    return SKIPPED;
  MUST(p_cudaDeviceCanAccessPeer(&can, 0, 1));
  MUST(p_cudaSetDevice(1));
  void *far = get(8 * MIB);
  MUST(p_cuCtxGetCurrent(&second));
  MUST(p_cudaMemset(far, 0x11, 8 * MIB));
  MUST(p_cudaSetDevice(0));
  cudaStream_t stream = new_stream();
  void *source = get(8 * MIB);
  MUST(p_cuCtxGetCurrent(&first));
  MUST(p_cudaMemset(source, 0x33, 8 * MIB));
  if (can)
    say("access", p_cuCtxEnablePeerAccess(second, 0));
  for (int i = 0; i < 4; i++) {
    MUST(p_cudaMemcpyPeerAsync(far, 1, source, 0, 8 * MIB, stream));
    MUST(p_cudaStreamSynchronize(stream));
    say("arrived", holds(far, 8 * MIB, 0x33));
    MUST(drop(far));
    MUST(p_cudaSetDevice(1));
    far = get(8 * MIB);
    MUST(p_cudaMemset(far, 0x22, 8 * MIB));
    MUST(p_cudaDeviceSynchronize());
    MUST(p_cudaSetDevice(0));
    say("intact", holds(far, 8 * MIB, 0x22));
  }
  say("free", drop(far));
  say("free", drop(source));
  return 0;
}

static int memory_info(void) {
  size_t free_bytes = 0, total = 0, other = 0;
  MUST(drop(get(2 * MIB)));
  say("neither", p_cudaMemGetInfo(NULL, NULL));
  say("free only", p_cuMemGetInfo_v2(&free_bytes, NULL));
  say("total only", p_cuMemGetInfo_v2(NULL, &total));
  say("free below total", free_bytes > 0 && free_bytes <= total);
  size_t before = free_now();
  void *block = get(64 * MIB);
  say("less by", (long long)((before - free_now()) / MIB));
  void *second = get(32 * MIB);
  say("less by", (long long)((before - free_now()) / MIB));
  MUST(drop(block));
  say("less by", (long long)((before - free_now()) / MIB));
  MUST(drop(second));
  say("less by", (long long)((before - free_now()) / MIB));
  MUST(p_cudaDeviceSynchronize());
  say("less by", (long long)((before - free_now()) / MIB));
  second = get(32 * MIB);
  say("less by", (long long)((before - free_now()) / MIB));
  MUST(drop(second));
  MUST(p_cudaMemGetInfo(NULL, &other));
  say("same total", other == total);
  return 0;
}

static int attributes(void) {
  struct cudaPointerAttributes found;
  void *block = get(4 * MIB);
  MUST(p_cudaPointerGetAttributes(&found, block));
  say("type", found.type);
  say("device", found.device);
  say("same pointer", found.devicePointer == block);
  MUST(drop(block));
  say("status of a freed one", p_cudaPointerGetAttributes(&found, block));
  say("type of a freed one", found.type);
  say("last error", p_cudaGetLastError());
  return 0;
}

static int buffer_id(void) {
  unsigned type;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void *answers[] = {&type};
  void *first = get(4 * MIB), *second = get(4 * MIB);
  unsigned long long before = id_of(first);
  say("differ", before != id_of(second));
  MUST(p_cuPointerGetAttributes(1, &asked, answers, address_of(first)));
  MUST(drop(first));
  MUST(p_cudaDeviceSynchronize());
  first = get(4 * MIB);
  say("new id", id_of(first) != before);
  say("differ", id_of(first) != id_of(second));
  return 0;
}

/* What a block is pinned by: each may be refused, and the block is not handed out again all the same. */
static CUresult set_sync_memops(CUdeviceptr address) {
  unsigned on = 1;
  return p_cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

static CUresult get_tokens(CUdeviceptr address) {
  CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
  return p_cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, address);
}

static CUresult get_tokens_among_others(CUdeviceptr address) {
  CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
  unsigned type;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_P2P_TOKENS};
  void *answers[] = {&type, &tokens};
  return p_cuPointerGetAttributes(2, asked, answers, address);
}

static CUresult get_range_handle(CUdeviceptr address) {
  int file = -1;
  CUresult status = p_cuMemGetHandleForAddressRange(&file, address, 2 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (status == CUDA_SUCCESS)
    close(file);
  return status;
}

static CUresult retain_handle(CUdeviceptr address) {
  CUmemGenericAllocationHandle handle;
  CUresult status = p_cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
  if (status == CUDA_SUCCESS)
    p_cuMemRelease(handle); /* the stand-in's is nobody's */
  return status;
}

static int pinned_by(CUresult (*call)(CUdeviceptr)) {
  void *block = get(4 * MIB);
  unsigned long long before = id_of(block);
  say("status", call(address_of(block) + 2 * MIB));
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  block = get(4 * MIB);
  say("new id", id_of(block) != before);
  MUST(drop(block));
  MUST(drop(get(4 * MIB))); /* others are */
  return 0;
}

static int sync_memops(void) {
  return pinned_by(set_sync_memops);
}

static int tokens(void) {
  return pinned_by(get_tokens);
}

static int tokens_among_others(void) {
  return pinned_by(get_tokens_among_others);
}

static int range_handle(void) {
  return p_cuMemGetHandleForAddressRange ? pinned_by(get_range_handle) : SKIPPED;
}

static int retained_handle(void) {
  return p_cuMemRetainAllocationHandle ? pinned_by(retain_handle) : SKIPPED;
}

static int address_range(void) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  char *block = get(18 * MIB);
  say("range", p_cuMemGetAddressRange_v2(&base, &bytes, address_of(block + 5 * MIB)));
  say("base", base == address_of(block));
  say("MiB", (long long)(bytes / MIB));
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  block = get(17 * MIB);
  say("range", p_cuMemGetAddressRange_v2(&base, &bytes, address_of(block + 5 * MIB)));
  say("base", base == address_of(block));
  say("in as many pages", bytes >= 17 * MIB && bytes <= 18 * MIB);
  say("MiB", (long long)(bytes / MIB));
  say("either may be NULL", p_cuMemGetAddressRange_v2(NULL, NULL, address_of(block)));
  return 0;
}

/* The importer sees the exporter's bytes, at the same offset, also of a block that has come from a cache. */
static int ipc(void) {
  int there[2], back[2];
  cudaIpcMemHandle_t handle, again;
  char answer[2] = {0};
  if (pipe(there) != 0 || pipe(back) != 0)
    return 1;
  fflush(stdout);
  pid_t child = fork(); /* before CUDA is used */
  load_functions();
  if (child == 0) {
    unsigned char byte = 0;
    void *mapped = NULL;
    bool ok = read(there[0], &handle, sizeof handle) == sizeof handle &&
              p_cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess &&
              p_cudaMemcpy(&byte, (char *)mapped + 5 * MIB, 1, cudaMemcpyDeviceToHost) == cudaSuccess;
    ok = ok && p_cudaMemset((char *)mapped + MIB, 0x66, MIB) == cudaSuccess && p_cudaDeviceSynchronize() == cudaSuccess &&
         p_cudaIpcCloseMemHandle(mapped) == cudaSuccess;
    answer[0] = ok ? (char)byte : 0;
    answer[1] = (char)ok;
    ssize_t written = write(back[1], answer, sizeof answer);
    _exit(written == sizeof answer ? 0 : 1);
  }
  MUST(drop(get(MIB)));
  MUST(drop(get(8 * MIB)));
  MUST(p_cudaDeviceSynchronize());
  char *block = get(8 * MIB);
  unsigned long long before = id_of(block);
  MUST(p_cudaMemset(block, 0, 8 * MIB));
  MUST(p_cudaMemset(block + 5 * MIB, 0x55, MIB));
  MUST(p_cudaDeviceSynchronize());
  say("export", p_cudaIpcGetMemHandle(&handle, block));
  MUST(p_cudaIpcGetMemHandle(&again, block));
  say("same handle", memcmp(&handle, &again, sizeof handle) == 0);
  if (write(there[1], &handle, sizeof handle) != sizeof handle || read(back[0], answer, sizeof answer) != sizeof answer)
    return 1;
  say("importer", answer[1]);
  say("read", answer[0]);
  int status = 0;
  waitpid(child, &status, 0);
  say("exit", status);
  say("written", holds(block + MIB, MIB, 0x66));
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  block = get(8 * MIB);
  say("not handed out again", id_of(block) != before);
  return 0;
}

/* NCCL reads and writes what was registered until it is deregistered; and within a group nothing may wait. */
static int nccl_registered(void) {
  ncclResult_t (*init)(ncclComm_t *, int, const int *) = NULL, (*enlist)(ncclComm_t, void *, size_t, void **) = NULL,
                                                    (*window)(ncclComm_t, void *, size_t, ncclWindow_t *, int) = NULL,
                                                    (*delist)(ncclComm_t, void *) = NULL,
                                                    (*close)(ncclComm_t, ncclWindow_t) = NULL;
  ncclComm_t comm;
  void *handle;
  ncclWindow_t opened;
  if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL))
    return SKIPPED;
  *(void **)&init = dlsym(RTLD_DEFAULT, "ncclCommInitAll");
  *(void **)&enlist = dlsym(RTLD_DEFAULT, "ncclCommRegister");
  *(void **)&delist = dlsym(RTLD_DEFAULT, "ncclCommDeregister");
  *(void **)&window = dlsym(RTLD_DEFAULT, "ncclCommWindowRegister");
  *(void **)&close = dlsym(RTLD_DEFAULT, "ncclCommWindowDeregister");
  MUST(init(&comm, 1, NULL));
  for (int i = 0; i < 2; i++) {
    char *block = get(8 * MIB);
    unsigned long long before = id_of(block);
    say("register", i == 0 ? enlist(comm, block + MIB, MIB, &handle) : window(comm, block, 8 * MIB, &opened, 0));
    say("free", drop(block));
    MUST(p_cudaDeviceSynchronize());
    block = get(8 * MIB);
    say("not handed out again", id_of(block) != before);
    say("deregister", i == 0 ? delist(comm, handle) : close(comm, opened));
    MUST(drop(block));
  }
  return 0;
}

/* As PyTorch does with every segment: registered with each communicator, given up again, and then freed. */
static int nccl_deregistered(void) {
  ncclResult_t (*init)(ncclComm_t *, int, const int *) = NULL, (*enlist)(ncclComm_t, void *, size_t, void **) = NULL,
                                                    (*delist)(ncclComm_t, void *) = NULL;
  ncclComm_t comms[2];
  void *handles[2];
  if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL))
    return SKIPPED;
  *(void **)&init = dlsym(RTLD_DEFAULT, "ncclCommInitAll");
  *(void **)&enlist = dlsym(RTLD_DEFAULT, "ncclCommRegister");
  *(void **)&delist = dlsym(RTLD_DEFAULT, "ncclCommDeregister");
  for (int i = 0; i < 2; i++)
    MUST(init(&comms[i], 1, NULL));
  for (int kept = 0; kept < 2; kept++) {
    void *block = get(8 * MIB);
    unsigned long long before = id_of(block);
    for (int i = 0; i < 2; i++)
      say("register", enlist(comms[i], block, 8 * MIB, &handles[i]));
    say("unknown", delist(comms[0], &handles) != ncclSuccess);
    for (int i = 0; i < 2 - kept; i++)
      say("deregister", delist(comms[i], handles[i]));
    say("free", drop(block));
    MUST(p_cudaDeviceSynchronize());
    block = get(8 * MIB);
    say(kept ? "another while it is registered" : "new id", id_of(block) != before);
    for (int i = 2 - kept; i < 2; i++)
      say("deregister", delist(comms[i], handles[i]));
    MUST(drop(block));
  }
  return 0;
}

static int nccl_group(void) {
  ncclResult_t (*start)(void) = NULL, (*end)(void) = NULL;
  if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL))
    return SKIPPED;
  *(void **)&start = dlsym(RTLD_DEFAULT, "ncclGroupStart");
  *(void **)&end = dlsym(RTLD_DEFAULT, "ncclGroupEnd");
  void *block = get(8 * MIB);
  unsigned long long before = id_of(block);
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  MUST(start());
  block = get(8 * MIB);
  say("fresh", id_of(block) != before);
  say("usable", p_cudaMemset(block, 1, 8 * MIB));
  say("free", drop(block));
  MUST(end());
  block = get(8 * MIB);
  say("usable", p_cudaMemset(block, 1, 8 * MIB));
  say("free", drop(block));
  return 0;
}

static int virtual_memory(void) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  const CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at = 0;
  MUST(drop(get(4 * MIB)));
  size_t before = free_now();
  say("create", p_cuMemCreate(&handle, 32 * MIB, &properties, 0));
  say("less by", (long long)((before - free_now()) / MIB));
  MUST(p_cuMemAddressReserve(&at, 32 * MIB, 0, 0, 0));
  say("map", p_cuMemMap(at, 32 * MIB, 0, handle, 0));
  say("access", p_cuMemSetAccess(at, 32 * MIB, &access, 1));
  say("release", p_cuMemRelease(handle));
  say("memset", p_cudaMemset((void *)(uintptr_t)at, 1, 32 * MIB));
  say("less by", (long long)((before - free_now()) / MIB));
  MUST(p_cudaDeviceSynchronize());
  say("unmap", p_cuMemUnmap(at, 32 * MIB));
  say("address", p_cuMemAddressFree(at, 32 * MIB));
  say("less by", (long long)((before - free_now()) / MIB));
  return 0;
}

static int other_backing(void) {
  void *pitched = NULL, *managed = NULL, *host = NULL;
  size_t pitch = 0;
  say("pitch", p_cudaMallocPitch(&pitched, &pitch, 4000, 1024));
  say("at least", pitch >= 4000);
  say("managed", p_cudaMallocManaged(&managed, 4 * MIB, cudaMemAttachGlobal));
  say("host", p_cudaHostAlloc(&host, 4 * MIB, 0));
  size_t before = free_now();
  say("free", drop(pitched));
  say("returned", free_now() > before);
  say("double", drop(pitched));
  say("free", drop(managed));
  say("free of host memory", drop(host));
  say("free", p_cudaFreeHost(host));
  say("last error", p_cudaGetLastError());
  return 0;
}

static int stream_ordered(void) {
  cudaStream_t stream = new_stream();
  void *block = NULL;
  for (int i = 0; i < 3; i++) {
    say("malloc", p_cudaMallocAsync(&block, 8 * MIB, stream));
    say("memset", p_cudaMemsetAsync(block, i, 8 * MIB, stream));
    say("free", p_cudaFreeAsync(block, stream));
  }
  say("synchronize", p_cudaStreamSynchronize(stream));
  say("double", p_cudaFreeAsync(block, stream) != cudaSuccess);
  p_cudaGetLastError();
  return 0;
}

typedef CUresult (*begin_capture)(CUstream stream, CUstreamCaptureMode mode);

static CUresult begin_by_runtime(CUstream stream, CUstreamCaptureMode mode) {
  return (CUresult)p_cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode);
}

static void in_capture(begin_capture begin, CUstreamCaptureMode mode, bool frees) {
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = NULL;
  void *block = frees ? get(8 * MIB) : NULL, *target = get(8 * MIB);
  say("begin", begin(stream, mode));
  say("memset", p_cudaMemsetAsync(target, 0x44, 8 * MIB, stream));
  if (frees)
    say("free", drop(block));
  else
    say("malloc", p_cudaMalloc(&block, 8 * MIB));
  say("end",
      begin == begin_by_runtime ? (int)p_cudaStreamEndCapture(stream, &graph) : (int)p_cuStreamEndCapture(stream, &graph));
  say("graph", graph != NULL);
  say("last error", p_cudaGetLastError());
  if (graph)
    MUST(p_cudaGraphDestroy(graph));
  say("free", drop(target));
  if (block && !frees)
    say("free", drop(block));
  p_cudaGetLastError();
}

static int capture_begun_by(begin_capture begin) {
  MUST(drop(get(8 * MIB)));
  MUST(p_cudaDeviceSynchronize());
  in_capture(begin, CU_STREAM_CAPTURE_MODE_RELAXED, false);
  in_capture(begin, CU_STREAM_CAPTURE_MODE_GLOBAL, false);
  in_capture(begin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false);
  in_capture(begin, CU_STREAM_CAPTURE_MODE_RELAXED, true);
  in_capture(begin, CU_STREAM_CAPTURE_MODE_GLOBAL, true);
  return 0;
}

static int capture(void) {
  return capture_begun_by(begin_by_runtime);
}

/* As torch.cuda.graph() does: what is cached is freed, and the capture takes it again in other sizes. */
static int capture_on_a_full_device(void) {
  enum { BLOCKS = 64 };
  void *blocks[BLOCKS], *larger = NULL;
  int count = 0;
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = NULL;
  while (count < BLOCKS && p_cudaMalloc(&blocks[count], 32 * MIB) == cudaSuccess)
    MUST(p_cudaMemsetAsync(blocks[count++], 1, 32 * MIB, stream));
  p_cudaGetLastError();
  MUST(p_cudaDeviceSynchronize());
  for (int i = 0; i < count; i++)
    MUST(drop(blocks[i]));
  MUST(p_cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  say("malloc", p_cudaMalloc(&larger, 640 * MIB));
  say("end", p_cudaStreamEndCapture(stream, &graph));
  say("graph", graph != NULL);
  say("free", drop(larger));
  return 0;
}

/* Begun behind the runtime's back, by either way to the driver's functions; once it has ended, the cache serves again. */
static int driver_capture(void) {
  void *found = NULL;
  MUST(capture_begun_by(p_cuStreamBeginCapture_v2));
  MUST(p_cuGetProcAddress_v2("cuStreamBeginCapture", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
  MUST(capture_begun_by((begin_capture)(uintptr_t)found));
  MUST(drop(get(8 * MIB)));
  MUST(drop(get(8 * MIB)));
  return 0;
}

static void *end_capture(void *stream) {
  cudaGraph_t graph = NULL;
  say("end by another thread", p_cudaStreamEndCapture(stream, &graph));
  return NULL;
}

/* A capture that another thread tries to end goes on, and those that come after it are captures like any other. */
static int capture_of_another_thread(void) {
  pthread_t thread;
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = NULL;
  MUST(p_cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  pthread_create(&thread, NULL, end_capture, stream);
  pthread_join(thread, NULL);
  say("end", p_cudaStreamEndCapture(stream, &graph));
  say("graph", graph != NULL);
  in_capture(begin_by_runtime, CU_STREAM_CAPTURE_MODE_RELAXED, true);
  in_capture(begin_by_runtime, CU_STREAM_CAPTURE_MODE_RELAXED, false);
  return 0;
}

/* Memory of a capture is used by the graph's replays, whatever is allocated and freed beside them. */
static int captured_memory(void) {
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = NULL;
  cudaGraphExec_t replay = NULL;
  void *block = NULL;
  if (!p_cudaGraphInstantiate)
    return SKIPPED;
  MUST(p_cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  MUST(p_cudaMalloc(&block, 8 * MIB));
  MUST(p_cudaMemsetAsync(block, 0x44, 8 * MIB, stream));
  MUST(p_cudaStreamEndCapture(stream, &graph));
  MUST(p_cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < 4; i++) {
    void *other = get(8 * MIB);
    MUST(p_cudaMemset(other, 0x22, 8 * MIB));
    say("launch", p_cudaGraphLaunch(replay, stream));
    MUST(p_cudaDeviceSynchronize());
    say("replayed", holds(block, 8 * MIB, 0x44));
    say("intact", holds(other, 8 * MIB, 0x22));
    MUST(drop(other));
  }
  MUST(p_cudaGraphExecDestroy(replay));
  MUST(p_cudaGraphDestroy(graph));
  unsigned long long before = id_of(block);
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  block = get(8 * MIB);
  say("not handed out again", id_of(block) != before);
  return 0;
}

/* What lies in memory that has been used before is not defined; some code relies on it all the same. */
static int contents(void) {
  void *block = get(8 * MIB);
  MUST(p_cudaMemset(block, 0x77, 8 * MIB));
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  block = get(8 * MIB);
  say("old bytes", holds(block, 8 * MIB, 0x77));
  say("zeros", holds(block, 8 * MIB, 0));
  say("0xff", holds(block, 8 * MIB, 0xff));
  return 0;
}

/* More is asked for than is left while much is freed: the second block fits only once the first has been given back. */
static int last_error(void) {
  size_t half = free_now() / 5 * 3 / (2 * MIB) * (2 * MIB);
  void *block = get(half);
  MUST(drop(block));
  say("another size", p_cudaMalloc(&block, half / 3 * 4 / (2 * MIB) * (2 * MIB)));
  say("peek", p_cudaPeekAtLastError());
  say("free", drop(block));
  say("last error", p_cudaGetLastError());
  return 0;
}

/* What was kept of the old context is gone with it. */
static int reset(void) {
  void *kept = get(8 * MIB), *freed = get(8 * MIB);
  MUST(drop(freed));
  MUST(p_cudaDeviceSynchronize());
  size_t before = free_now();
  say("reset", p_cuDevicePrimaryCtxReset_v2(0));
  say("came back", (long long)((free_now() - before) / MIB));
  void *block = get(8 * MIB), *second = get(8 * MIB);
  say("two blocks", block != second);
  say("usable", p_cudaMemset(block, 1, 8 * MIB));
  say("usable", p_cudaMemset(second, 2, 8 * MIB));
  say("intact", holds(block, 8 * MIB, 1));
  say("free", drop(block));
  say("free", drop(second));
  say("stale", kept != block && kept != second && drop(kept) == cudaSuccess);
  p_cudaGetLastError();
  return 0;
}

/* A child of a process that has used CUDA may not use it; the parent is not disturbed. */
static int forked(void) {
  void *block = get(8 * MIB), *other = NULL;
  MUST(drop(block));
  MUST(p_cudaDeviceSynchronize());
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    bool refused = p_cudaMalloc(&other, 8 * MIB) != cudaSuccess && drop(block) != cudaSuccess;
    _exit(refused ? 3 : 4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  say("child", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  say("malloc", p_cudaMalloc(&block, 8 * MIB));
  say("usable", p_cudaMemset(block, 1, 8 * MIB));
  say("free", drop(block));
  return 0;
}

static void *kept_at_exit;
static void free_at_exit(void) {
  say("free at exit", drop(kept_at_exit));
  fflush(stdout);
}

static int at_exit(void) {
  atexit(free_at_exit);
  kept_at_exit = get(8 * MIB);
  MUST(drop(get(16 * MIB)));
  return 0;
}

static int primary_context(void) {
  CUcontext context;
  MUST(drop(get(8 * MIB)));
  MUST(p_cudaDeviceSynchronize());
  MUST(p_cuDevicePrimaryCtxRetain(&context, 0));
  say("release", p_cuDevicePrimaryCtxRelease_v2(0));
  void *block = get(8 * MIB);
  say("usable", p_cudaMemset(block, 1, 8 * MIB));
  say("free", drop(block));
  return 0;
}

static const struct row {
  const char *name;
  int (*run)(void);
  bool cold; /* makes the first call itself; that one always goes to the driver */
} rows[] = {
    {"alignment", alignment, false},
    {"size_zero", size_zero, false},
    {"failure", failure, false},
    {"sticky", sticky, false},
    {"after_error", after_error, false},
    {"first_call", first_call, true},
    {"free_null", free_null, false},
    {"wrong_frees", wrong_frees, false},
    {"free_waits", free_waits, false},
    {"free_is_a_wait", free_is_a_wait, false},
    {"awaited", awaited, false},
    {"cross_api", cross_api, false},
    {"other_threads", other_threads, false},
    {"other_devices", other_devices, false},
    {"peers", peers, false},
    {"memory_info", memory_info, false},
    {"attributes", attributes, false},
    {"buffer_id", buffer_id, false},
    {"sync_memops", sync_memops, false},
    {"tokens", tokens, false},
    {"tokens_among_others", tokens_among_others, false},
    {"range_handle", range_handle, false},
    {"retained_handle", retained_handle, false},
    {"address_range", address_range, false},
    {"ipc", ipc, true},
    {"nccl_registered", nccl_registered, false},
    {"nccl_deregistered", nccl_deregistered, false},
    {"nccl_group", nccl_group, false},
    {"virtual_memory", virtual_memory, false},
    {"other_backing", other_backing, false},
    {"stream_ordered", stream_ordered, false},
    {"capture", capture, false},
    {"capture_of_another_thread", capture_of_another_thread, false},
    {"capture_on_a_full_device", capture_on_a_full_device, false},
    {"driver_capture", driver_capture, false},
    {"captured_memory", captured_memory, false},
    {"contents", contents, false},
    {"last_error", last_error, false},
    {"reset", reset, false},
    {"primary_context", primary_context, false},
    {"forked", forked, false},
    {"at_exit", at_exit, false},
};

int main(int argc, char **argv) {
  for (size_t i = 0; argc == 2 && i < sizeof rows / sizeof *rows; i++) {
    if (strcmp(rows[i].name, argv[1]) != 0)
      continue;
    if (rows[i].run != ipc)
      load_functions();
    if (!rows[i].cold)
      MUST(drop(get(MIB)));
    int status = rows[i].run();
    fflush(stdout);
    return status;
  }
  fprintf(stderr, "usage: table ROW\n");
  return 2;
}
