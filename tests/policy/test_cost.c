/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: test_cost [--write] COST_CSV [PUBLISHED_CSV]
 * Prints each row of COST_CSV with what the cost model predicts for it. Fails when a prediction is not the one in the file,
 * an error is larger than the row's bound, or the GEMM times of PUBLISHED_CSV are missed. --write puts the predictions into
 * the file.
 */
#include "policy/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ROWS_MAX 4096

static const struct b200_device devices[] = {{103, 0, 130100, "b300"},
                                             {100, 0, 130100, "b200"},
                                             {90, 0, 130100, "H200 NVL"},
                                             {90, 0, 130100, "H200"},
                                             {90, 0, 130100, "h100"}};
static const char *const device_names[] = {"b300", "b200", "h200nvl", "h200", "h100"};

static const struct b200_device *find_device(const char *name) {
  for (size_t i = 0; i < COUNT(devices); i++)
    if (strcmp(device_names[i], name) == 0)
      return &devices[i];
  return NULL;
}

static enum b200_format find_format(const char *name) {
  for (int i = 0; i < B200_FORMAT_COUNT; i++)
    if (strcmp(b200_format_names[i], name) == 0)
      return (enum b200_format)i;
  return B200_FORMAT_NATIVE; /* bf16 of the other file */
}

static struct b200_gemm gemm_of(enum b200_role role, int64_t m, int64_t n, int64_t k, int64_t batch) {
  return (struct b200_gemm){.m = m,
                            .n = n,
                            .k = k,
                            .batch = batch,
                            .role = (uint8_t)role,
                            .a = B200_ELEMENT_BF16,
                            .b = B200_ELEMENT_BF16,
                            .d = B200_ELEMENT_BF16,
                            .compute = B200_COMPUTE_F32,
                            .ta = role == B200_ROLE_FPROP ? 'T' : 'N',
                            .tb = role == B200_ROLE_WGRAD ? 'T' : 'N'};
}

/* ---- predictions */

struct row {
  char kind[32], gpu[16], format[16], source[16];
  long long m, n, k;
  double bound, published;
};

/* Times of the twelve GEMMs: native, converted, converted without the quantisation. */
static void layer_times(const struct b200_device *device, enum b200_format format, const struct row *row, double times[3]) {
  const int64_t h = row->m, f = row->k, tokens = row->n;
  const int64_t linear[][2] = {{3 * h, h}, {h, h}, {f, h}, {h, f}}; /* out, in */
  memset(times, 0, 3 * sizeof(*times));
  for (size_t i = 0; i < COUNT(linear); i++) {
    int64_t out = linear[i][0], in = linear[i][1];
    struct b200_gemm gemms[] = {gemm_of(B200_ROLE_FPROP, out, tokens, in, 1), gemm_of(B200_ROLE_DGRAD, in, tokens, out, 1),
                                gemm_of(B200_ROLE_WGRAD, in, out, tokens, 1)};
    for (size_t j = 0; j < COUNT(gemms); j++) {
      double narrow = b200_cost_narrow(device, &gemms[j], format);
      times[0] += b200_cost_native(device, &gemms[j]);
      times[1] += narrow;
      times[2] += narrow - b200_cost_quantise(device, &gemms[j], format);
    }
  }
}

static double threshold(const struct b200_device *device, enum b200_format format, const struct row *row) {
  for (int64_t m = 128;; m += 128) {
    struct b200_gemm gemm = gemm_of(B200_ROLE_FPROP, m, row->n, row->k, 1);
    if (b200_cost_native(device, &gemm) >= 1.03 * b200_cost_narrow(device, &gemm, format))
      return (double)m * (double)row->n / (double)(m + row->n);
    if (m > 1 << 20)
      return 0;
  }
}

static double predict(const struct row *row) {
  const struct b200_device *device = find_device(row->gpu);
  enum b200_format format = find_format(row->format);
  struct b200_gemm gemm = gemm_of(B200_ROLE_FPROP, row->m, row->n, row->k, 1);
  double times[3];
  if (!device)
    return NAN;
  if (!strcmp(row->kind, "speedup") || !strcmp(row->kind, "roofline"))
    return b200_cost_native(device, &gemm) / b200_cost_narrow(device, &gemm, format);
  if (!strcmp(row->kind, "native_us"))
    return b200_cost_native(device, &gemm) / 1e3;
  if (!strcmp(row->kind, "threshold"))
    return threshold(device, format, row);
  if (!strcmp(row->kind, "quantise_us")) {
    gemm.n = gemm.m; /* two such operands */
    return b200_cost_quantise(device, &gemm, format) / 2e3;
  }
  layer_times(device, format, row, times);
  if (!strcmp(row->kind, "layer"))
    return times[0] / times[1];
  if (!strcmp(row->kind, "bare"))
    return times[0] / times[2];
  return !strcmp(row->kind, "native_layer_us") ? times[0] / 1e3 : NAN;
}

