/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real functions, and what an intercepted symbol does right now.
 *
 * Each symbol has a slot. Its exported body is one relaxed load of `target` and a tail call, in every state:
 *   first_<name>    nothing has succeeded yet: finds the real function, and starts the runtime after a first success
 *   observe_<name>  the runtime is live
 *   the real one    B200OPT=off, or the process is ending
 *
 * Resolver: dlsym(RTLD_NEXT), so that other preloads stay in the chain; else, because PyTorch loads cuBLAS and NCCL with
 * RTLD_LOCAL where RTLD_NEXT does not look, dlopen(soname, RTLD_NOLOAD) and dlsym. Never dlopen by path. A function that is
 * found in this very library counts as missing, and the caller gets its library's `missing` status.
 */
#ifndef B200_REAL_H
#define B200_REAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum b200_symbol {
#define B200_ID(ret, name, ...) B200_SYM_##name,
#define B200_CUDART B200_ID
#define B200_CUDA B200_ID
#define B200_CUBLAS B200_ID
#define B200_CUBLASLT B200_ID
#define B200_NCCL B200_ID
#include "interpose/symbols.def"
#undef B200_ID
  B200_SYM_COUNT
};

enum b200_library {
#define B200_LIB(lib, rows, missing, ...) B200_LIBRARY_##lib,
#include "interpose/libs.def"
#undef B200_LIB
  B200_LIBRARY_COUNT
};

/* Status of a call whose real function is not there. */
enum {
#define B200_LIB(lib, rows, missing, ...) B200_MISSING_##lib = (missing),
#include "interpose/libs.def"
#undef B200_LIB
};

struct b200_slot {
  _Atomic(void *) target;
  _Atomic(void *) real;
  void *first, *observe;
  const char *name;
  enum b200_symbol symbol;
};

/* One table per library, in the order of symbols.def; entry_<lib>.c defines it. */
#define B200_LIB(lib, rows, missing, ...)                                                                                   \
  extern struct b200_slot b200_slots_##lib[];                                                                               \
  extern const size_t b200_slot_count_##lib;
#include "interpose/libs.def"
#undef B200_LIB

struct b200_library_info {
  const char *name;
  struct b200_slot *slots;
  const size_t *slot_count;
  const char *sonames[3]; /* NULL-terminated */
};
extern const struct b200_library_info b200_libraries[B200_LIBRARY_COUNT];

/* The function that `symbol` names, typed as the vendor's header has it. */
#define B200_TYPED(name, pointer) ((__typeof__(&(name)))(pointer))
#define B200_INDEX(lib, name) (B200_SYM_##name - B200_FIRST_##lib)
#define B200_SLOT(lib, name) (&b200_slots_##lib[B200_INDEX(lib, name)])
#define B200_TARGET(lib, name) B200_TYPED(name, atomic_load_explicit(&B200_SLOT(lib, name)->target, memory_order_relaxed))
#define B200_REAL(lib, name) B200_TYPED(name, atomic_load_explicit(&B200_SLOT(lib, name)->real, memory_order_relaxed))

/* First symbol of each library: its slots are indexed from there. */
enum {
  B200_FIRST_cudart = B200_SYM_cudaMalloc,
  B200_FIRST_cuda = B200_SYM_cuGetProcAddress,
  B200_FIRST_cublas = B200_SYM_cublasSgemm_v2,
  B200_FIRST_cublaslt = B200_SYM_cublasLtMatmul,
  B200_FIRST_nccl = B200_SYM_ncclCommCount,
};

/* dlsym without our hook of it, and its address. */
void *b200_real_dlsym(void *handle, const char *name);
void *b200_real_dlsym_function(void);

/* A function of a library that is mapped, without going through any slot; NULL when the library or the name is not there. */
void *b200_library_symbol(enum b200_library library, const char *name);

/* The same, looked up until it is found and then kept in `cache`: the caller's, NULL at first. */
static inline void *b200_library_cached(_Atomic(void *) *cache, enum b200_library library, const char *name) {
  void *function = atomic_load_explicit(cache, memory_order_relaxed);
  if (!function)
    atomic_store_explicit(cache, function = b200_library_symbol(library, name), memory_order_relaxed);
  return function;
}

/* Fills the `real` of every slot of the library. Idempotent, from any thread. False when `slot` stays empty. */
bool b200_library_bind(enum b200_library library, const struct b200_slot *slot);

/* The driver slot whose real function is `function`; NULL for all others. */
struct b200_slot *b200_driver_slot(const void *function);
struct b200_slot *b200_driver_slot_by_name(const char *name);

/* Our exported function of a driver slot. */
void *b200_driver_export(const struct b200_slot *slot);

/* Puts our function in place of a driver function that a query has returned, when there is one. */
void b200_driver_substitute(void **function);

#endif
