/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the file that B200OPT_CONFIG names: a configuration results, and every complaint is one line of ASCII. */
#include "policy/config.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct b200_config config;
  char setting[64];
  int file = memfd_create("config", MFD_CLOEXEC);
  if (file < 0 || write(file, data, size) != (ssize_t)size)
    abort();
  snprintf(setting, sizeof(setting), "B200OPT_CONFIG=/proc/self/fd/%d", file);
  b200_config_load_from(&config, (char *[]){setting, NULL});
  close(file);
  for (int i = 0; i < config.complaint_count; i++)
    for (const char *at = config.complaints[i]; *at; at++)
      if (*at < ' ' || *at > '~')
        abort();
  return 0;
}
