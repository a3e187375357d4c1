# SPDX-License-Identifier: Apache-2.0
"""Jobs whose GEMMs run in FP8 and MXFP8: what they compute is what emulation.py computes, and does not depend on what must not matter."""
import collections
import dataclasses
import json
import subprocess

import emulation
import pytest
import torch

from matrix import BIAS_FUSED, JOBS, PLAIN, RESUME, SAVE, SAVED_STEP, Job, emulated, shuffled, train

RECIPES = ("fp8", "mxfp8")
every_recipe = pytest.mark.parametrize("recipe", RECIPES)

GEMMS = Job("gemms", (JOBS / "gemms.py", "--out", "{dir}/gemms.pt"), world=1)
ACCUMULATED = train("fsdp2-bias-accum", "--mode", "fsdp2", "--bias", "--accum", 2, "--batch", 2)
RECOMPUTED = dataclasses.replace(PLAIN, name="fsdp2-recompute", command=(*PLAIN.command, "--ckpt"))
GRAPHED = Job("graphed", (JOBS / "graphed.py", "--out", "{out}"), world=1)
UNGRAPHED = dataclasses.replace(GRAPHED, name="ungraphed", command=(*GRAPHED.command, "--eager"))


def flops(run, field="plan"):
    """{plan or reason: FLOPs} of all ranks, from the library's log."""
    sums = collections.Counter()
    for records in run.logs().values():
        for r in records:
            if r["t"] == "gemm":
                sums[r[field]] += r["flops"]
    return sums


def share(run, recipe):
    done = flops(run)
    return done[recipe] / sum(done.values())


# ---- one product


def products(case, recipe):
    """(name, what the GPU gave, the exact product of the quantised operands, sum of its terms' magnitudes, terms)."""
    tokens, fan_out = case["dy"].shape
    fan_in = case["x"].size(1)
    made = {
        "y": (fan_in, emulation.fprop, case["x"], case["weight"]),
        "dx": (fan_out, emulation.dgrad, case["dy"], case["weight"]),
        "dw": (tokens, emulation.wgrad, case["dy"], case["x"]),
    }
    for name, (terms, quantise, *operands) in made.items():
        if terms % emulation.BLOCK and recipe == "mxfp8":
            continue  # left in BF16
        exact, magnitude = quantise(recipe, *operands).exact()
        yield f"{name}32", case[f"{name}32"], exact, magnitude, terms
        if name == "y" and "bias" in case:
            exact, magnitude = exact + case["bias"].double(), magnitude + case["bias"].double().abs()
        yield name, case[name], exact, magnitude, terms


def excess(got, exact, magnitude, terms):
    """Largest error over what summing in FP32 in any order, and rounding to the result's type once, may cause."""
    bound = (terms + 4) * 2.0**-24 * magnitude
    if got.dtype == torch.bfloat16:
        bound = bound + 2.0**-8 * exact.abs()
    return ((got.double() - exact).abs() / (bound + 2.0**-130)).max().item()


def bf16_steps(a, b):
    """How many BF16 values lie between a and b."""

    def ordinal(x):
        bits = x.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (ordinal(a) - ordinal(b)).abs()


@every_recipe
def test_each_product_is_the_recipes(lab, recipe, record_property):
    run = lab.good(GEMMS, recipe)
    cases = torch.load(run.folder / "gemms.pt")
    worst, compared, unequal, steps = collections.Counter(), 0, 0, 0
    for label, case in cases.items():
        for name, got, exact, magnitude, terms in products(case, recipe):
            ratio = excess(got, exact, magnitude, terms)
            assert ratio <= 1, f"{label}, {name}: {ratio} times what summation explains"
            worst[name] = max(worst[name], ratio)
            if got.dtype == torch.bfloat16:
                apart = bf16_steps(got, exact.float().bfloat16())
                compared, unequal, steps = compared + apart.numel(), unequal + (apart > 0).sum().item(), max(steps, apart.max().item())
    print(f"{recipe}: {len(cases)} cases, {unequal} of {compared} BF16 values differ, by at most {steps}; largest error over bound {dict(worst)}")
    assert len(cases) == 24 and set(worst) == {"y", "dx", "dw", "y32", "dx32", "dw32"}


@every_recipe
def test_the_bound_on_products_sees_another_recipe(lab, recipe):
    other = RECIPES[recipe == RECIPES[0]]
    cases = torch.load(lab.good(GEMMS, recipe).folder / "gemms.pt")
    missed = [
        (label, name)
        for label, case in cases.items()
        for name, got, *rest in products(case, other)
        if name.endswith("32") and excess(got, *rest) <= 1
    ]
    assert not missed


# ---- kernels with one fault each, built by tests/exec; those that show only in NaN, Inf or what was in memory before are seen there

PRELOAD = "import os, sys; os.environ['LD_PRELOAD'] += ':' + sys.argv[1]; os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


