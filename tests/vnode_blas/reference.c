/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vnode_blas/reference.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 0xa5

int ledger_calls;
struct vnode_gemm_key ledger_last;

/* Takes the place of the engine's, so that a test can see each call. */
void vnode_ledger_gemm(const struct vnode_gemm_key *key) {
  ledger_calls++;
  ledger_last = *key;
}

void reference_load_blas(void) {
  const char *path = getenv("B200_TEST_BLAS");
  if (path && !dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    fprintf(stderr, "B200_TEST_BLAS: %s\n", dlerror());
    abort();
  }
}

struct float_format {
  cudaDataType type;
  int exponent_bits, fraction_bits;
};

static const struct float_format float_formats[] = {
    {CUDA_R_16F, 5, 10}, {CUDA_R_16BF, 8, 7}, {CUDA_R_8F_E4M3, 4, 3}, {CUDA_R_8F_E5M2, 5, 2}};

static const struct float_format *float_format_of(cudaDataType type) {
  for (size_t i = 0; i < sizeof float_formats / sizeof float_formats[0]; i++)
    if (float_formats[i].type == type)
      return &float_formats[i];
  return NULL;
}

size_t reference_bytes(cudaDataType type) {
  switch ((int)type) {
  case CUDA_C_64F:
    return 16;
  case CUDA_R_64F:
  case CUDA_C_32F:
    return 8;
  case CUDA_R_32F:
  case CUDA_R_32I:
    return 4;
  case CUDA_R_16F:
  case CUDA_R_16BF:
    return 2;
  default:
    return 1;
  }
}

double reference_unit(cudaDataType type) {
  const struct float_format *format = float_format_of(type);
  if (format)
    return ldexp(1, -format->fraction_bits - 1);
  return type == CUDA_R_32F || type == CUDA_C_32F  ? ldexp(1, -24)
         : type == CUDA_R_32I || type == CUDA_R_8I ? 0
                                                   : ldexp(1, -53);
}

/* By the definition of the IEEE-like formats; E4M3 has no infinity and one NaN. */
static double decode(const struct float_format *format, unsigned code) {
  int bias = (1 << (format->exponent_bits - 1)) - 1;
  unsigned exponent = code >> format->fraction_bits & ((1u << format->exponent_bits) - 1);
  unsigned fraction = code & ((1u << format->fraction_bits) - 1), all_ones = (1u << format->exponent_bits) - 1;
  double sign = code >> (format->exponent_bits + format->fraction_bits) & 1 ? -1 : 1;
  if (format->type == CUDA_R_8F_E4M3 ? (exponent == 15 && fraction == 7) : (exponent == all_ones && fraction))
    return NAN;
  if (format->type != CUDA_R_8F_E4M3 && exponent == all_ones)
    return sign * INFINITY;
  double significand = (exponent ? 1.0 : 0.0) + ldexp((double)fraction, -format->fraction_bits);
  return sign * ldexp(significand, (exponent ? (int)exponent : 1) - bias);
}

struct complex_value reference_load(const void *data, cudaDataType type, int64_t index) {
  const struct float_format *format = float_format_of(type);
  if (format) {
    unsigned code = reference_bytes(type) == 2 ? ((const uint16_t *)data)[index] : ((const uint8_t *)data)[index];
    return (struct complex_value){decode(format, code), 0};
  }
  switch ((int)type) {
  case CUDA_R_64F:
    return (struct complex_value){((const double *)data)[index], 0};
  case CUDA_R_32F:
    return (struct complex_value){(double)((const float *)data)[index], 0};
  case CUDA_R_32I:
    return (struct complex_value){((const int32_t *)data)[index], 0};
  case CUDA_R_8I:
    return (struct complex_value){((const int8_t *)data)[index], 0};
  case CUDA_C_32F:
    return (struct complex_value){(double)((const float *)data)[2 * index], (double)((const float *)data)[2 * index + 1]};
  default:
    return (struct complex_value){((const double *)data)[2 * index], ((const double *)data)[2 * index + 1]};
  }
}

uint64_t reference_random_bits(void) {
  static uint64_t state = 0x9e3779b97f4a7c15u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state >> 8;
}

