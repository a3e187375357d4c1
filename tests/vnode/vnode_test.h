/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the node. Check runs each test in a fork of a process that never used the node. */
#ifndef VNODE_TEST_H
#define VNODE_TEST_H

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"

#define GIB ((size_t)1 << 30)
#define MIB ((size_t)1 << 20)

/* A session of its own for each test, so that parallel tests do not share memory accounts. */
static void own_session(void) {
  char name[64];
  snprintf(name, sizeof name, "test-%ld", (long)getpid());
  setenv("B200OPT_VNODE_SESSION", name, 1);
}

/* Runs `body` in a child; its exit status as of waitpid(). */
static int in_child(void (*body)(void *), void *argument) {
  fflush(NULL);
  pid_t pid = fork();
  if (!pid) {
    body(argument);
    exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

/* The same with what it wrote to stderr in `text`. */
__attribute__((unused)) static int in_child_with_stderr(void (*body)(void *), void *argument, char *text,
                                                        size_t text_bytes) {
  FILE *file = tmpfile();
  int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  int status = in_child(body, argument);
  dup2(saved, STDERR_FILENO);
  close(saved);
  rewind(file);
  text[fread(text, 1, text_bytes - 1, file)] = 0;
  fclose(file);
  return status;
}

__attribute__((unused)) static int run_tests(const char *name, const TTest *const *tests, size_t count) {
  Suite *suite = suite_create(name);
  TCase *cases = tcase_create(name);
  tcase_add_checked_fixture(cases, own_session, NULL);
  tcase_set_timeout(cases, 60);
  for (size_t i = 0; i < count; i++)
    tcase_add_test(cases, tests[i]);
  suite_add_tcase(suite, cases);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}

#endif
