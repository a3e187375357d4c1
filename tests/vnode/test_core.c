/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "vnode_test.h"

static uint64_t free_bytes(int device) {
  uint64_t free_now = 0, total = 0;
  ck_assert_int_eq(vnode_memory_get_info(device, &free_now, &total), VNODE_OK);
  return free_now;
}

static void *device_alloc(int device, size_t bytes) {
  void *base = NULL;
  ck_assert_int_eq(vnode_memory_alloc(device, bytes, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base), VNODE_OK);
  return base;
}

/* ------------------------------------------------------------------------------------------- configuration */

START_TEST(config_has_defaults) {
  ck_assert_int_eq(vnode_config()->device_count, 8);
  ck_assert_uint_eq(vnode_gpu()->memory_bytes, 178 * GIB);
  ck_assert(vnode_config()->unhandled_fatal);
  ck_assert_int_eq(vnode_config()->rank, -1);
}
END_TEST

static void read_devices(void *expected) {
  exit(vnode_config()->device_count == *(int *)expected ? 0 : 1);
}

START_TEST(config_names_bad_value_and_goes_on_with_default) {
  static const char *const bad[] = {"0", "9", "-1", "2x", "two", "99999999999999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[1024], quoted[64];
    int expected = 8;
    setenv("B200OPT_VNODE_GPUS", bad[i], 1);
    ck_assert_int_eq(in_child_with_stderr(read_devices, &expected, text, sizeof text), 0);
    snprintf(quoted, sizeof quoted, "B200OPT_VNODE_GPUS=%s ", bad[i]);
    ck_assert_ptr_nonnull(strstr(text, quoted));
    ck_assert_ptr_nonnull(strstr(text, "1..8"));
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
  }
  int expected = 2;
  char text[1024];
  setenv("B200OPT_VNODE_GPUS", "2", 1);
  ck_assert_int_eq(in_child_with_stderr(read_devices, &expected, text, sizeof text), 0);
  ck_assert_str_eq(text, "");
}
END_TEST

/* ------------------------------------------------------------------------------------------- memory */

START_TEST(allocations_are_aligned_fresh_and_disjoint) {
  unsigned char *one = device_alloc(0, 1), *two = device_alloc(0, 3 * MIB);
  ck_assert_uint_eq((uintptr_t)one % VNODE_MEMORY_ALIGN_BYTES, 0);
  ck_assert_uint_eq((uintptr_t)two % VNODE_MEMORY_ALIGN_BYTES, 0);
  for (size_t i = 0; i < 3 * MIB; i += 4096) /* what nobody has written means nothing: the late orders say so */
    ck_assert_uint_eq(two[i], vnode_config()->order == VNODE_ORDER_EAGER ? 0 : VNODE_POISON);
  memset(one, 1, VNODE_MEMORY_ALIGN_BYTES);
  memset(two, 2, 3 * MIB);
  ck_assert_uint_eq(one[VNODE_MEMORY_ALIGN_BYTES - 1], 1);
  ck_assert_uint_eq(two[0], 2);
}
END_TEST

START_TEST(query_knows_interior_pointers_and_ends) {
  char *base = device_alloc(3, 5 * MIB);
  struct vnode_memory_info info;
  ck_assert(vnode_memory_query(base + 5 * MIB - 1, &info));
  ck_assert_ptr_eq(info.base, base);
  ck_assert_uint_eq(info.bytes, 6 * MIB);
  ck_assert_int_eq(info.device, 3);
  ck_assert_int_eq(info.kind, VNODE_MEMORY_DEVICE);
  ck_assert(!vnode_memory_query(base - 1, &info));
  uint64_t id = info.id;
  ck_assert_int_eq(vnode_memory_free(base + 1), VNODE_NOT_FOUND);
  ck_assert_int_eq(vnode_memory_free(base), VNODE_OK);
  ck_assert_int_eq(vnode_memory_free(base), VNODE_NOT_FOUND);
  ck_assert(!vnode_memory_query(base, &info));
  char *again = device_alloc(3, 5 * MIB);
  ck_assert(vnode_memory_query(again, &info));
  ck_assert_uint_ne(info.id, id);
}
END_TEST

