/* SPDX-License-Identifier: Apache-2.0 */
/* What all entry hooks of a stand-in share; linked into each. In: the caller's registers and stack, and the hook in r11 or x16,
   which the calling conventions leave to such code. See hook.h. */
#include "hook.h"

.text
.globl vnode_hook_common
.hidden vnode_hook_common
#if defined(__x86_64__)
.type vnode_hook_common, @function
vnode_hook_common:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $VNODE_CALL_BYTES, %rsp
.macro arguments op
  \op 0, %rdi
  \op 8, %rsi
  \op 16, %rdx
  \op 24, %rcx
  \op 32, %r8
  \op 40, %r9
.endm
.macro save offset, register
  movq \register, \offset(%rsp)
.endm
.macro restore offset, register
  movq \offset(%rsp), \register
.endm
.macro vectors op
  \op 0, %xmm0
  \op 16, %xmm1
  \op 32, %xmm2
  \op 48, %xmm3
  \op 64, %xmm4
  \op 80, %xmm5
  \op 96, %xmm6
  \op 112, %xmm7
.endm
.macro save_vector offset, register
  movaps \register, VNODE_CALL_VECTORS + \offset(%rsp)
.endm
.macro restore_vector offset, register
  movaps VNODE_CALL_VECTORS + \offset(%rsp), \register
.endm
  arguments save
  vectors save_vector
  leaq 16(%rbp), %rax
  movq %rax, VNODE_CALL_STACK(%rsp)
  movq %r11, VNODE_CALL_HOOK(%rsp)
  movq %rsp, %rdi
  call *vnode_enter@GOTPCREL(%rip)
  testl %eax, %eax
  jne 1f
  arguments restore
  vectors restore_vector
  movq VNODE_CALL_HOOK(%rsp), %r11
  .cfi_remember_state
  leave
  .cfi_def_cfa %rsp, 8
  jmp *VNODE_HOOK_OWN(%r11)
  .cfi_restore_state
1:
  cmpl $VNODE_ENTER_RESULT, %eax
  je 2f
  arguments restore
  vectors restore_vector
  movq VNODE_CALL_HOOK(%rsp), %r11
  call *VNODE_HOOK_OWN(%r11)
  movq %rax, VNODE_CALL_RESULT(%rsp)
  movq %rsp, %rdi
  call *vnode_leave@GOTPCREL(%rip)
2:
  movq VNODE_CALL_RESULT(%rsp), %rax
  leave
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
#elif defined(__aarch64__)
.type vnode_hook_common, %function
vnode_hook_common:
  .cfi_startproc
  stp x29, x30, [sp, #-16]!
  .cfi_def_cfa_offset 16
  .cfi_offset 29, -16
  .cfi_offset 30, -8
  mov x29, sp
  .cfi_def_cfa_register 29
  sub sp, sp, #VNODE_CALL_BYTES
.macro arguments op
  \op x0, x1, [sp, #0]
  \op x2, x3, [sp, #16]
  \op x4, x5, [sp, #32]
  \op x6, x7, [sp, #48]
  \op q0, q1, [sp, #VNODE_CALL_VECTORS]
  \op q2, q3, [sp, #VNODE_CALL_VECTORS + 32]
  \op q4, q5, [sp, #VNODE_CALL_VECTORS + 64]
  \op q6, q7, [sp, #VNODE_CALL_VECTORS + 96]
.endm
  arguments stp
  str x8, [sp, #VNODE_CALL_RESULT + 8] /* where a structure is returned */
  add x9, x29, #16
  str x9, [sp, #VNODE_CALL_STACK]
  str x16, [sp, #VNODE_CALL_HOOK]
  mov x0, sp
  bl vnode_enter
  cbnz w0, 1f
  arguments ldp
  ldr x8, [sp, #VNODE_CALL_RESULT + 8]
  ldr x16, [sp, #VNODE_CALL_HOOK]
  ldr x16, [x16, #VNODE_HOOK_OWN]
  .cfi_remember_state
  mov sp, x29
  ldp x29, x30, [sp], #16
  .cfi_def_cfa 31, 0
  br x16
  .cfi_restore_state
1:
  cmp w0, #VNODE_ENTER_RESULT
  b.eq 2f
  arguments ldp
  ldr x8, [sp, #VNODE_CALL_RESULT + 8]
  ldr x16, [sp, #VNODE_CALL_HOOK]
  ldr x16, [x16, #VNODE_HOOK_OWN]
  blr x16
  str x0, [sp, #VNODE_CALL_RESULT]
  mov x0, sp
  bl vnode_leave
2:
  ldr x0, [sp, #VNODE_CALL_RESULT]
  mov sp, x29
  ldp x29, x30, [sp], #16
  .cfi_def_cfa 31, 0
  ret
  .cfi_endproc
#else
#error "hooks are written for x86-64 and AArch64"
#endif
.size vnode_hook_common, . - vnode_hook_common
.section .note.GNU-stack, "", %progbits
