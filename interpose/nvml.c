/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/nvml.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interpose/real.h"

/* NVML's header is in none of PyTorch's wheels; these follow NVIDIA's NVML API Reference (a binary interface). */
struct utilization {
  unsigned gpu, memory;
};
struct memory {
  unsigned long long total, free, used;
};
enum { CLOCK_SM = 1, TEMPERATURE_GPU = 0 };

/* X(name, arguments). All return 0 for success. */
#define NVML_FUNCTIONS(X)                                                                                                   \
  X(nvmlInit_v2, (void))                                                                                                    \
  X(nvmlDeviceGetHandleByUUID, (const char *, void **))                                                                     \
  X(nvmlDeviceGetHandleByPciBusId_v2, (const char *, void **))                                                              \
  X(nvmlDeviceGetUtilizationRates, (void *, struct utilization *))                                                          \
  X(nvmlDeviceGetMemoryInfo, (void *, struct memory *))                                                                     \
  X(nvmlDeviceGetPowerUsage, (void *, unsigned *))                                                                          \
  X(nvmlDeviceGetClockInfo, (void *, int, unsigned *))                                                                      \
  X(nvmlDeviceGetTemperature, (void *, int, unsigned *))                                                                    \
  X(nvmlDeviceGetCurrentClocksEventReasons, (void *, unsigned long long *))                                                 \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (void *, unsigned long long *)) /* the same until driver 535 */

enum state { UNKNOWN, LEARNING, LEARNT, OPEN, GIVEN_UP };
enum { PLACE_BYTES = 32, UUID_BYTES = 16, EXIT_WAIT_MS = 1000, SLOW_MS = 1000 };
enum { SAMPLE_WORDS = sizeof(struct b200_nvml_sample) / sizeof(int64_t) };

static struct nvml {
  _Atomic int state;
  unsigned char uuid[UUID_BYTES];
  char place[PLACE_BYTES]; /* on the PCI bus */
  bool has_uuid;
  void *device;
  atomic_bool looking, ending;
#define NVML_MEMBER(name, arguments) int(*name) arguments;
  NVML_FUNCTIONS(NVML_MEMBER)
#undef NVML_MEMBER
  atomic_uint version; /* of the latest sample: odd while it is being written */
  _Atomic int64_t latest[SAMPLE_WORDS];
} nvml;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* NVML's own end must find nobody in it, and the process's end nobody loading it. Registered twice: when the device is
   learnt, and after NVML has registered what it may have; the last one registered runs first, and all before the destructors
   of libraries. */
static void end_looking(void) {
  const struct timespec pause = {.tv_nsec = 1000000};
  atomic_store(&nvml.ending, true);
  for (int ms = 0; ms < EXIT_WAIT_MS && atomic_load(&nvml.looking); ms++)
    nanosleep(&pause, NULL);
}

/* ------------------------------------------------------------------------------------- the device, from CUDA */

static bool ask_cuda(void) {
  int device = 0;
  int (*current)(int *) = (int (*)(int *))b200_library_symbol(B200_LIBRARY_cuda, "cuCtxGetDevice");
  int (*uuid)(void *, int) = (int (*)(void *, int))b200_library_symbol(B200_LIBRARY_cuda, "cuDeviceGetUuid_v2");
  int (*place)(char *, int, int) = (int (*)(char *, int, int))b200_library_symbol(B200_LIBRARY_cuda, "cuDeviceGetPCIBusId");
  if (!current || current(&device) != 0)
    return false; /* no context on this thread; another one will come by */
  nvml.has_uuid = uuid && uuid(nvml.uuid, device) == 0;
  if (!place || place(nvml.place, sizeof nvml.place, device) != 0)
    nvml.place[0] = '\0';
  return true;
}

void b200_nvml_learn(void) {
  int state = UNKNOWN;
  if (atomic_load_explicit(&nvml.state, memory_order_relaxed) == UNKNOWN &&
      atomic_compare_exchange_strong(&nvml.state, &state, LEARNING))
    atomic_store(&nvml.state, ask_cuda() && atexit(end_looking) == 0 ? LEARNT : UNKNOWN);
}

/* ------------------------------------------------------------------------------------------------- opening */

static bool find_by_uuid(const char *kind) {
  char text[64];
  int used = snprintf(text, sizeof text, "%s", kind);
  for (int i = 0; i < UUID_BYTES; i++)
    used += snprintf(text + used, sizeof text - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                     nvml.uuid[i]);
  return nvml.nvmlDeviceGetHandleByUUID(text, &nvml.device) == 0;
}

static bool find_device(void) {
  if (nvml.has_uuid && nvml.nvmlDeviceGetHandleByUUID && (find_by_uuid("GPU-") || find_by_uuid("MIG-")))
    return true;
  return nvml.place[0] && nvml.nvmlDeviceGetHandleByPciBusId_v2 &&
         nvml.nvmlDeviceGetHandleByPciBusId_v2(nvml.place, &nvml.device) == 0;
}

static bool open_library(char *complaint, unsigned size) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return false;
#define NVML_FIND(name, arguments) nvml.name = (int(*) arguments)b200_real_dlsym(library, #name);
  NVML_FUNCTIONS(NVML_FIND)
