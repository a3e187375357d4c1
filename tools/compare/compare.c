/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/record/reader.h"
#include "tools/compare/parts.h"
#include "tools/report/print.h"
#include "tools/report/rows.h"

#define RUNS_NAMED 4    /* in a line */
#define SEEN_LEAST 0.01 /* percent: below it a difference of speed is not worth a number */
#define AA_FAR 1        /* percent: equal runs lie closer together than this, whatever their precision */

static const char *const side_names[2] = {"baseline", "candidate"};

/* ---- arms */

static void take_notes(json_t *list, const char *side, const char *run, char *const *notes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    char *note = b200_format("%s%s%s: %s", side, run ? ", " : "", run ? run : "", notes[i]);
    json_array_append_new(list, json_string_nocheck(note));
    free(note);
  }
}

/* Texts of logs are not always UTF-8, which JSON has to be: bytes that are none become '?'. */
static json_t *text_of(const char *text) {
  json_t *value = json_string(text);
  if (value)
    return value;
  char *copy = b200_format("%s", text);
  for (char *at = copy; *at; at++)
    if ((unsigned char)*at >= 0x80)
      *at = '?';
  value = json_string(copy);
  free(copy);
  return value;
}

static json_t *run_part(const struct compare_run *run) {
  bool points = run->point_count > 0;
  return json_pack("{so ss ss so sI so so sI sI sI sI si si sb sb sb}", "name", text_of(run->name), "source",
                   compare_source_names[run->source], "loss_source", points ? compare_source_names[run->loss_source] : "",
                   "loss_name", text_of(run->loss_name ? run->loss_name : ""), "points", (json_int_t)run->point_count,
                   "first_step", points ? json_integer(run->points[0].step) : json_null(), "last_step",
                   points ? json_integer(run->points[run->point_count - 1].step) : json_null(), "steps",
                   (json_int_t)run->step_count, "decimals", (json_int_t)run->decimals, "world", (json_int_t)run->world,
                   "ranks", (json_int_t)run->ranks, "loss_ranks", run->loss_ranks, "resumes", run->resumes, "partial",
                   run->partial, "virtual_node", run->modelled, "counted", run->counted);
}

static json_t *arm_part(const struct compare_arm *arm, const char *name) {
  json_t *runs = json_array();
  for (size_t i = 0; i < arm->run_count; i++)
    json_array_append_new(runs, run_part(&arm->runs[i]));
  return json_pack("{so so so}", "name", text_of(name), "path", text_of(arm->path ? arm->path : ""), "runs", runs);
}

static json_t *all_notes(const struct compare_arm *const arms[2]) {
  json_t *list = json_array();
  for (int side = 0; side < 2; side++) {
    take_notes(list, side_names[side], NULL, arms[side]->notes, arms[side]->note_count);
    for (size_t i = 0; i < arms[side]->run_count; i++) {
      const struct compare_run *run = &arms[side]->runs[i];
      take_notes(list, side_names[side], run->name, run->notes, run->note_count);
    }
  }
  return list;
}

/* ---- pairs */

struct match {
  const struct compare_run *a, *b;
};

static const struct compare_run *run_named(const struct compare_arm *arm, const char *name) {
  for (size_t i = 0; i < arm->run_count; i++)
    if (strcmp(arm->runs[i].name, name) == 0)
      return &arm->runs[i];
  return NULL;
}

/* Runs with equal names; when there are none, the first with the first and so on. Returns how many pairs have losses. */
static size_t match_runs(const struct compare_arm *const arms[2], struct match *matches) {
  size_t count = 0, common = 0;
  for (size_t i = 0; i < arms[0]->run_count; i++)
    common += run_named(arms[1], arms[0]->runs[i].name) != NULL;
  for (size_t i = 0; i < arms[0]->run_count; i++) {
    const struct compare_run *a = &arms[0]->runs[i];
    const struct compare_run *b = common ? run_named(arms[1], a->name) : i < arms[1]->run_count ? &arms[1]->runs[i] : NULL;
    if (b && a->point_count && b->point_count)
      matches[count++] = (struct match){a, b};
  }
  return count;
}

