/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_device.h"
#include "unit.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define A FAKE_CONTEXT(0)
#define B FAKE_CONTEXT(1)

static struct fake_device device;
static struct b200_pool pool;
static struct b200_pool_ops ops;
static struct b200_pool_config config;

/* Afterwards, `ops` and `config` may be changed and begin() called again. */
static void begin(void) {
  memset(&pool, 0, sizeof pool);
  b200_pool_init(&pool, &ops, &config);
}

static void begin_with(uint64_t capacity, bool fences) {
  fake_make(&device, 1, capacity);
  device.has_fences = fences;
  fake_ops(&device, &ops);
  ops.poison = NULL;
  config = (struct b200_pool_config){.mode = B200_POOL_POOL,
                                     .max_idle_bytes = 1024 * GIB,
                                     .reserve_owners = 1u << B200_OWNER_NCCL | 1u << B200_OWNER_CUBLAS};
  begin();
}

static struct b200_pool_grant get_for(uint64_t context, enum b200_owner owner, uint64_t bytes) {
  struct b200_pool_grant grant;
  ck_assert_int_eq(b200_pool_malloc(&pool, context, owner, bytes, &grant), 0);
  return grant;
}

static struct b200_pool_grant get(uint64_t bytes) {
  return get_for(A, B200_OWNER_PYTORCH, bytes);
}

static int try_for(enum b200_owner owner, uint64_t bytes) {
  struct b200_pool_grant grant;
  return b200_pool_malloc(&pool, A, owner, bytes, &grant);
}

static void put(uint64_t address) {
  ck_assert_int_eq(b200_pool_free(&pool, A, address, false), 0);
}

static void synchronize(uint64_t context) {
  uint64_t token = b200_pool_sync_begin(&pool, context);
  fake_run_all(&device, (int)context - 1);
  b200_pool_sync_end(&pool, context, token);
}

static struct b200_pool_stats stats(void) {
  struct b200_pool_stats out;
  b200_pool_read(&pool, &out);
  return out;
}

static uint64_t free_memory(void) {
  uint64_t free_bytes;
  ck_assert_int_eq(b200_pool_info(&pool, A, &free_bytes, NULL), 0);
  return free_bytes;
}

START_TEST(an_allocation_is_one_of_the_driver_with_the_bytes_asked_for) {
  begin_with(GIB, false);
  struct b200_pool_grant one = get(2 * MIB), other = get(3 * MIB + 17);
  ck_assert(!one.hit && !other.hit);
  ck_assert_uint_eq(device.allocs, 2);
  ck_assert_uint_eq(other.bytes, 3 * MIB + 17);
  ck_assert_uint_eq(device.used, 5 * MIB + 17);
}
END_TEST

START_TEST(small_and_empty_requests_pass_through) {
  begin_with(GIB, false);
  struct b200_pool_grant grant = get(2 * MIB - 1);
  ck_assert_int_eq(b200_pool_look(&pool, grant.address), B200_POOL_UNKNOWN);
  put(grant.address);
  ck_assert_uint_eq(device.direct_frees, 1);
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 0), FAKE_INVALID);
  ck_assert_uint_eq(stats().passed, 2);
}
END_TEST

START_TEST(errors_of_the_driver_pass_unchanged_and_write_nothing) {
  begin_with(GIB, false);
  struct b200_pool_grant grant = {.address = 7, .bytes = 8};
  device.fail_alloc = 700;
  ck_assert_int_eq(b200_pool_malloc(&pool, A, B200_OWNER_PYTORCH, 4 * MIB, &grant), 700);
  ck_assert_int_eq(b200_pool_malloc(&pool, A, B200_OWNER_PYTORCH, 1 * MIB, &grant), 700);
  ck_assert_uint_eq(device.allocs, 2); /* not tried again */
  ck_assert_uint_eq(grant.address, 7);
  ck_assert_uint_eq(grant.bytes, 8);
  device.fail_alloc = 0;
  ck_assert_int_eq(b200_pool_malloc(&pool, A, B200_OWNER_PYTORCH, UINT64_MAX, &grant), FAKE_OUT_OF_MEMORY);
  ck_assert_uint_eq(grant.address, 7);
}
END_TEST

START_TEST(only_a_synchronisation_that_began_after_the_free_counts) {
  begin_with(GIB, false);
  uint64_t address = get(4 * MIB).address;
  synchronize(A);
  uint64_t early = b200_pool_sync_begin(&pool, A);
  put(address);
  ck_assert_uint_eq(device.frees, 0);
  ck_assert(!get(4 * MIB).hit);
  b200_pool_sync_end(&pool, A, early);
  ck_assert(!get(4 * MIB).hit);
  uint64_t late = b200_pool_sync_begin(&pool, A);
  ck_assert(!get(4 * MIB).hit);
  b200_pool_sync_end(&pool, A, late);
  struct b200_pool_grant again = get(4 * MIB);
  ck_assert(again.hit);
  ck_assert_uint_eq(again.address, address);
  ck_assert_uint_eq(device.synchronisations, 0);
  ck_assert_uint_eq(stats().observed, 3);
}
END_TEST

START_TEST(synchronisations_that_end_in_another_order_count_by_their_beginning) {
  begin_with(GIB, false);
  uint64_t one = get(4 * MIB).address;
  uint64_t first = b200_pool_sync_begin(&pool, A);
  put(one);
  uint64_t second = b200_pool_sync_begin(&pool, A);
  b200_pool_sync_end(&pool, A, second);
  b200_pool_sync_end(&pool, A, first);
  ck_assert(get(4 * MIB).hit);
}
END_TEST

START_TEST(a_block_is_safe_once_the_work_from_before_its_free_is_done) {
  begin_with(GIB, true);
  uint64_t one = get(4 * MIB).address, other = get(8 * MIB).address;
  fake_launch(&device, 0, 0, one, true, 1);
  put(one);
  ck_assert(!get(4 * MIB).hit);
  fake_run_all(&device, 0);
  fake_launch(&device, 0, 1, other, true, 1);
  put(other);
  struct b200_pool_grant again = get(4 * MIB);
  ck_assert(again.hit);
  ck_assert_uint_eq(again.address, one);
  ck_assert(!get(8 * MIB).hit);
  ck_assert_uint_eq(device.fences, 2);
  ck_assert_uint_eq(device.synchronisations + device.fence_waits, 0);
}
END_TEST

