# SPDX-License-Identifier: Apache-2.0
"""Near the limit: who survives, what retries cost, and that the advice of a post-mortem, followed, makes the job fit."""
import re
import subprocess

import pytest

from pool import ARMS, BUILD, records, run, summed

NODE = {"B200OPT_VNODE_MEMORY_GB": "2", "B200OPT_VNODE_GPUS": "2"}
OUT_OF_MEMORY = 3


def limit(arm, folder, *arguments, **more):
    return run(arm, folder, "pool_limit", *arguments, **{**NODE, **more})


def advice_of(folder, arm):
    """Variables that the last post-mortem names."""
    (advice,) = [r["advice"] for r in records(folder, arm, "oom") if r.get("final")][-1:]
    return dict(re.findall(r"\b(B200OPT_\w+|PYTORCH_CUDA_ALLOC_CONF)=(\S+?)(?=[\s;])", advice.split(";")[0] + ";"))


def test_headroom_saves_nccl(tmp_path):
    for arm in ("bare", "off", "observe", "pool"):
        done = limit(arm, tmp_path, "nccl")
        assert (done.returncode, "ncclCommInitAll 1\n" in done.stdout) == (OUT_OF_MEMORY, True), (arm, done.stdout + done.stderr)
        assert ("b200opt: oom: nccl asked for 240.0 MiB (cuMemCreate) 1 times" in done.stderr) == (arm in ("observe", "pool")), done.stderr
    report = subprocess.run([BUILD / "b200opt", "report", tmp_path / "observe"], capture_output=True, text=True, check=True).stdout
    assert "allocations of device memory were refused" in report and "within the steps" not in report, report
    advice = advice_of(tmp_path, "observe")
    assert advice["B200OPT_MEMORY"] == "pool" and int(advice["B200OPT_MEMORY_RESERVE_MB"]) > 480
    followed = limit("observe", tmp_path / "followed", "nccl", **advice)
    assert (followed.returncode, followed.stdout) == (0, "ncclCommInitAll 0\n"), followed.stdout + followed.stderr
    assert sum(r["refused"] for r in records(tmp_path / "followed", "observe", "pool")) > 0
    assert not [r for r in records(tmp_path / "followed", "observe", "oom") if r.get("final")]


def test_no_advice_about_pytorch_that_holds_nothing(tmp_path):
    done = limit("observe", tmp_path, "alone", B200OPT_VNODE_MEMORY_GB="1")
    assert done.returncode == OUT_OF_MEMORY, done.stdout + done.stderr
    advice = [r["advice"] for r in records(tmp_path, "observe", "oom") if r.get("final")]
    assert advice and all(re.search(r"MiB less held by others than PyTorch, which holds [1-9]\.0 MiB", a) for a in advice), advice
    assert not any(word in a for a in advice for word in ("RESERVE_MB", "expandable", "smaller batch")), advice


def test_the_allocation_that_starts_the_library_is_counted(tmp_path):
    assert limit("pool", tmp_path, "first").returncode == 0
    assert summed(tmp_path, "pool", "passed") == 1 and summed(tmp_path, "pool", "misses") == 0
    (header,) = records(tmp_path, "pool", "header")
    assert header["virtual_node"] == 1, header


