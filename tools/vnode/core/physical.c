/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management (physical handles, reserved ranges, mappings) and sharing between processes. All of it is ranges
 * of the memory files of memory.c. One table of handles, guarded by the lock of the memory table.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

struct physical {
  struct vnode_backing backing;
  enum vnode_owner owner;
  unsigned handles, mappings; /* it dies when both are 0 */
};

struct range {
  char *base;
  size_t bytes;
  struct range *next;
};

static struct physical **physicals; /* index = handle - 1; NULL: released */
static size_t physical_count;
static struct range *ranges;

static struct physical *physical_of(uint64_t handle) {
  return handle && handle <= physical_count ? physicals[handle - 1] : NULL;
}

static enum vnode_status add_physical(const struct vnode_backing *backing, enum vnode_owner owner, uint64_t *handle) {
  struct physical *made = malloc(sizeof *made);
  struct physical **grown = realloc(physicals, (physical_count + 1) * sizeof *grown);
  if (grown)
    physicals = grown;
  if (!made || !grown) {
    free(made);
    return VNODE_SYSTEM;
  }
  *made = (struct physical){.backing = *backing, .owner = owner, .handles = 1};
  physicals[physical_count++] = made;
  *handle = physical_count; /* never reused: a stale handle is an error, not another's memory */
  return VNODE_OK;
}

static void drop_if_unused(uint64_t handle) {
  struct physical *physical = physical_of(handle);
  if (physical->handles || physical->mappings)
    return;
  vnode_backing_destroy(&physical->backing, physical->owner);
  free(physical);
  physicals[handle - 1] = NULL;
}

enum vnode_status vnode_physical_create(int device, size_t bytes, enum vnode_owner owner, uint64_t *handle) {
  if (!bytes || bytes % VNODE_MEMORY_ALIGN_BYTES || !handle || owner >= VNODE_OWNER_COUNT)
    return VNODE_INVALID_VALUE;
  struct vnode_backing backing;
  enum vnode_status status = vnode_backing_create(device, bytes, owner, &backing);
  if (status)
    return status;
  vnode_table_lock();
  status = add_physical(&backing, owner, handle);
  vnode_table_unlock();
  if (status)
    vnode_backing_destroy(&backing, owner);
  return status;
}

enum vnode_status vnode_physical_retain(const void *address, uint64_t *handle) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  enum vnode_status status = VNODE_NOT_FOUND;
  vnode_table_lock();
  const struct vnode_entry *entry = vnode_table_find(address);
  if (entry && entry->info.kind == VNODE_MEMORY_MAPPED) {
    physical_of(entry->physical)->handles++;
    *handle = entry->physical;
    status = VNODE_OK;
  }
  vnode_table_unlock();
  return status;
}

enum vnode_status vnode_physical_release(uint64_t handle) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_table_lock();
  struct physical *physical = physical_of(handle);
  enum vnode_status status = physical && physical->handles ? VNODE_OK : VNODE_NOT_FOUND;
  if (!status) {
    physical->handles--;
    drop_if_unused(handle);
  }
  vnode_table_unlock();
  return status;
}

enum vnode_status vnode_physical_info(uint64_t handle, int *device, size_t *bytes) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_table_lock();
  const struct physical *physical = physical_of(handle);
  if (physical) {
    *device = physical->backing.device;
    *bytes = physical->backing.bytes;
  }
  vnode_table_unlock();
  return physical ? VNODE_OK : VNODE_NOT_FOUND;
}

/* The receiver gets only a descriptor, so it must carry the place: an own open file description, positioned at the range. */
static int open_at(int fd, uint64_t offset) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int own = open(path, O_RDWR | O_CLOEXEC);
  if (own >= 0 && lseek(own, (off_t)offset, SEEK_SET) != (off_t)offset) {
    close(own);
    own = -1;
  }
  return own;
}

enum vnode_status vnode_physical_export(uint64_t handle, int *fd) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_table_lock();
  struct physical *physical = physical_of(handle);
  enum vnode_status status = !physical                    ? VNODE_NOT_FOUND
                             : physical->backing.imported ? VNODE_OK
                                                          : vnode_backing_publish(&physical->backing);
  if (!status && (*fd = open_at(physical->backing.fd, physical->backing.offset)) < 0)
    status = VNODE_SYSTEM;
  vnode_table_unlock();
  return status;
}

enum vnode_status vnode_physical_import(int fd, uint64_t *handle) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  off_t offset = lseek(fd, 0, SEEK_CUR);
  int own = offset < 0 ? -1 : open_at(fd, (uint64_t)offset);
  if (own < 0)
    return VNODE_INVALID_VALUE;
  struct vnode_backing backing;
  enum vnode_status status = vnode_backing_adopt(own, (uint64_t)offset, &backing);
  if (!status) {
    vnode_mark_used();
    vnode_table_lock();
    status = add_physical(&backing, VNODE_OWNER_OTHER, handle);
    vnode_table_unlock();
  }
  if (status)
    close(own);
  return status;
}

