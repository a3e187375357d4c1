/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over the files of a folder, each as it is and in a fixed set of mutilations: cut at every length and
 * with every byte replaced by a few nasty ones. For compilers without libFuzzer, and for ctest.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX 4096

/* A block of exactly `size` bytes, so that sanitizers see a read beyond it. */
static void run(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy)
    abort();
  memcpy(copy, data, size);
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
}

static void mutilate(uint8_t *data, size_t size) {
  static const uint8_t nasty[] = {0, '\n', '\r', '\033', ',', '.', '-', '9', '"', '[', '\\', 0xff};
  for (size_t length = 0; length <= size; length++)
    run(data, length);
  for (size_t i = 0; i < size; i++) {
    uint8_t kept = data[i];
    for (size_t j = 0; j < sizeof(nasty); j++) {
      data[i] = nasty[j];
      run(data, size);
    }
    data[i] = kept;
  }
}

static int run_file(const char *folder, const char *name) {
  uint8_t data[FILE_BYTES_MAX];
  char path[1024];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror(path);
    return 1;
  }
  size_t size = fread(data, 1, sizeof(data), file);
  fclose(file);
  mutilate(data, size);
  return 0;
}

int main(int argc, char **argv) {
  int files = 0, failed = 0;
  DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
  if (!folder) {
    fprintf(stderr, "usage: %s CORPUS\n", argv[0]);
    return 2;
  }
  for (const struct dirent *entry; (entry = readdir(folder));) {
    if (entry->d_name[0] == '.')
      continue;
    failed |= run_file(argv[1], entry->d_name);
    files++;
  }
  closedir(folder);
  printf("%d files\n", files);
  return failed || !files;
}
