# SPDX-License-Identifier: Apache-2.0
"""What is read and written: logs with `block` lines, logs of RMM, and input that is neither."""
import json
import random
import re
import subprocess

import pytest
from conftest import COMMAND
from generate import HEADER, csv_text, events

MIB = 1 << 20

# As RMM writes them: spdlog's thread id and time, %p, %zu and the stream's address; a colon before the microseconds is old.
RMM = HEADER + """
1979,13:05:59.000042,allocate,0x7f2a40000000,2097152,0
1979,13:05:59.000044,allocate,0x7f2a40200000,1024,0x1
1980,13:05:59.123456,allocate failure,(nil),99999999999,0x2
1979,23:59:60.999999,free,0x7f2a40000000,2097152,0x55d0c0de0040
18446744073709551615,00:00:00:000000,allocate,0x0,0,0
1979,00:00:00.000001,allocate,(nil),0,0
1979,00:00:00.000002,free,(nil),0,0
1979,00:00:00.000003,free,0xffffffffffffffff,17592186044416,2
"""


def header(**fields):
    return {"t": "header", "format": 1, "producer": "b200opt 0", "run": "r", "pid": 77, "rank": 0, "world": 1,
            "t_ns": 1000, "unix_ns": 86_400_000_000_000 * 20000 + 3_600_000_000_000, **fields}


def block(what, address=0, handle=0, bytes_=0, owner="pytorch", stream=-1, t_ns=1000, step=0):
    return {"t": "block", "owner": owner, "what": what, "address": address, "handle": handle, "bytes": bytes_, "stream": stream,
            "t_ns": t_ns, "step": step}


def ledger(owner, current, peak, allocs, frees, failed=0):
    return {"t": "alloc", "owner": owner, "current": current, "peak": peak, "allocs": allocs, "frees": frees, "failed": failed}


END = {"t": "end", "t_ns": 2000}


def log_text(*lines):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def error(replay, path, *arguments, status=3):
    done = replay.run(path, *arguments)
    text = done.stderr.decode(errors="replace")
    assert (done.returncode, done.stdout, text.count("\n")) == (status, b"", 1), (done, text)
    return text.removeprefix("b200opt: replay: ").rstrip("\n")


# ---- RMM

def test_a_log_of_rmm_is_written_as_it_was_read(replay):
    for name, text in (("rmm.csv", RMM), ("fsdp.csv", csv_text(events(3, steps=2)))):
        path = replay.write(name, text)
        assert replay.run(path, "--rmm-csv", "out.csv").returncode == 0
        assert (replay.folder / "out.csv").read_text() == text


def test_what_a_log_of_rmm_says(replay):
    report = replay.report(replay.write("rmm.csv", RMM))
    rows = {row["policy"]: row for row in report["policies"]}
    assert list(rows) == ["recorded", "cudamalloc", "cache", "expandable", "native"]
    assert (report["source"], report["run"], report["rank"], report["checked"], report["owners"]) == ("rmm", None, None, None, [])
    # nothing is behind null pointers; the free at the end is of something from before
    assert (report["events"], report["unknown"], report["replaced"], report["peak_blocks"]) == (5, 1, 0, 2)
    recorded = rows["recorded"]
    assert (recorded["peak_live"], recorded["live"], recorded["failures"]) == (2097152 + 1024, 1024, 1)
    assert (recorded["hits"], recorded["stall_ns"]) == (None, None)


