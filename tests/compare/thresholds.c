/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: thresholds FOLDER [-v]
 *
 * How far apart the classes of pairs lie that each fitted bound of tools/compare/loss.h divides, on the curves of a folder:
 * files KIND_SEED.csv with the columns step, loss and grad_norm, as in tests/data/curves and as own_curves.py makes them.
 * What a kind is follows from its name (`kinds`). -v prints every pair, too.
 *
 * The exit status is 1 when a bound does not divide its classes, or when a class that it needs has no curve.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "curves.h"
#include "tools/compare/loss.h"
#include "tools/compare/stats.h"

#define LEAST 200 /* steps, for the window and the early noise to be apart */

enum class { BASELINE, EQUAL, RECIPE, POOR, CONFIGURATION, OTHER_START, OTHER_DATA, BROKEN, CLASS_COUNT };
static const char *const class_names[CLASS_COUNT] = {"baseline",      "A/A",         "FP8 and MXFP8", "poor recipe",
                                                     "configuration", "other start", "other data",    "broken"};
#define BIT(class) (1u << (class))

/* By the beginning of the kind, or with _ of what follows the precision in it; the first row that fits. */
static const struct {
  const char *begins;
  enum class class;
} kinds[] = {
    {"neg_", BROKEN},       {"nvfp4", POOR},        {"_floor", POOR}, {"_perm", EQUAL},
    {"_thr", EQUAL},        {"_init", OTHER_START}, {"_in", EQUAL},   {"_data", OTHER_DATA},
    {"_lr", CONFIGURATION}, {"bf16", BASELINE},     {"fp8", RECIPE},  {"mxfp8", RECIPE},
};

struct entry {
  char *name, *kind;
  const char *seed; /* in `name` */
  enum class class;
  struct curve curve;
  struct loss_pair pair; /* against its reference; of a baseline against itself */
  const char *reference; /* NULL: there is none, or too few finite steps */
};

struct folder {
  struct entry *entries;
  size_t count;
};

static bool class_of(const char *kind, enum class *class) {
  const char *rest = strchr(kind, '_');
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    const char *begins = kinds[i].begins, *text = *begins == '_' ? rest : kind;
    if (text && strncmp(text, begins, strlen(begins)) == 0) {
      *class = kinds[i].class;
      return true;
    }
  }
  return false;
}

static void add_file(struct folder *folder, const char *path, const char *file) {
  size_t length = strlen(file);
  if (length < 5 || strcmp(file + length - 4, ".csv") != 0)
    return;
  char *name = b200_format("%.*s", (int)length - 4, file), *underscore = strrchr(name, '_');
  char *kind = b200_format("%.*s", underscore ? (int)(underscore - name) : 0, name);
  enum class class;
  if (!underscore || !class_of(kind, &class)) {
    printf("%s: not a kind that is known, left out\n", file);
    free(name);
    free(kind);
    return;
  }
  folder->entries = b200_grow(folder->entries, folder->count, sizeof(*folder->entries));
  folder->entries[folder->count++] =
      (struct entry){.name = name, .kind = kind, .seed = underscore + 1, .class = class, .curve = curve_read(path, name)};
}

static int by_name(const void *a, const void *b) {
  const struct entry *x = a, *y = b;
  return x->class != y->class ? (x->class > y->class) - (x->class < y->class) : strcmp(x->name, y->name);
}

static void measure(struct entry *entry, const struct entry *reference) {
  static const struct loss_settings settings = {.margin_percent = 1, .floor_percent = 0};
  struct loss_pair pair;
  loss_compare(reference->curve.points, reference->curve.count, entry->curve.points, entry->curve.count, &settings, &pair,
               NULL);
  if (isnan(pair.gap_percent) || pair.common < LEAST)
    return;
  if (entry->reference && pair.correlation_early <= entry->pair.correlation_early)
    return;
  entry->pair = pair;
  entry->reference = reference->name;
}

/* A/A: the same kind without what was varied. Another start: the baseline on the same data, whatever its seed is called.
   Else the baseline of the same seed. */
static bool is_reference(const struct entry *reference, const struct entry *entry) {
  bool same_seed = strcmp(reference->seed, entry->seed) == 0;
  if (entry->class == EQUAL) {
    size_t precision = strcspn(entry->kind, "_");
    return same_seed && strlen(reference->kind) == precision && strncmp(reference->kind, entry->kind, precision) == 0;
  }
  return strcmp(reference->kind, "bf16") == 0 && (same_seed || entry->class == OTHER_START);
}

