/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of stream capture (CUDA programming guide, "Creating a Graph Using Stream Capture"). A stream that captures, and
 * an event that was recorded in a capture, each point to a place in the sequence: the nodes that come before whatever is
 * next.
 */
#include <stdlib.h>

#include "graph_internal.h"

struct sequence {
  uint64_t id, thread;
  unsigned references; /* places, and its being open */
  enum vnode_capture_mode mode;
  bool open, spoilt;
  bool is_private; /* vnode_graph_add_begin(): no program's */
  bool owns_graph;
  struct vnode_graph *graph;
  struct vnode_stream *origin;
  struct vnode_capture *streams; /* places of streams */
  struct vnode_node_list left;   /* where streams were that have been destroyed */
  struct sequence *next;         /* open ones, private ones apart */
};

struct vnode_capture {
  struct sequence *sequence;
  struct vnode_node_list nodes;
  struct vnode_stream *stream; /* NULL: an event's */
  struct vnode_capture *next;
};

_Atomic int vnode_capture_count;

static struct sequence *sequences;
static uint64_t last_sequence;
static atomic_uint_fast64_t last_thread;
static _Thread_local uint64_t own_thread;
static _Thread_local enum vnode_capture_mode own_mode; /* GLOBAL until said otherwise */

static uint64_t this_thread(void) {
  if (!own_thread)
    own_thread = atomic_fetch_add(&last_thread, 1) + 1;
  return own_thread;
}

/* ------------------------------------------------------------------------------------------- places */

static struct vnode_capture *make_place(struct sequence *sequence, struct vnode_graph_node *const *nodes, size_t count) {
  struct vnode_capture *place = calloc(1, sizeof *place);
  if (!place || !vnode_list_copy(&place->nodes, nodes, count)) {
    free(place);
    return NULL;
  }
  place->sequence = sequence;
  sequence->references++;
  return place;
}

static void unref_sequence(struct sequence *sequence) {
  if (--sequence->references)
    return;
  vnode_list_clear(&sequence->left);
  free(sequence);
}

static void free_place(struct vnode_capture *place) {
  vnode_list_clear(&place->nodes);
  unref_sequence(place->sequence);
  free(place);
}

static bool enter_stream(struct sequence *sequence, struct vnode_stream *stream, struct vnode_graph_node *const *nodes,
                         size_t count) {
  struct vnode_capture *place = make_place(sequence, nodes, count);
  if (!place)
    return false;
  place->stream = stream;
  place->next = sequence->streams;
  sequence->streams = place;
  atomic_store(&stream->capture, place);
  return true;
}

static void forget_place_of(struct vnode_event *event) {
  struct vnode_capture *place = atomic_load(&event->capture);
  if (!place)
    return;
  atomic_store(&event->capture, NULL);
  free_place(place);
}

/* ------------------------------------------------------------------------------------------- sequences */

static struct sequence *open_sequence(struct vnode_graph *graph, enum vnode_capture_mode mode, bool is_private) {
  struct sequence *sequence = calloc(1, sizeof *sequence);
  if (!sequence)
    return NULL;
  sequence->owns_graph = !graph;
  sequence->graph = graph ? graph : vnode_graph_make();
  if (!sequence->graph) {
    free(sequence);
    return NULL;
  }
  sequence->id = ++last_sequence;
  sequence->thread = this_thread();
  sequence->references = 1;
  sequence->mode = mode;
  sequence->open = true;
  sequence->graph->captures++;
  sequence->is_private = is_private;
  if (!is_private) {
    sequence->next = sequences;
    sequences = sequence;
    atomic_fetch_add(&vnode_capture_count, 1);
  }
  return sequence;
}

