/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the graph and stream functions of runtime and driver share. Handles of both APIs are the engine's, and the numbers of
 * node types, capture modes and states, flags and results agree in all three (checked in graph_api.inc).
 */
#ifndef VNODE_STANDINS_GRAPH_COMMON_H
#define VNODE_STANDINS_GRAPH_COMMON_H

#include "common.h"
#include "graph.h"

/* A host function as an operation of a stream; the operation's args are this structure. */
struct vnode_host_call {
  void (*function)(void *);
  void *data;
};
enum vnode_status vnode_host_call_submit(struct vnode_stream *stream, const struct vnode_host_call *call);

/* The operation of a node of `type`, as submitted by vnode_copy_submit(), vnode_fill_submit() or the above; NULL when the
   node is of another type. */
const void *vnode_node_args(const struct vnode_graph_node *node, enum vnode_node_type type);

/* A node that is submitted by `submit` with `params`. */
typedef enum vnode_status (*vnode_node_submit)(struct vnode_stream *stream, const void *params);
enum vnode_status vnode_node_add(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                 vnode_node_submit submit, const void *params, struct vnode_graph_node **out);
/* The node, or with `exec` the exec's copy of it, takes the operation that `submit` makes. */
enum vnode_status vnode_node_set(struct vnode_graph_exec *exec, struct vnode_graph_node *node, vnode_node_submit submit,
                                 const void *params);
enum vnode_status vnode_node_set_event(struct vnode_graph_exec *exec, struct vnode_graph_node *node, bool record,
                                       struct vnode_event *event);

enum vnode_status vnode_submit_copy_node(struct vnode_stream *stream, const void *copy);      /* struct vnode_copy */
enum vnode_status vnode_submit_fill_node(struct vnode_stream *stream, const void *fill);      /* struct vnode_fill */
enum vnode_status vnode_submit_host_node(struct vnode_stream *stream, const void *host_call); /* struct vnode_host_call */

/* Rows of a three-dimensional copy between pitched memory, when they are evenly spaced on both sides. NOT_SUPPORTED: they
   are not; INVALID_VALUE: no size. */
struct vnode_box_side {
  void *base;
  size_t pitch, rows_per_slice, x_bytes, y, z;
};
enum vnode_status vnode_copy_of_box(const struct vnode_box_side *to, const struct vnode_box_side *from, size_t width_bytes,
                                    size_t height, size_t depth, struct vnode_copy *out);

/* `count` edges without annotations: all bytes 0. The calling thread's, until its next call. NULL without memory. */
const void *vnode_plain_edges(size_t count, size_t edge_bytes);

#endif
