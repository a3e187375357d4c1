/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA graphs: capture of streams, graph objects, and their launches. For the runtime and driver stand-ins, and for
 * stand-ins whose functions may be called while a stream captures. What a rule does on a GPU is in the CUDA programming
 * guide, "CUDA Graphs", and in the comments of cuda_runtime_api.h.
 *
 * Vocabulary
 *   graph     nodes and edges. Made by a capture or node by node.
 *   node      an operation (struct vnode_op, copied), an event's record or wait, memory that comes or goes, a child graph,
 * or nothing. Edges say what runs before it. exec      a snapshot of a graph that can be launched. A launch puts the nodes
 * into the launching stream's order: each branch has a stream of its own, so that nothing but the edges orders nodes.
 *   sequence  what is between the begin and the end of a capture: an origin stream and the streams that joined it by waiting
 *             for an event that was recorded in it.
 *
 * What stand-ins have to do while a stream may capture
 *   - operations: nothing; vnode_op_submit() makes a node of them. A work runs at every launch and must leave its args as
 * they were. Pageable memory is read when the work runs, as on a GPU: no copy of it may be made at submission.
 *   - an operation that cannot be in a graph: vnode_capture_refuse().
 *   - a function that may block or that is not ordered by a stream (cudaMalloc, cudaFree, cudaEventQuery …):
 *     vnode_capture_unsafe() first.
 *   - a function that waits for a stream (cudaMemcpy, cudaStreamQuery): vnode_capture_check_stream() first;
 *     vnode_stream_synchronize() asks by itself.
 *   - cudaMallocAsync and cudaFreeAsync: vnode_graph_memory_*().
 *
 * Errors: INVALID_VALUE for a handle that is none and for bad arguments, SYSTEM without memory, and CUDA's codes of capture.
 * Ownership: execs and captures hold what they need of a graph; handles of nodes live as long as their graph.
 * Thread-safety: any thread; one lock for all of it, which no work and no destructor runs under. Handles are recycled, never
 * given back to the C library, so that a stale one is found out.
 */
#ifndef VNODE_CORE_GRAPH_H
#define VNODE_CORE_GRAPH_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct vnode_graph;       /* cudaGraph_t */
struct vnode_graph_node;  /* cudaGraphNode_t */
struct vnode_graph_exec;  /* cudaGraphExec_t */
struct vnode_user_object; /* cudaUserObject_t */

/* ------------------------------------------------------------------------------------------- capture */

/* Numbers of both APIs. */
enum vnode_capture_mode { VNODE_CAPTURE_GLOBAL, VNODE_CAPTURE_THREAD_LOCAL, VNODE_CAPTURE_RELAXED };
enum vnode_capture_state { VNODE_CAPTURE_NONE, VNODE_CAPTURE_ACTIVE, VNODE_CAPTURE_SPOILT };

/* Captures into `graph`, after its `nodes`, or into a new graph when it is NULL.
   CAPTURE_UNSUPPORTED for the legacy stream, ILLEGAL_STATE when the stream captures already. */
VNODE_API enum vnode_status vnode_capture_begin(struct vnode_stream *stream, struct vnode_graph *graph,
                                                struct vnode_graph_node *const *nodes, size_t count,
                                                enum vnode_capture_mode mode);
/* *out: the graph, the caller's from now on; NULL with every error. ILLEGAL_STATE when the stream does not capture. */
VNODE_API enum vnode_status vnode_capture_end(struct vnode_stream *stream, struct vnode_graph **out);

struct vnode_capture_info {
  enum vnode_capture_state state;
  uint64_t id; /* from here on only for ACTIVE */
  struct vnode_graph *graph;
  struct vnode_graph_node *const *nodes; /* which the next operation comes after; good until the stream's next call */
  size_t count;
};
/* CAPTURE_IMPLICIT for the legacy stream while a blocking stream of its device captures. */
VNODE_API enum vnode_status vnode_capture_query(struct vnode_stream *stream, struct vnode_capture_info *out);
/* Adds `nodes` to those which the next operation comes after, or takes them instead. ILLEGAL_STATE: does not capture. */
VNODE_API enum vnode_status vnode_capture_update(struct vnode_stream *stream, struct vnode_graph_node *const *nodes,
                                                 size_t count, bool replace);
