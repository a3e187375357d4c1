/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host that sleeps passes time. The node is preloaded, so the C library's sleeping functions come by here: they sleep as
 * they do, and then the modelled clock of a thread that drives the GPU (it has submitted work) has moved on by what was
 * asked for. Waiting in any other way (locks, poll, sem_wait) does not count: how long that takes is this machine's doing.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

enum { NS_PER_S = 1000000000 };

static int (*next_nanosleep)(const struct timespec *, struct timespec *);
static int (*next_clock_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In a program that is linked with the node the C library may come before it, so that nothing is "next". */
static void *find(void *libc, const char *name) {
  void *function = dlsym(RTLD_NEXT, name);
  return function ? function : dlsym(libc, name);
}

static void find_next(void) {
  void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  next_nanosleep = (int (*)(const struct timespec *, struct timespec *))find(libc, "nanosleep");
  next_clock_nanosleep = (int (*)(clockid_t, int, const struct timespec *, struct timespec *))find(libc, "clock_nanosleep");
}

static int64_t ns_of(const struct timespec *time) {
  return (int64_t)time->tv_sec * NS_PER_S + time->tv_nsec;
}

/* Inside of work, time is the work's own. */
static void pass(int64_t ns) {
  if (ns > 0 && vnode_host_submissions && !vnode_running)
    vnode_host_charge(ns);
}

/* How long it is until a deadline. Who computed it did so a little earlier (Python's time.sleep does): up to three digits,
   so that a sleep of 50 ms is one of 50 ms, in each run. */
static int64_t until_deadline(clockid_t clock, const struct timespec *deadline) {
  struct timespec now;
  int64_t digit = 1, ns = clock_gettime(clock, &now) == 0 ? ns_of(deadline) - ns_of(&now) : 0;
  while (ns / digit >= 1000)
    digit *= 10;
  return ns > 0 ? (ns + digit - 1) / digit * digit : 0;
}

VNODE_API int nanosleep(const struct timespec *request, struct timespec *left) {
  pthread_once(&once, find_next);
  struct timespec rest = {0};
  int result = next_nanosleep(request, &rest);
  if (left && result && errno == EINTR)
    *left = rest;
  if (!result || errno == EINTR)
    pass(ns_of(request) - ns_of(&rest));
  return result;
}

VNODE_API int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *left) {
  pthread_once(&once, find_next);
  struct timespec rest = {0};
  bool absolute = flags & TIMER_ABSTIME;
  int64_t asked_ns = absolute ? until_deadline(clock, request) : ns_of(request);
  int result = next_clock_nanosleep(clock, flags, request, &rest);
  if (left && !absolute && result == EINTR)
    *left = rest;
  if (!result)
    pass(asked_ns);
  else if (result == EINTR)
    pass(asked_ns - (absolute ? until_deadline(clock, request) : ns_of(&rest)));
  return result;
}

VNODE_API int usleep(useconds_t us) {
  return nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

void vnode_pause(int64_t ns) {
  pthread_once(&once, find_next);
  struct timespec left = {.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
  while (next_nanosleep(&left, &left) && errno == EINTR)
    ;
}
