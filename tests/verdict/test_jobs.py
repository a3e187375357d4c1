# SPDX-License-Identifier: Apache-2.0
"""Jobs that are limited by one thing each, on the virtual node: the report names it. Not by luck: at half and twice the size of
what makes them so, too (--long)."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

JOB = pathlib.Path(__file__).resolve().parent / "job.py"
STEPS = 40
# Kind of job.py: verdict, and the environment it needs. GEMMs of real sizes are not computed, only modelled.
MODELLED = {"B200OPT_VNODE_KERNELS": "none"}
JOBS = {
    "compute": ("compute", MODELLED),
    "communication": ("communication", MODELLED),
    "bandwidth": ("memory bandwidth", {}),
    "refused": ("memory capacity", {**MODELLED, "B200OPT_VNODE_MEMORY_GB": "1"}),
    "churn": ("memory capacity", {**MODELLED, "B200OPT_VNODE_MEMORY_GB": "2", "B200OPT_GPU_SAMPLE_S": "1"}),
    "host": ("host", MODELLED),
    "data": ("data", MODELLED),
}
LEAST_S = {"churn": "4"}  # NVML, which knows how much memory there is, is asked after a second


def bottleneck(command, folder, kind, factor):
    python = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if kind == "communication" else [sys.executable]
    env = dict(os.environ, B200OPT_TIMING_EVERY="4", **JOBS[kind][1])
    job = subprocess.run([command, "dryrun", "--log", folder, "--", *python, JOB, kind, str(factor), str(STEPS), LEAST_S.get(kind, "0")],
                         env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    assert job.returncode == 0, job.stdout
    report = subprocess.run([command, "report", folder, "--json"], capture_output=True, text=True, check=True)
    return json.loads(report.stdout)["report"]["bottleneck"]


def check(command, folder, kind, factor):
    found = bottleneck(command, folder, kind, factor)
    assert found["verdict"] == JOBS[kind][0], json.dumps({name: found[name] for name in ("verdict", "why", "shares", "evidence")}, indent=1)
    assert found["steps"] >= 2 and found["next"]


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_s_bottleneck_is_named(command, tmp_path, kind):
    check(command, tmp_path, kind, 1)


@pytest.mark.long
@pytest.mark.parametrize("factor", [0.5, 2])
@pytest.mark.parametrize("kind", [kind for kind in JOBS if kind != "refused"])
def test_also_at_half_and_twice_the_size(command, tmp_path, kind, factor):
    check(command, tmp_path, kind, factor)
