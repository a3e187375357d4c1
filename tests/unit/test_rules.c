/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/rules.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define RULES_MAX 4

static struct b200_rule rules[RULES_MAX];
static int count;
static char complaint[384];

static bool parse(const char *text) {
  return b200_rules_parse(text, rules, RULES_MAX, &count, complaint, sizeof(complaint));
}

static struct b200_facts facts_of(enum b200_role role, int64_t m, int64_t n, int64_t k) {
  struct b200_facts facts;
  memset(&facts, 0, sizeof(facts));
  facts.gemm = (struct b200_gemm){.m = m,
                                  .n = n,
                                  .k = k,
                                  .batch = 1,
                                  .role = (uint8_t)role,
                                  .api = B200_API_GEMMEX,
                                  .a = B200_ELEMENT_BF16,
                                  .b = B200_ELEMENT_BF16,
                                  .d = B200_ELEMENT_BF16};
  return facts;
}

static const struct {
  const char *text;
  int count;
  const char *first; /* the first rule, as text */
} good[] = {
    {"", 0, NULL},
    {" ;; \n ; # nothing", 0, NULL},
    {"*:native", 1, "*:native"},
    {"*:bf16", 1, "*:native"},
    {" * : auto ;", 1, "*:auto"},
    {"out>=32000:bf16; role=wgrad,k<4096:native; h>=1500:mxfp8; *:inherit", 4, "out>=32000:native"},
    {"role != dgrad , bias = yes : fp8", 1, "role!=dgrad,bias=yes:fp8"},
    {"m=1,n!=2,k<3,batch<=4,in>5,tokens>=6,step<7,rank=8:inherit", 1,
     "m=1,n!=2,k<3,batch<=4,in>5,tokens>=6,step<7,rank=8:inherit"},
    {"api=strided:fp8\n\tdtype!=f16,index>=9223372036854775807:auto # last", 2, "api=strided:fp8"},
    {"# comment; *:fp8\r\n*:mxfp8\r\n", 1, "*:mxfp8"},
};

START_TEST(takes_the_grammar) {
  char text[160];
  ck_assert_msg(parse(good[_i].text), "%s", complaint);
  ck_assert_str_eq(complaint, "");
  ck_assert_int_eq(count, good[_i].count);
  if (good[_i].first)
    ck_assert_str_eq(b200_rule_text(&rules[0], text, sizeof(text)), good[_i].first);
}
END_TEST

static const struct {
  const char *text, *complaint;
} bad[] = {
    {"nonsense", "column 1: 'nonsense' is not a term (accepted: role m n k batch in out tokens h dtype bias step rank api "
                 "index, or * alone)"},
    {"k", "column 2: '' after k is not a comparison (accepted: = != < <= > >=)"},
    {"k<", "column 3: '' is not a number for k (accepted: 0..9223372036854775807)"},
    {"k<x:fp8", "column 3: 'x' is not a number for k (accepted: 0..9223372036854775807)"},
    {"k<-1:fp8", "column 3: '-1' is not a number for k (accepted: 0..9223372036854775807)"},
    {"k<9223372036854775808:fp8",
     "column 3: '9223372036854775808' is not a number for k (accepted: 0..9223372036854775807)"},
    {"k==4:fp8", "column 3: '=' is not a number for k (accepted: 0..9223372036854775807)"},
    {"role<fprop:fp8", "column 5: '<' does not fit role (accepted: = !=)"},
    {"role=up:fp8", "column 6: 'up' is not a value of role (accepted: fprop, dgrad, wgrad, batched, other)"},
    {"bias=1:fp8", "column 6: '1' is not a value of bias (accepted: no, yes)"},
    {"k<4", "column 4: '' where : and an action are due"},
    {"k<4 fp8", "column 5: 'fp8' where : and an action are due"},
    {"k<4:", "column 5: '' is not an action (accepted: native, bf16, fp8, mxfp8, auto, inherit)"},
    {"*:fp16", "column 3: 'fp16' is not an action (accepted: native, bf16, fp8, mxfp8, auto, inherit)"},
    {"*:nvfp4", "column 3: 'nvfp4' is not an action in this version (accepted: native, bf16, fp8, mxfp8, auto, inherit)"},
    {"*:fp8 *:fp8", "column 7: '*' after a rule (accepted: ; or a new line)"},
    {"*,k<4:fp8", "column 2: ',' where : and an action are due"},
    {"k<4,:fp8", "column 5: ':' is not a term (accepted: role m n k batch in out tokens h dtype bias step rank api index, "
                 "or * alone)"},
    {"*:fp8\n\n k<4,,", "line 3, column 6: ',' is not a term (accepted: role m n k batch in out tokens h dtype bias step "
                        "rank api index, or * alone)"},
    {"*:fp8;*:fp8;*:fp8;*:fp8;  *:fp8", "column 27: more than 4 rules"},
    {"k<1,k<1,k<1,k<1,k<1,k<1,k<1,k<1,k<1:fp8", "column 33: more than 8 terms in one rule"},
    {"\xc3\xa9:fp8", "column 1: '?\?' is not a term (accepted: role m n k batch in out tokens h dtype bias step rank api "
                     "index, or * alone)"},
};

