/* SPDX-License-Identifier: Apache-2.0 */
#include "random_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of the last event of each lane that is known at a point. */
struct clock {
  uint32_t at[LANES];
};

struct past {
  int step, lane, buffer;
  uint32_t epoch;
  size_t at, bytes;
  bool write, seen;
  const char *name;
};

/* The state of the world behind a number of steps. */
struct model {
  bool recorded[EVENTS];
  struct clock streams[STREAMS], threads[MAX_THREADS], events[EVENTS], after[MAX_STEPS];
  struct past past[3 * MAX_STEPS];
  int past_count;
};

struct access {
  int buffer;
  size_t at, bytes;
  bool write;
};

uint32_t program_random(uint64_t *state, uint32_t limit) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33) % limit;
}

void step_mix(unsigned char *to, const unsigned char *from, size_t bytes, unsigned char value) {
  for (size_t i = 0; i < bytes; i++)
    to[i] = (unsigned char)(31 * to[i] + (from ? from[i] : 0) + value);
}

void step_see(uint64_t *seen, const unsigned char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    *seen = (*seen ^ bytes[i]) * 0x100000001b3; /* FNV-1a */
}

static bool is_operation(const struct step *step) {
  return step->kind <= STEP_FREE;
}

static bool is_pinned(int buffer) {
  return buffer >= DEVICE_BUFFERS && buffer < DEVICE_BUFFERS + PINNED_BUFFERS;
}

bool step_orders(const struct step *step) {
  return step->kind >= STEP_RECORD && step->kind <= STEP_SYNC_DEVICE;
}

/* ------------------------------------------------------------------------------------------- what is ordered */

static void join(struct clock *into, const struct clock *from) {
  for (int lane = 0; lane < LANES; lane++)
    if (from->at[lane] > into->at[lane])
      into->at[lane] = from->at[lane];
}

static int lane_of(const struct step *step) {
  return is_operation(step) ? step->stream : STREAMS + step->thread;
}

/* What is ordered before a step's accesses. */
static struct clock before(const struct model *model, const struct step *step) {
  struct clock clock = model->threads[step->thread];
  if (!is_operation(step) && step->kind != STEP_RECORD && step->kind != STEP_WAIT)
    return clock;
  join(&clock, &model->streams[step->stream]);
  if (step->stream == 0)
    for (int stream = 1; stream < FIRST_NON_BLOCKING; stream++)
      join(&clock, &model->streams[stream]);
  else if (step->stream < FIRST_NON_BLOCKING)
    join(&clock, &model->streams[0]);
  return clock;
}

/* The legacy stream is behind the blocking ones, even when nothing was submitted to it since. */
static void wait_for_stream(const struct model *model, struct clock *thread, int stream) {
  join(thread, &model->streams[stream]);
  for (int blocking = 1; stream == 0 && blocking < FIRST_NON_BLOCKING; blocking++)
    join(thread, &model->streams[blocking]);
}

static void advance(struct model *model, const struct step *step) {
  struct clock clock = before(model, step), *thread = &model->threads[step->thread];
  switch (step->kind) {
  case STEP_RECORD:
    model->streams[step->stream] = model->events[step->event] = clock;
    model->recorded[step->event] = true;
    break;
  case STEP_WAIT:
    if (!model->recorded[step->event])
      break; /* "a functional no-op" (runtime API reference) */
    join(&clock, &model->events[step->event]);
    model->streams[step->stream] = clock;
    break;
  case STEP_SYNC_STREAM:
    wait_for_stream(model, thread, step->stream);
    break;
  case STEP_SYNC_EVENT:
  case STEP_POLL_EVENT:
    join(thread, &model->events[step->event]);
    break;
  case STEP_SYNC_DEVICE:
    for (int stream = 0; stream < STREAMS; stream++)
      join(thread, &model->streams[stream]);
    break;
  case STEP_HAND_OVER:
    join(thread, &model->after[step->other]);
    break;
  case STEP_TOUCH:
    thread->at[lane_of(step)]++;
    break;
  default:
    clock.at[step->stream]++;
    model->streams[step->stream] = clock;
    if (step->kind == STEP_COPY && is_pinned(step->to) && is_pinned(step->from))
      join(thread, &clock); /* between host memory a copy is synchronous, whatever its name (API synchronization behavior) */
  }
}

/* ------------------------------------------------------------------------------------------- what is touched */

enum { MAX_ACCESSES = 3 };

