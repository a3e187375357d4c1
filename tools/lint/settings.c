/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lint/settings.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CAP_SYS_PTRACE_BIT 19

static const struct {
  const char *text, *source;
} rows[] = {
#define B200_SETTING(name, text, source) {text, source},
#include "tools/lint/settings.def"
#undef B200_SETTING
};

const char *settings_text(enum settings_row row) {
  return rows[row].text;
}

const char *settings_source(enum settings_row row) {
  return rows[row].source;
}

/* ---- variables */

static const char *variable(const struct settings_facts *facts, const char *name) {
  const char *value = facts->get(facts->context, name);
  return value && *value ? value : NULL;
}

static bool is(const char *value, const char *expected) {
  return value && strcasecmp(value, expected) == 0;
}

static const char *allocator(const struct settings_facts *facts) {
  const char *value = variable(facts, "PYTORCH_ALLOC_CONF");
  return value ? value : variable(facts, "PYTORCH_CUDA_ALLOC_CONF");
}

/* The value of `name:value` in a list like "a:1,b:[256:1,512:2],c:2" into `out`; false: it is not there. Blanks do not
 * count. */
static bool option(const struct settings_facts *facts, const char *name, char out[64]) {
  const char *text = allocator(facts);
  size_t length = strlen(name), used = 0;
  int depth = 0;
  for (bool fresh = true; text && *text; text++) {
    if (isspace((unsigned char)*text))
      continue;
    if (fresh && depth == 0 && strncmp(text, name, length) == 0) {
      const char *value = text + length + strspn(text + length, " \t");
      if (*value == ':') {
        for (value++; *value && *value != ',' && used < 63; value++)
          if (!isspace((unsigned char)*value))
            out[used++] = *value;
        out[used] = '\0';
        return true;
      }
    }
    depth += (*text == '[') - (*text == ']');
    fresh = *text == ',';
  }
  return false;
}

static bool has(const struct settings_facts *facts, const char *name) {
  char value[64];
  return option(facts, name, value);
}

static bool has_value(const struct settings_facts *facts, const char *name, const char *expected) {
  char value[64];
  return option(facts, name, value) && is(value, expected);
}

static bool is_async(const struct settings_facts *facts) {
  return has_value(facts, "backend", "cudaMallocAsync");
}

static bool is_expandable(const struct settings_facts *facts) {
  return has_value(facts, "expandable_segments", "True") && !is_async(facts);
}

/* As PyTorch reads its switches. */
static bool is_on(const char *value) {
  return is(value, "1") || is(value, "true") || is(value, "yes") || is(value, "y") || is(value, "on") || is(value, "t");
}

/* ---- conditions, one for each row */

static bool hurts_expandable_and_split(const struct settings_facts *facts) {
  return is_expandable(facts) && has(facts, "max_split_size_mb");
}

static bool hurts_expandable_and_gc(const struct settings_facts *facts) {
  return is_expandable(facts) && has(facts, "garbage_collection_threshold");
}

static bool hurts_expandable_ipc_ptrace(const struct settings_facts *facts) {
  const char *ipc = variable(facts, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC");
  return is_expandable(facts) && !facts->may_take_descriptors && !(ipc && !is_on(ipc)) &&
         !has_value(facts, "expandable_segments_handle_type", "fabric");
}

static bool hurts_expandable_and_register(const struct settings_facts *facts) {
  return is_expandable(facts) && is_on(variable(facts, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"));
}

static bool hurts_fabric_without_imex(const struct settings_facts *facts) {
  return has_value(facts, "expandable_segments_handle_type", "fabric") && is_expandable(facts) && !facts->has_imex_channel;
}

static bool hurts_handle_type_alone(const struct settings_facts *facts) {
  return has(facts, "expandable_segments_handle_type") && !is_expandable(facts);
}

static bool hurts_cumem_off(const struct settings_facts *facts) {
  return is(variable(facts, "NCCL_CUMEM_ENABLE"), "0") && !is(variable(facts, "NCCL_NVLS_ENABLE"), "1");
}

static bool hurts_nvls_without_cumem(const struct settings_facts *facts) {
  return is(variable(facts, "NCCL_CUMEM_ENABLE"), "0") && is(variable(facts, "NCCL_NVLS_ENABLE"), "1");
}

static bool hurts_async_ignores(const struct settings_facts *facts) {
  return is_async(facts) && (has(facts, "max_split_size_mb") || has(facts, "garbage_collection_threshold") ||
                             has(facts, "roundup_power2_divisions") || has_value(facts, "expandable_segments", "True"));
}

static bool hurts_async_limits(const struct settings_facts *facts) {
  return is_async(facts);
}

/* Any value does, also an empty one: PyTorch asks whether it is set. */
static bool hurts_no_caching(const struct settings_facts *facts) {
  return facts->get(facts->context, "PYTORCH_NO_CUDA_MEMORY_CACHING") != NULL;
}

static bool hurts_split_too_small(const struct settings_facts *facts) {
  char value[64];
  return option(facts, "max_split_size_mb", value) && strtol(value, NULL, 10) <= 20;
}

static bool hurts_two_names(const struct settings_facts *facts) {
  const char *now = variable(facts, "PYTORCH_ALLOC_CONF"), *before = variable(facts, "PYTORCH_CUDA_ALLOC_CONF");
  return now && before && strcmp(now, before) != 0;
}

static bool hurts_reserve_without_pool(const struct settings_facts *facts) {
  const char *reserve = variable(facts, "B200OPT_MEMORY_RESERVE_MB"), *fill = variable(facts, "B200OPT_MEMORY_FILL");
  bool asks = (reserve && strtol(reserve, NULL, 10) > 0) || (fill && !is(fill, "off"));
  return asks && !is(variable(facts, "B200OPT_MEMORY"), "pool");
}

bool settings_hurt(const struct settings_facts *facts, enum settings_row row) {
  static bool (*const conditions[])(const struct settings_facts *) = {
#define B200_SETTING(name, text, source) hurts_##name,
#include "tools/lint/settings.def"
#undef B200_SETTING
  };
  return conditions[row](facts);
}

/* ---- the machine */

static bool has_capability(unsigned bit) {
  char line[256];
  uint64_t effective = 0;
  FILE *file = fopen("/proc/self/status", "re");
  while (file && fgets(line, sizeof(line), file))
    if (sscanf(line, "CapEff: %" SCNx64, &effective) == 1)
      break;
  if (file)
    fclose(file);
  return effective >> bit & 1;
}

/* Ranks are no descendants of each other, which is what Yama's first level allows. Without Yama, and outside of containers'
   filters, the same user is enough. */
static bool may_take_descriptors(void) {
  int scope = 0;
  FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
  if (file && fscanf(file, "%d", &scope) != 1)
    scope = 0;
  if (file)
    fclose(file);
  bool in_container = access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0;
  return has_capability(CAP_SYS_PTRACE_BIT) ? scope < 3 : scope == 0 && !in_container;
}

void settings_ask_machine(struct settings_facts *facts) {
  facts->may_take_descriptors = may_take_descriptors();
  facts->has_imex_channel = access("/dev/nvidia-caps-imex-channels", F_OK) == 0;
}
