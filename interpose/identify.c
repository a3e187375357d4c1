/* SPDX-License-Identifier: Apache-2.0 */
#include <cublas_v2.h>

#include "interpose/identify.h"
#include "interpose/real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

static const struct module {
  const char *prefix; /* of the module's file name; the first that fits */
  enum b200_owner owner;
  bool is_cache;
} modules[] = {
    {"libnccl", B200_OWNER_NCCL, false},     {"libcublas", B200_OWNER_CUBLAS, false},
    {"libcudnn", B200_OWNER_CUDNN, false},   {"libb200opt", B200_OWNER_B200OPT, false},
    {"libtorch", B200_OWNER_PYTORCH, false}, {"libc10_cuda", B200_OWNER_PYTORCH, true},
    {"libc10", B200_OWNER_PYTORCH, false},   {"libcudart", B200_OWNER_PYTORCH, false},
    {"", B200_OWNER_OTHER, false},
};
enum { MODULE_OTHER = sizeof modules / sizeof *modules - 1 };

static uint64_t find_module(const void *address) {
  Dl_info info;
  uint64_t i = 0;
  if (!dladdr(address, &info) || !info.dli_fname)
    return MODULE_OTHER;
  const char *slash = strrchr(info.dli_fname, '/');
  const char *file = slash ? slash + 1 : info.dli_fname;
  while (strncmp(file, modules[i].prefix, strlen(modules[i].prefix)) != 0)
    i++;
  return i;
}

/* Direct-mapped cache of pages: page number and module in one word, so that no lock is needed. A library that is unloaded
   and another mapped in its place keeps the old answer: vendors' libraries are never unloaded by PyTorch. */
static const struct module *module_of(const void *return_address) {
  static _Atomic uint64_t cache[256];
  uint64_t page = (uint64_t)(uintptr_t)return_address >> 12;
  _Atomic uint64_t *entry = &cache[page % 256];
  uint64_t cached = atomic_load_explicit(entry, memory_order_relaxed);
  if (cached >> 8 == page && (cached & 0xff) != 0)
    return &modules[(cached & 0xff) - 1];
  uint64_t number = find_module(return_address);
  atomic_store_explicit(entry, page << 8 | (number + 1), memory_order_relaxed);
  return &modules[number];
}

enum b200_owner b200_owner_of(const void *return_address) {
  return module_of(return_address)->owner;
}

bool b200_is_pytorch_cache(const void *return_address) {
  return module_of(return_address)->is_cache;
}

uint8_t b200_element_of(cudaDataType type) {
  switch ((int)type) {
  case CUDA_R_64F:
    return B200_ELEMENT_F64;
  case CUDA_R_32F:
    return B200_ELEMENT_F32;
  case CUDA_R_16F:
    return B200_ELEMENT_F16;
  case CUDA_R_16BF:
    return B200_ELEMENT_BF16;
  case CUDA_R_8I:
    return B200_ELEMENT_I8;
  case CUDA_R_8U:
    return B200_ELEMENT_U8;
  case CUDA_R_32I:
    return B200_ELEMENT_I32;
  case 28: /* CUDA_R_8F_E4M3: named only since CUDA 11.8 */
    return B200_ELEMENT_E4M3;
  case 29: /* CUDA_R_8F_E5M2 */
    return B200_ELEMENT_E5M2;
  case 33: /* CUDA_R_4F_E2M1: CUDA 12.8 */
    return B200_ELEMENT_E2M1;
  default:
    return B200_ELEMENT_OTHER;
  }
}

/* PyTorch's C++ headers of old passed a cudaDataType here, which cuBLAS still accepts: CUDA_R_32F is 0. */
static uint8_t compute_of(cublasComputeType_t compute) {
  switch ((int)compute) {
  case CUBLAS_COMPUTE_64F:
  case CUBLAS_COMPUTE_64F_PEDANTIC:
    return B200_COMPUTE_F64;
  case CUBLAS_COMPUTE_32F:
  case CUBLAS_COMPUTE_32F_PEDANTIC:
  case CUDA_R_32F:
    return B200_COMPUTE_F32;
  case CUBLAS_COMPUTE_32F_FAST_TF32:
    return B200_COMPUTE_TF32;
  case CUBLAS_COMPUTE_16F:
  case CUBLAS_COMPUTE_16F_PEDANTIC:
    return B200_COMPUTE_F16;
  case CUBLAS_COMPUTE_32I:
  case CUBLAS_COMPUTE_32I_PEDANTIC:
    return B200_COMPUTE_I32;
  default:
    return B200_COMPUTE_OTHER;
  }
}

static char trans_of(cublasOperation_t operation) {
  return operation == CUBLAS_OP_N ? 'N' : operation == CUBLAS_OP_T ? 'T' : 'C';
}

struct b200_gemm b200_gemm_ex(enum b200_api api, cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                              int64_t batch, cudaDataType a, cudaDataType b, cudaDataType d, cublasComputeType_t compute) {
  struct b200_gemm gemm = {
      .m = m,
      .n = n,
      .k = k,
      .batch = batch,
      .api = (uint8_t)api,
      .a = b200_element_of(a),
      .b = b200_element_of(b),
      .d = b200_element_of(d),
      .compute = compute_of(compute),
      .epilogue = B200_EPILOGUE_NONE,
      .ta = trans_of(ta),
      .tb = trans_of(tb),
  };
  gemm.role = (uint8_t)b200_gemm_role(gemm.ta, gemm.tb, batch);
  return gemm;
}

