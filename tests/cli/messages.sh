#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each row: exit status | environment and arguments of b200opt (shell words) | the whole of stderr, lines joined by '\n'.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
empty_library
install good libb200opt.so
install bare
install broken
echo 'not a library' >broken/lib/libb200opt.so
mkdir -p logs "with blank" notlogs
echo '{"text":1}' >notlogs/data.jsonl
printf 'B200OPT_MEMRY=off\nB200OPT_LOG_MAX_MB=big\nnonsense\n' >bad.conf
printf 'Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000000,alloc,0x1,1,0\n' >rmm.csv
printf 'Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000000,allocate,0x1,1,0\n' >rmm0.csv
echo 'echo ran' >script
printf 'step,loss\n1,2.5\n2,2.4\n' >a.csv
chmod 644 script
cp -r good "with blank/"
mkdir -p complete
cp -r good complete/
for name in libb200vnode.so libcudart.so.13 libcuda.so.1 libcublasLt.so.13 libcublas.so.13 libnccl.so.2 libnvidia-ml.so.1; do
  cp empty.so complete/good/lib/b200opt/vnode/$name
done
# Pythons with one torch each, as far as dryrun looks.
for kind in none cpu old cuda12 cuda13; do
  mkdir -p $kind/torch
  printf '#!/bin/sh\necho %s/torch/__init__.py\n' "$work/$kind" >$kind/python3
  chmod +x $kind/python3
done
rm none/python3
printf '#!/bin/sh\nexit 1\n' >none/python3
chmod +x none/python3
printf "__version__ = '2.9.0+cpu'\ncuda = None\n" >cpu/torch/version.py
printf "__version__ = '2.7.1+cu118'\ncuda: Optional[str] = '11.8'\n" >old/torch/version.py
printf "__version__ = '2.10.0+cu128'\ncuda: Optional[str] = '12.8'\n" >cuda12/torch/version.py
printf "__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\n" >cuda13/torch/version.py

row() {
  expected_status=$1 words=$2 expected=$3
  status=0
  eval "env $words" >out 2>err || status=$?
  [ "$status" = "$expected_status" ] || fail "$words: exit status $status, not $expected_status"
  printf "$expected" | sed "s|WORK|$work|g" >wanted
  sed "s|process [0-9][0-9]*|process N|" err | diff wanted - || fail "$words: another message"
}

