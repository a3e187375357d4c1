/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GEMM engine of the virtual node: what cuBLAS and cuBLASLt compute, on the CPU.
 *
 *   D[m×n] = sD · act( alpha · (sA·op(A)[m×k]) · (sB·op(B)[k×n]) + beta·sC·C[m×n] + bias[m] ),   `batch` times, column-major
 *
 * Arithmetic
 *   FP32, FP16, BF16, FP8, FP4 and INT8 (with an FP32 or FP16 compute type): operands widened to FP32, FP32 accumulation,
 *   the epilogue in FP32, one rounding at the end (number.h). This is also what TF32, "fast", emulated and FP16 compute
 * types and FP8's fast accumulation get: the product is then at least as accurate as the GPU's, and not equal to it bit by
 * bit. A scale of the whole tensor is multiplied into alpha, all others (scales.h) into the elements: exactly for MXFP8 and
 * NVFP4, where a product beyond FP32 (from a scale of 2^119 on) becomes infinite; else with one rounding. FP64 in FP64;
 * complex accumulates in FP64 and rounds once; INT8 → INT32 exactly, modulo 2^32. beta = 0 never reads C; alpha = 0 or k = 0
 * never reads A and B. GELU is the tanh form, as in cuBLASLt's epilogues.
 *
 * Results are the same from run to run and from rank to rank: see host_blas.h.
 * Thread-safety: any thread; D must not be written by anybody else. Memory is the caller's. May block only to compute.
 */
#ifndef VNODE_GEMM_H
#define VNODE_GEMM_H

#include <library_types.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/vnode/standins/scales.h"

/* A matrix, or a batch of them: at `data` + i·stride elements, or at array[i] when `array` is not NULL (read when the
   work runs, as a GPU does). */
struct vnode_matrix {
  const void *data;
  const void *const *array;
  cudaDataType type;
  int64_t ld, stride;
};

/* alpha or beta: known now (device NULL), or an element of `type` in device memory that is read when the work runs. */
struct vnode_scalar {
  const void *device;
  cudaDataType type;
  double re, im;
};

enum vnode_activation {
  VNODE_ACTIVATION_NONE,
  VNODE_ACTIVATION_RELU,
  VNODE_ACTIVATION_GELU,
  VNODE_ACTIVATION_DRELU,
  VNODE_ACTIVATION_DGELU
};
enum vnode_bias_grad { VNODE_BIAS_GRAD_NONE, VNODE_BIAS_GRAD_D, VNODE_BIAS_GRAD_A, VNODE_BIAS_GRAD_B };

/* What follows the product. All zero: nothing. */
struct vnode_epilogue {
  enum vnode_activation activation;
  const void *bias; /* m elements, or NULL */
  cudaDataType bias_type;
  int64_t bias_stride; /* elements between the batch's bias (gradient) vectors */
  /* RELU writes and DRELU reads a mask of bits, bit i of column j at bit j·ld + i, set where the input was positive;
     GELU writes and DGELU reads the activation's input, m×n elements of aux_type. NULL: not written. */
  void *aux;
  cudaDataType aux_type;
  int64_t aux_ld, aux_stride; /* elements; bits for the mask */
  /* D: row sums of the result (m), A: row sums of op(A) (m), B: column sums of op(B) (n); elements of bias_type. */
  enum vnode_bias_grad grad;
  void *grad_out;
  struct vnode_scale scale_a, scale_b; /* other than scalars for a batch of 1 only */
  const float *scale_c, *scale_d;      /* device scalars, NULL: 1 */
  float *amax_d;                       /* device, NULL: none; largest |result| before sD */
};

struct vnode_gemm {
  char trans_a, trans_b; /* 'N', 'T', 'C' */
  int64_t m, n, k, batch;
  struct vnode_scalar alpha, beta;
  struct vnode_matrix a, b, c, d; /* c.data may be NULL when beta is known to be 0; d.data is written */
  struct vnode_epilogue epilogue;
};

/* Scales that hardware could not read (NULL or misaligned, other than scalars) end the context as they do on a GPU.
   pre: vnode_gemm_kind() of its types is not NONE; sizes, leading dimensions and pointers are valid. `gemm` is only read.
   Takes void * so that it is a vnode_work. FP64, complex and INT32 know bias, RELU and GELU only / no epilogue at all:
   see vnode_gemm_epilogue_supported. */
void vnode_gemm_run(void *gemm);

/* Which arithmetic a combination of types takes; NONE: cuBLAS does not support it. `compute` and `scale` are the numbers
   of cublasComputeType_t and cudaDataType (tables of cublasGemmEx and cublasLtMatmul in the cuBLAS documentation; FP8 and
   FP4 inputs only by cublasLtMatmul). */
enum vnode_gemm_kind {
  VNODE_GEMM_NONE,
  VNODE_GEMM_F32,
  VNODE_GEMM_F64,
  VNODE_GEMM_COMPLEX,
  VNODE_GEMM_I32,
  VNODE_GEMM_FP8,
  VNODE_GEMM_FP4
};
enum vnode_gemm_kind vnode_gemm_kind(int compute, cudaDataType a, cudaDataType b, cudaDataType c, cudaDataType d);
bool vnode_gemm_is_narrow(enum vnode_gemm_kind kind); /* FP8, FP4 */

bool vnode_gemm_epilogue_supported(enum vnode_gemm_kind kind, const struct vnode_epilogue *epilogue);

/* Type of alpha and beta for a compute type and type of A; CUDA_R_32F for all that have no rule of their own. */
cudaDataType vnode_gemm_scale_type(int compute, cudaDataType a);

/* Compute type as in record.def: f64 f32 tf32 f16 i32 other. */
const char *vnode_gemm_compute_name(int compute);

/* Reads a scalar: at once from host memory, else remembers where it is. */
struct vnode_scalar vnode_scalar_make(const void *pointer, cudaDataType type, bool on_device);

/* Known to be zero without reading device memory. */
bool vnode_scalar_is_zero(const struct vnode_scalar *scalar);

#endif
