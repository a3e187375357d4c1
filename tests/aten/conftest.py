# SPDX-License-Identifier: Apache-2.0
"""The tests run in a process that has the stand-ins preloaded (see `run`), in the order of B200OPT_VNODE_ORDER."""
import ctypes
import os

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--seeds", type=int, default=1, help="seeds of the adversarial order that sweeps of the operator database try")


def pytest_configure(config):
    if "libb200vnode" not in os.environ.get("LD_PRELOAD", ""):
        pytest.exit("start the tests by tests/aten/run: the stand-ins are not preloaded", returncode=2)
    if not torch.cuda.is_available():
        pytest.exit("torch sees no device of the virtual node", returncode=2)
    config.addinivalue_line("markers", "races: a test about races")
    torch.manual_seed(1234)  # inputs that the test files make when they are read


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        orders = [("deferred", 1), *(("adversarial", seed) for seed in range(1, metafunc.config.getoption("seeds") + 1))]
        metafunc.parametrize("order, seed", orders)


def races():
    count = ctypes.CDLL("libb200vnode.so").vnode_race_count
    count.restype = ctypes.c_uint64
    return count()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1234)


@pytest.fixture(autouse=True)
def no_race(request):
    """Nothing in a test races, unless it is about races."""
    before = races()
    yield
    torch.cuda.synchronize()
    if not request.node.get_closest_marker("races"):
        assert races() == before, "the node reported a race"
