/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU image as an array; empty where the build had no nvcc. */
    .section .rodata
    .global b200_fatbin, b200_fatbin_bytes
    .hidden b200_fatbin, b200_fatbin_bytes
    .type b200_fatbin, @object
    .type b200_fatbin_bytes, @object
    .balign 64
b200_fatbin:
#ifdef B200_FATBIN_FILE
    .incbin B200_FATBIN_FILE
#endif
.Lend:
    .size b200_fatbin, .Lend - b200_fatbin
    .balign 8
b200_fatbin_bytes:
    .quad .Lend - b200_fatbin
    .size b200_fatbin_bytes, 8
    .section .note.GNU-stack, "", @progbits
