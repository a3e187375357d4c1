/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model with its row already looked up, for the decision path; plan.h has the whole. Pure; nothing allocates. */
#ifndef B200_POLICY_COST_H
#define B200_POLICY_COST_H

#include "policy/plan.h"

/* Row of cost.def for a device; the last one, for GPUs that are not known, when none fits. Reads the device's name. */
int b200_cost_row(const struct b200_device *device);
const char *b200_cost_row_name(int row);

/* The dense peak in FLOP/s of all multiprocessors, native being bf16; and device memory's bytes per second. 0: not known. */
double b200_cost_peak_flops(int row, enum b200_format format);
double b200_cost_hbm_bytes_per_s(int row);

/* What the times of a GEMM in all formats have in common: the FLOPs of the waves of tiles, per step along k. */
double b200_cost_waves(int row, int sms, const struct b200_gemm *gemm);

/* Times as b200_cost_*() of plan.h; sms: of the device, 0 for the row's own; waves: of this GEMM. `tn`: as in struct
   b200_plan. 0: there is no such format, or no work. */
double b200_cost_native_ns(int row, int sms, const struct b200_gemm *gemm, double waves);
double b200_cost_narrow_ns(int row, int sms, const struct b200_gemm *gemm, enum b200_format format, bool tn, double waves);
double b200_cost_quantise_ns(int row, int sms, const struct b200_gemm *gemm, enum b200_format format);

#endif
