/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  RING_BYTES = 1 << 20,
  RESERVE_BYTES = 384 << 10, /* kept below the bound for the last counts, drop and end lines */
  HIGH_DESCRIPTOR = 500,     /* out of the way of programs that count on low numbers */
  WAIT_S = 1,                /* for a file system that hangs: at the start and at the end */
  STACK_BYTES = 512 << 10,   /* glibc takes static thread-local storage out of it */
};

struct b200_writer {
  int file;
  dev_t device; /* of the file: a program may close all descriptors and open its own under our number */
  ino_t inode;
  bool counts_links; /* there are file systems that always say 0 */
  uint64_t max_bytes;
  struct b200_writer_hooks hooks;
  sem_t work;          /* posted when there is something to do; the one primitive that a signal handler may use */
  atomic_bool stopped; /* the thread has done all it will */
  sigset_t signals;    /* mask of the thread that opened */
  atomic_bool alone;   /* … because all others of the process have ended: who closes writes what is left */
  atomic_bool failed;  /* the file is gone or refuses: nothing more is written, and the log has no end */
  atomic_ullong written;
  pthread_mutex_t lock;
  bool closing, last_words;
  uint64_t head, tail;     /* bytes ever put and taken; the ring holds [tail, head) */
  uint64_t accepted_bytes; /* towards max_bytes */
  uint64_t dropped[B200_RECORD_COUNT], reported[B200_RECORD_COUNT];
  char ring[RING_BYTES];
};

/* 0, or why it is no place to write to: EBADF, not ours any more; ENOENT, removed. */
static int check_file(const struct b200_writer *writer) {
  struct stat now;
  if (fstat(writer->file, &now) != 0 || now.st_dev != writer->device || now.st_ino != writer->inode)
    return EBADF;
  return writer->counts_links && now.st_nlink == 0 ? ENOENT : 0;
}

/* Goes around our own hook of write(). */
static bool write_all(const struct b200_writer *writer, const char *bytes, size_t count) {
  while (count > 0) {
    int problem = check_file(writer);
    long written = problem == 0 ? syscall(SYS_write, writer->file, bytes, count) : -1;
    if (problem != 0)
      errno = problem;
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return false;
    bytes += written;
    count -= (size_t)written;
  }
  return true;
}

/* Next tick: after 5 % of the log's age, between a second and a minute. */
static void set_next_tick(struct timespec *next, time_t opened_s) {
  clock_gettime(CLOCK_MONOTONIC, next);
  time_t pause_s = (next->tv_sec - opened_s) / 20;
  next->tv_sec += pause_s < 1 ? 1 : pause_s > 60 ? 60 : pause_s;
}

static void write_lines(struct b200_writer *writer, const char *bytes, size_t count) {
  if (atomic_load(&writer->failed) || write_all(writer, bytes, count))
    return;
  int error = errno;
  atomic_store(&writer->failed, true);
  if (writer->hooks.lost)
    writer->hooks.lost(error);
}

/* Writes what the ring holds; true when it was closing and is empty. */
static bool empty_ring(struct b200_writer *writer) {
  pthread_mutex_lock(&writer->lock);
  while (writer->head != writer->tail) {
    size_t begin = (size_t)(writer->tail % RING_BYTES);
    size_t count = (size_t)(writer->head - writer->tail);
    if (count > RING_BYTES - begin)
      count = RING_BYTES - begin;
    pthread_mutex_unlock(&writer->lock);
    write_lines(writer, writer->ring + begin, count);
    pthread_mutex_lock(&writer->lock);
    writer->tail += count;
    atomic_store(&writer->written, writer->tail);
  }
  bool closed = writer->closing;
  pthread_mutex_unlock(&writer->lock);
  return closed;
}

/* The main thread has ended by pthread_exit(), as a zombie that still counts, and no thread but this is left: the process
   ends with its last thread, and must not wait for ours. ALMOST: the main thread has ended. */
