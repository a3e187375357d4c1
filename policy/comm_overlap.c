/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/comm_overlap.h"

#include <assert.h>
#include <string.h>

enum {
  STREAM_BUCKET_BITS = 8,
  EVENT_BUCKET_BITS = 13,
};

#define TIME_LIMIT_NS (INT64_C(1) << 61)
#define LONGEST_NS (INT64_C(1) << 44) /* 4.9 hours: sums of a full table stay in range */
#define NO_WAIT INT64_MAX

enum op_state { OP_PENDING, OP_DONE, OP_LOST, OP_UNTIMED };

struct op {
  uint64_t user, step;
  int64_t t_start_ns, t_end_ns;
  int64_t t_wait_ns; /* the first compute stream that waited, or NO_WAIT */
  uint8_t stream;    /* index; the stream stays until the collective is handed out */
  uint8_t state;
};

/* Numbers released ≤ handed ≤ issued. Those before `over` are known to be over; those before `blind` that were not over then
   have lost a dependency and are untimed. The ring holds [released, issued). */
struct lane {
  uint64_t released, handed, issued, over, blind;
  int16_t owner; /* index of the stream, or -1 */
  struct op ring[B200_OVERLAP_PENDING];
};

struct stream {
  uint64_t key;
  struct b200_frontier upto;
  uint8_t next; /* in its bucket, index + 1 */
  int8_t lane;  /* or -1 */
  bool compute, blocking, legacy;
};

/* Only events that have something unfinished are kept. Slot 0 is the end of every list. */
struct event {
  uint64_t key;
  struct b200_frontier upto;
  uint16_t next;         /* in its bucket, or of the free ones */
  uint16_t newer, older; /* by time of record */
};

struct interval {
  int64_t from, to;
};

struct gemm {
  struct interval ran;
  uint64_t step; /* that was open when it was told */
};

/* A step whose collectives are not all over yet, and the sums of those that were handed out. */
struct ended {
  bool exists, gemms_timed;
  struct b200_overlap_step sums;
};

struct b200_overlap {
  struct b200_overlap_sink sink;
  uint64_t overflow, lost;
  uint64_t issuing_step;
  struct ended ended;
  struct {
    bool known; /* its start */
    uint64_t step, gemms;
    int64_t t_start_ns;
  } open;
  bool any_boundary;

  unsigned lanes, streams, events; /* used so far */
  unsigned recycle;                /* next stream to look at */
  unsigned blocking;               /* streams that are ordered with the legacy one */
  int legacy;                      /* index, or -1 */
  struct b200_frontier blocking_upto;
  uint8_t stream_bucket[1 << STREAM_BUCKET_BITS];
  uint16_t event_bucket[1 << EVENT_BUCKET_BITS];
  uint16_t free_event;
  struct stream stream[B200_OVERLAP_STREAMS];
  struct event event[B200_OVERLAP_EVENTS + 1];

  size_t gemms;
  struct gemm unfit; /* spans those that did not fit; empty when from ≥ to */
  struct lane lane[B200_OVERLAP_LANES];
  struct gemm gemm[B200_OVERLAP_GEMMS];
  struct interval scratch[B200_OVERLAP_LANES * B200_OVERLAP_PENDING + B200_OVERLAP_GEMMS];
};

static_assert(B200_OVERLAP_STREAMS <= UINT8_MAX, "indices + 1 are bytes");
static_assert(B200_OVERLAP_EVENTS < UINT16_MAX, "slots are 16 bits");
static_assert((B200_OVERLAP_PENDING & (B200_OVERLAP_PENDING - 1)) == 0, "a power of two");

