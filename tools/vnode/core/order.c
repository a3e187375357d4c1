/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The late orders. Every operation is a task in its stream's queue, with the tasks of other streams that it has to wait for.
 *
 * deferred      a task runs when a host thread waits for it, or for one that depends on it.
 * adversarial   probabilistic concurrency testing (Burckhardt et al., ASPLOS'10): each stream has a random urgency. The most
 *               urgent streams run as soon as they can, the least urgent as late as they may, and after some tasks a
 * stream's urgency is drawn anew. The sequence of draws is given by the seed and the rank.
 *
 * Either way what a program computes is the same if its dependencies are complete. The race checker sees submissions, so its
 * findings depend on neither order nor timing, with one exception: a thread that polls (cudaEventQuery) learns of a
 * completion at a time that differs from run to run, and what is submitted afterwards counts as ordered behind it.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine.h"

enum task_state { TASK_QUEUED, TASK_RUNNING, TASK_DONE };

struct vnode_task {
  unsigned references;
  enum task_state state;
  bool wanted; /* a host thread waits for it, or for one that comes after it */
  struct vnode_stream *stream;
  uint64_t number;           /* of the submission */
  struct vnode_op op;        /* arguments and accesses are its own */
  struct vnode_task *next;   /* in the stream */
  struct vnode_task **after; /* of other streams */
  size_t after_count;
  int64_t floor_ns; /* it cannot start earlier: host time of the submission, ends of what it waited for */
  int64_t end_ns;
  uint64_t host_hash;              /* of the host memory that it reads, as submitted; 0: not taken */
  struct vnode_task *next_waiting; /* for a worker */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;   /* a task is done */
static pthread_cond_t job_ready = PTHREAD_COND_INITIALIZER; /* for workers */
static pthread_once_t start_once = PTHREAD_ONCE_INIT;
static struct vnode_task *jobs; /* tasks that wait for other processes, to be started by workers */
static unsigned idle_workers, waiting_tasks;
static uint64_t last_number, pending, activity, random_state;
static int last_lane;
static struct vnode_race_clock host_clock; /* what the process's threads have waited for */
static uint64_t host_version;

bool vnode_is_late(void) {
  return vnode_config()->order != VNODE_ORDER_EAGER;
}

static bool is_adversarial(void) {
  return vnode_config()->order == VNODE_ORDER_ADVERSARIAL;
}

/* splitmix64 */
static uint32_t draw(void) {
  uint64_t z = random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static const uint32_t late_below = 1u << 31; /* half of the streams run nothing that nobody waits for */
static const uint32_t early_from = 3u << 30; /* a quarter run everything at once */

/* ------------------------------------------------------------------------------------------- clocks of the checker */

static void join(struct vnode_race_clock *into, const struct vnode_race_clock *from) {
  for (size_t i = 0; i < VNODE_RACE_LANES; i++)
    if (from->at[i] > into->at[i])
      into->at[i] = from->at[i];
}

static void join_host(const struct vnode_race_clock *clock) {
  if (!clock)
    return;
  join(&host_clock, clock);
  host_version++;
}

/* The stream's clock for its next operation; NULL without memory: nothing is checked on this stream. */
static struct vnode_race_clock *clock_of(struct vnode_stream *stream) {
  if (!stream->lane) {
    stream->lane = last_lane < VNODE_RACE_LANES - 1 ? ++last_lane : last_lane;
    stream->draw = draw();
  }
  if (!stream->clock)
    stream->clock = calloc(1, sizeof *stream->clock);
  if (stream->clock && stream->host_version != host_version) {
    join(stream->clock, &host_clock);
    stream->host_version = host_version;
  }
  return stream->clock;
}

/* ------------------------------------------------------------------------------------------- tasks */

static void release(struct vnode_task *task) {
  if (task && !--task->references)
    free(task);
}

static struct vnode_task *retain(struct vnode_task *task) {
  if (task)
    task->references++;
  return task;
}

static size_t align(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

/* Task, accesses, arguments and room for dependencies in one piece of memory. */
static struct vnode_task *make_task(const struct vnode_op *op, size_t after_room) {
  size_t accesses_bytes = align(op->access_count * sizeof *op->accesses), args_bytes = align(op->args_bytes);
  size_t head = align(sizeof(struct vnode_task));
  struct vnode_task *task = calloc(1, head + accesses_bytes + args_bytes + after_room * sizeof(struct vnode_task *));
  if (!task)
    return NULL;
  char *at = (char *)task + head;
  task->references = 1;
  task->op = *op;
  if (op->access_count)
    memcpy(at, op->accesses, op->access_count * sizeof *op->accesses);
  task->op.accesses = (const struct vnode_access *)at;
  if (op->args_bytes) {
    memcpy(at + accesses_bytes, op->args, op->args_bytes);
    task->op.args = at + accesses_bytes;
  }
  task->after = (struct vnode_task **)(at + accesses_bytes + args_bytes);
  return task;
}

static void add_after(struct vnode_task *task, struct vnode_task *other) {
  if (!other)
    return;
  if (other->state == TASK_DONE) {
    if (other->end_ns > task->floor_ns)
      task->floor_ns = other->end_ns;
    return;
  }
  task->after[task->after_count++] = retain(other);
}

static bool is_runnable(const struct vnode_stream *stream) {
  struct vnode_task *task = stream->head;
  if (!task || stream->busy)
    return false;
  while (task->after_count && task->after[task->after_count - 1]->state == TASK_DONE) {
    struct vnode_task *other = task->after[--task->after_count];
    if (other->end_ns > task->floor_ns)
      task->floor_ns = other->end_ns;
    release(other);
  }
  return !task->after_count;
}

/* ------------------------------------------------------------------------------------------- the program's host memory */

static bool is_host(const struct vnode_access *access) {
  struct vnode_memory_info info;
  return vnode_memory_query(access->at, &info) && (info.kind == VNODE_MEMORY_HOST || info.kind == VNODE_MEMORY_REGISTERED);
}

static size_t extent(const struct vnode_access *access) {
  return access->rows > 1 ? (access->rows - 1) * access->pitch + access->row_bytes : access->row_bytes;
}

/* Does a task that is not complete touch the range? `writes`: by writing. What the program's functions do is not known. */
static bool is_touched(const struct vnode_access *range, bool writes) {
  for (struct vnode_stream *stream = vnode_stream_next(NULL); stream; stream = vnode_stream_next(stream))
    for (const struct vnode_task *task = stream->head; task; task = task->next) {
      if (task->op.flags & VNODE_OP_HOST)
        return true;
      for (size_t i = 0; i < task->op.access_count; i++) {
        const struct vnode_access *access = &task->op.accesses[i];
        if ((access->write || !writes) && (const char *)access->at < (const char *)range->at + extent(range) &&
            (const char *)range->at < (const char *)access->at + extent(access))
          return true;
      }
    }
  return false;
}

/* FNV-1a by words; never 0. */
static uint64_t hash_rows(const struct vnode_access *access, uint64_t hash) {
  for (size_t row = 0; row < (access->rows ? access->rows : 1); row++) {
    const char *at = (const char *)access->at + row * access->pitch;
    for (size_t i = 0; i < access->row_bytes; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      memcpy(&word, at + i, access->row_bytes - i < sizeof word ? access->row_bytes - i : sizeof word);
      hash = (hash ^ word) * 0x100000001b3u;
    }
  }
  return hash | 1;
}

static uint64_t hash_host_reads(const struct vnode_task *task) {
  uint64_t hash = 0;
  for (size_t i = 0; i < task->op.access_count; i++)
    if (!task->op.accesses[i].write && is_host(&task->op.accesses[i]))
      hash = hash_rows(&task->op.accesses[i], hash ? hash : 0xcbf29ce484222325u);
  return hash;
}

/* A pinned source is read when the copy runs. That nobody changes it until then is seen by its contents, unless work that
   comes first writes it anyway. */
static void watch_host_reads(struct vnode_task *task) {
  for (size_t i = 0; i < task->op.access_count; i++) {
    const struct vnode_access *access = &task->op.accesses[i];
    if (!access->write && is_host(access) && is_touched(access, true))
      return;
  }
  task->host_hash = hash_host_reads(task);
}

static const struct vnode_access *host_read_of(const struct vnode_task *task) {
  for (size_t i = 0; i < task->op.access_count; i++)
    if (!task->op.accesses[i].write && is_host(&task->op.accesses[i]))
      return &task->op.accesses[i];
  return NULL;
}

static void check_host_reads(const struct vnode_task *task) {
  const struct vnode_access *access = task->host_hash ? host_read_of(task) : NULL;
  if (access && hash_host_reads(task) != task->host_hash)
    vnode_race_report("host memory changed", task->op.name, access->at, extent(access),
                      "the program wrote it after it had submitted the operation and before the operation ran");
}

/* Until a copy to pinned memory has run, the program must not look there: what it would find is poison. Small ranges are
   left alone, they may be flags that the host polls; and kernels, which may read what they write. */
static void poison_host_writes(const struct vnode_task *task) {
  enum { FLAG_BYTES = 64 };
  if (!is_adversarial() || !(task->op.flags & (VNODE_OP_COPY | VNODE_OP_FILL)))
    return;
  for (size_t i = 0; i < task->op.access_count; i++) {
    const struct vnode_access *access = &task->op.accesses[i];
    if (!access->write || access->rows * access->row_bytes < FLAG_BYTES || !is_host(access) || is_touched(access, false))
      continue;
    for (size_t row = 0; row < access->rows; row++)
      memset((char *)(uintptr_t)access->at + row * access->pitch, VNODE_POISON, access->row_bytes);
  }
}

/* ------------------------------------------------------------------------------------------- running */

/* The engine's lock is held, and given up while the work runs. */
static void run(struct vnode_task *task) {
  struct vnode_stream *stream = task->stream;
  int64_t ready_ns = stream->end_ns > task->floor_ns ? stream->end_ns : task->floor_ns;
  struct vnode_running own = {.ready_ns = ready_ns, .start_ns = ready_ns, .end_ns = ready_ns + task->op.duration_ns};
  task->state = TASK_RUNNING;
  stream->busy = true;
  check_host_reads(task);
  if (task->op.work || task->op.drop) {
    pthread_mutex_unlock(&lock);
    int device = vnode_device_current();
    vnode_device_set(stream->device);
    vnode_running = &own;
    if (task->op.work && !vnode_sticky_error()) /* after such an error a GPU runs nothing any more */
      task->op.work((void *)(uintptr_t)task->op.args);
    if (task->op.drop)
      task->op.drop((void *)(uintptr_t)task->op.args);
    vnode_running = NULL;
    vnode_device_set(device);
    pthread_mutex_lock(&lock);
  }
  task->end_ns = own.end_ns;
  stream->end_ns = own.end_ns;
  task->state = TASK_DONE;
  stream->busy = false;
  stream->head = task->next;
  if (!stream->head)
    stream->tail = NULL;
  if (stream->wanted == task)
    stream->wanted = NULL;
  release(task);
  pending--;
  activity++;
  if (is_adversarial() && draw() % 16 == 0)
    stream->draw = draw();
  pthread_cond_broadcast(&changed);
}

static void *worker(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!jobs) {
      idle_workers++;
      pthread_cond_wait(&job_ready, &lock);
      idle_workers--;
    }
    struct vnode_task *task = jobs;
    jobs = task->next_waiting;
    run(task);
    waiting_tasks--;
  }
  return NULL;
}

static bool start_thread(void *(*function)(void *)) {
  pthread_t thread;
  pthread_attr_t attributes;
  sigset_t all, before;
  sigfillset(&all); /* the program's signals are for its own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  bool started = pthread_create(&thread, &attributes, function, NULL) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

/* What waits for other processes runs beside the rest: on an urgent stream it gets the time to come first. */
static void give_head_start(struct vnode_task *task) {
  static const long head_start_ns = 2000000;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += head_start_ns;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  retain(task);
  while (task->state != TASK_DONE && !pthread_cond_timedwait(&changed, &lock, &until))
    ;
  release(task);
}

/* Runs a task, or has a worker run it when it waits for other processes. */
static void start(struct vnode_task *task) {
  if (!(task->op.flags & VNODE_OP_WAITS)) {
    run(task);
    return;
  }
  size_t queued = 1;
  for (const struct vnode_task *each = jobs; each; each = each->next_waiting)
    queued++;
  if (queued > idle_workers && !start_thread(worker)) {
    run(task); /* no thread: as in eager order */
    return;
  }
  task->state = TASK_RUNNING;
  task->stream->busy = true;
  waiting_tasks++;
  struct vnode_task **end = &jobs;
  while (*end)
    end = &(*end)->next_waiting;
  *end = task;
  pthread_cond_signal(&job_ready);
  if (is_adversarial() && task->stream->draw >= late_below)
    give_head_start(task);
}

/* ------------------------------------------------------------------------------------------- choosing */

static bool is_better(const struct vnode_task *a, const struct vnode_task *b) {
  if (!b)
    return true;
  if (is_adversarial() && a->stream->draw != b->stream->draw)
    return a->stream->draw > b->stream->draw;
  return a->number < b->number;
}

/* The task to run next, or NULL. Nobody may wait for ever: when all that is wanted waits for other processes, those may in
   turn wait for work of ours that is not wanted here. */
static struct vnode_task *choose(bool anything) {
  struct vnode_task *wanted = NULL, *other = NULL, *volunteer = NULL;
  for (struct vnode_stream *stream = vnode_stream_next(NULL); stream; stream = vnode_stream_next(stream)) {
    if (!is_runnable(stream))
      continue;
    if (stream->head->wanted && is_better(stream->head, wanted))
      wanted = stream->head;
    if (!stream->head->wanted && is_better(stream->head, other))
      other = stream->head;
    if (!stream->head->wanted && is_adversarial() && stream->draw >= late_below && is_better(stream->head, volunteer))
      volunteer = stream->head;
  }
  if (wanted && volunteer && is_better(volunteer, wanted))
    return volunteer;
  return wanted ? wanted : anything || waiting_tasks ? other : NULL;
}

/* Marks a task and all that comes before it. */
static void want(struct vnode_task *task) {
  struct vnode_stream *stream = task->stream;
  struct vnode_task *each = stream->wanted ? stream->wanted->next : stream->head;
  if (task->state == TASK_DONE || (stream->wanted && task->number <= stream->wanted->number))
    return;
  stream->wanted = task;
  for (;; each = each->next) {
    each->wanted = true;
    for (size_t i = 0; i < each->after_count; i++)
      want(each->after[i]);
    if (each == task)
      return;
  }
}

static bool is_done(const struct vnode_task *task) {
  return !task || task->state == TASK_DONE;
}

/* Runs what is needed until `task` is done; `until`: at the latest when this time has come (NULL: never). */
static void finish(struct vnode_task *task, const struct timespec *until) {
  if (is_done(task))
    return;
  retain(task);
  want(task);
  while (!is_done(task)) {
    struct vnode_task *next = choose(false);
    if (next)
      start(next);
    else if (!until)
      pthread_cond_wait(&changed, &lock);
    else if (pthread_cond_timedwait(&changed, &lock, until))
      break;
  }
  release(task);
}

/* A GPU works while the host is busy elsewhere: what has been left alone for two ticks runs now. */
static void *background(void *unused) {
  (void)unused;
  static const int64_t tick_ns = 10 * 1000 * 1000;
  uint64_t seen = 0;
  for (;;) {
    vnode_pause(tick_ns);
    pthread_mutex_lock(&lock);
    struct vnode_task *next = NULL;
    while (pending && activity == seen && (next = choose(true))) {
      start(next);
      seen = activity;
    }
    seen = activity;
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void start_engine(void) {
  int rank = vnode_config()->rank;
  random_state = vnode_config()->seed * 0x9e3779b97f4a7c15u + (uint64_t)(rank < 0 ? 0 : rank);
  if (!start_thread(background))
    vnode_say_once("background", "no thread for the engine: work that nobody waits for does not run");
}

/* ------------------------------------------------------------------------------------------- submitting */

static void hand_over_host_time(struct vnode_stream *stream) {
  vnode_host_submissions++;
  vnode_host_reach(stream->host_ns);
  stream->host_ns = vnode_host_ns;
}

/* What the legacy stream and blocking streams wait for in each other. */
static size_t count_ordered(const struct vnode_stream *stream) {
  size_t count = 0;
  if (vnode_stream_is_blocking(stream))
    for (struct vnode_stream *each = vnode_stream_next(NULL); each; each = vnode_stream_next(each))
      count += vnode_stream_is_ordered_with(stream, each);
  return count;
}

static void add_ordered(struct vnode_task *task) {
  struct vnode_stream *stream = task->stream;
  if (!vnode_stream_is_blocking(stream))
    return;
  for (struct vnode_stream *each = vnode_stream_next(NULL); each; each = vnode_stream_next(each)) {
    if (!vnode_stream_is_ordered_with(stream, each))
      continue;
    add_after(task, each->tail);
    if (!each->tail && each->end_ns > task->floor_ns)
      task->floor_ns = each->end_ns;
    if (each->clock && stream->clock)
      join(stream->clock, each->clock);
  }
}

static void check_accesses(const struct vnode_stream *stream, const struct vnode_task *task) {
  if (!stream->clock || !task->op.access_count)
    return;
  for (size_t i = 0; task->op.flags & VNODE_OP_ALLOC && i < task->op.access_count; i++)
    vnode_race_fresh(task->op.accesses[i].at, extent(&task->op.accesses[i]));
  const struct vnode_race_op op = {.name = task->op.name,
                                   .lane = stream->lane,
                                   .epoch = stream->epoch,
                                   .clock = stream->clock,
                                   .frees = task->op.flags & VNODE_OP_FREE};
  vnode_race_access(&op, task->op.accesses, task->op.access_count);
}

/* Queues a task behind the stream's others and, if given, behind `event`'s record. NULL without memory. */
static struct vnode_task *enqueue(struct vnode_stream *stream, const struct vnode_op *op, struct vnode_event *event) {
  pthread_once(&start_once, start_engine);
  struct vnode_race_clock *clock = clock_of(stream);
  struct vnode_task *task = make_task(op, count_ordered(stream) + 1);
  if (!task)
    return NULL;
  hand_over_host_time(stream);
  task->stream = stream;
  task->number = ++last_number;
  task->floor_ns = vnode_host_ns;
  add_ordered(task);
  if (event) {
    add_after(task, event->task);
    if (!event->task && event->t_ns > task->floor_ns)
      task->floor_ns = event->t_ns;
    if (clock && event->clock)
      join(clock, event->clock);
  }
  if (clock)
    clock->at[stream->lane] = ++stream->epoch > clock->at[stream->lane] ? stream->epoch : clock->at[stream->lane];
  check_accesses(stream, task);
  watch_host_reads(task);
  poison_host_writes(task);
  if (stream->tail)
    stream->tail->next = task;
  else
    stream->head = task;
  stream->tail = task;
  pending++;
  activity++;
  return task;
}

/* Urgent streams run at once. */
static void volunteer(struct vnode_stream *stream) {
  while (is_adversarial() && stream->draw >= early_from && is_runnable(stream))
    start(stream->head);
}

enum vnode_status vnode_late_submit(struct vnode_stream *stream, const struct vnode_op *op) {
  pthread_mutex_lock(&lock);
  struct vnode_task *task = enqueue(stream, op, NULL);
  if (task)
    volunteer(stream);
  pthread_mutex_unlock(&lock);
  if (!task && op->drop)
    op->drop((void *)(uintptr_t)op->args);
  return task ? VNODE_OK : VNODE_SYSTEM;
}

/* ------------------------------------------------------------------------------------------- events */

static void settle(struct vnode_event *event) {
  if (event->task && event->task->state == TASK_DONE) {
    event->t_ns = event->task->end_ns;
    release(event->task);
    event->task = NULL;
  }
}

void vnode_late_record(struct vnode_event *event, struct vnode_stream *stream) {
  static const struct vnode_op record = {.name = "event record"};
  pthread_mutex_lock(&lock);
  struct vnode_task *task = enqueue(stream, &record, NULL);
  if (task) {
    release(event->task);
    event->task = retain(task);
    if (!event->clock)
      event->clock = malloc(sizeof *event->clock);
    if (event->clock && stream->clock)
      *event->clock = *stream->clock;
    volunteer(stream);
  }
  pthread_mutex_unlock(&lock);
}

void vnode_late_wait(struct vnode_stream *stream, struct vnode_event *event) {
  static const struct vnode_op wait = {.name = "event wait"};
  pthread_mutex_lock(&lock);
  settle(event);
  if (event->task || event->t_ns >= 0) { /* waiting for an event that was never recorded is nothing */
    enqueue(stream, &wait, event);
    volunteer(stream);
  }
  pthread_mutex_unlock(&lock);
}

void vnode_late_forget_event(struct vnode_event *event) {
  pthread_mutex_lock(&lock);
  release(event->task);
  free(event->clock);
  event->task = NULL;
  event->clock = NULL;
  pthread_mutex_unlock(&lock);
}

/* The host knows of its end, too: what comes next in its lane counts as ordered behind it. */
bool vnode_late_is_drained(struct vnode_stream *stream) {
  pthread_mutex_lock(&lock);
  bool drained = !stream->head && host_clock.at[stream->lane] >= stream->epoch;
  pthread_mutex_unlock(&lock);
  return drained;
}

enum vnode_status vnode_late_event_time(struct vnode_event *event, int64_t *t_ns) {
  pthread_mutex_lock(&lock);
  settle(event);
  *t_ns = event->t_ns;
  bool waits = event->task;
  pthread_mutex_unlock(&lock);
  return waits ? VNODE_NOT_READY : *t_ns < 0 ? VNODE_INVALID_VALUE : VNODE_OK;
}

/* ------------------------------------------------------------------------------------------- waiting */

/* The lock is held. */
static void synchronize(struct vnode_stream *stream) {
  struct vnode_race_clock clock;
  bool has_clock = stream->clock;
  if (has_clock)
    clock = *stream->clock;
  struct vnode_task *task = retain(stream->tail);
  finish(task, NULL);
  vnode_host_waited(task ? task->end_ns : stream->end_ns);
  release(task);
  if (has_clock)
    join_host(&clock);
}

void vnode_late_synchronize_stream(struct vnode_stream *stream) {
  if (vnode_running)
    return; /* work that waits for its own node would never end */
  pthread_mutex_lock(&lock);
  if (stream->legacy) /* it comes after all blocking streams, even when nothing was submitted to it since */
    for (struct vnode_stream *each = vnode_stream_next(NULL); each; each = vnode_stream_next(each))
      if (vnode_stream_is_ordered_with(stream, each))
        synchronize(each);
  synchronize(stream);
  pthread_mutex_unlock(&lock);
}

void vnode_late_synchronize_device(int device) {
  if (vnode_running)
    return;
  pthread_mutex_lock(&lock);
  for (struct vnode_stream *stream = vnode_stream_next(NULL); stream; stream = vnode_stream_next(stream))
    if (stream->device == device)
      synchronize(stream);
  pthread_mutex_unlock(&lock);
}

void vnode_late_synchronize_event(struct vnode_event *event) {
  if (vnode_running)
    return;
  pthread_mutex_lock(&lock);
  struct vnode_task *task = retain(event->task);
  struct vnode_race_clock clock;
  bool has_clock = event->clock;
  if (has_clock)
    clock = *event->clock;
  finish(task, NULL);
  vnode_host_waited(task ? task->end_ns : event->t_ns);
  release(task);
  if (has_clock)
    join_host(&clock);
  pthread_mutex_unlock(&lock);
}

/* Polling. A thread that drives the GPU and asks for the same thing again, with nothing submitted in between, waits: its
   clock moves on, by twice as much each time, up to the end that it waits for. */
static bool has_come(int64_t end_ns) {
  static _Thread_local int64_t polled_ns, step_ns;
  static _Thread_local uint64_t submissions;
  static const int64_t first_step_ns = 1000;
  if (!vnode_host_submissions || end_ns <= vnode_host_ns)
    return true;
  bool again = polled_ns == end_ns && submissions == vnode_host_submissions;
  step_ns = !again ? 0 : step_ns ? 2 * step_ns : first_step_ns;
  polled_ns = end_ns;
  submissions = vnode_host_submissions;
  vnode_host_reach(end_ns - vnode_host_ns < step_ns ? end_ns : vnode_host_ns + step_ns);
  return false;
}

/* Is it complete? A thread that submits makes it run, as a GPU would have by then, but does not wait for other processes for
   longer than they usually take. The lock is held. */
static bool poll_task(struct vnode_task *task, int64_t *end_ns) {
  enum { PATIENCE_S = 2, HURRY_ONE_IN = 4 };
  static const int64_t poll_ns = 1000;
  if (vnode_host_submissions && !is_done(task)) {
    if (is_adversarial() && draw() % HURRY_ONE_IN) { /* who asks has not waited */
      vnode_host_reach(vnode_host_ns + poll_ns);
      return false;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    finish(task, &until);
  }
  if (!is_done(task))
    return false;
  if (task)
    *end_ns = task->end_ns;
  return true;
}

bool vnode_late_stream_done(struct vnode_stream *stream) {
  pthread_mutex_lock(&lock);
  struct vnode_race_clock clock;
  bool has_clock = stream->clock;
  if (has_clock)
    clock = *stream->clock;
  struct vnode_task *task = retain(stream->tail);
  int64_t end_ns = stream->end_ns;
  bool done = poll_task(task, &end_ns) && has_come(end_ns);
  release(task);
  if (done && has_clock)
    join_host(&clock);
  pthread_mutex_unlock(&lock);
  return done;
}

bool vnode_late_event_done(struct vnode_event *event) {
  pthread_mutex_lock(&lock);
  settle(event);
  struct vnode_task *task = retain(event->task);
  int64_t end_ns = event->t_ns;
  bool done = poll_task(task, &end_ns) && has_come(end_ns);
  release(task);
  if (done)
    join_host(event->clock);
  pthread_mutex_unlock(&lock);
  return done;
}

/* ------------------------------------------------------------------------------------------- memory */

void vnode_engine_fresh(const void *base, size_t bytes) {
  if (!vnode_is_late())
    return;
  pthread_mutex_lock(&lock);
  vnode_race_fresh(base, bytes);
  pthread_mutex_unlock(&lock);
}

void vnode_engine_release(const void *base, size_t bytes, const char *how, bool waits) {
  if (!vnode_is_late()) {
    for (int device = 0; waits && device < vnode_config()->device_count; device++)
      if (vnode_device_touched(device))
        vnode_device_wait(device);
    return;
  }
  if (!waits) {
    pthread_mutex_lock(&lock);
    vnode_race_release(&host_clock, base, bytes, how);
    pthread_mutex_unlock(&lock);
  }
  for (int device = 0; device < vnode_config()->device_count; device++)
    vnode_late_synchronize_device(device);
  pthread_mutex_lock(&lock);
  vnode_race_release(&host_clock, base, bytes, how);
  pthread_mutex_unlock(&lock);
}

uint64_t vnode_race_count(void) {
  if (!vnode_is_late())
    return 0;
  pthread_mutex_lock(&lock);
  uint64_t count = vnode_race_reports();
  pthread_mutex_unlock(&lock);
  return count;
}