static int accesses_of(const struct step *step, struct access accesses[MAX_ACCESSES]) {
  int count = 0;
  bool whole = step->kind == STEP_ALLOC || step->kind == STEP_FREE;
  if (!is_operation(step) && step->kind != STEP_TOUCH)
    return 0;
  if (step->kind == STEP_COPY || step->kind == STEP_MIX)
    accesses[count++] = (struct access){step->from, step->from_at, step->bytes, false};
  if (step->kind == STEP_MIX)
    accesses[count++] = (struct access){step->to, step->to_at, step->bytes, false};
  accesses[count++] = (struct access){step->to, whole ? 0 : step->to_at, whole ? BUFFER_BYTES : step->bytes, true};
  return count;
}

static const char *name_of(const struct step *step) {
  switch (step->kind) {
  case STEP_FILL:
    return "fill";
  case STEP_COPY:
    return "copy";
  case STEP_ALLOC:
    return "cuMemAllocAsync";
  case STEP_FREE:
    return "cuMemFreeAsync";
  default:
    return step->name;
  }
}

static bool overlaps(const struct past *past, const struct access *access) {
  return past->buffer == access->buffer && past->at < access->at + access->bytes && access->at < past->at + past->bytes;
}

static bool is_seen(const struct step *step) {
  return step->kind != STEP_CALL && step->kind != STEP_TOUCH;
}

static const char *kind_of(const struct step *newer, const struct access *access, const struct past *older) {
  if (newer->kind == STEP_FREE)
    return "freed while in use";
  return !access->write ? "read after unordered write"
         : older->write ? "write after unordered write"
                        : "write after unordered read";
}

/* The races of a step with what came before it. */
static int races_of(const struct model *model, const struct step *step, int index, struct race *races, int room) {
  struct clock clock = before(model, step);
  struct access accesses[MAX_ACCESSES];
  int count = accesses_of(step, accesses), found = 0;
  for (int i = 0; i < count; i++)
    for (const struct past *past = model->past; past < model->past + model->past_count; past++)
      if (overlaps(past, &accesses[i]) && (past->write || accesses[i].write) && past->lane != lane_of(step) &&
          clock.at[past->lane] < past->epoch && found < room)
        races[found++] = (struct race){.kind = kind_of(step, &accesses[i], past),
                                       .newer = name_of(step),
                                       .older = past->name,
                                       .newer_step = index,
                                       .older_step = past->step,
                                       .seen = past->seen && is_seen(step)};
  return found;
}

/* What a new block holds has nothing to do with what lay there before. */
static void forget_buffer(struct model *model, int buffer) {
  int kept = 0;
  for (int i = 0; i < model->past_count; i++)
    if (model->past[i].buffer != buffer)
      model->past[kept++] = model->past[i];
  model->past_count = kept;
}

static void take_step(struct model *model, const struct step *step, int index) {
  struct access accesses[MAX_ACCESSES];
  if (step->kind == STEP_ALLOC)
    forget_buffer(model, step->to);
  advance(model, step);
  int count = accesses_of(step, accesses), lane = lane_of(step);
  uint32_t epoch = is_operation(step) ? model->streams[step->stream].at[lane] : model->threads[step->thread].at[lane];
  for (int i = 0; i < count; i++)
    model->past[model->past_count++] = (struct past){.step = index,
                                                     .lane = lane,
                                                     .buffer = accesses[i].buffer,
                                                     .epoch = epoch,
                                                     .at = accesses[i].at,
                                                     .bytes = accesses[i].bytes,
                                                     .write = accesses[i].write,
                                                     .seen = is_seen(step),
                                                     .name = name_of(step)};
  model->after[index] = model->threads[step->thread];
}

int program_races(const struct program *program, int removed, struct race races[MAX_RACES]) {
  static struct model model;
  int found = 0;
  model = (struct model){.past_count = 0};
  for (int i = 0; i < program->count; i++) {
    if (i == removed)
      continue;
    if (program->steps[i].kind != STEP_ALLOC)
      found += races_of(&model, &program->steps[i], i, races + found, MAX_RACES - found);
    take_step(&model, &program->steps[i], i);
  }
  return found;
}

/* ------------------------------------------------------------------------------------------- generating */

enum { MARGIN = 200 }; /* steps that one operation may need before it */

struct generator {
  struct program *program;
  struct model model;
  uint64_t random;
  bool lives[BUFFERS];
  int last_on_stream[STREAMS], last_on_event[EVENTS]; /* steps; -1: none */
  int last_of_block[BUFFERS];                         /* allocated or freed */
  int handed[MAX_THREADS][MAX_THREADS];               /* [t][u]: the last step of u that t has waited for, plus one */
};