/* ------------------------------------------------------------------------------------------- ranges */

/* The reserved range that holds all of [at, at + bytes), and where the list points to it. */
static struct range **range_of(const char *at, size_t bytes) {
  for (struct range **link = &ranges; *link; link = &(*link)->next)
    if (at >= (*link)->base && bytes <= (*link)->bytes && (size_t)(at - (*link)->base) <= (*link)->bytes - bytes)
      return link;
  return NULL;
}

static bool has_mapping(const char *at, size_t bytes) {
  for (size_t i = 0; vnode_table_each(i); i++) {
    const struct vnode_memory_info *info = &vnode_table_each(i)->info;
    if ((char *)info->base < at + bytes && (char *)info->base + info->bytes > at)
      return true;
  }
  return false;
}

enum vnode_status vnode_range_reserve(size_t bytes, size_t align_bytes, void **out) {
  if (!bytes || bytes % VNODE_MEMORY_ALIGN_BYTES || (align_bytes & (align_bytes - 1)))
    return VNODE_INVALID_VALUE;
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_mark_used();
  if (align_bytes < VNODE_MEMORY_ALIGN_BYTES)
    align_bytes = VNODE_MEMORY_ALIGN_BYTES;
  struct range *range = malloc(sizeof *range);
  void *base = range ? vnode_reserve(bytes, align_bytes) : NULL;
  if (!base) {
    free(range);
    return VNODE_NO_MEMORY;
  }
  vnode_table_lock();
  *range = (struct range){.base = base, .bytes = bytes, .next = ranges};
  ranges = range;
  vnode_table_unlock();
  *out = base;
  return VNODE_OK;
}

enum vnode_status vnode_range_free(void *base, size_t bytes) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_table_lock();
  struct range **link = range_of(base, bytes), *range = link ? *link : NULL;
  if (range && range->base == base && range->bytes == bytes && !has_mapping(base, bytes)) {
    *link = range->next;
    free(range);
    munmap(base, bytes);
    status = VNODE_OK;
  }
  vnode_table_unlock();
  return status;
}

enum vnode_status vnode_range_map(void *at, size_t bytes, uint64_t handle) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_table_lock();
  struct physical *physical = physical_of(handle);
  bool fits = physical && physical->handles && bytes && bytes <= physical->backing.bytes &&
              bytes % VNODE_MEMORY_ALIGN_BYTES == 0 && (uintptr_t)at % VNODE_MEMORY_ALIGN_BYTES == 0;
  if (fits && range_of(at, bytes) && !has_mapping(at, bytes)) {
    struct vnode_entry entry = {.info = {.base = at,
                                         .bytes = bytes,
                                         .device = physical->backing.device,
                                         .kind = VNODE_MEMORY_MAPPED,
                                         .id = vnode_next_id()},
                                .physical = handle};
    status = vnode_backing_map(&physical->backing, at, bytes, PROT_NONE);
    if (!status)
      status = vnode_table_add(&entry);
    if (!status)
      physical->mappings++;
  }
  vnode_table_unlock();
  if (!status)
    vnode_engine_fresh(at, bytes);
  return status;
}

/* True when [at, at + bytes) is whole mappings and nothing else. */
static bool is_whole_mappings(const char *at, size_t bytes) {
  const char *end = at + bytes;
  while (at < end) {
    const struct vnode_entry *entry = vnode_table_find(at);
    if (!entry || entry->info.kind != VNODE_MEMORY_MAPPED || entry->info.base != at ||
        entry->info.bytes > (size_t)(end - at))
      return false;
    at += entry->info.bytes;
  }
  return true;
}

enum vnode_status vnode_range_unmap(void *at, size_t bytes) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_table_lock();
  bool is_mapped = bytes && is_whole_mappings(at, bytes);
  vnode_table_unlock();
  if (is_mapped && vnode_owner_hint() != VNODE_OWNER_NCCL) /* NCCL waits itself, and must not wait for other communicators */
    vnode_engine_release(at, bytes, "cuMemUnmap", false);
  vnode_table_lock();
  if (bytes && is_whole_mappings(at, bytes)) {
    void *got = mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    status = got == MAP_FAILED ? VNODE_SYSTEM : VNODE_OK;
  }
  for (char *from = at; !status && from < (char *)at + bytes;) {
    struct vnode_entry *entry = vnode_table_find(from);
    uint64_t handle = entry->physical;
    from += entry->info.bytes;
    vnode_table_remove(entry);
    physical_of(handle)->mappings--;
    drop_if_unused(handle);
  }
  vnode_table_unlock();
  return status;
}

