/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching of parsed rules; parsing is b200_rules_parse() of plan.h. The grammar, in short (whole: `b200opt lint --help`):
 *
 *   rules = rule { (";" | newline) rule }      comments from # to the end of the line
 *   rule  = conditions ":" action              conditions = "*" | term { "," term }
 *   term  = key ("=" | "!=" | "<" | "<=" | ">" | ">=") value
 *
 * A term whose key has no meaning for a call (`in` of a call without a known role, `step` without a position) does not hold,
 * whatever it compares with. Pure; nothing allocates.
 */
#ifndef B200_POLICY_RULES_H
#define B200_POLICY_RULES_H

#include "policy/plan.h"

/* The first rule that holds, or NULL. `position` may be NULL. */
const struct b200_rule *b200_rules_match(const struct b200_rule *rules, int count, const struct b200_facts *facts,
                                         const struct b200_position *position);

/* Whether some rule asks for step, index or rank. */
bool b200_rules_positional(const struct b200_rule *rules, int count);
bool b200_rules_ask_index(const struct b200_rule *rules, int count);

/* The rule as text, in the grammar; cut to `size`. Returns `out`. */
const char *b200_rule_text(const struct b200_rule *rule, char *out, size_t size);

/* The rules of B200OPT_RULES, then those of B200OPT_RULES_FILE. False, no rule and one line that names the variable when one
   of them is wrong or the file cannot be read. Opens and reads the file. */
bool b200_rules_load(const struct b200_config *config, struct b200_rule *rules, int capacity, int *count, char *complaint,
                     size_t size);

#endif