good=good/bin/b200opt
# arguments
row 2 "$good" 'b200opt: a verb is missing (run, dryrun, report, trace, replay, compare, ab, doctor, lint, sagemaker); see b200opt --help\n'
row 2 "$good rnu" "b200opt: unknown verb 'rnu' (run, dryrun, report, trace, replay, compare, ab, doctor, lint, sagemaker); see b200opt --help\n"
row 2 "$good run" 'b200opt: run: a command is missing; see b200opt run --help\n'
row 2 "$good run A=1 --" 'b200opt: run: a command is missing; see b200opt run --help\n'
row 2 "$good run --gpus 2 -- true" "b200opt: run: unrecognized option '--gpus'\n"
row 2 "$good dryrun --gpus" "b200opt: dryrun: option '--gpus' requires an argument\n"
row 2 "$good dryrun" 'b200opt: dryrun: a command is missing; see b200opt dryrun --help\n'
row 2 "$good dryrun --gpus 9 -- true" "b200opt: dryrun: --gpus: '9' is not accepted (accepted: 1..8)\n"
row 2 "$good dryrun --gpus two -- true" "b200opt: dryrun: --gpus: 'two' is not accepted (accepted: 1..8)\n"
row 2 "$good report" 'b200opt: report: a log folder is missing; see b200opt report --help\n'
row 2 "$good report a b" "b200opt: report: one log folder is enough, 'b' is too much; see b200opt report --help\n"
row 2 "$good report --xml a" "b200opt: report: unrecognized option '--xml'\n"
row 2 "$good report --json=x a" "b200opt: report: option '--json' doesn't allow an argument\n"
row 2 "$good trace" 'b200opt: trace: a log folder is missing; see b200opt trace --help\n'
row 2 "$good sagemaker" 'b200opt: sagemaker: what to write is missing (metrics); see b200opt sagemaker --help\n'
row 2 "$good sagemaker metrix" "b200opt: sagemaker: 'metrix' is not accepted (accepted: metrics)\n"
row 2 "$good sagemaker metrics x" "b200opt: sagemaker: 'x' is too much; see b200opt sagemaker --help\n"
row 3 "$good sagemaker metrics >/dev/full" "b200opt: sagemaker: standard output cannot be written\n"
row 2 "$good trace a b" "b200opt: trace: one log folder is enough, 'b' is too much; see b200opt trace --help\n"
row 2 "$good trace --xml a" "b200opt: trace: unrecognized option '--xml'\n"
row 3 "$good trace nowhere" "b200opt: trace: cannot read 'nowhere': No such file or directory\n"
row 3 "$good trace logs" "b200opt: trace: 'logs' has no logs of the library (*.jsonl)\n"
row 3 "$good trace logs --run x" "b200opt: trace: 'logs' has no run named 'x'\n"
row 2 "$good replay" 'b200opt: replay: a file or a log folder is missing; see b200opt replay --help\n'
row 2 "$good replay a b" "b200opt: replay: one file or log folder is enough, 'b' is too much; see b200opt replay --help\n"
row 2 "$good replay --policy best a" \
  "b200opt: replay: --policy: 'best' is not known (accepted: all, recorded, cudamalloc, cache, expandable, native)\n"
row 2 "$good replay --rank -1 a" "b200opt: replay: --rank: '-1' is not a rank (accepted: 0 and up)\n"
row 2 "$good replay --rank 1x a" "b200opt: replay: --rank: '1x' is not a rank (accepted: 0 and up)\n"
row 2 "$good replay --gpu-memory 0 a" "b200opt: replay: --gpu-memory: '0' is not accepted (accepted: GiB above 0, up to 65536)\n"
row 2 "$good replay --gpu-memory nan a" \
  "b200opt: replay: --gpu-memory: 'nan' is not accepted (accepted: GiB above 0, up to 65536)\n"
row 2 "$good replay --rank 0 rmm.csv" "b200opt: replay: --rank and --run go with logs of b200opt; 'rmm.csv' is one of RMM\n"
row 3 "$good replay nowhere" "b200opt: replay: cannot read 'nowhere': No such file or directory\n"
row 3 "$good replay script" \
  "b200opt: replay: 'script' is no log (accepted: *.jsonl of b200opt, or a file whose first line is 'Thread,Time,Action,Pointer,Size,Stream')\n"
row 3 "$good replay rmm.csv" "b200opt: replay: rmm.csv:2: Action is not known (accepted: allocate, free, allocate failure)\n"
row 3 "$good replay logs" "b200opt: replay: 'logs' has no recorded allocations (run the job with B200OPT_MEMORY_TRACE=on)\n"
row 3 "$good replay rmm0.csv >/dev/full" "b200opt: replay: standard output cannot be written\n"
row 3 "$good replay rmm0.csv --rmm-csv /dev/full" "b200opt: replay: cannot write '/dev/full': No space left on device\n"
row 3 "$good replay rmm0.csv --rmm-csv no/out" "b200opt: replay: cannot write 'no/out': No such file or directory\n"
row 64 "$good compare" "b200opt: compare: the baseline is missing; see b200opt compare --help\n"
row 64 "$good compare a" "b200opt: compare: the candidate is missing; see b200opt compare --help\n"
row 64 "$good compare a b c" \
  "b200opt: compare: a baseline and a candidate are enough, 'c' is too much; see b200opt compare --help\n"
