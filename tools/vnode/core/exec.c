/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Execs: a snapshot of a graph and a plan of how to launch it. The plan puts the nodes, child graphs unfolded, into lanes: a
 * lane is a stream, the first one the launching stream. A node goes to a lane whose last node comes before it anyway, so
 * that lanes add no order of their own; what orders nodes of different lanes are events. The engine then sees the graph's
 * own partial order, as do the race checker and the modelled clock.
 */
#include <stdlib.h>
#include <string.h>

#include "graph_internal.h"

enum { MAX_LANES = 64 }; /* more branches share lanes, and are ordered by them */

struct step {
  struct vnode_graph_node *node; /* of the snapshot; NULL: only joins what it waits for */
  uint32_t *after;               /* steps that come before it */
  size_t after_count, after_room;
  uint32_t lane, epoch; /* its place in the lane, from 1 */
  uint32_t *waits;      /* those of `after` whose event it has to wait for */
  size_t wait_count;
  struct vnode_event *event; /* recorded behind it when another lane waits */
};

struct lane {
  uint32_t epoch, last; /* of the last step */
  bool forks;           /* its first step waits for no other lane's */
  bool joins;           /* the launching stream waits for its last step */
  struct vnode_stream *stream;
};

struct vnode_graph_exec {
  uint32_t state;
  unsigned id;
  uint64_t flags;
  unsigned references;        /* the handle, and launches that have not ended */
  struct vnode_graph *graph;  /* the snapshot */
  struct vnode_graph *source; /* only with nodes for memory: it may have one exec */
  unsigned source_id;
  struct step *steps;
  uint32_t step_count, step_room;
  struct lane lanes[MAX_LANES];
  uint32_t lane_count;
  struct vnode_event *fork, *done;
  pthread_mutex_t launching;
  struct vnode_graph_exec *next_free;
};

static struct vnode_graph_exec *free_execs; /* with their mutex */

/* ------------------------------------------------------------------------------------------- steps */

static struct step *add_step(struct vnode_graph_exec *exec, struct vnode_graph_node *node) {
  if (exec->step_count == exec->step_room) {
    uint32_t room = exec->step_room ? 2 * exec->step_room : 64;
    struct step *steps = realloc(exec->steps, room * sizeof *steps);
    if (!steps)
      return NULL;
    exec->steps = steps;
    exec->step_room = room;
  }
  struct step *step = &exec->steps[exec->step_count++];
  *step = (struct step){.node = node};
  return step;
}

static bool add_after(struct step *step, uint32_t other) {
  if (step->after_count == step->after_room) {
    size_t room = step->after_room ? 2 * step->after_room : 2;
    uint32_t *after = realloc(step->after, room * sizeof *after);
    if (!after)
      return false;
    step->after = after;
    step->after_room = room;
  }
  step->after[step->after_count++] = other;
  return true;
}

/* The graph's nodes, each behind those before it, in order of creation where that is free. NULL without memory; with a cycle
 *bad is a node of it. */
static struct vnode_graph_node **sort(const struct vnode_graph *graph, struct vnode_graph_node **bad) {
  size_t count = graph->nodes.count, done = 0;
  struct vnode_graph_node **sorted = malloc((count + 1) * sizeof(struct vnode_graph_node *));
  size_t *missing = malloc((count + 1) * sizeof *missing);
  for (size_t i = 0; sorted && missing && i < count; i++) {
    missing[i] = graph->nodes.at[i]->before.count;
    if (!missing[i])
      sorted[done++] = graph->nodes.at[i];
  }
  for (size_t i = 0; sorted && missing && i < done; i++)
    for (size_t j = 0; j < sorted[i]->after.count; j++)
      if (!--missing[sorted[i]->after.at[j]->index])
        sorted[done++] = sorted[i]->after.at[j];
  for (size_t i = 0; sorted && missing && done < count && i < count; i++)
    if (missing[i])
      *bad = graph->nodes.at[i];
  bool complete = missing;
  free(missing);
  if (complete)
    return sorted;
  free(sorted);
  return NULL;
}