static uint32_t pick(struct generator *generator, uint32_t limit) {
  return program_random(&generator->random, limit);
}

static void add(struct generator *generator, struct step step);

/* Steps of two threads that use one stream or event come one after the other. */
static void hand_over(struct generator *generator, int thread, int last) {
  int other = last < 0 ? thread : generator->program->steps[last].thread;
  if (other == thread || generator->handed[thread][other] > last)
    return;
  generator->handed[thread][other] = last + 1;
  add(generator, (struct step){.kind = STEP_HAND_OVER, .thread = thread, .other = last});
}

static void order_hosts(struct generator *generator, const struct step *step) {
  bool uses_stream =
      is_operation(step) || step->kind == STEP_RECORD || step->kind == STEP_WAIT || step->kind == STEP_SYNC_STREAM;
  bool uses_event =
      step->kind == STEP_RECORD || step->kind == STEP_WAIT || step->kind == STEP_SYNC_EVENT || step->kind == STEP_POLL_EVENT;
  for (int stream = 0; stream < STREAMS; stream++) {
    bool blocking = stream < FIRST_NON_BLOCKING && step->stream < FIRST_NON_BLOCKING;
    if (step->kind == STEP_SYNC_DEVICE ||
        (uses_stream && (stream == step->stream || (blocking && (!stream || !step->stream)))))
      hand_over(generator, step->thread, generator->last_on_stream[stream]);
  }
  if (uses_event)
    hand_over(generator, step->thread, generator->last_on_event[step->event]);
  if (is_operation(step)) {
    hand_over(generator, step->thread, generator->last_of_block[step->to]);
    hand_over(generator, step->thread, generator->last_of_block[step->from]);
  }
  if (step->kind == STEP_ALLOC || step->kind == STEP_FREE)
    generator->last_of_block[step->to] = generator->program->count;
  if (uses_stream)
    generator->last_on_stream[step->stream] = generator->program->count;
  if (uses_event)
    generator->last_on_event[step->event] = generator->program->count;
}

static void add(struct generator *generator, struct step step) {
  struct program *program = generator->program;
  if (step.kind != STEP_HAND_OVER)
    order_hosts(generator, &step);
  if (program->count == MAX_STEPS)
    abort(); /* the margin is too small */
  snprintf(step.name, sizeof step.name, "op%d", program->count);
  program->steps[program->count] = step;
  take_step(&generator->model, &program->steps[program->count], program->count);
  program->count++;
}

/* Orders the end of a lane before what `step` will touch. */
static void order_stream(struct generator *generator, const struct step *step, int stream) {
  int thread = step->thread, event = (int)pick(generator, EVENTS);
  uint32_t way = pick(generator, is_operation(step) ? 12 : 6);
  if (way >= 2 && way != 3) {
    add(generator, (struct step){.kind = STEP_RECORD, .thread = thread, .stream = stream, .event = event});
    if (way >= 6)
      add(generator, (struct step){.kind = STEP_WAIT, .thread = thread, .stream = step->stream, .event = event});
    else
      add(generator, (struct step){.kind = way == 5 ? STEP_POLL_EVENT : STEP_SYNC_EVENT, .thread = thread, .event = event});
  } else {
    add(generator,
        (struct step){.kind = way == 3 ? STEP_SYNC_DEVICE : STEP_SYNC_STREAM, .thread = thread, .stream = stream});
  }
}

static void add_access(struct generator *generator, struct step step) {
  struct race race;
  while (races_of(&generator->model, &step, 0, &race, 1)) {
    const struct step *older = &generator->program->steps[race.older_step];
    if (is_operation(older))
      order_stream(generator, &step, older->stream);
    else
      hand_over(generator, step.thread, race.older_step);
  }
  add(generator, step);
}

static void pick_range(struct generator *generator, struct step *step) {
  static const uint32_t unit = 64;
  uint32_t units = BUFFER_BYTES / unit, length = pick(generator, 3) ? 1 + pick(generator, units / 2) : units;
  step->bytes = length * unit;
  step->to_at = pick(generator, units - length + 1) * unit;
  step->from_at = pick(generator, units - length + 1) * unit;
}

/* A buffer that lives; `pinned`: one of those that are. */
static int pick_buffer(struct generator *generator, bool pinned) {
  int buffer;
  do
    buffer = (int)pick(generator, BUFFERS);
  while (!generator->lives[buffer] || (pinned && !is_pinned(buffer)));
  return buffer;
}

