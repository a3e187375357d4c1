/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small CUDA programs, each in two versions that differ by one line: a right one, and one with a mistake that real programs
 * make. Each runs in a process of its own.
 */
#ifndef PROGRAMS_H
#define PROGRAMS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

struct program {
  const char *name;
  bool (*run)(bool wrong); /* true: the numbers that it computed are right */
  /* What the checker says of the wrong version. `kind` NULL: nothing, the node does not see what the host reads. */
  const char *kind, *newer, *older;
  bool shows;      /* the wrong version computes wrong numbers in some late order */
  bool right_only; /* there is no wrong version: it looks dangerous and is not */
};

extern const struct program stream_programs[], memory_programs[], library_programs[]; /* end with a name of NULL */

#define PROGRAM_BYTES ((size_t)64 << 10)

/* What every program has: buffers of PROGRAM_BYTES on device 0 that hold zeros, non-blocking streams, events. */
struct fixture {
  unsigned char *x, *y, *z, *pinned;
  cudaStream_t a, b, c;
  cudaEvent_t e, f;
};
extern struct fixture on;
void fixture_begin(void);

/* Ends the process with a message when `call` fails. */
#define MUST(call) must((int)(call), #call)
void must(int code, const char *call);

void fill(void *to, int value, cudaStream_t stream); /* PROGRAM_BYTES */
void copy(void *to, const void *from, cudaStream_t stream);
void record(cudaEvent_t event, cudaStream_t stream);
void wait_for(cudaStream_t stream, cudaEvent_t event);
void synchronize(cudaStream_t stream);
/* After all work of the device: has every byte this value? */
bool holds(const void *from, int value);
bool all_bytes_are(const unsigned char *bytes, int value);

#endif
