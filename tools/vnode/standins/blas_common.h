/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cuBLAS and cuBLASLt stand-ins share: the handle, status texts, and how a GEMM reaches the node.
 *
 * A handle is used by one host thread at a time, as cuBLAS asks for; nothing here locks. A cublasLtHandle_t may be a
 * cublasHandle_t in disguise (PyTorch casts), so both kinds start with the same member.
 */
#ifndef VNODE_BLAS_COMMON_H
#define VNODE_BLAS_COMMON_H

#include <cublas_api.h>
#include <stdbool.h>

#include "tools/vnode/core/core.h"
#include "tools/vnode/standins/gemm.h"

#define VNODE_BLAS_HANDLE_LIVE 0xb200b1a5u

/* The part that both kinds of handle start with; anything else in memory is not a handle. */
struct vnode_blas_handle {
  unsigned live;
};

const char *vnode_blas_status_name(cublasStatus_t status);
const char *vnode_blas_status_string(cublasStatus_t status);

/* As cublasGetProperty: version parts of the headers that this was built with. */
cublasStatus_t vnode_blas_property(libraryPropertyType type, int *value);

/* CUDA version that the library was built for, as the real one of that version says. */
size_t vnode_blas_cudart_version(void);

/* Counts the GEMM in the ledger and submits it. pre: valid (gemm.h). `tf32`: the tensor cores take FP32 operands as TF32. */
cublasStatus_t vnode_blas_submit(cudaStream_t stream, const char *api, const char *compute, const char *epilogue, bool tf32,
                                 const struct vnode_gemm *gemm);

/* The memory that an operation touches. What does not fit is left out: the race checker then misses it. */
struct vnode_blas_accesses {
  struct vnode_access item[128];
  size_t count;
};
/* A column-major matrix, or `batch` of them `stride` elements apart. NULL is no matrix. */
void vnode_blas_access_matrix(struct vnode_blas_accesses *accesses, const void *base, size_t element_bytes, int64_t rows,
                              int64_t cols, int64_t ld, int64_t stride, int64_t batch, bool write);
void vnode_blas_access_bytes(struct vnode_blas_accesses *accesses, const void *base, size_t bytes, bool write);
/* If it is in device memory. */
void vnode_blas_access_scalar(struct vnode_blas_accesses *accesses, const struct vnode_scalar *scalar);

/* The status that cuBLAS gives for what the node said. */
cublasStatus_t vnode_blas_status(enum vnode_status status);

/* 'N', 'T', 'C', or 0 for what is no operation. */
char vnode_blas_trans(int operation);

#endif
