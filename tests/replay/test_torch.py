# SPDX-License-Identifier: Apache-2.0
"""The policies `native` and `expandable` count what PyTorch's own allocator counts, byte for byte, for the same requests.

PyTorch runs on the virtual node (B200_NODE: the command whose `dryrun` has one). Near the limit the device is as large as
the node's, so that the allocator's own retries decide.
"""
import json
import os
import subprocess
import sys

import pytest
from conftest import COMMAND
from generate import csv_text, events

NODE = os.environ.get("B200_NODE", str(COMMAND))
ASK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ask_torch.py")


def ask(replay, path, policy, memory_gib):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "PYTORCH_")) and k != "LD_PRELOAD"}
    env |= {k: v for k, v in os.environ.items() if k == "B200OPT_VNODE_ATEN_DIR"}
    env |= {"PYTORCH_ALLOC_CONF": f"expandable_segments:{policy == 'expandable'}"}
    done = subprocess.run([NODE, "dryrun", "--bare", "--gpus", "1", "--log", "logs", f"B200OPT_VNODE_MEMORY_GB={memory_gib}", "--",
                           sys.executable, ASK, path], capture_output=True, text=True, env=env, cwd=replay.folder, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("policy", ["native", "expandable"])
@pytest.mark.parametrize("memory_gib", [64, 7])
def test_same_as_pytorch(replay, policy, memory_gib):
    path = replay.write("fsdp.csv", csv_text(events(5, steps=4)))
    theirs = ask(replay, path, policy, memory_gib)
    ours = replay.policies(path, "--policy", policy, "--gpu-memory", repr(theirs["limit"] / 2**30))[policy]
    for key in ("peak_reserved", "reserved", "peak_live", "live", "retries", "failures"):
        assert ours[key] == theirs[key], key
    calls = ours["calls"]
    if policy == "native": # PyTorch counts the calls that succeeded
        assert calls["malloc"] - ours["retries"] - ours["failures"] == theirs["segments"]
        assert calls["free"] == theirs["segments_freed"]
    else:
        assert calls["access"] == theirs["device_allocs"]
    assert (ours["retries"] > 0) == (memory_gib == 7)


JOB = """
import torch
for step in range(6):
    kept = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (3, 30, 1, 50)]
    (kept[0].view(torch.bfloat16)[:4096].view(64, 64) @ kept[0].view(torch.bfloat16)[:4096].view(64, 64)).sum().item()
    del kept
    if step % 2:
        torch.cuda.empty_cache()
"""


@pytest.mark.parametrize("expandable", [False, True])
def test_trace_of_a_job(replay, expandable):
    """What the library traces of a job is what its ledger counted, owner by owner, and what the driver was asked."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "PYTORCH_")) and k != "LD_PRELOAD"}
    env |= {k: v for k, v in os.environ.items() if k == "B200OPT_VNODE_ATEN_DIR"}
    env |= {"PYTORCH_ALLOC_CONF": f"expandable_segments:{expandable}"}
    done = subprocess.run([NODE, "dryrun", "--gpus", "1", "--log", "logs", "B200OPT_MEMORY_TRACE=on", "--", sys.executable, "-c", JOB],
                          capture_output=True, text=True, env=env, cwd=replay.folder, timeout=600)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([COMMAND, "replay", "logs", "--policy", "all", "--json"], capture_output=True, text=True, cwd=replay.folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["checked"] is True
    calls = next(row for row in told["policies"] if row["policy"] == "recorded")["calls"]
    made = (calls["create"], calls["release"]) if expandable else (calls["malloc"], calls["free"])
    assert made[0] >= 6 and made[1] >= 3, calls
