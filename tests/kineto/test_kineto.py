# SPDX-License-Identifier: Apache-2.0
"""b200opt report --kineto against the generator's truth, to the nanosecond, and against Holistic Trace Analysis."""
import gzip
import json
import math
import os
import pathlib
import random
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
COMMAND = pathlib.Path(os.environ["B200_BUILD"]) / "b200opt"
HTA_PYTHON = pathlib.Path(os.environ["B200_PYTHON_HTA"])
VARIANTS = {
    "plain": ["--seed", "1"],
    "bound": ["--seed", "2", "--comm-scale", "2.5"],
    "straggler": ["--seed", "3", "--straggler", "1:1.4", "--ranks", "3"],
    "gz": ["--seed", "4", "--gz"],
    "no-steps": ["--seed", "5", "--no-steps"],
    "one-step": ["--seed", "6", "--steps", "1", "--layers", "12"],
    "no-comm": ["--seed", "7", "--no-comm"],
    "epoch": ["--seed", "8", "--epoch"],
    "odd": ["--seed", "9", "--odd"],
    "not-json": ["--seed", "10", "--odd", "--not-json"],
}
HTA_AGREES = ("plain", "bound", "straggler", "gz", "no-steps", "one-step")
HTA_ASKED = HTA_AGREES + ("no-comm", "epoch", "odd")


def run(*arguments, status=0):
    result = subprocess.run([COMMAND, "report", *map(str, arguments)], capture_output=True, timeout=60)
    assert result.returncode == status, result.stderr
    return result


def report(path, *arguments, status=0):
    return json.loads(run("--kineto", path, "--json", *arguments, status=status).stdout)


@pytest.fixture(scope="session")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name, flags in VARIANTS.items():
        subprocess.run([sys.executable, "-B", HERE / "generate.py", folder / name, "--steps", "3", "--layers", "4", *flags], check=True)
    return folder


def truth_of(traces, name):
    return json.loads((traces / f"{name}.truth.json").read_text())


@pytest.fixture(scope="session")
def hta(traces):
    if not HTA_PYTHON.exists():
        pytest.skip(f"no {HTA_PYTHON.parent.parent.name}: tools/setup --tests makes it")
    result = subprocess.run([HTA_PYTHON, "-B", HERE / "ask_hta.py", *(traces / name for name in HTA_ASKED)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    return {name: answers[str(traces / name)] for name in HTA_ASKED}


@pytest.mark.parametrize("name", VARIANTS)
def test_exact(traces, name):
    truth, found = truth_of(traces, name), report(traces / name)
    assert [row["rank"] for row in found["ranks"]] == sorted(map(int, truth))
    for row in found["ranks"]:
        wanted = truth[str(row["rank"])]
        assert row["ns"] == wanted["all"]
        assert sum(row["operations"].values()) == wanted["operations"]
        assert not row["partial"]
        assert row["world"] == len(truth)
        assert [step["ns"] for step in row["steps"]] == wanted.get("steps", [])
        assert [step["step"] for step in row["steps"]] == list(range(len(wanted.get("steps", []))))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("no-steps", "one-step")])
def test_exact_without_the_last_step(traces, name):
    truth = truth_of(traces, name)
    for row in report(traces / name, "--without-last-step")["ranks"]:
        assert row["ns"] == truth[str(row["rank"])]["without_last_step"] != truth[str(row["rank"])]["all"]


@pytest.mark.parametrize("name", ("no-steps", "one-step"))
def test_fewer_than_two_steps_have_no_last_one(traces, name):
    assert report(traces / name)["ranks"] == report(traces / name, "--without-last-step")["ranks"]


