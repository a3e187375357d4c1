/* SPDX-License-Identifier: Apache-2.0 */
/* The call trace, line by line. */
#include <cuda_runtime_api.h>
#include <glob.h>
#include <pthread.h>

#include "hook.h"
#include "probe.h"
#include "tests/vnode/vnode_test.h"

static char folder[] = "/tmp/vnode-trace-XXXXXX";

static void read_file(const char *path, char *text, size_t text_bytes) {
  FILE *file = fopen(path, "r");
  ck_assert_msg(file != NULL, "%s", path);
  text[fread(text, 1, text_bytes - 1, file)] = 0;
  fclose(file);
}

/* Runs `body` with a trace; returns the lines of the process that it ran in. */
static void traced(void (*body)(void), char *text, size_t text_bytes) {
  char prefix[64], path[128];
  strcpy(folder, "/tmp/vnode-trace-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(prefix, sizeof prefix, "%s/run-", folder);
  setenv("B200OPT_VNODE_TRACE", prefix, 1);
  setenv("RANK", "3", 1);
  body();
  snprintf(path, sizeof path, "%sr3-%ld.trace", prefix, (long)getpid());
  read_file(path, text, text_bytes);
}

static void streams_and_events(void) {
  cudaStream_t stream;
  cudaEvent_t first, second;
  void *block;
  char host[64] = {0};
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&first, cudaEventDisableTiming);
  cudaEventCreate(&second);
  cudaMalloc(&block, 4096);
  cudaMemcpyAsync(block, host, 64, cudaMemcpyHostToDevice, stream);
  cudaMemsetAsync(block, 0, 128, NULL);
  cudaEventRecord(second, stream);
  cudaStreamWaitEvent(NULL, second, 0);
  cudaEventDestroy(first);
  cudaEventCreate(&first);
  cudaEventQuery(first);
  vnode_trace_mark("a mark");
  cudaGetLastError();
  cudaStreamCreateWithFlags(NULL, 0);
}

START_TEST(lines) {
  static const char expected[] = "t0 cudaStreamCreateWithFlags flags=1 -> s=%d\n"
                                 "t0 cudaEventCreateWithFlags flags=2 -> e=1\n"
                                 "t0 cudaEventCreate -> e=2\n"
                                 "t0 cudaMalloc n=4096\n"
                                 "t0 cuMemAlloc_v2 n=4096\n"
                                 "t0 cudaMemcpyAsync n=64 kind=1 s=%d\n"
                                 "t0 cudaMemsetAsync n=128 s=0\n"
                                 "t0 cudaEventRecord e=2 s=%d\n"
                                 "t0 cudaStreamWaitEvent s=0 e=2 flags=0\n"
                                 "t0 cudaEventDestroy e=1\n"
                                 "t0 cudaEventCreate -> e=3\n"
                                 "t0 cudaEventQuery e=3\n"
                                 "t0 #### a mark\n"
                                 "t0 cudaGetLastError\n"
                                 "t0 cudaStreamCreateWithFlags flags=0 -> s=-1 = 1\n";
  char text[8192], wanted[8192];
  traced(streams_and_events, text, sizeof text);
  int stream = -1;
  ck_assert_int_eq(sscanf(text, "%*[^>]> s=%d", &stream), 1);
  /* The start of the runtime finds its driver functions first. */
  char *from = strstr(text, "t0 cudaEventCreateWithFlags");
  ck_assert_ptr_nonnull(from);
  snprintf(wanted, sizeof wanted, expected, stream, stream, stream);
  ck_assert_str_eq(from, strchr(wanted, '\n') + 1);
}
END_TEST

static void failing(void) {
  setenv("B200OPT_VNODE_FAULT", "probeStatus:1:33,cudaEventCreate:1:2", 1);
  cudaEvent_t event;
  probeStatus(1);
  probeStatus(1);
  cudaEventCreate(&event);
}

START_TEST(injected_statuses_are_shown) {
  char text[4096];
  traced(failing, text, sizeof text);
  ck_assert_str_eq(text, "t0 probeStatus = 33\nt0 probeStatus\nt0 cudaEventCreate -> e=0 = 2\n");
}
END_TEST

static void *call_once(void *unused) {
  (void)unused;
  probeStatus(0);
  return NULL;
}

static void threads_and_processes(void) {
  pthread_t thread;
  probeStatus(0);
  pthread_create(&thread, NULL, call_once, NULL);
  pthread_join(thread, NULL);
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    probeStatus(0);
    _exit(0);
  }
  waitpid(child, NULL, 0);
  probeStatus(0);
}

START_TEST(threads_have_numbers_and_processes_files) {
  char text[4096], pattern[128];
  traced(threads_and_processes, text, sizeof text);
  ck_assert_str_eq(text, "t0 probeStatus\nt1 probeStatus\nt0 probeStatus\n");
  glob_t found;
  snprintf(pattern, sizeof pattern, "%s/*", folder);
  ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
  ck_assert_int_eq((int)found.gl_pathc, 2);
  globfree(&found);
}
END_TEST

static void unwritable(void *unused) {
  (void)unused;
  setenv("B200OPT_VNODE_TRACE", "/nonexistent/", 1);
  probeStatus(0);
  probeStatus(0);
}

START_TEST(an_unwritable_file_is_said_once) {
  char text[1024];
  int status = in_child_with_stderr(unwritable, NULL, text, sizeof text);
  ck_assert_int_eq(status, 0);
  ck_assert_ptr_nonnull(strstr(text, "B200OPT_VNODE_TRACE: /nonexistent/r"));
  ck_assert_ptr_null(strstr(strstr(text, "b200vnode:") + 1, "b200vnode:"));
}
END_TEST

/* Nothing may be said before CUDA is used, and nothing is written. */
START_TEST(without_a_variable_there_is_no_trace) {
  unsetenv("B200OPT_VNODE_TRACE");
  probeStatus(0);
  vnode_trace_mark("nowhere");
}
END_TEST

int main(void) {
  const TTest *const tests[] = {lines, injected_statuses_are_shown, threads_have_numbers_and_processes_files,
                                an_unwritable_file_is_said_once, without_a_variable_there_is_no_trace};
  return run_tests("calls", tests, sizeof tests / sizeof *tests);
}
