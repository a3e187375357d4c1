/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/pool.h"

#include <stddef.h>

static const struct {
  const char *key;
  size_t offset;
} counts[] = {
#define COUNT(name)                                                                                                         \
  { #name, offsetof(struct b200_log_pool, name) }
    COUNT(hits),      COUNT(misses),     COUNT(passed),    COUNT(waits),   COUNT(driver_calls),
    COUNT(driver_ns), COUNT(rescues),    COUNT(refused),   COUNT(dropped), COUNT(double_frees),
    COUNT(released),  COUNT(unreturned), COUNT(untracked),
#undef COUNT
};

void report_pool(json_t *arm, const struct b200_log *const *logs, size_t count) {
  json_t *out = json_object();
  int64_t ranks = 0, most_kept = 0;
  for (size_t i = 0; i < count; i++) {
    const struct b200_log_pool *pool = &logs[i]->pool;
    ranks += pool->lines > 0;
    most_kept = pool->idle_peak > most_kept ? pool->idle_peak : most_kept;
    for (size_t j = 0; j < sizeof counts / sizeof *counts; j++)
      report_add(out, counts[j].key, *(const int64_t *)((const char *)pool + counts[j].offset));
  }
  report_add(out, "ranks", ranks);
  report_add(out, "idle_peak_bytes", most_kept);
  if (ranks > 0)
    json_object_set(arm, "pool", out);
  json_decref(out);
}

void report_print_pool(const struct report_text *text, const json_t *pool) {
  char value[256];
  if (!pool)
    return;
  report_heading(text, "Pool of device memory");
  snprintf(value, sizeof value,
           "%s served from what was kept (%s of these had to wait), %s by the driver, %s passed through",
           report_grouped(report_number(pool, "hits")).text, report_grouped(report_number(pool, "waits")).text,
           report_grouped(report_number(pool, "misses")).text, report_grouped(report_number(pool, "passed")).text);
  report_line(text, "  allocations", value);
  snprintf(value, sizeof value, "%s calls of all ranks in %s; %s kept at most on a rank",
           report_grouped(report_number(pool, "driver_calls")).text,
           report_seconds((double)report_number(pool, "driver_ns") * 1e-9).text,
           report_bytes(report_number(pool, "idle_peak_bytes")).text);
  report_line(text, "  driver", value);
  snprintf(value, sizeof value, "%s allocations of PyTorch refused for it; %s of others saved by what was kept",
           report_grouped(report_number(pool, "refused")).text, report_grouped(report_number(pool, "rescues")).text);
  report_line(text, "  headroom", value);
}
