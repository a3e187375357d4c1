/* SPDX-License-Identifier: Apache-2.0 */
/* The node's configuration: the only file of the node that reads the environment. Rows: policy/env.def, scope NODE. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum env_type { CHOICE, INT, TEXT, PATH, FLAG };
enum env_scope { JOB, NODE };

struct env_row {
  enum env_scope scope;
  enum env_type type;
  const char *name, *fallback, *accepted, *unit;
};

static const struct env_row rows[] = {
#define B200_ENV(env_scope_, env_type_, field, env_name, default_text, accepted_values, unit_text, help)                    \
  {.scope = env_scope_,                                                                                                     \
   .type = env_type_,                                                                                                       \
   .name = #env_name,                                                                                                       \
   .fallback = default_text,                                                                                                \
   .accepted = accepted_values,                                                                                             \
   .unit = unit_text},
#include "policy/env.def"
#undef B200_ENV
};

static struct vnode_config config;
static char session_name[96];
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

static bool is_choice(const char *value, const char *accepted) {
  size_t length = strlen(value);
  for (const char *at = accepted; length && at; at = strchr(at, '|')) {
    at += *at == '|';
    if (!strncmp(at, value, length) && (at[length] == '|' || !at[length]))
      return true;
  }
  return false;
}

static bool is_int_within(const char *value, const char *accepted) {
  char *end;
  long long low = strtoll(accepted, &end, 10), high = strtoll(end + 2, NULL, 10);
  errno = 0;
  long long number = strtoll(value, &end, 10);
  return *value && !*end && !errno && number >= low && number <= high;
}

static const char *value_of(const char *name) {
  const struct env_row *row = rows;
  while (strcmp(row->name, name))
    row++;
  const char *value = getenv(name);
  if (!value || !*value)
    return row->fallback;
  bool good = row->type == CHOICE || row->type == FLAG ? is_choice(value, row->accepted)
              : row->type == INT                       ? is_int_within(value, row->accepted)
                                                       : true;
  if (good)
    return value;
  vnode_say("%s=%s is not accepted; use %s%s%s; now %s", name, value, row->accepted, *row->unit ? " " : "", row->unit,
            *row->fallback ? row->fallback : "unset");
  return row->fallback;
}

static const char *text_of(const char *name) {
  const char *value = value_of(name);
  return *value ? value : NULL;
}

/* RANK and WORLD_SIZE are the launcher's: absent or odd values mean "no rank", without a complaint. */
static int launcher_number(const char *name) {
  const char *value = getenv(name);
  return value && is_int_within(value, "0..1000000") ? atoi(value) : -1;
}

/* Ranks that one launcher started agree on its pid and start time, and no later launcher has both. */
static const char *default_session(void) {
  snprintf(session_name, sizeof session_name, "%ld-%llu", (long)getppid(),
           (unsigned long long)vnode_process_start(getppid()));
  return session_name;
}

static void read_config(void) {
  config.gpu = value_of("B200OPT_VNODE_GPU");
  config.device_count = atoi(value_of("B200OPT_VNODE_GPUS"));
  config.memory_bytes = strtoull(value_of("B200OPT_VNODE_MEMORY_GB"), NULL, 10) << 30;
  config.unhandled_fatal = !strcmp(value_of("B200OPT_VNODE_UNHANDLED"), "fatal");
  config.session = text_of("B200OPT_VNODE_SESSION");
  if (!config.session)
    config.session = default_session();
  config.log_dir = text_of("B200OPT_VNODE_LOG_DIR");
  config.aten_dir = text_of("B200OPT_VNODE_ATEN_DIR");
  const char *order = value_of("B200OPT_VNODE_ORDER");
  config.order = !strcmp(order, "eager")      ? VNODE_ORDER_EAGER
                 : !strcmp(order, "deferred") ? VNODE_ORDER_DEFERRED
                                              : VNODE_ORDER_ADVERSARIAL;
  config.seed = strtoull(value_of("B200OPT_VNODE_SEED"), NULL, 10);
  config.gemms_skipped = !strcmp(value_of("B200OPT_VNODE_KERNELS"), "none");
  config.kernels_skipped = config.gemms_skipped || !strcmp(value_of("B200OPT_VNODE_KERNELS"), "skip");
  config.fault = text_of("B200OPT_VNODE_FAULT");
  config.trace = text_of("B200OPT_VNODE_TRACE");
  config.rank = launcher_number("RANK");
  config.world = launcher_number("WORLD_SIZE");
}

const struct vnode_config *vnode_config(void) {
  pthread_once(&config_once, read_config);
  return &config;
}
