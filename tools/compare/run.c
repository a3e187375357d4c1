/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare/run.h"

#include "tools/compare/sources.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 8
#define OUTPUT_LOSSES_MIN 2 /* of a text in a folder: fewer are a mention of a loss, not a job's output */
#define FILE_BYTES_MAX (INT64_C(4) << 30)

const char *const compare_source_names[COMPARE_SOURCE_COUNT] = {[COMPARE_LOGS] = "b200opt",
                                                                [COMPARE_TENSORBOARD] = "tensorboard",
                                                                [COMPARE_TRAINER_STATE] = "trainer_state",
                                                                [COMPARE_CSV] = "csv",
                                                                [COMPARE_OUTPUT] = "output"};

static const struct {
  enum compare_form form;
  compare_decode *decode;
} decoders[COMPARE_SOURCE_COUNT] = {[COMPARE_LOGS] = {FORM_LOG, NULL},
                                    [COMPARE_TENSORBOARD] = {FORM_TENSORBOARD, compare_decode_tensorboard},
                                    [COMPARE_TRAINER_STATE] = {FORM_TRAINER_STATE, compare_decode_trainer_state},
                                    [COMPARE_CSV] = {FORM_CSV, compare_decode_csv},
                                    [COMPARE_OUTPUT] = {FORM_TEXT, compare_decode_output}};

/* ---- files */

struct found {
  char *path;
  char *name; /* the same below the arm's path */
  enum compare_form form;
  dev_t device;
  ino_t inode;
  char *run;                          /* key of the run it belongs to; NULL: not known yet */
  int rank;                           /* of a torchrun's output, else COMPARE_NO_LABEL */
  bool node;                          /* of a log */
  int64_t log_rank, log_pid, unix_ns; /* of a log */
};

struct walk {
  struct compare_arm *arm;
  struct found *files;
  size_t count;
};

/* Reads at most `room` bytes of a regular file; -1 with errno. */
static ssize_t read_bytes(const char *path, char *bytes, size_t room) {
  size_t length = 0;
  ssize_t got = 0;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return -1;
  while (length < room && (got = read(file, bytes + length, room - length)) != 0) {
    if (got < 0 && errno != EINTR)
      break;
    length += got > 0 ? (size_t)got : 0;
  }
  int error = errno;
  close(file);
  errno = error;
  return got < 0 ? -1 : (ssize_t)length;
}

/* What the header of a log says of its process; a log without one is rank 0's of a run without a name. */
static void read_header(struct found *file, const char *start, size_t length) {
  const char *newline = memchr(start, '\n', length);
  json_t *header = json_loadb(start, newline ? (size_t)(newline - start) : length, 0, NULL);
  const char *run = json_string_value(json_object_get(header, "run"));
  const char *producer = json_string_value(json_object_get(header, "producer"));
  const json_t *rank = json_object_get(header, "rank");
  file->node = producer ? strncmp(producer, "vnode", 5) == 0 : strstr(file->path, ".node.jsonl") != NULL;
  file->log_rank = json_is_integer(rank) ? json_integer_value(rank) : 0;
  file->log_pid = json_integer_value(json_object_get(header, "pid"));
  file->unix_ns = json_integer_value(json_object_get(header, "unix_ns"));
  if (!file->node || (run && run[0]))
    file->run = b200_format("%s", run ? run : "");
  json_decref(header);
}

static void take_file(struct walk *walk, const char *path, const char *name, const struct stat *status) {
  for (size_t i = 0; i < walk->count; i++)
    if (walk->files[i].device == status->st_dev && walk->files[i].inode == status->st_ino)
      return;
  char *start = b200_zeroed(COMPARE_FORM_BYTES, 1);
  ssize_t length = read_bytes(path, start, COMPARE_FORM_BYTES);
  if (length < 0) {
    compare_note(&walk->arm->notes, &walk->arm->note_count, "%s: %s", path, strerror(errno));
    free(start);
    return;
  }
  struct found file = {.path = b200_format("%s", path),
                       .name = b200_format("%s", name),
                       .form = compare_form_of(start, (size_t)length),
                       .device = status->st_dev,
                       .inode = status->st_ino,
                       .rank = COMPARE_NO_LABEL};
  if (file.form == FORM_LOG)
    read_header(&file, start, (size_t)length);
  walk->files = b200_grow(walk->files, walk->count, sizeof(file));
  walk->files[walk->count++] = file;
  free(start);
}

