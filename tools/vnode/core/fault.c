/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults: calls that fail, end the process, hang or are slow on demand. The value of B200OPT_VNODE_FAULT is a list of
 *
 *   FUNCTION[@RANK]:CALLS:EFFECT        separated by , or ;
 *   CALLS    N: the N-th call of the function in a process, from 1; N+: that and all later ones; *: all
 *   EFFECT   STATUS: the call returns this number and does nothing
 *            sticky=ERROR: the context ends with this CUDA error, see vnode_set_sticky_error()
 *            die: the process is killed as by SIGKILL
 *            hang: the call does not return
 *            slow=TIME: the call takes longer by TIME (a number and ns, us, ms or s), by the clock on the wall and in the
 * model
 *
 * A part that is wrong is said and left out; the others hold.
 */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "tracing.h"

enum effect { FAIL, STICKY, DIE, HANG, SLOW };

struct vnode_fault {
  char function[96];
  int rank; /* -1: all */
  uint64_t first;
  bool onwards; /* and all calls after the first */
  enum effect effect;
  int64_t value;                  /* status, error, nanoseconds */
  const struct vnode_fault *next; /* of the same function on this rank */
};

enum { MAX_FAULTS = 64 };
static struct vnode_fault faults[MAX_FAULTS];
static size_t fault_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------------------------------------- grammar */

#define USE_FUNCTION "use FUNCTION[@RANK]:CALLS:EFFECT"
#define USE_CALLS "use a number from 1, a number and + for that call and all later ones, or * for all"
#define USE_EFFECT "use a status from 1 to 9999, sticky=ERROR, die, hang, or slow=TIME"
#define USE_TIME "use a number from 1 and ns, us, ms or s, of at most an hour"

/* Digits only; 0 when there are none or the number is above `most`. */
static uint64_t number_of(const char *text, const char **end, uint64_t most) {
  uint64_t number = 0;
  const char *at = text;
  for (; isdigit((unsigned char)*at); at++)
    if (number <= most)
      number = 10 * number + (uint64_t)(*at - '0');
  *end = at;
  return number <= most ? number : 0;
}

static const char *parse_calls(const char *text, struct vnode_fault *out) {
  const char *end;
  if (!strcmp(text, "*")) {
    out->first = 1;
    out->onwards = true;
    return NULL;
  }
  out->first = number_of(text, &end, UINT32_MAX);
  out->onwards = *end == '+';
  return out->first && !end[out->onwards] ? NULL : USE_CALLS;
}

static const char *parse_time(const char *text, struct vnode_fault *out) {
  static const struct {
    const char *unit;
    int64_t ns;
  } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
  const int64_t hour_ns = (int64_t)3600 * 1000000000;
  const char *unit;
  int64_t number = (int64_t)number_of(text, &unit, (uint64_t)hour_ns);
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcmp(unit, units[i].unit) && number && number <= hour_ns / units[i].ns) {
      out->value = number * units[i].ns;
      return NULL;
    }
  return USE_TIME;
}

static const char *parse_effect(const char *text, struct vnode_fault *out) {
  const char *end = text;
  if (!strncmp(text, "slow=", 5)) {
    out->effect = SLOW;
    return parse_time(text + 5, out);
  }
  if (!strcmp(text, "die") || !strcmp(text, "hang")) {
    out->effect = *text == 'd' ? DIE : HANG;
    return NULL;
  }
  out->effect = strncmp(text, "sticky=", 7) ? FAIL : STICKY;
  out->value = (int64_t)number_of(text + (out->effect == STICKY ? 7 : 0), &end, 9999);
  return out->value && !*end ? NULL : USE_EFFECT;
}

/* Takes `text` apart. NULL, or what is accepted. */
static const char *parse(char *text, struct vnode_fault *out) {
  char *calls = strchr(text, ':'), *effect = calls ? strchr(calls + 1, ':') : NULL;
  if (!effect)
    return USE_FUNCTION;
  *calls++ = 0;
  *effect++ = 0;
  out->rank = -1;
  char *rank = strchr(text, '@');
  if (rank) {
    const char *end;
    *rank++ = 0;
    out->rank = (int)number_of(rank, &end, 1000000);
    if (end == rank || *end)
      return USE_FUNCTION;
  }
  if (!*text || strlen(text) >= sizeof out->function)
    return USE_FUNCTION;
  strcpy(out->function, text);
  const char *wrong = parse_calls(calls, out);
  return wrong ? wrong : parse_effect(effect, out);
}

/* ------------------------------------------------------------------------------------------- names */

static const struct vnode_hook *hook_of(const char *function) {
  for (const struct vnode_library *library = vnode_hook_libraries(); library; library = library->next)
    for (const struct vnode_hook *hook = library->hooks; hook < library->hooks_end; hook++)
      if (!strcmp(hook->name, function))
        return hook;
  return NULL;
}