static int64_t min_ns(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max_ns(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static uint64_t max_count(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static unsigned bucket_of(uint64_t key, unsigned bits) {
  return (unsigned)((key * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - bits));
}

static struct op *op_at(struct lane *lane, uint64_t number) {
  return &lane->ring[number & (B200_OVERLAP_PENDING - 1)];
}

size_t b200_overlap_bytes(void) {
  return sizeof(struct b200_overlap);
}

void b200_overlap_start(struct b200_overlap *overlap, const struct b200_overlap_sink *sink) {
  memset(overlap, 0, offsetof(struct b200_overlap, stream));
  overlap->sink = *sink;
  overlap->legacy = -1;
  overlap->event[0] = (struct event){0};
  overlap->gemms = 0;
  overlap->unfit = (struct gemm){0};
  for (unsigned i = 0; i < B200_OVERLAP_LANES; i++) {
    memset(&overlap->lane[i], 0, offsetof(struct lane, ring));
    overlap->lane[i].owner = -1;
  }
}

uint64_t b200_overlap_overflow(const struct b200_overlap *overlap) {
  return overlap->overflow;
}

uint64_t b200_overlap_lost_count(const struct b200_overlap *overlap) {
  return overlap->lost;
}

/* --- frontiers */

static bool unfinished(const struct b200_overlap *overlap, const struct b200_frontier *upto) {
  for (unsigned i = 0; i < overlap->lanes; i++)
    if (upto->upto[i] > overlap->lane[i].over)
      return true;
  return false;
}

void b200_overlap_over(struct b200_overlap *overlap, const struct b200_frontier *upto) {
  for (unsigned i = 0; i < overlap->lanes; i++)
    overlap->lane[i].over = max_count(overlap->lane[i].over, upto->upto[i]);
}

/* Somebody depends on it, and it will not be known who. Constant time on average, as `blind` only grows. */
static void lose_sight(struct b200_overlap *overlap, const struct b200_frontier *upto) {
  for (unsigned i = 0; i < overlap->lanes; i++) {
    struct lane *lane = &overlap->lane[i];
    for (uint64_t n = max_count(lane->over, lane->blind); n < upto->upto[i]; n++)
      if (op_at(lane, n)->state == OP_PENDING) {
        op_at(lane, n)->state = OP_UNTIMED;
        overlap->overflow++;
      }
    lane->blind = max_count(lane->blind, upto->upto[i]);
  }
}

/* --- streams */

/* Its index + 1; 0 without. */
static unsigned find_stream(const struct b200_overlap *overlap, uint64_t key) {
  unsigned i = overlap->stream_bucket[bucket_of(key, STREAM_BUCKET_BITS)];
  while (i && overlap->stream[i - 1].key != key)
    i = overlap->stream[i - 1].next;
  return i;
}

/* Nothing that is still to be told can concern the stream. */
static bool may_give_way(const struct b200_overlap *overlap, const struct stream *stream) {
  if (stream->blocking || stream->legacy)
    return false; /* told only once */
  for (unsigned i = 0; i < overlap->lanes; i++)
    if (stream->upto.upto[i] > overlap->lane[i].handed)
      return false;
  return true;
}

static void remove_stream(struct b200_overlap *overlap, const struct stream *stream) {
  uint8_t *link = &overlap->stream_bucket[bucket_of(stream->key, STREAM_BUCKET_BITS)];
  while (&overlap->stream[*link - 1] != stream)
    link = &overlap->stream[*link - 1].next;
  *link = stream->next;
  if (stream->lane >= 0)
    overlap->lane[stream->lane].owner = -1;
}

static struct stream *free_stream(struct b200_overlap *overlap) {
  if (overlap->streams < B200_OVERLAP_STREAMS)
    return &overlap->stream[overlap->streams++];
  for (int i = 0; i < B200_OVERLAP_STREAMS; i++) {
    struct stream *stream = &overlap->stream[overlap->recycle];
    overlap->recycle = (overlap->recycle + 1) % B200_OVERLAP_STREAMS;
    if (may_give_way(overlap, stream)) {
      remove_stream(overlap, stream);
      return stream;
    }
  }
  return NULL;
}

/* Found or made; NULL when the table is full. */
static struct stream *stream_of(struct b200_overlap *overlap, uint64_t key) {
  unsigned index = find_stream(overlap, key);
  if (index)
    return &overlap->stream[index - 1];
  struct stream *stream = free_stream(overlap);
  if (stream) {
    uint8_t *bucket = &overlap->stream_bucket[bucket_of(key, STREAM_BUCKET_BITS)];
    *stream = (struct stream){.key = key, .next = *bucket, .lane = -1};
    *bucket = (uint8_t)(stream - overlap->stream + 1);
  }
  return stream;
}

void b200_overlap_compute(struct b200_overlap *overlap, uint64_t key) {
  struct stream *stream = stream_of(overlap, key);
  if (stream)
    stream->compute = true;
}

/* What the legacy stream would depend on if something were issued on it now. */
static void extend_blocking(struct b200_overlap *overlap, const struct stream *stream) {
  if (stream->blocking)
    for (unsigned i = 0; i < overlap->lanes; i++)
      overlap->blocking_upto.upto[i] = max_count(overlap->blocking_upto.upto[i], stream->upto.upto[i]);
}

void b200_overlap_stream(struct b200_overlap *overlap, uint64_t key, bool blocking, bool legacy) {
  struct stream *stream = stream_of(overlap, key);
  if (!stream)
    return;
  if (legacy) {
    stream->legacy = true;
    overlap->legacy = (int)(stream - overlap->stream);
  } else if (blocking && !stream->blocking) {
    stream->blocking = true;
    overlap->blocking++;
    extend_blocking(overlap, stream);
  }
}

bool b200_overlap_has_blocking(const struct b200_overlap *overlap) {
  return overlap->blocking > 0 && overlap->legacy >= 0;
}

/* --- collectives */

static bool assign_lane(struct b200_overlap *overlap, struct stream *stream, unsigned index) {
  struct lane *lane = &overlap->lane[index];
  if (lane->owner >= 0)
    overlap->stream[lane->owner].lane = -1;
  lane->owner = (int16_t)(stream - overlap->stream);
  stream->lane = (int8_t)index;
  return true;
}

/* An empty lane can change hands: its numbers go on, and all so far are over. */
static bool give_lane(struct b200_overlap *overlap, struct stream *stream) {
  if (overlap->lanes < B200_OVERLAP_LANES)
    return assign_lane(overlap, stream, overlap->lanes++);
  for (unsigned i = 0; i < overlap->lanes; i++)
    if (overlap->lane[i].released == overlap->lane[i].issued)
      return assign_lane(overlap, stream, i);
  return false;
}

struct b200_overlap_id b200_overlap_collective(struct b200_overlap *overlap, uint64_t key, uint64_t user) {
  struct stream *stream = stream_of(overlap, key);
  if (!stream || (stream->lane < 0 && !give_lane(overlap, stream)) ||
      overlap->lane[stream->lane].issued - overlap->lane[stream->lane].released == B200_OVERLAP_PENDING) {
    overlap->overflow++;
    return (struct b200_overlap_id){.lane = -1};
  }
  struct lane *lane = &overlap->lane[stream->lane];
  uint64_t number = lane->issued++;
  *op_at(lane, number) = (struct op){.user = user,
                                     .step = overlap->issuing_step,
                                     .t_wait_ns = NO_WAIT,
                                     .stream = (uint8_t)(stream - overlap->stream),
                                     .state = OP_PENDING};
  stream->upto.upto[stream->lane] = number + 1;
  if (stream->blocking)
    overlap->blocking_upto.upto[stream->lane] = number + 1;
  return (struct b200_overlap_id){stream->lane, number};
}

/* --- events */

static uint16_t find_event(const struct b200_overlap *overlap, uint64_t key) {
  uint16_t slot = overlap->event_bucket[bucket_of(key, EVENT_BUCKET_BITS)];
  while (slot && overlap->event[slot].key != key)
    slot = overlap->event[slot].next;
  return slot;
}

/* Slot 0 closes the ring of events by time of record: its `older` is the newest, its `newer` the oldest. */
static void age_unlink(struct b200_overlap *overlap, uint16_t slot) {
  struct event *event = overlap->event;
  event[event[slot].newer].older = event[slot].older;
  event[event[slot].older].newer = event[slot].newer;
}

static void age_link(struct b200_overlap *overlap, uint16_t slot) {
  struct event *event = overlap->event;
  event[slot].older = event[0].older;
  event[slot].newer = 0;
  event[event[0].older].newer = slot;
  event[0].older = slot;
}

static void remove_event(struct b200_overlap *overlap, uint16_t slot) {
  uint16_t *link = &overlap->event_bucket[bucket_of(overlap->event[slot].key, EVENT_BUCKET_BITS)];
  while (*link != slot)
    link = &overlap->event[*link].next;
  *link = overlap->event[slot].next;
  age_unlink(overlap, slot);
  overlap->event[slot].next = overlap->free_event;
  overlap->free_event = slot;
}

static uint16_t add_event(struct b200_overlap *overlap, uint64_t key) {
  if (!overlap->free_event && overlap->events < B200_OVERLAP_EVENTS) {
    overlap->event[++overlap->events].next = 0;
    overlap->free_event = (uint16_t)overlap->events;
  } else if (!overlap->free_event) {
    uint16_t oldest = overlap->event[0].newer;
    lose_sight(overlap, &overlap->event[oldest].upto);
    remove_event(overlap, oldest);
  }
  uint16_t slot = overlap->free_event;
  uint16_t *bucket = &overlap->event_bucket[bucket_of(key, EVENT_BUCKET_BITS)];
  overlap->free_event = overlap->event[slot].next;
  overlap->event[slot].key = key;
  overlap->event[slot].next = *bucket;
  *bucket = slot;
  age_link(overlap, slot);
  return slot;
}

void b200_overlap_record(struct b200_overlap *overlap, uint64_t key, uint64_t stream_key) {
  unsigned index = find_stream(overlap, stream_key);
  uint16_t slot = find_event(overlap, key);
  if (!index || !unfinished(overlap, &overlap->stream[index - 1].upto)) {
    if (slot)
      remove_event(overlap, slot);
    return;
  }
  if (!slot) {
    slot = add_event(overlap, key);
  } else if (slot != overlap->event[0].older) {
    age_unlink(overlap, slot);
    age_link(overlap, slot);
  }
  overlap->event[slot].upto = overlap->stream[index - 1].upto;
}

void b200_overlap_forget_event(struct b200_overlap *overlap, uint64_t key) {
  uint16_t slot = find_event(overlap, key);
  if (slot)
    remove_event(overlap, slot);
}

/* --- waits */

/* What is over need not be remembered: it can never be new again. */
static bool join(struct b200_overlap *overlap, uint64_t key, const struct b200_frontier *add,
                 struct b200_overlap_wait *out) {
  if (!unfinished(overlap, add))
    return false;
  struct stream *stream = stream_of(overlap, key);
  if (!stream) {
    lose_sight(overlap, add);
    return false;
  }
  bool any = false;
  for (unsigned i = 0; i < overlap->lanes; i++) {
    uint64_t from = max_count(stream->upto.upto[i], overlap->lane[i].over), upto = add->upto[i];
    if (from >= upto)
      continue;
    if (!any)
      *out = (struct b200_overlap_wait){.stream = key}; /* most waits add nothing: not before */
    out->from.upto[i] = from;
    out->upto.upto[i] = stream->upto.upto[i] = upto;
    any = true;
  }
  if (any)
    extend_blocking(overlap, stream);
  return any;
}

bool b200_overlap_wait(struct b200_overlap *overlap, uint64_t stream, uint64_t event, struct b200_overlap_wait *out) {
  uint16_t slot = find_event(overlap, event);
  return slot && join(overlap, stream, &overlap->event[slot].upto, out);
}

bool b200_overlap_implicit(struct b200_overlap *overlap, uint64_t key, struct b200_overlap_wait *out) {
  if (!b200_overlap_has_blocking(overlap))
    return false;
  unsigned index = find_stream(overlap, key);
  if (!index)
    return false;
  const struct stream *stream = &overlap->stream[index - 1];
  if (!stream->blocking && !stream->legacy)
    return false;
  return join(overlap, key, stream->legacy ? &overlap->blocking_upto : &overlap->stream[overlap->legacy].upto, out);
}

struct b200_frontier b200_overlap_of_event(const struct b200_overlap *overlap, uint64_t key) {
  uint16_t slot = find_event(overlap, key);
  return slot ? overlap->event[slot].upto : (struct b200_frontier){{0}};
}

struct b200_frontier b200_overlap_of_stream(const struct b200_overlap *overlap, uint64_t key) {
  unsigned index = find_stream(overlap, key);
  return index ? overlap->stream[index - 1].upto : (struct b200_frontier){{0}};
}

struct b200_frontier b200_overlap_of_device(const struct b200_overlap *overlap) {
  struct b200_frontier all = {{0}};
  for (unsigned i = 0; i < overlap->lanes; i++)
    all.upto[i] = overlap->lane[i].issued;
  return all;
}

void b200_overlap_host_event(struct b200_overlap *overlap, uint64_t key) {
  struct b200_frontier upto = b200_overlap_of_event(overlap, key);
  b200_overlap_over(overlap, &upto);
}

void b200_overlap_host_stream(struct b200_overlap *overlap, uint64_t key) {
  struct b200_frontier upto = b200_overlap_of_stream(overlap, key);
  b200_overlap_over(overlap, &upto);
}

void b200_overlap_host_device(struct b200_overlap *overlap) {
  struct b200_frontier upto = b200_overlap_of_device(overlap);
  b200_overlap_over(overlap, &upto);
}

void b200_overlap_step(struct b200_overlap *overlap, uint64_t step) {
  overlap->issuing_step = step;
}

/* --- times */

static bool is_time(int64_t t_ns) {
  return t_ns > -TIME_LIMIT_NS && t_ns < TIME_LIMIT_NS;
}

static bool is_span(int64_t t_start_ns, int64_t t_end_ns) {
  return is_time(t_start_ns) && is_time(t_end_ns) && t_end_ns >= t_start_ns && t_end_ns - t_start_ns <= LONGEST_NS;
}

static struct lane *lane_of(struct b200_overlap *overlap, struct b200_overlap_id id) {
  if (id.lane < 0 || id.lane >= B200_OVERLAP_LANES)
    return NULL;
  struct lane *lane = &overlap->lane[id.lane];
  return id.number >= lane->released && id.number < lane->issued ? lane : NULL;
}

static void lose(struct b200_overlap *overlap, struct op *op) {
  op->state = OP_LOST;
  overlap->lost++;
}

void b200_overlap_lost(struct b200_overlap *overlap, struct b200_overlap_id id) {
  struct lane *lane = lane_of(overlap, id);
  if (lane && op_at(lane, id.number)->state == OP_PENDING)
    lose(overlap, op_at(lane, id.number));
}

void b200_overlap_done(struct b200_overlap *overlap, struct b200_overlap_id id, int64_t t_start_ns, int64_t t_end_ns) {
  struct lane *lane = lane_of(overlap, id);
  if (!lane)
    return;
  struct op *op = op_at(lane, id.number);
  if (!is_span(t_start_ns, t_end_ns)) {
    b200_overlap_lost(overlap, id);
    return;
  }
  lane->over = max_count(lane->over, id.number + 1);
  if (op->state != OP_PENDING)
    return;
  op->state = OP_DONE;
  op->t_start_ns = t_start_ns;
  op->t_end_ns = t_end_ns;
  if (overlap->stream[op->stream].compute)
    op->t_wait_ns = min_ns(op->t_wait_ns, t_start_ns);
}

void b200_overlap_wait_lost(struct b200_overlap *overlap, const struct b200_overlap_wait *wait) {
  unsigned index = find_stream(overlap, wait->stream);
  if (!index || !overlap->stream[index - 1].compute)
    return;
  for (unsigned i = 0; i < overlap->lanes; i++) {
    struct lane *lane = &overlap->lane[i];
    uint64_t upto = wait->upto.upto[i] < lane->issued ? wait->upto.upto[i] : lane->issued;
    for (uint64_t n = max_count(wait->from.upto[i], lane->handed); n < upto; n++)
      if (op_at(lane, n)->state == OP_PENDING || op_at(lane, n)->state == OP_DONE)
        lose(overlap, op_at(lane, n));
  }
}

int64_t b200_overlap_waited(struct b200_overlap *overlap, const struct b200_overlap_wait *wait, int64_t t_wait_ns) {
  unsigned index = find_stream(overlap, wait->stream);
  bool counts = index && overlap->stream[index - 1].compute;
  int64_t t_on_ns = t_wait_ns;
  if (!is_time(t_wait_ns))
    b200_overlap_wait_lost(overlap, wait);
  for (unsigned i = 0; i < overlap->lanes; i++) {
    struct lane *lane = &overlap->lane[i];
    uint64_t upto = wait->upto.upto[i] < lane->issued ? wait->upto.upto[i] : lane->issued;
    for (uint64_t n = max_count(wait->from.upto[i], lane->released); n < upto; n++) {
      struct op *op = op_at(lane, n);
      if (counts && n >= lane->handed)
        op->t_wait_ns = min_ns(op->t_wait_ns, t_wait_ns);
      if (op->state == OP_DONE)
        t_on_ns = max_ns(t_on_ns, op->t_end_ns);
    }
  }
  return t_on_ns;
}

void b200_overlap_gemm(struct b200_overlap *overlap, int64_t t_start_ns, int64_t t_end_ns) {
  if (!is_span(t_start_ns, t_end_ns))
    return;
  overlap->open.gemms++;
  if (overlap->gemms < B200_OVERLAP_GEMMS) {
    overlap->gemm[overlap->gemms++] = (struct gemm){{t_start_ns, t_end_ns}, overlap->open.step};
    return;
  }
  struct interval *unfit = &overlap->unfit.ran;
  overlap->unfit.step = overlap->open.step;
  bool first = unfit->from >= unfit->to;
  unfit->from = first ? t_start_ns : min_ns(unfit->from, t_start_ns);
  unfit->to = first ? t_end_ns : max_ns(unfit->to, t_end_ns);
}

/* --- what is handed out */

static int64_t blocked_from(const struct op *op) {
  return max_ns(op->t_start_ns, op->t_wait_ns);
}

static void hand_out_op(struct b200_overlap *overlap, int lane, uint64_t number) {
  const struct op *op = op_at(&overlap->lane[lane], number);
  struct b200_overlap_op out = {
      .id = {lane, number},
      .user = op->user,
      .t_start_ns = op->t_start_ns,
      .t_end_ns = op->t_end_ns,
      .blocked_ns = op->t_end_ns - min_ns(blocked_from(op), op->t_end_ns),
      .queued_ns = op->t_wait_ns < op->t_start_ns ? min_ns(op->t_start_ns - op->t_wait_ns, LONGEST_NS) : 0,
      .step = op->step,
  };
  if (overlap->ended.exists && op->step == overlap->ended.sums.step) {
    overlap->ended.sums.collectives++;
    overlap->ended.sums.comm_ns += op->t_end_ns - op->t_start_ns;
    overlap->ended.sums.queued_ns += out.queued_ns;
  }
  if (overlap->sink.op)
    overlap->sink.op(overlap->sink.context, &out);
}

/* All of steps before the given one, lane by lane in the order of issue. */
static void hand_out_ops(struct b200_overlap *overlap, uint64_t before_step) {
  for (unsigned i = 0; i < overlap->lanes; i++) {
    struct lane *lane = &overlap->lane[i];
    for (; lane->handed < lane->issued && op_at(lane, lane->handed)->step < before_step; lane->handed++) {
      struct op *op = op_at(lane, lane->handed);
      if (overlap->sink.lost && (op->state == OP_LOST || op->state == OP_UNTIMED))
        overlap->sink.lost(overlap->sink.context, op->user, op->state == OP_UNTIMED);
      if (op->state == OP_PENDING)
        lose(overlap, op);
      if (op->state == OP_DONE)
        hand_out_op(overlap, (int)i, lane->handed);
      else if (op->state == OP_LOST && overlap->ended.exists && op->step == overlap->ended.sums.step)
        overlap->ended.sums.lost++;
    }
  }
}

static size_t add_cut(struct b200_overlap *overlap, size_t count, int64_t from, int64_t to) {
  const struct b200_overlap_step *step = &overlap->ended.sums;
  from = max_ns(from, step->t_start_ns);
  to = min_ns(to, step->t_end_ns);
  if (from < to)
    overlap->scratch[count++] = (struct interval){from, to};
  return count;
}

static size_t add_collectives(struct b200_overlap *overlap, size_t count, bool blocked) {
  for (unsigned i = 0; i < overlap->lanes; i++) {
    struct lane *lane = &overlap->lane[i];
    for (uint64_t n = lane->released; n < lane->issued; n++) {
      const struct op *op = op_at(lane, n);
      if (op->state == OP_DONE)
        count = add_cut(overlap, count, blocked ? blocked_from(op) : op->t_start_ns, op->t_end_ns);
    }
  }
  return count;
}

/* Shell's sort with Ciura's gaps: in place, and quick on a few sorted runs, which is what lanes are. */
static void sort(struct interval *list, size_t count) {
  static const size_t gaps[] = {65921, 29298, 13021, 5787, 2572, 1143, 508, 226, 100, 41, 19, 8, 3, 1};
  for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
    for (size_t i = gaps[g]; i < count; i++) {
      struct interval moved = list[i];
      size_t to = i;
      for (; to >= gaps[g] && list[to - gaps[g]].from > moved.from; to -= gaps[g])
        list[to] = list[to - gaps[g]];
      list[to] = moved;
    }
}

/* Measure of the union of the first `count` intervals. */
static int64_t measure(struct b200_overlap *overlap, size_t count) {
  int64_t sum = 0, seen = INT64_MIN;
  sort(overlap->scratch, count);
  for (size_t i = 0; i < count; i++) {
    const struct interval *next = &overlap->scratch[i];
    if (next->to <= seen)
      continue;
    sum += next->to - max_ns(next->from, seen);
    seen = next->to;
  }
  return sum;
}

static void measure_gemms(struct b200_overlap *overlap) {
  struct b200_overlap_step *sums = &overlap->ended.sums;
  const struct interval *unfit = &overlap->unfit.ran;
  bool all_fit = unfit->from >= unfit->to || unfit->from >= sums->t_end_ns || unfit->to <= sums->t_start_ns;
  if (!overlap->ended.gemms_timed || !all_fit) {
    sums->gemm_ns = sums->uncovered_ns = -1;
    sums->gemms = 0;
    return;
  }
  size_t count = 0;
  for (size_t i = 0; i < overlap->gemms; i++) {
    const struct interval *ran = &overlap->gemm[i].ran;
    count = add_cut(overlap, count, ran->from, ran->to);
  }
  sums->gemm_ns = measure(overlap, count);
  sums->uncovered_ns = measure(overlap, add_collectives(overlap, count, false)) - sums->gemm_ns;
}

static void hand_out_step(struct b200_overlap *overlap) {
  struct ended *ended = &overlap->ended;
  if (!ended->exists)
    return;
  ended->sums.busy_ns = measure(overlap, add_collectives(overlap, 0, false));
  ended->sums.blocked_ns = measure(overlap, add_collectives(overlap, 0, true));
  measure_gemms(overlap);
  if (overlap->sink.step)
    overlap->sink.step(overlap->sink.context, &ended->sums);
  ended->exists = false;
}

/* What was handed out and cannot reach into a later step. In a lane each ends before the next one starts, so all before one
   that may go may go as well, whatever end the device stated. */
static void release_ops(struct b200_overlap *overlap, int64_t horizon_ns) {
  for (unsigned i = 0; i < overlap->lanes; i++) {
    struct lane *lane = &overlap->lane[i];
    for (uint64_t n = lane->released; n < lane->handed; n++) {
      const struct op *op = op_at(lane, n);
      if (op->state == OP_DONE ? op->t_end_ns <= horizon_ns : n == lane->released)
        lane->released = n + 1;
    }
    lane->over = max_count(lane->over, lane->released);
  }
}

/* GEMMs count in the steps next to their own, not beyond: nonsense does not stay. */
static void release_gemms(struct b200_overlap *overlap, uint64_t next_step, int64_t horizon_ns) {
  size_t kept = 0;
  for (size_t i = 0; i < overlap->gemms; i++)
    if (overlap->gemm[i].step + 1 >= next_step && overlap->gemm[i].ran.to > horizon_ns)
      overlap->gemm[kept++] = overlap->gemm[i];
  overlap->gemms = kept;
  if (overlap->unfit.step + 1 < next_step || overlap->unfit.ran.to <= horizon_ns)
    overlap->unfit = (struct gemm){0};
}

void b200_overlap_boundary(struct b200_overlap *overlap, uint64_t step, int64_t t_ns, bool gemms_timed) {
  if (overlap->any_boundary && step <= overlap->open.step)
    return;
  hand_out_ops(overlap, step > 0 ? step - 1 : 0);
  hand_out_step(overlap);
  bool sane = is_time(t_ns) && (!overlap->open.known || t_ns >= overlap->open.t_start_ns);
  if (overlap->open.known && sane && step == overlap->open.step + 1)
    overlap->ended = (struct ended){.exists = true,
                                    .gemms_timed = gemms_timed,
                                    .sums = {.step = overlap->open.step,
                                             .gemms = overlap->open.gemms,
                                             .t_start_ns = overlap->open.t_start_ns,
                                             .t_end_ns = t_ns}};
  overlap->open.known = sane;
  overlap->open.step = step;
  overlap->open.gemms = 0;
  if (sane)
    overlap->open.t_start_ns = t_ns;
  overlap->any_boundary = true;
  int64_t horizon_ns = overlap->ended.exists ? overlap->ended.sums.t_start_ns : overlap->open.t_start_ns;
  release_ops(overlap, horizon_ns);
  release_gemms(overlap, overlap->ended.exists ? overlap->ended.sums.step : step, horizon_ns);
}

void b200_overlap_finish(struct b200_overlap *overlap) {
  hand_out_ops(overlap, UINT64_MAX);
  hand_out_step(overlap);
}
