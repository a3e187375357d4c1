# SPDX-License-Identifier: Apache-2.0
"""Whatever befalls a job that is timed: it does what it does without the library, and the timing goes on or ends in order."""
import os
import re
import subprocess

import pytest

import robust
from robust import modes, of_type, pair, total, untimed

STEPS, COLLECTIVES = 12, 4
TOLD = {"B200OPT_STEP_PERIOD": COLLECTIVES, "B200OPT_OVERHEAD_MAX_PCT": 0}


def trace_of(place):
    (lines,) = robust.traces(place).values()
    return lines


def events_of_library(lines):
    return [line for line in lines if line[1].startswith("cuEvent")]


# ------------------------------------------------------------------------------------------------ no place for a log


def can_mount(folder, *options):
    return os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], check=False).returncode == 0


@pytest.fixture
def mounted(tmp_path):
    """Where the logs of an observed run go, as a file system of its own."""
    folder = tmp_path / "observed" / "logs"
    folder.mkdir(parents=True)
    yield lambda *options: can_mount(folder, *options) or pytest.skip("needs to mount a small file system")
    subprocess.run(["umount", str(folder)], check=False, stderr=subprocess.DEVNULL)


def complaints(done, about):
    return [text for text in done.said if about in text]


def test_disk_full(tmp_path, mounted):
    mounted("size=32k")
    done = pair(tmp_path, "plain", 600, COLLECTIVES, B200OPT_TIMING_EVERY=1, B200OPT_PROMETHEUS_FILE=tmp_path / "observed" / "logs" / "m.prom")
    assert len(complaints(done, "the log cannot be written any more, errno 28")) == 1
    assert len(complaints(done, "metrics")) <= 1 and len(done.said) <= 2
    (log,) = (done.place / "logs").rglob("*.jsonl")
    assert '"t":"end"' not in log.read_text()
    assert "partial" in robust.report(done.place)


def test_read_only(tmp_path, mounted):
    mounted("ro")
    done = pair(tmp_path, "plain", 100, COLLECTIVES, B200OPT_PROMETHEUS_FILE=tmp_path / "observed" / "logs" / "m.prom")
    assert len(complaints(done, "no log:")) == 1 and len(complaints(done, "metrics")) <= 1 and len(done.said) <= 2


def test_descriptors_closed_in_mid_run(tmp_path):
    done = pair(tmp_path, "closed", 200, COLLECTIVES, B200OPT_TIMING_EVERY=1)
    assert done.said == ["the log cannot be written any more, errno 9; the job is not affected"]


def test_folder_removed_in_mid_run(tmp_path):
    done = pair(tmp_path, "removed", 200, COLLECTIVES, B200OPT_TIMING_EVERY=1, B200OPT_PROMETHEUS_FILE=tmp_path / "observed" / "logs" / "m.prom")
    assert len(complaints(done, "the log cannot be written any more, errno 2;")) == 1
    assert len(complaints(done, "metrics")) <= 1 and len(done.said) <= 2
    assert not list(done.place.rglob("*.jsonl"))


# ------------------------------------------------------------------------------------------------ which steps are timed


def by_step(lines, per_step):
    """Events of the library on the stream of the collectives, per step of the program: {step: events}. An event after the last
    collective of a step belongs to it."""
    (stream,) = {re.search(r"s=(\d+)", arguments)[1] for _, name, arguments in lines if name == "ncclAllReduce"}
    found, collectives, step = {}, 0, 0
    for _, name, arguments in lines:
        if name == "cuEventRecord" and arguments == f"s={stream}":
            found[step] = found.get(step, 0) + 1
        if name == "ncclAllReduce":
            collectives += 1
        if name == "cublasSgemm_v2":  # the first call of a step
            step = collectives // per_step
    return found


ON, SAMPLED, OFF = "on", "sampled", "off"
WAYS = {
    "default": ({}, (ON, "default")),
    "told on": ({"B200OPT_TIMING": "on"}, (ON, "told")),
    "sampled": ({"B200OPT_TIMING": "sampled"}, (SAMPLED, "told")),
    "off": ({"B200OPT_TIMING": "off"}, (OFF, "told")),
    "one connection": ({"CUDA_DEVICE_MAX_CONNECTIONS": 1}, (SAMPLED, "max_connections")),
    "one connection, eight": ({"CUDA_DEVICE_MAX_CONNECTIONS": 8}, (ON, "default")),
    "one connection, told on": ({"CUDA_DEVICE_MAX_CONNECTIONS": 1, "B200OPT_TIMING": "on"}, (ON, "told")),
    "one connection, off": ({"CUDA_DEVICE_MAX_CONNECTIONS": 1, "B200OPT_TIMING": "off"}, (OFF, "told")),
}