/* Adds the steps of `graph`, behind step `enter` (or none, UINT32_MAX); *leave becomes the step that comes behind all of
 *them. bad: a node of a cycle. */
static bool unfold(struct vnode_graph_exec *exec, const struct vnode_graph *graph, uint32_t enter, uint32_t *leave,
                   struct vnode_graph_node **bad);

/* Adds the step of one node; `behind` says by index which step each node ended with. */
static bool unfold_node(struct vnode_graph_exec *exec, struct vnode_graph_node *node, uint32_t enter, uint32_t *behind,
                        struct vnode_graph_node **bad) {
  struct step *step = add_step(exec, node->child ? NULL : node);
  uint32_t own = exec->step_count - 1;
  bool added = step && (node->before.count || enter == UINT32_MAX || add_after(step, enter));
  for (size_t i = 0; added && i < node->before.count; i++)
    added = add_after(step, behind[node->before.at[i]->index]);
  behind[node->index] = own;
  return added && (!node->child || unfold(exec, node->child, own, &behind[node->index], bad));
}

static bool unfold(struct vnode_graph_exec *exec, const struct vnode_graph *graph, uint32_t enter, uint32_t *leave,
                   struct vnode_graph_node **bad) {
  struct vnode_graph_node **sorted = sort(graph, bad);
  uint32_t *behind = malloc((graph->nodes.count + 1) * sizeof *behind);
  bool added = sorted && behind && !*bad;
  for (size_t i = 0; added && i < graph->nodes.count; i++)
    added = unfold_node(exec, sorted[i], enter, behind, bad);
  if (added && leave) {
    struct step *step = add_step(exec, NULL);
    *leave = exec->step_count - 1;
    added = step && add_after(step, enter);
    for (size_t i = 0; added && i < graph->nodes.count; i++)
      if (!graph->nodes.at[i]->after.count)
        added = add_after(step, behind[i]);
  }
  free(sorted);
  free(behind);
  return added;
}

/* ------------------------------------------------------------------------------------------- lanes */

/* Row `step` of the table of clocks: the last epoch of each lane that comes before the step or is it. */
static uint32_t *row(uint32_t *clocks, uint32_t step) {
  return clocks + (size_t)step * MAX_LANES;
}

static uint32_t choose_lane(struct vnode_graph_exec *exec, const struct step *step, const uint32_t *clock) {
  for (size_t i = 0; i < step->after_count; i++) { /* behind one that it directly comes after, if that is still the last */
    const struct step *other = &exec->steps[step->after[i]];
    if (exec->lanes[other->lane].epoch == other->epoch)
      return other->lane;
  }
  for (uint32_t i = 0; i < exec->lane_count; i++)
    if (clock[i] >= exec->lanes[i].epoch)
      return i;
  return exec->lane_count < MAX_LANES ? exec->lane_count++ : (uint32_t)(step - exec->steps) % MAX_LANES;
}

/* Which steps it must wait for by event: those that neither its lane nor another of them puts before it. */
static bool choose_waits(struct vnode_graph_exec *exec, struct step *step, const struct lane *lane, uint32_t *clocks) {
  step->waits = malloc((step->after_count + 1) * sizeof *step->waits);
  for (size_t i = 0; step->waits && i < step->after_count; i++) {
    const struct step *other = &exec->steps[step->after[i]];
    bool covered = other->lane == step->lane || (lane->epoch && row(clocks, lane->last)[other->lane] >= other->epoch);
    for (size_t j = 0; !covered && j < step->after_count; j++)
      covered = j != i && step->after[j] != step->after[i] && row(clocks, step->after[j])[other->lane] >= other->epoch;
    if (!covered)
      step->waits[step->wait_count++] = step->after[i];
  }
  return step->waits;
}

