#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the doctor says of running processes.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
patient=
trap '[ -z "$patient" ] || kill "$patient"; rm -rf "$work"' EXIT

# start NAME=VALUE... COMMAND...: in the background, as `patient`; back when the command itself runs
start() {
  env "$@" &
  patient=$!
  tries=0
  while [ "$(tr '\0' '\n' <"/proc/$patient/cmdline" | head -n 1)" = env ] || [ "$(cat "/proc/$patient/comm")" = sh ]; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || break
    sleep 0.01
  done
}

stop() {
  kill "$patient"
  wait "$patient" 2>/dev/null
  patient=
}

# log UNIX_NS: a log of the patient in the folder where it works
log() {
  mkdir -p b200opt-logs
  printf '{"t":"header","format":1,"producer":"b200opt 0","run":"r","pid":%d,"rank":0,"world":1,"unix_ns":%s}\n' "$patient" "$1" \
    >b200opt-logs/a.jsonl
}

# A log of an earlier process with the same id is none of this one.
start -u SM_OUTPUT_DATA_DIR sleep 60
log 1000000000
"$command" doctor --pid "$patient" >out 2>&1
grep -q '^  log        none of this process' out || fail "stale log: $(cat out)"
stop

# Settings that are known to hurt.
start NCCL_CUMEM_ENABLE=0 sleep 60
"$command" doctor --pid "$patient" >out 2>&1
grep -q '^  note       NCCL_CUMEM_ENABLE=0: ' out || fail "settings: $(cat out)"
stop

# An empty SM_OUTPUT_DATA_DIR is an unset one.
start SM_OUTPUT_DATA_DIR= sleep 60
log "$(date +%s)000000000"
"$command" doctor --pid "$patient" >out 2>&1
grep -q '^  log        .*b200opt-logs/a.jsonl, 1 lines, 0 steps' out || fail "log: $(cat out)"
stop

# A wrong variable is one problem, though the library has warned of it in the log as well.
start -u SM_OUTPUT_DATA_DIR B200OPT_NO_SUCH=1 sleep 60
log "$(date +%s)000000000"
"$command" doctor --pid "$patient" >out 2>&1
complaint=$(sed -n 's/^! variable *//p' out)
printf '{"t":"warn","text":"%s"}\n{"t":"warn","text":"another"}\n' "$complaint" >>b200opt-logs/a.jsonl
"$command" doctor --pid "$patient" >out 2>&1
[ -n "$complaint" ] && [ "$(grep -cF "$complaint" out)" = 1 ] || fail "wrong variable: $(cat out)"
grep -q '^! warning *another' out || fail "warning: $(cat out)"
stop

cat >threads.c <<'END'
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *work(void *unused) {
  sleep(60);
  return unused;
}

static volatile sig_atomic_t seen;

static void count(int signal) {
  (void)signal;
  seen++;
}

/* ended: the main thread ends, another goes on. signals: sends itself signals one by one and counts them. */
int main(int argc, char **argv) {
  pthread_t thread;
  if (argc > 1 && strcmp(argv[1], "ended") == 0) {
    pthread_create(&thread, NULL, work, NULL);
    pthread_exit(NULL);
  }
  signal(SIGUSR1, count);
  FILE *ready = fopen("ready", "w");
  fclose(ready);
  int sent = 0;
  while (access("enough", F_OK) != 0) {
    raise(SIGUSR1);
    sent++;
  }
  printf("%d\n", sent - (int)seen);
  return 0;
}
END
${CC:-cc} -pthread threads.c -o threads || fail "threads.c does not compile"

start ./threads ended
tries=0
while ! grep -q '^State:.*Z' "/proc/$patient/status" && [ $tries -lt 500 ]; do
  tries=$((tries + 1))
  sleep 0.01
done
"$command" doctor --pid "$patient" --stacks >out 2>&1
grep -q "process $patient: ./threads ended" out || fail "ended main thread: $(cat out)"
if grep -q '^! stacks .*Operation not permitted' out; then
  echo "ptrace is not allowed here: stacks are not tested"
else
  [ "$(grep -c '^  thread ' out)" = 1 ] || fail "ended main thread: $(cat out)"
fi
stop

# Signals that arrive while the stacks are taken are not lost.
./threads signals >lost &
patient=$!
tries=0
while [ ! -e ready ] && [ $tries -lt 500 ]; do
  tries=$((tries + 1))
  sleep 0.01
done
for _ in 1 2 3 4 5 6 7 8 9 10; do
  "$command" doctor --pid "$patient" --stacks >out 2>&1
done
: >enough
wait "$patient"
patient=
[ "$(cat lost)" = 0 ] || fail "signals lost: $(cat lost)"

[ "$failed" = 0 ] || echo "$failed failed"
exit "$((failed > 0))"