@pytest.mark.parametrize("fault,recipe", [("axis", "mxfp8"), ("swizzle", "mxfp8"), ("stale", "fp8")])
def test_a_faulty_kernel_is_noticed(lab, fault, recipe):
    """By the self-test before the first conversion, which leaves all as it is and says so; else by its products."""
    library = lab.command.parent / "tests" / "exec" / f"libexec_broken_{fault}.so"
    assert library.exists(), f"{library} is not built"
    command = ("-c", PRELOAD, library, JOBS / "gemms.py", "--out", "{dir}/gemms.pt")
    run = lab.good(Job(f"gemms-{fault}", command, world=1, launcher="python"), recipe)
    if flops(run, "reason")["self_test"]:
        print(f"{fault}: refused by the self-test")
        assert f"b200opt: self-test: {recipe}" in run.stderr and not flops(run)[recipe]
        return
    cases = torch.load(run.folder / "gemms.pt")
    wrong = [(label, name) for label, case in cases.items() for name, got, *rest in products(case, recipe) if not excess(got, *rest) <= 1]
    print(f"{fault}: {len(wrong)} products wrong in {len({label for label, _ in wrong})} of {len(cases)} cases")
    assert wrong


# ---- training


def series(run, figure="losses"):
    return torch.tensor([float.fromhex(v) for v in run.result[figure]], dtype=torch.float64)


def distance(a, b):
    """Root mean square of the relative difference of two loss curves."""
    return ((series(a) - series(b)) / series(b)).square().mean().sqrt().item()


@every_recipe
@pytest.mark.parametrize(
    "job", [pytest.param(job, id=job.name, marks=pytest.mark.long if job is BIAS_FUSED else ()) for job in (PLAIN, BIAS_FUSED, ACCUMULATED)]
)
def test_losses_follow_the_emulation(lab, job, recipe, record_property):
    """As near as the same job with its sequences dealt anew to the ranks, and much nearer than any other arithmetic."""
    run, expected = lab.good(job, recipe), lab.good(emulated(job, recipe), "cpu")
    floor = distance(lab.good(shuffled(job, 1), recipe), run)
    gap = distance(run, expected)
    others = {"bf16": lab.good(job, "observe"), **{other: lab.good(job, other) for other in RECIPES if other != recipe}}
    others = {name: distance(run, other) for name, other in others.items()}
    print(f"{job.name}, {recipe}: {gap:.2e} from the emulation, {floor:.2e} from itself dealt anew, {others} from others")
    assert share(run, recipe) >= 0.9, flops(run, "reason")
    assert gap <= 2 * floor
    assert min(others.values()) > 2 * gap, "the comparison could not tell one arithmetic from another"


def assert_same(a, b):
    for figure in ("losses", "grad_norms"):
        assert a.result[figure] == b.result[figure], figure
    assert len(a.result["losses"]) > 1


@every_recipe
def test_recomputed_activations_change_nothing(lab, recipe):
    run = lab.good(RECOMPUTED, recipe)
    assert_same(run, lab.good(PLAIN, recipe))
    assert share(run, recipe) >= 0.9
    assert sum(flops(run).values()) > 1.2 * sum(flops(lab.good(PLAIN, recipe)).values()), "nothing was recomputed"


@every_recipe
def test_resumed_job_continues_bit_identically(lab, recipe):
    saved, resumed = lab.good(SAVE, recipe), lab.good(RESUME, recipe)
    assert share(resumed, recipe) >= 0.9
    for figure in ("losses", "grad_norms"):
        assert resumed.result[figure] == saved.result[figure][SAVED_STEP + 1 :]
        assert resumed.result[figure], "nothing was left to compute"


@every_recipe
@pytest.mark.parametrize("order", [pytest.param("deferred", marks=pytest.mark.long), "adversarial-1"])
def test_order_of_execution_changes_nothing(lab, recipe, order):
    run = lab.good(BIAS_FUSED, f"{recipe}-{order}")
    assert_same(run, lab.good(BIAS_FUSED, recipe))
    for records in run.ledgers().values():
        assert [r["races"] for r in records if r["t"] == "node"] == [0]


def test_auto_gives_each_gemm_the_format_of_its_plan(lab):
    """Of shapes that all get one format, `auto` computes what that format computes."""
    run = lab.good(PLAIN, "auto")
    done = flops(run)
    assert (done["fp8"] + done["mxfp8"]) / sum(done.values()) >= 0.9
    (recipe,) = [name for name in RECIPES if done[name]]
    assert_same(run, lab.good(PLAIN, recipe))


@every_recipe
def test_a_captured_step_computes_what_it_computes_eagerly(lab, recipe):
    graphed, eager = lab.good(GRAPHED, recipe), lab.good(UNGRAPHED, recipe)
    assert graphed.result["losses"] == eager.result["losses"] and len(eager.result["losses"]) > 10
    assert share(graphed, recipe) >= 0.9 and share(eager, recipe) >= 0.9
    assert eager.result["losses"] != lab.good(UNGRAPHED, "observe").result["losses"]


@every_recipe
def test_healthy_training_is_left_in_its_format(lab, recipe):
    """The guard watches and finds nothing; no vendor call failed; each call has one plan and one reason."""
    for job in (PLAIN, BIAS_FUSED):
        run = lab.good(job, recipe)
        assert sum(flops(run).values()) == sum(flops(run, "reason").values()) > 0
        for records in run.logs().values():
            assert not [r for r in records if r["t"] in ("guard", "sample", "warn")]


@every_recipe
def test_the_report_says_what_was_converted_and_agrees_with_the_node(lab, recipe):
    run = lab.good(PLAIN, recipe)
    command = [str(lab.command), "report", "--json", str(run.folder / "log")]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert said["node_check"]["equal"] is True, said["node_check"]
    rows = said["report"]["conversion"]["rows"]
    assert sum(row["flops"] for row in rows) == sum(flops(run).values())
    assert {(row["plan"], row["reason"]) for row in rows} == {(recipe, "converted")}
