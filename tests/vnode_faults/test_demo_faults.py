# SPDX-License-Identifier: Apache-2.0
"""A demo job in which a call fails, or a rank dies, hangs or is slow, does the same with and without libb200opt.so.
300 faults: tools/check --long demo-faults."""
import re

import pytest

import demo_faults


@pytest.fixture(scope="module")
def arms():
    with demo_faults.both_arms() as servers:
        yield servers


@pytest.fixture(scope="module")
def whole(arms):
    """What the job does without a fault."""
    bare, observed = (server.outcomes() for server in arms)
    assert bare == observed
    assert [o.end for o in bare] == [0, 0] and len(bare[0].losses) == 3
    return bare


def test_sampled_faults():
    results, wrong = demo_faults.campaign(cases=10, seed=4)
    assert not wrong, "\n".join(wrong)
    assert sum(results.values()) == 10


def test_sampled_faults_of_conversions():
    results, wrong = demo_faults.converted_campaign("mxfp8", cases=4, seed=1)
    assert not wrong, "\n".join(wrong)
    assert sum(results.values()) == 4


def test_a_dead_rank(arms, whole):
    assert demo_faults.compare(*arms, "ncclAllGather@1:4:die").startswith("same")
    for server in arms:
        first, second = server.run("ncclAllGather@1:4:die")
        assert second["end"] == -9
        assert first["end"] not in (0, None), "the rank that is left must not hang"
        assert re.search(r"NCCL.*remote process exited", first["err"]), first["err"]


def test_a_hung_rank(arms, whole):
    """PyTorch's watchdog ends the rank that waits. In eager order a collective would hold up the thread that called it, and the watchdog
    would know nothing of it; on a GPU, and in deferred order, it waits on its stream."""
    options = {"timeout_s": 8, "B200OPT_VNODE_ORDER": "deferred"}
    for server in arms:
        first, second = server.run("ncclAllGather@1:4:hang", **options)
        assert second["end"] is None, "a hung rank is killed by the launcher"
        assert re.search(r"timeout watchdog|Watchdog caught", first["err"]), first["err"]
        assert first["end"] in (1, -6), "the waiting thread learns of it, or the watchdog ends the process first"


def test_a_slow_rank(arms, whole):
    """Losses are those of the job that nothing holds up."""
    for server in arms:
        slow = server.outcomes("ncclAllGather@1:4:slow=2s")
        assert [o.end for o in slow] == [0, 0] and slow[1].struck
        assert slow[0].losses == whole[0].losses
