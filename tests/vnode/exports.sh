#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: exports.sh NM VNODE_FOLDER REAL_LIBRARY...
# The stand-in of each library has every name of the real one, under the same version node; nothing of ours leaks out of any.
set -eu
export LC_ALL=C
nm=$1 folder=$2
shift 2
names() {
  "$nm" -D --defined-only "$1" | awk '$2 ~ /^[TWi]$/ {print $3}' | sort -u
}
stand_in() {
  case $1 in
    *.so.12) echo "$folder/cuda12/$1" ;;
    *) echo "$folder/$1" ;;
  esac
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for real; do
  library=$(basename "$real")
  names "$real" >"$work/real"
  names "$(stand_in "$library")" >"$work/ours"
  [ "$(wc -l <"$work/real")" -gt 50 ] || { echo "the export list of $real looks wrong"; exit 1; }
  missing=$(comm -23 "$work/real" "$work/ours" | head -n 20)
  [ -z "$missing" ] || { echo "missing in the stand-in of $library: $missing"; exit 1; }
  leaked=$(grep '^vnode' "$work/ours" || true)
  [ -z "$leaked" ] || { echo "$library leaks $leaked"; exit 1; }
done
for library in libcuda.so.1 libnvidia-ml.so.1; do
  names "$folder/$library" >"$work/ours"
  leaked=$(grep '^vnode' "$work/ours" || true)
  [ -z "$leaked" ] || { echo "$library leaks $leaked"; exit 1; }
  [ -s "$work/ours" ] || { echo "$library exports nothing"; exit 1; }
  if grep -q @ "$work/ours"; then echo "$library has a version node; the real one has none"; exit 1; fi
done