START_TEST(says_what_is_wrong_and_where) {
  ck_assert(!parse(bad[_i].text));
  ck_assert_str_eq(complaint, bad[_i].complaint);
  ck_assert_int_eq(count, 0);
}
END_TEST

/* Each comparison, on each side of its bound. */
START_TEST(compares) {
  static const struct {
    const char *text;
    bool below, at, above; /* for k = 99, 100, 101 */
  } cases[] = {
      {"k=100:fp8", false, true, false}, {"k!=100:fp8", true, false, true}, {"k<100:fp8", true, false, false},
      {"k<=100:fp8", true, true, false}, {"k>100:fp8", false, false, true}, {"k>=100:fp8", false, true, true},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    bool expected[] = {cases[i].below, cases[i].at, cases[i].above};
    ck_assert(parse(cases[i].text));
    for (int64_t k = 99; k <= 101; k++) {
      struct b200_facts facts = facts_of(B200_ROLE_FPROP, 8, 8, k);
      ck_assert_msg((b200_rules_match(rules, count, &facts, NULL) != NULL) == expected[k - 99], "%s", cases[i].text);
    }
  }
}
END_TEST

/* Each key against a call for which it holds. */
START_TEST(reads_every_key) {
  static const struct {
    const char *text;
    enum b200_role role;
    bool holds;
  } cases[] = {
      {"m=16:fp8", B200_ROLE_FPROP, true},
      {"n=32:fp8", B200_ROLE_FPROP, true},
      {"k=64:fp8", B200_ROLE_FPROP, true},
      {"batch=1:fp8", B200_ROLE_FPROP, true},
      {"batch!=1:fp8", B200_ROLE_FPROP, false},
      {"role=fprop:fp8", B200_ROLE_FPROP, true},
      {"role!=fprop:fp8", B200_ROLE_FPROP, false},
      {"in=64,out=16,tokens=32:fp8", B200_ROLE_FPROP, true},
      {"in=16,out=64,tokens=32:fp8", B200_ROLE_DGRAD, true},
      {"in=16,out=32,tokens=64:fp8", B200_ROLE_WGRAD, true},
      {"in!=1:fp8", B200_ROLE_OTHER, false},
      {"tokens>=0:fp8", B200_ROLE_BATCHED, false},
      {"h>10:fp8", B200_ROLE_FPROP, true}, /* 16·32/48 = 10.67 */
      {"h>=11:fp8", B200_ROLE_FPROP, false},
      {"h!=10:fp8", B200_ROLE_FPROP, true},
      {"dtype=bf16:fp8", B200_ROLE_FPROP, true},
      {"dtype=f16:fp8", B200_ROLE_FPROP, false},
      {"bias=yes:fp8", B200_ROLE_FPROP, true},
      {"bias=no:fp8", B200_ROLE_FPROP, false},
      {"api=lt:fp8", B200_ROLE_FPROP, true},
      {"step=5:fp8", B200_ROLE_FPROP, true},
      {"rank=2:fp8", B200_ROLE_FPROP, true},
      {"index=7:fp8", B200_ROLE_FPROP, true},
      {"index=8:fp8", B200_ROLE_FPROP, false},
  };
  struct b200_position position = {.step = 5, .index = 7, .rank = 2, .world = 4};
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct b200_facts facts = facts_of(cases[i].role, 16, 32, 64);
    facts.gemm.epilogue = B200_EPILOGUE_GELU_BIAS;
    facts.gemm.api = B200_API_LT;
    ck_assert_msg(parse(cases[i].text), "%s", complaint);
    ck_assert_msg((b200_rules_match(rules, count, &facts, &position) != NULL) == cases[i].holds, "%s", cases[i].text);
  }
}
END_TEST

/* m·n/(m+n) is compared exactly: 30·60/90 = 20. */
START_TEST(h_has_its_bounds) {
  struct b200_facts facts = facts_of(B200_ROLE_FPROP, 30, 60, 16);
  ck_assert(parse("h=20:fp8"));
  ck_assert_ptr_nonnull(b200_rules_match(rules, count, &facts, NULL));
  ck_assert(parse("h>20:fp8;h<20:fp8;h!=20:fp8"));
  ck_assert_ptr_null(b200_rules_match(rules, count, &facts, NULL));
}
END_TEST

