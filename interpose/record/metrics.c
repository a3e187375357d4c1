/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct row {
  const char *line;
  double scale;
  int places;
  const char *prometheus, *type, *help;
} rows[B200_METRIC_COUNT] = {
#define B200_METRIC(id, line, scale, places, prometheus, type, help) {line, scale, places, prometheus, #type, help},
#include "interpose/record/metrics.def"
#undef B200_METRIC
};

enum { LINE_WAIT_S = 1 };

/* Room for every row at its longest: names, help, three times the labels of 2 · 256 escaped bytes. */
_Static_assert(B200_METRIC_COUNT * 80 < B200_METRICS_LINE_BYTES, "the line holds every metric");
_Static_assert(B200_METRIC_COUNT * 256 < B200_METRICS_FILE_BYTES - B200_METRIC_COUNT * 400, "the file holds every metric");

/* ------------------------------------------------------------------------------------------------------- text */

/* The job's locale may have another decimal point, of one or more bytes. */
static void use_point(char *number) {
  char *to = number;
  for (const char *from = number; *from; from++) {
    bool plain = (*from >= '0' && *from <= '9') || strchr("+-e", *from);
    if (plain)
      *to++ = *from;
    else if (to == number || to[-1] != '.')
      *to++ = '.';
  }
  *to = '\0';
}

/* places < 0: as many as tell the value, to nine digits. */
static void put_number(char *out, size_t size, double value, int places) {
  if (places >= 0 && fabs(value) < 1e15)
    snprintf(out, size, "%.*f", places, value);
  else
    snprintf(out, size, "%.9g", value);
  use_point(out);
}

/* The shortest of two forms that gives the same double again. */
static void put_exact(char *out, size_t size, double value) {
  snprintf(out, size, "%.15g", value);
  if (strtod(out, NULL) < value || strtod(out, NULL) > value)
    snprintf(out, size, "%.17g", value);
  use_point(out);
}

size_t b200_metrics_line(const struct b200_metrics *metrics, char *out, size_t size) {
  size_t length = (size_t)snprintf(out, size, "b200opt:");
  size_t prefix = length;
  for (int i = 0; i < B200_METRIC_COUNT; i++) {
    char number[48];
    if (!isfinite(metrics->value[i]) || rows[i].line[0] == '\0')
      continue;
    put_number(number, sizeof number, metrics->value[i] * rows[i].scale, rows[i].places);
    length += (size_t)snprintf(out + length, size - length, " %s=%s;", rows[i].line, number);
  }
  if (length == prefix)
    return 0;
  out[length++] = '\n';
  return length;
}

/* A label's value, quoted; what is not printable ASCII becomes '?', so that the file is valid UTF-8 whatever the name. */
static size_t put_label(char *out, const char *name, const char *value) {
  size_t length = (size_t)sprintf(out, ",%s=\"", name);
  for (; *value; value++) {
    if (*value == '"' || *value == '\\')
      out[length++] = '\\';
    out[length++] = *value >= ' ' && *value <= '~' ? *value : '?';
  }
  out[length++] = '"';
  return length;
}

size_t b200_metrics_prometheus(const struct b200_metrics *metrics, const struct b200_metrics_labels *labels, char *out,
                               size_t size) {
  char set[32 + 2 * (sizeof labels->run + sizeof labels->arm)];
  size_t length = 0, set_length = (size_t)sprintf(set, "{rank=\"%d\"", labels->rank);
  set_length += put_label(set + set_length, "run", labels->run);
  set_length += put_label(set + set_length, "arm", labels->arm);
  set[set_length++] = '}';
  set[set_length] = '\0';
  for (int i = 0; i < B200_METRIC_COUNT; i++) {
    const struct row *row = &rows[i];
    char number[48];
    if (!isfinite(metrics->value[i]) || row->prometheus[0] == '\0')
      continue;
    put_exact(number, sizeof number, metrics->value[i]);
    int added = snprintf(out + length, size - length, "# HELP %s %s\n# TYPE %s %s\n%s%s %s\n", row->prometheus, row->help,
                         row->prometheus, row->type, row->prometheus, set, number);
    if ((size_t)added >= size - length) /* only with labels far longer than names are */
      break;
    length += (size_t)added;
  }
  return length;
}

