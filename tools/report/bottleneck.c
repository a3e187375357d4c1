/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/bottleneck.h"

#include <string.h>

#include "policy/cost.h"
#include "tools/shape.h"

#define ROWS_SHOWN 3

/* ---- steady steps: neither the first, nor one after an interruption, nor the last, which has no successor to end it */

static bool is_steady(const struct b200_log *log, size_t index) {
  const struct b200_log_step *step = &log->steps[index];
  return index > 0 && index + 1 < log->step_count && !step->first && !step->interrupted;
}

static bool is_timed(const struct b200_log *log, size_t index) {
  const struct b200_log_step *step = &log->steps[index];
  return is_steady(log, index) && step->timed && step->time.gemms > 0 && step->time.dev_ns > 0;
}

static void add(int64_t *sum, int64_t amount) {
  if (amount >= 0)
    *sum = b200_add(*sum < 0 ? 0 : *sum, amount);
}

/* Returns the FLOPs of the timed steps. */
static double add_times(const struct b200_log *log, struct b200_evidence *out) {
  double flops = 0;
  for (size_t i = 0; i < log->step_count; i++) {
    const struct b200_log_time *time = &log->steps[i].time;
    if (!is_timed(log, i))
      continue;
    out->steps++;
    add(&out->dev_ns, time->dev_ns);
    add(&out->gemm_ns, time->gemm_ns);
    add(&out->blocked_ns, time->blocked_ns);
    add(&out->host_ns, time->host_ns);
    add(&out->start_ns, time->start_ns);
    add(&out->gemms, time->gemms);
    add(&out->starved, time->starved);
    flops += (double)log->steps[i].gemm_flops;
  }
  return flops;
}

/* Of the whole job, so that what came before the first step is spread over the steps. */
static double launches_of(const struct b200_log *log) {
  double launches = 0;
  for (size_t i = 0; i < log->call_count; i++)
    if (strstr(log->calls[i].name, "LaunchKernel"))
      launches += (double)log->calls[i].calls;
  return log->step_count && launches > 0 ? launches / (double)log->step_count
                                         : -1; /* a log without any had no count of them */
}

/* ---- GEMMs against the GPU's peaks */

/* The format that the tensor cores multiply, and its part of the peak of `format`: TF32 has half the rate of BF16 on all of
   cost.def's GPUs. False: no peak is known. */
static bool find_format(const struct b200_log_gemm *gemm, const struct b200_gemm *facts, enum b200_format *format,
                        double *part) {
  bool narrow = facts->a == B200_ELEMENT_E4M3 || facts->a == B200_ELEMENT_E5M2;
  *part = 1;
  *format = narrow || strcmp(gemm->plan, b200_format_names[B200_FORMAT_FP8]) == 0 ? B200_FORMAT_FP8 : B200_FORMAT_NATIVE;
  if (strcmp(gemm->plan, b200_format_names[B200_FORMAT_MXFP8]) == 0)
    *format = B200_FORMAT_MXFP8;
  if (*format != B200_FORMAT_NATIVE || facts->a == B200_ELEMENT_BF16 || facts->a == B200_ELEMENT_F16)
    return true;
  *part = 0.5;
  return facts->a == B200_ELEMENT_F32 && facts->compute == B200_COMPUTE_TF32;
}

struct ideal {
  double flops, known_flops, peak_ns, memory_ns;
};

static void add_ideal(const struct b200_log_gemm *gemm, int row, struct ideal *sum) {
  struct b200_facts facts;
  enum b200_format format;
  double part, flops = (double)gemm->flops, calls = (double)gemm->calls * (double)gemm->batch;
  if (flops > 0)
    sum->flops += flops;
  if (!(flops > 0) || !shape_from_log(gemm, &facts) || !find_format(gemm, &facts.gemm, &format, &part))
    return;
  double peak = b200_cost_peak_flops(row, format) * part;
  double m = (double)gemm->m, n = (double)gemm->n, k = (double)gemm->k;
  double operand = format == B200_FORMAT_NATIVE ? b200_element_bytes((enum b200_element)facts.gemm.a) : 1;
  double bytes = (m + n) * k * operand + m * n * b200_element_bytes((enum b200_element)facts.gemm.d);
  if (!(peak > 0))
    return;
  sum->known_flops += flops;
  sum->peak_ns += flops / peak * 1e9;
  sum->memory_ns += bytes * calls / b200_cost_hbm_bytes_per_s(row) * 1e9;
}

/* Logs have the shapes of the whole job: those of the timed steps are taken for alike. */
static bool ideal_of(const struct b200_log *log, double timed_flops, struct ideal *out) {
  struct b200_device device;
  struct ideal sum = {0};
  if (!shape_device(log->gpu, 0, &device))
    return false;
  for (size_t i = 0; i < log->gemm_count; i++)
    add_ideal(&log->gemms[i], b200_cost_row(&device), &sum);
  if (!(sum.known_flops >= 0.95 * sum.flops) || !(sum.flops > 0) || !(timed_flops > 0))
    return false;
  out->peak_ns += sum.peak_ns * (timed_flops / sum.flops);
  out->memory_ns += sum.memory_ns * (timed_flops / sum.flops);
  return true;
}

