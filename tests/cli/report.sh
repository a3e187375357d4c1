#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Reports of logs that the library would not write, and of folders with links.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

# log FOLDER LINE...: a log with these lines behind a header
log() {
  mkdir -p "$1"
  {
    echo '{"t":"header","format":1,"producer":"b200opt 0","run":"r","host":"h","pid":1,"rank":0,"world":1,"unix_ns":1}'
    shift
    printf '%s\n' "$@"
    echo '{"t":"end","t_ns":1}'
  } >"$1/a.jsonl"
}

# report STATUS ARGUMENT...: to `out`, which must be fit for a terminal
report() {
  expected_status=$1
  shift
  status=0
  "$command" report "$@" >out 2>&1 || status=$?
  [ "$status" = "$expected_status" ] || fail "report $*: exit status $status, not $expected_status"
  awk 'length > 100 { exit 1 }' out || fail "report $*: a line is longer than 100 columns"
  LC_ALL=C grep -q '[^ -~]' out && fail "report $*: not ASCII"
}

gemm='{"t":"gemm","role":"fprop","m":2,"n":3,"k":4,"batch":1,"calls":5,"flops":240}'
log tree/run "$gemm"
ln -s run tree/latest
ln -s .. tree/run/up
ln -s run/a.jsonl tree/again.jsonl
ln tree/run/a.jsonl tree/run/hard.jsonl
report 0 tree
grep -Eq '^  fprop +5 +240 ' out || fail "links: $(grep fprop out)"
grep -q '^logs      1 of the library, ' out || fail "links: $(grep ^logs out)"
ln -s tree/run link
report 0 link

# no losses on either side are equal ones; on one side they are not
report 0 tree --against tree
grep -qx 'losses    no losses on either side' out || fail "no losses: $(grep ^losses out)"
grep -qx 'verdict   equal in every count and every loss' out || fail "no losses: $(grep ^verdict out)"
log lossy "$gemm" '{"t":"loss","step":1,"loss":2}'
report 1 lossy --against tree
report 1 tree --against lossy

# numbers at the bounds, in the curve too
log losses '{"t":"loss","step":0,"loss":1.7e308}' '{"t":"loss","step":1,"loss":-1.7e308}' \
  '{"t":"loss","step":9223372036854775807,"loss":"nan"}' '{"t":"loss","step":3,"loss":-1.7e308}'
report 0 losses
grep -qx 'curve     @_!_' out || fail "curve: $(grep ^curve out)"
big=9223372036854775807
log numbers "{\"t\":\"gemm\",\"role\":\"fprop\",\"m\":$big,\"n\":$big,\"k\":-$big,\"calls\":$big,\"flops\":$big}" \
  '{"t":"gemm","role":"dgrad","m":1e300,"calls":-1e300,"flops":1e300}' \
  "{\"t\":\"step\",\"period\":$big,\"dur_ns\":$big}" "{\"t\":\"step\",\"period\":$big,\"dur_ns\":-$big}" \
  "{\"t\":\"stack\",\"owner\":\"o\",\"bytes\":$big,\"frames\":\"f\"}" "{\"t\":\"stack\",\"owner\":\"o\",\"bytes\":$big,\"frames\":\"f\"}"
report 0 numbers
grep -Eq '^  fprop +9,223,372,036,854,775,807 ' out || fail "numbers: $(grep fprop out)"
report 1 tree --against numbers

# what was converted: coverage decides the exit status, a modelled loss is explained, ranks that differ are named
narrow='{"t":"gemm","role":"fprop","m":64,"n":64,"k":64,"batch":1,"plan":"fp8","reason":"converted","calls":1,"flops":50,"model_native_ns":10,"model_narrow_ns":20}'
wide='{"t":"gemm","role":"wgrad","m":64,"n":64,"k":64,"batch":1,"plan":"native","reason":"dims","calls":1,"flops":50}'
covered() {
  mkdir -p "covered$1"
  {
    echo '{"t":"header","format":1,"producer":"b200opt 0","run":"r","host":"h","pid":1,"rank":0,"world":1,"unix_ns":1,"config":{"B200OPT_MIN_COVERAGE":"'"$1"' (environment)"}}'
    printf '%s\n' "$narrow" "$wide" '{"t":"end","t_ns":1}'
  } >"covered$1/a.jsonl"
}
covered 50
covered 51
report 0 covered50
grep -qx 'coverage  50.0 % of the FLOPs were converted' out || fail "coverage: $(cat out)"
grep -q 'slower, as quantising small operands' out || fail "slower: $(cat out)"
report 1 covered51
grep -qx ' *less than the 51 % that B200OPT_MIN_COVERAGE asks for' out || fail "coverage: $(cat out)"
for rank in 0 1; do
  log "ranks/$rank" '{"t":"decisions","hash":"'$rank'"}' "$narrow"
  sed -i "s/\"rank\":0/\"rank\":$rank/; s/\"pid\":1/\"pid\":$rank/" "ranks/$rank/a.jsonl"
