/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/real.h"

#include <dlfcn.h>
#include <string.h>

const struct b200_library_info b200_libraries[B200_LIBRARY_COUNT] = {
#define B200_LIB(lib, rows, missing, ...) {#lib, b200_slots_##lib, &b200_slot_count_##lib, {__VA_ARGS__}},
#include "interpose/libs.def"
#undef B200_LIB
};

/* The versions under which glibc has exported dlsym: x86-64 since 2.2.5, in libc itself since 2.34. */
void *b200_real_dlsym_function(void) {
  static _Atomic(void *) cached;
  void *found = atomic_load_explicit(&cached, memory_order_relaxed);
  if (!found) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !found; i++)
      found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store_explicit(&cached, found, memory_order_relaxed);
  }
  return found;
}

void *b200_real_dlsym(void *handle, const char *name) {
  void *(*real)(void *, const char *) = (void *(*)(void *, const char *))b200_real_dlsym_function();
  return real ? real(handle, name) : NULL;
}

static void *library_handle(enum b200_library library) {
  for (const char *const *soname = b200_libraries[library].sonames; *soname; soname++) {
    void *handle = dlopen(*soname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle)
      return handle; /* kept: one reference more pins the library as long as we may call into it */
  }
  return NULL;
}

static bool is_ours(const void *function) {
  Dl_info theirs, ours;
  return dladdr(function, &theirs) && dladdr((const void *)b200_libraries, &ours) && theirs.dli_fbase == ours.dli_fbase;
}

void *b200_library_symbol(enum b200_library library, const char *name) {
  void *function = b200_real_dlsym(RTLD_NEXT, name);
  if (!function || is_ours(function)) {
    void *handle = library_handle(library);
    function = handle ? b200_real_dlsym(handle, name) : NULL;
  }
  return function && !is_ours(function) ? function : NULL;
}

bool b200_library_bind(enum b200_library library, const struct b200_slot *slot) {
  static atomic_bool bound[B200_LIBRARY_COUNT]; /* all its slots, not only those that a dlsym has come by for */
  if (atomic_load_explicit(&bound[library], memory_order_relaxed) && atomic_load_explicit(&slot->real, memory_order_relaxed))
    return true;
  const struct b200_library_info *info = &b200_libraries[library];
  for (size_t i = 0; i < *info->slot_count; i++) {
    struct b200_slot *other = &info->slots[i];
    void *expected = NULL;
    void *found = b200_library_symbol(library, other->name);
    if (found)
      atomic_compare_exchange_strong(&other->real, &expected, found);
    if (found)
      atomic_store_explicit(&bound[library], true, memory_order_relaxed);
  }
  return atomic_load_explicit(&slot->real, memory_order_relaxed) != NULL;
}

struct b200_slot *b200_driver_slot(const void *function) {
  for (size_t i = 0; i < b200_slot_count_cuda; i++)
    if (atomic_load_explicit(&b200_slots_cuda[i].real, memory_order_relaxed) == function)
      return &b200_slots_cuda[i];
  return NULL;
}

struct b200_slot *b200_driver_slot_by_name(const char *name) {
  for (size_t i = 0; i < b200_slot_count_cuda; i++)
    if (strcmp(b200_slots_cuda[i].name, name) == 0)
      return &b200_slots_cuda[i];
  return NULL;
}
