/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The happens-before checker, after FastTrack (Flanagan and Freund, PLDI 2009): of each byte it is enough to know the last
 * write and the reads since that are not ordered before one another. When an access races with anything older, it races with
 * one of these, too.
 *
 * Bytes with the same history are one segment. The segments lie in a skip list by address; an access costs one descent and
 * the segments that it touches. A write leaves one segment behind, a read joins neighbours that have become equal, so a
 * program that uses the same tensors again and again keeps the number of segments that it began with. Memory without a
 * segment is memory that nobody has touched: the checker asks nobody what is allocated.
 */
#include "race.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
  LEVELS = 12,            /* of the skip list, a quarter of the segments on each next: good for 4^12 */
  NEAR_READS = 2,         /* reads that need no memory of their own */
  MAX_SEGMENTS = 1 << 21, /* 200 MB; accesses that need more are left out */
  MAX_SAID = 3000,        /* pairs of operations that are said */
  SAID_ROOM = 4096,
};

struct touch {
  const char *name; /* NULL: nobody */
  uint32_t epoch;
  int lane;
};

struct segment {
  uintptr_t start, end;
  struct touch write; /* the last; of freed memory, in `name`, what freed it */
  union {
    struct touch near[NEAR_READS];
    struct touch *far;
  } reads;                        /* since that write, none ordered before another */
  uint16_t read_count, read_room; /* read_room > NEAR_READS: the reads are far */
  bool freed;
  uint8_t level;
  struct segment *next[];
};

/* A place between segments: for each level the link that crosses it. */
struct cursor {
  struct segment *before, **link[LEVELS];
};

enum kind { READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, USE_AFTER_FREE, FREED_IN_USE };

/* A race of the present operation with an older one, over all the bytes where they meet. */
struct finding {
  enum kind kind;
  struct touch older;
  uintptr_t start, end;
  uint64_t bytes;
};

static struct {
  struct segment *head[LEVELS];
  size_t segment_count;
  uint32_t random;
  uint64_t reports, left_out;
  struct finding *found; /* of the present operation */
  size_t found_count, found_room;
  uint64_t said[SAID_ROOM]; /* hashes of what was said, open addressing; 0: free */
  size_t said_count;
} race = {.random = 1};

/* ------------------------------------------------------------------------------------------- segments */

static struct segment *peek(const struct cursor *at) {
  return *at->link[0];
}

/* To the first segment that ends after `address`. */
static void seek(struct cursor *at, uintptr_t address) {
  struct segment **links = race.head;
  at->before = NULL;
  for (int level = LEVELS - 1; level >= 0; level--) {
    while (links[level] && links[level]->end <= address) {
      at->before = links[level];
      links = links[level]->next;
    }
    at->link[level] = &links[level];
  }
}

static void step(struct cursor *at) {
  struct segment *segment = peek(at);
  int level = 0;
  do
    at->link[level] = &segment->next[level];
  while (++level < segment->level);
  at->before = segment;
}

static struct touch *reads_of(struct segment *segment) {
  return segment->read_room > NEAR_READS ? segment->reads.far : segment->reads.near;
}

static uint8_t random_level(void) {
  race.random ^= race.random << 13; /* xorshift32 */
  race.random ^= race.random >> 17;
  race.random ^= race.random << 5;
  uint8_t level = 1;
  for (uint32_t bits = race.random; level < LEVELS && !(bits & 3); bits >>= 2)
    level++;
  return level;
}

/* Puts an empty segment at the cursor; NULL when there is no memory for it. */
static struct segment *insert(struct cursor *at, uintptr_t start, uintptr_t end) {
  uint8_t level = random_level();
  struct segment *segment =
      race.segment_count < MAX_SEGMENTS ? malloc(sizeof *segment + level * sizeof *segment->next) : NULL;
  if (!segment)
    return NULL;
  *segment = (struct segment){.start = start, .end = end, .level = level, .read_room = NEAR_READS};
  int i = 0;
  do {
    segment->next[i] = *at->link[i];
    *at->link[i] = segment;
  } while (++i < level);
  race.segment_count++;
  return segment;
}

static void forget_reads(struct segment *segment) {
  if (segment->read_room > NEAR_READS)
    free(segment->reads.far);
  segment->read_count = 0;
  segment->read_room = NEAR_READS;
}

