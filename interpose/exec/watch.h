/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at samples of the converted GEMMs without making anything wait: the kernels count into a slot of device memory, the
 * GEMM is done again in the original precision (64 columns of D for the guard, all of it for an audit), the difference is
 * summed up on the device, and the slot is copied to the host, all in the order of the call's stream. An event behind it is
 * asked for, never waited for, at later calls; then the verdict goes to the breaker, or the error to the log.
 *
 * A sample that finds no slot free, no memory, or a failing call is left out: the call itself never suffers.
 *
 * Thread-safety: all functions from any thread. Not used while the stream is captured.
 */
#ifndef B200_EXEC_WATCH_H
#define B200_EXEC_WATCH_H

#include "interpose/exec/device.h"
#include "interpose/exec/gemm.h"
#include "interpose/exec/product.h"

struct b200_watch_slot {
  struct b200_guard_counters a, b;
  double sums[B200_REFERENCE_COLUMNS][2];
};

/* What one sampled call has on it. */
struct b200_sample {
  int index;                      /* of watch.c */
  struct b200_watch_slot *device; /* zeroed in stream order by b200_watch_before() */
  bool audit;                     /* all of D in one sum, and no verdict */
  bool zeroed;                    /* the slot */
  bool sent;                      /* it is on its way to the host */
  bool compares;                  /* there is a reference; set by b200_watch_before() */
  int64_t from, columns;          /* of D that are compared */
  struct b200_product
      *reference; /* the GEMM of these columns in the original precision; made at the first sample, then kept */
};

/* A free slot for a sample of the call; NULL: none, or no memory. */
bool b200_watch_begin(struct b200_sample *out, const struct b200_vendor *vendor, const struct b200_gpu *gpu,
                      const struct b200_gemm_call *call, uint32_t calls, bool audit, struct b200_product *reference);

/* Bytes that the reference needs: of the arena, behind all else. */
uint64_t b200_watch_bytes(const struct b200_sample *sample, const struct b200_gemm_call *call);

/* Before D is written: the reference. */
void b200_watch_before(struct b200_sample *sample, const struct b200_vendor *vendor, const struct b200_gemm_call *call,
                       void *reference);
/* After it, of a call that was carried out: differences, copy, event. */
void b200_watch_after(struct b200_sample *sample, const struct b200_vendor *vendor, const struct b200_gpu *gpu,
                      const struct b200_gemm_call *call, enum b200_format format, const void *reference);
/* In any case: a sample that is not on its way gives its slot back. */
void b200_watch_end(const struct b200_sample *sample);

/* Takes in what has arrived. Cheap when nothing is under way. */
struct b200_guard_sample;
struct b200_guard_shadow;
struct b200_watch_sink {
  void (*guard)(const struct b200_gemm *gemm, enum b200_format format, const struct b200_guard_sample *a,
                const struct b200_guard_sample *b, const struct b200_guard_shadow *shadow);
  void (*audit)(const struct b200_gemm *gemm, enum b200_format format, double error); /* not finite: neither was D */
};
void b200_watch_poll(const struct b200_vendor *vendor, const struct b200_watch_sink *sink);

#endif
