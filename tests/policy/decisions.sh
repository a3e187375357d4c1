#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: decisions.sh [--update] COMMAND FILE    the decisions on models of five sizes, as the cost model and rules are now
set -eu
update=
if [ "$1" = --update ]; then
  update=1
  shift
fi
command=$1 file=$2
for name in $(env | sed -n 's/^\(B200OPT[A-Z0-9_]*\)=.*/\1/p'); do
  unset "$name"
done
tables() {
  for gpu in b200 h200; do
    for model in 1b 8b 14b 30b 70b; do
      B200OPT_PRECISION=auto "$command" lint --gpu "$gpu" --model "llama-$model" | sed 1,2d
      echo
    done
  done
}
if [ -n "$update" ]; then
  tables >"$file"
else
  tables | diff "$file" -
  awk 'length > 100 { exit 1 }' "$file"
fi
