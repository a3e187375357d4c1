/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running out of device memory, as far as it can be seen from the driver: what PyTorch's retries cost (an allocation fails,
 * PyTorch frees its cache, the same allocation succeeds), and, when one fails for good, who holds what and what would help.
 *
 * For good: PyTorch tries once more after it has freed its cache, so its second failure in a row of one size on one thread
 * (the first, of stream-ordered memory); NCCL and cuBLAS do not try again.
 *
 * Thread-safety: every function from any thread but forget; an attempt belongs to its thread. No lock of its own; takes
 * those of the ledger and the pool. Asks the driver for free memory, for the post-mortem only and never while a stream is
 * being captured.
 */
#ifndef B200_INTERPOSE_OOM_H
#define B200_INTERPOSE_OOM_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/record/json.h"
#include "policy/call.h"

/* How memory was asked for; and whether it was the headroom that refused it. */
enum b200_oom_way { B200_OOM_ALLOC, B200_OOM_CREATE, B200_OOM_STREAM, B200_OOM_WAYS };
#define B200_OOM_HEADROOM 4 /* or-ed to it */

/* What a thread has asked for and not got yet. */
struct b200_oom_attempt {
  uint64_t bytes, begin_ns;
  uint32_t failures; /* 0: nothing is under way */
  uint8_t owner, way;
};

void b200_oom_start(int rank);
void b200_oom_forget(void);

/* Something was granted, freed: remembered as one of the last events. */
void b200_oom_granted(struct b200_oom_attempt *attempt, enum b200_owner owner, uint64_t bytes, enum b200_oom_way way);
void b200_oom_freed(enum b200_owner owner, uint64_t bytes);
/* Memory that was made for it has been mapped: what ends an attempt by cuMemCreate. */
void b200_oom_mapped(struct b200_oom_attempt *attempt);
/* Something was refused. Adds what is known to the line, an `oom`, and says it when it is for good. */
void b200_oom_refused(struct b200_oom_attempt *attempt, enum b200_owner owner, uint64_t bytes, int way,
                      struct b200_line *line);

struct b200_oom_counts {
  uint64_t retries, retry_ns; /* of allocations that then succeeded */
  uint64_t fatal;             /* refused for good */
};
void b200_oom_read(struct b200_oom_counts *out);

#endif
