/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/report.h"

#include <stdlib.h>
#include <string.h>

#include "tools/report/print.h"

/* ---- against the ledger */

static bool same(const struct replay_owner *counted, const struct b200_log_alloc *ledger) {
  const struct replay_owner none = {0};
  if (!ledger)
    return memcmp(counted, &none, sizeof(none)) == 0;
  return counted->current == (uint64_t)ledger->current && counted->peak == (uint64_t)ledger->peak &&
         counted->allocs == (uint64_t)ledger->allocs && counted->frees == (uint64_t)ledger->frees &&
         counted->failed == (uint64_t)ledger->failed;
}

static const struct b200_log_alloc *ledger_of(const struct b200_log *log, const char *owner) {
  for (size_t i = 0; i < log->alloc_count; i++)
    if (strcmp(log->allocs[i].owner, owner) == 0)
      return &log->allocs[i];
  return NULL;
}

enum replay_check replay_check(const struct replay_report *report, const char **owner) {
  const struct b200_log *log = report->log;
  *owner = NULL;
  if (!log || log->partial || !log->alloc_count)
    return REPLAY_NOT_COMPARED;
  for (size_t i = 0; i < log->drop_count; i++)
    if (strcmp(log->drops[i].text, "block") == 0 || strcmp(log->drops[i].text, "oom") == 0)
      return REPLAY_NOT_COMPARED;
  for (int i = 0; i < B200_OWNER_COUNT && !*owner; i++)
    if (!same(&replay_stream(report->replay)->owners[i], ledger_of(log, b200_owner_names[i])))
      *owner = b200_owner_names[i];
  return *owner ? REPLAY_DIFFERENT : REPLAY_EQUAL;
}

/* ---- text */

static int64_t total_calls(const struct replay_book *book) {
  uint64_t sum = 0;
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    sum += book->calls[i];
  return (int64_t)sum;
}

static struct report_value percent(double share) {
  struct report_value value;
  snprintf(value.text, sizeof(value.text), "%.1f %%", 100 * share);
  return value;
}

static double hit_share(const struct replay_book *book) {
  return book->requests ? (double)book->hits / (double)book->requests : 0;
}

/* Of a text from outside: other characters than ASCII as '?'. */
static void print_line(const struct report_text *text, const char *label, const char *value) {
  char *copy = b200_format("%s", value);
  for (char *at = copy; *at; at++)
    if (*at < ' ' || *at > '~')
      *at = '?';
  report_line(text, label, copy);
  free(copy);
}

/* RMM's log does not say what its calls took: they were not the driver's. */
static bool knows_stall(const struct replay_report *report, size_t policy) {
  return report->log || !report->policies[policy]->observe;
}

static void print_memory(const struct report_text *text, const struct replay_report *report) {
  report_heading(text, "Memory and time by policy");
  report_table_line(text, "  %-11s%11s%14s%11s%8s%8s%9s%13s", "policy", "peak live", "peak reserved", "fragmented", "hits",
                    "failed", "retries", "stalled");
  for (size_t i = 0; i < report->policy_count; i++) {
    const struct replay_book *book = replay_book(report->replay, i);
    bool observes = report->policies[i]->observe != NULL;
    report_table_line(text, "  %-11s%11s%14s%11s%8s%8s%9s%13s", report->policies[i]->name,
                      report_bytes((int64_t)book->peak_live).text, report_bytes((int64_t)book->peak_reserved).text,
                      percent(replay_book_fragmentation(book)).text, observes ? "-" : percent(hit_share(book)).text,
                      report_grouped((int64_t)book->failures).text,
                      observes ? "-" : report_grouped((int64_t)book->retries).text,
                      knows_stall(report, i) ? report_seconds((double)replay_book_stall_ns(book) * 1e-9).text : "-");
  }
}

static void print_calls(const struct report_text *text, const struct replay_report *report) {
  char line[128];
  report_line(text, "", "hits: requests served from what the policy keeps; failed: requests that do not fit the device");
  report_heading(text, "Driver calls by policy");
  int used = snprintf(line, sizeof(line), "  %-11s", "policy");
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    used += snprintf(line + used, sizeof(line) - (size_t)used, "%10s", replay_call_names[i]);
  report_table_line(text, "%s%12s", line, "all");
  for (size_t i = 0; i < report->policy_count; i++) {
    const struct replay_book *book = replay_book(report->replay, i);
    used = snprintf(line, sizeof(line), "  %-11s", report->policies[i]->name);
    for (int j = 0; j < REPLAY_CALL_COUNT; j++)
      used += snprintf(line + used, sizeof(line) - (size_t)used, "%10s", report_grouped((int64_t)book->calls[j]).text);
    report_table_line(text, "%s%12s", line, report_grouped(total_calls(book)).text);
  }
}

static void print_costs(const struct report_text *text) {
  char line[256];
  fprintf(text->out, "\n");
  int used = snprintf(line, sizeof(line), "modelled host time of the driver calls, estimates:");
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    used += snprintf(line + used, sizeof(line) - (size_t)used, " %s %g us%s", replay_call_names[i],
                     (double)replay_call_ns((enum replay_call)i) * 1e-3, i + 1 < REPLAY_CALL_COUNT ? "," : "");
  snprintf(line + used, sizeof(line) - (size_t)used, "; waiting for the device is not in it");
  report_line(text, "stalled", line);
}

