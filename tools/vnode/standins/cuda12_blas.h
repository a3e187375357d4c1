/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every source of cuBLAS and cuBLASLt that is compiled for CUDA 12 (12.6 to 12.8). The sources are written
 * against the headers of CUDA 13; here is what those have and CUDA 12's lack: emulated and grouped products. The values are
 * ours and such that no caller has them, so a table row or a case label with them never matches.
 */
#ifndef VNODE_STANDINS_CUDA12_BLAS_H
#define VNODE_STANDINS_CUDA12_BLAS_H

#define CUBLASAPI
#include <cublasLt.h>
#include <cublas_api.h>

enum {
  VNODE_NEVER = 0x7e000000,
  CUBLAS_FP32_EMULATED_BF16X9_MATH,
  CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH,
  CUBLAS_COMPUTE_32F_EMULATED_16BFX9,
  CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT,
  CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR,
  CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE,
  CUBLASLT_MATMUL_DESC_BETA_BATCH_STRIDE,
  CUBLASLT_MATRIX_LAYOUT_BATCH_MODE,
  CUBLASLT_ALGO_CAP_POINTER_ARRAY_BATCH_SUPPORT,
  CUBLASLT_ALGO_CAP_FLOATING_POINT_EMULATION_SUPPORT,
  CUBLASLT_ALGO_CAP_POINTER_ARRAY_GROUPED_SUPPORT,
};
enum { CUBLASLT_BATCH_MODE_STRIDED = 0 }; /* the only mode of CUDA 12: its value in CUDA 13 is 0, too */

/* What cublas.c needs for functions of CUDA 13 that are compiled and not exported. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
typedef enum { CUBLAS_EMULATION_STRATEGY_DEFAULT, CUBLAS_EMULATION_STRATEGY_EAGER = 2 } cublasEmulationStrategy_t;
typedef enum { CUDA_EMULATION_SPECIAL_VALUES_SUPPORT_DEFAULT = 0xffff } cudaEmulationSpecialValuesSupport;
typedef int cudaEmulationMantissaControl;
typedef void *cublasLtEmulationDesc_t;

#endif
