/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/classify.h"

#include <string.h>
#include <strings.h>

#define COUNT(table) (sizeof(table) / sizeof(*(table)))

static bool starts_with(const char *text, const char *start) {
  return strncmp(text, start, strlen(start)) == 0;
}

/* The words of libkineto's ActivityType; those without gpu_ are of 2021. */
enum kineto_category kineto_category(const char *name) {
  static const struct {
    const char *name;
    enum kineto_category category;
  } rows[] = {
      {"kernel", KINETO_CATEGORY_KERNEL},
      {"cuda_runtime", KINETO_CATEGORY_LAUNCH},
      {"cpu_op", KINETO_CATEGORY_HOST},
      {"ac2g", KINETO_CATEGORY_HOST},
      {"python_function", KINETO_CATEGORY_HOST},
      {"fwdbwd", KINETO_CATEGORY_HOST},
      {"cuda_driver", KINETO_CATEGORY_LAUNCH},
      {"gpu_memcpy", KINETO_CATEGORY_MEMORY},
      {"gpu_memset", KINETO_CATEGORY_MEMORY},
      {"user_annotation", KINETO_CATEGORY_HOST},
      {"gpu_user_annotation", KINETO_CATEGORY_GPU_ANNOTATION},
      {"cuda_sync", KINETO_CATEGORY_SYNC},
      {"overhead", KINETO_CATEGORY_HOST},
      {"cpu_instant_event", KINETO_CATEGORY_HOST},
      {"Trace", KINETO_CATEGORY_HOST},
      {"Memcpy", KINETO_CATEGORY_MEMORY},
      {"Memset", KINETO_CATEGORY_MEMORY},
      {"Runtime", KINETO_CATEGORY_LAUNCH},
      {"Operator", KINETO_CATEGORY_HOST},
  };
  for (size_t i = 0; i < COUNT(rows); i++)
    if (strcasecmp(name, rows[i].name) == 0)
      return rows[i].category;
  return *name ? KINETO_CATEGORY_UNKNOWN : KINETO_CATEGORY_NONE;
}

/* Kernels that communicate, by how their names begin: NCCL's and RCCL's of all versions, NVSHMEM's, those of PyTorch's
   symmetric memory, DeepEP's. */
static const char *const communicating[] = {
    "ncclDevKernel",        "ncclKernel",           "ncclSymk",  "ncclSymDevKernel", "nvshmem", "multimem_",
    "one_shot_all_reduce_", "two_shot_all_reduce_", "symm_mem_", "deep_ep::",
};

enum kineto_class kineto_class(enum kineto_category category, const char *name, const char *collective) {
  if (category == KINETO_CATEGORY_MEMORY)
    return KINETO_MEMORY;
  if (*collective)
    return KINETO_COMMUNICATION;
  name += starts_with(name, "void ") ? strlen("void ") : 0;
  for (size_t i = 0; i < COUNT(communicating); i++)
    if (starts_with(name, communicating[i]))
      return KINETO_COMMUNICATION;
  return KINETO_COMPUTE;
}

enum kineto_class kineto_hta_class(const char *name) {
  if (starts_with(name, "nccl") && strstr(name, "Kernel"))
    return KINETO_COMMUNICATION;
  if (starts_with(name, "Memcpy") || starts_with(name, "Memset") || starts_with(name, "dma"))
    return KINETO_MEMORY;
  return strstr(name, "Memcpy") || strstr(name, "Sync") ? KINETO_OTHER : KINETO_COMPUTE;
}

/* What PyTorch's ProcessGroupNCCL calls its operations, without a "_" in front. */
static const struct {
  const char *collective, *kind;
} kinds[] = {
    {"allgather", "AllGather"},
    {"allgather_base", "AllGather"},
    {"all_gather", "AllGather"},
    {"all_gather_into_tensor", "AllGather"},
    {"all_gather_into_tensor_coalesced", "AllGather"},
    {"allgather_into_tensor_coalesced", "AllGather"},
    {"allgather_coalesced", "AllGather"},
    {"allreduce", "AllReduce"},
    {"all_reduce", "AllReduce"},
    {"allreduce_coalesced", "AllReduce"},
    {"barrier", "Barrier"},
    {"reduce_scatter", "ReduceScatter"},
    {"reduce_scatter_base", "ReduceScatter"},
    {"reduce_scatter_tensor_coalesced", "ReduceScatter"},
    {"broadcast", "Broadcast"},
    {"reduce", "Reduce"},
    {"all_to_all", "AllToAll"},
    {"all_to_allv", "AllToAll"},
    {"alltoall", "AllToAll"},
    {"alltoall_base", "AllToAll"},
    {"gather", "Gather"},
    {"scatter", "Scatter"},
    {"send", "Send"},
    {"recv", "Recv"},
};

/* In the names of kernels; the first that fits. SendRecv may be any operation that NCCL makes of these. */
static const struct {
  const char *part, *kind;
} in_kernels[] = {
    {"AllGather", "AllGather"},  {"ReduceScatter", "ReduceScatter"},
    {"AllReduce", "AllReduce"},  {"AllToAll", "AllToAll"},
    {"AlltoAll", "AllToAll"},    {"SendRecv", "SendRecv"},
    {"Broadcast", "Broadcast"},  {"Reduce", "Reduce"},
    {"Gather", "Gather"},        {"Scatter", "Scatter"},
    {"all_gather", "AllGather"}, {"reduce_scatter", "ReduceScatter"},
    {"all_reduce", "AllReduce"},
};

const char *kineto_kind(const char *collective, const char *kernel) {
  const char *name = collective + strspn(collective, "_");
  for (size_t i = 0; *name && i < COUNT(kinds); i++)
    if (strcasecmp(name, kinds[i].collective) == 0)
      return kinds[i].kind;
  if (*name)
    return name;
  for (size_t i = 0; i < COUNT(in_kernels); i++)
    if (strstr(kernel, in_kernels[i].part))
      return in_kernels[i].kind;
  return "other";
}

double kineto_bus_factor(const char *kind, long ranks, bool *bytes_out) {
  static const struct {
    const char *kind;
    double rounds;
    bool shares, bytes_out; /* shares: each rank keeps one part of n */
  } rows[] = {
      {"AllReduce", 2, true, false}, {"AllGather", 1, true, true},   {"ReduceScatter", 1, true, false},
      {"AllToAll", 1, true, false},  {"Broadcast", 1, false, false}, {"Reduce", 1, false, false},
      {"Send", 1, false, false},     {"Recv", 1, false, true},
  };
  for (size_t i = 0; i < COUNT(rows); i++)
    if (strcmp(kind, rows[i].kind) == 0) {
      *bytes_out = rows[i].bytes_out;
      return rows[i].shares ? (ranks > 0 ? rows[i].rounds * (double)(ranks - 1) / (double)ranks : 0) : rows[i].rounds;
    }
  *bytes_out = false;
  return 0;
}

int kineto_element_bytes(const char *dtype) {
  static const struct {
    const char *start;
    int bytes;
  } rows[] = {
      {"BFloat16", 2}, {"Float8", 1}, {"Float", 4}, {"Half", 2}, {"Double", 8}, {"Long", 8},
      {"Int", 4},      {"Short", 2},  {"Byte", 1},  {"Char", 1}, {"Bool", 1},
  };
  for (size_t i = 0; i < COUNT(rows); i++)
    if (starts_with(dtype, rows[i].start))
      return rows[i].bytes;
  return 0;
}
