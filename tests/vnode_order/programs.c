/* SPDX-License-Identifier: Apache-2.0 */
#include "programs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture on;

void must(int code, const char *call) {
  if (!code)
    return;
  printf("%s gives %d\n", call, code);
  exit(2);
}

static unsigned char *zeros(void) {
  void *out = NULL;
  MUST(cudaMalloc(&out, PROGRAM_BYTES));
  MUST(cudaMemset(out, 0, PROGRAM_BYTES));
  return out;
}

void fixture_begin(void) {
  on.x = zeros();
  on.y = zeros();
  on.z = zeros();
  MUST(cudaMallocHost((void **)&on.pinned, PROGRAM_BYTES));
  memset(on.pinned, 0, PROGRAM_BYTES);
  cudaStream_t *streams[] = {&on.a, &on.b, &on.c};
  for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
    MUST(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking));
  MUST(cudaEventCreateWithFlags(&on.e, cudaEventDisableTiming));
  MUST(cudaEventCreateWithFlags(&on.f, cudaEventDisableTiming));
  MUST(cudaDeviceSynchronize());
}

void fill(void *to, int value, cudaStream_t stream) {
  MUST(cudaMemsetAsync(to, value, PROGRAM_BYTES, stream));
}

void copy(void *to, const void *from, cudaStream_t stream) {
  MUST(cudaMemcpyAsync(to, from, PROGRAM_BYTES, cudaMemcpyDefault, stream));
}

void record(cudaEvent_t event, cudaStream_t stream) {
  MUST(cudaEventRecord(event, stream));
}

void wait_for(cudaStream_t stream, cudaEvent_t event) {
  MUST(cudaStreamWaitEvent(stream, event, 0));
}

void synchronize(cudaStream_t stream) {
  MUST(cudaStreamSynchronize(stream));
}

bool all_bytes_are(const unsigned char *bytes, int value) {
  for (size_t i = 0; i < PROGRAM_BYTES; i++)
    if (bytes[i] != value)
      return false;
  return true;
}

bool holds(const void *from, int value) {
  static unsigned char host[PROGRAM_BYTES];
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemcpy(host, from, PROGRAM_BYTES, cudaMemcpyDefault));
  return all_bytes_are(host, value);
}