static int by_version(const struct dirent **a, const struct dirent **b) {
  return strverscmp((*a)->d_name, (*b)->d_name);
}

/* Links to files are followed and count once; links to folders are not: `latest -> run-7` would count a run twice. */
static int walk_folder(struct walk *walk, const char *path, const char *name, int depth) {
  struct dirent **entries;
  struct stat status;
  int count = scandir(path, &entries, NULL, by_version);
  if (count < 0)
    return errno;
  for (int i = 0; i < count; i++) {
    const char *entry = entries[i]->d_name;
    char *child = b200_format("%s/%s", path, entry), *child_name = b200_format("%s%s%s", name, name[0] ? "/" : "", entry);
    if (entry[0] == '.' || lstat(child, &status) != 0) {
      /* hidden, or gone by now */
    } else if (S_ISDIR(status.st_mode)) {
      int error = depth < DEPTH_MAX ? walk_folder(walk, child, child_name, depth + 1) : 0;
      if (error)
        compare_note(&walk->arm->notes, &walk->arm->note_count, "%s: %s", child, strerror(error));
    } else if (stat(child, &status) != 0) {
      compare_note(&walk->arm->notes, &walk->arm->note_count, "%s: %s", child, strerror(errno));
    } else if (S_ISREG(status.st_mode)) {
      take_file(walk, child, child_name, &status);
    }
    free(child);
    free(child_name);
    free(entries[i]);
  }
  free(entries);
  return 0;
}

/* ---- which run a file belongs to */

/* Length of the leading "run-N" of a name below the arm's path, or 0. */
static size_t run_folder(const char *name) {
  if (strncmp(name, "run-", 4) != 0)
    return 0;
  size_t digits = strspn(name + 4, "0123456789");
  return digits && name[4 + digits] == '/' ? 4 + digits : 0;
}

static char *folder_of(const char *name) {
  const char *slash = strrchr(name, '/');
  return b200_format("%.*s", slash ? (int)(slash - name) : 0, name);
}

static const char *last_part(const char *name) {
  const char *slash = strrchr(name, '/');
  return slash ? slash + 1 : name;
}

/* "…/attempt_2/5/stdout.log" as torchrun writes it: the folder above is the run, 5 the rank. */
static bool torchrun_output(struct found *file) {
  char *copy = b200_format("%s", file->name), *rank = NULL, *attempt = NULL;
  char *last = strrchr(copy, '/');
  if (last) {
    *last = '\0';
    rank = strrchr(copy, '/');
  }
  if (rank) {
    *rank++ = '\0';
    attempt = strrchr(copy, '/') ? strrchr(copy, '/') + 1 : copy;
  }
  bool known = attempt && strncmp(attempt, "attempt_", 8) == 0 && *rank && strspn(rank, "0123456789") == strlen(rank) &&
               strlen(rank) < 7;
  if (known) {
    file->rank = atoi(rank);
    file->run = b200_format("%.*s", attempt > copy ? (int)(attempt - copy - 1) : 0, copy);
  }
  free(copy);
  return known;
}

/* The folder of a trainer state, without the checkpoint-N that it lies in. */
static char *trainer_folder(const char *name) {
  char *folder = folder_of(name);
  const char *last = last_part(folder);
  if (strncmp(last, "checkpoint-", 11) == 0 && last[11] && strspn(last + 11, "0123456789") == strlen(last + 11)) {
    char *above = folder_of(folder);
    free(folder);
    return above;
  }
  return folder;
}

