/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor/process.h"

#include "interpose/record/reader.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Opens /proc/<pid>/task/<thread>/<name>; errno is ESRCH when the process is not there. */
static FILE *open_part(pid_t pid, pid_t thread, const char *name) {
  char *path = b200_format("/proc/%d/task/%d/%s", (int)pid, (int)thread, name);
  FILE *file = fopen(path, "re");
  if (!file && errno == ENOENT)
    errno = ESRCH;
  free(path);
  return file;
}

/* The whole of a file whose size is not known before, with a NUL behind it. NULL and errno on failure. */
static char *read_part(pid_t pid, pid_t thread, const char *name, size_t *length) {
  char *text = NULL;
  size_t used = 0, count;
  char chunk[4096];
  FILE *file = open_part(pid, thread, name);
  if (!file)
    return NULL;
  while ((count = fread(chunk, 1, sizeof(chunk), file)) > 0) {
    char *longer = realloc(text, used + count + 1);
    if (!longer)
      abort();
    text = longer;
    memcpy(text + used, chunk, count);
    used += count;
  }
  int failed = ferror(file);
  fclose(file);
  if (failed) {
    free(text);
    errno = EACCES;
    return NULL;
  }
  text = text ? text : calloc(1, 1);
  if (!text)
    abort();
  text[used] = '\0';
  *length = used;
  return text;
}

static void split_environment(struct process *out, size_t length) {
  size_t count = 0;
  for (char *at = out->environment_text; at < out->environment_text + length; at += strlen(at) + 1) {
    out->environment = b200_grow(out->environment, count, sizeof(*out->environment));
    out->environment[count++] = at;
  }
  out->environment = b200_grow(out->environment, count, sizeof(*out->environment));
  out->environment[count] = NULL;
}

static void add_mapping(struct process *out, const char *line) {
  struct process_file file = {0};
  int path_at = 0;
  if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %n", &file.start, &file.end, &file.offset, &path_at) <
          3 ||
      !path_at || line[path_at] != '/')
    return;
  struct process_file *last = out->file_count ? &out->files[out->file_count - 1] : NULL;
  size_t length = strcspn(line + path_at, "\n");
  if (last && strncmp(last->path, line + path_at, length) == 0 && !last->path[length]) {
    last->end = file.end;
    return;
  }
  file.path = b200_format("%.*s", (int)length, line + path_at);
  out->files = b200_grow(out->files, out->file_count, sizeof(*out->files));
  out->files[out->file_count++] = file;
}

/* Field `wanted`, from 3, of stat; "" when it cannot be read. The caller frees it. */
static char *stat_field(pid_t pid, pid_t thread, int wanted) {
  size_t length;
  char *text = read_part(pid, thread, "stat", &length);
  const char *at = text ? strrchr(text, ')') : NULL; /* ends field 2, the only one with blanks */
  for (int field = 2; at && field < wanted; field++)
    at = strchr(at + 1, ' ');
  char *value = b200_format("%.*s", at ? (int)strcspn(at + 1, " ") : 0, at ? at + 1 : "");
  free(text);
  return value;
}

bool process_thread_ended(pid_t pid, pid_t thread) {
  char *state = stat_field(pid, thread, 3);
  bool ended = *state == '\0' || *state == 'Z' || *state == 'X';
  free(state);
  return ended;
}

/* /proc shows no environment and no mappings through a thread that has ended. */
static pid_t find_running_thread(pid_t pid) {
  pid_t running = pid;
  char *path = b200_format("/proc/%d/task", (int)pid);
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder && process_thread_ended(pid, running) && (entry = readdir(folder));)
    if (entry->d_name[0] != '.')
      running = (pid_t)strtol(entry->d_name, NULL, 10);
  if (folder)
    closedir(folder);
  free(path);
  return running;
}

static int64_t nanoseconds(clockid_t clock) {
  struct timespec time;
  return clock_gettime(clock, &time) == 0 ? time.tv_sec * INT64_C(1000000000) + time.tv_nsec : 0;
}

static int64_t find_start(pid_t pid) {
  char *ticks = stat_field(pid, pid, 22);
  double since_boot = strtod(ticks, NULL) / (double)sysconf(_SC_CLK_TCK);
  free(ticks);
  return since_boot > 0 ? nanoseconds(CLOCK_REALTIME) - nanoseconds(CLOCK_BOOTTIME) + (int64_t)(since_boot * 1e9) : 0;
}

int process_read(pid_t pid, struct process *out) {
  size_t length;
  char line[8192];
  memset(out, 0, sizeof(*out));
  out->pid = pid;
  out->thread = find_running_thread(pid);
  out->start_unix_ns = find_start(pid);
  out->command = read_part(pid, out->thread, "cmdline", &length);
  if (!out->command)
    goto fail;
  for (size_t i = 0; i + 1 < length; i++)
    if (!out->command[i])
      out->command[i] = ' ';
  out->environment_text = read_part(pid, out->thread, "environ", &length);
  if (!out->environment_text)
    goto fail;
  split_environment(out, length);
  FILE *maps = open_part(pid, out->thread, "maps");
  if (!maps)
    goto fail;
  while (fgets(line, sizeof(line), maps))
    add_mapping(out, line);
  fclose(maps);
  return 0;
fail:;
  int error = errno;
  process_free(out);
  return error;
}

void process_free(struct process *process) {
  for (size_t i = 0; i < process->file_count; i++)
    free(process->files[i].path);
  free(process->files);
  free(process->environment);
  free(process->environment_text);
  free(process->command);
  memset(process, 0, sizeof(*process));
}

const char *process_getenv(const struct process *process, const char *name) {
  size_t length = strlen(name);
  for (char **entry = process->environment; *entry; entry++)
    if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
      return *entry + length + 1;
  return NULL;
}

const struct process_file *process_find_file(const struct process *process, const char *name,
                                             const struct process_file *after) {
  size_t length = strlen(name);
  for (size_t i = after ? (size_t)(after - process->files) + 1 : 0; i < process->file_count; i++) {
    const char *file = strrchr(process->files[i].path, '/') + 1;
    if (strncmp(file, name, length) == 0 && (file[length] == '\0' || file[length] == '.' || file[length] == '-'))
      return &process->files[i];
  }
  return NULL;
}

const struct process_file *process_file_at(const struct process *process, uint64_t address) {
  for (size_t i = 0; i < process->file_count; i++)
    if (address >= process->files[i].start && address < process->files[i].end)
      return &process->files[i];
  return NULL;
}