static void add_pool_step(struct generator *generator, struct step step) {
  step.to = BUFFERS - POOL_BUFFERS + (int)pick(generator, POOL_BUFFERS);
  step.kind = generator->lives[step.to] ? STEP_FREE : STEP_ALLOC;
  generator->lives[step.to] = step.kind == STEP_ALLOC;
  if (step.kind == STEP_FREE)
    add_access(generator, step);
  else
    add(generator, step);
  if (step.kind == STEP_ALLOC) { /* what it holds is not defined */
    step.kind = STEP_FILL;
    step.bytes = BUFFER_BYTES;
    step.to_at = 0;
    add_access(generator, step);
  }
}

static void add_operation(struct generator *generator) {
  struct step step = {.thread = (int)pick(generator, (uint32_t)generator->program->threads),
                      .stream = (int)pick(generator, STREAMS),
                      .value = (unsigned char)pick(generator, 256)};
  pick_range(generator, &step);
  uint32_t choice = pick(generator, 16);
  if (choice < 2) {
    add_pool_step(generator, step);
    return;
  }
  step.kind = choice < 5    ? STEP_FILL
              : choice < 10 ? STEP_COPY
              : choice < 14 ? STEP_MIX
              : choice < 15 ? STEP_CALL
                            : STEP_TOUCH;
  step.to = pick_buffer(generator, step.kind == STEP_CALL || step.kind == STEP_TOUCH);
  do
    step.from = pick_buffer(generator, false);
  while (step.from == step.to);
  add_access(generator, step);
}

/* Waits that nobody needs. */
static void add_noise(struct generator *generator) {
  struct step step = {.thread = (int)pick(generator, (uint32_t)generator->program->threads),
                      .stream = (int)pick(generator, STREAMS),
                      .event = (int)pick(generator, EVENTS),
                      .kind = pick(generator, 2) ? STEP_RECORD : STEP_WAIT};
  add(generator, step);
}

void program_generate(struct program *program, uint64_t seed, int operations, int threads) {
  static struct generator generator;
  generator = (struct generator){.program = program, .random = seed * 0x9e3779b97f4a7c15u + 1};
  program->count = 0;
  program->threads = threads;
  for (int i = 0; i < BUFFERS; i++)
    generator.lives[i] = i < BUFFERS - POOL_BUFFERS, generator.last_of_block[i] = -1;
  for (int i = 0; i < STREAMS; i++)
    generator.last_on_stream[i] = -1;
  for (int i = 0; i < EVENTS; i++)
    generator.last_on_event[i] = -1;
  for (int i = 0; i < operations && program->count < MAX_STEPS - MARGIN; i++) {
    add_operation(&generator);
    if (pick(&generator, 6) == 0)
      add_noise(&generator);
  }
}

/* ------------------------------------------------------------------------------------------- showing and computing */

void program_print(const struct program *program) {
  static const char *const kinds[] = {"fill",       "copy",        "kernel",    "host function", "alloc",
                                      "free",       "record",      "wait",      "sync stream",   "sync event",
                                      "poll event", "sync device", "hand over", "touch"};
  for (int i = 0; i < program->count; i++) {
    const struct step *step = &program->steps[i];
    printf("  %3d thread %d %-13s stream %d event %d to %d+%zu from %d+%zu bytes %zu other %d\n", i, step->thread,
           kinds[step->kind], step->stream, step->event, step->to, step->to_at, step->from, step->from_at, step->bytes,
           step->other);
  }
}

void program_compute(const struct program *program, unsigned char memory[BUFFERS][BUFFER_BYTES],
                     uint64_t seen[MAX_THREADS]) {
  memset(memory, 0, BUFFERS * BUFFER_BYTES);
  memset(seen, 0, MAX_THREADS * sizeof *seen);
  for (const struct step *step = program->steps; step < program->steps + program->count; step++) {
    unsigned char *to = memory[step->to] + step->to_at;
    const unsigned char *from = memory[step->from] + step->from_at;
    if (step->kind == STEP_FILL)
      memset(to, step->value, step->bytes);
    else if (step->kind == STEP_COPY)
      memcpy(to, from, step->bytes);
    else if (step->kind == STEP_MIX)
      step_mix(to, from, step->bytes, step->value);
    if (step->kind == STEP_TOUCH)
      step_see(&seen[step->thread], to, step->bytes);
    if (step->kind == STEP_CALL || step->kind == STEP_TOUCH)
      step_mix(to, NULL, step->bytes, step->value);
  }
}