bool b200_metrics_path(const char *path, int rank, char *out, size_t size) {
  static const char ending[] = ".prom";
  size_t stem = strlen(path);
  bool ends = stem > strlen(ending) && strcmp(path + stem - strlen(ending), ending) == 0;
  if (ends)
    stem -= strlen(ending);
  int length = snprintf(out, size, "%.*s-r%d%s", (int)stem, path, rank, ends ? ending : "");
  return length > 0 && (size_t)length < size;
}

/* ------------------------------------------------------------------------------------------------------ meter */

/* The job may go to another folder later. */
static bool make_absolute(const char *path, char *out, size_t size) {
  if (path[0] == '/')
    return (size_t)snprintf(out, size, "%s", path) < size;
  if (!getcwd(out, size))
    return false;
  size_t length = strlen(out);
  return (size_t)snprintf(out + length, size - length, "/%s", path) < size - length;
}

static void start_file(struct b200_meter *meter, const struct b200_meter_config *config) {
  bool made = b200_metrics_path(config->prometheus, config->labels.rank, meter->temporary, sizeof meter->temporary) &&
              make_absolute(meter->temporary, meter->path, sizeof meter->path);
  if (made) {
    snprintf(meter->temporary, sizeof meter->temporary, "%s.%d.tmp", meter->path, (int)getpid());
    return;
  }
  meter->path[0] = '\0';
  meter->say("metrics: no Prometheus file: its path is too long, or the working directory has none");
}

void b200_meter_start(struct b200_meter *meter, const struct b200_meter_config *config) {
  struct stat now;
  pthread_mutex_init(&meter->lock, NULL);
  meter->say = config->say;
  meter->every = config->every;
  meter->labels = config->labels;
  for (int i = 0; i < B200_METRIC_COUNT; i++)
    b200_meter_set(meter, (enum b200_metric)i, (double)NAN);
  atomic_store(&meter->changed, false);
  meter->stream = config->stream;
  if (config->stream >= 0 && fstat(config->stream, &now) == 0) {
    meter->stream_device = now.st_dev;
    meter->stream_inode = now.st_ino;
  }
  if (config->prometheus[0] != '\0')
    start_file(meter, config);
}

void b200_meter_set(struct b200_meter *meter, enum b200_metric metric, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  atomic_store_explicit(&meter->value[metric], bits, memory_order_relaxed);
  atomic_store_explicit(&meter->changed, true, memory_order_release);
}

