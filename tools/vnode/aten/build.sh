#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles the ATen layer of the virtual node against the PyTorch that PYTHON has.
#
#   build.sh PYTHON OUTDIR VNODE_LIBDIR VNODE_CORE_INCLUDE
#
# Makes OUTDIR/libb200aten-<torch version>.so; does and says nothing when it is up to date (same sources, torch, compiler and libraries).
# Several callers may run at once. CXX and JOBS may be set. Prints a line before and after; on failure one line with the log's path.
set -eu

fail() {
  echo "b200aten: $*" >&2
  exit 1
}

[ $# -eq 4 ] || fail "usage: build.sh PYTHON OUTDIR VNODE_LIBDIR VNODE_CORE_INCLUDE"
python=$1 out=$2 libs=$3 core=$4
cxx=${CXX:-g++} jobs=${JOBS:-2}
here=$(cd "$(dirname "$0")" && pwd)

command -v "$python" >/dev/null || fail "$python: no such python"
command -v "$cxx" >/dev/null || fail "$cxx: no such C++ compiler (set CXX)"
[ -f "$core/core.h" ] || fail "$core: has no core.h of the virtual node"
# Without importing torch, which takes seconds: this runs before every job.
found=$("$python" - <<'EOF'
import importlib.metadata, pathlib, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
print(importlib.metadata.version("torch").split("+")[0], site)
EOF
) || fail "$python: has no torch"
version=${found%% *} site=${found#* }
[ -f "$site/torch/lib/libtorch_cuda.so" ] || fail "$site: its torch $version is not a CUDA build"
if [ -f "$site/nvidia/cu13/include/cuda_runtime_api.h" ]; then
  cuda="-isystem $site/nvidia/cu13/include" cudart=libcudart.so.13
elif [ -f "$site/nvidia/cuda_runtime/include/cuda_runtime_api.h" ]; then
  # A wheel for each library.
  cuda=$(printf -- '-isystem %s ' "$site"/nvidia/*/include) cudart=cuda12/libcudart.so.12
else
  fail "$site: has no CUDA headers beside torch (nvidia/cu13/include or nvidia/cuda_runtime/include)"
fi
for lib in libb200vnode.so "$cudart"; do
  [ -f "$libs/$lib" ] || fail "$libs: has no $lib of the virtual node"
done

mkdir -p "$out"
out=$(cd "$out" && pwd) libs=$(cd "$libs" && pwd) core=$(cd "$core" && pwd)
target=$out/libb200aten-$version.so log=$out/libb200aten-$version.log
# No -Werror: what another compiler says of another PyTorch's headers must not stop a job. Warnings are in the log.
flags="-std=c++20 -O1 -fPIC -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter"
includes="-I$core -isystem $site/torch/include -isystem $site/torch/include/torch/csrc/api/include $cuda"
# The wheels leave out the folder crt of CUDA's headers; Triton, which PyTorch comes with, has one.
includes="$includes -isystem $site/triton/backends/nvidia/include"

exec 9>"$out/.libb200aten-$version.lock"
flock 9

stamp=$({
  echo "$version $libs $flags"
  "$cxx" --version | head -n 1
  cat "$here"/*.cpp "$here"/*.h "$here/build.sh" "$core/core.h"
} | sha256sum | cut -d ' ' -f 1)
if [ -f "$target" ] && [ "$(cat "$target.stamp" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi
echo "b200aten: compiling PyTorch's kernels for torch $version (about 90 s of processor time, once)"

work=$(mktemp -d "$out/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
started=$(date +%s)
: >"$log"
# PyTorch's headers take longer than the sources: they are read once, into a precompiled header.
printf '#include <ATen/ATen.h>\n#include <c10/cuda/CUDAGuard.h>\n#include <torch/library.h>\n' >"$work/torch.h"
"$cxx" $flags $includes -x c++-header "$work/torch.h" -o "$work/torch.h.gch" >>"$log" 2>&1 &&
  # The largest first, so that the last compiler to end is a short one.
  (cd "$here" && ls -S ./*.cpp) | xargs -P "$jobs" -I SRC sh -c \
    '"$0" $1 $2 -include "$4/torch.h" -c "$3/SRC" -o "$4/$(basename SRC .cpp).o" >>"$5" 2>&1' \
    "$cxx" "$flags" "$includes" "$here" "$work" "$log" || fail "does not compile against torch $version; see $log"
"$cxx" -shared -o "$work/lib.so" "$work"/*.o -L"$site/torch/lib" -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda \
  -L"$libs" -lb200vnode "$libs/$cudart" -Wl,-rpath,"$libs" -Wl,--no-as-needed -Wl,--unresolved-symbols=ignore-in-shared-libs \
  >>"$log" 2>&1 || fail "does not link against torch $version; see $log"
mv "$work/lib.so" "$target"
echo "$stamp" >"$target.stamp"
echo "b200aten: built $target against torch $version in $(($(date +%s) - started)) s"
