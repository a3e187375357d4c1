/* SPDX-License-Identifier: Apache-2.0 */
/* What happens at the entry of every function of the stand-ins. */
#include "hook.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "internal.h"
#include "model.h"
#include "tracing.h"

_Static_assert(sizeof(struct vnode_hook) == VNODE_HOOK_BYTES, "entries.inc writes hooks of this size");
_Static_assert(offsetof(struct vnode_hook, own) == VNODE_HOOK_OWN, "hook_entry.S jumps there");
_Static_assert(sizeof(struct vnode_call) == VNODE_CALL_BYTES, "hook_entry.S makes room for it");
_Static_assert(offsetof(struct vnode_call, vectors) == VNODE_CALL_VECTORS, "hook_entry.S");
_Static_assert(offsetof(struct vnode_call, stack) == VNODE_CALL_STACK, "hook_entry.S");
_Static_assert(offsetof(struct vnode_call, hook) == VNODE_CALL_HOOK, "hook_entry.S");
_Static_assert(offsetof(struct vnode_call, result) == VNODE_CALL_RESULT, "hook_entry.S");

enum hook_state { HOOK_NEW, HOOK_PLAIN, HOOK_SPECIAL };
enum { NO_EFFECT = 0, THE_ERROR = -1 };

/* Only grows; a stand-in stays loaded. */
static struct vnode_library *_Atomic libraries;

void vnode_hook_register(struct vnode_library *library) {
  library->next = atomic_load(&libraries);
  while (!atomic_compare_exchange_weak(&libraries, &library->next, library))
    ;
}

const struct vnode_library *vnode_hook_libraries(void) {
  return atomic_load(&libraries);
}

static bool fits(const char *pattern, const char *name) {
  size_t length = strlen(pattern);
  return length && pattern[length - 1] == '*' ? !strncmp(pattern, name, length - 1) : !strcmp(pattern, name);
}

static bool is_among(const char *const *patterns, size_t count, const char *function) {
  for (size_t i = 0; i < count; i++)
    if (fits(patterns[i], function))
      return true;
  return false;
}

bool vnode_hook_has_status(const char *function) {
  static const char *const others[] = {
#define VNODE_NO_STATUS(name) name,
#include "hooks.def"
  };
  return !is_among(others, sizeof others / sizeof *others, function);
}

bool vnode_hook_is_at_load(const char *function) {
  static const char *const functions[] = {
#define VNODE_AT_LOAD(name) name,
#include "hooks.def"
  };
  return is_among(functions, sizeof functions / sizeof *functions, function);
}

static int sticky_status(const char *function) {
  static const struct {
    const char *name;
    int status;
  } rows[] = {
#define VNODE_STICKY(function_name, its_status) {.name = function_name, .status = its_status},
#include "hooks.def"
  };
  size_t i = 0;
  while (!fits(rows[i].name, function)) /* the last row fits all */
    i++;
  return rows[i].status;
}

/* The first call of a function by each of its threads that finds it new: all find the same. */
static enum hook_state prepare(struct vnode_hook *hook) {
  if (vnode_hook_is_at_load(hook->name)) {
    atomic_store_explicit(&hook->state, HOOK_PLAIN, memory_order_release);
    return HOOK_PLAIN;
  }
  int64_t ns = vnode_model_host_ns(hook->name);
  atomic_store_explicit(&hook->host_ns, ns, memory_order_relaxed);
  const struct vnode_fault *faults = vnode_faults_of(hook->name);
  atomic_store_explicit(&hook->faults, faults, memory_order_relaxed);
  const char *trace = vnode_trace_format(hook->name);
  atomic_store_explicit(&hook->trace, trace, memory_order_relaxed);
  atomic_store_explicit(&hook->sticky, sticky_status(hook->name), memory_order_relaxed);
  enum hook_state state = faults || trace ? HOOK_SPECIAL : HOOK_PLAIN;
  atomic_store_explicit(&hook->state, (unsigned char)state, memory_order_release);
  return state;
}

/* The call is over before it began. */
static int give(struct vnode_call *call, int status) {
  if (call->hook->library->failed)
    call->hook->library->failed(status);
  call->result = (uint64_t)(int64_t)status;
  return VNODE_ENTER_RESULT;
}

static int status_of_sticky(const struct vnode_hook *hook) {
  int error = vnode_sticky_error();
  int status = error ? atomic_load_explicit(&hook->sticky, memory_order_relaxed) : NO_EFFECT;
  return status == THE_ERROR ? error : status;
}

static int enter_special(struct vnode_call *call) {
  struct vnode_hook *hook = call->hook;
  int status = status_of_sticky(hook);
  const struct vnode_fault *faults = atomic_load_explicit(&hook->faults, memory_order_relaxed);
  if (!status && faults && vnode_fault_strike(hook, faults, &status)) /* may sleep, or end the process */
    status = status_of_sticky(hook);
  const char *trace = atomic_load_explicit(&hook->trace, memory_order_relaxed);
  if (trace && !status && vnode_trace_is_late(trace))
    return VNODE_ENTER_LEAVE;
  if (trace)
    vnode_trace_call(call, trace, status);
  return status ? give(call, status) : VNODE_ENTER_GO;
}

/* Measured: some 15 ns a call with neither trace nor fault, of which saving and restoring the registers is a third. */
int vnode_enter(struct vnode_call *call) {
  struct vnode_hook *hook = call->hook;
  enum hook_state state = (enum hook_state)atomic_load_explicit(&hook->state, memory_order_acquire);
  if (__builtin_expect(state == HOOK_NEW, 0))
    state = prepare(hook);
  vnode_host_charge(atomic_load_explicit(&hook->host_ns, memory_order_relaxed));
  if (__builtin_expect(state == HOOK_PLAIN && !vnode_sticky_error(), 1))
    return VNODE_ENTER_GO;
  return enter_special(call);
}

void vnode_leave(struct vnode_call *call) {
  vnode_trace_call(call, atomic_load_explicit(&call->hook->trace, memory_order_relaxed), (int)call->result);
}