START_TEST(untouched_memory_costs_nothing_and_is_charged) {
  uint64_t before = free_bytes(0);
  ck_assert_uint_eq(before, 178 * GIB - vnode_gpu()->context_bytes);
  char *big = device_alloc(0, 150 * GIB);
  ck_assert_uint_eq(free_bytes(0), before - 150 * GIB);
  big[0] = big[150 * GIB - 1] = 7;
  ck_assert_int_eq(big[150 * GIB - 1], 7);
  void *more = NULL;
  ck_assert_int_eq(vnode_memory_alloc(0, 30 * GIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &more), VNODE_NO_MEMORY);
  ck_assert_ptr_null(more);
  device_alloc(1, 30 * GIB);
  ck_assert_int_eq(vnode_memory_free(big), VNODE_OK);
  ck_assert_uint_eq(free_bytes(0), before);
  ck_assert_int_eq(vnode_memory_alloc(0, SIZE_MAX, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &more), VNODE_NO_MEMORY);
}
END_TEST

static long resident_pages(void) {
  long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  ck_assert_int_eq(fscanf(file, "%ld %ld", &total, &resident), 2);
  fclose(file);
  return resident;
}

START_TEST(freed_pages_go_back_to_the_host) {
  long before = resident_pages();
  for (int i = 0; i < 8; i++) {
    char *base = device_alloc(0, 32 * MIB);
    memset(base, 1, 32 * MIB);
    ck_assert_int_eq(vnode_memory_free(base), VNODE_OK);
  }
  ck_assert_int_lt(resident_pages() - before, (long)(48 * MIB / 4096));
}
END_TEST

static void hold_50_gib(void *pipes) {
  int *ends = pipes;
  char byte = 1;
  void *base = NULL;
  if (vnode_memory_alloc(0, 50 * GIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base) || write(ends[1], &byte, 1) != 1)
    exit(1);
  pause();
}

START_TEST(processes_share_a_device_and_a_killed_one_gives_back) {
  int ends[2];
  char byte;
  ck_assert_int_eq(pipe(ends), 0);
  pid_t pid = fork(); /* before this process uses the node */
  if (!pid)
    hold_50_gib(ends);
  ck_assert_int_eq(read(ends[0], &byte, 1), 1);
  uint64_t context = vnode_gpu()->context_bytes;
  ck_assert_uint_eq(free_bytes(0), 128 * GIB - 2 * context);
  void *more = NULL;
  ck_assert_int_eq(vnode_memory_alloc(0, 150 * GIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &more), VNODE_NO_MEMORY);
  kill(pid, SIGKILL); /* a zombie from here on: dead for the node before its parent has waited */
  siginfo_t info;
  ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
  ck_assert_int_eq(vnode_memory_alloc(0, 150 * GIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &more), VNODE_OK);
  ck_assert_uint_eq(free_bytes(0), 28 * GIB - context);
  waitpid(pid, NULL, 0);
}
END_TEST

/* What a process leaves that is killed between closing a session's object and taking away its name. */
static void close_session_object(void) {
  char own[300] = "";
  const char *session = getenv("B200OPT_VNODE_SESSION");
  DIR *folder = opendir("/dev/shm");
  for (const struct dirent *entry; folder && (entry = readdir(folder));)
    if (strstr(entry->d_name, session))
      snprintf(own, sizeof own, "/%s", entry->d_name);
  closedir(folder);
  int fd = shm_open(own, O_RDWR, 0600);
  ck_assert_int_ge(fd, 0);
  const uint32_t closed = 1;
  ck_assert_int_eq(pwrite(fd, &closed, sizeof closed, sizeof(uint32_t)), sizeof closed);
  close(fd);
}

static void allocate_and_die(void *unused) {
  (void)unused;
  void *block;
  if (!vnode_memory_alloc(0, MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &block))
    close_session_object();
  raise(SIGKILL);
}

START_TEST(closed_session_that_kept_its_name_is_made_anew) {
  in_child(allocate_and_die, NULL);
  void *block;
  ck_assert_int_eq(vnode_memory_alloc(0, GIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &block), VNODE_OK);
  ck_assert_uint_eq(free_bytes(0), 177 * GIB - vnode_gpu()->context_bytes);
}
END_TEST

START_TEST(owners_are_counted_apart) {
  uint64_t current = 0, peak = 0;
  void *one = NULL, *two = NULL;
  ck_assert_int_eq(vnode_memory_alloc(2, 5 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_NCCL, &one), VNODE_OK);
  ck_assert_int_eq(vnode_memory_alloc(2, 2 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_PYTORCH, &two), VNODE_OK);
  ck_assert_int_eq(vnode_memory_free(one), VNODE_OK);
  vnode_ledger_memory(2, VNODE_OWNER_NCCL, &current, &peak);
  ck_assert_uint_eq(current, 0);
  ck_assert_uint_eq(peak, 6 * MIB);
  vnode_ledger_memory(2, VNODE_OWNER_PYTORCH, &current, &peak);
  ck_assert_uint_eq(current, 2 * MIB);
  vnode_ledger_memory(1, VNODE_OWNER_PYTORCH, &current, &peak);
  ck_assert_uint_eq(peak, 0);
}
END_TEST