static bool place_step(struct vnode_graph_exec *exec, uint32_t index, uint32_t *clocks) {
  struct step *step = &exec->steps[index];
  uint32_t *clock = row(clocks, index);
  for (size_t i = 0; i < step->after_count; i++)
    for (uint32_t lane = 0; lane < MAX_LANES; lane++)
      if (row(clocks, step->after[i])[lane] > clock[lane])
        clock[lane] = row(clocks, step->after[i])[lane];
  step->lane = choose_lane(exec, step, clock);
  struct lane *lane = &exec->lanes[step->lane];
  if (!choose_waits(exec, step, lane, clocks))
    return false;
  if (!lane->epoch)
    lane->forks = step->lane && !step->wait_count;
  else
    for (uint32_t i = 0; i < MAX_LANES; i++) /* only when lanes are shared is this more than it knows */
      if (row(clocks, lane->last)[i] > clock[i])
        clock[i] = row(clocks, lane->last)[i];
  clock[step->lane] = step->epoch = ++lane->epoch;
  lane->last = index;
  return true;
}

static bool need_event(struct step *step) {
  return step->event || !vnode_event_create(2 /* without timing */, &step->event);
}

static bool make_events(struct vnode_graph_exec *exec) {
  bool made = !vnode_event_create(2, &exec->fork) && !vnode_event_create(2, &exec->done);
  for (uint32_t i = 0; made && i < exec->step_count; i++)
    for (size_t j = 0; made && j < exec->steps[i].wait_count; j++)
      made = need_event(&exec->steps[exec->steps[i].waits[j]]);
  for (uint32_t i = 1; made && i < exec->lane_count; i++)
    if (exec->lanes[i].joins)
      made = need_event(&exec->steps[exec->lanes[i].last]);
  return made;
}

/* Clock of the end of the first lane: lanes that it knows to the end need no join of their own. */
static void choose_joins(struct vnode_graph_exec *exec, uint32_t *clocks) {
  for (uint32_t i = 1; i < exec->lane_count; i++)
    exec->lanes[i].joins = row(clocks, exec->lanes[0].last)[i] < exec->lanes[i].epoch;
}

static bool plan(struct vnode_graph_exec *exec, struct vnode_graph_node **bad) {
  if (!unfold(exec, exec->graph, UINT32_MAX, NULL, bad))
    return false;
  uint32_t *clocks = calloc((size_t)exec->step_count + 1, MAX_LANES * sizeof *clocks);
  bool placed = clocks;
  for (uint32_t i = 0; placed && i < exec->step_count; i++)
    placed = place_step(exec, i, clocks);
  if (placed && exec->step_count)
    choose_joins(exec, clocks);
  free(clocks);
  return placed;
}

/* ------------------------------------------------------------------------------------------- life */

static struct vnode_graph_exec *make_exec(void) {
  struct vnode_graph_exec *exec = free_execs;
  if (exec) {
    free_execs = exec->next_free;
    pthread_mutex_t launching = exec->launching;
    *exec = (struct vnode_graph_exec){.launching = launching};
  } else {
    exec = calloc(1, sizeof *exec);
    if (exec)
      pthread_mutex_init(&exec->launching, NULL);
  }
  if (exec)
    exec->references = 1;
  return exec;
}

/* What an exec has beside its snapshot; without the lock held. */
static void free_plan(struct vnode_graph_exec *exec) {
  for (uint32_t i = 0; i < exec->step_count; i++) {
    if (exec->steps[i].event)
      vnode_event_destroy(exec->steps[i].event);
    free(exec->steps[i].after);
    free(exec->steps[i].waits);
  }
  free(exec->steps);
  for (uint32_t i = 0; i < exec->lane_count; i++)
    if (exec->lanes[i].stream)
      vnode_stream_recycle(exec->lanes[i].stream);
  if (exec->fork)
    vnode_event_destroy(exec->fork);
  if (exec->done)
    vnode_event_destroy(exec->done);
}

static void unref_exec(struct vnode_graph_exec *exec) {
  vnode_graph_lock();
  bool last = !--exec->references;
  vnode_graph_unlock();
  if (!last)
    return;
  free_plan(exec);
  vnode_graph_lock();
  struct vnode_graph *source = exec->source;
  if (source && source->state == VNODE_GRAPH_LIVE && source->id == exec->source_id)
    source->execs--;
  if (exec->graph)
    vnode_graph_unmake(exec->graph);
  exec->next_free = free_execs;
  free_execs = exec;
  vnode_graph_unlock();
}

