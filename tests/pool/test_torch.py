# SPDX-License-Identifier: Apache-2.0
"""PyTorch with the pool beneath it: the losses are bit for bit those of the job without, whatever PyTorch's own allocator does."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from pool import BUILD

HERE = pathlib.Path(__file__).resolve().parent
TRAIN = HERE.parents[1] / "tools" / "demo_job" / "train.py"
ALLOCATORS = {"native": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}


def node(folder, gpus, variables, *command, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "PYTORCH_"))}
    env.update(OMP_NUM_THREADS="1", MKL_CBWR="AUTO", **more)
    command = [BUILD / "b200opt", "dryrun", "--gpus", str(gpus), *variables, "--", sys.executable, "-B", *command]
    folder.mkdir(exist_ok=True)
    return subprocess.run([str(c) for c in command], cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def records(folder, kind):
    logs = [p for p in folder.rglob("*.jsonl") if not p.name.endswith(".node.jsonl")]
    return [r for p in logs for r in map(json.loads, p.read_text().splitlines()) if r["t"] == kind]


def both(folder, gpus, *command, **more):
    bare = node(folder / "bare", gpus, ["--bare"], *command, **more)
    pool = node(folder / "pool", gpus, ["--log", folder / "log", "B200OPT_MEMORY=pool"], *command, **more)
    assert bare.returncode == 0, bare.stderr[-3000:]
    assert pool.returncode == 0, pool.stderr[-3000:]
    assert not [r for r in records(folder / "log", "warn") + records(folder / "log", "oom")]
    return bare.stdout, pool.stdout


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_losses_are_the_same(allocator, tmp_path):
    bare, pool = both(tmp_path, 1, HERE / "job.py", "train", "8", PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    assert len(bare.splitlines()) == 9 and pool == bare
    hits = sum(r["hits"] for r in records(tmp_path / "log", "pool"))
    assert hits > 0 if allocator == "native" else hits == 0, "segments of one kind only come from cudaMalloc"


def test_the_demo_job_is_the_same(tmp_path):
    small = ["--steps", "6", "--width", "64", "--batch", "2", "--seq", "32", "--text-mb", "0.3"]
    bare, pool = both(tmp_path, 2, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAIN, *small)
    losses = [re.findall(r"^step (\d+) loss (\S+)", text, re.M) for text in (bare, pool)]
    assert len(losses[0]) == 6 and losses[1] == losses[0]


def test_fsdp_reuses_what_it_has_emptied(tmp_path):
    """PyTorch registers every segment with NCCL, and gives it up before it frees: the blocks are kept all the same."""
    job = [HERE.parent / "e2e" / "jobs" / "hf_trainer.py", "--fsdp-version", "2", "--steps", "4", "--seq", "128", "--vocabulary", "8192",
           "--empty-cache-every", "1", "--dir", "trainer", "--out", "out.json"]
    both(tmp_path, 2, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *job)
    bare, pool = (json.loads((tmp_path / arm / "out.json").read_text()) for arm in ("bare", "pool"))
    assert len(bare["losses"]) == 4 and pool["losses"] == bare["losses"] and pool["grad_norms"] == bare["grad_norms"]
    assert {r["name"] for r in records(tmp_path / "log", "call")} >= {"ncclCommRegister", "ncclCommDeregister"}
    counts = [r for r in records(tmp_path / "log", "pool") if r["misses"]]
    assert len(counts) == 2 and all(r["hits"] > 0 and r["pinned"] == 0 for r in counts), counts


def test_advice_for_holes_makes_it_fit(tmp_path):
    limited = ["B200OPT_VNODE_MEMORY_GB=2"]
    refused = node(tmp_path / "first", 1, ["--log", tmp_path / "log", *limited], HERE / "job.py", "holes")
    assert (refused.returncode, refused.stdout) == (3, "out of memory\n"), refused.stderr
    assert len(re.findall(r"^b200opt: oom: (rank \d+: )?pytorch asked", refused.stderr, re.M)) == 1, refused.stderr
    (final,) = [r for r in records(tmp_path / "log", "oom") if r.get("final")]
    assert final["owner"] == "pytorch" and final["failures"] == 2
    name, value = re.match(r"(PYTORCH_CUDA_ALLOC_CONF)=(\S+)", final["advice"]).groups()
    followed = node(tmp_path / "second", 1, ["--log", tmp_path / "log2", *limited], HERE / "job.py", "holes", **{name: value})
    assert (followed.returncode, followed.stdout) == (0, "fits 160\n"), followed.stderr
