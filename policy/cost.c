/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a GEMM takes, natively and narrow with the quantisation of both operands:
 *
 *   gemm     = start + max(compute, bytes / bandwidth), longer by what long kernels lose to the power limit (Blackwell)
 *   compute  = waves of output tiles over the multiprocessors, each as long as one tile; the better of two tiles
 *   quantise = launches · floor + bytes / bandwidth: FP8 reads twice and writes once (amax, cast), MXFP8 reads once
 *
 * The compute part has no split along k: GEMMs that need it are far below the size at which conversion pays.
 */
#include "policy/cost.h"

#include <string.h>

#define SUSTAIN_US 500 /* length of a kernel that has lost half of its `sustain` */

struct cost_gemm {
  double peak_tflops, us_per_flop, start_us, tile_k; /* us_per_flop: of the whole GPU; 0: there is no such format */
};

struct cost_gpu {
  const char *id, *part; /* part: of the device's name */
  int cc, sms;
  double hbm_gb_s, quantise_us_per_byte, gemm_us_per_byte, launch_us, per_tile_128, not_tn, sustain;
  struct cost_gemm formats[B200_FORMAT_COUNT];
};

static const struct cost_gpu gpus[] = {
#define B200_COST(id, cc, part, sms, hbm, quantise, bandwidth, launch, tile_128, not_tn, sustain, native, fp8, mxfp8)       \
  {#id, /* rates as their inverses: a decision multiplies */                                                                \
   part,   cc,           sms,    hbm,     1 / (hbm * 1e3 * quantise), 1 / (hbm * 1e3 * bandwidth),                          \
   launch, 1 / tile_128, not_tn, sustain, {native, fp8, mxfp8}},
#include "policy/cost.def"
#undef B200_COST
};
#define GPUS ((int)(sizeof(gpus) / sizeof(gpus[0])))

int b200_cost_row(const struct b200_device *device) {
  int row = 0;
  while (row < GPUS - 1 && !(gpus[row].cc == device->cc && strstr(device->name, gpus[row].part)))
    row++;
  return row;
}

const char *b200_cost_row_name(int row) {
  return gpus[row].id;
}

double b200_cost_peak_flops(int row, enum b200_format format) {
  return row < GPUS - 1 ? gpus[row].formats[format].peak_tflops * 1e12 : 0;
}

double b200_cost_hbm_bytes_per_s(int row) {
  return row < GPUS - 1 ? gpus[row].hbm_gb_s * 1e9 : 0;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

static double ceiling(double value) {
  if (value > 1e15)
    return value;
  double whole = (double)(int64_t)value;
  return whole < value ? whole + 1 : whole;
}

/* FLOPs of all multiprocessors for each step along k, with tiles of rows × columns: waves, each as long as one tile. */
static double wave_flops(const struct b200_gemm *gemm, int rows, int columns, int sms) {
  double tiles = ceiling((double)gemm->m * (1.0 / rows)) * ceiling((double)gemm->n * (1.0 / columns)) * (double)gemm->batch;
  return ceiling(tiles / sms) * sms * 2 * rows * columns;
}

/* How much longer everything takes on a part with fewer multiprocessors than the row's. */
static double smaller_part(const struct cost_gpu *gpu, int sms) {
  return sms == gpu->sms ? 1 : (double)gpu->sms / sms;
}

static double gemm_us(const struct cost_gpu *gpu, int sms, const struct b200_gemm *gemm, enum b200_format format,
                      double waves) {
  static const double operand_bytes[B200_FORMAT_COUNT] = {2, 1, 1 + 1.0 / 32};
  const struct cost_gemm *row = &gpu->formats[format];
  double m = (double)gemm->m, n = (double)gemm->n, k = (double)gemm->k, batch = (double)gemm->batch;
  double compute = waves * (k + row->tile_k) * row->us_per_flop * smaller_part(gpu, sms);
  double bytes =
      batch * ((m + n) * k * operand_bytes[format] + m * n * (double)b200_element_bytes((enum b200_element)gemm->d));
  double us = larger(compute, bytes * gpu->gemm_us_per_byte * smaller_part(gpu, sms));
  return row->start_us + us * (1 + gpu->sustain * us / (us + SUSTAIN_US));
}

static bool has_work(const struct b200_gemm *gemm) {
  return gemm->m > 0 && gemm->n > 0 && gemm->k > 0 && gemm->batch > 0;
}

static int sms_of(int row, int sms) {
  return sms > 0 ? sms : gpus[row].sms;
}

double b200_cost_waves(int row, int sms, const struct b200_gemm *gemm) {
  double wide = wave_flops(gemm, 256, 128, sms_of(row, sms));
  double square = wave_flops(gemm, 128, 128, sms_of(row, sms)) * gpus[row].per_tile_128;
  return wide < square ? wide : square;
}

double b200_cost_native_ns(int row, int sms, const struct b200_gemm *gemm, double waves) {
  return has_work(gemm) ? 1e3 * gemm_us(&gpus[row], sms_of(row, sms), gemm, B200_FORMAT_NATIVE, waves) : 0;
}

double b200_cost_quantise_ns(int row, int sms, const struct b200_gemm *gemm, enum b200_format format) {
  /* Per element: FP8 2 + 2 + 1 bytes, MXFP8 2 + 1 + 1/32. Kernels per operand: amax and cast, or one. */
  static const double element_bytes[B200_FORMAT_COUNT] = {0, 5, 3 + 1.0 / 32}, kernels[B200_FORMAT_COUNT] = {0, 2, 1};
  const struct cost_gpu *gpu = &gpus[row];
  if (!has_work(gemm))
    return 0;
  double elements = (double)gemm->batch * ((double)gemm->m + (double)gemm->n) * (double)gemm->k;
  double us = elements * element_bytes[format] * gpu->quantise_us_per_byte * smaller_part(gpu, sms_of(row, sms));
  return 1e3 * (2 * kernels[format] * gpu->launch_us + us);
}

double b200_cost_narrow_ns(int row, int sms, const struct b200_gemm *gemm, enum b200_format format, bool tn, double waves) {
  const struct cost_gpu *gpu = &gpus[row];
  if (!has_work(gemm) || gpu->formats[format].us_per_flop <= 0)
    return 0;
  double us = gemm_us(gpu, sms_of(row, sms), gemm, format, waves);
  if (!tn && !(gemm->ta != 'N' && gemm->tb == 'N'))
    us *= gpu->not_tn;
  return 1e3 * us + b200_cost_quantise_ns(row, sms, gemm, format);
}

double b200_cost_native(const struct b200_device *device, const struct b200_gemm *gemm) {
  int row = b200_cost_row(device);
  return b200_cost_native_ns(row, device->sms, gemm, b200_cost_waves(row, device->sms, gemm));
}

double b200_cost_narrow(const struct b200_device *device, const struct b200_gemm *gemm, enum b200_format format) {
  bool tn = device->cc < 100 || device->cc >= 120;
  int row = b200_cost_row(device);
  if (format == B200_FORMAT_NATIVE)
    return b200_cost_native(device, gemm);
  return b200_cost_narrow_ns(row, device->sms, gemm, format, tn, b200_cost_waves(row, device->sms, gemm));
}

double b200_cost_quantise(const struct b200_device *device, const struct b200_gemm *gemm, enum b200_format format) {
  return b200_cost_quantise_ns(b200_cost_row(device), device->sms, gemm, format);
}
