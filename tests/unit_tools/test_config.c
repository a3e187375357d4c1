/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/config.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct b200_config config;
static char path[] = "config-XXXXXX";

static void write_file(const char *text) {
  strcpy(path, "config-XXXXXX");
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
  close(file);
}

static void load(char *const *environment) {
  errno = 7;
  b200_config_load_from(&config, environment);
  ck_assert_int_eq(errno, 7);
}

/* The member of a CHOICE row. */
static int choice_of(enum b200_env_index index) {
  static const struct {
    enum b200_env_index index;
    const int *member;
  } members[] = {
      {B200_ENV_mode, &config.mode},
      {B200_ENV_precision, &config.precision},
      {B200_ENV_strategy, &config.strategy},
      {B200_ENV_fprop, &config.fprop},
      {B200_ENV_dgrad, &config.dgrad},
      {B200_ENV_wgrad, &config.wgrad},
      {B200_ENV_fp8_recipe, &config.fp8_recipe},
      {B200_ENV_fp8_grad_format, &config.fp8_grad_format},
      {B200_ENV_mx_round, &config.mx_round},
      {B200_ENV_guard, &config.guard},
      {B200_ENV_memory, &config.memory},
      {B200_ENV_memory_stacks, &config.memory_stacks},
      {B200_ENV_memory_trace, &config.memory_trace},
      {B200_ENV_loss, &config.loss},
      {B200_ENV_log_level, &config.log_level},
  };
  for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
    if (members[i].index == index)
      return *members[i].member;
  return -1;
}

START_TEST(takes_other_words) {
  load((char *[]){"B200OPT_PRECISION=bf16", "B200OPT_STRATEGY=eager", "B200OPT_WGRAD=bf16", NULL});
  ck_assert_int_eq(config.complaint_count, 0);
  ck_assert_int_eq(config.precision, B200_PRECISION_NATIVE);
  ck_assert_int_eq(config.strategy, B200_STRATEGY_ALWAYS);
  ck_assert_int_eq(config.wgrad, B200_ROLE_NATIVE);
}
END_TEST

