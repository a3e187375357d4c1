# SPDX-License-Identifier: Apache-2.0
"""What the library writes of the collectives of scripted programs equals, to the microsecond, what their own events say."""
import json
import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["B200_BUILD"])
PROGRAM = BUILD / "tests" / "timing" / "timing_program"
STEPS = 4
TOLERANCE_NS = 1000
SCENARIOS = (
    "hidden blocked nested_group on_compute two_waits recorded_again recorded_again_late waited_first transitive bcast "
    "two_threads pointer_reuse split graph legacy per_thread"
).split()
# What must be seen in the truth itself, so that a program that shows nothing does not pass: some blocked time, or none at all.
NOT_BLOCKED = {"hidden", "recorded_again", "waited_first"}
ORDERS = ("eager", "deferred")


def fnv(data):
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"{value:016x}"


def run(folder, scenario, order, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env.update(LD_PRELOAD=str(BUILD / "libb200opt.so"), B200OPT_LOG_DIR=str(folder / "logs"), B200OPT_VNODE_ORDER=order)
    env.update(B200OPT_VNODE_SESSION=f"timing-{os.getpid()}-{folder.name}", **more)
    done = subprocess.run([PROGRAM, scenario, str(STEPS)], env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    truths = [[json.loads(line) for line in (folder / f"truth.{rank}").read_text().splitlines()] for rank in range(2)]
    logs = {}
    for path in (folder / "logs").rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        logs[lines[0]["rank"]] = lines
    assert sorted(logs) == [0, 1]
    return truths, [logs[0], logs[1]]


def of_type(log, kind):
    return [line for line in log if line["t"] == kind]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scripted(tmp_path, scenario, order):
    truths, logs = run(tmp_path, scenario, order)
    split_ids = [{c["id"] for c in of_type(log, "comm") if c["parent"]} for log in logs]
    for truth, log in zip(truths, logs):
        ops = {(o["comm"], o["seq"]): o for o in of_type(log, "op")}
        known = [t for t in truth if "comm" in t]
        assert known and len(ops) == len(known), (sorted(ops), known)
        for t in known:
            comm = next(iter(split_ids[0])) if t["comm"] == "split" else fnv(bytes.fromhex(t["comm"]))
            op = ops[comm, t["seq"]]
            assert abs(op["dur_ns"] - t["dur"]) <= TOLERANCE_NS, (op, t)
            assert abs(op["blocked_ns"] - t["blocked"]) <= TOLERANCE_NS, (op, t)
            assert 0 <= op["blocked_ns"] <= op["dur_ns"]
        total = sum(t["blocked"] for t in known)
        assert (total == 0) == (scenario in NOT_BLOCKED), total
    if scenario == "nested_group":
        assert {o["group"] for log in logs for o in of_type(log, "op")} == {2}
    if scenario == "bcast":
        assert {o["op"] for log in logs for o in of_type(log, "op")} == {"Broadcast"}
        assert all(sum(c["calls"] for c in of_type(log, "coll")) == STEPS for log in logs)
    if scenario == "split":
        assert split_ids[0] == split_ids[1] and len(split_ids[0]) == 1
    if scenario == "pointer_reuse":
        assert all(len(of_type(log, "comm")) == STEPS for log in logs)
    if scenario == "graph":
        for truth, log in zip(truths, logs):
            assert [(u["why"], u["calls"]) for u in of_type(log, "untimed")] == [("in_graph", 1)]
            graphs = [t["graph"] for t in truth if "graph" in t]
            assert sum(g["launches"] for g in of_type(log, "graph")) == sum(g["timed"] for g in of_type(log, "graph")) == STEPS
            assert abs(sum(g["dur_ns"] for g in of_type(log, "graph")) - sum(graphs)) <= STEPS * TOLERANCE_NS
