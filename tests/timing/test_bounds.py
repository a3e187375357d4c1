# SPDX-License-Identifier: Apache-2.0
"""The log of a long job is bounded, its sums are exact and what it has dropped is counted; a killed job leaves a readable one."""
import json
import os
import random
import re
import subprocess
import time

import pytest

import robust

MIB = 1 << 20
COLLECTIVES = 8
CALLS = 1_000_000 if robust.LONG else 20_000
KILLS = 120 if robust.LONG else 8
# One device time is read to 0.03 us (a float of milliseconds at up to a second); errors of many add up like a random walk.
TOLERANCE_NS = 60


def check_sums(log, told):
    """Collectives and their bytes are those of the program, timed or not; times of all that were timed are its own events'."""
    assert robust.total(log, "coll", "calls") == told["calls"]
    assert robust.total(log, "coll", "bytes") == told["bytes"]
    assert robust.total(log, "coll_time", "calls") + sum(robust.untimed(log).values()) == told["calls"]
    if not robust.untimed(log):
        assert robust.total(log, "coll_time", "bytes") == told["bytes"]
        # of one rank they are so short that the device waits for the host, between the program's event and the library's
        less = told["dur_ns"] - robust.total(log, "coll_time", "dur_ns")
        assert abs(less) <= TOLERANCE_NS * told["calls"] ** 0.5 or (log[0]["world"] < 2 and 0 < less < told["dur_ns"])
        assert robust.total(log, "coll_time", "blocked_ns") <= robust.total(log, "coll_time", "dur_ns")


@pytest.mark.parametrize("ranks", [1, 2])
def test_told_steps(tmp_path, ranks):
    """Every operation of every step is worth a line here, so that it is known how many there would be without the bound."""
    more = dict(B200OPT_LOG_MAX_MB=1, B200OPT_TIMING_EVERY=1, B200OPT_OVERHEAD_MAX_PCT=0)
    # one rank has no collective between ranks: its GEMMs make the steps, one each
    more["B200OPT_STEP_PERIOD"] = COLLECTIVES if ranks == 2 else 1
    steps = CALLS // COLLECTIVES
    done = robust.run(tmp_path, "plain", steps, COLLECTIVES, ranks, timeout=3000, **more)
    assert done.code == 0 and not done.said and len(done.told) == ranks
    found = robust.logs(done.place)
    for rank, log in found.items():
        told = done.told[rank]
        assert told["calls"] == steps * COLLECTIVES
        check_sums(log, told)
        assert not robust.untimed(log) and log[-1]["t"] == "end"
        written, dropped = robust.counts(log), robust.dropped(log)
        assert written["op"] + dropped["op"] == told["calls"]
        assert written["step"] + dropped["step"] == steps
        assert steps - 3 <= written["time"] + dropped["time"] <= steps
        assert dropped["op"] > told["calls"] // 2 and min(dropped["step"], dropped["time"]) > 0
        assert not dropped["coll"] and not dropped["coll_time"]
    assert all(p.stat().st_size <= MIB for p in (done.place / "logs").rglob("*.jsonl"))
    facts = json.loads(robust.report(done.place, "--json"))["report"]
    assert facts["logs"]["partial"] == 0


def test_detected_steps(tmp_path):
    """The defaults: windows without timing, sampled GEMMs, steps that have to be found."""
    done = robust.run(tmp_path, "plain", CALLS // COLLECTIVES, COLLECTIVES, 2, timeout=3000, B200OPT_LOG_MAX_MB=1)
    assert done.code == 0
    for rank, log in robust.logs(done.place).items():
        check_sums(log, done.told[rank])
        assert robust.untimed(log)["comparison"] > 0, "the window in which every second step is untimed"
        # On a machine that is slow enough the timing finds itself too dear, and samples from then on.
        assert set(robust.untimed(log)) <= {"comparison", "sampled"} and log[-1]["t"] == "end"
        assert {(s["source"], s["period"]) for s in robust.of_type(log, "step")} == {("coll", COLLECTIVES)}
    assert all(p.stat().st_size <= MIB for p in (done.place / "logs").rglob("*.jsonl"))


def test_nothing_is_dropped_without_need(tmp_path):
    done = robust.run(tmp_path, "plain", 100, COLLECTIVES, 2, B200OPT_STEP_PERIOD=COLLECTIVES, B200OPT_TIMING_EVERY=1, B200OPT_OVERHEAD_MAX_PCT=0)
    for rank, log in robust.logs(done.place).items():
        assert not robust.dropped(log) and robust.counts(log)["op"] == done.told[rank]["calls"]


# -------------------------------------------------------------------------------------------------------- kill -9


def whole_lines(path):
    """What a reader may rely on: all but an unfinished last line."""
    text = path.read_bytes()
    return [json.loads(line) for line in text[:text.rfind(b"\n") + 1].splitlines()]


def check_killed(place, issued):
    files = sorted((place / "logs").rglob("*.jsonl")) if (place / "logs").exists() else []
    for path in files:
        log = whole_lines(path)
        if not log:
            continue
        assert log[0]["t"] == "header" and log[-1]["t"] != "end"
        rank = log[0]["rank"]
        assert robust.total(log, "coll", "calls") <= issued[rank] + 1
        assert robust.total(log, "coll_time", "calls") <= issued[rank] + 1
        keys = [(o["comm"], o["seq"]) for o in robust.of_type(log, "op")]
        assert len(keys) == len(set(keys)) and all(seq <= issued[rank] for _, seq in keys)
        steps = [s["step"] for s in robust.of_type(log, "step")]
        assert steps == list(range(len(steps))), "no step is missing in the middle"
    for path in place.glob("metrics*.prom"):
        text = path.read_text()
        assert text.endswith("\n") and all(re.fullmatch(r"#.*|\w+(\{.*\})? \S+", line) for line in text.splitlines()), text
    if not files or not any(whole_lines(p) for p in files):
        return False
    facts = json.loads(robust.report(place, "--json"))["report"]
    assert facts["logs"]["partial"] == facts["logs"]["library"] == sum(bool(whole_lines(p)) for p in files)
    by_lines = sum(robust.total(whole_lines(p), "coll", "calls") for p in files)
    assert sum(c["calls"] for c in facts["collectives"]) == by_lines
    assert "partial" in robust.report(place)
    return by_lines > 0


def test_kill(tmp_path):
    chance = random.Random(6)
    with_sums = 0
    for number in range(KILLS):
        place = tmp_path / str(number)
        place.mkdir()
        env = robust.environment(place, "observed", B200OPT_METRICS="stdout", B200OPT_METRICS_EVERY=1, B200OPT_STEP_PERIOD=COLLECTIVES,
                                 B200OPT_PROMETHEUS_FILE=place / "metrics.prom", B200OPT_TIMING_EVERY=chance.choice([1, 16]))
        process = subprocess.Popen([robust.PROGRAM, "plain", "1000000", str(COLLECTIVES), "2"], env=env, cwd=place, start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # sums are written after each of the first seconds; some die before
        time.sleep(chance.uniform(0, 0.5) if number % 2 else chance.uniform(1, 3.5))
        assert process.poll() is None, process.stderr.read()
        robust.kill_group(process)
        issued = [int.from_bytes((place / "progress").read_bytes()[at:at + 8], "little") for at in (136, 144)] if (place / "progress").exists() else [0, 0]
        with_sums += check_killed(place, issued)
    assert with_sums > KILLS // 4, "most of the killed jobs must have had something to say"