/* The calling thread's mode, one for both APIs. */
VNODE_API enum vnode_status vnode_capture_exchange_mode(enum vnode_capture_mode *mode);

/* Called by functions that are not safe beside a capture: CAPTURE_UNSUPPORTED, and the captures in conflict are spoilt, as
   the modes of thread and captures say. One load when nothing captures. */
VNODE_API enum vnode_status vnode_capture_unsafe(void);
/* OK unless the stream captures; else the capture is spoilt: CAPTURE_UNSUPPORTED. For what cannot be in a graph. */
VNODE_API enum vnode_status vnode_capture_refuse(struct vnode_stream *stream);
/* Whether the stream may be polled or waited for now: the errors that vnode_stream_synchronize() would give. For functions
   whose engine counterpart returns no status. */
VNODE_API enum vnode_status vnode_capture_check_stream(struct vnode_stream *stream);
VNODE_API enum vnode_status vnode_capture_check_event(struct vnode_event *event);
/* A node that records the event, or waits for it, at every launch (cudaEventRecordExternal, cudaEventWaitExternal).
   INVALID_VALUE when the stream does not capture. */
VNODE_API enum vnode_status vnode_capture_event(struct vnode_stream *stream, struct vnode_event *event, bool record);

/* ------------------------------------------------------------------------------------------- memory of graphs */

/* cudaMallocAsync on a stream that captures: memory that keeps its address as long as the graph or an exec of it lives. It
   is charged from now on. */
VNODE_API enum vnode_status vnode_graph_memory_alloc(struct vnode_stream *stream, size_t bytes, enum vnode_owner owner,
                                                     void **out);
/* cudaFreeAsync on a stream that captures. INVALID_VALUE for what is no memory of a graph, or is freed in the graph already.
 */
VNODE_API enum vnode_status vnode_graph_memory_free(struct vnode_stream *stream, void *base);
/* Free of memory of a graph outside of graphs: what was launched may be launched again. NOT_FOUND: it is no such memory;
   INVALID_VALUE: no launch has made it. The caller has done the waiting. */
VNODE_API enum vnode_status vnode_graph_memory_release(void *base);

struct vnode_graph_memory_use {
  uint64_t used, used_high;         /* made by launches and not freed */
  uint64_t reserved, reserved_high; /* charged */
};
VNODE_API void vnode_graph_memory_get(int device, struct vnode_graph_memory_use *out);
VNODE_API void vnode_graph_memory_reset_high(int device, bool used, bool reserved);

/* ------------------------------------------------------------------------------------------- graphs */

/* CUDA's numbers. */
enum vnode_node_type {
  VNODE_NODE_KERNEL = 0,
  VNODE_NODE_COPY = 1,
  VNODE_NODE_FILL = 2,
  VNODE_NODE_HOST = 3,
  VNODE_NODE_GRAPH = 4,
  VNODE_NODE_EMPTY = 5,
  VNODE_NODE_EVENT_WAIT = 6,
  VNODE_NODE_EVENT_RECORD = 7,
  VNODE_NODE_ALLOC = 10,
  VNODE_NODE_FREE = 11,
};

VNODE_API enum vnode_status vnode_graph_create(struct vnode_graph **out);
/* INVALID_VALUE while a capture goes into it, and for child graphs. */
VNODE_API enum vnode_status vnode_graph_destroy(struct vnode_graph *graph);
/* NOT_SUPPORTED with nodes for memory. */
VNODE_API enum vnode_status vnode_graph_clone(const struct vnode_graph *graph, struct vnode_graph **out);
VNODE_API bool vnode_graph_is(const struct vnode_graph *graph);
VNODE_API unsigned vnode_graph_id(const struct vnode_graph *graph);

/* Lists in order of creation. *count: in, room in `nodes` (ignored when that is NULL); out, how many were written, or
   without `nodes` how many there are. Left-over room is filled with NULL. */
VNODE_API enum vnode_status vnode_graph_nodes(const struct vnode_graph *graph, bool roots_only,
                                              struct vnode_graph_node **nodes, size_t *count);
