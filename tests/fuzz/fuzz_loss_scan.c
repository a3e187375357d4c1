/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes give a loss or none; as a pattern any text compiles or is explained. */
#include "policy/loss_scan.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define PATTERN_MAX 256 /* glibc's regcomp() takes much memory for long patterns */

static void use_as_pattern(const char *text, size_t length) {
  struct b200_loss_pattern pattern;
  struct b200_loss loss;
  char copy[PATTERN_MAX + 1];
  char error[128] = "";
  size_t kept = length < PATTERN_MAX ? length : PATTERN_MAX;
  memcpy(copy, text, kept);
  copy[kept] = '\0';
  if (strchr(copy, '{')) /* nested bounded repetitions multiply: the user's own memory */
    return;
  if (!b200_loss_pattern_compile(&pattern, copy, error, sizeof(error))) {
    if (!error[0])
      abort();
    return;
  }
  b200_loss_pattern_scan(&pattern, text, length, &loss);
  b200_loss_pattern_destroy(&pattern);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct b200_loss loss;
  bool found = b200_loss_scan((const char *)data, size, &loss);
  if (!found && (loss.step != -1 || loss.tokens_per_s != 0))
    abort();
  if (loss.step < -1 || !(loss.tokens_per_s >= 0))
    abort();
  use_as_pattern((const char *)data, size);
  return 0;
}