/* A function that begins with the name: cuMemAlloc is cuMemAlloc_v2 in cuda.h. */
static const struct vnode_hook *longer_hook_of(const char *function) {
  size_t length = strlen(function);
  for (const struct vnode_library *library = vnode_hook_libraries(); library; library = library->next)
    for (const struct vnode_hook *hook = library->hooks; hook < library->hooks_end; hook++)
      if (!strncmp(hook->name, function, length) && hook->name[length] == '_')
        return hook;
  return NULL;
}

/* The stand-in that would have the function is loaded and has not; or none would. */
static bool is_missing(const char *function) {
  static const struct {
    const char *prefix, *soname;
  } families[] = {{"cublasLt", "libcublasLt.so"}, {"cublas", "libcublas.so"}, {"cuda", "libcudart.so"},
                  {"__cuda", "libcudart.so"},     {"cu", "libcuda.so"},       {"nccl", "libnccl.so"},
                  {"nvml", "libnvidia-ml.so"}};
  if (hook_of(function))
    return false;
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    if (strncmp(function, families[i].prefix, strlen(families[i].prefix)))
      continue;
    for (const struct vnode_library *library = vnode_hook_libraries(); library; library = library->next)
      if (!strncmp(library->soname, families[i].soname, strlen(families[i].soname)))
        return true;
    return false;
  }
  return true;
}

static bool is_good(const struct vnode_fault *fault) {
  if (is_missing(fault->function)) {
    const struct vnode_hook *longer = longer_hook_of(fault->function);
    vnode_say("B200OPT_VNODE_FAULT: the virtual node has no function %s; use an exported name%s%s", fault->function,
              longer ? " such as " : " of its libraries", longer ? longer->name : "");
    return false;
  }
  if (vnode_hook_is_at_load(fault->function)) {
    vnode_say(
        "B200OPT_VNODE_FAULT: %s is called while libraries are loaded, where nothing can go wrong; use another function",
        fault->function);
    return false;
  }
  if ((fault->effect == FAIL || fault->effect == STICKY) && !vnode_hook_has_status(fault->function)) {
    vnode_say("B200OPT_VNODE_FAULT: %s returns no status and cannot fail; use die, hang or slow=TIME", fault->function);
    return false;
  }
  return true;
}

static void read_faults(void) {
  const char *value = vnode_config()->fault;
  char *copy = value ? strdup(value) : NULL, *rest = copy, *part;
  while (rest && (part = strsep(&rest, ",;"))) {
    part += strspn(part, " ");
    if (!*part)
      continue;
    char shown[128];
    snprintf(shown, sizeof shown, "%s", part);
    struct vnode_fault fault = {0};
    const char *wrong = fault_count == MAX_FAULTS ? "use at most 64 faults" : parse(part, &fault);
    if (wrong)
      vnode_say("B200OPT_VNODE_FAULT: %s is not accepted; %s", shown, wrong);
    else if (is_good(&fault))
      faults[fault_count++] = fault;
  }
  free(copy);
  for (size_t i = 0; i < fault_count; i++)
    for (size_t j = i + 1; j < fault_count && !faults[i].next; j++)
      if (!strcmp(faults[i].function, faults[j].function))
        faults[i].next = &faults[j];
}

const struct vnode_fault *vnode_faults_of(const char *function) {
  pthread_once(&once, read_faults);
  for (size_t i = 0; i < fault_count; i++)
    if (!strcmp(faults[i].function, function))
      return &faults[i];
  return NULL;
}

/* ------------------------------------------------------------------------------------------- effects */

static _Noreturn void die(void) {
  kill(getpid(), SIGKILL);
  for (;;)
    pause();
}

static _Noreturn void hang(void) {
  for (;;)
    pause();
}

static void say_strike(const struct vnode_fault *fault, uint64_t call) {
  static const char *const words[] = {"returns ", "ends the context with ", "dies", "hangs", "is slower by ns "};
  char value[24] = "";
  if (fault->effect != DIE && fault->effect != HANG)
    snprintf(value, sizeof value, "%lld", (long long)fault->value);
  vnode_say("injected fault: call %llu of %s %s%s", (unsigned long long)call, fault->function, words[fault->effect], value);
}

bool vnode_fault_strike(struct vnode_hook *hook, const struct vnode_fault *fault, int *status) {
  uint64_t call = atomic_fetch_add_explicit(&hook->calls, 1, memory_order_relaxed) + 1;
  bool sticky = false;
  for (; fault; fault = fault->next) {
    bool meets = fault->onwards ? call >= fault->first : call == fault->first;
    if (!meets || (fault->rank >= 0 && fault->rank != vnode_config()->rank))
      continue;
    if (call == fault->first)
      say_strike(fault, call);
    switch (fault->effect) {
    case FAIL:
      *status = *status ? *status : (int)fault->value;
      break;
    case STICKY:
      vnode_set_sticky_error((int)fault->value);
      sticky = true;
      break;
    case DIE:
      die();
    case HANG:
      hang();
    case SLOW:
      vnode_host_charge(fault->value);
      vnode_pause(fault->value);
    }
  }
  return sticky;
}
