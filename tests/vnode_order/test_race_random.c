/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs against two slow checkers that know nothing of ranges. One repeats FastTrack's rule for each byte: the
 * same races, the same numbers of bytes. The other remembers all accesses ever made: nothing may be reported that is no
 * race, and the first race at a byte must be. With memory that runs out, only the former holds.
 *
 * usage: test_race_random [PROGRAMS [FIRST_SEED]]   by default a few hundred programs
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/vnode_order/race_double.h"

enum { ARENA = 96, OPERATIONS = 250, MAX_RACES = 4096, NAME_BYTES = 16 };
#define BASE ((uintptr_t)0x10000)

struct touched {
  const char *name;
  int lane; /* -1: nobody */
  uint32_t number;
};

struct byte {
  struct touched write, reads[LANES];
  const char *freed;
  bool raced;
  size_t count; /* of all accesses since the byte was allocated */
  struct {
    struct touched by;
    bool write;
  } all[3 * OPERATIONS];
};

/* A race of the present operation: what the checker should say, and what it said. */
struct expected {
  const char *kind, *older;
  uint64_t bytes, said_bytes;
};

static struct byte bytes[ARENA];
static struct expected expected[MAX_RACES];
static size_t expected_count;
static char names[OPERATIONS][NAME_BYTES];
static uint64_t state;
static bool short_of_memory;
static unsigned fails_in; /* every so many allocations fail; 0: none does */

void *__real_malloc(size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_realloc(void *old, size_t size);

static uint32_t below(uint32_t limit) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % limit;
}

void *__wrap_malloc(size_t size) {
  return fails_in && !below(fails_in) ? NULL : __real_malloc(size);
}

void *__wrap_realloc(void *old, size_t size) {
  return fails_in && !below(fails_in) ? NULL : __real_realloc(old, size);
}

static void fail(const char *what, const char *newer, const char *older) {
  printf("%s: %s, %s\n", what, newer, older);
  exit(EXIT_FAILURE);
}

static void expect(const char *kind, const char *older) {
  for (size_t i = 0; i < expected_count; i++)
    if (!strcmp(expected[i].kind, kind) && !strcmp(expected[i].older, older)) {
      expected[i].bytes++;
      return;
    }
  expected[expected_count++] = (struct expected){.kind = kind, .older = older, .bytes = 1};
}

/* `lane` < 0: the host frees, and knows what HOST has waited for. */
enum { HOST = LANES - 1 };

static bool races(int lane, const struct touched *older) {
  return older->lane >= 0 &&
         (lane < 0 ? lane_clock(HOST)->at[older->lane] < older->number : !lane_is_ordered(lane, older->lane, older->number));
}

/* ------------------------------------------------------------------------------------------- the checker with all the past
 */

/* Does an access by `lane` race with `older`? NULL: with any? */
static bool really_races(const struct byte *byte, int lane, bool write, const char *older) {
  for (size_t i = 0; i < byte->count; i++)
    if ((write || byte->all[i].write) && races(lane, &byte->all[i].by) && (!older || byte->all[i].by.name == older))
      return true;
  return false;
}

/* All that may be reported. With enough memory the byte's own checker knows better. */
static void expect_from_the_past(const struct byte *byte, int lane, bool write) {
  for (size_t i = 0; short_of_memory && i < byte->count; i++)
    if ((write || byte->all[i].write) && races(lane, &byte->all[i].by))
      expect(lane < 0              ? "freed while in use"
             : !byte->all[i].write ? "write after unordered read"
             : write               ? "write after unordered write"
                                   : "read after unordered write",
             byte->all[i].by.name);
}

/* ------------------------------------------------------------------------------------------- the byte's own checker */

static void touch_byte(struct byte *byte, const struct touched *by, bool write) {
  if (byte->freed) {
    expect("use after free", byte->freed);
    return;
  }
  if (races(by->lane, &byte->write))
    expect(write ? "write after unordered write" : "read after unordered write", byte->write.name);
  for (int lane = 0; write && lane < LANES; lane++)
    if (races(by->lane, &byte->reads[lane]))
      expect("write after unordered read", byte->reads[lane].name);
  for (int lane = 0; lane < LANES; lane++)
    if (write || !races(by->lane, &byte->reads[lane]))
      byte->reads[lane].lane = -1;
  if (write)
    byte->write = *by;
  else
    byte->reads[by->lane] = *by;
}

static void forget_byte(struct byte *byte) {
  byte->write.lane = -1;
  for (int lane = 0; lane < LANES; lane++)
    byte->reads[lane].lane = -1;
  byte->freed = NULL;
  byte->raced = false;
  byte->count = 0;
}

static void free_byte(struct byte *byte, const char *how) {
  expect_from_the_past(byte, -1, true);
  if (!byte->freed && races(-1, &byte->write))
    expect("freed while in use", byte->write.name);
  for (int lane = 0; !byte->freed && lane < LANES; lane++)
    if (races(-1, &byte->reads[lane]))
      expect("freed while in use", byte->reads[lane].name);
  forget_byte(byte);
  byte->freed = how;
}

/* ------------------------------------------------------------------------------------------- comparing */

