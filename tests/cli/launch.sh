#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What run and dryrun hand to the job: LD_PRELOAD, variables, arguments, exit status. Libraries are empty stand-ins.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
empty_library
install home libb200opt.so
mkdir other python
cp empty.so other/libother.so
cp empty.so other/libb200opt.so
stand_ins="libb200vnode.so libcudart.so.13 libcuda.so.1 libcublasLt.so.13 libcublas.so.13 libnccl.so.2 libnvidia-ml.so.1"
stand_ins_12="libb200vnode.so cuda12/libcudart.so.12 libcuda.so.1 cuda12/libcublasLt.so.12 cuda12/libcublas.so.12 libnccl.so.2 libnvidia-ml.so.1"
mkdir home/lib/b200opt/vnode/cuda12
for name in $stand_ins $stand_ins_12; do
  cp empty.so home/lib/b200opt/vnode/$name
done
b200opt=home/bin/b200opt
ours=$work/home/lib/libb200opt.so

same() {
  [ "$2" = "$3" ] || fail "$1: '$2', not '$3'"
}

same "LD_PRELOAD" "$($b200opt run -- printenv LD_PRELOAD)" "$ours"
same "others stay behind" "$(LD_PRELOAD="$work/other/libother.so" $b200opt run -- printenv LD_PRELOAD)" "$ours:$work/other/libother.so"
same "not twice, wherever it lies" \
  "$(LD_PRELOAD="$work/other/libother.so $work/other/libb200opt.so" $b200opt run -- printenv LD_PRELOAD)" \
  "$ours:$work/other/libother.so"
same "run in run" "$($b200opt run -- $b200opt run -- printenv LD_PRELOAD)" "$ours"
same "settings" "$($b200opt run A=1 B200OPT_ARM='x y' -- sh -c 'echo "$A,$B200OPT_ARM,$*"' sh --json -x A=2)" "1,x y,--json -x A=2"
same "settings without --" "$($b200opt run A=1 printenv A)" "1"
same "words behind -- are the command" "$($b200opt run -- env A=3 printenv A)" "3"
$b200opt run -- sh -c 'exit 37'
same "exit status" $? 37
same "nothing on stdout or stderr" "$($b200opt run -- true 2>&1)" ""

# dryrun. A Python whose torch is a CUDA 13 build, as far as it looks; the layer is not compiled when its folder is given.
mkdir -p python/torch
printf "__version__ = '2.15.0+cu130'\ncuda: Optional[str] = '13.0'\n" >python/torch/version.py
printf '#!/bin/sh\ncase "$*" in *find_spec*) echo %s/python/torch/__init__.py ;; *) shift; exec "$@" ;; esac\n' "$work" >python/python3
printf '#!%s/python/python3\n' "$work" >python/torchrun
chmod +x python/python3 python/torchrun
export B200OPT_VNODE_ATEN_DIR="$work/aten"
dry() {
  $b200opt dryrun "$@" 2>err
}
list=$ours
for name in $stand_ins; do
  list=$list:$work/home/lib/b200opt/vnode/$name
done
same "dryrun's LD_PRELOAD" "$(dry -- python/python3 - printenv LD_PRELOAD)" "$list"
printf "__version__ = '2.10.0+cu128'\ncuda: Optional[str] = '12.8'\n" >python/torch/version.py
list_12=$ours
for name in $stand_ins_12; do
  list_12=$list_12:$work/home/lib/b200opt/vnode/$name
done
same "dryrun's LD_PRELOAD for CUDA 12" "$(dry -- python/python3 - printenv LD_PRELOAD)" "$list_12"
printf "__version__ = '2.15.0+cu130'\ncuda: Optional[str] = '13.0'\n" >python/torch/version.py
same "dryrun --bare" "$(dry --bare -- python/python3 - printenv LD_PRELOAD)" "${list#"$ours":}"
same "a script's Python" "$(PATH=$work/python:$PATH dry -- torchrun printenv OMP_NUM_THREADS)" "1"
same "numerics" "$(dry -- python/python3 - sh -c 'echo $OMP_NUM_THREADS $MKL_NUM_THREADS $MKL_CBWR $TORCHDYNAMO_DISABLE')" "1 1 AUTO 1"
grep -q '^b200opt: torch.compile is off: ' err || fail "dryrun does not say that torch.compile is off"
same "what is set stays" "$(OMP_NUM_THREADS=2 MKL_CBWR=AVX2 TORCHDYNAMO_DISABLE=0 dry -- python/python3 - sh -c 'echo $OMP_NUM_THREADS $MKL_CBWR $TORCHDYNAMO_DISABLE')" "2 AVX2 0"
grep -q 'torch.compile is off' err && fail "dryrun says that torch.compile is off although the user has turned it on"
same "gpus and logs" "$(dry --gpus 3 --log a/b -- python/python3 - sh -c 'echo $B200OPT_VNODE_GPUS $B200OPT_LOG_DIR $B200OPT_VNODE_LOG_DIR')" \
  "3 $work/a/b $work/a/b"
[ -d a/b ] || fail "dryrun --log does not make the folder"
same "session" "$(dry --session s -- python/python3 - printenv B200OPT_VNODE_SESSION)" "s"
first=$(dry -- python/python3 - printenv B200OPT_VNODE_SESSION)
second=$(dry -- python/python3 - printenv B200OPT_VNODE_SESSION)
[ -n "$first" ] && [ "$first" != "$second" ] || fail "two dryruns share the session '$first'"
dry -- python/python3 - sh -c 'exit 41'
same "dryrun's exit status" $? 41

[ "$failed" = 0 ] || echo "$failed failed"
exit "$((failed > 0))"
