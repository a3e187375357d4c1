# SPDX-License-Identifier: Apache-2.0
"""usage: job.py BUILD [ROUNDS]    the demo's job on the virtual node, bare in each order and observed, and with CPU PyTorch and gloo,
interleaved: what observing costs, how fast the node is, and what the late orders with their race checker cost. Ratios of medians over all steps but the first five of each run."""
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
       "--steps", "40"]
dryrun = [str(build / "b200opt"), "dryrun", "--gpus", "2"]
arms = {
    "bare on the node": lambda logs: [*dryrun, "--bare", "--log", logs, "--", *job],
    "observed on the node": lambda logs: [*dryrun, "--log", logs, "--", *job],
    "deferred": lambda logs: [*dryrun, "--bare", "--log", logs, "B200OPT_VNODE_ORDER=deferred", "--", *job],
    "adversarial": lambda logs: [*dryrun, "--bare", "--log", logs, "B200OPT_VNODE_ORDER=adversarial", "--", *job],
    "CPU and gloo": lambda logs: [*job, "--device", "cpu"],
}


def run(command):
    """Tokens per second of each step but the first five, and the processor time of the whole run."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")} | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = os.times()
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"job.py: {' '.join(command)} ended with {result.returncode}\n{result.stderr[-2000:]}")
    after = os.times()
    rates = [float(x) for x in re.findall(r"tokens/s ([0-9.]+)", result.stdout)][5:]
    return rates, after.children_user + after.children_system - before.children_user - before.children_system


rates, processor = {arm: [] for arm in arms}, {arm: [] for arm in arms}
with tempfile.TemporaryDirectory() as logs:
    for _ in range(rounds):
        for arm, command in arms.items():
            found, seconds = run(command(os.path.join(logs, arm.replace(" ", "-"))))
            rates[arm] += found
            processor[arm].append(seconds)
bare = "bare on the node"
for arm in arms:
    speed, cpu = statistics.median(rates[arm]), statistics.median(processor[arm])
    print(f"{arm:22} {speed:8.0f} tokens/s ({speed / statistics.median(rates[bare]):.3f} of bare), {cpu:6.1f} s of processor time "
          f"({cpu / statistics.median(processor[bare]):.3f} of bare)")
node, cpu = statistics.median(rates[bare]), statistics.median(rates["CPU and gloo"])
print(f"the node runs at {node / cpu:.2f} of CPU PyTorch with gloo")
print("1 passed, 0 failed")
