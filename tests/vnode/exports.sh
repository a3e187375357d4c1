#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: exports.sh NM VNODE_FOLDER REAL_CUDART
# The runtime stand-in has every name of the real one, under the same version node; nothing of ours leaks out of any stand-in.
set -eu
export LC_ALL=C
nm=$1 folder=$2 real=$3
names() {
  "$nm" -D --defined-only "$1" | awk '$2 ~ /^[TWi]$/ {print $3}' | sort -u
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
names "$real" >"$work/real"
names "$folder/libcudart.so.13" >"$work/ours"
missing=$(comm -23 "$work/real" "$work/ours")
[ -z "$missing" ] || { echo "missing in the runtime stand-in: $missing"; exit 1; }
[ "$(wc -l <"$work/real")" -gt 400 ] || { echo "the real runtime's export list looks wrong"; exit 1; }
for library in libcudart.so.13 libcuda.so.1 libnvidia-ml.so.1; do
  leaked=$(names "$folder/$library" | grep '^vnode' || true)
  [ -z "$leaked" ] || { echo "$library leaks $leaked"; exit 1; }
  names "$folder/$library" | grep -q . || { echo "$library exports nothing"; exit 1; }
done
for library in libcuda.so.1 libnvidia-ml.so.1; do
  if names "$folder/$library" | grep -q @; then echo "$library has a version node; the real one has none"; exit 1; fi
done
