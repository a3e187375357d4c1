/* SPDX-License-Identifier: Apache-2.0 */
/* A module that a program loads at run time, as Python loads PyTorch. */
#include "sequence.h"

__attribute__((visibility("default"))) int plugin_run(void);
int plugin_run(void) {
  return sequence_run();
}