/* The run of a node's log is that of the library's in the same process; of output, the only one. */
static char *run_of_logs(const struct walk *walk, const struct found *file) {
  const struct found *only = NULL;
  for (size_t i = 0; i < walk->count; i++) {
    const struct found *other = &walk->files[i];
    if (other->form != FORM_LOG || !other->run || other == file)
      continue;
    if (file->form == FORM_LOG && other->log_pid == file->log_pid && other->log_rank == file->log_rank)
      return b200_format("%s", other->run);
    if (only && strcmp(only->run, other->run) != 0)
      return NULL;
    only = other;
  }
  return only ? b200_format("%s", only->run) : NULL;
}

static void assign(struct walk *walk, struct found *file, bool logs) {
  size_t folder = run_folder(file->name);
  if (folder) {
    free(file->run);
    file->run = NULL;
    if (file->form == FORM_TEXT)
      torchrun_output(file);
    free(file->run);
    file->run = b200_format("%.*s", (int)folder, file->name);
  } else if (file->run) {
    return;
  } else if (logs) {
    file->run = run_of_logs(walk, file);
  } else if (file->form == FORM_TENSORBOARD) {
    file->run = folder_of(file->name);
  } else if (file->form == FORM_TRAINER_STATE) {
    file->run = trainer_folder(file->name);
  } else if (file->form != FORM_TEXT || !torchrun_output(file)) {
    file->run = b200_format("%s", file->name);
  }
}

/* Logs first: others find their run by them. The node's own logs without the library's make a run together. */
static void assign_all(struct walk *walk) {
  bool logs = false, named = false;
  for (size_t i = 0; i < walk->count; i++) {
    logs = logs || walk->files[i].form == FORM_LOG;
    named = named || (walk->files[i].form == FORM_LOG && !walk->files[i].node);
  }
  for (size_t i = 0; logs && !named && i < walk->count; i++)
    if (walk->files[i].form == FORM_LOG && !walk->files[i].run)
      walk->files[i].run = b200_format("%s", "");
  for (size_t i = 0; i < walk->count; i++)
    if (walk->files[i].form == FORM_LOG)
      assign(walk, &walk->files[i], true);
  for (size_t i = 0; i < walk->count; i++)
    if (walk->files[i].form != FORM_LOG)
      assign(walk, &walk->files[i], logs);
}

/* ---- one run */

static bool is_of(const struct found *file, const char *run, enum compare_form form) {
  return file->form == form && file->run && strcmp(file->run, run) == 0;
}

/* Decodes a whole file. False with one line in `*error`, which names the file. */
static bool decode_file(const struct found *file, enum compare_source source, const char *tag, struct compare_values *out,
                        char **error) {
  struct stat status;
  char *wrong = NULL;
  bool good = false;
  if (stat(file->path, &status) != 0 || status.st_size > FILE_BYTES_MAX) {
    *error = b200_format("%s: %s", file->path, status.st_size > FILE_BYTES_MAX ? "larger than 4 GiB" : strerror(errno));
    return false;
  }
  char *bytes = b200_zeroed((size_t)status.st_size, 1);
  ssize_t length = read_bytes(file->path, bytes, (size_t)status.st_size);
  if (length < 0)
    wrong = b200_format("%s", strerror(errno));
  else
    good = decoders[source].decode(bytes, (size_t)length, tag, out, &wrong);
  free(bytes);
  if (!good) {
    *error = b200_format("%s: %s", file->path, wrong);
    free(wrong);
    return false;
  }
  for (size_t i = 0; file->rank != COMPARE_NO_LABEL && i < out->count; i++)
    if (out->list[i].rank == COMPARE_NO_LABEL)
      out->list[i].rank = file->rank;
  return true;
}

struct piece {
  struct compare_values values;
  const struct found *file;
};

