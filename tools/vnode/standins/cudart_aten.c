/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds and loads the ATen layer, libb200aten-<torch version>.so: PyTorch's CUDA operators computed by its CPU kernels. It
 * can only be loaded after libtorch_cuda.so, which the first device query of a PyTorch process follows; a process without
 * PyTorch needs none.
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

static atomic_bool done;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool loading; /* the layer's own constructors may query devices */

static bool folder_of(const char *path, char *out, size_t out_bytes) {
  const char *slash = strrchr(path, '/');
  int length = slash ? snprintf(out, out_bytes, "%.*s", (int)(slash - path), path) : -1;
  return length >= 0 && (size_t)length < out_bytes;
}

/* torch/lib/libtorch_cuda.so -> torch/version.py: __version__ = '2.15.0+cu132' -> 2.15.0 */
static bool torch_version(const char *library, char *out, size_t out_bytes) {
  char folder[4096], path[4200], line[256];
  if (!folder_of(library, folder, sizeof folder))
    return false;
  snprintf(path, sizeof path, "%s/../version.py", folder);
  FILE *file = fopen(path, "re");
  bool found = false;
  while (file && !found && fgets(line, sizeof line, file)) {
    char version[64];
    found = sscanf(line, "__version__ = '%63[^'+]", version) == 1;
    if (found)
      snprintf(out, out_bytes, "%s", version);
  }
  if (file)
    fclose(file);
  return found;
}

static _Noreturn void missing(const char *path, const char *why) {
  vnode_say_once("aten", "the layer for this PyTorch cannot be loaded: %s: %s; `b200opt dryrun -- COMMAND` builds it", path,
                 why);
  abort();
}

static void load(void *torch) {
  struct link_map *map = NULL;
  char version[64], beside[4096], path[4300];
  if (dlinfo(torch, RTLD_DI_LINKMAP, &map) || !torch_version(map->l_name, version, sizeof version))
    missing("libtorch_cuda.so", "its version.py cannot be read");
  const char *folder = vnode_config()->aten_dir;
  Dl_info info;
  if (!folder && dladdr((void *)(uintptr_t)vnode_config, &info) && folder_of(info.dli_fname, beside, sizeof beside))
    folder = beside;
  snprintf(path, sizeof path, "%s/libb200aten-%s.so", folder ? folder : ".", version);
  if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL))
    missing(path, dlerror());
}

void vnode_cudart_load_aten(void) {
  if (atomic_load_explicit(&done, memory_order_acquire) || loading || !vnode_usable() || vnode_config()->kernels_skipped)
    return;
  void *torch = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  if (!torch)
    return;
  pthread_mutex_lock(&lock);
  if (!atomic_load(&done)) {
    loading = true;
    load(torch);
    loading = false;
    atomic_store_explicit(&done, true, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  dlclose(torch);
}
