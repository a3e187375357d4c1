/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of PyTorch and NCCL that are known to hurt a job's device memory (settings.def). Pure: what is asked comes in. */
#ifndef B200_LINT_SETTINGS_H
#define B200_LINT_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

enum settings_row {
#define B200_SETTING(name, text, source) SETTINGS_##name,
#include "tools/lint/settings.def"
#undef B200_SETTING
  SETTINGS_COUNT
};

struct settings_facts {
  const char *(*get)(const void *context, const char *name); /* a variable of the job; NULL: unset */
  const void *context;
  bool may_take_descriptors; /* a process may take file descriptors of others of its user, as pidfd_getfd asks */
  bool has_imex_channel;
};

/* What holds on this machine, into the last two members. */
void settings_ask_machine(struct settings_facts *facts);

/* Whether that row speaks of this job. */
bool settings_hurt(const struct settings_facts *facts, enum settings_row row);

const char *settings_text(enum settings_row row);
const char *settings_source(enum settings_row row);

#endif