/* The choices are declared twice: as text in env.def, as enums in config.h. */
START_TEST(choices_have_the_order_of_the_table) {
  static const struct {
    enum b200_env_index index;
    int choice;
    const char *text;
  } choices[] = {
      {B200_ENV_mode, B200_MODE_ON, "on"},
      {B200_ENV_mode, B200_MODE_OFF, "off"},
      {B200_ENV_precision, B200_PRECISION_OBSERVE, "observe"},
      {B200_ENV_precision, B200_PRECISION_NATIVE, "native"},
      {B200_ENV_precision, B200_PRECISION_AUTO, "auto"},
      {B200_ENV_precision, B200_PRECISION_FP8, "fp8"},
      {B200_ENV_precision, B200_PRECISION_MXFP8, "mxfp8"},
      {B200_ENV_strategy, B200_STRATEGY_PERFORMANT, "performant"},
      {B200_ENV_strategy, B200_STRATEGY_ALWAYS, "always"},
      {B200_ENV_fprop, B200_ROLE_INHERIT, "inherit"},
      {B200_ENV_dgrad, B200_ROLE_NATIVE, "native"},
      {B200_ENV_wgrad, B200_ROLE_AUTO, "auto"},
      {B200_ENV_fprop, B200_ROLE_FP8, "fp8"},
      {B200_ENV_dgrad, B200_ROLE_MXFP8, "mxfp8"},
      {B200_ENV_fp8_recipe, B200_FP8_CURRENT, "current"},
      {B200_ENV_fp8_grad_format, B200_GRAD_E5M2, "e5m2"},
      {B200_ENV_fp8_grad_format, B200_GRAD_E4M3, "e4m3"},
      {B200_ENV_mx_round, B200_MX_ROUND_RCEIL, "rceil"},
      {B200_ENV_mx_round, B200_MX_ROUND_FLOOR, "floor"},
      {B200_ENV_mx_round, B200_MX_ROUND_EVEN, "even"},
      {B200_ENV_guard, B200_GUARD_ON, "on"},
      {B200_ENV_guard, B200_GUARD_OFF, "off"},
      {B200_ENV_guard, B200_GUARD_STRICT, "strict"},
      {B200_ENV_memory, B200_MEMORY_OBSERVE, "observe"},
      {B200_ENV_memory, B200_MEMORY_OFF, "off"},
      {B200_ENV_memory_stacks, B200_STACKS_OFF, "off"},
      {B200_ENV_memory_stacks, B200_STACKS_ON, "on"},
      {B200_ENV_memory_trace, B200_MEMORY_TRACE_OFF, "off"},
      {B200_ENV_memory_trace, B200_MEMORY_TRACE_ON, "on"},
      {B200_ENV_loss, B200_LOSS_ON, "on"},
      {B200_ENV_loss, B200_LOSS_OFF, "off"},
      {B200_ENV_log_level, B200_LOG_SILENT, "silent"},
      {B200_ENV_log_level, B200_LOG_WARN, "warn"},
      {B200_ENV_log_level, B200_LOG_INFO, "info"},
  };
  for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
    const struct b200_env_row *row = b200_env_job_row(choices[i].index);
    char setting[128];
    char text[32];
    snprintf(setting, sizeof(setting), "%s=%s", row->name, choices[i].text);
    load((char *[]){setting, NULL});
    ck_assert_int_eq(config.complaint_count, 0);
    ck_assert_str_eq(b200_config_value(&config, choices[i].index, text, sizeof(text)), choices[i].text);
    ck_assert_int_eq(choice_of(choices[i].index), choices[i].choice);
  }
  load((char *[]){"B200OPT=off", "B200OPT_MEMORY=off", "B200OPT_LOG_LEVEL=info", NULL});
  ck_assert_int_eq(config.mode, B200_MODE_OFF);
  ck_assert_int_eq(config.memory, B200_MEMORY_OFF);
  ck_assert_int_eq(config.log_level, B200_LOG_INFO);
}
END_TEST

/* Whatever the table says: each default is accepted by its own row and reads back as written. */
START_TEST(defaults_are_those_of_the_table) {
  load((char *[]){NULL});
  ck_assert_int_eq(config.complaint_count, 0);
  for (int i = 0; i < B200_ENV_JOB_COUNT; i++) {
    char text[B200_CONFIG_TEXT_BYTES];
    enum b200_env_index index = (enum b200_env_index)i;
    ck_assert_str_eq(b200_config_value(&config, index, text, sizeof(text)), b200_env_job_row(index)->default_value);
    ck_assert_str_eq(b200_config_origin(&config, index, text, sizeof(text)), "default");
  }
  ck_assert_int_eq(config.log_max_mb, 256);
  ck_assert(!config.strict);
}
END_TEST

START_TEST(environment_wins_over_the_file) {
  char setting[64];
  char text[B200_CONFIG_TEXT_BYTES];
  write_file("# comment\n\n  B200OPT_ARM = file arm \r\nB200OPT_STEP_PERIOD=7\nB200OPT_LOG_MAX_MB=9\nB200OPT_STRICT=1");
  snprintf(setting, sizeof(setting), "B200OPT_CONFIG=%s", path);
  load((char *[]){setting, "B200OPT_STEP_PERIOD=8", "B200OPT_LOG_MAX_MB=", NULL});
  ck_assert_int_eq(config.complaint_count, 0);
  ck_assert_str_eq(config.arm, "file arm");
  ck_assert_int_eq(config.step_period, 8);
  ck_assert_int_eq(config.log_max_mb, 9); /* empty in the environment counts as unset */
  ck_assert(config.strict);               /* no newline at the end of the file */
  ck_assert_str_eq(b200_config_origin(&config, B200_ENV_step_period, text, sizeof(text)), "environment");
  char expected[64];
  snprintf(expected, sizeof(expected), "%s:3", path);
  ck_assert_str_eq(b200_config_origin(&config, B200_ENV_arm, text, sizeof(text)), expected);
  unlink(path);
}
END_TEST

