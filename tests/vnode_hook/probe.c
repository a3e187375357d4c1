/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "hook.h"

static int calls, failed;

int vnode_standin_failed(int status) {
  failed = status;
  return status;
}

void vnode_standin_describe(const char *function, const struct vnode_call *call, char *text, size_t text_bytes) {
  snprintf(text, text_bytes, "%s(%d)", function, (int)vnode_call_slot(call, 0));
}

long probeIntegers(long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11,
                   long a12, long a13, long a14, long a15, long a16, long a17, long a18, long a19) {
  return a1 + 2 * a2 + 3 * a3 + 4 * a4 + 5 * a5 + 6 * a6 + 7 * a7 + 8 * a8 + 9 * a9 + 10 * a10 + 11 * a11 + 12 * a12 +
         13 * a13 + 14 * a14 + 15 * a15 + 16 * a16 + 17 * a17 + 18 * a18 + 19 * a19;
}

double probeDoubles(double a1, int i1, double a2, double a3, double a4, int i2, double a5, double a6, double a7, double a8,
                    double a9, double a10) {
  return a1 + 2 * a2 + 3 * a3 + 4 * a4 + 5 * a5 + 6 * a6 + 7 * a7 + 8 * a8 + 9 * a9 + 10 * a10 + 100 * i1 + 1000 * i2;
}

float probeFloat(float a) {
  return a / 2;
}

struct probe_small probeStructure(int first) {
  return (struct probe_small){first, first + 1, first + 2, first + 3, first + 4};
}

int probeById(void **out, int ranks, struct probe_id id, int rank) {
  *out = out;
  return ranks * 1000 + rank * 100 + id.bytes[0] + id.bytes[127];
}

const char *probeText(int which) {
  return which ? "text" : NULL;
}

const char *probeCaller(void) {
  Dl_info info;
  return dladdr(__builtin_return_address(0), &info) ? info.dli_fname : NULL;
}

__attribute__((noinline)) int probeStatus(int value) {
  calls++;
  return value;
}

int probeInside(int value) {
  int (*volatile status)(int) = probeStatus;
  return status(value);
}

int pncclProbe(int value) {
  calls++;
  return value;
}
extern __typeof__(pncclProbe) ncclProbe __attribute__((weak, alias("pncclProbe")));

int probeCalls(void) {
  return calls;
}

int probeFailed(void) {
  return failed;
}
