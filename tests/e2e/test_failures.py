# SPDX-License-Identifier: Apache-2.0
"""Jobs that go wrong end as on a real node, or with the reason by name: never in silence, never with wrong numbers."""
import re

import pytest

from conftest import Job
from matrix import JOBS, PLAIN, train

PEER_LIMIT_S = 30
DEAD_PEER = Job("dead-peer", (JOBS / "start_ranks.py", 2, PEER_LIMIT_S, JOBS / "dead_peer.py"), launcher="python")
UNHANDLED = {  # what the job uses: the name that must be said
    "kernel": r"b200vnode: kernel without a CPU implementation: doubled",
    "function": r"b200vnode: cuTensorMapEncodeTiled is not implemented",
}
COMPILED = train("compiled", "--mode", "fsdp2", "--compile")

preloaded_or_not = pytest.mark.parametrize("arm", ["bare", "observe"])


@preloaded_or_not
def test_killed_rank_ends_its_peer_with_an_nccl_error(lab, arm):
    run = lab.run(DEAD_PEER, arm)
    assert "rank 1 ended with -9" in run.stdout, run.explain()
    status = re.search(r"rank 0 ended with (-?\d+)", run.stdout)
    assert status and int(status[1]) != 0, run.explain()
    assert "step 4 sum 3" in run.stdout
    assert re.search(r"NCCL.*(remote|ncclRemoteError)", run.stderr, re.IGNORECASE), run.explain()


@preloaded_or_not
@pytest.mark.parametrize("what", UNHANDLED)
def test_what_the_node_cannot_compute_ends_the_job_with_its_name(lab, arm, what):
    run = lab.run(Job(f"unhandled-{what}", (JOBS / "unhandled.py", what), world=1, launcher="python"), arm)
    assert run.status != 0, "the job went on with a kernel that computed nothing"
    assert "result" not in run.stdout
    assert re.search(UNHANDLED[what], run.stderr), run.explain()


def test_torch_compile_is_turned_off_with_a_notice(lab):
    run = lab.good(COMPILED, "observe")
    assert re.search(r"torch\.compile|TORCHDYNAMO_DISABLE", run.stderr), run.explain()
    assert run.result["losses"] == lab.good(PLAIN, "observe").result["losses"]
