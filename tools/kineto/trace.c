/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/trace.h"

#include "interpose/record/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define NAME_MAX_BYTES 1024
#define FILE_PIECE_BYTES ((size_t)16 << 10)
#define DURATION_MAX_NS INT64_C(1000000000000000000) /* 31 years */

/* One element of traceEvents. */
struct event {
  enum kineto_category category;
  char category_name[32], name[NAME_MAX_BYTES];
  int64_t start_ns, duration_ns;
  bool has_start, has_duration;
  /* of its arguments */
  int64_t correlation, stream, elements_in, elements_out, ranks;
  char collective[48], dtype[24];
};

static void copy(char *to, size_t room, const struct kineto_scan *scan) {
  size_t length = scan->length < room ? scan->length : room - 1;
  memcpy(to, scan->text, length);
  to[length] = '\0';
}

/* ---- fields; each takes the value at hand */

/* Takes the value that is next, if it is of this sort: a text, or the way into a container; what is something else is passed
 * over. */
static bool take(struct kineto_scan *scan, enum kineto_token wanted) {
  enum kineto_token token = kineto_scan_value(scan);
  if (token != wanted && (token == KINETO_OBJECT || token == KINETO_ARRAY))
    kineto_scan_leave(scan);
  return token == wanted;
}

static void take_text(struct kineto_scan *scan, char *to, size_t room) {
  if (take(scan, KINETO_STRING))
    copy(to, room, scan);
}

static bool take_number(struct kineto_scan *scan, int shift, int64_t *value) {
  return take(scan, KINETO_SCALAR) && kineto_decimal(scan->text, shift, value);
}

/* Whether the key at hand is that literal. Most are not, which their length shows. */
#define IS(scan, literal)                                                                                                   \
  ((scan)->length == sizeof(literal) - 1 && memcmp((scan)->text, (literal), sizeof(literal) - 1) == 0)

static void take_argument(struct kineto_scan *scan, struct event *event) {
  if (IS(scan, "correlation"))
    take_number(scan, 0, &event->correlation);
  else if (IS(scan, "stream"))
    take_number(scan, 0, &event->stream);
  else if (IS(scan, "Collective name"))
    take_text(scan, event->collective, sizeof(event->collective));
  else if (IS(scan, "In msg nelems"))
    take_number(scan, 0, &event->elements_in);
  else if (IS(scan, "Out msg nelems"))
    take_number(scan, 0, &event->elements_out);
  else if (IS(scan, "Group size"))
    take_number(scan, 0, &event->ranks);
  else if (IS(scan, "dtype"))
    take_text(scan, event->dtype, sizeof(event->dtype));
  else
    kineto_scan_skip(scan);
}

static void take_arguments(struct kineto_scan *scan, struct event *event) {
  if (event->category == KINETO_CATEGORY_HOST) {
    kineto_scan_skip(scan);
    return;
  }
  if (!take(scan, KINETO_OBJECT))
    return;
  while (kineto_scan_key(scan) == KINETO_STRING)
    take_argument(scan, event);
}

static void take_field(struct kineto_scan *scan, struct event *event) {
  if (IS(scan, "cat")) {
    take_text(scan, event->category_name, sizeof(event->category_name));
    event->category = kineto_category(event->category_name);
  } else if (IS(scan, "name")) {
    take_text(scan, event->name, sizeof(event->name));
  } else if (IS(scan, "ts")) {
    event->has_start = take_number(scan, 3, &event->start_ns);
  } else if (IS(scan, "dur")) {
    event->has_duration = take_number(scan, 3, &event->duration_ns);
  } else if (IS(scan, "args")) {
    take_arguments(scan, event);
  } else {
    kineto_scan_skip(scan);
  }
}

/* ---- events */

static unsigned intern_kind(struct kineto_trace *trace, const char *name) {
  char kind[sizeof(trace->kinds[0])];
  size_t length = strnlen(name, sizeof(kind) - 1);
  for (size_t i = 0; i < length; i++)
    kind[i] = name[i] > ' ' && name[i] <= '~' ? name[i] : '?';
  kind[length] = '\0';
  for (unsigned i = 0; i < trace->kind_count; i++)
    if (strcmp(trace->kinds[i], kind) == 0)
      return i;
  if (trace->kind_count == KINETO_KINDS_MAX)
    return KINETO_KINDS_MAX - 1;
  memcpy(trace->kinds[trace->kind_count], trace->kind_count == KINETO_KINDS_MAX - 1 ? "other" : kind,
         trace->kind_count == KINETO_KINDS_MAX - 1 ? sizeof("other") : length + 1);
  return trace->kind_count++;
}

