/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs of streams, events, collectives and host waits on a simulated device. The accounting hears what the
 * library would tell it; what it hands out is compared, to the nanosecond, with a walk over every pair of compute stream and
 * collective along the device's own dependencies, and with steps marked on a line of single nanoseconds.
 *
 * B200_TEST_PROGRAMS: how many (100,000), and a crowded one for each 4,000. B200_TEST_FIRST: number of the first, to see one
 * again.
 */
#include "policy/comm_overlap.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "unit.h"

enum {
  NODES = 16384,
  STREAMS = 320,
  EVENTS = 12288,
  COLLECTIVES = 1024,
  WORDS = COLLECTIVES / 64,
  BOUNDARIES = 64,
  GEMMS = 4096,
  LINE = 1 << 22, /* nanoseconds that a program may last */
  NEVER = INT32_MAX,
};

enum kind { KERNEL, COLLECTIVE, RECORD, WAIT, JOIN };

/* What the device does, one node per operation of a stream. seq: counts all that happens, to say what was told before what.
 */
struct node {
  enum kind kind;
  int stream;
  int64_t arrive, start, end; /* arrive: when the stream came to it, the host having issued it */
  int told;                   /* seq, or NEVER */
  int collective;             /* index, or -1 */
  bool timed;
  uint64_t reach[WORDS]; /* collectives that it comes after */
};

struct item { /* an event of the library's own that is in flight, in the order of issue */
  enum { ITEM_DONE, ITEM_WAITED, ITEM_GEMM, ITEM_BOUNDARY } what;
  int node;
  int64_t ready, start;
  uint64_t step;
  bool timed;
  struct b200_overlap_wait wait;
};

struct collective {
  int node, stream, order; /* order: on its stream */
  uint64_t step;
  struct b200_overlap_id id;
  int done, gone; /* seq of its times; of the boundary that hands it out */
  int missed;     /* seq of a wait for it whose time was lost */
  bool lost, handed;
  struct b200_overlap_op op;
};

struct stream {
  int last; /* node, or -1 */
  int order;
  int computes; /* seq of the first GEMM, or NEVER */
  bool blocking, legacy;
};

static struct world {
  struct node node[NODES];
  struct item item[NODES];
  struct collective collective[COLLECTIVES];
  struct stream stream[STREAMS];
  int record[EVENTS]; /* node, or -1 */
  struct {
    uint64_t step;
    int64_t t;
    int seq;
    bool timed;
  } boundary[BOUNDARIES];
  struct {
    int64_t start, end;
    uint64_t step; /* open when told */
    int seq;
  } gemm[GEMMS];
  struct b200_overlap_step step[BOUNDARIES];
  uint64_t known[WORDS]; /* to be over */
  int nodes, items, harvested, collectives, streams, events, boundaries, gemms, steps, words, seq;
  int legacy, recent; /* stream; event that was recorded last */
  int spread;         /* percent of GEMMs that are on any stream */
  int pace;           /* of the host and of collectives; GEMMs are the same */
  bool crowded;       /* tables may be full */
  bool gemms_timed;
  uint64_t issuing, refused;
  int64_t host;
} world;

static struct b200_overlap *overlap;
static uint8_t line[LINE];
static uint64_t seed;
static char current[64]; /* the program that runs */

static uint64_t draw(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed * UINT64_C(0x2545F4914F6CDD1D) >> 16;
}

static int below(int bound) {
  return (int)(draw() % (uint64_t)bound);
}

static bool chance(int percent) {
  return below(100) < percent;
}

