/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/oom.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "interpose/memory.h"
#include "interpose/runtime.h"

enum { EVENTS = 256, EVENTS_SHOWN = 8, POST_MORTEMS_SHOWN = 4, ADVICE_BYTES = 900 };
enum what { GRANTED, FREED, REFUSED, WHATS };

#define MIB ((uint64_t)1 << 20)

/* Two words, each written whole: an event that is overwritten while it is read shows a wrong time or size, nothing worse. */
struct event {
  _Atomic uint64_t t_ns, fact; /* bytes << 8 | owner << 2 | what */
};

static struct {
  struct event events[EVENTS];
  _Atomic uint64_t event_count, retries, retry_ns, fatal;
  atomic_uint shown;
  atomic_bool creates; /* PyTorch allocates by cuMemCreate: expandable segments */
  int rank;
} oom;

static const char *const ways[] = {"cuMemAlloc", "cuMemCreate", "stream-ordered"};
_Static_assert(sizeof ways / sizeof *ways == B200_OOM_WAYS, "a name for each way");

void b200_oom_start(int rank) {
  oom.rank = rank;
}

void b200_oom_forget(void) {
  memset(&oom, 0, sizeof oom);
}

static void remember(enum what what, enum b200_owner owner, uint64_t bytes) {
  struct event *event = &oom.events[atomic_fetch_add_explicit(&oom.event_count, 1, memory_order_relaxed) % EVENTS];
  atomic_store_explicit(&event->t_ns, b200_runtime_now_ns(), memory_order_relaxed);
  atomic_store_explicit(&event->fact, bytes << 8 | (uint64_t)owner << 2 | what, memory_order_relaxed);
}

/* The job has what it had been refused. */
static void succeeded(struct b200_oom_attempt *attempt) {
  uint64_t now = b200_runtime_now_ns();
  struct b200_line line;
  atomic_fetch_add(&oom.retries, 1);
  atomic_fetch_add(&oom.retry_ns, now - attempt->begin_ns);
  b200_line_begin(&line, B200_RECORD_retry);
  b200_line_text(&line, B200_FIELD_retry_owner, b200_owner_names[attempt->owner]);
  b200_line_uint(&line, B200_FIELD_retry_bytes, attempt->bytes);
  b200_line_uint(&line, B200_FIELD_retry_failures, attempt->failures);
  b200_line_uint(&line, B200_FIELD_retry_dur_ns, now - attempt->begin_ns);
  b200_line_uint(&line, B200_FIELD_retry_t_ns, attempt->begin_ns);
  b200_line_int(&line, B200_FIELD_retry_step, b200_runtime_step());
  b200_runtime_put(&line);
  attempt->failures = 0;
}

void b200_oom_granted(struct b200_oom_attempt *attempt, enum b200_owner owner, uint64_t bytes, enum b200_oom_way way) {
  remember(GRANTED, owner, bytes);
  if (owner == B200_OWNER_PYTORCH && way == B200_OOM_CREATE && !atomic_load_explicit(&oom.creates, memory_order_relaxed))
    atomic_store_explicit(&oom.creates, true, memory_order_relaxed);
  if (attempt->failures == 0 || attempt->owner != owner || attempt->way == B200_OOM_CREATE)
    return;
  if (bytes >= attempt->bytes && bytes - attempt->bytes < B200_POOL_MIN_BYTES) /* the pool may grant a page's rest more */
    succeeded(attempt);
  else
    attempt->failures = 0; /* it has gone on without */
}

void b200_oom_mapped(struct b200_oom_attempt *attempt) {
  if (attempt->failures > 0 && attempt->way == B200_OOM_CREATE)
    succeeded(attempt);
}

void b200_oom_freed(enum b200_owner owner, uint64_t bytes) {
  remember(FREED, owner, bytes);
}

/* ---------------------------------------------------------------------------------------------- post-mortem */

struct facts {
  enum b200_owner owner;
  uint64_t bytes;
  int way;
  bool by_headroom, knows_device;
  uint32_t failures;
  uint64_t free_bytes, total_bytes, held_bytes; /* held: by all owners */
  struct b200_ledger_owner owners[B200_OWNER_COUNT];
  struct b200_memory_use pool;
};

struct text {
  char bytes[4000];
  size_t length;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t room = sizeof text->bytes - text->length;
  int length = vsnprintf(text->bytes + text->length, room, format, arguments);
  va_end(arguments);
  text->length += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1;
}

struct size {
  char text[24];
};

static struct size size_of(uint64_t bytes) {
  struct size out;
  if (bytes >= 1024 * MIB)
    snprintf(out.text, sizeof out.text, "%.2f GiB", (double)bytes / (double)(1024 * MIB));
  else
    snprintf(out.text, sizeof out.text, "%.1f MiB", (double)bytes / (double)MIB);
  return out;
}

