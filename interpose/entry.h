/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of the intercepted symbols, generated from the rows of symbols.def. Included by entry_<lib>.c, which has the
 * vendor's header in scope and expands its rows with B200_ENTRY(lib, …) and then B200_SLOT_ROW(lib, …).
 */
#ifndef B200_ENTRY_H
#define B200_ENTRY_H

#include "interpose/exec/gemm.h"
#include "interpose/identify.h"
#include "interpose/real.h"
#include "interpose/runtime.h"
#include "interpose/timing/timing.h"

#define B200_EXPORT __attribute__((visibility("default")))

#define B200_ENTRY(lib, ret, name, params, args, fact, class)                                                               \
  B200_OBSERVE_##class(lib, ret, name, params, args, fact) static ret first_##name params {                                 \
    void *function = b200_runtime_first(B200_LIBRARY_##lib, B200_SLOT(lib, name));                                          \
    if (!function)                                                                                                          \
      return (ret)B200_MISSING_##lib;                                                                                       \
    b200_thread_self()->first_caller = __builtin_return_address(0);                                                         \
    ret status = B200_TYPED(name, function) args;                                                                           \
    if (status == (ret)0 && B200_STARTS_##class)                                                                            \
      b200_runtime_start(B200_SLOT(lib, name));                                                                             \
    return status;                                                                                                          \
  }                                                                                                                         \
  B200_EXPORT ret name params {                                                                                             \
    return B200_TARGET(lib, name) args;                                                                                     \
  }

/* Who made the call that an observe_<name> is handling. Exported bodies jump, so its return address is the application's,
   unless first_<name> lies between. */
#define B200_CALLER() b200_caller(__builtin_return_address(0))
static inline enum b200_owner b200_caller(const void *return_address) {
  enum b200_owner owner = b200_owner_of(return_address);
  return owner == B200_OWNER_B200OPT ? b200_owner_of(b200_thread_self()->first_caller) : owner;
}

#define B200_SLOT_ROW(lib, ret, sym, params, args, fact, class)                                                             \
  [B200_INDEX(lib, sym)] = {.target = (void *)first_##sym,                                                                  \
                            .first = (void *)first_##sym,                                                                   \
                            .observe = (void *)observe_##sym,                                                               \
                            .name = #sym,                                                                                   \
                            .symbol = B200_SYM_##sym},

/* What a status says of the context: CUDA's own numbers only. */
#define B200_STATUS_cudart(status) b200_memory_status((int)(status))
#define B200_STATUS_cuda(status) b200_memory_status((int)(status))
#define B200_STATUS_nccl(status)

#define B200_OBSERVE_PASS(lib, ret, name, params, args, fact)                                                               \
  static ret observe_##name params {                                                                                        \
    ret status = B200_REAL(lib, name) args;                                                                                 \
    b200_count(b200_thread_self(), B200_SYM_##name, status != (ret)0, (uint64_t)(fact));                                    \
    B200_STATUS_##lib(status);                                                                                              \
    return status;                                                                                                          \
  }

#define B200_OBSERVE_LAUNCH(lib, ret, name, params, args, fact)                                                             \
  static ret observe_##name params {                                                                                        \
    if (__builtin_expect(b200_timing_now() & B200_TIMING_BLOCKING, 0))                                                      \
      b200_timing_launch(fact);                                                                                             \
    ret status = B200_REAL(lib, name) args;                                                                                 \
    b200_count(b200_thread_self(), B200_SYM_##name, status != (ret)0, 0);                                                   \
    B200_STATUS_##lib(status);                                                                                              \
    return status;                                                                                                          \
  }

#define B200_OBSERVE_GEMM(lib, ret, name, params, args, fact)                                                               \
  static ret observe_##name params {                                                                                        \
    struct b200_thread *self = b200_thread_self();                                                                          \
    bool ours = self->depth++ == 0;                                                                                         \
    struct b200_gemm gemm = ours ? (fact) : (struct b200_gemm){0};                                                          \
    struct b200_outcome outcome;                                                                                            \
    struct b200_span span = {0};                                                                                            \
    b200_gemm_leave(&outcome);                                                                                              \
    if (ours && b200_timing_now())                                                                                          \
      b200_runtime_gemm_begin(&span, B200_STREAM_##lib);                                                                    \
    ret status = B200_REAL(lib, name) args;                                                                                 \
    self->depth--;                                                                                                          \
    if (span.clock)                                                                                                         \
      b200_timing_gemm_end(&span, status != (ret)0);                                                                        \
    if (ours)                                                                                                               \
      b200_observe_gemm(self, B200_SYM_##name, status != (ret)0, &gemm, &outcome);                                          \
    return status;                                                                                                          \
  }

/* `fact` fills the local `call`. */
#define B200_OBSERVE_CONVERT(lib, ret, name, params, args, fact)                                                            \
  static ret observe_##name params {                                                                                        \
    struct b200_thread *self = b200_thread_self();                                                                          \
    if (self->depth > 0)                                                                                                    \
      return B200_REAL(lib, name) args;                                                                                     \
    struct b200_gemm_call call = {0};                                                                                       \
    struct b200_outcome outcome;                                                                                            \
    struct b200_span span = {0};                                                                                            \
    self->depth++;                                                                                                          \
    fact;                                                                                                                   \
    if (b200_timing_now())                                                                                                  \
      b200_runtime_gemm_begin(&span, B200_STREAM_##lib);                                                                    \
    ret status = b200_gemm_convert(self, &call, &outcome) ? (ret)0 : B200_REAL(lib, name) args;                             \
    self->depth--;                                                                                                          \
    if (span.clock)                                                                                                         \
      b200_timing_gemm_end(&span, status != (ret)0);                                                                        \
    b200_observe_gemm(self, B200_SYM_##name, status != (ret)0, &call.facts.gemm, &outcome);                                 \
    return status;                                                                                                          \
  }

#define B200_OBSERVE_COLL(lib, ret, name, params, args, fact)                                                               \
  static ret observe_##name params {                                                                                        \
    struct b200_thread *self = b200_thread_self();                                                                          \
    bool ours = self->depth++ == 0;                                                                                         \
    struct b200_coll coll = ours ? (fact) : (struct b200_coll){0};                                                          \
    struct b200_totals before;                                                                                              \
    struct b200_span span = {0};                                                                                            \
    if (ours) {                                                                                                             \
      b200_runtime_totals(&before);                                                                                         \
      b200_timing_coll_begin(self, &span, comm, stream, &coll, &before);                                                    \
    }                                                                                                                       \
    ret status = B200_REAL(lib, name) args;                                                                                 \
    self->depth--;                                                                                                          \
    if (ours) {                                                                                                             \
      b200_timing_coll_end(self, &span, comm, stream, &coll, (int)status);                                                  \
      b200_observe_coll(self, B200_SYM_##name, B200_FAILED_##lib(status), &coll, &before);                                  \
    }                                                                                                                       \
    return status;                                                                                                          \
  }

#define B200_STARTS_PASS true
#define B200_STARTS_LAUNCH true
#define B200_STARTS_GEMM true
#define B200_STARTS_CONVERT true
#define B200_STARTS_COLL true
#define B200_STARTS_OWN true
#define B200_STARTS_LOOKUP false

/* Written by hand in the file that expands the rows. */
#define B200_OBSERVE_OWN(lib, ret, name, params, args, fact)
#define B200_OBSERVE_LOOKUP(lib, ret, name, params, args, fact)

static inline void b200_observe_gemm(struct b200_thread *self, enum b200_symbol symbol, bool failed,
                                     const struct b200_gemm *gemm, const struct b200_outcome *outcome) {
  b200_count(self, symbol, failed, 0);
  if (!failed)
    b200_runtime_gemm(gemm, outcome);
}

static inline void b200_observe_coll(struct b200_thread *self, enum b200_symbol symbol, bool failed,
                                     const struct b200_coll *coll, const struct b200_totals *before) {
  b200_count(self, symbol, failed, b200_coll_bytes(coll));
  if (!failed)
    b200_runtime_coll(coll, before);
}

#endif
