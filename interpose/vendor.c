/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/vendor.h"

#include <stdatomic.h>

#include "interpose/real.h"

const struct b200_vendor *b200_vendor_find(void) {
  enum { EMPTY, FILLING, READY };
  enum { TRIES = 8 }; /* a library may come late; one that is too old never changes */
  static struct b200_vendor vendor;
  static atomic_int state, tries;
  int now = atomic_load_explicit(&state, memory_order_acquire);
  if (now == READY)
    return &vendor;
  if (now == FILLING || atomic_load_explicit(&tries, memory_order_relaxed) >= TRIES ||
      !atomic_compare_exchange_strong(&state, &now, FILLING))
    return NULL; /* another thread is at it, or it is vain: this call stays as it is */
  bool complete = true;
#define B200_VENDOR_FIND(library, name, ret, params)                                                                        \
  vendor.name = (ret(*) params)b200_library_symbol(B200_LIBRARY_##library, #name);                                          \
  complete = complete && vendor.name;
  B200_VENDOR_FUNCTIONS(B200_VENDOR_FIND)
#undef B200_VENDOR_FIND
  atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed);
  atomic_store_explicit(&state, complete ? READY : EMPTY, memory_order_release);
  return complete ? &vendor : NULL;
}