static void erase(struct cursor *at) {
  struct segment *segment = peek(at);
  int level = 0;
  do
    *at->link[level] = segment->next[level];
  while (++level < segment->level);
  forget_reads(segment);
  free(segment);
  race.segment_count--;
}

static bool add_read(struct segment *segment, const struct touch *read) {
  if (segment->read_count == segment->read_room) {
    size_t room = segment->read_room + 4u;
    bool was_far = segment->read_room > NEAR_READS;
    struct touch *far = realloc(was_far ? segment->reads.far : NULL, room * sizeof *far);
    if (!far)
      return false;
    if (!was_far)
      memcpy(far, segment->reads.near, sizeof segment->reads.near);
    segment->reads.far = far;
    segment->read_room = (uint16_t)room;
  }
  reads_of(segment)[segment->read_count++] = *read;
  return true;
}

/* To `address`, where no segment lies on both sides afterwards. Without memory for that its first part is forgotten. */
static void cut(struct cursor *at, uintptr_t address) {
  seek(at, address);
  struct segment *whole = peek(at);
  if (!whole || whole->start >= address)
    return;
  struct segment *first = insert(at, whole->start, address);
  whole->start = address;
  if (!first)
    return;
  first->write = whole->write;
  first->freed = whole->freed;
  for (uint16_t i = 0; i < whole->read_count; i++)
    if (!add_read(first, &reads_of(whole)[i]))
      break;
  step(at);
}

static bool equal(const struct touch *one, const struct touch *two) {
  return one->name == two->name && one->epoch == two->epoch && one->lane == two->lane;
}

/* Makes one of the segments on both sides of the cursor if they touch and have the same history. */
static bool join(struct cursor *at) {
  struct segment *first = at->before, *second = peek(at);
  if (!first || !second || first->end != second->start || first->freed != second->freed ||
      first->read_count != second->read_count || !equal(&first->write, &second->write))
    return false;
  for (uint16_t i = 0; i < first->read_count; i++)
    if (!equal(&reads_of(first)[i], &reads_of(second)[i]))
      return false;
  first->end = second->end;
  erase(at);
  return true;
}

static bool is_exactly(const struct segment *segment, uintptr_t start, uintptr_t end) {
  return segment && segment->start == start && segment->end == end;
}

/* Nobody has touched [start, end); the cursor stands there. */
static void clear(struct cursor *at, uintptr_t start, uintptr_t end) {
  cut(at, end);
  cut(at, start);
  while (peek(at) && peek(at)->end <= end)
    erase(at);
}

/* Gives [start, end) a history of one write, or makes it freed. Without memory it has none. pre: the cursor is at `start`.
 */
static void replace(struct cursor *at, uintptr_t start, uintptr_t end, const struct touch *write, bool freed) {
  struct segment *segment = peek(at);
  if (is_exactly(segment, start, end)) { /* the usual case: a tensor is written again */
    forget_reads(segment);
  } else {
    clear(at, start, end);
    segment = insert(at, start, end);
  }
  if (!segment) {
    race.left_out++;
    return;
  }
  segment->write = *write;
  segment->freed = freed;
  if (!join(at))
    step(at);
  join(at);
}

/* ------------------------------------------------------------------------------------------- findings */

static void find(enum kind kind, const struct touch *older, uintptr_t start, uintptr_t end) {
  for (size_t i = race.found_count; i-- > 0;) {
    struct finding *finding = &race.found[i];
    if (finding->kind != kind || !equal(&finding->older, older))
      continue;
    finding->start = start < finding->start ? start : finding->start;
    finding->end = end > finding->end ? end : finding->end;
    finding->bytes += end - start;
    return;
  }
  if (race.found_count == race.found_room) {
    size_t room = race.found_room ? 2 * race.found_room : 16;
    struct finding *found = realloc(race.found, room * sizeof *found);
    if (!found) {
      race.reports++; /* counted, if not said */
      return;
    }
    race.found = found;
    race.found_room = room;
  }
  race.found[race.found_count++] =
      (struct finding){.kind = kind, .older = *older, .start = start, .end = end, .bytes = end - start};
}

static uint64_t hash(uint64_t seed, const char *text) {
  for (; *text; text++)
    seed = (seed ^ (unsigned char)*text) * 0x100000001b3; /* FNV-1a */
  return (seed ^ 0xff) * 0x100000001b3;
}

