/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory. Each process has one sparse memory file per device, its share of the HBM; an allocation is a range of that
 * file that was never used before, mapped shared. So that a range can be mapped twice, handed over as a file descriptor and
 * opened by another process, and costs nothing until it is touched. Freed ranges are punched out of the file.
 *
 * Device memory is not inherited over fork() (MADV_DONTFORK), as on a GPU; host memory is private and is.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

/* Records of published ranges lie in the same file, far behind the data: one per driver page. */
static const uint64_t file_bytes = 1ull << 50;
static const uint64_t records_offset = 1ull << 49;

struct record {
  uint64_t magic, id, bytes;
  int32_t device, pid;
};
static const uint64_t record_magic = 0x62323030686d6221;

static struct {
  int fd; /* 0: not made yet */
  uint64_t next_offset;
} hbm[VNODE_MAX_DEVICES];
static pthread_mutex_t hbm_lock = PTHREAD_MUTEX_INITIALIZER;

static struct vnode_entry **table; /* sorted by base */
static size_t table_count, table_capacity;
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t last_id;

static struct vnode_owner_count counts[VNODE_MAX_DEVICES][VNODE_OWNER_COUNT];
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t vnode_next_id(void) {
  return atomic_fetch_add(&last_id, 1) + 1;
}

static size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/* ------------------------------------------------------------------------------------------- address ranges */

void *vnode_reserve(size_t bytes, size_t align_bytes) {
  if (bytes > SIZE_MAX / 4)
    return NULL;
  char *at = mmap(NULL, bytes + align_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return NULL;
  size_t before = (align_bytes - (uintptr_t)at % align_bytes) % align_bytes;
  if (before)
    munmap(at, before);
  munmap(at + before + bytes, align_bytes - before);
  return at + before;
}

enum vnode_status vnode_backing_map(const struct vnode_backing *backing, void *at, size_t bytes, int protection) {
  void *got = mmap(at, bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, backing->fd, (off_t)backing->offset);
  if (got == MAP_FAILED)
    return VNODE_SYSTEM;
  madvise(at, bytes, MADV_DONTFORK);
  return VNODE_OK;
}

static void count_alloc(int device, enum vnode_owner owner, size_t bytes, enum vnode_status status) {
  pthread_mutex_lock(&counts_lock);
  struct vnode_owner_count *count = &counts[device][owner];
  if (status) {
    count->failed++;
  } else {
    count->allocs++;
    count->current += bytes;
    if (count->current > count->peak)
      count->peak = count->current;
  }
  pthread_mutex_unlock(&counts_lock);
}

static void count_free(int device, enum vnode_owner owner, size_t bytes) {
  pthread_mutex_lock(&counts_lock);
  counts[device][owner].frees++;
  counts[device][owner].current -= bytes;
  pthread_mutex_unlock(&counts_lock);
}

void vnode_owner_counts(int device, enum vnode_owner owner, struct vnode_owner_count *out) {
  pthread_mutex_lock(&counts_lock);
  *out = counts[device][owner];
  pthread_mutex_unlock(&counts_lock);
}

void vnode_ledger_memory(int device, enum vnode_owner owner, uint64_t *current, uint64_t *peak) {
  struct vnode_owner_count count = {0};
  if (!vnode_forked())
    vnode_owner_counts(device, owner, &count);
  *current = count.current;
  *peak = count.peak;
}

/* ------------------------------------------------------------------------------------------- memory files */

static int hbm_fd(int device) {
  if (hbm[device].fd)
    return hbm[device].fd;
  int fd = memfd_create("b200vnode-hbm", MFD_CLOEXEC);
  if (fd < 0)
    return -1;
  if (ftruncate(fd, (off_t)file_bytes)) {
    close(fd);
    return -1;
  }
  return hbm[device].fd = fd;
}

static enum vnode_status take_range(int device, size_t bytes, struct vnode_backing *out) {
  enum vnode_status status = VNODE_SYSTEM;
  pthread_mutex_lock(&hbm_lock);
  int fd = hbm_fd(device);
  if (fd >= 0 && bytes <= records_offset - hbm[device].next_offset) {
    *out = (struct vnode_backing){
        .fd = fd, .device = device, .offset = hbm[device].next_offset, .bytes = bytes, .id = vnode_next_id()};
    hbm[device].next_offset += bytes;
    status = VNODE_OK;
  }
  pthread_mutex_unlock(&hbm_lock);
  return status;
}

enum vnode_status vnode_backing_create(int device, size_t bytes, enum vnode_owner owner, struct vnode_backing *out) {
  enum vnode_status status = vnode_device_touch(device);
  if (status)
    return status;
  if (bytes > vnode_gpu()->memory_bytes) {
    count_alloc(device, owner, bytes, VNODE_NO_MEMORY);
    return VNODE_NO_MEMORY;
  }
  bytes = round_up(bytes, VNODE_MEMORY_ALIGN_BYTES);
  status = vnode_session_charge(device, bytes);
  if (!status) {
    status = take_range(device, bytes, out);
    if (status)
      vnode_session_uncharge(device, bytes);
  }
  count_alloc(device, owner, bytes, status);
  return status;
}

static off_t record_offset(uint64_t offset) {
  return (off_t)(records_offset + offset / VNODE_MEMORY_ALIGN_BYTES * sizeof(struct record));
}

enum vnode_status vnode_backing_publish(struct vnode_backing *backing) {
  struct record record = {.magic = record_magic,
                          .id = backing->id,
                          .bytes = backing->bytes,
                          .device = backing->device,
                          .pid = (int32_t)getpid()};
  if (pwrite(backing->fd, &record, sizeof record, record_offset(backing->offset)) != sizeof record)
    return VNODE_SYSTEM;
  backing->exported = true;
  return VNODE_OK;
}

enum vnode_status vnode_backing_adopt(int fd, uint64_t offset, struct vnode_backing *out) {
  struct record record;
  if (offset % VNODE_MEMORY_ALIGN_BYTES || offset >= records_offset ||
      pread(fd, &record, sizeof record, record_offset(offset)) != sizeof record || record.magic != record_magic ||
      record.device < 0 || record.device >= vnode_config()->device_count)
    return VNODE_INVALID_VALUE;
  *out = (struct vnode_backing){
      .fd = fd, .device = record.device, .offset = offset, .bytes = record.bytes, .id = record.id, .imported = true};
  return VNODE_OK;
}

void vnode_backing_destroy(const struct vnode_backing *backing, enum vnode_owner owner) {
  if (backing->imported) {
    close(backing->fd);
    return;
  }
  if (backing->exported) {
    /* An importer may still read it: the pages stay until we end; only new imports are refused. */
    struct record gone = {0};
    ssize_t ignored = pwrite(backing->fd, &gone, sizeof gone, record_offset(backing->offset));
    (void)ignored;
  } else {
    fallocate(backing->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)backing->offset, (off_t)backing->bytes);
  }
  vnode_session_uncharge(backing->device, backing->bytes);
  count_free(backing->device, owner, backing->bytes);
}