@pytest.mark.parametrize("line, wrong", [
    ("x", "Thread is not a number"),
    ("-1,00:00:00.000000,free,0x1,1,0", "Thread is not a number"),
    ("01,00:00:00.000000,free,0x1,1,0", "Thread is not a number"),
    ("18446744073709551616,00:00:00.000000,free,0x1,1,0", "Thread is not a number"),
    ("1,24:00:00.000000,free,0x1,1,0", "Time is not a time of day"),
    ("1,00:00:00,free,0x1,1,0", "Time is not a time of day"),
    ("1,00:00:00.000000,freed,0x1,1,0", "Action is not known"),
    ("1,00:00:00.000000,allocate failed,0x1,1,0", "Action is not known"),
    ("1,00:00:00.000000,free,1,1,0", "Pointer is not an address"),
    ("1,00:00:00.000000,free,0xG,1,0", "Pointer is not an address"),
    ("1,00:00:00.000000,free,0x10000000000000000,1,0", "Pointer is not an address"),
    ("1,00:00:00.000000,free,0x1,-1,0", "Size is not a number of bytes"),
    ("1,00:00:00.000000,allocate,0x1,17592186044417,0", "Size is not a number of bytes"),
    ("1,00:00:00.000000,free,0x1,1,", "Stream is not a stream"),
    ("1,00:00:00.000000,free,0x1,1,0,", "Stream is not a stream"),
    ("1,00:00:00.000000,free,0x1,1,0\r", "Stream is not a stream"),
    ("1,00:00:00.000000,free,0x1,1,0\0", "Stream is not a stream"),
    ("", "Thread is not a number"),
])
def test_a_wrong_line_of_rmm(replay, line, wrong):
    path = replay.write("rmm.csv", RMM + line + "\n" + RMM)
    assert re.fullmatch(re.escape(f"{path}:{RMM.count(chr(10)) + 1}: {wrong}") + r" \(accepted: .+\)", error(replay, path))


def test_more_than_a_device_can_have(replay):
    path = replay.write("rmm.csv", csv_text([("allocate", 4096 + i, 1 << 44, 0) for i in range((1 << 16) + 1)]))
    assert error(replay, path, "--policy", "cudamalloc").startswith(f"{path}:{(1 << 16) + 2}: more is allocated than")


def test_a_log_cut_off_anywhere(replay):
    """Whole lines count; a line without its end does not, and is told of."""
    text = RMM[:200]
    for length in range(len(HEADER) + 1, len(text)):
        report = replay.report(replay.write("cut.csv", text[:length]), "--policy", "recorded")
        assert len(report["notes"]) - bool(report["unknown"]) == (text[length - 1] != "\n")


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"\x80\x03}q\0.", HEADER.lower().encode() + b"\n", HEADER[:-1].encode() + b"\n"])
def test_a_file_that_is_no_log(replay, content):
    path = replay.write("data", content)
    assert error(replay, path) == (f"'{path}' is no log (accepted: *.jsonl of b200opt, or a file whose first line is '{HEADER}')")


def test_a_header_with_more_behind_it(replay):
    path = replay.write("data", HEADER + ",Device\n")
    assert error(replay, path) == f"{path}:1: not the first line of a log of RMM (accepted: {HEADER})"


@pytest.mark.parametrize("seed", range(30))
def test_damaged_bytes(replay, seed):
    """Any damage gives an answer or one line, never a signal."""
    chance = random.Random(seed)
    data = bytearray((RMM if seed % 2 else log_text(header(), *[block("alloc", i + 1, 0, MIB) for i in range(5)], END)).encode())
    for _ in range(3):
        data[chance.randrange(len(HEADER), len(data))] = chance.randrange(256)
    done = replay.run(replay.write("damaged.csv" if seed % 2 else "damaged.jsonl", bytes(data)))
    assert done.returncode in (0, 1, 3)
    assert all(line.startswith(b"b200opt: replay: ") for line in done.stderr.splitlines())


def test_the_input_is_not_overwritten(replay):
    path = replay.write("rmm.csv", RMM)
    assert "is what is replayed" in error(replay, path, "--rmm-csv", "./rmm.csv", status=2)
    assert path.read_text() == RMM


# ---- logs

LOG = (header(), block("alloc", 0x1000, 0, 3 * MIB), block("alloc", 0x9000, 0, MIB, "nccl"), block("free", 0x1000),
       {"t": "oom", "owner": "pytorch", "bytes": 5, "t_ns": 7}, block("alloc", 0x1000, 0, 2 * MIB))
LEDGER = (ledger("pytorch", 2 * MIB, 3 * MIB, 2, 1, 1), ledger("nccl", MIB, MIB, 1, 0))


def test_recorded_is_what_the_ledger_says(replay):
    report = replay.report(replay.write("a.jsonl", log_text(*LOG, *LEDGER, END)))
    assert (report["checked"], report["rank"], report["run"], report["events"]) == (True, 0, "r", 5)
    assert [row["policy"] for row in report["policies"]] == ["recorded", "cudamalloc", "cache", "expandable"]
    recorded = report["policies"][0]
    assert (recorded["peak_live"], recorded["peak_reserved"], recorded["live"]) == (4 * MIB, 4 * MIB, 3 * MIB)
    assert (recorded["calls"]["malloc"], recorded["calls"]["free"], recorded["failures"]) == (3, 1, 1)
    assert recorded["stall_ns"] == 4 * 100_000


