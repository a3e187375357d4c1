/* SPDX-License-Identifier: Apache-2.0 */
/* Each row of tools/lint/settings.def: a job of which it speaks, and nearly the same of which it does not. */
#include "tools/lint/settings.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define EXPANDABLE "PYTORCH_ALLOC_CONF=expandable_segments:True"

struct job {
  const char *variables[4];
  bool ptrace, imex;
};

static const struct {
  enum settings_row row;
  struct job wrong, right;
} cases[] = {
    {SETTINGS_expandable_and_split,
     {{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128, expandable_segments:True"}, true, false},
     {{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:False"}, true, false}},
    {SETTINGS_expandable_and_gc,
     {{EXPANDABLE ",garbage_collection_threshold:0.8"}, true, false},
     {{"PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8"}, true, false}},
    {SETTINGS_expandable_ipc_ptrace, {{EXPANDABLE}, false, false}, {{EXPANDABLE}, true, false}},
    {SETTINGS_expandable_ipc_ptrace,
     {{EXPANDABLE, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1"}, false, false},
     {{EXPANDABLE, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0"}, false, false}},
    {SETTINGS_expandable_and_register,
     {{EXPANDABLE, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1"}, true, false},
     {{EXPANDABLE, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=0"}, true, false}},
    {SETTINGS_fabric_without_imex,
     {{EXPANDABLE ",expandable_segments_handle_type:fabric"}, true, false},
     {{EXPANDABLE ",expandable_segments_handle_type:fabric"}, true, true}},
    {SETTINGS_fabric_without_imex,
     {{EXPANDABLE ",expandable_segments_handle_type:FABRIC"}, true, false},
     {{EXPANDABLE ",expandable_segments_handle_type:posix_fd"}, true, false}},
    {SETTINGS_handle_type_alone,
     {{"PYTORCH_ALLOC_CONF=expandable_segments_handle_type:posix_fd"}, true, false},
     {{EXPANDABLE ",expandable_segments_handle_type:posix_fd"}, true, false}},
    {SETTINGS_cumem_off, {{"NCCL_CUMEM_ENABLE=0"}, true, false}, {{"NCCL_CUMEM_ENABLE=1"}, true, false}},
    {SETTINGS_nvls_without_cumem,
     {{"NCCL_CUMEM_ENABLE=0", "NCCL_NVLS_ENABLE=1"}, true, false},
     {{"NCCL_CUMEM_ENABLE=0", "NCCL_NVLS_ENABLE=0"}, true, false}},
    {SETTINGS_async_ignores,
     {{"PYTORCH_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2],backend:cudaMallocAsync"}, true, false},
     {{"PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"}, true, false}},
    {SETTINGS_async_limits,
     {{"PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"}, true, false},
     {{"PYTORCH_ALLOC_CONF=backend:native"}, true, false}},
    {SETTINGS_no_caching, {{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}, true, false}, {{NULL}, true, false}},
    {SETTINGS_split_too_small,
     {{"PYTORCH_ALLOC_CONF=max_split_size_mb:20"}, true, false},
     {{"PYTORCH_ALLOC_CONF=max_split_size_mb:21"}, true, false}},
    {SETTINGS_reserve_without_pool,
     {{"B200OPT_MEMORY_RESERVE_MB=256"}, true, false},
     {{"B200OPT_MEMORY_RESERVE_MB=256", "B200OPT_MEMORY=pool"}, true, false}},
    {SETTINGS_reserve_without_pool,
     {{"B200OPT_MEMORY_FILL=poison", "B200OPT_MEMORY=observe"}, true, false},
     {{"B200OPT_MEMORY_RESERVE_MB=0", "B200OPT_MEMORY_FILL=off"}, true, false}},
    {SETTINGS_two_names,
     {{EXPANDABLE, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"}, true, false},
     {{EXPANDABLE, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, true, false}},
};

static const char *get(const void *context, const char *name) {
  const struct job *job = context;
  for (size_t i = 0; i < 4 && job->variables[i]; i++)
    if (strncmp(job->variables[i], name, strlen(name)) == 0 && job->variables[i][strlen(name)] == '=')
      return job->variables[i] + strlen(name) + 1;
  return NULL;
}

static bool hurts(const struct job *job, enum settings_row row) {
  const struct settings_facts facts = {get, job, job->ptrace, job->imex};
  return settings_hurt(&facts, row);
}

START_TEST(wrong_and_right) {
  ck_assert(hurts(&cases[_i].wrong, cases[_i].row));
  ck_assert(!hurts(&cases[_i].right, cases[_i].row));
}
END_TEST

START_TEST(every_row_has_a_case) {
  bool seen[SETTINGS_COUNT] = {false};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
    seen[cases[i].row] = true;
  for (int row = 0; row < SETTINGS_COUNT; row++) {
    ck_assert_msg(seen[row], "row %d", row);
    ck_assert(*settings_text((enum settings_row)row) && *settings_source((enum settings_row)row));
  }
}
END_TEST

/* Nothing is said of a job that sets nothing, nor of names that only begin alike. */
START_TEST(nothing_to_say) {
  const struct job none = {.ptrace = false},
                   odd = {{"PYTORCH_ALLOC_CONF=,,expandable_segmentsX:True,backend,:,max_split_size_mbb:1",
                           "NCCL_CUMEM_ENABLED=0"},
                          false,
                          false};
  for (int row = 0; row < SETTINGS_COUNT; row++) {
    ck_assert(!hurts(&none, (enum settings_row)row));
    ck_assert_msg(!hurts(&odd, (enum settings_row)row), "row %d", row);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("settings");
  TCase *tcase = tcase_create("settings");
  tcase_add_loop_test(tcase, wrong_and_right, 0, (int)(sizeof(cases) / sizeof(cases[0])));
  tcase_add_test(tcase, every_row_has_a_case);
  tcase_add_test(tcase, nothing_to_say);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