START_TEST(waiting_is_for_the_work_from_before_the_free_only) {
  begin_with(GIB, true);
  config.wait = true;
  begin();
  uint64_t live = get(16 * MIB).address, one = get(4 * MIB).address, other = get(8 * MIB).address;
  fake_launch(&device, 0, 0, one, true, 1);
  put(one);
  fake_launch(&device, 0, 1, other, true, 1);
  put(other);
  fake_launch(&device, 0, 2, live, true, 1); /* may be waiting for this very thread */
  ck_assert(get(4 * MIB).hit);
  ck_assert_uint_eq(device.streams[0][1].done, 0);
  ck_assert(get(8 * MIB).hit);
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 0);
  ck_assert_uint_eq(device.streams[0][2].done, 0);
  ck_assert_uint_eq(device.fence_waits, 2);
  ck_assert_uint_eq(device.synchronisations, 0);
  ck_assert_uint_eq(stats().waits, 2);
}
END_TEST

START_TEST(a_newer_fence_does_for_an_older_free) {
  begin_with(GIB, true);
  config.wait = true;
  begin();
  uint64_t one = get(4 * MIB).address, other = get(8 * MIB).address;
  put(one);
  put(other);
  ck_assert(get(8 * MIB).hit);
  ck_assert(get(4 * MIB).hit);
  ck_assert_uint_eq(device.fence_waits, 1);
}
END_TEST

START_TEST(of_blocks_in_quarantine_the_smallest_is_waited_for) {
  begin_with(GIB, true);
  config.wait = true;
  begin();
  uint64_t small = get(16 * MIB).address, large = get(18 * MIB).address;
  fake_launch(&device, 0, 0, small, true, 1);
  put(small);
  fake_launch(&device, 0, 1, large, true, 1);
  put(large);
  ck_assert_uint_eq(get(16 * MIB).address, small);
  ck_assert_uint_eq(device.streams[0][1].done, 0);
}
END_TEST

/* More frees than fences: the newest stands for more, nothing is waited for by all of them, nothing is lost. */
START_TEST(fences_are_few_and_used_again) {
  enum { FREES = 3 * B200_POOL_FENCES };
  uint64_t addresses[FREES];
  begin_with(4 * GIB, true);
  config.wait = true;
  begin();
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < FREES; i++)
      addresses[i] = get((uint64_t)(4 + 2 * i) * 2 * MIB).address;
    for (int i = 0; i < FREES; i++) {
      fake_launch(&device, 0, i % FAKE_STREAMS, addresses[i], true, 1);
      put(addresses[i]);
    }
  }
  ck_assert_uint_eq(device.fences, 20 * FREES);
  ck_assert_uint_eq(device.synchronisations, 0);
  ck_assert_uint_eq(device.frees, 0);
  for (int i = B200_POOL_FENCES; i < FAKE_FENCES; i++)
    ck_assert(!device.fence[i].made);
  ck_assert_uint_eq(fake_wrongs(&device), 0);
}
END_TEST

static void *no_fence(void *user, uint64_t context, void *again) {
  (void)user, (void)context, (void)again;
  return NULL;
}

START_TEST(a_fence_that_cannot_be_recorded_again_stands_for_what_it_did) {
  uint64_t addresses[B200_POOL_FENCES + 1];
  begin_with(GIB, true);
  config.wait = true;
  begin();
  uint64_t live = get(2 * MIB).address;
  for (int i = 0; i <= B200_POOL_FENCES; i++)
    addresses[i] = get((uint64_t)(4 + 2 * i) * MIB).address;
  for (int i = 0; i <= B200_POOL_FENCES; i++) {
    pool.ops.fence = i < B200_POOL_FENCES ? ops.fence : no_fence;
    fake_launch(&device, 0, 0, addresses[i], true, 1);
    put(addresses[i]);
  }
  fake_launch(&device, 0, 1, live, true, 1);
  ck_assert(get((uint64_t)(2 + 2 * B200_POOL_FENCES) * MIB).hit);
  ck_assert_uint_eq(device.streams[0][1].done, 0);
  ck_assert_uint_eq(device.synchronisations, 0);
}
END_TEST

/* While as many threads wait as there are fences, a free that does not wait still gets one. */
static atomic_int waiting;
static atomic_bool may_end;

static bool slow_fence_done(void *user, uint64_t context, void *fence, bool wait) {
  struct b200_pool_ops real;
  fake_ops(user, &real);
  atomic_fetch_add(&waiting, wait);
  while (wait && !atomic_load(&may_end))
    sched_yield();
  return real.fence_done(user, context, fence, wait);
}

static void *put_and_wait(void *address) {
  b200_pool_free(&pool, A, *(uint64_t *)address, true);
  return NULL;
}

START_TEST(frees_that_wait_leave_a_fence_for_one_that_does_not) {
  uint64_t addresses[B200_POOL_FENCES];
  pthread_t threads[B200_POOL_FENCES];
  begin_with(GIB, true);
  ops.fence_done = slow_fence_done;
  begin();
  uint64_t one = get(2 * MIB).address;
  for (int i = 0; i < B200_POOL_FENCES; i++)
    addresses[i] = get(4 * MIB).address;
  atomic_store(&waiting, 0);
  atomic_store(&may_end, false);
  for (int i = 0; i < B200_POOL_FENCES; i++) {
    pthread_create(&threads[i], NULL, put_and_wait, &addresses[i]);
    while (atomic_load(&waiting) <= i && stats().synchronisations == 0)
      sched_yield();
  }
  uint64_t before = stats().fences;
  put(one);
  ck_assert_uint_eq(stats().fences, before + 1);
  atomic_store(&may_end, true);
  for (int i = 0; i < B200_POOL_FENCES; i++)
    pthread_join(threads[i], NULL);
  ck_assert_uint_eq(stats().idle_blocks, B200_POOL_FENCES + 1);
  ck_assert_uint_eq(fake_wrongs(&device), 0);
}
END_TEST

START_TEST(without_a_fence_the_context_is_waited_for) {
  begin_with(GIB, true);
  config.wait = true;
  for (int i = 0; i < FAKE_FENCES; i++)
    device.fence[i].made = true; /* none is left */
  begin();
  put(get(4 * MIB).address);
  ck_assert(get(4 * MIB).hit);
  ck_assert_uint_eq(device.synchronisations, 1);
}
END_TEST

START_TEST(a_free_that_waits_ends_after_the_work_of_its_context) {
  for (int fences = 0; fences < 2; fences++) {
    begin_with(GIB, fences);
    uint64_t one = get(4 * MIB).address, other = get(8 * MIB).address,
             elsewhere = get_for(B, B200_OWNER_PYTORCH, 4 * MIB).address;
    b200_pool_peer(&pool, A, B);
    fake_launch(&device, 0, 3, other, true, 1);
    fake_launch(&device, 1, 3, elsewhere, true, 1);
    ck_assert_int_eq(b200_pool_free(&pool, A, one, true), 0);
    ck_assert_uint_eq(device.streams[0][3].done, 1);
    ck_assert_uint_eq(device.streams[1][3].done, 0); /* the driver's would not wait for that either … */
    ck_assert(!get(4 * MIB).hit);                    /* … but it may touch the block */
    fake_run_all(&device, 1);
    synchronize(B);
    ck_assert_uint_eq(get(4 * MIB).address, one);
    ck_assert_uint_eq(device.frees, 0);
  }
}
END_TEST

