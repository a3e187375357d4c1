/* SPDX-License-Identifier: Apache-2.0 */
/* Defines a function, and asks for the next one of that name: the answer depends on who asks. */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) const char *chain_name(void);
__attribute__((visibility("default"))) const char *chain_next(void);
const char *chain_name(void) {
  return "a";
}
const char *chain_next(void) {
  const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "chain_name");
  return next ? next() : "nothing";
}
