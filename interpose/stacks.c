/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/stacks.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/real.h"
#include "interpose/runtime.h"

enum {
  FRAMES = 48,
  PYTHON_FRAMES = 12,
  PYTHON_BYTES = 900,
  STACKS_WAITING = 16, /* Python itself takes 32 requests at a time */
};

typedef struct python_object python_object;

/* What is used of Python: X(name, return type, parameters). */
#define PYTHON_FUNCTIONS(X)                                                                                                 \
  X(Py_IsInitialized, int, (void))                                                                                          \
  X(Py_AddPendingCall, int, (int (*)(void *), void *))                                                                      \
  X(PyEval_GetFrame, python_object *, (void))                                                                               \
  X(PyFrame_GetLineNumber, int, (python_object *))                                                                          \
  X(PyFrame_GetBack, python_object *, (python_object *))                                                                    \
  X(PyFrame_GetCode, python_object *, (python_object *))                                                                    \
  X(PyObject_GetAttrString, python_object *, (python_object *, const char *))                                               \
  X(PyUnicode_AsUTF8AndSize, const char *, (python_object *, long *))                                                       \
  X(PyErr_GetExcInfo, void, (python_object **, python_object **, python_object **))                                         \
  X(PyErr_Clear, void, (void))                                                                                              \
  X(Py_IncRef, void, (python_object *))                                                                                     \
  X(Py_DecRef, void, (python_object *))

enum slot_state { VACANT, WAITING, TAKEN };

/* A stack that waits for Python. */
struct stack {
  _Atomic int state;
  enum b200_owner owner;
  uint64_t bytes;
  int count;
  void *frames[FRAMES];
};

static struct {
  atomic_bool no_unwinder, no_python;
  _Atomic(void *) backtrace;
  struct stack waiting[STACKS_WAITING];
#define MEMBER(name, ret, parameters) ret(*_Atomic name) parameters;
  PYTHON_FUNCTIONS(MEMBER)
#undef MEMBER
} stacks;

/* ---- native */

/* Loaded on the first use only. */
static int unwind(void **frames) {
  if (atomic_load(&stacks.no_unwinder))
    return 0;
  if (!atomic_load(&stacks.backtrace)) {
    void *library = dlopen("libunwind.so.8", RTLD_NOW);
    atomic_store(&stacks.backtrace, library ? b200_real_dlsym(library, "unw_backtrace") : NULL);
    if (!atomic_load(&stacks.backtrace) && !atomic_exchange(&stacks.no_unwinder, true))
      b200_runtime_say("B200OPT_MEMORY_STACKS: libunwind.so.8 cannot be loaded; no stacks");
  }
  int (*backtrace)(void **, int) = (int (*)(void **, int))atomic_load(&stacks.backtrace);
  return backtrace ? backtrace(frames, FRAMES) : 0;
}

/* module+offset, innermost first */
static void print_native(const struct stack *stack, char *text, size_t size) {
  size_t length = 0;
  text[0] = '\0';
  for (int i = 0; i < stack->count && length < size - 160; i++) {
    Dl_info info;
    const char *file = "?";
    uintptr_t base = 0;
    if (dladdr(stack->frames[i], &info) && info.dli_fname) {
      const char *slash = strrchr(info.dli_fname, '/');
      file = slash ? slash + 1 : info.dli_fname;
      base = (uintptr_t)info.dli_fbase;
    }
    length += (size_t)snprintf(text + length, size - length, "%s%.100s+0x%lx", i ? " " : "", file,
                               (unsigned long)((uintptr_t)stack->frames[i] - base));
  }
}

/* `python`: "" without. */
static void put(const struct stack *stack, const char *python) {
  char text[2800];
  struct b200_line line;
  print_native(stack, text, sizeof text);
  b200_line_begin(&line, B200_RECORD_stack);
  b200_line_text(&line, B200_FIELD_stack_owner, b200_owner_names[stack->owner]);
  b200_line_uint(&line, B200_FIELD_stack_bytes, stack->bytes);
  b200_line_text(&line, B200_FIELD_stack_frames, text);
  if (*python)
    b200_line_text(&line, B200_FIELD_stack_python, python);
  b200_runtime_put(&line);
}

/* ---- Python, on its main thread, with the GIL */

static python_object *own(python_object *object) {
  if (!object)
    stacks.PyErr_Clear();
  return object;
}

static void drop(python_object *object) {
  if (object)
    stacks.Py_DecRef(object);
}