enum company { SHARED, ALMOST, ALONE };
static enum company count_threads(void) {
  enum { AFTER_STATE = 16 }; /* fields between the state and the number of threads */
  char text[1024], *at;
  int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0)
    close(file);
  text[length > 0 ? length : 0] = '\0';
  at = strrchr(text, ')'); /* a program's name may hold anything */
  if (!at || at[1] != ' ' || at[2] != 'Z')
    return SHARED;
  at += 2;
  for (int i = 0; at && i <= AFTER_STATE; i++)
    at = strchr(at + 1, ' ');
  return at && strtol(at, NULL, 10) == 2 ? ALONE : ALMOST;
}

static bool is_earlier(const struct timespec *one, const struct timespec *other) {
  return one->tv_sec < other->tv_sec || (one->tv_sec == other->tv_sec && one->tv_nsec < other->tv_nsec);
}

/* Sets the time of the next beat; false: there is none. */
static bool set_next_beat(const struct b200_writer *writer, struct timespec *next, bool first) {
  unsigned pause_s = !writer->hooks.beat ? 0 : first ? 1 : writer->hooks.beat();
  clock_gettime(CLOCK_MONOTONIC, next);
  next->tv_sec += (time_t)pause_s;
  return pause_s > 0;
}

/* When to look again, at `next`; whether this is the last thread. */
static bool look_around(struct timespec *next) {
  enum { OFTEN_NS = 20000000 };
  enum company company = count_threads();
  clock_gettime(CLOCK_MONOTONIC, next);
  if (company == SHARED) {
    next->tv_sec++;
  } else if ((next->tv_nsec += OFTEN_NS) >= 1000000000) {
    next->tv_sec++;
    next->tv_nsec -= 1000000000;
  }
  return company == ALONE;
}

static void write_last(struct b200_writer *writer) {
  writer->hooks.woken(); /* once more after the last words */
  empty_ring(writer);
  atomic_store(&writer->stopped, true);
}

static void *drain(void *argument) {
  struct b200_writer *writer = argument;
  struct timespec tick, beat, look;
  clock_gettime(CLOCK_MONOTONIC, &tick);
  time_t opened_s = tick.tv_sec;
  set_next_tick(&tick, opened_s);
  bool beats = set_next_beat(writer, &beat, true);
  bool alone = look_around(&look);
  do {
    bool beat_first = beats && is_earlier(&beat, &tick);
    const struct timespec *hook = beat_first ? &beat : &tick;
    bool look_first = is_earlier(&look, hook);
    bool timed_out = sem_clockwait(&writer->work, CLOCK_MONOTONIC, look_first ? &look : hook) != 0 && errno == ETIMEDOUT;
    if (timed_out && look_first) {
      alone = look_around(&look);
      continue;
    }
    writer->hooks.woken();
    if (timed_out && beat_first) {
      beats = set_next_beat(writer, &beat, false);
    } else if (timed_out) {
      writer->hooks.tick();
      set_next_tick(&tick, opened_s);
    }
  } while (!empty_ring(writer) && !alone);
  if (alone) { /* the C library calls exit() from here, as from the last thread of any process */
    atomic_store(&writer->alone, true);
    pthread_sigmask(SIG_SETMASK, &writer->signals, NULL);
  } else {
    write_last(writer);
  }
  return NULL;
}

static int start_thread(struct b200_writer *writer) {
  sigset_t all;
  pthread_attr_t attributes;
  pthread_t thread;
  sigfillset(&all);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_sigmask(SIG_SETMASK, &all, &writer->signals);
  int error = pthread_create(&thread, &attributes, drain, writer);
  pthread_sigmask(SIG_SETMASK, &writer->signals, NULL);
  pthread_attr_destroy(&attributes);
  return error;
}

static bool has_header(struct b200_writer *writer) {
  return atomic_load(&writer->written) > 0 || atomic_load(&writer->failed);
}

static bool has_stopped(struct b200_writer *writer) {
  return atomic_load(&writer->stopped);
}

static void wait_until(bool (*holds)(struct b200_writer *writer), struct b200_writer *writer) {
  struct timespec pause = {.tv_nsec = 1000000};
  for (int i = 0; i < WAIT_S * 1000 && !holds(writer); i++)
    nanosleep(&pause, NULL);
}

