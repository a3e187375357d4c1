/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVML says of this rank's device, now and then. NVML needs no CUDA context and waits for no stream, so the writer's
 * thread may ask it; which device it is, only a thread of the application can say, whose current context has it.
 *
 *   application's thread   b200_nvml_learn()   the UUID of the current context's device, once
 *   writer's thread        b200_nvml_look()    loads libnvidia-ml.so.1 the first time, then takes a sample
 *   any thread             b200_nvml_latest()
 *
 * The device is found by its UUID, else by its place on the PCI bus: NVML does not know CUDA_VISIBLE_DEVICES. A process with
 * several devices has the first one looked at. An instance of a partitioned device (MIG) answers for its memory only.
 *
 * What may go wrong stays here: a library or a function that is missing, a device that is not found, an NVML that is slow.
 * The first says nothing, as machines without it are usual; the others are said once, and nothing is asked any more. Nothing
 * is asked while the process ends (a handler of exit() waits for a look that is under way, for a second) and none in a
 * forked child of a process that has asked.
 */
#ifndef B200_NVML_H
#define B200_NVML_H

#include <stdbool.h>
#include <stdint.h>

/* −1: not answered. */
struct b200_nvml_sample {
  int64_t t_ns; /* CLOCK_MONOTONIC, after the look */
  int64_t util_pct, mem_util_pct;
  int64_t mem_used, mem_total; /* bytes */
  int64_t power_mw, sm_mhz, temp_c, throttle;
};

/* Cheap once the device is known. pre: no stream of this thread is being captured. */
void b200_nvml_learn(void);

/* Takes a sample: taken, none as the device is not known yet, or none from now on. `complaint`, of `size` bytes: what to
   say, once; else empty. */
enum b200_nvml_answer { B200_NVML_TAKEN, B200_NVML_LATER, B200_NVML_NEVER };
enum b200_nvml_answer b200_nvml_look(struct b200_nvml_sample *out, char *complaint, unsigned size);

/* The sample taken last; false before the first. Never blocks; a sample may be missed while it is being written. */
bool b200_nvml_latest(struct b200_nvml_sample *out);

/* In a forked child: of a process that has loaded NVML, nothing is asked any more; of another one, it begins anew. */
void b200_nvml_forget(void);

#endif
