/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss curves in files of three columns, step,loss,grad_norm, with a header row: those of tests/data/curves. Not the reader
 * of the command (tools/compare/run.h), which takes what others wrote; tests of the verdict do not depend on it.
 */
#ifndef B200_TESTS_CURVES_H
#define B200_TESTS_CURVES_H

#include "tools/compare/run.h"

struct curve {
  struct compare_point *points;
  size_t count;
};

/* Ends the process with a message when the file is not such a curve. The points are the caller's to free(). */
struct curve curve_read(const char *folder, const char *name);

#endif