/* ------------------------------------------------------------------------------------------- the table */

void vnode_table_lock(void) {
  pthread_mutex_lock(&table_mutex);
}

void vnode_table_unlock(void) {
  pthread_mutex_unlock(&table_mutex);
}

/* Index of the first entry with a base above `address`. */
static size_t upper_bound(uintptr_t address) {
  size_t low = 0, high = table_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if ((uintptr_t)table[middle]->info.base <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct vnode_entry *vnode_table_find(const void *address) {
  size_t index = upper_bound((uintptr_t)address);
  if (!index)
    return NULL;
  struct vnode_entry *entry = table[index - 1];
  return (uintptr_t)address - (uintptr_t)entry->info.base < entry->info.bytes ? entry : NULL;
}

struct vnode_entry *vnode_table_each(size_t index) {
  return index < table_count ? table[index] : NULL;
}

enum vnode_status vnode_table_add(const struct vnode_entry *entry) {
  if (table_count == table_capacity) {
    size_t capacity = table_capacity ? 2 * table_capacity : 256;
    struct vnode_entry **grown = realloc(table, capacity * sizeof *grown);
    if (!grown)
      return VNODE_SYSTEM;
    table = grown;
    table_capacity = capacity;
  }
  struct vnode_entry *copy = malloc(sizeof *copy);
  if (!copy)
    return VNODE_SYSTEM;
  *copy = *entry;
  size_t index = upper_bound((uintptr_t)entry->info.base);
  memmove(table + index + 1, table + index, (table_count - index) * sizeof *table);
  table[index] = copy;
  table_count++;
  return VNODE_OK;
}

void vnode_table_remove(struct vnode_entry *entry) {
  size_t index = upper_bound((uintptr_t)entry->info.base) - 1;
  memmove(table + index, table + index + 1, (table_count - index - 1) * sizeof *table);
  table_count--;
  free(entry);
}

static enum vnode_status add_locked(const struct vnode_entry *entry) {
  vnode_table_lock();
  enum vnode_status status = vnode_table_add(entry);
  vnode_table_unlock();
  if (!status)
    vnode_engine_fresh(entry->info.base, entry->info.bytes);
  return status;
}

/* ------------------------------------------------------------------------------------------- public */

static enum vnode_status alloc_host(size_t bytes, void **out) {
  static const size_t page_bytes = 4096;
  bytes = round_up(bytes, page_bytes);
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return VNODE_NO_MEMORY;
  struct vnode_entry entry = {
      .info = {
          .base = base, .bytes = bytes, .device = vnode_device_current(), .kind = VNODE_MEMORY_HOST, .id = vnode_next_id()}};
  enum vnode_status status = add_locked(&entry);
  if (status)
    munmap(base, bytes);
  else
    *out = base;
  return status;
}

static enum vnode_status alloc_device(int device, size_t bytes, enum vnode_memory_kind kind, enum vnode_owner owner,
                                      void **out) {
  struct vnode_entry entry = {.owner = owner};
  enum vnode_status status = vnode_backing_create(device, bytes, owner, &entry.backing);
  if (status)
    return status;
  const struct vnode_backing *backing = &entry.backing;
  void *base = vnode_reserve(backing->bytes, VNODE_MEMORY_ALIGN_BYTES);
  status = base ? vnode_backing_map(backing, base, backing->bytes, PROT_READ | PROT_WRITE) : VNODE_SYSTEM;
  if (!status) {
    entry.info =
        (struct vnode_memory_info){.base = base, .bytes = backing->bytes, .device = device, .kind = kind, .id = backing->id};
    status = add_locked(&entry);
  }
  if (!status) {
    if (owner == VNODE_OWNER_PYTORCH || owner == VNODE_OWNER_OTHER) /* the libraries' own is never read by anybody */
      vnode_memory_poison(base, bytes);
    *out = base;
    return VNODE_OK;
  }
  if (base)
    munmap(base, backing->bytes);
  vnode_backing_destroy(backing, owner);
  return status;
}

enum vnode_status vnode_memory_alloc(int device, size_t bytes, enum vnode_memory_kind kind, enum vnode_owner owner,
                                     void **out) {
  bool device_memory = kind == VNODE_MEMORY_DEVICE || kind == VNODE_MEMORY_MANAGED;
  if (!bytes || !out || owner >= VNODE_OWNER_COUNT || (!device_memory && kind != VNODE_MEMORY_HOST))
    return VNODE_INVALID_VALUE;
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_mark_used();
  if (bytes > SIZE_MAX / 4)
    return VNODE_NO_MEMORY;
  return device_memory ? alloc_device(device, bytes, kind, owner, out) : alloc_host(bytes, out);
}

enum vnode_status vnode_memory_free_idle(void *base) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_table_lock();
  struct vnode_entry *entry = vnode_table_find(base);
  if (!entry || entry->info.base != base || entry->info.kind == VNODE_MEMORY_MAPPED ||
      entry->info.kind == VNODE_MEMORY_IMPORTED) {
    vnode_table_unlock();
    return VNODE_NOT_FOUND;
  }
  struct vnode_entry gone = *entry;
  vnode_table_remove(entry);
  vnode_table_unlock();
  if (gone.info.kind == VNODE_MEMORY_REGISTERED)
    return VNODE_OK;
  munmap(base, gone.info.bytes);
  if (gone.info.kind != VNODE_MEMORY_HOST)
    vnode_backing_destroy(&gone.backing, gone.owner);
  return VNODE_OK;
}

enum vnode_status vnode_memory_free(void *base) {
  struct vnode_memory_info info;
  if (vnode_memory_query(base, &info) && info.base == base)
    vnode_engine_release(base, info.bytes,
                         info.kind == VNODE_MEMORY_HOST         ? "cudaFreeHost"
                         : info.kind == VNODE_MEMORY_REGISTERED ? "cudaHostUnregister"
                                                                : "cudaFree",
                         true);
  return vnode_memory_free_idle(base);
}

void vnode_memory_poison(void *at, size_t bytes) {
  if (vnode_is_late() && bytes <= VNODE_POISON_MAX_BYTES)
    memset(at, VNODE_POISON, bytes);
}

enum vnode_status vnode_memory_register(void *base, size_t bytes) {
  if (!base || !bytes)
    return VNODE_INVALID_VALUE;
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_mark_used();
  struct vnode_entry entry = {.info = {.base = base,
                                       .bytes = bytes,
                                       .device = vnode_device_current(),
                                       .kind = VNODE_MEMORY_REGISTERED,
                                       .id = vnode_next_id()}};
  vnode_table_lock();
  size_t next = upper_bound((uintptr_t)base);
  bool overlaps =
      vnode_table_find(base) || (next < table_count && (uintptr_t)table[next]->info.base < (uintptr_t)base + bytes);
  enum vnode_status status = overlaps ? VNODE_INVALID_VALUE : vnode_table_add(&entry);
  vnode_table_unlock();
  if (!status)
    vnode_engine_fresh(base, bytes);
  return status;
}

bool vnode_memory_query(const void *address, struct vnode_memory_info *out) {
  if (vnode_forked())
    return false;
  vnode_table_lock();
  const struct vnode_entry *entry = vnode_table_find(address);
  if (entry && out)
    *out = entry->info;
  vnode_table_unlock();
  return entry;
}

enum vnode_status vnode_memory_used(int device, uint64_t *used_bytes, uint64_t *total_bytes) {
  if (device < 0 || device >= vnode_config()->device_count)
    return VNODE_INVALID_VALUE;
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  *total_bytes = vnode_gpu()->memory_bytes;
  return vnode_session_used(device, used_bytes);
}

enum vnode_status vnode_memory_get_info(int device, uint64_t *free_bytes, uint64_t *total_bytes) {
  uint64_t used = 0, total = 0;
  enum vnode_status status = vnode_device_touch(device);
  if (!status)
    status = vnode_memory_used(device, &used, &total);
  if (status)
    return status;
  *free_bytes = total - used;
  *total_bytes = total;
  return VNODE_OK;
}
