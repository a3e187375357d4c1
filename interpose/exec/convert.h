/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out one plan: conversion (how the operands lie in the arena, and cuBLASLt's side of it), quantisation, product.
 * What gemm.h promises is kept here; who decides is gemm.c, or the self-test.
 */
#ifndef B200_EXEC_CONVERT_H
#define B200_EXEC_CONVERT_H

#include "interpose/exec/device.h"
#include "interpose/exec/gemm.h"
#include "interpose/exec/shapes.h"
#include "interpose/exec/watch.h"

/* One call under way. */
struct b200_work {
  const struct b200_vendor *vendor;
  const struct b200_gemm_call *call;
  struct b200_gpu *gpu;
  struct b200_conversion *conversion; /* of the plan's format; made here when it is not */
  struct b200_plan plan;
  uint64_t capture;           /* id, 0: none */
  uint8_t mx_rounding;        /* enum b200_mx_rounding */
  struct b200_sample *sample; /* a call that is looked at; NULL */
};

/* What cuBLASLt's algorithms may want: what PyTorch gives on these GPUs, and NVIDIA recommends. */
size_t b200_convert_workspace_limit(int cc);

/* Quantises and multiplies on the call's stream. B200_REASON_CONVERTED, or why not (BREAKER_HEURISTIC, BREAKER_VENDOR,
   NO_MEMORY): then the original call is right, whatever has been done. pre: plan.format is not NATIVE, the GPU has the
   kernels. */
enum b200_reason b200_convert(const struct b200_work *work);

#endif
