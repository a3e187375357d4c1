/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that never joins: the others stop waiting at ATTACH_LIMIT_MS. Built from the stand-in's sources with a short limit.
 */
#include <check.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

static void incomplete(struct rank *rank, const void *context) {
  ncclUniqueId id = rank_id(rank, 0);
  ncclComm_t comm = NULL;
  (void)context;
  if (rank->rank == 2) {
    while (atomic_load(&rank->board->word[0]) < 2)
      usleep(1000);
    return;
  }
  CHECK_CODE(rank, ncclCommInitRank(&comm, rank->nranks, id, rank->rank), ncclRemoteError);
  /* The first to give up names the absentee; the other may learn of it from the first. */
  CHECK(rank, strstr(ncclGetLastError(NULL), "rank 2 of 3 has not joined") || strstr(ncclGetLastError(NULL), "destroyed"),
        "text: %s", ncclGetLastError(NULL));
  atomic_fetch_add(&rank->board->word[0], 1);
}

START_TEST(test_incomplete) {
  ranks_run(3, incomplete, NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("vnode_nccl attach limit");
  TCase *tests = tcase_create("attach");
  tcase_set_timeout(tests, 2 * RANKS_LIMIT_S);
  tcase_add_test(tests, test_incomplete);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