/* The A/A pairs: gaps of those that can be compared, and what is odd with them. */
struct aa {
  double *gaps;
  size_t count;
  json_t *says; /* lines */
};

static void add_line(json_t *list, char *line) {
  json_array_append_new(list, text_of(line));
  free(line);
}

static void aa_add(struct aa *aa, const struct compare_arm *arm, const struct compare_run *a, const struct compare_run *b) {
  struct loss_pair pair;
  struct loss_settings plain = {.margin_percent = AA_FAR, .floor_percent = 0, .may_shift = a->counted || b->counted};
  loss_compare(a->points, a->point_count, b->points, b->point_count, &plain, &pair, NULL);
  const char *path = arm->path ? arm->path : "";
  if (pair.verdict == LOSS_INVALID || pair.verdict == LOSS_DIVERGED || !isfinite(pair.gap_percent)) {
    add_line(aa->says, b200_format("--aa %s: %s and %s are no pair of equal runs and are left out: %s", path, a->name,
                                   b->name, loss_reason_texts[pair.reason]));
    return;
  }
  if (pair.verdict == LOSS_WORSE || pair.verdict == LOSS_BETTER || pair.start_differs)
    add_line(aa->says,
             b200_format("--aa %s: %s and %s are far apart for equal runs, %+.2f %%%s: are they of one "
                         "arm?",
                         path, a->name, b->name, pair.gap_percent, pair.start_differs ? " from another start" : ""));
  aa->gaps = b200_grow(aa->gaps, aa->count, sizeof(*aa->gaps));
  aa->gaps[aa->count++] = pair.gap_percent;
}

/* Runs of an arm are equal to its first; the run of an arm that has but one, to the baseline's. */
static struct aa aa_pairs(const struct compare_settings *settings, const struct compare_arm *baseline) {
  struct aa aa = {.says = json_array()};
  for (size_t i = 0; i < settings->aa_count; i++) {
    const struct compare_arm *arm = &settings->aa[i];
    if (arm->run_count == 1) {
      const struct compare_run *same = run_named(baseline, arm->runs[0].name);
      if (baseline->run_count)
        aa_add(&aa, arm, same ? same : &baseline->runs[0], &arm->runs[0]);
    }
    for (size_t j = 1; j < arm->run_count; j++)
      aa_add(&aa, arm, &arm->runs[0], &arm->runs[j]);
  }
  if (settings->aa_count && aa.count < LOSS_FLOOR_PAIRS)
    add_line(aa.says, b200_format("--aa makes %zu pair%s of equal runs, and measures nothing: it takes "
                                  "%d, each run with the first of its folder, or one by itself with "
                                  "the baseline",
                                  aa.count, aa.count == 1 ? "" : "s", LOSS_FLOOR_PAIRS));
  return aa;
}

/* ---- loss */

