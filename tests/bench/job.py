# SPDX-License-Identifier: Apache-2.0
"""usage: job.py BUILD [ROUNDS [ARM…]]    the demo's job on the virtual node, bare in each order and observed, and with CPU PyTorch and gloo,
interleaved: what observing costs, how fast the node is, and what the late orders with their race checker cost. Of each run the medians over all
steps but the first five: tokens per second, and processor time of rank 0, which other work on the machine disturbs less. ARM: bare, observed,
deferred, adversarial, cpu."""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1]).resolve()
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
root = pathlib.Path(__file__).resolve().parents[2]
torchrun = pathlib.Path(sys.executable).with_name("torchrun")
job = [str(torchrun), "--nproc-per-node", "2", str(root / "tools/demo_job/train.py"), "--mode", "fsdp2", "--layers", "2", "--width", "128",
       "--steps", "80"]
dryrun = [str(build / "b200opt"), "dryrun", "--gpus", "2"]
arms = {
    "bare": lambda logs: [*dryrun, "--bare", "--log", logs, "--", *job],
    "observed": lambda logs: [*dryrun, "--log", logs, "--", *job],
    "deferred": lambda logs: [*dryrun, "--bare", "--log", logs, "B200OPT_VNODE_ORDER=deferred", "--", *job],
    "adversarial": lambda logs: [*dryrun, "--bare", "--log", logs, "B200OPT_VNODE_ORDER=adversarial", "--", *job],
    "cpu": lambda logs: [*job, "--device", "cpu"],
}
chosen = sys.argv[3:] or list(arms)
if not set(chosen) <= set(arms):
    sys.exit(f"job.py: {' '.join(chosen)}: the arms are {' '.join(arms)}")


def run(command, result):
    """Tokens per second and processor time of a step, medians."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")} | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ended = subprocess.run([*command, "--out", result], env=env, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"job.py: {' '.join(command)} ended with {ended.returncode}\n{ended.stderr[-2000:]}")
    rates = [float(x) for x in re.findall(r"tokens/s ([0-9.]+)", ended.stdout)]
    return statistics.median(rates[5:]), statistics.median(json.loads(pathlib.Path(result).read_text())["processor_s"][5:])


def against_first(arm, which):
    """Mean over the rounds of the ratio to the first arm, and its standard error."""
    ratios = [mine[which] / first[which] for mine, first in zip(runs[arm], runs[chosen[0]])]
    return statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")


runs = {arm: [] for arm in chosen}
with tempfile.TemporaryDirectory() as logs:
    for turn in range(rounds):
        for arm in chosen if turn % 2 == 0 else reversed(chosen):
            runs[arm].append(run(arms[arm](os.path.join(logs, arm)), os.path.join(logs, "result.json")))
for arm in chosen:
    speed, busy = (statistics.median(one[which] for one in runs[arm]) for which in (0, 1))
    (faster, faster_error), (dearer, dearer_error) = (against_first(arm, which) for which in (0, 1))
    print(f"{arm:12} {speed:7.0f} tokens/s ({faster:.3f} +- {faster_error:.3f} of {chosen[0]}), {1e3 * busy:7.2f} ms of processor time a step "
          f"({dearer:.4f} +- {dearer_error:.4f})")
if {"bare", "cpu"} <= set(chosen):
    print(f"the node runs at {1 / against_first('cpu', 0)[0]:.2f} of CPU PyTorch with gloo")
print("1 passed, 0 failed")
