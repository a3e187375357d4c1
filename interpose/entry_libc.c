/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library: dlsym, by which CUDA's own libraries find the driver, and write/writev, by which the job prints its loss.
 * C stdio (printf in C programs) writes through an internal call and is not seen; Python does not use it.
 */
#include <dlfcn.h>
#include <errno.h>
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

/*
 * write() and writev() may be called from anywhere, signal handlers and threads with tiny stacks included: all that happens
 * here is that bytes are copied and the writer's thread is woken. It looks at them later.
 */

extern ssize_t __write(int fd, const void *buffer, size_t count); /* glibc's public alias of write */

enum {
  STREAMS = 3, /* 0, 1, 2; 0 is never looked at */
  PIECES = 256,
  PIECE_BYTES = 248,
  LINE_BYTES = B200_LOSS_LINE_BYTES,
};

struct piece {
  _Atomic uint32_t ready; /* ordinal of the piece, from 1, once its bytes are there */
  uint32_t length;
  char bytes[PIECE_BYTES];
};

/* What has been written to stdout or stderr and was not looked at yet: a ring of pieces, without a lock, because a signal
   handler may write while its own thread is writing. Writers reserve pieces by advancing `reserved`; the one that looks
   takes them in order, as far as they are ready. */
struct stream {
  _Atomic uint32_t reserved, taken;
  struct piece pieces[PIECES];
  char line[LINE_BYTES]; /* a line that has begun; only the one that looks */
  size_t line_length;
};

static struct stream streams[STREAMS];
static atomic_bool looking;
static _Atomic(void *) next_write, next_writev; /* found once when the library is loaded, in the chain of preloads */

__attribute__((constructor)) static void find_next(void) {
  int saved_errno = errno;
  atomic_store(&next_write, b200_real_dlsym(RTLD_NEXT, "write"));
  atomic_store(&next_writev, b200_real_dlsym(RTLD_NEXT, "writev"));
  errno = saved_errno;
}

void b200_libc_observe(bool on) {
  atomic_store_explicit(&looking, on, memory_order_relaxed);
}

void b200_libc_forget(void) {
  b200_libc_observe(false);
  memset(streams, 0, sizeof streams);
}

/* Never waits: what comes faster than it can be looked at is not looked at. */
static void keep(int fd, const char *bytes, size_t count) {
  struct stream *stream = &streams[fd];
  size_t pieces = (count + PIECE_BYTES - 1) / PIECE_BYTES;
  uint32_t first = atomic_load(&stream->reserved);
  do {
    if (pieces > PIECES || first + (uint32_t)pieces - atomic_load(&stream->taken) > PIECES)
      return;
  } while (!atomic_compare_exchange_weak(&stream->reserved, &first, first + (uint32_t)pieces));
  for (uint32_t i = 0; i < pieces; i++) {
    struct piece *piece = &stream->pieces[(first + i) % PIECES];
    size_t left = count - i * PIECE_BYTES;
    piece->length = (uint32_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
    memcpy(piece->bytes, bytes + i * PIECE_BYTES, piece->length);
    atomic_store_explicit(&piece->ready, first + i + 1, memory_order_release);
  }
}

/* A progress bar ends its lines with a carriage return. */
static void split(struct stream *stream, const char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (bytes[i] == '\n' || bytes[i] == '\r') {
      b200_runtime_output(stream->line, stream->line_length);
      stream->line_length = 0;
    } else if (stream->line_length < sizeof stream->line) {
      stream->line[stream->line_length++] = bytes[i];
    }
  }
}

void b200_libc_look(bool last) {
  for (int fd = STDOUT_FILENO; fd < STREAMS; fd++) {
    struct stream *stream = &streams[fd];
    for (uint32_t next = atomic_load(&stream->taken);; next++) {
      struct piece *piece = &stream->pieces[next % PIECES];
      if (atomic_load_explicit(&piece->ready, memory_order_acquire) != next + 1)
        break;
      split(stream, piece->bytes, piece->length);
      atomic_store(&stream->taken, next + 1);
    }
    if (last)
      split(stream, "\n", 1);
  }
}

bool b200_libc_line_is_open(int fd) {
  return (fd == STDOUT_FILENO || fd == STDERR_FILENO) && streams[fd].line_length > 0;
}

static bool looks_at(int fd) {
  return (fd == STDOUT_FILENO || fd == STDERR_FILENO) && atomic_load_explicit(&looking, memory_order_relaxed);
}

/* A line without "loss" can wait for the next tick, unless the ring gets full. */
static void wake_for(int fd, const char *bytes, size_t count) {
  uint32_t waiting = atomic_load(&streams[fd].reserved) - atomic_load(&streams[fd].taken);
  if (waiting > PIECES / 2 || memmem(bytes, count, "loss", 4))
    b200_runtime_wake();
}

B200_EXPORT ssize_t write(int fd, const void *buffer, size_t count) {
  void *next = atomic_load_explicit(&next_write, memory_order_relaxed);
  ssize_t written = next ? B200_TYPED(write, next)(fd, buffer, count) : __write(fd, buffer, count);
  if (written > 0 && looks_at(fd)) {
    int saved_errno = errno;
    keep(fd, buffer, (size_t)written);
    wake_for(fd, buffer, (size_t)written);
    errno = saved_errno;
  }
  return written;
}

/* Before the constructor has run there is only the bare system call. */
B200_EXPORT ssize_t writev(int fd, const struct iovec *vector, int count) {
  void *next = atomic_load_explicit(&next_writev, memory_order_relaxed);
  ssize_t written = next ? B200_TYPED(writev, next)(fd, vector, count) : syscall(SYS_writev, fd, vector, count);
  if (written <= 0 || !looks_at(fd))
    return written;
  int saved_errno = errno;
  size_t left = (size_t)written;
  for (int i = 0; i < count && left > 0; i++) {
    size_t part = vector[i].iov_len < left ? vector[i].iov_len : left;
    keep(fd, vector[i].iov_base, part);
    wake_for(fd, vector[i].iov_base, part);
    left -= part;
  }
  errno = saved_errno;
  return written;
}