static json_t *pair_part(const struct loss_pair *pair, const struct match *match, json_t *curve) {
  json_t *part =
      json_pack("{so so ss ss ss so so so so so}", "baseline", text_of(match->a->name), "candidate", text_of(match->b->name),
                "verdict", loss_verdict_names[pair->verdict], "reason", loss_reason_texts[pair->reason], "speaks_of",
                "this pair", "gap_percent", compare_real(pair->gap_percent), "half_width_percent",
                compare_real(pair->half_width_percent), "margin_percent", compare_real(pair->margin_percent),
                "floor_percent", compare_real(pair->floor_percent), "curve", curve);
  const struct {
    const char *name;
    double value;
  } numbers[] = {
      {"overlap", pair->overlap},
      {"correlation_early", pair->correlation_early},
      {"correlation_late", pair->correlation_late},
      {"start_percent", pair->start_percent},
      {"loss_baseline", pair->loss_a},
      {"loss_candidate", pair->loss_b},
      {"by_blocks_percent", pair->by_blocks_percent},
      {"by_ar1_percent", pair->by_ar1_percent},
      {"sd_percent", pair->sd_percent},
      {"lag1", pair->lag1},
      {"above_best_percent", pair->above_best_percent},
      {"slope_percent", pair->slope_percent},
      {"slope_t", pair->slope_t},
      {"lag_steps", pair->lag_steps},
      {"largest_gap_percent", pair->largest_gap_percent},
      {"norm_ratio", pair->norm_ratio},
  };
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
    json_object_set_new(part, numbers[i].name, compare_real(numbers[i].value));
  const struct {
    const char *name;
    int64_t value;
  } counts[] = {
      {"points_baseline", (int64_t)pair->count_a},
      {"points_candidate", (int64_t)pair->count_b},
      {"common", (int64_t)pair->common},
      {"shift", pair->shift},
      {"window", (int64_t)pair->window},
      {"window_from", pair->window_from},
      {"steps_advised", (int64_t)pair->steps_advised},
      {"steps_needed", (int64_t)pair->steps_needed},
      {"pairs_needed", (int64_t)pair->pairs_needed},
      {"largest_gap_step", pair->largest_gap_step},
      {"longest_sign_run", (int64_t)pair->longest_sign_run},
      {"spikes_baseline", (int64_t)pair->spikes_a},
      {"spikes_candidate", (int64_t)pair->spikes_b},
      {"spikes_only_candidate", (int64_t)pair->spikes_only_b},
      {"first_nonfinite_baseline", pair->first_nonfinite_a},
      {"first_nonfinite_candidate", pair->first_nonfinite_b},
  };
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
    json_object_set_new(part, counts[i].name, json_integer(counts[i].value));
  const struct {
    const char *name;
    bool value;
  } flags[] = {
      {"identical", pair->identical},         {"short_run", pair->short_run}, {"start_differs", pair->start_differs},
      {"floor_assumed", pair->floor_assumed}, {"growing", pair->growing},     {"below_advised", pair->below_advised},
  };
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
    json_object_set_new(part, flags[i].name, json_boolean(flags[i].value));
  return part;
}

/* Fills `pairs` and returns the list of their parts. */
static json_t *compare_pairs(const struct match *matches, size_t count, const struct loss_settings *settings,
                             struct loss_pair *pairs) {
  json_t *list = json_array();
  for (size_t i = 0; i < count; i++) {
    const struct compare_run *a = matches[i].a, *b = matches[i].b;
    struct loss_series series = {0};
    struct loss_settings own = *settings;
    own.may_shift = a->counted || b->counted;
    loss_compare(a->points, a->point_count, b->points, b->point_count, &own, &pairs[i], &series);
    json_array_append_new(list, pair_part(&pairs[i], &matches[i], compare_columns(&series)));
    loss_series_free(&series);
  }
  return list;
}

static json_t *loss_part(const struct loss_summary *summary, json_t *pairs, const struct aa *aa, bool floor_told) {
  const char *floor = aa->count >= LOSS_FLOOR_PAIRS ? "measured" : floor_told ? "given" : "assumed";
  return json_pack("{ss ss sI sI sb sb sb sb so so so so ss sI sO sI sI so}", "verdict",
                   loss_verdict_names[summary->verdict], "reason", loss_reason_texts[summary->reason], "pair_count",
                   (json_int_t)summary->pairs, "decisive", (json_int_t)summary->decisive, "recipe", summary->recipe,
                   "short_run", summary->short_run, "start_differs", summary->start_differs, "identical", summary->identical,
                   "gap_percent", compare_real(summary->gap_percent), "half_width_percent",
                   compare_real(summary->half_width_percent), "margin_percent", compare_real(summary->margin_percent),
                   "spread_percent", compare_real(summary->spread_percent), "floor_source", floor, "aa_pairs",
                   (json_int_t)aa->count, "aa_says", aa->says, "steps_needed", (json_int_t)summary->steps_needed,
                   "pairs_needed", (json_int_t)summary->pairs_needed, "pairs", pairs);
}

