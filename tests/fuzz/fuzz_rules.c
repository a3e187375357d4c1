/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes give rules or one line of ASCII with a column; rules that were taken say themselves, and mean the same then. */
#include "policy/rules.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_complaint(const char *complaint) {
  if (!strstr(complaint, "column "))
    abort();
  for (const char *at = complaint; *at; at++)
    if (*at < ' ' || *at > '~')
      abort();
}

static void check_rule(const struct b200_rule *rule) {
  struct b200_rule again;
  struct b200_facts facts;
  char text[512], complaint[384];
  int count;
  b200_rule_text(rule, text, sizeof(text));
  if (!b200_rules_parse(text, &again, 1, &count, complaint, sizeof(complaint)) || count != 1 ||
      memcmp(&again, rule, sizeof(again)) != 0)
    abort();
  memset(&facts, 0x41, sizeof(facts));
  facts.gemm.role %= B200_ROLE_COUNT;
  b200_rules_match(rule, 1, &facts, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct b200_rule rules[B200_RULES_MAX];
  char complaint[384] = "";
  int count;
  char *text = malloc(size + 1);
  if (!text)
    abort();
  if (size)
    memcpy(text, data, size);
  text[size] = '\0';
  if (b200_rules_parse(text, rules, B200_RULES_MAX, &count, complaint, sizeof(complaint))) {
    for (int i = 0; i < count; i++)
      check_rule(&rules[i]);
    if (complaint[0])
      abort();
  } else {
    check_complaint(complaint);
    if (count)
      abort();
  }
  free(text);
  return 0;
}