static void read_folder(const char *path, struct folder *folder) {
  DIR *directory = opendir(path);
  if (!directory) {
    fprintf(stderr, "thresholds: %s: not a folder that can be read\n", path);
    exit(2);
  }
  for (struct dirent *file; (file = readdir(directory));)
    add_file(folder, path, file->d_name);
  closedir(directory);
  qsort(folder->entries, folder->count, sizeof(*folder->entries), by_name);
  for (size_t i = 0; i < folder->count; i++)
    for (size_t j = 0; j < folder->count; j++)
      if (is_reference(&folder->entries[j], &folder->entries[i]))
        measure(&folder->entries[i], &folder->entries[j]);
}

/* ---- what is measured of a pair */

static double noise(const struct loss_pair *pair) {
  return fmax(pair->correlation_early, pair->correlation_late);
}
static double start(const struct loss_pair *pair) {
  return pair->start_percent;
}
static double gap(const struct loss_pair *pair) {
  return pair->gap_percent;
}
static double above_best(const struct loss_pair *pair) {
  return pair->above_best_percent;
}

static const struct division {
  enum loss_threshold threshold;
  double (*measure)(const struct loss_pair *pair);
  unsigned below, above; /* classes on either side of the bound */
  bool all_above;        /* else it is enough that one of them is: not every broken run diverges */
} divisions[] = {
    {LOSS_T_SAME_DATA, noise, BIT(OTHER_DATA),
     BIT(EQUAL) | BIT(RECIPE) | BIT(POOR) | BIT(CONFIGURATION) | BIT(OTHER_START) | BIT(BROKEN), true},
    {LOSS_T_SAME_START, start, BIT(EQUAL) | BIT(RECIPE), BIT(CONFIGURATION) | BIT(OTHER_START) | BIT(BROKEN), true},
    {LOSS_T_FAR, gap, BIT(EQUAL) | BIT(RECIPE) | BIT(POOR) | BIT(CONFIGURATION) | BIT(OTHER_START), BIT(BROKEN), false},
    {LOSS_T_RISING, above_best, BIT(BASELINE) | BIT(EQUAL) | BIT(RECIPE) | BIT(POOR) | BIT(CONFIGURATION) | BIT(OTHER_START),
     BIT(BROKEN), false},
};

struct range {
  size_t count;
  double low, high;
  const char *lowest, *highest;
};

static struct range range_of(const struct folder *folder, unsigned classes,
                             double (*measured)(const struct loss_pair *pair)) {
  struct range range = {.low = INFINITY, .high = -INFINITY};
  for (size_t i = 0; i < folder->count; i++) {
    const struct entry *entry = &folder->entries[i];
    double value = entry->reference && (classes & BIT(entry->class)) ? measured(&entry->pair) : NAN;
    if (isnan(value))
      continue;
    range.count++;
    if (value < range.low)
      range.low = value, range.lowest = entry->name;
    if (value > range.high)
      range.high = value, range.highest = entry->name;
  }
  return range;
}

static bool print_division(const struct folder *folder, const struct division *division) {
  const struct loss_threshold_row *row = &loss_thresholds[division->threshold];
  printf("%s %g %s: %s\n", row->name, row->value, row->unit, row->divides);
  for (int class = 0; class < CLASS_COUNT; class ++) {
    struct range range = range_of(folder, BIT(class), division->measure);
    bool below = division->below & BIT(class), above = division->above & BIT(class);
    if (range.count && (below || above))
      printf("  %-5s %-14s %3zu  %9.4f (%s) ... %9.4f (%s)\n", below ? "below" : "above", class_names[class], range.count,
             range.low, range.lowest, range.high, range.highest);
  }
  struct range below = range_of(folder, division->below, division->measure);
  struct range above = range_of(folder, division->above, division->measure);
  double reached = division->all_above ? above.low : above.high;
  bool known = below.count && above.count, holds = known && below.high < row->value && row->value < reached;
  const char *unknown = known ? "cannot be said: all that trains is below, and no broken run got so far"
                              : "cannot be said: a class has no curves";
  bool crossed = known && (division->all_above || below.high >= row->value);
  printf("  %s\n", holds ? "holds" : crossed ? "DOES NOT HOLD" : unknown);
  return holds;
}

/* The floor is that of a precision: narrow formats turn a last bit into a step of their own, and drift further apart. */
static bool is_equal_pair(const struct entry *entry, const char *precision) {
  size_t length = strlen(precision);
  return entry->reference && entry->class == EQUAL && strncmp(entry->kind, precision, length) == 0 &&
         entry->kind[length] == '_';
}

/* Floor of the A/A pairs of a precision but for one of them, or of all when that is NULL. */
static double floor_without(const struct folder *folder, const char *precision, const struct entry *one) {
  double *gaps = b200_zeroed(folder->count, sizeof(*gaps));
  size_t count = 0;
  for (size_t i = 0; i < folder->count; i++)
    if (is_equal_pair(&folder->entries[i], precision) && &folder->entries[i] != one)
      gaps[count++] = folder->entries[i].pair.gap_percent;
  double floor = loss_floor(gaps, count);
  free(gaps);
  return floor;
}