@pytest.mark.parametrize("change", [dict(current=1), dict(peak=1), dict(allocs=1), dict(frees=2), dict(failed=0)])
def test_a_ledger_that_says_something_else(replay, change):
    path = replay.write("a.jsonl", log_text(*LOG, {**LEDGER[0], **change}, LEDGER[1], END))
    assert replay.report(path, status=1)["checked"] is False
    assert b"differ in the memory of pytorch" in replay.run(path).stdout


def test_what_is_not_whole_is_not_compared(replay):
    for lines in ((*LOG, *LEDGER), (*LOG, END), (*LOG, *LEDGER, {"t": "drop", "what": "block", "count": 3}, END)):
        report = replay.report(replay.write("a.jsonl", log_text(*lines)))
        assert report["checked"] is None
    assert report["notes"] == ["3 events were not recorded, as the log was full (B200OPT_LOG_MAX_MB)"]


def test_handles_live_as_long_as_references_and_mappings(replay):
    lines = (block("create", handle=5, bytes_=4 * MIB), block("map", 0x200000, 5, 2 * MIB), block("map", 0x400000, 5, 2 * MIB),
             block("create", handle=5, bytes_=4 * MIB),  # retained
             block("release", handle=5), block("release", handle=5),
             block("create", handle=6, bytes_=MIB, owner="nccl"),
             block("unmap", 0x200000, bytes_=2 * MIB), block("unmap", 0x400000, bytes_=2 * MIB),  # gone here
             block("create", handle=5, bytes_=2 * MIB), block("map", 0x200000, 5, 2 * MIB), block("map", 0x400000, 99, 2 * MIB),
             block("release", handle=5), block("unmap", 0x200000, bytes_=4 * MIB))  # and here; 99 is the host's
    counted = (ledger("pytorch", 0, 4 * MIB, 2, 2), ledger("nccl", MIB, MIB, 1, 0))
    report = replay.report(replay.write("a.jsonl", log_text(header(), *lines, *counted, END)))
    assert report["checked"] is True
    recorded, cudamalloc, cache, expandable = report["policies"]
    assert recorded["calls"] == dict(malloc=0, free=0, create=4, release=3, map=4, unmap=3, access=2)
    assert recorded["stall_ns"] == 4 * 100_000 + 3 * 300 + 4 * 50_000 + 3 * 50_000 + 2 * 50_000
    assert (recorded["peak_reserved"], recorded["reserved"]) == (5 * MIB, MIB)
    assert cudamalloc["calls"]["malloc"] == 3 and cudamalloc["peak_reserved"] == 5 * MIB
    assert cache["hits"] == 0 and cache["calls"]["create"] == 3  # handles pass by the cache
    assert expandable["peak_reserved"] == 20 * MIB + MIB  # PyTorch's in a page; NCCL's is not PyTorch's to place


def test_other_owners_are_not_the_allocators(replay):
    lines = (block("alloc", 0x1000, 0, 30 * MIB), block("free", 0x1000), block("alloc", 0x2000, 0, 30 * MIB, "nccl"))
    rows = replay.policies(replay.write("a.jsonl", log_text(header(), *lines)), "--gpu-memory", "0.05")  # 51.2 MiB
    assert rows["expandable"]["failures"] == 1 and rows["expandable"]["retries"] == 0  # NCCL meets a full device
    assert (rows["cache"]["failures"], rows["cache"]["hits"]) == (0, 1)


def test_a_log_becomes_one_of_rmm(replay):
    lines = (*LOG[1:3], block("create", handle=9, bytes_=7, t_ns=1000 + 1_234_567_000), block("free", 0x1000),
             block("free", 0xdead), block("release", handle=9), block("alloc", 0x9000, 0, 11, stream=3))
    path = replay.write("a.jsonl", log_text(header(), *lines))
    assert replay.run(path, "--rmm-csv", "out.csv").returncode == 0
    assert (replay.folder / "out.csv").read_text() == HEADER + """
77,01:00:00.000000,allocate,0x1000,3145728,0
77,01:00:00.000000,allocate,0x9000,1048576,0
77,01:00:01.234567,allocate,0x8000000000000002,7,0
77,01:00:00.000000,free,0x1000,3145728,0
77,01:00:00.000000,free,0x8000000000000002,7,0
77,01:00:00.000000,free,0x9000,1048576,0
77,01:00:00.000000,allocate,0x9000,11,0
"""
    of_log, of_csv = replay.policies(path)["cudamalloc"], replay.policies("out.csv")["cudamalloc"]
    assert of_log == of_csv and of_log["requests"] == 4