/* An attribute that is a text, into `out`. */
static void text_of(python_object *object, const char *name, char *out, size_t size) {
  python_object *value = own(stacks.PyObject_GetAttrString(object, name));
  const char *text = value ? stacks.PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
  if (value && !text)
    stacks.PyErr_Clear(); /* no text, or one that is no UTF-8 */
  snprintf(out, size, "%s", text ? text : "?");
  drop(value);
}

/* file:line:function of each frame, innermost first, separated by blanks. */
static void print_python(char *out, size_t size) {
  size_t length = 0;
  out[0] = '\0';
  python_object *frame = stacks.PyEval_GetFrame(); /* borrowed */
  if (frame)
    stacks.Py_IncRef(frame);
  for (int i = 0; frame && i < PYTHON_FRAMES && length < size - 1; i++) {
    char file[256] = "?", function[100] = "?";
    python_object *code = own(stacks.PyFrame_GetCode(frame));
    if (code) {
      text_of(code, "co_filename", file, sizeof file);
      text_of(code, "co_name", function, sizeof function);
    }
    int written = snprintf(out + length, size - length, "%s%s:%d:%s", i ? " " : "", file,
                           stacks.PyFrame_GetLineNumber(frame), function);
    if ((size_t)written >= size - length) {
      out[length] = '\0'; /* whole frames only */
      length = size;
    } else {
      length += (size_t)written;
    }
    drop(code);
    python_object *back = stacks.PyFrame_GetBack(frame);
    drop(frame);
    frame = back;
  }
  drop(frame);
}

/* An exception is on its way: Python stands in a handler, not where the call was made. */
static bool is_unwinding(void) {
  const void *none = b200_real_dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
  python_object *all[3] = {NULL};
  stacks.PyErr_GetExcInfo(&all[0], &all[1], &all[2]);
  bool handles = all[1] && all[1] != none;
  for (int i = 0; i < 3; i++)
    drop(all[i]);
  return handles;
}

/* A result other than 0 would raise an exception in the job. */
static int when_python_can(void *slot) {
  struct stack *stack = slot;
  int state = WAITING;
  char python[PYTHON_BYTES];
  if (!atomic_compare_exchange_strong(&stack->state, &state, TAKEN))
    return 0;
  python[0] = '\0';
  if (!is_unwinding())
    print_python(python, sizeof python);
  put(stack, python);
  atomic_store(&stack->state, VACANT);
  return 0;
}

/* ---- from the job */

static bool find_python(void) {
  if (atomic_load(&stacks.no_python))
    return false;
  bool found = true;
#define FIND(name, ret, parameters)                                                                                         \
  if (!stacks.name)                                                                                                         \
    stacks.name = (ret(*) parameters)b200_real_dlsym(RTLD_DEFAULT, #name);                                                  \
  found = found && stacks.name;
  PYTHON_FUNCTIONS(FIND)
#undef FIND
  if (!found)
    atomic_store(&stacks.no_python, true);
  return found;
}

/* Requests are served on the main thread only; what another thread has allocated stands elsewhere. */
static bool ask_python(const struct stack *stack) {
  if (syscall(SYS_gettid) != getpid() || !find_python() || !stacks.Py_IsInitialized())
    return false;
  for (int i = 0; i < STACKS_WAITING; i++) {
    struct stack *slot = &stacks.waiting[i];
    int state = VACANT;
    if (!atomic_compare_exchange_strong(&slot->state, &state, TAKEN))
      continue;
    slot->owner = stack->owner;
    slot->bytes = stack->bytes;
    slot->count = stack->count;
    memcpy(slot->frames, stack->frames, sizeof slot->frames);
    atomic_store(&slot->state, WAITING);
    if (stacks.Py_AddPendingCall(when_python_can, slot) == 0)
      return true;
    state = WAITING;
    if (atomic_compare_exchange_strong(&slot->state, &state, TAKEN))
      atomic_store(&slot->state, VACANT);
    return false;
  }
  return false;
}

void b200_stacks_put(enum b200_owner owner, uint64_t bytes) {
  int saved_errno = errno;
  struct stack stack = {.owner = owner, .bytes = bytes};
  stack.count = unwind(stack.frames);
  if (stack.count > 0 && !ask_python(&stack))
    put(&stack, "");
  errno = saved_errno;
}

void b200_stacks_end(void) {
  for (int i = 0; i < STACKS_WAITING; i++) {
    int state = WAITING;
    if (atomic_compare_exchange_strong(&stacks.waiting[i].state, &state, TAKEN))
      put(&stacks.waiting[i], "");
  }
}

void b200_stacks_forget(void) {
  for (int i = 0; i < STACKS_WAITING; i++)
    atomic_store(&stacks.waiting[i].state, VACANT);
}
