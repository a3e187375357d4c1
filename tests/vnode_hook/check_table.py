# SPDX-License-Identifier: Apache-2.0
"""usage: check_table.py CC HOOKS_DEF VNODE_FOLDER INCLUDE…
The table of functions without a status against the vendors' headers: every hooked function that a header declares returns its
library's status, or is in the table; and no row is for nothing."""
import fnmatch
import pathlib
import re
import subprocess
import sys

compiler, table, folder, *includes = sys.argv[1:]
HEADERS = ("cuda.h", "cuda_runtime_api.h", "cublas_v2.h", "cublasLt.h", "nccl.h")
STATUS = {"CUresult", "cudaError_t", "cublasStatus_t", "ncclResult_t", "nvmlReturn_t"}

source = "".join(f"#include <{h}>\n" for h in HEADERS)
preprocessed = subprocess.run([compiler, "-E", "-P", "-xc", "-", *(f"-I{i}" for i in includes)], input=source,
                              capture_output=True, text=True, check=True).stdout
declared = {}
for types, name in re.findall(r"([\w\s*()\"]*?)\b(\w+)\s*\([^;{}]*\)\s*;", preprocessed):
    declared.setdefault(name, re.sub(r"__attribute__\s*\(\(.*?\)\)|\b(extern|const|static|inline)\b", "", types).strip())

hooks = sorted({name for path in pathlib.Path(folder).glob("*.hooks.txt") for name in path.read_text().split()
                if path.name != "vnode_probe.hooks.txt" and not name.startswith("pnccl")})  # pncclX is ncclX
rows = re.findall(r'^VNODE_NO_STATUS\("([^"]+)"\)', pathlib.Path(table).read_text(), re.M)
assert len(hooks) > 400 and len(rows) > 10, (len(hooks), len(rows))

wrong, checked = [], 0
for name in hooks:
    listed = any(fnmatch.fnmatchcase(name, row) for row in rows)
    kind = declared.get(name)
    if kind is None:
        continue  # of an older binary interface, or of no header in the wheels
    checked += 1
    if (kind in STATUS) == listed:
        wrong.append(f"{name}: returns {kind!r}, {'is' if listed else 'is not'} in the table")
assert checked > 300, checked
assert not wrong, "\n".join(wrong)
print(f"{checked} of {len(hooks)} hooked functions are declared and agree")
