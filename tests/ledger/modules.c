/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several libraries with runtimes of their own allocate and free in random order, each other's blocks too. After every
 * operation one line of JSON: the time, and what the node counts as held by each owner.
 *
 *   modules OPERATIONS SEED LIBRARY...
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "module.h"
#include "tools/vnode/core/core.h"

enum { LIBRARIES_MAX = 8, BLOCKS = 48 };

static const char *const owner_names[VNODE_OWNER_COUNT] = {"pytorch", "nccl", "cublas", "other"};

struct library {
  void (*alloc)(enum block_kind, size_t, struct block *);
  void (*free)(struct block *);
};

static uint64_t state;

static uint64_t draw(uint64_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % below;
}

static void print_counts(void) {
  struct timespec now;
  cuCtxSynchronize(); /* the driver's memory pool gives back what was freed */
  printf("{\"owners\": {");
  for (int owner = 0; owner < VNODE_OWNER_COUNT; owner++) {
    uint64_t current, peak;
    vnode_ledger_memory(0, (enum vnode_owner)owner, &current, &peak);
    printf("%s\"%s\": [%" PRIu64 ", %" PRIu64 "]", owner ? ", " : "", owner_names[owner], current, peak);
  }
  clock_gettime(CLOCK_MONOTONIC, &now);
  printf("}, \"t_ns\": %lld}\n", (long long)now.tv_sec * 1000000000 + now.tv_nsec);
}

static void open_library(const char *path, struct library *out) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  *(void **)&out->alloc = dlsym(handle, "module_alloc");
  *(void **)&out->free = dlsym(handle, "module_free");
}

int main(int argc, char **argv) {
  static struct library libraries[LIBRARIES_MAX];
  static struct block blocks[BLOCKS];
  uint64_t count = 0;
  CUcontext context;
  if (argc < 4 || argc > 3 + LIBRARIES_MAX || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
    return 2;
  state = strtoull(argv[2], NULL, 10);
  for (int i = 3; i < argc; i++)
    open_library(argv[i], &libraries[count++]);
  for (long left = strtol(argv[1], NULL, 10); left > 0; left--) {
    struct block *block = &blocks[draw(BLOCKS)];
    struct library *library = &libraries[draw(count)];
    if (block->kind == BLOCK_NONE)
      library->alloc((enum block_kind)(1 + draw(BLOCK_KINDS - 1)), 1 + draw(24u << 20), block);
    else
      library->free(block);
    print_counts();
  }
  for (int i = 0; i < BLOCKS; i++)
    if (blocks[i].kind != BLOCK_NONE)
      libraries[0].free(&blocks[i]);
  print_counts();
  return 0;
}