/* In (-2, 2), all bits of the format in use. */
static void random_element(unsigned char *to, cudaDataType type) {
  const struct float_format *format = float_format_of(type);
  if (format) {
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    uint64_t bits = reference_random_bits();
    unsigned fraction = (unsigned)bits & ((1u << format->fraction_bits) - 1),
             exponent = (unsigned)(bias - (int)((bits >> 20) % 4));
    unsigned sign = (unsigned)(bits >> 30) & 1;
    uint16_t code = (uint16_t)((sign << format->exponent_bits | exponent) << format->fraction_bits | fraction);
    memcpy(to, &code, reference_bytes(type)); /* little-endian */
    return;
  }
  bool is_double = type == CUDA_R_64F || type == CUDA_C_64F;
  int parts = type == CUDA_C_32F || type == CUDA_C_64F ? 2 : 1;
  for (int i = 0; i < parts; i++) {
    double value = ldexp((double)(reference_random_bits() & 0xffffffffffff), -46) - 2;
    float narrow = (float)value;
    int32_t whole = (int32_t)(reference_random_bits() % 41) - 20;
    int8_t byte = (int8_t)whole;
    const void *from = is_double            ? (const void *)&value
                       : type == CUDA_R_32I ? (const void *)&whole
                       : type == CUDA_R_8I  ? (const void *)&byte
                                            : (const void *)&narrow;
    size_t bytes = reference_bytes(type) / (size_t)parts;
    memcpy(to + (size_t)i * bytes, from, bytes);
  }
}

static size_t matrix_bytes(const struct reference_matrix *matrix) {
  return (size_t)(matrix->stride * matrix->batch + 1) * reference_bytes(matrix->type);
}

static unsigned char *element_address(const struct reference_matrix *matrix, int64_t row, int64_t col, int64_t batch) {
  return matrix->data + (size_t)(batch * matrix->stride + col * matrix->ld + row) * reference_bytes(matrix->type);
}

struct reference_matrix reference_random(cudaDataType type, int64_t rows, int64_t cols, int64_t pad, int64_t batch) {
  struct reference_matrix matrix = {
      .type = type, .rows = rows, .cols = cols, .ld = (rows > 1 ? rows : 1) + pad, .batch = batch};
  matrix.stride = matrix.ld * cols + pad;
  matrix.data = aligned_alloc(64, (matrix_bytes(&matrix) + 63) & ~(size_t)63);
  if (!matrix.data)
    abort();
  memset(matrix.data, GUARD, matrix_bytes(&matrix));
  for (int64_t i = 0; i < batch; i++)
    for (int64_t col = 0; col < cols; col++)
      for (int64_t row = 0; row < rows; row++)
        random_element(element_address(&matrix, row, col, i), type);
  return matrix;
}

struct reference_matrix reference_copy(const struct reference_matrix *matrix) {
  struct reference_matrix copy = *matrix;
  copy.data = aligned_alloc(64, (matrix_bytes(matrix) + 63) & ~(size_t)63);
  if (!copy.data)
    abort();
  memcpy(copy.data, matrix->data, matrix_bytes(matrix));
  return copy;
}

void reference_free(struct reference_matrix *matrix) {
  free(matrix->data);
  matrix->data = NULL;
}

void reference_fill_nan(struct reference_matrix *matrix) {
  for (int64_t i = 0; i < matrix->batch; i++)
    for (int64_t col = 0; col < matrix->cols; col++)
      for (int64_t row = 0; row < matrix->rows; row++)
        memset(element_address(matrix, row, col, i), 0xff, reference_bytes(matrix->type)); /* NaN in all formats */
}

bool reference_guard_intact(const struct reference_matrix *matrix) {
  for (int64_t i = 0; i < matrix->batch; i++)
    for (int64_t col = 0; col < matrix->cols; col++)
      for (const unsigned char *p = element_address(matrix, matrix->rows, col, i);
           p < element_address(matrix, matrix->ld, col, i); p++)
        if (*p != GUARD)
          return false;
  return true;
}

struct complex_value reference_at(const struct reference_matrix *matrix, int64_t row, int64_t col, int64_t batch) {
  return reference_load(matrix->data, matrix->type, batch * matrix->stride + col * matrix->ld + row);
}