static void try_everything(void *memory) {
  void *base = NULL;
  struct vnode_stream *stream = NULL;
  struct vnode_memory_info info;
  uint64_t free_now, total;
  bool right = vnode_memory_alloc(0, MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_OTHER, &base) == VNODE_NOT_INITIALIZED &&
               vnode_stream_create(0, 0, &stream) == VNODE_NOT_INITIALIZED &&
               vnode_memory_free(memory) == VNODE_NOT_INITIALIZED && !vnode_memory_query(memory, &info) &&
               vnode_memory_get_info(0, &free_now, &total) == VNODE_NOT_INITIALIZED && !vnode_usable();
  exit(right ? 0 : 1);
}

START_TEST(forked_child_is_refused_and_parent_unharmed) {
  void *base = device_alloc(0, MIB);
  uint64_t before = free_bytes(0);
  ck_assert_int_eq(in_child(try_everything, base), 0);
  ck_assert_uint_eq(free_bytes(0), before);
  ck_assert_int_eq(vnode_memory_free(base), VNODE_OK);
}
END_TEST

/* ------------------------------------------------------------------------------------------- virtual memory */

START_TEST(physical_memory_can_be_mapped_twice_and_lives_by_references) {
  uint64_t handle = 0, same = 0, before = free_bytes(0);
  void *range = NULL;
  const size_t unit = VNODE_MEMORY_ALIGN_BYTES;
  ck_assert_int_eq(vnode_physical_create(0, unit, VNODE_OWNER_PYTORCH, &handle), VNODE_OK);
  ck_assert_uint_eq(free_bytes(0), before - unit);
  ck_assert_int_eq(vnode_range_reserve(4 * unit, 0, &range), VNODE_OK);
  volatile char *low = range, *high = low + 2 * unit; /* two views of the same bytes, which the compiler cannot know */
  ck_assert_int_eq(vnode_range_map((void *)low, unit, handle), VNODE_OK);
  ck_assert_int_eq(vnode_range_map((void *)high, unit, handle), VNODE_OK);
  ck_assert_int_eq(vnode_range_map((void *)high, unit, handle), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_range_set_access((void *)low, unit, true), VNODE_OK);
  ck_assert_int_eq(vnode_range_set_access((void *)high, unit, true), VNODE_OK);
  low[5] = 42;
  ck_assert_int_eq(high[5], 42);
  ck_assert_int_eq(vnode_physical_retain((void *)low + 9, &same), VNODE_OK);
  ck_assert_uint_eq(same, handle);
  ck_assert_int_eq(vnode_physical_release(handle), VNODE_OK);
  ck_assert_int_eq(vnode_physical_release(handle), VNODE_OK);
  ck_assert_int_eq(vnode_physical_release(handle), VNODE_NOT_FOUND);
  ck_assert_uint_eq(free_bytes(0), before - unit);
  ck_assert_int_eq(vnode_range_free(range, 4 * unit), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_range_unmap((void *)low, unit / 2), VNODE_INVALID_VALUE);
  ck_assert_int_eq(vnode_range_unmap((void *)low, unit), VNODE_OK);
  ck_assert_int_eq(high[5], 42);
  ck_assert_int_eq(vnode_range_unmap((void *)high, unit), VNODE_OK);
  ck_assert_uint_eq(free_bytes(0), before);
  ck_assert_int_eq(vnode_range_free(range, 4 * unit), VNODE_OK);
  ck_assert_int_eq(vnode_range_map((void *)low, unit, handle), VNODE_INVALID_VALUE);
}
END_TEST

START_TEST(mapped_memory_without_access_faults) {
  uint64_t handle = 0;
  void *range = NULL;
  ck_assert_int_eq(vnode_physical_create(0, VNODE_MEMORY_ALIGN_BYTES, VNODE_OWNER_OTHER, &handle), VNODE_OK);
  ck_assert_int_eq(vnode_range_reserve(VNODE_MEMORY_ALIGN_BYTES, 0, &range), VNODE_OK);
  ck_assert_int_eq(vnode_range_map(range, VNODE_MEMORY_ALIGN_BYTES, handle), VNODE_OK);
  int ends[2]; /* the kernel's answer to a bad address, instead of a signal */
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert_int_eq(write(ends[1], range, 1), -1);
  ck_assert_int_eq(errno, EFAULT);
  ck_assert_int_eq(vnode_range_set_access(range, VNODE_MEMORY_ALIGN_BYTES, true), VNODE_OK);
  ck_assert_int_eq(write(ends[1], range, 1), 1);
  ck_assert_int_eq(vnode_range_set_access(range, VNODE_MEMORY_ALIGN_BYTES, false), VNODE_OK);
  ck_assert_int_eq(write(ends[1], range, 1), -1);
}
END_TEST