START_TEST(a_free_that_cannot_wait_is_the_drivers) {
  begin_with(GIB, false);
  uint64_t one = get(4 * MIB).address;
  device.fail_synchronize = device.fail_free = 700;
  ck_assert_int_eq(b200_pool_free(&pool, A, one, true), 700);
  ck_assert_int_eq(b200_pool_look(&pool, one), B200_POOL_LIVE);
  device.fail_free = 0;
  ck_assert_int_eq(b200_pool_free(&pool, A, one, true), 0);
  ck_assert_uint_eq(device.direct_frees, 2);
  ck_assert_int_eq(b200_pool_look(&pool, one), B200_POOL_UNKNOWN);
}
END_TEST

/* Work of a peer may wait for what this thread has not yet launched. */
START_TEST(a_peer_is_waited_for_only_when_memory_has_run_out) {
  begin_with(64 * MIB, true);
  config.wait = config.within_peak = true;
  begin();
  uint64_t one = get(40 * MIB).address, elsewhere = get_for(B, B200_OWNER_PYTORCH, 4 * MIB).address;
  b200_pool_peer(&pool, A, B);
  fake_launch(&device, 1, 0, elsewhere, true, 1);
  put(one);
  ck_assert(!get(16 * MIB).hit);
  ck_assert_uint_eq(device.streams[1][0].done, 0);
  ck_assert_int_eq(b200_pool_look(&pool, one), B200_POOL_IDLE);
  ck_assert(!get(40 * MIB).hit);
  ck_assert_uint_eq(device.streams[1][0].done, 1);
  ck_assert_uint_eq(device.synchronisations, 0);
}
END_TEST

START_TEST(one_synchronisation_serves_many_frees) {
  uint64_t addresses[50];
  begin_with(GIB, false);
  config.wait = true;
  begin();
  for (int i = 0; i < 50; i++)
    addresses[i] = get(4 * MIB).address;
  for (int i = 0; i < 50; i++) {
    fake_launch(&device, 0, i % FAKE_STREAMS, addresses[i], true, 1);
    put(addresses[i]);
  }
  for (int i = 0; i < 50; i++)
    ck_assert(get(4 * MIB).hit);
  ck_assert_uint_eq(device.synchronisations, 1);
  ck_assert_uint_eq(device.allocs, 50);
}
END_TEST

START_TEST(a_synchronisation_that_fails_makes_nothing_safe) {
  begin_with(GIB, false);
  config.wait = true;
  begin();
  put(get(4 * MIB).address);
  device.fail_synchronize = 700;
  ck_assert(!get(4 * MIB).hit);
  b200_pool_sync_begin(&pool, A); /* the application's own, which failed: no end */
  config.wait = false;
  ck_assert(!get(4 * MIB).hit);
}
END_TEST

START_TEST(the_smallest_block_of_as_many_pages_is_taken) {
  begin_with(64 * GIB, false);
  uint64_t large = get(16 * MIB).address, exact = get(15 * MIB).address, far = get(16 * MIB + 1).address;
  put(large);
  put(far);
  put(exact);
  synchronize(A);
  ck_assert_uint_eq(get(15 * MIB).address, exact);
  struct b200_pool_grant grant = get(15 * MIB);
  ck_assert_uint_eq(grant.address, large);
  ck_assert_uint_eq(grant.bytes, 16 * MIB);
  ck_assert(!get(15 * MIB).hit);
  ck_assert(!get(16 * MIB + 2).hit); /* never a smaller one */
}
END_TEST

START_TEST(of_equal_blocks_the_first_freed_is_taken) {
  begin_with(GIB, false);
  uint64_t one = get(4 * MIB).address, other = get(4 * MIB).address;
  put(other);
  put(one);
  synchronize(A);
  ck_assert_uint_eq(get(4 * MIB).address, other);
  ck_assert_uint_eq(get(4 * MIB).address, one);
}
END_TEST

START_TEST(blocks_stay_with_their_context) {
  begin_with(GIB, false);
  uint64_t address = get_for(A, B200_OWNER_PYTORCH, 4 * MIB).address;
  ck_assert_int_eq(b200_pool_free(&pool, B, address, false), 0); /* whatever context is current */
  synchronize(A);
  synchronize(B);
  ck_assert(!get_for(B, B200_OWNER_PYTORCH, 4 * MIB).hit);
  ck_assert(get_for(A, B200_OWNER_PYTORCH, 4 * MIB).hit);
  ck_assert_int_eq(b200_pool_free(&pool, 0, address, false), 0);
  synchronize(B); /* says nothing of A */
  ck_assert(!get_for(A, B200_OWNER_PYTORCH, 4 * MIB).hit);
}
END_TEST

START_TEST(with_a_peer_both_contexts_must_have_synchronised) {
  begin_with(GIB, false);
  b200_pool_peer(&pool, A, B);
  put(get(4 * MIB).address);
  synchronize(A);
  ck_assert(!get(4 * MIB).hit);
  synchronize(B);
  ck_assert(get(4 * MIB).hit);
  uint64_t there = get_for(B, B200_OWNER_PYTORCH, 4 * MIB).address;
  put(there);
  synchronize(B); /* A does not touch memory of B */
  ck_assert(get_for(B, B200_OWNER_PYTORCH, 4 * MIB).hit);
  config.wait = true;
  begin();
  b200_pool_peer(&pool, A, B);
  uint64_t address = get(4 * MIB).address;
  fake_launch(&device, 1, 0, address, true, 1);
  put(address);
  ck_assert(!get(4 * MIB).hit);
  ck_assert_uint_eq(device.synchronisations, 1); /* B may be waiting for this thread */
  synchronize(B);
  struct b200_pool_grant grant = get(4 * MIB);
  ck_assert(grant.hit);
  fake_handed_out(&device, grant.address);
  put(grant.address);
  b200_pool_context_gone(&pool, B);
  synchronize(A);
  ck_assert(get(4 * MIB).hit);
  ck_assert_uint_eq(fake_wrongs(&device), 0);
}
END_TEST

