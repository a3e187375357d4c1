/* SPDX-License-Identifier: Apache-2.0 */
/* usage: shim_storm N    uses CUDA, then forks N children, a few at a time, which allocate, print and end in different ways,
   while threads of the parent go on allocating. Prints how many children ended as they should. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_bool stop;

static void *allocate(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    void *block = NULL;
    if (cudaMalloc(&block, 2 << 20) == cudaSuccess)
      cudaFree(block);
  }
  return NULL;
}

static void child(int number) {
  char *text = malloc(4096);
  void *block = NULL;
  memset(text, number, 4096);
  /* CUDA refuses a child whose parent has used it, and so does the node */
  if (number % 3 == 0 && cudaMalloc(&block, 4096) == cudaSuccess)
    _exit(99);
  if (number % 4 == 1)
    execl("/bin/true", "true", (char *)NULL);
  if (number % 4 == 2)
    abort();
  if (number % 4 == 3)
    exit(3);
  _exit(0);
}

static int as_expected(int number, int status) {
  if (number % 4 == 2)
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  return WIFEXITED(status) && WEXITSTATUS(status) == (number % 4 == 3 ? 3 : 0);
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 200, good = 0;
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, allocate, NULL);
  usleep(20000);
  for (int number = 0; number < count; number++) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
      child(number);
    if (pid > 0 && waitpid(pid, &status, 0) == pid)
      good += as_expected(number, status);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  printf("%d of %d\n", good, count);
  return good == count ? 0 : 1;
}
