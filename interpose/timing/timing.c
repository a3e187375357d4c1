/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/mman.h>

#include "interpose/timing/internal.h"

struct b200_timing_state b200_timing_state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------------------------------ dependencies */

/* The clock for a call on the stream; NULL: not `wanted`, there is none, or the stream is being captured. */
static struct b200_clock *clock_for(bool wanted, void *stream) {
  const struct b200_driver *d = wanted ? b200_driver_find() : NULL;
  return d && !b200_clock_is_captured(d, stream) ? b200_clock_current(d) : NULL;
}

/* A wait whose event the driver may have refused. */
static void push_wait(struct b200_clock *clock, const struct b200_entry *entry) {
  if (entry->first) {
    b200_clock_push(clock, entry);
    return;
  }
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_clock_lose(clock, entry, B200_UNTIMED_VENDOR);
  pthread_mutex_unlock(&b200_timing_state.lock);
}

/* What a stream is ordered after without an event. Where it waits the stream cannot be asked: an event on it would wait as
   well, so the time of issue stands for it. */
static void wait_implicitly(struct b200_clock *clock, const struct b200_driver *d, uint64_t key) {
  struct b200_entry entry = {.kind = WAIT, .stream = key, .issued_ns = b200_runtime_now_ns()};
  pthread_mutex_lock(&b200_timing_state.lock);
  bool waits = b200_overlap_has_blocking(clock->overlap) && b200_overlap_implicit(clock->overlap, key, &entry.wait);
  pthread_mutex_unlock(&b200_timing_state.lock);
  if (!waits)
    return;
  entry.first = b200_clock_stamp_issue(clock, d);
  push_wait(clock, &entry);
}

void b200_timing_launch(void *stream) {
  struct b200_clock *clock = clock_for(true, stream);
  const struct b200_driver *d = &b200_timing_state.driver;
  if (!clock)
    return;
  uint64_t key = b200_clock_key(stream, false);
  b200_clock_stream_number(clock, d, key, stream);
  wait_implicitly(clock, d, key);
}

void b200_timing_record(void *event, void *stream, bool per_thread) {
  struct b200_clock *clock = clock_for(b200_timing_now() & B200_TIMING_ACTIVE, stream);
  const struct b200_driver *d = &b200_timing_state.driver;
  if (!clock)
    return;
  uint64_t key = b200_clock_key(stream, per_thread);
  b200_clock_stream_number(clock, d, key, stream);
  if (b200_timing_now() & B200_TIMING_BLOCKING)
    wait_implicitly(clock, d, key);
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_overlap_record(clock->overlap, (uint64_t)(uintptr_t)event, key);
  pthread_mutex_unlock(&b200_timing_state.lock);
}

void b200_timing_event_gone(void *event) {
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_load_explicit(&b200_timing_state.clocks[i], memory_order_acquire);
    if (!clock)
      return;
    pthread_mutex_lock(&b200_timing_state.lock);
    b200_overlap_forget_event(clock->overlap, (uint64_t)(uintptr_t)event);
    pthread_mutex_unlock(&b200_timing_state.lock);
  }
}

void b200_timing_wait(void *stream, void *event, bool per_thread) {
  struct b200_clock *clock = clock_for(b200_timing_now() & B200_TIMING_ACTIVE, stream);
  const struct b200_driver *d = &b200_timing_state.driver;
  if (!clock)
    return;
  uint64_t key = b200_clock_key(stream, per_thread);
  struct b200_entry entry = {.kind = WAIT, .stream = key, .issued_ns = b200_runtime_now_ns()};
  b200_clock_stream_number(clock, d, key, stream);
  if (b200_timing_now() & B200_TIMING_BLOCKING)
    wait_implicitly(clock, d, key);
  pthread_mutex_lock(&b200_timing_state.lock);
  bool waits = b200_overlap_wait(clock->overlap, key, (uint64_t)(uintptr_t)event, &entry.wait);
  pthread_mutex_unlock(&b200_timing_state.lock);
  if (!waits)
    return;
  entry.first = b200_clock_stamp(clock, d, per_thread && !stream ? CU_STREAM_PER_THREAD : (CUstream)stream);
  push_wait(clock, &entry);
}

