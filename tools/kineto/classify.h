/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an operation of a trace is. A GPU operation is an event of the categories kernel, gpu_memcpy and gpu_memset. Which of
 * them communicate is said by PyTorch where it can ("Collective name" among the arguments), and by the kernel's name else.
 *
 * Holistic Trace Analysis tells by names alone (`hta/utils/utils.py` of 0.5.0), whatever has a stream. kineto_hta_class() is
 * that rule, so that a report can say where the two differ.
 *
 * Pure functions.
 */
#ifndef B200_KINETO_CLASSIFY_H
#define B200_KINETO_CLASSIFY_H

#include <stdbool.h>

enum kineto_category {
  KINETO_CATEGORY_NONE,   /* the event has none */
  KINETO_CATEGORY_HOST,   /* host side, its arguments do not matter here */
  KINETO_CATEGORY_LAUNCH, /* host side, may have a correlation */
  KINETO_CATEGORY_GPU_ANNOTATION,
  KINETO_CATEGORY_SYNC, /* waits, as the GPU sees them: no work */
  KINETO_CATEGORY_KERNEL,
  KINETO_CATEGORY_MEMORY,
  KINETO_CATEGORY_UNKNOWN,
};

enum kineto_class { KINETO_COMMUNICATION, KINETO_COMPUTE, KINETO_MEMORY, KINETO_CLASSES, KINETO_OTHER = KINETO_CLASSES };

enum kineto_category kineto_category(const char *name);

/* `collective`: the argument "Collective name", "" for none. */
enum kineto_class kineto_class(enum kineto_category category, const char *name, const char *collective);

enum kineto_class kineto_hta_class(const char *name);

/* The kind of a collective in NCCL's words ("AllGather"), from PyTorch's name for it or from the kernel's; what is not known
   by either stays as it is called. Never "". */
const char *kineto_kind(const char *collective, const char *kernel);

/* By nccl-tests' conventions: bus bandwidth over algorithm bandwidth, and whether the algorithm's bytes are those that come
   out (AllGather) instead of those that go in. 0 for a kind that has none. */
double kineto_bus_factor(const char *kind, long ranks, bool *bytes_out);

/* Bytes of an element of a PyTorch data type, 0 if unknown. */
int kineto_element_bytes(const char *dtype);

#endif
