/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number formats of cudaDataType on the CPU: names, sizes, and conversion of arrays to and from FP32.
 *
 * Widening is exact for every format that FP32 contains. Rounding is to nearest, ties to even; NaN stays NaN, and values
 * beyond the largest finite one become infinite, except for FP8, which saturates as cuBLASLt's FP8 outputs do.
 * The formats of FP8 are those of OCP 8-bit Floating Point Specification (OFP8) revision 1.0.
 *
 * Thread-safety: pure functions. None allocates.
 */
#ifndef VNODE_NUMBER_H
#define VNODE_NUMBER_H

#include <library_types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Name as in record.def: f64 f32 f16 bf16 e4m3 e5m2 e2m1 i8 i32; "other" for the rest, complex too. */
const char *vnode_number_name(cudaDataType type);

/* Bytes of one element, 0 for what has none of its own: E2M1, and formats that this file does not convert. */
size_t vnode_number_bytes(cudaDataType type);

bool vnode_number_is_complex(cudaDataType type);
bool vnode_number_is_fp8(cudaDataType type);

/* Scales of blocks. UE8M0: 2^(byte − 127), 0 is 2^-127, 255 is NaN. UE4M3: E4M3 whose sign is not looked at. */
float vnode_number_ue8m0(uint8_t byte);
float vnode_number_ue4m3(uint8_t byte);

/* pre: `type` is real and converted; the arrays do not overlap. E2M1, widened only, begins with the low half of a byte. */
void vnode_number_widen(float *to, const void *from, cudaDataType type, int64_t count);
void vnode_number_round(void *to, cudaDataType type, const float *from, int64_t count);

/* One real or complex element of any supported format. `im` may be NULL for real formats. */
void vnode_number_load(const void *from, cudaDataType type, int64_t index, double *re, double *im);
void vnode_number_store(void *to, cudaDataType type, int64_t index, double re, double im);

#endif