@pytest.mark.parametrize("period", ["told", "found"])
@pytest.mark.parametrize("way", WAYS)
def test_events_on_the_stream_of_collectives(tmp_path, way, period):
    """Where one connection serves all streams, an event of ours there ends the overlap: there is none outside sampled steps."""
    more, mode = WAYS[way]
    every, steps = 8, 60
    told = TOLD if period == "told" else {"B200OPT_OVERHEAD_MAX_PCT": 0}
    done = pair(tmp_path, "plain", steps, COLLECTIVES, 2, B200OPT_TIMING_EVERY=every, B200OPT_VNODE_TRACE=tmp_path / "observed" / "t-", **told, **more)
    found, all_traces = robust.logs(done.place), robust.traces(done.place)
    assert set(found) == {0, 1}
    for rank, log in found.items():
        (lines,) = [lines for name, lines in all_traces.items() if name.startswith(f"t-r{rank}-")]
        events = by_step(lines, COLLECTIVES)
        assert set(modes(log)) == {mode}
        timed = total(log, "coll_time", "calls")
        assert timed + sum(untimed(log).values()) == (steps * COLLECTIVES if mode[0] != OFF else 0)
        if mode[0] == ON:
            assert events == {s: 2 * COLLECTIVES for s in range(steps)} and timed == steps * COLLECTIVES
        elif mode[0] == OFF:
            assert not events_of_library(lines) and not any(name == "cuThreadExchangeStreamCaptureMode" for _, name, _ in lines)
            assert not of_type(log, "op") and not of_type(log, "time")
        else:
            sampled = sorted(events)
            assert set(events.values()) == {2 * COLLECTIVES} and all(b - a == every for a, b in zip(sampled, sampled[1:]))
            assert steps // every - (period == "found") <= len(sampled) <= steps // every + 1
            assert untimed(log) == {"sampled": COLLECTIVES * (steps - len(sampled))}
            if period == "told":  # of the last step the end is not known
                assert {t["step"] for t in of_type(log, "time")} == set(sampled) - {steps - 1}
        one = "CUDA_DEVICE_MAX_CONNECTIONS" in more and more["CUDA_DEVICE_MAX_CONNECTIONS"] == 1
        assert any(name == "cuStreamCreateWithPriority" for _, name, _ in lines) == (mode[0] != OFF and not one)


# ------------------------------------------------------------------------------------------------ captures

IN_CAPTURE = {"cuCtxGetCurrent", "cuStreamIsCapturing"}  # may be asked in any capture; change nothing


def captures(lines):
    """Calls between the begin and the end of each capture."""
    out, inside = [], None
    for line in lines:
        if line[1] == "cudaStreamBeginCapture":
            inside = []
        elif line[1] == "cudaStreamEndCapture":
            out.append(inside)
            inside = None
        elif inside is not None:
            inside.append(line)
    return out


@pytest.mark.parametrize("order", ["eager", "deferred"])
@pytest.mark.parametrize("scenario", ["capture_global", "capture_relaxed", "capture_beside", "capture_failed"])
def test_capture(tmp_path, scenario, order):
    done = pair(tmp_path, scenario, STEPS, COLLECTIVES, B200OPT_VNODE_TRACE=tmp_path / "observed" / "t-", B200OPT_VNODE_ORDER=order,
                B200OPT_OVERHEAD_MAX_PCT=0)
    (log,) = robust.logs(done.place).values()
    lines = trace_of(done.place)
    found = captures(lines)
    assert len(found) == 1
    for inside in found:
        ours = {name for _, name, _ in inside if re.match(r"cu[A-Z]", name)}
        if scenario == "capture_beside":  # the thread beside goes on, but nothing is asked of the device
            assert not ours & {"cuEventQuery", "cuEventElapsedTime", "cuMemAlloc_v2", "cuMemGetInfo_v2", "cuStreamSynchronize"}, ours
            assert any(name == "ncclAllReduce" for _, name, _ in inside)
        else:
            assert ours <= IN_CAPTURE, ours
    told = done.told[0]
    in_graph = {"capture_beside": 0}.get(scenario, 1)
    assert untimed(log) == ({"in_graph": in_graph} if in_graph else {})
    assert total(log, "coll_time", "calls") == told["calls"] and log[-1]["t"] == "end"
    if scenario != "capture_failed":
        launches = 1 if scenario == "capture_beside" else 3
        assert total(log, "graph", "launches") == total(log, "graph", "timed") == launches


