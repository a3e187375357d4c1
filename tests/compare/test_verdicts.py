# SPDX-License-Identifier: Apache-2.0
"""What `b200opt compare` and `ab` say of made-up runs: verdict, exit status, what makes runs incomparable, which clock is which, and
what becomes of a run that fails. No PyTorch and no virtual node."""
import json
import math
import os
import pathlib
import re
import signal
import subprocess

import arms
import pytest

COMMAND = os.environ["B200_COMMAND"]
KEYS = (pathlib.Path(__file__).resolve().parents[2] / "tools/compare/KEYS.md").read_text()


def compare(baseline, candidate, *options):
    done = subprocess.run([COMMAND, "compare", baseline, candidate, "--json", "-", *options], capture_output=True, text=True, check=False)
    assert done.stderr == "", done.stderr
    data = json.loads(done.stdout)
    assert data["verdict"]["exit"] == done.returncode
    return data


def csv(path, curve):
    path.write_text("step,loss\n" + "".join(f"{step},{loss!r}\n" for step, loss in enumerate(curve)))
    return path


def names(data):
    return data["verdict"]["name"], data["verdict"]["exit"]


@pytest.mark.parametrize(
    "percent, verdict", [(0.0, ("EQUIVALENT", 0)), (2.0, ("WORSE", 1)), (-2.0, ("BETTER", 0)), (1.0, ("INCONCLUSIVE", 2))], ids=str
)
def test_verdict_and_exit_status(tmp_path, percent, verdict):
    """The gap comes in after a common start, since another start would be told of."""
    a = arms.losses(800, 1)
    b = [loss * (1 + percent / 100 * min(step / 400, 1)) for step, loss in enumerate(arms.losses(800, 2))]
    data = compare(csv(tmp_path / "a.csv", a), csv(tmp_path / "b.csv", b))
    assert names(data) == verdict, data["verdict"]
    assert data["loss"]["gap_percent"] == pytest.approx(percent, abs=0.05)
    assert data["loss"]["margin_percent"] == 1 and data["loss"]["floor_source"] == "assumed"


def test_equal_numbers_have_no_gap(tmp_path):
    curve = arms.losses(800, 1)
    data = compare(csv(tmp_path / "a.csv", curve), csv(tmp_path / "b.csv", curve))
    assert names(data) == ("EQUIVALENT", 0) and data["loss"]["identical"] and data["loss"]["pairs"][0]["gap_percent"] == 0


def test_no_number_is_told_before_what_is_not_comparable(tmp_path):
    curve = arms.losses(300, 1)
    a = arms.write(tmp_path / "a", curve)
    b = arms.write(tmp_path / "b", [*curve[:150], *[math.nan] * 150], world=4)
    data = compare(a, b)
    assert names(data) == ("DIVERGED", 4)
    assert any("world size differs: 2 against 4" in line for line in data["verdict"]["also"])


@pytest.mark.parametrize("change, check", [({"world": 4}, "world size"), ({"batch": 2}, "global batch")], ids=lambda value: str(value))
def test_other_jobs_are_not_compared(tmp_path, change, check):
    a, b = arms.write(tmp_path / "a", arms.losses(300, 1)), arms.write(tmp_path / "b", arms.losses(300, 2), **change)
    data = compare(a, b)
    assert names(data) == ("INVALID", 3) and data["verdict"]["says"].startswith(f"{check} differs: ")
    assert {row["name"]: row["state"] for row in data["checks"]}[check] == "differs"


def test_another_order_of_the_data_is_not_compared(tmp_path):
    data = compare(csv(tmp_path / "a.csv", arms.losses(800, 1)), csv(tmp_path / "b.csv", arms.losses(800, 1, data=1)))
    assert names(data) == ("INVALID", 3) and "data" in data["verdict"]["says"]


