/* SPDX-License-Identifier: Apache-2.0 */
/* One suite, one main: a test file lists its cases in a UNIT_CASES(X) macro and ends with UNIT_MAIN(name). Check prints the
   closing line. */
#ifndef B200_UNIT_H
#define B200_UNIT_H

#include <check.h>
#include <stdlib.h>

#define UNIT_ADD(name) tcase_add_test(tcase, name);
#define UNIT_MAIN(suite_name, cases)                                                                                        \
  int main(void) {                                                                                                          \
    Suite *suite = suite_create(suite_name);                                                                                \
    TCase *tcase = tcase_create("all");                                                                                     \
    tcase_set_timeout(tcase, 60);                                                                                           \
    cases(UNIT_ADD) suite_add_tcase(suite, tcase);                                                                          \
    SRunner *runner = srunner_create(suite);                                                                                \
    srunner_run_all(runner, CK_NORMAL);                                                                                     \
    int failed = srunner_ntests_failed(runner);                                                                             \
    srunner_free(runner);                                                                                                   \
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;                                                                       \
  }

#endif