/* Its streams are ordinary streams again; the graph stays. */
static void close_sequence(struct sequence *sequence) {
  while (sequence->streams) {
    struct vnode_capture *place = sequence->streams;
    sequence->streams = place->next;
    atomic_store(&place->stream->capture, NULL);
    free_place(place);
  }
  if (!sequence->is_private) {
    struct sequence **link = &sequences;
    while (*link != sequence)
      link = &(*link)->next;
    *link = sequence->next;
    atomic_fetch_sub(&vnode_capture_count, 1);
  }
  sequence->open = false;
  sequence->graph->captures--;
  unref_sequence(sequence);
}

static void give_up(struct sequence *sequence) {
  struct vnode_graph *graph = sequence->owns_graph ? sequence->graph : NULL;
  close_sequence(sequence);
  if (graph)
    vnode_graph_unmake(graph);
}

/* Marks what comes before `nodes`, and them. */
static bool mark_before(const struct vnode_node_list *nodes, uint64_t mark) {
  struct vnode_node_list stack = {0};
  bool done = vnode_list_copy(&stack, nodes->at, nodes->count);
  while (done && stack.count) {
    struct vnode_graph_node *node = stack.at[--stack.count];
    if (node->mark == mark)
      continue;
    node->mark = mark;
    for (size_t i = 0; done && i < node->before.count; i++)
      done = node->before.at[i]->mark == mark || vnode_list_add(&stack, node->before.at[i]);
  }
  vnode_list_clear(&stack);
  return done;
}

static bool all_marked(const struct vnode_node_list *nodes, uint64_t mark) {
  for (size_t i = 0; i < nodes->count; i++)
    if (nodes->at[i]->mark != mark)
      return false;
  return true;
}

/* Has everything that the sequence's streams captured been waited for by the origin? */
static bool is_joined(const struct sequence *sequence, const struct vnode_capture *origin) {
  uint64_t mark = vnode_graph_next_mark();
  if (!mark_before(&origin->nodes, mark))
    return false;
  bool joined = all_marked(&sequence->left, mark);
  for (const struct vnode_capture *place = sequence->streams; place; place = place->next)
    joined = joined && all_marked(&place->nodes, mark);
  return joined;
}

/* ------------------------------------------------------------------------------------------- begin, end, state */

enum vnode_status vnode_capture_begin(struct vnode_stream *handle, struct vnode_graph *graph,
                                      struct vnode_graph_node *const *nodes, size_t count, enum vnode_capture_mode mode) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream || mode < VNODE_CAPTURE_GLOBAL || mode > VNODE_CAPTURE_RELAXED)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  if (stream->legacy)
    return VNODE_CAPTURE_UNSUPPORTED;
  vnode_graph_lock();
  enum vnode_status status = atomic_load(&stream->capture) ? VNODE_ILLEGAL_STATE : VNODE_OK;
  if (!status && graph)
    status = vnode_graph_is(graph) ? vnode_nodes_check(graph, nodes, count) : VNODE_INVALID_VALUE;
  if (!status) {
    struct sequence *sequence = open_sequence(graph, mode, false);
    if (!sequence || !enter_stream(sequence, stream, nodes, graph ? count : 0))
      status = VNODE_SYSTEM;
    if (sequence && status)
      give_up(sequence);
    else if (sequence)
      sequence->origin = stream;
  }
  vnode_graph_unlock();
  return status;
}

/* Why the capture cannot end well; the lock is held. */
static enum vnode_status check_end(const struct sequence *sequence, const struct vnode_capture *place) {
  if (sequence->spoilt)
    return VNODE_CAPTURE_INVALIDATED;
  return is_joined(sequence, place) ? VNODE_OK : VNODE_CAPTURE_UNJOINED;
}