static const struct {
  char *setting;
  const char *complaint;
} bad_settings[] = {
    {"B200OPT=maybe", "B200OPT: 'maybe' is not accepted (accepted: on|off); using the default 'on'"},
    {"B200OPT=offf", "B200OPT: 'offf' is not accepted (accepted: on|off); using the default 'on'"},
    {"B200OPT=o", "B200OPT: 'o' is not accepted (accepted: on|off); using the default 'on'"},
    {"B200OPT=on|off", "B200OPT: 'on|off' is not accepted (accepted: on|off); using the default 'on'"},
    {"B200OPT_PRECISION=fp7",
     "B200OPT_PRECISION: 'fp7' is not accepted (accepted: observe|native|auto|fp8|mxfp8); using the "
     "default 'observe'"},
    {"B200OPT_PRECISION=nvfp4", "B200OPT_PRECISION: 'nvfp4' is not in this version (accepted: "
                                "observe|native|auto|fp8|mxfp8); using the default 'observe'"},
    {"B200OPT_WGRAD=nvfp4", "B200OPT_WGRAD: 'nvfp4' is not in this version (accepted: inherit|native|auto|fp8|mxfp8); using "
                            "the default 'inherit'"},
    {"B200OPT_GUARD=nvfp4", "B200OPT_GUARD: 'nvfp4' is not accepted (accepted: on|off|strict); using the default 'on'"},
    {"B200OPT_MEMORY=bf16",
     "B200OPT_MEMORY: 'bf16' is not accepted (accepted: observe|pool|off); using the default 'observe'"},
    {"B200OPT_MEMORY=OFF",
     "B200OPT_MEMORY: 'OFF' is not accepted (accepted: observe|pool|off); using the default 'observe'"},
    {"B200OPT_STRICT=yes", "B200OPT_STRICT: 'yes' is not accepted (accepted: 0|1); using the default '0'"},
    {"B200OPT_LOG_MAX_MB=0", "B200OPT_LOG_MAX_MB: '0' is not accepted (accepted: 1..65536); using the default '256'"},
    {"B200OPT_LOG_MAX_MB=12x", "B200OPT_LOG_MAX_MB: '12x' is not accepted (accepted: 1..65536); using the default '256'"},
    {"B200OPT_STEP_PERIOD=99999999999999999999",
     "B200OPT_STEP_PERIOD: '99999999999999999999' is not accepted (accepted: 0..1000000); using the default '0'"},
    {"B200OPT_LOG_LEVEL=w\033[1m\xc3\xa9", "B200OPT_LOG_LEVEL: 'w?[1m?"
                                           "?' is not accepted (accepted: silent|warn|info); using the default 'warn'"},
    {"B200OPT_PRECISON=observe", "unknown variable B200OPT_PRECISON is ignored; the nearest known one is B200OPT_PRECISION"},
    {"B200OPT_LOGDIR=x", "unknown variable B200OPT_LOGDIR is ignored; the nearest known one is B200OPT_LOG_DIR"},
    {"B200OPT_CONFIG=/does/not/exist", "B200OPT_CONFIG: cannot read '/does/not/exist': errno 2; its variables are not set"},
    {"B200OPT_CONFIG=/", "B200OPT_CONFIG: cannot read '/': not a regular file; its variables are not set"},
};

START_TEST(complains_about_the_environment) {
  load((char *[]){"PATH=/bin", "B200OPT_VNODE_GPUS=2", bad_settings[_i].setting, NULL});
  ck_assert_int_eq(config.complaint_count, 1);
  ck_assert_str_eq(config.complaints[0], bad_settings[_i].complaint);
}
END_TEST

