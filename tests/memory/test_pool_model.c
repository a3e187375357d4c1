/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drawn sequences of calls, by one thread, against a model that is a list of blocks and searches it from end to end. The
 * model follows the rules of pool.h by their words and predicts status, size and origin of every grant, what is idle, what
 * cudaMemGetInfo answers, and how often the driver was called.
 */
#include "fake_device.h"
#include "unit.h"

#define MIB ((uint64_t)1 << 20)
#define MOST 6000
#define CONTEXTS 3

struct entry {
  uint64_t address, bytes;
  int context;
  bool idle, pinned, tracked;
  uint64_t freed; /* when: counted in calls of the model */
};

static struct {
  struct entry entries[MOST];
  int count;
  uint64_t now;
  uint64_t synced[CONTEXTS]; /* what was freed before this is safe */
  uint64_t begun[CONTEXTS], token[CONTEXTS];
  uint64_t peak[CONTEXTS]; /* of what was live */
  uint64_t used, allocs, frees;
} model;

static struct fake_device device;
static struct b200_pool pool;
static struct b200_pool_config config;
static uint64_t capacity, random_state, odd_bytes, weights;
static int most_live;

static uint64_t draw(uint64_t below) {
  return fake_random(&random_state) % below;
}

static uint64_t pages(uint64_t bytes) {
  return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static bool is_safe(const struct entry *entry) {
  return entry->freed < model.synced[entry->context];
}

static uint64_t idle_bytes(int context) {
  uint64_t sum = 0;
  for (int i = 0; i < model.count; i++)
    sum += model.entries[i].idle && model.entries[i].context == context ? pages(model.entries[i].bytes) : 0;
  return sum;
}

static void drop(struct entry *entry) {
  *entry = model.entries[--model.count];
}

static struct entry *oldest(int context, bool safe_only) {
  struct entry *found = NULL;
  for (int i = 0; i < model.count; i++) {
    struct entry *entry = &model.entries[i];
    if (entry->idle && entry->context == context && (!safe_only || is_safe(entry)) &&
        (!found || entry->freed < found->freed))
      found = entry;
  }
  return found;
}

/* Gives back the oldest until `want` bytes have been, all of them safe, synchronising if need be. */
static uint64_t give_back(int context, uint64_t want) {
  uint64_t done = 0;
  while (done < want && oldest(context, false)) {
    struct entry *entry = oldest(context, true);
    if (!entry) {
      model.synced[context] = ++model.now;
      continue;
    }
    done += pages(entry->bytes);
    model.used -= entry->bytes;
    model.frees++;
    drop(entry);
  }
  return done;
}

static uint64_t live_bytes(int context) {
  uint64_t sum = 0;
  for (int i = 0; i < model.count; i++)
    if (!model.entries[i].idle && model.entries[i].tracked && model.entries[i].context == context)
      sum += pages(model.entries[i].bytes);
  return sum;
}

/* Before memory is taken from the driver: what the context holds is to stay within the most that was live. */
static void keep_within_peak(int context, uint64_t bytes) {
  uint64_t live = live_bytes(context) + pages(bytes);
  uint64_t most = live > model.peak[context] ? live : model.peak[context];
  if (config.within_peak && live + idle_bytes(context) > most)
    give_back(context, live + idle_bytes(context) - most);
}

static struct entry *fitting(int context, uint64_t bytes, bool safe_only) {
  struct entry *found = NULL;
  for (int i = 0; i < model.count; i++) {
    struct entry *entry = &model.entries[i];
    if (!entry->idle || entry->pinned || entry->context != context || entry->bytes < bytes || entry->bytes > pages(bytes) ||
        (safe_only && !is_safe(entry)))
      continue;
    if (!found || entry->bytes < found->bytes || (entry->bytes == found->bytes && entry->freed < found->freed))
      found = entry;
  }
  return found;
}

static bool from_driver(uint64_t bytes) {
  model.allocs++;
  return bytes <= capacity - model.used;
}

/* The expected outcome: a block, or NULL with *granted telling whether the driver has one. */
static struct entry *expect_malloc(int context, uint64_t bytes, bool *granted) {
  struct entry *entry = NULL;
  if (bytes >= 2 * MIB) {
    entry = fitting(context, bytes, true);
    if (!entry && config.wait && fitting(context, bytes, false)) {
      model.synced[context] = ++model.now;
      entry = fitting(context, bytes, true);
    }
    if (entry)
      return entry;
    keep_within_peak(context, bytes);
  }
  *granted = from_driver(bytes);
  if (bytes < 2 * MIB)
    return NULL;
  if (!*granted && give_back(context, pages(bytes)) > 0)
    *granted = from_driver(bytes);
  uint64_t all = 0;
  for (int i = 0; !*granted && i < CONTEXTS; i++)
    all += give_back(i, UINT64_MAX);
  if (all > 0)
    *granted = from_driver(bytes);
  return NULL;
}

static uint64_t draw_bytes(void) {
  uint64_t kind = draw(20);
  if (kind == 0)
    return 1 + draw(2 * MIB - 1);
  uint64_t bytes = 2 * MIB * (1 + draw(kind < 12 ? 4 : 40));
  return draw(4) == 0 ? bytes + draw(odd_bytes) : bytes;
}

static void do_malloc(void) {
  struct b200_pool_grant grant;
  int context = (int)draw(CONTEXTS);
  uint64_t bytes = draw_bytes();
  bool granted = false;
  if (model.count >= most_live)
    return;
  struct entry *entry = expect_malloc(context, bytes, &granted);
  int status = b200_pool_malloc(&pool, FAKE_CONTEXT(context), B200_OWNER_PYTORCH, bytes, &grant);
  ck_assert_int_eq(status, entry || granted ? 0 : FAKE_OUT_OF_MEMORY);
  if (status != 0)
    return;
  fake_handed_out(&device, grant.address);
  ck_assert_int_eq(grant.hit, entry != NULL);
  ck_assert_uint_eq(grant.bytes, entry ? entry->bytes : bytes);
  if (entry) {
    ck_assert_uint_eq(grant.address, entry->address);
    entry->idle = false;
  } else {
    model.used += bytes;
    model.entries[model.count++] =
        (struct entry){.address = grant.address, .bytes = bytes, .context = context, .tracked = bytes >= 2 * MIB};
  }
  if (live_bytes(context) > model.peak[context])
    model.peak[context] = live_bytes(context);
  if (config.within_peak)
    ck_assert_uint_le(live_bytes(context) + idle_bytes(context), model.peak[context]);
  fake_launch(&device, context, (int)draw(FAKE_STREAMS), grant.address, true, 1);
}

static struct entry *draw_entry(void) {
  return model.count ? &model.entries[draw((uint64_t)model.count)] : NULL;
}

static void do_free(void) {
  struct entry *entry = draw_entry();
  if (!entry)
    return;
  uint64_t address = entry->address;
  int context = entry->context;
  bool idle = entry->idle;
  if (!idle && (entry->pinned || !entry->tracked)) {
    model.used -= entry->bytes;
    model.frees++;
    drop(entry);
  } else if (!idle) {
    entry->idle = true;
    entry->freed = ++model.now;
    uint64_t sum = idle_bytes(context);
    if (sum > config.max_idle_bytes)
      give_back(context, sum - config.max_idle_bytes);
  }
  ck_assert_int_eq(b200_pool_free(&pool, FAKE_CONTEXT(draw(CONTEXTS)), address, false), idle ? FAKE_INVALID : 0);
}

static void do_interior_free(void) {
  const struct entry *entry = draw_entry();
  if (!entry)
    return;
  model.frees++;
  ck_assert_int_eq(b200_pool_free(&pool, 0, entry->address + 1 + draw(entry->bytes), false), FAKE_INVALID);
}

static void do_sync_begin(void) {
  uint64_t context = draw(CONTEXTS);
  if (model.begun[context] != 0)
    return;
  model.begun[context] = ++model.now;
  model.token[context] = b200_pool_sync_begin(&pool, FAKE_CONTEXT(context));
}

static void do_sync_end(void) {
  uint64_t context = draw(CONTEXTS);
  if (model.begun[context] == 0)
    return;
  fake_run_all(&device, (int)context);
  b200_pool_sync_end(&pool, FAKE_CONTEXT(context), model.token[context]);
  if (model.token[context] != 0 && model.begun[context] > model.synced[context])
    model.synced[context] = model.begun[context];
  model.begun[context] = 0;
}

static void do_pin(void) {
  struct entry *entry = draw_entry();
  if (!entry || !entry->tracked)
    return;
  entry->pinned = true;
  b200_pool_pin(&pool, entry->address + draw(entry->bytes), 1);
}

static void do_context_gone(void) {
  int context = (int)draw(CONTEXTS);
  struct b200_pool_ops ops;
  fake_ops(&device, &ops);
  b200_pool_context_gone(&pool, FAKE_CONTEXT(context));
  for (int i = model.count - 1; i >= 0; i--)
    if (model.entries[i].context == context) { /* the driver's part of the destruction */
      ck_assert_int_eq(ops.free(&device, 0, model.entries[i].address, true), 0);
      model.frees++;
      model.used -= model.entries[i].bytes;
      drop(&model.entries[i]);
    }
  model.peak[context] = 0;
}

static void do_trim(void) {
  int context = (int)draw(CONTEXTS);
  uint64_t bytes = draw(100 * MIB), expected = give_back(context, pages(bytes));
  ck_assert_uint_eq(b200_pool_trim(&pool, FAKE_CONTEXT(context), bytes), expected);
}

static void check(void) {
  struct b200_pool_stats stats;
  uint64_t free_bytes, total, idle = 0, live = 0, pinned = 0;
  int context = (int)draw(CONTEXTS);
  b200_pool_read(&pool, &stats);
  for (int i = 0; i < model.count; i++) {
    idle += model.entries[i].idle;
    live += !model.entries[i].idle && model.entries[i].tracked;
    pinned += model.entries[i].pinned;
  }
  ck_assert_uint_eq(stats.idle_blocks, idle);
  ck_assert_uint_eq(stats.live_blocks, live);
  ck_assert_uint_eq(stats.pinned, pinned);
  ck_assert_uint_eq(stats.idle_bytes, idle_bytes(0) + idle_bytes(1) + idle_bytes(2));
  ck_assert_uint_eq(device.used, model.used);
  ck_assert_uint_eq(device.allocs, model.allocs);
  ck_assert_uint_eq(device.frees, model.frees);
  ck_assert_int_eq(b200_pool_info(&pool, FAKE_CONTEXT(context), &free_bytes, &total), 0);
  uint64_t expected = capacity - model.used + idle_bytes(context);
  ck_assert_uint_eq(free_bytes, expected < capacity ? expected : capacity);
  ck_assert_uint_eq(total, capacity);
  ck_assert_uint_eq(fake_wrongs(&device), 0);
}

static void play(uint64_t seed, int steps) {
  static const struct {
    void (*act)(void);
    uint64_t weight;
  } acts[] = {{do_malloc, 400},  {do_free, 340}, {do_interior_free, 10}, {do_sync_begin, 60},
              {do_sync_end, 80}, {do_pin, 4},    {do_trim, 4},           {do_context_gone, 1}};
  struct b200_pool_ops ops;
  random_state = seed;
  memset(&model, 0, sizeof model);
  model.now = 1;
  fake_make(&device, seed, capacity);
  fake_ops(&device, &ops);
  memset(&pool, 0, sizeof pool);
  b200_pool_init(&pool, &ops, &config);
  for (int step = 0; step < steps; step++) {
    uint64_t at = draw(weights);
    size_t act = 0;
    while (at >= acts[act].weight)
      at -= acts[act++].weight;
    acts[act].act();
    fake_run(&device, (int)draw(4));
    if (step % 16 == 0)
      check();
  }
  check();
  for (int i = 0; i < CONTEXTS; i++)
    b200_pool_context_gone(&pool, FAKE_CONTEXT(i));
}

static void play_all(uint64_t seeds, int steps) {
  for (uint64_t seed = 1; seed <= seeds; seed++)
    for (int wait = 0; wait < 2; wait++) {
      config.wait = wait != 0;
      play(seed, steps);
    }
}

static void with(uint64_t memory, uint64_t max_idle, int live, uint64_t odd) {
  capacity = memory;
  config = (struct b200_pool_config){.mode = B200_POOL_POOL, .max_idle_bytes = max_idle};
  most_live = live;
  odd_bytes = odd;
  weights = 899;
}

START_TEST(with_plenty_of_memory) {
  with((uint64_t)1 << 50, UINT64_MAX, 200, 5);
  play_all(8, 2000);
}
END_TEST

START_TEST(near_the_limit) {
  with(600 * MIB, UINT64_MAX, 200, 5);
  play_all(8, 2000);
}
END_TEST

START_TEST(with_a_small_bound) {
  with((uint64_t)1 << 50, 100 * MIB, 200, 5);
  play_all(8, 2000);
}
END_TEST

START_TEST(within_the_peak_of_the_job) {
  with((uint64_t)1 << 50, UINT64_MAX, 200, 5);
  config.within_peak = true;
  play_all(8, 2000);
  capacity = 600 * MIB;
  play_all(5, 3000);
}
END_TEST

START_TEST(with_many_blocks_of_many_sizes) {
  with((uint64_t)1 << 50, UINT64_MAX, 5000, 2 * MIB);
  weights = 898; /* no context goes: the tables grow */
  play_all(1, 9000);
  ck_assert_uint_gt(pool.index.block_capacity, 1024);
}
END_TEST

#define UNIT_CASES(X)                                                                                                       \
  X(with_plenty_of_memory)                                                                                                  \
  X(near_the_limit) X(with_a_small_bound) X(within_the_peak_of_the_job) X(with_many_blocks_of_many_sizes)

UNIT_MAIN("pool_model", UNIT_CASES)
