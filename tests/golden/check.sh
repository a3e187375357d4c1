#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Reports the logs in FOLDER and compares with the committed reports, text and JSON, and their exit status.
#   check.sh [--update] COMMAND FOLDER
set -eu
update=
if [ "$1" = --update ]; then
  update=1
  shift
fi
command=$1
cd "$2"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# check NAME ARGUMENT...
check() {
  name=$1
  shift
  status=0
  "$command" report "$@" >"$work/$name" 2>&1 || status=$?
  echo "exit status $status" >>"$work/$name"
  # The version is the command's, not the report's.
  sed 's/"b200opt": "[^"]*"/"b200opt": "VERSION"/' "$work/$name" >"$work/$name.plain"
  if awk 'length > 100 { long = 1 } END { exit !long }' "$work/$name.plain" && [ "${name%.txt}" != "$name" ]; then
    echo "$name: a line is longer than 100 columns"
    failed=1
  fi
  if LC_ALL=C grep -n '[^ -~]' "$work/$name.plain"; then
    echo "$name: not ASCII"
    failed=1
  fi
  if [ -n "$update" ]; then
    cp "$work/$name.plain" "expected/$name"
  elif ! diff "expected/$name" "$work/$name.plain"; then
    echo "$name differs"
    failed=1
  fi
}

mkdir -p "$work/empty"
check preloaded.txt preloaded
check against_bare.txt preloaded --against bare
check against_bare.json preloaded --against bare --json
check bare.txt bare
check troubled.txt troubled
check troubled.json troubled --json
check against_troubled.txt preloaded --against troubled
check converted.txt converted
check converted.json converted --json
check observed.txt observed
check observed.json observed --json
check timed.txt timed
check timed.json timed --json
check run.txt preloaded --run demo-1
check no_run.txt preloaded --run demo-2
check one_file.txt preloaded/demo-1/node-a-r1-102.jsonl
check no_folder.txt nowhere
exit $failed
