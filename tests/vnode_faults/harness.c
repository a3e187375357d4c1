/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 120 };

int failures;

static void copy_out(FILE *from) {
  char text[4096];
  size_t length;
  rewind(from);
  while ((length = fread(text, 1, sizeof text, from)))
    fwrite(text, 1, length, stdout);
}

static _Noreturn void run_child(const char *fault, FILE *out, FILE *err) {
  char session[64];
  dup2(fileno(out), STDOUT_FILENO);
  dup2(fileno(err), STDERR_FILENO);
  snprintf(session, sizeof session, "faults-%ld", (long)getpid());
  setenv("B200OPT_VNODE_SESSION", session, 1);
  if (strcmp(fault, "-"))
    setenv("B200OPT_VNODE_FAULT", fault, 1);
  alarm(LIMIT_S);
  exit(program_run());
}

static void run_case(const char *fault) {
  FILE *out = tmpfile(), *err = tmpfile();
  if (!out || !err) {
    perror("harness: tmpfile");
    exit(2);
  }
  fflush(NULL);
  pid_t child = fork();
  if (!child)
    run_child(fault, out, err);
  int status = 0;
  waitpid(child, &status, 0);
  printf("== %s\n", fault);
  copy_out(out);
  printf("-- stderr\n");
  copy_out(err);
  if (WIFEXITED(status))
    printf("-- exit %d\n", WEXITSTATUS(status));
  else
    printf("-- signal %d\n", WTERMSIG(status));
  fclose(out);
  fclose(err);
}

int main(void) {
  char line[512];
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    run_case(line);
  }
  return 0;
}
