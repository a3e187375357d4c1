/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, their nodes and edges, and user objects. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph_internal.h"

struct vnode_user_object {
  uint32_t state;
  uint64_t references;
  void *data;
  void (*destroy)(void *);
  struct vnode_user_object *next; /* among the free ones, or those put aside */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vnode_graph *free_graphs;
static struct vnode_graph_node *free_nodes;
static struct vnode_user_object *free_objects, *dead_objects;
static struct vnode_box *dead_boxes;
static unsigned last_graph_id;
static uint64_t last_mark;

/* ------------------------------------------------------------------------------------------- lock */

static void free_box(struct vnode_box *box) {
  if (box->op.drop)
    box->op.drop((void *)(uintptr_t)box->op.args);
  free(box);
}

static void destroy_object(struct vnode_user_object *object) {
  object->destroy(object->data);
  pthread_mutex_lock(&lock);
  object->next = free_objects;
  free_objects = object;
  pthread_mutex_unlock(&lock);
}

void vnode_graph_lock(void) {
  pthread_mutex_lock(&lock);
}

void vnode_graph_unlock(void) {
  struct vnode_box *boxes = dead_boxes;
  struct vnode_user_object *objects = dead_objects;
  struct vnode_graph_memory *memories = vnode_graph_memory_dead();
  dead_boxes = NULL;
  dead_objects = NULL;
  pthread_mutex_unlock(&lock);
  while (boxes) {
    struct vnode_box *box = boxes;
    boxes = box->next_dead;
    free_box(box);
  }
  while (objects) {
    struct vnode_user_object *object = objects;
    objects = object->next;
    destroy_object(object);
  }
  vnode_graph_memory_bury(memories);
}

uint64_t vnode_graph_next_mark(void) {
  return ++last_mark;
}

/* ------------------------------------------------------------------------------------------- lists */

static bool make_room(struct vnode_node_list *list, size_t room) {
  if (room <= list->room)
    return true;
  size_t wanted = list->room ? 2 * list->room : 2;
  while (wanted < room)
    wanted *= 2;
  struct vnode_graph_node **at = realloc(list->at, wanted * sizeof(struct vnode_graph_node *));
  if (!at)
    return false;
  list->at = at;
  list->room = wanted;
  return true;
}

bool vnode_list_add(struct vnode_node_list *list, struct vnode_graph_node *node) {
  if (!make_room(list, list->count + 1))
    return false;
  list->at[list->count++] = node;
  return true;
}

bool vnode_list_has(const struct vnode_node_list *list, const struct vnode_graph_node *node) {
  for (size_t i = 0; i < list->count; i++)
    if (list->at[i] == node)
      return true;
  return false;
}

bool vnode_list_copy(struct vnode_node_list *to, struct vnode_graph_node *const *at, size_t count) {
  if (!make_room(to, count))
    return false;
  for (size_t i = 0; i < count; i++)
    to->at[i] = at[i];
  to->count = count;
  return true;
}

void vnode_list_clear(struct vnode_node_list *list) {
  free(list->at);
  *list = (struct vnode_node_list){0};
}

static void list_remove(struct vnode_node_list *list, const struct vnode_graph_node *node) {
  size_t kept = 0;
  for (size_t i = 0; i < list->count; i++)
    if (list->at[i] != node)
      list->at[kept++] = list->at[i];
  list->count = kept;
}

/* ------------------------------------------------------------------------------------------- operations */

static size_t align(size_t bytes) {
  return (bytes + 63) / 64 * 64; /* arguments may hold vectors */
}

struct vnode_box *vnode_box_make(const struct vnode_op *op, int device) {
  size_t head = align(sizeof(struct vnode_box)), accesses = align(op->access_count * sizeof *op->accesses);
  struct vnode_box *box = aligned_alloc(64, head + accesses + align(op->args_bytes));
  if (!box)
    return NULL;
  *box = (struct vnode_box){.references = 1, .device = device, .op = *op};
  char *at = (char *)box + head;
  if (op->access_count)
    memcpy(at, op->accesses, op->access_count * sizeof *op->accesses);
  box->op.accesses = (const struct vnode_access *)(void *)at;
  if (op->args_bytes) {
    memcpy(at + accesses, op->args, op->args_bytes);
    box->op.args = at + accesses;
  }
  return box;
}

struct vnode_box *vnode_box_retain(struct vnode_box *box) {
  if (box)
    atomic_fetch_add(&box->references, 1);
  return box;
}

void vnode_box_release(struct vnode_box *box) {
  if (!box || atomic_fetch_sub(&box->references, 1) > 1)
    return;
  box->next_dead = dead_boxes;
  dead_boxes = box;
}

void vnode_box_drop(struct vnode_box *box) {
  if (atomic_fetch_sub(&box->references, 1) == 1)
    free_box(box);
}

/* ------------------------------------------------------------------------------------------- making nodes */

static bool connect(struct vnode_graph_node *from, struct vnode_graph_node *to) {
  if (!make_room(&from->after, from->after.count + 1) || !vnode_list_add(&to->before, from))
    return false;
  return vnode_list_add(&from->after, to);
}

struct vnode_graph_node *vnode_node_make(struct vnode_graph *graph, enum vnode_node_type type,
                                         struct vnode_graph_node *const *nodes, size_t count) {
  struct vnode_graph_node *node = free_nodes;
  if (node)
    free_nodes = node->next_free;
  else if (!(node = malloc(sizeof *node)))
    return NULL;
  *node = (struct vnode_graph_node){
      .state = VNODE_NODE_LIVE, .type = type, .id = graph->next_node_id++, .index = graph->nodes.count, .graph = graph};
  bool made = vnode_list_add(&graph->nodes, node);
  for (size_t i = 0; made && i < count; i++)
    made = connect(nodes[i], node);
  if (made)
    return node;
  vnode_node_unmake(node);
  return NULL;
}

static enum vnode_node_type type_of(const struct vnode_op *op) {
  return op->flags & VNODE_OP_COPY   ? VNODE_NODE_COPY
         : op->flags & VNODE_OP_FILL ? VNODE_NODE_FILL
         : op->flags & VNODE_OP_HOST ? VNODE_NODE_HOST
                                     : VNODE_NODE_KERNEL;
}

struct vnode_graph_node *vnode_node_make_op(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                            const struct vnode_op *op, int device) {
  struct vnode_box *box = vnode_box_make(op, device);
  struct vnode_graph_node *node = box ? vnode_node_make(graph, type_of(op), nodes, count) : NULL;
  if (node) {
    node->box = box;
  } else {
    free(box); /* the arguments stay the caller's */
  }
  return node;
}

void vnode_node_unmake(struct vnode_graph_node *node) {
  struct vnode_graph *graph = node->graph;
  for (size_t i = 0; i < node->before.count; i++)
    list_remove(&node->before.at[i]->after, node);
  for (size_t i = 0; i < node->after.count; i++)
    list_remove(&node->after.at[i]->before, node);
  vnode_list_clear(&node->before);
  vnode_list_clear(&node->after);
  if (node->index < graph->nodes.count && graph->nodes.at[node->index] == node) {
    graph->nodes.count--;
    for (size_t i = node->index; i < graph->nodes.count; i++) {
      graph->nodes.at[i] = graph->nodes.at[i + 1];
      graph->nodes.at[i]->index = i;
    }
  }
  vnode_box_release(node->box);
  if (node->memory) {
    vnode_graph_memory_unref(node->memory);
    graph->memory_nodes--;
  }
  if (node->child)
    vnode_graph_unmake(node->child);
  node->state = 0;
  node->next_free = free_nodes;
  free_nodes = node;
}

bool vnode_node_is(const struct vnode_graph_node *node) {
  return node && node->state == VNODE_NODE_LIVE;
}

enum vnode_status vnode_nodes_check(const struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count) {
  if (count && !nodes)
    return VNODE_INVALID_VALUE;
  uint64_t mark = vnode_graph_next_mark();
  for (size_t i = 0; i < count; i++) {
    if (!vnode_node_is(nodes[i]) || nodes[i]->graph != graph || nodes[i]->mark == mark)
      return VNODE_INVALID_VALUE;
    nodes[i]->mark = mark;
  }
  return VNODE_OK;
}

/* ------------------------------------------------------------------------------------------- graphs */

struct vnode_graph *vnode_graph_make(void) {
  struct vnode_graph *graph = free_graphs;
  if (graph)
    free_graphs = graph->next_free;
  else if (!(graph = malloc(sizeof *graph)))
    return NULL;
  *graph = (struct vnode_graph){.state = VNODE_GRAPH_LIVE, .id = ++last_graph_id};
  return graph;
}

static void unref_object(struct vnode_user_object *object, uint64_t count) {
  object->references -= count;
  if (object->references)
    return;
  object->state = 0;
  object->next = dead_objects;
  dead_objects = object;
}

void vnode_graph_unmake(struct vnode_graph *graph) {
  while (graph->nodes.count)
    vnode_node_unmake(graph->nodes.at[graph->nodes.count - 1]);
  vnode_list_clear(&graph->nodes);
  for (size_t i = 0; i < graph->object_count; i++)
    unref_object(graph->objects[i].object, graph->objects[i].count);
  free(graph->objects);
  graph->state = 0;
  graph->next_free = free_graphs;
  free_graphs = graph;
}

bool vnode_graph_is(const struct vnode_graph *graph) {
  return graph && graph->state == VNODE_GRAPH_LIVE && !graph->is_snapshot;
}

void vnode_node_assign(struct vnode_graph_node *node, const struct vnode_graph_node *from) {
  struct vnode_box *before = node->box;
  node->box = vnode_box_retain(from->box);
  vnode_box_release(before);
  node->event = from->event;
}

static bool copy_node(struct vnode_graph *copy, const struct vnode_graph_node *from) {
  struct vnode_graph_node *node = vnode_node_make(copy, from->type, NULL, 0);
  if (!node)
    return false;
  vnode_node_assign(node, from);
  node->id = from->id;
  node->origin = from;
  node->off = from->off;
  if (from->memory) {
    vnode_graph_memory_retain(from->memory);
    node->memory = from->memory;
    copy->memory_nodes++;
  }
  if (from->child) {
    node->child = vnode_graph_copy(from->child, copy->is_snapshot);
    if (!node->child)
      return false;
    node->child->owner = node;
  }
  for (size_t i = 0; i < from->before.count; i++) /* edges may lead to nodes that come later: from the other side then */
    if (from->before.at[i]->index < from->index && !connect(copy->nodes.at[from->before.at[i]->index], node))
      return false;
  for (size_t i = 0; i < from->after.count; i++)
    if (from->after.at[i]->index < from->index && !connect(node, copy->nodes.at[from->after.at[i]->index]))
      return false;
  return true;
}

static bool copy_objects(struct vnode_graph *copy, const struct vnode_graph *graph) {
  if (!graph->object_count)
    return true;
  copy->objects = malloc(graph->object_count * sizeof *copy->objects);
  if (!copy->objects)
    return false;
  memcpy(copy->objects, graph->objects, graph->object_count * sizeof *copy->objects);
  copy->object_count = graph->object_count;
  for (size_t i = 0; i < copy->object_count; i++)
    copy->objects[i].object->references += copy->objects[i].count;
  return true;
}

struct vnode_graph *vnode_graph_copy(const struct vnode_graph *graph, bool is_snapshot) {
  struct vnode_graph *copy = vnode_graph_make();
  if (!copy)
    return NULL;
  copy->origin = graph;
  copy->is_snapshot = is_snapshot;
  copy->next_node_id = graph->next_node_id;
  bool copied = copy_objects(copy, graph);
  for (size_t i = 0; copied && i < graph->nodes.count; i++)
    copied = copy_node(copy, graph->nodes.at[i]);
  copy->next_node_id = graph->next_node_id;
  if (copied)
    return copy;
  vnode_graph_unmake(copy);
  return NULL;
}

enum vnode_status vnode_graph_create(struct vnode_graph **out) {
  if (!out)
    return VNODE_INVALID_VALUE;
  vnode_graph_lock();
  *out = vnode_graph_make();
  vnode_graph_unlock();
  return *out ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_graph_destroy(struct vnode_graph *graph) {
  vnode_graph_lock();
  bool valid = vnode_graph_is(graph) && !graph->captures && !graph->owner;
  if (valid)
    vnode_graph_unmake(graph);
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_graph_clone(const struct vnode_graph *graph, struct vnode_graph **out) {
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_graph_lock();
  if (out && vnode_graph_is(graph)) {
    *out = graph->memory_nodes ? NULL : vnode_graph_copy(graph, false);
    status = *out ? VNODE_OK : graph->memory_nodes ? VNODE_NOT_SUPPORTED : VNODE_SYSTEM;
  }
  vnode_graph_unlock();
  return status;
}

unsigned vnode_graph_id(const struct vnode_graph *graph) {
  return graph->id;
}

/* ------------------------------------------------------------------------------------------- looking at graphs */

/* The answer's n-th entry. */
static void put(struct vnode_graph_node **nodes, size_t room, size_t n, struct vnode_graph_node *node) {
  if (nodes && n < room)
    nodes[n] = node;
}

static void finish_list(struct vnode_graph_node **nodes, size_t *count, size_t found) {
  for (size_t i = found; nodes && i < *count; i++)
    nodes[i] = NULL;
  if (!nodes || *count > found)
    *count = found;
}

enum vnode_status vnode_graph_nodes(const struct vnode_graph *graph, bool roots_only, struct vnode_graph_node **nodes,
                                    size_t *count) {
  vnode_graph_lock();
  bool valid = count && vnode_graph_is(graph);
  size_t found = 0;
  for (size_t i = 0; valid && i < graph->nodes.count; i++)
    if (!roots_only || !graph->nodes.at[i]->before.count)
      put(nodes, *count, found++, graph->nodes.at[i]);
  if (valid)
    finish_list(nodes, count, found);
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_graph_edges(const struct vnode_graph *graph, struct vnode_graph_node **from,
                                    struct vnode_graph_node **to, size_t *count) {
  vnode_graph_lock();
  bool valid = count && !from == !to && vnode_graph_is(graph);
  size_t found = 0;
  for (size_t i = 0; valid && i < graph->nodes.count; i++)
    for (size_t j = 0; j < graph->nodes.at[i]->before.count; j++, found++) {
      put(from, *count, found, graph->nodes.at[i]->before.at[j]);
      put(to, *count, found, graph->nodes.at[i]);
    }
  if (valid) {
    size_t room = *count;
    finish_list(from, count, found);
    finish_list(to, &room, found);
  }
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_node_neighbours(const struct vnode_graph_node *node, bool after, struct vnode_graph_node **nodes,
                                        size_t *count) {
  vnode_graph_lock();
  bool valid = count && vnode_node_is(node);
  if (valid) {
    const struct vnode_node_list *list = after ? &node->after : &node->before;
    for (size_t i = 0; i < list->count; i++)
      put(nodes, *count, i, list->at[i]);
    finish_list(nodes, count, list->count);
  }
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_node_type vnode_node_type(const struct vnode_graph_node *node) {
  return node->type;
}

struct vnode_graph *vnode_node_graph(const struct vnode_graph_node *node) {
  return node->graph;
}

unsigned vnode_node_id(const struct vnode_graph_node *node) {
  return node->id;
}

const struct vnode_op *vnode_node_op(const struct vnode_graph_node *node) {
  return node->box ? &node->box->op : NULL;
}

struct vnode_event *vnode_node_event(const struct vnode_graph_node *node) {
  return node->event;
}

struct vnode_graph *vnode_node_child(const struct vnode_graph_node *node) {
  return node->child;
}

bool vnode_node_memory(const struct vnode_graph_node *node, void **base, size_t *bytes, int *device) {
  if (!node->memory)
    return false;
  *base = node->memory->base;
  *bytes = node->memory->bytes;
  *device = node->memory->device;
  return true;
}

enum vnode_status vnode_node_in_clone(const struct vnode_graph_node *node, const struct vnode_graph *graph,
                                      struct vnode_graph_node **out) {
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_graph_lock();
  if (out && vnode_node_is(node) && vnode_graph_is(graph))
    for (size_t i = 0; i < graph->nodes.count; i++)
      if (graph->nodes.at[i]->origin == node) {
        *out = graph->nodes.at[i];
        status = VNODE_OK;
      }
  vnode_graph_unlock();
  return status;
}

/* ------------------------------------------------------------------------------------------- changing graphs */

static bool edges_are_valid(const struct vnode_graph *graph, struct vnode_graph_node *const *from,
                            struct vnode_graph_node *const *to, size_t count, bool present) {
  if (!vnode_graph_is(graph) || (count && (!from || !to)))
    return false;
  for (size_t i = 0; i < count; i++)
    if (!vnode_node_is(from[i]) || !vnode_node_is(to[i]) || from[i]->graph != graph || to[i]->graph != graph ||
        from[i] == to[i] || vnode_list_has(&to[i]->before, from[i]) != present)
      return false;
  return true;
}

enum vnode_status vnode_graph_add_edges(struct vnode_graph *graph, struct vnode_graph_node *const *from,
                                        struct vnode_graph_node *const *to, size_t count) {
  vnode_graph_lock();
  bool valid = edges_are_valid(graph, from, to, count, false), added = true;
  for (size_t i = 0; valid && added && i < count; i++)
    added = connect(from[i], to[i]);
  vnode_graph_unlock();
  return !valid ? VNODE_INVALID_VALUE : added ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_graph_remove_edges(struct vnode_graph *graph, struct vnode_graph_node *const *from,
                                           struct vnode_graph_node *const *to, size_t count) {
  vnode_graph_lock();
  bool valid = edges_are_valid(graph, from, to, count, true) && (!count || !graph->memory_nodes);
  for (size_t i = 0; valid && i < count; i++) {
    list_remove(&from[i]->after, to[i]);
    list_remove(&to[i]->before, from[i]);
  }
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_node_destroy(struct vnode_graph_node *node) {
  vnode_graph_lock();
  bool valid = vnode_node_is(node) && !node->graph->captures && !node->graph->is_snapshot && !node->graph->memory_nodes;
  if (valid)
    vnode_node_unmake(node);
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_node_take(struct vnode_graph_node *node, const struct vnode_graph_node *from) {
  vnode_graph_lock();
  bool valid = vnode_node_is(node) && vnode_node_is(from) && node->type == from->type && !node->memory && !node->child;
  if (valid)
    vnode_node_assign(node, from);
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

/* Locks, and checks what all functions that add a node check. */
static enum vnode_status begin_add(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                   struct vnode_graph_node **out) {
  vnode_graph_lock();
  return out && vnode_graph_is(graph) ? vnode_nodes_check(graph, nodes, count) : VNODE_INVALID_VALUE;
}

static enum vnode_status end_add(enum vnode_status status, struct vnode_graph_node *node, struct vnode_graph_node **out) {
  if (!status && !node)
    status = VNODE_SYSTEM;
  if (!status)
    *out = node;
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_graph_add_empty(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                        struct vnode_graph_node **out) {
  enum vnode_status status = begin_add(graph, nodes, count, out);
  return end_add(status, status ? NULL : vnode_node_make(graph, VNODE_NODE_EMPTY, nodes, count), out);
}

enum vnode_status vnode_graph_add_event(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                        struct vnode_event *event, bool record, struct vnode_graph_node **out) {
  enum vnode_status status = begin_add(graph, nodes, count, out);
  struct vnode_graph_node *node = NULL;
  if (!status && !vnode_event_is(event))
    status = VNODE_INVALID_VALUE;
  if (!status)
    node = vnode_node_make(graph, record ? VNODE_NODE_EVENT_RECORD : VNODE_NODE_EVENT_WAIT, nodes, count);
  if (node)
    node->event = event;
  return end_add(status, node, out);
}

enum vnode_status vnode_graph_add_child(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                        const struct vnode_graph *child, struct vnode_graph_node **out) {
  enum vnode_status status = begin_add(graph, nodes, count, out);
  struct vnode_graph_node *node = NULL;
  if (!status && (!vnode_graph_is(child) || child == graph))
    status = VNODE_INVALID_VALUE;
  if (!status && child->memory_nodes)
    status = VNODE_NOT_SUPPORTED;
  struct vnode_graph *copy = status ? NULL : vnode_graph_copy(child, false);
  if (copy)
    node = vnode_node_make(graph, VNODE_NODE_GRAPH, nodes, count);
  if (node) {
    node->child = copy;
    copy->owner = node;
  } else if (copy) {
    vnode_graph_unmake(copy);
  }
  return end_add(status, node, out);
}

enum vnode_status vnode_graph_add_alloc(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                        int device, size_t bytes, enum vnode_owner owner, void **base,
                                        struct vnode_graph_node **out) {
  struct vnode_graph_memory *memory = NULL;
  enum vnode_status status = base ? vnode_graph_memory_make(device, bytes, owner, &memory) : VNODE_INVALID_VALUE;
  if (status)
    return status;
  *base = memory->base;
  status = begin_add(graph, nodes, count, out);
  struct vnode_graph_node *node = status ? NULL : vnode_memory_node_alloc(graph, nodes, count, memory);
  vnode_graph_memory_unref(memory);
  return end_add(status, node, out);
}

enum vnode_status vnode_graph_add_free(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                       void *base, struct vnode_graph_node **out) {
  enum vnode_status status = begin_add(graph, nodes, count, out);
  struct vnode_graph_node *node = NULL;
  if (!status)
    status = vnode_memory_node_free(graph, nodes, count, base, &node);
  return end_add(status, node, out);
}

/* ------------------------------------------------------------------------------------------- user objects */

static bool is_object(const struct vnode_user_object *object) {
  return object && object->state == VNODE_OBJECT_LIVE;
}

enum vnode_status vnode_user_object_create(void *data, void (*destroy)(void *), unsigned references,
                                           struct vnode_user_object **out) {
  if (!out || !destroy || !references || references > INT_MAX)
    return VNODE_INVALID_VALUE;
  vnode_graph_lock();
  struct vnode_user_object *object = free_objects;
  if (object)
    free_objects = object->next;
  else
    object = malloc(sizeof *object);
  if (object)
    *object =
        (struct vnode_user_object){.state = VNODE_OBJECT_LIVE, .references = references, .data = data, .destroy = destroy};
  vnode_graph_unlock();
  *out = object;
  return object ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_user_object_retain(struct vnode_user_object *object, unsigned count) {
  vnode_graph_lock();
  bool valid = is_object(object) && count && count <= INT_MAX;
  if (valid)
    object->references += count;
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

enum vnode_status vnode_user_object_release(struct vnode_user_object *object, unsigned count) {
  vnode_graph_lock();
  bool valid = is_object(object) && count && count <= object->references;
  if (valid)
    unref_object(object, count);
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

static struct vnode_held_object *held_by(struct vnode_graph *graph, const struct vnode_user_object *object) {
  for (size_t i = 0; i < graph->object_count; i++)
    if (graph->objects[i].object == object)
      return &graph->objects[i];
  return NULL;
}

static struct vnode_held_object *hold(struct vnode_graph *graph, struct vnode_user_object *object) {
  struct vnode_held_object *held = held_by(graph, object);
  if (held)
    return held;
  struct vnode_held_object *objects = realloc(graph->objects, (graph->object_count + 1) * sizeof *objects);
  if (!objects)
    return NULL;
  graph->objects = objects;
  held = &objects[graph->object_count++];
  *held = (struct vnode_held_object){.object = object};
  return held;
}

enum vnode_status vnode_graph_retain_object(struct vnode_graph *graph, struct vnode_user_object *object, unsigned count,
                                            bool move) {
  vnode_graph_lock();
  bool valid =
      vnode_graph_is(graph) && is_object(object) && count && count <= INT_MAX && (!move || count <= object->references);
  struct vnode_held_object *held = valid ? hold(graph, object) : NULL;
  if (held) {
    held->count += count;
    object->references += move ? 0 : count;
  }
  vnode_graph_unlock();
  return !valid ? VNODE_INVALID_VALUE : held ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_graph_release_object(struct vnode_graph *graph, struct vnode_user_object *object, unsigned count) {
  vnode_graph_lock();
  struct vnode_held_object *held = vnode_graph_is(graph) && is_object(object) ? held_by(graph, object) : NULL;
  bool valid = held && count && count <= held->count;
  if (valid) {
    held->count -= count;
    if (!held->count)
      *held = graph->objects[--graph->object_count];
    unref_object(object, count);
  }
  vnode_graph_unlock();
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------------- Graphviz */

static const char *type_name(enum vnode_node_type type) {
  static const char *const names[] = {"KERNEL", "MEMCPY",       "MEMSET",        "HOST", "GRAPH",     "EMPTY",
                                      "WAIT",   "EVENT_RECORD", "EXT_SEMAPHORE", "",     "MEM_ALLOC", "MEM_FREE"};
  return names[type];
}

/* Names of operators may hold quotes. */
static void print_escaped(FILE *file, const char *text) {
  for (; *text; text++) {
    if (*text == '"' || *text == '\\')
      fputc('\\', file);
    fputc(*text, file);
  }
}

static void print_node(FILE *file, const struct vnode_graph_node *node, bool verbose) {
  fprintf(file, "\"graph_%u_node_%u\" [shape=\"%s\" label=\"%u\\n%s", node->graph->id, node->id,
          node->type == VNODE_NODE_KERNEL ? "octagon" : "rectangle", node->id, type_name(node->type));
  if (node->box) {
    fputs("\\n", file);
    print_escaped(file, node->box->op.name);
  }
  if (node->child)
    fprintf(file, "\\ngraph_%u", node->child->id);
  if (verbose && node->box)
    fprintf(file, "\\n%lld ns, device %d", (long long)node->box->op.duration_ns, node->box->device);
  for (size_t i = 0; verbose && node->box && i < node->box->op.access_count; i++) {
    const struct vnode_access *access = &node->box->op.accesses[i];
    fprintf(file, "\\n%s %p, %zu x %zu bytes", access->write ? "writes" : "reads", access->at, access->rows,
            access->row_bytes);
  }
  if (verbose && node->memory)
    fprintf(file, "\\n%p, %zu bytes", node->memory->base, node->memory->bytes);
  if (verbose && node->event)
    fprintf(file, "\\nevent %p", (void *)node->event);
  fputs("\"];\n", file);
}

static void print_graph(FILE *file, const struct vnode_graph *graph, bool verbose) {
  fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\" graph[style=\"dashed\"];\n", graph->id, graph->id);
  for (size_t i = 0; i < graph->nodes.count; i++)
    print_node(file, graph->nodes.at[i], verbose);
  for (size_t i = 0; i < graph->nodes.count; i++)
    for (size_t j = 0; j < graph->nodes.at[i]->after.count; j++)
      fprintf(file, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\";\n", graph->id, graph->nodes.at[i]->id, graph->id,
              graph->nodes.at[i]->after.at[j]->id);
  fputs("}\n", file);
  for (size_t i = 0; i < graph->nodes.count; i++)
    if (graph->nodes.at[i]->child)
      print_graph(file, graph->nodes.at[i]->child, verbose);
}

enum vnode_status vnode_graph_print(const struct vnode_graph *graph, const char *path, bool verbose) {
  if (!path || !vnode_graph_is(graph))
    return VNODE_INVALID_VALUE;
  FILE *file = fopen(path, "we");
  if (!file)
    return VNODE_SYSTEM;
  vnode_graph_lock();
  fputs("digraph dot {\n", file);
  print_graph(file, graph, verbose);
  fputs("}\n", file);
  vnode_graph_unlock();
  return fclose(file) ? VNODE_SYSTEM : VNODE_OK;
}