#undef NVML_FIND
  int status = nvml.nvmlInit_v2 ? nvml.nvmlInit_v2() : -1;
  if (status != 0)
    snprintf(complaint, size, "NVML cannot be used: nvmlInit status=%d; no samples of the device are taken", status);
  else if (!find_device())
    snprintf(complaint, size, "NVML does not know this device; no samples of it are taken");
  else
    return atexit(end_looking) == 0;
  return false;
}

/* ------------------------------------------------------------------------------------------------- samples */

static int64_t ask_number(int (*function)(void *, unsigned *)) {
  unsigned value = 0;
  return function && function(nvml.device, &value) == 0 ? (int64_t)value : -1;
}

static int64_t ask_kind(int (*function)(void *, int, unsigned *), int kind) {
  unsigned value = 0;
  return function && function(nvml.device, kind, &value) == 0 ? (int64_t)value : -1;
}

static int64_t ask_bits(int (*function)(void *, unsigned long long *)) {
  unsigned long long value = 0;
  return function && function(nvml.device, &value) == 0 ? (int64_t)(value & INT64_MAX) : -1;
}

static void ask_all(struct b200_nvml_sample *out) {
  struct utilization utilization;
  struct memory memory;
  *out = (struct b200_nvml_sample){.util_pct = -1, .mem_util_pct = -1, .mem_used = -1, .mem_total = -1};
  if (nvml.nvmlDeviceGetUtilizationRates && nvml.nvmlDeviceGetUtilizationRates(nvml.device, &utilization) == 0) {
    out->util_pct = utilization.gpu;
    out->mem_util_pct = utilization.memory;
  }
  if (nvml.nvmlDeviceGetMemoryInfo && nvml.nvmlDeviceGetMemoryInfo(nvml.device, &memory) == 0) {
    out->mem_used = (int64_t)(memory.used & INT64_MAX);
    out->mem_total = (int64_t)(memory.total & INT64_MAX);
  }
  out->power_mw = ask_number(nvml.nvmlDeviceGetPowerUsage);
  out->sm_mhz = ask_kind(nvml.nvmlDeviceGetClockInfo, CLOCK_SM);
  out->temp_c = ask_kind(nvml.nvmlDeviceGetTemperature, TEMPERATURE_GPU);
  out->throttle = ask_bits(nvml.nvmlDeviceGetCurrentClocksEventReasons);
  if (out->throttle < 0)
    out->throttle = ask_bits(nvml.nvmlDeviceGetCurrentClocksThrottleReasons);
  out->t_ns = now_ns();
}

static void keep(const struct b200_nvml_sample *sample) {
  int64_t words[SAMPLE_WORDS];
  memcpy(words, sample, sizeof words);
  atomic_fetch_add(&nvml.version, 1);
  for (int i = 0; i < SAMPLE_WORDS; i++)
    atomic_store(&nvml.latest[i], words[i]);
  atomic_fetch_add(&nvml.version, 1);
}

/* pre: `looking`. */
static bool look(struct b200_nvml_sample *out, char *complaint, unsigned size) {
  if (atomic_load(&nvml.state) == LEARNT)
    atomic_store(&nvml.state, open_library(complaint, size) ? OPEN : GIVEN_UP);
  if (atomic_load(&nvml.state) != OPEN)
    return false;
  int64_t begun_ns = now_ns();
  ask_all(out);
  int64_t took_ms = (out->t_ns - begun_ns) / 1000000;
  if (took_ms >= SLOW_MS) {
    snprintf(complaint, size, "NVML took %lld ms for one look at the device; no more are taken", (long long)took_ms);
    atomic_store(&nvml.state, GIVEN_UP);
  }
  keep(out);
  return true;
}

enum b200_nvml_answer b200_nvml_look(struct b200_nvml_sample *out, char *complaint, unsigned size) {
  int state = atomic_load(&nvml.state);
  complaint[0] = '\0';
  if (state == GIVEN_UP)
    return B200_NVML_NEVER;
  if (state != LEARNT && state != OPEN)
    return B200_NVML_LATER;
  atomic_store(&nvml.looking, true);
  bool taken = !atomic_load(&nvml.ending) && look(out, complaint, size);
  atomic_store(&nvml.looking, false);
  return taken ? B200_NVML_TAKEN : B200_NVML_NEVER;
}

bool b200_nvml_latest(struct b200_nvml_sample *out) {
  int64_t words[SAMPLE_WORDS];
  unsigned before = atomic_load(&nvml.version);
  for (int i = 0; i < SAMPLE_WORDS; i++)
    words[i] = atomic_load(&nvml.latest[i]);
  memcpy(out, words, sizeof words);
  return before > 0 && before % 2 == 0 && atomic_load(&nvml.version) == before;
}

void b200_nvml_forget(void) {
  int state = atomic_load(&nvml.state);
  atomic_store(&nvml.state, state == OPEN || state == GIVEN_UP ? GIVEN_UP : UNKNOWN);
  atomic_store(&nvml.looking, false);
  atomic_store(&nvml.version, 0);
}