/* ---- memory: of the second half of the steps, when caches are warm */

static void raise_whole(int64_t *to, int64_t value) {
  *to = value > *to ? value : *to;
}

static void raise_real(double *to, double value) {
  *to = value > *to ? value : *to;
}

static void find_memory(const struct b200_log *log, struct b200_evidence *out) {
  int64_t held = 0, first_ns = INT64_MAX, last_ns = INT64_MIN, steps = 0;
  double allocations = 0, refused = 0;
  for (size_t i = 0; i < log->alloc_count; i++)
    held = b200_add(held, log->allocs[i].peak);
  raise_whole(&out->hbm_peak_bytes, held > 0 ? held : -1);
  for (size_t i = 0; i < log->step_count; i++)
    raise_whole(&out->hbm_peak_bytes, log->steps[i].hbm_used);
  for (size_t i = log->step_count / 2; i < log->step_count; i++) {
    const struct b200_log_step *step = &log->steps[i];
    if (!is_steady(log, i))
      continue;
    steps++;
    allocations += (double)step->alloc_calls;
    first_ns = step->t_ns < first_ns ? step->t_ns : first_ns;
    raise_whole(&last_ns, b200_add(step->t_ns, step->dur_ns));
  }
  for (size_t i = 0; i < log->oom_count; i++)
    refused += log->ooms[i].t_ns >= first_ns && log->ooms[i].t_ns < last_ns;
  add(&out->refused, (int64_t)log->oom_count);
  if (steps == 0)
    return;
  raise_real(&out->allocations_per_step, allocations / (double)steps);
  raise_real(&out->refused_per_step, refused / (double)steps);
}

/* ---- NVML */

enum { HELD_DOWN = 0x4 | 0x8 | 0x20 | 0x40 | 0x80 }; /* power cap, slowdowns by hardware and temperature, power brake */

struct mean {
  double sum;
  int64_t count;
};

static void add_sample(struct mean *mean, double value) {
  if (value >= 0) {
    mean->sum += value;
    mean->count++;
  }
}

static double mean_of(const struct mean *mean) {
  return mean->count ? mean->sum / (double)mean->count : -1;
}

struct samples {
  struct mean util, memory_util, throttled;
};

static void add_samples(const struct b200_log *log, struct samples *samples, struct b200_evidence *out) {
  int64_t begin_ns = log->step_count > 1 ? log->steps[1].t_ns : INT64_MAX;
  int64_t end_ns = log->step_count > 1 ? log->steps[log->step_count - 1].t_ns : INT64_MAX;
  for (size_t i = 0; i < log->gpu_count; i++) {
    const struct b200_log_gpu *gpu = &log->gpus[i];
    raise_whole(&out->hbm_total_bytes, gpu->mem_total);
    raise_whole(&out->hbm_peak_bytes, gpu->mem_used);
    if (gpu->t_ns < begin_ns || gpu->t_ns >= end_ns)
      continue;
    add_sample(&samples->util, (double)gpu->util_pct / 100);
    add_sample(&samples->memory_util, (double)gpu->mem_util_pct / 100);
    add_sample(&samples->throttled, gpu->throttle < 0 ? -1 : (gpu->throttle & HELD_DOWN) != 0);
  }
}

/* ---- all together */

static bool converts(const struct b200_log *log) {
  for (size_t i = 0; i < log->gemm_count; i++)
    if (*log->gemms[i].plan && strcmp(log->gemms[i].plan, b200_format_names[B200_FORMAT_NATIVE]) != 0)
      return true;
  return false;
}

void report_evidence(const struct b200_log *const *logs, size_t count, struct b200_evidence *out) {
  struct samples samples = {0};
  struct ideal ideal = {0};
  bool has_ideal = true;
  b200_evidence_clear(out);
  for (size_t i = 0; i < count; i++) {
    double flops = add_times(logs[i], out);
    has_ideal = has_ideal && (flops <= 0 || ideal_of(logs[i], flops, &ideal));
    out->launches_per_step = launches_of(logs[i]) > out->launches_per_step ? launches_of(logs[i]) : out->launches_per_step;
    find_memory(logs[i], out);
    add_samples(logs[i], &samples, out);
    out->converts = out->converts || converts(logs[i]);
    out->graphs = out->graphs || logs[i]->graph.launches > 0;
  }
  if (has_ideal && out->steps > 0) {
    out->gemm_peak_ns = ideal.peak_ns;
    out->gemm_memory_ns = ideal.memory_ns;
  }
  out->util = mean_of(&samples.util);
  out->memory_util = mean_of(&samples.memory_util);
  out->throttled = mean_of(&samples.throttled);
}