def test_measured_floor(tmp_path):
    a = csv(tmp_path / "a.csv", arms.losses(1200, 1))
    b = csv(tmp_path / "b.csv", arms.losses(1200, 2))
    for run in (1, 2, 3):
        (tmp_path / "aa" / f"run-{run}").mkdir(parents=True)
        csv(tmp_path / "aa" / f"run-{run}" / "loss.csv", [loss * (1 + 0.001 * run) for loss in arms.losses(1200, run)])
    data = compare(a, b, "--aa", tmp_path / "aa")
    # Gaps of 0.1 and 0.2 % to the first: their rms. From 1,000 steps on the margin is then 0.25 %.
    assert data["loss"]["floor_source"] == "measured" and data["loss"]["aa_pairs"] == 2
    assert data["loss"]["pairs"][0]["floor_percent"] == pytest.approx(math.hypot(0.1, 0.2) / math.sqrt(2), rel=0.05)
    assert data["loss"]["margin_percent"] == 0.25
    told = compare(a, b, "--floor", "0.02", "--margin", "0.5")
    assert told["loss"]["floor_source"] == "given" and told["loss"]["margin_percent"] == 0.5


def test_single_runs_are_paired_with_the_baseline(tmp_path):
    a, b = (csv(tmp_path / f"{name}.csv", arms.losses(1200, seed)) for seed, name in ((1, "a"), (2, "b")))
    again = [csv(tmp_path / f"aa{seed}.csv", [loss * (1 + 0.0005 * (seed - 2)) for loss in arms.losses(1200, seed)]) for seed in (3, 4)]
    data = compare(a, b, "--aa", again[0], "--aa", again[1])
    assert data["loss"]["floor_source"] == "measured" and data["loss"]["aa_pairs"] == 2 and data["loss"]["aa_says"] == []
    assert data["loss"]["pairs"][0]["floor_percent"] == pytest.approx(math.hypot(0.05, 0.1) / math.sqrt(2), rel=0.1)
    one = compare(a, b, "--aa", again[0])
    assert one["loss"]["floor_source"] == "assumed" and any("--aa makes 1 pair of equal runs" in line for line in one["verdict"]["also"])


def test_aa_runs_that_are_not_equal_are_told(tmp_path):
    a, b = (csv(tmp_path / f"{name}.csv", arms.losses(1200, seed)) for seed, name in ((1, "a"), (2, "b")))
    other = csv(tmp_path / "other.csv", arms.losses(1200, 3, data=7))
    far = csv(tmp_path / "far.csv", arms.losses(1200, 4, worse_percent=3))
    again = csv(tmp_path / "again.csv", arms.losses(1200, 5))
    data = compare(a, b, "--aa", other, "--aa", again, "--aa", far)
    says = "\n".join(data["verdict"]["also"])
    assert data["loss"]["aa_pairs"] == 2 and re.search(r"other.csv: .* are left out: the runs saw other data", says)
    assert re.search(r"far.csv: .* are far apart for equal runs, \+3\.0", says) and "again.csv" not in says


def test_a_baseline_without_a_number_is_invalid(tmp_path):
    curve = arms.losses(400, 1)
    curve[200] = math.nan
    bad = csv(tmp_path / "nan.csv", curve)
    assert names(compare(bad, bad)) == ("INVALID", 3)


def test_a_loss_that_is_not_above_zero_has_that_reason(tmp_path):
    data = compare(csv(tmp_path / "a.csv", [-loss for loss in arms.losses(400, 1)]), csv(tmp_path / "b.csv", arms.losses(400, 2)))
    assert names(data) == ("INVALID", 3) and "is not above 0" in data["verdict"]["says"] and not data["loss"]["identical"]


def test_another_start_is_neither_equivalent_nor_better(tmp_path):
    """The same curve five steps on, without noise: lower at every step, and no better."""
    a, b = ([10 * math.exp(-(step + ahead) / 300) + 1 for step in range(1000)] for ahead in (0, 5))
    assert names(compare(csv(tmp_path / "a.csv", a), csv(tmp_path / "b.csv", b), "--margin", "0.1"))[0] == "INCONCLUSIVE"
    assert names(compare(csv(tmp_path / "b.csv", b), csv(tmp_path / "a.csv", a), "--margin", "0.1")) == ("WORSE", 1)


