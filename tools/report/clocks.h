/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One clock for the logs of all ranks. A collective such as AllReduce ends on all of its ranks at nearly the same instant,
 * so the ends of matched collectives say how two ranks' clocks differ. Each rank is aligned to one that already is, with
 * which it shares a communicator: of the differences of their ends the medians over stretches of time, with straight lines
 * between them, because clocks of hosts drift apart by some 10^-6. What remains is the residual.
 *
 * A rank with too few matched collectives is placed by its host's CLOCK_REALTIME.
 */
#ifndef B200_REPORT_CLOCKS_H
#define B200_REPORT_CLOCKS_H

#include "tools/report/match.h"

#define REPORT_CLOCK_KNOTS 16

/* How a rank's device times become common ones. */
struct report_clock {
  bool aligned; /* by collectives, or the one that the others are aligned to */
  size_t knot_count;
  struct report_knot {
    int64_t t_ns, offset_ns; /* at t_ns of this rank the common clock shows t_ns + offset_ns */
  } knots[REPORT_CLOCK_KNOTS];
};

struct report_clocks {
  struct report_clock *clocks; /* one per log */
  size_t count, aligned;       /* logs; those aligned, the one that others are aligned to included */
  size_t measured;             /* ends of collectives that the residual is of */
  int64_t residual_p95_ns;     /* how far they are from the median of their collective; -1: none was measured */
};

void report_clocks_make(const struct b200_log *const *logs, size_t count, const struct report_match *match,
                        struct report_clocks *out);
void report_clocks_free(struct report_clocks *clocks);

/* A time of that rank's device on the common clock, which is CLOCK_REALTIME of the first rank's host as far as that rank's
   device times are on its host's clock. Within ±2^62. */
int64_t report_clock_time(const struct report_clock *clock, int64_t t_ns);

#endif