struct b200_writer *b200_writer_open(const char *path, uint64_t max_bytes, const struct b200_writer_hooks *hooks,
                                     const struct b200_line *header) {
  struct stat made;
  int low = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (low < 0)
    return NULL;
  int file = fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
  if (file < 0)
    file = low;
  else
    close(low);
  struct b200_writer *writer = mmap(NULL, sizeof *writer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (writer == MAP_FAILED || fstat(file, &made) != 0)
    goto close_file;
  writer->file = file;
  writer->device = made.st_dev;
  writer->inode = made.st_ino;
  writer->counts_links = made.st_nlink > 0;
  writer->max_bytes = max_bytes;
  writer->hooks = *hooks;
  pthread_mutex_init(&writer->lock, NULL);
  sem_init(&writer->work, 0, 0);
  int error = start_thread(writer);
  if (error != 0) {
    errno = error;
    munmap(writer, sizeof *writer);
    goto close_file;
  }
  b200_writer_put(writer, header, false);
  wait_until(has_header, writer);
  return writer;
close_file:
  close(file);
  return NULL;
}

/* pre: the lock is held. False: no room. */
static bool append(struct b200_writer *writer, const char *bytes, size_t count) {
  if (RING_BYTES - (writer->head - writer->tail) < count)
    return false;
  size_t begin = (size_t)(writer->head % RING_BYTES);
  size_t first = count < RING_BYTES - begin ? count : RING_BYTES - begin;
  memcpy(writer->ring + begin, bytes, first);
  memcpy(writer->ring, bytes + first, count - first);
  writer->head += count;
  writer->accepted_bytes += count;
  return true;
}

/* pre: the lock is held. Says what was dropped since it was last said. */
static void append_drops(struct b200_writer *writer) {
  for (int type = 0; type < B200_RECORD_COUNT; type++) {
    if (writer->dropped[type] == writer->reported[type])
      continue;
    struct b200_line line;
    b200_line_begin(&line, B200_RECORD_drop);
    b200_line_text(&line, B200_FIELD_drop_what, b200_record_names[type]);
    b200_line_uint(&line, B200_FIELD_drop_count, writer->dropped[type] - writer->reported[type]);
    b200_line_end(&line);
    if (append(writer, line.text, line.length))
      writer->reported[type] = writer->dropped[type];
  }
}

bool b200_writer_put(struct b200_writer *writer, const struct b200_line *line, bool comes_again) {
  pthread_mutex_lock(&writer->lock);
  uint64_t bound = writer->last_words ? writer->max_bytes : writer->max_bytes - RESERVE_BYTES;
  if (line->type == B200_RECORD_end)
    append_drops(writer);
  bool put = !writer->closing && writer->accepted_bytes + line->length <= bound && append(writer, line->text, line->length);
  if (!put && !comes_again)
    writer->dropped[line->type]++;
  pthread_mutex_unlock(&writer->lock);
  if (put)
    b200_writer_wake(writer);
  return put;
}

void b200_writer_wake(struct b200_writer *writer) {
  int saved_errno = errno;
  sem_post(&writer->work);
  errno = saved_errno;
}

bool b200_writer_last_words(struct b200_writer *writer) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += WAIT_S;
  if (pthread_mutex_timedlock(&writer->lock, &limit) != 0)
    return false;
  writer->last_words = true;
  pthread_mutex_unlock(&writer->lock);
  return true;
}

void b200_writer_close(struct b200_writer *writer) {
  pthread_mutex_lock(&writer->lock);
  writer->closing = true;
  pthread_mutex_unlock(&writer->lock);
  if (atomic_load(&writer->alone))
    write_last(writer);
  b200_writer_wake(writer);
  wait_until(has_stopped, writer);
}

void b200_writer_abandon(struct b200_writer *writer) {
  if (check_file(writer) != EBADF)
    close(writer->file);
  munmap(writer, sizeof *writer);
}
