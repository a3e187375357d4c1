/* SPDX-License-Identifier: Apache-2.0 */
/* void *dlsym(void *handle, const char *name): see entry_libc.c. Both arguments survive the filter; the jump leaves the
   caller's return address on top of the stack, as if our function had never been there. */
        .text
        .globl  dlsym
        .type   dlsym, @function
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    b200_dlsym_filter
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rax, %rax
        jne     1f
        movq    b200_dlsym_target(%rip), %rax
        jmp     *%rax
1:      ret
        .cfi_endproc
        .size   dlsym, . - dlsym
        .section .note.GNU-stack, "", @progbits
