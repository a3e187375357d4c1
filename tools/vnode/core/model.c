/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modelled durations. Arithmetic on doubles with + - * / alone and compiled without contraction, so that every machine with
 * IEEE arithmetic gives the same nanoseconds; no libm.
 */
#include "model.h"

#include <pthread.h>
#include <string.h>

enum fabric { PCIE4, PCIE5, NVLINK3, NVLINK4, NVLINK5, FABRICS };
enum algorithm { NVLS_ALL_REDUCE, RING_ALL_REDUCE, RING_GATHER, ALL_TO_ALL, ALGORITHMS };

/* Fields: models.def. */
struct model {
  enum fabric fabric;
  double hbm_gb_s, stream_fraction, copy_fraction, kernel_us;
  double gemm_fraction, tile_16384, tile_8192, tile_4096, split_us, sustain, sustain_us;
  int largest_tile;
  double attention_forward, attention_backward;
  double pcie_pinned_gb_s, pcie_pageable_gb_s, copy_us, pageable_us, p2p_gb_s;
  int nvls_ranks;
};

struct format {
  const char *gpu, *name;
  double peak_tflops, fraction, start_us, tile_k;
};

struct protocol {
  enum fabric fabric;
  enum algorithm algorithm;
  int64_t to_mib;
  double alpha_us, busbw_gb_s;
};

static const struct model_row {
  const char *gpu;
  struct model model;
} models[] = {
#define VNODE_MODEL(gpu_key, ...) {.gpu = #gpu_key, .model = {__VA_ARGS__}},
#include "models.def"
};

