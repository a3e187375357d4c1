/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of every stand-in, called three times without arguments (all zero), bare and with its first, second and
   third call made to fail. usage: sweep NAME... */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

enum { CALLS = 3 };
typedef long (*any_function)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                             long, long, long, long, long, long, long, long);

static int results[CALLS];

static void call(const char *name, any_function function) {
  int (*init)(unsigned) = NULL;
  *(void **)&init = dlsym(RTLD_DEFAULT, "cuInit");
  if (strcmp(name, "cuInit"))
    init(0);
  for (int i = 0; i < CALLS; i++)
    results[i] = (int)function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

/* `which`: the call that fails, 0 for none. Functions without a status cannot fail and give what is no number. */
static void sweep(const char *name, int which, int status) {
  any_function function = NULL;
  char fault[160];
  *(void **)&function = dlsym(RTLD_DEFAULT, name);
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    bool profiled = !strncmp(name, "pnccl", 5); /* pncclX is ncclX */
    snprintf(fault, sizeof fault, "%s:%d:%d", name + profiled, which, status);
    if (which)
      setenv("B200OPT_VNODE_FAULT", fault, 1);
    alarm(20);
    if (!function)
      _exit(1);
    call(name, function);
    printf("%s %d:", name, which);
    for (int i = 0; i < CALLS; i++)
      printf(abs(results[i]) < 1 << 20 ? " %d" : " pointer", results[i]);
    printf("\n");
    fflush(NULL);
    _exit(0);
  }
  int end = 0;
  waitpid(child, &end, 0);
  if (end)
    printf("%s %d: ends with %x\n", name, which, (unsigned)end);
}

int main(int argc, char **argv) {
  char session[64];
  snprintf(session, sizeof session, "sweep-%ld", (long)getpid());
  setenv("B200OPT_VNODE_SESSION", session, 1);
  for (int i = 1; i < argc; i++)
    for (int which = 0; which <= CALLS; which++)
      sweep(argv[i], which, 77);
  return 0;
}
