#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: env_files.sh GEN_ENV ROOT    renews what repeats the table of variables: env.example and the README's table
set -eu
gen=$1 root=$2
"$gen" example >"$root/env.example"
"$gen" markdown >"$root/env.table.new"
awk -v table="$root/env.table.new" '
  /<!-- variables -->/ { print; while ((getline line < table) > 0) print line; skipping = 1; next }
  /<!-- \/variables -->/ { skipping = 0 }
  !skipping' "$root/README.md" >"$root/README.md.new"
rm "$root/env.table.new"
mv "$root/README.md.new" "$root/README.md"