static const struct format formats[] = {
#define VNODE_FORMAT(gpu_key, format_name, peak, achieved, start, steps)                                                    \
  {#gpu_key, #format_name, peak, achieved, start, steps},
#include "models.def"
};

static const struct protocol protocols[] = {
#define VNODE_COLLECTIVE(fabric_name, algorithm_name, to, alpha, busbw) {fabric_name, algorithm_name, to, alpha, busbw},
#include "models.def"
};

static const struct host_row {
  const char *prefix;
  size_t length;
  int64_t ns;
} host_rows[] = {
#define VNODE_HOST(name_prefix, nanoseconds) {name_prefix, sizeof name_prefix - 1, nanoseconds},
#include "models.def"
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct model *model;
static const struct format *own_formats; /* the GPU's first row; bf16, which stands for the formats that it lacks */
static size_t own_format_count;
static pthread_once_t model_once = PTHREAD_ONCE_INIT;

static void choose_model(void) {
  const char *gpu = vnode_config()->gpu; /* the configuration accepts only GPUs that have a row */
  const struct model_row *row = models;
  while (strcmp(row->gpu, gpu))
    row++;
  model = &row->model;
  own_formats = formats;
  while (strcmp(own_formats->gpu, gpu))
    own_formats++;
  while (own_formats + own_format_count < formats + COUNT(formats) && !strcmp(own_formats[own_format_count].gpu, gpu))
    own_format_count++;
}

static const struct model *chosen(void) {
  pthread_once(&model_once, choose_model);
  return model;
}

static const struct format *format_of(const char *name) {
  for (size_t i = 0; i < own_format_count; i++)
    if (!strcmp(own_formats[i].name, name))
      return &own_formats[i];
  return own_formats;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

static int64_t to_ns(double us) {
  return (int64_t)(us * 1000 + 0.5);
}

static double us_of(double bytes, double gb_s) {
  return bytes / (gb_s * 1000);
}

static int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* ------------------------------------------------------------------------------------------------------------- GEMM */

/* Output tiles that cuBLAS chooses among, the larger side either way. */
static const struct tile {
  int m, n;
} tiles[] = {{256, 256}, {256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}};

static double tile_fraction(const struct model *gpu, int area) {
  return area >= 32768 ? 1 : area == 16384 ? gpu->tile_16384 : area == 8192 ? gpu->tile_8192 : gpu->tile_4096;
}

/* Waves of tiles over the SMs, each as long as its slowest member; the best tile and split along k. */
static double compute_us(const struct model *gpu, const struct format *format, int64_t m, int64_t n, int64_t k,
                         int64_t batch) {
  int sms = vnode_gpu()->sm_count;
  double sm_flops_per_us = format->peak_tflops * 1e6 / sms * format->fraction, best = 0;
  for (size_t i = 0; i < COUNT(tiles); i++) {
    int area = tiles[i].m * tiles[i].n;
    if (area > gpu->largest_tile)
      continue;
    double tile_flops_per_k = 2.0 * area / tile_fraction(gpu, area);
    int64_t count = ceil_div(m, tiles[i].m) * ceil_div(n, tiles[i].n) * batch;
    for (int log_split = 0; log_split <= 3; log_split++) {
      double steps = (double)ceil_div(k, 1 << log_split) + format->tile_k;
      double waves = (double)ceil_div(count << log_split, sms);
      double us = waves * (tile_flops_per_k * steps / sm_flops_per_us) + log_split * gpu->split_us;
      best = best > 0 && best < us ? best : us;
    }
  }
  return best;
}

/* Bytes of one element of an operand, with its scales. */
static double element_bytes(const char *format) {
  static const struct {
    const char *format;
    double bytes;
  } table[] = {
      {"f64", 8}, {"f32", 4}, {"tf32", 4}, {"fp8", 1}, {"i8", 1}, {"mxfp8", 1 + 1.0 / 32}, {"nvfp4", 0.5 + 1.0 / 16}};
  for (size_t i = 0; i < COUNT(table); i++)
    if (!strcmp(table[i].format, format))
      return table[i].bytes;
  return 2;
}

int64_t vnode_model_gemm_ns(int64_t m, int64_t n, int64_t k, int64_t batch, const char *format, int d_bytes) {
  if (m <= 0 || n <= 0 || batch <= 0)
    return 0;
  const struct model *gpu = chosen();
  const struct format *row = format_of(format);
  double operand = element_bytes(format);
  double bytes = ((double)m * (double)k + (double)k * (double)n) * operand + (double)m * (double)n * d_bytes;
  double memory = us_of(bytes * (double)batch, gpu->hbm_gb_s * gpu->gemm_fraction);
  double us = larger(k > 0 ? compute_us(gpu, row, m, n, k, batch) : 0, memory);
  return to_ns(row->start_us + us * (1 + gpu->sustain * us / (us + gpu->sustain_us + 1)));
}

/* ---------------------------------------------------------------------------------------------------- other kernels */

int64_t vnode_model_attention_ns(double flops, uint64_t bytes, bool backward) {
  const struct model *gpu = chosen();
  const struct format *bf16 = own_formats;
  double peak = bf16->peak_tflops * (backward ? gpu->attention_backward : gpu->attention_forward);
  double memory = us_of((double)bytes, gpu->hbm_gb_s * gpu->stream_fraction);
  return to_ns(bf16->start_us + larger(flops / (peak * 1e6), memory));
}

int64_t vnode_model_kernel_ns(uint64_t bytes) {
  const struct model *gpu = chosen();
  return to_ns(gpu->kernel_us + us_of((double)bytes, gpu->hbm_gb_s * gpu->stream_fraction));
}

int64_t vnode_model_copy_ns(enum vnode_copy_kind kind, uint64_t bytes, bool pinned) {
  const struct model *gpu = chosen();
  double size = (double)bytes;
  if (!bytes)
    return 0;
  switch (kind) {
  case VNODE_COPY_WITHIN_DEVICE:
    return to_ns(gpu->kernel_us + us_of(2 * size, gpu->hbm_gb_s * gpu->copy_fraction));
  case VNODE_COPY_BETWEEN_DEVICES:
    return to_ns(gpu->copy_us + us_of(size, gpu->p2p_gb_s));
  case VNODE_COPY_HOST_TO_DEVICE:
  case VNODE_COPY_DEVICE_TO_HOST:
  case VNODE_COPY_HOST: /* by the host, at the rate of its staging buffer */
  default:
    return pinned ? to_ns(gpu->copy_us + us_of(size, gpu->pcie_pinned_gb_s))
                  : to_ns(gpu->pageable_us + us_of(size, gpu->pcie_pageable_gb_s));
  }
}

/* ------------------------------------------------------------------------------------------------------ collectives */

/* What of `bytes` crosses a rank's link is bytes * (ranks - 1) / ranks * passes, or bytes when nothing stays home. */
static const struct operation {
  const char *name;
  enum algorithm algorithm;
  int passes;
  bool all_bytes;
} operations[] = {
    {"AllReduce", RING_ALL_REDUCE, 2, false}, {"AllGather", RING_GATHER, 1, false}, {"ReduceScatter", RING_GATHER, 1, false},
    {"Broadcast", RING_GATHER, 1, true},      {"Reduce", RING_GATHER, 1, true},     {"AlltoAll", ALL_TO_ALL, 1, false},
    {"Gather", ALL_TO_ALL, 1, false},         {"Scatter", ALL_TO_ALL, 1, false},    {"", ALL_TO_ALL, 1, true},
};

static const struct operation *operation_of(const char *name) {
  const struct operation *operation = operations;
  while (*operation->name && strcmp(operation->name, name))
    operation++;
  return operation;
}

/* A ring's latency grows with the ranks ([xla], 2 to 8 GPUs: to half at two), all-to-all's hardly does. A ring reaches its
   bandwidth with many ranks only: 76 % of eight ranks' at two, 95 % at four, as [xla] and [stas] have it. */
static double protocol_us(const struct protocol *row, double wire, int ranks) {
  double latency = row->alpha_us * (row->algorithm == ALL_TO_ALL ? 1 : (ranks + 6) / 14.0), n = ranks;
  double reached = row->algorithm == NVLS_ALL_REDUCE ? 1 : (1 - 1 / (n * n)) * 64 / 63;
  return latency + us_of(wire, row->busbw_gb_s * reached);
}

int64_t vnode_model_collective_ns(const char *op, int nranks, uint64_t bytes) {
  const struct model *gpu = chosen();
  if (!bytes)
    return 0;
  if (nranks <= 1)
    return vnode_model_copy_ns(VNODE_COPY_WITHIN_DEVICE, bytes, false);
  const struct operation *operation = operation_of(op);
  enum algorithm algorithm = operation->algorithm;
  double share = operation->all_bytes ? 1 : operation->passes * (nranks - 1) / (double)nranks;
  if (algorithm == RING_ALL_REDUCE && gpu->nvls_ranks && nranks >= gpu->nvls_ranks) {
    algorithm = NVLS_ALL_REDUCE;
    share = 1.75; /* the switch reduces: what a rank sends does not depend on their number. busbw_gb_s is of eight ranks */
  }
  double us = 0, least = 0;
  for (size_t i = 0; i < COUNT(protocols); i++) {
    const struct protocol *row = &protocols[i];
    if (row->fabric != gpu->fabric || row->algorithm != algorithm)
      continue;
    bool last = row->to_mib == INT64_MAX || bytes <= (uint64_t)row->to_mib << 20;
    double size = last ? (double)bytes : (double)((uint64_t)row->to_mib << 20);
    us = larger(least, protocol_us(row, size * share, nranks));
    least = us;
    if (last)
      break;
  }
  return to_ns(us);
}

int64_t vnode_model_host_ns(const char *function) {
  const struct host_row *row = host_rows;
  while (strncmp(row->prefix, function, row->length)) /* the last row fits everything */
    row++;
  return row->ns;
}
