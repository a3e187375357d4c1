# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests: sets up a clean environment and folder, and counts failures.
set -u
command=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
for name in $(env | sed -n 's/^\(B200OPT[A-Z0-9_]*\)=.*/\1/p'); do
  unset "$name"
done
unset PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING NCCL_CUMEM_ENABLE
unset LD_PRELOAD MKL_CBWR MKL_NUM_THREADS OMP_NUM_THREADS TORCHDYNAMO_DISABLE

fail() {
  echo "FAILED: $*"
  failed=$((failed + 1))
}

# install WHERE LIBRARY...: a copy of the command as it would lie after installation, with the given files as libraries
# beside it; without the real ones, so that the test needs no CUDA.
install() {
  where=$1
  shift
  mkdir -p "$where/bin" "$where/lib/b200opt/vnode"
  cp "$command" "$where/bin/b200opt"
  for library; do
    cp "$work/empty.so" "$where/lib/$library"
  done
}

empty_library() {
  echo 'int b200_nothing;' | ${CC:-cc} -shared -fPIC -x c - -o "$work/empty.so"
}