static enum vnode_status snapshot(struct vnode_graph *graph, uint64_t flags, struct vnode_graph_exec **out) {
  static const uint64_t known =
      VNODE_EXEC_AUTO_FREE | VNODE_EXEC_UPLOAD | VNODE_EXEC_DEVICE_LAUNCH | VNODE_EXEC_NODE_PRIORITY;
  if (!vnode_graph_is(graph) || flags & ~known || (graph->memory_nodes && graph->execs))
    return VNODE_INVALID_VALUE;
  if (flags & VNODE_EXEC_DEVICE_LAUNCH)
    return VNODE_NOT_SUPPORTED;
  struct vnode_graph_exec *exec = make_exec();
  if (!exec)
    return VNODE_SYSTEM;
  exec->graph = vnode_graph_copy(graph, true);
  exec->flags = flags & ~(uint64_t)VNODE_EXEC_UPLOAD;
  if (exec->graph) {
    exec->id = exec->graph->id;
    exec->source = graph;
    exec->source_id = graph->id;
    graph->execs++;
  }
  *out = exec;
  return exec->graph ? VNODE_OK : VNODE_SYSTEM;
}

enum vnode_status vnode_graph_instantiate(struct vnode_graph *graph, uint64_t flags, struct vnode_graph_exec **out,
                                          struct vnode_graph_node **bad) {
  struct vnode_graph_exec *exec = NULL;
  struct vnode_graph_node *cycle = NULL;
  if (bad)
    *bad = NULL;
  if (!out)
    return VNODE_INVALID_VALUE;
  vnode_graph_lock();
  enum vnode_status status = snapshot(graph, flags, &exec);
  if (!status && !plan(exec, &cycle))
    status = cycle ? VNODE_INVALID_VALUE : VNODE_SYSTEM;
  if (bad && cycle)
    *bad = (struct vnode_graph_node *)(uintptr_t)cycle->origin;
  vnode_graph_unlock();
  if (!status && !make_events(exec))
    status = VNODE_SYSTEM;
  if (status) {
    if (exec)
      unref_exec(exec);
    return status;
  }
  exec->state = VNODE_EXEC_LIVE;
  *out = exec;
  return VNODE_OK;
}

bool vnode_exec_is(const struct vnode_graph_exec *exec) {
  return exec && exec->state == VNODE_EXEC_LIVE;
}

uint64_t vnode_exec_flags(const struct vnode_graph_exec *exec) {
  return exec->flags;
}

unsigned vnode_exec_id(const struct vnode_graph_exec *exec) {
  return exec->id;
}

