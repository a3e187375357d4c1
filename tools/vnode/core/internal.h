/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the engine share with each other and with nobody else.
 *
 * Lock order: memory table (memory.c), then session (session.c). Stream locks are taken with neither held. No lock is held
 * while work runs but the one of its stream.
 */
#ifndef VNODE_CORE_INTERNAL_H
#define VNODE_CORE_INTERNAL_H

#include <sys/types.h>

#include "core.h"

/* One line on stderr, "b200vnode: …", in one write. */
void vnode_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True in a child made by fork() of a process that had used the node: nothing works there, no lock may be taken. */
bool vnode_forked(void);
/* Registers the fork handler; called by everything that creates state. */
void vnode_mark_used(void);
bool vnode_used(void);

/* Modelled time at which the last wait for the GPU ended: how long the job took, so far. */
int64_t vnode_modelled_ns(void);

/* Start time of a live process in clock ticks after boot; 0 when it is gone or a zombie. */
uint64_t vnode_process_start(pid_t pid);

/* session.c: bytes of each device over all live processes. Errors: NO_MEMORY, SYSTEM. */
enum vnode_status vnode_session_charge(int device, uint64_t bytes);
void vnode_session_uncharge(int device, uint64_t bytes);
enum vnode_status vnode_session_used(int device, uint64_t *bytes);

/* memory.c: an address range that carries device memory of a backing file. */
struct vnode_backing {
  int fd; /* memfd of the process and device that made it */
  int device;
  uint64_t offset; /* multiple of VNODE_MEMORY_ALIGN_BYTES */
  size_t bytes;    /* multiple of VNODE_MEMORY_ALIGN_BYTES */
  uint64_t id;     /* never reused in the process that made it */
  bool exported;   /* another process may have it: keep its pages until this process ends */
  bool imported;   /* made and charged by another process; fd is ours to close */
};
enum vnode_status vnode_backing_create(int device, size_t bytes, enum vnode_owner owner, struct vnode_backing *out);
void vnode_backing_destroy(const struct vnode_backing *backing, enum vnode_owner owner);
/* Writes a record into the file, so that another process that opens it at this offset learns size and device. */
enum vnode_status vnode_backing_publish(struct vnode_backing *backing);
/* pre: `fd` is an own open file description of a backing file. Takes it over on success. */
enum vnode_status vnode_backing_adopt(int fd, uint64_t offset, struct vnode_backing *out);

/* Address space: aligned, inaccessible. */
void *vnode_reserve(size_t bytes, size_t align_bytes);
/* Maps the backing at a reserved address. */
enum vnode_status vnode_backing_map(const struct vnode_backing *backing, void *at, size_t bytes, int protection);

/* The table of what lies where; one entry per range. */
struct vnode_entry {
  struct vnode_memory_info info;
  enum vnode_owner owner;
  struct vnode_backing backing; /* DEVICE, MANAGED, IMPORTED */
  uint64_t physical;            /* MAPPED: handle */
  unsigned references;          /* IMPORTED: opens */
};
void vnode_table_lock(void);
void vnode_table_unlock(void);
/* With the lock held. The pointer is good until the table changes. */
struct vnode_entry *vnode_table_find(const void *address);
enum vnode_status vnode_table_add(const struct vnode_entry *entry);
void vnode_table_remove(struct vnode_entry *entry);
struct vnode_entry *vnode_table_each(size_t index);
uint64_t vnode_next_id(void);

/* Counts of one owner on one device in this process, for the ledger. */
struct vnode_owner_count {
  uint64_t current, peak, allocs, frees, failed;
};
void vnode_owner_counts(int device, enum vnode_owner owner, struct vnode_owner_count *out);

#endif