static const struct {
  const char *line, *complaint; /* behind "FILE:2: " */
} bad_lines[] = {
    {"B200OPT_MEMORY=pol",
     "B200OPT_MEMORY: 'pol' is not accepted (accepted: observe|pool|off); using the default 'observe'"},
    {"B200OPT_MEMRY=off", "unknown variable B200OPT_MEMRY is ignored; the nearest known one is B200OPT_MEMORY"},
    {"PATH=/bin", "unknown variable PATH is ignored; the nearest known one is B200OPT"},
    {"B200OPT_VNODE_GPUS=2", "B200OPT_VNODE_GPUS is read from the environment only"},
    {"B200OPT_CONFIG=other", "B200OPT_CONFIG is read from the environment only"},
    {"memory off", "'memory off' is not NAME=VALUE and ignored"},
    {"=off", "'=off' is not NAME=VALUE and ignored"},
};

START_TEST(complains_about_the_file) {
  char text[B200_CONFIG_TEXT_BYTES];
  char setting[64];
  snprintf(text, sizeof(text), "\n%s\nB200OPT_ARM=after\n", bad_lines[_i].line);
  write_file(text);
  snprintf(setting, sizeof(setting), "B200OPT_CONFIG=%s", path);
  load((char *[]){setting, NULL});
  unlink(path);
  snprintf(text, sizeof(text), "%s:2: %s", path, bad_lines[_i].complaint);
  ck_assert_int_eq(config.complaint_count, 1);
  ck_assert_str_eq(config.complaints[0], text);
  ck_assert_str_eq(config.arm, "after");
}
END_TEST

START_TEST(bounds_what_it_keeps) {
  static char setting[B200_CONFIG_TEXT_BYTES + 64] = "B200OPT_ARM=";
  char *environment[B200_CONFIG_COMPLAINTS_MAX + 4] = {setting};
  memset(setting + strlen(setting), 'x', B200_CONFIG_TEXT_BYTES);
  for (int i = 1; i < B200_CONFIG_COMPLAINTS_MAX + 3; i++)
    environment[i] = "B200OPT_NO=1";
  load(environment);
  ck_assert_str_eq(config.arm, "default");
  ck_assert_int_eq(config.complaint_count, B200_CONFIG_COMPLAINTS_MAX);
  ck_assert_int_eq(config.complaints_dropped, 3);
  ck_assert_ptr_nonnull(strstr(config.complaints[0], "xxx...' is not accepted (accepted: at most 1023 bytes)"));
}
END_TEST

START_TEST(knows_the_launcher) {
  struct b200_launch launch;
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "x", 1);
  unsetenv("LOCAL_RANK");
  b200_launch_load(&launch);
  ck_assert_int_eq(launch.rank, 3);
  ck_assert_int_eq(launch.world, -1);
  ck_assert_int_eq(launch.local_rank, -1);
}
END_TEST

START_TEST(names_the_run) {
  char name[128];
  char expected[64];
  load((char *[]){"B200OPT_RUN=../a b", NULL});
  ck_assert_str_eq(b200_config_run_name(&config, name, sizeof(name)), "_._a_b");
  load((char *[]){NULL});
  setenv("TORCHELASTIC_RUN_ID", "job-7", 1);
  ck_assert_str_eq(b200_config_run_name(&config, name, sizeof(name)), "job-7");
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  setenv("RANK", "0", 1);
  b200_config_run_name(&config, name, sizeof(name));
  snprintf(expected, sizeof(expected), "run-%d-", (int)getppid());
  ck_assert_int_eq(strncmp(name, expected, strlen(expected)), 0);
  ck_assert_int_gt(strtoll(name + strlen(expected), NULL, 10), 0);
  unsetenv("RANK");
  b200_config_run_name(&config, name, sizeof(name));
  snprintf(expected, sizeof(expected), "run-%d-", (int)getpid());
  ck_assert_int_eq(strncmp(name, expected, strlen(expected)), 0);
}
END_TEST

START_TEST(finds_the_log_folder) {
  char folder[128];
  unsetenv("SM_OUTPUT_DATA_DIR");
  load((char *[]){NULL});
  ck_assert_str_eq(b200_config_log_dir(&config, folder, sizeof(folder)), "./b200opt-logs");
  setenv("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data", 1);
  ck_assert_str_eq(b200_config_log_dir(&config, folder, sizeof(folder)), "/opt/ml/output/data/b200opt");
  load((char *[]){"B200OPT_LOG_DIR=here", NULL});
  ck_assert_str_eq(b200_config_log_dir(&config, folder, sizeof(folder)), "here");
}
END_TEST

