# SPDX-License-Identifier: Apache-2.0
"""usage: timing.py BENCH LIBRARY    CPU time that the library adds to a collective, a record, a wait and a GEMM, with its timing off
and on; vendor libraries do nothing, so that it is the library's own."""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

bench, library = sys.argv[1:3]
STEP = 64  # collectives, and GEMMs between two of them in the case of GEMMs
ON = {"B200OPT_OVERHEAD_MAX_PCT": "0"}
arms = {
    "bare": None,
    "off": {"B200OPT_TIMING": "off"},
    "on": ON,
    "every GEMM": {**ON, "B200OPT_TIMING_EVERY": "1"},
    "no GEMM": {**ON, "B200OPT_TIMING_EVERY": "1000000"},
}


def run(case, arm, logs, calls=10000, period=STEP, minus=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k not in ("LD_PRELOAD", "CUDA_DEVICE_MAX_CONNECTIONS")}
    if arms[arm] is not None:
        env.update(arms[arm], LD_PRELOAD=library, B200OPT_LOG_DIR=logs, B200OPT_STEP_PERIOD=str(period))
    text = subprocess.run([bench, case, str(calls), *([minus] if minus else [])], env=env, capture_output=True, text=True, check=True)
    assert text.stderr == "", text.stderr
    return float(text.stdout)


with tempfile.TemporaryDirectory() as logs:
    def median(*arguments, **more):
        return statistics.median(run(*arguments, logs, **more) for _ in range(5))

    events = median("vendors_events", "bare", calls=100000)
    print(f"two cuEventRecord and three cuEventElapsedTime of this vendor: {events:.0f} ns")

    def table(name, case, arms_of_it, divide=1, **more):
        found = {arm: median(case, arm, **more) / divide for arm in ("bare", *arms_of_it)}
        text = ", ".join(f"timing {arm} {found[arm] - found['bare']:+.0f} ns" for arm in arms_of_it)
        print(f"{name:36} bare {found['bare']:.0f} ns; {text}", flush=True)
        return found

    found = table("collective", "collective", ("off", "on"))
    print(f"{'':36} of the timing, beyond the vendor's call and events: {found['on'] - found['off'] - events:.0f} ns")
    table("record", "record", ("off", "on"))
    table("wait that adds nothing", "wait_adds_nothing", ("off", "on"))
    table("wait that adds a collective", "wait_adds", ("off", "on"), minus="collective_recorded")
    table("GEMM", "gemms", ("off", "no GEMM", "every GEMM"), minus="collective", divide=STEP, calls=1000, period=1)
    # all is read back in time, however many GEMMs come between two collectives
    full = sum('"why":"full"' in path.read_text() for path in pathlib.Path(logs).rglob("*.jsonl"))
    assert full == 0, f"{full} runs had collectives left untimed, as a table was full"
print("1 passed, 0 failed")
