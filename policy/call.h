/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vocabulary of intercepted calls: plain facts without vendor types, made by interpose/identify and consumed by the
 * tallies and the step detector. Values only; nothing here owns memory.
 *
 * GEMM terms are cuBLAS's, column-major: D[m×n] = op(A)[m×k] · op(B)[k×n], `batch` times.
 */
#ifndef B200_POLICY_CALL_H
#define B200_POLICY_CALL_H

#include <stdbool.h>
#include <stdint.h>

/* X(enum suffix, name in the log) */
#define B200_APIS(X) X(GEMMEX, "gemmex") X(LT, "lt") X(STRIDED, "strided") X(TYPED, "gemm") X(BATCHED, "batched")
#define B200_ROLES(X) X(FPROP, "fprop") X(DGRAD, "dgrad") X(WGRAD, "wgrad") X(BATCHED, "batched") X(OTHER, "other")
#define B200_TYPES(X)                                                                                                       \
  X(OTHER, "other")                                                                                                         \
  X(F64, "f64")                                                                                                             \
  X(F32, "f32")                                                                                                             \
  X(F16, "f16")                                                                                                             \
  X(BF16, "bf16")                                                                                                           \
  X(E4M3, "e4m3")                                                                                                           \
  X(E5M2, "e5m2") X(E2M1, "e2m1") X(I8, "i8") X(U8, "u8") X(I32, "i32") X(U32, "u32") X(I64, "i64") X(U64, "u64")
#define B200_COMPUTES(X) X(OTHER, "other") X(F64, "f64") X(F32, "f32") X(TF32, "tf32") X(F16, "f16") X(I32, "i32")
#define B200_EPILOGUES(X)                                                                                                   \
  X(NONE, "none")                                                                                                           \
  X(BIAS, "bias") X(RELU, "relu") X(RELU_BIAS, "relu_bias") X(GELU, "gelu") X(GELU_BIAS, "gelu_bias") X(OTHER, "other")
#define B200_COLLECTIVES(X)                                                                                                 \
  X(ALLGATHER, "AllGather")                                                                                                 \
  X(REDUCESCATTER, "ReduceScatter")                                                                                         \
  X(ALLREDUCE, "AllReduce")                                                                                                 \
  X(BROADCAST, "Broadcast")                                                                                                 \
  X(REDUCE, "Reduce") X(SEND, "Send") X(RECV, "Recv") X(ALLTOALL, "AlltoAll") X(GATHER, "Gather") X(SCATTER, "Scatter")
#define B200_OWNERS(X)                                                                                                      \
  X(PYTORCH, "pytorch") X(NCCL, "nccl") X(CUBLAS, "cublas") X(CUDNN, "cudnn") X(B200OPT, "b200opt") X(OTHER, "other")

#define B200_ENUM_API(id, name) B200_API_##id,
#define B200_ENUM_ROLE(id, name) B200_ROLE_##id,
#define B200_ENUM_TYPE(id, name) B200_ELEMENT_##id,
#define B200_ENUM_COMPUTE(id, name) B200_COMPUTE_##id,
#define B200_ENUM_EPILOGUE(id, name) B200_EPILOGUE_##id,
#define B200_ENUM_COLL(id, name) B200_COLL_##id,
#define B200_ENUM_OWNER(id, name) B200_OWNER_##id,
enum b200_api { B200_APIS(B200_ENUM_API) B200_API_COUNT };
enum b200_role { B200_ROLES(B200_ENUM_ROLE) B200_ROLE_COUNT };
enum b200_element { B200_TYPES(B200_ENUM_TYPE) B200_ELEMENT_COUNT };
enum b200_compute { B200_COMPUTES(B200_ENUM_COMPUTE) B200_COMPUTE_COUNT };
enum b200_epilogue { B200_EPILOGUES(B200_ENUM_EPILOGUE) B200_EPILOGUE_COUNT };
enum b200_coll_op { B200_COLLECTIVES(B200_ENUM_COLL) B200_COLL_COUNT };
enum b200_owner { B200_OWNERS(B200_ENUM_OWNER) B200_OWNER_COUNT };

extern const char *const b200_api_names[B200_API_COUNT];
extern const char *const b200_role_names[B200_ROLE_COUNT];
extern const char *const b200_element_names[B200_ELEMENT_COUNT];
extern const char *const b200_compute_names[B200_COMPUTE_COUNT];
extern const char *const b200_epilogue_names[B200_EPILOGUE_COUNT];
extern const char *const b200_coll_names[B200_COLL_COUNT];
extern const char *const b200_owner_names[B200_OWNER_COUNT];

/* One GEMM call. Every byte is set (two equal calls compare equal with memcmp). */
struct b200_gemm {
  int64_t m, n, k, batch;
  uint8_t api, role, a, b, d, compute, epilogue; /* the enums above */
  char ta, tb;                                   /* 'N', 'T' or 'C' */
  uint8_t zero[7];
};
_Static_assert(sizeof(struct b200_gemm) == 48, "no padding: compared bytewise");

/* FLOPs of the call: 2·m·n·k·batch; 0 when a dimension is not positive. */
uint64_t b200_gemm_flops(const struct b200_gemm *gemm);

/*
 * What the call is in the life of a linear layer, from its transposes (PyTorch's call pattern; column-major):
 * TN forward (A = W, B = X), NN input gradient (A = W, B = dY), NT weight gradient (A = X, B = dY); `batched` for more than
 * one matrix per call. One-row matrices, expanded gradients and hand-written products break the pattern: a hint for reports
 * and rules, never for correctness.
 */
enum b200_role b200_gemm_role(char ta, char tb, int64_t batch);

/* Whether the epilogue adds a bias. */
bool b200_epilogue_has_bias(uint8_t epilogue);

/* One collective or point-to-point call of this rank. */
struct b200_coll {
  uint64_t count; /* elements, as the call states them */
  int32_t nranks; /* of the communicator; 0 when it could not be asked */
  uint8_t op, dtype;
  uint8_t zero[2];
};

/* Bytes by nccl-tests' convention: count·size·nranks for AllGather, ReduceScatter, AlltoAll, Gather and Scatter; count·size
   for the others. */
uint64_t b200_coll_bytes(const struct b200_coll *coll);

/* Bytes of one element; 0 for B200_ELEMENT_OTHER and for packed types. */
unsigned b200_element_bytes(enum b200_element type);

#endif
