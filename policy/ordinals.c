/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/ordinals.h"

#include <string.h>

int64_t b200_ordinals_next(struct b200_ordinals *ordinals, enum b200_role role) {
  if (role > B200_ROLE_WGRAD)
    return -1;
  uint32_t at = ordinals->count;
  if (at < B200_ORDINALS_MAX)
    ordinals->roles[at] = (uint8_t)role;
  ordinals->count += ordinals->count <= B200_ORDINALS_MAX; /* one beyond: too many */
  if (at >= ordinals->last || ordinals->pattern[at] != role)
    ordinals->known = false;
  return ordinals->known ? ordinals->index[at] : -1;
}

/* Where the forward pass begins: at the longest run of forward GEMMs. What is done again in a backward pass is shorter, and
   a step may begin anywhere (with DDP at the first gradient bucket). Returns the length of the run; 0 without one. */
static uint32_t find_forward(const uint8_t *roles, uint32_t count, uint32_t *start) {
  uint32_t longest = 0, run = 0;
  for (uint32_t i = 0; i < 2 * count && longest < count; i++) {
    run = roles[i % count] == B200_ROLE_FPROP ? run + 1 : 0;
    if (run > longest) {
      longest = run;
      *start = (i + 1 - run) % count;
    }
  }
  return longest < count ? longest : 0;
}

static uint32_t run_length(const uint8_t *roles, uint32_t count, uint32_t from, uint32_t limit) {
  uint32_t run = 0;
  while (run < limit && roles[(from + run) % count] == B200_ROLE_FPROP)
    run++;
  return run;
}

/* A run of forward GEMMs behind `done` weight gradients of a pass of `layers` begins at the layer that ends with the last
   one without a gradient; or it is the next micro-batch. */
static bool learn(struct b200_ordinals *ordinals) {
  uint32_t count = ordinals->count, start = 0, layers = find_forward(ordinals->roles, count, &start);
  uint32_t next[3] = {0};
  for (uint32_t i = 0; i < count;) {
    uint32_t run = run_length(ordinals->roles, count, start + i, count - i);
    bool again = run < layers;
    if (run && !again)
      memset(next, 0, sizeof next);
    uint32_t open = layers > next[B200_ROLE_WGRAD] ? layers - next[B200_ROLE_WGRAD] : 0;
    for (uint32_t j = 0; j < run; j++)
      ordinals->index[(start + i + j) % count] = again && run > open ? -1 : (int32_t)((again ? open - run : 0) + j);
    i += run;
    for (; i < count && ordinals->roles[(start + i) % count] != B200_ROLE_FPROP; i++)
      ordinals->index[(start + i) % count] = (int32_t)next[ordinals->roles[(start + i) % count]]++;
  }
  return layers > 0;
}

void b200_ordinals_step(struct b200_ordinals *ordinals) {
  uint32_t count = ordinals->count <= B200_ORDINALS_MAX ? ordinals->count : 0;
  bool alike = count > 0 && count == ordinals->last && memcmp(ordinals->roles, ordinals->pattern, count) == 0;
  ordinals->known = alike && (ordinals->known || learn(ordinals));
  memcpy(ordinals->pattern, ordinals->roles, count);
  ordinals->last = count;
  ordinals->count = 0;
}