/* null when no pair has losses on both sides. */
static json_t *make_loss(const struct compare_arm *const arms[2], const struct compare_settings *settings,
                         struct loss_summary *summary, struct match *first) {
  struct match *matches = b200_zeroed(arms[0]->run_count + 1, sizeof(*matches));
  size_t count = match_runs(arms, matches);
  struct aa aa = aa_pairs(settings, arms[0]);
  double floor_percent = loss_floor(aa.gaps, aa.count);
  bool told = isnan(floor_percent) && isfinite(settings->floor_percent);
  struct loss_settings plain = {.margin_percent = settings->margin_percent,
                                .floor_percent = told ? settings->floor_percent : floor_percent};
  struct loss_pair *pairs = b200_zeroed(count + 1, sizeof(*pairs));
  json_t *part = json_null();
  if (count) {
    json_t *list = compare_pairs(matches, count, &plain, pairs);
    loss_summarise(pairs, count, summary);
    part = loss_part(summary, list, &aa, told);
    *first = matches[0];
  }
  json_decref(aa.says);
  free(aa.gaps);
  free(pairs);
  free(matches);
  return part;
}

/* ---- the verdict */

static const char *const tones[LOSS_VERDICT_COUNT] = {
    [LOSS_EQUIVALENT] = "good",     [LOSS_BETTER] = "good",  [LOSS_WORSE] = "bad",
    [LOSS_INCONCLUSIVE] = "unsure", [LOSS_INVALID] = "none", [LOSS_DIVERGED] = "bad",
};

static char *plain_interval(const struct loss_summary *summary) {
  return b200_format("the loss gap is %+.3f %% +- %.3f %%, the margin %.3g %%", summary->gap_percent,
                     summary->half_width_percent, summary->margin_percent);
}

static const json_t *run_called(const json_t *arm, const char *name) {
  const json_t *run;
  size_t i;
  json_array_foreach(json_object_get(arm, "runs"), i, run) {
    if (strcmp(report_string(run, "name"), name) == 0)
      return run;
  }
  return NULL;
}

/* Losses of the side that has more. */
static int64_t most_points(const json_t *pair) {
  int64_t baseline = report_number(pair, "points_baseline"), candidate = report_number(pair, "points_candidate");
  return baseline > candidate ? baseline : candidate;
}

/* How many steps are common, how many would have to be, and which side ends early. */
static char *overlap_says(const json_t *comparison, const json_t *pair) {
  int64_t last[2];
  bool partial[2];
  for (int side = 0; side < 2; side++) {
    const json_t *run = run_called(json_object_get(comparison, side_names[side]), report_string(pair, side_names[side]));
    last[side] = report_number(run, "last_step");
    partial[side] = json_is_true(json_object_get(run, "partial"));
  }
  int64_t longer = most_points(pair), common = report_number(pair, "common");
  int shorter = last[1] < last[0];
  char *end = last[0] == last[1]
                  ? b200_format("%s", "")
                  : b200_format("; the %s's end at step %" PRId64 ", the %s's go on to %" PRId64 "%s", side_names[shorter],
                                last[shorter], side_names[!shorter], last[!shorter],
                                partial[shorter] ? ", and a log of it has no end: it was killed or runs" : "");
  char *text = b200_format("%s: %" PRId64 " of %" PRId64 " losses, and %.0f are needed (%.0f %%)%s",
                           loss_reason_texts[LOSS_BY_OVERLAP], common, longer, ceil(LOSS_OVERLAP_LEAST * (double)longer),
                           100 * LOSS_OVERLAP_LEAST, end);
  free(end);
  return text;
}

