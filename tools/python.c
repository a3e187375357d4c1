/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/python.h"

#include "interpose/record/reader.h"
#include "tools/launch.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_python(const char *path) {
  const char *slash = strrchr(path, '/');
  return strncmp(slash ? slash + 1 : path, "python", strlen("python")) == 0;
}

/* First word that is a Python in a line like "#!/usr/bin/env python3" or "'''exec' "/long path/python" "$0" "$@"". */
static char *python_in_line(char *line) {
  for (char *word = strtok(line, " \t\r\n\"'!#"); word; word = strtok(NULL, " \t\r\n\"'!#"))
    if (is_python(word))
      return launch_which(word);
  return NULL;
}

static char *python_of_script(const char *path) {
  char line[PATH_MAX];
  char *python = NULL;
  FILE *file = fopen(path, "re");
  if (!file)
    return NULL;
  bool script = fgets(line, sizeof(line), file) && strncmp(line, "#!", 2) == 0;
  if (script) {
    bool shell = strstr(line, "/sh") != NULL; /* pip writes such a start when the path is long */
    python = python_in_line(line);
    if (!python && shell && fgets(line, sizeof(line), file) && strstr(line, "exec"))
      python = python_in_line(line);
  }
  fclose(file);
  return python;
}

char *python_of_command(const char *command) {
  char *path = launch_which(command);
  if (path && is_python(path))
    return path;
  char *python = path ? python_of_script(path) : NULL;
  free(path);
  return python ? python : launch_which("python3");
}

/* The text between the quotes behind `name` in a line of torch/version.py; "" for None. */
static void take_value(const char *line, const char *name, char *out, size_t size) {
  const char *quote;
  if (strncmp(line, name, strlen(name)) != 0 || !(quote = strpbrk(line, "'\"")))
    return;
  snprintf(out, size, "%.*s", (int)strcspn(quote + 1, "'\""), quote + 1);
}

bool python_find_torch(const char *python, struct python_torch *out) {
  char line[PATH_MAX] = "";
  memset(out, 0, sizeof(*out));
  char *command =
      b200_format("exec '%s' -c 'import importlib.util as u; print(u.find_spec(\"torch\").origin)' 2>/dev/null", python);
  FILE *pipe = strchr(python, '\'') ? NULL : popen(command, "re");
  free(command);
  if (!pipe)
    return false;
  bool found = fgets(line, sizeof(line), pipe) != NULL;
  if (pclose(pipe) != 0 || !found || !strrchr(line, '/'))
    return false;
  *strrchr(line, '/') = '\0';
  char *path = b200_format("%s/version.py", line);
  FILE *file = fopen(path, "re");
  free(path);
  while (file && fgets(line, sizeof(line), file)) {
    take_value(line, "__version__", out->version, sizeof(out->version));
    take_value(line, "cuda", out->cuda, sizeof(out->cuda));
  }
  if (file)
    fclose(file);
  return out->version[0] != '\0';
}
