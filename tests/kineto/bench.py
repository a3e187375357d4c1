# SPDX-License-Identifier: Apache-2.0
"""usage: bench.py [STEPS]    b200opt report --kineto and Holistic Trace Analysis on the same traces of two ranks (50 steps of 80
layers, 52 MB each), in turns: answers, which must be the same, and wall time, processor time and peak memory, as ratios."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
COMMAND = pathlib.Path(os.environ["B200_BUILD"]) / "b200opt"
HTA_PYTHON = pathlib.Path(os.environ["B200_PYTHON_HTA"])
ROUNDS = 2


def resident_kb(pid):
    """Of a process and its children, what they share counted once: HTA parses each rank in a process of its own."""
    try:
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    share = re.search(r"^Pss: +(\d+) kB", rollup, re.M)
    return (int(share.group(1)) if share else 0) + sum(resident_kb(int(child)) for child in children)


def measured(arguments):
    """Output, seconds, seconds of processor time, and the most memory at one time in kB."""
    begin, peak = time.monotonic(), 0
    child = subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output = []
    reader = threading.Thread(target=lambda: output.append(child.stdout.read()))
    reader.start()
    while reader.is_alive():
        peak = max(peak, resident_kb(child.pid))
        reader.join(0.01)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, arguments
    return json.loads(output[0]), time.monotonic() - begin, usage.ru_utime + usage.ru_stime, max(peak, usage.ru_maxrss)


def main():
    steps = sys.argv[1] if len(sys.argv) > 1 else "50"
    if not HTA_PYTHON.exists():
        sys.exit(f"bench.py: {HTA_PYTHON}: not found; tools/setup --tests makes it")
    with tempfile.TemporaryDirectory() as folder:
        traces = f"{folder}/traces"
        subprocess.run([sys.executable, "-B", HERE / "generate.py", traces, "--steps", steps], check=True)
        size = sum(path.stat().st_size for path in pathlib.Path(traces).iterdir())
        best = {}
        for _ in range(ROUNDS):
            for name, arguments in (("HTA", [HTA_PYTHON, "-B", HERE / "ask_hta.py", "--once", traces]),
                                    ("b200opt", [COMMAND, "report", "--kineto", traces, "--json"])):
                answer, seconds, cpu, kb = measured(arguments)
                old = best.get(name, (None, float("inf"), float("inf"), 0))
                best[name] = answer, min(seconds, old[1]), min(cpu, old[2]), max(kb, old[3])
        truth = json.loads(pathlib.Path(f"{traces}.truth.json").read_text())
        theirs = best["HTA"][0][traces]["all"]
        for row in best["b200opt"][0]["ranks"]:
            rank = str(row["rank"])
            assert row["ns"] == truth[rank]["all"]
            for column, value in row["hta"].items():
                assert abs(value - theirs[rank][column]) < (1e-9 if column.endswith("_pctg") else 0.05), column
            print(f"rank {rank}: overlap {row['hta']['comp_comm_overlap_pctg']} % by both, idle {row['hta']['idle_time(us)']:.3f} us "
                  f"exactly, {theirs[rank]['idle_time(us)']:.3f} by HTA")
        for name, (_, seconds, cpu, kb) in best.items():
            print(f"{name:8} {seconds:7.2f} s, {cpu:6.2f} s of processor time, {kb / 1024:6.1f} MB at most, {size / 1e6:.0f} MB of traces")
        wall, cpu, memory = (theirs / ours for theirs, ours in zip(best["HTA"][1:], best["b200opt"][1:]))
        print(f"b200opt is {wall:.0f} times as fast, with 1/{cpu:.0f} of the processor time and 1/{memory:.0f} of the memory")
        print("1 passed, 0 failed")


main()