enum vnode_status vnode_capture_end(struct vnode_stream *handle, struct vnode_graph **out) {
  if (!out)
    return VNODE_INVALID_VALUE;
  *out = NULL;
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  enum vnode_status status = place && !place->sequence->is_private ? VNODE_OK : VNODE_ILLEGAL_STATE;
  struct sequence *sequence = status ? NULL : place->sequence;
  if (sequence && sequence->origin != stream)
    status = VNODE_CAPTURE_UNMATCHED;
  else if (sequence && sequence->mode != VNODE_CAPTURE_RELAXED && sequence->thread != this_thread())
    status = VNODE_CAPTURE_WRONG_THREAD;
  if (sequence && status) {
    sequence->spoilt = true;
  } else if (sequence && (status = check_end(sequence, place))) {
    give_up(sequence);
  } else if (sequence) {
    *out = sequence->graph;
    close_sequence(sequence);
  }
  vnode_graph_unlock();
  return status;
}

/* Spoils all captures of blocking streams of the device; true when there were any. */
static bool spoil_blocking(int device, bool spoil) {
  bool any = false;
  for (struct sequence *sequence = sequences; sequence; sequence = sequence->next)
    for (const struct vnode_capture *place = sequence->streams; place; place = place->next)
      if (place->stream->device == device && !(place->stream->flags & VNODE_STREAM_NON_BLOCKING)) {
        any = true;
        sequence->spoilt = sequence->spoilt || spoil;
      }
  return any;
}

enum vnode_status vnode_capture_query(struct vnode_stream *handle, struct vnode_capture_info *out) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream || !out)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  *out = (struct vnode_capture_info){.state = VNODE_CAPTURE_NONE};
  if (!vnode_capture_concerns(stream))
    return VNODE_OK;
  vnode_graph_lock();
  const struct vnode_capture *place = atomic_load(&stream->capture);
  if (place && place->sequence->spoilt)
    out->state = VNODE_CAPTURE_SPOILT;
  else if (place)
    *out = (struct vnode_capture_info){.state = VNODE_CAPTURE_ACTIVE,
                                       .id = place->sequence->id,
                                       .graph = place->sequence->graph,
                                       .nodes = place->nodes.at,
                                       .count = place->nodes.count};
  bool implicit = stream->legacy && spoil_blocking(stream->device, false);
  vnode_graph_unlock();
  return implicit ? VNODE_CAPTURE_IMPLICIT : VNODE_OK;
}

static bool add_nodes(struct vnode_node_list *list, struct vnode_graph_node *const *nodes, size_t count) {
  bool added = true;
  for (size_t i = 0; added && i < count; i++)
    added = vnode_list_has(list, nodes[i]) || vnode_list_add(list, nodes[i]);
  return added;
}

enum vnode_status vnode_capture_update(struct vnode_stream *handle, struct vnode_graph_node *const *nodes, size_t count,
                                       bool replace) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  enum vnode_status status = !place ? VNODE_ILLEGAL_STATE : place->sequence->spoilt ? VNODE_CAPTURE_INVALIDATED : VNODE_OK;
  if (!status)
    status = vnode_nodes_check(place->sequence->graph, nodes, count);
  if (!status) {
    if (replace)
      place->nodes.count = 0;
    status = add_nodes(&place->nodes, nodes, count) ? VNODE_OK : VNODE_SYSTEM;
  }
  vnode_graph_unlock();
  return status;
}

/* ------------------------------------------------------------------------------------------- what is not allowed beside it
 */

enum vnode_status vnode_capture_exchange_mode(enum vnode_capture_mode *mode) {
  if (!mode || *mode < VNODE_CAPTURE_GLOBAL || *mode > VNODE_CAPTURE_RELAXED)
    return VNODE_INVALID_VALUE;
  enum vnode_capture_mode previous = own_mode;
  own_mode = *mode;
  *mode = previous;
  return VNODE_OK;
}

enum vnode_status vnode_capture_unsafe(void) {
  if (!vnode_capture_any() || own_mode == VNODE_CAPTURE_RELAXED)
    return VNODE_OK;
  bool conflict = false;
  vnode_graph_lock();
  for (struct sequence *sequence = sequences; sequence; sequence = sequence->next) {
    bool is_own = sequence->thread == this_thread();
    if (is_own ? sequence->mode != VNODE_CAPTURE_RELAXED
               : sequence->mode == VNODE_CAPTURE_GLOBAL && own_mode == VNODE_CAPTURE_GLOBAL)
      conflict = sequence->spoilt = true;
  }
  vnode_graph_unlock();
  return conflict ? VNODE_CAPTURE_UNSUPPORTED : VNODE_OK;
}