def test_the_report_writes_the_same(replay):
    path = replay.write("a.jsonl", log_text(header(), *LOG[1:], *LEDGER, END))
    assert replay.run(path, "--rmm-csv", "one.csv").returncode == 0
    done = subprocess.run([COMMAND, "report", ".", "--rmm-csv", "other.csv"], capture_output=True, text=True, cwd=replay.folder)
    assert done.returncode == 0 and "Device memory by owner" in done.stdout, done.stderr
    assert (replay.folder / "one.csv").read_text() == (replay.folder / "other.csv").read_text()
    replay.write("a.jsonl", log_text(header(), *LEDGER, END))
    done = subprocess.run([COMMAND, "report", ".", "--rmm-csv", "none.csv"], capture_output=True, text=True, cwd=replay.folder)
    assert done.returncode == 3 and "report: '.' has no recorded allocations" in done.stderr
    assert not (replay.folder / "none.csv").exists()


@pytest.mark.parametrize("change, wrong", [
    (dict(what="malloc"), "unknown kind of block (accepted: alloc, free, create, release, map, unmap)"),
    (dict(what="access"), "unknown kind of block (accepted: alloc, free, create, release, map, unmap)"),
    (dict(owner="me"), "unknown owner (accepted: pytorch, nccl, cublas, cudnn, b200opt, other)"),
    (dict(bytes=-1), "bytes are out of range (accepted: 0 to 17592186044416)"),
    (dict(bytes=2**44 + 1), "bytes are out of range (accepted: 0 to 17592186044416)"),
])
def test_a_wrong_block(replay, change, wrong):
    path = replay.write("a.jsonl", log_text(header(), LOG[1], {**LOG[1], **change}))
    assert error(replay, path) == f"{path}:3: {wrong}"


def test_ranks_and_runs(replay):
    for rank, bytes_ in ((0, None), (3, 30), (1, 10)):
        lines = [block("alloc", 1, 0, bytes_)] if bytes_ else []
        replay.write(f"rank{rank}.jsonl", log_text(header(rank=rank), *lines))
    replay.write("old.jsonl", log_text(header(run="old", unix_ns=5, rank=0), block("alloc", 1, 0, 70)))
    live = lambda *options: (lambda report: (report["rank"], report["policies"][0]["live"]))(replay.report(replay.folder, *options))  # noqa: E731
    assert live() == (1, 10)
    assert live("--rank", 3) == (3, 30)
    assert live("--run", "old") == (0, 70)
    assert error(replay, replay.folder, "--rank", 0) == f"'{replay.folder}' has no recorded allocations of rank 0 (accepted: 1, 3)"
    assert "no run named 'x'" in error(replay, replay.folder, "--run", "x")


def test_a_log_without_a_trace(replay):
    path = replay.write("a.jsonl", log_text(header(), *LEDGER, END))
    assert error(replay, path) == f"'{path}' has no recorded allocations (run the job with B200OPT_MEMORY_TRACE=on)"


def test_native_is_for_tensors(replay):
    path = replay.write("a.jsonl", log_text(*LOG))
    assert error(replay, path, "--policy", "native", status=2).startswith("--policy native is for tensors")


def test_the_text(replay):
    path = replay.write("a.jsonl", log_text(header(run="r\u00e9\x1b"), *LOG[1:], *LEDGER, END))
    done = replay.run(path, "--gpu-memory", "80")
    text = done.stdout.decode()
    assert done.returncode == 0 and text.isascii() and "\x1b" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert re.search(r"^rank +0 of run r\?+$", text, re.M)
    assert re.search(r"^device +80 GiB$", text, re.M)
    assert re.search(r"^  recorded +4 MiB +4 MiB +0\.0 % +- +1 +- +0\.4 ms$", text, re.M), text
    assert "the ledger of the log counted the same" in text and "would not fit" not in text
    small = replay.run(path, "--gpu-memory", "0.003").stdout.decode()
    assert re.search(r"the recorded run would not fit: it held more than the device\s+has", small), small