static void print_check(const struct report_text *text, const struct replay_report *report) {
  const char *owner;
  char line[128];
  enum replay_check check = replay_check(report, &owner);
  if (check == REPLAY_NOT_COMPARED)
    return;
  snprintf(line, sizeof(line), "the trace and the ledger of the log differ in the memory of %s", owner ? owner : "");
  report_line(text, "checked", check == REPLAY_EQUAL ? "the ledger of the log counted the same, owner by owner" : line);
}

static void print_stream(const struct report_text *text, const struct replay_report *report) {
  const struct replay_stream *stream = replay_stream(report->replay);
  char line[512];
  print_line(text, report->log ? "log" : "RMM log", report->path);
  if (report->log) {
    snprintf(line, sizeof(line), "%lld of run %.300s", (long long)report->log->rank, report->log->run);
    print_line(text, "rank", line);
  }
  snprintf(line, sizeof(line), "%s, at most %s blocks at once", report_grouped((int64_t)stream->events).text,
           report_grouped((int64_t)stream->peak_live_requests).text);
  report_line(text, "events", line);
  report_line(text, "device",
              report->limit == REPLAY_NO_LIMIT ? "without a limit" : report_bytes((int64_t)report->limit).text);
}

void replay_report_text(FILE *out, const struct replay_report *report, bool colour) {
  struct report_text text = {out, colour};
  print_stream(&text, report);
  print_memory(&text, report);
  print_calls(&text, report);
  print_costs(&text);
  print_check(&text, report);
  for (size_t i = 0; i < report->note_count; i++)
    print_line(&text, "note", report->notes[i]);
}

/* ---- JSON */

static json_t *integer(uint64_t value) {
  return json_integer((json_int_t)value);
}

static json_t *policy_json(const struct replay_policy *policy, const struct replay_book *book) {
  json_t *calls = json_object();
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    json_object_set_new(calls, replay_call_names[i], integer(book->calls[i]));
  return json_pack("{ss so so so so so so so so so so so}", "policy", policy->name, "peak_live", integer(book->peak_live),
                   "peak_reserved", integer(book->peak_reserved), "live_at_peak", integer(book->live_at_peak), "live",
                   integer(book->live), "reserved", integer(book->reserved), "fragmentation",
                   json_real(replay_book_fragmentation(book)), "requests", integer(book->requests), "hits",
                   integer(book->hits), "failures", integer(book->failures), "retries", integer(book->retries), "calls",
                   calls);
}

static json_t *owners_json(const struct replay_stream *stream) {
  json_t *owners = json_array();
  for (int i = 0; i < B200_OWNER_COUNT; i++) {
    const struct replay_owner *owner = &stream->owners[i];
    if (owner->allocs || owner->failed)
      json_array_append_new(owners, json_pack("{ss so so so so so}", "owner", b200_owner_names[i], "current",
                                              integer(owner->current), "peak", integer(owner->peak), "allocs",
                                              integer(owner->allocs), "frees", integer(owner->frees), "failed",
                                              integer(owner->failed)));
  }
  return owners;
}

static json_t *costs_json(void) {
  json_t *costs = json_object();
  for (int i = 0; i < REPLAY_CALL_COUNT; i++)
    json_object_set_new(costs, replay_call_names[i], integer(replay_call_ns((enum replay_call)i)));
  return costs;
}

json_t *replay_report_json(const struct replay_report *report) {
  const struct replay_stream *stream = replay_stream(report->replay);
  const char *owner;
  enum replay_check check = replay_check(report, &owner);
  json_t *policies = json_array(), *notes = json_array();
  for (size_t i = 0; i < report->policy_count; i++) {
    const struct replay_book *book = replay_book(report->replay, i);
    json_t *row = policy_json(report->policies[i], book);
    json_object_set_new(row, "stall_ns", knows_stall(report, i) ? integer(replay_book_stall_ns(book)) : json_null());
    if (report->policies[i]->observe) {
      json_object_set_new(row, "hits", json_null());
      json_object_set_new(row, "retries", json_null());
    }
    json_array_append_new(policies, row);
  }
  for (size_t i = 0; i < report->note_count; i++)
    json_array_append_new(notes, json_string(report->notes[i]));
  return json_pack(
      "{si ss ss ss so so so so so so so so so so so so}", "format", 1, "b200opt", B200_VERSION, "path", report->path,
      "source", report->log ? "log" : "rmm", "run", report->log ? json_string(report->log->run) : json_null(), "rank",
      report->log ? json_integer(report->log->rank) : json_null(), "limit",
      report->limit == REPLAY_NO_LIMIT ? json_null() : integer(report->limit), "events", integer(stream->events),
      "peak_blocks", integer(stream->peak_live_requests), "unknown", integer(stream->unknown), "replaced",
      integer(stream->replaced), "owners", report->log ? owners_json(stream) : json_array(), "checked",
      check == REPLAY_NOT_COMPARED ? json_null() : json_boolean(check == REPLAY_EQUAL), "call_ns", costs_json(), "policies",
      policies, "notes", notes);
}
