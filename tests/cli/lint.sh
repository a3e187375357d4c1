#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What lint says of variables, rules, shapes, models and logs, and its exit status.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

# lint STATUS PATTERN ARGUMENT...: `out` has a line that the extended pattern fits; settings come from $with
lint() {
  expected_status=$1
  pattern=$2
  shift 2
  status=0
  # shellcheck disable=SC2086
  env $with "$command" lint "$@" >out 2>&1 || status=$?
  [ "$status" = "$expected_status" ] || fail "lint $*: exit status $status, not $expected_status"
  grep -Eqx -- "$pattern" out || fail "lint $*: no line '$pattern' in: $(cat out)"
  awk '/^b200opt|^wrong/ { next } length > 100 { exit 1 }' out || fail "lint $*: a line is longer than 100 columns"
}

with=
lint 0 'right     the variables, and 0 rules'
with='B200OPT_RULES=k<64:native;step<10:native;*:bf16'
lint 0 'rule 1    k<64:native'
lint 0 'rule 3    \*:native'
lint 0 'right     the variables, and 3 rules, some of which ask where in the job a GEMM stands'
with='B200OPT_RULES=k<64:nativ'
lint 1 "wrong     B200OPT_RULES: column 6: 'nativ' is not an action .*"
with='B200OPT_PRECISION=nvfp4'
lint 1 "wrong     B200OPT_PRECISION: 'nvfp4' is not in this version .*"
printf '# the ends stay\nindex<2:native\nindex>=30:native\n' >rules
with='B200OPT_RULES_FILE=rules'
lint 0 'rule 2    index>=30:native'
with='B200OPT_RULES_FILE=nowhere'
lint 1 "wrong     B200OPT_RULES_FILE: 'nowhere': it cannot be opened; no rule is in place"

# what is known to hurt, of PyTorch and NCCL; each row: tests/unit_tools/test_settings.c
with='PYTORCH_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0'
lint 1 'hurts     expandable_segments:True with max_split_size_mb: .*'
grep -q 'pytorch#193400' out || fail "hurts: $(cat out)"
[ "$(grep -c '^hurts' out)" = 1 ] || fail "hurts: $(cat out)"
with='NCCL_CUMEM_ENABLE=0'
lint 1 'hurts     NCCL_CUMEM_ENABLE=0: .*'
lint 1 'right     the variables, and 0 rules'
with='PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8'
lint 0 'right     the variables, and 0 rules'
with='B200OPT_MEMORY_RESERVE_MB=512'
lint 1 'hurts     B200OPT_MEMORY_RESERVE_MB and B200OPT_MEMORY_FILL do nothing without B200OPT_MEMORY=pool'
with='B200OPT_MEMORY_RESERVE_MB=512 B200OPT_MEMORY=pool'
lint 0 'right     the variables, and 0 rules'

# one shape
with='B200OPT_PRECISION=fp8'
lint 0 'plan      fp8: converted' --shape 8192,16384,8192,dgrad --gpu b200
lint 0 'operands  A e4m3, B e5m2, in 1 piece' --shape 8192,16384,8192,dgrad --gpu b200
lint 0 'operands  A e4m3, B e5m2, both made K-major, in 1 piece' --shape 8192,16384,8192,dgrad --gpu H200
lint 0 'plan      native: too_slow' --shape 1024,512,1024,fprop
lint 0 'plan      native: dims' --shape 1024,512,1000,fprop
lint 0 'plan      native: arch' --shape 1024,512,1024,fprop --gpu a100
with='B200OPT_PRECISION=mxfp8 B200OPT_STRATEGY=always B200OPT_RULES=out=1024:native'
lint 0 'plan      native: rule' --shape 1024,512,1024,fprop
lint 0 'plan      mxfp8: converted' --shape 1024,512,2048,dgrad
lint 0 'plan      native: rule' --shape 512,1024,2048,wgrad

# wrong arguments
with=
lint 2 "b200opt: lint: --shape '1,2,3' is not M,N,K,ROLE with numbers from 1 and a role of fprop, dgrad, wgrad" --shape 1,2,3
lint 2 "b200opt: lint: --shape '0,2,3,fprop' is not M,N,K,ROLE .*" --shape 0,2,3,fprop
lint 2 "b200opt: lint: --shape '1,2,3,fprop,' is not M,N,K,ROLE .*" --shape 1,2,3,fprop,
lint 2 "b200opt: lint: no GPU 'v100' is known \(accepted: b300, b200, h200, h100, l40s, a100, rtx_pro_6000\)" --gpu v100
lint 2 "b200opt: lint: no model 'gpt' is known \(accepted: llama-1b, llama-8b, llama-14b, llama-30b, llama-70b\)" --model gpt
lint 2 "b200opt: lint: --tokens '5,' is not N,N,... with 1 to 9 numbers from 1" --model llama-1b --tokens 5,
lint 2 "b200opt: lint: --tokens '1,2,3,4,5,6,7,8,9,10' is not N,N,... .*" --model llama-1b --tokens 1,2,3,4,5,6,7,8,9,10
lint 2 'b200opt: lint: --tokens goes with --model; see b200opt lint --help' --tokens 5
lint 2 "b200opt: lint: one log folder is enough, 'b' is too much; see b200opt lint --help" a b
lint 3 "b200opt: lint: cannot read 'nowhere': No such file or directory" nowhere
mkdir none
lint 3 "b200opt: lint: 'none' has no log with GEMMs" none

