/* SPDX-License-Identifier: Apache-2.0 */
/* A line of a log that the scanner takes is one that jansson reads, and reads alike. */
#include "tests/fuzz/fuzz.h"
#include "tests/report_overlap/same_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  bool taken;
  if (!scans_like_jansson((const char *)data, size, &taken))
    abort();
  return 0;
}
