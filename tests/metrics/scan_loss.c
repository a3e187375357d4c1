/* SPDX-License-Identifier: Apache-2.0 */
/* usage: scan_loss [REGEX]: for each line of stdin the loss that the library reads in it, by its built-in forms or by
   B200OPT_LOSS_REGEX=REGEX; "-" without one. */
#include "policy/loss_scan.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  struct b200_loss_pattern pattern;
  struct b200_loss loss;
  char line[4096], problem[200];
  if (argc > 1 && !b200_loss_pattern_compile(&pattern, argv[1], problem, sizeof problem)) {
    fprintf(stderr, "%s\n", problem);
    return 1;
  }
  while (fgets(line, sizeof line, stdin)) {
    size_t length = strcspn(line, "\n");
    bool found = argc > 1 ? b200_loss_pattern_scan(&pattern, line, length, &loss) : b200_loss_scan(line, length, &loss);
    if (found)
      printf("%.17g\n", loss.loss);
    else
      puts("-");
  }
  return 0;
}
