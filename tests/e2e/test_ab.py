# SPDX-License-Identifier: Apache-2.0
"""The verdict on pairs of loss curves whose true answer is known, because they are drawn."""
import random

import ab
import pytest

STEPS = 600
FLOOR = 0.05  # percent


def curve(seed):
    """A loss that falls, with the noise of the data."""
    rng = random.Random(seed)
    return [2 + 3 * 0.99**step + rng.gauss(0, 0.04) for step in range(STEPS)]


def partner(reference, seed, offset=0.0, spread=0.3, late=0.0):
    """The same data: the reference with a gap in percent, and what chaos adds, which depends on the step before."""
    rng, wander, result = random.Random(seed), 0.0, []
    for step, loss in enumerate(reference):
        grown = min(1.0, step / 50)
        wander = 0.3 * wander + rng.gauss(0, spread * grown)
        result.append(loss * (1 + (offset * grown + late * step / STEPS + wander) / 100))
    return result


def verdicts(count=60, margin=1.0, **options):
    return [ab.compare(curve(seed), partner(curve(seed), 1000 + seed, **options), margin, FLOOR).name for seed in range(count)]


def test_equal_runs():
    assert set(verdicts()) == {"EQUIVALENT"}
    assert verdicts(margin=0.25).count("EQUIVALENT") >= 50
    assert ab.compare(curve(1), curve(1), 0.25, FLOOR).gap == 0


@pytest.mark.parametrize("offset,name", [(2.0, "WORSE"), (-2.0, "BETTER")])
def test_a_gap_beyond_the_margin(offset, name):
    assert set(verdicts(offset=offset)) == {name}


def test_a_gap_at_the_margin_is_seldom_called_equivalent():
    names = verdicts(count=200, margin=0.25, offset=0.25)
    assert names.count("EQUIVALENT") <= 16 and names.count("WORSE") <= 16


def test_a_gap_that_grows():
    assert "EQUIVALENT" not in verdicts(margin=1.0, late=3.0)


def test_other_data():
    names = [ab.compare(curve(seed), curve(500 + seed), 1.0, FLOOR).name for seed in range(20)]
    assert set(names) == {"INVALID"}


def test_not_a_number():
    assert ab.compare(curve(1), [*curve(1)[:-1], float("nan")], 1.0, FLOOR).name == "DIVERGED"


def test_divergence():
    reference = curve(1)
    assert ab.compare(reference, [v * (1 + 0.001 * max(0, step - 100)) for step, v in enumerate(reference)], 1.0, FLOOR).name == "DIVERGED"


def test_another_start():
    reference = curve(1)
    assert ab.compare(reference, [v * 1.01 if step < 5 else v for step, v in enumerate(reference)], 1.0, FLOOR).name == "INCONCLUSIVE"


def test_floor():
    pairs = [(curve(seed), [1.002 * v for v in curve(seed)]) for seed in range(3)]
    assert ab.floor_of(pairs) == pytest.approx(0.2, rel=0.01)
