/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS's part of a line of the call trace: GEMMs, with what the handle adds to their arguments. */
#include <stdio.h>
#include <string.h>

#include "tools/vnode/core/hook.h"
#include "tools/vnode/standins/cublas_handle.h"
#include "tools/vnode/standins/number.h"

/* Slots of the arguments that differ between the functions. */
static const struct gemm_slots {
  const char *function;
  unsigned a_type, b_type, beta, c_type, batch, compute; /* batch 0: there is none */
} functions[] = {
    {"cublasGemmEx", 8, 11, 13, 15, 0, 17},
    {"cublasGemmStridedBatchedEx", 8, 12, 15, 17, 20, 21},
};

static int int_at(const struct vnode_call *call, unsigned slot) {
  return (int)vnode_call_slot(call, slot);
}

static const char *type_at(const struct vnode_call *call, unsigned slot) {
  return vnode_number_name((cudaDataType)int_at(call, slot));
}

static double scalar_at(const struct vnode_call *call, unsigned slot, const struct gemm_slots *slots) {
  const void *pointer = vnode_call_pointer(call, slot);
  cudaDataType a_type = (cudaDataType)int_at(call, slots->a_type);
  double value = 0, imaginary = 0;
  if (pointer)
    vnode_number_load(pointer, vnode_gemm_scale_type(int_at(call, slots->compute), a_type), 0, &value, &imaginary);
  return value;
}

static void describe(const struct gemm_slots *at, const struct vnode_call *call, char *text, size_t text_bytes) {
  cublasHandle_t handle = (cublasHandle_t)(uintptr_t)vnode_call_slot(call, 0);
  if (!vnode_cublas_is_live(handle))
    return;
  char batch[32] = "";
  if (at->batch)
    snprintf(batch, sizeof batch, " batch=%d", int_at(call, at->batch));
  snprintf(text, text_bytes,
           "s=%d %c%c m=%d n=%d k=%d%s A=%s/%d B=%s/%d C=%s/%d alpha=%g beta=%g compute=%d algo=%d math=%d ws=%zu",
           vnode_stream_id((struct vnode_stream *)handle->stream), vnode_blas_trans(int_at(call, 1)),
           vnode_blas_trans(int_at(call, 2)), int_at(call, 3), int_at(call, 4), int_at(call, 5), batch,
           type_at(call, at->a_type), int_at(call, at->a_type + 1), type_at(call, at->b_type), int_at(call, at->b_type + 1),
           type_at(call, at->c_type), int_at(call, at->c_type + 1), scalar_at(call, 6, at), scalar_at(call, at->beta, at),
           int_at(call, at->compute), int_at(call, at->compute + 1), (int)handle->math_mode, handle->workspace_bytes);
}

void vnode_standin_describe(const char *function, const struct vnode_call *call, char *text, size_t text_bytes) {
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!strcmp(functions[i].function, function))
      describe(&functions[i], call, text, text_bytes);
}