START_TEST(what_is_not_the_base_of_a_block_passes_through) {
  begin_with(GIB, false);
  uint64_t address = get(4 * MIB).address;
  ck_assert_int_eq(b200_pool_free(&pool, A, 0, false), 0);
  ck_assert_int_eq(b200_pool_free(&pool, A, address + 512, false), FAKE_INVALID);
  ck_assert_int_eq(b200_pool_free(&pool, A, 12345, false), FAKE_INVALID);
  ck_assert_int_eq(b200_pool_look(&pool, address), B200_POOL_LIVE);
  ck_assert_uint_eq(device.frees, 2); /* the fake does not count frees of NULL */
}
END_TEST

START_TEST(a_second_free_is_an_error) {
  begin_with(GIB, false);
  uint64_t address = get(4 * MIB).address;
  put(address);
  ck_assert_int_eq(b200_pool_free(&pool, A, address, false), FAKE_INVALID);
  synchronize(A);
  ck_assert_int_eq(b200_pool_free(&pool, A, address, false), FAKE_INVALID);
  ck_assert_uint_eq(stats().double_frees, 2);
  ck_assert_uint_eq(device.frees, 0);
  b200_pool_trim(&pool, A, GIB);
  ck_assert_int_eq(b200_pool_free(&pool, A, address, false), FAKE_INVALID); /* the driver's own answer */
  ck_assert_uint_eq(device.frees, 2);
}
END_TEST

START_TEST(pinned_blocks_are_never_handed_out_again) {
  begin_with(GIB, false);
  uint64_t live = get(4 * MIB).address, idle = get(4 * MIB).address, other = get(4 * MIB).address;
  put(idle);
  b200_pool_pin(&pool, live + 100, 1);
  b200_pool_pin(&pool, idle, 0);
  ck_assert_uint_eq(stats().pinned, 2);
  put(live);
  ck_assert_uint_eq(device.direct_frees, 1);
  put(other);
  synchronize(A);
  ck_assert_uint_eq(get(4 * MIB).address, other);
  ck_assert(!get(4 * MIB).hit);
  ck_assert_int_eq(b200_pool_look(&pool, idle), B200_POOL_IDLE);
  ck_assert_int_eq(b200_pool_free(&pool, A, idle, false), FAKE_INVALID);
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 4 * MIB);
  ck_assert_uint_eq(stats().pinned, 0);
}
END_TEST

START_TEST(a_pin_covers_a_range_and_nothing_beside_it) {
  begin_with(GIB, false);
  uint64_t address = get(4 * MIB).address;
  b200_pool_pin(&pool, address - 10, 10);
  b200_pool_pin(&pool, address + 4 * MIB, 10);
  ck_assert_uint_eq(stats().pinned, 0);
  b200_pool_pin(&pool, address - 10, 11);
  b200_pool_pin(&pool, address + 4 * MIB - 1, 10);
  ck_assert_uint_eq(stats().pinned, 1);
}
END_TEST

START_TEST(registered_blocks_are_the_drivers_until_given_up) {
  begin_with(GIB, false);
  uint64_t one = get(8 * MIB).address, other = get(8 * MIB).address;
  b200_pool_register(&pool, one + MIB, MIB, +1);
  b200_pool_register(&pool, one, 8 * MIB, +1);
  b200_pool_register(&pool, one, 8 * MIB, -1);
  device.fail_free = 700;
  ck_assert_int_eq(b200_pool_free(&pool, A, one, false), 700); /* still registered, also after that */
  device.fail_free = 0;
  put(one);
  ck_assert_int_eq(b200_pool_look(&pool, one), B200_POOL_UNKNOWN);
  b200_pool_register(&pool, other, 8 * MIB, +1);
  b200_pool_register(&pool, other, 8 * MIB, -1);
  b200_pool_register(&pool, other, 8 * MIB, -1); /* one too many */
  put(other);
  ck_assert_int_eq(b200_pool_look(&pool, other), B200_POOL_IDLE);
  b200_pool_register(&pool, other, 1, +1); /* memory that was freed */
  synchronize(A);
  ck_assert(!get(8 * MIB).hit);
  ck_assert_uint_eq(stats().pinned, 1);
}
END_TEST

START_TEST(a_free_that_the_driver_refuses_leaves_the_block) {
  begin_with(GIB, false);
  uint64_t address = get(4 * MIB).address;
  b200_pool_pin(&pool, address, 1);
  device.fail_free = 700;
  ck_assert_int_eq(b200_pool_free(&pool, A, address, false), 700);
  ck_assert_int_eq(b200_pool_look(&pool, address), B200_POOL_LIVE);
  ck_assert_uint_eq(stats().pinned, 1);
  device.fail_free = 0;
  put(address);
  ck_assert_int_eq(b200_pool_look(&pool, address), B200_POOL_UNKNOWN);
  ck_assert_uint_eq(device.used, 0);
}
END_TEST

START_TEST(before_a_capture_what_is_idle_goes) {
  begin_with(GIB, true);
  uint64_t address = get(4 * MIB).address;
  fake_launch(&device, 0, 0, address, true, 1);
  put(address);
  b200_pool_empty(&pool);
  ck_assert_int_eq(b200_pool_look(&pool, address), B200_POOL_IDLE); /* in quarantine: nothing is waited for */
  fake_run_all(&device, 0);
  b200_pool_empty(&pool);
  ck_assert_int_eq(b200_pool_look(&pool, address), B200_POOL_UNKNOWN);
  ck_assert_uint_eq(device.fence_waits + device.synchronisations, 0);
}
END_TEST

START_TEST(in_a_capture_everything_is_the_drivers) {
  begin_with(16 * MIB, true);
  config.max_idle_bytes = 4 * MIB;
  config.wait = true;
  begin();
  uint64_t before = get(4 * MIB).address, idle = get(4 * MIB).address;
  put(idle);
  synchronize(A);
  uint64_t waits = device.fences + device.synchronisations;
  atomic_store(&device.capturing, true);
  uint64_t within = get(4 * MIB).address;
  ck_assert_uint_ne(within, idle);
  put(before);
  ck_assert_int_eq(b200_pool_look(&pool, before), B200_POOL_UNKNOWN);
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 12 * MIB), FAKE_OUT_OF_MEMORY); /* would fit after a trim */
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 0);
  ck_assert_uint_eq(device.fences + device.synchronisations, waits);
  atomic_store(&device.capturing, false);
  put(within); /* allocated in the capture: not kept either */
  ck_assert_int_eq(b200_pool_look(&pool, within), B200_POOL_UNKNOWN);
  ck_assert_uint_eq(device.illegal, 0);
  ck_assert_uint_eq(get(4 * MIB).address, idle);
}
END_TEST