START_TEST(the_first_match_wins) {
  struct b200_facts facts = facts_of(B200_ROLE_WGRAD, 16, 16, 16);
  ck_assert(parse("role=fprop:fp8; k<17:mxfp8; *:native; *:auto"));
  ck_assert_int_eq(b200_rules_match(rules, count, &facts, NULL)->action, B200_ACTION_MXFP8);
  facts.gemm.k = 17;
  ck_assert_int_eq(b200_rules_match(rules, count, &facts, NULL)->action, B200_ACTION_NATIVE);
  ck_assert(parse("role=fprop:fp8"));
  ck_assert_ptr_null(b200_rules_match(rules, count, &facts, NULL));
}
END_TEST

START_TEST(positional_rules_are_known) {
  ck_assert(parse("k<4,step<2:fp8") && b200_rules_positional(rules, count));
  ck_assert(parse("*:fp8;rank=0:native") && b200_rules_positional(rules, count));
  ck_assert(parse("index=1:native") && b200_rules_positional(rules, count));
  ck_assert(parse("k<4,tokens<2:fp8;*:auto") && !b200_rules_positional(rules, count));
}
END_TEST

static bool load(const char *variable, const char *file_text) {
  static char path[] = "rules-XXXXXX";
  struct b200_config config;
  char setting[2][128];
  strcpy(path, "rules-XXXXXX");
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  ck_assert_int_eq(write(file, file_text, strlen(file_text)), (ssize_t)strlen(file_text));
  close(file);
  snprintf(setting[0], sizeof(setting[0]), "B200OPT_RULES=%s", variable);
  snprintf(setting[1], sizeof(setting[1]), "B200OPT_RULES_FILE=%s", path);
  b200_config_load_from(&config, (char *[]){setting[0], setting[1], NULL});
  bool loaded = b200_rules_load(&config, rules, RULES_MAX, &count, complaint, sizeof(complaint));
  unlink(path);
  return loaded;
}

START_TEST(the_file_follows_the_variable) {
  char text[64];
  ck_assert(load("k<4:fp8", "# first and last\nindex=0:native\nindex>=30:native; *:mxfp8\n"));
  ck_assert_int_eq(count, 4);
  ck_assert_str_eq(b200_rule_text(&rules[0], text, sizeof(text)), "k<4:fp8");
  ck_assert_str_eq(b200_rule_text(&rules[3], text, sizeof(text)), "*:mxfp8");
  ck_assert(!load("k<4:fp8", "*:native\n k<:native\n"));
  ck_assert_ptr_nonnull(strstr(complaint, "line 2, column 4: ':' is not a number for k"));
  ck_assert_int_eq(strncmp(complaint, "B200OPT_RULES_FILE: 'rules-", 27), 0);
  ck_assert_int_eq(count, 0);
  ck_assert(!load("k<4:fp8;k<5:fp8", "*:fp8\n*:fp8\n*:fp8"));
}
END_TEST

START_TEST(a_missing_file_is_said) {
  static char huge[20000];
  struct b200_config config;
  b200_config_load_from(&config, (char *[]){"B200OPT_RULES=*:fp8", "B200OPT_RULES_FILE=/does/not/exist", NULL});
  ck_assert(!b200_rules_load(&config, rules, RULES_MAX, &count, complaint, sizeof(complaint)));
  ck_assert_str_eq(complaint, "B200OPT_RULES_FILE: '/does/not/exist': it cannot be opened; no rule is in place");
  ck_assert_int_eq(count, 0);
  b200_config_load_from(&config, (char *[]){"B200OPT_RULES_FILE=/", NULL});
  ck_assert(!b200_rules_load(&config, rules, RULES_MAX, &count, complaint, sizeof(complaint)));
  ck_assert_str_eq(complaint, "B200OPT_RULES_FILE: '/': it is not a regular file; no rule is in place");
  memset(huge, '#', sizeof(huge) - 1);
  ck_assert(!load("", huge));
  ck_assert_ptr_nonnull(strstr(complaint, "it is longer than 16383 bytes"));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("rules");
  TCase *tests = tcase_create("all");
  tcase_add_loop_test(tests, takes_the_grammar, 0, COUNT(good));
  tcase_add_loop_test(tests, says_what_is_wrong_and_where, 0, COUNT(bad));
  tcase_add_test(tests, compares);
  tcase_add_test(tests, reads_every_key);
  tcase_add_test(tests, h_has_its_bounds);
  tcase_add_test(tests, the_first_match_wins);
  tcase_add_test(tests, positional_rules_are_known);
  tcase_add_test(tests, the_file_follows_the_variable);
  tcase_add_test(tests, a_missing_file_is_said);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