enum vnode_status vnode_range_set_access(void *at, size_t bytes, bool readable) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_table_lock();
  enum vnode_status status = bytes && is_whole_mappings(at, bytes) ? VNODE_OK : VNODE_INVALID_VALUE;
  if (!status && mprotect(at, bytes, readable ? PROT_READ | PROT_WRITE : PROT_NONE))
    status = VNODE_SYSTEM;
  vnode_table_unlock();
  return status;
}

/* ------------------------------------------------------------------------------------------- legacy IPC */

struct token {
  uint64_t magic, start, offset, id;
  int32_t pid, fd;
};
_Static_assert(sizeof(struct token) <= 64, "a token is a cudaIpcMemHandle_t");
static const uint64_t token_magic = 0x6232303069706321;

enum vnode_status vnode_ipc_export(const void *base, unsigned char out[64]) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_table_lock();
  struct vnode_entry *entry = vnode_table_find(base);
  if (entry && entry->info.kind == VNODE_MEMORY_DEVICE) {
    status = vnode_backing_publish(&entry->backing);
    struct token token = {.magic = token_magic,
                          .start = vnode_process_start(getpid()),
                          .offset = entry->backing.offset,
                          .id = entry->backing.id,
                          .pid = (int32_t)getpid(),
                          .fd = entry->backing.fd};
    memset(out, 0, 64);
    memcpy(out, &token, sizeof token);
  }
  vnode_table_unlock();
  return status;
}

/* With the table locked: another open of the same memory shares its mapping. */
static struct vnode_entry *already_open(const struct token *token) {
  for (size_t i = 0; vnode_table_each(i); i++) {
    struct vnode_entry *entry = vnode_table_each(i);
    if (entry->info.kind == VNODE_MEMORY_IMPORTED && entry->backing.id == token->id &&
        entry->backing.offset == token->offset && entry->physical == (uint64_t)token->pid)
      return entry;
  }
  return NULL;
}

static enum vnode_status open_token(const struct token *token, struct vnode_backing *backing) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)token->pid, token->fd);
  if (vnode_process_start(token->pid) != token->start)
    return VNODE_INVALID_VALUE;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return VNODE_SYSTEM;
  enum vnode_status status = vnode_backing_adopt(fd, token->offset, backing);
  if (!status && backing->id != token->id)
    status = VNODE_INVALID_VALUE;
  if (status)
    close(fd);
  return status;
}

static enum vnode_status map_token(const struct token *token, void **out) {
  struct vnode_entry entry = {.owner = VNODE_OWNER_OTHER, .physical = (uint64_t)token->pid, .references = 1};
  enum vnode_status status = open_token(token, &entry.backing);
  if (status)
    return status;
  size_t bytes = entry.backing.bytes;
  void *base = vnode_reserve(bytes, VNODE_MEMORY_ALIGN_BYTES);
  status = base ? vnode_backing_map(&entry.backing, base, bytes, PROT_READ | PROT_WRITE) : VNODE_SYSTEM;
  entry.info = (struct vnode_memory_info){
      .base = base, .bytes = bytes, .device = entry.backing.device, .kind = VNODE_MEMORY_IMPORTED, .id = vnode_next_id()};
  if (!status)
    status = vnode_table_add(&entry);
  if (status) {
    if (base)
      munmap(base, bytes);
    close(entry.backing.fd);
    return status;
  }
  *out = base;
  return VNODE_OK;
}

enum vnode_status vnode_ipc_open(const unsigned char in[64], void **out) {
  struct token token;
  memcpy(&token, in, sizeof token);
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  if (token.magic != token_magic || token.pid == getpid()) /* CUDA refuses to open one's own handle, too */
    return VNODE_INVALID_VALUE;
  vnode_mark_used();
  enum vnode_status status = VNODE_OK;
  vnode_table_lock();
  struct vnode_entry *known = already_open(&token);
  if (known) {
    known->references++;
    *out = known->info.base;
  } else {
    status = map_token(&token, out);
  }
  vnode_table_unlock();
  struct vnode_memory_info info;
  if (!status && !known && vnode_memory_query(*out, &info))
    vnode_engine_fresh(info.base, info.bytes);
  return status;
}

enum vnode_status vnode_ipc_close(void *base) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_memory_info info;
  if (vnode_memory_query(base, &info) && info.base == base)
    vnode_engine_release(base, info.bytes, "cudaIpcCloseMemHandle", true);
  vnode_table_lock();
  struct vnode_entry *entry = vnode_table_find(base);
  enum vnode_status status =
      entry && entry->info.base == base && entry->info.kind == VNODE_MEMORY_IMPORTED ? VNODE_OK : VNODE_INVALID_VALUE;
  if (!status && !--entry->references) {
    munmap(base, entry->info.bytes);
    close(entry->backing.fd);
    vnode_table_remove(entry);
  }
  vnode_table_unlock();
  return status;
}
