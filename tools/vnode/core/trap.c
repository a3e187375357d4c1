/* SPDX-License-Identifier: Apache-2.0 */
/* What the node says, and how it stops. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* Keys that were said once; more than fit are said again rather than lost. */
enum { MAX_KEYS = 1024 };
static char *said[MAX_KEYS];
static size_t said_count;
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t unhandled_count;

static void say_va(const char *format, va_list arguments) {
  char line[1024] = "b200vnode: ";
  size_t used = strlen(line);
  int length = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
  used += length < 0 ? 0 : (size_t)length;
  if (used > sizeof line - 2)
    used = sizeof line - 2;
  line[used++] = '\n';
  ssize_t ignored = write(STDERR_FILENO, line, used);
  (void)ignored;
}

void vnode_say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_va(format, arguments);
  va_end(arguments);
}

static bool first_time(const char *key) {
  bool first = true;
  pthread_mutex_lock(&said_lock);
  for (size_t i = 0; i < said_count && first; i++)
    first = strcmp(said[i], key) != 0;
  if (first && said_count < MAX_KEYS && (said[said_count] = strdup(key)))
    said_count++;
  pthread_mutex_unlock(&said_lock);
  return first;
}

void vnode_say_once(const char *key, const char *format, ...) {
  if (!first_time(key))
    return;
  va_list arguments;
  va_start(arguments, format);
  say_va(format, arguments);
  va_end(arguments);
}

_Noreturn void vnode_trap(const char *function) {
  vnode_say(
      "%s is not implemented by the virtual node; the job cannot go on. Leave out the feature that calls it, or run on "
      "a real GPU",
      function);
  abort();
}

void vnode_unhandled_kernel(const char *kernel) {
  atomic_fetch_add_explicit(&unhandled_count, 1, memory_order_relaxed);
  if (vnode_config()->unhandled_fatal) {
    vnode_say(
        "kernel without a CPU implementation: %s; its result would be wrong. Custom CUDA, Triton and CUTLASS kernels do "
        "not run here; B200OPT_VNODE_UNHANDLED=warn skips them",
        kernel);
    abort();
  }
  vnode_say_once(kernel, "kernel without a CPU implementation skipped, numbers are wrong from here: %s", kernel);
}

void vnode_skipped_kernel(void) {
  atomic_fetch_add_explicit(&unhandled_count, 1, memory_order_relaxed);
  vnode_say_once("skipped kernels", "B200OPT_VNODE_KERNELS=skip: kernels compute nothing, all results are without meaning");
}

uint64_t vnode_unhandled_count(void) {
  return atomic_load_explicit(&unhandled_count, memory_order_relaxed);
}