static int64_t bus_bytes(const struct event *event, const char *kind) {
  bool bytes_out;
  double factor = kineto_bus_factor(kind, (long)event->ranks, &bytes_out);
  int64_t elements = bytes_out ? event->elements_out : event->elements_in;
  double bytes = factor * (double)elements * kineto_element_bytes(event->dtype);
  return bytes > 0 && bytes < 1e18 ? (int64_t)bytes : 0;
}

static void add_op(struct kineto_trace *trace, const struct event *event) {
  if (!event->has_start || !event->has_duration || event->duration_ns < 0 || event->duration_ns > DURATION_MAX_NS) {
    trace->invalid++;
    return;
  }
  enum kineto_class class = kineto_class(event->category, event->name, event->collective);
  trace->hta_differs += class != kineto_hta_class(event->name);
  trace->ops = b200_grow(trace->ops, trace->op_count, sizeof(*trace->ops));
  struct kineto_op *op = &trace->ops[trace->op_count++];
  *op = (struct kineto_op){.start_ns = event->start_ns,
                           .end_ns = event->start_ns + event->duration_ns,
                           .correlation = event->correlation,
                           .launch_ns = KINETO_NOT_LAUNCHED,
                           .step = -1,
                           .class = (uint8_t) class};
  if (class == KINETO_COMMUNICATION) {
    const char *kind = kineto_kind(event->collective, event->name);
    op->kind = (uint8_t)intern_kind(trace, kind);
    op->bus_bytes = bus_bytes(event, kind);
  }
}

static void add_launch(struct kineto_trace *trace, const struct event *event) {
  if (event->correlation < 0 || !event->has_start)
    return;
  trace->launches = b200_grow(trace->launches, trace->launch_count, sizeof(*trace->launches));
  trace->launches[trace->launch_count++] = (struct kineto_launch){event->correlation, event->start_ns};
}

static void add_step(struct kineto_trace *trace, const struct event *event) {
  static const char prefix[] = "ProfilerStep#";
  int64_t number;
  if (strncmp(event->name, prefix, strlen(prefix)) != 0 || !kineto_decimal(event->name + strlen(prefix), 0, &number) ||
      !event->has_start || !event->has_duration || event->duration_ns < 0 || event->duration_ns > DURATION_MAX_NS)
    return;
  trace->steps = b200_grow(trace->steps, trace->step_count, sizeof(*trace->steps));
  trace->steps[trace->step_count++] = (struct kineto_step){number, event->start_ns, event->start_ns + event->duration_ns};
}

static void add_event(struct kineto_trace *trace, const struct event *event) {
  trace->events++;
  switch (event->category) {
  case KINETO_CATEGORY_KERNEL:
  case KINETO_CATEGORY_MEMORY:
    add_op(trace, event);
    return;
  case KINETO_CATEGORY_GPU_ANNOTATION:
  case KINETO_CATEGORY_NONE:
    return;
  case KINETO_CATEGORY_SYNC:
  case KINETO_CATEGORY_UNKNOWN:
    /* HTA takes for the GPU's what has a stream; of what has none, a launch. */
    if (event->stream >= 0 && event->has_duration) {
      if (!trace->hta_extra++)
        snprintf(trace->hta_extra_category, sizeof(trace->hta_extra_category), "%s", event->category_name);
      return;
    }
    add_launch(trace, event);
    return;
  case KINETO_CATEGORY_LAUNCH:
    add_launch(trace, event);
    return;
  case KINETO_CATEGORY_HOST:
    add_step(trace, event);
    return;
  }
}

static void read_event(struct kineto_scan *scan, struct kineto_trace *trace) {
  struct event the_event, *event = &the_event; /* its texts are long: only their ends are set */
  event->category = KINETO_CATEGORY_NONE;
  event->category_name[0] = event->name[0] = event->collective[0] = event->dtype[0] = '\0';
  event->has_start = event->has_duration = false;
  event->correlation = event->stream = -1;
  event->elements_in = event->elements_out = event->ranks = 0;
  enum kineto_token token;
  while ((token = kineto_scan_key(scan)) == KINETO_STRING)
    take_field(scan, event);
  if (token == KINETO_OBJECT_END)
    add_event(trace, event);
}

static void read_events(struct kineto_scan *scan, struct kineto_trace *trace) {
  if (!take(scan, KINETO_ARRAY))
    return;
  trace->is_trace = true;
  enum kineto_token token;
  while ((token = kineto_scan_value(scan)) != KINETO_ARRAY_END && token != KINETO_BROKEN) {
    if (token == KINETO_OBJECT)
      read_event(scan, trace);
    else if (token == KINETO_ARRAY)
      kineto_scan_leave(scan);
  }
}

