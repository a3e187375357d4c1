# SPDX-License-Identifier: Apache-2.0
"""Logs that the library would not write: cut, mutilated, with impossible numbers. The command reads on, says what it left out,
and prints text that a terminal can take."""
import glob
import json
import os
import random

import grammar
import pytest
from generate import Job, write

HUGE = [2**63 - 1, -2**63, 2**62, -2**62, 2**61, 2**61 - 1, -1, 0, 10**30, -10**30, 1.5e308, 0.5]


def paths(folder):
    return sorted(glob.glob(os.path.join(folder, "*.jsonl")))


def read_all(tmp_path, b200opt):
    """Both verbs, text and JSON; → the report."""
    text = b200opt("report", tmp_path / "logs")
    assert all(len(row) <= 100 and row.isprintable() and row.isascii() for row in text.splitlines())
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    return json.loads(b200opt("report", tmp_path / "logs", "--json"))


def test_cut_anywhere(tmp_path, b200opt):
    """A log cut at any byte is right about what it contains: sums never exceed those of the whole."""
    write(Job(ranks=2, steps=6, interrupted=()), tmp_path / "logs")
    whole = read_all(tmp_path, b200opt)["report"]["communication"]
    path = paths(tmp_path / "logs")[1]
    data = open(path, "rb").read()
    rng = random.Random(1)
    for _ in range(40):
        with open(path, "wb") as out:
            out.write(data[:rng.randrange(len(data))])
        report = read_all(tmp_path, b200opt)
        assert not any("not a JSON object" in note for note in report["notes"])
        part = report["report"]["communication"]
        assert part["steady"]["steps"] <= whole["steady"]["steps"]
        for row in part["kinds"]:
            full, = [one for one in whole["kinds"] if one["op"] == row["op"]]
            assert row["calls"] <= full["calls"]


def test_bytes_of_any_kind(tmp_path, b200opt):
    write(Job(ranks=3, steps=8, interrupted=()), tmp_path / "logs")
    path = paths(tmp_path / "logs")[0]
    data = open(path, "rb").read()
    for seed in range(40):
        rng, wild = random.Random(seed), bytearray(data)
        for _ in range(rng.choice((1, 30, 1000))):
            wild[rng.randrange(5, len(wild))] = rng.randrange(256)
        with open(path, "wb") as out:
            out.write(wild)
        read_all(tmp_path, b200opt)


def test_numbers_of_any_size(tmp_path, b200opt):
    """Impossible times are left out and counted; no sum overflows (the sanitizers' build sees to it)."""
    write(Job(ranks=3, steps=8, interrupted=()), tmp_path / "logs")
    originals = {path: open(path).read().splitlines() for path in paths(tmp_path / "logs")}
    for seed in range(40):
        rng = random.Random(seed)
        for path, lines in originals.items():
            with open(path, "w") as out:
                for text in lines:
                    fields = json.loads(text)
                    for name in [name for name, value in fields.items() if isinstance(value, (int, float))]:
                        if rng.random() < 0.02 and fields["t"] != "header":
                            fields[name] = rng.choice(HUGE)
                    out.write(json.dumps(fields, separators=(",", ":")) + "\n")
        read_all(tmp_path, b200opt)


@pytest.mark.parametrize("fields,left_out", [
    ({"dur_ns": -1}, True), ({"blocked_ns": 10**12}, True), ({"queued_ns": -5}, True), ({"t_ns": 2**62}, True),
    ({"dur_ns": 0, "blocked_ns": 0}, False),
])
def test_impossible_operations_are_counted(tmp_path, b200opt, fields, left_out):
    write(Job(ranks=2, steps=8, interrupted=()), tmp_path / "logs")
    path = paths(tmp_path / "logs")[0]
    lines = open(path).read().splitlines()
    index = next(i for i, text in enumerate(lines) if text.startswith('{"t":"op"'))
    lines[index] = json.dumps({**json.loads(lines[index]), **fields}, separators=(",", ":"))
    open(path, "w").write("\n".join(lines) + "\n")
    assert read_all(tmp_path, b200opt)["report"]["communication"]["invalid_times"] == left_out


def test_names_are_not_obeyed(tmp_path, b200opt):
    """Texts with quotes, controls and other letters neither break the JSON nor reach the terminal."""
    write(Job(ranks=2, steps=8, interrupted=()), tmp_path / "logs")
    for path in paths(tmp_path / "logs"):
        text = open(path).read()
        text = text.replace('"AllReduce"', r'"\u001b[31m\"All\\Red\u00fcce"').replace('"c0-1"', r'"\"}{\n"')
        text = text.replace('"in_graph"', r'"\u0007why"').replace('"host"', r'"\ud83d\ude00"').replace('"mode":"on"', r'"mode":"\n\n"')
        open(path, "w").write(text)
    report = read_all(tmp_path, b200opt)["report"]["communication"]
    assert report["together"]["operations"] > 0
    names = {event["name"] for event in grammar.check(tmp_path / "trace.json")}
    assert '\x1b[31m"All\\Redüce' in names


def test_the_same_rank_twice(tmp_path, b200opt):
    """A restarted rank: two logs, two processes in the timeline."""
    write(Job(ranks=2, steps=8, interrupted=()), tmp_path / "logs")
    first = paths(tmp_path / "logs")[0]
    open(first.replace("-1000", "-2000"), "w").write(open(first).read().replace('"pid":1000', '"pid":2000'))
    read_all(tmp_path, b200opt)
    pids = {event["pid"] for event in grammar.check(tmp_path / "trace.json")}
    assert len(pids) == 3
