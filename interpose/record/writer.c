/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  RING_BYTES = 1 << 20,
  LAST_WORDS_BYTES = 64 << 10, /* kept below the bound for drop and end lines */
  CLOSE_TIMEOUT_S = 1,
  STACK_BYTES = 512 << 10, /* glibc takes static thread-local storage out of it */
};

struct b200_writer {
  int file;
  uint64_t max_bytes;
  void (*tick)(void);
  atomic_bool done; /* set by the thread when it has ended */
  pthread_mutex_t lock;
  pthread_cond_t filled, ended; /* on CLOCK_MONOTONIC */
  bool closing;
  uint64_t head, tail;     /* bytes ever put and taken; the ring holds [tail, head) */
  uint64_t accepted_bytes; /* towards max_bytes */
  uint64_t dropped[B200_RECORD_COUNT], reported[B200_RECORD_COUNT];
  char ring[RING_BYTES];
};

/* Goes around our own hook of write(). A short or interrupted write is continued; a failing file takes the rest down with
   it, which the reader sees as a log without an end. */
static void write_all(int file, const char *bytes, size_t count) {
  while (count > 0) {
    long written = syscall(SYS_write, file, bytes, count);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return;
    bytes += written;
    count -= (size_t)written;
  }
}

/* Next tick: after 5 % of the log's age, between a second and a minute. */
static void set_next_tick(struct timespec *next, time_t opened_s) {
  clock_gettime(CLOCK_MONOTONIC, next);
  time_t pause_s = (next->tv_sec - opened_s) / 20;
  next->tv_sec += pause_s < 1 ? 1 : pause_s > 60 ? 60 : pause_s;
}

static void *drain(void *argument) {
  struct b200_writer *writer = argument;
  struct timespec next;
  clock_gettime(CLOCK_MONOTONIC, &next);
  time_t opened_s = next.tv_sec;
  set_next_tick(&next, opened_s);
  pthread_mutex_lock(&writer->lock);
  for (;;) {
    int waited = 0;
    while (writer->head == writer->tail && !writer->closing && waited == 0)
      waited = pthread_cond_timedwait(&writer->filled, &writer->lock, &next);
    if (waited == ETIMEDOUT) {
      pthread_mutex_unlock(&writer->lock);
      writer->tick();
      set_next_tick(&next, opened_s);
      pthread_mutex_lock(&writer->lock);
      continue;
    }
    if (writer->head == writer->tail)
      break;
    size_t begin = (size_t)(writer->tail % RING_BYTES);
    size_t count = (size_t)(writer->head - writer->tail);
    if (count > RING_BYTES - begin)
      count = RING_BYTES - begin;
    pthread_mutex_unlock(&writer->lock);
    write_all(writer->file, writer->ring + begin, count);
    pthread_mutex_lock(&writer->lock);
    writer->tail += count;
  }
  atomic_store(&writer->done, true);
  pthread_cond_signal(&writer->ended);
  pthread_mutex_unlock(&writer->lock);
  return NULL;
}

static int start_thread(struct b200_writer *writer) {
  sigset_t all, before;
  pthread_attr_t attributes;
  pthread_t thread;
  sigfillset(&all);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, &attributes, drain, writer);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return error;
}

struct b200_writer *b200_writer_open(const char *path, uint64_t max_bytes, void (*tick)(void),
                                     const struct b200_line *header) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0)
    return NULL;
  struct b200_writer *writer = mmap(NULL, sizeof *writer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (writer == MAP_FAILED)
    goto close_file;
  writer->file = file;
  writer->max_bytes = max_bytes;
  writer->tick = tick;
  writer->accepted_bytes = header->length;
  write_all(file, header->text, header->length);
  pthread_mutex_init(&writer->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&writer->filled, &monotonic);
  pthread_cond_init(&writer->ended, &monotonic);
  pthread_condattr_destroy(&monotonic);
  int error = start_thread(writer);
  if (error == 0)
    return writer;
  errno = error;
  munmap(writer, sizeof *writer);
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
  pthread_cond_signal(&writer->filled);
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

void b200_writer_put(struct b200_writer *writer, const struct b200_line *line) {
  pthread_mutex_lock(&writer->lock);
  uint64_t bound = line->type == B200_RECORD_end ? writer->max_bytes : writer->max_bytes - LAST_WORDS_BYTES;
  bool room = !writer->closing && writer->accepted_bytes + line->length <= bound;
  if (line->type == B200_RECORD_end)
    append_drops(writer);
  if (!room || !append(writer, line->text, line->length))
    writer->dropped[line->type]++;
  pthread_mutex_unlock(&writer->lock);
}

void b200_writer_close(struct b200_writer *writer) {
  struct timespec limit;
  clock_gettime(CLOCK_MONOTONIC, &limit);
  limit.tv_sec += CLOSE_TIMEOUT_S;
  pthread_mutex_lock(&writer->lock);
  writer->closing = true;
  pthread_cond_signal(&writer->filled);
  while (!atomic_load(&writer->done))
    if (pthread_cond_timedwait(&writer->ended, &writer->lock, &limit) != 0)
      break;
  pthread_mutex_unlock(&writer->lock);
}

void b200_writer_abandon(struct b200_writer *writer) {
  close(writer->file);
  munmap(writer, sizeof *writer);
}
