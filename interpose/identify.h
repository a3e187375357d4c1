/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vendor arguments → plain facts (policy/call.h), and return addresses → owners. No lock of ours, no allocation; reads only
 * what the call was given. The vendor-typed functions are declared where their header is in scope.
 */
#ifndef B200_IDENTIFY_H
#define B200_IDENTIFY_H

#include "policy/call.h"

/* Who called: by the module that holds `return_address` (libnccl → nccl, libcublas → cublas, libtorch, libc10 and libcudart
   → pytorch …). O(1) after the first call from a page; the first looks the module up, which takes the loader's lock. */
enum b200_owner b200_owner_of(const void *return_address);

#ifdef CUBLAS_VER_MAJOR
#include <library_types.h>
struct b200_gemm b200_gemm_ex(enum b200_api api, cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                              int64_t batch, cudaDataType a, cudaDataType b, cudaDataType d, cublasComputeType_t compute);
struct b200_gemm b200_gemm_typed(cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                                 cudaDataType type);
struct b200_gemm b200_gemm_typed_strided(cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                                         int64_t batch, cudaDataType type);
#endif

#ifdef NCCL_MAJOR
struct b200_coll b200_coll(enum b200_coll_op op, size_t count, ncclDataType_t type, ncclComm_t comm);
#endif

#endif
