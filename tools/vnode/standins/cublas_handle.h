/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of the cuBLAS stand-in and its workspace.
 *
 * As in cuBLAS, a handle that works without a workspace of the application's (cublasSetWorkspace) allocates its own, once,
 * of the size that Hopper and Blackwell get, through the driver. cublasSetStream falls back to it until the workspace is set
 * again. Its contents are never used: the CPU needs none.
 */
#ifndef VNODE_CUBLAS_HANDLE_H
#define VNODE_CUBLAS_HANDLE_H

#include "tools/vnode/standins/blas_common.h"

#define VNODE_CUBLAS_WORKSPACE_BYTES ((size_t)32 << 20) /* documented default for compute capability 9.0 and above */
#define VNODE_CUBLAS_WORKSPACE_ALIGN 256

struct cublasContext {
  struct vnode_blas_handle base;
  int device;
  cudaStream_t stream;
  cublasPointerMode_t pointer_mode;
  cublasMath_t math_mode;
  cublasAtomicsMode_t atomics_mode;
  int sm_count_target;
  bool workspace_set;           /* by the application, since the last cublasSetStream */
  size_t workspace_bytes;       /* of the one that was set last */
  unsigned long long workspace; /* our own: CUdeviceptr, 0 before the first use */
  cublasEmulationStrategy_t emulation_strategy;
  cudaEmulationSpecialValuesSupport special_values;
  cudaEmulationMantissaControl mantissa_control;
  int max_mantissa_bits, mantissa_offset;
  int *mantissa_count;
};

/* NULL or a destroyed handle: false. */
bool vnode_cublas_is_live(cublasHandle_t handle);

/* Before the first kernel of a call: makes sure that there is a workspace. Errors: ALLOC_FAILED. */
cublasStatus_t vnode_cublas_prepare(cublasHandle_t handle);

#endif
