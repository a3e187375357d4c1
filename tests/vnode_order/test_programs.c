/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every program in every order: the right version computes right numbers and nothing is reported; of the wrong version the
 * checker names the mistake, whatever the seed, and where numbers can show it, they do in some order; for that, more seeds
 * are tried when it has to be.
 *
 * B200_TEST_SEEDS: how many seeds of the adversarial order (6). B200_TEST_TABLE=1: prints where numbers showed.
 */
#include "tests/vnode/vnode_test.h"
#include "tests/vnode_order/programs.h"

enum { TEXT_BYTES = 1 << 16, MOST_SEEDS = 100 };

struct call {
  const struct program *program;
  bool wrong;
  const char *order;
  int seed;
};

struct result {
  bool right; /* false: wrong numbers, or it crashed */
  char text[TEXT_BYTES];
};

static void run_program(void *argument) {
  const struct call *call = argument;
  char seed[16];
  snprintf(seed, sizeof seed, "%d", call->seed);
  setenv("B200OPT_VNODE_ORDER", call->order, 1);
  setenv("B200OPT_VNODE_SEED", seed, 1);
  signal(SIGALRM, SIG_DFL);
  alarm(60);
  fixture_begin();
  exit(call->program->run(call->wrong) ? 0 : 1);
}

static void run(const struct call *call, struct result *result) {
  int status = in_child_with_stderr(run_program, (void *)(uintptr_t)call, result->text, sizeof result->text);
  bool ended = WIFEXITED(status) && WEXITSTATUS(status) <= 1;
  ck_assert_msg(ended || (call->wrong && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV),
                "%s (%s) in %s order, seed %d: status %#x: %s", call->program->name, call->wrong ? "wrong" : "right",
                call->order, call->seed, (unsigned)status, result->text);
  result->right = WIFEXITED(status) && !WEXITSTATUS(status);
}

static bool is_reported(const struct program *program, const char *text) {
  char line[160], which[80];
  snprintf(line, sizeof line, "b200vnode: race: %s: %s", program->kind, program->newer);
  snprintf(which, sizeof which, "which %s", program->older);
  for (const char *at = strstr(text, line); at; at = strstr(at + 1, line)) {
    const char *end = strchr(at, '\n'), *older = strstr(at, which);
    if (!*program->older || (older && older < end))
      return true;
  }
  return false;
}

static void check_right(const struct program *program, const char *order, int seed) {
  static struct result result;
  run(&(struct call){program, false, order, seed}, &result);
  ck_assert_msg(result.right, "%s: wrong numbers in %s order, seed %d", program->name, order, seed);
  ck_assert_msg(!*result.text, "%s: in %s order, seed %d: %s", program->name, order, seed, result.text);
}

/* True when the numbers were wrong. */
static bool check_wrong(const struct program *program, const char *order, int seed) {
  static struct result result;
  run(&(struct call){program, true, order, seed}, &result);
  bool harmless = program->kind && !strcmp(program->kind, "host memory changed") && result.right; /* it had run before */
  ck_assert_msg(harmless || (program->kind ? is_reported(program, result.text) : !*result.text),
                "%s: in %s order, seed %d: expected \"%s: %s … %s\", got: %s", program->name, order, seed, program->kind,
                program->newer, program->older, result.text);
  return !result.right;
}

static void check_program(const struct program *program) {
  const char *count = getenv("B200_TEST_SEEDS"), *table = getenv("B200_TEST_TABLE");
  int seeds = count ? atoi(count) : 6, shown = 0, seed;
  check_right(program, "eager", 0);
  check_right(program, "deferred", 0);
  for (seed = 1; seed <= seeds; seed++)
    check_right(program, "adversarial", seed);
  if (program->right_only)
    return;
  bool deferred = check_wrong(program, "deferred", 0);
  for (seed = 1; seed <= seeds || (program->shows && !deferred && !shown && seed <= MOST_SEEDS); seed++)
    shown += check_wrong(program, "adversarial", seed);
  if (table)
    printf("%-48s wrong numbers: deferred %s, adversarial %d of %d seeds\n", program->name, deferred ? "yes" : "no", shown,
           seed - 1);
  ck_assert_msg(!program->shows || deferred || shown, "%s: the numbers never showed it", program->name);
}

START_TEST(stream_program) {
  check_program(&stream_programs[_i]);
}
END_TEST

START_TEST(memory_program) {
  check_program(&memory_programs[_i]);
}
END_TEST

START_TEST(library_program) {
  check_program(&library_programs[_i]);
}
END_TEST

static void add(Suite *suite, const char *name, const TTest *test, const struct program *programs) {
  int count = 0;
  while (programs[count].name)
    count++;
  TCase *cases = tcase_create(name);
  tcase_add_checked_fixture(cases, own_session, NULL);
  tcase_set_timeout(cases, 3600);
  tcase_add_loop_test(cases, test, 0, count);
  suite_add_tcase(suite, cases);
}

int main(void) {
  Suite *suite = suite_create("order");
  add(suite, "streams", stream_program, stream_programs);
  add(suite, "memory", memory_program, memory_programs);
  add(suite, "libraries", library_program, library_programs);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