/* The legacy stream would wait for the blocking streams that capture. */
static enum vnode_status check_legacy(const struct vnode_stream *stream) {
  return stream->legacy && spoil_blocking(stream->device, true) ? VNODE_CAPTURE_IMPLICIT : VNODE_OK;
}

/* Spoils the capture of the stream, if there is one. */
static enum vnode_status refuse(const struct vnode_stream *stream) {
  struct vnode_capture *place = atomic_load(&stream->capture);
  if (!place)
    return check_legacy(stream);
  if (place->sequence->spoilt)
    return VNODE_CAPTURE_INVALIDATED;
  place->sequence->spoilt = true;
  return VNODE_CAPTURE_UNSUPPORTED;
}

enum vnode_status vnode_capture_refuse(struct vnode_stream *handle) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream || !atomic_load(&stream->capture))
    return VNODE_OK;
  vnode_graph_lock();
  enum vnode_status status = refuse(stream);
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_capture_synchronize_stream(struct vnode_stream *stream) {
  if (!vnode_capture_any())
    return VNODE_OK;
  vnode_graph_lock();
  enum vnode_status status = refuse(stream);
  vnode_graph_unlock();
  return status ? status : vnode_capture_unsafe();
}

enum vnode_status vnode_capture_synchronize_event(struct vnode_event *event) {
  if (atomic_load_explicit(&event->capture, memory_order_acquire)) {
    vnode_graph_lock();
    struct vnode_capture *place = atomic_load(&event->capture);
    if (place)
      place->sequence->spoilt = true;
    vnode_graph_unlock();
    if (place)
      return VNODE_CAPTURED_EVENT;
  }
  return vnode_capture_unsafe();
}

enum vnode_status vnode_capture_synchronize_device(int device) {
  if (!vnode_capture_any())
    return VNODE_OK;
  bool any = false;
  vnode_graph_lock();
  for (struct sequence *sequence = sequences; sequence; sequence = sequence->next)
    for (const struct vnode_capture *place = sequence->streams; place; place = place->next)
      if (place->stream->device == device)
        any = sequence->spoilt = true;
  vnode_graph_unlock();
  return any ? VNODE_CAPTURE_UNSUPPORTED : vnode_capture_unsafe();
}

enum vnode_status vnode_capture_check_stream(struct vnode_stream *handle) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  return stream ? vnode_capture_synchronize_stream(stream) : VNODE_OK;
}

enum vnode_status vnode_capture_check_event(struct vnode_event *event) {
  return !vnode_forked() && vnode_event_is(event) ? vnode_capture_synchronize_event(event) : VNODE_OK;
}

/* ------------------------------------------------------------------------------------------- operations */

/* Why nothing can be added at this place; OK: it can. */
static enum vnode_status check_place(const struct vnode_capture *place) {
  return place->sequence->spoilt ? VNODE_CAPTURE_INVALIDATED : VNODE_OK;
}

/* The place moves behind the node. */
static enum vnode_status move_behind(struct vnode_capture *place, struct vnode_graph_node *node) {
  if (!node) {
    place->sequence->spoilt = true;
    return VNODE_SYSTEM;
  }
  place->nodes.count = 0;
  return vnode_list_add(&place->nodes, node) ? VNODE_OK : VNODE_SYSTEM;
}

bool vnode_capture_submit(struct vnode_stream *stream, const struct vnode_op *op, enum vnode_status *status) {
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  *status = place ? check_place(place) : check_legacy(stream);
  if (place && !*status)
    *status = move_behind(
        place, vnode_node_make_op(place->sequence->graph, place->nodes.at, place->nodes.count, op, stream->device));
  vnode_graph_unlock();
  return place || *status;
}

