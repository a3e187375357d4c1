# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator database: forward and gradient against the CPU, the same bits in every order, and in graphs. What is left out
stands in the tables of opinfo.py, each with its reason; anything else that differs fails."""
import functools

import opinfo


@functools.cache
def sweep(mode, order, seed=1):
    return opinfo.sweep(mode, order, seed)


def listed(wrong):
    return "\n".join([f"{len(wrong)} operators:", *(f"{label}: {what}" for label, what in wrong.items())])


def test_operators_are_the_cpus():
    given, wrong = sweep("cpu", "eager")
    assert not wrong, listed(wrong)
    compared = sum(map(int, given.values()))
    print(f"{compared} samples of {len(given)} operators compared")
    assert compared > 1000, "the operator database gave no samples"


def test_orders_change_no_bit(order, seed):
    """Forward and gradient, random numbers included, and nothing races."""
    (eager, wrong), (late, late_wrong) = sweep("bits", "eager"), sweep("bits", order, seed)
    assert not wrong and not late_wrong, listed({**wrong, **late_wrong})
    assert len(eager) > 600
    assert [label for label in eager if eager[label] != late[label]] == []


def test_graphs_replay_or_refuse():
    """Each operator is captured, and its replay with other inputs has the bits of a plain run; or the capture is refused."""
    given, wrong = sweep("graph", "eager")
    assert len(given) > 600
    unlisted = {label: what for label, what in wrong.items() if label not in opinfo.REFUSED or opinfo.REFUSED[label][1] not in what}
    assert not unlisted, listed(unlisted)
    assert set(wrong) == set(opinfo.REFUSED), f"captured although listed as refused: {sorted(set(opinfo.REFUSED) - set(wrong))}"
