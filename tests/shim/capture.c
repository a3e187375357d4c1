/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded between the shim and the stand-ins: a runtime whose captures succeed (the virtual node refuses them) and a
   driver that tells when it is asked for its memory. Says on stderr what comes by. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int capturing;

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  (void)stream, (void)mode;
  capturing = 1;
  return cudaSuccess;
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  (void)stream;
  *graph = NULL;
  capturing = 0;
  return cudaSuccess;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  CUresult (*real)(size_t *, size_t *) = (CUresult(*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
  const char *said = capturing ? "asked while capturing\n" : "asked\n";
  (void)!write(2, said, capturing ? 22 : 6);
  return real(free_bytes, total_bytes);
}
