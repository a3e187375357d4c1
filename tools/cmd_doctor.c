/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/reader.h"
#include "policy/config.h"
#include "policy/rules.h"
#include "tools/cmd.h"
#include "tools/doctor/process.h"
#include "tools/doctor/stacks.h"
#include "tools/launch.h"
#include "tools/lint/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define START_SLACK_NS INT64_C(2000000000)

static const char doc[] =
    "Say whether libb200opt.so works here, or in a running process.\n"
    "\n"
    "Without --pid: does the library load, are the variables right, what else is preloaded. With --pid (any rank of a job): "
    "is the library mapped, where each CUDA library comes from, whose calls have reached it (by its log), what was "
    "configured "
    "and by what. Needs no GPU."
    "\v"
    "OUTPUT\n"
    "  One fact a line; lines that begin with '!' are problems. The last line is\n"
    "  the verdict. --env prints every variable: value, default, what set it.\n"
    "\n"
    "EXIT STATUS\n"
    "  0  nothing is wrong\n"
    "  1  a problem was found\n"
    "  2  wrong arguments\n"
    "  3  no such process, or not allowed to look; the library is not installed\n"
    "\n"
    "EXAMPLES\n"
    "  b200opt doctor\n"
    "  b200opt run B200OPT_ARM=a -- b200opt doctor --env\n"
    "  b200opt doctor --pid $(pgrep -n -f train.py) --stacks";

static const struct argp_option options[] = {
    {"env", 'e', NULL, 0, "Print every variable: value, default, what set it", 0},
    {"pid", 'p', "PID", 0, "Look at this process", 0},
    {"stacks", 's', NULL, 0, "With --pid: native stacks of its threads (stops each for a moment)", 0},
    {0},
};