START_TEST(blocks_of_a_context_that_is_gone_are_forgotten_not_freed) {
  begin_with(GIB, false);
  uint64_t live = get(4 * MIB).address;
  put(get(8 * MIB).address);
  uint64_t token = b200_pool_sync_begin(&pool, A);
  b200_pool_context_gone(&pool, A);
  ck_assert_uint_eq(device.frees, 0);
  ck_assert_uint_eq(stats().dropped, 2);
  ck_assert_uint_eq(stats().idle_bytes, 0);
  ck_assert_uint_eq(stats().live_blocks, 0);
  ck_assert_int_eq(b200_pool_look(&pool, live), B200_POOL_UNKNOWN);
  put(get(8 * MIB).address); /* of another context at the same handle */
  b200_pool_sync_end(&pool, A, token);
  ck_assert(!get(8 * MIB).hit);
  synchronize(A);
  ck_assert(get(8 * MIB).hit);
}
END_TEST

static void destroy_a(void *user) {
  (void)user;
  b200_pool_context_gone(&pool, A);
}

START_TEST(a_context_may_go_while_the_pool_waits_for_it) {
  begin_with(GIB, false);
  config.wait = true;
  begin();
  put(get(4 * MIB).address);
  device.on_synchronize = destroy_a;
  struct b200_pool_grant grant = get(4 * MIB);
  ck_assert(!grant.hit);
  ck_assert_int_eq(b200_pool_look(&pool, grant.address), B200_POOL_UNKNOWN);
  put(get(8 * MIB).address);
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 0);
  ck_assert_uint_eq(device.frees, 0);
}
END_TEST

/* Another thread resets the context, which is then used again, while the driver is in a call. */
static bool resets;

static void reset_a(void) {
  struct b200_pool_grant grant;
  resets = false;
  b200_pool_context_gone(&pool, A);
  ck_assert_int_eq(b200_pool_malloc(&pool, A, B200_OWNER_PYTORCH, 32 * MIB, &grant), 0);
  fake_launch(&device, 0, 0, grant.address, true, 1);
  put(grant.address);
}

static int alloc_and_reset(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  struct b200_pool_ops real;
  fake_ops(user, &real);
  int status = real.alloc(user, context, bytes, address);
  if (resets)
    reset_a();
  return status;
}

static bool fence_done_and_reset(void *user, uint64_t context, void *fence, bool wait) {
  struct b200_pool_ops real;
  fake_ops(user, &real);
  bool done = real.fence_done(user, context, fence, wait);
  if (resets)
    reset_a();
  return done;
}

START_TEST(a_context_may_be_reset_while_the_driver_is_asked) {
  begin_with(GIB, true);
  ops.alloc = alloc_and_reset;
  ops.fence_done = fence_done_and_reset;
  begin();
  get(4 * MIB);
  resets = true;
  ck_assert_int_eq(b200_pool_look(&pool, get(4 * MIB).address), B200_POOL_UNKNOWN);
  ck_assert_uint_eq(stats().live_blocks, 0);
  ck_assert_uint_eq(stats().idle_blocks, 1);

  fake_run_all(&device, 0);
  begin();
  put(get(4 * MIB).address);
  resets = true;
  ck_assert(!get(4 * MIB).hit);  /* the fence is complete, of a context that is no more … */
  ck_assert(!get(32 * MIB).hit); /* … and says nothing of the new one, whose own fence is still out */
  fake_run_all(&device, 0);
  ck_assert(get(32 * MIB).hit);
}
END_TEST

START_TEST(a_broken_context_is_served_by_the_driver) {
  begin_with(GIB, false);
  uint64_t live = get(4 * MIB).address;
  put(get(4 * MIB).address);
  synchronize(A);
  b200_pool_context_broken(&pool, A);
  device.fail_alloc = device.fail_free = 700;
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 4 * MIB), 700);
  ck_assert_int_eq(b200_pool_free(&pool, A, live, false), 700);
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 4 * MIB); /* refused: the driver shall say why */
  ck_assert_uint_eq(stats().idle_bytes, 4 * MIB);
}
END_TEST

START_TEST(a_driver_that_will_not_take_a_block_back_breaks_the_context) {
  begin_with(GIB, false);
  put(get(4 * MIB).address);
  put(get(4 * MIB).address);
  device.fail_free = 700;
  ck_assert_uint_eq(b200_pool_trim(&pool, A, 1), 4 * MIB); /* twice refused: the driver shall say why */
  ck_assert_uint_eq(stats().unreturned, 2);
  ck_assert_uint_eq(stats().idle_bytes, 8 * MIB);
  device.fail_free = 0;
  ck_assert(!get(4 * MIB).hit);
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 8 * MIB);
  ck_assert_uint_eq(stats().idle_bytes, 0);
}
END_TEST

START_TEST(idle_memory_is_bounded_and_given_back_after_a_synchronisation) {
  uint64_t addresses[6];
  begin_with(GIB, false);
  config.max_idle_bytes = 12 * MIB;
  begin();
  for (int i = 0; i < 6; i++)
    addresses[i] = get(4 * MIB).address;
  for (int i = 0; i < 6; i++) {
    fake_launch(&device, 0, i, addresses[i], true, 1);
    put(addresses[i]);
    ck_assert_uint_le(stats().idle_bytes, 12 * MIB);
  }
  ck_assert_uint_eq(stats().released, 3);
  for (int i = 0; i < 6; i++) /* the first freed went first */
    ck_assert_int_eq(b200_pool_look(&pool, addresses[i]), i < 3 ? B200_POOL_UNKNOWN : B200_POOL_IDLE);
  ck_assert_uint_eq(device.early_frees, 0);
  ck_assert_uint_ge(device.synchronisations, 1);
  ck_assert_uint_le(device.synchronisations, 3);
}
END_TEST

START_TEST(what_cannot_be_synchronised_is_not_given_back) {
  begin_with(GIB, false);
  config.max_idle_bytes = 0;
  begin();
  uint64_t address = get(4 * MIB).address;
  fake_launch(&device, 0, 0, address, true, 1);
  device.fail_synchronize = 700;
  put(address);
  ck_assert_uint_eq(device.frees, 0);
  ck_assert_int_eq(b200_pool_look(&pool, address), B200_POOL_IDLE);
}
END_TEST

START_TEST(the_job_never_holds_more_than_at_its_peak) {
  begin_with(GIB, false);
  config.within_peak = true;
  begin();
  uint64_t one = get(20 * MIB).address, other = get(40 * MIB).address;
  put(one);
  put(other);
  get(14 * MIB); /* 60 were live: 46 may stay idle */
  ck_assert_uint_eq(device.used, (40 + 14) * MIB);
  ck_assert_int_eq(b200_pool_look(&pool, other), B200_POOL_IDLE);
  ck_assert(get(40 * MIB).hit);
  get(50 * MIB);
  put(get(100 * MIB).address);
  get(60 * MIB); /* 204 were live: 40 may stay idle */
  ck_assert_uint_eq(device.used, (14 + 40 + 50 + 60) * MIB);
  ck_assert_uint_eq(device.frees, 2);
}
END_TEST

