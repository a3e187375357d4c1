#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: gen_map.sh CC symbols.def OUT    writes the linker's version script that exports exactly the rows of the table
set -eu
cc=$1 table=$2 out=$3
{
  echo '{ global:'
  "$cc" -E -P -x c \
    -D'B200_CUDART(ret,name,...)=EXPORT name;' -D'B200_CUDA(ret,name,...)=EXPORT name;' \
    -D'B200_CUBLAS(ret,name,...)=EXPORT name;' -D'B200_CUBLASLT(ret,name,...)=EXPORT name;' \
    -D'B200_NCCL(ret,name,...)=EXPORT name;' -D'B200_LIBC(ret,name,...)=EXPORT name;' "$table" |
    tr ';' '\n' | sed -n 's/^ *EXPORT *\([A-Za-z0-9_]*\) *$/  \1;/p'
  echo 'local: *; };'
} >"$out.new"
mv "$out.new" "$out"
