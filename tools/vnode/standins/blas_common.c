/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/vnode/standins/blas_common.h"

#include "tools/vnode/standins/number.h"

struct status_text {
  cublasStatus_t status;
  const char *name, *text;
};

#define STATUS(status, text)                                                                                                \
  { CUBLAS_STATUS_##status, "CUBLAS_STATUS_" #status, text }

static const struct status_text status_texts[] = {
    STATUS(SUCCESS, "success"),
    STATUS(NOT_INITIALIZED, "the library was not initialized"),
    STATUS(ALLOC_FAILED, "the resource allocation failed"),
    STATUS(INVALID_VALUE, "an unsupported value or parameter was passed to the function"),
    STATUS(ARCH_MISMATCH, "the function requires an architectural feature absent from the device"),
    STATUS(MAPPING_ERROR, "an access to GPU memory space failed"),
    STATUS(EXECUTION_FAILED, "the function failed to launch on the GPU"),
    STATUS(INTERNAL_ERROR, "an internal operation failed"),
    STATUS(NOT_SUPPORTED, "the requested functionality is not supported"),
    STATUS(LICENSE_ERROR, "the license check failed"),
};

static const struct status_text *status_text_of(cublasStatus_t status) {
  static const struct status_text unknown = {CUBLAS_STATUS_SUCCESS, "unrecognized status", "unrecognized status"};
  for (size_t i = 0; i < sizeof status_texts / sizeof status_texts[0]; i++)
    if (status_texts[i].status == status)
      return &status_texts[i];
  return &unknown;
}

const char *vnode_blas_status_name(cublasStatus_t status) {
  return status_text_of(status)->name;
}

const char *vnode_blas_status_string(cublasStatus_t status) {
  return status_text_of(status)->text;
}

cublasStatus_t vnode_blas_property(libraryPropertyType type, int *value) {
  if (!value || (int)type < 0 || type > PATCH_LEVEL)
    return CUBLAS_STATUS_INVALID_VALUE;
  *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
  return CUBLAS_STATUS_SUCCESS;
}

size_t vnode_blas_cudart_version(void) {
  return CUBLAS_VER_MAJOR * 1000; /* the real libraries name the first minor release of their major version */
}

cublasStatus_t vnode_blas_status(enum vnode_status status) {
  switch (status) {
  case VNODE_OK:
    return CUBLAS_STATUS_SUCCESS;
  case VNODE_NO_MEMORY:
    return CUBLAS_STATUS_ALLOC_FAILED;
  case VNODE_NOT_INITIALIZED:
    return CUBLAS_STATUS_NOT_INITIALIZED;
  default:
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

char vnode_blas_trans(int operation) {
  return operation == CUBLAS_OP_N ? 'N' : operation == CUBLAS_OP_T ? 'T' : operation == CUBLAS_OP_C ? 'C' : 0;
}

cublasStatus_t vnode_blas_submit(cudaStream_t stream, const char *api, const char *compute, const char *epilogue,
                                 const struct vnode_gemm *gemm) {
  const struct vnode_gemm_key key = {
      .api = api,
      .trans_a = gemm->trans_a,
      .trans_b = gemm->trans_b,
      .m = gemm->m,
      .n = gemm->n,
      .k = gemm->k,
      .batch = gemm->batch,
      .type_a = vnode_number_name(gemm->a.type),
      .type_b = vnode_number_name(gemm->b.type),
      .type_d = vnode_number_name(gemm->d.type),
      .compute = compute,
      .epilogue = epilogue,
  };
  enum vnode_status status = vnode_stream_submit((struct vnode_stream *)stream, "gemm", vnode_gemm_run, gemm, sizeof *gemm);
  if (status == VNODE_OK)
    vnode_ledger_gemm(&key);
  return vnode_blas_status(status);
}
