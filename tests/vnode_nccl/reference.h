/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reduction must give, computed the slow way: values as doubles, conversions by ldexp and nearbyint. Shares no code
 * with the node's own conversions.
 */
#ifndef TESTS_VNODE_NCCL_REFERENCE_H
#define TESTS_VNODE_NCCL_REFERENCE_H

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

extern const ncclDataType_t all_types[ncclNumTypes];
size_t type_bytes(ncclDataType_t type);
/* Deterministic contents: element i of rank's buffer `seed`; small numbers, some halves and negative ones where the type has
 * them. */
void fill(ncclDataType_t type, unsigned seed, int rank, size_t count, void *out);
/* A factor for PreMulSum, in the type. */
void factor_of(ncclDataType_t type, int rank, void *out);

enum reference_op { REF_SUM, REF_PROD, REF_MAX, REF_MIN, REF_AVG, REF_PREMUL };
/* out[i] = op over the ranks' inputs at [from, from + count) of buffers filled by fill(type, seed, r, …). */
void reference(ncclDataType_t type, enum reference_op op, unsigned seed, int nranks, size_t from, size_t count, void *out);

#endif
