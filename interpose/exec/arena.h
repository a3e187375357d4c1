/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for quantised operands, their scales and the GEMM's workspace.
 *
 * An arena belongs to one stream of one context, and so do its bytes in the order of that stream: what one GEMM leaves
 * there, the next may overwrite, because its kernels run after it. It is a reserved address range of the size of its bound,
 * into which physical memory is mapped from the front as it is needed. So it grows without moving, nothing that queued work
 * uses is ever freed, and no host synchronisation is needed; addresses that a CUDA graph has taken in stay right for ever.
 *
 * A stream that is being captured has an arena of its own for that capture, which is used by nothing else afterwards: graph
 * replays may run beside eager work. All of them together stay below the bound; what eager work has left idle is given back
 * when the device has run out of memory.
 *
 * Two threads may feed one stream. An arena is taken for the length of a call (a compare-and-swap, no lock); a second thread
 * gets another arena of the same stream meanwhile.
 *
 * Thread-safety: all functions from any thread. Nothing blocks. Physical memory is accounted in the ledger as owner b200opt.
 */
#ifndef B200_EXEC_ARENA_H
#define B200_EXEC_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "interpose/vendor.h"

#define B200_ARENA_PARTS 32 /* more are mapped, but such an arena is not given back */

struct b200_arena {
  _Atomic int state; /* of arena.c */
  CUcontext context;
  uint64_t stream;  /* cuStreamGetId: a handle may come again for another stream, while the old one's work still runs */
  uint64_t capture; /* id of the capture; 0 for eager work */
  CUdeviceptr base; /* 0: not reserved yet */
  uint64_t bytes;   /* mapped from base on */
  bool prepared;    /* its user has zeroed what it wants to find zeroed */
  uint64_t parts[B200_ARENA_PARTS]; /* that `bytes` consist of, as they were mapped */
  uint32_t part_count;
  uint32_t pause; /* calls that do not ask again for memory that was refused */
};

/* Bound of all arenas together, in bytes. Before the first b200_arena_take(). */
void b200_arena_limit(uint64_t bytes);

/* Takes an arena of the stream with at least `bytes` mapped, and `wish`, if more, where that is possible. NULL: no memory,
   the bound, or too many streams; counted in `refused`. pre: `context` is current. `capture`: id of the capture that the
   stream is in, else 0. Memory is asked for in relaxed capture mode: this or another thread may be capturing. */
struct b200_arena *b200_arena_take(const struct b200_vendor *vendor, CUcontext context, CUdevice device, uint64_t stream,
                                   uint64_t capture, uint64_t bytes, uint64_t wish);
void b200_arena_give_back(struct b200_arena *arena);

/* Waits for the context, and gives back the memory of its arenas that no call uses and no capture has; returns the bytes.
   pre: the context is current, the thread's capture mode relaxed, and nothing is being captured. */
uint64_t b200_arena_trim(CUcontext context);

struct b200_arena_use {
  uint64_t bytes, capture_bytes; /* mapped now, which is also the peak; of these, for captures */
  uint64_t arenas, refused, limit;
};
void b200_arena_read(struct b200_arena_use *out);

#endif