static json_t *name_of(enum b200_bottleneck bottleneck) {
  return bottleneck == B200_BOTTLENECK_COUNT ? json_null() : json_string(b200_bottleneck_names[bottleneck]);
}

static json_t *rows_of(const struct b200_bottleneck_verdict *verdict) {
  json_t *rows = json_array();
  for (int i = 0; i < verdict->row_count; i++) {
    const struct b200_bottleneck_evidence_row *row = &verdict->rows[i];
    json_t *threshold = row->threshold < 0 ? json_null() : json_real(row->threshold);
    json_array_append_new(rows, json_pack("{ss sf ss so sb ss}", "name", b200_bottleneck_row_names[row->row], "value",
                                          row->value, "unit", b200_bottleneck_row_units[row->row], "threshold", threshold,
                                          "speaks", row->speaks, "help", b200_bottleneck_row_help[row->row]));
  }
  return rows;
}

static json_t *shares_of(const struct b200_bottleneck_verdict *verdict) {
  if (verdict->first == B200_BOTTLENECK_COUNT)
    return json_null();
  json_t *shares = json_object();
  for (int i = 0; i < B200_BOTTLENECK_SHARES; i++)
    json_object_set_new(shares, b200_bottleneck_names[i], json_real(verdict->share[i]));
  return shares;
}

/* Of a job without steps nothing is known but that memory was refused. */
static const char *because(const struct b200_bottleneck_verdict *verdict, const struct b200_evidence *evidence) {
  return verdict->verdict == B200_BOTTLENECK_CAPACITY && evidence->steps <= 0 && evidence->refused > 0
             ? "allocations of device memory were refused"
             : b200_bottleneck_because[verdict->verdict];
}

json_t *report_bottleneck(const struct b200_log *const *logs, size_t count) {
  struct b200_evidence evidence;
  struct b200_bottleneck_verdict verdict;
  if (count == 0)
    return json_null();
  report_evidence(logs, count, &evidence);
  b200_bottleneck_find(&evidence, &verdict);
  json_t *next = json_array();
  for (int i = 0; i < verdict.next_count; i++)
    json_array_append_new(next, json_string(verdict.next[i]));
  return json_pack("{ss ss ss so so sI so so so}", "verdict", b200_bottleneck_names[verdict.verdict], "because",
                   because(&verdict, &evidence), "why", b200_undetermined_texts[verdict.why], "first",
                   name_of(verdict.first), "second", name_of(verdict.second), "steps", (json_int_t)evidence.steps, "shares",
                   shares_of(&verdict), "evidence", rows_of(&verdict), "next", next);
}

/* ---- text */

static void print_shares(const struct report_text *text, const json_t *bottleneck) {
  char value[300] = "";
  const char *name;
  const json_t *share, *shares = json_object_get(bottleneck, "shares");
  size_t used = 0;
  json_object_foreach((json_t *)shares, name, share) used += (size_t)snprintf(
      value + used, sizeof(value) - used, "%s%s %.1f %%", used ? ", " : "", name, 100 * json_real_value(share));
  if (used) {
    snprintf(value + used, sizeof(value) - used, "; of the device's time in %lld timed steps",
             (long long)report_number(bottleneck, "steps"));
    report_line(text, "shares", value);
  }
}

static void print_rows(const struct report_text *text, const json_t *bottleneck) {
  size_t i;
  const json_t *row;
  int shown = 0;
  json_array_foreach(json_object_get(bottleneck, "evidence"), i, row) {
    char value[300], limit[60] = "";
    const json_t *threshold = json_object_get(row, "threshold");
    if (shown >= ROWS_SHOWN || (!json_is_true(json_object_get(row, "speaks")) && json_is_real(threshold)))
      continue;
    if (json_is_real(threshold))
      snprintf(limit, sizeof(limit), " (threshold %.3g)", json_real_value(threshold));
    snprintf(value, sizeof(value), "%s %.3g%s: %s", report_string(row, "name"), report_real(row, "value"), limit,
             report_string(row, "help"));
    report_line(text, shown++ ? "" : "evidence", value);
  }
}

void report_print_bottleneck(const struct report_text *text, const json_t *bottleneck) {
  char value[400];
  size_t i;
  const json_t *next;
  if (!json_is_object(bottleneck))
    return;
  const char *first = report_string(bottleneck, "first"), *second = report_string(bottleneck, "second");
  bool named = *report_string(bottleneck, "why") == '\0';
  snprintf(value, sizeof(value), "%s: %s%s%s%s%s%s", report_string(bottleneck, "verdict"),
           report_string(bottleneck, named ? "because" : "why"), named || !*first ? "" : " (", named ? "" : first,
           named || !*first ? "" : ", ", named ? "" : second, named || !*first ? "" : ")");
  report_line(text, "limited by", value);
  print_shares(text, bottleneck);
  print_rows(text, bottleneck);
  json_array_foreach(json_object_get(bottleneck, "next"), i, next)
      report_line(text, i ? "" : "try", json_string_value(next));
}
