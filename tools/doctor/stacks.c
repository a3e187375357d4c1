/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor/stacks.h"

#include "interpose/record/reader.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libunwind-ptrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define FRAMES_MAX 64

static void print_frame(const struct process *process, unw_cursor_t *cursor, int index) {
  unw_word_t address, offset;
  char name[256];
  if (unw_get_reg(cursor, UNW_REG_IP, &address) != 0)
    return;
  const struct process_file *file = process_file_at(process, address);
  const char *path = file ? strrchr(file->path, '/') + 1 : "?";
  uint64_t in_file = file ? address - file->start + file->offset : address;
  if (unw_get_proc_name(cursor, name, sizeof(name), &offset) == 0)
    printf("    #%-2d %s+0x%" PRIx64 " %s\n", index, path, in_file, name);
  else
    printf("    #%-2d %s+0x%" PRIx64 "\n", index, path, in_file);
}

static void walk(const struct process *process, unw_addr_space_t space, pid_t thread) {
  unw_cursor_t cursor;
  void *context = _UPT_create(thread);
  if (!context)
    return;
  if (unw_init_remote(&cursor, space, context) == 0) {
    int index = 0;
    do
      print_frame(process, &cursor, index++);
    while (index < FRAMES_MAX && unw_step(&cursor) > 0);
  }
  _UPT_destroy(context);
}

/* Stops the thread; SEIZE, so that no signal is seen by the process. A signal that was on its way may be what stops it: it
   is held back, and `signal` (else 0) must be given back when the thread goes on. */
static int stop(pid_t thread, long *signal) {
  int status;
  if (ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0)
    return errno;
  if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) != 0 || waitpid(thread, &status, __WALL) != thread)
    return errno;
  if (!WIFSTOPPED(status))
    return ESRCH;
  *signal = status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
  return 0;
}

static void print_name(const struct process *process, pid_t thread) {
  char name[64] = "";
  char *path = b200_format("/proc/%d/task/%d/comm", (int)process->pid, (int)thread);
  FILE *file = fopen(path, "re");
  if (file && fgets(name, sizeof(name), file))
    name[strcspn(name, "\n")] = '\0';
  if (file)
    fclose(file);
  free(path);
  printf("  thread %d %s\n", (int)thread, name);
}

int stacks_print(const struct process *process) {
  char *path = b200_format("/proc/%d/task", (int)process->pid);
  DIR *folder = opendir(path);
  int first_error = folder ? 0 : errno;
  bool any = false;
  unw_addr_space_t space = unw_create_addr_space(&_UPT_accessors, 0);
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
    if (thread <= 0)
      continue;
    long signal = 0;
    int error = stop(thread, &signal);
    if (error) {
      if (!first_error && error != ESRCH && !process_thread_ended(process->pid, thread))
        first_error = error;
      continue;
    }
    any = true;
    print_name(process, thread);
    walk(process, space, thread);
    ptrace(PTRACE_DETACH, thread, NULL, signal);
  }
  unw_destroy_addr_space(space);
  if (folder)
    closedir(folder);
  free(path);
  return any ? 0 : first_error;
}