struct arguments {
  const char *pid, *extra;
  bool env, stacks;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  switch (key) {
  case 'e':
    arguments->env = true;
    return 0;
  case 'p':
    arguments->pid = value;
    return 0;
  case 's':
    arguments->stacks = true;
    return 0;
  case ARGP_KEY_ARG:
    arguments->extra = value;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* ---- what is printed */

struct patient {
  struct process process;
  bool self; /* no --pid */
  struct b200_config config;
  struct b200_logs logs;
  const struct b200_log *log; /* of this process; NULL when there is none */
  int problems;
};

__attribute__((format(printf, 2, 3))) static void fact(const char *label, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("  %-10s ", label);
  vprintf(format, arguments);
  putchar('\n');
  va_end(arguments);
}

__attribute__((format(printf, 3, 4))) static void problem(struct patient *patient, const char *label, const char *format,
                                                          ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("! %-10s ", label);
  vprintf(format, arguments);
  putchar('\n');
  va_end(arguments);
  patient->problems++;
}

/* ---- checks */

static void check_installed(void) {
  char *path = launch_find_library();
  fact("library", "%s loads; it is not preloaded in this shell (b200opt run does that)", path);
  free(path);
}

static void check_library(struct patient *patient) {
  const struct process_file *mapped = process_find_file(&patient->process, "libb200opt", NULL);
  const char *preload = process_getenv(&patient->process, "LD_PRELOAD");
  bool asked = preload && strstr(preload, "libb200opt.so");
  if (mapped)
    fact("library", "mapped from %s", mapped->path);
  else if (patient->self && !asked)
    check_installed();
  else if (asked)
    problem(patient, "library",
            "not mapped although LD_PRELOAD names it: the file is missing, or the program is static or setuid");
  else
    problem(patient, "library", "not mapped: LD_PRELOAD of the process does not name it; start the job by b200opt run");
}

/* Other preloads that matter, by a part of their name. */
static const struct {
  const char *part, *what;
  bool conflict;
} known_preloads[] = {
    {"libvgpu.so", "HAMi-core intercepts the same CUDA calls: use one of the two", true},
    {"torch_memory_saver", "torch_memory_saver intercepts cudaMalloc: its memory is counted as its own calls show it", true},
    {"libcuda_hook", "another interceptor of CUDA: use one of the two", true},
    {"libnccl.so", "an NCCL: fine behind libb200opt.so", false},
    {"libb200vnode.so", "the virtual node: times are this machine's", false},
    {"jemalloc", "a host allocator: fine", false},
    {"tcmalloc", "a host allocator: fine", false},
    {"mimalloc", "a host allocator: fine", false},
    {"libchangehostname.so", "SageMaker's host name: fine", false},
};

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static void check_preload(struct patient *patient, const char *entry, bool first) {
  if (strcmp(file_name(entry), "libb200opt.so") == 0) {
    if (!first)
      problem(patient, "preload",
              "libb200opt.so is not the first of LD_PRELOAD: calls reach the libraries before it unseen");
    return;
  }
  for (size_t i = 0; i < sizeof(known_preloads) / sizeof(known_preloads[0]); i++) {
    if (!strstr(entry, known_preloads[i].part))
      continue;
    if (known_preloads[i].conflict)
      problem(patient, "preload", "%s: %s", entry, known_preloads[i].what);
    else
      fact("preload", "%s: %s", entry, known_preloads[i].what);
    return;
  }
  fact("preload", "%s", entry);
}

static void check_preloads(struct patient *patient) {
  const char *preload = process_getenv(&patient->process, "LD_PRELOAD");
  char *list = b200_format("%s", preload ? preload : "");
  bool first = true;
  for (char *entry = strtok(list, ": "); entry; entry = strtok(NULL, ": ")) {
    check_preload(patient, entry, first);
    first = false;
  }
  free(list);
}

static int64_t calls_of(const struct b200_log *log, const char *library) {
  int64_t calls = 0;
  for (size_t i = 0; log && i < log->call_count; i++)
    if (strcmp(log->calls[i].lib, library) == 0)
      calls = b200_add(calls, log->calls[i].calls);
  return calls;
}

/* One line for each mapped copy of a library (PyTorch maps those of its wheels even behind a preloaded one); `library` is
   its name in the log, `file` the start of its file's name. */
static void check_cuda_library(struct patient *patient, const char *library, const char *file) {
  const char *preload = process_getenv(&patient->process, "LD_PRELOAD");
  const struct process_file *mapped = NULL;
  int64_t calls = calls_of(patient->log, library);
  int copies = 0;
  while ((mapped = process_find_file(&patient->process, file, mapped))) {
    fact(library, "%s%s", mapped->path, preload && strstr(preload, mapped->path) ? " (preloaded)" : "");
    copies++;
  }
  if (copies && patient->log && calls)
    fact("", "%" PRId64 " calls seen", calls);
  else if (copies && patient->log)
    fact("", "no call seen: none was made, or it was opened with RTLD_DEEPBIND or linked statically");
}

static void check_cuda(struct patient *patient) {
  static const char *const libraries[][2] = {{"cudart", "libcudart"},
                                             {"cuda", "libcuda"},
                                             {"cublas", "libcublas"},
                                             {"cublaslt", "libcublasLt"},
                                             {"nccl", "libnccl"}};
  for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++)
    check_cuda_library(patient, libraries[i][0], libraries[i][1]);
  if (process_find_file(&patient->process, "libcuda", NULL) && !process_find_file(&patient->process, "libcudart", NULL))
    problem(patient, "cudart",
            "libcuda is mapped but no libcudart: the CUDA runtime is linked statically; only its driver calls are seen");
  if (process_find_file(&patient->process, "libb200vnode", NULL))
    fact("gpu", "virtual node");
  else if (access("/proc/driver/nvidia/version", R_OK) == 0)
    fact("gpu", "an NVIDIA driver is here");
  else
    fact("gpu", "none here: b200opt dryrun runs a job on a virtual node");
}

static bool is_complaint(const struct b200_config *config, const char *text) {
  for (int i = 0; i < config->complaint_count; i++)
    if (strcmp(config->complaints[i], text) == 0)
      return true;
  return false;
}

static void check_log(struct patient *patient) {
  if (patient->self)
    return;
  if (!patient->log) {
    fact("log", "none of this process: it has made no CUDA call yet, or B200OPT=off");
    return;
  }
  char *versions = json_dumps(json_object_get(patient->log->header, "versions"), JSON_COMPACT);
  fact("log", "%s, %" PRId64 " lines, %zu steps", patient->log->path, patient->log->lines, patient->log->step_count);
  fact("versions", "%s", versions ? versions : "unknown");
  free(versions);
  for (size_t i = 0; i < patient->log->warning_count; i++)
    if (!is_complaint(&patient->config, patient->log->warnings[i].text)) /* it is told as one of the variables */
      problem(patient, "warning", "%s", patient->log->warnings[i].text);
}

static const char *from_process(const void *process, const char *name) {
  return process_getenv(process, name);
}

/* Settings of other people that change what is measured, or are known to hurt. */
static void check_surroundings(const struct patient *patient) {
  const char *value = process_getenv(&patient->process, "CUDA_DEVICE_MAX_CONNECTIONS");
  if (value)
    fact("note", "CUDA_DEVICE_MAX_CONNECTIONS=%s: few hardware queues serialise compute and communication", value);
  value = process_getenv(&patient->process, "NCCL_PROTO");
  if (value)
    fact("note", "NCCL_PROTO=%s is forced (SageMaker's launchers set Simple): small collectives are slower", value);
  if (patient->config.mode == B200_MODE_OFF)
    fact("note", "B200OPT=off: calls go straight through and nothing is counted");
  struct settings_facts facts = {.get = from_process, .context = &patient->process};
  settings_ask_machine(&facts);
  for (int i = 0; i < SETTINGS_COUNT; i++)
    if (settings_hurt(&facts, (enum settings_row)i))
      fact("note", "%s (%s)", settings_text((enum settings_row)i), settings_source((enum settings_row)i));
}

static void check_variables(struct patient *patient) {
  static struct b200_rule rules[B200_RULES_MAX];
  char complaint[2048];
  int rule_count;
  for (int i = 0; i < patient->config.complaint_count; i++)
    problem(patient, "variable", "%s", patient->config.complaints[i]);
  if (!b200_rules_load(&patient->config, rules, B200_RULES_MAX, &rule_count, complaint, sizeof(complaint)))
    problem(patient, "variable", "%s", complaint);
  for (int i = 0; i < B200_ENV_JOB_COUNT; i++) {
    enum b200_env_index index = (enum b200_env_index)i;
    char value[B200_CONFIG_TEXT_BYTES], origin[B200_CONFIG_TEXT_BYTES + 16];
    if (patient->config.origins[i].by != B200_ORIGIN_DEFAULT)
      fact("config", "%s=%s (%s)", b200_env_job_row(index)->name,
           b200_config_value(&patient->config, index, value, sizeof(value)),
           b200_config_origin(&patient->config, index, origin, sizeof(origin)));
  }
}

/* ---- --env */

static int job_index(const struct b200_env_row *row) {
  int index = 0;
  while (index < B200_ENV_JOB_COUNT && b200_env_job_row((enum b200_env_index)index) != row)
    index++;
  return index;
}

static const char *or_dash(const char *text) {
  return *text ? text : "-";
}

static void print_variables(const struct patient *patient) {
  size_t count;
  const struct b200_env_row *rows = b200_env_rows(&count);
  printf("%-26s %-20s %-12s %s\n", "variable", "value", "default", "set by");
  for (size_t i = 0; i < count; i++) {
    char value[B200_CONFIG_TEXT_BYTES], origin[B200_CONFIG_TEXT_BYTES + 16] = "default";
    const char *set = process_getenv(&patient->process, rows[i].name);
    if (rows[i].scope == B200_SCOPE_JOB) {
      enum b200_env_index index = (enum b200_env_index)job_index(&rows[i]);
      b200_config_value(&patient->config, index, value, sizeof(value));
      b200_config_origin(&patient->config, index, origin, sizeof(origin));
    } else {
      snprintf(value, sizeof(value), "%s", set && *set ? set : rows[i].default_value);
      snprintf(origin, sizeof(origin), "%s", set && *set ? "environment" : "default");
    }
    printf("%-26s %-20s %-12s %s\n", rows[i].name, or_dash(value), or_dash(rows[i].default_value), origin);
  }
}

/* ---- the whole */

/* Ids of processes come again: a log that began before the process did is another's. The slack is for a clock that was
   set. */
static bool is_of_process(const struct patient *patient, const struct b200_log *log) {
  return !log->node && log->header && log->pid == patient->process.pid &&
         log->unix_ns >= patient->process.start_unix_ns - START_SLACK_NS;
}

/* The log that the process writes; relative paths are the process's. */
static void find_log(struct patient *patient) {
  const char *output = process_getenv(&patient->process, "SM_OUTPUT_DATA_DIR");
  const char *own = patient->config.log_dir;
  char *folder = *own                ? b200_format("%s", own)
                 : output && *output ? b200_format("%s/b200opt", output)
                                     : b200_format("b200opt-logs");
  char *path =
      *folder == '/' ? b200_format("%s", folder) : b200_format("/proc/%d/cwd/%s", (int)patient->process.thread, folder);
  b200_logs_read(path, &patient->logs);
  for (size_t i = 0; i < patient->logs.log_count; i++) {
    const struct b200_log *log = &patient->logs.logs[i];
    if (is_of_process(patient, log) && (!patient->log || log->unix_ns > patient->log->unix_ns))
      patient->log = log;
  }
  free(path);
  free(folder);
}

static pid_t parse_pid(const char *text) {
  char *end;
  long pid = text ? strtol(text, &end, 10) : getpid();
  if (text && (end == text || *end || pid <= 0 || pid > INT_MAX))
    cmd_fail(B200_EXIT_USAGE, "doctor: --pid: '%s' is not a process id", text);
  return (pid_t)pid;
}

static int verdict(const struct patient *patient) {
  if (patient->problems)
    printf("verdict      %d problem%s, marked by '!'\n", patient->problems, patient->problems == 1 ? "" : "s");
  else if (patient->self)
    printf("verdict      ready: b200opt run -- COMMAND\n");
  else if (patient->log)
    printf("verdict      working: the library is mapped and has logged %" PRId64 " lines\n", patient->log->lines);
  else
    printf("verdict      mapped; nothing was counted yet\n");
  return patient->problems ? B200_EXIT_FINDING : B200_EXIT_OK;
}

static int examine(struct patient *patient, const struct arguments *arguments) {
  b200_config_load_from(&patient->config, patient->process.environment);
  if (arguments->env) {
    print_variables(patient);
    check_variables(patient);
    return patient->problems ? B200_EXIT_FINDING : B200_EXIT_OK;
  }
  if (!patient->self)
    find_log(patient);
  printf("b200opt %s, process %d: %s\n", B200_VERSION, (int)patient->process.pid, patient->process.command);
  check_library(patient);
  check_preloads(patient);
  check_cuda(patient);
  check_log(patient);
  check_variables(patient);
  check_surroundings(patient);
  if (arguments->stacks) {
    fflush(stdout);
    int error = stacks_print(&patient->process);
    if (error)
      problem(patient, "stacks", "cannot stop the process: %s (ptrace may be restricted: kernel.yama.ptrace_scope)",
              strerror(error));
  }
  return verdict(patient);
}

int cmd_doctor(int argc, char **argv) {
  static const struct argp argp = {.options = options, .parser = parse, .doc = doc, .children = cmd_common};
  static struct patient patient;
  struct arguments arguments = {0};
  cmd_parse(&argp, argc, argv, 0, &arguments);
  if (arguments.extra)
    cmd_fail(B200_EXIT_USAGE, "doctor: unexpected argument '%s'; see b200opt doctor --help", arguments.extra);
  if (arguments.stacks && !arguments.pid)
    cmd_fail(B200_EXIT_USAGE, "doctor: --stacks needs --pid");
  pid_t pid = parse_pid(arguments.pid);
  patient.self = !arguments.pid;
  int error = process_read(pid, &patient.process);
  if (error)
    cmd_fail(B200_EXIT_UNAVAILABLE, "doctor: cannot look at process %d: %s", (int)pid, strerror(error));
  int status = examine(&patient, &arguments);
  b200_logs_free(&patient.logs);
  process_free(&patient.process);
  return status;
}