/* By the time at which they began, where it is known, else as they were found. */
static int by_start(const void *a, const void *b) {
  const struct piece *left = a, *right = b;
  if (left->values.unix_s < right->values.unix_s || left->values.unix_s > right->values.unix_s)
    return left->values.unix_s < right->values.unix_s ? -1 : 1;
  return strverscmp(left->file->name, right->file->name);
}

static double latest(const struct compare_values *values) {
  double last = 0;
  for (size_t i = 0; i < values->count; i++)
    last = values->list[i].t_s > last ? values->list[i].t_s : last;
  return last;
}

static int64_t last_step(const struct compare_values *values) {
  int64_t last = -1;
  for (size_t i = 0; i < values->count; i++)
    last = values->list[i].step > last ? values->list[i].step : last;
  return last;
}

/* Of trainer states, of which each repeats those before it, the one that goes furthest. */
static void keep_furthest(struct piece *pieces, size_t *count) {
  size_t best = 0;
  for (size_t i = 1; i < *count; i++)
    if (last_step(&pieces[i].values) > last_step(&pieces[best].values))
      best = i;
  for (size_t i = 0; i < *count; i++)
    if (i != best)
      compare_values_free(&pieces[i].values);
  pieces[0] = pieces[best];
  *count = 1;
}

static void join_pieces(struct piece *pieces, size_t count, enum compare_source source, struct compare_run *run) {
  struct compare_value *values = NULL;
  size_t value_count = 0;
  double offset_s = 0;
  qsort(pieces, count, sizeof(*pieces), by_start);
  for (size_t i = 0; i < count; i++) {
    run->counted = run->counted || pieces[i].values.counted;
    for (size_t j = 0; j < pieces[i].values.count; j++) {
      values = b200_grow(values, value_count, sizeof(*values));
      values[value_count] = pieces[i].values.list[j];
      values[value_count++].t_s += offset_s;
    }
    offset_s += latest(&pieces[i].values);
    for (size_t j = 0; j < pieces[i].values.note_count; j++)
      compare_note(&run->notes, &run->note_count, "%s: %s", pieces[i].file->path, pieces[i].values.notes[j]);
  }
  free(run->loss_name);
  run->loss_name = b200_format("%s", pieces[0].values.name ? pieces[0].values.name : "");
  run->loss_source = source;
  compare_curve(values, value_count, run);
  free(values);
}

/* Takes the losses of a run from its files of one form. False when they have none; `*error` then is the first file's line,
   unless there is one already. */
static bool read_losses(const struct walk *walk, enum compare_source source, const char *tag, bool alone,
                        struct compare_run *run, char **error) {
  struct piece *pieces = NULL;
  size_t count = 0;
  for (size_t i = 0; i < walk->count; i++) {
    struct piece piece = {.file = &walk->files[i]};
    char *wrong = NULL;
    if (!is_of(piece.file, run->name, decoders[source].form))
      continue;
    bool good = decode_file(piece.file, source, tag, &piece.values, &wrong);
    if (good && source == COMPARE_OUTPUT && !alone && piece.values.count < OUTPUT_LOSSES_MIN) {
      compare_values_free(&piece.values);
      good = false;
      wrong = b200_format("%s: no two lines with a loss", piece.file->path);
    }
    if (!good) {
      if (*error)
        free(wrong);
      else
        *error = wrong;
      continue;
    }
    pieces = b200_grow(pieces, count, sizeof(*pieces));
    pieces[count++] = piece;
  }
  if (count) {
    if (source == COMPARE_TRAINER_STATE)
      keep_furthest(pieces, &count);
    join_pieces(pieces, count, source, run);
  }
  for (size_t i = 0; i < count; i++)
    compare_values_free(&pieces[i].values);
  free(pieces);
  return count > 0;
}