/* True when this kind of race between operations of these names has not been said. */
static bool is_news(const char *kind, const char *one, const char *two) {
  uint64_t key = hash(hash(hash(0xcbf29ce484222325, kind), one), two) | 1;
  if (race.said_count == MAX_SAID)
    return false;
  size_t at = key / 2 % SAID_ROOM;
  for (; race.said[at]; at = (at + 1) % SAID_ROOM)
    if (race.said[at] == key)
      return false;
  if (race.said_count == MAX_SAID - 1)
    vnode_say("race: more pairs of operations race than are said; from here they are counted only");
  race.said[at] = key;
  return ++race.said_count < MAX_SAID;
}

static const struct {
  const char *name, *newer_verb, *older_verb;
} kinds[] = {
    [READ_AFTER_WRITE] = {"read after unordered write", "reads", "writes"},
    [WRITE_AFTER_READ] = {"write after unordered read", "writes", "reads"},
    [WRITE_AFTER_WRITE] = {"write after unordered write", "writes", "writes"},
    [USE_AFTER_FREE] = {"use after free", "uses", "freed"},
    [FREED_IN_USE] = {"freed while in use", "frees", "uses"},
};

/* `newer` is an operation, or the name of a function that frees. */
static void say_finding(const struct finding *finding, const struct vnode_race_op *newer, const char *how) {
  const char *kind = kinds[finding->kind].name, *name = newer ? newer->name : how;
  if (!is_news(kind, name, finding->older.name))
    return;
  char who[160], other[160], range[96];
  if (newer)
    snprintf(who, sizeof who, "%s (lane %d, operation %" PRIu32 ")", name, newer->lane, newer->epoch);
  else
    snprintf(who, sizeof who, "%s", name);
  snprintf(range, sizeof range, "%" PRIu64 " bytes within %#" PRIxPTR "..%#" PRIxPTR, finding->bytes, finding->start,
           finding->end);
  if (finding->kind == USE_AFTER_FREE) {
    vnode_say("race: %s: %s uses %s, which %s has freed", kind, who, range, finding->older.name);
    return;
  }
  snprintf(other, sizeof other, "%s (lane %d, operation %" PRIu32 ")", finding->older.name, finding->older.lane,
           finding->older.epoch);
  vnode_say("race: %s: %s %s %s, which %s %s; nothing orders it after %s: an event wait or a synchronisation is missing",
            kind, who, kinds[finding->kind].newer_verb, range, other, kinds[finding->kind].older_verb, finding->older.name);
}

static void say_findings(const struct vnode_race_op *newer, const char *how) {
  for (size_t i = 0; i < race.found_count; i++)
    say_finding(&race.found[i], newer, how);
  race.reports += race.found_count;
  race.found_count = 0;
}

/* ------------------------------------------------------------------------------------------- accesses */

static bool is_before(const struct touch *older, const struct vnode_race_op *op) {
  return older->lane == op->lane || op->clock->at[older->lane] >= older->epoch;
}

static void check_write(const struct vnode_race_op *op, const struct segment *segment, enum kind kind, uintptr_t start,
                        uintptr_t end) {
  if (segment->write.name && !is_before(&segment->write, op))
    find(kind, &segment->write, start, end);
}

static void check_reads(const struct vnode_race_op *op, struct segment *segment, enum kind kind, uintptr_t start,
                        uintptr_t end) {
  for (uint16_t i = 0; i < segment->read_count; i++)
    if (!is_before(&reads_of(segment)[i], op))
      find(kind, &reads_of(segment)[i], start, end);
}

/* Checks [start, end) up to the first freed byte, and gives that. */
static uintptr_t check(const struct vnode_race_op *op, struct segment *segment, uintptr_t start, uintptr_t end, bool write) {
  for (; segment && segment->start < end; segment = segment->next[0]) {
    if (segment->freed)
      return segment->start;
    uintptr_t from = segment->start > start ? segment->start : start, to = segment->end < end ? segment->end : end;
    check_write(op, segment, op->frees ? FREED_IN_USE : write ? WRITE_AFTER_WRITE : READ_AFTER_WRITE, from, to);
    if (write)
      check_reads(op, segment, op->frees ? FREED_IN_USE : WRITE_AFTER_READ, from, to);
  }
  return end;
}

