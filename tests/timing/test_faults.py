# SPDX-License-Identifier: Apache-2.0
"""Calls of the timing that fail cost the job nothing, and the log no truth; timing that costs too much ends by itself."""
import collections

import pytest

import robust
from robust import modes, of_type, pair, total, untimed

STEPS, COLLECTIVES = 4, 3
TOLD = {"B200OPT_STEP_PERIOD": 1, "B200OPT_TIMING_EVERY": 1, "B200OPT_OVERHEAD_MAX_PCT": 0}  # of one rank: a GEMM each
REFUSED = 999  # CUDA_ERROR_UNKNOWN
TOLERANCE_NS = 1000

# What a call that always fails leaves of the timing: why collectives are untimed, the last mode, whether it is said.
EVERY_CALL = {
    "cuCtxGetCurrent": ({"early"}, ("on", "default"), 0),
    "cuEventCreate": ({"vendor"}, ("off", "vendor"), 1),
    "cuEventRecord": ({"vendor"}, ("off", "vendor"), 1),
    "cuEventElapsedTime": ({"vendor"}, ("off", "vendor"), 1),
    "cuStreamGetFlags": (set(), ("on", "default"), 0),
    "cuStreamCreateWithPriority": (set(), ("on", "default"), 0),
    "cuCtxGetStreamPriorityRange": (set(), ("on", "default"), 0),
    "cuThreadExchangeStreamCaptureMode": ({"unfinished"}, ("on", "default"), 0),
}
# Those of the first step: the GEMM's, the collectives', the wait's.
FEW = {"cuEventRecord": range(1, 15)}


def accounted(log):
    return total(log, "coll_time", "calls") + sum(untimed(log).values())


