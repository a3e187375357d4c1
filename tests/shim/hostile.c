/* SPDX-License-Identifier: Apache-2.0 */
/* Things that programs do to a library that lives in them. usage: shim_hostile SCENARIO [FILE] */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HIGHEST_DESCRIPTOR = 1024, THREADS = 16, HELD_BYTES = 2 << 20 };

static void *allocate(void) {
  void *block = NULL;
  if (cudaMalloc(&block, HELD_BYTES) != cudaSuccess)
    _exit(90);
  return block;
}

/* Closes every descriptor, as daemons do, and opens a file of its own under each number; then gives the library something to
   write. The file must stay its own, in a forked child too. (The node's memory is gone with its descriptors: nothing of CUDA
   is used any more.) */
static int take_descriptors(const char *path) {
  allocate();
  usleep(100000);
  for (int i = 3; i < HIGHEST_DESCRIPTOR; i++)
    close(i);
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (int i = file + 1; i < HIGHEST_DESCRIPTOR; i++)
    dup2(file, i);
  for (int i = 0; i < 20; i++)
    (void)!write(STDERR_FILENO, "step 1 loss 1.5\n", 16);
  usleep(100000);
  (void)!write(file, "0123456789", 10);
  int status = 1;
  pid_t child = fork();
  if (child == 0) {
    int lost = 0;
    for (int i = file; i < HIGHEST_DESCRIPTOR; i++)
      lost += fcntl(i, F_GETFD) < 0;
    _exit(lost != 0);
  }
  waitpid(child, &status, 0);
  printf("child lost descriptors: %d\n", WEXITSTATUS(status));
  return 0;
}

static void say_loss(int signal_number) {
  (void)signal_number;
  (void)!write(STDOUT_FILENO, "step 1 loss 1.5\n", 16);
}

static void leave(int signal_number) {
  (void)signal_number;
  exit(5);
}

static void every(long interval_us, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  struct itimerval timer = {.it_value = {.tv_usec = interval_us}, .it_interval = {.tv_usec = interval_us}};
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &timer, NULL);
}

/* A handler that prints, on a small stack of its own, at any moment of our code. */
static int print_in_handler(void) {
  static char stack[8192];
  stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
  allocate();
  sigaltstack(&alternative, NULL);
  every(500, say_loss, SA_ONSTACK | SA_RESTART);
  for (int i = 0; i < 3000; i++) {
    cudaFree(allocate());
    (void)!write(STDOUT_FILENO, "step 2 loss 2.5\n", 16);
  }
  return 0;
}

static int exit_in_handler(void) {
  allocate();
  every(5000, leave, 0);
  while (cudaFree(allocate()) == cudaSuccess)
    ;
  return 1;
}

static void *churn(void *unused) {
  (void)unused;
  for (int i = 0; i < 300; i++)
    cudaFree(allocate());
  return allocate();
}

/* Each thread ends holding one block; addresses go from one to another all the while. */
static int churn_in_threads(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, churn, NULL);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  return 0;
}

static void *first_use(void *unused) {
  (void)unused;
  return allocate();
}

/* The first CUDA call of the process on a thread with a small stack. */
static int small_stack(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 16384);
  if (pthread_create(&thread, &attributes, first_use, NULL) != 0)
    return 1;
  pthread_join(thread, NULL);
  return 0;
}

static void *write_for_ever(void *unused) {
  (void)unused;
  int ends[2];
  char bytes[4096] = {0};
  if (pipe(ends) != 0)
    return NULL;
  while (write(ends[1], bytes, sizeof bytes) > 0) /* blocks when the pipe is full */
    ;
  return NULL;
}

/* write() is a cancellation point. */
static int cancel_a_writer(void) {
  pthread_t thread;
  allocate();
  pthread_create(&thread, NULL, write_for_ever, NULL);
  usleep(100000);
  pthread_cancel(thread);
  return pthread_join(thread, NULL);
}

static int progress_bar(void) {
  allocate();
  for (int step = 1; step <= 50; step++) {
    char text[64];
    int length = snprintf(text, sizeof text, "step %d loss %d.25\r", step, step);
    (void)!write(STDOUT_FILENO, text, (size_t)length);
  }
  (void)!write(STDOUT_FILENO, "step 51 loss 0.125", 18); /* no end of line */
  return 0;
}

int main(int argc, char **argv) {
  const char *scenario = argc > 1 ? argv[1] : "";
  if (strcmp(scenario, "descriptors") == 0)
    return take_descriptors(argv[2]);
  if (strcmp(scenario, "print") == 0)
    return print_in_handler();
  if (strcmp(scenario, "exit") == 0)
    return exit_in_handler();
  if (strcmp(scenario, "threads") == 0)
    return churn_in_threads();
  if (strcmp(scenario, "stack") == 0)
    return small_stack();
  if (strcmp(scenario, "cancel") == 0)
    return cancel_a_writer();
  if (strcmp(scenario, "progress") == 0)
    return progress_bar();
  if (strcmp(scenario, "limit") == 0) {
    cudaSetDevice(0); /* the node's own files are made before */
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
    return cudaDeviceSynchronize() != cudaSuccess;
  }
  if (strcmp(scenario, "exec") == 0) {
    allocate();
    execl(argv[0], argv[0], "stack", (char *)NULL);
  }
  return 2;
}