def test_what_was_not_compared_is_told(tmp_path):
    whole, early = arms.losses(1000, 1), arms.losses(1000, 2)[:950]
    data = compare(csv(tmp_path / "a.csv", whole), csv(tmp_path / "b.csv", early))
    assert any("950 of 1000 losses are in both runs" in line for line in data["verdict"]["also"])
    for number in (1, 2):
        (tmp_path / "two" / f"run-{number}").mkdir(parents=True)
        csv(tmp_path / "two" / f"run-{number}" / "loss.csv", arms.losses(1000, number))
    data = compare(tmp_path / "two", csv(tmp_path / "c.csv", arms.losses(1000, 3)))
    assert any(line.startswith("baseline: 1 of 2 runs have no partner") for line in data["verdict"]["also"]), data["verdict"]


def test_steps_that_are_counted_are_put_right(tmp_path):
    """The library counts from 0 what has no step; printed output without steps is counted from 1."""
    logs = arms.write(tmp_path / "a", arms.losses(300, 1))
    printed = tmp_path / "b.txt"
    printed.write_text("".join(f"loss {loss:.6f}\n" for loss in arms.losses(300, 2)))
    for sides, shift in (((logs, printed), -1), ((printed, logs), 1)):
        data = compare(*sides)
        assert names(data) == ("EQUIVALENT", 0) and data["loss"]["pairs"][0]["shift"] == shift, data["verdict"]
        assert any("steps are counted, not printed" in line for line in data["verdict"]["also"])
    shifted = tmp_path / "c.csv"
    shifted.write_text("step,loss\n" + "".join(f"{step + 1},{loss!r}\n" for step, loss in enumerate(arms.losses(300, 2))))
    data = compare(csv(tmp_path / "d.csv", arms.losses(300, 1)), shifted)
    assert names(data) == ("INVALID", 3) and "match when 1 is taken from the candidate's" in data["verdict"]["says"]


def test_too_few_common_steps_are_counted(tmp_path):
    a, b = csv(tmp_path / "a.csv", arms.losses(40, 1)), csv(tmp_path / "b.csv", arms.losses(21, 2))
    says = compare(a, b)["verdict"]["says"]
    assert "21 of 40 losses, and 36 are needed (90 %)" in says and "candidate's end at step 20, the baseline's go on to 39" in says
    cut = arms.write(tmp_path / "cut", arms.losses(100, 2))
    for log in cut.glob("*.jsonl"):
        log.write_text("".join(log.read_text().splitlines(True)[:-1]))
    says = compare(arms.write(tmp_path / "whole", arms.losses(300, 1)), cut)["verdict"]["says"]
    assert "it was killed or runs" in says


def test_what_would_decide(tmp_path):
    """A short run is told the steps from which on there is a verdict; another start, that steps would not help."""
    data = compare(csv(tmp_path / "a.csv", arms.losses(40, 1)), csv(tmp_path / "b.csv", arms.losses(40, 2)))
    assert names(data) == ("INCONCLUSIVE", 2) and "40 are common, and a verdict takes 100" in data["verdict"]["says"]
    assert any(line.startswith("about 100 steps in all would decide; ") for line in data["verdict"]["also"])
    start = [loss * (1.01 if step < 5 else 1) for step, loss in enumerate(arms.losses(800, 2))]
    data = compare(csv(tmp_path / "c.csv", arms.losses(800, 1)), csv(tmp_path / "d.csv", start))
    lines = [data["verdict"]["says"], *data["verdict"]["also"]]
    assert names(data) == ("INCONCLUSIVE", 2) and "first five steps differ by 1 %" in lines[0]
    assert sum("start or configuration differs" in line for line in lines) == 1 and any("more steps would not decide" in line for line in lines)


