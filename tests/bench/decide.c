/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_decide    prints nanoseconds per b200_decide(), best of seven rounds, for several configurations, and what a
 * look-up in the breaker adds. Warm: the same few shapes over and over, as in training. Nothing is asserted.
 */
#include "policy/breaker.h"
#include "policy/plan.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CALLS 200000
#define SHAPES 24

static struct b200_breaker breaker;
static struct b200_facts facts[SHAPES];

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* A layer's forward, input-gradient and weight-gradient GEMMs at eight sizes. */
static void make_facts(void) {
  memset(facts, 0, sizeof(facts));
  for (int i = 0; i < SHAPES; i++) {
    struct b200_gemm *gemm = &facts[i].gemm;
    *gemm = (struct b200_gemm){.m = 4096 + 512 * (i / 3),
                               .n = 16384,
                               .k = 4096,
                               .batch = 1,
                               .role = (uint8_t)(i % 3),
                               .a = B200_ELEMENT_BF16,
                               .b = B200_ELEMENT_BF16,
                               .d = B200_ELEMENT_BF16,
                               .compute = B200_COMPUTE_F32,
                               .ta = i % 3 == 0 ? 'T' : 'N',
                               .tb = i % 3 == 2 ? 'T' : 'N'};
    facts[i].ldd = facts[i].ldc = gemm->m;
    facts[i].align_a = facts[i].align_b = facts[i].align_d = facts[i].align_c = 8;
  }
}

static void measure(const char *name, char *const *settings, bool with_breaker) {
  static struct b200_config config;
  static struct b200_policy policy;
  const struct b200_device device = {100, 148, 130100, "NVIDIA B200"};
  char complaint[256];
  double best = 1e30;
  unsigned converted = 0;
  b200_config_load_from(&config, settings);
  b200_policy_make(&policy, &config, &device, complaint, sizeof(complaint));
  for (int round = 0; round < 7; round++) {
    double begin = now_ns();
    for (int i = 0; i < CALLS; i++) {
      const struct b200_facts *call = &facts[i % SHAPES];
      b200_demoted demoted = with_breaker ? b200_breaker_look(&breaker, &call->gemm) : 0;
      converted += b200_decide(&policy, call, NULL, demoted).format != B200_FORMAT_NATIVE;
    }
    double each = (now_ns() - begin) / CALLS;
    best = each < best ? each : best;
  }
  printf("%-44s %7.1f ns, %5.1f %% converted\n", name, best, 100.0 * converted / (7.0 * CALLS));
}

int main(void) {
  static char rules[] = "B200OPT_RULES=out>=200000:native;role=wgrad,k<4096:native;h<100:native;m=1:native;n=1:native;"
                        "k=1:native;batch>1:native;*:inherit";
  make_facts();
  b200_breaker_make(&breaker, 3);
  for (int i = 0; i < SHAPES; i += 5)
    b200_breaker_fail(&breaker, &facts[i].gemm, B200_FORMAT_FP8, B200_OPEN_VENDOR);
  measure("observe", (char *[]){NULL}, false);
  measure("native", (char *[]){"B200OPT_PRECISION=native", NULL}, false);
  measure("mxfp8", (char *[]){"B200OPT_PRECISION=mxfp8", NULL}, false);
  measure("mxfp8, with the breaker", (char *[]){"B200OPT_PRECISION=mxfp8", NULL}, true);
  measure("auto", (char *[]){"B200OPT_PRECISION=auto", NULL}, false);
  measure("auto, 8 rules, with the breaker", (char *[]){"B200OPT_PRECISION=auto", rules, NULL}, true);
  return 0;
}
