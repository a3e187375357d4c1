/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of graphs share: capture.c (rules of capture), graph.c (graphs, nodes, user objects), exec.c (snapshots and
 * launches), graph_memory.c. One lock for all of it. What must run without it (destructors, drop functions, giving memory
 * back) is put aside and done by whoever unlocks.
 *
 * Lock order: an exec's launch lock, the graphs' lock, the engine's. No work runs under the graphs' lock.
 */
#ifndef VNODE_CORE_GRAPH_INTERNAL_H
#define VNODE_CORE_GRAPH_INTERNAL_H

#include "capture.h"
#include "graph.h"

/* An operation with its own arguments and accesses; the last reference drops them. Immutable. */
struct vnode_box {
  atomic_uint references;
  int device; /* that was current for the capture's stream */
  struct vnode_op op;
  struct vnode_box *next_dead;
};

struct vnode_node_list {
  struct vnode_graph_node **at;
  size_t count, room;
};

struct vnode_graph_node {
  uint32_t state; /* VNODE_NODE_LIVE, or 0 once destroyed */
  enum vnode_node_type type;
  unsigned id;
  size_t index; /* in graph->nodes */
  struct vnode_graph *graph;
  struct vnode_box *box;             /* KERNEL, COPY, FILL, HOST */
  struct vnode_event *event;         /* EVENT_* */
  struct vnode_graph *child;         /* GRAPH: the node's own */
  struct vnode_graph_memory *memory; /* ALLOC, FREE */
  struct vnode_node_list before, after;
  const struct vnode_graph_node *origin; /* which it is a copy of */
  bool off;                              /* in an exec: does nothing */
  uint64_t mark;                         /* of the last traversal that came by */
  struct vnode_graph_node *next_free;
};

struct vnode_held_object {
  struct vnode_user_object *object;
  unsigned count;
};

struct vnode_graph {
  uint32_t state;
  unsigned id, next_node_id;
  struct vnode_node_list nodes;
  struct vnode_held_object *objects;
  size_t object_count;
  unsigned captures;              /* that go into it */
  unsigned memory_nodes, execs;   /* with the former, there may be one exec */
  struct vnode_graph_node *owner; /* of a child graph */
  const struct vnode_graph *origin;
  bool is_snapshot; /* of an exec: no handle of the program means it */
  struct vnode_graph *next_free;
};

/* Memory that an ALLOC node makes. */
struct vnode_graph_memory {
  void *base;
  size_t bytes;
  int device;
  unsigned references;             /* nodes */
  bool live;                       /* a launch has made it and nothing has freed it */
  const struct vnode_graph *maker; /* of the ALLOC node that the program sees; only compared */
  const struct vnode_graph *freer; /* that has a FREE node for it, or NULL; only compared */
  struct vnode_graph_memory *next, *next_dead;
};

#define VNODE_GRAPH_LIVE 0x47524148u
#define VNODE_NODE_LIVE 0x4e4f4445u
#define VNODE_EXEC_LIVE 0x45584543u
#define VNODE_OBJECT_LIVE 0x4f424a45u

void vnode_graph_lock(void);
void vnode_graph_unlock(void); /* and does what was put aside */

/* Everything below: with the lock held. */

bool vnode_list_add(struct vnode_node_list *list, struct vnode_graph_node *node);
bool vnode_list_has(const struct vnode_node_list *list, const struct vnode_graph_node *node);
bool vnode_list_copy(struct vnode_node_list *to, struct vnode_graph_node *const *at, size_t count);
void vnode_list_clear(struct vnode_node_list *list);

struct vnode_box *vnode_box_make(const struct vnode_op *op, int device);
struct vnode_box *vnode_box_retain(struct vnode_box *box);
void vnode_box_release(struct vnode_box *box); /* puts aside */
void vnode_box_drop(struct vnode_box *box);    /* the same without the lock held */

/* A node after `nodes`, which are of `graph`; NULL without memory. */
struct vnode_graph_node *vnode_node_make(struct vnode_graph *graph, enum vnode_node_type type,
                                         struct vnode_graph_node *const *nodes, size_t count);
struct vnode_graph_node *vnode_node_make_op(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                            const struct vnode_op *op, int device);
void vnode_node_unmake(struct vnode_graph_node *node); /* the last that was made */
/* INVALID_VALUE unless all are nodes of `graph`, each once. */
enum vnode_status vnode_nodes_check(const struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count);

struct vnode_graph *vnode_graph_make(void);
void vnode_graph_unmake(struct vnode_graph *graph);
/* With nodes for memory only for snapshots. NULL without memory. */
struct vnode_graph *vnode_graph_copy(const struct vnode_graph *graph, bool is_snapshot);
/* Takes what `from`, of the same type, does. */
void vnode_node_assign(struct vnode_graph_node *node, const struct vnode_graph_node *from);
/* A number that no node is marked with. */
uint64_t vnode_graph_next_mark(void);

struct vnode_graph_node *vnode_memory_node_alloc(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                 size_t count, struct vnode_graph_memory *memory);
enum vnode_status vnode_memory_node_free(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                         void *base, struct vnode_graph_node **out);
/* Without the lock held: charges. */
enum vnode_status vnode_graph_memory_make(int device, size_t bytes, enum vnode_owner owner, struct vnode_graph_memory **out);
void vnode_graph_memory_retain(struct vnode_graph_memory *memory);
void vnode_graph_memory_unref(struct vnode_graph_memory *memory);
void vnode_graph_memory_set_live(struct vnode_graph_memory *memory, bool live);
/* Takes what was put aside / does it (without the lock held). */
struct vnode_graph_memory *vnode_graph_memory_dead(void);
void vnode_graph_memory_bury(struct vnode_graph_memory *dead);

/* capture.c, for exec.c: a launch on a stream that captures becomes a node. */
enum vnode_status vnode_capture_launch(struct vnode_stream *stream, const struct vnode_graph *graph);

#endif
