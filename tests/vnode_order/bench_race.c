/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of the race checker in a synthetic training loop: layers with weights, activations that are carved out of one
   pool, flat buffers that a second lane gathers and reduces. Printed: accesses a second and how many segments are
   remembered. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/vnode_order/race_double.h"

enum { LAYERS = 24, TENSORS = 6, STEPS = 100000 };
static const uintptr_t weights = 0x100000000, gradients = 0x200000000, pool = 0x300000000, gathered = 0x400000000;
static const size_t layer_bytes = 1 << 20;

static uint64_t accesses;
static uint32_t random_state = 1;

static uint32_t below(uint32_t limit) {
  random_state = random_state * 1664525 + 1013904223;
  return (random_state >> 8) % limit;
}

static void run(int lane, const char *name, struct vnode_access from, struct vnode_access to) {
  lane_runs(lane, name, (struct vnode_access[]){from, to, {.row_bytes = 0}});
  accesses += 2;
}

/* The parts of a layer, of unequal sizes. */
static uintptr_t part(uintptr_t base, int layer, int tensor) {
  return base + (uintptr_t)layer * layer_bytes + (uintptr_t)tensor * (uintptr_t)tensor * 20000;
}

static void layer_step(int layer, const char *name) {
  lane_waits(2, 1);
  run(2, "gather", reads(part(weights, layer, 0), layer_bytes),
      writes(gathered + (uintptr_t)(layer & 1) * layer_bytes, layer_bytes));
  lane_waits(1, 2);
  for (int tensor = 0; tensor < TENSORS; tensor++) {
    size_t bytes = part(0, 0, tensor + 1) - part(0, 0, tensor);
    uintptr_t block = pool + 512 * (uintptr_t)below(4096); /* as a caching allocator that hands out blocks anew */
    run(1, name, reads(gathered + (uintptr_t)(layer & 1) * layer_bytes + part(0, 0, tensor), bytes), writes(block, bytes));
    run(1, name, reads(block, bytes), writes(part(gradients, layer, tensor), bytes));
  }
}

static void training_step(void) {
  for (int layer = 0; layer < LAYERS; layer++)
    layer_step(layer, "forward");
  for (int layer = LAYERS; layer-- > 0;) {
    layer_step(layer, "backward");
    lane_waits(3, 1);
    run(3, "reduce", reads(part(gradients, layer, 0), layer_bytes), writes(part(gradients, layer, 0), layer_bytes));
  }
  lane_waits(1, 3);
  for (int layer = 0; layer < LAYERS; layer++)
    run(1, "optimizer", reads(part(gradients, layer, 0), layer_bytes), writes(part(weights, layer, 0), layer_bytes));
}

int main(int argc, char **argv) {
  long steps = argc > 1 ? atol(argv[1]) : STEPS;
  size_t most_early = 0, most_late = 0;
  struct timespec start, end;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  for (long i = 0; i < steps; i++) {
    training_step();
    size_t *most = i < steps / 10 ? &most_early : &most_late;
    *most = vnode_race_segments() > *most ? vnode_race_segments() : *most;
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
  printf("race checker: %.2f million accesses a second of CPU time over %ld steps; segments: at most %zu in the first "
         "tenth, %zu later; races: "
         "%" PRIu64 "\n",
         1e-6 * (double)accesses / seconds, steps, most_early, most_late, vnode_race_reports());
  return vnode_race_reports() || most_late > 2 * most_early ? EXIT_FAILURE : EXIT_SUCCESS;
}
