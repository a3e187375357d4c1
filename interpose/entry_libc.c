/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library: dlsym, by which CUDA's own libraries find the driver, and write/writev, by which the job prints its loss.
 * C stdio (printf in C programs) writes through an internal call and is not seen; Python does not use it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interpose/entry.h"
#include "policy/loss_scan.h"

/* -------------------------------------------------------------------------------------------------- dlsym */

/* The exported dlsym is a thunk (entry_dlsym_<arch>.S): it calls the filter, and unless that returns a function of ours it
   jumps to the real dlsym with the caller's stack, because RTLD_NEXT depends on the caller's return address. */
void *b200_dlsym_target; /* the real dlsym, for the thunk */
void *b200_dlsym_filter(void *handle, const char *name);

void *b200_dlsym_filter(void *handle, const char *name) {
  if (!__atomic_load_n(&b200_dlsym_target, __ATOMIC_RELAXED))
    __atomic_store_n(&b200_dlsym_target, b200_real_dlsym_function(), __ATOMIC_RELAXED);
  if (name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
    return NULL;
  struct b200_slot *slot = b200_driver_slot_by_name(name);
  if (!slot || b200_runtime_is_off())
    return NULL;
  void *expected = NULL;
  void *real = b200_real_dlsym(handle, name);
  void *ours = b200_driver_export(slot);
  if (!real || real == ours)
    return real;
  atomic_compare_exchange_strong(&slot->real, &expected, real);
  return atomic_load(&slot->real) == real ? ours : NULL; /* a second driver library in the process stays its own */
}

/* -------------------------------------------------------------------------------------------------- output */

extern ssize_t __write(int fd, const void *buffer, size_t count); /* glibc's public alias of write */

enum { STREAMS = 3 /* 0, 1, 2; 0 is never looked at */, LINE_BYTES = B200_LOSS_LINE_BYTES };

/* A line of stdout or stderr that has begun. */
struct pending_line {
  pthread_mutex_t lock;
  size_t length;
  char text[LINE_BYTES];
};

static struct pending_line pending[STREAMS] = {
    {.lock = PTHREAD_MUTEX_INITIALIZER}, {.lock = PTHREAD_MUTEX_INITIALIZER}, {.lock = PTHREAD_MUTEX_INITIALIZER}};

static atomic_bool looking;

void b200_libc_observe(bool on) {
  atomic_store_explicit(&looking, on, memory_order_relaxed);
}

void b200_libc_forget(void) {
  b200_libc_observe(false);
  for (int i = 0; i < STREAMS; i++) {
    pthread_mutex_init(&pending[i].lock, NULL);
    pending[i].length = 0;
  }
}

/* Gathers lines. Never waits: a write that meets another one on the same stream (two threads, or a signal handler in the
   midst of this very function) is not looked at. */
static void look(int fd, const char *bytes, size_t count) {
  struct pending_line *line = &pending[fd];
  if (pthread_mutex_trylock(&line->lock) != 0)
    return;
  while (count > 0) {
    const char *newline = memchr(bytes, '\n', count);
    size_t part = newline ? (size_t)(newline - bytes) : count;
    size_t room = sizeof line->text - line->length;
    memcpy(line->text + line->length, bytes, part < room ? part : room);
    line->length += part < room ? part : room;
    if (!newline)
      break;
    b200_runtime_output(line->text, line->length);
    line->length = 0;
    bytes += part + 1;
    count -= part + 1;
  }
  pthread_mutex_unlock(&line->lock);
}

static bool looks_at(int fd) {
  return (fd == STDOUT_FILENO || fd == STDERR_FILENO) && atomic_load_explicit(&looking, memory_order_relaxed);
}

B200_EXPORT ssize_t write(int fd, const void *buffer, size_t count) {
  ssize_t written = __write(fd, buffer, count);
  if (written > 0 && looks_at(fd)) {
    int saved_errno = errno;
    look(fd, buffer, (size_t)written);
    errno = saved_errno;
  }
  return written;
}

/* As a bare system call: glibc has no second public name for it, and looking one up is not allowed in a signal handler. It
   is no cancellation point that way. */
B200_EXPORT ssize_t writev(int fd, const struct iovec *vector, int count) {
  ssize_t written = syscall(SYS_writev, fd, vector, count);
  if (written <= 0 || !looks_at(fd))
    return written;
  int saved_errno = errno;
  size_t left = (size_t)written;
  for (int i = 0; i < count && left > 0; i++) {
    size_t part = vector[i].iov_len < left ? vector[i].iov_len : left;
    look(fd, vector[i].iov_base, part);
    left -= part;
  }
  errno = saved_errno;
  return written;
}