START_TEST(free_memory_counts_what_is_idle) {
  uint64_t free_bytes, total;
  begin_with(64 * MIB, false);
  ck_assert_uint_eq(free_memory(), 64 * MIB);
  uint64_t address = get(16 * MIB).address;
  ck_assert_uint_eq(free_memory(), 48 * MIB);
  put(address);
  ck_assert_uint_eq(free_memory(), 64 * MIB);
  synchronize(A);
  ck_assert_uint_eq(free_memory(), 64 * MIB);
  ck_assert(get(16 * MIB).hit);
  ck_assert_uint_eq(free_memory(), 48 * MIB);
  ck_assert_int_eq(b200_pool_info(&pool, A, NULL, &total), 0);
  ck_assert_uint_eq(total, 64 * MIB);
  ck_assert_int_eq(b200_pool_info(&pool, A, NULL, NULL), 0);
  ck_assert_int_eq(b200_pool_info(&pool, B, &free_bytes, &total), 0); /* of another context: nothing idle */
  ck_assert_uint_eq(free_bytes, 48 * MIB);
  put(address);
  device.used = 1 * MIB; /* of a driver that counts otherwise than by pages */
  ck_assert_uint_eq(free_memory(), 64 * MIB);
}
END_TEST

START_TEST(out_of_memory_takes_own_memory_first_then_what_is_idle) {
  begin_with(64 * MIB, false);
  device.used = device.own_idle = 16 * MIB;
  uint64_t one = get(10 * MIB).address, two = get(10 * MIB).address, three = get(28 * MIB).address;
  put(two);
  put(one);
  ck_assert(!get(16 * MIB).hit);
  ck_assert_uint_eq(device.trims, 1);
  ck_assert_uint_eq(device.frees, 0);
  fake_launch(&device, 0, 0, two, true, 1);
  ck_assert(!get(8 * MIB).hit); /* one of the idle ones is enough, the first freed */
  ck_assert_int_eq(b200_pool_look(&pool, two), B200_POOL_UNKNOWN);
  ck_assert_int_eq(b200_pool_look(&pool, one), B200_POOL_IDLE);
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 40 * MIB), FAKE_OUT_OF_MEMORY);
  ck_assert_uint_eq(stats().failed, 1);
  ck_assert_uint_eq(stats().idle_blocks, 0);
  ck_assert_uint_eq(stats().retries, 3);
  ck_assert_uint_eq(device.early_frees, 0);
  put(three);
}
END_TEST

static int slow_free(void *user, uint64_t context, uint64_t address, bool direct) {
  struct b200_pool_ops real;
  fake_ops(user, &real);
  atomic_fetch_add(&waiting, 1);
  while (!atomic_load(&may_end))
    sched_yield();
  return real.free(user, context, address, direct);
}

static int alloc_and_let_go(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  struct b200_pool_ops real;
  fake_ops(user, &real);
  int status = real.alloc(user, context, bytes, address);
  atomic_store(&may_end, true);
  return status;
}

static void *trim_all(void *unused) {
  b200_pool_trim(&pool, A, GIB);
  return unused;
}

/* What another thread is giving back is neither idle nor the driver's, for as long as the driver takes. */
START_TEST(out_of_memory_waits_for_what_another_thread_gives_back) {
  pthread_t thread;
  begin_with(64 * MIB, true);
  ops.free = slow_free;
  begin();
  uint64_t address = get(40 * MIB).address;
  atomic_store(&waiting, 0);
  atomic_store(&may_end, false);
  put(address);
  pthread_create(&thread, NULL, trim_all, NULL);
  while (atomic_load(&waiting) == 0)
    sched_yield();
  pool.ops.alloc = alloc_and_let_go;
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 48 * MIB), 0);
  pthread_join(thread, NULL);
  ck_assert_uint_eq(stats().retries, 1);
  ck_assert_uint_eq(stats().failed, 0);
}
END_TEST

START_TEST(out_of_memory_takes_idle_memory_of_other_contexts_too) {
  begin_with(64 * MIB, false);
  uint64_t there = get_for(B, B200_OWNER_PYTORCH, 40 * MIB).address;
  put(there);
  ck_assert(!get(40 * MIB).hit);
  ck_assert_uint_eq(stats().retries, 1);
}
END_TEST

START_TEST(the_reserve_is_for_its_owners) {
  begin_with(100 * MIB, false);
  config.reserve_bytes = 20 * MIB;
  begin();
  uint64_t address = get(60 * MIB).address;
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 22 * MIB), FAKE_OUT_OF_MEMORY);
  ck_assert_uint_eq(stats().refused, 1);
  ck_assert_uint_eq(device.allocs, 1);
  uint64_t nccl = get_for(A, B200_OWNER_NCCL, 22 * MIB).address;
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 2 * MIB), FAKE_OUT_OF_MEMORY);
  ck_assert(!b200_pool_admit(&pool, A, B200_OWNER_PYTORCH, 2 * MIB));
  ck_assert(b200_pool_admit(&pool, A, B200_OWNER_CUBLAS, 2 * MIB));
  put(nccl);
  synchronize(A);
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 22 * MIB), FAKE_OUT_OF_MEMORY); /* idle, but the reserve needs it */
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 20 * MIB), 0);
  put(address);
  synchronize(A);
  ck_assert(get(60 * MIB).hit);
}
END_TEST

START_TEST(idle_blocks_make_way_for_the_reserve) {
  begin_with(100 * MIB, false);
  config.reserve_bytes = 20 * MIB;
  begin();
  uint64_t one = get(30 * MIB).address, other = get(40 * MIB).address;
  fake_launch(&device, 0, 0, one, true, 1);
  put(one);
  ck_assert(!get(24 * MIB).hit); /* 30 free: the driver would be left with 6 */
  ck_assert_int_eq(b200_pool_look(&pool, one), B200_POOL_UNKNOWN);
  ck_assert_uint_eq(device.early_frees, 0);
  put(other);
  device.fail_synchronize = device.fail_free = device.fail_alloc = 700;
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 28 * MIB), 700); /* cannot be given back: the driver says why */
}
END_TEST

