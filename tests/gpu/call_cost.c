/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: gpu_call_cost LIBCUDART    prints nanoseconds per call of cudaEventRecord on a real runtime, best of 200 batches
 *
 * The function is looked up as the dynamic linker would bind it, so that a preloaded library is in the way when there is
 * one.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 200, CALLS = 500 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* C forbids the cast from an object pointer to a function pointer. */
static void find(const char *name, void *function) {
  void *address = dlsym(RTLD_DEFAULT, name);
  memcpy(function, &address, sizeof address);
}

int main(int argc, char **argv) {
  int (*create)(void **), (*record)(void *, void *), (*synchronize)(void);
  if (argc != 2 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
    fprintf(stderr, "gpu_call_cost: one argument, the path of libcudart.so: %s\n", argc == 2 ? dlerror() : "missing");
    return 2;
  }
  find("cudaEventCreate", &create);
  find("cudaEventRecord", &record);
  find("cudaDeviceSynchronize", &synchronize);
  void *event;
  if (!create || !record || !synchronize || create(&event) != 0) {
    fprintf(stderr, "gpu_call_cost: no usable GPU\n");
    return 1;
  }
  double best_ns = 1e30;
  for (int batch = 0; batch < BATCHES; batch++) {
    double begin_ns = now_ns();
    for (int i = 0; i < CALLS; i++)
      if (record(event, NULL) != 0)
        return 1;
    double each_ns = (now_ns() - begin_ns) / CALLS;
    if (each_ns < best_ns)
      best_ns = each_ns;
    synchronize(); /* the queue of commands must not fill up: the call would wait for the GPU */
  }
  printf("%.2f\n", best_ns);
  return 0;
}