static void gather(struct facts *out) {
  b200_runtime_owners(out->owners);
  for (int i = 0; i < B200_OWNER_COUNT; i++)
    out->held_bytes += out->owners[i].current_bytes;
  b200_memory_read(&out->pool);
  out->knows_device = b200_runtime_ask_memory(&out->free_bytes, &out->total_bytes);
}

static uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

/* What would have made it fit, the surest first, separated by "; ". */
static void advise(const struct facts *facts, struct text *out) {
  uint64_t available = facts->free_bytes + facts->pool.stats.idle_bytes;
  uint64_t whole = (facts->bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
  uint64_t lacking = less(whole, available), ours = facts->owners[B200_OWNER_B200OPT].current_bytes;
  uint64_t unseen = less(less(facts->total_bytes, facts->free_bytes), facts->held_bytes + facts->pool.stats.idle_bytes);
  uint64_t torch_holds = facts->owners[B200_OWNER_PYTORCH].current_bytes;
  bool pytorch = facts->owner == B200_OWNER_PYTORCH, torch_could_yield = torch_holds > 0 && torch_holds >= lacking;
  if (facts->by_headroom && facts->knows_device && lacking == 0)
    add(out, "B200OPT_MEMORY_RESERVE_MB=%llu lets it in; ", (unsigned long long)((available - whole) / MIB));
  if (!pytorch && torch_could_yield) {
    uint64_t reserve = facts->owners[facts->owner].current_bytes + 2 * whole;
    add(out, "B200OPT_MEMORY=pool B200OPT_MEMORY_RESERVE_MB=%llu keeps PyTorch from taking what %s needs; ",
        (unsigned long long)((reserve + 256 * MIB - 1) / (256 * MIB) * 256), b200_owner_names[facts->owner]);
  }
  if (facts->knows_device && ours > 0 && ours >= lacking)
    add(out, "B200OPT_WORKSPACE_MB=%llu frees enough; ", (unsigned long long)(less(ours, lacking) / MIB));
  if (!atomic_load(&oom.creates) && torch_could_yield && (facts->way == B200_OOM_ALLOC || !pytorch))
    add(out,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets PyTorch reuse the holes in its segments, if its own message "
        "names much memory that is reserved but unallocated; ");
  if (facts->knows_device && unseen > 2048 * MIB && unseen >= lacking)
    add(out, "%s is held by what cannot be seen from here, other processes or the CUDA context (see nvidia-smi); ",
        size_of(unseen).text);
  struct size need = size_of(facts->knows_device && lacking ? lacking : whole);
  if (pytorch || torch_could_yield)
    add(out, "%s%s less: a smaller batch, shorter sequences or activation checkpointing", out->length ? "else " : "",
        need.text);
  else
    add(out, "%s less held by others than PyTorch, which holds %s, or a device with more memory", need.text,
        size_of(torch_holds).text);
}

/* "-0.25 s +512.0 MiB nccl, …", the last first. */
static void list_events(struct text *out) {
  static const char signs[WHATS] = {'+', '-', '!'};
  uint64_t count = atomic_load(&oom.event_count), now = b200_runtime_now_ns();
  for (uint64_t i = 0; i < EVENTS_SHOWN && i < count; i++) {
    const struct event *event = &oom.events[(count - 1 - i) % EVENTS];
    uint64_t fact = atomic_load(&event->fact);
    add(out, "%s%c%s %s %.3f s ago", i ? ", " : "", signs[fact & 3], size_of(fact >> 8).text,
        b200_owner_names[(fact >> 2 & 63) % B200_OWNER_COUNT], (double)less(now, atomic_load(&event->t_ns)) * 1e-9);
  }
}

static void list_owners(const struct facts *facts, struct text *out) {
  for (int i = 0; i < B200_OWNER_COUNT; i++)
    if (facts->owners[i].peak_bytes > 0)
      add(out, "%s%s %s (peak %s)", out->length ? ", " : "", b200_owner_names[i],
          size_of(facts->owners[i].current_bytes).text, size_of(facts->owners[i].peak_bytes).text);
  if (out->length == 0)
    add(out, "nothing yet");
}

static void tell(const struct facts *facts, const struct text *advice, const struct text *events) {
  struct text out = {.length = 0}, owners = {.length = 0};
  if (atomic_fetch_add(&oom.shown, 1) >= POST_MORTEMS_SHOWN)
    return;
  list_owners(facts, &owners);
  add(&out, "b200opt: oom: ");
  if (oom.rank >= 0)
    add(&out, "rank %d: ", oom.rank);
  add(&out, "%s asked for %s (%s) %u times and did not get it%s\n", b200_owner_names[facts->owner],
      size_of(facts->bytes).text, ways[facts->way], facts->failures,
      facts->by_headroom ? ": it is kept for NCCL and cuBLAS" : "");
  if (facts->knows_device)
    add(&out, "b200opt: oom: the device has %s, of which %s are free; nobody known holds %s (context, other processes)\n",
        size_of(facts->total_bytes).text, size_of(facts->free_bytes).text,
        size_of(less(less(facts->total_bytes, facts->free_bytes), facts->held_bytes + facts->pool.stats.idle_bytes)).text);
  add(&out, "b200opt: oom: held: %s\n", owners.bytes);
  if (b200_memory_pools())
    add(&out, "b200opt: oom: the pool keeps %s in %llu idle blocks, the largest of %s; headroom %s\n",
        size_of(facts->pool.stats.idle_bytes).text, (unsigned long long)facts->pool.stats.idle_blocks,
        size_of(facts->pool.largest_idle_bytes).text, size_of(facts->pool.reserve_bytes).text);
  add(&out, "b200opt: oom: before that %llu retries of allocations have cost %.1f ms; last events: %s\n",
      (unsigned long long)atomic_load(&oom.retries), (double)atomic_load(&oom.retry_ns) * 1e-6, events->bytes);
  add(&out, "b200opt: oom: advice: %s\n", advice->bytes);
  b200_runtime_tell(out.bytes);
}

static void put(const struct facts *facts, const struct text *advice, const struct text *events, struct b200_line *line) {
  b200_line_int(line, B200_FIELD_oom_final, 1);
  b200_line_int(line, B200_FIELD_oom_free, facts->knows_device ? (int64_t)facts->free_bytes : -1);
  b200_line_int(line, B200_FIELD_oom_total, facts->knows_device ? (int64_t)facts->total_bytes : -1);
  b200_line_object(line, B200_FIELD_oom_held);
  for (int i = 0; i < B200_OWNER_COUNT; i++)
    if (facts->owners[i].current_bytes > 0)
      b200_line_member_uint(line, b200_owner_names[i], facts->owners[i].current_bytes);
  b200_line_object_end(line);
  b200_line_object(line, B200_FIELD_oom_peak);
  for (int i = 0; i < B200_OWNER_COUNT; i++)
    if (facts->owners[i].peak_bytes > 0)
      b200_line_member_uint(line, b200_owner_names[i], facts->owners[i].peak_bytes);
  b200_line_object_end(line);
  b200_line_uint(line, B200_FIELD_oom_idle, facts->pool.stats.idle_bytes);
  b200_line_uint(line, B200_FIELD_oom_largest_idle, facts->pool.largest_idle_bytes);
  b200_line_uint(line, B200_FIELD_oom_retries, atomic_load(&oom.retries));
  b200_line_uint(line, B200_FIELD_oom_retry_ns, atomic_load(&oom.retry_ns));
  b200_line_text(line, B200_FIELD_oom_last, events->bytes);
  b200_line_text(line, B200_FIELD_oom_advice, advice->bytes);
}

static bool is_final(const struct b200_oom_attempt *attempt) {
  switch (attempt->owner) {
  case B200_OWNER_PYTORCH:
    return attempt->way == B200_OOM_STREAM || attempt->failures % 2 == 0;
  case B200_OWNER_NCCL:
  case B200_OWNER_CUBLAS:
  case B200_OWNER_CUDNN:
    return true;
  default:
    return false;
  }
}

void b200_oom_refused(struct b200_oom_attempt *attempt, enum b200_owner owner, uint64_t bytes, int way,
                      struct b200_line *line) {
  bool same = attempt->failures > 0 && attempt->owner == owner && attempt->bytes == bytes;
  remember(REFUSED, owner, bytes);
  if (!same)
    *attempt = (struct b200_oom_attempt){.bytes = bytes,
                                         .begin_ns = b200_runtime_now_ns(),
                                         .owner = (uint8_t)owner,
                                         .way = (uint8_t)(way & ~B200_OOM_HEADROOM)};
  attempt->failures++;
  b200_line_text(line, B200_FIELD_oom_why, way & B200_OOM_HEADROOM ? "headroom" : "driver");
  b200_line_uint(line, B200_FIELD_oom_failures, attempt->failures);
  if (!is_final(attempt))
    return;
  struct facts facts = {.owner = owner,
                        .bytes = bytes,
                        .way = attempt->way,
                        .by_headroom = (way & B200_OOM_HEADROOM) != 0,
                        .failures = attempt->failures};
  struct text advice = {.length = 0}, events = {.length = 0};
  atomic_fetch_add(&oom.fatal, 1);
  gather(&facts);
  advise(&facts, &advice);
  list_events(&events);
  tell(&facts, &advice, &events);
  put(&facts, &advice, &events, line);
}

void b200_oom_read(struct b200_oom_counts *out) {
  out->retries = atomic_load(&oom.retries);
  out->retry_ns = atomic_load(&oom.retry_ns);
  out->fatal = atomic_load(&oom.fatal);
}
