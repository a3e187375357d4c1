/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/decode.h"
#include "interpose/record/json.h"
#include "tools/replay/rmm.h"

#define NS_PER_DAY INT64_C(86400000000000)
#define HANDLE_ADDRESS (UINT64_C(1) << 63) /* beyond a device's addresses */

struct replay_source {
  const char *path;
  const struct b200_log *log; /* NULL: a file of RMM */
  FILE *csv;
  struct replay_listener listener;
  int64_t t_ns; /* of the line that is being read */
  uint64_t line;
};

/* ---- writing */

static void put_row(FILE *csv, const struct rmm_row *row) {
  char line[RMM_LINE_MAX];
  rmm_row_print(row, line);
  fputs(line, csv);
}

static void put_request(const struct replay_source *source, enum rmm_action action, const struct replay_request *request) {
  /* a damaged log may hold any number: without overflow */
  int64_t unix_ns = (int64_t)((uint64_t)source->log->unix_ns + (uint64_t)source->t_ns - (uint64_t)source->log->t_ns);
  uint64_t us = (uint64_t)((unix_ns % NS_PER_DAY + NS_PER_DAY) % NS_PER_DAY) / 1000;
  put_row(source->csv, &(struct rmm_row){.thread = source->log->pid > 0 ? (uint64_t)source->log->pid : 0,
                                         .hours = (unsigned)(us / 3600000000),
                                         .minutes = (unsigned)(us / 60000000 % 60),
                                         .seconds = (unsigned)(us / 1000000 % 60),
                                         .microseconds = (unsigned)(us % 1000000),
                                         .point = '.',
                                         .action = action,
                                         .pointer = request->physical ? HANDLE_ADDRESS + request->slot : request->address,
                                         .size = request->bytes});
}

static void put_begin(void *source, const struct replay_request *request) {
  put_request(source, RMM_ALLOCATE, request);
}

static void put_end(void *source, const struct replay_request *request) {
  put_request(source, RMM_FREE, request);
}

/* ---- sources */

static struct replay_source *new_source(const char *path, const struct b200_log *log, FILE *csv) {
  struct replay_source *source = b200_zeroed(1, sizeof(*source));
  source->path = path;
  source->log = log;
  source->csv = csv;
  source->listener = (struct replay_listener){put_begin, put_end, source};
  return source;
}

struct replay_source *replay_source_rmm(const char *path, FILE *csv) {
  return new_source(path, NULL, csv);
}

struct replay_source *replay_source_log(const struct b200_log *log, FILE *csv) {
  return new_source(log->path, log, csv);
}

const struct replay_listener *replay_source_listener(const struct replay_source *source) {
  return source->csv && source->log ? &source->listener : NULL;
}

void replay_source_destroy(struct replay_source *source) {
  free(source);
}

static char *at_line(const struct replay_source *source, const char *what) {
  return b200_format("%s:%llu: %s", source->path, (unsigned long long)source->line, what);
}

/* NULL, or what is wrong with the line. */
static const char *feed(struct replay *replay, const struct replay_event *event) {
  return replay_feed(replay, event) ? NULL : "more is allocated than a device can have (accepted: 2^60 bytes at once)";
}

/* ---- RMM */

static const char *take_row(struct replay_source *source, struct replay *replay, const char *line, size_t length) {
  static const unsigned events[RMM_ACTION_COUNT] = {
      [RMM_ALLOCATE] = REPLAY_MALLOC, [RMM_FREE] = REPLAY_FREE, [RMM_FAILURE] = REPLAY_REFUSED};
  struct rmm_row row;
  const char *wrong = rmm_row_parse(line, length, &row);
  if (wrong)
    return wrong;
  if (source->csv)
    put_row(source->csv, &row);
  if (row.action != RMM_FAILURE && row.pointer == 0) /* of nothing: no memory is behind it */
    return NULL;
  return feed(replay, &(struct replay_event){.what = events[row.action],
                                             .owner = B200_OWNER_PYTORCH, /* a tensor, as far as policies care */
                                             .key = row.pointer,
                                             .bytes = row.size,
                                             .stream = row.stream});
}

static const char *take_rmm_line(struct replay_source *source, struct replay *replay, char *line, size_t length) {
  if (source->line > 1)
    return take_row(source, replay, line, length);
  if (length != strlen(RMM_HEADER) || memcmp(line, RMM_HEADER, length) != 0)
    return "not the first line of a log of RMM (accepted: " RMM_HEADER ")";
  if (source->csv)
    fprintf(source->csv, "%s\n", RMM_HEADER);
  return NULL;
}

