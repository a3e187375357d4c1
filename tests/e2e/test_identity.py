# SPDX-License-Identifier: Apache-2.0
"""Preloading the library, off or observing, changes nothing that a training job computes, prints or returns."""
import pytest

from conftest import stable_lines
from matrix import BRIEF, CLIENTS, LOADERS, LONG_CLIENTS

CLIENT_PARAMETERS = [pytest.param(job, id=job.name) for job in CLIENTS] + [
    pytest.param(job, id=job.name, marks=pytest.mark.long) for job in LONG_CLIENTS
]


LAUNCHER = ("b200opt: virtual node: ", "b200opt: torch.compile is off", "b200opt: OMP_NUM_THREADS=")


def own_lines(text):
    """What libb200opt.so said; the lines with which `b200opt dryrun` starts are not its."""
    return [line for line in text.splitlines() if line.startswith("b200opt:") and not line.startswith(LAUNCHER)]


def assert_same(lab, job, arm):
    bare, preloaded = lab.good(job, "bare"), lab.run(job, arm)
    assert preloaded.status == bare.status, preloaded.explain()
    assert len(bare.result["losses"]) > 1, "the job reported no losses"
    for figure in ("losses", "grad_norms"):
        assert preloaded.result.get(figure) == bare.result.get(figure), f"{figure} differ in bits"
    assert stable_lines(preloaded) == stable_lines(bare)
    assert own_lines(preloaded.stderr) == []


@pytest.mark.parametrize("job", CLIENT_PARAMETERS)
def test_client_is_unchanged(lab, job):
    assert_same(lab, job, "observe")


@pytest.mark.parametrize(
    "job", [pytest.param(job, id=job.name, marks=() if job in (*BRIEF, LOADERS[0]) else pytest.mark.long) for job in (*CLIENTS, *LONG_CLIENTS)]
)
def test_client_is_unchanged_by_the_library_that_is_off(lab, job):
    assert_same(lab, job, "off")


@pytest.mark.parametrize("job", CLIENT_PARAMETERS)
def test_observing_leaves_a_log_of_every_rank(lab, job):
    logs = lab.good(job, "observe").logs()
    assert sorted(logs) == list(range(job.world))
    for records in logs.values():
        assert records[0]["t"] == "header" and records[-1]["t"] == "end"
        assert not [r for r in records if r["t"] == "warn"]
