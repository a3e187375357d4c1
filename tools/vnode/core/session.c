/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory that all processes of a session use, in POSIX shared memory: one slot per process, named by pid and start
 * time, so that the share of a process that died without a word (SIGKILL, os._exit) is taken back by the next one that
 * looks. Guarded by flock() on the object, which the kernel drops with its holder. A fresh object is all zeros, which is its
 * valid empty state. The last process that ends in order removes the object.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_PROCESSES = 256 };

struct slot {
  int64_t pid; /* 0: free */
  uint64_t start;
  uint64_t used_bytes[VNODE_MAX_DEVICES];
};

struct shared {
  uint32_t layout_bytes; /* sizeof (struct shared); 0 in a fresh object */
  uint32_t closed;       /* its name is gone: open again */
  struct slot slots[MAX_PROCESSES];
};

static struct shared *shared;
static struct slot *own;
static int shared_fd = -1;
static char shared_name[160];
static bool ended; /* this process gave its slot back: nothing more is counted */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t vnode_process_start(pid_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0)
    return 0;
  text[length] = 0;
  char *at = strrchr(text, ')'); /* the name may hold blanks and brackets */
  char state = 0;
  unsigned long long start = 0;
  if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
                    &start) != 2)
    return 0;
  return state == 'Z' || state == 'X' ? 0 : start;
}

static void make_name(void) {
  /* A name must not hold '/' and is limited by NAME_MAX; FNV-1a keeps long or odd session names apart. */
  uint64_t hash = 14695981039346656037u;
  char safe[64] = "";
  const char *session = vnode_config()->session;
  for (size_t i = 0; session[i]; i++) {
    hash = (hash ^ (unsigned char)session[i]) * 1099511628211u;
    if (i < sizeof safe - 1)
      safe[i] = session[i] == '/' ? '_' : session[i];
  }
  snprintf(shared_name, sizeof shared_name, "/b200vnode.%ld.%s.%08x", (long)getuid(), safe, (unsigned)(hash ^ hash >> 32));
}

