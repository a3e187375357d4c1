# SPDX-License-Identifier: Apache-2.0
"""Training that is healthy: the guard looks at samples of every GEMM all along, finds none bad, and takes nothing out of its format."""
import collections

import pytest

from matrix import train


def healthy(steps):
    shape = ("--mode", "single", "--width", 32, "--layers", 2, "--seq", 32, "--batch", 2, "--text-mb", 0.5)
    return train(f"healthy-{steps}", *shape, world=1, steps=steps, launcher="python", limit_s=300 + 2 * steps)


def references(run):
    """Samples that were compared: GEMMs that were also done in BF16, through cuBLASLt, which nothing else in this job uses."""
    shapes = collections.Counter()
    [ledger] = run.ledgers().values()
    for r in ledger:
        if r["t"] == "gemm" and r["api"] == "lt" and (r["a"], r["d"]) == ("bf16", "bf16"):
            shapes[r["role"], r["ta"], r["tb"], r["m"], r["n"], r["k"]] += r["calls"]
    return shapes


CASES = [pytest.param(150), pytest.param(2000, marks=pytest.mark.long)]


@pytest.mark.parametrize("recipe", ["fp8", "mxfp8"])
@pytest.mark.parametrize("steps", CASES)
def test_triggers_nothing(lab, steps, recipe):
    run = lab.good(healthy(steps), recipe)
    [records] = run.logs().values()
    plans, kinds = collections.Counter(), collections.Counter(r["t"] for r in records)
    for r in records:
        if r["t"] == "gemm":
            plans[r["plan"]] += r["calls"]
    samples = references(run)
    losses = [float.fromhex(loss) for loss in run.result["losses"]]
    print(f"{recipe}, {len(losses)} steps: {sum(samples.values())} samples of {len(samples)} kinds of GEMM compared, {kinds['sample']} bad, "
          f"{kinds['guard']} demotions; loss {losses[0]:.3f} ... {losses[-1]:.3f}; {dict(plans)}")
    assert len(losses) == steps and losses[-1] < losses[0]
    assert plans[recipe] > 0.9 * sum(plans.values())
    assert kinds["sample"] == kinds["guard"] == 0
    # The first call of each of the 27 GEMMs of a step, and then each 64th of a shape; several GEMMs share a shape.
    assert len(samples) >= 12 and sum(samples.values()) >= len(samples) * (steps // 64)
