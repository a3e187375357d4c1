#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/long.sh NAME    one campaign that takes too long for every run; its short form is in tools/check
#   list   names and durations on two cores
#   e2e    every client for more steps, 4 and 8 ranks                             40 minutes
#   e2e12  every client, and torch's own operator database, with CUDA 12's PyTorch 30 minutes
#   orders every client in 20 seeds of adversarial order (forked from one process) 60 minutes
#   orders-fp8, orders-mxfp8, orders-auto  the same with converted GEMMs          60 minutes each
#   curves 600 steps in BF16, FP8, MXFP8 and auto, two seeds, and the emulations   60 minutes
#   ab-simulation  the verdicts of compare where the truth is known, 5,000 runs a cell, and the cover of its intervals  4 minutes
#   ab-mutants  wrong constants in the verdicts of compare: each fails a test       15 minutes
#   order  20,000 random access patterns, 3,000 random programs and all wrong ones   60 minutes
#   steps  steps, losses, FLOPs, collectives and device times of every trainer, 2 to 8 ranks  30 minutes
#   soak   10,000 steps in each order: nothing grows                               60 minutes
#   guard  2,000 steps of the demo job in FP8 and MXFP8: the guard finds nothing    15 minutes
#   fuzz   each fuzz target for ten minutes with libFuzzer, under the sanitizers  100 minutes
#   ranks  the logs of 1,024 ranks in one report                                   4 minutes
#   overlap  2,000,000 random programs through the accounting of collectives       5 minutes
#   million  10^6 collectives in a log of 1 MiB, three times: sums and drops are exact  10 minutes
#   kill   120 jobs killed at random moments: their logs can be read               10 minutes
#   timing-faults  every call of the timing made to fail, exits at random moments  10 minutes
#   storm  20,000 forks of a process that uses CUDA in two threads                 5 minutes
#   ledger every client with every allocator of PyTorch: the ledger is the node's own count after each step  20 minutes
#   pool   100 seeds of adversarial order, 64 threads that share device memory: no byte is wrong  60 minutes
#   faults every call of small programs made to fail, bare and with the library     3 minutes
#   pool-faults  every call of a program that fills the device made to fail, bare and with the pool of its memory  5 minutes
#   convert      converted GEMMs on every GPU in every order; every call of a conversion fails  25 minutes
#   demo-faults  300 faults in the demo job, bare and with the library; 100 while it converts  80 minutes
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  list) sed -n 's/^#   //p' "$0" ;;
  e2e)
    tools/setup --tests
    exec ctest --test-dir build/release -C long -L '^long$' --output-on-failure --no-tests=error
    ;;
  e2e12)
    tools/setup --tests
    exec ctest --test-dir build/release -C long -L '^long12$' --output-on-failure --no-tests=error
    ;;
  orders)
    tools/setup --tests
    exec build/release/b200opt dryrun --gpus 4 --log "$(mktemp -d)" -- .venv/bin/python -B tests/e2e/sweep.py
    ;;
  orders-fp8 | orders-mxfp8 | orders-auto)
    tools/setup --tests
    exec build/release/b200opt dryrun --gpus 4 --log "$(mktemp -d)" -- .venv/bin/python -B tests/e2e/sweep.py --precision "${1#orders-}"
    ;;
  pool)
    tools/setup --tests
    POOL_SEEDS=100 POOL_THREADS=64 POOL_OPERATIONS=4000 B200_BUILD="$PWD/build/release" exec .venv/bin/python -B -m pytest -q -p no:cacheprovider \
      tests/pool/test_corruption.py
    ;;
  curves)
    tools/setup --tests
    exec .venv/bin/python -B tests/e2e/curves.py --b200opt build/release/b200opt --out build/curves
    ;;
  ab-simulation)
    tools/setup --tests
    build/release/tests/compare/compare_simulate_loss 5000
    exec build/release/tests/compare/compare_simulate_speed 5000
    ;;
  ab-mutants)
    tools/setup --tests
    exec .venv/bin/python -B tests/compare/mutants.py build/release
    ;;
  order)
    tools/setup --tests
    cd build/release
    tests/vnode_order/test_race_random 20000
    tests/vnode_order/bench_race
    B200_TEST_SEEDS=100 B200_TEST_TABLE=1 tests/vnode_order/test_order_programs
    tests/vnode_order/test_order_random 3000 1000 8
    B200_TEST_SEEDS=20 exec ctest -R '^vnode.order_torch$' --timeout 3000 --output-on-failure --no-tests=error
    ;;
  steps)
    tools/setup --tests
    exec build/release/b200opt dryrun --gpus 8 --log "$(mktemp -d)" -- .venv/bin/python -B tests/e2e/steps.py --long
    ;;
  soak)
    tools/setup --tests
    exec ctest --test-dir build/release -C long -L '^long_soak$' --output-on-failure --no-tests=error
    ;;
  guard)
    tools/setup --tests
    exec ctest --test-dir build/release -C long -L '^long_guard$' --output-on-failure --no-tests=error
    ;;
  fuzz)
    tools/setup --tests
    cmake --preset asan-ubsan -B build/fuzz "-DB200_PYTHON=$PWD/.venv/bin/python" -DB200_FUZZ=ON -DB200_VNODE=OFF >build/fuzz.log
    for target in loss_scan config rules log_line kineto rmm csv trainer_state tensorboard output; do
      cmake --build build/fuzz --target "fuzz_$target" >>build/fuzz.log
      "build/fuzz/tests/fuzz/fuzz_$target" -max_total_time=600 -print_final_stats=1 "$(mktemp -d)" "tests/fuzz/corpus/$target" 2>&1 |
        tail -n 8
    done
    echo "10 passed, 0 failed"
    ;;
  overlap)
    tools/setup --tests
    B200_TEST_PROGRAMS=2000000 exec build/release/tests/unit/unit_comm_overlap_random
    ;;
  ledger)
    tools/setup --tests
    B200_LONG=1 B200_BUILD=$PWD/build/release exec .venv/bin/python -B -m pytest -q -rs -p no:cacheprovider tests/ledger
    ;;
  faults)
    tools/setup --tests
    B200_BUILD=$PWD/build/release exec .venv/bin/python -B tests/vnode_faults/faults.py
    ;;
  pool-faults)
    tools/setup --tests
    B200_BUILD=$PWD/build/release exec .venv/bin/python -B tests/vnode_faults/pool_faults.py
    ;;
  convert)
    tools/setup --tests
    B200_LONG=1 B200_BUILD=$PWD/build/release exec .venv/bin/python -B -m pytest -q -s -p no:cacheprovider tests/convert
    ;;
  demo-faults)
    tools/setup --tests
    B200_BUILD=$PWD/build/release .venv/bin/python -B tests/vnode_faults/demo_faults.py 300 1
    B200_BUILD=$PWD/build/release exec .venv/bin/python -B tests/vnode_faults/demo_faults.py 100 1 --precision mxfp8
    ;;
  ranks)
    tools/setup --tests
    exec .venv/bin/python -B tests/bench/ranks.py build/release/b200opt 1024
    ;;
  million)
    tools/setup --tests
    B200_LONG=1 B200_BUILD=$PWD/build/release exec .venv/bin/python -B -m pytest -q -p no:cacheprovider tests/timing/test_bounds.py -k steps
    ;;
  kill)
    tools/setup --tests
    B200_LONG=1 B200_BUILD=$PWD/build/release exec .venv/bin/python -B -m pytest -q -p no:cacheprovider tests/timing/test_bounds.py -k kill
    ;;
  timing-faults)
    tools/setup --tests
    B200_LONG=1 B200_BUILD=$PWD/build/release exec .venv/bin/python -B -m pytest -q -p no:cacheprovider tests/timing/test_faults.py tests/timing/test_robust.py
    ;;
  storm)
    tools/setup --tests
    logs=$(mktemp -d)
    B200OPT_LOG_DIR=$logs LD_PRELOAD=$PWD/build/release/libb200opt.so build/release/tests/shim/shim_storm 20000
    echo "1 passed, 0 failed"
    ;;
  *)
    echo "long: ${1:-no name}: not a campaign; see tools/check --long list" >&2
    exit 1
    ;;
esac