static int64_t later(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static bool has(const uint64_t *set, int bit) {
  return set[bit / 64] >> (bit % 64) & 1;
}

static void put(uint64_t *set, int bit) {
  set[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static void unite(uint64_t *set, const uint64_t *with) {
  for (int i = 0; i < world.words; i++)
    set[i] |= with[i];
}

/* Keys look like handles: aligned addresses. */
static uint64_t stream_key(int stream) {
  return UINT64_C(0x5600deadb000) + 0x40u * (uint64_t)stream;
}

static uint64_t event_key(int event) {
  return UINT64_C(0x7f00cafe0000) + 0x80u * (uint64_t)event;
}

/* Check's own assertions note each one that passes, which is most of the time here. */
#define MUST(holds, ...)                                                                                                    \
  do {                                                                                                                      \
    if (!(holds))                                                                                                           \
      give_up(__LINE__, __VA_ARGS__);                                                                                       \
  } while (0)
#define EQUAL(a, b) MUST((a) == (b), #a " is %lld, not %lld", (long long)(a), (long long)(b))

__attribute__((format(printf, 2, 3), noreturn)) static void give_up(int at, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  ck_abort_msg("line %d, %s: %s", at, current, text);
}

/* --- what comes back */

static void note_op(void *context, const struct b200_overlap_op *op) {
  (void)context;
  MUST(op->user < (uint64_t)world.collectives, "too many");
  struct collective *of = &world.collective[op->user];
  MUST(!of->handed, "handed out twice");
  EQUAL(of->id.lane, op->id.lane);
  EQUAL(of->id.number, op->id.number);
  of->handed = true;
  of->op = *op;
}

static void note_step(void *context, const struct b200_overlap_step *step) {
  (void)context;
  MUST(world.steps < BOUNDARIES, "too many");
  world.step[world.steps++] = *step;
}

/* --- the device */

static struct node *add_node(enum kind kind, int stream, int64_t dur) {
  MUST(world.nodes < NODES, "too many");
  struct node *node = &world.node[world.nodes];
  struct stream *on = &world.stream[stream];
  memset(node, 0, sizeof *node);
  node->kind = kind;
  node->stream = stream;
  node->told = NEVER;
  node->collective = -1;
  node->arrive = world.host;
  if (on->last >= 0) {
    node->arrive = later(node->arrive, world.node[on->last].end);
    unite(node->reach, world.node[on->last].reach);
  }
  node->start = node->arrive;
  node->end = node->start + dur;
  on->last = world.nodes++;
  return node;
}

static void depends(struct node *node, int on) {
  if (on < 0)
    return;
  node->end = node->start = later(node->start, world.node[on].end);
  unite(node->reach, world.node[on].reach);
}

static struct item *add_item(int what, const struct node *node, int64_t ready) {
  MUST(world.items < NODES, "too many");
  struct item *item = &world.item[world.items++];
  item->what = (unsigned)what;
  item->node = (int)(node - world.node);
  item->ready = ready;
  world.node[item->node].timed = true;
  return item;
}

/* --- the host */

/* `before`: what the stream depended on; `adds`: what it waits for. */
static void check_wait(const uint64_t *before, const uint64_t *adds, bool any, const struct b200_overlap_wait *found) {
  if (world.crowded)
    return; /* judged by what is handed out */
  bool in_found = false;
  for (int k = 0; k < world.collectives; k++) {
    const struct collective *of = &world.collective[k];
    bool in = any && of->id.number >= found->from.upto[of->id.lane] && of->id.number < found->upto.upto[of->id.lane];
    bool expected = has(adds, k) && !has(before, k) && !has(world.known, k);
    in_found |= in;
    if (of->done == NEVER && !of->lost && of->gone == NEVER)
      MUST(in == expected, "collective %d: %s found", k, in ? "wrongly" : "not");
    else
      MUST(!in || of->lost || of->gone != NEVER, "does not hold");
  }
  EQUAL(any, in_found);
}

static void time_wait(struct node *node, const uint64_t *before, const uint64_t *adds, bool any,
                      const struct b200_overlap_wait *found) {
  check_wait(before, adds, any, found);
  if (any)
    add_item(ITEM_WAITED, node, node->arrive)->wait = *found;
}

/* Before anything is issued on a stream: order with the legacy stream, and in a full table the library's word of GEMMs. */
static void prepare(int stream) {
  struct stream *on = &world.stream[stream];
  struct b200_overlap_wait found;
  if (world.crowded && on->computes != NEVER)
    b200_overlap_compute(overlap, stream_key(stream));
  if (world.legacy < 0 || (!on->blocking && !on->legacy))
    return;
  uint64_t before[WORDS] = {0}, adds[WORDS] = {0};
  if (on->last >= 0)
    unite(before, world.node[on->last].reach);
  struct node *node = add_node(JOIN, stream, 0);
  for (int i = 0; i < world.streams; i++)
    if (i != stream && (on->legacy ? world.stream[i].blocking : world.stream[i].legacy)) {
      depends(node, world.stream[i].last);
      if (world.stream[i].last >= 0)
        unite(adds, world.node[world.stream[i].last].reach);
    }
  time_wait(node, before, adds, b200_overlap_implicit(overlap, stream_key(stream), &found), &found);
}

static void do_gemm(int stream) {
  prepare(stream);
  b200_overlap_compute(overlap, stream_key(stream));
  if (world.stream[stream].computes == NEVER)
    world.stream[stream].computes = world.seq++;
  struct node *node = add_node(KERNEL, stream, below(90));
  if (world.gemms_timed)
    add_item(ITEM_GEMM, node, node->end)->start = node->start;
}

static void do_collective(int stream) {
  if (world.collectives == world.words * 64)
    return;
  prepare(stream);
  struct b200_overlap_id id = b200_overlap_collective(overlap, stream_key(stream), (uint64_t)world.collectives);
  struct node *node = add_node(COLLECTIVE, stream, chance(4) ? below(1000) : below(world.pace));
  if (id.lane < 0) {
    MUST(world.crowded, "does not hold");
    world.refused++;
    return;
  }
  node->collective = world.collectives;
  put(node->reach, world.collectives);
  world.collective[world.collectives++] = (struct collective){.node = (int)(node - world.node),
                                                              .stream = stream,
                                                              .order = world.stream[stream].order++,
                                                              .step = world.issuing,
                                                              .id = id,
                                                              .done = NEVER,
                                                              .gone = NEVER,
                                                              .missed = NEVER};
  add_item(ITEM_DONE, node, node->end);
}

static void do_record(int stream, int event) {
  prepare(stream);
  b200_overlap_record(overlap, event_key(event), stream_key(stream));
  world.record[event] = (int)(add_node(RECORD, stream, 0) - world.node);
  world.recent = event;
}

static void do_wait(int stream, int event) {
  prepare(stream);
  struct b200_overlap_wait found;
  uint64_t before[WORDS] = {0};
  if (world.stream[stream].last >= 0)
    unite(before, world.node[world.stream[stream].last].reach);
  bool any = b200_overlap_wait(overlap, stream_key(stream), event_key(event), &found);
  struct node *node = add_node(WAIT, stream, 0);
  int recorded = world.record[event];
  if (recorded < 0) {
    MUST(!any, "does not hold");
    return;
  }
  depends(node, recorded);
  time_wait(node, before, world.node[recorded].reach, any, &found);
}

static void host_waits(int node) {
  if (node < 0)
    return;
  world.host = later(world.host, world.node[node].end);
  unite(world.known, world.node[node].reach);
}

static void do_host_wait(void) {
  int which = below(10), stream = below(world.streams), event = below(world.events);
  if (which == 0) {
    for (int i = 0; i < world.streams; i++)
      host_waits(world.stream[i].last);
    b200_overlap_host_device(overlap);
  } else if (which < 4) {
    host_waits(world.stream[stream].last);
    b200_overlap_host_stream(overlap, stream_key(stream));
  } else if (world.record[event] >= 0) {
    host_waits(world.record[event]);
    b200_overlap_host_event(overlap, event_key(event));
  }
}

static void do_boundary(void) {
  prepare(0);
  struct node *node = add_node(RECORD, 0, 0);
  b200_overlap_step(overlap, ++world.issuing);
  if (!chance(95))
    return; /* its event is lost */
  struct item *item = add_item(ITEM_BOUNDARY, node, node->end);
  item->step = world.issuing;
  item->timed = world.gemms_timed;
  world.gemms_timed = chance(60);
}

/* --- harvest */

static void tell_done(struct collective *of) {
  const struct node *node = &world.node[of->node];
  of->lost = chance(4);
  if (!of->lost) {
    of->done = world.seq++;
    b200_overlap_done(overlap, of->id, node->start, node->end);
    for (int k = 0; k < world.collectives; k++)
      if (world.collective[k].stream == of->stream && world.collective[k].order <= of->order)
        put(world.known, k);
  } else if (chance(50)) {
    b200_overlap_lost(overlap, of->id);
  } else {
    b200_overlap_done(overlap, of->id, node->end + 1, node->end);
  }
}

static void tell_waited(const struct item *item) {
  const struct b200_overlap_wait *wait = &item->wait;
  struct node *node = &world.node[item->node];
  node->told = world.seq++;
  if (world.crowded || !chance(2)) {
    b200_overlap_waited(overlap, wait, item->ready);
    return;
  }
  b200_overlap_wait_lost(overlap, wait);
  for (int k = 0; k < world.collectives; k++) {
    struct collective *of = &world.collective[k];
    bool in = of->id.number >= wait->from.upto[of->id.lane] && of->id.number < wait->upto.upto[of->id.lane];
    if (in && world.stream[node->stream].computes < node->told && of->gone == NEVER && of->missed == NEVER)
      of->missed = node->told;
  }
}

static void tell_boundary(const struct item *item) {
  MUST(world.boundaries < BOUNDARIES, "too many");
  world.boundary[world.boundaries].step = item->step;
  world.boundary[world.boundaries].t = item->ready;
  world.boundary[world.boundaries].timed = item->timed;
  world.boundary[world.boundaries++].seq = world.seq++;
  for (int k = 0; k < world.collectives; k++)
    if (world.collective[k].gone == NEVER && world.collective[k].step + 2 <= item->step)
      world.collective[k].gone = world.seq - 1;
  b200_overlap_boundary(overlap, item->step, item->ready, item->timed);
}

static void tell(const struct item *item) {
  switch (item->what) {
  case ITEM_DONE:
    tell_done(&world.collective[world.node[item->node].collective]);
    break;
  case ITEM_WAITED:
    tell_waited(item);
    break;
  case ITEM_GEMM:
    MUST(world.gemms < GEMMS, "too many");
    world.gemm[world.gemms].start = item->start;
    world.gemm[world.gemms].end = item->ready;
    world.gemm[world.gemms].step = world.boundaries ? world.boundary[world.boundaries - 1].step : 0;
    world.gemm[world.gemms++].seq = world.seq++;
    b200_overlap_gemm(overlap, item->start, item->ready);
    break;
  case ITEM_BOUNDARY:
    tell_boundary(item);
    break;
  }
}

static void harvest(void) {
  for (; world.harvested < world.items && world.item[world.harvested].ready <= world.host; world.harvested++)
    tell(&world.item[world.harvested]);
}

/* --- the walk */

static int first_node[STREAMS][COLLECTIVES]; /* of the stream that comes after the collective, or -1 */

static void walk(void) {
  for (int stream = 0; stream < world.streams; stream++)
    memset(first_node[stream], -1, (size_t)world.collectives * sizeof(int));
  for (int i = 0; i < world.nodes; i++)
    for (int k = 0; k < world.collectives; k++)
      if (has(world.node[i].reach, k) && first_node[world.node[i].stream][k] < 0)
        first_node[world.node[i].stream][k] = i;
}

/* When the first compute stream came to a standstill for it, of all that was told before; INT64_MAX: none did. */
static int64_t first_wait(int k, int before) {
  const struct collective *of = &world.collective[k];
  int64_t first = INT64_MAX;
  if (of->gone < before)
    before = of->gone;
  for (int stream = 0; stream < world.streams; stream++) {
    if (first_node[stream][k] < 0)
      continue;
    const struct node *node = &world.node[first_node[stream][k]];
    int told = node->collective == k ? of->done : node->told; /* that its time was lost shows in `missed` */
    if (told < before && world.stream[stream].computes < told && node->arrive < first)
      first = node->arrive;
  }
  return first;
}

/* A wait that was not timed must be one that cannot have cost anything. */
static void check_untimed(int k) {
  const struct collective *of = &world.collective[k];
  for (int stream = 0; stream < world.streams; stream++) {
    if (first_node[stream][k] < 0)
      continue;
    const struct node *node = &world.node[first_node[stream][k]];
    MUST(node->timed || node->arrive >= world.node[of->node].end, "collective %d, stream %d", k, stream);
  }
}

static void check_ops(void) {
  uint64_t handed = 0;
  for (int k = 0; k < world.collectives; k++) {
    const struct collective *of = &world.collective[k];
    const struct node *node = &world.node[of->node];
    handed += of->handed;
    if (!world.crowded)
      EQUAL(of->handed, of->done < of->gone && of->missed == NEVER);
    if (!of->handed)
      continue;
    check_untimed(k);
    int64_t wait = first_wait(k, NEVER), from = later(wait, node->start);
    EQUAL(of->op.t_start_ns, node->start);
    EQUAL(of->op.t_end_ns, node->end);
    EQUAL(of->op.step, of->step);
    EQUAL(of->op.blocked_ns, from < node->end ? node->end - from : 0);
    EQUAL(of->op.queued_ns, wait < node->start ? node->start - wait : 0);
  }
  uint64_t overflow = b200_overlap_overflow(overlap);
  EQUAL(handed + b200_overlap_lost_count(overlap) + overflow, (uint64_t)world.collectives + world.refused);
  MUST(world.crowded || overflow == 0, "does not hold");
}

/* --- steps, on a line of nanoseconds */

enum { RUNS = 1, BLOCKS = 2, COMPUTES = 4 };

static void mark(const struct b200_overlap_step *step, int64_t from, int64_t to, int with) {
  for (int64_t t = later(from, step->t_start_ns); t < to && t < step->t_end_ns; t++)
    line[t] |= (uint8_t)with;
}

static int64_t marked(const struct b200_overlap_step *step, int mask, int with) {
  int64_t sum = 0;
  for (int64_t t = step->t_start_ns; t < step->t_end_ns; t++)
    sum += (line[t] & mask) == with;
  return sum;
}

static void mark_step(struct b200_overlap_step *step, int before, bool timed) {
  memset(line + step->t_start_ns, 0, (size_t)(step->t_end_ns - step->t_start_ns));
  for (int k = 0; k < world.collectives; k++) {
    const struct collective *of = &world.collective[k];
    const struct node *node = &world.node[of->node];
    bool told = (world.crowded ? of->handed : of->done < of->gone) && of->done < before && of->missed >= before;
    if (told) {
      mark(step, node->start, node->end, RUNS);
      mark(step, later(first_wait(k, before), node->start), node->end, BLOCKS);
    }
    if (of->step != step->step)
      continue;
    step->collectives += told;
    step->lost += !of->handed;
    step->comm_ns += told ? node->end - node->start : 0;
    step->queued_ns += told ? of->op.queued_ns : 0;
  }
  for (int i = 0; timed && i < world.gemms; i++) {
    uint64_t in = world.gemm[i].step;
    step->gemms += in == step->step;
    if (world.gemm[i].seq < before && in + 1 >= step->step && in <= step->step + 1)
      mark(step, world.gemm[i].start, world.gemm[i].end, COMPUTES);
  }
  step->busy_ns = marked(step, RUNS, RUNS);
  step->blocked_ns = marked(step, BLOCKS, BLOCKS);
  step->gemm_ns = timed ? marked(step, COMPUTES, COMPUTES) : -1;
  step->uncovered_ns = timed ? marked(step, RUNS | COMPUTES, RUNS) : -1;
}

static void check_steps(void) {
  int count = 0;
  for (int i = 0; i + 1 < world.boundaries; i++) {
    if (world.boundary[i + 1].step != world.boundary[i].step + 1)
      continue;
    struct b200_overlap_step expected = {
        .step = world.boundary[i].step, .t_start_ns = world.boundary[i].t, .t_end_ns = world.boundary[i + 1].t};
    mark_step(&expected, i + 2 < world.boundaries ? world.boundary[i + 2].seq : NEVER, world.boundary[i + 1].timed);
    MUST(count < world.steps, "too many");
    const struct b200_overlap_step *step = &world.step[count++];
    if (world.crowded)
      expected.lost = step->lost; /* some of these are untimed */
    EQUAL(step->step, expected.step);
    EQUAL(step->t_start_ns, expected.t_start_ns);
    EQUAL(step->t_end_ns, expected.t_end_ns);
    EQUAL(step->collectives, expected.collectives);
    EQUAL(step->lost, expected.lost);
    EQUAL(step->comm_ns, expected.comm_ns);
    EQUAL(step->busy_ns, expected.busy_ns);
    EQUAL(step->blocked_ns, expected.blocked_ns);
    EQUAL(step->queued_ns, expected.queued_ns);
    EQUAL(step->gemm_ns, expected.gemm_ns);
    EQUAL(step->uncovered_ns, expected.uncovered_ns);
    EQUAL(step->gemms, expected.gemms);
  }
  EQUAL(count, world.steps);
}

/* --- programs */

static void reset(bool crowded) {
  const struct b200_overlap_sink sink = {.op = note_op, .step = note_step};
  memset(&world.known, 0, sizeof world - offsetof(struct world, known));
  world.crowded = crowded;
  world.streams = crowded ? 140 + below(STREAMS - 140) : 2 + below(6);
  world.events = crowded ? EVENTS : 1 + below(8);
  world.words = crowded ? WORDS : 1;
  world.legacy = -1;
  for (int i = 0; i < world.streams; i++)
    world.stream[i] = (struct stream){.last = -1, .computes = NEVER};
  for (int i = 0; i < world.events; i++)
    world.record[i] = -1;
  b200_overlap_start(overlap, &sink);
}

static void choose_legacy(void) {
  world.legacy = below(world.streams < 8 ? world.streams : 8);
  for (int i = 0; i < world.streams && i < 8; i++) {
    world.stream[i].legacy = i == world.legacy;
    world.stream[i].blocking = i != world.legacy && chance(50);
    b200_overlap_stream(overlap, stream_key(i), world.stream[i].blocking, world.stream[i].legacy);
  }
}

static void do_something(int lanes) {
  int what = below(100), stream = below(world.streams), event = below(world.events);
  int lane = 1 + below(lanes);
  bool usual = chance(60);
  if (what < 20)
    do_gemm(chance(world.spread) ? stream : 0);
  else if (what < 26 && !world.stream[stream].blocking && !world.stream[stream].legacy)
    add_node(KERNEL, stream, below(60)); /* not told */
  else if (what < 44)
    do_collective(chance(80) ? lane : stream);
  else if (what < 60)
    do_record(usual ? lane : stream, event);
  else if (what < 82)
    do_wait(chance(50) ? 0 : stream, usual ? world.recent : event);
  else if (what < 84) {
    b200_overlap_forget_event(overlap, event_key(event));
    world.record[event] = -1;
  } else
    world.host += below(world.pace);
}

static void run(bool crowded) {
  reset(crowded);
  if (chance(30))
    choose_legacy();
  world.spread = chance(50) ? 0 : 10;
  world.pace = 20 << below(4);
  int lanes = crowded ? 4 + below(20) : 1 + below(world.streams - 1 < 3 ? world.streams - 1 : 3);
  int length = crowded ? 4000 + below(6000) : 15 + below(100);
  int steps_in = crowded ? 40 : 6, restless = chance(20) ? 0 : crowded ? 1 + below(20) : 5 + below(40);
  for (int i = 0; i < length; i++) {
    do_something(lanes);
    if (below(1000) < restless)
      do_host_wait();
    if (below(100) < restless)
      harvest();
    if (below(length) < steps_in && world.issuing < BOUNDARIES - 2)
      do_boundary();
  }
  if (chance(80))
    for (int i = 0; i < world.streams; i++)
      if (world.stream[i].last >= 0)
        world.host = later(world.host, world.node[world.stream[i].last].end);
  harvest();
  b200_overlap_finish(overlap);
  for (int i = 0; i < world.streams; i++)
    MUST(world.stream[i].last < 0 || world.node[world.stream[i].last].end < LINE, "too long");
  walk();
  check_ops();
  check_steps();
}

/* What the programs have shown, so that a generator that goes blind is seen. */
static uint64_t seen_blocked, seen_queued, seen_partly, seen_steps, seen_carried, seen_overflow;

static void look(void) {
  for (int k = 0; k < world.collectives; k++) {
    const struct b200_overlap_op *op = &world.collective[k].op;
    seen_blocked += world.collective[k].handed && op->blocked_ns > 0;
    seen_partly += world.collective[k].handed && op->blocked_ns > 0 && op->blocked_ns < op->t_end_ns - op->t_start_ns;
    seen_queued += world.collective[k].handed && op->queued_ns > 0;
  }
  for (int i = 0; i < world.steps; i++)
    seen_carried += world.step[i].collectives == 0 && world.step[i].blocked_ns > 0;
  seen_steps += (uint64_t)world.steps;
  seen_overflow += b200_overlap_overflow(overlap);
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static void run_many(uint64_t first, uint64_t count, bool crowded) {
  if (!overlap)
    overlap = mmap(NULL, b200_overlap_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(overlap, MAP_FAILED);
  seen_blocked = seen_partly = seen_queued = seen_steps = seen_carried = seen_overflow = 0;
  for (uint64_t i = first; i < first + count; i++) {
    seed = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    snprintf(current, sizeof current, "%s program %llu", crowded ? "crowded" : "small", (unsigned long long)i);
    run(crowded);
    look();
  }
  printf("%llu programs: blocked %llu, partly %llu, queued %llu, steps %llu, only carried %llu, untimed %llu\n",
         (unsigned long long)count, (unsigned long long)seen_blocked, (unsigned long long)seen_partly,
         (unsigned long long)seen_queued, (unsigned long long)seen_steps, (unsigned long long)seen_carried,
         (unsigned long long)seen_overflow);
}

/* In quarters: Check allows each a minute, and sanitizers are slow. */
static void small_programs(uint64_t quarter) {
  uint64_t count = number_from("B200_TEST_PROGRAMS", 100000) / 4;
  run_many(number_from("B200_TEST_FIRST", 0) + quarter * count, count, false);
  if (count >= 1000)
    ck_assert(seen_blocked > 2 * count && seen_partly > count / 10 && seen_queued > count / 3 && seen_steps > count &&
              seen_carried > 0);
}

START_TEST(small_programs_1) {
  small_programs(0);
}
END_TEST

START_TEST(small_programs_2) {
  small_programs(1);
}
END_TEST

START_TEST(small_programs_3) {
  small_programs(2);
}
END_TEST

START_TEST(small_programs_4) {
  small_programs(3);
}
END_TEST

/* More streams, lanes and events than there is room for: what is handed out is right all the same. */
START_TEST(crowded_programs) {
  uint64_t count = number_from("B200_TEST_PROGRAMS", 100000) / 4000;
  run_many(number_from("B200_TEST_FIRST", 0), count, true);
  if (count >= 10)
    ck_assert(seen_blocked > count && seen_overflow > count);
}
END_TEST

#define CASES(X) X(small_programs_1) X(small_programs_2) X(small_programs_3) X(small_programs_4) X(crowded_programs)

UNIT_MAIN("comm_overlap_random", CASES)