row 64 "$good compare --xml a b" "b200opt: compare: unrecognized option '--xml'\n"
row 64 "$good compare --margin 0 a b" "b200opt: compare: --margin: '0' is not accepted (accepted: a number above 0)\n"
row 64 "$good compare --floor -1 a b" "b200opt: compare: --floor: '-1' is not accepted (accepted: a number from 0)\n"
row 64 "$good compare --price-per-hour 1x a b" \
  "b200opt: compare: --price-per-hour: '1x' is not accepted (accepted: a number above 0)\n"
row 3 "$good compare nowhere logs" "b200opt: compare: nowhere: No such file or directory\n"
row 3 "$good compare a.csv a.csv --html no/out.html" "b200opt: compare: cannot write 'no/out.html': No such file or directory\n"
row 3 "$good compare a.csv a.csv >/dev/full" "b200opt: compare: standard output cannot be written\n"
row 64 "$good ab" "b200opt: ab: what to compare is missing (--arm NAME: twice); see b200opt ab --help\n"
row 64 "$good ab --arm a: -- true" "b200opt: ab: an arm is missing (--arm NAME: twice); see b200opt ab --help\n"
row 64 "$good ab --arm a: --arm b:" "b200opt: ab: a command is missing; see b200opt ab --help\n"
row 64 "$good ab --arm a: --arm a: -- true" "b200opt: ab: --arm: both arms are called 'a'\n"
row 64 "$good ab --arm a: --arm b: --arm c: -- true" "b200opt: ab: --arm: two arms are compared, 'c:' is too much\n"
row 64 "$good ab --arm ../a: --arm b: -- true" \
  "b200opt: ab: --arm: '../a:' is not accepted (accepted: a name of letters, digits, . _ - + and a colon)\n"
row 64 "$good ab --arm a --arm b: -- true" \
  "b200opt: ab: --arm: 'a' is not accepted (accepted: a name of letters, digits, . _ - + and a colon)\n"
row 64 "$good ab --runs 0 --arm a: --arm b: -- true" "b200opt: ab: --runs: '0' is not accepted (accepted: 1..1000)\n"
row 64 "$good ab --gpus 2 --arm a: --arm b: -- true" "b200opt: ab: --gpus goes with --dryrun; see b200opt ab --help\n"
row 2 "$good doctor -x" "b200opt: doctor: invalid option -- 'x'\n"
row 2 "$good doctor --pid abc" "b200opt: doctor: --pid: 'abc' is not a process id\n"
row 2 "$good doctor --pid -1" "b200opt: doctor: --pid: '-1' is not a process id\n"
row 2 "$good doctor --stacks" 'b200opt: doctor: --stacks needs --pid\n'
row 2 "$good doctor here" "b200opt: doctor: unexpected argument 'here'; see b200opt doctor --help\n"
# files
row 3 "$good report nowhere" "b200opt: report: cannot read 'nowhere': No such file or directory\n"
row 3 "$good report logs" "b200opt: report: 'logs' has no logs of b200opt (*.jsonl) and no output with losses (*.out)\n"
row 3 "$good report notlogs" "b200opt: report: 'notlogs' has no logs of b200opt (*.jsonl) and no output with losses (*.out)\n"
row 3 "$good report logs --run x" "b200opt: report: 'logs' has no run named 'x'\n"
row 3 "$good doctor --pid 2147483647" 'b200opt: doctor: cannot look at process N: No such process\n' # above pid_max
row 3 "bare/bin/b200opt run -- true" 'b200opt: libb200opt.so is neither in WORK/bare/bin nor in WORK/bare/bin/../lib\n'
row 3 "broken/bin/b200opt run -- true" \
  'b200opt: libb200opt.so does not load: WORK/broken/lib/libb200opt.so: file too short\n'
row 3 "'with blank/good/bin/b200opt' run -- true" \
  "b200opt: 'WORK/with blank/good/lib/libb200opt.so' cannot be preloaded: LD_PRELOAD has no way to write a blank or a colon in a path\n"