/* What the losses say, as one line. */
static char *loss_says(const json_t *comparison, const struct loss_summary *summary, const json_t *pair) {
  char *interval = plain_interval(summary), *text;
  const char *reason = loss_reason_texts[summary->reason];
  if (summary->identical)
    text = b200_format("all %" PRId64 " common losses are the same numbers", report_number(pair, "common"));
  else if (summary->reason == LOSS_BY_OVERLAP)
    text = overlap_says(comparison, pair);
  else if (summary->reason == LOSS_BY_SHIFT)
    text = b200_format("%s: the curves match when 1 is %s the candidate's", reason,
                       report_number(pair, "shift") > 0 ? "added to" : "taken from");
  else if (summary->verdict == LOSS_INVALID || summary->verdict == LOSS_DIVERGED)
    text = b200_format("%s", reason);
  else if (summary->reason == LOSS_BY_LENGTH || !isfinite(summary->gap_percent))
    text = b200_format("%s: %" PRId64 " are common, and a verdict takes %d", reason, report_number(pair, "common"),
                       LOSS_WINDOW_LEAST);
  else if (summary->reason == LOSS_BY_START)
    text = b200_format("%s; but the first five steps differ by %.2g %%, more than the %.2g %% that rounding explains: start "
                       "or configuration differs, or the recipe is broken",
                       interval, report_real(pair, "start_percent"), loss_thresholds[LOSS_T_SAME_START].value);
  else if (summary->verdict == LOSS_INCONCLUSIVE && summary->reason != LOSS_BY_INTERVAL)
    text = b200_format("%s; %s", interval, reason);
  else if (summary->verdict == LOSS_INCONCLUSIVE)
    text = b200_format("%s, and the interval crosses it", interval);
  else
    text = b200_format("%s", interval);
  free(interval);
  return text;
}

static void add_what_would_decide(json_t *also, const struct loss_summary *summary, const json_t *pair) {
  int64_t advised = report_number(pair, "steps_advised");
  if (summary->reason == LOSS_BY_START) {
    add_line(also, b200_format("more steps would not decide: the same initial weights and settings on both sides would"));
    return;
  }
  if (summary->steps_needed && advised > (int64_t)summary->steps_needed)
    add_line(also, b200_format("about %zu steps in all would decide; %" PRId64 " are advised for this margin and this noise",
                               summary->steps_needed, advised));
  else if (summary->steps_needed)
    add_line(also, b200_format("about %zu steps in all would decide", summary->steps_needed));
  if (summary->pairs_needed)
    add_line(also, b200_format("about %zu pairs of runs with different seeds would decide", summary->pairs_needed));
}

/* What the reader of the verdict must know besides. */
static void add_loss_warnings(json_t *also, const struct loss_summary *summary, const json_t *loss, const json_t *pair) {
  bool judged = summary->verdict != LOSS_INVALID && summary->verdict != LOSS_DIVERGED;
  if (summary->verdict == LOSS_INCONCLUSIVE)
    add_what_would_decide(also, summary, pair);
  if (judged && report_number(pair, "shift"))
    add_line(also,
             b200_format("one side's steps are counted, not printed: 1 is %s the candidate's, with which the curves match",
                         report_number(pair, "shift") > 0 ? "added to" : "taken from"));
  if (summary->short_run && summary->verdict == LOSS_EQUIVALENT && !summary->identical)
    add_line(also,
             b200_format("equivalent at %" PRId64 " steps: below %d a recipe that gets worse later can still look equal",
                         report_number(pair, "common"), LOSS_SURE_STEPS));
  if (summary->start_differs && summary->reason != LOSS_BY_START)
    add_line(also, b200_format("the first steps differ by more than rounding does: start or configuration differs, or the "
                               "recipe is broken"));
  int64_t longer = most_points(pair), common = report_number(pair, "common");
  if (judged && common < longer && summary->reason != LOSS_BY_LENGTH)
    add_line(also, b200_format("%" PRId64 " of %" PRId64 " losses are in both runs; the others were not compared", common,
                               longer));
  if (judged)
    json_array_extend(also, json_object_get(loss, "aa_says"));
  if (!judged || summary->identical)
    return;
  if (summary->floor_assumed)
    add_line(also,
             b200_format("how much repeated runs differ was not measured (--aa): %.3g %% is assumed", LOSS_ASSUMED_FLOOR));
  if (summary->recipe)
    add_line(also, b200_format("%zu pairs: this speaks of the recipe", summary->pairs));
  else
    add_line(also, b200_format("this speaks of %s, not of the recipe: that takes %d pairs with different seeds",
                               summary->pairs == 1 ? "this run" : "these runs", LOSS_RECIPE_PAIRS));
}

