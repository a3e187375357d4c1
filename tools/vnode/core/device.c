/* SPDX-License-Identifier: Apache-2.0 */
/* The node's devices, the process's use of them, and fork. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

struct gpu_row {
  const char *key;
  struct vnode_gpu gpu;
};

static const struct gpu_row gpu_rows[] = {
#define VNODE_GPU(gpu_key, ...) {.key = #gpu_key, .gpu = {__VA_ARGS__}},
#include "gpus.def"
#undef VNODE_GPU
};

static struct vnode_gpu gpu;
static pthread_once_t gpu_once = PTHREAD_ONCE_INIT;
static pthread_once_t used_once = PTHREAD_ONCE_INIT;
static atomic_bool used, forked;
static bool touched[VNODE_MAX_DEVICES];
static pthread_mutex_t touch_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current_device;
static _Thread_local enum vnode_owner owner_hint = VNODE_OWNER_COUNT;

static void choose_gpu(void) {
  const struct gpu_row *row = gpu_rows; /* the configuration accepts only keys of the table */
  while (strcmp(row->key, vnode_config()->gpu))
    row++;
  gpu = row->gpu;
  if (vnode_config()->memory_bytes)
    gpu.memory_bytes = vnode_config()->memory_bytes;
}

const struct vnode_gpu *vnode_gpu(void) {
  pthread_once(&gpu_once, choose_gpu);
  return &gpu;
}

static void after_fork_in_child(void) {
  atomic_store(&forked, true);
}

static void register_fork_handler(void) {
  pthread_atfork(NULL, NULL, after_fork_in_child);
  atomic_store(&used, true);
}

void vnode_mark_used(void) {
  pthread_once(&used_once, register_fork_handler);
}

bool vnode_used(void) {
  return atomic_load_explicit(&used, memory_order_relaxed);
}

bool vnode_forked(void) {
  return atomic_load_explicit(&forked, memory_order_relaxed);
}

bool vnode_usable(void) {
  return !vnode_forked();
}

int vnode_device_current(void) {
  return current_device;
}

enum vnode_status vnode_device_set(int device) {
  if (device < 0 || device >= vnode_config()->device_count)
    return VNODE_INVALID_VALUE;
  current_device = device;
  return VNODE_OK;
}

enum vnode_status vnode_device_touch(int device) {
  if (device < 0 || device >= vnode_config()->device_count)
    return VNODE_INVALID_VALUE;
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  vnode_mark_used();
  enum vnode_status status = VNODE_OK;
  pthread_mutex_lock(&touch_lock);
  if (!touched[device])
    status = vnode_session_charge(device, vnode_gpu()->context_bytes);
  touched[device] |= status == VNODE_OK;
  pthread_mutex_unlock(&touch_lock);
  return status;
}

bool vnode_device_touched(int device) {
  if (device < 0 || device >= vnode_config()->device_count || vnode_forked())
    return false;
  pthread_mutex_lock(&touch_lock);
  bool answer = touched[device];
  pthread_mutex_unlock(&touch_lock);
  return answer;
}

enum vnode_owner vnode_owner_push(enum vnode_owner owner) {
  enum vnode_owner previous = owner_hint;
  if (previous == VNODE_OWNER_COUNT)
    owner_hint = owner;
  return previous;
}

void vnode_owner_pop(enum vnode_owner previous) {
  owner_hint = previous;
}

enum vnode_owner vnode_owner_hint(void) {
  return owner_hint;
}
