/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/ledger.h"

#include <pthread.h>

#include "unit.h"

static struct b200_ledger ledger;
static _Thread_local struct b200_ledger_undo undo;

static struct b200_ledger_owner account(enum b200_owner owner) {
  struct b200_ledger_owner all[B200_OWNER_COUNT];
  b200_ledger_read(&ledger, all);
  return all[owner];
}

START_TEST(blocks_are_charged_until_freed) {
  b200_ledger_init(&ledger);
  b200_ledger_alloc(&ledger, B200_OWNER_PYTORCH, 0x1000, 100);
  b200_ledger_alloc(&ledger, B200_OWNER_NCCL, 0x2000, 30);
  b200_ledger_alloc(&ledger, B200_OWNER_PYTORCH, 0x3000, 50);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 150);
  b200_ledger_free(&ledger, 0x1000, &undo);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 50);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).peak_bytes, 150);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).allocs, 2);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).frees, 1);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 30);
}
END_TEST

START_TEST(unknown_and_double_frees_change_nothing) {
  b200_ledger_init(&ledger);
  b200_ledger_free(&ledger, 0x1000, &undo);
  b200_ledger_alloc(&ledger, B200_OWNER_OTHER, 0x1000, 8);
  b200_ledger_free(&ledger, 0x1008, &undo);
  b200_ledger_free(&ledger, 0x1000, &undo);
  b200_ledger_free(&ledger, 0x1000, &undo);
  ck_assert_uint_eq(account(B200_OWNER_OTHER).current_bytes, 0);
  ck_assert_uint_eq(account(B200_OWNER_OTHER).frees, 1);
  ck_assert_uint_eq(ledger.unknown_frees, 3);
}
END_TEST

START_TEST(an_address_that_comes_again_was_freed_unseen) {
  b200_ledger_init(&ledger);
  b200_ledger_alloc(&ledger, B200_OWNER_PYTORCH, 0x1000, 100);
  b200_ledger_alloc(&ledger, B200_OWNER_NCCL, 0x1000, 40);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 0);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 40);
}
END_TEST

START_TEST(a_handle_lives_as_long_as_a_reference_or_a_mapping) {
  b200_ledger_init(&ledger);
  b200_ledger_handle_add(&ledger, B200_OWNER_NCCL, 7, 64);
  b200_ledger_map(&ledger, 0x100000, 64, 7);
  b200_ledger_handle_release(&ledger, 7, &undo);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 64);
  b200_ledger_unmap(&ledger, 0x100000, 64);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 0);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).frees, 1);
}
END_TEST

START_TEST(retained_and_imported_handles) {
  b200_ledger_init(&ledger);
  b200_ledger_handle_add(&ledger, B200_OWNER_PYTORCH, 9, 128);
  b200_ledger_handle_add(&ledger, B200_OWNER_PYTORCH, 9, 0); /* retained */
  b200_ledger_handle_release(&ledger, 9, &undo);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 128);
  b200_ledger_handle_release(&ledger, 9, &undo);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 0);
  b200_ledger_handle_add(&ledger, B200_OWNER_PYTORCH, 10, 0); /* imported: charged to its exporter */
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 0);
}
END_TEST

START_TEST(what_the_driver_refused_is_put_back) {
  b200_ledger_init(&ledger);
  b200_ledger_alloc(&ledger, B200_OWNER_PYTORCH, 0x1000, 100);
  b200_ledger_free(&ledger, 0x1000, &undo);
  b200_ledger_put_back(&ledger, &undo);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 100);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).frees, 0);
  b200_ledger_free(&ledger, 0x9999, &undo); /* unknown */
  b200_ledger_put_back(&ledger, &undo);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 100);
  b200_ledger_handle_add(&ledger, B200_OWNER_NCCL, 7, 64);
  b200_ledger_handle_release(&ledger, 7, &undo);
  b200_ledger_put_back(&ledger, &undo);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 64);
  b200_ledger_handle_add(&ledger, B200_OWNER_NCCL, 7, 0);
  b200_ledger_handle_release(&ledger, 7, &undo);
  b200_ledger_put_back(&ledger, &undo);
  b200_ledger_handle_release(&ledger, 7, &undo);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 64);
  b200_ledger_handle_release(&ledger, 7, &undo);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 0);
}
END_TEST

START_TEST(an_unmap_covers_mappings_that_are_not_charged) {
  b200_ledger_init(&ledger);
  b200_ledger_map(&ledger, 0x4000, 32, 500); /* host memory: its handle was never added */
  b200_ledger_handle_add(&ledger, B200_OWNER_NCCL, 501, 32);
  b200_ledger_map(&ledger, 0x4020, 32, 501);
  b200_ledger_handle_release(&ledger, 501, &undo);
  b200_ledger_unmap(&ledger, 0x4000, 64);
  ck_assert_uint_eq(account(B200_OWNER_NCCL).current_bytes, 0);
}
END_TEST

START_TEST(one_unmap_takes_all_mappings_of_the_range) {
  b200_ledger_init(&ledger);
  for (uint64_t i = 0; i < 10; i++) {
    b200_ledger_handle_add(&ledger, B200_OWNER_PYTORCH, 100 + i, 32);
    b200_ledger_map(&ledger, 0x4000 + i * 32, 32, 100 + i);
    b200_ledger_handle_release(&ledger, 100 + i, &undo);
  }
  b200_ledger_unmap(&ledger, 0x4000, 5 * 32);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 5 * 32);
  b200_ledger_unmap(&ledger, 0x4000 + 5 * 32, 5 * 32);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, 0);
}
END_TEST

enum { THREADS = 8, ROUNDS = 20000, LIVE_BLOCKS = 64 };

static void *churn(void *argument) {
  uint64_t base = ((uint64_t)(uintptr_t)argument + 1) << 40;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    b200_ledger_alloc(&ledger, B200_OWNER_PYTORCH, base + i * 512, 512);
    if (i >= LIVE_BLOCKS)
      b200_ledger_free(&ledger, base + (i - LIVE_BLOCKS) * 512, &undo);
  }
  return NULL;
}

START_TEST(no_byte_is_lost_between_threads) {
  pthread_t threads[THREADS];
  b200_ledger_init(&ledger);
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, (void *)i), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).current_bytes, (uint64_t)THREADS * LIVE_BLOCKS * 512);
  ck_assert_uint_eq(account(B200_OWNER_PYTORCH).allocs, (uint64_t)THREADS * ROUNDS);
  ck_assert_uint_eq(ledger.untracked, 0);
  ck_assert_uint_eq(ledger.unknown_frees, 0);
  ck_assert_uint_le(ledger.capacity, 8 * THREADS * LIVE_BLOCKS); /* the table does not grow with the number of calls */
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(blocks_are_charged_until_freed) \
  X(unknown_and_double_frees_change_nothing) \
  X(an_address_that_comes_again_was_freed_unseen) \
  X(a_handle_lives_as_long_as_a_reference_or_a_mapping) \
  X(retained_and_imported_handles) \
  X(what_the_driver_refused_is_put_back) \
  X(an_unmap_covers_mappings_that_are_not_charged) \
  X(one_unmap_takes_all_mappings_of_the_range) \
  X(no_byte_is_lost_between_threads)
/* clang-format on */
UNIT_MAIN("ledger", CASES)