/* What the host is about to wait for: later work of other threads is no part of it. */
void b200_timing_host_begin(struct b200_host_wait *wait, enum b200_host_wait_kind kind, void *what, bool per_thread) {
  const struct b200_driver *d = b200_timing_now() || b200_timing_state.epoch > 0 ? b200_driver_find() : NULL;
  wait->clock = d ? b200_clock_current(d) : NULL;
  wait->drains = false;
  if (!wait->clock)
    return;
  const struct b200_overlap *overlap = wait->clock->overlap;
  uint64_t stream = kind == B200_HOST_STREAM ? b200_clock_key(what, per_thread) : 0;
  pthread_mutex_lock(&b200_timing_state.lock);
  if (kind == B200_HOST_EVENT)
    wait->upto = b200_overlap_of_event(overlap, (uint64_t)(uintptr_t)what);
  else if (kind == B200_HOST_STREAM)
    wait->upto = b200_overlap_of_stream(overlap, stream);
  else
    wait->upto = b200_overlap_of_device(overlap);
  wait->drains = kind == B200_HOST_DEVICE || (kind == B200_HOST_STREAM && stream == wait->clock->main_key);
  pthread_mutex_unlock(&b200_timing_state.lock);
}

void b200_timing_host_end(const struct b200_host_wait *wait, bool failed_call) {
  if (!wait->clock || failed_call)
    return;
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_overlap_over(wait->clock->overlap, &wait->upto);
  pthread_mutex_unlock(&b200_timing_state.lock);
  const struct b200_driver *d = &b200_timing_state.driver;
  struct b200_entry entry = {.kind = DRAINED, .issued_ns = b200_runtime_now_ns()};
  if (wait->drains && (b200_timing_now() & B200_TIMING_GEMMS) && !b200_runtime_is_capturing())
    entry.first = b200_clock_stamp_issue(wait->clock, d);
  if (entry.first)
    b200_clock_push(wait->clock, &entry);
  b200_clock_read_back(wait->clock, d, QUEUE);
}

/* ------------------------------------------------------------------------------------------- collectives */

struct operation {
  const void *comm;
  void *stream;
  uint64_t bytes;
  uint32_t calls;
  int32_t nranks;
  uint8_t op, dtype;
};

/* Rank of this process in a communicator that works already; -1 when it cannot be asked. */
static int rank_in(const void *comm) {
  static _Atomic(void *) cache;
  int rank = -1;
  int (*ask)(const void *, int *) =
      (int (*)(const void *, int *))b200_library_cached(&cache, B200_LIBRARY_nccl, "ncclCommUserRank");
  return ask && comm && ask(comm, &rank) == 0 ? rank : -1;
}