static int check_row(const struct row *row, const char *line, FILE *out, bool write) {
  char expected[256];
  double predicted = predict(row), error = predicted / row->published - 1;
  int bad = !(fabs(error) <= row->bound);
  snprintf(expected, sizeof(expected), "%s,%s,%s,%lld,%lld,%lld,%.2f,%s,%.6g,%.4g,%+.2f", row->kind, row->gpu, row->format,
           row->m, row->n, row->k, row->bound, row->source, row->published, predicted, error);
  printf("%-16s %-8s %-6s %7lld %6lld %6lld  published %8.4g  predicted %8.4g  error %+6.1f %%%s\n", row->kind, row->gpu,
         row->format, row->m, row->n, row->k, row->published, predicted, 100 * error, bad ? "  TOO LARGE" : "");
  if (write)
    fprintf(out, "%s\n", expected);
  else if (strcmp(expected, line) != 0) {
    printf("  the file has %s\n  now it is    %s\n", line, expected);
    bad = 1;
  }
  return bad;
}

static int check_table(const char *path, bool write) {
  static char lines[256][256];
  int count = 0, bad = 0, rows = 0;
  FILE *file = fopen(path, "r");
  for (; file && count < 256 && fgets(lines[count], sizeof(lines[0]), file); count++)
    lines[count][strcspn(lines[count], "\n")] = '\0';
  if (!file)
    return 1;
  fclose(file);
  FILE *out = write ? fopen(path, "w") : NULL;
  for (int i = 0; i < count; i++) {
    struct row row;
    if (sscanf(lines[i], "%31[a-z_],%15[a-z0-9],%15[a-z0-9],%lld,%lld,%lld,%lf,%15[a-z0-9-],%lf", row.kind, row.gpu,
               row.format, &row.m, &row.n, &row.k, &row.bound, row.source, &row.published) == 9) {
      bad += check_row(&row, lines[i], out, write);
      rows++;
    } else if (lines[i][0] != '#') {
      printf("not a row: %s\n", lines[i]);
      bad++;
    } else if (out) {
      fprintf(out, "%s\n", lines[i]);
    }
  }
  if (out)
    fclose(out);
  return bad + (rows < 30);
}

/* ---- plain GEMM times */

static int by_size(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Median and 90th percentile of |error| of the GEMMs of 20 us or more, where a decision may depend on them. */
static int check_times(const char *path, const char *gpu, const char *name, double median_bound) {
  static double errors[ROWS_MAX];
  char line[256], kind[16], row_gpu[16], what[16];
  long long batch, m, n, k;
  double us;
  size_t count = 0;
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof(line), file)) {
    if (sscanf(line, "%15[a-z],%15[a-z0-9],%15[a-z0-9],%lld,%lld,%lld,%lld,%lf", kind, row_gpu, what, &batch, &m, &n, &k,
               &us) != 8 ||
        strcmp(kind, "gemm") != 0 || strcmp(row_gpu, gpu) != 0 || strcmp(what, name) != 0 || us < 20 || count == ROWS_MAX)
      continue;
    struct b200_gemm gemm = gemm_of(B200_ROLE_FPROP, m, n, k, batch);
    enum b200_format format = find_format(name);
    double ns = format == B200_FORMAT_NATIVE ? b200_cost_native(find_device(gpu), &gemm)
                                             : b200_cost_narrow(find_device(gpu), &gemm, format) -
                                                   b200_cost_quantise(find_device(gpu), &gemm, format);
    errors[count++] = fabs(ns / (1e3 * us) - 1);
  }
  if (file)
    fclose(file);
  if (!count) {
    printf("no GEMM times of %s, %s\n", gpu, name);
    return 1;
  }
  qsort(errors, count, sizeof(*errors), by_size);
  double median = errors[count / 2], most = errors[count * 9 / 10];
  printf("GEMM times of 20 us and more, %s %-6s %4zu rows: |error| median %4.1f %%, 90th percentile %4.1f %%\n", gpu, name,
         count, 100 * median, 100 * most);
  return !(median <= median_bound);
}

int main(int argc, char **argv) {
  bool write = argc > 2 && strcmp(argv[1], "--write") == 0;
  const char *table = argv[write ? 2 : 1], *published = argc == 3 && !write ? argv[2] : NULL;
  if (argc < 2)
    return 2;
  int bad = check_table(table, write);
  if (published) {
    bad += check_times(published, "b200", "bf16", 0.05) + check_times(published, "b200", "fp8", 0.06);
    bad += check_times(published, "b200", "mxfp8", 0.05) + check_times(published, "b300", "bf16", 0.05);
    bad += check_times(published, "h100", "bf16", 0.05) + check_times(published, "h100", "fp8", 0.06);
    bad += check_times(published, "h200", "fp8", 0.06);
  }
  printf("%d passed, %d failed\n", bad == 0, bad);
  return bad != 0;
}