static double read_one(struct b200_meter *meter, enum b200_metric metric) {
  uint64_t bits = atomic_load_explicit(&meter->value[metric], memory_order_relaxed);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void read_all(struct b200_meter *meter, struct b200_metrics *out) {
  for (int i = 0; i < B200_METRIC_COUNT; i++)
    out->value[i] = read_one(meter, (enum b200_metric)i);
}

/* A stream that takes nothing for long loses its oldest lines. */
static void add_due(struct b200_meter *meter) {
  struct b200_metrics now;
  read_all(meter, &now);
  pthread_mutex_lock(&meter->lock);
  unsigned count = atomic_load(&meter->due_count);
  meter->due[(meter->due_first + count) % B200_METER_DUE] = now;
  if (count < B200_METER_DUE)
    atomic_store(&meter->due_count, count + 1);
  else
    meter->due_first++;
  pthread_mutex_unlock(&meter->lock);
}

bool b200_meter_step(struct b200_meter *meter, uint64_t step) {
  bool due = meter->say && meter->stream >= 0 && step > 0 && step % (uint64_t)meter->every == 0;
  if (due)
    add_due(meter);
  return due || meter->path[0] != '\0';
}

/* ------------------------------------------------------------------------------------------------------ writing */

static void say_errno(struct b200_meter *meter, const char *what, const char *then) {
  char text[B200_METER_PATH_BYTES + 100];
  snprintf(text, sizeof text, "metrics: %s cannot be written, errno %d%s; the job is not affected", what, errno, then);
  meter->say(text);
}

static bool is_our_stream(const struct b200_meter *meter) {
  struct stat now;
  if (fstat(meter->stream, &now) != 0)
    return false;
  errno = EBADF; /* of the stream that was there */
  return now.st_dev == meter->stream_device && now.st_ino == meter->stream_inode;
}

/* A pipe that is ready has room for PIPE_BUF bytes. False: its reader is behind, later. */
static bool is_ready(const struct b200_meter *meter) {
  struct pollfd stream = {.fd = meter->stream, .events = POLLOUT};
  return poll(&stream, 1, 0) != 0;
}

/* False: try again later. */
static bool write_line(struct b200_meter *meter, const struct b200_metrics *metrics, bool after_newline) {
  char text[1 + B200_METRICS_LINE_BYTES] = "\n";
  long written;
  size_t begin = after_newline ? 1 : 0;
  size_t length = begin + b200_metrics_line(metrics, text + begin, B200_METRICS_LINE_BYTES);
  bool ours = is_our_stream(meter);
  if (length == begin)
    return true;
  if (ours && !is_ready(meter))
    return false;
  do
    written = ours ? syscall(SYS_write, meter->stream, text, length) : -1;
  while (written < 0 && errno == EINTR);
  if (written < 0 && errno == EAGAIN)
    return false;
  if (written == (long)length)
    return true;
  if (written >= 0)
    errno = ENOSPC;
  meter->stream_failed = true;
  say_errno(meter, meter->stream == STDOUT_FILENO ? "stdout" : "stderr", ", no more lines of metrics");
  return true;
}

/* What the job prints of a step has been looked at by this very thread, after the step. */
static void write_due(struct b200_meter *meter, bool after_newline) {
  while (atomic_load(&meter->due_count) > 0) {
    pthread_mutex_lock(&meter->lock);
    uint64_t first = meter->due_first;
    struct b200_metrics next = meter->due[first % B200_METER_DUE];
    pthread_mutex_unlock(&meter->lock);
    next.value[B200_METRIC_loss] = read_one(meter, B200_METRIC_loss);
    next.value[B200_METRIC_tokens_per_s] = read_one(meter, B200_METRIC_tokens_per_s);
    if (!meter->stream_failed && !write_line(meter, &next, after_newline))
      return;
    after_newline = false;
    pthread_mutex_lock(&meter->lock);
    if (meter->due_first == first) { /* else it has given way to a newer one */
      meter->due_first++;
      atomic_fetch_sub(&meter->due_count, 1);
    }
    pthread_mutex_unlock(&meter->lock);
  }
}

/* A whole file, or none. */
static bool make_file(const char *path, const char *text, size_t length) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0)
    return false;
  while (length > 0) {
    long written = syscall(SYS_write, file, text, length);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      break;
    text += written;
    length -= (size_t)written;
  }
  int failed = length > 0 ? errno : 0;
  if (close(file) != 0 && failed == 0)
    failed = errno;
  errno = failed;
  return failed == 0;
}

static void write_file(struct b200_meter *meter) {
  char text[B200_METRICS_FILE_BYTES];
  struct b200_metrics now;
  read_all(meter, &now);
  size_t length = b200_metrics_prometheus(&now, &meter->labels, text, sizeof text);
  if (length == 0 || (make_file(meter->temporary, text, length) && rename(meter->temporary, meter->path) == 0))
    return;
  int failed = errno;
  unlink(meter->temporary);
  errno = failed;
  if (!meter->file_said)
    say_errno(meter, meter->path, "");
  meter->file_said = true;
}

/* True: the job's own line, of which the beginning is there, will probably be ended soon. */
static bool wait_for_line(struct b200_meter *meter, bool line_is_open, time_t now_s) {
  if (!line_is_open || atomic_load(&meter->ending))
    return false;
  if (!meter->waits)
    meter->waits_since_s = now_s;
  meter->waits = true;
  return now_s - meter->waits_since_s <= LINE_WAIT_S;
}

void b200_meter_work(struct b200_meter *meter, bool line_is_open) {
  struct timespec now;
  if (!meter->say)
    return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (atomic_load(&meter->due_count) > 0 && !wait_for_line(meter, line_is_open, now.tv_sec)) {
    write_due(meter, line_is_open);
    meter->waits = false;
  }
  if (meter->path[0] == '\0' || !atomic_load_explicit(&meter->changed, memory_order_acquire))
    return;
  if (now.tv_sec == meter->file_written_s && !atomic_load(&meter->ending))
    return;
  meter->file_written_s = now.tv_sec;
  atomic_store(&meter->changed, false);
  write_file(meter);
}

void b200_meter_finish(struct b200_meter *meter) {
  atomic_store(&meter->ending, true);
}
