/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that graphs make. Its address is fixed when the node is made, and it is charged from then on: a GPU may wait with
 * that until a launch, and may give two graphs the same pages. It goes when no node names it any more and, if a launch has
 * made it, when it was freed.
 */
#include <stdlib.h>

#include "graph_internal.h"

static struct vnode_graph_memory *memories, *dead;
static struct vnode_graph_memory_use uses[VNODE_MAX_DEVICES];

static void raise_high(uint64_t *high, uint64_t now) {
  if (now > *high)
    *high = now;
}

enum vnode_status vnode_graph_memory_make(int device, size_t bytes, enum vnode_owner owner,
                                          struct vnode_graph_memory **out) {
  if (!bytes || device < 0 || device >= vnode_config()->device_count)
    return VNODE_INVALID_VALUE;
  struct vnode_graph_memory *memory = malloc(sizeof *memory);
  if (!memory)
    return VNODE_SYSTEM;
  *memory = (struct vnode_graph_memory){.device = device, .references = 1};
  enum vnode_status status = vnode_memory_alloc(device, bytes, VNODE_MEMORY_DEVICE, owner, &memory->base);
  struct vnode_memory_info info;
  if (status || !vnode_memory_query(memory->base, &info)) {
    free(memory);
    return status ? status : VNODE_SYSTEM;
  }
  memory->bytes = info.bytes;
  vnode_graph_lock();
  memory->next = memories;
  memories = memory;
  uses[device].reserved += memory->bytes;
  raise_high(&uses[device].reserved_high, uses[device].reserved);
  vnode_graph_unlock();
  *out = memory;
  return VNODE_OK;
}

static void let_go(struct vnode_graph_memory *memory) {
  if (memory->references || memory->live)
    return;
  struct vnode_graph_memory **link = &memories;
  while (*link != memory)
    link = &(*link)->next;
  *link = memory->next;
  uses[memory->device].reserved -= memory->bytes;
  memory->next_dead = dead;
  dead = memory;
}

void vnode_graph_memory_retain(struct vnode_graph_memory *memory) {
  memory->references++;
}

void vnode_graph_memory_unref(struct vnode_graph_memory *memory) {
  memory->references--;
  let_go(memory);
}

void vnode_graph_memory_set_live(struct vnode_graph_memory *memory, bool live) {
  struct vnode_graph_memory_use *use = &uses[memory->device];
  if (memory->live == live)
    return;
  memory->live = live;
  use->used = live ? use->used + memory->bytes : use->used - memory->bytes;
  raise_high(&use->used_high, use->used);
  let_go(memory);
}

struct vnode_graph_memory *vnode_graph_memory_dead(void) {
  struct vnode_graph_memory *list = dead;
  dead = NULL;
  return list;
}

void vnode_graph_memory_bury(struct vnode_graph_memory *list) {
  while (list) {
    struct vnode_graph_memory *memory = list;
    list = memory->next_dead;
    vnode_memory_free_idle(memory->base); /* all launches are over */
    free(memory);
  }
}

static struct vnode_graph_memory *find(const void *base) {
  struct vnode_graph_memory *memory = memories;
  while (memory && memory->base != base)
    memory = memory->next;
  return memory;
}

/* For the checker, all of the memory is written when it comes and when it goes. */
static void take_memory(struct vnode_graph_node *node, struct vnode_graph_memory *memory) {
  node->memory = memory;
  vnode_graph_memory_retain(memory);
  node->graph->memory_nodes++;
}

struct vnode_graph_node *vnode_memory_node_alloc(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                 size_t count, struct vnode_graph_memory *memory) {
  struct vnode_graph_node *node = vnode_node_make(graph, VNODE_NODE_ALLOC, nodes, count);
  if (node) {
    take_memory(node, memory);
    memory->maker = graph;
  }
  return node;
}

enum vnode_status vnode_memory_node_free(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                         void *base, struct vnode_graph_node **out) {
  struct vnode_graph_memory *memory = find(base);
  /* either in the graph that makes it or in others, and once in each (cudaGraphAddMemAllocNode) */
  if (!memory || memory->freer == graph || (memory->freer && (memory->freer == memory->maker || graph == memory->maker)))
    return VNODE_INVALID_VALUE;
  *out = vnode_node_make(graph, VNODE_NODE_FREE, nodes, count);
  if (!*out)
    return VNODE_SYSTEM;
  take_memory(*out, memory);
  memory->freer = graph;
  return VNODE_OK;
}

enum vnode_status vnode_graph_memory_release(void *base) {
  vnode_graph_lock();
  struct vnode_graph_memory *memory = find(base);
  enum vnode_status status = !memory ? VNODE_NOT_FOUND : memory->live ? VNODE_OK : VNODE_INVALID_VALUE;
  if (!status)
    vnode_graph_memory_set_live(memory, false);
  vnode_graph_unlock();
  return status;
}

void vnode_graph_memory_get(int device, struct vnode_graph_memory_use *out) {
  vnode_graph_lock();
  *out = uses[device];
  vnode_graph_unlock();
}

void vnode_graph_memory_reset_high(int device, bool used, bool reserved) {
  vnode_graph_lock();
  if (used)
    uses[device].used_high = uses[device].used;
  if (reserved)
    uses[device].reserved_high = uses[device].reserved;
  vnode_graph_unlock();
}
