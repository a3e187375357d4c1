/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs on the node. Right ones compute in every order what a plain loop computes, and nothing is reported. With
 * one wait taken out, the race checker speaks exactly when the generator's own account has a race, and of such races only.
 *
 * usage: test_random_programs [PROGRAMS [FIRST_SEED [SEEDS]]]   SEEDS: of the adversarial order, for each program
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <pthread.h>

#include "tests/vnode/vnode_test.h"
#include "tests/vnode_order/random_program.h"

#define MUST(call) must((int)(call), #call)

enum { TEXT_BYTES = 1 << 16, REMOVALS = 4, OPERATIONS = 60 };

struct call {
  const struct program *program;
  const char *order;
  uint64_t seed;
  int removed; /* step, or -1 */
};

struct mix {
  unsigned char *to;
  const unsigned char *from;
  size_t bytes;
  unsigned char value;
};

static const struct call *now;
static unsigned char *buffers[BUFFERS], expected[BUFFERS][BUFFER_BYTES];
static bool lives[BUFFERS];
static uint64_t seen[MAX_THREADS], expected_seen[MAX_THREADS];
static cudaStream_t streams[STREAMS];
static cudaEvent_t events[EVENTS];
static struct mix calls[MAX_STEPS];
static bool done[MAX_STEPS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void must(int code, const char *call) {
  if (!code)
    return;
  printf("%s gives %d\n", call, code);
  exit(2);
}

/* ------------------------------------------------------------------------------------------- one process runs one program
 */

static void set_up(void) {
  for (int i = 0; i < BUFFERS - POOL_BUFFERS; i++) {
    bool pinned = i >= DEVICE_BUFFERS;
    MUST(pinned ? cudaMallocHost((void **)&buffers[i], BUFFER_BYTES) : cudaMalloc((void **)&buffers[i], BUFFER_BYTES));
    if (pinned)
      memset(buffers[i], 0, BUFFER_BYTES);
    else
      MUST(cudaMemset(buffers[i], 0, BUFFER_BYTES));
    lives[i] = true;
  }
  for (int i = 1; i < STREAMS; i++)
    MUST(cudaStreamCreateWithFlags(&streams[i], i < FIRST_NON_BLOCKING ? cudaStreamDefault : cudaStreamNonBlocking));
  for (int i = 0; i < EVENTS; i++)
    MUST(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
  MUST(cudaDeviceSynchronize());
  if (now->removed < 0)
    return;
  cudaMemPool_t pool; /* blocks that go from stream to stream would order these by themselves */
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseFollowEventDependencies, &(int){0}));
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &(int){0}));
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &(int){0}));
}

static void run_mix(void *args) {
  const struct mix *mix = args;
  step_mix(mix->to, mix->from, mix->bytes, mix->value);
}

static void submit_mix(const struct step *step, const struct mix *mix) {
  const struct vnode_access accesses[] = {{.at = mix->from, .row_bytes = mix->bytes, .rows = 1},
                                          {.at = mix->to, .row_bytes = mix->bytes, .rows = 1},
                                          {.at = mix->to, .row_bytes = mix->bytes, .rows = 1, .write = true}};
  const struct vnode_op op = {.name = step->name,
                              .work = run_mix,
                              .args = mix,
                              .args_bytes = sizeof *mix,
                              .accesses = accesses,
                              .access_count = sizeof accesses / sizeof *accesses,
                              .duration_ns = 1000 * (int64_t)step->value};
  MUST(vnode_op_submit((struct vnode_stream *)streams[step->stream], &op));
}