row 127 "$good run -- no-such-command" "b200opt: cannot run 'no-such-command': No such file or directory\n"
row 126 "$good run -- ./script" "b200opt: cannot run './script': Permission denied\n"
row 3 "$good dryrun -- cuda13/python3 x" \
  'b200opt: WORK/good/lib/b200opt/vnode/libb200vnode.so: No such file or directory; the virtual node is incomplete (tools/setup --cuda 13 builds it)\n'
node=complete/good/bin/b200opt
row 3 "$node dryrun -- cuda12/python3 x" \
  'b200opt: WORK/complete/good/lib/b200opt/vnode/cuda12/libcudart.so.12: No such file or directory; the virtual node is incomplete (tools/setup --cuda 12 builds it)\n'
row 3 "$node dryrun -- none/python3 x" 'b200opt: dryrun: none/python3 has no torch; the virtual node needs a CUDA build of PyTorch\n'
row 3 "$node dryrun -- cpu/python3 x" \
  'b200opt: dryrun: torch 2.9.0+cpu of cpu/python3 is a CPU build; the virtual node needs one for CUDA 12 or 13\n'
row 3 "$node dryrun -- old/python3 x" \
  'b200opt: dryrun: torch 2.7.1+cu118 of old/python3 is built for CUDA 11.8; the virtual node needs one for CUDA 12 or 13\n'
# variables: said, and the job runs
row 0 "$good run -- true" ''
row 0 "B200OPT=of $good run -- true" "b200opt: B200OPT: 'of' is not accepted (accepted: on|off); using the default 'on'\n"
row 0 "$good run B200OPT_PRECISION=nvfp4 -- true" \
  "b200opt: B200OPT_PRECISION: 'nvfp4' is not in this version (accepted: observe|native|auto|fp8|mxfp8); using the default 'observe'\n"
row 0 "$good run B200OPT_MEMORY=cache -- true" \
  "b200opt: B200OPT_MEMORY: 'cache' is not accepted (accepted: observe|pool|off); using the default 'observe'\n"
row 0 "$good run B200OPT_MEMORY_STACKS=1 -- true" \
  "b200opt: B200OPT_MEMORY_STACKS: '1' is not accepted (accepted: off|on); using the default 'off'\n"
row 0 "$good run B200OPT_LOSS=no -- true" "b200opt: B200OPT_LOSS: 'no' is not accepted (accepted: on|off); using the default 'on'\n"
row 0 "$good run B200OPT_STEP_PERIOD=-1 -- true" \
  "b200opt: B200OPT_STEP_PERIOD: '-1' is not accepted (accepted: 0..1000000); using the default '0'\n"
row 0 "$good run B200OPT_LOG_LEVEL=debug -- true" \
  "b200opt: B200OPT_LOG_LEVEL: 'debug' is not accepted (accepted: silent|warn|info); using the default 'warn'\n"
row 0 "$good run B200OPT_LOG_MAX_MB=1.5 -- true" \
  "b200opt: B200OPT_LOG_MAX_MB: '1.5' is not accepted (accepted: 1..65536); using the default '256'\n"
row 0 "$good run B200OPT_STRICT=on -- true" "b200opt: B200OPT_STRICT: 'on' is not accepted (accepted: 0|1); using the default '0'\n"
row 0 "$good run B200OPT_PRECISON=observe -- true" \
  'b200opt: unknown variable B200OPT_PRECISON is ignored; the nearest known one is B200OPT_PRECISION\n'
row 0 "$good run 'B200OPT_LOSS_REGEX=loss .*?([0-9]+)' -- true" \
  "b200opt: B200OPT_LOSS_REGEX: 'loss .*?([0-9]+)' is not usable: a repetition cannot follow another (lazy *? and possessive ++ are not POSIX); using the built-in forms\n"
row 0 "$good run 'B200OPT_RULES=k<64:bf17' -- true" \
  "b200opt: B200OPT_RULES: column 6: 'bf17' is not an action (accepted: native, bf16, fp8, mxfp8, auto, inherit); no rule is in place\n"