# ------------------------------------------------------------------------------------------------ forks


def test_forks(tmp_path):
    """Children of a process that uses CUDA: they write no line, and the library calls nothing in them."""
    done = pair(tmp_path, "forks", STEPS, COLLECTIVES, B200OPT_VNODE_TRACE=tmp_path / "observed" / "t-", **TOLD)
    assert re.findall(r"child \d: (\d+)", done.printed) == ["7", "5", "7", "5"]
    found = list((done.place / "logs").rglob("*.jsonl"))
    assert len(found) == 1, "the parent's"
    (log,) = robust.logs(done.place).values()
    assert total(log, "coll_time", "calls") == done.told[0]["calls"] == (2 * STEPS + 4) * COLLECTIVES and log[-1]["t"] == "end"
    pid = log[0]["pid"]
    children = {name: lines for name, lines in robust.traces(done.place).items() if f"-{pid}." not in name}
    assert len(children) == 2, "only those that use CUDA have a trace"
    for lines in children.values():
        assert all(name.startswith("cuda") for _, name, _ in lines) and len(lines) == 6


def test_fork_storm(tmp_path):
    done = pair(tmp_path, "fork_storm", 300, COLLECTIVES, timeout=200)
    assert "40 good children" in done.printed
    (log,) = robust.logs(done.place).values()
    assert total(log, "coll_time", "calls") + sum(untimed(log).values()) == total(log, "coll", "calls") == 601 * COLLECTIVES


def test_processes_that_never_use_cuda_write_nothing(tmp_path):
    done = robust.run(tmp_path, "plain", 2, COLLECTIVES, 2)
    found = robust.logs(done.place)
    assert set(found) == {0, 1} and len(list((done.place / "logs").rglob("*.jsonl"))) == 2, "the parent of the ranks has no log"


# ------------------------------------------------------------------------------------------------ ends

CLOSED_IN_ORDER = {"end_exit": True, "end_return": True, "end_main_thread": True, "end_now": False, "end_abort": False, "end_term": False}


# in deferred order the node has a thread of its own, which a process without a main thread waits for in vain, also bare
@pytest.mark.parametrize("scenario, order", [(s, o) for s in CLOSED_IN_ORDER for o in ("eager", "deferred") if (s, o) != ("end_main_thread", "deferred")])
def test_ends(tmp_path, scenario, order):
    """The job ends with work pending. Its exit is as bare; the library calls nothing of CUDA any more."""
    done = pair(tmp_path, scenario, STEPS, COLLECTIVES, B200OPT_VNODE_TRACE=tmp_path / "observed" / "t-", B200OPT_VNODE_ORDER=order, **TOLD)
    lines = trace_of(done.place)
    at = lines.index((lines[-1][0], "####", "ends"))
    assert not [line for line in lines[at + 1:] if re.match(r"cu[A-Z]|nccl", line[1])]
    (log,) = robust.logs(done.place).values()
    assert (log[-1]["t"] == "end") == CLOSED_IN_ORDER[scenario]
    if CLOSED_IN_ORDER[scenario]:
        assert total(log, "coll", "calls") == (STEPS + 1) * COLLECTIVES
        assert total(log, "coll_time", "calls") + sum(untimed(log).values()) == (STEPS + 1) * COLLECTIVES


@pytest.mark.parametrize("attempt", range(30 if robust.LONG else 4))
def test_exit_in_a_handler_at_any_moment(tmp_path, attempt):
    done = robust.run(tmp_path, "end_handler", 50, COLLECTIVES, timeout=30, B200OPT_TIMING_EVERY=1 + attempt % 2)
    assert done.code == 5 and not done.said
