/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the table of variables, for the files that repeat it: `gen_env example` writes env.example, `gen_env markdown` the
 * README's table. Runs at build time only.
 */
#include "policy/config.h"

#include <stdio.h>
#include <string.h>

#define WIDTH 98

/* Prints `text` as comment lines of at most WIDTH columns. */
static void print_comment(const char *text) {
  size_t column = 0;
  while (*text) {
    size_t word = strcspn(text, " ");
    if (column && column + 1 + word > WIDTH) {
      putchar('\n');
      column = 0;
    }
    column += (size_t)printf(column ? " %.*s" : "# %.*s", (int)word, text);
    text += word;
    text += strspn(text, " ");
  }
  putchar('\n');
}

static void print_example_row(const struct b200_env_row *row) {
  putchar('\n');
  print_comment(row->help);
  if (row->accepted[0])
    printf("# accepted: %s%s%s\n", row->accepted, row->unit[0] ? " " : "", row->unit);
  printf("#%s=%s\n", row->name, row->default_value);
}

static void print_example(const struct b200_env_row *rows, size_t count) {
  print_comment("Every variable of b200opt with its default. Made from policy/env.def by `gen_env example`.");
  print_comment("Use: export them, or uncomment lines in a copy and set B200OPT_CONFIG to its path. The environment wins.");
  for (size_t i = 0; i < count; i++)
    if (rows[i].scope == B200_SCOPE_JOB)
      print_example_row(&rows[i]);
  printf("\n");
  print_comment("Read by the virtual node, from the environment only:");
  for (size_t i = 0; i < count; i++)
    if (rows[i].scope == B200_SCOPE_NODE)
      print_example_row(&rows[i]);
}

/* '|' separates the columns of a table, also in code. */
static void print_cell(const char *text) {
  for (; *text; text++)
    printf(*text == '|' ? "\\|" : "%c", *text);
}

static void print_markdown(const struct b200_env_row *rows, size_t count) {
  printf("| variable | default | accepted | meaning |\n|---|---|---|---|\n");
  for (size_t i = 0; i < count; i++) {
    printf("| `%s` | ", rows[i].name);
    if (rows[i].default_value[0])
      printf("`%s`", rows[i].default_value);
    printf(" | ");
    print_cell(rows[i].accepted);
    printf("%s%s | ", rows[i].unit[0] ? " " : "", rows[i].unit);
    print_cell(rows[i].help);
    printf(" |\n");
  }
}

int main(int argc, char **argv) {
  size_t count;
  const struct b200_env_row *rows = b200_env_rows(&count);
  if (argc == 2 && strcmp(argv[1], "example") == 0) {
    print_example(rows, count);
  } else if (argc == 2 && strcmp(argv[1], "markdown") == 0) {
    print_markdown(rows, count);
  } else {
    fprintf(stderr, "usage: gen_env example|markdown\n");
    return 2;
  }
  return 0;
}
