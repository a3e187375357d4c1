/* SPDX-License-Identifier: Apache-2.0 */
/* The call trace: one line per call of a stand-in's function, "t<thread> NAME ARGUMENTS". Streams, events, handles and
   communicators are numbers, so that traces of equal programs are equal. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "tracing.h"

enum { MAX_LINE = 4096 };

struct line {
  size_t used;
  char text[MAX_LINE];
};

static __attribute__((format(printf, 2, 3))) void add(struct line *line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line->text + line->used, MAX_LINE - 1 - line->used, format, arguments);
  va_end(arguments);
  size_t room = MAX_LINE - 2 - line->used;
  line->used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room;
}

/* ------------------------------------------------------------------------------------------- numbers */

/* Things by their address, per kind, in order of first appearance. */
enum kind { EVENT, HANDLE, COMMUNICATOR, KINDS };
struct numbers {
  const void **things;
  int *number;
  size_t count, capacity;
  int last;
};
static struct numbers numbers[KINDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int *slot_of(struct numbers *all, const void *thing) {
  for (size_t i = 0; i < all->count; i++)
    if (all->things[i] == thing)
      return &all->number[i];
  if (all->count == all->capacity) {
    size_t capacity = all->capacity ? 2 * all->capacity : 64;
    const void **things = realloc(all->things, capacity * sizeof *things);
    if (things)
      all->things = things;
    int *number = realloc(all->number, capacity * sizeof *number);
    if (number)
      all->number = number;
    if (!things || !number)
      return NULL;
    all->capacity = capacity;
  }
  all->things[all->count] = thing;
  all->number[all->count] = 0;
  return &all->number[all->count++];
}

/* `fresh`: the address names a new thing. 0: none, or no host memory. */
static int number_of(enum kind kind, const void *thing, bool fresh) {
  if (!thing)
    return 0;
  pthread_mutex_lock(&lock);
  int *number = slot_of(&numbers[kind], thing);
  if (number && (fresh || !*number))
    *number = ++numbers[kind].last;
  int found = number ? *number : 0;
  pthread_mutex_unlock(&lock);
  return found;
}

static int thread_number(void) {
  static _Atomic int last = -1;
  static _Thread_local int own = -1;
  if (own < 0)
    own = atomic_fetch_add(&last, 1) + 1;
  return own;
}

/* ------------------------------------------------------------------------------------------- arguments */

static const char *type_name(unsigned type) {
  static const struct {
    unsigned type; /* cudaDataType */
    const char *name;
  } types[] = {{0, "f32"},  {1, "f64"},   {2, "f16"},   {3, "i8"},    {8, "u8"},
               {10, "i32"}, {14, "bf16"}, {28, "e4m3"}, {29, "e5m2"}, {33, "e2m1"}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].type == type)
      return types[i].name;
  return "other";
}

static void add_bytes(struct line *line, const void *at, size_t bytes, bool decimal) {
  unsigned long long value = 0;
  if (at && bytes <= sizeof value)
    memcpy(&value, at, bytes); /* little endian */
  add(line, decimal ? "%llu" : "0x%llx", value);
}

static void add_argument(struct line *line, const struct vnode_call *call, unsigned slot, char kind, bool made) {
  uint64_t value = vnode_call_slot(call, slot);
  const void *pointer = vnode_call_pointer(call, slot);
  switch (kind) {
  case 'd':
    add(line, "%d", (int)value);
    break;
  case 'u':
    add(line, "%u", (unsigned)value);
    break;
  case 'l':
    add(line, "%lld", (long long)value);
    break;
  case 'z':
    add(line, "%llu", (unsigned long long)value);
    break;
  case 's':
    add(line, "%d", vnode_stream_id(pointer));
    break;
  case 'S':
    add(line, "%d", made && pointer ? vnode_stream_id(*(struct vnode_stream *const *)pointer) : -1);
    break;
  case 'e':
    add(line, "%d", number_of(EVENT, pointer, false));
    break;
  case 'E':
    add(line, "%d", made && pointer ? number_of(EVENT, *(void *const *)pointer, true) : 0);
    break;
  case 'h':
    add(line, "h%d", number_of(HANDLE, pointer, false));
    break;
  case 'c':
    add(line, "c%d", number_of(COMMUNICATOR, pointer, false));
    break;
  case 'g':
    add(line, "%u,%u,%u", (unsigned)value, (unsigned)(value >> 32), (unsigned)vnode_call_slot(call, slot + 1));
    break;
  case 'o':
    add(line, "%c", value <= 2 ? "NTC"[value] : '?');
    break;
  case 't':
    add(line, "%s", type_name((unsigned)value));
    break;
  case 'v':
  case 'V':
    add_bytes(line, pointer, vnode_call_slot(call, slot + 1), kind == 'V');
    break;
  default:
    add(line, "?");
  }
}

static void add_described(struct line *line, const struct vnode_call *call) {
  char text[2048] = "";
  if (call->hook->library->describe)
    call->hook->library->describe(call->hook->name, call, text, sizeof text);
  add(line, "%s", text);
}

static void add_arguments(struct line *line, const struct vnode_call *call, const char *format, bool made) {
  for (const char *at = format; *at; at++) {
    if (*at != '%') {
      add(line, "%c", *at);
    } else if (at[1] == 'x') {
      add_described(line, call);
      at++;
    } else {
      char *kind;
      unsigned slot = (unsigned)strtoul(at + 1, &kind, 10);
      add_argument(line, call, slot, *kind, made);
      at = kind;
    }
  }
}

/* ------------------------------------------------------------------------------------------- the file */

/* One of its own for every process: a forked child opens another. -1: cannot be written. */
static int open_trace(void) {
  static int file = -1;
  static pid_t owner;
  pthread_mutex_lock(&lock);
  if (owner != getpid()) {
    char path[4200];
    snprintf(path, sizeof path, "%sr%d-%ld.trace", vnode_config()->trace, vnode_config()->rank, (long)getpid());
    file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    owner = getpid();
    if (file < 0)
      vnode_say("B200OPT_VNODE_TRACE: %s cannot be written: %s; use a prefix of a path in a folder that is there", path,
                strerror(errno));
  }
  int found = file;
  pthread_mutex_unlock(&lock);
  return found;
}

static void write_line(struct line *line) {
  int file = open_trace();
  line->text[line->used++] = '\n';
  if (file >= 0)
    (void)!write(file, line->text, line->used);
}

const char *vnode_trace_format(const char *function) {
  static const struct {
    const char *function, *format;
  } rows[] = {
#define VNODE_TRACE(function_name, its_format) {.function = #function_name, .format = its_format},
#include "trace.def"
#undef VNODE_TRACE
  };
  if (!vnode_config()->trace)
    return NULL;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (!strcmp(rows[i].function, function))
      return rows[i].format;
  return "";
}

bool vnode_trace_is_late(const char *format) {
  return strstr(format, "-> ");
}

void vnode_trace_call(const struct vnode_call *call, const char *format, int status) {
  struct line line = {.used = 0};
  add(&line, "t%d %s", thread_number(), call->hook->name);
  if (*format)
    add(&line, " ");
  add_arguments(&line, call, format, !status);
  if (status)
    add(&line, " = %d", status);
  write_line(&line);
}

void vnode_trace_mark(const char *text) {
  if (!vnode_config()->trace)
    return;
  struct line line = {.used = 0};
  add(&line, "t%d #### %s", thread_number(), text);
  write_line(&line);
}