def clocks(data):
    return {clock["clock"]: clock for clock in data["throughput"]["clocks"]}


def test_modelled_and_measured_times_are_apart(tmp_path):
    a = arms.write(tmp_path / "a", arms.losses(400, 1), step_ms=2.0)
    b = arms.write(tmp_path / "b", arms.losses(400, 2), step_ms=1.6)
    data = compare(a, b, "--price-per-hour", "90")
    by_clock = clocks(data)
    assert list(by_clock) == ["modelled", "host"] and data["throughput"]["modelled"]
    assert by_clock["modelled"]["ratio"] == pytest.approx(1.25, rel=0.01) and by_clock["modelled"]["verdict"] == "FASTER"
    assert by_clock["modelled"]["baseline"]["steady_s"] == pytest.approx(0.00202, rel=0.02)
    assert by_clock["host"]["baseline"]["steady_s"] == pytest.approx(0.00202 * 64, rel=0.1)
    assert "says nothing about a GPU" in by_clock["host"]["label"] and "modelled" in by_clock["modelled"]["label"]
    assert data["time_to_loss"]["clock"] == "modelled"
    # 90 an hour is 0.025 a second.
    assert by_clock["modelled"]["candidate"]["cost_per_1000_steps"] == pytest.approx(1000 * 0.0016 * 0.025, rel=0.02)
    assert by_clock["host"]["candidate"]["cost_per_1000_steps"] is None, "the emulation's time costs nothing"


def test_one_side_on_a_node_is_not_compared_in_speed(tmp_path):
    a = arms.write(tmp_path / "a", arms.losses(400, 1))
    b = arms.write(tmp_path / "b", arms.losses(400, 2), node=False)
    data = compare(a, b)
    assert data["throughput"]["mixed"] and data["throughput"]["clocks"] == [] and data["throughput"]["split"] is None
    assert data["time_to_loss"] is None and data["verdict"]["name"] == "EQUIVALENT"


def test_without_a_node_the_host_counts(tmp_path):
    a = arms.write(tmp_path / "a", arms.losses(400, 1), node=False)
    b = arms.write(tmp_path / "b", arms.losses(400, 2), step_ms=1.6, node=False)
    data = compare(a, b)
    assert list(clocks(data)) == ["host", "device"] and not data["throughput"]["modelled"]
    assert clocks(data)["host"]["label"] == "measured on the host" and data["time_to_loss"]["clock"] == "host"
    split = data["throughput"]["split"]
    assert split["clock"] == "device"
    parts = sum(split["difference"][part] for part in ("gemm_s", "blocked_s", "host_s", "other_s"))
    assert parts == pytest.approx(split["difference"]["total_s"])


def test_differences_are_listed(tmp_path):
    a = arms.write(tmp_path / "a", arms.losses(300, 1), config={"B200OPT_LOG_DIR": "/a (environment)", "B200OPT_GUARD": "on (file)"})
    b = arms.write(tmp_path / "b", arms.losses(300, 2), config={"B200OPT_LOG_DIR": "/b (environment)", "B200OPT_GUARD": "on (environment)", "B200OPT_PRECISION": "fp8 (environment)"},
                   versions={"cudart": 12080, "nccl": 23007}, plan="fp8", reason="converted")
    data = compare(a, b)
    differing = {row["name"]: (row["baseline"], row["candidate"]) for row in data["environment"] if row["differs"] and not row["of_the_run"]}
    assert differing == {"cudart": (13020, 12080), "B200OPT_PRECISION": (None, "fp8")}
    row = next(row for row in data["gemms"]["rows"] if row["role"] == "fprop")
    assert row["baseline"]["plan"] == "native" and row["candidate"]["plan"] == "fp8" and row["candidate"]["reason"] == "converted"
    assert row["candidate"]["audited_error"] == pytest.approx(0.0379) and row["candidate"]["share"] == pytest.approx(1 / 3)
    assert data["gemms"]["candidate"]["converted"] == 1 and data["gemms"]["baseline"]["converted"] == 0
    memory = {row["owner"]: row for row in data["memory"]}
    assert memory["pytorch"]["baseline"] == 155189248 + 4096 and memory["nccl"]["baseline"] == 505413632, "the rank with most, not the sum"