def test_a_step_begins_before_what_it_asks_for_and_ends_before_what_it_does_not(tmp_path):
    def x(category, name, ts, dur, correlation=None):
        return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": {"correlation": correlation, "stream": 7}}
    launches = [0, 10, 20, 29.999, 30]
    events = [x("user_annotation", "ProfilerStep#7", 0, 10), x("user_annotation", "ProfilerStep#8", 20, 10),
              x("user_annotation", "ProfilerStep of mine", 1, 1), x("kernel", "unasked", 500, 1, 99)]
    for i, at in enumerate(launches):
        events += [x("cuda_runtime", "cudaLaunchKernel", at, 1, i), x("kernel", f"k{i}", 100 + 10 * i, 2 ** i, i)]
    path = alone(tmp_path, json.dumps({"traceEvents": events}).encode())
    row = report(path)["ranks"][0]
    assert [(step["step"], step["operations"]["compute"], step["ns"]["busy"]) for step in row["steps"]] == [(7, 1, 1000), (8, 2, 12000)]
    assert row["outside_steps"] == 3
    row = report(path, "--without-last-step")["ranks"][0]
    assert row["operations"]["compute"] == 2 and row["ns"]["busy"] == 3000 and [step["step"] for step in row["steps"]] == [7]


def pairs(traces, hta, name):
    """Each rank's answers: ours and HTA's."""
    for selection, flags in (("all", []), ("without_last_step", ["--without-last-step"])):
        ours = {row["rank"]: row["hta"] for row in report(traces / name, *flags)["ranks"]}
        assert sorted(ours) == sorted(map(int, hta[name][selection]))
        for rank, row in ours.items():
            yield row, hta[name][selection][str(rank)]


@pytest.mark.parametrize("name", HTA_AGREES)
def test_hta_says_the_same(traces, hta, name):
    for ours, theirs in pairs(traces, hta, name):
        assert ours.keys() == theirs.keys()
        for column, value in theirs.items():
            if column.endswith("_pctg"):  # both have two decimals
                assert ours[column] == value, column
            else:  # HTA's are doubles of microseconds since a date
                assert ours[column] == pytest.approx(value, rel=0, abs=2e-3), column


def test_no_communication_is_not_a_percentage(traces, hta):
    for ours, theirs in pairs(traces, hta, "no-comm"):
        assert ours["comp_comm_overlap_pctg"] is None
        assert math.isnan(theirs["comp_comm_overlap_pctg"])
        assert ours["compute_time(us)"] == pytest.approx(theirs["compute_time(us)"], rel=0, abs=2e-3)
    text = run("--kineto", traces / "no-comm").stdout.decode()
    assert " n/a " in text.splitlines()[4]


def test_timestamps_since_1970_lose_nothing(traces, hta):
    """A double has quarters of microseconds there."""
    differences = [abs(ours["idle_time(us)"] - theirs["idle_time(us)"]) for ours, theirs in pairs(traces, hta, "epoch")]
    assert all(0 < difference < 100 for difference in differences)


def test_where_hta_is_misled(traces, hta):
    """Waits with a stream, categories that are no kernels, kernels of symmetric memory, and "Memcpy" within a kernel's name."""
    for ours, theirs in pairs(traces, hta, "odd"):
        assert ours["compute_time(us)"] != pytest.approx(theirs["compute_time(us)"], abs=1)
    notes = "\n".join(report(traces / "odd")["notes"])
    for what in ("2 GPU operations are classed otherwise", "2 events with a stream are no work",
                 "2 GPU operations without a valid time and duration"):
        assert f"rank_0.json: {what}" in notes


def test_kinds(traces):
    for row in report(traces / "odd")["ranks"]:
        kinds = {kind["kind"]: kind for kind in row["kinds"]}
        assert {name: kind["operations"] for name, kind in kinds.items()} == {"AllGather": 3 * 7, "ReduceScatter": 3 * 4, "AllReduce": 1}
        gather = kinds["AllGather"]
        moved = gather["operations"] * 53_500_000 * 2 * 2 / 2  # n times a rank's share, halved by (n-1)/n
        assert gather["bus_gb_s"] == pytest.approx(moved / gather["total_ns"])
        assert kinds["AllReduce"]["bus_gb_s"] is None
        assert sum(kind["uncovered_ns"] for kind in row["kinds"]) == row["ns"]["uncovered"]  # none at the same time here


