# SPDX-License-Identifier: Apache-2.0
"""No block is handed out while work on it is pending, in orders of the virtual node that look for it; and the test would see it."""
import os

import pytest

from pool import HERE, records, run, summed

SEEDS = int(os.environ.get("POOL_SEEDS", "3"))
THREADS = int(os.environ.get("POOL_THREADS", "8"))
OPERATIONS = int(os.environ.get("POOL_OPERATIONS", "600"))


def corruption(arm, folder, seed, order="adversarial", **more):
    return run(arm, folder, "pool_corruption", THREADS, OPERATIONS, seed, B200OPT_VNODE_ORDER=order, B200OPT_VNODE_SEED=str(seed), **more)


def test_bare_program_is_right(tmp_path):
    done = corruption("bare", tmp_path, 1)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_no_byte_is_wrong(seed, tmp_path):
    done = corruption("pool", tmp_path, seed)
    assert done.returncode == 0 and done.stdout.endswith(" 0 wrong\n"), done.stdout + done.stderr
    assert summed(tmp_path, "pool", "hits") > OPERATIONS / 20, records(tmp_path, "pool", "pool")
    assert summed(tmp_path, "pool", "unreturned") == 0


@pytest.mark.parametrize("order", ["eager", "deferred"])
def test_other_orders(order, tmp_path):
    done = corruption("pool", tmp_path, 1, order)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_seen_without_the_quarantine(tmp_path):
    """The same library, built without the rule by which a block becomes safe."""
    seen = [corruption("pool", tmp_path / str(seed), seed, LD_PRELOAD=str(HERE / "libpool_no_epoch.so")) for seed in range(1, 4)]
    assert all(done.returncode in (0, 1) for done in seen), [done.stderr for done in seen]
    assert any(done.returncode == 1 for done in seen), [done.stdout for done in seen]