/* How many A/A gaps lie within the half-width that the floor of the others gives. 90 % are meant to. */
static bool print_floor(const struct folder *folder) {
  static const char *const precisions[] = {"bf16", "fp8", "mxfp8"};
  const struct loss_threshold_row *row = &loss_thresholds[LOSS_T_FLOOR];
  size_t all = 0, all_covered = 0;
  printf("%s %g: %s\n", row->name, row->value, row->divides);
  for (size_t k = 0; k < sizeof(precisions) / sizeof(precisions[0]); k++) {
    size_t count = 0, covered = 0, within = 0;
    for (size_t i = 0; i < folder->count; i++) {
      const struct entry *entry = &folder->entries[i];
      double floor = is_equal_pair(entry, precisions[k]) ? floor_without(folder, precisions[k], entry) : NAN;
      if (isnan(floor))
        continue;
      count++;
      covered += fabs(entry->pair.gap_percent) <= hypot(entry->pair.error_percent, row->value * floor);
      within += fabs(entry->pair.gap_percent) <= entry->pair.error_percent;
    }
    if (count)
      printf("  %s: %zu of %zu A/A pairs within the half-width by the floor of the others, %zu without it; floor of all "
             "%.4f %%\n",
             precisions[k], covered, count, within, floor_without(folder, precisions[k], NULL));
    all += count, all_covered += covered;
  }
  double least = 0.9 * (double)all - 3 * sqrt(0.09 * (double)all); /* three standard errors of a share of 0.9 */
  bool holds = all && (double)all_covered >= least;
  printf("  %s\n", holds ? "holds" : all ? "DOES NOT HOLD" : "cannot be said: it takes three A/A pairs of a precision");
  return holds;
}

/* Gaps of equal runs grow by chance only: with 6 degrees of freedom 2 % of them beyond 3.1. */
static bool print_growth(const struct folder *folder) {
  const struct loss_threshold_row *row = &loss_thresholds[LOSS_T_GROWTH];
  size_t count = 0, beyond = 0;
  double largest = 0;
  for (size_t i = 0; i < folder->count; i++)
    if (folder->entries[i].reference && folder->entries[i].class == EQUAL) {
      double t = fabs(folder->entries[i].pair.slope_t);
      largest = fmax(largest, t);
      count++, beyond += t > row->value;
    }
  double chance = 2 * (1 - stats_t_probability(row->value, STATS_BLOCKS - 2));
  bool holds = count && (double)beyond <= 1 + 2 * chance * (double)count;
  printf("%s %g: %s\n", row->name, row->value, row->divides);
  printf("  %zu of %zu A/A pairs beyond it (by chance %.1f %%), the largest %.2f\n", beyond, count, 100 * chance, largest);
  printf("  %s\n", holds ? "holds" : count ? "DOES NOT HOLD" : "cannot be said: a class has no curves");
  return holds;
}

static void print_pairs(const struct folder *folder) {
  printf("%-20s %-14s %-10s %6s %9s %7s %7s %7s %8s %7s %7s\n", "curve", "class", "against", "steps", "gap %", "+- %",
         "early", "late", "start %", "above %", "slope t");
  for (size_t i = 0; i < folder->count; i++) {
    const struct entry *entry = &folder->entries[i];
    const struct loss_pair *p = &entry->pair;
    if (entry->reference)
      printf("%-20s %-14s %-10s %6zu %+9.3f %7.3f %7.3f %7.3f %8.4f %7.2f %+7.2f\n", entry->name, class_names[entry->class],
             entry->reference, p->common, p->gap_percent, p->error_percent, p->correlation_early, p->correlation_late,
             p->start_percent, p->above_best_percent, p->slope_t);
    else
      printf("%-20s %-14s no reference, or fewer than %d finite steps in common\n", entry->name, class_names[entry->class],
             LEAST);
  }
  printf("\n");
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: thresholds FOLDER [-v]\n");
    return 2;
  }
  struct folder folder = {0};
  read_folder(argv[1], &folder);
  if (argc > 2)
    print_pairs(&folder);
  size_t count = sizeof(divisions) / sizeof(divisions[0]) + 2, held = 0;
  for (size_t i = 0; i < count - 2; i++)
    held += print_division(&folder, &divisions[i]);
  held += print_floor(&folder);
  held += print_growth(&folder);
  printf("%zu passed, %zu failed\n", held, count - held);
  for (size_t i = 0; i < folder.count; i++) {
    free(folder.entries[i].name);
    free(folder.entries[i].kind);
    free(folder.entries[i].curve.points);
  }
  free(folder.entries);
  return held == count ? EXIT_SUCCESS : EXIT_FAILURE;
}