static void read_distributed(struct kineto_scan *scan, struct kineto_trace *trace) {
  if (!take(scan, KINETO_OBJECT))
    return;
  while (kineto_scan_key(scan) == KINETO_STRING) {
    if (IS(scan, "rank"))
      take_number(scan, 0, &trace->rank);
    else if (IS(scan, "world_size"))
      take_number(scan, 0, &trace->world);
    else
      kineto_scan_skip(scan);
  }
}

/* ---- afterwards */

#define BY(name, type, first, second)                                                                                       \
  static int name(const void *a, const void *b) {                                                                           \
    const type *left = a, *right = b;                                                                                       \
    if (left->first != right->first)                                                                                        \
      return left->first < right->first ? -1 : 1;                                                                           \
    return (left->second > right->second) - (left->second < right->second);                                                 \
  }
BY(by_op_start, struct kineto_op, start_ns, end_ns)
BY(by_step_start, struct kineto_step, start_ns, end_ns)
BY(by_correlation, struct kineto_launch, correlation, start_ns)

/* The first launch with this correlation: one call may be there twice, as the runtime's and as the driver's. */
static int64_t launch_of(const struct kineto_trace *trace, int64_t correlation) {
  size_t low = 0, high = trace->launch_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (trace->launches[middle].correlation < correlation)
      low = middle + 1;
    else
      high = middle;
  }
  bool found = low < trace->launch_count && trace->launches[low].correlation == correlation;
  return found ? trace->launches[low].start_ns : KINETO_NOT_LAUNCHED;
}

/* The last step that began by then, if it still lasted. */
static int32_t step_at(const struct kineto_trace *trace, int64_t time_ns) {
  size_t low = 0, high = trace->step_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (trace->steps[middle].start_ns <= time_ns)
      low = middle + 1;
    else
      high = middle;
  }
  return low && time_ns < trace->steps[low - 1].end_ns ? (int32_t)low - 1 : -1;
}

static void sort(void *rows, size_t count, size_t size, int (*compare)(const void *, const void *)) {
  if (count)
    qsort(rows, count, size, compare);
}

static void join(struct kineto_trace *trace) {
  sort(trace->launches, trace->launch_count, sizeof(*trace->launches), by_correlation);
  sort(trace->steps, trace->step_count, sizeof(*trace->steps), by_step_start);
  sort(trace->ops, trace->op_count, sizeof(*trace->ops), by_op_start);
  for (size_t i = 0; i < trace->op_count; i++) {
    struct kineto_op *op = &trace->ops[i];
    op->launch_ns = op->correlation < 0 ? KINETO_NOT_LAUNCHED : launch_of(trace, op->correlation);
    op->step = op->launch_ns == KINETO_NOT_LAUNCHED ? -1 : step_at(trace, op->launch_ns);
  }
  free(trace->launches);
  trace->launches = NULL;
  trace->launch_count = 0;
}

void kineto_trace_read(struct kineto_trace *trace, kineto_read read, void *from) {
  struct kineto_scan *scan = b200_zeroed(1, sizeof(*scan));
  *trace = (struct kineto_trace){.rank = -1, .world = -1};
  kineto_scan_start(scan, read, from);
  if (kineto_scan_value(scan) == KINETO_OBJECT) {
    while (kineto_scan_key(scan) == KINETO_STRING) {
      if (IS(scan, "traceEvents"))
        read_events(scan, trace);
      else if (IS(scan, "distributedInfo"))
        read_distributed(scan, trace);
      else
        kineto_scan_skip(scan);
    }
  }
  trace->partial = scan->error;
  trace->partial_at = kineto_scan_offset(scan);
  free(scan);
  join(trace);
}

/* In small pieces: with an error, gzread() says nothing of what it has read. */
static ptrdiff_t read_file(void *from, void *to, size_t room) {
  gzFile file = from;
  size_t got = 0;
  for (int piece = 1; got < room && piece > 0; got += piece > 0 ? (size_t)piece : 0) {
    size_t wanted = room - got < FILE_PIECE_BYTES ? room - got : FILE_PIECE_BYTES;
    piece = gzread(file, (char *)to + got, (unsigned)wanted);
    if (piece < 0 && !got)
      return -1;
  }
  return (ptrdiff_t)got;
}

int kineto_trace_open(struct kineto_trace *trace, const char *path) {
  errno = 0;
  gzFile file = gzopen(path, "rb");
  if (!file)
    return errno ? errno : ENOMEM;
  kineto_trace_read(trace, read_file, file);
  gzclose(file);
  return 0;
}

void kineto_trace_free(struct kineto_trace *trace) {
  free(trace->ops);
  free(trace->steps);
  free(trace->launches);
}