static struct complex_value multiply(struct complex_value x, struct complex_value y) {
  return (struct complex_value){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

static double magnitude_of(struct complex_value x) {
  return fabs(x.re) + fabs(x.im);
}

static struct complex_value operand(char trans, const struct reference_matrix *matrix, int64_t row, int64_t col,
                                    int64_t batch) {
  struct complex_value value = trans == 'N' ? reference_at(matrix, row, col, batch) : reference_at(matrix, col, row, batch);
  value.im = trans == 'C' ? -value.im : value.im;
  return value;
}

struct reference_element reference_gemm(char trans_a, char trans_b, int64_t k, struct complex_value alpha,
                                        const struct reference_matrix *a, const struct reference_matrix *b,
                                        struct complex_value beta, const struct reference_matrix *c, int64_t row,
                                        int64_t col, int64_t batch) {
  struct reference_element result = {{0, 0}, 0};
  for (int64_t p = 0; p < k && magnitude_of(alpha) != 0; p++) {
    struct complex_value x = operand(trans_a, a, row, p, batch), y = operand(trans_b, b, p, col, batch);
    struct complex_value term = multiply(alpha, multiply(x, y));
    result.value.re += term.re;
    result.value.im += term.im;
    result.magnitude += magnitude_of(alpha) * magnitude_of(x) * magnitude_of(y);
  }
  if (magnitude_of(beta) != 0) {
    struct complex_value term = multiply(beta, reference_at(c, row, col, batch));
    result.value.re += term.re;
    result.value.im += term.im;
    result.magnitude += magnitude_of(beta) * magnitude_of(reference_at(c, row, col, batch));
  }
  return result;
}

/* -------------------------------------------------------------------------------------------- what is given to the node */

enum { ACCESSES_MAX = 128 };
static struct vnode_access accesses[ACCESSES_MAX];
static size_t access_count;
int64_t operation_duration_ns;

/* Found before the node's own. */
enum vnode_status vnode_op_submit(struct vnode_stream *stream, const struct vnode_op *op);
enum vnode_status vnode_op_submit(struct vnode_stream *stream, const struct vnode_op *op) {
  enum vnode_status (*node)(struct vnode_stream *, const struct vnode_op *);
  void *symbol = dlsym(RTLD_NEXT, "vnode_op_submit");
  memcpy(&node, &symbol, sizeof symbol);
  ck_assert_uint_le(op->access_count, ACCESSES_MAX);
  access_count = op->access_count;
  if (access_count)
    memcpy(accesses, op->accesses, access_count * sizeof *accesses);
  operation_duration_ns = op->duration_ns;
  return node(stream, op);
}

static bool is_declared(const unsigned char *byte, bool write) {
  for (size_t i = 0; i < access_count; i++) {
    const struct vnode_access *access = &accesses[i];
    size_t offset = (size_t)(byte - (const unsigned char *)access->at);
    size_t row = access->rows > 1 ? offset / access->pitch : 0;
    if (access->write == write && byte >= (const unsigned char *)access->at && row < access->rows &&
        offset - row * access->pitch < access->row_bytes)
      return true;
  }
  return false;
}

void expect_access_bytes(const void *at, size_t bytes, bool touched, bool write) {
  for (size_t i = 0; i < bytes && vnode_config()->order != VNODE_ORDER_EAGER; i++)
    if (is_declared((const unsigned char *)at + i, write) != touched)
      ck_abort_msg("byte %zu of %zu is %sdeclared to be %s", i, bytes, touched ? "not " : "", write ? "written" : "read");
}

void expect_access(const struct reference_matrix *matrix, bool touched, bool write) {
  size_t element_bytes = reference_bytes(matrix->type);
  for (int64_t i = 0; i < matrix->batch; i++)
    for (int64_t col = 0; col < matrix->cols; col++) {
      const unsigned char *column = element_address(matrix, 0, col, i);
      expect_access_bytes(column, (size_t)matrix->rows * element_bytes, touched, write);
      expect_access_bytes(column + (size_t)matrix->rows * element_bytes, (size_t)(matrix->ld - matrix->rows) * element_bytes,
                          false, write);
    }
}

cublasStatus_t finish(cublasStatus_t status) {
  (void)vnode_device_synchronize(vnode_device_current());
  return status;
}
