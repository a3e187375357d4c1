/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry hooks: every function that a stand-in exports is entered through a few generated instructions that call
 * vnode_enter() first. There the call is charged to the host's clock, refused when the context has ended with an error, made
 * to fail when B200OPT_VNODE_FAULT says so, and written to the trace. Calls inside a stand-in go to the function itself and
 * are not seen; a stand-in that calls another through its exported name, as the real libraries do, is.
 *
 *   program -> NAME (gen_entries.sh) -> vnode_hook_common (hook_entry.S) -> vnode_enter -> vnode_own_NAME -> program
 *
 * The function is reached by a jump with the registers and the stack as the caller left them, so it sees the caller's return
 * address and any number of arguments. Names that are one function (ncclX and pncclX; X and X_ptsz) share one hook.
 *
 * Thread-safety: everything may be called from any thread. Nothing here calls into CUDA.
 */
#ifndef VNODE_CORE_HOOK_H
#define VNODE_CORE_HOOK_H

/* Offsets for hook_entry.S. */
#define VNODE_CALL_VECTORS 64
#define VNODE_CALL_STACK 192
#define VNODE_CALL_HOOK 200
#define VNODE_CALL_RESULT 208
#define VNODE_CALL_BYTES 224
#define VNODE_HOOK_OWN 8
#define VNODE_HOOK_BYTES 64

#define VNODE_ENTER_GO 0     /* jump to the function */
#define VNODE_ENTER_RESULT 1 /* return call.result instead */
#define VNODE_ENTER_LEAVE 2  /* call the function, then vnode_leave(); only for functions without arguments on the stack */

#ifndef __ASSEMBLER__
#include "core.h"

#ifdef __aarch64__
enum { VNODE_CALL_REGISTERS = 8 };
#else
enum { VNODE_CALL_REGISTERS = 6 };
#endif

struct vnode_hook;

/* One call, as its registers were at the entry. */
struct vnode_call {
  uint64_t registers[8]; /* the first VNODE_CALL_REGISTERS hold arguments */
  uint64_t vectors[8][2];
  const uint64_t *stack; /* further arguments */
  struct vnode_hook *hook;
  uint64_t result;
  uint64_t unused;
};

/* Argument number `slot` of the call, from 0. Floating-point arguments have no slot; a dim3 has two. */
static inline uint64_t vnode_call_slot(const struct vnode_call *call, unsigned slot) {
  return slot < VNODE_CALL_REGISTERS ? call->registers[slot] : call->stack[slot - VNODE_CALL_REGISTERS];
}

static inline const void *vnode_call_pointer(const struct vnode_call *call, unsigned slot) {
  return (const void *)(uintptr_t)vnode_call_slot(call, slot);
}

/* What a stand-in may define for its hooks. */
/* A call returns `status` without having been made: the runtime remembers it as its last error. */
int vnode_standin_failed(int status);
/* The part of a line of the trace that only the stand-in knows, %x in trace.def. pre: text is "". */
void vnode_standin_describe(const char *function, const struct vnode_call *call, char *text, size_t text_bytes);

/* A stand-in. Generated; a function that it does not define is NULL. */
struct vnode_library {
  const char *soname;
  struct vnode_hook *hooks, *hooks_end;
  int (*failed)(int status);
  void (*describe)(const char *function, const struct vnode_call *call, char *text, size_t text_bytes);
  struct vnode_library *next;
};

/* An exported function. Generated; what is below `library` is filled in by the first call. */
struct vnode_hook {
  const char *name;
  void (*own)(void);
  struct vnode_library *library;
  _Atomic int64_t host_ns;
  _Atomic uint64_t calls; /* counted while a fault is set */
  const struct vnode_fault *_Atomic faults;
  const char *_Atomic trace; /* format of its arguments, see trace.def; NULL: not traced */
  _Atomic int sticky; /* what it returns once the context has ended: a status, 0: what it always does, -1: that error */
  _Atomic unsigned char state;
};

/* Called by the stand-ins' constructors. */
VNODE_API void vnode_hook_register(struct vnode_library *library);
/* Called by hook_entry.S. */
VNODE_API int vnode_enter(struct vnode_call *call);
VNODE_API void vnode_leave(struct vnode_call *call);

/* The registered stand-ins, linked by `next`. */
VNODE_API const struct vnode_library *vnode_hook_libraries(void);
/* What hooks.def says of a function. */
VNODE_API bool vnode_hook_has_status(const char *function);
VNODE_API bool vnode_hook_is_at_load(const char *function);

/* Writes "#### TEXT" into the trace, if there is one: marks for whoever compares traces. */
VNODE_API void vnode_trace_mark(const char *text);

#endif
#endif
