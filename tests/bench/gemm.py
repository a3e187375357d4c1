# SPDX-License-Identifier: Apache-2.0
"""usage: gemm.py BENCH LIBRARY    host time of a converted GEMM above a direct one, with vendor libraries that do nothing, so that it
is the library's own; and allocations once every shape has been seen, of which there must be none."""
import os
import statistics
import subprocess
import sys
import tempfile

bench, library = sys.argv[1:3]
arms = {"direct": None, "observed": {}, "native": {"B200OPT_PRECISION": "native"}, "fp8": {"B200OPT_PRECISION": "fp8"},
        "mxfp8": {"B200OPT_PRECISION": "mxfp8"}, "fp8, no guard": {"B200OPT_PRECISION": "fp8", "B200OPT_GUARD": "off"}}


def run(arm, api, logs):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    if arms[arm] is not None:
        env.update(arms[arm], LD_PRELOAD=library, B200OPT_LOG_DIR=logs, B200OPT_STRATEGY="always", B200OPT_WORKSPACE_MB="8192")
    text = subprocess.run([bench, "60000", api], env=env, capture_output=True, text=True, check=True)
    assert text.stderr == "", text.stderr
    ns, allocations = text.stdout.split()
    return float(ns), int(allocations)


with tempfile.TemporaryDirectory() as logs:
    for api in ("gemmex", "lt"):
        direct = None
        for arm in arms:
            results = [run(arm, api, logs) for _ in range(5)]
            ns = statistics.median(result[0] for result in results)
            direct = ns if direct is None else direct
            allocations = max(result[1] for result in results)
            print(f"{api:6} {arm:14} {ns:7.0f} ns a call, {ns - direct:+7.0f} ns over direct, {allocations} allocations")
            assert allocations == 0, f"{api} {arm}: allocations in a steady state"
print("1 passed, 0 failed")
