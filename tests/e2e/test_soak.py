# SPDX-License-Identifier: Apache-2.0
"""A job that runs for long holds no more at its end than after its first part."""
import pytest

from conftest import Job
from matrix import JOBS

ALLOWED_MB = 3.0  # of resident memory, from 30 % of the steps to the end: fragments of the C library's heap


def soak(steps):
    return Job(f"soak-{steps}", (JOBS / "soak.py", "--steps", steps, "--out", "{out}"), limit_s=300 + steps // 2)


CASES = [pytest.param(300, order, id=f"300-{order}") for order in ("observe", "adversarial-1")] + [
    pytest.param(10000, order, id=f"10000-{order}", marks=pytest.mark.long) for order in ("bare", "observe", "deferred", "adversarial-1")
]


@pytest.mark.parametrize("steps,order", CASES)
def test_nothing_grows(lab, steps, order):
    run = lab.good(soak(steps), order)
    for rank, samples in enumerate(run.result["samples"]):
        early, last = samples[len(samples) * 3 // 10], samples[-1]
        print(f"rank {rank}: {early} ... {last}")
        assert last["step"] == steps
        for what in ("device_mb", "descriptors", "threads", "pinned_blocks"):
            assert last[what] <= early[what], what
        assert last["rss_mb"] - early["rss_mb"] < ALLOWED_MB, samples
