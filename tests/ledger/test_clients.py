# SPDX-License-Identifier: Apache-2.0
"""After every step of real trainings the library's ledger is the node's own count, owner by owner, whatever allocator PyTorch uses.

The node counts pages of what was granted, by who asked inside each stand-in; the library sees calls at the driver and the module that
each came from. B200OPT_MEMORY_TRACE=on writes the ledger's events, which are added up to each moment that watch.py has noted.
B200_LONG: every client with every allocator.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
from count import Ledger, read

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ["B200_BUILD"])
LONG = "B200_LONG" in os.environ
sys.path.append(str(ROOT / "tests" / "e2e"))

ALLOCATORS = {"native": "backend:native", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
MODES = ("fsdp2", "fsdp1", "ddp")
STEPS = 12 if LONG else 6
SHORT = [("fsdp2", "expandable"), ("fsdp1", "async"), ("ddp", "native")]


def demo(mode):
    return [str(ROOT / "tools" / "demo_job" / "train.py"), "--mode", mode, "--steps", str(STEPS), "--width", "128", "--batch", "8"]


def run(tmp_path, command, allocator, world=2):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "PYTORCH_", "NCCL_")) and k != "LD_PRELOAD"}
    env |= {k: v for k, v in os.environ.items() if k == "B200OPT_VNODE_ATEN_DIR"}
    if allocator == "async":  # as of torch 2.15 its newer process group asks for a snapshot, which this allocator refuses with an abort
        env["TORCH_DIST_USE_NCCL2"] = "0"
    env |= {"PYTORCH_ALLOC_CONF": ALLOCATORS[allocator], "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    head = [BUILD / "b200opt", "dryrun", "--gpus", str(world), "--log", "logs", "B200OPT_MEMORY_TRACE=on", "--", sys.executable, "-B", "-m",
            "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), HERE / "watch.py", str(tmp_path)]
    done = subprocess.run([*head, *command], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    logs = {}
    for path in tmp_path.glob("logs/**/*.jsonl"):
        records = read(path)
        if records[0]["producer"].startswith("b200opt") and any(r["t"] == "block" for r in records):
            logs[records[0]["pid"]] = records
    stamps = {int(path.suffix[1:]): read(path) for path in tmp_path.glob("stamps.*")}
    assert len(stamps) == world and set(stamps) <= set(logs)
    return [(logs[pid], stamps[pid]) for pid in sorted(stamps)]


def check_stamps(records, stamps, allocator):
    ledger = Ledger(records)
    for step, stamp in enumerate(stamps):
        ledger.until(stamp["t_ns"])
        for owner, (current, peak) in stamp["owners"].items():
            held = ledger.held[owner]
            if owner == "pytorch":  # the pool keeps what was freed; that is nobody's allocation
                held += stamp["pool"]["reserved"] - stamp["pool"]["used"]
            assert held == current, f"step {step}, {owner}"
            if allocator != "async":
                assert ledger.peak[owner] == peak, f"step {step}, peak of {owner}"
    assert ledger.held["pytorch"] > 0 and ledger.held["nccl"] > 0
    return ledger


def check_step_lines(records):
    """What the step lines say is held is what the events add up to at that time."""
    ledger, lines = Ledger(records), [r for r in records if r["t"] == "step"]
    for line in sorted(lines, key=lambda r: r["t_ns"]):
        ledger.until(line["t_ns"])
        assert {k: v for k, v in line["hbm"].items() if v} == {k: v for k, v in ledger.asked.items() if v}, f"step {line['step']}"
    return len(lines)


def check_end(records):
    """The totals of the `alloc` lines are those of all events."""
    ledger, told = Ledger(records).until(float("inf")), {}
    for r in records:
        if r["t"] == "alloc":
            told[r["owner"]] = r["current"]
    assert {k: v for k, v in told.items() if v} == {k: v for k, v in ledger.asked.items() if v}


def check(ranks, allocator, steps):
    for records, stamps in ranks:
        assert not [r for r in records if r["t"] == "drop"], "something was not written"
        assert len(stamps) >= steps
        check_stamps(records, stamps, allocator)
        assert check_step_lines(records) > 0
        check_end(records)


@pytest.mark.parametrize("mode, allocator", [(m, a) for m in MODES for a in ALLOCATORS] if LONG else SHORT)
def test_demo_job(tmp_path, mode, allocator):
    check(run(tmp_path, demo(mode), allocator), allocator, STEPS)


if LONG:

    @pytest.mark.parametrize("allocator", ALLOCATORS)
    @pytest.mark.parametrize("version", [1, 2])
    def test_hf_trainer(tmp_path, version, allocator):
        if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
            pytest.skip("needs transformers and accelerate (tests/e2e/requirements.txt)")
        command = [ROOT / "tests" / "e2e" / "jobs" / "hf_trainer.py", "--fsdp-version", str(version), "--steps", "6", "--dir", tmp_path / "trainer"]
        check(run(tmp_path, [*command, "--out", tmp_path / "out.json"], allocator), allocator, 6)

    @pytest.mark.parametrize("allocator", ALLOCATORS)
    def test_torchtitan(tmp_path, allocator):
        if importlib.util.find_spec("torchtitan") is None or importlib.util.find_spec("tensorboard") is None:
            pytest.skip("needs torchtitan and tensorboard (tests/e2e/requirements.txt)")
        import matrix

        assets = subprocess.run([sys.executable, matrix.JOBS / "titan_assets.py", tmp_path / "titan"], capture_output=True, text=True)
        assert assets.returncode == 0, assets.stderr
        command = [str(word).format(shared=tmp_path, dir=tmp_path) for word in matrix.TITAN.command]
        check(run(tmp_path, command, allocator), allocator, 4)
