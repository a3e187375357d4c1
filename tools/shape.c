/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/shape.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char shape_gpus[] = "b300, b200, h200, h100, l40s, a100, rtx_pro_6000";

static const struct {
  const char *part;
  int cc, sms;
} gpus[] = {{"b300", 103, 148}, {"b200", 100, 148}, {"h200", 90, 132},         {"h100", 90, 132},
            {"l40s", 89, 142},  {"a100", 80, 108},  {"rtx_pro_6000", 120, 188}};

/* Whether `part` is in `name`, in upper or lower case; blanks and underscores are alike. */
static bool names(const char *name, const char *part) {
  for (; *name; name++) {
    size_t i = 0;
    while (part[i] && (tolower((unsigned char)name[i]) == part[i] || (name[i] == ' ' && part[i] == '_')))
      i++;
    if (!part[i])
      return true;
  }
  return false;
}

struct b200_facts shape_facts(enum b200_role role, int64_t m, int64_t n, int64_t k) {
  struct b200_facts facts;
  memset(&facts, 0, sizeof(facts));
  facts.gemm.m = facts.ldc = facts.ldd = m;
  facts.gemm.n = n;
  facts.gemm.k = k;
  facts.gemm.batch = 1;
  facts.gemm.api = B200_API_GEMMEX;
  facts.gemm.role = (uint8_t)role;
  facts.gemm.a = facts.gemm.b = facts.gemm.d = facts.c = B200_ELEMENT_BF16;
  facts.gemm.compute = B200_COMPUTE_F32;
  facts.gemm.ta = role == B200_ROLE_FPROP ? 'T' : 'N';
  facts.gemm.tb = role == B200_ROLE_WGRAD ? 'T' : 'N';
  facts.lda = facts.gemm.ta == 'N' ? m : k;
  facts.ldb = facts.gemm.tb == 'N' ? k : n;
  facts.align_a = facts.align_b = facts.align_c = facts.align_d = facts.align_bias = 8;
  return facts;
}

/* Puts the index of `name` among `count` names into `out`. */
static bool name_index(const char *name, const char *const *names, int count, uint8_t *out) {
  for (int i = 0; i < count; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (uint8_t)i;
      return true;
    }
  return false;
}

bool shape_from_log(const struct b200_log_gemm *gemm, struct b200_facts *out) {
  *out = shape_facts(B200_ROLE_OTHER, gemm->m, gemm->n, gemm->k);
  struct b200_gemm *to = &out->gemm;
  to->batch = gemm->batch;
  to->ta = gemm->ta[0];
  to->tb = gemm->tb[0];
  bool known = name_index(gemm->api, b200_api_names, B200_API_COUNT, &to->api) &&
               name_index(gemm->role, b200_role_names, B200_ROLE_COUNT, &to->role) &&
               name_index(gemm->a, b200_element_names, B200_ELEMENT_COUNT, &to->a) &&
               name_index(gemm->b, b200_element_names, B200_ELEMENT_COUNT, &to->b) &&
               name_index(gemm->d, b200_element_names, B200_ELEMENT_COUNT, &to->d) &&
               name_index(gemm->compute, b200_compute_names, B200_COMPUTE_COUNT, &to->compute) &&
               name_index(gemm->epilogue, b200_epilogue_names, B200_EPILOGUE_COUNT, &to->epilogue);
  out->c = to->d;
  out->bias = to->d == B200_ELEMENT_F16 ? B200_ELEMENT_F16 : B200_ELEMENT_BF16;
  return known && gemm->m > 0 && gemm->n > 0 && gemm->k > 0 && gemm->batch > 0;
}

bool shape_device(const char *name, uint32_t cublaslt_version, struct b200_device *out) {
  memset(out, 0, sizeof(*out));
  for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++)
    if (names(name, gpus[i].part)) {
      out->cc = gpus[i].cc;
      out->sms = gpus[i].sms;
      out->cublaslt_version = cublaslt_version;
      for (size_t j = 0; j < sizeof(out->name) - 1 && name[j]; j++) /* as the driver writes it: b200 is B200 */
        out->name[j] = (char)(name[j] == '_' ? ' ' : toupper((unsigned char)name[j]));
      return true;
    }
  return false;
}
