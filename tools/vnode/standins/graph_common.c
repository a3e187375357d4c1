/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_common.h"

#include <stdlib.h>

static void run_host_call(void *args) {
  const struct vnode_host_call *call = args;
  call->function(call->data);
}

/* The program's function may wait for anything. */
enum vnode_status vnode_host_call_submit(struct vnode_stream *stream, const struct vnode_host_call *call) {
  const struct vnode_op op = {.name = "host function",
                              .work = run_host_call,
                              .args = call,
                              .args_bytes = sizeof *call,
                              .flags = VNODE_OP_WAITS | VNODE_OP_HOST};
  return vnode_op_submit(stream, &op);
}

const void *vnode_node_args(const struct vnode_graph_node *node, enum vnode_node_type type) {
  return vnode_node_is(node) && vnode_node_type(node) == type ? vnode_node_op(node)->args : NULL;
}

enum vnode_status vnode_node_add(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                 vnode_node_submit submit, const void *params, struct vnode_graph_node **out) {
  struct vnode_stream *stream = NULL;
  enum vnode_status status = out ? vnode_graph_add_begin(graph, nodes, count, &stream) : VNODE_INVALID_VALUE;
  if (status)
    return status;
  status = submit(stream, params);
  enum vnode_status ended = vnode_graph_add_end(stream, status ? NULL : out);
  return status ? status : ended;
}

static enum vnode_status take(struct vnode_graph_exec *exec, struct vnode_graph_node *node,
                              const struct vnode_graph_node *from) {
  return exec ? vnode_exec_take(exec, node, from) : vnode_node_take(node, from);
}

enum vnode_status vnode_node_set(struct vnode_graph_exec *exec, struct vnode_graph_node *node, vnode_node_submit submit,
                                 const void *params) {
  struct vnode_graph *graph = NULL;
  struct vnode_graph_node *from = NULL;
  enum vnode_status status = vnode_graph_create(&graph);
  if (status)
    return status;
  status = vnode_node_add(graph, NULL, 0, submit, params, &from);
  if (!status)
    status = take(exec, node, from);
  vnode_graph_destroy(graph);
  return status;
}

enum vnode_status vnode_node_set_event(struct vnode_graph_exec *exec, struct vnode_graph_node *node, bool record,
                                       struct vnode_event *event) {
  struct vnode_graph *graph = NULL;
  struct vnode_graph_node *from = NULL;
  enum vnode_status status = vnode_graph_create(&graph);
  if (status)
    return status;
  status = vnode_graph_add_event(graph, NULL, 0, event, record, &from);
  if (!status)
    status = take(exec, node, from);
  vnode_graph_destroy(graph);
  return status;
}

/* ------------------------------------------------------------------------------------------- what nodes do */

enum vnode_status vnode_submit_copy_node(struct vnode_stream *stream, const void *params) {
  const struct vnode_copy *copy = params;
  size_t to_bytes = (copy->rows - 1) * copy->to_pitch + copy->row_bytes;
  size_t from_bytes = (copy->rows - 1) * copy->from_pitch + copy->row_bytes;
  if (!copy->to || !copy->from ||
      (copy->rows > 1 && (copy->to_pitch < copy->row_bytes || copy->from_pitch < copy->row_bytes)) ||
      !vnode_is_within(copy->to, to_bytes) || !vnode_is_within(copy->from, from_bytes))
    return VNODE_INVALID_VALUE;
  return vnode_copy_submit(stream, copy, true);
}

enum vnode_status vnode_submit_fill_node(struct vnode_stream *stream, const void *params) {
  const struct vnode_fill *fill = params;
  bool known_size = fill->element_bytes == 1 || fill->element_bytes == 2 || fill->element_bytes == 4;
  if (!fill->to || !known_size || !fill->row_elements || !fill->rows ||
      (fill->rows > 1 && fill->pitch < fill->row_elements * fill->element_bytes) ||
      !vnode_is_known(fill->to, (fill->rows - 1) * fill->pitch + fill->row_elements * fill->element_bytes))
    return VNODE_INVALID_VALUE;
  return vnode_fill_submit(stream, fill, true);
}

enum vnode_status vnode_submit_host_node(struct vnode_stream *stream, const void *params) {
  const struct vnode_host_call *call = params;
  return call->function ? vnode_host_call_submit(stream, call) : VNODE_INVALID_VALUE;
}

static char *first_row(const struct vnode_box_side *side) {
  return (char *)side->base + (side->z * side->rows_per_slice + side->y) * side->pitch + side->x_bytes;
}

enum vnode_status vnode_copy_of_box(const struct vnode_box_side *to, const struct vnode_box_side *from, size_t width_bytes,
                                    size_t height, size_t depth, struct vnode_copy *out) {
  if (!to->base || !from->base || !width_bytes || !height || !depth)
    return VNODE_INVALID_VALUE;
  bool to_even = depth == 1 || to->rows_per_slice == height, from_even = depth == 1 || from->rows_per_slice == height;
  bool to_slices = height == 1, from_slices = height == 1; /* one row of each slice */
  if (!(to_even || to_slices) || !(from_even || from_slices))
    return VNODE_NOT_SUPPORTED;
  *out = (struct vnode_copy){.to = first_row(to),
                             .from = first_row(from),
                             .to_pitch = to_even ? to->pitch : to->pitch * to->rows_per_slice,
                             .from_pitch = from_even ? from->pitch : from->pitch * from->rows_per_slice,
                             .row_bytes = width_bytes,
                             .rows = height * depth};
  return VNODE_OK;
}

const void *vnode_plain_edges(size_t count, size_t edge_bytes) {
  static const char few[256];
  static _Thread_local char *many;
  static _Thread_local size_t many_count;
  if (count * edge_bytes <= sizeof few)
    return few;
  if (count > many_count) {
    free(many);
    many = calloc(count, edge_bytes);
    many_count = many ? count : 0;
  }
  return many;
}
