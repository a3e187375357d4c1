/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/python_hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "interpose/real.h"

/* As Python's stable interface has them (Include/methodobject.h; since 3.2). */
typedef struct python_object python_object;
struct python_method {
  const char *name;
  python_object *(*function)(python_object *self, python_object *arguments);
  int flags;
  const char *doc;
};
enum { METH_VARARGS = 1 };

/* What is used of Python: X(name, return type, parameters). */
#define PYTHON_FUNCTIONS(X)                                                                                                 \
  X(Py_IsInitialized, int, (void))                                                                                          \
  X(Py_AddPendingCall, int, (int (*)(void *), void *))                                                                      \
  X(PySys_GetObject, python_object *, (const char *))                                                                       \
  X(PyDict_GetItemString, python_object *, (python_object *, const char *))                                                 \
  X(PyObject_GetAttrString, python_object *, (python_object *, const char *))                                               \
  X(PyObject_CallFunctionObjArgs, python_object *, (python_object *, ...))                                                  \
  X(PyCFunction_NewEx, python_object *, (struct python_method *, python_object *, python_object *))                         \
  X(PyTuple_GetItem, python_object *, (python_object *, long))                                                              \
  X(PyErr_Clear, void, (void))                                                                                              \
  X(Py_IncRef, void, (python_object *))                                                                                     \
  X(Py_DecRef, void, (python_object *))

static struct {
#define MEMBER(name, ret, parameters) ret(*name) parameters;
  PYTHON_FUNCTIONS(MEMBER)
#undef MEMBER
  python_object *none;
} python;

enum hook_state { NOT_TRIED, ASKED, COUNTING, GIVEN_UP };
enum {
  TRIES = 1000, /* operations between which PyTorch may be imported; an import comes before the first of them */
  ROUND = 8
}; /* optimizers that are told apart; more of them only share a round with these */

static struct {
  _Atomic int state;
  atomic_uint tries;
  void (*say)(const char *text);
  _Atomic uint64_t steps;
  /* The optimizers that have stepped in this round. Only with the GIL held, or, without one, by the thread that steps. */
  _Atomic(const void *) round[ROUND];
} hook;

/* ------------------------------------------------------------------------------------------------ in Python's thread */

/* An optimizer that steps again begins a new round. */
static void count_step(const void *optimizer) {
  int i = 0;
  for (; i < ROUND; i++) {
    const void *member = atomic_load_explicit(&hook.round[i], memory_order_relaxed);
    if (!member)
      break;
    if (member != optimizer)
      continue;
    for (int j = 0; j < ROUND; j++)
      atomic_store_explicit(&hook.round[j], NULL, memory_order_relaxed);
    i = 0;
    break;
  }
  if (i < ROUND)
    atomic_store_explicit(&hook.round[i], optimizer, memory_order_relaxed);
  if (i == 0)
    atomic_fetch_add_explicit(&hook.steps, 1, memory_order_relaxed);
}

/* hook(optimizer, args, kwargs) */
static python_object *optimizer_stepped(python_object *self, python_object *arguments) {
  (void)self;
  python_object *optimizer = python.PyTuple_GetItem(arguments, 0);
  if (!optimizer)
    python.PyErr_Clear();
  count_step(optimizer ? (const void *)optimizer : &hook);
  python.Py_IncRef(python.none);
  return python.none;
}

static bool register_hook(python_object *module) {
  static struct python_method method = {"b200opt_optimizer_stepped", optimizer_stepped, METH_VARARGS,
                                        "Counts the steps of optimizers."};
  python_object *handle = NULL;
  python_object *ask = python.PyObject_GetAttrString(module, "register_optimizer_step_post_hook");
  python_object *function = python.PyCFunction_NewEx(&method, NULL, NULL);
  if (ask && function)
    handle = python.PyObject_CallFunctionObjArgs(ask, function, NULL);
  bool done = handle != NULL;
  if (!done)
    python.PyErr_Clear();
  python_object *owned[] = {handle, function, ask};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
    if (owned[i])
      python.Py_DecRef(owned[i]);
  return done;
}

/* Called by Python, which has the GIL. A result other than 0 would raise an exception in the job. */
static int when_python_can(void *unused) {
  (void)unused;
  python_object *modules = python.PySys_GetObject("modules");
  python_object *module = modules ? python.PyDict_GetItemString(modules, "torch.optim.optimizer") : NULL;
  if (!module) {
    atomic_store(&hook.state, NOT_TRIED); /* not imported yet */
    return 0;
  }
  bool done = register_hook(module);
  atomic_store(&hook.state, done ? COUNTING : GIVEN_UP);
  if (!done)
    hook.say("B200OPT_OPTIMIZER_HOOK: register_optimizer_step_post_hook of this PyTorch is missing or failed; no steps are "
             "counted");
  return 0;
}

/* -------------------------------------------------------------------------------------------------- from the job */

static bool find_python(void) {
  bool found = true;
#define FIND(name, ret, parameters)                                                                                         \
  python.name = (ret(*) parameters)b200_real_dlsym(RTLD_DEFAULT, #name);                                                    \
  found = found && python.name;
  PYTHON_FUNCTIONS(FIND)
#undef FIND
  python.none = b200_real_dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
  return found && python.none;
}

void b200_python_hook_try(void (*say)(const char *text)) {
  int state = NOT_TRIED;
  int saved_errno = errno;
  if (atomic_load_explicit(&hook.state, memory_order_relaxed) != NOT_TRIED ||
      !atomic_compare_exchange_strong(&hook.state, &state, ASKED))
    return;
  hook.say = say;
  if (atomic_fetch_add(&hook.tries, 1) >= TRIES || !find_python())
    atomic_store(&hook.state, GIVEN_UP);
  else if (!python.Py_IsInitialized() || python.Py_AddPendingCall(when_python_can, NULL) != 0)
    atomic_store(&hook.state, NOT_TRIED);
  errno = saved_errno;
}

uint64_t b200_python_hook_steps(void) {
  return atomic_load_explicit(&hook.steps, memory_order_relaxed);
}