def test_what_was_freed_is_there_for_nccl(tmp_path):
    for arm in ARMS:
        done = limit(arm, tmp_path, "rescue")
        assert (done.returncode, done.stdout) == (0, "ncclCommInitAll 0\n"), (arm, done.stdout + done.stderr)
    report = subprocess.run([BUILD / "b200opt", "report", tmp_path / "pool"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^Pool of device memory\n.*?; 1\.\d+ GiB kept at most on a rank$", report, re.M | re.S), report
    assert summed(tmp_path, "pool", "rescues") > 0 and summed(tmp_path, "pool", "idle_peak") > 1 << 30


@pytest.mark.parametrize("arm", ["observe", "pool"])
def test_retries_are_counted_with_their_time(arm, tmp_path):
    count = 6
    done = limit(arm, tmp_path, "retries", count, B200OPT_LOG_LEVEL="info")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr
    retries = records(tmp_path, arm, "retry")
    refused = [r for r in records(tmp_path, arm, "oom")]
    assert len(retries) >= count - 1 and len(refused) == sum(r["failures"] for r in retries)
    assert all(r["owner"] == "pytorch" and r["failures"] == 1 and r["dur_ns"] > 0 for r in retries), retries
    assert not any(r.get("final") for r in refused)
    said = re.search(r"(\d+) (?:retries in|allocations were refused at first; the retries took) ([\d.]+) ms", done.stderr)
    assert int(said[1]) == len(retries) and abs(float(said[2]) - sum(r["dur_ns"] for r in retries) * 1e-6) < 0.1


@pytest.mark.parametrize("arm", ["observe", "pool"])
def test_post_mortem_names_who_holds_it(arm, tmp_path):
    done = limit(arm, tmp_path, "large", 1800)
    assert (done.returncode, done.stdout) == (OUT_OF_MEMORY, "out of memory\n")
    (final,) = [r for r in records(tmp_path, arm, "oom") if r.get("final")]
    assert final["owner"] == "pytorch" and final["failures"] == 2 and final["why"] == "driver"
    assert final["held"] == {"pytorch": 513 << 20} and final["total"] == 2 << 30
    assert final["total"] - (1200 << 20) < final["free"] < final["total"] - (513 << 20)
    assert "expandable_segments" not in final["advice"]  # no holes are that large
    assert re.fullmatch(r"\S+ [MG]iB less: a smaller batch, shorter sequences or activation checkpointing", final["advice"]), final
    lines = done.stderr.splitlines()
    assert all(line.startswith("b200opt: oom: ") for line in lines) and "pytorch asked for 1.76 GiB" in lines[0], done.stderr
    assert lines[-1].startswith("b200opt: oom: advice: ")


def test_post_mortem_when_nothing_is_held(tmp_path):
    done = limit("observe", tmp_path, "lone", 3000)
    assert done.returncode == OUT_OF_MEMORY and "b200opt: oom: held: nothing yet\n" in done.stderr, done.stderr


def test_holes_are_named_where_they_could_be_large_enough(tmp_path):
    assert limit("observe", tmp_path, "large", 1400).returncode == OUT_OF_MEMORY
    (final,) = [r for r in records(tmp_path, "observe", "oom") if r.get("final")]
    assert "expandable_segments:True" in final["advice"] and "reserved but unallocated; else " in final["advice"], final


def test_headroom_that_is_too_large_says_which_would_do(tmp_path):
    done = limit("pool", tmp_path, "large", 600, B200OPT_MEMORY_RESERVE_MB="512")
    assert done.returncode == OUT_OF_MEMORY and "it is kept for NCCL and cuBLAS" in done.stderr
    advice = advice_of(tmp_path, "pool")
    assert 0 < int(advice["B200OPT_MEMORY_RESERVE_MB"]) < 512
    followed = limit("pool", tmp_path / "followed", "large", 600, **advice)
    assert (followed.returncode, followed.stdout) == (0, "fits\n"), followed.stderr


@pytest.mark.parametrize("order", ["eager", "deferred"])
def test_headroom_of_stream_ordered_memory(order, tmp_path):
    """What would dip into it is refused, but not what the driver's pool has idle, nor what is there once that has been waited for and given back."""
    facts = ("beside it", "last error", "from what is idle", "in its place", "most of it")
    for arm, reserve, answers in (("bare", 0, (0, 0, 0, 0, 0)), ("pool", 0, (0, 0, 0, 0, 0)), ("pool", 400, (2, 2, 0, 0, 2))):
        folder = tmp_path / str(reserve)
        done = limit(arm, folder, "ordered", B200OPT_MEMORY_RESERVE_MB=str(reserve), B200OPT_VNODE_ORDER=order)
        assert done.stdout.splitlines() == [f"{fact} {answer}" for fact, answer in zip(facts, answers)], (arm, reserve, done.stdout + done.stderr)
    refused = [(r["bytes"] >> 20, r["why"]) for r in records(folder, "pool", "oom") if r.get("final")]
    assert refused == [(400, "headroom"), (1300, "headroom")], refused


def test_headroom_of_all_the_device_is_ignored(tmp_path):
    for reserve, status in ((2048, 0), (1048576, 0), (2047, OUT_OF_MEMORY)):
        done = limit("pool", tmp_path / str(reserve), "large", 600, B200OPT_MEMORY_RESERVE_MB=str(reserve))
        said = f"b200opt: B200OPT_MEMORY_RESERVE_MB={reserve} is ignored: PyTorch would get nothing; accepted is less than the device's 2048 MiB\n"
        assert done.returncode == status and (done.stderr == said if status == 0 else said not in done.stderr), (reserve, done.stderr)
