# SPDX-License-Identifier: Apache-2.0
"""The order in which the virtual node runs operations changes no bit of what a correct job computes, and nothing in these jobs races.
Modelled times are the same in every run."""
import pytest

from matrix import BIAS_FUSED, CLIENTS, FSDP1_NO_SYNC, PLAIN

SEEDS = range(1, 21)
DEFAULT = {("deferred", BIAS_FUSED), ("adversarial-1", BIAS_FUSED), ("adversarial-2", BIAS_FUSED), ("deferred", FSDP1_NO_SYNC),
           ("adversarial-1", FSDP1_NO_SYNC), ("adversarial-2", FSDP1_NO_SYNC)}
CASES = [
    pytest.param(job, order, id=f"{job.name}-{order}", marks=() if (order, job) in DEFAULT else pytest.mark.long)
    for job in CLIENTS
    for order in ("deferred", *(f"adversarial-{seed}" for seed in SEEDS))
]


def execution(run):
    """{rank: the node's record of how it ran that rank}, of the ranks that used it."""
    return {rank: next(r for r in records if r["t"] == "node") for rank, records in run.ledgers().items()}


@pytest.mark.parametrize("job,order", CASES)
def test_order_changes_no_bit_and_nothing_races(lab, job, order):
    eager, late = lab.good(job, "observe"), lab.good(job, order)
    assert len(eager.result["losses"]) > 1, "the job reported no losses"
    for figure in ("losses", "grad_norms"):
        assert late.result.get(figure) == eager.result.get(figure), f"{figure} differ in bits"
    assert {rank: (r["order"], r["races"]) for rank, r in execution(late).items()} == {
        rank: (order.split("-")[0], 0) for rank in range(job.world)
    }, late.explain()
    assert "b200vnode: race" not in late.stderr


@pytest.mark.parametrize("order", ["again", pytest.param("deferred-again", marks=pytest.mark.long)])
@pytest.mark.parametrize("job", [pytest.param(job, id=job.name, marks=() if job is PLAIN else pytest.mark.long) for job in CLIENTS])
def test_modelled_time_is_the_same_in_every_run(lab, job, order):
    first = execution(lab.good(job, {"again": "observe", "deferred-again": "deferred"}[order]))
    second = execution(lab.good(job, order))
    assert {rank: r["modelled_ns"] for rank, r in first.items()} == {rank: r["modelled_ns"] for rank, r in second.items()}
    assert all(r["modelled_ns"] > 0 for r in first.values())