struct b200_gemm b200_gemm_typed(cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                                 cudaDataType type) {
  struct b200_gemm gemm = b200_gemm_typed_strided(ta, tb, m, n, k, 1, type);
  gemm.api = B200_API_TYPED;
  return gemm;
}

struct b200_gemm b200_gemm_typed_strided(cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n, int64_t k,
                                         int64_t batch, cudaDataType type) {
  cublasComputeType_t compute = type == CUDA_R_64F   ? CUBLAS_COMPUTE_64F
                                : type == CUDA_R_16F ? CUBLAS_COMPUTE_16F
                                                     : CUBLAS_COMPUTE_32F;
  return b200_gemm_ex(B200_API_STRIDED, ta, tb, m, n, k, batch, type, type, type, compute);
}

/* log2 of the largest power of two up to 256 that divides the address. */
static uint8_t alignment_of(const void *address) {
  return (uint8_t)__builtin_ctzll((uint64_t)(uintptr_t)address | 256);
}

void b200_call_pointers(struct b200_gemm_call *out, const void *a, const void *b, const void *c, void *d, const void *bias) {
  out->a = a;
  out->b = b;
  out->c = c;
  out->d = d;
  out->bias = bias;
  out->facts.align_a = alignment_of(a);
  out->facts.align_b = alignment_of(b);
  out->facts.align_c = alignment_of(c);
  out->facts.align_d = alignment_of(d);
  out->facts.align_bias = alignment_of(bias);
}

void b200_call_scalars(struct b200_gemm_call *out, const void *alpha, const void *beta, bool on_device) {
  float value;
  out->alpha = alpha;
  out->beta = beta;
  out->facts.beta = B200_BETA_DEVICE;
  if (on_device)
    out->facts.flags |= B200_CALL_ALPHA_DEVICE;
  out->known = out->known && alpha && beta;
  if (on_device || !beta)
    return;
  memcpy(&value, beta, sizeof value);
  out->facts.beta = value == 0 ? B200_BETA_ZERO : value == 1 ? B200_BETA_ONE : B200_BETA_OTHER;
}

/* What the handle was told before the call. */
#define GETTERS(X)                                                                                                          \
  X(cublasGetStream_v2, cudaStream_t)                                                                                       \
  X(cublasGetPointerMode_v2, cublasPointerMode_t)                                                                           \
  X(cublasGetMathMode, cublasMath_t)                                                                                        \
  X(cublasGetSmCountTarget, int)
#define GETTER(name, type)                                                                                                  \
  static bool ask_##name(cublasHandle_t handle, type *out) {                                                                \
    static _Atomic(void *) cache;                                                                                           \
    void *function = b200_library_cached(&cache, B200_LIBRARY_cublas, #name);                                               \
    return function && B200_TYPED(name, function)(handle, out) == CUBLAS_STATUS_SUCCESS;                                    \
  }
GETTERS(GETTER)
#undef GETTER

void *b200_stream_of(cublasHandle_t handle) {
  cudaStream_t stream = NULL;
  return ask_cublasGetStream_v2(handle, &stream) ? stream : NULL;
}

static bool ask_handle(struct b200_gemm_call *out, cublasHandle_t handle, cublasPointerMode_t *pointer_mode) {
  cudaStream_t stream = NULL;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  int sm_target = 0;
  if (!ask_cublasGetPointerMode_v2(handle, pointer_mode))
    return false;
  if (!b200_gemm_decides())
    return true;
  if (!ask_cublasGetStream_v2(handle, &stream) || !ask_cublasGetMathMode(handle, &math) ||
      !ask_cublasGetSmCountTarget(handle, &sm_target))
    return false;
  out->stream = stream;
  out->sm_target = sm_target;
  out->forbids_reduced = math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  if ((math & CUBLAS_PEDANTIC_MATH) == CUBLAS_PEDANTIC_MATH)
    out->facts.flags |= B200_CALL_UNSUPPORTED_KIND;
  return true;
}

void b200_call_gemm(struct b200_gemm_call *out, enum b200_api api, cublasHandle_t handle, cublasOperation_t ta,
                    cublasOperation_t tb, int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                    cudaDataType a_type, int64_t lda, int64_t stride_a, const void *b, cudaDataType b_type, int64_t ldb,
                    int64_t stride_b, const void *beta, void *c, cudaDataType c_type, int64_t ldc, int64_t stride_c,
                    int64_t batch, cublasComputeType_t compute) {
  struct b200_facts *facts = &out->facts;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  facts->gemm = b200_gemm_ex(api, ta, tb, m, n, k, batch, a_type, b_type, c_type, compute);
  facts->lda = lda;
  facts->ldb = ldb;
  facts->ldc = facts->ldd = ldc;
  facts->stride_a = batch == 1 ? 0 : stride_a;
  facts->stride_b = batch == 1 ? 0 : stride_b;
  facts->stride_d = batch == 1 ? 0 : stride_c;
  facts->c = facts->gemm.d;
  b200_call_pointers(out, a, b, c, c, NULL);
  bool half = facts->gemm.a == B200_ELEMENT_BF16 || facts->gemm.a == B200_ELEMENT_F16;
  if (!half || facts->gemm.compute != B200_COMPUTE_F32)
    return; /* left alone: no more is needed to say so */
  out->asked = true;
  out->known = ask_handle(out, handle, &pointer_mode);
  out->handle = handle;
  b200_call_scalars(out, alpha, beta, pointer_mode == CUBLAS_POINTER_MODE_DEVICE);
}