/* Of reads that are ordered, the last is enough: what is ordered after it is ordered after the others. */
static void note_read(const struct vnode_race_op *op, struct segment *segment) {
  struct touch *reads = reads_of(segment);
  uint16_t kept = 0;
  for (uint16_t i = 0; i < segment->read_count; i++)
    if (!is_before(&reads[i], op))
      reads[kept++] = reads[i];
  segment->read_count = kept;
  if (!add_read(segment, &(struct touch){.name = op->name, .epoch = op->epoch, .lane = op->lane}))
    race.left_out++;
}

/* Adds a read to all of [start, end). pre: the cursor is at `start`. */
static void note_reads(const struct vnode_race_op *op, struct cursor *at, uintptr_t start, uintptr_t end) {
  if (!is_exactly(peek(at), start, end)) {
    cut(at, end);
    cut(at, start);
  }
  while (start < end) {
    struct segment *segment = peek(at);
    uintptr_t stop = segment && segment->start < end ? segment->start : end;
    if (stop > start && !(segment = insert(at, start, stop))) {
      race.left_out++;
      start = stop;
      continue;
    }
    start = segment->end;
    note_read(op, segment);
    if (!join(at))
      step(at);
  }
  join(at);
}

static void note_range(const struct vnode_race_op *op, uintptr_t start, uintptr_t end, bool write) {
  const struct touch own = {.name = op->name, .epoch = op->epoch, .lane = op->lane};
  while (start < end) {
    struct cursor at;
    seek(&at, start);
    struct segment *segment = peek(&at);
    uintptr_t stop = check(op, segment, start, end, write);
    if (stop <= start) { /* freed, and stays so */
      stop = segment->end < end ? segment->end : end;
      find(USE_AFTER_FREE, &segment->write, start, stop);
    } else if (write) {
      replace(&at, start, stop, &own, op->frees);
    } else {
      note_reads(op, &at, start, stop);
    }
    start = stop;
  }
}

void vnode_race_access(const struct vnode_race_op *op, const struct vnode_access *accesses, size_t count) {
  for (const struct vnode_access *access = accesses; access < accesses + count; access++) {
    uintptr_t start = (uintptr_t)access->at;
    if (!access->rows || !access->row_bytes)
      continue;
    if (access->rows == 1 || access->pitch <= access->row_bytes) {
      note_range(op, start, start + (access->rows - 1) * access->pitch + access->row_bytes, access->write);
    } else if (access->rows <= VNODE_RACE_ROWS) {
      for (size_t row = 0; row < access->rows; row++, start += access->pitch)
        note_range(op, start, start + access->row_bytes, access->write);
    } else {
      race.left_out++;
    }
  }
  say_findings(op, NULL);
}

void vnode_race_fresh(const void *base, size_t bytes) {
  struct cursor at;
  clear(&at, (uintptr_t)base, (uintptr_t)base + bytes);
}

void vnode_race_release(const struct vnode_race_clock *clock, const void *base, size_t bytes, const char *how) {
  const struct vnode_race_op host = {.name = how, .lane = -1, .clock = clock};
  uintptr_t start = (uintptr_t)base, end = start + bytes;
  struct cursor at;
  seek(&at, start);
  for (struct segment *segment = peek(&at); segment && segment->start < end; segment = segment->next[0]) {
    uintptr_t from = segment->start > start ? segment->start : start, to = segment->end < end ? segment->end : end;
    if (segment->freed)
      continue;
    check_write(&host, segment, FREED_IN_USE, from, to);
    check_reads(&host, segment, FREED_IN_USE, from, to);
  }
  replace(&at, start, end, &(struct touch){.name = how}, true);
  say_findings(NULL, how);
}

void vnode_race_report(const char *kind, const char *op, const void *base, size_t bytes, const char *what) {
  race.reports++;
  if (is_news(kind, op, ""))
    vnode_say("race: %s: %s, %zu bytes at %p; %s", kind, op, bytes, base, what);
}

uint64_t vnode_race_reports(void) {
  return race.reports;
}

uint64_t vnode_race_left_out(void) {
  return race.left_out;
}

size_t vnode_race_segments(void) {
  return race.segment_count;
}
