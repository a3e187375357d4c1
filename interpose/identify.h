/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vendor arguments → plain facts (policy/call.h), and return addresses → owners. No lock of ours, no allocation; reads only
 * what the call was given. The vendor-typed functions are declared where their header is in scope.
 */
#ifndef B200_IDENTIFY_H
#define B200_IDENTIFY_H

#include "interpose/exec/gemm.h"
#include "policy/call.h"

/* Who called: by the module that holds `return_address` (libnccl → nccl, libcublas → cublas, libtorch, libc10 and libcudart
   → pytorch …). O(1) after the first call from a page; the first looks the module up, which takes the loader's lock. */
enum b200_owner b200_owner_of(const void *return_address);
/* Whether it is libc10_cuda, where PyTorch's caching allocator is. Likewise. */
bool b200_is_pytorch_cache(const void *return_address);

#ifdef CUBLAS_VER_MAJOR
#include <library_types.h>
struct b200_gemm b200_gemm_ex(enum b200_api api, cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                              int64_t batch, cudaDataType a, cudaDataType b, cudaDataType d, cublasComputeType_t compute);
struct b200_gemm b200_gemm_typed(cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                                 cudaDataType type);
struct b200_gemm b200_gemm_typed_strided(cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                                         int64_t batch, cudaDataType type);

/* A whole call of cublasGemmEx or cublasGemmStridedBatchedEx; strides 0 and batch 1 for the former. What the handle knows
   (stream, pointer mode, math mode, multiprocessors) is asked of cuBLAS where it may matter. */
void b200_call_gemm(struct b200_gemm_call *out, enum b200_api api, cublasHandle_t handle, cublasOperation_t ta,
                    cublasOperation_t tb, int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                    cudaDataType a_type, int64_t lda, int64_t stride_a, const void *b, cudaDataType b_type, int64_t ldb,
                    int64_t stride_b, const void *beta, void *c, cudaDataType c_type, int64_t ldc, int64_t stride_c,
                    int64_t batch, cublasComputeType_t compute);

/* The stream of a cuBLAS handle; NULL, the default stream, when it cannot be asked. */
void *b200_stream_of(cublasHandle_t handle);

/* Element type of the policy's vocabulary. */
uint8_t b200_element_of(cudaDataType type);
/* Alpha and beta: where they are, and what the host can see of beta. pre: both of FP32. */
void b200_call_scalars(struct b200_gemm_call *out, const void *alpha, const void *beta, bool on_device);
/* Pointers of the call, and what is known of their alignment. */
void b200_call_pointers(struct b200_gemm_call *out, const void *a, const void *b, const void *c, void *d, const void *bias);
#endif

#ifdef NCCL_MAJOR
struct b200_coll b200_coll(enum b200_coll_op op, size_t count, ncclDataType_t type, ncclComm_t comm);
#endif

#endif