def keys_of(value, found):
    if isinstance(value, dict):
        found.update(value)
        for inner in value.values():
            keys_of(inner, found)
    elif isinstance(value, list):
        for inner in value:
            keys_of(inner, found)


def test_every_key_is_documented(tmp_path):
    a, b = arms.write(tmp_path / "a", arms.losses(300, 1)), arms.write(tmp_path / "b", arms.losses(300, 2), plan="fp8")
    found = set()
    keys_of(compare(a, b, "--price-per-hour", "1"), found)
    documented = set(re.findall(r"`([a-z0-9_]+)`", KEYS))
    assert found - documented == set()


# ---- ab

JOB = """
import os, sys, json
sys.path.insert(0, {here!r})
import arms
seed, worse, fate = int(sys.argv[1]), float(os.environ.get("WORSE", "0")), os.environ.get("FATE", "")
print("arm", os.environ["B200OPT_ARM"], "seed", seed)
if fate == "exit" and seed == 1:
    print("no such luck"); sys.exit(7)
if fate == "die" and seed == 1:
    os.kill(os.getpid(), 9)
for step, loss in enumerate(arms.losses(400, seed, worse, data=seed)):
    print(f"step {{step}} loss {{loss:.6f}}")
open(sys.argv[2] + "/order", "w").write(str(__import__("time").monotonic_ns()))
"""