VNODE_API enum vnode_status vnode_graph_edges(const struct vnode_graph *graph, struct vnode_graph_node **from,
                                              struct vnode_graph_node **to, size_t *count);
/* What comes directly before (or after) a node. */
VNODE_API enum vnode_status vnode_node_neighbours(const struct vnode_graph_node *node, bool after,
                                                  struct vnode_graph_node **nodes, size_t *count);
/* INVALID_VALUE when one of the edges is there (or, for removal, is not), and then none is changed. */
VNODE_API enum vnode_status vnode_graph_add_edges(struct vnode_graph *graph, struct vnode_graph_node *const *from,
                                                  struct vnode_graph_node *const *to, size_t count);
VNODE_API enum vnode_status vnode_graph_remove_edges(struct vnode_graph *graph, struct vnode_graph_node *const *from,
                                                     struct vnode_graph_node *const *to, size_t count);

/* Adding nodes after `nodes`. */
VNODE_API enum vnode_status vnode_graph_add_empty(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                  size_t count, struct vnode_graph_node **out);
VNODE_API enum vnode_status vnode_graph_add_event(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                  size_t count, struct vnode_event *event, bool record,
                                                  struct vnode_graph_node **out);
/* `child` is copied. */
VNODE_API enum vnode_status vnode_graph_add_child(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                  size_t count, const struct vnode_graph *child,
                                                  struct vnode_graph_node **out);
VNODE_API enum vnode_status vnode_graph_add_alloc(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                  size_t count, int device, size_t bytes, enum vnode_owner owner,
                                                  void **base, struct vnode_graph_node **out);
VNODE_API enum vnode_status vnode_graph_add_free(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                 size_t count, void *base, struct vnode_graph_node **out);
/* Operations: what is submitted to *stream between begin and end becomes a node (end gives the last one). The stream
   captures, but in no sequence; it is the calling thread's. end with `out` NULL, or without a node (INVALID_VALUE), only
   ends. */
VNODE_API enum vnode_status vnode_graph_add_begin(struct vnode_graph *graph, struct vnode_graph_node *const *nodes,
                                                  size_t count, struct vnode_stream **stream);
VNODE_API enum vnode_status vnode_graph_add_end(struct vnode_stream *stream, struct vnode_graph_node **out);

VNODE_API bool vnode_node_is(const struct vnode_graph_node *node);
VNODE_API enum vnode_node_type vnode_node_type(const struct vnode_graph_node *node);
VNODE_API struct vnode_graph *vnode_node_graph(const struct vnode_graph_node *node);
VNODE_API unsigned vnode_node_id(const struct vnode_graph_node *node); /* within its graph, from 0 */
/* The operation of a KERNEL, COPY, FILL or HOST node; good while the node is not changed. NULL for others. */
VNODE_API const struct vnode_op *vnode_node_op(const struct vnode_graph_node *node);
VNODE_API struct vnode_event *vnode_node_event(const struct vnode_graph_node *node);
VNODE_API struct vnode_graph *vnode_node_child(const struct vnode_graph_node *node);
/* Of ALLOC and FREE nodes. */
VNODE_API bool vnode_node_memory(const struct vnode_graph_node *node, void **base, size_t *bytes, int *device);
VNODE_API enum vnode_status vnode_node_destroy(struct vnode_graph_node *node);
/* The node takes the operation or event of `from`, a node of the same type. */
VNODE_API enum vnode_status vnode_node_take(struct vnode_graph_node *node, const struct vnode_graph_node *from);
/* The node of the clone `graph` that was made of `node`. */
VNODE_API enum vnode_status vnode_node_in_clone(const struct vnode_graph_node *node, const struct vnode_graph *graph,
                                                struct vnode_graph_node **out);
/* Graphviz; with `verbose` also addresses, bytes and modelled durations. SYSTEM: errno says why. */
VNODE_API enum vnode_status vnode_graph_print(const struct vnode_graph *graph, const char *path, bool verbose);

/* ------------------------------------------------------------------------------------------- execs */

