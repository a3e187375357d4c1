/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/match.h"

#include <stdlib.h>
#include <string.h>

#define ADD(array, count) ((array) = b200_grow((array), (count), sizeof(*(array))), &(array)[(count)++])

bool report_ends_together(const char *op) {
  static const char *const names[] = {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    if (strcmp(op, names[i]) == 0)
      return true;
  return false;
}

static bool is_collective(const char *op) {
  return strcmp(op, "Send") != 0 && strcmp(op, "Recv") != 0 && strcmp(op, "mixed") != 0;
}

/* The places in match->comms of a log's communicators, in an array that the caller frees. */
static uint32_t *add_comms(struct report_match *match, json_t *places, const struct b200_log *log) {
  uint32_t *own = b200_zeroed(log->comm_count, sizeof(*own));
  for (size_t i = 0; i < log->comm_count; i++) {
    const struct b200_log_comm *comm = &log->comms[i];
    const json_t *known = json_object_get(places, comm->id);
    own[i] = known ? (uint32_t)json_integer_value(known) : (uint32_t)match->comm_count;
    if (!known) {
      *ADD(match->comms, match->comm_count) = (struct report_comm){.id = comm->id};
      json_object_set_new(places, comm->id, json_integer(own[i]));
    }
    match->comms[own[i]].logs++;
    if (comm->nranks > match->comms[own[i]].nranks)
      match->comms[own[i]].nranks = comm->nranks;
  }
  return own;
}

static int by_identity(const void *a, const void *b) {
  const struct report_part *left = a, *right = b;
  if (left->comm != right->comm)
    return left->comm < right->comm ? -1 : 1;
  if (left->seq != right->seq)
    return left->seq < right->seq ? -1 : 1;
  return (left->log > right->log) - (left->log < right->log);
}

static bool same_kind(const struct b200_log *const *logs, const struct report_part *a, const struct report_part *b) {
  const struct b200_log_kind *left = &logs[a->log]->kinds[a->op->kind], *right = &logs[b->log]->kinds[b->op->kind];
  return a->op->bytes == b->op->bytes && left->nranks == right->nranks && strcmp(left->op, right->op) == 0 &&
         strcmp(left->dtype, right->dtype) == 0;
}

/* Parts of a log that has the same collective twice: the first is kept. */
static void drop_doubles(struct report_match *match) {
  size_t kept = 0;
  for (size_t i = 0; i < match->part_count; i++)
    if (!kept || by_identity(&match->parts[kept - 1], &match->parts[i]) != 0)
      match->parts[kept++] = match->parts[i];
  match->part_count = kept;
}

static void find_groups(const struct b200_log *const *logs, struct report_match *match) {
  for (size_t i = 0, end; i < match->part_count; i = end) {
    const struct report_part *first = &match->parts[i];
    struct report_comm *comm = &match->comms[first->comm];
    bool alike = true;
    for (end = i + 1; end < match->part_count; end++) {
      const struct report_part *other = &match->parts[end];
      if (other->comm != first->comm || other->seq != first->seq)
        break;
      alike = alike && same_kind(logs, first, other);
    }
    if (end - i < 2)
      continue;
    if (comm->last == 0)
      comm->first = match->group_count;
    *ADD(match->groups, match->group_count) =
        (struct report_group){.first = i, .last = end, .whole = end - i == comm->logs, .alike = alike};
    comm->last = match->group_count;
  }
}

void report_match_make(const struct b200_log *const *logs, size_t count, struct report_match *out) {
  json_t *places = json_object();
  memset(out, 0, sizeof(*out));
  for (size_t i = 0; i < count; i++) {
    const struct b200_log *log = logs[i];
    uint32_t *comms = add_comms(out, places, log);
    for (size_t j = 0; j < log->op_count; j++) {
      const struct b200_log_op *op = &log->ops[j];
      if (op->seq < 0 || !is_collective(log->kinds[op->kind].op) || strcmp(log->comms[op->comm].id, "?") == 0)
        continue;
      *ADD(out->parts, out->part_count) = (struct report_part){op, op->seq, comms[op->comm], (uint32_t)i};
    }
    free(comms);
  }
  json_decref(places);
  if (out->part_count)
    qsort(out->parts, out->part_count, sizeof(*out->parts), by_identity);
  drop_doubles(out);
  find_groups(logs, out);
}

void report_match_free(struct report_match *match) {
  free(match->parts);
  free(match->comms);
  free(match->groups);
  memset(match, 0, sizeof(*match));
}