static bool read_run_logs(const struct walk *walk, const char *tag, struct compare_run *run) {
  struct compare_log_file *files = b200_zeroed(walk->count, sizeof(*files));
  size_t count = 0;
  char *error = NULL;
  for (size_t i = 0; i < walk->count; i++)
    if (is_of(&walk->files[i], run->name, FORM_LOG))
      files[count++] = (struct compare_log_file){walk->files[i].path, walk->files[i].log_rank, walk->files[i].unix_ns};
  if (count)
    compare_read_logs(files, count, run);
  free(files);
  bool found = run->point_count > 0;
  for (int source = COMPARE_TENSORBOARD; count && !found && source < COMPARE_SOURCE_COUNT; source++)
    found = read_losses(walk, (enum compare_source)source, tag, false, run, &error);
  free(error);
  return count && (found || run->step_count);
}

static struct compare_run new_run(const char *name, enum compare_source source) {
  return (struct compare_run){.name = b200_format("%s", name),
                              .source = source,
                              .loss_source = source,
                              .loss_name = b200_format("%s", ""),
                              .decimals = -1,
                              .modelled_s = (double)NAN,
                              .ended_s = (double)NAN,
                              .world = -1,
                              .facts = json_object()};
}

static void free_run(struct compare_run *run) {
  for (size_t i = 0; i < run->note_count; i++)
    free(run->notes[i]);
  free(run->notes);
  free(run->name);
  free(run->loss_name);
  free(run->points);
  free(run->steps);
  json_decref(run->facts);
  b200_logs_free(&run->logs);
}

/* ---- runs that continue others */

static double spacing(const struct compare_run *run) {
  const struct compare_point *points = run->points;
  return run->point_count > 1 ? (double)(points[run->point_count - 1].step - points[0].step) / (double)(run->point_count - 1)
                              : 1;
}

/* `later` starts beyond the first steps of `run` and at most a few logged steps after its end. */
static bool continues(const struct compare_run *run, const struct compare_run *later) {
  if (run->point_count < 2 || later->point_count == 0)
    return false;
  double first = (double)later->points[0].step, last = (double)run->points[run->point_count - 1].step;
  return first > (double)run->points[1].step && first <= last + 2 * spacing(run) &&
         (double)later->points[later->point_count - 1].step > last;
}

static void append_steps(struct compare_run *run, struct compare_run *later) {
  int64_t offset = run->step_count ? run->steps[run->step_count - 1].step + 1 : 0;
  struct compare_step *steps = b200_zeroed(run->step_count + later->step_count, sizeof(*steps));
  if (run->step_count)
    memcpy(steps, run->steps, run->step_count * sizeof(*steps));
  for (size_t i = 0; i < later->step_count; i++) {
    steps[run->step_count + i] = later->steps[i];
    steps[run->step_count + i].step += offset;
  }
  free(run->steps);
  run->steps = steps;
  run->step_count += later->step_count;
}

static void append_points(struct compare_run *run, const struct compare_run *later) {
  struct compare_point *points = b200_zeroed(run->point_count + later->point_count, sizeof(*points));
  size_t count = 0;
  while (count < run->point_count && run->points[count].step < later->points[0].step) {
    points[count] = run->points[count];
    count++;
  }
  for (size_t i = 0; i < later->point_count; i++) {
    points[count] = later->points[i];
    points[count++].t_s += run->ended_s;
  }
  free(run->points);
  run->points = points;
  run->point_count = count;
}

/* Joins `later` to `run` and frees it. */
static void append_run(struct compare_run *run, struct compare_run *later) {
  compare_note(&run->notes, &run->note_count, "%s continues it from step %lld", later->name,
               (long long)later->points[0].step);
  append_points(run, later);
  append_steps(run, later);
  run->ended_s += later->ended_s;
  run->resumes += later->resumes + 1;
  run->partial = later->partial;
  run->modelled = run->modelled || later->modelled;
  run->modelled_s += later->modelled_s;
  run->decimals = later->decimals > run->decimals ? later->decimals : run->decimals;
  for (size_t i = 0; i < later->logs.log_count; i++) {
    run->logs.logs = b200_grow(run->logs.logs, run->logs.log_count, sizeof(*run->logs.logs));
    run->logs.logs[run->logs.log_count++] = later->logs.logs[i];
  }
  later->logs.log_count = 0;
  json_t *facts = run->facts;
  run->facts = later->facts;
  later->facts = facts;
  for (size_t i = 0; i < later->note_count; i++)
    compare_note(&run->notes, &run->note_count, "%s", later->notes[i]);
  free_run(later);
}