/* Of the clock that counts. */
static char *speed_says(const json_t *throughput) {
  const json_t *clock = json_array_get(json_object_get(throughput, "clocks"), 0);
  const char *verdict = report_string(clock, "verdict"), *label = report_string(clock, "label");
  if (!clock)
    return b200_format("throughput is not compared: %s", report_string(throughput, "why_not"));
  double ratio = report_real(clock, "ratio"), low = report_real(clock, "low"), high = report_real(clock, "high");
  if (!json_is_number(json_object_get(clock, "ratio")))
    return b200_format("throughput is not known: too few ordinary steps (%s)", label);
  if (strcmp(verdict, speed_verdict_names[SPEED_UNKNOWN]) == 0)
    return b200_format("the candidate is %.3f times as fast, too few steps for an interval (%s)", ratio, label);
  if (strcmp(verdict, speed_verdict_names[SPEED_NO_DIFFERENCE]) == 0)
    return b200_format("no measurable difference in speed (could have seen %.2g %%%s; %s)",
                       fmax(report_real(clock, "could_have_seen_percent"), SEEN_LEAST),
                       report_real(clock, "could_have_seen_percent") < SEEN_LEAST ? " or less" : "", label);
  return b200_format("the candidate is %.3f times as fast [%.3f, %.3f] (%s)", ratio, low, high, label);
}

/* Why a candidate that converts is slower, where the cost model knows: NULL otherwise. */
static char *slowdown_says(const json_t *comparison) {
  const json_t *clock = json_array_get(json_object_get(json_object_get(comparison, "throughput"), "clocks"), 0);
  const json_t *gemms = json_object_get(json_object_get(comparison, "gemms"), "candidate");
  double native = report_real(gemms, "model_native_s"), narrow = report_real(gemms, "model_narrow_s");
  if (strcmp(report_string(clock, "verdict"), speed_verdict_names[SPEED_SLOWER]) != 0 || !(narrow > native && native > 0))
    return NULL;
  return b200_format(
      "by the cost model the converted GEMMs (not all of the step's) take %.2f times as long as unconverted: "
      "they are too small to earn back their quantisation, and B200OPT_STRATEGY=performant would leave them alone",
      narrow / native);
}

/* Jobs that share a folder by chance are taken for runs of one arm. */
static void add_pooled(json_t *also, const struct compare_arm *const arms[2]) {
  for (int side = 0; side < 2; side++) {
    if (!arms[side]->pooled)
      continue;
    char *names = b200_format("%s", "");
    for (size_t i = 0; i < arms[side]->run_count && i < RUNS_NAMED; i++) {
      const struct compare_run *run = &arms[side]->runs[i];
      char *longer = b200_format("%s%s%s (%d ranks)", names, i ? ", " : "", run->name, run->ranks);
      free(names);
      names = longer;
    }
    add_line(also, b200_format("%s: %zu jobs lie in %s and count as its runs: %s%s; for one of them name its own folder",
                               side_names[side], arms[side]->run_count, arms[side]->path, names,
                               arms[side]->run_count > RUNS_NAMED ? ", ..." : ""));
    free(names);
  }
}

static void add_unpaired(json_t *also, const struct compare_arm *const arms[2], size_t pairs) {
  for (int side = 0; side < 2; side++)
    if (pairs && arms[side]->run_count > pairs)
      add_line(also, b200_format("%s: %zu of %zu runs have no partner with losses on the other side and were not compared",
                                 side_names[side], arms[side]->run_count - pairs, arms[side]->run_count));
}

static json_t *verdict_part(enum loss_verdict verdict, char *says, json_t *also) {
  json_t *part = json_pack("{ss si ss so so}", "name", loss_verdict_names[verdict], "exit", loss_verdict_exit(verdict),
                           "tone", tones[verdict], "says", text_of(says), "also", also);
  free(says);
  return part;
}

static char *no_loss_says(const struct compare_arm *const arms[2]) {
  for (int side = 0; side < 2; side++)
    if (!arms[side]->run_count && arms[side]->note_count)
      return b200_format("there is nothing to compare; %s: %s", side_names[side],
                         arms[side]->notes[arms[side]->note_count - 1]);
  return b200_format("there are no losses on both sides");
}