# ---- damage


def alone(tmp_path, data, name="t.json"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_cut_files_are_right_about_what_comes_before(traces, tmp_path):
    whole = (traces / "odd/rank_0.json").read_bytes()
    full = report(traces / "odd/rank_0.json")["ranks"][0]
    events = 0
    for length in sorted(random.Random(1).sample(range(400, len(whole) - 60), 60)):
        found = report(alone(tmp_path, whole[:length]))
        row = found["ranks"][0]
        assert row["partial"] and row["rank"] == 0
        assert f"it ends early, at byte {length}" in found["notes"][0]
        assert events <= row["events"] <= full["events"]
        events = row["events"]
    assert events > full["events"] / 2


def test_cut_and_damaged_gzip(traces, tmp_path):
    whole = (traces / "gz/rank_0.json.gz").read_bytes()
    full = report(traces / "gz/rank_0.json.gz")["ranks"][0]
    row = report(alone(tmp_path, whole[:len(whole) * 2 // 3], "t.json.gz"))["ranks"][0]
    assert row["partial"] and 0 < row["events"] < full["events"]
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 0xff
    assert report(alone(tmp_path, bytes(damaged), "t.json.gz"))["ranks"][0]["partial"]
    two = gzip.compress(gzip.decompress(whole)[:5000]) + gzip.compress(gzip.decompress(whole)[5000:])
    row = report(alone(tmp_path, two, "t.json.gz"))["ranks"][0]
    assert row["ns"] == full["ns"] and not row["partial"]


def test_random_damage(traces, tmp_path):
    whole = (traces / "not-json/rank_0.json").read_bytes()
    chance = random.Random(2)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(data))
            data[at:at + chance.randrange(3)] = bytes(chance.choice(b'{}[]",:\\0e-\n\0') for _ in range(chance.randrange(3)))
        result = subprocess.run([COMMAND, "report", "--kineto", alone(tmp_path, bytes(data)), "--json"], capture_output=True, timeout=20)
        assert result.returncode in (0, 3), result.stderr


def test_numbers_are_exact(tmp_path):
    def op(ts, dur, kind="k"):
        return f'{{"ph":"X","cat":"kernel","name":"{kind}","ts":{ts},"dur":{dur},"args":{{"stream":7}}}}'
    cases = [("1700000000000000.001", "0.001", 1), ("3000000000000001.123", "0.5", 500), ("1.7e15", "1e-3", 1), ("5", "2.0004999", 2000),
             ("5", "2.0005", 2001), ("0.0004", "0.0006", 1), ("12345678901.234567", "1e6", 10**9), ("-5.5", "11", 11000)]
    for ts, dur, ns in cases:
        row = report(alone(tmp_path, f'{{"traceEvents":[{op(ts, dur)}]}}'.encode()))["ranks"][0]
        assert (row["ns"]["span"], row["ns"]["compute"]) == (ns, ns), (ts, dur)
    for ts, dur in (("1e30", "1"), ("x", "1"), ("1", "-1"), ("1", "null"), ("1", "1e20"), ("--1", "1"), ("1.2.3", "1"), ("1e", "1")):
        found = report(alone(tmp_path, f'{{"traceEvents":[{op(ts, dur)}]}}'.encode()))
        assert sum(found["ranks"][0]["operations"].values()) == 0 and "1 GPU operations without a valid" in "\n".join(found["notes"])
    big = ",".join(op(-4 * 10**15, 10**15) for _ in range(20)) + "," + op(4 * 10**15, 10**15, "ncclKernel_AllReduce")
    row = report(alone(tmp_path, f'{{"traceEvents":[{big}]}}'.encode()))["ranks"][0]
    assert row["ns"]["span"] == 9 * 10**18 and row["ns"]["busy"] == 2 * 10**18


# ---- folders and terminals


def test_folders(traces, tmp_path):
    data = (traces / "plain/rank_0.json").read_bytes()
    alone(tmp_path, data, "a.pt.trace.json")
    alone(tmp_path, data, "b.json")
    alone(tmp_path, data.replace(b'"rank": 0', b'"r": 0'), "c.json")
    alone(tmp_path, b'{"0": {"span": 1}}', "truth.json")
    alone(tmp_path, b"", "empty.json")
    alone(tmp_path, b"\x7fELF", "elf.json.gz")
    alone(tmp_path, b"{", "notes.txt")
    (tmp_path / "folder.json").mkdir()
    found = report(tmp_path)
    assert [(row["file"], row["rank"]) for row in found["ranks"]] == [("c.json", -1), ("a.pt.trace.json", 0), ("b.json", 0)]
    assert found["ranks"][0]["ns"] == found["ranks"][1]["ns"] == found["ranks"][2]["ns"]
    assert sorted(found["notes"]) == [
        "a.pt.trace.json and b.json are both of rank 0; HTA takes one of them",
        "c.json: says no rank (distributedInfo)",
        "elf.json.gz: is no trace of PyTorch's profiler (it has no traceEvents)",
        "empty.json: is no trace of PyTorch's profiler (it has no traceEvents)",
        "folder.json: is no file",
        "truth.json: is no trace of PyTorch's profiler (it has no traceEvents)",
    ]


def test_messages(traces, tmp_path):
    for arguments, status, message in (
            (["--kineto", tmp_path / "none"], 3, f"report: cannot read '{tmp_path}/none': No such file or directory"),
            (["--kineto", tmp_path], 3, f"report: '{tmp_path}' has no traces (*.json, *.json.gz)"),
            (["--kineto", traces / "plain.truth.json"], 3, f"report: '{traces}/plain.truth.json' has no traces: plain.truth.json: is no "
                                                           "trace of PyTorch's profiler (it has no traceEvents)"),
            (["--kineto", tmp_path, "logs"], 2, "report: 'logs' does not go with --kineto; see b200opt report --help"),
            (["--kineto", tmp_path, "--against", "x"], 2, "report: '--against' does not go with --kineto; see b200opt report --help"),
            (["logs", "--without-last-step"], 2, "report: --without-last-step goes with --kineto; see b200opt report --help")):
        assert run(*arguments, status=status).stderr.decode() == f"b200opt: {message}\n"


def test_text_is_fit_for_a_terminal(traces, tmp_path):
    hostile = '{"ph":"X","cat":"kernel","name":"n","ts":1,"dur":1e15,"args":{"Collective name":"\\u001b[31m\u00e9' + "x" * 300 + '"}}'
    many = ",".join(f'{{"ph":"X","cat":"kernel","name":"n","ts":{i},"dur":2,"args":{{"Collective name":"kind {i}"}}}}' for i in range(100))
    alone(tmp_path, f'{{"distributedInfo":{{"rank":123456789012}},"traceEvents":[{hostile},{many}]}}'.encode(), "\x1b[31m\u00e9.json")
    for path in [traces / name for name in VARIANTS] + [tmp_path]:
        text = run("--kineto", path).stdout
        assert all(0x20 <= byte <= 0x7e or byte == 0x0a for byte in text)
        assert max(map(len, text.splitlines())) <= 100
        json.loads(run("--kineto", path, "--json").stdout)
    row = report(tmp_path)["ranks"][0]
    assert sum(kind["operations"] for kind in row["kinds"]) == 101 and row["kinds"][-1]["kind"] == "other"


def test_memory_does_not_grow_with_what_the_host_did(tmp_path):
    def most_kb(events):
        one = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1.5,"dur":2.5,"args":{"Call stack":"' + b"f(1);" * 200 + b'"}}'
        kernel = b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"stream":7}}'
        path = alone(tmp_path, b'{"traceEvents":[' + b",".join([one] * events + [kernel]) + b"]}")
        child = subprocess.Popen([COMMAND, "report", "--kineto", path], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = status
        assert status == 0
        return usage.ru_maxrss
    assert most_kb(20000) < most_kb(10) + 1024