/* A run in a folder run-N is whole; of others one may be the rest of another: of the one whose end is nearest. */
static void join_continued(struct compare_arm *arm) {
  for (size_t i = 0; i < arm->run_count; i++) {
    struct compare_run *later = &arm->runs[i], *best = NULL;
    for (size_t j = 0; j < arm->run_count; j++) {
      struct compare_run *run = &arm->runs[j];
      if (j != i && continues(run, later) &&
          (!best || llabs(run->points[run->point_count - 1].step - later->points[0].step) <
                        llabs(best->points[best->point_count - 1].step - later->points[0].step)))
        best = run;
    }
    if (!best)
      continue;
    append_run(best, later);
    memmove(later, later + 1, (arm->run_count - i - 1) * sizeof(*later));
    arm->run_count--;
    i = (size_t)-1; /* the joined run may continue another, or be continued */
  }
}

/* ---- the arm */

static struct compare_run *find_run(struct compare_arm *arm, const char *name) {
  for (size_t i = 0; i < arm->run_count; i++)
    if (strcmp(arm->runs[i].name, name) == 0)
      return &arm->runs[i];
  return NULL;
}

static void add_run(struct compare_arm *arm, const char *name, enum compare_source source) {
  if (find_run(arm, name))
    return;
  arm->runs = b200_grow(arm->runs, arm->run_count, sizeof(*arm->runs));
  arm->runs[arm->run_count++] = new_run(name, source);
}

/* Reads the runs that have files of the form; true when one has something. Those without are noted and left out. */
static bool read_source(const struct walk *walk, enum compare_source source, const char *tag, bool alone,
                        struct compare_arm *arm, char **error) {
  size_t kept = 0;
  for (size_t i = 0; i < walk->count; i++)
    if (walk->files[i].form == decoders[source].form && walk->files[i].run)
      add_run(arm, walk->files[i].run, source);
  for (size_t i = 0; i < arm->run_count; i++) {
    struct compare_run *run = &arm->runs[i];
    char *wrong = NULL;
    bool good = source == COMPARE_LOGS ? read_run_logs(walk, tag, run) : read_losses(walk, source, tag, alone, run, &wrong);
    if (good) {
      arm->runs[kept++] = *run;
      free(wrong);
      continue;
    }
    if (!*error)
      *error = wrong ? wrong : b200_format("%s: its logs have no steps and no losses", arm->path);
    else
      free(wrong);
    free_run(run);
  }
  arm->run_count = kept;
  return kept > 0;
}

static int by_name(const void *a, const void *b) {
  const struct compare_run *left = a, *right = b;
  return strverscmp(left->name, right->name);
}

/* One line for files of which none can be used. */
static char *nothing(const struct walk *walk, const char *path, bool alone) {
  static const char accepted[] = "logs of b200opt, TensorBoard event files, trainer_state.json, CSV or printed losses";
  bool all_empty = walk->count > 0;
  for (size_t i = 0; i < walk->count; i++)
    all_empty = all_empty && walk->files[i].form == FORM_EMPTY;
  if (alone && all_empty)
    return b200_format("%s: empty file", path);
  if (alone)
    return b200_format("%s: a binary file of a form that is not known; accepted are %s", path, accepted);
  return b200_format("%s: nothing in it that can be compared; accepted are %s", path, accepted);
}