/* Launches that have not ended keep what they need. */
enum vnode_status vnode_exec_destroy(struct vnode_graph_exec *exec) {
  vnode_graph_lock();
  bool valid = vnode_exec_is(exec);
  if (valid)
    exec->state = 0;
  vnode_graph_unlock();
  if (valid)
    unref_exec(exec);
  return valid ? VNODE_OK : VNODE_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------------- launching */

static void run_box(void *args) {
  const struct vnode_box *box = *(struct vnode_box **)args;
  int device = vnode_device_current();
  if (device != box->device)
    vnode_device_set(box->device);
  box->op.work((void *)(uintptr_t)box->op.args);
  if (device != box->device)
    vnode_device_set(device);
}

static void drop_box(void *args) {
  vnode_box_drop(*(struct vnode_box **)args);
}

static enum vnode_status submit_box(struct vnode_stream *stream, struct vnode_box *box) {
  struct vnode_op op = box->op;
  op.work = op.work ? run_box : NULL;
  op.args = &box;
  op.args_bytes = sizeof(struct vnode_box *);
  op.drop = drop_box;
  return vnode_op_submit(stream, &op);
}

static void run_free(void *args) {
  const struct vnode_access *memory = args;
  vnode_memory_poison((void *)(uintptr_t)memory->at, memory->row_bytes);
}

/* For the checker, all of the memory is written when it comes and when it goes. */
static enum vnode_status submit_memory(struct vnode_stream *stream, const struct vnode_graph_memory *memory, bool frees) {
  const struct vnode_access access = {.at = memory->base, .row_bytes = memory->bytes, .rows = 1, .write = true};
  const struct vnode_op op = {.name = frees ? "free node" : "allocation node",
                              .work = frees ? run_free : NULL,
                              .args = &access,
                              .args_bytes = sizeof access,
                              .accesses = &access,
                              .access_count = 1,
                              .flags = frees ? VNODE_OP_FREE : VNODE_OP_ALLOC};
  return vnode_op_submit(stream, &op);
}

static enum vnode_status submit_step(struct vnode_stream *stream, const struct step *step) {
  const struct vnode_graph_node *node = step->node;
  if (!node)
    return VNODE_OK;
  switch (node->type) {
  case VNODE_NODE_EVENT_RECORD:
    return vnode_event_record(node->event, stream);
  case VNODE_NODE_EVENT_WAIT:
    return vnode_event_wait(stream, node->event);
  case VNODE_NODE_ALLOC:
    return submit_memory(stream, node->memory, false);
  case VNODE_NODE_FREE:
    return submit_memory(stream, node->memory, true);
  default:
    break;
  }
  vnode_graph_lock(); /* the box may be replaced meanwhile */
  struct vnode_box *box = node->off ? NULL : vnode_box_retain(node->box);
  vnode_graph_unlock();
  return box ? submit_box(stream, box) : VNODE_OK;
}

static enum vnode_status make_lanes(struct vnode_graph_exec *exec, const struct vnode_stream *stream) {
  for (uint32_t i = 1; i < exec->lane_count; i++)
    if (!exec->lanes[i].stream &&
        !(exec->lanes[i].stream = vnode_stream_make(stream->device, VNODE_STREAM_NON_BLOCKING, stream->priority)))
      return VNODE_SYSTEM;
  return VNODE_OK;
}

static enum vnode_status launch_step(const struct vnode_graph_exec *exec, struct vnode_stream *stream,
                                     const struct step *step) {
  struct vnode_stream *on = step->lane ? exec->lanes[step->lane].stream : stream;
  enum vnode_status status = VNODE_OK;
  for (size_t i = 0; !status && i < step->wait_count; i++)
    status = vnode_event_wait(on, exec->steps[step->waits[i]].event);
  if (!status)
    status = submit_step(on, step);
  if (!status && step->event)
    status = vnode_event_record(step->event, on);
  return status;
}

static enum vnode_status launch_steps(const struct vnode_graph_exec *exec, struct vnode_stream *stream) {
  enum vnode_status status = vnode_event_wait(stream, exec->done); /* of the last launch, if there was one */
  if (!status && exec->lane_count > 1)
    status = vnode_event_record(exec->fork, stream);
  for (uint32_t i = 1; !status && i < exec->lane_count; i++)
    if (exec->lanes[i].forks)
      status = vnode_event_wait(exec->lanes[i].stream, exec->fork);
  for (uint32_t i = 0; !status && i < exec->step_count; i++)
    status = launch_step(exec, stream, &exec->steps[i]);
  for (uint32_t i = 1; !status && i < exec->lane_count; i++)
    if (exec->lanes[i].joins)
      status = vnode_event_wait(stream, exec->steps[exec->lanes[i].last].event);
  return status ? status : vnode_event_record(exec->done, stream);
}

static void end_launch(void *args) {
  unref_exec(*(struct vnode_graph_exec **)args);
}

/* Memory that the launch makes must not be there yet, but for what is freed now because the exec says so; the lock is held.
 */
static enum vnode_status claim_memory(const struct vnode_graph_exec *exec) {
  bool auto_free = exec->flags & VNODE_EXEC_AUTO_FREE;
  for (size_t i = 0; !auto_free && i < exec->graph->nodes.count; i++)
    if (exec->graph->nodes.at[i]->type == VNODE_NODE_ALLOC && exec->graph->nodes.at[i]->memory->live)
      return VNODE_INVALID_VALUE;
  for (uint32_t i = 0; i < exec->step_count; i++)
    if (exec->steps[i].node && exec->steps[i].node->memory)
      vnode_graph_memory_set_live(exec->steps[i].node->memory, exec->steps[i].node->type == VNODE_NODE_ALLOC);
  return VNODE_OK;
}

/* Whether there is anything to launch; with VNODE_OK a reference is the caller's. */
static enum vnode_status begin_launch(struct vnode_graph_exec *exec, struct vnode_stream *stream, bool *captured) {
  vnode_graph_lock();
  enum vnode_status status = vnode_exec_is(exec) ? VNODE_OK : VNODE_INVALID_VALUE;
  *captured = !status && atomic_load(&stream->capture);
  if (*captured)
    status = vnode_capture_launch(stream, exec->graph);
  else if (!status)
    status = claim_memory(exec);
  if (!status && !*captured)
    exec->references++;
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_graph_launch(struct vnode_graph_exec *exec, struct vnode_stream *handle) {
  struct vnode_stream *stream = vnode_forked() ? NULL : vnode_stream_resolve(handle);
  bool captured = false;
  if (!stream)
    return vnode_forked() ? VNODE_NOT_INITIALIZED : VNODE_INVALID_VALUE;
  enum vnode_status status = begin_launch(exec, stream, &captured);
  if (status || captured)
    return status;
  pthread_mutex_lock(&exec->launching);
  status = make_lanes(exec, stream);
  if (!status)
    status = launch_steps(exec, stream);
  pthread_mutex_unlock(&exec->launching);
  const struct vnode_op end = {
      .name = "graph end", .args = &exec, .args_bytes = sizeof(struct vnode_graph_exec *), .drop = end_launch};
  enum vnode_status ended = vnode_op_submit(stream, &end);
  return status ? status : ended;
}

/* ------------------------------------------------------------------------------------------- changing */

/* The snapshot's copy of a node, child graphs included. */
static struct vnode_graph_node *find_copy(const struct vnode_graph *graph, const struct vnode_graph_node *node) {
  if (node->index < graph->nodes.count && graph->nodes.at[node->index]->origin == node)
    return graph->nodes.at[node->index];
  struct vnode_graph_node *found = NULL;
  for (size_t i = 0; !found && i < graph->nodes.count; i++)
    found = graph->nodes.at[i]->origin == node ? graph->nodes.at[i]
            : graph->nodes.at[i]->child        ? find_copy(graph->nodes.at[i]->child, node)
                                               : NULL;
  return found;
}

static bool same_shape(const struct vnode_graph *copy, const struct vnode_graph *graph, enum vnode_update_result *result,
                       struct vnode_graph_node **bad);

static bool same_edges(const struct vnode_graph_node *copy, const struct vnode_graph_node *node) {
  if (copy->before.count != node->before.count)
    return false;
  for (size_t i = 0; i < node->before.count; i++)
    if (!vnode_list_has(&copy->before, copy->graph->nodes.at[node->before.at[i]->index]))
      return false;
  return true;
}

static bool same_node(const struct vnode_graph_node *copy, struct vnode_graph_node *node, enum vnode_update_result *result,
                      struct vnode_graph_node **bad) {
  if (copy->type != node->type)
    *result = VNODE_UPDATE_NODE_TYPE;
  else if (!same_edges(copy, node))
    *result = VNODE_UPDATE_TOPOLOGY;
  else if (copy->memory != node->memory)
    *result = VNODE_UPDATE_UNSUPPORTED;
  else
    return !node->child || same_shape(copy->child, node->child, result, bad);
  *bad = node;
  return false;
}

static bool same_shape(const struct vnode_graph *copy, const struct vnode_graph *graph, enum vnode_update_result *result,
                       struct vnode_graph_node **bad) {
  if (copy->nodes.count != graph->nodes.count) {
    *result = VNODE_UPDATE_TOPOLOGY;
    return false;
  }
  for (size_t i = 0; i < graph->nodes.count; i++)
    if (!same_node(copy->nodes.at[i], graph->nodes.at[i], result, bad))
      return false;
  return true;
}

static void take_all(struct vnode_graph *copy, const struct vnode_graph *graph) {
  for (size_t i = 0; i < graph->nodes.count; i++) {
    vnode_node_assign(copy->nodes.at[i], graph->nodes.at[i]);
    if (graph->nodes.at[i]->child)
      take_all(copy->nodes.at[i]->child, graph->nodes.at[i]->child);
  }
}

enum vnode_status vnode_exec_update(struct vnode_graph_exec *exec, const struct vnode_graph *graph,
                                    enum vnode_update_result *result, struct vnode_graph_node **bad) {
  enum vnode_update_result why = VNODE_UPDATE_ERROR;
  struct vnode_graph_node *where = NULL;
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_graph_lock();
  if (vnode_exec_is(exec) && vnode_graph_is(graph)) {
    status = same_shape(exec->graph, graph, &why, &where) ? VNODE_OK : VNODE_GRAPH_UPDATE_FAILED;
    if (!status) {
      take_all(exec->graph, graph);
      why = VNODE_UPDATE_DONE;
    }
  }
  vnode_graph_unlock();
  if (result)
    *result = why;
  if (bad)
    *bad = where;
  return status;
}

enum vnode_status vnode_exec_take(struct vnode_graph_exec *exec, const struct vnode_graph_node *node,
                                  const struct vnode_graph_node *from) {
  enum vnode_status status = VNODE_INVALID_VALUE;
  vnode_graph_lock();
  struct vnode_graph_node *copy = vnode_exec_is(exec) && vnode_node_is(node) ? find_copy(exec->graph, node) : NULL;
  if (copy && vnode_node_is(from) && copy->type == from->type && !copy->memory && !copy->child) {
    vnode_node_assign(copy, from);
    status = VNODE_OK;
  }
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_exec_take_child(struct vnode_graph_exec *exec, const struct vnode_graph_node *node,
                                        const struct vnode_graph *child) {
  enum vnode_status status = VNODE_INVALID_VALUE;
  enum vnode_update_result why;
  struct vnode_graph_node *where;
  vnode_graph_lock();
  struct vnode_graph_node *copy = vnode_exec_is(exec) && vnode_node_is(node) ? find_copy(exec->graph, node) : NULL;
  if (copy && copy->child && vnode_graph_is(child) && same_shape(copy->child, child, &why, &where)) {
    take_all(copy->child, child);
    status = VNODE_OK;
  }
  vnode_graph_unlock();
  return status;
}

static bool can_be_off(const struct vnode_graph_node *node) {
  return node->type == VNODE_NODE_KERNEL || node->type == VNODE_NODE_COPY || node->type == VNODE_NODE_FILL;
}

/* Finds the copy whose switch is meant; the lock is held. */
static enum vnode_status find_switch(const struct vnode_graph_exec *exec, const struct vnode_graph_node *node,
                                     struct vnode_graph_node **copy) {
  *copy = vnode_exec_is(exec) && vnode_node_is(node) ? find_copy(exec->graph, node) : NULL;
  return !*copy ? VNODE_INVALID_VALUE : can_be_off(*copy) ? VNODE_OK : VNODE_NOT_SUPPORTED;
}

enum vnode_status vnode_exec_set_enabled(struct vnode_graph_exec *exec, const struct vnode_graph_node *node, bool on) {
  struct vnode_graph_node *copy;
  vnode_graph_lock();
  enum vnode_status status = find_switch(exec, node, &copy);
  if (!status)
    copy->off = !on;
  vnode_graph_unlock();
  return status;
}

enum vnode_status vnode_exec_enabled(struct vnode_graph_exec *exec, const struct vnode_graph_node *node, bool *on) {
  struct vnode_graph_node *copy;
  vnode_graph_lock();
  enum vnode_status status = on ? find_switch(exec, node, &copy) : VNODE_INVALID_VALUE;
  if (!status)
    *on = !copy->off;
  vnode_graph_unlock();
  return status;
}
