/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes around cuBLAS and NCCL. */
#include <cublas_v2.h>
#include <nccl.h>

#include "programs.h"

/* Buffers as floats; a byte value of 0 is 0.0f everywhere. */
enum { FLOATS = (int)(PROGRAM_BYTES / sizeof(float)), SIDE = 128 };

static float *floats(unsigned char *buffer) {
  return (float *)(void *)buffer;
}

static cublasHandle_t handle_on(cudaStream_t stream) {
  cublasHandle_t handle;
  MUST(cublasCreate(&handle));
  MUST(cublasSetStream(handle, stream));
  return handle;
}

static void set_all(unsigned char *buffer, float value) {
  static float host[FLOATS];
  for (int i = 0; i < FLOATS; i++)
    host[i] = value;
  MUST(cudaMemcpy(buffer, host, sizeof host, cudaMemcpyHostToDevice));
  MUST(cudaDeviceSynchronize());
}

static bool all_are(const unsigned char *buffer, float value) {
  static float host[FLOATS];
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemcpy(host, buffer, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < FLOATS; i++)
    if (host[i] < value || host[i] > value)
      return false;
  return true;
}

/* c = a · b, SIDE × SIDE each. */
static void multiply(cublasHandle_t handle, unsigned char *a, unsigned char *b, unsigned char *c) {
  static const float one = 1, zero = 0;
  MUST(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, SIDE, SIDE, SIDE, &one, floats(a), SIDE, floats(b), SIDE, &zero,
                   floats(c), SIDE));
}

static bool multiplies_on_the_wrong_stream(bool wrong) {
  cublasHandle_t handle = handle_on(NULL);
  set_all(on.x, 1);
  if (!wrong)
    MUST(cublasSetStream(handle, on.a));
  copy(on.y, on.x, on.a);
  multiply(handle, on.x, on.y, on.z);
  copy(on.y, on.z, on.a);
  return all_are(on.y, SIDE);
}

static bool clears_what_a_kernel_writes(bool wrong) {
  cublasHandle_t handle = handle_on(on.a);
  set_all(on.x, 1);
  fill(on.z, 0, wrong ? on.b : on.a);
  multiply(handle, on.x, on.x, on.z);
  return all_are(on.z, SIDE);
}

static bool updates_weights_that_a_kernel_reads(bool wrong) {
  static const float two = 2;
  cublasHandle_t forward = handle_on(on.a), optimizer = handle_on(on.b);
  set_all(on.x, 1);
  multiply(forward, on.x, on.x, on.z);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  MUST(cublasSscal(optimizer, FLOATS, &two, floats(on.x), 1));
  return all_are(on.z, SIDE) && all_are(on.x, 2);
}

static bool multiplies_what_was_freed(bool wrong) {
  cublasHandle_t handle = handle_on(on.a);
  set_all(on.x, 1);
  if (wrong)
    MUST(cudaFree(on.x));
  multiply(handle, on.x, on.x, on.z);
  if (!wrong)
    MUST(cudaFree(on.x));
  return all_are(on.z, SIDE);
}

/* ------------------------------------------------------------------------------------------- NCCL */

/* Two ranks in this process: ours on device 0, and one on device 1 that contributes the floats of `from`. */
struct peer {
  ncclComm_t comms[2];
  unsigned char *from, *to;
  cudaStream_t stream;
};

static struct peer new_peer(float value) {
  struct peer peer;
  MUST(cudaSetDevice(1));
  MUST(cudaMalloc((void **)&peer.from, PROGRAM_BYTES));
  MUST(cudaMalloc((void **)&peer.to, PROGRAM_BYTES));
  MUST(cudaStreamCreateWithFlags(&peer.stream, cudaStreamNonBlocking));
  set_all(peer.from, value);
  MUST(cudaSetDevice(0));
  MUST(ncclCommInitAll(peer.comms, 2, (int[]){0, 1}));
  return peer;
}

static void all_reduce(const struct peer *peer, unsigned char *from, unsigned char *to, cudaStream_t stream) {
  MUST(ncclGroupStart());
  MUST(ncclAllReduce(from, to, FLOATS, ncclFloat, ncclSum, peer->comms[0], stream));
  MUST(ncclAllReduce(peer->from, peer->to, FLOATS, ncclFloat, ncclSum, peer->comms[1], peer->stream));
  MUST(ncclGroupEnd());
}

static bool reduces_before_the_gradients_are_there(bool wrong) {
  struct peer peer = new_peer(1);
  set_all(on.x, 2);
  copy(on.y, on.x, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  all_reduce(&peer, on.y, on.y, on.b);
  return all_are(on.y, 3);
}

static bool takes_the_sum_before_it_is_there(bool wrong) {
  struct peer peer = new_peer(1);
  set_all(on.x, 2);
  all_reduce(&peer, on.x, on.y, on.b);
  record(on.e, on.b);
  if (!wrong)
    wait_for(on.a, on.e);
  copy(on.z, on.y, on.a);
  return all_are(on.z, 3);
}

static bool reuses_the_bucket_too_soon(bool wrong) {
  struct peer peer = new_peer(1);
  set_all(on.x, 2);
  all_reduce(&peer, on.x, on.y, on.b);
  record(on.e, on.b);
  if (!wrong)
    wait_for(on.a, on.e);
  fill(on.x, 0, on.a);
  return all_are(on.y, 3);
}

static bool reduces_twice_into_one_buffer(bool wrong) {
  struct peer peer = new_peer(1), more = new_peer(1);
  set_all(on.x, 2);
  set_all(on.z, 4);
  all_reduce(&peer, on.x, on.y, on.a);
  record(on.e, on.a);
  if (!wrong)
    wait_for(on.b, on.e);
  all_reduce(&more, on.z, on.y, on.b);
  return all_are(on.y, 5);
}

const struct program library_programs[] = {
    {"multiplies on the wrong stream", multiplies_on_the_wrong_stream, "read after unordered write", "gemm", "copy",
     .shows = true},
    {"clears what a kernel writes", clears_what_a_kernel_writes, "write after unordered write", "gemm", "fill",
     .shows = true},
    {"updates weights that a kernel reads", updates_weights_that_a_kernel_reads, "write after unordered read", "vector",
     "gemm", .shows = true},
    {"multiplies what was freed", multiplies_what_was_freed, "use after free", "gemm", "cudaFree", .shows = true},
    {"reduces before the gradients are there", reduces_before_the_gradients_are_there, "read after unordered write",
     "AllReduce", "copy", .shows = true},
    {"takes the sum before it is there", takes_the_sum_before_it_is_there, "read after unordered write", "copy", "AllReduce",
     .shows = true},
    {"reuses the bucket too soon", reuses_the_bucket_too_soon, "write after unordered read", "fill", "AllReduce",
     .shows = true},
    {"reduces twice into one buffer", reduces_twice_into_one_buffer, "write after unordered write", "AllReduce", "AllReduce",
     .shows = true},
    {.name = NULL}};
