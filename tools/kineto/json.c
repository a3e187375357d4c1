/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kineto/report.h"

#include <math.h>

static json_t *integer(uint64_t value) {
  return json_integer((json_int_t)value);
}

/* NULL-safe share in percent with HTA's two decimals; null of nothing. */
static json_t *percent(int64_t part, int64_t whole) {
  return whole ? json_real(round(1e4 * (double)part / (double)whole) / 100) : json_null();
}

static json_t *microseconds(int64_t ns) {
  return json_real((double)ns / 1e3);
}

static json_t *hta_columns(const struct kineto_times *times) {
  int64_t compute = times->class_ns[KINETO_COMPUTE];
  int64_t idle = times->span_ns - times->busy_ns, non_compute = times->busy_ns - compute;
  json_t *columns = json_object();
  json_object_set_new(columns, "comp_comm_overlap_pctg",
                      percent(times->overlapped_ns, times->class_ns[KINETO_COMMUNICATION]));
  json_object_set_new(columns, "idle_time(us)", microseconds(idle));
  json_object_set_new(columns, "compute_time(us)", microseconds(compute));
  json_object_set_new(columns, "non_compute_time(us)", microseconds(non_compute));
  json_object_set_new(columns, "kernel_time(us)", microseconds(times->span_ns));
  json_object_set_new(columns, "idle_time_pctg", percent(idle, times->span_ns));
  json_object_set_new(columns, "compute_time_pctg", percent(compute, times->span_ns));
  json_object_set_new(columns, "non_compute_time_pctg", percent(non_compute, times->span_ns));
  return columns;
}

static void set_times(json_t *row, const struct kineto_times *times) {
  json_object_set_new(row, "hta", hta_columns(times));
  json_object_set_new(row, "operations",
                      json_pack("{so so so}", "communication", integer(times->ops[KINETO_COMMUNICATION]), "compute",
                                integer(times->ops[KINETO_COMPUTE]), "memory", integer(times->ops[KINETO_MEMORY])));
  json_object_set_new(row, "ns",
                      json_pack("{sI sI sI sI sI sI sI sI}", "span", (json_int_t)times->span_ns, "busy",
                                (json_int_t)times->busy_ns, "idle", (json_int_t)(times->span_ns - times->busy_ns), "compute",
                                (json_int_t)times->class_ns[KINETO_COMPUTE], "communication",
                                (json_int_t)times->class_ns[KINETO_COMMUNICATION], "memory",
                                (json_int_t)times->class_ns[KINETO_MEMORY], "overlapped", (json_int_t)times->overlapped_ns,
                                "uncovered", (json_int_t)times->uncovered_ns));
}

static json_t *kinds(const struct kineto_rank *rank) {
  json_t *rows = json_array();
  for (unsigned i = 0; i < rank->kind_count; i++) {
    const struct kineto_kind *kind = &rank->kinds[i];
    if (!kind->ops)
      continue;
    json_t *bus = kind->bus_ns ? json_real((double)kind->bus_bytes / (double)kind->bus_ns) : json_null();
    json_array_append_new(rows, json_pack("{ss so sI sI so}", "kind", rank->kind_names[i], "operations", integer(kind->ops),
                                          "total_ns", (json_int_t)kind->total_ns, "uncovered_ns",
                                          (json_int_t)kind->uncovered_ns, "bus_gb_s", bus));
  }
  return rows;
}

static json_t *steps(const struct kineto_rank *rank) {
  json_t *rows = json_array();
  for (size_t i = 0; i < rank->step_count; i++) {
    json_t *row = json_pack("{sI}", "step", (json_int_t)rank->steps[i].number);
    set_times(row, &rank->steps[i].times);
    json_array_append_new(rows, row);
  }
  return rows;
}

json_t *kineto_json(const struct kineto_question *question, const struct kineto_ranks *ranks) {
  json_t *rows = json_array(), *notes = json_array();
  for (size_t i = 0; i < ranks->count; i++) {
    const struct kineto_rank *rank = &ranks->rows[i];
    json_t *row = json_pack("{ss sI sI sb so so}", "file", rank->file, "rank", (json_int_t)rank->rank, "world",
                            (json_int_t)rank->world, "partial", rank->partial, "events", integer(rank->events),
                            "outside_steps", integer(rank->outside_steps));
    set_times(row, &rank->times);
    json_object_set_new(row, "kinds", kinds(rank));
    json_object_set_new(row, "steps", steps(rank));
    json_array_append_new(rows, row);
  }
  for (size_t i = 0; i < ranks->note_count; i++)
    json_array_append_new(notes, json_string(ranks->notes[i]));
  return json_pack("{si ss sb so so}", "format", 1, "b200opt", B200_VERSION, "without_last_step",
                   question->without_last_step, "ranks", rows, "notes", notes);
}
