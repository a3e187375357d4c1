/* SPDX-License-Identifier: Apache-2.0 */
#include "curves.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct curve curve_read(const char *folder, const char *name) {
  char *path = b200_format("%s/%s.csv", folder, name);
  FILE *file = fopen(path, "r");
  if (!file || fscanf(file, "step,loss,grad_norm\n") != 0) {
    fprintf(stderr, "%s: cannot be read\n", path);
    exit(2);
  }
  struct curve curve = {0};
  struct compare_point point = {.t_s = NAN};
  while (fscanf(file, "%" SCNd64 ",%lf,%lf\n", &point.step, &point.loss, &point.grad_norm) == 3) {
    curve.points = b200_grow(curve.points, curve.count, sizeof(point));
    curve.points[curve.count++] = point;
  }
  if (!feof(file) || !curve.count) {
    fprintf(stderr, "%s: not a curve: line %zu is not step,loss,grad_norm\n", path, curve.count + 2);
    exit(2);
  }
  fclose(file);
  free(path);
  return curve;
}
