/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt's part of a line of the call trace: what a matmul's descriptors hold. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tools/vnode/core/hook.h"
#include "tools/vnode/standins/blas_common.h"
#include "tools/vnode/standins/lt_objects.h"
#include "tools/vnode/standins/lt_rules.h"
#include "tools/vnode/standins/number.h"

static double scalar(const void *pointer, const struct lt_matmul *op) {
  double value = 0, imaginary = 0;
  if (pointer)
    vnode_number_load(pointer, (cudaDataType)op->scale_type, 0, &value, &imaginary);
  return value;
}

static size_t add_layout(char name, const struct lt_layout *layout, char *text, size_t text_bytes) {
  return (size_t)snprintf(text, text_bytes, " %c=%s/%lld", name, vnode_number_name((cudaDataType)layout->type),
                          (long long)layout->ld);
}

static size_t add_shapes(const struct lt_matmul *op, const struct lt_layout *const layouts[4], char *text,
                         size_t text_bytes) {
  size_t used = (size_t)snprintf(
      text, text_bytes, "%c%c m=%llu n=%llu k=%llu batch=%d", vnode_blas_trans(op->trans_a), vnode_blas_trans(op->trans_b),
      (unsigned long long)layouts[3]->rows, (unsigned long long)layouts[3]->cols,
      (unsigned long long)(op->trans_a == CUBLAS_OP_N ? layouts[0]->cols : layouts[0]->rows), layouts[3]->batch);
  for (size_t i = 0; i < 4; i++)
    used += add_layout("ABCD"[i], layouts[i], text + used, text_bytes - used);
  return used;
}

/* Slots: 1 operation, 2 3 4 5 layouts of A B C D, 6 preference. Of narrow products only: what is asked, and the answer. */
static void describe_heuristic(const struct vnode_call *call, char *text, size_t text_bytes) {
  const struct lt_preference *preference = vnode_call_pointer(call, 6);
  void *objects[5];
  for (unsigned i = 0; i < 5; i++)
    if (!(objects[i] = (void *)(uintptr_t)vnode_call_slot(call, 1 + i)))
      return;
  const struct lt_matmul *op = objects[0];
  const struct lt_layout *layouts[4] = {objects[1], objects[2], objects[3], objects[4]};
  struct lt_problem problem;
  if (!preference || vnode_number_bytes((cudaDataType)layouts[0]->type) != 1)
    return;
  cublasStatus_t answer = lt_problem_make(objects[0], objects[1], objects[2], objects[3], objects[4], &problem);
  size_t used = (size_t)snprintf(text, text_bytes, " ");
  used += add_shapes(op, layouts, text + used, text_bytes - used);
  snprintf(text + used, text_bytes - used, " epilogue=%u bias_t=%d scalemodes=%d,%d align=%u,%u,%u,%u answer=%d",
           op->epilogue, op->bias_type, op->a_scale_mode, op->b_scale_mode, preference->align_a_bytes,
           preference->align_b_bytes, preference->align_c_bytes, preference->align_d_bytes, (int)answer);
}

/* Largest power of two up to 256 that divides the addresses of A, B and D. */
static unsigned alignment(const struct vnode_call *call) {
  uint64_t all = vnode_call_slot(call, 3) | vnode_call_slot(call, 5) | vnode_call_slot(call, 10);
  return 1u << __builtin_ctzll(all | 256);
}

/* Slots: 1 operation, 2 alpha, 3 A, 5 B, 4 6 9 11 layouts of A B C D, 7 beta, 8 C, 10 D, 12 algorithm, 13 14 workspace. */
static void describe_matmul(const struct vnode_call *call, char *text, size_t text_bytes) {
  const struct lt_matmul *op = vnode_call_pointer(call, 1);
  const struct lt_layout *layouts[4] = {vnode_call_pointer(call, 4), vnode_call_pointer(call, 6),
                                        vnode_call_pointer(call, 9), vnode_call_pointer(call, 11)};
  if (!op || !layouts[0] || !layouts[1] || !layouts[2] || !layouts[3])
    return;
  size_t used = add_shapes(op, layouts, text, text_bytes);
  used += (size_t)snprintf(
      text + used, text_bytes - used,
      " C==D:%d Cdesc==Ddesc:%d alpha=%g beta=%g compute=%d scale=%s epilogue=%u bias=%d bias_t=%d algo=%d ws=%llu "
      "wsptr=%d scalemodes=%d,%d",
      vnode_call_slot(call, 8) == vnode_call_slot(call, 10), layouts[2] == layouts[3],
      scalar(vnode_call_pointer(call, 2), op), scalar(vnode_call_pointer(call, 7), op), op->compute,
      vnode_number_name((cudaDataType)op->scale_type), op->epilogue, op->bias != NULL, op->bias_type,
      vnode_call_slot(call, 12) != 0, (unsigned long long)vnode_call_slot(call, 14), vnode_call_slot(call, 13) != 0,
      op->a_scale_mode, op->b_scale_mode);
  if (op->a_scale || op->b_scale || op->c_scale || op->d_scale || op->amax_d || op->fast_accumulation)
    snprintf(text + used, text_bytes - used, " scales=%d%d%d%d amax=%d fast=%d align=%u", op->a_scale != NULL,
             op->b_scale != NULL, op->c_scale != NULL, op->d_scale != NULL, op->amax_d != NULL, op->fast_accumulation,
             alignment(call));
}

void vnode_standin_describe(const char *function, const struct vnode_call *call, char *text, size_t text_bytes) {
  if (!strcmp(function, "cublasLtMatmul"))
    describe_matmul(call, text, text_bytes);
  else if (!strcmp(function, "cublasLtMatmulAlgoGetHeuristic"))
    describe_heuristic(call, text, text_bytes);
}
