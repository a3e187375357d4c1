/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `index` of rules: which linear layer of the model a GEMM belongs to. It is the ordinal of the GEMM among those of its
 * role within one forward and backward pass: fprop 0 is the first layer's, dgrad 0 and wgrad 0 the last layer's. A forward
 * GEMM that is done again in the backward pass (activation checkpointing) has the index of the first time, and every
 * micro-batch of a step counts from 0.
 *
 * It is known once two steps in a row had the same roles in the same order; the next steps are followed along them. At the
 * first call that differs (an evaluation, another model) nothing is known until two steps were alike again.
 *
 * Thread-safety: one thread at a time. A forward pass and its backward pass come from two threads, but one after the other.
 * No allocation.
 */
#ifndef B200_POLICY_ORDINALS_H
#define B200_POLICY_ORDINALS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/call.h"

#define B200_ORDINALS_MAX 16384 /* GEMMs of the three roles per step; with more, no index is known */

struct b200_ordinals {
  uint32_t count; /* calls of this step so far */
  uint32_t last;  /* of the last step, whose roles are `pattern` */
  bool known;     /* `index` belongs to `pattern`, and this step has followed it so far */
  uint8_t roles[B200_ORDINALS_MAX];
  uint8_t pattern[B200_ORDINALS_MAX];
  int32_t index[B200_ORDINALS_MAX];
};

/* The index of the next GEMM; -1: not known, or a role without one. */
int64_t b200_ordinals_next(struct b200_ordinals *ordinals, enum b200_role role);

/* A step begins: what came since the last one began was a step. */
void b200_ordinals_step(struct b200_ordinals *ordinals);

#endif