/* A candidate whose loss is no number has failed whatever else differs; then comes what makes comparing meaningless. */
static json_t *make_verdict(const json_t *comparison, const struct compare_arm *const arms[2],
                            const struct loss_summary *summary, bool has_loss, const struct compare_failure *failures,
                            size_t failure_count) {
  const json_t *loss = json_object_get(comparison, "loss"), *pairs = json_object_get(loss, "pairs");
  const json_t *pair = json_array_get(pairs, summary->decisive);
  json_t *also = json_array();
  bool diverged = has_loss && summary->verdict == LOSS_DIVERGED;
  char *failed = compare_checks_failed(json_object_get(comparison, "checks"));
  enum loss_verdict verdict = has_loss ? summary->verdict : LOSS_INVALID;
  char *says = has_loss ? loss_says(comparison, summary, pair) : no_loss_says(arms);
  if (failure_count || failed) {
    char *line = failure_count
                     ? b200_format("%s of the %s ended with %s", failures[0].run, failures[0].side, failures[0].status)
                     : b200_format("%s", failed);
    char *first = diverged ? says : line, *second = diverged ? line : says;
    says = first;
    add_line(also, second);
    verdict = diverged ? verdict : LOSS_INVALID;
  }
  free(failed);
  add_pooled(also, arms);
  add_unpaired(also, arms, json_array_size(pairs));
  add_line(also, speed_says(json_object_get(comparison, "throughput")));
  const json_t *clock = json_array_get(json_object_get(json_object_get(comparison, "throughput"), "clocks"), 0);
  if (json_is_number(json_object_get(clock, "low")) && !json_is_true(json_object_get(clock, "run_is_unit")))
    add_line(also,
             b200_format("that interval is over steps: how much runs differ in speed is not in it, which takes %d runs "
                         "of each arm",
                         SPEED_RUNS));
  char *slowdown = slowdown_says(comparison);
  if (slowdown)
    add_line(also, slowdown);
  if (has_loss)
    add_loss_warnings(also, summary, loss, pair);
  return verdict_part(verdict, says, also);
}

/* ---- the whole */

static json_t *failures_part(const struct compare_failure *failures, size_t count) {
  json_t *rows = json_array();
  for (size_t i = 0; i < count; i++)
    json_array_append_new(rows, json_pack("{ss so so}", "side", failures[i].side, "run", text_of(failures[i].run), "status",
                                          text_of(failures[i].status)));
  return rows;
}

json_t *compare_make(const struct compare_arm *const arms[2], const char *const names[2],
                     const struct compare_settings *settings, const struct compare_failure *failures, size_t failure_count) {
  struct loss_summary summary = {.verdict = LOSS_INVALID};
  struct match first = {0};
  json_t *comparison = json_pack("{si ss sn}", "format", 1, "b200opt", B200_VERSION, "verdict");
  for (int side = 0; side < 2; side++)
    json_object_set_new(comparison, side_names[side], arm_part(arms[side], names[side]));
  json_t *throughput = compare_throughput(arms, settings->price_per_hour);
  json_object_set_new(comparison, "price_per_hour", compare_real(settings->price_per_hour));
  json_object_set_new(comparison, "failed", failures_part(failures, failure_count));
  json_object_set_new(comparison, "checks", compare_checks(arms));
  json_object_set_new(comparison, "loss", make_loss(arms, settings, &summary, &first));
  json_object_set_new(comparison, "throughput", throughput);
  json_object_set_new(comparison, "time_to_loss",
                      first.a ? compare_time_to_loss(first.a, first.b, throughput, settings->price_per_hour) : json_null());
  json_object_set_new(comparison, "communication", compare_communication(arms));
  json_object_set_new(comparison, "memory", compare_memory(arms));
  json_object_set_new(comparison, "gemms", compare_gemms(arms));
  json_object_set_new(comparison, "environment", compare_environment(arms));
  json_object_set_new(comparison, "notes", all_notes(arms));
  json_object_set_new(comparison, "verdict",
                      make_verdict(comparison, arms, &summary, first.a != NULL, failures, failure_count));
  return comparison;
}

int compare_exit(const json_t *comparison) {
  return (int)report_number(json_object_get(comparison, "verdict"), "exit");
}
