/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/call.h"
#include "unit.h"

START_TEST(roles_follow_the_transposes) {
  ck_assert_int_eq(b200_gemm_role('T', 'N', 1), B200_ROLE_FPROP);
  ck_assert_int_eq(b200_gemm_role('C', 'N', 1), B200_ROLE_FPROP);
  ck_assert_int_eq(b200_gemm_role('N', 'N', 1), B200_ROLE_DGRAD);
  ck_assert_int_eq(b200_gemm_role('N', 'T', 1), B200_ROLE_WGRAD);
  ck_assert_int_eq(b200_gemm_role('T', 'T', 1), B200_ROLE_OTHER);
  ck_assert_int_eq(b200_gemm_role('T', 'N', 2), B200_ROLE_BATCHED);
}
END_TEST

START_TEST(flops_are_2mnk_per_matrix) {
  struct b200_gemm gemm = {.m = 3, .n = 5, .k = 7, .batch = 11};
  ck_assert_uint_eq(b200_gemm_flops(&gemm), 2u * 3 * 5 * 7 * 11);
  gemm = (struct b200_gemm){.m = 1 << 17, .n = 1 << 20, .k = 1 << 17, .batch = 1};
  ck_assert_uint_eq(b200_gemm_flops(&gemm), UINT64_C(1) << 55);
  gemm.k = 0;
  ck_assert_uint_eq(b200_gemm_flops(&gemm), 0);
  gemm.k = -4;
  ck_assert_uint_eq(b200_gemm_flops(&gemm), 0);
}
END_TEST

START_TEST(bytes_follow_nccl_tests) {
  static const struct {
    enum b200_coll_op op;
    uint64_t bytes;
  } expected[] = {
      {B200_COLL_ALLGATHER, 400}, {B200_COLL_REDUCESCATTER, 400}, {B200_COLL_ALLTOALL, 400},  {B200_COLL_GATHER, 400},
      {B200_COLL_SCATTER, 400},   {B200_COLL_ALLREDUCE, 100},     {B200_COLL_BROADCAST, 100}, {B200_COLL_REDUCE, 100},
      {B200_COLL_SEND, 100},      {B200_COLL_RECV, 100},
  };
  ck_assert_uint_eq(sizeof expected / sizeof *expected, B200_COLL_COUNT);
  for (int i = 0; i < B200_COLL_COUNT; i++) {
    struct b200_coll coll = {.count = 50, .nranks = 4, .op = (uint8_t)expected[i].op, .dtype = B200_ELEMENT_BF16};
    ck_assert_uint_eq(b200_coll_bytes(&coll), expected[i].bytes);
  }
}
END_TEST

START_TEST(every_value_has_a_name) {
  for (int i = 0; i < B200_ELEMENT_COUNT; i++)
    ck_assert_ptr_nonnull(b200_element_names[i]);
  for (int i = 0; i < B200_OWNER_COUNT; i++)
    ck_assert_ptr_nonnull(b200_owner_names[i]);
  ck_assert_str_eq(b200_coll_names[B200_COLL_SCATTER], "Scatter");
  ck_assert_str_eq(b200_role_names[B200_ROLE_OTHER], "other");
  ck_assert_str_eq(b200_epilogue_names[B200_EPILOGUE_GELU_BIAS], "gelu_bias");
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(roles_follow_the_transposes) \
  X(flops_are_2mnk_per_matrix) \
  X(bytes_follow_nccl_tests) \
  X(every_value_has_a_name)
/* clang-format on */
UNIT_MAIN("call", CASES)
