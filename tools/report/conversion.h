/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the report on what was converted (KEYS.md: `conversion`, `done`). Ownership as in model.h. */
#ifndef B200_REPORT_CONVERSION_H
#define B200_REPORT_CONVERSION_H

#include "interpose/record/reader.h"

/* What was done with the GEMMs of these logs, and why. null when they are from before conversion, or the node's. */
json_t *report_conversion(const struct b200_log *const *logs, size_t count);

/* The GEMMs as cuBLAS was asked for them, to compare with the node's count: `roles` and `shapes` like those of `gemm`, with
   converted ones under the role `narrow` and audits in addition. null when nothing was converted. */
json_t *report_done(const struct b200_log *const *logs, size_t count);

/* The node's count of GEMMs in the same form. It has the self-test of the formats and the guard's references, too, which
   nobody asked for: narrow FLOPs beyond those of `done`, and wide GEMMs of a few columns that `done` lacks, are left out. */
json_t *report_done_by_node(const json_t *gemm, const json_t *done);

/* `hbm` as the node counts it, which takes the library's own memory for PyTorch's. The two may have had their peaks at
   different times: any peak that the node gives is right between the larger one and the sum. */
json_t *report_memory_by_node(const json_t *hbm, const json_t *node);

#endif
