/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts that compare.c puts together, each a key of KEYS.md. Sides: [0] the baseline, [1] the candidate; what stands for
 * an arm in tables is its first run. Ownership as in compare.h.
 */
#ifndef B200_COMPARE_PARTS_H
#define B200_COMPARE_PARTS_H

#include "tools/compare/compare.h"
#include "tools/compare/loss.h"
#include "tools/compare/speed.h"

#define COMPARE_COLUMNS 600 /* of a curve for drawing: longer ones are thinned */

/* null unless finite. */
json_t *compare_real(double value);

/* ---- facts.c: circumstances */

/* `checks`: name, both values, `state` ("same", "differs", "unknown"), of what must be equal. */
json_t *compare_checks(const struct compare_arm *const arms[2]);
/* The first check that failed, as one line that is the caller's to free(); NULL: none did. */
char *compare_checks_failed(const json_t *checks);
/* `environment`: rows of kind, name, both values, differs. */
json_t *compare_environment(const struct compare_arm *const arms[2]);

/* ---- tables.c: what the library's logs counted */

json_t *compare_memory(const struct compare_arm *const arms[2]); /* null without logs */
json_t *compare_gemms(const struct compare_arm *const arms[2]);  /* null without logs */

/* ---- columns.c: thinned for drawing */

/* Both curves and their gap over the common steps. */
json_t *compare_columns(const struct loss_series *series);
/* Shares of times per bin, both sides on the same bins: columns from, to, baseline, candidate; `clipped` times above. */
json_t *compare_histogram(const double *const seconds[2], const size_t counts[2]);
/* Blocked and hidden communication per timed step of both sides; null when neither has it. */
json_t *compare_communication(const struct compare_arm *const arms[2]);

/* ---- throughput.c */

json_t *compare_throughput(const struct compare_arm *const arms[2], double price_per_hour);
/* Wall time to equal loss of the first pair: on the modelled clock when both sides have one, else on the host's. null when
   it is not known. */
json_t *compare_time_to_loss(const struct compare_run *a, const struct compare_run *b, const json_t *throughput,
                             double price_per_hour);

#endif