static void wait_until_done(int step) {
  pthread_mutex_lock(&lock);
  while (!done[step])
    pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void order(const struct step *step) {
  cudaStream_t stream = streams[step->stream];
  cudaEvent_t event = events[step->event];
  cudaError_t answer;
  switch (step->kind) {
  case STEP_RECORD:
    MUST(cudaEventRecord(event, stream));
    break;
  case STEP_WAIT:
    MUST(cudaStreamWaitEvent(stream, event, 0));
    break;
  case STEP_SYNC_STREAM:
    MUST(cudaStreamSynchronize(stream));
    break;
  case STEP_SYNC_EVENT:
    MUST(cudaEventSynchronize(event));
    break;
  case STEP_POLL_EVENT:
    while ((answer = cudaEventQuery(event)) == cudaErrorNotReady)
      ;
    MUST(answer);
    break;
  case STEP_SYNC_DEVICE:
    MUST(cudaDeviceSynchronize());
    break;
  default:
    wait_until_done(step->other);
  }
}

static void operate(const struct step *step, struct mix *mix) {
  cudaStream_t stream = streams[step->stream];
  if (step->kind == STEP_ALLOC) {
    MUST(cudaMallocAsync((void **)&buffers[step->to], BUFFER_BYTES, stream));
    lives[step->to] = true;
    return;
  }
  *mix = (struct mix){.to = buffers[step->to] + step->to_at, .bytes = step->bytes, .value = step->value};
  switch (step->kind) {
  case STEP_FILL:
    MUST(cudaMemsetAsync(mix->to, step->value, step->bytes, stream));
    break;
  case STEP_COPY:
    MUST(cudaMemcpyAsync(mix->to, buffers[step->from] + step->from_at, step->bytes, cudaMemcpyDefault, stream));
    break;
  case STEP_MIX:
    mix->from = buffers[step->from] + step->from_at;
    submit_mix(step, mix);
    break;
  case STEP_CALL:
    MUST(cudaLaunchHostFunc(stream, run_mix, mix));
    break;
  case STEP_FREE:
    MUST(cudaFreeAsync(buffers[step->to], stream));
    lives[step->to] = false;
    break;
  default:
    step_see(&seen[step->thread], mix->to, mix->bytes);
    run_mix(mix);
  }
}

static void *run_thread(void *thread) {
  const struct program *program = now->program;
  for (int i = 0; i < program->count; i++) {
    const struct step *step = &program->steps[i];
    if (step->thread != *(int *)thread)
      continue;
    if (i == now->removed)
      ;
    else if (step_orders(step) || step->kind == STEP_HAND_OVER)
      order(step);
    else
      operate(step, &calls[i]);
    pthread_mutex_lock(&lock);
    done[i] = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static bool is_as_expected(void) {
  unsigned char host[BUFFER_BYTES];
  bool equal = !memcmp(seen, expected_seen, sizeof seen);
  if (!equal)
    printf("the host saw other bytes\n");
  for (int i = 0; i < BUFFERS; i++) {
    if (!lives[i])
      continue;
    MUST(cudaMemcpy(host, buffers[i], BUFFER_BYTES, cudaMemcpyDefault));
    if (memcmp(host, expected[i], BUFFER_BYTES)) {
      printf("buffer %d holds other bytes\n", i);
      equal = false;
    }
  }
  return equal;
}

static void run_call(void *call) {
  char seed[32];
  int numbers[MAX_THREADS];
  pthread_t threads[MAX_THREADS];
  now = call;
  snprintf(seed, sizeof seed, "%" PRIu64, now->seed);
  setenv("B200OPT_VNODE_ORDER", now->order, 1);
  setenv("B200OPT_VNODE_SEED", seed, 1);
  alarm(60);
  set_up();
  for (int i = 1; i < now->program->threads; i++) {
    numbers[i] = i;
    MUST(pthread_create(&threads[i], NULL, run_thread, &numbers[i]));
  }
  numbers[0] = 0;
  run_thread(&numbers[0]);
  for (int i = 1; i < now->program->threads; i++)
    MUST(pthread_join(threads[i], NULL));
  MUST(cudaDeviceSynchronize());
  exit(is_as_expected() ? 0 : 1);
}

/* ------------------------------------------------------------------------------------------- comparing */

static char text[TEXT_BYTES];

static bool run_right(const struct call *call) {
  int status = in_child_with_stderr(run_call, (void *)(uintptr_t)call, text, sizeof text);
  if (!status && !*text)
    return true;
  printf("a right program in %s order, seed %" PRIu64 ": status %#x %s\n", call->order, call->seed, (unsigned)status, text);
  return false;
}

/* Is this line a race that there is? */
static bool is_true(char *line, const struct race *races, int count) {
  bool changed_on_host = strstr(line, "race: host memory changed: ");
  for (int i = 0; i < count; i++) {
    char start[96], end[64];
    snprintf(start, sizeof start, "b200vnode: race: %s: %s ", races[i].kind, races[i].newer);
    snprintf(end, sizeof end, ", which %s ", races[i].older);
    if ((races[i].seen && !strncmp(line, start, strlen(start)) && strstr(line, end)) || changed_on_host)
      return true;
  }
  return false;
}

/* Wrong numbers are no wonder when there are races, nor that memory is gone when it was freed too early. */
static bool has_ended_well(int status, const struct race *races, int count) {
  for (int i = 0; WIFSIGNALED(status) && i < count; i++)
    if (!strcmp(races[i].kind, "freed while in use"))
      return WTERMSIG(status) == SIGSEGV;
  return WIFEXITED(status) && WEXITSTATUS(status) <= (count ? 1 : 0);
}

static bool run_wrong(const struct call *call, const struct race *races, int count) {
  bool must_speak = false;
  for (int i = 0; i < count; i++)
    must_speak |= races[i].seen;
  int status = in_child_with_stderr(run_call, (void *)(uintptr_t)call, text, sizeof text);
  bool right = has_ended_well(status, races, count) && (*text || !must_speak);
  char *rest = NULL, *copy = strdup(text);
  for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    right &= is_true(line, races, count);
  free(copy);
  if (!right)
    printf("without step %d in %s order, seed %" PRIu64 ": %d races, status %#x: %s\n", call->removed, call->order,
           call->seed, count, (unsigned)status, text);
  for (int i = 0; !right && i < count; i++)
    printf("  %s: step %d %s, step %d %s%s\n", races[i].kind, races[i].newer_step, races[i].newer, races[i].older_step,
           races[i].older, races[i].seen ? "" : ", not seen by the checker");
  return right;
}

static int races_found, removals_tried;

static bool check_removals(const struct program *program, uint64_t seed) {
  static struct race races[MAX_RACES];
  uint64_t random = seed;
  for (int i = 0; i < REMOVALS; i++) {
    int removed = (int)program_random(&random, (uint32_t)program->count);
    while (!step_orders(&program->steps[removed]))
      removed = (removed + 1) % program->count;
    int count = program_races(program, removed, races);
    races_found += count > 0;
    removals_tried++;
    if (!run_wrong(&(struct call){program, "deferred", 0, removed}, races, count) ||
        !run_wrong(&(struct call){program, "adversarial", seed, removed}, races, count))
      return false;
  }
  return true;
}

static struct program current;

static bool check_program(uint64_t seed, uint64_t seeds) {
  static struct race races[MAX_RACES];
  program_generate(&current, seed, OPERATIONS, 1 + (int)(seed % MAX_THREADS));
  if (program_races(&current, -1, races)) {
    printf("the generator made a program that races\n");
    return false;
  }
  program_compute(&current, expected, expected_seen);
  if (!run_right(&(struct call){&current, "eager", 0, -1}) || !run_right(&(struct call){&current, "deferred", 0, -1}))
    return false;
  for (uint64_t i = 0; i < seeds; i++)
    if (!run_right(&(struct call){&current, "adversarial", seed + i, -1}))
      return false;
  return current.threads > 1 || check_removals(&current, seed);
}

int main(int argc, char **argv) {
  uint64_t programs = argc > 1 ? strtoull(argv[1], NULL, 10) : 60, first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  uint64_t seeds = argc > 3 ? strtoull(argv[3], NULL, 10) : 3, failed = 0;
  own_session();
  for (uint64_t seed = first; seed < first + programs; seed++)
    if (!check_program(seed, seeds)) {
      printf("program %" PRIu64 " failed\n", seed);
      program_print(&current);
      failed++;
    }
  printf("random programs: %" PRIu64 " in %" PRIu64 " orders, %d waits taken out of which %d made races; %" PRIu64
         " failed\n",
         programs, seeds + 2, removals_tried, races_found, failed);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