@pytest.fixture
def ab(tmp_path):
    """`b200opt ab` over a job that only prints losses."""
    job = tmp_path / "job.py"
    job.write_text(JOB.format(here=str(pathlib.Path(__file__).parent)))

    def start(*words, runs=1, out="ab"):
        # PYTHONDONTWRITEBYTECODE: two runs would race for the same cache file
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [COMMAND, "ab", "--out", tmp_path / out, "--runs", str(runs), *words, "--", "python3", job, "{seed}", "{dir}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment), tmp_path / out

    return start


def test_ab_runs_both_arms_in_turn_and_compares(ab):
    done, out = ab("--arm", "a:", "--arm", "b:", "WORSE=3", runs=3)
    data = json.loads((out / "compare.json").read_text())
    assert done.returncode == data["verdict"]["exit"] and data["verdict"]["name"] in ("WORSE", "INCONCLUSIVE"), done
    assert [pair["baseline"] for pair in data["loss"]["pairs"]] == ["run-1", "run-2", "run-3"] and data["loss"]["recipe"]
    at = {(arm, run): int((out / arm / f"run-{run}" / "order").read_text()) for arm in "ab" for run in (1, 2, 3)}
    assert sorted(at, key=at.get) == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    for run in (1, 2, 3):
        lines = {arm: (out / arm / f"run-{run}" / "job.out").read_text() for arm in "ab"}
        assert f"arm a seed {run - 1}" in lines["a"] and f"arm b seed {run - 1}" in lines["b"]
    assert (out / "compare.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("fate, status", [("exit", "exit status 7"), ("die", f"signal 9 ({signal.strsignal(9)})")])
def test_a_failed_run_is_told_and_the_others_go_on(ab, fate, status):
    done, out = ab("--arm", "a:", "--arm", "b:", f"FATE={fate}", runs=3)
    data = json.loads((out / "compare.json").read_text())
    assert done.returncode == 3 and data["verdict"]["name"] == "INVALID"
    assert data["failed"] == [{"side": "candidate", "run": "run-2", "status": status}]
    assert f"b run-2 ended with {status}" in done.stderr and data["verdict"]["says"] == f"run-2 of the candidate ended with {status}"
    assert [pair["baseline"] for pair in data["loss"]["pairs"]] == ["run-1", "run-3"]
    assert fate == "die" or "  | no such luck" in done.stderr


def test_nothing_is_overwritten(ab):
    first, out = ab("--arm", "a:", "--arm", "b:")
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    second, _ = ab("--arm", "a:", "--arm", "b:")
    assert first.returncode in (0, 2) and second.returncode == 64 and "has runs already" in second.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before


def test_wrong_settings_are_told_before_the_first_run(ab, tmp_path):
    done, out = ab("--arm", "a: ".strip(), "B200OPT_PRECISION=fp7", "--arm", "b:")
    assert done.returncode == 64 and "fp7" in done.stderr and "arm a has a variable that is wrong: nothing is run" in done.stderr
    assert not (out / "a").exists()
    for option, value in (("--aa", tmp_path / "nowhere"), ("--html", tmp_path / "no" / "a.html"), ("--json", tmp_path / "no" / "a.json")):
        done, out = ab(option, value, "--arm", "a:", "--arm", "b:")
        assert done.returncode == 3 and str(value) in done.stderr and not (out / "a").exists()
    done, out = ab("--html", tmp_path / "ab" / "mine.html", "--arm", "a:", "--arm", "b:")
    assert done.returncode in (0, 2) and (tmp_path / "ab" / "mine.html").exists()


def test_the_verdict_is_printed_before_a_file_that_cannot_be_written(tmp_path):
    a = csv(tmp_path / "a.csv", arms.losses(400, 1))
    done = subprocess.run([COMMAND, "compare", a, a, "--html", tmp_path / "no" / "x.html"], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stdout.startswith("EQUIVALENT") and "cannot write" in done.stderr


@pytest.mark.parametrize("job, says, tail", [("exit 3", "run-1 of the baseline ended with exit status 3", "it printed nothing"),
                                             ("exit 0", "there is nothing to compare; baseline: ", "")], ids=("fails", "is silent"))
def test_runs_that_say_nothing_are_invalid(tmp_path, job, says, tail):
    command = [COMMAND, "ab", "--out", tmp_path / "ab", "--arm", "a:", "--arm", "b:", "--", "sh", "-c", job]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stdout.startswith("INVALID\n") and tail in done.stderr
    verdict = json.loads((tmp_path / "ab" / "compare.json").read_text())["verdict"]
    assert verdict["says"].startswith(says) and verdict["exit"] == 3


def text_of(*words):
    done = subprocess.run([COMMAND, "compare", *words], capture_output=True, text=True, check=False)
    assert done.returncode < 64 and done.stderr == "", done
    return " ".join(done.stdout.split())


def test_jobs_in_one_folder_are_named(tmp_path):
    a = arms.write(tmp_path / "a", arms.losses(300, 1), name="first")
    arms.write(tmp_path / "a" / "b", arms.losses(300, 2), name="second", ranks=1)
    also = compare(a, arms.write(tmp_path / "c", arms.losses(300, 3)))["verdict"]["also"]
    assert any(line.startswith("baseline: 2 jobs lie in ") and "first (2 ranks), second (1 ranks)" in line for line in also), also


def test_figures_of_a_clock_are_of_all_runs(tmp_path):
    """The second run is twice as slow in what it prints and in its steps: both figures must say so."""
    for run, step_ms in ((1, 2.0), (2, 8.0)):
        arms.write(tmp_path / "a" / f"run-{run}", arms.losses(300, run), node=False, step_ms=step_ms)
        arms.write(tmp_path / "b" / f"run-{run}", arms.losses(300, run + 2), node=False)
    host = clocks(compare(tmp_path / "a", tmp_path / "b"))["host"]
    assert host["baseline"]["tokens_per_s"] == pytest.approx(1e6 / 4, rel=0.02)
    assert host["baseline"]["steady_s"] / host["candidate"]["steady_s"] == pytest.approx(2, rel=0.05)
    assert host["baseline"]["end_to_end_s"] / host["candidate"]["end_to_end_s"] == pytest.approx(2.5, rel=0.1)
    says = text_of(tmp_path / "a", tmp_path / "b")
    assert "as the job printed them" in says and "mean of the first runs' steps whose GEMMs were timed: 1" in says
    assert "over steps, without what runs differ by" in says and "how much runs differ in speed is not in it, which takes 3 runs" in says


def test_only_numbers_that_mean_something_are_printed(tmp_path):
    flat = [3 - 1e-6 * step for step in range(400)]
    a = csv(tmp_path / "a.csv", flat)
    says = text_of(a, csv(tmp_path / "b.csv", [loss + 0.1 for loss in flat]))
    assert "lag" not in says and "steps in the logs" not in says and "window: steps 300 on (100 of them)" in says
    logs = arms.write(tmp_path / "c", arms.losses(300, 1))
    same = compare(logs, logs)
    assert any("could have seen 0.01 % or less" in line for line in same["verdict"]["also"]) == (
        same["throughput"]["clocks"][0]["could_have_seen_percent"] < 0.01)
    assert "candidate error" not in text_of(logs, logs), "nothing was audited"
    assert "candidate error" in text_of(logs, arms.write(tmp_path / "d", arms.losses(300, 1), plan="fp8"))


def test_a_tag_for_each_side(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    for path, column in ((a, "x"), (b, "y")):
        path.write_text(f"step,{column}\n" + "".join(f"{step},{loss!r}\n" for step, loss in enumerate(arms.losses(400, 1))))
    assert names(compare(a, b, "--tag", "x", "--tag", "y")) == ("EQUIVALENT", 0)


def test_a_table_that_is_not_known_is_named(tmp_path):
    plain, odd, good = tmp_path / "plain.csv", tmp_path / "odd.csv", csv(tmp_path / "good.csv", arms.losses(400, 1))
    plain.write_text("".join(f"{step},{loss!r}\n" for step, loss in enumerate(arms.losses(400, 1))))
    odd.write_text("x,y\n" + plain.read_text())
    for path, message in ((plain, "its first row has numbers; names of columns are needed there"),
                          (odd, "no column is known as a loss (there are: x, y); name one with --tag")):
        done = subprocess.run([COMMAND, "compare", path, good], capture_output=True, text=True, check=False)
        assert done.returncode == 3 and message in done.stderr, done
    assert compare(odd, good, "--tag", "y", "--tag", "loss")["loss"]["pairs"][0]["common"] >= 399


def test_the_environment_gives_margin_and_price(tmp_path, monkeypatch):
    a, b = (csv(tmp_path / f"{name}.csv", arms.losses(400, seed)) for seed, name in enumerate("ab"))
    monkeypatch.setenv("B200OPT_MARGIN", "0.7")
    assert compare(a, b)["loss"]["margin_percent"] == 0.7 and compare(a, b, "--margin", "2")["loss"]["margin_percent"] == 2
    for name, value in (("B200OPT_MARGIN", "0"), ("B200OPT_PRICE_PER_HOUR", "ten")):
        monkeypatch.setenv(name, value)
        done = subprocess.run([COMMAND, "compare", a, b], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (64, f"b200opt: compare: {name}: '{value}' is not accepted (accepted: a number above 0)\n"), done
        monkeypatch.delenv(name)


def test_pairs_of_the_page_are_numbered(tmp_path):
    for run in (1, 2):
        for arm in "ab":
            (tmp_path / arm / f"run-{run}").mkdir(parents=True)
            csv(tmp_path / arm / f"run-{run}" / "loss.csv", arms.losses(400, run + 10 * (arm == "b"), data=run))
    page = tmp_path / "page.html"
    compare(tmp_path / "a", tmp_path / "b", "--html", page)
    found = re.findall(r"<summary>Data: (how[^<]*)</summary>", page.read_text())
    assert found == [f"how pair {pair} was decided, check by check" for pair in (1, 2)]
    assert page.read_text().count('class="candidate run over"') == 1