def ops(log):
    return {(o["comm"], o["seq"]): o for o in of_type(log, "op")}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run without a fault: its log, and how often it makes each call."""
    folder = tmp_path_factory.mktemp("healthy")
    done = pair(folder, "capture_global", STEPS, COLLECTIVES, B200OPT_VNODE_TRACE=folder / "observed" / "t-", **TOLD)
    (lines,) = robust.traces(done.place).values()
    (log,) = robust.logs(done.place).values()
    assert len(of_type(log, "op")) > STEPS * COLLECTIVES
    return log, collections.Counter(name for _, name, _ in lines)


def check_fault(folder, healthy_log, fault, scenario="capture_global"):
    done = pair(folder, scenario, STEPS, COLLECTIVES, B200OPT_VNODE_FAULT=fault, **TOLD)
    (log,) = robust.logs(done.place).values()
    assert accounted(log) == total(log, "coll", "calls") and log[-1]["t"] == "end", fault
    assert total(log, "coll", "calls") == total(healthy_log, "coll", "calls")
    right = [(o["seq"], o["dur_ns"], o["blocked_ns"]) for o in of_type(healthy_log, "op")]
    # a record or a wait that finds no context leaves a dependency unknown: what blocked is at least what is said
    most = {"cuCtxGetCurrent": 1 << 60}.get(fault.split(":")[0], TOLERANCE_NS)
    for op in of_type(log, "op"):
        assert any(seq == op["seq"] and abs(dur - op["dur_ns"]) <= TOLERANCE_NS and -TOLERANCE_NS <= blocked - op["blocked_ns"] <= most
                   for seq, dur, blocked in right), (fault, op)
    return done, log


@pytest.mark.parametrize("function", EVERY_CALL)
def test_a_call_that_fails(tmp_path, healthy, function):
    log, calls = healthy
    assert calls[function] > 0
    numbers = range(1, calls[function] + 1) if robust.LONG else sorted({*FEW.get(function, (1, 2)), calls[function] // 2, calls[function]} - {0})
    for number in numbers:
        folder = tmp_path / str(number)
        folder.mkdir()
        done, found = check_fault(folder, log, f"{function}:{number}:{REFUSED}")
        assert not done.said and set(modes(found)) == {("on", "default")}
        # without a context, or relaxed capture mode, the last wait of the host reads nothing back
        unread = {"unfinished"} if function in ("cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode") else set()
        assert set(untimed(found)) <= {"in_graph", "vendor", "early"} | unread
        assert sum(untimed(found).values()) <= 1 + COLLECTIVES, "one failure does not cost more than a wait depends on"


@pytest.mark.parametrize("function", EVERY_CALL)
def test_a_call_that_always_fails(tmp_path, function):
    why, mode, messages = EVERY_CALL[function]
    done = pair(tmp_path, "plain", 60, COLLECTIVES, B200OPT_VNODE_FAULT=f"{function}:*:{REFUSED}", **TOLD)
    (log,) = robust.logs(done.place).values()
    assert modes(log)[-1] == mode and len(done.said) == messages
    assert set(untimed(log)) == why and accounted(log) == total(log, "coll", "calls") == 60 * COLLECTIVES


@pytest.mark.parametrize("fault", ["ncclAllReduce:5:1", "ncclAllReduce:2+:3", "ncclAllReduce:*:1"])
def test_a_collective_that_fails(tmp_path, fault):
    """Its status passes through, and it is no collective in the log."""
    bare = robust.run(tmp_path, "plain", STEPS, COLLECTIVES, arm="bare", B200OPT_VNODE_FAULT=fault)
    done = robust.run(tmp_path, "plain", STEPS, COLLECTIVES, B200OPT_VNODE_FAULT=fault, **TOLD)
    robust.same(bare, done)
    assert "gives" in bare.printed
    (log,) = robust.logs(done.place).values()
    assert total(log, "coll", "calls") == accounted(log) == len(of_type(log, "op")) == done.told[0]["calls"]


@pytest.mark.parametrize("fault", ["ncclGroupEnd:2:1", "ncclGroupEnd:*:3", "ncclGroupStart:2:1"])
def test_a_group_that_fails(tmp_path, fault):
    bare = robust.run(tmp_path, "groups", STEPS, COLLECTIVES, arm="bare", B200OPT_VNODE_FAULT=fault)
    done = robust.run(tmp_path, "groups", STEPS, COLLECTIVES, B200OPT_VNODE_FAULT=fault, **TOLD)
    robust.same(bare, done)
    (log,) = robust.logs(done.place).values()
    assert "gives" in bare.printed and log[-1]["t"] == "end"
    assert accounted(log) <= total(log, "coll", "calls")


# ------------------------------------------------------------------------------------------------ what it costs


def test_timing_that_costs_too_much_goes_to_sampled(tmp_path):
    """Each event of the library takes 5 ms, 8 or so in a timed step; a step by itself has 5 ms."""
    done = pair(tmp_path, "slow_host", 70, COLLECTIVES, B200OPT_STEP_PERIOD=1, B200OPT_VNODE_FAULT="cuEventRecord:*:slow=5ms")
    for log in robust.logs(done.place).values():
        (overhead,) = of_type(log, "overhead")
        assert overhead["on_ns"] > 2 * COLLECTIVES * 5_000_000, "no less than the events took"
        assert overhead["pct"] == pytest.approx(100 * (overhead["on_ns"] - overhead["off_ns"]) / overhead["off_ns"], abs=1e-3)
        assert overhead["pct"] - overhead["noise_pct"] > 1
        assert modes(log)[-1] == ("sampled", "overhead")
        after = [s["step"] for s in of_type(log, "time") if s["step"] > 50]
        assert len(after) <= 3, "one in 16"
        assert accounted(log) == total(log, "coll", "calls")
    assert len(done.said) == 1 and "B200OPT_OVERHEAD_MAX_PCT" in done.said[0]


def test_timing_that_costs_little_stays_on(tmp_path):
    done = pair(tmp_path, "slow_host", 70, COLLECTIVES, B200OPT_STEP_PERIOD=1, B200OPT_OVERHEAD_MAX_PCT=100)
    for log in robust.logs(done.place).values():
        assert len(of_type(log, "overhead")) == 1 and set(modes(log)) == {("on", "default")}


def test_no_window_when_it_is_not_asked_for(tmp_path):
    done = pair(tmp_path, "slow_host", 70, COLLECTIVES, B200OPT_STEP_PERIOD=1, B200OPT_OVERHEAD_MAX_PCT=0,
                B200OPT_VNODE_FAULT="cuEventRecord:*:slow=5ms")
    for log in robust.logs(done.place).values():
        assert not of_type(log, "overhead") and set(modes(log)) == {("on", "default")} and not untimed(log)