/* ---- logs */

static int find(const char *const *names, int count, const char *name) {
  int i = 0;
  while (i < count && strcmp(names[i], name) != 0)
    i++;
  return i;
}

/* "alloc" is the driver's malloc; the others have the names of replay_call_names. */
static int find_what(const char *name) {
  int what = find(replay_call_names, REPLAY_CALL_COUNT, strcmp(name, "alloc") == 0 ? "malloc" : name);
  return what < REPLAY_ACCESS && strcmp(name, "malloc") != 0 ? what : REPLAY_CALL_COUNT;
}

static const char *take_block(struct replay_source *source, struct replay *replay, const struct b200_log_line *line) {
  int what = find_what(line->block_what), owner = find(b200_owner_names, B200_OWNER_COUNT, line->block_owner);
  if (what == REPLAY_CALL_COUNT)
    return "unknown kind of block (accepted: alloc, free, create, release, map, unmap)";
  bool maps = what == REPLAY_MAP || what == REPLAY_UNMAP; /* whose it is follows from the handle */
  if (maps && line->block_owner[0] == '\0')
    owner = B200_OWNER_OTHER;
  if (owner == B200_OWNER_COUNT)
    return "unknown owner (accepted: pytorch, nccl, cublas, cudnn, b200opt, other)";
  if (line->block_bytes < 0 || (uint64_t)line->block_bytes > REPLAY_BYTES_MAX)
    return "bytes are out of range (accepted: 0 to 17592186044416)";
  source->t_ns = line->block_t_ns;
  bool handle = what == REPLAY_CREATE || what == REPLAY_RELEASE;
  return feed(replay, &(struct replay_event){.what = (unsigned)what,
                                             .owner = (unsigned)owner,
                                             .key = (uint64_t)(handle ? line->block_handle : line->block_address),
                                             .handle = (uint64_t)line->block_handle,
                                             .bytes = (uint64_t)line->block_bytes,
                                             .stream = (uint64_t)line->block_stream});
}

static const char *take_decoded(struct replay_source *source, struct replay *replay, int type,
                                const struct b200_log_line *line) {
  if (type == B200_RECORD_block)
    return take_block(source, replay, line);
  if (type != B200_RECORD_oom)
    return NULL;
  int owner = find(b200_owner_names, B200_OWNER_COUNT, line->oom_owner);
  if (owner == B200_OWNER_COUNT)
    return NULL;
  return feed(replay, &(struct replay_event){.what = REPLAY_REFUSED, .owner = (unsigned)owner});
}

/* Lines that are none were told of when the log was read as a whole. */
static const char *take_log_line(struct replay_source *source, struct replay *replay, struct b200_log_scan *scan, char *text,
                                 size_t length) {
  struct b200_log_line line;
  json_error_t error;
  json_t *object = NULL;
  int type = b200_log_line_scan(scan, text, length, &line);
  if (type < 0) {
    object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    type = b200_log_line_decode(object, &line, NULL);
  }
  const char *wrong = take_decoded(source, replay, type, &line);
  json_decref(object);
  return wrong;
}

/* ---- files */

struct replay_reading replay_source_read(struct replay_source *source, struct replay *replay) {
  struct replay_reading reading = {0};
  struct b200_log_scan scan = {.last = NULL};
  const char *wrong = NULL;
  char *text = NULL;
  size_t room = 0;
  ssize_t length;
  FILE *file = fopen(source->path, "re");
  if (!file) {
    reading.error = b200_format("cannot read '%s': %s", source->path, strerror(errno));
    return reading;
  }
  while (!wrong && (length = getline(&text, &room, file)) > 0) {
    source->line++;
    if (text[length - 1] != '\n') { /* its process was killed, or still runs */
      reading.note = at_line(source, "the last line is not complete and is left out");
      break;
    }
    text[--length] = '\0';
    wrong = source->log ? take_log_line(source, replay, &scan, text, (size_t)length)
                        : take_rmm_line(source, replay, text, (size_t)length);
  }
  if (ferror(file))
    reading.error = b200_format("cannot read '%s': %s", source->path, strerror(errno));
  else if (wrong)
    reading.error = at_line(source, wrong);
  else if (!source->line)
    reading.error = b200_format("'%s' is empty", source->path);
  b200_log_scan_free(&scan);
  free(text);
  fclose(file);
  return reading;
}
