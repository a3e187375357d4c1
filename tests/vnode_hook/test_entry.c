/* SPDX-License-Identifier: Apache-2.0 */
/* What a function gets and gives through its generated entry, on a library made for it. */
#include <dlfcn.h>

#include "hook.h"
#include "probe.h"
#include "tests/vnode/vnode_test.h"

/* Every state of a hook: plain, with a fault that is not met, traced, traced behind the call. */
static void call_all(void) {
  ck_assert_int_eq(probeIntegers(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19), 2470);
  ck_assert_double_eq(probeDoubles(1.5, 7, 2.5, 3.5, 4.5, -3, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5), 412.5 - 2300);
  ck_assert_float_eq(probeFloat(5), 2.5f);
  struct probe_small five = probeStructure(41);
  ck_assert(five.a == 41 && five.b == 42 && five.c == 43 && five.d == 44 && five.e == 45);
  struct probe_id id = {.bytes = {[0] = 5, [127] = 7}};
  void *out = NULL;
  ck_assert_int_eq(probeById(&out, 3, id, 2), 3212);
  ck_assert_ptr_eq(out, &out);
  ck_assert_str_eq(probeText(1), "text");
  ck_assert_ptr_null(probeText(0));
  ck_assert_int_eq(probeStatus(-5), -5);
  ck_assert_int_eq(probeStatus_ptsz(6), 6);
  ck_assert_int_eq(ncclProbe(7), 7);
  ck_assert_int_eq(pncclProbe(8), 8);
}

START_TEST(arguments_and_results_pass_through) {
  call_all();
  call_all(); /* the first call of a hook is another path */
}
END_TEST

START_TEST(arguments_and_results_pass_through_with_faults) {
  setenv("B200OPT_VNODE_FAULT",
         "probeIntegers:9:die,probeDoubles:9:die,probeFloat:9:die,probeStructure:9:die,probeById:9:1,probeText:9:die,"
         "probeStatus:9:1,ncclProbe:9:1",
         1);
  call_all();
  call_all();
}
END_TEST

START_TEST(arguments_and_results_pass_through_with_a_trace) {
  setenv("B200OPT_VNODE_TRACE", "/dev/null/", 1); /* cannot be written: said, and nothing else changes */
  call_all();
  call_all();
}
END_TEST

START_TEST(the_function_sees_its_caller) {
  Dl_info info;
  ck_assert(dladdr((void *)(uintptr_t)call_all, &info));
  ck_assert_str_eq(probeCaller(), info.dli_fname);
}
END_TEST

START_TEST(calls_inside_the_library_are_not_entered) {
  setenv("B200OPT_VNODE_FAULT", "probeStatus:1:33", 1);
  ck_assert_int_eq(probeInside(5), 5);
  ck_assert_int_eq(probeStatus(5), 33);
  ck_assert_int_eq(probeInside(6), 6);
}
END_TEST

START_TEST(a_fault_has_no_side_effect_and_is_told) {
  setenv("B200OPT_VNODE_FAULT", "probeStatus:2:33;probeById:1:44", 1);
  void *out = NULL;
  struct probe_id id = {.bytes = {0}};
  ck_assert_int_eq(probeStatus(5), 5);
  ck_assert_int_eq(probeFailed(), 0);
  ck_assert_int_eq(probeStatus(5), 33);
  ck_assert_int_eq(probeFailed(), 33);
  ck_assert_int_eq(probeCalls(), 1);
  ck_assert_int_eq(probeById(&out, 1, id, 1), 44);
  ck_assert_ptr_null(out);
}
END_TEST

START_TEST(names_of_one_function_count_together) {
  setenv("B200OPT_VNODE_FAULT", "ncclProbe:3:33,probeStatus:2:44", 1);
  ck_assert_int_eq(ncclProbe(1), 1);
  ck_assert_int_eq(pncclProbe(1), 1);
  ck_assert_int_eq(pncclProbe(1), 33);
  ck_assert_int_eq(ncclProbe(1), 1);
  ck_assert_int_eq(probeStatus_ptsz(1), 1);
  ck_assert_int_eq(probeStatus(1), 44);
  ck_assert_int_eq(probeCalls(), 4);
}
END_TEST

/* The address that dlsym gives is the entry, and a program's own ncclX goes before the weak one. */
START_TEST(what_dlsym_gives_is_the_entry) {
  setenv("B200OPT_VNODE_FAULT", "probeStatus:1:33", 1);
  int (*status)(int) = NULL;
  *(void **)&status = dlsym(RTLD_DEFAULT, "probeStatus");
  ck_assert_ptr_nonnull(status);
  ck_assert_int_eq(status(5), 33);
  ck_assert_ptr_eq(dlsym(RTLD_DEFAULT, "ncclProbe"), dlsym(RTLD_DEFAULT, "pncclProbe"));
  ck_assert_ptr_eq(dlsym(RTLD_DEFAULT, "vnode_own_probeStatus"), NULL);
}
END_TEST

static void call_missing(void *unused) {
  (void)unused;
  probeMissing();
}

START_TEST(what_is_not_there_ends_the_process_by_name) {
  char text[512];
  int status = in_child_with_stderr(call_missing, NULL, text, sizeof text);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  ck_assert_ptr_nonnull(strstr(text, "probeMissing is not implemented"));
}
END_TEST

int main(void) {
  const TTest *const tests[] = {arguments_and_results_pass_through,
                                arguments_and_results_pass_through_with_faults,
                                arguments_and_results_pass_through_with_a_trace,
                                the_function_sees_its_caller,
                                calls_inside_the_library_are_not_entered,
                                a_fault_has_no_side_effect_and_is_told,
                                names_of_one_function_count_together,
                                what_dlsym_gives_is_the_entry,
                                what_is_not_there_ends_the_process_by_name};
  return run_tests("entry", tests, sizeof tests / sizeof *tests);
}
