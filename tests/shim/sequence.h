/* SPDX-License-Identifier: Apache-2.0 */
/* One use of each library, the same in every linking scenario; prints what the calls returned. */
#ifndef B200_SHIM_SEQUENCE_H
#define B200_SHIM_SEQUENCE_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

static inline int sequence_run(void) {
  enum { M = 16, N = 8, K = 4 };
  void *a = NULL, *b = NULL, *c = NULL;
  cublasHandle_t handle = NULL;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  float one = 1, zero = 0, host[M * N];

  int status = (int)cudaMalloc(&a, 4 << 20) + (int)cudaMalloc(&b, 2 << 20) + (int)cudaMalloc(&c, 2 << 20);
  printf("malloc %d\n", status);
  for (int i = 0; i < M * N; i++)
    host[i] = (float)i;
  status = (int)cudaMemcpy(a, host, M * K * sizeof *host, cudaMemcpyHostToDevice);
  status += (int)cudaMemcpy(b, host, K * N * sizeof *host, cudaMemcpyHostToDevice);
  printf("copy %d\n", status);
  status = (int)cublasCreate_v2(&handle);
  status += (int)cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, K, b, CUDA_R_32F, K, &zero, c,
                              CUDA_R_32F, M, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  status += (int)cudaMemcpy(host, c, sizeof host, cudaMemcpyDeviceToHost);
  printf("gemm %d %g %g\n", status, (double)host[0], (double)host[M * N - 1]);
  status = (int)ncclGetUniqueId(&id) + (int)ncclCommInitRank(&comm, 1, id, 0);
  status += (int)ncclAllReduce(c, c, M * N, ncclFloat, ncclSum, comm, NULL) + (int)ncclCommDestroy(comm);
  printf("allreduce %d\n", status);
  status = (int)cublasDestroy_v2(handle) + (int)cudaFree(a) + (int)cudaFree(b) + (int)cudaFree(c);
  printf("free %d\n", status);
  printf("double free %d, last error %d\n", (int)cudaFree(a), (int)cudaGetLastError());
  printf("out of memory %d, last error %d, then %d\n", (int)cudaMalloc(&a, (size_t)1 << 50), (int)cudaGetLastError(),
         (int)cudaPeekAtLastError());
  return 0;
}

#endif
