# SPDX-License-Identifier: Apache-2.0
"""GEMMs of a small program, converted, against FP64 within derived bounds: every recipe, role, layout, output type, epilogue,
scalar and odd size; on the GPUs that differ in what they take, and in every order of execution."""
import collections
import json
import os
import pathlib
import re
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["B200_BUILD"])
PROGRAM = BUILD / "tests" / "convert" / "convert"


def run(folder, expected, suite, precision, *arguments, **more):
    """(result, records of the log). Fails when a GEMM is out of its bound or something is said on stderr."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env.update(LD_PRELOAD=str(BUILD / "libb200opt.so"), B200OPT_LOG_DIR=str(folder), B200OPT_RUN="run", B200OPT_PRECISION=precision,
               B200OPT_STRATEGY="always", OMP_NUM_THREADS="1", **more)
    result = subprocess.run([PROGRAM, expected, suite, *arguments], env=env, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0 and "WRONG" not in result.stdout, "\n".join(re.findall("WRONG.*", result.stdout)[:20]) + result.stderr
    assert result.stderr == "", result.stderr
    records = [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return result, records


def hashes(result):
    return re.findall(r"^ok (.*?) \| .* hash ([0-9a-f]{16})$", result.stdout, re.M)


def count(records, field):
    counts = collections.Counter()
    for record in records:
        if record["t"] == "gemm":
            counts[record[field]] += record["calls"]
    return counts


# GPU, format, least share of calls converted by suite "all".
CASES = [("b200", "fp8", 0.95), ("b200", "mxfp8", 0.7), ("h200", "fp8", 0.95), ("l40s", "fp8", 0.95), ("rtx_pro_6000", "fp8", 0.95)]


LONG = os.environ.get("B200_LONG") == "1"
# In short runs other orders on one GPU only.
ORDERS = [(order, *case) for order in ("eager", "deferred", "adversarial") for case in CASES if LONG or order == "eager" or (order, case[0]) == ("adversarial", "b200")]


@pytest.mark.parametrize("order,gpu,precision,share", ORDERS)
def test_numbers(tmp_path, gpu, precision, share, order):
    result, records = run(tmp_path, precision, "all", precision, B200OPT_VNODE_GPU=gpu, B200OPT_VNODE_ORDER=order, B200OPT_AUDIT_EVERY="5")
    cases = int(re.search(r"^(\d+) cases", result.stdout, re.M)[1])
    plans, reasons = count(records, "plan"), count(records, "reason")
    assert sum(plans.values()) == sum(reasons.values()) == cases, "every GEMM has one plan and one reason"
    assert plans[precision] == reasons["converted"] >= share * cases, (plans, reasons)
    audits = [record["error"] for record in records if record["t"] == "audit"]
    assert len(audits) > 10 and all(0 < error < 0.08 for error in audits), audits
    assert not [record for record in records if record["t"] in ("sample", "guard")], "healthy numbers and calls trip nothing"


@pytest.mark.parametrize("gpu,precision,reason", [("a100", "fp8", "arch"), ("h200", "mxfp8", "arch"), ("rtx_pro_6000", "mxfp8", "arch")])
def test_left_alone(tmp_path, gpu, precision, reason):
    """What the GPU cannot do is not done, and has the bits of a run without the library."""
    result, records = run(tmp_path, "native", "types", precision, B200OPT_VNODE_GPU=gpu)
    assert set(count(records, "plan")) == {"native"} and set(count(records, "reason")) == {reason}
    off, _ = run(tmp_path, "native", "types", precision, B200OPT_VNODE_GPU=gpu, B200OPT="off")
    assert hashes(result) == hashes(off)


def test_observe_says_what_others_would_do(tmp_path):
    _, records = run(tmp_path, "native", "types", "observe")
    assert set(count(records, "reason")) == {"observe"} and set(count(records, "plan")) == {"native"}
    would = {(record["would_fp8"], record["would_mxfp8"]) for record in records if record["t"] == "gemm"}
    assert would == {("fp8:converted", "mxfp8:converted")}


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_cut_gemms_are_the_same(tmp_path, precision):
    """Operands beyond the workspace are quantised in pieces, with the same bits."""
    whole, _ = run(tmp_path / "whole", precision, "cuts", precision)
    pieces, records = run(tmp_path / "pieces", precision, "cuts", precision, B200OPT_WORKSPACE_MB="1")
    assert count(records, "plan")[precision] == sum(count(records, "plan").values()) and hashes(whole) == hashes(pieces)


def test_memory_stays_below_its_bound(tmp_path):
    _, records = run(tmp_path, "fp8", "all", "fp8", B200OPT_WORKSPACE_MB="1", B200OPT_GUARD="off")
    last = [record for record in records if record["t"] == "workspace"][-1]
    assert 0 < last["bytes"] <= last["limit"]
    assert [record["current"] for record in records if record["t"] == "alloc" and record["owner"] == "b200opt"][-1] == last["bytes"]


def test_its_memory_goes_to_a_job_that_needs_it(tmp_path):
    """With the pool, a job that takes all of the device gets what converted GEMMs have left idle; they get it back once the job
    has freed what it took, from the pool that keeps it."""
    granted, ours, converted = {}, {}, {}
    for memory in ("observe", "pool"):
        result, records = run(tmp_path / memory, "fp8", "full", "fp8", B200OPT_MEMORY=memory, B200OPT_VNODE_MEMORY_GB="2")
        granted[memory] = int(re.search(r"^granted (\d+)$", result.stdout, re.M)[1])
        ours[memory] = [record for record in records if record["t"] == "alloc" and record["owner"] == "b200opt"][-1]
        converted[memory] = count(records, "reason")
    assert ours["observe"]["frees"] == 0 < ours["pool"]["frees"] and ours["observe"]["peak"] == ours["pool"]["peak"], ours
    assert 0 < granted["pool"] - granted["observe"] <= ours["pool"]["peak"], (granted, ours)
    assert converted["pool"] == converted["observe"] == {"converted": 2}, converted


def test_repeated_calls_are_bit_identical(tmp_path):
    """Stateless: the same call gives the same bits whatever came before."""
    result, _ = run(tmp_path, "fp8", "again", "fp8")
    seen = collections.defaultdict(set)
    for case, value in hashes(result):
        seen[case].add(value)
    assert len(seen) == 6 and all(len(values) == 1 for values in seen.values()), seen


@pytest.mark.parametrize("order", ["eager", "adversarial"])
@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_graphs(tmp_path, precision, order):
    """Captured GEMMs are converted, in memory of their own, once the GPU has been tested; before that they are left alone."""
    _, records = run(tmp_path, precision, "graph", precision, B200OPT_VNODE_ORDER=order)
    assert count(records, "reason") == {"converted": 7, "capture": 2}
    assert [record for record in records if record["t"] == "workspace"][-1]["capture_bytes"] > 0


def guard_records(records, kind):
    return [record for record in records if record["t"] == kind]


E4M3 = {"B200OPT_FP8_GRAD_FORMAT": "e4m3"}


@pytest.mark.parametrize("suite,precision", [
    ("healthy", "fp8"), ("healthy", "mxfp8"), ("outliers_1e4", "mxfp8"), ("outliers_1e5", "mxfp8"), ("mixture_dgrad", "mxfp8"), ("mixture_wgrad", "mxfp8"),
    ("mixture_dgrad", "fp8"), ("mixture_wgrad", "fp8"), ("cancelling_wgrad", "fp8"), ("cancelling_wgrad", "mxfp8"), ("nan", "fp8"), ("nan", "mxfp8"), ("inf", "fp8"), ("inf", "mxfp8")])
def test_guard_lets_pass(tmp_path, suite, precision):
    """Healthy numbers, sums that cancel among them; those that a block's own scale, or the range of E5M2, keeps; and operands that are
    not numbers, which no format can save: the program sees them in all of the column of D that they belong to."""
    result, records = run(tmp_path, precision, suite, precision, B200OPT_STEP_PERIOD="16")
    assert len(hashes(result)) == 1 and count(records, "reason") == {"converted": 600}
    assert not guard_records(records, "sample") + guard_records(records, "guard")


@pytest.mark.parametrize("suite,gpu,verdict,plans,more", [
    ("outliers_1e4", "b200", "starved", ["fp8", "mxfp8"], {}),
    ("outliers_1e5", "b200", "starved", ["fp8", "mxfp8"], {}),
    ("outliers_1e5", "h200", "starved", ["fp8", "native"], {}),
    ("mixture_dgrad", "b200", "starved", ["fp8", "mxfp8"], E4M3),
    ("mixture_wgrad", "b200", "starved", ["fp8", "mxfp8"], E4M3),
    ("deep_mixture_dgrad", "b200", "starved", ["fp8", "mxfp8"], {}),
    ("deep_mixture_wgrad", "b200", "starved", ["fp8", "mxfp8"], {}),
    ("hidden", "b200", "error", ["mxfp8", "native"], {}),
    ("hidden", "b200", "error", ["fp8", "mxfp8", "native"], {}),
    ("hidden_shifted", "b200", "error", ["mxfp8", "native"], {}),
    ("hidden_wide", "b200", "error", ["mxfp8", "native"], {}),
    ("hidden_dgrad", "b200", "error", ["fp8", "mxfp8", "native"], {}),
    ("hidden_wgrad", "b200", "error", ["fp8", "mxfp8", "native"], {})])
def test_guard_demotes(tmp_path, suite, gpu, verdict, plans, more):
    """Outlier channels, and gradients of very different magnitudes, starve the rest in per-tensor FP8; outliers in every block that D
    does not depend on do so in MXFP8, also where operands lie at odd addresses and are wider than what is compared. Three bad samples,
    64 calls apart, and the next step goes on in what is wider, with its very bits."""
    more = {"B200OPT_STEP_PERIOD": "16", "B200OPT_VNODE_GPU": gpu, **more}
    result, records = run(tmp_path / "guarded", plans[0], suite, plans[0], **more)
    seen = [(int(re.search(r"call (\d+)", case)[1]), value) for case, value in hashes(result)]
    changes = [call for call, _ in seen]
    assert changes[0] == 0 and len(changes) == len(plans), changes
    for before, after in zip(changes, changes[1:]):  # samples are taken of each call that 64 divides
        first = -(-before // 64) * 64
        assert first + 128 < after <= first + 128 + 2 * 16 + 1, changes
    reasons = {"fp8": "converted", "mxfp8": "demoted", "native": "breaker_guard"}
    expected = {reasons[plan]: end - start for plan, start, end in zip(plans, changes, changes[1:] + [600])}
    expected = {"converted" if reason == reasons[plans[0]] else reason: calls for reason, calls in expected.items()}
    assert count(records, "reason") == expected
    assert [(r["plan"], r["verdict"]) for r in guard_records(records, "sample")] == [(plan, verdict) for plan in plans[:-1] for _ in range(3)]
    assert [(r["plan"], r["what"], r["applied"]) for r in guard_records(records, "guard")] == [(plan, "guard", 1) for plan in plans[:-1]]
    for plan, (_, value) in zip(plans, seen):
        alone, _ = run(tmp_path / plan, plan, suite, plan, **{**more, "B200OPT_GUARD": "off"})
        assert [value] == [v for _, v in hashes(alone)], plan


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_healthy_training_triggers_nothing(tmp_path, precision):
    steps = 2000 if LONG else 200
    traces = tmp_path / "traces"
    traces.mkdir()
    _, records = run(tmp_path / "logs", precision, "training", precision, str(steps), B200OPT_STEP_PERIOD="6", B200OPT_TIMING="off",
                     B200OPT_VNODE_TRACE=f"{traces}/")
    assert count(records, "reason") == {"converted": 6 * steps} and set(count(records, "role")) == {"fprop", "dgrad", "wgrad"}
    assert not guard_records(records, "sample") + guard_records(records, "guard")
    assert calls_of(traces)["cuEventRecord"] == 3 * -(-2 * steps // 64), "samples are taken"


def calls_of(folder):
    return collections.Counter(line.split()[1] for path in folder.glob("*.trace") for line in path.read_text().splitlines())


@pytest.mark.parametrize("more,calls", [({"B200OPT_GUARD": "strict"}, 33), ({"B200OPT_GUARD_STRIKES": "2"}, 97)])
def test_guard_listens(tmp_path, more, calls):
    _, records = run(tmp_path, "fp8", "outliers_1e5", "fp8", B200OPT_STEP_PERIOD="16", **more)
    assert 0 < count(records, "reason")["converted"] <= calls, count(records, "reason")


def test_guard_off_samples_nothing(tmp_path):
    traces = {}
    for guard in ("on", "off"):
        traces[guard] = tmp_path / guard
        traces[guard].mkdir()
        _, records = run(tmp_path / f"logs_{guard}", "fp8", "healthy", "fp8", B200OPT_GUARD=guard, B200OPT_TIMING="off", B200OPT_VNODE_TRACE=f"{traces[guard]}/")
        assert count(records, "reason") == {"converted": 600}
    on, off = calls_of(traces["on"]), calls_of(traces["off"])
    assert on["cuEventRecord"] == 10 and off["cuEventRecord"] == off["cuEventQuery"] == off["cuEventCreate"] == 0
    assert on["cublasLtMatmul"] == off["cublasLtMatmul"] + 10 and on["cuLaunchKernel"] > off["cuLaunchKernel"]


@pytest.mark.parametrize("suite,precision", [("outliers_1e5", "fp8"), ("hidden", "mxfp8")])
@pytest.mark.parametrize("more", [{"B200OPT_GUARD": "off"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_guard_only_reports(tmp_path, more, suite, precision):
    """Ranks must decide alike: a demotion that the others do not know of is said and not applied."""
    result, records = run(tmp_path, precision, suite, precision, B200OPT_STEP_PERIOD="16", **more)
    assert count(records, "reason") == {"converted": 600} and len(hashes(result)) == 1
    assert {record["applied"] for record in guard_records(records, "guard")} == ({0} if "RANK" in more else set())
    assert bool(guard_records(records, "sample")) == ("RANK" in more)


def test_warm_up(tmp_path):
    _, records = run(tmp_path, "fp8", "healthy", "fp8", B200OPT_STEP_PERIOD="16", B200OPT_WARMUP_STEPS="4")
    reasons = count(records, "reason")
    assert set(reasons) == {"warm_up", "converted"} and 64 <= reasons["warm_up"] <= 81, reasons


def test_coverage_is_demanded(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env.update(LD_PRELOAD=str(BUILD / "libb200opt.so"), B200OPT_LOG_DIR=str(tmp_path), B200OPT_PRECISION="mxfp8", B200OPT_STRATEGY="always",
               B200OPT_VNODE_GPU="h200", B200OPT_MIN_COVERAGE="90")
    result = subprocess.run([PROGRAM, "native", "again"], env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0 and "B200OPT_MIN_COVERAGE=90 was not reached" in result.stderr


@pytest.mark.parametrize("suite,said", [("healthy", "guard: 0 bad samples, 0 times a shape was taken out of a format"),
                                        ("hidden", "guard: 6 bad samples, 2 times a shape was taken out of a format")])
def test_last_words(tmp_path, suite, said):
    """What was gained, found and audited is said at the end, and agrees with the log."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env.update(LD_PRELOAD=str(BUILD / "libb200opt.so"), B200OPT_LOG_DIR=str(tmp_path), B200OPT_PRECISION="fp8", B200OPT_STRATEGY="always",
               B200OPT_STEP_PERIOD="16", B200OPT_LOG_LEVEL="info", B200OPT_AUDIT_EVERY="50")
    result = subprocess.run([PROGRAM, "fp8", suite], env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0 and f"b200opt: {said}\n" in result.stderr, result.stderr
    records = [json.loads(line) for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines()]
    native, narrow = (sum(record.get(f"model_{which}_ns", 0) for record in records if record["t"] == "gemm") * 1e-9 for which in ("native", "narrow"))
    assert f"b200opt: cost model: converted GEMMs take {narrow:.3g} s instead of {native:.3g} s, {native / narrow:.2f} times as fast\n" in result.stderr
    assert re.search(r"b200opt: [1-9]\d* calls audited, largest relative error 0\.0\d+\n", result.stderr) or suite != "healthy", result.stderr


@pytest.mark.parametrize("rule,native", [("step>=10:native", 425), ("rank=1:native", 0), ("rank=0:native", 600)])
def test_rules_know_the_position(tmp_path, rule, native):
    """Steps of 16 GEMMs; the first is only known to have ended when the second begins, which moves counts by a step or two."""
    _, records = run(tmp_path, "fp8", "healthy", "fp8", B200OPT_STEP_PERIOD="16", B200OPT_RULES=rule, RANK="0", WORLD_SIZE="2")
    assert abs(count(records, "reason")["rule"] - native) <= 32 * (native not in (0, 600)), count(records, "reason")