row 2 "$good run B200OPT_STRICT=1 B200OPT_RULES=k -- true" \
  "b200opt: B200OPT_RULES: column 2: '' after k is not a comparison (accepted: = != < <= > >=); no rule is in place\nb200opt: the job is not started: a variable is wrong and B200OPT_STRICT is 1\n"
row 0 "$good run B200OPT_LOSS_REGEX=loss -- true" \
  "b200opt: B200OPT_LOSS_REGEX: 'loss' is not usable: it has no group (...) for the loss; using the built-in forms\n"
row 0 "$good run B200OPT_VNODE_GPUS=0 -- true" "b200opt: B200OPT_VNODE_GPUS: '0' is not accepted (accepted: 1..8)\n"
row 0 "$good run B200OPT_VNODE_GPU=v100 -- true" "b200opt: B200OPT_VNODE_GPU: 'v100' is not accepted (accepted: b200|b300|h200|h100|a100|l40s|rtx_pro_6000)\n"
row 0 "$good run B200OPT_VNODE_UNHANDLED=skip -- true" \
  "b200opt: B200OPT_VNODE_UNHANDLED: 'skip' is not accepted (accepted: fatal|warn)\n"
row 0 "$good run B200OPT_CONFIG=none.conf -- true" \
  "b200opt: B200OPT_CONFIG: cannot read 'none.conf': errno 2; its variables are not set\n"
row 0 "$good run B200OPT_CONFIG=logs -- true" \
  "b200opt: B200OPT_CONFIG: cannot read 'logs': not a regular file; its variables are not set\n"
row 0 "$good run B200OPT_CONFIG=bad.conf -- true" \
  "b200opt: bad.conf:1: unknown variable B200OPT_MEMRY is ignored; the nearest known one is B200OPT_MEMORY\nb200opt: bad.conf:2: B200OPT_LOG_MAX_MB: 'big' is not accepted (accepted: 1..65536); using the default '256'\nb200opt: bad.conf:3: 'nonsense' is not NAME=VALUE and ignored\n"
# … and with B200OPT_STRICT=1 it does not
row 2 "$good run B200OPT_STRICT=1 B200OPT=of -- true" \
  "b200opt: B200OPT: 'of' is not accepted (accepted: on|off); using the default 'on'\nb200opt: the job is not started: a variable is wrong and B200OPT_STRICT is 1\n"
row 2 "B200OPT_STRICT=1 $good run B200OPT_VNODE_MEMORY_GB=x -- true" \
  "b200opt: B200OPT_VNODE_MEMORY_GB: 'x' is not accepted (accepted: 1..1024)\nb200opt: the job is not started: a variable is wrong and B200OPT_STRICT is 1\n"
row 2 "$good dryrun B200OPT_STRICT=1 B200OPT_LGO_DIR=x -- true" \
  "b200opt: unknown variable B200OPT_LGO_DIR is ignored; the nearest known one is B200OPT_LOG_DIR\nb200opt: the job is not started: a variable is wrong and B200OPT_STRICT is 1\n"
row 0 "$good run B200OPT_STRICT=1 -- true" ''

# doctor says the same on stdout, with a mark
status=0
env B200OPT_LOSS=no $good doctor >out 2>err || status=$?
[ $status = 1 ] || fail "doctor: exit status $status, not 1"
grep -qx "! variable   B200OPT_LOSS: 'no' is not accepted (accepted: on|off); using the default 'on'" out || fail "doctor: $(cat out)"
tail -n 1 out | grep -qx "verdict      1 problem, marked by '!'" || fail "doctor: verdict $(tail -n 1 out)"
$good doctor >out 2>&1 || fail "doctor in order: $(cat out)"
tail -n 1 out | grep -qx "verdict      ready: b200opt run -- COMMAND" || fail "doctor: verdict $(tail -n 1 out)"

[ "$failed" = 0 ] || echo "$failed failed"
exit "$((failed > 0))"
