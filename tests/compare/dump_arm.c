/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what is read of an arm as one JSON object: dump_arm PATH [TAG]. NaN and infinities are strings. With --quiet as the
   tag nothing is printed: to measure the reading. */
#include "tools/compare/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *real(double value) {
  char text[32];
  if (isfinite(value))
    return json_real(value);
  snprintf(text, sizeof(text), "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  return json_string(text);
}

static json_t *texts(char *const *list, size_t count) {
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++)
    json_array_append_new(array, json_string(list[i]));
  return array;
}

static json_t *points(const struct compare_run *run) {
  json_t *array = json_array();
  for (size_t i = 0; i < run->point_count; i++) {
    const struct compare_point *point = &run->points[i];
    json_array_append_new(array, json_pack("[Ioooo]", (json_int_t)point->step, real(point->loss), real(point->grad_norm),
                                           real(point->tokens_per_s), real(point->t_s)));
  }
  return array;
}

static json_t *steps(const struct compare_run *run) {
  json_t *array = json_array();
  for (size_t i = 0; i < run->step_count; i++) {
    const struct compare_step *step = &run->steps[i];
    json_array_append_new(array, json_pack("{sI so so so so so so sb sb}", "step", (json_int_t)step->step, "host",
                                           real(step->host_s), "device", real(step->device_s), "gemm", real(step->gemm_s),
                                           "blocked", real(step->blocked_s), "comm", real(step->comm_s), "starved",
                                           real(step->starved_s), "first", step->first, "interrupted", step->interrupted));
  }
  return array;
}

static json_t *dump(const struct compare_run *run) {
  return json_pack("{ss ss ss ss so si so sb so sI so si sI si si sb sO sI so}", "name", run->name, "source",
                   compare_source_names[run->source], "loss_source", compare_source_names[run->loss_source], "loss_name",
                   run->loss_name, "points", points(run), "decimals", run->decimals, "steps", steps(run), "modelled",
                   run->modelled, "modelled_s", real(run->modelled_s), "gemm_flops", (json_int_t)run->gemm_flops, "ended_s",
                   real(run->ended_s), "resumes", run->resumes, "world", (json_int_t)run->world, "ranks", run->ranks,
                   "loss_ranks", run->loss_ranks, "partial", run->partial, "facts", run->facts, "logs",
                   (json_int_t)run->logs.log_count, "notes", texts(run->notes, run->note_count));
}

int main(int argc, char **argv) {
  struct compare_arm arm;
  char *error;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: %s PATH [TAG]\n", argv[0]);
    return 2;
  }
  bool quiet = argc > 2 && strcmp(argv[2], "--quiet") == 0;
  bool good = compare_arm_read(argv[1], argc > 2 && !quiet ? argv[2] : NULL, &arm, &error);
  json_t *runs = json_array();
  for (size_t i = 0; i < arm.run_count && !quiet; i++)
    json_array_append_new(runs, dump(&arm.runs[i]));
  json_t *all = json_pack("{so so so}", "runs", runs, "notes", texts(arm.notes, arm.note_count), "error",
                          error ? json_string(error) : json_null());
  json_dumpf(all, stdout, JSON_ENSURE_ASCII);
  putchar('\n');
  json_decref(all);
  free(error);
  compare_arm_free(&arm);
  return good ? 0 : 1;
}
