/* SPDX-License-Identifier: Apache-2.0 */
/* interpose/nvml.c against a fake NVML and a fake CUDA driver. Check runs each test in a process of its own. */
#include "interpose/nvml.h"
#include "interpose/real.h"
#include "tests/unit/unit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the driver */

static int context_status, uuid_status;

static int get_device(int *device) {
  *device = 3;
  return context_status;
}

static int get_uuid(void *uuid, int device) {
  for (int i = 0; i < 16; i++)
    ((unsigned char *)uuid)[i] = (unsigned char)(i * 16 + device);
  return uuid_status;
}

static int get_place(char *place, int bytes, int device) {
  snprintf(place, (size_t)bytes, "0000:%02x:00.0", device);
  return 0;
}

void *b200_library_symbol(enum b200_library library, const char *name) {
  ck_assert_int_eq(library, B200_LIBRARY_cuda);
  return strcmp(name, "cuCtxGetDevice") == 0       ? (void *)get_device
         : strcmp(name, "cuDeviceGetUuid_v2") == 0 ? (void *)get_uuid
                                                   : (void *)get_place;
}

void *b200_real_dlsym(void *handle, const char *name) {
  return dlsym(handle, name);
}

#define UUID "03132333-4353-6373-8393-a3b3c3d3e3f3"

static struct b200_nvml_sample sample;
static char complaint[160];

static enum b200_nvml_answer look(void) {
  return b200_nvml_look(&sample, complaint, sizeof complaint);
}

START_TEST(a_sample) {
  struct b200_nvml_sample latest;
  setenv("FAKE_KNOWS", "GPU-" UUID, 1);
  ck_assert_int_eq(look(), B200_NVML_LATER); /* nobody has said which device */
  context_status = 201;
  b200_nvml_learn(); /* a thread without a context */
  ck_assert_int_eq(look(), B200_NVML_LATER);
  ck_assert(!b200_nvml_latest(&latest));
  context_status = 0;
  b200_nvml_learn();
  ck_assert_int_eq(look(), B200_NVML_TAKEN);
  ck_assert_str_eq(complaint, "");
  ck_assert_int_eq(sample.util_pct, 97);
  ck_assert_int_eq(sample.mem_util_pct, 41);
  ck_assert_int_eq(sample.mem_used, 600);
  ck_assert_int_eq(sample.mem_total, 1000);
  ck_assert_int_eq(sample.power_mw, 700000);
  ck_assert_int_eq(sample.sm_mhz, -1); /* the function is missing */
  ck_assert_int_eq(sample.temp_c, -1);
  ck_assert_int_eq(sample.throttle, 4); /* by its older name */
  ck_assert_int_gt(sample.t_ns, 0);
  ck_assert(b200_nvml_latest(&latest));
  ck_assert_int_eq(memcmp(&latest, &sample, sizeof sample), 0);
}
END_TEST

START_TEST(a_device_by_its_place) {
  setenv("FAKE_KNOWS", "0000:03:00.0", 1);
  uuid_status = _i ? 801 : 0; /* a driver without the function; an NVML that does not know the UUID */
  b200_nvml_learn();
  ck_assert_int_eq(look(), B200_NVML_TAKEN);
}
END_TEST

START_TEST(an_instance_answers_for_its_memory) {
  setenv("FAKE_KNOWS", "MIG-" UUID, 1);
  setenv("FAKE_MIG", "1", 1);
  b200_nvml_learn();
  ck_assert_int_eq(look(), B200_NVML_TAKEN);
  ck_assert_int_eq(sample.util_pct, -1);
  ck_assert_int_eq(sample.mem_util_pct, -1);
  ck_assert_int_eq(sample.power_mw, -1);
  ck_assert_int_eq(sample.mem_used, 600);
}
END_TEST

START_TEST(what_fails_is_said_once) {
  static const struct {
    const char *init, *knows, *said;
  } cases[] = {{"9", "GPU-" UUID, "NVML cannot be used: nvmlInit status=9; no samples of the device are taken"},
               {"0", "GPU-0", "NVML does not know this device; no samples of it are taken"}};
  setenv("FAKE_INIT", cases[_i].init, 1);
  setenv("FAKE_KNOWS", cases[_i].knows, 1);
  b200_nvml_learn();
  ck_assert_int_eq(look(), B200_NVML_NEVER);
  ck_assert_str_eq(complaint, cases[_i].said);
  ck_assert_int_eq(look(), B200_NVML_NEVER);
  ck_assert_str_eq(complaint, "");
}
END_TEST

START_TEST(a_slow_one_is_asked_once) {
  setenv("FAKE_KNOWS", "GPU-" UUID, 1);
  setenv("FAKE_SLOW_MS", "1000", 1);
  b200_nvml_learn();
  ck_assert_int_eq(look(), B200_NVML_TAKEN); /* what it said is right all the same */
  ck_assert_ptr_nonnull(strstr(complaint, "for one look at the device; no more are taken"));
  ck_assert_int_eq(look(), B200_NVML_NEVER);
  ck_assert_str_eq(complaint, "");
}
END_TEST

START_TEST(a_child_of_one_that_asked_does_not) {
  setenv("FAKE_KNOWS", "GPU-" UUID, 1);
  b200_nvml_learn();
  if (_i)
    ck_assert_int_eq(look(), B200_NVML_TAKEN);
  b200_nvml_forget(); /* as in the child */
  ck_assert_int_eq(look(), _i ? B200_NVML_NEVER : B200_NVML_LATER);
  b200_nvml_learn();
  ck_assert_int_eq(look(), _i ? B200_NVML_NEVER : B200_NVML_TAKEN);
}
END_TEST

static void *look_in_a_thread(void *unused) {
  (void)unused;
  look();
  return NULL;
}

static int looked_after; /* by a destructor of libraries, which NVML's end is */

__attribute__((destructor)) static void libraries_end(void) {
  if (looked_after)
    _exit(sample.t_ns > 0 && look() == B200_NVML_NEVER ? 42 : 1);
}

/* exit() waits for the look under way, and no other one begins. */
START_TEST(exit_waits_for_a_look) {
  int status;
  setenv("FAKE_KNOWS", "GPU-" UUID, 1);
  setenv("FAKE_SLOW_MS", "200", 1);
  pid_t child = fork();
  if (child == 0) {
    pthread_t thread;
    looked_after = 1;
    b200_nvml_learn();
    pthread_create(&thread, NULL, look_in_a_thread, NULL);
    usleep(50000);
    exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(WEXITSTATUS(status), 42);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("nvml");
  TCase *tcase = tcase_create("all");
  tcase_set_timeout(tcase, 60);
  tcase_add_test(tcase, a_sample);
  tcase_add_loop_test(tcase, a_device_by_its_place, 0, 2);
  tcase_add_test(tcase, an_instance_answers_for_its_memory);
  tcase_add_loop_test(tcase, what_fails_is_said_once, 0, 2);
  tcase_add_test(tcase, a_slow_one_is_asked_once);
  tcase_add_loop_test(tcase, a_child_of_one_that_asked_does_not, 0, 2);
  tcase_add_test(tcase, exit_waits_for_a_look);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
