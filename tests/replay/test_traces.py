# SPDX-License-Identifier: Apache-2.0
"""Recorded trainings (record.py): a replay tells the run's own numbers exactly, and what a cache of whole blocks would have changed."""
import gzip
import json
import pathlib

import pytest

TRACES = pathlib.Path(__file__).resolve().parents[1] / "data" / "traces"
NAMES = sorted(path.stem for path in TRACES.glob("*.json"))
CONTEXT_GIB = 600 / 1024  # of the node's b200 (tools/vnode/core/gpus.def)


@pytest.fixture
def trace(replay):
    def open_trace(name):
        path = replay.write(f"{name}.jsonl", gzip.decompress((TRACES / f"{name}.jsonl.gz").read_bytes()))
        facts = json.loads((TRACES / f"{name}.json").read_text())
        limit = ("--gpu-memory", repr(facts["memory_gib"] - CONTEXT_GIB)) if facts["memory_gib"] else ()
        return replay.report(path, *limit), facts["torch"]

    return open_trace


def test_there_are_traces_near_the_limit_and_others():
    assert NAMES == ["fsdp2_near_limit", "fsdp2_near_limit_lengths", "fsdp2_ordinary"]
    assert all((TRACES / f"{name}.jsonl.gz").stat().st_size < 200_000 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_is_what_pytorch_counted(trace, name):
    report, torch = trace(name)
    (owner,) = [row for row in report["owners"] if row["owner"] == "pytorch"]
    assert owner["peak"] == torch["reserved_bytes.all.peak"]
    assert owner["current"] == torch["reserved_bytes.all.current"]
    assert (owner["allocs"], owner["frees"]) == (torch["segment.all.allocated"], torch["segment.all.freed"])
    assert owner["failed"] == torch["num_alloc_retries"] + torch["num_ooms"]
    assert report["checked"] is True
    recorded = {row["policy"]: row for row in report["policies"]}["recorded"]
    assert recorded["calls"]["malloc"] == torch["segment.all.allocated"] and recorded["failures"] == torch["num_alloc_retries"]
    assert (torch["num_alloc_retries"] > 0) == ("lengths" in name)


@pytest.mark.parametrize("name, fewer", [("fsdp2_near_limit", 0.9), ("fsdp2_near_limit_lengths", 0.55)])
def test_cache_near_the_limit(trace, name, fewer):
    """Equal steps: nine of ten driver calls go. With sequences of different lengths not every block fits again."""
    report, _ = trace(name)
    rows = {row["policy"]: row["calls"] | row for row in report["policies"]}
    handles = rows["cache"]["create"] + rows["cache"]["release"]  # NCCL's, which a cache of cudaMalloc lets pass
    before = rows["cudamalloc"]["malloc"] + rows["cudamalloc"]["free"] - handles
    after = rows["cache"]["malloc"] + rows["cache"]["free"]
    assert rows["cache"]["peak_reserved"] == rows["cudamalloc"]["peak_reserved"]
    assert after <= (1 - fewer) * before, f"{after} instead of {before}"


def test_cache_of_an_ordinary_run(trace):
    """PyTorch keeps everything it has: there is nothing to save, and nothing is lost."""
    report, _ = trace("fsdp2_ordinary")
    rows = {row["policy"]: row for row in report["policies"]}
    assert rows["cache"]["peak_reserved"] == rows["cudamalloc"]["peak_reserved"]
    assert rows["cache"]["calls"]["malloc"] + rows["cache"]["calls"]["create"] == rows["cudamalloc"]["calls"]["malloc"]
    assert rows["cache"]["calls"]["free"] == 0
