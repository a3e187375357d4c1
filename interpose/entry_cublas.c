/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS. A GEMM that cuBLAS hands on to another entry point of its own is counted once, at the outermost. */
#include <cublas_v2.h>

#include "interpose/entry.h"

#define B200_STREAM_cublas b200_stream_of(handle)
#define B200_CUBLAS(...) B200_ENTRY(cublas, __VA_ARGS__)
#include "interpose/symbols.def"

struct b200_slot b200_slots_cublas[] = {
#define B200_CUBLAS(...) B200_SLOT_ROW(cublas, __VA_ARGS__)
#include "interpose/symbols.def"
};
const size_t b200_slot_count_cublas = sizeof b200_slots_cublas / sizeof *b200_slots_cublas;