static void keep_nccl(void *context, const char *name, size_t length, const char *value) {
  char *seen = context;
  sprintf(seen + strlen(seen), "%.*s=%s;", (int)length, name, value);
}

START_TEST(lists_nccl_variables) {
  char seen[4096] = "";
  clearenv();
  setenv("NCCL_PROTO", "simple", 1);
  setenv("XNCCL_A", "1", 1);
  setenv("NCCL_DEBUG", "", 1);
  b200_config_each_nccl(keep_nccl, seen);
  ck_assert_str_eq(seen, "NCCL_PROTO=simple;NCCL_DEBUG=;");
  ck_assert_str_eq(b200_config_preload(), "");
}
END_TEST

static const struct {
  const char *word;
  enum b200_mode mode;
} kill_switches[] = {
    {"off", B200_MODE_OFF}, {"OFF", B200_MODE_OFF}, {"0", B200_MODE_OFF}, {"False", B200_MODE_OFF}, {"no", B200_MODE_OFF},
    {"on", B200_MODE_ON},   {"ON", B200_MODE_ON},   {"1", B200_MODE_ON},  {"true", B200_MODE_ON},   {"Yes", B200_MODE_ON},
};

START_TEST(the_kill_switch_has_spellings) {
  char setting[32], text[8];
  snprintf(setting, sizeof(setting), "B200OPT=%s", kill_switches[_i].word);
  load((char *[]){setting, NULL});
  ck_assert_int_eq(config.complaint_count, 0);
  ck_assert_int_eq(config.mode, kill_switches[_i].mode);
  ck_assert_str_eq(b200_config_value(&config, B200_ENV_mode, text, sizeof(text)),
                   kill_switches[_i].mode == B200_MODE_OFF ? "off" : "on");
}
END_TEST

/* What lies behind the bound is not read, here a setting at the end of a sparse file. */
START_TEST(bounds_the_file) {
  static const char last[] = "\nB200OPT_STEP_PERIOD=5\n";
  char setting[64], expected[128];
  write_file("B200OPT_ARM=first\n");
  int file = open(path, O_WRONLY | O_CLOEXEC);
  ck_assert_int_eq(pwrite(file, last, strlen(last), 2 << 20), (ssize_t)strlen(last));
  close(file);
  snprintf(setting, sizeof(setting), "B200OPT_CONFIG=%s", path);
  load((char *[]){setting, NULL});
  unlink(path);
  snprintf(expected, sizeof(expected), "B200OPT_CONFIG: '%s' is longer than 1048575 bytes; the rest is ignored", path);
  ck_assert_int_eq(config.complaint_count, 1);
  ck_assert_str_eq(config.complaints[0], expected);
  ck_assert_str_eq(config.arm, "first");
  ck_assert_int_eq(config.step_period, 0);
}
END_TEST

#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))

int main(void) {
  Suite *suite = suite_create("config");
  TCase *tests = tcase_create("all");
  tcase_add_test(tests, takes_other_words);
  tcase_add_test(tests, choices_have_the_order_of_the_table);
  tcase_add_test(tests, defaults_are_those_of_the_table);
  tcase_add_test(tests, environment_wins_over_the_file);
  tcase_add_loop_test(tests, complains_about_the_environment, 0, COUNT(bad_settings));
  tcase_add_loop_test(tests, complains_about_the_file, 0, COUNT(bad_lines));
  tcase_add_loop_test(tests, the_kill_switch_has_spellings, 0, COUNT(kill_switches));
  tcase_add_test(tests, bounds_the_file);
  tcase_add_test(tests, bounds_what_it_keeps);
  tcase_add_test(tests, knows_the_launcher);
  tcase_add_test(tests, names_the_run);
  tcase_add_test(tests, finds_the_log_folder);
  tcase_add_test(tests, lists_nccl_variables);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