/* ------------------------------------------------------------------------------------------- ways to stop, ledger */

static void trap(void *name) {
  vnode_trap(name);
}

static void kernel(void *name) {
  vnode_unhandled_kernel(name);
  vnode_unhandled_kernel(name);
  exit(vnode_unhandled_count() == 2 ? 0 : 1);
}

START_TEST(trap_and_kernel_end_the_process_with_the_name) {
  char text[2048];
  int status = in_child_with_stderr(trap, "cublasNope", text, sizeof text);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  ck_assert_ptr_nonnull(strstr(text, "cublasNope"));
  status = in_child_with_stderr(kernel, "my_kernel<int>", text, sizeof text);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  ck_assert_ptr_nonnull(strstr(text, "my_kernel<int>"));
  setenv("B200OPT_VNODE_UNHANDLED", "warn", 1);
  ck_assert_int_eq(in_child_with_stderr(kernel, "my_kernel<int>", text, sizeof text), 0);
  ck_assert_ptr_eq(strstr(strstr(text, "my_kernel<int>") + 1, "my_kernel<int>"), NULL);
}
END_TEST

static void count_things(void *unused) {
  (void)unused;
  struct vnode_gemm_key key = {.api = "gemmex",
                               .trans_a = 'T',
                               .trans_b = 'N',
                               .m = 3,
                               .n = 5,
                               .k = 7,
                               .batch = 1,
                               .type_a = "bf16",
                               .type_b = "bf16",
                               .type_d = "bf16",
                               .compute = "f32",
                               .epilogue = "none"};
  void *base = NULL;
  for (int i = 0; i < 4; i++)
    vnode_ledger_gemm(&key);
  vnode_ledger_collective("AllGather", "bf16", 2, 1000);
  vnode_ledger_collective("AllGather", "bf16", 2, 24);
  if (vnode_memory_alloc(0, 3 * MIB, VNODE_MEMORY_DEVICE, VNODE_OWNER_CUBLAS, &base))
    exit(1);
}

START_TEST(ledger_is_written_at_exit) {
  char folder[] = "/tmp/vnode-ledger-XXXXXX", inside[64], command[256], text[8192];
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(inside, sizeof inside, "%s/a/b", folder);
  setenv("B200OPT_VNODE_LOG_DIR", inside, 1);
  setenv("RANK", "3", 1);
  ck_assert_int_eq(in_child(count_things, NULL), 0);
  snprintf(command, sizeof command, "cat %s/*-r3-*.node.jsonl", inside);
  FILE *pipe = popen(command, "r");
  text[fread(text, 1, sizeof text - 1, pipe)] = 0;
  ck_assert_int_eq(pclose(pipe), 0);
  static const char *const lines[] = {
      "{\"t\":\"header\",\"format\":1,",
      "\"role\":\"fprop\"",
      "\"calls\":4,\"flops\":840}",
      "\"op\":\"AllGather\",\"dtype\":\"bf16\",\"nranks\":2,\"calls\":2,\"bytes\":1024}",
      "\"owner\":\"cublas\",\"current\":4194304,\"peak\":4194304,\"allocs\":1,\"frees\":0,\"failed\":0}",
      "{\"t\":\"node\",\"order\":\"",
      "\",\"seed\":0,\"races\":0,\"modelled_ns\":0}",
      "{\"t\":\"end\","};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    ck_assert_msg(strstr(text, lines[i]), "%s is not in %s", lines[i], text);
  snprintf(command, sizeof command, "rm -r %s", folder);
  ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {config_has_defaults,
                                config_names_bad_value_and_goes_on_with_default,
                                allocations_are_aligned_fresh_and_disjoint,
                                query_knows_interior_pointers_and_ends,
                                untouched_memory_costs_nothing_and_is_charged,
                                freed_pages_go_back_to_the_host,
                                processes_share_a_device_and_a_killed_one_gives_back,
                                closed_session_that_kept_its_name_is_made_anew,
                                owners_are_counted_apart,
                                forked_child_is_refused_and_parent_unharmed,
                                physical_memory_can_be_mapped_twice_and_lives_by_references,
                                mapped_memory_without_access_faults,
                                trap_and_kernel_end_the_process_with_the_name,
                                ledger_is_written_at_exit};
  return run_tests("core", tests, sizeof tests / sizeof *tests);
}