START_TEST(the_driver_is_asked_for_free_memory_only_near_the_reserve) {
  begin_with(100 * MIB, false);
  config.reserve_bytes = 20 * MIB;
  begin();
  for (int i = 0; i < 10; i++)
    get(4 * MIB);
  ck_assert_uint_eq(device.infos, 1);
  device.used += 40 * MIB; /* by others, who say so */
  b200_pool_note(&pool, A, 40 * (int64_t)MIB);
  ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 4 * MIB), FAKE_OUT_OF_MEMORY);
  ck_assert_uint_eq(device.infos, 2);
  device.used -= 40 * MIB; /* and who do not: a refusal is never by estimate */
  get(4 * MIB);
  ck_assert_uint_eq(device.infos, 3);
  b200_pool_note(&pool, A, -40 * (int64_t)MIB);
  get(4 * MIB);
  ck_assert_uint_eq(device.infos, 3);
}
END_TEST

START_TEST(a_rescue_of_an_owner_of_the_reserve_is_counted) {
  begin_with(64 * MIB, false);
  uint64_t address = get(60 * MIB).address;
  put(address);
  get_for(A, B200_OWNER_NCCL, 30 * MIB);
  ck_assert_uint_eq(stats().rescues, 1);
  ck_assert_uint_eq(device.synchronisations, 1);
}
END_TEST

START_TEST(poison_fills_every_block_before_it_is_handed_out) {
  struct b200_pool_ops with;
  begin_with(GIB, false);
  fake_ops(&device, &with);
  ops.poison = with.poison;
  config.wait = true;
  begin();
  uint64_t address = get(4 * MIB).address;
  fake_launch(&device, 0, 0, address, true, 1);
  put(address);
  ck_assert(get(4 * MIB).hit);
  put(address);
  synchronize(A);
  ck_assert(get(4 * MIB).hit);
  ck_assert_uint_eq(device.poisons, 3);
  ck_assert_uint_eq(fake_wrongs(&device), 0);
}
END_TEST

START_TEST(off_and_observe_leave_everything_to_the_driver) {
  for (int mode = B200_POOL_OFF; mode <= B200_POOL_OBSERVE; mode++) {
    begin_with(64 * MIB, true);
    config.mode = (enum b200_pool_mode)mode;
    config.reserve_bytes = 60 * MIB;
    begin();
    uint64_t address = get(16 * MIB).address;
    put(address);
    ck_assert_int_eq(b200_pool_free(&pool, A, address, false), FAKE_INVALID);
    ck_assert_int_eq(try_for(B200_OWNER_PYTORCH, 100 * MIB), FAKE_OUT_OF_MEMORY);
    ck_assert_uint_eq(b200_pool_sync_begin(&pool, A), 0);
    ck_assert(b200_pool_admit(&pool, A, B200_OWNER_PYTORCH, 64 * MIB));
    ck_assert_uint_eq(device.allocs, 2);
    ck_assert_uint_eq(device.direct_frees, 2);
    ck_assert_uint_eq(device.fences + device.synchronisations + device.infos + device.trims, 0);
    ck_assert_uint_eq(stats().driver_calls, mode == B200_POOL_OFF ? 0 : 4);
    ck_assert_uint_eq(stats().failed, mode == B200_POOL_OFF ? 0 : 1);
    ck_assert_uint_eq(free_memory(), 64 * MIB);
  }
}
END_TEST

START_TEST(after_a_stop_the_pool_calls_nothing_by_itself) {
  begin_with(GIB, true);
  config.max_idle_bytes = 0;
  begin();
  uint64_t live = get(4 * MIB).address;
  b200_pool_stop(&pool);
  uint64_t calls = device.synchronisations + device.fences;
  put(live);
  ck_assert_uint_eq(device.direct_frees, 1);
  ck_assert_uint_eq(b200_pool_trim(&pool, A, GIB), 0);
  ck_assert_uint_eq(device.synchronisations + device.fences, calls);
}
END_TEST

START_TEST(a_forked_child_forgets) {
  begin_with(GIB, false);
  uint64_t live = get(4 * MIB).address;
  put(get(8 * MIB).address);
  pthread_mutex_lock(&pool.lock); /* as another thread might */
  pid_t child = fork();
  if (child == 0) {
    alarm(30);
    b200_pool_forget(&pool);
    bool good = b200_pool_look(&pool, live) == B200_POOL_UNKNOWN && device.frees == 0 &&
                b200_pool_free(&pool, A, live, false) == 0 && device.direct_frees == 1 && stats().idle_bytes == 0;
    _exit(good ? 0 : 1);
  }
  pthread_mutex_unlock(&pool.lock);
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ck_assert_int_eq(b200_pool_look(&pool, live), B200_POOL_LIVE);
}
END_TEST

START_TEST(an_address_that_comes_again_was_freed_unseen) {
  begin_with(GIB, false);
  struct b200_pool_ops real;
  fake_ops(&device, &real);
  uint64_t address = get(4 * MIB).address;
  device.vacant_count = 0; /* nothing else to hand out */
  ck_assert_int_eq(real.free(&device, A, address, true), 0);
  ck_assert_uint_eq(get(8 * MIB).address, address);
  ck_assert_uint_eq(stats().live_blocks, 1);
  put(address);
  synchronize(A);
  ck_assert_uint_eq(get(8 * MIB).bytes, 8 * MIB);
}
END_TEST

static int alloc_somewhere(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  (void)user, (void)bytes;
  *address = context << 40;
  return 0;
}

START_TEST(contexts_beyond_the_table_pass_through) {
  begin_with(GIB, false);
  ops.alloc = alloc_somewhere;
  begin();
  for (uint64_t context = 1; context <= B200_POOL_CONTEXTS + 1; context++) {
    struct b200_pool_grant grant = get_for(context, B200_OWNER_PYTORCH, 4 * MIB);
    ck_assert_int_eq(b200_pool_look(&pool, grant.address),
                     context <= B200_POOL_CONTEXTS ? B200_POOL_LIVE : B200_POOL_UNKNOWN);
  }
  b200_pool_peer(&pool, A, B200_POOL_CONTEXTS + 1);                         /* whose synchronisations cannot be followed */
  ck_assert_int_eq(b200_pool_free(&pool, A, A << 40, false), FAKE_INVALID); /* the fake does not know it, but was asked */
}
END_TEST

/* Operations under which the lock of the pool must be free. */
static struct b200_pool_ops inner;
static unsigned locked, called;

static void expect_unlocked(void) {
  called++;
  if (pthread_mutex_trylock(&pool.lock) == 0)
    pthread_mutex_unlock(&pool.lock);
  else
    locked++;
}

static int check_alloc(void *user, uint64_t context, uint64_t bytes, uint64_t *address) {
  expect_unlocked();
  return inner.alloc(user, context, bytes, address);
}

static int check_free(void *user, uint64_t context, uint64_t address, bool direct) {
  expect_unlocked();
  return inner.free(user, context, address, direct);
}

static int check_info(void *user, uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes) {
  expect_unlocked();
  return inner.info(user, context, free_bytes, total_bytes);
}