enum { VNODE_EXEC_AUTO_FREE = 1, VNODE_EXEC_UPLOAD = 2, VNODE_EXEC_DEVICE_LAUNCH = 4, VNODE_EXEC_NODE_PRIORITY = 8 };

/* INVALID_VALUE with a cycle (*bad: a node of it) or for the second exec of a graph with nodes for memory, NOT_SUPPORTED for
   launches from the device. `bad` may be NULL. */
VNODE_API enum vnode_status vnode_graph_instantiate(struct vnode_graph *graph, uint64_t flags, struct vnode_graph_exec **out,
                                                    struct vnode_graph_node **bad);
VNODE_API enum vnode_status vnode_exec_destroy(struct vnode_graph_exec *exec);
VNODE_API bool vnode_exec_is(const struct vnode_graph_exec *exec);
VNODE_API uint64_t vnode_exec_flags(const struct vnode_graph_exec *exec);
VNODE_API unsigned vnode_exec_id(const struct vnode_graph_exec *exec);
/* Behind all work of the stream and the last launch of the exec; on a stream that captures, a child node. INVALID_VALUE when
   memory that it made is not freed yet and it was not instantiated to free it. */
VNODE_API enum vnode_status vnode_graph_launch(struct vnode_graph_exec *exec, struct vnode_stream *stream);
/* As vnode_node_take, for the exec's copy of `node`; later launches see it. */
VNODE_API enum vnode_status vnode_exec_take(struct vnode_graph_exec *exec, const struct vnode_graph_node *node,
                                            const struct vnode_graph_node *from);
/* For the exec's copy of a GRAPH node; INVALID_VALUE unless `child` has the shape of the graph that is there. */
VNODE_API enum vnode_status vnode_exec_take_child(struct vnode_graph_exec *exec, const struct vnode_graph_node *node,
                                                  const struct vnode_graph *child);
/* Only for KERNEL, COPY and FILL nodes: others are NOT_SUPPORTED. A node that is off does nothing. */
VNODE_API enum vnode_status vnode_exec_set_enabled(struct vnode_graph_exec *exec, const struct vnode_graph_node *node,
                                                   bool on);
VNODE_API enum vnode_status vnode_exec_enabled(struct vnode_graph_exec *exec, const struct vnode_graph_node *node, bool *on);

enum vnode_update_result { /* CUDA's numbers */
                           VNODE_UPDATE_DONE = 0,
                           VNODE_UPDATE_ERROR = 1,
                           VNODE_UPDATE_TOPOLOGY = 2,
                           VNODE_UPDATE_NODE_TYPE = 3,
                           VNODE_UPDATE_PARAMETERS = 5,
                           VNODE_UPDATE_UNSUPPORTED = 6,
};
/* Takes all operations and events of `graph`, whose nodes must be as those of the exec's graph were: in the same order of
   creation, of the same types, with the same edges. GRAPH_UPDATE_FAILED: nothing was changed, *result and *bad (may be NULL)
   say why. */
VNODE_API enum vnode_status vnode_exec_update(struct vnode_graph_exec *exec, const struct vnode_graph *graph,
                                              enum vnode_update_result *result, struct vnode_graph_node **bad);

/* ------------------------------------------------------------------------------------------- user objects */

/* `destroy` runs once, on the thread that lets the last reference go or completes the last launch. */
VNODE_API enum vnode_status vnode_user_object_create(void *data, void (*destroy)(void *), unsigned references,
                                                     struct vnode_user_object **out);
VNODE_API enum vnode_status vnode_user_object_retain(struct vnode_user_object *object, unsigned count);
VNODE_API enum vnode_status vnode_user_object_release(struct vnode_user_object *object, unsigned count);
/* References of the graph; its execs and clones hold the object, too. `move`: takes over the caller's references. */
VNODE_API enum vnode_status vnode_graph_retain_object(struct vnode_graph *graph, struct vnode_user_object *object,
                                                      unsigned count, bool move);
VNODE_API enum vnode_status vnode_graph_release_object(struct vnode_graph *graph, struct vnode_user_object *object,
                                                       unsigned count);

#ifdef __cplusplus
}
#endif
#endif