bool vnode_capture_record(struct vnode_event *event, struct vnode_stream *stream, enum vnode_status *status) {
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture), *own = NULL;
  *status = place ? check_place(place) : check_legacy(stream);
  if (place && !*status && !(own = make_place(place->sequence, place->nodes.at, place->nodes.count)))
    *status = VNODE_SYSTEM;
  if (!*status)
    forget_place_of(event);
  if (own)
    atomic_store(&event->capture, own);
  vnode_graph_unlock();
  return place || *status;
}

static bool was_recorded(struct vnode_event *event) {
  int64_t t_ns;
  return vnode_is_late() ? vnode_late_event_time(event, &t_ns) != VNODE_INVALID_VALUE : atomic_load(&event->t_ns) >= 0;
}

/* A stream that does not capture waits for an event of an open sequence: it joins. */
static enum vnode_status join_sequence(struct vnode_stream *stream, const struct vnode_capture *recorded) {
  if (stream->legacy) { /* it cannot capture */
    enum vnode_status status = check_legacy(stream);
    recorded->sequence->spoilt = true;
    return status ? status : VNODE_CAPTURE_UNSUPPORTED;
  }
  return enter_stream(recorded->sequence, stream, recorded->nodes.at, recorded->nodes.count) ? VNODE_OK : VNODE_SYSTEM;
}

static enum vnode_status wait_in_capture(struct vnode_capture *place, struct vnode_event *event) {
  struct vnode_capture *recorded = atomic_load(&event->capture);
  if (!recorded && !was_recorded(event))
    return VNODE_OK;
  if (!recorded || !recorded->sequence->open) {
    place->sequence->spoilt = true;
    return VNODE_CAPTURE_ISOLATION;
  }
  if (recorded->sequence != place->sequence) {
    place->sequence->spoilt = recorded->sequence->spoilt = true;
    return VNODE_CAPTURE_MERGE;
  }
  return add_nodes(&place->nodes, recorded->nodes.at, recorded->nodes.count) ? VNODE_OK : VNODE_SYSTEM;
}

bool vnode_capture_wait(struct vnode_stream *stream, struct vnode_event *event, enum vnode_status *status) {
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture), *recorded = atomic_load(&event->capture);
  if (place)
    *status = check_place(place) ? VNODE_CAPTURE_INVALIDATED : wait_in_capture(place, event);
  else if (recorded && recorded->sequence->open)
    *status = check_place(recorded) ? VNODE_CAPTURE_INVALIDATED : join_sequence(stream, recorded);
  else
    *status = recorded ? VNODE_CAPTURED_EVENT : check_legacy(stream);
  vnode_graph_unlock();
  return place || recorded || *status;
}

enum vnode_status vnode_capture_event(struct vnode_stream *handle, struct vnode_event *event, bool record) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream || !vnode_event_is(event))
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  enum vnode_status status = place ? check_place(place) : VNODE_INVALID_VALUE;
  if (!status) {
    struct vnode_graph_node *node =
        vnode_node_make(place->sequence->graph, record ? VNODE_NODE_EVENT_RECORD : VNODE_NODE_EVENT_WAIT, place->nodes.at,
                        place->nodes.count);
    if (node)
      node->event = event;
    status = move_behind(place, node);
  }
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_capture_launch(struct vnode_stream *stream, const struct vnode_graph *graph) {
  struct vnode_capture *place = atomic_load(&stream->capture);
  enum vnode_status status = check_place(place);
  if (!status && graph->memory_nodes) {
    place->sequence->spoilt = true;
    status = VNODE_NOT_SUPPORTED;
  }
  if (status)
    return status;
  struct vnode_graph_node *node =
      vnode_node_make(place->sequence->graph, VNODE_NODE_GRAPH, place->nodes.at, place->nodes.count);
  if (node && !(node->child = vnode_graph_copy(graph, false))) {
    vnode_node_unmake(node);
    node = NULL;
  }
  if (node)
    node->child->owner = node;
  return move_behind(place, node);
}