# a log: its GPU, its GEMMs, the rules of now
mkdir log
cat >log/a.jsonl <<'END'
{"t":"header","format":1,"producer":"b200opt 0","run":"r","host":"h","pid":1,"rank":0,"world":1,"unix_ns":1,"gpu":"NVIDIA H200","versions":{"cublaslt":120400}}
{"t":"gemm","api":"gemmex","role":"fprop","ta":"T","tb":"N","m":8192,"n":16384,"k":8192,"batch":1,"a":"bf16","b":"bf16","d":"bf16","compute":"f32","epilogue":"none","calls":3,"flops":30}
{"t":"gemm","api":"gemmex","role":"wgrad","ta":"N","tb":"T","m":64,"n":64,"k":64,"batch":1,"a":"f32","b":"f32","d":"f32","compute":"f32","epilogue":"none","calls":4,"flops":10}
{"t":"gemm","api":"newer","role":"fprop","ta":"T","tb":"N","m":64,"n":64,"k":64,"batch":1,"calls":5,"flops":10}
END
with='B200OPT_PRECISION=fp8'
lint 0 'fp8 +converted +3 +75\.0%' log
lint 0 'native +fp32 +4 +25\.0%' log
lint 0 '5 calls are of a kind that this version does not know' log
lint 0 "the GEMMs of one rank's log, fp8, performant on NVIDIA H200" log
with='B200OPT_PRECISION=fp8 B200OPT_RULES=role=fprop:native'
lint 0 'native +rule +3 +75\.0%' log
with='B200OPT_PRECISION=mxfp8'
lint 0 'native +arch +3 +75\.0%' log
lint 0 'mxfp8 +converted +3 +75\.0%' log --gpu b200

# a model: 18 rows, a column for each number of tokens, and the totals
with='B200OPT_PRECISION=native'
lint 0 'converted FLOPs    0\.0 %    0\.0 %' --model llama-8b --tokens 4096,8192
[ "$(grep -c 'fprop\|dgrad\|wgrad' out)" = 18 ] || fail "model: $(cat out)"
with='B200OPT_PRECISION=mxfp8 B200OPT_STRATEGY=always'
lint 0 'converted FLOPs  100\.0 %' --model llama-70b --tokens 4096
with='B200OPT_PRECISION=fp8 B200OPT_STRATEGY=always'
lint 0 'converted FLOPs   66\.[67] %  100\.0 %' --model llama-1b --tokens 4100,4096

# rules that ask for the index are taken layer by layer: the first three linear layers forwards, the last ones backwards
with='B200OPT_PRECISION=native B200OPT_STRATEGY=always B200OPT_RULES=index<3:mxfp8'
lint 0 'q +fprop +-\*\(a\)' --model llama-8b --tokens 8192
lint 0 'o +fprop +- \(a\)' --model llama-8b --tokens 8192
lint 0 'down +fprop +- \(a\)' --model llama-8b --tokens 8192
lint 0 'lm_head +fprop +- \(a\)' --model llama-8b --tokens 8192
[ "$(sed -n '/^lm_head/,$p' out | grep -c '[dw]g[a-z]* *mx ')" = 2 ] || fail "index of the backward pass: $(cat out)"
[ "$(sed -n '/^down/,/^lm_head/p' out | grep -c '[dw]g[a-z]* *-\*(a)')" = 2 ] || fail "index of the backward pass: $(cat out)"
lint 0 '\* not the same in all layers: what most of them do' --model llama-8b --tokens 8192
lint 0 '\(a\) precision_native: B200OPT_PRECISION=native' --model llama-8b --tokens 8192
with='B200OPT_RULES=out>=32000:native;role=wgrad,k<4096:native;index<4:mxfp8'
lint 0 'lm_head  fprop     - \(a\)' --model llama-8b --tokens 8192
lint 0 '\(a\) rule: a rule of B200OPT_RULES says native' --model llama-8b --tokens 8192

# a GPU without a row of its own in the cost model
with='B200OPT_PRECISION=fp8'
lint 0 'the cost model does not know this GPU: its figures are guesses' --shape 8192,8192,8192,fprop --gpu rtx_pro_6000
lint 0 'one GEMM, fp8, performant on RTX PRO 6000' --shape 8192,8192,8192,fprop --gpu rtx_pro_6000

[ "$failed" = 0 ] || echo "$failed failed"
exit "$((failed > 0))"
