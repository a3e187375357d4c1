/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modelled times against published ones (published.csv): for each GPU, kind and source the median and the worst error,
 * each below a stated bound. Error: how much the longer of the two times exceeds the shorter, so that 2x and 0.5x weigh the
 * same. Prints a line per group; groups marked "held" had no part in fitting the constants.
 */
#include <math.h>

#include "model.h"
#include "vnode_test.h"

/* What the model is held to, in percent. Whoever adds published times states a bound for them. */
static const struct bound {
  const char *gpu, *kind, *what, *source;
  bool held;
  double median, worst;
} bounds[] = {
#define BOUND(gpu, kind, what, source, held, median, worst) {#gpu, #kind, what, source, held, median, worst},
#include "bounds.def"
};

enum { BOUNDS = sizeof bounds / sizeof *bounds, POINTS = 400 };

struct point {
  char kind[16], gpu[8], what[16], source[16];
  long long a, b, c, d;
  double us;
  int held;
};

static struct group {
  int count;
  double error[POINTS];
  char worst[96];
} groups[BOUNDS];

static int64_t model_copy_ns(const char *what, uint64_t bytes) {
  enum vnode_copy_kind kind = !strcmp(what, "h2d")   ? VNODE_COPY_HOST_TO_DEVICE
                              : !strcmp(what, "d2h") ? VNODE_COPY_DEVICE_TO_HOST
                              : !strcmp(what, "p2p") ? VNODE_COPY_BETWEEN_DEVICES
                                                     : VNODE_COPY_WITHIN_DEVICE;
  return vnode_model_copy_ns(kind, bytes, true);
}

/* Forward and backward: backward does 5 matrix products to forward's 2. */
static int64_t model_attention_ns(const char *what, double flops) {
  if (!strcmp(what, "both"))
    return vnode_model_attention_ns(flops / 3.5, 0, false) + vnode_model_attention_ns(flops / 3.5 * 2.5, 0, true);
  return vnode_model_attention_ns(flops, 0, !strcmp(what, "backward"));
}

static int64_t model_ns(const struct point *p) {
  int d_bytes = !strcmp(p->what, "tf32") ? 4 : 2;
  if (!strcmp(p->kind, "gemm"))
    return vnode_model_gemm_ns(p->b, p->c, p->d, p->a, p->what, d_bytes);
  if (!strcmp(p->kind, "layer"))
    return vnode_model_gemm_ns(3 * p->c, p->b, p->c, 1, p->what, 2) + vnode_model_gemm_ns(p->c, p->b, p->c, 1, p->what, 2) +
           vnode_model_gemm_ns(p->d, p->b, p->c, 1, p->what, 2) + vnode_model_gemm_ns(p->c, p->b, p->d, 1, p->what, 2);
  if (!strcmp(p->kind, "coll"))
    return vnode_model_collective_ns(p->what, (int)p->a, (uint64_t)p->b);
  if (!strcmp(p->kind, "attention"))
    return model_attention_ns(p->what, (double)p->a);
  if (!strcmp(p->kind, "kernel"))
    return vnode_model_kernel_ns((uint64_t)p->a);
  return model_copy_ns(p->what, (uint64_t)p->a);
}

static int group_of(const struct point *p) {
  for (int i = 0; i < BOUNDS; i++)
    if (!strcmp(bounds[i].gpu, p->gpu) && !strcmp(bounds[i].kind, p->kind) && !strcmp(bounds[i].source, p->source) &&
        bounds[i].held == p->held && (!*bounds[i].what || !strcmp(bounds[i].what, p->what)))
      return i;
  ck_abort_msg("no bound for %s %s %s %s held %d", p->gpu, p->kind, p->what, p->source, p->held);
}

static void judge(const struct point *p) {
  struct group *group = &groups[group_of(p)];
  double ns = (double)model_ns(p), published = p->us * 1000, ratio = ns / published;
  double error = 100 * (fmax(ratio, 1 / ratio) - 1), worst = 0;
  ck_assert_msg(ns > 0 && published > 0, "%s %s: %g ns, published %g", p->gpu, p->what, ns, published);
  for (int i = 0; i < group->count; i++)
    worst = fmax(worst, group->error[i]);
  if (error >= worst)
    snprintf(group->worst, sizeof group->worst, "%s %lld %lld %lld %lld: %.1f us, published %.1f", p->what, p->a, p->b, p->c,
             p->d, ns / 1000, p->us);
  ck_assert_int_lt(group->count, POINTS);
  group->error[group->count++] = error;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static const char *const gpus[] = {"b200", "b300", "h200", "h100", "a100"};

START_TEST(published_times) {
  const char *gpu = gpus[_i];
  setenv("B200OPT_VNODE_GPU", gpu, 1);
  FILE *file = fopen(PUBLISHED, "r");
  ck_assert_ptr_nonnull(file);
  char line[256];
  while (fgets(line, sizeof line, file)) {
    struct point p;
    if (*line == '#')
      continue;
    ck_assert_int_eq(sscanf(line, "%15[^,],%7[^,],%15[^,],%lld,%lld,%lld,%lld,%lf,%d,%15s", p.kind, p.gpu, p.what, &p.a,
                            &p.b, &p.c, &p.d, &p.us, &p.held, p.source),
                     10);
    if (!strcmp(p.gpu, gpu))
      judge(&p);
  }
  fclose(file);
  bool good = true;
  for (int i = 0; i < BOUNDS; i++) {
    struct group *group = &groups[i];
    if (strcmp(bounds[i].gpu, gpu))
      continue;
    ck_assert_msg(group->count > 0, "a bound without times: row %d of bounds.def", i + 1);
    qsort(group->error, (size_t)group->count, sizeof *group->error, by_value);
    double median = (group->error[(group->count - 1) / 2] + group->error[group->count / 2]) / 2;
    double worst = group->error[group->count - 1];
    bool within = median <= bounds[i].median && worst <= bounds[i].worst;
    printf("%s %-4s %-9s %-13s %-11s %s %3d times, median %5.1f %%, worst %5.1f %% (%s)%s\n", within ? " " : "!", gpu,
           bounds[i].kind, *bounds[i].what ? bounds[i].what : "all", bounds[i].source, bounds[i].held ? "held" : "fit ",
           group->count, median, worst, group->worst, within ? "" : " ABOVE ITS BOUND");
    good &= within;
  }
  fflush(stdout);
  ck_assert_msg(good, "%s: errors above their bounds, marked with ! above", gpu);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("published");
  TCase *cases = tcase_create("published");
  tcase_add_checked_fixture(cases, own_session, NULL);
  tcase_add_loop_test(cases, published_times, 0, sizeof gpus / sizeof *gpus);
  suite_add_tcase(suite, cases);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