static void note_said(char *line, const char *newer) {
  uint64_t count = 0;
  for (size_t i = 0; i < expected_count; i++) {
    struct expected *each = &expected[i];
    char start[96], end[96], *which = strstr(line, ", which ");
    snprintf(start, sizeof start, "race: %s: %s ", each->kind, newer);
    snprintf(end, sizeof end, ", which %s ", each->older);
    if (strncmp(line, start, strlen(start)) || !which || strncmp(which, end, strlen(end)))
      continue;
    const char *number = strstr(line, " bytes within");
    while (number > line && number[-1] >= '0' && number[-1] <= '9')
      number--;
    if (sscanf(number, "%" SCNu64, &count) != 1)
      fail("no number of bytes", line, "");
    each->said_bytes += count;
    return;
  }
  fail("reported without reason", newer, line);
}

/* Everything that was said was expected, and everything expected was said. */
static void compare(const char *newer) {
  char *rest = NULL, *text = strdup(said());
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    note_said(line, newer);
  for (size_t i = 0; i < expected_count; i++)
    if (short_of_memory ? expected[i].said_bytes > expected[i].bytes : expected[i].said_bytes != expected[i].bytes)
      fail(expected[i].kind, newer, expected[i].older);
  free(text);
}

/* What FastTrack expects is a race by the complete history, and the first race at a byte is expected. pre: nothing was
 * freed. */
static void compare_with_the_past(const struct byte *byte, const char *kind_prefix, int lane, bool write) {
  bool really = really_races(byte, lane, write, NULL), found = false;
  for (size_t i = 0; i < expected_count; i++)
    found |=
        !strncmp(expected[i].kind, kind_prefix, strlen(kind_prefix)) && really_races(byte, lane, write, expected[i].older);
  if (really && !byte->raced && !found)
    fail("a race was missed by the rule itself", kind_prefix, "");
}

/* ------------------------------------------------------------------------------------------- programs */

static struct vnode_access random_access(void) {
  struct vnode_access access = {.row_bytes = 1 + below(20), .rows = 1 + (below(3) ? 0 : below(4)), .write = below(2)};
  access.pitch = below(4) ? access.row_bytes + below(6) : access.row_bytes;
  size_t extent = (access.rows - 1) * access.pitch + access.row_bytes;
  if (extent > ARENA)
    access.rows = 1, extent = access.row_bytes;
  access.at = (const void *)(BASE + below((uint32_t)(ARENA - extent + 1)));
  return access;
}

static void expect_access(const struct vnode_access *access, const struct touched *by) {
  for (size_t row = 0; row < access->rows; row++)
    for (size_t i = 0; i < access->row_bytes; i++) {
      struct byte *byte = &bytes[(uintptr_t)access->at - BASE + row * access->pitch + i];
      bool live = !byte->freed;
      expect_from_the_past(byte, by->lane, access->write);
      touch_byte(byte, by, access->write);
      if (live && !short_of_memory)
        compare_with_the_past(byte, access->write ? "write" : "read", by->lane, access->write);
      byte->raced |= really_races(byte, by->lane, access->write, NULL);
      byte->all[byte->count].by = *by;
      byte->all[byte->count++].write = access->write;
    }
}

static void operate(int index) {
  int lane = (int)below(HOST);
  struct vnode_access accesses[4] = {{.row_bytes = 0}};
  size_t count = 1 + below(3);
  struct touched by = {.name = names[index], .lane = lane, .number = lane_clock(lane)->at[lane] + 1};
  for (size_t i = 0; i < count; i++) {
    accesses[i] = random_access();
    expect_access(&accesses[i], &by);
  }
  lane_runs(lane, names[index], accesses);
}

static void memory_comes_or_goes(int index) {
  size_t at = below(ARENA), end = at + 1 + below((uint32_t)(ARENA - at));
  bool comes = below(2);
  for (size_t i = at; i < end; i++)
    if (comes)
      forget_byte(&bytes[i]);
    else
      free_byte(&bytes[i], names[index]);
  if (comes)
    vnode_race_fresh((void *)(BASE + at), end - at);
  else
    vnode_race_release(lane_clock(HOST), (void *)(BASE + at), end - at, names[index]);
}

static void run_program(uint64_t seed) {
  state = seed * 0x9e3779b97f4a7c15u + 1;
  uint32_t waits = 1 + below(8); /* of ten steps; few: most accesses race */
  short_of_memory = below(4) == 0;
  fails_in = short_of_memory ? 2 + below(10) : 0;
  for (size_t i = 0; i < ARENA; i++)
    forget_byte(&bytes[i]);
  for (int i = 0; i < OPERATIONS; i++) {
    snprintf(names[i], NAME_BYTES, "op%d", i);
    expected_count = 0;
    if (below(12) == 0)
      memory_comes_or_goes(i);
    else
      operate(i);
    compare(names[i]);
    while (below(10) < waits)
      lane_waits((int)below(LANES), (int)below(LANES));
    if (vnode_race_segments() > ARENA)
      fail("more segments than bytes", names[i], "");
  }
  if (!short_of_memory && vnode_race_left_out())
    fail("left out", "accesses", "with enough memory");
  vnode_race_fresh((void *)BASE, ARENA);
  if (vnode_race_segments())
    fail("segments of memory that nobody has touched", "", "");
}

int main(int argc, char **argv) {
  uint64_t programs = argc > 1 ? strtoull(argv[1], NULL, 10) : 300, first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  for (uint64_t seed = first; seed < first + programs; seed++) {
    fflush(NULL);
    pid_t child = fork(); /* each with a new checker */
    if (!child) {
      run_program(seed);
      exit(EXIT_SUCCESS);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status) {
      printf("program %" PRIu64 " failed\n", seed);
      return EXIT_FAILURE;
    }
  }
  printf("%" PRIu64 " random programs: as expected\n", programs);
  return EXIT_SUCCESS;
}