done
report 0 ranks
grep -q '^ranks     they did not decide alike' out || fail "ranks: $(cat out)"

# names that are long, not ASCII, or what a terminal obeys
long=$(printf '%0300d' 0 | tr 0 'n')
log names "{\"t\":\"gemm\",\"role\":\"\\u001b[31m$long\",\"compute\":\"$long\",\"epilogue\":\"$long\",\"calls\":1}" \
  "{\"t\":\"coll\",\"op\":\"$long\",\"dtype\":\"$long\",\"calls\":1}" "{\"t\":\"alloc\",\"owner\":\"$long\",\"allocs\":1}" \
  "{\"t\":\"stack\",\"owner\":\"$long\",\"frames\":\"$long $long\"}" "{\"t\":\"warn\",\"text\":\"\\u001b]0;title\\u0007 é $long\"}"
report 0 names
grep -q '?\[31mnnn' out || fail "names: $(cat out)"
report 1 tree --against names

# memory over the steps: what only grows is pointed out, a cache that has filled up is not
hbm() {
  awk -v kind="$1" 'BEGIN {
    for (i = 0; i < 22; i++) {
      held = 1048576 * (kind == "leak" ? 100 + 4 * i + (i % 3) * 50 : 100 + (i < 9 ? 20 * i : 180))
      printf "{\"t\":\"step\",\"gen\":0,\"step\":%d,\"source\":\"coll\",\"period\":4,\"t_ns\":%d,\"dur_ns\":10,\"hbm\":{\"pytorch\":%d,\"nccl\":1048576},\"hbm_used\":%d}\n", i, i * 10, held, held + 2097152
    }
  }'
}
log leak "$(hbm leak)"
report 0 leak
grep -qx 'Device memory over 22 steps (rank 0, at the start of each)' out || fail "leak: $(cat out)"
grep -Eqx '  +step +pytorch +nccl +used' out || fail "leak: $(cat out)"
grep -Eqx '  +0 +100 MiB +1 MiB +102 MiB' out || fail "leak: $(cat out)"
grep -Eqx '  +21 +184 MiB +1 MiB +186 MiB' out || fail "leak: $(cat out)"
grep -qx 'pytorch   most 280 MiB, at step 20' out || fail "leak: $(cat out)"
grep -q '^ *it grew by 4 MiB a step' out || fail "leak: $(cat out)"
[ "$(grep -c 'it grew by' out)" = 2 ] || fail "leak: $(cat out)"
log full "$(hbm full)"
report 0 full
grep -qx 'pytorch   most 280 MiB, at step 9' out || fail "full: $(cat out)"
grep -q 'it grew by' out && fail "full: $(cat out)"

# what was refused: retries and their cost; what the job did not get, with advice; not every one of many
refused='{"t":"oom","owner":"pytorch","bytes":2097152,"why":"driver"}'
log refused "$refused" "$refused" "$refused" "$refused" "$refused" "$refused" "$refused" "$refused" "$refused" "$refused" \
  '{"t":"oom","owner":"pytorch","bytes":4194304,"why":"headroom","final":1,"advice":"a smaller batch; B200OPT_MEMORY_RESERVE_MB=0"}' \
  '{"t":"retry","owner":"pytorch","bytes":2097152,"failures":2,"dur_ns":1500000}' '{"t":"retry","owner":"nccl","failures":1,"dur_ns":500000}'
report 0 refused
grep -qx 'retries   2 allocations were refused at first and then granted, which took 2.0 ms' out || fail "refused: $(cat out)"
[ "$(grep -c '^  refused rank 0, pytorch asked for 2 MiB$' out)" = 8 ] || fail "refused: $(cat out)"
grep -qx '  refused rank 0, pytorch asked for 4 MiB, kept for others by B200OPT_MEMORY_RESERVE_MB, and did not' out || fail "refused: $(cat out)"
grep -qx '  try     a smaller batch; B200OPT_MEMORY_RESERVE_MB=0' out || fail "refused: $(cat out)"
grep -qx '  refused 2 more' out || fail "refused: $(cat out)"

[ "$failed" = 0 ] || echo "$failed failed"
exit "$((failed > 0))"