static bool open_object(void) {
  shared_fd = shm_open(shared_name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (shared_fd < 0 || flock(shared_fd, LOCK_EX))
    return false;
  struct stat status;
  if (fstat(shared_fd, &status) || (status.st_size < (off_t)sizeof *shared && ftruncate(shared_fd, sizeof *shared)))
    return false;
  void *at = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
  shared = at == MAP_FAILED ? NULL : at;
  return shared;
}

/* Removes what sessions left whose last process was killed. A session that is in use is locked or has a live process. */
static void sweep_one(const char *name) {
  int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
  struct stat status;
  if (fd < 0)
    return;
  if (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &status) && status.st_size == (off_t)sizeof(struct shared)) {
    struct shared *old = mmap(NULL, sizeof *old, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (old != MAP_FAILED) {
      bool live = old->layout_bytes != sizeof *old;
      for (const struct slot *slot = old->slots; slot < old->slots + MAX_PROCESSES && !live; slot++)
        live = slot->pid && vnode_process_start((pid_t)slot->pid) == slot->start;
      if (!live) {
        old->closed = 1; /* whoever opened it just now opens again */
        shm_unlink(name);
      }
      munmap(old, sizeof *old);
    }
  }
  close(fd);
}

static void sweep(void) {
  char prefix[64];
  int length = snprintf(prefix, sizeof prefix, "b200vnode.%ld.", (long)getuid());
  DIR *folder = opendir("/dev/shm"); /* where glibc on Linux keeps the objects */
  for (const struct dirent *entry; folder && (entry = readdir(folder));)
    if (!strncmp(entry->d_name, prefix, (size_t)length) && strcmp(entry->d_name, shared_name + 1)) {
      char name[300];
      snprintf(name, sizeof name, "/%s", entry->d_name);
      sweep_one(name);
    }
  if (folder)
    closedir(folder);
}

static void close_object(void) {
  if (shared)
    munmap(shared, sizeof *shared);
  if (shared_fd >= 0)
    close(shared_fd); /* drops the flock */
  shared = NULL;
  shared_fd = -1;
}

static void reap(void) {
  for (struct slot *slot = shared->slots; slot < shared->slots + MAX_PROCESSES; slot++)
    if (slot->pid && slot != own && vnode_process_start((pid_t)slot->pid) != slot->start)
      memset(slot, 0, sizeof *slot);
}

static enum vnode_status take_slot(void) {
  reap();
  for (struct slot *slot = shared->slots; slot < shared->slots + MAX_PROCESSES; slot++)
    if (!slot->pid) {
      own = slot;
      own->pid = getpid();
      own->start = vnode_process_start(getpid());
      return VNODE_OK;
    }
  vnode_say("more than %d processes share the session %s", MAX_PROCESSES, vnode_config()->session);
  return VNODE_SYSTEM;
}

/* With `lock` held. On success the flock is held. */
static enum vnode_status enter(void) {
  if (ended)
    return VNODE_NOT_INITIALIZED;
  if (shared)
    return flock(shared_fd, LOCK_EX) ? VNODE_SYSTEM : VNODE_OK;
  make_name();
  for (;;) {
    if (!open_object()) {
      vnode_say("shared memory object %s: %s", shared_name, strerror(errno));
      close_object();
      return VNODE_SYSTEM;
    }
    if (!shared->closed)
      break;
    struct stat status; /* who closed it held the lock that we hold now: a name that is still there was left by a kill */
    if (!fstat(shared_fd, &status) && status.st_nlink > 0)
      shm_unlink(shared_name);
    close_object();
  }
  if (shared->layout_bytes && shared->layout_bytes != sizeof *shared) {
    vnode_say("session %s is in use by another version of the virtual node", vnode_config()->session);
    close_object();
    return VNODE_SYSTEM;
  }
  bool fresh = !shared->layout_bytes;
  shared->layout_bytes = sizeof *shared;
  enum vnode_status status = take_slot();
  if (status)
    close_object();
  else if (fresh)
    sweep();
  return status;
}

static void leave(void) {
  flock(shared_fd, LOCK_UN);
}

static uint64_t sum(int device) {
  uint64_t bytes = 0;
  for (const struct slot *slot = shared->slots; slot < shared->slots + MAX_PROCESSES; slot++)
    bytes += slot->used_bytes[device];
  return bytes;
}

enum vnode_status vnode_session_charge(int device, uint64_t bytes) {
  uint64_t total = vnode_gpu()->memory_bytes;
  pthread_mutex_lock(&lock);
  enum vnode_status status = enter();
  if (!status) {
    if (bytes > total || sum(device) > total - bytes)
      reap();
    if (bytes > total || sum(device) > total - bytes)
      status = VNODE_NO_MEMORY;
    else
      own->used_bytes[device] += bytes;
    leave();
  }
  pthread_mutex_unlock(&lock);
  return status;
}

void vnode_session_uncharge(int device, uint64_t bytes) {
  pthread_mutex_lock(&lock);
  if (shared && !enter()) {
    own->used_bytes[device] -= bytes;
    leave();
  }
  pthread_mutex_unlock(&lock);
}

enum vnode_status vnode_session_used(int device, uint64_t *bytes) {
  pthread_mutex_lock(&lock);
  enum vnode_status status = enter();
  if (!status) {
    reap();
    *bytes = sum(device);
    leave();
  }
  pthread_mutex_unlock(&lock);
  return status;
}

enum vnode_status vnode_memory_processes(int device, struct vnode_process *out, size_t capacity, size_t *count) {
  if (device < 0 || device >= vnode_config()->device_count)
    return VNODE_INVALID_VALUE;
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  pthread_mutex_lock(&lock);
  enum vnode_status status = enter();
  *count = 0;
  if (!status) {
    reap();
    for (const struct slot *slot = shared->slots; slot < shared->slots + MAX_PROCESSES; slot++)
      if (slot->used_bytes[device] && (*count)++ < capacity)
        out[*count - 1] = (struct vnode_process){.pid = slot->pid, .used_bytes = slot->used_bytes[device]};
    leave();
  }
  pthread_mutex_unlock(&lock);
  return status;
}

/* Detached threads may still allocate while the process ends: the mapping stays, only the slot goes. */
__attribute__((destructor)) static void leave_session(void) {
  if (vnode_forked() || pthread_mutex_trylock(&lock))
    return;
  if (shared && own->pid == getpid() && !enter()) {
    memset(own, 0, sizeof *own);
    reap();
    bool empty = true;
    for (const struct slot *slot = shared->slots; slot < shared->slots + MAX_PROCESSES; slot++)
      empty &= !slot->pid;
    if (empty) {
      shared->closed = 1;
      shm_unlink(shared_name);
    }
    ended = true;
    leave();
  }
  pthread_mutex_unlock(&lock);
}
