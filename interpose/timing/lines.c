/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "interpose/timing/internal.h"

void b200_timing_untimed(enum b200_untimed why, uint64_t calls) {
  atomic_fetch_add_explicit(&b200_timing_state.untimed[why], calls, memory_order_relaxed);
}

static const char *mode_name(void) {
  static const char *const names[] = {[B200_TIMING_ON] = "on", [B200_TIMING_SAMPLED] = "sampled", [B200_TIMING_OFF] = "off"};
  return names[b200_timing_state.mode];
}

/* pre: the lock is held, or nothing runs yet. */
void b200_timing_write_mode(const struct b200_clock *clock) {
  struct b200_line line;
  bool host = clock && clock->anchor && clock->lower_ns <= clock->upper_ns;
  b200_line_begin(&line, B200_RECORD_timing);
  b200_line_text(&line, B200_FIELD_timing_mode, mode_name());
  b200_line_int(&line, B200_FIELD_timing_every, b200_timing_state.config->timing_every);
  b200_line_text(&line, B200_FIELD_timing_why, b200_timing_state.why);
  b200_line_text(&line, B200_FIELD_timing_clock, host ? "host" : "device");
  b200_line_int(&line, B200_FIELD_timing_clock_ns, host ? (clock->upper_ns - clock->lower_ns) / 2 : -1);
  b200_runtime_put(&line);
}

/* Of a communicator; 0: it could not be made out. */
static void put_id(struct b200_line *line, enum b200_field field, uint64_t id) {
  char text[20] = "?";
  if (id)
    snprintf(text, sizeof text, "%016llx", (unsigned long long)id);
  b200_line_text(line, field, text);
}

void b200_timing_write_comm(const struct b200_comm *comm, int32_t nranks, int rank) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_comm);
  put_id(&line, B200_FIELD_comm_id, comm->id);
  b200_line_int(&line, B200_FIELD_comm_nranks, nranks);
  b200_line_int(&line, B200_FIELD_comm_rank, rank);
  if (comm->parent)
    put_id(&line, B200_FIELD_comm_parent, comm->parent);
  else
    b200_line_text(&line, B200_FIELD_comm_parent, "");
  b200_runtime_put(&line);
}

static bool is_written(const struct b200_epoch *epoch) {
  return epoch->gemms || epoch->slow || epoch->number <= FIRST_EPOCHS;
}

static void write_op(const struct b200_overlap_op *op, const struct b200_info *info, const struct b200_epoch *epoch) {
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_op);
  b200_line_uint(&line, B200_FIELD_op_gen, epoch && epoch->named ? epoch->gen : 0);
  b200_line_int(&line, B200_FIELD_op_step, epoch && epoch->named ? (int64_t)epoch->index : -1);
  put_id(&line, B200_FIELD_op_comm, info->comm);
  b200_line_uint(&line, B200_FIELD_op_seq, info->sequence);
  b200_line_uint(&line, B200_FIELD_op_group, info->group);
  b200_line_text(&line, B200_FIELD_op_op, info->op < B200_COLL_COUNT ? b200_coll_names[info->op] : "mixed");
  b200_line_text(&line, B200_FIELD_op_dtype, b200_element_names[info->dtype]);
  b200_line_int(&line, B200_FIELD_op_nranks, info->nranks);
  b200_line_uint(&line, B200_FIELD_op_bytes, info->bytes);
  b200_line_uint(&line, B200_FIELD_op_stream, info->stream);
  b200_line_int(&line, B200_FIELD_op_t_ns, op->t_start_ns);
  b200_line_int(&line, B200_FIELD_op_dur_ns, op->t_end_ns - op->t_start_ns);
  b200_line_int(&line, B200_FIELD_op_blocked_ns, op->blocked_ns);
  b200_line_int(&line, B200_FIELD_op_queued_ns, op->queued_ns);
  b200_runtime_put(&line);
}

void b200_timing_sink_op(void *context, const struct b200_overlap_op *op) {
  struct b200_clock *clock = context;
  const struct b200_info *info = b200_clock_close_info(clock, op->user);
  const struct b200_epoch *epoch = b200_epoch_at(op->step);
  if (!info)
    return;
  b200_kinds_add(&b200_timing_state.kinds, &(struct b200_kind){.op = info->op,
                                                               .dtype = info->dtype,
                                                               .nranks = info->nranks,
                                                               .calls = info->group,
                                                               .bytes = info->bytes,
                                                               .dur_ns = (uint64_t)(op->t_end_ns - op->t_start_ns),
                                                               .blocked_ns = (uint64_t)op->blocked_ns,
                                                               .queued_ns = (uint64_t)op->queued_ns});
  bool early = op->step == 0 && b200_timing_state.first_ops < FIRST_OPS;
  if (early)
    b200_timing_state.first_ops++;
  if (early || (op->step > 0 && epoch && is_written(epoch)))
    write_op(op, info, epoch);
}

void b200_timing_sink_lost(void *context, uint64_t user, bool full) {
  const struct b200_info *info = b200_clock_close_info(context, user); /* NULL: counted when it was lost */
  if (info)
    b200_timing_untimed(full ? B200_UNTIMED_FULL : B200_UNTIMED_VENDOR, info->group);
}

