/* SPDX-License-Identifier: Apache-2.0 */
/* A libnvidia-ml.so.1 that does as it is told by environment variables: FAKE_INIT, a status; FAKE_KNOWS, the one UUID or PCI
   place it knows; FAKE_SLOW_MS, how long a look takes; FAKE_MIG: only memory is answered. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *place, void **device);
EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned out[2]);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3]);
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *out);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out);

static char the_device;

static int find(const char *name, void **device) {
  const char *known = getenv("FAKE_KNOWS");
  *device = &the_device;
  return known && strcmp(known, name) == 0 ? SUCCESS : NOT_FOUND;
}

int nvmlInit_v2(void) {
  const char *status = getenv("FAKE_INIT");
  return status ? atoi(status) : SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  return find(uuid, device);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *place, void **device) {
  return find(place, device);
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned out[2]) {
  out[0] = 97;
  out[1] = 41;
  return device == &the_device && !getenv("FAKE_MIG") ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3]) {
  out[0] = 1000;
  out[1] = 400;
  out[2] = 600;
  return device == &the_device ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *out) {
  const char *slow = getenv("FAKE_SLOW_MS");
  long ms = slow ? atol(slow) : 0;
  *out = 700000;
  if (ms > 0)
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
  return device == &the_device && !getenv("FAKE_MIG") ? SUCCESS : NOT_SUPPORTED;
}

/* The name of drivers before 535; the newer one, clocks and temperature are missing. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
  *out = 4;
  return device == &the_device ? SUCCESS : NOT_SUPPORTED;
}