/* Every operation takes its number, timed or not, so that all ranks count alike. Returns the communicator's id. */
static uint64_t number_operation(const struct operation *operation, uint64_t *sequence) {
  uint64_t id = 0;
  *sequence = 0;
  pthread_mutex_lock(&b200_timing_state.lock);
  struct b200_comm *comm = b200_comms_find(&b200_timing_state.comms, operation->comm);
  bool fresh = comm && !comm->written;
  if (comm) {
    id = comm->id;
    *sequence = comm->operations;
    comm->operations += operation->calls;
    comm->written = true;
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
  if (!fresh)
    return id;
  int rank = rank_in(operation->comm);
  pthread_mutex_lock(&b200_timing_state.lock);
  comm = b200_comms_find(&b200_timing_state.comms, operation->comm);
  if (comm)
    b200_timing_write_comm(comm, operation->nranks, rank);
  pthread_mutex_unlock(&b200_timing_state.lock);
  return id;
}

/* Not the same as a mode that became off, as the driver failed: collectives are still numbered and counted then. */
static bool told_off(void) {
  return b200_timing_state.config && b200_timing_state.config->timing == B200_TIMING_OFF;
}

static void refuse(struct b200_span *span, enum b200_untimed why) {
  span->clock = NULL;
  span->untimed = 1 + (uint32_t)why;
}

/* Before the vendor's call that starts the operation on the device. */
static void begin_operation(struct b200_span *span, const struct operation *operation) {
  uint64_t sequence, id = number_operation(operation, &sequence);
  const struct b200_driver *d = b200_timing_state.mode == B200_TIMING_OFF ? NULL : b200_driver_find();
  if (!d) {
    refuse(span, B200_UNTIMED_VENDOR);
    return;
  }
  if (b200_clock_is_captured(d, operation->stream)) {
    refuse(span, B200_UNTIMED_IN_GRAPH);
    return;
  }
  if (!(b200_timing_now() & B200_TIMING_ACTIVE)) {
    refuse(span, b200_timing_state.mode == B200_TIMING_ON ? B200_UNTIMED_COMPARISON : B200_UNTIMED_SAMPLED);
    return;
  }
  struct b200_clock *clock = b200_clock_current(d);
  if (!clock) {
    refuse(span, B200_UNTIMED_EARLY);
    return;
  }
  span->clock = clock;
  span->stream = operation->stream;
  span->key = b200_clock_key(operation->stream, false);
  span->issued_ns = b200_runtime_now_ns();
  uint16_t stream = b200_clock_stream_number(clock, d, span->key, operation->stream);
  wait_implicitly(clock, d, span->key);
  pthread_mutex_lock(&b200_timing_state.lock);
  span->info = b200_clock_open_info(clock, &(struct b200_info){.comm = id,
                                                               .sequence = sequence,
                                                               .bytes = operation->bytes,
                                                               .group = operation->calls,
                                                               .nranks = operation->nranks,
                                                               .op = operation->op,
                                                               .dtype = operation->dtype,
                                                               .stream = stream});
  struct b200_overlap_id name = b200_overlap_collective(clock->overlap, span->key, span->info);
  if (name.lane < 0)
    b200_clock_close_info(clock, span->info);
  pthread_mutex_unlock(&b200_timing_state.lock);
  span->lane = name.lane;
  span->number = name.number;
  if (name.lane < 0) {
    refuse(span, B200_UNTIMED_FULL);
    return;
  }
  span->start = b200_clock_stamp(clock, d, operation->stream);
}

/* After it. status: ncclResult_t. */
static void end_operation(struct b200_span *span, uint32_t calls, int status) {
  enum { IN_PROGRESS = 7 };
  if (span->untimed && (status == 0 || status == IN_PROGRESS))
    b200_timing_untimed((enum b200_untimed)(span->untimed - 1), calls);
  if (!span->clock)
    return;
  struct b200_clock *clock = span->clock;
  const struct b200_driver *d = &b200_timing_state.driver;
  struct b200_entry entry = {.kind = COLLECTIVE,
                             .info = span->info,
                             .first = span->start,
                             .stream = span->key,
                             .issued_ns = span->issued_ns,
                             .id = {.lane = span->lane, .number = span->number}};
  if (status == 0 && entry.first)
    entry.second = b200_clock_stamp(clock, d, span->stream);
  if (entry.second) {
    b200_clock_push(clock, &entry);
  } else {
    pthread_mutex_lock(&b200_timing_state.lock);
    if (status != 0 && status != IN_PROGRESS)
      b200_clock_close_info(clock, entry.info); /* there was no operation */
    b200_clock_lose(clock, &entry, status == IN_PROGRESS ? B200_UNTIMED_IN_PROGRESS : B200_UNTIMED_VENDOR);
    b200_clock_give_event(clock, entry.first);
    pthread_mutex_unlock(&b200_timing_state.lock);
  }
  b200_clock_read_back(clock, d, AT_ONCE);
}

/* pre: within a group. Adds the call to the part of its stream. */
static void join_group(struct b200_group *group, const void *comm, void *stream, const struct b200_coll *coll) {
  unsigned at = 0;
  while (at < group->streams && group->parts[at].stream != stream)
    at++;
  if (at == B200_GROUP_STREAMS) {
    group->dropped++;
    return;
  }
  struct b200_group_stream *part = &group->parts[at];
  if (at == group->streams) {
    group->streams++;
    *part = (struct b200_group_stream){
        .stream = stream, .comm = comm, .nranks = coll->nranks, .op = coll->op, .dtype = coll->dtype};
  }
  if (part->op != coll->op)
    part->op = B200_COLL_COUNT;
  part->bytes += b200_coll_bytes(coll);
  part->calls++;
}

void b200_timing_coll_begin(struct b200_thread *self, struct b200_span *span, const void *comm, void *stream,
                            const struct b200_coll *coll, const struct b200_totals *before) {
  if (told_off())
    return;
  if (b200_timing_state.from_gemms && coll->nranks > 1) {
    pthread_mutex_lock(&b200_timing_state.lock);
    b200_timing_state.from_gemms = false;
    pthread_mutex_unlock(&b200_timing_state.lock);
    atomic_fetch_and(&b200_timing_wants, ~(unsigned)B200_TIMING_STEPS);
  }
  if (before->begins_step && coll->nranks > 1)
    b200_timing_boundary(stream, before);
  if (self->group.depth > 0)
    return;
  begin_operation(span, &(struct operation){.comm = comm,
                                            .stream = stream,
                                            .bytes = b200_coll_bytes(coll),
                                            .calls = 1,
                                            .nranks = coll->nranks,
                                            .op = coll->op,
                                            .dtype = coll->dtype});
}

void b200_timing_coll_end(struct b200_thread *self, struct b200_span *span, const void *comm, void *stream,
                          const struct b200_coll *coll, int status) {
  if (self->group.depth > 0 && status == 0)
    join_group(&self->group, comm, stream, coll);
  else
    end_operation(span, 1, status);
}

void b200_timing_group_started(struct b200_thread *self) {
  if (self->group.depth++ == 0)
    self->group.streams = self->group.dropped = 0;
}

void b200_timing_group_begin(struct b200_thread *self, struct b200_span *spans) {
  struct b200_group *group = &self->group;
  if (group->depth != 1 || told_off())
    return;
  for (unsigned i = 0; i < group->streams; i++) {
    const struct b200_group_stream *part = &group->parts[i];
    begin_operation(&spans[i], &(struct operation){.comm = part->comm,
                                                   .stream = part->stream,
                                                   .bytes = part->bytes,
                                                   .calls = part->calls,
                                                   .nranks = part->nranks,
                                                   .op = part->op,
                                                   .dtype = part->dtype});
  }
}

void b200_timing_group_end(struct b200_thread *self, struct b200_span *spans, int status) {
  struct b200_group *group = &self->group;
  if (group->depth == 0)
    return;
  if (--group->depth > 0)
    return;
  for (unsigned i = 0; i < group->streams; i++)
    end_operation(&spans[i], group->parts[i].calls, status);
  if (group->dropped > 0)
    b200_timing_untimed(B200_UNTIMED_FULL, group->dropped);
  group->streams = group->dropped = 0;
}

void b200_timing_comm_made(const void *comm, uint64_t id, const void *parent) {
  pthread_mutex_lock(&b200_timing_state.lock);
  const struct b200_comm *from = parent ? b200_comms_find(&b200_timing_state.comms, parent) : NULL;
  b200_comms_add(&b200_timing_state.comms, comm, id, from ? from->id : 0);
  pthread_mutex_unlock(&b200_timing_state.lock);
}

uint64_t b200_timing_comm_split(const void *parent, const void *key, size_t key_bytes) {
  pthread_mutex_lock(&b200_timing_state.lock);
  uint64_t id = b200_comms_split(&b200_timing_state.comms, parent, key, key_bytes);
  pthread_mutex_unlock(&b200_timing_state.lock);
  return id;
}

void b200_timing_comm_gone(const void *comm, bool remove) {
  const struct b200_driver *d = b200_timing_state.mode == B200_TIMING_OFF ? NULL : b200_driver_find();
  struct b200_clock *clock = d ? b200_clock_current(d) : NULL;
  if (clock)
    b200_clock_read_back(clock, d, QUEUE);
  pthread_mutex_lock(&b200_timing_state.lock);
  if (remove)
    b200_comms_remove(&b200_timing_state.comms, comm);
  pthread_mutex_unlock(&b200_timing_state.lock);
}

/* ------------------------------------------------------------------------------------------ GEMMs and graphs */

void b200_timing_gemm_begin(struct b200_span *span, void *stream) {
  unsigned wants = b200_timing_now();
  struct b200_clock *clock = clock_for(wants, stream);
  const struct b200_driver *d = &b200_timing_state.driver;
  if (!clock)
    return;
  uint64_t key = b200_clock_key(stream, false);
  if (!clock->has_main || clock->main_key != key || clock->main_epoch != b200_timing_state.epoch) {
    b200_clock_stream_number(clock, d, key, stream);
    pthread_mutex_lock(&b200_timing_state.lock);
    clock->has_main = true;
    clock->main_epoch = b200_timing_state.epoch; /* once a step, because the accounting may forget an idle stream */
    clock->main_key = key;
    clock->main_stream = stream;
    b200_overlap_compute(clock->overlap, key);
    pthread_mutex_unlock(&b200_timing_state.lock);
  }
  if (wants & B200_TIMING_BLOCKING)
    wait_implicitly(clock, d, key);
  if (!(wants & B200_TIMING_GEMMS))
    return;
  span->clock = clock;
  span->stream = stream;
  span->key = key;
  span->issued_ns = b200_runtime_now_ns();
  span->number = b200_timing_state.epoch;
  span->probe = b200_clock_stamp_issue(clock, d);
  span->start = b200_clock_stamp(clock, d, stream);
}

static void end_span(struct b200_span *span, enum kind kind, bool failed_call) {
  if (!span->clock)
    return;
  struct b200_clock *clock = span->clock;
  const struct b200_driver *d = &b200_timing_state.driver;
  struct b200_entry entry = {.kind = kind,
                             .first = span->start,
                             .probe = span->probe,
                             .stream = span->key,
                             .epoch = span->number,
                             .issued_ns = span->issued_ns};
  if (entry.first && !failed_call)
    entry.second = b200_clock_stamp(clock, d, span->stream);
  if (entry.second) {
    b200_clock_push(clock, &entry);
    return;
  }
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_clock_drop_events(clock, &entry);
  pthread_mutex_unlock(&b200_timing_state.lock);
}

void b200_timing_gemm_end(struct b200_span *span, bool failed_call) {
  enum { MANY = QUEUE / 8 }; /* more GEMMs between two collectives than those read back */
  end_span(span, GEMM, failed_call);
  if (span->clock && span->clock->tail - span->clock->head > MANY)
    b200_clock_read_back(span->clock, &b200_timing_state.driver, AT_ONCE);
}

void b200_timing_graph_begin(struct b200_span *span, void *stream) {
  struct b200_clock *clock = clock_for(b200_timing_now() & B200_TIMING_ACTIVE, stream);
  const struct b200_driver *d = &b200_timing_state.driver;
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_timing_state.graphs++;
  pthread_mutex_unlock(&b200_timing_state.lock);
  if (!clock)
    return;
  span->clock = clock;
  span->stream = stream;
  span->key = b200_clock_key(stream, false);
  span->issued_ns = b200_runtime_now_ns();
  span->start = b200_clock_stamp(clock, d, stream);
}

void b200_timing_graph_end(struct b200_span *span, bool failed_call) {
  end_span(span, GRAPH, failed_call);
  if (span->clock)
    b200_clock_read_back(span->clock, &b200_timing_state.driver, AT_ONCE);
}

/* ------------------------------------------------------------------------------------------------- life */

pthread_mutex_t *b200_timing_lock(void) {
  return &b200_timing_state.lock;
}

void b200_timing_finish(void) {
  pthread_mutex_lock(&b200_timing_state.lock);
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_load(&b200_timing_state.clocks[i]);
    if (!clock)
      continue;
    b200_overlap_finish(clock->overlap);
    for (uint64_t number = 0; number < INFOS; number++)
      if (clock->infos[number].open)
        b200_timing_untimed(B200_UNTIMED_UNFINISHED, clock->infos[number].group);
  }
  pthread_mutex_unlock(&b200_timing_state.lock);
}

/* The parent's events and contexts are no business of a child. */
void b200_timing_forget(void) {
  for (int i = 0; i < CLOCKS; i++) {
    struct b200_clock *clock = atomic_exchange(&b200_timing_state.clocks[i], NULL);
    if (!clock)
      continue;
    munmap(clock->overlap, b200_overlap_bytes());
    munmap(clock, sizeof *clock);
  }
  atomic_store(&b200_timing_wants, 0);
  memset(&b200_timing_state, 0, sizeof b200_timing_state);
  pthread_mutex_init(&b200_timing_state.lock, NULL);
}