/* Files by themselves have the arm's own name. */
static void name_run(struct compare_run *run, const char *path) {
  size_t length = strlen(path);
  if (run->name[0])
    return;
  while (length > 1 && path[length - 1] == '/')
    length--;
  free(run->name);
  run->name = b200_format("%.*s", (int)length, path);
  char *last = b200_format("%s", last_part(run->name));
  free(run->name);
  run->name = last;
}

/* Says how many files of a form with losses were not used, as one of a better form was. */
static void note_unused(const struct walk *walk, struct compare_arm *arm) {
  for (int source = COMPARE_TENSORBOARD; source < COMPARE_OUTPUT; source++) {
    size_t count = 0;
    bool used = false;
    for (size_t i = 0; i < arm->run_count; i++)
      used = used || (int)arm->runs[i].loss_source == source;
    for (size_t i = 0; i < walk->count; i++)
      count += walk->files[i].form == decoders[source].form;
    if (count && !used)
      compare_note(&arm->notes, &arm->note_count, "%s: %zu files of the form %s are left alone: %s counts", arm->path, count,
                   compare_source_names[source], compare_source_names[arm->runs[0].loss_source]);
  }
}

static int open_arm(const char *path, struct walk *walk, bool *alone) {
  struct stat status;
  if (stat(path, &status) != 0)
    return errno;
  *alone = !S_ISDIR(status.st_mode);
  if (!*alone)
    return walk_folder(walk, path, "", 0);
  if (!S_ISREG(status.st_mode))
    return ENOTSUP;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return errno;
  close(file);
  take_file(walk, path, last_part(path), &status);
  return 0;
}

static void free_walk(struct walk *walk) {
  for (size_t i = 0; i < walk->count; i++) {
    free(walk->files[i].path);
    free(walk->files[i].name);
    free(walk->files[i].run);
  }
  free(walk->files);
}

bool compare_arm_read(const char *path, const char *tag, struct compare_arm *out, char **error) {
  struct walk walk = {.arm = out};
  bool alone = false, found = false;
  *out = (struct compare_arm){.path = b200_format("%s", path)};
  *error = NULL;
  int status = open_arm(path, &walk, &alone);
  if (status) {
    *error = b200_format("%s: %s", path, status == ENOTSUP ? "neither a file nor a folder" : strerror(status));
    compare_one_line(*error);
    free_walk(&walk);
    return false;
  }
  assign_all(&walk);
  for (int source = 0; source < COMPARE_SOURCE_COUNT && !found; source++) {
    found = read_source(&walk, (enum compare_source)source, tag, alone, out, error);
    for (size_t i = 0; !found && source == COMPARE_LOGS && i < walk.count; i++)
      if (walk.files[i].form != FORM_LOG) { /* the logs say nothing: what lies beside them counts by itself */
        free(walk.files[i].run);
        walk.files[i].run = NULL;
        assign(&walk, &walk.files[i], false);
      }
  }
  if (!found && !*error)
    *error = nothing(&walk, path, alone);
  if (*error)
    compare_one_line(*error);
  if (found) {
    free(*error);
    *error = NULL;
    bool whole = false;
    for (size_t i = 0; i < walk.count; i++)
      whole = whole || run_folder(walk.files[i].name) > 0;
    if (!whole)
      join_continued(out);
    for (size_t i = 0; i < out->run_count; i++)
      name_run(&out->runs[i], path);
    qsort(out->runs, out->run_count, sizeof(*out->runs), by_name);
    out->pooled = !whole && out->run_count > 1 && out->runs[0].source == COMPARE_LOGS;
    note_unused(&walk, out);
  }
  free_walk(&walk);
  return found;
}

void compare_arm_free(struct compare_arm *arm) {
  for (size_t i = 0; i < arm->run_count; i++)
    free_run(&arm->runs[i]);
  for (size_t i = 0; i < arm->note_count; i++)
    free(arm->notes[i]);
  free(arm->runs);
  free(arm->notes);
  free(arm->path);
  memset(arm, 0, sizeof(*arm));
}