/* ------------------------------------------------------------------------------------------- memory */

enum vnode_status vnode_graph_memory_alloc(struct vnode_stream *handle, size_t bytes, enum vnode_owner owner, void **out) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream || !out)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  struct vnode_graph_memory *memory = NULL;
  enum vnode_status status = vnode_graph_memory_make(stream->device, bytes, owner, &memory);
  if (status)
    return status;
  *out = memory->base;
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  status = place ? check_place(place) : VNODE_INVALID_VALUE;
  if (!status)
    status =
        move_behind(place, vnode_memory_node_alloc(place->sequence->graph, place->nodes.at, place->nodes.count, memory));
  vnode_graph_memory_unref(memory);
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_graph_memory_free(struct vnode_stream *handle, void *base) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  if (!stream)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  struct vnode_graph_node *node = NULL;
  enum vnode_status status = place ? check_place(place) : VNODE_INVALID_VALUE;
  if (!status)
    status = vnode_memory_node_free(place->sequence->graph, place->nodes.at, place->nodes.count, base, &node);
  if (node)
    status = move_behind(place, node);
  vnode_graph_unlock();
  return status;
}

/* ------------------------------------------------------------------------------------------- operations of explicit nodes
 */

enum vnode_status vnode_graph_add_begin(struct vnode_graph *graph, struct vnode_graph_node *const *nodes, size_t count,
                                        struct vnode_stream **out) {
  if (vnode_forked())
    return VNODE_NOT_INITIALIZED;
  struct vnode_stream *stream = vnode_stream_make(vnode_device_current(), VNODE_STREAM_NON_BLOCKING, 0);
  if (!stream)
    return VNODE_SYSTEM;
  vnode_graph_lock();
  enum vnode_status status = vnode_graph_is(graph) ? vnode_nodes_check(graph, nodes, count) : VNODE_INVALID_VALUE;
  struct sequence *sequence = status ? NULL : open_sequence(graph, VNODE_CAPTURE_RELAXED, true);
  if (!status && (!sequence || !enter_stream(sequence, stream, nodes, count)))
    status = VNODE_SYSTEM;
  if (status && sequence)
    close_sequence(sequence);
  else if (sequence)
    sequence->id = graph->next_node_id; /* of the first node that is added */
  vnode_graph_unlock();
  if (status)
    vnode_stream_recycle(stream);
  *out = stream;
  return status;
}

enum vnode_status vnode_graph_add_end(struct vnode_stream *stream, struct vnode_graph_node **out) {
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  bool added = place->nodes.count == 1 && place->nodes.at[0]->id >= place->sequence->id && !place->sequence->spoilt;
  if (out && added)
    *out = place->nodes.at[0];
  close_sequence(place->sequence);
  vnode_graph_unlock();
  vnode_stream_recycle(stream);
  return added || !out ? VNODE_OK : VNODE_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------------- handles that go */

void vnode_capture_forget_stream(struct vnode_stream *stream) {
  if (!atomic_load_explicit(&stream->capture, memory_order_acquire))
    return;
  vnode_graph_lock();
  struct vnode_capture *place = atomic_load(&stream->capture);
  if (place && place->sequence->origin == stream) {
    give_up(place->sequence);
  } else if (place) {
    struct vnode_capture **link = &place->sequence->streams;
    while (*link != place)
      link = &(*link)->next;
    *link = place->next;
    if (!add_nodes(&place->sequence->left, place->nodes.at, place->nodes.count))
      place->sequence->spoilt = true;
    atomic_store(&stream->capture, NULL);
    free_place(place);
  }
  vnode_graph_unlock();
}

void vnode_capture_forget_event(struct vnode_event *event) {
  if (!atomic_load_explicit(&event->capture, memory_order_acquire))
    return;
  vnode_graph_lock();
  forget_place_of(event);
  vnode_graph_unlock();
}