static int check_synchronize(void *user, uint64_t context) {
  expect_unlocked();
  return inner.synchronize(user, context);
}

static void *check_fence(void *user, uint64_t context, void *again) {
  expect_unlocked();
  return called % 4 == 0 ? NULL : inner.fence(user, context, again);
}

static bool check_fence_done(void *user, uint64_t context, void *fence, bool wait) {
  expect_unlocked();
  return inner.fence_done(user, context, fence, wait);
}

static uint64_t check_trim_own(void *user, uint64_t context) {
  expect_unlocked();
  return inner.trim_own(user, context);
}

static void check_poison(void *user, uint64_t context, uint64_t address, uint64_t bytes) {
  expect_unlocked();
  inner.poison(user, context, address, bytes);
}

START_TEST(no_operation_runs_under_the_lock) {
  begin_with(64 * MIB, true);
  fake_ops(&device, &inner);
  ops = (struct b200_pool_ops){.user = &device,
                               .out_of_memory = FAKE_OUT_OF_MEMORY,
                               .invalid_value = FAKE_INVALID,
                               .alloc = check_alloc,
                               .free = check_free,
                               .info = check_info,
                               .synchronize = check_synchronize,
                               .capturing = inner.capturing,
                               .fence = check_fence,
                               .fence_done = check_fence_done,
                               .trim_own = check_trim_own,
                               .poison = check_poison};
  config.wait = true;
  config.reserve_bytes = 2 * MIB;
  config.max_idle_bytes = 40 * MIB;
  begin();
  for (uint64_t i = 0; i < 200; i++) {
    uint64_t one = get((2 + i % 13) * MIB).address, other = get((4 + i % 7 * 2) * MIB).address;
    fake_launch(&device, 0, (int)(i % FAKE_STREAMS), one, true, 1);
    if (i % 20 == 0)
      b200_pool_pin(&pool, other, 1);
    put(one);
    put(other);
    free_memory();
    if (i % 10 == 0)
      ck_assert_int_eq(try_for(B200_OWNER_NCCL, 70 * MIB), FAKE_OUT_OF_MEMORY);
    b200_pool_trim(&pool, A, i % 50 == 0 ? GIB : 0);
    fake_run(&device, 4);
  }
  ck_assert_uint_eq(locked, 0);
  ck_assert_uint_gt(called, 1000);
  ck_assert(device.fence_waits && device.synchronisations && device.trims && device.direct_frees);
}
END_TEST

#define UNIT_CASES(X)                                                                                                       \
  X(an_allocation_is_one_of_the_driver_with_the_bytes_asked_for)                                                            \
  X(small_and_empty_requests_pass_through)                                                                                  \
  X(errors_of_the_driver_pass_unchanged_and_write_nothing)                                                                  \
  X(only_a_synchronisation_that_began_after_the_free_counts)                                                                \
  X(synchronisations_that_end_in_another_order_count_by_their_beginning)                                                    \
  X(a_block_is_safe_once_the_work_from_before_its_free_is_done)                                                             \
  X(waiting_is_for_the_work_from_before_the_free_only)                                                                      \
  X(a_newer_fence_does_for_an_older_free)                                                                                   \
  X(of_blocks_in_quarantine_the_smallest_is_waited_for)                                                                     \
  X(fences_are_few_and_used_again)                                                                                          \
  X(a_fence_that_cannot_be_recorded_again_stands_for_what_it_did)                                                           \
  X(frees_that_wait_leave_a_fence_for_one_that_does_not)                                                                    \
  X(without_a_fence_the_context_is_waited_for)                                                                              \
  X(a_free_that_waits_ends_after_the_work_of_its_context)                                                                   \
  X(a_free_that_cannot_wait_is_the_drivers)                                                                                 \
  X(a_peer_is_waited_for_only_when_memory_has_run_out)                                                                      \
  X(one_synchronisation_serves_many_frees)                                                                                  \
  X(a_synchronisation_that_fails_makes_nothing_safe)                                                                        \
  X(the_smallest_block_of_as_many_pages_is_taken)                                                                           \
  X(of_equal_blocks_the_first_freed_is_taken)                                                                               \
  X(blocks_stay_with_their_context)                                                                                         \
  X(with_a_peer_both_contexts_must_have_synchronised)                                                                       \
  X(what_is_not_the_base_of_a_block_passes_through)                                                                         \
  X(a_second_free_is_an_error)                                                                                              \
  X(pinned_blocks_are_never_handed_out_again)                                                                               \
  X(a_pin_covers_a_range_and_nothing_beside_it)                                                                             \
  X(registered_blocks_are_the_drivers_until_given_up)                                                                       \
  X(a_free_that_the_driver_refuses_leaves_the_block)                                                                        \
  X(before_a_capture_what_is_idle_goes)                                                                                     \
  X(in_a_capture_everything_is_the_drivers)                                                                                 \
  X(blocks_of_a_context_that_is_gone_are_forgotten_not_freed)                                                               \
  X(a_context_may_go_while_the_pool_waits_for_it)                                                                           \
  X(a_context_may_be_reset_while_the_driver_is_asked)                                                                       \
  X(a_broken_context_is_served_by_the_driver)                                                                               \
  X(a_driver_that_will_not_take_a_block_back_breaks_the_context)                                                            \
  X(idle_memory_is_bounded_and_given_back_after_a_synchronisation)                                                          \
  X(what_cannot_be_synchronised_is_not_given_back)                                                                          \
  X(the_job_never_holds_more_than_at_its_peak)                                                                              \
  X(free_memory_counts_what_is_idle)                                                                                        \
  X(out_of_memory_takes_own_memory_first_then_what_is_idle)                                                                 \
  X(out_of_memory_waits_for_what_another_thread_gives_back)                                                                 \
  X(out_of_memory_takes_idle_memory_of_other_contexts_too)                                                                  \
  X(the_reserve_is_for_its_owners)                                                                                          \
  X(idle_blocks_make_way_for_the_reserve)                                                                                   \
  X(the_driver_is_asked_for_free_memory_only_near_the_reserve)                                                              \
  X(a_rescue_of_an_owner_of_the_reserve_is_counted)                                                                         \
  X(poison_fills_every_block_before_it_is_handed_out)                                                                       \
  X(off_and_observe_leave_everything_to_the_driver)                                                                         \
  X(after_a_stop_the_pool_calls_nothing_by_itself)                                                                          \
  X(a_forked_child_forgets)                                                                                                 \
  X(an_address_that_comes_again_was_freed_unseen)                                                                           \
  X(contexts_beyond_the_table_pass_through)                                                                                 \
  X(no_operation_runs_under_the_lock)

UNIT_MAIN("pool", UNIT_CASES)