void b200_timing_write_time(const struct b200_epoch *epoch) {
  const struct b200_overlap_step *sums = &epoch->sums;
  bool gemms = epoch->gemms && sums->gemms > 0, issues = gemms && !b200_timing_state.single_connection;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_time);
  b200_line_uint(&line, B200_FIELD_time_gen, epoch->gen);
  b200_line_uint(&line, B200_FIELD_time_step, epoch->index);
  b200_line_int(&line, B200_FIELD_time_t_ns, sums->t_start_ns);
  b200_line_int(&line, B200_FIELD_time_dev_ns, sums->t_end_ns - sums->t_start_ns);
  b200_line_uint(&line, B200_FIELD_time_colls, sums->collectives);
  b200_line_int(&line, B200_FIELD_time_comm_ns, sums->comm_ns);
  b200_line_int(&line, B200_FIELD_time_busy_ns, sums->busy_ns);
  b200_line_int(&line, B200_FIELD_time_blocked_ns, sums->blocked_ns);
  b200_line_int(&line, B200_FIELD_time_queued_ns, sums->queued_ns);
  b200_line_uint(&line, B200_FIELD_time_gemms, gemms ? sums->gemms : 0);
  b200_line_int(&line, B200_FIELD_time_gemm_ns, gemms ? sums->gemm_ns : -1);
  b200_line_int(&line, B200_FIELD_time_uncovered_ns, gemms ? sums->uncovered_ns : -1);
  b200_line_int(&line, B200_FIELD_time_host_ns, issues ? epoch->idle_ns : -1);
  b200_line_int(&line, B200_FIELD_time_start_ns, issues ? epoch->start_ns : -1);
  b200_line_int(&line, B200_FIELD_time_starved, issues ? (int64_t)epoch->starved : -1);
  b200_runtime_put(&line);
}

static bool write_kind(void *context, const struct b200_kind *kind) {
  (void)context;
  struct b200_line line;
  b200_line_begin(&line, B200_RECORD_coll_time);
  b200_line_text(&line, B200_FIELD_coll_time_op, kind->op < B200_COLL_COUNT ? b200_coll_names[kind->op] : "mixed");
  b200_line_text(&line, B200_FIELD_coll_time_dtype, b200_element_names[kind->dtype]);
  b200_line_int(&line, B200_FIELD_coll_time_nranks, kind->nranks);
  b200_line_uint(&line, B200_FIELD_coll_time_calls, kind->calls);
  b200_line_uint(&line, B200_FIELD_coll_time_bytes, kind->bytes);
  b200_line_uint(&line, B200_FIELD_coll_time_dur_ns, kind->dur_ns);
  b200_line_uint(&line, B200_FIELD_coll_time_blocked_ns, kind->blocked_ns);
  b200_line_uint(&line, B200_FIELD_coll_time_queued_ns, kind->queued_ns);
  return b200_runtime_put_counts(&line);
}

static void flush_untimed(void) {
  static const char *const names[] = {
#define B200_UNTIMED(id, name, text) name,
#include "policy/untimed.def"
#undef B200_UNTIMED
  };
  for (int i = 0; i < B200_UNTIMED_COUNT; i++) {
    uint64_t now = atomic_load(&b200_timing_state.untimed[i]);
    struct b200_line line;
    if (now == b200_timing_state.untimed_flushed[i])
      continue;
    b200_line_begin(&line, B200_RECORD_untimed);
    b200_line_text(&line, B200_FIELD_untimed_why, names[i]);
    b200_line_uint(&line, B200_FIELD_untimed_calls, now - b200_timing_state.untimed_flushed[i]);
    if (b200_runtime_put_counts(&line))
      b200_timing_state.untimed_flushed[i] = now;
  }
}

static void flush_graphs(void) {
  struct b200_line line;
  if (b200_timing_state.graphs == b200_timing_state.graphs_flushed &&
      b200_timing_state.graphs_timed == b200_timing_state.graphs_timed_flushed)
    return;
  b200_line_begin(&line, B200_RECORD_graph);
  b200_line_uint(&line, B200_FIELD_graph_launches, b200_timing_state.graphs - b200_timing_state.graphs_flushed);
  b200_line_uint(&line, B200_FIELD_graph_timed, b200_timing_state.graphs_timed - b200_timing_state.graphs_timed_flushed);
  b200_line_uint(&line, B200_FIELD_graph_dur_ns, b200_timing_state.graphs_ns - b200_timing_state.graphs_ns_flushed);
  if (!b200_runtime_put_counts(&line))
    return;
  b200_timing_state.graphs_flushed = b200_timing_state.graphs;
  b200_timing_state.graphs_timed_flushed = b200_timing_state.graphs_timed;
  b200_timing_state.graphs_ns_flushed = b200_timing_state.graphs_ns;
}

void b200_timing_flush(void) {
  pthread_mutex_lock(&b200_timing_state.lock);
  b200_kinds_flush(&b200_timing_state.kinds, write_kind, NULL);
  flush_untimed();
  flush_graphs();
  pthread_mutex_unlock(&b200_timing_state.lock);
}
