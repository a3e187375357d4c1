/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that makes GEMMs in every way that b200opt converts, and checks each against FP64. It knows nothing of b200opt: what
 * differs between runs is the environment. usage: convert FORMAT SUITE [N]   N: steps of suite "training", and of suite
 * "asked" only every N-th; FORMAT: native, fp8, mxfp8, the format that its GEMMs are expected in, which sets the bounds. One
 * line per case on stdout, "ok" or "WRONG" first; exit status 1 when one is wrong.
 *
 * Bounds, per element of D: |D − D64| ≤ Σ|a||b|·|alpha|·(2u + u²) + rounding of the result, where u is the largest relative
 * error of an operand in its format (2^-4 E4M3, 2^-3 E5M2) plus what subnormals lose, and Frobenius: the root mean square of
 * it.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *format;
static int failures, cases;

#define CHECK(call)                                                                                                         \
  do {                                                                                                                      \
    int status_ = (int)(call);                                                                                              \
    if (status_ != 0) {                                                                                                     \
      printf("WRONG status %d of %s, line %d\n", status_, #call, __LINE__);                                                 \
      exit(2);                                                                                                              \
    }                                                                                                                       \
  } while (0)

/* ---- numbers */

static uint32_t random_state = 1;

static float uniform(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return (float)(random_state >> 8) * 0x1p-23f - 1;
}

static float half_to_float(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
  return bits & 0x8000 ? -value : value;
}

static uint16_t float_to_half(float value) { /* values of moderate size only */
  uint16_t sign = value < 0 ? 0x8000 : 0;
  float magnitude = fabsf(value);
  if (magnitude < 0x1p-14f)
    return (uint16_t)(sign | (uint16_t)lrintf(magnitude * 0x1p24f));
  int exponent;
  float fraction = frexpf(magnitude, &exponent);
  long mantissa = lrintf(fraction * 2048);
  return (uint16_t)(sign | (((exponent + 14) << 10) + (int)mantissa - 1024));
}

static size_t bytes_of(cudaDataType type) {
  return type == CUDA_R_32F ? 4 : 2;
}

static double load(const void *data, cudaDataType type, int64_t index) {
  if (type == CUDA_R_32F)
    return ((const float *)data)[index];
  if (type == CUDA_R_16F)
    return half_to_float(((const uint16_t *)data)[index]);
  uint32_t bits = (uint32_t)((const uint16_t *)data)[index] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void store(void *data, cudaDataType type, int64_t index, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (type == CUDA_R_32F)
    ((float *)data)[index] = value;
  else if (type == CUDA_R_16F)
    ((uint16_t *)data)[index] = float_to_half(value);
  else
    ((uint16_t *)data)[index] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- one case */

enum api { GEMMEX, GEMMEX_64, LT, STRIDED, STRIDED_64, API_COUNT };
static const char *const api_names[API_COUNT] = {"gemmex", "gemmex_64", "lt", "strided", "strided_64"};

struct gemm {
  enum api api;
  char ta, tb;
  int m, n, k, batch;
  int pad_a, pad_b, pad_c; /* leading dimensions beyond what is needed */
  cudaDataType type, out;
  cublasLtEpilogue_t epilogue;
  float alpha, beta;
  bool device_scalars;
  bool separate_c;
  bool shared_b; /* strided: one B for the whole batch */
  cublasComputeType_t compute;
  bool no_bias_type; /* the descriptor does not say it, as PyTorch's */
  int shift;         /* bytes that A and B begin behind an aligned address */
};

struct matrices {
  void *a, *b, *c, *d, *bias; /* device memory, which the program also fills through copies */
  void *host_a, *host_b, *host_c, *host_d, *host_bias;
  int64_t lda, ldb, ldc, stride_a, stride_b, stride_c, size_a, size_b, size_c;
};

static void *device_copy(const void *host, size_t bytes) {
  void *device;
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  return device;
}

static void *shifted_copy(const void *host, size_t bytes, int shift) {
  char *device;
  CHECK(cudaMalloc((void **)&device, bytes + (size_t)shift));
  CHECK(cudaMemcpy(device + shift, host, bytes, cudaMemcpyHostToDevice));
  return device + shift;
}

static void *filled(int64_t count, cudaDataType type, float scale) {
  void *data = malloc((size_t)count * bytes_of(type));
  for (int64_t i = 0; i < count; i++)
    store(data, type, i, uniform() * scale);
  return data;
}

static void place(const struct gemm *g, struct matrices *x) {
  x->lda = (g->ta == 'N' ? g->m : g->k) + g->pad_a;
  x->ldb = (g->tb == 'N' ? g->k : g->n) + g->pad_b;
  x->ldc = g->m + g->pad_c;
  x->stride_a = x->lda * (g->ta == 'N' ? g->k : g->m);
  x->stride_b = g->shared_b ? 0 : x->ldb * (g->tb == 'N' ? g->n : g->k);
  x->stride_c = x->ldc * g->n;
  x->size_a = x->stride_a * g->batch;
  x->size_b = x->ldb * (g->tb == 'N' ? g->n : g->k) * (g->shared_b ? 1 : g->batch);
  x->size_c = x->stride_c * g->batch;
}

static void make(const struct gemm *g, struct matrices *x) {
  place(g, x);
  cudaDataType bias_type = g->out == CUDA_R_32F ? CUDA_R_16BF : g->out;
  x->host_a = filled(x->size_a, g->type, 1);
  x->host_b = filled(x->size_b, g->type, 0.25f);
  x->host_c = filled(x->size_c, g->out, 2);
  x->host_d = filled(x->size_c, g->out, 100); /* must not be read, and must be written */
  x->host_bias = filled(g->m, bias_type, 3);
  x->a = shifted_copy(x->host_a, (size_t)x->size_a * bytes_of(g->type), g->shift);
  x->b = shifted_copy(x->host_b, (size_t)x->size_b * bytes_of(g->type), g->shift);
  x->c = device_copy(x->host_c, (size_t)x->size_c * bytes_of(g->out));
  x->d = g->separate_c ? device_copy(x->host_d, (size_t)x->size_c * bytes_of(g->out)) : x->c;
  x->bias = device_copy(x->host_bias, (size_t)g->m * bytes_of(bias_type));
}

static void end(const struct gemm *g, struct matrices *x) {
  void *device[] = {(char *)x->a - g->shift, (char *)x->b - g->shift, x->c, x->bias, g->separate_c ? x->d : NULL};
  void *host[] = {x->host_a, x->host_b, x->host_c, x->host_d, x->host_bias};
  for (int i = 0; i < 5; i++) {
    CHECK(cudaFree(device[i]));
    free(host[i]);
  }
}

static cublasOperation_t operation(char t) {
  return t == 'N' ? CUBLAS_OP_N : CUBLAS_OP_T;
}

static cublasLtMatrixLayout_t layout(cudaDataType type, int64_t rows, int64_t cols, int64_t ld, int batch, int64_t stride) {
  cublasLtMatrixLayout_t out;
  CHECK(cublasLtMatrixLayoutCreate(&out, type, (uint64_t)rows, (uint64_t)cols, ld));
  CHECK(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  CHECK(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
  return out;
}

static bool has_bias(cublasLtEpilogue_t epilogue) {
  return epilogue & CUBLASLT_EPILOGUE_BIAS;
}

static void call_lt(cublasHandle_t handle, cudaStream_t stream, const struct gemm *g, const struct matrices *x,
                    const void *alpha, const void *beta) {
  static void *workspace;
  enum { WORKSPACE = 1 << 20 };
  if (!workspace)
    CHECK(cudaMalloc(&workspace, WORKSPACE));
  cublasLtMatmulDesc_t desc;
  cublasOperation_t ta = operation(g->ta), tb = operation(g->tb);
  cublasLtPointerMode_t mode = g->device_scalars ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  CHECK(cublasLtMatmulDescCreate(&desc, g->compute, g->compute == CUBLAS_COMPUTE_16F ? CUDA_R_16F : CUDA_R_32F));
  CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
  CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
  CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
  CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &g->epilogue, sizeof g->epilogue));
  if (has_bias(g->epilogue)) {
    cudaDataType type = g->out == CUDA_R_32F ? CUDA_R_16BF : g->out;
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x->bias, sizeof x->bias));
    if (!g->no_bias_type)
      CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
  }
  cublasLtMatrixLayout_t a = layout(g->type, ta ? g->k : g->m, ta ? g->m : g->k, x->lda, g->batch, x->stride_a);
  cublasLtMatrixLayout_t b = layout(g->type, tb ? g->n : g->k, tb ? g->k : g->n, x->ldb, g->batch, x->stride_b);
  cublasLtMatrixLayout_t c = layout(g->out, g->m, g->n, x->ldc, g->batch, x->stride_c);
  CHECK(cublasLtMatmul((cublasLtHandle_t)handle, desc, alpha, x->a, a, x->b, b, beta, x->c, c, x->d, c, NULL, workspace,
                       WORKSPACE, stream));
  CHECK(cublasLtMatrixLayoutDestroy(a));
  CHECK(cublasLtMatrixLayoutDestroy(b));
  CHECK(cublasLtMatrixLayoutDestroy(c));
  CHECK(cublasLtMatmulDescDestroy(desc));
}

static void call(cublasHandle_t handle, cudaStream_t stream, const struct gemm *g, const struct matrices *x,
                 const void *alpha, const void *beta) {
  cublasOperation_t ta = operation(g->ta), tb = operation(g->tb);
  int lda = (int)x->lda, ldb = (int)x->ldb, ldc = (int)x->ldc;
  CHECK(cublasSetPointerMode(handle, g->device_scalars ? CUBLAS_POINTER_MODE_DEVICE : CUBLAS_POINTER_MODE_HOST));
  switch (g->api) {
  case GEMMEX:
    CHECK(cublasGemmEx(handle, ta, tb, g->m, g->n, g->k, alpha, x->a, g->type, lda, x->b, g->type, ldb, beta, x->c, g->out,
                       ldc, g->compute, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
    break;
  case GEMMEX_64:
    CHECK(cublasGemmEx_64(handle, ta, tb, g->m, g->n, g->k, alpha, x->a, g->type, lda, x->b, g->type, ldb, beta, x->c,
                          g->out, ldc, g->compute, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
    break;
  case STRIDED:
    CHECK(cublasGemmStridedBatchedEx(handle, ta, tb, g->m, g->n, g->k, alpha, x->a, g->type, lda, x->stride_a, x->b, g->type,
                                     ldb, x->stride_b, beta, x->c, g->out, ldc, x->stride_c, g->batch, g->compute,
                                     CUBLAS_GEMM_DEFAULT_TENSOR_OP));
    break;
  case STRIDED_64:
    CHECK(cublasGemmStridedBatchedEx_64(handle, ta, tb, g->m, g->n, g->k, alpha, x->a, g->type, lda, x->stride_a, x->b,
                                        g->type, ldb, x->stride_b, beta, x->c, g->out, ldc, x->stride_c, g->batch,
                                        g->compute, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
    break;
  default:
    call_lt(handle, stream, g, x, alpha, beta);
  }
}

/* ---- the reference */

static double operand(const void *data, cudaDataType type, bool transposed, int64_t ld, int64_t row, int64_t col) {
  return load(data, type, transposed ? row * ld + col : col * ld + row);
}

static double activation(cublasLtEpilogue_t epilogue, double x) {
  if (epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
    return x > 0 ? x : 0;
  if (epilogue == CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS)
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  return x;
}

/* Relative error that quantising may add to a product of two elements, at most; E5M2 for the gradient of FP8. */
static double operand_error(const struct gemm *g) {
  bool gradient = g->batch == 1 && !(g->ta == 'T' && g->tb == 'N') && !(g->ta == 'T' && g->tb == 'T');
  double a = 0x1p-4, b = gradient && strcmp(format, "fp8") == 0 ? 0x1p-3 : 0x1p-4;
  return strcmp(format, "native") == 0 ? 0 : a + b + a * b;
}

static void check(const struct gemm *g, const struct matrices *x, const char *name) {
  size_t bytes = (size_t)x->size_c * bytes_of(g->out);
  void *got = malloc(bytes);
  CHECK(cudaMemcpy(got, x->d, bytes, cudaMemcpyDeviceToHost));
  double worst = 0, error_sum = 0, sum = 0, unit = g->out == CUDA_R_32F ? 0x1p-20 : g->out == CUDA_R_16F ? 0x1p-10 : 0x1p-8;
  cudaDataType bias_type = g->out == CUDA_R_32F ? CUDA_R_16BF : g->out;
  for (int batch = 0; batch < g->batch; batch++)
    for (int j = 0; j < g->n; j++)
      for (int i = 0; i < g->m; i++) {
        const char *a = (const char *)x->host_a + batch * x->stride_a * (int64_t)bytes_of(g->type);
        const char *b = (const char *)x->host_b + batch * x->stride_b * (int64_t)bytes_of(g->type);
        double product = 0, magnitude = 0;
        for (int l = 0; l < g->k; l++) {
          double term = operand(a, g->type, g->ta != 'N', x->lda, i, l) * operand(b, g->type, g->tb != 'N', x->ldb, l, j);
          product += term;
          magnitude += fabs(term);
        }
        int64_t at = batch * x->stride_c + j * x->ldc + i;
        double c = g->beta != 0 ? g->beta * load(x->host_c, g->out, at) : 0;
        double bias = has_bias(g->epilogue) ? load(x->host_bias, bias_type, i) : 0;
        double before = g->alpha * product + c + bias, wanted = activation(g->epilogue, before);
        /* 1.13: the steepest slope of GELU. Subnormals: values below 2^-6 of 448ths of the largest lose up to 2^-10 of it.
         */
        double bound = 1.13 * fabs((double)g->alpha) * (magnitude * operand_error(g) * 1.05) +
                       (fabs(wanted) + fabs(c) + fabs(bias) + fabs(g->alpha) * magnitude * 0x1p-10) * unit + 1e-6;
        double error = fabs(load(got, g->out, at) - wanted);
        if (!(error / bound <= worst))
          worst = error / bound;
        error_sum += error * error;
        sum += wanted * wanted;
      }
  /* What lies between the columns belongs to somebody else. */
  bool kept = true;
  for (int64_t col = 0; col < (int64_t)g->n * g->batch; col++)
    for (int64_t i = g->m; i < x->ldc; i++)
      kept = kept &&
             load(got, g->out, col * x->ldc + i) == load(g->separate_c ? x->host_d : x->host_c, g->out, col * x->ldc + i);
  double relative = sqrt(error_sum / sum);
  bool right = worst <= 1 && kept;
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ ((unsigned char *)got)[i]) * 1099511628211u;
  printf("%s %s | rel %.5f worst/bound %.3f hash %016llx%s\n", right ? "ok" : "WRONG", name, relative, worst,
         (unsigned long long)hash, kept ? "" : " overwrote its neighbour");
  failures += !right;
  cases++;
  free(got);
}

static const char *type_name(cudaDataType type) {
  return type == CUDA_R_32F ? "f32" : type == CUDA_R_16F ? "f16" : "bf16";
}

static void run(cublasHandle_t handle, cudaStream_t stream, const struct gemm *g) {
  struct matrices x;
  float scalars[2] = {g->alpha, g->beta}, *device_scalars;
  char name[200];
  snprintf(name, sizeof name, "%s %c%c %dx%dx%d b%d %s->%s pad %d,%d,%d epilogue %d alpha %g beta %g%s%s", api_names[g->api],
           g->ta, g->tb, g->m, g->n, g->k, g->batch, type_name(g->type), type_name(g->out), g->pad_a, g->pad_b, g->pad_c,
           (int)g->epilogue, (double)g->alpha, (double)g->beta, g->device_scalars ? " device" : "",
           g->separate_c ? " C!=D" : "");
  random_state = 1;
  for (const char *letter = name; *letter; letter++) /* equal cases have equal data */
    random_state = random_state * 31u + (unsigned char)*letter;
  make(g, &x);
  CHECK(cudaMalloc((void **)&device_scalars, sizeof scalars));
  CHECK(cudaMemcpy(device_scalars, scalars, sizeof scalars, cudaMemcpyHostToDevice));
  CHECK(cudaDeviceSynchronize());
  const float *from = g->device_scalars ? device_scalars : scalars;
  call(handle, stream, g, &x, from, from + 1);
  CHECK(cudaStreamSynchronize(stream));
  check(g, &x, name);
  CHECK(cudaFree(device_scalars));
  end(g, &x);
}

/* ---- suites */

static const struct gemm plain = {.api = GEMMEX,
                                  .ta = 'T',
                                  .tb = 'N',
                                  .m = 64,
                                  .n = 48,
                                  .k = 96,
                                  .batch = 1,
                                  .type = CUDA_R_16BF,
                                  .out = CUDA_R_16BF,
                                  .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                  .alpha = 1,
                                  .compute = CUBLAS_COMPUTE_32F};

static void each_layout(cublasHandle_t handle, cudaStream_t stream, struct gemm g) {
  static const char layouts[4][2] = {{'T', 'N'}, {'N', 'N'}, {'N', 'T'}, {'T', 'T'}};
  for (int i = 0; i < 4; i++) {
    g.ta = layouts[i][0];
    g.tb = layouts[i][1];
    run(handle, stream, &g);
  }
}

static void suite_types(cublasHandle_t handle, cudaStream_t stream) {
  static const cudaDataType types[][2] = {
      {CUDA_R_16BF, CUDA_R_16BF}, {CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16F, CUDA_R_16F}, {CUDA_R_16F, CUDA_R_32F}};
  for (int api = GEMMEX; api <= LT; api++)
    for (int i = 0; i < 4; i++) {
      struct gemm g = plain;
      g.api = (enum api)api;
      g.type = types[i][0];
      g.out = types[i][1];
      each_layout(handle, stream, g);
    }
}

static void suite_scalars(cublasHandle_t handle, cudaStream_t stream) {
  static const float scalars[][2] = {{1, 0}, {1, 1}, {-0.5f, 0}, {2, -1.5f}, {0, 1}};
  for (int api = GEMMEX; api <= LT; api += LT)
    for (int device = 0; device < 2; device++)
      for (int separate = 0; separate <= (api == LT); separate++)
        for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
          struct gemm g = plain;
          g.api = (enum api)api;
          g.alpha = scalars[i][0];
          g.beta = scalars[i][1];
          g.device_scalars = device;
          g.separate_c = separate;
          g.out = i % 2 ? CUDA_R_32F : CUDA_R_16BF;
          run(handle, stream, &g);
          g.ta = 'N';
          g.tb = 'T';
          run(handle, stream, &g);
        }
}

static void suite_epilogues(cublasHandle_t handle, cudaStream_t stream) {
  static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS,
                                                 CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS};
  static const cudaDataType outs[] = {CUDA_R_16BF, CUDA_R_32F};
  for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++)
    for (int out = 0; out < 2; out++) {
      struct gemm g = plain;
      g.api = LT;
      g.epilogue = epilogues[i];
      g.out = outs[out];
      g.beta = (float)(i % 2);
      if (has_bias(g.epilogue) && g.out == CUDA_R_32F && strcmp(format, "native") == 0)
        continue; /* a BF16 bias of an FP32 result is for narrow operands only */
      each_layout(handle, stream, g);
    }
}

static void suite_sizes(cublasHandle_t handle, cudaStream_t stream) {
  static const int sizes[][3] = {{16, 1, 32},     {16, 7, 64},    {16, 16, 32}, {48, 17, 32}, {8, 16, 32},   {128, 128, 128},
                                 {144, 127, 160}, {272, 130, 96}, {1, 16, 64},  {80, 33, 48}, {16, 16, 1056}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int pad = 0; pad < 2; pad++) {
      struct gemm g = plain;
      g.m = sizes[i][0];
      g.n = sizes[i][1];
      g.k = sizes[i][2];
      g.pad_a = pad ? 3 : 0;
      g.pad_b = pad ? 5 : 0;
      g.pad_c = pad ? 8 : 0;
      each_layout(handle, stream, g);
    }
}

static void suite_batches(cublasHandle_t handle, cudaStream_t stream) {
  for (int api = STRIDED; api <= STRIDED_64; api++)
    for (int shared = 0; shared < 2; shared++) {
      struct gemm g = plain;
      g.api = (enum api)api;
      g.batch = 3;
      g.shared_b = shared;
      g.pad_a = shared ? 16 : 0;
      each_layout(handle, stream, g);
    }
  struct gemm g = plain;
  g.api = LT;
  g.batch = 2;
  each_layout(handle, stream, g);
}

/* Larger than a small B200OPT_WORKSPACE_MB: cut along columns, and along rows. */
static void suite_cuts(cublasHandle_t handle, cudaStream_t stream) {
  static const int sizes[][3] = {{64, 3000, 1024}, {3008, 48, 1024}};
  for (int i = 0; i < 2; i++) {
    struct gemm g = plain;
    g.m = sizes[i][0];
    g.n = sizes[i][1];
    g.k = sizes[i][2];
    g.n = g.n / 8 * 8;
    run(handle, stream, &g);
    g.ta = 'N';
    run(handle, stream, &g);
    g.ta = 'T';
    g.api = LT;
    g.epilogue = CUBLASLT_EPILOGUE_BIAS;
    run(handle, stream, &g);
  }
}

/* The same GEMM again and again, and others between: what is remembered is right. */
static void suite_again(cublasHandle_t handle, cudaStream_t stream) {
  for (int i = 0; i < 12; i++) {
    struct gemm g = plain;
    run(handle, stream, &g);
    g.m = 64 + 64 * (i % 3);
    g.api = i % 2 ? LT : GEMMEX;
    g.epilogue = i % 2 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    run(handle, stream, &g);
  }
}

/* What tests make calls fail in: the same few GEMMs three times. */
static void suite_faults(cublasHandle_t handle, cudaStream_t stream) {
  for (int i = 0; i < 3; i++) {
    struct gemm g = plain;
    run(handle, stream, &g);
    g.ta = 'N';
    g.beta = 1;
    g.out = CUDA_R_32F;
    run(handle, stream, &g);
    g = plain;
    g.api = LT;
    g.epilogue = CUBLASLT_EPILOGUE_BIAS;
    run(handle, stream, &g);
    g = plain;
    g.m = 128;
    g.api = STRIDED;
    g.batch = 2;
    run(handle, stream, &g);
  }
}

static uint64_t bits_of(const struct gemm *g, const struct matrices *x) {
  size_t bytes = (size_t)x->size_c * bytes_of(g->out);
  unsigned char *got = malloc(bytes);
  uint64_t hash = 14695981039346656037u;
  CHECK(cudaMemcpy(got, x->d, bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ got[i]) * 1099511628211u;
  free(got);
  return hash;
}

static void expect_bits(const char *what, uint64_t got, uint64_t wanted) {
  printf("%s %s | rel 0 worst/bound 0 hash %016llx\n", got == wanted ? "ok" : "WRONG", what, (unsigned long long)got);
  failures += got != wanted;
  cases++;
}

static void replay(cudaGraphExec_t exec, cudaStream_t stream, const struct gemm *g, const struct matrices *x) {
  CHECK(cudaMemsetAsync(x->d, 0, (size_t)x->size_c * bytes_of(g->out), stream));
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
}

/* A GEMM in a graph has the bits of the same GEMM outside, at every replay, whatever ran in between; and a graph that is
   captured when nothing has run before has those of the original precision. */
static void capture(cublasHandle_t handle, cudaStream_t stream, bool before) {
  struct gemm g = plain, other = plain;
  struct matrices x, y;
  float scalars[2] = {1, 0};
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  other.m = 256;
  random_state = 7;
  make(&g, &x);
  make(&other, &y);
  if (before)
    call(handle, stream, &g, &x, scalars, scalars + 1);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  call(handle, stream, &g, &x, scalars, scalars + 1);
  call(handle, stream, &other, &y, scalars, scalars + 1);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  replay(exec, stream, &g, &x);
  uint64_t first = bits_of(&g, &x);
  check(&g, &x, before ? "replayed" : "captured first");
  check(&other, &y, "replayed, too");
  replay(exec, stream, &g, &x);
  expect_bits("replayed again", bits_of(&g, &x), first);
  call(handle, stream, &other, &y, scalars, scalars + 1);
  CHECK(cudaGraphLaunch(exec, stream)); /* right behind eager work on the same stream */
  CHECK(cudaStreamSynchronize(stream));
  expect_bits("replayed behind other work", bits_of(&g, &x), first);
  call(handle, stream, &g, &x, scalars, scalars + 1);
  CHECK(cudaStreamSynchronize(stream));
  if (before)
    expect_bits("not captured", bits_of(&g, &x), first);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  end(&g, &x);
  end(&other, &y);
}

static void suite_graph(cublasHandle_t handle, cudaStream_t stream) {
  capture(handle, stream, false);
  capture(handle, stream, true);
}

/* ---- suites for the guard */

static int64_t index_b(const struct gemm *g, const struct matrices *x, int l, int j) {
  return g->tb == 'N' ? j * x->ldb + l : l * x->ldb + j;
}

static void scale_b(const struct gemm *g, const struct matrices *x, int l, int j, float factor) {
  int64_t at = index_b(g, x, l, j);
  store(x->host_b, g->type, at, (float)load(x->host_b, g->type, at) * factor);
}

/* One channel of all that K runs over. */
static void outliers(const struct gemm *g, const struct matrices *x, float factor) {
  for (int j = 0; j < g->n; j++)
    scale_b(g, x, 5, j, factor);
}

/* One in every block of 32, where A is zero: only the others reach D, and they share their block's scale with it. */
static void hidden_outliers(const struct gemm *g, const struct matrices *x, float factor) {
  for (int l = 5; l < g->k; l += 32) {
    for (int j = 0; j < g->n; j++)
      scale_b(g, x, l, j, factor);
    for (int i = 0; i < g->m; i++)
      store(x->host_a, g->type, g->ta == 'N' ? l * x->lda + i : i * x->lda + l, 0);
  }
}

/* Every other column: tokens of a dgrad, outputs of a wgrad. */
static void mixture(const struct gemm *g, const struct matrices *x, float factor) {
  for (int j = 0; j < g->n; j += 2)
    for (int l = 0; l < g->k; l++)
      scale_b(g, x, l, j, factor);
}

/* A nearly alike along K (by the factor), and every eighth column of B of alternating sign: D's is small there, beside
   errors as large as everywhere. */
static void cancelling(const struct gemm *g, const struct matrices *x, float factor) {
  for (int l = 0; l < g->k; l++)
    for (int i = 0; i < g->m; i++) {
      int64_t at = g->ta == 'N' ? l * x->lda + i : i * x->lda + l;
      store(x->host_a, g->type, at, 1 + (float)load(x->host_a, g->type, at) * factor);
    }
  for (int j = 0; j < g->n; j += 8)
    for (int l = 1; l < g->k; l += 2)
      store(x->host_b, g->type, index_b(g, x, l, j), -(float)load(x->host_b, g->type, index_b(g, x, l - 1, j)));
}

static void one_element(const struct gemm *g, const struct matrices *x, float value) {
  store(x->host_b, g->type, index_b(g, x, 7, 3), value);
}

/* Whether a number in B that is none shows in all of its column of D. */
static bool shows(const struct gemm *g, const struct matrices *x) {
  bool finite = false;
  uint16_t *got = malloc((size_t)x->size_c * 2);
  CHECK(cudaMemcpy(got, x->d, (size_t)x->size_c * 2, cudaMemcpyDeviceToHost));
  for (int j = 0; j < g->n; j++)
    for (int l = 0; l < g->k; l++)
      for (int i = 0; i < g->m && !isfinite(load(x->host_b, g->type, index_b(g, x, l, j))); i++)
        finite |= isfinite(load(got, g->out, j * x->ldc + i));
  free(got);
  return !finite;
}

static const struct guarded {
  const char *name;
  char ta, tb;
  void (*spoil)(const struct gemm *g, const struct matrices *x, float factor);
  float factor;
  int shift, n; /* n: 0 for the usual */
} guarded[] = {
    {"healthy", 'T', 'N', outliers, 1, 0, 0},
    {"outliers_1e4", 'T', 'N', outliers, 1e4f, 0, 0},
    {"outliers_1e5", 'T', 'N', outliers, 1e5f, 0, 0},
    {"hidden", 'T', 'N', hidden_outliers, 1e5f, 0, 0},
    {"hidden_shifted", 'T', 'N', hidden_outliers, 1e5f, 2, 0},
    {"hidden_wide", 'N', 'T', hidden_outliers, 3e9f, 0, 208},
    {"hidden_dgrad", 'N', 'N', hidden_outliers, 3e9f, 0, 0},
    {"hidden_wgrad", 'N', 'T', hidden_outliers, 3e9f, 0, 0},
    {"mixture_dgrad", 'N', 'N', mixture, 1e-6f, 0, 0},
    {"mixture_wgrad", 'N', 'T', mixture, 1e-6f, 0, 0},
    {"deep_mixture_dgrad", 'N', 'N', mixture, 1e-9f, 0, 0},
    {"deep_mixture_wgrad", 'N', 'T', mixture, 1e-9f, 0, 0},
    {"cancelling_wgrad", 'N', 'T', cancelling, 0x1p-6f, 0, 0},
    {"nan", 'T', 'N', one_element, NAN, 0, 0},
    {"inf", 'T', 'N', one_element, INFINITY, 0, 0},
};

/* One GEMM 600 times. Says when the result's bits change: the guard has taken the shape out of a format. */
static void suite_guarded(cublasHandle_t handle, cudaStream_t stream, const struct guarded *row) {
  struct gemm g = plain;
  struct matrices x;
  float scalars[2] = {1, 0};
  uint64_t bits = 0;
  random_state = 11;
  g.m = 80;
  g.n = row->n ? row->n : g.n;
  g.shift = row->shift;
  g.ta = row->ta;
  g.tb = row->tb;
  make(&g, &x);
  row->spoil(&g, &x, row->factor);
  CHECK(cudaMemcpy(x.a, x.host_a, (size_t)x.size_a * bytes_of(g.type), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(x.b, x.host_b, (size_t)x.size_b * bytes_of(g.type), cudaMemcpyHostToDevice));
  for (int i = 0; i < 600; i++) {
    call(handle, stream, &g, &x, scalars, scalars + 1);
    CHECK(cudaStreamSynchronize(stream));
    uint64_t now = bits_of(&g, &x);
    bool right = now == bits || shows(&g, &x);
    if (now != bits)
      printf("%s %s call %d | rel 0 worst/bound 0 hash %016llx\n", right ? "ok" : "WRONG", row->name, i,
             (unsigned long long)now);
    failures += !right;
    bits = now;
    cases++;
  }
  end(&g, &x);
}

static float normal(void) { /* nearly */
  float sum = 0;
  for (int i = 0; i < 6; i++)
    sum += uniform();
  return sum * 0.7071f;
}

/* An operand whose outer index and K are of different magnitudes: e to a normal number times the spread. */
static void fill_spread(const struct gemm *g, void *data, bool is_a, const struct matrices *x, const float spread[2],
                        float magnitude) {
  int outer = is_a ? g->m : g->n;
  bool k_fast = is_a ? g->ta != 'N' : g->tb == 'N';
  int64_t ld = is_a ? x->lda : x->ldb;
  float *of_k = malloc((size_t)g->k * sizeof *of_k);
  for (int l = 0; l < g->k; l++)
    of_k[l] = expf(normal() * spread[1]);
  for (int o = 0; o < outer; o++) {
    float of_outer = expf(normal() * spread[0]) * magnitude;
    for (int l = 0; l < g->k; l++)
      store(data, g->type, k_fast ? o * ld + l : l * ld + o, normal() * of_outer * of_k[l]);
  }
  free(of_k);
}

/* Steps of training: the three GEMMs of a Linear of 96 inputs and 128 outputs, twice a step, with new activations (channels
   differ) and new gradients (tokens differ, and are small) each time. */
static void suite_training(cublasHandle_t handle, cudaStream_t stream, int steps) {
  enum { TOKENS = 64, INPUTS = 96, OUTPUTS = 128 };
  static const struct {
    struct gemm gemm;
    float a[2], b[2]; /* spreads of the outer index and of K */
    float of_b;
  } roles[] = {
      {{.ta = 'T', .tb = 'N', .m = OUTPUTS, .n = TOKENS, .k = INPUTS}, {0.2f, 0.2f}, {0.2f, 0.5f}, 1},
      {{.ta = 'N', .tb = 'N', .m = INPUTS, .n = TOKENS, .k = OUTPUTS}, {0.2f, 0.2f}, {1.5f, 0.5f}, 1e-5f},
      {{.ta = 'N', .tb = 'T', .m = INPUTS, .n = OUTPUTS, .k = TOKENS}, {0.5f, 0.2f}, {0.5f, 1.5f}, 1e-5f},
  };
  float scalars[2] = {1, 0};
  struct gemm g[3];
  struct matrices x[3];
  for (int i = 0; i < 3; i++) {
    g[i] = plain;
    g[i].ta = roles[i].gemm.ta;
    g[i].tb = roles[i].gemm.tb;
    g[i].m = roles[i].gemm.m;
    g[i].n = roles[i].gemm.n;
    g[i].k = roles[i].gemm.k;
    make(&g[i], &x[i]);
  }
  for (int i = 0; i < steps * 6; i++) {
    int role = i % 3;
    fill_spread(&g[role], x[role].host_a, true, &x[role], roles[role].a, 1);
    fill_spread(&g[role], x[role].host_b, false, &x[role], roles[role].b, roles[role].of_b);
    CHECK(cudaMemcpy(x[role].a, x[role].host_a, (size_t)x[role].size_a * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(x[role].b, x[role].host_b, (size_t)x[role].size_b * 2, cudaMemcpyHostToDevice));
    call(handle, stream, &g[role], &x[role], scalars, scalars + 1);
    CHECK(cudaStreamSynchronize(stream));
    cases++;
  }
  for (int i = 0; i < 3; i++)
    end(&g[i], &x[i]);
}

/* ---- everything that PyTorch can ask for, without a look at the numbers */

/* How operands can lie in PyTorch's memory: in wider matrices, and at any element; addresses in bytes. */
static const struct placing {
  int pad_a, pad_b, pad_c, shift_a, shift_b, shift_d, shift_bias;
  bool gap; /* between the matrices of a batch, as between the heads of packed projections */
} placings[] = {
    {0},
    {.pad_a = 3, .pad_b = 5},
    {.pad_c = 8},
    {.pad_c = 4},
    {.pad_c = 1},
    {.shift_a = 4, .shift_b = 8},
    {.shift_d = 4},
    {.shift_d = 8},
    {.shift_bias = 4},
    {.gap = true},
};
static const int asked_sizes[][3] = {{16, 16, 32}, {48, 17, 32}, {32, 1, 64}, {24, 24, 96}, {8, 16, 64},  {12, 16, 64},
                                     {6, 16, 64},  {1, 16, 64},  {1, 1, 64},  {32, 32, 48}, {32, 16, 40}, {16, 130, 32}};
static const struct {
  cudaDataType type, out;
  cublasComputeType_t compute;
} asked_types[] = {
    {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F},         {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F},           {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F},           {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
};
static const cublasLtEpilogue_t asked_epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                     CUBLASLT_EPILOGUE_RELU,    CUBLASLT_EPILOGUE_RELU_BIAS,
                                                     CUBLASLT_EPILOGUE_GELU,    CUBLASLT_EPILOGUE_GELU_BIAS};

struct asking {
  cublasHandle_t handle;
  cudaStream_t stream;
  char *memory[4]; /* A, B, D, bias: zeros, large enough for all */
  int every, count;
};

/* One GEMM, in zeros; the line says what was asked. Of `every` such calls only one is made. */
static void ask(struct asking *asking, struct gemm g, const struct placing *placing) {
  static const float scalars[2] = {0, 1};
  static const uint16_t half_scalars[2] = {0, 0x3c00};
  struct matrices x;
  if (asking->count++ % asking->every)
    return;
  g.pad_a = placing->pad_a;
  g.pad_b = placing->pad_b;
  g.pad_c = g.n == 1 ? 0 : placing->pad_c; /* PyTorch gives a single column the least leading dimension */
  g.no_bias_type = true;
  place(&g, &x);
  if (placing->gap) {
    x.stride_a += x.lda;
    x.stride_b += x.ldb;
  }
  x.a = asking->memory[0] + placing->shift_a;
  x.b = asking->memory[1] + placing->shift_b;
  x.c = x.d = asking->memory[2] + placing->shift_d;
  x.bias = asking->memory[3] + placing->shift_bias;
  printf("asked %s %c%c m=%d n=%d k=%d batch=%d type=%s out=%s compute=%d epilogue=%d ldd=%d d=%d bias=%d gap=%d\n",
         api_names[g.api], g.ta, g.tb, g.m, g.n, g.k, g.batch, type_name(g.type), type_name(g.out), (int)g.compute,
         (int)g.epilogue, (int)x.ldc, placing->shift_d % 16, placing->shift_bias % 16, placing->gap);
  const void *one = g.compute == CUBLAS_COMPUTE_16F ? (const void *)(half_scalars + 1) : scalars + 1;
  const void *beta =
      g.compute == CUBLAS_COMPUTE_16F ? (const void *)(half_scalars + (g.beta != 0)) : scalars + (g.beta != 0);
  call(asking->handle, asking->stream, &g, &x, one, beta);
  cases++;
}

static void ask_placings(struct asking *asking, const struct gemm *g) {
  for (size_t i = 0; i < sizeof placings / sizeof *placings; i++)
    if ((g->batch > 1 || !placings[i].gap) && (has_bias(g->epilogue) || !placings[i].shift_bias))
      ask(asking, *g, &placings[i]);
}

static void ask_shapes(struct asking *asking, struct gemm g) {
  static const char layouts[4][2] = {{'T', 'N'}, {'N', 'N'}, {'N', 'T'}, {'T', 'T'}};
  for (size_t size = 0; size < sizeof asked_sizes / sizeof *asked_sizes; size++)
    for (int layout = 0; layout < 4; layout++)
      for (int beta = 0; beta < 2; beta++) {
        g.m = asked_sizes[size][0];
        g.n = asked_sizes[size][1];
        g.k = asked_sizes[size][2];
        g.ta = layouts[layout][0];
        g.tb = layouts[layout][1];
        g.beta = (float)beta;
        ask_placings(asking, &g);
      }
}

static void suite_asked(cublasHandle_t handle, cudaStream_t stream, int every) {
  enum { BYTES = 1 << 20 };
  struct asking asking = {.handle = handle, .stream = stream, .every = every};
  for (int i = 0; i < 4; i++) {
    CHECK(cudaMalloc((void **)&asking.memory[i], BYTES));
    CHECK(cudaMemset(asking.memory[i], 0, BYTES));
  }
  for (int api = 0; api < API_COUNT; api++)
    for (size_t type = 0; type < sizeof asked_types / sizeof *asked_types; type++)
      for (size_t epilogue = 0; epilogue < (api == LT ? sizeof asked_epilogues / sizeof *asked_epilogues : 1); epilogue++)
        for (int batch = api < LT ? 1 : 3; batch > 0; batch -= 2) {
          struct gemm g = plain;
          g.api = (enum api)api;
          g.type = asked_types[type].type;
          g.out = asked_types[type].out;
          g.compute = asked_types[type].compute;
          g.epilogue = asked_epilogues[epilogue];
          g.batch = batch;
          ask_shapes(&asking, g);
          g.shared_b = true;
          if (batch > 1)
            ask_shapes(&asking, g);
        }
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < 4; i++)
    CHECK(cudaFree(asking.memory[i]));
}

/* The job takes all of the device after a converted GEMM, frees it, and goes on. */
static void suite_full(cublasHandle_t handle, cudaStream_t stream) {
  enum { BLOCKS = 256 };
  static const size_t sizes[] = {(size_t)64 << 20, (size_t)2 << 20};
  void *blocks[BLOCKS];
  size_t granted = 0;
  int count = 0;
  run(handle, stream, &plain);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    while (count < BLOCKS && cudaMalloc(&blocks[count], sizes[i]) == cudaSuccess) {
      granted += sizes[i];
      count++;
    }
  cudaGetLastError();
  printf("granted %zu\n", granted);
  while (count > 0)
    CHECK(cudaFree(blocks[--count]));
  run(handle, stream, &plain);
}

static const struct {
  const char *name;
  void (*run)(cublasHandle_t handle, cudaStream_t stream);
  bool alone; /* not part of "all" */
} suites[] = {{"types", suite_types, false}, {"scalars", suite_scalars, false}, {"epilogues", suite_epilogues, false},
              {"sizes", suite_sizes, false}, {"batches", suite_batches, false}, {"cuts", suite_cuts, false},
              {"again", suite_again, false}, {"faults", suite_faults, true},    {"graph", suite_graph, true},
              {"full", suite_full, true}};

int main(int argc, char **argv) {
  cublasHandle_t handle;
  cudaStream_t stream;
  if (argc != 3 && argc != 4) {
    fprintf(stderr, "usage: convert FORMAT SUITE [N]\n");
    return 2;
  }
  format = argv[1];
  CHECK(cudaSetDevice(0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cublasCreate(&handle));
  CHECK(cublasSetStream(handle, stream));
  for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
    if ((strcmp(argv[2], "all") == 0 && !suites[i].alone) || strcmp(argv[2], suites[i].name) == 0)
      suites[i].run(handle, stream);
  for (size_t i = 0; i < sizeof guarded / sizeof *guarded; i++)
    if (strcmp(argv[2], guarded[i].name) == 0)
      suite_guarded(handle, stream, &guarded[i]);
  if (strcmp(argv[2], "asked") == 0)
    suite_asked(handle, stream, argc == 4 ? atoi(argv[3]) : 1);
  if (strcmp(argv[2], "training") == 0)
    suite_training(handle, stream, argc == 4 ? atoi(argv[3]) : 200);
  CHECK(cublasDestroy(handle));
  printf("%d cases, %d wrong\n", cases, failures);
  return failures || cases == 0;
}
