/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said of each step as it is found: marks and the confidence in the log, and the figures of
 * interpose/record/metrics.
 *
 * One struct b200_live per observation, in zeroed memory. The caller serialises what is about steps and loss lines (by the
 * runtime's lock of the steps); the meter in it takes values from any thread.
 */
#ifndef B200_LIVE_H
#define B200_LIVE_H

#include "interpose/record/metrics.h"
#include "policy/config.h"
#include "policy/loss_scan.h"
#include "policy/step_sources.h"

struct b200_live {
  struct b200_meter meter;
  struct b200_step_sources sources;
  bool told; /* B200OPT_STEP_PERIOD */
};

void b200_live_start(struct b200_live *live, const struct b200_config *config);

/* A step was found. True: the writer's thread has something to do. */
bool b200_live_step(struct b200_live *live, const struct b200_step *step);

/* The job printed a loss; t_ns: now. */
void b200_live_loss(struct b200_live *live, const struct b200_loss *loss, uint64_t t_ns);

/* The process ends, after its last step and line. */
void b200_live_finish(struct b200_live *live, const struct b200_totals *now);

#endif
